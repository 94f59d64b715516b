/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Parts of long copies that are answered only when the GPU has the next part. */
#include "frontend-glue/client_copies/client_frame.h"
#include "tests/fixtures/copies_scene.h"
#include "tests/fixtures/patience.h"

#include "common/clock.h"

#include <dlfcn.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define PART    ((size_t)2 << 20)
#define PARTS   3u                /* IN_FLIGHT of client_stage.c */
#define LONG    ((size_t)9 << 20) /* five parts, from a client that has threads */
#define SLOW_US 20000u /* a copy takes this long if something must happen before it has ended */
#define INVALID 700    /* an illegal address */
#define GONE    709    /* its context was destroyed */
#define WAIT_MS patience_ms(60000)

/* ------------------------------------------------------------------------------ what is watched */

enum cut { CUT_DELAYED, CUT_ANSWERING, CUT_ANSWERED, CUTS };

static atomic_uint delays; /* delayed answers */
static atomic_ulong given; /* copies that the GPU had been given before the last delayed answer */
static atomic_bool waits;  /* after a delay the server waits before it looks for what comes next */
static atomic_uint
    cut_at; /* the delay or answer at which the server's connection breaks; 0: none */
static atomic_uint cut_when;
static atomic_bool was_cut;

static void cut(struct ibx_session *s, enum cut when)
{
    if (when != cut_when || delays != cut_at)
        return;
    ibx_abort(s->conn);
    was_cut = true;
}

static unsigned long begun(void)
{
    const struct ibx_double_stats now = cuda_stats();
    return now.copies_async + now.copies_sync;
}

void __real_ibx_session_delay(struct ibx_session *s);
void __wrap_ibx_session_delay(struct ibx_session *s);
int __real_ibx_session_sync_delayed(struct ibx_session *s);
int __wrap_ibx_session_sync_delayed(struct ibx_session *s);

void __wrap_ibx_session_delay(struct ibx_session *s)
{
    __real_ibx_session_delay(s);
    delays++;
    while (waits)
        sched_yield();
    cut(s, CUT_DELAYED);
}

int __wrap_ibx_session_sync_delayed(struct ibx_session *s)
{
    given = begun();
    cut(s, CUT_ANSWERING);
    const int rc = __real_ibx_session_sync_delayed(s);
    if (!rc)
        cut(s, CUT_ANSWERED);
    return rc;
}

/* ------------------------------------------------------------------------- the scene */

static uint8_t *memory; /* PARTS parts that both ends map */
static struct ibx_mr *mr;
static uint64_t far; /* LONG bytes of the device */
static atomic_bool go;
static atomic_int last_error; /* the runtime's last error in the back end's thread */

static void ask_runtime(void)
{
    int (*get)(void) = NULL;
    void *runtime = dlopen(getenv("IBX_TEST_CUDART"), RTLD_LAZY | RTLD_NOLOAD);
    *(void **)&get = runtime ? dlsym(runtime, "cudaGetLastError") : NULL;
    last_error = get ? get() : -1;
}

/* The back end is busy until everything that the test sends has arrived. */
static void handle(const char *name)
{
    while (!strcmp(name, "busy") && !go)
        sched_yield();
    if (!strcmp(name, "error"))
        ask_runtime();
}

static int begin(void **state)
{
    const unsigned both = IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE;
    struct ibx_error err = {0};
    on_request = handle;
    const int rc = set_up(state);
    ibx_session_set_threads(pair.client, 3);
    assert_int_equal(app->mem_alloc(&far, LONG), 0);
    memory = ibx_shared_allocate(PARTS * PART, &err);
    assert_non_null(memory);
    memset(memory, 0, PARTS * PART); /* so that all of it is there before it is pinned */
    const struct ibx_span span = ibx_span_host(memory, PARTS * PART);
    assert_int_equal(ibx_mr_register(pair.client->conn, &span, both, &mr, &err), 0);
    delays = cut_at = 0;
    go = false;
    return rc;
}

/* The back end copies up to a page without a chunk. */
static int begin_inline(void **state)
{
    struct ibx_choice choice = ibx_choice_default;
    choice.ways[IBX_CHOICE_FROM_DEVICE].inline_max = 4096;
    gpu.tuning = (struct ibx_tuning){.found = true, .choice = choice, .file = "a file"};
    ibx_tuning_machine_of(ibx_cuda_load(NULL), 0, &gpu.tuning.machine);
    const int rc = begin(state);
    gpu.tuning = (struct ibx_tuning){0};
    return rc;
}

static int begin_kept(void **state)
{
    session_keeps = 30;
    return begin(state);
}

static int end(void **state)
{
    app->hold(false);
    app->inject(NULL, 0, 0, false);
    handler_says = HANDLED;
    session_keeps = 0;
    if (ibx_session_live(pair.client))
        ibx_mr_deregister(mr);
    app->mem_free(far);
    ibx_session_close(pair.client);
    join_server();
    ibx_shared_free(memory);
    return tear_down(state);
}

static struct ibx_frontend_copy part(unsigned i)
{
    return (struct ibx_frontend_copy){
        .device = far + i * PART, .host = memory + i * PART, .n = PART};
}

/* Sends a part as client_stage.c does. */
static void send_part(unsigned i)
{
    const struct ibx_frontend_copy copy = part(i);
    struct ibx_remote remote;
    assert_int_equal(ibx_session_reserve(pair.client, CLIENT_FRAME), 0);
    assert_int_equal(ibx_mr_remote(mr, i * PART, PART, &remote), 0);
    assert_int_equal(ibx_session_settle(pair.client), 0);
    assert_int_equal(ibx_client_send_frame(pair.client, &copy, NULL, &remote), 0);
}

static int take_part(unsigned i)
{
    const struct ibx_frontend_copy copy = part(i);
    int code = -1;
    ibx_session_cts_expect(pair.client, copy.host, copy.n);
    assert_int_equal(ibx_client_take_reply(pair.client, &copy, NULL, &code), 0);
    ibx_session_cts_end(pair.client);
    return code;
}

/* Fills the part on the device; the client's memory has other bytes. */
static void fill(unsigned i, uint64_t seed)
{
    memset(memory + i * PART, 0, PART);
    assert_true(app->poke(far + i * PART, pattern(PART, seed), PART));
}

static void expect_part(unsigned i, uint64_t seed)
{
    assert_int_equal(take_part(i), 0);
    assert_int_equal(pattern_check(memory + i * PART, PART, seed), PART);
}

/* The server finds all parts at once. */
static void send_parts(unsigned count)
{
    const struct frame nothing = {0};
    go = false;
    send_frame("busy", &nothing);
    for (unsigned i = 0; i < count; i++)
        send_part(i);
}

static void let_go(void)
{
    go = true;
    assert_int_equal(receive_reply(NULL, 0), handler_says);
}

static void await_begun(unsigned long count)
{
    const uint64_t until = ibx_deadline_in_ms(WAIT_MS);
    while (begun() < count && ibx_now_ns() < until)
        sched_yield();
    assert_int_equal(begun(), count);
}

/* The GPU has both parts, and does not start yet. */
static void begin_two(void)
{
    const unsigned long before = begun();
    app->hold(true);
    send_parts(2);
    let_go();
    await_begun(before + 2);
}

/* ------------------------------------------------------------------------- the tests */

/* Each part is answered when all of its bytes are there, and the GPU has the next one before
 * that. */
static void test_next_part_starts_before_the_answer(void **state)
{
    (void)state;
    fill(0, 1);
    fill(1, 2);
    app->slow(SLOW_US);
    begin_two();
    app->hold(false);
    expect_part(0, 1);
    expect_part(1, 2);
    assert_int_equal(delays, 2);
}

/* The same if the next part arrives while the GPU copies the first. */
static void test_next_part_arrives_during_the_copy(void **state)
{
    (void)state;
    const uint64_t until = ibx_deadline_in_ms(WAIT_MS);
    const unsigned long before = begun();
    fill(0, 1);
    fill(1, 2);
    app->hold(true);
    waits = true;
    send_part(0);
    while (!delays && ibx_now_ns() < until)
        sched_yield();
    send_part(1);
    waits = false;
    await_begun(before + 2);
    app->hold(false);
    expect_part(0, 1);
    expect_part(1, 2);
}

/* Whatever follows, the reply of the part comes first. */
static void test_order(void **state)
{
    (void)state;
    static const size_t sizes[] = {4, 4096, 100000}; /* of copies that are not answered late */
    const struct frame nothing = {0};
    uint8_t *got = scene_memory(200000), *bytes = pattern(200000, 5);
    assert_true(app->poke(device, bytes, 200000));
    for (unsigned i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t n = sizes[i / 2], out = i % 2 ? 0 : n;
        const struct frame f = i % 2 ? to_device(bytes, n) : from_device(n);
        const unsigned long before = begun();
        fill(0, i);
        app->slow(SLOW_US / 4);
        send_parts(1);
        send_frame("cudaMemcpy", &f);
        let_go();
        expect_part(0, i);
        assert_true(!out || given == before + 1); /* it used no chunk meanwhile */
        memset(got, 0, n + 8);
        assert_int_equal(receive_reply(got, out ? out + 8 : 0), 0);
        assert_int_equal(pattern_check(got + 8, out, 5), out);
        app->slow(0);
    }
    fill(0, 7);
    send_parts(1);
    send_frame("cudaOther", &nothing);
    let_go();
    expect_part(0, 7);
    assert_int_equal(receive_reply(NULL, 0), HANDLED);
}

/* While a client captures, a copy ends before the next one begins. */
static void test_captures(void **state)
{
    (void)state;
    struct frame stream = {0};
    put_u64(&stream, 0);
    put_i32(&stream, 0);
    handler_says = 0;
    expect_code("cudaStreamBeginCapture", &stream, 0);
    fill(0, 4);
    send_part(0);
    expect_part(0, 4);
    assert_int_equal(delays, 0);
    expect_code("cudaStreamEndCapture", &stream, 0);
    send_part(0);
    expect_part(0, 4);
    assert_int_equal(delays, 1);
}

/* ------------------------------------------------------------------------- failures */

/* A copy breaks the context: this part and all later ones fail. */
static void test_failures(void **state)
{
    (void)state;
    const struct frame nothing = {0};
    assert_non_null(dlopen(getenv("IBX_TEST_CUDART"), RTLD_LAZY));
    for (unsigned fails = 0; fails < 2; fails++) {
        begin_two();
        app->inject("dma", 1 + fails, INVALID, true);
        app->hold(false);
        const int first = take_part(0), second = take_part(1);
        assert_true(first == INVALID || (fails && !first));
        assert_true(second == INVALID || second == HANDLED); /* it may not have an event yet */
        expect_code("error", &nothing, HANDLED);
        assert_int_equal(last_error, INVALID);
        app->inject(NULL, 0, 0, false);
        fill(0, fails);
        send_part(0);
        expect_part(0, fails);
    }
}

/* GVirtuS makes a copy that cannot be started, as before. The previous one is not affected. */
static void test_copy_that_cannot_start(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        fill(0, i);
        app->slow(SLOW_US / 4);
        /* The second copy fails, or the first of two events after it. */
        app->inject(i ? "cuEventRecord" : "cuMemcpyDtoHAsync", i ? 3 : 2, 1, false);
        send_parts(2);
        let_go();
        expect_part(0, i);
        assert_int_equal(take_part(1), HANDLED);
        app->inject(NULL, 0, 0, false);
        app->slow(0);
    }
}

/* If a context is destroyed its copies end, whichever client asks. */
static void test_destroyed_context(void **state)
{
    (void)state;
    struct ibx_staging *staging;
    struct ibx_staging_begun one, other;
    const struct ibx_cuda *cuda = ibx_cuda_load(NULL);
    const struct ibx_gpu_copy copy = {.device = far, .width = PART, .height = 1};
    assert_int_equal(app->host_register(memory, PARTS * PART, 0), 0);
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    assert_true(ibx_staging_may_begin(staging, &copy));
    assert_int_equal(ibx_staging_begin_straight(staging, memory, &copy, &one), 0);
    assert_true(ibx_staging_may_begin(staging, &copy));
    assert_int_equal(ibx_staging_begin_straight(staging, memory, &copy, &other), 0);
    assert_false(ibx_staging_may_begin(staging, &copy));
    assert_int_equal(ibx_staging_end_straight(staging, &one), 0);
    ibx_staging_drop_events(staging);
    assert_int_equal(ibx_staging_end_straight(staging, &other), GONE);
    assert_null(other.event);
    assert_true(ibx_staging_may_begin(staging, &copy));
    assert_int_equal(ibx_staging_begin_straight(staging, memory, &copy, &one), 0);
    assert_int_equal(ibx_staging_end_straight(staging, &one), 0);
    ibx_staging_destroy(staging);
    assert_int_equal(app->host_unregister(memory), 0);
}

/* ------------------------------------------------------------------------- broken links */

static void copy_long(uint64_t seed)
{
    uint8_t *host = scene_memory(LONG), *there = pattern(LONG, seed);
    const struct ibx_frontend_copy wish = {.device = far, .host = host, .n = LONG};
    int code = -1;
    assert_true(app->poke(far, there, LONG));
    assert_int_equal(ibx_client_copy(pair.client, &wish, &code), 0);
    assert_int_equal(code, 0);
    assert_int_equal(pattern_check(host, LONG, seed), LONG);
}

/* At each delayed answer the connection breaks: before the session waits, before the answer is
 * sent, and after it. */
static void test_server_connection_breaks(void **state)
{
    (void)state;
    copy_long(0);
    const unsigned all = delays;
    assert_true(all >= 4);
    for (unsigned i = 0; i < CUTS * all; i++) {
        cut_when = i % CUTS;
        delays = 0;
        cut_at = i / CUTS + 1;
        was_cut = false;
        copy_long(i + 1);
        const uint64_t until = ibx_deadline_in_ms(WAIT_MS); /* the answer may arrive before */
        while (!was_cut && ibx_now_ns() < until)
            sched_yield();
        assert_true(was_cut);
        cut_at = 0;
    }
    copy_long(0); /* so that the last break is noticed too */
    assert_int_equal(ibx_session_resumed(pair.client), CUTS * all);
}

/* The GPU continues when the client has reconnected. */
static void *go_on(void *argument)
{
    while (!ibx_link_has_offer(pair.server))
        sched_yield();
    app->hold(false);
    return argument;
}

/* The client's connection breaks while the GPU has both parts. */
static void test_client_connection_breaks(void **state)
{
    (void)state;
    pthread_t thread;
    fill(0, 1);
    fill(1, 2);
    begin_two();
    ibx_abort(pair.client->conn);
    assert_int_equal(pthread_create(&thread, NULL, go_on, NULL), 0);
    expect_part(0, 1);
    expect_part(1, 2);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(ibx_session_resumed(pair.client), 1);
}

/* The GPU's copies are waited for before the memory is unmapped. */
static void test_client_leaves(void **state)
{
    (void)state;
    app->slow(SLOW_US);
    begin_two();
    ibx_session_close(pair.client);
    app->hold(false);
    join_server(); /* so that tear_down() can check busy_unpins */
    assert_int_equal(seen().end, 0);
}

#define TEST(name, setup)                                                                          \
    {                                                                                              \
#name, name, setup, end, NULL                                                              \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_next_part_starts_before_the_answer, begin),
        TEST(test_next_part_arrives_during_the_copy, begin),
        TEST(test_order, begin_inline),
        TEST(test_captures, begin),
        TEST(test_failures, begin),
        TEST(test_copy_that_cannot_start, begin),
        TEST(test_destroyed_context, begin),
        TEST(test_server_connection_breaks, begin_kept),
        TEST(test_client_connection_breaks, begin_kept),
        TEST(test_client_leaves, begin),
    };
    session_pair_use("shm", NULL, NULL, NULL);
    app = cuda_application();
    return cmocka_run_group_tests_name("late", tests, NULL, NULL);
}
