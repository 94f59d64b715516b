/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The watchdog of a VM that is being migrated or frozen. The tool writes single letters to it:
 *
 *   B{...}\n  settings to put back     T  the migration is started
 *   G         the VM is to go on       P  it is to stay paused
 *   C         committed                U  QEMU has refused that
 *   R         released                 M  it has completed, and was marked (return_path.h)
 *   S         the guest sleeps (S3) in a QEMU that cannot continue it then       A  it is awake
 *   I         the tool was interrupted, and says so itself
 *
 * The end of that stream means that the tool has ended, for whatever reason.
 *
 * state machine: watchdog
 *   [*] -> WATCHING -> SETTLING -> DISMISSED -> [*]  committed, then released
 *   WATCHING -> DISMISSED                            committed, or released
 *   WATCHING | SETTLING -> [*]                       the tool has ended: it does its work
 *
 * WATCHING: it continues the VM, unless its snapshot is whole. SETTLING: where libvirt drives,
 * libvirt may still continue the VM here; then the watchdog puts QEMU's settings back. DISMISSED:
 * nothing depends on it, and it ends.
 *
 * It is in QEMU's control group, and a service manager that stops QEMU's unit sends all in that
 * group SIGTERM, and waits until it is empty. What the watchdog does at this signal:
 *
 *               QEMU lives                      QEMU has ended
 *   WATCHING    nothing: the VM is still here   it ends: there is no VM to continue
 *   SETTLING    nothing: libvirt may need it    it ends
 */
#include "migrate/common/watchdog.h"

#include "migrate/common/common.h"
#include "migrate/common/libvirt.h"
#include "migrate/common/return_path.h"
#include "migrate/common/stand_in.h"

#include "common/clock.h"
#include "common/control_groups.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINE_MAX_BYTES 8192
#define SWEEP_MS       1000  /* to remove the tool's socket */
#define LOOK_MS        1000  /* for one look at a QEMU that libvirt may end */
#define RETRY_MS       100   /* between two tries to reach the monitor, or looks for QEMU's end */
#define TAKE_OVER_MS   10000 /* for QEMU to answer over the tool's connection */
#define END_MS         2000  /* for a released watchdog to end */
#define KEPT_FDS       5     /* descriptors of the tool that the watchdog uses */

enum watchdog_state { WATCHING, SETTLING, DISMISSED };

static const struct ibx_state watchdog_states[] = {
    [WATCHING] = {"watching", IBX_TO(SETTLING) | IBX_TO(DISMISSED),
                  IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [SETTLING] = {"settling", IBX_TO(DISMISSED), IBX_STATE_FINAL},
    [DISMISSED] = {"dismissed", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table watchdog_table = IBX_STATE_TABLE("watchdog", watchdog_states);

struct watchdog {
    struct ibx_record record;
    struct ibx_options transport; /* only set with a folder */
    struct ibx_vm_undo vm;
    bool sleeps;        /* the guest, and this QEMU would end if it continued it */
    bool interrupted;   /* the tool has said that the VM stays */
    const char *folder; /* NULL: nothing is recorded */
    int lock_fd;        /* the record's lock; -1: none */
    int claim_fd;       /* the VM's; -1: none */
    const char *seal;   /* of a snapshot; NULL: this is no freeze */
    int sealed_at;
    struct ibx_state_machine state;
    struct ibx_stand_in stand_in;
    const struct ibx_qmp *qmp; /* the tool's, as it was; NULL: not known */
    char line[LINE_MAX_BYTES];
    size_t length; /* of a line that has begun */
};

/* ---------------------------------------------------------------- the watchdog's side */

static void on_settings(struct watchdog *w)
{
    w->line[w->length] = 0;
    json_decref(w->vm.before);
    w->vm.before = json_loads(w->line + 1, 0, NULL);
    w->length = 0;
}

static void on_letter(struct watchdog *w, char letter)
{
    if (w->length && letter == '\n')
        on_settings(w);
    else if (w->length ? w->length < sizeof(w->line) - 1 : letter == 'B')
        w->line[w->length++] = letter;
    else if (!w->length) {
        w->vm.touched = letter == 'T' || (w->vm.touched && letter != 'U');
        w->vm.marked |= letter == 'M';
        w->sleeps = letter == 'S' || (w->sleeps && letter != 'A');
        w->interrupted |= letter == 'I';
        w->vm.was_running = letter == 'G' || (w->vm.was_running && letter != 'P');
        if (letter == 'C')
            ibx_state_move(&w->state, w->vm.libvirt ? SETTLING : DISMISSED);
        if (letter == 'R' && w->state.now != DISMISSED)
            ibx_state_move(&w->state, DISMISSED);
    }
}

/* -ESRCH: another QEMU has this monitor's path by now. */
static int connect_to(const struct watchdog *w, struct ibx_qmp **qmp, uint64_t deadline,
                      struct ibx_error *err)
{
    int rc = ibx_qmp_connect(w->record.qmp, deadline, qmp, err);
    const int pid = rc ? 0 : (int)ibx_qmp_pid(*qmp);
    if (rc || pid == w->record.pid)
        return rc;
    ibx_qmp_close(*qmp);
    *qmp = NULL;
    return ibx_error_set(err, -ESRCH,
                         "the monitor %s belongs to process %d now, and this VM is in the QEMU of "
                         "process %d",
                         w->record.qmp, pid, (int)w->record.pid);
}

/* Over the tool's connection, if somebody has removed the socket where that was made. */
static int take_over(struct watchdog *w, struct ibx_qmp **qmp, struct ibx_error *err)
{
    if (!access(w->record.qmp, F_OK)) {
        ibx_stand_in_end(&w->stand_in);
        return -EEXIST;
    }
    const int monitor = ibx_stand_in_leave(&w->stand_in);
    return monitor < 0
               ? -ENOENT
               : ibx_qmp_take_over(w->qmp, monitor, ibx_deadline_in_ms(TAKE_OVER_MS), qmp, err);
}

/* QEMU serves one monitor at a time, and may take a moment to notice that the tool's is closed. */
static int reach(struct watchdog *w, struct ibx_qmp **qmp, uint64_t deadline, struct ibx_error *err)
{
    int rc = take_over(w, qmp, err);
    if (!rc)
        return rc;
    while ((rc = connect_to(w, qmp, deadline, err)) && rc != -ESRCH && ibx_now_ns() < deadline &&
           ibx_journal_qemu_lives(&w->record))
        usleep(RETRY_MS * 1000);
    return rc;
}

/* Records that the VM stays here (KEPT), and removes what the migration has left. If the record
 * says that the VM runs at the destination, this fails, and the VM's memory keeps its second name.
 * `was`: the record as the tool has written it; epoch 0: it has written none. */
static int kept(struct watchdog *w, struct ibx_record *was, struct ibx_error *err)
{
    *was = w->record;
    const int found = ibx_journal_reload(w->folder, was, NULL);
    was->epoch = found ? 0 : was->epoch;
    if (found == -ENOENT)
        return 0; /* the tool had not written it yet */
    if (!found) { /* with all that the tool has learned since the copy was made */
        w->record = *was;
        w->record.settings[0] = '\0'; /* they are back */
    }
    w->record.state = IBX_JOURNAL_KEPT;
    int rc = ibx_journal_write(w->folder, &w->record, err);
    if (!rc)
        ibx_journal_unlink_files(&w->record);
    if (!rc)
        ibx_journal_forget_page_states(&w->record);
    return rc;
}

/* A VM need not have a name; its monitor does. */
static const char *name_of(const struct ibx_record *record)
{
    return record->name[0] ? record->name : record->qmp;
}

/* Logs that the VM stays. The tool was killed, or has ended by a signal that it handles, and has
 * said so. A VM that does not run was paused before, or by another client meanwhile; or another
 * tool migrated it before this one had touched it. */
static void say_stays(const struct watchdog *w, struct ibx_qmp *qmp, uint64_t deadline)
{
    char status[32], where[96] = "goes on here"; /* where libvirt drives, it does that */
    char why[IBX_ERROR_MAX] = "";
    if (!w->vm.libvirt && !ibx_vm_status(qmp, status, sizeof(status), deadline, NULL) &&
        strcmp(status, "running") != 0) {
        snprintf(where, sizeof(where), "does not run here, and is left so (QEMU says %s)", status);
        if (w->sleeps || !strcmp(status, "suspended"))
            snprintf(why, sizeof(why), "%s", ibx_vm_asleep(status));
        else
            ibx_vm_say_stopped(qmp, status, why, sizeof(why), deadline);
    }
    ibx_log(w->interrupted ? IBX_LOG_INFO : IBX_LOG_WARN,
            "ib-migrate ended before the %s: VM %s %s%s%s",
            w->folder ? "commit" : "snapshot was whole", name_of(&w->record), where,
            *why ? ": " : "", why);
}

/* Also if it cannot be seen: a VM that stands still is noticed, and a disk that changes below the
 * children is not. The tool has ended, so this does not change any more. faccessat(3) would need a
 * system call for AT_SYMLINK_NOFOLLOW that the profiles of older containers refuse. */
static bool is_sealed(const struct watchdog *w)
{
    struct stat st;
    return w->seal &&
           (!fstatat(w->sealed_at, w->seal, &st, AT_SYMLINK_NOFOLLOW) || errno != ENOENT);
}

/* Logs what became of the VM. `status`: what QEMU has said of it, "" if it was not reached. `rc`:
 * why it was not, or why its settings are not back. */
static void say_frozen(const struct watchdog *w, const char *status, int rc,
                       const struct ibx_error *err)
{
    const char *what = "stays stopped", *not_done = "; " IBX_VM_SETTINGS_STAY ": ";
    if (rc && ibx_journal_qemu_gone(&w->record)) {
        what = "is only in the snapshot, because its QEMU has ended";
        rc = 0;
    } else if (!*status) {
        what = "may run, if another client of QEMU has continued it: what it writes to its disks "
               "its children have, too";
        not_done = "; QEMU could not be asked, and its migration settings are not put back: ";
    } else if (!strcmp(status, "running"))
        what = "runs, because another client of QEMU has continued it: what it writes to its disks "
               "its children have, too";
    ibx_log(IBX_LOG_WARN, "ib-migrate ended when the snapshot was whole: VM %s %s%s%s",
            name_of(&w->record), what, rc ? not_done : "", rc ? err->message : "");
}

/* The tool was killed after the snapshot was whole: the VM is left as the tool or another client of
 * QEMU has left it, and QEMU's settings are put back. */
static void leave_frozen(struct watchdog *w)
{
    const uint64_t deadline = ibx_deadline_in_ms(IBX_MIGRATE_STAY_MS);
    struct ibx_error err = {0};
    struct ibx_qmp *qmp = NULL;
    char status[32] = "";
    w->vm.was_running = false;
    int rc = reach(w, &qmp, deadline, &err);
    if (!rc)
        rc = ibx_vm_status(qmp, status, sizeof(status), deadline, &err);
    if (!rc)
        rc = ibx_vm_stay(qmp, &w->vm, deadline, &err);
    if (!rc)
        ibx_return_path_unmark(qmp, deadline);
    say_frozen(w, status, rc, &err);
    ibx_qmp_close(qmp);
}

/* From here on another tool may work on the VM. */
static void unlock(const struct watchdog *w)
{
    close(w->lock_fd);
    if (w->claim_fd >= 0)
        close(w->claim_fd);
}

/* Whoever reads the tool's messages to their end does not wait for what says nothing more. */
static void close_messages(void)
{
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null >= 0)
        dup2(null, STDERR_FILENO);
}

/* A destination that has everything waits for the commit without limit: tells it that there will be
 * none. The record is over before, and another tool may migrate the VM meanwhile. */
static void tell_destination(struct watchdog *w, struct ibx_record *was)
{
    struct ibx_error err = {0};
    if (!was->epoch)
        return;
    if (!ibx_log_enabled(IBX_LOG_INFO))
        close_messages();
    unlock(w);
    was->epoch++;
    if (ibx_migration_disown(was, &w->transport,
                             "ib-migrate ended there before the commit, and the VM stays", &err))
        ibx_log(IBX_LOG_INFO, "the destination of VM %s could not be told so: %s", name_of(was),
                err.message);
}

/* Logs what could not be done because of `why`. `stays`: only the record is missing. `settings`:
 * only they are missing. */
static void say_not_done(const struct watchdog *w, bool stays, bool settings,
                         const struct ibx_error *why)
{
    ibx_log(IBX_LOG_ERROR, "ib-migrate ended, and VM %s %s: %s%s", name_of(&w->record),
            stays      ? "goes on here, which could not be recorded (ib-migrate rollback does)"
            : settings ? "is as it was, but " IBX_VM_SETTINGS_STAY
                       : "could not be continued here",
            why->message,
            stays                   ? ""
            : settings && w->folder ? "; ib-migrate rollback does that when that has ended"
            : w->vm.libvirt
                ? "; if libvirt has continued it, its disks may be inactive: " IBX_VM_DISKS_BACK
                : "");
}

/* Removes the gate's socket. The kernel closes the descriptors of a killed process in any order, so
 * its listener may still be open at the first try. */
static void sweep(const struct watchdog *w)
{
    const uint64_t deadline = ibx_deadline_in_ms(SWEEP_MS);
    const char *path = w->vm.libvirt;
    if (!path)
        return;
    for (ibx_gate_sweep(path); !access(path, F_OK) && ibx_now_ns() < deadline; ibx_gate_sweep(path))
        usleep(RETRY_MS * 1000);
}

static void continue_vm(struct watchdog *w)
{
    const uint64_t deadline = ibx_deadline_in_ms(IBX_MIGRATE_STAY_MS);
    struct ibx_error err = {0};
    struct ibx_qmp *qmp = NULL;
    struct ibx_record was = {.epoch = 0};
    w->vm.was_running &= !w->sleeps;
    int rc = reach(w, &qmp, deadline, &err);
    if (!rc)
        rc = ibx_vm_stay(qmp, &w->vm, deadline, &err);
    /* libvirt may be about to start a migration, which fails because the tool has ended; or another
     * client's migration, which has to end, has not ended yet. The last try has time, too. */
    while ((rc == -EAGAIN || (rc == -EREMOTEIO && w->vm.libvirt)) && ibx_now_ns() < deadline) {
        usleep(RETRY_MS * 1000);
        rc = ibx_vm_stay(qmp, &w->vm, deadline + LOOK_MS * IBX_NS_PER_MS, &err);
    }
    const bool stays = !rc, settings = rc == -EAGAIN;
    if (!rc && w->folder)
        rc = kept(w, &was, &err);
    if (rc)
        say_not_done(w, stays, settings, &err);
    else
        say_stays(w, qmp, deadline);
    ibx_qmp_close(qmp);
    sweep(w); /* before the VM is unlocked: then another tool may listen there */
    if (!rc && w->folder)
        tell_destination(w, &was);
}

/* Looks at QEMU once, and puts its settings back. True if libvirt has continued the VM and the
 * settings are back. */
static bool continued(struct watchdog *w)
{
    const uint64_t deadline = ibx_deadline_in_ms(LOOK_MS);
    struct ibx_error err = {0};
    struct ibx_qmp *qmp = NULL;
    char status[32] = "";
    if (connect_to(w, &qmp, deadline, &err))
        return false;
    if (!ibx_vm_status(qmp, status, sizeof(status), deadline, &err))
        ibx_vm_settle(qmp, &w->vm.before, &w->record, deadline, &err);
    ibx_qmp_close(qmp);
    return !w->vm.before && !strcmp(status, "running");
}

/* Where libvirt drives, after the commit: libvirt ends this QEMU, or continues the VM in it. If it
 * continues the VM, QEMU needs settings with which it saves its RAM, and accepts them since its
 * migration is over. Meanwhile ib-migrate recover can have both the record's lock and the monitor.
 */
static void await_libvirt(struct watchdog *w)
{
    const uint64_t deadline = ibx_deadline_in_ms(IBX_MIGRATE_STAY_MS);
    struct ibx_error err = {0};
    int lock;
    ibx_stand_in_end(&w->stand_in);
    unlock(w);
    while (ibx_now_ns() < deadline && ibx_journal_qemu_lives(&w->record)) {
        if (!continued(w)) {
            usleep(RETRY_MS * 1000);
            continue;
        }
        if (ibx_journal_lock(w->folder, &w->record, &lock, &err))
            return; /* another tool works on it */
        if (!ibx_journal_reload(w->folder, &w->record, &err) && !ibx_journal_over(&w->record)) {
            struct ibx_record was;
            w->record.settings[0] = '\0';
            kept(w, &was, &err);
        }
        return;
    }
}

/* Closes all inherited descriptors but these (-1: none) and standard error: QEMU answers nobody
 * else while the tool's monitor is open. */
static void close_others(const int keep[KEPT_FDS])
{
    close(STDIN_FILENO);
    close(STDOUT_FILENO);
    for (unsigned from = 3, kept = 0; kept != ~0u; from = kept + 1) {
        kept = ~0u; /* the next one that is */
        for (unsigned i = 0; i < KEPT_FDS; i++)
            if (keep[i] >= (int)from && (unsigned)keep[i] < kept)
                kept = (unsigned)keep[i];
        if (kept > from)
            close_range(from, kept == ~0u ? kept : kept - 1, 0);
    }
}

/* A service manager that ends the tool, by force or because its service is stopped, ends all that
 * is in its control group. */
static void leave_groups(pid_t qemu)
{
    const int rc = ibx_control_groups_join("/sys/fs/cgroup", qemu);
    if (rc)
        ibx_log(IBX_LOG_DEBUG, "the watchdog stays in the control group of ib-migrate: %s",
                strerror(-rc));
}

/* Returns when the tool has ended or has dismissed the watchdog, or when QEMU has ended after a
 * SIGTERM: then it is dismissed, too. */
static void watch(struct watchdog *w, int fd)
{
    char letters[512];
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    struct pollfd from[] = {{.fd = fd, .events = POLLIN},
                            {.fd = signalfd(-1, &term, SFD_CLOEXEC), .events = POLLIN}};
    for (bool told = false; w->state.now != DISMISSED;) {
        const bool looks = w->vm.libvirt && ibx_stand_in_has_work(&w->stand_in, w->vm.before);
        poll(from, 2, looks ? IBX_STAND_IN_LOOK_MS : told ? RETRY_MS : -1);
        if (looks)
            ibx_stand_in_look(&w->stand_in, w->vm.before);
        if (from[1].revents) { /* one signal is enough to know */
            told = true;
            from[1].fd = -1;
        }
        const ssize_t n = from[0].revents ? read(fd, letters, sizeof(letters)) : -1;
        if (!n || (n < 0 && from[0].revents && errno != EINTR))
            return;
        for (ssize_t i = 0; i < n; i++)
            on_letter(w, letters[i]);
        if (told && w->state.now != DISMISSED && ibx_journal_qemu_gone(&w->record))
            ibx_state_move(&w->state, DISMISSED);
    }
}

static void watchdog_main(struct watchdog *w, int fd)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    setsid();
    prctl(PR_SET_NAME, "ibx-watchdog");
    leave_groups(w->record.pid);
    watch(w, fd);
    if (w->state.now == SETTLING) {
        await_libvirt(w);
        sweep(w);
    } else if (w->state.now == WATCHING && is_sealed(w))
        leave_frozen(w);
    else if (w->state.now == WATCHING)
        continue_vm(w);
    _exit(0);
}

/* ---------------------------------------------------------------- the tool's side */

int ibx_watchdog_start(struct ibx_watchdog *watchdog, const struct ibx_watchdog_terms *terms,
                       struct ibx_error *err)
{
    int pair[2];
    *watchdog = (struct ibx_watchdog){.fd = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return ibx_error_set(err, -errno, "no pipe to a watchdog: %s", strerror(errno));
    struct watchdog *w = calloc(1, sizeof(*w));
    if (w) {
        *w = (struct watchdog){.record = *terms->record,
                               .vm = *terms->vm,
                               .qmp = terms->qmp,
                               .folder = terms->folder,
                               .lock_fd = terms->lock_fd,
                               .claim_fd = terms->claim_fd,
                               .seal = terms->seal,
                               .sealed_at = terms->sealed_at};
        if (terms->folder)
            w->transport = *terms->transport;
        ibx_state_begin(&w->state, &watchdog_table, WATCHING);
    }
    atomic_uint *beats =
        mmap(NULL, sizeof(*beats), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = w && beats != MAP_FAILED ? fork() : -1;
    if (pid == 0) {
        const int monitor = terms->qmp ? ibx_qmp_fd(terms->qmp) : -1;
        close_others((const int[]){pair[0], terms->lock_fd, terms->claim_fd, monitor,
                                   terms->seal ? terms->sealed_at : -1});
        ibx_stand_in_init(&w->stand_in, monitor, beats);
        watchdog_main(w, pair[0]);
    }
    free(w);
    close(pair[0]);
    if (pid < 0) {
        close(pair[1]);
        if (beats != MAP_FAILED)
            munmap(beats, sizeof(*beats));
        return ibx_error_set_task(err, -errno, "no process for a watchdog");
    }
    *watchdog = (struct ibx_watchdog){.pid = pid, .fd = pair[1], .beats = beats};
    return 0;
}

static int tell(struct ibx_watchdog *watchdog, const char *bytes, size_t length,
                struct ibx_error *err)
{
    ssize_t n = send(watchdog->fd, bytes, length, MSG_NOSIGNAL);
    if (n == (ssize_t)length)
        return 0;
    return ibx_error_set(err, n < 0 ? -errno : -EPIPE, "the watchdog process has died");
}

void ibx_watchdog_beat(struct ibx_watchdog *watchdog)
{
    if (watchdog->beats)
        atomic_fetch_add(watchdog->beats, 1);
}

int ibx_watchdog_settings(struct ibx_watchdog *watchdog, json_t *before, struct ibx_error *err)
{
    char line[LINE_MAX_BYTES];
    size_t length = json_dumpb(before, line + 1, sizeof(line) - 2, JSON_COMPACT);
    if (!length || length > sizeof(line) - 2)
        return ibx_error_set(err, -EMSGSIZE, "QEMU has too many settings for the watchdog");
    line[0] = 'B';
    line[length + 1] = '\n';
    return tell(watchdog, line, length + 2, err);
}

int ibx_watchdog_touched(struct ibx_watchdog *watchdog, struct ibx_error *err)
{
    return tell(watchdog, "T", 1, err);
}

void ibx_watchdog_untouched(struct ibx_watchdog *watchdog)
{
    tell(watchdog, "U", 1, NULL);
}

int ibx_watchdog_runs(struct ibx_watchdog *watchdog, bool runs, struct ibx_error *err)
{
    return tell(watchdog, runs ? "G" : "P", 1, err);
}

int ibx_watchdog_sleeps(struct ibx_watchdog *watchdog, bool sleeps, struct ibx_error *err)
{
    return tell(watchdog, sleeps ? "S" : "A", 1, err);
}

int ibx_watchdog_marked(struct ibx_watchdog *watchdog, struct ibx_error *err)
{
    return tell(watchdog, "M", 1, err);
}

void ibx_watchdog_interrupted(struct ibx_watchdog *watchdog)
{
    tell(watchdog, "I", 1, NULL);
}

int ibx_watchdog_commit(struct ibx_watchdog *watchdog, struct ibx_error *err)
{
    return tell(watchdog, "C", 1, err);
}

/* Its end of the pipe is closed when it has ended. */
static bool has_ended(struct ibx_watchdog *watchdog)
{
    struct pollfd end = {.fd = watchdog->fd, .events = POLLIN};
    const uint64_t deadline = ibx_deadline_in_ms(END_MS);
    int rc;
    while ((rc = poll(&end, 1, END_MS)) < 0 && errno == EINTR && ibx_now_ns() < deadline)
        ;
    return rc > 0;
}

/* A watchdog that is stopped, or whose control group is frozen, can be killed: there is nothing to
 * undo. Only a frozen group of cgroup v1 does not let it end. */
void ibx_watchdog_release(struct ibx_watchdog *watchdog)
{
    if (watchdog->fd < 0)
        return;
    tell(watchdog, "R", 1, NULL);
    bool ended = has_ended(watchdog);
    if (!ended && !kill(watchdog->pid, SIGKILL))
        ended = has_ended(watchdog);
    ibx_watchdog_leave(watchdog);
    if (!ended)
        ibx_log(IBX_LOG_WARN,
                "the watchdog of this migration (process %d) does not end, because its control "
                "group, which is QEMU's, is frozen: it ends as soon as that is thawed, and keeps "
                "the migration's record locked until then",
                (int)watchdog->pid);
    while (ended && waitpid(watchdog->pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

void ibx_watchdog_leave(struct ibx_watchdog *watchdog)
{
    if (watchdog->fd >= 0)
        close(watchdog->fd);
    watchdog->fd = -1;
    if (watchdog->beats)
        munmap(watchdog->beats, sizeof(*watchdog->beats));
    watchdog->beats = NULL;
}
