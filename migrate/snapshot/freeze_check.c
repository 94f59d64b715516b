/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What keeps a VM from being frozen, and whether a signal ends a freeze. */
#include "migrate/snapshot/freeze.h"

#include "common/clock.h"
#include "migrate/common/common.h"
#include "migrate/common/vm.h"

#include <errno.h>
#include <stdlib.h>

static int check_disks(struct ibx_qmp *qmp, struct ibx_blockers *blockers, struct ibx_error *err)
{
    json_t *list, *item;
    size_t index;
    int rc =
        ibx_qmp_execute(qmp, "query-block", NULL, &list, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc)
        return rc;
    json_array_foreach(list, index, item)
    {
        const json_t *inserted = json_object_get(item, "inserted");
        const char *name = json_string_value(json_object_get(item, "device"));
        const char *path = json_string_value(json_object_get(item, "qdev"));
        if (inserted && !json_is_true(json_object_get(inserted, "ro")))
            ibx_blockers_add(blockers,
                             "the VM would continue to write to disk %.64s, but its children need "
                             "the disk as it is now: freeze without --resume, give this VM an "
                             "overlay by blockdev-snapshot-sync, and then cont",
                             name && *name ? name
                             : path        ? path
                                           : "?");
    }
    json_decref(list);
    return 0;
}

/* Refuses devices that expect discarded memory to be zero: memory that a child's balloon gives back
 * has the snapshot's bytes, not zeros, when the guest takes it again. */
static int check_zeros(struct ibx_qmp *qmp, struct ibx_blockers *blockers, struct ibx_error *err)
{
    struct ibx_error why = {0};
    int rc = ibx_preflight_wants_zeros(qmp, ibx_deadline_in_ms(MIGRATION_QMP_MS), &why);
    if (rc == -EOPNOTSUPP)
        ibx_blockers_add(blockers, "%s", why.message);
    return rc && rc != -EOPNOTSUPP ? ibx_error_set(err, rc, "%s", why.message) : 0;
}

int ibx_freeze_check(struct ibx_qmp *qmp, struct ibx_guest_ram *ram, enum ibx_freeze_after after,
                     struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    struct ibx_blockers *blockers = calloc(1, sizeof(*blockers));
    if (!blockers)
        return ibx_error_set(err, -ENOMEM, "no memory for a list of reasons");
    blockers->snapshot = true;
    int rc = ibx_preflight_side(qmp, ram, IBX_MIGRATE_SOURCE, blockers, deadline, err);
    if (!rc && ram->count > IBX_SNAPSHOT_RAM_MAX)
        ibx_blockers_add(blockers, "the VM has %zu memory backends, a snapshot %u at most",
                         ram->count, IBX_SNAPSHOT_RAM_MAX);
    if (!rc && after == IBX_FREEZE_RESUME && ibx_vm_lives(ram->status))
        rc = check_disks(qmp, blockers, err);
    if (!rc)
        rc = check_zeros(qmp, blockers, err);
    if (!rc && blockers->count)
        rc = ibx_migration_refused("the VM cannot be frozen", blockers, err);
    free(blockers);
    return rc;
}

int ibx_freeze_check_cancel(pid_t qemu, uint64_t started, struct ibx_error *err)
{
    if (!ibx_migration_signals_pending() || ibx_proc_dumps_core(qemu) ||
        ibx_process_ended(qemu, started))
        return 0;
    return ibx_error_set(err, -ECANCELED, "cancelled: there is no snapshot");
}
