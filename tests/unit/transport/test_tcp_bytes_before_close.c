/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Bytes that a peer sent before it closed the connection arrive, however slowly this side reads.
 * The linker's --wrap replaces clock_gettime(2), so that a test can let time pass. */
#include "tests/fixtures/tcp_end.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define SLOTS    16u
#define MESSAGES 15u /* one more would use up the credits */
/* of each message; together more than a receiver that does not read accepts */
#define BYTES     12288
#define SEND_ROOM (1 << 20)
#define LONG      ((size_t)48 << 20) /* more than the sockets hold */

static time_t ahead; /* seconds that the monotonic clock is before the system's */

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    const int rc = __real_clock_gettime(clock, now);
    now->tv_sec += clock == CLOCK_MONOTONIC ? ahead : 0;
    return rc;
}

static struct end server, client;
static int lanes[3]; /* of a raw client: lane 0 and two bulk lanes */

static void send_message(const char *four)
{
    uint8_t bytes[IBX_TCP_FRAME_BYTES + 4];
    ibx_tcp_frame_put(&(struct ibx_tcp_frame){.type = IBX_TCP_MESSAGE, .length = 4}, bytes);
    memcpy(bytes + IBX_TCP_FRAME_BYTES, four, 4);
    assert_int_equal(send(lanes[0], bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
}

static void expect_end(unsigned messages)
{
    assert_true(end_await(&server, NULL, messages + 1));
    for (unsigned i = 0; i < messages; i++)
        assert_int_equal(server.notes[i].kind, NOTE_MESSAGE);
    assert_int_equal(server.notes[messages].kind, NOTE_LOST);
    assert_int_equal(server.notes[messages].status, -ECONNRESET);
    assert_non_null(strstr(server.notes[messages].reason, "closed"));
}

/* Connects a raw client, which sends three messages. */
static void connect_raw(void)
{
    int sockets[2];
    sockets_tcp(sockets);
    lanes[0] = sockets[1];
    end_init(&server, IBX_ROLE_SERVER, sockets[0], 2, 4);
    end_connect_raw(&server, lanes, 2);
    for (int i = 0; i < 3; i++)
        send_message("soon");
    assert_true(end_await(&server, NULL, 3));
}

/* The bulk lanes end, and the server notices. */
static void lose_lanes(void)
{
    close(lanes[1]);
    close(lanes[2]);
    end_settle(&server);
    assert_int_equal(server.count, 3);
}

static void arm(void)
{
    while (ibx_provider_tcp.arm(server.tcp))
        end_turn(&server);
}

/* The peer's last bytes come late, as if they had to wait for the window. A host drops what a
 * closed socket still has to send when anything but an end arrives, so the server must send
 * nothing more. */
static void test_bytes_after_the_end_of_other_lanes(void **state)
{
    (void)state;
    uint8_t byte;
    connect_raw();
    lose_lanes();
    for (unsigned i = 0; i < 3; i++) /* would return credits */
        ibx_provider_tcp.release(server.tcp, server.notes[i].token);
    assert_int_equal(end_send(&server, "hello", 5, 0), -EAGAIN);
    arm();
    assert_int_equal(recv(lanes[0], &byte, 1, 0), 0);
    assert_false(end_wakes(&server, 0));
    send_message("last");
    assert_true(end_wakes(&server, 10000));
    assert_true(end_await(&server, NULL, 4));
    assert_memory_equal(server.notes[3].data, "last", 4);
    close(lanes[0]);
    expect_end(4);
    end_close(&server);
}

/* The same if the server is given more work meanwhile, which waits until the end is known. */
static void test_bytes_while_requests_of_this_side_wait(void **state)
{
    (void)state;
    uint64_t key = 1;
    static uint8_t byte;
    struct ibx_chunk chunks[2];
    connect_raw();
    lose_lanes();
    for (unsigned i = 0; i < 2; i++) {
        chunks[i] = (struct ibx_chunk){.kind = i ? IBX_RDMA_WRITE : IBX_RDMA_READ,
                                       .local = &byte,
                                       .remote_keys = &key,
                                       .length = 1};
        assert_int_equal(ibx_provider_tcp.rdma(server.tcp, &chunks[i]), -EAGAIN);
        end_settle(&server);
    }
    send_message("last");
    close(lanes[0]);
    expect_end(4);
    assert_memory_equal(server.notes[3].data, "last", 4);
    end_close(&server);
}

/* Output that the peer does not read is no longer a reason to stay awake. */
static void test_bytes_while_output_waits(void **state)
{
    (void)state;
    uint64_t key = 1;
    struct ibx_chunk chunk = {.kind = IBX_RDMA_WRITE, .remote_keys = &key, .length = LONG};
    chunk.local = calloc(1, LONG);
    assert_non_null(chunk.local);
    connect_raw();
    assert_int_equal(ibx_provider_tcp.rdma(server.tcp, &chunk), 0);
    while (!server.tcp->lanes[0].blocked)
        end_turn(&server);
    arm();
    assert_false(end_wakes(&server, 0)); /* only room in the socket would wake it */
    lose_lanes();
    arm();
    assert_false(end_wakes(&server, 0));
    send_message("last");
    assert_true(end_wakes(&server, 10000));
    assert_true(end_await(&server, NULL, 4));
    assert_int_equal(server.notes[3].kind, NOTE_MESSAGE);
    close(lanes[0]); /* with unread bytes, so the kernel sends a reset */
    assert_true(end_await(&server, NULL, 5));
    assert_int_equal(server.notes[4].kind, NOTE_LOST);
    assert_int_equal(server.notes[4].status, -ECONNRESET);
    end_close(&server);
    free(chunk.local);
}

/* A peer that keeps lane 0 open and closes others is soon considered lost. */
static void test_no_end_of_lane_0(void **state)
{
    (void)state;
    connect_raw();
    lose_lanes();
    arm();
    assert_true(end_wakes(&server, 10000));
    expect_end(3);
    close(lanes[0]);
    end_close(&server);
}

/* ... also one that never stops sending. */
static void test_no_end_of_padding(void **state)
{
    (void)state;
    const struct ibx_tcp_frame padding = {.type = IBX_TCP_PAD, .length = 4};
    uint8_t bytes[IBX_TCP_FRAME_BYTES + 4] = {0};
    ibx_tcp_frame_put(&padding, bytes);
    connect_raw();
    lose_lanes();
    const time_t before = ahead;
    while (server.count == 3 && ahead - before < 90) {
        assert_int_equal(send(lanes[0], bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
        end_settle(&server);
        ahead++;
        assert_true(server.count == 3 || ahead - before >= 60);
    }
    assert_int_equal(server.count, 4);
    expect_end(3);
    close(lanes[0]);
    end_close(&server);
}

/* More than the server's window holds before it reads; the messages are released while the rest
 * arrives. */
static void test_bytes_behind_a_full_window(void **state)
{
    (void)state;
    static uint8_t text[BYTES];
    int sockets[2], room = SEND_ROOM;
    unsigned seen = 0;
    sockets_tcp(sockets);
    setsockopt(sockets[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    end_init(&server, IBX_ROLE_SERVER, sockets[0], 2, SLOTS);
    end_init(&client, IBX_ROLE_CLIENT, sockets[1], 2, SLOTS);
    ends_encrypt_and_connect(&server, &client);
    for (unsigned i = 0; i < MESSAGES; i++) {
        memset(text, 'a' + (int)i, sizeof(text));
        assert_int_equal(end_send(&client, text, sizeof(text), 0), 0);
        assert_false(ibx_tcp_lane_has_output(&client.tcp->lanes[0]));
    }
    ibx_provider_tcp.abort(client.tcp);
    end_close(&client);
    while (seen < MESSAGES) {
        assert_true(end_await(&server, NULL, seen + 1));
        for (; seen < server.count && seen < MESSAGES; seen++) {
            assert_int_equal(server.notes[seen].kind, NOTE_MESSAGE);
            assert_int_equal(server.notes[seen].length, BYTES);
            assert_int_equal(*(const uint8_t *)server.notes[seen].data, 'a' + seen);
            ibx_provider_tcp.release(server.tcp, server.notes[seen].token);
        }
    }
    expect_end(MESSAGES);
    end_close(&server);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        end_choose(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_after_the_end_of_other_lanes),
        cmocka_unit_test(test_bytes_while_requests_of_this_side_wait),
        cmocka_unit_test(test_bytes_while_output_waits),
        cmocka_unit_test(test_no_end_of_lane_0),
        cmocka_unit_test(test_no_end_of_padding),
        cmocka_unit_test(test_bytes_behind_a_full_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
