/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls of GVirtuS's that write their answer to where the program says, and do so even if that is
 * NULL: that of cudaDeviceCanAccessPeer at the back end, which ends then. CUDA returns
 * cudaErrorInvalidValue. Calls that other files make are checked there. Questions about what is no
 * kernel have CUDA's answer here, too.
 */
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/preload.h"

/* CUDA's header has their prototypes. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

/* The call of that name and these parameters, of which `output` is one. */
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

/* The same of a kernel. */
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

/* CUDA leaves out what has no place. */
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
