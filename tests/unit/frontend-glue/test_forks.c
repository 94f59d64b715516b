/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The streams that have joined a capture, as it is split: what they record and wait for. */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/in_child.h"

#include <pthread.h>
#include <string.h>

/* ------------------------------------------------------------ replaced functions of other files */

static char first, joined, other, event, later, roots[8];
static struct {
    bool captured;            /* whether CUDA captures streams */
    int take, records, waits; /* what calls return */
    const void *far;          /* a stream of device 1 */
} is;
static struct {
    unsigned taken, given_back, records, waits;
    unsigned bad; /* of those that were given back */
    const void *waited[8], *awaited[8], *recorded[8], *recorded_in[8];
    int device, event_device;
} was;

int ibx_frontend_fail(int code)
{
    return code;
}
int ibx_frontend_current_device(void)
{
    return was.device;
}
int ibx_frontend_stream_device(const void *stream)
{
    return stream == is.far;
}
int cudaSetDevice(int device)
{
    was.device = device;
    return 0;
}
int ibx_frontend_event_take(struct ibx_kept_event *own)
{
    if (is.take)
        return is.take;
    was.event_device = was.device;
    own->event = &roots[was.taken++ % sizeof(roots)];
    return 0;
}
void ibx_frontend_event_give_back(const struct ibx_kept_event *own, bool good)
{
    (void)own;
    was.given_back++;
    was.bad += !good;
}
int ibx_frontend_event_record(void *of, void *stream)
{
    was.recorded[was.records % 8] = of;
    was.recorded_in[was.records++ % 8] = stream;
    return is.records;
}
int ibx_frontend_stream_wait_event(void *stream, void *of, unsigned flags)
{
    (void)flags;
    was.waited[was.waits % 8] = stream;
    was.awaited[was.waits++ % 8] = of;
    return is.waits;
}
int cudaStreamIsCapturing(void *stream, int *status)
{
    (void)stream;
    *status = is.captured;
    return 0;
}

/* ------------------------------------------------------------ steps */

static struct ibx_forks *f;

static int begin(void **state)
{
    (void)state;
    memset(&is, 0, sizeof(is));
    memset(&was, 0, sizeof(was));
    is.captured = true;
    f = ibx_frontend_forks_begin(&first);
    return !f;
}

static int end(void **state)
{
    const unsigned bad = was.bad;
    (void)state;
    ibx_frontend_forks_end(f);
    return was.taken != was.given_back || was.bad != bad || ibx_frontend_forks_of(&first) ||
           ibx_frontend_forks_of(&joined);
}

static void joins(void *stream)
{
    ibx_frontend_forks_recorded(&event, &first);
    ibx_frontend_forks_waited(stream, &event);
}

static void is_split(void)
{
    assert_int_equal(ibx_frontend_forks_split(f), 0);
    assert_int_equal(ibx_frontend_forks_go_on(f), 0);
}

/* ------------------------------------------------------------ tests */

static void nothing_has_joined(NO_STATE)
{
    is_split();
    assert_false(ibx_frontend_forks_any(f));
    assert_int_equal(ibx_frontend_forks_join(f), 0);
    assert_int_equal(was.taken + was.records + was.waits, 0);
    assert_int_equal(ibx_frontend_forks_split(NULL), 0);
    assert_int_equal(ibx_frontend_forks_go_on(NULL), 0);
}

/* It comes back before the split, and is forked behind it; at the end it comes back again. */
static void a_stream_has_joined(NO_STATE)
{
    joins(&joined);
    assert_ptr_equal(ibx_frontend_forks_of(&joined), f);
    assert_true(ibx_frontend_forks_any(f));
    assert_int_equal(ibx_frontend_forks_join(f), 0); /* as long as there was no split: its own */
    assert_int_equal(was.waits, 0);
    assert_int_equal(ibx_frontend_forks_split(f), 0);
    assert_int_equal(was.records, 1);
    assert_ptr_equal(was.recorded_in[0], &joined);
    assert_int_equal(was.waits, 1);
    assert_ptr_equal(was.waited[0], &first);
    assert_ptr_equal(was.awaited[0], was.recorded[0]);
    assert_int_equal(ibx_frontend_forks_go_on(f), 0);
    assert_ptr_equal(was.recorded_in[1], &first);
    assert_ptr_equal(was.waited[1], &joined);
    assert_ptr_equal(was.awaited[1], ibx_frontend_forks_event(&event));
    assert_ptr_equal(was.awaited[1], was.recorded[1]);
    assert_ptr_not_equal(was.recorded[1], was.recorded[0]);
    assert_int_equal(ibx_frontend_forks_join(f), 0);
    assert_ptr_equal(was.recorded_in[2], &joined);
    assert_ptr_equal(was.waited[2], &first);
    assert_int_equal(was.bad, 0);
}

/* However often it has waited; and also if the event is no more. */
static void a_stream_joins_once(NO_STATE)
{
    joins(&joined);
    joins(&joined);
    ibx_frontend_forks_event_gone(&event);
    is_split();
    assert_int_equal(was.records, 2);
    assert_int_equal(was.waits, 2);
}

static void the_legacy_stream_never_joins(NO_STATE)
{
    joins(NULL);
    joins((void *)1);
    assert_false(ibx_frontend_forks_any(f));
}

/* Each thread's own stream is another one. */
static void *is_captured_by_own(void *unused)
{
    return ibx_frontend_forks_of(CUDA_STREAM_PER_THREAD) ? &other : unused;
}

static void a_threads_own_stream_is_captured(NO_STATE)
{
    pthread_t thread;
    void *known;
    struct ibx_forks *own = ibx_frontend_forks_begin(CUDA_STREAM_PER_THREAD);
    assert_ptr_equal(ibx_frontend_forks_of(CUDA_STREAM_PER_THREAD), own);
    assert_int_equal(pthread_create(&thread, NULL, is_captured_by_own, NULL), 0);
    assert_int_equal(pthread_join(thread, &known), 0);
    assert_null(known);
    ibx_frontend_forks_end(own);
    assert_null(ibx_frontend_forks_of(CUDA_STREAM_PER_THREAD));
}

/* Whichever has begun first. */
static void a_capture_ends_beside_another(NO_STATE)
{
    struct ibx_forks *another = ibx_frontend_forks_begin(&other);
    ibx_frontend_forks_end(f);
    assert_null(ibx_frontend_forks_of(&first));
    assert_ptr_equal(ibx_frontend_forks_of(&other), another);
    f = another;
}

/* An event of an earlier part stands for the beginning of this one, until it is recorded again, in
 * the capture or elsewhere, or is no more. */
static void events_of_earlier_parts(NO_STATE)
{
    ibx_frontend_forks_recorded(&event, &first);
    assert_ptr_equal(ibx_frontend_forks_event(&event), &event);
    is_split();
    assert_ptr_not_equal(ibx_frontend_forks_event(&event), &event);
    assert_ptr_equal(ibx_frontend_forks_event(&later), &later);
    ibx_frontend_forks_waited(&joined, &event);
    assert_ptr_equal(ibx_frontend_forks_of(&joined), f);
    ibx_frontend_forks_recorded(&event, &joined);
    assert_ptr_equal(ibx_frontend_forks_event(&event), &event);
    is_split();
    assert_ptr_not_equal(ibx_frontend_forks_event(&event), &event);
    ibx_frontend_forks_recorded(&event, &other);
    assert_ptr_equal(ibx_frontend_forks_event(&event), &event);
    ibx_frontend_forks_waited(&other, &event);
    assert_null(ibx_frontend_forks_of(&other));
    ibx_frontend_forks_recorded(&later, &first);
    is_split();
    ibx_frontend_forks_event_gone(&later);
    assert_ptr_equal(ibx_frontend_forks_event(&later), &later);
}

/* Until it is recorded elsewhere, or destroyed, or the capture is over. */
static void an_event_is_captured(NO_STATE)
{
    struct ibx_forks *another = ibx_frontend_forks_begin(&other);
    assert_false(ibx_frontend_forks_captured(&event));
    ibx_frontend_forks_recorded(&event, &first);
    ibx_frontend_forks_recorded(&later, &other);
    assert_true(ibx_frontend_forks_captured(&event));
    assert_true(ibx_frontend_forks_captured(&later));
    is_split();
    assert_true(ibx_frontend_forks_captured(&event));
    ibx_frontend_forks_recorded(&event, &joined); /* which is in no capture */
    assert_false(ibx_frontend_forks_captured(&event));
    ibx_frontend_forks_recorded(&event, &first);
    ibx_frontend_forks_recorded(&joined, &first); /* another event of the same capture */
    ibx_frontend_forks_event_gone(&joined);
    assert_true(ibx_frontend_forks_captured(&event));
    ibx_frontend_forks_event_gone(&event);
    assert_false(ibx_frontend_forks_captured(&event));
    ibx_frontend_forks_end(another);
    assert_false(ibx_frontend_forks_captured(&later));
}

static void *join_by_own(void *unused)
{
    ibx_frontend_forks_waited(CUDA_STREAM_PER_THREAD, &event);
    return ibx_frontend_forks_of(CUDA_STREAM_PER_THREAD) ? unused : &other;
}

/* This thread cannot name it: the capture stays as it is. */
static void another_threads_own_stream(NO_STATE)
{
    pthread_t thread;
    void *unknown;
    joins(&joined);
    assert_int_equal(pthread_create(&thread, NULL, join_by_own, NULL), 0);
    assert_int_equal(pthread_join(thread, &unknown), 0);
    assert_null(unknown);
    assert_null(ibx_frontend_forks_of(CUDA_STREAM_PER_THREAD));
    assert_int_equal(ibx_frontend_forks_split(f), CUDA_NOT_SUPPORTED);
    assert_int_equal(was.records + was.waits, 0);
    ibx_frontend_forks_waited(CUDA_STREAM_PER_THREAD, &event); /* this one's is another stream */
    assert_ptr_equal(ibx_frontend_forks_of(CUDA_STREAM_PER_THREAD), f);
}

/* It was destroyed, or CUDA has never let it join. */
static void a_stream_has_left(NO_STATE)
{
    joins(&joined);
    joins(&other);
    joins(&later);
    ibx_frontend_forks_stream_gone(&later);
    assert_null(ibx_frontend_forks_of(&later));
    assert_ptr_equal(ibx_frontend_forks_of(&other), f);
    ibx_frontend_forks_stream_gone(&joined);
    assert_null(ibx_frontend_forks_of(&joined));
    is.captured = false;
    is_split();
    assert_int_equal(was.waits, 0);
    assert_null(ibx_frontend_forks_of(&other));
}

static void it_fails(NO_STATE)
{
    joins(&joined);
    joins(&other);
    is.take = CUDA_MEMORY_ALLOCATION;
    assert_int_equal(ibx_frontend_forks_split(f), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(was.records, 0);
    is.take = 0;
    is.waits = CUDA_INVALID_VALUE;
    assert_int_equal(ibx_frontend_forks_split(f), CUDA_INVALID_VALUE);
    assert_int_equal(was.waits, 1); /* and for no other stream */
    assert_int_equal(was.bad, 1);
    assert_int_equal(ibx_frontend_forks_go_on(f), CUDA_INVALID_VALUE);
    assert_int_equal(was.waits, 2);
    is.waits = 0;
    is.records = CUDA_INVALID_VALUE;
    assert_int_equal(ibx_frontend_forks_go_on(f), CUDA_INVALID_VALUE);
    assert_int_equal(was.waits, 2);
}

/* An event is of the device of the stream in which it is recorded. */
static void streams_of_other_devices(NO_STATE)
{
    joins(&joined);
    is.far = &joined;
    assert_int_equal(ibx_frontend_forks_split(f), 0);
    assert_int_equal(was.event_device, 1);
    assert_int_equal(was.device, 0);
}

static int nothing_is_known(void)
{
    return ibx_frontend_forks_of(&first) ? 1 : 0;
}

static void a_child_has_no_capture(NO_STATE)
{
    passes_in_child(nothing_is_known);
}

static void the_root_is_lost(NO_STATE)
{
    joins(&joined);
    is_split();
    ibx_frontend_forks_lose_root(f);
    was.given_back++;
    assert_ptr_equal(ibx_frontend_forks_event(&event), &event);
    ibx_frontend_forks_lose_root(NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nothing_has_joined),
        TEST(a_stream_has_joined),
        TEST(a_stream_joins_once),
        TEST(the_legacy_stream_never_joins),
        TEST(a_threads_own_stream_is_captured),
        TEST(a_capture_ends_beside_another),
        TEST(events_of_earlier_parts),
        TEST(an_event_is_captured),
        TEST(another_threads_own_stream),
        TEST(a_stream_has_left),
        TEST(it_fails),
        TEST(streams_of_other_devices),
        TEST(a_child_has_no_capture),
        TEST(the_root_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
