/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A process forks while another thread looks for libfabric's providers. The child may look for
 * them too, and must not wait for a thread that it does not have. The child cannot use
 * libfabric's verbs, and says so if there are any. */
#include "transport/ofi/ofi.h"

#include "common/clock.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define PATIENCE_S 60

/* a thread has reached the place where the other one shall fork; the fork is done */
static atomic_bool there, forked;

/* Waits until the process has forked; the fork itself may have to wait. */
static void let_fork(void)
{
    const uint64_t deadline = ibx_deadline_in_ms(300);
    there = true;
    while (!forked && ibx_now_ns() < deadline)
        poll(NULL, 0, 1);
}

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags)
{
    let_fork();
    return __real_dlopen(name, flags);
}

/* Whether a thread is inside libfabric. It holds locks then, which would stay locked in a child. */
static atomic_bool within;
static int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *,
                      struct fi_info **);

static int watched_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                           const struct fi_info *hints, struct fi_info **info)
{
    within = true;
    const int rc = getinfo(version, node, service, flags, hints, info);
    within = false;
    return rc;
}

/* The first libfabric function that a thread calls after loading it. The thread stays there
 * until the fork: sanitizers' allocators may stay locked in a child that is forked beside a
 * thread that allocates. */
static struct fi_info *(*dupinfo)(const struct fi_info *);

static struct fi_info *resting_dupinfo(const struct fi_info *info)
{
    const uint64_t deadline = ibx_deadline_in_ms(PATIENCE_S * 1000);
    while (there && !forked && ibx_now_ns() < deadline)
        poll(NULL, 0, 1);
    return dupinfo(info);
}

/* Sanitizers call this function before they are initialized. */
#define UNSANITIZED __attribute__((no_sanitize("address", "thread", "undefined")))
UNSANITIZED static bool equal(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

void *__real_dlsym(void *handle, const char *name);
void *__wrap_dlsym(void *handle, const char *name);
UNSANITIZED void *__wrap_dlsym(void *handle, const char *name)
{
    void *found = __real_dlsym(handle, name);
    if (found && equal(name, "fi_getinfo")) {
        *(void **)&getinfo = found;
        return (void *)(uintptr_t)watched_getinfo;
    }
    if (found && equal(name, "fi_dupinfo")) {
        *(void **)&dupinfo = found;
        return (void *)(uintptr_t)resting_dupinfo;
    }
    return found;
}

/* Handlers that were registered first run last before a fork, however long the others take. */
static atomic_bool looks_on, caught;

static void late_handler(void)
{
    const uint64_t deadline = ibx_deadline_in_ms(300);
    while (looks_on && !caught && ibx_now_ns() < deadline) {
        caught = within;
        poll(NULL, 0, 1);
    }
}

static int probe(const char *name, struct ibx_error *err)
{
    char text[256];
    struct ibx_options options = {.provider = "ofi"};
    snprintf(options.ofi_provider, sizeof(options.ofi_provider), "%s", name);
    return ibx_ofi_probe(&options, text, sizeof(text), err);
}

static int look(void)
{
    struct ibx_error err = {0};
    const int rc = probe("tcp", &err);
    if (rc)
        print_error("%s\n", err.message);
    return rc;
}

static void *look_thread(void *argument)
{
    *(int *)argument = look();
    return NULL;
}

static void a_child_of_a_fork_meanwhile_can_look_too(void **state)
{
    pthread_t thread;
    int found = -1, status;
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, look_thread, &found), 0);
    while (!there)
        poll(NULL, 0, 1);
    const pid_t child = fork();
    if (!child) {
        forked = true;
        alarm(PATIENCE_S);
        _exit(look() ? 1 : 0);
    }
    forked = true;
    pthread_join(thread, NULL);
    assert_int_equal(found, 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void *look_on_thread(void *argument)
{
    int *bad = argument;
    while (looks_on)
        *bad |= look();
    return NULL;
}

/* No thread enters libfabric between the end of the handler's wait and the fork. */
static void no_thread_enters_before_a_slow_fork(void **state)
{
    pthread_t thread;
    int bad = 0, status;
    (void)state;
    looks_on = true;
    assert_int_equal(pthread_create(&thread, NULL, look_on_thread, &bad), 0);
    while (!within)
        poll(NULL, 0, 1);
    const pid_t child = fork();
    if (!child) {
        alarm(PATIENCE_S);
        _exit(look() ? 1 : 0);
    }
    looks_on = false;
    pthread_join(thread, NULL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(caught);
    assert_true(!bad && !status);
}

static void a_child_lacks_verbs(void **state)
{
    struct ibx_error err = {0};
    int status;
    (void)state;
    const bool verbs = !probe("verbs", &err);
    const pid_t child = fork();
    if (!child) {
        const char *words = verbs ? "forked from" : "has no provider \"verbs\"";
        const bool refused = probe("verbs", &err);
        print_message("%s\n", err.message);
        _exit(refused && strstr(err.message, words) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_child_of_a_fork_meanwhile_can_look_too),
                                       cmocka_unit_test(no_thread_enters_before_a_slow_fork),
                                       cmocka_unit_test(a_child_lacks_verbs)};
    pthread_atfork(late_handler, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
