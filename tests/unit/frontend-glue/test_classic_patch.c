/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The jump that replaces a function's first bytes. It is not executed here; the classic tests do
 * that. */
#include "frontend-glue/classic/patch.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define PAGE 4096u

static unsigned char *code, before[2 * PAGE];

static int set_up(void **state)
{
    (void)state;
    code = mmap(NULL, sizeof(before), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED)
        return -1;
    for (unsigned i = 0; i < sizeof(before); i++)
        code[i] = before[i] = (unsigned char)(i * 7 + 1);
    return mprotect(code, sizeof(before), PROT_READ | PROT_EXEC);
}

static int tear_down(void **state)
{
    (void)state;
    return munmap(code, sizeof(before));
}

/* If a function is shorter than the jump, the bytes after it belong to another function. */
static void test_function_that_is_too_short(void **state)
{
    (void)state;
    struct ibx_classic_patch patch = {0};
    struct ibx_error err = {0};
    for (size_t length = 0; length < 14; length++) {
        assert_int_equal(ibx_classic_patch_apply(&patch, code, length, &err, &err), -ENOTSUP);
        assert_non_null(strstr(err.message, "too short"));
        assert_null(patch.function);
        assert_memory_equal(code, before, sizeof(before));
    }
}

/* Set and removed, across a page border; only the bytes of the jump change. */
static void test_jump_is_set_and_removed(void **state)
{
    (void)state;
    unsigned char *function = code + PAGE - 4;
    const uint64_t target = 0x1122334455667788;
    struct ibx_classic_patch patch = {0};
    assert_int_equal(ibx_classic_patch_apply(&patch, function, IBX_CLASSIC_JUMP_MAX,
                                             (void *)(uintptr_t)target, NULL),
                     0);
    for (unsigned i = 0; i < 3; i++) {
        assert_memory_equal(code, before, PAGE - 4);
        assert_memory_not_equal(function, before + PAGE - 4, 4);
        assert_non_null(memmem(function, IBX_CLASSIC_JUMP_MAX, &target, sizeof(target)));
        assert_memory_equal(function + IBX_CLASSIC_JUMP_MAX,
                            before + PAGE - 4 + IBX_CLASSIC_JUMP_MAX,
                            PAGE + 4 - IBX_CLASSIC_JUMP_MAX);
        assert_int_equal(ibx_classic_patch_switch(&patch, 0, NULL), 0);
        assert_memory_equal(code, before, sizeof(before));
        assert_int_equal(ibx_classic_patch_switch(&patch, 1, NULL), 0);
    }
}

static bool refuses; /* mprotect() refuses to remove the right to write */
int __real_mprotect(void *address, size_t n, int protection);
int __wrap_mprotect(void *address, size_t n, int protection);

int __wrap_mprotect(void *address, size_t n, int protection)
{
    if (!refuses || protection & PROT_WRITE)
        return __real_mprotect(address, n, protection);
    errno = ENOMEM;
    return -1;
}

/* A call that fails has changed nothing. */
static void test_code_that_stays_writable(void **state)
{
    (void)state;
    struct ibx_classic_patch patch = {0}, none = {0};
    struct ibx_error err = {0};
    refuses = true;
    assert_int_equal(ibx_classic_patch_apply(&none, code, IBX_CLASSIC_JUMP_MAX, &err, &err),
                     -ENOMEM);
    assert_null(none.function);
    assert_memory_equal(code, before, sizeof(before));
    refuses = false;
    assert_int_equal(ibx_classic_patch_apply(&patch, code, IBX_CLASSIC_JUMP_MAX, &err, NULL), 0);
    refuses = true;
    assert_int_equal(ibx_classic_patch_switch(&patch, 0, &err), -ENOMEM);
    assert_memory_equal(code, patch.jump, 14);
    refuses = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_function_that_is_too_short, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_jump_is_set_and_removed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_code_that_stays_writable, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("classic_patch", tests, NULL, NULL);
}
