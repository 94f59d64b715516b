/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The CUDA driver is loaded, or a message says what is missing. A process looks for it once. */
#include "gpudirect/cuda.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* Whether the message for IBX_LIBCUDA=`library` contains both parts. Runs in a process of its
 * own. */
static bool refuses(const char *library, const char *part, const char *other)
{
    pid_t pid = fork();
    if (!pid) {
        struct ibx_error err = {0}, again = {0};
        setenv("IBX_LIBCUDA", library, 1);
        bool none = !ibx_cuda_load(&err) && !ibx_cuda_load(&again);
        bool said = strstr(err.message, part) && strstr(err.message, other);
        _exit(none && err.code < 0 && said && !strcmp(err.message, again.message) ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) && !WEXITSTATUS(status);
}

static void test_missing(void **state)
{
    (void)state;
    assert_true(refuses("/nowhere/libcuda.so.1", "/nowhere/libcuda.so.1", "IBX_LIBCUDA"));
    assert_true(refuses("libc.so.6", "libc.so.6", "cuCtxGetCurrent"));
}

/* The driver library for programs that use a remote GPU: in the back end, its calls would return
 * to the back end. */
static void test_library_for_remote_gpus(void **state)
{
    (void)state;
    const char *ours = getenv("IBX_TEST_DRIVER");
    assert_non_null(ours);
    assert_true(refuses(ours, ours, "LD_LIBRARY_PATH"));
}

static void test_driver_is_loaded(void **state)
{
    (void)state;
    void *context = &context;
    const struct ibx_cuda *cuda = ibx_cuda_load(NULL);
    assert_non_null(cuda);
    assert_ptr_equal(ibx_cuda_load(NULL), cuda);
    assert_int_equal(cuda->ctx_get_current(&context), 0);
    assert_null(context); /* no context was made */
    assert_string_equal(ibx_cuda_error_name(cuda, 1), "CUDA_ERROR_INVALID_VALUE");
}

static int mode_of(const struct ibx_cuda *cuda, int wanted)
{
    assert_int_equal(cuda->thread_exchange_stream_capture_mode(&wanted), 0);
    return wanted;
}

/* Turns the capture mode aside and back, also twice. */
static void test_capture_mode_is_turned_aside(void **state)
{
    (void)state;
    const int inside = IBX_CUDA_CAPTURE_RELAXED;
    const struct ibx_cuda *cuda = ibx_cuda_load(NULL);
    for (int mode = 0; mode < 3; mode++) {
        mode_of(cuda, mode);
        int before = ibx_cuda_capture_relax(cuda);
        assert_int_equal(mode_of(cuda, inside), inside);
        int again = ibx_cuda_capture_relax(cuda);
        ibx_cuda_capture_restore(cuda, again);
        assert_int_equal(mode_of(cuda, inside), inside);
        ibx_cuda_capture_restore(cuda, before);
        assert_int_equal(mode_of(cuda, mode), mode);
    }
}

/* Without a driver, or with one that has no capture modes, no call is made. */
static void test_no_capture_mode_to_turn_aside(void **state)
{
    (void)state;
    struct ibx_cuda old = *ibx_cuda_load(NULL);
    old.thread_exchange_stream_capture_mode = NULL;
    const struct ibx_cuda *const none[] = {NULL, &old};
    for (unsigned i = 0; i < 2; i++) {
        ibx_cuda_capture_restore(none[i], ibx_cuda_capture_relax(none[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_library_for_remote_gpus),
        cmocka_unit_test(test_driver_is_loaded),
        cmocka_unit_test(test_capture_mode_is_turned_aside),
        cmocka_unit_test(test_no_capture_mode_to_turn_aside),
    };
    return cmocka_run_group_tests_name("cuda", tests, NULL, NULL);
}
