/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Functions of clients that graphs call, and how long they stay known. */
#include "frontend-glue/clients/graph_slots.h"
#include "tests/fixtures/extensions.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>
#include <cmocka.h>

static int add_host_node(uint64_t graph, uint64_t queue, uint64_t number, uint64_t *node)
{
    uint8_t bytes[64];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_NODE_HOST);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    ibx_put_u64(&w, queue);
    ibx_put_u64(&w, number);
    return ext_run(&alice, &w, node);
}

/* Sets the function of a node in the executable graph `exec` or, if that is 0, in the graph
 * itself. */
static int set_host_node(uint64_t exec, uint64_t node, uint64_t queue, uint64_t number)
{
    return ext_call(&alice, IBX_EXT_SET_HOST, 4, (uint64_t[]){exec, node, queue, number}, NULL);
}

/* Adds these functions to graphs or, if `exec` is given, to nodes of an executable graph.
 * Returns the time. */
static double seconds_of_functions(const char *exec, uint64_t queue, uint64_t from, uint64_t until)
{
    struct timespec begun, done;
    int rc = 0;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    for (uint64_t number = from; number < until; number++) {
        void *made = exec ? ibx_host_work_repeat_lone(&alice.x, queue, number, &rc)
                          : ibx_host_work_repeat(&alice.x, queue, number, &rc);
        assert_true(made && ibx_host_work_number(&alice.x, made) == number);
        if (exec)
            ibx_exec_functions_set(&alice.x, exec, exec + number, made);
        else
            assert_true(made == ibx_host_work_repeat(&alice.x, queue, number, &rc));
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &done);
    return (double)(done.tv_sec - begun.tv_sec) + 1e-9 * (double)(done.tv_nsec - begun.tv_nsec);
}

/* The time for a function does not depend on how many others there are. */
static void test_very_many_functions(void **state)
{
    static const char exec[65536];
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        const char *of = i ? exec : NULL;
        uint64_t queue = 0;
        assert_int_equal(ibx_host_work_open(&alice.x, &queue), 0);
        const double first = seconds_of_functions(of, queue, 1, 5001);
        seconds_of_functions(of, queue, 5001, 60001);
        const double last = seconds_of_functions(of, queue, 60001, 65001);
        ibx_exec_functions_gone(exec);
        assert_true(ibx_host_work_repeats() == !i);
        ibx_host_work_end(&alice.x);
        if (last > 10 * first + 0.1)
            fail_msg("%f s for 5000 functions beside 60000, %f s before", last, first);
    }
}

/* A function stays known while a graph may call it; copies of the graph and executable graphs
 * count. Any number of functions may come and go. */
static void test_functions_end_with_graphs(void **state)
{
    uint64_t queue, graph, node, clone, exec;
    (void)state;
    assert_int_equal(ibx_host_work_open(&alice.x, &queue), 0);
    assert_int_equal(ext_graph_create(&alice, &graph), 0);
    assert_int_equal(add_host_node(graph, queue, 1, &node), 0);
    assert_int_equal(add_host_node(graph, queue, 1, &node), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_CLONE, graph, &clone), 0);
    const uint64_t of[] = {clone, 0};
    assert_int_equal(ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2, of, &exec), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, NULL), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, clone, NULL), 0);
    assert_true(ibx_host_work_repeats());
    assert_int_equal(ext_call_one(&alice, IBX_EXT_EXEC_DESTROY, exec, NULL), 0);
    assert_false(ibx_host_work_repeats());
    for (uint64_t i = 1; i < 70000; i++) {
        assert_int_equal(ext_graph_create(&alice, &graph), 0);
        assert_int_equal(add_host_node(graph, queue, i, &node), 0);
        assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, NULL), 0);
    }
    assert_false(ibx_host_work_repeats());
    /* The same for a function that a node gets later. */
    assert_int_equal(ext_graph_create(&alice, &graph), 0);
    assert_int_equal(add_host_node(graph, queue, 1, &node), 0);
    assert_int_equal(set_host_node(0, node, queue, 2), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, NULL), 0);
    assert_false(ibx_host_work_repeats());
    ibx_host_work_end(&alice.x);
}

/* How many functions the graph calls, and which from number `from` on. */
static uint64_t list(uint64_t graph, uint64_t from, uint64_t values[IBX_EXT_LISTED])
{
    uint8_t bytes[64], out[IBX_EXT_OUT_MAX] = {0};
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_GRAPH_FUNCTIONS);
    ibx_put_u64(&w, graph);
    ibx_put_u64(&w, from);
    struct ibx_writer answer = ibx_writer_of(out, sizeof(out));
    const struct ibx_request q = {.body = w.data, .length = w.length};
    assert_int_equal(ibx_extension_run(&alice.x, &q, &answer), 0);
    struct ibx_reader r = ibx_reader_of(out, answer.length);
    const uint64_t count = ibx_get_u64(&r);
    for (unsigned i = 0; i < IBX_EXT_LISTED; i++)
        values[i] = ibx_get_u64(&r);
    assert_false(r.failed);
    return count;
}

/* A client asks again for those that one answer does not have. */
static void test_functions_are_listed(void **state)
{
    enum { MANY = IBX_EXT_LISTED + 3 };
    uint64_t queue, graph, node, values[IBX_EXT_LISTED], seen = 0;
    (void)state;
    assert_int_equal(ibx_host_work_open(&alice.x, &queue), 0);
    assert_int_equal(ext_graph_create(&alice, &graph), 0);
    for (uint64_t i = 1; i <= MANY; i++)
        assert_int_equal(add_host_node(graph, queue, i, &node), 0);
    for (uint64_t from = 0; from < MANY; from += IBX_EXT_LISTED) {
        assert_int_equal(list(graph, from, values), MANY);
        for (unsigned i = 0; i < IBX_EXT_LISTED; i++) {
            assert_int_equal(!values[i], from + i >= MANY);
            seen |= values[i] ? (uint64_t)1 << values[i] : 0;
        }
    }
    assert_int_equal(seen, ((uint64_t)1 << (MANY + 1)) - 2);
    assert_int_equal(list(graph, MANY, values), MANY);
    assert_int_equal(values[0], 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, NULL), 0);
    ibx_host_work_end(&alice.x);
}

/* If a node gets one function after the other, in its graph or in an executable graph, only the
 * last one stays known. */
static void test_functions_end_when_replaced(void **state)
{
    uint64_t queue, graph, node, exec, told;
    (void)state;
    assert_int_equal(ibx_host_work_open(&alice.x, &queue), 0);
    assert_int_equal(ext_graph_create(&alice, &graph), 0);
    assert_int_equal(add_host_node(graph, queue, 1, &node), 0);
    const uint64_t of[] = {graph, 0};
    assert_int_equal(ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2, of, &exec), 0);
    for (uint64_t i = 1; i < 70000; i++) {
        assert_int_equal(set_host_node(0, node, queue, i), 0);
        assert_int_equal(set_host_node(exec, node, queue, 100000 + i), 0);
    }
    assert_int_equal(ext_call_one(&alice, IBX_EXT_NODE_DESTROY, node, NULL), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_EXEC_DESTROY, exec, NULL), 0);
    assert_false(ibx_host_work_repeats());
    /* An update, and the end of the context. */
    assert_int_equal(add_host_node(graph, queue, 1, &node), 0);
    for (int i = 0; i < 2; i++) {
        void *context = NULL;
        assert_int_equal(ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2, of, &exec), 0);
        assert_int_equal(set_host_node(exec, node, queue, 2), 0);
        if (i) {
            assert_int_equal(alice.x.cuda->ctx_get_current(&context), 0);
            ibx_frees_forget(context);
        } else {
            assert_int_equal(
                ext_call(&alice, IBX_EXT_EXEC_UPDATE, 2, (uint64_t[]){exec, graph}, &told), 0);
            assert_true(told == 0);
        }
        assert_int_equal(ext_call_one(&alice, IBX_EXT_EXEC_DESTROY, exec, NULL), 0);
    }
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, NULL), 0);
    assert_false(ibx_host_work_repeats());
    ibx_host_work_end(&alice.x);
}

/* CUDA destroys no node of a graph that allocates memory: the node stays, and its function too. */
static void test_functions_stay_with_nodes(void **state)
{
    uint64_t queue, graph, node, other;
    (void)state;
    assert_int_equal(ibx_host_work_open(&alice.x, &queue), 0);
    assert_int_equal(ext_graph_create(&alice, &graph), 0);
    assert_int_equal(add_host_node(graph, queue, 1, &node), 0);
    assert_int_equal(ext_allocation_add(&alice, graph, 4096, &other), 0);
    const struct ibx_graph_size before = ibx_handles_size(&alice.x, IBX_HANDLE_GRAPH, graph);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_NODE_DESTROY, node, NULL), CUDA_NOT_SUPPORTED);
    assert_true(ibx_host_work_repeats());
    const struct ibx_graph_size after = ibx_handles_size(&alice.x, IBX_HANDLE_GRAPH, graph);
    assert_int_equal(after.nodes, before.nodes);
    assert_int_equal(set_host_node(0, node, queue, 2), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, NULL), 0);
    assert_false(ibx_host_work_repeats());
    ibx_host_work_end(&alice.x);
}

/* Copies two rows between the host and alice's memory, in a new node of the graph or in `node`. */
static int copy_rows(uint64_t graph, uint64_t queue, uint64_t number, size_t pitch, uint64_t *node)
{
    const struct ibx_cuda_memcpy3d copy = {
        .to = {pointer_to(alice.memory), pitch, pitch, 2}, .extent = {64, 2, 1}, .kind = 1};
    uint8_t bytes[256];
    struct ibx_writer w =
        ext_body(bytes, sizeof(bytes), graph ? IBX_EXT_NODE_COPY : IBX_EXT_SET_COPY);
    ibx_put_u64(&w, graph);
    if (graph)
        ibx_put_u16(&w, 0);
    else
        ibx_put_u64(&w, *node);
    ibx_put_u64(&w, queue);
    ibx_put_u64(&w, number);
    ibx_layout_put(&w, IBX_LAYOUT_MEMCPY3D, &copy);
    return ext_run(&alice, &w, graph ? node : NULL);
}

/* If CUDA refuses the other parameters of a node, nothing is kept for it. */
static void test_refused_copies_leave_nothing(void **state)
{
    const size_t before = ibx_slots_bytes();
    uint64_t queue, graph, node;
    (void)state;
    assert_int_equal(ibx_host_work_open(&alice.x, &queue), 0);
    assert_int_equal(ext_graph_create(&alice, &graph), 0);
    assert_int_equal(copy_rows(graph, queue, 1, 64, &node), 0);
    for (uint64_t i = 2; i < 1000; i++)
        assert_int_equal(copy_rows(0, queue, i, 63, &node), CUDA_INVALID_VALUE);
    const size_t one = ibx_slots_bytes();
    assert_int_equal(copy_rows(0, queue, 1000, 64, &node), 0);
    assert_int_equal(copy_rows(0, queue, 1001, 64, &node), 0);
    assert_true(ibx_slots_bytes() - one == one - before);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, NULL), 0);
    assert_true(ibx_slots_bytes() == before);
    assert_false(ibx_host_work_repeats());
    ibx_host_work_end(&alice.x);
}

static void *call_in_graph(void *function)
{
    ibx_host_work_call(function);
    return NULL;
}

/* A launch calls the function, which is known, and the client calls its own function with this
 * number. */
static void is_called(void *function, uint64_t number)
{
    struct ibx_host_called called;
    pthread_t thread;
    assert_true(ibx_host_work_number(&alice.x, function) == number);
    assert_int_equal(pthread_create(&thread, NULL, call_in_graph, function), 0);
    do
        assert_int_equal(ibx_host_work_ask(&alice.x, 0, true, &called), 0);
    while (!called.number);
    assert_true(called.number == number);
    assert_int_equal(ibx_host_work_ask(&alice.x, number, false, &called), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static int launch(void *exec, void *stream)
{
    return exec && stream ? 0 : CUDA_INVALID_VALUE;
}

/* A function that an executable graph no longer has stays known until its launches have called
 * it. If a launch was captured, the resulting graph may call it any number of times. */
static void test_functions_stay_for_launches(void **state)
{
    uint64_t queue, graph, node, exec;
    struct gpu_session *x = &alice.x;
    void *within = NULL;
    int rc = 0;
    (void)state;
    assert_int_equal(ibx_host_work_open(x, &queue), 0);
    assert_int_equal(ext_graph_create(&alice, &graph), 0);
    assert_int_equal(add_host_node(graph, queue, 1, &node), 0);
    assert_int_equal(ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2, (uint64_t[]){graph, 0}, &exec),
                     0);
    void *const launched = pointer_to(exec), *of = pointer_to(node);
    void *const function = ibx_host_work_repeat_lone(x, queue, 2, &rc);
    void *const stream = ext_stream_make(&alice);
    ibx_exec_functions_set(x, launched, of, function);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(ibx_frees_launch(x, launch, launched, i < 2 ? stream : NULL),
                         i < 2 ? 0 : CUDA_INVALID_VALUE);
    is_called(function, 2);
    within = ibx_host_work_repeat_lone(x, queue, 3, &rc);
    ibx_exec_functions_set(x, launched, of, within);
    is_called(function, 2);
    assert_true(ibx_host_work_number(x, function) == 0);
    ext_capture_begin(&alice, stream);
    assert_int_equal(ibx_frees_launch(x, launch, launched, stream), 0);
    const uint64_t captured = ext_capture_end(&alice, stream);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_EXEC_DESTROY, exec, NULL), 0);
    for (unsigned i = 0; i < 3; i++)
        is_called(within, 3);
    ext_graph_destroy(&alice, captured);
    ext_graph_destroy(&alice, graph);
    assert_true(ibx_handles_remove(x, IBX_HANDLE_STREAM, (uintptr_t)stream));
    ibx_host_work_end(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_very_many_functions),
        cmocka_unit_test(test_functions_end_with_graphs),
        cmocka_unit_test(test_functions_are_listed),
        cmocka_unit_test(test_functions_end_when_replaced),
        cmocka_unit_test(test_functions_stay_with_nodes),
        cmocka_unit_test(test_refused_copies_leave_nothing),
        cmocka_unit_test(test_functions_stay_for_launches),
    };
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
