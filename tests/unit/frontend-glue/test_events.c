/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is known of events, by several threads. */
#include "frontend-glue/client_calls/internal.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>
#include <cmocka.h>

#define TRIES 300u

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_doubt_counts_beside_an_older_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
