/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * QEMU's migration in the hands of libvirt (`virsh migrate --migrateuri unix://PATH`): libvirt
 * starts it at both ends, continues the VM where it belongs and ends the other QEMU. The source's
 * QEMU connects to PATH, where the source's tool listens; the destination's QEMU listens at PATH
 * of its own host, where the destination's tool connects. Between the two tools everything is as in
 * a migration that they start themselves.
 */
#ifndef IBX_MIGRATE_COMMON_LIBVIRT_H
#define IBX_MIGRATE_COMMON_LIBVIRT_H

#include "common/state_machine.h"
#include "migrate/preflight/preflight.h"

/*
 * Where the source's QEMU connects. A QEMU that comes too early waits in connect(2), in a thread of
 * its own, while its VM runs: the queue of the listener has one place, which this process takes.
 *
 * state machine: libvirt gate
 *   [*] -> CLOSED -> SHUT -> OPEN       SHUT: QEMU waits; OPEN: it may connect
 *   OPEN -> TRIED                       also open; somebody else was refused, which has been said
 *   OPEN | TRIED -> PASSED -> CLOSED    PASSED: it has connected, and nobody else may
 *   SHUT | OPEN | TRIED -> CLOSED -> [*]    what waits is refused
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
    int folder;          /* where `path` is, whatever becomes of the names above it; -1: none */
    uint64_t dev, ino;   /* of the socket: nothing else is removed */
    int listener, place; /* -1: none; `place` takes the one place of the queue */
};

static inline bool ibx_gate_is_open(const struct ibx_gate *gate)
{
    return gate->state.now == IBX_GATE_OPEN || gate->state.now == IBX_GATE_TRIED;
}

void ibx_gate_init(struct ibx_gate *gate, const char *path);
/* Makes the socket, for this QEMU's user. -EADDRINUSE: somebody listens there. */
int ibx_gate_shut(struct ibx_gate *gate, pid_t qemu, struct ibx_error *err);
int ibx_gate_let(struct ibx_gate *gate, struct ibx_error *err);
/* `*stream`: the connection of that QEMU, non-blocking. -EAGAIN: it has not come. */
int ibx_gate_take(struct ibx_gate *gate, pid_t qemu, int *stream, struct ibx_error *err);
/* Removes the socket of a tool that was killed, unless somebody listens there again. */
void ibx_gate_sweep(const char *path);
/* Also removes the socket. */
void ibx_gate_close(struct ibx_gate *gate);

/* Connects to the destination's QEMU. -EAGAIN: it does not listen yet. */
int ibx_libvirt_connect(const char *path, pid_t qemu, int *stream, struct ibx_error *err);
/* ibx_settings_plan() with x-ignore-shared alone: libvirt does not know it and leaves it alone, and
 * sets all others. -EOPNOTSUPP: QEMU lacks it. */
int ibx_libvirt_plan(struct ibx_qmp *qmp, struct ibx_settings *settings, uint64_t deadline_ns,
                     struct ibx_error *err);
/* Whether libvirt has begun to migrate the VM away: it has set what it always sets for that. */
int ibx_libvirt_waits(struct ibx_qmp *qmp, bool *waits, uint64_t deadline_ns,
                      struct ibx_error *err);
/* QEMU would pause between the VM's stop and its device state, for a libvirt that has nothing to do
 * then, and wait for two of its commands: has it go on by itself. libvirt takes a migration that
 * did not pause, puts the setting back, and has connected to nothing yet. -EAGAIN: libvirt has not
 * set it so far. */
int ibx_libvirt_skip_pause(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);

/* What libvirt has set, by virsh's options, before the gate opens: later QEMU may be writing its
 * state, and then it answers nobody until that is read. -EPERM: the stream would not be one that
 * these tools know. */
int ibx_libvirt_check_settings(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);
/* -EBUSY: the VM's QEMU migrates, and not by this tool's socket. */
int ibx_libvirt_past(const char *path, struct ibx_error *err);
/* Why QEMU took no settings, which it does not while it migrates: -EPERM: virsh's option, as above,
 * with which QEMU itself connects, and does so before it has them; or as ibx_libvirt_past(). */
int ibx_libvirt_migrates_already(struct ibx_qmp *qmp, const char *path, uint64_t deadline_ns,
                                 struct ibx_error *err);

#endif
