/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A tool's connection to its QEMU's monitor breaks while the VM moves, or another client has the
 * monitor meanwhile. Afterwards the guest is alive and right on exactly one side, or stands still.
 */
#include "migrate/common/vm.h"
#include "migrate/qemu/qemu.h"
#include "tests/fixtures/mover.h"

#include "common/clock.h"

#include <sys/socket.h>

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
        {0},
    };
    return vm_tests(tests, mover_end_all);
}
