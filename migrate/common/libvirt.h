/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A migration that libvirt drives (`virsh migrate --migrateuri unix://PATH`): libvirt starts it at
 * both ends, continues the VM where it belongs and ends the other QEMU. The source's QEMU connects
 * to PATH, where the source's tool listens; the destination's QEMU listens at PATH of its own host,
 * where the destination's tool connects. Between the two tools everything is as in a migration that
 * they start themselves.
 */
#ifndef IBX_MIGRATE_COMMON_LIBVIRT_H
#define IBX_MIGRATE_COMMON_LIBVIRT_H

#include "common/state_machine.h"
#include "migrate/preflight/preflight.h"

/*
 * The socket to which the source's QEMU connects. A QEMU that connects too early waits in
 * connect(2), in a thread of its own, while its VM runs: the queue of the listener has one place,
 * which this process takes.
 *
 * state machine: libvirt gate
 *   [*] -> CLOSED -> SHUT -> OPEN       SHUT: QEMU waits; OPEN: it may connect
 *   OPEN -> TRIED                       as OPEN; somebody else was refused, which was logged
 *   OPEN | TRIED -> PASSED -> CLOSED    PASSED: it has connected, and nobody else may
 *   SHUT | OPEN | TRIED -> CLOSED -> [*]    connections that wait are refused
 */
enum ibx_gate_state {
    IBX_GATE_CLOSED,
    IBX_GATE_SHUT,
    IBX_GATE_OPEN,
    IBX_GATE_TRIED,
    IBX_GATE_PASSED
};

struct ibx_gate {
    struct ibx_state_machine state;
    const char *path;
    int folder;          /* folder of `path`, opened once: names above it may change; -1: none */
    uint64_t dev, ino;   /* of the socket: only this is removed */
    int listener, place; /* -1: none; `place`: our connection, which fills the queue */
};

static inline bool ibx_gate_is_open(const struct ibx_gate *gate)
{
    return gate->state.now == IBX_GATE_OPEN || gate->state.now == IBX_GATE_TRIED;
}

void ibx_gate_init(struct ibx_gate *gate, const char *path);
/* Makes the socket, to which only QEMU's user may connect: SHUT. -EADDRINUSE: another process
 * listens there; -EEXIST: there is something that may not be replaced; -EINVAL: no path for a
 * socket. */
int ibx_gate_shut(struct ibx_gate *gate, pid_t qemu, struct ibx_error *err);
/* Frees the place in the queue, so that QEMU may connect: OPEN. */
int ibx_gate_let(struct ibx_gate *gate, struct ibx_error *err);
/* Takes QEMU's connection: PASSED. `*stream` is non-blocking, and the caller's. -EAGAIN: QEMU has
 * not connected; somebody else who has was refused. */
int ibx_gate_take(struct ibx_gate *gate, pid_t qemu, int *stream, struct ibx_error *err);
/* Removes the socket of a tool that was killed, unless somebody listens there again. */
void ibx_gate_sweep(const char *path);
/* Closes the gate, from any state, and removes its socket. */
void ibx_gate_close(struct ibx_gate *gate);

/* Connects to the destination's QEMU; `*stream` is the caller's. -EAGAIN: QEMU does not listen yet;
 * -ESRCH: another process than `qemu` listens there. */
int ibx_libvirt_connect(const char *path, pid_t qemu, int *stream, struct ibx_error *err);
/* ibx_settings_plan() with x-ignore-shared alone: libvirt does not know it and leaves it alone, and
 * sets all others. -EOPNOTSUPP: QEMU lacks it. */
int ibx_libvirt_plan(struct ibx_qmp *qmp, struct ibx_settings *settings, uint64_t deadline_ns,
                     struct ibx_error *err);
/* Whether QEMU has x-ignore-shared on: what it migrates or saves has no RAM. */
int ibx_libvirt_is_without_ram(struct ibx_qmp *qmp, bool *without, uint64_t deadline_ns,
                               struct ibx_error *err);
/* Whether libvirt has begun to migrate the VM away: it has set what it always sets for that. */
int ibx_libvirt_waits(struct ibx_qmp *qmp, bool *waits, uint64_t deadline_ns,
                      struct ibx_error *err);
/* Resets pause-before-switchover, which libvirt sets. With it QEMU would pause between the VM's
 * stop and its device state, and wait for two commands of libvirt, which has nothing to do then.
 * libvirt accepts a migration that did not pause, and puts the setting back. To be called before
 * libvirt connects. -EAGAIN: libvirt has not set it so far. */
int ibx_libvirt_skip_pause(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);

/* Checks what libvirt has set because of virsh's options. To be called before the gate opens: later
 * QEMU may be writing its state, and then its monitor does not answer before that is read. -EPERM:
 * QEMU's stream would not be one that these tools know. */
int ibx_libvirt_check_settings(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);
/* Returns -EBUSY, with a sentence: QEMU migrates the VM, but not over the socket at `path`. */
int ibx_libvirt_past(const char *path, struct ibx_error *err);
/* Says why QEMU has refused settings, which it does while it migrates. -EPERM: virsh was given an
 * option as above, with which QEMU itself connects, before it has these settings. Otherwise as
 * ibx_libvirt_past(). */
int ibx_libvirt_migrates_already(struct ibx_qmp *qmp, const char *path, uint64_t deadline_ns,
                                 struct ibx_error *err);

#endif
