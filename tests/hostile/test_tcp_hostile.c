/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tcp provider against a raw socket that lies, breaks the rules, or goes away. */
#include "tests/scenes/tcp_end.h"

#include "common/clock.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define BOTH  (IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE)
#define BYTES 4096u

static struct end server;
static int lanes[3]; /* the hostile client's: lane 0 and two bulk lanes */
static uint8_t memory[3 * BYTES] __attribute__((aligned(4096)));
static uint8_t *const region = memory + BYTES; /* what is registered; the rest must not change */

static int connect_raw(void **state)
{
    (void)state;
    int door[2];
    sockets_tcp(door);
    lanes[0] = door[1];
    end_init(&server, IBX_ROLE_SERVER, door[0], 2, 4);
    end_connect_raw(&server, lanes, 2);
    for (size_t i = 0; i < sizeof(memory); i++)
        memory[i] = (uint8_t)(i * 5 + i / 256);
    return 0;
}

static void close_lane(int i)
{
    if (lanes[i] >= 0)
        close(lanes[i]);
    lanes[i] = -1;
}

static int disconnect(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        close_lane(i);
    end_close(&server);
    return 0;
}

/* ------------------------------------------------------------ what the client sends */

static void send_raw(int lane, const void *bytes, size_t n)
{
    assert_int_equal(send(lanes[lane], bytes, n, MSG_NOSIGNAL), n);
}

static void send_frame(int lane, struct ibx_tcp_frame frame)
{
    uint8_t bytes[IBX_TCP_FRAME_BYTES];
    ibx_tcp_frame_put(&frame, bytes);
    send_raw(lane, bytes, sizeof(bytes));
}

/* Receives `n` bytes while the server polls. */
static void receive(int lane, void *bytes, size_t n)
{
    uint8_t *to = bytes;
    uint64_t deadline = ibx_deadline_in_ms(20000);
    while (n) {
        end_turn(&server);
        ssize_t got = recv(lanes[lane], to, n, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN) || ibx_now_ns() > deadline)
            fail_msg("lane %d ended or fell silent: %s", lane, server.notes[0].reason);
        if (got > 0) {
            to += got;
            n -= (size_t)got;
        }
    }
}

static struct ibx_tcp_frame receive_frame(int lane)
{
    uint8_t bytes[IBX_TCP_FRAME_BYTES];
    struct ibx_tcp_frame frame = {0};
    receive(lane, bytes, sizeof(bytes));
    assert_int_equal(ibx_tcp_frame_get(bytes, &frame), 0);
    return frame;
}

static void expect_nak(uint32_t id, uint32_t status)
{
    struct ibx_tcp_frame frame = receive_frame(0);
    assert_int_equal(frame.type, IBX_TCP_NAK);
    assert_int_equal(frame.id, id);
    assert_int_equal(frame.status, status);
}

/* The connection is over, by this errno and with these words. */
static void expect_lost(int status, const char *words)
{
    uint64_t deadline = ibx_deadline_in_ms(20000);
    unsigned i = 0;
    while (ibx_now_ns() < deadline) {
        end_turn(&server);
        for (i = 0; i < server.count && server.notes[i].kind != NOTE_LOST; i++)
            ;
        if (i < server.count)
            break;
    }
    if (i == server.count)
        fail_msg("the connection lives on");
    assert_int_equal(server.notes[i].status, status);
    if (!strstr(server.notes[i].reason, words))
        fail_msg("\"%s\" does not say \"%s\"", server.notes[i].reason, words);
}

static void expect_alive(void)
{
    unsigned before = server.count;
    send_frame(0, (struct ibx_tcp_frame){.type = IBX_TCP_MESSAGE, .length = 5});
    send_raw(0, "alive", 5);
    assert_true(end_await(&server, NULL, before + 1));
    assert_int_equal(server.notes[before].kind, NOTE_MESSAGE);
    assert_memory_equal(server.notes[before].data, "alive", 5);
    ibx_provider_tcp.release(server.tcp, server.notes[before].token);
}

static void expect_memory_unchanged(void)
{
    for (size_t i = 0; i < sizeof(memory); i++) {
        if (memory[i] != (uint8_t)(i * 5 + i / 256))
            fail_msg("byte %zd of the region has changed", (ssize_t)i - (ssize_t)BYTES);
    }
}

static struct ibx_tcp_frame request(enum ibx_tcp_type type, const struct ibx_mr *mr,
                                    uint64_t offset, uint32_t length)
{
    return (struct ibx_tcp_frame){
        .type = type,
        .id = 42,
        .length = length,
        .key = mr->keys[0],
        .address = (uintptr_t)mr->span.address + offset,
    };
}

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
    /* All of it is inside. */
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
    /* The same place in the table and the same memory, another key. */
    mr = end_register(&server, region, BYTES, IBX_ACCESS_REMOTE_READ);
    assert_int_not_equal(mr->keys[0], stale.key);
    send_frame(0, stale);
    expect_nak(42, IBX_TCP_STATUS_ACCESS);
    end_deregister(&server, mr);
    /* What the peer may not name has no key at all. */
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
    /* Its bytes are taken from the stream all the same, on either kind of lane. */
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
    /* The lanes are still in step. */
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
    for (int i = 0; i < 9; i++) /* 8 were agreed; nobody takes the answers */
        send_frame(0, request(IBX_TCP_READ, mr, 0, 8u << 20));
    expect_lost(-EPROTO, "8 requests");
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

static struct ibx_chunk chunk;
static uint64_t remote_keys[IBX_RAILS_MAX] = {0x1234};
static uint8_t target[BYTES];

/* The server posts, the client receives the request. */
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

static void reconnect(void)
{
    disconnect(NULL);
    connect_raw(NULL);
}

/* Each alone ends the connection: answers that nobody waits for, frames on the wrong lane. */
static void test_frames_out_of_turn(void **state)
{
    (void)state;
    enum { NO_REQUEST = -1 };
    static const struct {
        int request; /* of the server, before */
        int lane;
        struct ibx_tcp_frame frame;
        const char *words;
    } cases[] = {
        {NO_REQUEST, 0, {.type = IBX_TCP_ACK}, "not waiting"},
        {NO_REQUEST, 1, {.type = IBX_TCP_DATA, .id = 0xffff, .length = 8}, "not waiting"},
        {IBX_RDMA_READ, 0, {.type = IBX_TCP_ACK}, "not waiting"},
        {IBX_RDMA_WRITE, 1, {.type = IBX_TCP_DATA, .length = BYTES}, "not waiting"},
        {IBX_RDMA_READ, 1, {.type = IBX_TCP_DATA, .length = BYTES + 1}, "4097"},
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
    /* The next request takes the same place, under another number. */
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

/* ------------------------------------------------------------------ broken framing */

static void test_rubbish(void **state)
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
    send_frame(0, (struct ibx_tcp_frame){.type = IBX_TCP_MESSAGE,
                                         .length = (uint32_t)caps.message_max + 1});
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
    assert_int_equal(server.count, 5); /* the four before it came through */
}

/* Room counts for the peer from when it was told, not from when there is some. */
static void test_messages_ahead_of_credit(void **state)
{
    (void)state;
    expect_alive(); /* released by now, which is too little to be told of at once */
    uint8_t burst[4 * IBX_TCP_FRAME_BYTES];
    for (unsigned i = 0; i < 4; i++)
        ibx_tcp_frame_put(&(struct ibx_tcp_frame){.type = IBX_TCP_MESSAGE},
                          burst + i * IBX_TCP_FRAME_BYTES);
    send_raw(0, burst, sizeof(burst));
    expect_lost(-EPROTO, "room for 0");
    assert_int_equal(server.count, 5);
}

/* ---------------------------------------------------------------------- the end */

static void send_last(void)
{
    end_settle(&server);
    send_frame(0, (struct ibx_tcp_frame){.type = IBX_TCP_MESSAGE, .length = 4});
    send_raw(0, "last", 4);
}

static void expect_last(void)
{
    assert_int_equal(server.notes[0].kind, NOTE_MESSAGE);
    assert_memory_equal(server.notes[0].data, "last", 4);
}

static void test_messages_before_the_end_are_delivered(void **state)
{
    (void)state;
    send_last();
    /* The bulk lanes end first, as far as the server can see. */
    for (int i = 2; i >= 0; i--)
        close_lane(i);
    expect_lost(-ECONNRESET, "closed");
    expect_last();
    assert_int_equal(server.count, 2);
}

/* The server hears of the end first when it sends. */
static void test_messages_before_a_reset_are_delivered(void **state)
{
    (void)state;
    send_last();
    close_lane(0);
    for (int i = 0; i < 3; i++) /* the first meets a closed socket and makes the rest fail */
        assert_int_equal(end_send(&server, "hello", 5, 0), 0);
    expect_lost(-ECONNRESET, "");
    expect_last();
}

static void test_a_lost_lane_ends_the_connection(void **state)
{
    (void)state;
    end_settle(&server);
    close_lane(2);
    while (ibx_provider_tcp.arm(server.tcp))
        end_turn(&server);
    assert_true(server.count || end_wakes(&server, 10000));
    expect_lost(-ECONNRESET, "closed");
}

/* Writing to a socket whose other end is gone raises no signal: this process would die of it. */
static void test_no_signal_from_dead_sockets(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        close_lane(i);
    struct ibx_mr *mr = end_register(&server, region, BYTES, BOTH);
    chunk = (struct ibx_chunk){.kind = IBX_RDMA_WRITE,
                               .lane = 1,
                               .local = region,
                               .remote_keys = remote_keys,
                               .length = BYTES};
    ibx_provider_tcp.rdma(server.tcp, &chunk);
    for (int i = 0; i < 8; i++)
        end_send(&server, "hello", 5, 0);
    expect_lost(-ECONNRESET, "");
    ibx_provider_tcp.abort(server.tcp);
    end_deregister(&server, mr);
}

/* Every accepted chunk and signaled send is reported exactly once, wherever it was. */
static void test_abort_flushes_all(void **state)
{
    (void)state;
    static struct ibx_chunk chunks[8];
    size_t length = 16u << 20; /* more than the sockets hold */
    struct ibx_mr *mr = end_register(&server, NULL, length, BOTH);
    for (unsigned i = 0; i < 8; i++) {
        chunks[i] = (struct ibx_chunk){.kind = i % 2 ? IBX_RDMA_READ : IBX_RDMA_WRITE,
                                       .lane = i % 3,
                                       .local = mr->span.address,
                                       .remote_keys = remote_keys,
                                       .length = length};
        assert_int_equal(ibx_provider_tcp.rdma(server.tcp, &chunks[i]), 0);
        end_turn(&server);
    }
    for (int i = 0; i < 3; i++) /* stuck behind a WRITE that nobody takes */
        assert_int_equal(end_send(&server, "hello", 5, IBX_SIGNALED), 0);
    end_settle(&server);
    assert_int_equal(server.count, 0);
    ibx_provider_tcp.abort(server.tcp);
    assert_true(end_await(&server, NULL, 11));
    end_settle(&server);
    assert_int_equal(server.count, 11);
    for (unsigned i = 0; i < 8; i++) {
        unsigned times = 0;
        for (unsigned n = 0; n < server.count; n++)
            times += server.notes[n].kind == NOTE_CHUNK && server.notes[n].chunk == &chunks[i] &&
                     server.notes[n].status == -ECONNRESET;
        assert_int_equal(times, 1);
    }
    end_deregister(&server, mr);
}

/* ---------------------------------------------------------------- deregistration */

static void test_deregistration_stops_an_arriving_write(void **state)
{
    (void)state;
    uint8_t bytes[BYTES] = {0};
    struct ibx_mr *mr = end_register(&server, region, BYTES, BOTH);
    for (int lane = 0; lane < 2; lane++) {
        send_frame(lane, request(IBX_TCP_WRITE, mr, 0, BYTES));
        send_raw(lane, bytes, 100);
        while (region[99])
            end_turn(&server);
        end_settle(&server);
        end_deregister(&server, mr);
        memset(region, 0x77, BYTES);
        send_raw(lane, bytes, BYTES - 100);
        expect_nak(42, IBX_TCP_STATUS_ACCESS);
        for (size_t i = 0; i < BYTES; i++)
            assert_int_equal(region[i], 0x77);
        expect_alive();
        mr = end_register(&server, region, BYTES, BOTH);
    }
    end_deregister(&server, mr);
}

/* An answer that has not begun is refused instead; one that has begun can only be broken off. */
static void test_deregistration_under_reads(void **state)
{
    (void)state;
    size_t length = 32u << 20;
    struct ibx_mr *first = end_register(&server, NULL, length, BOTH);
    struct ibx_mr *second = end_register(&server, region, BYTES, BOTH);
    struct ibx_tcp_frame frame = request(IBX_TCP_READ, first, 0, (uint32_t)length);
    frame.lane = 1;
    send_frame(0, frame);
    frame = request(IBX_TCP_READ, second, 0, BYTES);
    frame.lane = 1;
    frame.id = 43;
    send_frame(0, frame);
    end_settle(&server); /* the socket is full of the first */
    end_deregister(&server, second);
    expect_nak(43, IBX_TCP_STATUS_ACCESS);
    end_deregister(&server, first);
    assert_false(server.tcp->lanes[1].uring_out);
    expect_lost(-ECONNABORTED, "deregistered");
    ibx_provider_tcp.abort(server.tcp);
}

/* Whatever was moving, the memory is left alone when deregistration returns. */
static void test_deregistration_after_the_end(void **state)
{
    (void)state;
    size_t length = 32u << 20;
    for (int aborted = 0; aborted < 2; aborted++) {
        struct ibx_mr *out = end_register(&server, NULL, length, BOTH);
        struct ibx_mr *in = end_register(&server, region, BYTES, BOTH);
        struct ibx_tcp_frame frame = request(IBX_TCP_READ, out, 0, (uint32_t)length);
        frame.lane = 2;
        send_frame(0, frame);
        send_frame(1, request(IBX_TCP_WRITE, in, 0, BYTES));
        send_raw(1, memory, 100);
        end_settle(&server);
        close_lane(0);
        expect_lost(-ECONNRESET, "closed");
        if (aborted)
            ibx_provider_tcp.abort(server.tcp);
        end_deregister(&server, out);
        assert_false(server.tcp->lanes[2].uring_out);
        end_deregister(&server, in);
        assert_false(server.tcp->lanes[1].uring_in);
        if (!aborted)
            ibx_provider_tcp.abort(server.tcp);
        reconnect();
    }
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
        TEST(test_answers_are_asked_for_on_lanes_that_exist),
        TEST(test_refusals_become_errno),
        TEST(test_frames_out_of_turn),
        TEST(test_answer_given_twice),
        TEST(test_data_twice),
        TEST(test_rubbish),
        TEST(test_message_too_long),
        TEST(test_messages_without_credit),
        TEST(test_messages_ahead_of_credit),
        TEST(test_messages_before_the_end_are_delivered),
        TEST(test_messages_before_a_reset_are_delivered),
        TEST(test_a_lost_lane_ends_the_connection),
        TEST(test_no_signal_from_dead_sockets),
        TEST(test_abort_flushes_all),
        TEST(test_deregistration_stops_an_arriving_write),
        TEST(test_deregistration_under_reads),
        TEST(test_deregistration_after_the_end),
    };
    if (argc > 1)
        end_choose(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
