/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A connection takes over the regions of one that has ended, with their contents. */
#include "tests/fixtures/memory_pair.h"
#include "transport/core/conn.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define LENGTH 10000u

static struct memory_pair pairs[3];
static struct ibx_mr *mr;
static bool no_memory;

void *__wrap_malloc(size_t size);
void *__real_malloc(size_t size);

void *__wrap_malloc(size_t size)
{
    return no_memory && size == LENGTH ? NULL : __real_malloc(size);
}

/* Opens three connections. The first one allocates memory with these bytes, and ends. */
static int open_all(void **state)
{
    struct ibx_options options;
    struct ibx_error err = {0};
    (void)state;
    memory_control_reset();
    ibx_options_init(&options);
    for (unsigned i = 0; i < 3; i++) {
        if (memory_pair_open(&pairs[i], &options, &err))
            fail_msg("%s", err.message);
    }
    assert_int_equal(ibx_mr_allocate(pairs[0].server, LENGTH, IBX_ACCESS_LOCAL, &mr, &err), 0);
    memset(ibx_mr_address(mr), 0x5a, LENGTH);
    ibx_abort(pairs[0].server);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    no_memory = false;
    for (unsigned i = 0; i < 3; i++)
        memory_pair_close(&pairs[i]);
    assert_int_equal(memory_live_regions(), 0);
    return 0;
}

static int take(unsigned to)
{
    return ibx_conn_take_regions(pairs[to].server, pairs[to - 1].server);
}

static void check_contents(void)
{
    const uint8_t *bytes = ibx_mr_address(mr);
    for (unsigned i = 0; i < LENGTH; i++)
        assert_int_equal(bytes[i], 0x5a);
}

static void test_contents_move(void **state)
{
    (void)state;
    assert_int_equal(take(1), 0);
    assert_true(ibx_mr_usable(mr));
    check_contents();
}

/* The next connection has the contents again, so that a transfer posted anew sends the right
 * bytes. */
static void test_contents_outlive_a_connection_that_has_no_room(void **state)
{
    (void)state;
    memory_control.fail_allocate = -ENOMEM;
    assert_int_equal(take(1), -ENOMEM);
    assert_false(ibx_mr_usable(mr));
    memory_control.fail_allocate = 0;
    assert_int_equal(take(2), 0);
    assert_true(ibx_mr_usable(mr));
    check_contents();
}

static void test_a_region_that_stays_unusable_is_freed(void **state)
{
    (void)state;
    memory_control.fail_allocate = -ENOMEM;
    assert_int_equal(take(1), -ENOMEM);
    assert_int_equal(take(2), -ENOMEM);
    check_contents();
}

/* Zeros in their place would be sent as if they were right. */
static void test_lost_contents_are_not_replaced(void **state)
{
    (void)state;
    no_memory = true;
    assert_int_equal(take(1), -ENOMEM);
    no_memory = false;
    assert_int_equal(take(2), -ENOMEM);
    assert_false(ibx_mr_usable(mr));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_contents_move, open_all, close_all),
        cmocka_unit_test_setup_teardown(test_contents_outlive_a_connection_that_has_no_room,
                                        open_all, close_all),
        cmocka_unit_test_setup_teardown(test_a_region_that_stays_unusable_is_freed, open_all,
                                        close_all),
        cmocka_unit_test_setup_teardown(test_lost_contents_are_not_replaced, open_all, close_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
