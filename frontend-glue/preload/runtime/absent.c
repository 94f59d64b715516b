/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls of CUDA's runtime that a remote GPU cannot have: most of them share memory with something
 * else on the GPU's host. Without these functions a program that is linked with -z now would not
 * start, and another one would end at the first such call. They return cudaErrorNotSupported and
 * log their name once. If a libcudart has the function, it gets the call, with as many arguments as
 * any of them has (except the one that takes a structure by value).
 */
#include "frontend-glue/preload/preload.h"

/* The prototypes are in CUDA's header. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

static int absent(const char *call, atomic_flag *told)
{
    return ibx_frontend_absent(call, ibx_frontend_fail(CUDA_NOT_SUPPORTED), "cudaErrorNotSupported",
                               told);
}

#define ABSENT_WITH(call, parameters, ...)                                                         \
    __attribute__((visibility("default"))) int call parameters                                     \
    {                                                                                              \
        static atomic_flag told = ATOMIC_FLAG_INIT;                                                \
        static _Atomic(void *) found;                                                              \
        int(*const next) parameters = (int(*) parameters)ibx_frontend_next(&found, #call);         \
        return next ? next(__VA_ARGS__) : absent(#call, &told);                                    \
    }
#define ABSENT(call)                                                                               \
    ABSENT_WITH(call,                                                                              \
                (uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f,     \
                 uintptr_t g, uintptr_t h),                                                        \
                a, b, c, d, e, f, g, h)

/* Memory, semaphores and images of other interfaces. */
ABSENT(cudaDestroyExternalMemory)
ABSENT(cudaDestroyExternalSemaphore)
ABSENT(cudaDeviceGetNvSciSyncAttributes)
ABSENT(cudaEGLStreamConsumerAcquireFrame)
ABSENT(cudaEGLStreamConsumerConnect)
ABSENT(cudaEGLStreamConsumerConnectWithFlags)
ABSENT(cudaEGLStreamConsumerDisconnect)
ABSENT(cudaEGLStreamConsumerReleaseFrame)
ABSENT(cudaEGLStreamProducerConnect)
ABSENT(cudaEGLStreamProducerDisconnect)
struct egl_frame { /* cudaEglFrame */
    uint64_t words[35];
};
ABSENT_WITH(cudaEGLStreamProducerPresentFrame,
            (void *connection, struct egl_frame frame, void **stream), connection, frame, stream)
ABSENT(cudaEGLStreamProducerReturnFrame)
ABSENT(cudaEventCreateFromEGLSync)
ABSENT(cudaExternalMemoryGetMappedBuffer)
ABSENT(cudaExternalMemoryGetMappedMipmappedArray)
ABSENT(cudaGLGetDevices)
ABSENT(cudaGraphAddExternalSemaphoresSignalNode)
ABSENT(cudaGraphAddExternalSemaphoresWaitNode)
ABSENT(cudaGraphExecExternalSemaphoresSignalNodeSetParams)
ABSENT(cudaGraphExecExternalSemaphoresWaitNodeSetParams)
ABSENT(cudaGraphExternalSemaphoresSignalNodeGetParams)
ABSENT(cudaGraphExternalSemaphoresSignalNodeSetParams)
ABSENT(cudaGraphExternalSemaphoresWaitNodeGetParams)
ABSENT(cudaGraphExternalSemaphoresWaitNodeSetParams)
ABSENT(cudaGraphicsEGLRegisterImage)
ABSENT(cudaGraphicsGLRegisterImage)
ABSENT(cudaGraphicsResourceGetMappedEglFrame)
ABSENT(cudaGraphicsResourceGetMappedMipmappedArray)
ABSENT(cudaGraphicsSubResourceGetMappedArray)
ABSENT(cudaGraphicsVDPAURegisterOutputSurface)
ABSENT(cudaGraphicsVDPAURegisterVideoSurface)
ABSENT(cudaImportExternalMemory)
ABSENT(cudaImportExternalSemaphore)
ABSENT(cudaSignalExternalSemaphoresAsync)
ABSENT(cudaSignalExternalSemaphoresAsync_ptsz)
ABSENT(cudaSignalExternalSemaphoresAsync_v2)
ABSENT(cudaSignalExternalSemaphoresAsync_v2_ptsz)
ABSENT(cudaVDPAUGetDevice)
ABSENT(cudaVDPAUSetVDPAUDevice)
ABSENT(cudaWaitExternalSemaphoresAsync)
ABSENT(cudaWaitExternalSemaphoresAsync_ptsz)
ABSENT(cudaWaitExternalSemaphoresAsync_v2)
ABSENT(cudaWaitExternalSemaphoresAsync_v2_ptsz)

/* Libraries of kernels, functions of the driver, kernels on several devices. */
ABSENT(cudaGetExportTable)
ABSENT(cudaLibraryGetUnifiedFunction)
ABSENT(cudaLaunchCooperativeKernelMultiDevice)

/* Work of a whole context; parts of a device that are described one by one. */
ABSENT(cudaDevSmResourceSplit)
ABSENT(cudaExecutionCtxRecordEvent)
ABSENT(cudaExecutionCtxWaitEvent)

/* Numbers of graphs and nodes that tools know; captures into a graph that has been captured. */
ABSENT(cudaGraphExecGetId)
ABSENT(cudaGraphGetId)
ABSENT(cudaGraphNodeGetContainingGraph)
ABSENT(cudaGraphNodeGetLocalId)
ABSENT(cudaGraphNodeGetToolsId)
ABSENT(cudaStreamBeginRecaptureToGraph)

/* Arrays, textures. */
ABSENT(cudaArrayGetMemoryRequirements)
ABSENT(cudaArrayGetPlane)
ABSENT(cudaArrayGetSparseProperties)
ABSENT(cudaMipmappedArrayGetMemoryRequirements)
ABSENT(cudaMipmappedArrayGetSparseProperties)

/* Messages of the driver, and what else there is. */
ABSENT(cudaDeviceFlushGPUDirectRDMAWrites)
ABSENT(cudaDeviceGetHostAtomicCapabilities)
ABSENT(cudaDeviceGetP2PAtomicCapabilities)
ABSENT(cudaDeviceRegisterAsyncNotification)
ABSENT(cudaDeviceUnregisterAsyncNotification)
ABSENT(cudaLogsCurrent)
ABSENT(cudaLogsDumpToFile)
ABSENT(cudaLogsDumpToMemory)
ABSENT(cudaLogsRegisterCallback)
ABSENT(cudaLogsUnregisterCallback)
