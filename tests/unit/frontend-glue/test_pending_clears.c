/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory that is being cleared. This file replaces CUDA and everything around pending_clears.c. */
#include "frontend-glue/clients/clients.h"
#include "tests/fixtures/unit.h"

#define MEMORY 0x1000u

static char context, stream, event;
static unsigned resets;
static bool resets_meanwhile; /* a client resets a context while an event is recorded */
static int recorded, waited;  /* what these calls of CUDA's return */
static unsigned events, destroyed, errors_forgotten;

static int get_context(void *of, void **its)
{
    assert_ptr_equal(of, &stream);
    *its = &context;
    return 0;
}

static int push(void *pushed)
{
    assert_ptr_equal(pushed, &context);
    return 0;
}

static int pop(void **popped)
{
    *popped = &context;
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
    resets += resets_meanwhile;
    return recorded;
}

static int query(void *of)
{
    assert_ptr_equal(of, &event);
    return IBX_CUDA_NOT_READY;
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

unsigned ibx_back_end_resets(void)
{
    return resets;
}

void ibx_back_end_forget_error(void)
{
    errors_forgotten++;
}

void ibx_nap(uint64_t *ns)
{
    (void)ns;
    fail(); /* the event is never over */
}

static int set_up(void **state)
{
    (void)state;
    resets_meanwhile = false;
    recorded = waited = 0;
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

/* Then the memory is not known as being cleared, and whoever clears it has to wait. A reset may
 * be another context's. */
static void test_not_noted(void **state)
{
    (void)state;
    resets_meanwhile = true;
    assert_false(ibx_pending_clear_add(&x, MEMORY, &stream));
    assert_false(ibx_pending_clear(&x, MEMORY));
    assert_int_equal(destroyed, 0);
    resets_meanwhile = false;
    recorded = 2;
    assert_false(ibx_pending_clear_add(&x, MEMORY, &stream));
    assert_false(ibx_pending_clear(&x, MEMORY));
    assert_int_equal(destroyed, 1);
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
    ibx_pending_clear_forget(&context);
    assert_false(ibx_pending_clear(&x, MEMORY));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_known_until_freed, set_up),
        cmocka_unit_test_setup(test_not_noted, set_up),
        cmocka_unit_test_setup(test_stream_that_cannot_wait, set_up),
    };
    return cmocka_run_group_tests_name("pending_clears", tests, NULL, NULL);
}
