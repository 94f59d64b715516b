/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Quotas in memory of several processes, one of which gives back more than it has taken. */
#include "common/quota.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define TIMES 5000000u

static _Atomic uint64_t counter;
static atomic_bool over;

static void *give_back(void *argument)
{
    (void)argument;
    while (!atomic_load(&over))
        ibx_quota_give_to(&counter, 3);
    return NULL;
}

/* What is refused by the quota above is given back here, where it may be missing by then. If the
 * counter went below 0, nobody would get anything any more. */
static void test_surplus_beside_a_refusal(void **state)
{
    (void)state;
    struct ibx_quota all = {.most = 0};
    struct ibx_quota one = {.most = 1000, .of = &all, .shared = &counter};
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, give_back, NULL), 0);
    for (unsigned i = 0; i < TIMES && atomic_load(&counter) <= 5; i++)
        assert_false(ibx_quota_take(&one, 5));
    atomic_store(&over, true);
    pthread_join(other, NULL);
    assert_true(atomic_load(&counter) <= 5);
    assert_int_equal(ibx_quota_left(&one), 0);
    atomic_store(&all.most, 1000);
    assert_true(ibx_quota_take(&one, 5));
}

/* What is only noted may be more than there is. Nothing more is given then, by this quota or by one
 * below it. */
static void test_more_in_use_than_there_is(void **state)
{
    (void)state;
    struct ibx_quota all = {.most = 100};
    struct ibx_quota one = {.most = 1000, .of = &all};
    ibx_quota_note(&one, 101);
    assert_int_equal(ibx_quota_left(&one), 0);
    assert_false(ibx_quota_take(&all, 1));
    assert_false(ibx_quota_take(&one, 1));
    assert_int_equal(ibx_quota_used(&one), 101);
    ibx_quota_give(&one, 2);
    assert_true(ibx_quota_take(&one, 1));
    assert_int_equal(ibx_quota_left(&one), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_surplus_beside_a_refusal),
                                       cmocka_unit_test(test_more_in_use_than_there_is)};
    return cmocka_run_group_tests_name("quota", tests, NULL, NULL);
}
