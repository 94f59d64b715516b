/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Control groups by which a service manager ends processes: that of the tools, and that of QEMU,
 * which the watchdog is in.
 */
#include "tests/fixtures/mover.h"

#include "common/clock.h"

#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

static const char *const unified[] = {"/sys/fs/cgroup/unified", "/sys/fs/cgroup"};
static char groups[2][96]; /* of QEMU at the source, and of the tools */
static char frozen[96];    /* of cgroup v1 */

static void set_frozen(const char *state)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/freezer.state", frozen);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(state, file);
    assert_int_equal(fclose(file), 0);
}

static void remove_group(char *group)
{
    for (unsigned tries = 0; group[0] && rmdir(group) && tries < 1000; tries++)
        poll(NULL, 0, 10); /* processes that are being reaped */
    group[0] = '\0';
}

static int end_groups(void **state)
{
    if (frozen[0])
        set_frozen("THAWED");
    const int rc = mover_end_all(state);
    remove_group(groups[0]);
    remove_group(groups[1]);
    remove_group(frozen);
    return rc;
}

static bool put_into(const char *group, pid_t pid)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/cgroup.procs", group);
    FILE *procs = fopen(path, "we");
    const bool good = procs && fprintf(procs, "%d\n", (int)pid) > 0;
    return procs && !fclose(procs) && good;
}

/* Sends the processes in it this signal, or none with 0. Returns how many they are. */
static unsigned kill_group(const char *group, int signal)
{
    char path[128];
    int pid;
    unsigned count = 0;
    snprintf(path, sizeof(path), "%s/cgroup.procs", group);
    FILE *procs = fopen(path, "re");
    assert_non_null(procs);
    for (; fscanf(procs, "%d", &pid) == 1; count++)
        assert_int_equal(kill(pid, signal), 0);
    fclose(procs);
    return count;
}

static void await_empty(const char *group)
{
    const uint64_t deadline = vm_soon();
    for (unsigned left; (left = kill_group(group, 0)); poll(NULL, 0, 2))
        if (ibx_now_ns() >= deadline)
            fail_msg("%u processes are left in the control group of QEMU", left);
}

/* Starts both VMs, that of the source in a group of its own, and the tools in another one. Returns
 * where this process is to be put back with put_into(). */
static const char *start_in_groups(void)
{
    const char *mount = unified[access("/sys/fs/cgroup/unified/cgroup.procs", F_OK) ? 1 : 0];
    pair_start(NULL);
    for (unsigned i = 0; i < 2; i++) {
        snprintf(groups[i], sizeof(groups[i]), "%s/ibx-test-%d-%s", mount, (int)getpid(),
                 i ? "tools" : "qemu");
        if (mkdir(groups[i], 0700) || !put_into(groups[i], i ? getpid() : vms[0].pid)) {
            groups[1][0] = '\0';
            skip(); /* this user may make no groups */
        }
    }
    return mount;
}

/* ------------------------------------------------------------ killed, and stopped */

/* Both tools are in a control group that is ended, as that of a service; the watchdog is in QEMU's.
 */
static void test_the_control_group_of_the_tools_is_killed(void)
{
    const char *mount = start_in_groups();
    const struct mover *first = pair_run_to("source:stopped", NULL);
    assert_ptr_equal(first, &sender);
    mover_kill(&receiver, SIGSTOP);
    assert_true(put_into(mount, getpid()));
    assert_int_equal(kill_group(groups[1], SIGKILL), 2);
    mover_kill(&sender, SIGKILL);
    mover_kill(&receiver, SIGKILL);
    mover_await_record("source", "kept");
    pair_stayed();
}

/* systemd stops a unit by SIGTERM to all in its control group, and waits until that is empty. The
 * watchdog ends with QEMU, also while its tool does not get on. */
static void the_unit_of_qemu_is_stopped_at(const char *state)
{
    print_message("%s\n", state);
    const char *mount = start_in_groups();
    pair_run_to(state, NULL);
    assert_true(put_into(mount, getpid()));
    kill_group(groups[0], SIGTERM);
    await_empty(groups[0]);
    mover_kill(&sender, SIGCONT);
}

static void test_the_unit_of_qemu_is_stopped_before_the_commit(void)
{
    the_unit_of_qemu_is_stopped_at("source:stopped");
    mover_ends(&sender, 1);
    mover_must_print(&sender, "has ended");
    mover_ends(&receiver, 1);
}

static void test_the_unit_of_qemu_is_stopped_after_the_commit(void)
{
    the_unit_of_qemu_is_stopped_at("source:serving");
    vm_await_end(&vms[0]);
    pair_done();
    pair_moved("");
}

/* Nothing depends on it any more. */
static void test_after_the_commit_there_is_no_watchdog(void)
{
    const char *mount = start_in_groups();
    pair_run_to("source:serving", NULL);
    assert_true(put_into(mount, getpid()));
    const uint64_t deadline = vm_soon();
    while (kill_group(groups[0], 0) != 1) {
        if (ibx_now_ns() >= deadline)
            fail_msg("the watchdog is still in QEMU's control group");
        poll(NULL, 0, 2);
    }
    mover_kill(&sender, SIGCONT);
    pair_done();
    pair_moved("");
}

/* SIGTERM to it alone: QEMU is there, and so is its VM. */
static void test_a_watchdog_outlives_sigterm(void)
{
    pair_start(NULL);
    pair_run_to("source:stopped", NULL);
    assert_int_equal(kill(mover_watchdog(&sender), SIGTERM), 0);
    mover_kill(&receiver, SIGSTOP);
    mover_kill(&sender, SIGKILL);
    mover_kill(&receiver, SIGKILL);
    mover_await_record("source", "kept");
    pair_stayed();
}

/* ------------------------------------------------------------ frozen */

/* The tool gives up, and does not wait for a watchdog that cannot end. */
static void the_migration_fails(void)
{
    mover_kill(&sender, SIGINT);
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_ends(&receiver, 1);
}

static void test_a_watchdog_that_is_stopped_is_not_waited_for(void)
{
    pair_start(NULL);
    pair_run_to("source:stopped", NULL);
    assert_int_equal(kill(mover_watchdog(&sender), SIGSTOP), 0);
    the_migration_fails();
    assert_false(mover_printed(&sender, "frozen"));
    pair_stayed();
}

/* In cgroup v1 no process of a frozen group can be killed. */
static void test_a_watchdog_that_is_frozen_is_not_waited_for(void)
{
    pair_start(NULL);
    snprintf(frozen, sizeof(frozen), "/sys/fs/cgroup/freezer/ibx-test-%d", (int)getpid());
    if (mkdir(frozen, 0700)) {
        frozen[0] = '\0';
        skip(); /* not this user, or there is no v1 */
    }
    pair_run_to("source:stopped", NULL);
    assert_true(put_into(frozen, mover_watchdog(&sender)));
    set_frozen("FROZEN");
    the_migration_fails();
    mover_must_print(&sender, "is frozen: it ends as soon as that is thawed");
    set_frozen("THAWED");
    await_empty(frozen);
    pair_stayed();
}

int main(void)
{
    pair_beats = 10;
    static const struct vm_test tests[] = {
        VM_TEST(test_the_control_group_of_the_tools_is_killed),
        VM_TEST(test_the_unit_of_qemu_is_stopped_before_the_commit),
        VM_TEST(test_the_unit_of_qemu_is_stopped_after_the_commit),
        VM_TEST(test_after_the_commit_there_is_no_watchdog),
        VM_TEST(test_a_watchdog_outlives_sigterm),
        VM_TEST(test_a_watchdog_that_is_stopped_is_not_waited_for),
        VM_TEST(test_a_watchdog_that_is_frozen_is_not_waited_for),
        {0}};
    return vm_tests(tests, end_groups);
}
