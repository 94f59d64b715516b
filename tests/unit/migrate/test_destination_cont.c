/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A VM that has been loaded is continued until it runs, against a scripted peer. */
#include "migrate/destination/qemu.h"
#include "tests/fixtures/qmp_peer.h"

#define REFUSED "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no lock\"}, \"id\": 2}\r\n"
#define RUNS                                                                                       \
    "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 2}, \"event\": \"RESUME\"}\r\n" READY(2)

static unsigned told; /* sentences; only that they came matters */

static void notified(void *context, const char *sentence)
{
    (void)context;
    told += strstr(sentence, "is here and stopped") != NULL;
}

static struct destination_qemu paused;

/* A VM that is to run has been loaded, and is paused. */
static void run_it(const struct step *steps)
{
    static const struct ibx_migrate_observer observer = {.notify = notified};
    static struct ibx_record record;
    attached(steps);
    told = 0;
    ibx_destination_qemu_init(&paused, "/nonexistent", &record, &observer);
    ibx_state_move(&paused.state, QEMU_RUNNING);
    strcpy(paused.status, "paused");
    paused.qmp = qmp;
    ibx_destination_qemu_run(&paused, true);
}

static void test_refused(NO_STATE)
{
    run_it(SCRIPT({"cont", REFUSED, 0}));
    assert_int_equal(told, 1);
    assert_true(ibx_destination_qemu_stands(&paused));
    done();
}

/* It may have got there or not. */
static void test_a_monitor_that_is_lost(NO_STATE)
{
    run_it(SCRIPT({"cont", NULL, 0}));
    assert_int_equal(told, 1);
    assert_true(ibx_destination_qemu_stands(&paused));
    done();
}

/* QEMU has continued it, and is slow to say so: nothing is tried again. */
static void test_a_late_status(NO_STATE)
{
    deaf = true;
    run_it(SCRIPT({"cont", READY(2), 0}, {"query-status", NULL, 0}));
    deaf = false;
    assert_int_equal(told, 0);
    assert_false(ibx_destination_qemu_stands(&paused));
    assert_true(paused.stale); /* it is asked again */
    done();
}

static void test_continued(NO_STATE)
{
    run_it(SCRIPT({"cont", RUNS, 0},
                  {"query-status", "{\"return\": {\"status\": \"running\"}, \"id\": 3}\r\n", 0}));
    assert_int_equal(told, 0);
    assert_string_equal(paused.status, "running");
    assert_false(ibx_destination_qemu_stands(&paused));
    done();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_a_monitor_that_is_lost),
        cmocka_unit_test(test_a_late_status),
        cmocka_unit_test(test_continued),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
