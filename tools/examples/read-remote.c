/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The smallest use of transport.h: a server exposes some bytes of memory, a client READs them.
 *
 *     read-remote URI TEXT   serves TEXT to one client, after printing the URI for it
 *     read-remote URI        prints the text of the server at URI
 */
#include "transport/transport.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

static struct ibx_error err;

static void check(int rc)
{
    if (!rc)
        return;
    fprintf(stderr, "read-remote: %s\n", err.code ? err.message : strerror(-rc));
    exit(1);
}

/* Waits for the next event, which must be of this type. */
static struct ibx_event await(struct ibx_conn *conn, enum ibx_event_type type)
{
    struct ibx_event event;
    while (!ibx_poll(conn, &event, 1))
        ibx_wait(conn, -1);
    check(event.type == type ? 0 : -EPROTO);
    return event;
}

static void serve(const char *uri, const struct ibx_options *options, char *text)
{
    struct ibx_listener *listener;
    struct ibx_conn *conn;
    struct ibx_mr *mr;
    struct ibx_remote remote;
    check(ibx_listen(uri, options, &listener, &err));
    printf("%s\n", ibx_listener_uri(listener));
    fflush(stdout);
    poll(&(struct pollfd){.fd = ibx_listener_fd(listener), .events = POLLIN}, 1, -1);
    check(ibx_accept(listener, &conn, &err));
    check(ibx_establish(conn, &err));
    struct ibx_span span = ibx_span_host(text, strlen(text));
    check(ibx_mr_register(conn, &span, IBX_ACCESS_REMOTE_READ, &mr, &err));
    check(ibx_mr_remote(mr, 0, span.length, &remote));
    uint8_t bytes[IBX_REMOTE_BYTES];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_remote_put(&w, &remote);
    check(ibx_send(conn, &(struct iovec){bytes, sizeof(bytes)}, 1, 0, 0));
    await(conn, IBX_EVENT_CLOSED);
    ibx_close(conn); /* deregisters, too */
    ibx_listener_close(listener);
}

static void read_remote(const char *uri, const struct ibx_options *options)
{
    struct ibx_conn *conn;
    struct ibx_mr *mr;
    struct ibx_remote remote;
    check(ibx_connect(uri, options, &conn, &err));
    struct ibx_event message = await(conn, IBX_EVENT_MESSAGE);
    struct ibx_reader r = ibx_reader_of(message.data, message.length);
    ibx_remote_get(&r, &remote);
    ibx_message_release(conn, &message);
    char text[4096];
    check(r.failed || remote.length > sizeof(text) ? -EPROTO : 0);
    struct ibx_span span = ibx_span_host(text, sizeof(text));
    check(ibx_mr_register(conn, &span, IBX_ACCESS_LOCAL, &mr, &err));
    check(ibx_read(conn, mr, text, &remote, 0, remote.length, 1, 0));
    check(await(conn, IBX_EVENT_READ).status);
    printf("%.*s\n", (int)remote.length, text);
    ibx_close(conn);
}

int main(int argc, char **argv)
{
    struct ibx_options options;
    ibx_options_init(&options);
    if (argc == 3)
        serve(argv[1], &options, argv[2]);
    else if (argc == 2)
        read_remote(argv[1], &options);
    else
        check(ibx_error_set(&err, -EINVAL, "usage: read-remote URI [TEXT]"));
    return 0;
}
