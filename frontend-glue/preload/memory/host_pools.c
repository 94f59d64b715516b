/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Pools of page-locked memory of this host (cudaMemPoolCreate with the host as location). The back
 * end knows nothing of them: their memory is what cudaMallocHost returns, and kernels get to it in
 * the same way. It is there at once, and so in the order of every stream.
 *
 * Memory that is freed in a stream is used again in that stream, and in others once that stream has
 * nothing left to do. What a pool holds beyond its threshold goes back when the program has waited
 * for the device (cudaDeviceSynchronize): natively it may go back at other waits, too.
 */
#include "frontend-glue/preload/memory/host_pools.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/streams/streams.h"

#include <stdlib.h>

#define GRAIN      512u /* bytes: CUDA's memory begins at multiples of 256 at least */
#define AT_DEVICE  1    /* cudaMemLocationType */
#define READ       1    /* cudaMemAccessFlags */
#define READ_WRITE 3
#define DEVICES    64
#define NO_STREAM  ((void *)UINTPTR_MAX) /* of memory whose stream is destroyed */

enum { /* cudaMemPoolAttr */
       FOLLOWS_EVENTS = 1,
       INSERTS_ORDER = 3,
       THRESHOLD,
       RESERVED,
       RESERVED_MOST,
       USED,
       USED_MOST
};

struct block {
    struct block *next;
    struct pool *pool;
    void *at, *stream; /* that has freed it */
    size_t n;
    bool is_free;
};

static struct pool {
    struct pool *next;
    bool destroyed; /* it goes with its last memory */
    size_t most;    /* 0: no limit */
    int reuses[INSERTS_ORDER + 1];
    uint64_t numbers[USED_MOST + 1];
    int access[DEVICES]; /* of devices */
} standard = {.reuses = {0, 1, 1, 1}};

/* All protected by the lock of ranges. */
static struct pool *pools = &standard;
static struct pool *current = &standard;
static struct block *blocks;
static atomic_bool any; /* there were blocks */

static struct pool *pool_of(const void *handle)
{
    struct pool *p = pools;
    while (p && (p != handle || p->destroyed))
        p = p->next;
    return p;
}

static struct block **place_of(const void *address)
{
    struct block **at = &blocks;
    while (*at && (*at)->at != address)
        at = &(*at)->next;
    return at;
}

bool ibx_host_pool_is(const void *handle)
{
    ibx_frontend_ranges_lock();
    const bool is = pool_of(handle);
    ibx_frontend_ranges_unlock();
    return is;
}

bool ibx_host_pool_has(const void *address)
{
    if (!atomic_load_explicit(&any, memory_order_relaxed))
        return false;
    ibx_frontend_ranges_lock();
    const bool has = *place_of(address);
    ibx_frontend_ranges_unlock();
    return has;
}

/* -------------------------------------------------------------------------- memory of a pool */

static void count(struct pool *p, unsigned attribute, size_t less, size_t more)
{
    uint64_t *now = &p->numbers[attribute], *most = now + 1;
    *now += more - less;
    *most = *now > *most ? *now : *most;
}

/* Takes free memory of the pool, or of any destroyed one, out of the list, as long as the pool
 * holds more than `keep`. NULL: there is no more. */
static struct block *take_free(const struct pool *pool, uint64_t keep)
{
    struct block **at = &blocks, *found;
    while (*at && !((*at)->is_free && ((*at)->pool->destroyed ||
                                       ((*at)->pool == pool && pool->numbers[RESERVED] > keep))))
        at = &(*at)->next;
    found = *at;
    if (found) {
        *at = found->next;
        count(found->pool, RESERVED, found->n, 0);
    }
    return found;
}

static void drop_destroyed(void)
{
    for (struct pool **at = &pools; *at;) {
        struct pool *p = *at;
        if (p->destroyed && !p->numbers[RESERVED]) {
            *at = p->next;
            free(p);
        } else {
            at = &p->next;
        }
    }
}

/* Waits for the devices if they may use the memory. */
static void release(const struct pool *pool, uint64_t keep)
{
    for (;;) {
        ibx_frontend_ranges_lock();
        struct block *b = take_free(pool, keep);
        if (!b)
            drop_destroyed();
        ibx_frontend_ranges_unlock();
        if (!b)
            return;
        cudaFreeHost(b->at);
        free(b);
    }
}

/* The program has waited for the device. The memory that goes may have such a wait made. */
static void device_rests(void)
{
    static _Thread_local bool busy;
    if (busy)
        return;
    busy = true;
    ibx_frontend_ranges_lock();
    struct pool *p = pools;
    while (p) {
        const uint64_t keep = p->numbers[THRESHOLD];
        ibx_frontend_ranges_unlock();
        release(p, keep);
        ibx_frontend_ranges_lock();
        struct pool *next = pools; /* the list may have changed */
        while (next && next != p)
            next = next->next;
        p = next ? next->next : NULL;
    }
    ibx_frontend_ranges_unlock();
    busy = false;
}

/* The smallest free memory that fits, and is not more than twice as much. */
static struct block *fitting(const struct pool *pool, size_t n, const void *stream, bool others)
{
    struct block *best = NULL;
    for (struct block *b = blocks; b; b = b->next) {
        if (b->is_free && b->pool == pool && b->n >= n && b->n / 2 <= n &&
            (b->stream == stream || (others && b->stream != NO_STREAM)) &&
            (!best || b->n < best->n))
            best = b;
    }
    return best;
}

static bool use_again(struct pool *pool, size_t n, const void *stream, void **address)
{
    ibx_frontend_ranges_lock();
    struct block *b = stream == NO_STREAM ? NULL : fitting(pool, n, stream, false);
    if (!b && !ibx_frontend_capturing() && (b = fitting(pool, n, NULL, true))) {
        void *other = b->stream;
        ibx_frontend_ranges_unlock();
        const bool rests = cudaStreamQuery(other) == CUDA_SUCCESS;
        ibx_frontend_ranges_lock();
        b = rests ? fitting(pool, n, other, false) : NULL;
    }
    if (b) {
        b->is_free = false;
        count(pool, USED, 0, b->n);
        *address = b->at;
    }
    ibx_frontend_ranges_unlock();
    return b;
}

/* Counts n bytes more of the pool, unless they are beyond its limit. */
static bool reserve(struct pool *pool, size_t n)
{
    ibx_frontend_ranges_lock();
    const bool fits = !pool->most || (n <= pool->most && pool->numbers[RESERVED] <= pool->most - n);
    if (fits)
        count(pool, RESERVED, 0, n);
    ibx_frontend_ranges_unlock();
    return fits;
}

/* Allocates, and notes it in `made`, which is in the list then. */
static int add(struct pool *pool, size_t n, struct block *made)
{
    *made = (struct block){.pool = pool, .n = n};
    if (!ibx_frontend_plugin())
        ibx_frontend_connect();
    const int rc = cudaMallocHost(&made->at, n);
    ibx_frontend_ranges_lock();
    count(pool, RESERVED, rc ? n : 0, 0);
    count(pool, USED, 0, rc ? 0 : n);
    if (!rc) {
        made->next = blocks;
        blocks = made;
    }
    ibx_frontend_ranges_unlock();
    if (!rc && !atomic_exchange(&any, true))
        ibx_frontend_after_device_wait(device_rests);
    return rc;
}

/* A stream of each thread has the same handle, so what it has freed is not used again. */
static void *known_stream(void *stream)
{
    return stream == CUDA_STREAM_PER_THREAD ? NO_STREAM : (uintptr_t)stream == 1 ? NULL : stream;
}

int ibx_host_pool_allocate(void **address, size_t n, void *handle, void *stream)
{
    struct pool *pool = handle;
    const size_t whole = (n + GRAIN - 1) / GRAIN * GRAIN;
    if (!address || !n || whole < n)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (ibx_frontend_captures(stream))
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    if (use_again(pool, whole, known_stream(stream), address))
        return CUDA_SUCCESS;
    bool fits = reserve(pool, whole);
    if (!fits) {
        release(pool, 0);
        fits = reserve(pool, whole);
    }
    struct block *made = fits ? malloc(sizeof(*made)) : NULL;
    const int rc = made ? add(pool, whole, made) : ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    if (rc)
        free(made);
    else
        *address = made->at;
    return rc;
}

int ibx_host_pool_free(void *address, void *stream)
{
    if (ibx_frontend_captures(stream))
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    ibx_frontend_ranges_lock();
    struct block *b = *place_of(address);
    const bool used = b && !b->is_free, last = used && b->pool->destroyed;
    if (used) {
        b->is_free = true;
        b->stream = known_stream(stream);
        count(b->pool, USED, b->n, 0);
    }
    ibx_frontend_ranges_unlock();
    if (last)
        release(NULL, 0);
    return used ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

void ibx_host_pools_stream_gone(const void *stream)
{
    if (!atomic_load_explicit(&any, memory_order_relaxed))
        return;
    ibx_frontend_ranges_lock();
    for (struct block *b = blocks; b; b = b->next)
        b->stream = b->is_free && b->stream == stream ? NO_STREAM : b->stream;
    ibx_frontend_ranges_unlock();
}

/* Takes the whole list, since the look at page-locked memory has the same lock. */
void ibx_host_pools_reset(void)
{
    struct range range;
    struct block *left = NULL, *gone = NULL, *b;
    ibx_frontend_ranges_lock();
    struct block *all = blocks;
    blocks = NULL;
    ibx_frontend_ranges_unlock();
    while ((b = all)) {
        struct block **list = ibx_frontend_host_range(b->at, &range) ? &left : &gone;
        all = b->next;
        b->next = *list;
        *list = b;
    }
    ibx_frontend_ranges_lock();
    blocks = left;
    for (b = gone; b; b = b->next) {
        count(b->pool, RESERVED, b->n, 0);
        count(b->pool, USED, b->is_free ? 0 : b->n, 0);
    }
    drop_destroyed();
    ibx_frontend_ranges_unlock();
    while ((b = gone)) {
        gone = b->next;
        free(b);
    }
}

/* ---------------------------------------------------------------------------------- the pools */

void *ibx_host_pool_standard(void)
{
    return &standard;
}

void *ibx_host_pool_current(void)
{
    ibx_frontend_ranges_lock();
    void *pool = current;
    ibx_frontend_ranges_unlock();
    return pool;
}

void ibx_host_pool_set_current(void *handle)
{
    ibx_frontend_ranges_lock();
    current = handle;
    ibx_frontend_ranges_unlock();
}

int ibx_host_pool_create(void **handle, size_t most)
{
    struct pool *made = malloc(sizeof(*made));
    if (!made)
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    *made = (struct pool){.most = most, .reuses = {0, 1, 1, 1}};
    ibx_frontend_ranges_lock();
    made->next = pools;
    pools = made;
    ibx_frontend_ranges_unlock();
    *handle = made;
    return CUDA_SUCCESS;
}

int ibx_host_pool_destroy(void *handle)
{
    if (handle == &standard)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_frontend_ranges_lock();
    struct pool *pool = pool_of(handle);
    if (pool)
        pool->destroyed = true;
    if (pool && current == pool)
        current = &standard;
    ibx_frontend_ranges_unlock();
    release(NULL, 0);
    return pool ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

int ibx_host_pool_trim(void *handle, size_t keep)
{
    release(handle, keep);
    return CUDA_SUCCESS;
}

int ibx_host_pool_set(void *handle, int attribute, uint64_t value)
{
    struct pool *pool = handle;
    const bool high = attribute == RESERVED_MOST || attribute == USED_MOST;
    if (attribute < FOLLOWS_EVENTS || attribute > USED_MOST || (high && value) ||
        attribute == RESERVED || attribute == USED)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_frontend_ranges_lock();
    if (attribute <= INSERTS_ORDER)
        pool->reuses[attribute] = (int)value != 0;
    else
        pool->numbers[attribute] = high ? pool->numbers[attribute - 1] : value;
    ibx_frontend_ranges_unlock();
    return CUDA_SUCCESS;
}

int ibx_host_pool_get(const void *handle, int attribute, uint64_t *value)
{
    const struct pool *pool = handle;
    if (attribute < FOLLOWS_EVENTS || attribute > USED_MOST)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_frontend_ranges_lock();
    *value =
        attribute <= INSERTS_ORDER ? (uint64_t)pool->reuses[attribute] : pool->numbers[attribute];
    ibx_frontend_ranges_unlock();
    return CUDA_SUCCESS;
}

/* Kernels of all devices get to the memory; what the program has allowed is only told. */
int ibx_host_pool_access(void *handle, const struct memory_location *where, const int *set,
                         int *get)
{
    struct pool *pool = handle;
    const bool device = where->type == AT_DEVICE;
    int devices = 0;
    if (device && (cudaGetDeviceCount(&devices) || where->id < 0 || where->id >= devices ||
                   where->id >= DEVICES))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (set && *set != READ_WRITE && !(device && (*set == READ || !*set)))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_frontend_ranges_lock();
    if (set && device)
        pool->access[where->id] = *set;
    if (get)
        *get = device ? pool->access[where->id] : READ_WRITE;
    ibx_frontend_ranges_unlock();
    return CUDA_SUCCESS;
}
