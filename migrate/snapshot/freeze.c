/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* QEMU migrates the VM into a stream that contains everything but its RAM (x-ignore-shared).
 * When the stream is complete the VM is stopped ("postmigrate"), its disks are handed over, and
 * its RAM is copied. If this tool is killed before the snapshot is complete, its watchdog
 * continues the VM; afterwards, which it knows by the manifest's name, it does not. */
#include "migrate/snapshot/freeze.h"

#include "common/clock.h"
#include "common/log.h"
#include "migrate/common/common.h"
#include "migrate/common/return_path.h"
#include "migrate/common/vm.h"
#include "migrate/common/watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define STREAM_MS 60000 /* for QEMU to write its state */
#define ENDING_MS 1000  /* in which a QEMU that has closed its monitor ends */
#define LOOK_MS   5

struct freezing {
    struct ibx_state_machine phase; /* enum ibx_freeze_phase */
    struct ibx_qmp *qmp;
    struct ibx_guest_ram ram;
    struct ibx_snapshot_folder folder;
    struct ibx_settings settings;
    struct ibx_vm_undo undo;
    struct ibx_watchdog watchdog;
    struct ibx_freeze_state state;
    uint64_t stop_ns;
    uint64_t started; /* QEMU, as ibx_process_started() */
    bool runs;        /* the VM runs, by QEMU's last event */
    bool sleeps;      /* the guest sleeps (S3), and this QEMU cannot continue a sleeping VM */
    bool made;        /* the folder was made */
    json_t *before;   /* the VM's devices and disks when it was described */
    int ours, theirs; /* the ends of the stream; -1: closed */
    struct migration_signals signals;
    const char *monitor; /* its socket */
    int claim;           /* of ibx_vm_claim(); -1: none */
};

/* ------------------------------------------------------------ device state */

/* Handles the events that QEMU has sent until now. With `begins`: of the migrations that began
 * until QEMU accepted this tool's command, the last one is this tool's. The watchdog is told at
 * once if the guest sleeps, because QEMU would end if it continued the VM. */
static int note_events(struct freezing *f, bool begins, struct ibx_error *err)
{
    const bool slept = f->sleeps;
    int rc = 0;
    for (json_t *event; (event = ibx_qmp_event_next(f->qmp)); json_decref(event)) {
        const char *job = ibx_preflight_block_job(event);
        if (job && !begins && f->phase.now == FREEZE_BEGUN)
            rc = ibx_error_set(err, -EBUSY,
                               "the block job %.64s began while the VM was being frozen: freeze "
                               "it again when that has ended, or end it (job-cancel id=%.64s)",
                               job, job);
        ibx_freeze_phase_note(&f->phase, event, begins);
        if (!begins && f->phase.now >= FREEZE_RESET)
            continue; /* only the VM's state at the stop counts */
        if (ibx_vm_event_is(event, "MIGRATION", "setup")) {
            f->folder.manifest.ran = f->runs;
            f->stop_ns = 0;
        } else if (ibx_vm_event_is(event, "STOP", NULL)) {
            f->runs = false;
            f->stop_ns = ibx_vm_event_ns(event);
        } else if (ibx_vm_event_is(event, "RESUME", NULL)) {
            f->runs = true;
        } else if (ibx_vm_event_is(event, "SUSPEND", NULL)) {
            f->sleeps = ibx_qmp_sleeps_on(ibx_qmp_version(f->qmp));
        } else if (ibx_vm_event_is(event, "WAKEUP", NULL)) {
            f->sleeps = false;
        }
    }
    if (f->sleeps == slept)
        return rc;
    const int told = ibx_watchdog_sleeps(&f->watchdog, f->sleeps, rc ? NULL : err);
    return rc ? rc : told;
}

static int hear(struct freezing *f, struct ibx_error *err)
{
    const int rc = ibx_qmp_pump(f->qmp, err);
    return rc ? rc : note_events(f, false, err);
}

static int check_cancel(struct freezing *f, struct ibx_error *err)
{
    return ibx_freeze_check_cancel(f->ram.pid, f->started, err);
}

static int hear_meanwhile(void *context, struct ibx_error *err)
{
    const int rc = hear(context, err);
    return rc ? rc : check_cancel(context, err);
}

/* For a block job that has begun (-EBUSY), or a signal, the stream ends at once: mostly QEMU has
 * not stopped the VM yet. When it has, it has its lock while it writes, and would not hear that it
 * is to cancel. */
static int read_state(struct freezing *f, struct ibx_error *err)
{
    const struct ibx_freeze_source source = {f->ours, ibx_qmp_fd(f->qmp), hear_meanwhile, f,
                                             f->signals.fd};
    const int rc = ibx_freeze_state_read(&f->state, &source, STREAM_MS, err);
    if (rc == -EBUSY || rc == -ECANCELED)
        shutdown(f->ours, SHUT_RDWR);
    return rc;
}

/* Sets when the VM stopped: now, if QEMU sent no STOP because the VM was paused before. */
static int note_stop(struct freezing *f, struct ibx_error *err)
{
    const uint64_t now = ibx_now_ns();
    const int rc = hear(f, err);
    if (!f->stop_ns)
        f->stop_ns = now;
    return rc;
}

static int await_end(struct freezing *f, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    struct ibx_vm_progress now;
    for (;;) {
        int rc = ibx_vm_migration(f->qmp, &now, deadline, err);
        if (!rc)
            rc = note_events(f, false, err);
        if (rc)
            return rc;
        if (!strcmp(now.status, "completed"))
            return 0;
        if (ibx_vm_migration_ended(now.status) || ibx_now_ns() >= deadline)
            return ibx_error_set(err, -EIO, "QEMU's migration into the snapshot is \"%s\"%s%s",
                                 now.status, *now.error ? ": " : "", now.error);
        usleep(1000);
    }
}

/* QEMU has begun the migration: what the VM is now, running or paused, has to be restored at the
 * end. Another client may have paused or continued it since the checks. */
static int note_begun(struct freezing *f, struct ibx_error *err)
{
    const bool ran = f->undo.was_running;
    int rc = note_events(f, true, err);
    f->undo.was_running = f->folder.manifest.ran;
    if (!rc)
        rc = ibx_watchdog_runs(&f->watchdog, f->undo.was_running, err);
    if (!rc && f->undo.was_running && !ran) /* the disks of a paused VM were not checked */
        rc = ibx_error_set(err, -EBUSY,
                           "another client of QEMU has continued the VM, which was paused, while "
                           "it was being frozen: freeze it again");
    return rc;
}

/* Checks once more that the guest does not sleep. Asks for the status rather than read events,
 * which are read only once QEMU has begun: another client's migration that they may report must not
 * be undone. */
static int check_awake(struct freezing *f, struct ibx_error *err)
{
    char status[IBX_MIGRATE_STATUS];
    int rc =
        ibx_vm_status(f->qmp, status, sizeof(status), ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc || strcmp(status, "suspended") != 0 || !ibx_qmp_sleeps_on(ibx_qmp_version(f->qmp)))
        return rc;
    return ibx_error_set(err, -EBUSY,
                         "the VM's guest has gone to sleep (S3) while it was being frozen, and "
                         "this QEMU could not continue it then: wake it (system_wakeup in QEMU's "
                         "monitor) and freeze it again");
}

/* QEMU refuses other settings while its migration is under way. Without x-ignore-shared, for
 * instance, RAM would be in the state, and no child would load it. */
static int check_settings(struct freezing *f, struct ibx_error *err)
{
    struct ibx_settings now;
    int rc = ibx_settings_plan(f->qmp, &now, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc)
        return rc;
    const char *name = ibx_settings_first_change(&now, NULL);
    if (name)
        rc = ibx_error_set(err, -EBUSY,
                           "another client of QEMU has changed its migration settings (%s) while "
                           "the VM was being frozen: freeze it again when nobody does that",
                           name);
    ibx_settings_fini(&now);
    return rc;
}

/* Block jobs and exports may have begun since the checks. QEMU, and so the VM, would end by an
 * assertion if it handed over a disk that a job writes to, and the client of an export may write
 * what the children do not expect. */
static int check_users(struct freezing *f, struct ibx_error *err)
{
    struct ibx_blockers blockers = {0};
    const int rc =
        ibx_preflight_block_users(f->qmp, &blockers, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    return rc || !blockers.count ? rc
                                 : ibx_migration_refused("the VM cannot be frozen", &blockers, err);
}

static int save_state(struct freezing *f, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = ibx_watchdog_settings(&f->watchdog, f->settings.before, err);
    ibx_settings_set_aside_ram(&f->settings); /* ibx_vm_migrate_without_ram() does that */
    if (!rc)
        rc = ibx_vm_not_begun(ibx_settings_set(f->qmp, &f->settings, deadline, err), err);
    if (rc)
        return rc;
    f->undo.before = json_incref(f->settings.before);
    rc = check_awake(f, err);
    if (!rc)
        rc = check_users(f, err);
    if (rc)
        return rc;
    f->undo.touched = true;
    rc = ibx_watchdog_touched(&f->watchdog, err);
    ibx_migration_stop_at("freeze", "starting");
    if (!rc)
        rc = ibx_vm_migrate_without_ram(f->qmp, f->undo.before, f->theirs, deadline, err);
    if (rc == -EREMOTEIO) { /* QEMU refused: there may be another client's migration, not ours */
        f->undo.touched = false;
        ibx_watchdog_untouched(&f->watchdog);
        ibx_vm_not_begun_since(rc, f->qmp, f->undo.before, err);
    }
    close(f->theirs);
    f->theirs = -1;
    ibx_migration_stop_at("freeze", "begun");
    if (!rc)
        rc = note_begun(f, err);
    if (!rc)
        rc = check_settings(f, err);
    if (!rc) /* one that began just before QEMU was told to migrate */
        rc = check_users(f, err);
    if (!rc)
        rc = read_state(f, err);
    if (!rc)
        rc = await_end(f, err);
    ibx_migration_stop_at("freeze", "stopped");
    if (rc)
        return rc;
    /* Marks this migration, because the rest takes so long that another client may begin the next.
     */
    ibx_return_path_mark(f->qmp, f->ours, deadline);
    f->undo.marked = true;
    rc = ibx_watchdog_marked(&f->watchdog, err);
    if (!rc)
        rc = note_stop(f, err);
    if (!rc && !f->state.length)
        rc = ibx_error_set(err, -EIO, "QEMU wrote no state");
    return rc;
}

/* ------------------------------------------------------------ RAM */

/* A signal ends the copy; but if QEMU has ended, this is the only one, and it is made anew. */
static int copy_block(struct freezing *f, unsigned i, struct ibx_error *err)
{
    const struct ibx_guest_block *block = &f->ram.blocks[i];
    int rc = ibx_snapshot_copy_block(&f->ram, block, f->folder.fds[i],
                                     ibx_migration_signals_pending, err);
    if (rc != -EINTR)
        return rc;
    rc = check_cancel(f, err);
    return rc ? rc : ibx_snapshot_copy_block(&f->ram, block, f->folder.fds[i], NULL, err);
}

static int fill_folder(struct freezing *f, struct ibx_error *err)
{
    struct ibx_snapshot_manifest *m = &f->folder.manifest;
    m->state_bytes = f->state.length;
    int rc = ibx_snapshot_folder_files(&f->folder, IBX_SNAPSHOT_FILES_MAKE, err);
    if (rc)
        return rc;
    for (unsigned i = 0; !rc && i < m->ram_count; i++)
        rc = copy_block(f, i, err);
    if (!rc)
        rc = ibx_snapshot_put(f->folder.fds[m->ram_count], f->state.bytes, f->state.length, 0,
                              "the device state", err);
    return rc && rc != -ECANCELED ? ibx_error_prefix(err, rc, "%s", f->folder.path) : rc;
}

static int hash_all(struct freezing *f, const struct ibx_page_map *map, struct ibx_error *err)
{
    struct ibx_snapshot_manifest *m = &f->folder.manifest;
    struct ibx_snapshot_table table;
    int rc = ibx_snapshot_table_init(m, &table, err);
    if (rc)
        return rc;
    rc = ibx_snapshot_table_fill(&f->folder, map, &table, ibx_migration_signals_pending, err);
    if (rc == -EINTR && !(rc = check_cancel(f, err)))
        rc = ibx_snapshot_table_fill(&f->folder, map, &table, NULL, err);
    if (!rc)
        rc = ibx_snapshot_table_digest(m, &table, m->digest, err);
    if (!rc)
        rc = ibx_snapshot_table_write(&f->folder, &table, err);
    ibx_snapshot_table_fini(&table);
    return rc;
}

/* A folder with a manifest is a snapshot, also if the name could not be synchronized: then the name
 * is removed before the VM is continued. */
static int write_manifest(struct freezing *f, struct ibx_error *err)
{
    struct ibx_error why = {0};
    const int rc = ibx_snapshot_folder_seal(&f->folder, &why);
    if (!rc)
        return 0;
    if (!ibx_snapshot_folder_unseal(&f->folder) || !ibx_snapshot_folder_is_whole_now(&f->folder))
        return ibx_error_set(err, rc, "%s", why.message);
    ibx_log(IBX_LOG_WARN,
            "%.300s; and it cannot be removed: the snapshot is whole, but a loss of power may "
            "take it: see to that disk",
            why.message);
    return 0;
}

static int seal(struct freezing *f, struct ibx_freeze_result *result, struct ibx_error *err)
{
    struct ibx_page_map map;
    int rc = ibx_snapshot_folder_map(&f->folder, &map, err);
    if (rc)
        return rc;
    rc = hash_all(f, &map, err);
    result->ram_bytes = f->ram.bytes;
    result->data_bytes = map.data_pages * IBX_SNAPSHOT_PAGE;
    result->state_bytes = f->state.length;
    ibx_page_map_fini(&map);
    if (!rc) /* a snapshot that its manifest calls complete survives a loss of power */
        rc = ibx_snapshot_folder_sync(&f->folder, err);
    if (!rc)
        rc = check_cancel(f, err);
    if (!rc)
        rc = write_manifest(f, err);
    if (!rc)
        ibx_snapshot_mark_verified(&f->folder);
    return rc;
}

/* ------------------------------------------------------------ all of it */

static int describe(struct freezing *f, struct ibx_error *err)
{
    struct ibx_snapshot_manifest *m = &f->folder.manifest;
    m->complete = true;
    m->hashed = true;
    m->ran = f->undo.was_running;
    m->version = f->ram.version;
    snprintf(m->machine, sizeof(m->machine), "%s", f->ram.machine);
    snprintf(m->uuid, sizeof(m->uuid), "%s", f->ram.uuid);
    snprintf(m->name, sizeof(m->name), "%s", f->ram.name);
    m->ram_count = (unsigned)f->ram.count;
    for (size_t i = 0; i < f->ram.count; i++) {
        memcpy(m->ram[i].id, f->ram.blocks[i].id, sizeof(m->ram[i].id));
        m->ram[i].size = f->ram.blocks[i].size;
    }
    if (getrandom(m->id, sizeof(m->id), 0) != sizeof(m->id))
        return ibx_error_set(err, -EIO, "there are no random numbers for the snapshot's id");
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = ibx_preflight_compared(f->qmp, true, &f->before, deadline, err);
    return rc ? rc : ibx_describe(f->qmp, &f->ram, &m->description, deadline, err);
}

/* After the stop: checks that the VM's devices and disks are still those of the description, with
 * which children are compared, and that no writable disk has been added. */
static int check_described(struct freezing *f, struct ibx_error *err)
{
    json_t *now;
    int rc = ibx_preflight_compared(f->qmp, true, &now, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc)
        return rc;
    if (!json_equal(now, f->before))
        rc = ibx_error_set(err, -EBUSY,
                           "another client of QEMU, or the guest, has plugged a device in or out, "
                           "or the image of a disk was changed, while the VM was being frozen: "
                           "freeze it again");
    json_decref(now);
    return rc;
}

/* Checks that the VM still stands still. A QEMU that does not answer is left to go_on(). */
static int check_still(struct freezing *f, struct ibx_error *err)
{
    char status[IBX_MIGRATE_STATUS];
    ibx_vm_status(f->qmp, status, sizeof(status), ibx_deadline_in_ms(MIGRATION_QMP_MS), NULL);
    const int rc = note_events(f, false, err);
    if (rc || f->phase.now == FREEZE_STOPPED)
        return rc;
    if (f->phase.now == FREEZE_RESET)
        return ibx_error_set(err, -EBUSY,
                             "the guest has reset the VM just when it was stopped: the copy is of "
                             "no use and was removed; freeze it again");
    return ibx_error_set(err, -EBUSY,
                         "another client of QEMU has continued, reset or migrated the VM while its "
                         "memory was copied: the copy is of no use and was removed, and the VM is "
                         "left to that client; freeze it again where it runs");
}

static int watch(struct freezing *f, const char *qmp, struct ibx_error *err)
{
    struct ibx_record record = {.pid = f->ram.pid, .pid_started = f->started};
    snprintf(record.name, sizeof(record.name), "%s", f->ram.name);
    if (snprintf(record.qmp, sizeof(record.qmp), "%s", qmp) >= (int)sizeof(record.qmp))
        return ibx_error_set(err, -ENAMETOOLONG, "%s: too long for the path of a monitor", qmp);
    /* Not that descriptor of the folder which holds its lock. */
    const int folder = openat(f->folder.at, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return ibx_error_set(err, -errno, "%s cannot be opened again: %s", f->folder.path,
                             strerror(errno));
    const struct ibx_watchdog_terms terms = {.record = &record,
                                             .vm = &f->undo,
                                             .qmp = f->qmp,
                                             .lock_fd = -1,
                                             .claim_fd = f->claim,
                                             .seal = IBX_SNAPSHOT_SEAL,
                                             .sealed_at = folder};
    const int rc = ibx_watchdog_start(&f->watchdog, &terms, err);
    close(folder);
    return rc;
}

static int search(void *context, pid_t *qemu, struct ibx_error *err)
{
    struct freezing *f = context;
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = ibx_qmp_connect_unless_busy(f->monitor, deadline, &f->qmp, err);
    if (!rc)
        rc = ibx_guest_ram_find(f->qmp, false, &f->ram, deadline, err);
    *qemu = f->ram.pid;
    return rc;
}

static void let_go(void *context)
{
    struct freezing *f = context;
    ibx_qmp_close(f->qmp);
    f->qmp = NULL;
    ibx_guest_ram_fini(&f->ram);
}

/* Signals end this tool while it only looks; then they are held back, so that none ends it while
 * the VM stands still. */
static int prepare(struct freezing *f, const struct ibx_freeze_options *o, struct ibx_error *err)
{
    const struct ibx_vm_search how = {search, let_go, f, o->qmp};
    struct ibx_error claimed;
    f->monitor = o->qmp;
    int rc = ibx_vm_find_and_claim(&how, &f->claim, &claimed, err);
    if (!rc && claimed.code)
        rc = ibx_error_set(err, claimed.code, "%s", claimed.message);
    if (!rc)
        rc = ibx_freeze_check(f->qmp, &f->ram, o->after, err);
    if (rc)
        return rc;
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    f->undo.was_running = f->runs = ibx_vm_lives(f->ram.status);
    rc = describe(f, err);
    if (!rc)
        rc = ibx_settings_plan(f->qmp, &f->settings, deadline, err);
    if (!rc && ibx_settings_left_on(&f->settings))
        ibx_log(IBX_LOG_WARN, "%s", IBX_SETTINGS_LEFT_ON);
    if (!rc)
        rc = ibx_migration_signals_open(&f->signals, err);
    if (!rc)
        rc = ibx_snapshot_folder_make(o->path, &f->folder, err);
    f->made = !rc;
    if (!rc)
        rc = ibx_vm_stream(&f->ours, &f->theirs, err);
    if (rc)
        return rc;
    ibx_vm_stream_narrow(f->theirs);
    f->undo.stream = ibx_return_path_name(f->theirs);
    rc = ibx_process_find_start(f->ram.pid, &f->started, err);
    return rc ? rc : watch(f, o->qmp, err);
}

/* Whether a QEMU that did not answer, or whose monitor another client has closed, has ended. A QEMU
 * that has crashed keeps its process number until its core dump is written. */
static bool qemu_has_ended(const struct freezing *f)
{
    const uint64_t deadline = ibx_deadline_in_ms(ENDING_MS);
    bool lives;
    if (ibx_proc_dumps_core(f->ram.pid))
        return true;
    while ((lives = f->started && !ibx_process_ended(f->ram.pid, f->started)) &&
           ibx_now_ns() < deadline)
        poll(NULL, 0, LOOK_MS);
    return !lives;
}

/* After the VM was frozen: continues it if it has to run, and restores QEMU's settings. If its QEMU
 * has ended, the VM exists only in the snapshot, which is finished all the same. */
static int go_on(struct freezing *f, enum ibx_freeze_after after, struct ibx_freeze_result *result,
                 struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    f->undo.was_running = f->undo.was_running && after == IBX_FREEZE_RESUME && !f->sleeps;
    if (f->undo.was_running)
        ibx_state_move(&f->phase, FREEZE_CONTINUED);
    int rc = ibx_vm_stay(f->qmp, &f->undo, deadline, err);
    if (rc && qemu_has_ended(f)) { /* whatever error came first */
        ibx_log(IBX_LOG_WARN,
                "QEMU (process %d) has ended while the VM's memory was copied: the VM is only in "
                "the snapshot now, go on with a clone of that",
                (int)f->ram.pid);
        f->undo.was_running = f->sleeps = false;
        rc = 0;
    }
    result->runs = !rc && f->undo.was_running;
    result->stopped_ns = ibx_now_ns() - f->stop_ns;
    if (result->runs) /* a VM that stays stopped keeps its watchdog until the snapshot is whole */
        ibx_watchdog_release(&f->watchdog);
    return rc;
}

/* Reports that the frozen VM's guest went to sleep when QEMU was about to stop it. QEMU would fail
 * an assertion if it continued this VM, but a child of the snapshot can be continued. */
static void say_sleep(const struct freezing *f)
{
    if (f->sleeps)
        ibx_log(
            IBX_LOG_WARN,
            "the VM's guest went to sleep (S3) in the moment when it was stopped, and this QEMU "
            "would end if it continued it: it is left stopped; end it (quit in its monitor) and "
            "go on with a clone of the snapshot");
}

/* After a failure: adds to the error that the guest sleeps, so that the VM was not continued. */
static void add_sleep(struct freezing *f, struct ibx_error *err)
{
    char status[IBX_MIGRATE_STATUS];
    const struct ibx_error none = {0}, first = err ? *err : none;
    if (f->sleeps &&
        !ibx_vm_status(f->qmp, status, sizeof(status), ibx_deadline_in_ms(MIGRATION_QMP_MS), NULL))
        ibx_error_set(err, first.code, "%.300s; and the VM is left as it is: %s", first.message,
                      ibx_vm_asleep(status));
}

static void not_undone(struct freezing *f, const struct ibx_error *first, bool taken,
                       const struct ibx_error *why, struct ibx_error *err)
{
    if (qemu_has_ended(f)) {
        const char *start = taken ? ": start the VM" : ", and the VM with it: start it";
        const char *unless = taken ? IBX_JOURNAL_UNLESS_ON : IBX_JOURNAL_UNLESS_SAVED;
        ibx_error_set(err, first->code,
                      "%.300s; and QEMU (process %d) has ended%s from its disks%s", first->message,
                      (int)f->ram.pid, start, unless);
        ibx_watchdog_release(&f->watchdog);
        return;
    }
    const bool settings = taken || why->code == -EAGAIN; /* only they are left */
    ibx_error_set(err, first->code, "%.300s; and %s: %.300s%s%s", first->message,
                  settings ? IBX_VM_SETTINGS_STAY : "the VM could not be continued", why->message,
                  taken ? "" : "; the process that is left behind tries again for a minute",
                  settings ? "" : ", otherwise cont in QEMU's monitor lets it run");
    if (!taken)
        ibx_watchdog_leave(&f->watchdog);
}

/* After a failure: restores the VM; if this tool cannot, its watchdog tries. A VM that another
 * client has taken, or that has gone on already (`went_on`), is left alone. */
static void undo(struct freezing *f, bool went_on, struct ibx_error *err)
{
    struct ibx_error why = {0}, first = err ? *err : why;
    if (f->phase.now == FREEZE_STOPPED) { /* events may show that the VM was taken meanwhile */
        ibx_qmp_pump(f->qmp, NULL);
        note_events(f, false, NULL);
    }
    const bool taken = f->phase.now == FREEZE_TAKEN;
    f->undo.was_running = f->folder.manifest.ran && !f->sleeps && !taken;
    if (taken)
        ibx_watchdog_runs(&f->watchdog, false, NULL);
    f->undo.touched = f->undo.touched || (f->stop_ns && !went_on);
    if ((f->undo.touched || f->undo.before) &&
        ibx_vm_stay(f->qmp, &f->undo, ibx_deadline_in_ms(MIGRATION_QMP_MS), &why))
        not_undone(f, &first, taken, &why, err);
    else if (first.code == -ECANCELED && !f->sleeps && !taken)
        ibx_error_set(err, first.code, "%s, and the VM %s", first.message,
                      f->undo.was_running || went_on ? "runs on" : "is as it was");
    else
        add_sleep(f, err);
    if (f->made)
        ibx_snapshot_folder_remove(&f->folder);
}

/* Whether another client has taken the VM since its memory was copied. By its status, since the
 * code that restores settings has read some of the events. */
static bool is_taken(struct freezing *f, bool *runs)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    char status[IBX_MIGRATE_STATUS];
    *runs = false;
    if (ibx_vm_status(f->qmp, status, sizeof(status), deadline, NULL))
        return false;
    *runs = !strcmp(status, "running");
    return (strcmp(status, "postmigrate") != 0 && strcmp(status, "finish-migrate") != 0) ||
           !ibx_return_path_marked(f->qmp, f->ours, deadline);
}

/* The snapshot is whole, and the VM has to stay stopped, or its QEMU has to end: not if another
 * client has taken the VM. */
static int end(struct freezing *f, enum ibx_freeze_after after, struct ibx_freeze_result *result,
               struct ibx_error *err)
{
    static const char why[] = "another client of QEMU has continued, reset or migrated the VM "
                              "since its memory was copied";
    const bool taken = is_taken(f, &result->runs);
    if (taken && after == IBX_FREEZE_QUIT)
        return ibx_error_set(err, -EBUSY,
                             "%s, and its QEMU (process %d) is left to that: the snapshot in %s is "
                             "whole, as of the VM's stop",
                             why, (int)f->ram.pid, f->folder.path);
    if (taken)
        ibx_log(IBX_LOG_WARN, "%s: what it writes to its disks its children have, too", why);
    return after == IBX_FREEZE_QUIT ? ibx_vm_quit(f->qmp, err) : 0;
}

/* All up to the whole snapshot. What fails is undone. */
static int make(struct freezing *f, const struct ibx_freeze_options *o,
                struct ibx_freeze_result *result, struct ibx_error *err)
{
    int rc = prepare(f, o, err);
    ibx_migration_stop_at("freeze", "prepared");
    if (!rc)
        rc = check_cancel(f, err);
    if (!rc)
        rc = save_state(f, err);
    ibx_migration_stop_at("freeze", "saved");
    if (!rc)
        rc = check_described(f, err);
    if (!rc)
        rc = check_users(f, err);
    if (!rc)
        rc = fill_folder(f, err);
    if (!rc)
        rc = check_still(f, err);
    ibx_migration_stop_at("freeze", "copied");
    if (!rc)
        rc = go_on(f, o->after, result, err);
    ibx_migration_stop_at("freeze", "continued");
    if (!rc)
        rc = seal(f, result, err);
    ibx_migration_stop_at("freeze", "sealed");
    if (rc)
        undo(f, result->runs, err);
    return rc;
}

int ibx_snapshot_freeze(const struct ibx_freeze_options *options, struct ibx_freeze_result *result,
                        struct ibx_error *err)
{
    struct freezing *f = calloc(1, sizeof(*f));
    struct ibx_freeze_result got = {.runs = false};
    if (!f)
        return ibx_error_set(err, -ENOMEM, "no memory for a snapshot");
    f->watchdog.fd = f->ours = f->theirs = f->claim = f->signals.fd = -1;
    f->undo.completes = true;
    ibx_freeze_phase_begin(&f->phase);
    int rc = make(f, options, &got, err);
    const bool whole = !rc;
    ibx_watchdog_release(&f->watchdog);
    if (!rc && options->after != IBX_FREEZE_QUIT)
        say_sleep(f);
    if (!rc && options->after != IBX_FREEZE_RESUME)
        rc = end(f, options->after, &got, err);
    if (whole)
        ibx_return_path_unmark(f->qmp, ibx_deadline_in_ms(MIGRATION_QMP_MS));
    if (!rc) {
        *result = got;
        result->tpm = ibx_description_has_tpm(f->folder.manifest.description);
    }
    if (options->over)
        options->over();
    ibx_migration_signals_take(&f->signals, true); /* too late, or heeded */
    ibx_migration_signals_close(&f->signals);
    if (f->ours >= 0)
        close(f->ours);
    if (f->theirs >= 0)
        close(f->theirs);
    if (f->claim >= 0)
        close(f->claim);
    json_decref(f->undo.before);
    json_decref(f->before);
    ibx_settings_fini(&f->settings);
    ibx_snapshot_folder_close(&f->folder);
    ibx_guest_ram_fini(&f->ram);
    ibx_qmp_close(f->qmp);
    free(f->state.bytes);
    free(f);
    return rc;
}
