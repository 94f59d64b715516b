/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/client_scene.h"

#include "common/clock.h"
#include "tests/scenes/open_fds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define WIRE 1u /* what honest offers name */

void open_scene(struct scene *s, bool with_key, unsigned timeout_ms)
{
    memset(s, 0, sizeof(*s));
    memory_control_reset();
    s->fds = open_fds();
    ibx_options_init(&s->options);
    s->options.timeout_ms = timeout_ms;
    if (with_key)
        snprintf(s->options.key_file, sizeof(s->options.key_file), "%s", raw_key_file);
    s->listening = raw_listen(&s->port);
    memory_wire_make(WIRE);
}

void close_scene(struct scene *s)
{
    close(s->listening);
    memory_wire_drop(WIRE);
    assert_int_equal(memory_live_endpoints(), 0);
    assert_int_equal(open_fds(), s->fds);
}

void *client(void *argument)
{
    struct scene *s = argument;
    struct ibx_conn *conn = NULL;
    char uri[64];
    s->err = (struct ibx_error){0};
    snprintf(uri, sizeof(uri), "rdma://127.0.0.1:%u", s->port);
    uint64_t began = ibx_now_ns();
    s->rc = ibx_connect(uri, &s->options, &conn, &s->err);
    s->took_ns = ibx_now_ns() - began;
    if (!s->rc)
        s->path = *ibx_conn_path(conn);
    ibx_close(conn);
    s->over = true;
    return NULL;
}

struct raw take_client(struct scene *s)
{
    pthread_create(&s->thread, NULL, client, s);
    return raw_accept(s->listening);
}

int client_result(struct scene *s)
{
    pthread_join(s->thread, NULL);
    s->over = false;
    return s->rc;
}

void expect_failure(struct scene *s, int code, const char *expected)
{
    int rc = client_result(s);
    if (rc != code || !strstr(s->err.message, expected) || !strstr(s->err.message, "127.0.0.1:"))
        fail_msg("%d \"%s\", not %d \"%s\"", rc, s->err.message, code, expected);
    assert_null(strchr(s->err.message, '\n'));
}

/* ----------------------------------------------------------------- an honest server */

static bool keyed(const struct raw *raw)
{
    static const uint8_t no_key[RAW_HASH];
    return memcmp(raw->key, no_key, RAW_HASH) != 0;
}

size_t put_challenge(struct raw *raw, bool with_key, uint8_t *out)
{
    struct raw_frame hello;
    raw_expect(raw, HELLO, &hello);
    raw_take_opening(raw, &hello);
    size_t length = raw_opening(raw, out, with_key);
    raw_host_mark(raw, out + length);
    return length + RAW_HASH;
}

size_t put_wire(uint8_t *out)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(i ? 0 : WIRE);
    return 8;
}

void challenge_from_another_host(struct raw *raw)
{
    uint8_t payload[300];
    size_t n = put_challenge(raw, false, payload);
    payload[n - 1] ^= 1;
    raw_send_frame(raw, CHALLENGE, payload, n);
}

void make_step(struct raw *raw, enum step step, struct raw_frame *frame)
{
    uint8_t payload[300], proof[RAW_HASH], own[RAW_HASH];
    struct raw_frame received;
    size_t length = 0;
    static const uint8_t types[STEPS] = {CHALLENGE, PROOF, OFFER, RESULT};
    switch (step) {
    case AT_CHALLENGE:
        length = put_challenge(raw, keyed(raw), payload);
        break;
    case AT_PROOF:
        raw_derive(raw, proof, own);
        raw_expect(raw, PROOF, &received);
        assert_int_equal(received.payload_length, 1 + RAW_HASH);
        assert_int_equal(received.payload[0], raw->flags);
        assert_memory_equal(received.payload + 1, proof, RAW_HASH);
        memcpy(payload, own, RAW_HASH);
        length = RAW_HASH;
        break;
    case AT_OFFER:
        raw->authenticated = true;
        raw_expect(raw, TRY, &received);
        length = put_wire(payload);
        break;
    case AT_RESULT:
        raw_expect(raw, ANSWER, &received);
        length = raw_result(payload, 0, "");
        break;
    case STEPS:
        break;
    }
    raw_frame_make(raw, frame, types[step], payload, length);
}

void play_to(struct raw *raw, enum step step)
{
    struct raw_frame frame;
    for (enum step i = 0; i < step; i++) {
        make_step(raw, i, &frame);
        raw_send(raw, frame.bytes, frame.length);
    }
}
