/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Pages that come with the page map: which may, and that nobody asks for them. */
#include "migrate/destination/destination.h"
#include "tests/scenes/fault_memory.h"
#include "tests/scenes/unit.h"

#include <errno.h>
#include <string.h>

static struct destination destination;
static struct ibx_error error;

/* A VM of one block of PAGES pages, of which `data` from page 32 on hold data. */
static void begin(uint64_t page_size, uint64_t data)
{
    const struct ibx_migrate_block block = {"ram", PAGES * page_size, page_size, 0};
    memset(&destination, 0, sizeof(destination));
    assert_int_equal(ibx_page_map_init(&destination.ram.map, &block, 1, &error), 0);
    ibx_page_map_set(&destination.ram.map, 32, data);
}

static void end(void)
{
    ibx_destination_early_fini(&destination.early);
    ibx_page_map_fini(&destination.ram.map);
}

static int take(uint64_t first, size_t length)
{
    static uint8_t all[PAGES * PAGE];
    const struct ibx_migrate_pages pages = {
        first, {rig.data.bytes ? rig.data.bytes + first * PAGE : all, length}};
    return ibx_destination_early_take(&destination, &pages, &error);
}

static void test_they_are_there_before_anybody_asks(NO_STATE)
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
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_GIFT], 4);
    assert_int_equal(destination.ram.early_bytes, 4 * PAGE);
    assert_true(page_is_right(43));          /* it has not come */
    assert_int_equal(take(42, 2 * PAGE), 0); /* ... and these have */
    assert_int_equal(ibx_destination_early_place(&destination, &error), 0);
    assert_int_equal(destination.ram.early_bytes, 4 * PAGE);
    ibx_fault_set_background(rig.engine, true);
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    for (uint64_t page = 0; page < PAGES; page++)
        assert_true(page_is_right(page));
    end();
}

static void refused(uint64_t first, size_t length, const char *words)
{
    assert_int_equal(take(first, length), -EPROTO);
    if (!strstr(error.message, words))
        fail_msg("\"%s\" does not say \"%s\"", error.message, words);
}

static void test_what_may_not_come(NO_STATE)
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
        cmocka_unit_test_setup_teardown(test_they_are_there_before_anybody_asks, rig_make_pair,
                                        rig_end),
        cmocka_unit_test(test_what_may_not_come),
    };
    int skipped = rig_skipped(0);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
