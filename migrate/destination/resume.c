/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A tool that takes over from one that died. QEMU's main thread may wait for a page, for which only
 * this tool can send: then its monitor answers nobody, and guest RAM is found by the record alone.
 */
#include "migrate/destination/destination.h"

#include "common/clock.h"

#include <errno.h>
#include <string.h>

#define REACH_MS 5000 /* for the monitor, where it alone can say whether the VM ran */

static int ended(const struct destination *d, struct ibx_error *err)
{
    return ibx_error_set(err, -ESRCH,
                         "the QEMU (process %d) of this move has ended, and the VM with it: "
                         "ib-migrate rollback at the source restarts it from its stop",
                         (int)d->status.record.pid);
}

/* The process of the record, and guest RAM in it; the monitor too when only that knows. */
static int find(struct destination *d, struct ibx_error *err)
{
    const struct ibx_journal *record = &d->status.record;
    if (!record->block_count) {
        int rc = ibx_destination_vm_find(d, err);
        if (rc)
            return rc;
        return d->ram.pid == record->pid && ibx_destination_qemu_lives(d)
                   ? ibx_destination_vm_measure(d, err)
                   : ended(d, err);
    }
    d->ram.pid = record->pid;
    if (!ibx_destination_qemu_lives(d))
        return ended(d, err);
    int rc = ibx_destination_vm_find_again(d, err);
    return ibx_destination_qemu_lives(d) ? rc : ended(d, err);
}

/* Whether it runs. RUNNING was written when it did; before that QEMU knows, and if it does not
 * answer, pages are what it may need for that. */
static int learn_state(struct destination *d, struct ibx_error *err)
{
    char status[32];
    struct ibx_error silent = {0};
    if (d->status.record.block_count && d->status.record.state == IBX_JOURNAL_RUNNING) {
        d->resumed = true;
        return 0;
    }
    int rc = d->qmp ? 0 : ibx_destination_qemu_reach(d, ibx_deadline_in_ms(REACH_MS), &silent);
    if (!rc)
        rc = ibx_destination_qemu_await(d, status, sizeof(status), &silent);
    if (rc && !ibx_destination_qemu_lives(d))
        return ended(d, err);
    if (rc && !d->status.record.block_count)
        return ibx_error_set(err, rc, "%s", silent.message);
    if (rc) {
        ibx_destination_qemu_lose(d, silent.message);
        return 0;
    }
    if (!strcmp(status, "inmigrate"))
        return ibx_error_set(err, -ECANCELED,
                             "the move ended before the VM ran here: start this QEMU anew and move "
                             "again; the VM is at the source");
    d->resumed = true;
    return 0;
}

/* QEMU is not needed for that, and may have ended, or have other RAM by now. What the dead tool had
 * not undone in it yet is undone. */
static int take_over_complete(struct destination *d, struct ibx_error *err)
{
    const struct ibx_journal *record = &d->status.record;
    int rc = ibx_destination_vm_recall(d, err);
    if (rc)
        return rc;
    ibx_migrate_hello_describe(&d->hello, &d->ram);
    d->taken_over = d->committed = d->ending = d->resumed = true;
    d->state = DESTINATION_COMPLETE;
    d->status.pages = d->status.present = record->totals.pages;
    d->status.zero_pages = record->totals.zero_pages;
    d->discarded = record->totals.discarded_pages;
    ibx_destination_arrived_remove(d);
    if (!ibx_destination_qemu_lives(d))
        return 0;
    rc = ibx_uffd_take(record->pid, record->uffd, &d->uffd, err);
    d->registered = !rc;
    return rc == -ENOENT ? 0 : rc;
}

int ibx_destination_take_over(struct destination *d, struct ibx_error *err)
{
    struct ibx_migrate_hello own = {0};
    if (d->status.record.state == IBX_JOURNAL_COMPLETE)
        return take_over_complete(d, err);
    int rc = find(d, err);
    if (!rc)
        rc = learn_state(d, err);
    if (rc)
        return rc;
    ibx_migrate_hello_describe(&own, &d->ram);
    d->hello = own;
    /* The dead tool may have given QEMU the end. */
    d->committed = d->ending = true;
    d->state = d->resumed ? DESTINATION_FILLING : DESTINATION_RESUMING;
    if (d->resumed && d->status.record.state == IBX_JOURNAL_MAY_RUN)
        rc = ibx_destination_record(d, IBX_JOURNAL_RUNNING, err);
    return rc ? rc : ibx_destination_vm_take_over(d, err);
}
