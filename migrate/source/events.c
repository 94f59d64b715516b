/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Events from the monitor of the source's QEMU, and what happens to the monitor after the
 * commit. */
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <string.h>

#define MONITOR_MS       200  /* for the monitor of a QEMU that lives: the loop has other work */
#define MONITOR_RETRY_MS 1000 /* between two tries */

/* Whether QEMU's migration was cancelled: then QEMU continues the VM, as when the migration
 * fails. */
static int check_cancelled(struct source *s, bool *is, struct ibx_vm_progress *now,
                           struct ibx_error *err)
{
    *now = (struct ibx_vm_progress){0};
    int rc = ibx_vm_migration(s->vm.qmp, now, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    *is = !strcmp(now->status, "cancelled") || !strcmp(now->status, "cancelling");
    return rc;
}

static int cancelled(const struct source *s, struct ibx_error *err)
{
    return ibx_error_set(err, -EBUSY, "%s has cancelled QEMU's migration (migrate_cancel)",
                         source_managed(&s->vm) ? "libvirt" : "another client");
}

int ibx_source_qemu_failed(struct source *s, struct ibx_error *err)
{
    struct ibx_vm_progress now;
    bool is;
    int rc = check_cancelled(s, &is, &now, err);
    if (rc || is) /* or QEMU has ended */
        return rc ? rc : cancelled(s, err);
    return ibx_error_set(err, -EIO, "QEMU's migration failed: %s",
                         now.error[0]
                             ? now.error
                             : "it gave no reason, as it gives none when it cannot write to a "
                               "disk of the VM: see its log, and that the disks have room");
}

/* -EBUSY: the balloon has given memory back, or taken some, since the first of it was registered.
 * QEMU may report that up to a second late, when the VM stands still. */
static int check_balloon(const struct source *s, json_t *event, struct ibx_error *err)
{
    if (s->state.now < SOURCE_EXPOSING || s->state.now > SOURCE_SENDING || !s->link.pages ||
        !ibx_page_server_keeps(s->link.pages) || !ibx_vm_event_is(event, "BALLOON_CHANGE", NULL))
        return 0;
    return ibx_error_set(
        err, -EBUSY,
        "the VM's balloon has changed its size since its memory was registered, and registered "
        "memory keeps the pages: migrate again when the size does not change");
}

void ibx_source_tell_of_stop(const struct source *s, const char *status)
{
    char why[IBX_ERROR_MAX];
    if (ibx_vm_say_stopped(s->vm.qmp, status, why, sizeof(why), ibx_deadline_in_ms(MONITOR_MS)))
        ibx_migration_notify(&s->options->observer,
                             "the VM is stopped here (\"%s\"), and will be at the destination: %s",
                             status, why);
}

/* Before the migration stops the VM, its disk or its watchdog can. */
static void tell_of_stop(const struct source *s)
{
    char status[IBX_MIGRATE_STATUS];
    if (s->state.now < SOURCE_STARTING &&
        !ibx_vm_status(s->vm.qmp, status, sizeof(status), ibx_deadline_in_ms(MONITOR_MS), NULL))
        ibx_source_tell_of_stop(s, status);
}

/* A VM that another client pauses, or continues, before QEMU's migration stops it is left like that
 * when the migration fails. */
static int note_paused(struct source *s, struct ibx_error *err)
{
    const bool runs = !s->vm.paused;
    if (source_managed(&s->vm) || s->vm.undo.was_running == runs)
        return 0;
    s->vm.undo.was_running = s->status.record.was_running = runs;
    int rc = ibx_watchdog_runs(&s->vm.watchdog, runs, err);
    /* If the watchdog is killed as well, rollback has only the record. */
    if (!rc)
        rc = ibx_migration_record(s->options->folder, &s->status.record, s->status.record.state,
                                  err);
    if (!rc && !runs)
        tell_of_stop(s); /* which may wait for QEMU */
    return rc;
}

/* The device state does not say that the VM was shut down: at the destination it would run, and be
 * off. Nor does QEMU remember it if it continues the VM because the migration has failed. */
static int shut_down(struct source *s, struct ibx_error *err)
{
    const int rc = note_paused(s, err);
    s->shut_down = !rc;
    return rc ? rc
              : ibx_error_set(err, -EBUSY,
                              "the VM has been shut down here while it was being migrated");
}

/* If the VM has been stopped by now, it is not continued, because QEMU would end. */
static int fell_asleep(struct source *s, struct ibx_error *err)
{
    s->vm.paused |= s->state.now >= SOURCE_STARTING;
    const int rc = note_paused(s, err);
    return rc ? rc
              : ibx_error_set(err, -EBUSY,
                              "the VM's guest has gone to sleep (S3) while it was being migrated, "
                              "and this QEMU could not continue it here: wake it (system_wakeup in "
                              "QEMU's monitor) and migrate it then");
}

/* What an event means for the VM. When another client continues the VM, the device state that was
 * sent no longer fits its RAM. A reset, by a client or by the guest, writes to guest RAM too and
 * would be lost. */
static int on_meaning(struct source *s, enum source_vm_event means, struct ibx_error *err)
{
    const bool sent = s->state.now == SOURCE_STOPPED || s->state.now == SOURCE_SENDING;
    const char *what = "another client has continued the VM";
    struct ibx_vm_progress now;
    bool is;
    switch (means) {
    case VM_QUIET:
        return s->state.now == SOURCE_STARTING ? ibx_source_on_quiet(s, err) : 0;
    case VM_FAILED:
        return ibx_source_qemu_failed(s, err);
    case VM_RESET:
        what = "the VM has been reset";
        break;
    case VM_CONTINUED:
        if (sent && !check_cancelled(s, &is, &now, NULL) && is)
            return cancelled(s, err);
        break;
    default:
        return 0;
    }
    return sent ? ibx_error_set(err, -EBUSY, "%s here while it was being migrated", what) : 0;
}

static int on_event(struct source *s, json_t *event, struct ibx_error *err)
{
    const char *job = ibx_preflight_block_job(event);
    if (ibx_vm_event_is(event, "RESUME", NULL) && ibx_source_libvirt_resumed(s))
        return 0;
    if (s->state.now == SOURCE_LOST)
        return 0;
    if (source_committed(s))
        return ibx_source_on_intruder(s, event, err);
    int rc = check_balloon(s, event, err);
    if (rc)
        return rc;
    if (ibx_vm_event_is(event, "SUSPEND", NULL) && ibx_qmp_sleeps_on(ibx_qmp_version(s->vm.qmp)))
        return fell_asleep(s, err);
    ibx_source_warm_on_event(s, event);
    if ((s->state.now >= SOURCE_STARTING || s->warm.state.now >= WARM_EMPTYING) && job)
        return ibx_error_set(err, -EBUSY,
                             "the block job %.64s began here at the last moment: wait for its end, "
                             "or end it (job-cancel)",
                             job);
    rc = ibx_source_libvirt_stopped(s, event, err);
    if (rc)
        return rc;
    const enum source_vm_event means =
        ibx_source_vm_on_event(&s->vm, s->state.now == SOURCE_STARTING, event);
    if (means == VM_SHUT_DOWN)
        return shut_down(s, err);
    rc = ibx_source_vm_ask(&s->vm, err); /* first: QEMU answers when it has written its state */
    if (!rc)
        rc = note_paused(s, err);
    if (!rc && ibx_vm_event_is(event, "MIGRATION", "pre-switchover"))
        rc = ibx_source_libvirt_runs(s, err); /* the VM had stopped before that */
    return rc ? rc : on_meaning(s, means, err);
}

/* ---------------------------------------------------------------- its monitor */

/* After the commit QEMU is not needed any more: its RAM is mapped and its file open here. */
static void lose_qemu(struct source *s, const char *why)
{
    const bool ended = s->status.record.state == IBX_JOURNAL_ENDED;
    /* First, because whoever learns that QEMU has ended may start it again at once. */
    if (s->state.now != SOURCE_CONFIRMING && s->state.now != SOURCE_LOST)
        ibx_source_vm_keep_files(&s->vm, &s->status.record, &s->options->observer);
    if (s->state.now == SOURCE_CONFIRMING)
        ibx_migration_notify(
            &s->options->observer,
            "the source's QEMU has ended (%s), and nothing is to be done: the VM %s at %s%s, and "
            "only the confirmation of that is still on its way",
            why, ended ? "was shut down by its guest" : "is", s->status.record.peer,
            ended ? "" : " with all of its pages");
    else if (!source_managed(&s->vm)) /* libvirt ends it: its part is done */
        ibx_migration_notify(
            &s->options->observer,
            "the source's QEMU has ended (%s); its pages are held here until the migration is "
            "complete: leave this ib-migrate running",
            why);
    ibx_source_vm_lose(&s->vm);
}

/* The VM's pages are served without the monitor. What QEMU reports meanwhile is lost. */
static void lose_monitor(struct source *s, const char *why)
{
    const bool again = s->vm.retry_ns;
    if (ibx_source_qemu_has_ended(s)) {
        lose_qemu(s, why);
        return;
    }
    ibx_source_vm_lose(&s->vm);
    s->vm.retry_ns = ibx_deadline_in_ms(MONITOR_RETRY_MS);
    if (!again)
        ibx_migration_notify(&s->options->observer,
                             "the source's QEMU (process %d) is there, but its monitor is lost "
                             "(%s): its pages are served, and the monitor is tried again",
                             (int)s->status.record.pid, why);
}

static int try_monitor(struct source *s, struct ibx_error *err)
{
    struct ibx_error why = {0};
    if (ibx_now_ns() < s->vm.retry_ns)
        return 0;
    if (ibx_journal_qemu_gone(&s->status.record)) {
        lose_qemu(s, "its monitor was lost before");
        return 0;
    }
    int rc = ibx_source_vm_reach(&s->vm, s->options->qmp, MONITOR_MS, &why);
    if (!rc)
        rc = ibx_vm_status(s->vm.qmp, s->vm.ram.status, sizeof(s->vm.ram.status),
                           ibx_deadline_in_ms(MONITOR_MS), &why);
    const int past = rc ? 0 : ibx_source_protection_recheck(s, err);
    if (past && (past == -EBADMSG || source_over(s))) /* whatever becomes of the monitor now */
        return past;
    if (rc || past) {
        ibx_source_vm_lose(&s->vm);
        s->vm.retry_ns = ibx_deadline_in_ms(MONITOR_RETRY_MS);
        return 0;
    }
    if (s->vm.qmp)
        ibx_migration_notify(&s->options->observer,
                             "the source's QEMU (process %d): its monitor is there again",
                             (int)s->status.record.pid);
    return 0;
}

/* While QEMU's migration is under way: checks whether QEMU has written its state. */
static int check_saved(struct source *s, struct ibx_error *err)
{
    enum source_vm_event what;
    if (s->state.now < SOURCE_STARTING || s->state.now > SOURCE_SENDING)
        return 0;
    int rc = ibx_source_vm_check_saved(&s->vm, &what, err);
    return rc || what != VM_QUIET ? rc : ibx_source_on_quiet(s, err);
}

/* What QEMU has reported before it ended: that libvirt has continued the VM, or that libvirt has
 * saved it while nobody put x-ignore-shared back. */
static void on_late_event(struct source *s, json_t *event)
{
    if (source_committed(s) && ibx_vm_event_is(event, "RESUME", NULL))
        ibx_source_libvirt_resumed(s);
    s->without_ram |= s->set_mark && s->stream.state.now == STREAM_CLOSED &&
                      !ibx_qmp_stood_in(s->vm.qmp, s->set_mark) &&
                      ibx_vm_event_is(event, "MIGRATION", "completed");
}

int ibx_source_check_qemu(struct source *s, struct ibx_error *err)
{
    json_t *event;
    if (!s->vm.qmp)
        return s->vm.retry_ns ? try_monitor(s, err) : 0;
    int rc = ibx_qmp_pump(s->vm.qmp, err);
    const bool late = rc && source_managed(&s->vm);
    while ((!rc || late) && (event = ibx_qmp_event_next(s->vm.qmp))) {
        if (late)
            on_late_event(s, event);
        else
            rc = on_event(s, event, err);
        json_decref(event);
    }
    if (!rc)
        ibx_source_protection_answered(s);
    if (!rc)
        rc = check_saved(s, err);
    if (!rc || !source_committed(s))
        return rc;
    if (rc == -EBADMSG)
        return rc;
    lose_monitor(s, err->message);
    return 0;
}
