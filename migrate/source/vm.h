/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The source's QEMU during a move, and the guardian that gives the VM back when the tool is killed.
 */
#ifndef IBX_MIGRATE_SOURCE_VM_H
#define IBX_MIGRATE_SOURCE_VM_H

#include "migrate/journal/journal.h"

/* What has to be undone for the VM to go on here. */
struct ibx_source_vm {
    bool was_running; /* before the move */
    bool touched;     /* `migrate` was given */
    json_t *before;   /* capabilities to put back, NULL: untouched */
};

/* "running", "paused", "postmigrate", ... into `status`. */
int ibx_vm_status(struct ibx_qmp *qmp, char *status, size_t size, uint64_t deadline_ns,
                  struct ibx_error *err);
/* The status of QEMU's own migration ("none", "active", "completed", ...) and its error text. */
int ibx_vm_migration(struct ibx_qmp *qmp, char *status, size_t size, char *error, size_t error_size,
                     uint64_t deadline_ns, struct ibx_error *err);
/* Starts QEMU's migration into a stream of which `*stream` is the reading end (non-blocking). */
int ibx_vm_migrate(struct ibx_qmp *qmp, int *stream, uint64_t deadline_ns, struct ibx_error *err);
/* Cancels whatever migration there is, lets the VM run again if it did before, and puts the
 * capabilities back. Safe to repeat. Only when the destination certainly does not run the VM. */
int ibx_vm_stay(struct ibx_qmp *qmp, struct ibx_source_vm *vm, uint64_t deadline_ns,
                struct ibx_error *err);

/*
 * The guardian: a process of its own session that outlives the tool. When the tool is gone and has
 * neither committed nor released, it does what ibx_vm_stay() does and writes the record. It holds
 * the record's lock meanwhile, as a forked child.
 */
struct ibx_watchdog {
    pid_t pid;
    int fd; /* to it; -1 none */
};

/* Before any thread is started. `record` is HERE; `lock_fd` is of ibx_journal_lock() and kept open
 * by it, all other descriptors are not. */
int ibx_watchdog_start(struct ibx_watchdog *guard, const char *folder,
                       const struct ibx_journal *record, const struct ibx_source_vm *vm,
                       int lock_fd, struct ibx_error *err);
/* The capabilities are about to be changed. */
int ibx_watchdog_capabilities(struct ibx_watchdog *guard, json_t *before);
/* The migration is about to be started, and the record is MAY_RUN. */
int ibx_watchdog_touched(struct ibx_watchdog *guard);
/* Before COMMIT is sent: from here on it does nothing. -EPIPE when it has died. */
int ibx_watchdog_commit(struct ibx_watchdog *guard);
/* All is well: it ends. Waits for it. */
void ibx_watchdog_release(struct ibx_watchdog *guard);
/* The tool could not bring the VM back and ends: the guardian tries, over a monitor of its own. The
 * tool's must be closed. Nothing after ibx_watchdog_commit(). */
void ibx_watchdog_leave(struct ibx_watchdog *guard);

#endif
