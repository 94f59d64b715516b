/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls whose output pointer may be NULL. CUDA returns cudaErrorInvalidValue; GVirtuS writes
 * through the pointer all the same, and with cudaDeviceCanAccessPeer it is the back end that
 * crashes. These functions check it first, as other files do for their own calls. They also return
 * CUDA's error for a function that is no kernel.
 */
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/preload.h"

/* The prototypes are in CUDA's header. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

/* A call that fails if `output` is NULL. */
#define WITH_OUTPUT(call, output, parameters, ...)                                                 \
    __attribute__((visibility("default"))) int call parameters                                     \
    {                                                                                              \
        return output ? CALL_NEXT(call, __VA_ARGS__) : ibx_frontend_fail(CUDA_INVALID_VALUE);      \
    }

WITH_OUTPUT(cudaDriverGetVersion, version, (int *version), version)
WITH_OUTPUT(cudaRuntimeGetVersion, version, (int *version), version)
WITH_OUTPUT(cudaChooseDevice, (device && properties), (int *device, const void *properties), device,
            properties)
WITH_OUTPUT(cudaDeviceCanAccessPeer, can, (int *can, int device, int peer), can, device, peer)
WITH_OUTPUT(cudaEventCreate, event, (void **event), event)
WITH_OUTPUT(cudaEventCreateWithFlags, event, (void **event, unsigned flags), event, flags)
WITH_OUTPUT(cudaEventElapsedTime, ms, (float *ms, void *from, void *to), ms, from, to)

/* CUDA 12.8's name of the same call. */
__attribute__((visibility("default"))) int cudaEventElapsedTime_v2(float *ms, void *from, void *to)
{
    return cudaEventElapsedTime(ms, from, to);
}

/* The same for a call about a kernel. */
#define OF_KERNEL(call, output, parameters, ...)                                                   \
    __attribute__((visibility("default"))) int call parameters                                     \
    {                                                                                              \
        const int rc = output ? ibx_frontend_no_kernel(function) : CUDA_INVALID_VALUE;             \
        return rc ? ibx_frontend_fail(rc) : CALL_NEXT(call, __VA_ARGS__);                          \
    }

OF_KERNEL(cudaFuncGetAttributes, attributes, (void *attributes, const void *function), attributes,
          function)
OF_KERNEL(cudaFuncSetAttribute, true, (const void *function, int attribute, int value), function,
          attribute, value)
OF_KERNEL(cudaFuncSetCacheConfig, true, (const void *function, int config), function, config)
OF_KERNEL(cudaOccupancyMaxActiveBlocksPerMultiprocessor, blocks,
          (int *blocks, const void *function, int threads, size_t shared), blocks, function,
          threads, shared)
OF_KERNEL(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, blocks,
          (int *blocks, const void *function, int threads, size_t shared, unsigned flags), blocks,
          function, threads, shared, flags)

/* Here CUDA accepts NULL for either output. */
__attribute__((visibility("default"))) int cudaMemGetInfo(size_t *left, size_t *all)
{
    size_t unused[2];
    return CALL_NEXT(cudaMemGetInfo, left ? left : &unused[0], all ? all : &unused[1]);
}

__attribute__((visibility("default"))) int cudaDeviceGetStreamPriorityRange(int *least,
                                                                            int *greatest)
{
    int unused[2];
    return CALL_NEXT(cudaDeviceGetStreamPriorityRange, least ? least : &unused[0],
                     greatest ? greatest : &unused[1]);
}
