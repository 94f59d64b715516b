/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What freeze.c makes a snapshot with:
 *
 *   freeze_check.c  what keeps a VM from being frozen; whether a signal ends a freeze
 *   freeze_phase.c  whether the VM stands still meanwhile
 *   freeze_state.c  reads its device state
 */
#ifndef IBX_MIGRATE_SNAPSHOT_FREEZE_H
#define IBX_MIGRATE_SNAPSHOT_FREEZE_H

#include "migrate/snapshot/snapshot.h"

/* ------------------------------------------------------------ freeze_check.c */

/* -EPERM, with all reasons. */
int ibx_freeze_check(struct ibx_qmp *qmp, struct ibx_guest_ram *ram, enum ibx_freeze_after after,
                     struct ibx_error *err);
/* -ECANCELED: a signal that ends this process is pending. 0 also if that QEMU has ended since it
 * was started: its VM is only in the snapshot, which is finished all the same. */
int ibx_freeze_check_cancel(pid_t qemu, uint64_t started, struct ibx_error *err);

/* ------------------------------------------------------------ freeze_phase.c */

/*
 * state machine: freeze
 *   [*] -> BEFORE -> BEGUN -> STOPPED     QEMU's migration into the snapshot is complete
 *   STOPPED -> CONTINUED                   by freeze itself: later events do not matter
 *   STOPPED -> RESET                       the guest has asked for a reset just before the stop
 *   STOPPED | RESET -> TAKEN               another client has continued, reset or migrated the VM
 *   BEGUN | STOPPED | RESET | TAKEN -> BEGUN     earlier events were of another client's migration
 *   BEFORE | BEGUN | STOPPED | RESET | TAKEN | CONTINUED -> [*]
 */
enum ibx_freeze_phase {
    FREEZE_BEFORE,
    FREEZE_BEGUN,
    FREEZE_STOPPED, /* the VM has to stand still */
    FREEZE_RESET,   /* its memory no longer fits its state; freeze has to continue it */
    FREEZE_TAKEN,   /* its memory no longer fits; the VM is left to the other client */
    FREEZE_CONTINUED,
};

void ibx_freeze_phase_begin(struct ibx_state_machine *phase);
/* Handles an event. `begins`: QEMU may have sent it before it received this tool's command. */
void ibx_freeze_phase_note(struct ibx_state_machine *phase, json_t *event, bool begins);

/* ------------------------------------------------------------ freeze_state.c */

/* The device state that QEMU has written so far. */
struct ibx_freeze_state {
    uint8_t *bytes; /* to be freed by free() */
    size_t length, room;
};
struct ibx_freeze_source {
    int fd;        /* does not block */
    int events_fd; /* readable when there is something to hear */
    /* Called before each read, which lets QEMU come closer to the stop; an error ends the
     * reading. */
    int (*hear)(void *context, struct ibx_error *err);
    void *context;
    int signals_fd; /* readable when a signal is pending, of which hear() knows; -1: none */
};
/* Reads until the end of the stream. -ETIMEDOUT: it has not come in that time; -EFBIG. */
int ibx_freeze_state_read(struct ibx_freeze_state *state, const struct ibx_freeze_source *source,
                          unsigned timeout_ms, struct ibx_error *err);

#endif
