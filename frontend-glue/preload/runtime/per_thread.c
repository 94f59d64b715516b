/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The calls of programs that are compiled with `nvcc --default-stream per-thread` or
 * CUDA_API_PER_THREAD_DEFAULT_STREAM: CUDA's header gives them the suffixes _ptsz and _ptds. In
 * these, stream NULL is the calling thread's own stream, and calls without a stream use it. GVirtuS
 * has none of them. Each thread of the application has a thread at the back end, so its stream is
 * CUDA's own there.
 */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

/* The prototypes are in CUDA's header. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define EXPORTED __attribute__((visibility("default")))

static void *own(void *stream)
{
    void *in = ibx_frontend_own(stream);
    ibx_frontend_stream_used(in);
    return in;
}

/* ---------------------------------------------------------------------- with a stream */

/* The _ptsz form of a call that has a stream. */
#define IN_STREAM(call, parameters, ...)                                                           \
    EXPORTED int call##_ptsz parameters                                                            \
    {                                                                                              \
        return call(__VA_ARGS__);                                                                  \
    }

EXPORTED int __cudaLaunchKernel_ptsz(void *kernel, struct dim3 grid, struct dim3 block,
                                     void **arguments, size_t shared, void *stream)
{
    return __cudaLaunchKernel(kernel, grid, block, arguments, shared, own(stream));
}

EXPORTED int cudaLaunchKernelExC_ptsz(const struct launch_config *config, const void *function,
                                      void **arguments)
{
    if (!config)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    struct launch_config in_own = *config;
    in_own.stream = own(config->stream);
    return cudaLaunchKernelExC(&in_own, function, arguments);
}

/* The stream is the last argument, the eighth from CUDA 13 on and the ninth before. */
EXPORTED int cudaMemcpyBatchAsync_ptsz(void *const *to, const void *const *from, const size_t *n,
                                       size_t count, const struct copy_attributes *attributes,
                                       const size_t *first, size_t attribute_count, void *a,
                                       void *b)
{
    const bool ninth = ibx_frontend_before_13();
    return cudaMemcpyBatchAsync(to, from, n, count, attributes, first, attribute_count,
                                ninth ? a : own(a), ninth ? own(b) : b);
}

/* The stream is the fourth argument from CUDA 13 on, and the fifth before. */
EXPORTED int cudaMemcpy3DBatchAsync_ptsz(size_t count, const struct planes_in_batch *list,
                                         uintptr_t a, uintptr_t b, void *c)
{
    const bool fifth = ibx_frontend_before_13();
    return cudaMemcpy3DBatchAsync(count, list, a, fifth ? b : (uintptr_t)own((void *)b),
                                  fifth ? own(c) : c);
}

IN_STREAM(cudaMemcpyWithAttributesAsync,
          (void *to, const void *from, size_t n, const struct copy_attributes *how, void *stream),
          to, from, n, how, own(stream))
IN_STREAM(cudaMemcpy3DWithAttributesAsync,
          (const struct planes_in_batch *p, unsigned long long flags, void *stream), p, flags,
          own(stream))
IN_STREAM(cudaLaunchKernel,
          (const void *function, struct dim3 grid, struct dim3 block, void **arguments,
           size_t shared, void *stream),
          function, grid, block, arguments, shared, own(stream))
IN_STREAM(cudaLaunchCooperativeKernel,
          (const void *function, struct dim3 grid, struct dim3 block, void **arguments,
           size_t shared, void *stream),
          function, grid, block, arguments, shared, own(stream))
IN_STREAM(cudaLaunchHostFunc, (void *stream, void (*function)(void *argument), void *argument),
          own(stream), function, argument)
IN_STREAM(cudaLaunchHostFunc_v2,
          (void *stream, void (*function)(void *argument), void *argument, unsigned how),
          own(stream), function, argument, how)
IN_STREAM(cudaStreamAddCallback,
          (void *stream, void (*callback)(void *stream, int status, void *argument), void *argument,
           unsigned flags),
          own(stream), callback, argument, flags)
IN_STREAM(cudaGraphLaunch, (void *exec, void *stream), exec, own(stream))
IN_STREAM(cudaGraphUpload, (void *exec, void *stream), exec, own(stream))

EXPORTED int cudaGraphInstantiateWithParams_ptsz(void **exec, void *graph,
                                                 struct instantiate_parameters *p)
{
    void *stream = p ? p->stream : NULL;
    if (p)
        p->stream = own(stream);
    const int rc = cudaGraphInstantiateWithParams(exec, graph, p);
    if (p)
        p->stream = stream;
    return rc;
}

IN_STREAM(cudaMemcpyAsync, (void *to, const void *from, size_t n, int kind, void *stream), to, from,
          n, kind, own(stream))
IN_STREAM(cudaMemcpy2DAsync,
          (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
           size_t height, int kind, void *stream),
          to, to_pitch, from, from_pitch, width, height, kind, own(stream))
IN_STREAM(cudaMemcpy3DAsync, (const struct ibx_cuda_memcpy3d *parameters, void *stream), parameters,
          own(stream))
IN_STREAM(cudaMemcpy3DPeerAsync, (const struct peer_planes *parameters, void *stream), parameters,
          own(stream))
IN_STREAM(cudaMemcpyToSymbolAsync,
          (const void *symbol, const void *from, size_t n, size_t offset, int kind, void *stream),
          symbol, from, n, offset, kind, own(stream))
IN_STREAM(cudaMemcpyFromSymbolAsync,
          (void *to, const void *symbol, size_t n, size_t offset, int kind, void *stream), to,
          symbol, n, offset, kind, own(stream))
IN_STREAM(cudaMemcpyToArrayAsync,
          (void *array, size_t x, size_t y, const void *from, size_t n, int kind, void *stream),
          array, x, y, from, n, kind, own(stream))
IN_STREAM(cudaMemcpyFromArrayAsync,
          (void *to, const void *array, size_t x, size_t y, size_t n, int kind, void *stream), to,
          array, x, y, n, kind, own(stream))
IN_STREAM(cudaMemcpy2DToArrayAsync,
          (void *array, size_t x, size_t y, const void *from, size_t pitch, size_t width,
           size_t height, int kind, void *stream),
          array, x, y, from, pitch, width, height, kind, own(stream))
IN_STREAM(cudaMemcpy2DFromArrayAsync,
          (void *to, size_t pitch, const void *array, size_t x, size_t y, size_t width,
           size_t height, int kind, void *stream),
          to, pitch, array, x, y, width, height, kind, own(stream))
IN_STREAM(cudaMemsetAsync, (void *address, int value, size_t n, void *stream), address, value, n,
          own(stream))
IN_STREAM(cudaMemset2DAsync,
          (void *address, size_t pitch, int value, size_t width, size_t height, void *stream),
          address, pitch, value, width, height, own(stream))
IN_STREAM(cudaMemset3DAsync,
          (struct ibx_cuda_pitched memory, int value, struct ibx_cuda_extent extent, void *stream),
          memory, value, extent, own(stream))

IN_STREAM(cudaMallocAsync, (void **address, size_t n, void *stream), address, n, own(stream))
IN_STREAM(cudaMallocFromPoolAsync, (void **address, size_t n, void *pool, void *stream), address, n,
          pool, own(stream))
IN_STREAM(cudaFreeAsync, (void *address, void *stream), address, own(stream))
IN_STREAM(cudaMemPrefetchAsync,
          (const void *address, size_t n, uint64_t where, uint64_t flags, void *stream), address, n,
          where, flags, stream)
IN_STREAM(cudaMemPrefetchAsync_v2,
          (const void *address, size_t n, struct memory_location location, unsigned flags,
           void *stream),
          address, n, location, flags, own(stream))
IN_STREAM(cudaMemPrefetchBatchAsync,
          (void *const *addresses, const size_t *n, size_t count, const struct memory_location *to,
           const size_t *first, size_t to_count, unsigned long long flags, void *stream),
          addresses, n, count, to, first, to_count, flags, own(stream))
IN_STREAM(cudaMemDiscardBatchAsync,
          (void *const *addresses, const size_t *n, size_t count, unsigned long long flags,
           void *stream),
          addresses, n, count, flags, own(stream))
IN_STREAM(cudaMemDiscardAndPrefetchBatchAsync,
          (void *const *addresses, const size_t *n, size_t count, const struct memory_location *to,
           const size_t *first, size_t to_count, unsigned long long flags, void *stream),
          addresses, n, count, to, first, to_count, flags, own(stream))
IN_STREAM(cudaStreamAttachMemAsync, (void *stream, void *address, size_t n, unsigned flags),
          own(stream), address, n, flags)

IN_STREAM(cudaEventRecord, (void *event, void *stream), event, own(stream))
IN_STREAM(cudaEventRecordWithFlags, (void *event, void *stream, unsigned flags), event, own(stream),
          flags)
IN_STREAM(cudaStreamWaitEvent, (void *stream, void *event, unsigned flags), own(stream), event,
          flags)
IN_STREAM(cudaStreamSynchronize, (void *stream), own(stream))
IN_STREAM(cudaStreamQuery, (void *stream), own(stream))
IN_STREAM(cudaStreamSetAttribute, (void *stream, int attribute, const void *value), own(stream),
          attribute, value)
IN_STREAM(cudaStreamGetAttribute, (void *stream, int attribute, void *value), own(stream),
          attribute, value)
IN_STREAM(cudaStreamGetFlags, (void *stream, unsigned *flags), own(stream), flags)
IN_STREAM(cudaStreamGetId, (void *stream, unsigned long long *id), own(stream), id)
IN_STREAM(cudaStreamGetDevice, (void *stream, int *device), own(stream), device)
IN_STREAM(cudaStreamCopyAttributes, (void *to, void *from), own(to), own(from))
IN_STREAM(cudaStreamGetPriority, (void *stream, int *priority), own(stream), priority)

IN_STREAM(cudaStreamBeginCapture, (void *stream, int mode), own(stream), mode)
IN_STREAM(cudaStreamBeginCaptureToGraph,
          (void *stream, void *graph, void *const *behind, const void *edges, size_t count,
           int mode),
          own(stream), graph, behind, edges, count, mode)
IN_STREAM(cudaStreamEndCapture, (void *stream, void **graph), own(stream), graph)
IN_STREAM(cudaStreamIsCapturing, (void *stream, int *status), own(stream), status)
IN_STREAM(cudaStreamGetCaptureInfo,
          (void *stream, int *status, unsigned long long *id, void **graph, void *const **behind,
           const void **edges, size_t *count),
          own(stream), status, id, graph, behind, edges, count)
IN_STREAM(cudaStreamGetCaptureInfo_v2,
          (void *stream, int *status, unsigned long long *id, void **graph, void *const **behind,
           size_t *count),
          own(stream), status, id, graph, behind, count)
IN_STREAM(cudaStreamGetCaptureInfo_v3,
          (void *stream, int *status, unsigned long long *id, void **graph, void *const **behind,
           const void **edges, size_t *count),
          own(stream), status, id, graph, behind, edges, count)
IN_STREAM(cudaStreamUpdateCaptureDependencies,
          (void *stream, void *const *nodes, const void *edges, size_t count, unsigned flags),
          own(stream), nodes, edges, count, flags)
IN_STREAM(cudaStreamUpdateCaptureDependencies_v2,
          (void *stream, void *const *nodes, const void *edges, size_t count, unsigned flags),
          own(stream), nodes, edges, count, flags)

/* ------------------------------------------------------------------- without a stream */

/* Waits after a copy in the thread's stream, as CUDA does except for copies within the device. */
static int copied(int rc, int kind)
{
    return rc || kind == CUDA_MEMCPY_ON_DEVICE ? rc
                                               : ibx_frontend_stream_wait(CUDA_STREAM_PER_THREAD);
}

EXPORTED int cudaMemcpy_ptds(void *to, const void *from, size_t n, int kind)
{
    const int is = kind == CUDA_MEMCPY_DEFAULT ? ibx_frontend_copy_kind(to, from, kind) : kind;
    return copied(cudaMemcpyAsync(to, from, n, kind, CUDA_STREAM_PER_THREAD), is);
}

EXPORTED int cudaMemcpy2D_ptds(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                               size_t width, size_t height, int kind)
{
    return copied(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind,
                                    CUDA_STREAM_PER_THREAD),
                  kind);
}

EXPORTED int cudaMemcpy3D_ptds(const struct ibx_cuda_memcpy3d *parameters)
{
    return copied(cudaMemcpy3DAsync(parameters, CUDA_STREAM_PER_THREAD), CUDA_MEMCPY_DEFAULT);
}

EXPORTED int cudaMemcpy3DPeer_ptds(const struct peer_planes *parameters)
{
    return cudaMemcpy3DPeerAsync(parameters, CUDA_STREAM_PER_THREAD);
}

EXPORTED int cudaMemcpyToSymbol_ptds(const void *symbol, const void *from, size_t n, size_t offset,
                                     int kind)
{
    return copied(cudaMemcpyToSymbolAsync(symbol, from, n, offset, kind, CUDA_STREAM_PER_THREAD),
                  kind);
}

EXPORTED int cudaMemcpyFromSymbol_ptds(void *to, const void *symbol, size_t n, size_t offset,
                                       int kind)
{
    return copied(cudaMemcpyFromSymbolAsync(to, symbol, n, offset, kind, CUDA_STREAM_PER_THREAD),
                  kind);
}

static int was_set(int rc, const void *address)
{
    return ibx_frontend_was_set(rc, address, CUDA_STREAM_PER_THREAD);
}

EXPORTED int cudaMemset_ptds(void *address, int value, size_t n)
{
    return was_set(cudaMemsetAsync(address, value, n, CUDA_STREAM_PER_THREAD), address);
}

EXPORTED int cudaMemset2D_ptds(void *address, size_t pitch, int value, size_t width, size_t height)
{
    return was_set(cudaMemset2DAsync(address, pitch, value, width, height, CUDA_STREAM_PER_THREAD),
                   address);
}

EXPORTED int cudaMemset3D_ptds(struct ibx_cuda_pitched memory, int value,
                               struct ibx_cuda_extent extent)
{
    return was_set(cudaMemset3DAsync(memory, value, extent, CUDA_STREAM_PER_THREAD), memory.at);
}

/* The copies of arrays are complete when they return. */
EXPORTED int cudaMemcpyToArray_ptds(void *array, size_t x, size_t y, const void *from, size_t n,
                                    int kind)
{
    return cudaMemcpyToArrayAsync(array, x, y, from, n, kind, CUDA_STREAM_PER_THREAD);
}

EXPORTED int cudaMemcpyFromArray_ptds(void *to, const void *array, size_t x, size_t y, size_t n,
                                      int kind)
{
    return cudaMemcpyFromArrayAsync(to, array, x, y, n, kind, CUDA_STREAM_PER_THREAD);
}

EXPORTED int cudaMemcpy2DToArray_ptds(void *array, size_t x, size_t y, const void *from,
                                      size_t pitch, size_t width, size_t height, int kind)
{
    return cudaMemcpy2DToArrayAsync(array, x, y, from, pitch, width, height, kind,
                                    CUDA_STREAM_PER_THREAD);
}

EXPORTED int cudaMemcpy2DFromArray_ptds(void *to, size_t pitch, const void *array, size_t x,
                                        size_t y, size_t width, size_t height, int kind)
{
    return cudaMemcpy2DFromArrayAsync(to, pitch, array, x, y, width, height, kind,
                                      CUDA_STREAM_PER_THREAD);
}

/* Runs in the legacy default stream, which is ordered with the thread's stream in both directions.
 */
EXPORTED int cudaMemcpy2DArrayToArray_ptds(void *to, size_t to_x, size_t to_y, const void *from,
                                           size_t from_x, size_t from_y, size_t width,
                                           size_t height, int kind)
{
    return cudaMemcpy2DArrayToArray(to, to_x, to_y, from, from_x, from_y, width, height, kind);
}

EXPORTED int cudaMemcpyArrayToArray_ptds(void *to, size_t to_x, size_t to_y, const void *from,
                                         size_t from_x, size_t from_y, size_t n, int kind)
{
    return CALL_NEXT(cudaMemcpyArrayToArray, to, to_x, to_y, from, from_x, from_y, n, kind);
}
