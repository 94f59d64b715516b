/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A migration that libvirt drives: what libvirt sets, the gate, and what libvirt decides. It
 * continues the VM here if the migration has failed at the destination, and otherwise ends QEMU
 * here. */
#include "migrate/source/source.h"

#include "common/clock.h"
#include "common/shell_word.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define SET_MS        10000 /* for libvirt to set pause-before-switchover, once it may connect */
#define COMES_MS      10000 /* for libvirt to connect, once it may */
#define LAST_MS       1000  /* for the destination to say that its QEMU has ended */
#define TELL_MS       10000 /* for the destination to learn that the VM runs here again */
#define TELL_AGAIN_MS 250
#define ENDS_MS       3000 /* for libvirt to end QEMU here, or to continue the VM, at the end */
#define ENDS_LOOK_MS  20

/* ---------------------------------------------------------------- before the stop */

void ibx_source_libvirt_link_files(struct source *s)
{
    struct ibx_error why = {0};
    if (ibx_journal_link_files(&s->status.record, &why))
        ibx_migration_notify(&s->options->observer,
                             "should this ib-migrate be killed while pages are missing, they are "
                             "lost, because libvirt ends the source's QEMU (%s)",
                             why.message);
}

/* If libvirt does not set pause-before-switchover, or QEMU refuses to reset it, QEMU pauses. */
int ibx_source_libvirt_check_set(struct source *s, struct ibx_error *err)
{
    struct ibx_error silent = {0};
    if (!source_managed(&s->vm))
        return 0;
    if (!s->pause_by_ns)
        s->pause_by_ns = ibx_deadline_in_ms(SET_MS);
    int rc = ibx_libvirt_skip_pause(s->vm.qmp, ibx_deadline_in_ms(MIGRATION_QMP_MS), &silent);
    if (rc == -EAGAIN && ibx_now_ns() < s->pause_by_ns)
        return rc;
    rc = ibx_libvirt_check_settings(s->vm.qmp, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    s->vm.undo.touched |=
        rc != 0; /* QEMU itself may wait at the gate, in a migration that it has begun */
    return rc;
}

/* As late as can be: should libvirt's job on the VM end meanwhile (virsh domjobabort), libvirt may
 * save the VM, and with these settings that would be without RAM. It stops the VM before that. If
 * this tool stands still then, its watchdog puts them back. */
int ibx_source_libvirt_set(struct source *s, struct ibx_error *err)
{
    char status[IBX_MIGRATE_STATUS];
    const uint64_t mark = ibx_qmp_mark(s->vm.qmp); /* it may stand still amid them, too */
    int rc = ibx_source_set_settings(s, err);
    if (rc)
        return rc;
    s->set_mark = mark;
    rc =
        ibx_vm_status(s->vm.qmp, status, sizeof(status), ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    s->vm.paused |= !rc && strcmp(status, "running") != 0;
    return rc;
}

void ibx_source_libvirt_written(struct source *s)
{
    if (source_managed(&s->vm) && s->vm.qmp)
        s->written_mark = ibx_qmp_mark_next(s->vm.qmp);
}

/* If the watchdog has put x-ignore-shared back, what QEMU migrates then has RAM in it, and is no
 * state that the destination could load. While QEMU migrates, it refuses that. So once it has
 * written its state, and answered a question after that, its migration has begun without RAM, and
 * it no longer matters: a watchdog may find a tool late that only waits for the destination. */
static int check_set(const struct source *s, struct ibx_error *err)
{
    if (!s->set_mark || source_committed(s) || !s->vm.qmp ||
        !ibx_qmp_stood_in(s->vm.qmp, s->set_mark) ||
        (s->written_mark && ibx_qmp_stood_in(s->vm.qmp, s->written_mark)))
        return 0;
    return ibx_error_set(err, -EBUSY,
                         "this ib-migrate stood still (SIGSTOP, a debugger, a frozen control "
                         "group, a busy host) amid libvirt's migration of the VM, and so that a VM "
                         "that is saved meanwhile keeps its memory, QEMU was set to migrate that, "
                         "too: begin again");
}

int ibx_source_libvirt_let(struct source *s, struct ibx_error *err)
{
    ibx_migration_stop_at("source", "set");
    s->gate_by_ns = ibx_deadline_in_ms(COMES_MS);
    return ibx_gate_let(&s->gate, err);
}

bool ibx_source_libvirt_is_early(const struct source *s, int *rc, struct ibx_error *err)
{
    struct ibx_vm_progress now;
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    struct ibx_error named = {0};
    if (!source_managed(&s->vm) || ibx_vm_migration(s->vm.qmp, &now, deadline, NULL) ||
        ibx_vm_migration_ended(now.status))
        return false;
    const int code = ibx_libvirt_migrates_already(s->vm.qmp, s->options->libvirt, deadline, &named);
    if (code == -EPERM || code == -EBUSY)
        *rc = ibx_error_set(err, code, "%s", named.message);
    return true;
}

/* Whether QEMU has stopped the VM for a migration, and nobody has come through the gate. */
static bool goes_past_the_gate(const struct source *s)
{
    char status[IBX_MIGRATE_STATUS];
    return s->stream.state.now == STREAM_CLOSED &&
           !ibx_vm_status(s->vm.qmp, status, sizeof(status), ibx_deadline_in_ms(MIGRATION_QMP_MS),
                          NULL) &&
           (!strcmp(status, "finish-migrate") || !strcmp(status, "postmigrate"));
}

int ibx_source_libvirt_runs(const struct source *s, struct ibx_error *err)
{
    if (!source_managed(&s->vm) || !s->vm.paused)
        return 0;
    if (goes_past_the_gate(s))
        return ibx_libvirt_past(s->options->libvirt, err);
    return ibx_error_set(
        err, -EBUSY,
        "the VM has been stopped here (virsh suspend, another client of QEMU, or "
        "a disk of it) since this send began: a VM that does not run gains nothing from "
        "post-copy, let virsh migrate move it without --migrateuri, or virsh "
        "resume and begin again");
}

static int left_before(const struct source *s, int code, struct ibx_error *err)
{
    return ibx_error_set(err, code,
                         "libvirt has given up its migration before QEMU began it (virsh "
                         "domjobabort, or the end of virsh or libvirtd), and %s",
                         s->stream.state.now == STREAM_CLOSED ? "has not connected"
                                                              : "has ended its connection");
}

int ibx_source_libvirt_gate(struct source *s, struct ibx_error *err)
{
    int fd, rc = check_set(s, err);
    if (!rc)
        rc = ibx_gate_take(&s->gate, s->vm.ram.pid, &fd, err);
    if (!rc)
        return ibx_source_stream_adopt(&s->stream, fd, err);
    if (rc != -EAGAIN)
        return rc;
    /* libvirt connects before it has QEMU begin: if it has not come by now, it does not come any
     * more. */
    if (!source_managed(&s->vm) || s->state.now != SOURCE_STARTING ||
        s->stream.state.now != STREAM_CLOSED)
        return 0;
    if (s->vm.state.now == VM_STOPPED && goes_past_the_gate(s))
        return ibx_libvirt_past(s->options->libvirt, err);
    return ibx_now_ns() < s->gate_by_ns ? 0 : left_before(s, -ETIMEDOUT, err);
}

/* Nobody but libvirt's own migration stops the VM, and that comes through the gate: so libvirt's
 * job on the VM is over, and libvirt may be about to save the VM. What it saves must have RAM. */
int ibx_source_libvirt_stopped(struct source *s, json_t *event, struct ibx_error *err)
{
    if (!source_managed(&s->vm) || !ibx_vm_event_is(event, "STOP", NULL) ||
        s->state.now > SOURCE_STARTING || s->stream.state.now != STREAM_CLOSED)
        return 0;
    const int rc = ibx_source_libvirt_gate(s, err);
    if (rc || s->stream.state.now != STREAM_CLOSED)
        return rc;
    s->vm.paused = true;
    return ibx_source_libvirt_runs(s, err);
}

/* libvirt was told to abort while it waited to connect, or has died: it closes the stream without
 * having QEMU begin, and its job on the VM ends. What it saves next must have RAM. */
bool ibx_source_libvirt_left(const struct source *s, struct ibx_error *err)
{
    struct ibx_vm_progress now;
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    if (!source_managed(&s->vm) || s->stream.bytes || s->stream.held_length ||
        ibx_vm_migration(s->vm.qmp, &now, deadline, NULL) || now.error[0] ||
        !strncmp(now.status, "cancel", 6))
        return false;
    left_before(s, -EPIPE, err);
    return true;
}

/* ---------------------------------------------------------------- what it decides */

/* Whether libvirt may continue the VM here: QEMU's migration is complete as far as libvirt can see,
 * and RUNNING has not come; or the VM's QEMU has ended at the destination. */
static bool decides(const struct source *s)
{
    return s->state.now == SOURCE_COMMITTED || s->state.now == SOURCE_LOST ||
           (s->state.now == SOURCE_SENDING && s->stream.state.now == STREAM_RELEASED);
}

int ibx_source_libvirt_decided(struct source *s, struct ibx_error *err)
{
    const struct ibx_record *record = &s->status.record;
    if (!source_managed(&s->vm) || s->vm.qmp || s->link.state.now != LINK_MAPPED ||
        s->decided_epoch == record->epoch || !ibx_journal_qemu_gone(record))
        return 0;
    s->decided_epoch = record->epoch;
    return ibx_source_link_send(&s->link, IBX_MIGRATE_DECIDED, err);
}

/* After a lost link the VM counts as running there once it has loaded, but libvirt had not decided
 * that: LOST. */
static int never_ran_there(struct source *s)
{
    struct ibx_error silent = {0};
    return s->state.now == SOURCE_SERVING && !s->vm.ran_there
               ? ibx_source_move(s, SOURCE_LOST, &silent)
               : 0;
}

bool ibx_source_libvirt_resumed(struct source *s)
{
    if (!source_managed(&s->vm))
        return false;
    ibx_source_take_last_abort(s, LAST_MS, NULL);
    if (never_ran_there(s) || !decides(s))
        return false;
    if (s->vm.libvirt.now != LIBVIRT_CONTINUED)
        ibx_state_move(&s->vm.libvirt, LIBVIRT_CONTINUED);
    return true;
}

/* The VM runs here by now. Tells the destination, which would wait for this side with the VM
 * loaded, and tries again if its tool or its link is not there at once. */
static void tell_destination(struct source *s, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(TELL_MS);
    const struct ibx_error why = *err;
    int rc;
    for (;;) {
        s->status.record.epoch++;
        rc = ibx_source_link_disown(&s->link, why.message);
        if (!rc || rc == -EALREADY || ibx_now_ns() >= deadline)
            break;
        poll(&(struct pollfd){.fd = s->signals.fd, .events = POLLIN}, 1, TELL_AGAIN_MS);
        if (ibx_migration_signals_take(&s->signals, true))
            break;
    }
    if (rc && rc != -EALREADY)
        ibx_error_set(err, why.code,
                      "%s; %s could not be told: if its QEMU is there, with the VM paused, end it "
                      "(virsh destroy there)",
                      why.message, s->status.record.peer);
}

int ibx_source_libvirt_check(struct source *s, struct ibx_error *err)
{
    if (s->vm.libvirt.now != LIBVIRT_CONTINUED)
        return 0;
    const bool ran = s->state.now == SOURCE_LOST && s->vm.ran_there;
    const bool committed = source_committed(s);
    ibx_error_set(err, -ECANCELED, "libvirt has continued the VM here: %s %s%s",
                  ran ? "its QEMU at" : "its migration to", s->status.record.peer,
                  ran ? " has ended, and what it did there is lost: check its file systems"
                      : " failed there");
    int rc = ibx_source_keep(s, -ECANCELED, err);
    if (committed && !ran && s->state.now == SOURCE_KEPT && s->peer.now != PEER_ABORTED)
        tell_destination(s, err);
    return rc;
}

int ibx_source_libvirt_say_saved(const struct source *s, struct ibx_error *err)
{
    char text[IBX_ERROR_MAX];
    ibx_journal_say_without_ram(&s->status.record, text, sizeof(text));
    return ibx_error_set(err, -ENOTRECOVERABLE, "%s", text);
}

/* What libvirt has saved can be loaded with the memory that is here alone, so that must stay. */
int ibx_source_libvirt_saved(struct source *s, struct ibx_error *err)
{
    struct ibx_record *record = &s->status.record;
    struct ibx_error silent = {0};
    ibx_watchdog_release(&s->vm.watchdog);
    ibx_source_move(s, SOURCE_STRANDED, &silent);
    snprintf(record->vm_status, sizeof(record->vm_status), IBX_JOURNAL_WITHOUT_RAM);
    if (ibx_migration_record(s->options->folder, record, record->state, &silent))
        ibx_migration_notify(&s->options->observer, "%s", silent.message);
    return ibx_source_libvirt_say_saved(s, err);
}

/* ---------------------------------------------------------------- the end */

void ibx_source_libvirt_tell_left(struct source *s)
{
    const struct ibx_record *record = &s->status.record;
    const bool ended = record->state == IBX_JOURNAL_ENDED;
    const uint64_t deadline = ibx_deadline_in_ms(ENDS_MS);
    if (!source_managed(&s->vm))
        return;
    while (ibx_journal_qemu_lives(record)) {
        if (ibx_now_ns() < deadline) {
            poll(NULL, 0, ENDS_LOOK_MS);
            continue;
        }
        ibx_migration_notify(&s->options->observer,
                             "libvirt has not ended the VM's QEMU here (process %d), although the "
                             "VM %s %s: do not continue it here (virsh resume), since %s; virsh "
                             "destroy %s on this host ends what is left here",
                             (int)record->pid, ended ? "was shut down by its guest at" : "runs at",
                             record->peer,
                             ended ? "its disks are not what they were when it stopped here"
                                   : "two running copies would destroy its disks",
                             record->name[0] ? record->name : record->uuid);
        return;
    }
}

void ibx_source_libvirt_tell_paused(struct source *s)
{
    const struct ibx_record *record = &s->status.record;
    const char *name = record->name[0] ? record->name : record->uuid;
    const uint64_t deadline = ibx_deadline_in_ms(ENDS_MS);
    char status[IBX_MIGRATE_STATUS] = "";
    /* libvirt is not to continue a VM that was paused before this migration could stop it, or that
     * another migration has taken. */
    if (!source_managed(&s->vm) || !s->vm.qmp || s->vm.paused || !s->stream.managed)
        return;
    while (!ibx_vm_status(s->vm.qmp, status, sizeof(status), deadline, NULL) &&
           !ibx_vm_lives(status) && ibx_now_ns() < deadline)
        poll(NULL, 0, ENDS_LOOK_MS);
    if (status[0] && !ibx_vm_lives(status) && ibx_journal_qemu_lives(record))
        ibx_migration_notify(&s->options->observer,
                             "libvirt has not continued VM %s, which stayed here (QEMU says %s): "
                             "see that libvirtd runs, and virsh resume %s unless it is to be "
                             "paused",
                             name, status, ibx_shell_word(name).text);
}
