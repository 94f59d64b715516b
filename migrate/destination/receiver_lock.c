/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Only one receiver at a time may load a VM into a QEMU, whichever monitors they use, because a
 * receiver empties QEMU's memory or makes QEMU map other memory. A receiver first locks the file
 * of that memory, then checks that QEMU still maps it, and then asks QEMU whether it is still
 * free: once QEMU has begun to load a VM, it reports that itself. */
#include "migrate/common/vm.h"
#include "migrate/destination/destination.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static int cannot_lock(const struct ibx_guest_block *block, int code, struct ibx_error *err)
{
    const bool forbidden = code == EACCES || code == EPERM;
    return ibx_error_set(
        err, -code, "the file of guest RAM %s%s%s%s cannot be locked: %s%s", block->id,
        *block->path ? " (" : "", block->path, *block->path ? ")" : "", strerror(code),
        forbidden ? "; where processes are confined, as in a security module's policy, allow "
                    "ib-migrate to read and lock it (AppArmor: rk)"
                  : "");
}

/* Locks by a descriptor of its own, because the others are closed when QEMU is given another file.
 * `again`: this tool continues a migration. */
static int lock(struct destination *d, int file, bool again, struct ibx_error *err)
{
    char path[32];
    int *const fd = &d->ram_lock_fds[d->ram_lock_fds[0] >= 0];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd >= 0 && !flock(*fd, LOCK_EX | LOCK_NB))
        return 0;
    if (*fd >= 0 && errno == EWOULDBLOCK)
        return ibx_vm_refuse_locked(&d->ram.guest, *fd, again, err);
    return cannot_lock(&d->ram.guest.blocks[0], errno, err);
}

static bool is_of_block(void *context, const struct ibx_proc_mapping *m)
{
    const struct ibx_guest_block *block = context;
    return m->start <= block->address && block->address < m->end && m->ino == block->ino &&
           m->dev == block->dev;
}

/* False if another receiver has given QEMU other memory since this tool looked. */
static bool is_mapped(struct ibx_guest_ram *ram)
{
    return ibx_proc_find_mapping(ram->pid, is_of_block, &ram->blocks[0]) != 0;
}

int ibx_destination_lock_also(struct destination *d, int file, struct ibx_error *err)
{
    return lock(d, file, false, err);
}

int ibx_destination_lock(struct destination *d, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    char status[IBX_MIGRATE_STATUS];
    struct ibx_vm_progress now = {.status = "none"};
    int rc = lock(d, d->ram.guest.blocks[0].fd, false, err);
    if (!rc && !is_mapped(&d->ram.guest))
        return ibx_error_set(
            err, -EBUSY,
            "this QEMU (process %d) has been given other memory meanwhile, by another ib-migrate "
            "that is receiving a VM into it: wait for that one, or start another QEMU for this VM",
            (int)d->ram.guest.pid);
    if (!rc)
        rc = ibx_vm_status(d->qemu.qmp, status, sizeof(status), deadline, err);
    if (!rc && strcmp(status, "inmigrate") != 0)
        return ibx_destination_refuse_taken(d, err);
    if (!rc && !d->qemu.managed) /* otherwise it is libvirt's, over this tool's connection */
        rc = ibx_vm_migration(d->qemu.qmp, &now, deadline, err);
    if (!rc && !ibx_vm_migration_ended(now.status))
        return ibx_error_set(err, -EBUSY,
                             "a migration of this QEMU (process %d) is under way already (%s), "
                             "which is not this ib-migrate's: start another QEMU for this VM",
                             (int)d->ram.guest.pid, now.status);
    ibx_migration_stop_at("destination", "claimed");
    return rc;
}

int ibx_destination_lock_again(struct destination *d, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_LOCK_MS);
    int rc;
    while ((rc = lock(d, d->ram.guest.blocks[0].fd, true, err)) == -EBUSY &&
           ibx_now_ns() < deadline) {
        ibx_destination_unlock(d);
        poll(NULL, 0, MIGRATION_LOCK_LOOK_MS);
    }
    return rc;
}

int ibx_destination_refuse_taken(const struct destination *d, struct ibx_error *err)
{
    return ibx_error_set(err, -EBUSY,
                         "a VM has come to this QEMU (process %d) by another monitor, and not by "
                         "this ib-migrate, which has left it alone",
                         (int)d->ram.guest.pid);
}

void ibx_destination_unlock(struct destination *d)
{
    for (unsigned i = 0; i < 2; i++) {
        if (d->ram_lock_fds[i] >= 0)
            close(d->ram_lock_fds[i]);
        d->ram_lock_fds[i] = -1;
    }
}
