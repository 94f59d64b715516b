/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * kill -9 of both tools at once, as where one program has started them, at each of their states.
 * Then each side has only its record and its watchdog, or only its record. Afterwards the guest is
 * alive and right on exactly one side.
 */
#include "tests/fixtures/borrow.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define LOAD_TRIES 10

/* `first` has stopped itself. */
static void kill_both(struct mover *first, bool watchdog)
{
    struct mover *other = first == &sender ? &receiver : &sender;
    mover_kill(other, SIGSTOP);
    if (watchdog)
        assert_int_equal(kill(mover_watchdog(&sender), SIGKILL), 0);
    mover_kill(first, SIGKILL);
    mover_kill(other, SIGKILL);
}

static void killed_at(const char *state, bool watchdog)
{
    print_message("%s\n", state);
    kill_both(pair_run_to(state, NULL), watchdog);
}

static void both_killed_at(const char *state)
{
    killed_at(state, false);
}

/* It runs at the source, and can be migrated. */
static void stays_and_moves(void)
{
    pair_stays();
    vm_end(&vms[1]);
    vm_start(&vms[1], &(struct vm_options){.append = "", .incoming = true});
    pair_run(NULL);
    pair_done();
    pair_moved("");
    mover_end_all(NULL);
}

/* The watchdog at the source continues the VM, which can be migrated then. */
static void test_before_the_commit(void)
{
    static const char *const states[] = {
        "source:exposing",     "source:starting",   "source:stopped",     "source:sending",
        "destination:joining", "destination:ready", "destination:mapped", "destination:waiting"};
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        pair_start(NULL);
        both_killed_at(states[i]);
        mover_await_record("source", "kept");
        mover_must_print(MOVER_RUN(1, "recover", "--qmp", vms[0].tool), "no unfinished migration");
        stays_and_moves();
    }
}

/* ------------------------------------------------------------ the watchdog, too */

/* As where the control group of all of them is killed. QEMU itself continues the VM, and recover
 * does the rest of what the watchdog would have done. */
static void test_all_killed_before_the_commit(void)
{
    static const char *const states[] = {"source:exposing", "source:starting", "source:stopped",
                                         "source:sending", "destination:joining"};
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        pair_start(NULL);
        killed_at(states[i], true);
        struct mover *stayed = MOVER_RUN(1, "recover", "--qmp", vms[0].tool, TIMED);
        mover_must_print(stayed, "the migration never came to its commit");
        assert_false(mover_printed(stayed, ". The last migration")); /* one sentence says it all */
        mover_await_record("source", "kept");
        mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[0].tool), "stayed here");
        stays_and_moves();
    }
}

/* While pages come before the stop, the record says for a while already that the VM may run there.
 */
static void test_all_killed_while_pages_come(void)
{
    static const char *const states[] = {"source:warming", "source:dropping"};
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        print_message("%s\n", states[i]);
        pair_start(NULL);
        pair_receive(NULL);
        mover_stop_next(states[i]);
        pair_send((const char *[]){"--warm", NULL});
        mover_await_stop(&sender);
        kill_both(&sender, true);
        MOVER_RUN(1, "recover", "--qmp", vms[0].tool, TIMED);
        mover_await_record("source", "kept");
        pair_stayed();
        mover_end_all(NULL);
    }
}

/* A VM that was paused, before its migration or since the tools have ended, stays so. */
static void test_all_killed_and_paused(void)
{
    for (unsigned before = 0; before < 2; before++) {
        pair_start(NULL);
        if (before)
            vm_do(&vms[0], "stop", NULL);
        killed_at("source:stopped", true);
        if (!before) {
            vm_wait_beats(&vms[0], vm_beats(&vms[0]) + 1);
            vm_do(&vms[0], "stop", NULL);
        }
        MOVER_RUN(1, "recover", "--qmp", vms[0].tool, TIMED);
        mover_await_record("source", "kept");
        assert_false(vm_runs(&vms[0]));
        vm_do(&vms[0], "cont", NULL);
        pair_stayed();
        mover_end_all(NULL);
    }
}

/* QEMU has written its whole state, and holds its migration open: whether COMMIT was sent, only the
 * destination knows, and recover does not decide it. */
static void test_all_killed_right_before_the_commit(void)
{
    pair_start(NULL);
    killed_at("source:committing", true);
    pair_recover(&sender);
    mover_await_words(&sender, "reconnecting: ");
    assert_false(vm_runs(&vms[0]));
    for (unsigned i = 0; i < 2; i++) {
        mover_kill(&sender, SIGINT);
        mover_await_words(&sender, i ? "may run at " : "interrupt once more");
    }
    mover_ends(&sender, 3);
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[0].tool, TIMED);
    mover_await_record("source", "rolled-back");
    pair_stayed();
}

/* Both are killed while QEMU at the destination waits for a page to load the VM's state. */
static bool killed_while_it_loads(void)
{
    static const struct vm_options driven = {.append = "balloon=2048 mib=4 idle=2000000",
                                             .extra = {VM_BALLOON}};
    pair_start(&driven);
    both_killed_at("destination:mapped");
    mover_await_record("source", "kept");
    return strstr(vm_where(&vms[1]), "userfault") != NULL;
}

/* recover there waits for the source, which has no unfinished migration, but can tell it. */
static void test_stayed_while_the_destination_loads(void)
{
    unsigned tries = 0;
    while (!killed_while_it_loads()) { /* it had not come so far */
        mover_end_all(NULL);
        if (++tries == LOAD_TRIES)
            skip();
    }
    pair_recover(&receiver);
    mover_await_words(&receiver, "waiting at ");
    struct mover *told = MOVER_RUN(1, "recover", "--qmp", vms[0].tool, TIMED);
    mover_must_print(told, "the VM stayed here, and its destination knows it");
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, "taken back at the source, which it had never left");
    mover_await_record("destination", "broken");
    pair_stays();
}

/* The tools that recover both sides find each other, whichever begins. */
static void test_after_the_commit(void)
{
    static const char *const states[] = {"source:serving", "destination:filling",
                                         "destination:complete"};
    for (unsigned i = 0; i < 2 * sizeof(states) / sizeof(states[0]); i++) {
        pair_start(NULL);
        both_killed_at(states[i / 2]);
        pair_recover(i % 2 ? &sender : &receiver);
        pair_recover(i % 2 ? &receiver : &sender);
        pair_done();
        pair_moved("");
        mover_end_all(NULL);
    }
}

/* ------------------------------------------------------------ a return */

static void kill_all(void)
{
    struct mover *const all[] = {&lender, &bringer, &receiver, &sender};
    for (unsigned i = 0; i < 8; i++)
        mover_kill(all[i % 4], i < 4 ? SIGSTOP : SIGKILL);
}

/* So are those of a borrowing when its VM returns. */
static void all_killed_at(const char *state)
{
    print_message("%s\n", state);
    borrowed_small();
    bring_to(state);
    kill_all();
}

static void the_borrowing_goes_on(void)
{
    pair_recover(&receiver);
    pair_recover(&sender);
}

static void test_return_before_the_commit(void)
{
    static const char *const states[] = {"source:starting", "source:stopped", "source:sending",
                                         "destination:mapped", "destination:waiting"};
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        all_killed_at(states[i]);
        stays_away();
        vm_end(&home);
        the_borrowing_goes_on();
        mover_await(&receiver, "filling", 0);
        home_and_bring();
        returned();
        mover_end_all(NULL);
    }
}

/* The watchdog of the return is killed with them: recover first ends that, then goes on with the
 * borrowing. */
static void test_return_all_killed_before_the_commit(void)
{
    static const char *const states[] = {"source:starting", "source:stopped"};
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        print_message("%s\n", states[i]);
        borrowed_small();
        bring_to(states[i]);
        assert_int_equal(kill(mover_watchdog(&bringer), SIGKILL), 0);
        kill_all();
        mover_must_print(MOVER_RUN(1, "recover", "--qmp", vms[1].tool, TIMED),
                         "the migration never came to its commit");
        stays_away();
        vm_end(&home);
        the_borrowing_goes_on();
        mover_await(&receiver, "filling", 0);
        home_and_bring();
        returned();
        mover_end_all(NULL);
    }
}

static void test_return_after_the_commit(void)
{
    static const char *const states[] = {"source:serving", "destination:filling",
                                         "destination:complete"};
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        all_killed_at(states[i]);
        mover_recover(&lender, &home);
        mover_recover(&bringer, &vms[1]);
        brought();
        the_borrowing_goes_on();
        pair_done();
        is_home();
        mover_end_all(NULL);
    }
}

/* ------------------------------------------------------------ a slow watchdog */

/* Lets a stopped watchdog continue when recover waits for it. */
static void continues_late(pid_t watchdog, struct mover *recover)
{
    mover_await_words(recover, "is waited for: ");
    kill(watchdog, SIGCONT);
}

/* The watchdog that the VM's source has left has the lock of the return for a while. The record of
 * the borrowing, which nobody works on, is not taken in its place. */
static void test_recover_waits_for_a_watchdog(void)
{
    borrowed_small();
    bring_to("source:committing,source:serving");
    const pid_t watchdog = mover_watchdog(&bringer);
    kill(watchdog, SIGSTOP); /* it does not learn of the commit */
    mover_kill(&bringer, SIGCONT);
    mover_await_stop(&bringer);
    kill_all();
    mover_recover(&lender, &home);
    mover_recover(&bringer, &vms[1]);
    continues_late(watchdog, &bringer);
    brought();
    the_borrowing_goes_on();
    pair_done();
    is_home();
}

/* If it has continued the VM then, there is nothing to recover. */
static void test_the_watchdog_continues_the_vm(void)
{
    pair_start(NULL);
    assert_ptr_equal(pair_run_to("source:stopped", NULL), &sender);
    const pid_t watchdog = mover_watchdog(&sender);
    kill(watchdog, SIGSTOP);
    mover_kill(&receiver, SIGKILL);
    mover_kill(&sender, SIGKILL);
    mover_recover(&sender, &vms[0]);
    continues_late(watchdog, &sender);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "no unfinished migration");
    pair_stays();
}

/* Until then no other tool works on the VM, with whatever monitor and folder of records: the
 * watchdog would end what it does. */
static void test_nobody_else_works_on_it_before(void)
{
    char folder[160];
    pair_start(NULL);
    snprintf(folder, sizeof(folder), "%s/snapshot", mover_folder);
    assert_ptr_equal(pair_run_to("source:stopped", NULL), &sender);
    const pid_t watchdog = mover_watchdog(&sender);
    kill(watchdog, SIGSTOP);
    mover_kill(&receiver, SIGKILL);
    mover_kill(&sender, SIGKILL);
    mover_must_print(MOVER_RUN(1, "freeze", folder, "--qmp", vms[0].tool),
                     "another ib-migrate works on the VM of this QEMU");
    kill(watchdog, SIGCONT);
    mover_await_record("source", "kept");
    pair_stays();
    MOVER_RUN(0, "freeze", folder, "--qmp", vms[0].tool);
}

/* ------------------------------------------------------------ a rollback */

/* The VM runs at the destination, and no tool does. */
static void nobody_works_on_it_any_more(void)
{
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats);
    mover_kill(&sender, SIGKILL);
    mover_kill(&receiver, SIGKILL);
}

static void nobody_works_on_it(void)
{
    pair_filling(NULL, NULL);
    nobody_works_on_it_any_more();
}

/* It was paused, or waits for a page, and does not run beside the one at the source. */
static void stopped_there(const struct mover *told)
{
    mover_must_print(told, "an ib-migrate is at ");
    mover_must_print(told, receiver.uri);
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, "taken back at the source by ib-migrate rollback");
    mover_await_record("destination", "broken");
    mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[1].tool), "was taken back at ");
    const unsigned long beats = vm_beats(&vms[1]);
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
    assert_int_equal(vm_beats(&vms[1]), beats);
}

/* `recover` at the destination and `rollback --yes` at the source are called at once: what asked
 * the destination has found nobody, and then its tool is there. */
static void roll_back_while_it_recovers(void)
{
    struct mover rollback = {0};
    mover_stop_next("rollback:marked");
    mover_start(&rollback,
                (const char *[]){"rollback", "--yes", "--qmp", vms[0].tool, TIMED, NULL});
    mover_await_stop(&rollback);
    pair_recover(&receiver);
    mover_await_words(&receiver, "waiting at ");
    mover_kill(&rollback, SIGCONT);
    mover_ends(&rollback, 0);
    stopped_there(&rollback);
}

static void test_rolled_back_while_the_destination_recovers(void)
{
    nobody_works_on_it();
    roll_back_while_it_recovers();
}

/* The socket at which it listened is gone, as after a restart of the host. */
static void test_rolled_back_while_it_recovers_at_a_path(void)
{
    char uri[160];
    const size_t scheme = strlen("rdma://");
    pair_start(NULL);
    snprintf(uri, sizeof(uri), "rdma://%s/meet", mover_folder);
    mover_receive(&receiver, &vms[1], uri, (const char *[]){"--max-bandwidth", HARDLY, NULL});
    pair_send(NULL);
    mover_await(&receiver, "filling", 0);
    nobody_works_on_it_any_more();
    assert_int_equal(unlink(uri + scheme), 0);
    roll_back_while_it_recovers();
}

/* The destination's tool comes when the rollback is over: `recover` at the source tells it, and can
 * be called again. */
static void test_rolled_back_before_the_destination_recovers(void)
{
    nobody_works_on_it();
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[0].tool, TIMED);
    struct mover *nobody = MOVER_RUN(1, "recover", "--qmp", vms[0].tool, TIMED);
    mover_must_print(nobody, "the last one was rolled back (its destination could not be told, and "
                             "needs to know that only if an ib-migrate waits for pages there: ");
    pair_recover(&receiver);
    mover_await_words(&receiver, "waiting at ");
    struct mover *told = MOVER_RUN(1, "recover", "--qmp", vms[0].tool, TIMED);
    mover_must_print(told, "the VM was taken back here, and its destination knows it");
    stopped_there(told);
}

/* The rollback is killed at this point, and `recover` is called at the destination then. */
static void killed_in_its_rollback(const char *point)
{
    struct mover rollback = {0};
    print_message("%s\n", point);
    nobody_works_on_it();
    mover_stop_next(point);
    mover_start(&rollback,
                (const char *[]){"rollback", "--yes", "--qmp", vms[0].tool, TIMED, NULL});
    mover_await_stop(&rollback);
    mover_kill(&rollback, SIGKILL);
    mover_await_record("source", "moved");
    pair_recover(&receiver);
    mover_await_words(&receiver, "waiting at ");
}

/* It had continued the VM, and its record still says that it went: the first command at the source
 * says so to the destination and in the record. */
static void test_rolled_back_and_killed(void)
{
    killed_in_its_rollback("rollback:continued");
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
    mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[0].tool),
                     "a rollback has begun and has not recorded its end");
    struct mover *told = MOVER_RUN(1, "recover", "--qmp", vms[0].tool, TIMED);
    mover_must_print(told, "the VM was taken back here, and its destination knows it");
    assert_false(mover_printed(told, "and not here"));
    stopped_there(told);
    mover_await_record("source", "rolled-back");
    mover_must_print(MOVER_RUN(1, "recover", "--qmp", vms[0].tool, TIMED),
                     "the last one was rolled back (its destination could not be told, and ");
    mover_end_all(NULL);

    killed_in_its_rollback("rollback:continued");
    struct mover *again = MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[0].tool, TIMED);
    mover_must_print(again, "rolled back, it runs here again");
    stopped_there(again);
    mover_await_record("source", "rolled-back");
}

/* The VM stands still here, and runs at the destination: rollback refuses, and recover goes on. */
static void test_killed_before_it_is_rolled_back(void)
{
    static const char *const points[] = {"rollback:noted", "rollback:marked"};
    for (unsigned i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
        killed_in_its_rollback(points[i]);
        mover_must_print(MOVER_RUN(1, "rollback", "--yes", "--qmp", vms[0].tool, TIMED),
                         "the VM would run twice");
        mover_recover(&sender, &vms[0]);
        pair_done();
        mover_end_all(NULL);
    }
}

/* QEMU's migration is over and has no mark, as if another program had made it: neither end goes on
 * before the destination's QEMU has ended and the operator has continued the VM here, as the
 * commands say. */
static void test_killed_before_its_mark(void)
{
    killed_in_its_rollback("rollback:released");
    mover_must_print(MOVER_RUN(1, "rollback", "--yes", "--qmp", vms[0].tool, TIMED),
                     "end its QEMU first");
    mover_must_print(MOVER_RUN(3, "recover", "--qmp", vms[0].tool, TIMED),
                     "once the VM does not run at the destination");
    vm_kill(&vms[1]);
    assert_int_not_equal(mover_wait(&receiver), 0);
    mover_must_print(MOVER_RUN(1, "rollback", "--yes", "--qmp", vms[0].tool, TIMED),
                     "continue it by cont in QEMU's monitor, then call rollback again");
    vm_do(&vms[0], "cont", NULL);
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[0].tool, TIMED);
    mover_await_record("source", "rolled-back");
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
}

/* It had continued the VM, and the QEMU here has ended since: its memory is not what it was at its
 * stop, and no page of it is sent. */
static void killed_with_its_qemu(int status, const char *command, const char *yes,
                                 const char *words)
{
    killed_in_its_rollback("rollback:continued");
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
    vm_kill(&vms[0]);
    mover_must_print(MOVER_RUN(status, command, "--qmp", vms[0].tool, TIMED, yes), words);
    mover_ends(&receiver, 1);
    mover_await_record("destination", "broken");
    mover_await_record("source", "rolled-back");
}

static void test_rolled_back_and_killed_with_its_qemu(void)
{
    killed_with_its_qemu(1, "recover", NULL,
                         "the VM was taken back here, and its destination knows it");
    mover_end_all(NULL);
    killed_with_its_qemu(0, "rollback", "--yes", "has ended since");
}

int main(void)
{
    pair_beats = 10;
    static const struct vm_test tests[] = {
        VM_TEST(test_before_the_commit),
        VM_TEST(test_all_killed_before_the_commit),
        VM_TEST(test_all_killed_while_pages_come),
        VM_TEST(test_all_killed_and_paused),
        VM_TEST(test_all_killed_right_before_the_commit),
        VM_TEST(test_stayed_while_the_destination_loads),
        VM_TEST(test_after_the_commit),
        VM_TEST(test_return_before_the_commit),
        VM_TEST(test_return_all_killed_before_the_commit),
        VM_TEST(test_return_after_the_commit),
        VM_TEST(test_recover_waits_for_a_watchdog),
        VM_TEST(test_the_watchdog_continues_the_vm),
        VM_TEST(test_nobody_else_works_on_it_before),
        VM_TEST(test_rolled_back_while_the_destination_recovers),
        VM_TEST(test_rolled_back_while_it_recovers_at_a_path),
        VM_TEST(test_rolled_back_before_the_destination_recovers),
        VM_TEST(test_rolled_back_and_killed),
        VM_TEST(test_killed_before_it_is_rolled_back),
        VM_TEST(test_killed_before_its_mark),
        VM_TEST(test_rolled_back_and_killed_with_its_qemu),
        {0}};
    return vm_tests(tests, mover_end_all);
}
