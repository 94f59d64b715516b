/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the log of a back end says of CUDA errors that stay. */
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

static FILE *log_file; /* standard error goes there */

static int log_begin(void **state)
{
    (void)state;
    log_file = tmpfile();
    return log_file && dup2(fileno(log_file), STDERR_FILENO) >= 0 ? 0 : -1;
}

/* How often the log has said that. */
static unsigned said(const char *what)
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

/* The next client of the same back end. */
static void next_client(void **state)
{
    assert_int_equal(tear_down(state), 0);
    assert_int_equal(set_up(state), 0);
}

static void test_told(void **state)
{
    call("cudaOther", 1); /* a wrong argument */
    call("cudaOther", 700 + 4);
    next_client(state);
    assert_int_equal(said(ADVICE) + said(LATER), 0);
    call("cudaDeviceSynchronize", 719);
    assert_int_equal(said("CUDA error 719 of 127.0.0.1:"), 1);
    assert_int_equal(said(ADVICE), 1);
    call("cudaMalloc", 719);
    assert_int_equal(said(ADVICE), 1);
    next_client(state);
    next_client(state);
    assert_int_equal(said(LATER), 2);
    call("cudaDeviceReset", 0); /* which mends nothing */
    next_client(state);
    assert_int_equal(said(LATER), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_told, set_up, tear_down),
    };
    session_pair_use("tcp", NULL, NULL, NULL);
    app = cuda_application();
    return cmocka_run_group_tests(tests, log_begin, NULL);
}
