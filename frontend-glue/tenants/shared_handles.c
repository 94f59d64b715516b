/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/tenants/shared_handles.h"

#include "common/shared_table.h"
#include "transport/transport.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct published {
    uint64_t hash; /* of the tenant's name: most places are skipped by it */
    struct ibx_shared_handle handle;
    char tenant[IBX_NAME_MAX + 1];
};

static struct ibx_shared_table *table; /* NULL: there is one process */
static unsigned own, most;

/* What was counted when all places were last looked at. */
static struct counted {
    char tenant[IBX_NAME_MAX + 1];
    uint64_t takes;
    unsigned all, of_tenant;
} counted;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

bool ibx_shared_handles_create(unsigned places)
{
    most = places;
    counted = (struct counted){0};
    ibx_shared_table_destroy(table);
    table = ibx_shared_table_create(places, sizeof(struct published), false);
    return table;
}

void ibx_shared_handles_are_of(unsigned process)
{
    own = process + 1;
}

void ibx_shared_handles_ended(unsigned process)
{
    if (table)
        ibx_shared_table_forget(table, process + 1);
}

bool ibx_shared_handles_any(void)
{
    return table;
}

static uint64_t hash_of(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3;
    return hash;
}

/* Finds the tenant's next place from `*at` on. Returns the process that made it; 0: there is
 * none. */
static unsigned next_of(const char *tenant, uint64_t hash, unsigned *at, struct published *p)
{
    unsigned maker;
    do
        maker = ibx_shared_table_next(table, at, &hash, sizeof(hash), p);
    while (maker && strncmp(p->tenant, tenant, sizeof(p->tenant)));
    return maker;
}

static void count(const char *tenant, uint64_t hash)
{
    struct published p;
    unsigned at = 0;
    counted = (struct counted){.takes = ibx_shared_table_takes(table)}; /* before the count */
    snprintf(counted.tenant, sizeof(counted.tenant), "%s", tenant);
    counted.all = ibx_shared_table_taken(table);
    while (next_of(tenant, hash, &at, &p))
        counted.of_tenant++;
}

/* Whether the tenant may take another place: not if it has as many as are free, so that another
 * tenant always finds some. The tenant has, and there are, at most `more` more than were
 * counted. */
static bool is_room(uint64_t more)
{
    const unsigned n = more < most ? (unsigned)more : most;
    const unsigned all = counted.all + n, of_tenant = counted.of_tenant + n;
    return all < most && of_tenant < most / 4 && of_tenant < most - all;
}

/* Counts all places only if so many were taken since the last count that there may be no room. */
static bool may_publish(const char *tenant, uint64_t hash)
{
    pthread_mutex_lock(&counting);
    bool is =
        !strcmp(counted.tenant, tenant) && is_room(ibx_shared_table_takes(table) - counted.takes);
    if (!is) {
        count(tenant, hash);
        is = is_room(0);
    }
    pthread_mutex_unlock(&counting);
    return is;
}

int ibx_shared_handles_publish(const char *tenant, const struct ibx_shared_handle *handle)
{
    struct published p;
    const uint64_t hash = hash_of(tenant);
    const int place = may_publish(tenant, hash) ? ibx_shared_table_take(table, own) : -1;
    if (place < 0)
        return -1;
    p = (struct published){.hash = hash, .handle = *handle};
    snprintf(p.tenant, sizeof(p.tenant), "%s", tenant);
    ibx_shared_table_write(table, place, &p);
    return place;
}

void ibx_shared_handles_withdraw(int place)
{
    if (place >= 0)
        ibx_shared_table_give(table, place);
}

/* A faulty process may have written anything there: CUDA checks what it opens. */
bool ibx_shared_handles_find(const char *tenant, enum ibx_shared_kind kind, const uint8_t *number,
                             struct ibx_shared_handle *found)
{
    struct published p;
    const uint64_t hash = hash_of(tenant);
    unsigned at = 0, maker;
    while ((maker = next_of(tenant, hash, &at, &p)) &&
           (memcmp(p.handle.number, number, IBX_SHARED_NUMBER) || maker == own ||
            p.handle.kind != kind))
        ;
    if (maker)
        *found = p.handle;
    return maker;
}
