/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How `ib-bw tune` chooses from measured times. */
#include "tools/ib-bw/tune.h"

#include "tests/fixtures/choice_sound.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define SIZES 8u

static struct tune tune;

static struct tune_way *way(enum tune_kind kind, unsigned threads, size_t chunk)
{
    struct tune_way *added = &tune.ways[tune.way_count++];
    added->kind = kind;
    added->choice = ibx_choice_default;
    added->choice.threads = threads;
    if (chunk)
        added->choice.chunk = chunk;
    return added;
}

/* Sets times: a fixed cost and one for each KiB, for the sizes from `from` to `to`. */
static void times(struct tune_way *of, double fixed, double per_kib, unsigned from, unsigned to)
{
    for (unsigned d = 0; d < 2; d++) {
        for (unsigned i = from; i < to; i++)
            of->times[d][i] = fixed + per_kib * (double)tune.sizes[i] / 1024;
    }
}

/* The sizes are 1K, 4K .. 16M. Inline is measured up to 16K, in place from 64K on. */
static int set_up(void **state)
{
    (void)state;
    memset(&tune, 0, sizeof(tune));
    for (tune.size_count = 0; tune.size_count < SIZES; tune.size_count++)
        tune.sizes[tune.size_count] = (size_t)1024 << 2 * tune.size_count;
    times(way(TUNE_INLINE, 1, 0), 5, 2, 0, 3);
    times(way(TUNE_CHUNKS, 1, 0), 12, 0.1, 0, SIZES);
    times(way(TUNE_SHARED, 1, 0), 11, 0.1, 0, SIZES);
    times(way(TUNE_IN_PLACE, 1, 0), 11, 0.02, 3, SIZES);
    return 0;
}

static const struct ibx_choice_way *to_device(void)
{
    ibx_tune_choose(&tune);
    assert_true(tune.result.found && choice_sound(&tune.result.choice));
    struct ibx_choice_way from = tune.result.choice.ways[1];
    const struct ibx_choice_way *none = ibx_choice_default.ways; /* no copy threads were measured */
    if (tune.result.choice.ways[0].copy_threads_min == none[0].copy_threads_min) {
        assert_true(from.copy_threads_min == none[1].copy_threads_min);
        from.copy_threads_min = none[0].copy_threads_min;
    }
    assert_memory_equal(&tune.result.choice.ways[0], &from, sizeof(from));
    return &tune.result.choice.ways[0];
}

static void test_crossover(void **state)
{
    (void)state;
    const double first[] = {1, 2, 4, 8, 16, 0}, later[] = {5, 5, 5, 5, 5, 5},
                 spike[] = {5, 5, 5, 5, 50, 5}, alike[] = {1, 2, 4, 8, 16, 5}, none[6] = {0},
                 bump[] = {5, 5, 5, 2, 2, 5};
    assert_int_equal(ibx_tune_crossover(first, later, 6, TUNE_MARGIN), 3);
    assert_int_equal(ibx_tune_crossover(first, alike, 6, TUNE_MARGIN), 6);
    assert_int_equal(ibx_tune_crossover(first, alike, 6, 1 / TUNE_MARGIN), 0);
    assert_int_equal(ibx_tune_crossover(first, none, 6, TUNE_MARGIN), -1);
    assert_int_equal(ibx_tune_crossover(first, spike, 6, TUNE_MARGIN), 6);
    assert_int_equal(ibx_tune_crossover(first, bump, 6, TUNE_MARGIN), 3);
}

static void test_ways(void **state)
{
    (void)state;
    const struct ibx_choice_way *chosen = to_device();
    assert_int_equal(chosen->inline_max, 4096); /* 13 compared with 12.4 is within the margin */
    assert_int_equal(chosen->in_place_min, 0);
    assert_true(chosen->copy_threads_min == 4u << 20 &&
                tune.result.choice.threads == 0); /* not measured */
    assert_int_equal(tune.result.choice.chunk, 512u << 10);
    assert_int_equal(chosen->direct_min, 0);
}

/* Longer payloads are not sent inline, however fast that was. */
static void test_inline_is_bounded(void **state)
{
    (void)state;
    times(&tune.ways[0], 1, 0.01, 0, SIZES);
    ibx_tune_choose(&tune);
    assert_true(choice_sound(&tune.result.choice));
    assert_int_equal(tune.result.choice.ways[0].inline_max, IBX_CHOICE_TO_MAX);
    assert_int_equal(tune.result.choice.ways[1].inline_max, IBX_CHOICE_FROM_MAX);
}

static void test_threads(void **state)
{
    (void)state;
    times(way(TUNE_THREADS, 2, 0), 20, 0.1, 3, SIZES);
    assert_true(to_device()->copy_threads_min == IBX_CHOICE_NEVER); /* copy threads bring no gain */
    times(&tune.ways[4], 40, 0.06, 3, SIZES);
    times(way(TUNE_THREADS, 4, 0), 50, 0.04, 3, SIZES);
    times(way(TUNE_THREADS, 8, 0), 90, 0.039, 3, SIZES);
    assert_int_equal(to_device()->copy_threads_min, 1u << 20);
    assert_int_equal(tune.result.choice.threads, 4);
}

static void test_chunk(void **state)
{
    (void)state;
    times(way(TUNE_CHUNKS, 1, 256u << 10), 12, 0.09, 0, SIZES);
    times(way(TUNE_CHUNKS, 1, 128u << 10), 12, 0.11, 0, SIZES);
    to_device();
    assert_int_equal(tune.result.choice.chunk, 256u << 10);
}

/* In place is slower below some size; or there is no such memory. */
static void test_in_place(void **state)
{
    (void)state;
    times(&tune.ways[3], 60, 0.02, 3, SIZES);
    assert_int_equal(to_device()->in_place_min, 1u << 20);
    times(&tune.ways[3], -1, 0, 3, SIZES);
    assert_int_equal(to_device()->in_place_min, 0);
}

/* Direct uses the adapter and another fabric than the rest, so it is compared with chunks over
 * the same fabric. */
static void test_direct(void **state)
{
    (void)state;
    struct tune_way *far = way(TUNE_FAR, 1, 0), *direct = way(TUNE_DIRECT, 1, 0);
    times(far, 20, 0.2, 0, SIZES);
    times(direct, 30, 0.05, 0, SIZES);
    assert_int_equal(to_device()->direct_min, 256u << 10);
    times(direct, 20, 0.3, 0, SIZES);
    assert_true(to_device()->direct_min == IBX_CHOICE_NEVER);
    times(direct, 10, 0.05, 0, SIZES);
    assert_int_equal(to_device()->direct_min, 0);
    memset(direct->times, 0, sizeof(direct->times)); /* it was not possible */
    assert_true(to_device()->direct_min == ibx_choice_default.ways[0].direct_min);
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_crossover), TEST(test_ways),  TEST(test_inline_is_bounded),
        TEST(test_threads),   TEST(test_chunk), TEST(test_in_place),
        TEST(test_direct),
    };
    return cmocka_run_group_tests_name("tune", tests, NULL, NULL);
}
