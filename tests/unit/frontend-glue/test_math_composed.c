/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program uses scalars with sparse vectors, and a back end reports any type for a vector. ibx
 * reads no more than the scalar that the program has. Both scalars are at the end of readable
 * memory. */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#define SINGLE  0 /* cudaDataType */
#define COMPLEX 5 /* two doubles */
#define VECTOR  ((void *)0x7000)
#define HANDLE  ((void *)0x8000)

static uint8_t sent[2][16];
static unsigned requests;
static enum ibx_math_handle handle_is;

/* Replaces math_calls.c, with that back end. */
int ibx_frontend_math(unsigned number, const union ibx_math_value *values)
{
    if (number == IBX_MATH_cusparseDnVecGet || number == IBX_MATH_cusparseConstDnVecGet) {
        *(int *)values[3].p = COMPLEX;
        return 0;
    }
    requests++;
    if (handle_is != IBX_MATH_USUAL)
        return 0;
    memcpy(sent[0], values[1].p, 16);
    memcpy(sent[1], values[number == IBX_MATH_cusparseAxpby ? 3 : 2].p, 16);
    return 0;
}

enum ibx_math_handle ibx_math_handle_is(enum ibx_math_type type, uint64_t handle)
{
    (void)type, (void)handle;
    return handle_is;
}

bool ibx_math_handle_set(enum ibx_math_type type, uint64_t handle, enum ibx_math_handle is)
{
    (void)type, (void)handle, (void)is;
    return true;
}

/* Returns n bytes at the end of readable memory. */
static uint8_t *last_bytes(size_t n, uint8_t value)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *at = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    assert_int_equal(mprotect(at + page, page, PROT_NONE), 0);
    return memset(at + page - n, value, n);
}

static void expect(const uint8_t *bytes, size_t n, uint8_t value)
{
    for (size_t i = 0; i < 16; i++)
        assert_int_equal(bytes[i], i < n ? value : 0);
}

static void no_more_is_read(void **state)
{
    uint8_t *one = last_bytes(4, 1), *other = last_bytes(4, 2);
    (void)state;
    ibx_math_vector_made((uintptr_t)VECTOR, SINGLE);
    assert_int_equal(cusparseAxpby(HANDLE, one, NULL, other, VECTOR), 0);
    expect(sent[0], 4, 1);
    expect(sent[1], 4, 2);
    assert_int_equal(cusparseRot(HANDLE, other, one, NULL, VECTOR), 0);
    expect(sent[0], 4, 2);
    expect(sent[1], 4, 1);
}

/* Nothing is read for a vector that the program has not made, or has destroyed. */
static void unknown_vector(void **state)
{
    uint8_t *one = last_bytes(4, 1);
    (void)state;
    requests = 0;
    assert_int_equal(cusparseAxpby(HANDLE, one, NULL, one, HANDLE), 3);
    ibx_math_vector_ended((uintptr_t)VECTOR);
    ibx_math_vector_ended((uintptr_t)VECTOR);
    assert_int_equal(cusparseAxpby(HANDLE, one, NULL, one, VECTOR), 3);
    assert_int_equal(requests, 0);
}

/* A vector gets the address of another one whose end was not noticed. */
static void vector_at_the_address_of_another(void **state)
{
    uint8_t *one = last_bytes(16, 1), *other = last_bytes(16, 2);
    (void)state;
    ibx_math_vector_made((uintptr_t)VECTOR, SINGLE);
    ibx_math_vector_made((uintptr_t)VECTOR, COMPLEX);
    assert_int_equal(cusparseAxpby(HANDLE, one, NULL, other, VECTOR), 0);
    expect(sent[0], 16, 1);
    expect(sent[1], 16, 2);
    ibx_math_vector_ended((uintptr_t)VECTOR);
}

/* Scalars on the device, and handles of GVirtuS, are passed on unchanged. */
static void scalars_and_handles_of_others(void **state)
{
    (void)state;
    for (handle_is = IBX_MATH_ON_DEVICE; handle_is <= IBX_MATH_FOREIGN; handle_is++) {
        requests = 0;
        assert_int_equal(cusparseAxpby(HANDLE, NULL, NULL, NULL, VECTOR), 0);
        assert_int_equal(requests, 1);
    }
    handle_is = IBX_MATH_USUAL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_more_is_read),
                                       cmocka_unit_test(unknown_vector),
                                       cmocka_unit_test(vector_at_the_address_of_another),
                                       cmocka_unit_test(scalars_and_handles_of_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* --------------------------------------------------------------------------- replaced functions */

int cudaMemcpy(void *to, const void *from, size_t n, int kind)
{
    (void)to, (void)from, (void)n, (void)kind;
    return 0;
}

int cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream)
{
    (void)to, (void)from, (void)n, (void)kind, (void)stream;
    return 0;
}

int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                 size_t height, int kind)
{
    (void)to, (void)to_pitch, (void)from, (void)from_pitch, (void)width, (void)height, (void)kind;
    return 0;
}

int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                      size_t height, int kind, void *stream)
{
    (void)stream;
    return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
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
