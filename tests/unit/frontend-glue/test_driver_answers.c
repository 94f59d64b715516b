/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The driver's copies name the bytes of a row. A back end's answer about an array's elements
 * must not decide how much of the program's memory is read or written. */
#include "frontend-glue/driver_api/driver.h"
#include "tests/fuzz/fake_frontend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define WIDTH 16u /* bytes of a row that are copied */
#define PITCH 512u
#define ROWS  2u

int cuMemcpy2D_v2(const struct ibx_driver_memcpy2d *rows);

static uint8_t answers[512], memory[PITCH * (ROWS + 1)];

/* Adds the answer of a request that succeeds. */
static void add(struct ibx_writer *w, const void *bytes, size_t n)
{
    ibx_put_u8(w, 0);
    ibx_put_u16(w, (uint16_t)n);
    ibx_put_bytes(w, bytes, n);
}

/* Adds the answer about an element of this many bytes; for any other request it is a success
 * too. */
static void add_channel(struct ibx_writer *w, int bytes)
{
    const int32_t words[5] = {8 * bytes, 0, 0, 0, 0};
    add(w, words, sizeof(words));
}

/* Copies rows from an array to memory with a pitch. Returns what the call returns. */
static int copy(const struct ibx_writer *w, void *array, size_t rows)
{
    const struct ibx_driver_memcpy2d p = {.from_type = IN_ARRAY,
                                          .from_array = array,
                                          .to_type = IN_HOST,
                                          .to_host = memory,
                                          .to_pitch = PITCH,
                                          .width = WIDTH,
                                          .rows = rows};
    memset(memory, 0xee, sizeof(memory));
    fake_frontend_begin(ibx_reader_of(answers, w->length));
    return cuMemcpy2D_v2(&p);
}

/* Checks that only the rows were written. */
static void expect_rows(size_t rows, bool written)
{
    for (size_t i = 0; i < sizeof(memory); i++)
        if (i % PITCH >= WIDTH || i / PITCH >= rows)
            assert_int_equal(memory[i], 0xee);
        else if (written)
            assert_int_equal(memory[i], 1);
}

/* The elements have four bytes. The back end first says that they have one, and later nothing
 * else. */
static void arrays_of_this_process(void **state)
{
    (void)state;
    const struct ibx_cuda_channel channel = {8, 8, 8, 8, 1};
    const struct ibx_cuda_extent extent = {16, ROWS, 0};
    void *array = NULL;
    struct ibx_writer w = ibx_writer_of(answers, sizeof(answers));
    const uint64_t address = 0x10000;
    add(&w, &address, sizeof(address));
    fake_frontend_begin(ibx_reader_of(answers, w.length));
    assert_int_equal(cudaMalloc3DArray(&array, &channel, extent, 0), 0);
    for (size_t rows = 1; rows <= ROWS; rows++) {
        w = ibx_writer_of(answers, sizeof(answers));
        for (unsigned i = 0; i < 6; i++)
            add_channel(&w, 1);
        assert_int_equal(copy(&w, array, rows), 0);
        expect_rows(rows, true);
    }
    fake_frontend_begin(ibx_reader_of(NULL, 0));
    cudaFreeArray(array);
}

/* The back end gives another answer each time. */
static void arrays_of_other_processes(void **state)
{
    (void)state;
    for (size_t rows = 1; rows <= ROWS; rows++) {
        struct ibx_writer w = ibx_writer_of(answers, sizeof(answers));
        add_channel(&w, 1);
        for (unsigned i = 0; i < 6; i++)
            add_channel(&w, 4);
        assert_int_not_equal(copy(&w, (void *)0x5000, rows), 0);
        expect_rows(rows, false);
    }
}

/* The back end answers correctly. It may still not write into the gaps between rows. */
static void array_with_correct_answers(void **state)
{
    (void)state;
    struct ibx_writer w = ibx_writer_of(answers, sizeof(answers));
    for (unsigned i = 0; i < 6; i++)
        add_channel(&w, 4);
    assert_int_equal(copy(&w, (void *)0x5000, 1), 0);
    expect_rows(1, true);
    assert_int_equal(copy(&w, (void *)0x5000, ROWS), CUDA_NOT_SUPPORTED);
    expect_rows(0, false);
}

/* More bits than a number has. */
static void elements_of_too_many_bits(void **state)
{
    (void)state;
    const int32_t words[5] = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, 0};
    struct ibx_writer w = ibx_writer_of(answers, sizeof(answers));
    for (unsigned i = 0; i < 6; i++)
        add(&w, words, sizeof(words));
    assert_int_not_equal(copy(&w, (void *)0x5000, 1), 0);
    expect_rows(0, false);
}

/* What a node of a graph says, which the runtime has made: with an array, columns are counted in
 * elements, also those of memory. Of compressed formats the driver's call knows no bytes. */
static void copies_of_nodes(void **state)
{
    (void)state;
    const struct ibx_cuda_memcpy3d node = {.from_array = (void *)0x5000,
                                           .from_at = {2, 0, 0},
                                           .to = {memory, PITCH, PITCH, ROWS},
                                           .to_at = {3, 0, 0},
                                           .extent = {4, ROWS, 1},
                                           .kind = CUDA_MEMCPY_FROM_DEVICE};
    struct ibx_driver_memcpy3d planes;
    struct ibx_writer w = ibx_writer_of(answers, sizeof(answers));
    add_channel(&w, 4);
    fake_frontend_begin(ibx_reader_of(answers, w.length));
    assert_int_equal(ibx_driver_planes_of(&planes, &node), 0);
    assert_int_equal(planes.from_x, 8);
    assert_int_equal(planes.to_x, 12);
    assert_int_equal(planes.width, 16);
    const int32_t blocks[5] = {8, 8, 8, 8, 17};
    w = ibx_writer_of(answers, sizeof(answers));
    add(&w, blocks, sizeof(blocks));
    fake_frontend_begin(ibx_reader_of(answers, w.length));
    assert_int_not_equal(ibx_driver_planes_of(&planes, &node), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_of_this_process), cmocka_unit_test(arrays_of_other_processes),
        cmocka_unit_test(array_with_correct_answers), cmocka_unit_test(elements_of_too_many_bits),
        cmocka_unit_test(copies_of_nodes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* ------------------------------------------------------------ replaced functions of other files */

int ibx_driver_begin(struct ibx_driver_call *call, bool in_context)
{
    (void)call, (void)in_context;
    return 0;
}

int ibx_driver_end(const struct ibx_driver_call *call, int begun, int rc)
{
    (void)call, (void)begun;
    return rc;
}

int ibx_driver_device_of(const void *context)
{
    (void)context;
    return 0;
}

struct ibx_driver_context *ibx_driver_current(void)
{
    return NULL;
}
