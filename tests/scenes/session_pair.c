/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/session_pair.h"
#include "tests/scenes/patience.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

struct ibx_injected_faults *session_faults_server, *session_faults_client;
static const char *provider = "auto", *host, *more_key, *more_value;

void session_pair_use(const char *name, const char *address, const char *key, const char *value)
{
    provider = name;
    host = address;
    more_key = key;
    more_value = value;
}

unsigned session_threads, session_keeps;
const struct ibx_message_memory *session_lends;

static const char *listen_uri(void)
{
    static char uri[128];
    snprintf(uri, sizeof(uri), "rdma://%s:0", host ? host : "127.0.0.1");
    return uri;
}

static void set_options(struct ibx_options *options)
{
    ibx_options_init(options);
    assert_int_equal(ibx_options_set(options, "provider", provider, NULL), 0);
    if (more_key)
        assert_int_equal(ibx_options_set(options, more_key, more_value, NULL), 0);
    options->insecure = host != NULL;
}

/* ------------------------------------------------------------------------- pairs */

static void *accept_one(void *argument)
{
    struct session_pair *pair = argument;
    uint8_t none;
    if (ibx_session_accept(pair->listening, &pair->server, NULL))
        return NULL;
    ibx_session_read(pair->server, &none, 0); /* establishes */
    while (session_keeps && ibx_session_live(pair->server) && !ibx_session_kept(pair->server))
        ibx_session_pump(pair->server);
    if (session_faults_server)
        ibx_fault_injection_attach(pair->server->conn, session_faults_server, NULL);
    return NULL;
}

static void open_listening(struct session_pair *pair)
{
    struct ibx_error err = {0};
    struct ibx_options options;
    *pair = (struct session_pair){0};
    set_options(&options);
    if (ibx_session_create(listen_uri(), &options, &pair->listening, &err))
        fail_msg("%s", err.message);
    ibx_session_set_threads(pair->listening, session_threads);
    ibx_session_keep(pair->listening, session_keeps);
    ibx_session_lend(pair->listening, session_lends);
    if (ibx_session_serve(pair->listening, &err))
        fail_msg("%s", err.message);
    pthread_create(&pair->thread, NULL, accept_one, pair);
}

/* Its next connections; no other session comes. */
static void *accept_again(void *argument)
{
    struct session_pair *pair = argument;
    struct ibx_session *none;
    ibx_session_accept(pair->listening, &none, NULL);
    return NULL;
}

static void note_caps(struct session_pair *pair, const struct ibx_caps *caps)
{
    pair->rendezvous = caps->rendezvous;
    pair->message = caps->message_max;
}

void session_pair_open(struct session_pair *pair)
{
    struct ibx_error err = {0};
    struct ibx_options options;
    open_listening(pair);
    set_options(&options);
    int rc = ibx_session_create(ibx_session_uri(pair->listening), &options, &pair->client, &err);
    if (!rc)
        ibx_session_keep(pair->client, session_keeps);
    if (!rc)
        rc = ibx_session_connect(pair->client, &err);
    pthread_join(pair->thread, NULL);
    if (!rc && session_keeps)
        pair->accepts = !pthread_create(&pair->accepting, NULL, accept_again, pair);
    if (!rc && session_faults_client)
        rc = ibx_fault_injection_attach(pair->client->conn, session_faults_client, &err);
    if (rc || pair->server->state.now != SESSION_LIVE)
        fail_msg("no pair: %s", err.message);
    note_caps(pair, pair->client->caps);
}

struct ibx_conn *session_pair_open_bare_client(struct session_pair *pair)
{
    struct ibx_error err = {0};
    struct ibx_options options;
    struct ibx_conn *conn;
    open_listening(pair);
    set_options(&options);
    int rc = ibx_connect(ibx_session_uri(pair->listening), &options, &conn, &err);
    pthread_join(pair->thread, NULL);
    if (rc || pair->server->state.now != SESSION_LIVE)
        fail_msg("no pair: %s", err.message);
    note_caps(pair, ibx_conn_caps(conn));
    return pair->bare = conn;
}

struct bare_server {
    struct ibx_listener *listener;
    struct ibx_conn *conn;
};

static void *establish_one(void *argument)
{
    struct bare_server *bare = argument;
    if (!ibx_accept_wait(bare->listener, (int)patience_ms(20000), &bare->conn, NULL) &&
        ibx_establish(bare->conn, NULL)) {
        ibx_close(bare->conn);
        bare->conn = NULL;
    }
    return NULL;
}

struct ibx_conn *session_pair_open_bare_server(struct session_pair *pair)
{
    struct ibx_error err = {0};
    struct ibx_options options;
    struct bare_server bare = {0};
    *pair = (struct session_pair){0};
    set_options(&options);
    if (ibx_listen(listen_uri(), &options, &bare.listener, &err))
        fail_msg("%s", err.message);
    pthread_create(&pair->thread, NULL, establish_one, &bare);
    int rc = ibx_session_create(ibx_listener_uri(bare.listener), &options, &pair->client, &err);
    if (!rc)
        rc = ibx_session_connect(pair->client, &err);
    pthread_join(pair->thread, NULL);
    ibx_listener_close(bare.listener);
    if (rc || !bare.conn)
        fail_msg("no pair: %s", err.message);
    note_caps(pair, pair->client->caps);
    return pair->bare = bare.conn;
}

static void *serve(void *argument)
{
    struct session_pair *pair = argument;
    pair->served = pair->serve(pair, pair->argument);
    return NULL;
}

void session_pair_start(struct session_pair *pair, int (*run)(struct session_pair *, void *),
                        void *argument)
{
    pair->serve = run;
    pair->argument = argument;
    pthread_create(&pair->thread, NULL, serve, pair);
}

int session_pair_join(struct session_pair *pair)
{
    pthread_join(pair->thread, NULL);
    return pair->served;
}

void session_pair_leave(struct session_pair *pair)
{
    ibx_close(pair->bare);
    pair->bare = NULL;
}

void session_pair_close(struct session_pair *pair)
{
    session_pair_leave(pair);
    ibx_session_destroy(pair->client);
    if (pair->accepts) {
        pthread_cancel(pair->accepting);
        pthread_join(pair->accepting, NULL);
    }
    ibx_session_destroy(pair->server);
    ibx_session_destroy(pair->listening);
    *pair = (struct session_pair){0};
}

/* ------------------------------------------------------------- messages by hand */

void send_message(struct ibx_conn *conn, const void *bytes, size_t length)
{
    struct iovec iov = {(void *)(uintptr_t)bytes, length};
    assert_int_equal(ibx_send(conn, &iov, 1, 0, 0), 0);
}

/* The next message, copied; its length. */
size_t receive_message(struct ibx_conn *conn, uint8_t *out, size_t size)
{
    struct ibx_event event;
    while (ibx_wait(conn, 10000) == 1) {
        int n = ibx_poll(conn, &event, 1);
        assert_true(n >= 0);
        if (!n)
            continue;
        assert_int_equal(event.type, IBX_EVENT_MESSAGE);
        assert_true(event.length <= size);
        memcpy(out, event.data, event.length);
        ibx_message_release(conn, &event);
        return event.length;
    }
    fail_msg("no message comes");
    return 0;
}

void expect_closed(struct ibx_conn *conn)
{
    struct ibx_event event = {.type = IBX_EVENT_MESSAGE};
    while (event.type != IBX_EVENT_CLOSED) {
        assert_int_equal(ibx_wait(conn, 10000), 1);
        if (ibx_poll(conn, &event, 1) == 1 && event.type == IBX_EVENT_MESSAGE)
            ibx_message_release(conn, &event);
    }
}

void expect_reason(const struct ibx_session *s)
{
    assert_non_null(strstr(ibx_session_reason(s), "127.0.0.1:"));
}
