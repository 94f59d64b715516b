/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The output of printf in kernels, which the driver writes at the back end. If a module of the
 * program calls printf, the output is fetched after each call that waits, when CUDA would write it,
 * and at the end of the process. A reply to such a call tells whether there is any; if it does not,
 * or the call was answered in this process, the back end is asked. What one thread has fetched is
 * written before another one's wait returns.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/clock.h"
#include "common/fork_lock.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#define TURN_MS 1000u    /* how long a wait waits for another thread that writes */
#define END_MS  1000u    /* how long the end of the process waits for the output */
#define LOOK_NS 1000000l /* ... and looks whether another thread still writes its own */

static atomic_bool prints;                        /* a module of this program calls printf */
static struct ibx_fork_lock turn = IBX_FORK_LOCK; /* of who fetches and writes */

static void end_turn(void *alone)
{
    if (*(const bool *)alone)
        ibx_fork_lock_release(&turn);
}

/* The last call waits for nothing of other threads. */
static bool make_last(struct extension_request *e, uint64_t until, void *out, size_t n, int *code)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    const struct ibx_frontend_request request = {
        .name = IBX_EXT_WORK, .body = e->body.data, .n = e->body.length, .out = out, .out_n = n};
    return calls && ibx_now_ns() < until &&
           !calls->last_call(&request, (unsigned)ibx_ms_until(until), code);
}

/* Fetches and writes one reply; returns whether there may be more. `until`: the process ends; 0: it
 * does not. */
static bool fetch(unsigned wanted, uint64_t until)
{
    struct extension_request e;
    uint8_t bytes[4 + IBX_EXT_PRINTED_MOST] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    int code;
    ibx_frontend_request_begin(&e, IBX_EXT_PRINTED, "printf of a kernel");
    ibx_put_u8(&e.body, (uint8_t)wanted);
    if (!(until ? make_last(&e, until, bytes, sizeof(bytes), &code)
                : ibx_frontend_request_try(&e, bytes, sizeof(bytes), &code)))
        return false;
    if (code < 0 || code == CUDA_NOT_SUPPORTED)
        atomic_store(&prints, false);
    const uint32_t n = ibx_get_u32(&r);
    if (code || n > IBX_EXT_PRINTED_MOST)
        return false;
    fwrite(ibx_get_bytes(&r, n), 1, n, stdout);
    return n == IBX_EXT_PRINTED_MOST;
}

static bool asks(void)
{
    return atomic_load_explicit(&prints, memory_order_relaxed) && !ibx_frontend_capturing() &&
           !ibx_frontend_in_host_function();
}

void ibx_frontend_wait_begins(void)
{
    int some;
    if (atomic_load_explicit(&prints, memory_order_relaxed))
        ibx_frontend_knows(IBX_FRONTEND_PRINTED, 0, &some);
}

void ibx_frontend_printed(void)
{
    int some = false;
    if (!asks())
        return;
    const int before = errno;
    /* False: another thread writes for long, to a pipe that is full or while somebody has the lock
     * of `stdout`, which may be who waits here. */
    bool alone = ibx_fork_lock_try_for(&turn, TURN_MS);
    pthread_cleanup_push(end_turn, &alone); /* the thread may be cancelled while it writes */
    const bool told = ibx_frontend_knows(IBX_FRONTEND_PRINTED, 0, &some);
    bool more = !told || some ? fetch(told ? 0 : IBX_EXT_PRINTED_ALL, 0) : false;
    while (more)
        more = fetch(0, 0);
    pthread_cleanup_pop(true);
    errno = before;
}

/* Takes the lock of `stdout`, which a thread that goes on may keep for ever. */
static bool lock_output(uint64_t until)
{
    while (ftrylockfile(stdout)) {
        if (ibx_now_ns() >= until)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
    return true;
}

void ibx_frontend_print_last(void)
{
    const uint64_t until = ibx_deadline_in_ms(END_MS);
    if (!asks() || !lock_output(until))
        return;
    const int before = errno;
    bool more = fetch(IBX_EXT_PRINTED_ALL, until);
    while (more)
        more = fetch(0, until);
    errno = before;
    funlockfile(stdout);
}

void ibx_frontend_prints(void)
{
    if (!atomic_exchange(&prints, true))
        fetch(IBX_EXT_PRINTED_TELL, 0);
}

void ibx_frontend_print_all(void)
{
    if (asks())
        ibx_frontend_device_wait_within();
}

int ibx_frontend_waited(int rc, uint64_t stream)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    if (rc || !calls)
        return rc;
    ibx_frontend_printed();
    rc = calls->failure(stream);
    return rc ? ibx_frontend_fail(rc) : CUDA_SUCCESS;
}
