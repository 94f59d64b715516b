/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is known of events, by several threads and of very many events. */
#include "frontend-glue/client_calls/internal.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define TRIES 300u
#define FEW   500u
#define MANY  400000u

/* ------------------------------------------------------------------- doubts of two threads */

static atomic_bool runs, stopped;
static int goes_on[2], stops[2]; /* pipes */

static void stop(int number)
{
    char byte = (char)number;
    atomic_store(&stopped, true);
    assert_int_equal(write(stops[1], &byte, 1), 1);
    assert_int_equal(read(goes_on[0], &byte, 1), 1);
}

/* Doubts until it was stopped, and then goes on with the doubt that it was in. */
static void *doubt_until_stopped(void *argument)
{
    while (!atomic_load(&stopped)) {
        ibx_events_doubt();
        atomic_store(&runs, true);
    }
    return argument;
}

/* Whether the event is over after a doubt, while another thread is in a doubt that began before. */
static bool is_over_after_doubt(uint64_t event)
{
    pthread_t other;
    char byte = 0;
    atomic_store(&runs, false);
    atomic_store(&stopped, false);
    assert_int_equal(pthread_create(&other, NULL, doubt_until_stopped, NULL), 0);
    while (!atomic_load(&runs))
        sched_yield();
    assert_int_equal(pthread_kill(other, SIGUSR1), 0);
    assert_int_equal(read(stops[0], &byte, 1), 1);
    ibx_events_end(event, ibx_events_now());
    ibx_events_doubt();
    assert_int_equal(write(goes_on[1], &byte, 1), 1);
    assert_int_equal(pthread_join(other, NULL), 0);
    return ibx_events_are_over(event);
}

static void a_doubt_counts_beside_an_older_one(void **state)
{
    const struct sigaction action = {.sa_handler = stop};
    (void)state;
    assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
    assert_int_equal(pipe(goes_on) | pipe(stops), 0);
    ibx_events_add(16);
    for (unsigned i = 0; i < TRIES; i++)
        assert_false(is_over_after_doubt(16));
    ibx_events_clear();
    for (unsigned i = 0; i < 2; i++)
        close(goes_on[i]), close(stops[i]);
}

/* ------------------------------------------------------------------------ very many events */

static uint64_t event_of(unsigned i)
{
    return 0x7f0000000000u + (uint64_t)i * 0x90;
}

static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* What each of n events costs, ns. */
static uint64_t cost_of(unsigned n)
{
    const uint64_t begun = cpu_ns();
    for (unsigned i = 0; i < n; i++)
        ibx_events_add(event_of(i));
    for (unsigned i = 0; i < n; i++) {
        const struct ibx_event_use use = {1, i + 1};
        struct ibx_event_use last = {0, 0};
        ibx_events_use(event_of(i), &use);
        ibx_events_record(event_of(i), &use);
        assert_true(ibx_events_last(event_of(i), &last) && last.number == i + 1);
    }
    for (unsigned i = 0; i < n; i += 2)
        ibx_events_remove(event_of(i));
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(ibx_events_made(event_of(i)) != 0, i % 2);
    ibx_events_clear();
    return (cpu_ns() - begun) / n;
}

static void very_many_events_cost_little_more_each(void **state)
{
    uint64_t few = UINT64_MAX;
    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        const uint64_t cost = cost_of(FEW);
        few = cost < few ? cost : few;
    }
    const uint64_t many = cost_of(MANY);
    print_message("each of %u events: %llu ns; of %u: %llu\n", FEW, (unsigned long long)few, MANY,
                  (unsigned long long)many);
    assert_true(many < 20 * few);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_doubt_counts_beside_an_older_one),
        cmocka_unit_test(very_many_events_cost_little_more_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
