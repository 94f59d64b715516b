/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What handles count as, so that a tenant's are limited (graph_limits.c). The nodes of a graph
 * count with it, and with the graphs around it.
 */
#include "frontend-glue/handles/handle_lists.h"
#include "frontend-glue/tenants/math_limits.h"

/* What a handle of that kind counts as; IBX_HOLDS: it does not count. */
static enum ibx_hold hold_of(enum ibx_handle_kind kind)
{
    switch (kind) {
    case IBX_HANDLE_STREAM:
        return IBX_HOLD_STREAMS;
    case IBX_HANDLE_EVENT:
        return IBX_HOLD_EVENTS;
    case IBX_HANDLE_GRAPH:
        return IBX_HOLD_GRAPHS;
    case IBX_HANDLE_EXEC:
        return IBX_HOLD_EXECS;
    case IBX_HANDLE_TEXTURE:
    case IBX_HANDLE_SURFACE:
        return IBX_HOLD_TEXTURES;
    case IBX_HANDLE_MADE_POOL:
    case IBX_HANDLE_OPENED_POOL:
        return IBX_HOLD_POOLS;
    default:
        return kind < IBX_HANDLE_MATH ? IBX_HOLDS : ibx_math_hold(kind - IBX_HANDLE_MATH);
    }
}

/* May exceed the limit: a tenant that has reached it makes no more (own_reset.c, graph_limits.c),
 * but what was being made then counts, too. */
void ibx_handle_count_as(struct handle *h, struct ibx_tenant *tenant)
{
    const enum ibx_hold hold = hold_of(h->kind);
    if (h->counted)
        ibx_quota_give(h->counted, h->weight);
    h->counted = !tenant || hold == IBX_HOLDS ? NULL
                 : hold == IBX_HOLD_EXECS     ? ibx_tenant_execs(tenant, h->gpu)
                                              : ibx_tenant_quota(tenant, hold);
    if (h->counted)
        ibx_quota_note(h->counted, h->weight);
}

/* Counts a graph or an executable graph as n more, or as n less, but at least as 1. */
static void grow(struct handle *h, uint64_t n, bool less)
{
    n = less && n > h->weight - 1 ? h->weight - 1 : n;
    if (h->counted && less)
        ibx_quota_give(h->counted, n);
    else if (h->counted)
        ibx_quota_note(h->counted, n);
    h->weight = less ? h->weight - n : h->weight + n;
}

void ibx_handle_grow_graph(const struct gpu_session *x, uint64_t graph, uint64_t n, unsigned depth,
                           bool less)
{
    struct handle *h = ibx_handle_find(x, IBX_HANDLE_GRAPH, graph);
    if (h)
        grow(h, n, less);
    for (; h; h = h->of ? ibx_handle_find(x, IBX_HANDLE_GRAPH, h->of) : NULL) {
        h->nodes = !less ? h->nodes + n : h->nodes > n ? h->nodes - n : 1;
        h->depth = h->depth > depth + 1 ? h->depth : depth + 1;
        depth = h->depth;
    }
}

static bool add_to_graph(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                         uint64_t graph, uint64_t weight, unsigned depth)
{
    const bool added = ibx_handle_add(x, kind, value, graph, weight, false);
    pthread_mutex_lock(&ibx_handles_lock);
    if (added)
        ibx_handle_grow_graph(x, graph, weight, depth, false);
    pthread_mutex_unlock(&ibx_handles_lock);
    return added;
}

bool ibx_handles_add_node(struct gpu_session *x, uint64_t node, uint64_t graph, uint64_t weight,
                          unsigned depth)
{
    return add_to_graph(x, IBX_HANDLE_NODE, node, graph, weight, depth);
}

bool ibx_handles_add_condition(struct gpu_session *x, uint64_t condition, uint64_t graph)
{
    return add_to_graph(x, IBX_HANDLE_CONDITION, condition, graph, 1, 0);
}

void ibx_handles_grow(struct gpu_session *x, uint64_t graph, uint64_t nodes, unsigned depth)
{
    pthread_mutex_lock(&ibx_handles_lock);
    ibx_handle_grow_graph(x, graph, nodes, depth, false);
    pthread_mutex_unlock(&ibx_handles_lock);
}

/* Locked. How many graphs are around a graph. */
static unsigned level_of(const struct gpu_session *x, const struct handle *graph)
{
    unsigned level = 0;
    while (graph && graph->of) {
        graph = ibx_handle_find(x, IBX_HANDLE_GRAPH, graph->of);
        level++;
    }
    return level;
}

struct ibx_graph_size ibx_handles_size(struct gpu_session *x, enum ibx_handle_kind kind,
                                       uint64_t value)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *h = ibx_handle_find(x, kind, value);
    const struct ibx_graph_size size = {.nodes = !h                         ? 0
                                                 : kind == IBX_HANDLE_GRAPH ? h->nodes
                                                                            : h->weight,
                                        .level = kind == IBX_HANDLE_GRAPH ? level_of(x, h) : 0,
                                        .depth = h ? h->depth : 0};
    pthread_mutex_unlock(&ibx_handles_lock);
    return size;
}

void ibx_handles_made_so(struct gpu_session *x, uint64_t exec, struct ibx_graph_size size)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = ibx_handle_find(x, IBX_HANDLE_EXEC, exec);
    if (found && size.nodes) {
        grow(found, size.nodes - 1, false);
        found->depth = size.depth;
    }
    pthread_mutex_unlock(&ibx_handles_lock);
}

void ibx_handles_made_of(struct gpu_session *x, uint64_t exec, uint64_t graph, unsigned functions)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = ibx_handle_find(x, IBX_HANDLE_EXEC, exec);
    if (found) {
        ibx_handle_set_graph(found, graph);
        found->functions = functions;
    }
    pthread_mutex_unlock(&ibx_handles_lock);
}

unsigned ibx_handles_functions(struct gpu_session *x, uint64_t exec)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, IBX_HANDLE_EXEC, exec);
    const unsigned functions = found ? found->functions : 0;
    pthread_mutex_unlock(&ibx_handles_lock);
    return functions;
}

void ibx_handles_within(struct gpu_session *x, uint64_t graph, uint64_t other)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = ibx_handle_find(x, IBX_HANDLE_GRAPH, graph);
    struct handle *around = ibx_handle_find(x, IBX_HANDLE_GRAPH, other);
    if (found && around) {
        ibx_handle_set_graph(found, other);
        for (unsigned depth = 1; around;
             around = ibx_handle_find(x, IBX_HANDLE_GRAPH, around->of)) {
            around->nodes += found->nodes;
            around->depth = around->depth > depth + 1 ? around->depth : depth + 1;
            depth = around->depth;
        }
    }
    pthread_mutex_unlock(&ibx_handles_lock);
}
