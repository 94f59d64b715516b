/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The socket by which a running move is looked at and influenced: a unix socket beside its record,
 * for its owner only (0600 and the peer's uid). A receiver has one before there is a record. One
 * JSON object a line, one answer a request:
 *
 *   {"command": "status"}                       -> {"status": {...}} (ibx_migrate_status_json)
 *   {"command": "cancel"}                       -> {"ok": true} or {"error": "..."}
 *   {"command": "set", "max-bandwidth": BYTES}  -> {"ok": true} or {"error": "..."}
 */
#ifndef IBX_MIGRATE_OPERATOR_CONTROL_SOCKET_H
#define IBX_MIGRATE_OPERATOR_CONTROL_SOCKET_H

#include "migrate/operator/move.h"

#include <jansson.h>
#include <poll.h>

#define IBX_CONTROL_SOCKET_CLIENTS_MAX 8u

struct ibx_control_socket; /* the running move's end; owned by one thread, never blocks */

struct ibx_control_socket_ops {
    void (*status)(void *context, struct ibx_migrate_status *status);
    int (*cancel)(void *context, struct ibx_error *err);
    int (*set_bandwidth)(void *context, uint64_t bytes_per_second, struct ibx_error *err);
};

/* Of a receiver for which no source has come yet: FOLDER/PID.waiting. */
void ibx_control_socket_waiting_path(const char *folder, pid_t pid, char *path, size_t size);
/* Calls `each` with the path of each such socket in the folder; those of processes that have ended
 * are removed. -EACCES and the like. */
int ibx_control_socket_waiting(const char *folder,
                               void (*each)(void *context, const char *path, pid_t pid),
                               void *context, struct ibx_error *err);

/* A socket that a dead tool left behind is replaced; -EADDRINUSE: a living one answers there. The
 * ops are all needed, kept by the caller, and called from ibx_control_socket_serve() only, which
 * they must not call, nor ibx_control_socket_close(). */
int ibx_control_socket_open(const char *path, const struct ibx_control_socket_ops *ops,
                            void *context, struct ibx_control_socket **talk, struct ibx_error *err);
/* Fills at most 1 + IBX_CONTROL_SOCKET_CLIENTS_MAX entries and returns how many. */
unsigned ibx_control_socket_poll_fds(const struct ibx_control_socket *talk, struct pollfd *fds);
/* Serves what is readable, after poll(2) over them; harmless at any other time. A client that
 * sends rubbish, does not read its answers, or was silent for longest when one more comes than
 * IBX_CONTROL_SOCKET_CLIENTS_MAX, is closed. */
void ibx_control_socket_serve(struct ibx_control_socket *talk);
/* Removes the socket. Accepts NULL. */
void ibx_control_socket_close(struct ibx_control_socket *talk);

/* The other end: one request, its answer (a reference). -ECONNREFUSED, -ENOENT: no tool is at work
 * on that move; -EREMOTEIO with its sentence: it refused. `request` is consumed. */
int ibx_control_socket_ask(const char *path, json_t *request, json_t **answer, uint64_t deadline_ns,
                           struct ibx_error *err);

/* Stable, documented in ib-migrate(1): the same objects in `status`, --json lines and summaries.
 * NULL: no memory. */
json_t *ibx_migrate_status_json(const struct ibx_migrate_status *status);
json_t *ibx_migrate_record_json(const struct ibx_journal *record);
/* What ibx_migrate_status_json() made of a running move, in another process: all but the record,
 * which is left alone. -EPROTO. */
int ibx_migrate_status_take(const json_t *json, struct ibx_migrate_status *status,
                            struct ibx_error *err);
/* A string for JSON, also of bytes that are no UTF-8: those are replaced. NULL: no memory. */
json_t *ibx_json_text(const char *text);

#endif
