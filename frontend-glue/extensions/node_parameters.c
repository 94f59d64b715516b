/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Extension requests about parameters of graphs' nodes: getting them from CUDA, and setting new
 * ones. A kernel is named by the client's function again; an event has to be one of the tenant.
 */
#include "frontend-glue/extensions/graphs.h"

#include <stdlib.h>

#define INVALID_FUNCTION 98 /* cudaError_t */

/* enum cudaGraphNodeType */
#define ALLOC_NODE 10
#define FREE_NODE  11

/* The type of a node; -1: not known. */
static int type_of(void *node)
{
    int (*get)(void *of, int *type) = NULL;
    int type = 0;
    *(void **)&get = ibx_back_end_runtime("cudaGraphNodeGetType");
    return get && !get(node, &type) ? type : -1;
}

/* ---------------------------------------------------------------------------------- kernels */

/* cudaKernelNodeParams */
struct kernel {
    const void *function;
    unsigned size[6], shared; /* grid, block */
    void **arguments, **extra;
};

/* Writes the kernel, how many bytes of arguments there are in the kernel's layout, and those of
 * them that begin at `from`, at most IBX_EXT_NODE_BYTES. */
static int put_kernel(struct extension_request *e, const struct kernel *k, size_t from,
                      uint64_t graph)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    const uint64_t name = (uintptr_t)k->function;
    const uint64_t function = ibx_functions_address(ibx_functions_user_of(e->x), name);
    const int rc = function
                       ? ibx_device_arguments(e->x, function, k->arguments, k->extra, &bytes, &n)
                       : INVALID_FUNCTION;
    ibx_put_u64(&e->out, graph);
    ibx_put_u64(&e->out, function);
    for (unsigned i = 0; i < 6; i++)
        ibx_put_u32(&e->out, k->size[i]);
    ibx_put_u32(&e->out, k->shared);
    ibx_put_u32(&e->out, (uint32_t)n);
    for (size_t i = 0; i < IBX_EXT_NODE_BYTES; i++)
        ibx_put_u8(&e->out, !rc && from < n && i < n - from ? bytes[from + i] : 0);
    free(bytes);
    return rc;
}

static int get_kernel(struct extension_request *e)
{
    int (*get)(void *node, struct kernel *k) = NULL;
    struct kernel k = {.function = NULL};
    void *node = pointer(&e->in);
    const size_t from = ibx_get_u32(&e->in);
    if (!whole(e) || !is_node(e, node))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(node, &k);
    return rc ? rc : put_kernel(e, &k, from, ibx_handles_graph_of(e->x, (uintptr_t)node, true));
}

static int get_attribute(struct extension_request *e)
{
    int (*get)(void *node, int attribute, void *value) = NULL;
    _Alignas(8) uint8_t value[IBX_EXT_ATTRIBUTE] = {0};
    void *node = pointer(&e->in);
    const int attribute = (int)ibx_get_u32(&e->in);
    if (!whole(e) || !is_node(e, node))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(node, attribute, value);
    ibx_put_bytes(&e->out, value, sizeof(value));
    return rc;
}

static int set_attribute(struct extension_request *e)
{
    int (*set)(void *node, int attribute, const void *value) = NULL;
    _Alignas(8) uint8_t value[IBX_EXT_ATTRIBUTE] = {0};
    void *node = pointer(&e->in);
    const int attribute = (int)ibx_get_u32(&e->in);
    const uint8_t *bytes = ibx_get_bytes(&e->in, sizeof(value));
    if (!whole(e) || !is_node(e, node) || is_event_attribute((uint32_t)attribute))
        return CUDA_INVALID_VALUE; /* graphs do not have these */
    FUNCTION(e, set);
    memcpy(value, bytes, sizeof(value));
    return set(node, attribute, value);
}

static int copy_attributes(struct extension_request *e)
{
    int (*copy)(void *to, void *from) = NULL;
    void *to = pointer(&e->in), *from = pointer(&e->in);
    if (!whole(e) || !is_node(e, to) || !is_node(e, from))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, copy);
    return copy(to, from);
}

/* ----------------------------------------------------------------------------------- events */

static int get_event(struct extension_request *e)
{
    int (*get)(void *node, void **event) = NULL;
    void *event = NULL, *node = pointer(&e->in);
    if (!whole(e) || !is_node(e, node))
        return CUDA_INVALID_VALUE;
    const bool waits = type_of(node) == WAIT_NODE;
    *(void **)&get = waits ? ibx_back_end_runtime("cudaGraphEventWaitNodeGetEvent") : e->function;
    const int rc = get ? get(node, &event) : CUDA_NOT_SUPPORTED;
    ibx_put_u64(&e->out, (uintptr_t)event);
    return rc;
}

/* Sets `what` in an executable graph, or (exec NULL) in the graph itself, by the functions of these
 * names. */
static int set_in(void *exec, void *node, const char *in_graph, const char *in_exec, void *what)
{
    int (*set)(void *of, void *to) = NULL;
    int (*set_exec)(void *in, void *of, void *to) = NULL;
    *(void **)&set = ibx_back_end_runtime(in_graph);
    *(void **)&set_exec = ibx_back_end_runtime(in_exec);
    if (!set || !set_exec)
        return CUDA_NOT_SUPPORTED;
    return exec ? set_exec(exec, node, what) : set(node, what);
}

static int set_event(struct extension_request *e)
{
    void *exec, *node;
    const bool there = ibx_extension_get_node(e, &exec, &node);
    void *event = event_in(e);
    int rc;
    if (!there || !whole(e))
        return CUDA_INVALID_VALUE;
    /* Held until the request ends. */
    if (!ibx_handles_know(e->x, IBX_HANDLE_EVENT, (uintptr_t)event) && !ibx_named_any_event(e->x))
        return CUDA_INVALID_HANDLE;
    switch (type_of(node)) {
    case RECORD_NODE:
        return set_in(exec, node, "cudaGraphEventRecordNodeSetEvent",
                      "cudaGraphExecEventRecordNodeSetEvent", event);
    case WAIT_NODE:
        rc = set_in(exec, node, "cudaGraphEventWaitNodeSetEvent",
                    "cudaGraphExecEventWaitNodeSetEvent", event);
        if (!rc && exec &&
            !ibx_graph_event_set(e->x, (uintptr_t)exec, (uintptr_t)node, (uintptr_t)event))
            rc = CUDA_MEMORY_ALLOCATION;
        return rc;
    default:
        return CUDA_INVALID_VALUE;
    }
}

/* -------------------------------------------------------------------------------- functions */

struct host_node {
    void (*function)(void *argument);
    void *argument;
};

/* Answers the number of the client's function. */
static int get_host(struct extension_request *e)
{
    int (*get)(void *node, struct host_node *host) = NULL;
    struct host_node host = {NULL, NULL};
    void *node = pointer(&e->in);
    if (!whole(e) || !is_node(e, node) || type_of(node) != HOST_NODE)
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(node, &host);
    const bool called = !rc && host.function == ibx_host_work_call;
    const uint64_t number = called ? ibx_host_work_number(e->x, host.argument) : 0;
    ibx_put_u64(&e->out, number);
    return rc ? rc : number ? 0 : CUDA_INVALID_VALUE;
}

static int set_host(struct extension_request *e)
{
    void *exec, *node;
    int rc = 0;
    const bool there = ibx_extension_get_node(e, &exec, &node);
    const uint64_t queue = ibx_get_u64(&e->in), number = ibx_get_u64(&e->in);
    struct host_node host = {.function = ibx_host_work_call};
    if (!there || !whole(e) || type_of(node) != HOST_NODE)
        return CUDA_INVALID_VALUE;
    host.argument = exec ? ibx_host_work_repeat_lone(e->x, queue, number, &rc)
                         : ibx_host_work_repeat(e->x, queue, number, &rc);
    if (rc)
        return rc;
    rc = set_in(exec, node, "cudaGraphHostNodeSetParams", "cudaGraphExecHostNodeSetParams", &host);
    if (exec && !rc)
        ibx_exec_functions_set(e->x, exec, node, host.argument);
    else if (exec)
        ibx_host_work_replace(host.argument, true);
    else if (!rc)
        ibx_extension_node_calls(e, node, host.argument);
    else
        ibx_host_work_release(host.argument);
    return rc;
}

/* ------------------------------------------------------------------------- graphs in graphs */

/* The child graph of a node, which ends with the node. NULL: it has none. */
static void *child_of(struct extension_request *e, void *node)
{
    int (*get)(void *of, void **graph) = NULL;
    void *child = NULL;
    *(void **)&get = ibx_back_end_runtime("cudaGraphChildGraphNodeGetGraph");
    const bool has = get && type_of(node) == CHILD_NODE && !ibx_extension_copy_of_node(e, node);
    return has && !get(node, &child) ? child : NULL;
}

static int get_child(struct extension_request *e)
{
    void *node = pointer(&e->in);
    void *child = whole(e) && is_node(e, node) ? child_of(e, node) : NULL;
    if (!child)
        return CUDA_INVALID_VALUE;
    if (!ibx_handles_is_within(e->x, (uintptr_t)child)) {
        const uint64_t graph = ibx_handles_graph_of(e->x, (uintptr_t)node, false);
        if (!ibx_graph_note_part(e->x, (uintptr_t)child, graph))
            return CUDA_MEMORY_ALLOCATION;
    }
    ibx_put_u64(&e->out, (uintptr_t)child);
    return 0;
}

void ibx_extension_forget_child(struct extension_request *e, void *node)
{
    void *child = child_of(e, node);
    if (!child || !ibx_handles_is_within(e->x, (uintptr_t)child))
        return;
    const uint64_t number = ibx_room_owned(e->x, (uintptr_t)child);
    if (ibx_handles_remove(e->x, IBX_HANDLE_GRAPH, (uintptr_t)child))
        ibx_owners_remove((uintptr_t)child, number);
}

/* Only for graphs without functions of clients: otherwise the client could not tell which functions
 * the executable graph calls after that. Nor for graphs that wait for events: it would not be known
 * which events the executable graph waits for no more. */
static int set_child(struct extension_request *e)
{
    int (*set)(void *exec, void *node, void *child) = NULL;
    void *exec, *node;
    size_t functions = 0;
    const bool there = ibx_extension_get_node(e, &exec, &node);
    void *child = pointer(&e->in);
    if (!there || !exec || !whole(e) || !is_graph(e, child) || !child_of(e, node))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, set);
    int rc = ibx_extension_count_functions(e->x, child, &functions);
    rc = rc ? rc : ibx_graph_events_begin(e->x, child);
    if (!rc && (functions || ibx_graph_events_any_waits(e->x)))
        rc = CUDA_NOT_SUPPORTED;
    return rc ? rc : set(exec, node, child);
}

/* ----------------------------------------------------------------------------------- memory */

/* struct cudaMemAllocNodeParams */
struct allocation {
    int kind, shared_as;
    int at_device, device;
    unsigned char rest[72];
    const void *access;
    size_t access_count, n;
    void *address;
};

/* For a node that frees memory, only the address. */
static int get_memory(struct extension_request *e)
{
    int (*get)(void *node, struct allocation *a) = NULL;
    int (*get_freed)(void *node, void **address) = NULL;
    struct allocation a = {.n = 0};
    void *node = pointer(&e->in);
    if (!whole(e) || !is_node(e, node))
        return CUDA_INVALID_VALUE;
    const int type = type_of(node);
    FUNCTION(e, get);
    *(void **)&get_freed = ibx_back_end_runtime("cudaGraphMemFreeNodeGetParams");
    if ((type != ALLOC_NODE && type != FREE_NODE) || !get_freed)
        return CUDA_INVALID_VALUE;
    const int rc = type == ALLOC_NODE ? get(node, &a) : get_freed(node, &a.address);
    ibx_put_u32(&e->out, (uint32_t)type);
    ibx_put_u32(&e->out, (uint32_t)a.device);
    ibx_put_u64(&e->out, a.n);
    ibx_put_u64(&e->out, (uintptr_t)a.address);
    return rc;
}

static int set_graph_memory(struct extension_request *e)
{
    int (*set)(int device, int attribute, void *value) = NULL;
    const int device = (int)ibx_get_u32(&e->in), attribute = (int)ibx_get_u32(&e->in);
    uint64_t value = ibx_get_u64(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, set);
    return set(device, attribute, &value);
}

/* ---------------------------------------------------------------------------------- requests */

const struct extension_call ibx_node_parameter_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_GET_KERNEL] = {"cudaGraphKernelNodeGetParams", get_kernel},
    [IBX_EXT_GET_ATTRIBUTE] = {"cudaGraphKernelNodeGetAttribute", get_attribute},
    [IBX_EXT_SET_ATTRIBUTE] = {"cudaGraphKernelNodeSetAttribute", set_attribute},
    [IBX_EXT_COPY_ATTRIBUTES] = {"cudaGraphKernelNodeCopyAttributes", copy_attributes},
    [IBX_EXT_GET_EVENT] = {"cudaGraphEventRecordNodeGetEvent", get_event},
    [IBX_EXT_SET_EVENT] = {"cudaGraphEventRecordNodeSetEvent", set_event},
    [IBX_EXT_GET_HOST] = {"cudaGraphHostNodeGetParams", get_host},
    [IBX_EXT_SET_HOST] = {"cudaGraphHostNodeSetParams", set_host},
    [IBX_EXT_GET_CHILD] = {"cudaGraphChildGraphNodeGetGraph", get_child},
    [IBX_EXT_SET_CHILD] = {"cudaGraphExecChildGraphNodeSetParams", set_child},
    [IBX_EXT_GET_MEMORY] = {"cudaGraphMemAllocNodeGetParams", get_memory},
    [IBX_EXT_SET_GRAPH_MEMORY] = {"cudaDeviceSetGraphMemAttribute", set_graph_memory},
};
