/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The jumps that the preload writes over functions: executed, and how far they reach. With aarch64
 * the memory is mapped as code whose functions begin with landing pads is (PROT_BTI). */
#include "frontend-glue/preload/static_runtime/code.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef __aarch64__
#ifndef PROT_BTI
#define PROT_BTI 0x10
#endif
#define REACH (128LL << 20)
/* bti c; mov w0, 7; ret */
static const uint32_t seven[] = {0xd503245f, 0x528000e0, 0xd65f03c0};
/* bti c or paciasp; then nothing that could be called */
static const uint32_t padded[][7] = {{0xd503245f}, {0xd503233f}};
static const uint32_t no_pad[7];
#else
#define PROT_BTI 0
#define REACH    (2LL << 30)
/* endbr64; mov $7, %eax; ret */
static const uint8_t seven[] = {0xf3, 0x0f, 0x1e, 0xfa, 0xb8, 7, 0, 0, 0, 0xc3};
static const uint8_t padded[][28] = {{0xf3, 0x0f, 0x1e, 0xfa}, {0x55}};
static const uint8_t no_pad[28];
#endif

#define HALF 65536u

static char *memory;

static int set_up(void **state)
{
    (void)state;
    memory = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return -1;
    memcpy(memory, seven, sizeof(seven));
    memcpy(memory + HALF, seven, sizeof(seven));
    return mprotect(memory, 2 * HALF, PROT_READ | PROT_EXEC | PROT_BTI);
}

static int tear_down(void **state)
{
    (void)state;
    return munmap(memory, 2 * HALF);
}

static void put(void *at, const void *bytes, size_t n)
{
    struct ibx_code code;
    assert_int_equal(ibx_code_open(&code, at, n, PROT_READ | PROT_EXEC | PROT_BTI), 0);
    assert_true(ibx_code_write(&code, at, bytes, n));
    ibx_code_close(&code);
}

static int call(const void *function)
{
    int (*volatile f)(void) = (int (*)(void))(uintptr_t)function;
    return f();
}

/* Forwards and back. The function that becomes a jump is called directly, so it needs no landing
 * pad. */
static void test_jump_nearby(void **state)
{
    (void)state;
    char *const from[] = {memory + 256, memory + HALF + 4}, *const to[] = {memory + HALF, memory};
    for (size_t i = 0; i < 2; i++) {
        uint8_t bytes[IBX_CODE_JUMP];
        assert_true(ibx_code_jump(bytes, from[i], to[i]));
        put(from[i], bytes, sizeof(bytes));
        assert_int_equal(mprotect(memory, 2 * HALF, PROT_READ | PROT_EXEC), 0);
        assert_int_equal(call(from[i]), 7);
        put(from[i], seven, sizeof(seven));
    }
}

static bool reaches(uintptr_t from, uintptr_t to)
{
    uint8_t bytes[IBX_CODE_JUMP];
    return ibx_code_jump(bytes, (const void *)from, (const void *)to);
}

static void test_reach(void **state)
{
    (void)state;
    const uintptr_t at = 0x7f0000000000, reach = REACH;
#ifdef __x86_64__
    const uintptr_t next = at + IBX_CODE_JUMP, step = 1;
#else
    const uintptr_t next = at, step = 4;
#endif
    assert_true(reaches(at, at));
    assert_true(reaches(at, next + reach - step));
    assert_false(reaches(at, next + reach));
    assert_true(reaches(at, next - reach));
    assert_false(reaches(at, next - reach - step));
    assert_false(reaches(at, 0x555555554000));
    assert_false(reaches(0x555555554000, at));
}

/* `function`: another place each time, since an emulator does not notice that /proc/self/mem
 * changes code that it has translated. */
static void check_by(char *function, const void *before, size_t length, size_t wanted)
{
    const void *const place = memory + HALF;
    uint8_t bytes[IBX_CODE_MOST + 1];
    put(function, before, length);
    const size_t n = ibx_code_jump_bytes(function, length);
    assert_int_equal(n, wanted);
    memset(bytes, 0xa5, sizeof(bytes));
    ibx_code_jump_by(bytes, n, &place);
    assert_int_equal(bytes[n], 0xa5);
    put(function, bytes, n);
    if (wanted != IBX_CODE_MOST) /* it cannot be called by a pointer */
        assert_int_equal(mprotect(memory, HALF, PROT_READ | PROT_EXEC), 0);
    assert_int_equal(call(function), 7);
    assert_int_equal(mprotect(memory, HALF, PROT_READ | PROT_EXEC | PROT_BTI), 0);
}

/* A function that could be called by a pointer still can be. */
static void test_jump_through_memory(void **state)
{
    (void)state;
    char *at = memory;
    for (size_t i = 0; i < 2; i++) {
        check_by(at += 256, padded[i], IBX_CODE_MOST, IBX_CODE_MOST);
        check_by(at += 256, padded[i], sizeof(padded[i]), IBX_CODE_MOST);
        check_by(at += 256, padded[i], IBX_CODE_JUMP_BY, IBX_CODE_JUMP_BY);
    }
    check_by(at += 256, no_pad, sizeof(no_pad), IBX_CODE_JUMP_BY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_jump_nearby, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_reach, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_jump_through_memory, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("code_jumps", tests, NULL, NULL);
}
