/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* When busy polling helps and when it does not. One thread drives both ends: the server acts
 * when the client gives up its processor, by sched_yield() while it polls or by going to sleep,
 * or at a given time. The clock is simulated, because a busy machine would change the results;
 * so is the number of processors, the first argument. */
#include "tests/fixtures/memory_pair.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <cmocka.h>

#define LOOK_NS   100        /* time between two looks at the clock */
#define OTHERS_NS 4000000ull /* how long another process keeps the processor */
#define PLENTY    4          /* with so many processors, polling yields later */
#define LATER_NS  10000u     /* then the first yield comes after this time */

static int processors;
static struct memory_pair pair;
static unsigned yields, sleeps;
static bool on_yield, on_sleep; /* when the server sends, once in each wait */
static bool others;             /* other processes want the processor and get it at each yield */
static uint64_t now_ns;
static uint64_t sends_at_ns;    /* when the server sends in any case; 0: never */
static uint64_t first_yield_ns; /* when the wait yielded for the first time */

int __real_sched_yield(void);
int __wrap_sched_yield(void);
int __real_epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set);

int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    (void)pid;
    if (processors > CPU_SETSIZE) {
        errno = EINVAL;
        return -1;
    }
    CPU_ZERO_S(size, set);
    for (int i = 0; i < processors; i++)
        CPU_SET_S((size_t)i, size, set);
    return 0;
}

static void server_sends(void)
{
    struct ibx_event event;
    struct iovec word = {"word", 4};
    on_yield = on_sleep = false;
    sends_at_ns = 0;
    assert_int_equal(ibx_poll(pair.server, &event, 1), 0); /* returns credit */
    assert_int_equal(ibx_send(pair.server, &word, 1, 0, 0), 0);
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    (void)clock;
    now_ns += LOOK_NS;
    t->tv_sec = (time_t)(now_ns / 1000000000u);
    t->tv_nsec = (long)(now_ns % 1000000000u);
    if (sends_at_ns && now_ns >= sends_at_ns)
        server_sends();
    return 0;
}

int __wrap_sched_yield(void)
{
    if (!yields++)
        first_yield_ns = now_ns;
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
    sends_at_ns = 0;
    memory_control_reset();
    ibx_options_init(&options);
    options.spin_us = processors < PLENTY ? 1 : 2 * LATER_NS / 1000;
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

/* Waits for one message. Returns whether the wait polled. */
static bool polls_in_a_wait(bool yield_helps)
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

/* Waits for a message that comes after `us` microseconds or at the first sleep. Returns whether
 * the wait slept. */
static bool sleeps_in_a_wait(unsigned us)
{
    sends_at_ns = now_ns + us * 1000u;
    polls_in_a_wait(false);
    return sleeps > 0;
}

/* sched_yield() does not give the processor to the peer, which then waits for the end of each
 * polling period. A message and its answer would take two of these periods. */
static void test_useless_polling_stops(void **state)
{
    unsigned polled = 0;
    (void)state;
    for (unsigned i = 0; i < 400; i++)
        polled += polls_in_a_wait(false);
    assert_true(polled < 40);
}

static void test_polling_that_finds_goes_on(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 400; i++) {
        assert_true(polls_in_a_wait(true));
        assert_int_equal(sleeps, 0);
    }
}

static void test_polling_comes_back_when_it_helps_again(void **state)
{
    unsigned slept = 0;
    (void)state;
    for (unsigned i = 0; i < 100; i++)
        polls_in_a_wait(false);
    for (unsigned i = 0; i < 400; i++) {
        polls_in_a_wait(true);
        slept += sleeps > 0;
    }
    assert_true(slept < 100);
}

/* A peer that takes longer now and then, or an application that pauses, does not end polling. */
static void test_one_success_counts_for_some_failures(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 400; i++)
        assert_true(polls_in_a_wait(i % 4 == 3));
}

/* If another process takes the processor for milliseconds at each yield, it is better to sleep:
 * a sleeper gets the processor back as soon as it is woken. That the message has arrived by then
 * does not count as success. */
static void test_polling_that_loses_the_processor_stops(void **state)
{
    unsigned polled = 0;
    (void)state;
    others = true;
    for (unsigned i = 0; i < 1000; i++)
        polled += polls_in_a_wait(true);
    assert_true(polled < 10);
    others = false;
    for (unsigned i = 0; i < 4000; i++)
        polls_in_a_wait(true);
    assert_true(polls_in_a_wait(true));
}

static void test_the_core_lost_now_and_then_is_borne(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 1000; i++) {
        others = i % 20 == 0;
        assert_true(polls_in_a_wait(true));
    }
}

/* If the peer has a processor of its own, a yield only delays this side. */
static void test_first_yield_is_later_with_many_processors(void **state)
{
    (void)state;
    uint64_t start = now_ns;
    assert_true(polls_in_a_wait(true));
    assert_int_equal(first_yield_ns - start >= LATER_NS, processors >= PLENTY);
}

static void test_expected_events_are_polled_for(void **state)
{
    (void)state;
    ibx_expect(pair.client, 200);
    assert_int_equal(sleeps_in_a_wait(100), processors < PLENTY);
    assert_true(sleeps_in_a_wait(200)); /* both messages were due earlier */
    ibx_expect(pair.client, 200);
    assert_true(sleeps_in_a_wait(300));
}

static void test_expectations_do_not_bring_polling_back(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 20; i++)
        polls_in_a_wait(false);
    ibx_expect(pair.client, 200);
    assert_true(sleeps_in_a_wait(100));
}

/* Work for the peer makes no event, but more of it follows. */
static void test_work_done_for_the_peer_keeps_the_poller_awake(void **state)
{
    (void)state;
    assert_true(sleeps_in_a_wait(500));
    memory_control.busy = true;
    assert_false(sleeps_in_a_wait(500));
}

static void test_work_done_for_the_peer_brings_polling_back(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 20; i++)
        polls_in_a_wait(false);
    assert_false(polls_in_a_wait(true));
    memory_control.busy = true;
    assert_false(sleeps_in_a_wait(500));
    memory_control.busy = false;
    assert_true(polls_in_a_wait(true));
}

/* The poller sleeps if yielding costs it the processor. */
static void test_work_done_for_the_peer_does_not_cost_the_processor(void **state)
{
    (void)state;
    others = true;
    for (unsigned i = 0; i < 100; i++)
        polls_in_a_wait(true);
    memory_control.busy = true;
    assert_true(sleeps_in_a_wait(500));
}

int main(int argc, char **argv)
{
    processors = argc == 2 ? atoi(argv[1]) : 0;
    if (processors <= 0) {
        fprintf(stderr, "usage: test_spin PROCESSORS\n");
        return 2;
    }
#define TEST(f) cmocka_unit_test_setup_teardown(f, reset, drop)
    const struct CMUnitTest tests[] = {
        TEST(test_useless_polling_stops),
        TEST(test_polling_that_finds_goes_on),
        TEST(test_polling_comes_back_when_it_helps_again),
        TEST(test_one_success_counts_for_some_failures),
        TEST(test_polling_that_loses_the_processor_stops),
        TEST(test_the_core_lost_now_and_then_is_borne),
        TEST(test_first_yield_is_later_with_many_processors),
        TEST(test_expected_events_are_polled_for),
        TEST(test_expectations_do_not_bring_polling_back),
        TEST(test_work_done_for_the_peer_keeps_the_poller_awake),
        TEST(test_work_done_for_the_peer_brings_polling_back),
        TEST(test_work_done_for_the_peer_does_not_cost_the_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
