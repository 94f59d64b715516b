/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/tcp_raw.h"
#include "tests/scenes/patience.h"

#include "common/clock.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct end server;
int lanes[3];
uint8_t memory[3 * BYTES] __attribute__((aligned(4096)));
uint8_t *const region = memory + BYTES;
uint64_t remote_keys[IBX_RAILS_MAX] = {0x1234};

int connect_raw(void **state)
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

void close_lane(int i)
{
    if (lanes[i] >= 0)
        close(lanes[i]);
    lanes[i] = -1;
}

int disconnect(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        close_lane(i);
    end_close(&server);
    return 0;
}

void reconnect(void)
{
    disconnect(NULL);
    connect_raw(NULL);
}

/* ------------------------------------------------------------ what the client sends */

void send_raw(int lane, const void *bytes, size_t n)
{
    assert_int_equal(send(lanes[lane], bytes, n, MSG_NOSIGNAL), n);
}

void send_frame(int lane, struct ibx_tcp_frame frame)
{
    uint8_t bytes[IBX_TCP_FRAME_BYTES];
    ibx_tcp_frame_put(&frame, bytes);
    send_raw(lane, bytes, sizeof(bytes));
}

struct ibx_tcp_frame request(enum ibx_tcp_type type, const struct ibx_mr *mr, uint64_t offset,
                             uint32_t length)
{
    return (struct ibx_tcp_frame){
        .type = type,
        .id = 42,
        .length = length,
        .key = mr->keys[0],
        .address = (uintptr_t)mr->span.address + offset,
    };
}

/* ------------------------------------------------------------ and what it sees */

void receive(int lane, void *bytes, size_t n)
{
    uint8_t *to = bytes;
    uint64_t deadline = ibx_deadline_in_ms(patience_ms(20000));
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

struct ibx_tcp_frame receive_frame(int lane)
{
    uint8_t bytes[IBX_TCP_FRAME_BYTES];
    struct ibx_tcp_frame frame = {0};
    receive(lane, bytes, sizeof(bytes));
    assert_int_equal(ibx_tcp_frame_get(bytes, &frame), 0);
    return frame;
}

void expect_nak(uint32_t id, uint32_t status)
{
    struct ibx_tcp_frame frame = receive_frame(0);
    assert_int_equal(frame.type, IBX_TCP_NAK);
    assert_int_equal(frame.id, id);
    assert_int_equal(frame.status, status);
}

void expect_lost(int status, const char *words)
{
    uint64_t deadline = ibx_deadline_in_ms(patience_ms(20000));
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

void expect_alive(void)
{
    unsigned before = server.count;
    send_frame(0, (struct ibx_tcp_frame){.type = IBX_TCP_MESSAGE, .length = 5});
    send_raw(0, "alive", 5);
    assert_true(end_await(&server, NULL, before + 1));
    assert_int_equal(server.notes[before].kind, NOTE_MESSAGE);
    assert_memory_equal(server.notes[before].data, "alive", 5);
    ibx_provider_tcp.release(server.tcp, server.notes[before].token);
}

void expect_memory_unchanged(void)
{
    for (size_t i = 0; i < sizeof(memory); i++) {
        if (memory[i] != (uint8_t)(i * 5 + i / 256))
            fail_msg("byte %zd of the region has changed", (ssize_t)i - (ssize_t)BYTES);
    }
}
