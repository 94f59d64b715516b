/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/destination/destination.h"
#include "migrate/preflight/preflight.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define LOAD_LOOK_US      100 /* while QEMU reads the last of the device state */
#define LOAD_LOOKS        100 /* so many of these; later QEMU waits for something else */
#define LOAD_LOOK_MS      1   /* from then on */
#define FILL_PART         8   /* of a round trip: so much later than LOADED bulk is requested */
#define CONNECT_LOOK_MS   2   /* whether libvirt has told QEMU to listen */
#define LISTENS_LOOK_MS   500 /* ... and whether QEMU listens elsewhere */
#define COMPLETE_RETRY_NS (1000 * IBX_NS_PER_MS)
#define ANSWER_MS         60000 /* for a source that was away to ask */

/* ---------------------------------------------------------------- steps */

/* -EAGAIN: libvirt has not told QEMU yet where to listen. */
static int connect_stream(struct destination *d, struct ibx_error *err)
{
    const char *path = d->options->libvirt;
    const uint64_t now = ibx_now_ns(), last = d->listens_ns;
    int rc = d->qemu.managed
                 ? ibx_destination_stream_connect(&d->stream, path, d->ram.guest.pid, err)
                 : 0;
    if (rc != -EAGAIN || now < last)
        return rc;
    d->listens_ns = now + LISTENS_LOOK_MS * IBX_NS_PER_MS;
    rc = last ? ibx_preflight_listens_at(d->qemu.qmp, path, ibx_deadline_in_ms(MIGRATION_QMP_MS),
                                         err)
              : 0;
    return rc ? rc : -EAGAIN;
}

static int step_joining(struct destination *d, struct ibx_error *err)
{
    struct ibx_qmp *qmp = d->qemu.qmp;
    if (d->link.joined < d->link.count)
        return 0;
    int rc = connect_stream(d, err);
    if (rc)
        return rc == -EAGAIN ? 0 : rc;
    rc = ibx_destination_lock(d, err);
    if (!rc)
        rc = ibx_destination_open_record(d, err);
    ibx_migration_stop_at("destination", "named");
    if (!rc)
        rc = ibx_destination_record(d, IBX_JOURNAL_NOT_YET, err);
    ibx_destination_close_waiting(d);
    if (!rc)
        rc = ibx_destination_qemu_set(&d->qemu, d->options->folder, &d->status.record, err);
    if (!rc && d->ram.borrow)
        rc = ibx_destination_borrow_begin(d, err);
    if (!rc)
        rc = ibx_destination_home_adopt(d, err);
    if (!rc)
        rc = ibx_destination_check_compared(d, err);
    if (!rc)
        rc = ibx_destination_ram_watch(&d->ram, qmp, &d->status.record, err);
    if (!rc && d->ram.kept && d->ram.borrow)
        rc = ibx_guest_ram_protect(&d->ram.guest, err);
    if (!rc)
        rc = ibx_destination_home_look(d, err);
    if (!rc)
        rc = ibx_destination_watchdog_arm(&d->watchdog, &d->ram, err);
    if (!rc)
        rc = ibx_destination_record(d, IBX_JOURNAL_MAY_RUN, err);
    if (!rc)
        rc = ibx_destination_stream_open(&d->stream, qmp, err);
    if (!rc && d->warm.state.now == WARM_WISHED)
        rc = ibx_destination_warm_begin(d, err);
    else if (!rc) /* now: starting threads takes a millisecond, and the VM still runs */
        rc = ibx_destination_ram_engine(&d->ram, d->link.readers, d->link.count, false, err);
    if (!rc)
        rc = ibx_destination_home_send(d, err);
    if (!rc)
        rc = ibx_channel_send_plain(&d->link.control, IBX_MIGRATE_READY, err);
    return rc ? rc : ibx_destination_move(d, DESTINATION_READY, err);
}

/* Once the map and all regions are here, pages can be served: by the engine that has held the
 * faults, by one that stopped when the last link was lost, or after recover by a new one. */
static int step_linking(struct destination *d, struct ibx_error *err)
{
    struct destination_link *link = &d->link;
    if (link->state.now == LINK_SERVING)
        return 0;
    int rc = ibx_destination_link_complete(link, err);
    if (rc)
        return rc == -EAGAIN ? 0 : rc;
    rc = ibx_destination_ram_serve(&d->ram, link->readers, link->count,
                                   d->qemu.state.now == QEMU_RUNNING && !d->lent, err);
    if (!rc)
        rc = ibx_state_move(&link->state, LINK_SERVING);
    if (rc)
        return rc;
    return d->state.now == DESTINATION_READY ? ibx_destination_move(d, DESTINATION_MAPPED, err) : 0;
}

/* With --stand-still all pages have to be here first: the back end of a vhost-user device would
 * read zeros where pages are missing. */
static bool may_run(struct destination *d)
{
    if (!d->options->stand_still)
        return true;
    ibx_fault_set_background(d->ram.engine, true);
    return ibx_fault_state(d->ram.engine) == IBX_FAULT_COMPLETE;
}

/* The VM waits for COMMIT now. Over a long wire bulk is requested meanwhile, but so late that the
 * source has answered LOADED before it gets the request: so nothing that the VM waits for is behind
 * bulk. Over a short wire bulk would only take processors from a QEMU that is about to continue the
 * VM. */
static void fill_soon(struct destination *d)
{
    const struct ibx_path *path = ibx_conn_path(d->link.control.conn);
    if (ibx_path_is_far(path) && d->ram.borrow != IBX_BORROW_LAZY)
        d->fill_ns = ibx_now_ns() + path->round_trip_ns / FILL_PART;
}

static void step_waiting(struct destination *d)
{
    if (!d->fill_ns || ibx_now_ns() < d->fill_ns || !d->ram.engine)
        return;
    d->fill_ns = 0;
    ibx_fault_set_background(d->ram.engine, true);
}

static int step_mapped(struct destination *d, struct ibx_error *err)
{
    int rc = ibx_destination_early_place(d, err);
    if (rc)
        return rc;
    if (!ibx_destination_stream_loaded(&d->stream) || !may_run(d))
        return 0;
    rc = ibx_destination_qemu_check_loaded(&d->qemu, d->busy_until_ns, err);
    if (!rc) /* QEMU was asked for this before it had loaded */
        rc = ibx_destination_check_compared(d, err);
    if (!rc)
        rc = ibx_destination_move(d, DESTINATION_WAITING, err);
    if (!rc)
        rc = ibx_channel_send_plain(&d->link.control, IBX_MIGRATE_LOADED, err);
    if (!rc)
        fill_soon(d);
    return rc;
}

/* Writes RUNNING once the VM runs or is paused as it should: until then the next tool continues it.
 * If RUNNING cannot be written, MAY_RUN is enough. */
static void record_running(struct destination *d)
{
    struct ibx_error unwritten = {0};
    if (!d->undecided && !d->qemu.cont_ns &&
        ibx_destination_record(d, IBX_JOURNAL_RUNNING, &unwritten))
        ibx_migration_notify(&d->options->observer,
                             "%s; the VM is here and gets its pages all the same, but the "
                             "migration does not end before its record can be written",
                             unwritten.message);
}

static int step_resuming(struct destination *d, struct ibx_error *err)
{
    if (d->qemu.state.now != QEMU_RUNNING)
        return 0;
    if (d->ram.engine && d->ram.borrow != IBX_BORROW_LAZY)
        ibx_fault_set_background(d->ram.engine, true);
    ibx_migration_stop_at("destination", "loaded");
    d->undecided = d->wish == WISH_UNKNOWN;
    if (!d->undecided && !d->qemu.managed)
        ibx_destination_qemu_run(&d->qemu, d->wish == WISH_RUNS && !d->options->paused);
    ibx_destination_update(d);
    int rc = ibx_destination_move(d, DESTINATION_FILLING, err);
    if (rc)
        return rc;
    if (destination_linked(&d->link))
        ibx_destination_send_running(d);
    ibx_destination_qemu_settle(&d->qemu, &d->status.record);
    ibx_destination_home_rename(d);
    record_running(d);
    return 0;
}

static int confirmed(struct destination *d, struct ibx_error *err)
{
    struct ibx_error unwritten = {0};
    const int rc = ibx_destination_record_end(d, &unwritten);
    if (rc == -EAGAIN) {
        ibx_destination_send_progress(d); /* so that the source waits, too */
        return 0;
    }
    if (rc) /* the record as it is remains true, and recover asks the source again */
        ibx_migration_notify(&d->options->observer, "%s", unwritten.message);
    else if (destination_linked(&d->link))
        ibx_channel_send_plain(&d->link.control, IBX_MIGRATE_CONFIRMED, NULL);
    if (!rc)
        ibx_destination_tags_remove(&d->status.record);
    d->status.total_ns = ibx_now_ns() - d->status.began_ns;
    return ibx_destination_move(d, DESTINATION_DONE, err);
}

/* Sends COMPLETE or ENDED until it is confirmed, since the source may have been away. */
static int tell_complete(struct destination *d, struct ibx_error *err)
{
    if (d->peer.now == PEER_CONFIRMED || !destination_linked(&d->link) ||
        !ibx_channel_idle(&d->link.control) || ibx_now_ns() - d->complete_ns < COMPLETE_RETRY_NS)
        return 0;
    d->complete_ns = ibx_now_ns();
    return ibx_destination_send_complete(d, err);
}

/* This tool lets go of QEMU while the source compares and its CONFIRM is on its way: the record
 * already says that all pages are here. */
static int step_complete(struct destination *d, struct ibx_error *err)
{
    int rc = d->peer.now == PEER_CONFIRMED ? 0 : ibx_destination_send_digests(d, err);
    if (!rc)
        rc = tell_complete(d, err);
    if (rc && rc != -EAGAIN)
        return rc;
    if (!ibx_destination_has_let_go(d)) {
        ibx_destination_send_progress(d); /* so that a slow QEMU is not taken for silence */
        return 0;
    }
    /* From here on this tool writes no page, and the VM may return to this memory before the tool
     * has ended. */
    ibx_destination_unlock(d);
    return d->peer.now == PEER_CONFIRMED ? confirmed(d, err) : 0;
}

/* Puts QEMU's settings back if that failed before. A record that still has them does no harm. */
static void settle(struct destination *d)
{
    if (d->qemu.settings && !ibx_destination_qemu_settle(&d->qemu, &d->status.record))
        ibx_destination_record(d, d->status.record.state, NULL);
}

/* After recover: the tool before this one may have died after it loaded the VM and before it
 * continued it. */
static void decide(struct destination *d)
{
    const bool others = d->qemu.qmp && strcmp(d->qemu.status, "paused") != 0;
    if (!d->undecided || (!others && (d->wish == WISH_UNKNOWN || !d->qemu.qmp)))
        return;
    d->undecided = false; /* the source has told, or somebody has continued the VM */
    if (d->wish == WISH_RUNS && !d->options->paused)
        ibx_destination_qemu_run(&d->qemu, true);
    record_running(d);
}

/* Whether QEMU still refuses to continue the VM. As long as it does, the migration is not complete.
 */
static bool stands(struct destination *d)
{
    const bool refused = d->qemu.cont_ns;
    if (ibx_destination_qemu_stands(&d->qemu))
        return true;
    if (refused)
        record_running(d);
    return false;
}

/* A source that is gone for good never says whether the VM is to run: tells the operator, once all
 * else is done. */
static void tell_undecided(struct destination *d)
{
    if (!d->undecided || d->told_undecided || destination_linked(&d->link) ||
        !ibx_destination_ram_whole(&d->ram))
        return;
    d->told_undecided = true;
    ibx_migration_notify(
        &d->options->observer,
        "all pages are here, but only the source knows whether the VM is to run: without it, "
        "\"cont\" in QEMU's monitor continues the VM and completes this");
}

static int step_filling(struct destination *d, struct ibx_error *err)
{
    ibx_destination_send_progress(d);
    settle(d);
    decide(d);
    tell_undecided(d);
    const bool waits = stands(d) || d->undecided, unnamed = ibx_destination_home_rename_late(d);
    int rc = ibx_destination_check_given_back(d, err);
    if (!rc)
        rc = ibx_destination_send_digests(d, err);
    if (rc && rc != -EAGAIN)
        return rc;
    if (d->ram.borrow && !d->stays) { /* until the VM has returned, even if it has all pages */
        ibx_destination_borrow_take_back(d);
        ibx_destination_borrow_watch(d);
        struct ibx_error why = {0}; /* `err` may still have the error of an earlier turn */
        ibx_destination_borrow_returned(d, false, &why);
        if (why.code)
            *err = why;
        return why.code;
    }
    if (waits || unnamed || !ibx_destination_ram_whole(&d->ram))
        return 0;
    rc = ibx_destination_check_pages(d, err);
    if (!rc)
        rc = ibx_destination_complete(d, err);
    return rc || d->state.now != DESTINATION_COMPLETE ? rc : step_complete(d, err);
}

static int check_link(struct destination *d, struct ibx_error *err)
{
    if (!destination_linked(&d->link))
        return 0;
    if (d->state.now == DESTINATION_JOINING) {
        int rc = ibx_destination_link_complete(&d->link, err);
        return rc == -EAGAIN ? 0 : rc;
    }
    const bool links = d->state.now >= DESTINATION_READY && d->state.now <= DESTINATION_FILLING &&
                       d->warm.state.now != WARM_FETCHING;
    return links ? step_linking(d, err) : 0;
}

static int step(struct destination *d, struct ibx_error *err)
{
    int rc = ibx_destination_check_stall(d, err);
    if (!rc && !ibx_destination_warm_holds(d))
        rc = ibx_destination_stream_feed(&d->stream, err);
    if (!rc && ibx_destination_stream_past_ram(&d->stream))
        ibx_destination_qemu_save_ram(&d->qemu);
    if (!rc)
        rc = check_link(d, err);
    if (rc)
        return rc;
    switch (d->state.now) {
    case DESTINATION_JOINING:
        return step_joining(d, err);
    case DESTINATION_READY:
        return ibx_destination_warm_step(d, err);
    case DESTINATION_MAPPED:
        return step_mapped(d, err);
    case DESTINATION_WAITING:
        step_waiting(d);
        return 0;
    case DESTINATION_RESUMING:
        return step_resuming(d, err);
    case DESTINATION_FILLING:
        return step_filling(d, err);
    case DESTINATION_COMPLETE:
    case DESTINATION_SHUT_DOWN:
        return step_complete(d, err);
    default:
        return 0;
    }
}

/* ---------------------------------------------------------------- the loop */

/* Closes a lost link once the engine has stopped: until then the engine uses its page connections.
 * An error: the engine has stopped by itself, because a page connection has ended or memory could
 * not be had. */
static int check_engine(struct destination *d, struct ibx_error *err)
{
    uint64_t events;
    if (d->ram.engine && read(ibx_fault_event_fd(d->ram.engine), &events, sizeof(events)) < 0)
        events = 0; /* there was nothing to drain */
    if (!ibx_destination_ram_stopped(&d->ram))
        return 0;
    if (d->link.state.now == LINK_STOPPING)
        ibx_destination_link_close(&d->link);
    if (!d->ram.engine || d->link.state.now != LINK_SERVING)
        return 0;
    int rc = ibx_fault_reason(d->ram.engine, err);
    /* -EEXIST: the VM may have used a page that was there before the right one. */
    return rc == -EEXIST ? ibx_destination_broken(d, true, err) : rc;
}

/* Short while the VM is stopped and QEMU reads the last of its state, which no event reports. */
static uint64_t longest_wait_ns(struct destination *d)
{
    const bool loading = d->state.now == DESTINATION_MAPPED && d->stream.state.now == STREAM_WHOLE;
    if (loading && d->load_looks < LOAD_LOOKS) {
        d->load_looks++;
        return LOAD_LOOK_US * IBX_NS_PER_US;
    }
    if (d->qemu.managed && d->state.now == DESTINATION_JOINING)
        return CONNECT_LOOK_MS * IBX_NS_PER_MS;
    const uint64_t digests = ibx_destination_digests_wait_ns(d);
    const uint64_t now = ibx_now_ns(), fill = d->fill_ns > now ? d->fill_ns - now : 0;
    uint64_t tick = (loading ? LOAD_LOOK_MS : MIGRATION_TICK_MS) * IBX_NS_PER_MS;
    if (d->fill_ns && d->state.now == DESTINATION_WAITING && fill < tick)
        tick = fill;
    return digests < tick ? digests : tick;
}

/* Whether this thread, and no engine, reads from the page connections. */
static bool owns_readers(const struct destination *d)
{
    return d->state.now < DESTINATION_COMPLETE &&
           (ibx_destination_ram_stopped(&d->ram) ||
            ibx_fault_state(d->ram.engine) == IBX_FAULT_HELD);
}

static void wait_for_something(struct destination *d)
{
    struct pollfd fds[4 + LINK_FDS + 1 + IBX_CONTROL_SOCKET_CLIENTS_MAX];
    struct ibx_qmp *qmp = d->qemu.qmp;
    struct ibx_fault *engine = d->ram.engine;
    const uint64_t most = longest_wait_ns(d);
    bool at_once = qmp && ibx_qmp_has_events(qmp);
    fds[0] = (struct pollfd){.fd = qmp ? ibx_qmp_fd(qmp) : -1, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = d->signals.fd, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = engine ? ibx_fault_event_fd(engine) : -1, .events = POLLIN};
    const bool stuck = ibx_destination_stream_stuck(&d->stream) && !ibx_destination_warm_holds(d);
    fds[3] = (struct pollfd){.fd = stuck ? d->stream.fd : -1, .events = POLLOUT};
    unsigned n = 4 + ibx_destination_link_poll_fds(&d->link, owns_readers(d), fds + 4, &at_once);
    if (d->socket)
        n += ibx_control_socket_poll_fds(d->socket, fds + n);
    if (ibx_thread_poll(fds, n, at_once ? 0 : most, d->busy_until_ns) > 0 && d->socket)
        ibx_control_socket_serve(d->socket);
}

static int turn(struct destination *d, struct ibx_error *err)
{
    struct message_context incoming = {d, err};
    int rc = ibx_destination_check_interrupts(d, err);
    if (!rc)
        rc = ibx_destination_check_qemu(d, err);
    if (!rc)
        rc = ibx_destination_check_patience(d, err);
    if (!rc)
        rc = ibx_destination_check_pages(d, err);
    if (rc)
        return rc;
    rc = check_engine(d, err);
    ibx_destination_link_check_queries(&d->link);
    if (!rc)
        rc = ibx_destination_check_requests(d, err);
    if (!rc && destination_linked(&d->link))
        rc = ibx_channel_take(&d->link.control, ibx_destination_on_message, &incoming, err);
    if (!rc)
        rc = step(d, err);
    if (!destination_over(d))
        rc = ibx_destination_check_files(d, rc, err);
    return rc && !destination_over(d) ? ibx_destination_link_trouble(d, rc, err) : rc;
}

/* Why the phase is RECONNECTING, and what libvirt's VM waits for. */
static void say_lost(struct destination *d)
{
    const bool reconnecting = d->status.phase == IBX_PHASE_RECONNECTING;
    const char *undecided = reconnecting ? ibx_destination_undecided(d) : NULL;
    snprintf(d->status.message, sizeof(d->status.message), "%s%s%s", reconnecting ? d->lost : "",
             undecided && d->lost[0] ? "; " : "", undecided ? undecided : "");
}

static void report(struct destination *d)
{
    enum ibx_migrate_phase phase = ibx_destination_phase(d);
    bool changed = phase != d->status.phase;
    d->status.phase = phase;
    ibx_destination_update(d);
    say_lost(d);
    ibx_destination_check_silence(d);
    ibx_migration_report(&d->reporter, &d->status, changed);
}

int ibx_destination_run(struct destination *d, struct ibx_error *err)
{
    int rc = 0;
    while (!rc && !destination_over(d)) {
        err->message[0] = 0;
        rc = turn(d, err);
        if (d->state.now == DESTINATION_FILLING || d->state.now == DESTINATION_COMPLETE)
            ibx_migration_keep_record(&d->keeping, d->options->folder, &d->status.record,
                                      &d->options->observer);
        report(d);
        if (!rc && !destination_over(d))
            wait_for_something(d);
    }
    return rc;
}

/* The source may have committed. Then it connects repeatedly, and the answer GIVEN_UP lets the VM
 * continue there. Waits until the answer was given, for ANSWER_MS, or for an interrupt. */
void ibx_destination_answer(struct destination *d, const struct ibx_error *why)
{
    const uint64_t deadline = ibx_deadline_in_ms(ANSWER_MS);
    struct ibx_error silent = {0};
    memcpy(d->status.message, why->message, sizeof(d->status.message));
    ibx_migration_notify(
        &d->options->observer,
        "%s; a source that asks within %u s is told that the VM never ran here (interrupt to end "
        "at once)",
        why->message, ANSWER_MS / 1000);
    ibx_destination_qemu_fini(&d->qemu);
    ibx_destination_link_close(&d->link);
    while ((d->state.now == DESTINATION_ANSWERING || ibx_destination_link_has_queries(&d->link)) &&
           ibx_now_ns() < deadline && !ibx_migration_signals_take(&d->signals, true)) {
        wait_for_something(d);
        ibx_destination_link_check_queries(&d->link);
        ibx_destination_check_requests(d, &silent);
    }
    if (d->state.now == DESTINATION_ANSWERING)
        ibx_destination_move(d, DESTINATION_GIVEN_UP, &silent);
}
