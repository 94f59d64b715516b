/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define STAY_MS          60000 /* for QEMU to continue the VM */
#define FAREWELL_MS      1000  /* for the destination to take the ABORT */
#define LAST_MESSAGE_MS  1500  /* for a destination's last message, which has the reason */
#define REASON_MS        200   /* ... before the commit, while the VM is stopped */
#define LAST_ABORT_MS    500   /* ... after RUNNING, while the VM may wait for a new link */
#define CONFIRM_MS       30000 /* for CONFIRMED */
#define SOON_MS          5000  /* the destination has closed a link that lasts no longer */
#define CLOSED_OFTEN     2     /* so many of these in a row are no chance */
#define HOME_LOOK_MS     500   /* between two looks whether a borrowed VM is here again */
#define HOME_MS          5000  /* for the borrower to report that */
#define CONFIRM_RETRY_MS 500   /* between two tries */

#define ENDING_MS           500   /* for a QEMU whose monitor has ended to end */
#define SHUTTING_MS         10000 /* ... whose VM was shut down, and which may be at its disks */
#define SETTLE_MS           500   /* for QEMU to take its settings, while other work waits */
#define SETTLE_RETRY_MS     1000  /* between two tries */
#define NOTE_RETRY_MS       1000  /* ... to write a record */
#define LAST_SETTLE_MS      2000  /* in all, when nothing else is to be done */
#define LAST_SETTLE_LOOK_MS 20
#define STATUS_MS           1000 /* for QEMU to tell what has become of a VM */

/* ---------------------------------------------------------------- before the commit */

static int on_farewell(void *context, const struct ibx_migrate_any *message)
{
    struct source *s = context;
    if (message->type != IBX_MIGRATE_ABORT)
        return 0;
    if (ibx_state_allows(s->peer.table, s->peer.now, PEER_ABORTED))
        ibx_state_move(&s->peer, PEER_ABORTED);
    return -ECONNABORTED;
}

/* Whether a destination may still wait for the commit. `sent`: it has the whole state. */
static bool may_wait(const struct source *s, bool sent)
{
    return sent && s->peer.now != PEER_ABORTED && !source_committed(s);
}

bool ibx_source_qemu_has_ended(const struct source *s)
{
    const uint64_t deadline = ibx_deadline_in_ms(ibx_qmp_ends(s->vm.qmp) ? SHUTTING_MS : ENDING_MS);
    const struct ibx_record *record = &s->status.record;
    while (record->pid && !ibx_journal_qemu_gone(record) && ibx_now_ns() < deadline)
        poll(NULL, 0, LAST_SETTLE_LOOK_MS);
    return record->pid && ibx_journal_qemu_gone(record);
}

static int on_abort_only(void *context, const struct ibx_migrate_any *message)
{
    if (message->type != IBX_MIGRATE_ABORT)
        return 0;
    int rc = ibx_source_on_message(context, message);
    return rc ? rc : -ECONNABORTED; /* the last message */
}

/* A destination that gives up sends the reason, and then its connections end. This side may have
 * noticed first the end of another connection, or that it could not send. */
static int take_reason(struct source *s, int code, struct ibx_error *err)
{
    struct ibx_error last = {0};
    struct message_context incoming = {s, &last};
    if (!source_linked(&s->link) || source_committed(s) || s->peer.now == PEER_ABORTED ||
        (!ibx_conn_over(s->link.control.conn) &&
         !(s->link.pages && ibx_page_server_failed(s->link.pages, NULL))))
        return code;
    /* It may be on its way, or behind other messages. */
    ibx_channel_take_until(&s->link.control, on_abort_only, &incoming,
                           ibx_deadline_in_ms(REASON_MS), NULL);
    if (s->peer.now != PEER_ABORTED)
        return code;
    *err = last;
    return last.code;
}

/* If the QEMU there could not load a device that was plugged in here at the last moment, only its
 * log says so. The VM runs here again and its QEMU answers, so this side can look for such a
 * device. */
static void say_what_changed(struct source *s, struct ibx_error *err)
{
    struct ibx_error changed = {0};
    const struct ibx_error first = *err;
    if (s->vm.qmp && ibx_source_check_compared(s, &changed) == -EPERM)
        ibx_error_set(err, first.code, "%.300s; %s", first.message, changed.message);
}

/* With -no-shutdown, QEMU continues a VM whose migration has failed even if its guest has shut it
 * down since: a moment after it reports the migration as failed. */
static void say_status(struct source *s, int code, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(STATUS_MS);
    char status[32] = "";
    while (s->vm.qmp && !ibx_vm_status(s->vm.qmp, status, sizeof(status), deadline, NULL) &&
           !strcmp(status, "finish-migrate") && ibx_now_ns() < deadline)
        poll(NULL, 0, LAST_SETTLE_LOOK_MS);
    const struct ibx_error first = *err;
    if (!strcmp(status, "running"))
        ibx_error_set(err, code,
                      "%.300s, and QEMU (process %d) has continued it, as it does when its "
                      "migration fails: end it (quit), or reset it (system_reset)",
                      first.message, (int)s->status.record.pid);
    else if (status[0])
        ibx_error_set(err, code, "%.300s: it is off, and its QEMU (process %d) stays (%s)",
                      first.message, (int)s->status.record.pid, status);
}

/* Says why a VM is stopped that was continued here and that its disk or its watchdog has stopped
 * since. A disk may also be why its migration failed. */
static void tell_of_stop(struct source *s)
{
    char status[32] = "", why[IBX_ERROR_MAX];
    const uint64_t deadline = ibx_deadline_in_ms(STATUS_MS);
    if (!s->vm.qmp || source_managed(&s->vm) ||
        ibx_vm_status(s->vm.qmp, status, sizeof(status), deadline, NULL) ||
        !ibx_vm_say_stopped(s->vm.qmp, status, why, sizeof(why), deadline))
        return;
    ibx_migration_notify(&s->options->observer, "the VM is stopped here (\"%s\"): %s", status, why);
}

/* Records that the VM stays here, as it does even if no record can be written. MOVED: where libvirt
 * drives, it has taken back a VM that the destination had reported to have. */
static void record_stay(struct source *s)
{
    struct ibx_record *record = &s->status.record;
    const enum ibx_journal_state state =
        record->state == IBX_JOURNAL_MOVED ? IBX_JOURNAL_ROLLED_BACK : IBX_JOURNAL_KEPT;
    struct ibx_error why = {0};
    if (!record->written_s)
        return;
    if (!ibx_migration_record(s->options->folder, record, state, &why)) {
        /* At once: the destination may still have to be told, and if this tool is killed meanwhile,
         * the record is over, and nobody would look for these names. */
        if (source_managed(&s->vm))
            ibx_journal_unlink_files(record);
        return;
    }
    record->state = state;
    ibx_migration_notify(&s->options->observer,
                         "the VM stays here, and that could not be recorded: %s; then ib-migrate "
                         "rollback %s does",
                         why.message, ibx_journal_options(record->qmp).text);
}

/* Says that QEMU has ended. If libvirt drives, it also ends the QEMU here when it has migrated the
 * VM without this tool. */
static void say_gone(const struct source *s, int code, const char *reason, struct ibx_error *err)
{
    const int pid = (int)s->status.record.pid;
    const bool told = reason != NULL;
    if (source_managed(&s->vm) && !(told && !strncmp(reason, "guest-", 6)))
        ibx_error_set(
            err, code,
            "the VM's QEMU (process %d) has ended here%s%s%s, before this migration could "
            "have the VM run elsewhere; whether libvirt has saved it, or migrated it without this "
            "ib-migrate, virsh list --all here and virsh list on the other hosts tell",
            pid, told ? " (" : "", told ? reason : "", told ? ")" : "");
    else if (told)
        ibx_error_set(
            err, code,
            "the VM was shut down here (%s), and its QEMU (process %d) has ended with it, "
            "before it could run elsewhere",
            reason, pid);
    else
        ibx_error_set(err, code,
                      "the VM has ended with its QEMU (process %d), before it could run elsewhere",
                      pid);
}

/* The guest has shut the VM down, or somebody has ended QEMU, and QEMU says so. */
static bool was_shut_down(struct source *s, int code, struct ibx_error *err)
{
    const char *reason = ibx_qmp_ends(s->vm.qmp);
    ibx_qmp_end(s->vm.qmp, s->status.record.pid);
    if (!reason || !ibx_source_qemu_has_ended(s))
        return false;
    say_gone(s, code, reason, err);
    return true;
}

/* The VM stays here, and QEMU could not be told so because of `why`, or has only kept settings
 * (-EAGAIN of ibx_vm_stay()). */
static void not_continued(struct source *s, int code, const struct ibx_error *why,
                          struct ibx_error *err)
{
    struct ibx_error silent = {0};
    ibx_error_prefix(err, code, "%s (%s; %s) after this",
                     why->code == -EAGAIN ? IBX_VM_SETTINGS_STAY : "the VM could not be continued",
                     why->message,
                     source_committed(s) ? "ib-migrate rollback tries again"
                                         : "another process, left behind, tries again");
    ibx_source_move(s, SOURCE_STRANDED, &silent);
}

int ibx_source_keep(struct source *s, int code, struct ibx_error *err)
{
    const bool loads = s->state.now == SOURCE_STOPPED || s->state.now == SOURCE_SENDING;
    const bool sent = s->stream.state.now >= STREAM_SENT; /* before the stream is closed here */
    struct ibx_error why = {0};
    if (!ibx_state_allows(s->state.table, s->state.now, SOURCE_KEPT))
        return code;
    code = take_reason(s, code, err);
    const bool aborted = s->peer.now == PEER_ABORTED;
    if (source_linked(&s->link) && err->message[0])
        ibx_channel_send_abort(&s->link.control, err->message);
    ibx_write_protection_release(&s->protection);
    ibx_source_warm_end(s);
    /* First, because QEMU does nothing else while it waits for a reader of its device state. */
    ibx_source_stream_close(&s->stream);
    ibx_gate_close(&s->gate);
    const int there = ibx_source_vm_reach(&s->vm, s->options->qmp, MIGRATION_QMP_MS, &why);
    const bool shut_down = was_shut_down(s, code, err);
    if (s->without_ram)
        return ibx_source_libvirt_saved(s, err);
    const int failed = shut_down ? 0
                       : s->vm.qmp
                           ? ibx_vm_stay(s->vm.qmp, &s->vm.undo, ibx_deadline_in_ms(STAY_MS), &why)
                       : there ? there
                               : ibx_error_set(&why, -ESRCH, "its QEMU has ended");
    /* ABORT may be lost if the connection is closed at once. */
    if (source_linked(&s->link) && !aborted && code != -ECONNRESET)
        ibx_channel_take_until(&s->link.control, on_farewell, s, ibx_deadline_in_ms(FAREWELL_MS),
                               NULL);
    if (failed && ibx_source_qemu_has_ended(s)) {
        say_gone(s, code, NULL, err);
    } else if (failed) {
        not_continued(s, code, &why, err);
        return code;
    }
    const bool disown = may_wait(s, sent);
    ibx_source_move(s, SOURCE_KEPT, &why);
    s->status.record.settings[0] = '\0'; /* they have been put back */
    if (disown)
        s->status.record.epoch++;
    record_stay(s); /* first, since a connection may take its time, and the VM runs by now */
    ibx_watchdog_release(&s->vm.watchdog);
    if (disown)
        ibx_source_link_disown(&s->link, err->message);
    if (loads && aborted)
        say_what_changed(s, err);
    else if (s->shut_down && !shut_down)
        say_status(s, code, err);
    else if (!shut_down)
        tell_of_stop(s);
    return code;
}

/* ---------------------------------------------------------------- after the commit */

static int on_last_message(void *context, const struct ibx_migrate_any *message)
{
    struct message_context *h = context;
    int rc = ibx_source_on_message(context, message);
    return rc || h->source->state.now == SOURCE_COMMITTED ? rc : -EISCONN; /* it runs there */
}

/* When the destination gives up, the end of a page connection may be noticed before its ABORT. Only
 * ABORT allows the VM to continue here. */
static int take_last_messages(struct source *s, int code, struct ibx_error *err)
{
    struct ibx_error last = {0};
    struct message_context incoming = {s, &last};
    if (!source_linked(&s->link) || s->state.now != SOURCE_COMMITTED ||
        s->peer.now == PEER_ABORTED || code == -EPROTO)
        return code;
    int rc = ibx_channel_take_until(&s->link.control, on_last_message, &incoming,
                                    ibx_deadline_in_ms(LAST_MESSAGE_MS), &last);
    if (s->peer.now != PEER_ABORTED)
        return code;
    *err = last;
    return rc;
}

static int on_last_word(void *context, const struct ibx_migrate_any *message)
{
    return message->type == IBX_MIGRATE_BROKEN ? ibx_source_on_message(context, message)
                                               : on_abort_only(context, message);
}

/* The same in SERVING: takes an ABORT, which says that the VM's QEMU has ended there, or, with
 * `err`, a BROKEN. All other messages come again over the next link. */
void ibx_source_take_last_abort(struct source *s, unsigned ms, struct ibx_error *err)
{
    struct ibx_error last = {0};
    struct message_context incoming = {s, &last};
    if (source_linked(&s->link) && s->state.now == SOURCE_SERVING)
        ibx_channel_take_until(&s->link.control, err ? on_last_word : on_abort_only, &incoming,
                               ibx_deadline_in_ms(ms), &last);
    if (s->state.now == SOURCE_BROKEN && err)
        *err = last;
}

/* The network works, and the destination ends each link at once. The reason is known there only,
 * for example that the host has no room for pages. */
static void say_closed(struct source *s, int code, struct ibx_error *err)
{
    const struct ibx_error first = *err;
    const bool soon = s->back_ns && s->lost_ns - s->back_ns < SOON_MS * IBX_NS_PER_MS;
    s->closed = soon && code == -ECONNRESET ? s->closed + 1 : 0;
    if (s->closed >= CLOSED_OFTEN)
        ibx_error_set(
            err, code,
            "%.300s, as after each of the last %u connections: %s answers and closes them "
            "itself, perhaps because it has no room for pages, and the ib-migrate there "
            "says why",
            first.message, s->closed, s->status.record.peer);
}

int ibx_source_link_trouble(struct source *s, int code, struct ibx_error *err)
{
    code = take_last_messages(s, code, err);
    ibx_source_take_last_abort(s, LAST_ABORT_MS, err);
    if (s->state.now == SOURCE_LOST)
        return 0;
    if (s->state.now == SOURCE_BROKEN)
        return -EBADMSG;
    if (s->state.now == SOURCE_COMMITTED && s->peer.now == PEER_ABORTED)
        return ibx_source_keep(s, code, err);
    if (source_linked(&s->link) || !s->lost_ns) {
        s->lost_ns = ibx_now_ns();
        say_closed(s, code, err);
        if (s->closed <= CLOSED_OFTEN)
            ibx_migration_notify(&s->options->observer, "%s; connecting again", err->message);
    }
    memcpy(s->status.message, err->message, sizeof(s->status.message));
    ibx_source_verify_unlinked(s);
    ibx_source_link_close(&s->link);
    return 0;
}

/* If the record cannot be written, the next tool finds the earlier state, in which it asks the
 * destination, and an epoch that is too low by the number of links made since; each of its tries
 * raises the epoch until it is high enough. An error only if the record has become another one
 * meanwhile (the VM was taken back). */
int ibx_source_note(struct source *s, enum ibx_journal_state state, struct ibx_error *err)
{
    struct ibx_error why = {0};
    int rc = ibx_migration_record(s->options->folder, &s->status.record, state, &why);
    if (rc == -EINVAL || rc == -EBADMSG)
        return ibx_error_set(err, rc, "%s", why.message);
    if (rc && !s->note_ns)
        ibx_migration_notify(&s->options->observer, "%s; the migration goes on without, for now",
                             why.message);
    s->note_ns = rc ? ibx_deadline_in_ms(NOTE_RETRY_MS) : 0;
    return 0;
}

/* A try to reconnect has failed: gives up after give_up_s. */
static int check_patience(struct source *s, struct ibx_error *err)
{
    const uint64_t limit_ms = (uint64_t)s->options->give_up_s * 1000;
    if (err->message[0] && !s->untold)
        memcpy(s->status.message, err->message, sizeof(s->status.message));
    if (!limit_ms || ibx_now_ns() - s->lost_ns <= limit_ms * IBX_NS_PER_MS)
        return 0;
    int rc = ibx_source_move(s, SOURCE_LEFT, err);
    return rc ? rc
              : ibx_error_set(
                    err, -ETIMEDOUT,
                    "given up, because the destination has been away for %u s: ib-migrate "
                    "recover continues the migration%s%s%s",
                    s->options->give_up_s, *s->status.message ? " (" : "", s->status.message,
                    *s->status.message ? ")" : "");
}

/* The destination waits for COMMIT, but QEMU has ended here. The VM may have been continued here
 * before that, so the state there may be too old for the memory here. */
static int never_ran(struct source *s, struct ibx_error *err)
{
    ibx_source_link_close(&s->link);
    int rc = ibx_source_move(s, SOURCE_LEFT, err);
    return rc ? rc
              : ibx_error_set(err, -ESRCH,
                              "the VM never ran at %s, and its QEMU here (process %d) has ended "
                              "with it: start it anew from its disk, then ib-migrate prune "
                              "--unfinished",
                              s->status.record.peer, (int)s->status.record.pid);
}

/* 0: a link may be made; -EAGAIN: not now. No link must be made if a borrowed VM may run here
 * again, in a QEMU that has its memory: if the VM was taken back at the borrower, the borrower must
 * get no page of it, but has to learn that the VM has returned. */
static int check_use(const struct source *s, struct ibx_error *err)
{
    const struct ibx_options options = ibx_migration_retry_options(&s->transport);
    struct ibx_migrate_answer *answer;
    if (!ibx_journal_home_marked(s->options->folder, &s->status.record))
        return 0;
    answer = calloc(1, sizeof(*answer));
    int rc = answer ? ibx_migration_ask(&s->status.record, IBX_PURPOSE_QUERY, &options, answer, err)
                    : ibx_error_set(err, -ENOMEM, "no memory for an answer");
    if (!rc && answer->state != IBX_ANSWER_ENDED)
        rc = ibx_error_set(err, -EAGAIN,
                           "the VM has come back here, or was about to: no page of it is served to "
                           "%s any more",
                           s->status.record.peer);
    free(answer);
    return rc ? -EAGAIN : 0;
}

int ibx_source_note_epoch(struct source *s, struct ibx_error *err)
{
    if (!s->unseen)
        s->status.record.epoch++;
    return ibx_source_note(s, s->status.record.state, err);
}

void ibx_source_tried(struct source *s, int rc, enum ibx_answer_state there)
{
    s->unseen = rc && !there && s->note_ns;
}

/* Without descriptors here, or without a path, no try comes to anything, however long the
 * destination waits. */
static void say_short(struct source *s, int rc, const struct ibx_error *err)
{
    const bool is_short =
        rc && (err->code == -EMFILE || err->code == -ENFILE || err->code == -ENOTSUP);
    if (is_short && !s->short_told)
        ibx_migration_notify(&s->options->observer, "%s cannot be reached again: %s; trying again",
                             s->status.record.peer, err->message);
    s->short_told = is_short;
}

static int reconnect(struct source *s, struct ibx_error *err)
{
    enum ibx_answer_state there = (enum ibx_answer_state)0;
    if (!ibx_source_link_due(&s->link))
        return check_patience(s, err);
    int rc = check_use(s, err);
    if (!rc) {
        rc = ibx_source_note_epoch(s, err);
        rc = rc ? -EAGAIN : ibx_source_link_resume(&s->link, &there, err);
        ibx_source_verify_anew(s);
        ibx_source_tried(s, rc, there);
        say_short(s, rc, err);
    }
    ibx_source_link_delay(&s->link);
    if (rc && ibx_journal_home_marked(s->options->folder,
                                      &s->status.record)) /* the marker may be removed again */
        s->link.retry_ns = ibx_deadline_in_ms(HOME_LOOK_MS);
    if (err->code != -ECONNREFUSED || !rc)
        s->nobody_ns = 0;
    else if (!s->nobody_ns)
        s->nobody_ns = ibx_now_ns();
    if ((there == IBX_ANSWER_RUNNING || there == IBX_ANSWER_COMPLETE ||
         there == IBX_ANSWER_ENDED) &&
        s->state.now == SOURCE_COMMITTED) {
        struct ibx_error refused = {0};
        if (ibx_source_move(s, SOURCE_SERVING, &refused))
            return ibx_error_set(err, -EINVAL, "%s", refused.message);
    }
    if (!rc && there == IBX_ANSWER_WAITING && s->vm.of_files)
        return never_ran(s, err);
    if (rc == -ECANCELED) /* no effect after RUNNING: then it proves nothing about the VM */
        return ibx_source_keep(s, rc, err);
    if (rc)
        return check_patience(s, err);
    s->heard_ns = s->back_ns = ibx_now_ns();
    s->status.reconnects++;
    if (s->closed < CLOSED_OFTEN)
        ibx_migration_notify(&s->options->observer, "connected again to %s", s->status.record.peer);
    s->status.message[0] = 0;
    return 0;
}

/* A try may take as long as this host needs to look up a name: that time is no absence of this
 * tool. */
int ibx_source_reconnect(struct source *s, struct ibx_error *err)
{
    int rc = reconnect(s, err);
    s->unheard_look_ns = ibx_now_ns();
    return rc;
}

int ibx_source_check_interrupts(struct source *s, struct ibx_error *err)
{
    const unsigned before = s->interrupts;
    s->interrupts += ibx_migration_signals_take(&s->signals, !source_committed(s));
    if (!s->interrupts || s->state.now == SOURCE_CONFIRMING || s->state.now == SOURCE_LOST)
        return 0;
    if (!source_committed(s))
        return ibx_error_set(err, -ECANCELED, "cancelled: the VM stays here");
    if (s->interrupts > 1) {
        int rc = ibx_source_move(s, SOURCE_LEFT, err);
        return rc ? rc
                  : ibx_error_set(err, -EINTR,
                                  "interrupted; the VM is at %s and its pages are still here: "
                                  "ib-migrate recover continues%s%s",
                                  s->status.record.uri, s->untold ? "; pause the VM there: " : "",
                                  s->untold ? s->status.message : "");
    }
    if (s->interrupts > before)
        ibx_migration_notify(
            &s->options->observer, "%s; interrupt once more to leave it to ib-migrate recover",
            s->end_ns ? "the VM at the destination needs nothing more from here, and only the "
                        "record of that is missing"
                      : "the VM is at the destination already and needs the pages that are still "
                        "here");
    return 0;
}

/* ---------------------------------------------------------------- QEMU's settings */

/* Puts QEMU's settings back. A record that still has them does no harm. */
static int settle(struct source *s, uint64_t deadline_ns, struct ibx_error *err)
{
    int rc = ibx_vm_settle(s->vm.qmp, &s->vm.undo.before, &s->status.record, deadline_ns, err);
    if (!rc)
        ibx_migration_record(s->options->folder, &s->status.record, s->status.record.state, NULL);
    return rc;
}

void ibx_source_settle(struct source *s)
{
    struct ibx_error refused = {0};
    /* QEMU refuses this while its migration is held open, and snapshots as well. */
    if (!s->vm.undo.before || !s->vm.qmp || s->stream.state.now == STREAM_HELD ||
        ibx_now_ns() < s->settle_ns)
        return;
    s->settle_ns = ibx_deadline_in_ms(SETTLE_RETRY_MS);
    settle(s, ibx_deadline_in_ms(SETTLE_MS), &refused);
}

/* QEMU's own migration may just be ending, so this is tried for a while. In STRANDED the watchdog
 * restores the settings; while the migration is held open, recover or rollback will. */
void ibx_source_settle_at_last(struct source *s)
{
    const uint64_t deadline = ibx_deadline_in_ms(LAST_SETTLE_MS);
    struct ibx_error why = {0};
    if (!s->vm.undo.before || !s->vm.qmp || s->state.now != SOURCE_DONE ||
        s->stream.state.now == STREAM_HELD)
        return;
    while (settle(s, deadline, &why)) {
        if (ibx_now_ns() >= deadline) {
            ibx_migration_notify(&s->options->observer, IBX_VM_SETTINGS_STAY " (%s): they were %s",
                                 why.message, s->status.record.settings);
            return;
        }
        poll(NULL, 0, LAST_SETTLE_LOOK_MS);
    }
}

/* ---------------------------------------------------------------- confirmation */

void ibx_source_await_longer(struct source *s)
{
    s->confirm_by_ns = ibx_deadline_in_ms(CONFIRM_MS);
}

/* Writes the record of the end. -EAGAIN: it cannot be written now. */
static int record_end(struct source *s, bool ended, struct ibx_error *err)
{
    struct ibx_record *record = &s->status.record;
    struct ibx_error why = {0};
    if (ibx_now_ns() < s->end_ns)
        return -EAGAIN;
    int rc = ibx_migration_record(s->options->folder, record,
                                  ended ? IBX_JOURNAL_ENDED : IBX_JOURNAL_DONE, &why);
    if (!rc)
        return 0;
    if (rc == -EINVAL || rc == -EBADMSG)
        return ibx_error_set(err, rc, "%s", why.message);
    if (!s->end_ns)
        ibx_migration_notify(
            &s->options->observer,
            "%s; the VM %s %s, and only this is missing for the end: it is tried "
            "again until it can be written",
            why.message, ended ? "needs nothing more at" : "has all of its pages at", record->peer);
    memcpy(s->status.message, why.message, sizeof(s->status.message));
    s->end_ns = ibx_deadline_in_ms(NOTE_RETRY_MS);
    return -EAGAIN;
}

/* The destination has every page, or needs none any more, and waits for CONFIRM. DONE or ENDED is
 * written first, and nothing else is needed for CONFIRM: any tool with this journal can send it
 * later, and repeatedly. If the journal cannot be written, the link stays, and the next turn tries
 * again. */
int ibx_source_confirm(struct source *s, struct ibx_error *err)
{
    const bool ended = s->peer.now == PEER_ENDED;
    int rc = record_end(s, ended, err);
    if (rc == -EAGAIN)
        return 0;
    if (!rc)
        ibx_journal_forget_page_states(&s->status.record);
    if (!rc)
        rc = ibx_source_move(s, SOURCE_CONFIRMING, err);
    if (rc)
        return rc;
    ibx_source_await_longer(s);
    s->interrupts = 0;
    ibx_source_verify_unlinked(s);
    if (ibx_source_link_send(&s->link, IBX_MIGRATE_CONFIRM, err))
        ibx_source_link_close(&s->link);
    else
        ibx_source_link_retire(&s->link);
    /* This takes some milliseconds, as CONFIRMED does. If a borrowed VM has returned, QEMU's memory
     * is that of the VM at home: it is kept until that QEMU is told to quit. */
    if (!ibx_journal_has_returned(&s->status.record))
        ibx_source_let_go_early(s);
    return 0;
}

static bool is_home(const struct ibx_record *record)
{
    return record->state == IBX_JOURNAL_RUNNING || record->state == IBX_JOURNAL_COMPLETE ||
           record->state == IBX_JOURNAL_DONE || record->state == IBX_JOURNAL_BROKEN ||
           record->state == IBX_JOURNAL_SHUT_DOWN || record->state == IBX_JOURNAL_ENDED;
}

/* The borrower reports when the VM has returned. If it does not, its link is closed: it would go on
 * reading the memory of a VM that runs here. */
int ibx_source_check_home(struct source *s, struct ibx_error *err)
{
    struct ibx_record found, *record = &s->status.record;
    if (!record->borrow || s->state.now != SOURCE_SERVING || ibx_now_ns() < s->home_look_ns)
        return 0;
    s->home_look_ns = ibx_deadline_in_ms(HOME_LOOK_MS);
    if (s->end_ns && s->peer.now == PEER_ENDED) /* ENDED has come before the link was closed */
        return ibx_source_confirm(s, err);
    if (ibx_journal_find_return(s->options->folder, record, is_home, &found))
        return 0;
    if (!s->home_by_ns)
        s->home_by_ns = ibx_deadline_in_ms(HOME_MS);
    if (ibx_now_ns() < s->home_by_ns || !ibx_state_allows(s->peer.table, s->peer.now, PEER_ENDED))
        return 0;
    ibx_migration_notify(&s->options->observer,
                         "the VM has returned, which %s does not say: no page of it is served "
                         "any more",
                         record->peer);
    ibx_source_link_close(&s->link);
    snprintf(record->vm_status, sizeof(record->vm_status), "%s", IBX_JOURNAL_RETURNED);
    ibx_state_move(&s->peer, PEER_ENDED);
    return ibx_source_confirm(s, err);
}

/* Takes CONFIRMED, or confirms by a query when the link is lost. */
static bool has_confirmed(struct source *s)
{
    struct ibx_error silent = {0};
    struct message_context incoming = {s, &silent};
    const struct ibx_options options = ibx_migration_retry_options(&s->transport);
    if (source_linked(&s->link) &&
        ibx_channel_take(&s->link.control, ibx_source_on_message, &incoming, &silent) &&
        s->peer.now != PEER_CONFIRMED) {
        ibx_source_link_close(&s->link);
        s->link.retry_ns = ibx_deadline_in_ms(CONFIRM_RETRY_MS);
    }
    if (!source_linked(&s->link) && s->peer.now != PEER_CONFIRMED &&
        ibx_source_link_due(&s->link)) {
        if (!ibx_migration_confirm(&s->status.record, &options, &silent))
            ibx_state_move(&s->peer, PEER_CONFIRMED);
        s->link.retry_ns = ibx_deadline_in_ms(CONFIRM_RETRY_MS);
    }
    return s->peer.now == PEER_CONFIRMED;
}

int ibx_source_await_confirmed(struct source *s, struct ibx_error *err)
{
    const bool ended = s->status.record.state == IBX_JOURNAL_ENDED;
    const char *what = ibx_journal_has_returned(&s->status.record) ? "has returned from"
                       : ended                                     ? "was shut down by its guest at"
                                                                   : "is at";
    if (!has_confirmed(s)) {
        if (!s->interrupts && ibx_now_ns() < s->confirm_by_ns)
            return 0;
        ibx_migration_notify(
            &s->options->observer,
            "the VM %s %s%s, but the confirmation may not have arrived there: if ib-migrate "
            "status there says %s, run ib-migrate recover there and then here (%s)",
            what, s->status.record.peer, ended ? "" : " with all of its pages",
            ended ? "shut-down" : "complete", ibx_journal_options(s->status.record.qmp).text);
    }
    s->status.total_ns = ibx_now_ns() - s->status.began_ns;
    return ibx_source_move(s, SOURCE_DONE, err);
}
