/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A loaded VM is continued until it runs, or is paused, with a scripted peer in place of QEMU. */
#include "migrate/destination/qemu.h"
#include "tests/fixtures/qmp_peer.h"

#define REFUSED "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no lock\"}, \"id\": 2}\r\n"
#define RUNS                                                                                       \
    "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 2}, \"event\": \"RESUME\"}\r\n" READY(2)

static unsigned told; /* number of sentences; their words do not matter */

static void notified(void *context, const char *sentence)
{
    (void)context;
    told += strstr(sentence, "is here and stopped") != NULL;
}

static struct destination_qemu paused;

/* Continues a loaded, paused VM. */
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

/* It is not known whether the command arrived. */
static void test_lost_monitor(NO_STATE)
{
    run_it(SCRIPT({"cont", NULL, 0}));
    assert_int_equal(told, 1);
    assert_true(ibx_destination_qemu_stands(&paused));
    done();
}

/* QEMU has continued the VM and answers late: the command is not repeated. */
static void test_late_status(NO_STATE)
{
    deaf = true;
    run_it(SCRIPT({"cont", READY(2), 0}, {"query-status", NULL, 0}));
    deaf = false;
    assert_int_equal(told, 0);
    assert_false(ibx_destination_qemu_stands(&paused));
    assert_true(paused.stale); /* QEMU is asked for the status again */
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

/* Another client has migrated it on. QEMU says that this is complete before it has the status of
 * that, and says nothing then. */
static void test_asked_until_migrated_on(NO_STATE)
{
    run_it(SCRIPT(
        {"cont", RUNS, 0},
        {"query-status", "{\"return\": {\"status\": \"finish-migrate\"}, \"id\": 3}\r\n", 0}));
    assert_string_equal(paused.status, "finish-migrate");
    assert_true(paused.stale);
    done();
}

/* The VM's memory is wrong, so it is told to stop. */
static void pause_it(const char *was, const struct step *steps)
{
    static struct ibx_record record;
    struct ibx_error err = {0};
    attached(steps);
    ibx_destination_qemu_init(&paused, "/nonexistent", &record, NULL);
    ibx_state_move(&paused.state, QEMU_RUNNING);
    strcpy(paused.status, was);
    paused.qmp = qmp;
    if (ibx_destination_qemu_pause(&paused, &err))
        fail_msg("%s", err.message);
    done();
}

/* QEMU has stopped the VM and no longer answers. The record must not say that the VM runs. */
static void test_paused_without_a_status(NO_STATE)
{
    pause_it("running", SCRIPT({"stop", READY(2), 0}, {"query-status", NULL, 0}));
    assert_string_equal(paused.status, "paused");
}

/* QEMU does not stop a VM that is not running. */
static void test_stopped_without_a_status(NO_STATE)
{
    pause_it("io-error", SCRIPT({"stop", READY(2), 0}, {"query-status", NULL, 0}));
    assert_string_equal(paused.status, "io-error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_lost_monitor),
        cmocka_unit_test(test_late_status),
        cmocka_unit_test(test_continued),
        cmocka_unit_test(test_asked_until_migrated_on),
        cmocka_unit_test(test_paused_without_a_status),
        cmocka_unit_test(test_stopped_without_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
