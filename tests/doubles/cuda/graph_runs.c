/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's runtime: runs graphs. Among nodes that may run in any order, those that were
 * added last run first. */
#include "tests/doubles/cuda/graph.h"
#include "tests/doubles/cuda/runtime.h"

#include <signal.h>
#include <string.h>

#define INVALID_VALUE 1
#define ON_DEVICE     3

static int copy_bytes(void *to, const void *from, size_t n, void *stream)
{
    int (*run)(uint64_t to, uint64_t from, size_t n, void *stream) = NULL;
    *(void **)&run = driver_function("cuMemcpyAsync");
    return run((uintptr_t)to, (uintptr_t)from, n, stream);
}

/* Of a copy within the device. */
static bool is_known(const void *address)
{
    int (*range_of)(uint64_t * base, size_t * size, uint64_t address) = NULL;
    *(void **)&range_of = driver_function("cuMemGetAddressRange_v2");
    return !range_of(NULL, NULL, (uintptr_t)address);
}

static char *at(const struct ibx_cuda_pitched *memory, const struct ibx_cuda_extent *pos, size_t y,
                size_t z)
{
    return (char *)memory->at + ((pos->depth + z) * memory->y + pos->height + y) * memory->pitch +
           pos->width;
}

static int copy_row(const struct ibx_cuda_memcpy3d *p, char *to, const char *from, void *stream)
{
    return p->kind == ON_DEVICE && !(is_known(to) && is_known(from))
               ? INVALID_VALUE
               : copy_bytes(to, from, p->extent.width, stream);
}

static int run_rows(const struct ibx_cuda_memcpy3d *copy, bool in_turn, void *stream)
{
    struct ibx_cuda_memcpy3d p;
    void (*turn)(bool begins) = NULL;
    int rc = copy->kind >= 1 && copy->kind <= 3 && copies_memory(copy, &p) ? 0 : INVALID_VALUE;
    *(void **)&turn = driver_function("ibx_double_copy_in_turn");
    turn(in_turn || copy->extent.height > 1 || copy->extent.depth > 1);
    for (size_t z = 0; !rc && p.extent.width && p.extent.height && z < p.extent.depth; z++)
        for (size_t y = 0; y < p.extent.height && !rc; y++)
            rc = copy_row(&p, at(&p.to, &p.to_at, y, z), at(&p.from, &p.from_at, y, z), stream);
    turn(false);
    return rc;
}

int graph_run_copy(const struct ibx_cuda_memcpy3d *copy, void *stream)
{
    return run_rows(copy, false, stream);
}

int graph_run_set(const struct ibx_cuda_memset *set, void *stream)
{
    int (*fill)(uint64_t to, const void *from, size_t n, void *stream) = NULL;
    *(void **)&fill = driver_function("ibx_double_fill");
    const size_t row = set->width * set->element;
    char *bytes = set->width < 1u << 30 ? malloc(row + 4) : NULL;
    int rc = bytes ? 0 : INVALID_VALUE;
    if (bytes && set->element == 1)
        memset(bytes, (int)set->value, row);
    else
        for (size_t i = 0; i < row && bytes; i += set->element)
            memcpy(bytes + i, &set->value, set->element);
    for (size_t y = 0; row && y < set->height && !rc; y++) /* empty rows may be very many */
        rc = fill((uintptr_t)set->at + y * set->pitch, bytes, row, stream);
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
    int (*run_wide)(void *wide, void *stream) = NULL;
    *(void **)&run_wide = driver_function("ibx_double_run_wide");
    if (node->of.wide)
        return run_wide(node->of.wide, stream);
    *(void **)&launch = driver_function("cuLaunchKernel");
    memcpy(values, node->of.values, n);
    return launch(node->of.kernel, node->of.size[0], node->of.size[1], node->of.size[2],
                  node->of.size[3], node->of.size[4], node->of.size[5], 0, stream, NULL, extra);
}

static bool has_event(const struct graph_node *node)
{
    bool (*is_event)(const void *handle) = NULL;
    *(void **)&is_event = driver_function("ibx_double_is_event");
    return is_event(node->of.event);
}

static bool is_loaded(const struct graph_node *node)
{
    bool (*is)(const void *kernel) = NULL;
    *(void **)&is = driver_function("ibx_double_is_loaded");
    return is(node->of.kernel);
}

bool graph_has_all(const struct double_graph *graph)
{
    struct ibx_cuda_memcpy3d memory;
    bool all = true;
    for (unsigned i = 0; i < graph->count && all; i++) {
        const struct graph_node *node = &graph->nodes[i];
        if (node->type == NODE_GRAPH)
            all = graph_has_all(node->of.child);
        for (unsigned b = 0; b < 2 && node->type == NODE_CONDITIONAL && all; b++)
            all = !node->of.bodies[b] || graph_has_all(node->of.bodies[b]);
        if (node->type == NODE_KERNEL)
            all = is_loaded(node);
        if (node->type == NODE_MEMCPY)
            copies_memory(&node->of.copy, &memory); /* ends the process if an array is gone */
        else if (node->type == NODE_RECORD || node->type == NODE_WAIT)
            all = has_event(node);
    }
    return all;
}

/* As CUDA does, waits here for what is before a copy between host memory. */
static int run_copy(const struct ibx_cuda_memcpy3d *copy, void *stream)
{
    void (*wait)(const void *to, const void *from, void *stream) = NULL;
    *(void **)&wait = driver_function("ibx_double_copy_on_host");
    if (copy->to.at && copy->from.at)
        wait(copy->to.at, copy->from.at, stream);
    return run_rows(copy, true, stream);
}

static int run_graph(const struct double_graph *graph, void *stream);

/* By the first value of the condition: no kernel of the double sets one. */
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
        if (!is_loaded(node))
            raise(SIGSEGV); /* as driver 580 does */
        return run_kernel(node, stream);
    case NODE_MEMCPY:
        return run_copy(&node->of.copy, stream);
    case NODE_MEMSET:
        return graph_run_set(&node->of.set, stream);
    case NODE_HOST:
        return cudaLaunchHostFunc(stream, node->of.host.function, node->of.host.argument);
    case NODE_GRAPH:
        return run_graph(node->of.child, stream);
    case NODE_CONDITIONAL:
        return run_conditional(node, stream);
    case NODE_RECORD:
        return has_event(node) ? cudaEventRecord(node->of.event, stream) : 0;
    case NODE_WAIT:
        if (!has_event(node))
            raise(SIGSEGV); /* as driver 580 does */
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
