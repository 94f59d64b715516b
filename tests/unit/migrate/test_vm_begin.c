/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What QEMU is asked before it is told to migrate, with a scripted peer. */
#include "migrate/common/vm.h"
#include "tests/fixtures/qmp_peer.h"

#include <errno.h>

#define NOTHING(id)                                                                                \
    "{\"return\": [{\"type\": \"chardev\", \"id\" : \"a\"}], "                                     \
    "\"id\": " #id "}\r\n"
#define THREAD(id)         "{\"return\": [{\"type\": \"migration\"}], \"id\": " #id "}\r\n"
#define STATUS(status, id) "{\"return\": {\"status\": \"" status "\"}, \"id\": " #id "}\r\n"
#define ERROR(class, id)                                                                           \
    "{\"error\": {\"class\": \"" class "\", \"desc\": \"no\"}, \"id\": " #id "}\r\n"

static int begin(const struct step *steps)
{
    int ours, theirs;
    attached(steps);
    assert_int_equal(ibx_vm_stream(&ours, &theirs, &error), 0);
    const int rc = ibx_vm_migrate(qmp, false, theirs, ibx_deadline_in_ms(GENEROUS), &error);
    close(ours);
    close(theirs);
    return rc;
}

static void test_nothing_is_left_of_another_migration(NO_STATE)
{
    assert_int_equal(begin(SCRIPT({"query-yank", NOTHING(2), 0}, {"getfd", READY(3), 0},
                                  {"\"migrate\"", READY(4), 0})),
                     0);
    done();
}

/* QEMU 7.2 ends with SIGSEGV if it is told to migrate while this thread runs. */
static void test_thread_of_the_last_migration_ends(NO_STATE)
{
    assert_int_equal(
        begin(SCRIPT({"query-yank", THREAD(2), 0}, {"query-migrate", STATUS("completed", 3), 0},
                     {"query-yank", THREAD(4), 0}, {"query-migrate", STATUS("completed", 5), 0},
                     {"query-yank", NOTHING(6), 0}, {"getfd", READY(7), 0},
                     {"\"migrate\"", READY(8), 0})),
        0);
    done();
}

/* The other migration may end before QEMU is told. */
static void test_another_migration_is_running(NO_STATE)
{
    const int rc =
        begin(SCRIPT({"query-yank", THREAD(2), 0}, {"query-migrate", STATUS("device", 3), 0}));
    says(rc, -EREMOTEIO, "is migrating this VM already (device)");
    done();
}

static void test_qemu_that_does_not_report_its_migration(NO_STATE)
{
    assert_int_equal(begin(SCRIPT({"query-yank", ERROR("CommandNotFound", 2), 0},
                                  {"getfd", READY(3), 0}, {"\"migrate\"", READY(4), 0})),
                     0);
    done();
}

/* Otherwise QEMU would keep the descriptor for the next client of its monitor. */
static void test_qemu_that_refuses(NO_STATE)
{
    const int rc =
        begin(SCRIPT({"query-yank", NOTHING(2), 0}, {"getfd", READY(3), 0},
                     {"\"migrate\"", ERROR("GenericError", 4), 0}, {"closefd", READY(5), 0}));
    says(rc, -EREMOTEIO, "refused migrate");
    done();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_left_of_another_migration),
        cmocka_unit_test(test_thread_of_the_last_migration_ends),
        cmocka_unit_test(test_another_migration_is_running),
        cmocka_unit_test(test_qemu_that_does_not_report_its_migration),
        cmocka_unit_test(test_qemu_that_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
