/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A request asks for the graph that a stream is captured into, and before it uses the graph another
 * thread of the client ends the capture and destroys the graph, or adds work to it. The double ends
 * the process, as CUDA does, if it gets a graph that is gone. */
#include "frontend-glue/gvirtus_handlers/client_functions.h"
#include "tests/fixtures/extensions.h"
#include "tests/fixtures/thread_state.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define KERNEL UINT64_C(0x401b00)

static struct client other; /* another session of alice's */
static void *stream;
static uint64_t queue;
static struct {
    bool captured, armed, started;
    void (*does)(void);
    pthread_t thread;
    _Atomic pid_t id;
    atomic_bool over;
} ender;

static void *run_it(void *unused)
{
    (void)unused;
    atomic_store(&ender.id, gettid());
    ender.does();
    atomic_store(&ender.over, true);
    return NULL;
}

static void end_it(void)
{
    const uint64_t graph = ext_capture_end(&other, stream);
    ext_graph_destroy(&other, graph);
}

/* More work in the same stream. */
static void add_it(void)
{
    uint8_t bytes[64];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_MEMSET);
    ibx_put_u64(&w, alice.memory);
    ibx_put_u32(&w, 1);
    ibx_put_u64(&w, 64);
    ibx_put_u64(&w, (uintptr_t)stream);
    assert_int_equal(ext_run(&other, &w, NULL), 0);
}

/* The graph is known now. Returns when the other thread has done it, or waits. */
static void go_meanwhile(void)
{
    if (!ender.armed)
        return;
    ender.armed = false;
    ender.started = !pthread_create(&ender.thread, NULL, run_it, NULL);
    assert_true(ender.started);
    while (!atomic_load(&ender.over) &&
           !(atomic_load(&ender.id) && thread_state(getpid(), atomic_load(&ender.id)) == 'S'))
        sched_yield();
}

bool __real_ibx_captures_graph(struct gpu_session *x, uint64_t of, uint64_t *id, void **graph);
bool __wrap_ibx_captures_graph(struct gpu_session *x, uint64_t of, uint64_t *id, void **graph);
bool __wrap_ibx_captures_graph(struct gpu_session *x, uint64_t of, uint64_t *id, void **graph)
{
    const bool is = __real_ibx_captures_graph(x, of, id, graph);
    if (is)
        go_meanwhile();
    return is;
}

static void begin(void (*other_does)(void))
{
    ender.does = other_does;
    if (!ender.captured)
        ext_capture_begin(&alice, stream);
    ender.captured = false;
    atomic_store(&ender.over, false);
    atomic_store(&ender.id, 0);
    ender.armed = true;
    ender.started = false;
}

/* The request was answered, and the other thread has done it. */
static void join(void)
{
    assert_true(ender.started);
    assert_int_equal(pthread_join(ender.thread, NULL), 0);
    assert_true(atomic_load(&ender.over));
}

static void finish(void)
{
    join();
    assert_false(ibx_captures_any());
}

static void put_string(struct ibx_writer *w, const char *text)
{
    ibx_put_u64(w, strlen(text) + 1);
    ibx_put_u64(w, strlen(text) + 1);
    ibx_put_bytes(w, text, strlen(text) + 1);
}

/* Registers the kernel: only then it has a module, which graphs keep. */
static void load(void)
{
    struct ibx_functions_user *user = ibx_functions_user_of(&alice.x);
    uint8_t bytes[256];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    put_string(&w, "0x4a0100");
    assert_true(ibx_functions_name(user, "cudaRegisterFatBinary", bytes, w.length, 0));
    w = ibx_writer_of(bytes, sizeof(bytes));
    put_string(&w, "0x4a0100");
    ibx_put_u64(&w, KERNEL);
    put_string(&w, "copy");
    put_string(&w, "copy");
    for (unsigned i = 0; i < 5; i++)
        ibx_put_u64(&w, 0);
    assert_true(ibx_functions_name(user, "cudaRegisterFunction", bytes, w.length, 0));
}

static void put_copy(struct ibx_writer *w, int kind)
{
    const bool to_device = kind == 1;
    const struct ibx_cuda_pitched memory = {pointer_to(alice.memory), 64, 64, 4};
    const struct ibx_cuda_memcpy3d copy = {.from_array = to_device ? NULL : pointer_to(alice.array),
                                           .to = memory,
                                           .extent = {16, 1, 1},
                                           .kind = kind};
    ibx_layout_put(w, IBX_LAYOUT_MEMCPY3D, &copy);
}

static void test_launch(void **state)
{
    uint8_t bytes[256];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    (void)state;
    ibx_put_u64(&w, KERNEL);
    for (unsigned i = 0; i < 6; i++)
        ibx_put_u32(&w, 1);
    ibx_put_u64(&w, 0);
    ibx_put_u64(&w, (uintptr_t)stream);
    ibx_put_u64(&w, 24);
    ibx_put_u64(&w, alice.memory);
    ibx_put_u64(&w, alice.memory + 4096);
    ibx_put_u64(&w, 8);
    load();
    begin(end_it);
    assert_int_equal(ibx_device_launch(&alice.x, bytes, w.length), 0);
    finish();
}

static void test_copy_of_array(void **state)
{
    uint8_t bytes[256];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_MEMCPY_3D_ASYNC);
    (void)state;
    put_copy(&w, 3);
    ibx_put_u64(&w, (uintptr_t)stream);
    begin(end_it);
    assert_int_equal(ext_run(&alice, &w, NULL), 0);
    finish();
}

/* By a graph within the graph. */
static void copy_from_host(uint64_t number, void (*other_does)(void))
{
    uint8_t bytes[256];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_CAPTURE_COPY);
    void (*as_told)(void (*call)(void)) = NULL;
    *(void **)&as_told = ibx_back_end_runtime("ibx_double_as_capture_is_told");
    ibx_put_u64(&w, (uintptr_t)stream);
    ibx_put_u64(&w, queue);
    ibx_put_u64(&w, number);
    put_copy(&w, 1);
    begin(other_does);
    as_told(go_meanwhile);
    assert_int_equal(ext_run(&alice, &w, NULL), 0);
}

static void test_copy_from_host(void **state)
{
    (void)state;
    copy_from_host(1, end_it);
    finish();
}

/* What CUDA tells of the nodes before the next one is valid until another one is added. */
static void test_work_beside_a_copy(void **state)
{
    (void)state;
    ext_capture_begin(&alice, stream);
    add_it();
    ender.captured = true;
    copy_from_host(3, add_it);
    join();
    const uint64_t graph = ext_capture_end(&alice, stream);
    assert_int_equal(ext_nodes_count(&alice, graph), 3);
    ext_graph_destroy(&alice, graph);
    assert_false(ibx_captures_any());
}

static void test_function(void **state)
{
    void (*as_told)(void (*call)(void)) = NULL;
    (void)state;
    *(void **)&as_told = ibx_back_end_runtime("ibx_double_as_capture_is_told");
    begin(end_it);
    as_told(go_meanwhile);
    assert_int_equal(
        ext_call(&alice, IBX_EXT_HOST_CAPTURE, 3, (uint64_t[]){(uintptr_t)stream, queue, 2}, NULL),
        0);
    finish();
}

static int set_up(void **state)
{
    const int rc = ext_set_up(state);
    uint8_t bytes[8];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_HOST_OPEN);
    other.x.s = session;
    other.x.options.mode = IBX_GPU_ON;
    other.x.chosen_for = 0;
    other.x.replies.shape = IBX_REPLY_TIMED;
    other.x.isolation = alice.x.isolation;
    stream = ext_stream_make(&alice);
    return rc ? rc : ext_run(&alice, &w, &queue);
}

static int tear_down(void **state)
{
    ibx_host_work_end(&alice.x);
    return ext_tear_down(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launch),         cmocka_unit_test(test_copy_of_array),
        cmocka_unit_test(test_copy_from_host), cmocka_unit_test(test_work_beside_a_copy),
        cmocka_unit_test(test_function),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
