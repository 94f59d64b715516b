/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * kill -9 of both tools at once, as where one program has started them, at each of their states.
 * Then each side has only its record and its watchdog. Afterwards the guest is alive and right on
 * exactly one side.
 */
#include "tests/fixtures/borrow.h"

static void both_killed_at(const char *state)
{
    print_message("%s\n", state);
    struct mover *first = pair_run_to(state, NULL), *other = first == &sender ? &receiver : &sender;
    mover_kill(other, SIGSTOP);
    mover_kill(first, SIGKILL);
    mover_kill(other, SIGKILL);
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
        pair_stays();
        vm_end(&vms[1]);
        vm_start(&vms[1], &(struct vm_options){.append = "", .incoming = true});
        pair_run(NULL);
        pair_done();
        pair_moved("");
        mover_end_all(NULL);
    }
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

/* So are those of a borrowing when its VM returns. */
static void all_killed_at(const char *state)
{
    struct mover *const all[] = {&lender, &bringer, &receiver, &sender};
    print_message("%s\n", state);
    borrowed_small();
    bring_to(state);
    for (unsigned i = 0; i < 8; i++)
        mover_kill(all[i % 4], i < 4 ? SIGSTOP : SIGKILL);
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

int main(void)
{
    pair_beats = 10;
    static const struct vm_test tests[] = {VM_TEST(test_before_the_commit),
                                           VM_TEST(test_after_the_commit),
                                           VM_TEST(test_return_before_the_commit),
                                           VM_TEST(test_return_after_the_commit),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
