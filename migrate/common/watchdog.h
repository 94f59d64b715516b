/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The watchdog of a VM that is being migrated or frozen: a forked process in a session of its own,
 * which outlives the tool. When the tool ends without commit or release, the watchdog does what
 * ibx_vm_stay() does, records it, and tells a destination that may wait for the commit. It inherits
 * the lock of the record, and the claim of the VM: what it does would end another tool's migration.
 *
 * Where libvirt drives, the watchdog keeps it from saving the VM without its RAM while the tool
 * stands still (stand_in.h).
 *
 * A snapshot is whole from the moment when its manifest has its name. So the watchdog of a freeze
 * that was killed looks for that name: with it the VM is left as it is, because what it would write
 * to its disks the snapshot's children would read.
 */
#ifndef IBX_MIGRATE_COMMON_WATCHDOG_H
#define IBX_MIGRATE_COMMON_WATCHDOG_H

#include "migrate/common/vm.h"
#include "migrate/qemu/qemu.h"
#include "transport/transport.h"

#include <stdatomic.h>

struct ibx_watchdog {
    pid_t pid;
    int fd;             /* to it; -1: none */
    atomic_uint *beats; /* shared with it; NULL: none */
};

/* What a watchdog has to know. If `folder` is NULL, nothing is recorded, nobody is told, and of the
 * record only the VM's name, QEMU's monitor and its process are used. */
struct ibx_watchdog_terms {
    const char *folder;                  /* of the journal, or NULL; it has to stay valid */
    const struct ibx_record *record;     /* HERE */
    const struct ibx_options *transport; /* for the destination; NULL without a folder */
    const struct ibx_vm_undo *vm;
    const struct ibx_qmp *qmp; /* the tool's connection to QEMU, or NULL */
    /* Of ibx_journal_lock() and ibx_vm_claim(), or -1. All other descriptors are closed. */
    int lock_fd, claim_fd;
    /* The name of a file in the folder `sealed_at` that there is once the VM must not be continued;
     * or NULL. */
    const char *seal;
    int sealed_at;
};
/* To be called before any thread is started. */
int ibx_watchdog_start(struct ibx_watchdog *watchdog, const struct ibx_watchdog_terms *terms,
                       struct ibx_error *err);
/* The tool does not stand still; to be called in its loop. */
void ibx_watchdog_beat(struct ibx_watchdog *watchdog);
/* The next six tell it what the tool is about to do, or has done. -EPIPE: it has died, and the
 * tool must not go on. */

/* QEMU's settings are about to be changed. */
int ibx_watchdog_settings(struct ibx_watchdog *watchdog, json_t *before, struct ibx_error *err);
/* The migration is about to be started, and the record is MAY_RUN. */
int ibx_watchdog_touched(struct ibx_watchdog *watchdog, struct ibx_error *err);
/* QEMU has refused to start it: a migration that is under way there is another client's. The tool
 * gives up then, also if the watchdog has died. */
void ibx_watchdog_untouched(struct ibx_watchdog *watchdog);
/* Whether the VM is to run if it stays: another client has paused or continued it. */
int ibx_watchdog_runs(struct ibx_watchdog *watchdog, bool runs, struct ibx_error *err);
/* Whether the guest sleeps (S3), in a QEMU that cannot continue it then (ibx_qmp_sleeps_on()): it
 * is left stopped, and the watchdog says so. */
int ibx_watchdog_sleeps(struct ibx_watchdog *watchdog, bool sleeps, struct ibx_error *err);
/* A snapshot's migration has completed and was marked (return_path.h). */
int ibx_watchdog_marked(struct ibx_watchdog *watchdog, struct ibx_error *err);
/* A signal ends the tool, which has changed nothing and says that the VM stays: a second message
 * would only alarm. It is still logged as "info". */
void ibx_watchdog_interrupted(struct ibx_watchdog *watchdog);
/* COMMIT is about to be sent: the watchdog ends, or where libvirt drives, from here on only puts
 * QEMU's settings back. */
int ibx_watchdog_commit(struct ibx_watchdog *watchdog, struct ibx_error *err);
/* There is nothing to undo: ends the watchdog, and waits for that, but only for seconds where its
 * control group is frozen. */
void ibx_watchdog_release(struct ibx_watchdog *watchdog);
/* The tool could not continue the VM and ends: the watchdog tries, over a monitor of its own. The
 * tool's must be closed. No effect after ibx_watchdog_commit(). */
void ibx_watchdog_leave(struct ibx_watchdog *watchdog);

#endif
