/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/vm.h"

#include "migrate/common/common.h"
#include "migrate/common/libvirt.h"

#include "migrate/preflight/preflight.h"

#include "common/clock.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define LOOK_MS    5     /* between two checks of a migration that ends */
#define CLOSING_MS 1000  /* for QEMU to be done with the VM after that */
#define ENDING_MS  10000 /* for another client's migration to end */

bool ibx_vm_end_without_ram(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    bool without;
    struct ibx_vm_progress now;
    return !ibx_libvirt_is_without_ram(qmp, &without, deadline_ns, NULL) && without &&
           !ibx_vm_migration(qmp, &now, deadline_ns, NULL) && !ibx_vm_migration_ended(now.status) &&
           !ibx_qmp_execute(qmp, "migrate_cancel", NULL, NULL, deadline_ns, NULL);
}

bool ibx_vm_save_ram(struct ibx_qmp *qmp, const json_t *before, uint64_t deadline_ns)
{
    const uint64_t enough = ibx_deadline_in_ms(ENDING_MS);
    bool ended = false;
    json_t *how;
    while ((how = ibx_settings_save_ram(before)) &&
           ibx_qmp_execute(qmp, "migrate-set-capabilities", how, NULL, deadline_ns, NULL) ==
               -EREMOTEIO &&
           ibx_vm_end_without_ram(qmp, deadline_ns)) {
        ended = true;
        if (ibx_now_ns() >= enough)
            break;
        usleep(LOOK_MS * 1000);
    }
    return ended;
}

/* Another client's migration may be under way, which must not be ended here: the VM would run here,
 * while it may run at the other end of that migration. */
int ibx_vm_not_begun(int rc, struct ibx_error *err)
{
    return rc != -EREMOTEIO ? rc
                            : ibx_error_prefix(err, rc,
                                               "QEMU did not begin this migration; if another "
                                               "migration of its VM is under way, it continues");
}

bool ibx_vm_completed_without_ram(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    json_int_t all = 0, normal = 0, zero = 0, page = 0;
    const char *status = "";
    json_t *last;
    if (ibx_qmp_execute(qmp, "query-migrate", NULL, &last, deadline_ns, NULL))
        return false;
    const bool less =
        !json_unpack(last, "{s:s, s:{s:I, s:I, s:I, s:I}}", "status", &status, "ram", "total", &all,
                     "normal", &normal, "duplicate", &zero, "page-size", &page) &&
        !strcmp(status, "completed") && page > 0 && (normal + zero) < all / page;
    json_decref(last);
    return less;
}

/* QEMU reports a migration as completed a moment before it is done with the VM. */
static bool has_migrated(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    const uint64_t enough = ibx_deadline_in_ms(CLOSING_MS);
    struct ibx_vm_progress now;
    char status[32];
    while (!ibx_vm_status(qmp, status, sizeof(status), deadline_ns, NULL)) {
        if (strcmp(status, "finish-migrate") != 0 || ibx_now_ns() >= enough ||
            ibx_vm_migration(qmp, &now, deadline_ns, NULL) || strcmp(now.status, "completed") != 0)
            return !strcmp(status, "postmigrate");
        usleep(LOOK_MS * 1000);
    }
    return false;
}

bool ibx_vm_say_without_ram(struct ibx_qmp *qmp, int code, uint64_t deadline_ns,
                            struct ibx_error *err)
{
    if (!has_migrated(qmp, deadline_ns) || !ibx_vm_completed_without_ram(qmp, deadline_ns))
        return false;
    ibx_error_set(err, code,
                  "another client of QEMU (libvirt, for example) has migrated or saved the VM at "
                  "the same moment, without its memory (x-ignore-shared): do not use what it has "
                  "made, and do not end QEMU (process %d), in which the VM stands with its memory: "
                  "cont in its monitor continues it",
                  (int)ibx_qmp_pid(qmp));
    return true;
}

int ibx_vm_not_begun_since(int rc, struct ibx_qmp *qmp, const json_t *before, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    struct ibx_vm_progress now;
    if (rc != -EREMOTEIO)
        return rc;
    const bool ended = ibx_vm_save_ram(qmp, before, deadline);
    if (ibx_vm_say_without_ram(qmp, rc, deadline, err))
        return rc;
    if (!ended)
        return has_migrated(qmp, deadline) ? ibx_error_set(err, rc, IBX_VM_HAS_MIGRATED)
                                           : ibx_vm_not_begun(rc, err);
    if (!ibx_vm_migration(qmp, &now, deadline, NULL) && !ibx_vm_migration_ended(now.status))
        return ibx_error_set(err, rc,
                             "another client of QEMU (libvirt, for example) began to migrate or "
                             "save the VM at the same moment, without its memory "
                             "(x-ignore-shared), and QEMU does not give that up (%s): end whatever "
                             "takes what QEMU writes, and do not use that",
                             now.status);
    return ibx_error_set(err, rc,
                         "another client of QEMU (libvirt, for example) began to migrate or save "
                         "the VM at the same moment, when QEMU was set to leave the VM's memory "
                         "out (x-ignore-shared): both were given up, and the VM goes on here");
}
