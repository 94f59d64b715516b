/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Pools of page-locked memory of this host (cudaMemPoolCreate with the host as location). The back
 * end knows nothing of them: their memory is what cudaMallocHost returns, and kernels get to it in
 * the same way. It is there at once, and so in the order of every stream.
 *
 * An event is recorded where memory is freed. The stream that gets this memory next waits for that
 * event, as CUDA has it by cudaMemPoolReuseAllowInternalDependencies. So neither handles of streams
 * nor queries decide whether memory may be used again. What a pool holds beyond its
 * threshold goes back when the program has waited for the only device (cudaDeviceSynchronize), if
 * its event is over; natively it may go back at other waits, too.
 */
#include "frontend-glue/preload/memory/host_pools.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/streams/streams.h"

#include <stdlib.h>

#define GRAIN      512u        /* bytes: CUDA's memory begins at multiples of 256 at least */
#define UNIT       (32u << 20) /* bytes: CUDA reserves such pieces, and rounds limits up to them */
#define READ       1           /* cudaMemAccessFlags */
#define READ_WRITE 3
#define NO_TIMING  2u /* cudaEventDisableTiming */
#define DEVICES    64
#define BUCKETS    256u
#define NO_STREAM  ((void *)UINTPTR_MAX)

/* A pool is small up to so many bytes, and while less than so many unused pieces fit. */
#define SMALL       UNIT
#define SMALL_COUNT 16u

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
    void *at, *stream; /* the latter has freed it */
    size_t n, asked;
    void *event; /* of its last end; NULL: nothing uses the memory any more */
    int device;  /* of the memory */
    int event_device;
};

static struct pool {
    struct pool *next;
    unsigned holds; /* by the program, and by calls that use it at the moment */
    size_t most;    /* 0: no limit */
    int reuses[INSERTS_ORDER + 1];
    uint64_t numbers[USED_MOST + 1];
    int access[DEVICES];  /* of devices */
    struct block *unused; /* the latest first */
} standard = {.holds = 1, .reuses = {0, 1, 1, 1}};

/* All protected by the lock of ranges. */
static struct pool *pools = &standard;
static struct pool *current = &standard;
static struct pool left = {.holds = 1}; /* has what destroyed pools had */
static struct block *used[BUCKETS];
static atomic_bool any; /* there were blocks */

static struct pool *pool_of(const void *handle)
{
    struct pool *p = pools;
    while (p && p != handle)
        p = p->next;
    return p;
}

static struct block **bucket_of(const void *address)
{
    return &used[((uint64_t)(uintptr_t)address * UINT64_C(0x9e3779b97f4a7c15) >> 32) % BUCKETS];
}

static struct block **place_of(const void *address)
{
    struct block **at = bucket_of(address);
    while (*at && (*at)->at != address)
        at = &(*at)->next;
    return at;
}

static void push(struct block **list, struct block *b)
{
    b->next = *list;
    *list = b;
}

static struct block *pop(struct block **list)
{
    struct block *b = *list;
    *list = b ? b->next : NULL;
    return b;
}

/* NULL: it is none, or not any more. */
static struct pool *hold(const void *handle)
{
    ibx_frontend_ranges_lock();
    struct pool *p = pool_of(handle);
    if (p)
        p->holds++;
    ibx_frontend_ranges_unlock();
    return p;
}

bool ibx_host_pool_is(const void *handle)
{
    ibx_frontend_ranges_lock();
    const bool is = pool_of(handle);
    ibx_frontend_ranges_unlock();
    return is;
}

static bool holds(const struct block *b, const void *address)
{
    while (b && b->at != address)
        b = b->next;
    return b;
}

bool ibx_host_pool_has(const void *address)
{
    struct range range;
    if (!atomic_load_explicit(&any, memory_order_relaxed) ||
        !ibx_frontend_host_range(address, &range)) /* the lists may be long */
        return false;
    ibx_frontend_ranges_lock();
    bool has = *place_of(address) || holds(left.unused, address);
    for (const struct pool *p = pools; p && !has; p = p->next)
        has = holds(p->unused, address);
    ibx_frontend_ranges_unlock();
    return has;
}

static void count(struct pool *p, unsigned attribute, size_t less, size_t more)
{
    uint64_t *now = &p->numbers[attribute], *most = now + 1;
    *now += more - less;
    *most = *now > *most ? *now : *most;
}

/* Locked. What the pool has goes to `left`. */
static void leave(struct pool *from)
{
    struct block *b;
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (b = used[i]; b; b = b->next)
            b->pool = b->pool == from ? &left : b->pool;
    }
    while ((b = pop(&from->unused))) {
        b->pool = &left;
        push(&left.unused, b);
    }
    count(&left, RESERVED, 0, from->numbers[RESERVED]);
    count(&left, USED, 0, from->numbers[USED]);
}

/* Locked. Nobody uses a pool without holding it: other threads may destroy it. */
static void let_go(struct pool *p)
{
    if (--p->holds)
        return;
    leave(p);
    free(p);
}

/* What ends a call that holds the pool. */
static int done(struct pool *p, int rc)
{
    ibx_frontend_ranges_lock();
    let_go(p);
    ibx_frontend_ranges_unlock();
    return rc;
}

static size_t rounded(size_t n)
{
    return (n + GRAIN - 1) / GRAIN * GRAIN;
}

/* ------------------------------------------------------------------------ the end of memory */

static void drop_event(struct block *b)
{
    if (b->event)
        cudaEventDestroy(b->event);
    b->event = NULL;
}

/* Notes what has to be over before the memory is used again: the work that is in the stream now. An
 * event of one device cannot be recorded in a stream of another one. */
static int mark_end(struct block *b, void *stream)
{
    const int device = ibx_frontend_current_device();
    if (ibx_frontend_device_of_stream(stream) != device) {
        drop_event(b);
        return ibx_frontend_stream_wait(stream);
    }
    if (b->event_device != device)
        drop_event(b);
    b->event_device = device;
    const int rc = b->event ? CUDA_SUCCESS : cudaEventCreateWithFlags(&b->event, NO_TIMING);
    if (!rc)
        return cudaEventRecord(b->event, stream);
    b->event = NULL;
    return rc;
}

/* CUDA_SUCCESS, CUDA_NOT_READY or an error of other work. */
static int look(const struct block *b)
{
    if (!b->event)
        return CUDA_SUCCESS;
    const int mode = ibx_frontend_relax(), rc = cudaEventQuery(b->event);
    ibx_frontend_relax_end(mode);
    return rc;
}

static void give_back(struct block *b)
{
    ibx_frontend_ranges_lock();
    count(b->pool, RESERVED, b->n, 0);
    ibx_frontend_ranges_unlock();
    ibx_frontend_host_drop(b->at);
    drop_event(b);
    free(b);
}

static bool holds_more(const struct pool *pool, uint64_t keep)
{
    ibx_frontend_ranges_lock();
    const bool more = pool->numbers[RESERVED] > keep;
    ibx_frontend_ranges_unlock();
    return more;
}

/* Locked; lets the lock go meanwhile, and holds the pool. Gives memory back whose event is over, as
 * long as the pool has more than `keep`. Other threads do not see its unused memory meanwhile. An
 * error of other work ends it. */
static int release_of(struct pool *pool, uint64_t keep)
{
    struct block *all = pool->unused, *kept = NULL, *b;
    int rc = CUDA_SUCCESS;
    pool->unused = NULL;
    pool->holds++;
    ibx_frontend_ranges_unlock();
    while ((b = pop(&all))) {
        const int found = rc || !holds_more(pool, keep) ? CUDA_NOT_READY : look(b);
        if (found)
            push(&kept, b);
        else
            give_back(b);
        rc = found == CUDA_NOT_READY ? rc : found;
    }
    ibx_frontend_ranges_lock();
    while ((b = pop(&kept)))
        push(&pool->unused, b);
    let_go(pool);
    return rc;
}

static int release(struct pool *pool, uint64_t keep)
{
    if (ibx_frontend_capturing())
        return CUDA_SUCCESS;
    ibx_frontend_ranges_lock();
    const int rc = release_of(pool, keep);
    ibx_frontend_ranges_unlock();
    return rc;
}

/* The program has waited for the only device. */
static int device_rests(void)
{
    if (ibx_frontend_capturing())
        return CUDA_SUCCESS;
    int rc = release(&left, 0);
    ibx_frontend_ranges_lock();
    for (struct pool *p = pools; p && !rc; p = p->next) {
        const uint64_t keep = p->numbers[THRESHOLD];
        if (!p->unused || p->numbers[RESERVED] <= keep)
            continue;
        p->holds++;
        rc = release_of(p, keep);
        const bool there = pool_of(p);
        let_go(p);
        if (!there) /* destroyed meanwhile */
            break;
    }
    ibx_frontend_ranges_unlock();
    return rc;
}

/* -------------------------------------------------------------------------- memory of a pool */

/* Locked. Of the pool's unused memory, the place of the smallest that fits, and is not more than
 * twice as much: of what this stream has freed (`same`), or of all that; if there are several, of
 * the one that was freed first. *count: how many fit. */
static struct block **fitting(struct pool *pool, size_t n, const void *stream, bool same,
                              unsigned *count)
{
    struct block **best = NULL;
    *count = 0;
    for (struct block **at = &pool->unused; *at; at = &(*at)->next) {
        const struct block *b = *at;
        if (b->n < n || b->n / 2 > n || (same && b->event && b->stream != stream))
            continue;
        ++*count;
        if (!best || b->n <= (*best)->n)
            best = at;
    }
    return best;
}

/* Locked. As CUDA does, rather takes new memory than that of another stream as long as the pool is
 * small. A stream of each thread has the same handle, and the legacy stream of each device. */
static struct block *take_fitting(struct pool *pool, size_t n, const void *stream)
{
    const bool own = (uintptr_t)stream > (uintptr_t)CUDA_STREAM_PER_THREAD;
    unsigned count;
    struct block **found = fitting(pool, n, own ? stream : NO_STREAM, true, &count);
    if (found || !pool->reuses[INSERTS_ORDER])
        return found ? pop(found) : NULL;
    found = fitting(pool, n, stream, false, &count);
    const bool small = pool->numbers[RESERVED] + n <= SMALL && count < SMALL_COUNT;
    return found && !small ? pop(found) : NULL;
}

/* Locked. */
static void put_in_use(struct block *b, size_t asked, void **address)
{
    b->asked = asked;
    count(b->pool, USED, 0, asked);
    push(bucket_of(b->at), b);
    *address = b->at;
}

/* Whether there is unused memory; then *rc is the result. */
static bool use_again(struct pool *pool, size_t n, void *stream, void **address, int *rc)
{
    ibx_frontend_ranges_lock();
    struct block *b = take_fitting(pool, rounded(n), stream);
    ibx_frontend_ranges_unlock();
    if (!b)
        return false;
    *rc = b->event ? cudaStreamWaitEvent(stream, b->event, 0) : CUDA_SUCCESS;
    ibx_frontend_ranges_lock();
    if (*rc)
        push(&pool->unused, b);
    else
        put_in_use(b, n, address);
    ibx_frontend_ranges_unlock();
    return true;
}

/* Without it memory of another stream is not used again: what is over goes back. */
static bool waits_for_others(const struct pool *pool)
{
    ibx_frontend_ranges_lock();
    const bool waits = pool->reuses[INSERTS_ORDER];
    ibx_frontend_ranges_unlock();
    return waits;
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

/* A CUDA error that is not the thread's last one yet. */
static int add(struct pool *pool, size_t n, void **address)
{
    const size_t whole = rounded(n);
    struct block *made = malloc(sizeof(*made));
    if (!made || !reserve(pool, whole)) {
        free(made);
        return CUDA_MEMORY_ALLOCATION;
    }
    *made = (struct block){.pool = pool, .n = whole, .device = ibx_frontend_current_device()};
    const int rc = ibx_frontend_host_make(&made->at, whole);
    ibx_frontend_ranges_lock();
    if (rc)
        count(pool, RESERVED, whole, 0);
    else
        put_in_use(made, n, address);
    ibx_frontend_ranges_unlock();
    if (rc)
        free(made);
    else if (!atomic_exchange(&any, true))
        ibx_frontend_after_device_wait(device_rests);
    return rc;
}

static int allocate(void **address, size_t n, struct pool *pool, void *stream)
{
    int rc;
    if (!address)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (ibx_frontend_captures(stream))
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    if (n > SIZE_MAX - UNIT)
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    *address = NULL;
    if (!n || use_again(pool, n, stream, address, &rc))
        return n ? rc : CUDA_SUCCESS;
    rc = waits_for_others(pool) ? CUDA_SUCCESS : release(pool, 0);
    if (rc)
        return rc;
    rc = add(pool, n, address);
    if (rc == CUDA_MEMORY_ALLOCATION) {
        const int other = release(&left, 0), own = release(pool, 0);
        if (other || own)
            return other ? other : own;
        rc = add(pool, n, address);
    }
    return rc ? ibx_frontend_fail(rc) : CUDA_SUCCESS;
}

int ibx_host_pool_allocate(void **address, size_t n, void *handle, void *stream)
{
    struct pool *pool = hold(handle);
    return pool ? done(pool, allocate(address, n, pool, stream))
                : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

int ibx_host_pool_free(void *address, void *stream)
{
    if (ibx_frontend_captures(stream))
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    ibx_frontend_ranges_lock();
    struct block **at = place_of(address), *b = *at ? pop(at) : NULL;
    if (b)
        b->pool->holds++;
    ibx_frontend_ranges_unlock();
    if (!b)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const int rc = mark_end(b, stream);
    b->stream = stream;
    ibx_frontend_ranges_lock();
    if (!rc)
        count(b->pool, USED, b->asked, 0);
    push(rc ? bucket_of(address) : &b->pool->unused, b);
    let_go(b->pool);
    ibx_frontend_ranges_unlock();
    return rc;
}

/* Locked. Takes the memory of a device out of a list, and forgets that device's events. */
static void lose(struct block **at, int device, bool in_use, struct block **gone)
{
    while (*at) {
        struct block *b = *at;
        if (b->event_device == device)
            b->event = NULL;
        if (b->device != device) {
            at = &b->next;
            continue;
        }
        count(b->pool, RESERVED, b->n, 0);
        count(b->pool, USED, in_use ? b->asked : 0, 0);
        push(gone, pop(at));
    }
}

void ibx_host_pools_reset(int device)
{
    struct block *gone = NULL, *b;
    ibx_frontend_ranges_lock();
    for (unsigned i = 0; i < BUCKETS; i++)
        lose(&used[i], device, true, &gone);
    for (struct pool *p = pools; p; p = p->next)
        lose(&p->unused, device, false, &gone);
    lose(&left.unused, device, false, &gone);
    ibx_frontend_ranges_unlock();
    while ((b = pop(&gone)))
        free(b);
}

void ibx_host_pools_in_child(void)
{
    memset(used, 0, sizeof(used));
    pools = current = &standard;
    standard = (struct pool){.holds = 1, .reuses = {0, 1, 1, 1}};
    left = (struct pool){.holds = 1};
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
    if (pool_of(handle))
        current = handle;
    ibx_frontend_ranges_unlock();
}

int ibx_host_pool_create(void **handle, size_t most)
{
    if (most > SIZE_MAX - UNIT)
        most = 0;
    struct pool *made = malloc(sizeof(*made));
    if (!made)
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    *made =
        (struct pool){.holds = 1, .most = (most + UNIT - 1) / UNIT * UNIT, .reuses = {0, 1, 1, 1}};
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
    struct pool **at = &pools;
    while (*at && *at != handle)
        at = &(*at)->next;
    struct pool *pool = *at;
    if (pool) {
        *at = pool->next;
        current = current == pool ? &standard : current;
        let_go(pool);
    }
    ibx_frontend_ranges_unlock();
    return pool ? release(&left, 0) : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

int ibx_host_pool_trim(void *handle, size_t keep)
{
    struct pool *pool = hold(handle);
    return pool ? done(pool, release(pool, keep)) : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

static int set(struct pool *pool, int attribute, uint64_t value)
{
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

int ibx_host_pool_set(void *handle, int attribute, uint64_t value)
{
    struct pool *pool = hold(handle);
    return pool ? done(pool, set(pool, attribute, value)) : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

int ibx_host_pool_get(const void *handle, int attribute, uint64_t *value)
{
    if (attribute < FOLLOWS_EVENTS || attribute > USED_MOST)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    struct pool *pool = hold(handle);
    if (!pool)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_frontend_ranges_lock();
    *value =
        attribute <= INSERTS_ORDER ? (uint64_t)pool->reuses[attribute] : pool->numbers[attribute];
    ibx_frontend_ranges_unlock();
    return done(pool, CUDA_SUCCESS);
}

/* Kernels of all devices get to the memory; what the program has allowed is only told. */
int ibx_host_pool_access(void *handle, const struct memory_location *where, const int *set,
                         int *get)
{
    const bool device = where->type == CUDA_AT_DEVICE;
    int devices = 0;
    if (device && (cudaGetDeviceCount(&devices) || where->id < 0 || where->id >= devices ||
                   where->id >= DEVICES))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (set && *set != READ_WRITE && !(device && (*set == READ || !*set)))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    struct pool *pool = hold(handle);
    if (!pool)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_frontend_ranges_lock();
    if (set && device)
        pool->access[where->id] = *set;
    if (get)
        *get = device ? pool->access[where->id] : READ_WRITE;
    ibx_frontend_ranges_unlock();
    return done(pool, CUDA_SUCCESS);
}
