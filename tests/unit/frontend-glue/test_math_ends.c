/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a process knows about a handle ends with the handle, but not what another thread has
 * noted since: the back end reuses the number as soon as the first handle is destroyed. */
#include "frontend-glue/preload/math_libraries/math_contents.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SPARSE  0x7000u
#define VECTOR  0x8000u
#define SINGLE  0 /* cudaDataType */
#define DOUBLE  1
#define REFUSED 7 /* cusparseStatus_t */

/* The back end's answer, and whether it gives the number to another thread before the answer is
 * read. */
static int answer;
static bool comes_again;

bool ibx_frontend_request_try(const struct extension_request *e, void *out, size_t n, int *code)
{
    (void)e, (void)out, (void)n;
    *code = answer;
    if (comes_again) {
        ibx_math_vector_made(VECTOR, DOUBLE);
        ibx_math_handle_set(IBX_MATH_SPARSE, SPARSE, IBX_MATH_ON_DEVICE);
    }
    return true;
}

static int end_vector(void)
{
    const union ibx_math_value values[] = {{.p = (void *)(uintptr_t)VECTOR}};
    return ibx_frontend_math(IBX_MATH_cusparseDestroyDnVec, values);
}

static int end_handle(void)
{
    const union ibx_math_value values[] = {{.p = (void *)(uintptr_t)SPARSE}};
    return ibx_frontend_math(IBX_MATH_cusparseDestroy, values);
}

static void begin(bool again, int status)
{
    ibx_math_vector_made(VECTOR, SINGLE);
    assert_true(ibx_math_handle_set(IBX_MATH_SPARSE, SPARSE, IBX_MATH_ON_DEVICE));
    ibx_math_handle_selects(IBX_MATH_SPARSE, SPARSE, CUDA_STREAM_PER_THREAD);
    comes_again = again;
    answer = status;
}

static void nothing_is_known_after_the_end(void **state)
{
    (void)state;
    begin(false, 0);
    assert_int_equal(end_vector(), 0);
    assert_int_equal(end_handle(), 0);
    assert_int_equal(ibx_math_vector_type(VECTOR), -1);
    assert_int_equal(ibx_math_handle_is(IBX_MATH_SPARSE, SPARSE), IBX_MATH_USUAL);
    assert_false(ibx_math_handle_is_in_own(IBX_MATH_SPARSE, SPARSE));
}

static void another_handle_has_its_number(void **state)
{
    (void)state;
    begin(true, 0);
    assert_int_equal(end_vector(), 0);
    assert_int_equal(ibx_math_vector_type(VECTOR), DOUBLE);
    assert_int_equal(end_handle(), 0);
    assert_int_equal(ibx_math_handle_is(IBX_MATH_SPARSE, SPARSE), IBX_MATH_ON_DEVICE);
}

static void handle_that_was_not_destroyed(void **state)
{
    (void)state;
    begin(false, REFUSED);
    assert_int_equal(end_vector(), REFUSED);
    assert_int_equal(end_handle(), REFUSED);
    assert_int_equal(ibx_math_vector_type(VECTOR), SINGLE);
    assert_int_equal(ibx_math_handle_is(IBX_MATH_SPARSE, SPARSE), IBX_MATH_ON_DEVICE);
    assert_true(ibx_math_handle_is_in_own(IBX_MATH_SPARSE, SPARSE));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_known_after_the_end),
                                       cmocka_unit_test(another_handle_has_its_number),
                                       cmocka_unit_test(handle_that_was_not_destroyed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Replaced functions that math_calls.c calls. */

enum ibx_math_named ibx_math_contents_name(unsigned number, const union ibx_math_value *values,
                                           union ibx_math_value *own, int *status)
{
    (void)number, (void)values, (void)own, (void)status;
    fail_msg("no call of cuDNN is made here");
    return IBX_MATH_CALLED;
}
