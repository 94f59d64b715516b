/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A lock that another thread holds when the process forks is free in the child. */
#include "common/fork_lock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static struct ibx_fork_lock first = IBX_FORK_LOCK, second = IBX_FORK_LOCK;
static int held[2], over[2];

static void *hold(void *unused)
{
    char byte;
    ibx_fork_lock_take(&first);
    ibx_fork_lock_take(&second);
    const bool told = write(held[1], "", 1) == 1 && read(over[0], &byte, 1) == 1;
    ibx_fork_lock_release(&second);
    ibx_fork_lock_release(&first);
    return told ? unused : NULL;
}

static void locks_are_free_in_a_child(void **state)
{
    pthread_t thread;
    char byte;
    int status = -1;
    void *told;
    (void)state;
    assert_int_equal(pipe(held) | pipe(over), 0);
    assert_int_equal(pthread_create(&thread, NULL, hold, &first), 0);
    assert_int_equal(read(held[0], &byte, 1), 1);
    const pid_t child = fork();
    if (!child) {
        alarm(60);
        ibx_fork_lock_take(&second);
        ibx_fork_lock_take(&first);
        ibx_fork_lock_release(&first);
        _exit(!ibx_fork_lock_try(&first) || ibx_fork_lock_try(&second));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    /* in this process the thread still holds it */
    assert_false(ibx_fork_lock_try(&first) || ibx_fork_lock_try_for(&first, 1));
    assert_int_equal(write(over[1], "", 1), 1);
    assert_int_equal(pthread_join(thread, &told), 0);
    assert_non_null(told);
    assert_true(ibx_fork_lock_try(&first) && ibx_fork_lock_try_for(&second, 60000));
    ibx_fork_lock_release(&second);
    ibx_fork_lock_release(&first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(locks_are_free_in_a_child)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
