/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program asks for a number of algorithms of cuBLASLt, and the back end claims to return more.
 * The program must not read beyond its own memory. */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define INTERNAL_ERROR 14 /* cublasStatus_t */
#define NOT_SUPPORTED  15

static int answers, status; /* of the back end */
static uint64_t bytes_written;

/* Replaces math_calls.c. */
int ibx_frontend_math(unsigned number, const union ibx_math_value *values)
{
    if (number == IBX_MATH_cublasLtGetProperty)
        *(int *)values[1].p = 13;
    else if (number == IBX_MATH_cublasLtMatmulAlgoCapGetAttribute ||
             number == IBX_MATH_cublasLtMatmulAlgoConfigGetAttribute) {
        if (values[4].p)
            memcpy(values[4].p, &bytes_written, sizeof(bytes_written));
    } else if (values[9].p)
        *(int *)values[9].p = answers;
    return number == IBX_MATH_cublasLtGetProperty ? 0 : status;
}

static uint8_t results[4 * 96];
static int ids[4];

static int search(int wanted, int *count)
{
    return cublasLtMatmulAlgoGetHeuristic(results, results, results, results, results, results,
                                          NULL, wanted, results, count);
}

static int list(int wanted, int *count)
{
    return cublasLtMatmulAlgoGetIds(results, 68, 0, 0, 0, 0, 0, wanted, ids, count);
}

static void no_more_results_than_requested(void **state)
{
    static const int lies[] = {5, 128, 0x7fffffff, -1, -0x7fffffff - 1};
    int count;
    (void)state;
    for (int i = 0; i <= 4; i++) {
        answers = i;
        assert_true(search(4, &count) == 0 && count == i);
        assert_true(list(4, &count) == 0 && count == i);
    }
    for (unsigned i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        answers = lies[i];
        count = 9;
        assert_true(search(4, &count) == INTERNAL_ERROR && count == 0);
        count = 9;
        assert_true(list(4, &count) == INTERNAL_ERROR && count == 0);
    }
    assert_int_equal(list(4, NULL), 0);
    status = NOT_SUPPORTED;
    assert_true(search(4, &count) == NOT_SUPPORTED && list(4, &count) == NOT_SUPPORTED);
}

/* If more results are requested than fit into one reply, the rest is missing. */
static void no_more_than_fit_into_a_reply(void **state)
{
    int count = 9;
    (void)state;
    status = 0;
    answers = 129;
    assert_true(search(1000, &count) == INTERNAL_ERROR && count == 0);
    answers = 128;
    assert_true(search(1000, &count) == 0 && count == 128);
}

/* How many bytes of an attribute were written. A caller with an empty buffer asks how many there
 * are. */
static void no_more_bytes_than_the_buffer_has(void **state)
{
    typedef int get(void *algorithm, int which, void *value, uint64_t n, void *count);
    static get *const calls[] = {cublasLtMatmulAlgoCapGetAttribute,
                                 cublasLtMatmulAlgoConfigGetAttribute};
    static const uint64_t lies[] = {17, 4096, UINT64_MAX};
    uint8_t value[16];
    size_t count;
    (void)state;
    status = 0;
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < sizeof(lies) / sizeof(lies[0]); k++) {
            bytes_written = lies[k];
            count = 9;
            assert_true(calls[i](results, 0, value, 16, &count) == INTERNAL_ERROR && count == 0);
            assert_true(calls[i](results, 0, NULL, 0, &count) == 0 && count == lies[k]);
        }
        bytes_written = 16;
        assert_true(calls[i](results, 0, value, 16, &count) == 0 && count == 16);
        assert_int_equal(calls[i](results, 0, value, 16, NULL), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_more_results_than_requested),
                                       cmocka_unit_test(no_more_than_fit_into_a_reply),
                                       cmocka_unit_test(no_more_bytes_than_the_buffer_has)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* --------------------------------------------------------------------------- replaced functions */

int cublasLtGetProperty(int which, void *value)
{
    (void)which, (void)value;
    return 0;
}

int cublasLtMatmulPreferenceGetAttribute(const void *preference, int which, void *value, size_t n,
                                         size_t *written)
{
    (void)preference, (void)which, (void)n, (void)written;
    memset(value, 0, sizeof(uint32_t));
    return 0;
}

const char *cublasGetStatusName(int of)
{
    (void)of;
    return "";
}

const char *cublasGetStatusString(int of)
{
    (void)of;
    return "";
}

void *ibx_frontend_next(_Atomic(void *) *known, const char *symbol)
{
    (void)known, (void)symbol;
    return NULL;
}

bool ibx_frontend_first_begins(void)
{
    return true;
}

void ibx_frontend_first_is_over(void) {}
