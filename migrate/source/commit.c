/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The point of no return, at the source. Before it any failure leaves the VM here. After it the VM
 * continues here only when the destination reports that it never ran there; after any other failure
 * the source connects again. The journal has been MAY_RUN since before the VM stopped.
 */
#include "migrate/common/return_path.h"
#include "migrate/preflight/preflight.h"
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define LOOK_MS       1000  /* between two looks at a VM whose pages come before the stop */
#define LOOK_LATER_MS 10000 /* ... when QEMU has not answered the last one */
#define LOOKS_MS      200   /* for the answers to one: the loop has other work */
#define EVENTS_MOST   10u   /* times that events of QEMU may come between the checks and COMMIT */

int ibx_source_check_compared(struct source *s, struct ibx_error *err)
{
    struct ibx_blockers blockers = {0};
    if (!s->link.compared)
        return 0;
    int rc = ibx_preflight_since(s->vm.qmp, !s->link.disks_differ, s->link.compared, &blockers,
                                 ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (!rc && blockers.count)
        rc = ibx_migration_refused("this VM cannot be migrated", &blockers, err);
    return rc;
}

int ibx_source_check_block_users(struct source *s, struct ibx_error *err)
{
    struct ibx_blockers blockers = {0};
    int rc =
        ibx_preflight_block_users(s->vm.qmp, &blockers, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (!rc && blockers.count)
        rc = ibx_migration_refused("this VM cannot be migrated", &blockers, err);
    return rc;
}

int ibx_source_check_memory(struct ibx_error *err)
{
    struct ibx_blockers blockers = {0};
    ibx_preflight_commit("/proc", &blockers);
    return blockers.count ? ibx_migration_refused("this VM cannot be migrated", &blockers, err) : 0;
}

/* -EBUSY: another client has QEMU migrate the VM, or has had it do so. -EAGAIN: QEMU has not
 * answered. */
static int check_other_migration(const struct source *s, uint64_t deadline_ns,
                                 struct ibx_error *err)
{
    struct ibx_vm_progress now;
    struct ibx_error unused;
    char status[32];
    if (source_managed(&s->vm)) /* libvirt has QEMU begin before the stop, and wait for this tool */
        return 0;
    if (ibx_vm_status(s->vm.qmp, status, sizeof(status), deadline_ns, &unused) ||
        ibx_vm_migration(s->vm.qmp, &now, deadline_ns, &unused))
        return -EAGAIN;
    if (!strcmp(status, "postmigrate"))
        return ibx_error_set(err, -EBUSY, IBX_VM_HAS_MIGRATED);
    if (ibx_vm_migration_ended(now.status))
        return 0;
    return ibx_error_set(err, -EBUSY,
                         "another client has QEMU migrate this VM since this migration began (%s): "
                         "wait for its end, or have whoever began it end it",
                         now.status);
}

/* Whether a sentence names the same job, export or image as the other: what follows in brackets
 * may change, such as a job's status. */
static bool names_the_same(const char *reason, const char *other)
{
    const size_t n = strcspn(reason, "(");
    return n && !strncmp(reason, other, n) && strcspn(other, "(") == n;
}

/* Images may be others for a while, and jobs end, as those of a backup: that is decided at the
 * stop, and the operator is told in time. */
static void tell_of_disks(struct source *s, const struct ibx_blockers *blockers)
{
    const char *reason = blockers->reasons[0];
    if (!blockers->count || names_the_same(reason, s->warm.disks_told))
        return;
    snprintf(s->warm.disks_told, sizeof(s->warm.disks_told), "%s", reason);
    ibx_migration_notify(&s->options->observer,
                         "if this is so when the VM is to stop, its migration ends then: %s",
                         reason);
}

/* QEMU reports nothing of it. An answer that does not come, or QEMU's end, is the concern of
 * others. */
int ibx_source_look_at_warming(struct source *s, struct ibx_error *err)
{
    struct ibx_blockers devices = {0}, disks = {0};
    struct ibx_error unused;
    if (ibx_now_ns() < s->warm.look_ns || !s->vm.qmp || !s->link.compared)
        return 0;
    const uint64_t deadline = ibx_deadline_in_ms(LOOKS_MS);
    /* Jobs and exports first: the filter of a backup is a layer of the disk's image, too. */
    int rc = ibx_preflight_block_users(s->vm.qmp, &disks, deadline, &unused);
    const size_t users = disks.count;
    if (!rc)
        rc = ibx_preflight_since(s->vm.qmp, !s->link.disks_differ, s->link.compared, &disks,
                                 deadline, &unused);
    if (!rc && disks.count > users)
        rc = ibx_preflight_since(s->vm.qmp, false, s->link.compared, &devices, deadline, &unused);
    if (!rc && devices.count)
        return ibx_migration_refused("this VM cannot be migrated", &devices, err);
    if (!rc) {
        tell_of_disks(s, &disks);
        rc = check_other_migration(s, deadline, err);
    }
    const bool answered = !rc || rc == -EBUSY;
    s->warm.look_ns = ibx_deadline_in_ms(answered ? LOOK_MS : LOOK_LATER_MS);
    return answered ? rc : 0;
}

/* Not where libvirt drives: it finds by itself that the VM cannot run there, and continues it here.
 * Locks of a block device are those of one host: they matter if both ends are on this host. */
int ibx_source_find_images(struct source *s, struct ibx_error *err)
{
    if (source_managed(&s->vm) || s->link.disks_differ)
        return 0;
    return ibx_preflight_find_images(s->vm.ram.pid, !ibx_conn_path(s->link.control.conn)->remote,
                                     &s->images, err);
}

int ibx_source_check_images(struct source *s, struct ibx_error *err)
{
    char path[PATH_MAX];
    int rc = ibx_preflight_keeps_image(s->vm.ram.pid, &s->images, path, err);
    if (rc <= 0)
        return rc;
    rc = ibx_source_check_block_users(s, err);
    return rc ? rc
              : ibx_error_set(
                    err, -EPERM,
                    "this QEMU (process %d) does not hand %.300s over: while that is locked here, "
                    "the VM could not run at the destination; if QEMU has taken it back for an "
                    "export that it refused or that has ended, migrate again when nobody begins "
                    "one; QEMU never hands over the images of a quorum of raw ones: use images of "
                    "another format (qcow2), or locking=off at both ends",
                    (int)s->vm.ram.pid, path);
}

/* The first setting that is not as it was set; NULL: none. A plan would switch return-path off,
 * which the hold needs: if it would not, somebody has. RAM is to be left out only once QEMU
 * migrates. */
static const char *changed_setting(const struct source *s, struct ibx_settings *now)
{
    if (ibx_settings_set_aside_ram(now) != ibx_settings_omit_ram(s->vm.undo.before))
        return "x-ignore-shared";
    return ibx_return_path_planned(now->change)
               ? ibx_settings_first_change(now, IBX_RETURN_PATH_CAPABILITY)
               : IBX_RETURN_PATH_CAPABILITY;
}

int ibx_source_check_status(struct source *s, struct ibx_error *err)
{
    char status[32];
    int rc =
        ibx_vm_status(s->vm.qmp, status, sizeof(status), ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (!rc && !strcmp(status, "debug"))
        return ibx_error_set(err, -EBUSY,
                             "a debugger has stopped the VM (debug), in which state QEMU cannot "
                             "take it over elsewhere: continue it there, or detach the debugger");
    if (rc || (strcmp(status, "restore-vm") != 0 && strcmp(status, "save-vm") != 0))
        return rc;
    return ibx_error_set(err, -EBUSY,
                         "the VM is in state %s, in which QEMU would end if it began to migrate: "
                         "wait for the end of the snapshot; if it could not be loaded, cont lets "
                         "the VM run",
                         status);
}

int ibx_source_check_settings(struct source *s, struct ibx_error *err)
{
    struct ibx_settings now;
    int rc = source_managed(&s->vm)
                 ? -ENODATA
                 : ibx_settings_plan(s->vm.qmp, &now, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc)
        return rc == -ENODATA ? 0 : rc;
    const char *name = changed_setting(s, &now);
    if (name)
        rc = ibx_error_set(err, -EBUSY,
                           "another client of QEMU has changed its migration settings (%s) since "
                           "this migration has set them: migrate again when nobody does that",
                           name);
    ibx_settings_fini(&now);
    return rc;
}

void ibx_source_compared_ask(struct source *s, bool stopped)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    const bool disks = !s->link.disks_differ;
    if (stopped)
        ibx_preflight_block_users_ask(s->vm.qmp, deadline);
    if (s->link.compared && source_managed(&s->vm)) /* QEMU was not asked before */
        ibx_preflight_compared_ask(s->vm.qmp, disks, s->link.compared, deadline);
    else if (s->link.compared)
        ibx_preflight_since_ask(s->vm.qmp, disks, s->link.compared, stopped, deadline);
}

/* -EBUSY: the VM was continued here. Where libvirt drives, QEMU reports its migration as completed,
 * and lets anybody continue the VM; the event of that may still be on its way. */
static int check_still(struct source *s, struct ibx_error *err)
{
    char status[32];
    if (!source_managed(&s->vm))
        return 0;
    int rc =
        ibx_vm_status(s->vm.qmp, status, sizeof(status), ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (!rc && !strcmp(status, "running"))
        rc = ibx_error_set(err, -EBUSY,
                           "the VM was continued here, by libvirt or another client, while it was "
                           "being migrated");
    return rc;
}

/* Whether QEMU has reported something that is not read yet. -EBUSY: it does not stop to. */
static int look_for_events(struct source *s, bool *any, struct ibx_error *err)
{
    int rc = ibx_qmp_pump(s->vm.qmp, err);
    *any = !rc && ibx_qmp_has_events(s->vm.qmp);
    if (*any && ++s->looks >= EVENTS_MOST)
        rc = ibx_error_set(err, -EBUSY,
                           "QEMU has reported something each of the %u times that the VM was to go "
                           "to the destination",
                           EVENTS_MOST);
    return rc;
}

/* The watchdog is dismissed first: after COMMIT it must not continue the VM. */
int ibx_source_commit(struct source *s, struct ibx_error *err)
{
    bool any = false;
    ibx_migration_stop_at("source", "committing");
    int rc = ibx_source_return_compared(s, err); /* QEMU may have needed pages since the stop */
    if (rc == -EAGAIN)
        return 0;
    if (!rc)
        rc = check_still(s, err);
    if (!rc) /* devices and images may have changed until QEMU stopped the VM */
        rc = ibx_source_check_compared(s, err);
    if (!rc)
        rc = ibx_source_check_block_users(s, err);
    /* For an export that began since, QEMU takes back a disk that it had handed over, and keeps it
     * when it refuses the export, or when that has ended. */
    if (!rc)
        rc = ibx_source_check_images(s, err);
    if (!rc)
        rc = ibx_source_warm_check(s, err);
    /* The VM may have been continued or reset here meanwhile: that is read first, and the next turn
     * is here again. */
    if (!rc)
        rc = look_for_events(s, &any, err);
    if (!rc && any)
        return 0;
    if (!rc)
        rc = ibx_watchdog_commit(&s->vm.watchdog, err);
    if (rc)
        return rc;
    s->loaded_ns = s->heard_ns = ibx_now_ns();
    s->status.record.was_running = s->vm.ran; /* somebody may have paused the VM meanwhile */
    s->status.state_ns = s->loaded_ns - s->mapped_ns;
    rc = ibx_source_move(s, SOURCE_COMMITTED, err);
    return rc ? rc : ibx_source_link_send(&s->link, IBX_MIGRATE_COMMIT, err);
}
