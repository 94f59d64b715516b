/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What grows with the round trip time: how much is fetched around and ahead of a fault, and how
 * much is in flight. */
#include "tests/fixtures/fault_memory.h"
#include "tests/fixtures/patience.h"

#include "userfaultfd/engine.h"

#include "common/clock.h"

#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* ------------------------------------------------------------ a long round trip */

static uint64_t round_trip_ns;
static _Atomic uint64_t last_request_ns; /* the latest request */
static bool asked[2]; /* by worker: whether its reader was asked since it last polled */

static int slow_request(void *reader, const struct ibx_fault_request *request)
{
    asked[reader == rig.readers[1]] = true;
    last_request_ns = ibx_now_ns();
    return memory_reader_ops.request(reader, request);
}

/* A worker that has just requested a page requests the pages around it before that page arrives,
 * however long it waits for a processor in between. */
static int slow_poll(void *reader, struct ibx_fault_arrival *arrivals, int max)
{
    bool *just = &asked[reader == rig.readers[1]];
    const bool there = !*just && ibx_now_ns() - last_request_ns >= round_trip_ns;
    *just = false;
    return there ? memory_reader_ops.poll(reader, arrivals, max) : 0;
}

static void make_round_trip(uint64_t ns)
{
    /* static, because the engine uses it until it is destroyed */
    static struct ibx_fault_reader_ops ops;
    round_trip_ns = ns;
    ops = memory_reader_ops;
    ops.request = slow_request;
    ops.poll = slow_poll;
    ops.fd = NULL;
    rig.as[0].ops = rig.as[1].ops = &ops;
}

static void make_round_trip_long(void)
{
    make_round_trip(4 * IBX_NS_PER_MS);
}

/* Pages of the longest request to this reader between these two pages. */
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

/* The window around a fault and the background's requests between faults are what the wire
 * carries in a round trip. The engine learns the round trip time from the first fault. */
static void test_long_round_trip_fetches_more(void **state)
{
    (void)state;
    make_round_trip_long();
    rig.config.no_background = true;
    rig.config.fault_around = 16 * PAGE;
    rig_serve();
    assert_true(page_is_right(0));
    assert_true(page_is_right(300)); /* in its window, which at 4 ms has 128 pages */
    assert_true(REACHES(by_cause[IBX_FAULT_BY_PREFETCH], 15 + 127));
    assert_int_equal(longest_of(rig.readers[0], 0, 256), 15);
    assert_in_range(longest_of(rig.readers[0], 256, 384), 64, 127);
    ibx_fault_set_background(rig.engine, true);
    assert_true(reader_asked(rig.readers[1], 1));
    /* Chunks of chunk_min have 16 pages. */
    assert_in_range(rig.readers[1]->log[0].length / PAGE, 5 * 16, 256);
    everything_is_right();
}

/* Requests to near sources do not grow. */
static void test_short_round_trip_fetches_no_more(void **state)
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

/* The shortest round trip counts, until all take longer. */
static void test_round_trip_is_the_shortest_one(void **state)
{
    (void)state;
    static struct ibx_fault e;
    const uint64_t ms = IBX_NS_PER_MS;
    ibx_fault_note_round_trip(&e, 800000, 1000 * ms);
    ibx_fault_note_round_trip(&e, 200000, 1001 * ms);
    ibx_fault_note_round_trip(&e, 90 * ms, 1002 * ms); /* after much other data */
    assert_int_equal(e.flight.round_trip_ns, 203125);
    for (unsigned i = 0; i < 1000; i++)
        ibx_fault_note_round_trip(&e, 5 * ms, 1003 * ms);
    assert_int_equal(e.flight.round_trip_ns, 203125);
    for (unsigned i = 0; i < 300; i++)
        ibx_fault_note_round_trip(&e, 5 * ms, (1100 + 20 * i) * ms);
    assert_int_equal(e.flight.round_trip_ns, 5 * ms);
}

/* ------------------------------------------------------------ the background */

/* The caller's estimate is used until a page has shown the round trip time. */
static void test_callers_estimate_of_the_round_trip(void **state)
{
    (void)state;
    make_round_trip_long();
    rig.config.wire = true;
    rig.config.round_trip_ns = 4000000;
    rig_serve();
    assert_true(reader_asked(rig.readers[1], 1));
    assert_in_range(rig.readers[1]->log[0].length / PAGE, 5 * 16, 256);
    everything_is_right();
}

/* However long the round trip, a background that is off does not start: the VM is stopped, and
 * nothing may come before the pages that it waits for. */
static void test_no_background_while_it_is_off(void **state)
{
    (void)state;
    make_round_trip_long();
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

/* Pages of loops for which the second reader was asked. */
static unsigned in_loops(void)
{
    const unsigned accepted = atomic_load(&rig.readers[1]->accepted);
    unsigned pages = 0;
    for (unsigned i = 0; i < accepted && i < LOG_MAX; i++)
        pages += rig.readers[1]->log[i].page_count;
    return pages;
}

/* Whether they become so many while the thread in the loop waits. */
static bool loop_is_fetched(unsigned pages)
{
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(20000));
    while (in_loops() < pages && ibx_now_ns() < deadline)
        sched_yield();
    return in_loops() >= pages;
}

/* Over a network a loop is fetched page by page ahead of the thread that runs through it, even
 * if not every page of a request arrives. */
static void test_loop_is_fetched_ahead(void **state)
{
    const bool odd = *state == &rig;
    /* Long enough for loops. Windows stay smaller than the loop's step, however slow the thread is
     * that runs through it: it shall find pages missing. */
    make_round_trip(IBX_NS_PER_MS / 5);
    rig.config.fault_around = 2 * PAGE;
    rig.config.wire = true;
    rig.config.no_background = true;
    rig.readers[1]->short_every = odd ? 3 : 0;
    rig.readers[1]->again_every = odd ? 5 : 0;
    rig_serve();
    for (unsigned i = 0; i < PAGES; i++) { /* passes of 31 pages */
        assert_true(page_is_right(i * 33 % PAGES));
        if (i == 130) {
            ibx_fault_set_background(rig.engine, true);
            assert_true(loop_is_fetched(PAGES / 8));
        }
    }
    everything_is_right();
    assert_in_range(in_loops(), PAGES / 8, 2 * PAGES);
}

/* Ranges whose page numbers are consecutive and whose addresses are not, like those of several
 * NUMA nodes. A loop that runs through two ranges is followed only within its own. */
static void test_loop_ends_with_its_range(void **state)
{
    (void)state;
    const unsigned from[] = {0, 256, 512, PAGES}; /* page numbers */
    struct ibx_fault_range ranges[3];
    make_round_trip_long();
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

/* As much is in flight as arrives in a round trip and half a millisecond, once that is known,
 * and more if less arrives than before. */
static void test_limit_of_bytes_in_flight(void **state)
{
    (void)state;
    static struct ibx_fault e = {.wire = true, .worker_count = 5, .fault_workers = 1};
    const struct fault_worker w = {.engine = &e};
    const uint64_t ms = IBX_NS_PER_MS, mib = 1 << 20;
    uint64_t now = 100 * ms;
    ibx_fault_note_round_trip(&e, 5 * ms, now);
    for (unsigned i = 0; i < 20; i++) /* so little is in flight that nothing can be queued */
        ibx_fault_note_arrival(&e, mib, now += 6 * ms);
    assert_int_equal(ibx_fault_flight_room(&w, now), UINT64_MAX);
    e.flight.bytes = 12 * mib;
    for (unsigned i = 0; i < 20; i++) /* 1000 MiB per second */
        ibx_fault_note_arrival(&e, 6 * mib, now += 6 * ms);
    e.flight.fault_ns = now;
    assert_in_range(ibx_fault_flight_room(&w, now), 6 * mib / 4, 7 * mib / 4);
    assert_in_range(ibx_fault_flight_room(&w, now + 60 * ms), 9 * mib / 4, 10 * mib / 4);
    e.flight.bytes = 6 * mib;
    for (unsigned i = 0; i < 4; i++) { /* the flow is limited, and less arrives */
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

/* Over a wire that brings little, requests are shortened, never lengthened: their buffers are as
 * long as the longest one. */
static void test_short_requests_stay_short(void **state)
{
    (void)state;
    rig.config.wire = rig.config.no_background = true;
    rig.config.chunk_min = rig.config.chunk_max = 4 * PAGE;
    rig_start();
    ibx_fault_note_round_trip(rig.engine, IBX_NS_PER_MS, ibx_now_ns());
    rig.engine->flight.rate = 1 << 20;
    rig.engine->flight.steady = 4;
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    ibx_fault_set_background(rig.engine, true);
    everything_is_right();
    assert_int_equal(longest_of(rig.readers[1], 0, PAGES), 4);
}

#define ENGINE_TEST(name) cmocka_unit_test_setup_teardown(name, rig_make_pair, rig_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENGINE_TEST(test_long_round_trip_fetches_more),
        ENGINE_TEST(test_short_round_trip_fetches_no_more),
        cmocka_unit_test(test_round_trip_is_the_shortest_one),
        ENGINE_TEST(test_callers_estimate_of_the_round_trip),
        ENGINE_TEST(test_no_background_while_it_is_off),
        ENGINE_TEST(test_loop_is_fetched_ahead),
        {"test_a_loop_is_fetched_in_parts", test_loop_is_fetched_ahead, rig_make_pair, rig_end,
         &rig},
        ENGINE_TEST(test_loop_ends_with_its_range),
        cmocka_unit_test(test_limit_of_bytes_in_flight),
        ENGINE_TEST(test_short_requests_stay_short),
    };
    int skipped = rig_skipped(IBX_FAULT_EVENT_REMOVE);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
