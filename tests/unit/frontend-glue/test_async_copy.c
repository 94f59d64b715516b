/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Asynchronous copies over simulated sessions: a copy ends when the test says so. */
#include "frontend-glue/client_copies/client_copies.h"

#include "common/clock.h"
#include "frontend-glue/session/hooks.h"
#include "tests/fixtures/patience.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

#define STREAMS 32u

struct ibx_session {
    bool live;
};

static struct ibx_session session = {.live = true};
static uint8_t bytes[64];
/* by stream: copies that may end, copies that have ended */
static atomic_uint may_end[STREAMS], over[STREAMS];
static atomic_uint copiers;                 /* threads that have connected */
static atomic_uint resumed;                 /* sessions whose broken connections were replaced */
static atomic_uint waiting_without_session; /* copiers that wait although their session has ended */
static atomic_bool breaks, ends; /* all connections have broken; all sessions have ended */

/* --------------------------------------------------------------- replaced functions of sessions */

int ibx_session_create_like(const struct ibx_session *other, struct ibx_session **out,
                            struct ibx_error *err)
{
    (void)err;
    assert_ptr_equal(other, &session);
    *out = calloc(1, sizeof(**out));
    return *out ? 0 : -1;
}

int ibx_session_connect(struct ibx_session *s, struct ibx_error *err)
{
    (void)err;
    s->live = true;
    copiers++;
    return 0;
}

bool ibx_session_live(const struct ibx_session *s)
{
    return s->live;
}

bool ibx_session_look_closely(struct ibx_session *s)
{
    s->live = s->live && !ends;
    return s->live;
}

bool ibx_session_resume_if_ended(struct ibx_session *s)
{
    resumed += breaks;
    return s->live;
}

int ibx_client_call(struct ibx_session *s, const char *name, const void *body, size_t n,
                    int *exit_code)
{
    (void)s;
    (void)body;
    *exit_code = 0;
    return strcmp(name, "cudaSetDevice") != 0 || n != 4 ? -1 : 0;
}

int ibx_client_copy(struct ibx_session *s, const struct ibx_frontend_copy *copy, int *exit_code)
{
    while (may_end[copy->stream] <= over[copy->stream])
        sched_yield();
    over[copy->stream]++;
    *exit_code = s->live ? 0 : IBX_CUDA_ERROR_UNKNOWN;
    return 0;
}

void ibx_session_destroy(struct ibx_session *s)
{
    free(s);
}

/* ----------------------------------------------------------------------------- a waiting thread */

struct waiter {
    pthread_t thread;
    uint64_t stream;
    unsigned over; /* copies of the stream that had ended when the wait returned */
};

static _Thread_local bool watched;
static atomic_bool waits; /* the watched thread waits */

bool __wrap_ibx_thread_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);

bool __wrap_ibx_thread_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    if (watched)
        waits = true;                /* the lock is released in a moment */
    waiting_without_session += ends; /* no other thread waits at this time */
    return !pthread_cond_wait(cond, mutex);
}

static void *wait_for_stream(void *argument)
{
    struct waiter *waiter = argument;
    watched = true;
    ibx_async_copy_wait(waiter->stream);
    waiter->over = over[10];
    return NULL;
}

static void *wait_for_memory(void *argument)
{
    struct waiter *waiter = argument;
    watched = true;
    ibx_async_copy_wait_memory(bytes, sizeof(bytes));
    waiter->over = over[10];
    return NULL;
}

static void waiter_run(struct waiter *waiter, uint64_t stream, void *(*run)(void *))
{
    *waiter = (struct waiter){.stream = stream};
    waits = false;
    assert_int_equal(pthread_create(&waiter->thread, NULL, run, waiter), 0);
    while (!waits)
        sched_yield();
}

static void waiter_start(struct waiter *waiter, uint64_t stream)
{
    waiter_run(waiter, stream, wait_for_stream);
}

/* Joins the waiting thread. */
static void waiter_end(struct waiter *waiter)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    assert_int_equal(pthread_timedjoin_np(waiter->thread, NULL, &until), 0);
}

static void begin_copy(uint64_t stream)
{
    struct ibx_frontend_copy copy = {
        .to_device = true, .async = true, .stream = stream, .host = bytes, .n = sizeof(bytes)};
    assert_true(ibx_async_copy_start(&session, &copy, 0));
}

static int reset(void **state)
{
    (void)state;
    for (unsigned i = 0; i < STREAMS; i++)
        may_end[i] = over[i] = 0;
    return 0;
}

/* ------------------------------------------------------------------ tests */

/* A thread that keeps copying in the stream does not prolong another thread's wait. */
static void wait_covers_earlier_copies_only(uint64_t stream, uint64_t other)
{
    struct waiter waiter;
    begin_copy(10);
    waiter_start(&waiter, stream);
    begin_copy(other);
    may_end[10] = 1;
    waiter_end(&waiter);
    assert_int_equal(waiter.over, 1);
    assert_true(ibx_async_copy_pending(other));
    may_end[other]++;
    ibx_async_copy_wait(other);
    assert_false(ibx_async_copy_any());
}

static void test_wait_covers_earlier_copies_only(void **state)
{
    (void)state;
    wait_covers_earlier_copies_only(10, 10);
}

static void test_wait_for_all_covers_earlier_copies_only(void **state)
{
    (void)state;
    wait_covers_earlier_copies_only(0, 10);
    reset(NULL);
    wait_covers_earlier_copies_only(0, 11);
}

static void test_wait_covers_one_stream(void **state)
{
    (void)state;
    struct waiter waiter;
    begin_copy(11);
    begin_copy(10);
    waiter_start(&waiter, 10);
    may_end[10] = 1;
    waiter_end(&waiter);
    assert_int_equal(waiter.over, 1);
    assert_true(ibx_async_copy_pending(11));
    assert_false(ibx_async_copy_pending(10));
    may_end[11] = 1;
    ibx_async_copy_wait(0);
    assert_false(ibx_async_copy_any());
}

/* Cancellation ends the thread after its wait, with the lock released for the others. */
static void test_waiter_is_cancelled(void **state)
{
    (void)state;
    void *(*const runs[])(void *) = {wait_for_stream, wait_for_memory};
    for (unsigned i = 0; i < 2; i++) {
        struct waiter waiter, other;
        reset(NULL);
        begin_copy(10);
        waiter_run(&waiter, 10, runs[i]);
        pthread_cancel(waiter.thread);
        other = (struct waiter){.stream = 10};
        assert_int_equal(pthread_create(&other.thread, NULL, wait_for_stream, &other), 0);
        may_end[10] = 1;
        waiter_end(&waiter);
        assert_int_equal(waiter.over, 1);
        waiter_end(&other);
    }
}

static void await_count(atomic_uint *count, unsigned wanted)
{
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(60000));
    while (*count < wanted && ibx_now_ns() < deadline)
        sched_yield();
    assert_true(*count >= wanted);
}

/* The back end does not keep a session for long after its connection has broken. */
static void test_idle_sessions_reconnect(void **state)
{
    (void)state;
    may_end[10] = 1;
    begin_copy(10);
    ibx_async_copy_wait(0);
    const unsigned before = resumed;
    breaks = true;
    await_count(&resumed, before + copiers);
    breaks = false;
}

/* A session that has ended while idle is not used for a copy. */
static void test_idle_sessions_end(void **state)
{
    (void)state;
    may_end[10] = 2;
    begin_copy(10);
    ibx_async_copy_wait(0);
    const unsigned before = copiers;
    ends = true;
    await_count(&waiting_without_session, before);
    ends = false;
    begin_copy(10);
    ibx_async_copy_wait(0);
    assert_int_equal(copiers, before + 1);
    assert_int_equal(ibx_async_copy_failure(10), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_wait_covers_earlier_copies_only, reset),
        cmocka_unit_test_setup(test_wait_for_all_covers_earlier_copies_only, reset),
        cmocka_unit_test_setup(test_wait_covers_one_stream, reset),
        cmocka_unit_test_setup(test_waiter_is_cancelled, reset),
        cmocka_unit_test_setup(test_idle_sessions_reconnect, reset),
        cmocka_unit_test_setup(test_idle_sessions_end, reset),
    };
    return cmocka_run_group_tests_name("async_copy", tests, NULL, NULL);
}
