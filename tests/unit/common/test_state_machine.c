/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* common/state_machine.h, compiled once for a debug build and once for a release (NDEBUG). */
#include "common/state_machine.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/*
 * state machine: lid
 *   [*] -> CLOSED -> OPEN -> CLOSED
 *   CLOSED | OPEN -> BROKEN -> [*]
 */
enum lid_state { LID_CLOSED, LID_OPEN, LID_BROKEN };

static const struct ibx_state lid_states[] = {
    [LID_CLOSED] = {"closed", IBX_TO(LID_OPEN) | IBX_TO(LID_BROKEN), IBX_STATE_INITIAL},
    [LID_OPEN] = {"open", IBX_TO(LID_CLOSED) | IBX_TO(LID_BROKEN), 0},
    [LID_BROKEN] = {"broken", 0, IBX_STATE_FINAL}};
static const struct ibx_state_table lid_table = IBX_STATE_TABLE("lid", lid_states);

static void test_allowed_moves(void **state)
{
    struct ibx_state_machine lid;
    (void)state;
    assert_int_equal(ibx_state_begin(&lid, &lid_table, LID_CLOSED), 0);
    assert_int_equal(lid.now, LID_CLOSED);
    assert_int_equal(ibx_state_move(&lid, LID_OPEN), 0);
    assert_int_equal(ibx_state_move(&lid, LID_CLOSED), 0);
    assert_int_equal(ibx_state_move(&lid, LID_BROKEN), 0);
    assert_int_equal(lid.now, LID_BROKEN);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(ibx_state_name(&lid_table, LID_OPEN), "open");
    assert_string_equal(ibx_state_name(&lid_table, 3), "unknown");
    assert_true(ibx_state_allows(&lid_table, LID_OPEN, LID_CLOSED));
    assert_false(ibx_state_allows(&lid_table, LID_OPEN, LID_OPEN));
    assert_false(ibx_state_allows(&lid_table, 3, LID_OPEN));
    assert_false(ibx_state_allows(&lid_table, LID_OPEN, 32));
}

static int move_to(unsigned from, unsigned to)
{
    struct ibx_state_machine lid = {&lid_table, from};
    const int rc = ibx_state_move(&lid, to);
    return rc == -EINVAL && lid.now == from;
}

static int begin_in(unsigned first, unsigned unused)
{
    struct ibx_state_machine lid = {NULL, 7};
    const int rc = ibx_state_begin(&lid, &lid_table, first);
    (void)unused;
    return rc == -EINVAL && lid.now == 7 && !lid.table;
}

/* A release refuses the move and changes nothing; a debug build aborts. */
static void assert_refused(int (*attempt)(unsigned, unsigned), unsigned a, unsigned b)
{
    const pid_t child = fork();
    if (child == 0) {
        freopen("/dev/null", "w", stderr);
        signal(SIGABRT, SIG_DFL);
        _exit(attempt(a, b) ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
#ifdef NDEBUG
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
#else
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
#endif
}

static void test_refused_moves(void **state)
{
    (void)state;
    assert_refused(move_to, LID_BROKEN, LID_OPEN); /* from a final state */
    assert_refused(move_to, LID_OPEN, LID_OPEN);
    assert_refused(move_to, LID_OPEN, 3); /* not a state */
    assert_refused(move_to, LID_OPEN, 40);
    assert_refused(begin_in, LID_OPEN, 0); /* not an initial state */
    assert_refused(begin_in, 3, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allowed_moves),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_refused_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
