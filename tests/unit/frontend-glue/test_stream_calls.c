/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Calls about streams and events: which requests they make, and what they return. The plugin, the
 * back end and GVirtuS's functions are simulated. */
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/unit.h"
#include "tests/unit/frontend-glue/begun_requests.h"
#include "tests/unit/frontend-glue/next_calls.h"

#define STREAM ((void *)0x100)
#define EVENT  ((void *)0x200)
#define LEGACY ((void *)1)

static struct {
    bool attached, two_devices, captures, in_function;
    bool forwards; /* the plugin leaves calls to GVirtuS */
    bool stream_rests, all_rests, over, pending, event_pending; /* what is known */
    int fails;                                                  /* what requests and calls return */
    bool unsent;                                                /* a request could not be sent */
    bool lost;                                                  /* host functions are */
    int graph_fails;                                            /* a copy in a graph has failed */
    int forbidden;       /* what a capture makes of waits and questions */
    bool event_captured; /* the event was recorded in it */
    unsigned requests, nexts, orders, noted, ordered, worked, made;
    const char *request;          /* the latest one */
    const void *event, *event_in; /* of a record that was noted */
    const void *rests;            /* what rests at the latest */
    bool rested;
    uint64_t mark;
    bool of_all;
    const void *recorded, *forked; /* noted for captures */
    int error;
} is;

/* ------------------------------------------------------------ what is simulated */

int ibx_frontend_fail(int code)
{
    return is.error = code;
}
static void legacy_orders(void)
{
    is.orders++;
}
static bool pending(uint64_t stream)
{
    return is.pending && stream == (uintptr_t)STREAM;
}
const struct ibx_frontend_calls *ibx_frontend_plugin(void)
{
    static const struct ibx_frontend_calls calls = {
        .version = IBX_FRONTEND_VERSION, .legacy_orders = legacy_orders, .pending = pending};
    return is.attached ? &calls : NULL;
}
bool ibx_frontend_knows(enum ibx_frontend_fact fact, uint64_t handle, int *answer)
{
    (void)handle, (void)answer;
    switch (fact) {
    case IBX_FRONTEND_STREAM_RESTS:
        return is.stream_rests;
    case IBX_FRONTEND_ALL_RESTS:
        return is.all_rests;
    case IBX_FRONTEND_EVENT_OVER:
        return is.over;
    case IBX_FRONTEND_EVENT_PENDING:
        return is.event_pending;
    default:
        return false;
    }
}
bool ibx_frontend_called(const char *name, const struct ibx_writer *body, int *rc)
{
    (void)body;
    if (is.forwards)
        return false;
    is.requests++;
    is.request = name;
    *rc = is.fails;
    return true;
}
static int next(void)
{
    is.nexts++;
    return is.fails;
}
static int next_cudaEventRecord(void *event, void *stream)
{
    (void)event, (void)stream;
    return next();
}
static int next_cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return next();
}
static int next_with_handle(void *handle)
{
    (void)handle;
    return next();
}
#define next_cudaStreamSynchronize next_with_handle
#define next_cudaStreamQuery       next_with_handle
#define next_cudaEventSynchronize  next_with_handle
#define next_cudaEventQuery        next_with_handle
#define next_cudaDeviceSynchronize next
void *ibx_frontend_next(_Atomic(void *) *found, const char *symbol)
{
    (void)found;
    RETURN_NEXT(symbol, cudaEventRecord);
    RETURN_NEXT(symbol, cudaStreamWaitEvent);
    RETURN_NEXT(symbol, cudaStreamSynchronize);
    RETURN_NEXT(symbol, cudaStreamQuery);
    RETURN_NEXT(symbol, cudaEventSynchronize);
    RETURN_NEXT(symbol, cudaEventQuery);
    RETURN_NEXT(symbol, cudaDeviceSynchronize);
    return NULL;
}
bool ibx_frontend_request_try(const struct extension_request *e, void *out, size_t n, int *code)
{
    (void)out, (void)n;
    is.requests++;
    is.request = e->name;
    *code = is.fails;
    return !is.unsent;
}
int ibx_frontend_request_make(const struct extension_request *e, void *out, size_t n)
{
    (void)e, (void)out, (void)n;
    is.made++;
    return is.fails;
}
void ibx_frontend_device_used(void) {}
void ibx_frontend_stream_used(const void *stream)
{
    (void)stream;
}
void ibx_frontend_stream_worked(void *stream)
{
    assert_ptr_equal(stream, STREAM);
    is.worked++;
}
bool ibx_frontend_captures(void *stream)
{
    return is.captures && stream == STREAM;
}
int ibx_frontend_unsafe_beside(void)
{
    return is.forbidden;
}
bool ibx_frontend_capturing(void)
{
    return is.captures;
}
void ibx_frontend_forks_recorded(const void *event, const void *stream)
{
    assert_ptr_equal(event, EVENT);
    is.recorded = stream;
}
bool ibx_frontend_forks_captured(const void *event)
{
    assert_ptr_equal(event, EVENT);
    return is.event_captured;
}
void *ibx_frontend_forks_event(void *event)
{
    return event;
}
void ibx_frontend_forks_waited(void *stream, const void *event)
{
    assert_ptr_equal(event, EVENT);
    is.forked = stream;
}
void ibx_frontend_host_event(void *event, void *stream)
{
    is.noted++;
    is.event = event;
    is.event_in = stream;
}
void ibx_frontend_host_ordered(void)
{
    is.ordered++;
}
uint64_t ibx_frontend_host_enqueued(void)
{
    return 7;
}
bool ibx_frontend_host_lost(uint64_t mark, bool all, const void *stream)
{
    (void)stream;
    is.mark = mark;
    is.of_all = all;
    return is.lost;
}
bool ibx_frontend_host_event_lost(const void *event)
{
    assert_ptr_equal(event, EVENT);
    return is.lost;
}
int ibx_frontend_graph_failure(void)
{
    return is.graph_fails;
}
void ibx_frontend_stream_rests(const void *stream)
{
    is.rested = true;
    is.rests = stream;
}
bool ibx_frontend_in_host_function(void)
{
    return is.in_function;
}
bool ibx_frontend_one_device(void)
{
    return !is.two_devices;
}
void ibx_frontend_wait_begins(void) {}
int ibx_frontend_waited(int rc, uint64_t stream)
{
    (void)stream;
    return rc;
}

static int begin(void **state)
{
    (void)state;
    memset(&is, 0, sizeof(is));
    is.attached = true;
    ibx_frontend_after_device_wait(NULL);
    return 0;
}

/* ------------------------------------------------------------ calls that enqueue */

static void a_record_is_noted_if_it_succeeds(NO_STATE)
{
    assert_int_equal(cudaEventRecord(EVENT, STREAM), 0);
    assert_int_equal(is.requests, 1);
    assert_int_equal(is.noted, 1);
    assert_ptr_equal(is.event, EVENT);
    assert_ptr_equal(is.event_in, STREAM);
    assert_int_equal(is.orders + is.ordered, 0);
    is.fails = 400;
    assert_int_equal(cudaEventRecord(EVENT, STREAM), 400);
    assert_int_equal(is.noted, 1);
    is.forwards = true;
    assert_int_equal(cudaEventRecord(EVENT, STREAM), 400);
    assert_int_equal(is.nexts, 1);
}

/* Work of other streams that was enqueued before, and that comes later, is ordered by it. */
static void a_record_in_the_legacy_stream_orders_others(NO_STATE)
{
    assert_int_equal(cudaEventRecord(EVENT, NULL), 0);
    assert_int_equal(is.orders, 2);
    assert_int_equal(is.ordered, 1);
    assert_int_equal(cudaEventRecord(EVENT, LEGACY), 0);
    assert_int_equal(is.orders, 4);
    is.fails = 400;
    assert_int_equal(cudaEventRecord(EVENT, NULL), 400);
    assert_int_equal(is.orders, 6); /* the request may have been made */
    assert_int_equal(is.ordered, 2);
    is.fails = 0;
    is.all_rests = true;
    assert_int_equal(cudaEventRecord(EVENT, NULL), 0);
    assert_int_equal(is.orders, 6);
}

static void a_record_in_a_threads_own_stream_orders_nothing(NO_STATE)
{
    assert_int_equal(cudaEventRecord(EVENT, CUDA_STREAM_PER_THREAD), 0);
    assert_int_equal(is.orders + is.ordered, 0);
}

static void captures_learn_of_records_and_waits(NO_STATE)
{
    assert_int_equal(cudaEventRecord(EVENT, STREAM), 0);
    assert_int_equal(cudaStreamWaitEvent(STREAM, EVENT, 0), 0);
    assert_null(is.recorded);
    assert_null(is.forked);
    is.captures = true;
    is.fails = 400;
    assert_int_equal(cudaEventRecord(EVENT, STREAM), 400);
    assert_int_equal(cudaStreamWaitEvent(STREAM, EVENT, 0), 400);
    assert_null(is.recorded);
    assert_null(is.forked);
    is.fails = 0;
    assert_int_equal(cudaEventRecord(EVENT, STREAM), 0);
    assert_ptr_equal(is.recorded, STREAM);
    assert_int_equal(cudaStreamWaitEvent(STREAM, EVENT, 1), 0); /* a node of its own */
    assert_null(is.forked);
    assert_int_equal(cudaStreamWaitEvent(STREAM, EVENT, 0), 0);
    assert_ptr_equal(is.forked, STREAM);
}

static void a_copy_within_the_device_is_a_request(NO_STATE)
{
    const struct ibx_cuda_memcpy3d copy = {.kind = CUDA_MEMCPY_DEFAULT};
    int rc = 7;
    assert_true(ibx_frontend_planes_in_stream(&copy, false, STREAM, &rc));
    assert_int_equal(rc, 0);
    assert_int_equal(is.worked, 1);
    assert_null(is.request);
    assert_true(ibx_frontend_planes_in_stream(&copy, true, STREAM, &rc));
    assert_string_equal(is.request, IBX_EXT_NAME); /* which waits for its answer */
    is.fails = 11;
    assert_true(ibx_frontend_planes_in_stream(&copy, false, STREAM, &rc));
    assert_int_equal(rc, 11);
    assert_int_equal(is.error, 11);
    is.captures = true;
    assert_true(ibx_frontend_planes_in_stream(&copy, false, STREAM, &rc));
    assert_int_equal(is.made, 1);
    assert_int_equal(is.requests, 3);
}

static void a_copy_that_the_back_end_does_not_know_is_another_calls(NO_STATE)
{
    const struct ibx_cuda_memcpy3d copy = {.kind = CUDA_MEMCPY_DEFAULT};
    int rc = 7;
    is.fails = -1;
    assert_false(ibx_frontend_planes_in_stream(&copy, false, STREAM, &rc));
    is.fails = CUDA_NOT_SUPPORTED;
    assert_false(ibx_frontend_planes_in_stream(&copy, false, STREAM, &rc));
    is.fails = 0;
    is.unsent = true;
    assert_false(ibx_frontend_planes_in_stream(&copy, false, STREAM, &rc));
    is.attached = false;
    assert_false(ibx_frontend_planes_in_stream(&copy, false, STREAM, &rc));
    assert_int_equal(is.worked + (unsigned)is.error, 0);
}

/* ------------------------------------------------------------ streams */

static void a_stream_that_rests_needs_no_request(NO_STATE)
{
    is.stream_rests = true;
    is.fails = 700;
    assert_int_equal(cudaStreamSynchronize(STREAM), 0);
    assert_int_equal(cudaStreamQuery(STREAM), 0);
    assert_int_equal(is.requests + is.nexts, 0);
    is.stream_rests = false;
    assert_int_equal(cudaStreamSynchronize(STREAM), 700);
    assert_int_equal(cudaStreamQuery(STREAM), 700);
    assert_int_equal(is.requests, 2);
    is.forwards = true;
    assert_int_equal(cudaStreamSynchronize(STREAM), 700);
    assert_int_equal(cudaStreamQuery(STREAM), 700);
    assert_int_equal(is.nexts, 2);
}

/* NULL would be all of the device. */
static void a_stream_rests_after_a_wait_and_the_legacy_one_is_not_the_device(NO_STATE)
{
    int (*const calls[])(void *stream) = {cudaStreamSynchronize, cudaStreamQuery};
    for (size_t i = 0; i < COUNT(calls); i++) {
        is.rested = false;
        is.fails = 700;
        assert_int_equal(calls[i](STREAM), 700);
        is.fails = 0;
        assert_int_equal(calls[i](NULL), 0);
        assert_false(is.rested);
        assert_int_equal(calls[i](STREAM), 0);
        assert_true(is.rested);
        assert_ptr_equal(is.rests, STREAM);
    }
}

/* This process is still copying for it: the back end has not got all of the work. */
static void a_stream_with_work_of_this_process_is_not_ready(NO_STATE)
{
    is.pending = true;
    assert_int_equal(cudaStreamQuery(STREAM), CUDA_NOT_READY);
    assert_int_equal(is.requests, 0);
    assert_int_equal(ibx_frontend_stream_ask(STREAM), 0); /* asks whatever is known */
    assert_int_equal(is.requests, 1);
}

static void what_a_capture_forbids_gets_nowhere(NO_STATE)
{
    is.forbidden = 900;
    assert_int_equal(cudaStreamSynchronize(STREAM), 900);
    assert_int_equal(cudaStreamQuery(STREAM), 900);
    assert_int_equal(cudaEventSynchronize(EVENT), 900);
    is.event_pending = true;
    assert_int_equal(cudaEventQuery(EVENT), 900);
    assert_int_equal(is.requests + is.nexts, 0);
    assert_null(is.rests);
}

/* That is an error of its own, and CUDA's. */
static void an_event_that_was_recorded_in_a_capture_gets_to_cuda(NO_STATE)
{
    is.captures = is.event_captured = true;
    is.forbidden = 900;
    is.fails = 907;
    assert_int_equal(cudaEventSynchronize(EVENT), 907);
    assert_int_equal(cudaEventQuery(EVENT), 907);
    assert_int_equal(is.requests, 2);
    is.captures = false; /* that capture is over, and there is another one */
    assert_int_equal(cudaEventQuery(EVENT), 900);
    assert_int_equal(cudaStreamQuery(STREAM), 900);
    assert_int_equal(is.requests, 2);
}

static void functions_that_are_lost_are_an_error_of_the_wait(NO_STATE)
{
    is.lost = true;
    assert_int_equal(cudaStreamSynchronize(STREAM), CUDA_UNKNOWN);
    assert_int_equal(is.error, CUDA_UNKNOWN);
    assert_int_equal(is.mark, 7);
    assert_false(is.of_all);
    assert_int_equal(cudaEventSynchronize(EVENT), CUDA_UNKNOWN);
    assert_int_equal(cudaDeviceSynchronize(), CUDA_UNKNOWN);
    assert_true(is.of_all);
    is.fails = 700; /* which is the first error */
    assert_int_equal(cudaStreamSynchronize(STREAM), 700);
    assert_int_equal(cudaEventSynchronize(EVENT), 700);
}

static void copies_in_graphs_that_failed_are_an_error_of_the_wait(NO_STATE)
{
    is.graph_fails = 719;
    assert_int_equal(cudaStreamSynchronize(STREAM), 719);
    assert_int_equal(is.error, 719);
    assert_int_equal(cudaEventQuery(EVENT), 719);
}

/* ------------------------------------------------------------ events */

static void an_event_that_is_over_needs_no_request(NO_STATE)
{
    is.over = true;
    is.fails = 700;
    assert_int_equal(cudaEventSynchronize(EVENT), 0);
    assert_int_equal(cudaEventQuery(EVENT), 0);
    assert_int_equal(ibx_frontend_event_ask(EVENT), 0);
    assert_int_equal(is.requests + is.nexts, 0);
    is.over = false;
    assert_int_equal(cudaEventSynchronize(EVENT), 700);
    assert_int_equal(cudaEventQuery(EVENT), 700);
    assert_int_equal(ibx_frontend_event_ask(EVENT), 700);
    assert_int_equal(is.requests, 3);
}

static void an_event_whose_record_was_not_run_is_not_ready(NO_STATE)
{
    is.event_pending = true;
    assert_int_equal(cudaEventQuery(EVENT), CUDA_NOT_READY);
    assert_int_equal(ibx_frontend_event_ask(EVENT), CUDA_NOT_READY);
    assert_int_equal(is.requests, 0);
}

/* They may query events, which natively works; the plugin's own calls wait for them. */
static void host_functions_ask_gvirtus_about_events(NO_STATE)
{
    is.in_function = true;
    assert_int_equal(cudaEventQuery(EVENT), 0);
    assert_int_equal(cudaEventSynchronize(EVENT), 0);
    assert_int_equal(is.requests, 0);
    assert_int_equal(is.nexts, 2);
}

/* ------------------------------------------------------------ the device */

static int after(void)
{
    return 801;
}

static void what_follows_a_wait_for_the_device_follows_success_only(NO_STATE)
{
    assert_int_equal(cudaDeviceSynchronize(), 0);
    ibx_frontend_after_device_wait(after);
    assert_int_equal(cudaDeviceSynchronize(), 801);
    is.fails = 700;
    assert_int_equal(cudaDeviceSynchronize(), 700);
    is.fails = 0;
    is.two_devices = true;
    assert_int_equal(cudaDeviceSynchronize(), 0);
}

/* With several it is not known which functions the wait was for. */
static void a_wait_for_the_device_is_one_for_all_functions_if_there_is_one_device(NO_STATE)
{
    assert_int_equal(cudaDeviceSynchronize(), 0);
    assert_int_equal(is.mark, 7);
    assert_true(is.rested);
    assert_null(is.rests);
    is.two_devices = true;
    assert_int_equal(cudaDeviceSynchronize(), 0);
    assert_int_equal(is.mark, 0);
}

/* The last test: it stays so. */
static void a_stream_that_waits_for_a_word_is_remembered(NO_STATE)
{
    assert_false(ibx_frontend_words_awaited());
    ibx_frontend_word_awaited();
    assert_true(ibx_frontend_words_awaited());
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_record_is_noted_if_it_succeeds),
        TEST(a_record_in_the_legacy_stream_orders_others),
        TEST(a_record_in_a_threads_own_stream_orders_nothing),
        TEST(captures_learn_of_records_and_waits),
        TEST(a_copy_within_the_device_is_a_request),
        TEST(a_copy_that_the_back_end_does_not_know_is_another_calls),
        TEST(a_stream_that_rests_needs_no_request),
        TEST(a_stream_rests_after_a_wait_and_the_legacy_one_is_not_the_device),
        TEST(a_stream_with_work_of_this_process_is_not_ready),
        TEST(what_a_capture_forbids_gets_nowhere),
        TEST(an_event_that_was_recorded_in_a_capture_gets_to_cuda),
        TEST(functions_that_are_lost_are_an_error_of_the_wait),
        TEST(copies_in_graphs_that_failed_are_an_error_of_the_wait),
        TEST(an_event_that_is_over_needs_no_request),
        TEST(an_event_whose_record_was_not_run_is_not_ready),
        TEST(host_functions_ask_gvirtus_about_events),
        TEST(what_follows_a_wait_for_the_device_follows_success_only),
        TEST(a_wait_for_the_device_is_one_for_all_functions_if_there_is_one_device),
        TEST(a_stream_that_waits_for_a_word_is_remembered)};
    return cmocka_run_group_tests_name("stream calls", tests, NULL, NULL);
}
