/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's runtime: nodes of graphs; those that copy are in graph_copies.c. */
#include "tests/doubles/cuda/graph.h"
#include "tests/doubles/cuda/runtime.h"

#include <string.h>

#define INVALID_VALUE 1
#define LOSSY_QUERY   402
#define NOT_SUPPORTED 801

static int added(void **node, struct graph_node *made)
{
    *node = made;
    return returns(made ? 0 : 2);
}

EXPORT int cudaGraphAddMemsetNode(void **node, void *graph, void *const *behind, size_t count,
                                  const struct ibx_cuda_memset *set)
{
    if (set->element != 1 && set->element != 2 && set->element != 4)
        return returns(INVALID_VALUE);
    struct graph_node *made = graph_add(graph, NODE_MEMSET, behind, count);
    if (made)
        made->of.set = *set;
    return added(node, made);
}

EXPORT int cudaGraphAddHostNode(void **node, void *graph, void *const *behind, size_t count,
                                const void *host)
{
    struct graph_node *made = graph_add(graph, NODE_HOST, behind, count);
    if (made)
        memcpy(&made->of.host, host, sizeof(made->of.host));
    return added(node, made);
}

EXPORT int cudaGraphAddEmptyNode(void **node, void *graph, void *const *behind, size_t count)
{
    return added(node, graph_add(graph, NODE_EMPTY, behind, count));
}

/* CUDA clones no graph into another one that allocates memory or frees it (H200, driver 580). */
static bool has_memory_nodes(const struct double_graph *graph)
{
    bool has = false;
    for (unsigned i = 0; i < graph->count; i++)
        has = has || graph->nodes[i].type == NODE_ALLOC || graph->nodes[i].type == NODE_FREE;
    return has;
}

EXPORT int cudaGraphAddChildGraphNode(void **node, void *graph, void *const *behind, size_t count,
                                      void *child)
{
    if (graph == child)
        abort(); /* as CUDA ends the process */
    if (has_memory_nodes(graph_of(child)))
        return returns(NOT_SUPPORTED);
    struct double_graph *copy = graph_copy(child);
    struct graph_node *made = graph_add(graph, NODE_GRAPH, behind, count);
    if (made)
        made->of.child = copy;
    else
        graph_discard(copy);
    return added(node, made);
}

EXPORT int cudaGraphAddEventRecordNode(void **node, void *graph, void *const *behind, size_t count,
                                       void *event)
{
    struct graph_node *made = graph_add(graph, NODE_RECORD, behind, count);
    if (made)
        made->of.event = event;
    return added(node, made);
}

EXPORT int cudaGraphAddEventWaitNode(void **node, void *graph, void *const *behind, size_t count,
                                     void *event)
{
    struct graph_node *made = graph_add(graph, NODE_WAIT, behind, count);
    if (made)
        made->of.event = event;
    return added(node, made);
}

struct access {
    int kind, device, flags;
};

struct allocation {
    int words[22];
    const struct access *access;
    size_t access_count, n;
    void *address;
};

/* CUDA gives a device all access, or none. */
static bool are_accesses(const struct allocation *a)
{
    bool good = true;
    for (size_t i = 0; i < a->access_count && good; i++)
        good = a->access[i].kind == 1 && a->access[i].device >= 0 && a->access[i].device < 2 &&
               (a->access[i].flags == 0 || a->access[i].flags == 3);
    return good;
}

/* The place that a node before this one has freed, as CUDA gives it out again. NULL: there is none
 * with so many bytes. */
static void *freed_before(void *graph, void *const *behind, size_t count, size_t n)
{
    const struct double_graph *g = graph_of(graph);
    for (size_t i = 0; i < count; i++)
        for (unsigned k = 0; k < g->count && node_of(behind[i])->type == NODE_FREE; k++)
            if (g->nodes[k].type == NODE_ALLOC && g->nodes[k].of.memory_bytes >= n &&
                g->nodes[k].of.memory == node_of(behind[i])->of.memory)
                return g->nodes[k].of.memory;
    return NULL;
}

EXPORT int cudaGraphAddMemAllocNode(void **node, void *graph, void *const *behind, size_t count,
                                    struct allocation *a)
{
    if (a->words[0] != 1 || a->words[2] != 1 || a->words[3] || !are_accesses(a))
        return returns(INVALID_VALUE);
    void *again = freed_before(graph, behind, count, a->n);
    int rc = again ? 0 : graph_malloc(&a->address, a->n);
    a->address = again ? again : a->address;
    struct graph_node *made = rc ? NULL : graph_add(graph, NODE_ALLOC, behind, count);
    if (made) {
        made->of.memory = a->address;
        made->of.memory_bytes = a->n;
    }
    return rc ? rc : added(node, made);
}

EXPORT int cudaGraphAddMemFreeNode(void **node, void *graph, void *const *behind, size_t count,
                                   void *address)
{
    struct graph_node *made = graph_add(graph, NODE_FREE, behind, count);
    if (made)
        made->of.memory = address;
    return added(node, made);
}

EXPORT int cudaGraphNodeGetType(void *node, int *type)
{
    *type = node_of(node)->type;
    return returns(0);
}

EXPORT int cudaGraphHostNodeGetParams(void *node, void *host)
{
    memcpy(host, &node_of(node)->of.host, sizeof(node_of(node)->of.host));
    return returns(0);
}

EXPORT int cudaGraphChildGraphNodeGetGraph(void *node, void **graph)
{
    *graph = node_of(node)->of.child;
    return returns(0);
}

/* The place of the edge between two nodes; node->count: there is none. */
static unsigned edge_of(const struct graph_node *node, const struct graph_node *before)
{
    unsigned i = 0;
    while (i < node->count && node->behind[i] != before->index)
        i++;
    return i;
}

static const uint8_t plain[IBX_EXT_EDGE];

/* As an H200: to list edges that have data takes an array for it, to count them does not. */
static int neighbours(void *handle, void **nodes, uint8_t *edges, size_t *count, bool behind)
{
    struct graph_node *of = node_of(handle);
    size_t found = 0;
    for (unsigned i = 0; i < of->graph->count; i++) {
        struct graph_node *other = &of->graph->nodes[i], *later = behind ? other : of;
        const unsigned at = edge_of(later, behind ? of : other);
        if (at == later->count)
            continue;
        if (nodes && !edges && memcmp(later->edges[at], plain, sizeof(plain)) != 0)
            return returns(LOSSY_QUERY);
        if (nodes && found < *count)
            nodes[found] = other;
        if (nodes && edges && found < *count)
            memcpy(edges + found * IBX_EXT_EDGE, later->edges[at], IBX_EXT_EDGE);
        found++;
    }
    *count = found;
    return returns(0);
}

EXPORT int cudaGraphNodeGetDependencies(void *node, void **nodes, void *edges, size_t *count)
{
    return neighbours(node, nodes, edges, count, false);
}

EXPORT int cudaGraphNodeGetDependentNodes(void *node, void **nodes, void *edges, size_t *count)
{
    return neighbours(node, nodes, edges, count, true);
}

EXPORT int cudaGraphNodeSetEnabled(void *exec, void *node, unsigned on)
{
    node_in(exec, node)->off = !on;
    return returns(0);
}

EXPORT int cudaGraphNodeGetEnabled(void *exec, void *node, unsigned *on)
{
    *on = !node_in(exec, node)->off;
    return returns(0);
}

/* CUDA destroys no node of a graph that allocates memory; this destroys the last allocation. */
EXPORT int cudaGraphDestroyNode(void *node)
{
    struct graph_node *gone = node_of(node);
    for (unsigned i = 0; i < gone->graph->count; i++)
        if (i != gone->index && gone->graph->nodes[i].type == NODE_ALLOC)
            return returns(801); /* cudaErrorNotSupported */
    if (gone->type == NODE_GRAPH)
        graph_discard(gone->of.child);
    gone->type = NODE_NONE;
    gone->count = 0;
    return returns(0);
}

EXPORT int cudaGraphMemsetNodeGetParams(void *node, struct ibx_cuda_memset *set)
{
    if (node_of(node)->type != NODE_MEMSET)
        return returns(INVALID_VALUE);
    *set = node_of(node)->of.set;
    return returns(0);
}

EXPORT int cudaGraphMemsetNodeSetParams(void *node, const struct ibx_cuda_memset *set)
{
    node_of(node)->of.set = *set;
    return returns(node_of(node)->type == NODE_MEMSET ? 0 : INVALID_VALUE);
}

EXPORT int cudaGraphExecMemsetNodeSetParams(void *exec, void *node,
                                            const struct ibx_cuda_memset *set)
{
    return cudaGraphMemsetNodeSetParams(node_in(exec, node), set);
}

EXPORT int cudaDeviceGetGraphMemAttribute(int device, int attribute, void *value)
{
    const uint64_t found = (uint64_t)attribute << 40 | 7;
    memcpy(value, &found, sizeof(found));
    return returns(device ? 101 : 0);
}

EXPORT int cudaDeviceGraphMemTrim(int device)
{
    return returns(device ? 101 : 0);
}

/* Whether there may be such an edge: from port 1 or 2 of a kernel to a kernel. */
static bool may_have(const struct graph_node *from, const struct graph_node *to,
                     const uint8_t edge[IBX_EXT_EDGE])
{
    return !memcmp(edge, plain, sizeof(plain)) ||
           (from->type == NODE_KERNEL && to->type == NODE_KERNEL &&
            (edge[0] == 1 || edge[0] == 2) && !edge[1] && edge[2] == 1);
}

EXPORT int cudaGraphAddDependencies(void *graph, void *const *from, void *const *to,
                                    const void *edges, size_t count)
{
    graph_of(graph);
    struct graph_node *node = node_of(*to);
    const uint8_t *edge = edges ? edges : plain;
    if (count != 1 || node->count == GRAPH_BEHIND || !may_have(node_of(*from), node, edge))
        return returns(INVALID_VALUE);
    memcpy(node->edges[node->count], edge, IBX_EXT_EDGE);
    node->behind[node->count++] = node_of(*from)->index;
    return returns(0);
}

/* Without data any edge. */
EXPORT int cudaGraphRemoveDependencies(void *graph, void *const *from, void *const *to,
                                       const void *edges, size_t count)
{
    graph_of(graph);
    struct graph_node *node = node_of(*to);
    const unsigned i = edge_of(node, node_of(*from));
    if (count != 1 || i == node->count ||
        (edges && memcmp(edges, node->edges[i], IBX_EXT_EDGE) != 0))
        return returns(INVALID_VALUE);
    node->behind[i] = node->behind[--node->count];
    memcpy(node->edges[i], node->edges[node->count], IBX_EXT_EDGE);
    return returns(0);
}

static int list(void *handle, void **nodes, size_t *count, bool root)
{
    struct double_graph *graph = graph_of(handle);
    size_t found = 0;
    for (unsigned i = 0; i < graph->count; i++) {
        if (graph->nodes[i].type == NODE_NONE || (root && graph->nodes[i].count))
            continue;
        if (nodes && found < *count)
            nodes[found] = &graph->nodes[i];
        found++;
    }
    *count = found;
    return returns(0);
}

/* Accepts small numbers as cudaGraphDestroy() does. */
EXPORT int cudaGraphGetNodes(void *graph, void **nodes, size_t *count)
{
    *count = (uintptr_t)graph < 4096 ? 0 : *count;
    return (uintptr_t)graph < 4096 ? returns(0) : list(graph, nodes, count, false);
}

EXPORT int cudaGraphGetRootNodes(void *graph, void **nodes, size_t *count)
{
    return list(graph, nodes, count, true);
}

static _Atomic bool edges_have_data;

EXPORT void ibx_double_edges_have_data(bool they)
{
    edges_have_data = they;
}

/* Tells only how many there are, and not even that if they have data. */
EXPORT int cudaGraphGetEdges(void *handle, void **from, void **to, void *edges, size_t *count)
{
    *count = 0;
    if (edges_have_data)
        return returns(LOSSY_QUERY);
    if (from || to || edges)
        return returns(INVALID_VALUE);
    for (unsigned i = 0; (uintptr_t)handle >= 4096 && i < graph_of(handle)->count; i++)
        *count +=
            graph_of(handle)->nodes[i].type == NODE_NONE ? 0 : graph_of(handle)->nodes[i].count;
    return returns(0);
}
