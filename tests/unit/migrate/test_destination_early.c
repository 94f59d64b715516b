/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Pages that arrive with the page map, or before a returning VM: which are allowed, and that
 * nobody requests them again. */
#include "migrate/destination/destination.h"
#include "tests/fixtures/fault_memory.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct destination destination;
static struct ibx_error error;

/* A VM of one block of PAGES pages; `data` pages from page 32 on hold data. */
static void begin(uint64_t page_size, uint64_t data)
{
    const struct ibx_migrate_block block = {"ram", PAGES * page_size, page_size, 0};
    memset(&destination, 0, sizeof(destination));
    assert_int_equal(ibx_page_map_init(&destination.ram.map, &block, 1, &error), 0);
    ibx_page_map_set(&destination.ram.map, 32, data);
    destination.link.state.now = LINK_MAPPED;
}

static void end(void)
{
    ibx_destination_early_fini(&destination.early);
    ibx_page_map_fini(&destination.ram.map);
    ibx_page_map_fini(&destination.ram.had);
}

static int take(uint64_t first, size_t length)
{
    static uint8_t all[PAGES * PAGE];
    const struct ibx_migrate_pages pages = {
        first, {rig.data.bytes ? rig.data.bytes + first * PAGE : all, length}};
    return ibx_destination_early_take(&destination, &pages, &error);
}

static void test_early_pages_are_not_requested(NO_STATE)
{
    begin(PAGE, 20);
    rig.config.no_background = true;
    rig.config.fault_around = PAGE;
    rig_serve();
    destination.ram.engine = rig.engine;
    assert_int_equal(take(40, 3 * PAGE), 0);
    assert_int_equal(take(47, PAGE), 0);
    assert_int_equal(ibx_destination_early_place(&destination, &error), 0);
    for (uint64_t page = 40; page < 43; page++)
        assert_true(page_is_right(page));
    assert_true(page_is_right(47));
    assert_int_equal(stats_now().faults, 0);
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_PUSH], 4);
    assert_int_equal(destination.ram.early_bytes, 4 * PAGE);
    assert_true(page_is_right(43));          /* fetched: it has not arrived early */
    assert_int_equal(take(42, 2 * PAGE), 0); /* placed: these have arrived */
    assert_int_equal(ibx_destination_early_place(&destination, &error), 0);
    assert_int_equal(destination.ram.early_bytes, 4 * PAGE);
    ibx_fault_set_background(rig.engine, true);
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    for (uint64_t page = 0; page < PAGES; page++)
        assert_true(page_is_right(page));
    end();
}

/* Memory that the VM left here. `covered`: QEMU sees none of it before it is served. */
static void begin_return(bool covered)
{
    const int file = memfd_create("ibx-test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(file, PAGES * PAGE), 0);
    rig_map(1, file, PAGES * PAGE, PAGE, covered);
    rig_register(covered ? UFFD_FEATURE_MINOR_SHMEM : 0);
    begin(PAGE, 20);
    rig.config.no_background = true;
    rig.config.fault_around = PAGE;
    rig_start();
    destination.ram.engine = rig.engine;
    destination.ram.kept = true;
    destination.ram.minor = covered;
    destination.link.state.now = LINK_OPEN;
}

static void test_before_the_map(NO_STATE)
{
    begin_return(true);
    assert_int_equal(ibx_page_map_init(&destination.ram.had,
                                       &(struct ibx_migrate_block){"ram", PAGES * PAGE, PAGE, 0}, 1,
                                       &error),
                     0);
    ibx_page_map_set(&destination.ram.had, 41, 5); /* pages that are here may have been written */
    assert_int_equal(ibx_destination_ram_mark_had(&destination.ram, &error), 0);
    assert_int_equal(take(40, 3 * PAGE), 0);
    assert_int_equal(destination.ram.had.data_pages, 3);
    for (uint64_t page = 40; page < 47; page++)
        assert_int_equal(ibx_page_map_data(&destination.ram.had, page), page >= 43 && page < 46);
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_REBUILD], 3);
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_PUSH], 3);
    for (uint64_t page = 40; page < 43; page++)
        assert_true(page_is_right(page));
    assert_int_equal(destination.ram.early_bytes, 3 * PAGE);
    assert_int_equal(ibx_destination_early_check(&destination, &error), 0);
    assert_int_equal(take(31, PAGE), 0); /* this page may hold data */
    assert_int_equal(ibx_destination_early_check(&destination, &error), -EPROTO);
    assert_non_null(strstr(error.message, "page 31"));
    end();
}

/* If QEMU can see the memory, such a page is dropped at the latest when the map has arrived. */
static void test_not_before_it_serves(NO_STATE)
{
    begin_return(false);
    assert_int_equal(take(40, 3 * PAGE), 0);
    assert_int_equal(stats_now().present, 0);
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    assert_int_equal(ibx_destination_early_place(&destination, &error), 0);
    for (uint64_t page = 40; page < 43; page++)
        assert_true(page_is_right(page));
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_PUSH], 3);
    end();
}

static void refused(uint64_t first, size_t length, const char *words)
{
    assert_int_equal(take(first, length), -EPROTO);
    if (!strstr(error.message, words))
        fail_msg("\"%s\" does not say \"%s\"", error.message, words);
}

static void test_pages_that_may_not_come_early(NO_STATE)
{
    begin(PAGE, 40);
    refused(40, PAGE + 1, "4097 bytes of pages");
    refused(31, PAGE, "page 31");
    refused(70, 3 * PAGE, "page 72");
    refused(PAGES, PAGE, "page 1024");
    refused(UINT64_MAX, PAGE, "page 18446744073709551615");
    assert_int_equal(take(32, 30 * PAGE), 0);
    refused(62, 3 * PAGE, "at most 2 more");
    assert_int_equal(take(62, 2 * PAGE), 0);
    refused(64, PAGE, "at most 0 more");
    end();
    begin(2 << 20, 40);
    refused(40, PAGE, "page 40");
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_early_pages_are_not_requested, rig_make_pair, rig_end),
        cmocka_unit_test_teardown(test_before_the_map, rig_end),
        cmocka_unit_test_teardown(test_not_before_it_serves, rig_end),
        cmocka_unit_test(test_pages_that_may_not_come_early),
    };
    int skipped = rig_skipped(0);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
