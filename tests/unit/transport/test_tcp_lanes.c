/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How the lanes of the tcp provider are connected: hello, terms, which sockets are refused; and
 * padding. */
#include "tests/fixtures/tcp_end.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h> /* not <netinet/tcp.h>, which does not know what was received */
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#define BOTH (IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE)

static struct end server, client;

static void test_hello_and_terms(void **state)
{
    (void)state;
    uint8_t proof[IBX_PROOF_BYTES], hello[IBX_TCP_HELLO_BYTES];
    unsigned lane = 0;
    const uint8_t *shown;
    proof_of("tcp lane 3", proof);
    ibx_tcp_hello_put(3, proof, hello);
    const uint8_t golden[8] = {'i', 'b', 'x', 'L', 2, 3, 0, 0};
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

    const uint8_t terms_golden[IBX_TCP_TERMS_BYTES] = {2, 2, 0, 16, 0, 80, 0, 0, 0x40, 0, 0};
    struct ibx_tcp_terms terms = {.lanes = 2, .slots = 16, .depth = 80, .message = 16384};
    uint8_t bytes[IBX_TCP_TERMS_BYTES];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_tcp_terms_put(&terms, &w);
    assert_memory_equal(bytes, terms_golden, sizeof(bytes));
    static const struct {
        unsigned at;
        uint8_t value;
    } wrong[] = {{0, 1}, {1, 17}, {3, 0}, {4, 5}, {5, 0}, {6, 9}, {8, 0}, {9, 17}, {10, 1}};
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

static unsigned open_descriptors(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
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

/* What a connected end no longer needs is closed, and its number may be another descriptor's. */
static void keeps_no_closed_descriptor(const struct end *end)
{
    assert_int_equal(end->tcp->listener, -1);
    for (unsigned i = end->tcp->lane_count + 1; i <= IBX_TCP_LANES_MAX; i++)
        assert_int_equal(end->tcp->lanes[i].fd, -1);
}

static void test_lanes_over_tcp(void **state)
{
    (void)state;
    ends_open(&server, &client, sockets_tcp, 3, 4);
    keeps_no_closed_descriptor(&server);
    keeps_no_closed_descriptor(&client);
    assert_int_equal(end_caps(&server).lanes, 3);
    assert_int_equal(end_caps(&client).lanes, 3);
    assert_true(server.tcp->places && client.tcp->places);
    for (unsigned lane = 0; lane <= 3; lane++) {
        exchange(1, lane);
        exchange(300000, lane);
    }
    ends_close(&server, &client);
}

static int option_of(const struct tcp_lane *lane, int level, int name)
{
    int value = -1;
    socklen_t length = sizeof(value);
    assert_int_equal(getsockopt(lane->fd, level, name, &value, &length), 0);
    return value;
}

/* The kernel holds no frame back, and reports single bytes, also after the windows were opened. */
static void test_sockets_wait_for_nothing(void **state)
{
    (void)state;
    ends_open(&server, &client, sockets_tcp, 2, 4);
    client.tcp->same_host = false;
    const int before = option_of(&client.tcp->lanes[1], SOL_SOCKET, SO_RCVBUF);
    ibx_provider_tcp.receive_ahead(client.tcp);
    assert_true(option_of(&client.tcp->lanes[1], SOL_SOCKET, SO_RCVBUF) > before);
    for (unsigned i = 0; i < 6; i++) {
        const struct tcp_lane *lane = &(i < 3 ? &client : &server)->tcp->lanes[i % 3];
        assert_int_equal(option_of(lane, IPPROTO_TCP, TCP_NODELAY), 1);
        assert_int_equal(option_of(lane, SOL_SOCKET, SO_RCVLOWAT), 1);
    }
    ends_close(&server, &client);
}

/* ----------------------------------------------------------------------- padding */

#define PADDING ((size_t)300000) /* whole frames and a part of one */

/* What TCP is made to report: the truth, that no packets wait on the wire, or that they do. */
static enum { WIRE_REAL, WIRE_FREE, WIRE_FULL } wire;

int getsockopt(int fd, int level, int name, void *restrict value, socklen_t *restrict length)
{
    const socklen_t room = *length;
    const long rc = syscall(SYS_getsockopt, fd, level, name, value, length);
    if (!rc && level == IPPROTO_TCP && name == TCP_INFO && room == sizeof(struct tcp_info) &&
        wire != WIRE_REAL) {
        struct tcp_info *info = value;
        info->tcpi_min_rtt = 1000;
        info->tcpi_rtt = wire == WIRE_FULL ? 21600 : 21400;
    }
    return (int)rc;
}

static uint64_t received(const struct tcp_lane *lane)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof(info);
    assert_int_equal(getsockopt(lane->fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    return info.tcpi_bytes_received;
}

/* Connects ends on one host that act as if they were on two. */
static void connect_as_between_hosts(unsigned lanes)
{
    wire = WIRE_FREE;
    ends_open(&server, &client, sockets_tcp, lanes, 4);
    server.tcp->same_host = client.tcp->same_host = false;
}

static bool pads(const struct tcp *tcp)
{
    bool any = false;
    for (unsigned i = 0; i <= tcp->lane_count; i++)
        any |= tcp->lanes[i].pad.queued;
    return any;
}

static void padding_ends(void)
{
    const uint64_t deadline = ibx_deadline_in_ms(END_PATIENCE_MS);
    while (pads(server.tcp) && ibx_now_ns() < deadline) {
        end_turn(&server);
        end_turn(&client);
    }
    assert_false(pads(server.tcp));
}

/* So many bytes of padding go on each bulk lane; other work comes complete, after them. */
static void test_padding_goes_first(void **state)
{
    (void)state;
    connect_as_between_hosts(2);
    const uint64_t before[] = {received(&client.tcp->lanes[0]), received(&client.tcp->lanes[1]),
                               received(&client.tcp->lanes[2])};
    ibx_provider_tcp.pad(server.tcp, PADDING);
    padding_ends();
    exchange(300000, 1);
    exchange(300000, 2);
    for (unsigned lane = 1; lane <= 2; lane++)
        assert_true(received(&client.tcp->lanes[lane]) - before[lane] >= PADDING + 300000);
    assert_in_range(received(&client.tcp->lanes[0]) - before[0], 1, 10000);
    assert_int_equal(client.tcp->status, 0);
    ends_close(&server, &client);
}

/* If one socket is used for all, messages wait for at most one frame of padding. */
static void test_padding_on_one_socket(void **state)
{
    (void)state;
    int door[2];
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 1, 4);
    end_init(&client, IBX_ROLE_CLIENT, door[1], 1, 4);
    server.options.messages_only = client.options.messages_only = true;
    ends_encrypt_and_connect(&server, &client);
    server.tcp->same_host = client.tcp->same_host = false;
    wire = WIRE_FREE;
    assert_int_equal(server.tcp->lane_count, 0);
    ibx_provider_tcp.pad(server.tcp, (size_t)1 << 40);
    client.count = 0;
    assert_int_equal(end_send(&server, "abcd", 4, 0), 0);
    assert_true(end_await(&client, &server, 1));
    assert_memory_equal(client.notes[0].data, "abcd", 4);
    ibx_provider_tcp.release(client.tcp, client.notes[0].token);
    assert_true(pads(server.tcp));
    ibx_provider_tcp.pad(server.tcp, 0);
    padding_ends();
    exchange(300000, 0);
    assert_true(received(&client.tcp->lanes[0]) >= (32u << 10) + 300000);
    ends_close(&server, &client);
}

/* If padding is ended, it stops after the frame that is being sent. */
static void test_padding_that_is_ended(void **state)
{
    (void)state;
    connect_as_between_hosts(1);
    ibx_provider_tcp.pad(server.tcp, (size_t)1 << 40);
    for (unsigned i = 0; i < 100; i++) {
        end_turn(&server);
        end_turn(&client);
    }
    assert_true(pads(server.tcp));
    ibx_provider_tcp.pad(server.tcp, 0);
    padding_ends();
    exchange(300000, 1);
    ends_close(&server, &client);
}

/* If the wire is full, more padding would only delay what is sent next. */
static void test_padding_ends_where_packets_wait(void **state)
{
    (void)state;
    connect_as_between_hosts(1);
    ibx_provider_tcp.pad(server.tcp, (size_t)1 << 40);
    end_turn(&server);
    assert_true(pads(server.tcp));
    wire = WIRE_FULL;
    padding_ends();
    assert_int_equal(server.tcp->lanes[1].pad.left, 0);
    exchange(300000, 1);
    ends_close(&server, &client);
}

static void test_no_padding_within_a_host(void **state)
{
    (void)state;
    ends_open(&server, &client, sockets_tcp, 1, 4);
    ibx_provider_tcp.pad(server.tcp, PADDING);
    assert_false(pads(server.tcp));
    ends_close(&server, &client);
}

static void test_lanes_beside_a_unix_socket(void **state)
{
    (void)state;
    ends_open(&server, &client, sockets_unix, 2, 4);
    assert_int_equal(end_caps(&server).lanes, 2);
    exchange(300000, 2);
    ends_close(&server, &client);
}

/* The client wants more lanes than the server offers. */
static void test_no_more_lanes_than_offered(void **state)
{
    (void)state;
    int door[2];
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 1, 4);
    end_init(&client, IBX_ROLE_CLIENT, door[1], 3, 4);
    ends_encrypt_and_connect(&server, &client);
    assert_int_equal(end_caps(&server).lanes, 1);
    assert_int_equal(end_caps(&client).lanes, 1);
    exchange(300000, 1);
    ends_close(&server, &client);
}

/* A server that has no descriptor for a listener offers none; everything goes over one socket. */
static void test_no_descriptor_for_a_listener(void **state)
{
    (void)state;
    int door[2];
    uint8_t offered[64], answered[64];
    struct ibx_writer offer = ibx_writer_of(offered, sizeof(offered));
    struct ibx_writer answer = ibx_writer_of(answered, sizeof(answered));
    struct rlimit usual;
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 2, 4);
    end_init(&client, IBX_ROLE_CLIENT, door[1], 2, 4);
    ends_encrypt(&server, &client);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    const struct rlimit none = {0, usual.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const int rc = ibx_provider_tcp.offer(server.tcp, &offer, NULL);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
    assert_int_equal(rc, 0);
    struct ibx_reader r = ibx_reader_of(offered, offer.length);
    assert_int_equal(ibx_provider_tcp.join(client.tcp, &r, &answer, NULL), 0);
    r = ibx_reader_of(answered, answer.length);
    const uint64_t deadline = ibx_deadline_in_ms(END_PATIENCE_MS);
    assert_int_equal(ibx_provider_tcp.finish(server.tcp, &r, deadline, NULL), 0);
    assert_int_equal(ibx_provider_tcp.finish(client.tcp, NULL, deadline, NULL), 0);
    assert_int_equal(end_caps(&client).lanes, 0);
    exchange(300000, 0);
    ends_close(&server, &client);
}

/* A server offers two lanes at a port where nobody answers, as behind a firewall. */
static void test_without_lanes_all_goes_over_the_handshake_socket(void **state)
{
    (void)state;
    int door[2];
    const unsigned before = open_descriptors();
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 2, 4);
    end_init(&client, IBX_ROLE_CLIENT, door[1], 2, 4);
    ends_encrypt_and_connect_alone(&server, &client);
    assert_int_equal(end_caps(&server).lanes, 0);
    assert_int_equal(end_caps(&client).lanes, 0);
    exchange(1, 0);
    exchange(3000000, 0);
    keeps_no_closed_descriptor(&server);
    keeps_no_closed_descriptor(&client);
    ends_close(&server, &client);
    assert_int_equal(open_descriptors(), before);
}

/* Lanes would cost a round trip, and nobody would use them. */
static void test_no_lanes_for_messages_only(void **state)
{
    (void)state;
    int door[2];
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 2, 4);
    end_init(&client, IBX_ROLE_CLIENT, door[1], 2, 4);
    client.options.messages_only = true;
    ends_encrypt_and_connect(&server, &client);
    assert_int_equal(end_caps(&server).lanes, 0);
    assert_int_equal(end_caps(&client).lanes, 0);
    assert_int_equal(end_send(&client, "ping", 4, 0), 0);
    assert_true(end_await(&server, &client, 1));
    assert_int_equal(server.notes[0].kind, NOTE_MESSAGE);
    ends_close(&server, &client);
}

static void *finish_server(void *rc)
{
    uint8_t lanes[64];
    struct ibx_writer w = ibx_writer_of(lanes, sizeof(lanes));
    ibx_tcp_terms_put(&client.tcp->mine, &w);
    struct ibx_reader answer = ibx_reader_of(lanes, w.length);
    *(int *)rc =
        ibx_provider_tcp.finish(server.tcp, &answer, ibx_deadline_in_ms(END_PATIENCE_MS), NULL);
    return NULL;
}

/* Many connections that come after a lane, before the server looks, do not take its place. */
static void test_many_connections_keep_no_lane_out(void **state)
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
    /* The client goes on once the server has no place left: it closes some of the crowd then. */
    struct pollfd closed = {.fd = crowd[1], .events = POLLIN};
    assert_int_equal(poll(&closed, 1, (int)END_PATIENCE_MS), 1);
    int own = ibx_provider_tcp.finish(client.tcp, NULL, ibx_deadline_in_ms(END_PATIENCE_MS), NULL);
    pthread_join(thread, NULL);
    assert_int_equal(rc, 0);
    assert_int_equal(own, 0);
    assert_int_equal(end_caps(&server).lanes, 1);
    for (unsigned i = 0; i < 34; i++)
        close(crowd[i]);
    ends_close(&server, &client);
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
        /* Some send nothing, some half of a hello, some the proof of another lane, some random
         * bytes. */
        size_t n = i % 4 == 0 ? 0 : i % 4 == 1 ? 20 : sizeof(hello);
        if (i % 4 == 3)
            memset(hello, 'G', sizeof(hello));
        assert_int_equal(send(unproven[i], hello, n, MSG_NOSIGNAL), n);
    }
    int lane = raw_lane(&raw.address, 1);
    assert_int_equal(raw_finish(&raw, &server, 1, ibx_deadline_in_ms(END_PATIENCE_MS), NULL), 0);
    assert_int_equal(end_caps(&server).lanes, 1);
    /* The lane is the right socket: a wrong frame on it ends the connection with a message. */
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

/* A second socket with a lane's proof gets neither that lane nor another one. */
static void test_lane_is_connected_once(void **state)
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
    assert_int_equal(raw_finish(&raw, &server, 2, ibx_deadline_in_ms(END_PATIENCE_MS), NULL), 0);
    assert_int_equal(end_caps(&server).lanes, 2);
    end_close(&server);
    for (int i = 0; i < 3; i++)
        close(lanes[i]);
    close(door[1]);
    assert_int_equal(open_descriptors(), before);
}

/* The client proves a lane beyond those that it has agreed to. */
static void test_lane_that_was_not_agreed(void **state)
{
    (void)state;
    int door[2];
    struct raw_client raw;
    struct ibx_error err = {0};
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 2, 4);
    raw_begin(&raw, &server);
    const int lane = raw_lane(&raw.address, 2);
    assert_int_equal(raw_finish(&raw, &server, 1, ibx_now_ns(), &err), -ETIMEDOUT);
    assert_non_null(strstr(err.message, "0 of the client's 1"));
    end_close(&server);
    close(lane);
    close(door[1]);
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

/* The lanes connect, but this process has no descriptors for them. */
static void test_no_descriptors_for_lanes(void **state)
{
    (void)state;
    int door[2], lane;
    struct rlimit usual;
    struct raw_client raw;
    struct ibx_error err = {0};
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 1, 4);
    raw_begin(&raw, &server);
    lane = raw_lane(&raw.address, 1);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    const int next = dup(lane);
    close(next);
    const struct rlimit one_more = {(rlim_t)next + 1, usual.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &one_more), 0);
    int rc = raw_finish(&raw, &server, 1, ibx_deadline_in_ms(100), &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
    assert_int_equal(rc, -EMFILE);
    assert_non_null(strstr(err.message, "0 of the client's 1"));
    end_close(&server);
    close(lane);
    close(door[1]);
}

static void test_malformed_setups_are_refused(void **state)
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
    /* Cut off after any byte. Earlier servers do not send the last one. */
    for (size_t n = 0; n < offer.length - 1; n++) {
        struct ibx_writer answer = ibx_writer_of(answered, sizeof(answered));
        struct ibx_reader r = ibx_reader_of(offered, n);
        assert_int_equal(ibx_provider_tcp.join(client.tcp, &r, &answer, &err), -EPROTO);
    }
    /* The name of a unix socket in the offer of a TCP handshake socket. */
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
    ends_close(&server, &client);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hello_and_terms),
        cmocka_unit_test(test_lanes_over_tcp),
        cmocka_unit_test(test_sockets_wait_for_nothing),
        cmocka_unit_test(test_padding_goes_first),
        cmocka_unit_test(test_padding_on_one_socket),
        cmocka_unit_test(test_padding_that_is_ended),
        cmocka_unit_test(test_padding_ends_where_packets_wait),
        cmocka_unit_test(test_no_padding_within_a_host),
        cmocka_unit_test(test_lanes_beside_a_unix_socket),
        cmocka_unit_test(test_no_more_lanes_than_offered),
        cmocka_unit_test(test_no_descriptor_for_a_listener),
        cmocka_unit_test(test_without_lanes_all_goes_over_the_handshake_socket),
        cmocka_unit_test(test_no_lanes_for_messages_only),
        cmocka_unit_test(test_many_connections_keep_no_lane_out),
        cmocka_unit_test(test_unproven_sockets_are_no_lanes),
        cmocka_unit_test(test_lane_is_connected_once),
        cmocka_unit_test(test_lane_that_was_not_agreed),
        cmocka_unit_test(test_missing_lanes_are_an_error),
        cmocka_unit_test(test_no_descriptors_for_lanes),
        cmocka_unit_test(test_malformed_setups_are_refused),
    };
    if (argc > 1)
        end_choose(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
