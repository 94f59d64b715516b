/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How much a tenant's clients may make the back end hold by extension requests. */
#include "frontend-glue/session/textures.h"
#include "frontend-glue/tenants/math_limits.h"
#include "tests/fixtures/extensions.h"

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
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), number);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    if (child)
        ibx_put_u64(&w, child);
    return ext_run(c, &w, node);
}

/* Each graph contains the previous one twice, and CUDA copies it with its contents: a few
 * requests would ask for more memory than exists. */
static void test_graphs_in_graphs(void **state)
{
    (void)state;
    const uint64_t before = ext_used(&alice, IBX_HOLD_GRAPHS),
                   execs = ext_used(&alice, IBX_HOLD_EXECS);
    const uint64_t most = ext_allow_more(&alice, IBX_HOLD_GRAPHS, 1000);
    const uint64_t most_execs = ext_allow_more(&alice, IBX_HOLD_EXECS, 300);
    uint64_t graphs[20] = {0}, node, exec, other, last;
    unsigned n = 0;
    int rc = ext_graph_create(&alice, &graphs[n++]);
    assert_int_equal(rc, 0);
    while (!rc && n < 20 && !(rc = ext_graph_create(&alice, &graphs[n]))) {
        for (unsigned k = 0; !rc && k < 2; k++)
            rc = add_to_graph(&alice, IBX_EXT_NODE_CHILD, graphs[n], graphs[n - 1], &node);
        n++;
    }
    assert_int_equal(rc, CUDA_MEMORY_ALLOCATION);
    assert_true(n > 6 && n < 10);
    /* A node for which an executable graph has no room, and one for which it has. */
    assert_int_equal(
        ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2, (uint64_t[]){graphs[n - 2], 0}, &exec),
        CUDA_MEMORY_ALLOCATION);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2, (uint64_t[]){graphs[3], 0},
                                  i ? &exec : &last),
                         0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_CLONE, graphs[n - 2], &other),
                     CUDA_MEMORY_ALLOCATION);
    /* Other tenants have their own limit, and alice has hers again once these are destroyed. */
    assert_int_equal(ext_graph_create(&bob, &other), 0);
    assert_int_equal(ext_call_one(&bob, IBX_EXT_GRAPH_DESTROY, other, NULL), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_EXEC_DESTROY, exec, NULL), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_EXEC_DESTROY, last, NULL), 0);
    while (n)
        assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graphs[--n], NULL), 0);
    assert_true(ext_used(&alice, IBX_HOLD_GRAPHS) == before);
    assert_true(ext_used(&alice, IBX_HOLD_EXECS) == execs);
    atomic_store(&ext_quota(&alice, IBX_HOLD_GRAPHS)->most, most);
    atomic_store(&ext_quota(&alice, IBX_HOLD_EXECS)->most, most_execs);
}

static void test_nodes_have_a_limit(void **state)
{
    (void)state;
    const uint64_t before = ext_used(&alice, IBX_HOLD_GRAPHS);
    const uint64_t most = ext_allow_more(&alice, IBX_HOLD_GRAPHS, 4);
    uint64_t graph, other, nodes[4];
    assert_int_equal(ext_graph_create(&alice, &graph), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(add_to_graph(&alice, IBX_EXT_NODE_EMPTY, graph, 0, &nodes[i]), 0);
    assert_int_equal(add_to_graph(&alice, IBX_EXT_NODE_EMPTY, graph, 0, &nodes[3]),
                     CUDA_MEMORY_ALLOCATION);
    assert_int_equal(ext_memset_add(&alice, graph, alice.memory, &nodes[3]),
                     CUDA_MEMORY_ALLOCATION);
    assert_int_equal(ext_graph_create(&alice, &other), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_NODE_DESTROY, nodes[2], NULL), 0);
    /* A tenant's graphs cannot have edges without limit either. */
    uint8_t bytes[64];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_GRAPH_ORDER);
    ibx_put_u64(&w, graph);
    ibx_put_u64(&w, nodes[0]);
    ibx_put_u64(&w, nodes[1]);
    ibx_put_u8(&w, 0);
    assert_int_equal(ext_run(&alice, &w, NULL), 0);
    assert_int_equal(ext_run(&alice, &w, NULL), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, NULL), 0);
    assert_true(ext_used(&alice, IBX_HOLD_GRAPHS) == before);
    atomic_store(&ext_quota(&alice, IBX_HOLD_GRAPHS)->most, most);
}

/* A copy of a graph counts as much as the graph, with what is in it. */
static void test_a_clone_counts_as_its_graph(void **state)
{
    (void)state;
    uint64_t inner, outer, clone, node;
    assert_int_equal(ext_graph_create(&alice, &inner), 0);
    assert_int_equal(ext_graph_create(&alice, &outer), 0);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(add_to_graph(&alice, IBX_EXT_NODE_EMPTY, inner, 0, &node), 0);
    assert_int_equal(add_to_graph(&alice, IBX_EXT_NODE_CHILD, outer, inner, &node), 0);
    const uint64_t before = ext_used(&alice, IBX_HOLD_GRAPHS);
    const struct ibx_graph_size size = ibx_handles_size(&alice.x, IBX_HANDLE_GRAPH, outer);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_CLONE, outer, &clone), 0);
    assert_int_equal(ext_used(&alice, IBX_HOLD_GRAPHS), before + size.nodes);
    const struct ibx_graph_size same = ibx_handles_size(&alice.x, IBX_HANDLE_GRAPH, clone);
    assert_true(size.nodes > 10 && same.nodes == size.nodes && same.depth == size.depth);
    assert_true(ibx_room_owned(&alice.x, clone));
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, clone, NULL), 0);
    assert_false(ibx_room_owned(&alice.x, clone)); /* the handle may be another tenant's next */
    assert_int_equal(ext_used(&alice, IBX_HOLD_GRAPHS), before);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, outer, NULL), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, inner, NULL), 0);
}

/* A node with a graph in it gives back all that it counts as, though it was listed meanwhile. */
static void test_listed_nodes_count_as_before(void **state)
{
    (void)state;
    uint64_t inner, outer, node;
    assert_int_equal(ext_graph_create(&alice, &inner), 0);
    assert_int_equal(ext_graph_create(&alice, &outer), 0);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(add_to_graph(&alice, IBX_EXT_NODE_EMPTY, inner, 0, &node), 0);
    const uint64_t before = ext_used(&alice, IBX_HOLD_GRAPHS);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(add_to_graph(&alice, IBX_EXT_NODE_CHILD, outer, inner, &node), 0);
        assert_true(ext_nodes_count(&alice, outer) == 1);
        assert_int_equal(ext_call_one(&alice, IBX_EXT_NODE_DESTROY, node, NULL), 0);
        assert_int_equal(ext_used(&alice, IBX_HOLD_GRAPHS), before);
        assert_int_equal(ibx_handles_size(&alice.x, IBX_HANDLE_GRAPH, outer).nodes, 1);
    }
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, outer, NULL), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, inner, NULL), 0);
}

/* Code that walks through graphs, CUDA's or the back end's, recurses as deep as they are nested. */
static void test_depth_of_graphs(void **state)
{
    (void)state;
    const uint64_t before = ext_used(&alice, IBX_HOLD_GRAPHS);
    uint64_t graph, next, node;
    unsigned deep = 0;
    int rc = ext_graph_create(&alice, &graph);
    while (!rc && deep < 1000) {
        assert_int_equal(ext_graph_create(&alice, &next), 0);
        rc = add_to_graph(&alice, IBX_EXT_NODE_CHILD, next, graph, &node);
        assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, NULL), 0);
        graph = next;
        deep++;
    }
    assert_int_equal(rc, CUDA_NOT_SUPPORTED);
    assert_int_equal(deep, IBX_EXT_GRAPHS_DEEP);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, NULL), 0);
    assert_true(ext_used(&alice, IBX_HOLD_GRAPHS) == before);
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

/* An allocation that is not noted for its tenant would belong to nobody. */
static void test_allocations_have_an_owner(void **state)
{
    (void)state;
    const uint64_t most = ext_allow_more(&alice, IBX_HOLD_ALLOCATIONS, 1);
    assert_int_equal(asked_of_cuda(&alice.x, 4096), 4096);
    atomic_store(&ext_quota(&alice, IBX_HOLD_ALLOCATIONS)->most, most);
    ext_allow_more(&alice, IBX_HOLD_ALLOCATIONS, 0);
    assert_true(asked_of_cuda(&alice.x, 4096) >= 1ull << 50); /* more than CUDA has */
    assert_int_equal(asked_of_cuda(&bob.x, 4096), 4096);
    atomic_store(&ext_quota(&alice, IBX_HOLD_ALLOCATIONS)->most, most);
    assert_int_equal(asked_of_cuda(&alice.x, 4096), 4096);
}

static int add_conditional(struct client *c, uint64_t graph, uint64_t *body)
{
    uint8_t bytes[64], out[IBX_EXT_OUT_MAX] = {0};
    uint64_t handle;
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_GRAPH_CONDITION);
    ibx_put_u64(&w, graph);
    ibx_put_u32(&w, 0);
    ibx_put_u32(&w, 1);
    assert_int_equal(ext_run(c, &w, &handle), 0);
    w = ext_body(bytes, sizeof(bytes), IBX_EXT_NODE_CONDITIONAL);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    ibx_put_u64(&w, handle);
    ibx_put_u32(&w, 0);
    ibx_put_u32(&w, 1);
    struct ibx_writer answer = ibx_writer_of(out, sizeof(out));
    const struct ibx_request q = {.body = w.data, .length = w.length};
    const int rc = ibx_extension_run(&c->x, &q, &answer);
    struct ibx_reader r = ibx_reader_of(out, answer.length);
    ibx_get_u64(&r);
    *body = rc ? 0 : ibx_get_u64(&r);
    return rc;
}

/* It ends with the graph around it: CUDA would destroy it twice. */
static void test_the_graph_of_a_condition_is_not_destroyed_alone(void **state)
{
    (void)state;
    uint64_t graph, body;
    assert_int_equal(ext_graph_create(&alice, &graph), 0);
    assert_int_equal(add_conditional(&alice, graph, &body), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, body, NULL), CUDA_INVALID_VALUE);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, NULL), 0);
}

/* The same for the graphs of conditional nodes, which executable graphs have too. */
static void test_conditions_in_conditions(void **state)
{
    (void)state;
    const uint64_t before = ext_used(&alice, IBX_HOLD_GRAPHS);
    const uint64_t most = ext_allow_more(&alice, IBX_HOLD_EXECS, 100);
    uint64_t graph, body, exec;
    unsigned deep = 0;
    assert_int_equal(ext_graph_create(&alice, &graph), 0);
    body = graph;
    while (body && deep < 1000) {
        if (add_conditional(&alice, body, &body))
            break;
        deep++;
    }
    assert_int_equal(deep, IBX_EXT_GRAPHS_DEEP - 1);
    assert_int_equal(ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2, (uint64_t[]){graph, 0}, &exec),
                     CUDA_MEMORY_ALLOCATION);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, NULL), 0);
    assert_true(ext_used(&alice, IBX_HOLD_GRAPHS) == before);
    atomic_store(&ext_quota(&alice, IBX_HOLD_EXECS)->most, most);
}

/* Executable graphs of ranks that have a GPU each. */
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
            assert_int_equal(ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2,
                                      (uint64_t[]){alice.graph, 0}, &execs[gpu][i]),
                             0);
        assert_int_equal(
            ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2, (uint64_t[]){alice.graph, 0}, &more),
            CUDA_MEMORY_ALLOCATION);
    }
    /* They may be destroyed with any device current. The host has a limit of its own. */
    assert_int_equal(ext_call_one(&alice, IBX_EXT_EXEC_DESTROY, execs[0][0], NULL), 0);
    assert_true(atomic_load(&ibx_tenant_execs(tenant, 0)->used) == before[0] + 2);
    assert_true(atomic_load(&ibx_tenant_execs(tenant, 1)->used) == before[1] + 4);
    cuda_application_use(0);
    const uint64_t of_all = ext_allow_more(&alice, IBX_HOLD_EXECS, 1);
    assert_int_equal(
        ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2, (uint64_t[]){alice.graph, 0}, &more),
        CUDA_MEMORY_ALLOCATION);
    atomic_store(&ext_quota(&alice, IBX_HOLD_EXECS)->most, of_all);
    const uint64_t left[] = {execs[0][1], execs[1][0], execs[1][1]};
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(ext_call_one(&alice, IBX_EXT_EXEC_DESTROY, left[i], NULL), 0);
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
    const uint64_t most = ext_allow_more(&alice, IBX_HOLD_TEXTURES, 1);
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_CREATE_SURFACE);
    ibx_resource_put(&w, &resource);
    assert_int_equal(ext_run(&alice, &w, &first), 0);
    assert_int_equal(ext_run(&alice, &w, &second), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_DESTROY_SURFACE, first, NULL), 0);
    assert_int_equal(ext_run(&alice, &w, &first), 0);
    /* Those that the driver makes count, too. */
    const struct ibx_cuda_texture linear = {
        .words = {1, 2, 3, 1, 0, 0, 7, 8, 9, 10, 0, 12, 13, 14, 15, 16, 0, 0}};
    w = ext_body(bytes, sizeof(bytes), IBX_EXT_CREATE_TEXTURE);
    ibx_resource_put(&w, &resource);
    ibx_layout_put(&w, IBX_LAYOUT_TEXTURE, &linear);
    ibx_put_u8(&w, IBX_TEXTURE_BY_DRIVER);
    assert_int_equal(ext_run(&alice, &w, &second), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_DESTROY_SURFACE, first, NULL), 0);
    assert_int_equal(ext_run(&alice, &w, &first), 0);
    assert_int_equal(ext_run(&alice, &w, &second), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_DESTROY_TEXTURE, first, NULL), 0);
    atomic_store(&ext_quota(&alice, IBX_HOLD_TEXTURES)->most, most);
}

/* GVirtuS's handler has made it, and answers with `n` bytes of its address. */
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

/* They count like those of extension requests, which may destroy them. */
static void test_textures_of_handlers(void **state)
{
    (void)state;
    struct gpu_session *x = &alice.x;
    const uint64_t made = 0x7e000001, before = ext_used(&alice, IBX_HOLD_TEXTURES);
    const uint64_t most = ext_allow_more(&alice, IBX_HOLD_TEXTURES, 1);
    assert_true(may_make_texture(x));
    made_by_handler(x, made, 8);
    assert_true(ext_used(&alice, IBX_HOLD_TEXTURES) == before + 1);
    assert_true(ibx_handles_has(x, IBX_HANDLE_TEXTURE, made));
    assert_false(may_make_texture(x));
    ibx_handles_remove(x, IBX_HANDLE_TEXTURE, made);
    assert_true(ext_used(&alice, IBX_HOLD_TEXTURES) == before && may_make_texture(x));
    made_by_handler(x, made, 3); /* the address is unknown, so no request can name it */
    assert_false(ibx_named_any_unseen());
    atomic_store(&ext_quota(&alice, IBX_HOLD_TEXTURES)->most, most);
}

/* It is unknown which descriptor of cuDNN's graphs a handler makes, so it counts as a plan. */
static void test_graphs_of_handlers(void **state)
{
    (void)state;
    struct gpu_session *x = &alice.x;
    const enum ibx_handle_kind kind = (enum ibx_handle_kind)(IBX_HANDLE_MATH + IBX_MATH_GRAPH);
    const uint64_t made = 0x7e000001, before = ext_used(&alice, IBX_HOLD_GRAPH_PARTS);
    ibx_made_read(x, "cudnnBackendCreateDescriptor");
    made_by_handler(x, made, 8);
    assert_true(ext_used(&alice, IBX_HOLD_GRAPH_PARTS) == before + IBX_MATH_HEAVY);
    assert_true(ibx_handles_remove(x, kind, made));
    assert_true(ext_used(&alice, IBX_HOLD_GRAPH_PARTS) == before);
}

/* The handler of cufftPlan1d answers with `n` bytes of an int that has `length` before it, unless
 * that is 0. */
static uint64_t plan_by_handler(struct gpu_session *x, uint64_t length, uint32_t plan, size_t n)
{
    struct ibx_writer w = ibx_writer_of(x->replies.last, sizeof(x->replies.last));
    const uint64_t before = ext_used(&alice, IBX_HOLD_PLANS);
    ibx_made_read(x, "cufftPlan1d");
    if (length)
        ibx_put_u64(&w, length);
    ibx_put_u32(&w, plan);
    ibx_put_u32(&w, 0x5a5a5a5a);
    x->replies.last_size = n;
    x->replies.exit_code = 0;
    ibx_made_answered(x);
    return ext_used(&alice, IBX_HOLD_PLANS) - before;
}

/* A plan of cuFFT is an int: generations of GVirtuS return it alone, or as an array of one. */
static void test_plans_of_handlers(void **state)
{
    (void)state;
    const enum ibx_handle_kind kind = (enum ibx_handle_kind)(IBX_HANDLE_MATH + IBX_MATH_FFT);
    struct gpu_session *x = &alice.x;
    const uint64_t weight = plan_by_handler(x, 0, 0x101, 4);
    assert_true(weight && ibx_handles_has(x, kind, 0x101));
    assert_true(plan_by_handler(x, 4, 0x102, 12) == weight && ibx_handles_has(x, kind, 0x102));
    assert_true(ibx_handles_remove(x, kind, 0x101) && ibx_handles_remove(x, kind, 0x102));
    /* An array of two, and an address, are no plan. */
    assert_true(plan_by_handler(x, 8, 0x103, 12) == 0 && !ibx_handles_has(x, kind, 0x103));
    assert_true(plan_by_handler(x, 0, 0x104, 8) == 0 && !ibx_handles_has(x, kind, 0x104));
}

/* CUDA has room for so few that one client could take all of them. */
static void test_pools_have_a_limit(void **state)
{
    (void)state;
    uint64_t pools[8], other = 0;
    unsigned n = 0;
    uint8_t bytes[64];
    const uint64_t most = ext_allow_more(&alice, IBX_HOLD_POOLS, 3);
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_POOL_CREATE);
    ibx_put_u32(&w, 0);
    ibx_put_u64(&w, 0);
    ibx_put_u16(&w, 0);
    int rc = 0;
    while (n < 8 && !(rc = ext_run(&alice, &w, &pools[n])))
        n++;
    assert_int_equal(rc, CUDA_MEMORY_ALLOCATION);
    assert_int_equal(n, 3);
    assert_int_equal(ext_run(&bob, &w, &other), 0);
    assert_int_equal(ext_call_one(&bob, IBX_EXT_POOL_DESTROY, other, NULL), 0);
    while (n)
        assert_int_equal(ext_call_one(&alice, IBX_EXT_POOL_DESTROY, pools[--n], NULL), 0);
    atomic_store(&ext_quota(&alice, IBX_HOLD_POOLS)->most, most);
}

/* A tenant has a limited number of handles for other processes; another tenant has its own
 * limit. */
static void test_handles_have_a_limit(void **state)
{
    enum { MOST = 4096 };
    static void *events[MOST + 1], *more;
    uint64_t answer;
    (void)state;
    for (unsigned i = 0; i <= MOST; i++) {
        assert_int_equal(app->event_create(&events[i], 4), 0);
        assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_EVENT, (uintptr_t)events[i]));
        assert_int_equal(ext_call_one(&alice, IBX_EXT_IPC_EVENT, (uintptr_t)events[i], &answer),
                         i < MOST ? 0 : 2);
    }
    assert_int_equal(ext_call_one(&bob, IBX_EXT_IPC_EVENT, (uintptr_t)events[MOST], &answer), 400);
    assert_true(ibx_handles_add(&bob.x, IBX_HANDLE_EVENT, (uintptr_t)events[MOST]));
    assert_int_equal(ext_call_one(&bob, IBX_EXT_IPC_EVENT, (uintptr_t)events[MOST], &answer), 0);
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_EVENT, (uintptr_t)events[MOST]));
    ibx_ipc_gone((uintptr_t)events[MOST]);
    ibx_ipc_gone((uintptr_t)events[7]);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_IPC_EVENT, (uintptr_t)events[MOST], &answer), 0);
    /* What a session has shared makes room when the session has ended. */
    assert_int_equal(app->event_create(&more, 4), 0);
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_EVENT, (uintptr_t)more));
    assert_int_equal(ext_call_one(&alice, IBX_EXT_IPC_EVENT, (uintptr_t)more, &answer), 2);
    ibx_ipc_end(&bob.x);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_IPC_EVENT, (uintptr_t)more, &answer), 2);
    ibx_ipc_end(&alice.x);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_IPC_EVENT, (uintptr_t)more, &answer), 0);
    ext_event_destroy(more);
    ibx_ipc_forget(NULL);
    for (unsigned i = MOST + 1; i-- > 0;)
        ext_event_destroy(events[i]);
}

/* Returns what the log contains while `act` runs. */
static const char *log_of(void (*act)(void))
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

static void meet_limits(void)
{
    uint8_t bytes[64];
    uint64_t graph, pool;
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_POOL_CREATE);
    ibx_put_u32(&w, 0);
    ibx_put_u64(&w, 0);
    ibx_put_u16(&w, 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(ext_graph_create(&bob, &graph), CUDA_MEMORY_ALLOCATION);
        assert_int_equal(ext_run(&bob, &w, &pool), CUDA_MEMORY_ALLOCATION);
        assert_false(ibx_room_take(&bob.x, IBX_HOLD_EVENTS, 1)); /* as for events of others */
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

/* Each limit is logged once. */
static void test_limits_are_logged(void **state)
{
    (void)state;
    const uint64_t graphs = ext_allow_more(&bob, IBX_HOLD_GRAPHS, 0),
                   pools = ext_allow_more(&bob, IBX_HOLD_POOLS, 0),
                   events = ext_allow_more(&bob, IBX_HOLD_EVENTS, 0);
    const char *text = log_of(meet_limits);
    atomic_store(&ext_quota(&bob, IBX_HOLD_GRAPHS)->most, graphs);
    atomic_store(&ext_quota(&bob, IBX_HOLD_POOLS)->most, pools);
    atomic_store(&ext_quota(&bob, IBX_HOLD_EVENTS)->most, events);
    assert_int_equal(count_in(text, "no more events"), 1);
    assert_int_equal(count_in(text, "no more graphs and nodes"), 1);
    assert_int_equal(count_in(text, "no more pools"), 1);
}

static uint8_t handler_body[8];

/* GVirtuS's handler is about to make an executable graph. */
static void instantiate_by_handler(void)
{
    struct gpu_session *x = &bob.x;
    struct ibx_writer w = ibx_writer_of(handler_body, sizeof(handler_body));
    ibx_put_u64(&w, bob.graph);
    strcpy(x->requests.name, "cudaGraphInstantiate");
    ibx_device_call_read(x, x->requests.name);
    ibx_named_invalidate(x, handler_body, sizeof(handler_body));
    x->replies.exit_code = handler_body[0] ? 2 : CUDA_INVALID_VALUE;
    ibx_device_call_answered(x);
}

static void test_executables_of_handlers(void **state)
{
    (void)state;
    const uint8_t nothing[8] = {0};
    const uint64_t used = ext_used(&bob, IBX_HOLD_EXECS);
    instantiate_by_handler();
    assert_memory_not_equal(handler_body, nothing, 8);
    assert_true(ext_used(&bob, IBX_HOLD_EXECS) == used);
    const uint64_t most = ext_allow_more(&bob, IBX_HOLD_EXECS, 1);
    const char *text = log_of(instantiate_by_handler);
    atomic_store(&ext_quota(&bob, IBX_HOLD_EXECS)->most, most);
    assert_memory_equal(handler_body, nothing, 8);
    assert_true(ext_used(&bob, IBX_HOLD_EXECS) == used);
    assert_non_null(strstr(text, "no more nodes of graphs that can be launched"));
    assert_null(strstr(text, "that no call has returned"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs_in_graphs),
        cmocka_unit_test(test_allocations_have_an_owner),
        cmocka_unit_test(test_nodes_have_a_limit),
        cmocka_unit_test(test_a_clone_counts_as_its_graph),
        cmocka_unit_test(test_the_graph_of_a_condition_is_not_destroyed_alone),
        cmocka_unit_test(test_listed_nodes_count_as_before),
        cmocka_unit_test(test_depth_of_graphs),
        cmocka_unit_test(test_conditions_in_conditions),
        cmocka_unit_test(test_executables_of_each_gpu),
        cmocka_unit_test(test_textures_have_a_limit),
        cmocka_unit_test(test_textures_of_handlers),
        cmocka_unit_test(test_graphs_of_handlers),
        cmocka_unit_test(test_pools_have_a_limit),
        cmocka_unit_test(test_limits_are_logged),
        cmocka_unit_test(test_executables_of_handlers),
        cmocka_unit_test(test_handles_have_a_limit),
        cmocka_unit_test(test_plans_of_handlers), /* handlers' handles are not checked after it */
    };
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
