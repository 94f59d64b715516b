/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Edges between nodes of graphs, and their data, as requests have them. */
#include "tests/fixtures/extensions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Of a kernel that the double makes of any number. */
static uint64_t kernel_add(struct client *c, uint64_t graph)
{
    uint8_t bytes[128];
    uint64_t node = 0;
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_NODE_KERNEL);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    ibx_put_u64(&w, 0x7000);
    for (unsigned i = 0; i < 6; i++)
        ibx_put_u32(&w, 1);
    ibx_put_u64(&w, 0);
    ibx_put_u64(&w, 0);
    ibx_put_u64(&w, 24);
    ibx_put_u64(&w, c->memory);
    ibx_put_u64(&w, c->memory);
    ibx_put_u64(&w, 8);
    assert_int_equal(ext_run(c, &w, &node), 0);
    return node;
}

static int order(struct client *c, bool removes, const uint64_t nodes[3], const uint8_t *edge)
{
    uint8_t bytes[64];
    struct ibx_writer w =
        ext_body(bytes, sizeof(bytes), edge ? IBX_EXT_GRAPH_ORDER_DATA : IBX_EXT_GRAPH_ORDER);
    for (unsigned i = 0; i < 3; i++)
        ibx_put_u64(&w, nodes[i]);
    ibx_put_u8(&w, removes);
    ibx_put_bytes(&w, edge ? edge : bytes, edge ? IBX_EXT_EDGE : 0);
    return ext_run(c, &w, NULL);
}

/* The last neighbour of a node, which has `from` others, and the data of the edge between. */
static int edge_of(struct client *c, uint64_t node, uint64_t from, bool behind, uint64_t *other,
                   uint64_t *data)
{
    uint8_t bytes[64], out[IBX_EXT_OUT_MAX];
    size_t n = 0;
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_NODE_EDGES);
    ibx_put_u64(&w, node);
    ibx_put_u64(&w, from);
    ibx_put_u8(&w, behind);
    const int rc = ext_answer(c, &w, out, &n);
    struct ibx_reader r = ibx_reader_of(out, rc ? 0 : n);
    const uint64_t count = ibx_get_u64(&r);
    *other = ibx_get_u64(&r);
    *data = ibx_get_u64(&r);
    assert_true(rc || (n == IBX_EXT_OUT_MAX && count == from + 1));
    return rc;
}

/* The data of edges goes both ways. CUDA refuses what it does not know, and an edge that another
 * client's graph is to get does not reach it. */
static void test_edges_have_data(void **state)
{
    (void)state;
    static const uint8_t edge[IBX_EXT_EDGE] = {1, 0, 1}, strange[IBX_EXT_EDGE] = {1, 0, 1, 1},
                         unfit[IBX_EXT_EDGE] = {0, 0, 1};
    const uint64_t graph = ext_graph_make(&alice);
    uint64_t nodes[3] = {graph}, other, data;
    for (unsigned i = 1; i < 3; i++)
        nodes[i] = kernel_add(&alice, graph);
    assert_int_equal(order(&alice, false, nodes, strange), CUDA_INVALID_VALUE);
    assert_int_equal(order(&alice, false, nodes, unfit), CUDA_INVALID_VALUE);
    assert_int_equal(order(&bob, false, nodes, edge), CUDA_INVALID_VALUE);
    assert_int_equal(order(&alice, false, nodes, edge), 0);
    for (unsigned behind = 0; behind < 2; behind++) {
        assert_int_equal(edge_of(&alice, nodes[2 - behind], 0, behind, &other, &data), 0);
        assert_true(other == nodes[1 + behind] && !memcmp(&data, edge, sizeof(data)));
        assert_int_equal(edge_of(&bob, nodes[2 - behind], 0, behind, &other, &data),
                         CUDA_INVALID_VALUE);
    }
    assert_int_equal(order(&alice, true, nodes, edge), 0);
    assert_int_equal(order(&alice, true, nodes, edge), CUDA_INVALID_VALUE);
    assert_int_equal(order(&alice, false, nodes, NULL), 0);
    assert_int_equal(edge_of(&alice, nodes[2], 0, false, &other, &data), 0);
    assert_true(other == nodes[1] && !data);
    ext_graph_destroy(&alice, graph);
}

/* An answer has the edges from that on which the request names. */
static void test_edges_from_one_on(void **state)
{
    (void)state;
    static const uint8_t edge[IBX_EXT_EDGE] = {1, 0, 1};
    uint64_t other, data, nodes[3] = {ext_graph_make(&alice)};
    nodes[1] = kernel_add(&alice, nodes[0]);
    for (unsigned i = 0; i <= IBX_EXT_EDGES; i++) {
        nodes[2] = kernel_add(&alice, nodes[0]);
        assert_int_equal(order(&alice, false, nodes, i < IBX_EXT_EDGES ? NULL : edge), 0);
    }
    assert_int_equal(edge_of(&alice, nodes[1], IBX_EXT_EDGES, true, &other, &data), 0);
    assert_true(other == nodes[2] && !memcmp(&data, edge, sizeof(data)));
    ext_graph_destroy(&alice, nodes[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edges_have_data),
        cmocka_unit_test(test_edges_from_one_on),
    };
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
