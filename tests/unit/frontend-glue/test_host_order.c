/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* In which streams this process waits before it uses host memory itself, how, and what it then
 * takes to be over. Everything around host_order.c is simulated. */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

/* A blocking stream, one that is not, and a blocking one of another device. */
#define BLOCKING ((void *)0x10)
#define APART    ((void *)0x11)
#define SECOND   ((void *)0x20)
#define LEGACY   ((void *)1) /* cudaStreamLegacy */

static struct {
    bool attached, captured, forbidden, legacy_rests, all_rests, no_event, gone;
    int device, wait_fails, record_fails, back_fails;
    unsigned stream_waits, device_waits, events, kept, dropped, times, relaxed;
    void *in; /* where an event was recorded */
    int on;   /* the device then */
    uint64_t legacy_over, all_over;
} now;

static uint64_t legacy_left(void)
{
    return 7;
}

static uint64_t all_left(void)
{
    return 9;
}

static void legacy_over(uint64_t mark)
{
    now.legacy_over = mark;
}

static void all_over(uint64_t mark)
{
    now.all_over = mark;
}

const struct ibx_frontend_calls *ibx_frontend_plugin(void)
{
    static const struct ibx_frontend_calls calls = {.legacy_left = legacy_left,
                                                    .all_left = all_left,
                                                    .legacy_over = legacy_over,
                                                    .all_over = all_over};
    return now.attached ? &calls : NULL;
}

bool ibx_frontend_knows(enum ibx_frontend_fact fact, uint64_t handle, int *answer)
{
    assert_true(!handle && !answer);
    return fact == IBX_FRONTEND_LEGACY_RESTS ? now.legacy_rests
                                             : fact == IBX_FRONTEND_ALL_RESTS && now.all_rests;
}

bool ibx_frontend_stream_blocks(const void *stream)
{
    return stream != APART;
}

bool ibx_frontend_captures(void *stream)
{
    return now.captured && (uintptr_t)stream > 1;
}

bool ibx_frontend_forbidden(int *rc)
{
    *rc = CUDA_CAPTURE_UNSUPPORTED;
    return now.forbidden;
}

int ibx_frontend_relax(void)
{
    now.relaxed++;
    return 0;
}

void ibx_frontend_relax_end(int mode)
{
    (void)mode;
    now.relaxed--;
}

int ibx_frontend_current_device(void)
{
    return now.device;
}

int ibx_frontend_device_of_stream(const void *stream)
{
    return stream == SECOND ? 1 : now.device;
}

int cudaSetDevice(int device)
{
    now.device = device;
    return !device ? now.back_fails : 0;
}

int ibx_frontend_event_take(struct ibx_kept_event *own)
{
    own->event = &now;
    return now.no_event ? CUDA_MEMORY_ALLOCATION : 0;
}

void ibx_frontend_event_give_back(const struct ibx_kept_event *own, bool good)
{
    assert_ptr_equal(own->event, &now);
    now.kept += good;
    now.dropped += !good;
}

static int record(void *stream)
{
    assert_int_equal(now.relaxed, 1);
    now.events++;
    now.in = stream;
    now.on = now.device;
    return now.record_fails;
}

int ibx_frontend_event_record(void *event, void *stream)
{
    assert_ptr_equal(event, &now);
    return record(stream);
}

int cudaEventRecord(void *event, void *stream)
{
    assert_ptr_equal(event, &now.times);
    return record(stream);
}

int cudaEventSynchronize(void *event)
{
    assert_ptr_equal(event, &now);
    return now.wait_fails;
}

static int make_event(void **event, unsigned flags)
{
    assert_int_equal(flags, 0); /* with a time */
    *event = &now.times;
    now.times++;
    return now.no_event ? CUDA_MEMORY_ALLOCATION : 0;
}

int cudaEventDestroy(void *event)
{
    assert_ptr_equal(event, &now.times);
    now.dropped++;
    return 0;
}

void *ibx_frontend_next(_Atomic(void *) *found, const char *name)
{
    int (*const make)(void **event, unsigned flags) = make_event;
    void *function = NULL;
    (void)found;
    assert_string_equal(name, "cudaEventCreateWithFlags");
    memcpy(&function, &make, sizeof(function));
    return function;
}

bool ibx_frontend_first_begins(void)
{
    return true;
}

void ibx_frontend_first_is_over(void) {}

int ibx_frontend_device_wait_within(void)
{
    now.device_waits++;
    return 0;
}

int ibx_frontend_stream_wait(void *stream)
{
    (void)stream;
    now.stream_waits++;
    return 0;
}

bool ibx_frontend_host_gone(const void *stream)
{
    (void)stream;
    return now.gone;
}

int ibx_frontend_fail(int code)
{
    return code;
}

/* ------------------------------------------------------------------------------ the waits */

static int begin(void **state)
{
    (void)state;
    memset(&now, 0, sizeof(now));
    now.attached = true;
    return 0;
}

/* A wait for the stream is enough, unless the legacy stream may have work before it. */
static void test_waits_for_the_stream(void **state)
{
    (void)state;
    assert_int_equal(ibx_frontend_wait_in_order(APART), 0);
    now.legacy_rests = true;
    assert_int_equal(ibx_frontend_wait_in_order(BLOCKING), 0);
    now.legacy_rests = false;
    now.captured = true;
    assert_int_equal(ibx_frontend_wait_in_order(BLOCKING), 0);
    assert_int_equal(now.stream_waits, 3);
    assert_true(!now.events && !now.legacy_over && !now.all_over);
}

/* Otherwise the wait is one for an event; it tells what is over then. */
static void test_waits_by_event(void **state)
{
    (void)state;
    now.captured = true; /* other streams are */
    for (uintptr_t legacy = 0; legacy < 2; legacy++) {
        now.legacy_rests = legacy;
        assert_int_equal(ibx_frontend_wait_in_order((void *)legacy), 0);
        assert_true(now.legacy_over == 7 && now.all_over == 9);
        assert_ptr_equal(now.in, (void *)legacy);
        now.legacy_over = now.all_over = 0;
    }
    now.captured = now.legacy_rests = false;
    assert_int_equal(ibx_frontend_wait_in_order(BLOCKING), 0);
    assert_true(now.legacy_over == 7 && !now.all_over);
    assert_int_equal(now.kept, 3);
    assert_int_equal(now.stream_waits + now.device_waits + now.dropped + now.relaxed, 0);
}

static void test_waits_on_the_streams_device(void **state)
{
    (void)state;
    assert_int_equal(ibx_frontend_wait_in_order(SECOND), 0);
    assert_true(now.on == 1 && now.device == 0);
    now.back_fails = 46;
    assert_int_equal(ibx_frontend_wait_in_order(SECOND), 46);
    now.device = 0;
    now.wait_fails = 700;
    assert_int_equal(ibx_frontend_wait_in_order(SECOND), 700);
    assert_int_equal(now.device, 0);
}

/* What has failed is not taken to be over. */
static void test_waits_fail(void **state)
{
    (void)state;
    now.forbidden = true;
    assert_int_equal(ibx_frontend_wait_in_order(NULL), CUDA_CAPTURE_UNSUPPORTED);
    assert_int_equal(ibx_frontend_wait_in_order(APART), CUDA_CAPTURE_UNSUPPORTED);
    assert_int_equal(now.events + now.stream_waits, 0);
    now.forbidden = false;
    now.record_fails = 400;
    assert_int_equal(ibx_frontend_wait_in_order(NULL), 400);
    now.record_fails = 0;
    now.wait_fails = 700;
    assert_int_equal(ibx_frontend_wait_in_order(NULL), 700);
    assert_int_equal(now.dropped, 2);
    now.wait_fails = 0;
    now.gone = true; /* its function will never be called */
    assert_int_equal(ibx_frontend_wait_in_order(NULL), CUDA_UNKNOWN);
    assert_true(!now.legacy_over && !now.all_over);
    now.gone = false;
    now.no_event = true;
    assert_int_equal(ibx_frontend_wait_in_order(NULL), 0);
    assert_int_equal(now.device_waits, 1);
    now.attached = now.no_event = false;
    now.legacy_over = 0;
    assert_int_equal(ibx_frontend_wait_in_order(NULL), 0);
    assert_int_equal(now.legacy_over, 0);
}

static void test_waits_for_work(void **state)
{
    (void)state;
    now.all_rests = true;
    assert_int_equal(ibx_frontend_wait_for_work(NULL), 0);
    assert_int_equal(ibx_frontend_wait_for_work(BLOCKING), 0);
    assert_int_equal(now.events + now.stream_waits, 0);
    assert_int_equal(ibx_frontend_wait_for_work(APART), 0);
    assert_int_equal(now.stream_waits, 1);
    now.all_rests = false;
    assert_int_equal(ibx_frontend_wait_for_work(NULL), 0);
    assert_int_equal(now.events, 1);
    now.attached = false;
    assert_int_equal(ibx_frontend_wait_for_work(NULL), 0);
    assert_int_equal(now.events, 1);
}

/* ------------------------------------------------------------------------------ the order */

/* How many events the call records in the stream, and its result. */
static unsigned orders(int (*order)(void *stream), void *stream, int rc)
{
    const unsigned before = now.events;
    assert_int_equal(order(stream), rc);
    assert_int_equal(now.relaxed, 0);
    return now.events - before;
}

static void test_order(void **state)
{
    (void)state;
    assert_int_equal(orders(ibx_frontend_order_work, BLOCKING, 0), 1);
    assert_int_equal(orders(ibx_frontend_order_work, LEGACY, 0), 1);
    assert_int_equal(orders(ibx_frontend_order_work, APART, 0), 0);
    assert_int_equal(orders(ibx_frontend_order_work, SECOND, 0), 1);
    assert_int_equal(now.on, 1);
    assert_int_equal(now.dropped, now.times);
    now.legacy_rests = true;
    assert_int_equal(orders(ibx_frontend_order_work, BLOCKING, 0), 0);
    assert_int_equal(orders(ibx_frontend_order_work, NULL, 0), 1);
    assert_int_equal(orders(ibx_frontend_order_work, LEGACY, 0), 1);
    now.all_rests = true;
    assert_int_equal(orders(ibx_frontend_order_work, NULL, 0), 0);
    now.legacy_rests = false;
    assert_int_equal(orders(ibx_frontend_order_work, BLOCKING, 0), 0);
    now.all_rests = false;
    now.forbidden = true;
    assert_int_equal(orders(ibx_frontend_order_work, NULL, CUDA_CAPTURE_UNSUPPORTED), 0);
    now.forbidden = false;
    now.record_fails = 400;
    assert_int_equal(orders(ibx_frontend_order_work, NULL, 400), 1);
    now.no_event = true;
    assert_int_equal(orders(ibx_frontend_order_work, NULL, CUDA_MEMORY_ALLOCATION), 0);
}

static void test_order_of_legacy(void **state)
{
    (void)state;
    assert_int_equal(orders(ibx_frontend_order_legacy, NULL, 0), 1);
    assert_int_equal(orders(ibx_frontend_order_legacy, LEGACY, 0), 1);
    assert_int_equal(orders(ibx_frontend_order_legacy, BLOCKING, 0), 0);
    assert_int_equal(orders(ibx_frontend_order_legacy, CUDA_STREAM_PER_THREAD, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_waits_for_the_stream, begin),
        cmocka_unit_test_setup(test_waits_by_event, begin),
        cmocka_unit_test_setup(test_waits_on_the_streams_device, begin),
        cmocka_unit_test_setup(test_waits_fail, begin),
        cmocka_unit_test_setup(test_waits_for_work, begin),
        cmocka_unit_test_setup(test_order, begin),
        cmocka_unit_test_setup(test_order_of_legacy, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
