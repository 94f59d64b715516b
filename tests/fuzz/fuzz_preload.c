/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA calls of an application whose back end answers anything. A call writes only what its
 * caller has named, and each call ends. All named memory is without a spare byte.
 *
 * fake_frontend.c replaces the plugin and GVirtuS's front end. Input, in this order:
 *
 * - u8 n, and n steps of two bytes: a call and its arguments, see run_step();
 * - the answers, see fake_frontend.h. */
#include "frontend-glue/preload/memory/device_objects.h"
#include "frontend-glue/preload/preload.h"
#include "tests/fuzz/fake_frontend.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HANDLES 4u

static void *handles[HANDLES]; /* returned by calls, or invented by the program */
static void *named[16];        /* what a call of this step may write to */
static unsigned named_count;
static void *executables[64];
static unsigned executable_count;

/* Memory for n bytes, which is freed after the step. */
static void *out(size_t n)
{
    require(named_count < 16);
    void *memory = malloc(n ? n : 1);
    require(memory);
    memset(memory, 0, n ? n : 1);
    return named[named_count++] = memory;
}

static void *handle(unsigned argument)
{
    return handles[argument % HANDLES];
}

/* Lets a later step use what the call has returned, as a program would. */
static int keep(int rc, void **made, unsigned argument)
{
    if (!rc)
        handles[argument % HANDLES] = *made;
    return rc;
}

static const struct ibx_cuda_channel channel = {32, 0, 0, 0, 0};

/* A copy from an array or memory of the device: two rows or, without a pitch, one. */
static struct ibx_cuda_memcpy3d copy_of(unsigned argument)
{
    const bool two = argument & 128;
    return (struct ibx_cuda_memcpy3d){.from_array = argument & 1 ? handle(argument >> 1) : NULL,
                                      .from = {argument & 1 ? NULL : handle(argument), 64, 64, 2},
                                      .to = {out(two ? 128 : 64), two ? 64 : 0, 64, 2},
                                      .extent = {argument & 1 ? 16 : 64, two ? 2 : 1, 1},
                                      .kind = CUDA_MEMCPY_FROM_DEVICE};
}

static void called(void *argument)
{
    (void)argument;
}

static int list_nodes(unsigned which, unsigned argument)
{
    size_t *count = out(sizeof(*count));
    void **one = argument & 16 ? out((argument >> 5) * sizeof(*one)) : NULL;
    void **other = one ? out((argument >> 5) * sizeof(*other)) : NULL;
    uint8_t *edges = one ? out((argument >> 5) * 8) : NULL;
    *count = argument >> 5;
    switch (which) {
    case 0:
        return cudaGraphGetNodes(handle(argument), one, count);
    case 1:
        return cudaGraphGetRootNodes(handle(argument), one, count);
    case 2:
        return cudaGraphNodeGetDependencies_v2(handle(argument), one, edges, count);
    case 3:
        return cudaGraphNodeGetDependentNodes_v2(handle(argument), one, edges, count);
    default:
        return cudaGraphGetEdges_v2(handle(argument), one, other, edges, count);
    }
}

static int add_node(unsigned which, unsigned argument)
{
    void **node = out(sizeof(*node)), *graph = handle(argument >> 2);
    const struct host_node host = {called, graph};
    const struct ibx_cuda_memset set = {graph, 64, 1, 4, 16, 1};
    const struct ibx_cuda_memcpy3d copy = copy_of(argument & ~1u);
    struct node_parameters p = {.type = IBX_FRONTEND_NODE_CONDITIONAL};
    struct allocation_node a = {.kind = 1, .location = 1, .n = 64};
    switch (which) {
    case 0:
        return cudaGraphAddHostNode(node, graph, handles, argument % HANDLES, &host);
    case 1:
        return cudaGraphAddMemsetNode(node, graph, handles, 1, &set);
    case 2:
        return cudaGraphAddMemcpyNode(node, graph, handles, 1, &copy);
    case 3:
        return cudaGraphAddMemAllocNode(node, graph, handles, 1, &a);
    case 4:
        return cudaGraphAddChildGraphNode(node, graph, handles, 1, handle(argument));
    default:
        p.of.conditional.size = 1 + argument % 40;
        return cudaGraphAddNode_v2(node, graph, handles, NULL, 1, &p);
    }
}

static int ask_node(unsigned which, unsigned argument)
{
    struct kernel_node *kernel = out(sizeof(*kernel));
    void *node = handle(argument);
    int rc;
    switch (which) {
    case 0:
        rc = cudaGraphKernelNodeGetParams(node, kernel);
        for (unsigned i = 0; !rc && kernel->arguments && i < 2; i++)
            memcpy(out(4), kernel->arguments[i], 4);
        return rc;
    case 1:
        return cudaGraphKernelNodeGetAttribute(node, 1, out(IBX_EXT_ATTRIBUTE));
    case 2:
        return cudaGraphMemcpyNodeGetParams(node, out(sizeof(struct ibx_cuda_memcpy3d)));
    case 3:
        return cudaGraphMemsetNodeGetParams(node, out(sizeof(struct ibx_cuda_memset)));
    case 4:
        return cudaGraphHostNodeGetParams(node, out(sizeof(struct host_node)));
    case 5:
        return cudaGraphMemAllocNodeGetParams(node, out(sizeof(struct allocation_node)));
    case 6:
        return cudaGraphMemFreeNodeGetParams(node, out(sizeof(void *)));
    case 7:
        return cudaGraphEventWaitNodeGetEvent(node, out(sizeof(void *)));
    case 8:
        return cudaGraphNodeGetType(node, out(sizeof(int)));
    case 15:
        return cudaGraphNodeGetParams(node, out(sizeof(struct node_parameters)));
    default:
        return keep(cudaGraphChildGraphNodeGetGraph(node, (void **)kernel), (void **)kernel,
                    argument >> 2);
    }
}

static int call_graph(unsigned which, unsigned argument)
{
    void **made = out(sizeof(*made)), *graph = handle(argument), *other = handle(argument >> 2);
    const struct host_node host = {called, graph};
    int rc;
    switch (which) {
    case 0:
        return keep(cudaGraphCreate(made, 0), made, argument);
    case 1:
        return keep(cudaGraphClone(made, graph), made, argument >> 2);
    case 2:
        rc = executable_count < 64 ? cudaGraphInstantiate(made, graph, 0) : -1;
        if (!rc)
            executables[executable_count++] = *made;
        return keep(rc, made, argument >> 2);
    case 3:
        return cudaGraphExecUpdate(graph, other, out(sizeof(struct graph_update)));
    case 4:
        return cudaGraphLaunch(graph, other);
    case 5:
        return cudaGraphDebugDotPrint(graph, "/dev/null", 0);
    case 6:
        return cudaGraphDestroy(graph);
    case 7:
        return cudaGraphExecDestroy(graph);
    case 8:
        return cudaGraphExecHostNodeSetParams(graph, other, &host);
    case 9:
        return cudaGraphHostNodeSetParams(graph, &host);
    default:
        return cudaGraphExecGetFlags(graph, (unsigned long long *)made);
    }
}

static int call_capture(unsigned which, unsigned argument)
{
    void *stream = handle(argument), **graph = out(sizeof(*graph));
    void *const **behind = out(sizeof(*behind));
    size_t *count = out(sizeof(*count));
    int rc, *status = out(sizeof(*status));
    switch (which) {
    case 0:
        return cudaStreamBeginCapture(stream, (int)(argument >> 2) % 3);
    case 1:
        return keep(cudaStreamEndCapture(stream, graph), graph, argument >> 2);
    case 2:
        rc = cudaStreamGetCaptureInfo_v2(stream, status, out(8), graph, behind, count);
        if (!rc && *count)
            memcpy(out(*count * sizeof(void *)), *behind, *count * sizeof(void *));
        return rc;
    default:
        return cudaStreamUpdateCaptureDependencies_v2(stream, handles, NULL, argument % HANDLES,
                                                      argument >> 7);
    }
}

static int call_array(unsigned which, unsigned argument)
{
    void **made = out(sizeof(*made)), *array = handle(argument);
    const struct ibx_cuda_extent extent = {16, 4, argument >> 6};
    const struct ibx_cuda_memcpy3d copy = copy_of(argument | 1);
    const struct ibx_cuda_resource resource = {.kind = (int)(argument >> 2) % 5,
                                               .of = {.array = array}};
    const struct ibx_cuda_texture how = {.words = {0}};
    switch (which) {
    case 0:
        return keep(cudaMalloc3DArray(made, &channel, extent, 0), made, argument);
    case 1:
        return keep(cudaMallocMipmappedArray(made, &channel, extent, 3, 0), made, argument);
    case 2:
        return keep(cudaGetMipmappedArrayLevel(made, array, (argument >> 2) % 40), made,
                    argument >> 4);
    case 3:
        return cudaArrayGetInfo(out(sizeof(channel)), out(sizeof(extent)), out(4), array);
    case 4:
        return cudaMemcpy3D(&copy);
    case 5:
        return cudaMemcpy2DFromArray(out(64), 16, array, 0, 0, 16, 4, CUDA_MEMCPY_FROM_DEVICE);
    case 6:
        return argument & 64 ? cudaFreeArray(array) : cudaFreeMipmappedArray(array);
    case 7:
        return keep(cudaCreateTextureObject((void *)made, &resource, &how, NULL), made, argument);
    case 8:
        return cudaGetTextureObjectResourceDesc(out(sizeof(resource)), (uintptr_t)array);
    default:
        return cudaGetTextureObjectTextureDesc(out(sizeof(how)), (uintptr_t)array);
    }
}

static int call_memory(unsigned which, unsigned argument)
{
    void **made = out(sizeof(*made)), *address = handle(argument);
    struct ipc_handle *ipc = out(sizeof(*ipc));
    const struct memory_location location = {1, 0};
    switch (which) {
    case 0:
        return keep(cudaMallocAsync(made, 64, address), made, argument >> 2);
    case 1:
        return cudaFreeAsync(address, handle(argument >> 2));
    case 2:
        return cudaMemPoolGetAttribute(address, (int)(argument >> 2) % 10, out(8));
    case 3:
        return cudaIpcGetMemHandle(ipc, address);
    case 4:
        return keep(cudaIpcOpenMemHandle(made, *ipc, IPC_LAZY_PEER_ACCESS), made, argument);
    case 5:
        return cudaIpcCloseMemHandle(address);
    case 6:
        return keep(cudaIpcOpenEventHandle(made, *ipc), made, argument);
    case 7:
        return cudaEventDestroy(address);
    case 8:
        return cudaMemPoolImportPointer(made, address, ipc);
    case 9:
        return cudaMemPoolExportPointer(ipc, address);
    default:
        return cudaMemPoolGetAccess(out(4), address, &location);
    }
}

static int ask(unsigned which, unsigned argument)
{
    switch (which) {
    case 0:
        return cudaStreamGetAttribute(handle(argument), 1, out(IBX_EXT_ATTRIBUTE));
    case 1:
        return cudaStreamGetFlags(handle(argument), out(4));
    case 2:
        return cudaDeviceGetLimit(out(sizeof(size_t)), (int)argument);
    case 3:
        return cudaStreamGetId(handle(argument), out(8));
    case 4:
        return cudaFuncGetParamInfo(called, argument, out(8), out(8));
    case 5:
        return cudaDeviceGetByPCIBusId(out(4), "0000:01:00.0");
    case 6:
        return cudaDeviceGetTexture1DLinearMaxWidth(out(8), &channel, 0);
    case 15:
        return cudaFuncGetParamCount(called, out(sizeof(size_t)));
    default:
        return cudaStreamGetPriority(handle(argument), out(4));
    }
}

static void run_step(uint8_t what, uint8_t argument)
{
    static int (*const kinds[8])(unsigned which, unsigned argument) = {
        list_nodes, add_node, ask_node, call_graph, call_capture, call_array, call_memory, ask};
    kinds[what & 7](what >> 3 & 15, argument); /* an error may be any number */
    while (named_count)
        free(named[--named_count]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned count;
    const uint8_t *steps = fake_frontend_steps(data, size, 2, &count);
    if (!steps)
        return 0;
    for (unsigned i = 0; i < HANDLES; i++)
        handles[i] = (void *)(uintptr_t)(0x1000 * (i + 1));
    for (unsigned i = 0; i < count; i++)
        run_step(steps[2 * i], steps[2 * i + 1]);
    /* Like a program that continues: nothing of this input is kept. */
    fake_frontend_begin(ibx_reader_of(NULL, 0));
    while (executable_count)
        cudaGraphExecDestroy(executables[--executable_count]);
    require(!cudaDeviceReset());
    return 0;
}
