/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Strides through huge pages: what the background fetches first. */
#include "tests/fixtures/fault_memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/userfaultfd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define HUGE  (2u << 20)
#define HUGES 14u
#define SMALL (HUGE / PAGE)   /* small pages in a huge one */
#define STEP  (SMALL * 9 / 4) /* two huge pages and a quarter */

/* One worker serves faults, one does the rest; the first request of the latter does not arrive
 * yet. */
static void huge_serve(uint32_t fault_around)
{
    int file = memfd_create("ibx-test", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);
    if (file < 0 || ftruncate(file, HUGES * HUGE) || fallocate(file, 0, 0, HUGES * HUGE)) {
        print_message("SKIPPED: no %u huge pages of 2 MiB here (vm.nr_hugepages)\n", HUGES);
        if (file >= 0)
            close(file);
        skip();
    }
    assert_int_equal(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, HUGES * HUGE),
                     0);
    rig_map(2, file, HUGES * HUGE, HUGE, false);
    rig_register(UFFD_FEATURE_MISSING_HUGETLBFS);
    rig.config.fault_workers = 1;
    rig.config.depth = 1;
    rig.config.fault_around = fault_around;
    rig.readers[1]->hold = true;
    rig_serve();
    assert_true(reader_asked(rig.readers[1], 1));
}

/* Touches this small page and waits until its huge page is served. */
static void fault_at(unsigned small)
{
    const volatile uint8_t *byte = rig.memory + (size_t)small * PAGE;
    assert_int_equal(*byte, rig.data.bytes[(size_t)small * PAGE]);
}

static void all_came_once(void)
{
    rig.readers[1]->hold = false;
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < HUGES; i++) {
        assert_true(page_is_right(i));
        assert_int_equal(rig.data.fetched[i], 1);
    }
}

/* The stride is two and a quarter huge pages, so that only small pages show it. The pages 2, 4
 * and 6 follow, then 9, 11 and 13, then the end of the memory. The rest comes in order, starting
 * after the last fault without a stride. */
static void test_the_stride_is_fetched_first(void **state)
{
    static const uint64_t follow[] = {9, 11, 13, 5, 7, 8, 10, 12};
    (void)state;
    huge_serve(0);
    for (unsigned i = 1; i <= 3; i++)
        fault_at(i * STEP);
    all_came_once();
    const struct ibx_fault_request *log = rig.readers[1]->log;
    for (unsigned i = 0; i < sizeof(follow) / sizeof(follow[0]); i++)
        assert_int_equal(log[1 + i].page, follow[i]);
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_PREFETCH], 3);
}

static void test_downwards(void **state)
{
    (void)state;
    huge_serve(0);
    for (unsigned i = 1; i <= 3; i++)
        fault_at(HUGES * SMALL - i * STEP);
    all_came_once();
    assert_int_equal(rig.readers[1]->log[1].page, 5);
    assert_int_equal(rig.readers[1]->log[2].page, 2);
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_PREFETCH], 2); /* page 0 was fetched too */
}

/* Without fault-around no stride is predicted, in huge pages neither. */
static void test_no_prediction_without_fault_around(void **state)
{
    (void)state;
    huge_serve(1);
    for (unsigned i = 1; i <= 3; i++)
        fault_at(i * STEP);
    all_came_once();
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_PREFETCH], 0);
}

/* While the background is off, only faulting pages are fetched. */
static void test_no_prediction_without_a_background(void **state)
{
    (void)state;
    huge_serve(0);
    ibx_fault_set_background(rig.engine, false);
    for (unsigned i = 1; i <= 3; i++)
        fault_at(i * STEP);
    rig.readers[1]->hold = false;
    assert_true(REACHES(present, 4));
    fault_at(4 * STEP);
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_PREFETCH], 0);
    ibx_fault_set_background(rig.engine, true);
    all_came_once();
}

#define AHEAD_TEST(name) cmocka_unit_test_teardown(name, rig_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        AHEAD_TEST(test_the_stride_is_fetched_first),
        AHEAD_TEST(test_downwards),
        AHEAD_TEST(test_no_prediction_without_fault_around),
        AHEAD_TEST(test_no_prediction_without_a_background),
    };
    int skipped = rig_skipped(0);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
