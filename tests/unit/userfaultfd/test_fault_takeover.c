/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* An engine in another process is killed, and a new one takes over with its map. */
#include "tests/fixtures/fault_memory.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"
#include "userfaultfd/engine.h"

#include "common/clock.h"

#include <errno.h>

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t map_bytes;

static int make(void **state)
{
    (void)state;
    rig_make(2, IBX_FAULT_EVENT_REMOVE);
    map_bytes = ibx_fault_map_bytes(&rig.range, 1);
    rig.config.map_memory =
        mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(rig.config.map_memory != MAP_FAILED);
    rig.config.no_background = true;
    return 0;
}

static int end(void **state)
{
    void *map = rig.config.map_memory;
    int rc = rig_end(state);
    munmap(map, map_bytes);
    return rc;
}

static void discard(uint64_t page, uint64_t pages)
{
    assert_int_equal(madvise(rig.memory + page * PAGE, pages * PAGE, MADV_DONTNEED), 0);
}

/* Pages that the first engine has placed are neither fetched nor served again by the next one. */
static void test_pages_of_the_first_engine_are_known(NO_STATE)
{
    rig_serve_near(); /* no page of those below is in the window of page 3 */
    touch(3);
    discard(3, 1);   /* was present: now zero */
    discard(100, 5); /* was missing */
    rig_destroy_engine();
    assert_int_equal(rig.data.fetched[3], 1);
    rig_serve();
    assert_true(page_is_zero(3));
    assert_true(page_is_zero(102));
    assert_true(page_is_right(5)); /* perhaps fetched in the window of the first one */
    assert_true(page_is_right(200));
    assert_int_equal(rig.data.fetched[102], 0);
    assert_int_equal(rig.data.fetched[3], 1);
    assert_true(stats_now().by_cause[IBX_FAULT_BY_REBUILD] >= 6);
}

/* The kernel had reported a removal, and its caller had continued, when the engine was killed. */
static void test_an_event_that_was_read_is_not_lost(NO_STATE)
{
    struct map_memory *map = rig.config.map_memory;
    rig_start();
    rig_destroy_engine();
    map->events[1] = (struct uffd_msg){.event = UFFD_EVENT_REMOVE};
    map->events[1].arg.remove.start = rig.range.start + 7 * PAGE;
    map->events[1].arg.remove.end = rig.range.start + 9 * PAGE;
    rig_serve();
    assert_true(page_is_right(6));
    assert_true(page_is_zero(7));
    assert_true(page_is_zero(8));
    assert_true(page_is_right(9));
    assert_int_equal(map->events[1].event, 0);
}

/* The killed engine had read the fault of a thread, which the kernel does not report again by
 * itself. */
static void test_a_fault_that_was_read_is_not_lost(NO_STATE)
{
    static struct look look; /* its thread may outlive a failure */
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(20000));
    rig.readers[0]->hold = rig.readers[1]->hold = true;
    rig_serve();
    look_at(&look, 50);
    assert_true(REACHES(waiting, 1));
    rig_destroy_engine();
    rig.readers[0]->hold = rig.readers[1]->hold = false;
    rig_serve();
    while (!look.looked && ibx_now_ns() < deadline)
        sched_yield();
    assert_int_equal(look.looked, 1);
    look_sees_right(&look);
}

/* The number of a descriptor of the killed process now belongs to another one here. */
static void test_descriptor_of_another_process_is_left_alone(NO_STATE)
{
    struct map_memory *map = rig.config.map_memory;
    const int own = dup(0);
    rig_start();
    rig_destroy_engine();
    map->events[0] = (struct uffd_msg){.event = UFFD_EVENT_FORK};
    map->events[0].arg.fork.ufd = (uint32_t)own;
    rig_serve();
    assert_true(page_is_right(6));
    rig_destroy_engine();
    assert_int_equal(close(own), 0);
}

/* Pages were claimed; some of them had been placed and written to. */
static void test_claimed_pages_are_fetched_again(NO_STATE)
{
    struct map_memory *map = rig.config.map_memory;
    struct pagemap words = {map->words, PAGES};
    rig_serve();
    touch(20);
    rig_destroy_engine();
    rig.memory[20 * PAGE] ^= 1;
    rig.data.bytes[20 * PAGE] ^= 1;
    assert_true(pagemap_move(&words, 20, PAGE_PRESENT, PAGE_CLAIMED));
    assert_true(pagemap_move(&words, 500, PAGE_MISSING, PAGE_CLAIMED));
    assert_true(pagemap_move(&words, 501, PAGE_MISSING, PAGE_DISCARDED));
    rig.config.no_background = false;
    rig_serve();
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    assert_true(page_is_right(20));
    assert_true(page_is_right(500));
    assert_true(page_is_zero(501));
    assert_true(rig.data.fetched[20] >= 2);
}

static void test_another_memory_is_refused(NO_STATE)
{
    struct ibx_error err = {0};
    rig_start();
    rig_destroy_engine();
    ((struct map_memory *)rig.config.map_memory)->pages++;
    assert_int_equal(ibx_fault_create(&rig.config, &rig.engine, &err), -EINVAL);
    text_has(err.message, "1025 pages, not 1024");
}

/* ------------------------------------------------------------ killed */

static pid_t engine_process(void)
{
    pid_t child = fork();
    if (child)
        return child;
    rig_serve();
    while (true)
        pause();
}

/* Pages are read, written and discarded while the process that serves them is killed. */
static void test_killed_at_any_time(NO_STATE)
{
    uint8_t zero[PAGES] = {0}, written[PAGES] = {0};
    uint32_t seed = 5;
    rig.config.no_background = false;
    rig.config.max_bandwidth = 16u << 20;
    for (unsigned round = 0; round < 40; round++) {
        pid_t child = engine_process();
        for (unsigned i = 0; i < 40; i++) {
            const uint64_t page = next_random(&seed) % PAGES;
            const uint8_t was = written[page];
            if (was)
                assert_int_equal(rig.memory[page * PAGE + 9], was);
            else
                assert_true(zero[page] ? page_is_zero(page) : page_is_right(page));
            if (next_random(&seed) % 3 == 0) {
                discard(page, 1);
                zero[page] = 1;
                written[page] = 0;
            } else if (next_random(&seed) % 3 == 0) {
                rig.memory[page * PAGE + 9] = written[page] = (uint8_t)(1 + round);
            }
        }
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    rig_serve();
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    for (uint64_t page = 0; page < PAGES; page++) {
        if (written[page])
            assert_int_equal(rig.memory[page * PAGE + 9], written[page]);
        else
            assert_true(zero[page] ? page_is_zero(page) : page_is_right(page));
    }
}

/* ------------------------------------------------------------ the plan, and what was touched */

static void test_the_plan_comes_first_and_in_order(NO_STATE)
{
    static const struct ibx_fault_run plan[] = {
        {700, 2}, {10, 1}, {PAGES - 1, 9}, {PAGES + 5, 1}, {300, 40}};
    rig.config.worker_count = 1;
    rig.config.plan = plan;
    rig.config.plan_count = COUNT(plan);
    rig.config.chunk_max = rig.config.chunk_min = 32 * PAGE;
    rig_serve();
    assert_true(REACHES(present, 44));
    const struct ibx_fault_request *log = rig.readers[0]->log;
    const uint64_t pages[] = {700, 10, PAGES - 1, 300, 332};
    for (unsigned i = 0; i < COUNT(pages); i++)
        assert_int_equal(log[i].page, pages[i]);
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_PREFETCH], 44);
    assert_int_equal(rig.readers[0]->accepted, 5);
}

/* Pages in flight when the reader was lost are requested again although no thread faults on
 * them. */
static void test_the_plan_goes_on_with_another_reader(NO_STATE)
{
    static const struct ibx_fault_run plan[] = {{700, 2}};
    struct ibx_error err = {0};
    rig.config.worker_count = 1;
    rig.config.plan = plan;
    rig.config.plan_count = COUNT(plan);
    rig.readers[0]->hold = true;
    rig_serve();
    assert_true(reader_asked(rig.readers[0], 1));
    poll(NULL, 0, 20); /* the plan has ended */
    ibx_fault_stop(rig.engine, -EPIPE, "for the test");
    assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
    rig.readers[0]->hold = false;
    assert_int_equal(stats_now().present, 0);
    assert_int_equal(ibx_fault_resume(rig.engine, rig.as, &err), 0);
    assert_true(REACHES(present, 2));
}

static uint64_t seen[8];
static _Atomic unsigned seen_count;

static void see(void *context, uint64_t page)
{
    assert_ptr_equal(context, seen);
    if (seen_count < COUNT(seen)) {
        seen[seen_count] = page;
        seen_count++; /* behind the page, which the test reads next */
    }
}

static void test_faults_are_reported_in_order(NO_STATE)
{
    rig.config.touched = see;
    rig.config.touched_context = seen;
    rig.config.fault_around = 1;
    seen_count = 0;
    rig_serve();
    touch(9);
    touch(800);
    touch(9);
    touch(8);
    assert_int_equal(seen_count, 3);
    assert_true(seen[0] == 9 && seen[1] == 800 && seen[2] == 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_pages_of_the_first_engine_are_known, make, end),
        cmocka_unit_test_setup_teardown(test_an_event_that_was_read_is_not_lost, make, end),
        cmocka_unit_test_setup_teardown(test_a_fault_that_was_read_is_not_lost, make, end),
        cmocka_unit_test_setup_teardown(test_descriptor_of_another_process_is_left_alone, make,
                                        end),
        cmocka_unit_test_setup_teardown(test_claimed_pages_are_fetched_again, make, end),
        cmocka_unit_test_setup_teardown(test_another_memory_is_refused, make, end),
        cmocka_unit_test_setup_teardown(test_killed_at_any_time, make, end),
        cmocka_unit_test_setup_teardown(test_the_plan_comes_first_and_in_order, make, end),
        cmocka_unit_test_setup_teardown(test_the_plan_goes_on_with_another_reader, make, end),
        cmocka_unit_test_setup_teardown(test_faults_are_reported_in_order, make, end),
    };
    int skipped = rig_skipped(IBX_FAULT_EVENT_REMOVE);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
