/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a process shares with those that it forks, also with one that ends while it has the lock. */
#include "common/forked.h"

#include "common/clock.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct table {
    pthread_mutex_t lock;
    unsigned count;
    atomic_uint word;
};

static void child(struct table *table, bool unlocks)
{
    int status = 0;
    const pid_t pid = fork();
    if (!pid) {
        alarm(60); /* for a lock that nobody gives back */
        ibx_forked_lock(&table->lock);
        table->count++;
        if (unlocks)
            pthread_mutex_unlock(&table->lock);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_forked(void **state)
{
    struct table *table = ibx_forked_map(sizeof(*table));
    (void)state;
    assert_non_null(table);
    assert_int_equal(table->count, 0);
    ibx_forked_lock_init(&table->lock);
    alarm(60);
    child(table, true);
    for (unsigned i = 0; i < 3; i++)
        child(table, false);
    ibx_forked_lock(&table->lock);
    assert_int_equal(table->count, 4);
    pthread_mutex_unlock(&table->lock);
    ibx_forked_lock(&table->lock);
    pthread_mutex_unlock(&table->lock);
    munmap(table, sizeof(*table));
}

/* A process that waits is woken by another one, long before its time is over. */
static void test_woken(void **state)
{
    struct table *table = ibx_forked_map(sizeof(*table));
    int status = 0;
    (void)state;
    assert_non_null(table);
    ibx_forked_wait(&table->word, 1, UINT64_MAX / 2);      /* it has another value */
    ibx_forked_wait(&table->word, 0, ibx_now_ns() + 1000); /* the time is over */
    const pid_t pid = fork();
    if (!pid) {
        alarm(60);
        while (atomic_load(&table->word) < 2) {
            atomic_compare_exchange_strong(&table->word, &(unsigned){0}, 1);
            ibx_forked_wait(&table->word, 1, UINT64_MAX / 2);
        }
        _exit(0);
    }
    alarm(60);
    while (!atomic_load(&table->word)) /* it is about to wait */
        sched_yield();
    atomic_store(&table->word, 2);
    ibx_forked_wake(&table->word);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    munmap(table, sizeof(*table));
}

static void test_no_memory(void **state)
{
    (void)state;
    assert_null(ibx_forked_map(SIZE_MAX / 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forked), cmocka_unit_test(test_woken),
                                       cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
