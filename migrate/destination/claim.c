/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One receiver at a time brings a VM into a QEMU, by whatever monitors they are told of it: it
 * empties the QEMU's memory, or has it map other memory. Receivers lock the file of that memory
 * first, and then ask QEMU whether it is still free: from the moment when QEMU has begun to load a
 * VM it says so itself.
 */
#include "migrate/common/vm.h"
#include "migrate/destination/destination.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* By a descriptor of its own: the others are closed when QEMU is given another file. */
static int lock(struct destination *d, struct ibx_error *err)
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", d->ram.guest.blocks[0].fd);
    d->claim_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (d->claim_fd >= 0 && !flock(d->claim_fd, LOCK_EX | LOCK_NB))
        return 0;
    if (errno == EWOULDBLOCK)
        return ibx_error_set(err, -EBUSY,
                             "another ib-migrate takes a VM into this QEMU (process %d): let that "
                             "one end, or start another QEMU for this VM",
                             (int)d->ram.guest.pid);
    return ibx_error_set(err, -errno, "the file of guest RAM %s cannot be locked: %s",
                         d->ram.guest.blocks[0].id, strerror(errno));
}

int ibx_destination_claim(struct destination *d, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    char status[IBX_MIGRATE_STATUS], migration[32] = "none", why[256];
    int rc = lock(d, err);
    if (!rc)
        rc = ibx_vm_status(d->qemu.qmp, status, sizeof(status), deadline, err);
    if (!rc && strcmp(status, "inmigrate") != 0)
        return ibx_destination_is_taken(d, err);
    if (!rc && !d->qemu.managed) /* else it is libvirt's, and this tool has the only connection */
        rc = ibx_vm_migration(d->qemu.qmp, migration, sizeof(migration), why, sizeof(why), deadline,
                              err);
    if (!rc && !ibx_vm_migration_ended(migration))
        return ibx_error_set(err, -EBUSY,
                             "a migration of this QEMU (process %d) is under way already (%s), "
                             "which is not this ib-migrate's: start another QEMU for this VM",
                             (int)d->ram.guest.pid, migration);
    ibx_migration_stop_at("destination", "claimed");
    return rc;
}

int ibx_destination_is_taken(const struct destination *d, struct ibx_error *err)
{
    return ibx_error_set(err, -EBUSY,
                         "a VM has come to this QEMU (process %d) by another monitor, and not by "
                         "this ib-migrate, which has left it alone",
                         (int)d->ram.guest.pid);
}

void ibx_destination_unclaim(struct destination *d)
{
    if (d->claim_fd >= 0)
        close(d->claim_fd);
    d->claim_fd = -1;
}
