/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A server in this process and a client in another one, over the guest's two soft-RoCE devices. */
#ifndef IBX_TESTS_VM_VERBS_SCENE_H
#define IBX_TESTS_VM_VERBS_SCENE_H

#include "common/clock.h"
#include "transport/transport.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define WAIT_MS 60000u
#define BYTES   (4u << 20)

static char address_a[32];
static struct ibx_domain *server_domain; /* for later sessions; NULL: none */

/* ------------------------------------------------------------------- sessions */

struct outcome {
    int rc;
    struct ibx_error err;
    char description[192];
};

/* A server in this process and a client in another one. */
struct session {
    struct ibx_listener *listener;
    struct ibx_conn *conn; /* NULL if the connection was not made */
    pid_t child;
    struct outcome server, client;
};

/* "key=value key=value" */
static void set_options(struct ibx_options *options, const char *settings)
{
    char text[256], *rest = text;
    struct ibx_error err;
    ibx_options_init(options);
    options->insecure = true;
    snprintf(text, sizeof(text), "%s", settings);
    for (char *item; (item = strsep(&rest, " "));) {
        char *value = strchr(item, '=');
        if (!value)
            continue;
        *value = '\0';
        if (ibx_options_set(options, item, value + 1, &err))
            fail_msg("%s", err.message);
    }
}

static void note_outcome(struct outcome *outcome, int rc, const struct ibx_conn *conn)
{
    outcome->rc = rc;
    if (!rc)
        memcpy(outcome->description, ibx_conn_path(conn)->description,
               sizeof(outcome->description));
}

/* Runs the client: it sends every message back, when it has credit, until the server has gone. */
static void echo(struct ibx_conn *conn)
{
    struct ibx_event waiting[64], event;
    unsigned first = 0, count = 0;
    for (;;) {
        int n = ibx_poll(conn, &event, 1);
        if (n < 0)
            return;
        if (n > 0 && event.type == IBX_EVENT_MESSAGE)
            waiting[(first + count++) % 64] = event;
        while (count) {
            struct ibx_event *next = &waiting[first % 64];
            struct iovec iov = {(void *)(uintptr_t)next->data, next->length};
            if (ibx_send(conn, &iov, 1, 0, 0))
                break;
            ibx_message_release(conn, next);
            first++;
            count--;
        }
        if (!n)
            ibx_wait(conn, -1);
    }
}

static void expose(struct ibx_conn *conn)
{
    struct ibx_mr *mr;
    struct ibx_error err;
    struct ibx_remote remote;
    uint8_t bytes[IBX_REMOTE_BYTES];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    if (ibx_mr_allocate(conn, BYTES, IBX_ACCESS_REMOTE_READ, &mr, &err))
        _exit(1);
    for (size_t i = 0; i < BYTES; i++)
        ((uint8_t *)ibx_mr_address(mr))[i] = (uint8_t)(i * 31 >> 8);
    ibx_mr_remote(mr, 0, BYTES, &remote);
    ibx_remote_put(&w, &remote);
    struct iovec iov = {bytes, w.length};
    ibx_send(conn, &iov, 1, 0, 0);
}

static void client_run(const char *uri, const char *settings, void (*prepare)(void), int report)
{
    struct ibx_options options;
    struct ibx_conn *conn = NULL;
    struct outcome outcome = {0};
    alarm(3 * WAIT_MS / 1000);
    set_options(&options, settings);
    if (prepare)
        prepare();
    int rc = ibx_connect(uri, &options, &conn, &outcome.err);
    note_outcome(&outcome, rc, conn);
    if (write(report, &outcome, sizeof(outcome)) != (ssize_t)sizeof(outcome))
        _exit(1);
    if (!outcome.rc) {
        expose(conn);
        echo(conn);
        ibx_close(conn);
    }
    _exit(0);
}

static struct ibx_conn *take(struct ibx_listener *listener)
{
    struct ibx_conn *conn = NULL;
    struct ibx_error err = {0};
    if (ibx_accept_wait(listener, WAIT_MS, &conn, &err))
        fail_msg("%s", err.message);
    return conn;
}

/* `through`: where the client connects instead of the listener, or NULL. */
static void session_start(struct session *s, const char *listen_at, const char *server_settings,
                          const char *client_settings, void (*prepare)(void), const char *through)
{
    struct ibx_options options;
    struct ibx_error err = {0};
    int report[2];
    *s = (struct session){0};
    set_options(&options, server_settings);
    options.domain = server_domain;
    if (ibx_listen(listen_at, &options, &s->listener, &err))
        fail_msg("%s", err.message);
    assert_int_equal(pipe(report), 0);
    s->child = fork();
    if (!s->child)
        client_run(through ? through : ibx_listener_uri(s->listener), client_settings, prepare,
                   report[1]);
    close(report[1]);
    s->conn = take(s->listener);
    int rc = ibx_establish(s->conn, &s->server.err);
    note_outcome(&s->server, rc, s->conn);
    if (s->server.rc) {
        ibx_close(s->conn);
        s->conn = NULL;
    }
    assert_int_equal(read(report[0], &s->client, sizeof(s->client)), sizeof(s->client));
    close(report[0]);
}

static void session_end(struct session *s)
{
    int status;
    ibx_close(s->conn);
    ibx_listener_close(s->listener);
    assert_int_equal(waitpid(s->child, &status, 0), s->child);
    assert_int_equal(status, 0);
}

static const char *uri_a(void)
{
    static char uri[64];
    snprintf(uri, sizeof(uri), "verbs://%s:0", address_a);
    return uri;
}

/* Starts a session that must succeed; `listen_at` and `through` as in session_start(). */
static void open_at(struct session *s, const char *listen_at, const char *server_settings,
                    const char *client_settings, const char *through)
{
    session_start(s, listen_at, server_settings, client_settings, NULL, through);
    if (s->server.rc)
        fail_msg("server: %s", s->server.err.message);
    if (s->client.rc)
        fail_msg("client: %s", s->client.err.message);
}

static void open_pair(struct session *s, const char *server_settings, const char *client_settings)
{
    open_at(s, uri_a(), server_settings, client_settings, NULL);
}

static struct ibx_event next_event(struct ibx_conn *conn, enum ibx_event_type type)
{
    struct ibx_event event;
    uint64_t deadline = ibx_deadline_in_ms(WAIT_MS);
    int n;
    while ((n = ibx_poll(conn, &event, 1)) == 0) {
        assert_true(ibx_now_ns() < deadline);
        ibx_wait(conn, 100);
    }
    if (n < 0 || event.type != type)
        fail_msg("event %d instead of %d: %s", event.type, type, ibx_conn_reason(conn));
    return event;
}

static struct ibx_remote receive_remote(struct ibx_conn *conn)
{
    struct ibx_event event = next_event(conn, IBX_EVENT_MESSAGE);
    struct ibx_reader r = ibx_reader_of(event.data, event.length);
    struct ibx_remote remote;
    ibx_remote_get(&r, &remote);
    assert_false(r.failed);
    ibx_message_release(conn, &event);
    return remote;
}

/* READs what the client exposes and checks every byte. */
static void check_read(struct session *s)
{
    struct ibx_mr *mr;
    struct ibx_error err;
    struct ibx_remote remote = receive_remote(s->conn);
    assert_int_equal(ibx_mr_allocate(s->conn, BYTES, IBX_ACCESS_LOCAL, &mr, &err), 0);
    const uint8_t *got = ibx_mr_address(mr);
    assert_int_equal(ibx_read(s->conn, mr, ibx_mr_address(mr), &remote, 0, BYTES, 7, 0), 0);
    assert_int_equal(next_event(s->conn, IBX_EVENT_READ).status, 0);
    for (size_t i = 0; i < BYTES; i++) {
        if (got[i] != (uint8_t)(i * 31 >> 8))
            fail_msg("byte %zu is wrong", i);
    }
    ibx_mr_deregister(mr);
}

#endif
