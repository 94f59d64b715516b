/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The control connection of a move: whole messages out, with a queue for what finds no credit, and
 * whole decoded messages in. The last credit is kept for an ABORT, which so leaves at once also
 * when the other side stands still. Owned by one thread, never blocks.
 */
#ifndef IBX_MIGRATE_CONTROL_H
#define IBX_MIGRATE_CONTROL_H

#include "migrate/channel/protocol.h"

struct control_queued;

struct ibx_control {
    struct ibx_conn *conn; /* NULL: there is none */
    struct control_queued *head, **tail;
    uint64_t sent; /* bytes of all messages */
};

/* Takes over an established connection. */
void ibx_control_init(struct ibx_control *control, struct ibx_conn *conn);
/* At once or, without credit, as soon as ibx_control_take() finds some. -ENOTCONN, -ENOMEM. */
int ibx_control_send(struct ibx_control *control, const struct ibx_move_any *message);
/* A message without fields. */
int ibx_control_send_plain(struct ibx_control *control, enum ibx_move_message type);
/* In place of all that still waits for credit. */
int ibx_control_send_abort(struct ibx_control *control, const char *sentence);

/* Sends what waits and hands every message that has arrived to `each`; stops at its first error.
 * An end of the connection or a message that cannot be decoded is an error with its sentence. */
int ibx_control_take(struct ibx_control *control,
                     int (*each)(void *context, const struct ibx_move_any *message), void *context,
                     struct ibx_error *err);
/* Before poll(2): 1 when there is something to take at once. fd is -1 without connection. */
int ibx_control_arm(struct ibx_control *control, int *fd);
/* Nothing waits to be sent. */
bool ibx_control_idle(const struct ibx_control *control);
/* Bytes of STATE or MAP that one message can carry. */
size_t ibx_control_room(const struct ibx_control *control);
/* The same again and again, waiting, until there is such an error or the deadline is over: 0. What
 * has come is taken also when that has passed. */
int ibx_control_hear_out(struct ibx_control *control,
                         int (*each)(void *context, const struct ibx_move_any *message),
                         void *context, uint64_t deadline_ns, struct ibx_error *err);
/* Waits until the peer has closed, or the deadline: for the side that said the last word. */
void ibx_control_linger(struct ibx_control *control, uint64_t deadline_ns);
/* Closes it. NULL-safe in all fields. */
void ibx_control_fini(struct ibx_control *control);

#endif
