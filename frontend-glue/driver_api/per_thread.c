/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls of programs that are compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM. Most of those for
 * copies and sets are in copies.c, planes.c and sets.c.
 */
#include "frontend-glue/driver_api/driver.h"

int cuStreamSynchronize(void *stream);
int cuLaunchKernelEx(const struct ibx_driver_launch *launched, const void *function,
                     void **arguments, void **extra);
int cuGraphInstantiateWithParams(void **exec, void *graph, struct instantiate_parameters *p);

/* The call of that name and these parameters, the stream among them. */
#define IN_STREAM(call, parameters, ...)                                                           \
    int call parameters;                                                                           \
    EXPORTED int call##_ptsz parameters                                                            \
    {                                                                                              \
        return call(__VA_ARGS__);                                                                  \
    }

IN_STREAM(cuLaunchKernel,
          (const void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, void *stream,
           void **arguments, void **extra),
          function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
          ibx_frontend_own(stream), arguments, extra)
IN_STREAM(cuLaunchCooperativeKernel,
          (const void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, void *stream,
           void **arguments),
          function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
          ibx_frontend_own(stream), arguments)
IN_STREAM(cuLaunchHostFunc_v2,
          (void *stream, void (*function)(void *argument), void *argument, unsigned how),
          ibx_frontend_own(stream), function, argument, how)
IN_STREAM(cuLaunchHostFunc, (void *stream, void (*function)(void *argument), void *argument),
          ibx_frontend_own(stream), function, argument)
IN_STREAM(cuStreamAddCallback,
          (void *stream, void (*function)(void *stream, int result, void *argument), void *argument,
           unsigned flags),
          ibx_frontend_own(stream), function, argument, flags)
IN_STREAM(cuStreamAttachMemAsync, (void *stream, uint64_t address, size_t n, unsigned flags),
          ibx_frontend_own(stream), address, n, flags)
IN_STREAM(cuStreamQuery, (void *stream), ibx_frontend_own(stream))
IN_STREAM(cuStreamSynchronize, (void *stream), ibx_frontend_own(stream))
IN_STREAM(cuStreamWaitEvent, (void *stream, void *event, unsigned flags), ibx_frontend_own(stream),
          event, flags)
IN_STREAM(cuStreamGetFlags, (void *stream, unsigned *flags), ibx_frontend_own(stream), flags)
IN_STREAM(cuStreamGetPriority, (void *stream, int *priority), ibx_frontend_own(stream), priority)
IN_STREAM(cuStreamGetId, (void *stream, unsigned long long *id), ibx_frontend_own(stream), id)
IN_STREAM(cuStreamGetDevice, (void *stream, int *device), ibx_frontend_own(stream), device)
IN_STREAM(cuStreamGetCtx, (const void *stream, void **context), stream, context)
IN_STREAM(cuStreamGetCtx_v2, (const void *stream, void **context, void **green), stream, context,
          green)
IN_STREAM(cuStreamCopyAttributes, (void *to, void *from), ibx_frontend_own(to),
          ibx_frontend_own(from))
IN_STREAM(cuStreamGetAttribute, (void *stream, int attribute, void *value),
          ibx_frontend_own(stream), attribute, value)
IN_STREAM(cuStreamSetAttribute, (void *stream, int attribute, const void *value),
          ibx_frontend_own(stream), attribute, value)
IN_STREAM(cuStreamBeginCapture, (void *stream), ibx_frontend_own(stream))
IN_STREAM(cuStreamBeginCapture_v2, (void *stream, int mode), ibx_frontend_own(stream), mode)
IN_STREAM(cuStreamBeginCaptureToGraph,
          (void *stream, void *graph, void *const *behind, const void *edges, size_t count,
           int mode),
          ibx_frontend_own(stream), graph, behind, edges, count, mode)
IN_STREAM(cuStreamEndCapture, (void *stream, void **graph), ibx_frontend_own(stream), graph)
IN_STREAM(cuStreamIsCapturing, (void *stream, int *status), ibx_frontend_own(stream), status)
IN_STREAM(cuStreamGetCaptureInfo, (void *stream, int *status, unsigned long long *id),
          ibx_frontend_own(stream), status, id)
IN_STREAM(cuStreamGetCaptureInfo_v2,
          (void *stream, int *status, unsigned long long *id, void **graph, void *const **behind,
           size_t *count),
          ibx_frontend_own(stream), status, id, graph, behind, count)
IN_STREAM(cuStreamGetCaptureInfo_v3,
          (void *stream, int *status, unsigned long long *id, void **graph, void *const **behind,
           const void **edges, size_t *count),
          ibx_frontend_own(stream), status, id, graph, behind, edges, count)
IN_STREAM(cuStreamUpdateCaptureDependencies,
          (void *stream, void *const *nodes, size_t count, unsigned flags),
          ibx_frontend_own(stream), nodes, count, flags)
IN_STREAM(cuStreamUpdateCaptureDependencies_v2,
          (void *stream, void *const *nodes, const void *edges, size_t count, unsigned flags),
          ibx_frontend_own(stream), nodes, edges, count, flags)
IN_STREAM(cuEventRecord, (void *event, void *stream), event, ibx_frontend_own(stream))
IN_STREAM(cuEventRecordWithFlags, (void *event, void *stream, unsigned flags), event,
          ibx_frontend_own(stream), flags)
IN_STREAM(cuGraphLaunch, (void *exec, void *stream), exec, ibx_frontend_own(stream))
IN_STREAM(cuGraphUpload, (void *exec, void *stream), exec, ibx_frontend_own(stream))
IN_STREAM(cuMemAllocAsync, (uint64_t * address, size_t n, void *stream), address, n,
          ibx_frontend_own(stream))
IN_STREAM(cuMemAllocFromPoolAsync, (uint64_t * address, size_t n, void *pool, void *stream),
          address, n, pool, ibx_frontend_own(stream))
IN_STREAM(cuMemFreeAsync, (uint64_t address, void *stream), address, ibx_frontend_own(stream))
IN_STREAM(cuMemPrefetchAsync, (uint64_t address, size_t n, int device, void *stream), address, n,
          device, ibx_frontend_own(stream))
IN_STREAM(cuMemPrefetchAsync_v2,
          (uint64_t address, size_t n, struct memory_location location, unsigned flags,
           void *stream),
          address, n, location, flags, ibx_frontend_own(stream))
IN_STREAM(cuMemPrefetchBatchAsync,
          (const uint64_t *addresses, const size_t *n, size_t count,
           const struct memory_location *to, const size_t *first, size_t to_count,
           unsigned long long flags, void *stream),
          addresses, n, count, to, first, to_count, flags, ibx_frontend_own(stream))
IN_STREAM(cuMemDiscardBatchAsync,
          (const uint64_t *addresses, const size_t *n, size_t count, unsigned long long flags,
           void *stream),
          addresses, n, count, flags, ibx_frontend_own(stream))
IN_STREAM(cuMemDiscardAndPrefetchBatchAsync,
          (const uint64_t *addresses, const size_t *n, size_t count,
           const struct memory_location *to, const size_t *first, size_t to_count,
           unsigned long long flags, void *stream),
          addresses, n, count, to, first, to_count, flags, ibx_frontend_own(stream))
IN_STREAM(cuMemcpyHtoAAsync_v2, (void *array, size_t x, const void *from, size_t n, void *stream),
          array, x, from, n, ibx_frontend_own(stream))
IN_STREAM(cuMemcpyAtoHAsync_v2, (void *to, void *array, size_t x, size_t n, void *stream), to,
          array, x, n, ibx_frontend_own(stream))

EXPORTED int cuLaunchKernelEx_ptsz(const struct ibx_driver_launch *launched, const void *function,
                                   void **arguments, void **extra)
{
    if (!launched)
        return CUDA_INVALID_VALUE;
    struct ibx_driver_launch in_own = *launched;
    in_own.stream = ibx_frontend_own(launched->stream);
    return cuLaunchKernelEx(&in_own, function, arguments, extra);
}

EXPORTED int cuGraphInstantiateWithParams_ptsz(void **exec, void *graph,
                                               struct instantiate_parameters *p)
{
    void *stream = p ? p->stream : NULL;
    if (p)
        p->stream = ibx_frontend_own(stream);
    const int rc = cuGraphInstantiateWithParams(exec, graph, p);
    if (p)
        p->stream = stream;
    return rc;
}

/* These wait for the calling thread's stream as well. */
#define IN_OWN(call, parameters, ...)                                                              \
    int call parameters;                                                                           \
    EXPORTED int call##_ptds parameters                                                            \
    {                                                                                              \
        const int rc = cuStreamSynchronize(CUDA_STREAM_PER_THREAD);                                \
        return rc ? rc : call(__VA_ARGS__);                                                        \
    }

IN_OWN(cuMemcpyHtoA_v2, (void *array, size_t x, const void *from, size_t n), array, x, from, n)
IN_OWN(cuMemcpyAtoH_v2, (void *to, void *array, size_t x, size_t n), to, array, x, n)
IN_OWN(cuMemcpyDtoA_v2, (void *array, size_t x, uint64_t from, size_t n), array, x, from, n)
IN_OWN(cuMemcpyAtoD_v2, (uint64_t to, void *array, size_t x, size_t n), to, array, x, n)
IN_OWN(cuMemcpyAtoA_v2, (void *to, size_t to_x, void *from, size_t from_x, size_t n), to, to_x,
       from, from_x, n)
