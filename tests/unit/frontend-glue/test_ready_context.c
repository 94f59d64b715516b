/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The context that a spare process makes in advance. Each test is a process of its own, since a
 * process has at most one. */
#include "common/clock.h"
#include "frontend-glue/device_copies/copies.h"
#include "gpudirect/pinned.h"
#include "tests/doubles/cuda/driver.h"
#include "tests/fixtures/patience.h"

#include <dirent.h>
#include <dlfcn.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define COMPUTE_MODE 20
#define ECC          214
#define IN_TIME_MS   patience_ms(20000)

static bool in_time(bool (*holds)(void))
{
    for (const uint64_t deadline = ibx_deadline_in_ms(IN_TIME_MS); !holds();) {
        if (!ibx_ms_until(deadline))
            return false;
        poll(NULL, 0, 1);
    }
    return true;
}

static bool has_context(void)
{
    struct ibx_double_stats stats;
    void (*get)(struct ibx_double_stats *) = NULL;
    *(void **)&get = ibx_cuda_symbol("ibx_double_get_stats");
    get(&stats);
    return stats.primary_holds == 1;
}

static bool has_none(void)
{
    return !has_context();
}

/* Whether the thread that makes and watches the context has ended. */
static bool thread_is_gone(void)
{
    unsigned n = 0;
    char path[300], name[32];
    DIR *all = opendir("/proc/self/task");
    for (const struct dirent *e = readdir(all); e; e = readdir(all)) {
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
        FILE *file = fopen(path, "r");
        n += file && fgets(name, sizeof(name), file) && !strcmp(name, "ibx-context\n");
        if (file)
            fclose(file);
    }
    closedir(all);
    return n == 0;
}

static void inject(const char *function, int code)
{
    void (*of_double)(const char *, unsigned, int, bool) = NULL;
    *(void **)&of_double = ibx_cuda_symbol("ibx_double_inject");
    of_double(function, 1, code, true);
}

static void make(void)
{
    static struct gpu_session x = {.options = {.mode = IBX_GPU_AUTO, .memory = 1 << 20}};
    ibx_ready_context_make(&x);
}

/* Returns the process's exit status. */
static int process_of(int (*body)(void))
{
    int status = 0;
    const pid_t child = fork();
    if (!child) {
        alarm(60 * patience_times());
        const int status_of_it = body();
        ibx_pinned_settle(); /* waits for the pool's thread */
        _exit(status_of_it);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static bool has_pool(void)
{
    return ibx_pinned_count() > 0;
}

static int ends_when_it_breaks(void)
{
    make();
    if (!in_time(has_context) || !in_time(has_pool))
        return 2;
    ibx_pinned_settle(); /* else ThreadSanitizer reports its thread when the process ends */
    inject("cuStreamQuery", ECC);
    return in_time(thread_is_gone) ? 3 : 4; /* it has not ended */
}

static void test_context_breaks_before_a_client(void **state)
{
    (void)state;
    assert_int_equal(process_of(ends_when_it_breaks), EXIT_FAILURE);
}

/* The thread that pins memory for copies also retains the context until it ends. */
static bool only_this_process_holds_it(void)
{
    ibx_pinned_settle();
    return has_context();
}

/* From then on the context is the client's, and the client sees what breaks it. */
static int is_taken(void)
{
    make();
    if (!in_time(has_context))
        return 2;
    ibx_ready_context_taken();
    if (!in_time(thread_is_gone))
        return 3;
    inject("cuStreamQuery", ECC);
    ibx_ready_context_taken();
    return only_this_process_holds_it() ? 0 : 4;
}

static int is_taken_at_once(void)
{
    make();
    ibx_ready_context_taken();
    return in_time(has_context) && in_time(thread_is_gone) && only_this_process_holds_it() ? 0 : 2;
}

static void test_client_takes_the_context(void **state)
{
    (void)state;
    assert_int_equal(process_of(is_taken), 0);
    assert_int_equal(process_of(is_taken_at_once), 0);
}

static int uses_another(void)
{
    make();
    if (!in_time(has_context))
        return 2;
    ibx_ready_context_taken();
    ibx_ready_context_selected(-1);
    ibx_ready_context_selected(0);
    if (!in_time(thread_is_gone) || !only_this_process_holds_it())
        return 3;
    ibx_ready_context_selected(1);
    ibx_ready_context_selected(1);
    return in_time(has_none) && in_time(thread_is_gone) ? 0 : 4;
}

/* A client uses another device before there is a context to release. */
static int has_used_another(void)
{
    ibx_ready_context_selected(1);
    make();
    ibx_ready_context_taken();
    return in_time(thread_is_gone) && has_none() ? 0 : 2;
}

static void test_client_uses_another_gpu(void **state)
{
    (void)state;
    assert_int_equal(process_of(uses_another), 0);
    assert_int_equal(process_of(has_used_another), 0);
}

static int is_exclusive(void)
{
    void (*attribute)(int, int) = NULL;
    *(void **)&attribute = ibx_cuda_symbol("ibx_double_attribute");
    attribute(COMPUTE_MODE, 3); /* only one process at a time */
    make();
    return in_time(thread_is_gone) && has_none() ? 0 : 2;
}

static int is_refused(void)
{
    inject("cuDevicePrimaryCtxRetain", 2);
    make();
    return in_time(thread_is_gone) && has_none() ? 0 : 2;
}

static void test_no_context(void **state)
{
    (void)state;
    assert_int_equal(process_of(is_exclusive), 0);
    assert_int_equal(process_of(is_refused), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context_breaks_before_a_client),
        cmocka_unit_test(test_client_takes_the_context),
        cmocka_unit_test(test_client_uses_another_gpu),
        cmocka_unit_test(test_no_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
