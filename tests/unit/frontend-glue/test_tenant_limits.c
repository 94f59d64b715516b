/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How much the clients of a tenant may make the back end hold by requests of our own. */
#include "frontend-glue/tenants/math_limits.h"
#include "tests/fixtures/own_requests.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static int add_to_graph(struct client *c, unsigned number, uint64_t graph, uint64_t child,
                        uint64_t *node)
{
    uint8_t bytes[64];
    struct ibx_writer w = own_body(bytes, sizeof(bytes), number);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    if (child)
        ibx_put_u64(&w, child);
    return own_run(c, &w, node);
}

static struct ibx_quota *quota_of(const struct client *c, enum ibx_hold hold)
{
    return ibx_tenant_quota(c->x.isolation.tenant, hold);
}

static uint64_t used_by(const struct client *c, enum ibx_hold hold)
{
    return atomic_load(&quota_of(c, hold)->used);
}

/* Sets how many more there may be; what there may be of all now. */
static uint64_t allow_more(const struct client *c, enum ibx_hold hold, uint64_t more)
{
    return atomic_exchange(&quota_of(c, hold)->most, used_by(c, hold) + more);
}

/* Each graph has the one before twice, and CUDA copies it with all that is in it: a few requests
 * would ask for more memory than there is. */
static void test_graphs_in_graphs(void **state)
{
    (void)state;
    const uint64_t before = used_by(&alice, IBX_HOLD_GRAPHS),
                   execs = used_by(&alice, IBX_HOLD_EXECS);
    const uint64_t most = allow_more(&alice, IBX_HOLD_GRAPHS, 1000);
    const uint64_t most_execs = allow_more(&alice, IBX_HOLD_EXECS, 300);
    uint64_t graphs[20] = {0}, node, exec, other, last;
    unsigned n = 0;
    int rc = own_graph_create(&alice, &graphs[n++]);
    assert_int_equal(rc, 0);
    while (!rc && n < 20 && !(rc = own_graph_create(&alice, &graphs[n]))) {
        for (unsigned k = 0; !rc && k < 2; k++)
            rc = add_to_graph(&alice, IBX_OWN_NODE_CHILD, graphs[n], graphs[n - 1], &node);
        n++;
    }
    assert_int_equal(rc, CUDA_MEMORY_ALLOCATION);
    assert_true(n > 6 && n < 10);
    /* A node for which an executable graph has no room, and one for which it has. */
    assert_int_equal(
        own_call(&alice, IBX_OWN_GRAPH_INSTANTIATE, 2, (uint64_t[]){graphs[n - 2], 0}, &exec),
        CUDA_MEMORY_ALLOCATION);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(own_call(&alice, IBX_OWN_GRAPH_INSTANTIATE, 2, (uint64_t[]){graphs[3], 0},
                                  i ? &exec : &last),
                         0);
    assert_int_equal(own_call_one(&alice, IBX_OWN_GRAPH_CLONE, graphs[n - 2], &other),
                     CUDA_MEMORY_ALLOCATION);
    /* Others have theirs, and so has she once these are gone. */
    assert_int_equal(own_graph_create(&bob, &other), 0);
    assert_int_equal(own_call_one(&bob, IBX_OWN_GRAPH_DESTROY, other, NULL), 0);
    assert_int_equal(own_call_one(&alice, IBX_OWN_EXEC_DESTROY, exec, NULL), 0);
    assert_int_equal(own_call_one(&alice, IBX_OWN_EXEC_DESTROY, last, NULL), 0);
    while (n)
        assert_int_equal(own_call_one(&alice, IBX_OWN_GRAPH_DESTROY, graphs[--n], NULL), 0);
    assert_true(used_by(&alice, IBX_HOLD_GRAPHS) == before);
    assert_true(used_by(&alice, IBX_HOLD_EXECS) == execs);
    atomic_store(&quota_of(&alice, IBX_HOLD_GRAPHS)->most, most);
    atomic_store(&quota_of(&alice, IBX_HOLD_EXECS)->most, most_execs);
}

static void test_nodes_have_a_limit(void **state)
{
    (void)state;
    const uint64_t before = used_by(&alice, IBX_HOLD_GRAPHS);
    const uint64_t most = allow_more(&alice, IBX_HOLD_GRAPHS, 4);
    uint64_t graph, other, nodes[4];
    assert_int_equal(own_graph_create(&alice, &graph), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(add_to_graph(&alice, IBX_OWN_NODE_EMPTY, graph, 0, &nodes[i]), 0);
    assert_int_equal(add_to_graph(&alice, IBX_OWN_NODE_EMPTY, graph, 0, &nodes[3]),
                     CUDA_MEMORY_ALLOCATION);
    assert_int_equal(own_memset_add(&alice, graph, alice.memory, &nodes[3]),
                     CUDA_MEMORY_ALLOCATION);
    assert_int_equal(own_graph_create(&alice, &other), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(own_call_one(&alice, IBX_OWN_NODE_DESTROY, nodes[2], NULL), 0);
    /* A tenant's graphs cannot have edges without end, either. */
    uint8_t bytes[64];
    struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_OWN_GRAPH_ORDER);
    ibx_put_u64(&w, graph);
    ibx_put_u64(&w, nodes[0]);
    ibx_put_u64(&w, nodes[1]);
    ibx_put_u8(&w, 0);
    assert_int_equal(own_run(&alice, &w, NULL), 0);
    assert_int_equal(own_run(&alice, &w, NULL), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(own_call_one(&alice, IBX_OWN_GRAPH_DESTROY, graph, NULL), 0);
    assert_true(used_by(&alice, IBX_HOLD_GRAPHS) == before);
    atomic_store(&quota_of(&alice, IBX_HOLD_GRAPHS)->most, most);
}

/* Code that walks through graphs, CUDA's or this back end's, goes as deep as they are nested. */
static void test_depth_of_graphs(void **state)
{
    (void)state;
    const uint64_t before = used_by(&alice, IBX_HOLD_GRAPHS);
    uint64_t graph, next, node;
    unsigned deep = 0;
    int rc = own_graph_create(&alice, &graph);
    while (!rc && deep < 1000) {
        assert_int_equal(own_graph_create(&alice, &next), 0);
        rc = add_to_graph(&alice, IBX_OWN_NODE_CHILD, next, graph, &node);
        assert_int_equal(own_call_one(&alice, IBX_OWN_GRAPH_DESTROY, graph, NULL), 0);
        graph = next;
        deep++;
    }
    assert_int_equal(rc, CUDA_NOT_SUPPORTED);
    assert_int_equal(deep, IBX_OWN_GRAPHS_DEEP);
    assert_int_equal(own_call_one(&alice, IBX_OWN_GRAPH_DESTROY, graph, NULL), 0);
    assert_true(used_by(&alice, IBX_HOLD_GRAPHS) == before);
}

static uint64_t asked_of_cuda(struct gpu_session *x, uint64_t bytes)
{
    uint8_t body[8];
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    ibx_put_u64(&w, bytes);
    x->requests = (struct ibx_request_watch){
        .stage = IBX_REQUEST_BODY, .length = sizeof(body), .name = "cudaMalloc"};
    assert_int_equal(ibx_isolation_before_read(x, body, sizeof(body)), 0);
    struct ibx_reader r = ibx_reader_of(body, sizeof(body));
    return ibx_get_u64(&r);
}

/* An allocation that is not noted as its tenant's would be anybody's. */
static void test_allocations_have_an_owner(void **state)
{
    (void)state;
    const uint64_t most = allow_more(&alice, IBX_HOLD_ALLOCATIONS, 1);
    assert_int_equal(asked_of_cuda(&alice.x, 4096), 4096);
    atomic_store(&quota_of(&alice, IBX_HOLD_ALLOCATIONS)->most, most);
    allow_more(&alice, IBX_HOLD_ALLOCATIONS, 0);
    assert_true(asked_of_cuda(&alice.x, 4096) >= 1ull << 50); /* more than CUDA has */
    assert_int_equal(asked_of_cuda(&bob.x, 4096), 4096);
    atomic_store(&quota_of(&alice, IBX_HOLD_ALLOCATIONS)->most, most);
    assert_int_equal(asked_of_cuda(&alice.x, 4096), 4096);
}

static int add_conditional(struct client *c, uint64_t graph, uint64_t *body)
{
    uint8_t bytes[64], out[IBX_OWN_OUT_MAX] = {0};
    uint64_t handle;
    struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_OWN_GRAPH_CONDITION);
    ibx_put_u64(&w, graph);
    ibx_put_u32(&w, 0);
    ibx_put_u32(&w, 1);
    assert_int_equal(own_run(c, &w, &handle), 0);
    w = own_body(bytes, sizeof(bytes), IBX_OWN_NODE_CONDITIONAL);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    ibx_put_u64(&w, handle);
    ibx_put_u32(&w, 0);
    ibx_put_u32(&w, 1);
    struct ibx_writer answer = ibx_writer_of(out, sizeof(out));
    const struct ibx_request q = {.body = w.data, .length = w.length};
    const int rc = ibx_own_request_run(&c->x, &q, &answer);
    struct ibx_reader r = ibx_reader_of(out, answer.length);
    ibx_get_u64(&r);
    *body = rc ? 0 : ibx_get_u64(&r);
    return rc;
}

/* The same of graphs that conditional nodes have, which what is launched has, too. */
static void test_conditions_in_conditions(void **state)
{
    (void)state;
    const uint64_t before = used_by(&alice, IBX_HOLD_GRAPHS);
    const uint64_t most = allow_more(&alice, IBX_HOLD_EXECS, 100);
    uint64_t graph, body, exec;
    unsigned deep = 0;
    assert_int_equal(own_graph_create(&alice, &graph), 0);
    body = graph;
    while (body && deep < 1000) {
        if (add_conditional(&alice, body, &body))
            break;
        deep++;
    }
    assert_int_equal(deep, IBX_OWN_GRAPHS_DEEP - 1);
    assert_int_equal(own_call(&alice, IBX_OWN_GRAPH_INSTANTIATE, 2, (uint64_t[]){graph, 0}, &exec),
                     CUDA_MEMORY_ALLOCATION);
    assert_int_equal(own_call_one(&alice, IBX_OWN_GRAPH_DESTROY, graph, NULL), 0);
    assert_true(used_by(&alice, IBX_HOLD_GRAPHS) == before);
    atomic_store(&quota_of(&alice, IBX_HOLD_EXECS)->most, most);
}

/* CUDA makes the graph as it is captured: what that grows to counts meanwhile, and is measured when
 * it is there. */
static void test_captures_have_a_limit(void **state)
{
    (void)state;
    int (*begin_capture)(void *stream, int mode) = NULL;
    int (*end_capture)(void *stream, void **graph) = NULL;
    void *runtime = dlopen(getenv("IBX_TEST_CUDART"), RTLD_LAZY), *stream, *graph = NULL;
    struct gpu_session *x = &alice.x;
    const uint64_t before = used_by(&alice, IBX_HOLD_GRAPHS);
    const uint64_t most = allow_more(&alice, IBX_HOLD_GRAPHS, 5);
    *(void **)&begin_capture = dlsym(runtime, "cudaStreamBeginCapture");
    *(void **)&end_capture = dlsym(runtime, "cudaStreamEndCapture");
    assert_int_equal(app->stream_create(&stream, 1), 0);
    assert_true(ibx_handles_add(x, IBX_HANDLE_STREAM, (uintptr_t)stream));
    x->handler.captures = CAPTURES_BEGUN;
    ibx_captures_run(x);
    assert_int_equal(begin_capture(stream, 2), 0);
    ibx_captures_answered(x, 0);
    uint8_t bytes[64];
    struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_OWN_MEMSET);
    ibx_put_u64(&w, alice.memory);
    ibx_put_u32(&w, 1);
    ibx_put_u64(&w, 8);
    ibx_put_u64(&w, (uintptr_t)stream);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(own_run(&alice, &w, NULL), 0);
    assert_int_equal(own_run(&alice, &w, NULL), CUDA_MEMORY_ALLOCATION);
    const struct ibx_call *record = ibx_call_find("cudaEventRecord", 16);
    uint8_t body[16] = {0};
    struct ibx_writer named = ibx_writer_of(body, sizeof(body));
    ibx_put_u64(&named, 0);
    assert_true(ibx_graph_captures(x, record, body, sizeof(body))); /* in another stream */
    struct ibx_writer none = named;
    ibx_put_u64(&none, UINT64_C(0x123450)); /* which CUDA must not be given */
    assert_true(ibx_graph_captures(x, record, body, sizeof(body)));
    ibx_put_u64(&named, (uintptr_t)stream);
    assert_false(ibx_graph_captures(x, record, body, sizeof(body)));
    assert_true(ibx_graph_captures(&bob.x, record, body, sizeof(body)));
    assert_false(ibx_graph_launches(x, alice.exec, (uintptr_t)stream));
    atomic_store(&quota_of(&alice, IBX_HOLD_GRAPHS)->most, most);
    assert_int_equal(end_capture(stream, &graph), 0);
    assert_true(ibx_handles_add(x, IBX_HANDLE_GRAPH, (uintptr_t)graph));
    assert_true(ibx_graph_measure(x, (uintptr_t)graph));
    x->handler.captures = CAPTURES_ENDED;
    ibx_captures_run(x);
    ibx_captures_answered(x, 0);
    assert_true(used_by(&alice, IBX_HOLD_GRAPHS) == before + 6);
    assert_int_equal(ibx_tenant_captured(x->isolation.tenant)->all, 0);
    assert_int_equal(own_call_one(&alice, IBX_OWN_GRAPH_DESTROY, (uintptr_t)graph, NULL), 0);
    assert_true(used_by(&alice, IBX_HOLD_GRAPHS) == before);
    ibx_handles_remove(x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    dlclose(runtime);
}

/* A request of GVirtuS's about a capture in that stream, which a handler runs. */
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

/* There is always one capture: nodes of captures that are over no longer count. */
static void test_captures_that_overlap(void **state)
{
    (void)state;
    struct gpu_session *x = &alice.x;
    void *streams[2];
    const uint64_t most = allow_more(&alice, IBX_HOLD_GRAPHS, 10);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(app->stream_create(&streams[i], 1), 0);
        assert_true(ibx_handles_add(x, IBX_HANDLE_STREAM, (uintptr_t)streams[i]));
    }
    capture_by_handler(x, CAPTURES_BEGUN, streams[0]);
    for (unsigned i = 1; i <= 20; i++) {
        capture_by_handler(x, CAPTURES_BEGUN, streams[i % 2]);
        for (unsigned k = 0; k < 3; k++)
            assert_true(is_recorded_in(x, streams[i % 2]));
        capture_by_handler(x, CAPTURES_ENDED, streams[(i + 1) % 2]);
    }
    /* A capture that lasts has only the room that there is, and so have nodes that a library may
     * add to it. */
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
    atomic_store(&quota_of(&alice, IBX_HOLD_GRAPHS)->most, most);
}

/* Has a stream that is captured wait for an event, or record one: after that its next node would
 * come behind so many others. False: the request, or the next one, is refused. */
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

/* One wait for an event adds as many nodes to those that the next one comes behind as the event's
 * stream had, and each that comes behind them has so many edges. So two requests for each of a
 * thousand nodes would make a million edges, of 58 bytes each on an H200. */
static void test_captures_that_join(void **state)
{
    (void)state;
    struct gpu_session *x = &alice.x;
    void *streams[3];
    const uint64_t most = allow_more(&alice, IBX_HOLD_GRAPHS, 100);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(app->stream_create(&streams[i], 1), 0);
        assert_true(ibx_handles_add(x, IBX_HANDLE_STREAM, (uintptr_t)streams[i]));
        capture_by_handler(x, CAPTURES_BEGUN, streams[i]);
    }
    /* A program that joins its streams, one after the other: each node counts once. */
    for (size_t n = 1; n <= 10; n++)
        assert_true(joins(x, "cudaStreamWaitEvent", streams[0], n));
    assert_int_equal(ibx_tenant_captured(x->isolation.tenant)->all, 20);
    /* Work has one node to come behind again, and the same ones are joined once more. */
    for (unsigned i = 0; i < 4; i++) {
        app->captures_behind(streams[0], 1);
        assert_true(joins(x, "cudaStreamWaitEvent", streams[0], 11));
    }
    assert_int_equal(ibx_tenant_captured(x->isolation.tenant)->all, 64);
    /* An event keeps all of them, too. */
    assert_true(joins(x, "cudaEventRecord", streams[0], 11));
    assert_true(joins(x, "cudaEventRecordWithFlags", streams[0], 11));
    assert_true(ibx_tenant_captured(x->isolation.tenant)->all >= 86);
    assert_false(joins(x, "cudaStreamWaitEvent", streams[1], 50));
    assert_false(joins(x, "cudaStreamWaitEvent", streams[2], 50)); /* before CUDA gets it */
    for (unsigned i = 0; i < 3; i++) {
        capture_by_handler(x, CAPTURES_ENDED, streams[i]);
        ibx_handles_remove(x, IBX_HANDLE_STREAM, (uintptr_t)streams[i]);
    }
    assert_int_equal(ibx_tenant_captured(x->isolation.tenant)->all, 0);
    atomic_store(&quota_of(&alice, IBX_HOLD_GRAPHS)->most, most);
}

/* What a capture has made counts with its edges, which CUDA tells. If it does not, that is no error
 * of the client's. */
static void test_captured_edges_count(void **state)
{
    (void)state;
    int (*create)(void **graph, unsigned flags) = NULL;
    int (*add)(void **made, void *graph, void *const *behind, size_t count) = NULL;
    void (*have_data)(bool they) = NULL;
    int (*last_error)(void) = NULL;
    void *runtime = dlopen(getenv("IBX_TEST_CUDART"), RTLD_LAZY), *graph = NULL, *nodes[12];
    struct gpu_session *x = &alice.x;
    const uint64_t before = used_by(&alice, IBX_HOLD_GRAPHS);
    *(void **)&have_data = dlsym(runtime, "ibx_double_edges_have_data");
    *(void **)&last_error = dlsym(runtime, "cudaGetLastError");
    *(void **)&create = dlsym(runtime, "cudaGraphCreate");
    *(void **)&add = dlsym(runtime, "cudaGraphAddEmptyNode");
    assert_int_equal(create(&graph, 0), 0);
    for (unsigned i = 0; i < 12; i++) /* six nodes, and six more behind all of these */
        assert_int_equal(add(&nodes[i], graph, nodes, i < 6 ? 0 : 6), 0);
    assert_true(ibx_handles_add(x, IBX_HANDLE_GRAPH, (uintptr_t)graph));
    assert_true(ibx_graph_measure(x, (uintptr_t)graph));
    assert_int_equal(used_by(&alice, IBX_HOLD_GRAPHS) - before, 1 + 36);
    have_data(true);
    last_error();
    assert_true(ibx_graph_measure(x, (uintptr_t)graph));
    have_data(false);
    assert_int_equal(last_error(), 0);
    assert_int_equal(own_call_one(&alice, IBX_OWN_GRAPH_DESTROY, (uintptr_t)graph, NULL), 0);
    assert_true(used_by(&alice, IBX_HOLD_GRAPHS) == before);
    dlclose(runtime);
}

/* A capture that another client's wait has ended takes no more nodes, however long the client does
 * not end it. */
static void test_captures_that_are_lost(void **state)
{
    (void)state;
    struct gpu_session *x = &alice.x;
    void *stream, *graph;
    const uint64_t most = allow_more(&alice, IBX_HOLD_GRAPHS, 10);
    assert_int_equal(app->stream_create(&stream, 1), 0);
    assert_true(ibx_handles_add(x, IBX_HANDLE_STREAM, (uintptr_t)stream));
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
    ibx_captures_answered(x, IBX_CALL_CAPTURE_INVALIDATED);
    assert_false(ibx_captures_any());
    ibx_handles_remove(x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    atomic_store(&quota_of(&alice, IBX_HOLD_GRAPHS)->most, most);
}

/* Those of ranks that have a GPU each. */
static void test_executables_of_each_gpu(void **state)
{
    (void)state;
    struct ibx_tenant *tenant = alice.x.isolation.tenant;
    uint64_t execs[2][2], more;
    const uint64_t before[2] = {atomic_load(&ibx_tenant_execs(tenant, 0)->used),
                                atomic_load(&ibx_tenant_execs(tenant, 1)->used)};
    uint64_t most[2];
    for (unsigned gpu = 0; gpu < 2; gpu++)
        most[gpu] = atomic_exchange(&ibx_tenant_execs(tenant, (int)gpu)->most, before[gpu] + 4);
    for (unsigned gpu = 0; gpu < 2; gpu++) {
        cuda_application_use((int)gpu);
        for (unsigned i = 0; i < 2; i++)
            assert_int_equal(own_call(&alice, IBX_OWN_GRAPH_INSTANTIATE, 2,
                                      (uint64_t[]){alice.graph, 0}, &execs[gpu][i]),
                             0);
        assert_int_equal(
            own_call(&alice, IBX_OWN_GRAPH_INSTANTIATE, 2, (uint64_t[]){alice.graph, 0}, &more),
            CUDA_MEMORY_ALLOCATION);
    }
    /* They are given back wherever that is asked for; and the host has its own limit. */
    assert_int_equal(own_call_one(&alice, IBX_OWN_EXEC_DESTROY, execs[0][0], NULL), 0);
    assert_true(atomic_load(&ibx_tenant_execs(tenant, 0)->used) == before[0] + 2);
    assert_true(atomic_load(&ibx_tenant_execs(tenant, 1)->used) == before[1] + 4);
    cuda_application_use(0);
    const uint64_t of_all = allow_more(&alice, IBX_HOLD_EXECS, 1);
    assert_int_equal(
        own_call(&alice, IBX_OWN_GRAPH_INSTANTIATE, 2, (uint64_t[]){alice.graph, 0}, &more),
        CUDA_MEMORY_ALLOCATION);
    atomic_store(&quota_of(&alice, IBX_HOLD_EXECS)->most, of_all);
    const uint64_t left[] = {execs[0][1], execs[1][0], execs[1][1]};
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(own_call_one(&alice, IBX_OWN_EXEC_DESTROY, left[i], NULL), 0);
    for (unsigned gpu = 0; gpu < 2; gpu++) {
        assert_true(atomic_load(&ibx_tenant_execs(tenant, (int)gpu)->used) == before[gpu]);
        atomic_store(&ibx_tenant_execs(tenant, (int)gpu)->most, most[gpu]);
    }
}

static void test_textures_have_a_limit(void **state)
{
    (void)state;
    const struct ibx_cuda_resource resource = {.kind = IBX_RESOURCE_ARRAY,
                                               .of = {.array = (void *)(uintptr_t)alice.array}};
    uint8_t bytes[256];
    uint64_t first, second;
    const uint64_t most = allow_more(&alice, IBX_HOLD_TEXTURES, 1);
    struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_OWN_CREATE_SURFACE);
    ibx_resource_put(&w, &resource);
    assert_int_equal(own_run(&alice, &w, &first), 0);
    assert_int_equal(own_run(&alice, &w, &second), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(own_call_one(&alice, IBX_OWN_DESTROY_SURFACE, first, NULL), 0);
    assert_int_equal(own_run(&alice, &w, &first), 0);
    assert_int_equal(own_call_one(&alice, IBX_OWN_DESTROY_SURFACE, first, NULL), 0);
    atomic_store(&quota_of(&alice, IBX_HOLD_TEXTURES)->most, most);
}

/* GVirtuS's handler has made it, and answers so many bytes of where it is. */
static void made_by_handler(struct gpu_session *x, uint64_t made, size_t n)
{
    struct ibx_writer w = ibx_writer_of(x->replies.last, sizeof(x->replies.last));
    ibx_put_u64(&w, made);
    x->replies.last_size = n;
    x->replies.exit_code = 0;
    ibx_made_answered(x);
}

static bool may_make_texture(struct gpu_session *x)
{
    strcpy(x->requests.name, "cudaCreateTextureObject");
    ibx_made_read(x, x->requests.name);
    return ibx_made_room(x);
}

/* They count as those of our own requests, which may give them back. */
static void test_textures_of_handlers(void **state)
{
    (void)state;
    struct gpu_session *x = &alice.x;
    const uint64_t made = 0x7e000001, before = used_by(&alice, IBX_HOLD_TEXTURES);
    const uint64_t most = allow_more(&alice, IBX_HOLD_TEXTURES, 1);
    assert_true(may_make_texture(x));
    made_by_handler(x, made, 8);
    assert_true(used_by(&alice, IBX_HOLD_TEXTURES) == before + 1);
    assert_true(ibx_handles_has(x, IBX_HANDLE_TEXTURE, made));
    assert_false(may_make_texture(x));
    ibx_handles_remove(x, IBX_HANDLE_TEXTURE, made);
    assert_true(used_by(&alice, IBX_HOLD_TEXTURES) == before && may_make_texture(x));
    made_by_handler(x, made, 3); /* nobody knows where: nothing that requests name */
    assert_false(ibx_named_any_unseen());
    atomic_store(&quota_of(&alice, IBX_HOLD_TEXTURES)->most, most);
}

/* Which descriptor of cuDNN's graphs a handler makes nobody knows here: it counts as a plan. */
static void test_graphs_of_handlers(void **state)
{
    (void)state;
    struct gpu_session *x = &alice.x;
    const enum ibx_handle_kind kind = (enum ibx_handle_kind)(IBX_HANDLE_MATH + IBX_MATH_GRAPH);
    const uint64_t made = 0x7e000001, before = used_by(&alice, IBX_HOLD_GRAPH_PARTS);
    ibx_made_read(x, "cudnnBackendCreateDescriptor");
    made_by_handler(x, made, 8);
    assert_true(used_by(&alice, IBX_HOLD_GRAPH_PARTS) == before + IBX_MATH_HEAVY);
    assert_true(ibx_handles_remove(x, kind, made));
    assert_true(used_by(&alice, IBX_HOLD_GRAPH_PARTS) == before);
}

/* CUDA has room for so few that one client could take all of them. */
static void test_pools_have_a_limit(void **state)
{
    (void)state;
    uint64_t pools[8], other = 0;
    unsigned n = 0;
    uint8_t bytes[64];
    const uint64_t most = allow_more(&alice, IBX_HOLD_POOLS, 3);
    struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_OWN_POOL_CREATE);
    ibx_put_u32(&w, 0);
    ibx_put_u64(&w, 0);
    ibx_put_u16(&w, 0);
    int rc = 0;
    while (n < 8 && !(rc = own_run(&alice, &w, &pools[n])))
        n++;
    assert_int_equal(rc, CUDA_MEMORY_ALLOCATION);
    assert_int_equal(n, 3);
    assert_int_equal(own_run(&bob, &w, &other), 0);
    assert_int_equal(own_call_one(&bob, IBX_OWN_POOL_DESTROY, other, NULL), 0);
    while (n)
        assert_int_equal(own_call_one(&alice, IBX_OWN_POOL_DESTROY, pools[--n], NULL), 0);
    atomic_store(&quota_of(&alice, IBX_HOLD_POOLS)->most, most);
}

/* A tenant has so many handles for other processes, and the other one has its own. */
static void test_handles_have_a_limit(void **state)
{
    enum { MOST = 4096 };
    static void *events[MOST + 1], *more;
    uint64_t answer;
    (void)state;
    for (unsigned i = 0; i <= MOST; i++) {
        assert_int_equal(app->event_create(&events[i], 4), 0);
        assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_EVENT, (uintptr_t)events[i]));
        assert_int_equal(own_call_one(&alice, IBX_OWN_IPC_EVENT, (uintptr_t)events[i], &answer),
                         i < MOST ? 0 : 2);
    }
    assert_int_equal(own_call_one(&bob, IBX_OWN_IPC_EVENT, (uintptr_t)events[MOST], &answer), 400);
    assert_true(ibx_handles_add(&bob.x, IBX_HANDLE_EVENT, (uintptr_t)events[MOST]));
    assert_int_equal(own_call_one(&bob, IBX_OWN_IPC_EVENT, (uintptr_t)events[MOST], &answer), 0);
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_EVENT, (uintptr_t)events[MOST]));
    ibx_ipc_gone((uintptr_t)events[MOST]);
    ibx_ipc_gone((uintptr_t)events[7]);
    assert_int_equal(own_call_one(&alice, IBX_OWN_IPC_EVENT, (uintptr_t)events[MOST], &answer), 0);
    /* When a session has ended, what it has shared gives way. */
    assert_int_equal(app->event_create(&more, 4), 0);
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_EVENT, (uintptr_t)more));
    assert_int_equal(own_call_one(&alice, IBX_OWN_IPC_EVENT, (uintptr_t)more, &answer), 2);
    ibx_ipc_end(&bob.x);
    assert_int_equal(own_call_one(&alice, IBX_OWN_IPC_EVENT, (uintptr_t)more, &answer), 2);
    ibx_ipc_end(&alice.x);
    assert_int_equal(own_call_one(&alice, IBX_OWN_IPC_EVENT, (uintptr_t)more, &answer), 0);
    own_event_destroy(more);
    ibx_ipc_forget(NULL);
    for (unsigned i = MOST + 1; i-- > 0;)
        own_event_destroy(events[i]);
}

/* What the log says while `act` runs. */
static const char *said(void (*act)(void))
{
    static char text[4096];
    FILE *log = tmpfile();
    assert_non_null(log);
    const int before = dup(STDERR_FILENO);
    assert_true(before >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
    act();
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    rewind(log);
    text[fread(text, 1, sizeof(text) - 1, log)] = 0;
    fclose(log);
    return text;
}

static void meet_two_limits(void)
{
    uint8_t bytes[64];
    uint64_t graph, pool;
    struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_OWN_POOL_CREATE);
    ibx_put_u32(&w, 0);
    ibx_put_u64(&w, 0);
    ibx_put_u16(&w, 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(own_graph_create(&bob, &graph), CUDA_MEMORY_ALLOCATION);
        assert_int_equal(own_run(&bob, &w, &pool), CUDA_MEMORY_ALLOCATION);
    }
}

static unsigned count_in(const char *text, const char *part)
{
    unsigned n = 0;
    while ((text = strstr(text, part))) {
        text += strlen(part);
        n++;
    }
    return n;
}

/* Each limit is told once. */
static void test_limits_are_told(void **state)
{
    (void)state;
    const uint64_t graphs = allow_more(&bob, IBX_HOLD_GRAPHS, 0),
                   pools = allow_more(&bob, IBX_HOLD_POOLS, 0);
    const char *text = said(meet_two_limits);
    atomic_store(&quota_of(&bob, IBX_HOLD_GRAPHS)->most, graphs);
    atomic_store(&quota_of(&bob, IBX_HOLD_POOLS)->most, pools);
    assert_int_equal(count_in(text, "no more graphs and nodes"), 1);
    assert_int_equal(count_in(text, "no more pools"), 1);
}

static uint8_t handler_body[8];

/* GVirtuS's handler is about to make what can be launched. */
static void instantiate_by_handler(void)
{
    struct gpu_session *x = &bob.x;
    struct ibx_writer w = ibx_writer_of(handler_body, sizeof(handler_body));
    ibx_put_u64(&w, bob.graph);
    strcpy(x->requests.name, "cudaGraphInstantiate");
    ibx_device_call_read(x, x->requests.name);
    ibx_named_spoil(x, handler_body, sizeof(handler_body));
    x->replies.exit_code = handler_body[0] ? 2 : CUDA_INVALID_VALUE;
    ibx_device_call_answered(x);
}

static void test_executables_of_handlers(void **state)
{
    (void)state;
    const uint8_t nothing[8] = {0};
    const uint64_t used = used_by(&bob, IBX_HOLD_EXECS);
    instantiate_by_handler();
    assert_memory_not_equal(handler_body, nothing, 8);
    assert_true(used_by(&bob, IBX_HOLD_EXECS) == used);
    const uint64_t most = allow_more(&bob, IBX_HOLD_EXECS, 1);
    const char *text = said(instantiate_by_handler);
    atomic_store(&quota_of(&bob, IBX_HOLD_EXECS)->most, most);
    assert_memory_equal(handler_body, nothing, 8);
    assert_true(used_by(&bob, IBX_HOLD_EXECS) == used);
    assert_non_null(strstr(text, "no more nodes of graphs that can be launched"));
    assert_null(strstr(text, "that no call has returned"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs_in_graphs),
        cmocka_unit_test(test_allocations_have_an_owner),
        cmocka_unit_test(test_nodes_have_a_limit),
        cmocka_unit_test(test_depth_of_graphs),
        cmocka_unit_test(test_conditions_in_conditions),
        cmocka_unit_test(test_captures_have_a_limit),
        cmocka_unit_test(test_captures_that_overlap),
        cmocka_unit_test(test_captures_that_join),
        cmocka_unit_test(test_captured_edges_count),
        cmocka_unit_test(test_captures_that_are_lost),
        cmocka_unit_test(test_executables_of_each_gpu),
        cmocka_unit_test(test_textures_have_a_limit),
        cmocka_unit_test(test_textures_of_handlers),
        cmocka_unit_test(test_graphs_of_handlers),
        cmocka_unit_test(test_pools_have_a_limit),
        cmocka_unit_test(test_limits_are_told),
        cmocka_unit_test(test_executables_of_handlers),
        cmocka_unit_test(test_handles_have_a_limit),
    };
    return cmocka_run_group_tests(tests, own_set_up, own_tear_down);
}
