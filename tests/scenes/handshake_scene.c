/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/handshake_scene.h"

#include "common/clock.h"
#include "tests/scenes/open_fds.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

void handshake_open(struct handshake_scene *s, bool with_key, unsigned timeout_ms)
{
    memset(s, 0, sizeof(*s));
    memory_control_reset();
    s->fds = open_fds();
    ibx_options_init(&s->options);
    s->options.timeout_ms = timeout_ms;
    if (with_key)
        snprintf(s->options.key_file, sizeof(s->options.key_file), "%s", raw_key_file);
    assert_int_equal(ibx_listen("rdma://127.0.0.1:0", &s->options, &s->listener, NULL), 0);
    s->port = (uint16_t)atoi(strrchr(ibx_listener_uri(s->listener), ':') + 1);
}

static void serve(struct handshake_scene *s)
{
    struct pollfd request = {.fd = ibx_listener_fd(s->listener), .events = POLLIN};
    struct ibx_conn *conn;
    uint64_t began = ibx_now_ns();
    s->err = (struct ibx_error){0};
    /* Also without an event: the clock may have been put forward. */
    while ((s->rc = ibx_accept(s->listener, &conn, &s->err)) == -EAGAIN && !s->err.code)
        poll(&request, 1, 20);
    s->took_ns = ibx_now_ns() - began;
    if (s->rc) {
        s->rc = s->err.code;
        return;
    }
    const uint8_t *program = ibx_conn_program(conn);
    s->has_program = program;
    if (program)
        memcpy(s->program, program, sizeof(s->program));
    began = ibx_now_ns();
    s->rc = ibx_establish(conn, &s->err);
    s->took_ns = ibx_now_ns() - began;
    if (!s->rc) {
        struct ibx_event event = {.type = IBX_EVENT_MESSAGE};
        snprintf(s->provider, sizeof(s->provider), "%s", ibx_conn_path(conn)->provider);
        snprintf(s->name, sizeof(s->name), "%s", ibx_conn_path(conn)->name);
        s->message_max = ibx_conn_caps(conn)->message_max;
        while (event.type != IBX_EVENT_CLOSED && ibx_wait(conn, 10000) == 1)
            ibx_poll(conn, &event, 1);
        s->closed_status = event.status;
        snprintf(s->reason, sizeof(s->reason), "%s", ibx_conn_reason(conn));
    }
    ibx_close(conn);
}

void *handshake_serve(void *argument)
{
    struct handshake_scene *s = argument;
    serve(s);
    s->over = true;
    return NULL;
}

struct raw handshake_connect(struct handshake_scene *s)
{
    pthread_create(&s->thread, NULL, handshake_serve, s);
    return raw_connect(s->port, "127.0.0.1", "127.0.0.1");
}

int handshake_result(struct handshake_scene *s)
{
    pthread_join(s->thread, NULL);
    s->over = false;
    return s->rc;
}

void handshake_expect_failure(struct handshake_scene *s, int code, const char *expected)
{
    int rc = handshake_result(s);
    if (rc != code || !strstr(s->err.message, expected) || !strstr(s->err.message, "127.0.0."))
        fail_msg("%d \"%s\", not %d \"%s\"", rc, s->err.message, code, expected);
    assert_int_equal(s->err.code, code);
    assert_null(strchr(s->err.message, '\n'));
}

void handshake_close(struct handshake_scene *s)
{
    struct ibx_conn *conn;
    struct ibx_error err = {0};
    s->options.timeout_ms = 10000; /* the client's; a loaded machine is no fault */
    pthread_create(&s->thread, NULL, handshake_serve, s);
    if (ibx_connect(ibx_listener_uri(s->listener), &s->options, &conn, &err))
        fail_msg("an honest client is not served: %s", err.message);
    ibx_close(conn);
    assert_int_equal(handshake_result(s), 0);
    assert_string_equal(s->reason, "the peer closed the connection");
    ibx_listener_close(s->listener);
    assert_int_equal(memory_live_endpoints(), 0);
    assert_int_equal(open_fds(), s->fds);
}

void handshake_make_step(struct raw *raw, enum handshake_step step, struct raw_frame *frame)
{
    uint8_t payload[300], client[RAW_HASH], server[RAW_HASH];
    struct raw_frame received;
    size_t length = 0;
    static const uint8_t types[STEPS] = {HELLO, PROOF, TRY, ANSWER, RESULT};
    static const uint8_t no_key[RAW_HASH];
    switch (step) {
    case AT_HELLO:
        length = raw_opening(raw, payload, memcmp(raw->key, no_key, RAW_HASH) != 0);
        break;
    case AT_PROOF:
        raw_expect(raw, CHALLENGE, &received);
        assert_int_equal(received.payload_length, RAW_OPENING + 1 + 32 + 32);
        raw_take_opening(raw, &received);
        raw_derive(raw, client, server);
        length = raw_proof(raw, client, payload);
        break;
    case AT_TRY:
        raw_expect(raw, PROOF, &received);
        raw->authenticated = true;
        length = raw_string(payload, "shm");
        break;
    case AT_ANSWER:
        raw_expect(raw, OFFER, &received);
        break;
    case AT_RESULT:
        raw_expect(raw, RESULT, &received);
        length = raw_result(payload, 0, "");
        break;
    case STEPS:
        break;
    }
    raw_frame_make(raw, frame, types[step], payload, length);
}

void handshake_play_to(struct raw *raw, enum handshake_step step)
{
    struct raw_frame frame;
    for (enum handshake_step i = 0; i < step; i++) {
        handshake_make_step(raw, i, &frame);
        raw_send(raw, frame.bytes, frame.length);
    }
}
