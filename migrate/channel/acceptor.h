/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Who stands at the destination's door: a thread accepts, one thread a knock lets it prove itself
 * and waits for its first message, and only then does the move hear of it. So a stranger who
 * dawdles at the door holds up nobody, least of all a VM that stands still.
 */
#ifndef IBX_MIGRATE_PORCH_H
#define IBX_MIGRATE_PORCH_H

#include "migrate/channel/protocol.h"

#define IBX_PORCH_KNOCKS_MAX 32u /* at a time; more wait in the listener */

struct ibx_porch;

/* A connection whose first message was HELLO or JOIN. */
struct ibx_knock {
    struct ibx_conn *conn;
    struct ibx_move_any first;
};

int ibx_porch_open(const char *uri, const struct ibx_options *options, struct ibx_porch **porch,
                   struct ibx_error *err);
/* The URI for the source, with the real port. */
const char *ibx_porch_uri(const struct ibx_porch *porch);
/* Readable when ibx_porch_take() has something. */
int ibx_porch_fd(const struct ibx_porch *porch);
/* 1 and a connection, which is the caller's; 0 when there is none. */
int ibx_porch_take(struct ibx_porch *porch, struct ibx_knock *knock);
/* Closes the door and whoever stands there; waits for its threads. Accepts NULL. */
void ibx_porch_close(struct ibx_porch *porch);

#endif
