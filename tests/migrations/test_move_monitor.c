/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A tool's connection to its QEMU's monitor breaks while the VM moves, or another client has the
 * monitor meanwhile. Afterwards the guest is alive and right on exactly one side, or stands still.
 */
#include "migrate/common/vm.h"
#include "migrate/qemu/qemu.h"
#include "tests/fixtures/mover.h"

#include "common/clock.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define LOOK_MS 5

static void cut_monitor(const struct vm *vm)
{
    const int fd = vm_end_of_tool(vm);
    assert_int_equal(shutdown(fd, SHUT_RDWR), 0);
    close(fd);
}

/* A line of 9 MiB from QEMU, which is longer than any that a tool takes. */
static void long_line(const struct vm *vm)
{
    static char bytes[9 << 20];
    const uint64_t deadline = vm_soon();
    const int fd = vm_end_of_tool(vm);
    memset(bytes, 'x', sizeof(bytes) - 1);
    bytes[sizeof(bytes) - 1] = '\n';
    for (size_t sent = 0; sent < sizeof(bytes) && ibx_now_ns() < deadline;) {
        const ssize_t n = send(fd, bytes + sent, sizeof(bytes) - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            break; /* it has taken enough of it */
        if (n < 0)
            poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, LOOK_MS);
        sent += n > 0 ? (size_t)n : 0;
    }
    close(fd);
}

/* The tool has lost the monitor and cannot give the VM back: its watchdog does. */
static void test_source_loses_the_monitor(void)
{
    pair_start(NULL);
    pair_run_to("source:sending", NULL);
    cut_monitor(&vms[0]);
    mover_kill(&sender, SIGCONT);
    /* By its record it may run there; the watchdog will write that it does not. */
    mover_ends(&sender, 3);
    mover_ends(&receiver, 1);
    pair_stayed();
}

/* ... nor does it end the migration that it has QEMU hold open, and nobody could tell whose that
 * was. */
static void test_source_that_holds_loses_the_monitor(void)
{
    pair_start(NULL);
    mover_stop_next("destination:mapped");
    pair_receive(NULL);
    pair_send(NULL);
    mover_await_stop(&receiver);
    mover_await_asleep(&sender);
    cut_monitor(&vms[0]);
    mover_ends(&sender, 3);
    mover_await_watchdog(&sender, "goes on here");
    mover_kill(&receiver, SIGCONT);
    mover_ends(&receiver, 1);
    pair_stayed();
}

/* After the commit QEMU lives on without its monitor: its memory stays where it is, and is
 * released. */
static void loses_it_while_filling(void (*lose)(const struct vm *vm))
{
    pair_start(NULL);
    pair_run((const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_await(&receiver, "filling", 0);
    mover_await(&sender, "filling", 0);
    lose(&vms[0]);
    mover_await_words(&sender, "its monitor is lost");
    mover_await_words(&sender, "its monitor is there again");
    assert_int_equal(access(vms[0].ram, F_OK), 0);
    assert_false(mover_printed(&sender, "QEMU has ended"));
    vm_refused(ibx_qmp_execute(vms[0].qmp, "cont", NULL, NULL, vm_soon(), &vm_error), -EREMOTEIO,
               "not finalized");
    pair_filled();
    struct ibx_vm_progress now;
    vm_ok(ibx_vm_migration(vms[0].qmp, &now, vm_soon(), &vm_error));
    assert_string_equal(now.status, "completed");
}

static void test_the_monitor_is_lost_after_the_commit(void)
{
    loses_it_while_filling(cut_monitor);
}

static void test_a_long_line_after_the_commit(void)
{
    loses_it_while_filling(long_line);
}

/* ... of a VM at its first instruction: nobody can tell whether somebody has reset it before its
 * memory was protected, and it gets its pages all the same. */
static void test_the_monitor_of_a_vm_at_its_start_is_lost(void)
{
    pair_start(&(struct vm_options){.append = "", .extra = {"-action", "reboot=reset"}});
    vm_do(&vms[0], "stop", NULL);
    vm_do(&vms[0], "system_reset", NULL);
    json_decref(vm_event(&vms[0], "RESET", NULL));
    pair_run_to("source:committed", (const char *[]){"--max-bandwidth", HARDLY, NULL});
    cut_monitor(&vms[0]);
    mover_kill(&sender, SIGCONT);
    mover_await_words(&sender, "its pages are served as they are");
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    vm_do(&vms[1], "cont", NULL);
    vm_wait_beats(&vms[1], pair_beats);
}

/* ... and again while the destination is told that the migration is broken, since another client
 * has continued the VM meanwhile: it stays broken. */
static void test_the_monitor_is_lost_behind_a_verdict(void)
{
    pair_start(NULL);
    pair_run_to("source:committed", NULL);
    mover_kill(&receiver, SIGSTOP);
    cut_monitor(&vms[0]);
    vm_ok(ibx_qmp_post(vms[0].qmp, "migrate_cancel", vm_soon(), &vm_error));
    json_decref(vm_event(&vms[0], "RESUME", NULL));
    mover_kill(&sender, SIGCONT);
    mover_await_record("source", "broken");
    cut_monitor(&vms[0]);
    mover_kill(&receiver, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "migration is broken");
    mover_ends(&receiver, 1);
    assert_false(vm_runs(&vms[0]));
    assert_false(vm_runs(&vms[1]));
    vm_end(&vms[1]);
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    pair_runs_at_the_source();
}

/* ... before QEMU has read that it is to stop the VM. */
static void test_a_stop_is_lost_with_the_monitor(void)
{
    char lost[256];
    siginfo_t stopped;
    pair_start(NULL);
    pair_run_to("source:committed", NULL);
    mover_kill(&receiver, SIGSTOP);
    vm_do(&vms[0], "migrate_cancel", NULL);
    json_decref(vm_event(&vms[0], "RESUME", NULL));
    assert_true(vm_runs(&vms[0])); /* QEMU has reported RESUME to the tool, too */
    assert_int_equal(kill(vms[0].pid, SIGSTOP), 0);
    assert_int_equal(waitid(P_PID, (id_t)vms[0].pid, &stopped, WSTOPPED | WEXITED), 0);
    mover_kill(&sender, SIGCONT);
    mover_await_record("source", "broken");
    const int fd = vm_end_of_tool(&vms[0]);
    const ssize_t n = recv(fd, lost, sizeof(lost) - 1, MSG_DONTWAIT);
    close(fd);
    lost[n > 0 ? n : 0] = '\0';
    assert_non_null(strstr(lost, "\"stop\""));
    cut_monitor(&vms[0]);
    assert_int_equal(kill(vms[0].pid, SIGCONT), 0);
    mover_kill(&receiver, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "migration is broken");
    mover_ends(&receiver, 1);
    assert_false(vm_runs(&vms[0]));
    assert_false(vm_runs(&vms[1]));
}

/* ... and until all is over: the tool learns only then that the VM was continued meanwhile. */
static void test_the_monitor_is_lost_until_the_end(void)
{
    struct ibx_qmp *other;
    pair_start(NULL);
    mover_stop_next("source:done");
    pair_run_to("destination:resuming", NULL);
    cut_monitor(&vms[0]);
    vm_ok(ibx_qmp_connect(vms[0].tool, vm_soon(), &other, &vm_error));
    mover_await_words(&sender, "its monitor is lost");
    mover_kill(&receiver, SIGCONT);
    mover_await_stop(&sender);
    vm_do(&vms[0], "migrate_cancel", NULL);
    json_decref(vm_event(&vms[0], "RESUME", NULL));
    ibx_qmp_close(other);
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "another client has continued the VM");
    mover_ends(&receiver, 0);
    assert_false(vm_runs(&vms[0]));
    assert_true(vm_runs(&vms[1]));
}

/* Another client uses QEMU's monitor until all pages have come: then QEMU is released. */
static void test_the_monitor_is_another_clients_for_long(void)
{
    struct ibx_qmp *other;
    pair_start(NULL);
    mover_stop_next("source:confirming");
    pair_run((const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_await(&receiver, "filling", 0);
    mover_await(&sender, "filling", 0);
    cut_monitor(&vms[0]);
    vm_ok(ibx_qmp_connect(vms[0].tool, vm_soon(), &other, &vm_error));
    mover_await_words(&sender, "its monitor is lost");
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    mover_await_stop(&sender);
    ibx_qmp_close(other);
    mover_kill(&sender, SIGCONT);
    pair_done();
    assert_false(mover_printed(&sender, "QEMU has ended"));
    pair_moved("");
    struct ibx_vm_progress now;
    vm_ok(ibx_vm_migration(vms[0].qmp, &now, vm_soon(), &vm_error));
    assert_string_equal(now.status, "completed");
}

/* The destination loses only the monitor: the VM runs on, and gets its pages. */
static void test_destination_loses_the_monitor(void)
{
    pair_filling(NULL, NULL);
    cut_monitor(&vms[1]);
    mover_await_words(&receiver, "its monitor does not answer");
    pair_filled();
}

/* ------------------------------------------------------------ between two commands of this tool */

static char fifo[128];

/* Whether what QEMU saves next has the VM's memory. */
static bool takes_its_ram(void)
{
    json_t *list = vm_run(&vms[0], "query-migrate-capabilities", NULL), *item;
    bool without = false;
    size_t i;
    json_array_foreach(list, i, item)
    {
        without |=
            !strcmp(json_string_value(json_object_get(item, "capability")), "x-ignore-shared") &&
            json_is_true(json_object_get(item, "state"));
    }
    json_decref(list);
    return !without;
}

static void start_to_send(const char *stop)
{
    pair_start(NULL);
    pair_receive(NULL);
    mover_stop_next(stop);
    pair_send(NULL);
    mover_await_stop(&sender);
}

static void start_to_freeze(const char *stop)
{
    static char folder[160];
    pair_start_source();
    snprintf(folder, sizeof(folder), "%s/snapshot", mover_folder);
    mover_stop_next(stop);
    mover_start(&sender,
                (const char *[]){"freeze", folder, "--qmp", vms[0].tool, "--resume", NULL});
    mover_await_stop(&sender);
}

/* Has QEMU get a command that it cannot execute before something else happens. */
static void queue(const char *command, json_t *arguments)
{
    vm_refused(ibx_qmp_execute(vms[0].qmp, command, arguments, NULL, 0, &vm_error), -ETIMEDOUT,
               "did not answer");
}

/* As libvirt sets them to save a VM. */
static void without_return_path(void)
{
    vm_do(&vms[0], "migrate-set-capabilities",
          json_pack("{s:[{s:s,s:b},{s:s,s:b}]}", "capabilities", "capability", "return-path",
                    "state", 0, "capability", "events", "state", 1));
}

/* Another client's migration to `uri`, without a return path, begins when QEMU has been told to
 * leave the VM's memory out, and before it is told to migrate: QEMU takes commands of its monitors
 * in turns, and has all of these by now. Leaves the tool, which waits for QEMU's answers, in a
 * stop. */
static void another_comes_between(const char *uri)
{
    char bytes[4096];
    without_return_path();
    snprintf(fifo, sizeof(fifo), "%.64s/fifo", mover_folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    queue("pmemsave", json_pack("{s:i, s:i, s:s}", "val", 0, "size", 4096, "filename", fifo));
    vm_await_opening(&vms[0]);
    mover_kill(&sender, SIGCONT);
    mover_await_asleep(&sender);
    mover_kill(&sender, SIGSTOP);
    queue("migrate", json_pack("{s:s}", "uri", uri));
    mover_await_asleep(&(struct mover){.pid = vms[0].pid}); /* it has read that */
    const int fd = open(fifo, O_RDONLY | O_CLOEXEC);
    while (read(fd, bytes, sizeof(bytes)) > 0)
        ;
    close(fd);
    unlink(fifo);
}

static const char *to_a_file(void)
{
    static char uri[160];
    snprintf(uri, sizeof(uri), "exec:cat >%.64s/other", mover_folder);
    return uri;
}

/* It is over before the tool hears of it. */
static void is_over_by_then(void)
{
    another_comes_between(to_a_file());
    json_decref(vm_event(&vms[0], "MIGRATION", "completed"));
    mover_resumed(&vms[0]);
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "has migrated or saved the VM at the same moment");
    mover_must_print(&sender, "do not use what it has made");
    assert_false(mover_resumed(&vms[0]));
    assert_false(vm_runs(&vms[0]));
    assert_true(takes_its_ram());
    vm_do(&vms[0], "cont", NULL); /* as the sentence says */
}

static void test_another_that_is_over_between_two_commands(void)
{
    start_to_send("vm:given");
    is_over_by_then();
    mover_ends(&receiver, 1);
    pair_stayed();
    mover_end_all(NULL);
    start_to_freeze("vm:given");
    is_over_by_then();
    pair_runs_at_the_source();
}

/* The tool is killed, and its watchdog leaves the VM as the other migration has. */
static void is_left_as_it_is(const char *words)
{
    mover_kill(&sender, SIGKILL);
    mover_await_watchdog(&sender, words);
    assert_false(mover_resumed(&vms[0]));
    assert_false(vm_runs(&vms[0]));
    assert_true(takes_its_ram());
}

static void test_another_is_over_and_the_tool_is_killed(void)
{
    for (unsigned freezes = 0; freezes < 2; freezes++) {
        freezes ? start_to_freeze("vm:given") : start_to_send("vm:given");
        another_comes_between(to_a_file());
        json_decref(vm_event(&vms[0], "MIGRATION", "completed"));
        mover_resumed(&vms[0]);
        is_left_as_it_is("do not use what it has made");
        if (!freezes)
            MOVER_RUN(1, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
        vm_do(&vms[0], "cont", NULL); /* as the sentence says */
        if (!freezes)
            MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
        pair_runs_at_the_source();
        mover_end_all(NULL);
    }
}

/* Before that, the next migration would end QEMU 7.2. */
static void await_end_of_thread(void)
{
    const uint64_t deadline = vm_soon();
    for (bool any = true; any; poll(NULL, 0, 5)) {
        json_t *list = vm_run(&vms[0], "query-yank", NULL), *item;
        size_t i;
        any = false;
        json_array_foreach(list, i, item)
        {
            any |= !strcmp(json_string_value(json_object_get(item, "type")), "migration");
        }
        json_decref(list);
        assert_true(ibx_now_ns() < deadline);
    }
}

/* Another client's migration, with RAM, begins and ends while the tool is stopped. */
static void another_is_over(unsigned freezes, const char *stop)
{
    freezes ? start_to_freeze(stop) : start_to_send(stop);
    without_return_path();
    vm_do(&vms[0], "migrate", json_pack("{s:s}", "uri", to_a_file()));
    json_decref(vm_event(&vms[0], "MIGRATION", "completed"));
    await_end_of_thread();
    mover_resumed(&vms[0]);
}

/* The VM is where that went, and must not run twice. */
static void test_another_with_ram_is_over_and_the_tool_is_killed(void)
{
    for (unsigned freezes = 0; freezes < 3; freezes++) {
        another_is_over(freezes, freezes < 2 ? "vm:given" : "freeze:starting");
        is_left_as_it_is("QEMU has completed a migration of this VM");
        mover_end_all(NULL);
    }
}

static void test_another_with_ram_is_over(void)
{
    for (unsigned freezes = 0; freezes < 2; freezes++) {
        another_is_over(freezes, "vm:given");
        mover_kill(&sender, SIGCONT);
        mover_ends(&sender, 1);
        mover_must_print(&sender, "see where it runs now");
        assert_false(mover_resumed(&vms[0]));
        mover_end_all(NULL);
    }
}

static int to_nobody(void)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) > 0);
    vm_ok(ibx_qmp_getfd(vms[0].qmp, "nobody", ends[1], vm_soon(), &vm_error));
    close(ends[1]);
    return ends[0];
}

/* QEMU has the stream of the tool, and not been told to migrate. */
static void test_another_with_ram_goes_on_and_the_tool_is_killed(void)
{
    struct ibx_vm_progress now;
    for (unsigned freezes = 0; freezes < 2; freezes++) {
        freezes ? start_to_freeze("vm:given") : start_to_send("vm:given");
        const int end = to_nobody();
        without_return_path();
        vm_do(&vms[0], "migrate", json_pack("{s:s}", "uri", "fd:nobody"));
        json_decref(vm_event(&vms[0], "MIGRATION", "active"));
        mover_kill(&sender, SIGKILL);
        mover_await_watchdog(&sender, "that another program has begun since");
        vm_ok(ibx_vm_migration(vms[0].qmp, &now, vm_soon(), &vm_error));
        assert_string_equal(now.status, "active");
        close(end);
        mover_end_all(NULL);
    }
}

/* The same, without RAM: it has to fail. */
static void test_another_goes_on_and_the_tool_is_killed(void)
{
    for (unsigned freezes = 0; freezes < 2; freezes++) {
        freezes ? start_to_freeze("vm:given") : start_to_send("vm:given");
        const int end = to_nobody();
        another_comes_between("fd:nobody");
        json_decref(vm_event(&vms[0], "MIGRATION", "active"));
        mover_kill(&sender, SIGKILL);
        json_decref(vm_event(&vms[0], "MIGRATION", "cancelling"));
        close(end);
        mover_await_watchdog(&sender, "ib-migrate ended before the");
        assert_true(takes_its_ram());
        pair_runs_at_the_source();
        mover_end_all(NULL);
    }
}

/* Nobody reads what it writes. */
static int does_not_end(void)
{
    const int end = to_nobody();
    another_comes_between("fd:nobody");
    json_decref(vm_event(&vms[0], "MIGRATION", "active"));
    assert_true(vm_fills_stream(&vms[0])); /* until then it can be given up */
    mover_kill(&sender, SIGCONT);
    return end;
}

/* QEMU has been told to give it up, and does so when that end is closed. `watchdog`: of the tool,
 * to be killed before it can help; 0: it puts QEMU's settings back. */
static void then_it_ends(int end, int status, pid_t watchdog)
{
    mover_ends(&sender, status);
    mover_must_print(&sender, "QEMU does not give that up (cancelling)");
    mover_must_print(&sender, "QEMU is still to leave the VM's memory out of what it saves");
    mover_must_print(&sender, "QEMU's migration settings could not be put back");
    assert_false(mover_printed(&sender, "could not be continued")); /* nothing has stopped it */
    assert_true(vm_runs(&vms[0]));
    assert_false(takes_its_ram());
    if (watchdog)
        kill(watchdog, SIGKILL);
    close(end);
    if (watchdog)
        MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    else
        mover_await_watchdog(&sender, "ib-migrate ended before");
    assert_true(takes_its_ram());
}

static void test_another_that_does_not_end_between_two_commands(void)
{
    for (unsigned killed = 0; killed < 2; killed++) {
        start_to_send("vm:given");
        const pid_t watchdog = mover_watchdog(&sender);
        then_it_ends(does_not_end(), 3, killed ? watchdog : 0);
        mover_ends(&receiver, 1);
        pair_stayed();
        mover_end_all(NULL);
    }
    start_to_freeze("vm:given");
    then_it_ends(does_not_end(), 1, 0);
    pair_runs_at_the_source();
}

int main(void)
{
    pair_timeout = "timeout_ms=10000";
    static const struct vm_test tests[] = {
        VM_TEST(test_source_loses_the_monitor),
        VM_TEST(test_source_that_holds_loses_the_monitor),
        VM_TEST(test_the_monitor_is_lost_after_the_commit),
        VM_TEST(test_a_long_line_after_the_commit),
        VM_TEST(test_the_monitor_of_a_vm_at_its_start_is_lost),
        VM_TEST(test_the_monitor_is_lost_behind_a_verdict),
        VM_TEST(test_a_stop_is_lost_with_the_monitor),
        VM_TEST(test_the_monitor_is_lost_until_the_end),
        VM_TEST(test_the_monitor_is_another_clients_for_long),
        VM_TEST(test_destination_loses_the_monitor),
        VM_TEST(test_another_that_is_over_between_two_commands),
        VM_TEST(test_another_that_does_not_end_between_two_commands),
        VM_TEST(test_another_is_over_and_the_tool_is_killed),
        VM_TEST(test_another_goes_on_and_the_tool_is_killed),
        VM_TEST(test_another_with_ram_is_over),
        VM_TEST(test_another_with_ram_is_over_and_the_tool_is_killed),
        VM_TEST(test_another_with_ram_goes_on_and_the_tool_is_killed),
        {0},
    };
    return vm_tests(tests, mover_end_all);
}
