/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/streams/outstanding.h"

#include <stdlib.h>

/* Launches of a graph call a function in their order. One that a reset has left in the list has no
 * launch to be called for. */
struct ibx_outstanding *ibx_outstanding_take(struct ibx_outstanding **list, uint64_t number)
{
    struct ibx_outstanding **found = NULL;
    for (struct ibx_outstanding **at = list; *at && (!found || (*found)->abandoned);
         at = &(*at)->next)
        if ((*at)->number == number && (!found || !(*at)->abandoned))
            found = at;
    struct ibx_outstanding *taken = found ? *found : NULL;
    if (taken)
        *found = taken->next;
    return taken;
}

struct ibx_outstanding *ibx_outstanding_replace(struct ibx_outstanding **list, uint64_t number)
{
    struct host_node host;
    struct ibx_outstanding **at = list;
    while (*at && !(*at)->launch)
        at = &(*at)->next;
    struct ibx_outstanding *instead = ibx_repeated_find(number, &host) ? *at : NULL;
    if (!instead)
        return NULL;
    *at = instead->next;
    instead->number = number;
    instead->function = host.function;
    instead->argument = host.argument;
    ibx_launch_bytes_free(instead->copy.taken);
    instead->copy.taken = NULL;
    return instead;
}

void ibx_outstanding_free(struct ibx_outstanding *f)
{
    ibx_launch_bytes_free(f ? f->copy.taken : NULL);
    free(f);
}
