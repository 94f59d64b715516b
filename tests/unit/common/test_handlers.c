/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Handlers of signals are delayed while their thread is inside a library. */
#include "common/handlers.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static bool any; /* whether the program has handlers */
static int held, calls;

static bool hold(void)
{
    calls++;
    held += any;
    return any;
}

static void let(void)
{
    held--;
}

static const struct ibx_handlers_calls all = {hold, let};

static void test_nothing_delays_handlers(void **state)
{
    (void)state;
    const struct ibx_inside inside = ibx_inside_begin();
    assert_false(inside.holds);
    assert_false(ibx_handlers_held());
    ibx_handlers_run();
    ibx_inside_end(inside);
    assert_int_equal(calls, 0);
}

/* Calls nest. Delayed handlers may run in between without changing the state. */
static void test_handlers_are_delayed(void **state)
{
    (void)state;
    ibx_handlers_use(&all);
    any = true;
    const struct ibx_inside outer = ibx_inside_begin(), inner = ibx_inside_begin();
    assert_true(outer.holds && inner.holds && ibx_handlers_held());
    assert_int_equal(held, 1);
    calls = 0;
    ibx_handlers_run();
    assert_int_equal(calls, 1);
    assert_int_equal(held, 1);
    ibx_inside_end(inner);
    assert_int_equal(held, 1);
    assert_true(ibx_handlers_held());
    ibx_inside_end(outer);
    assert_int_equal(held, 0);
    assert_false(ibx_handlers_held());
}

static bool called; /* whether the program's handler has run */

static void release_and_call(void)
{
    let();
    if (called)
        return;
    called = true;
    const struct ibx_inside inside = ibx_inside_begin(); /* a call that the handler makes */
    assert_true(inside.holds && ibx_handlers_held());
    assert_int_equal(held, 1);
    ibx_handlers_run();
    assert_int_equal(held, 1);
    ibx_inside_end(inside);
    assert_int_equal(held, 0);
    assert_false(ibx_handlers_held());
}

static const struct ibx_handlers_calls calling = {hold, release_and_call};

/* A handler that runs inside a call may make calls itself; no other handler runs within those. */
static void test_handlers_make_calls(void **state)
{
    (void)state;
    ibx_handlers_use(&calling);
    any = true;
    const struct ibx_inside outer = ibx_inside_begin(), inner = ibx_inside_begin();
    ibx_handlers_run();
    assert_true(called && ibx_handlers_held());
    assert_int_equal(held, 1);
    ibx_inside_end(inner);
    assert_int_equal(held, 1);
    ibx_inside_end(outer);
    assert_int_equal(held, 0);
    assert_false(ibx_handlers_held());
}

static int cancel_state(void)
{
    int now = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &now);
    pthread_setcancelstate(now, NULL);
    return now;
}

/* A handler that leaves by longjmp(3) ends the call too. */
static jmp_buf out;

static void release_and_leave(void)
{
    let();
    if (called)
        return;
    called = true;
    longjmp(out, 1);
}

static const struct ibx_handlers_calls leaving = {hold, release_and_leave};

static void test_handler_leaves_by_longjmp(void **state)
{
    (void)state;
    ibx_handlers_use(&leaving);
    any = true;
    called = false;
    if (!setjmp(out)) {
        ibx_inside_begin();
        ibx_inside_begin();
        ibx_handlers_run();
    }
    assert_false(ibx_handlers_held());
    assert_int_equal(cancel_state(), PTHREAD_CANCEL_ENABLE);
    const struct ibx_inside again = ibx_inside_begin();
    assert_true(again.holds);
    assert_int_equal(held, 1);
    ibx_inside_end(again);
    assert_int_equal(held, 0);
    assert_int_equal(cancel_state(), PTHREAD_CANCEL_ENABLE);
    /* A program that has turned cancellation off keeps it off. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    called = false;
    if (!setjmp(out)) {
        ibx_inside_begin();
        ibx_handlers_run();
    }
    assert_int_equal(cancel_state(), PTHREAD_CANCEL_DISABLE);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
}

/* Cancellation is off inside a call even if nothing delays handlers. */
static void test_cancellation_is_off_inside_a_call(void **state)
{
    (void)state;
    ibx_handlers_use(&all);
    for (unsigned i = 0; i < 2; i++) {
        any = i;
        const struct ibx_inside outer = ibx_inside_begin(), inner = ibx_inside_begin();
        ibx_inside_end(inner);
        assert_int_equal(cancel_state(), PTHREAD_CANCEL_DISABLE);
        ibx_inside_end(outer);
        assert_int_equal(cancel_state(), PTHREAD_CANCEL_ENABLE);
    }
}

/* Handlers that arrive while a thread is inside are not waited for. */
static void test_program_without_handlers(void **state)
{
    (void)state;
    ibx_handlers_use(&all);
    any = false;
    const struct ibx_inside outer = ibx_inside_begin();
    assert_false(outer.holds);
    any = true;
    const struct ibx_inside inner = ibx_inside_begin();
    assert_true(inner.holds);
    ibx_inside_end(inner);
    ibx_inside_end(outer);
    assert_int_equal(held, 0);
    assert_false(ibx_handlers_held());
}

/* exit(3) in a handler, which would never return: it has interrupted a call, or runs between two
 * pieces of a wait. */
static bool cut_off;

static void release_and_exit(void)
{
    let();
    cut_off = ibx_inside_exits();
}

static const struct ibx_handlers_calls exiting = {hold, release_and_exit};

static void *exits_outside(void *unused)
{
    ibx_inside_end(ibx_inside_begin());
    cut_off = ibx_inside_exits();
    return unused;
}

static void *exits_inside(void *unused)
{
    const struct ibx_inside inside = ibx_inside_begin();
    ibx_inside_exits();
    ibx_inside_end(inside);
    cut_off = ibx_inside_cut_off();
    return unused;
}

static void *exits_in_pause(void *unused)
{
    const struct ibx_inside inside = ibx_inside_begin();
    ibx_handlers_run();
    ibx_inside_end(inside);
    return unused;
}

/* The handler has returned, or has left the call by longjmp(3). */
static void *exits_after_pause(void *unused)
{
    if (!setjmp(out)) {
        const struct ibx_inside inside = ibx_inside_begin();
        ibx_handlers_run();
        ibx_inside_end(inside);
    }
    cut_off = ibx_inside_exits();
    return unused;
}

static void test_exit_cuts_calls_off(void **state)
{
    (void)state;
    const struct {
        void *(*thread)(void *);
        const struct ibx_handlers_calls *handlers;
        bool cut_off;
    } each[] = {{exits_outside, &exiting, false},
                {exits_inside, &exiting, true},
                {exits_in_pause, &exiting, true},
                {exits_after_pause, &all, false},
                {exits_after_pause, &leaving, false}};
    any = true;
    for (unsigned i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
        pthread_t thread;
        ibx_handlers_use(each[i].handlers);
        held = 0;
        cut_off = !each[i].cut_off;
        called = false;
        assert_int_equal(pthread_create(&thread, NULL, each[i].thread, NULL), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(cut_off, each[i].cut_off);
    }
    assert_false(ibx_inside_cut_off()); /* another thread's call */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_delays_handlers),
        cmocka_unit_test(test_handlers_are_delayed),
        cmocka_unit_test(test_handlers_make_calls),
        cmocka_unit_test(test_handler_leaves_by_longjmp),
        cmocka_unit_test(test_program_without_handlers),
        cmocka_unit_test(test_cancellation_is_off_inside_a_call),
        cmocka_unit_test(test_exit_cuts_calls_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
