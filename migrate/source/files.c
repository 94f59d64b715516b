/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The source's QEMU has ended after the commit, and the files of guest RAM still exist. They are
 * renamed, because starting the VM's QEMU again by its old command line would write to them. */
#include "migrate/common/common.h"
#include "migrate/source/vm.h"

#include <errno.h>

void ibx_source_vm_keep_files(struct source_vm *vm, const struct ibx_record *record,
                              const struct ibx_migrate_observer *observer)
{
    struct ibx_error why = {0};
    int rc = ibx_journal_set_aside(record, &vm->ram, &why);
    if (rc && rc != -ENOENT) /* -ENOENT: without a name nobody finds the file */
        ibx_migration_notify(observer,
                             "guest RAM cannot be kept from a QEMU that is started again (%s): "
                             "start none until the migration is complete",
                             why.message);
}

int ibx_source_vm_of_files(struct source_vm *vm, const struct ibx_record *record,
                           const struct ibx_migrate_observer *observer, struct ibx_error *err)
{
    struct ibx_error why = {0};
    int rc = ibx_journal_recall_ram(record, &vm->ram, err);
    if (rc)
        return rc;
    rc = ibx_journal_open_files(record, &vm->ram, &why);
    if (rc)
        return ibx_error_set(err, -ESRCH,
                             "the QEMU (process %d) that held this VM's pages has ended, and its "
                             "memory cannot be used (%s): unless that can be mended, what the "
                             "destination has not fetched is lost, and the VM with it: end its "
                             "QEMU there and start it from its disk",
                             (int)record->pid, why.message);
    vm->of_files = true;
    ibx_source_vm_keep_files(vm, record, observer);
    /* Checked once more: from here on no other process finds the files. */
    rc = ibx_guest_ram_check_unused(&vm->ram, &why);
    if (rc)
        return ibx_error_set(err, -ESRCH, "%s", why.message);
    ibx_migration_notify(
        observer, "the source's QEMU (process %d) has ended; its pages come from its file %s",
        (int)record->pid, vm->ram.blocks[0].path);
    return 0;
}
