/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/vm.h"
#include "migrate/destination/destination.h"
#include "migrate/preflight/preflight.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <string.h>

#define MONITOR_MS       500  /* for the monitor of a VM that runs: its loop has other work */
#define MONITOR_RETRY_MS 1000 /* between two tries */
#define STOP_MS          2000
#define LOADING_MS       5000 /* for QEMU to notice that its stream has ended */
#define LOADING_LOOK_MS  20

static const struct ibx_state qemu_states[] = {
    [QEMU_LOADING] = {"loading", IBX_TO(QEMU_RUNNING) | IBX_TO(QEMU_FAILED), IBX_STATE_INITIAL},
    [QEMU_RUNNING] = {"running", 0, IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [QEMU_FAILED] = {"failed", IBX_TO(QEMU_RUNNING), IBX_STATE_FINAL},
};
static const struct ibx_state_table qemu_table = IBX_STATE_TABLE("destination qemu", qemu_states);

void ibx_destination_qemu_init(struct destination_qemu *qemu, const char *path,
                               const struct ibx_journal *record,
                               const struct ibx_migrate_observer *observer)
{
    *qemu = (struct destination_qemu){.path = path, .record = record, .observer = observer};
    ibx_state_begin(&qemu->state, &qemu_table, QEMU_LOADING);
}

static void close_monitor(struct destination_qemu *qemu)
{
    ibx_qmp_close(qemu->qmp);
    qemu->qmp = NULL;
}

static void now_is(struct destination_qemu *qemu, enum destination_qemu_state state)
{
    if (ibx_state_allows(&qemu_table, qemu->state.now, state))
        ibx_state_move(&qemu->state, state);
}

/* A VM that was paused at the source does not resume here either. */
static int ask_status(struct destination_qemu *qemu, struct ibx_error *err)
{
    char status[32];
    if (qemu->state.now == QEMU_RUNNING)
        return 0;
    int rc = ibx_vm_status(qemu->qmp, status, sizeof(status), ibx_deadline_in_ms(MONITOR_MS), err);
    if (!rc && strcmp(status, "inmigrate"))
        now_is(qemu, QEMU_RUNNING);
    return rc;
}

static int take_events(struct destination_qemu *qemu, struct ibx_error *err)
{
    json_t *event;
    int rc = ibx_qmp_pump(qemu->qmp, err);
    while ((event = ibx_qmp_event_next(qemu->qmp))) {
        if (ibx_vm_event_is(event, "RESUME", NULL))
            now_is(qemu, QEMU_RUNNING);
        else if (!rc && ibx_vm_event_is(event, "MIGRATION", "completed"))
            rc = ask_status(qemu, err);
        else if (ibx_vm_event_is(event, "MIGRATION", "failed"))
            now_is(qemu, QEMU_FAILED);
        json_decref(event);
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
}

/* After recover, where the record does not tell whether the VM runs. A QEMU that still waits for
 * its state has lost that with the earlier tool, and fails as soon as it notices. */
static int learn(struct destination_qemu *qemu, struct ibx_error *err)
{
    int rc = ask_status(qemu, err);
    if (rc || qemu->state.now != QEMU_LOADING)
        return rc;
    if (!qemu->inmigrate_ns)
        qemu->inmigrate_ns = ibx_now_ns();
    if (ibx_now_ns() - qemu->inmigrate_ns > LOADING_MS * IBX_NS_PER_MS)
        now_is(qemu, QEMU_FAILED);
    return 0;
}

int ibx_destination_qemu_check(struct destination_qemu *qemu, bool recovered, struct ibx_error *err)
{
    int rc = 0;
    if (qemu->qmp)
        rc = take_events(qemu, err);
    else if (!destination_qemu_lives(qemu->record))
        rc = ibx_error_set(err, -ESRCH, "QEMU (process %d) has ended", (int)qemu->record->pid);
    else
        try_monitor(qemu);
    if (!rc && qemu->qmp && recovered)
        rc = learn(qemu, err);
    if (!rc && qemu->state.now == QEMU_FAILED)
        rc = ibx_error_set(err, -EIO, "QEMU could not load the device state: see its log");
    return rc;
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

int ibx_destination_qemu_has_loaded(struct destination_qemu *qemu, uint64_t hurry_until_ns,
                                    struct ibx_error *err)
{
    char status[32], why[256];
    ibx_qmp_spin_until(qemu->qmp, hurry_until_ns);
    int rc = ibx_vm_migration(qemu->qmp, status, sizeof(status), why, sizeof(why),
                              ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc || strcmp(status, "failed"))
        return rc;
    return ibx_error_set(err, -EIO, "QEMU could not load the device state: %s",
                         why[0] ? why : "see its log");
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
    return ibx_error_set(
        err, -EPROTO,
        "the device state has an EOF inside it, and QEMU (process %d) ran before the "
        "commit: it %s%s; end it",
        (int)qemu->record->pid, rc ? "could not be stopped: " : "was stopped",
        rc ? silent.message : "");
}

int ibx_destination_qemu_pause(struct destination_qemu *qemu, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(STOP_MS);
    int rc = qemu->qmp ? 0 : ibx_destination_qemu_reach(qemu, deadline, err);
    return rc ? rc : ibx_qmp_execute(qemu->qmp, "stop", NULL, NULL, deadline, err);
}

int ibx_destination_qemu_set(struct destination_qemu *qemu, const char *folder,
                             struct ibx_journal *record, struct ibx_error *err)
{
    struct ibx_settings settings;
    int rc = ibx_vm_settings(qemu->qmp, folder, record, &settings, qemu->observer, err);
    if (rc)
        return rc;
    qemu->settings = json_incref(settings.before);
    rc = ibx_settings_set(qemu->qmp, &settings, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    ibx_settings_fini(&settings);
    return rc;
}

int ibx_destination_qemu_settle(struct destination_qemu *qemu, struct ibx_journal *record)
{
    struct ibx_error why = {0};
    if (!qemu->settings)
        return 0;
    if (!qemu->qmp || ibx_now_ns() < qemu->settle_ns)
        return -EAGAIN;
    int rc =
        ibx_vm_settle(qemu->qmp, &qemu->settings, record, ibx_deadline_in_ms(MONITOR_MS), &why);
    if (rc && !qemu->settle_ns)
        ibx_migration_notify(qemu->observer,
                             "QEMU's migration settings are not put back yet (%s): trying again; "
                             "until then a snapshot of the VM would have no RAM",
                             why.message);
    qemu->settle_ns = rc ? ibx_deadline_in_ms(MONITOR_RETRY_MS) : 0;
    return rc;
}

int ibx_destination_qemu_leave(struct destination_qemu *qemu, struct ibx_journal *record,
                               struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MONITOR_MS);
    int rc = 0;
    if (qemu->settings && !qemu->qmp)
        rc = ibx_destination_qemu_reach(qemu, deadline, err);
    if (!rc)
        rc = ibx_vm_settle(qemu->qmp, &qemu->settings, record, deadline, err);
    close_monitor(qemu);
    return destination_qemu_lives(qemu->record) ? rc : 0;
}

void ibx_destination_qemu_fini(struct destination_qemu *qemu)
{
    json_decref(qemu->settings);
    qemu->settings = NULL;
    close_monitor(qemu);
}
