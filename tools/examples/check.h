/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Errors and events of the two small programs beside this. */
#include "transport/transport.h"

#include <errno.h>
#include <stdlib.h>

static struct ibx_error err;

/* Ends the program with the message of the error, if rc is one. */
static void check(int rc)
{
    if (!rc)
        return;
    fprintf(stderr, "%s\n", err.code ? err.message : strerror(-rc));
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
