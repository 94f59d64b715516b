/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* One client captures a stream in the mode that most programs use, which forbids many calls to
 * all threads of the process. Meanwhile another client's copies run. Neither must notice the
 * other.
 *
 *   test_captures PROVIDER */
#include "tests/fixtures/copies_scene.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define NONBLOCKING 1u
#define GRAPH       ((void *)2) /* the simulated driver's graph of two copies */

static bool over_shm;

/* ----------------------------------------------------------------- the other client */

static struct {
    pthread_t thread;
    sem_t begun, enough;
    void *stream, *graph;
    uint64_t memory;
    int code;
    bool captures;
} neighbour;

static void *capture(void *argument)
{
    (void)argument;
    uint64_t at = neighbour.memory;
    cuda_application_use(0);
    neighbour.code = app->begin_capture(neighbour.stream, IBX_CUDA_CAPTURE_GLOBAL);
    app->copy_async(at, at + 512, 512, neighbour.stream);
    sem_post(&neighbour.begun);
    sem_wait(&neighbour.enough);
    app->copy_async(at + 512, at, 512, neighbour.stream);
    int code = app->end_capture(neighbour.stream, &neighbour.graph);
    neighbour.code = neighbour.code ? neighbour.code : code;
    return NULL;
}

static void capture_begin(void)
{
    sem_init(&neighbour.begun, 0, 0);
    sem_init(&neighbour.enough, 0, 0);
    pthread_create(&neighbour.thread, NULL, capture, NULL);
    sem_wait(&neighbour.begun);
    neighbour.captures = true;
    assert_int_equal(neighbour.code, 0);
}

static void capture_stop(void)
{
    if (!neighbour.captures)
        return;
    sem_post(&neighbour.enough);
    pthread_join(neighbour.thread, NULL);
    neighbour.captures = false;
}

/* Ends the capture, which must contain everything. */
static void capture_end(void)
{
    capture_stop();
    assert_int_equal(neighbour.code, 0);
    assert_ptr_equal(neighbour.graph, GRAPH);
}

/* ------------------------------------------------------------------ GVirtuS's handlers */

static void *new_stream(void)
{
    void *stream;
    assert_int_equal(app->stream_create(&stream, NONBLOCKING), 0);
    return stream;
}

static _Atomic int mode_found, mode_wanted, own_code;
static void *own_stream;

/* Runs in the thread that runs the copies. */
static void handle(const char *name)
{
    int mode = mode_wanted;
    void *graph;
    if (!strcmp(name, "exchange"))
        mode_found = app->exchange_mode(&mode) ? -1 : mode;
    else if (!strcmp(name, "begin"))
        own_code = app->begin_capture(own_stream, IBX_CUDA_CAPTURE_GLOBAL);
    else if (!strcmp(name, "end"))
        own_code = app->end_capture(own_stream, &graph);
}

static int set_up_both(void **state)
{
    on_request = handle;
    int mode = IBX_CUDA_CAPTURE_THREAD_LOCAL, rc = set_up(state);
    app->exchange_mode(&mode); /* this thread only looks, and is not a client */
    assert_int_equal(app->mem_alloc(&neighbour.memory, 1024), 0);
    if (!neighbour.stream)
        neighbour.stream = new_stream();
    return rc;
}

static int tear_down_both(void **state)
{
    capture_stop();
    app->hold_stream(NULL);
    app->mem_free(neighbour.memory);
    return tear_down(state);
}

/* ----------------------------------------------------------------------- the copies */

static const size_t sizes[] = {4, 3000, 70000, 300000, 2000001, DEVICE_BYTES - 8};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* Copies as GVirtuS's front end requests them: from messages, by chunks, by several threads. */
static void test_pageable(void **state)
{
    (void)state;
    capture_begin();
    for (size_t i = 0; i < SIZES; i++) {
        size_t n = sizes[i];
        uint8_t *bytes = pattern(n, n), *out = scene_memory(n + 8);
        struct frame request = to_device(bytes, n), back = from_device(n);
        expect_code("cudaMemcpy", &request, 0);
        assert_device(n, n);
        expect_out("cudaMemcpy", &back, out, n + 8, 0);
        assert_memory_equal(out + 8, bytes, n);
    }
    assert_int_equal(seen().requests, 1);
    capture_end();
}

/* Copies from the application's memory, asynchronous ones too, in a stream that nobody captures. */
static void test_copies_from_application_memory(void **state)
{
    (void)state;
    void *stream = new_stream();
    capture_begin();
    for (size_t i = 0; i < 2 * SIZES; i++) {
        size_t n = sizes[i / 2];
        bool async = i % 2;
        uint8_t *bytes = pattern(n, i);
        struct ibx_frontend_copy wish = {
            .async = async, .host = bytes, .n = n, .stream = async ? (uintptr_t)stream : 0};
        wish.to_device = true;
        assert_int_equal(copy_by_client(wish), 0);
        if (async) /* up to 64 KiB are taken, and not waited for */
            assert_int_equal(app->stream_synchronize(stream), 0);
        assert_device(n, i);
        memset(bytes, 0, n);
        wish.to_device = false;
        assert_int_equal(copy_by_client(wish), 0);
        assert_int_equal(pattern_check(bytes, n, i), n);
    }
    assert_int_equal(seen().requests, 1);
    capture_end();
}

static void test_rows(void **state)
{
    (void)state;
    enum { WIDTH = 1000, PITCH = 1024, ROWS = 700 };
    uint8_t *bytes = pattern(PITCH * ROWS, 7), *out = scene_memory(PITCH * ROWS);
    struct ibx_frontend_copy wish = {.to_device = true,
                                     .host = bytes,
                                     .n = WIDTH,
                                     .rows = ROWS,
                                     .host_pitch = PITCH,
                                     .device_pitch = 2 * PITCH};
    capture_begin();
    assert_int_equal(copy_by_client(wish), 0);
    wish.host = out;
    wish.to_device = false;
    assert_int_equal(copy_by_client(wish), 0);
    for (size_t i = 0; i < ROWS; i++)
        assert_memory_equal(out + i * PITCH, bytes + i * PITCH, WIDTH);
    assert_int_equal(seen().requests, 1);
    capture_end();
}

#define LASTING ((size_t)3000000)

/* Makes a copy of memory that both ends map, in a stream that nobody captures. Freed by
 * ibx_shared_free(). */
static struct ibx_frontend_copy lasting_copy(void *stream)
{
    void *memory = ibx_shared_allocate(LASTING, NULL);
    assert_non_null(memory);
    return (struct ibx_frontend_copy){.to_device = true,
                                      .async = true,
                                      .host = memory,
                                      .n = LASTING,
                                      .stream = (uintptr_t)stream,
                                      .lasting = true};
}

/* Memory that both ends map is pinned and copied in place. It is unpinned when other memory
 * takes its place, after a copy that is still running. */
static void test_copy_that_outlives_its_call(void **state)
{
    (void)state;
    void *stream = new_stream();
    app->slow(2000);
    capture_begin();
    for (unsigned i = 0; i < 4; i++) {
        struct ibx_frontend_copy to = lasting_copy(stream), from = to;
        from.to_device = false;
        pattern_fill(to.host, LASTING, i);
        assert_int_equal(copy_by_client(to), 0);
        assert_int_equal(app->stream_synchronize(stream), 0);
        assert_device(LASTING, i);
        memset(to.host, 0, LASTING);
        assert_int_equal(copy_by_client(from), 0);
        assert_int_equal(app->stream_synchronize(stream), 0);
        assert_int_equal(pattern_check(to.host, LASTING, i), LASTING);
        assert_int_equal(copy_by_client(to), 0);
        assert_true(ibx_shared_free(to.host));
    }
    assert_int_equal(seen().requests, 1);
    capture_end();
}

/* The back end's thread notices that its client has gone while copies run. */
static void test_client_leaves(void **state)
{
    (void)state;
    void *stream = new_stream();
    struct ibx_frontend_copy wish = lasting_copy(stream),
                             first = {.to_device = true, .host = pattern(LASTING, 1), .n = LASTING};
    pattern_fill(wish.host, LASTING, 5);
    capture_begin();
    assert_int_equal(copy_by_client(first), 0);
    app->slow(50000);
    assert_int_equal(copy_by_client(wish), 0);
    ibx_session_close(pair.client);
    join_server();
    capture_end();
    assert_int_equal(app->stream_synchronize(stream), 0);
    assert_device(LASTING, 5);
    assert_true(ibx_shared_free(wish.host));
}

/* ---------------------------------------------------------- what GVirtuS's handler runs */

#define HANDED ((size_t)8 << 20) /* in 16 frames, of which the last one says SETTLE */
#define PART   ((size_t)512 << 10)

/* As in test_stage.c: no chunks, and no short copy in place may outlive its call. */
static int set_up_poor(void **state)
{
    const struct ibx_gpu_options before = gpu;
    gpu.memory = 1;
    gpu.tuning = (struct ibx_tuning){.found = true, .choice = ibx_choice_default, .file = "a file"};
    gpu.tuning.choice.ways[IBX_CHOICE_TO_DEVICE].in_place_min = 2 * PART;
    ibx_tuning_machine_of(ibx_cuda_load(NULL), 0, &gpu.tuning.machine);
    int rc = set_up_both(state);
    gpu = before;
    return rc;
}

/* Only the copies before the last frame are waited for, not captured work and not another
 * client's endless work. The back end copies an asynchronous copy's last frame in stream order,
 * and leaves that of a synchronous copy to the handler. */
static void test_waits_only_for_its_own_copies(void **state)
{
    (void)state;
    void *endless = new_stream();
    uint8_t *host = scene_memory(HANDED), *got = scene_memory(HANDED);
    app->hold_stream(endless);
    assert_int_equal(app->copy_async(neighbour.memory, neighbour.memory + 512, 512, endless), 0);
    capture_begin();
    app->slow(2000);
    handler_says = 0;
    for (unsigned waited = 0; waited < 2; waited++) {
        const size_t n = waited ? HANDED - PART : HANDED;
        pattern_fill(host, HANDED, 3 + waited);
        assert_int_equal(copy_by_client((struct ibx_frontend_copy){
                             .to_device = true, .async = !waited, .host = host, .n = HANDED}),
                         0);
        memset(host, 0, HANDED);
        assert_true(app->peek(device, got, n));
        assert_int_equal(pattern_check(got, n, 3 + waited), n);
        assert_int_equal(seen().requests, 1 + waited);
    }
    handler_says = HANDLED;
    capture_end();
    assert_int_equal(app->stream_query(endless), IBX_CUDA_NOT_READY);
}

/* ------------------------------------------------------------------- its own captures */

static void call(const char *name)
{
    struct frame nothing = {0};
    expect_code(name, &nothing, HANDLED);
}

/* The client's own cudaThreadExchangeStreamCaptureMode() returns the mode that the client has
 * set. */
static void test_client_keeps_its_capture_mode(void **state)
{
    (void)state;
    uint8_t *bytes = pattern(300000, 1);
    int before = IBX_CUDA_CAPTURE_THREAD_LOCAL; /* the initial mode: only its own captures count */
    for (int i = 0; i < 6; i++) {
        mode_wanted = i % 3;
        call("exchange");
        assert_int_equal(mode_found, before);
        before = mode_wanted;
        for (size_t n = 4; n <= 300000; n += 299996)
            assert_int_equal(copy_by_client((struct ibx_frontend_copy){
                                 .to_device = true, .host = bytes, .n = n}),
                             0);
    }
}

/* As with driver 580 without GVirtuS: a client copies while it captures a stream that does not
 * wait for the legacy stream, and neither fails. */
static void test_own_capture(void **state)
{
    (void)state;
    static const struct {
        size_t n;
        int mode;
    } cases[] = {{100, IBX_CUDA_CAPTURE_GLOBAL},
                 {DEVICE_BYTES, IBX_CUDA_CAPTURE_GLOBAL},
                 {DEVICE_BYTES, IBX_CUDA_CAPTURE_THREAD_LOCAL},
                 {DEVICE_BYTES, IBX_CUDA_CAPTURE_RELAXED}};
    uint8_t *bytes = pattern(DEVICE_BYTES, 1);
    own_stream = new_stream();
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct frame request = to_device(bytes, cases[i].n);
        mode_wanted = cases[i].mode;
        call("exchange");
        call("begin");
        assert_int_equal(own_code, 0);
        app->slow(5000);
        expect_code("cudaMemcpy", &request, 0);
        assert_int_equal(app->stream_query(NULL), 0); /* other clients can use its chunks again */
        app->slow(0);
        call("end");
        assert_int_equal(own_code, 0);
    }
}

/* A client leaves in the middle of its own capture. Memory that was pinned for it is unpinned. */
static void test_client_leaves_while_it_captures(void **state)
{
    (void)state;
    struct ibx_double_stats before, after;
    void *stream = new_stream();
    struct ibx_frontend_copy wish = lasting_copy(stream);
    own_stream = new_stream();
    assert_int_equal(copy_by_client(wish), 0); /* pins it as well */
    assert_int_equal(app->stream_synchronize(stream), 0);
    app->get_stats(&before);
    call("begin");
    app->slow(20000);
    assert_int_equal(copy_by_client(wish), 0);
    ibx_session_close(pair.client);
    join_server();
    app->get_stats(&after);
    assert_int_equal(after.host_pins, before.host_pins - over_shm);
    assert_true(ibx_shared_free(wish.host));
}

/* A reset destroys the events after such copies, together with the copies and their stream. */
static void test_reset(void **state)
{
    (void)state;
    struct ibx_frontend_copy wish = lasting_copy(NULL);
    for (unsigned i = 0; i < 3; i++) {
        void *stream = new_stream();
        wish.stream = (uintptr_t)stream;
        pattern_fill(wish.host, LASTING, i);
        assert_int_equal(copy_by_client(wish), 0);
        assert_int_equal(app->stream_synchronize(stream), 0);
        assert_device(LASTING, i);
        call("cudaDeviceReset");
    }
    ibx_session_close(pair.client);
    join_server();
    assert_true(ibx_shared_free(wish.host));
}

/* ------------------------------------------------------------- another client's resets */

static struct session_pair second;

static void second_begin(void)
{
    session_pair_open(&second);
    assert_int_equal(ibx_device_copies_attach(second.server, &gpu, NULL), 0);
    session_pair_start(&second, serve, NULL);
}

static void second_end(void)
{
    ibx_session_close(second.client);
    session_pair_join(&second);
    session_pair_close(&second);
}

/* Sends a request that returns only the exit code. */
static void request(struct ibx_session *client, const char *name, const void *body, uint64_t n)
{
    uint8_t reply[20];
    assert_true(ibx_session_write(client, name, strlen(name) + 1) > 0);
    assert_int_equal(ibx_session_write(client, &n, sizeof(n)), sizeof(n));
    assert_int_equal(ibx_session_write(client, body, n), n);
    assert_int_equal(ibx_session_sync(client), 0);
    assert_int_equal(ibx_session_read(client, reply, sizeof(reply)), sizeof(reply));
}

/* If one of two clients resets what is its own, the events after a client's copies stay, because
 * the context stays. They are destroyed when the client leaves. */
static void test_one_of_two_clients_resets(void **state)
{
    (void)state;
    struct ibx_double_stats before, after;
    struct frame copy = to_device(pattern(LASTING, 1), LASTING);
    second_begin();
    app->get_stats(&before);
    expect_code("cudaMemcpy", &copy, 0);
    app->get_stats(&after);
    assert_true(after.events > before.events);
    request(second.client, "cudaDeviceReset", "", 0);
    request(pair.client, "cudaDeviceReset", "", 0);
    expect_code("cudaMemcpy", &copy, 0);
    ibx_session_close(pair.client);
    join_server();
    app->get_stats(&after);
    assert_int_equal(after.lost_events, before.lost_events);
    assert_int_equal(after.events, before.events);
    second_end();
}

/* Who ends a context, which one, and the handler's answer. */
struct lost_context {
    struct session_pair *whose;
    void *context;
    bool primary; /* the context of device 0, whose address is known later */
    int answer;
};
static struct lost_context lost_contexts[] = {
    {&second, &second, false, HANDLED},
    {&pair, &second, false, HANDLED},
    {&second, NULL, true, 201}, /* refused: nothing is destroyed */
    {&second, NULL, false, HANDLED},
};

/* A copy is left running, a client ends the context, and the next copy notices that. The first
 * copy is still waited for before its memory is unpinned. */
static void test_leave_while_a_context_goes(void **state)
{
    const struct lost_context *lost = *state;
    struct ibx_double_stats before, after;
    uint8_t few[100] = {0};
    void *context = lost->context;
    struct ibx_frontend_copy wish = lasting_copy(new_stream()),
                             other = {.to_device = true,
                                      .device = LASTING, /* not written by the first one */
                                      .host = few,
                                      .n = sizeof(few)};
    if (lost->primary)
        assert_int_equal(app->primary_retain(&context, 0), 0);
    second_begin();
    app->get_stats(&before);
    app->slow(100000);
    assert_int_equal(copy_by_client(wish), 0);
    handler_says = lost->answer;
    request(lost->whose->client, "cuCtxDestroy", &context, sizeof(context));
    handler_says = HANDLED;
    assert_int_equal(copy_by_client(other), 0);
    ibx_session_close(pair.client);
    join_server();
    app->get_stats(&after);
    assert_int_equal(after.busy_unpins, before.busy_unpins);
    assert_int_equal(after.lost_events, before.lost_events);
    assert_int_equal(after.events, before.events);
    second_end();
    assert_true(ibx_shared_free(wish.host));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_both, tear_down_both)
#define TEST_LOST(name, i)                                                                         \
    {                                                                                              \
        name, test_leave_while_a_context_goes, set_up_both, tear_down_both, &lost_contexts[i]      \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        /* Must run first: a process has one pool, which the other tests create. */
        cmocka_unit_test_setup_teardown(test_waits_only_for_its_own_copies, set_up_poor,
                                        tear_down_both),
        TEST(test_pageable),
        TEST(test_copies_from_application_memory),
        TEST(test_rows),
        TEST(test_copy_that_outlives_its_call),
        TEST(test_client_leaves),
        TEST(test_client_keeps_its_capture_mode),
        TEST(test_own_capture),
        TEST(test_reset),
        TEST(test_one_of_two_clients_resets),
        TEST_LOST("another's context goes", 0),
        TEST_LOST("the own context goes", 1),
        TEST_LOST("no context goes", 2),
        TEST_LOST("none is named", 3),
        TEST(test_client_leaves_while_it_captures),
    };
    over_shm = argc > 1 && !strcmp(argv[1], "shm");
    session_pair_use(argc > 1 ? argv[1] : "tcp", NULL, NULL, NULL);
    app = cuda_application();
    /* The first test needs memory that both ends map. */
    return _cmocka_run_group_tests("captures", tests + !over_shm,
                                   sizeof(tests) / sizeof(tests[0]) - !over_shm, NULL, NULL);
}
