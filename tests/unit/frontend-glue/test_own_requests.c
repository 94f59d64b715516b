/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Requests of our own by a client that sends anything, on doubles of CUDA that end the process at a
 * handle that is none: it harms no other tenant, and not the back end.
 */
#include "frontend-glue/device_copies/graph_slots.h"
#include "frontend-glue/session/session_internal.h"
#include "tests/scenes/own_requests.h"

#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define REQUESTS 15000u
#define RECENT   4u   /* handles of a kind that are remembered */
#define RENEWED  100u /* requests after which a client has all kinds again */

static int add_allocation(struct client *c, uint64_t graph, uint64_t n, uint64_t *node)
{
    uint8_t bytes[64];
    struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_EXTRA_NODE_ALLOC);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    ibx_put_u32(&w, 0);
    ibx_put_u64(&w, n);
    return own_run(c, &w, node);
}

/* -------------------------------------------------------------------------------- the tests */

/* Memory of a graph whose owner cannot be noted is not given out: it would be anybody's. */
static void test_memory_without_owner(void **state)
{
    (void)state;
    struct ibx_quota *quota = ibx_tenant_quota(alice.x.isolation.tenant, IBX_HOLD_ALLOCATIONS);
    uint64_t graph, node, answers[2] = {0};
    const uint64_t most = atomic_load(&quota->most);
    assert_int_equal(own_graph_create(&alice, &graph), 0);
    atomic_store(&quota->most, 1); /* it has more already */
    assert_int_equal(add_allocation(&alice, graph, 4096, &node), CUDA_MEMORY_ALLOCATION);
    assert_int_equal(own_nodes_count(&alice, graph), 0);
    atomic_store(&quota->most, most);
    assert_int_equal(add_allocation(&alice, graph, 4096, &node), 0);
    assert_int_equal(own_nodes_count(&alice, graph), 1);
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_GRAPH_DESTROY, graph, answers), 0);
}

static int copy_planes(struct client *c, const struct ibx_cuda_memcpy3d *p)
{
    uint8_t bytes[200];
    struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_EXTRA_MEMCPY_3D);
    ibx_layout_put(&w, IBX_LAYOUT_MEMCPY3D, p);
    return own_run(c, &w, NULL);
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
    assert_int_equal(own_graph_create(&alice, &graph), 0);
    assert_int_equal(own_graph_create(&alice, &other), 0);
    assert_int_equal(own_memset_add(&alice, graph, alice.memory, &node), 0);
    assert_int_equal(own_memset_add(&alice, other, alice.memory, &strange), 0);
    assert_int_equal(
        own_call(&alice, IBX_EXTRA_GRAPH_INSTANTIATE, 2, (uint64_t[]){graph, 0}, &exec), 0);
    assert_int_equal(own_memset_add(&alice, graph, alice.memory, &later), 0);
    assert_int_equal(own_nodes_count(&alice, graph), 2); /* that it is listed changes nothing */
    const uint64_t nodes[] = {node, later, strange};
    for (unsigned i = 0; i < 3; i++) {
        uint8_t bytes[100];
        struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_EXTRA_SET_MEMSET);
        ibx_put_u64(&w, exec);
        ibx_put_u64(&w, nodes[i]);
        ibx_layout_put(&w, IBX_LAYOUT_MEMSET, &set);
        assert_int_equal(own_run(&alice, &w, NULL), i ? CUDA_INVALID_VALUE : 0);
    }
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_GRAPH_DESTROY, graph, NULL), 0);
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_GRAPH_DESTROY, other, NULL), 0);
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_EXEC_DESTROY, exec, NULL), 0);
}

/* Levels go with what they are of, and with it alone. */
static void test_levels_of_others(void **state)
{
    (void)state;
    uint64_t level = 0, again = 0;
    assert_int_equal(own_level_of(&alice, alice.mipmap, 1, &level), 0);
    assert_true(level == alice.level);
    assert_int_equal(own_level_of(&alice, alice.mipmap, 2, &again), CUDA_INVALID_VALUE);
    assert_int_equal(own_level_of(&bob, alice.mipmap, 1, &again), CUDA_INVALID_VALUE);
    assert_int_equal(own_level_of(&alice, alice.array, 1, &again), CUDA_INVALID_VALUE);
    assert_int_equal(own_call_one(&bob, IBX_EXTRA_CHANNEL_DESC, level, NULL), CUDA_INVALID_VALUE);
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_CHANNEL_DESC, level, NULL), 0);
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_CHANNEL_DESC, alice.mipmap, NULL),
                     CUDA_INVALID_VALUE);
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_FREE_ARRAY, level, NULL), CUDA_INVALID_VALUE);
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_FREE_ARRAY, alice.mipmap, NULL),
                     CUDA_INVALID_VALUE);
    assert_int_equal(own_call_one(&bob, IBX_EXTRA_FREE_MIPMAP, alice.mipmap, NULL),
                     CUDA_INVALID_VALUE);
    assert_true(ibx_owners_number(level) && ibx_owners_number(alice.mipmap));
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_FREE_MIPMAP, alice.mipmap, NULL), 0);
    assert_true(!ibx_owners_number(level) && !ibx_owners_number(alice.mipmap));
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_CHANNEL_DESC, level, NULL), CUDA_INVALID_VALUE);
    own_mipmap_make(&alice);
}

/* The answers are two numbers of four bytes. */
static void test_pointers_of_others(void **state)
{
    (void)state;
    uint64_t answer = 9;
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_POINTER, alice.memory + 5, &answer), 0);
    assert_true(answer == 1);
    assert_int_equal(own_call_one(&bob, IBX_EXTRA_POINTER, alice.memory + 5, &answer), 0);
    assert_true(answer == 0);
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_POINTER, 0x7000000, &answer), 0);
    assert_true(answer == 0);
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_POINTER, (uintptr_t)&answer, &answer), 0);
    assert_true(answer == 0);
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

/* Those of copies in graphs that are no more make room for others. */
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
    release(copy_slot(queue, 2)); /* the same, once more */
    release(copy.slot);
    assert_true(ibx_host_work_number(&alice.x, lasting) == 1);
    release(copy.slot);
    assert_true(ibx_host_work_number(&alice.x, lasting) == 0);
    assert_false(ibx_host_work_repeats());
    release(copy_slot(queue, 1));
    void *context = NULL; /* nor when that goes with all its graphs */
    assert_int_equal(alice.x.cuda->ctx_get_current(&context), 0);
    copy_slot(queue, 1);
    ibx_slots_forget(context);
    assert_false(ibx_host_work_repeats());
    ibx_host_work_end(&alice.x);
}

static int add_host_node(uint64_t graph, uint64_t queue, uint64_t number)
{
    uint8_t bytes[64];
    struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_EXTRA_NODE_HOST);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    ibx_put_u64(&w, queue);
    ibx_put_u64(&w, number);
    return own_run(&alice, &w, NULL);
}

/* Another session of alice's that names her graph. */
struct other_session {
    struct copies x;
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

static bool sleeps(int thread)
{
    char path[64], state = 0;
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", thread);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 0;
    if (file)
        fclose(file);
    return state == 'S';
}

/* CUDA's graphs bear no two threads at once. */
static void test_one_request_for_a_graph(void **state)
{
    struct other_session other = {.x = alice.x};
    pthread_t thread;
    (void)state;
    assert_true(ibx_handles_know(&alice.x, IBX_HANDLE_GRAPH, alice.graph));
    assert_true(ibx_handles_know(&alice.x, IBX_HANDLE_NODE, alice.node)); /* its own */
    assert_int_equal(pthread_create(&thread, NULL, name_graph, &other), 0);
    while (!atomic_load(&other.thread) || (!sleeps(other.thread) && !atomic_load(&other.done)))
        sched_yield();
    atomic_store(&other.let_go, true);
    ibx_handles_let_go(&alice.x);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_false(other.early);
}

/* A function of the client's is known as long as a graph may call it, whose copies and what was
 * made of them count; and of those that come and go there may be any number. */
static void test_functions_go_with_graphs(void **state)
{
    uint64_t queue, graph, clone, exec;
    (void)state;
    assert_int_equal(ibx_host_work_open(&alice.x, &queue), 0);
    assert_int_equal(own_graph_create(&alice, &graph), 0);
    assert_int_equal(add_host_node(graph, queue, 1), 0);
    assert_int_equal(add_host_node(graph, queue, 1), 0);
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_GRAPH_CLONE, graph, &clone), 0);
    const uint64_t of[] = {clone, 0};
    assert_int_equal(own_call(&alice, IBX_EXTRA_GRAPH_INSTANTIATE, 2, of, &exec), 0);
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_GRAPH_DESTROY, graph, NULL), 0);
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_GRAPH_DESTROY, clone, NULL), 0);
    assert_true(ibx_host_work_repeats());
    assert_int_equal(own_call_one(&alice, IBX_EXTRA_EXEC_DESTROY, exec, NULL), 0);
    assert_false(ibx_host_work_repeats());
    for (uint64_t i = 1; i < 70000; i++) {
        assert_int_equal(own_graph_create(&alice, &graph), 0);
        assert_int_equal(add_host_node(graph, queue, i), 0);
        assert_int_equal(own_call_one(&alice, IBX_EXTRA_GRAPH_DESTROY, graph, NULL), 0);
    }
    assert_false(ibx_host_work_repeats());
    ibx_host_work_end(&alice.x);
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
enum kind { GRAPH, NODE, EXEC, ARRAY, MIPMAP, DEVICE, KINDS };
static const char kinds[] = "gneaydo";
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
    note(ARRAY, c->level);
    note(MIPMAP, c->mipmap);
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

/* g, n, e, a, y, d: a graph, a node, an executable graph, an array, a mipmapped one, memory; o: any
 * of these; z: a size; i, h, b: numbers of 4, 2 and 1 bytes; A: an attribute's value; p: a graph
 * and nodes that one comes behind; k: a kernel; v: a name; m, c: planes to be copied, c between
 * host and device; s: memory to be set; r, t: a resource, a texture. Not there: what makes memory
 * of any size, or graphs of graphs without end. */
static const char *const forms[IBX_EXTRAS + 1] = {
    [IBX_EXTRA_LAUNCH] = "hk",
    [IBX_EXTRA_STREAM_SET_ATTRIBUTE] = "oiA",
    [IBX_EXTRA_STREAM_GET_ATTRIBUTE] = "oi",
    [IBX_EXTRA_GET_LIMIT] = "i",
    [IBX_EXTRA_SYMBOL_ADDRESS] = "o",
    [IBX_EXTRA_SYMBOL_SIZE] = "o",
    [IBX_EXTRA_FREE_ARRAY] = "a",
    [IBX_EXTRA_FREE_MIPMAP] = "y",
    [IBX_EXTRA_MIPMAP_LEVEL] = "yi",
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
    [IBX_EXTRA_POINTER] = "d",
    [IBX_EXTRA_NODE_IN_CLONE] = "ng",
    [IBX_EXTRA_EXEC_FLAGS] = "e",
    [IBX_EXTRA_GET_MEMSET] = "n",
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
    [IBX_EXTRA_GET_KERNEL] = "ni",
    [IBX_EXTRA_GET_ATTRIBUTE] = "ni",
    [IBX_EXTRA_SET_ATTRIBUTE] = "niA",
    [IBX_EXTRA_COPY_ATTRIBUTES] = "nn",
    [IBX_EXTRA_GET_EVENT] = "n",
    [IBX_EXTRA_SET_EVENT] = "eno",
    [IBX_EXTRA_GET_HOST] = "n",
    [IBX_EXTRA_SET_HOST] = "enoo",
    [IBX_EXTRA_GET_CHILD] = "n",
    [IBX_EXTRA_SET_CHILD] = "eng",
    [IBX_EXTRA_GET_MEMORY] = "n",
    [IBX_EXTRA_SET_GRAPH_MEMORY] = "iiz",
    [IBX_EXTRAS] = "o",
};

/* What several letters stand for. */
static const char *longer(char letter)
{
    static const char *const resources[] = {"a", "y", "diiiiiz", "diiiiizzz"};
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
    struct ibx_writer w = own_body(bytes, sizeof(bytes), number);
    uint64_t answer;
    if (!forms[number])
        return;
    put_any(&w, forms[number]);
    assert_false(w.failed);
    if (random_number() % 8 == 0)
        w.length = random_number() % (w.length + 9);
    if (own_run(c, &w, &answer) || !answer)
        return;
    if (number == IBX_EXTRA_GRAPH_CREATE || number == IBX_EXTRA_GRAPH_CLONE ||
        number == IBX_EXTRA_GET_CHILD)
        note(GRAPH, answer);
    if (number >= IBX_EXTRA_NODE_KERNEL && number <= IBX_EXTRA_NODE_FREE)
        note(NODE, answer);
    if (number == IBX_EXTRA_GRAPH_INSTANTIATE)
        note(EXEC, answer);
}

/* Seconds of this thread's processor for graphs that come and go, and for clients that do. */
static double seconds_of_graphs(void)
{
    struct timespec begun, done;
    uint64_t graph, node;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(own_graph_create(&bob, &graph), 0);
        assert_int_equal(own_memset_add(&bob, graph, bob.memory, &node), 0);
        assert_int_equal(own_call_one(&bob, IBX_EXTRA_GRAPH_DESTROY, graph, NULL), 0);
        assert_int_equal(own_call_one(&bob, IBX_EXTRA_NODE_TYPE, node, NULL), 1);
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
        assert_int_equal(
            own_call_one(&alice, IBX_EXTRA_IPC_EVENT, (uintptr_t)events[i], &numbers[i]), 0);
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
        assert_int_equal(own_call_one(&alice, IBX_EXTRA_IPC_EVENT, (uintptr_t)events[i], &again),
                         0);
        if (i % 3)
            assert_true(again == numbers[i]);
    }
    for (unsigned i = 0; i < MANY; i++)
        ibx_ipc_gone((uintptr_t)events[i]);
    for (unsigned i = MANY; i-- > 0;) {
        assert_int_equal(own_call_one(&alice, IBX_EXTRA_IPC_EVENT, (uintptr_t)events[i], &again),
                         0);
        assert_true(again != numbers[i]);
    }
    ibx_ipc_forget(NULL);
    for (unsigned i = 0; i < MANY; i++)
        own_event_destroy(events[i]);
}

static void test_anything(void **state)
{
    (void)state;
    uint8_t before[MEMORY], after[MEMORY];
    uint64_t answer;
    memset(before, 'b', sizeof(before));
    assert_int_equal(app->to_device(bob.memory, before, MEMORY), 0);
    const uint64_t of_bob[KINDS] = {bob.graph, bob.node,   bob.exec,
                                    bob.array, bob.mipmap, bob.memory};
    memcpy(others, of_bob, sizeof(others));
    for (unsigned i = 0; i < REQUESTS; i++) {
        if (i % RENEWED == 0) {
            own_make_all(&alice);
            note_all_of(&alice);
        }
        request_anything(&alice);
    }
    /* All that is the other tenant's is as it was. */
    assert_int_equal(app->ctx_synchronize(), 0);
    assert_int_equal(app->from_device(after, bob.memory, MEMORY), 0);
    assert_memory_equal(after, before, MEMORY);
    assert_int_equal(own_nodes_count(&bob, bob.graph), 1);
    assert_int_equal(own_call_one(&bob, IBX_EXTRA_NODE_TYPE, bob.node, &answer), 0);
    assert_int_equal(own_call_one(&bob, IBX_EXTRA_CHANNEL_DESC, bob.array, &answer), 0);
    assert_int_equal(own_call_one(&bob, IBX_EXTRA_FREE_ARRAY, bob.array, &answer), 0);
    assert_int_equal(own_call_one(&bob, IBX_EXTRA_FREE_MIPMAP, bob.mipmap, &answer), 0);
    assert_int_equal(own_call_one(&bob, IBX_EXTRA_EXEC_DESTROY, bob.exec, &answer), 0);
    assert_int_equal(own_call_one(&bob, IBX_EXTRA_GRAPH_DESTROY, bob.graph, &answer), 0);
    assert_int_equal(own_call(&bob, IBX_EXTRA_FREE_ASYNC, 2, (uint64_t[]){bob.memory, 0}, &answer),
                     0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_without_owner),
        cmocka_unit_test(test_rows_of_others),
        cmocka_unit_test(test_nodes_of_others),
        cmocka_unit_test(test_levels_of_others),
        cmocka_unit_test(test_pointers_of_others),
        cmocka_unit_test(test_openers_that_are_gone),
        cmocka_unit_test(test_work_that_is_left),
        cmocka_unit_test(test_very_many_slots),
        cmocka_unit_test(test_very_many_functions),
        cmocka_unit_test(test_functions_come_and_go),
        cmocka_unit_test(test_functions_go_with_graphs),
        cmocka_unit_test(test_one_request_for_a_graph),
        cmocka_unit_test(test_slots_come_and_go),
        cmocka_unit_test(test_very_many_of_others),
        cmocka_unit_test(test_very_many_are_shared),
        cmocka_unit_test(test_anything),
    };
    return cmocka_run_group_tests(tests, own_set_up, own_tear_down);
}
