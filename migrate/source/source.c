/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/source/source.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STAY_MS     60000 /* to bring the VM back */
#define FAREWELL_MS 1000  /* for the destination to hear that the VM stays */
#define WORD_MS     1500  /* ... to say why it goes */

/* ---------------------------------------------------------------- states */

static const uint16_t allowed[SOURCE_STATES] = {
    [SOURCE_ASKING] = 1u << SOURCE_EXPOSING | 1u << SOURCE_KEPT,
    [SOURCE_EXPOSING] = 1u << SOURCE_STARTING | 1u << SOURCE_KEPT,
    [SOURCE_STARTING] = 1u << SOURCE_STOPPED | 1u << SOURCE_KEPT,
    [SOURCE_STOPPED] = 1u << SOURCE_SENDING | 1u << SOURCE_KEPT,
    [SOURCE_SENDING] = 1u << SOURCE_COMMITTED | 1u << SOURCE_KEPT,
    [SOURCE_COMMITTED] = 1u << SOURCE_SERVING | 1u << SOURCE_KEPT,
    [SOURCE_SERVING] = 1u << SOURCE_CONFIRMING,
    [SOURCE_CONFIRMING] = 1u << SOURCE_DONE,
};

static const char *const names[SOURCE_STATES] = {
    "asking",    "exposing", "starting",   "stopped", "sending",
    "committed", "serving",  "confirming", "done",    "kept",
};

static enum ibx_migrate_phase phase_of(const struct source *s)
{
    switch (s->state) {
    case SOURCE_ASKING:
        return IBX_PHASE_WAITING;
    case SOURCE_EXPOSING:
    case SOURCE_STARTING:
        return IBX_PHASE_PREPARING;
    case SOURCE_STOPPED:
    case SOURCE_SENDING:
        return IBX_PHASE_SWITCHING;
    case SOURCE_COMMITTED:
    case SOURCE_SERVING:
    case SOURCE_CONFIRMING:
        return !s->linked                     ? IBX_PHASE_BROKEN
               : s->state != SOURCE_COMMITTED ? IBX_PHASE_FILLING
                                              : IBX_PHASE_SWITCHING;
    case SOURCE_DONE:
        return IBX_PHASE_DONE;
    default:
        return IBX_PHASE_FAILED;
    }
}

void ibx_source_move(struct source *s, enum source_state to)
{
    if (!(allowed[s->state] & 1u << to))
        ibx_log(IBX_LOG_ERROR, "the source of a move went from %s to %s, which is a defect",
                names[s->state], names[to]);
    ibx_log(IBX_LOG_INFO, "move: %s -> %s", names[s->state], names[to]);
    s->state = to;
    if (to == SOURCE_STOPPED)
        s->still_ns = ibx_now_ns();
    if (to >= SOURCE_STARTING && to <= SOURCE_COMMITTED)
        s->busy_until_ns = ibx_migration_busy_until();
    ibx_migration_stop_at("source", names[to]);
}

/* What has gone over tells all the time how far it is; before that a VM that stands still is not
 * left to wait (mind_the_clock). */
static void mind_silence(struct source *s)
{
    const bool before = s->state == SOURCE_EXPOSING && !s->exposing && !s->ready;
    const struct migration_expectation heard = {
        .awaited = s->linked && (before || s->state == SOURCE_SERVING),
        .count = s->heard,
        .timeout_ms = s->transport.timeout_ms,
        .means = before ? "the VM runs on here (interrupt to give up)"
                        : "the VM has gone over, and may wait there for pages that are still here",
    };
    ibx_migration_check_silence(&s->silence, &heard, &s->status, &s->options->observer);
}

static void show(struct source *s)
{
    mind_silence(s);
    enum ibx_migrate_phase phase = phase_of(s);
    bool changed = phase != s->status.phase;
    s->status.phase = phase;
    ibx_migration_report(&s->reporter, &s->status, changed);
}

/* ---------------------------------------------------------------- what others say */

static int heed_complete(struct source *s, const struct ibx_migrate_totals *record,
                         struct ibx_error *err)
{
    uint8_t hash[IBX_MIGRATE_HASH_BYTES];
    ibx_page_map_hash(&s->map, hash);
    if (record->pages != s->map.pages || memcmp(record->hash, hash, sizeof(hash)))
        return ibx_error_set(err, -EPROTO,
                             "the destination calls the move complete with another page map "
                             "(%" PRIu64 " pages, here %" PRIu64 "): nothing is given up here",
                             record->pages, s->map.pages);
    s->record = *record;
    s->complete = true;
    return 0;
}

static void heed_progress(struct source *s, const struct ibx_migrate_progress *progress)
{
    s->status.present = progress->present;
    s->status.bytes = progress->bytes;
    s->status.faults = progress->faults;
    s->status.fault_p50_ns = progress->fault_p50_ns;
    s->status.fault_p99_ns = progress->fault_p99_ns;
    s->status.fault_max_ns = progress->fault_max_ns;
}

static void heed_running(struct source *s)
{
    uint64_t now = ibx_now_ns();
    if (!s->stop_ns || s->state != SOURCE_COMMITTED)
        return;
    s->status.commit_ns = now - s->loaded_ns;
    s->status.downtime_ns = now - s->stop_ns;
}

struct hearing {
    struct source *source;
    struct ibx_error *err;
};

static int unexpected(const struct source *s, const struct ibx_migrate_any *message,
                      struct ibx_error *err)
{
    return ibx_error_set(err, -EPROTO, "the destination said %s while the source was %s",
                         ibx_migrate_message_name(message->type), names[s->state]);
}

static int hear(void *context, const struct ibx_migrate_any *message)
{
    struct hearing *h = context;
    struct source *s = h->source;
    s->heard++;
    switch (message->type) {
    case IBX_MIGRATE_READY:
        s->ready = true;
        return s->state == SOURCE_EXPOSING ? 0 : unexpected(s, message, h->err);
    case IBX_MIGRATE_LOADED:
        s->loaded = true;
        return s->state == SOURCE_SENDING && s->state_sent ? 0 : unexpected(s, message, h->err);
    case IBX_MIGRATE_RUNNING:
        if (!source_committed(s))
            return unexpected(s, message, h->err);
        heed_running(s);
        if (s->waited)
            s->status.message[0] = 0;
        if (s->state == SOURCE_COMMITTED)
            ibx_source_move(s, SOURCE_SERVING);
        return 0;
    case IBX_MIGRATE_PROGRESS:
        heed_progress(s, &message->is.progress);
        return source_committed(s) ? 0 : unexpected(s, message, h->err);
    case IBX_MIGRATE_COMPLETE:
        if (s->state == SOURCE_CONFIRMING) /* said again before the answer had come */
            return 0;
        if (s->state != SOURCE_SERVING)
            return unexpected(s, message, h->err);
        heed_progress(s, &message->is.totals.progress);
        return heed_complete(s, &message->is.totals, h->err);
    case IBX_MIGRATE_CONFIRMED:
        s->confirmed = true;
        return s->state == SOURCE_CONFIRMING ? 0 : unexpected(s, message, h->err);
    case IBX_MIGRATE_ABORT:
        s->aborted = true;
        return ibx_error_set(h->err, -ECONNABORTED, "the destination gave up: %s",
                             message->is.sentence);
    default:
        return unexpected(s, message, h->err);
    }
}

/* QEMU says STOP before it has waited for its disks, which may still write to guest RAM. It has
 * when it looks at dirty pages for the last time (MIGRATION_PASS; the same lock is held from the
 * STOP to the end), or is at its devices ("device", from QEMU 10 on), or at the end: that is all
 * that a VM says which was paused before. */
static bool is_quiet(const struct source *s, json_t *event)
{
    return (s->stopped && ibx_vm_event_is(event, "MIGRATION_PASS", NULL)) ||
           ibx_vm_event_is(event, "MIGRATION", "device") ||
           ibx_vm_event_is(event, "MIGRATION", "completed");
}

/* A VM that somebody else continues changes what is on its way; so does a reset, by somebody or by
 * the guest at the last moment, which writes to guest RAM and would be lost. */
static int heed_change(struct source *s, const char *what, struct ibx_error *err)
{
    if (s->state != SOURCE_STOPPED && s->state != SOURCE_SENDING)
        return 0;
    return ibx_error_set(err, -EBUSY, "%s here while it was being moved", what);
}

static int heed_event(struct source *s, json_t *event, struct ibx_error *err)
{
    if (source_committed(s))
        return 0;
    if (ibx_vm_event_is(event, "MIGRATION", "failed") ||
        ibx_vm_event_is(event, "MIGRATION", "cancelled"))
        return -EIO;
    if (ibx_vm_event_is(event, "RESET", NULL))
        return heed_change(s, "the VM has been reset", err);
    if (ibx_vm_event_is(event, "RESUME", NULL)) {
        s->stopped = false;
        s->stop_ns = 0;
        return heed_change(s, "somebody else has continued the VM", err);
    }
    if (ibx_vm_event_is(event, "STOP", NULL)) {
        s->stopped = s->state == SOURCE_STARTING;
        s->stop_ns = ibx_vm_event_ns(event);
    }
    s->qemu_completed |= ibx_vm_event_is(event, "MIGRATION", "completed");
    if (s->state == SOURCE_STARTING && is_quiet(s, event))
        ibx_source_move(s, SOURCE_STOPPED);
    return 0;
}

static int hear_qemu(struct source *s, struct ibx_error *err)
{
    json_t *event;
    int rc = ibx_qmp_pump(s->qmp, err);
    while (!rc && (event = ibx_qmp_event_next(s->qmp))) {
        rc = heed_event(s, event, err);
        json_decref(event);
    }
    if (rc == -EIO && !source_committed(s)) {
        char status[32], error[256] = "";
        ibx_vm_migration(s->qmp, status, sizeof(status), error, sizeof(error),
                         ibx_deadline_in_ms(MIGRATION_QMP_MS), NULL);
        return ibx_error_set(err, -EIO, "QEMU's migration failed: %s",
                             error[0] ? error : "it gave no reason");
    }
    return rc;
}

/* ---------------------------------------------------------------- steps */

static int send_map(struct ibx_channel *control, const struct ibx_page_map *map, uint32_t regions,
                    struct ibx_error *err)
{
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_MAP};
    size_t room = ibx_channel_room(control), length;
    uint64_t from = 0;
    int rc = 0;
    while (!rc && (length = ibx_page_map_give(map, &from, bytes, room)) > 0) {
        message.is.map.bytes = bytes;
        message.is.map.length = length;
        rc = ibx_channel_send(control, &message);
    }
    message = (struct ibx_migrate_any){.type = IBX_MIGRATE_MAP_END};
    message.is.map_end = (struct ibx_migrate_map_end){
        .pages = map->pages, .data_pages = map->data_pages, .regions = regions};
    ibx_page_map_hash(map, message.is.map_end.hash);
    if (!rc)
        rc = ibx_channel_send(control, &message);
    return rc ? ibx_error_set(err, rc, "the page map could not be sent: %s", strerror(-rc)) : 0;
}

static int begin_migration(struct source *s, struct ibx_error *err)
{
    int rc = ibx_source_record(s, IBX_JOURNAL_MAY_RUN, err);
    if (!rc)
        rc = ibx_watchdog_touched(&s->guard, err);
    if (rc)
        return rc;
    s->vm.touched = true;
    rc = ibx_vm_migrate(s->qmp, &s->stream, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (!rc)
        ibx_source_move(s, SOURCE_STARTING);
    return rc;
}

static int switch_over(struct source *s, struct ibx_error *err)
{
    int rc = send_map(&s->control, &s->map, s->regions, err);
    if (rc)
        return rc;
    s->map_sent = true;
    s->mapped_ns = ibx_now_ns();
    s->status.map_ns = s->stop_ns ? s->mapped_ns - s->stop_ns : 0; /* 0: it was paused before */
    ibx_source_move(s, SOURCE_SENDING);
    return 0;
}

/* While QEMU writes the device state. */
static int expose_rest(struct source *s, struct ibx_error *err)
{
    int rc = ibx_source_find_map(s, err);
    return rc ? rc : ibx_source_link_expose(s, err);
}

/* Passes on what QEMU has written, as long as it does not pile up here. */
static int carry_state(struct source *s, struct ibx_error *err)
{
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    size_t room = ibx_channel_room(&s->control);
    while (s->stream >= 0 && ibx_channel_idle(&s->control)) {
        ssize_t n = read(s->stream, bytes, room < sizeof(bytes) ? room : sizeof(bytes));
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (n < 0)
            return ibx_error_set(err, -errno, "QEMU's device state cannot be read: %s",
                                 strerror(errno));
        if (n == 0) {
            close(s->stream);
            s->stream = -1;
            s->stream_ended = true;
            return 0;
        }
        struct ibx_migrate_any message = {.type = IBX_MIGRATE_STATE};
        message.is.state.bytes = bytes;
        message.is.state.length = (size_t)n;
        int rc = ibx_channel_send(&s->control, &message);
        if (rc)
            return ibx_error_set(err, rc, "the device state cannot be sent: %s", strerror(-rc));
        s->status.state_bytes += (uint64_t)n;
    }
    return 0;
}

static int end_state(struct source *s)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_STATE_END};
    message.is.state_bytes = s->status.state_bytes;
    s->state_sent = true;
    return ibx_channel_send(&s->control, &message);
}

static int send_commit(struct source *s)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_COMMIT};
    message.is.epoch = s->status.record.epoch;
    return ibx_channel_send(&s->control, &message);
}

/* The point of no return. What fails from here on is mended by connecting again. */
static int commit(struct source *s, struct ibx_error *err)
{
    int rc = ibx_watchdog_commit(&s->guard, err);
    if (rc)
        return rc;
    s->loaded_ns = ibx_now_ns();
    s->status.state_ns = s->loaded_ns - s->mapped_ns;
    ibx_source_move(s, SOURCE_COMMITTED);
    rc = send_commit(s);
    return rc ? ibx_error_set(err, rc, "the commit could not be sent: %s", strerror(-rc)) : 0;
}

/* All of the state may be there already, and nothing else would wake this tool for it. */
static int step_sending(struct source *s, struct ibx_error *err)
{
    int rc = carry_state(s, err);
    if (!rc && s->stream_ended && s->qemu_completed && !s->state_sent)
        rc = end_state(s);
    return rc || !s->loaded ? rc : commit(s, err);
}

/* After a reconnection: the map again, and the commit if that was lost. */
static int catch_up(struct source *s, struct ibx_error *err)
{
    if (!s->pages || s->map_sent)
        return 0;
    int rc = ibx_source_link_exposed(s, err);
    if (rc)
        return rc == -EAGAIN ? 0 : rc;
    rc = send_map(&s->control, &s->map, s->regions, err);
    s->map_sent = !rc;
    if (!rc && s->state == SOURCE_COMMITTED && (rc = send_commit(s)))
        ibx_error_set(err, rc, "the commit could not be sent: %s", strerror(-rc));
    return rc;
}

static int step_exposing(struct source *s, struct ibx_error *err)
{
    int rc = ibx_source_link_exposed(s, err);
    if (rc || !s->ready)
        return rc == -EAGAIN ? 0 : rc;
    s->status.register_ns = ibx_now_ns() - s->status.began_ns;
    return begin_migration(s, err);
}

static int step_stopped(struct source *s, struct ibx_error *err)
{
    int rc = 0;
    if (!s->mapped_ns) {
        s->mapped_ns = 1;
        rc = expose_rest(s, err);
    }
    if (!rc)
        rc = ibx_source_link_exposed(s, err);
    if (rc)
        return rc == -EAGAIN ? 0 : rc;
    return switch_over(s, err);
}

/* A destination that is merely slow is waited for, but not with a VM that stands still and can go
 * on here. After the commit there is nothing to do but to say so. */
static int mind_the_clock(struct source *s, struct ibx_error *err)
{
    const uint64_t times = (uint64_t)s->transport.timeout_ms * 5;
    const uint64_t limit = times > 10000 ? times : 10000;
    if (s->state < SOURCE_STOPPED || s->state > SOURCE_COMMITTED || !s->still_ns || s->waited ||
        ibx_now_ns() - s->still_ns < limit * IBX_NS_PER_MS)
        return 0;
    if (s->state != SOURCE_COMMITTED)
        return ibx_error_set(err, -ETIMEDOUT,
                             "the VM has stood still for %" PRIu64 " s and the destination has not "
                             "taken its state",
                             limit / 1000);
    s->waited = true;
    snprintf(s->status.message, sizeof(s->status.message),
             "the VM has been handed over, but for %" PRIu64 " s the destination has not said that "
             "it runs there: look at its ib-migrate and QEMU",
             limit / 1000);
    ibx_migration_notify(&s->options->observer, "%s", s->status.message);
    return 0;
}

static int step(struct source *s, struct ibx_error *err)
{
    int rc = mind_the_clock(s, err);
    if (!rc && s->linked && s->pages)
        rc = ibx_page_server_failed(s->pages, err);
    if (rc)
        return rc;
    switch (s->state) {
    case SOURCE_EXPOSING:
        return step_exposing(s, err);
    case SOURCE_STARTING:
        return carry_state(s, err);
    case SOURCE_STOPPED:
        rc = step_stopped(s, err);
        if (rc)
            return rc;
        return s->state == SOURCE_SENDING ? step_sending(s, err) : carry_state(s, err);
    case SOURCE_SENDING:
        return step_sending(s, err);
    case SOURCE_COMMITTED:
        return s->linked ? catch_up(s, err) : 0;
    case SOURCE_SERVING:
        if (s->status.record.state == IBX_JOURNAL_MAY_RUN)
            rc = ibx_source_record(s, IBX_JOURNAL_MOVED, err);
        if (!rc && s->linked)
            rc = catch_up(s, err);
        return rc || !s->complete ? rc : ibx_source_confirm(s, err);
    default:
        return 0;
    }
}

/* ---------------------------------------------------------------- what goes wrong */

static int hear_farewell(void *context, const struct ibx_migrate_any *message)
{
    struct source *s = context;
    s->aborted |= message->type == IBX_MIGRATE_ABORT;
    return s->aborted ? -ECONNABORTED : 0;
}

/* The VM goes on here. */
int ibx_source_keep(struct source *s, int code, struct ibx_error *err)
{
    struct ibx_error why = {0};
    if (s->linked && err->message[0])
        ibx_channel_send_abort(&s->control, err->message);
    /* First: as long as QEMU waits for somebody to read its device state, it does nothing else. */
    if (s->stream >= 0)
        close(s->stream);
    s->stream = -1;
    const int unkept = ibx_vm_stay(s->qmp, &s->vm, ibx_deadline_in_ms(STAY_MS), &why);
    /* What was said last may be lost with a connection that is closed at once. */
    if (s->linked && !s->aborted && code != -ECONNRESET)
        ibx_channel_take_until(&s->control, hear_farewell, s, ibx_deadline_in_ms(FAREWELL_MS),
                               NULL);
    if (unkept) {
        ibx_error_prefix(err, code, "the VM could not be continued (%s; %s) after this",
                         why.message,
                         source_committed(s) ? "ib-migrate rollback tries again"
                                             : "another process, left behind, tries again");
        s->unkept = true;
        ibx_source_move(s, SOURCE_KEPT);
        return code;
    }
    const bool awaited = s->state_sent && !s->aborted && !source_committed(s);
    ibx_source_move(s, SOURCE_KEPT);
    if (awaited)
        ibx_source_link_disown(s, err->message);
    if (s->status.record.written_s)
        ibx_source_record(s, IBX_JOURNAL_KEPT, &why);
    ibx_watchdog_release(&s->guard);
    return code;
}

static int hear_last(void *context, const struct ibx_migrate_any *message)
{
    struct hearing *h = context;
    int rc = hear(context, message);
    return rc || h->source->state == SOURCE_COMMITTED ? rc : -EISCONN; /* it runs there */
}

/* A destination that gives up ends its page connections, too, and that may be noticed first: its
 * word is the only one that brings the VM back. */
static int hear_out(struct source *s, int code, struct ibx_error *err)
{
    struct ibx_error last = {0};
    struct hearing hearing = {s, &last};
    if (!s->linked || s->state != SOURCE_COMMITTED || s->aborted || code == -EPROTO)
        return code;
    int rc = ibx_channel_take_until(&s->control, hear_last, &hearing, ibx_deadline_in_ms(WORD_MS),
                                    &last);
    if (!s->aborted)
        return code;
    *err = last;
    return rc;
}

/* After the commit: 0 to go on and connect again. */
static int endure(struct source *s, int code, struct ibx_error *err)
{
    code = hear_out(s, code, err);
    if (s->state == SOURCE_COMMITTED && s->aborted)
        return ibx_source_keep(s, code, err);
    if (s->linked || !s->lost_ns) {
        s->lost_ns = ibx_now_ns();
        ibx_migration_notify(&s->options->observer, "%s; connecting again", err->message);
    }
    memcpy(s->status.message, err->message, sizeof(s->status.message));
    ibx_source_link_close(s);
    return 0;
}

static int link_again(struct source *s, struct ibx_error *err)
{
    int rc = ibx_source_link_again(s, err);
    if (rc == -ECANCELED)
        return s->state == SOURCE_COMMITTED ? ibx_source_keep(s, rc, err) : rc;
    if (rc == -EAGAIN) {
        if (err->message[0])
            memcpy(s->status.message, err->message, sizeof(s->status.message));
        const uint64_t limit = (uint64_t)s->options->give_up_s * 1000 * IBX_NS_PER_MS;
        s->leaving = limit && ibx_now_ns() - s->lost_ns > limit;
        if (s->leaving)
            return ibx_error_prefix(err, -ETIMEDOUT,
                                    "given up after %u s; ib-migrate recover goes "
                                    "on with the move",
                                    s->options->give_up_s);
        return 0;
    }
    if (rc)
        return rc;
    ibx_migration_notify(&s->options->observer, "connected again to %s", s->status.record.peer);
    s->status.message[0] = 0;
    return 0;
}

static int heed_signals(struct source *s, struct ibx_error *err)
{
    s->interrupts += ibx_migration_signals_take(&s->signals);
    if (s->state == SOURCE_CONFIRMING)
        return 0;
    if (source_committed(s)) {
        s->leaving = s->interrupts > 1;
        if (s->leaving)
            return ibx_error_set(err, -EINTR,
                                 "interrupted; the VM runs at %s and its pages are "
                                 "still here: ib-migrate recover goes on",
                                 s->status.record.uri);
        if (s->interrupts == 1 && !s->cancelled) {
            s->cancelled = true;
            ibx_migration_notify(&s->options->observer,
                                 "the VM runs at the destination already and needs the "
                                 "pages that are still here; interrupt once more to leave "
                                 "it to ib-migrate recover");
        }
        return 0;
    }
    if (s->interrupts || s->cancelled)
        return ibx_error_set(err, -ECANCELED, "cancelled: the VM goes on here");
    return 0;
}

/* ---------------------------------------------------------------- the loop */

static void wait_for_something(struct source *s)
{
    struct pollfd fds[5 + 1 + IBX_CONTROL_SOCKET_CLIENTS_MAX];
    const bool carry = s->stream >= 0 && ibx_channel_idle(&s->control);
    fds[0] = (struct pollfd){.fd = -1, .events = POLLIN};
    uint64_t most = MIGRATION_TICK_MS * IBX_NS_PER_MS;
    if (ibx_channel_arm(&s->control, &fds[0].fd) || (s->qmp && ibx_qmp_has_events(s->qmp)))
        most = 0;
    fds[1] = (struct pollfd){.fd = s->qmp ? ibx_qmp_fd(s->qmp) : -1, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = s->signals.fd, .events = POLLIN};
    fds[3] = (struct pollfd){.fd = s->pages ? ibx_page_server_fd(s->pages) : -1, .events = POLLIN};
    fds[4] = (struct pollfd){.fd = carry ? s->stream : -1, .events = POLLIN};
    unsigned n = 5 + ibx_control_socket_poll_fds(s->talk, fds + 5);
    if (ibx_thread_poll(fds, n, most, s->busy_until_ns) > 0)
        ibx_control_socket_serve(s->talk);
}

/* After the commit QEMU itself is not needed any more: its RAM is mapped and open here. */
static int lose_qemu(struct source *s, struct ibx_error *err)
{
    if (s->state == SOURCE_CONFIRMING)
        ibx_migration_notify(
            &s->options->observer,
            "the source's QEMU has ended (%s), and nothing is to be done: the VM runs at %s "
            "with all of its pages, and only the confirmation of that is still on its way",
            err->message, s->status.record.peer);
    else
        ibx_migration_notify(
            &s->options->observer,
            "the source's QEMU has ended (%s); its pages are held here until the move is "
            "complete: leave this ib-migrate running",
            err->message);
    ibx_qmp_close(s->qmp);
    s->qmp = NULL;
    return 0;
}

static int turn(struct source *s, struct ibx_error *err)
{
    struct hearing hearing = {s, err};
    int rc = heed_signals(s, err);
    if (!rc && s->qmp)
        rc = hear_qemu(s, err);
    if (rc && source_committed(s) && s->qmp && !s->leaving)
        rc = lose_qemu(s, err);
    if (rc)
        return rc;
    if (s->state == SOURCE_CONFIRMING) {
        ibx_source_await_confirmed(s, hear, &hearing);
        return 0;
    }
    if (source_committed(s) && !s->linked)
        return link_again(s, err);
    rc = ibx_channel_take(&s->control, hear, &hearing, err);
    return rc ? rc : step(s, err);
}

int ibx_source_run(struct source *s, struct ibx_error *err)
{
    int rc = 0;
    while (s->state != SOURCE_DONE && s->state != SOURCE_KEPT) {
        err->message[0] = 0;
        rc = turn(s, err);
        if (rc && !source_committed(s) && s->state != SOURCE_KEPT)
            return ibx_source_keep(s, rc, err);
        if (rc && s->state != SOURCE_KEPT && !s->leaving)
            rc = endure(s, rc, err);
        if (rc)
            return rc;
        show(s);
        if (source_committed(s) || s->state < SOURCE_COMMITTED)
            wait_for_something(s);
    }
    return rc;
}
