/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The compiler's logs never exceed the program's buffers, whatever length the back end reports.
 * If the back end cannot be asked, or does not know the request, the logs stay empty. */
#include "frontend-glue/preload/runtime/runtime.h"
#include "frontend-glue/preload/kernels/images.h"
#include "tests/fuzz/fake_frontend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define ROOM 10u

static uint8_t answers[64];
static char logs[2][ROOM + 1]; /* a letter behind the buffer, which must not change */
static void *values[6];
static size_t ptx_bytes = 4;
static uint64_t memory = 0x10000; /* the address of device memory that the back end returns */

enum ibx_image_kind ibx_image_measure(const void **code, size_t most, size_t *n)
{
    (void)code, (void)most;
    *n = ptx_bytes;
    return IBX_IMAGE_PTX;
}

static void add(struct ibx_writer *w, const void *bytes, size_t n)
{
    ibx_put_u8(w, 0);
    ibx_put_u16(w, (uint16_t)n);
    ibx_put_bytes(w, bytes, n);
}

/* The back end's answer: what the driver returned, and the lengths of the logs. */
static struct ibx_writer answer(uint32_t said, uint32_t info, uint32_t error)
{
    const float ms = 2;
    uint32_t words[4] = {said, 0, info, error};
    memcpy(&words[1], &ms, sizeof(ms));
    struct ibx_writer w = ibx_writer_of(answers, sizeof(answers));
    add(&w, &memory, sizeof(memory));
    add(&w, words, sizeof(words));
    return w;
}

static struct ibx_compiler asked(size_t room)
{
    static const int options[] = {3, 4, 5, 6, 2, 12};
    void *const all[] = {logs[0], (void *)room, logs[1], (void *)room, logs, NULL};
    memcpy(values, all, sizeof(values));
    memset(logs, 'x', sizeof(logs));
    const struct ibx_compiler c = ibx_frontend_compiler_of(6, options, values);
    ibx_frontend_compiler_is_silent(&c);
    return c;
}

/* A log of n bytes, and the length that the program is told. The simulated device's memory consists
 * of ones. */
static void expect_told(unsigned log, size_t n, size_t length)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(logs[log][i], 1);
    assert_int_equal(logs[log][n], 0);
    assert_int_equal(logs[log][ROOM], 'x');
    assert_int_equal((uintptr_t)values[2 * log + 1], length);
}

static void expect(unsigned log, size_t n)
{
    expect_told(log, n, n);
}

static void expect_cut(unsigned log, size_t room)
{
    expect_told(log, room - 1, room);
}

static int compile(size_t room, uint32_t said, uint32_t info, uint32_t error)
{
    const struct ibx_compiler c = asked(room);
    const struct ibx_writer w = answer(said, info, error);
    fake_frontend_begin(ibx_reader_of(answers, w.length));
    return ibx_frontend_compile(&c, "PTX", false);
}

static void logs_of_any_length(void **state)
{
    (void)state;
    float ms;
    assert_int_equal(compile(ROOM, 218, 0, 5), 218);
    expect(0, 0);
    expect(1, 5);
    memcpy(&ms, &values[4], sizeof(ms));
    assert_true(ms == 2);
    assert_int_equal(compile(ROOM, 0, ROOM - 1, UINT32_MAX), 0);
    expect(0, ROOM - 1);
    expect_cut(1, ROOM);
    assert_int_equal(compile(ROOM, 0, ROOM, ROOM + 1), 0);
    expect_cut(0, ROOM);
    expect_cut(1, ROOM);
    assert_int_equal(compile(1, 1, 7, 0), 1);
    expect_cut(0, 1);
    expect(1, 0);
}

/* Any number may be an address of the device. */
static void logs_at_any_address(void **state)
{
    (void)state;
    static const uint64_t all[] = {0, 1, UINT64_MAX};
    for (unsigned i = 0; i < 3; i++) {
        memory = all[i];
        assert_int_equal(compile(ROOM, 218, 4, 5), 218);
        expect(0, 4);
        expect(1, 5);
    }
    memory = 0x10000;
}

static void logs_without_a_buffer(void **state)
{
    (void)state;
    assert_int_equal(compile(0, 218, 7, 7), 218);
    assert_true(logs[0][0] == 'x' && logs[1][0] == 'x' && !values[1] && !values[3]);
}

/* PTX that is too long is not sent. Or the back end has no memory, or does not know the request. */
static void logs_stay_empty_if_the_back_end_cannot_tell(void **state)
{
    (void)state;
    ptx_bytes = IBX_EXT_PTX_MOST + 1;
    assert_int_equal(compile(ROOM, 218, 7, 7), 0);
    ptx_bytes = 4;
    expect(0, 0);
    expect(1, 0);
    for (unsigned kept = 0; kept < 2; kept++) {
        const struct ibx_compiler c = asked(ROOM);
        const struct ibx_writer w = answer(218, 7, 7);
        fake_frontend_begin(ibx_reader_of(answers, kept ? w.length - 19 : 0));
        assert_int_equal(ibx_frontend_compile(&c, "PTX", false), 0);
        expect(0, 0);
        expect(1, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logs_of_any_length),
        cmocka_unit_test(logs_at_any_address),
        cmocka_unit_test(logs_without_a_buffer),
        cmocka_unit_test(logs_stay_empty_if_the_back_end_cannot_tell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
