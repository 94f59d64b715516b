/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls about streams and events, and memory that is set: short ones, made without GVirtuS where
 * that is possible, since its front end alone takes longer than they do.
 *
 * The plugin has GVirtuS's requests wait for copies that are under way in the background. It cannot
 * make them query without waiting, or return what became of those copies: these calls do.
 */
#include "frontend-glue/preload/internal.h"

#include <string.h>

#define BODY_MAX 32

/* A body of up to four numbers of 8 bytes. */
#define BODY(name) struct ibx_writer name = ibx_writer_of((uint8_t[BODY_MAX]){0}, BODY_MAX)

static void put_handle(struct ibx_writer *body, const void *handle)
{
    ibx_put_u64(body, (uintptr_t)handle);
}

/* A call whose only argument is a handle. */
static bool called(const char *name, const void *handle, int *rc)
{
    BODY(body);
    put_handle(&body, handle);
    return ibx_frontend_called(name, &body, rc);
}

/* ----------------------------------------------------------------- calls that enqueue */

int cudaEventRecord(void *event, void *stream)
{
    BODY(body);
    int rc;
    put_handle(&body, event);
    put_handle(&body, stream);
    return ibx_frontend_called("cudaEventRecord", &body, &rc)
               ? rc
               : CALL_NEXT(cudaEventRecord, event, stream);
}

int cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    BODY(body);
    int rc;
    put_handle(&body, stream);
    put_handle(&body, event);
    ibx_put_u32(&body, flags);
    return ibx_frontend_called("cudaStreamWaitEvent", &body, &rc)
               ? rc
               : CALL_NEXT(cudaStreamWaitEvent, stream, event, flags);
}

int cudaGraphLaunch(void *graph, void *stream)
{
    BODY(body);
    int rc;
    put_handle(&body, graph);
    put_handle(&body, stream);
    return ibx_frontend_called("cudaGraphLaunch", &body, &rc)
               ? rc
               : CALL_NEXT(cudaGraphLaunch, graph, stream);
}

static bool set(void *address, int value, size_t n, int *rc)
{
    BODY(body);
    put_handle(&body, address);
    ibx_put_u32(&body, (uint32_t)value);
    ibx_put_u64(&body, n);
    ibx_frontend_device_used();
    return ibx_frontend_called("cudaMemset", &body, rc);
}

int cudaMemset(void *address, int value, size_t n)
{
    int rc;
    return set(address, value, n, &rc) ? rc : CALL_NEXT(cudaMemset, address, value, n);
}

/* Whether GVirtuS's front end sends cudaMemset for cudaMemsetAsync (G4, G5), whose back end has no
 * other. */
static atomic_bool sets_in_legacy_stream;

int cudaMemsetAsync(void *address, int value, size_t n, void *stream)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    int rc;
    if (atomic_load_explicit(&sets_in_legacy_stream, memory_order_relaxed) &&
        set(address, value, n, &rc))
        return rc;
    rc = CALL_NEXT(cudaMemsetAsync, address, value, n, stream);
    if (!rc && calls && !strcmp(calls->last_call(), "cudaMemset"))
        atomic_store(&sets_in_legacy_stream, true);
    return rc;
}

/* --------------------------------------------------------------- calls that wait, or ask */

/* The wait is over: functions of the application's that were before it were called, or are lost. */
static int waited(int rc, uint64_t mark, bool all, const void *stream)
{
    rc = ibx_frontend_waited(rc, (uintptr_t)stream);
    return !rc && ibx_frontend_host_lost(mark, all, stream) ? ibx_frontend_fail(CUDA_UNKNOWN) : rc;
}

int cudaStreamSynchronize(void *stream)
{
    const uint64_t mark = ibx_frontend_host_enqueued();
    int rc = CUDA_SUCCESS;
    if (!ibx_frontend_knows(IBX_FRONTEND_STREAM_RESTS, (uintptr_t)stream, NULL) &&
        !called("cudaStreamSynchronize", stream, &rc))
        rc = CALL_NEXT(cudaStreamSynchronize, stream);
    return waited(rc, mark, false, stream);
}

int cudaStreamQuery(void *stream)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    int rc = CUDA_SUCCESS;
    if (calls && calls->pending((uintptr_t)stream))
        return CUDA_NOT_READY;
    if (!ibx_frontend_knows(IBX_FRONTEND_STREAM_RESTS, (uintptr_t)stream, NULL) &&
        !called("cudaStreamQuery", stream, &rc))
        rc = CALL_NEXT(cudaStreamQuery, stream);
    return ibx_frontend_waited(rc, (uintptr_t)stream);
}

int cudaEventSynchronize(void *event)
{
    int rc = CUDA_SUCCESS;
    if (!ibx_frontend_knows(IBX_FRONTEND_EVENT_OVER, (uintptr_t)event, NULL) &&
        !called("cudaEventSynchronize", event, &rc))
        rc = CALL_NEXT(cudaEventSynchronize, event);
    return ibx_frontend_waited(rc, 0);
}

int cudaEventQuery(void *event)
{
    int rc = CUDA_SUCCESS;
    if (!ibx_frontend_knows(IBX_FRONTEND_EVENT_OVER, (uintptr_t)event, NULL) &&
        !called("cudaEventQuery", event, &rc))
        rc = CALL_NEXT(cudaEventQuery, event);
    return ibx_frontend_waited(rc, 0);
}

int cudaDeviceSynchronize(void)
{
    const uint64_t mark = ibx_frontend_host_enqueued();
    BODY(body);
    int rc;
    if (!ibx_frontend_called("cudaDeviceSynchronize", &body, &rc))
        rc = CALL_NEXT(cudaDeviceSynchronize);
    /* Of the current device; whose a stream is, is not known here. */
    return waited(rc, ibx_frontend_one_device() ? mark : 0, true, NULL);
}
