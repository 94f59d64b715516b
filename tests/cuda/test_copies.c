/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A session whose server runs copies, against what GVirtuS's front ends do not do every day:
 * requests ahead, in pieces, and ends in the middle.
 *
 *   test_copies PROVIDER */
#include "tests/cuda/application.h"
#include "tests/unit/session_pair.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define DEVICE_BYTES ((size_t)8 << 20)
#define HANDLED      77 /* the exit code of what GVirtuS ran */
#define POOL         (8 * (size_t)IBX_PINNED_STRIDE)

static const struct cuda_calls *app;

static struct ibx_gpu_options gpu = {.mode = IBX_GPU_ON, .memory = POOL, .threads = 3};

/* What the back end saw. */
struct back_end {
    unsigned requests;
    char last_name[64];
    uint8_t last_body[64];
    size_t last_length;
    unsigned long by_crew; /* of the copies before that */
    int end;               /* of the session: what the last read returned */
};

static struct session_pair pair;
static struct back_end back_end;
static pthread_mutex_t back_end_lock = PTHREAD_MUTEX_INITIALIZER;
static bool joined, over_shm;
static uint64_t device;

static struct back_end seen(void)
{
    pthread_mutex_lock(&back_end_lock);
    struct back_end copy = back_end;
    pthread_mutex_unlock(&back_end_lock);
    return copy;
}

/* A request that GVirtuS runs, and the end of the session. */
static void note(const struct back_end *now)
{
    pthread_mutex_lock(&back_end_lock);
    back_end = *now;
    pthread_mutex_unlock(&back_end_lock);
}

/* As GVirtuS: names byte by byte; its answers carry seconds. */
static int serve(struct session_pair *p, void *argument)
{
    struct back_end now = {0}, *back = &now;
    (void)argument;
    cuda_application_use(0);
    for (;;) {
        size_t n = 0;
        ssize_t rc;
        uint64_t length;
        do
            rc = ibx_session_read(p->server, back->last_name + n, 1);
        while (rc == 1 && back->last_name[n++]);
        back->end = (int)rc;
        if (rc != 1)
            note(back);
        if (rc != 1 || ibx_session_read(p->server, &length, 8) != 8)
            return 0;
        uint8_t *body = malloc(length + 1);
        rc = ibx_session_read(p->server, body, length);
        back->last_length = length;
        memcpy(back->last_body, body, length < 64 ? length : 64);
        free(body);
        if (rc != (ssize_t)length)
            return 0;
        back->requests++;
        back->by_crew = p->server->copies.by_crew;
        note(back);
        if (!strcmp(back->last_name, "cudaDeviceReset"))
            app->primary_reset(0);
        const int32_t code = HANDLED;
        const uint8_t zeros[16] = {0};
        ibx_session_write(p->server, &code, 4);
        ibx_session_write(p->server, zeros, 8);
        ibx_session_write(p->server, zeros + 8, 8);
        ibx_session_sync(p->server);
    }
}

/* ------------------------------------------------------------------- the front end */

struct frame {
    uint8_t *bytes;
    size_t n;
};

static void put(struct frame *f, const void *bytes, size_t n)
{
    f->bytes = realloc(f->bytes, f->n + n);
    assert_non_null(f->bytes);
    memcpy(f->bytes + f->n, bytes, n);
    f->n += n;
}

static void put_u64(struct frame *f, uint64_t value)
{
    put(f, &value, 8);
}

static void put_i32(struct frame *f, int32_t value)
{
    put(f, &value, 4);
}

static struct frame to_device(const uint8_t *payload, size_t n)
{
    struct frame f = {0};
    put_u64(&f, device);
    put_u64(&f, n);
    put(&f, payload, n);
    put_u64(&f, n);
    put_i32(&f, 1);
    return f;
}

static struct frame from_device(size_t n)
{
    struct frame f = {0};
    put_u64(&f, 1);
    put(&f, "", 1);
    put_u64(&f, device);
    put_u64(&f, n);
    put_i32(&f, 2);
    return f;
}

static void send(const char *name, const struct frame *f)
{
    uint64_t length = f->n;
    assert_true(ibx_session_write(pair.client, name, strlen(name) + 1) > 0);
    assert_true(ibx_session_write(pair.client, &length, 8) == 8);
    if (f->n)
        assert_true(ibx_session_write(pair.client, f->bytes, f->n) > 0);
    assert_int_equal(ibx_session_sync(pair.client), 0);
}

/* The exit code, or -1 when the connection is gone; `out` is of out_length bytes, as the reply's.
 */
static int receive(void *out, size_t out_length)
{
    int32_t code;
    double seconds;
    uint64_t length;
    if (ibx_session_read(pair.client, &code, 4) != 4)
        return -1;
    assert_int_equal(ibx_session_read(pair.client, &seconds, 8), 8);
    assert_int_equal(ibx_session_read(pair.client, &length, 8), 8);
    assert_true(length == (code ? 0 : out_length));
    if (length && ibx_session_read(pair.client, out, length) != (ssize_t)length)
        return -1;
    return code;
}

/* The back end's thread has ended. */
static void join(void)
{
    if (!joined)
        session_pair_join(&pair);
    joined = true;
}

/* A pair whose server knows what replies look like here. */
static int set_up(void **state)
{
    (void)state;
    struct frame nothing = {0};
    cuda_application_use(0);
    assert_int_equal(app->mem_alloc(&device, DEVICE_BYTES), 0);
    session_pair_open(&pair);
    ibx_session_set_gpu(pair.server, &gpu);
    note(&(struct back_end){0});
    joined = false;
    session_pair_start(&pair, serve, NULL);
    send("first", &nothing);
    assert_int_equal(receive(NULL, 0), HANDLED);
    assert_int_equal(seen().requests, 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    struct ibx_double_stats stats;
    ibx_session_close(pair.client);
    join();
    session_pair_close(&pair);
    session_faults_server = NULL;
    app->inject(NULL, 0, 0, false);
    app->slow(0);
    app->mem_free(device);
    app->get_stats(&stats);
    return ibx_pinned_taken() || stats.unpinned_async || stats.lost_events;
}

static uint8_t *pattern(size_t n, uint64_t seed)
{
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    pattern_fill(bytes, n, seed);
    return bytes;
}

static void assert_device(size_t n, uint64_t seed)
{
    uint8_t *got = malloc(n);
    assert_true(app->peek(device, got, n));
    assert_int_equal(pattern_check(got, n, seed), n);
    free(got);
}

/* ------------------------------------------------------------------------- tests */

/* Several requests before the first reply: each is answered, in order, by whom it is for. */
static void test_ahead(void **state)
{
    (void)state;
    for (size_t n = 100; n < 3000000; n *= 31) {
        uint8_t *one = pattern(n, n), *two = pattern(n, n + 1);
        struct frame first = to_device(one, n), second = to_device(two, n), other = {0};
        unsigned before = seen().requests;
        put_u64(&other, 5);
        send("cudaMemcpy", &first);
        send("cudaOther", &other);
        send("cudaMemcpy", &second);
        assert_int_equal(receive(NULL, 0), 0);
        assert_int_equal(receive(NULL, 0), HANDLED);
        assert_int_equal(receive(NULL, 0), 0);
        assert_int_equal(seen().requests, before + 1);
        assert_string_equal(seen().last_name, "cudaOther");
        assert_device(n, n + 1);
        free(one);
        free(two);
        free(first.bytes);
        free(second.bytes);
        free(other.bytes);
    }
}

/* A request in messages that end anywhere: run by us or by GVirtuS, but whole. */
static void test_pieces(void **state)
{
    (void)state;
    uint8_t *payload = pattern(3000, 4);
    struct frame body = to_device(payload, 3000), all = {0};
    put(&all, "cudaMemcpy", 11);
    put_u64(&all, body.n);
    put(&all, body.bytes, body.n);
    const size_t cuts[] = {1, 5, 10, 11, 12, 18, 19, 20, 34, 35, 36, 1500, 3034, 3035, all.n - 1};
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        unsigned before = seen().requests;
        assert_true(app->poke(device, "garbage", 8));
        assert_true(ibx_session_write(pair.client, all.bytes, cuts[i]) > 0);
        assert_int_equal(ibx_session_sync(pair.client), 0);
        assert_true(ibx_session_write(pair.client, all.bytes + cuts[i], all.n - cuts[i]) > 0);
        assert_int_equal(ibx_session_sync(pair.client), 0);
        int code = receive(NULL, 0);
        if (cuts[i] < 19) { /* name and length in two messages */
            assert_int_equal(code, HANDLED);
            assert_int_equal(seen().requests, before + 1);
            assert_string_equal(seen().last_name, "cudaMemcpy");
            assert_int_equal(seen().last_length, body.n);
            assert_memory_equal(seen().last_body, body.bytes, 64);
        } else {
            assert_int_equal(code, 0);
            assert_int_equal(seen().requests, before);
            assert_device(3000, 4);
        }
    }
    free(payload);
    free(body.bytes);
    free(all.bytes);
}

/* The first n bytes of the payload of `f` as a write of their own: exposed, if it is long enough.
 */
static void send_apart(const char *name, const struct frame *f, size_t n)
{
    uint64_t length = f->n;
    size_t tail = f->n - 16 - n;
    assert_true(ibx_session_write(pair.client, name, strlen(name) + 1) > 0);
    assert_true(ibx_session_write(pair.client, &length, 8) == 8);
    assert_true(ibx_session_write(pair.client, f->bytes, 16) == 16);
    assert_true(ibx_session_write(pair.client, f->bytes + 16, n) == (ssize_t)n);
    assert_true(ibx_session_write(pair.client, f->bytes + 16 + n, tail) == (ssize_t)tail);
}

/* The body's ends inline and its payload exposed, with more behind it in the same message. */
static void test_payload_apart(void **state)
{
    (void)state;
    for (size_t n = 100000; n <= DEVICE_BYTES; n = n * 3 + 1) {
        uint8_t *bytes = pattern(n, n);
        struct frame good = to_device(bytes, n), bad = to_device(bytes, n), other = {0};
        unsigned before = seen().requests;
        bad.bytes[8]++; /* more than is there */
        put_u64(&other, 5);
        send_apart("cudaMemcpy", &good, n);
        send("cudaOther", &other);
        assert_int_equal(receive(NULL, 0), 0);
        assert_device(n, n);
        assert_int_equal(receive(NULL, 0), HANDLED);
        assert_int_equal(seen().requests, before + 1);
        assert_string_equal(seen().last_name, "cudaOther");
        send_apart("cudaMemcpy", &bad, n);
        assert_int_equal(ibx_session_sync(pair.client), 0);
        assert_int_equal(receive(NULL, 0), HANDLED);
        assert_int_equal(seen().requests, before + 2);
        assert_int_equal(seen().last_length, bad.n);
        assert_memory_equal(seen().last_body, bad.bytes, 64);
        send_apart("cudaMemcpy", &good, n - 1); /* and the last byte with the tail */
        assert_int_equal(ibx_session_sync(pair.client), 0);
        assert_int_equal(receive(NULL, 0), n > pair.rendezvous ? HANDLED : 0);
        free(bytes);
        free(good.bytes);
        free(bad.bytes);
        free(other.bytes);
    }
}

/* Memory of the client's that both ends have mapped: the GPU uses it in place. */
static void test_in_place(void **state)
{
    (void)state;
    struct ibx_mr *mr;
    struct ibx_double_stats before, after;
    unsigned both = IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE;
    for (unsigned round = 0; round < 5; round++) {
        /* Each time at the same place, but of the connection's region it is other memory. */
        bool process = round > 2;
        assert_int_equal(ibx_mr_allocate(pair.client->conn, 3 << 20, both, &mr, NULL), 0);
        uint8_t *memory = process ? ibx_shared_allocate(3 << 20, NULL) : ibx_mr_address(mr);
        assert_non_null(memory);
        uint8_t *bytes = memory + 4096 + 64, head[8];
        const size_t n = 2000001;
        pattern_fill(bytes, n, round);
        struct frame request = to_device(bytes, n), back = from_device(n);
        app->get_stats(&before);
        for (unsigned i = 0; i < 2; i++) {
            uint64_t length = request.n;
            assert_true(ibx_session_write(pair.client, "cudaMemcpy", 11) > 0);
            assert_true(ibx_session_write(pair.client, &length, 8) == 8);
            assert_true(ibx_session_write(pair.client, request.bytes, 16) == 16);
            assert_true(ibx_session_write(pair.client, bytes, n) == (ssize_t)n);
            assert_true(ibx_session_write(pair.client, request.bytes + 16 + n, 12) == 12);
            assert_int_equal(ibx_session_sync(pair.client), 0);
            assert_int_equal(receive(NULL, 0), 0);
        }
        app->get_stats(&after);
        assert_device(n, round);
        if (over_shm) {
            assert_int_equal(after.copies_async, before.copies_async + 2);
            assert_int_equal(after.host_pinned, before.host_pinned + (round < 4));
        }
        /* Back again: the first time a chunk comes in front, then nothing but the copy. */
        for (unsigned i = 0; i < 3; i++) {
            memset(bytes, 0, n);
            app->get_stats(&before);
            send("cudaMemcpy", &back);
            int32_t code;
            uint64_t numbers[2];
            assert_int_equal(ibx_session_read(pair.client, &code, 4), 4);
            assert_int_equal(code, 0);
            assert_int_equal(ibx_session_read(pair.client, numbers, 16), 16);
            assert_int_equal(ibx_session_read(pair.client, head, 8), 8);
            assert_int_equal(ibx_session_read(pair.client, bytes, n), n);
            assert_int_equal(pattern_check(bytes, n, round), n);
            app->get_stats(&after);
            if (over_shm && i)
                assert_int_equal(after.copies_async, before.copies_async + 2);
        }
        ibx_mr_deregister(mr);
        if (process)
            assert_true(ibx_shared_free(memory));
        free(request.bytes);
        free(back.bytes);
    }
    assert_int_equal(seen().requests, 1);
    ibx_session_close(pair.client);
    join();
    app->get_stats(&after);
    assert_true(after.host_pins <= 1); /* the pool */
}

/* Long copies of memory that only one process has: by several threads where the kernel reaches it.
 */
static void test_by_crew(void **state)
{
    (void)state;
    struct frame other = {0};
    unsigned long copies = 0;
    put_u64(&other, 5);
    for (size_t n = (2 << 20) - 1; n <= DEVICE_BYTES; n = n * 3 / 2 + 1) {
        uint8_t *bytes = pattern(n, n), *out = malloc(n + 8);
        struct frame request = to_device(bytes, n), back = from_device(n);
        send("cudaMemcpy", &request);
        assert_int_equal(receive(NULL, 0), 0);
        assert_device(n, n);
        send_apart("cudaMemcpy", &request, n);
        assert_int_equal(ibx_session_sync(pair.client), 0);
        assert_int_equal(receive(NULL, 0), 0);
        assert_device(n, n);
        send("cudaMemcpy", &back);
        assert_int_equal(receive(out, n + 8), 0);
        assert_memory_equal(out + 8, bytes, n);
        send("cudaOther", &other);
        assert_int_equal(receive(NULL, 0), HANDLED);
        copies += over_shm && n >= 2 << 20 ? 3 : 0;
        assert_int_equal(seen().by_crew, copies);
        free(bytes);
        free(out);
        free(request.bytes);
        free(back.bytes);
    }
    free(other.bytes);
}

static void test_from_device(void **state)
{
    (void)state;
    uint8_t *bytes = pattern(DEVICE_BYTES, 6), *out = malloc(DEVICE_BYTES + 8);
    assert_true(app->poke(device, bytes, DEVICE_BYTES));
    app->slow(300);
    for (size_t n = 1; n <= DEVICE_BYTES; n = n * 2 + n / 3) {
        struct frame request = from_device(n);
        send("cudaMemcpy", &request);
        assert_int_equal(receive(out, n + 8), 0);
        assert_memory_equal(out, &(uint64_t){n}, 8);
        assert_memory_equal(out + 8, bytes, n);
        free(request.bytes);
    }
    assert_int_equal(seen().requests, 1);
    free(bytes);
    free(out);
}

/* A READ that fails ends this session, and nothing else. */
static void test_read_fails(void **state)
{
    (void)state;
    uint8_t *payload = pattern(4000000, 9);
    struct frame request = to_device(payload, 4000000);
    session_faults_server->fail_in = 5;
    send("cudaMemcpy", &request);
    assert_int_equal(receive(NULL, 0), -1);
    join();
    assert_int_equal(seen().requests, 1);
    assert_true(seen().end < 0);
    expect_reason(pair.server);
    assert_int_equal(ibx_pinned_taken(), 0);
    free(payload);
    free(request.bytes);
}

/* The GPU fails when half of the reply is with the client: no success is ever told. */
static void test_gpu_fails_in_reply(void **state)
{
    (void)state;
    uint8_t *out = malloc(DEVICE_BYTES);
    struct frame request = from_device(DEVICE_BYTES - 8);
    app->inject("dma", 12, 700, true);
    send("cudaMemcpy", &request);
    assert_int_equal(receive(out, DEVICE_BYTES), -1);
    join();
    assert_int_equal(seen().requests, 1);
    assert_non_null(strstr(ibx_session_reason(pair.server), "ILLEGAL_ADDRESS"));
    assert_int_equal(ibx_pinned_taken(), 0);
    app->inject(NULL, 0, 0, false);
    free(request.bytes);
    free(out);
}

/* The client leaves with a request half sent ... */
static void test_client_leaves_early(void **state)
{
    (void)state;
    uint8_t *payload = pattern(2000, 3);
    struct frame request = to_device(payload, 2000);
    uint64_t length = request.n;
    assert_int_equal(ibx_session_write(pair.client, "cudaMemcpy", 11), 11);
    assert_int_equal(ibx_session_write(pair.client, &length, 8), 8);
    assert_int_equal(ibx_session_write(pair.client, request.bytes, 1000), 1000);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    ibx_session_close(pair.client);
    join();
    assert_int_equal(seen().requests, 1);
    assert_int_equal(seen().end, 0); /* between requests, as far as GVirtuS knows */
    free(payload);
    free(request.bytes);
}

/* ... or a result not taken. */
static void test_client_leaves_late(void **state)
{
    (void)state;
    struct frame request = from_device(DEVICE_BYTES);
    send("cudaMemcpy", &request);
    int32_t code;
    assert_int_equal(ibx_session_read(pair.client, &code, 4), 4);
    ibx_session_close(pair.client);
    join();
    assert_int_equal(seen().requests, 1);
    assert_int_equal(ibx_pinned_taken(), 0);
    free(request.bytes);
}

/* An application's last call is often a reset, which takes our events with it. Some do not wait for
 * the answer. */
static void test_reset_and_end(void **state)
{
    (void)state;
    uint8_t *payload = pattern(3000000, 5);
    struct frame request = to_device(payload, 3000000), nothing = {0};
    send("cudaMemcpy", &request);
    assert_int_equal(receive(NULL, 0), 0);
    send("cudaDeviceReset", &nothing);
    assert_int_equal(receive(NULL, 0), HANDLED);
    ibx_session_close(pair.client);
    join();
    free(payload);
    free(request.bytes);
}

static void test_reset_and_leave(void **state)
{
    (void)state;
    uint8_t *payload = pattern(3000000, 7);
    struct frame request = to_device(payload, 3000000), nothing = {0};
    send("cudaMemcpy", &request);
    assert_int_equal(receive(NULL, 0), 0);
    send("cudaDeviceReset", &nothing);
    ibx_session_close(pair.client);
    join();
    free(payload);
    free(request.bytes);
}

/* A body that goes on behind a copy in pieces has not been read when the copy is answered, and no
 * FLUSHED may say so. */
static void test_flush_before_all_is_read(void **state)
{
    (void)state;
    struct session_pair by_hand;
    struct ibx_conn *client = session_pair_open_bare_client(&by_hand);
    ibx_session_set_gpu(by_hand.server, &gpu);
    session_pair_start(&by_hand, serve, NULL);
    uint8_t bytes[128] = {1, 1, 14, 0, 0, 0, 'f', 'i', 'r', 's', 't'};
    say(client, bytes, 20);
    assert_true(hear(client, bytes, sizeof(bytes)) > 5);

    struct frame body = from_device(DEVICE_BYTES), all = {0};
    put(&all, "cudaMemcpy", 11);
    put_u64(&all, body.n);
    put(&all, body.bytes, body.n);
    struct ibx_mr *mr;
    struct ibx_remote rest;
    assert_int_equal(ibx_mr_allocate(client, 19, IBX_ACCESS_REMOTE_READ, &mr, NULL), 0);
    assert_int_equal(ibx_mr_remote(mr, 0, 19, &rest), 0);
    memcpy(ibx_mr_address(mr), all.bytes + all.n - 9, 9);
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_put_u16(&w, 0x0101);
    ibx_put_u32(&w, (uint32_t)all.n - 9);
    ibx_put_bytes(&w, all.bytes, all.n - 9);
    ibx_put_u8(&w, 2);
    ibx_remote_put(&w, &rest);
    say(client, bytes, w.length);
    assert_true(hear(client, bytes, sizeof(bytes)) > 5); /* there is a body to grant memory for */
    say(client, "\4", 1);
    expect_closed(client);
    session_pair_join(&by_hand);
    assert_non_null(strstr(ibx_session_reason(by_hand.server), "ahead of long replies"));
    ibx_close(client);
    session_pair_close(&by_hand);
    free(body.bytes);
    free(all.bytes);
}

static struct ibx_faults faults;

static int set_up_faulty(void **state)
{
    faults = (struct ibx_faults){0};
    session_faults_server = &faults;
    return set_up(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_ahead),
        TEST(test_pieces),
        TEST(test_payload_apart),
        TEST(test_in_place),
        TEST(test_by_crew),
        TEST(test_from_device),
        cmocka_unit_test_setup_teardown(test_read_fails, set_up_faulty, tear_down),
        TEST(test_gpu_fails_in_reply),
        TEST(test_client_leaves_early),
        TEST(test_client_leaves_late),
        TEST(test_reset_and_end),
        TEST(test_reset_and_leave),
        TEST(test_flush_before_all_is_read),
    };
    session_pair_use(argc > 1 ? argv[1] : "tcp", NULL, NULL, NULL);
    over_shm = argc > 1 && !strcmp(argv[1], "shm");
    app = cuda_application();
    return cmocka_run_group_tests_name("copies", tests, NULL, NULL);
}
