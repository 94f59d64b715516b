/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/common.h"
#include "migrate/common/vm.h"
#include "migrate/destination/qemu.h"
#include "migrate/preflight/preflight.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define MONITOR_MS       500  /* for the monitor of a VM that runs: its loop has other work */
#define MONITOR_RETRY_MS 1000 /* between two tries */
#define LENT_MS          5000 /* for another tool to take the monitor */
#define STOP_MS          2000
#define SET              "migrate-set-capabilities"
#define LOADING_MS       5000 /* for QEMU to notice that its stream has ended */
#define LOADING_LOOK_MS  20

static const struct ibx_state qemu_states[] = {
    [QEMU_LOADING] = {"loading", IBX_TO(QEMU_RUNNING) | IBX_TO(QEMU_FAILED), IBX_STATE_INITIAL},
    [QEMU_RUNNING] = {"running", 0, IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [QEMU_FAILED] = {"failed", IBX_TO(QEMU_RUNNING), IBX_STATE_FINAL},
};
static const struct ibx_state_table qemu_table = IBX_STATE_TABLE("destination qemu", qemu_states);

void ibx_destination_qemu_init(struct destination_qemu *qemu, const char *path,
                               const struct ibx_record *record,
                               const struct ibx_migrate_observer *observer)
{
    *qemu = (struct destination_qemu){.path = path, .record = record, .observer = observer};
    ibx_state_begin(&qemu->state, &qemu_table, QEMU_LOADING);
}

static void now_is(struct destination_qemu *qemu, enum destination_qemu_state state)
{
    if (ibx_state_allows(&qemu_table, qemu->state.now, state))
        ibx_state_move(&qemu->state, state);
}

/* Whether the VM is this side's, with this status. Where libvirt drives, it continues a VM that has
 * loaded, or it ends this QEMU and continues the VM at the source. A VM that libvirt leaves paused
 * is this side's when libvirt has ended the QEMU at the source. */
static bool settled(const struct destination_qemu *qemu, const char *status)
{
    return !qemu->managed || qemu->decided || !strcmp(status, "running");
}

void ibx_destination_qemu_decided(struct destination_qemu *qemu)
{
    qemu->decided = qemu->stale = true;
    qemu->ask_ns = 0;
}

/* QEMU reports "completed" as the last of a migration, when the VM runs or is paused. From QEMU 10
 * on, a QEMU that cannot have the VM's disks then leaves the VM in "inmigrate" for good: no command
 * continues it. */
bool ibx_destination_qemu_stuck(const struct destination_qemu *qemu)
{
    return qemu->completed && !strcmp(qemu->status, "inmigrate");
}

/* Asks for the VM's status. With any other than "inmigrate" QEMU has the whole state: a VM that was
 * paused at the source is paused here, too. */
static int ask_status(struct destination_qemu *qemu, struct ibx_error *err)
{
    char status[sizeof(qemu->status)];
    int rc = ibx_vm_status(qemu->qmp, status, sizeof(status), ibx_deadline_in_ms(MONITOR_MS), err);
    if (rc)
        return rc;
    qemu->stale = !strcmp(status, "finish-migrate"); /* no event says when that is over */
    if (qemu->stale)
        qemu->ask_ns = ibx_deadline_in_ms(MONITOR_RETRY_MS);
    qemu->ran |= !strcmp(status, "running");
    memcpy(qemu->status, status, sizeof(status));
    if (strcmp(status, "inmigrate") != 0 && qemu->state.now != QEMU_RUNNING &&
        settled(qemu, status))
        now_is(qemu, QEMU_RUNNING);
    if (ibx_destination_qemu_stuck(qemu))
        now_is(qemu, QEMU_FAILED);
    return 0;
}

/* Notes the reason of the first SHUTDOWN. Others may follow before QEMU ends: a manager ends a QEMU
 * by a signal when the guest has shut the VM down. If a client has migrated the VM on and then ends
 * what is left of it here, the reason to keep is that the VM went on. */
static void note_end(struct destination_qemu *qemu, json_t *event)
{
    const char *reason =
        json_string_value(json_object_get(json_object_get(event, "data"), "reason"));
    if (ibx_journal_is_migrated_on(qemu->status))
        reason = IBX_JOURNAL_MIGRATED_ON;
    if (reason && !qemu->end[0])
        snprintf(qemu->end, sizeof(qemu->end), "%s", reason);
}

/* A watchdog with the action "poweroff" ends QEMU at once, without SHUTDOWN and its reason. For its
 * reset (RESET follows, or SHUTDOWN with -no-reboot) QEMU gives the reason "guest-reset". */
static void note_watchdog(struct destination_qemu *qemu, json_t *event)
{
    const char *action =
        json_string_value(json_object_get(json_object_get(event, "data"), "action"));
    const char *suffix = !action                       ? NULL
                         : !strcmp(action, "poweroff") ? ""
                         : !strcmp(action, "reset")    ? "-reset"
                                                       : NULL;
    if (suffix && !qemu->end[0])
        snprintf(qemu->end, sizeof(qemu->end), "guest-watchdog%s", suffix);
}

/* For a VM that runs here: an event says that its status is another one. A QEMU that may be about
 * to end is not asked: it can hang over a question that comes while it ends (qmp_stream.c). So the
 * status "shutdown" is taken from the event; it stays if QEMU does (-no-shutdown). */
static void note_status(struct destination_qemu *qemu, json_t *message, const char *event)
{
    const char *action =
        json_string_value(json_object_get(json_object_get(message, "data"), "action"));
    static const char *const others[] = {"STOP", "RESET", "SUSPEND", "WAKEUP"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        qemu->stale |= !strcmp(event, others[i]);
    if (!strcmp(event, "GUEST_PANICKED")) {
        qemu->stale = true;
        qemu->ask_ns = ibx_deadline_in_ms(MONITOR_RETRY_MS);
        if (action && !strcmp(action, "pause")) /* the migration may be over before QEMU is asked */
            snprintf(qemu->status, sizeof(qemu->status), "guest-panicked");
    } else if (!strcmp(event, "SHUTDOWN") && !ibx_journal_is_migrated_on(qemu->status)) {
        qemu->stale = false;
        snprintf(qemu->status, sizeof(qemu->status), "shutdown");
    }
}

static void on_event(struct destination_qemu *qemu, json_t *event)
{
    const char *name = json_string_value(json_object_get(event, "event"));
    if (ibx_vm_event_is(event, "RESUME", NULL)) {
        now_is(qemu, QEMU_RUNNING);
        snprintf(qemu->status, sizeof(qemu->status), "running");
        qemu->stale = false;
        qemu->ran = true;
    } else if (ibx_vm_event_is(event, "MIGRATION", "completed")) {
        /* libvirt continues it at once: RESUME says so, and a question would only delay that. */
        const bool away = qemu->completed && qemu->state.now == QEMU_RUNNING;
        qemu->stale |= qemu->state.now != QEMU_RUNNING || away;
        if (away) /* its QEMU may be ended before it is asked */
            snprintf(qemu->status, sizeof(qemu->status), "postmigrate");
        qemu->completed = true;
        qemu->ask_ns = qemu->managed && !qemu->decided ? ibx_deadline_in_ms(MONITOR_RETRY_MS) : 0;
    } else if (ibx_vm_event_is(event, "MIGRATION", "failed") && qemu->state.now != QEMU_RUNNING) {
        now_is(qemu, QEMU_FAILED); /* otherwise another client has started it since */
    } else if (ibx_vm_event_is(event, "SHUTDOWN", NULL)) {
        note_end(qemu, event);
    } else if (ibx_vm_event_is(event, "WATCHDOG", NULL)) {
        note_watchdog(qemu, event);
    }
    /* A VM that was shut down, and whose QEMU stays (-no-shutdown), can be reset and run again. */
    if (ibx_vm_event_is(event, "RESUME", NULL) || ibx_vm_event_is(event, "RESET", NULL))
        qemu->end[0] = '\0';
    if (qemu->state.now == QEMU_RUNNING && name)
        note_status(qemu, event, name);
}

static void take_queued_events(struct destination_qemu *qemu)
{
    json_t *event;
    while ((event = ibx_qmp_event_next(qemu->qmp))) {
        on_event(qemu, event);
        json_decref(event);
    }
}

/* The last events may have come with the failure of a command: they say why QEMU has ended. */
static void close_monitor(struct destination_qemu *qemu)
{
    if (qemu->qmp)
        take_queued_events(qemu);
    if (ibx_journal_qemu_lives(qemu->record))
        ibx_qmp_end(qemu->qmp, qemu->record->pid);
    ibx_qmp_close(qemu->qmp);
    qemu->qmp = NULL;
}

/* A QEMU that runs the VM may be slow to answer; that is no reason to leave its monitor. */
static int refresh(struct destination_qemu *qemu, struct ibx_error *err)
{
    const bool runs = qemu->state.now == QEMU_RUNNING;
    if (!qemu->stale || ibx_now_ns() < qemu->ask_ns)
        return 0;
    int rc = ask_status(qemu, err);
    if (rc != -ETIMEDOUT || (!runs && !qemu->managed))
        return rc;
    qemu->ask_ns = ibx_deadline_in_ms(MONITOR_RETRY_MS);
    return 0;
}

static int take_events(struct destination_qemu *qemu, struct ibx_error *err)
{
    int rc = ibx_qmp_pump(qemu->qmp, err);
    take_queued_events(qemu);
    if (!rc) {
        rc = refresh(qemu, err);
        take_queued_events(qemu);
    }
    return rc;
}

int ibx_destination_qemu_reach(struct destination_qemu *qemu, uint64_t deadline_ns,
                               struct ibx_error *err)
{
    int rc = ibx_qmp_connect(qemu->path, deadline_ns, &qemu->qmp, err);
    const int pid = rc ? 0 : (int)ibx_qmp_pid(qemu->qmp), own = (int)qemu->record->pid;
    if (rc || !pid || pid == own)
        return rc;
    close_monitor(qemu);
    return ibx_error_set(err, -ESRCH, "process %d has %s, and not QEMU (process %d)", pid,
                         qemu->path, own);
}

/* If the VM runs, QEMU has reported its migration as completed, perhaps while this tool had no
 * monitor: the next such report is that of another migration. */
static void note_loaded(struct destination_qemu *qemu)
{
    qemu->completed |= qemu->state.now == QEMU_RUNNING;
}

static void try_monitor(struct destination_qemu *qemu)
{
    struct ibx_error silent = {0};
    if (ibx_now_ns() < qemu->retry_ns)
        return;
    int rc = ibx_destination_qemu_reach(qemu, ibx_deadline_in_ms(MONITOR_MS), &silent);
    if (!rc)
        rc = ask_status(qemu, &silent);
    if (rc)
        ibx_destination_qemu_lose(qemu, silent.message);
    else
        ibx_log(IBX_LOG_INFO, "migration: QEMU's monitor is there");
    note_loaded(qemu);
}

/* After recover, where the record does not tell whether the VM runs. A QEMU that still waits for
 * its state has lost its stream with the earlier tool, and fails as soon as it notices. */
static int learn(struct destination_qemu *qemu, struct ibx_error *err)
{
    int rc = ask_status(qemu, err);
    note_loaded(qemu);
    if (rc || qemu->state.now != QEMU_LOADING || strcmp(qemu->status, "inmigrate") != 0)
        return rc; /* where libvirt drives, a VM that has loaded waits for libvirt */
    if (!qemu->inmigrate_ns)
        qemu->inmigrate_ns = ibx_now_ns();
    if (ibx_now_ns() - qemu->inmigrate_ns > LOADING_MS * IBX_NS_PER_MS)
        now_is(qemu, QEMU_FAILED);
    return 0;
}

/* Tells the operator of a VM that nobody has stopped, but its disk or its watchdog. */
static void tell_of_stop(struct destination_qemu *qemu)
{
    char why[IBX_ERROR_MAX];
    const bool news = strcmp(qemu->status, qemu->told) != 0;
    memcpy(qemu->told, qemu->status, sizeof(qemu->told));
    if (news && ibx_vm_say_stopped(qemu->qmp, qemu->status, why, sizeof(why),
                                   ibx_deadline_in_ms(MONITOR_MS)))
        ibx_migration_notify(qemu->observer, "the VM is stopped here (\"%s\"): %s", qemu->status,
                             why);
}

int ibx_destination_qemu_check(struct destination_qemu *qemu, bool recovered, struct ibx_error *err)
{
    int rc = 0;
    if (qemu->qmp)
        rc = take_events(qemu, err);
    else if (!ibx_journal_qemu_lives(qemu->record))
        rc = ibx_error_set(err, -ESRCH, "QEMU (process %d) has ended", (int)qemu->record->pid);
    else
        try_monitor(qemu);
    if (!rc && qemu->qmp && recovered)
        rc = learn(qemu, err);
    if (!rc && qemu->state.now == QEMU_FAILED)
        rc = ibx_error_set(
            err, -EIO,
            ibx_destination_qemu_stuck(qemu)
                ? "QEMU has loaded the VM and cannot run it: see its log; does another process use "
                  "the VM's disks?"
                : "QEMU could not load the device state: see its log");
    if (!rc)
        tell_of_stop(qemu);
    return rc;
}

/* QEMU answers its monitor under that lock. A QEMU that ends is not asked. */
int ibx_destination_qemu_pass(struct destination_qemu *qemu)
{
    return qemu->qmp && !qemu->end[0] ? ask_status(qemu, NULL) : -ENOTCONN;
}

void ibx_destination_qemu_lend(struct destination_qemu *qemu)
{
    close_monitor(qemu);
    qemu->retry_ns = ibx_deadline_in_ms(LENT_MS);
}

void ibx_destination_qemu_lose(struct destination_qemu *qemu, const char *why)
{
    if (!qemu->retry_ns)
        ibx_migration_notify(
            qemu->observer,
            "QEMU (process %d) runs, but its monitor does not answer (%s): continuing without",
            (int)qemu->record->pid, why);
    close_monitor(qemu);
    qemu->retry_ns = ibx_deadline_in_ms(MONITOR_RETRY_MS);
}

static int tell(struct destination_qemu *qemu, const char *command, struct ibx_error *err)
{
    return qemu->qmp
               ? ibx_qmp_execute(qemu->qmp, command, NULL, NULL, ibx_deadline_in_ms(STOP_MS), err)
               : ibx_error_set(err, -ENOTCONN, "its monitor is lost");
}

/* QEMU may answer late, when its main loop has time: it is told only once. */
static int pause_vm(struct destination_qemu *qemu, struct ibx_error *err)
{
    const int rc = tell(qemu, "stop", err);
    return rc ? rc : ask_status(qemu, err);
}

/* QEMU refuses `cont` while it cannot have the VM's disks, for instance because the source's QEMU
 * has taken one back for an export that somebody has begun there. */
static int go_on(struct destination_qemu *qemu, struct ibx_error *err)
{
    const int rc = tell(qemu, "cont", err);
    qemu->cont_ns = rc ? ibx_deadline_in_ms(MONITOR_RETRY_MS) : 0;
    if (!rc && ask_status(qemu, NULL))
        qemu->stale = true; /* the VM was continued; QEMU tells its status later */
    return rc;
}

void ibx_destination_qemu_run(struct destination_qemu *qemu, bool to_run)
{
    struct ibx_error why = {0};
    const bool runs = !strcmp(qemu->status, "running");
    int rc = 0;
    if (to_run && !strcmp(qemu->status, "paused"))
        rc = go_on(qemu, &why);
    else if (!to_run && runs)
        rc = pause_vm(qemu, &why);
    if (rc && runs)
        ibx_migration_notify(qemu->observer,
                             "the VM is here and could not be paused (%s): \"stop\" in QEMU's "
                             "monitor does that",
                             why.message);
    else if (rc)
        ibx_migration_notify(
            qemu->observer,
            "the VM is here and stopped, since it could not be continued (%s): trying again%s",
            why.message, rc == -EREMOTEIO ? "; does another process use its disks?" : "");
}

bool ibx_destination_qemu_stands(struct destination_qemu *qemu)
{
    if (!qemu->cont_ns)
        return false;
    if (ibx_now_ns() >= qemu->cont_ns && !strcmp(qemu->status, "paused"))
        go_on(qemu, NULL);
    if (!strcmp(qemu->status, "paused"))
        return true;
    qemu->cont_ns = 0;
    ibx_migration_notify(qemu->observer, "the VM is \"%s\" now", qemu->status);
    return false;
}

void ibx_destination_qemu_end(struct destination_qemu *qemu)
{
    const struct ibx_record *record = qemu->record;
    const uint64_t deadline = ibx_deadline_in_ms(STOP_MS);
    struct ibx_error why = {0};
    uint64_t started;
    int rc;
    if (qemu->qmp)
        ibx_qmp_execute(qemu->qmp, "quit", NULL, NULL, deadline, NULL);
    while (qemu->qmp && ibx_journal_qemu_lives(record) && ibx_now_ns() < deadline)
        poll(NULL, 0, LOADING_LOOK_MS);
    /* Its main thread waits for a page. No other process may be killed in its place. */
    while ((rc = ibx_process_find_start(record->pid, &started, &why)) && rc != -ESRCH &&
           ibx_now_ns() < deadline)
        poll(NULL, 0, LOADING_LOOK_MS);
    if (!rc && started == record->pid_started && ibx_journal_qemu_lives(record))
        kill(record->pid, SIGKILL);
    else if (rc && rc != -ESRCH)
        ibx_migration_notify(qemu->observer,
                             "QEMU (process %d) was to be ended, but whether it is that process is "
                             "not known (%s): if it is, end it (kill -9 %d)",
                             (int)record->pid, why.message, (int)record->pid);
}

bool ibx_destination_qemu_shut_down(const struct destination_qemu *qemu)
{
    return !strcmp(qemu->end, "guest-shutdown");
}

void ibx_destination_qemu_describe_end(const struct destination_qemu *qemu, char *text, size_t size)
{
    static const struct {
        const char *reason, *what;
    } ends[] = {
        {"guest-shutdown", "its guest has shut it down, and its QEMU (process %d) has ended"},
        {"guest-panic", "its guest panicked, and its QEMU (process %d) has ended"},
        {"guest-watchdog", "its watchdog ended its QEMU (process %d), as that was told to do then"},
        {"guest-watchdog-reset",
         "its watchdog reset it, and its QEMU (process %d), which ends then "
         "(-no-reboot), has ended"},
        {"guest-reset", "its guest restarted it, and its QEMU (process %d), which ends then "
                        "(-no-reboot), has ended"},
        {"host-qmp-system-reset", "a client of its monitor reset it, and its QEMU (process %d), "
                                  "which ends then (-no-reboot), has ended"},
        {"host-qmp-quit", "its QEMU (process %d) was told to quit by a client of its monitor"},
        {"host-signal", "its QEMU (process %d) was ended by a signal, such as SIGTERM"},
        {"host-ui", "the window of its QEMU (process %d) was closed"},
        {IBX_JOURNAL_MIGRATED_ON,
         "another client of QEMU migrated it on, and its QEMU (process %d) was ended then"},
    };
    const char *what = "its QEMU (process %d) is gone";
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (!strcmp(qemu->end, ends[i].reason))
            what = ends[i].what;
    const size_t before = strcspn(what, "%");
    snprintf(text, size, "%.*s%d%s", (int)before, what, (int)qemu->record->pid, what + before + 2);
}

void ibx_destination_qemu_save_ram(struct destination_qemu *qemu)
{
    json_t *how =
        qemu->ram != QEMU_RAM_OMITTED || !qemu->qmp ? NULL : ibx_settings_save_ram(qemu->settings);
    if (!how)
        return;
    ibx_qmp_ahead(qemu->qmp, SET, how, ibx_deadline_in_ms(MONITOR_MS));
    qemu->ram = QEMU_RAM_ASKED;
}

/* A QEMU that refuses is told again when it runs the VM. */
static int save_ram(struct destination_qemu *qemu, struct ibx_error *err)
{
    json_t *how = ibx_settings_save_ram(qemu->settings);
    int rc =
        how ? ibx_qmp_execute(qemu->qmp, SET, how, NULL, ibx_deadline_in_ms(MIGRATION_QMP_MS), err)
            : 0;
    if (!rc)
        qemu->ram = QEMU_RAM_SAVED;
    return rc == -EREMOTEIO ? 0 : rc;
}

int ibx_destination_qemu_check_loaded(struct destination_qemu *qemu, uint64_t hurry_until_ns,
                                      struct ibx_error *err)
{
    struct ibx_vm_progress now;
    ibx_qmp_spin_until(qemu->qmp, hurry_until_ns);
    int rc = save_ram(qemu, err);
    if (!rc)
        rc = ibx_vm_migration(qemu->qmp, &now, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc || strcmp(now.status, "failed"))
        return rc;
    return ibx_error_set(err, -EIO, "QEMU could not load the device state: %s",
                         now.error[0] ? now.error : "see its log");
}

int ibx_destination_qemu_await(struct destination_qemu *qemu, char *status, size_t size,
                               struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(LOADING_MS);
    int rc;
    while (
        !(rc = ibx_vm_status(qemu->qmp, status, size, ibx_deadline_in_ms(MIGRATION_QMP_MS), err)) &&
        !strcmp(status, "inmigrate") && ibx_now_ns() < deadline)
        poll(NULL, 0, LOADING_LOOK_MS);
    return rc;
}

/* The stream had an EOF inside it, so the source is not honest: stream.c holds back an EOF that
 * QEMU writes. */
int ibx_destination_qemu_stop(struct destination_qemu *qemu, struct ibx_error *err)
{
    struct ibx_error silent = {0};
    int rc = ibx_qmp_execute(qemu->qmp, "stop", NULL, NULL, ibx_deadline_in_ms(STOP_MS), &silent);
    return ibx_error_set(err, -EPROTO,
                         "the device state has an EOF inside it, so that QEMU (process %d) ran "
                         "before the commit: it %s%s; end it",
                         (int)qemu->record->pid, rc ? "could not be stopped: " : "was stopped",
                         rc ? silent.message : "");
}

int ibx_destination_qemu_pause(struct destination_qemu *qemu, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(STOP_MS);
    int rc = qemu->qmp ? 0 : ibx_destination_qemu_reach(qemu, deadline, err);
    if (!rc)
        rc = ibx_qmp_execute(qemu->qmp, "stop", NULL, NULL, deadline, err);
    /* It is paused, whether QEMU says so in time or not. */
    if (!rc && ibx_vm_status(qemu->qmp, qemu->status, sizeof(qemu->status), deadline, NULL) &&
        !strcmp(qemu->status, "running"))
        snprintf(qemu->status, sizeof(qemu->status), "paused");
    return rc;
}

int ibx_destination_qemu_set(struct destination_qemu *qemu, const char *folder,
                             struct ibx_record *record, struct ibx_error *err)
{
    struct ibx_settings settings;
    const enum ibx_vm_migration kind =
        qemu->managed ? IBX_VM_MIGRATION_LIBVIRT : IBX_VM_MIGRATION_INCOMING;
    int rc = ibx_vm_settings(qemu->qmp, kind, folder, record, &settings, qemu->observer, err);
    if (rc)
        return rc;
    qemu->settings = json_incref(settings.before);
    rc = ibx_settings_set(qemu->qmp, &settings, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    ibx_settings_fini(&settings);
    return rc;
}

int ibx_destination_qemu_settle(struct destination_qemu *qemu, struct ibx_record *record)
{
    struct ibx_error why = {0};
    if (!qemu->settings)
        return 0;
    if (!qemu->qmp || ibx_now_ns() < qemu->settle_ns)
        return -EAGAIN;
    int rc =
        ibx_vm_settle(qemu->qmp, &qemu->settings, record, ibx_deadline_in_ms(MONITOR_MS), &why);
    if (rc && !qemu->settle_ns && !ibx_qmp_ends(qemu->qmp))
        ibx_migration_notify(
            qemu->observer, "QEMU's migration settings are not put back yet (%s): trying again%s",
            why.message,
            qemu->ram == QEMU_RAM_SAVED ? "" : "; until then a snapshot of the VM may have no RAM");
    qemu->settle_ns = rc ? ibx_deadline_in_ms(MONITOR_RETRY_MS) : 0;
    return rc;
}

int ibx_destination_qemu_leave(struct destination_qemu *qemu, struct ibx_record *record,
                               struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MONITOR_MS);
    int rc = 0;
    if (qemu->settings && !qemu->qmp)
        rc = ibx_destination_qemu_reach(qemu, deadline, err);
    if (!rc)
        rc = ibx_vm_settle(qemu->qmp, &qemu->settings, record, deadline, err);
    close_monitor(qemu);
    return ibx_journal_qemu_lives(qemu->record) ? rc : 0;
}

void ibx_destination_qemu_fini(struct destination_qemu *qemu)
{
    json_decref(qemu->settings);
    qemu->settings = NULL;
    close_monitor(qemu);
}
