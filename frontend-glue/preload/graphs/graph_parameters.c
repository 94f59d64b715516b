/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Queries and changes of the parameters of nodes, as extension requests: for all nodes that
 * graph_nodes.c adds.
 *
 * The arguments of a kernel belong to its node. A program may read them as long as the node exists
 * and is not changed, so they are kept until its graph is destroyed.
 */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <pthread.h>
#include <stdlib.h>

#define BUCKETS 1024u

/* The arguments of one node that the program was given. */
struct kept {
    struct kept *next;
    const void *node;
    uint64_t graph; /* the outermost graph that contains the node */
    size_t room;
    uint8_t *bytes; /* the arguments, followed by an array of pointers to them */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *kept[BUCKETS];
static _Atomic size_t kept_count;

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* A query of a node whose answer is a handle or a number. */
static int ask(enum ibx_extension number, const char *call, const void *node, uint64_t *answer)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, number, call);
    ibx_put_u64(&e.body, (uintptr_t)node);
    return ibx_frontend_request_ask(&e, answer);
}

static int ask_handle(enum ibx_extension number, const char *call, const void *node, void **handle)
{
    uint64_t answer = 0;
    const int rc =
        handle ? ask(number, call, node, &answer) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc)
        *handle = (void *)(uintptr_t)answer;
    return rc;
}

/* ---------------------------------------------------------------------------------- kernels */

void ibx_frontend_graph_gone(const void *graph)
{
    if (!atomic_load_explicit(&kept_count, memory_order_relaxed))
        return;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct kept **at = &kept[i], *k; (k = *at);) {
            if (k->graph != (uintptr_t)graph) {
                at = &k->next;
                continue;
            }
            *at = k->next;
            free(k->bytes);
            free(k);
            atomic_fetch_sub(&kept_count, 1);
        }
    }
    pthread_mutex_unlock(&lock);
}

/* Called under the lock. The entry of a node; NULL: there is no memory. */
static struct kept *kept_of(const void *node)
{
    struct kept **at = &kept[((uintptr_t)node >> 4 ^ (uintptr_t)node >> 14) % BUCKETS], *k = *at;
    while (k && k->node != node)
        k = k->next;
    if (!k && (k = calloc(1, sizeof(*k)))) {
        k->node = node;
        k->next = *at;
        *at = k;
        atomic_fetch_add(&kept_count, 1);
    }
    return k;
}

/* The back end's answer about a kernel node. */
struct told {
    uint64_t graph;
    struct kernel_node kernel;
    size_t n, count; /* bytes of its arguments, and their number */
    uint8_t *bytes;
};

static int tell_some(const void *node, size_t from, struct told *told)
{
    struct extension_request e;
    uint8_t bytes[48 + IBX_EXT_NODE_BYTES] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    unsigned size[6];
    ibx_frontend_request_begin(&e, IBX_EXT_GET_KERNEL, "cudaGraphKernelNodeGetParams");
    ibx_put_u64(&e.body, (uintptr_t)node);
    ibx_put_u32(&e.body, (uint32_t)from);
    const int rc = ibx_frontend_request_make(&e, bytes, sizeof(bytes));
    if (rc)
        return rc;
    told->graph = ibx_get_u64(&r);
    told->kernel.function = ibx_frontend_kernel_of_name(ibx_get_u64(&r));
    for (unsigned i = 0; i < 6; i++)
        size[i] = ibx_get_u32(&r);
    told->kernel.grid = (struct dim3){size[0], size[1], size[2]};
    told->kernel.block = (struct dim3){size[3], size[4], size[5]};
    told->kernel.shared = ibx_get_u32(&r);
    const size_t n = ibx_get_u32(&r);
    if (from && n != told->n)
        return ibx_frontend_fail(CUDA_INVALID_VALUE); /* the node has changed meanwhile */
    if (n > IBX_EXT_ARGUMENTS_MAX || (!told->bytes && !(told->bytes = calloc(1, n + 1))))
        return ibx_frontend_fail(n > IBX_EXT_ARGUMENTS_MAX ? CUDA_UNKNOWN : CUDA_MEMORY_ALLOCATION);
    told->n = n;
    const size_t left = n - from;
    memcpy(told->bytes + from, ibx_get_bytes(&r, IBX_EXT_NODE_BYTES),
           left < IBX_EXT_NODE_BYTES ? left : IBX_EXT_NODE_BYTES);
    return CUDA_SUCCESS;
}

/* Called under the lock. Uses the same memory again if it is large enough: the program may have its
 * address. */
static void **keep(struct kept *k, const struct told *told)
{
    const size_t at = (told->n + 7) / 8 * 8, room = at + told->count * sizeof(void *);
    size_t count = told->count;
    if (k->room < room) {
        uint8_t *bytes = realloc(k->bytes, room);
        if (!bytes)
            return NULL;
        k->bytes = bytes;
        k->room = room;
    }
    k->graph = told->graph;
    memcpy(k->bytes, told->bytes, told->n);
    void **arguments = (void **)(void *)(k->bytes + at);
    return ibx_frontend_kernel_arguments(told->kernel.function, k->bytes, told->n, arguments,
                                         &count)
               ? arguments
               : NULL;
}

static int give_kernel(const void *node, struct told *told, struct kernel_node *kernel)
{
    void **arguments = NULL;
    if (!ibx_frontend_kernel_arguments(told->kernel.function, told->bytes, told->n, NULL,
                                       &told->count))
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    pthread_mutex_lock(&lock);
    struct kept *k = told->count ? kept_of(node) : NULL;
    if (k)
        arguments = keep(k, told);
    pthread_mutex_unlock(&lock);
    if (told->count && !arguments)
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    *kernel = told->kernel;
    kernel->arguments = arguments;
    return CUDA_SUCCESS;
}

int cudaGraphKernelNodeGetParams(void *node, struct kernel_node *kernel)
{
    struct told told = {.n = 1};
    int rc = kernel ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_INVALID_VALUE);
    for (size_t from = 0; !rc && from < told.n; from += IBX_EXT_NODE_BYTES)
        rc = tell_some(node, from, &told);
    rc = rc ? rc : give_kernel(node, &told, kernel);
    free(told.bytes);
    return rc;
}

/* The value of an attribute has the size of a stream's attribute. */
int cudaGraphKernelNodeGetAttribute(void *node, int attribute, void *value)
{
    struct extension_request e;
    uint8_t bytes[IBX_EXT_ATTRIBUTE] = {0};
    ibx_frontend_request_begin(&e, IBX_EXT_GET_ATTRIBUTE, "cudaGraphKernelNodeGetAttribute");
    ibx_put_u64(&e.body, (uintptr_t)node);
    ibx_put_u32(&e.body, (uint32_t)attribute);
    const int rc = value ? ibx_frontend_request_make(&e, bytes, sizeof(bytes))
                         : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc)
        memcpy(value, bytes, sizeof(bytes));
    return rc;
}

int cudaGraphKernelNodeSetAttribute(void *node, int attribute, const void *value)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_SET_ATTRIBUTE, "cudaGraphKernelNodeSetAttribute");
    if (!value)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_put_u64(&e.body, (uintptr_t)node);
    ibx_put_u32(&e.body, (uint32_t)attribute);
    ibx_put_bytes(&e.body, value, IBX_EXT_ATTRIBUTE);
    return ibx_frontend_request_make(&e, NULL, 0);
}

int cudaGraphKernelNodeCopyAttributes(void *to, void *from)
{
    struct extension_request e;
    ibx_frontend_node_begin(&e, IBX_EXT_COPY_ATTRIBUTES, "cudaGraphKernelNodeCopyAttributes", to,
                            from);
    return ibx_frontend_request_make(&e, NULL, 0);
}

/* ----------------------------------------------------------------------------------- events */

/* 0 if the node is of this type, else a CUDA error. */
static int is_other_than(int wanted, void *node)
{
    int type;
    const int rc = cudaGraphNodeGetType(node, &type);
    return rc || type == wanted ? rc : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

int cudaGraphEventRecordNodeGetEvent(void *node, void **event)
{
    const int rc = is_other_than(IBX_FRONTEND_NODE_RECORD, node);
    return rc ? rc : ask_handle(IBX_EXT_GET_EVENT, "cudaGraphEventRecordNodeGetEvent", node, event);
}

int cudaGraphEventWaitNodeGetEvent(void *node, void **event)
{
    const int rc = is_other_than(IBX_FRONTEND_NODE_WAIT, node);
    return rc ? rc : ask_handle(IBX_EXT_GET_EVENT, "cudaGraphEventWaitNodeGetEvent", node, event);
}

static int set_event(const char *call, int type, void *exec, void *node, const void *event)
{
    struct extension_request e;
    if (!event)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const int rc = is_other_than(type, node);
    if (rc)
        return rc;
    ibx_frontend_node_begin(&e, IBX_EXT_SET_EVENT, call, exec, node);
    ibx_put_u64(&e.body, (uintptr_t)event);
    return ibx_frontend_request_make(&e, NULL, 0);
}

int cudaGraphEventRecordNodeSetEvent(void *node, void *event)
{
    return set_event("cudaGraphEventRecordNodeSetEvent", IBX_FRONTEND_NODE_RECORD, NULL, node,
                     event);
}

int cudaGraphEventWaitNodeSetEvent(void *node, void *event)
{
    return set_event("cudaGraphEventWaitNodeSetEvent", IBX_FRONTEND_NODE_WAIT, NULL, node, event);
}

int cudaGraphExecEventRecordNodeSetEvent(void *exec, void *node, void *event)
{
    return exec ? set_event("cudaGraphExecEventRecordNodeSetEvent", IBX_FRONTEND_NODE_RECORD, exec,
                            node, event)
                : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

int cudaGraphExecEventWaitNodeSetEvent(void *exec, void *node, void *event)
{
    return exec ? set_event("cudaGraphExecEventWaitNodeSetEvent", IBX_FRONTEND_NODE_WAIT, exec,
                            node, event)
                : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

/* -------------------------------------------------------------------------------- functions */

/* The host function of a node, and its number. An error for a node whose function makes a copy:
 * that function is not the program's. */
static int get_host(const char *call, const void *node, struct host_node *host, uint64_t *number)
{
    const int rc = ask(IBX_EXT_GET_HOST, call, node, number);
    if (rc)
        return rc;
    return ibx_frontend_host_function_of(*number, host) &&
                   !ibx_frontend_graph_copies(host->function)
               ? CUDA_SUCCESS
               : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

int cudaGraphHostNodeGetParams(void *node, struct host_node *host)
{
    struct host_node found;
    uint64_t number;
    const int rc = host ? get_host("cudaGraphHostNodeGetParams", node, &found, &number)
                        : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc)
        *host = found;
    return rc;
}

static int set_host(const char *call, void *exec, void *node, const struct host_node *host)
{
    struct extension_request e;
    struct host_node before;
    uint64_t queue, called = 0;
    if (!host || !host->function)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    int rc = get_host(call, node, &before, &called);
    if (rc)
        return rc;
    const uint64_t number = ibx_frontend_host_repeated(host->function, host->argument, &queue);
    if (!number)
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    ibx_frontend_node_begin(&e, IBX_EXT_SET_HOST, call, exec, node);
    ibx_put_u64(&e.body, queue);
    ibx_put_u64(&e.body, number);
    rc = ibx_frontend_request_make(&e, NULL, 0);
    if (!rc && !exec)
        ibx_frontend_execs_keep(node, called);
    return rc || !exec ? rc : ibx_frontend_exec_exchange(exec, node, called, number);
}

int cudaGraphHostNodeSetParams(void *node, const struct host_node *host)
{
    return set_host("cudaGraphHostNodeSetParams", NULL, node, host);
}

int cudaGraphExecHostNodeSetParams(void *exec, void *node, const struct host_node *host)
{
    return exec ? set_host("cudaGraphExecHostNodeSetParams", exec, node, host)
                : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

/* ------------------------------------------------------------------ graphs in graphs, memory */

int cudaGraphChildGraphNodeGetGraph(void *node, void **graph)
{
    return ask_handle(IBX_EXT_GET_CHILD, "cudaGraphChildGraphNodeGetGraph", node, graph);
}

int cudaGraphExecChildGraphNodeSetParams(void *exec, void *node, void *child)
{
    struct extension_request e;
    if (!exec)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_frontend_node_begin(&e, IBX_EXT_SET_CHILD, "cudaGraphExecChildGraphNodeSetParams", exec,
                            node);
    ibx_put_u64(&e.body, (uintptr_t)child);
    return ibx_frontend_request_make(&e, NULL, 0);
}

#define ALLOCATION 10u /* cudaGraphNodeTypeMemAlloc; the next value is cudaGraphNodeTypeMemFree */

static int get_memory(const char *call, const void *node, uint32_t type, struct allocation_node *a)
{
    struct extension_request e;
    uint8_t bytes[24] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    ibx_frontend_request_begin(&e, IBX_EXT_GET_MEMORY, call);
    ibx_put_u64(&e.body, (uintptr_t)node);
    const int rc = ibx_frontend_request_make(&e, bytes, sizeof(bytes));
    if (rc || ibx_get_u32(&r) != type)
        return rc ? rc : ibx_frontend_fail(CUDA_INVALID_VALUE);
    *a = (struct allocation_node){.kind = 1, .location = 1, .device = (int)ibx_get_u32(&r)};
    a->n = (size_t)ibx_get_u64(&r);
    a->address = (void *)(uintptr_t)ibx_get_u64(&r);
    return CUDA_SUCCESS;
}

int cudaGraphMemAllocNodeGetParams(void *node, struct allocation_node *a)
{
    static const char call[] = "cudaGraphMemAllocNodeGetParams";
    return a ? get_memory(call, node, ALLOCATION, a) : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

int cudaGraphMemFreeNodeGetParams(void *node, void *address)
{
    struct allocation_node a;
    if (!address)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const int rc = get_memory("cudaGraphMemFreeNodeGetParams", node, ALLOCATION + 1, &a);
    if (!rc)
        memcpy(address, &a.address, sizeof(a.address));
    return rc;
}

int cudaDeviceSetGraphMemAttribute(int device, int attribute, const void *value)
{
    struct extension_request e;
    uint64_t wanted = 0;
    if (!value)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    memcpy(&wanted, value, sizeof(wanted));
    ibx_frontend_request_begin(&e, IBX_EXT_SET_GRAPH_MEMORY, "cudaDeviceSetGraphMemAttribute");
    ibx_put_u32(&e.body, (uint32_t)device);
    ibx_put_u32(&e.body, (uint32_t)attribute);
    ibx_put_u64(&e.body, wanted);
    return ibx_frontend_request_make(&e, NULL, 0);
}

/* --------------------------------------------------------------------------- nodes of all kinds */

static int get_parameters(void *node, struct node_parameters *p)
{
    switch (p->type) {
    case IBX_FRONTEND_NODE_KERNEL:
        return cudaGraphKernelNodeGetParams(node, &p->of.kernel);
    case IBX_FRONTEND_NODE_MEMCPY:
        return cudaGraphMemcpyNodeGetParams(node, &p->of.copy.parameters);
    case IBX_FRONTEND_NODE_MEMSET:
        return cudaGraphMemsetNodeGetParams(node, &p->of.set);
    case IBX_FRONTEND_NODE_HOST:
        return cudaGraphHostNodeGetParams(node, &p->of.host);
    case IBX_FRONTEND_NODE_GRAPH:
        return cudaGraphChildGraphNodeGetGraph(node, &p->of.child.graph);
    case IBX_FRONTEND_NODE_WAIT:
        return cudaGraphEventWaitNodeGetEvent(node, &p->of.handle);
    case IBX_FRONTEND_NODE_RECORD:
        return cudaGraphEventRecordNodeGetEvent(node, &p->of.handle);
    case IBX_FRONTEND_NODE_ALLOCATION:
        return cudaGraphMemAllocNodeGetParams(node, &p->of.allocation);
    case IBX_FRONTEND_NODE_FREE:
        return cudaGraphMemFreeNodeGetParams(node, &p->of.handle);
    case IBX_FRONTEND_NODE_EMPTY:
        return CUDA_SUCCESS;
    default:
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    }
}

int cudaGraphNodeGetParams(void *node, struct node_parameters *p)
{
    struct node_parameters is = {.type = 0};
    int rc = p ? cudaGraphNodeGetType(node, &is.type) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc && !(rc = get_parameters(node, &is)))
        *p = is;
    return rc;
}

int cudaGraphNodeSetParams(void *node, struct node_parameters *p)
{
    switch (p ? p->type : -1) {
    case IBX_FRONTEND_NODE_KERNEL:
        return cudaGraphKernelNodeSetParams(node, &p->of.kernel);
    case IBX_FRONTEND_NODE_MEMCPY:
        return cudaGraphMemcpyNodeSetParams(node, &p->of.copy.parameters);
    case IBX_FRONTEND_NODE_MEMSET:
        return cudaGraphMemsetNodeSetParams(node, &p->of.set);
    case IBX_FRONTEND_NODE_HOST:
        return cudaGraphHostNodeSetParams(node, &p->of.host);
    case IBX_FRONTEND_NODE_WAIT:
        return cudaGraphEventWaitNodeSetEvent(node, p->of.handle);
    case IBX_FRONTEND_NODE_RECORD:
        return cudaGraphEventRecordNodeSetEvent(node, p->of.handle);
    case IBX_FRONTEND_NODE_EMPTY:
        return is_other_than(IBX_FRONTEND_NODE_EMPTY, node);
    default:
        return ibx_frontend_fail(p ? CUDA_NOT_SUPPORTED : CUDA_INVALID_VALUE);
    }
}

int cudaGraphExecNodeSetParams(void *exec, void *node, struct node_parameters *p)
{
    switch (p ? p->type : -1) {
    case IBX_FRONTEND_NODE_KERNEL:
        return cudaGraphExecKernelNodeSetParams(exec, node, &p->of.kernel);
    case IBX_FRONTEND_NODE_MEMCPY:
        return cudaGraphExecMemcpyNodeSetParams(exec, node, &p->of.copy.parameters);
    case IBX_FRONTEND_NODE_MEMSET:
        return cudaGraphExecMemsetNodeSetParams(exec, node, &p->of.set);
    case IBX_FRONTEND_NODE_HOST:
        return cudaGraphExecHostNodeSetParams(exec, node, &p->of.host);
    case IBX_FRONTEND_NODE_GRAPH:
        return cudaGraphExecChildGraphNodeSetParams(exec, node, p->of.handle);
    case IBX_FRONTEND_NODE_WAIT:
        return cudaGraphExecEventWaitNodeSetEvent(exec, node, p->of.handle);
    case IBX_FRONTEND_NODE_RECORD:
        return cudaGraphExecEventRecordNodeSetEvent(exec, node, p->of.handle);
    default:
        return ibx_frontend_fail(p ? CUDA_NOT_SUPPORTED : CUDA_INVALID_VALUE);
    }
}
