/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's runtime: copies in graphs, calls that change nodes of graphs within graphs,
 * and objects that live as long as a graph has them. */
#include "tests/doubles/cuda/graph.h"
#include "tests/doubles/cuda/runtime.h"

#include <string.h>

#define INVALID_VALUE 1

/* ---------------------------------------------------------------------------------- copies */

EXPORT int cudaGraphAddMemcpyNode(void **node, void *graph, void *const *behind, size_t count,
                                  const struct ibx_cuda_memcpy3d *copy)
{
    struct graph_node *made = graph_add(graph, NODE_MEMCPY, behind, count);
    if (made)
        made->of.copy = *copy;
    *node = made;
    return returns(made ? 0 : 2);
}

/* Rows do not overlap. */
static bool has_rows(const struct ibx_cuda_memcpy3d *copy)
{
    const size_t width = copy->extent.width;
    return copy->extent.height < 2 || ((copy->from_array || copy->from.pitch >= width) &&
                                       (copy->to_array || copy->to.pitch >= width));
}

EXPORT int cudaGraphMemcpyNodeSetParams(void *node, const struct ibx_cuda_memcpy3d *copy)
{
    if (node_of(node)->type != NODE_MEMCPY || !has_rows(copy))
        return returns(INVALID_VALUE);
    node_of(node)->of.copy = *copy;
    return returns(0);
}

EXPORT int cudaGraphExecMemcpyNodeSetParams(void *exec, void *node,
                                            const struct ibx_cuda_memcpy3d *copy)
{
    return cudaGraphMemcpyNodeSetParams(node_in(exec, node), copy);
}

EXPORT int cudaGraphMemcpyNodeGetParams(void *node, struct ibx_cuda_memcpy3d *copy)
{
    *copy = node_of(node)->of.copy;
    return returns(node_of(node)->type == NODE_MEMCPY ? 0 : INVALID_VALUE);
}

/* ----------------------------------------------------------------------- graphs in graphs */

EXPORT int cudaGraphHostNodeSetParams(void *node, const void *host)
{
    memcpy(&node_of(node)->of.host, host, sizeof(node_of(node)->of.host));
    return returns(node_of(node)->type == NODE_HOST ? 0 : INVALID_VALUE);
}

/* Waits for the launch, so that what changes now is as if the launch had read it already. */
static void wait_for_launch(const struct double_graph *exec)
{
    int (*wait)(void *stream) = NULL;
    *(void **)&wait = driver_function("cuStreamSynchronize");
    if (exec->launched)
        wait(exec->launched);
}

EXPORT int cudaGraphExecChildGraphNodeSetParams(void *handle, void *node, void *child)
{
    struct double_graph *exec = graph_of(handle);
    struct graph_node *mine = &exec->nodes[node_of(node)->index];
    if (mine->type != NODE_GRAPH)
        return returns(INVALID_VALUE);
    const struct double_graph *old = graph_of(mine->of.child), *new = graph_of(child);
    for (unsigned i = 0; i < old->count; i++) {
        if (old->count != new->count || old->nodes[i].type != new->nodes[i].type)
            return returns(910);
    }
    wait_for_launch(exec);
    graph_discard(mine->of.child);
    mine->of.child = graph_copy(child);
    return returns(0);
}

/* --------------------------------------------------------------------------------- objects */

static void let_go(struct user_object *object)
{
    if (atomic_fetch_sub(&object->references, 1) != 1)
        return;
    object->destroy(object->what);
    free(object);
}

void graph_objects_hold(const struct double_graph *graph)
{
    for (unsigned i = 0; i < graph->objects; i++)
        atomic_fetch_add(&graph->object[i]->references, 1);
}

void graph_objects_release(struct double_graph *graph)
{
    while (graph->objects)
        let_go(graph->object[--graph->objects]);
}

void graph_objects_exchange(struct double_graph *exec, const struct double_graph *graph)
{
    wait_for_launch(exec);
    graph_objects_hold(graph);
    graph_objects_release(exec);
    exec->objects = graph->objects;
    memcpy(exec->object, graph->object, sizeof(exec->object));
}

EXPORT int cudaUserObjectCreate(void **made, void *what, void (*destroy)(void *what),
                                unsigned references, unsigned flags)
{
    bool (*fails)(const char *function, int *code) = NULL;
    int code = 0;
    *(void **)&fails = driver_function("ibx_double_fails");
    if (fails("cudaUserObjectCreate", &code))
        return returns(code);
    struct user_object *object = malloc(sizeof(*object));
    if (!object || flags != 1)
        abort();
    *object = (struct user_object){references, destroy, what};
    *made = object;
    return returns(0);
}

EXPORT int cudaUserObjectRelease(void *object, unsigned count)
{
    while (count--)
        let_go(object);
    return returns(0);
}

EXPORT int cudaGraphReleaseUserObject(void *handle, void *object, unsigned count)
{
    struct double_graph *graph = graph_of(handle);
    for (unsigned i = 0; i < graph->objects && count == 1; i++) {
        if (graph->object[i] != object)
            continue;
        graph->object[i] = graph->object[--graph->objects];
        let_go(object);
        return returns(0);
    }
    return returns(INVALID_VALUE);
}

/* With the flag 1 the caller's reference becomes the graph's. */
EXPORT int cudaGraphRetainUserObject(void *handle, void *object, unsigned count, unsigned flags)
{
    struct double_graph *graph = graph_of(handle);
    if (count != 1 || flags != 1 || graph->objects == GRAPH_OBJECTS)
        return returns(INVALID_VALUE);
    graph->object[graph->objects++] = object;
    return returns(0);
}

EXPORT int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t n,
                               void *stream)
{
    const struct ibx_cuda_memcpy3d copy = {.from = {(void *)(uintptr_t)from, n, n, 1},
                                           .to = {to, n, n, 1},
                                           .extent = {n, 1, 1},
                                           .kind = 3};
    void (*between)(bool begins) = NULL;
    *(void **)&between = driver_function("ibx_double_between_devices");
    (void)to_device, (void)from_device;
    int rc = captures_nothing(stream);
    if (rc)
        return returns(rc);
    between(true);
    rc = graph_run_copy(&copy, stream);
    between(false);
    return returns(rc);
}

/* -------------------------------------------------------------------------------- captures */

static void (*as_told)(void);

/* Calls that once, when the next call below is about to return. */
EXPORT void ibx_double_as_capture_is_told(void (*call)(void))
{
    as_told = call;
}

/* The data of the edge from a node to what comes behind it; only what the program has said. */
static struct {
    const void *node;
    uint8_t data[IBX_EXT_EDGE];
} edges_behind[GRAPH_BEHIND];

static uint8_t *edge_behind(const void *node)
{
    unsigned i = 0;
    while (i < GRAPH_BEHIND - 1 && edges_behind[i].node && edges_behind[i].node != node)
        i++;
    edges_behind[i].node = node;
    return edges_behind[i].data;
}

EXPORT int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph,
                                    void *const **behind, const void **edges, size_t *count)
{
    static uint8_t data[GRAPH_BEHIND * IBX_EXT_EDGE];
    uint64_t (*number)(void) = NULL;
    void *nodes[GRAPH_BEHIND];
    struct double_graph *captured = graph_captured(stream);
    *(void **)&number = driver_function("ibx_double_runtime_id");
    *status = captured ? 1 + capture_is_lost(stream) : 0;
    if (*status != 1)
        return returns(0);
    *graph = captured;
    *count = capture_behind(stream, nodes);
    *behind = capture_tell(nodes, *count);
    if (id)
        *id = number();
    for (size_t i = 0; i < *count; i++)
        memcpy(data + i * IBX_EXT_EDGE, edge_behind(nodes[i]), IBX_EXT_EDGE);
    if (edges)
        *edges = data;
    void (*const call)(void) = as_told;
    as_told = NULL;
    if (call)
        call();
    return returns(0);
}

EXPORT int cudaStreamUpdateCaptureDependencies(void *stream, void *const *nodes, const void *edges,
                                               size_t count, unsigned flags)
{
    void (*set)(const void *stream, void *const *nodes, size_t count, bool adds) = NULL;
    static const char none[IBX_EXT_EDGE];
    const struct double_graph *captured = graph_captured(stream);
    for (size_t i = 0; i < count; i++)
        if (!captured || node_of(nodes[i])->graph != captured)
            return returns(INVALID_VALUE);
    *(void **)&set = driver_function("ibx_double_captured_set");
    for (size_t i = 0; i < count && captured && flags < 2; i++)
        memcpy(edge_behind(nodes[i]), edges ? (const char *)edges + i * IBX_EXT_EDGE : none,
               IBX_EXT_EDGE);
    if (captured && flags < 2)
        set(stream, nodes, count, !flags);
    return returns(captured && flags < 2 ? 0 : INVALID_VALUE);
}
