/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* By what QEMU's last migration is known again: the figures that QEMU reports of it. With a
 * scripted peer. */
#include "migrate/common/return_path.h"
#include "tests/fixtures/qmp_peer.h"

#include <errno.h>

#define STATUS(status, id) "{\"return\": {\"status\": \"" status "\"}, \"id\": " #id "}\r\n"
#define FIGURES(status, total, down, id)                                                           \
    "{\"return\": {\"status\": \"" status "\", \"total-time\": " #total ", \"downtime\": " #down   \
    ", \"setup-time\": 3, \"ram\": {\"normal\": 5}}, \"id\": " #id "}\r\n"

static int last(const struct step *steps, char text[IBX_JOURNAL_FIGURES])
{
    attached(steps);
    return ibx_return_path_last(qmp, text, ibx_deadline_in_ms(GENEROUS), &error);
}

static void test_figures_of_a_migration(NO_STATE)
{
    char text[IBX_JOURNAL_FIGURES];
    assert_int_equal(last(SCRIPT({"query-migrate", FIGURES("completed", 17, 4, 2), 0}), text), 0);
    assert_string_equal(text, "17-4-3-5");
    done();
}

/* QEMU reports a migration as completed a moment before it computes the times of it. */
static void test_figures_that_are_not_there_yet(NO_STATE)
{
    char text[IBX_JOURNAL_FIGURES];
    assert_int_equal(last(SCRIPT({"query-migrate", FIGURES("completed", 0, 0, 2), 0},
                                 {"query-status", STATUS("finish-migrate", 3), 0},
                                 {"query-migrate", FIGURES("completed", 0, 0, 4), 0},
                                 {"query-status", STATUS("finish-migrate", 5), 0},
                                 {"query-migrate", FIGURES("completed", 17, 4, 6), 0}),
                          text),
                     0);
    assert_string_equal(text, "17-4-3-5");
    done();
}

/* A VM may stop for less than a millisecond. */
static void test_a_time_that_stays_0(NO_STATE)
{
    char text[IBX_JOURNAL_FIGURES];
    assert_int_equal(last(SCRIPT({"query-migrate", FIGURES("completed", 17, 0, 2), 0},
                                 {"query-status", STATUS("postmigrate", 3), 0},
                                 {"query-migrate", FIGURES("completed", 17, 0, 4), 0}),
                          text),
                     0);
    assert_string_equal(text, "17-0-3-5");
    done();
}

/* Another program's, which may take long. */
static void test_a_migration_that_runs_is_not_awaited(NO_STATE)
{
    char text[IBX_JOURNAL_FIGURES];
    const int rc = last(SCRIPT({"query-migrate", FIGURES("pre-switchover", 9, 0, 2), 0}), text);
    says(rc, -ENODATA, "is \"pre-switchover\"");
    done();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures_of_a_migration),
        cmocka_unit_test(test_figures_that_are_not_there_yet),
        cmocka_unit_test(test_a_time_that_stays_0),
        cmocka_unit_test(test_a_migration_that_runs_is_not_awaited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
