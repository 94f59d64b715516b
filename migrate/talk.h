/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The socket by which a running move is looked at and influenced: a unix socket beside its record,
 * for its owner only (0600 and the peer's uid). One JSON object a line, one answer a request:
 *
 *   {"command": "status"}                       -> {"status": {...}} (ibx_move_status_json)
 *   {"command": "cancel"}                       -> {"ok": true} or {"error": "..."}
 *   {"command": "set", "max-bandwidth": BYTES}  -> {"ok": true} or {"error": "..."}
 */
#ifndef IBX_MIGRATE_TALK_H
#define IBX_MIGRATE_TALK_H

#include "migrate/move.h"

#include <poll.h>

#define IBX_TALK_CLIENTS_MAX 8u

struct ibx_talk; /* the running move's end; owned by one thread, never blocks */

struct ibx_talk_ops {
    void (*status)(void *context, struct ibx_move_status *status);
    int (*cancel)(void *context, struct ibx_error *err);
    int (*set_bandwidth)(void *context, uint64_t bytes_per_second, struct ibx_error *err);
};

int ibx_talk_open(const char *path, const struct ibx_talk_ops *ops, void *context,
                  struct ibx_talk **talk, struct ibx_error *err);
/* Fills at most 1 + IBX_TALK_CLIENTS_MAX entries and returns how many. */
unsigned ibx_talk_poll_fds(const struct ibx_talk *talk, struct pollfd *fds);
/* Serves what is readable, after poll(2) over them. */
void ibx_talk_serve(struct ibx_talk *talk);
/* Removes the socket. Accepts NULL. */
void ibx_talk_close(struct ibx_talk *talk);

/* The other end: one request, its answer (a reference). -ECONNREFUSED, -ENOENT: no tool is at work
 * on that move; -EREMOTEIO with its sentence: it refused. `request` is consumed. */
int ibx_talk_ask(const char *path, json_t *request, json_t **answer, uint64_t deadline_ns,
                 struct ibx_error *err);

/* Stable, documented in ib-migrate(1): the same object in `status`, --json lines and summaries. */
json_t *ibx_move_status_json(const struct ibx_move_status *status);

#endif
