/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory that is being cleared. This file replaces CUDA and everything around pending_clears.c. */
#include "frontend-glue/clients/clients.h"
#include "tests/fixtures/unit.h"

#define MEMORY 0x1000u

static char contexts[2], stream, event;
static void *context;                 /* of the stream */
static int recorded, waited, is_over; /* what these calls of CUDA's return */
static unsigned events, destroyed, errors_forgotten;

static int get_context(void *of, void **its)
{
    assert_ptr_equal(of, &stream);
    *its = context;
    return 0;
}

static int push(void *pushed)
{
    assert_ptr_equal(pushed, context);
    return 0;
}

static int pop(void **popped)
{
    *popped = context;
    return 0;
}

static int create(void **made, unsigned flags)
{
    (void)flags;
    *made = &event;
    events++;
    return 0;
}

static int record(void *of, void *in)
{
    assert_true(of == &event && in == &stream);
    return recorded;
}

static int query(void *of)
{
    assert_ptr_equal(of, &event);
    return is_over;
}

static int destroy(void *of)
{
    assert_ptr_equal(of, &event);
    destroyed++;
    return 0;
}

static const struct ibx_cuda cuda = {.stream_get_context = get_context,
                                     .ctx_push_current = push,
                                     .ctx_pop_current = pop,
                                     .event_create = create,
                                     .event_record = record,
                                     .event_query = query,
                                     .event_destroy = destroy};
static struct gpu_session x = {.cuda = &cuda};

static int wait_event(void *in, void *of, unsigned flags)
{
    assert_true(of == &event && in == &stream && !flags);
    return waited;
}

const struct ibx_cuda *ibx_cuda_load(struct ibx_error *err)
{
    (void)err;
    return &cuda;
}

void *ibx_back_end_runtime(const char *name)
{
    assert_string_equal(name, "cudaStreamWaitEvent");
    return (void *)wait_event;
}

bool ibx_back_end_have_cuda(struct gpu_session *of)
{
    return of->cuda;
}

void ibx_back_end_forget_error(void)
{
    errors_forgotten++;
}

void ibx_nap(uint64_t *ns)
{
    (void)ns;
    is_over = 0;
}

static int set_up(void **state)
{
    (void)state;
    context = &contexts[0];
    recorded = waited = 0;
    is_over = IBX_CUDA_NOT_READY;
    events = destroyed = errors_forgotten = 0;
    return 0;
}

static void test_known_until_freed(void **state)
{
    (void)state;
    assert_false(ibx_pending_clear(&x, MEMORY));
    assert_true(ibx_pending_clear_add(&x, MEMORY, &stream));
    assert_true(ibx_pending_clear(&x, MEMORY));
    assert_true(ibx_pending_clear_before(MEMORY, &stream));
    ibx_pending_clear_gone(MEMORY);
    assert_false(ibx_pending_clear(&x, MEMORY));
    assert_true(events == 1 && destroyed == 1 && !errors_forgotten);
}

/* Then the memory is not known as being cleared, and whoever clears it has to wait. */
static void test_not_noted(void **state)
{
    (void)state;
    recorded = 2;
    assert_false(ibx_pending_clear_add(&x, MEMORY, &stream));
    assert_false(ibx_pending_clear(&x, MEMORY));
    assert_true(events == 1 && destroyed == 1);
}

/* ... so that there are not more events than clears under way. */
static void test_event_that_is_over_is_used_again(void **state)
{
    (void)state;
    assert_true(ibx_pending_clear_add(&x, MEMORY, &stream));
    ibx_pending_clear_wait(&x, MEMORY);
    assert_int_equal(is_over, 0);
    assert_true(ibx_pending_clear_add(&x, MEMORY, &stream));
    assert_int_equal(events, 1);
    context = &contexts[1]; /* an event is of its context */
    assert_true(ibx_pending_clear_add(&x, MEMORY, &stream));
    assert_int_equal(events, 2);
    ibx_pending_clear_forget(NULL);
    assert_int_equal(destroyed, 0); /* with their contexts */
}

static void test_reset_of_one_context(void **state)
{
    (void)state;
    assert_true(ibx_pending_clear_add(&x, MEMORY, &stream));
    ibx_pending_clear_forget(&contexts[1]);
    assert_true(ibx_pending_clear(&x, MEMORY));
    ibx_pending_clear_forget(&contexts[0]);
    assert_false(ibx_pending_clear(&x, MEMORY));
}

/* The runtime keeps the error of a call, which is not the client's. */
static void test_stream_that_cannot_wait(void **state)
{
    (void)state;
    assert_true(ibx_pending_clear_add(&x, MEMORY, &stream));
    waited = 2;
    assert_false(ibx_pending_clear_before(MEMORY, &stream));
    assert_int_equal(errors_forgotten, 1);
    assert_true(ibx_pending_clear_before(2 * MEMORY, &stream)); /* there is nothing to wait for */
    ibx_pending_clear_forget(&contexts[0]);
    assert_false(ibx_pending_clear(&x, MEMORY));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_known_until_freed, set_up),
        cmocka_unit_test_setup(test_not_noted, set_up),
        cmocka_unit_test_setup(test_event_that_is_over_is_used_again, set_up),
        cmocka_unit_test_setup(test_reset_of_one_context, set_up),
        cmocka_unit_test_setup(test_stream_that_cannot_wait, set_up),
    };
    return cmocka_run_group_tests_name("pending_clears", tests, NULL, NULL);
}
