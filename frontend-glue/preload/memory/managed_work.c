/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * When the device works, and what that means for managed memory (managed.h): before a request that
 * has it work the host's bytes go there, and an access behind that waits until the device rests.
 */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/preload/memory/managed_pages.h"

#include "common/clock.h"
#include "common/log.h"
#include "frontend-glue/session/math_calls.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#define CAPTURE_MS 5000u /* that another program's capture is waited for */

/* Before the device works a thread says so, and looks whether any block is fresh; who is about to
 * make one fresh says so, and waits until no thread is there. So nobody misses the other. */
static atomic_uint working; /* threads that are about to have the device work */
static atomic_bool fresh;   /* some block may be */
/* How often work has begun, and how many of these are over, as far as a wait has shown: the device
 * may be working while they differ. */
static _Atomic uint64_t work_begun, work_over;
static bool ended; /* locked: with the process nothing is fetched any more */
static _Thread_local unsigned inside;
static _Thread_local bool counted; /* among those that are working */
static _Thread_local unsigned own;
static _Thread_local bool captured; /* what the thread has the device do becomes a graph's */
static _Thread_local bool waited;   /* for a fetch, while the device was about to work */
static _Thread_local bool recorded; /* what it has begun is a graph's */

static void in_child(void)
{
    atomic_store(&working, 0);
    counted = false;
    atomic_store(&fresh, false);
    atomic_store(&work_over, atomic_load(&work_begun));
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

void ibx_managed_add(struct managed *m, enum pages_state state)
{
    struct held_handlers before;
    ibx_managed_set_all(m, state);
    ibx_managed_lock(&before);
    if (m->fresh)
        atomic_store(&fresh, true);
    ibx_managed_link(m);
    ibx_managed_unlock(&before);
}

/* ---------------------------------------------------------------------- the device works */

void ibx_managed_own_begin(void)
{
    own++;
}

void ibx_managed_own_end(void)
{
    own--;
}

int ibx_managed_give(bool works)
{
    struct held_handlers before;
    ibx_managed_lock(&before);
    ibx_managed_own_begin();
    const int rc = ibx_managed_give_all();
    ibx_managed_own_end();
    if (!rc)
        atomic_store(&fresh, false);
    if (works) {
        atomic_fetch_add(&working, 1);
        atomic_fetch_add(&work_begun, 1);
    }
    ibx_managed_unlock(&before);
    return rc;
}

/* Beside captures another thread does: it has streams that no capture minds. */
static int have_given(bool works)
{
    return ibx_frontend_capturing() ? ibx_managed_have_given(works) : ibx_managed_give(works);
}

void ibx_frontend_managed_resets(void)
{
    if (ibx_managed_any())
        have_given(false);
}

/* No block of theirs is fresh meanwhile: it would have none of these bytes. */
int ibx_managed_join(const struct managed_variable *variable)
{
    for (;;) {
        struct held_handlers before;
        int rc = have_given(false);
        ibx_managed_lock(&before);
        struct managed *m = ibx_managed_holding(variable->where.at);
        const bool touched = !rc && m && m->fresh;
        if (!rc && (!m || !m->variables))
            rc = CUDA_INVALID_VALUE;
        if (!rc && !touched && !ibx_managed_add_variable(m, variable))
            rc = CUDA_MEMORY_ALLOCATION;
        ibx_managed_unlock(&before);
        if (!touched)
            return rc;
    }
}

/* Handlers of the program's are held: one that touches managed memory waits until nobody else is
 * working, and would wait for its own thread if that was counted and did not say so. Whether it
 * was. */
static bool count(bool now)
{
    const bool was = counted;
    counted = now;
    if (now && !was)
        atomic_fetch_add(&working, 1);
    else if (was && !now)
        atomic_fetch_sub(&working, 1);
    return was;
}

static int give_before_work(void)
{
    struct held_handlers before;
    ibx_managed_hold_handlers(&before);
    atomic_fetch_sub(&working, 1);
    const int rc = have_given(true); /* this thread is counted again by whoever does it */
    ibx_managed_let_handlers(&before);
    return rc;
}

static int work_begins(void)
{
    struct held_handlers before;
    if (own || inside++)
        return CUDA_SUCCESS;
    ibx_managed_hold_handlers(&before);
    count(true);
    ibx_managed_let_handlers(&before);
    recorded = captured;
    if (!captured)
        atomic_fetch_add(&work_begun, 1);
    return captured || !atomic_load(&fresh) ? CUDA_SUCCESS : give_before_work();
}

/* What was fetched meanwhile for this thread, for its arguments for instance, is stale now. A copy
 * of this thread's would come between its request and the reply: a handler of a signal may have
 * written meanwhile. Another one may have waited for the device before the work was there. */
static void work_has_begun(void)
{
    struct held_handlers before;
    if (own || !inside || --inside)
        return;
    ibx_managed_hold_handlers(&before);
    const bool again = waited;
    waited = false;
    if (again || !recorded)
        atomic_fetch_add(&work_begun, 1);
    count(false);
    ibx_managed_let_handlers(&before);
    if (again)
        ibx_managed_have_given(false);
}

bool ibx_managed_wait_begin(void)
{
    struct held_handlers before;
    ibx_managed_hold_handlers(&before);
    const bool works = count(false);
    ibx_managed_let_handlers(&before);
    return works;
}

void ibx_managed_wait_end(bool works)
{
    struct held_handlers before;
    if (!works)
        return;
    ibx_managed_hold_handlers(&before);
    count(true);
    waited = true;
    ibx_managed_let_handlers(&before);
}

/* ------------------------------------------------------------------- accesses of the host */

enum pages_answer ibx_managed_look(uintptr_t at, enum pages_access access)
{
    struct held_handlers before;
    ibx_managed_lock(&before);
    const enum pages_answer answer = ibx_managed_look_at(ibx_managed_holding(at), at, access);
    ibx_managed_unlock(&before);
    return answer;
}

static bool is_busy(void)
{
    return atomic_load(&work_over) != atomic_load(&work_begun);
}

/* Beside captures of this process's there may be more work than this. What begins meanwhile, this
 * does not wait for. */
static int wait_once(bool all_work)
{
    const uint64_t before = atomic_load(&work_begun);
    if (ibx_frontend_capturing())
        return ibx_frontend_streams_rest(all_work);
    const int rc = ibx_frontend_devices_wait();
    if (!rc)
        atomic_store(&work_over, before);
    return rc;
}

/* Until the device rests. While another program of the back end captures it cannot be
 * waited for, which is over soon. */
static bool rest(bool all_work)
{
    const uint64_t deadline = ibx_deadline_in_ms(CAPTURE_MS);
    int rc = CUDA_SUCCESS;
    do {
        if (rc)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        rc = wait_once(all_work);
    } while (rc == CUDA_CAPTURE_UNSUPPORTED && ibx_now_ns() < deadline);
    if (rc)
        ibx_log(IBX_LOG_ERROR,
                "managed memory cannot be read behind the device's work: the wait for that fails "
                "with CUDA's error %d: see what the back end says",
                rc);
    return !rc;
}

/* Locked. Until the device rests and nobody is about to change that. */
static bool wait_for_device(void)
{
    atomic_store(&fresh, true);
    while (atomic_load(&working))
        nanosleep(&(struct timespec){.tv_nsec = 5000}, NULL);
    return !is_busy() || rest(true);
}

enum pages_answer ibx_managed_fetch(uintptr_t at, enum pages_access access)
{
    struct held_handlers before;
    enum pages_answer answer = PAGES_READY;
    ibx_managed_own_begin();
    ibx_managed_lock(&before);
    struct managed *m = ibx_managed_holding(at);
    const size_t block = m ? (at - m->begin) / m->block : 0;
    if (!m)
        answer = PAGES_NONE;
    else if (m->state[block] == PAGES_STALE &&
             (ended || !wait_for_device() || !ibx_managed_fetch_block(m, at, access)))
        answer = PAGES_FAILED;
    ibx_managed_unlock(&before);
    ibx_managed_own_end();
    return answer;
}

void ibx_managed_end(unsigned ms)
{
    const uint64_t deadline = ibx_deadline_in_ms(ms);
    const struct timespec until = ibx_timespec_of(deadline);
    struct held_handlers before;
    if (ibx_managed_lock_until(&before, &until)) {
        ended = true;
        ibx_managed_unlock(&before);
    }
}

/* -------------------------------------------------------------------- what the plugin tells */

static bool starts(const char *name, const char *prefix)
{
    return !strncmp(name, prefix, strlen(prefix));
}

/* A request of our own, by its number. */
static bool extra_works(const void *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    switch (ibx_get_u16(&r)) {
    case IBX_OWN_LAUNCH:
    case IBX_OWN_TO_ARRAY:
    case IBX_OWN_FROM_ARRAY:
    case IBX_OWN_2D_TO_ARRAY:
    case IBX_OWN_2D_FROM_ARRAY:
    case IBX_OWN_MEMCPY_3D:
    case IBX_OWN_MEMCPY_3D_ASYNC:
    case IBX_OWN_MEMSET:
    case IBX_OWN_MEMSET_2D:
    case IBX_OWN_MEMSET_ELEMENTS:
        return true;
    default:
        return false;
    }
}

/* Whether a request may have the device read or write memory: all do that are not known here. */
static bool works(const char *name)
{
    static const char *const idle[] = {
        "cudaGet",    "cudaSet",        "cudaStream",   "cudaEvent",   "cudaDevice",
        "cudaMalloc", "cudaFree",       "cudaHost",     "cudaPeek",    "cudaFunc",
        "cudaOccup",  "cudaRegister",   "cudaUnregist", "cudaPush",    "cudaPop",
        "cudaChoose", "cudaCreate",     "cudaDestroy",  "cudaDriver",  "cudaRuntime",
        "cudaBind",   "cudaUnbind",     "cudaIpc",      "cudaPointer", "cudaMemGetInfo",
        "cudaGraph",  "cudaThreadExit", "cudaConfigure"};
    if (!strcmp(name, "cudaLaunchKernel") || !strcmp(name, "cudaGraphLaunch"))
        return true;
    for (size_t i = 0; i < sizeof(idle) / sizeof(idle[0]); i++) {
        if (starts(name, idle[i]))
            return false;
    }
    return true;
}

static int request_begins(const char *name, const void *body, size_t n, bool *begun)
{
    ibx_managed_in_gvirtus(!body);
    *begun = starts(name, "ibx") && !ibx_math_is(name) ? extra_works(body, n) : works(name);
    const int rc = *begun ? work_begins() : CUDA_SUCCESS;
    ibx_managed_in_gvirtus(false);
    return rc ? ibx_frontend_fail(rc) : CUDA_SUCCESS; /* nobody sees what <<<>>> returns */
}

/* Copies between other memory leave ours alone. One that is made while graphs wait for it does, by
 * what it was made from. */
static int copy_begins(const struct ibx_frontend_copy *copy, bool *begun)
{
    const uint64_t n = copy->rows ? (copy->rows - 1) * copy->device_pitch + copy->n : copy->n;
    *begun = !copy->alone && ibx_managed_touches(copy->device, n);
    return *begun ? work_begins() : CUDA_SUCCESS;
}

/* A copy that began before its memory became managed. Our own are of the second mapping. */
static bool withheld(const struct ibx_frontend_copy *copy)
{
    const size_t n = ibx_frontend_copy_extent(copy);
    uintptr_t at = (uintptr_t)copy->host, last;
    return ibx_managed_joins(at, n) || ibx_managed_within(&at, at + n, &last);
}

const struct ibx_frontend_watch ibx_managed_watch = {.request = request_begins,
                                                     .copy = copy_begins,
                                                     .over = work_has_begun,
                                                     .withheld = withheld,
                                                     .handlers = &ibx_managed_handlers};

bool ibx_frontend_managed_captured(void *stream)
{
    captured = stream && ibx_managed_any() && ibx_frontend_captures(stream);
    return captured;
}

void ibx_frontend_managed_launched(void)
{
    captured = false;
}

/* The thread of this library has the lock meanwhile, for the end of the process. One of the
 * program's has not: its handlers may touch managed memory while the device works. */
void ibx_managed_rest(void)
{
    struct held_handlers before;
    const bool serves = ibx_managed_is_server();
    if (serves)
        ibx_managed_lock(&before);
    if (is_busy())
        rest(false);
    if (serves)
        ibx_managed_unlock(&before);
}

/* Beside captures another thread waits: this one may have begun them, and a wait of its own for any
 * stream may end them. */
void ibx_frontend_managed_rests(void)
{
    if (!ibx_managed_any() || !is_busy())
        return;
    if (ibx_frontend_capturing())
        ibx_managed_have_rested();
    else
        ibx_managed_rest();
}
