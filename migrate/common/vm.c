/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/return_path.h"
#include "migrate/common/vm.h"

#include "migrate/common/common.h"
#include "migrate/common/libvirt.h"

#include "migrate/preflight/preflight.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define STREAM_NAME "ibx-state"
#define STREAM_WIDE (1 << 20) /* bytes; QEMU writes 32 KiB at a time */
#define LOOK_MS     5         /* between two checks of a migration that ends */
#define ANSWER_MS   1000      /* for the last of them */
#define CLOSING_MS  1000      /* for QEMU to end a migration whose stream it has closed */
#define LIBVIRT_MS  10000     /* for a migration that libvirt has begun to fail */
#define CLEANING_MS 5000      /* for QEMU to end the thread of a migration that is over */

static void copy_text(char *to, size_t size, json_t *from)
{
    const char *text = json_string_value(from);
    snprintf(to, size, "%s", text ? text : "");
}

const char *ibx_vm_asleep(const char *status)
{
    return !strcmp(status, "suspended")
               ? "its guest sleeps (S3): system_wakeup in QEMU's monitor wakes it"
               : "its guest sleeps (S3), and this QEMU would end if it continued it: end it (quit "
                 "in its monitor), and start the VM from its disks";
}

int ibx_vm_status(struct ibx_qmp *qmp, char *status, size_t size, uint64_t deadline_ns,
                  struct ibx_error *err)
{
    json_t *result;
    int rc = ibx_qmp_execute(qmp, "query-status", NULL, &result, deadline_ns, err);
    if (rc)
        return rc;
    copy_text(status, size, json_object_get(result, "status"));
    json_decref(result);
    return 0;
}

bool ibx_vm_lives(const char *status)
{
    return !strcmp(status, "running") || !strcmp(status, "suspended");
}

int ibx_vm_migration(struct ibx_qmp *qmp, struct ibx_vm_progress *progress, uint64_t deadline_ns,
                     struct ibx_error *err)
{
    json_t *result;
    int rc = ibx_qmp_execute(qmp, "query-migrate", NULL, &result, deadline_ns, err);
    if (rc)
        return rc;
    copy_text(progress->status, sizeof(progress->status), json_object_get(result, "status"));
    if (!progress->status[0])
        snprintf(progress->status, sizeof(progress->status), "none");
    copy_text(progress->error, sizeof(progress->error), json_object_get(result, "error-desc"));
    json_decref(result);
    return 0;
}

static void set_room(int theirs, int bytes)
{
    setsockopt(theirs, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

void ibx_vm_stream_narrow(int theirs)
{
    set_room(theirs, IBX_VM_STREAM_NARROW);
}

void ibx_vm_stream_widen(int theirs)
{
    set_room(theirs, STREAM_WIDE);
}

int ibx_vm_stream(int *ours, int *theirs, struct ibx_error *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return ibx_error_set(err, -errno, "no socket for the device state: %s", strerror(errno));
    ibx_vm_stream_widen(pair[1]);
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    *ours = pair[0];
    *theirs = pair[1];
    return 0;
}

/* Whether query-yank lists a migration. QEMU before 6.0 does not have that command. */
static int check_yank(struct ibx_qmp *qmp, bool *any, uint64_t deadline_ns, struct ibx_error *err)
{
    json_t *instances, *instance;
    size_t i;
    *any = false;
    int rc = ibx_qmp_execute(qmp, "query-yank", NULL, &instances, deadline_ns, err);
    if (rc)
        return rc == -EOPNOTSUPP ? 0 : rc;
    json_array_foreach(instances, i, instance)
    {
        const char *type = json_string_value(json_object_get(instance, "type"));
        *any |= type && !strcmp(type, "migration");
    }
    json_decref(instances);
    return 0;
}

/* QEMU reports a migration as ended before it has ended its thread, and accepts the next one
 * meanwhile: QEMU 7.2 then ends by SIGSEGV. The migration's entry in query-yank is removed last. */
static int await_thread(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    const uint64_t enough = ibx_deadline_in_ms(CLEANING_MS);
    struct ibx_vm_progress now;
    for (;;) {
        bool any;
        int rc = check_yank(qmp, &any, deadline_ns, err);
        if (rc || !any)
            return rc;
        rc = ibx_vm_migration(qmp, &now, deadline_ns, err);
        if (rc)
            return rc;
        if (!ibx_vm_migration_ended(now.status))
            return ibx_error_set(err, -EREMOTEIO,
                                 "QEMU is migrating this VM already (%s): wait until that has "
                                 "ended, then see where the VM runs",
                                 now.status);
        if (ibx_now_ns() >= enough)
            return ibx_error_set(err, -EREMOTEIO,
                                 "QEMU calls its last migration \"%s\" and has not ended its "
                                 "thread for %u s (query-yank): see its log",
                                 now.status, CLEANING_MS / 1000);
        usleep(LOOK_MS * 1000);
    }
}

static int give(struct ibx_qmp *qmp, bool incoming, int theirs, uint64_t deadline_ns,
                struct ibx_error *err)
{
    const int rc = incoming ? 0 : await_thread(qmp, deadline_ns, err);
    return rc ? rc : ibx_qmp_getfd(qmp, STREAM_NAME, theirs, deadline_ns, err);
}

/* False: QEMU has taken the descriptor for a migration. */
static bool take_back(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    return !ibx_qmp_execute(qmp, "closefd", json_pack("{s:s}", "fdname", STREAM_NAME), NULL,
                            deadline_ns, NULL);
}

int ibx_vm_migrate(struct ibx_qmp *qmp, bool incoming, int theirs, uint64_t deadline_ns,
                   struct ibx_error *err)
{
    int rc = give(qmp, incoming, theirs, deadline_ns, err);
    if (rc)
        return rc;
    rc = ibx_qmp_execute(qmp, incoming ? "migrate-incoming" : "migrate",
                         json_pack("{s:s}", "uri", "fd:" STREAM_NAME), NULL, deadline_ns, err);
    if (rc == -EREMOTEIO)
        take_back(qmp, deadline_ns);
    return rc;
}

int ibx_vm_migrate_without_ram(struct ibx_qmp *qmp, const json_t *before, int theirs,
                               uint64_t deadline_ns, struct ibx_error *err)
{
    struct ibx_qmp_pair both = {.first = "migrate-set-capabilities",
                                .second = "migrate",
                                .arguments = {ibx_settings_leave_out_ram(before)}};
    int set = 0;
    if (!both.arguments[0]) /* it is on */
        return ibx_vm_migrate(qmp, false, theirs, deadline_ns, err);
    int rc = give(qmp, false, theirs, deadline_ns, err);
    if (rc) {
        json_decref(both.arguments[0]);
        return rc;
    }
    both.arguments[1] = json_pack("{s:s}", "uri", "fd:" STREAM_NAME);
    ibx_migration_stop_at("vm", "given");
    rc = ibx_qmp_execute_both(qmp, &both, &set, deadline_ns, err);
    if (!rc && set)
        return ibx_error_set(err, -EBUSY,
                             "QEMU refused to leave the VM's memory out (x-ignore-shared) of this "
                             "migration, because another client's was under way, which has ended "
                             "since: begin again");
    if (rc == -EREMOTEIO)
        take_back(qmp, deadline_ns);
    return rc;
}

bool ibx_vm_migration_ended(const char *status)
{
    static const char *const ends[] = {"none", "cancelled", "failed", "completed"};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (!strcmp(status, ends[i]))
            return true;
    return false;
}

static int under_way(const char *status, struct ibx_error *err)
{
    return ibx_error_set(
        err, -EBUSY,
        "QEMU is running a migration of this VM that another program has begun since (%s): end "
        "that one, or wait for its end, and see where the VM runs then",
        status);
}

/* Whether another program has continued the VM, or begun a migration, since the last call. A
 * monitor's events and answers come in their order: if this is false, QEMU's answers in between
 * were about our migration. */
static bool others_came(struct ibx_qmp *qmp)
{
    bool came = false;
    for (json_t *event; (event = ibx_qmp_event_next(qmp)); json_decref(event))
        came |=
            ibx_vm_event_is(event, "RESUME", NULL) || ibx_vm_event_is(event, "MIGRATION", "setup");
    return came;
}

/* For a migration that nobody holds open, because its tool is gone: -EBUSY if QEMU is at one that
 * another program has begun since. QEMU closes its stream a moment before it reports a migration as
 * ended. */
static int check_whose(struct ibx_qmp *qmp, const struct ibx_vm_undo *vm, uint64_t deadline_ns,
                       struct ibx_error *err)
{
    const uint64_t enough = ibx_deadline_in_ms(CLOSING_MS);
    struct ibx_vm_progress now;
    bool ours;
    for (;;) {
        int rc = ibx_return_path_find(ibx_qmp_pid(qmp), vm->stream, &ours, err);
        if (!rc && !ours)
            rc = ibx_vm_migration(qmp, &now, deadline_ns, err);
        if (rc || ours || ibx_vm_migration_ended(now.status))
            return rc;
        if (ibx_now_ns() >= enough)
            return under_way(now.status, err);
        usleep(LOOK_MS * 1000);
    }
}

/* The last question of a loop until then: QEMU is not slow because the time is over. */
static uint64_t time_to_answer(uint64_t deadline_ns)
{
    const uint64_t soon = ibx_deadline_in_ms(ANSWER_MS);
    return deadline_ns > soon ? deadline_ns : soon;
}

static int cancel_migration(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    struct ibx_vm_progress now;
    bool asked = false;
    for (;;) {
        int rc = ibx_vm_migration(qmp, &now, time_to_answer(deadline_ns), err);
        if (rc || ibx_vm_migration_ended(now.status))
            return rc;
        if (!asked)
            rc = ibx_qmp_execute(qmp, "migrate_cancel", NULL, NULL, deadline_ns, err);
        if (rc)
            return rc;
        asked = true;
        if (ibx_now_ns() >= deadline_ns)
            return ibx_error_set(err, -ETIMEDOUT,
                                 "QEMU's migration is still \"%s\" after it was "
                                 "cancelled",
                                 now.status);
        usleep(LOOK_MS * 1000);
    }
}

/* Ends a migration that is held open, as completed. Then QEMU itself decides whether the VM may
 * continue: it refuses while another host uses its disks. After migrate_cancel it would continue
 * the VM in spite of that. QEMU keeps the descriptor of a hold after that migration, even when
 * another program has made the next one: then QEMU's end of the stream is gone. `*known`: QEMU's
 * last migration is ours. */
static int end_held(struct ibx_qmp *qmp, const struct ibx_vm_undo *vm, int fd, bool *known,
                    uint64_t deadline_ns, struct ibx_error *err)
{
    bool lasts = true;
    int rc = vm->stream ? ibx_return_path_find(ibx_qmp_pid(qmp), vm->stream, &lasts, err) : 0;
    if (!rc && !lasts) {
        *known = ibx_return_path_marked(qmp, fd, deadline_ns);
        return check_whose(qmp, vm, deadline_ns, err);
    }
    rc = rc ? rc : ibx_return_path_release(qmp, fd, deadline_ns, err);
    ibx_migration_stop_at("rollback", "released");
    if (!rc)
        ibx_return_path_mark(qmp, fd, deadline_ns);
    *known = !others_came(qmp);
    if (!rc && !*known) /* the mark may be that of their migration */
        ibx_return_path_unmark(qmp, deadline_ns);
    ibx_migration_stop_at("rollback", "marked");
    return rc;
}

static bool was_marked(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    const int any = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const bool was = any >= 0 && ibx_return_path_marked(qmp, any, deadline_ns);
    if (any >= 0)
        close(any);
    return was;
}

/* -EAGAIN: QEMU leaves RAM out of what it saves next, and refuses all settings. */
static int check_saves_ram(struct ibx_qmp *qmp, const struct ibx_vm_undo *vm, uint64_t deadline_ns,
                           struct ibx_error *err)
{
    bool without;
    if (vm->libvirt || !ibx_settings_omit_ram(vm->before) ||
        ibx_libvirt_is_without_ram(qmp, &without, deadline_ns, NULL) || !without)
        return 0;
    return ibx_error_set(err, -EAGAIN,
                         "QEMU is still to leave the VM's memory out of what it saves "
                         "(x-ignore-shared), and takes no setting before another client's "
                         "migration ends: let nobody save the VM");
}

/* Finds out whether QEMU has the tool's stream, and has begun no migration into it: the tool was
 * killed before it told QEMU to, or before it heard that QEMU refused. QEMU gives the stream up.
 * Then a migration that is under way is another client's, which is ended if it has no RAM. */
static void look_whether_it_began(struct ibx_qmp *qmp, struct ibx_vm_undo *vm, uint64_t deadline_ns)
{
    vm->unbegun |= vm->stream && !vm->libvirt && take_back(qmp, deadline_ns);
    if (vm->unbegun)
        ibx_vm_save_ram(qmp, vm->before, deadline_ns);
}

/* `*held`: QEMU has the descriptor of a hold; `*known`: QEMU's last migration is ours. */
static int end_migration(struct ibx_qmp *qmp, struct ibx_vm_undo *vm, bool *held, bool *known,
                         uint64_t deadline_ns, struct ibx_error *err)
{
    others_came(qmp); /* discards events from before */
    int fd, rc = ibx_return_path_take(ibx_qmp_pid(qmp), vm->hold, &fd, err);
    look_whether_it_began(qmp, vm, deadline_ns);
    *held = !rc;
    *known = !vm->stream ||
             (vm->completes && !vm->unbegun && (!vm->marked || was_marked(qmp, deadline_ns)));
    if (!rc) {
        rc = end_held(qmp, vm, fd, known, deadline_ns, err);
        close(fd);
    }
    if (rc != -ENOENT)
        return rc;
    rc = vm->stream ? check_whose(qmp, vm, deadline_ns, err) : 0;
    if (rc == -EBUSY && vm->unbegun && check_saves_ram(qmp, vm, deadline_ns, err))
        rc = -EAGAIN;
    return rc ? rc : cancel_migration(qmp, deadline_ns, err);
}

/* Refuses if QEMU's last migration has completed: one of ours that was not held open has failed,
 * because QEMU does not complete a migration whose stream is closed. */
static int check_left(struct ibx_qmp *qmp, const struct ibx_vm_undo *vm, uint64_t deadline_ns,
                      struct ibx_error *err)
{
    struct ibx_vm_progress now;
    int rc = ibx_vm_migration(qmp, &now, deadline_ns, err);
    if (rc || strcmp(now.status, "completed"))
        return rc;
    if (vm->unbegun && ibx_settings_omit_ram(vm->before) &&
        ibx_vm_say_without_ram(qmp, -EBUSY, deadline_ns, err))
        return -EBUSY;
    return ibx_error_set(
        err, -EBUSY,
        "QEMU has completed a migration of this VM, which another program may have "
        "made since: if the VM does not run where that went, continue it by cont in "
        "QEMU's monitor, then call rollback again");
}

bool ibx_vm_was_continued(const char *status)
{
    static const char *const never[] = {"postmigrate", "finish-migrate", "inmigrate", "prelaunch",
                                        "save-vm",     "restore-vm",     "colo"};
    for (size_t i = 0; i < sizeof(never) / sizeof(never[0]); i++)
        if (!strcmp(status, never[i]))
            return false;
    return true;
}

static bool was_stopped(struct ibx_qmp *qmp)
{
    bool was = false;
    for (json_t *event; (event = ibx_qmp_event_next(qmp)); json_decref(event))
        was |= ibx_vm_event_is(event, "STOP", NULL);
    return was;
}

/* QEMU before 10.0 inactivates the disks of a VM even if its migration was cancelled a moment
 * before the stop, and continues the VM like that. The next migration then ends QEMU by an
 * assertion, and a write of the guest may. `cont` activates the disks, and changes nothing else in
 * a VM that runs. If another client pauses the VM meanwhile, it is paused again. To be called when
 * the migration has ended. */
static int activate_disks(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    char status[32];
    if (ibx_qmp_at_least(ibx_qmp_version(qmp), 10, 0))
        return 0;
    was_stopped(qmp); /* discards the STOP of the migration */
    int rc = ibx_vm_status(qmp, status, sizeof(status), deadline_ns, err);
    if (rc || strcmp(status, "running") != 0)
        return rc;
    rc = ibx_qmp_execute(qmp, "cont", NULL, NULL, deadline_ns, err);
    if (!rc && was_stopped(qmp))
        rc = ibx_qmp_execute(qmp, "stop", NULL, NULL, deadline_ns, err);
    return rc;
}

/* Waits for the end of QEMU's migration. Disks are not activated before that, because QEMU stops
 * the VM, inactivates its disks and continues it while it cancels. QEMU has accepted settings by
 * now, so little of that can be left. */
static int await_end(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    const uint64_t enough = ibx_deadline_in_ms(CLOSING_MS);
    struct ibx_vm_progress now;
    for (;;) {
        int rc = ibx_vm_migration(qmp, &now, deadline_ns, err);
        if (rc || ibx_vm_migration_ended(now.status))
            return rc;
        if (ibx_now_ns() >= enough || ibx_now_ns() >= deadline_ns)
            return ibx_error_set(err, -ETIMEDOUT, "QEMU's migration is still \"%s\"", now.status);
        usleep(LOOK_MS * 1000);
    }
}

void ibx_vm_libvirt_disks(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    struct ibx_error why = {0};
    if (ibx_qmp_at_least(ibx_qmp_version(qmp), 10, 0))
        return;
    int rc = await_end(qmp, deadline_ns, &why);
    rc = rc ? rc : activate_disks(qmp, deadline_ns, &why);
    if (rc)
        ibx_log(IBX_LOG_WARN,
                "QEMU may have left the disks of the VM inactive, and its next migration would "
                "then end QEMU (%s): if the VM runs here, " IBX_VM_DISKS_BACK,
                why.message);
}

static int run_again(struct ibx_qmp *qmp, const struct ibx_vm_undo *vm, bool known,
                     uint64_t deadline_ns, struct ibx_error *err)
{
    char status[32];
    bool others = false, before = false; /* others came; they came before the last question */
    int rc;
    /* QEMU reports a migration as ended a moment before it is done with the VM, and refuses cont
     * until then. */
    while (!(rc = ibx_vm_status(qmp, status, sizeof(status), deadline_ns, err))) {
        others |= others_came(qmp);
        if (before || strcmp(status, "finish-migrate") != 0 || ibx_now_ns() >= deadline_ns)
            break;
        before = others;
        usleep(LOOK_MS * 1000);
    }
    if (!rc && before && !strcmp(status, "finish-migrate"))
        rc = under_way(status, err);
    if (!rc && (others || !known) && !strcmp(status, "postmigrate"))
        rc = check_left(qmp, vm, deadline_ns, err);
    if (!rc)
        rc = strcmp(status, "running") != 0
                 ? ibx_qmp_execute(qmp, "cont", NULL, NULL, deadline_ns, err)
                 : activate_disks(qmp, deadline_ns, err);
    if (!rc)
        rc = ibx_vm_status(qmp, status, sizeof(status), deadline_ns, err);
    if (!rc && !ibx_vm_was_continued(status))
        rc = ibx_error_set(err, -EIO, "the VM is \"%s\" after cont: look at QEMU's log", status);
    return rc;
}

/* As ibx_vm_restore(). -EREMOTEIO: QEMU has refused them. */
static int restore(struct ibx_qmp *qmp, const json_t *before, bool libvirt, uint64_t deadline_ns,
                   struct ibx_error *err)
{
    const uint64_t enough = ibx_deadline_in_ms(libvirt ? LIBVIRT_MS : 0);
    int rc;
    while ((rc = ibx_settings_restore(qmp, before, deadline_ns, err)) == -EREMOTEIO &&
           ibx_now_ns() < enough && ibx_now_ns() < deadline_ns) {
        if (libvirt) /* it may be saving the VM by now, which would be lost */
            ibx_vm_end_without_ram(qmp, deadline_ns);
        usleep(LOOK_MS * 1000);
    }
    return rc;
}

/* The end of restore(): settings that QEMU has refused stay as they are, and an operator is told
 * what they were. */
static int restored(int rc, const json_t *before, const struct ibx_error *why,
                    struct ibx_error *err)
{
    if (rc != -EREMOTEIO)
        return rc ? ibx_error_set(err, rc, "%s", why->message) : 0;
    char *text = json_dumps(before, JSON_COMPACT);
    ibx_log(IBX_LOG_WARN, IBX_VM_SETTINGS_STAY " (%s): they were %s", why->message,
            text ? text : "");
    free(text);
    return 0;
}

int ibx_vm_restore(struct ibx_qmp *qmp, const json_t *before, bool libvirt, uint64_t deadline_ns,
                   struct ibx_error *err)
{
    struct ibx_error why = {0};
    const int rc = restore(qmp, before, libvirt, deadline_ns, &why);
    return restored(rc, before, &why, err);
}

/* -EAGAIN: another client's migration, which has no RAM and was to be given up, goes on. */
static int restore_after(struct ibx_qmp *qmp, const struct ibx_vm_undo *vm, uint64_t deadline_ns,
                         struct ibx_error *err)
{
    struct ibx_error why = {0};
    const int rc = restore(qmp, vm->before, vm->libvirt != NULL, deadline_ns, &why);
    return rc == -EREMOTEIO && check_saves_ram(qmp, vm, deadline_ns, err)
               ? -EAGAIN
               : restored(rc, vm->before, &why, err);
}

/* Whether QEMU's last migration has RAM, which that of a snapshot has not: the tool was killed
 * before QEMU had its stream. */
static bool is_of_another(struct ibx_qmp *qmp, const struct ibx_vm_undo *vm, uint64_t deadline_ns)
{
    return vm->touched && vm->completes && !vm->marked && ibx_settings_omit_ram(vm->before) &&
           !ibx_vm_completed_without_ram(qmp, deadline_ns);
}

int ibx_vm_stay(struct ibx_qmp *qmp, struct ibx_vm_undo *vm, uint64_t deadline_ns,
                struct ibx_error *err)
{
    bool held = false, known = false;
    int rc = vm->touched ? end_migration(qmp, vm, &held, &known, deadline_ns, err) : 0;
    if (!rc && vm->touched && !vm->libvirt) /* before the VM runs, and others may save it */
        ibx_vm_save_ram(qmp, vm->before, deadline_ns);
    known = known && !is_of_another(qmp, vm, deadline_ns);
    if (!rc && vm->touched && vm->was_running)
        rc = run_again(qmp, vm, known, deadline_ns, err);
    ibx_migration_stop_at("stay", "continued");
    if (!rc && (held || (vm->marked && vm->was_running)))
        ibx_return_path_unmark(qmp, deadline_ns);
    if (!rc && held)
        ibx_return_path_forget(qmp, deadline_ns);
    if (!rc && vm->touched && !vm->libvirt) /* which sets return-path itself, or does not */
        rc = ibx_return_path_disable(qmp, deadline_ns, err);
    if (!rc)
        rc = restore_after(qmp, vm, deadline_ns, err);
    if (rc)
        return rc;
    if (vm->libvirt && vm->before) /* otherwise the migration was not this tool's */
        ibx_vm_libvirt_disks(qmp, deadline_ns);
    json_decref(vm->before);
    vm->before = NULL;
    vm->touched = false;
    return 0;
}

int ibx_vm_settings(struct ibx_qmp *qmp, enum ibx_vm_migration kind, const char *folder,
                    struct ibx_record *record, struct ibx_settings *settings,
                    const struct ibx_migrate_observer *observer, struct ibx_error *err)
{
    const bool managed = kind == IBX_VM_MIGRATION_LIBVIRT;
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = managed ? ibx_libvirt_plan(qmp, settings, deadline, err)
                     : ibx_settings_plan(qmp, settings, deadline, err);
    if (rc)
        return rc;
    rc = kind == IBX_VM_MIGRATION_HELD ? ibx_return_path_plan(qmp, settings, deadline, err) : 0;
    char *text = rc ? NULL : json_dumps(settings->before, JSON_COMPACT);
    if (!rc && (!text || strlen(text) >= sizeof(record->settings)))
        rc = ibx_error_set(err, text ? -EMSGSIZE : -ENOMEM,
                           "the present migration settings of QEMU have %zu bytes, and the record "
                           "has room for %zu: reset those with long names, such as tls-creds",
                           text ? strlen(text) : 0, sizeof(record->settings) - 1);
    if (!rc) {
        snprintf(record->settings, sizeof(record->settings), "%s", text);
        rc = ibx_migration_record(folder, record, record->state, err);
    }
    free(text);
    if (!rc && !managed && record->source && ibx_settings_left_on(settings))
        ibx_migration_notify(observer, "%s", IBX_SETTINGS_LEFT_ON);
    if (rc)
        ibx_settings_fini(settings);
    else if (settings->unknown[0])
        ibx_migration_notify(observer,
                             "QEMU has migration capabilities on that this ib-migrate does not "
                             "know (%s): they are off for this migration",
                             settings->unknown);
    return rc;
}

int ibx_vm_settle(struct ibx_qmp *qmp, json_t **before, struct ibx_record *record,
                  uint64_t deadline_ns, struct ibx_error *err)
{
    int rc = *before ? ibx_settings_restore(qmp, *before, deadline_ns, err) : 0;
    if (rc)
        return rc;
    json_decref(*before);
    *before = NULL;
    record->settings[0] = '\0';
    return 0;
}

uint64_t ibx_vm_event_ns(json_t *event)
{
    json_int_t seconds = 0, micro = 0;
    struct timespec real;
    json_unpack(event, "{s:{s:I,s:I}}", "timestamp", "seconds", &seconds, "microseconds", &micro);
    clock_gettime(CLOCK_REALTIME, &real);
    int64_t age = ((int64_t)real.tv_sec - (int64_t)seconds) * 1000000000 + real.tv_nsec -
                  (int64_t)micro * 1000;
    uint64_t now = ibx_now_ns();
    return age > 0 && age < 10ll * 1000000000 ? now - (uint64_t)age : now;
}

bool ibx_vm_event_is(json_t *event, const char *name, const char *status)
{
    const char *is = json_string_value(json_object_get(event, "event"));
    const char *has = json_string_value(json_object_get(json_object_get(event, "data"), "status"));
    return is && !strcmp(is, name) && (!status || (has && !strcmp(has, status)));
}

int ibx_vm_quit(struct ibx_qmp *qmp, struct ibx_error *err)
{
    int rc = ibx_qmp_execute(qmp, "quit", NULL, NULL, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    return rc == -ECONNRESET || rc == -EPIPE ? 0 : rc;
}
