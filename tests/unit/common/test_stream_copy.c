/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Copies that bypass the caches: every byte is copied and no other one is written, from and to
 * any offset in a cache line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/stream_copy.h"

#define LINE   64u
#define ROOM   (8 * LINE)
#define BESIDE 0xee

static uint8_t source[ROOM], target[ROOM];

static void check(size_t to, size_t from, size_t n)
{
    memset(target, BESIDE, sizeof(target));
    ibx_stream_copy(target + to, source + from, n);
    for (size_t i = 0; i < ROOM; i++)
        assert_int_equal(target[i], i < to || i >= to + n ? BESIDE : source[from + i - to]);
}

static void test_each_offset_in_a_line(void **state)
{
    (void)state;
    for (size_t to = 0; to < LINE; to++) {
        for (size_t n = 0; n <= 3 * LINE + 2; n++)
            check(to, (to * 7 + n) % LINE, n);
    }
}

static void test_each_difference_of_offsets(void **state)
{
    (void)state;
    for (size_t from = 0; from < LINE; from++)
        check(5, from, 4 * LINE + 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_offset_in_a_line),
        cmocka_unit_test(test_each_difference_of_offsets),
    };
    for (size_t i = 0; i < ROOM; i++)
        source[i] = (uint8_t)(i * 37 + 11) % 0xed;
    return cmocka_run_group_tests_name("stream_copy", tests, NULL, NULL);
}
