/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a watchdog does when its tool has ended, by what that has told it. This process acts as
 * QEMU, and as the tool. */
#include "migrate/common/stand_in.h"
#include "migrate/common/watchdog.h"
#include "migrate/journal/journal.h"
#include "tests/fixtures/denied_call.h"
#include "tests/fixtures/qmp_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

static char folder[64];
static int listener;
static struct ibx_record record;
static struct ibx_watchdog watchdog;
static const struct ibx_options options = {.timeout_ms = 1000};

static int begin(void **state)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    (void)state;
    snprintf(folder, sizeof(folder), "/dev/shm/ibx-watchdog-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    record = (struct ibx_record){.source = true,
                                 .state = IBX_JOURNAL_HERE,
                                 .epoch = 1,
                                 .name = "db1",
                                 .uri = "tcp://127.0.0.1:1",
                                 .pid = getpid(),
                                 .pid_started = ibx_process_started(getpid()),
                                 .uffd = -1};
    record.id[0] = 7;
    snprintf(at.sun_path, sizeof(at.sun_path), "%s/qmp", folder);
    snprintf(record.qmp, sizeof(record.qmp), "%s", at.sun_path);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, 4);
}

static int end(void **state)
{
    char command[96];
    (void)state;
    close(listener);
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

/* The VM ran, and the tool has written its record up to this state. */
static void watched_in(enum ibx_journal_state state)
{
    const struct ibx_vm_undo vm = {.was_running = true};
    const struct ibx_watchdog_terms terms = {.folder = folder,
                                             .record = &record,
                                             .transport = &options,
                                             .vm = &vm,
                                             .lock_fd = -1,
                                             .claim_fd = -1};
    memset(&error, 0, sizeof(error));
    assert_int_equal(ibx_watchdog_start(&watchdog, &terms, &error), 0);
    for (unsigned s = IBX_JOURNAL_HERE; s <= state; s++) {
        record.state = s;
        assert_int_equal(ibx_journal_write(folder, &record, &error), 0);
    }
}

static bool calls(unsigned ms)
{
    struct pollfd wait = {.fd = listener, .events = POLLIN};
    return poll(&wait, 1, (int)ms) > 0;
}

/* Whether it has ended, and not by a signal. */
static void await_watchdog(void)
{
    struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, watchdog.pid, 0), .events = POLLIN};
    int status = -1;
    assert_true(poll(&end, 1, (int)GENEROUS) > 0);
    close(end.fd);
    assert_int_equal(waitpid(watchdog.pid, &status, 0), watchdog.pid);
    assert_int_equal(status, 0);
}

/* The tool ends, and the watchdog comes to QEMU, which expects this. Returns what was wrong. */
static const char *comes_to(const struct step *steps)
{
    static struct peer p;
    ibx_watchdog_leave(&watchdog);
    assert_true(calls(GENEROUS));
    p = (struct peer){.steps = steps, .fd = accept(listener, NULL, NULL), .received_fd = -1};
    peer_run(&p);
    close(p.fd);
    await_watchdog();
    assert_false(calls(0));
    return p.wrong;
}

static void does(const struct step *steps)
{
    assert_string_equal(comes_to(steps), "");
}

static enum ibx_journal_state recorded(void)
{
    struct ibx_record now = record;
    assert_int_equal(ibx_journal_reload(folder, &now, &error), 0);
    return now.state;
}

#define STATUS(status, id) "{\"return\": {\"status\": \"" status "\"}, \"id\": " #id "}\r\n"
#define LOOKS_AT_IT        SCRIPT({"query-status", STATUS("running", 2), 0})
#define ENDS_ITS_MIGRATION                                                                         \
    SCRIPT({"query-migrate", STATUS("failed", 2), 0}, {"migrate-set-capabilities", READY(3), 0},   \
           {"query-status", STATUS("paused", 4), 0})
#define CONTINUES_IT                                                                               \
    SCRIPT({"query-migrate", STATUS("failed", 2), 0},                                              \
           {"query-status", STATUS("postmigrate", 3), 0}, {"cont", READY(4), 0},                   \
           {"query-status", STATUS("running", 5), 0}, {"migrate-set-capabilities", READY(6), 0},   \
           {"query-status", STATUS("running", 7), 0})

static void test_before_the_migration_begins(NO_STATE)
{
    watched_in(IBX_JOURNAL_HERE);
    does(LOOKS_AT_IT);
    assert_int_equal(recorded(), IBX_JOURNAL_KEPT);
}

static void test_continues_the_vm(NO_STATE)
{
    watched_in(IBX_JOURNAL_MAY_RUN);
    assert_int_equal(ibx_watchdog_touched(&watchdog, &error), 0);
    does(CONTINUES_IT);
    assert_int_equal(recorded(), IBX_JOURNAL_KEPT);
}

/* Another client's migration may be under way, and that client decides. */
static void test_leaves_a_migration_that_qemu_has_refused(NO_STATE)
{
    watched_in(IBX_JOURNAL_MAY_RUN);
    assert_int_equal(ibx_watchdog_touched(&watchdog, &error), 0);
    ibx_watchdog_untouched(&watchdog);
    does(LOOKS_AT_IT);
}

/* Another client has paused the VM, or continued it since. */
static void test_a_vm_that_is_paused_stays_so(NO_STATE)
{
    for (unsigned again = 0; again < 2; again++) {
        record.written_s = record.number = 0;
        record.id[1] = (uint8_t)again;
        watched_in(IBX_JOURNAL_MAY_RUN);
        assert_int_equal(ibx_watchdog_touched(&watchdog, &error), 0);
        assert_int_equal(ibx_watchdog_runs(&watchdog, false, &error), 0);
        if (again)
            assert_int_equal(ibx_watchdog_runs(&watchdog, true, &error), 0);
        does(again ? CONTINUES_IT : ENDS_ITS_MIGRATION);
        assert_int_equal(recorded(), IBX_JOURNAL_KEPT);
    }
}

/* QEMU would end if it continued the VM while its guest sleeps. */
static void test_a_vm_that_sleeps_is_not_continued(NO_STATE)
{
    for (unsigned again = 0; again < 2; again++) {
        record.written_s = record.number = 0;
        record.id[1] = (uint8_t)again;
        watched_in(IBX_JOURNAL_MAY_RUN);
        assert_int_equal(ibx_watchdog_touched(&watchdog, &error), 0);
        assert_int_equal(ibx_watchdog_sleeps(&watchdog, true, &error), 0);
        if (again)
            assert_int_equal(ibx_watchdog_sleeps(&watchdog, false, &error), 0);
        does(again ? CONTINUES_IT : ENDS_ITS_MIGRATION);
    }
}

static void test_puts_settings_back(NO_STATE)
{
    json_t *before = json_pack("{s:{s:b}}", "capabilities", "events", 0);
    watched_in(IBX_JOURNAL_HERE);
    assert_int_equal(ibx_watchdog_settings(&watchdog, before, &error), 0);
    json_decref(before);
    does(SCRIPT({"\"events\"", READY(2), 0}, {"query-status", STATUS("running", 3), 0}));
}

/* QEMU serves one monitor at a time, and the tool's may not be closed yet. */
static void test_tries_the_monitor_again(NO_STATE)
{
    watched_in(IBX_JOURNAL_HERE);
    ibx_watchdog_leave(&watchdog);
    assert_true(calls(GENEROUS));
    close(accept(listener, NULL, NULL));
    does(LOOKS_AT_IT);
}

/* Another QEMU has this path by now. */
static void test_leaves_another_qemu_alone(NO_STATE)
{
    record.pid = getppid();
    record.pid_started = ibx_process_started(record.pid);
    watched_in(IBX_JOURNAL_MAY_RUN);
    assert_int_equal(ibx_watchdog_touched(&watchdog, &error), 0);
    assert_string_equal(comes_to(CONTINUES_IT), "expected query-migrate, got ");
    assert_int_equal(recorded(), IBX_JOURNAL_MAY_RUN);
}

/* The tool has learnt more since the watchdog was started, and QEMU has its settings back. */
static void test_keeps_what_the_tool_has_recorded(NO_STATE)
{
    char note[128];
    watched_in(IBX_JOURNAL_HERE);
    record.epoch = 7;
    strcpy(record.peer, "node-b");
    strcpy(record.settings, "{\"capabilities\":{\"events\":false}}");
    assert_int_equal(ibx_journal_write(folder, &record, &error), 0);
    ibx_journal_page_state_path(&record, IBX_PAGE_STATE_MAP, note, sizeof(note));
    close(open(note, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    does(LOOKS_AT_IT);
    struct ibx_record now = record;
    const bool noted = !access(note, F_OK);
    unlink(note);
    assert_int_equal(ibx_journal_reload(folder, &now, &error), 0);
    assert_int_equal(now.state, IBX_JOURNAL_KEPT);
    assert_int_equal(now.epoch, 7);
    assert_string_equal(now.peer, "node-b");
    assert_string_equal(now.settings, "");
    assert_false(noted);
}

static void test_records_nothing_before_the_tool(NO_STATE)
{
    watched_in(0);
    does(LOOKS_AT_IT);
    struct ibx_record now = record;
    assert_int_equal(ibx_journal_reload(folder, &now, &error), -ENOENT);
}

static void test_does_nothing_after_the_commit(NO_STATE)
{
    watched_in(IBX_JOURNAL_MAY_RUN);
    assert_int_equal(ibx_watchdog_touched(&watchdog, &error), 0);
    assert_int_equal(ibx_watchdog_commit(&watchdog, &error), 0);
    await_watchdog();
    ibx_watchdog_leave(&watchdog);
    assert_false(calls(0));
    assert_int_equal(recorded(), IBX_JOURNAL_MAY_RUN);
}

/* A service manager that stops QEMU's unit sends it SIGTERM. The VM is still here. */
static void test_survives_a_signal_while_qemu_lives(NO_STATE)
{
    watched_in(IBX_JOURNAL_HERE);
    const uint64_t deadline = ibx_deadline_in_ms(GENEROUS);
    while (getsid(watchdog.pid) != watchdog.pid && ibx_now_ns() < deadline)
        sched_yield(); /* from then on it is in no session of the tool's */
    assert_int_equal(getsid(watchdog.pid), watchdog.pid);
    assert_int_equal(kill(watchdog.pid, SIGTERM), 0);
    assert_int_equal(kill(watchdog.pid, SIGHUP), 0);
    does(LOOKS_AT_IT);
}

/* Then that waits for it to end. */
static void test_ends_by_a_signal_when_qemu_has_ended(NO_STATE)
{
    const pid_t qemu = fork();
    if (!qemu)
        _exit(0);
    record.pid = qemu;
    record.pid_started = 1;
    watched_in(IBX_JOURNAL_HERE);
    assert_int_equal(waitpid(qemu, NULL, 0), qemu);
    const uint64_t deadline = ibx_deadline_in_ms(GENEROUS);
    while (getsid(watchdog.pid) != watchdog.pid && ibx_now_ns() < deadline)
        sched_yield();
    assert_int_equal(kill(watchdog.pid, SIGTERM), 0);
    await_watchdog();
    ibx_watchdog_leave(&watchdog);
    assert_int_equal(recorded(), IBX_JOURNAL_HERE);
}

/* There is nothing to undo, and nobody waits for a watchdog that is stopped. */
static void test_one_that_is_stopped_is_released(NO_STATE)
{
    watched_in(IBX_JOURNAL_HERE);
    assert_int_equal(kill(watchdog.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(watchdog.pid, NULL, WUNTRACED), watchdog.pid);
    ibx_watchdog_release(&watchdog);
    assert_int_equal(kill(watchdog.pid, 0), -1);
    assert_int_equal(recorded(), IBX_JOURNAL_HERE);
}

/* ------------------------------------------------------------ a tool that stands still */

#define STANDS_IN(is) is ", \"id\" : \"" IBX_QMP_STAND_IN "\"}\r\n"
#define RESETS        "\"x-ignore-shared\""
#define REFUSES       STANDS_IN("{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}")
#define TAKES_IT      STANDS_IN("{\"return\": {}")
#define EVENT(name)   "{\"event\": \"" name "\", \"timestamp\": {}}\r\n"

#define TEN(text)  text text text text text text text text text text
#define LONG_EVENT EVENT(TEN(TEN("LONG_AND_LONGER_")))

/* How a tool stands still: its state says so, or it has begun its loop and gets no further, or its
 * control group is frozen. */
enum stillness { IS_STOPPED, IS_STUCK, IS_FROZEN, IS_TRACED };
static int goes_on[2]; /* a pipe to one that is stuck */
static char group[64]; /* that is frozen, of cgroup v2; "": this user may make none */

static bool put_to_group(const char *file, const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", group, file);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool put = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return put;
}

static void make_group(void)
{
    static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    for (unsigned i = 0; i < 2; i++) {
        char events[128];
        snprintf(group, sizeof(group), "%s/ibx-watchdog-%d", mounts[i], (int)getpid());
        snprintf(events, sizeof(events), "%s/cgroup.freeze", group);
        if (!mkdir(group, 0700) && !access(events, W_OK))
            return;
        rmdir(group);
    }
    group[0] = '\0';
}

static void stand_still(enum stillness how)
{
    char byte;
    if (how == IS_STOPPED) {
        raise(SIGSTOP);
        return;
    }
    while (how == IS_TRACED)
        getppid();
    if (how == IS_FROZEN) {
        if (!put_to_group("cgroup.procs", "0") || !put_to_group("cgroup.freeze", "1"))
            _exit(2);
        if (read(goes_on[0], &byte, 1) != 1)
            _exit(2);
        return;
    }
    ibx_watchdog_beat(&watchdog);
    if (read(goes_on[0], &byte, 1) != 1)
        _exit(2);
}

/* A tool that leaves RAM out, and then stands still; its exit status is 0 if it learns that the
 * watchdog has acted for it. */
static _Noreturn void tool(int fd, enum stillness how)
{
    const struct ibx_vm_undo vm = {.was_running = true, .libvirt = "/run/none.sock"};
    json_t *before = json_pack("{s:{s:b}}", "capabilities", "x-ignore-shared", 0);
    const uint64_t deadline = ibx_deadline_in_ms(GENEROUS);
    struct ibx_qmp *monitor;
    if (ibx_qmp_attach(fd, deadline, &monitor, &error))
        _exit(2);
    const struct ibx_watchdog_terms terms = {
        .record = &record, .vm = &vm, .qmp = monitor, .lock_fd = -1, .claim_fd = -1};
    if (ibx_watchdog_start(&watchdog, &terms, &error) ||
        ibx_watchdog_settings(&watchdog, before, &error))
        _exit(2);
    json_decref(before);
    const uint64_t mark = ibx_qmp_mark(monitor);
    stand_still(how);
    while (!ibx_qmp_pump(monitor, &error) && !ibx_qmp_stood_in(monitor, mark) &&
           ibx_now_ns() < deadline)
        usleep(1000);
    const bool learns = ibx_qmp_stood_in(monitor, mark);
    ibx_watchdog_release(&watchdog);
    ibx_qmp_close(monitor);
    _exit(learns ? 0 : 1);
}

/* Such a tool, and QEMU, which answers by this script. It stands still for as long. Returns whether
 * its watchdog asks nothing more then. */
static bool stands_still_until(const struct step *steps, enum stillness how)
{
    int pair[2], status;
    assert_int_equal(pipe2(goes_on, O_CLOEXEC), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        tool(pair[0], how);
    close(pair[0]);
    static struct peer p;
    p = (struct peer){.steps = steps, .fd = pair[1], .received_fd = -1, .deaf = true};
    peer_run(&p);
    assert_string_equal(p.wrong, "");
    if (how == IS_STOPPED) {
        assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
        assert_true(WIFSTOPPED(status));
    }
    struct pollfd more = {.fd = pair[1], .events = POLLIN};
    const bool over = !poll(&more, 1, SHORT);
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(write(goes_on[1], "", 1), 1);
    if (how == IS_FROZEN)
        assert_true(put_to_group("cgroup.freeze", "0"));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(pair[1]);
    close(goes_on[0]);
    close(goes_on[1]);
    return over;
}

/* QEMU refuses while it migrates the VM. Whatever it reports may be the end of that. */
static void test_acts_for_a_tool_that_stands_still(NO_STATE)
{
    assert_true(stands_still_until(SCRIPT({RESETS, EVENT("BLOCK_JOB_READY") REFUSES, 0},
                                          {NULL, EVENT("MIGRATION") EVENT("STOP"), 0},
                                          {RESETS, EVENT("RESUME") TAKES_IT, 0}),
                                   IS_STOPPED));
}

/* It stands still for so long that what it has not read is more than the watchdog looks at: QEMU's
 * answers are not seen any more, and it is asked again and again. */
static void test_acts_for_a_tool_that_has_read_nothing_for_long(NO_STATE)
{
    stands_still_until(SCRIPT({RESETS, LONG_EVENT, IBX_STAND_IN_UNREAD / sizeof(LONG_EVENT) + 1},
                              {NULL, REFUSES, 0}, {RESETS, REFUSES, 0}, {RESETS, TAKES_IT, 0}),
                       IS_STOPPED);
}

/* A frozen control group, for example: no state of the process says so. QEMU refuses, and reports
 * nothing until it can be asked with success. */
static void test_acts_for_a_tool_that_is_stuck(NO_STATE)
{
    assert_true(stands_still_until(SCRIPT({RESETS, REFUSES, 0}, {RESETS, TAKES_IT, 0}), IS_STUCK));
}

/* It has not begun its loop: only the group tells. */
static void test_acts_for_a_tool_that_is_frozen(NO_STATE)
{
    make_group();
    if (!group[0])
        skip();
    assert_true(stands_still_until(SCRIPT({RESETS, REFUSES, 0}, {RESETS, TAKES_IT, 0}), IS_FROZEN));
    assert_int_equal(rmdir(group), 0);
}

#define TRACED_CALLS  2000
#define TRACED_US     500 /* that the tracer holds the tool at each of them */
#define TRACED_GAP_MS 50  /* with which the tracer itself gets no time */

/* A tool that leaves RAM out, and whose system calls are traced. Returns how many of them are left,
 * after one of which the tracer came late. */
static int trace(pid_t pid)
{
    int status, left = TRACED_CALLS;
    uint64_t last = ibx_now_ns();
    assert_int_equal(ptrace(PTRACE_SEIZE, pid, NULL, NULL), 0);
    assert_int_equal(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL), 0);
    while (left && waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        usleep(TRACED_US);
        assert_int_equal(ptrace(PTRACE_SYSCALL, pid, NULL, NULL), 0);
        if (ibx_now_ns() - last > TRACED_GAP_MS * IBX_NS_PER_MS)
            break;
        last = ibx_now_ns();
        left--;
    }
    return left;
}

/* By strace(1), for example: it is stopped most of the time, at one place after the other. */
static void test_lets_a_traced_tool_work(NO_STATE)
{
    int pair[2], status;
    bool told = true, judged = false;
    for (unsigned i = 0; i < 20 && !judged; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid)
            tool(pair[0], IS_TRACED);
        close(pair[0]);
        static struct peer p;
        p = (struct peer){.steps = SCRIPT({0}), .fd = pair[1], .received_fd = -1, .deaf = true};
        peer_run(&p);
        struct pollfd more = {.fd = pair[1], .events = POLLIN};
        judged = !trace(pid);
        told = poll(&more, 1, 0) > 0;
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        close(pair[1]);
    }
    if (!judged)
        skip(); /* this host is too busy */
    assert_false(told);
}

/* ------------------------------------------------------------ a freeze */

static int said; /* what the watchdog logs */

/* A freeze that has made this snapshot's manifest, or has not. */
static void freezes(bool sealed)
{
    int pipes[2];
    const int at = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC), log = dup(STDERR_FILENO);
    const struct ibx_vm_undo vm = {.was_running = true};
    const struct ibx_watchdog_terms terms = {.record = &record,
                                             .vm = &vm,
                                             .lock_fd = -1,
                                             .claim_fd = -1,
                                             .seal = "manifest",
                                             .sealed_at = at};
    memset(&error, 0, sizeof(error));
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    assert_true(at >= 0 && dup2(pipes[1], STDERR_FILENO) >= 0);
    const int rc = ibx_watchdog_start(&watchdog, &terms, &error);
    dup2(log, STDERR_FILENO);
    close(log);
    close(pipes[1]);
    assert_int_equal(rc, 0);
    said = pipes[0];
    if (sealed)
        close(openat(at, "manifest", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    close(at);
    json_t *before = json_pack("{s:{s:b}}", "capabilities", "events", 0);
    assert_int_equal(ibx_watchdog_settings(&watchdog, before, &error), 0);
    json_decref(before);
}

/* It has logged `words`, and not `never`, when it has ended. */
static void says_of_it(const char *words, const char *never)
{
    char text[4096] = "";
    size_t length = 0;
    for (ssize_t n; (n = read(said, text + length, sizeof(text) - 1 - length)) > 0;)
        length += (size_t)n;
    text[length] = '\0';
    close(said);
    if (!strstr(text, words) || strstr(text, never))
        fail_msg("\"%s\" does not say \"%s\", or says \"%s\"", text, words, never);
}

#define UNSET "QEMU's migration settings could not be put back: "

/* Whether it runs is not known: nobody may rely on its standing still. */
static void test_a_frozen_vm_that_cannot_be_seen(NO_STATE)
{
    freezes(true);
    assert_string_equal(comes_to(SCRIPT({0})), "");
    says_of_it("may run", "stays stopped");
    record.pid = getppid(); /* another QEMU has this path by now */
    record.pid_started = ibx_process_started(record.pid);
    freezes(true);
    assert_string_equal(comes_to(SCRIPT({0})), "");
    says_of_it("may run", "stays stopped");
}

static void test_settings_of_a_frozen_vm(NO_STATE)
{
    freezes(true);
    does(SCRIPT({"query-status", STATUS("postmigrate", 2), 0}));
    says_of_it("stays stopped; " UNSET, "runs");
    freezes(true);
    does(SCRIPT({"query-status", STATUS("running", 2), 0}));
    says_of_it("its children have, too; " UNSET, "stays stopped");
}

/* The last one, as every process from here on has this profile: one of a container that is older
 * than faccessat2(2). */
static void test_a_seal_is_looked_for_by_old_system_calls(NO_STATE)
{
    if (!deny_call(SYS_faccessat2, EPERM))
        skip();
    freezes(false);
    does(SCRIPT({"\"events\"", READY(2), 0}, {"query-status", STATUS("running", 3), 0}));
    says_of_it("before the snapshot was whole", "when the snapshot was whole");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_before_the_migration_begins),
        TEST(test_continues_the_vm),
        TEST(test_leaves_a_migration_that_qemu_has_refused),
        TEST(test_a_vm_that_is_paused_stays_so),
        TEST(test_a_vm_that_sleeps_is_not_continued),
        TEST(test_puts_settings_back),
        TEST(test_tries_the_monitor_again),
        TEST(test_leaves_another_qemu_alone),
        TEST(test_keeps_what_the_tool_has_recorded),
        TEST(test_records_nothing_before_the_tool),
        TEST(test_does_nothing_after_the_commit),
        TEST(test_survives_a_signal_while_qemu_lives),
        TEST(test_ends_by_a_signal_when_qemu_has_ended),
        TEST(test_one_that_is_stopped_is_released),
        TEST(test_acts_for_a_tool_that_stands_still),
        TEST(test_acts_for_a_tool_that_has_read_nothing_for_long),
        TEST(test_acts_for_a_tool_that_is_stuck),
        TEST(test_acts_for_a_tool_that_is_frozen),
        TEST(test_lets_a_traced_tool_work),
        TEST(test_a_frozen_vm_that_cannot_be_seen),
        TEST(test_settings_of_a_frozen_vm),
        TEST(test_a_seal_is_looked_for_by_old_system_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
