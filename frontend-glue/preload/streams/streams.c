/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls about streams and events. They are short, and made without GVirtuS where possible, whose
 * front end takes longer than they do.
 *
 * The plugin has GVirtuS's requests wait for copies that are under way in the background. It cannot
 * make GVirtuS's queries return without waiting, or return the errors of those copies: these
 * functions do that.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <stdatomic.h>

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

int ibx_frontend_event_record(void *event, void *stream)
{
    BODY(body);
    int rc;
    put_handle(&body, event);
    put_handle(&body, stream);
    if (!ibx_frontend_called("cudaEventRecord", &body, &rc))
        rc = CALL_NEXT(cudaEventRecord, event, stream);
    if (!rc)
        ibx_frontend_host_event(event, stream);
    return rc;
}

/* An event in the legacy stream is over when all work is that blocking streams had before it, and
 * their later work comes after that. Without such work it says nothing. */
static int record(void *event, void *stream)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    if ((uintptr_t)stream > 1 || !calls || ibx_frontend_knows(IBX_FRONTEND_ALL_RESTS, 0, NULL))
        return ibx_frontend_event_record(event, stream);
    calls->legacy_orders();
    const int rc = ibx_frontend_event_record(event, stream);
    calls->legacy_orders();
    if (!rc)
        ibx_frontend_host_ordered();
    return rc;
}

int cudaEventRecord(void *event, void *stream)
{
    const int rc = record(event, stream);
    if (!rc && ibx_frontend_capturing())
        ibx_frontend_forks_recorded(event, stream);
    return rc;
}

int ibx_frontend_stream_wait_event(void *stream, void *event, unsigned flags)
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

/* With a flag the wait is a node of its own, and no stream joins a capture by it. */
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    if (flags || !ibx_frontend_capturing())
        return ibx_frontend_stream_wait_event(stream, event, flags);
    const bool joins = ibx_frontend_forks_captured(event);
    const int cancel = joins ? ibx_frontend_captures_hold() : 0;
    const int rc = ibx_frontend_stream_wait_event(stream, ibx_frontend_forks_event(event), 0);
    if (joins)
        ibx_frontend_captures_let_go(cancel);
    if (!rc)
        ibx_frontend_forks_waited(stream, event);
    return rc;
}

bool ibx_frontend_captured(const struct extension_request *e, void *stream, int *rc)
{
    if (!ibx_frontend_captures(stream))
        return false;
    ibx_frontend_device_used();
    *rc = ibx_frontend_request_make(e, NULL, 0);
    return true;
}

bool ibx_frontend_planes_in_stream(const struct ibx_cuda_memcpy3d *copy, bool waits, void *stream,
                                   int *rc)
{
    struct ibx_cuda_memcpy3d within = *copy;
    struct extension_request e;
    int code;
    within.kind = CUDA_MEMCPY_ON_DEVICE;
    ibx_frontend_request_begin(&e, IBX_EXT_MEMCPY_3D_ASYNC, "cudaMemcpy3DAsync");
    ibx_layout_put(&e.body, IBX_LAYOUT_MEMCPY3D, &within);
    put_handle(&e.body, stream);
    if (waits)
        e.name = IBX_EXT_NAME;
    if (ibx_frontend_captured(&e, stream, rc))
        return true;
    ibx_frontend_device_used();
    ibx_frontend_stream_used(stream);
    if (!ibx_frontend_plugin() || !ibx_frontend_request_try(&e, NULL, 0, &code) || code < 0 ||
        code == CUDA_NOT_SUPPORTED)
        return false;
    *rc = code ? ibx_frontend_fail(code) : CUDA_SUCCESS;
    ibx_frontend_stream_worked(stream);
    return true;
}

/* --------------------------------------------------------------- calls that wait, or ask */

/* The result of a wait: an error if host functions before it are lost, or copies in graphs have
 * failed. */
static int told(int rc, bool lost)
{
    if (!rc && lost)
        rc = ibx_frontend_fail(CUDA_UNKNOWN);
    const int failure = rc ? CUDA_SUCCESS : ibx_frontend_graph_failure();
    return failure ? ibx_frontend_fail(failure) : rc;
}

/* The result of a wait after which all host functions before it were called, or are lost. */
static int waited(int rc, uint64_t mark, bool all, const void *stream)
{
    rc = ibx_frontend_waited(rc, (uintptr_t)stream);
    return told(rc, !rc && ibx_frontend_host_lost(mark, all, stream));
}

static int event_waited(int rc, const void *event)
{
    rc = ibx_frontend_waited(rc, 0);
    return told(rc, !rc && ibx_frontend_host_event_lost(event));
}

/* A wait for a stream, or a query, because of captures of other threads. */
static int stream_refused(const void *stream)
{
    const int rc = ibx_frontend_legacy_wait_refused(stream);
    return rc ? rc : ibx_frontend_unsafe_beside();
}

int ibx_frontend_stream_wait_within(void *stream)
{
    const uint64_t mark = ibx_frontend_host_enqueued();
    int rc = CUDA_SUCCESS;
    ibx_frontend_wait_begins();
    if (!ibx_frontend_knows(IBX_FRONTEND_STREAM_RESTS, (uintptr_t)stream, NULL) &&
        !called("cudaStreamSynchronize", stream, &rc))
        rc = CALL_NEXT(cudaStreamSynchronize, stream);
    if (!rc && stream)
        ibx_frontend_stream_rests(stream);
    return waited(rc, mark, false, stream);
}

int cudaStreamSynchronize(void *stream)
{
    const int rc = stream_refused(stream);
    return rc ? rc : ibx_frontend_stream_wait_within(stream);
}

static atomic_bool words_awaited;

void ibx_frontend_word_awaited(void)
{
    atomic_store(&words_awaited, true);
}

bool ibx_frontend_words_awaited(void)
{
    return atomic_load_explicit(&words_awaited, memory_order_relaxed);
}

int cudaStreamQuery(void *stream)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    int rc = stream_refused(stream);
    if (rc)
        return rc;
    if (calls && calls->pending((uintptr_t)stream))
        return CUDA_NOT_READY;
    ibx_frontend_wait_begins();
    if (!ibx_frontend_knows(IBX_FRONTEND_STREAM_RESTS, (uintptr_t)stream, NULL) &&
        !called("cudaStreamQuery", stream, &rc))
        rc = CALL_NEXT(cudaStreamQuery, stream);
    if (!rc && stream)
        ibx_frontend_stream_rests(stream);
    return ibx_frontend_waited(rc, (uintptr_t)stream);
}

int ibx_frontend_stream_ask(void *stream)
{
    int rc;
    if (!called("cudaStreamQuery", stream, &rc))
        rc = CALL_NEXT(cudaStreamQuery, stream);
    return rc;
}

/* Host functions may query events, but make no other calls in this way. */
static bool event_called(const char *name, void *event, int *rc)
{
    return !ibx_frontend_in_host_function() && called(name, event, rc);
}

/* Of an event that was recorded in a capture CUDA says so at the back end, whatever else captures
 * forbid. */
static int unsafe_event(const void *event)
{
    return ibx_frontend_capturing() && ibx_frontend_forks_captured(event)
               ? CUDA_SUCCESS
               : ibx_frontend_unsafe_beside();
}

int cudaEventSynchronize(void *event)
{
    int rc = unsafe_event(event);
    if (rc)
        return rc;
    ibx_frontend_wait_begins();
    if (!ibx_frontend_knows(IBX_FRONTEND_EVENT_OVER, (uintptr_t)event, NULL) &&
        !event_called("cudaEventSynchronize", event, &rc))
        rc = CALL_NEXT(cudaEventSynchronize, event);
    return event_waited(rc, event);
}

/* Its record was not run, so that the back end need not be asked. */
static bool is_pending(const void *event)
{
    return ibx_frontend_knows(IBX_FRONTEND_EVENT_PENDING, (uintptr_t)event, NULL);
}

static int ask_event(void *event)
{
    int rc = CUDA_SUCCESS;
    if (!ibx_frontend_knows(IBX_FRONTEND_EVENT_OVER, (uintptr_t)event, NULL) &&
        !event_called("cudaEventQuery", event, &rc))
        rc = CALL_NEXT(cudaEventQuery, event);
    return rc;
}

int cudaEventQuery(void *event)
{
    const int unsafe = unsafe_event(event);
    if (unsafe || is_pending(event))
        return unsafe ? unsafe : CUDA_NOT_READY;
    ibx_frontend_wait_begins();
    return event_waited(ask_event(event), event);
}

int ibx_frontend_event_ask(void *event)
{
    return is_pending(event) ? CUDA_NOT_READY : ask_event(event);
}

static int (*_Atomic after_device_wait)(void);

void ibx_frontend_after_device_wait(int (*function)(void))
{
    atomic_store(&after_device_wait, function);
}

int ibx_frontend_device_wait_within(void)
{
    int (*const after)(void) = atomic_load(&after_device_wait);
    const uint64_t mark = ibx_frontend_host_enqueued();
    BODY(body);
    int rc;
    ibx_frontend_wait_begins();
    if (!ibx_frontend_called("cudaDeviceSynchronize", &body, &rc))
        rc = CALL_NEXT(cudaDeviceSynchronize);
    if (!rc)
        ibx_frontend_stream_rests(NULL);
    /* Waits for the current device only, and it is not known here to which device a stream belongs.
     */
    rc = waited(rc, ibx_frontend_one_device() ? mark : 0, true, NULL);
    return rc || !after || !ibx_frontend_one_device() ? rc : after();
}

int cudaDeviceSynchronize(void)
{
    const int rc = ibx_frontend_device_wait_refused();
    return rc ? rc : ibx_frontend_device_wait_within();
}
