/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Extension requests about the edges between nodes of graphs. An edge may have data: from which
 * port of the earlier node it comes, and of what kind it is. From CUDA 13 on all functions have an
 * array for it; from 12.3 on there are further functions that do; before there is no such data.
 */
#include "frontend-glue/extensions/graphs.h"

#include <stdio.h>
#include <stdlib.h>

#define PORTS_BYTES 3  /* of an edge's data, before what has no meaning yet */
#define NAME_BYTES  64 /* of a function's name, at most */

int ibx_extension_runtime_version(void)
{
    int (*version)(int *found) = NULL;
    int found = 0;
    *(void **)&version = ibx_back_end_runtime("cudaRuntimeGetVersion");
    return version && !version(&found) ? found : 0;
}

void *ibx_extension_with_edges(const char *name)
{
    char before[NAME_BYTES];
    const int version = ibx_extension_runtime_version();
    if (version < EDGES_BEFORE)
        return NULL;
    snprintf(before, sizeof(before), "%s_v2", name);
    return ibx_back_end_runtime(version < EDGES_VERSION ? before : name);
}

bool ibx_extension_get_edges(struct extension_request *e, uint8_t *edges, size_t count)
{
    static const uint8_t none[IBX_EXT_EDGE - PORTS_BYTES];
    bool good = true;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *edge = ibx_get_bytes(&e->in, IBX_EXT_EDGE);
        if (!edge)
            return false;
        good = good && !memcmp(edge + PORTS_BYTES, none, sizeof(none));
        memcpy(edges + i * IBX_EXT_EDGE, edge, IBX_EXT_EDGE);
    }
    return good;
}

/* ------------------------------------------------------------------------------------ changes */

struct change {
    void *graph, *from, *to;
    bool removes;
};

/* False: the client may not name these. */
static bool get_change(struct extension_request *e, struct change *c)
{
    c->graph = pointer(&e->in);
    c->from = pointer(&e->in);
    c->to = pointer(&e->in);
    c->removes = ibx_get_u8(&e->in);
    return is_graph(e, c->graph) &&
           ibx_handles_is_node_of(e->x, (uintptr_t)c->from, (uintptr_t)c->graph) &&
           ibx_handles_is_node_of(e->x, (uintptr_t)c->to, (uintptr_t)c->graph);
}

/* `data` NULL: the edge is plain. Before CUDA 13 the plain function ends with the count. */
static int make_change(const struct change *c, void *function, bool has_array, const uint8_t *data)
{
    int (*change)(void *graph, void *const *from, void *const *to, const void *edges,
                  size_t count) = NULL;
    memcpy(&change, &function, sizeof(change));
    return change(c->graph, &c->from, &c->to, has_array ? data : (const void *)1, 1);
}

/* An edge counts until the graph ends, even if it is removed: not all edges were counted. */
static int run_change(struct extension_request *e, const struct change *c, void *function,
                      bool has_array, const uint8_t *data)
{
    if (c->removes)
        return make_change(c, function, has_array, data);
    if (!ibx_room_take(e->x, IBX_HOLD_GRAPHS, 1))
        return CUDA_MEMORY_ALLOCATION;
    const int rc = make_change(c, function, has_array, data);
    if (!rc)
        ibx_handles_grow(e->x, (uintptr_t)c->graph, 1, 0);
    ibx_room_give(e->x, IBX_HOLD_GRAPHS, 1);
    return rc;
}

static int order(struct extension_request *e)
{
    struct change c;
    const bool there = get_change(e, &c);
    void *function = c.removes ? ibx_back_end_runtime("cudaGraphRemoveDependencies") : e->function;
    if (!there || !whole(e) || !function)
        return CUDA_INVALID_VALUE;
    const int version = ibx_extension_runtime_version();
    return version ? run_change(e, &c, function, version >= EDGES_VERSION, NULL)
                   : CUDA_NOT_SUPPORTED;
}

/* CUDA checks whether there may be such an edge between such nodes. */
static int order_with_data(struct extension_request *e)
{
    struct change c;
    uint8_t edge[IBX_EXT_EDGE];
    const bool there = get_change(e, &c);
    if (!ibx_extension_get_edges(e, edge, 1) || !there || !whole(e))
        return CUDA_INVALID_VALUE;
    void *function = ibx_extension_with_edges(c.removes ? "cudaGraphRemoveDependencies"
                                                        : "cudaGraphAddDependencies");
    return function ? run_change(e, &c, function, true, edge) : CUDA_NOT_SUPPORTED;
}

/* ---------------------------------------------------------------------------------- questions */

/* The nodes before or behind a node. */
struct neighbours {
    void **nodes;
    uint8_t *edges; /* NULL: their data is not wanted */
    size_t count;
};

static void release(struct neighbours *n)
{
    free(n->nodes);
    free(n->edges);
}

static bool allocate(struct neighbours *n, bool data)
{
    n->nodes = calloc(n->count + 1, sizeof(*n->nodes));
    n->edges = data ? calloc(n->count + 1, IBX_EXT_EDGE) : NULL;
    return n->nodes && (n->edges || !data);
}

/* By a function that has an array for data or, if `plain`, has none. A cudaError_t; without one
 * release() follows. CUDA refuses to list edges with data without an array for it. */
static int find(void *function, bool plain, void *node, bool data, struct neighbours *n)
{
    int (*get)(void *of, void **nodes, void *edges, size_t *found) = NULL;
    int (*get_before)(void *of, void **nodes, size_t *found) = NULL;
    memcpy(&get, &function, sizeof(get));
    memcpy(&get_before, &function, sizeof(get_before));
    int rc = plain ? get_before(node, NULL, &n->count) : get(node, NULL, NULL, &n->count);
    if (!rc && !allocate(n, data))
        rc = CUDA_MEMORY_ALLOCATION;
    if (!rc && n->count)
        rc = plain ? get_before(node, n->nodes, &n->count)
                   : get(node, n->nodes, n->edges, &n->count);
    if (rc)
        release(n);
    return rc;
}

/* CUDA_NOT_SUPPORTED: the client has not listed the nodes. */
static int answer(struct extension_request *e, const struct neighbours *n, uint64_t from,
                  size_t most)
{
    static const uint8_t plain[IBX_EXT_EDGE];
    int rc = 0;
    ibx_put_u64(&e->out, n->count);
    for (size_t i = 0; i < most; i++) {
        const bool is = from < n->count && i < n->count - from;
        void *node = is ? n->nodes[from + i] : NULL;
        if (node && !is_node(e, node))
            rc = CUDA_NOT_SUPPORTED;
        ibx_put_u64(&e->out, (uintptr_t)node);
        if (most == IBX_EXT_EDGES)
            ibx_put_bytes(&e->out, is && n->edges ? n->edges + (from + i) * IBX_EXT_EDGE : plain,
                          IBX_EXT_EDGE);
    }
    return rc;
}

/* `data`: the answer has the data of edges. */
static int list(struct extension_request *e, bool data)
{
    struct neighbours n = {.count = 0};
    void *node = pointer(&e->in);
    const uint64_t from = ibx_get_u64(&e->in);
    const bool behind = ibx_get_u8(&e->in);
    if (!whole(e) || !is_node(e, node))
        return CUDA_INVALID_VALUE;
    const char *name = behind ? "cudaGraphNodeGetDependentNodes" : "cudaGraphNodeGetDependencies";
    const int version = ibx_extension_runtime_version();
    const bool plain = version < (data ? EDGES_BEFORE : EDGES_VERSION);
    void *function = data && !plain ? ibx_extension_with_edges(name) : ibx_back_end_runtime(name);
    if (!function || !version)
        return CUDA_NOT_SUPPORTED;
    int rc = find(function, plain, node, data && !plain, &n);
    if (rc)
        return rc;
    rc = answer(e, &n, from, data ? IBX_EXT_EDGES : IBX_EXT_LISTED);
    release(&n);
    return rc;
}

static int list_neighbours(struct extension_request *e)
{
    return list(e, false);
}

static int list_edges(struct extension_request *e)
{
    return list(e, true);
}

/* ----------------------------------------------------------------------------------- requests */

const struct extension_call ibx_edge_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_GRAPH_ORDER] = {"cudaGraphAddDependencies", order},
    [IBX_EXT_GRAPH_ORDER_DATA] = {"cudaGraphAddDependencies", order_with_data},
    [IBX_EXT_NODE_NEIGHBOURS] = {"cudaGraphNodeGetDependencies", list_neighbours},
    [IBX_EXT_NODE_EDGES] = {"cudaGraphNodeGetDependencies", list_edges},
};
