/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Busy polling, where it helps and where it does not. Both ends are this thread's: the server acts
 * when the client gives its core away, by sched_yield() in its polling or by going to sleep. The
 * clock is the test's as well, or a busy machine would take part.
 */
#include "tests/unit/memory_pair.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <time.h>
#include <cmocka.h>

#define LOOK_NS   100        /* from one look at the clock to the next */
#define OTHERS_NS 4000000ull /* another process has the core for so long */

static struct memory_pair pair;
static unsigned yields, sleeps;
static bool on_yield, on_sleep; /* when the server sends; once a wait */
static bool others;             /* who want this core, and get it by a yield */
static uint64_t now_ns;

int __real_sched_yield(void);
int __wrap_sched_yield(void);
int __real_epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    (void)clock;
    now_ns += LOOK_NS;
    t->tv_sec = (time_t)(now_ns / 1000000000u);
    t->tv_nsec = (long)(now_ns % 1000000000u);
    return 0;
}

static void server_sends(void)
{
    struct ibx_event event;
    struct iovec word = {"word", 4};
    on_yield = on_sleep = false;
    assert_int_equal(ibx_poll(pair.server, &event, 1), 0); /* credit comes this way */
    assert_int_equal(ibx_send(pair.server, &word, 1, 0, 0), 0);
}

int __wrap_sched_yield(void)
{
    yields++;
    now_ns += others ? OTHERS_NS : 0;
    if (on_yield)
        server_sends();
    return __real_sched_yield();
}

int __wrap_epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms)
{
    sleeps++;
    if (on_sleep)
        server_sends();
    return __real_epoll_wait(fd, events, max, timeout_ms);
}

static int reset(void **state)
{
    struct ibx_options options;
    struct ibx_error err = {0};
    (void)state;
    on_yield = on_sleep = others = false;
    memory_control_reset();
    ibx_options_init(&options);
    options.spin_us = 1;
    if (memory_pair_open(&pair, &options, &err))
        fail_msg("%s", err.message);
    return 0;
}

static int drop(void **state)
{
    (void)state;
    memory_pair_close(&pair);
    return 0;
}

/* One message waited for: whether that took polling. */
static bool wait_polls(bool yield_helps)
{
    struct ibx_event event;
    yields = sleeps = 0;
    on_yield = yield_helps;
    on_sleep = true;
    do {
        assert_int_equal(ibx_wait(pair.client, 10000), 1);
    } while (!ibx_poll(pair.client, &event, 1));
    assert_int_equal(event.type, IBX_EVENT_MESSAGE);
    ibx_message_release(pair.client, &event);
    return yields > 0;
}

/* As where sched_yield() does not give the core to the peer, which then waits for the end of each
 * polling: it would take two of these times to say anything and be answered. */
static void test_polling_in_vain_is_left_out(void **state)
{
    unsigned polled = 0;
    (void)state;
    for (unsigned i = 0; i < 400; i++)
        polled += wait_polls(false);
    assert_true(polled < 40);
}

static void test_polling_that_finds_goes_on(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 400; i++) {
        assert_true(wait_polls(true));
        assert_int_equal(sleeps, 0);
    }
}

static void test_polling_comes_back_when_it_helps_again(void **state)
{
    unsigned slept = 0;
    (void)state;
    for (unsigned i = 0; i < 100; i++)
        wait_polls(false);
    for (unsigned i = 0; i < 400; i++) {
        wait_polls(true);
        slept += sleeps > 0;
    }
    assert_true(slept < 100);
}

/* A peer that takes longer now and then, or an application that pauses, is not that peer. */
static void test_one_success_counts_for_some_failures(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 400; i++)
        assert_true(wait_polls(i % 4 == 3));
}

/* Where somebody else has the core for milliseconds after each yield, a sleeper is better off: it
 * has the core back as soon as it is woken. That the message is there by then is no success. */
static void test_polling_that_loses_the_core_is_left_out(void **state)
{
    unsigned polled = 0;
    (void)state;
    others = true;
    for (unsigned i = 0; i < 1000; i++)
        polled += wait_polls(true);
    assert_true(polled < 10);
    others = false;
    for (unsigned i = 0; i < 4000; i++)
        wait_polls(true);
    assert_true(wait_polls(true));
}

static void test_the_core_lost_now_and_then_is_borne(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 1000; i++) {
        others = i % 20 == 0;
        assert_true(wait_polls(true));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_polling_in_vain_is_left_out, reset, drop),
        cmocka_unit_test_setup_teardown(test_polling_that_finds_goes_on, reset, drop),
        cmocka_unit_test_setup_teardown(test_polling_comes_back_when_it_helps_again, reset, drop),
        cmocka_unit_test_setup_teardown(test_one_success_counts_for_some_failures, reset, drop),
        cmocka_unit_test_setup_teardown(test_polling_that_loses_the_core_is_left_out, reset, drop),
        cmocka_unit_test_setup_teardown(test_the_core_lost_now_and_then_is_borne, reset, drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
