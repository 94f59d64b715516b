/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The graph of a capture that a client asks for: what it may do with it until the capture ends, and
 * what is left then. */
#include "frontend-glue/session/session_internal.h"
#include "tests/fixtures/thread_state.h"
#include "tests/unit/frontend-glue/told_captures.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#define UNJOINED 904

/* The client adds nodes; what was captured and what it has added are one graph, which it has at the
 * end, with the nodes that it knows. All of it counts. */
static void test_adds_nodes(void **state)
{
    (void)state;
    struct told t;
    uint64_t node = 0;
    const uint64_t before = ext_used(&alice, IBX_HOLD_GRAPHS);
    void *stream = begins(&alice);
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    assert_true(t.status == 1 && t.count == 1 && t.graph && t.behind[0] && !t.behind[1]);
    const uint64_t first = t.behind[0], graph = t.graph;
    assert_int_equal(ext_memset_add(&alice, graph, alice.memory, &node), 0);
    assert_int_equal(come_behind(&alice, stream, 0, graph, &node, 1), 0); /* adds it */
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    assert_true(t.count == 2 && t.graph == graph);
    assert_true(t.behind[0] == first && t.behind[1] == node);
    assert_int_equal(ask(&alice, stream, 1, &t), 0);
    assert_true(t.count == 2 && t.behind[0] == node && !t.behind[1]);
    assert_int_equal(ask(&alice, stream, 9, &t), 0);
    assert_true(t.count == 2 && !t.behind[0]);
    assert_int_equal(come_behind(&alice, stream, 1, graph, &node, 1), 0); /* sets it */
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    assert_true(t.count == 1 && t.behind[0] == node);
    assert_int_equal(fill(&alice, stream), 0);
    assert_true(ext_capture_end(&alice, stream) == graph);
    assert_true(ibx_graph_measure(&alice.x, graph));
    ibx_handles_let_go(&alice.x);
    assert_int_equal(ext_nodes_count(&alice, graph), 3);
    assert_true(knows(&alice, IBX_HANDLE_NODE, first) && knows(&alice, IBX_HANDLE_NODE, node));
    assert_int_equal(ext_used(&alice, IBX_HOLD_GRAPHS), before + 4);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_NODE_DESTROY, node, NULL), 0);
    ext_graph_destroy(&alice, graph);
    assert_int_equal(ext_used(&alice, IBX_HOLD_GRAPHS), before);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

/* CUDA has the graph until the end of the capture. Nobody destroys it or a node of it, moves it
 * into another graph, or names it in another tenant; and nothing else than its nodes is behind it.
 */
static void test_stays_in_the_capture(void **state)
{
    (void)state;
    struct told t;
    uint8_t bytes[64];
    void *stream = begins(&alice), *idle = ext_stream_make(&alice);
    assert_int_equal(ask(&bob, stream, 0, &t), CUDA_INVALID_HANDLE);
    assert_int_equal(ask(&alice, idle, 0, &t), CUDA_NOT_SUPPORTED);
    assert_int_equal(ask(&alice, NULL, 0, &t), CUDA_NOT_SUPPORTED);
    assert_int_equal(ask(&alice, IBX_CUDA_STREAM_PER_THREAD, 0, &t), CUDA_NOT_SUPPORTED);
    assert_int_equal(ask(&alice, (void *)0x123450, 0, &t), CUDA_INVALID_HANDLE);
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, t.graph, NULL), 401);
    assert_false(ibx_handles_may_end(&alice.x, IBX_HANDLE_GRAPH, t.graph)); /* GVirtuS's handler */
    assert_int_equal(ext_call_one(&alice, IBX_EXT_NODE_DESTROY, t.behind[0], NULL), 401);
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_NODE_MOVED);
    ibx_put_u64(&w, alice.graph);
    ibx_put_u16(&w, 0);
    ibx_put_u64(&w, t.graph);
    assert_int_equal(ext_run(&alice, &w, NULL), CUDA_INVALID_VALUE);
    assert_false(knows(&bob, IBX_HANDLE_GRAPH, t.graph));
    assert_int_equal(come_behind(&alice, stream, 1, alice.graph, &alice.node, 1),
                     CUDA_INVALID_VALUE);
    assert_int_equal(come_behind(&alice, stream, 1, alice.graph, NULL, 0), CUDA_INVALID_VALUE);
    assert_int_equal(come_behind(&alice, stream, 1, t.graph, &alice.node, 1), CUDA_INVALID_VALUE);
    assert_int_equal(come_behind(&alice, stream, 2, t.graph, t.behind, 1), CUDA_INVALID_VALUE);
    assert_int_equal(come_behind(&alice, idle, 1, t.graph, t.behind, 1), CUDA_INVALID_VALUE);
    assert_int_equal(come_behind(&bob, stream, 1, t.graph, t.behind, 1), CUDA_INVALID_HANDLE);
    ext_graph_destroy(&alice, ext_capture_end(&alice, stream));
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)idle);
}

/* Each dependency that a request adds counts, as those do that come by events. */
static void test_dependencies_have_a_limit(void **state)
{
    (void)state;
    struct told t;
    uint64_t nodes[4];
    void *stream = begins(&alice);
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    for (unsigned i = 0; i < 4; i++)
        nodes[i] = t.behind[0];
    const uint64_t most = ext_allow_more(&alice, IBX_HOLD_GRAPHS, 6);
    assert_int_equal(come_behind(&alice, stream, 0, t.graph, nodes, 4), 0);
    assert_int_equal(come_behind(&alice, stream, 0, t.graph, nodes, 4), CUDA_MEMORY_ALLOCATION);
    atomic_store(&ext_quota(&alice, IBX_HOLD_GRAPHS)->most, most);
    ext_graph_destroy(&alice, ext_capture_end(&alice, stream));
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

static bool used; /* another request uses the stream for too long */

bool __real_ibx_handles_use_alone(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
bool __wrap_ibx_handles_use_alone(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
bool __wrap_ibx_handles_use_alone(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    return !used && __real_ibx_handles_use_alone(x, kind, value);
}

/* Without the stream alone nobody asks CUDA for what the stream's next call changes. */
static void test_stream_is_not_alone(void **state)
{
    (void)state;
    struct told t, none = {0};
    void *stream = begins(&alice);
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    used = true;
    assert_int_equal(ask(&alice, stream, 0, &none), CUDA_INVALID_HANDLE);
    assert_int_equal(come_behind(&alice, stream, 1, t.graph, NULL, 0), CUDA_INVALID_HANDLE);
    used = false;
    assert_int_equal(ask(&alice, stream, 0, &none), 0);
    assert_int_equal(none.count, 1); /* nothing was changed */
    ext_graph_destroy(&alice, ext_capture_end(&alice, stream));
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

/* A capture that ends without a graph takes what the client was told with it. */
static void test_ends_without_a_graph(void **state)
{
    (void)state;
    int (*end)(void *stream, void **graph) = NULL;
    struct told t;
    void *graph = NULL, *stream = begins(&alice), *other = ext_stream_make(&alice), *event;
    const uint64_t before = ext_used(&alice, IBX_HOLD_GRAPHS);
    *(void **)&end = ibx_back_end_runtime("cudaStreamEndCapture");
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    assert_int_equal(app->event_create(&event, 0), 0);
    assert_int_equal(app->event_record(event, stream), 0);
    assert_int_equal(app->stream_wait_event(other, event, 0), 0);
    handler(&alice, CAPTURES_ENDED, stream);
    assert_int_equal(end(stream, &graph), UNJOINED);
    answers(&alice, UNJOINED);
    assert_false(knows(&alice, IBX_HANDLE_GRAPH, t.graph));
    assert_false(knows(&alice, IBX_HANDLE_NODE, t.behind[0]));
    assert_int_equal(ext_used(&alice, IBX_HOLD_GRAPHS), before);
    ext_event_destroy(event);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)other);
}

/* The graph of a capture that was invalidated is there until that ends, as on an H200. */
static void test_is_invalidated(void **state)
{
    (void)state;
    int (*end)(void *stream, void **graph) = NULL;
    struct told t;
    uint64_t node;
    void *graph = NULL, *stream = begins(&alice);
    *(void **)&end = ibx_back_end_runtime("cudaStreamEndCapture");
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    assert_int_not_equal(app->ctx_synchronize(), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_NODE_TYPE, t.behind[0], &node), 0);
    assert_int_equal(ext_memset_add(&alice, t.graph, alice.memory, &node), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, t.graph, NULL), 401);
    assert_int_equal(ask(&alice, stream, 0, &t), CUDA_NOT_SUPPORTED);
    handler(&alice, CAPTURES_ENDED, stream);
    assert_int_equal(end(stream, &graph), IBX_CALL_CAPTURE_INVALIDATED);
    answers(&alice, IBX_CALL_CAPTURE_INVALIDATED);
    assert_false(knows(&alice, IBX_HANDLE_GRAPH, t.graph));
    assert_false(knows(&alice, IBX_HANDLE_NODE, node));
    assert_false(ibx_captures_any());
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

static unsigned undone; /* graphs that were destroyed as nobody got them */

void __real_ibx_back_end_undo(const char *name, uint64_t made);
void __wrap_ibx_back_end_undo(const char *name, uint64_t made);
void __wrap_ibx_back_end_undo(const char *name, uint64_t made)
{
    undone += !strcmp(name, "cudaGraphDestroy");
    __real_ibx_back_end_undo(name, made);
}

/* So does the stream, and the session that has begun the capture. */
static void test_ends_with_its_stream_or_session(void **state)
{
    void (*destroyed)(void *stream) = NULL;
    struct told t;
    (void)state;
    *(void **)&destroyed = ibx_back_end_runtime("ibx_double_stream_destroyed");
    void *stream = begins(&alice);
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    handler(&alice, CAPTURES_DROPPED, stream);
    destroyed(stream);
    answers(&alice, 0);
    assert_false(knows(&alice, IBX_HANDLE_GRAPH, t.graph));
    assert_false(ibx_captures_any());
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    stream = begins(&alice);
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    assert_true(knows(&alice, IBX_HANDLE_GRAPH, t.graph));
    const unsigned before = undone;
    ibx_captures_end(&alice.x);
    assert_int_equal(undone, before + 1);
    assert_false(knows(&alice, IBX_HANDLE_GRAPH, t.graph));
    assert_false(knows(&alice, IBX_HANDLE_NODE, t.behind[0]));
    assert_false(ibx_captures_any());
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

/* ------------------------------------------------- what another thread of the client does */

static struct client other; /* another session of alice's */
static struct {
    void (*does)(void);
    void *stream;
    bool armed;
    pthread_t thread;
    _Atomic pid_t id;
    atomic_bool over;
    unsigned asked; /* how often CUDA was asked about a stream */
} ender;

static void *run_it(void *unused)
{
    (void)unused;
    atomic_store(&ender.id, gettid());
    ender.does();
    atomic_store(&ender.over, true);
    return NULL;
}

/* Returns when the other thread has done it, or waits. */
static void go_meanwhile(void)
{
    ender.armed = false;
    atomic_store(&ender.over, false);
    atomic_store(&ender.id, 0);
    assert_int_equal(pthread_create(&ender.thread, NULL, run_it, NULL), 0);
    while (!atomic_load(&ender.over) &&
           !(atomic_load(&ender.id) && thread_state(getpid(), atomic_load(&ender.id)) == 'S'))
        sched_yield();
}

bool __real_ibx_capture_is_still(struct gpu_session *x, uint64_t stream, uint64_t id);
bool __wrap_ibx_capture_is_still(struct gpu_session *x, uint64_t stream, uint64_t id);
bool __wrap_ibx_capture_is_still(struct gpu_session *x, uint64_t stream, uint64_t id)
{
    ender.asked++;
    if (ender.armed) {
        go_meanwhile();
        assert_false(atomic_load(&ender.over)); /* else CUDA gets a stream that is gone */
    }
    return __real_ibx_capture_is_still(x, stream, id);
}

static void make_other(void)
{
    other.x.s = session;
    other.x.options.mode = IBX_GPU_ON;
    other.x.replies.shape = IBX_REPLY_TIMED;
    other.x.isolation = alice.x.isolation;
}

static void session_ends(void)
{
    ibx_captures_end(&alice.x);
}

static void stream_ends(void)
{
    void (*destroyed)(void *stream) = NULL;
    *(void **)&destroyed = ibx_back_end_runtime("ibx_double_stream_destroyed");
    handler(&alice, CAPTURES_DROPPED, ender.stream);
    destroyed(ender.stream);
    answers(&alice, 0);
}

/* A session that ends, ends its capture, which destroys the graph: not while a request of another
 * session has the graph. */
static void test_session_ends_during_a_request(void **state)
{
    struct told t;
    (void)state;
    make_other();
    ender.does = session_ends;
    void *stream = begins(&alice);
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    assert_true(ibx_handles_know(&other.x, IBX_HANDLE_GRAPH, t.graph));
    go_meanwhile();
    const bool over = atomic_load(&ender.over);
    ibx_handles_let_go(&other.x);
    assert_int_equal(pthread_join(ender.thread, NULL), 0);
    assert_false(over);
    assert_false(knows(&other, IBX_HANDLE_GRAPH, t.graph));
    assert_false(ibx_captures_any());
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

/* A handler of GVirtuS's names the graph. While CUDA is asked whether its stream is still being
 * captured, nobody destroys the stream. */
static void test_stream_ends_during_a_check(void **state)
{
    struct told t;
    (void)state;
    make_other();
    ender.does = stream_ends;
    ender.stream = begins(&alice);
    assert_int_equal(ask(&alice, ender.stream, 0, &t), 0);
    ender.armed = true;
    assert_true(ibx_captures_has_graph(&other.x, t.graph));
    assert_int_equal(pthread_join(ender.thread, NULL), 0);
    assert_false(knows(&other, IBX_HANDLE_GRAPH, t.graph));
    assert_false(ibx_captures_any());
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)ender.stream);
}

static struct {
    uint64_t graph;
    int rc;
} wished;

static void graph_is_destroyed(void)
{
    wished.rc = ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, wished.graph, NULL);
}

/* While a request waits to destroy a graph, the one that has it begins a capture into it, or moves
 * it into another graph: then it stays. */
static void test_graph_is_destroyed_during_a_request(void **state)
{
    (void)state;
    int (*give_back)(void *graph) = NULL;
    *(void **)&give_back = ibx_back_end_runtime("cudaGraphDestroy");
    make_other();
    ender.does = graph_is_destroyed;
    for (unsigned moves = 0; moves < 2; moves++) {
        const uint64_t outer = ext_graph_make(&alice);
        wished.graph = ext_graph_make(&alice);
        assert_true(ibx_handles_know(&other.x, IBX_HANDLE_GRAPH, wished.graph));
        go_meanwhile();
        if (moves)
            ibx_handles_within(&other.x, wished.graph, outer);
        else
            ibx_handles_capture_begins(&other.x, wished.graph);
        ibx_handles_let_go(&other.x);
        assert_int_equal(pthread_join(ender.thread, NULL), 0);
        assert_int_equal(wished.rc, moves ? CUDA_INVALID_VALUE : 401);
        assert_true(knows(&alice, IBX_HANDLE_GRAPH, wished.graph));
        ibx_handles_capture_over(&alice.x, wished.graph, true);
        ext_graph_destroy(&alice, outer);
        if (moves) /* CUDA has not moved it */
            assert_int_equal(give_back((void *)(uintptr_t)wished.graph), 0);
        else
            ext_graph_destroy(&alice, wished.graph);
        assert_false(knows(&alice, IBX_HANDLE_GRAPH, wished.graph));
    }
}

/* A session that is about to begin a capture in the same stream, in vain, hides from others whose
 * capture it is, and that who ends it has the graph alone. */
static void test_begin_in_vain(void **state)
{
    struct told t;
    struct client third;
    (void)state;
    make_other();
    third = other;
    void *stream = begins(&alice);
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    assert_true(handler(&other, CAPTURES_BEGUN, stream));
    const uint64_t told[] = {ibx_told_graph(&alice.x, (uintptr_t)stream, false),
                             ibx_told_graph(&other.x, (uintptr_t)stream, false),
                             ibx_told_graph(&third.x, (uintptr_t)stream, false)};
    answers(&other, 401);
    assert_true(ext_capture_end(&alice, stream) == t.graph);
    ext_graph_destroy(&alice, t.graph);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    for (unsigned i = 0; i < 3; i++)
        assert_true(told[i] == t.graph);
    assert_false(ibx_captures_any());
}

/* Another session's capture in the same stream has ended unseen, and that session has noted this
 * one for its own: whoever ends it finds the graph. */
static void test_is_noted_twice(void **state)
{
    struct told t;
    (void)state;
    make_other();
    void *stream = begins(&alice);
    assert_true(handler(&other, CAPTURES_BEGUN, stream));
    answers(&other, 0);
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    const uint64_t told[] = {ibx_told_graph(&alice.x, (uintptr_t)stream, false),
                             ibx_told_graph(&other.x, (uintptr_t)stream, false)};
    assert_true(ext_capture_end(&alice, stream) == t.graph);
    ibx_captures_end(&other.x);
    ibx_captures_end(&alice.x);
    ext_graph_destroy(&alice, t.graph);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    assert_true(told[0] == t.graph && told[1] == t.graph);
    assert_false(ibx_captures_any());
}

static bool keeps; /* a request has the graph for too long */

bool __real_ibx_handles_change(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
bool __wrap_ibx_handles_change(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
bool __wrap_ibx_handles_change(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    return !keeps && __real_ibx_handles_change(x, kind, value);
}

/* Nobody ends a capture whose graph another request keeps: CUDA might destroy it. The handler gets
 * no stream; if the session ends, the capture is left to the end of its stream. */
static void test_graph_is_kept_too_long(void **state)
{
    static const enum captures_use uses[] = {CAPTURES_ENDED, CAPTURES_DROPPED};
    struct told t;
    int status = 0;
    (void)state;
    session->path.provider[0] = 'p'; /* what is logged names the peer */
    void *stream = begins(&alice);
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t body[2] = {(uintptr_t)stream, 7};
        make_other();
        if (uses[i] == CAPTURES_DROPPED)
            assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream));
        assert_true(ibx_handles_know(&other.x, IBX_HANDLE_GRAPH, t.graph));
        keeps = true;
        assert_false(handler(&alice, uses[i], stream));
        keeps = false;
        assert_int_equal(ibx_captures_refuse(&alice.x, (uint8_t *)body), 0);
        assert_true(!body[0] && body[1] == 7);
        answers(&alice, CUDA_INVALID_HANDLE);
        assert_true(knows(&alice, IBX_HANDLE_STREAM, (uintptr_t)stream));
        assert_true(ibx_captures_any());
        ibx_handles_let_go(&other.x);
        assert_int_equal(ask(&alice, stream, 0, &t), 0);
    }
    assert_true(ibx_handles_know(&other.x, IBX_HANDLE_GRAPH, t.graph));
    keeps = true;
    ibx_captures_end(&alice.x);
    keeps = false;
    ibx_handles_let_go(&other.x);
    assert_false(knows(&other, IBX_HANDLE_GRAPH, t.graph));
    int (*is_capturing)(void *stream, int *status) = NULL;
    void (*destroyed)(void *stream) = NULL;
    *(void **)&is_capturing = ibx_back_end_runtime("cudaStreamIsCapturing");
    *(void **)&destroyed = ibx_back_end_runtime("ibx_double_stream_destroyed");
    assert_int_equal(is_capturing(stream, &status), 0);
    assert_int_equal(status, 1);
    destroyed(stream);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

/* GVirtuS's handler has ended the capture of another session's, with that result, and its answer
 * has still to tell whether it has made a graph. */
static void *ends_unanswered(struct told *t, int rc)
{
    int (*end)(void *stream, void **graph) = NULL;
    void *graph = NULL, *stream = begins(&alice);
    *(void **)&end = ibx_back_end_runtime("cudaStreamEndCapture");
    make_other();
    assert_int_equal(ask(&alice, stream, 0, t), 0);
    if (rc)
        assert_int_not_equal(app->ctx_synchronize(), 0);
    handler(&other, CAPTURES_ENDED, stream);
    assert_int_equal(end(stream, &graph), rc);
    assert_true((uintptr_t)graph == (rc ? 0 : t->graph));
    ibx_captures_ran(&other.x);
    return stream;
}

/* Neither who names the graph until then loses it, nor the end of the session that has begun the
 * capture. */
static void test_is_named_before_the_answer(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct told t;
        void *stream = ends_unanswered(&t, 0);
        if (i)
            ibx_captures_end(&alice.x);
        else
            assert_true(ibx_captures_has_graph(&alice.x, t.graph));
        answers(&other, 0);
        assert_true(knows(&alice, IBX_HANDLE_GRAPH, t.graph));
        assert_true(knows(&alice, IBX_HANDLE_NODE, t.behind[0]));
        assert_false(ibx_captures_any());
        ext_graph_destroy(&alice, t.graph);
        ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    }
}

/* The session ends when its handler has written the head of its answer, or not even that. */
static void ends_before_the_answer(const int32_t *head)
{
    if (head)
        ibx_reply_note_write(&other.x.replies, head, sizeof(*head));
    ibx_captures_end(&other.x);
    ibx_handles_let_go(&other.x);
    other.x.replies.count = 0;
}

/* Nobody gets the graph if its session ends before, and it does not stay in CUDA. */
static void test_is_never_answered(void **state)
{
    struct told t;
    const int32_t success = 0;
    (void)state;
    void *stream = ends_unanswered(&t, 0);
    const unsigned before = undone;
    ends_before_the_answer(&success);
    assert_int_equal(undone, before + 1);
    assert_false(knows(&alice, IBX_HANDLE_GRAPH, t.graph));
    assert_false(ibx_captures_any());
    ibx_captures_end(&alice.x);
    assert_int_equal(undone, before + 1);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

/* CUDA has destroyed the graph, or may have: nobody asks for it, as another client may have got a
 * graph at that address. */
static void test_failure_is_never_answered(void **state)
{
    const int32_t failure = IBX_CALL_CAPTURE_INVALIDATED;
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct told t;
        void *stream = ends_unanswered(&t, failure);
        const unsigned before = undone;
        ends_before_the_answer(i ? &failure : NULL);
        assert_int_equal(undone, before);
        assert_false(knows(&alice, IBX_HANDLE_GRAPH, t.graph));
        ibx_captures_end(&alice.x);
        assert_false(ibx_captures_any());
        ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    }
}

/* The session of a handler that has ended nothing leaves the capture as it is. */
static void test_session_ends_after_a_failure(void **state)
{
    struct told t;
    (void)state;
    make_other();
    void *stream = begins(&alice);
    const unsigned before = undone;
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    handler(&other, CAPTURES_ENDED, stream);
    ibx_captures_ran(&other.x);
    ibx_captures_end(&other.x);
    ibx_handles_let_go(&other.x);
    assert_int_equal(undone, before);
    assert_true(ibx_captures_any());
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    assert_true(ext_capture_end(&alice, stream) == t.graph);
    ext_graph_destroy(&alice, t.graph);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

/* CUDA is not asked about a stream that is being destroyed. */
static void test_is_named_after_its_stream(void **state)
{
    void (*destroyed)(void *stream) = NULL;
    struct told t;
    (void)state;
    make_other();
    *(void **)&destroyed = ibx_back_end_runtime("ibx_double_stream_destroyed");
    void *stream = begins(&alice);
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    handler(&alice, CAPTURES_DROPPED, stream);
    destroyed(stream);
    ibx_captures_ran(&alice.x);
    const unsigned before = ender.asked;
    ibx_captures_has_graph(&other.x, t.graph);
    assert_int_equal(ender.asked, before);
    answers(&alice, 0);
    assert_false(knows(&other, IBX_HANDLE_GRAPH, t.graph));
    assert_false(ibx_captures_any());
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

/* Nor about one that the last of its users has destroyed: who destroys it did not know yet that one
 * of these was about to begin a capture. */
static void test_is_named_after_a_destroyed_stream(void **state)
{
    void (*destroyed)(void *stream) = NULL;
    struct told t;
    (void)state;
    make_other();
    void *stream = begins(&alice);
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    *(void **)&destroyed = ibx_back_end_runtime("ibx_double_stream_destroyed");
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    destroyed(stream);
    const unsigned before = ender.asked;
    assert_false(ibx_captures_has_graph(&other.x, t.graph));
    assert_int_equal(ender.asked, before);
    assert_false(knows(&alice, IBX_HANDLE_GRAPH, t.graph));
    ibx_captures_end(&alice.x);
    assert_false(ibx_captures_any());
}

/* A handler that has failed, and ended nothing, leaves the graph with the capture. If that ends
 * unseen, who names it is told. */
static void test_stays_after_a_failure(void **state)
{
    void (*destroyed)(void *stream) = NULL;
    struct told t;
    (void)state;
    make_other();
    void *stream = begins(&alice);
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    handler(&other, CAPTURES_ENDED, stream);
    answers(&other, CUDA_INVALID_VALUE);
    assert_true(ibx_captures_has_graph(&other.x, t.graph));
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, t.graph, NULL), 401);
    *(void **)&destroyed = ibx_back_end_runtime("ibx_double_stream_destroyed");
    destroyed(stream);
    assert_false(ibx_captures_has_graph(&other.x, t.graph));
    assert_false(knows(&other, IBX_HANDLE_GRAPH, t.graph));
    ibx_captures_end(&alice.x);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adds_nodes),
        cmocka_unit_test(test_stays_in_the_capture),
        cmocka_unit_test(test_dependencies_have_a_limit),
        cmocka_unit_test(test_stream_is_not_alone),
        cmocka_unit_test(test_ends_without_a_graph),
        cmocka_unit_test(test_is_invalidated),
        cmocka_unit_test(test_ends_with_its_stream_or_session),
        cmocka_unit_test(test_session_ends_during_a_request),
        cmocka_unit_test(test_stream_ends_during_a_check),
        cmocka_unit_test(test_graph_is_destroyed_during_a_request),
        cmocka_unit_test(test_begin_in_vain),
        cmocka_unit_test(test_is_noted_twice),
        cmocka_unit_test(test_graph_is_kept_too_long),
        cmocka_unit_test(test_is_named_before_the_answer),
        cmocka_unit_test(test_is_never_answered),
        cmocka_unit_test(test_failure_is_never_answered),
        cmocka_unit_test(test_session_ends_after_a_failure),
        cmocka_unit_test(test_is_named_after_its_stream),
        cmocka_unit_test(test_is_named_after_a_destroyed_stream),
        cmocka_unit_test(test_stays_after_a_failure),
    };
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
