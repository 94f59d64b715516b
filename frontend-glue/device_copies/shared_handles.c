/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/device_copies/shared_handles.h"

#include "common/shared_table.h"
#include "transport/transport.h"

#include <stdio.h>

#define PLACES    16384u /* 7 MiB, of which only what is used is there */
#define OF_TENANT 4096u

struct published {
    struct ibx_shared_handle handle; /* its number is first: it is found by that */
    char tenant[IBX_NAME_MAX + 1];
};

static struct ibx_shared_table *table; /* NULL: there is one process */
static unsigned own;

bool ibx_shared_handles_create(void)
{
    table = ibx_shared_table_create(PLACES, sizeof(struct published), false);
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

static bool is_of(const struct published *p, const char *tenant)
{
    return !strncmp(p->tenant, tenant, sizeof(p->tenant));
}

/* Whoever has as many places as are left gets no more: another tenant always finds some. */
static bool may_publish(const char *tenant)
{
    struct published p;
    unsigned of_tenant = 0, all = 0, at = 0;
    for (; ibx_shared_table_next(table, &at, NULL, 0, &p); all++)
        of_tenant += is_of(&p, tenant);
    return of_tenant < OF_TENANT && of_tenant < PLACES - all;
}

int ibx_shared_handles_publish(const char *tenant, const struct ibx_shared_handle *handle)
{
    struct published p;
    const int place = may_publish(tenant) ? ibx_shared_table_take(table, own) : -1;
    if (place < 0)
        return -1;
    p = (struct published){.handle = *handle};
    snprintf(p.tenant, sizeof(p.tenant), "%s", tenant);
    ibx_shared_table_write(table, place, &p);
    return place;
}

void ibx_shared_handles_withdraw(int place)
{
    if (place >= 0)
        ibx_shared_table_give(table, place);
}

/* Any of the processes may have gone wrong, and written there: CUDA checks what it opens. */
bool ibx_shared_handles_find(const char *tenant, enum ibx_shared_kind kind, const uint8_t *number,
                             struct ibx_shared_handle *found)
{
    struct published p;
    unsigned at = 0, maker;
    while ((maker = ibx_shared_table_next(table, &at, number, IBX_SHARED_NUMBER, &p)) &&
           (!is_of(&p, tenant) || maker == own || p.handle.kind != kind))
        ;
    if (maker)
        *found = p.handle;
    return maker;
}
