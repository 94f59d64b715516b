/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Arrays that graphs name and clients free. CUDA's double ends the process if a graph with an array
 * that is gone is made executable or launched. */
#include "tests/fixtures/ended_capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define ON_DEVICE 3

static int array_free(uint64_t array)
{
    return ext_call_one(&alice, IBX_EXT_FREE_ARRAY, array, NULL);
}

static bool is_named(uint64_t array)
{
    return ext_call_one(&alice, IBX_EXT_CHANNEL_DESC, array, NULL) == 0;
}

/* How much there is on the device, after what is due was freed. */
static unsigned long allocations(void)
{
    assert_int_equal(array_free(ext_array_make(&alice)), 0);
    return cuda_stats().allocations;
}

static bool to_array; /* copies are to arrays */

/* The first row of the array is copied to memory, or from there. */
static struct ibx_cuda_memcpy3d copy_of(uint64_t array)
{
    struct ibx_cuda_memcpy3d copy = {.extent = {16, 1, 1}, .kind = ON_DEVICE};
    *(to_array ? &copy.to_array : &copy.from_array) = pointer_to(array);
    *(to_array ? &copy.from : &copy.to) =
        (struct ibx_cuda_pitched){pointer_to(alice.memory), 64, 64, 1};
    return copy;
}

static uint64_t copy_add(uint64_t graph, uint64_t array)
{
    const struct ibx_cuda_memcpy3d copy = copy_of(array);
    uint64_t node = 0;
    uint8_t bytes[512];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_NODE_MEMCPY);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    ibx_layout_put(&w, IBX_LAYOUT_MEMCPY3D, &copy);
    assert_int_equal(ext_run(&alice, &w, &node), 0);
    return node;
}

static void copy_set(uint64_t exec, uint64_t node, uint64_t array)
{
    const struct ibx_cuda_memcpy3d copy = copy_of(array);
    uint8_t bytes[512];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_SET_MEMCPY);
    ibx_put_u64(&w, exec);
    ibx_put_u64(&w, node);
    ibx_layout_put(&w, IBX_LAYOUT_MEMCPY3D, &copy);
    assert_int_equal(ext_run(&alice, &w, NULL), 0);
}

/* The array stays until the graph and what was made of it are gone. The client cannot name it. */
static void test_in_a_graph(void **state)
{
    (void)state;
    const uint64_t array = ext_array_make(&alice), graph = ext_graph_make(&alice);
    const uint64_t node = copy_add(graph, array), other = ext_array_make(&alice);
    const unsigned long before = allocations();
    assert_int_equal(array_free(array), 0);
    assert_int_not_equal(array_free(array), 0);
    assert_false(is_named(array));
    assert_int_equal(allocations(), before);
    const uint64_t exec = ext_exec_make(&alice, graph);
    ext_exec_launch(exec);
    copy_set(0, node, other);
    ext_graph_destroy(&alice, graph);
    assert_int_equal(allocations(), before);
    ext_exec_launch(exec);
    ext_exec_destroy(&alice, exec);
    assert_int_equal(allocations(), before - 1);
    assert_int_equal(array_free(other), 0);
    assert_int_equal(allocations(), before - 2);
}

/* A mipmapped array with one of its levels. */
static void test_level_in_a_graph(void **state)
{
    (void)state;
    const uint64_t graph = ext_graph_make(&alice);
    uint64_t level = 0;
    ext_mipmap_make(&alice);
    const unsigned long before = allocations();
    copy_add(graph, alice.level);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_FREE_MIPMAP, alice.mipmap, NULL), 0);
    assert_int_not_equal(ext_call_one(&alice, IBX_EXT_FREE_MIPMAP, alice.mipmap, NULL), 0);
    assert_false(is_named(alice.level));
    assert_int_not_equal(ext_level_of(&alice, alice.mipmap, 0, &level), 0);
    ext_exec_launch(ext_exec_make(&alice, graph));
    assert_int_equal(allocations(), before);
}

static void copy_in(void *stream, uint64_t array)
{
    uint8_t bytes[512];
    const struct ibx_cuda_memcpy3d copy = copy_of(array);
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_MEMCPY_3D_ASYNC);
    ibx_layout_put(&w, IBX_LAYOUT_MEMCPY3D, &copy);
    ibx_put_u64(&w, (uintptr_t)stream);
    assert_int_equal(ext_run(&alice, &w, NULL), 0);
}

/* In a graph that a stream was captured into. */
static void test_captured(void **state)
{
    (void)state;
    const uint64_t array = ext_array_make(&alice);
    const unsigned long before = allocations();
    void *stream = ext_stream_make(&alice);
    ext_capture_begin(&alice, stream);
    copy_in(stream, array);
    assert_int_equal(array_free(array), 0);
    const uint64_t graph = ext_capture_end(&alice, stream), exec = ext_exec_make(&alice, graph);
    ext_exec_launch(exec);
    ext_graph_destroy(&alice, graph);
    assert_int_equal(allocations(), before);
    ext_exec_destroy(&alice, exec);
    assert_int_equal(allocations(), before - 1);
    assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream));
}

/* The capture ends as the copy has returned: its array stays until the client ends. */
static void test_capture_ends_meanwhile(void **state)
{
    (void)state;
    const uint64_t array = ext_array_make(&alice);
    const unsigned long before = allocations();
    void *stream = ext_stream_make(&alice);
    ext_capture_begin(&alice, stream);
    ends_meanwhile = stream;
    copy_in(stream, array);
    assert_null(ends_meanwhile);
    assert_int_equal(array_free(array), 0);
    ext_exec_launch(ext_exec_make(&alice, graph_of_ended));
    ext_graph_destroy(&alice, graph_of_ended);
    assert_int_equal(allocations(), before);
    assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream));
}

/* A node has another array in the executable graph alone. */
static void test_in_an_executable_graph(void **state)
{
    (void)state;
    const uint64_t array = ext_array_make(&alice), other = ext_array_make(&alice),
                   graph = ext_graph_make(&alice);
    const uint64_t node = copy_add(graph, array), exec = ext_exec_make(&alice, graph);
    const unsigned long before = allocations();
    copy_set(exec, node, other);
    assert_int_equal(array_free(other), 0);
    ext_exec_launch(exec);
    assert_int_equal(allocations(), before);
    const uint64_t both[] = {exec, graph};
    assert_int_equal(ext_call(&alice, IBX_EXT_EXEC_UPDATE, 2, both, NULL), 0);
    assert_int_equal(allocations(), before - 1);
    ext_exec_launch(exec);
    ext_graph_destroy(&alice, graph);
    ext_exec_destroy(&alice, exec);
    assert_int_equal(array_free(array), 0);
    assert_int_equal(allocations(), before - 2);
}

/* It gets one array after the other: each stays only until the node has the next one. */
static void test_arrays_follow(void **state)
{
    (void)state;
    const uint64_t array = ext_array_make(&alice), graph = ext_graph_make(&alice);
    const uint64_t node = copy_add(graph, array), exec = ext_exec_make(&alice, graph);
    const unsigned long before = allocations();
    for (unsigned i = 0; i < 100; i++) {
        const uint64_t next = ext_array_make(&alice);
        copy_set(exec, node, next);
        copy_set(exec, node, next);
        assert_int_equal(array_free(next), 0);
        ext_exec_launch(exec);
        assert_int_equal(allocations(), before + 1);
    }
    copy_set(exec, node, array);
    assert_int_equal(allocations(), before);
    ext_exec_destroy(&alice, exec);
    ext_graph_destroy(&alice, graph);
    assert_int_equal(array_free(array), 0);
    assert_int_equal(allocations(), before - 1);
}

/* In a graph within the body of a conditional node, whose objects an executable graph need not
 * have: the array stays until the client ends. */
static void test_within_a_body(void **state)
{
    static const unsigned added_by[] = {IBX_EXT_NODE_CHILD, IBX_EXT_NODE_MOVED};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        const uint64_t array = ext_array_make(&alice), inner = ext_graph_make(&alice),
                       outer = ext_graph_make(&alice);
        const unsigned long before = allocations();
        copy_add(inner, array);
        ext_child_add(&alice, added_by[i], ext_body_add(&alice, outer), inner);
        if (added_by[i] == IBX_EXT_NODE_CHILD)
            ext_graph_destroy(&alice, inner);
        const uint64_t exec = ext_exec_make(&alice, outer);
        assert_int_equal(array_free(array), 0);
        ext_graph_destroy(&alice, outer);
        assert_int_equal(allocations(), before);
        ext_exec_launch(exec);
        ext_exec_destroy(&alice, exec);
    }
}

/* The launch of such an executable graph is captured: its array stays until the client ends. */
static void test_launch_captured(void **state)
{
    (void)state;
    const uint64_t array = ext_array_make(&alice), other = ext_array_make(&alice);
    const uint64_t graph = ext_graph_make(&alice), node = copy_add(graph, array);
    const uint64_t exec = ext_exec_make(&alice, graph);
    const unsigned long before = allocations();
    void *stream = ext_stream_make(&alice);
    copy_set(exec, node, other);
    ext_capture_begin(&alice, stream);
    assert_true(ibx_graph_launches(&alice.x, exec, (uintptr_t)stream));
    ibx_graph_launched(&alice.x, exec, (uintptr_t)stream, ibx_captures_over_so_far(&alice.x));
    const uint64_t captured = ext_capture_end(&alice, stream);
    assert_int_equal(array_free(other), 0);
    ext_exec_destroy(&alice, exec);
    ext_graph_destroy(&alice, graph);
    assert_int_equal(array_free(array), 0);
    assert_int_equal(allocations(), before - 1);
    ext_graph_destroy(&alice, captured);
    assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream));
}

/* Adds a node with a copy from the array to the host, or changes that (in `node`). */
static uint64_t host_copy(unsigned number, uint64_t graph, uint64_t node, uint64_t queue,
                          uint64_t array)
{
    struct ibx_cuda_memcpy3d copy = copy_of(array);
    uint64_t answer = 0;
    uint8_t bytes[512];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), number);
    copy.to.at = NULL;
    copy.kind = 2;
    ibx_put_u64(&w, graph);
    if (node)
        ibx_put_u64(&w, node);
    else
        ibx_put_u16(&w, 0);
    ibx_put_u64(&w, queue);
    ibx_put_u64(&w, 1);
    ibx_layout_put(&w, IBX_LAYOUT_MEMCPY3D, &copy);
    assert_int_equal(ext_run(&alice, &w, &answer), 0);
    return answer;
}

/* A copy to the host, which is a graph of two nodes, and gets another array. */
static void test_copied_to_the_host(void **state)
{
    (void)state;
    const uint64_t array = ext_array_make(&alice), other = ext_array_make(&alice);
    const uint64_t graph = ext_graph_make(&alice);
    uint64_t queue = 0;
    uint8_t bytes[8];
    const unsigned long before = allocations();
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_HOST_OPEN);
    assert_int_equal(ext_run(&alice, &w, &queue), 0);
    const uint64_t node = host_copy(IBX_EXT_NODE_COPY, graph, 0, queue, array);
    host_copy(IBX_EXT_SET_COPY, 0, node, queue, other);
    assert_int_equal(array_free(array), 0);
    assert_int_equal(array_free(other), 0);
    const uint64_t exec = ext_exec_make(&alice, graph);
    ext_graph_destroy(&alice, graph);
    assert_int_equal(allocations(), before);
    ext_exec_destroy(&alice, exec);
    assert_int_equal(allocations(), before - 2);
    ibx_host_work_end(&alice.x);
}

/* CUDA frees none in a capture: neither what the client frees now, which it may go on using, nor
 * what it has freed before. */
static void test_refused_in_a_capture(void **state)
{
    (void)state;
    const unsigned long before = allocations();
    const uint64_t array = ext_array_make(&alice), later = ext_array_make(&alice),
                   other = ext_array_make(&alice);
    const uint64_t graph = ext_graph_make(&alice);
    void *stream = ext_stream_make(&alice);
    copy_add(graph, later);
    assert_int_equal(array_free(later), 0);
    ext_graph_destroy(&alice, graph);
    ext_capture_begin(&alice, stream);
    app->inject("cuMemFree", 1, 900, false);
    assert_int_equal(array_free(array), 900);
    assert_true(is_named(array) && !is_named(later));
    assert_int_equal(array_free(other), 0); /* CUDA does free it: so it is in no list */
    assert_false(ibx_handles_there(IBX_HANDLE_ARRAY, other));
    ext_graph_destroy(&alice, ext_capture_end(&alice, stream));
    assert_int_equal(array_free(array), 0);
    assert_false(is_named(array));
    assert_int_equal(allocations(), before);
}

/* One request frees it, and another one, meanwhile, frees what was to be freed later. */
static void test_freed_once(void **state)
{
    (void)state;
    const uint64_t array = ext_array_make(&alice);
    assert_int_equal(ibx_handles_free_array(&alice.x, IBX_HANDLE_ARRAY, array), IBX_ARRAY_NOW);
    assert_true(ibx_handles_unused_array(&alice.x, IBX_HANDLE_ARRAY) == 0);
    assert_int_equal(ibx_handles_free_array(&alice.x, IBX_HANDLE_ARRAY, array), IBX_ARRAY_FREED);
    assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_ARRAY, array));
    assert_int_equal(ibx_handles_free_array(&alice.x, IBX_HANDLE_ARRAY, array), IBX_ARRAY_UNKNOWN);
}

/* While there are captures it leaves the list behind CUDA's free, not before. By then another
 * thread may have got a new array of the same address. */
static void test_made_anew_before_it_is_gone(void **state)
{
    (void)state;
    const uint64_t array = ext_array_make(&alice);
    assert_int_equal(ibx_handles_free_array(&alice.x, IBX_HANDLE_ARRAY, array), IBX_ARRAY_NOW);
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_ARRAY, array));
    ibx_handles_array_gone(&alice.x, IBX_HANDLE_ARRAY, array);
    assert_true(is_named(array));
    assert_int_equal(array_free(array), 0);
}

/* Likewise if it is freed later: CUDA may have given its handle to a new array before a second one
 * that frees it gets on. */
static void test_freed_later_once(void **state)
{
    (void)state;
    const uint64_t array = ext_array_make(&alice), graph = ext_graph_make(&alice);
    copy_add(graph, array);
    assert_int_equal(ibx_handles_free_array(&alice.x, IBX_HANDLE_ARRAY, array), IBX_ARRAY_LATER);
    assert_true(ibx_handles_unused_array(&alice.x, IBX_HANDLE_ARRAY) == 0);
    ext_graph_destroy(&alice, graph);
    assert_true(ibx_handles_unused_array(&alice.x, IBX_HANDLE_ARRAY) == array);
    assert_true(ibx_handles_unused_array(&alice.x, IBX_HANDLE_ARRAY) == 0);
    assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_ARRAY, array));
}

/* GVirtuS's handler frees none instead. Its success does not end what the array counts as. */
static void test_freed_by_a_handler(void **state)
{
    (void)state;
    struct gpu_session *x = &alice.x;
    const uint64_t array = ext_array_make(&alice), graph = ext_graph_make(&alice),
                   other = ext_array_make(&alice);
    const unsigned long before = allocations();
    uint64_t body[] = {array, other};
    copy_add(graph, array);
    for (unsigned i = 0; i < 2; i++) {
        strcpy(x->requests.name, "cudaFreeArray");
        memcpy(x->requests.first, &body[i], 8);
        x->requests.length = 8;
        ibx_made_read(x, "cudaFreeArray");
        x->isolation.freed = x->isolation.gone = body[i];
        assert_int_equal(ibx_made_run(x, (uint8_t *)&body[i]), 0);
        assert_int_equal(x->isolation.freed, body[i]);
        assert_int_equal(x->isolation.gone, body[i]);
    }
    x->isolation.freed = x->isolation.gone = 0;
    assert_int_equal(body[0], 0);
    assert_int_equal(body[1], other); /* which the handler would free */
    ibx_made_read(x, "cudaFreeArray");
    body[0] = array;
    memcpy(x->requests.first, &array, 8);
    assert_int_equal(ibx_made_run(x, (uint8_t *)body), 0);
    assert_int_equal(body[0], 0); /* it was freed before */
    ext_graph_destroy(&alice, graph);
    assert_int_equal(allocations(), before - 1);
}

/* CUDA gives a new array the handle of one whose end was not seen: no graph names the new one. */
static void test_handle_of_another(void **state)
{
    (void)state;
    const uint64_t array = ext_array_make(&alice);
    void *use = ibx_array_use_begin(&alice.x, array);
    assert_non_null(use);
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_ARRAY, array));
    assert_int_equal(array_free(array), 0);
    assert_false(ibx_handles_has(&alice.x, IBX_HANDLE_ARRAY, array));
    assert_int_equal(ibx_handles_free_array(&alice.x, IBX_HANDLE_ARRAY, array), IBX_ARRAY_UNKNOWN);
    ibx_array_use_end(use);
}

static void test_copied_to(void **state)
{
    to_array = true;
    test_in_a_graph(state);
    test_captured(state);
    test_capture_ends_meanwhile(state);
    test_in_an_executable_graph(state);
    to_array = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_a_graph),
        cmocka_unit_test(test_arrays_follow),
        cmocka_unit_test(test_level_in_a_graph),
        cmocka_unit_test(test_captured),
        cmocka_unit_test(test_in_an_executable_graph),
        cmocka_unit_test(test_copied_to_the_host),
        cmocka_unit_test(test_freed_by_a_handler),
        cmocka_unit_test(test_freed_once),
        cmocka_unit_test(test_made_anew_before_it_is_gone),
        cmocka_unit_test(test_freed_later_once),
        cmocka_unit_test(test_handle_of_another),
        cmocka_unit_test(test_copied_to),
        cmocka_unit_test(test_within_a_body),
        cmocka_unit_test(test_launch_captured),
        cmocka_unit_test(test_capture_ends_meanwhile),
        cmocka_unit_test(test_refused_in_a_capture),
    };
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
