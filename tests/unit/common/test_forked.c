/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory that a process shares with its forked children, and waiting for a word in it. */
#include "common/forked.h"

#include "common/clock.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct table {
    atomic_uint word;
};

/* A waiting process is woken by another one long before its time limit. */
static void test_waiting_process_is_woken(void **state)
{
    struct table *table = ibx_forked_map(sizeof(*table));
    int status = 0;
    (void)state;
    assert_non_null(table);
    /* returns at once: the word has another value */
    ibx_forked_wait(&table->word, 1, UINT64_MAX / 2);
    ibx_forked_wait(&table->word, 0, ibx_now_ns() + 1000); /* returns when the time is over */
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
    while (!atomic_load(&table->word)) /* until the child is about to wait */
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_waiting_process_is_woken),
                                       cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
