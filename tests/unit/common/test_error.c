/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* struct ibx_error: a message may contain the previous one, is cut at its limit, and has no
 * control characters. */
#include "common/error.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <cmocka.h>

/* A function that adds advice to a message passes the message itself as an argument. */
static void test_message_may_contain_the_previous_one(void **state)
{
    struct ibx_error err = {0};
    (void)state;
    assert_int_equal(ibx_error_set(&err, -EIO, "page %u is gone", 7u), -EIO);
    assert_int_equal(ibx_error_set(&err, -EPERM, "%s: try again", err.message), -EPERM);
    assert_string_equal(err.message, "page 7 is gone: try again");
    assert_int_equal(err.code, -EPERM);
    assert_int_equal(ibx_error_prefix(&err, -EIO, "VM %s", "web"), -EPERM);
    assert_string_equal(err.message, "VM web: page 7 is gone: try again");
}

static void test_long_message_is_cut(void **state)
{
    struct ibx_error err = {0};
    char much[2 * IBX_ERROR_MAX];
    (void)state;
    memset(much, 'x', sizeof(much) - 1);
    much[sizeof(much) - 1] = '\0';
    ibx_error_set(&err, -EIO, "%s", much);
    assert_int_equal(strlen(err.message), IBX_ERROR_MAX - 1);
    ibx_error_prefix(&err, -EIO, "%.700s", much);
    assert_int_equal(strlen(err.message), IBX_ERROR_MAX - 1);
    assert_int_equal(ibx_error_set(NULL, -EIO, "%s", much), -EIO);
}

/* Any system call may fail for lack of descriptors. */
static void test_lack_of_descriptors_comes_with_advice(void **state)
{
    static const char whole[] = "no pipe: Too many open files; raise the limit on open files "
                                "(ulimit -n)";
    struct ibx_error err = {0};
    (void)state;
    ibx_error_set(&err, -EMFILE, "no pipe: %s", strerror(EMFILE));
    assert_string_equal(err.message, whole);
    ibx_error_set(&err, -EMFILE, "%s", err.message);
    assert_string_equal(err.message, whole);
    ibx_error_set(&err, -ENFILE, "no pipe");
    assert_string_equal(err.message, "no pipe");
}

static void test_lack_of_space_comes_with_advice(void **state)
{
    struct ibx_error err = {0};
    struct rlimit before, limited;
    (void)state;
    if (getrlimit(RLIMIT_AS, &before) || before.rlim_cur != RLIM_INFINITY)
        skip();
    limited = (struct rlimit){.rlim_cur = RLIM_INFINITY - 1, .rlim_max = before.rlim_max};
    ibx_error_set(&err, -ENOMEM, "no memory for pages");
    assert_string_equal(err.message, "no memory for pages");
    assert_int_equal(setrlimit(RLIMIT_AS, &limited), 0);
    ibx_error_set(&err, -ENOMEM, "no memory for pages");
    assert_string_equal(err.message,
                        "no memory for pages; raise the limit on address space (ulimit -v)");
    ibx_error_set(&err, -ENOMEM, "%s", err.message);
    ibx_error_set(&err, -ENOMEM, "%s", err.message);
    assert_string_equal(err.message,
                        "no memory for pages; raise the limit on address space (ulimit -v)");
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
}

static void test_lack_of_tasks_comes_with_advice(void **state)
{
    struct ibx_error err = {0};
    (void)state;
    assert_int_equal(ibx_error_set_task(&err, -EAGAIN, "no thread for page connection %u", 3u),
                     -EAGAIN);
    assert_string_equal(
        err.message, "no thread for page connection 3: Resource temporarily unavailable; raise "
                     "the limits on processes (ulimit -u), on tasks (TasksMax, pids.max), and on "
                     "address space (ulimit -v)");
    ibx_error_set_task(&err, -ENOMEM, "no process for ssh");
    assert_string_equal(err.message, "no process for ssh: Cannot allocate memory");
    assert_int_equal(ibx_error_set_task(NULL, -EAGAIN, "no process"), -EAGAIN);
}

/* Messages contain texts of a peer or of QEMU, and are printed to a terminal. */
static void test_message_has_no_control_characters(void **state)
{
    struct ibx_error err = {0};
    (void)state;
    ibx_error_set(&err, -EIO, "VM %s",
                  "a\n\x1b[2J\xc2\x9b"
                  "b\x7f \xc3\xa4\xc2\xb0\xc2");
    assert_string_equal(err.message, "VM a??[2J??b? \xc3\xa4\xc2\xb0\xc2");
    ibx_error_prefix(&err, -EIO, "host\r%s", "\x1b");
    assert_string_equal(err.message, "host??: VM a??[2J??b? \xc3\xa4\xc2\xb0\xc2");
    /* alone, behind the beginning of another character, and in forms that are too long */
    ibx_error_set(&err, -EIO, "%s",
                  "\x9bm \xc3\xa4\x9bm \xe2\x9bm \xc0\x9bm \xe0\x80\x9bm \xf0\x80\x80\x9bm");
    assert_string_equal(err.message, "?m \xc3\xa4?m \xe2?m \xc0?m \xe0??m \xf0???m");
    ibx_error_set(&err, -EIO, "%s",
                  "\xe2\x82\xac \xe2\x9b\xb5 \xf0\x9f\x9b\xb0 \xe4\xf6"); /* but not in others */
    assert_string_equal(err.message, "\xe2\x82\xac \xe2\x9b\xb5 \xf0\x9f\x9b\xb0 \xe4\xf6");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message_may_contain_the_previous_one),
        cmocka_unit_test(test_long_message_is_cut),
        cmocka_unit_test(test_lack_of_descriptors_comes_with_advice),
        cmocka_unit_test(test_lack_of_space_comes_with_advice),
        cmocka_unit_test(test_lack_of_tasks_comes_with_advice),
        cmocka_unit_test(test_message_has_no_control_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
