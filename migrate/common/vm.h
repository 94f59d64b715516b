/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* QEMU's state by its monitor: the VM, its migration, its events. */
#ifndef IBX_MIGRATE_COMMON_VM_H
#define IBX_MIGRATE_COMMON_VM_H

#include "migrate/migrate.h"

/* What ibx_vm_stay() has to undo. */
struct ibx_vm_undo {
    bool was_running;    /* before the migration */
    bool touched;        /* QEMU was told to migrate */
    const char *libvirt; /* its socket: libvirt decides on its own where the VM runs; or NULL */
    json_t *before;      /* settings to put back (ibx_settings_restore()), NULL: untouched */
    uint64_t hold;       /* ibx_return_path_name() of this tool's end of the stream; 0: none */
    bool completes;      /* the migration of a snapshot, which is to complete */
    bool marked;         /* ... and was marked then (return_path.h), until the VM runs again */
    /* ibx_return_path_name() of QEMU's end of the stream, which shows whether QEMU's migration is
     * ours; 0: that is not checked. */
    uint64_t stream;
    bool unbegun; /* found by ibx_vm_stay(): QEMU was not told to migrate into it, or has refused */
};

/* A sentence about a VM with this status whose guest sleeps (S3) in a QEMU that cannot continue it
 * then (ibx_qmp_sleeps_on()): that it sleeps, and what to do. */
const char *ibx_vm_asleep(const char *status);
/* Writes into `text` what has stopped a VM of this status, and what to do; false: it runs, or is
 * stopped because somebody wished that. The failed disk of an IBX_VM_IO_ERROR is not known without
 * a monitor (`qmp` is NULL), or if the VM has migrated since. */
#define IBX_VM_IO_ERROR "io-error"
bool ibx_vm_say_stopped(struct ibx_qmp *qmp, const char *status, char *text, size_t size,
                        uint64_t deadline_ns);

/* Makes sure, until `*fd` is closed, that no other tool begins to migrate or freeze the VM of this
 * QEMU: records of that tool may be in another folder, and it may use another monitor. `*fd` is -1
 * if that cannot be done. -EBUSY: one has begun. */
int ibx_vm_claim(pid_t qemu, int *fd, struct ibx_error *err);
/* The same, but waits for the watchdog of a tool that was just killed, which holds the claim until
 * it ends. Whoever has QEMU's monitor keeps that watchdog waiting. */
int ibx_vm_claim_when_free(pid_t qemu, int *fd, struct ibx_error *err);
/* How a tool finds its VM, and lets go of it again. */
struct ibx_vm_search {
    /* Connects to QEMU's monitor, and finds guest RAM. */
    int (*find)(void *context, pid_t *qemu, struct ibx_error *err);
    void (*lose)(void *context); /* closes both */
    void *context;
    const char *qmp; /* the monitor's socket */
};
/* Finds the VM and claims it. Waits for the watchdog of a tool that was just killed, without QEMU's
 * monitor, which that watchdog needs, and then finds the VM again. Fails if it is not found. The
 * error of ibx_vm_claim() is in `*claimed`, whose code is 0 if it was claimed: the caller may have
 * a better reason. */
int ibx_vm_find_and_claim(const struct ibx_vm_search *search, int *claim, struct ibx_error *claimed,
                          struct ibx_error *err);
/* As ibx_vm_claim(), for who may not go on without: -EWOULDBLOCK if another tool has begun, or
 * -errno. */
int ibx_vm_lock(pid_t qemu, int *fd);
/* Whether another tool has, or at a destination another process has locked guest RAM
 * (destination/receiver_lock.c); locks nothing, not even for a moment. -EBUSY as above and below.
 */
int ibx_vm_check_claimed(const struct ibx_guest_ram *ram, bool source, struct ibx_error *err);
/* Returns -EBUSY, with the sentence that another process has locked this file of guest RAM: another
 * receiver, or `again` another tool that continues the migration, or somebody else. */
int ibx_vm_refuse_locked(const struct ibx_guest_ram *ram, int fd, bool again,
                         struct ibx_error *err);
/* Asks QEMU for the VM's status: "running", "paused", "postmigrate", ... */
int ibx_vm_status(struct ibx_qmp *qmp, char *status, size_t size, uint64_t deadline_ns,
                  struct ibx_error *err);
/* Whether a VM of this status is not stopped: it is "running", or its guest sleeps ("suspended").
 * QEMU before 9.0 wakes such a guest when it stops the VM; with a later QEMU such a VM is not
 * migrated (ibx_qmp_sleeps_on()). */
bool ibx_vm_lives(const char *status);
/* Whether a VM has been continued since its migration, by its status after that. It has, too, if it
 * stopped again at once, for instance because a disk is full. */
bool ibx_vm_was_continued(const char *status);
/* How far QEMU's own migration is. */
struct ibx_vm_progress {
    char status[32]; /* "none", "active", "completed", ... */
    char error[256]; /* why it has failed; "": QEMU does not say */
};
int ibx_vm_migration(struct ibx_qmp *qmp, struct ibx_vm_progress *progress, uint64_t deadline_ns,
                     struct ibx_error *err);
/* Whether QEMU is done with a migration of this status, one way or another. */
bool ibx_vm_migration_ended(const char *status);
/* Makes a stream for QEMU's device state: this tool's end (non-blocking) and QEMU's. */
int ibx_vm_stream(int *ours, int *theirs, struct ibx_error *err);
/* A narrow stream takes up to three times so many bytes before this tool reads: less than the ROM
 * that QEMU writes before it stops the VM, and less than most machines' devices, which QEMU before
 * 10 writes before it hands the disks over. So it does neither before this tool has looked for
 * block jobs. What QEMU collects before it writes, 32 KiB, comes on top: devices that take less
 * hold nothing up, however narrow the stream is. */
#define IBX_VM_STREAM_NARROW 8192
void ibx_vm_stream_narrow(int theirs);
/* Makes it as wide as it was made; a QEMU that waits for room goes on. */
void ibx_vm_stream_widen(int theirs);
/* Starts QEMU's migration into a stream, after QEMU has ended the thread of the last one; with
 * `incoming`, out of a stream. QEMU gets a copy of `theirs`, its end, which stays the caller's. A
 * QEMU that answers that it refuses keeps no copy. -EREMOTEIO: it has refused, or another migration
 * is under way. */
int ibx_vm_migrate(struct ibx_qmp *qmp, bool incoming, int theirs, uint64_t deadline_ns,
                   struct ibx_error *err);
/* The same at the source, of a migration that has no RAM in it: switches x-ignore-shared on
 * together with it, unless it was on `before`. Earlier, whatever another client has QEMU save or
 * migrate would have no RAM. -EBUSY: QEMU has begun, and has not switched it on. */
int ibx_vm_migrate_without_ram(struct ibx_qmp *qmp, const json_t *before, int theirs,
                               uint64_t deadline_ns, struct ibx_error *err);
/* If QEMU has refused the settings for a migration, or to start it (`rc` is -EREMOTEIO), says in
 * `err` that this migration did not begin. Returns `rc`. */
int ibx_vm_not_begun(int rc, struct ibx_error *err);
/* The same after the settings were changed, with what they were. Another client's migration, or
 * save, that began after that has no RAM if this tool has set x-ignore-shared: it is ended, and
 * that setting is off again. If it has completed by then, or does not end, `err` says so. */
int ibx_vm_not_begun_since(int rc, struct ibx_qmp *qmp, const json_t *before,
                           struct ibx_error *err);
/* Ends a migration that QEMU runs with x-ignore-shared: what it goes to, a host or a file, has no
 * RAM. Only where the stream is not one of these tools'. False: there is none. */
bool ibx_vm_end_without_ram(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* While no migration of ours runs: switches x-ignore-shared off if it was off `before`. What makes
 * QEMU refuse that is another client's migration, or a save. Whether one had no RAM, and was ended.
 */
bool ibx_vm_save_ram(struct ibx_qmp *qmp, const json_t *before, uint64_t deadline_ns);
/* Whether QEMU has completed a migration that has fewer pages than the VM: nobody could load it. To
 * be called when RAM is not left out any more, since QEMU counts all of it then. */
bool ibx_vm_completed_without_ram(struct ibx_qmp *qmp, uint64_t deadline_ns);
#define IBX_VM_HAS_MIGRATED                                                                        \
    "another client of QEMU has migrated this VM meanwhile, and it is stopped here "               \
    "(postmigrate): "                                                                              \
    "see where it runs now; only if that is nowhere, cont in QEMU's monitor continues it here"
/* Whether another client's migration, which began after x-ignore-shared was set and before QEMU was
 * told to migrate, has completed: `err`, with `code`, says so. To be called if ours has not begun,
 * when RAM is not left out any more. */
bool ibx_vm_say_without_ram(struct ibx_qmp *qmp, int code, uint64_t deadline_ns,
                            struct ibx_error *err);
/* What QEMU's own migration is to be. */
enum ibx_vm_migration {
    IBX_VM_MIGRATION_LIBVIRT, /* driven by libvirt */
    IBX_VM_MIGRATION_HELD,    /* held open (return_path.h), at the source */
    IBX_VM_MIGRATION_INCOMING /* at the destination */
};
/* Finds which migration settings of QEMU have to change, and writes their present values into the
 * record, whose state stays as it is. After that the caller may set them. Notifies the operator of
 * capabilities that are not known. On success `settings` is the caller's, for
 * ibx_settings_fini(). */
int ibx_vm_settings(struct ibx_qmp *qmp, enum ibx_vm_migration kind, const char *folder,
                    struct ibx_record *record, struct ibx_settings *settings,
                    const struct ibx_migrate_observer *observer, struct ibx_error *err);
/* Puts back the settings of `*before` (NULL: there is nothing to do), releases that reference and
 * clears the settings in the record, which is not written. Nothing is released on failure. */
int ibx_vm_settle(struct ibx_qmp *qmp, json_t **before, struct ibx_record *record,
                  uint64_t deadline_ns, struct ibx_error *err);
/* Puts back the settings of `before` (NULL: there is nothing to do). If QEMU refuses them, because
 * of another client, they are logged, and this is no error: the VM may run by now. QEMU refuses all
 * settings while a migration lasts. With `libvirt`, waits until a migration that libvirt has begun
 * or is about to begin has ended: it fails as soon as it finds that nobody takes it. */
#define IBX_VM_SETTINGS_STAY "QEMU's migration settings could not be put back"
int ibx_vm_restore(struct ibx_qmp *qmp, const json_t *before, bool libvirt, uint64_t deadline_ns,
                   struct ibx_error *err);
/* Ends the migration, continues the VM if it ran before, and puts the settings back. Only when it
 * is certain that the destination does not run the VM. May be repeated. A VM that has been
 * continued may stop again at once, for instance if a disk is full (IBX_VM_IO_ERROR). If the VM
 * runs already, its disks are activated, also where libvirt drives (ibx_vm_libvirt_disks()).
 * -EBUSY: with vm->stream, another program's migration is under way in QEMU, or QEMU has completed
 * one. -EAGAIN: everything is done, but QEMU still leaves RAM out of what it saves, because another
 * client's migration does not end. */
int ibx_vm_stay(struct ibx_qmp *qmp, struct ibx_vm_undo *vm, uint64_t deadline_ns,
                struct ibx_error *err);
/* For a QEMU before 10.0 that libvirt drives and whose migration has failed: waits for the end of
 * the migration, and has QEMU activate the disks of a VM that runs (cont). If that fails, logs what
 * to do. */
#define IBX_VM_DISKS_BACK "virsh suspend and then virsh resume activate them"
void ibx_vm_libvirt_disks(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* Tells QEMU to quit. */
int ibx_vm_quit(struct ibx_qmp *qmp, struct ibx_error *err);

/* When a QMP event happened: ns of CLOCK_MONOTONIC. Now, if its timestamp is in the future or more
 * than 10 s ago. */
uint64_t ibx_vm_event_ns(json_t *event);
/* Whether it is this event and, with `status`, has this data.status. */
bool ibx_vm_event_is(json_t *event, const char *name, const char *status);

#endif
