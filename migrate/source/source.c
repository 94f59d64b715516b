/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/source/source.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define PAUSE_LOOK_MS    2 /* between two checks whether libvirt has set what it sets */
#define STATE_LOOK_MS    2 /* between two looks how much of its state QEMU has written */
#define COMPARED_LOOK_MS 1 /* between two looks whether pages of a borrowed VM were compared */
#define STATE_MOST_MS    2 /* so long the page map waits for the state, where it is less urgent */

int ibx_source_find_map(struct source *s, struct ibx_error *err)
{
    return source_returns(s) ? ibx_source_return_find_map(s, err)
                             : ibx_page_map_search(&s->vm.map, &s->vm.ram, err);
}

/* The VM waits for nothing here before it stops; after that a destination that is silent for too
 * long is an error (of ibx_source_check_stall()), until it runs the VM and sends PROGRESS all the
 * time. */
static void check_silence(struct source *s)
{
    const bool before = s->state.now == SOURCE_EXPOSING && s->link.state.now == LINK_EXPOSED &&
                        s->peer.now == PEER_QUIET;
    const bool warming = s->state.now == SOURCE_WARMING;
    const struct migration_expectation expected = {
        .awaited = source_linked(&s->link) && (before || warming || s->state.now == SOURCE_SERVING),
        .count = s->messages,
        .timeout_ms = s->transport.timeout_ms,
        .means = before || warming ? "the VM runs on here (interrupt to give up)"
                                   : "the VM is there, and may wait for pages that are still here",
    };
    ibx_migration_check_silence(&s->silence, &expected, &s->status, &s->options->observer);
}

/* How long nothing has come that a destination sends which is well. One that waits for libvirt to
 * continue the VM there sends nothing. */
static uint64_t without_sign_ns(const struct source *s)
{
    const bool answers = s->state.now == SOURCE_COMMITTED && !source_managed(&s->vm);
    return s->state.now == SOURCE_SERVING ? s->status.silent_ns
           : answers                      ? ibx_now_ns() - s->heard_ns
                                          : 0;
}

/* A destination answers COMMIT by RUNNING, and then sends PROGRESS all the time, unless it waits
 * for QEMU's monitor. If nothing comes over a link that stands for longer, it is stopped, or
 * something between the hosts swallows everything: until RUNNING has come, perhaps COMMIT, so that
 * the VM runs nowhere. Another link helps in the second case; in the first, the tool there has to
 * connect all its links anew when it continues. */
static int check_sign_of_life(struct source *s, struct ibx_error *err)
{
    const uint64_t limit_ms = ibx_migration_sign_ms(&s->transport);
    if (!source_linked(&s->link) || without_sign_ns(s) < limit_ms * IBX_NS_PER_MS)
        return 0;
    if (s->state.now == SOURCE_COMMITTED && !s->unsure_ns)
        s->unsure_ns = s->heard_ns;
    return ibx_error_set(err, -ETIMEDOUT,
                         "%s has given no sign of life for %u s, though its host or something "
                         "between the hosts answers",
                         s->status.record.peer[0] ? s->status.record.peer : "the destination",
                         (unsigned)(limit_ms / 1000));
}

static void report(struct source *s)
{
    check_silence(s);
    enum ibx_migrate_phase phase = ibx_source_phase(s);
    bool changed = phase != s->status.phase;
    s->status.phase = phase;
    ibx_source_update(s);
    ibx_migration_report(&s->reporter, &s->status, changed);
}

/* ---------------------------------------------------------------- events of QEMU */

/* Whether the device state waits for the page map. Over a wire the map goes first: each connection
 * begins with little in flight, and the pages that loading the state needs take a round trip once
 * the map is there. */
static bool state_waits(const struct source *s)
{
    const bool stopped = s->state.now == SOURCE_STOPPED;
    return (stopped || s->state.now == SOURCE_STARTING) &&
           ibx_source_stream_waits(&s->stream, stopped) &&
           ibx_conn_path(s->link.control.conn)->remote;
}

/* Whether more of the device state may be read now. */
static bool reads_state(const struct source *s)
{
    const bool idle = ibx_channel_idle(&s->link.control);
    return s->stream.state.now == STREAM_NARROW
               ? idle || ibx_source_stream_has_room(&s->stream)
               : s->stream.state.now == STREAM_OPEN && idle && !state_waits(s);
}

static int read_before_stop(struct source *s, struct ibx_error *err)
{
    const bool any = s->stream.pending > s->stream.held_length;
    if (s->stream.state.now != STREAM_NARROW || !any || !reads_state(s))
        return 0;
    ibx_migration_stop_at("source", "reading");
    return ibx_source_stream_read_some(&s->stream, s->vm.qmp, err);
}

static int carry(struct source *s, struct ibx_error *err)
{
    int rc = ibx_source_stream_look(&s->stream, err);
    if (!rc)
        rc = read_before_stop(s, err);
    if (rc || state_waits(s))
        return rc;
    rc = ibx_source_stream_carry(&s->stream, &s->link.control, s->vm.state.now == VM_SAVED, err);
    if (rc != -EPIPE || !s->vm.qmp)
        return rc;
    return ibx_source_libvirt_left(s, err) ? -EPIPE : ibx_source_qemu_failed(s, err);
}

/* Whether the page map waits for the device state. Home has most of the pages that loading needs,
 * and takes a while for the rest of a page map: if the state goes first, QEMU loads there
 * meanwhile. */
static bool map_waits(const struct source *s)
{
    return s->home.early && s->warm.state.now == WARM_OVER && s->stream.state.now == STREAM_OPEN &&
           ibx_now_ns() - s->still_ns < STATE_MOST_MS * IBX_NS_PER_MS;
}

/* The page map is that of the stop: names the pages that were written last, notes the map, and
 * exposes its pages. -EAGAIN: of a VM that returns, home overwrites these pages, which have not
 * been compared yet. */
static int tell_map(struct source *s, struct ibx_error *err)
{
    int rc = ibx_source_return_compared(s, err);
    if (!rc)
        rc = ibx_source_warm_stopped(s, err);
    if (rc)
        return rc;
    ibx_source_return_note(s);
    ibx_source_stop_map_note(s);
    return ibx_source_link_expose(&s->link, err);
}

int ibx_source_on_quiet(struct source *s, struct ibx_error *err)
{
    int rc = ibx_source_stream_widen(&s->stream);
    if (!rc)
        rc = ibx_source_move(s, SOURCE_STOPPED, err);
    if (!rc && source_returns(s))
        rc = ibx_source_return_send_early(s, err);
    if (!rc)
        rc = ibx_source_find_map(s, err);
    if (!rc && !map_waits(s))
        rc = tell_map(s, err);
    return rc == -EAGAIN ? 0 : rc;
}

/* ---------------------------------------------------------------- steps */

/* From now on QEMU's migration is this one, and is ended if something fails. */
static int touch(struct source *s, struct ibx_error *err)
{
    int rc = ibx_watchdog_touched(&s->vm.watchdog, err);
    s->vm.undo.touched |= !rc;
    return rc;
}

/* Does all that takes time before QEMU may stop the VM. */
static int get_ready(struct source *s, struct ibx_error *err)
{
    /* The VM still runs: if something has begun since check(), only this migration fails. */
    int rc = ibx_source_check_memory(err); /* this tool has taken its memory by now */
    if (!rc)
        rc = ibx_source_check_block_users(s, err);
    if (!rc && source_managed(&s->vm))
        ibx_source_libvirt_link_files(s);
    else if (!rc)
        rc = ibx_vm_not_begun(ibx_source_set_settings(s, err), err);
    if (!rc)
        rc = ibx_source_find_images(s, err);
    return rc ? rc
              : ibx_migration_record(s->options->folder, &s->status.record, IBX_JOURNAL_MAY_RUN,
                                     err);
}

/* Has QEMU begin its migration, which stops the VM, unless QEMU refuses. */
static int start(struct source *s, struct ibx_error *err)
{
    int rc = ibx_source_check_compared(s, err);
    if (rc)
        return rc;
    ibx_migration_stop_at("source", "compared");
    rc =
        source_managed(&s->vm) ? ibx_source_libvirt_set(s, err) : ibx_source_check_settings(s, err);
    if (!rc)
        rc = ibx_source_check_status(s, err);
    if (!rc)
        rc = ibx_source_libvirt_runs(s, err);
    if (!rc) /* last: once QEMU migrates, it hands a disk over under a job, and ends */
        rc = ibx_source_check_block_users(s, err);
    if (rc)
        return rc;
    rc = touch(s, err);
    if (!rc)
        rc = source_managed(&s->vm)
                 ? ibx_source_libvirt_let(s, err)
                 : ibx_source_stream_open(&s->stream, s->vm.qmp, s->vm.undo.before, err);
    if (rc == -EREMOTEIO && !source_managed(&s->vm)) {
        s->vm.undo.touched = false;
        ibx_watchdog_untouched(&s->vm.watchdog);
        ibx_vm_not_begun_since(rc, s->vm.qmp, s->vm.undo.before, err);
    }
    /* QEMU plugs no devices from now on, and answers before it stops the VM; the answers are looked
     * at before the commit. Devices that a guest may eject are asked for when the VM has stopped.
     */
    if (!rc && !source_managed(&s->vm)) /* otherwise QEMU waits for libvirt */
        ibx_source_compared_ask(s, false);
    return rc ? rc : ibx_source_move(s, SOURCE_STARTING, err);
}

static int step_warming(struct source *s, struct ibx_error *err)
{
    const bool between = s->warm.state.now == WARM_BETWEEN;
    int rc = ibx_source_look_at_warming(s, err);
    if (!rc)
        rc = ibx_source_warm_step(s, err);
    const bool drops = s->warm.state.now == WARM_EMPTYING || s->warm.state.now == WARM_DROPPING;
    if (!rc && between && drops) { /* while the destination drops pages */
        rc = get_ready(s, err);
        ibx_migration_stop_at("source", "dropping");
    }
    return rc || s->warm.state.now != WARM_OVER ? rc : start(s, err);
}

static int step_exposing(struct source *s, struct ibx_error *err)
{
    int rc = ibx_source_link_exposed(&s->link, err);
    if (rc || s->peer.now != PEER_READY)
        return rc == -EAGAIN ? 0 : rc;
    rc = ibx_source_libvirt_check_set(s, err);
    if (rc)
        return rc == -EAGAIN ? 0 : rc;
    s->status.register_ns = ibx_now_ns() - s->status.began_ns;
    rc = ibx_source_warm_begin(s, err);
    if (rc)
        return rc;
    if (s->warm.state.now != WARM_OFF) { /* nothing would wake the loop for its first step */
        rc = ibx_source_move(s, SOURCE_WARMING, err);
        return rc ? rc : step_warming(s, err);
    }
    rc = get_ready(s, err);
    return rc ? rc : start(s, err);
}

/* libvirt waits until QEMU reports its migration as completed, and then for the destination's QEMU,
 * which cannot load before COMMIT. */
static int end_stream(struct source *s, struct ibx_error *err)
{
    ibx_source_libvirt_written(s);
    int rc = ibx_source_stream_end(&s->stream, &s->link.control, s->vm.qmp, err);
    if (!rc && source_managed(&s->vm))
        rc = ibx_source_stream_let_go(&s->stream, err);
    /* Until the stop the guest could write to another image, or eject a device. QEMU has done its
     * work for the stop by now, and answers while the destination loads. */
    if (!rc)
        ibx_source_compared_ask(s, true);
    return rc ? rc : ibx_source_check_images(s, err);
}

static int step_sending(struct source *s, struct ibx_error *err)
{
    int rc = carry(s, err);
    if (!rc && s->stream.state.now == STREAM_READ)
        rc = end_stream(s, err);
    return rc || s->peer.now != PEER_LOADED ? rc : ibx_source_commit(s, err);
}

static int step_stopped(struct source *s, struct ibx_error *err)
{
    int rc = map_waits(s) ? carry(s, err) : 0;
    if (rc || map_waits(s))
        return rc;
    if (source_returns(s) && s->warm.state.now == WARM_OVER)
        rc = tell_map(s, err);
    if (!rc)
        rc = ibx_source_link_exposed(&s->link, err);
    if (rc == -EAGAIN)
        return carry(s, err);
    if (!rc)
        rc = ibx_source_link_send_map(&s->link, err);
    if (!rc && s->warm.state.now == WARM_OFF) /* otherwise the destination has most of them */
        rc = ibx_source_link_send_early(&s->link, ibx_source_link_early(&s->link), err);
    if (rc)
        return rc;
    s->mapped_ns = ibx_now_ns();
    s->status.map_ns = s->vm.stop_ns ? s->mapped_ns - s->vm.stop_ns : 0;
    rc = ibx_source_move(s, SOURCE_SENDING, err);
    /* The whole device state may have come already: no event would wake the loop for it. */
    return rc ? rc : step_sending(s, err);
}

/* After a reconnection: the map again, and COMMIT in case that was lost. */
static int catch_up(struct source *s, struct ibx_error *err)
{
    const unsigned link = s->link.state.now;
    if (link != LINK_EXPOSING && link != LINK_EXPOSED)
        return 0;
    int rc = ibx_source_link_exposed(&s->link, err);
    if (rc)
        return rc == -EAGAIN ? 0 : rc;
    rc = ibx_source_link_send_map(&s->link, err);
    return rc || s->state.now != SOURCE_COMMITTED
               ? rc
               : ibx_source_link_send(&s->link, IBX_MIGRATE_COMMIT, err);
}

static int step_serving(struct source *s, struct ibx_error *err)
{
    int rc = 0;
    ibx_source_settle(s);
    ibx_source_protect(s); /* writes MOVED, too */
    if (s->status.record.state == IBX_JOURNAL_MAY_RUN && ibx_now_ns() >= s->note_ns) {
        ibx_source_note_figures(s);
        rc = ibx_source_note(s, IBX_JOURNAL_MOVED, err);
    }
    if (!rc)
        rc = catch_up(s, err);
    if (!rc)
        rc = ibx_source_libvirt_decided(s, err);
    if (!rc && s->peer.now == PEER_ENDED)
        return ibx_source_confirm(s, err);
    if (rc || s->peer.now != PEER_COMPLETE)
        return rc;
    rc = ibx_source_verified(s, err);
    return rc ? (rc == -EAGAIN ? 0 : rc) : ibx_source_confirm(s, err);
}

/* Tells the operator, once, that the VM stands still. */
static void tell_stall(struct source *s, uint64_t limit_ms)
{
    const unsigned told_s = (unsigned)((ibx_now_ns() - s->still_ns) / (1000 * IBX_NS_PER_MS));
    const struct ibx_migrate_observer *observer = &s->options->observer;
    if (s->still_told)
        return;
    s->still_told = true;
    if (s->state.now != SOURCE_COMMITTED) {
        ibx_migration_notify(observer,
                             "the VM has been stopped for %u s, and the destination's QEMU has not "
                             "loaded its state: look at its ib-migrate and QEMU; the VM runs on "
                             "here if that takes %u s, or if this is interrupted",
                             told_s, (unsigned)(limit_ms / 1000));
        return;
    }
    snprintf(s->status.message, sizeof(s->status.message),
             "the VM has been handed over, but for %u s the destination has not reported that it "
             "runs there: look at its ib-migrate and QEMU",
             told_s);
    ibx_migration_notify(observer, "%s", s->status.message);
}

int ibx_source_check_stall(struct source *s, struct ibx_error *err)
{
    const uint64_t limit_ms = ibx_migration_stall_ms(&s->transport);
    const uint64_t tell_ms = s->transport.timeout_ms > 2000 ? s->transport.timeout_ms / 2 : 1000;
    const uint64_t still_ms = (ibx_now_ns() - s->still_ns - s->away_ns) / IBX_NS_PER_MS;
    if (s->state.now < SOURCE_STOPPED || s->state.now > SOURCE_COMMITTED)
        return 0;
    if (still_ms >= tell_ms && !s->options->stand_still && source_linked(&s->link))
        tell_stall(s, limit_ms);
    if (still_ms < limit_ms || s->state.now == SOURCE_COMMITTED)
        return 0;
    return ibx_error_set(err, -ETIMEDOUT,
                         "the VM has been stopped for %" PRIu64
                         " s, and the destination's QEMU has not loaded its state",
                         limit_ms / 1000);
}

static int step(struct source *s, struct ibx_error *err)
{
    int rc = ibx_source_check_stall(s, err);
    if (!rc)
        rc = ibx_source_libvirt_gate(s, err);
    if (!rc && s->link.pages)
        rc = ibx_page_server_failed(s->link.pages, err);
    if (rc)
        return rc;
    switch (s->state.now) {
    case SOURCE_EXPOSING:
        return step_exposing(s, err);
    case SOURCE_WARMING:
        return step_warming(s, err);
    case SOURCE_STARTING:
        return carry(s, err);
    case SOURCE_STOPPED:
        return step_stopped(s, err);
    case SOURCE_SENDING:
        return step_sending(s, err);
    case SOURCE_COMMITTED:
        rc = catch_up(s, err);
        return rc ? rc : ibx_source_libvirt_decided(s, err);
    case SOURCE_SERVING:
        return step_serving(s, err);
    default:
        return 0;
    }
}

/* ---------------------------------------------------------------- the loop */

static void wait_for_something(struct source *s)
{
    struct pollfd fds[8 + 1 + IBX_CONTROL_SOCKET_CLIENTS_MAX];
    const bool waits = state_waits(s);
    const bool reads = reads_state(s);
    struct ibx_qmp *qmp = s->vm.qmp;
    struct ibx_page_server *pages = s->link.pages;
    uint64_t most = MIGRATION_TICK_MS * IBX_NS_PER_MS;
    const bool arms = qmp && s->state.now == SOURCE_SERVING &&
                      s->protection.state.now == PROTECTION_MADE &&
                      s->protecting.now < PROTECTING_IMPOSSIBLE && ibx_now_ns() >= s->note_ns;
    if (s->state.now == SOURCE_EXPOSING && s->pause_by_ns)
        most = PAUSE_LOOK_MS * IBX_NS_PER_MS;
    if (waits || (s->state.now == SOURCE_STOPPED && map_waits(s)))
        most = STATE_LOOK_MS * IBX_NS_PER_MS;
    if (ibx_source_return_waits(&s->home))
        most = COMPARED_LOOK_MS * IBX_NS_PER_MS;
    fds[0] = (struct pollfd){.fd = -1, .events = POLLIN};
    if (ibx_channel_arm(&s->link.control, &fds[0].fd) || (qmp && ibx_qmp_has_events(qmp)) || arms)
        most = 0;
    fds[1] = (struct pollfd){.fd = qmp ? ibx_qmp_fd(qmp) : -1, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = s->signals.fd, .events = POLLIN};
    fds[3] = (struct pollfd){.fd = pages ? ibx_page_server_fd(pages) : -1, .events = POLLIN};
    fds[4] = (struct pollfd){.fd = reads ? s->stream.fd : -1, .events = POLLIN};
    fds[5] =
        (struct pollfd){.fd = s->verifier ? ibx_verifier_fd(s->verifier) : -1, .events = POLLIN};
    fds[6] = (struct pollfd){
        .fd = s->protection.state.now != PROTECTION_CAUGHT ? s->protection.uffd.fd : -1,
        .events = POLLIN};
    fds[7] =
        (struct pollfd){.fd = ibx_gate_is_open(&s->gate) ? s->gate.listener : -1, .events = POLLIN};
    unsigned n = 8 + ibx_control_socket_poll_fds(s->socket, fds + 8);
    if (ibx_thread_poll(fds, n, most, s->busy_until_ns) > 0)
        ibx_control_socket_serve(s->socket);
}

static int turn(struct source *s, struct ibx_error *err)
{
    struct message_context incoming = {s, err};
    int rc = ibx_source_check_interrupts(s, err);
    if (!rc)
        rc = ibx_source_check_qemu(s, err);
    if (!rc)
        rc = ibx_source_libvirt_check(s, err);
    if (!rc)
        rc = ibx_source_check_pages(s, err);
    if (rc)
        return rc;
    if (s->state.now == SOURCE_CONFIRMING)
        return ibx_source_await_confirmed(s, err);
    if (s->state.now == SOURCE_LOST)
        return ibx_source_vm_lost(s, err);
    rc = ibx_source_check_protection(s, err);
    if (!rc)
        rc = ibx_source_check_home(s, err);
    if (rc || s->state.now == SOURCE_CONFIRMING)
        return rc;
    rc = ibx_source_check_unheard(s, err);
    if (rc)
        return rc;
    if (source_committed(s) && !source_linked(&s->link)) {
        ibx_source_protect(s);
        return ibx_source_reconnect(s, err);
    }
    rc = ibx_channel_take(&s->link.control, ibx_source_on_message, &incoming, err);
    if (!rc)
        rc = check_sign_of_life(s, err);
    return rc ? rc : step(s, err);
}

int ibx_source_run(struct source *s, struct ibx_error *err)
{
    int rc = 0;
    while (!rc && !source_over(s)) {
        err->message[0] = 0;
        ibx_watchdog_beat(&s->vm.watchdog);
        rc = ibx_source_check_files(s, turn(s, err), err);
        if (rc && !source_over(s))
            rc = source_committed(s) ? ibx_source_link_trouble(s, rc, err)
                                     : ibx_source_keep(s, rc, err);
        if (rc)
            return rc;
        if (s->state.now == SOURCE_SERVING)
            ibx_migration_keep_record(&s->keeping, s->options->folder, &s->status.record,
                                      &s->options->observer);
        report(s);
        if (!source_over(s))
            wait_for_something(s);
    }
    return rc;
}
