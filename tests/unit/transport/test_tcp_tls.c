/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tcp provider after an encrypted handshake: bytes that are not from the peer are refused. */
#include "tests/fixtures/tcp_end.h"

#include "common/clock.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define LENGTH  200000u
#define FULL_MS 50

static struct end server, client;

static void begin(void)
{
    int sockets[2];
    sockets_tcp(sockets);
    end_init(&server, IBX_ROLE_SERVER, sockets[0], 2, 4);
    end_init(&client, IBX_ROLE_CLIENT, sockets[1], 2, 4);
}

static void end(void)
{
    end_close(&client);
    end_close(&server);
}

static void test_path_names_the_cipher(void **state)
{
    (void)state;
    struct ibx_caps caps;
    char description[192];
    end_engine = "uring"; /* does not support encryption */
    begin();
    end_engine = "syscalls";
    ends_encrypt_and_connect(&server, &client);
    ibx_provider_tcp.query(server.tcp, &caps, description, sizeof(description));
    assert_non_null(strstr(description, "1 + 2 sockets, TLS 1.3 "));
    assert_non_null(strstr(description, ", system calls"));
    end();
}

/* For the n-th next send(2), of both ends, and `refused` - 1 more; after these there is room. */
static atomic_int no_room;
static int refused;
static _Atomic uint64_t full_until; /* before that time there is no room at all, from the n-th on */
static atomic_uint tried;

ssize_t __real_send(int fd, const void *bytes, size_t n, int flags);
ssize_t __wrap_send(int fd, const void *bytes, size_t n, int flags);

ssize_t __wrap_send(int fd, const void *bytes, size_t n, int flags)
{
    const int left = atomic_fetch_sub(&no_room, 1);
    const bool full = left <= 1 && ibx_now_ns() < full_until;
    tried += full;
    if (!full && (left > 1 || left <= 1 - refused))
        return __real_send(fd, bytes, n, flags);
    errno = EAGAIN;
    return -1;
}

/* The kernel has no memory for what a fresh socket sends, and soon has. */
static void test_no_room_in_fresh_sockets(void **state)
{
    (void)state;
    for (unsigned longer = 0; longer < 2; longer++) {
        bool over = false;
        for (int n = 1; !over; n++) {
            begin();
            refused = longer ? 6 : 1;
            no_room = n;
            ends_encrypt_and_connect(&server, &client);
            refused = 0;
            over = no_room > 0;
            end();
        }
    }
}

/* The kernel has no memory for a while, in which nobody asks it again and again. */
static void test_no_room_for_a_while(void **state)
{
    (void)state;
    bool over = false;
    for (int n = 1; !over; n++) {
        begin();
        ends_encrypt(&server, &client);
        tried = 0;
        no_room = n;
        full_until = ibx_deadline_in_ms(FULL_MS);
        ends_connect(&server, &client);
        full_until = 0;
        over = no_room > 0;
        end();
        assert_true(tried <= 100);
    }
}

/* The kernel has no memory for a lane until the time is over. */
static void test_no_room_for_too_long(void **state)
{
    (void)state;
    uint8_t offered[64], answered[64];
    struct ibx_writer offer = ibx_writer_of(offered, sizeof(offered));
    struct ibx_writer answer = ibx_writer_of(answered, sizeof(answered));
    begin();
    ends_encrypt(&server, &client);
    assert_int_equal(ibx_provider_tcp.offer(server.tcp, &offer, NULL), 0);
    struct ibx_reader r = ibx_reader_of(offered, offer.length);
    no_room = 1;
    full_until = UINT64_MAX;
    assert_int_equal(ibx_provider_tcp.join(client.tcp, &r, &answer, NULL), 0);
    alarm(END_PATIENCE_MS / 1000); /* of a finish that does not end */
    assert_int_equal(
        ibx_provider_tcp.finish(client.tcp, NULL, ibx_deadline_in_ms(FULL_MS), &client.err),
        -ETIMEDOUT);
    alarm(0);
    full_until = 0;
    assert_non_null(strstr(client.err.message, "lane 1 of 2"));
    end();
}

/* Sends bytes as somebody who does not have the keys. */
static void inject(unsigned lane, const void *bytes, size_t n)
{
    begin();
    ends_encrypt_and_connect(&server, &client);
    assert_int_equal(send(client.tcp->lanes[lane].fd, bytes, n, MSG_NOSIGNAL), n);
    assert_true(end_await(&server, NULL, 1));
    assert_int_equal(server.count, 1);
    assert_int_equal(server.notes[0].kind, NOTE_LOST);
    assert_int_equal(server.notes[0].status, -EBADMSG);
    assert_non_null(strstr(server.notes[0].reason, "was changed on its way"));
    end();
}

static void test_injected_bytes_end_the_connection(void **state)
{
    (void)state;
    uint8_t message[IBX_TCP_FRAME_BYTES + 4] = {0}, record[5 + sizeof(message) + 17];
    ibx_tcp_frame_put(&(struct ibx_tcp_frame){.type = IBX_TCP_MESSAGE, .length = 4}, message);
    memset(record, 0x5a, sizeof(record));
    memcpy(record, (const uint8_t[]){0x17, 3, 3, 0, sizeof(record) - 5}, 5);
    for (unsigned lane = 0; lane <= 2; lane++) {
        inject(lane, message, sizeof(message)); /* in plain text */
        inject(lane, record, sizeof(record));
    }
}

/* The bytes of a WRITE are changed. The client's memory gets none of the change, and the
 * server's connection ends. */
static void test_changed_write_is_refused(void **state)
{
    (void)state;
    static uint8_t here[LENGTH], there[LENGTH], sealed[2 * LENGTH];
    begin();
    ends_encrypt_and_connect(&server, &client);
    memset(here, 0xab, sizeof(here));
    struct ibx_mr *mr = end_register(&client, there, LENGTH, IBX_ACCESS_REMOTE_WRITE);
    struct ibx_chunk chunk = {.kind = IBX_RDMA_WRITE,
                              .lane = 1,
                              .local = here,
                              .remote_address = (uintptr_t)there,
                              .remote_keys = mr->keys,
                              .length = LENGTH};
    assert_int_equal(ibx_provider_tcp.rdma(server.tcp, &chunk), 0);
    while (ibx_tcp_lane_has_output(&server.tcp->lanes[1]) || !server.tcp->moved)
        end_turn(&server);
    /* Takes the bytes from the client's socket, changes them, and puts them where its TLS reads
     * next. */
    int pair[2], fd = client.tcp->lanes[1].fd, at = 0;
    while ((size_t)at < LENGTH)
        at += (int)recv(fd, sealed + at, sizeof(sealed) - (size_t)at, 0);
    sealed[LENGTH / 2] ^= 1;
    sockets_unix(pair);
    int room = 4 * (int)LENGTH, saved = dup(fd);
    setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    assert_int_equal(send(pair[1], sealed, (size_t)at, 0), at);
    assert_int_equal(dup2(pair[0], fd), fd);
    assert_true(end_await(&client, NULL, 1));
    assert_int_equal(client.notes[0].kind, NOTE_LOST);
    assert_int_equal(client.notes[0].status, -EBADMSG);
    for (size_t i = 0; i < LENGTH; i++)
        assert_true(there[i] == 0 || there[i] == 0xab);
    assert_int_equal(there[LENGTH - 1], 0);
    end_settle(&server);
    for (unsigned i = 0; i < server.count; i++)
        assert_true(server.notes[i].kind != NOTE_CHUNK || server.notes[i].status);
    end_deregister(&client, mr);
    close(saved);
    close(pair[0]);
    close(pair[1]);
    end();
}

/* A lane's proof without TLS, and TLS with another key. */
static void test_lanes_must_be_encrypted(void **state)
{
    (void)state;
    begin();
    ends_encrypt(&server, &client);
    struct raw_client raw;
    struct ibx_error err = {0};
    uint8_t other[IBX_TLS_PSK_BYTES] = {1};
    short events;
    raw_begin(&raw, &server);
    int plain = raw_lane(&raw.address, 1), wrong = raw_lane(&raw.address, 0);
    struct ibx_tls *tls;
    assert_int_equal(ibx_tls_create(wrong, IBX_ROLE_CLIENT, other, &tls, NULL), 0);
    assert_int_equal(ibx_tls_handshake(tls, &events), -EAGAIN);
    assert_int_equal(raw_finish(&raw, &server, 1, ibx_deadline_in_ms(300), &err), -ETIMEDOUT);
    assert_non_null(strstr(err.message, "0 of the client's 1"));
    assert_int_equal(ibx_tls_handshake(tls, &events), -EACCES);
    ibx_tls_destroy(tls);
    close(plain);
    close(wrong);
    end();
}

/* Data that came with the last bytes of the handshake waits inside TLS, where poll(2) does not
 * see it. */
static void test_arm_notices_data_inside_tls(void **state)
{
    (void)state;
    uint8_t psk[IBX_TLS_PSK_BYTES] = {7}, bytes[IBX_TCP_FRAME_BYTES] = {0};
    short events;
    begin();
    assert_int_equal(
        ibx_tls_create(server.handshake_socket, IBX_ROLE_SERVER, psk, &server.tls, NULL), 0);
    assert_int_equal(
        ibx_tls_create(client.handshake_socket, IBX_ROLE_CLIENT, psk, &client.tls, NULL), 0);
    while (ibx_tls_handshake(client.tls, &events))
        ibx_tls_handshake(server.tls, &events);
    ibx_tcp_frame_put(&(struct ibx_tcp_frame){.type = IBX_TCP_MESSAGE}, bytes);
    struct iovec early = {bytes, sizeof(bytes)};
    assert_int_equal(ibx_tls_send(client.tls, &early, 1), sizeof(bytes));
    int there = 0; /* more than the 58 bytes with which the client ends its handshake */
    while (there <= 58)
        assert_int_equal(ioctl(server.handshake_socket, FIONREAD, &there), 0);
    assert_int_equal(ibx_tls_handshake(server.tls, &events), 0);
    assert_true(ibx_tls_readable(server.tls));
    end_encrypts = false;
    ends_encrypt_and_connect(&server, &client);
    end_encrypts = true;
    assert_false(end_wakes(&server, 0));
    assert_true(ibx_provider_tcp.arm(server.tcp));
    assert_true(end_await(&server, NULL, 1));
    assert_int_equal(server.notes[0].kind, NOTE_MESSAGE);
    end_settle(&server);
    assert_false(ibx_provider_tcp.arm(server.tcp));
    end();
}

int main(void)
{
    end_encrypts = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_path_names_the_cipher),
        cmocka_unit_test(test_no_room_in_fresh_sockets),
        cmocka_unit_test(test_no_room_for_a_while),
        cmocka_unit_test(test_no_room_for_too_long),
        cmocka_unit_test(test_injected_bytes_end_the_connection),
        cmocka_unit_test(test_changed_write_is_refused),
        cmocka_unit_test(test_lanes_must_be_encrypted),
        cmocka_unit_test(test_arm_notices_data_inside_tls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
