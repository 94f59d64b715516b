/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which events of this library are kept for the next time, and which are destroyed. */
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/in_child.h"
#include "tests/unit/frontend-glue/next_calls.h"

#define MOST 16 /* as many are kept */

static struct {
    int device, server;
    bool unknown; /* which back end it is */
    int made_fails;
    unsigned made, destroyed;
    const void *last_destroyed;
} is;

int ibx_frontend_current_device(void)
{
    return is.device;
}

bool ibx_frontend_knows(enum ibx_frontend_fact fact, uint64_t handle, int *answer)
{
    (void)handle;
    *answer = is.server;
    return fact == IBX_FRONTEND_SERVER && !is.unknown;
}

static int next_cudaEventCreateWithFlags(void **event, unsigned flags)
{
    assert_int_equal(flags, 2); /* without timing */
    if (!is.made_fails)
        *event = (void *)(uintptr_t)(0x100 + 16 * is.made++);
    return is.made_fails;
}

static int next_cudaEventDestroy(void *event)
{
    is.destroyed++;
    is.last_destroyed = event;
    return 0;
}

void *ibx_frontend_next(_Atomic(void *) *found, const char *symbol)
{
    (void)found;
    RETURN_NEXT(symbol, cudaEventCreateWithFlags);
    RETURN_NEXT(symbol, cudaEventDestroy);
    return NULL;
}

static int begin(void **state)
{
    (void)state;
    ibx_frontend_kept_events_reset(0);
    ibx_frontend_kept_events_reset(1);
    memset(&is, 0, sizeof(is));
    return 0;
}

static struct ibx_kept_event taken(void)
{
    struct ibx_kept_event event;
    assert_int_equal(ibx_frontend_event_take(&event), 0);
    return event;
}

/* Makes one event that is kept from then on. */
static struct ibx_kept_event kept(void)
{
    const struct ibx_kept_event event = taken();
    ibx_frontend_event_give_back(&event, true);
    return event;
}

static void an_event_is_made_once(NO_STATE)
{
    const struct ibx_kept_event first = kept(), again = taken();
    assert_ptr_equal(again.event, first.event);
    assert_ptr_not_equal(taken().event, first.event); /* while it is taken */
    assert_int_equal(is.made, 2);
    assert_int_equal(is.destroyed, 0);
}

static void a_device_has_its_own(NO_STATE)
{
    const struct ibx_kept_event first = kept();
    is.device = 1;
    const struct ibx_kept_event second = kept();
    assert_ptr_not_equal(second.event, first.event);
    is.device = 0;
    assert_ptr_equal(taken().event, first.event);
    is.device = 1;
    assert_ptr_equal(taken().event, second.event);
}

/* It has lost the events; and another one may have the handle now. */
static void another_back_end_gets_none_of_the_former(NO_STATE)
{
    const struct ibx_kept_event first = kept();
    is.server = 1;
    assert_ptr_not_equal(taken().event, first.event);
    assert_int_equal(is.destroyed, 0);
    is.server = 0; /* nor does one that has the former's number */
    assert_ptr_not_equal(taken().event, first.event);
}

static void an_event_is_not_kept_if_the_back_end_is_not_known(NO_STATE)
{
    kept();
    is.unknown = true;
    const struct ibx_kept_event event = taken();
    assert_int_equal(is.made, 2);
    ibx_frontend_event_give_back(&event, true);
    assert_int_equal(is.destroyed, 1);
    assert_ptr_equal(is.last_destroyed, event.event);
}

static void an_event_is_not_kept_after_an_error(NO_STATE)
{
    const struct ibx_kept_event event = taken();
    ibx_frontend_event_give_back(&event, false);
    assert_int_equal(is.destroyed, 1);
    assert_ptr_equal(is.last_destroyed, event.event);
    assert_ptr_not_equal(taken().event, event.event);
}

/* It was taken before a reset, which has destroyed it. */
static void an_event_is_not_kept_after_a_reset(NO_STATE)
{
    const struct ibx_kept_event event = taken();
    ibx_frontend_kept_events_reset(0);
    ibx_frontend_event_give_back(&event, true);
    assert_ptr_not_equal(taken().event, event.event);
}

static void a_reset_forgets_the_events_of_its_device(NO_STATE)
{
    const struct ibx_kept_event first = kept();
    is.device = 1;
    const struct ibx_kept_event second = kept();
    ibx_frontend_kept_events_reset(0);
    assert_ptr_equal(taken().event, second.event);
    is.device = 0;
    assert_ptr_not_equal(taken().event, first.event);
    assert_int_equal(is.destroyed, 0);
}

static void as_many_are_kept_as_there_is_room(NO_STATE)
{
    struct ibx_kept_event all[MOST + 1];
    for (unsigned i = 0; i <= MOST; i++)
        all[i] = taken();
    for (unsigned i = 0; i <= MOST; i++)
        ibx_frontend_event_give_back(&all[i], true);
    assert_int_equal(is.destroyed, 1);
    assert_ptr_equal(is.last_destroyed, all[MOST].event);
    for (unsigned i = 0; i < MOST; i++)
        taken();
    assert_int_equal(is.made, MOST + 1);
}

static void an_event_that_cannot_be_made_is_an_error(NO_STATE)
{
    struct ibx_kept_event event;
    is.made_fails = 2;
    assert_int_equal(ibx_frontend_event_take(&event), 2);
    assert_null(event.event);
}

static int child_makes_its_own(void)
{
    struct ibx_kept_event event;
    const unsigned made = is.made;
    return ibx_frontend_event_take(&event) || is.made != made + 1;
}

static void a_child_takes_none_of_its_parent(NO_STATE)
{
    const struct ibx_kept_event event = kept();
    passes_in_child(child_makes_its_own);
    assert_ptr_equal(taken().event, event.event);
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(an_event_is_made_once),
                                       TEST(a_device_has_its_own),
                                       TEST(another_back_end_gets_none_of_the_former),
                                       TEST(an_event_is_not_kept_if_the_back_end_is_not_known),
                                       TEST(an_event_is_not_kept_after_an_error),
                                       TEST(an_event_is_not_kept_after_a_reset),
                                       TEST(a_reset_forgets_the_events_of_its_device),
                                       TEST(as_many_are_kept_as_there_is_room),
                                       TEST(an_event_that_cannot_be_made_is_an_error),
                                       TEST(a_child_takes_none_of_its_parent)};
    return cmocka_run_group_tests_name("kept events", tests, NULL, NULL);
}
