/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/destination/destination.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define LAST_MESSAGE_MS 1000 /* for a source's last message, which has the reason */
#define LAST_ABORT_MS   500  /* ... where only ABORT matters, while the VM may wait for pages */
#define ABORT_MS        500  /* for the source to take an ABORT */
#define END_MS          2000 /* for a QEMU whose monitor has ended */
#define END_LOOK_MS     2

/* ---------------------------------------------------------------- the VM's end */

static void send_abort(struct destination *d, const char *why)
{
    if (!destination_linked(&d->link))
        return;
    ibx_channel_send_abort(&d->link.control, why);
    ibx_channel_linger(&d->link.control, ibx_deadline_in_ms(ABORT_MS));
}

/* The VM never ran here and will not. If the table does not allow that, nothing is undone. */
static int give_up(struct destination *d, int code, struct ibx_error *err)
{
    struct ibx_error silent = {0};
    const bool linked = destination_linked(&d->link);
    /* After recover this tool does not know for sure that the VM never ran, and leaves it to the
     * operator. */
    const bool answer = d->state.now >= DESTINATION_WAITING && !linked &&
                        d->peer.now != PEER_ABORTED && !d->ram.recovered;
    const enum destination_state to = answer ? DESTINATION_ANSWERING : DESTINATION_GIVEN_UP;
    if (!ibx_state_allows(d->state.table, d->state.now, to))
        return code;
    ibx_destination_stream_cut(&d->stream); /* first: QEMU fails instead of running on zero pages */
    ibx_destination_ram_give_up(&d->ram, &d->status.record);
    ibx_destination_link_engine_ended(&d->link);
    ibx_destination_home_never_came(d);
    if (d->status.record.written_s)
        ibx_destination_record(d, IBX_JOURNAL_GIVEN_UP, &silent);
    ibx_destination_move(d, to, &silent);
    send_abort(d, err->message);
    ibx_destination_home_give_up(d);
    ibx_destination_qemu_leave(&d->qemu, &d->status.record, &silent);
    return code;
}

int ibx_destination_refuse_commit(struct destination *d, int code, struct ibx_error *err)
{
    return give_up(d, code, err);
}

/* The guest has shut the VM down. */
static int shut_down(struct destination *d, struct ibx_error *err)
{
    char sentence[160];
    snprintf(sentence, sizeof(sentence),
             "the guest has shut the VM down, and its QEMU (process %d) has ended",
             (int)d->status.record.pid);
    return ibx_destination_end(d, d->qemu.end, sentence, err);
}

/* Whether libvirt has ended QEMU without continuing the VM. If the monitor was never lost, all of
 * QEMU's events came before the monitor ended: there was no RESUME. */
static bool never_continued(const struct destination *d)
{
    return d->qemu.managed && !d->qemu.retry_ns && !d->ram.recovered &&
           d->qemu.state.now == QEMU_LOADING;
}

/* Waits for the end of QEMU: its monitor ends a moment before the process. */
static void await_end(const struct destination *d)
{
    const uint64_t deadline = ibx_deadline_in_ms(END_MS);
    while (ibx_journal_qemu_lives(&d->status.record) && ibx_now_ns() < deadline)
        poll(NULL, 0, END_LOOK_MS);
}

/* To a source that has not been told RUNNING, ABORT would mean that the VM never ran. */
static int say_that_it_ran(struct destination *d)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_RUNNING};
    snprintf(message.is.status, sizeof(message.is.status), "%s",
             d->qemu.end[0] ? d->qemu.end : IBX_JOURNAL_QEMU_ENDED);
    return destination_linked(&d->link) ? ibx_channel_send(&d->link.control, &message, NULL)
                                        : -ENOTCONN;
}

#define WAITS_FOR_LIBVIRT                                                                          \
    ": this tool waits for the source, which may have been told to continue it there; if virsh "   \
    "list has it running there, end this QEMU (virsh destroy here)"

/* A QEMU that does not answer a tool that recovers may run the VM, for example if its main thread
 * waits for a page. */
const char *ibx_destination_undecided(const struct destination *d)
{
    if (!d->qemu.managed || d->state.now != DESTINATION_RESUMING || d->qemu.ran)
        return NULL;
    return d->ram.recovered && !d->qemu.status[0]
               ? "the VM is loaded here, and its QEMU does not tell yet whether libvirt has "
                 "continued it" WAITS_FOR_LIBVIRT
               : "the VM is loaded here, and libvirt has not continued it" WAITS_FOR_LIBVIRT;
}

/* A QEMU that ends by SIGBUS gives no reason: somebody may have cut a file of its memory short. */
static void describe_end(const struct destination *d, char *text, size_t size)
{
    struct ibx_error cut = {0};
    ibx_destination_qemu_describe_end(&d->qemu, text, size);
    const size_t used = strlen(text);
    if (!d->qemu.end[0] && ibx_guest_ram_check_sizes(&d->ram.guest, false, &cut))
        snprintf(text + used, size - used, ", after %s", cut.message);
}

/* Puts into `err` what became of the VM, `end` of its QEMU, and what to do. */
static void say_lost(const struct destination *d, int code, bool unknown, bool resuming,
                     const char *end, struct ibx_error *err)
{
    if (unknown)
        ibx_error_set(err, code,
                      "the VM was loaded here and %s; whether libvirt had continued it before is "
                      "not known: if virsh list does not have it running at the source, start it "
                      "from its disk",
                      end);
    else if (d->qemu.managed && !d->qemu.decided)
        ibx_error_prefix(err, code,
                         "the VM ran here and %s; if virsh list has it at the source, paused, "
                         "virsh resume there continues it from where it stopped, otherwise start "
                         "it from its disk",
                         end);
    else if (d->qemu.managed)
        ibx_error_prefix(
            err, code,
            "the VM ran here and %s; libvirt has ended its QEMU at the source, so that nothing "
            "continues the VM from where it stopped: start it from its disk",
            end);
    else
        ibx_error_prefix(err, code,
                         "the VM %s and %s; ib-migrate rollback at the source continues the VM "
                         "from where it was stopped%s%s",
                         resuming ? "was taken over here, may have run," : "ran here", end,
                         d->qemu.end[0] ? ", if it is to go on at all" : "",
                         ibx_journal_restarts_if(&d->status.record));
}

/* QEMU has ended, or has not run the VM although it got the end of the state. */
static int vm_lost(struct destination *d, int code, struct ibx_error *err)
{
    struct ibx_error silent = {0};
    char end[IBX_ERROR_MAX / 2];
    const bool resuming = d->state.now == DESTINATION_RESUMING;
    const bool unknown = ibx_destination_undecided(d);
    if (resuming && ibx_destination_qemu_stuck(&d->qemu)) /* so that QEMU never runs the VM */
        ibx_destination_qemu_end(&d->qemu);
    if (resuming && (d->qemu.state.now == QEMU_FAILED || d->stream.state.now < STREAM_ENDING ||
                     never_continued(d)))
        return give_up(d, code, err);
    if (ibx_destination_qemu_shut_down(&d->qemu))
        return shut_down(d, err);
    describe_end(d, end, sizeof(end));
    if (d->qemu.end[0])
        memcpy(d->qemu.status, d->qemu.end, sizeof(d->qemu.status));
    if (d->qemu.end[0] || ibx_journal_is_migrated_on(d->qemu.status)) {
        ibx_destination_update(d); /* for whoever asks later what became of the VM */
        ibx_destination_record(d, d->status.record.state, &silent);
    }
    ibx_destination_move(d, DESTINATION_FAILED, &silent);
    say_lost(d, code, unknown, resuming, end, err);
    if (!resuming || !say_that_it_ran(d)) {
        ibx_destination_send_migrated_on(d);
        send_abort(d, err->message);
    }
    return code;
}

/* QEMU has ended, and no VM was here yet. Whoever ends a QEMU that waits for a VM ends the
 * receiver, too. */
static int ended_before(struct destination *d, int code, struct ibx_error *err)
{
    const char *reason = d->qemu.end;
    const bool waited = d->state.now == DESTINATION_LISTENING;
    const bool loaded = d->qemu.state.now == QEMU_FAILED || code == -ECONNRESET;
    if (!*reason && d->qemu.managed && loaded && d->stream.state.now == STREAM_CLOSED)
        return ibx_error_set(err, code,
                             "the QEMU here has ended, or could not load what came, and nothing "
                             "has come by this ib-migrate: give virsh migrate --migrateuri "
                             "unix://%.108s, or see QEMU's log",
                             d->options->libvirt);
    if (!*reason && code == -ECONNRESET && d->stream.state.now > STREAM_CLOSED)
        return ibx_error_prefix(err, code,
                                "QEMU (process %d) has not loaded the VM: see its log, and that it "
                                "has the options of the QEMU at the source",
                                (int)d->status.record.pid);
    if (!*reason)
        return code;
    return ibx_error_set(err, waited && !strncmp(reason, "host-", 5) ? -ECANCELED : code,
                         "the QEMU here, which waited for the VM, was ended (%s): %s", reason,
                         waited ? "no VM had come" : "the VM stays at the source");
}

int ibx_destination_check_qemu(struct destination *d, struct ibx_error *err)
{
    struct destination_qemu *qemu = &d->qemu;
    if (destination_settled(d)) /* QEMU is not needed any more */
        return 0;
    ibx_destination_borrow_keep_lent(d);
    int rc =
        ibx_destination_qemu_check(qemu, d->ram.recovered && qemu->state.now != QEMU_RUNNING, err);
    const bool running = qemu->state.now == QEMU_RUNNING;
    if (running && d->stream.state.now == STREAM_CLOSED)
        rc = ibx_destination_refuse_taken(d, err);
    else if (running && d->stream.state.now < STREAM_RELEASED)
        rc = ibx_destination_qemu_stop(qemu, err);
    if (!rc)
        return 0;
    if (!destination_ours(d))
        return give_up(d, ended_before(d, rc, err), err);
    if (qemu->managed && qemu->state.now == QEMU_LOADING && rc == -ECONNRESET)
        await_end(d);
    const bool lost = qemu->state.now == QEMU_FAILED || !ibx_journal_qemu_lives(&d->status.record);
    struct ibx_error silent = {0};
    if (lost && d->ram.borrow && ibx_destination_borrow_returned(d, true, &silent))
        return silent.code;
    if (lost)
        return vm_lost(d, rc, err);
    ibx_destination_qemu_lose(qemu, err->message);
    return 0;
}

/* ---------------------------------------------------------------- pages that differ */

static int on_farewell(void *context, const struct ibx_migrate_any *message)
{
    (void)context, (void)message;
    return 0;
}

static void send_broken(struct destination *d, const char *why)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_BROKEN};
    if (!destination_linked(&d->link))
        return;
    snprintf(message.is.reason, sizeof(message.is.reason), "%s", why);
    if (!ibx_channel_send(&d->link.control, &message, NULL))
        ibx_channel_take_until(&d->link.control, on_farewell, NULL,
                               ibx_deadline_in_ms(LAST_MESSAGE_MS), NULL);
}

/* The VM must not go on with such memory, or beside the one at the source. While it is told to
 * stop, pages are still served: QEMU's main thread may wait for one. */
static int broken(struct destination *d, bool tell, bool taken_back, struct ibx_error *err)
{
    struct ibx_error silent = {0};
    const struct ibx_error why = *err;
    const bool ended = d->state.now == DESTINATION_SHUT_DOWN;
    if (!destination_ours(d))
        return give_up(d, -EBADMSG, err);
    int rc = ibx_destination_move(d, DESTINATION_BROKEN, err);
    if (rc)
        return rc;
    if (d->ram.page_tags) /* a return gives up, and QEMU's monitor is free */
        ibx_page_tags_break(d->ram.page_tags);
    if (tell)
        send_broken(d, why.message);
    if (!ended && ibx_destination_qemu_pause(&d->qemu, &silent))
        ibx_error_set(&d->unpaused, silent.code, "%s", silent.message);
    if (d->unpaused.code)
        ibx_migration_notify(
            &d->options->observer, "the VM, %s, could not be paused (%s): end QEMU (process %d)",
            taken_back ? "which runs at the source again" : "whose memory is wrong", silent.message,
            (int)d->status.record.pid);
    if (taken_back)
        snprintf(d->qemu.status, sizeof(d->qemu.status), IBX_JOURNAL_TAKEN_BACK);
    ibx_destination_update(d); /* the record says that it is paused */
    memset(&d->status.record.totals, 0, sizeof(d->status.record.totals)); /* of COMPLETE only */
    if (ibx_destination_record(d, IBX_JOURNAL_BROKEN, &silent))
        ibx_migration_notify(&d->options->observer, "%s", silent.message);
    else
        ibx_destination_tags_remove(&d->status.record);
    return ibx_error_set(err, -EBADMSG, "the migration is broken: %s%s", why.message,
                         ended ? "; the guest has shut the VM down since: check its disks" : "");
}

int ibx_destination_broken(struct destination *d, bool tell, struct ibx_error *err)
{
    return broken(d, tell, false, err);
}

int ibx_destination_rolled_back(struct destination *d, struct ibx_error *err)
{
    return broken(d, false, true, err);
}

int ibx_destination_check_pages(struct destination *d, struct ibx_error *err)
{
    if (!d->ram.page_tags || d->state.now == DESTINATION_SHUT_DOWN ||
        !ibx_page_tags_conflict(d->ram.page_tags, err))
        return 0;
    return ibx_destination_broken(d, true, err);
}

/* The VM has lost pages that had come, and others can be put nowhere. QEMU ends when it uses such a
 * page, unless it waits for another one. Memory that was removed from it is no loss. */
int ibx_destination_check_files(struct destination *d, int code, struct ibx_error *err)
{
    struct ibx_error cut = {0};
    const bool needed = d->state.now > DESTINATION_LISTENING && d->state.now < DESTINATION_COMPLETE;
    if (!needed || !ibx_guest_ram_check_sizes(&d->ram.guest, true, &cut))
        return code;
    *err = cut;
    return ibx_destination_broken(d, true, err);
}

/* ---------------------------------------------------------------- libvirt's decision */

/* Pages that have not come are lost, because the VM at the source writes to its memory. */
int ibx_destination_taken_back(struct destination *d, const char *why, struct ibx_error *err)
{
    if (d->qemu.ran) {
        ibx_error_set(err, -EBADMSG,
                      "the VM ran here, and was continued at the source, too (%s): it is stopped "
                      "here, so that it runs there alone",
                      why);
        return broken(d, false, true, err);
    }
    ibx_destination_qemu_end(&d->qemu);
    return give_up(d, ibx_error_set(err, -ECONNABORTED, "the source gave up: %s", why), err);
}

/* ---------------------------------------------------------------- the link's end */

void ibx_destination_unlink(struct destination *d, int code, const char *reason)
{
    if (!destination_linked(&d->link))
        return;
    d->lost_ns = ibx_now_ns();
    snprintf(d->lost, sizeof(d->lost), "%s", reason);
    ibx_log(IBX_LOG_INFO, "migration: %s", reason);
    ibx_destination_link_lose(&d->link);
    /* An engine that is complete runs to the migration's end without connections. It is stopped
     * nevertheless if that end is not near: for a borrowed VM, and while this side waits for
     * COMMIT. Then a source that is back serves it by other connections. */
    const bool ends = !d->ram.borrow && d->state.now != DESTINATION_WAITING;
    if (d->link.state.now == LINK_STOPPING &&
        (!ends || ibx_fault_state(d->ram.engine) != IBX_FAULT_COMPLETE))
        ibx_fault_stop(d->ram.engine, code, reason);
}

static int on_last_message(void *context, const struct ibx_migrate_any *message)
{
    struct message_context *h = context;
    int rc = ibx_destination_on_message(context, message);
    return rc || !destination_ours(h->destination) ? rc : -EISCONN; /* the VM waits no longer */
}

/* Whether libvirt may still continue the VM at the source. */
static bool can_be_taken_back(const struct destination *d)
{
    return d->qemu.managed && !destination_settled(d);
}

/* Takes messages that come only once. All others come again over the next link. */
static int on_last_word(void *context, const struct ibx_migrate_any *message)
{
    const struct message_context *h = context;
    const bool counts = message->type == IBX_MIGRATE_BROKEN ||
                        (message->type == IBX_MIGRATE_ABORT && can_be_taken_back(h->destination));
    return counts ? ibx_destination_on_message(context, message) : 0;
}

/* Takes the last messages of a source that ends, which decide whether this side waits for it. The
 * ends of its connections may be noticed in any order, and before that message is read. */
static int take_last_messages(struct destination *d, int code, struct ibx_error *err)
{
    struct ibx_error last = {0};
    struct message_context incoming = {d, &last};
    const bool ours = destination_ours(d);
    const unsigned ms = d->state.now == DESTINATION_WAITING ? LAST_MESSAGE_MS
                        : ours && can_be_taken_back(d)      ? LAST_ABORT_MS
                                                            : 0;
    if (!destination_linked(&d->link) || d->peer.now == PEER_ABORTED || code == -EPROTO)
        return code;
    int rc = ibx_channel_take_until(&d->link.control, ours ? on_last_word : on_last_message,
                                    &incoming, ibx_deadline_in_ms(ms), &last);
    if (d->peer.now != PEER_ABORTED && !destination_over(d))
        return code;
    *err = last;
    return rc;
}

static const char *what_a_lost_link_means(const struct destination *d, int code)
{
    const char *undecided = ibx_destination_undecided(d);
    if (undecided)
        return undecided;
    if (d->record_end_ns)
        return "only the record of the end is missing: this is tried again without the source";
    switch (d->state.now) {
    case DESTINATION_WAITING:
        return "the VM has not run here; this tool waits for the source to be back and hand it "
               "over (if the VM continues at the source, interrupt this tool)";
    case DESTINATION_COMPLETE:
        return DESTINATION_UNCONFIRMED;
    case DESTINATION_SHUT_DOWN:
        return destination_unconfirmed_end(&d->status.record);
    default:
        return d->ram.borrow && ibx_destination_ram_whole(&d->ram)
                   ? "the VM has all of its pages and runs on (if the other side is lost for good, "
                     "interrupt this tool: the VM stays here)"
               : code == -ENOMEM || code == -ENOSPC
                   ? "the VM waits for pages until this host has room for them"
                   : "the VM waits for pages until the source is back";
    }
}

/* Whether QEMU has ended. Its memory goes before its monitor does, and then the fault engine fails:
 * that is no loss of the link, which is still needed to tell the source. */
static bool qemu_ends(const struct destination *d, int code)
{
    if (destination_settled(d) || (!destination_ours(d) && code != -ESRCH))
        return false;
    if (code == -ESRCH)
        await_end(d);
    return !ibx_journal_qemu_lives(&d->status.record);
}

/* Waits until QEMU's monitor has ended, which ends with the last of QEMU's threads. */
static int take_end(struct destination *d, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(END_MS);
    int rc;
    while (!(rc = ibx_destination_check_qemu(d, err)) && !destination_over(d) &&
           !destination_settled(d) && ibx_now_ns() < deadline)
        poll(NULL, 0, END_LOOK_MS);
    return rc;
}

/* As long as this host has no room for the next page, each link is lost as it is made: that is told
 * once. */
static void notify_lost(struct destination *d, int code, const char *reason)
{
    const bool full = code == -ENOMEM || code == -ENOSPC;
    const bool soon = ibx_now_ns() - d->back_ns < DESTINATION_SOON_MS * IBX_NS_PER_MS;
    ibx_destination_update(d);
    if (!full || !d->full || (!soon && d->status.present != d->full_present))
        ibx_migration_notify(&d->options->observer, "%s; %s", reason,
                             what_a_lost_link_means(d, code));
    d->full = full;
    d->full_present = d->status.present;
}

int ibx_destination_link_trouble(struct destination *d, int code, struct ibx_error *err)
{
    if (destination_over(d)) /* a message has ended it */
        return code;
    code = take_last_messages(d, code, err);
    if (destination_over(d))
        return code;
    if (qemu_ends(d, code)) {
        struct ibx_error end = {0};
        int rc = take_end(d, &end);
        if (rc)
            *err = end;
        if (rc || destination_over(d) || destination_settled(d))
            return rc;
    }
    if (!destination_ours(d) &&
        (d->state.now != DESTINATION_WAITING || d->peer.now == PEER_ABORTED || d->qemu.managed)) {
        struct ibx_error end = {0};
        const int rc = ibx_destination_check_qemu(d, &end); /* it may be what has ended */
        if (rc)
            *err = end;
        return rc ? rc : give_up(d, code, err);
    }
    if (destination_linked(&d->link))
        notify_lost(d, code, err->message);
    ibx_destination_unlink(d, code, err->message);
    return 0;
}

/* ---------------------------------------------------------------- interrupts and patience */

static int leave(struct destination *d, int code, struct ibx_error *err)
{
    struct ibx_error refused = {0};
    int rc = ibx_destination_move(d, DESTINATION_LEFT, &refused);
    return rc ? ibx_error_set(err, rc, "%s", refused.message) : code;
}

int ibx_destination_check_interrupts(struct destination *d, struct ibx_error *err)
{
    const unsigned before = d->interrupts;
    const bool settled = destination_settled(d);
    const bool ended = d->state.now == DESTINATION_SHUT_DOWN;
    d->interrupts += ibx_migration_signals_take(&d->signals, !destination_ours(d));
    if (!d->interrupts)
        return 0;
    if (ibx_destination_borrow_stays(d)) {
        d->interrupts = 0;
        return 0;
    }
    const bool told = d->state.now < DESTINATION_WAITING || destination_linked(&d->link);
    if (!destination_ours(d))
        return give_up(d,
                       ibx_error_set(err, told ? -ECANCELED : -EINTR, "cancelled: %s",
                                     d->state.now == DESTINATION_LISTENING
                                         ? "no VM had come"
                                         : "the VM stays at the source"),
                       err);
    const bool idle =
        settled && (!destination_linked(&d->link) || d->ram.state.now != RAM_UNTOUCHED);
    if (d->interrupts > 1 || idle)
        return leave(d,
                     ibx_error_set(err, -EINTR,
                                   d->record_end_ns
                                       ? "interrupted; the source knows the end of the migration, "
                                         "which could not be recorded here: ib-migrate recover "
                                         "%s asks it again"
                                   : ended ? "interrupted; the guest has shut the VM down, but the "
                                             "source does not know it: ib-migrate recover %s "
                                             "tells it"
                                   : settled
                                       ? "interrupted; all pages are here, but the source has not "
                                         "confirmed it: ib-migrate recover %s asks again"
                                       : "interrupted; the VM is here and waits for its pages: "
                                         "ib-migrate recover %s continues",
                                   ibx_journal_options(d->options->qmp).text),
                     err);
    if (d->interrupts > before)
        ibx_migration_notify(
            &d->options->observer, "%s; interrupt once more to leave it to ib-migrate recover",
            d->record_end_ns ? "only the record of the end is missing"
            : ended          ? destination_unconfirmed_end(&d->status.record)
            : settled        ? "all pages are here, and only the source's confirmation is missing"
                             : "the VM is here and needs pages that are still at the source");
    return 0;
}

int ibx_destination_check_patience(struct destination *d, struct ibx_error *err)
{
    const uint64_t limit = (uint64_t)d->options->give_up_s * 1000 * IBX_NS_PER_MS;
    const bool ours = destination_ours(d);
    if (!limit || destination_linked(&d->link) || d->state.now < DESTINATION_WAITING ||
        d->peer.now == PEER_CONFIRMED || ibx_now_ns() - d->lost_ns < limit)
        return 0;
    ibx_error_set(err, -ETIMEDOUT, "the source has been away for %u s%s", d->options->give_up_s,
                  d->state.now == DESTINATION_SHUT_DOWN
                      ? "; the guest has shut the VM down, which it does not know: ib-migrate "
                        "recover tells it"
                  : d->state.now == DESTINATION_COMPLETE
                      ? "; all pages are here, only its confirmation is missing: ib-migrate "
                        "recover asks for it"
                  : ours ? ": ib-migrate recover waits again"
                         : "");
    return ours ? leave(d, -ETIMEDOUT, err) : give_up(d, -ETIMEDOUT, err);
}
