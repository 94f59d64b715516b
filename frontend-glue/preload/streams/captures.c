/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which streams are captured, and how many captures this process has begun. capture_graphs.c makes
 * graphs of captures, and captured_work.c handles work that is captured in another way than GVirtuS
 * would.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/fork_lock.h"
#include "common/thread.h"

#include <pthread.h>

#define NOT_KNOWN           (-1) /* no mode */
#define CAPTURE_INVALIDATED 2    /* cudaStreamCaptureStatus */
#define HOLD_MS             1000u

static _Atomic unsigned captures; /* captures that this process has begun */
/* Captures of threads' own streams, and those of them that had no work before. Protected by the
 * lock of ranges. */
static unsigned of_threads, of_rested;
static _Thread_local int thread_mode = CUDA_CAPTURE_GLOBAL; /* the mode that the program has set */
static _Thread_local int mode_there = NOT_KNOWN;            /* that of its thread at the back end */

static void in_child(void)
{
    mode_there = NOT_KNOWN;
    atomic_store(&captures, 0);
    of_threads = of_rested = 0;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static struct ibx_fork_lock beginning = IBX_FORK_LOCK; /* while a capture begins, or must not */
static _Thread_local bool holds;

/* Who has it may access managed memory, for which this thread is to serve: so it is not waited for
 * longer. */
int ibx_frontend_captures_hold(void)
{
    const int cancel = ibx_thread_hold_cancel();
    holds = ibx_fork_lock_try_for(&beginning, HOLD_MS);
    return cancel;
}

void ibx_frontend_captures_let_go(int cancel)
{
    if (holds)
        ibx_fork_lock_release(&beginning);
    ibx_thread_release_cancel(cancel);
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

/* All clients are threads of one process at the back end. In mode GLOBAL calls of this client would
 * invalidate captures of others, and theirs this one's: so THREAD_LOCAL is used. PyTorch changes
 * between the two and back around each of its queries, which changes nothing there. */
int cudaThreadExchangeStreamCaptureMode(int *mode)
{
    if (!mode)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const int wanted = *mode,
              used = wanted == CUDA_CAPTURE_GLOBAL ? CUDA_CAPTURE_THREAD_LOCAL : wanted;
    int there = used;
    if (used != mode_there) {
        const int rc = CALL_NEXT(cudaThreadExchangeStreamCaptureMode, &there);
        if (rc)
            return rc;
    }
    mode_there = used;
    *mode = thread_mode;
    thread_mode = wanted;
    return CUDA_SUCCESS;
}

int ibx_frontend_capture_mode(void)
{
    return thread_mode;
}

/* ------------------------------------------------------ calls of this library beside captures */

/* Where GVirtuS has no such call, the mode stays. */
int ibx_frontend_relax(void)
{
    int mode = CUDA_CAPTURE_RELAXED;
    const bool relaxes = ibx_frontend_capturing() && thread_mode != CUDA_CAPTURE_RELAXED &&
                         NEXT(cudaThreadExchangeStreamCaptureMode);
    return relaxes && !cudaThreadExchangeStreamCaptureMode(&mode) ? mode : CUDA_CAPTURE_RELAXED;
}

void ibx_frontend_relax_end(int mode)
{
    if (mode != CUDA_CAPTURE_RELAXED)
        cudaThreadExchangeStreamCaptureMode(&mode);
}

int ibx_frontend_stream_wait(void *stream)
{
    const int mode = ibx_frontend_relax(), rc = ibx_frontend_stream_wait_within(stream);
    ibx_frontend_relax_end(mode);
    return rc;
}

/* -------------------------------------------------------------------- what captures forbid */

static ibx_frontend_next_capture *_Atomic next_forbidding;

void ibx_frontend_captures_forbid(ibx_frontend_next_capture *next)
{
    atomic_store(&next_forbidding, next);
}

/* Invalidates the capture; false: that has ended, unseen. */
static bool invalidate(void *stream)
{
    const int rc = ibx_frontend_stream_ask(stream);
    return rc && rc != CUDA_NOT_READY && rc != CUDA_INVALID_HANDLE;
}

static int forbidden(enum ibx_forbidden call, bool others)
{
    ibx_frontend_next_capture *const next = atomic_load(&next_forbidding);
    unsigned long long last = 0, id;
    bool any = false;
    void *stream;
    for (; next && (id = next(last, call, others, &stream)); last = id)
        any = !stream || invalidate(stream) || any;
    return !any ? CUDA_SUCCESS
                : ibx_frontend_fail(call == FORBIDDEN_LEGACY ? CUDA_CAPTURE_IMPLICIT
                                                             : CUDA_CAPTURE_UNSUPPORTED);
}

int ibx_frontend_broken(void)
{
    int code;
    return ibx_frontend_knows(IBX_FRONTEND_BROKEN, 0, &code) ? ibx_frontend_fail(code)
                                                             : CUDA_SUCCESS;
}

int ibx_frontend_unsafe(void)
{
    const int broken = ibx_frontend_broken();
    return broken                     ? broken
           : ibx_frontend_capturing() ? forbidden(FORBIDDEN_UNSAFE, false)
                                      : CUDA_SUCCESS;
}

int ibx_frontend_unsafe_beside(void)
{
    return ibx_frontend_capturing() && !ibx_frontend_in_host_function()
               ? forbidden(FORBIDDEN_UNSAFE, true)
               : CUDA_SUCCESS;
}

/* The back end waits for captures of other sessions, so as not to end them. */
static int wait_refused(enum ibx_forbidden call)
{
    ibx_frontend_next_capture *const next = atomic_load(&next_forbidding);
    void *stream;
    return ibx_frontend_capturing() && !ibx_frontend_in_host_function() && next &&
                   next(0, call, true, &stream)
               ? forbidden(call, false)
               : CUDA_SUCCESS;
}

int ibx_frontend_device_wait_refused(void)
{
    return wait_refused(FORBIDDEN_WAIT);
}

int ibx_frontend_legacy_wait_refused(const void *stream)
{
    return (uintptr_t)stream > 1 ? CUDA_SUCCESS : wait_refused(FORBIDDEN_LEGACY);
}

int ibx_frontend_unsafe_in(void *stream)
{
    return ibx_frontend_captures(stream) ? CUDA_SUCCESS : ibx_frontend_unsafe_beside();
}

/* ------------------------------------------------------------------- which streams are captured */

static int ask(void *stream, int *status, bool *known)
{
    struct extension_request e;
    uint8_t bytes[4] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    int rc = CUDA_SUCCESS;
    ibx_frontend_request_begin(&e, IBX_EXT_IS_CAPTURING, "cudaStreamIsCapturing");
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

static atomic_bool memory_captured;

void ibx_frontend_ordered_memory(void)
{
    if (ibx_frontend_capturing())
        atomic_store(&memory_captured, true);
}

bool ibx_frontend_captured_memory(void)
{
    return atomic_load(&memory_captured);
}

bool ibx_frontend_capture_is_invalid(void *stream)
{
    bool known;
    int status = 0;
    if (ibx_frontend_capturing() && (uintptr_t)stream > 1)
        ask(stream, &status, &known);
    return status == CAPTURE_INVALIDATED;
}

bool ibx_frontend_capture_refuses(void *stream, int *rc)
{
    if (!ibx_frontend_captures(stream))
        return false;
    const int code = ibx_frontend_stream_ask(stream);
    const bool ended = !code || code == CUDA_NOT_READY; /* the capture, meanwhile */
    *rc = ended ? code : ibx_frontend_fail(code);
    return !ended;
}

/* A query of the legacy stream invalidates these captures, too, in whatever mode the thread is; in
 * mode RELAXED it invalidates no others. */
bool ibx_frontend_legacy_refuses(void *stream, int *rc)
{
    if ((uintptr_t)stream > 1 || !ibx_frontend_capturing())
        return false;
    int code = CUDA_SUCCESS;
    const int mode = ibx_frontend_relax();
    if (thread_mode == CUDA_CAPTURE_RELAXED)
        code = ibx_frontend_stream_ask(NULL);
    ibx_frontend_relax_end(mode);
    if (code == CUDA_CAPTURE_IMPLICIT)
        *rc = ibx_frontend_fail(code);
    return code == CUDA_CAPTURE_IMPLICIT;
}

/* An error of the request is ignored: the call that follows has it, too. */
static int status_of(void *stream, bool *known)
{
    int status = 0;
    *known = true;
    if (ibx_frontend_capturing() && (uintptr_t)stream > 1)
        ask(stream, &status, known);
    return status;
}

bool ibx_frontend_captures(void *stream)
{
    bool known;
    return status_of(stream, &known);
}

bool ibx_frontend_may_capture(void *stream)
{
    bool known;
    return status_of(stream, &known) || !known;
}
