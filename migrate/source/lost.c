/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The destination is lost for good: the VM's QEMU has ended there while its pages were still
 * here, or nobody listens there any more. Or it reports the migration as complete with another
 * page map than this side has. Waiting would not help, so the tool reports what is left, and
 * ends. */
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define DECIDES_MS   10000 /* for libvirt to continue the VM here, or to end its QEMU */
#define NOBODY_TIMES 60    /* times timeout_ms, for somebody to listen there again */
#define AWAY_MS      30000 /* between two tries to connect: this tool was stopped itself */

static const char *peer_of(const struct source *s)
{
    return s->status.record.peer[0] ? s->status.record.peer : s->status.record.uri;
}

int ibx_source_lose_vm(struct source *s, const char *why, struct ibx_error *err)
{
    struct ibx_error unwritten = {0};
    struct ibx_record *record = &s->status.record;
    snprintf(record->vm_status, sizeof(record->vm_status), "%s",
             ibx_journal_migrated_on(record) ? IBX_JOURNAL_MIGRATED_ON : IBX_JOURNAL_QEMU_ENDED);
    if (ibx_migration_record(s->options->folder, record, IBX_JOURNAL_MOVED, &unwritten))
        ibx_migration_notify(&s->options->observer, "%s", unwritten.message);
    snprintf(s->status.message, sizeof(s->status.message), "%s", why);
    s->decide_by_ns = ibx_deadline_in_ms(DECIDES_MS);
    return ibx_source_move(s, SOURCE_LOST, err);
}

/* The end of a sentence that says to start the VM from its disk. */
static const char *unless(const struct source *s)
{
    return ibx_journal_migrated_on(&s->status.record) ? IBX_JOURNAL_UNLESS_ON : "";
}

/* Why the destination has lost the VM, for the end of a sentence: it may be long, and perhaps a
 * tool before this one has heard it. */
static const char *reported(const struct source *s, char *text, size_t size)
{
    text[0] = '\0';
    if (*s->status.message)
        snprintf(text, size, " (%s reports: %s)", peer_of(s), s->status.message);
    return text;
}

/* Pages without the state of the devices, which was in QEMU, are of no use. */
static int lost_here_too(struct source *s, struct ibx_error *err)
{
    char why[IBX_ERROR_MAX];
    ibx_source_remove_files(s);
    return ibx_error_set(
        err, -ECONNABORTED,
        "the VM went to %s, where its QEMU has ended, and so has its QEMU here (process %d): "
        "nothing can restart it from where it stopped, start it from its disk%s%s",
        peer_of(s), (int)s->status.record.pid, unless(s), reported(s, why, sizeof(why)));
}

/* Why the VM cannot be restarted in its QEMU here, which lives; NULL: it can. */
static const char *what_is_left(const struct source *s)
{
    const struct ibx_record *record = &s->status.record;
    if (ibx_journal_only_at_home(record))
        return "it had returned, and what it had not fetched here before is only in its memory "
               "there, which is newer by now: nothing can restart it here, start it from its disk";
    return record->borrow && ibx_journal_base_touched(s->options->folder, record)
               ? "a return of it had begun, so that its memory here is not what it was when it "
                 "stopped: unless it runs in another QEMU here (ib-migrate status), start it from "
                 "its disk"
               : NULL;
}

/* What to do if the destination is lost for good. */
static const char *remedy(const struct source *s)
{
    if (what_is_left(s))
        return what_is_left(s);
    if (ibx_journal_qemu_gone(&s->status.record))
        return "nothing can restart the VM from where it stopped, because its QEMU here has ended, "
               "too: start it from its disk";
    return source_managed(&s->vm)
               ? "virsh resume here continues the VM from where it stopped, and ib-migrate "
                 "rollback ends what is left of the migration"
               : "ib-migrate rollback here restarts the VM from where it stopped";
}

int ibx_source_vm_lost(struct source *s, struct ibx_error *err)
{
    const struct ibx_record *record = &s->status.record;
    const bool managed = source_managed(&s->vm);
    char why[IBX_ERROR_MAX];
    ibx_source_link_close(&s->link);
    if (managed) /* libvirt may continue the VM now: its writes must not be blocked */
        ibx_write_protection_release(&s->protection);
    if (managed && (s->vm.qmp || s->vm.retry_ns) && ibx_now_ns() < s->decide_by_ns)
        return 0;
    int rc = ibx_source_move(s, SOURCE_LEFT, err);
    if (rc)
        return rc;
    if (managed)
        ibx_journal_unlink_files(record);
    if (ibx_journal_qemu_gone(record))
        return lost_here_too(s, err);
    return ibx_error_set(err, -ECONNABORTED, "the VM went to %s, where its QEMU has ended: %s%s%s",
                         peer_of(s),
                         what_is_left(s) ? what_is_left(s)
                         : managed ? "virsh resume here continues it from where it stopped, then "
                                     "ib-migrate rollback ends what is left of the migration"
                                   : "the QEMU here still has the VM as it was when it stopped, "
                                     "and ib-migrate rollback restarts it from there",
                         unless(s), reported(s, why, sizeof(why)));
}

/* Ends the tool, because each further link would end like this: the destination's record has that
 * page map. */
int ibx_source_other_map(struct source *s, const struct ibx_migrate_totals *totals,
                         struct ibx_error *err)
{
    const bool gone = ibx_journal_qemu_gone(&s->status.record);
    const uint64_t data = totals->pages - totals->zero_pages;
    int rc = ibx_source_move(s, SOURCE_LEFT, err);
    return rc ? rc
              : ibx_error_set(
                    err, -EPROTO,
                    "%s reports the migration as complete with another page map (%" PRIu64
                    " pages with data of %" PRIu64 ", here %" PRIu64 " of %" PRIu64
                    "): this side keeps all pages; if the VM is as it should be there, end its "
                    "ib-migrate there, %sremove the file of its memory here, and ib-migrate prune "
                    "--unfinished at both ends forgets the migration; if not, end its QEMU there: "
                    "%s",
                    peer_of(s), data, totals->pages, s->vm.map.data_pages, s->vm.map.pages,
                    gone ? "" : "end its QEMU and ", remedy(s));
}

/* The tool before this one has set the files of guest RAM aside, and ended before it removed them.
 */
static void find_files(struct source *s)
{
    struct ibx_error silent = {0};
    if (ibx_journal_qemu_gone(&s->status.record) &&
        !ibx_journal_recall_ram(&s->status.record, &s->vm.ram, &silent))
        ibx_journal_open_files(&s->status.record, &s->vm.ram, &silent);
}

int ibx_source_recover_lost(struct source *s, struct ibx_error *err)
{
    find_files(s);
    s->status.message[0] = '\0';
    int rc = ibx_source_move(s, SOURCE_LOST, err);
    return rc ? rc : ibx_source_vm_lost(s, err);
}

/* Why the last try came to nothing, for the end of a sentence: it may be long. */
static const char *last_try(const struct source *s, char *text, size_t size)
{
    text[0] = '\0';
    if (*s->status.message)
        snprintf(text, size, " (%s)", s->status.message);
    return text;
}

/* Tells the operator from time to time. If the host comes back, its tool continues by itself, and
 * no operator is needed. */
static void still_unheard(struct source *s, uint64_t limit_ms)
{
    char why[IBX_ERROR_MAX];
    if (source_linked(&s->link) || ibx_now_ns() < s->unheard_ns)
        return;
    s->unheard_ns = ibx_deadline_in_ms((unsigned)limit_ms);
    ibx_migration_notify(
        &s->options->observer,
        "for %u s %s has not answered, where the VM is and may wait for pages that are here: "
        "this ib-migrate goes on trying; if that host is lost for good, make sure that it is off, "
        "interrupt this ib-migrate twice, and then %s%s",
        (unsigned)((ibx_now_ns() - s->heard_ns) / (1000 * IBX_NS_PER_MS)), peer_of(s), remedy(s),
        last_try(s, why, sizeof(why)));
}

static int leave_unheard(struct source *s, uint64_t limit_ms, struct ibx_error *err)
{
    char why[IBX_ERROR_MAX];
    const uint64_t half_ns = limit_ms / 2 * IBX_NS_PER_MS;
    int rc = ibx_source_move(s, SOURCE_LEFT, err);
    if (rc)
        return rc;
    if (s->nobody_ns && ibx_now_ns() - s->nobody_ns >= half_ns)
        return ibx_error_set(
            err, -ETIMEDOUT,
            "for %" PRIu64 " s nobody has listened at %s, where the VM may run: if its QEMU (virsh "
            "list) is there, call ib-migrate recover there, then here; if it is not, %s",
            limit_ms / 1000, s->status.record.uri, remedy(s));
    return ibx_error_set(
        err, -ETIMEDOUT,
        "for %" PRIu64
        " s %s has not said whether the VM runs there, and here it is stopped: when that host "
        "answers again, call ib-migrate recover here, and there, too, if its ib-migrate has ended; "
        "if it is lost for good, make sure that it is off, and then %s%s",
        limit_ms / 1000, peer_of(s), remedy(s), last_try(s, why, sizeof(why)));
}

static uint64_t later(uint64_t at, uint64_t gap, uint64_t now)
{
    return !at ? 0 : at + gap < now ? at + gap : now;
}

/* If this tool was stopped itself, that time does not count: what has come meanwhile is yet to be
 * read. */
static void leave_out_absence(struct source *s)
{
    const uint64_t now = ibx_now_ns(), gap = s->unheard_look_ns ? now - s->unheard_look_ns : 0;
    s->unheard_look_ns = now;
    if (gap > MIGRATION_AWAY_NS) /* the VM may have stopped within it */
        s->away_ns += gap < now - s->still_ns ? gap : now - s->still_ns;
    if (gap <= AWAY_MS * IBX_NS_PER_MS)
        return;
    s->heard_ns = later(s->heard_ns, gap, now);
    s->unsure_ns = later(s->unsure_ns, gap, now);
    s->nobody_ns = later(s->nobody_ns, gap, now);
}

/* Since when this side waits for somebody who may not come; 0: it does not. A destination that only
 * answers each new link has not said that the VM runs there. */
static uint64_t unheard_since(const struct source *s)
{
    return s->state.now == SOURCE_SERVING ? s->nobody_ns
           : s->unsure_ns                 ? s->unsure_ns
                                          : s->heard_ns;
}

/* How long that may last; 0: ending.c counts, from when the destination was away. One that answers
 * is not away: then --give-up counts from the end of the first silent link on, since a new link may
 * help. */
static uint64_t unheard_ms(const struct source *s)
{
    const bool answers = s->state.now == SOURCE_COMMITTED && s->unsure_ns;
    return !s->options->give_up_s ? (uint64_t)s->transport.timeout_ms * NOBODY_TIMES
           : answers ? ibx_migration_sign_ms(&s->transport) + (uint64_t)s->options->give_up_s * 1000
                     : 0;
}

int ibx_source_check_unheard(struct source *s, struct ibx_error *err)
{
    leave_out_absence(s);
    const bool decided = s->state.now == SOURCE_SERVING;
    const uint64_t limit_ms = unheard_ms(s);
    const uint64_t since = unheard_since(s), limit = limit_ms * IBX_NS_PER_MS;
    if (!limit_ms || (!decided && s->state.now != SOURCE_COMMITTED))
        return 0;
    if (since && ibx_now_ns() - since >= limit)
        return leave_unheard(s, limit_ms, err);
    if (decided && ibx_now_ns() - s->heard_ns >= limit)
        still_unheard(s, limit_ms);
    return 0;
}
