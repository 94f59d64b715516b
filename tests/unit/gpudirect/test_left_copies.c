/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Copies that the session does not wait for, beside another session with short copies. Uses the
 * simulated driver and a simulated clock. */
#include "gpudirect/staging.h"
#include "tests/fixtures/cuda_unit.h"
#include "tests/fixtures/random_fill.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define PIECES 16u
#define SIZE   (PIECES * IBX_TURN_PIECE)

static uint64_t now_ns = 1000000000u, tick_ns; /* tick_ns: how much each look at the clock takes */

static struct ibx_staging *staging;
static struct ibx_turn mine, other;
static uint8_t *host;
static uint64_t device;
static void *stream;

int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    (void)clock;
    now_ns += tick_ns;
    *time = (struct timespec){(time_t)(now_ns / 1000000000u), (long)(now_ns % 1000000000u)};
    return 0;
}

static int set_up(void **state)
{
    (void)state;
    tick_ns = 0;
    host = aligned_alloc(4096, SIZE);
    random_fill(host, SIZE, 1);
    assert_int_equal(app->host_register(host, SIZE, 0), 0);
    assert_int_equal(app->mem_alloc(&device, SIZE), 0);
    assert_int_equal(app->stream_create(&stream, 0), 0);
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    ibx_turn_join(&mine, NULL, IBX_TURN_WEIGHT);
    ibx_turn_join(&other, NULL, IBX_TURN_WEIGHT);
    ibx_staging_set_turn(staging, &mine);
    ibx_turn_take(&other, 4);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    app->hold(false);
    app->hold_stream(NULL);
    app->slow(0);
    assert_int_equal(app->stream_synchronize(stream), 0);
    ibx_staging_destroy(staging);
    ibx_turn_leave(&mine);
    ibx_turn_leave(&other);
    app->mem_free(device);
    app->host_unregister(host);
    free(host);
    assert_int_equal(cuda_stats().unpinned_async, 0);
    return 0;
}

/* Starts the copy and leaves it. Returns the number of asynchronous copies that it made. */
static unsigned leave(bool to_device)
{
    const struct ibx_gpu_copy copy = {
        .device = device, .width = SIZE, .height = 1, .stream = stream};
    const unsigned long before = cuda_stats().copies_async;
    assert_int_equal(ibx_staging_leave(staging, host, &copy, to_device), 0);
    return (unsigned)(cuda_stats().copies_async - before);
}

/* All but two pieces have been copied when the call returns, of one copy and of the next. */
static void test_two_pieces_at_once(void **state)
{
    (void)state;
    app->slow(500);
    for (uint64_t round = 0; round < 2; round++) {
        random_fill(host, SIZE, round + 2);
        assert_int_equal(leave(true), PIECES);
        assert_on_device(device, host, (PIECES - 2) * IBX_TURN_PIECE);
        if (!round) /* its bytes may not change before */
            assert_int_equal(app->stream_synchronize(stream), 0);
    }
    assert_int_equal(app->stream_synchronize(stream), 0);
    assert_on_device(device, host, SIZE);
    uint8_t *sent = malloc(SIZE);
    memcpy(sent, host, SIZE);
    memset(host, 0, SIZE);
    assert_int_equal(leave(false), PIECES);
    assert_memory_equal(host, sent, (PIECES - 2) * IBX_TURN_PIECE);
    assert_int_equal(app->stream_synchronize(stream), 0);
    assert_memory_equal(host, sent, SIZE);
    free(sent);
}

/* No other session has short copies, so the GPU gets the whole copy at once. */
static void test_without_other_sessions(void **state)
{
    (void)state;
    now_ns += (uint64_t)10 * 1000000000u;
    app->hold(true);
    assert_int_equal(leave(true), 1);
}

/* The stream waits for other work, perhaps for the client itself, which must be able to
 * continue. */
static void test_copy_waits_for_other_work(void **state)
{
    (void)state;
    tick_ns = 1000;
    app->hold_stream(stream);
    assert_int_equal(app->copy_async(device, device + SIZE / 2, 4, stream), 0);
    const uint64_t before = now_ns;
    const unsigned pieces = leave(true);
    assert_in_range(pieces, 2, PIECES / 2); /* so that other sessions still come in between */
    assert_true(now_ns - before < 200 * tick_ns);
    app->hold_stream(NULL);
    assert_int_equal(app->stream_synchronize(stream), 0);
    assert_on_device(device, host, SIZE);
}

/* The copy made no progress meanwhile. */
static void test_wait_has_a_limit(void **state)
{
    (void)state;
    tick_ns = 1000;
    app->hold(true);
    leave(true);
    app->hold(false);
    assert_int_equal(app->stream_synchronize(stream), 0);
    assert_on_device(device, host, SIZE);
}

/* Short copies of bytes that earlier work may write. What puts them behind that work is no other
 * work of the stream, so not more of them are left at once than of others. */
static void test_short_copies_in_their_order(void **state)
{
    const struct ibx_gpu_copy copy = {
        .device = device, .width = 4096, .height = 1, .stream = stream, .changes = true};
    uint64_t before = 0;
    (void)state;
    tick_ns = 1000;
    app->hold_stream(stream);
    for (unsigned i = 0; i < 3; i++) {
        before = now_ns;
        assert_int_equal(ibx_staging_leave(staging, host, &copy, true), 0);
    }
    assert_true(now_ns - before > 1000000); /* that it waits for the first one */
    app->hold_stream(NULL);
    assert_int_equal(app->stream_synchronize(stream), 0);
    assert_on_device(device, host, 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_two_pieces_at_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_without_other_sessions, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_copy_waits_for_other_work, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_wait_has_a_limit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_short_copies_in_their_order, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("left-copies", tests, find_cuda, NULL);
}
