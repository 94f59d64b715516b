/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The edges between nodes of graphs, and their data, as extension requests. If a program asks for
 * edges without their data, and some have it, that is an error as natively.
 *
 * A back end that is older knows plain edges only. Programmatic ones let the later kernel begin
 * before the earlier one has ended, if both kernels ask for it: plain ones are stricter, so they
 * replace these there.
 */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/preload.h"

#include <stdlib.h>
#include <string.h>

enum { EDGE_FROM_PORT, EDGE_TO_PORT, EDGE_TYPE, EDGE_RESERVED }; /* cudaGraphEdgeData */

static const uint8_t plain[IBX_EXT_EDGE];

bool ibx_frontend_edges_are_valid(const void *edges, size_t count)
{
    const uint8_t *edge = edges;
    for (size_t i = 0; edge && i < count; i++, edge += IBX_EXT_EDGE)
        if (edge[EDGE_FROM_PORT] > 2 || edge[EDGE_TO_PORT] || edge[EDGE_TYPE] > 1 ||
            memcmp(edge + EDGE_RESERVED, plain, IBX_EXT_EDGE - EDGE_RESERVED) != 0)
            return false;
    return true;
}

/* NULL: the edge is plain. */
static const uint8_t *data_of(const void *edges, size_t i)
{
    const uint8_t *edge = edges ? (const uint8_t *)edges + i * IBX_EXT_EDGE : plain;
    return memcmp(edge, plain, IBX_EXT_EDGE) != 0 ? edge : NULL;
}

bool ibx_frontend_edges_have_data(const void *edges, size_t count)
{
    size_t i = 0;
    while (i < count && !data_of(edges, i))
        i++;
    return i < count;
}

/* ---------------------------------------------------------------------------------- questions */

#define PAGE_BYTES (8 + IBX_EXT_EDGES * (8 + IBX_EXT_EDGE))
_Static_assert(PAGE_BYTES <= IBX_EXT_OUT_MAX, "a page of edges fits into a reply");

/* The nodes before or behind a node, and the data of the edges to them. */
struct neighbours {
    uint64_t *nodes;
    uint8_t *edges;
    size_t count;
};

static void release(struct neighbours *n)
{
    free(n->nodes);
    free(n->edges);
    *n = (struct neighbours){.nodes = NULL};
}

static int make_room_for_data(struct neighbours *n)
{
    n->edges = calloc(n->count + 1, IBX_EXT_EDGE);
    return n->edges ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
}

/* Memory for as many as the back end has stated. */
static int make_room(struct neighbours *n, const char *call)
{
    int rc = CUDA_SUCCESS;
    n->nodes = ibx_frontend_graph_room(n->count, call, &rc);
    return rc ? rc : make_room_for_data(n);
}

/* Reads the neighbours from number `from` on. False: the back end cannot tell. */
static bool ask_page(const char *call, const void *node, int behind, size_t from,
                     struct neighbours *n, int *rc)
{
    struct extension_request e;
    uint8_t bytes[PAGE_BYTES] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    ibx_frontend_request_begin(&e, IBX_EXT_NODE_EDGES, call);
    ibx_put_u64(&e.body, (uintptr_t)node);
    ibx_put_u64(&e.body, from);
    ibx_put_u8(&e.body, (uint8_t)behind);
    if (!ibx_frontend_request_known(&e, bytes, sizeof(bytes), rc))
        return false;
    if (*rc)
        return true;
    const size_t count = (size_t)ibx_get_u64(&r);
    if (from && count != n->count)
        *rc = ibx_frontend_fail(CUDA_INVALID_VALUE);
    n->count = count;
    if (!from)
        *rc = make_room(n, call);
    for (size_t i = from; !*rc && i < count && i < from + IBX_EXT_EDGES; i++) {
        n->nodes[i] = ibx_get_u64(&r);
        memcpy(n->edges + i * IBX_EXT_EDGE, ibx_get_bytes(&r, IBX_EXT_EDGE), IBX_EXT_EDGE);
    }
    return true;
}

/* Returns a CUDA error; without one release() follows. An older back end refuses to list edges that
 * have data. */
static int find(const char *call, const void *node, int behind, struct neighbours *n)
{
    size_t from = 0;
    int rc = CUDA_SUCCESS;
    bool known = true;
    *n = (struct neighbours){.nodes = NULL};
    do {
        known = ask_page(call, node, behind, from, n, &rc);
        from += IBX_EXT_EDGES;
    } while (known && !rc && from < n->count);
    if (!known) {
        release(n);
        n->nodes =
            ibx_frontend_graph_list(IBX_EXT_NODE_NEIGHBOURS, call, node, behind, &n->count, &rc);
        rc = rc ? rc : make_room_for_data(n);
    }
    if (rc)
        release(n);
    return rc;
}

static int get_neighbours(const char *call, const void *node, int behind, void **nodes, void *edges,
                          size_t *count)
{
    struct neighbours n;
    if (!count)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    int rc = find(call, node, behind, &n);
    if (rc)
        return rc;
    if (nodes && !edges && ibx_frontend_edges_have_data(n.edges, n.count)) {
        release(&n);
        return ibx_frontend_fail(CUDA_LOSSY_QUERY);
    }
    for (size_t i = 0; nodes && i < *count; i++)
        nodes[i] = i < n.count ? (void *)(uintptr_t)n.nodes[i] : NULL;
    if (!nodes || *count > n.count)
        *count = n.count;
    if (nodes && edges)
        memcpy(edges, n.edges, *count * IBX_EXT_EDGE);
    release(&n);
    return CUDA_SUCCESS;
}

int cudaGraphNodeGetDependencies_v2(void *node, void **nodes, void *edges, size_t *count)
{
    return get_neighbours("cudaGraphNodeGetDependencies", node, 0, nodes, edges, count);
}

int cudaGraphNodeGetDependentNodes_v2(void *node, void **nodes, void *edges, size_t *count)
{
    return get_neighbours("cudaGraphNodeGetDependentNodes", node, 1, nodes, edges, count);
}

/* The arrays of a question about all edges of a graph; any may be NULL. */
struct listed {
    void **from, **to;
    uint8_t *edges;
    size_t room, found;
    bool have_data;
};

/* Adds the edges from a node to those behind it. */
static int add_edges(const char *call, uint64_t node, struct listed *l)
{
    struct neighbours n;
    const int rc = find(call, (const void *)(uintptr_t)node, 1, &n);
    for (size_t i = 0; !rc && i < n.count; i++, l->found++) {
        const bool fits = l->found < l->room;
        if (fits && l->from) {
            l->from[l->found] = (void *)(uintptr_t)node;
            l->to[l->found] = (void *)(uintptr_t)n.nodes[i];
        }
        if (fits && l->edges)
            memcpy(l->edges + l->found * IBX_EXT_EDGE, n.edges + i * IBX_EXT_EDGE, IBX_EXT_EDGE);
        l->have_data = l->have_data || data_of(n.edges, i);
    }
    release(&n);
    return rc;
}

/* Lists, for each node, the edges to the nodes that depend on it. */
int cudaGraphGetEdges_v2(void *graph, void **from, void **to, void *edges, size_t *count)
{
    static const char call[] = "cudaGraphGetEdges";
    size_t nodes;
    int rc = CUDA_SUCCESS;
    if (!count || !from != !to)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    struct listed l = {from, to, from ? edges : NULL, *count, 0, false};
    uint64_t *all = ibx_frontend_graph_list(IBX_EXT_GRAPH_NODES, call, graph, 0, &nodes, &rc);
    for (size_t i = 0; !rc && i < nodes; i++)
        rc = add_edges(call, all[i], &l);
    free(all);
    if (!rc && from && !edges && l.have_data)
        rc = ibx_frontend_fail(CUDA_LOSSY_QUERY);
    if (rc)
        return rc;
    for (size_t i = l.found; from && i < *count; i++)
        from[i] = to[i] = NULL;
    if (!from || *count > l.found)
        *count = l.found;
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------ changes */

static void begin_change(struct extension_request *e, enum ibx_extension number, const char *call,
                         const void *graph, const void *const ends[2], bool remove)
{
    ibx_frontend_request_begin(e, number, call);
    ibx_put_u64(&e->body, (uintptr_t)graph);
    ibx_put_u64(&e->body, (uintptr_t)ends[0]);
    ibx_put_u64(&e->body, (uintptr_t)ends[1]);
    ibx_put_u8(&e->body, remove);
}

/* `data` NULL: the edge is plain. */
static int change(const char *call, const void *graph, const void *const ends[2],
                  const uint8_t *data, bool remove)
{
    struct extension_request e;
    int rc;
    if (data) {
        begin_change(&e, IBX_EXT_GRAPH_ORDER_DATA, call, graph, ends, remove);
        ibx_put_bytes(&e.body, data, IBX_EXT_EDGE);
        if (ibx_frontend_request_known(&e, NULL, 0, &rc))
            return rc;
    }
    begin_change(&e, IBX_EXT_GRAPH_ORDER, call, graph, ends, remove);
    return ibx_frontend_request_make(&e, NULL, 0);
}

static int order(const char *call, void *graph, void *const *from, void *const *to,
                 const void *edges, size_t count, bool remove)
{
    int rc = CUDA_SUCCESS;
    if (!ibx_frontend_edges_are_valid(edges, count) || (count && (!from || !to)))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    for (size_t i = 0; i < count && !rc; i++) {
        const void *const ends[2] = {from[i], to[i]};
        rc = change(call, graph, ends, data_of(edges, i), remove);
    }
    return rc;
}

int cudaGraphAddDependencies_v2(void *graph, void *const *from, void *const *to, const void *edges,
                                size_t count)
{
    return order("cudaGraphAddDependencies", graph, from, to, edges, count, false);
}

int cudaGraphRemoveDependencies_v2(void *graph, void *const *from, void *const *to,
                                   const void *edges, size_t count)
{
    return order("cudaGraphRemoveDependencies", graph, from, to, edges, count, true);
}

static bool is_kernel(void *node)
{
    int type = IBX_FRONTEND_NODE_EMPTY;
    return !cudaGraphNodeGetType(node, &type) && type == IBX_FRONTEND_NODE_KERNEL;
}

/* Kernels have ports. Programmatic edges are between kernels, from a port that is not the default
 * one; the programmatic port has no others. CUDA decides about the rest. */
bool ibx_frontend_edges_fit(void *const *behind, const void *edges, size_t count, bool to_kernel)
{
    bool fit = true;
    for (size_t i = 0; i < count && fit; i++) {
        const uint8_t *edge = data_of(edges, i);
        if (edge)
            fit = edge[EDGE_FROM_PORT] &&
                  (edge[EDGE_TYPE] ? to_kernel : edge[EDGE_FROM_PORT] > 1) && is_kernel(behind[i]);
    }
    return fit;
}

size_t ibx_frontend_edges_plain(void *const *behind, const void *edges, size_t count,
                                void *plain_ones[IBX_EXT_BEHIND])
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        if (!data_of(edges, i))
            plain_ones[n++] = behind[i];
    return n;
}

int ibx_frontend_edges_add(void *graph, void *const *behind, const void *edges, size_t count,
                           const void *node)
{
    int rc = CUDA_SUCCESS;
    for (size_t i = 0; i < count && !rc; i++) {
        const void *const ends[2] = {behind[i], node};
        const uint8_t *data = data_of(edges, i);
        if (data)
            rc = change("cudaGraphAddNode", graph, ends, data, false);
    }
    return rc;
}
