/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's runtime: calls that return and set parameters of nodes. */
#include "tests/doubles/cuda/graph.h"
#include "tests/doubles/cuda/runtime.h"

#include <string.h>

#define INVALID_VALUE 1

/* ---------------------------------------------------------------------------------- kernels */

/* cudaKernelNodeParams */
struct kernel {
    const void *function;
    unsigned size[6], shared;
    void **arguments, **extra;
};

/* The function is the one by which the kernel was looked up last. */
EXPORT int cudaGraphKernelNodeGetParams(void *node, struct kernel *k)
{
    int (*get)(void *of, struct kernel_parameters *p) = NULL;
    struct kernel_parameters p = {.kernel = NULL};
    *(void **)&get = driver_function("cuGraphKernelNodeGetParams_v2");
    if (node_of(node)->type != NODE_KERNEL || get(node, &p))
        return returns(INVALID_VALUE);
    *k = (struct kernel){.function = function_of_kernel(p.kernel),
                         .shared = p.shared,
                         .arguments = p.arguments,
                         .extra = p.extra};
    memcpy(k->size, p.size, sizeof(k->size));
    return returns(0);
}

EXPORT int cudaGraphKernelNodeGetAttribute(void *node, int attribute, void *value)
{
    const struct graph_node *n = node_of(node);
    if (n->type != NODE_KERNEL || attribute < 1 || attribute > 15)
        return returns(INVALID_VALUE);
    memset(value, 0, 64);
    memcpy(value, &n->of.attribute[attribute], sizeof(n->of.attribute[0]));
    return returns(0);
}

/* As an H200, makes no node a cooperative one (2) that got its arguments in one buffer. */
EXPORT int cudaGraphKernelNodeSetAttribute(void *node, int attribute, const void *value)
{
    struct graph_node *n = node_of(node);
    if (n->type != NODE_KERNEL || attribute < 1 || attribute > 15 ||
        (attribute == 2 && n->of.packed))
        return returns(INVALID_VALUE);
    memcpy(&n->of.attribute[attribute], value, sizeof(n->of.attribute[0]));
    return returns(0);
}

EXPORT int cudaGraphKernelNodeCopyAttributes(void *to, void *from)
{
    if (node_of(to)->type != NODE_KERNEL || node_of(from)->type != NODE_KERNEL)
        return returns(INVALID_VALUE);
    memcpy(node_of(to)->of.attribute, node_of(from)->of.attribute,
           sizeof(node_of(to)->of.attribute));
    return returns(0);
}

/* ----------------------------------------------------------------------------------- events */

static int get_event(const struct graph_node *node, int type, void **event)
{
    *event = node->of.event;
    return returns(node->type == type ? 0 : INVALID_VALUE);
}

static int set_event(struct graph_node *node, int type, void *event)
{
    if (node->type != type)
        return returns(INVALID_VALUE);
    node->of.event = event;
    return returns(0);
}

EXPORT int cudaGraphEventRecordNodeGetEvent(void *node, void **event)
{
    return get_event(node_of(node), NODE_RECORD, event);
}

EXPORT int cudaGraphEventWaitNodeGetEvent(void *node, void **event)
{
    return get_event(node_of(node), NODE_WAIT, event);
}

EXPORT int cudaGraphEventRecordNodeSetEvent(void *node, void *event)
{
    return set_event(node_of(node), NODE_RECORD, event);
}

EXPORT int cudaGraphEventWaitNodeSetEvent(void *node, void *event)
{
    return set_event(node_of(node), NODE_WAIT, event);
}

EXPORT int cudaGraphExecEventRecordNodeSetEvent(void *exec, void *node, void *event)
{
    return set_event(node_in(exec, node), NODE_RECORD, event);
}

EXPORT int cudaGraphExecEventWaitNodeSetEvent(void *exec, void *node, void *event)
{
    return set_event(node_in(exec, node), NODE_WAIT, event);
}

/* ------------------------------------------------------------------------ functions, memory */

EXPORT int cudaGraphExecHostNodeSetParams(void *exec, void *node, const void *host)
{
    struct graph_node *mine = node_in(exec, node);
    if (mine->type != NODE_HOST)
        return returns(INVALID_VALUE);
    memcpy(&mine->of.host, host, sizeof(mine->of.host));
    return returns(0);
}

struct allocation {
    int words[22];
    const void *access;
    size_t access_count, n;
    void *address;
};

EXPORT int cudaGraphMemAllocNodeGetParams(void *node, struct allocation *a)
{
    *a = (struct allocation){.words = {1, 0, 1, 0},
                             .n = node_of(node)->of.memory_bytes,
                             .address = node_of(node)->of.memory};
    return returns(node_of(node)->type == NODE_ALLOC ? 0 : INVALID_VALUE);
}

EXPORT int cudaGraphMemFreeNodeGetParams(void *node, void **address)
{
    *address = node_of(node)->of.memory;
    return returns(node_of(node)->type == NODE_FREE ? 0 : INVALID_VALUE);
}

EXPORT int cudaDeviceSetGraphMemAttribute(int device, int attribute, const uint64_t *value)
{
    return returns(device >= 0 && device < 2 && attribute < 4 && !*value ? 0 : INVALID_VALUE);
}
