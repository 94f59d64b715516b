/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/destination/destination.h"
#include "migrate/preflight/preflight.h"

#include "common/clock.h"

int ibx_destination_check_compared(struct destination *d, struct ibx_error *err)
{
    struct ibx_blockers blockers = {0};
    if (!d->compared)
        return 0;
    int rc = ibx_preflight_since(d->qemu.qmp, !d->disks_differ, d->compared, &blockers,
                                 ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    return rc || !blockers.count ? rc : ibx_migration_refused("the VM cannot come", &blockers, err);
}

void ibx_destination_compared_ask(struct destination *d)
{
    if (d->compared)
        ibx_preflight_compared_ask(d->qemu.qmp, !d->disks_differ, d->compared,
                                   ibx_deadline_in_ms(MIGRATION_QMP_MS));
}
