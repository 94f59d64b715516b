/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tcp provider: frames, messages, and which end is woken. */
#include "tests/fixtures/tcp_end.h"

#include "common/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>
#ifdef IBX_WITH_URING
#include <liburing.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#endif

#define BOTH (IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE)

static struct end server, client;

/* ------------------------------------------------------------------------ frames */

static void test_frames_are_these_bytes(void **state)
{
    (void)state;
    const struct ibx_tcp_frame frame = {.type = IBX_TCP_READ,
                                        .lane = 2,
                                        .id = 0x0a0b0c0d,
                                        .length = 0x00100000,
                                        .key = 0x1122334455667788,
                                        .address = 0x7f00deadbeef0000};
    const uint8_t golden[IBX_TCP_FRAME_BYTES] = {
        2,    2,    0,    0,    0,    0,    0,    0,    0x0d, 0x0c, 0x0b,
        0x0a, 0x00, 0x00, 0x10, 0x00, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33,
        0x22, 0x11, 0x00, 0x00, 0xef, 0xbe, 0xad, 0xde, 0x00, 0x7f,
    };
    uint8_t bytes[IBX_TCP_FRAME_BYTES];
    struct ibx_tcp_frame back;
    ibx_tcp_frame_put(&frame, bytes);
    assert_memory_equal(bytes, golden, sizeof(golden));
    assert_int_equal(ibx_tcp_frame_get(golden, &back), 0);
    assert_int_equal(back.type, IBX_TCP_READ);
    assert_int_equal(back.lane, 2);
    assert_int_equal(back.id, frame.id);
    assert_int_equal(back.length, frame.length);
    assert_int_equal(back.key, frame.key);
    assert_int_equal(back.address, frame.address);

    const uint8_t nak[IBX_TCP_FRAME_BYTES] = {6, 0, 0, 0, 2, 0, 0, 0, 9};
    assert_int_equal(ibx_tcp_frame_get(nak, &back), 0);
    assert_int_equal(ibx_tcp_status_errno(back.status), -ERANGE);
    const uint8_t message[IBX_TCP_FRAME_BYTES] = {1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5};
    assert_int_equal(ibx_tcp_frame_get(message, &back), 0);
    assert_int_equal(back.credits, 3);
    assert_int_equal(back.length, 5);
    const uint8_t check[IBX_TCP_FRAME_BYTES] = {9, 1, 0, 0, 4, 3, 2, 1, 8, 7, 6, 5};
    assert_int_equal(ibx_tcp_frame_get(check, &back), 0);
    assert_int_equal(back.place, 0x01020304);
    assert_int_equal(back.id, 0x05060708);
    ibx_tcp_frame_put(&back, bytes);
    assert_memory_equal(bytes, check, sizeof(check));
    ibx_tcp_frame_place(bytes, 0x1deadbeef);
    const uint8_t placed[IBX_TCP_FRAME_BYTES] = {9, 1, 0, 0, 0xef, 0xbe, 0xad, 0xde, 8, 7, 6, 5};
    assert_memory_equal(bytes, placed, sizeof(placed));
}

/* Every byte that a type does not use must be zero, and every number within its limits. */
static void test_malformed_frames_are_refused(void **state)
{
    (void)state;
    static const uint8_t good[][IBX_TCP_FRAME_BYTES] = {
        {1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5},          /* MESSAGE */
        {2, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0}, /* READ */
        {3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5},          /* DATA */
        {4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5},          /* WRITE */
        {5, 0, 0, 0, 0, 0, 0, 0, 1},                      /* ACK */
        {6, 0, 0, 0, 1, 0, 0, 0, 1},                      /* NAK */
        {7, 0, 1},                                        /* CREDIT */
        {8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5},          /* PAD */
        {9, 1, 0, 0, 0, 0, 0, 0, 1},                      /* CHECK */
        {9, 2, 0, 0, 0, 0, 0, 0, 1},                      /* a sign of life */
    };
    struct ibx_tcp_frame frame;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(ibx_tcp_frame_get(good[i], &frame), 0);
        bool lane = i == 1, credits = i == 0 || i == 6;
        bool id = (i >= 1 && i <= 5) || i >= 8, length = i <= 3 || i == 7,
             target = i == 1 || i == 3;
        const bool free_byte[IBX_TCP_FRAME_BYTES] = {
            true,   lane,   credits, credits, true,   true,   true,   true,
            id,     id,     id,      id,      length, length, length, length,
            target, target, target,  target,  target, target, target, target,
            target, target, target,  target,  target, target, target, target,
        };
        for (unsigned at = 1; at < IBX_TCP_FRAME_BYTES; at++) {
            uint8_t bad[IBX_TCP_FRAME_BYTES];
            memcpy(bad, good[i], sizeof(bad));
            bad[at] = 0x11;
            if (!free_byte[at] && ibx_tcp_frame_get(bad, &frame) != -EPROTO)
                fail_msg("type %u takes a byte at %u", bad[0], at);
        }
    }
    const uint8_t wrong[][IBX_TCP_FRAME_BYTES] = {
        {0},
        {8},    /* PAD of 0 bytes */
        {9, 3}, /* CHECK that neither asks nor answers, and is no sign of life */
        {9, 0, 1},
        {10},
        {255},
        {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0x10}, /* MESSAGE of 1 MiB + 1 */
        {2, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0},          /* READ of 0 bytes */
        {3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 4}, /* DATA of 64 MiB + 1 */
        {4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff},
        {6, 0, 0, 0, 0, 0, 0, 0, 1}, /* NAK without a reason */
        {6, 0, 0, 0, 3, 0, 0, 0, 1},
        {7}, /* CREDIT of 0 */
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(ibx_tcp_frame_get(wrong[i], &frame), -EPROTO);
}

/* ---------------------------------------------------------------------- messages */

static void release(struct end *end, unsigned note)
{
    ibx_provider_tcp.release(end->tcp, end->notes[note].token);
}

static struct ibx_chunk read_of(const struct ibx_mr *remote, const struct ibx_mr *local,
                                size_t length)
{
    return (struct ibx_chunk){
        .kind = IBX_RDMA_READ,
        .lane = 1,
        .local = local->span.address,
        .remote_address = (uintptr_t)remote->span.address,
        .remote_keys = remote->keys,
        .length = length,
    };
}

static void test_messages_of_all_lengths(void **state)
{
    (void)state;
    ends_open(&server, &client, sockets_tcp, 1, 4);
    size_t max = end_caps(&server).message_max;
    assert_true(max > 4 * 1024); /* longer than a slot */
    const size_t lengths[] = {0, 1, 900, 1023, 1024, 1025, 4096, max};
    uint8_t *bytes = malloc(max);
    for (size_t i = 0; i < max; i++)
        bytes[i] = (uint8_t)(i ^ i >> 8);
    for (unsigned lap = 0; lap < 40; lap++) {
        struct end *from = lap % 2 ? &server : &client, *to = lap % 2 ? &client : &server;
        size_t n = lengths[lap % 8];
        to->count = 0;
        assert_int_equal(end_send(from, bytes, n, 0), 0);
        assert_true(end_await(to, from, 1));
        assert_int_equal(to->notes[0].kind, NOTE_MESSAGE);
        assert_int_equal(to->notes[0].length, n);
        assert_memory_equal(to->notes[0].data, bytes, n);
        release(to, 0);
    }
    free(bytes);
    ends_close(&server, &client);
}

static size_t row_length(unsigned lap, unsigned i)
{
    return (i * 97 + lap * 13) % (lap % 2 ? 50 : 2500);
}

/* Several messages at once, so that one read of the socket gets the end of one and the start of
 * the next. */
static void test_messages_in_a_row_stay_whole(void **state)
{
    (void)state;
    ends_open(&server, &client, sockets_tcp, 1, 64);
    uint8_t bytes[3000];
    for (unsigned lap = 0; lap < 20; lap++) {
        client.count = 0;
        for (unsigned i = 0; i < 60; i++) {
            memset(bytes, (int)(lap + i), sizeof(bytes));
            assert_int_equal(end_send(&server, bytes, row_length(lap, i), 0), 0);
        }
        assert_true(end_await(&client, &server, 60));
        for (unsigned i = 0; i < 60; i++) {
            memset(bytes, (int)(lap + i), sizeof(bytes));
            assert_int_equal(client.notes[i].length, row_length(lap, i));
            assert_memory_equal(client.notes[i].data, bytes, client.notes[i].length);
        }
        for (unsigned i = 0; i < 60; i++)
            release(&client, (i * 7) % 60);
        /* Credits that were returned reach the sender in a frame of their own. */
        end_settle(&client);
        end_settle(&server);
    }
    ends_close(&server, &client);
}

/* The socket accepts a part of a message now and the rest later. */
static void test_message_written_in_two_parts(void **state)
{
    (void)state;
    static uint8_t bytes[12000];
    int little = 1; /* the kernel raises it to its minimum */
    ends_open(&server, &client, sockets_unix, 1, 4);
    assert_int_equal(
        setsockopt(server.handshake_socket, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little)), 0);
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i ^ i >> 8);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(end_send(&server, bytes, sizeof(bytes), IBX_SIGNALED), 0);
        bool waits = ibx_tcp_lane_has_output(&server.tcp->lanes[0]);
        assert_true(waits);
    }
    assert_true(end_await(&client, &server, 4));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(client.notes[i].length, sizeof(bytes));
        assert_memory_equal(client.notes[i].data, bytes, sizeof(bytes));
    }
    assert_true(end_await(&server, NULL, 4));
    assert_int_equal(server.count, 4);
    ends_close(&server, &client);
}

/* A short message does not overtake a long one that waits for the socket. */
static void test_order_if_the_socket_is_full(void **state)
{
    (void)state;
    static uint8_t bytes[100000];
    int door[2], little = 1;
    sockets_unix(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 1, 16);
    end_init(&client, IBX_ROLE_CLIENT, door[1], 1, 16);
    server.options.message = client.options.message = 16384;
    server.tcp->mine.message = client.tcp->mine.message = 16384;
    ends_encrypt_and_connect(&server, &client);
    assert_int_equal(
        setsockopt(server.handshake_socket, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little)), 0);
    const size_t lengths[] = {sizeof(bytes), 1, sizeof(bytes) - 1, 2, 0, 70000, 3};
    for (unsigned i = 0; i < 7; i++)
        assert_int_equal(end_send(&server, bytes, lengths[i], 0), 0);
    assert_true(end_await(&client, &server, 7));
    for (unsigned i = 0; i < 7; i++)
        assert_int_equal(client.notes[i].length, lengths[i]);
    ends_close(&server, &client);
}

static void test_credits_bound_the_sender(void **state)
{
    (void)state;
    ends_open(&server, &client, sockets_tcp, 1, 4);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(end_send(&server, "abcd", 4, 0), 0);
    assert_int_equal(end_send(&server, "abcd", 4, 0), -EAGAIN);
    assert_true(end_await(&client, &server, 4));
    end_settle(&server);
    assert_int_equal(end_send(&server, "abcd", 4, 0), -EAGAIN);
    release(&client, 2);
    release(&client, 2); /* a second release has no effect */
    end_settle(&client);
    end_settle(&server);
    assert_int_equal(end_send(&server, "efgh", 4, 0), 0);
    assert_int_equal(end_send(&server, "efgh", 4, 0), -EAGAIN);
    /* Credits may also travel in a message, without a frame of their own. */
    release(&client, 0);
    release(&client, 1);
    assert_int_equal(end_send(&client, "back", 4, 0), 0);
    assert_true(end_await(&server, &client, 1));
    assert_int_equal(end_send(&server, "efgh", 4, 0), 0);
    assert_int_equal(end_send(&server, "efgh", 4, 0), 0);
    assert_int_equal(end_send(&server, "efgh", 4, 0), -EAGAIN);
    ends_close(&server, &client);
}

static void test_signaled_sends_are_reported_once(void **state)
{
    (void)state;
    ends_open(&server, &client, sockets_tcp, 1, 4);
    assert_int_equal(end_send(&server, "abcd", 4, IBX_SIGNALED), 0);
    assert_int_equal(server.count, 0);             /* send itself reports nothing */
    assert_true(ibx_provider_tcp.arm(server.tcp)); /* nor does it wake anybody */
    assert_true(end_await(&server, &client, 1));
    assert_int_equal(server.notes[0].kind, NOTE_SEND);
    assert_int_equal(server.notes[0].status, 0);
    assert_int_equal(server.notes[0].token, 77);
    end_settle(&server);
    assert_int_equal(server.count, 1);
    ends_close(&server, &client);
}

/* -------------------------------------------------------------------- sleeping */

static void drain(struct end *end)
{
    do
        end_settle(end);
    while (ibx_provider_tcp.arm(end->tcp));
}

static void test_sleepers_are_woken_by_input(void **state)
{
    (void)state;
    ends_open(&server, &client, sockets_tcp, 1, 4);
    drain(&client);
    assert_false(end_wakes(&client, 0));
    assert_int_equal(end_send(&server, "abcd", 4, 0), 0);
    assert_true(end_wakes(&client, 10000));
    drain(&client);
    assert_int_equal(client.count, 1);

    static uint8_t bytes[100000];
    struct ibx_mr *mr = end_register(&client, NULL, sizeof(bytes), BOTH);
    struct ibx_chunk chunk = {
        .kind = IBX_RDMA_WRITE,
        .lane = 1,
        .local = bytes,
        .remote_address = (uintptr_t)mr->span.address,
        .remote_keys = mr->keys,
        .length = sizeof(bytes),
    };
    assert_int_equal(ibx_provider_tcp.rdma(server.tcp, &chunk), 0);
    end_settle(&server);
    assert_true(end_wakes(&client, 10000));
    end_deregister(&client, mr);
    ends_close(&server, &client);
}

/* A program takes a message, releases it, and sleeps: the peer has room for the next one. */
static void test_room_is_given_back_before_the_sleep(void **state)
{
    (void)state;
    ends_open(&server, &client, sockets_tcp, 1, 4);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(end_send(&server, "abcd", 4, 0), 0);
    assert_true(end_await(&client, &server, 4));
    drain(&client);
    for (unsigned i = 0; i < 4; i++)
        release(&client, i);
    while (ibx_provider_tcp.arm(client.tcp))
        end_turn(&client);
    end_settle(&server);
    assert_int_equal(end_send(&server, "abcd", 4, 0), 0);
    ends_close(&server, &client);
}

/* An end that aborts tells the other one at once, and not when it closes. */
static void test_abort_is_noticed(void **state)
{
    (void)state;
    ends_open(&server, &client, sockets_tcp, 1, 4);
    drain(&client);
    ibx_provider_tcp.abort(server.tcp);
    assert_true(end_await(&client, NULL, 1));
    assert_int_equal(client.notes[0].kind, NOTE_LOST);
    assert_int_equal(client.notes[0].status, -ECONNRESET);
    ends_close(&server, &client);
}

static bool is_readable(int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    return poll(&wait, 1, 0) > 0;
}

static bool await_readable(int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    return poll(&wait, 1, (int)END_PATIENCE_MS) > 0;
}

/* Urgent work that more follows goes with it, in one write, and does not wake the peer before. */
static void test_urgent_work_that_more_follows(void **state)
{
    (void)state;
    enum { READS = 5, PAGE = 4096 };
    struct ibx_chunk chunks[READS];
    ends_open(&server, &client, sockets_tcp, 1, 4);
    struct ibx_mr *mr = end_register(&server, NULL, READS * PAGE, BOTH);
    struct ibx_mr *local = end_register(&client, NULL, READS * PAGE, 0);
    drain(&server);
    const int input = server.tcp->lanes[0].fd;
    for (unsigned i = 0; i < READS; i++) {
        chunks[i] = read_of(mr, local, PAGE);
        chunks[i].lane = 0;
        chunks[i].more = true;
        assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunks[i]), 0);
    }
    assert_false(is_readable(input));
    assert_true(ibx_provider_tcp.arm(client.tcp)); /* it may not sleep on that */
    assert_true(end_await(&client, &server, READS));
    for (unsigned i = 0; i < READS; i++)
        assert_true(client.notes[i].kind == NOTE_CHUNK && !client.notes[i].status);
    drain(&server);
    chunks[0].more = false;
    assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunks[0]), 0);
    assert_true(await_readable(input)); /* without a turn of the client */
    assert_true(end_await(&client, &server, READS + 1));
    end_deregister(&client, local);
    end_deregister(&server, mr);
    ends_close(&server, &client);
}

/* A sender whose socket is full sleeps until the socket accepts bytes again. */
static void test_sleepers_are_woken_by_room(void **state)
{
    (void)state;
    ends_open(&server, &client, sockets_tcp, 1, 4);
    size_t length = 48u << 20; /* more than the sockets hold */
    struct ibx_mr *mr = end_register(&server, NULL, length, BOTH);
    struct ibx_mr *local = end_register(&client, NULL, length, 0);
    struct ibx_chunk chunk = read_of(mr, local, length);
    assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunk), 0);
    end_turn(&client);
    drain(&server);
    assert_false(end_wakes(&server, 0));
    assert_false(ibx_provider_tcp.arm(server.tcp));
    assert_null(end_lost(&server));
    uint64_t deadline = ibx_deadline_in_ms(END_PATIENCE_MS);
    while (!end_wakes(&server, 0) && ibx_now_ns() < deadline)
        end_turn(&client);
    assert_true(end_wakes(&server, 0));
    /* That may have been a timer. io_uring and threads have wake-ups of their own. */
    const bool by_socket = !server.tcp->uring && !server.tcp->threads;
    while (by_socket && !is_readable(server.tcp->writable) && ibx_now_ns() < deadline)
        end_turn(&client);
    assert_true(!by_socket || is_readable(server.tcp->writable));
    assert_true(end_await(&client, &server, 1));
    assert_int_equal(client.notes[0].status, 0);
    end_deregister(&client, local);
    end_deregister(&server, mr);
    ends_close(&server, &client);
}

/* The reason says where to look: at this host's memory, and not at the network. */
static void test_memory_that_cannot_be_read(void **state)
{
    (void)state;
    const size_t length = 1u << 20;
    const int file = memfd_create("cut short", MFD_CLOEXEC);
    if (end_encrypts) { /* then this process reads it itself, and gets SIGBUS */
        close(file);
        skip();
    }
    assert_int_equal(ftruncate(file, (off_t)length), 0);
    uint8_t *bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    assert_ptr_not_equal(bytes, MAP_FAILED);
    ends_open(&server, &client, sockets_tcp, 1, 4);
    struct ibx_mr *mr = end_register(&server, bytes, length, BOTH);
    struct ibx_mr *local = end_register(&client, NULL, length, 0);
    struct ibx_chunk chunk = read_of(mr, local, length);
    assert_int_equal(ftruncate(file, 0), 0);
    assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunk), 0);
    assert_true(end_await(&server, &client, 1));
    assert_int_equal(server.notes[0].kind, NOTE_LOST);
    assert_int_equal(server.notes[0].status, -EFAULT);
    assert_non_null(strstr(server.notes[0].reason, "its file was cut short"));
    end_deregister(&client, local);
    end_deregister(&server, mr);
    ends_close(&server, &client);
    munmap(bytes, length);
    close(file);
}

/* On every lane, the loss of a single packet costs 20 ms instead of 200, if the kernel supports
 * it. */
static void test_losses_are_noticed_early(void **state)
{
    (void)state;
    const int retransmit_min = 45, acknowledge_max = 46; /* TCP_RTO_MIN_US, TCP_DELACK_MAX_US */
    int us = 0;
    socklen_t length = sizeof(us);
    ends_open(&server, &client, sockets_tcp, 2, 4);
    if (getsockopt(client.tcp->lanes[0].fd, IPPROTO_TCP, retransmit_min, &us, &length)) {
        ends_close(&server, &client);
        skip();
    }
    for (unsigned i = 0; i < 6; i++) {
        int fd = (i < 3 ? &client : &server)->tcp->lanes[i % 3].fd;
        assert_int_equal(getsockopt(fd, IPPROTO_TCP, retransmit_min, &us, &length), 0);
        assert_int_equal(us, 20000);
        assert_int_equal(getsockopt(fd, IPPROTO_TCP, acknowledge_max, &us, &length), 0);
        assert_in_range(us, 1, 19999); /* the kernel rounds to jiffies */
    }
    ends_close(&server, &client);
}

#ifdef IBX_WITH_URING
static unsigned refusals; /* how many submissions the kernel refuses from now on */

int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);

int __wrap_io_uring_submit(struct io_uring *ring)
{
    if (!refusals)
        return __real_io_uring_submit(ring);
    refusals--;
    return -EAGAIN;
}

/* Nothing would wake a sleeper in this state, so arm() must not let anybody sleep. */
static void test_work_that_the_kernel_refuses(void **state)
{
    (void)state;
    ends_open(&server, &client, sockets_tcp, 1, 4);
    struct ibx_mr *mr = end_register(&server, NULL, 4096, BOTH);
    struct ibx_mr *local = end_register(&client, NULL, 4096, 0);
    struct ibx_chunk chunk = read_of(mr, local, 4096);
    refusals = 2;
    for (unsigned i = 0; i < 2; i++) {
        end_turn(&client);
        assert_int_equal(refusals, 1 - i);
        assert_int_equal(ibx_provider_tcp.arm(client.tcp), 1);
    }
    while (end_turn(&client) || ibx_provider_tcp.arm(client.tcp))
        ;
    assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunk), 0);
    assert_true(end_await(&client, &server, 1));
    assert_int_equal(client.notes[0].status, 0);
    end_deregister(&client, local);
    end_deregister(&server, mr);
    ends_close(&server, &client);
}

/* Takes CAP_IPC_LOCK from this thread, or gives it back. */
static void may_lock(bool may)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    assert_int_equal(syscall(SYS_capget, &header, data), 0);
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    data[0].effective |= may ? data[0].permitted & 1u << CAP_IPC_LOCK : 0;
    assert_int_equal(syscall(SYS_capset, &header, data), 0);
}

/* The kernel counts what it sends without a copy as locked memory. If that is too much, copies are
 * sent. */
static void test_memory_that_may_not_be_locked(void **state)
{
    (void)state;
    const size_t length = 4u << 20;
    struct rlimit before, low;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    low = before;
    low.rlim_cur = 256u << 10;
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &low), 0);
    may_lock(false);
    ends_open(&server, &client, sockets_tcp, 1, 4);
    struct ibx_mr *mr = end_register(&server, NULL, length, BOTH);
    struct ibx_mr *local = end_register(&client, NULL, length, 0);
    uint8_t *to = mr->span.address, *from = local->span.address;
    memset(from, 7, length);
    struct ibx_chunk chunk = read_of(mr, local, length);
    chunk.kind = IBX_RDMA_WRITE;
    for (unsigned i = 0; i < 3; i++) {
        memset(to, 0, length);
        assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunk), 0);
        assert_true(end_await(&client, &server, i + 1));
        assert_int_equal(client.notes[i].kind, NOTE_CHUNK);
        assert_int_equal(client.notes[i].status, 0);
        assert_memory_equal(to, from, length);
    }
    end_deregister(&client, local);
    end_deregister(&server, mr);
    ends_close(&server, &client);
    may_lock(true);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

static struct tcp_post *held[64];
static unsigned held_count;
static bool holds; /* the kernel's words that it is done with memory are held back */

void __real_ibx_tcp_on_post_released(struct tcp *tcp, struct tcp_post *post);
void __wrap_ibx_tcp_on_post_released(struct tcp *tcp, struct tcp_post *post);

void __wrap_ibx_tcp_on_post_released(struct tcp *tcp, struct tcp_post *post)
{
    assert_true(held_count < sizeof(held) / sizeof(held[0]));
    if (holds)
        held[held_count++] = post;
    else
        __real_ibx_tcp_on_post_released(tcp, post);
}

/* The peer has all bytes of a WRITE and has said so. Its memory stays in use until the kernel no
 * longer has pages of it either: the bytes may have to be sent once more. */
static void test_memory_that_the_kernel_still_has(void **state)
{
    (void)state;
    const size_t length = 64u << 10; /* the socket takes it all before the peer reads */
    ends_open(&server, &client, sockets_tcp, 1, 4);
    struct ibx_mr *mr = end_register(&server, NULL, length, BOTH);
    struct ibx_mr *local = end_register(&client, NULL, length, 0);
    uint8_t *to = mr->span.address, *from = local->span.address;
    memset(from, 7, length);
    struct ibx_chunk chunk = read_of(mr, local, length);
    chunk.kind = IBX_RDMA_WRITE;
    holds = true;
    const struct tcp_post *post = client.tcp->posts_free;
    assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunk), 0);
    uint64_t deadline = ibx_deadline_in_ms(END_PATIENCE_MS);
    while (post->state.now == TCP_POST_QUEUED && ibx_now_ns() < deadline)
        end_turn(&client);
    while (memcmp(to, from, length) && ibx_now_ns() < deadline)
        end_turn(&server);
    assert_memory_equal(to, from, length);
    end_settle(&server);
    end_settle(&client);
    holds = false;
    const bool without_copies = held_count > 0;
    if (without_copies)
        assert_int_equal(client.count, 0);
    while (held_count)
        __real_ibx_tcp_on_post_released(client.tcp, held[--held_count]);
    assert_true(end_await(&client, &server, 1));
    assert_int_equal(client.notes[0].status, 0);
    end_deregister(&client, local);
    end_deregister(&server, mr);
    ends_close(&server, &client);
    if (!without_copies)
        skip();
}
#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_are_noticed_early),
        cmocka_unit_test(test_frames_are_these_bytes),
        cmocka_unit_test(test_malformed_frames_are_refused),
        cmocka_unit_test(test_messages_of_all_lengths),
        cmocka_unit_test(test_messages_in_a_row_stay_whole),
        cmocka_unit_test(test_message_written_in_two_parts),
        cmocka_unit_test(test_order_if_the_socket_is_full),
        cmocka_unit_test(test_credits_bound_the_sender),
        cmocka_unit_test(test_signaled_sends_are_reported_once),
        cmocka_unit_test(test_sleepers_are_woken_by_input),
        cmocka_unit_test(test_urgent_work_that_more_follows),
        cmocka_unit_test(test_sleepers_are_woken_by_room),
        cmocka_unit_test(test_room_is_given_back_before_the_sleep),
        cmocka_unit_test(test_abort_is_noticed),
        cmocka_unit_test(test_memory_that_cannot_be_read),
    };
    if (argc > 1)
        end_choose(argv[1]);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
#ifdef IBX_WITH_URING
    const struct CMUnitTest ring_tests[] = {cmocka_unit_test(test_work_that_the_kernel_refuses)};
    const struct CMUnitTest zerocopy_tests[] = {
        cmocka_unit_test(test_memory_that_the_kernel_still_has),
        cmocka_unit_test(test_memory_that_may_not_be_locked)};
    if (argc > 1 && !strcmp(argv[1], "uring")) {
        failed += cmocka_run_group_tests(ring_tests, NULL, NULL);
        end_choose("uring-zc");
        failed += cmocka_run_group_tests(zerocopy_tests, NULL, NULL);
    }
#endif
    return failed;
}
