/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What QEMU is asked before it is told to migrate, against a scripted peer. */
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

static void test_nothing_is_left_of_another(NO_STATE)
{
    assert_int_equal(begin(SCRIPT({"query-yank", NOTHING(2), 0}, {"getfd", READY(3), 0},
                                  {"\"migrate\"", READY(4), 0})),
                     0);
    done();
}

/* A QEMU that is told to migrate meanwhile ends by SIGSEGV (7.2). */
static void test_the_thread_of_the_last_one_ends(NO_STATE)
{
    assert_int_equal(
        begin(SCRIPT({"query-yank", THREAD(2), 0}, {"query-migrate", STATUS("completed", 3), 0},
                     {"query-yank", THREAD(4), 0}, {"query-migrate", STATUS("completed", 5), 0},
                     {"query-yank", NOTHING(6), 0}, {"getfd", READY(7), 0},
                     {"\"migrate\"", READY(8), 0})),
        0);
    done();
}

/* It may come to its end before QEMU is told. */
static void test_another_is_under_way(NO_STATE)
{
    const int rc =
        begin(SCRIPT({"query-yank", THREAD(2), 0}, {"query-migrate", STATUS("device", 3), 0}));
    says(rc, -EREMOTEIO, "is migrating this VM already (device)");
    done();
}

static void test_a_qemu_that_does_not_tell(NO_STATE)
{
    assert_int_equal(begin(SCRIPT({"query-yank", ERROR("CommandNotFound", 2), 0},
                                  {"getfd", READY(3), 0}, {"\"migrate\"", READY(4), 0})),
                     0);
    done();
}

/* QEMU would keep what it was given for the next client of its monitor. */
static void test_a_qemu_that_refuses(NO_STATE)
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
        cmocka_unit_test(test_nothing_is_left_of_another),
        cmocka_unit_test(test_the_thread_of_the_last_one_ends),
        cmocka_unit_test(test_another_is_under_way),
        cmocka_unit_test(test_a_qemu_that_does_not_tell),
        cmocka_unit_test(test_a_qemu_that_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
