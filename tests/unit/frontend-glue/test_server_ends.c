/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The end of the server's process, which each thread of a client notices by its own session. */
#include "frontend-glue/call_pipeline/internal.h"

#include "tests/fixtures/patience.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define CHILDREN 200
#define CHILD_S  10 /* a child that hangs is killed after this time */

static uint32_t process; /* the process number that the server reports */
static uint64_t its_namespace;

uint32_t __wrap_ibx_session_process(const struct ibx_session *s, uint64_t *process_namespace);
uint32_t __wrap_ibx_session_process(const struct ibx_session *s, uint64_t *process_namespace)
{
    (void)s;
    *process_namespace = its_namespace;
    return process;
}

static struct ibx_pipeline begun(void)
{
    return (struct ibx_pipeline){.server_ends = ibx_process_ends()};
}

/* Whether the program is told. */
static bool ends(const struct ibx_pipeline *p)
{
    const unsigned before = ibx_process_losses();
    ibx_process_lose_all(p, false);
    return ibx_process_losses() != before;
}

static void test_each_process_once(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) { /* a restarted container has the same numbers */
        process = 7;
        its_namespace = 4026531836;
        const struct ibx_pipeline one = begun(), other = begun();
        assert_true(ends(&one));
        assert_false(ends(&other) || ends(&one));
    }
    process = 8;
    const struct ibx_pipeline another = begun();
    assert_true(ends(&another));
}

static void test_server_without_process_number(void **state)
{
    (void)state;
    process = 0;
    its_namespace = 0;
    const struct ibx_pipeline one = begun();
    assert_true(ends(&one));
    assert_false(ends(&one));
}

/* What one thread was told is not reported to the others again. */
static void test_told_before(void **state)
{
    (void)state;
    process = 9;
    const struct ibx_pipeline one = begun(), other = begun();
    const unsigned before = ibx_process_losses();
    ibx_process_lose_all(&one, true);
    ibx_process_lose_all(&other, false);
    assert_int_equal(ibx_process_losses(), before);
}

static atomic_bool enough;

static void *look(void *argument)
{
    while (!atomic_load(&enough))
        ibx_process_ends();
    return argument;
}

/* A thread that is checking when another one forks does not exist in the child. */
static void test_children(void **state)
{
    struct ibx_pipeline any = {.process = 0};
    pthread_t thread;
    /* asked here, because it allocates memory */
    const unsigned seconds = CHILD_S * patience_times();
    unsigned good = 0, bad = 0;
    (void)state;
    ibx_process_add(&any);
    assert_int_equal(pthread_create(&thread, NULL, look, NULL), 0);
    while (good < CHILDREN && !bad) {
        int status = -1;
        const pid_t child = fork();
        if (!child) {
            alarm(seconds);
            ibx_process_ends();
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        good += status == 0;
        bad += status != 0;
    }
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    ibx_process_remove(&any);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* must run before another process ends */
        cmocka_unit_test(test_server_without_process_number),
        cmocka_unit_test(test_each_process_once),
        cmocka_unit_test(test_told_before),
        cmocka_unit_test(test_children),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
