/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Nodes of graphs, as extension requests. */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

/* Begins a request that adds a node to the graph after `count` others. False: *rc is the error. */
static bool begin(struct extension_request *e, enum ibx_extension number, const char *call,
                  const void *graph, void *const *behind, size_t count, int *rc)
{
    ibx_frontend_request_begin(e, number, call);
    ibx_frontend_put_place(e, graph, behind, count);
    *rc = count && !behind ? ibx_frontend_fail(CUDA_INVALID_VALUE) : CUDA_SUCCESS;
    return !*rc;
}

static int end(const struct extension_request *e, void **node)
{
    uint64_t made = 0;
    const int rc =
        node ? ibx_frontend_request_ask(e, &made) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc)
        *node = (void *)(uintptr_t)made;
    return rc;
}

/* -------------------------------------------------------------------------------- kernels */

static int put_kernel(struct extension_request *e, const struct kernel_node *kernel)
{
    if (!kernel || kernel->extra)
        return ibx_frontend_fail(kernel ? CUDA_NOT_SUPPORTED : CUDA_INVALID_VALUE);
    if (!kernel->function)
        return ibx_frontend_fail(CUDA_INVALID_FUNCTION);
    const struct launch_config config = {
        .grid = kernel->grid, .block = kernel->block, .shared = kernel->shared};
    const int rc = ibx_frontend_put_launch(e, &config, kernel->function, kernel->arguments);
    ibx_frontend_device_used();
    return rc;
}

int cudaGraphAddKernelNode(void **node, void *graph, void *const *behind, size_t count,
                           const struct kernel_node *kernel)
{
    struct extension_request e;
    int rc;
    if (!begin(&e, IBX_EXT_NODE_KERNEL, "cudaGraphAddKernelNode", graph, behind, count, &rc))
        return rc;
    rc = put_kernel(&e, kernel);
    if (!rc)
        rc = end(&e, node);
    ibx_frontend_request_free(&e);
    return rc;
}

/* Here and below the executable graph is NULL for the node's own parameters. The calls that take
 * one refuse NULL. */
static int set_kernel(const char *call, void *exec, void *node, const struct kernel_node *kernel)
{
    struct extension_request e;
    ibx_frontend_node_begin(&e, IBX_EXT_SET_KERNEL, call, exec, node);
    int rc = put_kernel(&e, kernel);
    if (!rc)
        rc = ibx_frontend_request_make(&e, NULL, 0);
    ibx_frontend_request_free(&e);
    return rc;
}

int cudaGraphKernelNodeSetParams(void *node, const struct kernel_node *kernel)
{
    return set_kernel("cudaGraphKernelNodeSetParams", NULL, node, kernel);
}

int cudaGraphExecKernelNodeSetParams(void *exec, void *node, const struct kernel_node *kernel)
{
    return exec ? set_kernel("cudaGraphExecKernelNodeSetParams", exec, node, kernel)
                : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

/* ---------------------------------------------------------------------------------- copies */

static int add_function(void **node, void *graph, void *const *behind, size_t count, uint64_t queue,
                        uint64_t number)
{
    struct extension_request e;
    int rc;
    if (!begin(&e, IBX_EXT_NODE_HOST, "cudaGraphAddHostNode", graph, behind, count, &rc))
        return rc;
    ibx_put_u64(&e.body, queue);
    ibx_put_u64(&e.body, number);
    return end(&e, node);
}

/* Adds a copy through a slot of the back end. False: it has no slot for it. */
static bool add_slot_copy(void **node, void *graph, void *const *behind, size_t count,
                          const struct ibx_cuda_memcpy3d *copy, int *rc)
{
    static const char call[] = "cudaGraphAddMemcpyNode";
    struct extension_request e;
    uint8_t bytes[8] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    if (!node) {
        *rc = ibx_frontend_fail(CUDA_INVALID_VALUE);
        return true;
    }
    if (!begin(&e, IBX_EXT_NODE_COPY, call, graph, behind, count, rc))
        return true;
    if (!ibx_frontend_slot_copy(&e.body, copy) ||
        !ibx_frontend_slot_made(&e, bytes, sizeof(bytes), rc))
        return false;
    if (!*rc)
        *node = (void *)(uintptr_t)ibx_get_u64(&r);
    return true;
}

bool ibx_frontend_slot_node(void **node, void *graph, const struct ibx_cuda_memcpy3d *copy, int *rc)
{
    return add_slot_copy(node, graph, NULL, 0, copy, rc);
}

/* Whether memory is shorter than a copy without arrays, which is in bytes. CUDA refuses it at once.
 */
static bool is_short(const struct ibx_cuda_memcpy3d *p)
{
    return p->from.at && p->to.at && ibx_frontend_planes_are_short(p);
}

/* What CUDA refuses at once of a node's copy, in its order. The device checks arrays. */
static int check_copy(const struct ibx_cuda_memcpy3d *copy)
{
    if (copy && ibx_frontend_is_no_kind(copy->kind))
        return CUDA_INVALID_DIRECTION;
    if (!ibx_cuda_has_two_sides(copy) || !copy->extent.width || !copy->extent.height ||
        !copy->extent.depth)
        return CUDA_INVALID_VALUE;
    const bool memory = copy->from.at && copy->to.at;
    const int rc = memory ? ibx_frontend_planes_within(copy) : CUDA_SUCCESS;
    return !rc && is_short(copy) ? CUDA_INVALID_VALUE : rc;
}

/* Whether this process has to take part in the copy; its kind is resolved then. */
static bool needs_host(struct ibx_cuda_memcpy3d *p)
{
    const bool of_host = ibx_frontend_copy_of_host(p), on_host = ibx_frontend_copy_is_on_host(p);
    if (on_host)
        p->kind = CUDA_MEMCPY_ON_HOST;
    return of_host || on_host;
}

int cudaGraphAddMemcpyNode(void **node, void *graph, void *const *behind, size_t count,
                           const struct ibx_cuda_memcpy3d *copy)
{
    struct extension_request e;
    int rc;
    uint64_t queue;
    if ((rc = check_copy(copy)))
        return ibx_frontend_fail(rc);
    struct ibx_cuda_memcpy3d p = *copy;
    if (needs_host(&p)) {
        if (add_slot_copy(node, graph, behind, count, &p, &rc))
            return rc;
        const uint64_t number = ibx_frontend_copy_function(&p, &queue, &rc);
        return number ? add_function(node, graph, behind, count, queue, number)
                      : ibx_frontend_fail(rc);
    }
    if (!begin(&e, IBX_EXT_NODE_MEMCPY, "cudaGraphAddMemcpyNode", graph, behind, count, &rc))
        return rc;
    ibx_layout_put(&e.body, IBX_LAYOUT_MEMCPY3D, &p);
    return end(&e, node);
}

int cudaGraphAddMemcpyNode1D(void **node, void *graph, void *const *behind, size_t count, void *to,
                             const void *from, size_t n, int kind)
{
    const struct ibx_cuda_memcpy3d copy = {.from = {(void *)(uintptr_t)from, n, n, 1},
                                           .to = {to, n, n, 1},
                                           .extent = {n, 1, 1},
                                           .kind = kind};
    return cudaGraphAddMemcpyNode(node, graph, behind, count, &copy);
}

/* Changes a node to another copy through a slot. A node whose copy is not made through a slot
 * cannot be changed. */
static int set_slot_copy(const char *call, void *exec, void *node,
                         const struct ibx_cuda_memcpy3d *copy)
{
    struct extension_request e;
    uint8_t bytes[8] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    int rc;
    ibx_frontend_node_begin(&e, IBX_EXT_SET_COPY, call, exec, node);
    const uint64_t number = ibx_frontend_slot_copy(&e.body, copy);
    if (!number || !ibx_frontend_slot_made(&e, bytes, sizeof(bytes), &rc))
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    const uint64_t before = ibx_get_u64(&r);
    if (!rc && !exec)
        ibx_frontend_execs_keep(node, before);
    return rc || !exec ? rc : ibx_frontend_exec_exchange(exec, node, before, number);
}

static int set_copy(const char *call, void *exec, void *node, const struct ibx_cuda_memcpy3d *copy)
{
    struct extension_request e;
    const int rc = check_copy(copy);
    if (rc)
        return ibx_frontend_fail(rc);
    struct ibx_cuda_memcpy3d p = *copy;
    if (needs_host(&p))
        return set_slot_copy(call, exec, node, &p);
    ibx_frontend_node_begin(&e, IBX_EXT_SET_MEMCPY, call, exec, node);
    ibx_layout_put(&e.body, IBX_LAYOUT_MEMCPY3D, &p);
    return ibx_frontend_request_make(&e, NULL, 0);
}

/* Returns the copy as the program described it, except that cudaMemcpyDefault may be resolved. */
int cudaGraphMemcpyNodeGetParams(void *node, struct ibx_cuda_memcpy3d *copy)
{
    struct extension_request e;
    uint8_t bytes[8 + 19 * 8 + 4] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    struct ibx_cuda_memcpy3d p = {.kind = 0};
    ibx_frontend_request_begin(&e, IBX_EXT_GET_COPY, "cudaGraphMemcpyNodeGetParams");
    ibx_put_u64(&e.body, (uintptr_t)node);
    const int rc = copy ? ibx_frontend_request_make(&e, bytes, sizeof(bytes))
                        : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (rc)
        return rc;
    const uint64_t number = ibx_get_u64(&r);
    ibx_layout_get(&r, IBX_LAYOUT_MEMCPY3D, &p);
    if (number && !ibx_frontend_slot_parameters(number, &p))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    *copy = p;
    return CUDA_SUCCESS;
}

int cudaGraphMemcpyNodeSetParams(void *node, const struct ibx_cuda_memcpy3d *copy)
{
    return set_copy("cudaGraphMemcpyNodeSetParams", NULL, node, copy);
}

int cudaGraphExecMemcpyNodeSetParams(void *exec, void *node, const struct ibx_cuda_memcpy3d *copy)
{
    return exec ? set_copy("cudaGraphExecMemcpyNodeSetParams", exec, node, copy)
                : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

/* ----------------------------------------------------------------------- memory that is set */

int cudaGraphAddMemsetNode(void **node, void *graph, void *const *behind, size_t count,
                           const struct ibx_cuda_memset *set)
{
    struct extension_request e;
    int rc;
    if ((rc = ibx_frontend_set_check(set)))
        return rc;
    if (!begin(&e, IBX_EXT_NODE_MEMSET, "cudaGraphAddMemsetNode", graph, behind, count, &rc))
        return rc;
    ibx_layout_put(&e.body, IBX_LAYOUT_MEMSET, set);
    return end(&e, node);
}

static int set_memset(const char *call, void *exec, void *node, const struct ibx_cuda_memset *set)
{
    struct extension_request e;
    const int rc = ibx_frontend_set_check(set);
    if (rc)
        return rc;
    ibx_frontend_node_begin(&e, IBX_EXT_SET_MEMSET, call, exec, node);
    ibx_layout_put(&e.body, IBX_LAYOUT_MEMSET, set);
    return ibx_frontend_request_make(&e, NULL, 0);
}

int cudaGraphMemsetNodeGetParams(void *node, struct ibx_cuda_memset *set)
{
    struct extension_request e;
    uint8_t bytes[4 * 8 + 2 * 4] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    ibx_frontend_request_begin(&e, IBX_EXT_GET_MEMSET, "cudaGraphMemsetNodeGetParams");
    ibx_put_u64(&e.body, (uintptr_t)node);
    const int rc = set ? ibx_frontend_request_make(&e, bytes, sizeof(bytes))
                       : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc)
        ibx_layout_get(&r, IBX_LAYOUT_MEMSET, set);
    return rc;
}

int cudaGraphMemsetNodeSetParams(void *node, const struct ibx_cuda_memset *set)
{
    return set_memset("cudaGraphMemsetNodeSetParams", NULL, node, set);
}

int cudaGraphExecMemsetNodeSetParams(void *exec, void *node, const struct ibx_cuda_memset *set)
{
    return exec ? set_memset("cudaGraphExecMemsetNodeSetParams", exec, node, set)
                : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

/* ---------------------------------------------------------------------------------- others */

int cudaGraphAddHostNode(void **node, void *graph, void *const *behind, size_t count,
                         const struct host_node *host)
{
    uint64_t queue;
    if (!host || !host->function)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const uint64_t number = ibx_frontend_host_repeated(host->function, host->argument, &queue);
    return number ? add_function(node, graph, behind, count, queue, number)
                  : ibx_frontend_fail(CUDA_NOT_SUPPORTED);
}

int cudaGraphAddEmptyNode(void **node, void *graph, void *const *behind, size_t count)
{
    struct extension_request e;
    int rc;
    return begin(&e, IBX_EXT_NODE_EMPTY, "cudaGraphAddEmptyNode", graph, behind, count, &rc)
               ? end(&e, node)
               : rc;
}

/* Adds a node whose parameter is one handle or address. */
static int add(enum ibx_extension number, const char *call, void **node, const void *graph,
               void *const *behind, size_t count, const void *about)
{
    struct extension_request e;
    int rc;
    if (!begin(&e, number, call, graph, behind, count, &rc))
        return rc;
    ibx_put_u64(&e.body, (uintptr_t)about);
    return end(&e, node);
}

int cudaGraphAddChildGraphNode(void **node, void *graph, void *const *behind, size_t count,
                               void *child)
{
    const int rc =
        add(IBX_EXT_NODE_CHILD, "cudaGraphAddChildGraphNode", node, graph, behind, count, child);
    if (!rc)
        ibx_frontend_objects_share(child, graph);
    return rc;
}

int cudaGraphAddEventRecordNode(void **node, void *graph, void *const *behind, size_t count,
                                void *event)
{
    return add(IBX_EXT_NODE_RECORD, "cudaGraphAddEventRecordNode", node, graph, behind, count,
               event);
}

int cudaGraphAddEventWaitNode(void **node, void *graph, void *const *behind, size_t count,
                              void *event)
{
    return add(IBX_EXT_NODE_WAIT, "cudaGraphAddEventWaitNode", node, graph, behind, count, event);
}

int cudaGraphAddMemFreeNode(void **node, void *graph, void *const *behind, size_t count,
                            void *address)
{
    return add(IBX_EXT_NODE_FREE, "cudaGraphAddMemFreeNode", node, graph, behind, count, address);
}

/* Which devices may use a node's memory, besides its own. */
static int put_accesses(struct ibx_writer *body, const struct memory_access *list, size_t count)
{
    if (count && !list)
        return CUDA_INVALID_VALUE;
    if (count > IBX_EXT_ACCESSES)
        return CUDA_NOT_SUPPORTED;
    for (size_t i = 0; i < count; i++) {
        if (list[i].location.type != CUDA_AT_DEVICE)
            return CUDA_INVALID_VALUE;
        ibx_put_u32(body, (uint32_t)list[i].location.id);
        ibx_put_u32(body, (uint32_t)list[i].flags);
    }
    return CUDA_SUCCESS;
}

int cudaGraphAddMemAllocNode(void **node, void *graph, void *const *behind, size_t count,
                             struct allocation_node *a)
{
    struct extension_request e;
    int rc;
    uint8_t bytes[16] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    if (!node || !a)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    /* Only plain memory of a device is supported. */
    if (a->kind != 1 || a->location != 1 || a->shared_as)
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    if (!begin(&e, IBX_EXT_NODE_ALLOC, "cudaGraphAddMemAllocNode", graph, behind, count, &rc))
        return rc;
    ibx_put_u32(&e.body, (uint32_t)a->device);
    ibx_put_u64(&e.body, a->n);
    if ((rc = put_accesses(&e.body, a->access, a->access_count)))
        return ibx_frontend_fail(rc);
    rc = ibx_frontend_request_make(&e, bytes, sizeof(bytes));
    if (rc)
        return rc;
    *node = (void *)(uintptr_t)ibx_get_u64(&r);
    a->address = (void *)(uintptr_t)ibx_get_u64(&r);
    ibx_frontend_graph_memory(a->address, a->n);
    return CUDA_SUCCESS;
}

int cudaGraphNodeGetType(void *node, int *type)
{
    struct extension_request e;
    uint8_t bytes[4] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    ibx_frontend_request_begin(&e, IBX_EXT_NODE_TYPE, "cudaGraphNodeGetType");
    ibx_put_u64(&e.body, (uintptr_t)node);
    const int rc = type ? ibx_frontend_request_make(&e, bytes, sizeof(bytes))
                        : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc)
        *type = (int)ibx_get_u32(&r);
    return rc;
}

int cudaGraphDestroyNode(void *node)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_NODE_DESTROY, "cudaGraphDestroyNode");
    ibx_put_u64(&e.body, (uintptr_t)node);
    return ibx_frontend_request_make(&e, NULL, 0);
}
