/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Messages of the tcp provider: ends that differ, long gather lists, memory of long messages, and
 * sends while the socket is full. Argument "tls": encrypted. */
#include "tests/fixtures/tcp_end.h"

#include "common/clock.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define UNIT 1024u /* bytes of a message that is not long */
#define LONG 12000u

static struct end server, client;

static void release(struct end *end, unsigned note)
{
    ibx_provider_tcp.release(end->tcp, end->notes[note].token);
}

/* `to` has received so many messages since its count was 0; gives their room back. */
static void release_all(struct end *to, struct end *from, unsigned count)
{
    assert_true(end_await(to, from, count));
    for (unsigned i = 0; i < count; i++)
        release(to, i);
    to->count = 0;
    end_settle(to);
    end_settle(from);
}

/* How many short messages an end may send, with these flags, until it has to wait. */
static unsigned sends_until_it_waits(struct end *end, unsigned flags)
{
    unsigned n = 0;
    while (n < 100 && !end_send(end, "abcd", 4, flags))
        n++;
    return n;
}

/* Each end bounds what it gets; both know the longer message that the other does not take. */
static void test_ends_that_differ(void **state)
{
    (void)state;
    int door[2];
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 1, 4);
    end_init(&client, IBX_ROLE_CLIENT, door[1], 1, 9);
    client.tcp->mine.message = 4 * UNIT;
    ends_encrypt_and_connect(&server, &client);
    assert_int_equal(end_caps(&server).message_max, 32 * UNIT + 4096);
    assert_int_equal(end_caps(&client).message_max, 32 * UNIT + 4096);
    for (unsigned round = 0; round < 3; round++) {
        assert_int_equal(sends_until_it_waits(&server, 0), 9);
        assert_int_equal(sends_until_it_waits(&client, 0), 4);
        release_all(&client, &server, 9);
        release_all(&server, &client, 4);
    }
    ends_close(&server, &client);
}

static size_t longest_of(unsigned message)
{
    int door[2];
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 0, 4);
    end_init(&client, IBX_ROLE_CLIENT, door[1], 0, 4);
    server.tcp->mine.message = client.tcp->mine.message = message;
    ends_encrypt_and_connect(&server, &client);
    const size_t longest = end_caps(&server).message_max;
    ends_close(&server, &client);
    return longest;
}

/* The protocol: both ends compute it, and encryption does not change it. */
static void test_the_longest_message(void **state)
{
    (void)state;
    assert_int_equal(longest_of(UNIT), 32 * UNIT + 4096);
    assert_int_equal(longest_of(16 * UNIT), 512 * UNIT + 4096);
    assert_int_equal(longest_of(96 * UNIT), 768 * UNIT + 4096);
    assert_int_equal(longest_of(512 * UNIT), IBX_TCP_MESSAGE_MAX);
}

static void test_the_last_credit_is_spared(void **state)
{
    (void)state;
    ends_open(&server, &client, sockets_tcp, 1, 4);
    assert_int_equal(sends_until_it_waits(&server, IBX_SPARING), 3);
    assert_int_equal(sends_until_it_waits(&server, 0), 1);
    release_all(&client, &server, 4);
    ends_close(&server, &client);
}

/* Gather lists of any length, around what one call to the kernel takes. */
static void test_long_gather_lists(void **state)
{
    (void)state;
    uint8_t bytes[40];
    struct iovec iov[40];
    ends_open(&server, &client, sockets_tcp, 1, 4);
    for (unsigned i = 0; i < 40; i++) {
        bytes[i] = (uint8_t)(i * 3);
        iov[i] = (struct iovec){bytes + i, 1};
    }
    for (int n = 13; n <= 40; n++) {
        assert_int_equal(ibx_provider_tcp.send(server.tcp, iov, n, (size_t)n, 0, 0), 0);
        assert_true(end_await(&client, &server, 1));
        assert_int_equal(client.notes[0].length, n);
        assert_memory_equal(client.notes[0].data, bytes, (size_t)n);
        release_all(&client, &server, 1);
    }
    ends_close(&server, &client);
}

/* ----------------------------------------------------------- a socket that is full */

static void open_with_full_socket(void)
{
    int little = 1; /* the kernel raises it to its minimum */
    ends_open(&server, &client, sockets_unix, 1, 4);
    assert_int_equal(
        setsockopt(server.handshake_socket, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little)), 0);
}

/* Sends messages of these lengths, of which the socket does not take all; they arrive whole. */
static void send_row(const size_t *lengths, unsigned count)
{
    static uint8_t bytes[LONG];
    for (unsigned i = 0; i < count; i++) {
        memset(bytes, (int)('a' + i), sizeof(bytes));
        assert_int_equal(end_send(&server, bytes, lengths[i], 0), 0);
        assert_true(ibx_tcp_lane_has_output(&server.tcp->lanes[0]));
    }
    assert_true(end_await(&client, &server, count));
    for (unsigned i = 0; i < count; i++) {
        memset(bytes, (int)('a' + i), sizeof(bytes));
        assert_int_equal(client.notes[i].length, lengths[i]);
        assert_memory_equal(client.notes[i].data, bytes, lengths[i]);
    }
    release_all(&client, &server, count);
}

/* The copies of messages that wait have room for these, whatever waited in the same place before,
 * and long copies are not kept. */
static void test_copies_of_messages_that_wait(void **state)
{
    (void)state;
    open_with_full_socket();
    send_row((size_t[]){LONG, 1, 2, 3}, 4);
    send_row((size_t[]){LONG, UNIT, UNIT, UNIT}, 4);
    send_row((size_t[]){LONG, LONG, LONG, LONG}, 4);
    for (unsigned i = 0; i < 4; i++)
        assert_null(server.tcp->sends[i].buffer);
    send_row((size_t[]){LONG, UNIT, LONG, 1}, 4);
    ends_close(&server, &client);
}

/* The socket takes bytes again before what waits has been sent. */
static void test_order_if_there_is_room_again(void **state)
{
    (void)state;
    static uint8_t bytes[LONG];
    open_with_full_socket();
    memset(bytes, 'a', sizeof(bytes));
    assert_int_equal(end_send(&server, bytes, LONG, 0), 0);
    assert_true(ibx_tcp_lane_has_output(&server.tcp->lanes[0]));
    end_turn(&client);
    assert_int_equal(end_send(&server, "b", 1, 0), 0);
    assert_true(end_await(&client, &server, 2));
    assert_int_equal(client.notes[0].length, LONG);
    assert_memory_equal(client.notes[0].data, bytes, LONG);
    assert_int_equal(client.notes[1].length, 1);
    ends_close(&server, &client);
}

/* The server's thread is away, in a long handler, while bytes wait that the socket has not taken:
 * the thread of signs sends them, in their order, and a sign behind them. */
static void test_what_waits_while_the_thread_is_away(void **state)
{
    (void)state;
    const int much = 1 << 20;
    uint64_t deadline = ibx_deadline_in_ms(END_PATIENCE_MS);
    static uint8_t bytes[LONG];
    open_with_full_socket();
    assert_true(client.tcp->places);
    client.tcp->expects_signs = true;
    memset(bytes, 'a', sizeof(bytes));
    assert_int_equal(end_send(&server, bytes, LONG, 0), 0);
    assert_int_equal(end_send(&server, "b", 1, IBX_SIGNALED), 0);
    assert_true(ibx_tcp_lane_has_output(&server.tcp->lanes[0]));
    assert_int_equal(
        setsockopt(server.handshake_socket, SOL_SOCKET, SO_SNDBUF, &much, sizeof(much)), 0);
    ibx_tcp_signs_begin(server.tcp);
    while ((client.count < 2 || !client.tcp->checks) && ibx_now_ns() < deadline)
        end_turn(&client);
    assert_int_equal(client.count, 2);
    assert_true(client.tcp->checks);
    assert_int_equal(client.notes[0].length, LONG);
    assert_memory_equal(client.notes[0].data, bytes, LONG);
    assert_int_equal(client.notes[1].length, 1);
    assert_int_equal(server.count, 0); /* its own thread reports what was sent */
    assert_true(end_await(&server, NULL, 1));
    assert_int_equal(server.notes[0].kind, NOTE_SEND);
    ends_close(&server, &client);
}

/* Room is given back once more while the frame that does so waits for the socket. */
static void test_room_that_is_told_while_the_socket_is_full(void **state)
{
    (void)state;
    static uint8_t bytes[LONG];
    open_with_full_socket();
    assert_int_equal(sends_until_it_waits(&client, 0), 4);
    assert_true(end_await(&server, NULL, 4));
    assert_int_equal(end_send(&server, bytes, LONG, 0), 0);
    for (unsigned i = 0; i < 4; i++) {
        release(&server, i);
        end_turn(&server);
    }
    assert_true(server.tcp->credit_queued);
    release_all(&client, &server, 1);
    end_settle(&client);
    assert_null(end_lost(&server));
    server.count = 0;
    assert_int_equal(sends_until_it_waits(&client, 0), 4);
    release_all(&server, &client, 4);
    ends_close(&server, &client);
}

/* ----------------------------------------------------------- memory that is lent */

static unsigned taken, given;

static void *take(size_t bytes)
{
    taken++;
    return malloc(bytes);
}

static void give(void *memory)
{
    given++;
    free(memory);
}

/* A program lends memory for one long message at a time, and has it back at the end. */
static void test_lent_memory(void **state)
{
    (void)state;
    static uint8_t bytes[UNIT + 1];
    const struct ibx_message_memory lender = {take, give};
    ends_open(&server, &client, sockets_tcp, 1, 4);
    client.options.long_messages = &lender;
    taken = given = 0;
    for (unsigned round = 1; round <= 3; round++) {
        for (unsigned i = 0; i < 2; i++)
            assert_int_equal(end_send(&server, bytes, sizeof(bytes), 0), 0);
        assert_true(end_await(&client, &server, 2));
        assert_int_equal(taken, round);
        assert_int_equal(given, round - 1);
        if (round < 3)
            release_all(&client, &server, 2);
    }
    ends_close(&server, &client);
    assert_int_equal(given, 3);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends_that_differ),
        cmocka_unit_test(test_the_longest_message),
        cmocka_unit_test(test_the_last_credit_is_spared),
        cmocka_unit_test(test_long_gather_lists),
        cmocka_unit_test(test_copies_of_messages_that_wait),
        cmocka_unit_test(test_order_if_there_is_room_again),
        cmocka_unit_test(test_what_waits_while_the_thread_is_away),
        cmocka_unit_test(test_room_that_is_told_while_the_socket_is_full),
        cmocka_unit_test(test_lent_memory),
    };
    if (argc > 1)
        end_choose(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
