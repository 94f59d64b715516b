/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Conditional nodes of graphs, and cudaGraphAddNode, which adds nodes of all kinds. */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/preload.h"

#include <stdlib.h>

int cudaGraphConditionalHandleCreate(unsigned long long *handle, void *graph, unsigned value,
                                     unsigned flags)
{
    struct extension_request e;
    uint64_t made = 0;
    ibx_frontend_request_begin(&e, IBX_EXT_GRAPH_CONDITION, "cudaGraphConditionalHandleCreate");
    ibx_put_u64(&e.body, (uintptr_t)graph);
    ibx_put_u32(&e.body, value);
    ibx_put_u32(&e.body, flags);
    const int rc =
        handle ? ibx_frontend_request_ask(&e, &made) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc)
        *handle = made;
    return rc;
}

/* There are no execution contexts here but those of the devices. */
int cudaGraphConditionalHandleCreate_v2(unsigned long long *handle, void *graph, void *context,
                                        unsigned value, unsigned flags)
{
    return context ? ibx_frontend_fail(CUDA_INVALID_VALUE)
                   : cudaGraphConditionalHandleCreate(handle, graph, value, flags);
}

/* The application may read the array of a node's body graphs as long as the node exists. Its end is
 * not seen here, so the arrays are never freed. */
struct bodies {
    struct bodies *older;
    void *graphs[IBX_EXT_LISTED];
};

static struct bodies *keep_bodies(struct ibx_reader *r)
{
    static struct bodies *all;
    struct bodies *made = calloc(1, sizeof(*made));
    for (size_t i = 0; made && i < IBX_EXT_LISTED; i++)
        made->graphs[i] = (void *)(uintptr_t)ibx_get_u64(r);
    if (made) {
        ibx_frontend_ranges_lock();
        made->older = all;
        all = made;
        ibx_frontend_ranges_unlock();
    }
    return made;
}

static void begin_node(struct extension_request *e, enum ibx_extension number, const void *graph,
                       void *const *behind, size_t count)
{
    ibx_frontend_request_begin(e, number, "cudaGraphAddNode");
    ibx_put_u64(&e->body, (uintptr_t)graph);
    ibx_put_u16(&e->body, (uint16_t)count);
    for (size_t i = 0; i < count; i++)
        ibx_put_u64(&e->body, (uintptr_t)behind[i]);
}

static int add_conditional(void **node, const void *graph, void *const *behind, size_t count,
                           struct conditional_node *c)
{
    struct extension_request e;
    uint8_t bytes[IBX_EXT_OUT_MAX] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    if (!c->size || c->size > IBX_EXT_LISTED)
        return ibx_frontend_fail(c->size ? CUDA_NOT_SUPPORTED : CUDA_INVALID_VALUE);
    begin_node(&e, IBX_EXT_NODE_CONDITIONAL, graph, behind, count);
    ibx_put_u64(&e.body, c->handle);
    ibx_put_u32(&e.body, (uint32_t)c->type);
    ibx_put_u32(&e.body, c->size);
    const int rc = ibx_frontend_request_make(&e, bytes, sizeof(bytes));
    if (rc)
        return rc;
    *node = (void *)(uintptr_t)ibx_get_u64(&r);
    struct bodies *made = keep_bodies(&r);
    for (size_t i = 0; made && i < c->size; i++)
        ibx_frontend_objects_within(made->graphs[i], graph);
    c->graphs = made ? made->graphs : NULL;
    return made ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
}

int ibx_frontend_graph_move(void **node, void *graph, void *const *behind, size_t count,
                            void *child)
{
    struct extension_request e;
    uint64_t made = 0;
    begin_node(&e, IBX_EXT_NODE_MOVED, graph, behind, count);
    ibx_put_u64(&e.body, (uintptr_t)child);
    const int rc = ibx_frontend_request_ask(&e, &made);
    if (rc)
        return rc;
    *node = (void *)(uintptr_t)made;
    ibx_frontend_objects_move(child, graph);
    ibx_frontend_objects_within(child, graph);
    return CUDA_SUCCESS;
}

/* A graph in another one: its clone, or, from CUDA 12.9 on, it itself. */
static int add_child(void **node, void *graph, void *const *behind, size_t count, void *child,
                     int ownership)
{
    if (!ownership)
        return cudaGraphAddChildGraphNode(node, graph, behind, count, child);
    if (ownership != 1)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    return ibx_frontend_graph_move(node, graph, behind, count, child);
}

static int add_plain(void **node, void *graph, void *const *behind, size_t count,
                     struct node_parameters *p)
{
    switch (p->type) {
    case IBX_FRONTEND_NODE_KERNEL:
        return cudaGraphAddKernelNode(node, graph, behind, count, &p->of.kernel);
    case IBX_FRONTEND_NODE_MEMCPY:
        return cudaGraphAddMemcpyNode(node, graph, behind, count, &p->of.copy.parameters);
    case IBX_FRONTEND_NODE_MEMSET:
        return cudaGraphAddMemsetNode(node, graph, behind, count, &p->of.set);
    case IBX_FRONTEND_NODE_HOST:
        return cudaGraphAddHostNode(node, graph, behind, count, &p->of.host);
    case IBX_FRONTEND_NODE_GRAPH:
        return add_child(node, graph, behind, count, p->of.child.graph, p->of.child.ownership);
    case IBX_FRONTEND_NODE_EMPTY:
        return cudaGraphAddEmptyNode(node, graph, behind, count);
    case IBX_FRONTEND_NODE_WAIT:
        return cudaGraphAddEventWaitNode(node, graph, behind, count, p->of.handle);
    case IBX_FRONTEND_NODE_RECORD:
        return cudaGraphAddEventRecordNode(node, graph, behind, count, p->of.handle);
    case IBX_FRONTEND_NODE_ALLOCATION:
        return cudaGraphAddMemAllocNode(node, graph, behind, count, &p->of.allocation);
    case IBX_FRONTEND_NODE_FREE:
        return cudaGraphAddMemFreeNode(node, graph, behind, count, p->of.handle);
    case IBX_FRONTEND_NODE_CONDITIONAL:
        return add_conditional(node, graph, behind, count, &p->of.conditional);
    default:
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    }
}

/* A node that cannot get its edges with data is destroyed again. CUDA destroys none of a graph that
 * allocates memory or is captured into: so what CUDA is known to refuse is refused before. */
int cudaGraphAddNode_v2(void **node, void *graph, void *const *behind, const void *edges,
                        size_t count, struct node_parameters *p)
{
    void *plain[IBX_EXT_BEHIND], *made = NULL;
    if (!node || !p || (count && !behind) || !ibx_frontend_edges_are_valid(edges, count))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (count > IBX_EXT_BEHIND)
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    const size_t n = ibx_frontend_edges_plain(behind, edges, count, plain);
    if (n == count)
        return add_plain(node, graph, behind, count, p);
    if (!ibx_frontend_edges_fit(behind, edges, count, p->type == IBX_FRONTEND_NODE_KERNEL))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    int rc = add_plain(&made, graph, plain, n, p);
    if (rc)
        return rc;
    rc = ibx_frontend_edges_add(graph, behind, edges, count, made);
    if (!rc)
        *node = made;
    else if (cudaGraphDestroyNode(made))
        ibx_frontend_fail(rc);
    return rc;
}
