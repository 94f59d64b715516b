/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Who stands at the destination's door: a thread accepts, one thread a knock lets it prove itself
 * and waits for its first message, and only then does the move hear of it. So a stranger who
 * dawdles at the door holds up nobody, least of all a VM that stands still.
 */
#ifndef IBX_MIGRATE_CHANNEL_ACCEPTOR_H
#define IBX_MIGRATE_CHANNEL_ACCEPTOR_H

#include "migrate/channel/protocol.h"

#define IBX_ACCEPTOR_KNOCKS_MAX 32u /* at a time; more wait in the listener */

struct ibx_acceptor;

/* A connection whose first message was HELLO or JOIN. */
struct ibx_connection_request {
    struct ibx_conn *conn;
    struct ibx_migrate_any first;
};

int ibx_acceptor_open(const char *uri, const struct ibx_options *options,
                      struct ibx_acceptor **porch, struct ibx_error *err);
/* The URI for the source, with the real port. */
const char *ibx_acceptor_uri(const struct ibx_acceptor *porch);
/* Readable when ibx_acceptor_take() has something. */
int ibx_acceptor_fd(const struct ibx_acceptor *porch);
/* 1 and a connection, which is the caller's; 0 when there is none. */
int ibx_acceptor_take(struct ibx_acceptor *porch, struct ibx_connection_request *knock);
/* Closes the door and whoever stands there; waits for its threads. Accepts NULL. */
void ibx_acceptor_close(struct ibx_acceptor *porch);

#endif
