/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The streams that a process has made, threads' own streams, and how all of them are waited for
 * while one is captured. CUDA is simulated. */
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/in_child.h"
#include "tests/unit/frontend-glue/next_calls.h"

#include <pthread.h>

#define OWN          CUDA_STREAM_PER_THREAD
#define NON_BLOCKING 1u
#define MOST         16u

static struct {
    bool capturing, own_captured, two_devices, legacy_rests, relaxed, held;
    bool another_captured; /* another thread's own stream is */
    unsigned rested;       /* threads whose captured own stream had no work */
    const void *captured;  /* a stream */
    int device, selected, event_device;
    int create_fails, record_fails, wait_fails, event_wait_fails, event_create_fails;
    int legacy_fails;                 /* once */
    uintptr_t made;                   /* the next stream's handle */
    _Atomic unsigned events, records; /* by several threads */
    unsigned waits, legacy_waits, event_waits, device_waits;
    unsigned stream_waits; /* of the waits, those for a stream itself, and not by an event */
    const void *waited[MOST], *events_waited[MOST];
    const void *gone;   /* a stream that is destroyed meanwhile */
    const void *behind; /* the stream whose work an event is behind */
    int error;
} is;

int ibx_frontend_fail(int code)
{
    return is.error = code;
}
int ibx_frontend_current_device(void)
{
    return is.device;
}
bool ibx_frontend_one_device(void)
{
    return !is.two_devices;
}
void ibx_frontend_look_for_libraries(void) {}
bool ibx_frontend_capturing(void)
{
    return is.capturing;
}
bool ibx_frontend_may_capture(void *stream)
{
    return ibx_frontend_captures(stream);
}
bool ibx_frontend_captures(void *stream)
{
    return is.capturing && (stream == OWN ? is.own_captured : stream == is.captured);
}
bool ibx_frontend_threads_capture(unsigned *rested)
{
    *rested = is.rested;
    return is.own_captured || is.another_captured;
}
bool ibx_frontend_knows(enum ibx_frontend_fact fact, uint64_t handle, int *answer)
{
    (void)handle, (void)answer;
    return fact == IBX_FRONTEND_LEGACY_RESTS && is.legacy_rests;
}
void ibx_frontend_each_device(void (*visit)(int device))
{
    for (int device = 0; device <= is.two_devices; device++) {
        is.selected = device;
        visit(device);
    }
    is.selected = is.device;
}

static int made(void **stream)
{
    if (!is.create_fails)
        *stream = (void *)is.made;
    return is.create_fails;
}
static int next_cudaStreamCreate(void **stream)
{
    return made(stream);
}
static int next_cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    (void)flags;
    return made(stream);
}
static int next_cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    return made(stream);
}
static int next_cudaStreamSynchronize(void *stream)
{
    if (!stream) {
        const int rc = is.legacy_fails;
        is.legacy_waits++;
        is.legacy_fails = 0;
        return rc;
    }
    is.stream_waits++;
    is.waited[is.waits++ % MOST] = stream;
    return stream == is.gone ? CUDA_INVALID_HANDLE : is.wait_fails;
}
static int next_cudaDeviceSynchronize(void)
{
    is.device_waits++;
    return is.wait_fails;
}
static int next_cudaEventCreateWithFlags(void **event, unsigned flags)
{
    assert_int_equal(flags, 2); /* without timing */
    if (!is.event_create_fails)
        *event = (void *)(uintptr_t)(0x9000 + is.events++);
    is.event_device = is.selected;
    return is.event_create_fails;
}
int ibx_frontend_captures_hold(void)
{
    is.held = true;
    return 2;
}
void ibx_frontend_captures_let_go(int cancel)
{
    assert_int_equal(cancel, 2);
    is.held = false;
}
/* A capture that had begun would have the event, and a wait for that would end it. */
static int next_cudaEventRecord(void *event, void *stream)
{
    assert_true(event && is.held);
    assert_int_equal(ibx_frontend_stream_device(stream), is.event_device);
    is.waited[is.waits++ % MOST] = stream;
    is.behind = stream == is.gone ? NULL : stream;
    return stream == is.gone ? CUDA_INVALID_HANDLE : 0;
}
static int next_cudaEventSynchronize(void *event)
{
    assert_true(event && is.behind && is.relaxed && !is.held);
    is.behind = NULL;
    return is.wait_fails;
}
static int next_cudaEventDestroy(void *event)
{
    assert_non_null(event);
    is.events--;
    return 0;
}
int cudaEventRecord(void *event, void *stream)
{
    assert_non_null(event);
    assert_ptr_equal(stream, OWN);
    is.records++;
    return is.record_fails;
}
int ibx_frontend_relax(void)
{
    is.relaxed = true;
    return 1;
}
void ibx_frontend_relax_end(int mode)
{
    assert_int_equal(mode, 1);
    is.relaxed = false;
}
/* Beside another thread's capture it would be refused, and end that. */
int cudaEventSynchronize(void *event)
{
    assert_true(event && is.relaxed);
    is.events_waited[is.event_waits++ % MOST] = event;
    return is.event_wait_fails;
}

void *ibx_frontend_next(_Atomic(void *) *found, const char *symbol)
{
    (void)found;
    RETURN_NEXT(symbol, cudaStreamCreate);
    RETURN_NEXT(symbol, cudaStreamCreateWithFlags);
    RETURN_NEXT(symbol, cudaStreamCreateWithPriority);
    RETURN_NEXT(symbol, cudaStreamSynchronize);
    RETURN_NEXT(symbol, cudaDeviceSynchronize);
    RETURN_NEXT(symbol, cudaEventCreateWithFlags);
    RETURN_NEXT(symbol, cudaEventRecord);
    RETURN_NEXT(symbol, cudaEventSynchronize);
    RETURN_NEXT(symbol, cudaEventDestroy);
    return NULL;
}

static int begin(void **state)
{
    (void)state;
    memset(&is, 0, sizeof(is));
    ibx_frontend_streams_reset();
    ibx_frontend_stream_rests(OWN);
    ibx_frontend_threads_rest(ibx_frontend_threads_ended());
    is.made = 0x100;
    return 0;
}

static void *stream_made(unsigned flags)
{
    void *stream = NULL;
    is.made += 16;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, flags), 0);
    return stream;
}

/* ------------------------------------------------------------ streams of the process */

static void a_stream_is_known_until_it_is_gone(NO_STATE)
{
    struct range was;
    is.device = 1;
    void *blocking = stream_made(0), *apart = stream_made(NON_BLOCKING);
    is.device = 0;
    assert_true(ibx_frontend_stream_blocks(blocking));
    assert_false(ibx_frontend_stream_blocks(apart));
    assert_true(ibx_frontend_stream_blocks(NULL));
    assert_int_equal(ibx_frontend_stream_device(apart), 1);
    assert_int_equal(ibx_frontend_stream_device(NULL), 0);
    assert_true(ibx_frontend_stream_gone(apart, &was));
    assert_false(ibx_frontend_stream_gone(apart, &was));
    assert_true(ibx_frontend_stream_blocks(apart));
    assert_int_equal(ibx_frontend_stream_device(apart), 0);
    ibx_frontend_stream_stays(&was); /* it could not be destroyed */
    assert_false(ibx_frontend_stream_blocks(apart));
    assert_int_equal(ibx_frontend_stream_device(apart), 1);
}

static void every_call_that_makes_a_stream_notes_it(NO_STATE)
{
    struct range was;
    void *stream = NULL;
    assert_int_equal(cudaStreamCreate(&stream), 0);
    assert_true(ibx_frontend_stream_gone(stream, &was));
    assert_int_equal(was.flags, 0);
    assert_int_equal(cudaStreamCreateWithPriority(&stream, NON_BLOCKING, -1), 0);
    assert_true(ibx_frontend_stream_gone(stream, &was));
    assert_int_equal(was.flags, NON_BLOCKING);
    is.create_fails = 2;
    assert_int_equal(cudaStreamCreate(&stream), 2);
    assert_false(ibx_frontend_stream_gone((void *)is.made, &was));
    assert_int_equal(cudaStreamCreate(NULL), CUDA_INVALID_VALUE);
    assert_int_equal(cudaStreamCreateWithFlags(NULL, 0), CUDA_INVALID_VALUE);
    assert_int_equal(cudaStreamCreateWithPriority(NULL, 0, 0), CUDA_INVALID_VALUE);
}

/* The former one was destroyed unseen, and had other flags. */
static void a_handle_that_comes_again_is_a_new_stream(NO_STATE)
{
    struct range was;
    void *stream = stream_made(NON_BLOCKING);
    is.made -= 16;
    assert_ptr_equal(stream_made(0), stream);
    assert_true(ibx_frontend_stream_blocks(stream));
    assert_true(ibx_frontend_stream_gone(stream, &was));
    assert_false(ibx_frontend_stream_gone(stream, &was));
}

static void a_reset_forgets_streams(NO_STATE)
{
    struct range was;
    void *stream = stream_made(NON_BLOCKING);
    ibx_frontend_streams_reset();
    assert_false(ibx_frontend_stream_gone(stream, &was));
}

/* ------------------------------------------------------------ waits beside a capture */

static void all_streams_but_captured_ones_are_waited_for(NO_STATE)
{
    void *first = stream_made(0), *captured = stream_made(NON_BLOCKING), *last = stream_made(0);
    is.capturing = true;
    is.captured = captured;
    assert_int_equal(ibx_frontend_streams_rest(true), 0);
    assert_int_equal(is.waits, 2);
    assert_ptr_equal(is.waited[0], first);
    assert_ptr_equal(is.waited[1], last);
    assert_null(is.behind);
    assert_int_equal(is.events + is.stream_waits, 0);
    assert_int_equal(is.legacy_waits, 1);
}

/* An event is of one device. */
static void streams_of_another_device_are_waited_for_by_its_events(NO_STATE)
{
    is.device = 1;
    const void *there = stream_made(0);
    is.captured = stream_made(NON_BLOCKING);
    is.device = 0;
    is.capturing = is.two_devices = true;
    assert_int_equal(ibx_frontend_streams_rest(true), 0);
    assert_int_equal(is.stream_waits + is.events, 0);
    assert_true(is.waits == 1 && is.waited[0] == there);
}

static void without_an_event_streams_are_waited_for_themselves(NO_STATE)
{
    is.event_create_fails = 2;
    stream_made(0);
    is.capturing = true;
    assert_int_equal(ibx_frontend_streams_rest(true), 0);
    assert_int_equal(is.stream_waits, 1);
}

/* A wait for the legacy stream would invalidate the capture, so there can be no work in it. */
static void the_legacy_stream_is_left_out_if_a_captured_one_waits_for_it(NO_STATE)
{
    stream_made(0);
    is.captured = stream_made(0);
    stream_made(NON_BLOCKING);
    is.capturing = true;
    assert_int_equal(ibx_frontend_streams_rest(true), 0);
    assert_int_equal(is.waits, 2);
    assert_int_equal(is.legacy_waits, 0);
}

static void the_legacy_stream_of_each_device_is_waited_for_unless_it_rests(NO_STATE)
{
    is.capturing = is.two_devices = true;
    assert_int_equal(ibx_frontend_streams_rest(true), 0);
    assert_int_equal(is.legacy_waits, 2);
    is.legacy_fails = 700;
    assert_int_equal(ibx_frontend_streams_rest(true), 700);
    assert_int_equal(is.legacy_waits, 4);
    is.legacy_rests = true;
    assert_int_equal(ibx_frontend_streams_rest(true), 0);
    assert_int_equal(is.legacy_waits, 4);
}

static void a_stream_that_is_destroyed_meanwhile_is_no_error(NO_STATE)
{
    is.gone = stream_made(0);
    stream_made(0);
    stream_made(0);
    is.capturing = true;
    assert_int_equal(ibx_frontend_streams_rest(true), 0);
    assert_int_equal(is.waits, 3);
    is.wait_fails = 700;
    assert_int_equal(ibx_frontend_streams_rest(true), 700);
    assert_int_equal(is.waits, 5); /* and for none after the one that has failed */
    assert_int_equal(is.legacy_waits, 1);
}

/* ------------------------------------------------------------ threads' own streams */

static pthread_barrier_t turn;

static void waits_for_turn(void)
{
    pthread_barrier_wait(&turn);
}

static pthread_t threads[2];
static unsigned running;

static void start(void *(*thread)(void *), unsigned count)
{
    assert_int_equal(pthread_barrier_init(&turn, NULL, count + 1), 0);
    for (running = 0; running < count; running++)
        assert_int_equal(pthread_create(&threads[running], NULL, thread, NULL), 0);
}

static void await_end(void)
{
    while (running)
        assert_int_equal(pthread_join(threads[--running], NULL), 0);
    pthread_barrier_destroy(&turn);
}

/* A captured blocking stream: the legacy stream is not waited for, which would wait for threads'.
 */
static void captures_a_blocking_stream(void)
{
    is.captured = stream_made(0);
    is.capturing = true;
    ibx_frontend_own_work_note();
}

/* Whether all streams of threads can be waited for, and by how many events. */
static void assert_rests(int rc, unsigned events)
{
    is.event_waits = 0;
    assert_int_equal(ibx_frontend_streams_rest(true), rc);
    assert_int_equal(is.event_waits, events);
}

static void *works_unseen(void *nothing)
{
    ibx_frontend_stream_used(OWN);
    return nothing;
}

static void *works_and_rests(void *nothing)
{
    ibx_frontend_stream_used(OWN);
    ibx_frontend_stream_rests(OWN);
    return nothing;
}

/* Even when the thread has ended, until all of the device has been waited for. */
static void work_of_a_thread_cannot_be_waited_for(NO_STATE)
{
    captures_a_blocking_stream();
    assert_rests(0, 0);
    const unsigned before = ibx_frontend_threads_ended();
    start(works_and_rests, 1);
    await_end();
    assert_int_equal(ibx_frontend_threads_ended(), before);
    assert_rests(0, 0);
    start(works_unseen, 1);
    await_end();
    assert_int_equal(ibx_frontend_threads_ended(), before + 1);
    assert_rests(CUDA_CAPTURE_UNSUPPORTED, 0);
    stream_made(0);
    is.wait_fails = 700; /* which comes first */
    assert_rests(700, 0);
    is.wait_fails = 0;
    assert_int_equal(ibx_frontend_streams_rest(false), 0); /* nobody asks for all of it */
    ibx_frontend_threads_rest(before);
    assert_rests(CUDA_CAPTURE_UNSUPPORTED, 0);
    ibx_frontend_threads_rest(before + 1);
    assert_rests(0, 0);
    ibx_frontend_threads_rest(before); /* an earlier wait, which is told later */
    assert_rests(0, 0);
}

static void a_threads_own_stream_is_used_until_it_rests(NO_STATE)
{
    captures_a_blocking_stream();
    ibx_frontend_stream_used(NULL);
    ibx_frontend_stream_used((void *)0x100);
    assert_false(ibx_frontend_stream_is_used());
    ibx_frontend_stream_used(OWN);
    ibx_frontend_stream_used(OWN);
    assert_true(ibx_frontend_stream_is_used());
    assert_rests(CUDA_CAPTURE_UNSUPPORTED, 0);
    ibx_frontend_stream_rests((void *)0x100); /* another stream */
    assert_true(ibx_frontend_stream_is_used());
    is.two_devices = true; /* the other device's may have work */
    ibx_frontend_stream_rests(OWN);
    assert_true(ibx_frontend_stream_is_used());
    is.two_devices = false;
    ibx_frontend_stream_rests(NULL); /* all of the device */
    assert_false(ibx_frontend_stream_is_used());
    assert_rests(0, 0);
}

/* Its capture is the calling program's own: the stream had no work before. */
static void a_captured_own_stream_that_rested_is_not_waited_for(NO_STATE)
{
    is.captured = stream_made(NON_BLOCKING); /* which the legacy stream does not wait for */
    is.capturing = true;
    ibx_frontend_own_work_note();
    ibx_frontend_stream_used(OWN);
    is.own_captured = true;
    is.rested = 1;
    assert_rests(0, 0);
    assert_int_equal(is.legacy_waits, 0);
    is.rested = 0;
    assert_rests(CUDA_CAPTURE_UNSUPPORTED, 0);
}

static void an_event_covers_a_threads_work(NO_STATE)
{
    captures_a_blocking_stream();
    ibx_frontend_stream_used(OWN);
    ibx_frontend_stream_worked(OWN);
    assert_int_equal(is.records, 1);
    assert_rests(0, 1);
    is.event_wait_fails = 700;
    assert_rests(CUDA_CAPTURE_UNSUPPORTED, 1);
    is.event_wait_fails = 0;
    ibx_frontend_stream_used(OWN); /* more work, which is not behind the event yet */
    assert_rests(CUDA_CAPTURE_UNSUPPORTED, 0);
    ibx_frontend_stream_worked(OWN);
    assert_int_equal(is.events, 1);
    assert_rests(0, 1);
    is.record_fails = 400;
    ibx_frontend_stream_worked(OWN);
    assert_rests(CUDA_CAPTURE_UNSUPPORTED, 0);
}

static void an_event_is_recorded_only_where_it_helps(NO_STATE)
{
    captures_a_blocking_stream();
    ibx_frontend_stream_used(OWN);
    ibx_frontend_stream_worked((void *)0x100);
    is.two_devices = true;
    ibx_frontend_stream_worked(OWN);
    is.two_devices = false;
    is.own_captured = true; /* what is captured has not run */
    ibx_frontend_stream_worked(OWN);
    is.own_captured = is.capturing = false;
    ibx_frontend_stream_worked(OWN);
    assert_int_equal(is.records, 0);
    is.capturing = true;
    ibx_frontend_stream_worked(OWN);
    assert_int_equal(is.records, 1);
    is.another_captured = true; /* this thread's has run */
    ibx_frontend_stream_worked(OWN);
    assert_int_equal(is.records, 2);
}

/* A reset destroys the event; there is no work then, but new work needs another one. */
static void a_reset_forgets_events(NO_STATE)
{
    captures_a_blocking_stream();
    ibx_frontend_stream_used(OWN);
    ibx_frontend_stream_worked(OWN);
    const unsigned before = is.events;
    ibx_frontend_streams_reset();
    assert_int_equal(ibx_frontend_streams_rest(true), 0); /* nothing is captured any more */
    captures_a_blocking_stream();
    assert_rests(CUDA_CAPTURE_UNSUPPORTED, 0);
    ibx_frontend_stream_worked(OWN);
    assert_int_equal(is.events, before + 1);
    assert_rests(0, 1);
}

static void *works(void *nothing)
{
    ibx_frontend_stream_used(OWN);
    ibx_frontend_stream_worked(OWN);
    waits_for_turn();
    waits_for_turn();
    return nothing;
}

/* Nothing is under way in a stream that rests, so its event is not waited for; it must not stand
 * for another thread's. */
static void an_event_of_a_stream_that_rests_is_not_waited_for(NO_STATE)
{
    captures_a_blocking_stream();
    ibx_frontend_stream_used(OWN);
    ibx_frontend_stream_worked(OWN);
    ibx_frontend_stream_rests(OWN);
    assert_rests(0, 0);
    start(works, 1);
    waits_for_turn();
    assert_rests(0, 1);
    ibx_frontend_stream_worked(OWN); /* work that it could not use */
    assert_rests(0, 1);
    waits_for_turn();
    await_end();
}

/* The stream of one thread is captured and has no work; another one has an event. */
static void an_event_covers_work_beside_a_captured_own_stream(NO_STATE)
{
    captures_a_blocking_stream();
    ibx_frontend_stream_used(OWN);
    start(works, 1);
    waits_for_turn();
    is.own_captured = true;
    is.rested = 1;
    assert_rests(0, 1);
    waits_for_turn();
    await_end();
}

/* Its stream is destroyed with it, as its work is over, and the next thread has its event. */
static void a_thread_that_ends_leaves_its_event_to_another(NO_STATE)
{
    captures_a_blocking_stream();
    start(works, 1);
    waits_for_turn();
    assert_rests(0, 1);
    waits_for_turn();
    await_end();
    assert_rests(CUDA_CAPTURE_UNSUPPORTED, 0); /* nobody covers what it had */
    ibx_frontend_threads_rest(ibx_frontend_threads_ended());
    assert_rests(0, 0);
    const unsigned before = is.events;
    start(works, 1);
    waits_for_turn();
    assert_int_equal(is.events, before);
    assert_rests(0, 1);
    waits_for_turn();
    await_end();
}

static void two_threads_have_two_events(NO_STATE)
{
    captures_a_blocking_stream();
    start(works, 2);
    waits_for_turn();
    assert_rests(0, 2);
    assert_ptr_not_equal(is.events_waited[0], is.events_waited[1]);
    waits_for_turn();
    await_end();
}

static int child_has_no_streams(void)
{
    struct range was;
    if (ibx_frontend_stream_gone((void *)0x110, &was) || ibx_frontend_stream_is_used())
        return 1;
    is.event_waits = 0;
    is.captured = NULL; /* none of the streams is the child's */
    is.own_captured = true;
    if (ibx_frontend_streams_rest(true) || is.event_waits || is.waits)
        return 2;
    const unsigned before = is.events;
    is.own_captured = false;
    ibx_frontend_stream_used(OWN);
    ibx_frontend_stream_worked(OWN);
    is.own_captured = true;
    if (ibx_frontend_streams_rest(true) ||
        is.event_waits != 1) /* and for no event of the parent's */
        return 3;
    return is.events == before + 1 ? 0 : 4;
}

static void a_child_has_no_streams_of_its_parent(NO_STATE)
{
    captures_a_blocking_stream();
    start(works_unseen, 1);
    await_end();
    ibx_frontend_stream_used(OWN);
    ibx_frontend_stream_worked(OWN);
    passes_in_child(child_has_no_streams);
    assert_true(ibx_frontend_stream_is_used());
}

static int child_waits_for_its_own_work(void)
{
    if (!ibx_frontend_is_child())
        return 1;
    is.legacy_rests = true;
    is.made = 0x200;
    stream_made(NON_BLOCKING);
    if (ibx_frontend_own_work_wait() || is.stream_waits != 1 || is.legacy_waits || is.device_waits)
        return 2;
    ibx_frontend_stream_used(OWN); /* which the legacy stream waits for */
    if (ibx_frontend_own_work_wait() || is.legacy_waits != 1 || is.device_waits)
        return 3;
    ibx_frontend_stream_rests(OWN);
    is.legacy_rests = false;
    if (ibx_frontend_own_work_wait() || is.legacy_waits != 2 || is.device_waits)
        return 4;
    is.wait_fails = 700;
    return ibx_frontend_own_work_wait() == 700 && is.legacy_waits == 2 ? 0 : 5;
}

/* The device, and the legacy stream while it is without work of the child's, may have work of the
 * parent, which may wait for the child. */
static void a_child_waits_for_no_work_of_its_parent(NO_STATE)
{
    stream_made(0);
    assert_false(ibx_frontend_is_child());
    passes_in_child(child_waits_for_its_own_work);
    assert_int_equal(ibx_frontend_own_work_wait(), 0);
    assert_int_equal(is.device_waits, 1);
    assert_int_equal(is.waits + is.legacy_waits, 0);
}

/* In the first test nobody has said that events are of use. */
static void no_event_is_recorded_before_somebody_waits(NO_STATE)
{
    is.capturing = true;
    ibx_frontend_stream_used(OWN);
    ibx_frontend_stream_worked(OWN);
    assert_int_equal(is.events + is.records, 0);
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(no_event_is_recorded_before_somebody_waits),
        TEST(a_stream_is_known_until_it_is_gone),
        TEST(every_call_that_makes_a_stream_notes_it),
        TEST(a_handle_that_comes_again_is_a_new_stream),
        TEST(a_reset_forgets_streams),
        TEST(all_streams_but_captured_ones_are_waited_for),
        TEST(streams_of_another_device_are_waited_for_by_its_events),
        TEST(without_an_event_streams_are_waited_for_themselves),
        TEST(the_legacy_stream_is_left_out_if_a_captured_one_waits_for_it),
        TEST(the_legacy_stream_of_each_device_is_waited_for_unless_it_rests),
        TEST(a_stream_that_is_destroyed_meanwhile_is_no_error),
        TEST(work_of_a_thread_cannot_be_waited_for),
        TEST(a_threads_own_stream_is_used_until_it_rests),
        TEST(a_captured_own_stream_that_rested_is_not_waited_for),
        TEST(an_event_covers_a_threads_work),
        TEST(an_event_is_recorded_only_where_it_helps),
        TEST(an_event_of_a_stream_that_rests_is_not_waited_for),
        TEST(an_event_covers_work_beside_a_captured_own_stream),
        TEST(a_reset_forgets_events),
        TEST(a_thread_that_ends_leaves_its_event_to_another),
        TEST(two_threads_have_two_events),
        TEST(a_child_has_no_streams_of_its_parent),
        TEST(a_child_waits_for_no_work_of_its_parent)};
    return cmocka_run_group_tests_name("own streams", tests, NULL, NULL);
}
