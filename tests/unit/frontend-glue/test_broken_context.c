/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the log of a back end says about sticky CUDA errors. */
#include "tests/fixtures/copies_scene.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ADVICE "start the back end again"
#define LATER  "error 719 of an earlier client has broken"

static FILE *log_file; /* receives standard error */

static int log_begin(void **state)
{
    (void)state;
    log_file = tmpfile();
    return log_file && dup2(fileno(log_file), STDERR_FILENO) >= 0 ? 0 : -1;
}

/* How often the log contains this. */
static unsigned count_in_log(const char *what)
{
    static char text[1 << 16];
    unsigned count = 0;
    const ssize_t n = pread(fileno(log_file), text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    for (const char *at = text; (at = strstr(at, what)); at++)
        count++;
    return count;
}

static void call(const char *name, int32_t code)
{
    struct frame nothing = {0};
    handler_says = code;
    expect_code(name, &nothing, code);
    handler_says = HANDLED;
}

/* Starts the next client of the same back end. */
static void next_client(void **state)
{
    assert_int_equal(tear_down(state), 0);
    assert_int_equal(set_up(state), 0);
}

static void test_sticky_errors_are_logged(void **state)
{
    call("cudaOther", 1); /* an invalid argument */
    call("cudaOther", 700 + 4);
    next_client(state);
    assert_int_equal(count_in_log(ADVICE) + count_in_log(LATER), 0);
    call("cudaDeviceSynchronize", 719);
    assert_int_equal(count_in_log("CUDA error 719 of 127.0.0.1:"), 1);
    assert_int_equal(count_in_log(ADVICE), 1);
    call("cudaMalloc", 719);
    assert_int_equal(count_in_log(ADVICE), 1);
    next_client(state);
    next_client(state);
    assert_int_equal(count_in_log(LATER), 2);
    call("cudaDeviceReset", 0); /* repairs nothing */
    next_client(state);
    assert_int_equal(count_in_log(LATER), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sticky_errors_are_logged, set_up, tear_down),
    };
    session_pair_use("tcp", NULL, NULL, NULL);
    app = cuda_application();
    return cmocka_run_group_tests(tests, log_begin, NULL);
}
