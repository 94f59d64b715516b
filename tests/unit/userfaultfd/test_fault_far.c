/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What grows with the round trip: how much is fetched around and ahead of a fault, and how much is
 * in flight. */
#include "tests/fixtures/fault_memory.h"

#include "userfaultfd/engine.h"

#include "common/clock.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* ------------------------------------------------------------ a long round trip */

#define ROUND_TRIP_MS 4
static _Atomic uint64_t far_since_ns; /* the latest request */
static bool asked[2];                 /* a worker, since it looked last; its own */

static int far_request(void *reader, const struct ibx_fault_request *request)
{
    asked[reader == rig.readers[1]] = true;
    far_since_ns = ibx_now_ns();
    return memory_reader_ops.request(reader, request);
}

/* A worker that has just asked for a page asks for what is around it before that arrives, however
 * long it waits for a processor in between. */
static int far_poll(void *reader, struct ibx_fault_arrival *arrivals, int max)
{
    bool *just = &asked[reader == rig.readers[1]];
    const bool there = !*just && ibx_now_ns() - far_since_ns >= ROUND_TRIP_MS * IBX_NS_PER_MS;
    *just = false;
    return there ? memory_reader_ops.poll(reader, arrivals, max) : 0;
}

static void be_far(void)
{
    static struct ibx_fault_reader_ops ops; /* used until the engine is destroyed */
    ops = memory_reader_ops;
    ops.request = far_request;
    ops.poll = far_poll;
    ops.fd = NULL;
    rig.as[0].ops = rig.as[1].ops = &ops;
}

/* Pages of the longest request that this reader was asked for, within these. */
static size_t longest_of(const struct memory_reader *reader, uint64_t from, uint64_t to)
{
    size_t most = 0;
    for (unsigned i = 0; i < reader->accepted && i < LOG_MAX; i++) {
        const struct ibx_fault_request *r = &reader->log[i];
        const size_t pages = r->length / PAGE;
        if (r->page >= from && r->page + pages <= to && pages > most)
            most = pages;
    }
    return most;
}

/* The window around a fault, and what the background asks for between faults, are what the wire
 * takes in a round trip: of the first fault the engine learns how long that is. */
static void test_more_over_a_long_round_trip(void **state)
{
    (void)state;
    be_far();
    rig.config.no_background = true;
    rig.config.fault_around = 16 * PAGE;
    rig_serve();
    assert_true(page_is_right(0));
    assert_true(page_is_right(300)); /* in its window, and at 4 ms: 128 pages */
    assert_true(REACHES(by_cause[IBX_FAULT_BY_PREFETCH], 15 + 127));
    assert_int_equal(longest_of(rig.readers[0], 0, 256), 15);
    assert_in_range(longest_of(rig.readers[0], 256, 384), 64, 127);
    ibx_fault_set_background(rig.engine, true);
    assert_true(reader_asked(rig.readers[1], 1));
    /* Chunks of chunk_min have 16 pages. */
    assert_in_range(rig.readers[1]->log[0].length / PAGE, 5 * 16, 256);
    everything_is_right();
}

/* Near sources are asked for no more than before. */
static void test_no_more_over_a_short_one(void **state)
{
    (void)state;
    rig.config.no_background = true;
    rig.config.fault_around = 16 * PAGE;
    rig_serve();
    for (unsigned i = 0; i < 8; i++)
        ibx_fault_note_round_trip(rig.engine, 100000, 1);
    assert_true(page_is_right(300));
    assert_true(REACHES(by_cause[IBX_FAULT_BY_PREFETCH], 15));
    assert_in_range(longest_of(rig.readers[0], 288, 304), 1, 15);
    assert_int_equal(longest_of(rig.readers[0], 0, 1024), longest_of(rig.readers[0], 288, 304));
    ibx_fault_set_background(rig.engine, true);
    everything_is_right();
}

/* The least counts, until all take longer. */
static void test_the_round_trip_is_the_least(void **state)
{
    (void)state;
    static struct ibx_fault e;
    const uint64_t ms = IBX_NS_PER_MS;
    ibx_fault_note_round_trip(&e, 800000, 1000 * ms);
    ibx_fault_note_round_trip(&e, 200000, 1001 * ms);
    ibx_fault_note_round_trip(&e, 90 * ms, 1002 * ms); /* behind much else */
    assert_int_equal(e.flight.round_trip_ns, 203125);
    for (unsigned i = 0; i < 1000; i++)
        ibx_fault_note_round_trip(&e, 5 * ms, 1003 * ms);
    assert_int_equal(e.flight.round_trip_ns, 203125);
    for (unsigned i = 0; i < 300; i++)
        ibx_fault_note_round_trip(&e, 5 * ms, (1100 + 20 * i) * ms);
    assert_int_equal(e.flight.round_trip_ns, 5 * ms);
}

/* ------------------------------------------------------------ the background */

/* The caller's knowledge of the wire is used until a page has told more. */
static void test_small_is_known_from_the_first_request_on(void **state)
{
    (void)state;
    be_far();
    rig.config.wire = true;
    rig.config.round_trip_ns = 4000000;
    rig_serve();
    assert_true(reader_asked(rig.readers[1], 1));
    assert_in_range(rig.readers[1]->log[0].length / PAGE, 5 * 16, 256);
    everything_is_right();
}

/* A round trip, however long, begins no background that is not wished: the VM stands still, and
 * nothing may be ahead of what it waits for. */
static void test_no_background_while_it_is_off(void **state)
{
    (void)state;
    be_far();
    rig.config.no_background = rig.config.wire = true;
    rig.config.round_trip_ns = 4000000;
    rig.config.fault_around = PAGE;
    rig_serve();
    assert_true(page_is_right(300));
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_BACKGROUND], 0);
    assert_int_equal(rig.readers[1]->accepted, 0);
    ibx_fault_set_background(rig.engine, true);
    everything_is_right();
}

/* ------------------------------------------------------------ loops */

/* Over a wire a loop is fetched page by page ahead of who goes through it, also when not all of a
 * request comes. */
static void test_a_loop_is_fetched(void **state)
{
    const bool odd = *state == &rig;
    unsigned scattered = 0;
    be_far();
    rig.config.wire = true;
    rig.config.no_background = true;
    rig.readers[1]->short_every = odd ? 3 : 0;
    rig.readers[1]->again_every = odd ? 5 : 0;
    rig_serve();
    for (unsigned i = 0; i < PAGES; i++) { /* passes of 31 pages */
        assert_true(page_is_right(i * 33 % PAGES));
        if (i == 130)
            ibx_fault_set_background(rig.engine, true);
    }
    everything_is_right();
    for (unsigned i = 0; i < rig.readers[1]->accepted && i < LOG_MAX; i++)
        scattered += rig.readers[1]->log[i].page_count;
    /* A reader that goes through the memory fetches the rest, the more the busier this host is. */
    assert_in_range(scattered, PAGES / 8, 2 * PAGES);
}

/* Ranges whose numbers follow each other, and whose addresses do not, as of several NUMA nodes: a
 * loop through two of them stays in its own. */
static void test_a_loop_ends_with_its_range(void **state)
{
    (void)state;
    const unsigned from[] = {0, 256, 512, PAGES}; /* numbers */
    struct ibx_fault_range ranges[3];
    be_far();
    for (unsigned i = 0; i < 3; i++) {
        const uint64_t behind = (uint64_t)(PAGES - from[i + 1]) * PAGE;
        ranges[i] = rig.range;
        ranges[i].start += behind;
        ranges[i].reader_offset = behind;
        ranges[i].length = (from[i + 1] - from[i]) * PAGE;
        ranges[i].first_page = from[i];
    }
    rig.config.ranges = ranges;
    rig.config.range_count = 3;
    rig.config.wire = true;
    rig.config.no_background = true;
    rig_serve();
    for (unsigned i = 0; i < PAGES; i++) {
        const unsigned number = 256 + i * 35 % 768;
        assert_true(page_is_right(number < 512 ? 256 + number : number - 512));
        if (i == 130)
            ibx_fault_set_background(rig.engine, true);
    }
    everything_is_right();
    for (unsigned i = 0; i < PAGES; i++)
        assert_true(page_is_right(i));
}

/* ------------------------------------------------------------ what is in flight over a wire */

/* As much as arrives in a round trip and half a millisecond, once that is known; more if that
 * brings less than before. */
static void test_what_is_in_flight(void **state)
{
    (void)state;
    static struct ibx_fault e = {.wire = true, .worker_count = 5, .fault_workers = 1};
    const struct fault_worker w = {.engine = &e};
    const uint64_t ms = IBX_NS_PER_MS, mib = 1 << 20;
    uint64_t now = 100 * ms;
    ibx_fault_note_round_trip(&e, 5 * ms, now);
    for (unsigned i = 0; i < 20; i++) /* so little is in flight that no queue may stand */
        ibx_fault_note_arrival(&e, mib, now += 6 * ms);
    assert_int_equal(ibx_fault_flight_room(&w, now), UINT64_MAX);
    e.flight.bytes = 12 * mib;
    for (unsigned i = 0; i < 20; i++) /* 1000 MiB a second */
        ibx_fault_note_arrival(&e, 6 * mib, now += 6 * ms);
    e.flight.fault_ns = now;
    assert_in_range(ibx_fault_flight_room(&w, now), 6 * mib / 4, 7 * mib / 4);
    assert_in_range(ibx_fault_flight_room(&w, now + 60 * ms), 9 * mib / 4, 10 * mib / 4);
    e.flight.bytes = 6 * mib;
    for (unsigned i = 0; i < 4; i++) { /* it is held back, and less arrives */
        e.flight.held = true;
        ibx_fault_note_arrival(&e, 4 * mib, now += 6 * ms);
    }
    e.flight.fault_ns = now;
    assert_in_range(ibx_fault_flight_room(&w, now), 12 * mib / 4, 17 * mib / 4);
    for (unsigned i = 0; i < 100; i++) {
        e.flight.held = true;
        ibx_fault_note_arrival(&e, 6 * mib, now += 6 * ms);
    }
    e.flight.fault_ns = now;
    assert_in_range(ibx_fault_flight_room(&w, now), 6 * mib / 4, 7 * mib / 4);
    e.wire = false;
    assert_int_equal(ibx_fault_flight_room(&w, now), UINT64_MAX);
}

#define ENGINE_TEST(name) cmocka_unit_test_setup_teardown(name, rig_make_pair, rig_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENGINE_TEST(test_more_over_a_long_round_trip),
        ENGINE_TEST(test_no_more_over_a_short_one),
        cmocka_unit_test(test_the_round_trip_is_the_least),
        ENGINE_TEST(test_small_is_known_from_the_first_request_on),
        ENGINE_TEST(test_no_background_while_it_is_off),
        ENGINE_TEST(test_a_loop_is_fetched),
        {"test_a_loop_is_fetched_in_parts", test_a_loop_is_fetched, rig_make_pair, rig_end, &rig},
        ENGINE_TEST(test_a_loop_ends_with_its_range),
        cmocka_unit_test(test_what_is_in_flight),
    };
    int skipped = rig_skipped(IBX_FAULT_EVENT_REMOVE);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
