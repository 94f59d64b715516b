/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/destination/destination.h"

#include "common/clock.h"

#include <string.h>

static void progress_of(const struct destination *d, struct ibx_migrate_progress *progress)
{
    *progress = (struct ibx_migrate_progress){
        .pages = d->status.pages,
        .present = d->status.present,
        .bytes = d->status.bytes,
        .faults = d->status.faults,
        .fault_p50_ns = d->status.fault_p50_ns,
        .fault_p99_ns = d->status.fault_p99_ns,
        .fault_max_ns = d->status.fault_max_ns,
    };
    memcpy(progress->status, d->qemu.status, sizeof(progress->status));
}

void ibx_destination_send_running(struct destination *d)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_RUNNING};
    memcpy(message.is.status, d->qemu.status, sizeof(message.is.status));
    ibx_channel_send(&d->link.control, &message, NULL);
}

static int send_ended(struct destination *d, struct ibx_error *err)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_ENDED};
    memcpy(message.is.status, d->status.record.vm_status, sizeof(message.is.status));
    return ibx_channel_send(&d->link.control, &message, err);
}

static void send_progress(struct destination *d)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_PROGRESS};
    d->progress_ns = ibx_now_ns();
    progress_of(d, &message.is.progress);
    ibx_channel_send(&d->link.control, &message, NULL);
}

void ibx_destination_send_progress(struct destination *d)
{
    if (!destination_linked(&d->link) || !ibx_channel_idle(&d->link.control) || !d->status.pages ||
        ibx_now_ns() - d->progress_ns < MIGRATION_TICK_MS * IBX_NS_PER_MS)
        return;
    send_progress(d);
}

void ibx_destination_send_migrated_on(struct destination *d)
{
    if (destination_linked(&d->link) && ibx_journal_is_migrated_on(d->qemu.status))
        send_progress(d);
}

int ibx_destination_send_complete(struct destination *d, struct ibx_error *err)
{
    const struct ibx_journal_totals *is = &d->status.record.totals;
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_COMPLETE};
    if (d->state.now == DESTINATION_SHUT_DOWN)
        return send_ended(d, err);
    struct ibx_migrate_totals *totals = &message.is.totals;
    totals->pages = is->pages;
    totals->zero_pages = is->zero_pages;
    totals->discarded_pages = is->discarded_pages;
    totals->fetched_pages = is->pages - is->zero_pages - is->discarded_pages;
    memcpy(totals->hash, is->hash, sizeof(totals->hash));
    progress_of(d, &totals->progress);
    return ibx_channel_send(&d->link.control, &message, err);
}
