/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A VM that runs here and is to return: its pages are placed write-protected, so that the tool by
 * which it returns (source/return.c) finds what it has written. This tool continues to fetch pages
 * until the VM has returned, which it learns from the other tool's record.
 */
#include "migrate/destination/destination.h"
#include "migrate/preflight/preflight.h"

#include "common/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LOOK_MS   300  /* between two looks at the journal */
#define WATCH_MS  2000 /* ... and for devices that change guest RAM without a mark */
#define ANSWER_MS 500  /* for QEMU to answer; meanwhile this tool answers no source */

void ibx_destination_borrow_check(const struct destination *d,
                                  const struct ibx_migrate_hello *hello,
                                  struct ibx_blockers *blockers)
{
    const struct ibx_guest_ram *ram = &d->ram.guest;
    if (!hello->borrow)
        return;
    if (!hello->verify)
        ibx_blockers_add(blockers, "the source would not compare the pages that come from there: "
                                   "it needs an ib-migrate like this one");
    if (d->ram.minor)
        ibx_blockers_add(blockers, "a borrowed VM cannot be received with --minor: leave it out");
    if (d->options->stand_still)
        ibx_blockers_add(blockers, "a borrowed VM cannot be received with --stand-still, because "
                                   "writes of vhost-user back ends are not seen: leave it out");
    if (d->qemu.managed)
        ibx_blockers_add(blockers, "a borrowed VM cannot be received with --libvirt: leave it out");
    for (size_t i = 0; i < ram->count; i++)
        if (ram->blocks[i].page_size > 4096)
            ibx_blockers_add(blockers,
                             "guest RAM %s has pages of %llu bytes: a VM that is borrowed needs "
                             "pages of 4096 bytes at both ends, in /dev/shm for instance",
                             ram->blocks[i].id, (unsigned long long)ram->blocks[i].page_size);
}

int ibx_destination_borrow_begin(struct destination *d, struct ibx_error *err)
{
    int rc = ibx_preflight_warm(d->qemu.qmp, &d->ram.guest, NULL,
                                ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    return rc ? ibx_error_prefix(err, rc, "this VM cannot be borrowed") : 0;
}

/* A device that was plugged in since may have changed pages without a mark, so that they look as
 * they came, even if it has been removed again. At home (`kept`) the QEMU that the VM left has the
 * memory, too, and nobody looks. */
void ibx_destination_borrow_watch(struct destination *d)
{
    struct ibx_error why = {0}, unwritten = {0};
    if (d->ram.unseen || d->ram.kept || !d->qemu.qmp || d->qemu.end[0] ||
        ibx_now_ns() < d->watch_ns)
        return;
    int rc =
        ibx_preflight_warm(d->qemu.qmp, &d->ram.guest, NULL, ibx_deadline_in_ms(ANSWER_MS), &why);
    d->watch_ns = ibx_deadline_in_ms(WATCH_MS);
    if (rc != -EOPNOTSUPP)
        return;
    d->ram.unseen = !ibx_journal_touch_base(d->options->folder, &d->status.record, &unwritten);
    ibx_migration_notify(&d->options->observer,
                         "%s: which pages of the VM are others than at home is not known any more, "
                         "and it cannot return%s%s",
                         why.message,
                         d->ram.unseen ? "" : "; this cannot be recorded: ", unwritten.message);
}

/* The VM is at home, or has ended there: what this side has of it is of no use any more. */
static bool is_away(const struct ibx_record *record)
{
    return record->state == IBX_JOURNAL_MOVED || record->state == IBX_JOURNAL_DONE ||
           record->state == IBX_JOURNAL_ENDED;
}

/* The return may have come to its commit: QEMU's monitor is for the tool that continues the return.
 */
static bool may_be_away(const struct ibx_record *record)
{
    return record->state == IBX_JOURNAL_MAY_RUN;
}

void ibx_destination_borrow_lend(struct destination *d)
{
    d->lent = true;
    if (d->ram.engine)
        ibx_fault_set_background(d->ram.engine, false);
    ibx_destination_qemu_lend(&d->qemu);
}

void ibx_destination_borrow_take_back(struct destination *d)
{
    if (!d->lent || !d->qemu.qmp)
        return;
    d->lent = false;
    if (d->ram.engine && d->ram.borrow != IBX_BORROW_LAZY)
        ibx_fault_set_background(d->ram.engine, true);
}

void ibx_destination_borrow_keep_lent(struct destination *d)
{
    struct ibx_record record;
    if (d->ram.borrow && !d->qemu.qmp && ibx_now_ns() >= d->qemu.retry_ns &&
        !ibx_journal_find_return(d->options->folder, &d->status.record, may_be_away, &record))
        ibx_destination_borrow_lend(d);
}

bool ibx_destination_borrow_stays(struct destination *d)
{
    if (!d->ram.borrow || d->stays || d->state.now != DESTINATION_FILLING ||
        !ibx_destination_ram_whole(&d->ram))
        return false;
    d->stays = true;
    ibx_migration_notify(&d->options->observer,
                         "the VM has all of its pages and stays here: it does not return");
    return true;
}

bool ibx_destination_has_returned(const struct destination *d, struct ibx_record *record)
{
    struct ibx_record found;
    return d->status.record.borrow &&
           !ibx_journal_find_return(d->options->folder, &d->status.record, is_away,
                                    record ? record : &found);
}

bool ibx_destination_borrow_returned(struct destination *d, bool now, struct ibx_error *err)
{
    char sentence[256];
    const char why[IBX_MIGRATE_STATUS] = IBX_JOURNAL_RETURNED;
    struct ibx_record record;
    if (d->state.now != DESTINATION_FILLING || (!now && ibx_now_ns() < d->returned_ns))
        return false;
    d->returned_ns = ibx_deadline_in_ms(LOOK_MS);
    if (!ibx_destination_has_returned(d, &record))
        return false;
    snprintf(sentence, sizeof(sentence), "the VM has returned to %.128s", record.peer);
    ibx_destination_end(d, why, sentence, err);
    return true;
}
