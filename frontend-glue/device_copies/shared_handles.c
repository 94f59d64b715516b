/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/device_copies/shared_handles.h"

#include "common/forked.h"
#include "transport/transport.h"

#include <stdatomic.h>
#include <stdio.h>

#define PLACES    16384 /* 4 MiB, of which only what is used is there */
#define OF_TENANT 4096u

struct place {
    atomic_uint maker; /* the process, from 1 on; 0: the place is free. It is written last */
    char tenant[IBX_NAME_MAX + 1];
    struct ibx_shared_handle handle;
};

static struct table {
    pthread_mutex_t lock;
    int used; /* none was taken behind these */
    struct place all[PLACES];
} * table; /* NULL: there is one process */
static unsigned own;

bool ibx_shared_handles_create(void)
{
    table = ibx_forked_map(sizeof(*table));
    if (table)
        ibx_forked_lock_init(&table->lock);
    return table;
}

/* Whoever has ended inside has left whole places, and free ones. */
static void lock_all(void)
{
    ibx_forked_lock(&table->lock);
}

void ibx_shared_handles_are_of(unsigned process)
{
    own = process + 1;
}

void ibx_shared_handles_ended(unsigned process)
{
    if (!table)
        return;
    lock_all();
    for (int i = 0; i < table->used && i < PLACES; i++) {
        if (table->all[i].maker == process + 1)
            table->all[i].maker = 0;
    }
    pthread_mutex_unlock(&table->lock);
}

bool ibx_shared_handles_any(void)
{
    return table;
}

/* Locked. NULL: there is none for the tenant. */
static struct place *free_place(const char *tenant)
{
    struct place *found = NULL;
    unsigned of_tenant = 0;
    for (int i = 0; i < table->used; i++) {
        struct place *p = &table->all[i];
        if (!p->maker)
            found = found ? found : p;
        else
            of_tenant += !strcmp(p->tenant, tenant);
    }
    if (of_tenant >= OF_TENANT)
        return NULL;
    return found || table->used == PLACES ? found : &table->all[table->used++];
}

int ibx_shared_handles_publish(const char *tenant, const struct ibx_shared_handle *handle)
{
    lock_all();
    struct place *p = free_place(tenant);
    if (p) {
        snprintf(p->tenant, sizeof(p->tenant), "%s", tenant);
        p->handle = *handle;
        p->maker = own;
    }
    pthread_mutex_unlock(&table->lock);
    return p ? (int)(p - table->all) : -1;
}

void ibx_shared_handles_withdraw(int place)
{
    if (place < 0)
        return;
    lock_all();
    table->all[place].maker = 0;
    pthread_mutex_unlock(&table->lock);
}

bool ibx_shared_handles_find(const char *tenant, enum ibx_shared_kind kind, const uint8_t *number,
                             struct ibx_shared_handle *found)
{
    bool is = false;
    lock_all();
    for (int i = 0; i < table->used && !is; i++) {
        const struct place *p = &table->all[i];
        is = p->maker && p->maker != own && p->handle.kind == kind && !strcmp(p->tenant, tenant) &&
             !memcmp(p->handle.number, number, IBX_SHARED_NUMBER);
        if (is)
            *found = p->handle;
    }
    pthread_mutex_unlock(&table->lock);
    return is;
}
