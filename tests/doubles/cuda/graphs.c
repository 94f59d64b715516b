/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's runtime: graphs, and the capture of a stream at a time. Of nodes that may run
 * in any order those that were added last run first. */
#include "tests/doubles/cuda/graph.h"
#include "tests/doubles/cuda/runtime.h"

#include <pthread.h>
#include <string.h>

#define INVALID_VALUE  1
#define INVALIDATED    901
#define UPDATE_FAILURE 910

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    void *stream; /* NULL: none is captured */
    struct double_graph *graph;
    bool lost; /* somebody has waited for the device */
} capture;
static unsigned device_waits; /* under way */

static struct double_graph *make(void)
{
    struct double_graph *graph = calloc(1, sizeof(*graph));
    graph->magic = GRAPH_MAGIC;
    return graph;
}

struct double_graph *graph_copy(void *handle)
{
    struct double_graph *graph = malloc(sizeof(*graph));
    memcpy(graph, graph_of(handle), sizeof(*graph));
    for (unsigned i = 0; i < graph->count; i++) {
        graph->nodes[i].graph = graph;
        if (graph->nodes[i].type == NODE_GRAPH)
            graph->nodes[i].of.child = graph_copy(graph->nodes[i].of.child);
        for (unsigned b = 0; b < 2 && graph->nodes[i].type == NODE_CONDITIONAL; b++)
            if (graph->nodes[i].of.bodies[b])
                graph->nodes[i].of.bodies[b] = graph_copy(graph->nodes[i].of.bodies[b]);
    }
    graph_objects_hold(graph);
    return graph;
}

void graph_discard(void *handle)
{
    struct double_graph *graph = graph_of(handle);
    for (unsigned i = 0; i < graph->count; i++) {
        if (graph->nodes[i].type == NODE_GRAPH)
            graph_discard(graph->nodes[i].of.child);
        for (unsigned b = 0; b < 2 && graph->nodes[i].type == NODE_CONDITIONAL; b++)
            if (graph->nodes[i].of.bodies[b])
                graph_discard(graph->nodes[i].of.bodies[b]);
        graph->nodes[i].magic = 0;
    }
    graph->magic = 0;
    graph_objects_release(graph);
    free(graph);
}

/* ---------------------------------------------------------------------------------- it runs */

static int copy_bytes(void *to, const void *from, size_t n, void *stream)
{
    int (*run)(uint64_t to, uint64_t from, size_t n, void *stream) = NULL;
    *(void **)&run = driver_function("cuMemcpyAsync");
    return run((uintptr_t)to, (uintptr_t)from, n, stream);
}

static char *at(const struct ibx_cuda_pitched *memory, const struct ibx_cuda_extent *pos, size_t y,
                size_t z)
{
    return (char *)memory->at + ((pos->depth + z) * memory->y + pos->height + y) * memory->pitch +
           pos->width;
}

static int run_copy(const struct ibx_cuda_memcpy3d *p, void *stream)
{
    int rc = p->kind >= 1 && p->kind <= 3 && !p->from_array && !p->to_array ? 0 : INVALID_VALUE;
    for (size_t z = 0; z < p->extent.depth && !rc; z++)
        for (size_t y = 0; y < p->extent.height && !rc; y++)
            rc = copy_bytes(at(&p->to, &p->to_at, y, z), at(&p->from, &p->from_at, y, z),
                            p->extent.width, stream);
    return rc;
}

static int run_set(const struct ibx_cuda_memset *set, void *stream)
{
    int (*copy)(uint64_t to, const void *from, size_t n, void *stream) = NULL;
    *(void **)&copy = driver_function("cuMemcpyHtoDAsync_v2");
    const size_t row = set->width * set->element;
    char *bytes = set->width < 1u << 30 ? malloc(row + 4) : NULL;
    int rc = bytes ? 0 : INVALID_VALUE;
    for (size_t i = 0; i < row && bytes; i += set->element)
        memcpy(bytes + i, &set->value, set->element);
    for (size_t y = 0; y < set->height && !rc; y++)
        rc = copy((uintptr_t)set->at + y * set->pitch, bytes, row, stream);
    free(bytes);
    return rc;
}

static int run_kernel(const struct graph_node *node, void *stream)
{
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **) = NULL;
    size_t n = sizeof(node->of.values);
    uint64_t values[3];
    void *extra[] = {(void *)1, values, (void *)2, &n, NULL};
    *(void **)&launch = driver_function("cuLaunchKernel");
    memcpy(values, node->of.values, n);
    return launch(node->of.kernel, node->of.size[0], node->of.size[1], node->of.size[2],
                  node->of.size[3], node->of.size[4], node->of.size[5], 0, stream, NULL, extra);
}

static int run_graph(const struct double_graph *graph, void *stream);

/* By the value that the handle had at first: no kernel here sets one. */
static int run_conditional(const struct graph_node *node, void *stream)
{
    void *body = node->of.bodies[node->of.condition ? 0 : 1];
    return body ? run_graph(graph_of(body), stream) : 0;
}

static int run_node(const struct graph_node *node, void *stream)
{
    if (node->off)
        return 0;
    switch (node->type) {
    case NODE_KERNEL:
        return run_kernel(node, stream);
    case NODE_MEMCPY:
        return run_copy(&node->of.copy, stream);
    case NODE_MEMSET:
        return run_set(&node->of.set, stream);
    case NODE_HOST:
        return cudaLaunchHostFunc(stream, node->of.host.function, node->of.host.argument);
    case NODE_GRAPH:
        return run_graph(node->of.child, stream);
    case NODE_CONDITIONAL:
        return run_conditional(node, stream);
    case NODE_RECORD:
        return cudaEventRecord(node->of.event, stream);
    case NODE_WAIT:
        return cudaStreamWaitEvent(stream, node->of.event, 0);
    default:
        return 0;
    }
}

static bool is_ready(const struct graph_node *node, const bool *ran)
{
    bool ready = !ran[node->index];
    for (unsigned i = 0; i < node->count; i++)
        ready = ready && ran[node->behind[i]];
    return ready;
}

static int run_graph(const struct double_graph *graph, void *stream)
{
    bool ran[GRAPH_NODES] = {false};
    int rc = 0;
    for (unsigned done = 0; done < graph->count && !rc; done++) {
        unsigned i = graph->count;
        while (i && !is_ready(&graph->nodes[i - 1], ran))
            i--;
        if (!i)
            return INVALID_VALUE; /* a circle */
        rc = run_node(&graph->nodes[i - 1], stream);
        ran[i - 1] = true;
    }
    return rc;
}

EXPORT int cudaGraphLaunch(void *exec, void *stream)
{
    graph_of(exec)->launched = stream;
    return returns(run_graph(graph_of(exec), stream));
}

/* -------------------------------------------------------------------------------- captures */

static struct graph_node *captured(void *stream, int type)
{
    struct graph_node *node = NULL;
    pthread_mutex_lock(&mutex);
    if (stream && stream == capture.stream) {
        struct double_graph *graph = capture.graph;
        void *last = graph->count ? &graph->nodes[graph->count - 1] : NULL;
        node = graph_add(graph, type, &last, last ? 1 : 0);
    }
    pthread_mutex_unlock(&mutex);
    return node;
}

struct double_graph *graph_captured(void *stream)
{
    pthread_mutex_lock(&mutex);
    struct double_graph *graph = stream && stream == capture.stream ? capture.graph : NULL;
    pthread_mutex_unlock(&mutex);
    return graph;
}

bool captures_function(void *stream, void (*function)(void *argument), void *argument)
{
    struct graph_node *node = captured(stream, NODE_HOST);
    if (node) {
        node->of.host.function = function;
        node->of.host.argument = argument;
    }
    return node;
}

bool device_wait_begins(void)
{
    pthread_mutex_lock(&mutex);
    const bool fits = !capture.stream;
    capture.lost = !fits;
    device_waits++;
    pthread_mutex_unlock(&mutex);
    return fits;
}

void device_wait_ends(void)
{
    pthread_mutex_lock(&mutex);
    device_waits--;
    pthread_mutex_unlock(&mutex);
}

EXPORT int cudaStreamBeginCapture(void *stream, int mode)
{
    (void)mode;
    pthread_mutex_lock(&mutex);
    capture.graph = make();
    capture.stream = stream;
    capture.lost = device_waits;
    pthread_mutex_unlock(&mutex);
    return returns(0);
}

EXPORT int cudaStreamEndCapture(void *stream, void **graph)
{
    pthread_mutex_lock(&mutex);
    const bool lost = capture.lost;
    if (lost)
        graph_discard(capture.graph);
    *graph = stream == capture.stream && !lost ? capture.graph : NULL;
    capture.stream = NULL;
    capture.lost = false;
    pthread_mutex_unlock(&mutex);
    return returns(lost ? INVALIDATED : 0);
}

EXPORT int cudaStreamIsCapturing(void *stream, int *status)
{
    pthread_mutex_lock(&mutex);
    *status = stream && stream == capture.stream;
    pthread_mutex_unlock(&mutex);
    return returns(0);
}

EXPORT int cudaMemset2DAsync(void *address, size_t pitch, int value, size_t width, size_t height,
                             void *stream)
{
    const struct ibx_cuda_memset set = {.at = address,
                                        .pitch = pitch,
                                        .value = (unsigned)value & 255,
                                        .element = 1,
                                        .width = width,
                                        .height = height};
    if (height > 1 && pitch < width)
        return returns(INVALID_VALUE);
    struct graph_node *node = captured(stream, NODE_MEMSET);
    if (!node)
        return returns(run_set(&set, stream));
    node->of.set = set;
    return returns(0);
}

EXPORT int cudaMemsetAsync(void *address, int value, size_t n, void *stream)
{
    return cudaMemset2DAsync(address, n, value, n, 1, stream);
}

EXPORT int cudaMemcpy3DAsync(const struct ibx_cuda_memcpy3d *p, void *stream)
{
    struct graph_node *node = captured(stream, NODE_MEMCPY);
    if (!node)
        return returns(run_copy(p, stream));
    node->of.copy = *p;
    return returns(0);
}

/* ---------------------------------------------------------------------------------- graphs */

EXPORT int cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

EXPORT int cudaGraphCreate(void **graph, unsigned flags)
{
    if (flags)
        return returns(INVALID_VALUE);
    *graph = make();
    return returns(0);
}

/* The handle is a number, a mark, and the value with which it begins. */
EXPORT int cudaGraphConditionalHandleCreate(uint64_t *handle, void *graph, unsigned value,
                                            unsigned flags)
{
    static _Atomic uint64_t numbers;
    graph_of(graph);
    *handle = ++numbers << 32 | (0xc0000000u + value);
    return returns(flags == 1 ? 0 : INVALID_VALUE);
}

/* cudaGraphNodeParams of a conditional node */
struct conditional {
    int type, reserved[3];
    uint64_t handle;
    int kind;
    unsigned size;
    void **graphs;
};

/* An "if", with a body for each of the two or for the first. */
EXPORT int cudaGraphAddNode(void **made, void *graph, void *const *behind, const void *edges,
                            size_t count, struct conditional *p)
{
    if ((p->handle >> 30 & 3) != 3)
        abort(); /* as CUDA may */
    if (p->type != NODE_CONDITIONAL || edges || p->kind || p->size > 2)
        return returns(INVALID_VALUE);
    struct graph_node *node = graph_add(graph, NODE_CONDITIONAL, behind, count);
    for (unsigned i = 0; i < p->size; i++)
        node->of.bodies[i] = make();
    node->of.condition = (unsigned)p->handle & 0xffff;
    p->graphs = node->of.bodies;
    *made = node;
    return returns(0);
}

EXPORT int cudaGraphDestroy(void *graph)
{
    graph_discard(graph);
    return returns(0);
}

EXPORT int cudaGraphClone(void **clone, void *graph)
{
    *clone = graph_copy(graph);
    return returns(0);
}

EXPORT int cudaGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
    if (flags > 15)
        return returns(INVALID_VALUE);
    *exec = graph_copy(graph);
    return returns(0);
}

/* As the driver, waits for the last launch, and may keep others out meanwhile. */
EXPORT int cudaGraphExecDestroy(void *exec)
{
    void (*wait_alone)(void *stream) = NULL;
    *(void **)&wait_alone = driver_function("ibx_double_wait_alone");
    if (graph_of(exec)->launched)
        wait_alone(graph_of(exec)->launched);
    graph_discard(exec);
    return returns(0);
}

EXPORT int cudaGraphUpload(void *exec, void *stream)
{
    (void)stream;
    graph_of(exec);
    return returns(0);
}

struct update_result {
    int result;
    void *node, *other;
};

EXPORT int cudaGraphExecUpdate(void *handle, void *graph_handle, struct update_result *told)
{
    struct double_graph *exec = graph_of(handle), *graph = graph_of(graph_handle);
    *told = (struct update_result){.result = 0};
    bool same = exec->count == graph->count;
    for (unsigned i = 0; i < graph->count && same; i++)
        same = exec->nodes[i].type == graph->nodes[i].type;
    if (!same) {
        told->result = 2;
        return returns(UPDATE_FAILURE);
    }
    graph_objects_exchange(exec, graph);
    for (unsigned i = 0; i < graph->count; i++) {
        const bool child = graph->nodes[i].type == NODE_GRAPH;
        if (child)
            graph_discard(exec->nodes[i].of.child);
        exec->nodes[i].of = graph->nodes[i].of;
        if (child)
            exec->nodes[i].of.child = graph_copy(graph->nodes[i].of.child);
    }
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

EXPORT int cudaGraphGetNodes(void *graph, void **nodes, size_t *count)
{
    return list(graph, nodes, count, false);
}

EXPORT int cudaGraphGetRootNodes(void *graph, void **nodes, size_t *count)
{
    return list(graph, nodes, count, true);
}

EXPORT int cudaGraphAddDependencies(void *graph, void *const *from, void *const *to,
                                    const void *edges, size_t count)
{
    graph_of(graph);
    if (edges || count != 1 || node_of(*to)->count == GRAPH_BEHIND)
        return returns(INVALID_VALUE);
    struct graph_node *node = node_of(*to);
    node->behind[node->count++] = node_of(*from)->index;
    return returns(0);
}

EXPORT int cudaGraphRemoveDependencies(void *graph, void *const *from, void *const *to,
                                       const void *edges, size_t count)
{
    graph_of(graph);
    struct graph_node *node = node_of(*to);
    for (unsigned i = 0; !edges && count == 1 && i < node->count; i++) {
        if (node->behind[i] != node_of(*from)->index)
            continue;
        node->behind[i] = node->behind[--node->count];
        return returns(0);
    }
    return returns(INVALID_VALUE);
}

/* ----------------------------------------------------------------------------------- nodes */

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

EXPORT int cudaGraphAddChildGraphNode(void **node, void *graph, void *const *behind, size_t count,
                                      void *child)
{
    struct graph_node *made = graph_add(graph, NODE_GRAPH, behind, count);
    if (made)
        made->of.child = graph_copy(child);
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

struct allocation {
    int words[22];
    const void *access;
    size_t access_count, n;
    void *address;
};

EXPORT int cudaGraphAddMemAllocNode(void **node, void *graph, void *const *behind, size_t count,
                                    struct allocation *a)
{
    if (a->words[0] != 1 || a->words[2] != 1 || a->words[3] || a->access_count)
        return returns(INVALID_VALUE);
    int rc = pooled_malloc(&a->address, a->n);
    return rc ? rc : added(node, graph_add(graph, NODE_ALLOC, behind, count));
}

EXPORT int cudaGraphAddMemFreeNode(void **node, void *graph, void *const *behind, size_t count,
                                   void *address)
{
    (void)address;
    return added(node, graph_add(graph, NODE_FREE, behind, count));
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

static bool comes_behind(const struct graph_node *node, const struct graph_node *before)
{
    for (unsigned i = 0; i < node->count; i++) {
        if (node->behind[i] == before->index)
            return true;
    }
    return false;
}

static int neighbours(void *handle, void **nodes, size_t *count, bool behind)
{
    struct graph_node *of = node_of(handle);
    size_t found = 0;
    for (unsigned i = 0; i < of->graph->count; i++) {
        struct graph_node *other = &of->graph->nodes[i];
        if (!(behind ? comes_behind(other, of) : comes_behind(of, other)))
            continue;
        if (nodes && found < *count)
            nodes[found] = other;
        found++;
    }
    *count = found;
    return returns(0);
}

EXPORT int cudaGraphNodeGetDependencies(void *node, void **nodes, void *edges, size_t *count)
{
    return edges ? returns(INVALID_VALUE) : neighbours(node, nodes, count, false);
}

EXPORT int cudaGraphNodeGetDependentNodes(void *node, void **nodes, void *edges, size_t *count)
{
    return edges ? returns(INVALID_VALUE) : neighbours(node, nodes, count, true);
}

EXPORT int cudaGraphNodeSetEnabled(void *exec, void *node, unsigned on)
{
    graph_of(exec)->nodes[node_of(node)->index].off = !on;
    return returns(0);
}

EXPORT int cudaGraphNodeGetEnabled(void *exec, void *node, unsigned *on)
{
    *on = !graph_of(exec)->nodes[node_of(node)->index].off;
    return returns(0);
}

EXPORT int cudaGraphDestroyNode(void *node)
{
    struct graph_node *gone = node_of(node);
    gone->type = NODE_NONE;
    gone->count = 0;
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
    return cudaGraphMemsetNodeSetParams(&graph_of(exec)->nodes[node_of(node)->index], set);
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
