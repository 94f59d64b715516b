/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tcp provider with a raw socket that is closed, or that loses its memory. The linker's --wrap
 * replaces recvmsg(2), so that a peer can send faster than any network. */
#include "tests/fixtures/tcp_raw.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

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
    /* The bulk lanes end first from the server's point of view. */
    for (int i = 2; i >= 0; i--)
        close_lane(i);
    expect_lost(-ECONNRESET, "closed");
    expect_last();
    assert_int_equal(server.count, 2);
}

/* The server only notices the end when it sends. */
static void test_messages_before_a_reset_are_delivered(void **state)
{
    (void)state;
    send_last();
    close_lane(0);
    /* the first one meets a closed socket, which makes the others fail */
    for (int i = 0; i < 3; i++)
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

/* Writing to a socket whose other end is closed must not raise SIGPIPE, which would end this
 * process. */
static void test_no_signal_from_dead_sockets(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        close_lane(i);
    struct ibx_mr *mr = end_register(&server, region, BYTES, BOTH);
    static struct ibx_chunk chunk; /* the provider uses it to the end */
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
    for (int i = 0; i < 3; i++) /* stuck behind a WRITE that nobody reads */
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

#define FLOOD_MOST (1ull << 30) /* bytes; then there is nothing more for a while */

static int flooded = -1; /* a socket from which padding comes without an end; -1: none */
static uint64_t flood;   /* bytes of it */

ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags);

/* Frames of padding, each with as many bytes as a header has. */
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags)
{
    static uint8_t frame[2 * IBX_TCP_FRAME_BYTES];
    size_t n = 0;
    if (fd != flooded)
        return __real_recvmsg(fd, message, flags);
    if (flood >= FLOOD_MOST) {
        errno = EAGAIN;
        return -1;
    }
    ibx_tcp_frame_put(&(struct ibx_tcp_frame){.type = IBX_TCP_PAD, .length = IBX_TCP_FRAME_BYTES},
                      frame);
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        uint8_t *to = message->msg_iov[i].iov_base;
        for (size_t at = 0; at < message->msg_iov[i].iov_len; at++, n++)
            to[at] = frame[(flood + n) % sizeof(frame)];
    }
    flood += n;
    return (ssize_t)n;
}

/* A peer whose host acknowledges nothing can still send. */
static void test_a_flood_does_not_keep_the_end_away(void **state)
{
    (void)state;
    end_settle(&server);
    ibx_tcp_lane_broken(&server.tcp->lanes[0], ETIMEDOUT);
    flood = 0;
    flooded = server.tcp->lanes[0].fd;
    end_turn(&server);
    flooded = -1;
    assert_in_range(flood, 1, FLOOD_MOST - 1);
    expect_lost(-ETIMEDOUT, "the link is dead");
    assert_int_equal(server.count, 1);
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

/* An answer that has not started is refused; one that has started can only be broken off. */
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
    assert_int_equal(receive_frame(1).type, IBX_TCP_DATA); /* the first one has started */
    end_settle(&server);                                   /* the socket is full of it */
    end_deregister(&server, second);
    expect_nak(43, IBX_TCP_STATUS_ACCESS);
    end_deregister(&server, first);
    assert_false(server.tcp->lanes[1].uring_out);
    expect_lost(-ECONNABORTED, "deregistered");
    ibx_provider_tcp.abort(server.tcp);
}

/* Whatever was in flight, the memory is not accessed any more when deregistration returns. */
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
        TEST(test_messages_before_the_end_are_delivered),
        TEST(test_messages_before_a_reset_are_delivered),
        TEST(test_a_lost_lane_ends_the_connection),
        TEST(test_no_signal_from_dead_sockets),
        TEST(test_abort_flushes_all),
        TEST(test_a_flood_does_not_keep_the_end_away),
        TEST(test_deregistration_stops_an_arriving_write),
        TEST(test_deregistration_under_reads),
        TEST(test_deregistration_after_the_end),
    };
    if (argc > 1)
        end_choose(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
