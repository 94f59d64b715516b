/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Page-locked memory. GVirtuS gives memory of malloc(3) for it and knows of no registration; here
 * it is memory that the fabric reaches. What was made before the plugin was there is GVirtuS's, and
 * so goes back to it.
 */
#include "frontend-glue/frontend_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define HOST_ALLOC_FLAGS    7u  /* portable, mapped, write combined */
#define HOST_REGISTER_FLAGS 15u /* portable, mapped, io memory, read only */

EXPORTED int cudaMallocHost(void **address, size_t n);
EXPORTED int cudaHostAlloc(void **address, size_t n, unsigned flags);
EXPORTED int cudaFreeHost(void *address);
EXPORTED int cudaHostRegister(void *address, size_t n, unsigned flags);
EXPORTED int cudaHostUnregister(void *address);

/* ------------------------------------------------------------------------ what there is */

struct range {
    uintptr_t begin;
    size_t n;
    bool allocated; /* here; else registered by the application */
    bool in_use;    /* there was an asynchronous copy */
};

/* By address; none overlaps another. */
static struct {
    pthread_mutex_t lock;
    struct range *items;
    size_t count, room;
} ranges = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Another thread may be at the list when this one forks: the child gets it in order, and unlocked.
 */
static void before_fork(void)
{
    pthread_mutex_lock(&ranges.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&ranges.lock);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

/* The first range that does not end before `begin`. Locked. */
static size_t find(uintptr_t begin)
{
    size_t low = 0, high = ranges.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct range *range = &ranges.items[middle];
        if (begin - range->begin < range->n || range->begin > begin)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void remove_at(size_t at)
{
    ranges.count--;
    memmove(&ranges.items[at], &ranges.items[at + 1],
            (ranges.count - at) * sizeof(ranges.items[0]));
}

/* Where fresh memory lies now, there is nothing left of what was registered there. */
static int add_locked(const struct range *range)
{
    size_t at = find(range->begin);
    while (range->allocated && at < ranges.count && !ranges.items[at].allocated &&
           ranges.items[at].begin < range->begin + range->n)
        remove_at(at);
    if (at < ranges.count && ranges.items[at].begin < range->begin + range->n)
        return CUDA_ALREADY_REGISTERED;
    if (ranges.count == ranges.room) {
        size_t room = ranges.room ? 2 * ranges.room : 16;
        struct range *items = realloc(ranges.items, room * sizeof(*items));
        if (!items)
            return CUDA_MEMORY_ALLOCATION;
        ranges.items = items;
        ranges.room = room;
    }
    memmove(&ranges.items[at + 1], &ranges.items[at], (ranges.count - at) * sizeof(*range));
    ranges.items[at] = *range;
    ranges.count++;
    return CUDA_SUCCESS;
}

static int add(void *address, size_t n, bool allocated)
{
    struct range range = {(uintptr_t)address, n, allocated, false};
    pthread_mutex_lock(&ranges.lock);
    int rc = add_locked(&range);
    pthread_mutex_unlock(&ranges.lock);
    return rc;
}

/* Takes the range that begins there off the list. */
static bool take_out(void *address, bool allocated, struct range *range)
{
    pthread_mutex_lock(&ranges.lock);
    size_t at = find((uintptr_t)address);
    bool found = at < ranges.count && ranges.items[at].begin == (uintptr_t)address &&
                 ranges.items[at].allocated == allocated;
    if (found) {
        *range = ranges.items[at];
        remove_at(at);
    }
    pthread_mutex_unlock(&ranges.lock);
    return found;
}

bool frontend_lasting(const void *address, size_t n)
{
    pthread_mutex_lock(&ranges.lock);
    size_t at = find((uintptr_t)address);
    struct range *range = at < ranges.count ? &ranges.items[at] : NULL;
    uintptr_t into = range ? (uintptr_t)address - range->begin : 0;
    bool inside = range && range->allocated && into < range->n && n <= range->n - into;
    if (inside)
        range->in_use = true;
    pthread_mutex_unlock(&ranges.lock);
    return inside;
}

/* ------------------------------------------------------------------------------ the calls */

/* As CUDA does before it frees memory that the device may be at. */
static void synchronize(void)
{
    static _Atomic(void *) next;
    int (*call)(void);
    *(void **)&call = frontend_gvirtus(&next, "cudaDeviceSynchronize");
    if (call)
        call();
}

static int allocate(const struct ibx_frontend_calls *calls, void **address, size_t n)
{
    if (!address)
        return CUDA_INVALID_VALUE;
    *address = NULL;
    if (!n)
        return CUDA_SUCCESS;
    void *memory = calls->allocate(n);
    int rc = memory ? add(memory, n, true) : CUDA_MEMORY_ALLOCATION;
    if (!rc)
        *address = memory;
    else if (memory)
        calls->release(memory, n);
    return rc;
}

int cudaMallocHost(void **address, size_t n)
{
    static _Atomic(void *) next;
    const struct ibx_frontend_calls *calls = frontend_plugin();
    int (*call)(void **, size_t);
    if (calls)
        return allocate(calls, address, n);
    *(void **)&call = frontend_gvirtus(&next, "cudaMallocHost");
    return call ? call(address, n) : CUDA_NOT_SUPPORTED;
}

int cudaHostAlloc(void **address, size_t n, unsigned flags)
{
    static _Atomic(void *) next;
    const struct ibx_frontend_calls *calls = frontend_plugin();
    int (*call)(void **, size_t, unsigned);
    if (calls)
        return flags & ~HOST_ALLOC_FLAGS ? CUDA_INVALID_VALUE : allocate(calls, address, n);
    *(void **)&call = frontend_gvirtus(&next, "cudaHostAlloc");
    return call ? call(address, n, flags) : CUDA_NOT_SUPPORTED;
}

int cudaFreeHost(void *address)
{
    static _Atomic(void *) next;
    struct range range;
    int (*call)(void *);
    if (!address)
        return CUDA_SUCCESS;
    if (take_out(address, true, &range)) {
        if (range.in_use)
            synchronize();
        frontend_plugin()->release(address, range.n);
        return CUDA_SUCCESS;
    }
    *(void **)&call = frontend_gvirtus(&next, "cudaFreeHost");
    return call ? call(address) : CUDA_NOT_SUPPORTED;
}

int cudaHostRegister(void *address, size_t n, unsigned flags)
{
    static _Atomic(void *) next;
    const struct ibx_frontend_calls *calls = frontend_plugin();
    int (*call)(void *, size_t, unsigned);
    if (!calls) {
        *(void **)&call = frontend_gvirtus(&next, "cudaHostRegister");
        return call ? call(address, n, flags) : CUDA_NOT_SUPPORTED;
    }
    if (!address || !n || n > UINTPTR_MAX - (uintptr_t)address || flags & ~HOST_REGISTER_FLAGS)
        return CUDA_INVALID_VALUE;
    int rc = add(address, n, false);
    if (!rc)
        calls->prepare(address, n);
    return rc;
}

int cudaHostUnregister(void *address)
{
    static _Atomic(void *) next;
    struct range range;
    int (*call)(void *);
    if (take_out(address, false, &range))
        return CUDA_SUCCESS;
    if (frontend_plugin())
        return CUDA_NOT_REGISTERED;
    *(void **)&call = frontend_gvirtus(&next, "cudaHostUnregister");
    return call ? call(address) : CUDA_NOT_SUPPORTED;
}
