/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/pinned.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PIECE     ((size_t)8 * IBX_PINNED_STRIDE) /* bytes pinned by one call of the driver */
#define PAUSE_NS  100000
#define LEFT_OVER 16u /* chunks that are not lent (ibx_pinned_borrow()): enough for two copies */

/* Held while the pool is created and its first piece is pinned, and while all of it is pinned
 * again; the driver may take long for that. Taking and giving chunks needs pool.mutex only. Order:
 * `making` is locked before pool.mutex. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t given;
    atomic_bool made; /* set: some memory is pinned; base, owner and bytes never change again */
    uint8_t *base;
    pid_t owner; /* a child forked since has neither the memory nor a context */
    size_t bytes;
    unsigned count;
    unsigned pinned;      /* the first so many chunks were pinned at some time */
    atomic_uint usable;   /* the first so many are pinned now: fewer after a reset */
    unsigned *free_stack; /* the chunk given last is taken first: it is still cached */
    unsigned free_count;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .given = PTHREAD_COND_INITIALIZER};

/* After fork(2), in the child, which has no threads in this file and no pool: a pool whose creation
 * another thread had begun is created anew. */
static void pool_in_child(void)
{
    pthread_mutex_init(&making, NULL);
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.given, NULL);
    if (atomic_load(&pool.made))
        return;
    pool.base = NULL;
    pool.free_stack = NULL;
    pool.bytes = pool.count = pool.pinned = pool.free_count = 0;
    atomic_store(&pool.usable, 0);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, pool_in_child);
}

static size_t piece_at(size_t at)
{
    return pool.bytes - at < PIECE ? pool.bytes - at : PIECE;
}

/* Makes the chunks of a newly pinned piece available, provided that all pieces before it are. They
 * are put at the bottom of the free stack, so that chunks that are still cached are taken first. */
static void lend_piece(size_t at)
{
    const unsigned first = (unsigned)(at / IBX_PINNED_STRIDE),
                   n = (unsigned)(piece_at(at) / IBX_PINNED_STRIDE);
    pthread_mutex_lock(&pool.mutex);
    if (pool.pinned == first) {
        memmove(pool.free_stack + n, pool.free_stack, pool.free_count * sizeof(*pool.free_stack));
        for (unsigned i = 0; i < n; i++)
            pool.free_stack[i] = first + n - 1 - i;
        pool.free_count += n;
        pool.pinned += n;
    }
    if (atomic_load(&pool.usable) == first)
        atomic_store(&pool.usable, first + n);
    pthread_cond_broadcast(&pool.given);
    pthread_mutex_unlock(&pool.mutex);
}

static int pin_piece(const struct ibx_cuda *cuda, size_t at)
{
    /* The kernel clears the pages here, not inside the driver while others wait for its lock. */
    madvise(pool.base + at, piece_at(at), MADV_POPULATE_WRITE);
    int rc = cuda->mem_host_register(pool.base + at, piece_at(at), IBX_CUDA_HOST_REGISTER_PORTABLE);
    if (rc == IBX_CUDA_HOST_MEMORY_REGISTERED) /* another thread, in make_rest(), was faster */
        rc = 0;
    if (!rc)
        lend_piece(at);
    return rc;
}

/* Pins from `*at` to the end of the pool, or until CUDA refuses, and moves `*at` along. In pieces,
 * since while the driver pins memory, it blocks all other calls of the process: a client's first
 * cudaMalloc would take 11 ms on an H200. Pieces have whole chunks, and no copy crosses a chunk.
 */
static int pin(const struct ibx_cuda *cuda, size_t *at)
{
    int rc = 0;
    while (*at < pool.bytes && !(rc = pin_piece(cuda, *at))) {
        *at += PIECE;
        if (*at < pool.bytes) /* lets threads that wait for the driver's lock wake up and take it */
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return rc;
}

static int refused(const struct ibx_cuda *cuda, int rc, struct ibx_error *err)
{
    return ibx_error_set(err, rc, "CUDA does not pin %zu bytes (%s): lower rdma.gpu_memory",
                         pool.bytes, ibx_cuda_error_name(cuda, rc));
}

/* Whether this process has pinned the pool, and no reset has unpinned it. If pinning it again has
 * failed, `usable` is 0, although CUDA may know the memory: the failure may have been an error of
 * earlier work. */
static bool is_pinned(const struct ibx_cuda *cuda)
{
    unsigned flags;
    return atomic_load(&pool.made) && pool.owner == getpid() && atomic_load(&pool.usable) &&
           !cuda->mem_host_get_flags(&flags, pool.base);
}

/* Warns that CUDA has refused to pin more than `done` bytes. Not if a reset has unpinned those,
 * too: then CUDA has refused nothing, and all of the pool will be pinned again. */
static void warn_of_less(const struct ibx_cuda *cuda, size_t done, int rc)
{
    if (rc == IBX_CUDA_CONTEXT_IS_DESTROYED || !is_pinned(cuda))
        return;
    ibx_log(IBX_LOG_WARN,
            "CUDA pins only %zu of %zu bytes for copies (%s): lower "
            "rdma.gpu_memory",
            done, pool.bytes, ibx_cuda_error_name(cuda, rc));
}

/* Pins all of the pool again, after a reset. Other threads can take chunks as soon as they are
 * pinned. If CUDA refuses the rest, the pool works with what is pinned. */
static int pin_again(const struct ibx_cuda *cuda, struct ibx_error *err)
{
    size_t done = 0;
    pthread_mutex_lock(&pool.mutex);
    const size_t before = (size_t)pool.pinned * IBX_PINNED_STRIDE;
    atomic_store(&pool.usable, 0);
    pthread_mutex_unlock(&pool.mutex);
    const int rc = pin(cuda, &done);
    if (!done)
        return refused(cuda, rc, err);
    if (done < before)
        warn_of_less(cuda, done, rc);
    return 0;
}

static int map_pool(size_t bytes, struct ibx_error *err)
{
    unsigned count = (unsigned)(bytes / IBX_PINNED_STRIDE);
    size_t length = (size_t)count * IBX_PINNED_STRIDE;
    if (!count)
        return ibx_error_set(err, -EINVAL,
                             "%zu bytes of pinned memory are less than one chunk of %u", bytes,
                             IBX_PINNED_STRIDE);
    unsigned *stack = malloc(count * sizeof(*stack));
    uint8_t *base =
        stack ? mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
              : MAP_FAILED;
    if (base == MAP_FAILED) {
        free(stack);
        return ibx_error_set(err, -ENOMEM,
                             "no memory for a pool of %zu bytes: lower rdma.gpu_memory", length);
    }
    madvise(base, length, MADV_HUGEPAGE);
    madvise(base, length, MADV_DONTFORK);
    pthread_mutex_lock(&pool.mutex);
    pool.base = base;
    pool.owner = getpid();
    pool.bytes = length;
    pool.count = count;
    pool.pinned = pool.free_count = 0;
    atomic_store(&pool.usable, 0);
    pool.free_stack = stack;
    pthread_mutex_unlock(&pool.mutex);
    return 0;
}

static void unmap_pool(void)
{
    pthread_mutex_lock(&pool.mutex);
    munmap(pool.base, pool.bytes);
    free(pool.free_stack);
    pool.base = NULL;
    pool.free_stack = NULL;
    pool.bytes = pool.count = 0;
    pthread_mutex_unlock(&pool.mutex);
}

/* Creates the pool and pins its first piece. */
static int make_pool(const struct ibx_cuda *cuda, size_t bytes, struct ibx_error *err)
{
    int rc = map_pool(bytes, err);
    if (rc)
        return rc;
    rc = pin_piece(cuda, 0);
    if (rc) {
        rc = refused(cuda, rc, err);
        unmap_pool();
        return rc;
    }
    atomic_store(&pool.made, true);
    return 0;
}

/* Pins the rest of the pool, while other threads already use the first piece. */
static void make_rest(const struct ibx_cuda *cuda)
{
    size_t at = PIECE;
    const int rc = pin(cuda, &at);
    if (rc)
        warn_of_less(cuda, at, rc);
}

int ibx_pinned_open(const struct ibx_cuda *cuda, size_t bytes, struct ibx_error *err)
{
    if (is_pinned(cuda))
        return 0;
    int rc = 0;
    pthread_mutex_lock(&making);
    const bool first = !atomic_load(&pool.made);
    if (first)
        rc = make_pool(cuda, bytes, err);
    else if (pool.owner != getpid())
        rc =
            ibx_error_set(err, -EPERM, "CUDA does not work in a child of the process that used it");
    else if (!is_pinned(cuda))
        rc = pin_again(cuda, err);
    pthread_mutex_unlock(&making);
    if (first && !rc)
        make_rest(cuda);
    return rc;
}

/* ------------------------------------------------------------------- in the background */

/*
 * Not a struct ibx_state_machine, since several threads move it atomically. A forked child starts
 * in NONE.
 *
 *   NONE -> RUNS -> NONE              no device has a context yet, or it was reset meanwhile
 *   RUNS -> MADE
 *   RUNS -> REFUSED                   there is no CUDA, or it does not pin the memory: the first
 *                                     copy finds out, and says why
 */
enum preparation { PREPARE_NONE, PREPARE_RUNS, PREPARE_MADE, PREPARE_REFUSED };
#define TRIES 16u /* after so many NONE it is REFUSED: there may be no primary context at all */
static atomic_uint preparation, tries;
static pthread_t preparer;
static size_t preparer_bytes;
static pid_t preparer_process; /* 0: there is none to be joined */
static pthread_mutex_t joining = PTHREAD_MUTEX_INITIALIZER;

/* Enters the first device's primary context that is active, and returns the device; -1: there is
 * none. */
static int enter_any(const struct ibx_cuda *cuda)
{
    void *context = NULL;
    int device = 0, entered;
    while (!(entered = ibx_cuda_primary_enter(cuda, device, &context)))
        device++;
    return entered > 0 ? device : -1;
}

static enum preparation prepare(void)
{
    const struct ibx_cuda *cuda = ibx_cuda_load(NULL);
    const int device = cuda ? enter_any(cuda) : -1;
    if (device < 0)
        return cuda && atomic_fetch_add(&tries, 1) < TRIES ? PREPARE_NONE : PREPARE_REFUSED;
    int mode = ibx_cuda_capture_relax(cuda);
    int rc = ibx_pinned_open(cuda, preparer_bytes, NULL);
    const bool lost = !rc && !is_pinned(cuda);
    ibx_cuda_capture_restore(cuda, mode);
    ibx_cuda_primary_leave(cuda, device);
    if (lost && atomic_fetch_add(&tries, 1) < TRIES)
        return PREPARE_NONE;
    return rc ? PREPARE_REFUSED : PREPARE_MADE;
}

static void *run_preparer(void *argument)
{
    (void)argument;
    atomic_store(&preparation, prepare());
    return NULL;
}

/* The caller holds `joining`. */
static void join_preparer(void)
{
    if (preparer_process == getpid())
        pthread_join(preparer, NULL);
    preparer_process = 0;
}

void ibx_pinned_settle(void)
{
    pthread_mutex_lock(&joining);
    join_preparer();
    pthread_mutex_unlock(&joining);
}

static void before_fork(void)
{
    pthread_mutex_lock(&joining);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&joining);
}

static void in_child(void)
{
    atomic_store(&preparation, PREPARE_NONE);
    preparer_process = 0;
    pthread_mutex_unlock(&joining);
}

static void watch(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
    atexit(ibx_pinned_settle); /* no thread may be in the driver while the process ends */
}

bool ibx_pinned_wanted(void)
{
    return atomic_load_explicit(&preparation, memory_order_relaxed) == PREPARE_NONE;
}

void ibx_pinned_prepare(size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    unsigned none = PREPARE_NONE;
    pthread_once(&once, watch);
    if (!atomic_compare_exchange_strong(&preparation, &none, PREPARE_RUNS))
        return;
    pthread_mutex_lock(&joining);
    join_preparer(); /* the one before has ended */
    preparer_bytes = bytes;
    if (ibx_thread_begin(&preparer, run_preparer, NULL))
        atomic_store(&preparation, PREPARE_REFUSED);
    else
        preparer_process = getpid();
    pthread_mutex_unlock(&joining);
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

/* The caller holds pool.mutex. */
static int take(struct ibx_quota *quota)
{
    unsigned at = pool.free_count;
    while (at && pool.free_stack[at - 1] >= atomic_load(&pool.usable))
        at--;
    if (!at || (quota && !ibx_quota_take(quota, 1)))
        return -EAGAIN;
    const unsigned chunk = pool.free_stack[at - 1];
    memmove(pool.free_stack + at - 1, pool.free_stack + at,
            (pool.free_count - at) * sizeof(*pool.free_stack));
    pool.free_count--;
    return (int)chunk;
}

int ibx_pinned_take(struct ibx_quota *quota, unsigned wait_ms)
{
    uint64_t deadline = ibx_deadline_in_ms(wait_ms);
    struct timespec until = ibx_timespec_of(deadline);
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

/* Wakes all waiting threads, since the quota of some may not allow them this chunk. */
void ibx_pinned_give(struct ibx_quota *quota, unsigned chunk)
{
    pthread_mutex_lock(&pool.mutex);
    pool.free_stack[pool.free_count++] = chunk;
    if (quota)
        ibx_quota_give(quota, 1);
    pthread_cond_broadcast(&pool.given);
    pthread_mutex_unlock(&pool.mutex);
}

void *ibx_pinned_borrow(size_t bytes)
{
    int chunk = -1;
    if (!atomic_load_explicit(&pool.made, memory_order_acquire) || pool.owner != getpid() ||
        bytes > IBX_PINNED_STRIDE)
        return NULL;
    pthread_mutex_lock(&pool.mutex);
    if (pool.free_count > pool.pinned / 2 && pool.free_count > LEFT_OVER)
        chunk = take(NULL);
    pthread_mutex_unlock(&pool.mutex);
    return chunk < 0 ? NULL : ibx_pinned_payload((unsigned)chunk);
}

void ibx_pinned_return(void *payload)
{
    if (pool.owner != getpid()) /* a forked child closes its copy; the parent uses the chunk */
        return;
    ibx_pinned_give(NULL, (unsigned)((size_t)((uint8_t *)payload - pool.base) / IBX_PINNED_STRIDE));
}

bool ibx_pinned_holds(const void *address, size_t length)
{
    if (!atomic_load_explicit(&pool.made, memory_order_acquire)) /* `base` is still being set */
        return false;
    const uintptr_t at = (uintptr_t)address - (uintptr_t)pool.base;
    return at < pool.bytes && length <= pool.bytes - at;
}

unsigned ibx_pinned_taken(void)
{
    pthread_mutex_lock(&pool.mutex);
    unsigned taken = pool.pinned - pool.free_count;
    pthread_mutex_unlock(&pool.mutex);
    return taken;
}
