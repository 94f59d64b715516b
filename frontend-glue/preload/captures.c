/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Streams that are being captured. GVirtuS begins and ends captures. Its handlers would capture a
 * copy from or to the host with an address of the back end's, and memory that is set in another
 * stream: these go into the graph in another way (graph_copies.c, extra.c).
 */
#include "frontend-glue/preload/internal.h"
#include "frontend-glue/session/calls.h"

#include <pthread.h>

static _Atomic unsigned captures;                           /* that this process has begun */
static _Thread_local int thread_mode = CUDA_CAPTURE_GLOBAL; /* as the program knows it */

static void in_child(void)
{
    atomic_store(&captures, 0);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static void ends(void)
{
    unsigned was = atomic_load(&captures);
    while (was && !atomic_compare_exchange_weak(&captures, &was, was - 1))
        ;
}

void ibx_frontend_capture_gone(void)
{
    ends();
}

/* A stream that is captured already is answered for here: the back end would ask CUDA about it. */
int ibx_frontend_capture_begin(void *stream, int mode)
{
    if (ibx_frontend_captures(stream))
        return ibx_frontend_fail(CUDA_ILLEGAL_STATE);
    ibx_frontend_managed_rests();
    atomic_fetch_add(&captures, 1); /* before another thread's event can bring a stream into it */
    const int rc = CALL_NEXT(cudaStreamBeginCapture, stream, mode);
    if (rc)
        ends();
    return rc;
}

int ibx_frontend_capture_end(void *stream, void **graph)
{
    const int rc = CALL_NEXT(cudaStreamEndCapture, stream, graph);
    if (ibx_call_ends_capture(rc))
        ends();
    return rc;
}

/* All clients are threads of one process at the back end: the mode GLOBAL would let this one's
 * calls end others' captures, and theirs this one's. */
int cudaThreadExchangeStreamCaptureMode(int *mode)
{
    if (!mode)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const int wanted = *mode;
    int there = wanted == CUDA_CAPTURE_GLOBAL ? CUDA_CAPTURE_THREAD_LOCAL : wanted;
    const int rc = CALL_NEXT(cudaThreadExchangeStreamCaptureMode, &there);
    if (rc)
        return rc;
    *mode = thread_mode;
    thread_mode = wanted;
    return CUDA_SUCCESS;
}

static int ask(void *stream, int *status, bool *known)
{
    struct extra e;
    uint8_t bytes[4] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    int rc = CUDA_SUCCESS;
    ibx_frontend_extra_begin(&e, IBX_EXTRA_IS_CAPTURING, "cudaStreamIsCapturing");
    ibx_put_u64(&e.body, (uintptr_t)stream);
    *known = ibx_frontend_extra_known(&e, bytes, sizeof(bytes), &rc);
    *status = *known && !rc ? (int)ibx_get_u32(&r) : 0;
    return rc;
}

int cudaStreamIsCapturing(void *stream, int *status)
{
    bool known;
    int now;
    if (!status)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const int rc = ask(stream, &now, &known);
    if (!known)
        return CALL_NEXT(cudaStreamIsCapturing, stream, status);
    if (!rc)
        *status = now;
    return rc;
}

bool ibx_frontend_capturing(void)
{
    return atomic_load_explicit(&captures, memory_order_relaxed);
}

/* An error is one of the call that follows, too. */
bool ibx_frontend_captures(void *stream)
{
    bool known;
    int status = 0;
    if (!ibx_frontend_capturing() || (uintptr_t)stream == 1)
        return false;
    if (stream)
        ask(stream, &status, &known);
    return status;
}

static int capture(void *stream, uint64_t queue, uint64_t number)
{
    struct extra e;
    ibx_frontend_extra_begin(&e, IBX_EXTRA_HOST_CAPTURE, "cudaLaunchHostFunc");
    ibx_put_u64(&e.body, (uintptr_t)stream);
    ibx_put_u64(&e.body, queue);
    ibx_put_u64(&e.body, number);
    return ibx_frontend_extra(&e, NULL, 0);
}

int ibx_frontend_capture_function(void *stream, void (*function)(void *argument), void *argument)
{
    uint64_t queue;
    const uint64_t number = ibx_frontend_host_repeated(function, argument, &queue);
    return number ? capture(stream, queue, number) : ibx_frontend_fail(CUDA_NOT_SUPPORTED);
}

int ibx_frontend_capture_copy(const struct ibx_cuda_memcpy3d *copy, void *stream)
{
    struct extra e;
    uint64_t queue;
    int rc = CUDA_SUCCESS;
    ibx_frontend_extra_begin(&e, IBX_EXTRA_CAPTURE_COPY, "cudaMemcpyAsync");
    ibx_put_u64(&e.body, (uintptr_t)stream);
    if (ibx_frontend_slot_copy(&e.body, copy) && ibx_frontend_slot_made(&e, NULL, 0, &rc))
        return rc;
    const uint64_t number = ibx_frontend_copy_function(copy, &queue, &rc);
    return number ? capture(stream, queue, number) : ibx_frontend_fail(rc);
}
