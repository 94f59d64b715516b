/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The smallest client: READs and prints the text that serve-text exposes.   read-remote URI */
#include "tools/examples/check.h"

int main(int argc, char **argv)
{
    struct ibx_options options;
    struct ibx_conn *conn;
    struct ibx_mr *mr;
    struct ibx_remote remote;
    char text[4096];
    struct ibx_span span = ibx_span_host(text, sizeof(text));

    if (argc != 2)
        check(ibx_error_set(&err, -EINVAL, "usage: read-remote URI"));
    ibx_options_init(&options);
    check(ibx_connect(argv[1], &options, &conn, &err));
    check(ibx_mr_register(conn, &span, IBX_ACCESS_LOCAL, &mr, &err));

    /* The server's message names its memory. */
    struct ibx_event message = await(conn, IBX_EVENT_MESSAGE);
    struct ibx_reader reader = ibx_reader_of(message.data, message.length);
    ibx_remote_get(&reader, &remote);
    ibx_message_release(conn, &message);
    check(reader.failed || remote.length > sizeof(text) ? -EPROTO : 0);

    check(ibx_read(conn, mr, text, &remote, 0, remote.length, 1, 0));
    check(await(conn, IBX_EVENT_READ).status);
    printf("%.*s\n", (int)remote.length, text);
    ibx_close(conn); /* deregisters, too */
    return 0;
}
