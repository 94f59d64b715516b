/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Kernels in graphs whose modules clients unload. CUDA's double ends the process where the driver
 * does, with a graph that has a kernel of an unloaded module. */
#include "common/clock.h"
#include "frontend-glue/gvirtus_handlers/client_functions.h"
#include "tests/fixtures/ended_capture.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MODULES 4u
#define KERNEL  UINT64_C(0x401b00)

/* What GVirtuS has: its names of modules, and of a kernel in each. "": it is not there. */
static struct {
    char name[IBX_FUNCTIONS_MODULE];
    uint64_t kernel;
} loaded[MODULES];

static int digits = 2; /* that end the client's names of modules */

static uint64_t kernel_of(unsigned module)
{
    return KERNEL + 16 * module;
}

static void put_string(struct ibx_writer *w, const char *text)
{
    ibx_put_u64(w, strlen(text) + 1);
    ibx_put_u64(w, strlen(text) + 1);
    ibx_put_bytes(w, text, strlen(text) + 1);
}

/* Has the request's names replaced, as before GVirtuS runs it. */
static void pass(const char *name, unsigned module, bool kernel, uint8_t bytes[256])
{
    char handle[16];
    struct ibx_writer w = ibx_writer_of(bytes, 256);
    snprintf(handle, sizeof(handle), "0x4a01%0*x", digits, module);
    put_string(&w, handle);
    if (kernel) {
        ibx_put_u64(&w, kernel_of(module));
        put_string(&w, "copy");
        put_string(&w, "copy");
        for (unsigned i = 0; i < 5; i++)
            ibx_put_u64(&w, 0);
    }
    ibx_functions_name(ibx_functions_user_of(&alice.x), name, bytes, w.length, 0);
}

static uint64_t number_at(const uint8_t *bytes)
{
    struct ibx_reader r = ibx_reader_of(bytes, 8);
    return ibx_get_u64(&r);
}

static void load(unsigned module)
{
    uint8_t bytes[256];
    pass("cudaRegisterFatBinary", module, false, bytes);
    snprintf(loaded[module].name, sizeof(loaded[module].name), "%s", (char *)bytes + 16);
    pass("cudaRegisterFunction", module, true, bytes);
    loaded[module].kernel = number_at(bytes + 16 + strlen(loaded[module].name) + 1);
}

/* What GVirtuS does. */
static void unloaded(const char *name)
{
    void (*unload)(const void *function) = NULL;
    *(void **)&unload = ibx_cuda_symbol("ibx_double_unload");
    unsigned i = 0;
    while (i < MODULES && strcmp(loaded[i].name, name) != 0)
        i++;
    assert_in_range(i, 0, MODULES - 1);
    unload(pointer_to(loaded[i].kernel));
    *loaded[i].name = 0;
}

/* The client unloads it; GVirtuS unloads it, or another one. */
static void unload(unsigned module)
{
    uint8_t bytes[256];
    pass("cudaUnregisterFatBinary", module, false, bytes);
    if (number_at(bytes + 8))
        unloaded((char *)bytes + 16);
}

/* A client ends: GVirtuS unloads what has waited for that. */
static void client_ends(void)
{
    char name[IBX_FUNCTIONS_MODULE];
    while (ibx_functions_any_over() && ibx_functions_next_over(name))
        unloaded(name);
}

static bool is_loaded(unsigned module)
{
    client_ends();
    return *loaded[module].name;
}

static void put_launch(struct ibx_writer *w, unsigned module, void *stream)
{
    ibx_put_u64(w, kernel_of(module));
    for (unsigned i = 0; i < 6; i++)
        ibx_put_u32(w, 1);
    ibx_put_u64(w, 0);
    ibx_put_u64(w, (uintptr_t)stream);
    ibx_put_u64(w, 24);
    ibx_put_u64(w, alice.memory);
    ibx_put_u64(w, alice.memory + 4096);
    ibx_put_u64(w, 8);
}

static uint64_t kernel_add(uint64_t graph, unsigned module)
{
    uint64_t node = 0;
    uint8_t bytes[256];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_NODE_KERNEL);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    put_launch(&w, module, NULL);
    assert_int_equal(ext_run(&alice, &w, &node), 0);
    return node;
}

static int kernel_set(uint64_t exec, uint64_t node, unsigned module)
{
    uint8_t bytes[256];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_SET_KERNEL);
    ibx_put_u64(&w, exec);
    ibx_put_u64(&w, node);
    put_launch(&w, module, NULL);
    return ext_run(&alice, &w, NULL);
}

static int update(uint64_t exec, uint64_t graph)
{
    return ext_call(&alice, IBX_EXT_EXEC_UPDATE, 2, (uint64_t[]){exec, graph}, NULL);
}

/* One that was in no graph, or in one that is gone, is unloaded at once. */
static void test_in_no_graph(void **state)
{
    (void)state;
    load(0);
    unload(0);
    assert_string_equal(loaded[0].name, "");
    load(1);
    const uint64_t graph = ext_graph_make(&alice);
    kernel_add(graph, 1);
    ext_graph_destroy(&alice, graph);
    unload(1);
    assert_string_equal(loaded[1].name, "");
}

/* A graph is made executable, cloned and launched after its kernel's module was unloaded. That
 * stays until all of these are gone, and its client cannot use it. */
static void test_in_a_graph(void **state)
{
    (void)state;
    uint64_t clone = 0;
    load(0);
    const uint64_t graph = ext_graph_make(&alice), node = kernel_add(graph, 0);
    unload(0);
    const uint64_t exec = ext_exec_make(&alice, graph);
    ext_exec_launch(exec);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_CLONE, graph, &clone), 0);
    assert_int_not_equal(kernel_set(0, node, 0), 0);
    ext_graph_destroy(&alice, graph);
    assert_true(is_loaded(0));
    ext_exec_launch(exec);
    ext_exec_destroy(&alice, exec);
    assert_true(is_loaded(0));
    ext_exec_launch(ext_exec_make(&alice, clone));
    ext_graph_destroy(&alice, clone);
    assert_true(is_loaded(0)); /* the executable graph of the clone */
}

/* A node is set again and again: CUDA would keep an object for each time. */
static void test_set_often(void **state)
{
    (void)state;
    load(0);
    load(1);
    const uint64_t graph = ext_graph_make(&alice), node = kernel_add(graph, 0);
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(kernel_set(0, node, i % 2), 0);
    unload(0);
    unload(1);
    assert_true(is_loaded(0) && is_loaded(1));
    const uint64_t exec = ext_exec_make(&alice, graph);
    ext_exec_launch(exec);
    ext_graph_destroy(&alice, graph);
    assert_true(is_loaded(0) && is_loaded(1));
    ext_exec_destroy(&alice, exec);
    assert_false(is_loaded(0) || is_loaded(1));
}

/* In a graph within the body of a conditional node, whose objects an executable graph need not
 * have. */
static void within_a_body(unsigned added_by)
{
    load(0);
    const uint64_t inner = ext_graph_make(&alice), outer = ext_graph_make(&alice);
    kernel_add(inner, 0);
    ext_child_add(&alice, added_by, ext_body_add(&alice, outer), inner);
    if (added_by == IBX_EXT_NODE_CHILD)
        ext_graph_destroy(&alice, inner);
    const uint64_t exec = ext_exec_make(&alice, outer);
    unload(0);
    ext_graph_destroy(&alice, outer);
    assert_true(is_loaded(0));
    ext_exec_launch(exec);
    ext_exec_destroy(&alice, exec);
    ibx_functions_ended(ibx_functions_user_of(&alice.x)->client);
    assert_false(is_loaded(0));
}

static void test_within_a_body(void **state)
{
    (void)state;
    within_a_body(IBX_EXT_NODE_CHILD);
    within_a_body(IBX_EXT_NODE_MOVED);
}

/* In a graph within another one, or the body of a conditional node. */
static void test_in_inner_graphs(void **state)
{
    (void)state;
    load(0);
    load(1);
    const uint64_t inner = ext_graph_make(&alice), outer = ext_graph_make(&alice),
                   with = ext_graph_make(&alice);
    kernel_add(inner, 0);
    ext_child_add(&alice, IBX_EXT_NODE_CHILD, outer, inner);
    ext_graph_destroy(&alice, inner);
    const uint64_t body = ext_body_add(&alice, with);
    kernel_add(body, 1);
    /* CUDA may end the body unseen, and so each node in it has an object of its own. */
    struct ibx_functions_user *user = ibx_functions_user_of(&alice.x);
    assert_int_not_equal(ibx_functions_take(user, kernel_of(1)), 0);
    assert_false(ibx_handles_graph_has(&alice.x, body, user->held));
    ibx_functions_let_go(user);
    unload(0);
    unload(1);
    const uint64_t execs[] = {ext_exec_make(&alice, outer), ext_exec_make(&alice, with)};
    ext_graph_destroy(&alice, outer);
    ext_graph_destroy(&alice, with);
    assert_true(is_loaded(0) && is_loaded(1));
    for (unsigned i = 0; i < 2; i++) {
        ext_exec_launch(execs[i]);
        ext_exec_destroy(&alice, execs[i]);
        assert_true(!is_loaded(i) && is_loaded(1) == !i);
    }
}

static int launch(unsigned how, unsigned module, void *stream)
{
    uint8_t bytes[256];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    put_launch(&w, module, stream);
    switch (how) {
    case 0:
        return ibx_device_launch(&alice.x, bytes, w.length);
    case 1:
        return ibx_device_launch_by_runtime(&alice.x, bytes, w.length, false);
    default:
        return ibx_device_launch_as(&alice.x, bytes, w.length, NULL, 0);
    }
}

/* In a graph that a stream was captured into, however it was launched. What it launches meanwhile
 * is known once. */
static void test_captured(void **state)
{
    (void)state;
    void *stream = ext_stream_make(&alice);
    for (unsigned round = 0; round < 3; round++) {
        load(round);
        ext_capture_begin(&alice, stream);
        for (unsigned i = 0; i < 3; i++)
            assert_int_equal(launch(round, round, stream), 0);
        unload(round);
        const uint64_t graph = ext_capture_end(&alice, stream), exec = ext_exec_make(&alice, graph);
        ext_exec_launch(exec);
        ext_exec_destroy(&alice, exec);
        assert_true(is_loaded(round));
        ext_graph_destroy(&alice, graph);
        assert_false(is_loaded(round));
    }
    assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream));
}

/* The capture ends as the launch has returned: its module stays until the client's process has
 * ended. */
static void test_capture_ends_meanwhile(void **state)
{
    (void)state;
    void *stream = ext_stream_make(&alice);
    for (unsigned how = 0; how < 3; how++) {
        load(how);
        ext_capture_begin(&alice, stream);
        ends_meanwhile = stream;
        assert_int_equal(launch(how, how, stream), 0);
        assert_null(ends_meanwhile);
        unload(how);
        ext_exec_launch(ext_exec_make(&alice, graph_of_ended));
        ext_graph_destroy(&alice, graph_of_ended);
        assert_true(is_loaded(how));
    }
    ibx_functions_ended(ibx_functions_user_of(&alice.x)->client);
    assert_false(is_loaded(0) || is_loaded(1) || is_loaded(2));
    assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream));
}

/* A capture of another tenant's ends as the launch returns: the module does not stay. */
static void test_capture_of_others_ends_meanwhile(void **state)
{
    (void)state;
    void *stream = ext_stream_make(&alice), *theirs = ext_stream_make(&bob);
    ends_whose = &bob;
    for (unsigned how = 0; how < 3; how++) {
        load(how);
        ext_capture_begin(&bob, theirs);
        ends_meanwhile = theirs;
        assert_int_equal(launch(how, how, stream), 0);
        assert_null(ends_meanwhile);
        ext_graph_destroy(&bob, graph_of_ended);
        unload(how);
        assert_false(is_loaded(how));
    }
    ends_whose = &alice;
    assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream));
    assert_true(ibx_handles_remove(&bob.x, IBX_HANDLE_STREAM, (uintptr_t)theirs));
}

/* The same kernel in the graphs of two captures. */
static void test_captured_twice(void **state)
{
    (void)state;
    void *stream = ext_stream_make(&alice);
    uint64_t graphs[2];
    load(0);
    for (unsigned i = 0; i < 2; i++) {
        ext_capture_begin(&alice, stream);
        assert_int_equal(launch(0, 0, stream), 0);
        graphs[i] = ext_capture_end(&alice, stream);
    }
    unload(0);
    ext_graph_destroy(&alice, graphs[0]);
    assert_true(is_loaded(0));
    ext_graph_destroy(&alice, graphs[1]);
    assert_false(is_loaded(0));
    assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream));
}

/* A node has a kernel of another module in the executable graph alone: until that is updated, or
 * destroyed. */
static void test_in_an_executable_graph(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 2; round++) {
        load(0);
        load(1);
        const uint64_t graph = ext_graph_make(&alice), node = kernel_add(graph, 0);
        const uint64_t exec = ext_exec_make(&alice, graph);
        assert_int_equal(kernel_set(exec, node, 1), 0);
        assert_int_equal(kernel_set(exec, node, 1), 0);
        unload(1);
        ext_exec_launch(exec);
        assert_true(is_loaded(1));
        if (!round)
            assert_int_equal(update(exec, graph), 0);
        else
            ext_exec_destroy(&alice, exec);
        assert_false(is_loaded(1));
        unload(0);
        if (!round)
            ext_exec_launch(exec);
        ext_graph_destroy(&alice, graph);
        if (!round)
            ext_exec_destroy(&alice, exec);
        assert_false(is_loaded(0));
    }
}

/* A node gets a kernel of one module after the other: each stays until the node has the next one,
 * or another node still has it. */
static void test_modules_follow(void **state)
{
    (void)state;
    load(0);
    load(1);
    const uint64_t graph = ext_graph_make(&alice), node = kernel_add(graph, 0),
                   other = kernel_add(graph, 0), exec = ext_exec_make(&alice, graph);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(kernel_set(exec, i ? node : other, 1), 0);
    assert_int_equal(kernel_set(exec, node, 0), 0);
    unload(1);
    ext_exec_launch(exec);
    assert_true(is_loaded(1));
    assert_int_equal(kernel_set(exec, other, 0), 0);
    assert_false(is_loaded(1));
    ext_exec_launch(exec);
    ext_exec_destroy(&alice, exec);
    ext_graph_destroy(&alice, graph);
    unload(0);
    assert_false(is_loaded(0));
}

/* By GVirtuS's handler, as for a request that has more bytes. */
static bool handler_launches(uint64_t exec, uint64_t stream)
{
    struct gpu_session x = alice.x;
    uint8_t body[17] = {0};
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    ibx_put_u64(&w, exec);
    ibx_put_u64(&w, stream);
    strcpy(x.requests.name, "cudaGraphLaunch");
    x.requests.stage = IBX_REQUEST_BODY;
    x.requests.length = sizeof(body);
    x.requests.got = 0;
    const int rc = ibx_isolation_before_read(&x, body, sizeof(body));
    x.handler.captures_before = ibx_captures_over_so_far(&x);
    end_meanwhile();
    ibx_isolation_launched(&x);
    ibx_handles_let_go(&x);
    return !rc && number_at(body) == exec;
}

static bool runs(uint64_t exec, void *stream)
{
    const unsigned before = ibx_captures_over_so_far(&alice.x);
    const bool room = ibx_graph_launches(&alice.x, exec, (uintptr_t)stream);
    end_meanwhile();
    ibx_graph_launched(&alice.x, exec, (uintptr_t)stream, before);
    return room;
}

/* The launch of such an executable graph is captured: what comes of the capture has its kernels. */
static void launch_captured(bool by_handler, bool ends)
{
    void *stream = ext_stream_make(&alice);
    load(0);
    load(1);
    const uint64_t graph = ext_graph_make(&alice), node = kernel_add(graph, 0);
    const uint64_t exec = ext_exec_make(&alice, graph);
    assert_int_equal(kernel_set(exec, node, 1), 0);
    assert_true(runs(exec, NULL));
    ext_capture_begin(&alice, stream);
    assert_true(runs(exec, NULL)); /* in another stream */
    ends_meanwhile = ends ? stream : NULL;
    assert_true(by_handler ? handler_launches(exec, (uintptr_t)stream) : runs(exec, stream));
    const uint64_t captured = ends ? graph_of_ended : ext_capture_end(&alice, stream);
    ext_exec_destroy(&alice, exec);
    ext_graph_destroy(&alice, graph);
    unload(0);
    unload(1);
    assert_true(!is_loaded(0) && is_loaded(1));
    ext_graph_destroy(&alice, captured);
    ibx_functions_ended(ibx_functions_user_of(&alice.x)->client);
    assert_false(is_loaded(1));
    assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream));
}

/* Not while another tenant captures, or has done so. */
static void test_launch_beside_captures_of_others(void **state)
{
    (void)state;
    void *theirs = ext_stream_make(&bob);
    load(2);
    ends_whose = &bob;
    for (unsigned ends = 0; ends < 2; ends++) {
        load(ends);
        const uint64_t graph = ext_graph_make(&alice), node = kernel_add(graph, 2);
        const uint64_t exec = ext_exec_make(&alice, graph);
        assert_int_equal(kernel_set(exec, node, ends), 0);
        ext_capture_begin(&bob, theirs);
        ends_meanwhile = ends ? theirs : NULL;
        assert_true(handler_launches(exec, 0));
        ext_graph_destroy(&bob, ends ? graph_of_ended : ext_capture_end(&bob, theirs));
        ext_exec_destroy(&alice, exec);
        ext_graph_destroy(&alice, graph);
        unload(ends);
        assert_false(is_loaded(ends));
    }
    ends_whose = &alice;
    unload(2);
    assert_true(ibx_handles_remove(&bob.x, IBX_HANDLE_STREAM, (uintptr_t)theirs));
}

static void test_launch_of_an_executable_graph_captured(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++)
        launch_captured(i & 1, i & 2);
}

/* An executable graph that was updated has the kernels of the new graph. */
static void test_updated(void **state)
{
    (void)state;
    load(0);
    load(1);
    const uint64_t graph = ext_graph_make(&alice), other = ext_graph_make(&alice);
    kernel_add(graph, 0);
    kernel_add(other, 1);
    const uint64_t exec = ext_exec_make(&alice, graph);
    unload(0);
    unload(1);
    assert_int_equal(update(exec, other), 0);
    ext_exec_launch(exec);
    ext_graph_destroy(&alice, graph);
    assert_true(!is_loaded(0) && is_loaded(1));
    ext_graph_destroy(&alice, other);
    assert_true(is_loaded(1));
    ext_exec_launch(exec);
    ext_exec_destroy(&alice, exec);
    assert_false(is_loaded(1));
}

/* A client that goes on loads modules, and unloads each while a graph has it: GVirtuS unloads the
 * one before, which counts no more than one that it unloads at once. */
static void test_in_place_of_the_next(void **state)
{
    (void)state;
    uint64_t graph = 0;
    const uint64_t before = ext_used(&alice, IBX_HOLD_MODULES);
    load(0);
    unload(0);
    const uint64_t left = ext_used(&alice, IBX_HOLD_MODULES) - before;
    for (unsigned i = 0; i < MODULES; i++) {
        load(i);
        if (graph)
            ext_graph_destroy(&alice, graph);
        graph = ext_graph_make(&alice);
        kernel_add(graph, i);
        unload(i);
        for (unsigned k = 0; k < MODULES; k++)
            assert_int_equal(*loaded[k].name != 0, k == i);
    }
    ext_graph_destroy(&alice, graph);
    assert_false(is_loaded(MODULES - 1));
    assert_int_equal(ext_used(&alice, IBX_HOLD_MODULES), before + (MODULES + 1) * left);
}

/* Not if its name has another length, for which the request has no room. */
static void test_not_in_place_of_a_longer_name(void **state)
{
    (void)state;
    uint64_t graph;
    for (unsigned i = 0; i < 2; i++) {
        load(i);
        graph = ext_graph_make(&alice);
        kernel_add(graph, i);
        unload(i);
        assert_true(*loaded[0].name && *loaded[i].name);
        if (!i)
            ext_graph_destroy(&alice, graph);
        digits++;
    }
    digits = 2;
    assert_true(!is_loaded(0) && is_loaded(1));
    ext_graph_destroy(&alice, graph);
    assert_false(is_loaded(1));
}

/* It is not known which graph has the module: it stays until its client's process has ended. */
static void test_in_some_graph(void **state)
{
    (void)state;
    struct ibx_functions_user *user = ibx_functions_user_of(&alice.x);
    load(0);
    assert_int_not_equal(ibx_functions_take(user, kernel_of(0)), 0);
    ibx_functions_graph_unknown(user->held);
    ibx_functions_let_go(user);
    unload(0);
    assert_true(is_loaded(0));
    ibx_functions_ended(user->client);
    assert_false(is_loaded(0));
}

/* Nor if CUDA makes no object that would tell. The client is told of no error. */
static void test_without_an_object(void **state)
{
    (void)state;
    load(0);
    const uint64_t graph = ext_graph_make(&alice);
    assert_false(ibx_back_end_has_error());
    app->inject("cudaUserObjectCreate", 1, CUDA_MEMORY_ALLOCATION, false);
    kernel_add(graph, 0);
    assert_false(ibx_back_end_has_error());
    ext_graph_destroy(&alice, graph);
    unload(0);
    assert_true(is_loaded(0));
    ibx_functions_ended(ibx_functions_user_of(&alice.x)->client);
    assert_false(is_loaded(0));
}

static atomic_bool ends_go_on;
static atomic_uint ends;

static void *other_clients_end(void *unused)
{
    (void)unused;
    for (; atomic_load(&ends_go_on); atomic_fetch_add(&ends, 1))
        ibx_functions_ended(UINT64_MAX);
    return NULL;
}

/* Likewise if other clients end at that moment. On a busy machine each round may take long. */
static void test_in_some_graph_as_others_end(void **state)
{
    const uint64_t deadline = ibx_deadline_in_ms(5000);
    (void)state;
    pthread_t thread;
    bool any = false;
    struct ibx_functions_user *user = ibx_functions_user_of(&alice.x);
    load(0);
    assert_int_not_equal(ibx_functions_take(user, kernel_of(0)), 0);
    struct ibx_client_module *module = user->held;
    ibx_functions_graph_unknown(module);
    ibx_functions_let_go(user);
    unload(0);
    atomic_store(&ends_go_on, true);
    assert_int_equal(pthread_create(&thread, NULL, other_clients_end, NULL), 0);
    for (unsigned i = 0; i < 5000 && !any && (i < 20 || ibx_now_ns() < deadline); i++) {
        ibx_functions_ended(user->client);
        for (const unsigned before = atomic_load(&ends); atomic_load(&ends) == before;)
            sched_yield();
        ibx_functions_graph_unknown(module);
        any = ibx_functions_any_over();
    }
    atomic_store(&ends_go_on, false);
    pthread_join(thread, NULL);
    assert_false(any);
    ibx_functions_ended(user->client);
    assert_false(is_loaded(0));
}

/* A module that GVirtuS's handlers have made, with a function that may be in a graph, stays. A
 * later one that has its handle does not. */
static void test_of_handlers(void **state)
{
    (void)state;
    const uint64_t module = 0x7f0011223340, function = 0x7f0011223380;
    struct gpu_session *x = &alice.x;
    assert_true(ibx_handles_add(x, IBX_HANDLE_MODULE, module));
    assert_true(ibx_handles_add_part(x, IBX_HANDLE_FUNCTION, function, module));
    assert_true(ibx_handles_may_end(x, IBX_HANDLE_MODULE, module));
    ibx_handles_captured(x, function);
    assert_false(ibx_handles_may_end(x, IBX_HANDLE_MODULE, module));
    assert_true(ibx_handles_add(x, IBX_HANDLE_MODULE, module));
    assert_true(ibx_handles_may_end(x, IBX_HANDLE_MODULE, module));
    assert_true(ibx_handles_remove(x, IBX_HANDLE_MODULE, module));
}

static int set_up(void **state)
{
    void (*apart)(bool they) = NULL;
    const int rc = ext_set_up(state);
    *(void **)&apart = ibx_cuda_symbol("ibx_double_kernels_apart");
    apart(true);
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_no_graph),
        cmocka_unit_test(test_in_a_graph),
        cmocka_unit_test(test_set_often),
        cmocka_unit_test(test_in_inner_graphs),
        cmocka_unit_test(test_within_a_body),
        cmocka_unit_test(test_captured),
        cmocka_unit_test(test_captured_twice),
        cmocka_unit_test(test_capture_ends_meanwhile),
        cmocka_unit_test(test_capture_of_others_ends_meanwhile),
        cmocka_unit_test(test_in_an_executable_graph),
        cmocka_unit_test(test_modules_follow),
        cmocka_unit_test(test_launch_of_an_executable_graph_captured),
        cmocka_unit_test(test_launch_beside_captures_of_others),
        cmocka_unit_test(test_updated),
        cmocka_unit_test(test_in_place_of_the_next),
        cmocka_unit_test(test_not_in_place_of_a_longer_name),
        cmocka_unit_test(test_in_some_graph),
        cmocka_unit_test(test_without_an_object),
        cmocka_unit_test(test_of_handlers),
        cmocka_unit_test(test_in_some_graph_as_others_end),
    };
    return cmocka_run_group_tests(tests, set_up, ext_tear_down);
}
