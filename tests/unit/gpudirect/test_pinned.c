/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The pool of pinned chunks: how much of it is usable while it is being pinned, and what happens
 * if the driver refuses. */
#include "gpudirect/pinned.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHUNKS 20u
#define PIECE  8u /* chunks that one call pins */
#define BYTES  ((size_t)CHUNKS * IBX_PINNED_STRIDE)

/* CUresult */
#define ILLEGAL_ADDRESS      700
#define CONTEXT_IS_DESTROYED 709

/* The driver functions that the pool uses. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static const void *registered[8];
static unsigned calls, refuse, stay; /* which call to refuse; which call blocks for now */
static unsigned reset;               /* which call finds that its context is gone */
static bool broken;                  /* earlier work has failed, so all calls fail */
static bool stands;

static unsigned find(const void *address)
{
    unsigned i = 0;
    while (i < 8 && registered[i] != address)
        i++;
    return i;
}

static int mem_host_register(void *address, size_t n, unsigned flags)
{
    (void)n, (void)flags;
    pthread_mutex_lock(&lock);
    const unsigned call = ++calls;
    stands = call == stay;
    pthread_cond_broadcast(&changed);
    while (call == stay)
        pthread_cond_wait(&changed, &lock);
    const unsigned at = find(address) < 8 ? 8 : find(NULL);
    if (call == reset)
        memset(registered, 0, sizeof(registered));
    else if (call != refuse && at < 8 && !broken)
        registered[at] = address;
    pthread_mutex_unlock(&lock);
    return broken           ? ILLEGAL_ADDRESS
           : call == refuse ? 2
           : call == reset  ? CONTEXT_IS_DESTROYED
           : at < 8         ? 0
                            : IBX_CUDA_HOST_MEMORY_REGISTERED;
}

static int mem_host_unregister(void *address)
{
    const unsigned at = find(address);
    assert_true(at < 8);
    registered[at] = NULL;
    return 0;
}

static int mem_host_get_flags(unsigned *flags, void *address)
{
    *flags = 0;
    pthread_mutex_lock(&lock);
    const bool there = find(address) < 8;
    pthread_mutex_unlock(&lock);
    return broken ? ILLEGAL_ADDRESS : there ? 0 : IBX_CUDA_HOST_MEMORY_NOT_REGISTERED;
}

static int get_error_name(int code, const char **name)
{
    *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "?";
    return 0;
}

static const struct ibx_cuda cuda = {.mem_host_register = mem_host_register,
                                     .mem_host_unregister = mem_host_unregister,
                                     .mem_host_get_flags = mem_host_get_flags,
                                     .get_error_name = get_error_name};

static unsigned pieces(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < 8; i++)
        n += registered[i] != NULL;
    return n;
}

static void expect_chunks(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(ibx_pinned_take(NULL, 0), i);
    assert_int_equal(ibx_pinned_take(NULL, 0), -EAGAIN);
    assert_int_equal(ibx_pinned_taken(), count);
    for (unsigned i = count; i-- > 0;)
        ibx_pinned_give(NULL, i);
    assert_int_equal(ibx_pinned_taken(), 0);
}

static int set_up(void **state)
{
    (void)state;
    calls = refuse = stay = reset = 0;
    return 0;
}

/* If not even the first chunks can be pinned there is no pool. */
static void test_refused(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    refuse = 1;
    assert_int_equal(ibx_pinned_open(&cuda, BYTES, &err), 2);
    assert_non_null(strstr(err.message, "lower rdma.gpu_memory"));
    assert_int_equal(ibx_pinned_count(), 0);
    assert_int_equal(ibx_pinned_take(NULL, 0), -EAGAIN);
    assert_int_equal(pieces(), 0);
    assert_int_equal(ibx_pinned_open(&cuda, 1, &err), -EINVAL);
}

/* Runs in a process of its own, which has a pool. Its exit status says what was wrong. */
static int reset_in_child(int log)
{
    char said[4096] = "";
    unsigned chunks = 0;
    dup2(log, STDERR_FILENO);
    reset = 3;
    if (ibx_pinned_open(&cuda, BYTES, NULL) || pieces())
        return 1;
    if (pread(log, said, sizeof(said) - 1, 0) != 0)
        return 2;
    if (ibx_pinned_open(&cuda, BYTES, NULL) || pieces() != 3)
        return 3;
    while (ibx_pinned_take(NULL, 0) >= 0)
        chunks++;
    return chunks == CHUNKS ? 0 : 4;
}

/* A reset during pinning does not shrink the pool and logs nothing: the next caller pins again
 * in the new context. */
static void test_reset_meanwhile(void **state)
{
    (void)state;
    int status = 0;
    FILE *log = tmpfile();
    assert_non_null(log);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child)
        _exit(reset_in_child(fileno(log)));
    assert_int_equal(waitpid(child, &status, 0), child);
    fclose(log);
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(status, 0);
}

static void *open_all(void *argument)
{
    *(int *)argument = ibx_pinned_open(&cuda, BYTES, NULL);
    return NULL;
}

static void wait_until_it_stands(void)
{
    pthread_mutex_lock(&lock);
    while (!stands)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void let_go_on(void)
{
    pthread_mutex_lock(&lock);
    stay = 0;
    stands = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* A child must not wait for a thread of its parent that is in the driver. */
static void expect_child_goes_on(void)
{
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        alarm(30 * patience_times()); /* kills the child if it hangs */
        ibx_pinned_open(&cuda, BYTES, NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* While a thread pins more chunks, others can use the first ones; in the end they can use all
 * that CUDA does not refuse. */
static void test_first_chunks(void **state)
{
    (void)state;
    pthread_t thread;
    int rc = 1;
    stay = 2;
    refuse = 3;
    assert_int_equal(pthread_create(&thread, NULL, open_all, &rc), 0);
    wait_until_it_stands();
    assert_int_equal(ibx_pinned_open(&cuda, 1, NULL), 0);
    assert_int_equal(ibx_pinned_count(), CHUNKS);
    expect_chunks(PIECE);
    assert_null(ibx_pinned_borrow(1));
    let_go_on();
    pthread_join(thread, NULL);
    assert_int_equal(rc, 0);
    expect_chunks(2 * PIECE);
    assert_int_equal(pieces(), 2);
}

/* A reset unpins all chunks. What was refused is tried again, and may be refused again; what a
 * thread has pinned meanwhile stays. */
static void test_pinned_again(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    memset(registered, 0, sizeof(registered));
    refuse = 1;
    assert_int_equal(ibx_pinned_open(&cuda, 1, &err), 2);
    assert_non_null(strstr(err.message, "lower rdma.gpu_memory"));
    assert_int_equal(pieces(), 0);
    expect_chunks(0);
    calls = 0;
    refuse = 3; /* as at first */
    assert_int_equal(ibx_pinned_open(&cuda, 1, &err), 0);
    assert_int_equal(pieces(), 2);
    expect_chunks(2 * PIECE);
    memset(registered, 0, sizeof(registered));
    registered[0] = (uint8_t *)ibx_pinned_payload(0) + PIECE * IBX_PINNED_STRIDE;
    refuse = 0;
    assert_int_equal(ibx_pinned_open(&cuda, 1, &err), 0);
    assert_int_equal(pieces(), 3);
    expect_chunks(CHUNKS);
    const unsigned before = calls;
    assert_int_equal(ibx_pinned_open(&cuda, 1, NULL), 0);
    assert_int_equal(calls, before);
    /* If pinning fails for another reason, the chunks stay unused until it succeeds. */
    broken = true;
    assert_int_equal(ibx_pinned_open(&cuda, 1, &err), ILLEGAL_ADDRESS);
    expect_chunks(0);
    broken = false;
    assert_int_equal(ibx_pinned_open(&cuda, 1, NULL), 0);
    expect_chunks(CHUNKS);
}

/* Meanwhile nobody gets a chunk that is not pinned yet, not even one that was just returned.
 * Chunks that CUDA refuses now are lost to all. */
static void test_while_pinned_again(void **state)
{
    (void)state;
    pthread_t thread;
    int rc = 1;
    for (unsigned i = 0; i < CHUNKS; i++)
        assert_int_equal(ibx_pinned_take(NULL, 0), i);
    memset(registered, 0, sizeof(registered));
    stay = 2;
    assert_int_equal(pthread_create(&thread, NULL, open_all, &rc), 0);
    wait_until_it_stands();
    assert_int_equal(ibx_pinned_open(&cuda, 1, NULL), 0);
    for (unsigned i = CHUNKS; i-- > 0;)
        ibx_pinned_give(NULL, i);
    unsigned got = 0;
    while (ibx_pinned_take(NULL, 0) >= 0)
        got++;
    assert_int_equal(got, PIECE);
    for (unsigned i = PIECE; i-- > 0;)
        ibx_pinned_give(NULL, i);
    expect_child_goes_on();
    refuse = 3;
    let_go_on();
    pthread_join(thread, NULL);
    assert_int_equal(rc, 0);
    assert_int_equal(ibx_pinned_taken(), 0);
    for (unsigned i = 0; i < 2 * PIECE; i++)
        assert_int_equal(ibx_pinned_take(NULL, 0), i);
    assert_int_equal(ibx_pinned_take(NULL, 0), -EAGAIN);
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

/* the order matters: a process has one pool */
int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_refused), TEST(test_reset_meanwhile),
                                       TEST(test_first_chunks), TEST(test_pinned_again),
                                       TEST(test_while_pinned_again)};
    return cmocka_run_group_tests_name("pinned", tests, NULL, NULL);
}
