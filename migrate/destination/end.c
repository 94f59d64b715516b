/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * When every page is there. First that goes on record, and only then is anything undone in QEMU:
 * whoever finds RUNNING on record finds the userfaultfd in its place, and whoever finds COMPLETE
 * needs neither that nor QEMU itself to tell the source. Both steps can fail for a while (a full
 * disk, a QEMU that was stopped): the VM runs on meanwhile, and they are tried again.
 */
#include "migrate/destination/destination.h"

#include "common/clock.h"

#include <string.h>
#include <unistd.h>

#define AGAIN_MS  1000  /* between two tries */
#define LET_GO_MS 10000 /* for QEMU's descriptor, when nothing depends on it any more */

/* False until the next try is due; says what came of the last one, once. */
static bool failed(struct destination *d, const char *what, const struct ibx_error *why)
{
    if (!d->again_ns)
        ibx_migration_notify(&d->options->observer, "all pages are here, but %s (%s): trying again",
                             what, why->message);
    d->again_ns = ibx_deadline_in_ms(AGAIN_MS);
    return false;
}

int ibx_destination_complete(struct destination *d, struct ibx_error *err)
{
    struct ibx_journal_totals *complete = &d->status.record.totals;
    if (ibx_now_ns() < d->again_ns)
        return 0;
    ibx_destination_vm_stats(d);
    *complete = (struct ibx_journal_totals){
        .pages = d->map.pages, .zero_pages = d->status.zero_pages, .discarded_pages = d->discarded};
    ibx_page_map_hash(&d->map, complete->hash);
    if (ibx_destination_record(d, IBX_JOURNAL_COMPLETE, err)) {
        memset(complete, 0, sizeof(*complete));
        failed(d, "that cannot be put on record", err);
        return 0;
    }
    d->again_ns = 0;
    ibx_destination_move(d, DESTINATION_COMPLETE);
    ibx_destination_arrived_remove(d);
    ibx_destination_vm_leave_monitor(d);
    return 0;
}

bool ibx_destination_has_let_go(struct destination *d)
{
    struct ibx_error why = {0};
    if (d->uffd.fd < 0)
        return true;
    if (ibx_now_ns() < d->again_ns)
        return false;
    if (!d->let_go_by_ns)
        d->let_go_by_ns = ibx_deadline_in_ms(LET_GO_MS);
    if (ibx_destination_vm_let_go(d, &why) && (d->registered || ibx_now_ns() < d->let_go_by_ns))
        return failed(d, "QEMU cannot be let go of", &why);
    if (d->uffd.fd >= 0) {
        ibx_migration_notify(&d->options->observer,
                             "QEMU keeps a descriptor that it needs no more, until it ends: %s",
                             why.message);
        close(d->uffd.fd);
        d->uffd.fd = -1;
    }
    d->serving = d->stopping; /* there is no engine any more */
    return true;
}
