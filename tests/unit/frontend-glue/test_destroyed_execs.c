/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Executable graphs that are destroyed while they run: what they take until they are over. */
#include "frontend-glue/clients/clients.h"
#include "frontend-glue/tenants/client_list_internal.h"
#include "tests/fixtures/extensions.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <cmocka.h>

static void *stream; /* of alice's; its work does not run while it is held */

static int begin(void **state)
{
    (void)state;
    stream = ext_stream_make(&alice);
    app->hold_stream(stream);
    return 0;
}

static int end(void **state)
{
    (void)state;
    app->hold_stream(NULL);
    assert_true(ibx_handles_gone(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream));
    assert_int_equal(app->stream_destroy(stream), 0);
    return 0;
}

static void destroy_running(struct client *c, uint64_t exec, void *in)
{
    ibx_exec_ends_launched(&c->x, pointer_to(exec), in);
    ext_exec_destroy(c, exec);
}

/* It counts for its tenant until CUDA has destroyed it. */
static void test_counts_while_it_runs(void **state)
{
    (void)state;
    const uint64_t before = ext_used(&alice, IBX_HOLD_EXECS);
    const uint64_t made = cuda_stats().execs;
    const uint64_t first = ext_exec_make(&alice, alice.graph);
    const uint64_t one = ext_used(&alice, IBX_HOLD_EXECS) - before;
    const uint64_t both[] = {alice.graph, 0};
    uint64_t exec = 0;
    assert_true(one > 0);
    const uint64_t most = ext_allow_more(&alice, IBX_HOLD_EXECS, 0);
    destroy_running(&alice, first, stream);
    assert_int_equal(ext_used(&alice, IBX_HOLD_EXECS), before + one);
    assert_int_equal(cuda_stats().execs, made + 1);
    assert_int_equal(ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2, both, &exec),
                     CUDA_MEMORY_ALLOCATION);
    app->hold_stream(NULL);
    assert_int_equal(app->stream_synchronize(stream), 0);
    exec = ext_exec_make(&alice, alice.graph);
    assert_int_equal(ext_used(&alice, IBX_HOLD_EXECS), before + one);
    ext_exec_destroy(&alice, exec);
    assert_int_equal(ext_used(&alice, IBX_HOLD_EXECS), before);
    assert_int_equal(cuda_stats().execs, made);
    atomic_store(&ext_quota(&alice, IBX_HOLD_EXECS)->most, most);
}

static uint64_t used_in_destroy;

static int destroy(void *exec)
{
    used_in_destroy = ext_used(&alice, IBX_HOLD_EXECS);
    ibx_back_end_undo("cudaGraphExecDestroy", (uintptr_t)exec);
    return 0;
}

/* No other client of the tenant gets the room between the end of the handle and CUDA's. */
static void test_counts_without_a_handle(void **state)
{
    (void)state;
    struct ibx_exec_left left = {.owned = 0};
    const uint64_t before = ext_used(&alice, IBX_HOLD_EXECS);
    const uint64_t exec = ext_exec_make(&alice, alice.graph);
    const uint64_t with = ext_used(&alice, IBX_HOLD_EXECS);
    left.owned = ibx_room_owned(&alice.x, exec);
    assert_false(ibx_handles_remove_exec(&bob.x, exec, &left.graph, &left.room));
    assert_true(ibx_handles_remove_exec(&alice.x, exec, &left.graph, &left.room));
    assert_int_equal(left.graph, alice.graph);
    assert_int_equal(ext_used(&alice, IBX_HOLD_EXECS), with);
    assert_int_equal(ibx_exec_ends_destroy(&alice.x, pointer_to(exec), destroy, &left), 0);
    assert_true(used_in_destroy == with && with > before);
    assert_int_equal(ext_used(&alice, IBX_HOLD_EXECS), before);
}

/* However many of another client's run: the tenant has room for one if one of its own is over. */
static void test_room_beside_anothers(void **state)
{
    enum { OTHERS = 200 };
    struct ibx_client clients[] = {{.number = 101, .process_fd = -1},
                                   {.number = 102, .process_fd = -1}};
    (void)state;
    alice.x.client = &clients[0];
    bob.x.client = &clients[1];
    const uint64_t graph = ext_graph_make(&alice), others = ext_graph_make(&bob);
    const uint64_t before = ext_used(&alice, IBX_HOLD_EXECS);
    void *other = ext_stream_make(&bob);
    app->hold_stream(other);
    for (unsigned i = 0; i < OTHERS; i++)
        destroy_running(&bob, ext_exec_make(&bob, others), other);
    destroy_running(&alice, ext_exec_make(&alice, graph), stream);
    const uint64_t most = ext_allow_more(&alice, IBX_HOLD_EXECS, 0);
    app->release_stream(stream);
    assert_int_equal(app->stream_synchronize(stream), 0);
    ext_exec_destroy(&alice, ext_exec_make(&alice, graph));
    assert_int_equal(ext_used(&alice, IBX_HOLD_EXECS), before);
    atomic_store(&ext_quota(&alice, IBX_HOLD_EXECS)->most, most);
    app->hold_stream(NULL);
    assert_int_equal(app->stream_synchronize(other), 0);
    ibx_exec_ends_settle(&bob.x, 102);
    assert_true(ibx_handles_gone(&bob.x, IBX_HANDLE_STREAM, (uintptr_t)other));
    assert_int_equal(app->stream_destroy(other), 0);
    ext_graph_destroy(&alice, graph);
    ext_graph_destroy(&bob, others);
    alice.x.client = bob.x.client = NULL;
}

static atomic_bool made_again;

/* Lets the launch end once CUDA has refused another executable graph. */
static void *let_it_end(void *refused_before)
{
    const unsigned long before = *(const unsigned long *)refused_before;
    while (cuda_stats().execs_refused == before && !atomic_load(&made_again)) {
    }
    app->hold_stream(NULL);
    return NULL;
}

/* CUDA has one executable graph at a time of a graph that allocates memory. The next one is made
 * when the launch of the destroyed one has ended. */
static void test_graph_with_memory(void **state)
{
    (void)state;
    pthread_t thread;
    uint64_t node, exec = 0;
    unsigned long refused = cuda_stats().execs_refused;
    const uint64_t graph = ext_graph_make(&alice), both[] = {graph, 0};
    assert_int_equal(ext_allocation_add(&alice, graph, 4096, &node), 0);
    const uint64_t first = ext_exec_make(&alice, graph);
    assert_int_not_equal(ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2, both, &exec), 0);
    ibx_back_end_forget_error();
    refused = cuda_stats().execs_refused;
    destroy_running(&alice, first, stream);
    atomic_store(&made_again, false);
    assert_int_equal(pthread_create(&thread, NULL, let_it_end, &refused), 0);
    const int rc = ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2, both, &exec);
    atomic_store(&made_again, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(rc, 0);
    assert_false(ibx_back_end_has_error());
    ext_exec_destroy(&alice, exec);
    ext_graph_destroy(&alice, graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_graph_with_memory, begin, end),
        cmocka_unit_test_setup_teardown(test_counts_while_it_runs, begin, end),
        cmocka_unit_test_setup_teardown(test_counts_without_a_handle, begin, end),
        cmocka_unit_test_setup_teardown(test_room_beside_anothers, begin, end),
    };
    return cmocka_run_group_tests_name("destroyed-execs", tests, ext_set_up, ext_tear_down);
}
