/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A session whose server runs copies, and requests that GVirtuS's front ends rarely make:
 * requests ahead of replies, in pieces, and sessions that end in the middle.
 *
 *   test_copies PROVIDER */
#include "tests/fixtures/copies_scene.h"

#include "common/clock.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static bool over_shm;

/* ------------------------------------------------------------------------- tests */

/* Several requests are sent before the first reply. Each is answered in order, by ibx or by
 * GVirtuS. */
static void test_requests_ahead_of_replies(void **state)
{
    (void)state;
    for (size_t n = 100; n < 3000000; n *= 31) {
        uint8_t *one = pattern(n, n), *two = pattern(n, n + 1);
        struct frame first = to_device(one, n), second = to_device(two, n), other = {0};
        unsigned before = seen().requests;
        put_u64(&other, 5);
        send_frame("cudaMemcpy", &first);
        send_frame("cudaOther", &other);
        expect_code("cudaMemcpy", &second, 0);
        assert_int_equal(receive_reply(NULL, 0), HANDLED);
        assert_int_equal(receive_reply(NULL, 0), 0);
        assert_int_equal(seen().requests, before + 1);
        assert_string_equal(seen().last_name, "cudaOther");
        assert_device(n, n + 1);
    }
}

/* A request in messages that end at any byte is run as a whole, by ibx or by GVirtuS. */
static void test_requests_in_pieces(void **state)
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
        int code = receive_reply(NULL, 0);
        if (cuts[i] < 19) { /* name and length are in two messages */
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
}

/* The body ends inline and its payload is exposed; more follows in the same message. */
static void test_exposed_payload(void **state)
{
    (void)state;
    for (size_t n = 100000; n <= DEVICE_BYTES; n = n * 3 + 1) {
        uint8_t *bytes = pattern(n, n);
        struct frame good = to_device(bytes, n), bad = to_device(bytes, n), other = {0};
        unsigned before = seen().requests;
        bad.bytes[8]++; /* more than there is */
        put_u64(&other, 5);
        send_apart("cudaMemcpy", &good, n);
        expect_code("cudaOther", &other, 0);
        assert_device(n, n);
        assert_int_equal(receive_reply(NULL, 0), HANDLED);
        assert_int_equal(seen().requests, before + 1);
        assert_string_equal(seen().last_name, "cudaOther");
        expect_apart("cudaMemcpy", &bad, n, HANDLED);
        assert_int_equal(seen().requests, before + 2);
        assert_int_equal(seen().last_length, bad.n);
        assert_memory_equal(seen().last_body, bad.bytes, 64);
        /* The last byte of the payload is inline as well. */
        expect_apart("cudaMemcpy", &good, n - 1, n > pair.rendezvous ? HANDLED : 0);
    }
}

/* The GPU uses a client's memory in place if both ends map it. */
static void test_in_place(void **state)
{
    (void)state;
    struct ibx_mr *mr;
    struct ibx_double_stats before, after;
    unsigned both = IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE;
    for (unsigned round = 0; round < 5; round++) {
        /* Always at the same address; if the memory is the connection's region, it is new memory
         * each time. */
        bool process = round > 2;
        assert_int_equal(ibx_mr_allocate(pair.client->conn, 3 << 20, both, &mr, NULL), 0);
        uint8_t *memory = process ? ibx_shared_allocate(3 << 20, NULL) : ibx_mr_address(mr);
        assert_non_null(memory);
        memset(memory, 1, 3 << 20);
        uint8_t *bytes = memory + 4096 + 64, head[8];
        const size_t n = 2000001;
        pattern_fill(bytes, n, round);
        struct frame request = to_device(bytes, n), back = from_device(n);
        app->get_stats(&before);
        for (unsigned i = 0; i < 2; i++) {
            send_payload("cudaMemcpy", &request, bytes, n);
            assert_int_equal(ibx_session_sync(pair.client), 0);
            assert_int_equal(receive_reply(NULL, 0), 0);
        }
        app->get_stats(&after);
        assert_device(n, round);
        if (over_shm) {
            assert_int_equal(after.copies_sync, before.copies_sync + 2);
            assert_int_equal(after.copies_async, before.copies_async);
            assert_int_equal(after.host_pinned, before.host_pinned + (round < 4));
        }
        /* Back to the client: the first copy uses a chunk at first, the others are only the
         * copy. */
        for (unsigned i = 0; i < 3; i++) {
            memset(bytes, 0, n);
            app->get_stats(&before);
            send_frame("cudaMemcpy", &back);
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
    }
    assert_int_equal(seen().requests, 1);
    ibx_session_close(pair.client);
    join_server();
    app->get_stats(&after);
    assert_true(after.host_pins <= 1); /* the pool */
}

/* Memory that a client copies to the device is sent from its place, whatever its length. */
static void test_sent_in_place(void **state)
{
    (void)state;
    static const size_t sizes[] = {4096, 65536, 131000, 131073, 262144, 600000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t n = sizes[i], room = pair.client->caps->message_max;
        uint8_t *bytes = pattern(n, i);
        struct ibx_frontend_copy wish = {.to_device = true, .host = bytes, .n = n, .whole = true};
        assert_int_equal(copy_by_client(wish), 0);
        assert_device(n, i);
        assert_null(memmem(pair.client->out.bytes, room, bytes + n - 100, 64));
    }
    assert_int_equal(seen().requests, 1);
}

/* The largest part of a copy there and back that the GPU was given at once while `other` copies
 * too. `slowest_ns`: the longer time of the two copies. */
static unsigned long parts_beside(struct ibx_turn *other, uint8_t *bytes, size_t n,
                                  uint64_t *slowest_ns)
{
    struct ibx_double_stats before, after;
    struct frame request = to_device(bytes, n), back = from_device(n);
    uint8_t *head = scene_memory(8 + n);
    app->get_stats(&before);
    const uint64_t there = ibx_now_ns();
    ibx_turn_take(other, 1);
    send_payload("cudaMemcpy", &request, bytes, n);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    assert_int_equal(receive_reply(NULL, 0), 0);
    const uint64_t back_again = ibx_now_ns();
    ibx_turn_take(other, 1);
    expect_out("cudaMemcpy", &back, head, 8 + n, 0);
    const uint64_t end = ibx_now_ns(), first = back_again - there, second = end - back_again;
    *slowest_ns = first > second ? first : second;
    assert_int_equal(pattern_check(head + 8, n, 3), n);
    app->get_stats(&after);
    return after.copies_async - before.copies_async;
}

/* While another session copies, a long copy is given to the GPU in short pieces. */
static void test_beside_another(void **state)
{
    (void)state;
    const size_t n = 3 << 20;
    const unsigned long pieces = 2 * (n / IBX_TURN_PIECE);
    struct ibx_turn other;
    uint64_t took;
    uint8_t *bytes = ibx_shared_allocate(n, NULL);
    assert_non_null(bytes);
    pattern_fill(bytes, n, 3);
    ibx_turn_join(&other, NULL, 100);
    ibx_turn_leave(&other); /* a session that has left does not count */
    assert_true(parts_beside(&other, bytes, n, &took) < pieces);
    ibx_turn_join(&other, NULL, 100);
    unsigned long parts = 0;
    /* on a busy machine `other` may count as gone before the copy has started */
    bool in_time = false;
    for (unsigned tries = 0; tries < 20 && parts < pieces; tries++) {
        parts = parts_beside(&other, bytes, n, &took);
        in_time |= took < IBX_TURN_BUSY_NS;
    }
    assert_true(parts >= pieces || !in_time);
    ibx_turn_leave(&other);
    assert_true(parts_beside(&other, bytes, n, &took) < pieces);
    assert_true(ibx_shared_free(bytes));
}

/* Long copies of memory that only one process maps are made by several threads, if the kernel
 * allows access to it. */
static void test_by_threads(void **state)
{
    (void)state;
    struct frame other = {0};
    unsigned long copies = 0;
    put_u64(&other, 5);
    for (size_t n = (2 << 20) - 1; n <= DEVICE_BYTES; n = n * 3 / 2 + 1) {
        uint8_t *bytes = pattern(n, n), *out = scene_memory(n + 8);
        struct frame request = to_device(bytes, n), back = from_device(n);
        expect_code("cudaMemcpy", &request, 0);
        assert_device(n, n);
        expect_apart("cudaMemcpy", &request, n, 0);
        assert_device(n, n);
        expect_out("cudaMemcpy", &back, out, n + 8, 0);
        assert_memory_equal(out + 8, bytes, n);
        expect_code("cudaOther", &other, HANDLED);
        copies += over_shm ? (n >= 4 << 20 ? 3 : 1) : 0;
        assert_int_equal(seen().copies.copy_threads, copies);
    }
}

#define PARTS_OUT 3 /* parts of one copy without an answer: IN_FLIGHT of client_stage.c */

/* The payload of a reply goes to the memory that the request named. If that fails, GVirtuS gets
 * the reply. */
static void test_early_cts(void **state)
{
    (void)state;
    uint8_t *bytes = pattern(DEVICE_BYTES, 8), *out = scene_memory(DEVICE_BYTES);
    assert_true(app->poke(device, bytes, DEVICE_BYTES));
    const size_t sizes[] = {pair.rendezvous, pair.rendezvous + 1, 777777, 6000001};
    unsigned requests = 1;
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        int code = -1;
        struct ibx_frontend_copy copy = {
            .async = i % 2, .device = device + i, .host = out, .n = sizes[i]};
        memset(out, 0, DEVICE_BYTES);
        assert_int_equal(ibx_client_copy(pair.client, &copy, &code), 0);
        assert_int_equal(code, 0);
        assert_memory_equal(out, bytes + i, sizes[i]);
        assert_int_equal(out[sizes[i]], 0);
        assert_int_equal(seen().requests, requests);
        app->inject("dma", i == 3 ? 4 : 1, 700, true);
        assert_int_equal(ibx_client_copy(pair.client, &copy, &code), 0);
        app->inject(NULL, 0, 0, false);
        assert_int_equal(code, HANDLED);
        assert_in_range(seen().requests, requests + 1, requests + (over_shm ? PARTS_OUT : 1));
        requests = seen().requests;
    }
}

/* The client names memory that it does not have, or has not exposed for writing. */
static void test_early_cts_for_unexposed_memory(void **state)
{
    (void)state;
    struct ibx_mr *mr;
    struct ibx_remote remote = {.address = 4096, .length = 1000000, .keys = {77}};
    uint8_t segment[1 + IBX_REMOTE_BYTES] = {SEGMENT_EARLY_CTS};
    struct frame back = from_device(remote.length);
    if (over_shm) {
        assert_int_equal(
            ibx_mr_allocate(pair.client->conn, remote.length, IBX_ACCESS_REMOTE_READ, &mr, NULL),
            0);
        assert_int_equal(ibx_mr_remote(mr, 0, remote.length, &remote), 0);
    }
    struct ibx_writer w = ibx_writer_of(segment + 1, IBX_REMOTE_BYTES);
    ibx_remote_put(&w, &remote);
    assert_int_equal(ibx_session_add_segment(pair.client, segment, sizeof(segment)), 0);
    expect_code("cudaMemcpy", &back, -1);
    join_server();
    assert_int_equal(seen().end, -EACCES);
}

static void test_from_device(void **state)
{
    (void)state;
    uint8_t *bytes = pattern(DEVICE_BYTES, 6), *out = scene_memory(DEVICE_BYTES + 8);
    assert_true(app->poke(device, bytes, DEVICE_BYTES));
    app->slow(300);
    for (size_t n = 1; n <= DEVICE_BYTES; n = n * 2 + n / 3) {
        struct frame request = from_device(n);
        expect_out("cudaMemcpy", &request, out, n + 8, 0);
        assert_memory_equal(out, &(uint64_t){n}, 8);
        assert_memory_equal(out + 8, bytes, n);
    }
    assert_int_equal(seen().requests, 1);
}

/* A copy in a stream that is being captured becomes part of a graph, so GVirtuS runs it; also in
 * the per-thread stream (2). */
static void test_captured(void **state)
{
    (void)state;
    uint8_t *bytes = pattern(300000, 3);
    void *own;
    cuda_application_use(0);
    assert_int_equal(app->stream_create(&own, 0), 0);
    void *const streams[] = {own, (void *)2};
    for (unsigned i = 0; i < 4; i++) {
        bool captured = i < 2;
        void *stream = streams[i % 2];
        struct frame request = to_device(bytes, i % 2 ? 300000 : 100), back = from_device(100);
        unsigned before = seen().requests;
        put_u64(&request, (uintptr_t)stream);
        put_u64(&back, (uintptr_t)stream);
        app->capture(captured ? stream : NULL);
        expect_code("cudaMemcpyAsync", &request, captured ? HANDLED : 0);
        uint8_t out[108];
        expect_out("cudaMemcpyAsync", &back, out, sizeof(out), captured ? HANDLED : 0);
        assert_int_equal(seen().requests, before + (captured ? 2 : 0));
    }
}

/* The back end uses memory again when the events after its copies have completed. Such an event
 * cannot be recorded in a stream of another device, in which CUDA copies too. A copy there has
 * therefore ended when it is answered; others have not, if the GPU reaches the memory, or its bytes
 * were taken. */
static void test_stream_of_another_device(void **state)
{
    (void)state;
    void *streams[2];
    for (int i = 1; i >= 0; i--) {
        cuda_application_use(i);
        assert_int_equal(app->stream_create(&streams[i], 0), 0);
    }
    uint8_t *memory = over_shm ? ibx_shared_allocate(65536, NULL) : pattern(65536, 1);
    assert_non_null(memory);
    app->slow(100000);
    for (int i = 0; i < 4; i++) {
        int code = -1;
        void *stream = streams[i % 2];
        struct ibx_frontend_copy copy = {.to_device = i / 2,
                                         .async = true,
                                         .device = device,
                                         .host = memory,
                                         .n = 65536,
                                         .stream = (uintptr_t)stream,
                                         .lasting = true};
        bool early = i % 2 == 0 && (over_shm || copy.to_device);
        pattern_fill(memory, 65536, (unsigned)i);
        app->hold(early);
        assert_int_equal(ibx_client_copy(pair.client, &copy, &code), 0);
        assert_int_equal(code, 0);
        assert_int_equal(app->stream_query(stream), early ? IBX_CUDA_NOT_READY : 0);
        app->hold(false);
        assert_int_equal(app->stream_synchronize(stream), 0);
    }
    assert_device(65536, 3);
    app->slow(0);
    if (over_shm)
        assert_true(ibx_shared_free(memory));
}

static uint8_t few[4] = {1, 2, 3, 4};

static void copy_few(void *host)
{
    const struct ibx_frontend_copy copy = {.async = true,
                                           .device = device,
                                           .host = host,
                                           .n = 4,
                                           .stream = (uintptr_t)IBX_CUDA_STREAM_LEGACY,
                                           .lasting = true};
    int code = -1;
    memset(host, 0, 4);
    assert_int_equal(ibx_client_copy(pair.client, &copy, &code), 0);
    assert_int_equal(code, 0);
    assert_int_equal(app->stream_synchronize(IBX_CUDA_STREAM_LEGACY), 0);
    assert_memory_equal(host, few, 4);
}

/* Few bytes are left to the GPU as long as it reaches the memory, and otherwise in one of 64
 * copies.
 */
static void test_few_bytes(void **state)
{
    (void)state;
    uint8_t *shared = over_shm ? ibx_shared_allocate(4096, NULL) : NULL;
    uint8_t *own = pattern(4096, 1);
    if (!over_shm)
        return;
    assert_non_null(shared);
    const struct ibx_frontend_copy there = {
        .to_device = true, .device = device, .host = few, .n = sizeof(few)};
    int code = -1;
    assert_int_equal(ibx_client_copy(pair.client, &there, &code), 0);
    assert_int_equal(code, 0);
    copy_few(shared);
    assert_true(ibx_client_leaves(pair.client, 4));
    for (int i = 0; i < 130; i++) {
        copy_few(own);
        assert_int_equal(ibx_client_leaves(pair.client, 4), i % 64 == 63);
        assert_true(ibx_client_leaves(pair.client, 128));
    }
    assert_true(ibx_shared_free(shared));
}

/* A READ that fails ends this session and no other. */
static void test_read_fails(void **state)
{
    (void)state;
    uint8_t *payload = pattern(4000000, 9);
    struct frame request = to_device(payload, 4000000);
    session_faults_server->fail_in = 5;
    expect_code("cudaMemcpy", &request, -1);
    join_server();
    assert_int_equal(seen().requests, 1);
    assert_true(seen().end < 0);
    expect_reason(pair.server);
    assert_int_equal(ibx_pinned_taken(), 0);
}

/* The GPU fails when half of the reply has been sent. The client must not see a success. */
static void test_gpu_fails_in_reply(void **state)
{
    (void)state;
    uint8_t *out = scene_memory(DEVICE_BYTES);
    struct frame request = from_device(DEVICE_BYTES - 8);
    app->inject("dma", 12, 700, true);
    expect_out("cudaMemcpy", &request, out, DEVICE_BYTES, -1);
    join_server();
    assert_int_equal(seen().requests, 1);
    assert_non_null(strstr(ibx_session_reason(pair.server), "ILLEGAL_ADDRESS"));
    assert_int_equal(ibx_pinned_taken(), 0);
    app->inject(NULL, 0, 0, false);
}

/* The client leaves with half of a request sent. */
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
    join_server();
    assert_int_equal(seen().requests, 1);
    assert_int_equal(seen().end, 0); /* for GVirtuS the session ends between requests */
}

/* The client leaves without taking a result. */
static void test_client_leaves_late(void **state)
{
    (void)state;
    struct frame request = from_device(DEVICE_BYTES);
    send_frame("cudaMemcpy", &request);
    int32_t code;
    assert_int_equal(ibx_session_read(pair.client, &code, 4), 4);
    ibx_session_close(pair.client);
    join_server();
    assert_int_equal(seen().requests, 1);
    assert_int_equal(ibx_pinned_taken(), 0);
}

/* An application's last call is often a reset, which destroys the session's events. Some
 * applications do not wait for the answer. */
static void test_reset_and_end(void **state)
{
    bool waits = *state;
    struct frame request = to_device(pattern(3000000, 5), 3000000), nothing = {0};
    expect_code("cudaMemcpy", &request, 0);
    send_frame("cudaDeviceReset", &nothing);
    if (waits)
        assert_int_equal(receive_reply(NULL, 0), HANDLED);
    ibx_session_close(pair.client);
    join_server();
}

/* A body may continue after the copy that is made in pieces. It has not been read when the copy
 * is answered, and no FLUSHED may say so. */
static void test_flush_before_all_is_read(void **state)
{
    (void)state;
    struct session_pair by_hand;
    struct ibx_conn *client = session_pair_open_bare_client(&by_hand);
    assert_int_equal(ibx_device_copies_attach(by_hand.server, &gpu, NULL), 0);
    session_pair_start(&by_hand, serve, NULL);
    uint8_t bytes[128] = {1, 1, 14, 0, 0, 0, 'f', 'i', 'r', 's', 't'};
    send_message(client, bytes, 20);
    assert_true(receive_message(client, bytes, sizeof(bytes)) > 5);

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
    send_message(client, bytes, w.length);
    /* an RTS_WRITE, because the answer is long */
    assert_true(receive_message(client, bytes, sizeof(bytes)) > 5);
    send_message(client, "\4", 1);
    expect_closed(client);
    session_pair_join(&by_hand);
    assert_non_null(strstr(ibx_session_reason(by_hand.server), "ahead of long replies"));
    session_pair_close(&by_hand);
}

static struct ibx_injected_faults faults;

static int set_up_faulty(void **state)
{
    faults = (struct ibx_injected_faults){0};
    session_faults_server = &faults;
    return set_up(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_requests_ahead_of_replies),
        TEST(test_requests_in_pieces),
        TEST(test_exposed_payload),
        TEST(test_in_place),
        TEST(test_sent_in_place),
        TEST(test_beside_another),
        TEST(test_by_threads),
        TEST(test_early_cts),
        TEST(test_early_cts_for_unexposed_memory),
        TEST(test_from_device),
        TEST(test_captured),
        TEST(test_stream_of_another_device),
        TEST(test_few_bytes),
        cmocka_unit_test_setup_teardown(test_read_fails, set_up_faulty, tear_down),
        TEST(test_gpu_fails_in_reply),
        TEST(test_client_leaves_early),
        TEST(test_client_leaves_late),
        TEST(test_reset_and_end),
        {"test_reset_and_end_waiting", test_reset_and_end, set_up, tear_down, "waits"},
        TEST(test_flush_before_all_is_read),
    };
    session_pair_use(argc > 1 ? argv[1] : "tcp", NULL, NULL, NULL);
    over_shm = argc > 1 && !strcmp(argv[1], "shm");
    app = cuda_application();
    return cmocka_run_group_tests_name("copies", tests, NULL, NULL);
}
