/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A client's allocations are pinned as long as they are the same allocations. */
#include "gpudirect/client_pins.h"
#include "tests/fixtures/cuda_unit.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define KIB   1024u
#define BLOCK (64 * KIB)

static uint8_t memory[1024 * KIB];
static struct ibx_client_pins pins;
static unsigned long ever; /* pins that were made before this test */

static bool pin(size_t at, size_t n, uint64_t id)
{
    struct ibx_error err = {0};
    return ibx_client_pin(&pins, cuda, memory + at, n, id, true, &err);
}

static void *streams[3];
static uint64_t device; /* device memory, one KIB for each stream */

static void make_streams(void)
{
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(app->stream_create(&streams[i], 1), 0);
}

/* Streams and memory end with their context. */
static void reset(void)
{
    assert_int_equal(app->primary_reset(0), 0);
    make_streams();
    assert_int_equal(app->mem_alloc(&device, 3 * KIB), 0);
}

static int set_up(void **state)
{
    (void)state;
    pins = (struct ibx_client_pins){.bytes_max = sizeof(memory)};
    ever = cuda_stats().host_pinned;
    return 0;
}

/* Drops what a test has left. Nothing may stay pinned, be unpinned while in use, or leak. */
static int drop(void **state)
{
    (void)state;
    ibx_client_pins_drop(&pins, cuda);
    app->slow(0);
    assert_int_equal(pins.bytes, 0);
    assert_int_equal(cuda_stats().host_pins, 0);
    assert_int_equal(cuda_stats().busy_unpins, 0);
    assert_int_equal(cuda_stats().events, 0);
    assert_int_equal(cuda_stats().lost_events, 0);
    return 0;
}

static void test_pinned_once(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        assert_true(pin(0, BLOCK, 1));
        assert_true(pin(BLOCK, 4 * KIB, 2));
    }
    assert_int_equal(cuda_stats().host_pinned, ever + 2);
    assert_int_equal(cuda_stats().host_pins, 2);
    assert_int_equal(pins.bytes, 68 * KIB);
}

/* The same address with another id is other memory, and the GPU must not see the old pages. */
static void test_new_allocation_at_the_same_address(void **state)
{
    (void)state;
    assert_true(pin(0, BLOCK, 1));
    assert_true(pin(BLOCK, BLOCK, 2));
    assert_true(pin(0, BLOCK, 3));
    assert_int_equal(cuda_stats().host_pinned, ever + 3);
    assert_int_equal(cuda_stats().host_pins, 2);
    assert_true(pin(4 * KIB, 120 * KIB, 4)); /* covers both */
    assert_int_equal(cuda_stats().host_pins, 1);
    assert_true(pin(0, 4 * KIB, 5)); /* next to it */
    assert_int_equal(cuda_stats().host_pins, 2);
}

static void copy(size_t at, unsigned stream);
static bool leave(size_t at, unsigned stream);
static bool is_over(unsigned stream);

/* Pages that stay are pinned for each allocation of them. */
static void test_shorter_allocation_of_the_same_pages(void **state)
{
    (void)state;
    assert_true(pin(0, BLOCK, 1));
    assert_true(pin(0, 4 * KIB, 1));
    assert_true(pin(8 * KIB, 56 * KIB, 1)); /* up to its end */
    assert_true(leave(8 * KIB, 0));
    assert_int_equal(cuda_stats().host_pinned, ever + 1);
    assert_true(pin(8 * KIB, 57 * KIB, 1));
    assert_int_equal(cuda_stats().host_pinned, ever + 2);
    assert_int_equal(cuda_stats().host_pins, 1);
    assert_true(pin(12 * KIB, 4 * KIB, 2)); /* other pages */
    assert_int_equal(cuda_stats().host_pinned, ever + 3);
    assert_int_equal(cuda_stats().host_pins, 1);
}

static bool busy, others_busy;
static unsigned asked;

static bool works(void *owner, bool others)
{
    (void)owner;
    asked++;
    return busy || (others && others_busy);
}

/* An old pin that is in the way, or whose room is needed, stays until unpinning would not wait. */
static void test_nothing_is_unpinned_beside_work(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    pins.works = works;
    pins.bytes_max = 100 * KIB;
    busy = true;
    assert_true(pin(0, BLOCK, 1));
    assert_true(pin(0, BLOCK, 1));
    assert_true(pin(BLOCK, 4 * KIB, 2)); /* next to it */
    assert_false(ibx_client_pin(&pins, cuda, memory + KIB, 66 * KIB, 3, true, &err));
    assert_true(pins.put_off);
    assert_true(pin(0, BLOCK, 1));
    assert_false(pins.put_off);
    assert_false(ibx_client_pin(&pins, cuda, memory + 100 * KIB, 40 * KIB, 4, true, &err));
    assert_true(pins.put_off && !err.code);
    assert_int_equal(cuda_stats().host_pinned, ever + 2);
    busy = false;
    assert_true(pin(KIB, 66 * KIB, 3));
    assert_int_equal(cuda_stats().host_pins, 1);
    assert_true(pin(100 * KIB, 40 * KIB, 4));
    assert_int_equal(cuda_stats().host_pinned, ever + 4);
    assert_int_equal(cuda_stats().host_pins, 1);
}

/* A longer allocation of the same pages, beside work: what is pinned stays, and is used. */
static void test_longer_allocation_beside_work(void **state)
{
    (void)state;
    pins.works = works;
    busy = true;
    assert_true(pin(16 * KIB, BLOCK, 1));
    for (unsigned i = 0; i < 2; i++)
        assert_true(pin(0, 100 * KIB, 1));
    assert_int_equal(cuda_stats().host_pinned, ever + 3);
    assert_int_equal(pins.bytes, 100 * KIB);
    assert_int_equal(ibx_client_pin_rest(&pins, memory + KIB), 15 * KIB);
    assert_int_equal(ibx_client_pin_rest(&pins, memory + 16 * KIB), BLOCK);
    assert_int_equal(ibx_client_pin_rest(&pins, memory + 90 * KIB), 10 * KIB);
    assert_int_equal(ibx_client_pin_rest(&pins, memory + 100 * KIB), 0);
    assert_false(pin(0, 100 * KIB, 2)); /* other pages */
    assert_true(pins.put_off);
    busy = false;
    others_busy = true;
    assert_true(pin(90 * KIB, 30 * KIB, 1));
    assert_int_equal(cuda_stats().host_pinned, ever + 4);
    assert_int_equal(cuda_stats().host_pins, 4);
    others_busy = false;
    app->slow(1000); /* a copy between two parts: both stay as long as it runs */
    assert_true(ibx_client_pin_fence(&pins, cuda, memory, streams[0]));
    copy(15 * KIB, 0);
    copy(16 * KIB, 0);
    ibx_client_pin_fence_record(&pins, cuda, memory + 15 * KIB, 2 * KIB);
    assert_true(pin(20 * KIB, KIB, 2)); /* in place of the second one */
    assert_true(is_over(0));
    assert_true(leave(15 * KIB, 0));
    assert_true(pin(0, 120 * KIB, 1)); /* as a whole */
    assert_true(is_over(0));
    assert_int_equal(cuda_stats().host_pins, 1);
    assert_int_equal(pins.bytes, 120 * KIB);
}

/* Whether anybody works is not asked before each copy of memory that is pinned in parts, but often
 * enough that it becomes whole. */
static void test_copies_of_parts(void **state)
{
    (void)state;
    pins.works = works;
    busy = true;
    assert_true(pin(0, BLOCK, 1) && pin(0, 2 * BLOCK, 1));
    assert_int_equal(cuda_stats().host_pins, 2);
    asked = 0;
    for (unsigned i = 0; i < 1000; i++)
        assert_true(pin(0, 2 * BLOCK, 1));
    assert_in_range(asked, 1, 20);
    assert_int_equal(cuda_stats().host_pins, 2);
    busy = false;
    for (unsigned i = 0; i < 100; i++)
        assert_true(pin(0, 2 * BLOCK, 1));
    assert_int_equal(cuda_stats().host_pins, 1);
    assert_int_equal(pins.bytes, 2 * BLOCK);
}

/* Pins are limited in bytes and number; the least recently used one is dropped. */
static void test_bounds(void **state)
{
    (void)state;
    pins.bytes_max = 100 * KIB;
    assert_false(pin(0, 101 * KIB, 1));
    assert_true(pin(0, 40 * KIB, 1));
    assert_true(pin(40 * KIB, 40 * KIB, 2));
    assert_true(pin(0, 40 * KIB, 1));
    assert_true(pin(80 * KIB, 40 * KIB, 3));
    assert_int_equal(pins.bytes, 80 * KIB);
    assert_true(pin(0, 40 * KIB, 1)); /* still pinned */
    assert_int_equal(cuda_stats().host_pinned, ever + 3);
    pins.bytes_max = sizeof(memory); /* more than all of these */
    for (unsigned i = 0; i < 2 * IBX_CLIENT_PINS; i++)
        assert_true(pin(200 * KIB + (size_t)i * 64, 64, 10 + i));
    assert_int_equal(cuda_stats().host_pins, IBX_CLIENT_PINS);
}

/* The list of pins grows. However long it is when the bytes are used up, the oldest makes room. */
static void test_bytes_that_end_with_the_room(void **state)
{
    (void)state;
    for (unsigned n = 64; n <= IBX_CLIENT_PINS; n *= 2) {
        pins.bytes_max = (size_t)n * 64;
        for (unsigned i = 0; i < n; i++)
            assert_true(pin((size_t)i * 64, 64, 1 + i));
        assert_true(pin((size_t)n * 64, 64, 1 + n));
        assert_int_equal(pins.bytes, pins.bytes_max);
        assert_int_equal(cuda_stats().host_pins, n);
        ibx_client_pins_drop(&pins, cuda);
    }
}

/* A program that uses many buffers in turn has each pinned once, wherever each of them is. */
static void test_in_turn(void **state)
{
    enum { MANY = 3001 };
    (void)state;
    for (unsigned times = 0; times < 3; times++) {
        for (unsigned i = 0; i < MANY; i++)
            assert_true(pin((size_t)(i * 1009 % MANY) * 64, 64, 1 + i));
    }
    assert_int_equal(cuda_stats().host_pinned, ever + MANY);
    assert_int_equal(cuda_stats().host_pins, MANY);
    assert_true(pin(0, MANY * 64 + 5, 10000)); /* in place of them all */
    assert_int_equal(cuda_stats().host_pins, 1);
    assert_int_equal(pins.bytes, MANY * 64 + 5);
}

/* An error is reported once, and that allocation is not tried again; a shorter one there is. */
static void test_refused(void **state)
{
    (void)state;
    struct ibx_error err = {0}, again = {0};
    app->inject("cuMemHostRegister", 1, 801, false);
    assert_false(ibx_client_pin(&pins, cuda, memory, KIB, 1, true, &err));
    assert_int_equal(err.code, 801);
    assert_non_null(strstr(err.message, "1024"));
    assert_false(ibx_client_pin(&pins, cuda, memory, KIB, 1, true, &again));
    assert_int_equal(again.code, 0);
    assert_true(pin(0, KIB / 2, 1));
    assert_true(ibx_client_pin(&pins, cuda, memory, KIB, 2, true, &again));
}

static void test_reset(void **state)
{
    (void)state;
    assert_true(pin(0, BLOCK, 1));
    reset();
    assert_int_equal(cuda_stats().host_pins, 0);
    assert_true(pin(0, BLOCK, 1));
    assert_int_equal(cuda_stats().host_pins, 1);
    assert_int_equal(pins.bytes, BLOCK);
    pins.works = works;
    busy = true;
    assert_true(pin(0, 2 * BLOCK, 1)); /* in two parts */
    reset();
    assert_true(pin(0, 2 * BLOCK, 1));
    assert_int_equal(cuda_stats().host_pins, 2);
    assert_int_equal(pins.bytes, 2 * BLOCK);
    busy = false;
    reset(); /* so that drop() finds nothing pinned */
}

/* After a reset CUDA does not pin again; there is no third attempt. */
static void test_refused_after_a_reset(void **state)
{
    (void)state;
    assert_true(pin(0, BLOCK, 1));
    reset();
    app->inject("cuMemHostRegister", 1, 801, false);
    assert_false(pin(0, BLOCK, 1));
    assert_false(pin(0, BLOCK, 1));
    assert_int_equal(pins.bytes, 0);
    assert_int_equal(cuda_stats().host_pinned, ever + 1);
}

/* A session can end in a thread that has no context. */
/* While an error of other work lasts, CUDA reports only that error. The memory stays pinned, and
 * a later client that maps its own memory there must not find it pinned. */
static void test_errors_of_others(void **state)
{
    (void)state;
    assert_true(pin(0, BLOCK, 1));
    app->inject("cuMemHostGetFlags", 1, 700, true);
    assert_false(pin(0, BLOCK, 1));
    assert_false(pin(0, BLOCK, 1));
    app->inject(NULL, 0, 0, false);
    assert_true(pin(0, BLOCK, 1));
    assert_int_equal(cuda_stats().host_pinned, ever + 1);
    app->inject("cuMemHostGetFlags", 1, 700, true);
    assert_false(pin(0, BLOCK, 1));
    app->inject(NULL, 0, 0, false);
}

/* A thread that is in the context, as drivers push one, is so afterwards. */
static void test_dropped_in_its_context(void **state)
{
    (void)state;
    void *before, *after;
    assert_true(pin(0, BLOCK, 1));
    assert_int_equal(cuda->ctx_get_current(&before), 0);
    app->ctx_set_current(NULL);
    assert_int_equal(cuda->ctx_push_current(before), 0);
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(cuda->ctx_get_current(&after), 0);
    assert_ptr_equal(after, before);
    cuda->ctx_pop_current(&after);
    cuda_application_use(0);
}

static void test_dropped_elsewhere(void **state)
{
    (void)state;
    void *context = &pins;
    assert_true(pin(0, BLOCK, 1));
    app->ctx_set_current(NULL);
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(cuda->ctx_get_current(&context), 0);
    assert_null(context);
    cuda_application_use(0);
}

/* ------------------------------------------------------------------ stream fences */

static void copy(size_t at, unsigned stream)
{
    assert_int_equal(
        cuda->memcpy_to_device_async(device + stream * KIB, memory + at, KIB, streams[stream]), 0);
}

/* Starts a copy that outlives its call. */
static bool leave(size_t at, unsigned stream)
{
    if (!ibx_client_pin_fence(&pins, cuda, memory + at, streams[stream]))
        return false;
    copy(at, stream);
    ibx_client_pin_fence_record(&pins, cuda, memory + at, KIB);
    return true;
}

static bool is_over(unsigned stream)
{
    return app->stream_query(streams[stream]) == 0;
}

/* Waits for all left copies in all streams, but not for endless work in another stream. */
static void test_wait(void **state)
{
    (void)state;
    assert_true(pin(0, BLOCK, 1));
    assert_true(pin(BLOCK, BLOCK, 2));
    app->hold_stream(streams[2]);
    copy(0, 2);
    app->slow(20000);
    for (unsigned i = 0; i < 4; i++)
        assert_true(leave(i % 2 * BLOCK, i / 2));
    assert_false(is_over(0) && is_over(1));
    ibx_client_pins_wait(&pins, cuda);
    assert_true(is_over(0) && is_over(1));
    assert_false(is_over(2));
    app->slow(0);
    app->hold_stream(NULL);
    assert_int_equal(cuda->stream_synchronize(streams[2]), 0); /* no fence follows that work */
}

/* This thread captures a stream and may not wait; the wait must not fail. */
static void test_wait_while_capturing(void **state)
{
    (void)state;
    void *graph;
    int relaxed = IBX_CUDA_CAPTURE_RELAXED;
    assert_true(pin(0, BLOCK, 1));
    app->slow(20000);
    assert_int_equal(app->begin_capture(streams[2], IBX_CUDA_CAPTURE_GLOBAL), 0);
    assert_true(leave(0, 0));
    ibx_client_pins_wait(&pins, cuda);
    app->exchange_mode(&relaxed);
    assert_true(is_over(0));
    app->exchange_mode(&relaxed);
    /* until now it was the thread's own mode */
    assert_int_equal(relaxed, IBX_CUDA_CAPTURE_RELAXED);
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(app->end_capture(streams[2], &graph), 0);
}

/* Copies are waited for before the driver unpins, because unpinning would block other sessions
 * for that time. */
static void test_unpinned_after_copies_have_ended(void **state)
{
    (void)state;
    app->slow(20000);
    for (unsigned i = 0; i < 3; i++) { /* because other memory is at its address, and at the end */
        assert_true(pin(0, BLOCK, i));
        assert_true(leave(0, 0));
        assert_true(leave(0, 1));
    }
}

/* If no event can be recorded after a copy, the call waits for the copy at once. */
static void test_no_event(void **state)
{
    (void)state;
    assert_true(pin(0, BLOCK, 1));
    app->slow(20000);
    app->inject("cuEventRecord", 1, 400, false);
    assert_true(leave(0, 0));
    assert_true(is_over(0));
}

/* There is one stream more than fences. Its copy must not be left until a fence is free. */
static void test_many_streams(void **state)
{
    (void)state;
    assert_true(pin(0, BLOCK, 1));
    app->hold(true);
    assert_true(leave(0, 0));
    for (unsigned i = 1; i < IBX_STREAM_FENCES; i++) { /* as if 63 other streams had fences */
        pins.fences[i] =
            (struct ibx_stream_fence){.context = pins.fences[0].context, .stream = &pins.fences[i]};
        assert_int_equal(cuda->event_create(&pins.fences[i].event, 0), 0);
        assert_int_equal(cuda->event_record(pins.fences[i].event, streams[0]), 0);
        pins.pins[0].fences |= 1ull << i;
    }
    assert_true(leave(0, 0));
    assert_false(leave(0, 1));
    app->hold(false);
    assert_int_equal(app->stream_synchronize(streams[0]), 0);
    assert_true(leave(0, 1));
}

/* Events of a context that was reset do not exist any more. */
static void test_fences_of_a_reset_context(void **state)
{
    (void)state;
    assert_true(pin(0, BLOCK, 1));
    assert_true(leave(0, 0));
    reset();
    ibx_client_pins_forget(&pins, pins.fences[0].context);
    ibx_client_pins_wait(&pins, cuda);
    assert_true(pin(0, BLOCK, 1));
    assert_true(leave(0, 0));
}

/* Copies in other contexts are still waited for. */
static void test_fences_of_other_contexts_stay(void **state)
{
    (void)state;
    assert_true(pin(0, BLOCK, 1));
    app->slow(20000);
    assert_true(leave(0, 0));
    ibx_client_pins_forget(&pins, &pins); /* not a context of this client */
    ibx_client_pins_wait(&pins, cuda);
    assert_true(is_over(0));
    assert_true(leave(0, 0));
    ibx_client_pins_drop_fences(&pins, cuda); /* before a reset */
    assert_true(is_over(0));
    assert_int_equal(cuda_stats().events, 0);
}

/* Unused fences of one device make room for those of another. */
static void test_room_for_another_context(void **state)
{
    (void)state;
    void *context = NULL, *stream;
    assert_int_equal(cuda->ctx_get_current(&context), 0);
    for (unsigned i = 0; i < IBX_STREAM_FENCES; i++) {
        pins.fences[i] = (struct ibx_stream_fence){.context = context, .stream = &pins.fences[i]};
        assert_int_equal(cuda->event_create(&pins.fences[i].event, 0), 0);
    }
    cuda_application_use(1);
    assert_int_equal(app->stream_create(&stream, 1), 0);
    assert_true(pin(0, BLOCK, 1));
    assert_true(ibx_client_pin_fence(&pins, cuda, memory, stream));
    ibx_client_pin_fence_record(&pins, cuda, memory, KIB);
    ibx_client_pins_drop(&pins, cuda);
    cuda_application_use(0);
}

/* The current context has no event for a stream of another context. */
static void test_copy_in_another_context_is_not_left(void **state)
{
    (void)state;
    assert_true(pin(0, BLOCK, 1));
    cuda_application_use(1);
    assert_false(leave(0, 0));
    cuda_application_use(0);
    assert_false(leave(BLOCK, 0)); /* not pinned */
    assert_true(leave(0, 0));
}

/* Memory pinned by other connections counts too. If it takes the whole quota nothing is unpinned
 * in vain, and pinning is tried again later. */
static void test_quota(void **state)
{
    (void)state;
    static struct ibx_quota all, mine; /* used by the pins until drop() */
    all = (struct ibx_quota){.most = 100 * KIB};
    mine = (struct ibx_quota){.most = 80 * KIB, .of = &all};
    struct ibx_error err = {0};
    pins.quota = &mine;
    assert_true(pin(0, 40 * KIB, 1));
    assert_true(pin(40 * KIB, 40 * KIB, 2));
    assert_int_equal(all.used, 80 * KIB);
    assert_true(pin(80 * KIB, 40 * KIB, 3)); /* replaces the first one */
    assert_int_equal(mine.used, 80 * KIB);
    assert_true(ibx_quota_take(&all, 20 * KIB));
    assert_false(ibx_client_pin(&pins, cuda, memory + 200 * KIB, 81 * KIB, 4, true, &err));
    assert_int_equal(err.code, -EDQUOT);
    assert_non_null(strstr(err.message, "rdma.pins"));
    assert_int_equal(mine.used, 80 * KIB);
    assert_true(pin(0, 41 * KIB, 5)); /* replaces both */
    assert_int_equal(all.used, 61 * KIB);
    assert_true(ibx_quota_take(&all, 39 * KIB));
    assert_false(pin(100 * KIB, 42 * KIB, 6));
    ibx_quota_give(&all, 39 * KIB);
    assert_true(pin(100 * KIB, 39 * KIB, 6));
    assert_true(ibx_client_pin(&pins, cuda, memory, 41 * KIB, 5, true, NULL));
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(mine.used, 0);
    assert_int_equal(all.used, 20 * KIB);
    /* The sum stays right after CUDA's refusal and after a reset. */
    app->inject("cuMemHostRegister", 1, 2, false);
    assert_false(pin(0, 40 * KIB, 7));
    assert_int_equal(mine.used, 0);
    assert_true(pin(0, 40 * KIB, 8));
    reset();
    cuda_application_use(0);
    assert_true(pin(0, 40 * KIB, 8));
    assert_int_equal(mine.used, 40 * KIB);
}

/* Other memory needs the quota: the oldest pins make room, as few as will do. */
static void test_room_for_other_memory(void **state)
{
    (void)state;
    static struct ibx_quota quota; /* used by the pins until drop() */
    quota = (struct ibx_quota){.most = 100 * KIB};
    assert_true(ibx_client_pins_yield(&pins, cuda, UINT64_MAX)); /* without a quota */
    pins.quota = &quota;
    for (unsigned i = 0; i < 3; i++)
        assert_true(pin(i * 30 * KIB, 30 * KIB, 1 + i));
    assert_true(ibx_client_pins_yield(&pins, cuda, 10 * KIB));
    assert_int_equal(pins.bytes, 90 * KIB);
    pins.works = works;
    busy = true;
    assert_true(ibx_client_pins_yield(&pins, cuda, 10 * KIB) && !pins.put_off);
    assert_false(ibx_client_pins_yield(&pins, cuda, 11 * KIB));
    assert_true(pins.put_off);
    busy = false;
    assert_true(leave(0, 0)); /* a copy that is waited for */
    assert_true(ibx_client_pins_yield(&pins, cuda, 11 * KIB) && !pins.put_off);
    assert_true(is_over(0));
    assert_int_equal(pins.bytes, 60 * KIB);
    assert_true(ibx_quota_take(&quota, 40 * KIB));
    assert_false(ibx_client_pins_yield(&pins, cuda, 61 * KIB)); /* more than there is */
    assert_int_equal(pins.bytes, 60 * KIB);
    assert_true(ibx_client_pins_yield(&pins, cuda, 60 * KIB));
    assert_int_equal(cuda_stats().host_pins, 0);
}

/* Pages that the client has not touched are not allocated by pinning. */
static void test_untouched_pages(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    struct stat status;
    int fd = memfd_create("client", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 4 << 20), 0);
    uint8_t *map = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    pins.bytes_max = 8 << 20;
    assert_true(map != MAP_FAILED);
    assert_false(ibx_client_pin(&pins, cuda, map, 4 << 20, 1, true, &err));
    assert_int_equal(err.code, -ENODATA);
    assert_int_equal(fstat(fd, &status), 0);
    assert_int_equal(status.st_blocks, 0);
    memset(map, 1, (4 << 20) - 4096); /* all but the last page */
    assert_false(ibx_client_pin(&pins, cuda, map, 4 << 20, 1, true, NULL));
    assert_true(ibx_client_pin(&pins, cuda, map, 1 << 20, 2, true, NULL));
    map[(4 << 20) - 4096] = 1;
    assert_true(ibx_client_pin(&pins, cuda, map, 4 << 20, 1, true, NULL));
    ibx_client_pins_drop(&pins, cuda);
    munmap(map, 4 << 20);
    close(fd);
}

static int set_up_group(void **state)
{
    memset(memory, 1, sizeof(memory));
    if (find_cuda(state))
        return -1;
    make_streams();
    assert_int_equal(app->mem_alloc(&device, 3 * KIB), 0);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_pinned_once),
        TEST(test_new_allocation_at_the_same_address),
        TEST(test_shorter_allocation_of_the_same_pages),
        TEST(test_nothing_is_unpinned_beside_work),
        TEST(test_longer_allocation_beside_work),
        TEST(test_copies_of_parts),
        TEST(test_bounds),
        TEST(test_bytes_that_end_with_the_room),
        TEST(test_in_turn),
        TEST(test_quota),
        TEST(test_room_for_other_memory),
        TEST(test_untouched_pages),
        TEST(test_refused),
        TEST(test_reset),
        TEST(test_refused_after_a_reset),
        TEST(test_errors_of_others),
        TEST(test_dropped_elsewhere),
        TEST(test_dropped_in_its_context),
        TEST(test_wait),
        TEST(test_wait_while_capturing),
        TEST(test_unpinned_after_copies_have_ended),
        TEST(test_no_event),
        TEST(test_many_streams),
        TEST(test_fences_of_a_reset_context),
        TEST(test_fences_of_other_contexts_stay),
        TEST(test_room_for_another_context),
        TEST(test_copy_in_another_context_is_not_left),
    };
    return cmocka_run_group_tests_name("pins", tests, set_up_group, NULL);
}
