/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* QEMU's state by its monitor: the VM, its migration, its events. */
#ifndef IBX_MIGRATE_COMMON_VM_H
#define IBX_MIGRATE_COMMON_VM_H

#include "migrate/migrate.h"

/* What ibx_vm_stay() has to undo. */
struct ibx_vm_undo {
    bool was_running;    /* before the migration */
    bool touched;        /* `migrate` was given */
    const char *libvirt; /* its socket: libvirt decides on its own where the VM runs; or NULL */
    json_t *before;      /* settings to put back (ibx_settings_restore()), NULL: untouched */
    uint64_t hold;       /* of hold.h; 0: none */
    bool completes;      /* of a snapshot, which is made when it has completed */
    bool marked;         /* ... and was marked then (hold.h), until the VM runs again */
    uint64_t stream;     /* QEMU's end of the migration's stream: it is asked whether QEMU's
                            migration is that one; 0: it is */
};

/* Of a VM with this status whose guest sleeps (S3), in a QEMU that cannot continue it then
 * (ibx_qmp_sleeps_on()): that, and what to do. */
const char *ibx_vm_asleep(const char *status);
/* What has stopped a VM whose status is IBX_VM_IO_ERROR, and what is to be done. Without a monitor
 * (NULL), or of a VM that has moved since, it is not known which disk that is. */
#define IBX_VM_IO_ERROR "io-error"
void ibx_vm_say_disk(struct ibx_qmp *qmp, char *text, size_t size, uint64_t deadline_ns);

/* "running", "paused", "postmigrate", ... into `status`. */
int ibx_vm_status(struct ibx_qmp *qmp, char *status, size_t size, uint64_t deadline_ns,
                  struct ibx_error *err);
/* Whether a VM of this status is stopped by nobody. One whose guest sleeps (S3) is woken by QEMU as
 * it stops it, before 9.0; later ones are not migrated (ibx_qmp_sleeps_on()). */
bool ibx_vm_lives(const char *status);
/* The status of QEMU's own migration ("none", "active", "completed", ...) and its error text. */
int ibx_vm_migration(struct ibx_qmp *qmp, char *status, size_t size, char *error, size_t error_size,
                     uint64_t deadline_ns, struct ibx_error *err);
/* Whether QEMU is done with a migration of this status, one way or another. */
bool ibx_vm_migration_ended(const char *status);
/* Makes a stream for QEMU's device state: this tool's end (non-blocking) and QEMU's. */
int ibx_vm_stream(int *ours, int *theirs, struct ibx_error *err);
/* Starts QEMU's migration into a stream, when QEMU has ended the thread of the last one, or,
 * `incoming`, out of one; `theirs`, its end, is copied and stays the caller's; a QEMU that answers
 * that it refuses keeps no copy. -EREMOTEIO: it has refused, or is at another migration. */
int ibx_vm_migrate(struct ibx_qmp *qmp, bool incoming, int theirs, uint64_t deadline_ns,
                   struct ibx_error *err);
/* Says so, where QEMU has refused (-EREMOTEIO) the settings for a migration, or its begin. Returns
 * `rc`. */
int ibx_vm_not_begun(int rc, struct ibx_error *err);
/* Finds which migration settings of QEMU have to change, and writes what they are now into the
 * record, which keeps its state: the settings may be set then. Notifies of those that are not
 * known. `holds`: this QEMU's migration is to be held open (hold.h), unless libvirt drives it. */
int ibx_vm_settings(struct ibx_qmp *qmp, bool managed, bool holds, const char *folder,
                    struct ibx_record *record, struct ibx_settings *settings,
                    const struct ibx_migrate_observer *observer, struct ibx_error *err);
/* Puts back those of `*before`, a reference that is then released (NULL: there is nothing to do),
 * and clears the record's, which is not written. */
int ibx_vm_settle(struct ibx_qmp *qmp, json_t **before, struct ibx_record *record,
                  uint64_t deadline_ns, struct ibx_error *err);
/* Puts back those of `before` (NULL: there is nothing to do). Where a VM runs by now, settings that
 * QEMU refuses (of another client's making) do not undo that: they are logged. QEMU refuses all as
 * long as a migration lasts, and one that libvirt has begun, or is about to begin, ends as soon as
 * it finds that nobody takes it any more: `libvirt` waits for that. */
int ibx_vm_restore(struct ibx_qmp *qmp, const json_t *before, bool libvirt, uint64_t deadline_ns,
                   struct ibx_error *err);
/* Ends the migration, continues the VM if it ran before, and puts the settings back. A VM that has
 * been continued may stop again at once, when a disk of its is full (IBX_VM_IO_ERROR). One that
 * runs already has its disks activated, where libvirt drives (ibx_vm_libvirt_disks()), too. May be
 * repeated. Only when it is certain that the destination does not run the VM. -EBUSY: with
 * `stream`, QEMU is at another program's migration, or has completed one. */
int ibx_vm_stay(struct ibx_qmp *qmp, struct ibx_vm_undo *vm, uint64_t deadline_ns,
                struct ibx_error *err);
/* Where libvirt drives QEMU, before 10.0, and its migration has failed: waits for the end of that,
 * and has QEMU activate the disks of a VM that runs (cont). Says what to do where it cannot. */
#define IBX_VM_DISKS_BACK "virsh suspend and then virsh resume activate them"
void ibx_vm_libvirt_disks(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* Tells QEMU to quit. */
int ibx_vm_quit(struct ibx_qmp *qmp, struct ibx_error *err);

/* When a QMP event happened, CLOCK_MONOTONIC. */
uint64_t ibx_vm_event_ns(json_t *event);
/* Whether it is this event and, with `status`, has this data.status. */
bool ibx_vm_event_is(json_t *event, const char *name, const char *status);

#endif
