/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/pinned.h"

#include "common/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Held while the pool is created and pinned, which may take the driver long; taking and giving
 * chunks needs the pool's own mutex only. This one is locked first. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t given;
    atomic_bool made; /* from then on the memory, its owner and its size stay */
    uint8_t *base;
    pid_t owner; /* a child forked since has neither the memory nor a context */
    size_t bytes;
    unsigned count;
    unsigned *free_stack; /* the chunk given last is taken first: it is still cached */
    unsigned free_count;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .given = PTHREAD_COND_INITIALIZER};

static int pin(const struct ibx_cuda *cuda, void *base, size_t bytes, struct ibx_error *err)
{
    int rc = cuda->mem_host_register(base, bytes, IBX_CUDA_HOST_REGISTER_PORTABLE);
    return rc ? ibx_error_set(err, rc, "CUDA does not pin %zu bytes (%s): lower rdma.gpu_memory",
                              bytes, ibx_cuda_error_name(cuda, rc))
              : 0;
}

static int make_pool(const struct ibx_cuda *cuda, size_t bytes, struct ibx_error *err)
{
    unsigned count = (unsigned)(bytes / IBX_PINNED_STRIDE);
    size_t length = (size_t)count * IBX_PINNED_STRIDE;
    if (!count)
        return ibx_error_set(err, -EINVAL,
                             "%zu bytes of pinned memory are less than one chunk of %u", bytes,
                             IBX_PINNED_STRIDE);
    unsigned *stack = malloc(count * sizeof(*stack));
    void *base =
        stack ? mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
              : MAP_FAILED;
    if (base == MAP_FAILED) {
        free(stack);
        return ibx_error_set(err, -ENOMEM,
                             "no memory for a pool of %zu bytes: lower rdma.gpu_memory", length);
    }
    madvise(base, length, MADV_HUGEPAGE);
    madvise(base, length, MADV_DONTFORK);
    int rc = pin(cuda, base, length, err);
    if (rc) {
        munmap(base, length);
        free(stack);
        return rc;
    }
    for (unsigned i = 0; i < count; i++)
        stack[i] = count - 1 - i;
    pthread_mutex_lock(&pool.mutex);
    pool.base = base;
    pool.owner = getpid();
    pool.bytes = length;
    pool.count = pool.free_count = count;
    pool.free_stack = stack;
    pthread_mutex_unlock(&pool.mutex);
    atomic_store(&pool.made, true);
    return 0;
}

/* By this process, and no reset has unpinned it. */
static bool is_pinned(const struct ibx_cuda *cuda)
{
    unsigned flags;
    return atomic_load(&pool.made) && pool.owner == getpid() &&
           !cuda->mem_host_get_flags(&flags, pool.base);
}

int ibx_pinned_open(const struct ibx_cuda *cuda, size_t bytes, struct ibx_error *err)
{
    if (is_pinned(cuda))
        return 0;
    int rc = 0;
    pthread_mutex_lock(&making);
    if (!atomic_load(&pool.made))
        rc = make_pool(cuda, bytes, err);
    else if (pool.owner != getpid())
        rc =
            ibx_error_set(err, -EPERM, "CUDA does not work in a child of the process that used it");
    else if (!is_pinned(cuda))
        rc = pin(cuda, pool.base, pool.bytes, err);
    pthread_mutex_unlock(&making);
    return rc;
}

unsigned ibx_pinned_count(void)
{
    pthread_mutex_lock(&pool.mutex);
    unsigned count = pool.count;
    pthread_mutex_unlock(&pool.mutex);
    return count;
}

void *ibx_pinned_payload(unsigned chunk)
{
    return pool.base + (size_t)chunk * IBX_PINNED_STRIDE;
}

/* Under the mutex. */
static int take(struct ibx_quota *quota)
{
    if (!pool.free_count || (quota && !ibx_quota_take(quota, 1)))
        return -EAGAIN;
    return (int)pool.free_stack[--pool.free_count];
}

int ibx_pinned_take(struct ibx_quota *quota, unsigned wait_ms)
{
    uint64_t deadline = ibx_deadline_in_ms(wait_ms);
    struct timespec until = {(time_t)(deadline / 1000000000u), (long)(deadline % 1000000000u)};
    int rc = 0;
    pthread_mutex_lock(&pool.mutex);
    int chunk = take(quota);
    while (chunk < 0 && wait_ms && !rc) {
        rc = pthread_cond_clockwait(&pool.given, &pool.mutex, CLOCK_MONOTONIC, &until);
        chunk = take(quota);
    }
    pthread_mutex_unlock(&pool.mutex);
    return chunk;
}

/* Wakes all who wait: the quota of some may not allow them this chunk. */
void ibx_pinned_give(struct ibx_quota *quota, unsigned chunk)
{
    pthread_mutex_lock(&pool.mutex);
    pool.free_stack[pool.free_count++] = chunk;
    if (quota)
        ibx_quota_give(quota, 1);
    pthread_cond_broadcast(&pool.given);
    pthread_mutex_unlock(&pool.mutex);
}

unsigned ibx_pinned_taken(void)
{
    pthread_mutex_lock(&pool.mutex);
    unsigned taken = pool.count - pool.free_count;
    pthread_mutex_unlock(&pool.mutex);
    return taken;
}
