/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Waiting that polls at first and sleeps later; which thread yields to others; which signals a
 * thread receives. The test has its own clock, which each look advances by a microsecond. */
#include "common/thread.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>

#define LOOK_NS 1000u

static uint64_t now_ns;
static unsigned looks, sleeps, ready_at; /* the look at which an event is there; 0: never */
static uint64_t slept_ns;
static int failure; /* the error of poll(2) and ppoll(2) */

int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *most, const void *mask);

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    (void)clock;
    now_ns += LOOK_NS;
    *t = (struct timespec){(time_t)(now_ns / 1000000000), (long)(now_ns % 1000000000)};
    return 0;
}

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    (void)fds;
    assert_int_equal(count, 3);
    if (failure) {
        errno = failure;
        return -1;
    }
    assert_int_equal(timeout_ms, 0);
    return ++looks == ready_at;
}

int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *most, const void *mask)
{
    (void)fds;
    assert_int_equal(count, 3);
    assert_null(mask);
    if (failure) {
        errno = failure;
        return -1;
    }
    sleeps++;
    slept_ns = (uint64_t)most->tv_sec * 1000000000 + (uint64_t)most->tv_nsec;
    return 2;
}

int __wrap_clock_nanosleep(clockid_t clock, int flags, const struct timespec *t,
                           struct timespec *left);
int __wrap_clock_nanosleep(clockid_t clock, int flags, const struct timespec *t,
                           struct timespec *left)
{
    (void)left;
    assert_int_equal(clock, CLOCK_MONOTONIC);
    assert_int_equal(flags, 0);
    assert_int_equal(t->tv_sec, 0);
    sleeps++;
    slept_ns = (uint64_t)t->tv_nsec;
    return 0;
}

static unsigned processors;
static int niceness, changes;

int __wrap_sched_getaffinity(pid_t of, size_t size, cpu_set_t *set);
int __wrap_setpriority(int which, id_t who, int value);

int __wrap_sched_getaffinity(pid_t of, size_t size, cpu_set_t *set)
{
    (void)of;
    CPU_ZERO_S(size, set);
    for (unsigned i = 0; i < processors; i++)
        CPU_SET_S(i, size, set);
    return 0;
}

int __wrap_setpriority(int which, id_t who, int value)
{
    assert_int_equal(which, PRIO_PROCESS);
    assert_int_equal(who, 0); /* this thread */
    niceness = value;
    changes++;
    return 0;
}

static int wait_for(uint64_t wait_ns, uint64_t busy_ns, unsigned at)
{
    struct pollfd fds[3];
    looks = sleeps = 0;
    slept_ns = 0;
    ready_at = at;
    return ibx_thread_poll(fds, 3, wait_ns, busy_ns ? now_ns + busy_ns : 0);
}

static void test_sleeps_at_once(void **state)
{
    (void)state;
    assert_int_equal(wait_for(2500000000, 0, 0), 2);
    assert_int_equal(looks, 0);
    assert_int_equal(sleeps, 1);
    assert_int_equal(slept_ns, 2500000000);
    assert_int_equal(wait_for(0, 1000000, 0), 2);
    assert_int_equal(looks, 0);
    assert_int_equal(slept_ns, 0);
}

static void test_looks_until_something_is_there(void **state)
{
    (void)state;
    assert_int_equal(wait_for(1000000, 10000000, 7), 1);
    assert_int_equal(looks, 7);
    assert_int_equal(sleeps, 0);
}

static void test_sleeps_for_what_is_left(void **state)
{
    (void)state;
    assert_int_equal(wait_for(1000000, 20 * LOOK_NS, 0), 2);
    assert_in_range(looks, 15, 20);
    assert_int_equal(sleeps, 1);
    assert_in_range(slept_ns, 1000000 - 20 * LOOK_NS, 1000000 - 15 * LOOK_NS);
}

/* The time limit also holds while the thread polls. */
static void test_ends_in_time(void **state)
{
    (void)state;
    assert_int_equal(wait_for(20 * LOOK_NS, 1000000, 0), 2);
    assert_in_range(looks, 15, 20);
    assert_int_equal(slept_ns, 0);
}

/* Programs may set RLIMIT_NOFILE below the number of their open descriptors. */
static void test_sleeps_if_poll_fails(void **state)
{
    (void)state;
    struct pollfd fds[3];
    failure = EINVAL;
    assert_int_equal(wait_for(2500000000, 0, 0), -1);
    assert_int_equal(errno, EINVAL);
    assert_int_equal(sleeps, 1);
    assert_int_equal(slept_ns, 1000000);
    assert_int_equal(wait_for(1000, 0, 0), -1);
    assert_int_equal(slept_ns, 1000);
    slept_ns = 0;
    assert_int_equal(ibx_thread_await(fds, 3, -1), -1);
    assert_int_equal(errno, EINVAL);
    assert_int_equal(slept_ns, 1000000);
    assert_int_equal(ibx_thread_await(fds, 3, 0), -1);
    assert_int_equal(slept_ns, 0);
    failure = EINTR;
    sleeps = 0;
    assert_int_equal(ibx_thread_await(fds, 3, -1), -1);
    assert_int_equal(errno, EINTR);
    assert_int_equal(sleeps, 0);
    failure = 0;
}

/* Threads that sleep at once take no time from others, so they keep their priority. */
static void test_polling_threads_lower_their_priority(void **state)
{
    (void)state;
    const int before = getpriority(PRIO_PROCESS, 0);
    processors = 2;
    ibx_thread_give_way();
    assert_int_equal(changes, 0);
    processors = 16;
    ibx_thread_give_way();
    assert_int_equal(changes, 1);
    assert_int_equal(niceness, before + 5);
}

static void *look_at_mask(void *mask)
{
    pthread_sigmask(SIG_BLOCK, NULL, mask);
    return NULL;
}

/* A thread receives only the signals of its own faults. */
static void test_signals_of_a_thread(void **state)
{
    sigset_t its, before, after;
    pthread_t thread;
    (void)state;
    look_at_mask(&before);
    assert_int_equal(ibx_thread_begin(&thread, look_at_mask, &its), 0);
    look_at_mask(&after);
    assert_int_equal(pthread_join(thread, NULL), 0);
    for (int signal = 1; signal < SIGSYS; signal++) {
        const bool gets =
            signal == SIGSEGV || signal == SIGBUS || signal == SIGKILL || signal == SIGSTOP;
        assert_int_equal(!sigismember(&its, signal), gets);
        assert_int_equal(sigismember(&before, signal), sigismember(&after, signal));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sleeps_at_once),
        cmocka_unit_test(test_looks_until_something_is_there),
        cmocka_unit_test(test_sleeps_for_what_is_left),
        cmocka_unit_test(test_ends_in_time),
        cmocka_unit_test(test_sleeps_if_poll_fails),
        cmocka_unit_test(test_polling_threads_lower_their_priority),
        cmocka_unit_test(test_signals_of_a_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
