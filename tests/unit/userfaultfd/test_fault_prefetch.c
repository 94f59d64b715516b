/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is fetched before it faults, and what is fetched twice because it comes too slowly. */
#include "tests/scenes/fault_memory.h"

#include "userfaultfd/engine.h"
#include "userfaultfd/stride.h"
#include "userfaultfd/pagemap.h"

#include "common/clock.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#define MOST 16u

/* ------------------------------------------------------------ strides */

static void expect_next(struct stride_detector *t, uint64_t page, uint64_t from, uint64_t step,
                        unsigned n)
{
    struct stride_prefetch next = ibx_fault_stride(t, page, MOST);
    assert_int_equal(next.pages, n);
    if (n) {
        assert_int_equal(next.from, from);
        assert_int_equal(next.distance, step);
    }
}

/* Seen with its third page, and then twice as far ahead each time that it comes as foreseen: at the
 * end of what was asked for, or within. */
static void test_stride(void **state)
{
    (void)state;
    const uint64_t steps[] = {1, 3, 1607, (uint64_t)-1, (uint64_t)-700};
    for (unsigned i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
        struct stride_detector t = {0};
        const uint64_t s = steps[i], p = 1 << 20;
        expect_next(&t, p, 0, 0, 0);
        expect_next(&t, p + s, 0, 0, 0);
        expect_next(&t, p + 2 * s, p + 2 * s, s, 4);
        expect_next(&t, p + 7 * s, p + 7 * s, s, 8);
        expect_next(&t, p + 9 * s, p + 15 * s, s, 10);
        expect_next(&t, p + 26 * s, p + 26 * s, s, MOST);
        expect_next(&t, p + 50 * s, p + 50 * s, s, MOST); /* some were there already */
    }
}

/* Two strides at once, each with faults of the other in between. */
static void test_two_strides(void **state)
{
    (void)state;
    struct stride_detector t = {0};
    for (unsigned i = 0; i < 2; i++) {
        expect_next(&t, 1000 + i, 0, 0, 0);
        expect_next(&t, 90000 - 40 * i, 0, 0, 0);
    }
    expect_next(&t, 1002, 1002, 1, 4);
    expect_next(&t, 89920, 89920, (uint64_t)-40, 4);
    expect_next(&t, 1007, 1007, 1, 8);
    expect_next(&t, 89720, 89720, (uint64_t)-40, 8);
}

/* A loop in a loop: the stride that begins elsewhere is known by its step, for a while. */
static void test_next_stride(void **state)
{
    (void)state;
    struct stride_detector t = {0};
    for (unsigned i = 0; i < 3; i++)
        ibx_fault_stride(&t, 5000 + 64 * i, MOST);
    expect_next(&t, 5000 + 64 * 7, 5000 + 64 * 7, 64, 8);
    expect_next(&t, 900001, 900001, 64, 4);
    expect_next(&t, 900001 + 64 * 5, 900001 + 64 * 5, 64, 8);
    uint32_t seed = 5;
    unsigned asked = 0;
    for (unsigned i = 0; i < 4; i++)
        ibx_fault_stride(&t, (uint64_t)next_random(&seed) << 20, MOST);
    for (unsigned i = 0; i < 1000; i++)
        asked += ibx_fault_stride(&t, (uint64_t)next_random(&seed) << 20, MOST).pages;
    assert_int_equal(asked, 0); /* who goes nowhere is not followed */
}

static void test_not_wanted(void **state)
{
    (void)state;
    struct stride_detector t = {0};
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(ibx_fault_stride(&t, i, 0).pages, 0);
}

/* ------------------------------------------------------------ the map, word by word */

static void test_runs_of_the_map(void **state)
{
    (void)state;
    static _Atomic uint64_t words[8];
    struct pagemap map = {words, 8 * PAGES_A_WORD};
    uint32_t seed = 17;
    for (unsigned round = 0; round < 2000; round++) {
        enum page_state before[8 * PAGES_A_WORD];
        uint64_t first = next_random(&seed) % map.pages;
        uint64_t n = next_random(&seed) % (map.pages - first + 1), moved = 0;
        enum page_state from = next_random(&seed) % 4, to = next_random(&seed) % 4;
        for (unsigned i = 0; i < 8; i++)
            words[i] = (uint64_t)next_random(&seed) << 32 | next_random(&seed);
        for (unsigned i = 0; i < map.pages; i++)
            before[i] = pagemap_get(&map, i);
        uint64_t said = pagemap_move_run(&map, first, n, from, to);
        for (unsigned i = 0; i < map.pages; i++) {
            bool moves = i >= first && i < first + n && before[i] == from;
            assert_int_equal(pagemap_get(&map, i), moves ? to : before[i]);
            moved += moves;
        }
        assert_int_equal(said, moved);
    }
}

/* ------------------------------------------------------------ the engine */

/* Worker 0 is for faults, worker 1 for the rest. */
static int make(void **state)
{
    (void)state;
    rig_make(2, IBX_FAULT_EVENT_REMOVE);
    rig.config.fault_workers = 1;
    rig.config.chunk_min = 16 * PAGE;
    return 0;
}

#define TWICE 5u /* a page that the background is fetching when it faults */
static struct look looker;

static void begin_looking(void)
{
    rig_serve();
    assert_true(reader_asked(rig.readers[1], 1));
    assert_int_equal(rig.readers[1]->log[0].page, 0);
    look_at(&looker, TWICE);
}

/* The page is on its way twice, and nothing arrives. */
static void fetch_twice(void)
{
    rig.readers[0]->hold = rig.readers[1]->hold = true;
    begin_looking();
    assert_true(reader_asked(rig.readers[0], 1));
    assert_int_equal(rig.readers[0]->log[0].page, TWICE);
}

static void everything_is_right(void)
{
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    const struct ibx_fault_stats s = stats_now();
    assert_int_equal(s.present, PAGES);
    assert_int_equal(s.by_cause[IBX_FAULT_BY_FAULT] + s.by_cause[IBX_FAULT_BY_PREFETCH] +
                         s.by_cause[IBX_FAULT_BY_BACKGROUND] + s.by_cause[IBX_FAULT_BY_REMOVE],
                     PAGES);
}

/* Every fourth page, one after the other: few faults bring all of them, by the fault worker. */
static void test_a_stride_is_followed(void **state)
{
    (void)state;
    rig.config.no_background = true;
    rig.config.fault_around = 2 * PAGE;
    rig_serve();
    for (unsigned i = 0; i < PAGES; i += 4) {
        assert_true(page_is_right(i));
        assert_int_equal(rig.data.fetched[i], 1);
    }
    const struct ibx_fault_stats s = stats_now();
    assert_true(s.by_cause[IBX_FAULT_BY_PREFETCH] > s.by_cause[IBX_FAULT_BY_FAULT]);
    assert_int_equal(rig.readers[1]->accepted, 0);
    ibx_fault_set_background(rig.engine, true);
    everything_is_right();
    for (unsigned i = 0; i < PAGES; i++)
        assert_int_equal(rig.data.fetched[i], 1);
}

/* ------------------------------------------------------------ a long round trip */

#define ROUND_TRIP_MS 4
static _Atomic uint64_t far_since_ns; /* the latest request */

static int far_request(void *reader, const struct ibx_fault_request *request)
{
    far_since_ns = ibx_now_ns();
    return memory_reader_ops.request(reader, request);
}

static int far_poll(void *reader, struct ibx_fault_arrival *arrivals, int max)
{
    const bool there = ibx_now_ns() - far_since_ns >= ROUND_TRIP_MS * IBX_NS_PER_MS;
    return there ? memory_reader_ops.poll(reader, arrivals, max) : 0;
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
    struct ibx_fault_reader_ops ops = memory_reader_ops;
    ops.request = far_request;
    ops.poll = far_poll;
    ops.fd = NULL;
    rig.as[0].ops = rig.as[1].ops = &ops;
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
    /* Those of chunk_min are 16 pages. */
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
        ibx_fault_note_round_trip(rig.engine, 100000);
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
    ibx_fault_note_round_trip(&e, 800000);
    ibx_fault_note_round_trip(&e, 200000);
    ibx_fault_note_round_trip(&e, 90000000); /* behind much else */
    assert_int_equal(e.round_trip_ns, 203125);
    for (unsigned i = 0; i < 300; i++)
        ibx_fault_note_round_trip(&e, 5000000);
    assert_int_equal(e.round_trip_ns, 5000000);
}

/* ------------------------------------------------------------ before the first fault */

static bool resident(void *memory, size_t length)
{
    unsigned char there[1024];
    const size_t pages = length / PAGE;
    assert_in_range(pages, 1, sizeof(there));
    assert_int_equal(mincore(memory, length, there), 0);
    for (size_t i = 0; i < pages; i++)
        if (!(there[i] & 1))
            return false;
    return true;
}

/* Where the first pages arrive has its memory before any is asked for: of huge pages the kernel
 * clears 2 MiB at the first touch, and a VM that stands still would wait for that. */
static void test_room_is_made_before(void **state)
{
    (void)state;
    const size_t single = (URGENT_SLOTS + STRIDE_SLOTS) * PAGE;
    const size_t bytes = ibx_fault_buffer_bytes(&rig.config);
    uint8_t *buffers[2];
    for (unsigned i = 0; i < 2; i++) {
        buffers[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(buffers[i] != MAP_FAILED);
        rig.as[i].buffer = buffers[i];
    }
    rig_start();
    assert_true(resident(buffers[0], single));
    assert_true(resident(buffers[1] + single, 1u << 20));
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    everything_is_right();
    rig_destroy_engine();
    munmap(buffers[0], bytes);
    munmap(buffers[1], bytes);
}

/* ------------------------------------------------------------ who has nothing is not asked */

static _Atomic unsigned looks;
static int ready; /* readable when a request has arrived */

static int ready_request(void *reader, const struct ibx_fault_request *request)
{
    const uint64_t one = 1;
    int rc = memory_reader_ops.request(reader, request);
    return rc || write(ready, &one, sizeof(one)) == sizeof(one) ? rc : -EIO;
}

static int ready_poll(void *reader, struct ibx_fault_arrival *arrivals, int max)
{
    uint64_t count;
    ssize_t ignored = read(ready, &count, sizeof(count));
    (void)ignored;
    atomic_fetch_add(&looks, 1);
    return memory_reader_ops.poll(reader, arrivals, max);
}

static int ready_fd(void *reader)
{
    (void)reader;
    return ready;
}

/* One look at the reader for a fault, when poll(2) says that the page has come: each further one is
 * a system call or several, while others wait for the processor. */
static void test_looks(void **state)
{
    (void)state;
    struct ibx_fault_reader_ops ops = memory_reader_ops;
    const unsigned faults = 300;
    ops.request = ready_request;
    ops.poll = ready_poll;
    ops.fd = ready_fd;
    ready = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_true(ready >= 0);
    rig.as[0].ops = &ops;
    rig.config.no_background = true;
    rig.config.fault_around = PAGE;
    rig_serve();
    looks = 0;
    for (unsigned i = 0; i < faults; i++)
        assert_true(page_is_right(i * 7 % PAGES));
    assert_in_range(looks, faults, faults + faults / 2);
    ibx_fault_set_background(rig.engine, true);
    everything_is_right();
    rig_destroy_engine();
    close(ready);
}

/* A page that is on its way with the background, which does not get on. */
static void test_fetched_twice(void **state)
{
    (void)state;
    rig.readers[1]->hold = true;
    begin_looking();
    look_sees_right(&looker);
    rig.memory[TWICE * PAGE]++; /* and what comes later does not touch it */
    rig.readers[1]->hold = false;
    everything_is_right();
    for (unsigned i = 0; i < PAGES; i++) {
        assert_int_equal(rig.data.fetched[i], i == TWICE ? 2 : 1);
        assert_int_equal(page_is_right(i), i != TWICE);
    }
}

/* Discarded while it is on both ways, it is zero, whichever comes first. */
static void test_fetched_twice_and_discarded_early(void **state)
{
    const bool first = *state; /* the worker with the claim is the first to go on */
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

/* The one that has the claim gives it back: nothing is lost, nor counted twice. */
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

/* Every page has come, this one from the background, and once more it is still on its way. */
static void complete_with_one_on_its_way(void)
{
    fetch_twice();
    rig.readers[1]->hold = false;
    look_sees_right(&looker);
    everything_is_right();
    assert_int_equal(rig.data.fetched[TWICE], 1);
}

/* Then it is taken from its reader all the same: who left it there would be woken by it for ever.
 */
static void test_fetched_twice_and_late(void **state)
{
    (void)state;
    const uint64_t deadline = ibx_deadline_in_ms(20000);
    complete_with_one_on_its_way();
    rig.readers[0]->hold = false;
    while (rig.data.fetched[TWICE] < 2 && ibx_now_ns() < deadline)
        sched_yield();
    assert_int_equal(rig.data.fetched[TWICE], 2);
    assert_int_equal(ibx_fault_state(rig.engine), IBX_FAULT_COMPLETE);
}

/* And a reader that breaks then is no harm. */
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

/* Nor is it cancelled at the end, when it is about to come. */
static void test_fetched_twice_and_ended(void **state)
{
    (void)state;
    complete_with_one_on_its_way();
    rig.readers[0]->flying[0].polls_left = 2; /* while it is held nobody else looks there */
    rig.readers[0]->hold = false;
    rig_destroy_engine();
    assert_int_equal(rig.readers[0]->cancelled, 0);
    assert_int_equal(rig.data.fetched[TWICE], 2);
}

/* But one that does not come is. */
static void test_fetched_twice_and_never_come(void **state)
{
    (void)state;
    complete_with_one_on_its_way();
    rig_destroy_engine();
    assert_int_equal(rig.readers[0]->cancelled, 1);
}

#define ENGINE_TEST(name) cmocka_unit_test_setup_teardown(name, make, rig_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stride),
        cmocka_unit_test(test_two_strides),
        cmocka_unit_test(test_next_stride),
        cmocka_unit_test(test_not_wanted),
        cmocka_unit_test(test_runs_of_the_map),
        ENGINE_TEST(test_a_stride_is_followed),
        ENGINE_TEST(test_more_over_a_long_round_trip),
        ENGINE_TEST(test_no_more_over_a_short_one),
        cmocka_unit_test(test_the_round_trip_is_the_least),
        ENGINE_TEST(test_room_is_made_before),
        ENGINE_TEST(test_looks),
        ENGINE_TEST(test_fetched_twice),
        ENGINE_TEST(test_fetched_twice_and_discarded_early),
        {"test_fetched_twice_and_discarded", test_fetched_twice_and_discarded_early, make, rig_end,
         &rig},
        ENGINE_TEST(test_fetched_twice_and_given_back),
        ENGINE_TEST(test_fetched_twice_and_late),
        ENGINE_TEST(test_fetched_twice_from_a_broken_source),
        ENGINE_TEST(test_fetched_twice_and_ended),
        ENGINE_TEST(test_fetched_twice_and_never_come),
    };
    int skipped = rig_skipped(IBX_FAULT_EVENT_REMOVE);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
