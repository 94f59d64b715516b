/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The control socket of a running migration: a unix socket beside its record, for its owner only
 * (mode 0600, and the client's uid is checked). One JSON object a line, one answer a request:
 *
 *   {"command": "status"}                       -> {"status": {...}} (ibx_migrate_status_json)
 *   {"command": "cancel"}                       -> {"ok": true} or {"error": "..."}
 *   {"command": "lend"}    leaves QEMU's monitor to `return`, for a while; answers as cancel, and
 *       {"error": "...", "away": true} while the other side is away
 *   {"command": "reconnect"}  a borrowed VM is taken back from its return: its link is made anew
 *   {"command": "set", "max-bandwidth": BYTES}  -> {"ok": true} or {"error": "..."}
 *
 * operator/ is what a person asks of a migration: control_socket.c is the end in the running tool
 * (source/ and destination/ implement its ops), control_client.c the other end, status.c the JSON,
 * queries.c what needs the record alone. Its callers' side is in migrate/migrate.h.
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

/* Replaces a socket that a dead tool left behind. -EADDRINUSE: a living one answers there;
 * -EEXIST: something else is in the way; -ENAMETOOLONG. The caller keeps `ops`, of which all are
 * needed. They are called from ibx_control_socket_serve() only, and must call neither that nor
 * ibx_control_socket_close(). */
int ibx_control_socket_open(const char *path, const struct ibx_control_socket_ops *ops,
                            void *context, struct ibx_control_socket **server,
                            struct ibx_error *err);
/* Fills at most 1 + IBX_CONTROL_SOCKET_CLIENTS_MAX entries and returns how many. */
unsigned ibx_control_socket_poll_fds(const struct ibx_control_socket *server, struct pollfd *fds);
/* Serves what is readable; harmless at any time. Closes a client that sends too long a line or does
 * not read its answers and, when one more comes than IBX_CONTROL_SOCKET_CLIENTS_MAX, the one that
 * was idle for longest. */
void ibx_control_socket_serve(struct ibx_control_socket *server);
/* Removes the socket. Accepts NULL. */
void ibx_control_socket_close(struct ibx_control_socket *server);

#endif
