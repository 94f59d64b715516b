/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What ends with a graph, and graphs that end with something else, while other sessions of the
 * client name them. */
#include "tests/unit/frontend-glue/told_captures.h"

#include <string.h>

static struct client other; /* another session of alice's */
static struct {
    unsigned looks; /* how often a graph was just noted */
    bool could_end;
} noted;

bool __real_ibx_room_own(struct gpu_session *x, uint64_t handle);
bool __wrap_ibx_room_own(struct gpu_session *x, uint64_t handle);

/* As soon as a graph can be named, whoever guesses its address may try to destroy it. */
bool __wrap_ibx_room_own(struct gpu_session *x, uint64_t handle)
{
    noted.looks++;
    noted.could_end = ibx_handles_may_end(&other.x, IBX_HANDLE_GRAPH, handle);
    return __real_ibx_room_own(x, handle);
}

static int make_other(void **state)
{
    (void)state;
    memset(&noted, 0, sizeof(noted));
    other = alice;
    return 0;
}

static void assert_cannot_end(void)
{
    assert_int_equal(noted.looks, 1);
    assert_false(noted.could_end);
}

/* A node that could be named without its graph would be held by a request that does not hold the
 * graph, which CUDA destroys meanwhile. */
static void test_nodes_go_with_their_graph(void **state)
{
    (void)state;
    uint64_t node;
    const uint64_t graph = ext_graph_make(&alice), body = ext_body_add(&alice, graph);
    assert_int_equal(ext_memset_add(&alice, body, alice.memory, &node), 0);
    assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_GRAPH, graph));
    assert_false(knows(&other, IBX_HANDLE_NODE, node));
    assert_false(knows(&other, IBX_HANDLE_GRAPH, body));
    ibx_back_end_undo("cudaGraphDestroy", graph);
}

static void test_a_body_is_never_alone(void **state)
{
    (void)state;
    const uint64_t graph = ext_graph_make(&alice);
    noted.looks = 0;
    ext_body_add(&alice, graph);
    assert_cannot_end();
    ext_graph_destroy(&alice, graph);
}

static void test_a_child_is_never_alone(void **state)
{
    (void)state;
    uint8_t bytes[64];
    uint64_t node = 0, child = 0;
    const uint64_t graph = ext_graph_make(&alice), inner = ext_graph_make(&alice);
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_NODE_CHILD);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    ibx_put_u64(&w, inner);
    assert_int_equal(ext_run(&alice, &w, &node), 0);
    noted.looks = 0;
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GET_CHILD, node, &child), 0);
    assert_cannot_end();
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, child, NULL), CUDA_INVALID_VALUE);
    ext_graph_destroy(&alice, graph);
    ext_graph_destroy(&alice, inner);
}

static void test_a_graph_of_a_capture_is_never_alone(void **state)
{
    (void)state;
    struct told t;
    void *stream = begins(&alice);
    noted.looks = 0;
    assert_int_equal(ask(&alice, stream, 0, &t), 0);
    assert_cannot_end();
    ext_graph_destroy(&alice, ext_capture_end(&alice, stream));
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_nodes_go_with_their_graph, make_other),
        cmocka_unit_test_setup(test_a_body_is_never_alone, make_other),
        cmocka_unit_test_setup(test_a_child_is_never_alone, make_other),
        cmocka_unit_test_setup(test_a_graph_of_a_capture_is_never_alone, make_other),
    };
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
