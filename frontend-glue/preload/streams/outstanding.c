/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/streams/outstanding.h"

#include <stdlib.h>

void ibx_outstanding_append(struct ibx_outstanding **list, struct ibx_outstanding *f)
{
    while (*list)
        list = &(*list)->next;
    f->next = NULL;
    *list = f;
}

static bool is_legacy(const struct ibx_in_stream *stream)
{
    return (uintptr_t)stream->handle <= 1;
}

bool ibx_streams_ordered(const struct ibx_in_stream *one, const struct ibx_in_stream *other)
{
    return one->handle == other->handle ||
           (one->blocking && other->blocking && (is_legacy(one) || is_legacy(other)));
}

struct ibx_outstanding *ibx_outstanding_before(struct ibx_outstanding *list,
                                               const struct ibx_in_stream *in)
{
    struct ibx_outstanding *f = list;
    while (f && (f->abandoned || !ibx_streams_ordered(&f->in, in)))
        f = f->next;
    return f;
}

struct ibx_outstanding *ibx_outstanding_up_to(struct ibx_outstanding *list, uint64_t order)
{
    struct ibx_outstanding *f = list;
    while (f && (f->abandoned || !f->in.blocking || !f->order || f->order > order))
        f = f->next;
    return f;
}

static bool is_of_graph(const struct ibx_outstanding *f, uint64_t number)
{
    (void)number;
    return f->launch;
}

static bool has_number(const struct ibx_outstanding *f, uint64_t number)
{
    return f->number == number;
}

/* Removes the oldest one that fits. One that a reset has left in the list has no launch to be
 * called for: it is taken if there is no other. */
static struct ibx_outstanding *take(struct ibx_outstanding **list,
                                    bool (*fits)(const struct ibx_outstanding *f, uint64_t number),
                                    uint64_t number)
{
    struct ibx_outstanding **found = NULL;
    for (struct ibx_outstanding **at = list; *at && (!found || (*found)->abandoned);
         at = &(*at)->next)
        if (fits(*at, number) && (!found || !(*at)->abandoned))
            found = at;
    struct ibx_outstanding *taken = found ? *found : NULL;
    if (taken)
        *found = taken->next;
    return taken;
}

/* Launches of a graph call a function in their order. */
struct ibx_outstanding *ibx_outstanding_take(struct ibx_outstanding **list, uint64_t number)
{
    return take(list, has_number, number);
}

struct ibx_outstanding *ibx_outstanding_replace(struct ibx_outstanding **list, uint64_t number)
{
    struct host_node host;
    struct ibx_outstanding *instead =
        ibx_repeated_find(number, &host) ? take(list, is_of_graph, 0) : NULL;
    if (!instead)
        return NULL;
    instead->number = number;
    instead->function = host.function;
    instead->argument = host.argument;
    ibx_launch_bytes_free(instead->copy.taken);
    instead->copy.taken = NULL;
    return instead;
}

bool ibx_outstanding_order(struct ibx_outstanding *list, uint64_t number, uint64_t *order)
{
    struct ibx_outstanding *f = list;
    while (f && f->number != number)
        f = f->next;
    if (f)
        f->order = ++*order;
    return f;
}

unsigned ibx_outstanding_settle(struct ibx_outstanding **list, uint64_t launch, uint64_t *order)
{
    unsigned removed = 0;
    for (struct ibx_outstanding **at = list, *f; (f = *at);) {
        if (f->launch == launch && !order) {
            *at = f->next;
            ibx_outstanding_free(f);
            removed++;
            continue;
        }
        if (f->launch == launch)
            f->order = ++*order;
        at = &f->next;
    }
    return removed;
}

/* What is not enqueued yet comes after the reset. */
unsigned ibx_outstanding_abandon(struct ibx_outstanding *list, int device)
{
    unsigned abandoned = 0;
    for (struct ibx_outstanding *f = list; f; f = f->next) {
        if (!f->order || f->abandoned || f->in.device != device)
            continue;
        f->abandoned = true;
        ibx_launch_bytes_free(f->copy.taken);
        f->copy.taken = NULL;
        abandoned++;
    }
    return abandoned;
}

void ibx_outstanding_free(struct ibx_outstanding *f)
{
    ibx_launch_bytes_free(f ? f->copy.taken : NULL);
    free(f);
}
