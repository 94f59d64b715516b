/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Pages that reach the engine in another way than by a reader. */
#include "tests/fixtures/fault_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define PUSHER 7u /* its number as a worker in check() */

static _Atomic unsigned checked; /* how often PUSHER has checked */

static int check(void *context, unsigned worker, uint64_t page, uint32_t pages, const void *bytes,
                 struct ibx_error *err)
{
    const struct memory_data *data = context;
    checked += worker == PUSHER;
    return memcmp(bytes, data->bytes + page * PAGE, (size_t)pages * PAGE)
               ? ibx_error_set(err, -EBADMSG, "page %u is another", (unsigned)page)
               : 0;
}

static void begin_rig(void)
{
    rig.config.no_background = true;
    rig.config.fault_around = 1;
    rig.config.check = check;
    rig.config.check_context = &rig.data;
    checked = 0;
    rig_start();
}

static void begin(void)
{
    rig_make(1, 0);
    begin_rig();
}

static int push(uint64_t page, const void *bytes)
{
    struct ibx_error err = {0};
    const int rc = ibx_fault_push(rig.engine, PUSHER, page, bytes, &err);
    assert_true((rc < 0) == (err.code != 0));
    return rc;
}

static const uint8_t *right(uint64_t page)
{
    return rig.data.bytes + page * PAGE;
}

static void test_given_pages(void **state)
{
    (void)state;
    begin();
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    assert_true(ibx_fault_missing(rig.engine, 5));
    assert_int_equal(push(5, right(5)), 1);
    assert_false(ibx_fault_missing(rig.engine, 5));
    assert_true(page_is_right(5));
    assert_int_equal(push(5, right(6)), 0); /* already present: nothing is compared */
    assert_int_equal(checked, 1);
    assert_int_equal(push(PAGES, right(0)), 0);
    assert_int_equal(push(~0ull, right(0)), 0);
    const struct ibx_fault_stats s = stats_now();
    assert_int_equal(s.by_cause[IBX_FAULT_BY_PUSH], 1);
    assert_int_equal(s.bytes, 0);
    assert_int_equal(s.faults, 0);
}

static void begin_in_place(void)
{
    const int file = memfd_create("ibx-test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(file, PAGES * PAGE), 0);
    rig_map(1, file, PAGES * PAGE, PAGE, true);
    rig_register(UFFD_FEATURE_MINOR_SHMEM);
    begin_rig();
}

/* Pushed in place, pages are where a READ would have put them, and nothing is fetched again. */
static void test_in_place(void **state)
{
    (void)state;
    begin_in_place();
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    assert_int_equal(push(5, right(6)), -EBADMSG);
    for (unsigned i = 0; i < PAGES; i += 2)
        assert_int_equal(push(i, right(i)), 1);
    assert_int_equal(push(0, right(0)), 0);
    for (unsigned i = 0; i < PAGES; i++)
        assert_true(page_is_right(i) && rig.data.fetched[i] == i % 2);
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
}

/* Before the engine serves, a thread that waits for a pushed page continues; all others wait. */
static void goes_on_before_it_serves(void)
{
    struct look look, other;
    look_start(&look, 9, 1, 1);
    look_start(&other, 11, 1, 1);
    assert_true(REACHES(waiting, 2));
    assert_int_equal(push(9, right(6)), -EBADMSG);
    assert_int_equal(push(9, right(9)), 1);
    look_sees_right(&look);
    assert_int_equal(stats_now().waiting, 1);
    assert_int_equal(push(9, right(9)), 0);
    assert_int_equal(ibx_fault_state(rig.engine), IBX_FAULT_HELD);
    assert_int_equal(ibx_fault_mark_present(rig.engine, 9, 1), 0); /* the page is counted once */
    assert_int_equal(stats_now().present, 1);
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    look_sees_right(&other);
    assert_int_equal(rig.data.fetched[9], 0);
    ibx_fault_set_background(rig.engine, true);
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < PAGES; i++)
        assert_true(page_is_right(i));
}

static void test_pages_given_before_serving(void **state)
{
    (void)state;
    begin();
    goes_on_before_it_serves();
}

static void test_pages_given_in_place_before_serving(void **state)
{
    (void)state;
    begin_in_place();
    goes_on_before_it_serves();
}

/* A page that was marked as present comes after all; it does not matter from whom. */
static void test_missing_after_all(void **state)
{
    struct look look;
    (void)state;
    begin();
    assert_int_equal(ibx_fault_mark_present(rig.engine, 0, PAGES), 0);
    look_start(&look, 6, 2, 1);
    assert_true(REACHES(waiting, 1));
    assert_int_equal(push(6, right(6)), 0);
    assert_int_equal(ibx_fault_mark_missing(rig.engine, 5, 3), 0);
    assert_int_equal(ibx_fault_mark_missing(rig.engine, PAGES - 1, 2), -ERANGE);
    assert_int_equal(ibx_fault_mark_missing(rig.engine, UINT64_MAX, 1), -ERANGE);
    assert_int_equal(stats_now().present, PAGES - 3);
    assert_int_equal(push(6, right(6)), 1);
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    look_sees_right(&look);
    touch(5);
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    assert_int_equal(ibx_fault_mark_missing(rig.engine, 6, 1), -EBUSY);
    const struct ibx_fault_stats s = stats_now();
    assert_int_equal(s.by_cause[IBX_FAULT_BY_REBUILD], PAGES - 3);
    assert_int_equal(s.by_cause[IBX_FAULT_BY_PUSH], 1);
    assert_int_equal(s.by_cause[IBX_FAULT_BY_FAULT], 2);
    assert_int_equal(s.present, PAGES);
}

/* Wrong bytes change nothing, and no thread waits for them. */
static void test_wrong_bytes(void **state)
{
    (void)state;
    begin();
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    assert_int_equal(push(5, right(6)), -EBADMSG);
    assert_true(ibx_fault_missing(rig.engine, 5));
    touch(5);
    assert_true(page_is_right(5));
    assert_int_equal(rig.data.fetched[5], 1);
    assert_int_equal(ibx_fault_state(rig.engine), IBX_FAULT_SERVING);
}

/* A page that cannot be placed, since somebody else has made it, is missing as before. */
static void test_not_placed(void **state)
{
    struct ibx_error err = {0};
    const int file = memfd_create("ibx-test", MFD_CLOEXEC);
    (void)state;
    assert_int_equal(ftruncate(file, PAGES * PAGE), 0);
    rig_map(1, file, PAGES * PAGE, PAGE, false);
    rig_register(0);
    rig.config.exclusive = true;
    begin_rig();
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    assert_int_equal(pwrite(file, "x", 1, 5 * PAGE), 1);
    assert_int_equal(push(5, right(5)), 0);
    assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
    assert_int_equal(ibx_fault_reason(rig.engine, &err), -EEXIST);
    assert_true(ibx_fault_missing(rig.engine, 5));
    assert_int_equal(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5 * PAGE, PAGE),
                     0);
    assert_int_equal(ibx_fault_resume(rig.engine, rig.as, &err), 0);
    assert_int_equal(push(5, right(5)), 1);
    assert_true(page_is_right(5));
}

/* A page that a worker is fetching belongs to the worker; a page that was pushed is not fetched. */
static void test_beside_faults(void **state)
{
    struct look look;
    (void)state;
    begin();
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    rig.readers[0]->hold = true;
    look_start(&look, 9, 1, 1);
    assert_true(reader_asked(rig.readers[0], 1));
    assert_false(ibx_fault_missing(rig.engine, 9));
    assert_int_equal(push(9, right(9)), 0);
    for (unsigned i = 0; i < PAGES; i++)
        assert_int_equal(push(i, right(i)), i != 9);
    rig.readers[0]->hold = false;
    look_sees_right(&look);
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < PAGES; i++)
        assert_true(page_is_right(i) && rig.data.fetched[i] == (i == 9));
}

/* The last page may be a pushed one. A stopped engine accepts none. */
static void test_ends(void **state)
{
    (void)state;
    begin();
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    for (unsigned i = 1; i < PAGES; i++)
        assert_int_equal(push(i, right(i)), 1);
    ibx_fault_stop(rig.engine, -ECANCELED, "for the test");
    assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
    assert_int_equal(push(0, right(0)), 0);
    struct ibx_error err;
    assert_int_equal(ibx_fault_resume(rig.engine, rig.as, &err), 0);
    assert_int_equal(push(0, right(0)), 1);
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_PUSH], PAGES);
}

/* Threads touch the pages that are pushed at the same time. All read the right bytes. */
static void test_many_threads(void **state)
{
    struct look looks[3];
    uint32_t seed = 5;
    (void)state;
    begin();
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    for (unsigned i = 0; i < 3; i++) {
        const uint32_t first = next_random(&seed), step = next_random(&seed) | 1;
        look_start(&looks[i], first, PAGES, step);
    }
    for (unsigned i = 0; i < PAGES; i++)
        assert_true(push(i, right(i)) >= 0);
    for (unsigned i = 0; i < 3; i++)
        look_sees_right(&looks[i]);
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_given_pages, rig_end),
        cmocka_unit_test_teardown(test_in_place, rig_end),
        cmocka_unit_test_teardown(test_pages_given_before_serving, rig_end),
        cmocka_unit_test_teardown(test_pages_given_in_place_before_serving, rig_end),
        cmocka_unit_test_teardown(test_missing_after_all, rig_end),
        cmocka_unit_test_teardown(test_wrong_bytes, rig_end),
        cmocka_unit_test_teardown(test_not_placed, rig_end),
        cmocka_unit_test_teardown(test_beside_faults, rig_end),
        cmocka_unit_test_teardown(test_ends, rig_end),
        cmocka_unit_test_teardown(test_many_threads, rig_end),
    };
    const int skipped = rig_skipped(0);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
