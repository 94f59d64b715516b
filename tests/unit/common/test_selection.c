// SPDX-License-Identifier: LGPL-2.1-or-later
/* tests/fixtures/selection.h: which tests of a program run. */
#include "tests/fixtures/selection.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
/* cmocka.h needs the standard headers above. */
#include <cmocka.h>

static const char *const names[] = {"graphs", "graphs, cloned", "test_huge_pages", "test_pages"};
#define NAMES (sizeof(names) / sizeof(names[0]))

/* Calls selection_unmatched() without its output, which looks like the output of failed tests. */
static int unmatched_silently(void)
{
    const int before = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    assert_true(before >= 0 && nowhere >= 0);
    fflush(stderr);
    dup2(nowhere, STDERR_FILENO);
    const int missed = selection_unmatched();
    fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(nowhere);
    close(before);
    return missed;
}

/* Returns a bit for each name that runs; sets `missed` to the result of selection_unmatched(). */
static unsigned chosen(const char *only, const char *skip, int *missed)
{
    unsigned bits = 0;
    unsetenv("IBX_TEST_ONLY");
    unsetenv("IBX_TEST_SKIP");
    if (only)
        setenv("IBX_TEST_ONLY", only, 1);
    if (skip)
        setenv("IBX_TEST_SKIP", skip, 1);
    for (unsigned i = 0; i < NAMES; i++)
        bits |= selection_has(names[i]) ? 1U << i : 0;
    *missed = unmatched_silently();
    return bits;
}

static void test_patterns_choose_tests(void **state)
{
    static const struct {
        const char *only, *skip;
        unsigned bits;
        int missed;
    } cases[] = {
        {NULL, NULL, 0xf, 0},
        {"graphs", NULL, 0x3, 0},
        {"cloned,test_pages", NULL, 0xa, 0},
        {"test_*", NULL, 0xc, 0},
        {"*pages", NULL, 0xc, 0},
        {"pages", "test_huge*", 0x8, 0},
        {NULL, "graphs,huge", 0x8, 0},
        {"nothing", NULL, 0, 1},
        {"graphs,nothing", NULL, 0x3, 1},
        {"pages*", NULL, 0, 1}, /* a trailing star matches longer names */
        {"", NULL, 0, 1},
        {",", NULL, 0, 1},
    };
    (void)state;
    unsetenv("IBX_TEST_SHARE");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int missed;
        print_message("only \"%s\"\n", cases[i].only ? cases[i].only : "(unset)");
        assert_int_equal(chosen(cases[i].only, cases[i].skip, &missed), cases[i].bits);
        assert_int_equal(missed, cases[i].missed);
    }
}

/* Each test is in one share, and in the ranges that have this share. Who misses a name that only
 * another share has is not told so. */
static void test_shares_divide_tests(void **state)
{
    unsigned shares[3];
    char share[] = "1/3";
    int missed;
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        share[0] = (char)('1' + i);
        setenv("IBX_TEST_SHARE", share, 1);
        shares[i] = chosen(NULL, NULL, &missed);
        assert_int_equal(chosen("graphs", NULL, &missed), shares[i] & 0x3);
        assert_int_equal(missed, 0);
    }
    setenv("IBX_TEST_SHARE", "2-3/3", 1);
    assert_int_equal(chosen(NULL, NULL, &missed), shares[1] | shares[2]);
    unsetenv("IBX_TEST_SHARE");
    assert_int_equal(shares[0] | shares[1] | shares[2], 0xf);
    assert_int_equal(shares[0] + shares[1] + shares[2], 0xf); /* no test is in two shares */
    assert_int_not_equal(shares[0], 0xf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_patterns_choose_tests),
                                       cmocka_unit_test(test_shares_divide_tests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
