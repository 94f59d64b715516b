/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/destination/destination.h"
#include "migrate/common/vm.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOAD_LOOK_US   100 /* while QEMU reads the last of the device state */
#define LOAD_LOOKS     100 /* so often; then it waits for something else, and there is time */
#define LOAD_LOOK_MS   1   /* from then on */
#define COMPLETE_AGAIN (1000 * IBX_NS_PER_MS)
#define WORD_MS        1000  /* for the source to say why it goes */
#define ANSWER_MS      60000 /* for a source that was away to hear that the move was given up */

/* ---------------------------------------------------------------- states */

static const uint16_t allowed[DESTINATION_STATES] = {
    [DESTINATION_LISTENING] = 1u << DESTINATION_JOINING | 1u << DESTINATION_GIVEN_UP,
    [DESTINATION_JOINING] = 1u << DESTINATION_READY | 1u << DESTINATION_GIVEN_UP,
    [DESTINATION_READY] = 1u << DESTINATION_MAPPED | 1u << DESTINATION_GIVEN_UP,
    [DESTINATION_MAPPED] = 1u << DESTINATION_WAITING | 1u << DESTINATION_GIVEN_UP,
    [DESTINATION_WAITING] = 1u << DESTINATION_RESUMING | 1u << DESTINATION_GIVEN_UP,
    [DESTINATION_RESUMING] =
        1u << DESTINATION_FILLING | 1u << DESTINATION_GIVEN_UP | 1u << DESTINATION_FAILED,
    [DESTINATION_FILLING] = 1u << DESTINATION_COMPLETE | 1u << DESTINATION_FAILED,
    [DESTINATION_COMPLETE] = 1u << DESTINATION_DONE,
};

static const char *const names[DESTINATION_STATES] = {
    "listening", "joining",  "ready", "mapped",   "waiting", "resuming",
    "filling",   "complete", "done",  "given up", "failed",
};

void ibx_destination_move(struct destination *d, enum destination_state to)
{
    if (!(allowed[d->state] & 1u << to))
        ibx_log(IBX_LOG_ERROR, "the destination of a move went from %s to %s, which is a defect",
                names[d->state], names[to]);
    ibx_log(IBX_LOG_INFO, "move: %s -> %s", names[d->state], names[to]);
    d->state = to;
    if (to >= DESTINATION_MAPPED && to <= DESTINATION_RESUMING)
        d->busy_until_ns = ibx_migration_busy_until();
    ibx_migration_stop_at("destination", names[to]);
}

static enum ibx_migrate_phase phase_of(const struct destination *d)
{
    switch (d->state) {
    case DESTINATION_LISTENING:
        return IBX_PHASE_WAITING;
    case DESTINATION_JOINING:
    case DESTINATION_READY:
        return IBX_PHASE_PREPARING;
    case DESTINATION_MAPPED:
        return IBX_PHASE_SWITCHING;
    case DESTINATION_WAITING:
    case DESTINATION_RESUMING:
        return d->linked ? IBX_PHASE_SWITCHING : IBX_PHASE_BROKEN;
    case DESTINATION_FILLING:
    case DESTINATION_COMPLETE:
        return d->linked ? IBX_PHASE_FILLING : IBX_PHASE_BROKEN;
    case DESTINATION_DONE:
        return IBX_PHASE_DONE;
    default:
        return IBX_PHASE_FAILED;
    }
}

bool ibx_destination_over(const struct destination *d)
{
    return d->state >= DESTINATION_DONE;
}

/* The VM runs here, or will. */
bool ibx_destination_ours(const struct destination *d)
{
    return d->state == DESTINATION_RESUMING || d->state == DESTINATION_FILLING ||
           d->state == DESTINATION_COMPLETE;
}

static void show(struct destination *d)
{
    enum ibx_migrate_phase phase = phase_of(d);
    bool changed = phase != d->status.phase;
    d->status.phase = phase;
    ibx_destination_vm_stats(d);
    ibx_destination_mind_silence(d);
    ibx_migration_report(&d->reporter, &d->status, changed);
}

int ibx_destination_record(struct destination *d, enum ibx_journal_state state,
                           struct ibx_error *err)
{
    struct ibx_journal record = d->status.record;
    record.state = state;
    int rc = ibx_journal_write(d->options->folder, &record, err);
    if (!rc)
        d->status.record = record;
    return rc;
}

/* ---------------------------------------------------------------- the link's end */

void ibx_destination_unlink(struct destination *d, int code, const char *reason)
{
    if (!d->linked)
        return;
    d->linked = false;
    d->lost_ns = ibx_now_ns();
    snprintf(d->status.message, sizeof(d->status.message), "%s", reason);
    ibx_log(IBX_LOG_INFO, "move: %s", reason);
    d->stopping = d->serving;
    if (!d->serving)
        ibx_destination_link_close(d);
    else if (ibx_fault_state(d->engine) != IBX_FAULT_COMPLETE)
        ibx_fault_stop(d->engine, code, reason);
}

/* The engine lets go of page connections only when it has stopped, or is no more. An error when it
 * has stopped by itself: a page connection has ended, or memory could not be had. */
static int mind_engine(struct destination *d, struct ibx_error *err)
{
    const bool stopped = !d->engine || ibx_fault_state(d->engine) == IBX_FAULT_STOPPED;
    if (stopped && d->stopping) {
        d->stopping = d->serving = false;
        ibx_destination_link_close(d);
    }
    if (stopped && d->engine && d->serving && d->linked)
        return ibx_fault_reason(d->engine, err);
    return 0;
}

/* ---------------------------------------------------------------- what the source says */

struct hearing {
    struct destination *destination;
    struct ibx_error *err;
};

static int unexpected(const struct destination *d, const struct ibx_migrate_any *message,
                      struct ibx_error *err)
{
    return ibx_error_set(err, -EPROTO, "the source said %s while the destination was %s",
                         ibx_migrate_message_name(message->type), names[d->state]);
}

static int heed_map_end(struct destination *d, const struct ibx_migrate_map_end *end,
                        struct ibx_error *err)
{
    uint8_t hash[IBX_MIGRATE_HASH_BYTES];
    ibx_page_map_hash(&d->map, hash);
    if (d->map.next != d->map.pages || end->pages != d->map.pages ||
        end->data_pages != d->map.data_pages || memcmp(hash, end->hash, sizeof(hash)))
        return ibx_error_set(err, -EPROTO,
                             "the page map does not add up: %" PRIu64 " of %" PRIu64
                             " pages, %" PRIu64 " with data, announced %" PRIu64,
                             d->map.next, d->map.pages, d->map.data_pages, end->data_pages);
    d->map_end = *end;
    d->map_ended = true;
    return 0;
}

/* Its beginning says that the VM is about to stop. */
static int heed_state(struct destination *d, const struct ibx_migrate_any *message,
                      struct ibx_error *err)
{
    if (!d->state_total)
        d->busy_until_ns = ibx_migration_busy_until();
    int rc = ibx_destination_vm_state(d, message->is.state.bytes, message->is.state.length, err);
    return rc ? rc : ibx_destination_vm_feed(d, err);
}

static int heed_state_end(struct destination *d, uint64_t bytes, struct ibx_error *err)
{
    if (bytes != d->state_total || !bytes)
        return ibx_error_set(err, -EPROTO,
                             "the device state has %" PRIu64 " bytes, announced were %" PRIu64,
                             d->state_total, bytes);
    return ibx_destination_vm_state_end(d, err);
}

static bool takes_map(const struct destination *d)
{
    return !d->map_ended && (d->state == DESTINATION_READY || d->state == DESTINATION_WAITING ||
                             d->state == DESTINATION_RESUMING || d->state == DESTINATION_FILLING);
}

static int heed_commit(struct destination *d, const struct ibx_migrate_any *message,
                       struct ibx_error *err)
{
    if (d->state != DESTINATION_WAITING || message->is.epoch != d->status.record.epoch)
        return unexpected(d, message, err);
    d->committed = true;
    ibx_destination_move(d, DESTINATION_RESUMING);
    return ibx_destination_vm_feed(d, err);
}

static int hear(void *context, const struct ibx_migrate_any *message)
{
    struct hearing *h = context;
    struct destination *d = h->destination;
    d->heard++;
    const bool loading = d->state == DESTINATION_READY || d->state == DESTINATION_MAPPED;
    switch (message->type) {
    case IBX_MIGRATE_STATE:
        if (!loading || d->state_ended)
            return unexpected(d, message, h->err);
        return heed_state(d, message, h->err);
    case IBX_MIGRATE_STATE_END:
        if (!loading || d->state_ended || !d->map_ended)
            return unexpected(d, message, h->err);
        return heed_state_end(d, message->is.state_bytes, h->err);
    case IBX_MIGRATE_MAP:
        if (!takes_map(d))
            return unexpected(d, message, h->err);
        return ibx_page_map_take(&d->map, message->is.map.bytes, message->is.map.length, h->err);
    case IBX_MIGRATE_MAP_END:
        if (!takes_map(d))
            return unexpected(d, message, h->err);
        return heed_map_end(d, &message->is.map_end, h->err);
    case IBX_MIGRATE_COMMIT:
        return heed_commit(d, message, h->err);
    case IBX_MIGRATE_CONFIRM:
        d->confirmed = d->state == DESTINATION_COMPLETE && d->complete_ns &&
                       message->is.epoch == d->status.record.epoch;
        return d->confirmed ? 0 : unexpected(d, message, h->err);
    case IBX_MIGRATE_ABORT:
        d->aborted = true;
        return ibx_error_set(h->err, -ECONNABORTED, "the source gave up: %s", message->is.reason);
    default:
        return unexpected(d, message, h->err);
    }
}

/* ---------------------------------------------------------------- steps */

static int step_joining(struct destination *d, struct ibx_error *err)
{
    if (d->joined < d->hello.links)
        return 0;
    int rc = ibx_destination_open_record(d, err);
    if (!rc)
        rc = ibx_destination_record(d, IBX_JOURNAL_NOT_YET, err);
    if (!rc)
        rc = ibx_destination_vm_prepare(d, err);
    if (!rc) /* now: starting threads takes a millisecond, and the VM still runs */
        rc = ibx_destination_vm_engine(d, err);
    if (!rc && (rc = ibx_channel_send_plain(&d->control, IBX_MIGRATE_READY)))
        ibx_error_set(err, rc, "READY could not be sent: %s", strerror(-rc));
    if (!rc)
        ibx_destination_move(d, DESTINATION_READY);
    return rc;
}

/* Once the map and all regions are there, pages can be served: by the engine that holds them, or by
 * one that stopped when the last link was lost, or by a new one after a tool that died. */
static int step_linking(struct destination *d, struct ibx_error *err)
{
    if (d->serving)
        return 0;
    int rc = ibx_destination_link_complete(d, err);
    if (rc)
        return rc == -EAGAIN ? 0 : rc;
    rc = ibx_destination_vm_serve(d, err);
    if (rc)
        return rc;
    d->serving = true;
    d->status.message[0] = 0;
    if (d->state == DESTINATION_READY)
        ibx_destination_move(d, DESTINATION_MAPPED);
    return 0;
}

static int step_mapped(struct destination *d, struct ibx_error *err)
{
    if (!ibx_destination_vm_loaded(d))
        return 0;
    int rc = ibx_destination_qemu_has_loaded(d, err);
    if (rc)
        return rc;
    ibx_destination_move(d, DESTINATION_WAITING);
    rc = ibx_channel_send_plain(&d->control, IBX_MIGRATE_LOADED);
    return rc ? ibx_error_set(err, rc, "LOADED could not be sent: %s", strerror(-rc)) : 0;
}

static int step_resuming(struct destination *d, struct ibx_error *err)
{
    if (!d->resumed)
        return 0;
    if (d->engine)
        ibx_fault_set_background(d->engine, true);
    ibx_destination_move(d, DESTINATION_FILLING);
    if (d->linked)
        ibx_channel_send_plain(&d->control, IBX_MIGRATE_RUNNING);
    /* MAY_RUN says enough, if that is all that can be written. */
    if (ibx_destination_record(d, IBX_JOURNAL_RUNNING, err))
        ibx_migration_notify(&d->options->observer, "%s", err->message);
    return 0;
}

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
}

static void send_progress(struct destination *d)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_PROGRESS};
    if (!d->linked || !ibx_channel_idle(&d->control) ||
        ibx_now_ns() - d->progress_ns < MIGRATION_TICK_MS * IBX_NS_PER_MS)
        return;
    d->progress_ns = ibx_now_ns();
    progress_of(d, &message.is.progress);
    ibx_channel_send(&d->control, &message);
}

static int step_filling(struct destination *d, struct ibx_error *err)
{
    send_progress(d);
    if (!d->engine || ibx_fault_state(d->engine) != IBX_FAULT_COMPLETE)
        return 0;
    return ibx_destination_complete(d, err);
}

static int send_complete(struct destination *d, struct ibx_error *err)
{
    const struct ibx_journal_totals *is = &d->status.record.totals;
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_COMPLETE};
    struct ibx_migrate_totals *complete = &message.is.totals;
    complete->pages = is->pages;
    complete->zero_pages = is->zero_pages;
    complete->discarded_pages = is->discarded_pages;
    complete->fetched_pages = is->pages - is->zero_pages - is->discarded_pages;
    memcpy(complete->hash, is->hash, sizeof(complete->hash));
    progress_of(d, &complete->progress);
    int rc = ibx_channel_send(&d->control, &message);
    return rc ? ibx_error_set(err, rc, "COMPLETE could not be sent: %s", strerror(-rc)) : 0;
}

/* Said until it is confirmed: the source may have been away when it was said first. */
static int step_complete(struct destination *d, struct ibx_error *err)
{
    struct ibx_error silent = {0};
    if (!ibx_destination_has_let_go(d)) {
        send_progress(d); /* a QEMU that is slow is no silence */
        return 0;
    }
    if (d->confirmed) {
        /* COMPLETE on record is true as well, and recover asks the source again. */
        int unwritten = ibx_destination_record(d, IBX_JOURNAL_DONE, &silent);
        if (unwritten)
            ibx_migration_notify(&d->options->observer, "%s", silent.message);
        else if (d->linked)
            ibx_channel_send_plain(&d->control, IBX_MIGRATE_CONFIRMED);
        d->status.total_ns = ibx_now_ns() - d->status.began_ns;
        ibx_destination_move(d, DESTINATION_DONE);
        return 0;
    }
    if (!d->linked || !ibx_channel_idle(&d->control) ||
        ibx_now_ns() - d->complete_ns < COMPLETE_AGAIN)
        return 0;
    d->complete_ns = ibx_now_ns();
    return send_complete(d, err);
}

static int step(struct destination *d, struct ibx_error *err)
{
    int rc = ibx_destination_mind_source(d, err);
    if (!rc)
        rc = ibx_destination_vm_feed(d, err);
    if (!rc && d->linked && d->state >= DESTINATION_READY && d->state <= DESTINATION_FILLING)
        rc = step_linking(d, err);
    else if (!rc && d->linked && d->state == DESTINATION_JOINING)
        rc = ibx_destination_link_complete(d, err);
    if (rc && rc != -EAGAIN)
        return rc;
    switch (d->state) {
    case DESTINATION_JOINING:
        return step_joining(d, err);
    case DESTINATION_MAPPED:
        return step_mapped(d, err);
    case DESTINATION_RESUMING:
        return step_resuming(d, err);
    case DESTINATION_FILLING:
        rc = step_filling(d, err);
        return rc || d->state != DESTINATION_COMPLETE ? rc : step_complete(d, err);
    case DESTINATION_COMPLETE:
        return step_complete(d, err);
    default:
        return 0;
    }
}

/* ---------------------------------------------------------------- what goes wrong */

/* The VM never ran here and will not. */
static int give_up(struct destination *d, int code, struct ibx_error *err)
{
    struct ibx_error silent = {0};
    /* A tool that took over knows less for sure, and leaves it to the operator. */
    d->answering = d->state >= DESTINATION_WAITING && !d->linked && !d->aborted && !d->taken_over;
    ibx_destination_vm_give_up(d);
    if (d->status.record.written_s)
        ibx_destination_record(d, IBX_JOURNAL_GIVEN_UP, &silent);
    ibx_destination_move(d, DESTINATION_GIVEN_UP);
    if (d->linked) {
        ibx_channel_send_abort(&d->control, err->message);
        ibx_channel_linger(&d->control, ibx_deadline_in_ms(500));
    }
    return code;
}

/* Its QEMU has ended, or the end of the state came to nothing. */
static int vm_lost(struct destination *d, int code, struct ibx_error *err)
{
    if (d->state == DESTINATION_RESUMING && (d->qemu_failed || !d->ending))
        return give_up(d, code, err);
    const bool told = d->state != DESTINATION_RESUMING; /* RUNNING */
    ibx_destination_move(d, DESTINATION_FAILED);
    ibx_error_prefix(err, code,
                     "the VM ran here and its QEMU (process %d) is gone; ib-migrate "
                     "rollback at the source restarts it from its stop",
                     (int)d->ram.pid);
    /* To a source that has not heard RUNNING, ABORT would mean that the VM never ran. */
    if (d->linked && told) {
        ibx_channel_send_abort(&d->control, err->message);
        ibx_channel_linger(&d->control, ibx_deadline_in_ms(500));
    }
    return code;
}

static int troubled_qemu(struct destination *d, struct ibx_error *err)
{
    if (d->state == DESTINATION_COMPLETE) /* its own master */
        return 0;
    int rc = ibx_destination_qemu_hear(d, err);
    if (!rc)
        return 0;
    if (!ibx_destination_ours(d))
        return give_up(d, rc, err);
    if ((d->qemu_failed && !d->resumed) || !ibx_destination_qemu_lives(d))
        return vm_lost(d, rc, err);
    ibx_destination_qemu_lose(d, err->message);
    return 0;
}

/* What a lost link means. */
static const char *what_waits(const struct destination *d)
{
    switch (d->state) {
    case DESTINATION_WAITING:
        return "the VM has not run here, and waits for the source to be back and say that it shall "
               "(if it goes on there, interrupt this tool)";
    case DESTINATION_COMPLETE:
        return DESTINATION_UNCONFIRMED;
    default:
        return "the VM waits for pages until the source is back";
    }
}

static int hear_last(void *context, const struct ibx_migrate_any *message)
{
    struct hearing *h = context;
    int rc = hear(context, message);
    return rc || !ibx_destination_ours(h->destination) ? rc : -EISCONN; /* the VM waits no longer */
}

/* Of a source that goes, the ends of its connections may be noticed in any order, and before its
 * word is read; that word decides whether it is waited for. */
static int hear_out(struct destination *d, int code, struct ibx_error *err)
{
    struct ibx_error last = {0};
    struct hearing hearing = {d, &last};
    const unsigned ms = d->state == DESTINATION_WAITING ? WORD_MS : 0;
    if (!d->linked || d->aborted || ibx_destination_ours(d) || code == -EPROTO)
        return code;
    int rc =
        ibx_channel_take_until(&d->control, hear_last, &hearing, ibx_deadline_in_ms(ms), &last);
    if (!d->aborted)
        return code;
    *err = last;
    return rc;
}

/* An error of the link: before WAITING the end of the move, else the beginning of a wait. */
static int troubled_link(struct destination *d, int code, struct ibx_error *err)
{
    code = hear_out(d, code, err);
    if (!ibx_destination_ours(d) && (d->state != DESTINATION_WAITING || d->aborted))
        return give_up(d, code, err);
    if (d->linked)
        ibx_migration_notify(&d->options->observer, "%s; %s", err->message, what_waits(d));
    ibx_destination_unlink(d, code, err->message);
    return 0;
}

static int heed_signals(struct destination *d, struct ibx_error *err)
{
    d->interrupts += ibx_migration_signals_take(&d->signals);
    if (!d->interrupts && !d->cancelled)
        return 0;
    if (!ibx_destination_ours(d))
        return give_up(d,
                       ibx_error_set(err, -ECANCELED, "cancelled: %s",
                                     d->state == DESTINATION_LISTENING
                                         ? "no VM had come"
                                         : "the VM stays at the source"),
                       err);
    const bool complete = d->state == DESTINATION_COMPLETE;
    if (d->interrupts > 1 || (d->interrupts && complete && (!d->linked || d->uffd.fd >= 0)))
        return ibx_error_set(err, -EINTR,
                             complete ? "interrupted; all pages are here, but the source has not "
                                        "confirmed it: ib-migrate recover --qmp %s tells it"
                                      : "interrupted; the VM runs here and waits for its pages: "
                                        "ib-migrate recover --qmp %s goes on",
                             d->options->qmp);
    if (!d->cancelled) {
        d->cancelled = true;
        ibx_migration_notify(
            &d->options->observer, "%s; interrupt once more to leave it to ib-migrate recover",
            complete ? "all pages are here, and only the source's confirmation is waited for"
                     : "the VM runs here and needs pages that are still at the source");
    }
    return 0;
}

static int heed_patience(struct destination *d, struct ibx_error *err)
{
    const uint64_t limit = (uint64_t)d->options->give_up_s * 1000 * IBX_NS_PER_MS;
    if (!limit || d->linked || d->state < DESTINATION_WAITING || ibx_now_ns() - d->lost_ns < limit)
        return 0;
    ibx_error_set(err, -ETIMEDOUT, "the source has been away for %u s%s", d->options->give_up_s,
                  d->state == DESTINATION_COMPLETE ? "; all pages are here, only its confirmation "
                                                     "is missing: ib-migrate recover asks for it"
                  : ibx_destination_ours(d)        ? ": ib-migrate recover waits again"
                                                   : "");
    return ibx_destination_ours(d) ? -ETIMEDOUT : give_up(d, -ETIMEDOUT, err);
}

/* ---------------------------------------------------------------- the loop */

/* While the VM stands still for QEMU to read the last of its state, which nothing tells, not long.
 */
static uint64_t longest_wait_ns(struct destination *d)
{
    const bool loading = d->state == DESTINATION_MAPPED && d->state_ended;
    if (loading && d->load_looks < LOAD_LOOKS) {
        d->load_looks++;
        return LOAD_LOOK_US * IBX_NS_PER_US;
    }
    return (loading ? LOAD_LOOK_MS : MIGRATION_TICK_MS) * IBX_NS_PER_MS;
}

static void wait_for_something(struct destination *d)
{
    struct pollfd
        fds[6 + IBX_MIGRATE_LINKS_MAX + DESTINATION_GUESTS + 1 + IBX_CONTROL_SOCKET_CLIENTS_MAX];
    unsigned n = 6;
    const uint64_t most = longest_wait_ns(d);
    bool at_once = d->qmp && ibx_qmp_has_events(d->qmp);
    for (unsigned i = 0; i < n; i++)
        fds[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    at_once |= ibx_channel_arm(&d->control, &fds[0].fd) != 0;
    fds[1].fd = ibx_acceptor_fd(d->porch);
    fds[2].fd = d->qmp ? ibx_qmp_fd(d->qmp) : -1;
    fds[3].fd = d->signals.fd;
    fds[4].fd = d->engine ? ibx_fault_event_fd(d->engine) : -1;
    if (d->stream >= 0 && d->stuck)
        fds[5] = (struct pollfd){.fd = d->stream, .events = POLLOUT};
    const enum ibx_fault_state engine = d->engine ? ibx_fault_state(d->engine) : IBX_FAULT_HELD;
    const bool ours_to_poll = d->state < DESTINATION_COMPLETE &&
                              (engine == IBX_FAULT_HELD || engine == IBX_FAULT_STOPPED);
    for (unsigned i = 0; ours_to_poll && d->linked && i < d->hello.links; i++) {
        if (!d->sources[i])
            continue;
        struct ibx_conn *conn = ibx_page_reader_conn(d->sources[i]);
        at_once |= ibx_arm(conn) != 0;
        fds[n++] = (struct pollfd){.fd = ibx_fd(conn), .events = POLLIN};
    }
    for (unsigned i = 0; i < DESTINATION_GUESTS; i++) {
        fds[n] = (struct pollfd){.fd = -1, .events = POLLIN};
        at_once |= ibx_channel_arm(&d->guests[i], &fds[n].fd) != 0;
        n += fds[n].fd >= 0;
    }
    if (d->talk)
        n += ibx_control_socket_poll_fds(d->talk, fds + n);
    if (ibx_thread_poll(fds, n, at_once ? 0 : most, d->busy_until_ns) > 0 && d->talk)
        ibx_control_socket_serve(d->talk);
}

static void drain_engine_event(struct destination *d)
{
    uint64_t value;
    if (d->engine && read(ibx_fault_event_fd(d->engine), &value, sizeof(value)) < 0)
        return;
}

static int turn(struct destination *d, struct ibx_error *err)
{
    struct hearing hearing = {d, err};
    int rc = heed_signals(d, err);
    if (!rc)
        rc = troubled_qemu(d, err);
    if (!rc)
        rc = heed_patience(d, err);
    if (rc)
        return rc;
    drain_engine_event(d);
    rc = mind_engine(d, err);
    ibx_destination_link_tend(d);
    if (!rc)
        rc = ibx_destination_link_serve(d, err);
    if (!rc && d->linked)
        rc = ibx_channel_take(&d->control, hear, &hearing, err);
    if (!rc)
        rc = step(d, err);
    return rc ? troubled_link(d, rc, err) : 0;
}

int ibx_destination_run(struct destination *d, struct ibx_error *err)
{
    int rc = 0;
    while (!rc && !ibx_destination_over(d)) {
        err->message[0] = 0;
        rc = turn(d, err);
        show(d);
        if (!rc && !ibx_destination_over(d))
            wait_for_something(d);
    }
    return rc;
}

/* The source may have committed, and then goes on asking for ever: with this answer it lets the VM
 * go on there. Until it has heard that, or for a while, or until somebody interrupts. */
void ibx_destination_answer(struct destination *d, const struct ibx_error *why)
{
    const uint64_t deadline = ibx_deadline_in_ms(ANSWER_MS);
    struct ibx_error silent = {0};
    memcpy(d->status.message, why->message, sizeof(d->status.message));
    ibx_migration_notify(
        &d->options->observer,
        "%s; a source that asks within %u s is told that the VM never ran here (interrupt "
        "to end at once)",
        why->message, ANSWER_MS / 1000);
    ibx_qmp_close(d->qmp);
    d->qmp = NULL;
    d->stopping = d->serving = false; /* there is no engine any more */
    ibx_destination_link_close(d);
    while ((!d->told || !ibx_destination_link_alone(d)) && ibx_now_ns() < deadline &&
           !ibx_migration_signals_take(&d->signals)) {
        wait_for_something(d);
        ibx_destination_link_tend(d);
        ibx_destination_link_serve(d, &silent);
    }
}
