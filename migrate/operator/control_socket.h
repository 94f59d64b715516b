/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The control socket of a running migration: a unix socket beside its record, for its owner only
 * (mode 0600, and the client's uid is checked). One JSON object a line, one answer a request:
 *
 *   {"command": "status"}                       -> {"status": {...}} (ibx_migrate_status_json)
 *   {"command": "cancel"}                       -> {"ok": true} or {"error": "..."}
 *   {"command": "lend"}                         -> {"ok": true} or {"error": "..."}, with
 *                                                  "away": true while the other side is away
 *   {"command": "reconnect"}                    -> {"ok": true} or {"error": "..."}
 *   {"command": "set", "max-bandwidth": BYTES}  -> {"ok": true} or {"error": "..."}
 *
 * lend leaves QEMU's monitor to `ib-migrate return` for a while; reconnect makes the link of a
 * borrowed VM anew, when its return is rolled back.
 *
 * operator/ has what a person can ask of a migration: control_socket.c is the socket's end in the
 * running tool (source/ and destination/ implement its ops), control_client.c the other end,
 * status.c the JSON, queries.c the commands that need only a record. The functions for callers are
 * declared in migrate/migrate.h.
 */
#ifndef IBX_MIGRATE_OPERATOR_CONTROL_SOCKET_H
#define IBX_MIGRATE_OPERATOR_CONTROL_SOCKET_H

#include "migrate/migrate.h"

#include <poll.h>

#define IBX_CONTROL_SOCKET_CLIENTS_MAX 8u

struct ibx_control_socket; /* owned by one thread, never blocks */

struct ibx_control_socket_ops {
    void (*status)(void *context, struct ibx_migrate_status *status);
    int (*cancel)(void *context, struct ibx_error *err);
    int (*set_bandwidth)(void *context, uint64_t bytes_per_second, struct ibx_error *err);
    int (*lend)(void *context, struct ibx_error *err);
    int (*reconnect)(void *context, struct ibx_error *err);
};

/* Makes the socket; replaces one that a dead tool left behind. -EADDRINUSE: a living tool has it;
 * -EEXIST: another file has the name; -ENAMETOOLONG. The caller keeps `ops`, none of which may be
 * NULL. They are called from ibx_control_socket_serve() only, and must call neither that nor
 * ibx_control_socket_close(). `other` says what can be done about a folder that takes no socket. */
int ibx_control_socket_open(const char *path, const struct ibx_control_socket_ops *ops,
                            void *context, const char *other, struct ibx_control_socket **server,
                            struct ibx_error *err);
/* Fills at most 1 + IBX_CONTROL_SOCKET_CLIENTS_MAX entries and returns how many. Makes the socket's
 * file anew if somebody has removed it. */
unsigned ibx_control_socket_poll_fds(struct ibx_control_socket *server, struct pollfd *fds);
/* Serves clients that are readable; may be called at any time. Closes a client that sends too long
 * a line or does not read its answers, and if there are too many, the one that was idle for
 * longest. */
void ibx_control_socket_serve(struct ibx_control_socket *server);
/* Removes the socket. Accepts NULL. */
void ibx_control_socket_close(struct ibx_control_socket *server);

#endif
