// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The names of CUDA's runtime: a program that is linked with -z now does not start if one that it
// refers to anywhere is missing. And names that it looks up in libraries of its host.
#include "tests/gvirtus/application.h"

#include <cstdlib>

namespace
{

// What libcudart.so.13 exports and GVirtuS (G5) does not, without names that only CUDA's own code
// calls.
const char *const names[] = {
    "__cudaGetKernel",
    "__cudaLaunchKernel",
    "__cudaLaunchKernel_ptsz",
    "__cudaRegisterManagedVar",
    "cudaArrayGetInfo",
    "cudaArrayGetMemoryRequirements",
    "cudaArrayGetPlane",
    "cudaArrayGetSparseProperties",
    "cudaCreateSurfaceObject",
    "cudaCtxResetPersistingL2Cache",
    "cudaDestroyExternalMemory",
    "cudaDestroyExternalSemaphore",
    "cudaDestroySurfaceObject",
    "cudaDestroyTextureObject",
    "cudaDeviceFlushGPUDirectRDMAWrites",
    "cudaDeviceGetByPCIBusId",
    "cudaDeviceGetCacheConfig",
    "cudaDeviceGetGraphMemAttribute",
    "cudaDeviceGetHostAtomicCapabilities",
    "cudaDeviceGetLimit",
    "cudaDeviceGetMemPool",
    "cudaDeviceGetNvSciSyncAttributes",
    "cudaDeviceGetP2PAtomicCapabilities",
    "cudaDeviceGetP2PAttribute",
    "cudaDeviceGetSharedMemConfig",
    "cudaDeviceGetTexture1DLinearMaxWidth",
    "cudaDeviceGraphMemTrim",
    "cudaDeviceRegisterAsyncNotification",
    "cudaDeviceSetGraphMemAttribute",
    "cudaDeviceSetMemPool",
    "cudaDeviceSetSharedMemConfig",
    "cudaDeviceUnregisterAsyncNotification",
    "cudaEGLStreamConsumerAcquireFrame",
    "cudaEGLStreamConsumerConnect",
    "cudaEGLStreamConsumerConnectWithFlags",
    "cudaEGLStreamConsumerDisconnect",
    "cudaEGLStreamConsumerReleaseFrame",
    "cudaEGLStreamProducerConnect",
    "cudaEGLStreamProducerDisconnect",
    "cudaEGLStreamProducerPresentFrame",
    "cudaEGLStreamProducerReturnFrame",
    "cudaEventCreateFromEGLSync",
    "cudaEventRecordWithFlags",
    "cudaEventRecordWithFlags_ptsz",
    "cudaEventRecord_ptsz",
    "cudaExternalMemoryGetMappedBuffer",
    "cudaExternalMemoryGetMappedMipmappedArray",
    "cudaFreeAsync_ptsz",
    "cudaFreeMipmappedArray",
    "cudaFuncGetName",
    "cudaFuncGetParamInfo",
    "cudaFuncSetSharedMemConfig",
    "cudaGLGetDevices",
    "cudaGetDeviceFlags",
    "cudaGetDriverEntryPointByVersion",
    "cudaGetDriverEntryPointByVersion_ptsz",
    "cudaGetDriverEntryPoint_ptsz",
    "cudaGetExportTable",
    "cudaGetFuncBySymbol",
    "cudaGetKernel",
    "cudaGetMipmappedArrayLevel",
    "cudaGetSurfaceObjectResourceDesc",
    "cudaGetTextureObjectResourceDesc",
    "cudaGetTextureObjectResourceViewDesc",
    "cudaGetTextureObjectTextureDesc",
    "cudaGraphAddChildGraphNode",
    "cudaGraphAddDependencies",
    "cudaGraphAddEmptyNode",
    "cudaGraphAddEventRecordNode",
    "cudaGraphAddEventWaitNode",
    "cudaGraphAddExternalSemaphoresSignalNode",
    "cudaGraphAddExternalSemaphoresWaitNode",
    "cudaGraphAddHostNode",
    "cudaGraphAddKernelNode",
    "cudaGraphAddMemAllocNode",
    "cudaGraphAddMemFreeNode",
    "cudaGraphAddMemcpyNode",
    "cudaGraphAddMemcpyNode1D",
    "cudaGraphAddMemcpyNodeFromSymbol",
    "cudaGraphAddMemcpyNodeToSymbol",
    "cudaGraphAddMemsetNode",
    "cudaGraphAddNode",
    "cudaGraphChildGraphNodeGetGraph",
    "cudaGraphClone",
    "cudaGraphConditionalHandleCreate",
    "cudaGraphDestroyNode",
    "cudaGraphEventRecordNodeGetEvent",
    "cudaGraphEventRecordNodeSetEvent",
    "cudaGraphEventWaitNodeGetEvent",
    "cudaGraphEventWaitNodeSetEvent",
    "cudaGraphExecChildGraphNodeSetParams",
    "cudaGraphExecEventRecordNodeSetEvent",
    "cudaGraphExecEventWaitNodeSetEvent",
    "cudaGraphExecExternalSemaphoresSignalNodeSetParams",
    "cudaGraphExecExternalSemaphoresWaitNodeSetParams",
    "cudaGraphExecGetFlags",
    "cudaGraphExecHostNodeSetParams",
    "cudaGraphExecKernelNodeSetParams",
    "cudaGraphExecMemcpyNodeSetParams",
    "cudaGraphExecMemcpyNodeSetParams1D",
    "cudaGraphExecMemcpyNodeSetParamsFromSymbol",
    "cudaGraphExecMemcpyNodeSetParamsToSymbol",
    "cudaGraphExecMemsetNodeSetParams",
    "cudaGraphExecNodeSetParams",
    "cudaGraphExecUpdate",
    "cudaGraphExternalSemaphoresSignalNodeGetParams",
    "cudaGraphExternalSemaphoresSignalNodeSetParams",
    "cudaGraphExternalSemaphoresWaitNodeGetParams",
    "cudaGraphExternalSemaphoresWaitNodeSetParams",
    "cudaGraphGetEdges",
    "cudaGraphGetRootNodes",
    "cudaGraphHostNodeGetParams",
    "cudaGraphHostNodeSetParams",
    "cudaGraphInstantiateWithParams",
    "cudaGraphInstantiateWithParams_ptsz",
    "cudaGraphKernelNodeCopyAttributes",
    "cudaGraphKernelNodeGetAttribute",
    "cudaGraphKernelNodeGetParams",
    "cudaGraphKernelNodeSetAttribute",
    "cudaGraphKernelNodeSetParams",
    "cudaGraphLaunch_ptsz",
    "cudaGraphMemAllocNodeGetParams",
    "cudaGraphMemFreeNodeGetParams",
    "cudaGraphMemcpyNodeGetParams",
    "cudaGraphMemcpyNodeSetParams",
    "cudaGraphMemcpyNodeSetParams1D",
    "cudaGraphMemcpyNodeSetParamsFromSymbol",
    "cudaGraphMemcpyNodeSetParamsToSymbol",
    "cudaGraphMemsetNodeGetParams",
    "cudaGraphMemsetNodeSetParams",
    "cudaGraphNodeFindInClone",
    "cudaGraphNodeGetDependencies",
    "cudaGraphNodeGetDependentNodes",
    "cudaGraphNodeGetEnabled",
    "cudaGraphNodeGetType",
    "cudaGraphNodeSetEnabled",
    "cudaGraphNodeSetParams",
    "cudaGraphReleaseUserObject",
    "cudaGraphRemoveDependencies",
    "cudaGraphRetainUserObject",
    "cudaGraphUpload",
    "cudaGraphUpload_ptsz",
    "cudaGraphicsEGLRegisterImage",
    "cudaGraphicsGLRegisterImage",
    "cudaGraphicsResourceGetMappedEglFrame",
    "cudaGraphicsResourceGetMappedMipmappedArray",
    "cudaGraphicsSubResourceGetMappedArray",
    "cudaGraphicsVDPAURegisterOutputSurface",
    "cudaGraphicsVDPAURegisterVideoSurface",
    "cudaImportExternalMemory",
    "cudaImportExternalSemaphore",
    "cudaInitDevice",
    "cudaKernelSetAttributeForDevice",
    "cudaLaunchCooperativeKernel",
    "cudaLaunchCooperativeKernel_ptsz",
    "cudaLaunchHostFunc_ptsz",
    "cudaLaunchKernelExC_ptsz",
    "cudaLaunchKernel_ptsz",
    "cudaLibraryEnumerateKernels",
    "cudaLibraryGetGlobal",
    "cudaLibraryGetKernel",
    "cudaLibraryGetKernelCount",
    "cudaLibraryGetManaged",
    "cudaLibraryGetUnifiedFunction",
    "cudaLibraryLoadData",
    "cudaLibraryLoadFromFile",
    "cudaLibraryUnload",
    "cudaLogsCurrent",
    "cudaLogsDumpToFile",
    "cudaLogsDumpToMemory",
    "cudaLogsRegisterCallback",
    "cudaLogsUnregisterCallback",
    "cudaMallocAsync_ptsz",
    "cudaMallocFromPoolAsync",
    "cudaMallocFromPoolAsync_ptsz",
    "cudaMallocMipmappedArray",
    "cudaMemAdvise",
    "cudaMemDiscardAndPrefetchBatchAsync",
    "cudaMemDiscardAndPrefetchBatchAsync_ptsz",
    "cudaMemDiscardBatchAsync",
    "cudaMemDiscardBatchAsync_ptsz",
    "cudaMemGetDefaultMemPool",
    "cudaMemGetMemPool",
    "cudaMemPoolExportPointer",
    "cudaMemPoolExportToShareableHandle",
    "cudaMemPoolGetAccess",
    "cudaMemPoolImportFromShareableHandle",
    "cudaMemPoolImportPointer",
    "cudaMemPrefetchAsync",
    "cudaMemPrefetchAsync_ptsz",
    "cudaMemPrefetchBatchAsync",
    "cudaMemPrefetchBatchAsync_ptsz",
    "cudaMemRangeGetAttribute",
    "cudaMemRangeGetAttributes",
    "cudaMemSetMemPool",
    "cudaMemcpy2DArrayToArray_ptds",
    "cudaMemcpy2DAsync_ptsz",
    "cudaMemcpy2DFromArrayAsync_ptsz",
    "cudaMemcpy2DFromArray_ptds",
    "cudaMemcpy2DToArrayAsync_ptsz",
    "cudaMemcpy2DToArray_ptds",
    "cudaMemcpy2D_ptds",
    "cudaMemcpy3DAsync_ptsz",
    "cudaMemcpy3DBatchAsync",
    "cudaMemcpy3DBatchAsync_ptsz",
    "cudaMemcpy3DPeer",
    "cudaMemcpy3DPeerAsync",
    "cudaMemcpy3DPeerAsync_ptsz",
    "cudaMemcpy3DPeer_ptds",
    "cudaMemcpy3D_ptds",
    "cudaMemcpyArrayToArray_ptds",
    "cudaMemcpyAsync_ptsz",
    "cudaMemcpyBatchAsync",
    "cudaMemcpyBatchAsync_ptsz",
    "cudaMemcpyFromArrayAsync_ptsz",
    "cudaMemcpyFromArray_ptds",
    "cudaMemcpyFromSymbolAsync_ptsz",
    "cudaMemcpyFromSymbol_ptds",
    "cudaMemcpyPeer",
    "cudaMemcpyToArrayAsync_ptsz",
    "cudaMemcpyToArray_ptds",
    "cudaMemcpyToSymbolAsync_ptsz",
    "cudaMemcpyToSymbol_ptds",
    "cudaMemcpy_ptds",
    "cudaMemset2DAsync_ptsz",
    "cudaMemset2D_ptds",
    "cudaMemset3DAsync",
    "cudaMemset3DAsync_ptsz",
    "cudaMemset3D_ptds",
    "cudaMemsetAsync_ptsz",
    "cudaMemset_ptds",
    "cudaMipmappedArrayGetMemoryRequirements",
    "cudaMipmappedArrayGetSparseProperties",
    "cudaOccupancyAvailableDynamicSMemPerBlock",
    "cudaOccupancyMaxActiveClusters",
    "cudaOccupancyMaxPotentialClusterSize",
    "cudaSignalExternalSemaphoresAsync",
    "cudaSignalExternalSemaphoresAsync_ptsz",
    "cudaStreamAddCallback_ptsz",
    "cudaStreamAttachMemAsync",
    "cudaStreamAttachMemAsync_ptsz",
    "cudaStreamBeginCaptureToGraph",
    "cudaStreamBeginCaptureToGraph_ptsz",
    "cudaStreamBeginCapture_ptsz",
    "cudaStreamCopyAttributes",
    "cudaStreamCopyAttributes_ptsz",
    "cudaStreamEndCapture_ptsz",
    "cudaStreamGetAttribute",
    "cudaStreamGetAttribute_ptsz",
    "cudaStreamGetCaptureInfo_ptsz",
    "cudaStreamGetCaptureInfo_v2",
    "cudaStreamGetCaptureInfo_v2_ptsz",
    "cudaStreamGetCaptureInfo_v3",
    "cudaStreamGetCaptureInfo_v3_ptsz",
    "cudaStreamGetDevice",
    "cudaStreamGetDevice_ptsz",
    "cudaStreamGetFlags",
    "cudaStreamGetFlags_ptsz",
    "cudaStreamGetId",
    "cudaStreamGetId_ptsz",
    "cudaStreamGetPriority_ptsz",
    "cudaStreamIsCapturing_ptsz",
    "cudaStreamQuery_ptsz",
    "cudaStreamSetAttribute",
    "cudaStreamSetAttribute_ptsz",
    "cudaStreamSynchronize_ptsz",
    "cudaStreamUpdateCaptureDependencies",
    "cudaStreamUpdateCaptureDependencies_ptsz",
    "cudaStreamWaitEvent_ptsz",
    "cudaUserObjectCreate",
    "cudaUserObjectRelease",
    "cudaUserObjectRetain",
    "cudaVDPAUGetDevice",
    "cudaVDPAUSetVDPAUDevice",
    "cudaWaitExternalSemaphoresAsync",
    "cudaWaitExternalSemaphoresAsync_ptsz",
};

// ... and what libcudart.so.12 (12.8) exports besides, with what its header calls by another name.
const char *const names_of_12[] = {
    "cudaEventElapsedTime_v2",
    "cudaGetDeviceProperties_v2",
    "cudaGraphAddDependencies_v2",
    "cudaGraphAddNode_v2",
    "cudaGraphGetEdges_v2",
    "cudaGraphNodeGetDependencies_v2",
    "cudaGraphNodeGetDependentNodes_v2",
    "cudaGraphRemoveDependencies_v2",
    "cudaLaunchCooperativeKernelMultiDevice",
    "cudaMemAdvise_v2",
    "cudaMemPrefetchAsync_v2",
    "cudaMemPrefetchAsync_v2_ptsz",
    "cudaSignalExternalSemaphoresAsync_v2",
    "cudaSignalExternalSemaphoresAsync_v2_ptsz",
    "cudaStreamUpdateCaptureDependencies_v2",
    "cudaStreamUpdateCaptureDependencies_v2_ptsz",
    "cudaThreadGetCacheConfig",
    "cudaThreadGetLimit",
    "cudaThreadSetCacheConfig",
    "cudaThreadSetLimit",
    "cudaWaitExternalSemaphoresAsync_v2",
    "cudaWaitExternalSemaphoresAsync_v2_ptsz",
};

// ... and what CUDA 13.1 to 13.3 have added.
const char *const names_since_13[] = {
    "cudaDevResourceGenerateDesc",
    "cudaDevSmResourceSplit",
    "cudaDevSmResourceSplitByCount",
    "cudaDeviceGetDevResource",
    "cudaDeviceGetExecutionCtx",
    "cudaExecutionCtxDestroy",
    "cudaExecutionCtxGetDevResource",
    "cudaExecutionCtxGetDevice",
    "cudaExecutionCtxGetId",
    "cudaExecutionCtxRecordEvent",
    "cudaExecutionCtxStreamCreate",
    "cudaExecutionCtxSynchronize",
    "cudaExecutionCtxWaitEvent",
    "cudaFuncGetParamCount",
    "cudaGraphConditionalHandleCreate_v2",
    "cudaGraphExecGetId",
    "cudaGraphGetId",
    "cudaGraphNodeGetContainingGraph",
    "cudaGraphNodeGetLocalId",
    "cudaGraphNodeGetParams",
    "cudaGraphNodeGetToolsId",
    "cudaGreenCtxCreate",
    "cudaLaunchHostFunc_v2",
    "cudaLaunchHostFunc_v2_ptsz",
    "cudaMemcpy3DWithAttributesAsync",
    "cudaMemcpy3DWithAttributesAsync_ptsz",
    "cudaMemcpyWithAttributesAsync",
    "cudaMemcpyWithAttributesAsync_ptsz",
    "cudaStreamBeginRecaptureToGraph",
    "cudaStreamGetDevResource",
};

template <std::size_t n> unsigned missing(const char *const (&all)[n])
{
    unsigned count = 0;
    for (const char *name : all) {
        if (dlsym(RTLD_DEFAULT, name))
            continue;
        std::fprintf(stderr, "%s is missing\n", name);
        count++;
    }
    return count;
}

} // namespace

bool names_of_runtime()
{
    return HOLDS(!missing(names) && !missing(names_of_12) && !missing(names_since_13));
}

// A call that does not exist for a remote GPU says so, once.
bool absent()
{
    using Import = int(void **, const void *);
    for (int i = 0; i < 2; i++) {
        REQUIRE(preloaded<Import>("cudaImportExternalMemory")(nullptr, nullptr) == 801);
        REQUIRE(cudaGetLastError() == 801 && cudaGetLastError() == 0);
    }
    REQUIRE(preloaded<Import>("cudaImportExternalSemaphore")(nullptr, nullptr) == 801);
    REQUIRE(preloaded<int()>("cudaThreadSynchronize")() == 0);
    // The driver's functions are the preload's; it is no error if there is no function of a name.
    using Find = int(const char *, void **, unsigned long long, int *);
    using FindOf = int(const char *, void **, unsigned, unsigned long long, int *);
    void *function = &function;
    int status = 9;
    REQUIRE(preloaded<Find>("cudaGetDriverEntryPoint")("cuMemAlloc", &function, 0, &status) == 0);
    REQUIRE(function == dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") && status == 0);
    REQUIRE(preloaded<Find>("cudaGetDriverEntryPoint")("cuGreenCtxWaitEvent", &function, 0,
                                                       &status) == 0);
    REQUIRE(!function && status == 1);
    function = &function;
    REQUIRE(preloaded<FindOf>("cudaGetDriverEntryPointByVersion")("cuGLInit", &function, 12000, 0,
                                                                  nullptr) == 0);
    return HOLDS(!function);
}

// One of NVIDIA's libraries is loaded when the program already runs.
bool local_library()
{
    REQUIRE(cudaFree(device_memory()) == 0 && !std::getenv("CUDA_VISIBLE_DEVICES"));
    void *library = dlopen(std::getenv("TEST_LOCAL_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library && cudaFree(device_memory()) == 0);
    // Its functions are the preload's, also if they are looked up in that library.
    void *function = dlsym(library, "curandSetStream");
    REQUIRE(function && function == dlsym(RTLD_DEFAULT, "curandSetStream"));
    REQUIRE(!dlsym(library, "curandNothing"));
    const char *hidden = std::getenv("CUDA_VISIBLE_DEVICES");
    REQUIRE(hidden && !*hidden);
    return HOLDS(cudaFree(device_memory()) == 0);
}

// A program loads the driver of this host: the preload finds it when the next stream is made, or at
// the first launch of a kernel.
bool local_driver()
{
    void *stream = nullptr;
    void *driver = dlopen(std::getenv("TEST_LOCAL_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    REQUIRE(driver && dlsym(driver, "cuInit") && !dlsym(driver, "cuNothing"));
    REQUIRE(dlsym(driver, "cuInit") == dlsym(RTLD_DEFAULT, "cuInit"));
    REQUIRE(cudaStreamCreate(&stream) == 0 && !std::getenv("CUDA_VISIBLE_DEVICES"));
    return HOLDS(cudaStreamDestroy(stream) == 0 && cudaFree(device_memory()) == 0);
}
