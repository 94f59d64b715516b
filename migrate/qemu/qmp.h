/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A client of QEMU's machine protocol (QMP) over a unix socket.
 *
 * One thread owns a client. No call blocks beyond the deadline it is given (CLOCK_MONOTONIC
 * nanoseconds, common/clock.h); a deadline that has passed means "only what is there already".
 * The peer is not trusted: lines, nesting and queues are limited, and a peer that does not speak
 * QMP, hangs up or stops answering gives an error and leaves the client failed; every later call
 * says the same error again. A call that ran into its deadline (-ETIMEDOUT) leaves it usable: the
 * late answer is recognised by its id and dropped.
 */
#ifndef IBX_MIGRATE_QEMU_QMP_H
#define IBX_MIGRATE_QEMU_QMP_H

#include "common/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define IBX_QMP_LINE_MAX   (8u * 1024 * 1024) /* bytes of one answer or event */
#define IBX_QMP_EVENTS_MAX 1024u              /* events kept for later: the oldest goes first */
#define IBX_QMP_CALLS_MAX  64u                /* commands started and not finished */

struct ibx_qmp;

/* QEMU's version, as its greeting says it. */
struct ibx_qmp_version {
    unsigned major, minor, micro;
};

#define IBX_QMP_NAME_MAX 80u /* bytes of a monitor's name in a folder, however long its path is */

/* Whether a path is one that can be connected to: short enough for a socket's address, or with such
 * a name. */
bool ibx_qmp_reachable(const char *path);
/* Connects to the socket at `path`, waits for the greeting and negotiates. -ETIMEDOUT also when
 * another client holds the monitor: QEMU serves one at a time. `*qmp` is set on success only. */
int ibx_qmp_connect(const char *path, uint64_t deadline_ns, struct ibx_qmp **qmp,
                    struct ibx_error *err);
/* The same over a connected socket, which the client owns from here, also on failure. */
int ibx_qmp_attach(int fd, uint64_t deadline_ns, struct ibx_qmp **qmp, struct ibx_error *err);
/* NULL is fine. Commands that are under way go on in QEMU. */
void ibx_qmp_close(struct ibx_qmp *qmp);

/* For poll(2) with POLLIN; then ibx_qmp_pump. */
int ibx_qmp_fd(const struct ibx_qmp *qmp);
/* The process at the other end, by SO_PEERCRED: who created the listening socket. 0 when the kernel
 * does not know it (another PID namespace). */
pid_t ibx_qmp_pid(const struct ibx_qmp *qmp);
struct ibx_qmp_version ibx_qmp_version(const struct ibx_qmp *qmp);
/* True from `major`.`minor` on. */
bool ibx_qmp_at_least(const struct ibx_qmp *qmp, unsigned major, unsigned minor);

/* Runs a command and waits for its answer. `arguments` (an object or NULL) is consumed, also on
 * failure. `result`, when not NULL, gets a reference to what was returned.
 * -EOPNOTSUPP: QEMU does not know the command; -EREMOTEIO: QEMU refused, in its own words. */
int ibx_qmp_execute(struct ibx_qmp *qmp, const char *command, json_t *arguments, json_t **result,
                    uint64_t deadline_ns, struct ibx_error *err);
/* The same in two halves, for a thread that polls: `*id` names the call; each started call is
 * finished once. -ETIMEDOUT from finish: no answer yet, and the call can be finished later. */
int ibx_qmp_start(struct ibx_qmp *qmp, const char *command, json_t *arguments, uint64_t *id,
                  uint64_t deadline_ns, struct ibx_error *err);
int ibx_qmp_finish(struct ibx_qmp *qmp, uint64_t id, json_t **result, uint64_t deadline_ns,
                   struct ibx_error *err);
/* Gives up a started call: its answer is dropped when it comes. */
void ibx_qmp_forget(struct ibx_qmp *qmp, uint64_t id);

/* Passes `fd` (which stays the caller's) to QEMU under `name`, for "fd:NAME" and ioctls. */
int ibx_qmp_getfd(struct ibx_qmp *qmp, const char *name, int fd, uint64_t deadline_ns,
                  struct ibx_error *err);

/* Until then (CLOCK_MONOTONIC, ns) answers are looked for without going to sleep. */
void ibx_qmp_hurry(struct ibx_qmp *qmp, uint64_t until_ns);

/* Takes in whatever has arrived; never blocks. */
int ibx_qmp_pump(struct ibx_qmp *qmp, struct ibx_error *err);
/* Whether events are queued, of which the descriptor tells nothing any more. */
bool ibx_qmp_has_events(const struct ibx_qmp *qmp);
/* The oldest queued event (a new reference), or NULL. */
json_t *ibx_qmp_event_next(struct ibx_qmp *qmp);
/* Waits for an event called `name` and, when `status` is not NULL, with this data.status. Events
 * before it stay queued, itself leaves the queue. `event` may be NULL. */
int ibx_qmp_event_wait(struct ibx_qmp *qmp, const char *name, const char *status, json_t **event,
                       uint64_t deadline_ns, struct ibx_error *err);
/* Drops what is queued, so that a wait sees only what happens from here on. */
void ibx_qmp_events_clear(struct ibx_qmp *qmp);

#endif
