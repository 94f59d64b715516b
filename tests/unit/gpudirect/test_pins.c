/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A client's allocations, pinned while they are what they were. */
#include "gpudirect/client_pins.h"
#include "tests/scenes/cuda_application.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define KIB 1024u

static const struct ibx_cuda *cuda;
static const struct cuda_calls *app;
static uint8_t memory[512 * KIB];

static struct ibx_double_stats stats(void)
{
    struct ibx_double_stats now;
    app->get_stats(&now);
    return now;
}

static bool pin(struct ibx_client_pins *pins, size_t at, size_t n, uint64_t id)
{
    struct ibx_error err = {0};
    return ibx_client_pin(pins, cuda, memory + at, n, id, true, &err);
}

static void test_once(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    unsigned long ever = stats().host_pinned;
    for (int i = 0; i < 5; i++) {
        assert_true(pin(&pins, 0, 64 * KIB, 1));
        assert_true(pin(&pins, 64 * KIB, 4 * KIB, 2));
    }
    assert_int_equal(stats().host_pinned, ever + 2);
    assert_int_equal(stats().host_pins, 2);
    assert_int_equal(pins.bytes, 68 * KIB);
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(stats().host_pins, 0);
    assert_int_equal(pins.bytes, 0);
}

/* The same place under another id is other memory: the GPU must not see the old pages. */
static void test_made_anew(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    unsigned long ever = stats().host_pinned;
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    assert_true(pin(&pins, 64 * KIB, 64 * KIB, 2));
    assert_true(pin(&pins, 0, 64 * KIB, 3));
    assert_int_equal(stats().host_pinned, ever + 3);
    assert_int_equal(stats().host_pins, 2);
    assert_true(pin(&pins, 4 * KIB, 120 * KIB, 4)); /* over both */
    assert_int_equal(stats().host_pins, 1);
    assert_true(pin(&pins, 0, 4 * KIB, 5)); /* beside it */
    assert_int_equal(stats().host_pins, 2);
    ibx_client_pins_drop(&pins, cuda);
}

/* Bounded in bytes and number: the longest unused goes. */
static void test_bounds(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = 100 * KIB};
    assert_false(pin(&pins, 0, 101 * KIB, 1));
    assert_true(pin(&pins, 0, 40 * KIB, 1));
    assert_true(pin(&pins, 40 * KIB, 40 * KIB, 2));
    assert_true(pin(&pins, 0, 40 * KIB, 1));
    unsigned long ever = stats().host_pinned;
    assert_true(pin(&pins, 80 * KIB, 40 * KIB, 3));
    assert_int_equal(pins.bytes, 80 * KIB);
    assert_true(pin(&pins, 0, 40 * KIB, 1)); /* still there */
    assert_int_equal(stats().host_pinned, ever + 1);
    for (unsigned i = 0; i < 2 * IBX_CLIENT_PINS; i++)
        assert_true(pin(&pins, 200 * KIB + i * KIB, KIB, 10 + i));
    assert_true(stats().host_pins <= IBX_CLIENT_PINS && pins.bytes <= pins.bytes_max);
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(stats().host_pins, 0);
}

/* Said once, and not asked again for that allocation. */
static void test_refused(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    struct ibx_error err = {0}, again = {0};
    app->inject("cuMemHostRegister", 1, 801, false);
    assert_false(ibx_client_pin(&pins, cuda, memory, KIB, 1, true, &err));
    assert_int_equal(err.code, 801);
    assert_non_null(strstr(err.message, "1024"));
    assert_false(ibx_client_pin(&pins, cuda, memory, KIB, 1, true, &again));
    assert_int_equal(again.code, 0);
    assert_true(ibx_client_pin(&pins, cuda, memory, KIB, 2, true, &again));
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(stats().host_pins, 0);
}

static void test_reset(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    app->primary_reset(0);
    assert_int_equal(stats().host_pins, 0);
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    assert_int_equal(stats().host_pins, 1);
    assert_int_equal(pins.bytes, 64 * KIB);
    app->primary_reset(0);
    ibx_client_pins_drop(&pins, cuda); /* gone already */
    assert_int_equal(pins.bytes, 0);
}

/* A session can end in a thread that has no context. */
static void test_dropped_elsewhere(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    void *context = &pins;
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    app->ctx_set_current(NULL);
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(cuda->ctx_get_current(&context), 0);
    assert_null(context);
    cuda_application_use(0);
    assert_int_equal(stats().host_pins, 0);
}

/* ------------------------------------------------------------------ copies left behind */

static void *streams[3];
static uint64_t device; /* a KIB for each */

static void copy(size_t at, unsigned stream)
{
    assert_int_equal(
        cuda->memcpy_to_device_async(device + stream * KIB, memory + at, KIB, streams[stream]), 0);
}

static bool leave(struct ibx_client_pins *pins, size_t at, unsigned stream)
{
    if (!ibx_client_pin_fence(pins, cuda, memory + at, streams[stream]))
        return false;
    copy(at, stream);
    ibx_client_pin_fence_record(pins, cuda);
    return true;
}

static bool is_over(unsigned stream)
{
    return app->stream_query(streams[stream]) == 0;
}

/* All of them, in whichever stream; and what another one does without end is not waited for. */
static void test_settle(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    assert_true(pin(&pins, 64 * KIB, 64 * KIB, 2));
    app->hold_stream(streams[2]);
    copy(0, 2);
    app->slow(20000);
    for (unsigned i = 0; i < 4; i++)
        assert_true(leave(&pins, i % 2 * 64 * KIB, i / 2));
    assert_false(is_over(0) && is_over(1));
    ibx_client_pins_wait(&pins, cuda);
    assert_true(is_over(0) && is_over(1));
    assert_false(is_over(2));
    app->slow(0);
    app->hold_stream(NULL);
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(stats().busy_unpins, 0);
    assert_int_equal(stats().events, 0);
}

/* While the thread captures a stream itself, too, where waiting is forbidden: it must not fail. */
static void test_settle_while_capturing(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    void *graph;
    int relaxed = IBX_CUDA_CAPTURE_RELAXED;
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    app->slow(20000);
    assert_int_equal(app->begin_capture(streams[2], IBX_CUDA_CAPTURE_GLOBAL), 0);
    assert_true(leave(&pins, 0, 0));
    ibx_client_pins_wait(&pins, cuda);
    app->exchange_mode(&relaxed);
    assert_true(is_over(0));
    app->exchange_mode(&relaxed);
    assert_int_equal(relaxed, IBX_CUDA_CAPTURE_RELAXED); /* it was the thread's until now */
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(app->end_capture(streams[2], &graph), 0);
    app->slow(0);
    assert_int_equal(stats().host_pins, 0);
}

/* Before the driver is asked to let go, for it would hold up others for as long. */
static void test_let_go_when_over(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    app->slow(20000);
    for (unsigned i = 0; i < 3; i++) { /* for other memory at its place, and at the end */
        assert_true(pin(&pins, 0, 64 * KIB, i));
        assert_true(leave(&pins, 0, 0));
        assert_true(leave(&pins, 0, 1));
    }
    ibx_client_pins_drop(&pins, cuda);
    app->slow(0);
    assert_int_equal(stats().host_pins, 0);
    assert_int_equal(stats().busy_unpins, 0);
    assert_int_equal(stats().events, 0);
}

/* Where no event can be put behind a copy it is waited for at once. */
static void test_no_event(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    app->slow(20000);
    app->inject("cuEventRecord", 1, 400, false);
    assert_true(leave(&pins, 0, 0));
    assert_true(is_over(0));
    app->slow(0);
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(stats().busy_unpins, 0);
}

/* A stream more than can be looked after: its copy must not be left, until one of the others has
 * nothing to do. */
static void test_many_streams(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    app->hold(true);
    assert_true(leave(&pins, 0, 0));
    for (unsigned i = 1; i < IBX_STREAM_FENCES; i++) { /* as if of 63 others */
        pins.fences[i] =
            (struct ibx_stream_fence){.context = pins.fences[0].context, .stream = &pins.fences[i]};
        assert_int_equal(cuda->event_create(&pins.fences[i].event, 0), 0);
        assert_int_equal(cuda->event_record(pins.fences[i].event, streams[0]), 0);
        pins.pins[0].fences |= 1ull << i;
    }
    assert_true(leave(&pins, 0, 0));
    assert_false(leave(&pins, 0, 1));
    app->hold(false);
    assert_int_equal(app->stream_synchronize(streams[0]), 0);
    assert_true(leave(&pins, 0, 1));
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(stats().events, 0);
}

/* Events of a context that was reset are gone. */
static void test_forgotten(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    assert_true(leave(&pins, 0, 0));
    app->primary_reset(0);
    ibx_client_pins_forget(&pins, pins.fences[0].context);
    ibx_client_pins_wait(&pins, cuda);
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    assert_true(leave(&pins, 0, 0));
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(stats().lost_events, 0);
    assert_int_equal(stats().events, 0);
}

/* What is under way in another context than the one that went is waited for as before. */
static void test_others_are_not_forgotten(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    app->slow(20000);
    assert_true(leave(&pins, 0, 0));
    ibx_client_pins_forget(&pins, &pins); /* no context of ours */
    ibx_client_pins_wait(&pins, cuda);
    assert_true(is_over(0));
    assert_true(leave(&pins, 0, 0));
    ibx_client_pins_drop_fences(&pins, cuda); /* before a reset */
    assert_true(is_over(0));
    assert_int_equal(stats().events, 0);
    app->slow(0);
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(stats().busy_unpins, 0);
}

/* Streams of one device that have nothing to do leave room for those of another. */
static void test_room_for_another_context(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    void *context = NULL, *stream;
    assert_int_equal(cuda->ctx_get_current(&context), 0);
    for (unsigned i = 0; i < IBX_STREAM_FENCES; i++) {
        pins.fences[i] = (struct ibx_stream_fence){.context = context, .stream = &pins.fences[i]};
        assert_int_equal(cuda->event_create(&pins.fences[i].event, 0), 0);
    }
    cuda_application_use(1);
    assert_int_equal(app->stream_create(&stream, 1), 0);
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    assert_true(ibx_client_pin_fence(&pins, cuda, memory, stream));
    ibx_client_pin_fence_record(&pins, cuda);
    ibx_client_pins_drop(&pins, cuda);
    cuda_application_use(0);
    assert_int_equal(stats().events, 0);
    assert_int_equal(stats().lost_events, 0);
}

/* No event of the current context can be put behind a copy there. */
static void test_not_left_elsewhere(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    cuda_application_use(1);
    assert_false(leave(&pins, 0, 0));
    cuda_application_use(0);
    assert_false(leave(&pins, 64 * KIB, 0)); /* not pinned */
    assert_true(leave(&pins, 0, 0));
    ibx_client_pins_drop(&pins, cuda);
}

static int find_cuda(void **state)
{
    (void)state;
    app = cuda_application();
    cuda_application_use(0);
    cuda = ibx_cuda_load(NULL);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(app->stream_create(&streams[i], 1), 0);
    assert_int_equal(app->mem_alloc(&device, 3 * KIB), 0);
    return cuda ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_made_anew),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_reset),
        cmocka_unit_test(test_dropped_elsewhere),
        cmocka_unit_test(test_settle),
        cmocka_unit_test(test_settle_while_capturing),
        cmocka_unit_test(test_let_go_when_over),
        cmocka_unit_test(test_no_event),
        cmocka_unit_test(test_many_streams),
        cmocka_unit_test(test_forgotten),
        cmocka_unit_test(test_others_are_not_forgotten),
        cmocka_unit_test(test_room_for_another_context),
        cmocka_unit_test(test_not_left_elsewhere),
    };
    return cmocka_run_group_tests_name("pins", tests, find_cuda, NULL);
}
