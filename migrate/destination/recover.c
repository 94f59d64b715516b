/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Recover: a tool continues what one that has ended began. QEMU's main thread may wait for a page
 * that only this tool can fetch. Then its monitor does not answer, so guest RAM is found by the
 * record alone.
 */
#include "migrate/destination/destination.h"
#include "migrate/preflight/preflight.h"

#include "common/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* For the monitor to tell whether the VM ran. QEMU may need a page for that, which comes only when
 * this tool listens for the source; the next tries are made then. */
#define REACH_MS 500
#define ZEROS_MS 5000 /* ... to tell whether the guest takes pages that come again for zeros */

static int ended(const struct destination *d, struct ibx_error *err)
{
    const struct ibx_record *record = &d->status.record;
    return ibx_error_set(
        err, -ESRCH,
        ibx_journal_ran_here(record)
            ? "the QEMU (process %d) of this migration has ended, and the VM with it: ib-migrate "
              "rollback at the source continues the VM from where it was "
              "stopped" IBX_JOURNAL_UNLESS_DONE "%s"
            : "the QEMU (process %d) of this migration has ended: unless it runs at the source, as "
              "ib-migrate status there says, ib-migrate rollback there continues the VM from where "
              "it was stopped%s",
        (int)record->pid, ibx_journal_restarts_if(record));
}

/* For a record that does not have the layout of guest RAM. */
static int find_by_monitor(struct destination *d, struct ibx_error *err)
{
    uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = ibx_qmp_connect(d->options->qmp, deadline, &d->qemu.qmp, err);
    if (!rc)
        rc = ibx_guest_ram_find(d->qemu.qmp, true, &d->ram.guest, deadline, err);
    if (rc)
        return rc;
    return d->ram.guest.pid == d->status.record.pid && ibx_journal_qemu_lives(&d->status.record)
               ? ibx_page_map_init_ram(&d->ram.map, &d->ram.guest, err)
               : ended(d, err);
}

/* Finds the process of the record, and guest RAM in it. */
static int find(struct destination *d, struct ibx_error *err)
{
    const struct ibx_record *record = &d->status.record;
    if (!record->block_count)
        return find_by_monitor(d, err);
    int rc = ibx_destination_ram_of_record(&d->ram, record, err);
    if (!rc)
        rc = ibx_journal_reopen_to_fill(record, &d->ram.guest, err);
    /* Only then: it may end meanwhile, and its number be another process's. */
    return ibx_journal_qemu_lives(record) ? rc : ended(d, err);
}

/* Finds whether the VM runs. It does if the record says RUNNING. Before that only QEMU knows; if it
 * does not answer, it may need pages for that, and is asked later. */
static int learn_state(struct destination *d, struct ibx_error *err)
{
    const struct ibx_record *record = &d->status.record;
    char status[IBX_MIGRATE_STATUS];
    struct ibx_error silent = {0};
    if (record->block_count && record->state == IBX_JOURNAL_RUNNING)
        return ibx_state_move(&d->qemu.state, QEMU_RUNNING);
    int rc = d->qemu.qmp
                 ? 0
                 : ibx_destination_qemu_reach(&d->qemu, ibx_deadline_in_ms(REACH_MS), &silent);
    if (!rc)
        rc = ibx_destination_qemu_await(&d->qemu, status, sizeof(status), &silent);
    if (rc && !ibx_journal_qemu_lives(record))
        return ended(d, err);
    if (rc && !record->block_count)
        return ibx_error_set(err, rc, "%s", silent.message);
    if (rc) {
        ibx_destination_qemu_lose(&d->qemu, silent.message);
        return 0;
    }
    memcpy(d->qemu.status, status, sizeof(d->qemu.status));
    if (!strcmp(status, "inmigrate"))
        return ibx_error_set(err, -ECANCELED,
                             "the migration ended before the VM ran here: restart this QEMU and "
                             "migrate again; the VM is at the source");
    if (d->qemu.managed && strcmp(status, "running") != 0) /* libvirt continues it, or not */
        return 0;
    return ibx_state_move(&d->qemu.state, QEMU_RUNNING);
}

/* -EOPNOTSUPP: the guest takes what it has given back for zeros, or QEMU cannot tell. Others: QEMU
 * could not be asked; its main thread may wait for a page. */
static int ask_for_zeros(struct destination *d, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(ZEROS_MS);
    struct ibx_qmp *qmp = d->qemu.qmp;
    int rc = qmp ? 0 : ibx_qmp_connect(d->options->qmp, deadline, &qmp, err);
    if (!rc && ibx_qmp_pid(qmp) != d->status.record.pid)
        rc = ibx_error_set(err, -ESRCH, "%s is another QEMU's", d->options->qmp);
    if (!rc)
        rc = ibx_preflight_wants_zeros(qmp, deadline, err);
    if (!d->qemu.qmp)
        ibx_qmp_close(qmp);
    return rc;
}

#define NO_LIST                                                                                    \
    "%s does not tell which pages have come and were in their place (somebody has removed it, or " \
    "it is of an earlier release of ib-migrate)"
#define MAY_BE_ZEROS                                                                               \
    "with their old bytes, which it may take for zeros (free-page-reporting with "                 \
    "init_on_free=1): end this QEMU, and ib-migrate rollback at the source continues the VM from " \
    "where it was stopped%s"

/* Without the page state that says what is in its place, a page that the guest has given back is a
 * hole like one that has not come, and comes again. An earlier version noted only which pages have
 * come, which is enough in minor mode. */
static int check_list(struct destination *d, struct ibx_error *err)
{
    char path[128];
    struct ibx_error why = {0};
    if (ibx_destination_placed(&d->ram) || (d->ram.minor && d->ram.arrived.memory))
        return 0;
    ibx_journal_page_state_path(&d->status.record, IBX_PAGE_STATE_ARRIVED, path, sizeof(path));
    const int rc = ask_for_zeros(d, &why);
    if (rc == -EOPNOTSUPP)
        return ibx_error_set(err, -ESTALE,
                             NO_LIST ", and so pages that the guest has given back "
                                     "come again " MAY_BE_ZEROS,
                             path, ibx_journal_restarts_if(&d->status.record));
    d->zeros_unknown = rc;
    ibx_migration_notify(
        &d->options->observer,
        NO_LIST ": pages that the guest has given back since (balloon) come again, and take "
                "memory%s%s%s",
        path,
        rc ? "; whether it takes them for zeros (free-page-reporting with init_on_free=1), and so "
             "must not go on, QEMU does not tell now ("
           : "",
        rc ? why.message : "", rc ? "), and is asked again" : "");
    return 0;
}

/* QEMU's main thread may have waited for a page then, and may answer by now. */
int ibx_destination_check_given_back(struct destination *d, struct ibx_error *err)
{
    struct ibx_error why = {0};
    if (!d->zeros_unknown || !d->qemu.qmp)
        return 0;
    const int rc = ibx_preflight_wants_zeros(d->qemu.qmp, ibx_deadline_in_ms(REACH_MS), &why);
    d->zeros_unknown = rc;
    if (rc == -EOPNOTSUPP) {
        ibx_error_set(err, rc, "pages that the guest had given back came again " MAY_BE_ZEROS,
                      ibx_journal_restarts_if(&d->status.record));
        return ibx_destination_broken(d, true, err);
    }
    if (rc)
        ibx_destination_qemu_lose(&d->qemu, why.message); /* it is reached again later */
    return 0;
}

static void recall_blocks(struct destination *d)
{
    d->link.block_count = ibx_migrate_describe_blocks(d->link.blocks, &d->ram.guest);
    ibx_destination_stream_init(&d->stream, STREAM_ENDING);
}

/* COMPLETE needs no QEMU, which may have ended, or have other RAM by now. What the tool before this
 * one had not undone in QEMU yet will be undone. But the VM may have been sent on since, and the
 * number of the userfaultfd may be that of the protection of that migration: it is taken only while
 * memory of QEMU is registered for missing pages, which no other one is. */
static int recover_complete(struct destination *d, struct ibx_error *err)
{
    const struct ibx_record *record = &d->status.record;
    int rc = ibx_destination_ram_of_record(&d->ram, record, err);
    if (!rc)
        rc = ibx_destination_begin(d, DESTINATION_COMPLETE);
    if (rc)
        return rc;
    recall_blocks(d);
    ibx_state_move(&d->qemu.state, QEMU_RUNNING);
    d->status.pages = d->status.present = record->totals.pages;
    d->status.zero_pages = record->totals.zero_pages;
    d->ram.discarded = record->totals.discarded_pages;
    ibx_destination_arrived_remove(record);
    struct ibx_error gone = {0};
    if (record->verify && ibx_destination_tags_find(&d->ram, record, &gone))
        ibx_migration_notify(&d->options->observer, "%s", gone.message);
    if (!ibx_journal_qemu_lives(record))
        return 0;
    rc = ibx_uffd_awaits_pages(record->pid, err);
    if (rc > 0)
        rc = ibx_destination_ram_take_uffd(&d->ram, record, err);
    /* Nothing of it is left, and its number may be another one's; or QEMU has ended meanwhile. */
    return !rc || rc == -ENOENT || !ibx_journal_qemu_lives(record) ? 0 : rc;
}

/* QEMU has ended, and only the source has to learn it. */
static int recover_shut_down(struct destination *d, struct ibx_error *err)
{
    const struct ibx_record *record = &d->status.record;
    int rc = ibx_destination_ram_of_record(&d->ram, record, err);
    if (!rc)
        rc = ibx_destination_begin(d, DESTINATION_SHUT_DOWN);
    if (rc)
        return rc;
    recall_blocks(d);
    d->status.pages = d->ram.map.pages;
    return 0;
}

/* A borrowed VM may have returned after the tool before this one had ended: notes that. */
static int note_return(struct destination *d, struct ibx_error *err)
{
    struct ibx_record *record = &d->status.record;
    if ((record->state != IBX_JOURNAL_RUNNING && record->state != IBX_JOURNAL_MAY_RUN) ||
        !ibx_destination_has_returned(d, NULL))
        return 0;
    snprintf(record->vm_status, sizeof(record->vm_status), "%s", IBX_JOURNAL_RETURNED);
    record->settings[0] = '\0';
    ibx_destination_arrived_remove(record);
    return ibx_destination_record(d, IBX_JOURNAL_SHUT_DOWN, err);
}

int ibx_destination_recover(struct destination *d, struct ibx_error *err)
{
    const struct ibx_record *record = &d->status.record;
    const int noted = note_return(d, err);
    if (noted)
        return noted;
    d->qemu.settings = json_loads(record->settings, 0, NULL);
    if (record->state == IBX_JOURNAL_COMPLETE)
        return recover_complete(d, err);
    if (record->state == IBX_JOURNAL_SHUT_DOWN)
        return recover_shut_down(d, err);
    int rc = find(d, err);
    if (!rc)
        rc = ibx_destination_lock_again(d, err);
    if (!rc)
        rc = learn_state(d, err);
    if (rc)
        return rc;
    recall_blocks(d);
    const bool runs = d->qemu.completed = d->qemu.state.now == QEMU_RUNNING;
    d->undecided = record->state == IBX_JOURNAL_MAY_RUN && !strcmp(d->qemu.status, "paused");
    rc = ibx_destination_begin(d, runs ? DESTINATION_FILLING : DESTINATION_RESUMING);
    if (!rc && runs && record->state == IBX_JOURNAL_MAY_RUN && !d->undecided)
        rc = ibx_destination_record(d, IBX_JOURNAL_RUNNING, err);
    ibx_destination_home_recover(d);
    if (!rc)
        rc = ibx_destination_ram_recover(&d->ram, record, err);
    return rc ? rc : check_list(d, err);
}
