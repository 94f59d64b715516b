/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tcp provider with a raw socket that forges frames and breaks the protocol. */
#include "tests/fixtures/tcp_raw.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* ----------------------------------------------------------------- forged requests */

static void test_reads_outside_are_refused(void **state)
{
    (void)state;
    struct ibx_mr *mr = end_register(&server, region, BYTES, IBX_ACCESS_REMOTE_READ);
    const struct {
        uint64_t offset;
        uint32_t length;
    } outside[] = {{1, BYTES},      {BYTES, 1},           {BYTES - 1, 2},
                   {0, BYTES + 1},  {(uint64_t)-1, 1},    {(uint64_t)-1, BYTES + 2},
                   {1ull << 63, 8}, {0, IBX_TCP_BODY_MAX}};
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
        send_frame(0, request(IBX_TCP_READ, mr, outside[i].offset, outside[i].length));
        expect_nak(42, IBX_TCP_STATUS_RANGE);
    }
    struct ibx_tcp_frame wraps = request(IBX_TCP_READ, mr, 0, 64);
    wraps.address = UINT64_MAX - 8;
    send_frame(0, wraps);
    expect_nak(42, IBX_TCP_STATUS_RANGE);
    /* This request is inside the region. */
    uint8_t bytes[BYTES];
    send_frame(0, request(IBX_TCP_READ, mr, 0, BYTES));
    assert_int_equal(receive_frame(0).type, IBX_TCP_DATA);
    receive(0, bytes, sizeof(bytes));
    assert_memory_equal(bytes, region, BYTES);
    end_deregister(&server, mr);
}

static void test_keys_are_checked(void **state)
{
    (void)state;
    struct ibx_mr *mr = end_register(&server, region, BYTES, IBX_ACCESS_REMOTE_READ);
    const uint64_t flips[] = {1, 1ull << 19, 1ull << 20, 1ull << 31, 1ull << 32, 1ull << 63, ~0ull};
    for (size_t i = 0; i < sizeof(flips) / sizeof(flips[0]); i++) {
        struct ibx_tcp_frame frame = request(IBX_TCP_READ, mr, 0, 8);
        frame.key ^= flips[i];
        send_frame(0, frame);
        expect_nak(42, IBX_TCP_STATUS_ACCESS);
    }
    struct ibx_tcp_frame stale = request(IBX_TCP_READ, mr, 0, 8);
    end_deregister(&server, mr);
    send_frame(0, stale);
    expect_nak(42, IBX_TCP_STATUS_ACCESS);
    /* The same place in the table and the same memory, with another key. */
    mr = end_register(&server, region, BYTES, IBX_ACCESS_REMOTE_READ);
    assert_int_not_equal(mr->keys[0], stale.key);
    send_frame(0, stale);
    expect_nak(42, IBX_TCP_STATUS_ACCESS);
    end_deregister(&server, mr);
    /* Memory that the peer may not access has no key. */
    mr = end_register(&server, region, BYTES, IBX_ACCESS_LOCAL);
    assert_int_equal(mr->keys[0], 0);
    send_frame(0, request(IBX_TCP_READ, mr, 0, 8));
    expect_nak(42, IBX_TCP_STATUS_ACCESS);
    end_deregister(&server, mr);
    expect_alive();
}

static void test_access_is_checked(void **state)
{
    (void)state;
    uint8_t bytes[BYTES] = {0};
    struct ibx_mr *mr = end_register(&server, region, BYTES, IBX_ACCESS_REMOTE_WRITE);
    send_frame(0, request(IBX_TCP_READ, mr, 0, 8));
    expect_nak(42, IBX_TCP_STATUS_ACCESS);
    end_deregister(&server, mr);
    mr = end_register(&server, region, BYTES, IBX_ACCESS_REMOTE_READ);
    /* The frame's data is still taken from the stream, on both kinds of lanes. */
    for (int lane = 0; lane < 2; lane++) {
        send_frame(lane, request(IBX_TCP_WRITE, mr, 0, BYTES));
        send_raw(lane, bytes, BYTES);
        expect_nak(42, IBX_TCP_STATUS_ACCESS);
    }
    expect_memory_unchanged();
    expect_alive();
    end_deregister(&server, mr);
}

static void test_writes_outside_touch_nothing(void **state)
{
    (void)state;
    static uint8_t bytes[1 << 20];
    struct ibx_mr *mr = end_register(&server, region, BYTES, BOTH);
    const uint64_t offsets[] = {1, BYTES, (uint64_t)-1, (uint64_t)-BYTES};
    for (size_t i = 0; i < 4; i++) {
        send_frame(1, request(IBX_TCP_WRITE, mr, offsets[i], BYTES));
        send_raw(1, bytes, BYTES);
        expect_nak(42, IBX_TCP_STATUS_RANGE);
    }
    send_frame(2, request(IBX_TCP_WRITE, mr, 0, sizeof(bytes)));
    send_raw(2, bytes, sizeof(bytes));
    expect_nak(42, IBX_TCP_STATUS_RANGE);
    expect_memory_unchanged();
    /* The lanes are still at the start of a frame. */
    send_frame(2, request(IBX_TCP_WRITE, mr, 8, 8));
    send_raw(2, bytes, 8);
    assert_int_equal(receive_frame(0).type, IBX_TCP_ACK);
    assert_memory_equal(region + 8, bytes, 8);
    end_deregister(&server, mr);
}

static void test_more_requests_than_agreed(void **state)
{
    (void)state;
    struct ibx_mr *mr = end_register(&server, NULL, 8u << 20, BOTH);
    for (int i = 0; i < 9; i++) /* 8 were agreed, and nobody reads the answers */
        send_frame(0, request(IBX_TCP_READ, mr, 0, 8u << 20));
    expect_lost(-EPROTO, "8 requests");
    end_deregister(&server, mr);
}

/* A peer that has an answer may send its next request at once, even before this side has noticed
 * that the answer was sent. */
static void test_as_many_requests_as_agreed(void **state)
{
    (void)state;
    uint8_t bytes[IBX_TCP_FRAME_BYTES + BYTES];
    struct ibx_mr *mr = end_register(&server, region, BYTES, BOTH);
    struct ibx_tcp_frame frame = request(IBX_TCP_READ, mr, 0, BYTES);
    frame.lane = 1;
    for (int i = 0; i < 8; i++)
        send_frame(0, frame);
    for (int i = 0; i < 100; i++) {
        receive(1, bytes, sizeof(bytes));
        assert_memory_equal(bytes + IBX_TCP_FRAME_BYTES, region, BYTES);
        if (i < 92)
            send_frame(0, frame);
    }
    expect_alive();
    end_deregister(&server, mr);
}

static void test_answers_are_asked_for_on_lanes_that_exist(void **state)
{
    (void)state;
    struct ibx_mr *mr = end_register(&server, region, BYTES, BOTH);
    struct ibx_tcp_frame frame = request(IBX_TCP_READ, mr, 0, 8);
    uint8_t bytes[8];
    frame.lane = 2;
    send_frame(0, frame);
    assert_int_equal(receive_frame(2).type, IBX_TCP_DATA);
    receive(2, bytes, 8);
    assert_memory_equal(bytes, region, 8);
    frame.lane = 3;
    send_frame(0, frame);
    expect_lost(-EPROTO, "lane 3 of 2");
    end_deregister(&server, mr);
}

/* ------------------------------------------------------------------ forged answers */

#define MUCH (32u << 20) /* more than the sockets hold */

static struct ibx_chunk chunk;
static uint8_t target[BYTES];

/* The server posts, and the client receives the request. */
static struct ibx_tcp_frame take_request(enum ibx_rdma_kind kind, unsigned lane)
{
    chunk = (struct ibx_chunk){
        .kind = kind,
        .lane = lane,
        .local = target,
        .remote_address = 0x5000,
        .remote_keys = remote_keys,
        .length = BYTES,
    };
    memset(target, 0x33, sizeof(target));
    assert_int_equal(ibx_provider_tcp.rdma(server.tcp, &chunk), 0);
    struct ibx_tcp_frame frame = receive_frame(kind == IBX_RDMA_READ ? 0 : (int)lane);
    assert_int_equal(frame.type, kind == IBX_RDMA_READ ? IBX_TCP_READ : IBX_TCP_WRITE);
    assert_int_equal(frame.key, 0x1234);
    assert_int_equal(frame.address, 0x5000);
    assert_int_equal(frame.length, BYTES);
    assert_int_equal(frame.lane, kind == IBX_RDMA_READ ? lane : 0);
    if (kind == IBX_RDMA_WRITE) {
        uint8_t bytes[BYTES];
        receive((int)lane, bytes, BYTES);
        assert_memory_equal(bytes, target, BYTES);
    }
    return frame;
}

static void expect_chunk(int status)
{
    assert_true(end_await(&server, NULL, 1));
    assert_int_equal(server.notes[0].kind, NOTE_CHUNK);
    assert_int_equal(server.notes[0].status, status);
    assert_ptr_equal(server.notes[0].chunk, &chunk);
    server.count = 0;
}

static void test_refusals_become_errno(void **state)
{
    (void)state;
    const int expected[] = {0, -EACCES, -ERANGE};
    for (uint32_t status = 1; status <= 2; status++) {
        for (int kind = 0; kind < 2; kind++) {
            struct ibx_tcp_frame frame =
                take_request(kind ? IBX_RDMA_READ : IBX_RDMA_WRITE, status);
            send_frame(
                0, (struct ibx_tcp_frame){.type = IBX_TCP_NAK, .id = frame.id, .status = status});
            expect_chunk(expected[status]);
        }
    }
    expect_alive();
}

/* Each one ends the connection: answers without a request, and frames on the wrong lane. */
static void test_unexpected_frames(void **state)
{
    (void)state;
    enum { NO_REQUEST = -1 };
    static const struct {
        int request; /* a request that the server sends before; 0: none */
        int lane;
        struct ibx_tcp_frame frame;
        const char *words;
    } cases[] = {
        {NO_REQUEST, 0, {.type = IBX_TCP_ACK}, "not waiting"},
        {NO_REQUEST, 1, {.type = IBX_TCP_DATA, .id = 0xffff, .length = 8}, "not waiting"},
        {IBX_RDMA_READ, 0, {.type = IBX_TCP_ACK}, "not waiting"},
        {IBX_RDMA_WRITE, 1, {.type = IBX_TCP_DATA, .length = BYTES}, "not waiting"},
        {IBX_RDMA_READ, 1, {.type = IBX_TCP_DATA, .length = BYTES + 1}, "4097"},
        {IBX_RDMA_READ, 1, {.type = IBX_TCP_DATA, .length = BYTES - 1}, "4095"},
        {IBX_RDMA_READ, 2, {.type = IBX_TCP_DATA, .length = BYTES}, "on lane 2"},
        {NO_REQUEST, 1, {.type = IBX_TCP_MESSAGE, .length = 1}, "bulk lane 1"},
        {NO_REQUEST, 0, {.type = IBX_TCP_CREDIT, .credits = 1}, "only 0 were sent"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ibx_tcp_frame frame = cases[i].frame;
        if (cases[i].request != NO_REQUEST)
            frame.id = take_request((enum ibx_rdma_kind)cases[i].request, 1).id;
        send_frame(cases[i].lane, frame);
        expect_lost(-EPROTO, cases[i].words);
        reconnect();
    }
}

static void test_answer_given_twice(void **state)
{
    (void)state;
    struct ibx_tcp_frame frame = take_request(IBX_RDMA_WRITE, 1);
    send_frame(0, (struct ibx_tcp_frame){.type = IBX_TCP_ACK, .id = frame.id});
    expect_chunk(0);
    /* The next request takes the same place with another number. */
    struct ibx_tcp_frame next = take_request(IBX_RDMA_WRITE, 1);
    assert_int_equal(next.id & 0xffff, frame.id & 0xffff);
    send_frame(0, (struct ibx_tcp_frame){.type = IBX_TCP_ACK, .id = frame.id});
    expect_lost(-EPROTO, "not waiting");
}

static void test_data_twice(void **state)
{
    (void)state;
    struct ibx_tcp_frame frame = take_request(IBX_RDMA_READ, 1);
    struct ibx_tcp_frame data = {.type = IBX_TCP_DATA, .id = frame.id, .length = BYTES};
    send_frame(1, data);
    send_raw(1, memory, BYTES);
    send_frame(1, data);
    assert_true(end_await(&server, NULL, 1));
    assert_int_equal(server.notes[0].status, 0);
    assert_memory_equal(target, memory, BYTES);
    expect_lost(-EPROTO, "not waiting");
}

static void test_answer_to_a_request_that_cannot_be(void **state)
{
    (void)state;
    send_frame(0, (struct ibx_tcp_frame){.type = IBX_TCP_ACK, .id = server.tcp->mine.depth});
    expect_lost(-EPROTO, "not waiting");
}

/* The answer comes before the first byte of the request has left. */
static void test_answer_before_the_request(void **state)
{
    (void)state;
    chunk = (struct ibx_chunk){.kind = IBX_RDMA_WRITE,
                               .lane = 1,
                               .local = target,
                               .remote_keys = remote_keys,
                               .length = BYTES};
    assert_int_equal(ibx_provider_tcp.rdma(server.tcp, &chunk), 0);
    send_frame(0, (struct ibx_tcp_frame){.type = IBX_TCP_ACK}); /* the first request is number 0 */
    struct pollfd there = {.fd = server.handshake_socket, .events = POLLIN};
    assert_int_equal(poll(&there, 1, (int)END_PATIENCE_MS), 1);
    expect_lost(-EPROTO, "not waiting");
    assert_int_equal(server.count, 1);
}

/* With io_uring a request may be answered before all of it has left, and a refusal stays one. Its
 * memory is in use until all has left. */
static void test_refusal_before_all_has_left(void **state)
{
    (void)state;
    struct tcp_lane *lane = &server.tcp->lanes[1];
    struct ibx_mr *much = end_register(&server, NULL, MUCH, IBX_ACCESS_LOCAL);
    uint8_t header[IBX_TCP_FRAME_BYTES];
    struct ibx_tcp_frame frame;
    chunk = (struct ibx_chunk){.kind = IBX_RDMA_WRITE,
                               .lane = 1,
                               .local = much->span.address,
                               .remote_keys = remote_keys,
                               .length = MUCH};
    assert_int_equal(ibx_provider_tcp.rdma(server.tcp, &chunk), 0);
    end_settle(&server); /* the socket is full */
    receive(1, header, sizeof(header));
    assert_int_equal(ibx_tcp_frame_get(header, &frame), 0);
    assert_true(ibx_tcp_lane_has_output(lane));
    send_frame(0, (struct ibx_tcp_frame){
                      .type = IBX_TCP_NAK, .id = frame.id, .status = IBX_TCP_STATUS_ACCESS});
    if (!server.tcp->uring) {
        expect_lost(-EPROTO, "not waiting");
    } else {
        uint8_t *bytes = malloc(MUCH);
        const struct tcp_post *post = (const struct tcp_post *)lane->flight[0];
        while (post->state.now != TCP_POST_ANSWERED)
            assert_true(end_turn(&server) >= 0 && !server.count);
        receive(1, bytes, MUCH);
        free(bytes);
        expect_chunk(-EACCES);
        expect_alive();
    }
    end_deregister(&server, much);
}

/* A WRITE is complete, and its answer waits behind bulk. Its memory is not in use any more. */
static void test_memory_of_an_answer_that_waits(void **state)
{
    (void)state;
    struct ibx_mr *much = end_register(&server, NULL, MUCH, IBX_ACCESS_REMOTE_READ);
    struct ibx_mr *mr = end_register(&server, region, BYTES, IBX_ACCESS_REMOTE_WRITE);
    uint8_t *bytes = malloc(MUCH);
    send_frame(0, request(IBX_TCP_READ, much, 0, MUCH));
    end_settle(&server); /* the socket is full */
    send_frame(1, request(IBX_TCP_WRITE, mr, 0, 8));
    send_raw(1, "received", 8);
    end_settle(&server);
    assert_memory_equal(region, "received", 8);
    assert_true(ibx_tcp_lane_has_output(&server.tcp->lanes[0]));
    end_deregister(&server, mr);
    assert_null(end_lost(&server));
    assert_int_equal(receive_frame(0).type, IBX_TCP_DATA);
    receive(0, bytes, MUCH);
    assert_int_equal(receive_frame(0).type, IBX_TCP_ACK);
    expect_alive();
    end_deregister(&server, much);
    free(bytes);
}

/* Nothing of a WRITE has come but its header when its memory goes. */
static void test_memory_of_a_write_that_does_not_come(void **state)
{
    (void)state;
    struct ibx_mr *mr = end_register(&server, region, BYTES, IBX_ACCESS_REMOTE_WRITE);
    send_frame(1, request(IBX_TCP_WRITE, mr, 0, BYTES));
    while (!server.tcp->lanes[1].body_left)
        end_turn(&server);
    end_settle(&server);
    end_deregister(&server, mr);
    assert_null(end_lost(&server));
    send_raw(1, target, BYTES);
    expect_nak(42, IBX_TCP_STATUS_ACCESS);
    expect_memory_unchanged();
    expect_alive();
}

/* A part of the data is on its way, though no call to the kernel has returned yet. */
static void test_memory_that_is_being_sent(void **state)
{
    (void)state;
    const uint32_t length = 1u << 20;
    const int little = 1; /* the kernel raises it to its minimum */
    struct ibx_mr *mr = end_register(&server, NULL, length, IBX_ACCESS_REMOTE_READ);
    struct ibx_tcp_frame frame = request(IBX_TCP_READ, mr, 0, length);
    frame.lane = 1;
    assert_int_equal(
        setsockopt(server.tcp->lanes[1].fd, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little)), 0);
    send_frame(0, frame);
    end_settle(&server);
    assert_int_equal(server.tcp->lanes[1].flight_count, 1);
    end_deregister(&server, mr);
    expect_lost(-ECONNABORTED, "was deregistered while the peer was reading it");
}

/* The last of the READs that wait goes with its memory; the next one takes its place in line. */
static void test_memory_of_the_last_read_in_line(void **state)
{
    (void)state;
    struct ibx_mr *much = end_register(&server, NULL, MUCH, IBX_ACCESS_REMOTE_READ);
    struct ibx_mr *mr = end_register(&server, region, BYTES, IBX_ACCESS_REMOTE_READ);
    struct ibx_tcp_frame first = request(IBX_TCP_READ, much, 0, MUCH),
                         last = request(IBX_TCP_READ, mr, 0, BYTES),
                         next = request(IBX_TCP_READ, much, 0, 8);
    uint8_t *bytes = malloc(MUCH);
    first.lane = last.lane = next.lane = 1;
    last.id = 43;
    next.id = 44;
    send_frame(0, first);
    end_settle(&server); /* the socket is full */
    send_frame(0, last);
    end_settle(&server);
    end_deregister(&server, mr);
    expect_nak(43, IBX_TCP_STATUS_ACCESS);
    send_frame(0, next);
    end_settle(&server);
    assert_int_equal(receive_frame(1).id, 42);
    receive(1, bytes, MUCH);
    assert_int_equal(receive_frame(1).id, 44);
    receive(1, bytes, 8);
    expect_alive();
    end_deregister(&server, much);
    free(bytes);
}

/* ------------------------------------------------------------------ broken framing */

static void test_random_bytes(void **state)
{
    (void)state;
    uint8_t bytes[IBX_TCP_FRAME_BYTES];
    memset(bytes, 'G', sizeof(bytes));
    send_raw(0, bytes, sizeof(bytes));
    expect_lost(-EPROTO, "type 71");
}

static void test_message_too_long(void **state)
{
    (void)state;
    struct ibx_caps caps;
    char text[192];
    ibx_provider_tcp.query(server.tcp, &caps, text, sizeof(text));
    const struct ibx_tcp_frame frame = {.type = IBX_TCP_MESSAGE,
                                        .length = (uint32_t)caps.message_max + 1};
    send_frame(0, frame);
    expect_lost(-EPROTO, "message of");
    reconnect();
    uint8_t both[2 * IBX_TCP_FRAME_BYTES] = {0}; /* its begin comes with it */
    ibx_tcp_frame_put(&frame, both);
    send_raw(0, both, sizeof(both));
    expect_lost(-EPROTO, "message of");
}

static void test_messages_without_credit(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        send_frame(0, (struct ibx_tcp_frame){.type = IBX_TCP_MESSAGE, .length = 1});
        send_raw(0, "x", 1);
    }
    expect_lost(-EPROTO, "room for 0");
    assert_int_equal(server.count, 5); /* the four before it were received */
}

/* The peer may use room from when it was told of it, not from when it exists. */
static void test_messages_ahead_of_credit(void **state)
{
    (void)state;
    expect_alive(); /* they are released by now, but so little room is not reported at once */
    uint8_t burst[4 * IBX_TCP_FRAME_BYTES];
    for (unsigned i = 0; i < 4; i++)
        ibx_tcp_frame_put(&(struct ibx_tcp_frame){.type = IBX_TCP_MESSAGE},
                          burst + i * IBX_TCP_FRAME_BYTES);
    send_raw(0, burst, sizeof(burst));
    expect_lost(-EPROTO, "room for 0");
    assert_int_equal(server.count, 5);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, connect_raw, disconnect)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_reads_outside_are_refused),
        TEST(test_keys_are_checked),
        TEST(test_access_is_checked),
        TEST(test_writes_outside_touch_nothing),
        TEST(test_more_requests_than_agreed),
        TEST(test_as_many_requests_as_agreed),
        TEST(test_answers_are_asked_for_on_lanes_that_exist),
        TEST(test_refusals_become_errno),
        TEST(test_unexpected_frames),
        TEST(test_answer_given_twice),
        TEST(test_data_twice),
        TEST(test_answer_to_a_request_that_cannot_be),
        TEST(test_answer_before_the_request),
        TEST(test_refusal_before_all_has_left),
        TEST(test_memory_of_an_answer_that_waits),
        TEST(test_memory_of_a_write_that_does_not_come),
        TEST(test_memory_that_is_being_sent),
        TEST(test_memory_of_the_last_read_in_line),
        TEST(test_random_bytes),
        TEST(test_message_too_long),
        TEST(test_messages_without_credit),
        TEST(test_messages_ahead_of_credit),
    };
    if (argc > 1)
        end_choose(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
