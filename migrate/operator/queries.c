/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a tool asks and does with a record alone, while no tool works on the migration. */
#include "migrate/common/common.h"
#include "migrate/common/libvirt.h"
#include "migrate/common/write_protection.h"
#include "migrate/common/return_path.h"
#include "migrate/common/vm.h"
#include "migrate/preflight/preflight.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define GLANCE_MS   1000u /* for the answers of a QEMU that somebody only looks at */
#define SETTINGS_MS 2000u /* in which settings that a killed tool has left have to be restored */

int ibx_migrate_query(const struct ibx_record *record, const struct ibx_options *transport,
                      struct ibx_migrate_answer *answer, struct ibx_error *err)
{
    const struct ibx_options options = ibx_migration_options(transport, record->uri);
    return ibx_migration_ask(record, IBX_PURPOSE_QUERY, &options, answer, err);
}

int ibx_migrate_confirm(const struct ibx_record *record, const struct ibx_options *transport,
                        struct ibx_error *err)
{
    const struct ibx_options options = ibx_migration_options(transport, record->uri);
    return ibx_migration_confirm(record, &options, err);
}

/* Takes over the write protection of guest RAM (common/write_protection.h) that a tool has left
 * behind, if there is one.
 */
static int take_protection(const struct ibx_record *record, struct ibx_write_protection *protection,
                           struct ibx_error *err)
{
    struct ibx_guest_ram ram;
    ibx_write_protection_init(protection);
    if (record->uffd < 0 || ibx_journal_qemu_gone(record))
        return 0;
    int rc = ibx_journal_recall_ram(record, &ram, err);
    if (rc)
        return rc;
    struct ibx_error why = {0};
    rc = ibx_write_protection_take(protection, &ram, record->uffd, &why);
    ibx_guest_ram_fini(&ram);
    return rc && rc != -ENOENT ? ibx_error_set(err, rc, "%s", why.message) : 0;
}

/* Connects to the monitor of the record's QEMU, and checks that it is that process. */
static int reach(const struct ibx_record *record, uint64_t deadline, struct ibx_qmp **qmp,
                 struct ibx_error *err)
{
    int rc = ibx_qmp_connect(record->qmp, deadline, qmp, err);
    const int pid = rc ? 0 : (int)ibx_qmp_pid(*qmp);
    if (rc || pid == record->pid)
        return rc;
    ibx_qmp_close(*qmp);
    return ibx_error_set(err, -ESRCH,
                         "the monitor %s belongs to process %d now, and this VM is in the QEMU of "
                         "process %d: restore that QEMU's monitor",
                         record->qmp, pid, (int)record->pid);
}

int ibx_migrate_leaves_out_ram(const struct ibx_record *record, bool *leaves)
{
    const uint64_t deadline = ibx_deadline_in_ms(GLANCE_MS);
    struct ibx_qmp *qmp;
    int rc = reach(record, deadline, &qmp, NULL);
    if (rc)
        return rc;
    rc = ibx_libvirt_is_without_ram(qmp, leaves, deadline, NULL);
    ibx_qmp_close(qmp);
    return rc;
}

/* Rollback where libvirt drives: libvirt continues the VM, not this tool. If it has, restores
 * QEMU's settings; -EBUSY if it has not yet. */
static int leave_to_libvirt(const char *folder, const struct ibx_record *back, struct ibx_qmp *qmp,
                            const json_t *before, uint64_t deadline_ns, struct ibx_error *err)
{
    char status[IBX_MIGRATE_STATUS];
    int rc = ibx_vm_status(qmp, status, sizeof(status), deadline_ns, err);
    if (rc)
        return rc;
    if (strcmp(status, "running") != 0)
        return ibx_error_set(err, -EBUSY,
                             "libvirt decides where this VM runs, and here it is \"%s\": make sure "
                             "that it does not run at the destination (virsh list there), continue "
                             "it by virsh resume, then call rollback again",
                             status);
    rc = ibx_journal_mark_back(folder, back, err);
    if (!rc)
        rc = ibx_settings_restore(qmp, before, deadline_ns, err);
    if (!rc)
        ibx_vm_libvirt_disks(qmp, deadline_ns);
    return rc;
}

/* Locks the memory that a borrowed VM left, so that no return changes it. -EBUSY: a return has
 * begun to change it. */
static int lock_base(const char *folder, const struct ibx_record *record, int *lock,
                     struct ibx_error *err)
{
    int rc = record->borrow ? ibx_journal_lock_base(folder, record, lock, err) : 0;
    if (rc || !record->borrow || !ibx_journal_base_touched(folder, record))
        return rc;
    return ibx_error_set(err, -EBUSY,
                         "a return of this VM has begun, so that its memory here is not what it "
                         "was when it stopped: it cannot be restarted from there; if it is lost, "
                         "start it anew from its disk, then ib-migrate prune --unfinished");
}

/* For rollback of a return: the VM may have run at home meanwhile and changed the memory from which
 * pages are still missing here. Home knows that, and tells it when a link is made: so the tool that
 * serves the VM here is asked to make its link anew. */
static int renew_link(const char *folder, const struct ibx_record *record, struct ibx_error *err)
{
    struct ibx_record came = {.source = false};
    struct ibx_error why = {0};
    json_t *answer;
    char path[PATH_MAX];
    if (!ibx_journal_returns(record))
        return 0;
    memcpy(came.id, record->base, sizeof(came.id));
    ibx_journal_path(folder, &came, ".sock", path, sizeof(path));
    int rc = ibx_control_socket_ask(path, json_pack("{s:s}", "command", "reconnect"), &answer,
                                    ibx_deadline_in_ms(MIGRATION_QMP_MS), &why);
    if (!rc)
        json_decref(answer);
    return rc && rc != -ENOENT &&
                   rc != -ECONNREFUSED /* without a tool, the next one makes a link */
               ? ibx_error_set(err, rc, "the ib-migrate that serves the VM here: %s", why.message)
               : 0;
}

/* Asks the destination: an error if its answer forbids a rollback. If there is no answer, rollback
 * goes on, since the operator has confirmed it. */
static int ask_destination(const struct ibx_record *record, const struct ibx_options *transport,
                           struct ibx_error *err)
{
    struct ibx_migrate_answer answer;
    struct ibx_error why = {0};
    const int rc = ibx_migrate_query(record, transport, &answer, &why);
    if (rc == -EPROTOTYPE || rc == -ENODATA)
        return ibx_error_set(
            err, -EBUSY, "whether the VM runs at the destination is not known%s: %s",
            rc == -ENODATA ? " (call rollback again in a second)" : "", why.message);
    if (rc)
        return 0;
    if (answer.state == IBX_ANSWER_RUNNING || answer.state == IBX_ANSWER_COMPLETE)
        return ibx_error_set(err, -EBUSY,
                             "the destination (%s) answers that the VM is there: running it "
                             "here as well would destroy its disks",
                             answer.host);
    return answer.state == IBX_ANSWER_ENDED
               ? ibx_error_set(err, -EBUSY,
                               "the destination (%s) answers that the VM's guest has shut it down "
                               "there: its disks are newer than its memory here; ib-migrate "
                               "recover here ends the migration",
                               answer.host)
               : 0;
}

/* Waits for the lock: the watchdog of a tool that was just killed holds it until it ends. */
static int lock_when_free(const char *folder, const struct ibx_record *record, int *lock_fd,
                          struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_LOCK_MS);
    int rc;
    while ((rc = ibx_journal_lock(folder, record, lock_fd, err)) == -EBUSY &&
           ibx_now_ns() < deadline)
        poll(NULL, 0, MIGRATION_LOCK_LOOK_MS);
    return rc;
}

/* Reads the record again, since the migration may have continued while the operator was asked. */
static int check_unchanged(const char *folder, const struct ibx_record *record,
                           struct ibx_record *now, struct ibx_error *err)
{
    *now = *record;
    const int rc = ibx_migration_reload(folder, now, err);
    return !rc && (now->state != record->state || now->epoch != record->epoch)
               ? ibx_error_set(err, -EBUSY,
                               "the migration has gone on meanwhile: see ib-migrate status")
               : rc;
}

/* Writes the record, after QEMU has continued the VM. (QEMU refuses to continue it if the VM runs
 * at the destination after all and uses the disks; then the record is still good for recover.) */
static int record_back(const char *folder, struct ibx_record *back, enum ibx_journal_state state,
                       struct ibx_error *err)
{
    back->state = state;
    back->settings[0] = '\0';
    back->epoch++;
    const int rc = ibx_journal_write(folder, back, err);
    if (!rc && back->libvirt)
        ibx_journal_unlink_files(back);
    if (!rc)
        ibx_journal_forget_page_states(back);
    if (!rc)
        ibx_journal_unmark_back(folder, back);
    return rc;
}

/* Whether the VM has run here since its stop, by its present status. One that was paused before its
 * migration is not continued by a rollback, nor is any by this tool where libvirt drives. */
static bool runs_since(const struct ibx_record *record, const char *status)
{
    return record->was_running && !record->libvirt ? ibx_vm_was_continued(status)
                                                   : !strcmp(status, "running");
}

/* Continues the VM. The marker comes first: whoever finds the record of a rollback that was killed
 * knows by it, and by the VM's status, that the VM runs here and must not at the destination. */
static int continue_here(const char *folder, const struct ibx_record *back, struct ibx_qmp *qmp,
                         struct ibx_vm_undo *vm, uint64_t deadline_ns, struct ibx_error *err)
{
    char status[IBX_MIGRATE_STATUS];
    if (back->libvirt)
        return leave_to_libvirt(folder, back, qmp, vm->before, deadline_ns, err);
    int rc = ibx_journal_mark_back(folder, back, err);
    if (rc)
        return rc;
    ibx_migration_stop_at("rollback", "noted");
    rc = ibx_vm_stay(qmp, vm, deadline_ns, err);
    if (rc && !ibx_vm_status(qmp, status, sizeof(status), deadline_ns, NULL) &&
        !runs_since(back, status))
        ibx_journal_unmark_back(folder, back);
    return rc;
}

static int take_back(const char *folder, struct ibx_record *back, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    struct ibx_vm_undo vm = {.was_running = back->was_running,
                             .touched = true,
                             .hold = back->hold,
                             .stream = back->stream};
    struct ibx_write_protection protection;
    struct ibx_qmp *qmp;
    int rc = take_protection(back, &protection, err);
    if (rc)
        return rc;
    ibx_write_protection_release(&protection); /* QEMU's threads may be blocked by it */
    rc = reach(back, deadline, &qmp, err);
    if (rc)
        return rc;
    vm.before = json_loads(back->settings, 0, NULL);
    rc = continue_here(folder, back, qmp, &vm, deadline, err);
    ibx_migration_stop_at("rollback", "continued");
    if (!rc)
        rc = record_back(folder, back, IBX_JOURNAL_ROLLED_BACK, err);
    back->vm_status[0] = '\0'; /* until now it was the status at the destination */
    if (!rc)
        ibx_vm_status(qmp, back->vm_status, sizeof(back->vm_status), deadline, NULL);
    char why[IBX_ERROR_MAX];
    if (!rc && ibx_vm_say_stopped(qmp, back->vm_status, why, sizeof(why), deadline))
        ibx_log(IBX_LOG_WARN, "the VM is stopped here (\"%s\"): %s", back->vm_status, why);
    json_decref(vm.before);
    ibx_qmp_close(qmp);
    return rc;
}

static int roll_back(const char *folder, struct ibx_record *record,
                     const struct ibx_options *transport, struct ibx_error *err)
{
    struct ibx_record back;
    int lock_fd;
    if (!record->source || ibx_journal_over(record))
        return ibx_error_set(err, -EINVAL, "there is nothing to roll back: this migration is %s",
                             ibx_journal_state_name(record->state));
    int rc = ask_destination(record, transport, err);
    if (rc)
        return rc;
    if (ibx_journal_only_at_home(record))
        return ibx_error_set(
            err, -EBUSY,
            "this VM has returned: what it had not fetched here is only in its memory at home, "
            "which is newer by now; %s",
            ibx_journal_lost_there(record) || record->state == IBX_JOURNAL_BROKEN
                ? "it is lost, since it cannot go on there either: end its QEMUs and start it from "
                  "its disk"
                : "ib-migrate recover goes on; if its QEMU there has ended, start it from its "
                  "disk");
    rc = lock_when_free(folder, record, &lock_fd, err);
    if (rc)
        return rc;
    if (ibx_journal_qemu_gone(record))
        rc = ibx_error_set(err, -ESRCH,
                           "the QEMU (process %d) in which the VM stopped has ended: nothing here "
                           "can be continued; ib-migrate recover sends its memory to the "
                           "destination if that runs the VM, otherwise start it anew from its "
                           "disk",
                           (int)record->pid);
    if (!rc)
        rc = ibx_journal_check_sizes(record, err);
    if (!rc)
        rc = check_unchanged(folder, record, &back, err);
    if (!rc)
        rc = renew_link(folder, record, err);
    if (!rc)
        rc = take_back(folder, &back, err);
    if (!rc)
        *record = back;
    close(lock_fd);
    return rc;
}

int ibx_migrate_rollback(const char *folder, struct ibx_record *record,
                         const struct ibx_options *transport, struct ibx_error *err)
{
    int lock = -1, rc = lock_base(folder, record, &lock, err);
    if (!rc)
        rc = roll_back(folder, record, transport, err);
    if (lock >= 0)
        close(lock);
    return rc;
}

/* ------------------------------------------------------------ a VM that has never left */

/* Whether QEMU shows that the VM has never left. QEMU gets a copy of the hold before COMMIT is
 * sent, and has it until its migration has completed. Without one, QEMU continues a VM that ran as
 * soon as the tool's end of the stream is closed. */
static int look_whether_it_left(const struct ibx_record *record, struct ibx_qmp *qmp,
                                const char *status, bool *stays, uint64_t deadline,
                                struct ibx_error *err)
{
    struct ibx_vm_progress now;
    bool held = false;
    int rc = record->hold ? ibx_return_path_find(record->pid, record->hold, &held, err) : 0;
    rc = rc ? rc : ibx_vm_migration(qmp, &now, deadline, err);
    if (rc)
        return rc;
    const bool stopped = !strcmp(status, "postmigrate") || !strcmp(status, "finish-migrate");
    *stays = !held && strcmp(now.status, "completed") != 0 &&
             (!stopped || (!record->was_running && ibx_vm_migration_ended(now.status)));
    return 0;
}

/* Another client may have paused the VM since: it is left so. */
static int end_what_is_left(const char *folder, struct ibx_record *record,
                            enum ibx_journal_state state, struct ibx_qmp *qmp, const char *status,
                            uint64_t deadline, struct ibx_error *err)
{
    struct ibx_vm_undo vm = {.was_running = !strcmp(status, "running"),
                             .touched = record->state != IBX_JOURNAL_HERE,
                             .hold = record->hold,
                             .stream = record->stream,
                             .before = json_loads(record->settings, 0, NULL)};
    int rc = ibx_vm_stay(qmp, &vm, deadline, err);
    json_decref(vm.before);
    return rc ? rc : record_back(folder, record, state, err);
}

/* Where libvirt drives, only libvirt knows. */
static bool may_have_stayed(const struct ibx_record *record)
{
    return record->source && !record->libvirt && ibx_journal_qemu_lives(record) &&
           (record->state == IBX_JOURNAL_HERE ||
            (record->state == IBX_JOURNAL_MAY_RUN && record->hold));
}

int ibx_migrate_stays(const char *folder, struct ibx_record *record, bool *stays,
                      struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    struct ibx_record now;
    struct ibx_error silent = {0};
    struct ibx_qmp *qmp;
    char status[IBX_MIGRATE_STATUS];
    int lock_fd;
    *stays = false;
    if (!may_have_stayed(record) || lock_when_free(folder, record, &lock_fd, &silent))
        return 0;
    int rc = check_unchanged(folder, record, &now, &silent) || reach(&now, deadline, &qmp, &silent);
    if (rc) { /* whoever goes on says why */
        close(lock_fd);
        return 0;
    }
    rc = ibx_vm_status(qmp, status, sizeof(status), deadline, err);
    if (!rc)
        rc = look_whether_it_left(&now, qmp, status, stays, deadline, err);
    if (!rc && *stays)
        rc = end_what_is_left(folder, &now, IBX_JOURNAL_KEPT, qmp, status, deadline, err);
    if (!rc && *stays)
        *record = now;
    ibx_qmp_close(qmp);
    close(lock_fd);
    return rc;
}

/* ------------------------------------------------------------ a rollback that was killed */

/* Ends the rollback with the QEMU that is left of it. */
static int end_rollback(const char *folder, struct ibx_record *now, bool *back,
                        struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    char status[IBX_MIGRATE_STATUS];
    struct ibx_qmp *qmp;
    int rc = reach(now, deadline, &qmp, err);
    if (rc)
        return rc;
    rc = ibx_vm_status(qmp, status, sizeof(status), deadline, err);
    /* Where libvirt drives, the marker was made when the VM had been seen to run. */
    if (!rc && !(*back = now->libvirt || runs_since(now, status)))
        ibx_journal_unmark_back(folder, now);
    else if (!rc && now->libvirt)
        rc = record_back(folder, now, IBX_JOURNAL_ROLLED_BACK, err);
    else if (!rc)
        rc = end_what_is_left(folder, now, IBX_JOURNAL_ROLLED_BACK, qmp, status, deadline, err);
    if (!rc && *back)
        snprintf(now->vm_status, sizeof(now->vm_status), "%s", status);
    ibx_qmp_close(qmp);
    return rc;
}

int ibx_migrate_was_taken_back(const char *folder, struct ibx_record *record, bool *back,
                               struct ibx_error *err)
{
    struct ibx_record now;
    struct ibx_error why = {0};
    int lock_fd;
    bool ran = false;
    *back = false;
    if (ibx_journal_over(record) || !ibx_journal_back_marked(folder, record))
        return 0;
    int rc = lock_when_free(folder, record, &lock_fd, err);
    if (rc)
        return rc;
    rc = check_unchanged(folder, record, &now, &why);
    if (!rc && ibx_journal_qemu_gone(&now)) {
        /* perhaps, so that its memory is no longer that of its stop */
        ran = now.was_running || now.libvirt;
        now.vm_status[0] = '\0';
        if (ran)
            rc = record_back(folder, &now, IBX_JOURNAL_ROLLED_BACK, &why);
        else
            ibx_journal_unmark_back(folder, &now);
    } else if (!rc) {
        rc = end_rollback(folder, &now, &ran, &why);
    }
    close(lock_fd);
    if (rc)
        return ibx_error_set(err, rc,
                             "a rollback has not recorded its end, and may have continued the VM "
                             "here: %s",
                             why.message);
    if (ran)
        *record = now;
    *back = ran;
    return 0;
}

int ibx_migrate_disown(const struct ibx_record *record, const struct ibx_options *transport,
                       enum ibx_answer_state *there, struct ibx_error *err)
{
    const char *why = record->state == IBX_JOURNAL_KEPT
                          ? IBX_MIGRATE_TAKEN_BACK ", which it had never left"
                          : IBX_MIGRATE_TAKEN_BACK " by ib-migrate rollback";
    *there = IBX_ANSWER_NONE;
    return ibx_migration_take_from(record, transport, why, there, err);
}

int ibx_migrate_disown_again(const char *folder, struct ibx_record *record,
                             const struct ibx_options *transport, enum ibx_answer_state *there,
                             struct ibx_error *err)
{
    int lock_fd, rc = lock_when_free(folder, record, &lock_fd, err);
    *there = IBX_ANSWER_NONE;
    if (rc)
        return rc;
    record->epoch++; /* the destination takes no source that it has seen */
    rc = ibx_journal_write(folder, record, err);
    if (!rc)
        rc = ibx_migrate_disown(record, transport, there, err);
    close(lock_fd);
    return rc;
}

static int greet_to_check(const char *uri, const struct ibx_options *options,
                          const struct ibx_migrate_hello *hello, struct ibx_channel *control,
                          struct ibx_migrate_answer *answer, bool refused, struct ibx_error *err)
{
    int rc = ibx_migration_greet(uri, options, hello, control, answer, err);
    if (rc)
        ibx_error_prefix(err, rc, "%sthe destination could not be asked",
                         refused ? "" : "nothing on this side prevents the migration, but ");
    return rc;
}

static int check_destination(const struct ibx_check_options *check, struct ibx_qmp *qmp,
                             const struct ibx_guest_ram *ram, struct ibx_blockers *blockers,
                             struct ibx_error *err)
{
    uint64_t bytes = 0;
    struct ibx_channel control;
    struct ibx_options options = ibx_migration_options(check->transport, check->uri);
    struct ibx_migrate_answer *answer = calloc(1, sizeof(*answer));
    struct ibx_migrate_hello *hello = calloc(1, sizeof(*hello));
    int rc = answer && hello ? 0 : ibx_error_set(err, -ENOMEM, "no memory for a greeting");
    if (!rc) {
        hello->purpose = IBX_PURPOSE_CHECK;
        hello->epoch = 1;
        ibx_migration_offer_links(hello, check->links);
        ibx_migrate_hello_describe(hello, ram);
        hello->disks_differ = check->disks_differ;
        rc = ibx_migration_describe_vm(qmp, ram, hello, err);
    }
    if (!rc)
        rc = ibx_preflight_locked_bytes(ram, &bytes, err);
    if (!rc)
        rc =
            greet_to_check(check->uri, &options, hello, &control, answer, blockers->count > 0, err);
    if (!rc) {
        ibx_migration_check_locked(control.conn, answer->links ? answer->links : hello->links,
                                   bytes, blockers);
        for (unsigned i = 0; i < answer->count; i++)
            ibx_blockers_add(blockers, "%s: %s", answer->host, answer->reasons[i]);
        for (unsigned i = 0; i < answer->note_count; i++)
            ibx_blockers_note(blockers, "%s", answer->notes[i]);
        if (!answer->accepted && !answer->count)
            ibx_blockers_add(blockers, "%s refuses without a reason", answer->host);
        ibx_channel_fini(&control);
    }
    free(hello ? hello->description : NULL);
    free(hello);
    free(answer);
    return rc;
}

int ibx_migrate_check(const struct ibx_check_options *options, struct ibx_blockers *blockers,
                      struct ibx_error *err)
{
    struct ibx_qmp *qmp;
    struct ibx_guest_ram ram;
    struct ibx_error why = {0};
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = ibx_qmp_connect_unless_busy(options->qmp, deadline, &qmp, err);
    if (rc)
        return rc;
    rc = ibx_guest_ram_find(qmp, !options->source, &ram, deadline, err);
    if (!rc) {
        rc = ibx_preflight_side(qmp, &ram,
                                options->source ? IBX_MIGRATE_SOURCE : IBX_MIGRATE_DESTINATION,
                                blockers, deadline, err);
        if (ibx_vm_check_claimed(&ram, options->source, &why))
            ibx_blockers_add(blockers, "%s", why.message);
        ibx_preflight_monitor_file(options->qmp, ram.pid, blockers);
        if (options->source)
            ibx_preflight_writers(&ram, blockers);
        if (!options->source && options->folder &&
            ibx_migration_check_unfinished(options->folder, &ram, false, true, &why) == -EBUSY)
            ibx_blockers_add(blockers, "%s", why.message);
        if (!rc && options->source && options->uri)
            rc = check_destination(options, qmp, &ram, blockers, err);
        ibx_guest_ram_fini(&ram);
    }
    ibx_qmp_close(qmp);
    return rc;
}

/* Ends the hold that a dead tool left, and restores QEMU's settings. A tool that died after its
 * last CONFIRM has ended the hold itself, but may have left the settings. */
static int end_hold(const struct ibx_record *record, struct ibx_error *err)
{
    uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    struct ibx_qmp *qmp;
    int fd = -1, rc = ibx_return_path_take(record->pid, record->hold, &fd, err);
    const bool held = !rc;
    if (rc == -ENOENT && !record->settings[0])
        return 0;
    if (rc && rc != -ENOENT)
        return rc;
    if (!held)
        deadline = ibx_deadline_in_ms(SETTINGS_MS);
    rc = reach(record, deadline, &qmp, err);
    if (rc && !held) { /* another client has the monitor; settings that are left do no harm */
        *err = (struct ibx_error){0};
        return 0;
    }
    if (!rc) {
        if (fd >= 0)
            rc = ibx_return_path_release(qmp, fd, deadline, err);
        if (!rc && fd >= 0)
            ibx_return_path_forget(qmp, deadline);
        if (!rc && fd >= 0)
            rc = ibx_return_path_disable(qmp, deadline, err);
        json_t *before = json_loads(record->settings, 0, NULL);
        if (!rc)
            rc = ibx_settings_restore(qmp, before, deadline, err);
        json_decref(before);
        ibx_qmp_close(qmp);
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

int ibx_migrate_let_go(const struct ibx_record *record, struct ibx_error *err)
{
    struct ibx_write_protection protection;
    ibx_journal_forget_page_states(record);
    int rc = take_protection(record, &protection, err);
    if (rc || ibx_journal_qemu_gone(record))
        return rc;
    if (protection.state.now == PROTECTION_CAUGHT) {
        ibx_write_protection_leave(&protection);
        return ibx_error_set(err, -EBUSY,
                             "QEMU (process %d) tried to write to the VM's memory here, and is "
                             "blocked in that write: end it (kill -9 %d)",
                             (int)record->pid, (int)record->pid);
    }
    ibx_write_protection_release(&protection);
    return end_hold(record, err);
}

int ibx_migrate_quit(const struct ibx_record *record, struct ibx_error *err)
{
    struct ibx_qmp *qmp;
    if (ibx_journal_qemu_gone(record))
        return 0;
    int rc = reach(record, ibx_deadline_in_ms(MIGRATION_QMP_MS), &qmp, err);
    if (rc)
        return rc;
    rc = ibx_vm_quit(qmp, err);
    ibx_qmp_close(qmp);
    return rc;
}
