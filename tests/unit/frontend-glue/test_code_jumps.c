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
#else
#define PROT_BTI 0
#define REACH    (2LL << 30)
/* endbr64; mov $7, %eax; ret */
static const uint8_t seven[] = {0xf3, 0x0f, 0x1e, 0xfa, 0xb8, 7, 0, 0, 0, 0xc3};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_jump_nearby, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_reach, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("code_jumps", tests, NULL, NULL);
}
