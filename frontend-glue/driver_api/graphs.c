/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Graphs. Nodes and executable graphs are the runtime's, and so are the parameters of most kinds of
 * nodes. The driver's have a context behind them, which is that of the call; only its copies are
 * described in another way.
 */
#include "frontend-glue/driver_api/driver.h"
#include "frontend-glue/preload/graphs/graphs.h"

/* CUDA_KERNEL_NODE_PARAMS; members after the first exist from CUDA 12 on. */
struct kernel_parameters {
    struct kernel_node is;
    const void *kernel;
    void *context;
};

/* Defines a call of that name with these parameters, by the runtime's call: a graph is no
 * context's, but one that is instantiated is. */
#define AS(call, runtime, parameters, ...)                                                         \
    EXPORTED int call parameters                                                                   \
    {                                                                                              \
        return ANYWHERE(runtime(__VA_ARGS__));                                                     \
    }

/* ------------------------------------------------------------------------------- graphs */

AS(cuGraphCreate, cudaGraphCreate, (void **graph, unsigned flags), graph, flags)
AS(cuGraphDestroy, cudaGraphDestroy, (void *graph), graph)
AS(cuGraphClone, cudaGraphClone, (void **clone, void *graph), clone, graph)
AS(cuGraphExecDestroy, cudaGraphExecDestroy, (void *exec), exec)
AS(cuGraphExecGetFlags, cudaGraphExecGetFlags, (void *exec, unsigned long long *flags), exec, flags)
AS(cuGraphExecUpdate_v2, cudaGraphExecUpdate,
   (void *exec, void *graph, struct graph_update *result), exec, graph, result)

EXPORTED int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
    return IN_CONTEXT(cudaGraphInstantiateWithFlags(exec, graph, flags));
}

EXPORTED int cuGraphInstantiateWithParams(void **exec, void *graph,
                                          struct instantiate_parameters *p)
{
    return IN_CONTEXT(cudaGraphInstantiateWithParams(exec, graph, p));
}

EXPORTED int cuGraphUpload(void *exec, void *stream)
{
    return IN_CONTEXT_OF(stream, cudaGraphUpload(exec, stream));
}

EXPORTED int cuGraphLaunch(void *exec, void *stream)
{
    return IN_CONTEXT_OF(stream, cudaGraphLaunch(exec, stream));
}

AS(cuGraphGetNodes, cudaGraphGetNodes, (void *graph, void **nodes, size_t *count), graph, nodes,
   count)
AS(cuGraphGetRootNodes, cudaGraphGetRootNodes, (void *graph, void **nodes, size_t *count), graph,
   nodes, count)
AS(cuGraphDebugDotPrint, cudaGraphDebugDotPrint, (void *graph, const char *path, unsigned flags),
   graph, path, flags)

/* CUDA 11's version, with two outputs for what is wrong. */
EXPORTED int cuGraphExecUpdate(void *exec, void *graph, void **node, int *result)
{
    struct graph_update update = {0};
    const int rc = IN_CONTEXT(cudaGraphExecUpdate(exec, graph, &update));
    if (node)
        *node = update.node;
    if (result)
        *result = update.result;
    return rc;
}

EXPORTED int cuGraphInstantiate_v2(void **exec, void *graph, void **node, char *text, size_t n)
{
    const int rc = IN_CONTEXT(cudaGraphInstantiateWithFlags(exec, graph, 0));
    if (node)
        *node = NULL;
    if (text && n)
        *text = 0;
    return rc;
}

/* ------------------------------------------------------------------------ edges' data */

EXPORTED int cuGraphGetEdges_v2(void *graph, void **from, void **to, void *edges, size_t *count)
{
    return ANYWHERE(cudaGraphGetEdges_v2(graph, from, to, edges, count));
}

EXPORTED int cuGraphNodeGetDependencies_v2(void *node, void **nodes, void *edges, size_t *count)
{
    return ANYWHERE(cudaGraphNodeGetDependencies_v2(node, nodes, edges, count));
}

EXPORTED int cuGraphNodeGetDependentNodes_v2(void *node, void **nodes, void *edges, size_t *count)
{
    return ANYWHERE(cudaGraphNodeGetDependentNodes_v2(node, nodes, edges, count));
}

AS(cuGraphGetEdges, cudaGraphGetEdges_v2, (void *graph, void **from, void **to, size_t *count),
   graph, from, to, NULL, count)
AS(cuGraphNodeGetDependencies, cudaGraphNodeGetDependencies_v2,
   (void *node, void **nodes, size_t *count), node, nodes, NULL, count)
AS(cuGraphNodeGetDependentNodes, cudaGraphNodeGetDependentNodes_v2,
   (void *node, void **nodes, size_t *count), node, nodes, NULL, count)

EXPORTED int cuGraphAddDependencies_v2(void *graph, void *const *from, void *const *to,
                                       const void *edges, size_t count)
{
    return IN_CONTEXT(cudaGraphAddDependencies_v2(graph, from, to, edges, count));
}

EXPORTED int cuGraphAddDependencies(void *graph, void *const *from, void *const *to, size_t count)
{
    return cuGraphAddDependencies_v2(graph, from, to, NULL, count);
}

EXPORTED int cuGraphRemoveDependencies_v2(void *graph, void *const *from, void *const *to,
                                          const void *edges, size_t count)
{
    return IN_CONTEXT(cudaGraphRemoveDependencies_v2(graph, from, to, edges, count));
}

EXPORTED int cuGraphRemoveDependencies(void *graph, void *const *from, void *const *to,
                                       size_t count)
{
    return cuGraphRemoveDependencies_v2(graph, from, to, NULL, count);
}

/* -------------------------------------------------------------------------------- nodes */

AS(cuGraphNodeGetType, cudaGraphNodeGetType, (void *node, int *type), node, type)
AS(cuGraphNodeFindInClone, cudaGraphNodeFindInClone, (void **node, void *original, void *clone),
   node, original, clone)
AS(cuGraphDestroyNode, cudaGraphDestroyNode, (void *node), node)
AS(cuGraphNodeSetEnabled, cudaGraphNodeSetEnabled, (void *exec, void *node, unsigned on), exec,
   node, on)
AS(cuGraphNodeGetEnabled, cudaGraphNodeGetEnabled, (void *exec, void *node, unsigned *on), exec,
   node, on)
AS(cuGraphAddEmptyNode, cudaGraphAddEmptyNode,
   (void **node, void *graph, void *const *behind, size_t count), node, graph, behind, count)
AS(cuGraphAddChildGraphNode, cudaGraphAddChildGraphNode,
   (void **node, void *graph, void *const *behind, size_t count, void *child), node, graph, behind,
   count, child)
AS(cuGraphChildGraphNodeGetGraph, cudaGraphChildGraphNodeGetGraph, (void *node, void **graph), node,
   graph)
AS(cuGraphExecChildGraphNodeSetParams, cudaGraphExecChildGraphNodeSetParams,
   (void *exec, void *node, void *child), exec, node, child)
AS(cuGraphAddHostNode, cudaGraphAddHostNode,
   (void **node, void *graph, void *const *behind, size_t count, const struct host_node *host),
   node, graph, behind, count, host)
AS(cuGraphHostNodeGetParams, cudaGraphHostNodeGetParams, (void *node, struct host_node *host), node,
   host)
AS(cuGraphHostNodeSetParams, cudaGraphHostNodeSetParams, (void *node, const struct host_node *host),
   node, host)
AS(cuGraphExecHostNodeSetParams, cudaGraphExecHostNodeSetParams,
   (void *exec, void *node, const struct host_node *host), exec, node, host)
AS(cuGraphAddEventRecordNode, cudaGraphAddEventRecordNode,
   (void **node, void *graph, void *const *behind, size_t count, void *event), node, graph, behind,
   count, event)
AS(cuGraphAddEventWaitNode, cudaGraphAddEventWaitNode,
   (void **node, void *graph, void *const *behind, size_t count, void *event), node, graph, behind,
   count, event)
AS(cuGraphEventRecordNodeGetEvent, cudaGraphEventRecordNodeGetEvent, (void *node, void **event),
   node, event)
AS(cuGraphEventRecordNodeSetEvent, cudaGraphEventRecordNodeSetEvent, (void *node, void *event),
   node, event)
AS(cuGraphEventWaitNodeGetEvent, cudaGraphEventWaitNodeGetEvent, (void *node, void **event), node,
   event)
AS(cuGraphEventWaitNodeSetEvent, cudaGraphEventWaitNodeSetEvent, (void *node, void *event), node,
   event)
AS(cuGraphExecEventRecordNodeSetEvent, cudaGraphExecEventRecordNodeSetEvent,
   (void *exec, void *node, void *event), exec, node, event)
AS(cuGraphExecEventWaitNodeSetEvent, cudaGraphExecEventWaitNodeSetEvent,
   (void *exec, void *node, void *event), exec, node, event)
AS(cuGraphAddMemAllocNode, cudaGraphAddMemAllocNode,
   (void **node, void *graph, void *const *behind, size_t count,
    struct allocation_node *allocation),
   node, graph, behind, count, allocation)
AS(cuGraphMemAllocNodeGetParams, cudaGraphMemAllocNodeGetParams,
   (void *node, struct allocation_node *allocation), node, allocation)
AS(cuGraphAddMemFreeNode, cudaGraphAddMemFreeNode,
   (void **node, void *graph, void *const *behind, size_t count, uint64_t address), node, graph,
   behind, count, (void *)(uintptr_t)address)
AS(cuGraphMemFreeNodeGetParams, cudaGraphMemFreeNodeGetParams, (void *node, uint64_t *address),
   node, address)
AS(cuGraphConditionalHandleCreate, cudaGraphConditionalHandleCreate,
   (unsigned long long *handle, void *graph, void *context, unsigned value, unsigned flags), handle,
   graph, ((void)context, value), flags)
AS(cuDeviceGraphMemTrim, cudaDeviceGraphMemTrim, (int device), device)
AS(cuDeviceGetGraphMemAttribute, cudaDeviceGetGraphMemAttribute,
   (int device, int attribute, void *value), device, attribute, value)
AS(cuDeviceSetGraphMemAttribute, cudaDeviceSetGraphMemAttribute,
   (int device, int attribute, void *value), device, attribute, value)

/* ------------------------------------------------------------------------------- kernels */

/* A kernel in the runtime's form. */
struct kernel_taken {
    struct kernel_node is;
    struct ibx_driver_arguments unpacked;
};

/* Converts a kernel, which may be a library's instead of a function. end_kernel() is to follow. */
static int take_kernel(struct kernel_taken *k, const struct kernel_parameters *p)
{
    k->unpacked.more = NULL;
    if (!p)
        return CUDA_INVALID_VALUE;
    k->is = p->is;
    k->is.function = k->is.function ? k->is.function : p->kernel;
    if (!ibx_driver_is_packed(k->is.extra))
        return CUDA_SUCCESS;
    if (k->is.arguments || !k->is.function)
        return CUDA_INVALID_VALUE;
    const int rc = ibx_driver_unpack(&k->unpacked, k->is.function, k->is.extra);
    k->is.arguments = k->unpacked.all;
    k->is.extra = NULL;
    return rc;
}

static int end_kernel(struct kernel_taken *k, int rc)
{
    ibx_driver_unpacked(&k->unpacked);
    return rc;
}

static int get_kernel(void *node, struct kernel_parameters *p)
{
    const int rc = p ? cudaGraphKernelNodeGetParams(node, &p->is) : CUDA_INVALID_VALUE;
    if (!rc) {
        p->kernel = NULL;
        p->context = ibx_driver_current();
    }
    return rc;
}

static int add_kernel(void **node, void *graph, void *const *behind, size_t count,
                      const struct kernel_parameters *p)
{
    struct kernel_taken k;
    int rc = take_kernel(&k, p);
    if (!rc)
        rc = cudaGraphAddKernelNode(node, graph, behind, count, &k.is);
    return end_kernel(&k, rc);
}

static int set_kernel(void *exec, void *node, const struct kernel_parameters *p)
{
    struct kernel_taken k;
    int rc = take_kernel(&k, p);
    if (!rc)
        rc = exec ? cudaGraphExecKernelNodeSetParams(exec, node, &k.is)
                  : cudaGraphKernelNodeSetParams(node, &k.is);
    return end_kernel(&k, rc);
}

EXPORTED int cuGraphAddKernelNode_v2(void **node, void *graph, void *const *behind, size_t count,
                                     const struct kernel_parameters *p)
{
    return IN_CONTEXT(add_kernel(node, graph, behind, count, p));
}

EXPORTED int cuGraphKernelNodeGetParams_v2(void *node, struct kernel_parameters *p)
{
    return IN_CONTEXT(get_kernel(node, p));
}

EXPORTED int cuGraphKernelNodeSetParams_v2(void *node, const struct kernel_parameters *p)
{
    return IN_CONTEXT(set_kernel(NULL, node, p));
}

EXPORTED int cuGraphExecKernelNodeSetParams_v2(void *exec, void *node,
                                               const struct kernel_parameters *p)
{
    return IN_CONTEXT(exec ? set_kernel(exec, node, p) : CUDA_INVALID_VALUE);
}

/* CUDA 11's, without the last members. They are what ctypes finds by their plain names. */
static struct kernel_parameters in_newer_form(const struct kernel_node *kernel)
{
    return (struct kernel_parameters){.is = *kernel};
}

static int add_older(void **node, void *graph, void *const *behind, size_t count,
                     const struct kernel_node *kernel)
{
    const struct kernel_parameters p = in_newer_form(kernel);
    return add_kernel(node, graph, behind, count, &p);
}

static int set_older(void *exec, void *node, const struct kernel_node *kernel)
{
    const struct kernel_parameters p = in_newer_form(kernel);
    return set_kernel(exec, node, &p);
}

EXPORTED int cuGraphAddKernelNode(void **node, void *graph, void *const *behind, size_t count,
                                  const struct kernel_node *kernel)
{
    return ANYWHERE(kernel ? add_older(node, graph, behind, count, kernel) : CUDA_INVALID_VALUE);
}

EXPORTED int cuGraphKernelNodeSetParams(void *node, const struct kernel_node *kernel)
{
    return ANYWHERE(kernel ? set_older(NULL, node, kernel) : CUDA_INVALID_VALUE);
}

EXPORTED int cuGraphExecKernelNodeSetParams(void *exec, void *node,
                                            const struct kernel_node *kernel)
{
    return ANYWHERE(exec && kernel ? set_older(exec, node, kernel) : CUDA_INVALID_VALUE);
}

AS(cuGraphKernelNodeGetParams, cudaGraphKernelNodeGetParams,
   (void *node, struct kernel_node *kernel), node, kernel)
AS(cuGraphKernelNodeCopyAttributes, cudaGraphKernelNodeCopyAttributes, (void *to, void *from), to,
   from)
AS(cuGraphKernelNodeGetAttribute, cudaGraphKernelNodeGetAttribute,
   (void *node, int attribute, void *value), node, attribute, value)
AS(cuGraphKernelNodeSetAttribute, cudaGraphKernelNodeSetAttribute,
   (void *node, int attribute, const void *value), node, attribute, value)

/* ------------------------------------------------------------------------ copies, and sets */

/* The result of a call for a node that works in `context`: that or a current one is enough. */
#define FOR_CONTEXT(context, expression)                                                           \
    MADE(ibx_driver_current(), ibx_driver_current() || ibx_driver_is_context(context)              \
                                   ? (expression)                                                  \
                                   : CUDA_INVALID_VALUE)

static int add_copy(void **node, void *graph, void *const *behind, size_t count,
                    const struct ibx_driver_memcpy3d *planes)
{
    struct ibx_cuda_memcpy3d c;
    const int rc = ibx_driver_memcpy3d(&c, planes);
    return rc ? rc : cudaGraphAddMemcpyNode(node, graph, behind, count, &c);
}

static int set_copy(void *exec, void *node, const struct ibx_driver_memcpy3d *planes)
{
    struct ibx_cuda_memcpy3d c;
    const int rc = ibx_driver_memcpy3d(&c, planes);
    if (rc)
        return rc;
    return exec ? cudaGraphExecMemcpyNodeSetParams(exec, node, &c)
                : cudaGraphMemcpyNodeSetParams(node, &c);
}

static int get_copy(void *node, struct ibx_driver_memcpy3d *planes)
{
    struct ibx_cuda_memcpy3d c;
    const int rc = planes ? cudaGraphMemcpyNodeGetParams(node, &c) : CUDA_INVALID_VALUE;
    return rc ? rc : ibx_driver_planes_of(planes, &c);
}

EXPORTED int cuGraphAddMemcpyNode(void **node, void *graph, void *const *behind, size_t count,
                                  const struct ibx_driver_memcpy3d *planes, void *context)
{
    return FOR_CONTEXT(context, add_copy(node, graph, behind, count, planes));
}

EXPORTED int cuGraphMemcpyNodeGetParams(void *node, struct ibx_driver_memcpy3d *planes)
{
    return IN_CONTEXT(get_copy(node, planes));
}

EXPORTED int cuGraphMemcpyNodeSetParams(void *node, const struct ibx_driver_memcpy3d *planes)
{
    return IN_CONTEXT(set_copy(NULL, node, planes));
}

EXPORTED int cuGraphExecMemcpyNodeSetParams(void *exec, void *node,
                                            const struct ibx_driver_memcpy3d *planes, void *context)
{
    (void)context;
    return IN_CONTEXT(exec ? set_copy(exec, node, planes) : CUDA_INVALID_VALUE);
}

EXPORTED int cuGraphAddMemsetNode(void **node, void *graph, void *const *behind, size_t count,
                                  const struct ibx_cuda_memset *set, void *context)
{
    return FOR_CONTEXT(context, cudaGraphAddMemsetNode(node, graph, behind, count, set));
}

AS(cuGraphMemsetNodeGetParams, cudaGraphMemsetNodeGetParams,
   (void *node, struct ibx_cuda_memset *set), node, set)
AS(cuGraphMemsetNodeSetParams, cudaGraphMemsetNodeSetParams,
   (void *node, const struct ibx_cuda_memset *set), node, set)

EXPORTED int cuGraphExecMemsetNodeSetParams(void *exec, void *node,
                                            const struct ibx_cuda_memset *set, void *context)
{
    (void)context;
    return IN_CONTEXT(cudaGraphExecMemsetNodeSetParams(exec, node, set));
}

/* ---------------------------------------------------------------------- nodes of any kind */

/* CUgraphNodeParams of a copy, which is not what the runtime has. */
struct any_copy {
    int type, reserved[3];
    int flags, more;
    void *context;
    struct ibx_driver_memcpy3d planes;
};

/* Converts parameters to the runtime's form. CUDA_CONDITIONAL_NODE_PARAMS has the context last, and
 * the graphs before it. end_kernel() is to follow. */
static int as_runtime(struct node_parameters *to, const struct node_parameters *from,
                      struct kernel_taken *kernel)
{
    kernel->unpacked.more = NULL;
    *to = *from;
    if (from->type == IBX_FRONTEND_NODE_MEMCPY) {
        struct any_copy any;
        memcpy(&any, from, sizeof(any));
        memset(&to->of, 0, sizeof(to->of));
        return ibx_driver_memcpy3d(&to->of.copy.parameters, &any.planes);
    }
    if (from->type == IBX_FRONTEND_NODE_KERNEL) {
        struct kernel_parameters k;
        memcpy(&k, &from->of, sizeof(k));
        const int rc = take_kernel(kernel, &k);
        to->of.kernel = kernel->is;
        return rc;
    }
    return CUDA_SUCCESS;
}

static int add_node(void **node, void *graph, void *const *behind, const void *edges, size_t count,
                    struct node_parameters *p)
{
    struct node_parameters is;
    struct kernel_taken kernel;
    if (!p)
        return CUDA_INVALID_VALUE;
    int rc = as_runtime(&is, p, &kernel);
    if (!rc)
        rc = cudaGraphAddNode_v2(node, graph, behind, edges, count, &is);
    if (!rc && (p->type == IBX_FRONTEND_NODE_ALLOCATION ||
                p->type == IBX_FRONTEND_NODE_CONDITIONAL)) /* it has outputs */
        *p = is;
    return end_kernel(&kernel, rc);
}

static int set_node(void *exec, void *node, const struct node_parameters *p)
{
    struct node_parameters is;
    struct kernel_taken kernel;
    if (!p)
        return CUDA_INVALID_VALUE;
    int rc = as_runtime(&is, p, &kernel);
    if (!rc)
        rc = exec ? cudaGraphExecNodeSetParams(exec, node, &is) : cudaGraphNodeSetParams(node, &is);
    return end_kernel(&kernel, rc);
}

EXPORTED int cuGraphAddNode_v2(void **node, void *graph, void *const *behind, const void *edges,
                               size_t count, struct node_parameters *p)
{
    return IN_CONTEXT(add_node(node, graph, behind, edges, count, p));
}

EXPORTED int cuGraphAddNode(void **node, void *graph, void *const *behind, size_t count,
                            struct node_parameters *p)
{
    return IN_CONTEXT(add_node(node, graph, behind, NULL, count, p));
}

EXPORTED int cuGraphNodeSetParams(void *node, const struct node_parameters *p)
{
    return IN_CONTEXT(set_node(NULL, node, p));
}

EXPORTED int cuGraphExecNodeSetParams(void *exec, void *node, const struct node_parameters *p)
{
    return IN_CONTEXT(exec ? set_node(exec, node, p) : CUDA_INVALID_VALUE);
}

/* ------------------------------------------------------------------- objects of the program's */

AS(cuUserObjectCreate, cudaUserObjectCreate,
   (void **object, void *what, void (*destroy)(void *what), unsigned references, unsigned flags),
   object, what, destroy, references, flags)
AS(cuUserObjectRetain, cudaUserObjectRetain, (void *object, unsigned count), object, count)
AS(cuUserObjectRelease, cudaUserObjectRelease, (void *object, unsigned count), object, count)
AS(cuGraphRetainUserObject, cudaGraphRetainUserObject,
   (void *graph, void *object, unsigned count, unsigned flags), graph, object, count, flags)
AS(cuGraphReleaseUserObject, cudaGraphReleaseUserObject,
   (void *graph, void *object, unsigned count), graph, object, count)

/* cuda.h's cuGraphInstantiate is cuGraphInstantiateWithFlags; before CUDA 12 it was the older one.
 */
SAME_AS(cuGraphInstantiate, cuGraphInstantiate_v2)
