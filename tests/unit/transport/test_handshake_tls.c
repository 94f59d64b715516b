/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The handshake through a relay that records the bytes, or changes one: what is visible and what
 * can be changed once both ends have agreed on TLS. */
#include "tests/fixtures/handshake_scene.h"
#include "tests/fixtures/patience.h"

#include "common/clock.h"
#include "transport/handshake/handshake.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#define ALL     65536u
#define NOWHERE ALL

/* One direction: the bytes that crossed, and which one the relay changes. */
struct way {
    uint8_t bytes[ALL];
    size_t length, flip;
};

struct relay {
    int listening;
    uint16_t port, to;
    struct way up, down; /* from the client; to the client */
};

/* Returns false at the end of the stream. */
static bool pass_on(int from, int to, struct way *way)
{
    uint8_t *at = way->bytes + way->length;
    ssize_t n = recv(from, at, ALL - way->length, 0);
    if (n <= 0)
        return false;
    if (way->flip >= way->length && way->flip < way->length + (size_t)n)
        way->bytes[way->flip] ^= 4;
    way->length += (size_t)n;
    return send(to, at, (size_t)n, MSG_NOSIGNAL) == n;
}

static void *relay_main(void *argument)
{
    struct relay *relay = argument;
    struct raw client = raw_accept(relay->listening);
    struct raw server = raw_connect(relay->to, "127.0.0.1", "127.0.0.1");
    struct pollfd fds[2] = {{.fd = client.fd, .events = POLLIN},
                            {.fd = server.fd, .events = POLLIN}};
    relay->up.length = relay->down.length = 0;
    bool on = true;
    while (on && poll(fds, 2, (int)patience_ms(20000)) > 0)
        on = (!fds[0].revents || pass_on(client.fd, server.fd, &relay->up)) &&
             (!fds[1].revents || pass_on(server.fd, client.fd, &relay->down));
    raw_close(&client);
    raw_close(&server);
    return NULL;
}

struct scene {
    struct handshake_scene server;
    struct relay relay;
};

static struct scene s;

static void open_relay(enum ibx_encryption encryption)
{
    handshake_open(&s.server, true, 10000);
    ibx_listener_close(s.server.listener);
    s.server.options.encryption = encryption;
    assert_int_equal(ibx_listen("rdma://127.0.0.1:0", &s.server.options, &s.server.listener, NULL),
                     0);
    s.server.port = (uint16_t)atoi(strrchr(ibx_listener_uri(s.server.listener), ':') + 1);
    s.relay.listening = raw_listen(&s.relay.port);
    s.relay.to = s.server.port;
    s.relay.up.flip = s.relay.down.flip = NOWHERE;
}

static void close_relay(void)
{
    close(s.relay.listening);
    handshake_close(&s.server);
}

/* Connects a client through the relay. Returns the result of ibx_connect(). */
static int connect_through(struct ibx_path *path, struct ibx_error *err)
{
    pthread_t thread;
    char uri[64];
    struct ibx_conn *conn = NULL;
    snprintf(uri, sizeof(uri), "rdma://127.0.0.1:%u", s.relay.port);
    pthread_create(&s.server.thread, NULL, handshake_serve, &s.server);
    pthread_create(&thread, NULL, relay_main, &s.relay);
    int rc = ibx_connect(uri, &s.server.options, &conn, err);
    if (!rc)
        *path = *ibx_conn_path(conn);
    ibx_close(conn);
    pthread_join(thread, NULL);
    handshake_result(&s.server);
    return rc;
}

static bool crossed(const struct way *way, const char *text)
{
    return memmem(way->bytes, way->length, text, strlen(text)) != NULL;
}

/* Bytes in plain text: HELLO without names and PROOF; CHALLENGE and PROOF. */
#define UP_PLAIN   (4u + 1 + RAW_OPENING + 4 + IBX_PROGRAM_BYTES + 4 + 1 + 1 + 32)
#define DOWN_PLAIN (4u + 1 + RAW_OPENING + 1 + 32 + 32 + 4 + 1 + 32)

static void frames_after_the_proofs_are_in_tls(void **state)
{
    (void)state;
    struct ibx_path path;
    struct ibx_error err = {0};
    open_relay(IBX_ENCRYPTION_OFF);
    assert_int_equal(connect_through(&path, &err), 0);
    assert_true(crossed(&s.relay.up, "shm"));
    assert_int_equal(s.relay.up.bytes[UP_PLAIN + 4], TRY);
    close_relay();
    open_relay(IBX_ENCRYPTION_REQUIRED);
    if (connect_through(&path, &err))
        fail_msg("%s", err.message);
    assert_string_equal(path.provider, "shm");
    assert_false(crossed(&s.relay.up, "shm"));
    static const uint8_t client_hello[] = {22, 3, 1}, server_hello[] = {22, 3, 3};
    assert_memory_equal(s.relay.up.bytes + UP_PLAIN, client_hello, 3);
    assert_memory_equal(s.relay.down.bytes + DOWN_PLAIN, server_hello, 3);
    close_relay();
}

/* If either end requires encryption, neither uses a fabric that does not encrypt: the client does
 * not even open it. */
static void a_fabric_in_plain_text_is_not_used(void **state)
{
    (void)state;
    static const enum ibx_encryption wishes[][2] = {
        {IBX_ENCRYPTION_REQUIRED, IBX_ENCRYPTION_REQUIRED},
        {IBX_ENCRYPTION_REQUIRED, IBX_ENCRYPTION_AUTO},
        {IBX_ENCRYPTION_AUTO, IBX_ENCRYPTION_REQUIRED},
        {IBX_ENCRYPTION_AUTO, IBX_ENCRYPTION_AUTO}};
    struct ibx_path path;
    for (unsigned i = 0; i < 4; i++) {
        struct ibx_error err = {0};
        open_relay(wishes[i][0]);
        s.server.options.encryption = wishes[i][1]; /* the client's */
        snprintf(s.server.options.provider, sizeof(s.server.options.provider), "verbs");
        assert_int_equal(connect_through(&path, &err), -ENOTSUP);
        assert_non_null(strstr(
            err.message, i < 3 ? "verbs: rdma.encryption : required, and verbs does not encrypt"
                               : "verbs: verbs is not in this build"));
        snprintf(s.server.options.provider, sizeof(s.server.options.provider), "auto");
        close_relay();
    }
}

static int refusal;
static char refusal_reason[256];

/* A client asks for a fabric that it may not use, and reads the answer. */
static void ask_for_verbs(struct ibx_link *link)
{
    const struct ibx_conn *conn =
        (struct ibx_conn *)((char *)link - offsetof(struct ibx_conn, link));
    struct ibx_handshake *h = (struct ibx_handshake *)conn->setup;
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(20000));
    struct frame frame;
    if (conn->role != IBX_ROLE_CLIENT)
        return;
    ibx_handshake_frame_begin(&frame, FRAME_TRY);
    ibx_put_string(&frame.out, "verbs");
    assert_int_equal(ibx_handshake_frame_send(h, &frame, deadline, NULL), 0);
    assert_int_equal(ibx_handshake_frame_expect(h, &frame, FRAME_RESULT, deadline, NULL), 0);
    refusal = ibx_handshake_reason_get(&frame.payload, refusal_reason, sizeof(refusal_reason));
}

/* The server does not rely on the client for that. */
static void a_client_that_asks_for_one_is_refused(void **state)
{
    (void)state;
    struct ibx_conn *conn;
    struct ibx_error err = {0};
    handshake_open(&s.server, true, 10000);
    s.server.options.encryption = IBX_ENCRYPTION_REQUIRED;
    handshake_listen_again(&s.server);
    s.server.options.encryption = IBX_ENCRYPTION_AUTO; /* the client's */
    memory_control.when_open = ask_for_verbs;
    pthread_create(&s.server.thread, NULL, handshake_serve, &s.server);
    if (ibx_connect(ibx_listener_uri(s.server.listener), &s.server.options, &conn, &err))
        fail_msg("%s", err.message);
    memory_control.when_open = NULL;
    ibx_close(conn);
    assert_int_equal(handshake_result(&s.server), 0);
    assert_string_equal(refusal_reason, "rdma.encryption : required, and verbs does not encrypt");
    assert_int_equal(refusal, -EPERM);
    handshake_close(&s.server);
}

/* Two cloned virtual machines with the same boot id behind proxies look like these two ends:
 * each sees the other at 127.0.0.1. They are not on one host. */
static void ends_with_a_relay_between_them_are_not_on_one_host(void **state)
{
    (void)state;
    struct ibx_path path;
    struct ibx_error err = {0};
    open_relay(IBX_ENCRYPTION_AUTO);
    if (connect_through(&path, &err))
        fail_msg("%s", err.message);
    assert_true(path.remote);
    assert_false(crossed(&s.relay.up, "shm"));
    close_relay();
}

/* Whichever byte the relay changes, neither end considers the connection established. */
static void no_byte_can_be_changed(void **state)
{
    (void)state;
    struct ibx_path path;
    open_relay(IBX_ENCRYPTION_REQUIRED);
    assert_int_equal(connect_through(&path, NULL), 0);
    /* the client's: if a length is increased, it waits for the rest */
    s.server.options.timeout_ms = 500;
    size_t lengths[2] = {s.relay.up.length, s.relay.down.length};
    for (int down = 0; down < 2; down++) {
        struct way *way = down ? &s.relay.down : &s.relay.up;
        /* After the last frames, the RESULTs, an end may have returned already. */
        size_t plain = down ? DOWN_PLAIN : UP_PLAIN, last = lengths[down] - 100;
        for (way->flip = 0; way->flip < last; way->flip += way->flip < plain ? 3 : 7) {
            struct ibx_error err = {0};
            if (!connect_through(&path, &err))
                fail_msg("byte %zu %s the client was changed", way->flip, down ? "to" : "from");
            assert_string_not_equal(err.message, "");
        }
        way->flip = NOWHERE;
    }
    close_relay();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_after_the_proofs_are_in_tls),
        cmocka_unit_test(a_fabric_in_plain_text_is_not_used),
        cmocka_unit_test(a_client_that_asks_for_one_is_refused),
        cmocka_unit_test(ends_with_a_relay_between_them_are_not_on_one_host),
        cmocka_unit_test(no_byte_can_be_changed),
    };
    return cmocka_run_group_tests(tests, raw_make_key, raw_remove_key);
}
