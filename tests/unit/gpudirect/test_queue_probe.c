/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A probe is there for each context, also after memory was refused, and while another thread
 * allocates. */
#include "gpudirect/queue_probe.h"
#include "gpudirect/staging.h"
#include "tests/fixtures/cuda_unit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define CONTEXTS      40u
#define NON_BLOCKING  1u
#define OUT_OF_MEMORY 2 /* CUresult */

static void *stream;
static void *pinned;
static const char contexts[CONTEXTS]; /* their addresses name contexts: memory is of device 0 */
static const char other;

/* cuMemAlloc of the driver, in which the first call waits while it is held. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool held;
static unsigned waiting;
static atomic_uint allocated;

static int allocate(uint64_t *address, size_t n)
{
    pthread_mutex_lock(&lock);
    const bool waits = held && !waiting;
    waiting += waits;
    pthread_cond_broadcast(&changed);
    while (waits && held)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&allocated, 1);
    return app->mem_alloc(address, n);
}

void *__real_ibx_cuda_symbol(const char *name);
void *__wrap_ibx_cuda_symbol(const char *name);
void *__wrap_ibx_cuda_symbol(const char *name)
{
    int (*const function)(uint64_t *, size_t) = allocate;
    void *found = NULL;
    if (strcmp(name, "cuMemAlloc_v2") != 0)
        return __real_ibx_cuda_symbol(name);
    memcpy(&found, &function, sizeof(found));
    return found;
}

static int probe(const void *context)
{
    const int rc = ibx_queue_probe(cuda, context, stream, pinned, IBX_QUEUE_OF_KERNELS);
    return rc ? rc : ibx_queue_probe(cuda, context, stream, pinned, IBX_QUEUE_OF_COPIES);
}

/* Memory that was refused once is asked for again. */
static void test_memory_that_was_refused(void **state)
{
    (void)state;
    app->inject("cuMemAlloc", 1, OUT_OF_MEMORY, false);
    assert_int_equal(probe(&other), OUT_OF_MEMORY);
    assert_int_equal(probe(&other), 0);
    ibx_queue_probe_forget(&other);
}

/* Each context has one piece of memory, until it is forgotten. */
static void test_many_contexts(void **state)
{
    (void)state;
    const unsigned before = atomic_load(&allocated);
    for (unsigned again = 0; again < 2; again++) {
        for (unsigned i = 0; i < CONTEXTS; i++)
            assert_int_equal(probe(&contexts[i]), 0);
        assert_int_equal(atomic_load(&allocated) - before, CONTEXTS);
    }
    ibx_queue_probe_forget(&contexts[3]);
    for (unsigned i = 0; i < CONTEXTS; i++)
        assert_int_equal(probe(&contexts[i]), 0);
    assert_int_equal(atomic_load(&allocated) - before, CONTEXTS + 1);
    ibx_queue_probe_forget(NULL);
    assert_int_equal(probe(&contexts[0]), 0);
    assert_int_equal(atomic_load(&allocated) - before, CONTEXTS + 2);
    ibx_queue_probe_forget(NULL);
}

static void *probe_beside(void *argument)
{
    cuda_application_use(0);
    *(int *)argument = probe(&other);
    return NULL;
}

static pthread_t begin_beside(int *result)
{
    pthread_t thread;
    waiting = 0;
    held = true;
    assert_int_equal(pthread_create(&thread, NULL, probe_beside, result), 0);
    pthread_mutex_lock(&lock);
    while (!waiting)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return thread;
}

static void go_on(pthread_t thread)
{
    pthread_mutex_lock(&lock);
    held = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
}

/* A thread that the driver keeps in cuMemAlloc keeps no other one waiting, or without a probe. */
static void test_beside_a_thread_that_allocates(void **state)
{
    int beside = -1;
    (void)state;
    const pthread_t thread = begin_beside(&beside);
    const int rc = probe(&other);
    go_on(thread);
    assert_int_equal(rc, 0);
    assert_int_equal(beside, 0);
    const unsigned before = atomic_load(&allocated);
    assert_int_equal(probe(&other), 0);
    assert_int_equal(atomic_load(&allocated), before);
    ibx_queue_probe_forget(&other);
}

/* Memory that may be of a context that is gone is not used. */
static void test_context_that_ends_meanwhile(void **state)
{
    int beside = -1;
    (void)state;
    const unsigned before = atomic_load(&allocated);
    const pthread_t thread = begin_beside(&beside);
    ibx_queue_probe_forget(&other);
    go_on(thread);
    assert_int_equal(beside, 0);
    assert_int_equal(atomic_load(&allocated) - before, 2);
    ibx_queue_probe_forget(&other);
}

/* The memory is gone with its context, whose address another one may have. */
static void test_context_that_is_forgotten_for_all(void **state)
{
    (void)state;
    assert_int_equal(probe(&other), 0);
    const unsigned before = atomic_load(&allocated);
    ibx_staging_forget_for_all(&other);
    assert_int_equal(probe(&other), 0);
    assert_int_equal(atomic_load(&allocated) - before, 1);
    ibx_queue_probe_forget(&other);
}

static int set_up(void **state)
{
    if (find_cuda(state) || app->stream_create(&stream, NON_BLOCKING))
        return -1;
    pinned = calloc(1, 2 * IBX_QUEUE_PROBE_PITCH);
    return pinned ? app->host_register(pinned, 2 * IBX_QUEUE_PROBE_PITCH, 0) : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_that_was_refused),
        cmocka_unit_test(test_many_contexts),
        cmocka_unit_test(test_beside_a_thread_that_allocates),
        cmocka_unit_test(test_context_that_ends_meanwhile),
        cmocka_unit_test(test_context_that_is_forgotten_for_all),
    };
    return cmocka_run_group_tests_name("queue-probe", tests, set_up, NULL);
}
