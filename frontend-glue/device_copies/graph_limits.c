/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How much of graphs a tenant may have: nodes, and graphs within each other. A graph that is put
 * into another one is copied with all that is in it, so a few requests, each of which puts the
 * graph of the one before twice into another, would ask for more than any host has.
 *
 * What a request makes is reserved before CUDA makes it. What comes into a graph while streams are
 * captured is counted by requests, until the graph is there and can be measured. One that is too
 * much ends its session, and with it what that captures.
 */
#include "frontend-glue/device_copies/extra_graphs.h"

#include "common/log.h"

#include <stdatomic.h>
#include <stdlib.h>

static struct ibx_quota *quota_of(const struct copies *x, enum ibx_hold hold)
{
    return x->isolation.tenant ? ibx_tenant_quota(x->isolation.tenant, hold) : NULL;
}

static void tell(const struct copies *x)
{
    if (x->isolation.tenant && ibx_tenant_tell_once(x->isolation.tenant))
        ibx_log(
            IBX_LOG_WARN,
            "clients of tenant \"%s\" get no more graphs, nodes, textures or pools: they have as "
            "many as all of a tenant may have, or %u graphs within each other",
            ibx_tenant_name(x->isolation.tenant), IBX_GRAPHS_DEEP);
}

bool ibx_room_take(struct copies *x, enum ibx_hold hold, uint64_t n)
{
    struct ibx_quota *quota = quota_of(x, hold);
    const bool taken = !quota || ibx_quota_take(quota, n);
    if (!taken)
        tell(x);
    return taken;
}

void ibx_room_give(struct copies *x, enum ibx_hold hold, uint64_t n)
{
    struct ibx_quota *quota = quota_of(x, hold);
    if (quota)
        ibx_quota_give(quota, n);
}

void ibx_room_exec_made(struct copies *x)
{
    if (x->handler.exec_size.nodes)
        ibx_room_give(x, IBX_HOLD_EXECS, x->handler.exec_size.nodes);
    x->handler.exec_size.nodes = 0;
}

/* ------------------------------------------------------------------------------------ nodes */

int ibx_extra_node_room(struct extra *e, struct place *p)
{
    const struct ibx_graph_size size =
        ibx_handles_size(e->x, IBX_HANDLE_GRAPH, (uintptr_t)p->graph);
    const uint64_t edges = p->count > 1 ? p->count - 1 : 0; /* the first comes with the node */
    p->weight = 0;
    if (size.level + 1 + p->depth > IBX_GRAPHS_DEEP) {
        tell(e->x);
        return CUDA_NOT_SUPPORTED;
    }
    if (!ibx_room_take(e->x, IBX_HOLD_GRAPHS, 1 + edges + p->inner))
        return CUDA_MEMORY_ALLOCATION;
    p->weight = 1 + edges + p->inner;
    return 0;
}

/* False: there are too many graphs within each other. */
static bool count(void *graph, unsigned depth, uint64_t *nodes, unsigned *deepest)
{
    int (*type_of)(void *node, int *type) = NULL;
    int (*child_of)(void *node, void **child) = NULL;
    void *list = ibx_copies_runtime("cudaGraphGetNodes"), *child = NULL;
    size_t n = 0;
    int rc = 0, type = 0;
    *(void **)&type_of = ibx_copies_runtime("cudaGraphNodeGetType");
    *(void **)&child_of = ibx_copies_runtime("cudaGraphChildGraphNodeGetGraph");
    void **all = list && type_of && child_of ? ibx_extra_nodes_of(list, graph, &n, &rc) : NULL;
    *deepest = depth > *deepest ? depth : *deepest;
    *nodes += all ? n : 0;
    bool good = depth < IBX_GRAPHS_DEEP;
    for (size_t i = 0; all && i < n && good; i++) {
        if (!type_of(all[i], &type) && type == CHILD_NODE && !child_of(all[i], &child))
            good = count(child, depth + 1, nodes, deepest);
    }
    free(all);
    return good;
}

/* It is in a graph that counts by itself. */
static void forget_captured(_Atomic uint64_t *captured, uint64_t nodes)
{
    uint64_t now = atomic_load(captured);
    while (!atomic_compare_exchange_weak(captured, &now, now > nodes ? now - nodes : 0)) {
    }
}

bool ibx_graph_measure(struct copies *x, uint64_t graph)
{
    uint64_t nodes = 0;
    unsigned depth = 0;
    const bool good = count(pointer_to(graph), 0, &nodes, &depth);
    if (x->isolation.tenant)
        forget_captured(ibx_tenant_captured(x->isolation.tenant), nodes);
    if (good)
        ibx_handles_grow(x, graph, nodes, depth);
    else
        tell(x);
    return good;
}

/* --------------------------------------------------------------------------------- captures */

/* What is about to be refused may name anything: CUDA is not asked of a stream that is none. */
static bool is_captured(struct copies *x, uint64_t stream)
{
    int capturing = 0;
    return stream > 0 && stream != (uintptr_t)IBX_CUDA_STREAM_LEGACY && ibx_copies_have_cuda(x) &&
           ibx_named_stream(x, stream) &&
           !x->cuda->stream_is_capturing(pointer_to(stream), &capturing) && capturing;
}

/* Whether a request may come into a graph. Which streams a library works in is not known: those of
 * its own session count. */
static bool is_work(struct copies *x, const struct ibx_call *call, const uint8_t *body, size_t n)
{
    uint64_t stream = 0;
    switch (call->kind) {
    case IBX_CALL_LAUNCH:
    case IBX_CALL_REPEATS:
    case IBX_CALL_ENQUEUES:
    case IBX_CALL_COPIES:
        return ibx_call_stream(call, body, n, &stream) && is_captured(x, stream);
    case IBX_CALL_OTHER:
        return ibx_captures_begun(x);
    default:
        return false;
    }
}

static bool captures_more(struct copies *x, uint64_t n)
{
    struct ibx_tenant *tenant = x->isolation.tenant;
    if (!tenant || !n)
        return true;
    const uint64_t all = atomic_fetch_add(ibx_tenant_captured(tenant), n) + n;
    const bool room = all <= ibx_quota_left(quota_of(x, IBX_HOLD_GRAPHS));
    if (!room)
        tell(x);
    return room;
}

bool ibx_graph_captures(struct copies *x, const struct ibx_call *call, const uint8_t *body,
                        size_t n)
{
    return !ibx_copies_captures() || captures_more(x, is_work(x, call, body, n));
}

bool ibx_graph_captures_in(struct copies *x, uint64_t stream)
{
    return !ibx_copies_captures() || captures_more(x, is_captured(x, stream));
}

bool ibx_graph_launches(struct copies *x, uint64_t exec, uint64_t stream)
{
    if (!ibx_copies_captures() || !is_captured(x, stream))
        return true;
    const struct ibx_graph_size size = ibx_handles_size(x, IBX_HANDLE_EXEC, exec);
    if (size.depth + 1 < IBX_GRAPHS_DEEP)
        return captures_more(x, size.nodes);
    tell(x);
    return false;
}
