/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tcp provider: its frames, how lanes come to be, and two honest ends. */
#include "tests/scenes/tcp_end.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

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
}

/* Every byte that a type does not use must be zero, every number in its bounds. */
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
    };
    struct ibx_tcp_frame frame;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(ibx_tcp_frame_get(good[i], &frame), 0);
        bool lane = i == 1, credits = i == 0 || i == 6, status = i == 5;
        bool id = i >= 1 && i <= 5, length = i <= 3, target = i == 1 || i == 3;
        const bool free_byte[IBX_TCP_FRAME_BYTES] = {
            true,   lane,   credits, credits, status, status, status, status,
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
        {8, 0, 1},
        {255},
        {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0x10}, /* MESSAGE of 1 MiB + 1 */
        {2, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0},          /* READ of nothing */
        {3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 4}, /* DATA of 64 MiB + 1 */
        {4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff},
        {6, 0, 0, 0, 0, 0, 0, 0, 1}, /* NAK without a reason */
        {6, 0, 0, 0, 3, 0, 0, 0, 1},
        {7}, /* CREDIT for nothing */
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(ibx_tcp_frame_get(wrong[i], &frame), -EPROTO);
}

static void test_hello_and_terms(void **state)
{
    (void)state;
    uint8_t proof[IBX_PROOF_BYTES], hello[IBX_TCP_HELLO_BYTES];
    unsigned lane = 0;
    const uint8_t *shown;
    proof_of("tcp lane 3", proof);
    ibx_tcp_hello_put(3, proof, hello);
    const uint8_t golden[8] = {'i', 'b', 'x', 'L', 1, 3, 0, 0};
    assert_memory_equal(hello, golden, sizeof(golden));
    assert_int_equal(ibx_tcp_hello_get(hello, &lane, &shown), 0);
    assert_int_equal(lane, 3);
    assert_memory_equal(shown, proof, sizeof(proof));
    for (unsigned at = 0; at < 8; at++) {
        hello[at] ^= 0x40;
        assert_int_equal(ibx_tcp_hello_get(hello, &lane, &shown), -EPROTO);
        hello[at] ^= 0x40;
    }
    hello[5] = 0;
    assert_int_equal(ibx_tcp_hello_get(hello, &lane, &shown), -EPROTO);

    const uint8_t terms_golden[IBX_TCP_TERMS_BYTES] = {1, 2, 0, 16, 0, 80, 0, 0, 0x40, 0, 0};
    struct ibx_tcp_terms terms = {.lanes = 2, .slots = 16, .depth = 80, .message = 16384};
    uint8_t bytes[IBX_TCP_TERMS_BYTES];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_tcp_terms_put(&terms, &w);
    assert_memory_equal(bytes, terms_golden, sizeof(bytes));
    static const struct {
        unsigned at;
        uint8_t value;
    } wrong[] = {{0, 2}, {1, 17}, {3, 0}, {4, 5}, {5, 0}, {6, 9}, {8, 0}, {9, 17}, {10, 1}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        memcpy(bytes, terms_golden, sizeof(bytes));
        bytes[wrong[i].at] = wrong[i].value;
        struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
        if (ibx_tcp_terms_get(&r, &terms) != -EPROTO)
            fail_msg("terms with %u at %u are taken", wrong[i].value, wrong[i].at);
    }
    for (size_t n = 0; n < sizeof(bytes); n++) {
        struct ibx_reader r = ibx_reader_of(terms_golden, n);
        assert_int_equal(ibx_tcp_terms_get(&r, &terms), -EPROTO);
    }
}

/* ------------------------------------------------------------------------- lanes */

static void connect_ends(void (*sockets)(int[2]), unsigned lanes, unsigned slots)
{
    int door[2];
    sockets(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], lanes, slots);
    end_init(&client, IBX_ROLE_CLIENT, door[1], lanes, slots);
    ends_encrypt_and_connect(&server, &client);
}

static void disconnect(void)
{
    end_close(&client);
    end_close(&server);
}

static struct ibx_caps caps_of(struct end *end)
{
    struct ibx_caps caps;
    char description[192];
    ibx_provider_tcp.query(end->tcp, &caps, description, sizeof(description));
    return caps;
}

/* Moves `length` bytes by one chunk of each kind and compares them. */
static void exchange(size_t length, unsigned lane)
{
    uint8_t *here = malloc(length), *there = malloc(length);
    struct ibx_mr *mr = end_register(&client, there, length, BOTH);
    for (size_t i = 0; i < length; i++) {
        here[i] = (uint8_t)(i * 7 + i / 255);
        there[i] = 0;
    }
    struct ibx_chunk chunk = {
        .kind = IBX_RDMA_WRITE,
        .lane = lane,
        .local = here,
        .remote_address = (uintptr_t)there,
        .remote_keys = mr->keys,
        .length = length,
    };
    for (int kind = 0; kind < 2; kind++) {
        unsigned before = server.count;
        assert_int_equal(ibx_provider_tcp.rdma(server.tcp, &chunk), 0);
        assert_true(end_await(&server, &client, before + 1));
        assert_int_equal(server.notes[before].kind, NOTE_CHUNK);
        assert_int_equal(server.notes[before].status, 0);
        assert_ptr_equal(server.notes[before].chunk, &chunk);
        assert_memory_equal(here, there, length);
        memset(here, 0, length);
        chunk.kind = IBX_RDMA_READ;
    }
    end_deregister(&client, mr);
    free(here);
    free(there);
}

static void test_lanes_over_tcp(void **state)
{
    (void)state;
    connect_ends(sockets_tcp, 3, 4);
    assert_int_equal(caps_of(&server).lanes, 3);
    assert_int_equal(caps_of(&client).lanes, 3);
    for (unsigned lane = 0; lane <= 3; lane++) {
        exchange(1, lane);
        exchange(300000, lane);
    }
    disconnect();
}

static void test_lanes_beside_a_unix_door(void **state)
{
    (void)state;
    connect_ends(sockets_unix, 2, 4);
    assert_int_equal(caps_of(&server).lanes, 2);
    exchange(300000, 2);
    disconnect();
}

/* A server that offers two lanes at a port where nobody answers (a firewall would do the same). */
static void test_without_lanes_all_goes_by_the_door(void **state)
{
    (void)state;
    int door[2];
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 2, 4);
    end_init(&client, IBX_ROLE_CLIENT, door[1], 2, 4);
    ends_encrypt(&server, &client);
    uint8_t offered[64], answered[64];
    struct ibx_writer offer = ibx_writer_of(offered, sizeof(offered));
    struct ibx_writer answer = ibx_writer_of(answered, sizeof(answered));
    assert_int_equal(ibx_provider_tcp.offer(server.tcp, &offer, NULL), 0);
    close(server.tcp->listener);
    server.tcp->listener = -1;
    struct ibx_reader r = ibx_reader_of(offered, offer.length);
    assert_int_equal(ibx_provider_tcp.join(client.tcp, &r, &answer, NULL), 0);
    r = ibx_reader_of(answered, answer.length);
    uint64_t deadline = ibx_deadline_in_ms(10000);
    assert_int_equal(ibx_provider_tcp.finish(server.tcp, &r, deadline, NULL), 0);
    assert_int_equal(ibx_provider_tcp.finish(client.tcp, NULL, deadline, NULL), 0);
    assert_int_equal(caps_of(&server).lanes, 0);
    assert_int_equal(caps_of(&client).lanes, 0);
    exchange(1, 0);
    exchange(3000000, 0);
    disconnect();
}

static unsigned open_descriptors(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void *finish_server(void *rc)
{
    uint8_t lanes[64];
    struct ibx_writer w = ibx_writer_of(lanes, sizeof(lanes));
    ibx_tcp_terms_put(&client.tcp->mine, &w);
    struct ibx_reader answer = ibx_reader_of(lanes, w.length);
    *(int *)rc = ibx_provider_tcp.finish(server.tcp, &answer, ibx_deadline_in_ms(3000), NULL);
    return NULL;
}

/* A crowd that comes behind a lane, before the server looks, does not take its place. */
static void test_a_crowd_keeps_no_lane_out(void **state)
{
    (void)state;
    uint8_t offered[64], answered[64];
    struct ibx_writer offer = ibx_writer_of(offered, sizeof(offered));
    struct ibx_writer answer = ibx_writer_of(answered, sizeof(answered));
    struct ibx_tcp_terms terms;
    pthread_t thread;
    int door[2], crowd[34], rc = 0;
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 1, 4);
    end_init(&client, IBX_ROLE_CLIENT, door[1], 1, 4);
    ends_encrypt(&server, &client);
    assert_int_equal(ibx_provider_tcp.offer(server.tcp, &offer, NULL), 0);
    struct ibx_reader r = ibx_reader_of(offered, offer.length);
    assert_int_equal(ibx_provider_tcp.join(client.tcp, &r, &answer, NULL), 0);
    r = ibx_reader_of(offered, offer.length);
    assert_int_equal(ibx_tcp_terms_get(&r, &terms), 0);
    for (unsigned i = 0; i < 34; i++)
        crowd[i] = raw_lane(&r, 0);
    assert_int_equal(pthread_create(&thread, NULL, finish_server, &rc), 0);
    int own = ibx_provider_tcp.finish(client.tcp, NULL, ibx_deadline_in_ms(3000), NULL);
    pthread_join(thread, NULL);
    assert_int_equal(rc, 0);
    assert_int_equal(own, 0);
    assert_int_equal(caps_of(&server).lanes, 1);
    for (unsigned i = 0; i < 34; i++)
        close(crowd[i]);
    disconnect();
}

/* Other sockets at the ephemeral port neither become lanes nor keep the right ones out. */
static void test_unproven_sockets_are_no_lanes(void **state)
{
    (void)state;
    int door[2], unproven[40];
    unsigned before = open_descriptors();
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 1, 4);
    uint8_t hello[IBX_TCP_HELLO_BYTES], proof[IBX_PROOF_BYTES];
    struct raw_client raw;
    raw_begin(&raw, &server);
    for (unsigned i = 0; i < 40; i++) {
        unproven[i] = raw_lane(&raw.address, 0);
        proof_of(i % 2 ? "tcp lane 1" : "tcp lane 2", proof);
        ibx_tcp_hello_put(i % 2 ? 2 : 1, proof, hello);
        /* Some send nothing, some half of it, some the proof of another lane, some rubbish. */
        size_t n = i % 4 == 0 ? 0 : i % 4 == 1 ? 20 : sizeof(hello);
        if (i % 4 == 3)
            memset(hello, 'G', sizeof(hello));
        assert_int_equal(send(unproven[i], hello, n, MSG_NOSIGNAL), n);
    }
    int lane = raw_lane(&raw.address, 1);
    assert_int_equal(raw_finish(&raw, &server, 1, ibx_deadline_in_ms(10000), NULL), 0);
    assert_int_equal(caps_of(&server).lanes, 1);
    /* It is the right one: a frame on it is heard, with a sentence. */
    const uint8_t ack[IBX_TCP_FRAME_BYTES] = {IBX_TCP_ACK};
    assert_int_equal(send(lane, ack, sizeof(ack), MSG_NOSIGNAL), sizeof(ack));
    assert_true(end_await(&server, NULL, 1));
    assert_int_equal(server.notes[0].kind, NOTE_LOST);
    assert_int_equal(server.notes[0].status, -EPROTO);
    for (unsigned i = 0; i < 40; i++)
        close(unproven[i]);
    close(lane);
    close(door[1]);
    end_close(&server);
    assert_int_equal(open_descriptors(), before);
}

/* A second socket with the proof of a lane does not take its target, nor that of another. */
static void test_a_lane_comes_once(void **state)
{
    (void)state;
    int door[2];
    unsigned before = open_descriptors();
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 2, 4);
    struct raw_client raw;
    raw_begin(&raw, &server);
    int lanes[3] = {raw_lane(&raw.address, 1), raw_lane(&raw.address, 1),
                    raw_lane(&raw.address, 2)};
    assert_int_equal(raw_finish(&raw, &server, 2, ibx_deadline_in_ms(10000), NULL), 0);
    assert_int_equal(caps_of(&server).lanes, 2);
    end_close(&server);
    for (int i = 0; i < 3; i++)
        close(lanes[i]);
    close(door[1]);
    assert_int_equal(open_descriptors(), before);
}

static void test_missing_lanes_are_an_error(void **state)
{
    (void)state;
    int door[2];
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 2, 4);
    struct raw_client raw;
    struct ibx_error err = {0};
    raw_begin(&raw, &server);
    assert_int_equal(raw_finish(&raw, &server, 2, ibx_now_ns(), &err), -ETIMEDOUT);
    assert_non_null(strstr(err.message, "0 of the client's 2"));
    end_close(&server);
    close(door[1]);
}

static void test_senseless_setups_are_refused(void **state)
{
    (void)state;
    int door[2];
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 1, 4);
    end_init(&client, IBX_ROLE_CLIENT, door[1], 1, 4);
    uint8_t offered[64], answered[64];
    struct ibx_writer offer = ibx_writer_of(offered, sizeof(offered));
    struct ibx_error err = {0};
    assert_int_equal(ibx_provider_tcp.offer(server.tcp, &offer, NULL), 0);
    for (size_t n = 0; n < offer.length; n++) { /* cut off anywhere */
        struct ibx_writer answer = ibx_writer_of(answered, sizeof(answered));
        struct ibx_reader r = ibx_reader_of(offered, n);
        assert_int_equal(ibx_provider_tcp.join(client.tcp, &r, &answer, &err), -EPROTO);
    }
    /* A name beside a TCP door. */
    const uint8_t name[] = {2, 5, 0, 'h', 'e', 'l', 'l', 'o'};
    memcpy(offered + IBX_TCP_TERMS_BYTES, name, sizeof(name));
    struct ibx_writer answer = ibx_writer_of(answered, sizeof(answered));
    struct ibx_reader r = ibx_reader_of(offered, IBX_TCP_TERMS_BYTES + sizeof(name));
    assert_int_equal(ibx_provider_tcp.join(client.tcp, &r, &answer, &err), -EPROTO);
    /* More lanes than were offered. */
    struct ibx_tcp_terms terms = {.lanes = 2, .slots = 4, .depth = 8, .message = 1024};
    ibx_tcp_terms_put(&terms, &answer);
    r = ibx_reader_of(answered, answer.length);
    assert_int_equal(ibx_provider_tcp.finish(server.tcp, &r, ibx_now_ns(), &err), -EPROTO);
    disconnect();
}

/* ---------------------------------------------------------------------- messages */

static void release(struct end *end, unsigned note)
{
    ibx_provider_tcp.release(end->tcp, end->notes[note].token);
}

static void test_messages_of_all_lengths(void **state)
{
    (void)state;
    connect_ends(sockets_tcp, 1, 4);
    size_t max = caps_of(&server).message_max;
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
    disconnect();
}

static size_t row_length(unsigned lap, unsigned i)
{
    return (i * 97 + lap * 13) % (lap % 2 ? 50 : 2500);
}

/* Several at once, so that one read of the socket brings the end of one and the start of others. */
static void test_messages_in_a_row_stay_whole(void **state)
{
    (void)state;
    connect_ends(sockets_tcp, 1, 64);
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
        /* What was given back comes to the sender without a message to ride on. */
        end_settle(&client);
        end_settle(&server);
    }
    disconnect();
}

/* The socket takes a part of a message now and the rest later. */
static void test_a_message_in_two_goes(void **state)
{
    (void)state;
    static uint8_t bytes[12000];
    int little = 1; /* the kernel makes its minimum of it */
    connect_ends(sockets_unix, 1, 4);
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
    disconnect();
}

/* A long message that waits for the socket is not overtaken by a short one behind it. */
static void test_order_where_the_socket_is_full(void **state)
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
    disconnect();
}

static void test_credits_bound_the_sender(void **state)
{
    (void)state;
    connect_ends(sockets_tcp, 1, 4);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(end_send(&server, "abcd", 4, 0), 0);
    assert_int_equal(end_send(&server, "abcd", 4, 0), -EAGAIN);
    assert_true(end_await(&client, &server, 4));
    end_settle(&server);
    assert_int_equal(end_send(&server, "abcd", 4, 0), -EAGAIN);
    release(&client, 2);
    release(&client, 2); /* once is enough */
    end_settle(&client);
    end_settle(&server);
    assert_int_equal(end_send(&server, "efgh", 4, 0), 0);
    assert_int_equal(end_send(&server, "efgh", 4, 0), -EAGAIN);
    /* Or they ride on a message, which needs no frame of their own. */
    release(&client, 0);
    release(&client, 1);
    assert_int_equal(end_send(&client, "back", 4, 0), 0);
    assert_true(end_await(&server, &client, 1));
    assert_int_equal(end_send(&server, "efgh", 4, 0), 0);
    assert_int_equal(end_send(&server, "efgh", 4, 0), 0);
    assert_int_equal(end_send(&server, "efgh", 4, 0), -EAGAIN);
    disconnect();
}

static void test_signaled_sends_are_reported_once(void **state)
{
    (void)state;
    connect_ends(sockets_tcp, 1, 4);
    assert_int_equal(end_send(&server, "abcd", 4, IBX_SIGNALED), 0);
    assert_int_equal(server.count, 0); /* nothing is reported from inside send */
    assert_true(end_await(&server, &client, 1));
    assert_int_equal(server.notes[0].kind, NOTE_SEND);
    assert_int_equal(server.notes[0].status, 0);
    assert_int_equal(server.notes[0].token, 77);
    end_settle(&server);
    assert_int_equal(server.count, 1);
    disconnect();
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
    connect_ends(sockets_tcp, 1, 4);
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
    disconnect();
}

/* A sender whose socket is full sleeps until it takes bytes again. */
static void test_sleepers_are_woken_by_room(void **state)
{
    (void)state;
    connect_ends(sockets_tcp, 1, 4);
    size_t length = 48u << 20; /* more than the sockets hold */
    struct ibx_mr *mr = end_register(&server, NULL, length, BOTH);
    struct ibx_mr *local = end_register(&client, NULL, length, 0);
    struct ibx_chunk chunk = {
        .kind = IBX_RDMA_READ,
        .lane = 1,
        .local = local->span.address,
        .remote_address = (uintptr_t)mr->span.address,
        .remote_keys = mr->keys,
        .length = length,
    };
    assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunk), 0);
    end_turn(&client);
    drain(&server);
    assert_false(end_wakes(&server, 0));
    uint64_t deadline = ibx_deadline_in_ms(END_PATIENCE_MS);
    while (!end_wakes(&server, 0) && ibx_now_ns() < deadline)
        end_turn(&client);
    assert_true(end_wakes(&server, 0));
    assert_true(end_await(&client, &server, 1));
    assert_int_equal(client.notes[0].status, 0);
    end_deregister(&client, local);
    end_deregister(&server, mr);
    disconnect();
}

/* A packet lost alone, on whatever lane, costs 20 ms instead of 200 (where the kernel can). */
static void test_losses_are_noticed_early(void **state)
{
    (void)state;
    const int retransmit_min = 45, acknowledge_max = 46; /* TCP_RTO_MIN_US, TCP_DELACK_MAX_US */
    int us = 0;
    socklen_t length = sizeof(us);
    connect_ends(sockets_tcp, 2, 4);
    if (getsockopt(client.tcp->lanes[0].fd, IPPROTO_TCP, retransmit_min, &us, &length)) {
        disconnect();
        skip();
    }
    for (unsigned i = 0; i < 6; i++) {
        int fd = (i < 3 ? &client : &server)->tcp->lanes[i % 3].fd;
        assert_int_equal(getsockopt(fd, IPPROTO_TCP, retransmit_min, &us, &length), 0);
        assert_int_equal(us, 20000);
        assert_int_equal(getsockopt(fd, IPPROTO_TCP, acknowledge_max, &us, &length), 0);
        assert_in_range(us, 1, 19999); /* it counts in jiffies */
    }
    disconnect();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_are_noticed_early),
        cmocka_unit_test(test_frames_are_these_bytes),
        cmocka_unit_test(test_malformed_frames_are_refused),
        cmocka_unit_test(test_hello_and_terms),
        cmocka_unit_test(test_lanes_over_tcp),
        cmocka_unit_test(test_lanes_beside_a_unix_door),
        cmocka_unit_test(test_without_lanes_all_goes_by_the_door),
        cmocka_unit_test(test_unproven_sockets_are_no_lanes),
        cmocka_unit_test(test_a_crowd_keeps_no_lane_out),
        cmocka_unit_test(test_a_lane_comes_once),
        cmocka_unit_test(test_missing_lanes_are_an_error),
        cmocka_unit_test(test_senseless_setups_are_refused),
        cmocka_unit_test(test_messages_of_all_lengths),
        cmocka_unit_test(test_messages_in_a_row_stay_whole),
        cmocka_unit_test(test_a_message_in_two_goes),
        cmocka_unit_test(test_order_where_the_socket_is_full),
        cmocka_unit_test(test_credits_bound_the_sender),
        cmocka_unit_test(test_signaled_sends_are_reported_once),
        cmocka_unit_test(test_sleepers_are_woken_by_input),
        cmocka_unit_test(test_sleepers_are_woken_by_room),
    };
    if (argc > 1)
        end_choose(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
