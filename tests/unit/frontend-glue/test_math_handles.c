/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A process forks while another thread notes a handle; and handles whose work is in a thread's own
 * stream. */
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include <pthread.h>
#include <search.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define FIRST 16u

void *__real_tsearch(const void *key, void **root, int (*compare)(const void *, const void *));
void *__wrap_tsearch(const void *key, void **root, int (*compare)(const void *, const void *));
void *__wrap_malloc(size_t n);
void *__real_malloc(size_t n);

static atomic_int moving, went_on;
static _Thread_local bool stops;
static bool no_memory;

/* In the middle of a change the tree is none. The thread stops here until another thread has forked
 * or waits for it. */
void *__wrap_tsearch(const void *key, void **root, int (*compare)(const void *, const void *))
{
    void *tree = *root;
    if (!stops)
        return __real_tsearch(key, root, compare);
    *root = NULL;
    atomic_store(&moving, 1);
    for (int ms = 0; ms < 200 && !atomic_load(&went_on); ms++)
        usleep(1000);
    *root = tree;
    return __real_tsearch(key, root, compare);
}

void *__wrap_malloc(size_t n)
{
    return no_memory ? NULL : __real_malloc(n);
}

static void *note_one_more(void *unused)
{
    (void)unused;
    stops = true;
    ibx_math_handle_set(IBX_MATH_BLAS, 100 + FIRST, IBX_MATH_ON_DEVICE);
    return NULL;
}

static void child_has_all_handles(void **state)
{
    pthread_t thread;
    int status = 0;
    (void)state;
    for (uint64_t i = 0; i < FIRST; i++)
        assert_true(ibx_math_handle_set(IBX_MATH_BLAS, 100 + i, IBX_MATH_ON_DEVICE));
    assert_int_equal(pthread_create(&thread, NULL, note_one_more, NULL), 0);
    while (!atomic_load(&moving))
        usleep(100);
    const pid_t child = fork();
    if (!child) {
        bool all = true;
        for (uint64_t i = 0; i < FIRST; i++)
            all = all && ibx_math_handle_is(IBX_MATH_BLAS, 100 + i) == IBX_MATH_ON_DEVICE;
        all = all && ibx_math_handle_set(IBX_MATH_FFT, 7, IBX_MATH_FOREIGN);
        _exit(all ? 0 : 1);
    }
    atomic_store(&went_on, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(ibx_math_handle_is(IBX_MATH_BLAS, 100 + FIRST), IBX_MATH_ON_DEVICE);
}

static void own_stream_is_noted(void **state)
{
    (void)state;
    atomic_store(&went_on, 1);
    for (uint64_t i = 0; i < 2 * FIRST; i++) {
        assert_false(ibx_math_handle_is_in_own(IBX_MATH_BLAS, i));
        ibx_math_handle_selects(IBX_MATH_BLAS, i, CUDA_STREAM_PER_THREAD);
        ibx_math_handle_selects(IBX_MATH_BLAS, i, CUDA_STREAM_PER_THREAD);
    }
    for (uint64_t i = 0; i < 2 * FIRST; i++) {
        assert_true(ibx_math_handle_is_in_own(IBX_MATH_BLAS, i));
        assert_false(ibx_math_handle_is_in_own(IBX_MATH_FFT, i));
    }
    ibx_math_handle_selects(IBX_MATH_BLAS, 3, NULL);
    assert_false(ibx_math_handle_end(IBX_MATH_BLAS, 4)); /* it is not known otherwise */
    for (uint64_t i = 0; i < 2 * FIRST; i++)
        assert_true(ibx_math_handle_is_in_own(IBX_MATH_BLAS, i) == (i != 3 && i != 4));
}

/* What is known of a handle does not end with its stream, nor the other way round. */
static void stream_and_kind_are_apart(void **state)
{
    (void)state;
    atomic_store(&went_on, 1);
    ibx_math_handle_selects(IBX_MATH_LT, 1, CUDA_STREAM_PER_THREAD);
    assert_true(ibx_math_handle_set(IBX_MATH_LT, 1, IBX_MATH_ON_DEVICE));
    assert_true(ibx_math_handle_set(IBX_MATH_LT, 1, IBX_MATH_USUAL));
    assert_true(ibx_math_handle_is_in_own(IBX_MATH_LT, 1));
    ibx_math_handle_selects(IBX_MATH_LT, 1, NULL);
    assert_false(ibx_math_handle_is_in_own(IBX_MATH_LT, 1));
    assert_true(ibx_math_handle_end(IBX_MATH_LT, 1));
    assert_false(ibx_math_handle_end(IBX_MATH_LT, 1));
}

/* Counts stay right: the questions are answered without a look at the handles if none is unusual,
 * or none is in a thread's own stream. */
static void counts_stay(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        assert_true(ibx_math_handle_set(IBX_MATH_RNG, 5, IBX_MATH_ON_HOST));
        assert_true(ibx_math_handle_set(IBX_MATH_RNG, 5, IBX_MATH_ON_DEVICE));
        assert_int_equal(ibx_math_handle_is(IBX_MATH_RNG, 5), IBX_MATH_ON_DEVICE);
        assert_int_equal(ibx_math_handle_is(IBX_MATH_RNG, 6), IBX_MATH_USUAL);
        ibx_math_handle_selects(IBX_MATH_RNG, 5, CUDA_STREAM_PER_THREAD);
        ibx_math_handle_selects(IBX_MATH_RNG, 6, CUDA_STREAM_PER_THREAD);
        assert_true(ibx_math_handle_end(IBX_MATH_RNG, 5));
        assert_true(ibx_math_handle_is_in_own(IBX_MATH_RNG, 6));
        ibx_math_handle_selects(IBX_MATH_RNG, 6, NULL);
        assert_false(ibx_math_handle_end(IBX_MATH_RNG, 6));
        assert_int_equal(ibx_math_handle_is(IBX_MATH_RNG, 5), IBX_MATH_USUAL);
        assert_false(ibx_math_handle_is_in_own(IBX_MATH_RNG, 5));
    }
    no_memory = true;
    assert_false(ibx_math_handle_set(IBX_MATH_RNG, 7, IBX_MATH_ON_HOST));
    ibx_math_handle_selects(IBX_MATH_RNG, 7, CUDA_STREAM_PER_THREAD);
    no_memory = false;
    assert_int_equal(ibx_math_handle_is(IBX_MATH_RNG, 7), IBX_MATH_USUAL);
    assert_false(ibx_math_handle_end(IBX_MATH_RNG, 7));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(child_has_all_handles),
        cmocka_unit_test(own_stream_is_noted),
        cmocka_unit_test(stream_and_kind_are_apart),
        cmocka_unit_test(counts_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
