/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Short copies to the device that are not waited for: their bytes are kept until they are made. */
#include "gpudirect/staging_internal.h"
#include "tests/fixtures/cuda_unit.h"

#include <stdlib.h>

#define CHUNKS         8u
#define MOST           4u /* chunks that have such bytes: half of the pool */
#define CAPTURED_EVENT 907
#define EACH           IBX_UNAWAITED_MOST
#define FULL           (MOST * (IBX_PINNED_CHUNK / EACH)) /* copies for which there is room */

#define DESTROYED           709 /* CUresult: the context is */
#define INVALID_CONTEXT     201
#define UNKNOWN             999
#define CAPTURE_UNSUPPORTED 900

static struct ibx_quota quota;
static struct ibx_staging *staging;
static uint64_t device;
static void *stream, *context;
static uint8_t bytes[EACH];

static int wire_move(void *arrived, unsigned slot, unsigned chunk, void *local, uint64_t offset,
                     size_t n)
{
    (void)chunk;
    memcpy(local, bytes + offset, n);
    *(uint32_t *)arrived |= 1u << slot;
    return 0;
}

static int wire_arrived(void *arrived, bool wait, uint32_t *slots)
{
    (void)wait;
    *slots = *(uint32_t *)arrived;
    *(uint32_t *)arrived = 0;
    return 0;
}

/* Copies n times this letter. */
static void leave(char letter, size_t n)
{
    uint32_t arrived = 0;
    const struct ibx_staging_wire wire = {&arrived, wire_move, wire_arrived, NULL, 1};
    const struct ibx_gpu_copy copy = {
        .device = device, .width = n, .height = 1, .stream = stream, .unawaited = true};
    memset(bytes, letter, n);
    assert_true(ibx_staging_begin(staging, n));
    assert_int_equal(ibx_staging_to_device(staging, &wire, &copy), 0);
    ibx_staging_end(staging);
}

static void assert_letter(char letter, size_t n)
{
    memset(bytes, letter, n);
    assert_on_device(device, bytes, n);
}

static void go_on(void)
{
    app->hold_stream(NULL);
    assert_int_equal(app->stream_synchronize(stream), 0);
}

/* The calls return while the stream is held, as long as there is room; and the bytes are those of
 * the calls. The chunks come back when somebody looks. */
static void test_returns(void **state)
{
    (void)state;
    app->hold_stream(stream);
    for (unsigned i = 0; i < FULL; i++)
        leave((char)('a' + i % 26), EACH);
    assert_int_equal(ibx_pinned_taken(), MOST);
    assert_int_equal(ibx_quota_used(&quota), MOST);
    ibx_staging_unawaited_look(staging);
    assert_int_equal(ibx_pinned_taken(), MOST);
    go_on();
    assert_letter((char)('a' + (FULL - 1) % 26), EACH);
    ibx_staging_unawaited_look(staging);
    assert_int_equal(ibx_pinned_taken(), 0);
    assert_int_equal(ibx_quota_used(&quota), 0);
}

/* One without room is waited for. */
static void test_waits_without_room(void **state)
{
    (void)state;
    app->hold_stream(stream);
    for (unsigned i = 0; i < FULL; i++)
        leave('b', EACH);
    app->slow(1000);
    app->hold_stream(NULL);
    leave('c', EACH);
    assert_int_equal(app->stream_query(stream), 0);
    app->slow(0);
    assert_letter('c', EACH);
}

/* Other copies need chunks, too: this holds for all stagings together. */
static void test_half_of_the_pool(void **state)
{
    struct ibx_staging *const first = staging;
    (void)state;
    app->hold_stream(stream);
    for (unsigned i = 0; i < FULL; i++)
        leave('s', EACH);
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    app->slow(1000);
    app->hold_stream(NULL);
    leave('t', EACH);
    assert_int_equal(app->stream_query(stream), 0);
    app->slow(0);
    assert_int_equal(ibx_pinned_taken(), MOST);
    ibx_staging_destroy(staging);
    staging = first;
    assert_letter('t', EACH);
}

/* Other copies need chunks of a small quota, too. */
static void test_small_quota(void **state)
{
    (void)state;
    quota.most = 3;
    app->hold_stream(stream);
    for (unsigned i = 0; i < FULL / MOST; i++)
        leave('k', EACH);
    app->slow(1000);
    app->hold_stream(NULL);
    leave('l', EACH);
    assert_int_equal(app->stream_query(stream), 0);
    assert_int_equal(ibx_quota_used(&quota), 1);
    app->slow(0);
}

/* A chunk whose copies are over is used again, so that a program may make any number of them. */
static void test_any_number(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3000; i++)
        leave((char)('a' + i % 26), 1 + i % 100);
    assert_int_equal(app->stream_synchronize(stream), 0);
    assert_in_range(ibx_pinned_taken(), 1, MOST);
    assert_letter((char)('a' + 2999 % 26), 1 + 2999 % 100);
}

/* A full chunk whose copies are over is empty: what lies behind it is another chunk's. */
static void test_full_again(void **state)
{
    static const unsigned full = IBX_PINNED_CHUNK / EACH;
    (void)state;
    for (unsigned i = 0; i < full; i++)
        leave('u', EACH);
    assert_int_equal(app->stream_synchronize(stream), 0);
    app->hold_stream(stream);
    for (unsigned i = 0; i < full; i++)
        leave('v', EACH);
    assert_int_equal(ibx_pinned_taken(), 1);
    leave('w', EACH);
    assert_int_equal(ibx_pinned_taken(), 2);
    go_on();
    assert_letter('w', EACH);
}

static unsigned events_made, modes_left;

static int make_event(void **event, unsigned flags)
{
    events_made++;
    return cuda->event_create(event, flags);
}

static int exchange_mode(int *mode)
{
    modes_left ^= 1; /* into mode RELAXED, and back */
    return cuda->thread_exchange_stream_capture_mode(mode);
}

/* A chunk that is used again has its events. The thread's capture mode is the program's. */
static void test_events_and_mode(void **state)
{
    static struct ibx_cuda table;
    (void)state;
    table = *cuda;
    table.event_create = make_event;
    table.thread_exchange_stream_capture_mode = exchange_mode;
    ibx_staging_destroy(staging);
    assert_int_equal(ibx_staging_create(&table, &staging), 0);
    leave('x', 4); /* makes the staging's own events, too */
    events_made = modes_left = 0;
    for (unsigned i = 0; i < 3 * IBX_UNAWAITED_COPIES; i++) {
        leave('x', 4);
        assert_int_equal(app->stream_synchronize(stream), 0);
    }
    assert_int_equal(events_made, IBX_UNAWAITED_COPIES - 1);
    ibx_staging_unawaited_look(staging);
    assert_int_equal(modes_left, 0);
    assert_int_equal(ibx_pinned_taken(), 0);
}

/* The end waits for nothing, and the chunks come back by a later staging. */
static void test_ends_before(void **state)
{
    (void)state;
    app->hold_stream(stream);
    leave('d', EACH);
    ibx_staging_destroy(staging);
    assert_int_equal(ibx_pinned_taken(), 1);
    assert_int_equal(ibx_quota_used(&quota), 1); /* a client that comes again has no more of it */
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    leave('e', 4);
    assert_int_equal(ibx_pinned_taken(), 2);
    go_on();
    ibx_staging_unawaited_look(staging);
    leave('f', 4);
    assert_int_equal(ibx_pinned_taken(), 1);
    assert_int_equal(ibx_quota_used(&quota), 0);
    assert_int_equal(app->stream_synchronize(stream), 0);
}

/* Nobody asks for an event in another context than its own, which others may destroy meanwhile. */
static void test_another_context(void **state)
{
    void *const held = stream;
    uint64_t there;
    (void)state;
    app->hold_stream(held);
    leave('m', EACH);
    ibx_staging_destroy(staging);
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    leave('n', EACH);
    assert_int_equal(ibx_pinned_taken(), 2);
    cuda_application_use(1);
    assert_int_equal(app->stream_create(&stream, 0), 0);
    assert_int_equal(app->mem_alloc(&there, EACH), 0);
    const uint64_t here = device;
    device = there;
    app->inject("cuEventQuery", 1, DESTROYED, false);
    ibx_staging_unawaited_look(staging);
    assert_int_equal(ibx_pinned_taken(), 2);
    leave('o', EACH);
    assert_int_equal(ibx_pinned_taken(), 3);
    app->inject(NULL, 0, 0, false);
    assert_int_equal(app->stream_synchronize(stream), 0);
    ibx_staging_unawaited_look(staging);
    assert_int_equal(ibx_pinned_taken(), 2);
    assert_int_equal(app->stream_destroy(stream), 0);
    device = here;
    stream = held;
    go_on();
    assert_int_equal(app->mem_free(there), 0);
    cuda_application_use(0);
    ibx_staging_unawaited_look(staging);
    leave('p', 4);
    assert_int_equal(app->stream_synchronize(stream), 0);
    assert_int_equal(ibx_pinned_taken(), 1);
    assert_letter('p', 4);
}

/* An error that concerns a capture says nothing about the copy. */
static void test_beside_captures(void **state)
{
    (void)state;
    app->hold_stream(stream);
    leave('q', EACH);
    app->inject("cuEventQuery", 1, CAPTURE_UNSUPPORTED, false);
    ibx_staging_unawaited_look(staging);
    app->inject(NULL, 0, 0, false);
    assert_int_equal(ibx_pinned_taken(), 1);
    go_on();
    ibx_staging_unawaited_look(staging);
    assert_int_equal(ibx_pinned_taken(), 0);
    assert_letter('q', EACH);
}

/* No event of a context that is gone is asked for. */
static void test_context_is_gone(void **state)
{
    (void)state;
    app->hold_stream(stream);
    leave('g', EACH);
    ibx_staging_destroy(staging);
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    leave('h', EACH);
    go_on();
    app->inject("cuEventQuery", 1, 700, true);
    ibx_staging_forget(staging, context);
    ibx_staging_forget_for_all(context);
    app->inject(NULL, 0, 0, false);
    assert_int_equal(ibx_pinned_taken(), 0);
}

static int push_fails; /* what ctx_push_current returns */

static int push(void *entered)
{
    return push_fails ? push_fails : cuda->ctx_push_current(entered);
}

/* All were told that the context is gone before the end of this staging leaves its chunks to the
 * next one: nobody has to look for them, unless the error says something else. */
static void test_ends_behind_its_context(void **state)
{
    static const int errors[] = {DESTROYED, INVALID_CONTEXT, UNKNOWN};
    static struct ibx_cuda table;
    (void)state;
    table = *cuda;
    table.ctx_push_current = push;
    for (unsigned way = 0; way < 3; way++) {
        ibx_staging_destroy(staging);
        assert_int_equal(ibx_staging_create(&table, &staging), 0);
        ibx_staging_set_quota(staging, &quota);
        app->hold_stream(stream);
        leave('r', EACH);
        ibx_staging_forget_for_all(context);
        push_fails = errors[way];
        ibx_staging_destroy(staging);
        staging = NULL;
        push_fails = 0;
        assert_int_equal(ibx_pinned_taken(), way == 2);
        assert_int_equal(ibx_quota_used(&quota), way == 2);
        go_on();
        ibx_staging_forget_for_all(context);
        assert_int_equal(ibx_pinned_taken(), 0);
        assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    }
}

/* A context that came later has the address of theirs: in it nobody may ask for their events. What
 * goes is known of some contexts, and not of all. */
static void test_ends_behind_another_context(void **state)
{
    (void)state;
    for (unsigned contexts = 0; contexts < 3; contexts++) {
        app->hold_stream(stream);
        leave('u', EACH);
        ibx_staging_forget_for_all(contexts == 2 ? NULL : context);
        for (unsigned i = 0; contexts == 1 && i < 1000; i++)
            ibx_staging_forget_for_all(&contexts);
        app->inject("cuEventQuery", 2, 700, false); /* the first is for a look before that */
        ibx_staging_destroy(staging);
        assert_int_equal(ibx_pinned_taken(), contexts != 0);
        assert_int_equal(ibx_quota_used(&quota), contexts != 0);
        assert_int_equal(ibx_staging_create(cuda, &staging), 0);
        ibx_staging_set_quota(staging, &quota);
        assert_true(ibx_staging_begin(staging, 1));
        ibx_staging_end(staging);
        assert_int_equal(ibx_pinned_taken(), contexts != 0);
        app->inject(NULL, 0, 0, false);
        go_on();
        ibx_staging_forget_for_all(context);
        assert_int_equal(ibx_pinned_taken(), 0);
    }
}

/* What the session was told of is no reason to keep its chunks for good. */
static void test_many_contexts_go(void **state)
{
    (void)state;
    app->hold_stream(stream);
    leave('v', EACH);
    for (unsigned i = 0; i < 1000; i++) {
        ibx_staging_forget_for_all(&quota);
        ibx_staging_forget(staging, &quota);
    }
    ibx_staging_destroy(staging);
    staging = NULL;
    assert_int_equal(ibx_pinned_taken(), 1);
    go_on();
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    assert_true(ibx_staging_begin(staging, 1));
    ibx_staging_end(staging);
    assert_int_equal(ibx_pinned_taken(), 0);
}

/* Which context is gone is not known: the GPU may still use chunks of those that are not. */
static void test_some_context_is_gone(void **state)
{
    (void)state;
    app->hold_stream(stream);
    leave('w', EACH);
    ibx_staging_destroy(staging);
    ibx_staging_forget_for_all(NULL);
    assert_int_equal(ibx_pinned_taken(), 1);
    app->inject("cuEventQuery", 1, 700, false);
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    assert_true(ibx_staging_begin(staging, 1));
    ibx_staging_end(staging);
    app->inject(NULL, 0, 0, false);
    assert_int_equal(ibx_pinned_taken(), 1);
    ibx_staging_forget_for_all(context);
    assert_int_equal(ibx_pinned_taken(), 0);
}

/* The client has begun to capture the stream: its graph may use the bytes at any time, so nobody
 * gets the chunk any more, unless it is sure that the graph's context is gone. */
static void test_captured(void **state)
{
    (void)state;
    leave('i', EACH);
    assert_int_equal(app->stream_synchronize(stream), 0);
    app->inject("cuEventQuery", 1, CAPTURED_EVENT, false);
    ibx_staging_unawaited_look(staging);
    app->inject(NULL, 0, 0, false);
    ibx_staging_unawaited_look(staging);
    ibx_staging_forget(staging, NULL);
    assert_int_equal(ibx_pinned_taken(), 1);
    ibx_staging_destroy(staging);
    ibx_staging_forget_for_all(NULL);
    assert_int_equal(ibx_pinned_taken(), 1);
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    leave('j', EACH);
    assert_int_equal(app->stream_synchronize(stream), 0);
    ibx_staging_unawaited_look(staging);
    assert_int_equal(ibx_pinned_taken(), 1);
}

static int set_up(void **state)
{
    (void)state;
    quota = (struct ibx_quota){.most = CHUNKS};
    assert_int_equal(app->mem_alloc(&device, EACH), 0);
    assert_int_equal(app->stream_create(&stream, 0), 0);
    assert_int_equal(cuda->ctx_get_current(&context), 0);
    assert_int_equal(ibx_pinned_open(cuda, CHUNKS * IBX_PINNED_STRIDE, NULL), 0);
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    ibx_staging_set_quota(staging, &quota);
    return 0;
}

static int tear_down(void **state)
{
    const unsigned kept = *state ? 1 : 0; /* by a graph */
    go_on();
    ibx_staging_destroy(staging);
    assert_int_equal(ibx_pinned_taken(), kept);
    assert_int_equal(cuda_stats().unpinned_async, 0);
    assert_int_equal(app->stream_destroy(stream), 0);
    return app->mem_free(device);
}

int main(void)
{
    static bool graph = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_returns, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_waits_without_room, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_half_of_the_pool, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_small_quota, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_any_number, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_full_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_events_and_mode, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ends_before, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_another_context, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_beside_captures, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_context_is_gone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ends_behind_its_context, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ends_behind_another_context, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_many_contexts_go, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_some_context_is_gone, set_up, tear_down),
        cmocka_unit_test_prestate_setup_teardown(test_captured, set_up, tear_down, &graph),
    };
    return cmocka_run_group_tests_name("unawaited-copies", tests, find_cuda, NULL);
}
