/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A tool that stands still at one of its states (SIGSTOP, a host without processors): for a moment,
 * which changes nothing, or longer than the VM may stand still for it. Afterwards the guest is
 * alive and right on exactly one side. Tools are stopped there by IBX_MOVE_STOP_AT.
 */
#include "tests/fixtures/mover.h"

/* Starts both tools, and returns the one that has stopped at this state. */
static struct mover *stopped_at(const char *state)
{
    print_message("%s\n", state);
    pair_start(NULL);
    return pair_run_to(state, NULL);
}

static void each_for_a_moment(const char *const *states, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        mover_kill(stopped_at(states[i]), SIGCONT);
        pair_done();
        pair_moved("");
        mover_end_all(NULL);
    }
}

static void test_source_for_a_moment(void)
{
    static const char *const states[] = {"source:exposing", "source:starting",  "source:stopped",
                                         "source:sending",  "source:committed", "source:serving",
                                         "source:done"};
    each_for_a_moment(states, sizeof(states) / sizeof(states[0]));
}

static void test_destination_for_a_moment(void)
{
    static const char *const states[] = {"destination:joining",  "destination:ready",
                                         "destination:mapped",   "destination:waiting",
                                         "destination:resuming", "destination:filling",
                                         "destination:complete", "destination:done"};
    each_for_a_moment(states, sizeof(states) / sizeof(states[0]));
}

/* The VM stands still for it, and then goes on where it is. */
static void too_long_before_the_commit(const char *state)
{
    pair_timeout = PAIR_TIMEOUT_SHORT; /* the VM stands still for five times as long */
    struct mover *late = stopped_at(state);
    mover_ends(&sender, 1);
    mover_kill(late, SIGCONT);
    mover_ends(late, 1);
    pair_stayed();
    mover_end_all(NULL);
}

static void test_destination_too_long_before_the_commit(void)
{
    too_long_before_the_commit("destination:ready");
}

static void test_long_destination_too_long_later(void)
{
    too_long_before_the_commit("destination:mapped");
    too_long_before_the_commit("destination:waiting");
}

int main(void)
{
    static const struct vm_test tests[] = {VM_TEST(test_source_for_a_moment),
                                           VM_TEST(test_destination_for_a_moment),
                                           VM_TEST(test_destination_too_long_before_the_commit),
                                           VM_TEST(test_long_destination_too_long_later),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
