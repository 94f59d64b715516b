/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Captures into a graph that the client gives. */
#include "tests/unit/frontend-glue/told_captures.h"

#include <stdlib.h>

/* Behind a node, so many times. */
static int into_behind(struct client *c, void *stream, uint64_t graph, uint64_t node,
                       uint16_t times)
{
    uint8_t bytes[64 + 8 * IBX_EXT_BEHIND];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_CAPTURE_INTO);
    ibx_put_u64(&w, (uintptr_t)stream);
    ibx_put_u32(&w, IBX_CUDA_CAPTURE_RELAXED);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, times);
    for (unsigned i = 0; i < times; i++)
        ibx_put_u64(&w, node);
    return ext_run(c, &w, NULL);
}

static int into(struct client *c, void *stream, uint64_t graph, uint64_t node)
{
    return into_behind(c, stream, graph, node, node != 0);
}

/* A capture into a graph of the client's, with one node in it before, and one that was captured. */
static void *begins_into(struct client *c, uint64_t *graph, uint64_t *node)
{
    void *stream = ext_stream_make(c);
    *graph = ext_graph_make(c);
    assert_int_equal(ext_memset_add(c, *graph, c->memory, node), 0);
    assert_int_equal(into(c, stream, *graph, *node), 0);
    assert_int_equal(fill(c, stream), 0);
    return stream;
}

/* Work is captured behind the nodes that the client names, and the graph stays its own. */
static void test_captures_into_a_graph(void **state)
{
    (void)state;
    struct told t = {0};
    uint64_t graph, node, before = ext_used(&alice, IBX_HOLD_GRAPHS);
    void *stream = begins_into(&alice, &graph, &node), *other = ext_stream_make(&alice);
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    assert_true(t.graph == graph && t.count == 1 && t.behind[0] != node);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, NULL), 401);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_NODE_DESTROY, node, NULL), 401);
    assert_int_equal(into(&alice, other, graph, 0), 401); /* as CUDA has it */
    assert_int_equal(ext_nodes_count(&alice, graph), 2);
    assert_true(ext_capture_end(&alice, stream) == graph);
    assert_true(ibx_graph_measure(&alice.x, graph));
    ibx_handles_let_go(&alice.x);
    assert_int_equal(ext_used(&alice, IBX_HOLD_GRAPHS), before + 3);
    assert_true(knows(&alice, IBX_HANDLE_NODE, node));
    assert_int_equal(into(&alice, other, graph, t.behind[0]), 0); /* again */
    assert_true(ext_capture_end(&alice, other) == graph);
    ext_graph_destroy(&alice, graph);
    assert_int_equal(ext_used(&alice, IBX_HOLD_GRAPHS), before);
    assert_false(ibx_captures_any());
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)other);
}

/* No capture begins into what is not the client's, or behind what is not in that graph; nor into a
 * part of another graph, which CUDA would destroy if the capture failed. */
static void test_captures_into_nothing_else(void **state)
{
    (void)state;
    void *stream = ext_stream_make(&alice);
    const uint64_t outer = ext_graph_make(&alice), body = ext_body_add(&alice, outer);
    assert_int_equal(into(&bob, stream, bob.graph, 0), CUDA_INVALID_HANDLE);
    assert_int_equal(into(&alice, stream, bob.graph, 0), CUDA_INVALID_VALUE);
    assert_int_equal(into(&alice, stream, outer, alice.node), CUDA_INVALID_VALUE);
    assert_int_equal(into(&alice, stream, body, 0), CUDA_NOT_SUPPORTED);
    assert_int_equal(into(&alice, stream, 0, 0), CUDA_INVALID_VALUE);
    assert_int_equal(into(&alice, NULL, outer, 0), 900);
    assert_false(ibx_captures_any());
    ext_graph_destroy(&alice, outer);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

/* Each node that the first work comes behind counts, but one, which counts with that work. */
static void test_dependencies_have_a_limit(void **state)
{
    (void)state;
    uint64_t node, graph = ext_graph_make(&alice);
    void *stream = ext_stream_make(&alice);
    assert_int_equal(ext_memset_add(&alice, graph, alice.memory, &node), 0);
    const uint64_t most = ext_allow_more(&alice, IBX_HOLD_GRAPHS, 4);
    assert_int_equal(into_behind(&alice, stream, graph, node, 4), 0);
    assert_int_equal(fill(&alice, stream), 0);
    assert_int_equal(fill(&alice, stream), CUDA_MEMORY_ALLOCATION);
    atomic_store(&ext_quota(&alice, IBX_HOLD_GRAPHS)->most, most);
    assert_true(ext_capture_end(&alice, stream) == graph);
    ext_graph_destroy(&alice, graph);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

/* The end of the other capture destroys the graph. */
static void test_captures_into_no_invalid_one(void **state)
{
    (void)state;
    void *other = ext_stream_make(&alice), *same = NULL;
    int (*end)(void *stream, void **graph) = NULL;
    uint64_t graph, node;
    void *stream = begins_into(&alice, &graph, &node);
    assert_int_not_equal(app->ctx_synchronize(), 0);
    assert_int_equal(into(&alice, other, graph, 0), 401);
    *(void **)&end = ibx_back_end_runtime("cudaStreamEndCapture");
    handler(&alice, CAPTURES_ENDED, stream);
    assert_int_equal(end(stream, &same), IBX_CALL_CAPTURE_INVALIDATED);
    answers(&alice, IBX_CALL_CAPTURE_INVALIDATED);
    assert_false(knows(&alice, IBX_HANDLE_GRAPH, graph) || ibx_captures_any());
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)other);
}

static bool invalidates; /* another thread of the client's does, as soon as the capture has begun */

bool __real_ibx_capture_status(struct gpu_session *x, uint64_t stream, int *status, uint64_t *id);
bool __wrap_ibx_capture_status(struct gpu_session *x, uint64_t stream, int *status, uint64_t *id);
bool __wrap_ibx_capture_status(struct gpu_session *x, uint64_t stream, int *status, uint64_t *id)
{
    if (!invalidates)
        return __real_ibx_capture_status(x, stream, status, id);
    assert_int_not_equal(app->ctx_synchronize(), 0);
    *status = CAPTURE_IS_INVALIDATED;
    *id = 0;
    return true;
}

/* CUDA has no number of it, so the capture does not begin; CUDA has destroyed the graph. */
static void test_is_invalid_at_once(void **state)
{
    (void)state;
    uint64_t node, graph = ext_graph_make(&alice);
    void *stream = ext_stream_make(&alice);
    assert_int_equal(ext_memset_add(&alice, graph, alice.memory, &node), 0);
    invalidates = true;
    assert_int_equal(into(&alice, stream, graph, node), CUDA_MEMORY_ALLOCATION);
    invalidates = false;
    assert_false(ibx_captures_any());
    assert_false(knows(&alice, IBX_HANDLE_GRAPH, graph));
    assert_false(knows(&alice, IBX_HANDLE_NODE, node));
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

/* A capture that has ended unseen, with its stream and its graph: another tenant has a graph at
 * that address since, and captures into that. It keeps it when the first one's session ends. */
static void test_address_is_anothers(void **state)
{
    (void)state;
    void (*destroyed)(void *stream) = NULL;
    uint64_t graph, node;
    void *stream = begins_into(&alice, &graph, &node);
    *(void **)&destroyed = ibx_back_end_runtime("ibx_double_stream_destroyed");
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    destroyed(stream);
    assert_true(ibx_graph_note(&bob.x, IBX_HANDLE_GRAPH, graph));
    ibx_handles_capture_begins(&bob.x, graph);
    ibx_captures_end(&alice.x);
    assert_true(knows(&bob, IBX_HANDLE_GRAPH, graph));
    assert_true(ibx_handles_is_captured(&bob.x, graph));
    ibx_handles_capture_over(&bob.x, graph, false);
    assert_false(knows(&bob, IBX_HANDLE_GRAPH, graph));
    ibx_owners_remove(graph, ibx_owners_number(graph));
}

/* If the capture fails, or its stream is destroyed, CUDA destroys the graph. If the session ends,
 * the graph is the client's as before. */
static void test_ends_of_captures_into_a_graph(void **state)
{
    (void)state;
    int (*end)(void *stream, void **graph) = NULL;
    void (*destroyed)(void *stream) = NULL;
    const uint64_t before = ext_used(&alice, IBX_HOLD_ALLOCATIONS);
    uint64_t graph, node;
    void *same = NULL, *stream = begins_into(&alice, &graph, &node);
    *(void **)&end = ibx_back_end_runtime("cudaStreamEndCapture");
    *(void **)&destroyed = ibx_back_end_runtime("ibx_double_stream_destroyed");
    assert_int_not_equal(app->ctx_synchronize(), 0);
    handler(&alice, CAPTURES_ENDED, stream);
    assert_int_equal(end(stream, &same), IBX_CALL_CAPTURE_INVALIDATED);
    answers(&alice, IBX_CALL_CAPTURE_INVALIDATED);
    assert_false(knows(&alice, IBX_HANDLE_GRAPH, graph));
    assert_false(knows(&alice, IBX_HANDLE_NODE, node));
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    stream = begins_into(&alice, &graph, &node);
    handler(&alice, CAPTURES_DROPPED, stream);
    destroyed(stream);
    answers(&alice, 0);
    assert_false(knows(&alice, IBX_HANDLE_GRAPH, graph));
    assert_int_equal(ext_used(&alice, IBX_HOLD_ALLOCATIONS), before);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    for (unsigned unanswered = 0; unanswered < 2; unanswered++) {
        stream = begins_into(&alice, &graph, &node);
        if (unanswered) {
            const int32_t success = 0;
            handler(&alice, CAPTURES_ENDED, stream);
            assert_int_equal(end(stream, &same), 0);
            ibx_reply_note_write(&alice.x.replies, &success, sizeof(success));
        }
        ibx_captures_end(&alice.x);
        ibx_handles_let_go(&alice.x);
        alice.x.replies.count = 0;
        assert_true(knows(&alice, IBX_HANDLE_GRAPH, graph));
        assert_true(knows(&alice, IBX_HANDLE_NODE, node));
        ext_graph_destroy(&alice, graph);
        ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    }
    assert_false(ibx_captures_any());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_captures_into_a_graph),
        cmocka_unit_test(test_captures_into_nothing_else),
        cmocka_unit_test(test_dependencies_have_a_limit),
        cmocka_unit_test(test_captures_into_no_invalid_one),
        cmocka_unit_test(test_is_invalid_at_once),
        cmocka_unit_test(test_address_is_anothers),
        cmocka_unit_test(test_ends_of_captures_into_a_graph),
    };
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
