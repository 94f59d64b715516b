/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A back end's answers about arrays that this process has not made must not decide how much of
 * the program's memory is written. The program names rows, and their bytes come from the device. */
#include "frontend-glue/preload/preload.h"
#include "tests/fuzz/fake_frontend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define PITCH 64u
#define ROWS  2u

static uint8_t answers[512], memory[2 * PITCH * ROWS + PITCH];

/* Adds the answer of a request that succeeds. */
static void add(struct ibx_writer *w, const void *bytes, size_t n)
{
    ibx_put_u8(w, 0);
    ibx_put_u16(w, (uint16_t)n);
    ibx_put_bytes(w, bytes, n);
}

/* Adds the answer about an element; for any other request it is a success too. */
static void add_channel(struct ibx_writer *w, int bits)
{
    const int32_t words[5] = {bits, bits, bits, bits, 0};
    add(w, words, sizeof(words));
}

static void add_memory(struct ibx_writer *w)
{
    const uint64_t address = 0x10000;
    add(w, &address, sizeof(address));
}

/* Copies 16 elements per row from an array. Returns what the call returns. */
static int copy(struct ibx_writer *w, void *array, size_t pitch, size_t rows)
{
    const struct ibx_cuda_memcpy3d p = {.from_array = array,
                                        .to = {memory, pitch, PITCH, rows},
                                        .extent = {16, rows, 1},
                                        .kind = CUDA_MEMCPY_FROM_DEVICE};
    memset(memory, 0xee, sizeof(memory));
    fake_frontend_begin(ibx_reader_of(answers, w->length));
    return cudaMemcpy3D(&p);
}

static void expect_written(size_t n)
{
    for (size_t i = 0; i < sizeof(memory); i++)
        assert_int_equal(memory[i], i < n ? 1 : 0xee);
}

static void elements_grow_while_they_are_copied(void **state)
{
    (void)state;
    struct ibx_writer w = ibx_writer_of(answers, sizeof(answers));
    for (unsigned i = 0; i < 2; i++)
        add_channel(&w, 8); /* four bytes per element: a row fills its pitch */
    for (unsigned i = 0; i < 4; i++)
        add_channel(&w, 32);
    copy(&w, (void *)0x5000, PITCH, ROWS);
    for (size_t i = PITCH * ROWS; i < sizeof(memory); i++)
        assert_int_equal(memory[i], 0xee);
}

static void elements_that_do_not_fit(void **state)
{
    (void)state;
    struct ibx_writer w = ibx_writer_of(answers, sizeof(answers));
    for (unsigned i = 0; i < 6; i++)
        add_channel(&w, 32);
    assert_int_equal(copy(&w, (void *)0x5000, PITCH, ROWS), CUDA_INVALID_PITCH);
    expect_written(0);
}

/* Only the back end says how long the row is. */
static void a_row_without_a_pitch(void **state)
{
    (void)state;
    struct ibx_writer w = ibx_writer_of(answers, sizeof(answers));
    for (unsigned i = 0; i < 6; i++)
        add_channel(&w, 32);
    assert_int_equal(copy(&w, (void *)0x5000, 0, 1), CUDA_INVALID_VALUE);
    expect_written(0);
}

static void arrays_of_this_process(void **state)
{
    (void)state;
    const struct ibx_cuda_channel channel = {8, 8, 8, 8, 0};
    const struct ibx_cuda_extent extent = {16, ROWS, 0};
    void *array = NULL;
    struct ibx_writer w = ibx_writer_of(answers, sizeof(answers));
    add_memory(&w);
    fake_frontend_begin(ibx_reader_of(answers, w.length));
    assert_int_equal(cudaMalloc3DArray(&array, &channel, extent, 0), 0);
    for (size_t rows = 1; rows <= ROWS; rows++) {
        w = ibx_writer_of(answers, sizeof(answers));
        add_memory(&w);
        add(&w, NULL, 0); /* the copy within the device */
        assert_int_equal(copy(&w, array, rows == 1 ? 0 : PITCH, rows), 0);
        expect_written(PITCH * rows);
    }
    fake_frontend_begin(ibx_reader_of(NULL, 0));
    cudaFreeArray(array);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_grow_while_they_are_copied),
        cmocka_unit_test(elements_that_do_not_fit),
        cmocka_unit_test(a_row_without_a_pitch),
        cmocka_unit_test(arrays_of_this_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
