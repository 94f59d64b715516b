/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Every page is here, or nobody needs them any more. The journal is written first; only then is
 * anything undone in QEMU. So a tool that finds RUNNING in the journal finds the userfaultfd in its
 * place, and one that finds COMPLETE needs neither that nor QEMU to tell the source. Both steps can
 * fail for a while (a full disk, a stopped QEMU). The VM runs meanwhile, and they are tried again.
 */
#include "migrate/destination/destination.h"

#include "common/clock.h"
#include "migrate/common/vm.h"

#include <errno.h>
#include <string.h>

#define RETRY_MS  1000  /* between two tries */
#define LET_GO_MS 10000 /* for QEMU's descriptor, when nothing depends on it any more */

/* Notifies once for each series of failures. */
static void retry_later(struct destination *d, const char *what, const struct ibx_error *why)
{
    if (!d->retry_ns)
        ibx_migration_notify(&d->options->observer, "all pages are here, but %s (%s): trying again",
                             what, why->message);
    d->retry_ns = ibx_deadline_in_ms(RETRY_MS);
}

void ibx_destination_total(const struct destination *d, struct ibx_journal_totals *totals)
{
    *totals = (struct ibx_journal_totals){.pages = d->ram.map.pages,
                                          .zero_pages = d->status.zero_pages,
                                          .discarded_pages = d->ram.discarded};
    memcpy(totals->hash, d->link.map_end.hash, sizeof(totals->hash));
}

int ibx_destination_complete(struct destination *d, struct ibx_error *err)
{
    struct ibx_journal_totals *totals = &d->status.record.totals;
    if (!d->retry_ns)
        d->status.filled_ns = ibx_now_ns() - d->status.began_ns;
    if (ibx_now_ns() < d->retry_ns)
        return 0;
    if (d->zeros_unknown) {
        ibx_error_set(err, -EAGAIN, "its monitor does not answer");
        retry_later(d, "QEMU does not tell whether the guest takes pages that came again for zeros",
                    err);
        return 0;
    }
    ibx_destination_digests_settle(d); /* without a monitor the tags stay as they are */
    ibx_destination_update(d);
    ibx_destination_total(d, totals);
    if (ibx_destination_record(d, IBX_JOURNAL_COMPLETE, err)) {
        memset(totals, 0, sizeof(*totals));
        retry_later(d, "the record cannot be written", err);
        return 0;
    }
    d->retry_ns = 0;
    int rc = ibx_destination_move(d, DESTINATION_COMPLETE, err);
    if (rc)
        return rc;
    ibx_destination_arrived_remove(&d->status.record);
    struct ibx_error later = {0}; /* ibx_destination_has_let_go() tries again */
    ibx_destination_qemu_leave(&d->qemu, &d->status.record, &later);
    return 0;
}

int ibx_destination_record_end(struct destination *d, struct ibx_error *err)
{
    const bool ended = d->state.now == DESTINATION_SHUT_DOWN;
    if (ibx_now_ns() < d->record_end_ns)
        return -EAGAIN;
    int rc = ibx_destination_record(d, ended ? IBX_JOURNAL_ENDED : IBX_JOURNAL_DONE, err);
    if (!rc || rc == -EINVAL || rc == -EBADMSG)
        return rc;
    if (!d->record_end_ns)
        ibx_migration_notify(&d->options->observer,
                             "the source knows that %s, and only the record of that is missing "
                             "(%s): trying again",
                             ended ? "the VM was shut down" : "all pages are here", err->message);
    d->record_end_ns = ibx_deadline_in_ms(RETRY_MS);
    return -EAGAIN;
}

/* 0: nothing of this tool is in guest RAM or its page tables any more. */
static int let_go_of_ram(struct destination *d, struct ibx_error *why)
{
    struct destination_ram *ram = &d->ram;
    int rc = ram->state.now == RAM_UNTOUCHED
                 ? 0
                 : ibx_destination_ram_let_go(ram, &d->status.record, why);
    if (!rc || (ram->state.now != RAM_REGISTERED && ibx_now_ns() >= d->let_go_by_ns)) {
        if (rc)
            ibx_migration_notify(&d->options->observer,
                                 "QEMU keeps an unused descriptor until it ends: %s", why->message);
        ibx_destination_ram_abandon(ram);
        return 0;
    }
    return rc;
}

static int let_go_of_qemu(struct destination *d, struct ibx_error *why)
{
    int rc = ibx_destination_qemu_leave(&d->qemu, &d->status.record, why);
    if (!rc || ibx_now_ns() < d->let_go_by_ns)
        return rc;
    ibx_migration_notify(&d->options->observer, IBX_VM_SETTINGS_STAY " (%s): they were %s",
                         why->message, d->status.record.settings);
    ibx_destination_qemu_fini(&d->qemu);
    return 0;
}

bool ibx_destination_has_let_go(struct destination *d)
{
    struct ibx_error why = {0};
    if (d->ram.state.now == RAM_UNTOUCHED && !d->qemu.settings)
        return true;
    if (ibx_now_ns() < d->retry_ns)
        return false;
    if (!d->let_go_by_ns)
        d->let_go_by_ns = ibx_deadline_in_ms(LET_GO_MS);
    ibx_destination_update(d);
    int rc = let_go_of_ram(d, &why);
    ibx_destination_link_engine_ended(&d->link);
    if (!rc)
        rc = let_go_of_qemu(d, &why);
    if (rc)
        retry_later(d, "QEMU cannot be let go of", &why);
    return !rc;
}

int ibx_destination_end(struct destination *d, const char why[IBX_MIGRATE_STATUS],
                        const char *sentence, struct ibx_error *err)
{
    struct ibx_error unwritten = {0};
    struct ibx_record *record = &d->status.record;
    memcpy(record->vm_status, why, sizeof(record->vm_status));
    memcpy(d->qemu.status, record->vm_status, sizeof(d->qemu.status));
    record->settings[0] = '\0';
    ibx_destination_qemu_fini(&d->qemu);
    ibx_destination_ram_give_up(&d->ram, record);
    ibx_destination_link_engine_ended(&d->link);
    ibx_migration_notify(&d->options->observer,
                         "%s: pages that have not come are not needed any "
                         "more",
                         sentence);
    if (ibx_destination_record(d, IBX_JOURNAL_SHUT_DOWN, &unwritten))
        ibx_migration_notify(&d->options->observer, "%s", unwritten.message);
    return ibx_destination_move(d, DESTINATION_SHUT_DOWN, err);
}
