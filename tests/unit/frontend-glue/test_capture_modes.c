/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which streams count as captured, and the modes in which threads capture: what the program sees,
 * and what its thread at the back end has. */
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/in_child.h"
#include "tests/unit/frontend-glue/begun_requests.h"
#include "tests/unit/frontend-glue/next_calls.h"

#include "common/clock.h"

#include <pthread.h>

#define STREAM ((void *)0x10)
#define LEGACY ((void *)1)

static struct {
    bool no_modes, no_question; /* calls that GVirtuS, or the back end, does not have */
    int mode;                   /* of the thread at the back end */
    int mode_fails;
    unsigned exchanges, questions, nexts, asks;
    int status, ask_fails; /* what the back end says of a stream */
    int stream_asked;      /* what CUDA says of its work */
    const void *asked[4];
    int waited_in; /* the mode at the back end during a wait */
    int error;
    enum ibx_forbidden call; /* that captures were asked about, or forbid */
    bool others;             /* ... those of other threads */
    int broken;              /* a sticky error */
    bool in_function;        /* a host function has made the call */
} is;

int ibx_frontend_fail(int code)
{
    return is.error = code;
}

bool ibx_frontend_knows(enum ibx_frontend_fact fact, uint64_t handle, int *answer)
{
    assert_true(fact == IBX_FRONTEND_BROKEN && !handle);
    *answer = is.broken;
    return is.broken;
}

bool ibx_frontend_in_host_function(void)
{
    return is.in_function;
}

static int next_cudaThreadExchangeStreamCaptureMode(int *mode)
{
    const int before = is.mode;
    is.exchanges++;
    if (is.mode_fails)
        return is.mode_fails;
    is.mode = *mode;
    *mode = before;
    return 0;
}

static int next_cudaStreamIsCapturing(void *stream, int *status)
{
    (void)stream;
    is.nexts++;
    *status = is.status;
    return 0;
}

void *ibx_frontend_next(_Atomic(void *) *found, const char *symbol)
{
    (void)found;
    if (!is.no_modes)
        RETURN_NEXT(symbol, cudaThreadExchangeStreamCaptureMode);
    RETURN_NEXT(symbol, cudaStreamIsCapturing);
    return NULL;
}

bool ibx_frontend_request_known(const struct extension_request *e, void *out, size_t n, int *rc)
{
    struct ibx_writer w = ibx_writer_of(out, n);
    struct ibx_reader r = ibx_reader_of(e->body.data, e->body.length);
    assert_int_equal(ibx_get_u16(&r), IBX_EXT_IS_CAPTURING);
    assert_int_equal(ibx_get_u64(&r), (uintptr_t)STREAM);
    is.questions++;
    if (is.no_question)
        return false;
    ibx_put_u32(&w, (uint32_t)is.status);
    *rc = is.ask_fails;
    return true;
}

int ibx_frontend_stream_ask(void *stream)
{
    is.asked[is.asks++ % COUNT(is.asked)] = stream;
    return is.stream_asked;
}

int ibx_frontend_stream_wait_within(void *stream)
{
    (void)stream;
    is.waited_in = is.mode;
    return 600;
}

/* Leaves the thread's mode GLOBAL, at both ends, and no captures. */
static int begin(void **state)
{
    int mode = CUDA_CAPTURE_GLOBAL;
    (void)state;
    while (ibx_frontend_capturing())
        ibx_frontend_capture_gone();
    ibx_frontend_captures_forbid(NULL);
    memset(&is, 0, sizeof(is));
    if (cudaThreadExchangeStreamCaptureMode(&mode))
        return -1;
    const int there = CUDA_CAPTURE_THREAD_LOCAL;
    memset(&is, 0, sizeof(is));
    is.mode = there;
    return ibx_frontend_capture_mode() != CUDA_CAPTURE_GLOBAL;
}

/* ------------------------------------------------------------ modes */

/* The first test. At the back end all clients are threads of one process. */
static void a_new_thread_is_in_mode_global_and_not_so_at_the_back_end(NO_STATE)
{
    int mode = CUDA_CAPTURE_GLOBAL;
    memset(&is, 0, sizeof(is));
    is.mode = CUDA_CAPTURE_GLOBAL;
    assert_int_equal(ibx_frontend_capture_mode(), CUDA_CAPTURE_GLOBAL);
    assert_int_equal(cudaThreadExchangeStreamCaptureMode(&mode), 0);
    assert_int_equal(mode, CUDA_CAPTURE_GLOBAL);
    assert_int_equal(is.mode, CUDA_CAPTURE_THREAD_LOCAL);
}

static int exchange(int mode)
{
    assert_int_equal(cudaThreadExchangeStreamCaptureMode(&mode), 0);
    return mode;
}

static void the_program_gets_the_mode_that_it_had_set(NO_STATE)
{
    assert_int_equal(exchange(CUDA_CAPTURE_RELAXED), CUDA_CAPTURE_GLOBAL);
    assert_int_equal(is.mode, CUDA_CAPTURE_RELAXED);
    assert_int_equal(ibx_frontend_capture_mode(), CUDA_CAPTURE_RELAXED);
    assert_int_equal(exchange(CUDA_CAPTURE_THREAD_LOCAL), CUDA_CAPTURE_RELAXED);
    assert_int_equal(exchange(CUDA_CAPTURE_GLOBAL), CUDA_CAPTURE_THREAD_LOCAL);
    assert_int_equal(is.mode, CUDA_CAPTURE_THREAD_LOCAL);
    assert_int_equal(cudaThreadExchangeStreamCaptureMode(NULL), CUDA_INVALID_VALUE);
}

/* As PyTorch makes around each query. */
static void an_exchange_that_changes_nothing_is_no_request(NO_STATE)
{
    exchange(CUDA_CAPTURE_THREAD_LOCAL);
    exchange(CUDA_CAPTURE_GLOBAL);
    assert_int_equal(is.exchanges, 0);
    exchange(CUDA_CAPTURE_RELAXED);
    exchange(CUDA_CAPTURE_RELAXED);
    assert_int_equal(is.exchanges, 1);
}

static void an_exchange_that_fails_changes_nothing(NO_STATE)
{
    int mode = CUDA_CAPTURE_RELAXED;
    is.mode_fails = 999;
    assert_int_equal(cudaThreadExchangeStreamCaptureMode(&mode), 999);
    assert_int_equal(mode, CUDA_CAPTURE_RELAXED);
    assert_int_equal(ibx_frontend_capture_mode(), CUDA_CAPTURE_GLOBAL);
    is.mode_fails = 0;
    exchange(CUDA_CAPTURE_RELAXED);
    assert_int_equal(is.mode, CUDA_CAPTURE_RELAXED);
}

static int child_exchanges(void)
{
    int mode = CUDA_CAPTURE_RELAXED;
    is.mode = CUDA_CAPTURE_GLOBAL; /* its new connection's */
    unsigned rested;
    if (ibx_frontend_capturing() || ibx_frontend_captures(STREAM) || is.questions ||
        ibx_frontend_threads_capture(&rested) || rested)
        return 1;
    return cudaThreadExchangeStreamCaptureMode(&mode) || is.mode != CUDA_CAPTURE_RELAXED;
}

static void a_child_captures_nothing_and_has_a_thread_of_its_own(NO_STATE)
{
    exchange(CUDA_CAPTURE_RELAXED);
    ibx_frontend_capture_begins();
    ibx_frontend_thread_capture_begins(true);
    is.status = 1;
    passes_in_child(child_exchanges);
    assert_true(ibx_frontend_captures(STREAM));
    ibx_frontend_thread_capture_ends(true);
}

/* ------------------------------------------------------------ calls beside captures */

static pthread_barrier_t turn;

static void *keeps_captures_away(void *nothing)
{
    const int cancel = ibx_frontend_captures_hold();
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    ibx_frontend_captures_let_go(cancel);
    return nothing;
}

/* Who has the turn may wait for this thread. And who has gone on without it ends no other's. */
static void nobody_waits_for_ever_for_captures_to_be_kept_away(NO_STATE)
{
    pthread_t thread;
    assert_int_equal(pthread_barrier_init(&turn, NULL, 2), 0);
    assert_int_equal(pthread_create(&thread, NULL, keeps_captures_away, NULL), 0);
    pthread_barrier_wait(&turn);
    for (unsigned i = 0; i < 2; i++) {
        const uint64_t began = ibx_now_ns();
        ibx_frontend_captures_let_go(ibx_frontend_captures_hold());
        assert_true(ibx_now_ns() - began >= 1000000000u);
    }
    pthread_barrier_wait(&turn);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_barrier_destroy(&turn);
    const uint64_t began = ibx_now_ns();
    for (unsigned i = 0; i < 2; i++)
        ibx_frontend_captures_let_go(ibx_frontend_captures_hold());
    assert_true(ibx_now_ns() - began < 1000000000u);
}

static void this_librarys_waits_are_relaxed_beside_a_capture(NO_STATE)
{
    ibx_frontend_capture_begins();
    assert_int_equal(ibx_frontend_stream_wait(NULL), 600);
    assert_int_equal(is.waited_in, CUDA_CAPTURE_RELAXED);
    assert_int_equal(is.mode, CUDA_CAPTURE_THREAD_LOCAL);
    assert_int_equal(ibx_frontend_capture_mode(), CUDA_CAPTURE_GLOBAL);
}

static void without_a_capture_or_in_mode_relaxed_there_is_nothing_to_relax(NO_STATE)
{
    assert_int_equal(ibx_frontend_stream_wait(NULL), 600);
    assert_int_equal(is.exchanges, 0);
    exchange(CUDA_CAPTURE_RELAXED);
    is.mode = 7; /* which another exchange would set */
    ibx_frontend_capture_begins();
    assert_int_equal(ibx_frontend_stream_wait(NULL), 600);
    assert_int_equal(is.waited_in, 7);
    assert_int_equal(ibx_frontend_capture_mode(), CUDA_CAPTURE_RELAXED);
}

static void a_gvirtus_without_modes_waits_all_the_same(NO_STATE)
{
    is.no_modes = true;
    ibx_frontend_capture_begins();
    assert_int_equal(ibx_frontend_stream_wait(NULL), 600);
    assert_int_equal(is.waited_in, CUDA_CAPTURE_THREAD_LOCAL);
}

/* ------------------------------------------------------------ what captures forbid */

static unsigned long long one_forbids(unsigned long long last, enum ibx_forbidden call, bool others,
                                      void **stream)
{
    *stream = STREAM;
    return !last && call == is.call && (!others || is.others);
}

static unsigned long long forbidding(unsigned long long last, enum ibx_forbidden call, bool others,
                                     void **stream)
{
    is.call = call;
    is.others = others;
    *stream = last ? NULL : STREAM;
    return last < 2 ? last + 1 : 0;
}

/* The second one is of another thread's own stream, of which this thread cannot ask. */
static void an_unsafe_call_invalidates_captures_and_fails(NO_STATE)
{
    ibx_frontend_captures_forbid(forbidding);
    assert_int_equal(ibx_frontend_unsafe(), 0);
    ibx_frontend_capture_begins();
    assert_int_equal(ibx_frontend_unsafe(), CUDA_CAPTURE_UNSUPPORTED);
    assert_int_equal(is.error, CUDA_CAPTURE_UNSUPPORTED);
    assert_int_equal(is.asks, 1);
    assert_ptr_equal(is.asked[0], STREAM);
    assert_true(is.call == FORBIDDEN_UNSAFE && !is.others);
}

/* Host functions have an error of their own for such calls. */
static void other_threads_captures_forbid_what_gets_to_the_back_end(NO_STATE)
{
    ibx_frontend_captures_forbid(forbidding);
    assert_int_equal(ibx_frontend_unsafe_beside(), 0);
    ibx_frontend_capture_begins();
    is.in_function = true;
    assert_int_equal(ibx_frontend_unsafe_beside(), 0);
    assert_int_equal(is.asks, 0);
    is.in_function = false;
    assert_int_equal(ibx_frontend_unsafe_beside(), CUDA_CAPTURE_UNSUPPORTED);
    assert_true(is.call == FORBIDDEN_UNSAFE && is.others);
    is.status = 1;
    assert_int_equal(ibx_frontend_unsafe_in(STREAM), 0);
    is.status = 0;
    assert_int_equal(ibx_frontend_unsafe_in(STREAM), CUDA_CAPTURE_UNSUPPORTED);
}

static void a_sticky_error_comes_first(NO_STATE)
{
    assert_int_equal(ibx_frontend_broken(), 0);
    assert_int_equal(is.error, 0);
    is.broken = 700;
    assert_int_equal(ibx_frontend_broken(), 700);
    assert_int_equal(is.error, 700);
    ibx_frontend_captures_forbid(forbidding);
    ibx_frontend_capture_begins();
    assert_int_equal(ibx_frontend_unsafe(), 700);
    assert_int_equal(is.asks, 0);
}

/* One that has ended unseen is not known to have. */
static void captures_that_have_ended_forbid_nothing(NO_STATE)
{
    static const int says[] = {0, CUDA_NOT_READY, CUDA_INVALID_HANDLE, CUDA_CAPTURE_UNSUPPORTED};
    ibx_frontend_captures_forbid(one_forbids);
    ibx_frontend_capture_begins();
    is.others = true;
    for (unsigned i = 0; i < sizeof(says) / sizeof(says[0]); i++) {
        is.stream_asked = says[i];
        assert_int_equal(ibx_frontend_unsafe_beside(), i < 3 ? 0 : CUDA_CAPTURE_UNSUPPORTED);
    }
}

static int legacy_wait(void)
{
    return ibx_frontend_legacy_wait_refused(NULL);
}

/* The back end would wait for other threads' captures. The thread's own are left to it. */
static void waits_are_refused_beside_captures_of_other_threads(NO_STATE)
{
    int (*const calls[])(void) = {ibx_frontend_device_wait_refused, legacy_wait};
    is.stream_asked = CUDA_CAPTURE_UNSUPPORTED;
    for (unsigned i = 0; i < 2; i++) {
        ibx_frontend_captures_forbid(one_forbids);
        is.call = i ? FORBIDDEN_LEGACY : FORBIDDEN_WAIT;
        is.others = true;
        assert_int_equal(calls[i](), 0);
        ibx_frontend_capture_begins();
        is.in_function = true;
        assert_int_equal(calls[i](), 0);
        is.in_function = is.others = false;
        assert_int_equal(calls[i](), 0);
        assert_int_equal(is.asks, i);
        is.others = true;
        assert_int_equal(ibx_frontend_legacy_wait_refused(STREAM), 0);
        assert_int_equal(calls[i](), i ? CUDA_CAPTURE_IMPLICIT : CUDA_CAPTURE_UNSUPPORTED);
        assert_int_equal(is.asks, i + 1);
        assert_int_equal(calls[!i](), 0); /* a call of the other kind */
        ibx_frontend_captures_forbid(NULL);
        assert_int_equal(calls[i](), 0);
        ibx_frontend_capture_gone();
    }
}

/* ------------------------------------------------------------ which streams are captured */

static void a_stream_is_asked_about_only_while_something_is_captured(NO_STATE)
{
    is.status = 1;
    assert_false(ibx_frontend_captures(STREAM));
    assert_int_equal(is.questions, 0);
    ibx_frontend_capture_begins();
    assert_true(ibx_frontend_captures(STREAM) && ibx_frontend_may_capture(STREAM));
    assert_int_equal(is.questions, 2);
    assert_false(ibx_frontend_captures(NULL)); /* the legacy stream never is */
    assert_false(ibx_frontend_captures(LEGACY));
    assert_int_equal(is.questions, 2);
    is.status = 0;
    assert_false(ibx_frontend_may_capture(STREAM));
    is.no_question = true; /* the back end cannot tell */
    assert_false(ibx_frontend_captures(STREAM) || ibx_frontend_may_capture(LEGACY));
    assert_true(ibx_frontend_may_capture(STREAM));
    ibx_frontend_capture_gone();
    assert_false(ibx_frontend_captures(STREAM));
    ibx_frontend_capture_gone(); /* more ends than beginnings */
    assert_false(ibx_frontend_capturing());
}

static void the_program_asks_the_back_end_or_gvirtus(NO_STATE)
{
    int status = 7;
    is.status = 2;
    assert_int_equal(cudaStreamIsCapturing(STREAM, NULL), CUDA_INVALID_VALUE);
    assert_int_equal(cudaStreamIsCapturing(STREAM, &status), 0);
    assert_int_equal(status, 2);
    is.ask_fails = 906;
    status = 7;
    assert_int_equal(cudaStreamIsCapturing(STREAM, &status), 906);
    assert_int_equal(status, 7);
    assert_int_equal(is.nexts, 0);
    is.no_question = true;
    assert_int_equal(cudaStreamIsCapturing(STREAM, &status), 0);
    assert_int_equal(status, 2);
    assert_int_equal(is.nexts, 1);
}

static void a_capture_that_is_invalid_is_known(NO_STATE)
{
    is.status = 2;
    assert_false(ibx_frontend_capture_is_invalid(STREAM));
    ibx_frontend_capture_begins();
    assert_true(ibx_frontend_capture_is_invalid(STREAM));
    is.questions = 0;
    assert_false(ibx_frontend_capture_is_invalid(NULL));
    assert_false(ibx_frontend_capture_is_invalid(LEGACY));
    assert_int_equal(is.questions, 0);
    is.ask_fails = 906;
    assert_false(ibx_frontend_capture_is_invalid(STREAM));
    is.ask_fails = 0;
    is.status = 1;
    assert_false(ibx_frontend_capture_is_invalid(STREAM));
}

/* If it has ended meanwhile, the query is one like any other. */
static void a_captured_stream_refuses_what_cuda_permits_in_none(NO_STATE)
{
    int rc = 0;
    is.status = 1;
    is.stream_asked = 900;
    assert_false(ibx_frontend_capture_refuses(STREAM, &rc));
    assert_int_equal(is.asks, 0);
    ibx_frontend_capture_begins();
    assert_true(ibx_frontend_capture_refuses(STREAM, &rc));
    assert_int_equal(rc, 900);
    assert_int_equal(is.error, 900);
    is.stream_asked = is.error = 0;
    assert_false(ibx_frontend_capture_refuses(STREAM, &rc));
    is.stream_asked = CUDA_NOT_READY;
    assert_false(ibx_frontend_capture_refuses(STREAM, &rc));
    assert_int_equal(is.error, 0);
}

static void the_legacy_stream_refuses_beside_captures_that_wait_for_it(NO_STATE)
{
    int rc = 0;
    is.stream_asked = CUDA_CAPTURE_IMPLICIT;
    assert_false(ibx_frontend_legacy_refuses(NULL, &rc));
    ibx_frontend_capture_begins();
    assert_false(ibx_frontend_legacy_refuses(STREAM, &rc));
    assert_int_equal(is.asks, 0);
    assert_true(ibx_frontend_legacy_refuses(NULL, &rc));
    assert_int_equal(rc, CUDA_CAPTURE_IMPLICIT);
    assert_int_equal(is.error, CUDA_CAPTURE_IMPLICIT);
    assert_true(ibx_frontend_legacy_refuses(LEGACY, &rc));
    assert_int_equal(is.mode, CUDA_CAPTURE_THREAD_LOCAL);
    is.error = 0;
    is.stream_asked = CUDA_NOT_READY;
    assert_false(ibx_frontend_legacy_refuses(NULL, &rc));
    assert_int_equal(is.error, 0);
}

/* In another mode the query would invalidate captures that have nothing to do with it. */
static void the_legacy_stream_is_asked_in_mode_relaxed_only(NO_STATE)
{
    int rc = 0;
    is.stream_asked = CUDA_CAPTURE_IMPLICIT;
    is.no_modes = true;
    ibx_frontend_capture_begins();
    assert_false(ibx_frontend_legacy_refuses(NULL, &rc));
    assert_int_equal(is.asks, 0);
}

static void captures_of_threads_own_streams_are_counted(NO_STATE)
{
    unsigned rested = 7;
    assert_false(ibx_frontend_threads_capture(&rested));
    assert_int_equal(rested, 0);
    ibx_frontend_thread_capture_begins(false);
    ibx_frontend_thread_capture_begins(true);
    assert_true(ibx_frontend_threads_capture(&rested));
    assert_int_equal(rested, 1);
    ibx_frontend_thread_capture_ends(false);
    assert_true(ibx_frontend_threads_capture(&rested));
    assert_int_equal(rested, 1);
    ibx_frontend_thread_capture_ends(true);
    assert_false(ibx_frontend_threads_capture(&rested));
    assert_int_equal(rested, 0);
}

/* The last test: this stays. */
static void memory_that_is_captured_is_known_from_then_on(NO_STATE)
{
    ibx_frontend_ordered_memory();
    assert_false(ibx_frontend_captured_memory());
    ibx_frontend_capture_begins();
    ibx_frontend_ordered_memory();
    ibx_frontend_capture_gone();
    assert_true(ibx_frontend_captured_memory());
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_thread_is_in_mode_global_and_not_so_at_the_back_end),
        TEST(the_program_gets_the_mode_that_it_had_set),
        TEST(an_exchange_that_changes_nothing_is_no_request),
        TEST(an_exchange_that_fails_changes_nothing),
        TEST(a_child_captures_nothing_and_has_a_thread_of_its_own),
        TEST(nobody_waits_for_ever_for_captures_to_be_kept_away),
        TEST(this_librarys_waits_are_relaxed_beside_a_capture),
        TEST(without_a_capture_or_in_mode_relaxed_there_is_nothing_to_relax),
        TEST(a_gvirtus_without_modes_waits_all_the_same),
        TEST(an_unsafe_call_invalidates_captures_and_fails),
        TEST(other_threads_captures_forbid_what_gets_to_the_back_end),
        TEST(a_sticky_error_comes_first),
        TEST(captures_that_have_ended_forbid_nothing),
        TEST(waits_are_refused_beside_captures_of_other_threads),
        TEST(a_stream_is_asked_about_only_while_something_is_captured),
        TEST(the_program_asks_the_back_end_or_gvirtus),
        TEST(a_capture_that_is_invalid_is_known),
        TEST(a_captured_stream_refuses_what_cuda_permits_in_none),
        TEST(the_legacy_stream_refuses_beside_captures_that_wait_for_it),
        TEST(the_legacy_stream_is_asked_in_mode_relaxed_only),
        TEST(captures_of_threads_own_streams_are_counted),
        TEST(memory_that_is_captured_is_known_from_then_on)};
    return cmocka_run_group_tests_name("capture modes", tests, NULL, NULL);
}
