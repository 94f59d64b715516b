/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What belongs to contexts of the driver's API: what is freed with a context, and what is not. */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/in_child.h"

#include "common/log.h"

#define CONTEXT ((void *)0x100)
#define OTHER   ((void *)0x200)
#define HANDLE  ((void *)0x5000)
/* Other handles of the same chain: owned.c hashes bits 4 to 13, 8 to 17 and 20 to 29. */
#define BESIDE ((void *)0x5001)
#define BEYOND ((void *)0x5002)

static int device;

int ibx_frontend_current_device(void)
{
    return device;
}

void ibx_log(enum ibx_log_level level, const char *format, ...)
{
    (void)level, (void)format;
}

static int begin(void **state)
{
    (void)state;
    device = 0;
    return 0;
}

/* Nothing is left for the next test. */
static int end(void **state)
{
    bool any = false;
    (void)state;
    for (int kind = OWNED_MEMORY; kind <= OWNED_SURFACE; kind++) {
        while (ibx_frontend_owned_take((enum owned_kind)kind, CONTEXT))
            any = true;
        while (ibx_frontend_owned_take((enum owned_kind)kind, OTHER))
            any = true;
    }
    return any;
}

static void a_context_frees_what_was_made_in_it(NO_STATE)
{
    ibx_frontend_owned(OWNED_EVENT, HANDLE, CONTEXT);
    ibx_frontend_owned(OWNED_EVENT, BESIDE, OTHER);
    assert_null(ibx_frontend_owned_take(OWNED_STREAM, CONTEXT));
    assert_ptr_equal(ibx_frontend_owned_take(OWNED_EVENT, CONTEXT), HANDLE);
    assert_null(ibx_frontend_owned_take(OWNED_EVENT, CONTEXT));
    assert_ptr_equal(ibx_frontend_owned_take(OWNED_EVENT, OTHER), BESIDE);
}

/* CUDA may give a stream the handle that an event has. */
static void kinds_have_handles_of_their_own(NO_STATE)
{
    ibx_frontend_owned(OWNED_EVENT, HANDLE, CONTEXT);
    ibx_frontend_owned(OWNED_STREAM, HANDLE, OTHER);
    assert_ptr_equal(ibx_frontend_owner(OWNED_EVENT, HANDLE), CONTEXT);
    assert_ptr_equal(ibx_frontend_owner(OWNED_STREAM, HANDLE), OTHER);
    assert_null(ibx_frontend_owner(OWNED_MEMORY, HANDLE));
    ibx_frontend_owned_gone(OWNED_STREAM, HANDLE);
    assert_null(ibx_frontend_owner(OWNED_STREAM, HANDLE));
    assert_ptr_equal(ibx_frontend_owned_take(OWNED_STREAM, OTHER), NULL);
    assert_ptr_equal(ibx_frontend_owned_take(OWNED_EVENT, CONTEXT), HANDLE);
}

/* It was destroyed unseen, and the new one has another context. */
static void a_handle_that_comes_again_has_one_owner(NO_STATE)
{
    ibx_frontend_owned(OWNED_EVENT, HANDLE, CONTEXT);
    ibx_frontend_owned(OWNED_EVENT, BESIDE, CONTEXT);
    ibx_frontend_owned(OWNED_EVENT, HANDLE, OTHER);
    assert_ptr_equal(ibx_frontend_owned_take(OWNED_EVENT, CONTEXT), BESIDE);
    assert_null(ibx_frontend_owned_take(OWNED_EVENT, CONTEXT));
    assert_ptr_equal(ibx_frontend_owned_take(OWNED_EVENT, OTHER), HANDLE);
    assert_null(ibx_frontend_owned_take(OWNED_EVENT, OTHER));
}

static void a_call_that_fails_takes_nothing_away(NO_STATE)
{
    struct owned_note note;
    device = 1;
    ibx_frontend_owned(OWNED_ARRAY, HANDLE, CONTEXT);
    device = 0;
    ibx_frontend_owned_lift(OWNED_ARRAY, HANDLE, &note);
    assert_null(ibx_frontend_owner(OWNED_ARRAY, HANDLE));
    ibx_frontend_owned_again(&note);
    ibx_frontend_owned_reset(0); /* it is of device 1 */
    assert_ptr_equal(ibx_frontend_owned_take(OWNED_ARRAY, CONTEXT), HANDLE);
}

static void what_had_no_context_has_none_again(NO_STATE)
{
    struct owned_note note;
    ibx_frontend_owned_lift(OWNED_ARRAY, HANDLE, &note);
    assert_null(note.owner);
    note.handle = HANDLE; /* for the list to show it */
    ibx_frontend_owned_again(&note);
    assert_null(ibx_frontend_owned_take(OWNED_ARRAY, NULL));
}

/* All of them are in one chain. */
static void a_reset_forgets_what_its_device_had_except_libraries(NO_STATE)
{
    ibx_frontend_owned(OWNED_LIBRARY, HANDLE, CONTEXT);
    ibx_frontend_owned(OWNED_MEMORY, BESIDE, CONTEXT);
    device = 1;
    ibx_frontend_owned(OWNED_MEMORY, BEYOND, CONTEXT);
    ibx_frontend_owned_reset(0);
    assert_null(ibx_frontend_owner(OWNED_MEMORY, BESIDE));
    assert_ptr_equal(ibx_frontend_owned_take(OWNED_LIBRARY, CONTEXT), HANDLE);
    assert_ptr_equal(ibx_frontend_owned_take(OWNED_MEMORY, CONTEXT), BEYOND);
    assert_null(ibx_frontend_owned_take(OWNED_MEMORY, CONTEXT));
}

static int child_has_nothing(void)
{
    struct owned_note note;
    ibx_frontend_owned_lift(OWNED_EVENT, HANDLE, &note);
    return note.owner || ibx_frontend_owned_take(OWNED_EVENT, CONTEXT);
}

static void a_child_destroys_nothing_of_its_parent(NO_STATE)
{
    ibx_frontend_owned(OWNED_EVENT, HANDLE, CONTEXT);
    ibx_frontend_owned(OWNED_EVENT, BESIDE, CONTEXT);
    passes_in_child(child_has_nothing);
    assert_non_null(ibx_frontend_owned_take(OWNED_EVENT, CONTEXT));
    assert_non_null(ibx_frontend_owned_take(OWNED_EVENT, CONTEXT));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(a_context_frees_what_was_made_in_it),
                                       TEST(kinds_have_handles_of_their_own),
                                       TEST(a_handle_that_comes_again_has_one_owner),
                                       TEST(a_call_that_fails_takes_nothing_away),
                                       TEST(what_had_no_context_has_none_again),
                                       TEST(a_reset_forgets_what_its_device_had_except_libraries),
                                       TEST(a_child_destroys_nothing_of_its_parent)};
    return cmocka_run_group_tests_name("owned", tests, NULL, NULL);
}
