/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Requests of our own by a client that sends anything, on doubles of CUDA that end the process at a
 * handle that is none: it harms no other tenant, and not the back end.
 */
#include "frontend-glue/device_copies/extra.h"
#include "frontend-glue/device_copies/graph_slots.h"
#include "frontend-glue/session/session_internal.h"
#include "tests/scenes/cuda_application.h"

#include <dlfcn.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define REQUESTS 15000u
#define MEMORY   8192u
#define RECENT   4u   /* handles of a kind that are remembered */
#define RENEWED  100u /* requests after which a client has all kinds again */

static const struct cuda_calls *app;
static struct ibx_session *session;

/* What a tenant has: all of it was made by requests. */
struct client {
    struct copies x;
    uint64_t memory, graph, node, exec, array, texture;
};
static struct client alice, bob;

/* ---------------------------------------------------------------------------------- requests */

static struct ibx_writer body_of(uint8_t *bytes, size_t n, unsigned number)
{
    struct ibx_writer w = ibx_writer_of(bytes, n);
    ibx_put_u16(&w, (uint16_t)number);
    return w;
}

/* Its exit code; `answer`: the first number that it answers. */
static int run(struct client *c, const struct ibx_writer *body, uint64_t *answer)
{
    uint8_t out[IBX_EXTRA_OUT_MAX] = {0};
    struct ibx_writer w = ibx_writer_of(out, sizeof(out));
    const struct ibx_request q = {.body = body->data, .length = body->length};
    const int code = ibx_copies_extra(&c->x, &q, &w);
    struct ibx_reader r = ibx_reader_of(out, w.length);
    assert_false(w.failed);
    if (answer)
        *answer = code ? 0 : ibx_get_u64(&r);
    return code;
}

/* One whose arguments are n numbers of 8 bytes. */
static int call(struct client *c, unsigned number, unsigned n, const uint64_t *numbers,
                uint64_t *answer)
{
    uint8_t bytes[256];
    struct ibx_writer w = body_of(bytes, sizeof(bytes), number);
    for (unsigned i = 0; i < n; i++)
        ibx_put_u64(&w, numbers[i]);
    return run(c, &w, answer);
}

static int call_one(struct client *c, unsigned number, uint64_t handle, uint64_t *answer)
{
    return call(c, number, 1, &handle, answer);
}

static int create_graph(struct client *c, uint64_t *graph)
{
    uint8_t bytes[8];
    struct ibx_writer w = body_of(bytes, sizeof(bytes), IBX_EXTRA_GRAPH_CREATE);
    ibx_put_u32(&w, 0);
    return run(c, &w, graph);
}

/* 64 bytes of memory are set. */
static int add_memset(struct client *c, uint64_t graph, uint64_t at, uint64_t *node)
{
    uint8_t bytes[64];
    const struct ibx_cuda_memset set = {(void *)(uintptr_t)at, 0, 1, 1, 64, 1};
    struct ibx_writer w = body_of(bytes, sizeof(bytes), IBX_EXTRA_NODE_MEMSET);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    ibx_layout_put(&w, IBX_LAYOUT_MEMSET, &set);
    return run(c, &w, node);
}

static int add_allocation(struct client *c, uint64_t graph, uint64_t n, uint64_t *node)
{
    uint8_t bytes[64];
    struct ibx_writer w = body_of(bytes, sizeof(bytes), IBX_EXTRA_NODE_ALLOC);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    ibx_put_u32(&w, 0);
    ibx_put_u64(&w, n);
    return run(c, &w, node);
}

static uint64_t count_nodes(struct client *c, uint64_t graph)
{
    uint8_t bytes[64];
    uint64_t count = UINT64_MAX;
    struct ibx_writer w = body_of(bytes, sizeof(bytes), IBX_EXTRA_GRAPH_NODES);
    ibx_put_u64(&w, graph);
    ibx_put_u64(&w, 0);
    ibx_put_u8(&w, 0);
    assert_int_equal(run(c, &w, &count), 0);
    return count;
}

static void make_array(struct client *c)
{
    const struct ibx_cuda_channel channel = {8, 0, 0, 0, 1};
    const struct ibx_cuda_extent extent = {64, 4, 0};
    struct ibx_cuda_texture how;
    uint8_t bytes[256];
    struct ibx_writer w = body_of(bytes, sizeof(bytes), IBX_EXTRA_MALLOC_ARRAY);
    ibx_layout_put(&w, IBX_LAYOUT_CHANNEL, &channel);
    ibx_layout_put(&w, IBX_LAYOUT_EXTENT, &extent);
    ibx_put_u32(&w, 0);
    assert_int_equal(run(c, &w, &c->array), 0);
    const struct ibx_cuda_resource resource = {.kind = IBX_RESOURCE_ARRAY,
                                               .of = {.array = (void *)(uintptr_t)c->array}};
    w = body_of(bytes, sizeof(bytes), IBX_EXTRA_CREATE_TEXTURE);
    for (int i = 0; i < 18; i++) /* as the double wants it */
        how.words[i] = i + 1;
    ibx_resource_put(&w, &resource);
    ibx_layout_put(&w, IBX_LAYOUT_TEXTURE, &how);
    ibx_put_u8(&w, 0);
    assert_int_equal(run(c, &w, &c->texture), 0);
}

/* Memory that it gives back is the double's again. */
static void make_all(struct client *c)
{
    if (c->memory)
        call(c, IBX_EXTRA_FREE_ASYNC, 2, (uint64_t[]){c->memory, 0}, NULL);
    if (c->array)
        call_one(c, IBX_EXTRA_FREE_ARRAY, c->array, NULL);
    assert_int_equal(call(c, IBX_EXTRA_MALLOC_ASYNC, 2, (uint64_t[]){MEMORY, 0}, &c->memory), 0);
    assert_int_equal(create_graph(c, &c->graph), 0);
    assert_int_equal(add_memset(c, c->graph, c->memory, &c->node), 0);
    assert_int_equal(call(c, IBX_EXTRA_GRAPH_INSTANTIATE, 2, (uint64_t[]){c->graph, 0}, &c->exec),
                     0);
    make_array(c);
}

static void begin(struct client *c, const char *name)
{
    const struct ibx_tenant_limits none = {.shared = false};
    c->x.s = session;
    c->x.options.mode = IBX_GPU_ON;
    c->x.chosen_for = 0;
    c->x.replies.shape = IBX_REPLY_TIMED;
    ibx_request_watch_init(&c->x.requests);
    c->x.isolation.tenant = ibx_tenant_get(name, &none, 2);
    c->x.isolation.on = true;
    make_all(c);
}

static int set_up(void **state)
{
    struct ibx_options options;
    const char *runtime = getenv("IBX_TEST_CUDART");
    (void)state;
    app = cuda_application();
    cuda_application_use(0);
    ibx_options_init(&options);
    assert_true(runtime && dlopen(runtime, RTLD_LAZY));
    assert_int_equal(ibx_session_create("rdma://127.0.0.1:1", &options, &session, NULL), 0);
    begin(&alice, "alice");
    begin(&bob, "bob");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ibx_session_destroy(session);
    return 0;
}

/* -------------------------------------------------------------------------------- the tests */

/* Memory of a graph whose owner cannot be noted is not given out: it would be anybody's. */
static void test_memory_without_owner(void **state)
{
    (void)state;
    struct ibx_quota *quota = ibx_tenant_quota(alice.x.isolation.tenant, IBX_HOLD_ALLOCATIONS);
    uint64_t graph, node, answers[2] = {0};
    const uint64_t most = atomic_load(&quota->most);
    assert_int_equal(create_graph(&alice, &graph), 0);
    atomic_store(&quota->most, 1); /* it has more already */
    assert_int_equal(add_allocation(&alice, graph, 4096, &node), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(count_nodes(&alice, graph), 0);
    atomic_store(&quota->most, most);
    assert_int_equal(add_allocation(&alice, graph, 4096, &node), 0);
    assert_int_equal(count_nodes(&alice, graph), 1);
    assert_int_equal(call_one(&alice, IBX_EXTRA_GRAPH_DESTROY, graph, answers), 0);
}

static int copy_planes(struct client *c, const struct ibx_cuda_memcpy3d *p)
{
    uint8_t bytes[200];
    struct ibx_writer w = body_of(bytes, sizeof(bytes), IBX_EXTRA_MEMCPY_3D);
    ibx_layout_put(&w, IBX_LAYOUT_MEMCPY3D, p);
    return run(c, &w, NULL);
}

/* Rows that begin in one's own memory, but for where the copy begins in them. */
static void test_rows_of_others(void **state)
{
    (void)state;
    uint8_t letters[2 * MEMORY], got[MEMORY];
    const size_t apart = (size_t)(bob.memory - alice.memory);
    void *own = (void *)(uintptr_t)alice.memory;
    struct ibx_cuda_memcpy3d copy = {
        .from = {own, 64, 64, 1}, .to = {own, 64, 64, 1}, .extent = {64, 1, 1}, .kind = 3};
    struct ibx_cuda_memcpy3d wide = copy;
    assert_true(bob.memory > alice.memory);
    memset(letters, 'b', sizeof(letters));
    assert_int_equal(app->to_device(bob.memory, letters, MEMORY), 0);
    assert_int_equal(copy_planes(&alice, &copy), 0);
    copy.to_at.width = apart;
    assert_int_equal(copy_planes(&alice, &copy), CUDA_INVALID_VALUE);
    copy.to_at.width = 0;
    copy.from_at.width = apart;
    assert_int_equal(copy_planes(&alice, &copy), CUDA_INVALID_VALUE);
    wide.extent.width = apart + 1; /* a row that is longer than it should be */
    assert_int_equal(copy_planes(&alice, &wide), CUDA_INVALID_VALUE);
    assert_int_equal(app->ctx_synchronize(), 0);
    assert_int_equal(app->from_device(got, bob.memory, MEMORY), 0);
    assert_memory_equal(got, letters, MEMORY);
    /* The last byte of one's own, and of an array. */
    copy.from_at.width = MEMORY - 64;
    assert_int_equal(copy_planes(&alice, &copy), 0);
    const struct ibx_cuda_memcpy3d from_array = {.from_array = (void *)(uintptr_t)alice.array,
                                                 .to = {own, 64, 64, 4},
                                                 .to_at = {0, MEMORY / 64 - 4, 0},
                                                 .extent = {64, 4, 1},
                                                 .kind = 3};
    assert_int_equal(copy_planes(&alice, &from_array), 0);
}

/* A node that what is launched has never had: of another graph, or added later. */
static void test_nodes_of_others(void **state)
{
    (void)state;
    uint64_t graph, other, node, later, strange, exec;
    const struct ibx_cuda_memset set = {(void *)(uintptr_t)alice.memory, 0, 2, 1, 64, 1};
    assert_int_equal(create_graph(&alice, &graph), 0);
    assert_int_equal(create_graph(&alice, &other), 0);
    assert_int_equal(add_memset(&alice, graph, alice.memory, &node), 0);
    assert_int_equal(add_memset(&alice, other, alice.memory, &strange), 0);
    assert_int_equal(call(&alice, IBX_EXTRA_GRAPH_INSTANTIATE, 2, (uint64_t[]){graph, 0}, &exec),
                     0);
    assert_int_equal(add_memset(&alice, graph, alice.memory, &later), 0);
    assert_int_equal(count_nodes(&alice, graph), 2); /* that it is listed changes nothing */
    const uint64_t nodes[] = {node, later, strange};
    for (unsigned i = 0; i < 3; i++) {
        uint8_t bytes[100];
        struct ibx_writer w = body_of(bytes, sizeof(bytes), IBX_EXTRA_SET_MEMSET);
        ibx_put_u64(&w, exec);
        ibx_put_u64(&w, nodes[i]);
        ibx_layout_put(&w, IBX_LAYOUT_MEMSET, &set);
        assert_int_equal(run(&alice, &w, NULL), i ? CUDA_INVALID_VALUE : 0);
    }
    assert_int_equal(call_one(&alice, IBX_EXTRA_GRAPH_DESTROY, graph, NULL), 0);
    assert_int_equal(call_one(&alice, IBX_EXTRA_GRAPH_DESTROY, other, NULL), 0);
    assert_int_equal(call_one(&alice, IBX_EXTRA_EXEC_DESTROY, exec, NULL), 0);
}

static int add_to_graph(struct client *c, unsigned number, uint64_t graph, uint64_t child,
                        uint64_t *node)
{
    uint8_t bytes[64];
    struct ibx_writer w = body_of(bytes, sizeof(bytes), number);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    if (child)
        ibx_put_u64(&w, child);
    return run(c, &w, node);
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
    int rc = create_graph(&alice, &graphs[n++]);
    assert_int_equal(rc, 0);
    while (!rc && n < 20 && !(rc = create_graph(&alice, &graphs[n]))) {
        for (unsigned k = 0; !rc && k < 2; k++)
            rc = add_to_graph(&alice, IBX_EXTRA_NODE_CHILD, graphs[n], graphs[n - 1], &node);
        n++;
    }
    assert_int_equal(rc, CUDA_MEMORY_ALLOCATION);
    assert_true(n > 6 && n < 10);
    /* One that there is no room for in what can be launched, and one that there is. */
    assert_int_equal(
        call(&alice, IBX_EXTRA_GRAPH_INSTANTIATE, 2, (uint64_t[]){graphs[n - 2], 0}, &exec),
        CUDA_MEMORY_ALLOCATION);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(call(&alice, IBX_EXTRA_GRAPH_INSTANTIATE, 2, (uint64_t[]){graphs[3], 0},
                              i ? &exec : &last),
                         0);
    assert_int_equal(call_one(&alice, IBX_EXTRA_GRAPH_CLONE, graphs[n - 2], &other),
                     CUDA_MEMORY_ALLOCATION);
    /* Others have theirs, and so has she once these are gone. */
    assert_int_equal(create_graph(&bob, &other), 0);
    assert_int_equal(call_one(&bob, IBX_EXTRA_GRAPH_DESTROY, other, NULL), 0);
    assert_int_equal(call_one(&alice, IBX_EXTRA_EXEC_DESTROY, exec, NULL), 0);
    assert_int_equal(call_one(&alice, IBX_EXTRA_EXEC_DESTROY, last, NULL), 0);
    while (n)
        assert_int_equal(call_one(&alice, IBX_EXTRA_GRAPH_DESTROY, graphs[--n], NULL), 0);
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
    assert_int_equal(create_graph(&alice, &graph), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(add_to_graph(&alice, IBX_EXTRA_NODE_EMPTY, graph, 0, &nodes[i]), 0);
    assert_int_equal(add_to_graph(&alice, IBX_EXTRA_NODE_EMPTY, graph, 0, &nodes[3]),
                     CUDA_MEMORY_ALLOCATION);
    assert_int_equal(add_memset(&alice, graph, alice.memory, &nodes[3]), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(create_graph(&alice, &other), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(call_one(&alice, IBX_EXTRA_NODE_DESTROY, nodes[2], NULL), 0);
    /* Nor have edges without end. */
    uint8_t bytes[64];
    struct ibx_writer w = body_of(bytes, sizeof(bytes), IBX_EXTRA_GRAPH_ORDER);
    ibx_put_u64(&w, graph);
    ibx_put_u64(&w, nodes[0]);
    ibx_put_u64(&w, nodes[1]);
    ibx_put_u8(&w, 0);
    assert_int_equal(run(&alice, &w, NULL), 0);
    assert_int_equal(run(&alice, &w, NULL), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(call_one(&alice, IBX_EXTRA_GRAPH_DESTROY, graph, NULL), 0);
    assert_true(used_by(&alice, IBX_HOLD_GRAPHS) == before);
    atomic_store(&quota_of(&alice, IBX_HOLD_GRAPHS)->most, most);
}

/* Whoever walks through them, CUDA or this back end, goes as deep as they are. */
static void test_depth_of_graphs(void **state)
{
    (void)state;
    const uint64_t before = used_by(&alice, IBX_HOLD_GRAPHS);
    uint64_t graph, next, node;
    unsigned deep = 0;
    int rc = create_graph(&alice, &graph);
    while (!rc && deep < 1000) {
        assert_int_equal(create_graph(&alice, &next), 0);
        rc = add_to_graph(&alice, IBX_EXTRA_NODE_CHILD, next, graph, &node);
        assert_int_equal(call_one(&alice, IBX_EXTRA_GRAPH_DESTROY, graph, NULL), 0);
        graph = next;
        deep++;
    }
    assert_int_equal(rc, CUDA_NOT_SUPPORTED);
    assert_int_equal(deep, IBX_GRAPHS_DEEP);
    assert_int_equal(call_one(&alice, IBX_EXTRA_GRAPH_DESTROY, graph, NULL), 0);
    assert_true(used_by(&alice, IBX_HOLD_GRAPHS) == before);
}

static int add_conditional(struct client *c, uint64_t graph, uint64_t *body)
{
    uint8_t bytes[64], out[IBX_EXTRA_OUT_MAX] = {0};
    uint64_t handle;
    struct ibx_writer w = body_of(bytes, sizeof(bytes), IBX_EXTRA_GRAPH_CONDITION);
    ibx_put_u64(&w, graph);
    ibx_put_u32(&w, 0);
    ibx_put_u32(&w, 1);
    assert_int_equal(run(c, &w, &handle), 0);
    w = body_of(bytes, sizeof(bytes), IBX_EXTRA_NODE_CONDITIONAL);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    ibx_put_u64(&w, handle);
    ibx_put_u32(&w, 0);
    ibx_put_u32(&w, 1);
    struct ibx_writer answer = ibx_writer_of(out, sizeof(out));
    const struct ibx_request q = {.body = w.data, .length = w.length};
    const int rc = ibx_copies_extra(&c->x, &q, &answer);
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
    assert_int_equal(create_graph(&alice, &graph), 0);
    body = graph;
    while (body && deep < 1000) {
        if (add_conditional(&alice, body, &body))
            break;
        deep++;
    }
    assert_int_equal(deep, IBX_GRAPHS_DEEP - 1);
    assert_int_equal(call(&alice, IBX_EXTRA_GRAPH_INSTANTIATE, 2, (uint64_t[]){graph, 0}, &exec),
                     CUDA_MEMORY_ALLOCATION);
    assert_int_equal(call_one(&alice, IBX_EXTRA_GRAPH_DESTROY, graph, NULL), 0);
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
    struct copies *x = &alice.x;
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
    struct ibx_writer w = body_of(bytes, sizeof(bytes), IBX_EXTRA_MEMSET);
    ibx_put_u64(&w, alice.memory);
    ibx_put_u32(&w, 1);
    ibx_put_u64(&w, 8);
    ibx_put_u64(&w, (uintptr_t)stream);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(run(&alice, &w, NULL), 0);
    assert_int_equal(run(&alice, &w, NULL), CUDA_MEMORY_ALLOCATION);
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
    assert_int_equal(atomic_load(ibx_tenant_captured(x->isolation.tenant)), 0);
    assert_int_equal(call_one(&alice, IBX_EXTRA_GRAPH_DESTROY, (uintptr_t)graph, NULL), 0);
    assert_true(used_by(&alice, IBX_HOLD_GRAPHS) == before);
    ibx_handles_remove(x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    dlclose(runtime);
}

static void test_textures_have_a_limit(void **state)
{
    (void)state;
    const struct ibx_cuda_resource resource = {.kind = IBX_RESOURCE_ARRAY,
                                               .of = {.array = (void *)(uintptr_t)alice.array}};
    uint8_t bytes[256];
    uint64_t first, second;
    const uint64_t most = allow_more(&alice, IBX_HOLD_TEXTURES, 1);
    struct ibx_writer w = body_of(bytes, sizeof(bytes), IBX_EXTRA_CREATE_SURFACE);
    ibx_resource_put(&w, &resource);
    assert_int_equal(run(&alice, &w, &first), 0);
    assert_int_equal(run(&alice, &w, &second), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(call_one(&alice, IBX_EXTRA_DESTROY_SURFACE, first, NULL), 0);
    assert_int_equal(run(&alice, &w, &first), 0);
    assert_int_equal(call_one(&alice, IBX_EXTRA_DESTROY_SURFACE, first, NULL), 0);
    atomic_store(&quota_of(&alice, IBX_HOLD_TEXTURES)->most, most);
}

/* CUDA has room for so few that one client could take all of them. */
static void test_pools_have_a_limit(void **state)
{
    (void)state;
    uint64_t pools[8], other = 0;
    unsigned n = 0;
    uint8_t bytes[64];
    const uint64_t most = allow_more(&alice, IBX_HOLD_POOLS, 3);
    struct ibx_writer w = body_of(bytes, sizeof(bytes), IBX_EXTRA_POOL_CREATE);
    ibx_put_u32(&w, 0);
    ibx_put_u64(&w, 0);
    ibx_put_u16(&w, 0);
    int rc = 0;
    while (n < 8 && !(rc = run(&alice, &w, &pools[n])))
        n++;
    assert_int_equal(rc, CUDA_MEMORY_ALLOCATION);
    assert_int_equal(n, 3);
    assert_int_equal(run(&bob, &w, &other), 0);
    assert_int_equal(call_one(&bob, IBX_EXTRA_POOL_DESTROY, other, NULL), 0);
    while (n)
        assert_int_equal(call_one(&alice, IBX_EXTRA_POOL_DESTROY, pools[--n], NULL), 0);
    atomic_store(&quota_of(&alice, IBX_HOLD_POOLS)->most, most);
}

static size_t allocated(void)
{
    const struct mallinfo2 now = mallinfo2();
    return now.uordblks + now.hblkhd;
}

/* Memory that is there for long, and clients that open it, and end without closing it. */
static void test_openers_that_are_gone(void **state)
{
    (void)state;
    const size_t before = allocated();
    session->path.provider[0] = '?';
    for (unsigned i = 0; i < 20000; i++) {
        struct copies x = {.s = session, .joined = true, .options = {.mode = IBX_GPU_OFF}};
        x.isolation.tenant = alice.x.isolation.tenant;
        assert_true(ibx_handles_open(&x, IBX_HANDLE_MEMORY, alice.memory));
        ibx_clients_leave(&x);
    }
    session->path.provider[0] = 0;
    const size_t after = allocated();
    if (after > before + 65536)
        fail_msg("20000 clients that have ended take %zu bytes", after - before);
}

/* Sessions of one client end, one after the other, while what they have begun waits: it is known
 * when all of it is over, by a few events. */
static void test_work_that_is_left(void **state)
{
    (void)state;
    void *const own = IBX_CUDA_STREAM_PER_THREAD;
    const uint64_t at = alice.memory;
    assert_true(ibx_copies_have_cuda(&alice.x));
    const unsigned long before = cuda_stats().events;
    app->hold(true);
    for (unsigned i = 0; i < 1000; i++) {
        assert_int_equal(app->copy_async(at, at + 64, 64, own), 0);
        ibx_left_work_keep(&alice.x, 77);
    }
    const unsigned long events = cuda_stats().events - before;
    assert_true(ibx_left_work_any(alice.x.cuda, 77, 0));
    assert_true(ibx_left_work_any(alice.x.cuda, 0, ibx_left_work_so_far()));
    app->hold(false);
    assert_int_equal(app->stream_synchronize(own), 0);
    assert_false(ibx_left_work_any(alice.x.cuda, 77, 0));
    assert_true(events > 0 && events < 100);
    assert_true(cuda_stats().events == before);
}

/* splitmix64 */
static uint64_t seed = 5;

static uint64_t random_number(void)
{
    uint64_t z = seed += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

#define SLOTS 140000u /* more than two blocks have */

static uint64_t slots[SLOTS];

/* Of this thread's processor. */
static double seconds_of_slots(unsigned from, unsigned until)
{
    struct timespec begun, done;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    for (unsigned i = from; i < until; i++)
        assert_true(slots[i] = ibx_slot_make(&alice.x, 1));
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &done);
    return (double)(done.tv_sec - begun.tv_sec) + 1e-9 * (double)(done.tv_nsec - begun.tv_nsec);
}

static void release(uint64_t slot)
{
    ibx_slot_release((void *)(uintptr_t)slot);
}

/* All clients' copies in graphs wait for each other there: none waits for a walk through another
 * one's. */
static void test_very_many_slots(void **state)
{
    (void)state;
    const size_t before = ibx_slots_bytes();
    const double first = seconds_of_slots(0, 10000);
    seconds_of_slots(10000, SLOTS - 10000);
    const double last = seconds_of_slots(SLOTS - 10000, SLOTS);
    for (unsigned i = 0; i < SLOTS; i++)
        release(slots[i]);
    if (last > 20 * first + 0.2)
        fail_msg("%f s for 10000 slots beside 130000, %f s before", last, first);
    assert_true(ibx_slots_bytes() == before);
}

static double seconds_of_functions(uint64_t queue, uint64_t from, uint64_t until)
{
    struct timespec begun, done;
    int rc = 0;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    for (uint64_t number = from; number < until; number++) {
        void *made = ibx_host_work_repeat(&alice.x, queue, number, &rc);
        assert_true(made && made == ibx_host_work_repeat(&alice.x, queue, number, &rc));
        assert_true(ibx_host_work_number(&alice.x, made) == number);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &done);
    return (double)(done.tv_sec - begun.tv_sec) + 1e-9 * (double)(done.tv_nsec - begun.tv_nsec);
}

/* The same of functions that graphs call. */
static void test_very_many_functions(void **state)
{
    (void)state;
    uint64_t queue = 0;
    assert_int_equal(ibx_host_work_open(&alice.x, &queue), 0);
    const double first = seconds_of_functions(queue, 1, 5001);
    seconds_of_functions(queue, 5001, 60001);
    const double last = seconds_of_functions(queue, 60001, 65001);
    ibx_host_work_end(&alice.x);
    if (last > 10 * first + 0.1)
        fail_msg("%f s for 5000 functions beside 60000, %f s before", last, first);
}

static uint8_t *bytes_of(uint64_t slot, size_t n)
{
    struct ibx_slot_memory memory;
    assert_true(ibx_slot_use(slot, &memory));
    ibx_slot_stop_using(slot);
    assert_true(memory.n >= n && memory.at >= memory.base &&
                memory.at + memory.n <= memory.base + memory.length);
    return memory.at;
}

/* They come and go, each with bytes of its own. */
static void test_slots_come_and_go(void **state)
{
    enum { MOST = 300 };
    static size_t sizes[MOST];
    (void)state;
    const size_t before = ibx_slots_bytes();
    memset(slots, 0, sizeof(slots));
    for (unsigned i = 0; i < 20000; i++) {
        const unsigned k = (unsigned)(random_number() % MOST);
        if (slots[k]) {
            const uint8_t *bytes = bytes_of(slots[k], sizes[k]);
            assert_true(bytes[0] == (uint8_t)slots[k] && bytes[sizes[k] - 1] == (uint8_t)slots[k]);
            release(slots[k]);
        }
        sizes[k] = random_number() % 8 ? 1 + random_number() % 300 : 1 + random_number() % 90000;
        assert_true(slots[k] = ibx_slot_make(&alice.x, sizes[k]));
        memset(bytes_of(slots[k], sizes[k]), (uint8_t)slots[k], sizes[k]);
    }
    for (unsigned k = 0; k < MOST; k++)
        if (slots[k])
            release(slots[k]);
    assert_true(ibx_slots_bytes() == before);
}

/* Handles and addresses that bodies are made of, by kind: those of the client that asks, and one of
 * the other's. */
enum kind { GRAPH, NODE, EXEC, ARRAY, DEVICE, KINDS };
static const char kinds[] = "gneado";
static uint64_t own[KINDS][RECENT], others[KINDS];
static unsigned noted[KINDS];

static void note(enum kind kind, uint64_t value)
{
    own[kind][noted[kind]++ % RECENT] = value;
}

static void note_all_of(const struct client *c)
{
    note(GRAPH, c->graph);
    note(NODE, c->node);
    note(EXEC, c->exec);
    note(ARRAY, c->array);
    note(DEVICE, c->memory);
}

/* Of that kind, or of any; of one's own, mostly; beside it, or something else. */
static uint64_t handle(unsigned kind)
{
    if (kind == KINDS || random_number() % 8 == 0)
        kind = (unsigned)(random_number() % KINDS);
    const unsigned count = noted[kind] < RECENT ? noted[kind] : RECENT;
    const uint64_t mine = own[kind][random_number() % count];
    switch (random_number() % 12) {
    case 0:
        return random_number() >> random_number() % 64;
    case 1:
        return mine + random_number() % 8192;
    case 2:
        return 0;
    case 3:
    case 4:
        return others[kind];
    default:
        return mine;
    }
}

static uint64_t size(void)
{
    return random_number() % 16 ? random_number() % 65 : random_number() >> random_number() % 64;
}

/* g, n, e, a, d: a graph, a node, an executable graph, an array, memory; o: any of these; z: a
 * size; i, h, b: numbers of 4, 2 and 1 bytes; A: an attribute's value; p: a graph and nodes that
 * one comes behind; k: a kernel; v: a name; m, c: planes to be copied, c between host and device;
 * s: memory to be set; r, t: a resource, a texture. Not there: what makes memory of any size, or
 * graphs of graphs without end. */
static const char *const forms[IBX_EXTRAS + 1] = {
    [IBX_EXTRA_LAUNCH] = "hk",
    [IBX_EXTRA_STREAM_SET_ATTRIBUTE] = "oiA",
    [IBX_EXTRA_STREAM_GET_ATTRIBUTE] = "oi",
    [IBX_EXTRA_GET_LIMIT] = "i",
    [IBX_EXTRA_SYMBOL_ADDRESS] = "o",
    [IBX_EXTRA_SYMBOL_SIZE] = "o",
    [IBX_EXTRA_FREE_ARRAY] = "a",
    [IBX_EXTRA_TO_ARRAY] = "azzdz",
    [IBX_EXTRA_FROM_ARRAY] = "dazzz",
    [IBX_EXTRA_2D_TO_ARRAY] = "azzdzzz",
    [IBX_EXTRA_2D_FROM_ARRAY] = "dzazzzz",
    [IBX_EXTRA_MEMCPY_3D] = "m",
    [IBX_EXTRA_MEMCPY_3D_ASYNC] = "mo",
    [IBX_EXTRA_CHANNEL_DESC] = "a",
    [IBX_EXTRA_CREATE_TEXTURE] = "rt",
    [IBX_EXTRA_DESTROY_TEXTURE] = "o",
    [IBX_EXTRA_CREATE_SURFACE] = "r",
    [IBX_EXTRA_DESTROY_SURFACE] = "o",
    [IBX_EXTRA_FREE_ASYNC] = "do",
    [IBX_EXTRA_POOL_DEFAULT] = "i",
    [IBX_EXTRA_POOL_SET] = "oiz",
    [IBX_EXTRA_POOL_GET] = "oi",
    [IBX_EXTRA_POOL_TRIM] = "oz",
    [IBX_EXTRA_HOST_ADD] = "ooob",
    [IBX_EXTRA_HOST_ASK] = "ob",
    [IBX_EXTRA_IS_CAPTURING] = "o",
    [IBX_EXTRA_HOST_CAPTURE] = "ooo",
    [IBX_EXTRA_MEMSET] = "dizo",
    [IBX_EXTRA_MEMSET_2D] = "dzizzo",
    [IBX_EXTRA_GRAPH_CREATE] = "i",
    [IBX_EXTRA_GRAPH_DESTROY] = "g",
    [IBX_EXTRA_GRAPH_CLONE] = "g",
    [IBX_EXTRA_GRAPH_INSTANTIATE] = "gz",
    [IBX_EXTRA_GRAPH_NODES] = "gzb",
    [IBX_EXTRA_GRAPH_FUNCTIONS] = "gz",
    [IBX_EXTRA_GRAPH_ORDER] = "gnnb",
    [IBX_EXTRA_NODE_KERNEL] = "pk",
    [IBX_EXTRA_NODE_MEMCPY] = "pm",
    [IBX_EXTRA_NODE_MEMSET] = "ps",
    [IBX_EXTRA_NODE_HOST] = "poo",
    [IBX_EXTRA_NODE_EMPTY] = "p",
    [IBX_EXTRA_NODE_RECORD] = "po",
    [IBX_EXTRA_NODE_WAIT] = "po",
    [IBX_EXTRA_NODE_FREE] = "pd",
    [IBX_EXTRA_NODE_TYPE] = "n",
    [IBX_EXTRA_NODE_DESTROY] = "n",
    [IBX_EXTRA_SET_KERNEL] = "enk",
    [IBX_EXTRA_SET_MEMCPY] = "enm",
    [IBX_EXTRA_SET_MEMSET] = "ens",
    [IBX_EXTRA_EXEC_UPDATE] = "eg",
    [IBX_EXTRA_EXEC_DESTROY] = "e",
    [IBX_EXTRA_EXEC_UPLOAD] = "eo",
    [IBX_EXTRA_GRAPH_MEMORY] = "ii",
    [IBX_EXTRA_GRAPH_TRIM] = "i",
    [IBX_EXTRA_STREAM_WAIT] = "o",
    [IBX_EXTRA_STREAM_FLAGS] = "o",
    [IBX_EXTRA_STREAM_PRIORITY] = "o",
    [IBX_EXTRA_IPC_MEMORY] = "d",
    [IBX_EXTRA_IPC_OPEN_MEMORY] = "A",
    [IBX_EXTRA_IPC_EVENT] = "o",
    [IBX_EXTRA_IPC_OPEN_EVENT] = "A",
    [IBX_EXTRA_NODE_COPY] = "pooc",
    [IBX_EXTRA_CAPTURE_COPY] = "oooc",
    [IBX_EXTRA_SET_COPY] = "enooc",
    [IBX_EXTRA_GET_COPY] = "n",
    [IBX_EXTRA_PRINTED] = "b",
    [IBX_EXTRA_IPC_CLOSE] = "bo",
    [IBX_EXTRA_PARAMETERS] = "oi",
    [IBX_EXTRA_SHARE_MODULES] = "o",
    [IBX_EXTRA_RESET_L2] = "",
    [IBX_EXTRA_POOL_CURRENT] = "i",
    [IBX_EXTRA_POOL_DESTROY] = "o",
    [IBX_EXTRA_POOL_SET_ACCESS] = "oii",
    [IBX_EXTRA_POOL_GET_ACCESS] = "oi",
    [IBX_EXTRA_IPC_POOL] = "o",
    [IBX_EXTRA_IPC_OPEN_POOL] = "A",
    [IBX_EXTRA_IPC_OPEN_POINTER] = "oA",
    [IBX_EXTRA_GRAPH_CONDITION] = "gii",
    [IBX_EXTRA_NODE_CONDITIONAL] = "poii",
    [IBX_EXTRA_NODE_NEIGHBOURS] = "nzb",
    [IBX_EXTRA_NODE_ENABLE] = "eni",
    [IBX_EXTRA_NODE_ENABLED] = "en",
    [IBX_EXTRA_STREAM_ID] = "o",
    [IBX_EXTRA_STREAM_DEVICE] = "o",
    [IBX_EXTRA_STREAM_COPY_ATTRIBUTES] = "oo",
    [IBX_EXTRA_DEVICE_FLAGS] = "",
    [IBX_EXTRA_DEVICE_CACHE] = "",
    [IBX_EXTRA_BETWEEN_DEVICES] = "iii",
    [IBX_EXTRA_TEXTURE_WIDTH] = "iiiiii",
    [IBX_EXTRA_CLUSTERS] = "oiiiiiizoiA",
    [IBX_EXTRA_SHARED_MEMORY] = "oii",
    [IBX_EXTRA_PARAMETER] = "oz",
    [IBX_EXTRA_VARIABLE] = "ov",
    [IBX_EXTRA_HOST_UNMAP] = "o",
    [IBX_EXTRAS] = "o",
};

/* What several letters stand for. */
static const char *longer(char letter)
{
    static const char *const resources[] = {"a", "a", "diiiiiz", "diiiiizzz"};
    switch (letter) {
    case 'm':
        return random_number() & 1   ? "azzz0zzz0zzzdzzzzzz3"
               : random_number() & 1 ? "0zzzdzzz0zzzdzzzzzz3"
                                     : "0zzzdzzzazzz0zzzzzz3";
    case 'c':
        return random_number() & 1 ? "0zzz0zzz0zzzdzzzzzz1" : "0zzzdzzz0zzz0zzzzzz2";
    case 's':
        return "dziizz";
    case 't':
        return "iiiiiiiiiiiiiiiiiib";
    case 'k':
        return "oiiiiiizozzz";
    case 'r':
        return resources[random_number() % 4];
    default:
        return NULL;
    }
}

static void put_any(struct ibx_writer *w, const char *form)
{
    uint8_t bytes[IBX_EXTRA_ATTRIBUTE] = {0};
    for (; *form; form++) {
        const char *kind = strchr(kinds, *form), *more = longer(*form);
        const uint32_t few = (uint32_t)(random_number() % 4);
        if (*form == 'r')
            ibx_put_u32(w, few);
        if (more)
            put_any(w, more);
        else if (kind)
            ibx_put_u64(w, handle((unsigned)(kind - kinds)));
        else if (*form == 'z' || *form == '0')
            ibx_put_u64(w, *form == 'z' ? size() : 0);
        else if (*form == 'i' || *form == '3')
            ibx_put_u32(w, *form == 'i' ? few : 3);
        else if (*form == 'h')
            ibx_put_u16(w, (uint16_t)(few & 1 ? 68 * few : 0));
        else if (*form == 'b')
            ibx_put_u8(w, few & 1);
        else if (*form == 'v')
            ibx_put_u16(w, 2), ibx_put_u16(w, 'x' << 8 | 'y');
        else if (*form == 'A')
            ibx_put_bytes(w, bytes, sizeof(bytes));
        if (*form != 'p')
            continue;
        ibx_put_u64(w, handle(GRAPH));
        ibx_put_u16(w, (uint16_t)(few / 2));
        for (uint32_t i = 0; i < few / 2; i++)
            ibx_put_u64(w, handle(NODE));
    }
}

/* One in eight is cut off somewhere, or has more bytes than it should. */
static void request_anything(struct client *c)
{
    uint8_t bytes[1024] = {0};
    const unsigned number = (unsigned)(random_number() % (IBX_EXTRAS + 1));
    struct ibx_writer w = body_of(bytes, sizeof(bytes), number);
    uint64_t answer;
    if (!forms[number])
        return;
    put_any(&w, forms[number]);
    assert_false(w.failed);
    if (random_number() % 8 == 0)
        w.length = random_number() % (w.length + 9);
    if (run(c, &w, &answer) || !answer)
        return;
    if (number == IBX_EXTRA_GRAPH_CREATE || number == IBX_EXTRA_GRAPH_CLONE)
        note(GRAPH, answer);
    if (number >= IBX_EXTRA_NODE_KERNEL && number <= IBX_EXTRA_NODE_FREE)
        note(NODE, answer);
    if (number == IBX_EXTRA_GRAPH_INSTANTIATE)
        note(EXEC, answer);
}

/* As the handler that does so: the same address may be another thing's then. */
static void destroy_event(void *event)
{
    ibx_handles_remove(&alice.x, IBX_HANDLE_EVENT, (uintptr_t)event);
    assert_int_equal(app->event_destroy(event), 0);
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
        assert_int_equal(call_one(&alice, IBX_EXTRA_IPC_EVENT, (uintptr_t)events[i], &answer),
                         i < MOST ? 0 : 2);
    }
    assert_int_equal(call_one(&bob, IBX_EXTRA_IPC_EVENT, (uintptr_t)events[MOST], &answer), 400);
    assert_true(ibx_handles_add(&bob.x, IBX_HANDLE_EVENT, (uintptr_t)events[MOST]));
    assert_int_equal(call_one(&bob, IBX_EXTRA_IPC_EVENT, (uintptr_t)events[MOST], &answer), 0);
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_EVENT, (uintptr_t)events[MOST]));
    ibx_ipc_gone((uintptr_t)events[MOST]);
    ibx_ipc_gone((uintptr_t)events[7]);
    assert_int_equal(call_one(&alice, IBX_EXTRA_IPC_EVENT, (uintptr_t)events[MOST], &answer), 0);
    /* When a session has ended, what it has shared gives way. */
    assert_int_equal(app->event_create(&more, 4), 0);
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_EVENT, (uintptr_t)more));
    assert_int_equal(call_one(&alice, IBX_EXTRA_IPC_EVENT, (uintptr_t)more, &answer), 2);
    ibx_ipc_end(&bob.x);
    assert_int_equal(call_one(&alice, IBX_EXTRA_IPC_EVENT, (uintptr_t)more, &answer), 2);
    ibx_ipc_end(&alice.x);
    assert_int_equal(call_one(&alice, IBX_EXTRA_IPC_EVENT, (uintptr_t)more, &answer), 0);
    destroy_event(more);
    ibx_ipc_forget(NULL);
    for (unsigned i = MOST + 1; i-- > 0;)
        destroy_event(events[i]);
}

/* Seconds of this thread's processor for graphs that come and go, and for clients that do. */
static double seconds_of_graphs(void)
{
    struct timespec begun, done;
    uint64_t graph, node;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(create_graph(&bob, &graph), 0);
        assert_int_equal(add_memset(&bob, graph, bob.memory, &node), 0);
        assert_int_equal(call_one(&bob, IBX_EXTRA_GRAPH_DESTROY, graph, NULL), 0);
        assert_int_equal(call_one(&bob, IBX_EXTRA_NODE_TYPE, node, NULL), 1);
        assert_false(ibx_handles_any(1000 + i));
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &done);
    return (double)(done.tv_sec - begun.tv_sec) + 1e-9 * (double)(done.tv_nsec - begun.tv_nsec);
}

/* One that has very many things slows no other one down. */
static void test_very_many_of_others(void **state)
{
    const uint64_t first = UINT64_C(1) << 48;
    (void)state;
    seconds_of_graphs();
    const double alone = seconds_of_graphs();
    for (uint64_t i = 0; i < 300000; i++)
        assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_EVENT, first + 16 * i));
    const double beside = seconds_of_graphs();
    for (uint64_t i = 0; i < 300000; i++)
        assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_EVENT, first + 16 * i));
    if (beside > 10 * alone + 0.05)
        fail_msg("%f s beside 300000 events of another client, %f s before", beside, alone);
}

/* Seconds of this thread's processor for frees of what nobody has shared. */
static double seconds_of_frees(void)
{
    struct timespec begun, done;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    for (uint64_t i = 1; i <= 2000; i++)
        ibx_ipc_gone(256 * i);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &done);
    return (double)(done.tv_sec - begun.tv_sec) + 1e-9 * (double)(done.tv_nsec - begun.tv_nsec);
}

/* What one client has shared makes no other one's frees slow, and is found by what it is. */
static void test_very_many_are_shared(void **state)
{
    enum { MANY = 4096 };
    static void *events[MANY];
    static uint64_t numbers[MANY];
    uint64_t again;
    double alone = 0;
    (void)state;
    for (unsigned i = 0; i < MANY; i++) {
        assert_int_equal(app->event_create(&events[i], 4), 0);
        assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_EVENT, (uintptr_t)events[i]));
        assert_int_equal(call_one(&alice, IBX_EXTRA_IPC_EVENT, (uintptr_t)events[i], &numbers[i]),
                         0);
        if (i == 1) {
            seconds_of_frees();
            alone = seconds_of_frees();
        }
    }
    const double beside = seconds_of_frees();
    if (beside > 10 * alone + 0.005)
        fail_msg("%f s beside 4096 that are shared, %f s before", beside, alone);
    for (unsigned i = 0; i < MANY; i += 3)
        ibx_ipc_gone((uintptr_t)events[i * 5 % MANY / 3 * 3]);
    for (unsigned i = 0; i < MANY; i++) {
        assert_int_equal(call_one(&alice, IBX_EXTRA_IPC_EVENT, (uintptr_t)events[i], &again), 0);
        if (i % 3)
            assert_true(again == numbers[i]);
    }
    for (unsigned i = 0; i < MANY; i++)
        ibx_ipc_gone((uintptr_t)events[i]);
    for (unsigned i = MANY; i-- > 0;) {
        assert_int_equal(call_one(&alice, IBX_EXTRA_IPC_EVENT, (uintptr_t)events[i], &again), 0);
        assert_true(again != numbers[i]);
    }
    ibx_ipc_forget(NULL);
    for (unsigned i = 0; i < MANY; i++)
        destroy_event(events[i]);
}

static void test_anything(void **state)
{
    (void)state;
    uint8_t before[MEMORY], after[MEMORY];
    uint64_t answer;
    memset(before, 'b', sizeof(before));
    assert_int_equal(app->to_device(bob.memory, before, MEMORY), 0);
    const uint64_t of_bob[KINDS] = {bob.graph, bob.node, bob.exec, bob.array, bob.memory};
    memcpy(others, of_bob, sizeof(others));
    for (unsigned i = 0; i < REQUESTS; i++) {
        if (i % RENEWED == 0) {
            make_all(&alice);
            note_all_of(&alice);
        }
        request_anything(&alice);
    }
    /* All that is the other tenant's is as it was. */
    assert_int_equal(app->ctx_synchronize(), 0);
    assert_int_equal(app->from_device(after, bob.memory, MEMORY), 0);
    assert_memory_equal(after, before, MEMORY);
    assert_int_equal(count_nodes(&bob, bob.graph), 1);
    assert_int_equal(call_one(&bob, IBX_EXTRA_NODE_TYPE, bob.node, &answer), 0);
    assert_int_equal(call_one(&bob, IBX_EXTRA_CHANNEL_DESC, bob.array, &answer), 0);
    assert_int_equal(call_one(&bob, IBX_EXTRA_FREE_ARRAY, bob.array, &answer), 0);
    assert_int_equal(call_one(&bob, IBX_EXTRA_EXEC_DESTROY, bob.exec, &answer), 0);
    assert_int_equal(call_one(&bob, IBX_EXTRA_GRAPH_DESTROY, bob.graph, &answer), 0);
    assert_int_equal(call(&bob, IBX_EXTRA_FREE_ASYNC, 2, (uint64_t[]){bob.memory, 0}, &answer), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_without_owner),
        cmocka_unit_test(test_rows_of_others),
        cmocka_unit_test(test_nodes_of_others),
        cmocka_unit_test(test_graphs_in_graphs),
        cmocka_unit_test(test_nodes_have_a_limit),
        cmocka_unit_test(test_depth_of_graphs),
        cmocka_unit_test(test_conditions_in_conditions),
        cmocka_unit_test(test_captures_have_a_limit),
        cmocka_unit_test(test_textures_have_a_limit),
        cmocka_unit_test(test_pools_have_a_limit),
        cmocka_unit_test(test_openers_that_are_gone),
        cmocka_unit_test(test_work_that_is_left),
        cmocka_unit_test(test_very_many_slots),
        cmocka_unit_test(test_very_many_functions),
        cmocka_unit_test(test_slots_come_and_go),
        cmocka_unit_test(test_handles_have_a_limit),
        cmocka_unit_test(test_very_many_of_others),
        cmocka_unit_test(test_very_many_are_shared),
        cmocka_unit_test(test_anything),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
