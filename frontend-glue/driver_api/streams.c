/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Streams, events, and functions of the host. */
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/driver_api/driver.h"

#include <stdlib.h>

static int made(int rc, enum owned_kind kind, void *const *handle)
{
    if (!rc)
        ibx_frontend_owned(kind, *handle, ibx_driver_current());
    return rc;
}

/* ------------------------------------------------------------------------------- streams */

EXPORTED int cuStreamCreate(void **stream, unsigned flags)
{
    return IN_CONTEXT(stream ? made(cudaStreamCreateWithFlags(stream, flags), OWNED_STREAM, stream)
                             : CUDA_INVALID_VALUE);
}

EXPORTED int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    return IN_CONTEXT(
        stream ? made(cudaStreamCreateWithPriority(stream, flags, priority), OWNED_STREAM, stream)
               : CUDA_INVALID_VALUE);
}

EXPORTED int cuStreamDestroy_v2(void *stream)
{
    return IN_CONTEXT_OF(stream,
                         (uintptr_t)stream > 2 ? cudaStreamDestroy(stream) : CUDA_INVALID_HANDLE);
}

EXPORTED int cuStreamQuery(void *stream)
{
    return IN_CONTEXT_OF(stream, cudaStreamQuery(stream));
}

EXPORTED int cuStreamSynchronize(void *stream)
{
    return IN_CONTEXT_OF(stream, cudaStreamSynchronize(stream));
}

EXPORTED int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    return IN_CONTEXT_OF(stream, cudaStreamWaitEvent(stream, event, flags));
}

EXPORTED int cuStreamGetFlags(void *stream, unsigned *flags)
{
    return IN_CONTEXT_OF(stream, cudaStreamGetFlags(stream, flags));
}

EXPORTED int cuStreamGetPriority(void *stream, int *priority)
{
    return IN_CONTEXT_OF(stream, cudaStreamGetPriority(stream, priority));
}

EXPORTED int cuStreamGetId(void *stream, unsigned long long *id)
{
    return IN_CONTEXT_OF(stream, cudaStreamGetId(stream, id));
}

EXPORTED int cuStreamGetDevice(void *stream, int *device)
{
    return IN_CONTEXT_OF(stream, cudaStreamGetDevice(stream, device));
}

/* A green context that is gone has left its streams to the primary one. */
static int context_of(void **context, const void *stream)
{
    const void *owner = ibx_frontend_owner(OWNED_STREAM, stream);
    if (!context)
        return CUDA_INVALID_VALUE;
    *context = ibx_driver_is_context(owner) ? (void *)(uintptr_t)owner
               : owner                      ? ibx_driver_primary(ibx_driver_device(owner))
               : ibx_driver_current()       ? ibx_driver_current()
                                            : ibx_driver_primary(ibx_frontend_current_device());
    return CUDA_SUCCESS;
}

EXPORTED int cuStreamGetCtx(const void *stream, void **context)
{
    return IN_CONTEXT_OF(stream, context_of(context, stream));
}

/* A stream of a green context is also one of the primary context. */
static int contexts_of(void **context, void **green, const void *stream)
{
    void *part = ibx_driver_part_of_stream(stream);
    const int rc = context_of(context, stream);
    if (!rc && green)
        *green = part;
    if (!rc && part)
        *context = ibx_driver_primary(ibx_driver_device_of(part));
    return rc;
}

EXPORTED int cuStreamGetCtx_v2(const void *stream, void **context, void **green)
{
    return IN_CONTEXT_OF(stream, contexts_of(context, green, stream));
}

EXPORTED int cuStreamCopyAttributes(void *to, void *from)
{
    return IN_CONTEXT(cudaStreamCopyAttributes(to, from));
}

EXPORTED int cuStreamGetAttribute(void *stream, int attribute, void *value)
{
    return IN_CONTEXT_OF(stream, cudaStreamGetAttribute(stream, attribute, value));
}

EXPORTED int cuStreamSetAttribute(void *stream, int attribute, const void *value)
{
    return IN_CONTEXT_OF(stream, cudaStreamSetAttribute(stream, attribute, value));
}

/* ---------------------------------------------------------------------- functions of the host */

EXPORTED int cuLaunchHostFunc(void *stream, void (*function)(void *argument), void *argument)
{
    return IN_CONTEXT_OF(stream, cudaLaunchHostFunc(stream, function, argument));
}

EXPORTED int cuLaunchHostFunc_v2(void *stream, void (*function)(void *argument), void *argument,
                                 unsigned how)
{
    return IN_CONTEXT_OF(stream, cudaLaunchHostFunc_v2(stream, function, argument, how));
}

struct callback {
    void (*function)(void *stream, int result, void *argument);
    void *argument;
};

static void call_back(void *stream, int status, void *argument)
{
    const struct callback callback = *(struct callback *)argument;
    free(argument);
    callback.function(stream, ibx_driver_result(status), callback.argument);
}

static int add_callback(void *stream, void (*function)(void *stream, int result, void *argument),
                        void *argument, unsigned flags)
{
    struct callback *callback = function ? malloc(sizeof(*callback)) : NULL;
    if (!callback)
        return function ? CUDA_MEMORY_ALLOCATION : CUDA_INVALID_VALUE;
    *callback = (struct callback){function, argument};
    const int rc = cudaStreamAddCallback(stream, call_back, callback, flags);
    if (rc)
        free(callback);
    return rc;
}

EXPORTED int cuStreamAddCallback(void *stream,
                                 void (*function)(void *stream, int result, void *argument),
                                 void *argument, unsigned flags)
{
    return IN_CONTEXT_OF(stream, add_callback(stream, function, argument, flags));
}

/* ------------------------------------------------------------------------------- captures */

EXPORTED int cuStreamBeginCapture_v2(void *stream, int mode)
{
    return IN_CONTEXT_OF(stream, cudaStreamBeginCapture(stream, mode));
}

EXPORTED int cuStreamBeginCapture(void *stream)
{
    return IN_CONTEXT_OF(stream, cudaStreamBeginCapture(stream, CUDA_CAPTURE_GLOBAL));
}

EXPORTED int cuStreamBeginCaptureToGraph(void *stream, void *graph, void *const *behind,
                                         const void *edges, size_t count, int mode)
{
    return IN_CONTEXT_OF(stream,
                         cudaStreamBeginCaptureToGraph(stream, graph, behind, edges, count, mode));
}

EXPORTED int cuStreamEndCapture(void *stream, void **graph)
{
    return IN_CONTEXT_OF(stream, cudaStreamEndCapture(stream, graph));
}

EXPORTED int cuStreamIsCapturing(void *stream, int *status)
{
    return IN_CONTEXT_OF(stream, cudaStreamIsCapturing(stream, status));
}

EXPORTED int cuThreadExchangeStreamCaptureMode(int *mode)
{
    return ANYWHERE(cudaThreadExchangeStreamCaptureMode(mode));
}

EXPORTED int cuStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id)
{
    return IN_CONTEXT_OF(stream, cudaStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL));
}

EXPORTED int cuStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id,
                                       void **graph, void *const **behind, size_t *count)
{
    return IN_CONTEXT_OF(stream,
                         cudaStreamGetCaptureInfo_v2(stream, status, id, graph, behind, count));
}

EXPORTED int cuStreamGetCaptureInfo_v3(void *stream, int *status, unsigned long long *id,
                                       void **graph, void *const **behind, const void **edges,
                                       size_t *count)
{
    return IN_CONTEXT_OF(
        stream, cudaStreamGetCaptureInfo_v3(stream, status, id, graph, behind, edges, count));
}

EXPORTED int cuStreamUpdateCaptureDependencies_v2(void *stream, void *const *nodes,
                                                  const void *edges, size_t count, unsigned flags)
{
    return IN_CONTEXT_OF(
        stream, cudaStreamUpdateCaptureDependencies_v2(stream, nodes, edges, count, flags));
}

EXPORTED int cuStreamUpdateCaptureDependencies(void *stream, void *const *nodes, size_t count,
                                               unsigned flags)
{
    return cuStreamUpdateCaptureDependencies_v2(stream, nodes, NULL, count, flags);
}

/* ------------------------------------------------------------------------------- events */

EXPORTED int cuEventCreate(void **event, unsigned flags)
{
    return IN_CONTEXT(event ? made(cudaEventCreateWithFlags(event, flags), OWNED_EVENT, event)
                            : CUDA_INVALID_VALUE);
}

EXPORTED int cuEventDestroy_v2(void *event)
{
    return IN_CONTEXT_OF(event, cudaEventDestroy(event));
}

EXPORTED int cuEventRecord(void *event, void *stream)
{
    return IN_CONTEXT_OF(stream, cudaEventRecord(event, stream));
}

EXPORTED int cuEventRecordWithFlags(void *event, void *stream, unsigned flags)
{
    return IN_CONTEXT_OF(stream, cudaEventRecordWithFlags(event, stream, flags));
}

EXPORTED int cuEventQuery(void *event)
{
    return IN_CONTEXT_OF(event, cudaEventQuery(event));
}

EXPORTED int cuEventSynchronize(void *event)
{
    return IN_CONTEXT_OF(event, cudaEventSynchronize(event));
}

EXPORTED int cuEventElapsedTime(float *ms, void *from, void *to)
{
    return IN_CONTEXT_OF(from, cudaEventElapsedTime(ms, from, to));
}

/* ------------------------------------------------------------------------------ profiler */

EXPORTED int cuProfilerStart(void)
{
    return IN_CONTEXT(cudaProfilerStart());
}

EXPORTED int cuProfilerStop(void)
{
    return IN_CONTEXT(cudaProfilerStop());
}

SAME_AS(cuStreamDestroy, cuStreamDestroy_v2)
SAME_AS(cuEventDestroy, cuEventDestroy_v2)
SAME_AS(cuEventElapsedTime_v2, cuEventElapsedTime)
