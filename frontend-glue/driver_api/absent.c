/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls of the driver API that are not supported over a remote GPU. They exist so that programs
 * that name them can be started. Each returns CUDA_ERROR_NOT_SUPPORTED, and logs one line.
 * cuGetProcAddress() finds those that a device's attributes report as not supported: programs look
 * up all calls of a kind before they ask for the attribute, and PyTorch ends if one of them is not
 * found.
 */
#include "frontend-glue/driver_api/driver.h"

#include <string.h>

/* All of them, each as X(call). */
/* clang-format off */
/* Mapped memory of arrays, and of several devices. */
#define ABSENT_0(X) \
    X(cuMemMapArrayAsync) X(cuMemMapArrayAsync_ptsz) X(cuMulticastAddDevice) \
    X(cuMulticastBindAddr) X(cuMulticastBindMem) \
    X(cuMulticastCreate) X(cuMulticastGetGranularity) X(cuMulticastUnbind) \
    X(cuMulticastBindAddr_v2) X(cuMulticastBindMem_v2) X(cuMemGetHandleForAddressRange)
/* Memory and semaphores of other libraries; graphics. */
#define ABSENT_1(X) \
    X(cuDestroyExternalMemory) X(cuDestroyExternalSemaphore) X(cuExternalMemoryGetMappedBuffer) \
    X(cuExternalMemoryGetMappedMipmappedArray) X(cuGraphicsMapResources) \
    X(cuGraphicsMapResources_ptsz) X(cuGraphicsResourceGetMappedMipmappedArray) \
    X(cuGraphicsResourceGetMappedPointer) X(cuGraphicsResourceGetMappedPointer_v2) \
    X(cuGraphicsResourceSetMapFlags) X(cuGraphicsResourceSetMapFlags_v2) \
    X(cuGraphicsSubResourceGetMappedArray) X(cuGraphicsUnmapResources) \
    X(cuGraphicsUnmapResources_ptsz) \
    X(cuGraphicsUnregisterResource) X(cuImportExternalMemory) X(cuImportExternalSemaphore) \
    X(cuSignalExternalSemaphoresAsync) X(cuSignalExternalSemaphoresAsync_ptsz) \
    X(cuWaitExternalSemaphoresAsync) X(cuWaitExternalSemaphoresAsync_ptsz) \
    X(cuDeviceGetNvSciSyncAttributes) X(cuGraphAddExternalSemaphoresSignalNode) \
    X(cuGraphAddExternalSemaphoresWaitNode) X(cuGraphExecExternalSemaphoresSignalNodeSetParams) \
    X(cuGraphExecExternalSemaphoresWaitNodeSetParams) \
    X(cuGraphExternalSemaphoresSignalNodeGetParams) \
    X(cuGraphExternalSemaphoresSignalNodeSetParams) \
    X(cuGraphExternalSemaphoresWaitNodeGetParams) X(cuGraphExternalSemaphoresWaitNodeSetParams)
/* Nodes of graphs that write words in memory, or wait for them. */
#define ABSENT_2(X) \
    X(cuGraphAddBatchMemOpNode) X(cuGraphBatchMemOpNodeGetParams) \
    X(cuGraphBatchMemOpNodeSetParams) X(cuGraphExecBatchMemOpNodeSetParams)
/* Work of a whole context; parts of a device that are described one by one. */
#define ABSENT_3(X) \
    X(cuCtxGetExecAffinity) X(cuCtxRecordEvent) X(cuCtxWaitEvent) X(cuGreenCtxRecordEvent) \
    X(cuGreenCtxWaitEvent) X(cuDevSmResourceSplit)
/* Texture and surface references; cooperative launches on several devices. */
#define ABSENT_4(X) \
    X(cuModuleGetSurfRef) X(cuModuleGetTexRef) X(cuParamSetTexRef) X(cuSurfRefGetArray) \
    X(cuSurfRefSetArray) X(cuTexRefCreate) X(cuTexRefDestroy) X(cuTexRefGetAddress) \
    X(cuTexRefGetAddressMode) \
    X(cuTexRefGetAddress_v2) X(cuTexRefGetArray) X(cuTexRefGetBorderColor) \
    X(cuTexRefGetFilterMode) X(cuTexRefGetFlags) X(cuTexRefGetFormat) \
    X(cuTexRefGetMaxAnisotropy) X(cuTexRefGetMipmapFilterMode) X(cuTexRefGetMipmapLevelBias) \
    X(cuTexRefGetMipmapLevelClamp) X(cuTexRefGetMipmappedArray) X(cuTexRefSetAddress) \
    X(cuTexRefSetAddress2D) X(cuTexRefSetAddress2D_v2) X(cuTexRefSetAddress2D_v3) \
    X(cuTexRefSetAddressMode) X(cuTexRefSetAddress_v2) X(cuTexRefSetArray) \
    X(cuTexRefSetBorderColor) X(cuTexRefSetFilterMode) X(cuTexRefSetFlags) X(cuTexRefSetFormat) \
    X(cuTexRefSetMaxAnisotropy) X(cuTexRefSetMipmapFilterMode) X(cuTexRefSetMipmapLevelBias) \
    X(cuTexRefSetMipmapLevelClamp) X(cuTexRefSetMipmappedArray) \
    X(cuLaunchCooperativeKernelMultiDevice)
/* What arrays need, their planes; decompression. */
#define ABSENT_5(X) \
    X(cuArrayGetMemoryRequirements) X(cuArrayGetPlane) X(cuArrayGetSparseProperties) \
    X(cuMipmappedArrayGetMemoryRequirements) X(cuMipmappedArrayGetSparseProperties) \
    X(cuMemBatchDecompressAsync) X(cuMemBatchDecompressAsync_ptsz)
/* What is left of the driver. */
#define ABSENT_6(X) \
    X(cuCheckpointProcessCheckpoint) X(cuCheckpointProcessGetRestoreThreadId) \
    X(cuCheckpointProcessGetState) X(cuCheckpointProcessLock) X(cuCheckpointProcessRestore) \
    X(cuCheckpointProcessUnlock) X(cuCoredumpGetAttribute) X(cuCoredumpGetAttributeGlobal) \
    X(cuCoredumpSetAttribute) X(cuCoredumpSetAttributeGlobal) \
    X(cuDeviceGetHostAtomicCapabilities) X(cuDeviceGetP2PAtomicCapabilities) \
    X(cuDeviceRegisterAsyncNotification) X(cuDeviceUnregisterAsyncNotification) \
    X(cuFlushGPUDirectRDMAWrites) X(cuLibraryGetUnifiedFunction) \
    X(cuLogsCurrent) X(cuLogsDumpToFile) X(cuLogsDumpToMemory) X(cuLogsRegisterCallback) \
    X(cuLogsUnregisterCallback) X(cuProfilerInitialize) \
    X(cuCoredumpDeregisterCompleteCallback) X(cuCoredumpDeregisterStartCallback) \
    X(cuCoredumpRegisterCompleteCallback) X(cuCoredumpRegisterStartCallback) \
    X(cuGraphExecGetId) X(cuGraphGetId) X(cuGraphNodeGetContainingGraph) \
    X(cuGraphNodeGetLocalId) X(cuGraphNodeGetParams) X(cuGraphNodeGetToolsId) \
    X(cuStreamBeginCaptureToCig) X(cuStreamBeginRecaptureToGraph) X(cuStreamEndCaptureToCig)
/* OpenGL, EGL and VDPAU. FFmpeg looks up all that it may call, and works only if each is there. */
#define ABSENT_7(X) \
    X(cuEGLStreamConsumerAcquireFrame) X(cuEGLStreamConsumerConnect) \
    X(cuEGLStreamConsumerConnectWithFlags) X(cuEGLStreamConsumerDisconnect) \
    X(cuEGLStreamConsumerReleaseFrame) X(cuEGLStreamProducerConnect) \
    X(cuEGLStreamProducerDisconnect) X(cuEGLStreamProducerPresentFrame) \
    X(cuEGLStreamProducerReturnFrame) X(cuEventCreateFromEGLSync) X(cuGLCtxCreate) \
    X(cuGLCtxCreate_v2) X(cuGLGetDevices) X(cuGLGetDevices_v2) X(cuGLInit) \
    X(cuGLMapBufferObject) X(cuGLMapBufferObjectAsync) X(cuGLMapBufferObjectAsync_v2) \
    X(cuGLMapBufferObjectAsync_v2_ptsz) X(cuGLMapBufferObject_v2) X(cuGLMapBufferObject_v2_ptds) \
    X(cuGLRegisterBufferObject) X(cuGLSetBufferObjectMapFlags) X(cuGLUnmapBufferObject) \
    X(cuGLUnmapBufferObjectAsync) X(cuGLUnregisterBufferObject) X(cuGraphicsEGLRegisterImage) \
    X(cuGraphicsGLRegisterBuffer) X(cuGraphicsGLRegisterImage) \
    X(cuGraphicsResourceGetMappedEglFrame) X(cuGraphicsVDPAURegisterOutputSurface) \
    X(cuGraphicsVDPAURegisterVideoSurface) X(cuVDPAUCtxCreate) X(cuVDPAUCtxCreate_v2) \
    X(cuVDPAUGetDevice)
#define FOUND(X) ABSENT_0(X) ABSENT_2(X)
#define NOT_FOUND(X) \
    ABSENT_1(X) ABSENT_3(X) ABSENT_4(X) ABSENT_5(X) ABSENT_6(X) ABSENT_7(X)
/* clang-format on */

#define CALL(call)                                                                                 \
    EXPORTED int call(void)                                                                        \
    {                                                                                              \
        static atomic_flag told = ATOMIC_FLAG_INIT;                                                \
        return ibx_frontend_absent(#call, CUDA_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", &told);  \
    }
FOUND(CALL)
NOT_FOUND(CALL)

bool ibx_driver_is_absent(const char *name)
{
#define NAME(call) #call,
    static const char *const names[] = {NOT_FOUND(NAME)};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!strcmp(names[i], name))
            return true;
    return false;
}
