/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/return_path.h"
#include "migrate/preflight/preflight.h"
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define STOP_MS         1000 /* for QEMU to take the command */
#define ASK_MS          20   /* ... a question */
#define LAST_STOP_MS    5000 /* for QEMU to execute the command, when nothing else is to be done */
#define LAST_RETRY_MS   20   /* between two tries */
#define LAST_LOOK_MS    5000 /* for the status of a VM that is not needed any more */
#define FIGURES_MS      200  /* for QEMU's figures of its last migration, while pages are served */
#define LIBVIRT_ENDS_MS 1000 /* for libvirt to end the source's QEMU */
#define LET_GO_EARLY_MS 500  /* for QEMU to end its migration, while CONFIRMED is on its way */
#define USERS_MS        500  /* ... who uses its disks, while the VM stands still */
#define CLOSING_MS      1000 /* for QEMU to end a migration whose stream it has closed */
#define CLOSING_LOOK_MS 5
#define WHOLE_RETRY_MS  1000  /* between two tries to record that all memory is protected */
#define VERDICT_MS      30000 /* for the pages of a guest that has shut down to be compared */

/* ---------------------------------------------------------------- write protection */

static const struct ibx_state protecting_states[] = {
    [PROTECTING_WISHED] = {"wished",
                           IBX_TO(PROTECTING_NOTED) | IBX_TO(PROTECTING_IMPOSSIBLE) |
                               IBX_TO(PROTECTING_LAST),
                           IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [PROTECTING_NOTED] = {"noted",
                          IBX_TO(PROTECTING_ASKED) | IBX_TO(PROTECTING_WHOLE) |
                              IBX_TO(PROTECTING_IMPOSSIBLE) | IBX_TO(PROTECTING_LAST),
                          IBX_STATE_FINAL},
    [PROTECTING_ASKED] = {"asked",
                          IBX_TO(PROTECTING_WHOLE) | IBX_TO(PROTECTING_IMPOSSIBLE) |
                              IBX_TO(PROTECTING_LAST),
                          IBX_STATE_FINAL},
    [PROTECTING_WHOLE] = {"whole", IBX_TO(PROTECTING_IMPOSSIBLE), IBX_STATE_FINAL},
    [PROTECTING_IMPOSSIBLE] = {"impossible", IBX_TO(PROTECTING_LAST), IBX_STATE_FINAL},
    [PROTECTING_LAST] = {"last", IBX_TO(PROTECTING_NEEDLESS) | IBX_TO(PROTECTING_WHOLE),
                         IBX_STATE_FINAL},
    [PROTECTING_NEEDLESS] = {"needless", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table protecting_table =
    IBX_STATE_TABLE("source protection", protecting_states);

void ibx_source_protection_init(struct source *s)
{
    ibx_write_protection_init(&s->protection);
    ibx_state_begin(&s->protecting, &protecting_table, PROTECTING_WISHED);
}

static void cannot_protect(struct source *s, const struct ibx_error *why)
{
    ibx_state_move(&s->protecting, PROTECTING_IMPOSSIBLE);
    if (ibx_qmp_ends(s->vm.qmp)) /* then it needs no protection any more */
        return;
    ibx_migration_notify(&s->options->observer,
                         "the VM's memory here cannot be protected against writes (%s): QEMU "
                         "refuses to continue the VM, but a reset here would end the migration as "
                         "broken",
                         why->message);
}

static void make(struct source *s)
{
    struct ibx_error why = {0};
    if (s->protection.state.now != PROTECTION_NONE)
        return;
    if (ibx_write_protection_make(&s->protection, &s->vm.ram, s->vm.qmp, &why)) {
        cannot_protect(s, &why);
        return;
    }
    s->status.record.uffd = s->protection.uffd.remote;
    s->status.record.device_way = s->protection.uffd.way == IBX_UFFD_DEVICE;
}

/* Whether libvirt is about to end this QEMU. It usually does so soon after the VM runs at the
 * destination. */
static bool libvirt_ends_it(struct source *s)
{
    if (!source_managed(&s->vm))
        return false;
    if (!s->protect_ns)
        s->protect_ns = ibx_deadline_in_ms(LIBVIRT_ENDS_MS);
    return ibx_now_ns() < s->protect_ns;
}

/* Asks QEMU some question: what QEMU reports before its answer has happened before. A question that
 * cannot be sent is tried again. */
static void ask(struct source *s)
{
    if (s->protecting.now == PROTECTING_NOTED &&
        !ibx_qmp_post(s->vm.qmp, "query-status", ibx_deadline_in_ms(ASK_MS), NULL))
        ibx_state_move(&s->protecting, PROTECTING_ASKED);
}

/* The record names the protection before anything is protected: otherwise no other tool could
 * remove it.
 */
void ibx_source_protect(struct source *s)
{
    struct ibx_error why = {0};
    /* A range can have only one userfaultfd: a VM that returns has that by which it was borrowed.
     */
    if (s->state.now != SOURCE_SERVING || s->protecting.now >= PROTECTING_IMPOSSIBLE ||
        source_returns(s) || !s->vm.qmp || libvirt_ends_it(s))
        return;
    ibx_source_warm_end(s); /* a range can have only one userfaultfd */
    make(s);
    if (s->protection.state.now == PROTECTION_ARMED)
        ask(s);
    if (s->protection.state.now != PROTECTION_MADE)
        return;
    if (s->protecting.now == PROTECTING_WISHED && ibx_now_ns() < s->note_ns)
        return;
    if (s->protecting.now == PROTECTING_WISHED) {
        s->status.record.all_protected = false; /* an earlier tool may have had another */
        if (ibx_source_note(s, IBX_JOURNAL_MOVED, &why)) {
            ibx_write_protection_release(&s->protection);
            cannot_protect(s, &why);
            return;
        }
        if (s->note_ns)
            return; /* it is tried again */
        ibx_state_move(&s->protecting, PROTECTING_NOTED);
    }
    if (ibx_write_protection_ends(&s->protection))
        ibx_migration_stop_at("source", "arming");
    int rc = ibx_write_protection_arm(&s->protection, &why);
    if (!rc)
        ask(s);
    if (!rc || rc == -EAGAIN)
        return;
    ibx_write_protection_release(&s->protection);
    cannot_protect(s, &why);
}

/* Records that all memory is protected. The next tool cannot find that out, because QEMU reports
 * nothing twice. */
static void note_whole(struct source *s)
{
    struct ibx_record *record = &s->status.record;
    if (s->protecting.now != PROTECTING_WHOLE || s->state.now != SOURCE_SERVING ||
        record->all_protected || ibx_now_ns() < s->whole_ns)
        return;
    s->whole_ns = ibx_deadline_in_ms(WHOLE_RETRY_MS);
    record->all_protected = true;
    record->all_protected =
        !ibx_migration_record(s->options->folder, record, IBX_JOURNAL_MOVED, NULL);
}

/* QEMU's events come in their order: those that came before this answer may be about something that
 * QEMU did while a part of the memory was not protected. Their timestamps do not help: QEMU reports
 * a reset when it is over, and the clock may be set. */
void ibx_source_protection_answered(struct source *s)
{
    const bool last = s->protecting.now == PROTECTING_LAST;
    json_t *reply = last || s->protecting.now == PROTECTING_ASKED ? ibx_qmp_reply(s->vm.qmp) : NULL;
    if (reply)
        ibx_state_move(&s->protecting, last && s->protection.state.now != PROTECTION_ARMED
                                           ? PROTECTING_NEEDLESS
                                           : PROTECTING_WHOLE);
    json_decref(reply);
    note_whole(s);
}

void ibx_source_all_came(struct source *s)
{
    if (ibx_state_allows(s->protecting.table, s->protecting.now, PROTECTING_LAST) && s->vm.qmp &&
        !ibx_qmp_post(s->vm.qmp, "query-status", ibx_deadline_in_ms(ASK_MS), NULL))
        ibx_state_move(&s->protecting, PROTECTING_LAST);
}

/* Whether the pages are what they were, or had come before, so that the migration continues. */
static bool pages_unchanged(const struct source *s)
{
    return s->protecting.now == PROTECTING_NEEDLESS ||
           (s->protecting.now == PROTECTING_WHOLE && s->protection.state.now != PROTECTION_NONE);
}

static int changed(struct source *s, const char *then, struct ibx_error *err)
{
    ibx_error_set(err, -EBADMSG,
                  "%s, and its memory may have changed before the destination had fetched it%s",
                  s->disturbed.message, then);
    return ibx_source_broken(s, true, err);
}

/* Opens the VM's memory, for a tool that has just begun and has not done so. */
static int find_ram(struct source *s, struct ibx_error *err)
{
    ibx_guest_ram_fini(&s->vm.ram);
    int rc = ibx_journal_recall_ram(&s->status.record, &s->vm.ram, err);
    if (!rc) /* also after a failure it is closed with the source */
        rc = ibx_journal_reopen_ram(&s->status.record, &s->vm.ram, err);
    return rc;
}

/* The protection holds a thread of QEMU, which may then answer nobody: continues without its
 * monitor, with the memory of the record. */
static int go_on_held(struct source *s, struct ibx_error *err)
{
    const bool open = s->vm.ram.count && s->vm.ram.blocks[0].fd >= 0;
    ibx_error_set(
        &s->disturbed, -EBUSY,
        "QEMU (process %d) tried to write to the VM's memory here, and is blocked in that write",
        (int)s->status.record.pid);
    ibx_migration_notify(&s->options->observer, "%s", s->disturbed.message);
    ibx_source_vm_lose(&s->vm);
    int rc = open ? 0 : find_ram(s, err);
    return rc || pages_unchanged(s) ? rc : changed(s, "", err);
}

int ibx_source_protection_take(struct source *s, struct ibx_error *err)
{
    const struct ibx_record *record = &s->status.record;
    struct ibx_error why = {0};
    struct ibx_guest_ram ram;
    if (record->uffd < 0 || !record->block_count)
        return -EAGAIN;
    int rc = ibx_journal_recall_ram(record, &ram, err);
    if (rc)
        return rc;
    rc = ibx_write_protection_take(&s->protection, &ram, record->uffd, &why);
    ibx_guest_ram_fini(&ram);
    if (!rc)
        ibx_state_move(&s->protecting, PROTECTING_NOTED);
    if (!rc && record->all_protected)
        ibx_state_move(&s->protecting, PROTECTING_WHOLE);
    else if (rc && rc != -ENOENT)
        cannot_protect(s, &why);
    return s->protection.state.now == PROTECTION_CAUGHT ? go_on_held(s, err) : -EAGAIN;
}

int ibx_source_protection_blamed(struct source *s, int rc, struct ibx_error *err)
{
    return rc == -ETIMEDOUT && ibx_write_protection_look(&s->protection) ? go_on_held(s, err) : rc;
}

int ibx_source_protection_reach(struct source *s, struct ibx_error *err)
{
    /* The last one is for a QEMU that takes long to greet. */
    static const unsigned tries_ms[] = {250, 500, 1000, 2000, MIGRATION_QMP_MS};
    int rc = -ETIMEDOUT;
    if (s->protection.state.now != PROTECTION_MADE)
        return -EAGAIN;
    for (unsigned i = 0; rc == -ETIMEDOUT && i < sizeof(tries_ms) / sizeof(tries_ms[0]); i++) {
        rc = ibx_qmp_connect(s->options->qmp, ibx_deadline_in_ms(tries_ms[i]), &s->vm.qmp, err);
        if (rc == -ETIMEDOUT && ibx_write_protection_look(&s->protection))
            return go_on_held(s, err);
    }
    return rc ? rc : -EAGAIN;
}

/* Whether the first vCPU has been reset. It stands still, so it is where it was stopped or, after a
 * reset, where an x86 begins: 16 bytes below 4 GiB, which a VM leaves with its first instruction.
 */
static int ask_reset(struct ibx_qmp *qmp, bool *is, struct ibx_error *err)
{
    json_t *result;
    int rc = ibx_qmp_execute(qmp, "human-monitor-command",
                             json_pack("{s:s}", "command-line", "info registers"), &result,
                             ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc)
        return rc;
    const char *text = json_string_value(result);
    const bool known = text && (strstr(text, "EIP=") || strstr(text, "RIP="));
    *is = known && strstr(text, "EIP=0000fff0 ") && strstr(text, "CS =f000 ffff0000 ");
    json_decref(result);
    return known ? 0
                 : ibx_error_set(err, -EOPNOTSUPP,
                                 "whether somebody has reset the VM in this QEMU (process %d) "
                                 "since it was migrated is not known, because it is not an x86",
                                 (int)ibx_qmp_pid(qmp));
}

/* Whether QEMU still has its end of our migration's stream, which the record names. QEMU closes
 * that a moment before the VM's status shows it: then the status is asked again. */
static int find_ours(struct source *s, bool *ours, struct ibx_error *err)
{
    struct ibx_guest_ram *ram = &s->vm.ram;
    const uint64_t enough = ibx_deadline_in_ms(CLOSING_MS);
    int rc = ibx_return_path_find(ram->pid, s->status.record.stream, ours, err);
    while (!rc && !*ours && !strcmp(ram->status, "finish-migrate") && ibx_now_ns() < enough) {
        poll(NULL, 0, CLOSING_LOOK_MS);
        rc = ibx_vm_status(s->vm.qmp, ram->status, sizeof(ram->status),
                           ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    }
    return rc;
}

static int refuse_others(const struct source *s, struct ibx_error *err)
{
    return ibx_error_set(err, -EBUSY,
                         "the migration that QEMU (process %d) has ended last may be another "
                         "program's, before which the VM has run here: its pages are not served; "
                         "ib-migrate rollback here ends this migration, once the VM does not run "
                         "at the destination",
                         (int)s->vm.ram.pid);
}

/* Our migration is over. QEMU has a mark (return_path.h) if a rollback has ended it, and none if
 * the VM has run here since and another program has made the next migration. */
static int check_ended(const struct source *s, struct ibx_error *err)
{
    const int any = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const bool marked =
        any >= 0 && ibx_return_path_marked(s->vm.qmp, any, ibx_deadline_in_ms(MIGRATION_QMP_MS));
    if (any >= 0)
        close(any);
    if (marked && !strcmp(s->vm.ram.status, "postmigrate"))
        return 0;
    return refuse_others(s, err);
}

void ibx_source_note_figures(struct source *s)
{
    struct ibx_record *record = &s->status.record;
    if (source_managed(&s->vm) && s->vm.qmp && !record->qemu_migration[0])
        ibx_return_path_last(s->vm.qmp, record->qemu_migration, ibx_deadline_in_ms(FIGURES_MS),
                             NULL);
}

/* Where libvirt drives: compares the figures of QEMU's last migration with those of ours, if the
 * record has them. */
static int check_figures(const struct source *s, struct ibx_error *err)
{
    const char *ours = s->status.record.qemu_migration;
    char last[IBX_JOURNAL_FIGURES];
    if (!ours[0])
        return 0;
    int rc = ibx_return_path_last(s->vm.qmp, last, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc && rc != -ENODATA)
        return rc;
    return rc || strcmp(last, ours) != 0 ? refuse_others(s, err) : 0;
}

static int check_whose(struct source *s, struct ibx_error *err)
{
    bool ours = true;
    if (source_managed(&s->vm))
        return check_figures(s, err);
    int rc = s->status.record.stream ? find_ours(s, &ours, err) : 0;
    if (rc || ours)
        return rc;
    if (strcmp(s->vm.ram.status, "finish-migrate") != 0)
        return check_ended(s, err);
    ibx_error_set(&s->disturbed, -EBUSY,
                  "QEMU (process %d) is running a migration of another program, so that the VM has "
                  "run here since this one",
                  (int)s->vm.ram.pid);
    return changed(s, "", err);
}

/* QEMU allows a reset of a VM whose migration is held open. */
static int check_reset(struct source *s, struct ibx_error *err)
{
    bool is = false;
    int rc = ask_reset(s->vm.qmp, &is, err);
    if (rc || !is)
        return rc;
    if (!s->status.record.was_running)
        return ibx_error_set(err, -EOPNOTSUPP,
                             "the VM in QEMU (process %d) has the registers of an x86 at reset: it "
                             "was not running when it was migrated, and it is not known whether it "
                             "had not started yet or somebody has reset it since",
                             (int)s->vm.ram.pid);
    ibx_error_set(&s->disturbed, -EBUSY,
                  "another client has reset the VM in QEMU (process %d) here while no ib-migrate "
                  "ran",
                  (int)s->vm.ram.pid);
    return changed(s, "", err);
}

/* Checks what was done while no tool was there, or none to which QEMU could report. -EOPNOTSUPP:
 * that cannot be seen. */
static int check_past(struct source *s, struct ibx_error *err)
{
    if (pages_unchanged(s))
        return 0;
    int rc = check_whose(s, err);
    if (!rc && !strcmp(s->vm.ram.status, "finish-migrate"))
        rc = check_reset(s, err);
    return ibx_source_protection_blamed(s, rc, err);
}

int ibx_source_protection_check_past(struct source *s, struct ibx_error *err)
{
    int rc = check_past(s, err);
    if (rc != -EOPNOTSUPP)
        return rc;
    const struct ibx_error why = *err;
    return ibx_error_set(
        err, rc,
        "%s: its pages are not served; ib-migrate rollback here %s, once it does not run "
        "at the destination",
        why.message,
        s->status.record.was_running ? "restarts the VM from where it stopped"
                                     : "restores it as it stood");
}

/* A question that was asked over the last connection gets no answer any more: asks again. */
static void ask_again(struct source *s)
{
    if (s->vm.qmp &&
        (s->protecting.now == PROTECTING_ASKED || s->protecting.now == PROTECTING_LAST))
        ibx_qmp_post(s->vm.qmp, "query-status", ibx_deadline_in_ms(ASK_MS), NULL);
}

/* The VM runs here, and QEMU's report of that is lost. */
static int runs_here(struct source *s, struct ibx_error *err)
{
    json_t *resumed = json_pack("{s:s}", "event", "RESUME");
    s->unseen_since = !pages_unchanged(s) && !s->verifier;
    const int rc = ibx_source_on_intruder(s, resumed, err);
    json_decref(resumed);
    return rc;
}

int ibx_source_protection_recheck(struct source *s, struct ibx_error *err)
{
    const bool served = s->state.now == SOURCE_COMMITTED || s->state.now == SOURCE_SERVING;
    int rc = 0;
    if (!strcmp(s->vm.ram.status, "running") && s->state.now != SOURCE_LOST &&
        !ibx_source_libvirt_resumed(s))
        rc = runs_here(s, err);
    else if (served)
        rc = check_past(s, err);
    if (rc == -EOPNOTSUPP) { /* no reason to leave the VM there without its pages */
        ibx_migration_notify(&s->options->observer, "%s: its pages are served as they are",
                             err->message);
        rc = 0;
    }
    if (!rc)
        ask_again(s);
    if (rc != -EBUSY || !s->vm.qmp || ibx_qmp_pump(s->vm.qmp, NULL))
        return rc;
    struct ibx_error refused = {0}; /* its pages may be wrong */
    return ibx_source_move(s, SOURCE_LEFT, &refused) ? -EINVAL : rc;
}

/* ---------------------------------------------------------------- intruders */

/* A QEMU whose main thread is held takes the command when that thread continues. */
static void stop(struct source *s)
{
    if (s->vm.qmp)
        ibx_qmp_post(s->vm.qmp, "stop", ibx_deadline_in_ms(STOP_MS), NULL);
}

static void disturbed(struct source *s)
{
    s->uncompared = s->protecting.now == PROTECTING_NEEDLESS && s->status.record.verify;
    memcpy(s->status.message, s->disturbed.message, sizeof(s->status.message));
    ibx_migration_notify(
        &s->options->observer, "%s; %s, and the migration goes on%s", s->disturbed.message,
        s->protecting.now == PROTECTING_NEEDLESS ? "every page has come before that"
                                                 : "the pages are what they were",
        s->uncompared ? " without comparing the rest of them" : "");
}

int ibx_source_check_protection(struct source *s, struct ibx_error *err)
{
    if (!ibx_write_protection_check(&s->protection, &s->disturbed))
        return 0;
    stop(s);
    if (!pages_unchanged(s))
        return changed(s, "", err);
    disturbed(s);
    return 0;
}

int ibx_source_on_intruder(struct source *s, json_t *event, struct ibx_error *err)
{
    const bool resumed = ibx_vm_event_is(event, "RESUME", NULL);
    if (!resumed && !ibx_vm_event_is(event, "RESET", NULL))
        return 0;
    stop(s);
    if (!s->disturbed.code)
        ibx_error_set(&s->disturbed, -EBUSY,
                      "another client has %s the VM in QEMU (process %d) here",
                      resumed ? "continued" : "reset", (int)s->vm.ram.pid);
    /* Its pages are not needed any more. */
    if (s->state.now == SOURCE_CONFIRMING || s->state.now == SOURCE_DONE)
        return 0;
    if (!pages_unchanged(s))
        return changed(s, "; it was stopped again", err);
    disturbed(s);
    return 0;
}

/* QEMU takes back a disk that it has handed over when somebody exports it, and then the QEMU there
 * cannot have it. QEMU keeps the disk even when the export has ended. */
void ibx_source_blame_export(struct source *s)
{
    struct ibx_blockers users = {0};
    if (!s->vm.qmp || !s->status.record.was_running ||
        ibx_preflight_block_users(s->vm.qmp, &users, ibx_deadline_in_ms(USERS_MS), NULL) ||
        !users.count)
        return;
    ibx_migration_notify(
        &s->options->observer,
        "the VM is stopped at %s, since somebody has begun here to use a disk that this QEMU "
        "(process %d) had handed over, and has taken back for that: end this QEMU (quit), whose "
        "pages are held here, and leave this ib-migrate running",
        s->status.record.peer, (int)s->vm.ram.pid);
}

/* ---------------------------------------------------------------- the end */

/* QEMU answers in order: if it has taken the command that was posted, it has stopped the VM before
 * it tells the status. */
static int make_stand(struct source *s, uint64_t deadline_ns, struct ibx_error *why)
{
    char status[32];
    int rc = ibx_source_vm_reach(&s->vm, s->options->qmp, LAST_STOP_MS, why);
    if (!rc)
        rc = ibx_vm_status(s->vm.qmp, status, sizeof(status), deadline_ns, why);
    if (!rc && !strcmp(status, "running"))
        rc = ibx_qmp_execute(s->vm.qmp, "stop", NULL, NULL, deadline_ns, why);
    return rc;
}

/* In LEFT the next tool looks at the VM. A QEMU whose thread is held would not answer. Where
 * libvirt drives, it may have continued the VM. */
static bool must_stand(struct source *s)
{
    if (!s->disturbed.code || (s->state.now != SOURCE_BROKEN && s->state.now != SOURCE_DONE) ||
        source_managed(&s->vm) || (!s->vm.qmp && !s->vm.retry_ns))
        return false;
    ibx_write_protection_check(&s->protection, NULL);
    return s->protection.state.now != PROTECTION_CAUGHT;
}

void ibx_source_stop_at_last(struct source *s)
{
    const uint64_t deadline = ibx_deadline_in_ms(LAST_STOP_MS);
    struct ibx_error why = {0};
    while (must_stand(s) && make_stand(s, deadline, &why) &&
           !ibx_journal_qemu_gone(&s->status.record)) {
        if (ibx_now_ns() >= deadline) {
            if (must_stand(s))
                ibx_migration_notify(&s->options->observer,
                                     "QEMU (process %d) may run the VM here, too, since it could "
                                     "not be told to stop it (%s): end it",
                                     (int)s->vm.ram.pid, why.message);
            return;
        }
        ibx_source_vm_lose(&s->vm);
        s->vm.retry_ns = ibx_now_ns();
        poll(NULL, 0, LAST_RETRY_MS);
    }
}

static int let_go(struct source *s, unsigned ms, struct ibx_error *why)
{
    if (ibx_write_protection_check(&s->protection, &s->disturbed))
        stop(s);
    if (s->disturbed.code || !s->vm.qmp)
        return 0;
    ibx_write_protection_release(&s->protection);
    int rc = ibx_source_stream_release(&s->stream, s->vm.qmp, ibx_deadline_in_ms(ms), why);
    if (!rc && s->stream.state.now == STREAM_RELEASED && !source_managed(&s->vm) &&
        !ibx_return_path_planned(s->vm.undo.before)) /* the record is of an earlier version */
        rc = ibx_return_path_disable(s->vm.qmp, ibx_deadline_in_ms(ms), why);
    return rc;
}

void ibx_source_let_go_early(struct source *s)
{
    struct ibx_error later = {0};
    let_go(s, LET_GO_EARLY_MS, &later);
}

/* What QEMU has reported since its events were last taken, or while its monitor was lost, is seen
 * by its status only. A QEMU that does not answer may wait for the protection, which is removed
 * next. */
static void look_at_last(struct source *s)
{
    char status[sizeof(s->vm.ram.status)];
    if (s->vm.qmp && !s->disturbed.code && !source_managed(&s->vm) &&
        !ibx_vm_status(s->vm.qmp, status, sizeof(status), ibx_deadline_in_ms(LAST_LOOK_MS), NULL) &&
        !strcmp(status, "running"))
        runs_here(s, NULL);
}

void ibx_source_let_go(struct source *s)
{
    struct ibx_error why = {0};
    int rc = ibx_source_vm_reach(&s->vm, s->options->qmp, MIGRATION_QMP_MS, &why);
    if (rc && ibx_journal_qemu_gone(&s->status.record))
        return;
    if (!rc)
        look_at_last(s);
    if (rc || let_go(s, MIGRATION_QMP_MS, &why))
        ibx_migration_notify(&s->options->observer,
                             "QEMU (process %d) is not needed any more, but does not end its "
                             "migration (%s): end it",
                             (int)s->vm.ram.pid, why.message);
}

/* What comparing the pages that have come has shown, if the guest has shut the VM down meanwhile:
 * some need not have come. What the destination sent last is still compared. */
static int compared(const struct source *s, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(VERDICT_MS);
    struct ibx_error wrong = s->given_up;
    bool idle = true;
    if (s->uncompared || s->status.record.state != IBX_JOURNAL_ENDED ||
        ibx_journal_has_returned(&s->status.record)) /* with compared pages only */
        return 0;
    while (s->verifier && !(idle = ibx_verifier_idle(s->verifier)) && ibx_now_ns() < deadline)
        poll(NULL, 0, 5);
    int rc = s->verifier ? ibx_verifier_result(s->verifier, &wrong) : -EAGAIN;
    if (rc == -EAGAIN)
        rc = idle ? s->verifier && !ibx_verifier_missed(s->verifier) ? 0 : s->given_up.code
                  : ibx_error_set(&wrong, -ETIMEDOUT, "comparing pages took longer than %u seconds",
                                  VERDICT_MS / 1000);
    return rc ? ibx_error_set(
                    err, rc, "%s%s; the guest has shut the VM down at %s since: check its disks",
                    wrong.message, rc == -EBADMSG ? "" : ", so that not all pages were compared",
                    s->status.record.uri)
              : 0;
}

int ibx_source_verdict(const struct source *s, struct ibx_error *err)
{
    const int rc = compared(s, err);
    if (rc)
        return rc;
    if (!s->disturbed.code)
        return 0;
    return ibx_error_set(err, -EBUSY,
                         "%s; the VM is at %s with all of its pages%s: end this QEMU, by kill -9 "
                         "%d if it does not answer",
                         s->disturbed.message, s->status.record.uri,
                         s->unseen_since ? ", which may have changed here before they came"
                         : s->uncompared ? " as they were, of which the last could not be compared"
                                         : " as they were",
                         (int)s->vm.ram.pid);
}
