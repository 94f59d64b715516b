/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Extension requests, with simulated libraries that abort at an invalid handle. A tenant can
 * name only its own objects, and objects of others cost it no time. Requests with random
 * contents: test_random_requests.c. */
#include "frontend-glue/clients/graph_slots.h"
#include "frontend-glue/session/session_internal.h"
#include "tests/fixtures/extensions.h"
#include "tests/fixtures/thread_state.h"

#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

/* A graph's memory is not returned if its owner cannot be noted: it would belong to nobody. */
static void test_memory_without_owner(void **state)
{
    (void)state;
    struct ibx_quota *quota = ibx_tenant_quota(alice.x.isolation.tenant, IBX_HOLD_ALLOCATIONS);
    uint64_t graph, node, answers[2] = {0};
    const uint64_t most = atomic_load(&quota->most);
    assert_int_equal(ext_graph_create(&alice, &graph), 0);
    atomic_store(&quota->most, 1); /* the quota is exceeded already */
    assert_int_equal(ext_allocation_add(&alice, graph, 4096, &node), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(ext_nodes_count(&alice, graph), 0);
    atomic_store(&quota->most, most);
    assert_int_equal(ext_allocation_add(&alice, graph, 4096, &node), 0);
    assert_int_equal(ext_nodes_count(&alice, graph), 1);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, answers), 0);
}

/* A node that the launched graph has never had: of another graph, or added later. */
static void test_nodes_of_others(void **state)
{
    (void)state;
    uint64_t graph, other, node, later, strange, exec;
    const struct ibx_cuda_memset set = {(void *)(uintptr_t)alice.memory, 0, 2, 1, 64, 1};
    assert_int_equal(ext_graph_create(&alice, &graph), 0);
    assert_int_equal(ext_graph_create(&alice, &other), 0);
    assert_int_equal(ext_memset_add(&alice, graph, alice.memory, &node), 0);
    assert_int_equal(ext_memset_add(&alice, other, alice.memory, &strange), 0);
    assert_int_equal(ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2, (uint64_t[]){graph, 0}, &exec),
                     0);
    assert_int_equal(ext_memset_add(&alice, graph, alice.memory, &later), 0);
    assert_int_equal(ext_nodes_count(&alice, graph), 2); /* listing it changes nothing */
    const uint64_t nodes[] = {node, later, strange};
    for (unsigned i = 0; i < 3; i++) {
        uint8_t bytes[100];
        struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_SET_MEMSET);
        ibx_put_u64(&w, exec);
        ibx_put_u64(&w, nodes[i]);
        ibx_layout_put(&w, IBX_LAYOUT_MEMSET, &set);
        assert_int_equal(ext_run(&alice, &w, NULL), i ? CUDA_INVALID_VALUE : 0);
    }
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, NULL), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, other, NULL), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_EXEC_DESTROY, exec, NULL), 0);
}

/* Mipmap levels end with their array, and only with it. */
static void test_levels_of_others(void **state)
{
    (void)state;
    uint64_t level = 0, again = 0;
    assert_int_equal(ext_level_of(&alice, alice.mipmap, 1, &level), 0);
    assert_true(level == alice.level);
    assert_int_equal(ext_level_of(&alice, alice.mipmap, 2, &again), CUDA_INVALID_VALUE);
    assert_int_equal(ext_level_of(&bob, alice.mipmap, 1, &again), CUDA_INVALID_VALUE);
    assert_int_equal(ext_level_of(&alice, alice.array, 1, &again), CUDA_INVALID_VALUE);
    assert_int_equal(ext_call_one(&bob, IBX_EXT_CHANNEL_DESC, level, NULL), CUDA_INVALID_VALUE);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_CHANNEL_DESC, level, NULL), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_CHANNEL_DESC, alice.mipmap, NULL),
                     CUDA_INVALID_VALUE);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_FREE_ARRAY, level, NULL), CUDA_INVALID_VALUE);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_FREE_ARRAY, alice.mipmap, NULL),
                     CUDA_INVALID_VALUE);
    assert_int_equal(ext_call_one(&bob, IBX_EXT_FREE_MIPMAP, alice.mipmap, NULL),
                     CUDA_INVALID_VALUE);
    assert_true(ibx_owners_number(level) && ibx_owners_number(alice.mipmap));
    assert_int_equal(ext_call_one(&alice, IBX_EXT_FREE_MIPMAP, alice.mipmap, NULL), 0);
    assert_true(!ibx_owners_number(level) && !ibx_owners_number(alice.mipmap));
    assert_int_equal(ext_call_one(&alice, IBX_EXT_CHANNEL_DESC, level, NULL), CUDA_INVALID_VALUE);
    ext_mipmap_make(&alice);
}

/* The answers are two numbers of four bytes. */
static void test_pointers_of_others(void **state)
{
    (void)state;
    uint64_t answer = 9;
    assert_int_equal(ext_call_one(&alice, IBX_EXT_POINTER, alice.memory + 5, &answer), 0);
    assert_true(answer == 1);
    assert_int_equal(ext_call_one(&bob, IBX_EXT_POINTER, alice.memory + 5, &answer), 0);
    assert_true(answer == 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_POINTER, 0x7000000, &answer), 0);
    assert_true(answer == 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_POINTER, (uintptr_t)&answer, &answer), 0);
    assert_true(answer == 0);
}

static size_t allocated(void)
{
    const struct mallinfo2 now = mallinfo2();
    return now.uordblks + now.hblkhd;
}

/* Memory that lives long, and clients that open it and end without closing it. */
static void test_openers_that_have_ended(void **state)
{
    (void)state;
    const size_t before = allocated();
    session->path.provider[0] = '?';
    for (unsigned i = 0; i < 20000; i++) {
        struct gpu_session x = {.s = session, .joined = true, .options = {.mode = IBX_GPU_OFF}};
        x.isolation.tenant = alice.x.isolation.tenant;
        assert_true(ibx_handles_open(&x, IBX_HANDLE_MEMORY, alice.memory));
        ibx_clients_leave(&x);
    }
    session->path.provider[0] = 0;
    const size_t after = allocated();
    if (after > before + 65536)
        fail_msg("20000 clients that have ended take %zu bytes", after - before);
}

/* Sessions of one client end one after the other while their work waits. A few events show when
 * all of it is over. */
static void test_work_of_ended_sessions(void **state)
{
    (void)state;
    void *const own = IBX_CUDA_STREAM_PER_THREAD;
    const uint64_t at = alice.memory;
    assert_true(ibx_back_end_have_cuda(&alice.x));
    const unsigned long before = cuda_stats().events;
    app->hold(true);
    for (unsigned i = 0; i < 200; i++) {
        assert_int_equal(app->copy_async(at, at + 64, 64, own), 0);
        assert_int_equal(app->copy_async(at, at + 64, 64, IBX_CUDA_STREAM_LEGACY), 0);
        ibx_left_work_keep(&alice.x, 77);
    }
    const unsigned long events = cuda_stats().events - before;
    assert_true(ibx_left_work_any(alice.x.cuda, 77, 0));
    assert_true(ibx_left_work_any(alice.x.cuda, 0, ibx_left_work_so_far()));
    assert_true(ibx_left_work_in_legacy(alice.x.cuda, 77));
    assert_false(ibx_left_work_in_legacy(alice.x.cuda, 78));
    app->hold(false);
    assert_int_equal(app->stream_synchronize(own), 0);
    while (ibx_left_work_any(alice.x.cuda, 77, 0) || ibx_left_work_in_legacy(alice.x.cuda, 77)) {
    }
    assert_true(events > 0 && events < 100);
    assert_true(cuda_stats().events == before);
}

#define SLOTS 140000u /* more than two blocks have */

static uint64_t slots[SLOTS];

/* Processor time of this thread, in seconds. */
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

/* All clients' copies in graphs are in one list. A client must not wait for a walk through
 * another client's copies. */
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

#define NODES 100000u

static unsigned ends; /* of what nodes have had */

static void count_end(void *what)
{
    (void)what;
    ends++;
}

/* Processor time of this thread, in seconds: so many nodes of alice's executable graph get
 * something that they have there alone. */
static double seconds_of_nodes(unsigned from, unsigned until)
{
    struct timespec begun, done;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    for (unsigned i = from; i < until; i++) {
        /* Now here, now there. */
        const uint64_t node = 0x10000 + 16 * ((uint64_t)i * 7919 % NODES);
        void *const both[] = {pointer_to(i), pointer_to(node)};
        assert_true(ibx_handles_exec_has(&alice.x, alice.exec, node, both, i % 2 + 1, count_end));
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &done);
    return (double)(done.tv_sec - begun.tv_sec) + 1e-9 * (double)(done.tv_nsec - begun.tv_nsec);
}

/* All clients' handles are under one lock: a client must not wait while another one looks through
 * all nodes of a large graph. */
static void test_very_many_nodes(void **state)
{
    (void)state;
    const double first = seconds_of_nodes(0, 1000);
    seconds_of_nodes(1000, NODES);
    assert_int_equal(ends, 0);
    const double again = seconds_of_nodes(0, 1000);
    assert_int_equal(ends, 1500);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_EXEC_DESTROY, alice.exec, NULL), 0);
    assert_int_equal(ends, 1500 + NODES + NODES / 2);
    if (again > 20 * first + 0.02)
        fail_msg("%f s for 1000 of 100000 nodes, %f s for the first ones", again, first);
}

#define MODULES 100u

/* A graph has one object of CUDA's for each module and array, however many there are: each copy of
 * the graph has all of them again. */
static void test_many_in_a_graph(void **state)
{
    static char modules[MODULES];
    const uint64_t graph = ext_graph_make(&alice);
    (void)state;
    ends = 0;
    for (unsigned i = 0; i < 2 * MODULES; i++) {
        assert_true(
            ibx_graph_retain(&alice.x, pointer_to(graph), &modules[i % MODULES], count_end));
        assert_int_equal(ends, i < MODULES ? 0 : i + 1 - MODULES);
    }
    ext_graph_destroy(&alice, graph);
    assert_int_equal(ends, 2 * MODULES);
}

static uint64_t copy_slot(uint64_t queue, uint64_t number)
{
    struct ibx_host_copy copy = {.n = 16, .to_device = true};
    int rc = 0;
    void *made = ibx_host_work_copy(&alice.x, queue, number, &copy, &rc);
    if (!made)
        fail_msg("function %llu: %d", (unsigned long long)number, rc);
    assert_true(ibx_host_work_number(&alice.x, made) == number);
    assert_true(ibx_host_work_copy_of(made).slot == copy.slot);
    return copy.slot;
}

/* Slots of copies in graphs that were destroyed become free for others. */
static void test_functions_come_and_go(void **state)
{
    (void)state;
    uint64_t queue = 0;
    struct ibx_host_copy copy = {.n = 16, .to_device = true};
    int rc = 0;
    assert_int_equal(ibx_host_work_open(&alice.x, &queue), 0);
    void *lasting = ibx_host_work_copy(&alice.x, queue, 1, &copy, &rc);
    assert_non_null(lasting);
    assert_true(copy_slot(queue, 1) == copy.slot); /* of two graphs */
    for (uint64_t number = 2; number < 70000; number++)
        release(copy_slot(queue, number));
    release(copy_slot(queue, 2)); /* a second time */
    release(copy.slot);
    assert_true(ibx_host_work_number(&alice.x, lasting) == 1);
    release(copy.slot);
    assert_true(ibx_host_work_number(&alice.x, lasting) == 0);
    assert_false(ibx_host_work_repeats());
    release(copy_slot(queue, 1));
    void *context = NULL; /* neither when the context ends with all its graphs */
    assert_int_equal(alice.x.cuda->ctx_get_current(&context), 0);
    copy_slot(queue, 1);
    ibx_slots_forget(context);
    assert_false(ibx_host_work_repeats());
    ibx_host_work_end(&alice.x);
}

static void *call_function(void *function)
{
    ibx_host_work_call(function);
    return NULL;
}

/* The slot of a function that the client calls is found by 31 bits of a number that may have more.
 */
static void test_numbers_of_a_long_run(void **state)
{
    static const uint64_t numbers[] = {5, 0x80000006, 0x300000000, 0x123456789abcdef0};
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        const uint32_t bits = (uint32_t)numbers[i] & 0x7fffffff;
        struct ibx_host_copy copy = {.n = 16, .to_device = true};
        struct ibx_host_called called = {0};
        uint64_t queue = 0;
        pthread_t stream;
        int rc = 0;
        assert_int_equal(ibx_host_work_open(&alice.x, &queue), 0);
        void *function = ibx_host_work_copy(&alice.x, queue, numbers[i], &copy, &rc);
        assert_non_null(function);
        assert_int_equal(pthread_create(&stream, NULL, call_function, function), 0);
        while (!called.number)
            assert_int_equal(ibx_host_work_ask(&alice.x, 0, true, &called), 0);
        assert_true(called.number == numbers[i]);
        assert_true(ibx_host_work_taken(&alice.x, bits).slot == copy.slot);
        assert_true(ibx_host_work_taken(&alice.x, bits ^ 1).slot == 0);
        ibx_host_work_end(&alice.x);
        assert_int_equal(pthread_join(stream, NULL), 0);
        assert_true(ibx_host_work_taken(&alice.x, bits).slot == 0);
        release(copy.slot);
    }
}

/* Another session of alice that names her graph. */
struct other_session {
    struct gpu_session x;
    uint64_t exec;
    bool changes;
    atomic_int thread;
    atomic_bool let_go, done, early;
};

static void *name_graph(void *argument)
{
    struct other_session *other = argument;
    atomic_store(&other->thread, gettid());
    const bool known = ibx_handles_know(&other->x, IBX_HANDLE_NODE, alice.node);
    atomic_store(&other->early, !known || !atomic_load(&other->let_go));
    atomic_store(&other->done, true);
    ibx_handles_let_go(&other->x);
    return NULL;
}

/* CUDA does not allow two threads to use one graph at once. */
static void test_one_request_for_a_graph(void **state)
{
    struct other_session other = {.x = alice.x};
    pthread_t thread;
    (void)state;
    assert_true(ibx_handles_know(&alice.x, IBX_HANDLE_GRAPH, alice.graph));
    assert_true(ibx_handles_know(&alice.x, IBX_HANDLE_NODE, alice.node)); /* its own */
    assert_int_equal(pthread_create(&thread, NULL, name_graph, &other), 0);
    while (!atomic_load(&other.thread) ||
           (thread_state(getpid(), other.thread) != 'S' && !atomic_load(&other.done)))
        sched_yield();
    atomic_store(&other.let_go, true);
    ibx_handles_let_go(&alice.x);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_false(other.early);
}

static void *name_exec(void *argument)
{
    struct other_session *other = argument;
    atomic_store(&other->thread, gettid());
    const bool known = other->changes ? ibx_handles_change(&other->x, IBX_HANDLE_EXEC, other->exec)
                                      : ibx_handles_know(&other->x, IBX_HANDLE_EXEC, other->exec);
    atomic_store(&other->early, !known || !atomic_load(&other->let_go));
    atomic_store(&other->done, true);
    ibx_handles_let_go(&other->x);
    return NULL;
}

/* An executable graph must not be changed during another call either. */
static void test_one_change_of_what_is_launched(void **state)
{
    uint64_t graph, node, exec;
    (void)state;
    assert_int_equal(ext_graph_create(&alice, &graph), 0);
    assert_int_equal(ext_memset_add(&alice, graph, alice.memory, &node), 0);
    assert_int_equal(ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2, (uint64_t[]){graph, 0}, &exec),
                     0);
    for (unsigned i = 0; i < 3; i++) {
        struct other_session other = {.x = alice.x, .exec = exec, .changes = i};
        pthread_t thread;
        if (i == 1) /* a launch */
            assert_true(ibx_handles_know(&alice.x, IBX_HANDLE_EXEC, exec));
        else
            assert_true(ibx_handles_has_node(&alice.x, exec, node));
        assert_int_equal(pthread_create(&thread, NULL, name_exec, &other), 0);
        while (!atomic_load(&other.thread) ||
               (thread_state(getpid(), other.thread) != 'S' && !atomic_load(&other.done)))
            sched_yield();
        atomic_store(&other.let_go, true);
        ibx_handles_let_go(&alice.x);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_false(other.early);
    }
    assert_int_equal(ext_call_one(&alice, IBX_EXT_EXEC_DESTROY, exec, NULL), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, graph, NULL), 0);
}

/* A pointer into another process's pool is closed, not freed: others may have it open, and its pool
 * counts as open as long as it is. */
static void test_opened_pointer_is_not_freed(void **state)
{
    uint64_t memory = 0;
    (void)state;
    assert_int_equal(ext_call(&alice, IBX_EXT_MALLOC_ASYNC, 2, (uint64_t[]){4096, 0}, &memory), 0);
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_OPENED_POINTER, memory));
    const uint64_t freed[] = {memory, 0};
    assert_int_equal(ext_call(&alice, IBX_EXT_FREE_ASYNC, 2, freed, NULL), CUDA_INVALID_VALUE);
    assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_OPENED_POINTER, memory));
    assert_int_equal(ext_call(&alice, IBX_EXT_FREE_ASYNC, 2, freed, NULL), 0);
}

static int set_memory(uint64_t memory, uint64_t n)
{
    uint8_t bytes[64];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_MEMSET);
    ibx_put_u64(&w, memory);
    ibx_put_u32(&w, 7);
    ibx_put_u64(&w, n);
    ibx_put_u64(&w, 0);
    return ext_run(&alice, &w, NULL);
}

/* The end of a graph waits for no work, also if that uses the graph's memory. */
static void test_work_in_memory_of_an_ended_graph(void **state)
{
    const uint64_t n = 1u << 20;
    uint64_t memory = 0;
    void *stream = ext_stream_make(&alice);
    (void)state;
    ext_capture_begin(&alice, stream);
    const uint64_t wanted[] = {n, (uintptr_t)stream};
    assert_int_equal(ext_call(&alice, IBX_EXT_MALLOC_ASYNC, 2, wanted, &memory), 0);
    const uint64_t graph = ext_capture_end(&alice, stream);
    app->hold(true);
    assert_int_equal(set_memory(memory, n), 0);
    ext_graph_destroy(&alice, graph);
    app->hold(false);
    assert_int_equal(app->ctx_synchronize(), 0);
    assert_int_equal(set_memory(memory, n), CUDA_INVALID_VALUE);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    assert_int_equal(app->stream_destroy(stream), 0);
}

/* Returns the graph within a new node of a graph. */
static uint64_t graph_within(uint64_t graph)
{
    uint64_t empty, node, child;
    uint8_t bytes[32];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_NODE_CHILD);
    assert_int_equal(ext_graph_create(&alice, &empty), 0);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    ibx_put_u64(&w, empty);
    assert_int_equal(ext_run(&alice, &w, &node), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, empty, NULL), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GET_CHILD, node, &child), 0);
    return child;
}

/* A node with the greatest number of dependencies, in a graph that is nested as deep as allowed. */
static void test_dependencies_deep_down(void **state)
{
    uint64_t outermost, graph, node, nodes[IBX_EXT_BEHIND - 1];
    uint8_t bytes[16 + 8 * IBX_EXT_BEHIND];
    (void)state;
    assert_int_equal(ext_graph_create(&alice, &outermost), 0);
    graph = outermost;
    for (unsigned level = 1; level < IBX_EXT_GRAPHS_DEEP; level++)
        graph = graph_within(graph);
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_NODE_EMPTY);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, IBX_EXT_BEHIND - 1); /* the simulated driver has room for this many nodes */
    for (unsigned i = 0; i < IBX_EXT_BEHIND - 1; i++) {
        assert_int_equal(ext_memset_add(&alice, graph, alice.memory, &nodes[i]), 0);
        ibx_put_u64(&w, nodes[i]);
    }
    assert_int_equal(ext_run(&alice, &w, &node), 0);
    assert_int_equal(ext_nodes_count(&alice, graph), IBX_EXT_BEHIND);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_GRAPH_DESTROY, outermost, NULL), 0);
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

/* Slots come and go, each with different bytes. */
static void test_slots_come_and_go(void **state)
{
    enum { MOST = 300 };
    static size_t sizes[MOST];
    (void)state;
    const size_t before = ibx_slots_bytes();
    memset(slots, 0, sizeof(slots));
    for (unsigned i = 0; i < 20000; i++) {
        const unsigned k = (unsigned)(ext_random() % MOST);
        if (slots[k]) {
            const uint8_t *bytes = bytes_of(slots[k], sizes[k]);
            assert_true(bytes[0] == (uint8_t)slots[k] && bytes[sizes[k] - 1] == (uint8_t)slots[k]);
            release(slots[k]);
        }
        sizes[k] = ext_random() % 8 ? 1 + ext_random() % 300 : 1 + ext_random() % 90000;
        assert_true(slots[k] = ibx_slot_make(&alice.x, sizes[k]));
        memset(bytes_of(slots[k], sizes[k]), (uint8_t)slots[k], sizes[k]);
    }
    for (unsigned k = 0; k < MOST; k++)
        if (slots[k])
            release(slots[k]);
    assert_true(ibx_slots_bytes() == before);
}

/* Processor time of this thread, in seconds, for graphs that come and go, and for clients that
 * do. */
static double seconds_of_graphs(void)
{
    struct timespec begun, done;
    uint64_t graph, node;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(ext_graph_create(&bob, &graph), 0);
        assert_int_equal(ext_memset_add(&bob, graph, bob.memory, &node), 0);
        assert_int_equal(ext_call_one(&bob, IBX_EXT_GRAPH_DESTROY, graph, NULL), 0);
        assert_int_equal(ext_call_one(&bob, IBX_EXT_NODE_TYPE, node, NULL), 1);
        assert_false(ibx_handles_any(1000 + i));
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &done);
    return (double)(done.tv_sec - begun.tv_sec) + 1e-9 * (double)(done.tv_nsec - begun.tv_nsec);
}

/* A client with very many objects does not slow others down. */
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

/* Processor time of this thread, in seconds, for freeing memory that nobody has shared. */
static double seconds_of_frees(void)
{
    struct timespec begun, done;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    for (uint64_t i = 1; i <= 2000; i++)
        ibx_ipc_gone(256 * i);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &done);
    return (double)(done.tv_sec - begun.tv_sec) + 1e-9 * (double)(done.tv_nsec - begun.tv_nsec);
}

/* Objects that a client has shared do not slow down others' frees, and are found by their kind. */
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
        assert_int_equal(ext_call_one(&alice, IBX_EXT_IPC_EVENT, (uintptr_t)events[i], &numbers[i]),
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
        assert_int_equal(ext_call_one(&alice, IBX_EXT_IPC_EVENT, (uintptr_t)events[i], &again), 0);
        if (i % 3)
            assert_true(again == numbers[i]);
    }
    for (unsigned i = 0; i < MANY; i++)
        ibx_ipc_gone((uintptr_t)events[i]);
    for (unsigned i = MANY; i-- > 0;) {
        assert_int_equal(ext_call_one(&alice, IBX_EXT_IPC_EVENT, (uintptr_t)events[i], &again), 0);
        assert_true(again != numbers[i]);
    }
    ibx_ipc_forget(NULL);
    for (unsigned i = 0; i < MANY; i++)
        ext_event_destroy(events[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_without_owner),
        cmocka_unit_test(test_nodes_of_others),
        cmocka_unit_test(test_levels_of_others),
        cmocka_unit_test(test_pointers_of_others),
        cmocka_unit_test(test_openers_that_have_ended),
        cmocka_unit_test(test_work_of_ended_sessions),
        cmocka_unit_test(test_very_many_nodes),
        cmocka_unit_test(test_many_in_a_graph),
        cmocka_unit_test(test_very_many_slots),
        cmocka_unit_test(test_functions_come_and_go),
        cmocka_unit_test(test_numbers_of_a_long_run),
        cmocka_unit_test(test_opened_pointer_is_not_freed),
        cmocka_unit_test(test_work_in_memory_of_an_ended_graph),
        cmocka_unit_test(test_dependencies_deep_down),
        cmocka_unit_test(test_one_request_for_a_graph),
        cmocka_unit_test(test_one_change_of_what_is_launched),
        cmocka_unit_test(test_slots_come_and_go),
        cmocka_unit_test(test_very_many_of_others),
        cmocka_unit_test(test_very_many_are_shared),
    };
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
