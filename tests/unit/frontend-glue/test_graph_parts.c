/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What ends with a graph, while other sessions of the client name it. */
#include "tests/unit/frontend-glue/told_captures.h"

static struct client other; /* another session of alice's */
static int make_other(void **state)
{
    (void)state;
    other = alice;
    return 0;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_nodes_go_with_their_graph, make_other),
    };
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
