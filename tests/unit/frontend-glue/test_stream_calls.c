/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Calls about streams and events: which requests they make, and what they return. The plugin, the
 * back end and GVirtuS's functions are simulated. */
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/unit.h"
#include "tests/unit/frontend-glue/fake_forbidden.h"
#include "tests/unit/frontend-glue/begun_requests.h"
#include "tests/unit/frontend-glue/next_calls.h"

#define STREAM ((void *)0x100)
#define EVENT  ((void *)0x200)
#define LEGACY ((void *)1)
#define ROOT   ((void *)0x300) /* the event that stands for EVENT in a capture */

static struct {
    bool attached, two_devices, captures, in_function;
    bool forwards; /* the plugin leaves calls to GVirtuS */
    bool stream_rests, all_rests, over, pending, event_pending; /* what is known */
    int fails;                                                  /* what requests and calls return */
    bool unsent;                                                /* a request could not be sent */
    bool lost;                                                  /* host functions are */
    int graph_fails;                                            /* a copy in a graph has failed */
    bool event_captured;                                        /* the event was recorded in it */
    bool has_root;
    int stream_fails; /* what the plugin knows of a stream after a wait */
    unsigned requests, nexts, orders, noted, ordered, worked, made, used, waits, losses;
    const char *request; /* the latest one's name, and its body */
    uint8_t body[EXTENSION_REQUEST_MAX];
    size_t n;
    const char *next;              /* GVirtuS's function that was called, and its arguments */
    const void *next_arguments[2]; /* as it has them */
    unsigned next_flags;
    const void *event, *event_in; /* of a record that was noted */
    const void *rests;            /* what rests at the latest */
    bool rested;
    uint64_t mark;
    bool of_all;
    const void *lost_in, *used_in; /* streams */
    uint64_t waited_for;           /* a stream */
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
    (void)answer;
    switch (fact) {
    case IBX_FRONTEND_STREAM_RESTS:
        return is.stream_rests && handle == (uintptr_t)STREAM;
    case IBX_FRONTEND_ALL_RESTS:
        return is.all_rests;
    case IBX_FRONTEND_EVENT_OVER:
        return is.over && handle == (uintptr_t)EVENT;
    case IBX_FRONTEND_EVENT_PENDING:
        return is.event_pending && handle == (uintptr_t)EVENT;
    default:
        return false;
    }
}
static void requested(const char *name, const struct ibx_writer *body)
{
    assert_false(body->failed);
    is.requests++;
    is.request = name;
    beside.request_held = beside.held;
    is.n = body->length;
    memcpy(is.body, body->data, body->length);
}
bool ibx_frontend_called(const char *name, const struct ibx_writer *body, int *rc)
{
    if (is.forwards)
        return false;
    requested(name, body);
    *rc = is.fails;
    return true;
}
static int next(void)
{
    is.nexts++;
    return is.fails;
}
static int next_with(const void *first, const void *second)
{
    is.next_arguments[0] = first;
    is.next_arguments[1] = second;
    return next();
}
static int next_cudaEventRecord(void *event, void *stream)
{
    return next_with(event, stream);
}
static int next_cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    is.next_flags = flags;
    return next_with(stream, event);
}
static int next_with_handle(void *handle)
{
    return next_with(handle, NULL);
}
#define next_cudaStreamSynchronize next_with_handle
#define next_cudaStreamQuery       next_with_handle
#define next_cudaEventSynchronize  next_with_handle
#define next_cudaEventQuery        next_with_handle
#define next_cudaDeviceSynchronize next
void *ibx_frontend_next(_Atomic(void *) *found, const char *symbol)
{
    (void)found;
    is.next = symbol;
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
    requested(e->name, &e->body);
    *code = is.fails;
    return !is.unsent;
}
int ibx_frontend_request_make(const struct extension_request *e, void *out, size_t n)
{
    (void)e, (void)out, (void)n;
    is.made++;
    return is.fails;
}
void ibx_frontend_device_used(void)
{
    is.used++;
}
void ibx_frontend_stream_used(const void *stream)
{
    is.used_in = stream;
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
    return is.has_root ? ROOT : event;
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
    is.losses++;
    is.lost_in = stream;
    is.mark = mark;
    is.of_all = all;
    return is.lost;
}
bool ibx_frontend_host_event_lost(const void *event)
{
    assert_ptr_equal(event, EVENT);
    is.losses++;
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
void ibx_frontend_wait_begins(void)
{
    is.waits++;
}
int ibx_frontend_waited(int rc, uint64_t stream)
{
    is.waited_for = stream;
    return rc ? rc : is.stream_fails;
}

static int begin(void **state)
{
    (void)state;
    memset(&is, 0, sizeof(is));
    memset(&beside, 0, sizeof(beside));
    is.attached = true;
    ibx_frontend_after_device_wait(NULL);
    return 0;
}

/* The latest request has this name, and a body of these handles: NULL ends them. */
static struct ibx_reader assert_request(const char *name, const void *first, const void *second)
{
    struct ibx_reader r = ibx_reader_of(is.body, is.n);
    assert_string_equal(is.request, name);
    if (first)
        assert_int_equal(ibx_get_u64(&r), (uintptr_t)first);
    if (second)
        assert_int_equal(ibx_get_u64(&r), (uintptr_t)second);
    assert_false(r.failed);
    return r;
}

/* Of GVirtuS's function. */
static void assert_next(const char *name, const void *first, const void *second)
{
    assert_string_equal(is.next, name);
    assert_ptr_equal(is.next_arguments[0], first);
    assert_ptr_equal(is.next_arguments[1], second);
}

/* A call with a handle is a request of its name, or GVirtuS's call. */
static void calls_have_their_names_and_handles(NO_STATE)
{
    static const struct {
        const char *name;
        int (*call)(void *handle);
        void *handle;
    } calls[] = {{"cudaStreamSynchronize", cudaStreamSynchronize, STREAM},
                 {"cudaStreamQuery", cudaStreamQuery, STREAM},
                 {"cudaStreamQuery", ibx_frontend_stream_ask, STREAM},
                 {"cudaEventSynchronize", cudaEventSynchronize, EVENT},
                 {"cudaEventQuery", cudaEventQuery, EVENT}};
    for (size_t i = 0; i < COUNT(calls); i++) {
        is.forwards = false;
        assert_int_equal(calls[i].call(calls[i].handle), 0);
        assert_int_equal(is.requests, i + 1);
        const struct ibx_reader r = assert_request(calls[i].name, calls[i].handle, NULL);
        assert_int_equal(ibx_reader_left(&r), 0);
        is.forwards = true;
        assert_int_equal(calls[i].call(calls[i].handle), 0);
        assert_next(calls[i].name, calls[i].handle, NULL);
    }
    is.forwards = false;
    assert_int_equal(cudaDeviceSynchronize(), 0);
    assert_string_equal(is.request, "cudaDeviceSynchronize");
    assert_int_equal(is.n, 0);
    is.forwards = true;
    assert_int_equal(cudaDeviceSynchronize(), 0);
    assert_string_equal(is.next, "cudaDeviceSynchronize");
}

/* ------------------------------------------------------------ calls that enqueue */

static void calls_that_enqueue_have_their_names_and_arguments(NO_STATE)
{
    assert_int_equal(cudaEventRecord(EVENT, STREAM), 0);
    struct ibx_reader r = assert_request("cudaEventRecord", EVENT, STREAM);
    assert_int_equal(ibx_reader_left(&r), 0);
    assert_int_equal(cudaStreamWaitEvent(STREAM, EVENT, 1), 0);
    r = assert_request("cudaStreamWaitEvent", STREAM, EVENT);
    assert_int_equal(ibx_get_u32(&r), 1);
    assert_int_equal(ibx_reader_left(&r), 0);
    is.forwards = true;
    assert_int_equal(cudaEventRecord(EVENT, STREAM), 0);
    assert_next("cudaEventRecord", EVENT, STREAM);
    assert_int_equal(cudaStreamWaitEvent(STREAM, EVENT, 1), 0);
    assert_next("cudaStreamWaitEvent", STREAM, EVENT);
    assert_int_equal(is.next_flags, 1);
}

static void without_the_plugin_calls_are_gvirtus_own(NO_STATE)
{
    is.attached = false;
    is.forwards = true;
    assert_int_equal(cudaEventRecord(EVENT, NULL), 0);
    assert_next("cudaEventRecord", EVENT, NULL);
    assert_int_equal(cudaStreamQuery(STREAM), 0);
    assert_next("cudaStreamQuery", STREAM, NULL);
    assert_int_equal(is.requests, 0);
}

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
    is.has_root = true; /* the event was recorded in an earlier part */
    assert_int_equal(cudaStreamWaitEvent(STREAM, EVENT, 1), 0); /* a node of its own */
    assert_request("cudaStreamWaitEvent", STREAM, EVENT);
    assert_null(is.forked);
    assert_int_equal(cudaStreamWaitEvent(STREAM, EVENT, 0), 0);
    assert_request("cudaStreamWaitEvent", STREAM, ROOT);
    assert_ptr_equal(is.forked, STREAM);
    assert_false(beside.request_held);
    is.event_captured = true; /* the stream joins its capture: nobody waits for it meanwhile */
    assert_int_equal(cudaStreamWaitEvent(STREAM, EVENT, 0), 0);
    assert_true(beside.request_held && !beside.held);
}

static void a_copy_within_the_device_is_a_request(NO_STATE)
{
    const struct ibx_cuda_memcpy3d copy = {.from.at = EVENT, .kind = CUDA_MEMCPY_DEFAULT};
    struct ibx_cuda_memcpy3d within = {.kind = CUDA_MEMCPY_DEFAULT};
    int rc = 7;
    assert_true(ibx_frontend_planes_in_stream(&copy, false, STREAM, &rc));
    assert_int_equal(rc, 0);
    assert_int_equal(is.worked, 1);
    assert_int_equal(is.used, 1);
    assert_ptr_equal(is.used_in, STREAM);
    assert_null(is.request);
    struct ibx_reader r = ibx_reader_of(is.body, is.n);
    assert_int_equal(ibx_get_u16(&r), IBX_EXT_MEMCPY_3D_ASYNC);
    ibx_layout_get(&r, IBX_LAYOUT_MEMCPY3D, &within);
    assert_ptr_equal(within.from.at, EVENT);
    assert_int_equal(within.kind, CUDA_MEMCPY_ON_DEVICE);
    assert_int_equal(ibx_get_u64(&r), (uintptr_t)STREAM);
    assert_true(!r.failed && !ibx_reader_left(&r));
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
    assert_int_equal(is.used, 4);
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
    is.unsent = is.attached = false;
    assert_false(ibx_frontend_planes_in_stream(&copy, false, STREAM, &rc));
    assert_int_equal(is.requests, 3);
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

/* The plugin is told before that a wait begins, and behind it says what it knows of the stream. */
static void waits_and_questions_return_what_the_plugin_knows(NO_STATE)
{
    int (*const of_streams[])(void *stream) = {cudaStreamSynchronize, cudaStreamQuery};
    int (*const of_events[])(void *event) = {cudaEventSynchronize, cudaEventQuery};
    is.stream_fails = 719;
    for (size_t i = 0; i < COUNT(of_streams); i++) {
        is.waits = 0;
        assert_int_equal(of_streams[i](STREAM), 719);
        assert_int_equal(is.waited_for, (uintptr_t)STREAM);
        assert_int_equal(of_events[i](EVENT), 719);
        assert_int_equal(is.waited_for, 0);
        assert_int_equal(is.waits, 2);
    }
    assert_int_equal(cudaDeviceSynchronize(), 719);
    assert_int_equal(is.waits, 3);
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

/* What this library waits for itself is not refused. */
static void waits_are_refused_beside_captures_of_other_threads(NO_STATE)
{
    beside.device_wait = 900;
    beside.legacy_wait = 906;
    beside.unsafe = 900; /* which comes second */
    assert_int_equal(cudaDeviceSynchronize(), 900);
    assert_int_equal(cudaStreamSynchronize(NULL), 906);
    assert_int_equal(cudaStreamQuery(NULL), 906);
    beside.unsafe = 0;
    assert_int_equal(is.requests + is.nexts, 0);
    assert_int_equal(cudaStreamSynchronize(STREAM), 0);
    assert_int_equal(ibx_frontend_device_wait_within(), 0);
    assert_int_equal(ibx_frontend_stream_wait_within(NULL), 0);
    assert_int_equal(is.requests, 3);
}

static void what_a_capture_forbids_gets_nowhere(NO_STATE)
{
    beside.unsafe = 900;
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
    beside.unsafe = 900;
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
    assert_ptr_equal(is.lost_in, STREAM);
    assert_false(is.of_all);
    assert_int_equal(cudaEventSynchronize(EVENT), CUDA_UNKNOWN);
    assert_int_equal(cudaDeviceSynchronize(), CUDA_UNKNOWN);
    assert_true(is.of_all);
    is.fails = 700; /* which is the first error: nobody waits for functions any more */
    is.losses = 0;
    assert_int_equal(cudaStreamSynchronize(STREAM), 700);
    assert_int_equal(cudaEventSynchronize(EVENT), 700);
    assert_int_equal(is.losses, 0);
}

static void copies_in_graphs_that_failed_are_an_error_of_the_wait(NO_STATE)
{
    is.graph_fails = 719;
    assert_int_equal(cudaStreamSynchronize(STREAM), 719);
    assert_int_equal(is.error, 719);
    assert_int_equal(cudaEventQuery(EVENT), 719);
    is.fails = 700;
    assert_int_equal(cudaStreamSynchronize(STREAM), 700);
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
    is.rested = false;
    assert_int_equal(cudaDeviceSynchronize(), 700);
    assert_false(is.rested);
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
        TEST(calls_have_their_names_and_handles),
        TEST(calls_that_enqueue_have_their_names_and_arguments),
        TEST(without_the_plugin_calls_are_gvirtus_own),
        TEST(a_record_is_noted_if_it_succeeds),
        TEST(a_record_in_the_legacy_stream_orders_others),
        TEST(a_record_in_a_threads_own_stream_orders_nothing),
        TEST(captures_learn_of_records_and_waits),
        TEST(a_copy_within_the_device_is_a_request),
        TEST(a_copy_that_the_back_end_does_not_know_is_another_calls),
        TEST(a_stream_that_rests_needs_no_request),
        TEST(a_stream_rests_after_a_wait_and_the_legacy_one_is_not_the_device),
        TEST(waits_and_questions_return_what_the_plugin_knows),
        TEST(a_stream_with_work_of_this_process_is_not_ready),
        TEST(waits_are_refused_beside_captures_of_other_threads),
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
