/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * When the device works, and what that means for managed memory (managed.h): before a request that
 * gives the device work, the host's bytes are copied there; an access after it waits until the
 * device has no work.
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

#define CAPTURE_MS 5000u /* how long to wait for the capture of another program */
#define LOAD_MS    2000u /* how long a kernel is not loaded yet beside functions */

/* A thread that is about to give the device work increments `working`, then reads `fresh`. A thread
 * that is about to make a block accessible sets `fresh`, then waits until `working` is 0. So at
 * least one of them notices the other. */
static atomic_uint working; /* threads that are about to give the device work */
static atomic_bool fresh;   /* a block may not be STALE */
/* How often work has begun, and for how many of these a wait has shown that they are complete. The
 * device may be working while the numbers differ. */
static _Atomic uint64_t work_begun, work_over;
static bool ended; /* the process ends, and nothing is fetched any more; protected by the lock */
static _Thread_local unsigned inside;
static _Thread_local bool counted; /* this thread is counted in `working` */
static _Thread_local unsigned own;
static _Thread_local bool captured; /* the thread's work is captured into a graph */
/* The thread waited for a fetch while it was about to give the device work. */
static _Thread_local bool waited;
static _Thread_local bool recorded; /* the work that it has begun is captured */

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
    ibx_managed_set_all(m, state);
    ibx_managed_put_back(m);
}

void ibx_managed_put_back(struct managed *m)
{
    struct held_handlers before;
    ibx_frontend_own_work_note();
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

/* Called under the lock. */
static int give(bool works)
{
    ibx_managed_own_begin();
    const int rc = ibx_managed_give_all();
    ibx_managed_own_end();
    if (!rc)
        atomic_store(&fresh, false);
    if (works) {
        atomic_fetch_add(&working, 1);
        atomic_fetch_add(&work_begun, 1);
    }
    return rc;
}

int ibx_managed_give(bool works)
{
    struct held_handlers before;
    ibx_managed_lock(&before);
    const int rc = give(works);
    ibx_managed_unlock(&before);
    return rc;
}

/* The serving thread can do it in streams that no capture notices, and that wait for no function of
 * the host. Looked at again under the lock, for which the first such function waits. */
static int have_given(bool works)
{
    struct held_handlers before;
    if (ibx_frontend_gives_beside())
        return ibx_managed_have_given(works);
    ibx_managed_lock(&before);
    const bool beside = ibx_frontend_gives_beside();
    const int rc = beside ? CUDA_SUCCESS : give(works);
    ibx_managed_unlock(&before);
    return beside ? ibx_managed_have_given(works) : rc;
}

/* A thread that lends the lock copies later, and sees then what there is. */
void ibx_managed_copies_end(void)
{
    struct held_handlers before;
    const bool borrowed = ibx_managed_borrow(&before);
    ibx_managed_give_back(&before, borrowed);
}

void ibx_frontend_managed_resets(void)
{
    if (ibx_managed_any())
        have_given(false);
}

/* All blocks must be STALE at that moment, because an accessible block would lack the new
 * variable's bytes. */
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

/* Counts this thread, or not; returns whether it was counted. Handlers of the program are held back
 * meanwhile: one that accesses managed memory waits until `working` is 0, and would wait for its
 * own thread if that was counted but not marked so. */
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
    const int rc = have_given(true); /* ibx_managed_give() counts this thread again */
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

/* Bytes that were fetched for this thread meanwhile, for its arguments for instance, are stale now.
 * They are given back by the serving thread: a copy by this thread would come between its request
 * and the reply, and a signal handler may have written meanwhile. The work counts as begun once
 * more, because a thread may have waited for the device before the work was there. */
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

/* Waits for the device. Returns a CUDA error; during captures of this process there may be more
 * work. Work that begins meanwhile is not waited for. */
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

/* Waits until the device has no work. While another program of the back end captures, that is
 * impossible, but soon over. */
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

/* Called under the lock, which it lends. Waits until the device has no work, and no thread is about
 * to give it some. */
static bool wait_for_device(void)
{
    atomic_store(&fresh, true);
    ibx_managed_lend();
    while (atomic_load(&working))
        nanosleep(&(struct timespec){.tv_nsec = 5000}, NULL);
    const bool rests = !is_busy() || rest(true);
    ibx_managed_lend_end();
    return rests;
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
    else if (m->state[block] == PAGES_STALE && (ended || !wait_for_device()))
        answer = PAGES_FAILED;
    else if (m->state[block] == PAGES_STALE && !ibx_managed_fetch_block(m, at, access))
        answer = PAGES_FAILED; /* a function may have got it meanwhile */
    ibx_managed_unlock(&before);
    ibx_managed_own_end();
    return answer;
}

/* The work before the function in its stream is complete, and other work is none of its business.
 * Whatever state a block has but STALE, the device has got no work since. */
enum pages_answer ibx_managed_fetch_for_function(uintptr_t at, enum pages_access access)
{
    struct held_handlers before;
    ibx_managed_own_begin();
    const bool borrowed = ibx_managed_borrow(&before);
    struct managed *m = ibx_managed_holding(at);
    enum pages_answer answer = ibx_managed_look_at(m, at, access);
    if (answer == PAGES_REMOTE) {
        atomic_store(&fresh, true);
        answer = !ended && ibx_managed_lend_block(m, at) ? PAGES_READY : PAGES_FAILED;
    }
    ibx_managed_give_back(&before, borrowed);
    ibx_managed_own_end();
    return answer;
}

int ibx_managed_function_over(void)
{
    struct held_handlers before;
    ibx_managed_own_begin();
    const bool borrowed = ibx_managed_borrow(&before);
    const int rc = ibx_managed_take_lent();
    ibx_managed_give_back(&before, borrowed);
    ibx_managed_own_end();
    return rc;
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

/* Whether an extension request gives the device work, by its number. */
static bool extra_works(const void *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    switch (ibx_get_u16(&r)) {
    case IBX_EXT_LAUNCH:
    case IBX_EXT_LAUNCH_QUEUED:
    case IBX_EXT_TO_ARRAY:
    case IBX_EXT_FROM_ARRAY:
    case IBX_EXT_2D_TO_ARRAY:
    case IBX_EXT_2D_FROM_ARRAY:
    case IBX_EXT_MEMCPY_3D:
    case IBX_EXT_MEMCPY_3D_ASYNC:
    case IBX_EXT_MEMSET:
    case IBX_EXT_MEMSET_2D:
    case IBX_EXT_MEMSET_ELEMENTS:
        return true;
    default:
        return false;
    }
}

/* Whether a request of GVirtuS may let the device access memory: all may that are not listed here.
 */
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
    /* Recorded, because the result of <<<>>> is not seen. */
    return rc ? ibx_frontend_fail(rc) : CUDA_SUCCESS;
}

/* Only copies from or to managed memory count. A copy while graphs wait for it does not, because
 * the launch of the graph has counted. */
static int copy_begins(const struct ibx_frontend_copy *copy, bool *begun)
{
    const uint64_t n = copy->rows ? (copy->rows - 1) * copy->device_pitch + copy->n : copy->n;
    *begun = !copy->alone && ibx_managed_touches(copy->device, n);
    return *begun ? work_begins() : CUDA_SUCCESS;
}

/* Its pages are being replaced, or were since the copy was described. */
static bool joins(const struct ibx_frontend_copy *copy)
{
    const size_t n = ibx_frontend_copy_extent(copy);
    return ibx_managed_joins((uintptr_t)copy->host, n) ||
           (copy->registered && ibx_registered_shared(copy->registered, n) != copy->host);
}

/* The memory is managed, or is becoming so: the copy may have begun before. This library's own
 * copies use the second mapping. */
static bool withheld(const struct ibx_frontend_copy *copy)
{
    const size_t n = ibx_frontend_copy_extent(copy);
    uintptr_t at = (uintptr_t)copy->host, last;
    return joins(copy) || ibx_managed_within(&at, at + n, &last);
}

const struct ibx_frontend_watch ibx_managed_watch = {.request = request_begins,
                                                     .copy = copy_begins,
                                                     .over = work_has_begun,
                                                     .withheld = withheld,
                                                     .handlers = &ibx_managed_handlers};

static int idle_request(const char *name, const void *body, size_t n, bool *begun)
{
    (void)name, (void)body, (void)n;
    *begun = false;
    return CUDA_SUCCESS;
}

static int idle_copy(const struct ibx_frontend_copy *copy, bool *begun)
{
    (void)copy;
    *begun = false;
    return CUDA_SUCCESS;
}

/* If managed memory begins in the middle of a call, over() may still be called by the other watch;
 * this one has begun nothing. */
const struct ibx_frontend_watch ibx_managed_joining = {
    .request = idle_request, .copy = idle_copy, .over = work_has_begun, .withheld = joins};

bool ibx_frontend_managed_captured(void *stream)
{
    captured = stream && ibx_managed_any() && ibx_frontend_captures(stream);
    return captured;
}

void ibx_frontend_managed_launched(void)
{
    captured = false;
}

void ibx_frontend_managed_before_load(void)
{
    static _Atomic uint64_t in_vain; /* of so many functions, some were waited for in vain */
    const uint64_t deadline = ibx_deadline_in_ms(LOAD_MS), made = ibx_frontend_host_made();
    if (!ibx_managed_any() || made == atomic_load(&in_vain))
        return;
    while (ibx_frontend_host_functions() && ibx_now_ns() < deadline)
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    if (ibx_frontend_host_functions())
        atomic_store(&in_vain, made);
}

/* The serving thread takes the lock, so that the end of the process waits for it. A thread of the
 * program does not: its signal handlers may access managed memory while the device works. */
void ibx_managed_rest(void)
{
    struct held_handlers before;
    const bool serves = ibx_managed_is_server();
    if (serves) {
        ibx_managed_lock(&before);
        ibx_managed_lend();
    }
    if (is_busy())
        rest(false);
    if (serves) {
        ibx_managed_lend_end();
        ibx_managed_unlock(&before);
    }
}

/* During captures the serving thread waits: this thread may have begun the capture, and a wait of
 * its own could invalidate it. Otherwise this thread's own stream has no work afterwards, as
 * accesses during the capture have to know. It may have had some from before there was managed
 * memory, or for which the program has waited by other means. */
void ibx_frontend_managed_rests(void)
{
    if (!ibx_managed_any())
        return;
    if (ibx_frontend_capturing()) {
        if (is_busy())
            ibx_managed_have_rested();
    } else if ((is_busy() || ibx_frontend_stream_is_used()) && rest(false)) {
        ibx_frontend_stream_rests(NULL);
    }
}

void ibx_frontend_managed_captures(void)
{
    if (ibx_managed_any())
        ibx_managed_copies_end();
}
