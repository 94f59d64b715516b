/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The list of host functions that streams and graphs have not called: which one is before work in a
 * stream, which one is called, and what a launch or a reset does to them. */
#include "frontend-glue/preload/streams/outstanding.h"
#include "tests/fixtures/unit.h"

#include <stdlib.h>

#define LEGACY ((void *)1) /* cudaStreamLegacy */
#define FIRST  ((void *)0x10)
#define SECOND ((void *)0x20)

/* A launch's bytes are a number here. */
static unsigned freed;

void ibx_launch_bytes_free(struct ibx_launch_bytes *taken)
{
    freed += taken != NULL;
}

static struct ibx_launch_bytes *bytes(void)
{
    static char any;
    return (struct ibx_launch_bytes *)&any;
}

static void called(void *argument)
{
    (void)argument;
}

/* Number 7 is a function of graphs. */
bool ibx_repeated_find(uint64_t number, struct host_node *host)
{
    if (number == 7)
        *host = (struct host_node){.function = called, .argument = FIRST};
    return number == 7;
}

static struct ibx_outstanding *list;

static struct ibx_outstanding *add(uint64_t number, void *stream, bool blocking)
{
    struct ibx_outstanding *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->number = number;
    f->in = (struct ibx_in_stream){.handle = stream, .blocking = blocking};
    ibx_outstanding_append(&list, f);
    return f;
}

static int begin(void **state)
{
    (void)state;
    freed = 0;
    list = NULL;
    return 0;
}

static int end(void **state)
{
    (void)state;
    while (list) {
        struct ibx_outstanding *f = list;
        list = f->next;
        ibx_outstanding_free(f);
    }
    return 0;
}

static bool ordered(void *one, bool one_blocks, void *other, bool other_blocks)
{
    const struct ibx_in_stream a = {.handle = one, .blocking = one_blocks},
                               b = {.handle = other, .blocking = other_blocks};
    const bool is = ibx_streams_ordered(&a, &b);
    assert_int_equal(is, ibx_streams_ordered(&b, &a));
    return is;
}

/* A stream with itself; the legacy stream with those that block. */
static void streams_are_ordered(NO_STATE)
{
    assert_true(ordered(FIRST, false, FIRST, false));
    assert_true(ordered(FIRST, true, FIRST, true));
    assert_false(ordered(FIRST, true, SECOND, true));
    assert_true(ordered(NULL, true, SECOND, true));
    assert_true(ordered(LEGACY, true, SECOND, true));
    assert_false(ordered(NULL, true, SECOND, false));
    assert_true(ordered(NULL, true, LEGACY, true));
}

static void the_first_one_before_a_stream_is_found(NO_STATE)
{
    const struct ibx_in_stream first = {.handle = FIRST}, legacy = {.blocking = true};
    add(1, SECOND, true);
    struct ibx_outstanding *before = add(2, FIRST, false);
    add(3, FIRST, false);
    assert_ptr_equal(ibx_outstanding_before(list, &first), before);
    assert_ptr_equal(ibx_outstanding_before(list, &legacy), list);
    before->abandoned = true; /* nobody waits for that any more */
    assert_int_equal(ibx_outstanding_before(list, &first)->number, 3);
}

/* In blocking streams; one that is not enqueued yet comes later. */
static void the_first_one_up_to_an_order_is_found(NO_STATE)
{
    struct ibx_outstanding *apart = add(1, FIRST, false), *early = add(2, SECOND, true),
                           *late = add(3, SECOND, true);
    apart->order = 1;
    assert_null(ibx_outstanding_up_to(list, 9));
    early->order = 4;
    late->order = 5;
    assert_null(ibx_outstanding_up_to(list, 3));
    assert_ptr_equal(ibx_outstanding_up_to(list, 4), early);
    early->abandoned = true;
    assert_null(ibx_outstanding_up_to(list, 4));
    assert_ptr_equal(ibx_outstanding_up_to(list, 5), late);
}

static void the_oldest_of_a_number_is_taken(NO_STATE)
{
    struct ibx_outstanding *other = add(1, FIRST, true), *first = add(2, FIRST, true),
                           *second = add(2, FIRST, true);
    assert_ptr_equal(ibx_outstanding_take(&list, 2), first);
    assert_ptr_equal(ibx_outstanding_take(&list, 2), second);
    assert_null(ibx_outstanding_take(&list, 2));
    assert_ptr_equal(list, other);
    free(first);
    free(second);
}

/* It is called by the launch after the reset, if there was one; several are left by several. */
static void one_that_a_reset_has_left_is_taken_last(NO_STATE)
{
    struct ibx_outstanding *left = add(2, FIRST, true), *left_too = add(2, FIRST, true),
                           *new = add(2, FIRST, true);
    left->abandoned = left_too->abandoned = true;
    assert_ptr_equal(ibx_outstanding_take(&list, 2), new);
    assert_ptr_equal(ibx_outstanding_take(&list, 2), left);
    assert_ptr_equal(ibx_outstanding_take(&list, 2), left_too);
    free(new);
    free(left);
    free(left_too);
}

static void a_changed_graph_calls_another_function_instead(NO_STATE)
{
    add(1, FIRST, true);
    struct ibx_outstanding *of_graph = add(2, FIRST, true);
    of_graph->launch = 5;
    of_graph->copy.taken = bytes();
    assert_null(ibx_outstanding_replace(&list, 8)); /* no graph calls that */
    assert_ptr_equal(ibx_outstanding_replace(&list, 7), of_graph);
    assert_int_equal(of_graph->number, 7);
    assert_ptr_equal(of_graph->function, called);
    assert_ptr_equal(of_graph->argument, FIRST);
    assert_int_equal(freed, 1); /* the bytes were those of another copy */
    assert_null(of_graph->copy.taken);
    assert_null(ibx_outstanding_replace(&list, 7));
    free(of_graph);
}

static void a_function_is_in_the_order_of_its_call(NO_STATE)
{
    uint64_t order = 10;
    struct ibx_outstanding *first = add(1, FIRST, true), *second = add(2, FIRST, true);
    assert_true(ibx_outstanding_order(list, 2, &order));
    assert_false(ibx_outstanding_order(list, 3, &order)); /* it was called already */
    assert_int_equal(first->order, 0);
    assert_int_equal(second->order, 11);
    assert_int_equal(order, 11);
}

static void functions_of_a_launch_are_in_its_order(NO_STATE)
{
    uint64_t order = 10;
    struct ibx_outstanding *first = add(1, FIRST, true), *other = add(2, FIRST, true),
                           *second = add(3, FIRST, true);
    first->launch = second->launch = 5;
    other->launch = 6;
    assert_int_equal(ibx_outstanding_settle(&list, 5, &order), 0);
    assert_int_equal(first->order, 11);
    assert_int_equal(second->order, 12);
    assert_int_equal(other->order, 0);
    assert_int_equal(order, 12);
}

static void a_launch_that_fails_calls_none(NO_STATE)
{
    struct ibx_outstanding *first = add(1, FIRST, true), *other = add(2, FIRST, true);
    first->launch = add(3, FIRST, true)->launch = 5;
    first->copy.taken = bytes();
    assert_int_equal(ibx_outstanding_settle(&list, 5, NULL), 2);
    assert_int_equal(freed, 1);
    assert_ptr_equal(list, other);
    assert_null(other->next);
}

static void a_reset_leaves_what_is_enqueued_on_its_device(NO_STATE)
{
    struct ibx_outstanding *there = add(1, FIRST, true), *elsewhere = add(2, FIRST, true),
                           *later = add(3, FIRST, true), *left = add(4, FIRST, true);
    there->order = elsewhere->order = left->order = 1;
    elsewhere->in.device = 1;
    left->abandoned = true;
    there->copy.taken = elsewhere->copy.taken = later->copy.taken = bytes();
    assert_int_equal(ibx_outstanding_abandon(list, 0), 1);
    assert_true(there->abandoned);
    assert_null(there->copy.taken);
    assert_int_equal(freed, 1);
    assert_false(elsewhere->abandoned);
    assert_false(later->abandoned);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(streams_are_ordered),
                                       TEST(the_first_one_before_a_stream_is_found),
                                       TEST(the_first_one_up_to_an_order_is_found),
                                       TEST(the_oldest_of_a_number_is_taken),
                                       TEST(one_that_a_reset_has_left_is_taken_last),
                                       TEST(a_changed_graph_calls_another_function_instead),
                                       TEST(a_function_is_in_the_order_of_its_call),
                                       TEST(functions_of_a_launch_are_in_its_order),
                                       TEST(a_launch_that_fails_calls_none),
                                       TEST(a_reset_leaves_what_is_enqueued_on_its_device)};
    return cmocka_run_group_tests_name("outstanding", tests, NULL, NULL);
}
