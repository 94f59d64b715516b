/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The numbers of captures that go on into one graph: a program may end a capture and begin another
 * one into the graph that it got (cudaStreamBeginCaptureToGraph). CUDA gives both the same number,
 * by which programs find what they keep for a capture.
 */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/preload.h"

#include <stdlib.h>

#define HEADS 256u /* of lists */

struct captured {
    struct captured *next;
    const void *graph;
    unsigned long long id;
};

static struct captured *heads[HEADS]; /* protected by the lock of ranges */

/* Called under the lock. The place of the graph in its list, or of NULL at the end. */
static struct captured **place_of(const void *graph)
{
    struct captured **at = &heads[((uintptr_t)graph >> 4) * 0x9e3779b97f4a7c15u >> 56];
    while (*at && (*at)->graph != graph)
        at = &(*at)->next;
    return at;
}

/* Without memory a later capture gets another number. */
unsigned long long ibx_frontend_capture_of_graph(const void *graph, unsigned long long id)
{
    ibx_frontend_ranges_lock();
    struct captured **at = place_of(graph), *found = *at;
    if (!found && (found = malloc(sizeof(*found)))) {
        *found = (struct captured){.graph = graph, .id = id};
        *at = found;
    }
    const unsigned long long same = found ? found->id : id;
    ibx_frontend_ranges_unlock();
    return same;
}

void ibx_frontend_capture_graph_gone(const void *graph)
{
    ibx_frontend_ranges_lock();
    struct captured **at = place_of(graph), *found = *at;
    if (found)
        *at = found->next;
    ibx_frontend_ranges_unlock();
    free(found);
}
