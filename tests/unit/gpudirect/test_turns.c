/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which session copies next. One thread plays all sessions with a simulated clock: while one
 * session would wait, the others copy. */
#include "gpudirect/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define PIECE    IBX_TURN_PIECE
#define QUANTUM  IBX_TURN_QUANTUM
#define PIECE_NS ((uint64_t)5000)
#define OTHERS   8u

static uint64_t now_ns, tick_ns; /* tick_ns: how much each look at the clock takes */
static struct ibx_turn one, other[OTHERS];
static unsigned long waits;
static struct ibx_turn *comes;  /* the session that copies now */
static uint64_t mine, theirs;   /* bytes */
static uint64_t at_once;        /* bytes that the session copies while another one waits */
static void (*meanwhile)(void); /* what the others do each time the session waits */

static uint64_t copy(struct ibx_turn *turn, uint64_t bytes)
{
    comes = turn;
    ibx_turn_take(turn, bytes);
    now_ns += PIECE_NS;
    return bytes;
}

static void one_copies(void)
{
    mine += copy(&one, at_once);
}
static void (*one_comes)(void) = one_copies; /* while another one waits */

int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    (void)clock;
    now_ns += tick_ns;
    *time = (struct timespec){(time_t)(now_ns / 1000000000u), (long)(now_ns % 1000000000u)};
    return 0;
}

void __wrap_ibx_forked_wait(atomic_uint *word, unsigned value, uint64_t until_ns);
void __wrap_ibx_forked_wait(atomic_uint *word, unsigned value, uint64_t until_ns)
{
    (void)word;
    (void)value;
    static int depth; /* a session that comes while another one waits may have to wait too */
    struct ibx_turn *waiting = comes;
    waits++;
    if (++depth > 1)
        now_ns = until_ns;
    else if (waiting == &one)
        meanwhile();
    else
        one_comes();
    depth--;
    comes = waiting;
}

static int set_up(void **state)
{
    (void)state;
    now_ns += (uint64_t)100 * 1000000000u; /* long after the previous test */
    waits = 0;
    tick_ns = 0;
    meanwhile = NULL;
    at_once = PIECE;
    one_comes = one_copies;
    ibx_turn_join(&one, NULL, 100);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ibx_turn_leave(&one);
    for (unsigned i = 0; i < OTHERS; i++)
        ibx_turn_leave(&other[i]);
    return 0;
}

static void test_alone(void **state)
{
    (void)state;
    ibx_turn_join(&other[0], NULL, 100);
    for (unsigned i = 0; i < 1000; i++) {
        assert_int_equal(ibx_turn_take(&one, QUANTUM / 3), IBX_TURN_ALONE);
        now_ns += PIECE_NS;
    }
    assert_int_equal(waits, 0);
    assert_int_equal(ibx_turn_take(NULL, 1), IBX_TURN_ALONE);
}

static void test_company(void **state)
{
    (void)state;
    ibx_turn_join(&other[0], NULL, 100);
    assert_int_equal(ibx_turn_company(&one), IBX_TURN_ALONE);
    ibx_turn_take(&other[0], 1);
    assert_int_equal(ibx_turn_company(&one), IBX_TURN_BESIDE);
    now_ns += IBX_TURN_BUSY_NS;
    assert_int_equal(ibx_turn_company(&one), IBX_TURN_NEAR);
    ibx_turn_take(&other[0], IBX_TURN_SHORT + 1);
    assert_int_equal(ibx_turn_company(&one), IBX_TURN_BESIDE_LONG);
    ibx_turn_take(&other[0], IBX_TURN_SHORT);
    assert_int_equal(ibx_turn_company(&one), IBX_TURN_BESIDE);
    now_ns += IBX_TURN_BUSY_NS;
    now_ns += IBX_TURN_NEAR_NS;
    assert_int_equal(ibx_turn_company(&one), IBX_TURN_ALONE);
    ibx_turn_take(&other[0], 1);
    ibx_turn_leave(&other[0]);
    assert_int_equal(ibx_turn_company(&one), IBX_TURN_ALONE);
}

/* A session that copies on another GPU does not count, and nobody waits for its turns. On the
 * same GPU it counts. */
static void test_another_gpu(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        ibx_turn_join(&other[i], NULL, 100);
        ibx_turn_go(&other[i], 1);
    }
    for (unsigned i = 0; i < 1000; i++) {
        ibx_turn_take(&other[i % 2], 1);
        assert_int_equal(ibx_turn_take(&one, QUANTUM), IBX_TURN_ALONE);
        now_ns += PIECE_NS;
    }
    assert_int_equal(waits, 0);
    assert_int_equal(ibx_turn_company(&other[0]), IBX_TURN_BESIDE);
    ibx_turn_go(&one, 1);
    assert_int_equal(ibx_turn_company(&one), IBX_TURN_BESIDE);
    ibx_turn_go(&one, 0);
    assert_int_equal(ibx_turn_company(&one), IBX_TURN_ALONE);
    ibx_turn_leave(&other[0]);
    ibx_turn_go(&other[0], 2); /* it has left that GPU */
    ibx_turn_go(&one, 2);
    assert_int_equal(ibx_turn_company(&one), IBX_TURN_ALONE);
}

/* ------------------------------------------------------------------------ fair */

static void other_copies(void)
{
    theirs += copy(&other[0], PIECE);
}

/* A session that copies `times` as often would, without turns, copy that many times the bytes. */
static double ratio_at(unsigned times, unsigned weight)
{
    mine = theirs = 0;
    meanwhile = other_copies;
    ibx_turn_join(&other[0], NULL, weight);
    for (unsigned i = 0; i < 4000; i++) {
        for (unsigned k = 0; k < times; k++)
            mine += copy(&one, PIECE);
        other_copies();
    }
    return (double)theirs / (double)mine;
}

static void test_the_faster_waits(void **state)
{
    (void)state;
    double ratio = ratio_at(2, 100);
    assert_true(ratio > 0.95 && ratio < 1.05);
}

static void test_weights(void **state)
{
    (void)state;
    double ratio = ratio_at(1, 300);
    assert_true(ratio > 2.8 && ratio < 3.2);
}

static void test_small_weights(void **state)
{
    (void)state;
    double ratio = ratio_at(1, 1);
    assert_true(ratio > 0.005 && ratio < 0.1);
}

/* All sessions of one owner together have the weight of one. */
static void test_owners(void **state)
{
    (void)state;
    uint64_t owned = 0;
    mine = theirs = 0;
    one_comes = other_copies;
    for (unsigned i = 1; i < 4; i++)
        ibx_turn_join(&other[i], "owner", 100);
    ibx_turn_join(&other[0], NULL, 100);
    for (unsigned i = 0; i < 4000; i++) {
        for (unsigned k = 1; k < 4; k++)
            owned += copy(&other[k], PIECE);
        other_copies();
    }
    assert_true((double)owned / (double)theirs > 0.9 && (double)owned / (double)theirs < 1.1);
}

static void slow_copies(void)
{
    now_ns += 2 * PIECE_NS * 100 / 62 - PIECE_NS;
    other_copies();
}

/* A session whose connection reaches at most 62% of the other's throughput. */
static void test_one_that_is_slower(void **state)
{
    (void)state;
    ibx_turn_join(&other[0], NULL, 100);
    mine = theirs = 0;
    meanwhile = slow_copies;
    for (unsigned i = 0; i < 8000; i++) {
        mine += copy(&one, PIECE);
        if (i * 62 % 100 < 62)
            other_copies();
        else
            now_ns += PIECE_NS;
    }
    assert_true((double)theirs / (double)mine > 0.95);
}

/* sessions for which nobody waits */

static void nobody_copies(void)
{
    now_ns += PIECE_NS;
}

/* It stops in the middle of its turn. */
static void test_one_that_stops(void **state)
{
    (void)state;
    ibx_turn_join(&other[0], NULL, 100);
    meanwhile = other_copies;
    for (uint64_t i = 0; i < 10 * QUANTUM / PIECE; i++) {
        copy(&one, PIECE);
        other_copies();
    }
    meanwhile = nobody_copies;
    const uint64_t began = now_ns, held = one.held_ns;
    for (uint64_t i = 0; i < 100 * QUANTUM / PIECE; i++)
        copy(&one, PIECE);
    assert_true(one.held_ns - held < (now_ns - began) / 20);
    waits = 0;
    for (uint64_t i = 0; i < 10 * QUANTUM / PIECE; i++)
        copy(&one, PIECE);
    assert_int_equal(waits, 0);
}

static void other_leaves(void)
{
    ibx_turn_leave(&other[0]);
    meanwhile = nobody_copies;
}

static void test_one_that_dies(void **state)
{
    (void)state;
    ibx_turn_join(&other[0], NULL, 100);
    meanwhile = other_leaves;
    for (uint64_t i = 0; i < 2 * QUANTUM / PIECE; i++) {
        copy(&one, PIECE);
        if (i < QUANTUM / PIECE * 3 / 4)
            copy(&other[0], PIECE);
    }
    assert_int_equal(waits, 1);
    assert_int_equal(one.held_ns, 0);
}

/* Short or rare copies delay nobody, however many sessions make them. */
static void test_little_copies(void **state)
{
    (void)state;
    for (unsigned k = 0; k < OTHERS; k++)
        ibx_turn_join(&other[k], NULL, 100);
    for (unsigned i = 0; i < 2000; i++) {
        copy(&one, PIECE);
        for (unsigned k = 0; k < OTHERS; k++)
            copy(&other[k], 4096);
    }
    assert_int_equal(waits, 0);
}

static void other_dawdles(void)
{
    now_ns += 4 * PIECE_NS;
    theirs += copy(&other[0], PIECE);
}

/* A session that copies as slowly as it may without losing its turns. */
static void test_one_that_is_very_slow(void **state)
{
    (void)state;
    ibx_turn_join(&other[0], NULL, 100);
    meanwhile = other_dawdles;
    const uint64_t began = now_ns;
    for (unsigned i = 0; i < 8000; i++) {
        copy(&one, PIECE);
        if (i % 2)
            copy(&other[0], PIECE);
    }
    assert_true(one.held_ns > 0);
    assert_true(one.held_ns < (now_ns - began) * 2 / 5);
}

static void other_copies_and_stops(void)
{
    copy(&other[0], 4096);
    now_ns += IBX_TURN_BUSY_NS + 1000000;
}

/* Its time counts from the end of its wait, whoever has copied meanwhile. */
static void test_one_that_has_waited(void **state)
{
    (void)state;
    ibx_turn_join(&other[0], NULL, 100);
    ibx_turn_join(&other[1], NULL, 100);
    meanwhile = other_copies_and_stops;
    while (!waits) {
        copy(&one, PIECE);
        now_ns += 1000000;
        if (!waits)
            copy(&other[0], PIECE);
    }
    assert_int_equal(ibx_turn_company(&other[1]), IBX_TURN_BESIDE_LONG);
}

/* More sessions copy at once than the table holds. Nobody waits for the others, which still know
 * of those in the table. When there is room they get a place again. */
static void test_more_sessions_than_places(void **state)
{
    static struct ibx_turn crowd[IBX_TURN_SEEN];
    (void)state;
    for (unsigned i = 0; i < IBX_TURN_SEEN; i++) {
        ibx_turn_join(&crowd[i], NULL, 100);
        ibx_turn_take(&crowd[i], 1);
    }
    ibx_turn_join(&other[0], NULL, 100);
    for (unsigned i = 0; i < 2; i++) {
        one.held_ns = 0;
        meanwhile = other_copies;
        assert_int_equal(ibx_turn_take(&other[0], QUANTUM * 3 / 4),
                         i ? IBX_TURN_NEAR : IBX_TURN_BESIDE);
        copy(&one, QUANTUM + 1);
        assert_int_equal(waits > 0, i);
        now_ns += IBX_TURN_BUSY_NS;
    }
    for (unsigned i = 0; i < IBX_TURN_SEEN; i++)
        ibx_turn_leave(&crowd[i]);
}

/* One thread at a time may enter the driver, beside others, but it is not waited for without
 * limit. */
static void test_into_the_driver(void **state)
{
    (void)state;
    tick_ns = 1000;
    ibx_turn_join(&other[0], NULL, 100);
    ibx_turn_join(&other[1], NULL, 100);
    ibx_turn_go(&other[1], 1);
    assert_false(ibx_turn_enter(NULL, IBX_TURN_BESIDE));
    assert_false(ibx_turn_enter(&one, IBX_TURN_ALONE));
    assert_false(ibx_turn_enter(&one, IBX_TURN_NEAR));
    for (int i = 0; i < 2; i++) {
        assert_true(ibx_turn_enter(&one, IBX_TURN_BESIDE));
        assert_false(ibx_turn_enter(&other[0], IBX_TURN_BESIDE_LONG)); /* gives up */
        ibx_turn_exit(&other[0], false);
        assert_true(ibx_turn_enter(&other[1], IBX_TURN_BESIDE)); /* a thread of another GPU */
        ibx_turn_exit(&other[1], true);
        assert_false(ibx_turn_enter(&one, IBX_TURN_BESIDE));
        ibx_turn_exit(&one, true);
    }
}

bool __wrap_ibx_thread_may_spin(void);
bool __wrap_ibx_thread_may_spin(void)
{
    return true;
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_alone),
        CASE(test_company),
        CASE(test_another_gpu),
        CASE(test_the_faster_waits),
        CASE(test_weights),
        CASE(test_small_weights),
        CASE(test_owners),
        CASE(test_one_that_is_slower),
        CASE(test_one_that_stops),
        CASE(test_one_that_dies),
        CASE(test_little_copies),
        CASE(test_one_that_is_very_slow),
        CASE(test_one_that_has_waited),
        CASE(test_more_sessions_than_places),
        CASE(test_into_the_driver),
    };
    return cmocka_run_group_tests_name("turns", tests, NULL, NULL);
}
