/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A page that faults while the background is fetching it. It is fetched twice and counted once. */
#include "tests/fixtures/fault_memory.h"
#include "tests/fixtures/patience.h"

#include "common/clock.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/mman.h>

#include <cmocka.h>

#define TWICE 5u /* the page that the background is fetching when it faults */
static struct look looker;

static void begin_looking(void)
{
    rig_serve();
    assert_true(reader_asked(rig.readers[1], 1));
    assert_int_equal(rig.readers[1]->log[0].page, 0);
    look_at(&looker, TWICE);
}

/* Requests the page twice; neither request arrives. */
static void fetch_twice(void)
{
    rig.readers[0]->hold = rig.readers[1]->hold = true;
    begin_looking();
    assert_true(reader_asked(rig.readers[0], 1));
    assert_int_equal(rig.readers[0]->log[0].page, TWICE);
}

/* Several threads wait for one page that has not been requested yet. It is requested once. */
static void test_faults_on_one_page(void **state)
{
    (void)state;
    static struct look others[6];
    rig.config.no_background = true;
    rig_start();
    for (unsigned i = 0; i < 6; i++)
        look_start(&others[i], TWICE, 1, 1);
    assert_true(REACHES(faults, 6));
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    for (unsigned i = 0; i < 6; i++)
        look_sees_right(&others[i]);
    assert_int_equal(stats_now().twice, 0);
    assert_int_equal(rig.data.fetched[TWICE], 1);
}

/* The background is fetching the page and makes no progress. */
static void test_fetched_twice(void **state)
{
    (void)state;
    rig.readers[1]->hold = true;
    begin_looking();
    look_sees_right(&looker);
    rig.memory[TWICE * PAGE]++; /* the later arrival does not change it */
    rig.readers[1]->hold = false;
    everything_is_right();
    for (unsigned i = 0; i < PAGES; i++) {
        assert_int_equal(rig.data.fetched[i], i == TWICE ? 2 : 1);
        assert_int_equal(page_is_right(i), i != TWICE);
    }
    assert_int_equal(stats_now().twice, 1);
}

/* If the page is discarded while both requests are in flight, it is zero, whichever arrives
 * first. */
static void test_fetched_twice_and_discarded_early(void **state)
{
    const bool first = *state; /* whether the worker with the claim continues first */
    fetch_twice();
    assert_int_equal(madvise(rig.memory + TWICE * PAGE, PAGE, MADV_DONTNEED), 0);
    rig.readers[first]->hold = false;
    if (first)
        assert_true(REACHES(present, 16));
    else
        while (rig.data.fetched[TWICE] == 0)
            sched_yield();
    rig.readers[!first]->hold = false;
    look_sees_zero(&looker);
    everything_is_right();
    assert_true(page_is_zero(TWICE));
}

/* The worker with the claim gives it back. Nothing is lost or counted twice. */
static void test_fetched_twice_and_given_back(void **state)
{
    (void)state;
    rig.readers[1]->again_every = 1;
    fetch_twice();
    rig.readers[1]->hold = false;
    assert_true(REACHES(retries, 1));
    rig.readers[1]->again_every = 0;
    rig.readers[0]->hold = false;
    look_sees_right(&looker);
    everything_is_right();
}

/* The second request fails: the page still comes by the first, and nobody requests it again. */
static void test_fetched_twice_and_refused_once(void **state)
{
    (void)state;
    rig.readers[0]->again_every = 1;
    fetch_twice();
    rig.readers[0]->hold = false;
    assert_true(REACHES(retries, 1));
    rig.readers[0]->again_every = 0;
    rig.readers[1]->hold = false;
    look_sees_right(&looker);
    everything_is_right();
    for (unsigned i = 0; i < PAGES; i++)
        assert_int_equal(rig.data.fetched[i], 1);
}

/* Every page has arrived, this one from the background, and its second request is still in
 * flight. */
static void complete_with_one_on_its_way(void)
{
    fetch_twice();
    rig.readers[1]->hold = false;
    look_sees_right(&looker);
    everything_is_right();
    assert_int_equal(rig.data.fetched[TWICE], 1);
}

/* The late page is still taken from its reader. Otherwise it would wake its worker for ever. */
static void test_fetched_twice_and_late(void **state)
{
    (void)state;
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(20000));
    complete_with_one_on_its_way();
    rig.readers[0]->hold = false;
    while (rig.data.fetched[TWICE] < 2 && ibx_now_ns() < deadline)
        sched_yield();
    assert_int_equal(rig.data.fetched[TWICE], 2);
    assert_int_equal(ibx_fault_state(rig.engine), IBX_FAULT_COMPLETE);
}

/* A reader that breaks at this point does no harm. */
static void test_fetched_twice_from_a_broken_source(void **state)
{
    (void)state;
    complete_with_one_on_its_way();
    rig.readers[0]->fail_in = 1;
    rig.readers[0]->hold = false;
    assert_true(REACHES(retries, 1));
    assert_int_equal(ibx_fault_state(rig.engine), IBX_FAULT_COMPLETE);
    assert_int_equal(madvise(rig.memory, PAGE, MADV_DONTNEED), 0);
    assert_true(page_is_zero(0)); /* faults are answered as before */
}

/* At the end the request is not cancelled if its page is about to arrive. */
static void test_fetched_twice_and_ended(void **state)
{
    (void)state;
    complete_with_one_on_its_way();
    rig.readers[0]->flying[0].polls_left = 2; /* while it is held, only this thread looks there */
    rig.readers[0]->hold = false;
    rig_destroy_engine();
    assert_int_equal(rig.readers[0]->cancelled, 0);
    assert_int_equal(rig.data.fetched[TWICE], 2);
}

/* A request whose page does not arrive is cancelled. */
static void test_fetched_twice_and_never_come(void **state)
{
    (void)state;
    complete_with_one_on_its_way();
    rig_destroy_engine();
    assert_int_equal(rig.readers[0]->cancelled, 1);
}

#define ENGINE_TEST(name) cmocka_unit_test_setup_teardown(name, rig_make_pair, rig_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENGINE_TEST(test_faults_on_one_page),
        ENGINE_TEST(test_fetched_twice),
        ENGINE_TEST(test_fetched_twice_and_discarded_early),
        {"test_fetched_twice_and_discarded", test_fetched_twice_and_discarded_early, rig_make_pair,
         rig_end, &rig},
        ENGINE_TEST(test_fetched_twice_and_given_back),
        ENGINE_TEST(test_fetched_twice_and_refused_once),
        ENGINE_TEST(test_fetched_twice_and_late),
        ENGINE_TEST(test_fetched_twice_from_a_broken_source),
        ENGINE_TEST(test_fetched_twice_and_ended),
        ENGINE_TEST(test_fetched_twice_and_never_come),
    };
    int skipped = rig_skipped(IBX_FAULT_EVENT_REMOVE);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
