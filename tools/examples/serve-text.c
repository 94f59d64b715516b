/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The smallest server: prints its URI, exposes TEXT to one client and waits for the client's close.
 * serve-text URI TEXT */
#include "tools/examples/check.h"

int main(int argc, char **argv)
{
    struct ibx_options options;
    struct ibx_listener *listener;
    struct ibx_conn *conn;
    struct ibx_mr *mr;
    struct ibx_remote remote;
    uint8_t bytes[IBX_REMOTE_BYTES];

    if (argc != 3)
        check(ibx_error_set(&err, -EINVAL, "usage: serve-text URI TEXT"));
    ibx_options_init(&options);
    check(ibx_listen(argv[1], &options, &listener, &err));
    printf("%s\n", ibx_listener_uri(listener));
    fflush(stdout);
    check(ibx_accept_wait(listener, -1, &conn, &err));
    check(ibx_establish(conn, &err));

    struct ibx_span span = ibx_span_host(argv[2], strlen(argv[2]));
    check(ibx_mr_register(conn, &span, IBX_ACCESS_REMOTE_READ, &mr, &err));
    check(ibx_mr_remote(mr, 0, span.length, &remote));
    struct ibx_writer writer = ibx_writer_of(bytes, sizeof(bytes));
    ibx_remote_put(&writer, &remote);
    check(ibx_send(conn, &(struct iovec){bytes, sizeof(bytes)}, 1, 0, 0));
    await(conn, IBX_EVENT_CLOSED);
    ibx_close(conn);
    ibx_listener_close(listener);
    return 0;
}
