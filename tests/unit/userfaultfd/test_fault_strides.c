/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How a series of faults continues: strides, and loops of them. Also: runs of pages in the map. */
#include "tests/fixtures/fault_memory.h"

#include "userfaultfd/pagemap.h"
#include "userfaultfd/stride.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define MOST 16u

/* ------------------------------------------------------------ strides */

static void expect_next(struct stride_detector *t, uint64_t page, uint64_t from, uint64_t step,
                        unsigned n)
{
    struct stride_prefetch next = ibx_fault_stride(t, page, MOST);
    assert_int_equal(next.pages, n);
    if (n) {
        assert_int_equal(next.from, from);
        assert_int_equal(next.distance, step);
    }
}

/* A stride is recognized at its third page. Each time that it continues as predicted, twice as
 * many pages are fetched ahead. The next fault may be at the end of the fetched pages or within
 * them. */
static void test_stride(void **state)
{
    (void)state;
    const uint64_t steps[] = {1, 3, 1607, (uint64_t)-1, (uint64_t)-700};
    for (unsigned i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
        struct stride_detector t = {0};
        const uint64_t s = steps[i], p = 1 << 20;
        expect_next(&t, p, 0, 0, 0);
        expect_next(&t, p + s, 0, 0, 0);
        expect_next(&t, p + 2 * s, p + 2 * s, s, 4);
        expect_next(&t, p + 7 * s, p + 7 * s, s, 8);
        expect_next(&t, p + 9 * s, p + 15 * s, s, 10);
        expect_next(&t, p + 26 * s, p + 26 * s, s, MOST);
        expect_next(&t, p + 50 * s, p + 50 * s, s, MOST); /* some pages had been fetched already */
    }
}

/* Two strides at once, whose faults alternate. */
static void test_two_strides(void **state)
{
    (void)state;
    struct stride_detector t = {0};
    for (unsigned i = 0; i < 2; i++) {
        expect_next(&t, 1000 + i, 0, 0, 0);
        expect_next(&t, 90000 - 40 * i, 0, 0, 0);
    }
    expect_next(&t, 1002, 1002, 1, 4);
    expect_next(&t, 89920, 89920, (uint64_t)-40, 4);
    expect_next(&t, 1007, 1007, 1, 8);
    expect_next(&t, 89720, 89720, (uint64_t)-40, 8);
}

/* A loop within a loop: a stride that starts elsewhere is recognized by its step, for a while. */
static void test_nested_loop(void **state)
{
    (void)state;
    struct stride_detector t = {0};
    for (unsigned i = 0; i < 3; i++)
        ibx_fault_stride(&t, 5000 + 64 * i, MOST);
    expect_next(&t, 5000 + 64 * 7, 5000 + 64 * 7, 64, 8);
    expect_next(&t, 900001, 900001, 64, 4);
    expect_next(&t, 900001 + 64 * 5, 900001 + 64 * 5, 64, 8);
    uint32_t seed = 5;
    unsigned asked = 0;
    for (unsigned i = 0; i < 4; i++)
        ibx_fault_stride(&t, (uint64_t)next_random(&seed) << 20, MOST);
    for (unsigned i = 0; i < 1000; i++)
        asked += ibx_fault_stride(&t, (uint64_t)next_random(&seed) << 20, MOST).pages;
    assert_int_equal(asked, 0); /* faults without a pattern are not followed */
}

/* Many threads that run through one loop wait for the same pages. The detector still knows where
 * the next pass starts, and does not take this for an unrelated fault. */
static void test_many_threads(void **state)
{
    (void)state;
    struct stride_detector t = {0};
    unsigned alone = 0;
    for (unsigned i = 0; i < 40; i++)
        for (unsigned thread = 0; thread < 16; thread++) {
            const struct stride_prefetch next =
                ibx_fault_stride(&t, 5000 + i / 8 * 300000 + i % 8 * 1607, 1);
            assert_true(!thread || !next.pages);
            alone += i > 2 && !next.distance;
        }
    assert_int_equal(alone, 0);
}

/* ------------------------------------------------------------ loops */

/* A thread visits `pages` pages from BASE on at a constant distance, again and again. For each
 * visited page the background fetches two of the loop; `lost` of a thousand come too late.
 * Returns how many visits fault. */
#define ROUND_BASE  4096u
#define ROUND_PAGES 65536u
#define ROUND_ALL   131072u /* pages of the memory */

static unsigned go_round(uint64_t step, bool down, unsigned visits, unsigned lost)
{
    static uint8_t there[ROUND_ALL];
    struct stride_detector t = {0};
    unsigned faults = 0;
    uint32_t seed = 77;
    memset(there, 0, sizeof(there));
    for (uint64_t i = 0, at = 777; i < visits; i++, at = (at + step) % ROUND_PAGES) {
        uint64_t page = ROUND_BASE + (down ? ROUND_PAGES - 1 - at : at), next;
        if (!there[page]) {
            struct stride_prefetch p = ibx_fault_stride(&t, page, MOST);
            faults++;
            for (there[page] = 1; p.pages; p.pages--)
                if ((p.from += p.distance) < ROUND_ALL)
                    there[p.from] = 1;
        }
        for (unsigned k = 0; k < 2; k++) {
            while (ibx_fault_loop_next(&t.loop, 0, ROUND_ALL, &next) && there[next])
                assert_in_range(next, 0, ROUND_ALL - 1);
            if (t.loop.left && next_random(&seed) % 1000 >= lost)
                there[next] = 1;
        }
    }
    return faults;
}

/* Each pass has about 40 pages, and each starts at a constant offset from the one before. */
static void test_loop(void **state)
{
    (void)state;
    const uint64_t steps[] = {1607, 64 + 1, 5003, 30011};
    for (unsigned i = 0; i < sizeof(steps) / sizeof(*steps); i++)
        for (unsigned down = 0; down < 2; down++)
            assert_in_range(go_round(steps[i], down, 30000, 0), 3, 40);
}

/* A loop that skips some pages is still the same loop. */
static void test_loop_with_gaps(void **state)
{
    (void)state;
    for (unsigned down = 0; down < 2; down++)
        for (unsigned lost = 5; lost <= 80; lost *= 4)
            assert_in_range(go_round(1607, down, 30000, lost), 3, 150 + 15 * lost);
}

/* A loop is followed from the fault on, not from its start. */
static void test_loop_that_is_overtaken(void **state)
{
    (void)state;
    struct stride_detector t = {0};
    uint64_t page;
    for (unsigned pass = 0; pass < 4; pass++)
        for (unsigned i = 0; i < 6; i++)
            ibx_fault_stride(&t, 10000 + 7 * pass + 100 * i, MOST);
    assert_int_equal(t.loop.step, 100);
    assert_int_equal(t.loop.shift, 7);
    ibx_fault_stride(&t, 10000 + 7 * 9 + 100, MOST); /* five passes ahead */
    assert_true(ibx_fault_loop_next(&t.loop, 0, 20000, &page));
    assert_int_equal(page, 10000 + 7 * 9 + 100);
    assert_true(ibx_fault_loop_next(&t.loop, 0, 20000, &page));
    assert_int_equal(page, 10000 + 7 * 9 + 200);
    ibx_fault_stride(&t, 10000 + 7 * 7 + 100, MOST); /* two passes back, a page that was missed */
    assert_true(ibx_fault_loop_next(&t.loop, 0, 20000, &page));
    assert_int_equal(page, 10000 + 7 * 7 + 100);
    ibx_fault_stride(&t, 10000 + 7 * 9 + 300, MOST);
    assert_true(ibx_fault_loop_next(&t.loop, 0, 20000, &page));
    assert_int_equal(page, 10000 + 7 * 9 + 300);
    while (page % 100 == 63)
        assert_true(ibx_fault_loop_next(&t.loop, 0, 20000, &page));
    assert_in_range(page, 9800, 10000);
    assert_int_equal(page % 100, 70);
}

/* A loop that was seen in two ranges is followed in one. */
static void test_loop_through_ranges(void **state)
{
    (void)state;
    const struct {
        uint64_t from, to;
    } ranges[] = {{0, 10300}, {10300, 20000}, {10200, 10400}};
    for (unsigned r = 0; r < sizeof(ranges) / sizeof(*ranges); r++)
        for (unsigned down = 0; down < 2; down++) {
            struct stride_detector t = {0};
            uint64_t page;
            unsigned n = 0;
            for (unsigned pass = 0; pass < 4; pass++)
                for (unsigned i = 0; i < 7; i++)
                    ibx_fault_stride(&t, 10000 + 7 * pass + 100 * (down ? 6 - i : i), MOST);
            for (; ibx_fault_loop_next(&t.loop, ranges[r].from, ranges[r].to, &page); n++)
                assert_in_range(page, ranges[r].from, ranges[r].to - 1);
            assert_in_range(n, 100, 1000);
        }
}

/* Random reads make no loop, and each loop ends. */
static void test_no_loop(void **state)
{
    (void)state;
    struct stride_detector t = {0};
    uint32_t seed = 5;
    uint64_t page;
    for (unsigned i = 0; i < 5000; i++)
        ibx_fault_stride(&t, next_random(&seed), MOST);
    assert_int_equal(t.loop.left, 0);
    assert_false(ibx_fault_loop_next(&t.loop, 0, 1ull << 32, &page));
    t = (struct stride_detector){0};
    for (unsigned pass = 0; pass < 4; pass++)
        for (unsigned i = 0; i < 6; i++)
            ibx_fault_stride(&t, 10000 + 7 * pass + 100 * i, MOST);
    for (unsigned i = 0; ibx_fault_loop_next(&t.loop, 0, 20000, &page); i++)
        assert_in_range(i, 0, 1000);
}

static void test_not_wanted(void **state)
{
    (void)state;
    struct stride_detector t = {0};
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(ibx_fault_stride(&t, i, 0).pages, 0);
}

/* ------------------------------------------------------------ the map, word by word */

static void test_runs_of_the_map(void **state)
{
    (void)state;
    static _Atomic uint64_t words[8];
    struct pagemap map = {words, 8 * PAGES_A_WORD};
    uint32_t seed = 17;
    for (unsigned round = 0; round < 2000; round++) {
        enum page_state before[8 * PAGES_A_WORD];
        uint64_t first = next_random(&seed) % map.pages;
        uint64_t n = next_random(&seed) % (map.pages - first + 1), moved = 0;
        enum page_state from = next_random(&seed) % 4, to = next_random(&seed) % 4;
        for (unsigned i = 0; i < 8; i++)
            words[i] = (uint64_t)next_random(&seed) << 32 | next_random(&seed);
        for (unsigned i = 0; i < map.pages; i++)
            before[i] = pagemap_get(&map, i);
        uint64_t said = pagemap_move_run(&map, first, n, from, to);
        for (unsigned i = 0; i < map.pages; i++) {
            bool moves = i >= first && i < first + n && before[i] == from;
            assert_int_equal(pagemap_get(&map, i), moves ? to : before[i]);
            moved += moves;
        }
        assert_int_equal(said, moved);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stride),
        cmocka_unit_test(test_two_strides),
        cmocka_unit_test(test_nested_loop),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_loop),
        cmocka_unit_test(test_loop_with_gaps),
        cmocka_unit_test(test_loop_that_is_overtaken),
        cmocka_unit_test(test_loop_through_ranges),
        cmocka_unit_test(test_no_loop),
        cmocka_unit_test(test_not_wanted),
        cmocka_unit_test(test_runs_of_the_map),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
