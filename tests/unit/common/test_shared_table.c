/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A table that processes share. A process that stops at any instruction blocks no other one and
 * leaves complete values, and reads such; a process that writes nonsense into the table misleads no
 * other one to memory outside. */
#include "common/shared_table.h"
#include "tests/unit/forked_memory.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define PLACES 8u
#define THEIRS 7u
#define OURS   9u

/* the size is not a multiple of a word */
struct value {
    uint8_t key[16], filled[29];
};

static struct value value_of(uint8_t key, uint8_t filled)
{
    struct value v;
    memset(v.key, key, sizeof(v.key));
    memset(v.filled, filled, sizeof(v.filled));
    return v;
}

static uint32_t find(const struct ibx_shared_table *table, uint8_t key, struct value *found)
{
    unsigned place = 0;
    const struct value like = value_of(key, 0);
    return ibx_shared_table_next(table, &place, like.key, sizeof(like.key), found);
}

static bool is_whole(const struct value *v)
{
    for (size_t i = 1; i < sizeof(v->filled); i++) {
        if (v->filled[i] != v->filled[0] || v->key[i % sizeof(v->key)] != v->key[0])
            return false;
    }
    return true;
}

static void test_places(void **state)
{
    struct value v;
    int places[PLACES];
    unsigned place = 0, n = 0;
    struct ibx_shared_table *table = ibx_shared_table_create(PLACES, sizeof(v), true);
    (void)state;
    assert_non_null(table);
    assert_int_equal(find(table, 0, &v), 0);
    for (unsigned i = 0; i < PLACES; i++) {
        places[i] = ibx_shared_table_take(table, i % 2 ? THEIRS : OURS);
        assert_true(places[i] >= 0);
        assert_int_equal(find(table, 0, &v), 0); /* nothing has been written there */
    }
    assert_int_equal(ibx_shared_table_take(table, OURS), -1);
    for (uint8_t i = 0; i < PLACES; i++)
        ibx_shared_table_write(table, places[i], &(struct value[]){value_of(i, 1)}[0]);
    ibx_shared_table_write(table, places[5], &(struct value[]){value_of(5, 2)}[0]);
    assert_int_equal(find(table, 5, &v), THEIRS);
    assert_memory_equal(&v, &(struct value[]){value_of(5, 2)}[0], sizeof(v));
    ibx_shared_table_forget(table, THEIRS);
    assert_int_equal(find(table, 5, &v), 0);
    while (ibx_shared_table_next(table, &place, NULL, 0, &v))
        n++;
    assert_int_equal(n, PLACES / 2);
    ibx_shared_table_give(table, places[4]);
    assert_int_equal(find(table, 4, &v), 0);
    assert_int_equal(find(table, 6, &v), OURS);
    assert_int_equal(ibx_shared_table_take(table, OURS), 1);
    ibx_shared_table_destroy(table);
    ibx_shared_table_destroy(NULL);
}

static void test_no_memory(void **state)
{
    (void)state;
    assert_null(ibx_shared_table_create(1u << 31, (size_t)1 << 29, false));
}

/* ------------------------------------------------------------------- stopped at any instruction */

static _Noreturn void come_and_go(struct ibx_shared_table *table)
{
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    const int place = ibx_shared_table_take(table, THEIRS);
    for (uint8_t filled = 1; filled < 3; filled++)
        ibx_shared_table_write(table, place, &(struct value[]){value_of(1, filled)}[0]);
    ibx_shared_table_give(table, place);
    _exit(0);
}

/* Checks all that this process can do with the table while the other one stands still. */
static uint8_t look(struct ibx_shared_table *table)
{
    struct value v;
    uint8_t seen = 0;
    const uint32_t owner = find(table, 1, &v);
    if (owner) {
        assert_int_equal(owner, THEIRS);
        assert_true(is_whole(&v));
        seen = v.filled[0];
    }
    unsigned at = 0;
    while (ibx_shared_table_next(table, &at, NULL, 0, &v))
        /* no value is half overwritten */
        assert_true(is_whole(&v) && v.key[0] == 1 && v.filled[0]);
    const int place = ibx_shared_table_take(table, OURS);
    assert_true(place >= 0);
    ibx_shared_table_write(table, place, &(struct value[]){value_of(2, 9)}[0]);
    assert_int_equal(find(table, 2, &v), OURS);
    assert_true(is_whole(&v));
    ibx_shared_table_give(table, place);
    return seen;
}

/* Steps through the other process's instructions. At step `kill_at` it is killed. Returns how
 * many steps it made. */
static unsigned step_through(struct ibx_shared_table *table, unsigned kill_at, bool looks)
{
    int status = 0;
    unsigned steps = 0;
    uint8_t seen = 0;
    const pid_t pid = fork();
    if (!pid)
        come_and_go(table);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    while (WIFSTOPPED(status) && steps < kill_at) {
        const uint8_t now = looks ? look(table) : 0;
        /* the value is visible from when it is written until it is given back */
        assert_true(now >= seen || !now);
        seen = now;
        steps++;
        assert_int_equal(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
    }
    if (WIFSTOPPED(status)) {
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
    }
    return steps;
}

static void test_process_stopped_at_any_instruction(void **state)
{
    struct value v;
    struct ibx_shared_table *table = ibx_shared_table_create(PLACES, sizeof(v), false);
    (void)state;
    assert_non_null(table);
    alarm(300);
    const unsigned steps = step_through(table, UINT32_MAX, true);
    assert_true(steps > 100);
    /* after a kill, the process is forgotten and its place is free */
    for (unsigned i = 1; i < 7; i++) {
        step_through(table, steps / 7 * i, false);
        ibx_shared_table_forget(table, THEIRS);
        assert_int_equal(find(table, 1, &v), 0);
        assert_int_equal(ibx_shared_table_take(table, OURS), 0);
        ibx_shared_table_forget(table, OURS);
    }
    alarm(0);
    ibx_shared_table_destroy(table);
}

static void find_and_tell(const struct ibx_shared_table *table)
{
    struct value v;
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    const uint32_t owner = find(table, 1, &v);
    _exit(owner == OURS && is_whole(&v) ? 0 : 1);
}

/* A reader stands still after this many steps while its value is replaced twice, so that both
 * copies change. Returns how many steps it made. */
static unsigned read_across(struct ibx_shared_table *table, int place, unsigned stop_at)
{
    int status = 0;
    unsigned steps = 0;
    const pid_t pid = fork();
    if (!pid)
        find_and_tell(table);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    while (WIFSTOPPED(status)) {
        for (uint8_t filled = 1; steps == stop_at && filled < 3; filled++)
            ibx_shared_table_write(table, place, &(struct value[]){value_of(1, filled)}[0]);
        const bool over = steps++ == stop_at;
        assert_int_equal(ptrace(over ? PTRACE_CONT : PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0); /* it has found a whole value */
    return steps;
}

static void test_reader_stopped_at_any_instruction(void **state)
{
    struct ibx_shared_table *table = ibx_shared_table_create(PLACES, sizeof(struct value), false);
    (void)state;
    assert_non_null(table);
    alarm(300);
    const int place = ibx_shared_table_take(table, OURS);
    ibx_shared_table_write(table, place, &(struct value[]){value_of(1, 3)}[0]);
    const unsigned steps = read_across(table, place, UINT32_MAX);
    assert_true(steps > 100);
    for (unsigned i = 0; i < 16; i++) {
        ibx_shared_table_write(table, place, &(struct value[]){value_of(1, 3)}[0]);
        read_across(table, place, steps * i / 16);
    }
    alarm(0);
    ibx_shared_table_destroy(table);
}

/* ------------------------------------------------------------------------------------ nonsense */

static void test_nonsense_in_the_table(void **state)
{
    struct value v;
    uint64_t seed = 1;
    struct ibx_shared_table *table = ibx_shared_table_create(PLACES, sizeof(v), false);
    (void)state;
    assert_non_null(table);
    alarm(300);
    for (unsigned round = 0; round < 1000; round++) {
        unsigned place = 0, n = 0;
        shared_fill_at_random(&seed);
        find(table, 1, &v);
        while (ibx_shared_table_next(table, &place, NULL, 0, &v))
            n++;
        assert_true(n <= PLACES && place <= PLACES);
        const int own = ibx_shared_table_take(table, OURS);
        assert_true(own < (int)PLACES);
        if (own < 0)
            continue;
        ibx_shared_table_write(table, own, &(struct value[]){value_of(3, 3)}[0]);
        /* a new value is correct whatever was in the place before */
        assert_int_equal(find(table, 3, &v), OURS);
        ibx_shared_table_forget(table, OURS);
        assert_int_equal(find(table, 3, &v), 0);
    }
    alarm(0);
    ibx_shared_table_destroy(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places),
                                       cmocka_unit_test(test_no_memory),
                                       cmocka_unit_test(test_process_stopped_at_any_instruction),
                                       cmocka_unit_test(test_reader_stopped_at_any_instruction),
                                       cmocka_unit_test(test_nonsense_in_the_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
