/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Whether streams are being captured, and how many captures this process has begun. What makes a
 * graph of a capture is in capture_graphs.c, and what goes into one in another way than GVirtuS's
 * in captured_work.c.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <pthread.h>

static _Atomic unsigned captures; /* that this process has begun */
/* Of threads' own streams; of these, such as had no work before. Under the lock of ranges. */
static unsigned of_threads, of_rested;
static _Thread_local int thread_mode = CUDA_CAPTURE_GLOBAL; /* as the program knows it */

static void in_child(void)
{
    atomic_store(&captures, 0);
    of_threads = of_rested = 0;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

void ibx_frontend_capture_begins(void)
{
    atomic_fetch_add(&captures, 1);
}

void ibx_frontend_capture_gone(void)
{
    unsigned was = atomic_load(&captures);
    while (was && !atomic_compare_exchange_weak(&captures, &was, was - 1))
        ;
}

void ibx_frontend_thread_capture_begins(bool rested)
{
    of_threads++;
    of_rested += rested;
}

void ibx_frontend_thread_capture_ends(bool rested)
{
    of_threads--;
    of_rested -= rested;
}

bool ibx_frontend_threads_capture(unsigned *rested)
{
    ibx_frontend_ranges_lock();
    const bool any = of_threads;
    *rested = of_rested;
    ibx_frontend_ranges_unlock();
    return any;
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
    struct own_request e;
    uint8_t bytes[4] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    int rc = CUDA_SUCCESS;
    ibx_frontend_request_begin(&e, IBX_OWN_IS_CAPTURING, "cudaStreamIsCapturing");
    ibx_put_u64(&e.body, (uintptr_t)stream);
    *known = ibx_frontend_request_known(&e, bytes, sizeof(bytes), &rc);
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
