/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How much the graphs of a client's stream captures count for its limit. */
#include "tests/fixtures/extensions.h"
#include "tests/fixtures/thread_state.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* CUDA makes the graph during the capture. Its growth counts meanwhile, and is measured when the
 * graph exists. */
static void test_captures_have_a_limit(void **state)
{
    (void)state;
    int (*begin_capture)(void *stream, int mode) = NULL;
    int (*end_capture)(void *stream, void **graph) = NULL;
    void *runtime = dlopen(getenv("IBX_TEST_CUDART"), RTLD_LAZY), *stream, *graph = NULL;
    struct gpu_session *x = &alice.x;
    const uint64_t before = ext_used(&alice, IBX_HOLD_GRAPHS);
    const uint64_t most = ext_allow_more(&alice, IBX_HOLD_GRAPHS, 5);
    *(void **)&begin_capture = dlsym(runtime, "cudaStreamBeginCapture");
    *(void **)&end_capture = dlsym(runtime, "cudaStreamEndCapture");
    stream = ext_stream_make(&alice);
    x->handler.captures = CAPTURES_BEGUN;
    ibx_captures_run(x);
    assert_int_equal(begin_capture(stream, 2), 0);
    ibx_captures_ran(x);
    ibx_captures_answered(x, 0);
    uint8_t bytes[64];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_MEMSET);
    ibx_put_u64(&w, alice.memory);
    ibx_put_u32(&w, 1);
    ibx_put_u64(&w, 8);
    ibx_put_u64(&w, (uintptr_t)stream);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(ext_run(&alice, &w, NULL), 0);
    assert_int_equal(ext_run(&alice, &w, NULL), CUDA_MEMORY_ALLOCATION);
    const struct ibx_call *record = ibx_call_find("cudaEventRecord", 16);
    uint8_t body[16] = {0};
    struct ibx_writer named = ibx_writer_of(body, sizeof(body));
    ibx_put_u64(&named, 0);
    assert_true(ibx_graph_captures(x, record, body, sizeof(body))); /* in another stream */
    struct ibx_writer none = named;
    /* an invalid stream, which must not be passed to CUDA */
    ibx_put_u64(&none, UINT64_C(0x123450));
    assert_true(ibx_graph_captures(x, record, body, sizeof(body)));
    ibx_put_u64(&named, (uintptr_t)stream);
    assert_false(ibx_graph_captures(x, record, body, sizeof(body)));
    assert_true(ibx_graph_captures(&bob.x, record, body, sizeof(body)));
    ibx_handles_let_go(&bob.x); /* who has only named the stream */
    assert_false(ibx_graph_launches(x, alice.exec, (uintptr_t)stream));
    atomic_store(&ext_quota(&alice, IBX_HOLD_GRAPHS)->most, most);
    assert_int_equal(end_capture(stream, &graph), 0);
    assert_true(ibx_handles_add(x, IBX_HANDLE_GRAPH, (uintptr_t)graph));
    assert_true(ibx_graph_measure(x, (uintptr_t)graph));
    x->handler.captures = CAPTURES_ENDED;
    ibx_captures_run(x);
    ibx_captures_ran(x);
    ibx_captures_answered(x, 0);
    assert_true(ext_used(&alice, IBX_HOLD_GRAPHS) == before + 6);
    assert_int_equal(ibx_tenant_captured(x->isolation.tenant)->all, 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, (uintptr_t)graph, NULL), 0);
    assert_true(ext_used(&alice, IBX_HOLD_GRAPHS) == before);
    assert_true(ibx_handles_remove(x, IBX_HANDLE_STREAM, (uintptr_t)stream));
    dlclose(runtime);
}

/* A request of GVirtuS about a capture in that stream, which a handler runs. */
static void capture_by_handler(struct gpu_session *x, enum captures_use use, void *stream)
{
    void *graph = NULL;
    struct ibx_writer first = ibx_writer_of(x->requests.first, sizeof(x->requests.first));
    ibx_put_u64(&first, (uintptr_t)stream);
    x->requests.length = 8;
    x->handler.captures = use;
    ibx_captures_run(x);
    const int rc = use == CAPTURES_BEGUN ? app->begin_capture(stream, IBX_CUDA_CAPTURE_RELAXED)
                                         : app->end_capture(stream, &graph);
    assert_int_equal(rc, 0);
    ibx_captures_ran(x);
    ibx_captures_answered(x, 0);
}

static bool is_recorded_in(struct gpu_session *x, void *stream)
{
    uint8_t body[16] = {0};
    struct ibx_writer named = ibx_writer_of(body, sizeof(body));
    ibx_put_u64(&named, 0);
    ibx_put_u64(&named, (uintptr_t)stream);
    return ibx_graph_captures(x, ibx_call_find("cudaEventRecord", 16), body, sizeof(body));
}

/* A capture is always active. Nodes of finished captures no longer count. */
static void test_captures_that_overlap(void **state)
{
    (void)state;
    struct gpu_session *x = &alice.x;
    void *streams[2];
    const uint64_t most = ext_allow_more(&alice, IBX_HOLD_GRAPHS, 10);
    for (unsigned i = 0; i < 2; i++)
        streams[i] = ext_stream_make(&alice);
    capture_by_handler(x, CAPTURES_BEGUN, streams[0]);
    for (unsigned i = 1; i <= 20; i++) {
        capture_by_handler(x, CAPTURES_BEGUN, streams[i % 2]);
        for (unsigned k = 0; k < 3; k++)
            assert_true(is_recorded_in(x, streams[i % 2]));
        capture_by_handler(x, CAPTURES_ENDED, streams[(i + 1) % 2]);
    }
    /* A long capture may only grow to the limit, and so may nodes that a library adds to it. */
    const struct ibx_call *of_library = ibx_call_find("cublasSgemm_v2", 15);
    for (unsigned i = 3; i < 10; i++) {
        x->handler.captures = CAPTURES_SPARED;
        assert_true(i % 2 ? is_recorded_in(x, streams[0])
                          : ibx_graph_captures(x, of_library, NULL, 0));
    }
    assert_false(is_recorded_in(x, streams[0]));
    assert_false(ibx_graph_captures(x, of_library, NULL, 0));
    /* Calls that add no work to a stream do not count. */
    x->handler.captures = CAPTURES_UNUSED;
    assert_true(ibx_graph_captures(x, ibx_call_find("cudaMalloc3D", 13), NULL, 0));
    assert_true(is_recorded_in(x, streams[1]));
    capture_by_handler(x, CAPTURES_ENDED, streams[0]);
    assert_int_equal(ibx_tenant_captured(x->isolation.tenant)->all, 0);
    for (unsigned i = 0; i < 2; i++)
        ibx_handles_remove(x, IBX_HANDLE_STREAM, (uintptr_t)streams[i]);
    atomic_store(&ext_quota(&alice, IBX_HOLD_GRAPHS)->most, most);
}

/* Has a captured stream wait for an event, or records one. Its next node would then depend on
 * `nodes` others. Returns false if this request or the next one is refused. */
static bool joins(struct gpu_session *x, const char *name, void *stream, size_t nodes)
{
    uint8_t body[20] = {0};
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    ibx_put_u64(&w, strstr(name, "Wait") ? (uintptr_t)stream : 0);
    ibx_put_u64(&w, strstr(name, "Wait") ? 0 : (uintptr_t)stream);
    const struct ibx_call *call = ibx_call_find(name, strlen(name) + 1);
    if (!ibx_graph_joins_begin(x, name, body, sizeof(body)))
        return false;
    app->captures_behind(stream, nodes);
    const bool room = ibx_graph_captures(x, call, body, sizeof(body));
    return ibx_graph_joins_end(x) && room;
}

/* By one wait for an event the next node depends on as many additional nodes as the event's
 * stream had, and every later one has as many edges. Two requests for each of a thousand nodes
 * would make a million edges, of 58 bytes each on an H200. */
static void test_captures_that_join(void **state)
{
    (void)state;
    struct gpu_session *x = &alice.x;
    void *streams[3];
    const uint64_t most = ext_allow_more(&alice, IBX_HOLD_GRAPHS, 100);
    for (unsigned i = 0; i < 3; i++) {
        streams[i] = ext_stream_make(&alice);
        capture_by_handler(x, CAPTURES_BEGUN, streams[i]);
    }
    /* A program that joins its streams one after the other: each node counts once. */
    for (size_t n = 1; n <= 10; n++)
        assert_true(joins(x, "cudaStreamWaitEvent", streams[0], n));
    assert_int_equal(ibx_tenant_captured(x->isolation.tenant)->all, 20);
    /* New work depends on one node again, and the same streams are joined once more. */
    for (unsigned i = 0; i < 4; i++) {
        app->captures_behind(streams[0], 1);
        assert_true(joins(x, "cudaStreamWaitEvent", streams[0], 11));
    }
    assert_int_equal(ibx_tenant_captured(x->isolation.tenant)->all, 64);
    /* An event keeps all of these nodes as well. */
    assert_true(joins(x, "cudaEventRecord", streams[0], 11));
    assert_true(joins(x, "cudaEventRecordWithFlags", streams[0], 11));
    assert_true(ibx_tenant_captured(x->isolation.tenant)->all >= 86);
    assert_false(joins(x, "cudaStreamWaitEvent", streams[1], 50));
    assert_false(joins(x, "cudaStreamWaitEvent", streams[2], 50)); /* refused before CUDA gets it */
    for (unsigned i = 0; i < 3; i++) {
        capture_by_handler(x, CAPTURES_ENDED, streams[i]);
        ibx_handles_remove(x, IBX_HANDLE_STREAM, (uintptr_t)streams[i]);
    }
    assert_int_equal(ibx_tenant_captured(x->isolation.tenant)->all, 0);
    atomic_store(&ext_quota(&alice, IBX_HOLD_GRAPHS)->most, most);
}

/* The edges that a capture has made count too, as reported by CUDA. If CUDA does not report
 * them, this is not an error of the client. */
static void test_captured_edges_count(void **state)
{
    (void)state;
    int (*create)(void **graph, unsigned flags) = NULL;
    int (*add)(void **made, void *graph, void *const *behind, size_t count) = NULL;
    void (*have_data)(bool they) = NULL;
    int (*last_error)(void) = NULL;
    void *runtime = dlopen(getenv("IBX_TEST_CUDART"), RTLD_LAZY), *graph = NULL, *nodes[12];
    struct gpu_session *x = &alice.x;
    const uint64_t before = ext_used(&alice, IBX_HOLD_GRAPHS);
    *(void **)&have_data = dlsym(runtime, "ibx_double_edges_have_data");
    *(void **)&last_error = dlsym(runtime, "cudaGetLastError");
    *(void **)&create = dlsym(runtime, "cudaGraphCreate");
    *(void **)&add = dlsym(runtime, "cudaGraphAddEmptyNode");
    assert_int_equal(create(&graph, 0), 0);
    for (unsigned i = 0; i < 12; i++) /* six nodes, and six more that depend on all of these */
        assert_int_equal(add(&nodes[i], graph, nodes, i < 6 ? 0 : 6), 0);
    assert_true(ibx_handles_add(x, IBX_HANDLE_GRAPH, (uintptr_t)graph));
    assert_true(ibx_graph_measure(x, (uintptr_t)graph));
    assert_int_equal(ext_used(&alice, IBX_HOLD_GRAPHS) - before, 1 + 36);
    have_data(true);
    last_error();
    assert_true(ibx_graph_measure(x, (uintptr_t)graph));
    have_data(false);
    assert_int_equal(last_error(), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, (uintptr_t)graph, NULL), 0);
    assert_true(ext_used(&alice, IBX_HOLD_GRAPHS) == before);
    dlclose(runtime);
}

/* A capture that another client's wait has invalidated accepts no more nodes, even if the client
 * does not end it. */
static void test_captures_that_are_invalid(void **state)
{
    (void)state;
    struct gpu_session *x = &alice.x;
    void *stream, *graph;
    const uint64_t most = ext_allow_more(&alice, IBX_HOLD_GRAPHS, 10);
    stream = ext_stream_make(&alice);
    capture_by_handler(x, CAPTURES_BEGUN, stream);
    assert_int_not_equal(app->ctx_synchronize(), 0);
    for (unsigned i = 0; i < 100; i++) {
        x->handler.captures = CAPTURES_SPARED;
        assert_true(ibx_graph_captures(x, ibx_call_find("cublasSgemm_v2", 15), NULL, 0));
        assert_true(is_recorded_in(x, stream));
    }
    x->handler.captures = CAPTURES_ENDED;
    ibx_captures_run(x);
    assert_int_equal(app->end_capture(stream, &graph), IBX_CALL_CAPTURE_INVALIDATED);
    ibx_captures_ran(x);
    ibx_captures_answered(x, IBX_CALL_CAPTURE_INVALIDATED);
    assert_false(ibx_captures_any());
    ibx_handles_remove(x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    atomic_store(&ext_quota(&alice, IBX_HOLD_GRAPHS)->most, most);
}

struct holder {
    struct gpu_session x;
    void (*holds)(struct gpu_session *x);
    void (*lets_go)(struct gpu_session *x);
    pthread_t thread;
    _Atomic pid_t id;
    atomic_bool has, over;
};

static void *hold(void *of)
{
    struct holder *h = of;
    atomic_store(&h->id, gettid());
    h->holds(&h->x);
    atomic_store(&h->has, true);
    while (!atomic_load(&h->over))
        sched_yield();
    h->lets_go(&h->x);
    return NULL;
}

/* Starts the thread, and waits until it has the graphs, or sleeps. Whether it sleeps. */
static bool waits(struct holder *h)
{
    pid_t id;
    assert_int_equal(pthread_create(&h->thread, NULL, hold, h), 0);
    while (!atomic_load(&h->has) &&
           !((id = atomic_load(&h->id)) && thread_state(getpid(), id) == 'S'))
        sched_yield();
    return !atomic_load(&h->has);
}

static void end(struct holder *h)
{
    atomic_store(&h->over, true);
    assert_int_equal(pthread_join(h->thread, NULL), 0);
}

static void run_handler(struct gpu_session *x)
{
    ibx_captures_run(x);
}

/* One that ends a capture comes before those that use its graph later. Otherwise these, one after
 * the other, would keep it out for ever. */
static void test_ends_before_later_uses(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct ibx_tenant *tenant = i ? NULL : alice.x.isolation.tenant;
        struct gpu_session x = {.isolation.tenant = tenant};
        struct holder ends = {x, .holds = run_handler, .lets_go = ibx_captures_ran};
        struct holder uses = {x, ibx_captures_graphs_hold, ibx_captures_graphs_let_go, .id = 0};
        ends.x.handler.captures = CAPTURES_DROPPED;
        ibx_captures_graphs_hold(&x);
        assert_true(waits(&ends));
        const bool later = waits(&uses);
        ibx_captures_graphs_let_go(&x);
        while (later && !atomic_load(&ends.has))
            sched_yield();
        const bool kept_out = !atomic_load(&uses.has);
        atomic_store(&uses.over, true);
        end(&ends);
        end(&uses);
        assert_true(later && kept_out);
    }
}

static void run_destroy(struct gpu_session *x)
{
    ibx_made_run(x, x->requests.first);
}

static void nothing(struct gpu_session *x)
{
    (void)x;
}

/* To destroy a stream ends its capture, whose graph other sessions may use: so it is GVirtuS's
 * handler that does it, when no other request uses the stream, and not the last of these. */
static void test_destroyed_in_capture(void **state)
{
    (void)state;
    struct gpu_session *x = &alice.x, other = {.s = session,
                                               .options.mode = IBX_GPU_ON,
                                               .replies.shape = IBX_REPLY_TIMED,
                                               .isolation = x->isolation};
    struct holder destroys = {other, run_destroy, nothing, .id = 0};
    void *stream = ext_stream_make(&alice);
    struct ibx_writer w = ibx_writer_of(destroys.x.requests.first, 8);
    ibx_put_u64(&w, (uintptr_t)stream);
    destroys.x.requests.length = 8;
    destroys.x.handler.made = MADE_ENDS;
    destroys.x.handler.made_kind = IBX_HANDLE_STREAM;
    capture_by_handler(x, CAPTURES_BEGUN, stream);
    assert_true(ibx_named_stream(&other, (uintptr_t)stream));
    const bool waited = waits(&destroys);
    ibx_handles_let_go(&other);
    end(&destroys);
    struct ibx_reader r = ibx_reader_of(destroys.x.requests.first, 8);
    assert_true(ibx_get_u64(&r) == (uintptr_t)stream && waited);
    assert_false(ibx_handles_there(IBX_HANDLE_STREAM, (uintptr_t)stream));
    capture_by_handler(x, CAPTURES_ENDED, stream);
    ibx_handles_uses_leave(&other);
    ibx_handles_uses_leave(&destroys.x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends_before_later_uses),
        cmocka_unit_test(test_destroyed_in_capture),
        cmocka_unit_test(test_captures_have_a_limit),
        cmocka_unit_test(test_captures_that_overlap),
        cmocka_unit_test(test_captures_that_join),
        cmocka_unit_test(test_captured_edges_count),
        cmocka_unit_test(test_captures_that_are_invalid),
    };
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
