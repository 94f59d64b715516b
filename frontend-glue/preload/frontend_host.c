/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Page-locked memory. GVirtuS gives memory of malloc(3) for it and knows of no registration; here
 * it is memory that the fabric reaches. What was made before the plugin was there is GVirtuS's, and
 * so goes back to it.
 */
#include "frontend-glue/preload/frontend_internal.h"

#include <errno.h>

#define HOST_ALLOC_FLAGS    7u  /* portable, mapped, write combined */
#define HOST_REGISTER_FLAGS 15u /* portable, mapped, io memory, read only */

EXPORTED int cudaMallocHost(void **address, size_t n);
EXPORTED int cudaHostAlloc(void **address, size_t n, unsigned flags);
EXPORTED int cudaFreeHost(void *address);
EXPORTED int cudaHostRegister(void *address, size_t n, unsigned flags);
EXPORTED int cudaHostUnregister(void *address);

/* ------------------------------------------------------------------------ what there is */

static struct frontend_ranges ranges;

/* Where fresh memory lies now, there is nothing left of what was registered there. */
static void drop_stale(const struct frontend_range *fresh)
{
    size_t at = ibx_frontend_ranges_find(&ranges, fresh->begin);
    while (at < ranges.count && !ranges.items[at].allocated &&
           ranges.items[at].begin < fresh->begin + fresh->n)
        ibx_frontend_ranges_remove(&ranges, at);
}

static int add(void *address, size_t n, bool allocated)
{
    struct frontend_range range = {(uintptr_t)address, n, allocated, false};
    ibx_frontend_ranges_lock();
    if (allocated)
        drop_stale(&range);
    int rc = ibx_frontend_ranges_add(&ranges, &range);
    ibx_frontend_ranges_unlock();
    return rc == -EEXIST ? CUDA_ALREADY_REGISTERED : rc ? CUDA_MEMORY_ALLOCATION : CUDA_SUCCESS;
}

/* Takes the range that begins there off the list. */
static bool take_out(void *address, bool allocated, struct frontend_range *range)
{
    ibx_frontend_ranges_lock();
    size_t at = ibx_frontend_ranges_find(&ranges, (uintptr_t)address);
    bool found = at < ranges.count && ranges.items[at].begin == (uintptr_t)address &&
                 ranges.items[at].allocated == allocated;
    if (found) {
        *range = ranges.items[at];
        ibx_frontend_ranges_remove(&ranges, at);
    }
    ibx_frontend_ranges_unlock();
    return found;
}

/* Of memory that was allocated here. */
static bool is_inside(const void *address)
{
    ibx_frontend_ranges_lock();
    const struct frontend_range *range = ibx_frontend_ranges_holding(&ranges, address, 1);
    bool inside = range && range->allocated;
    ibx_frontend_ranges_unlock();
    return inside;
}

enum ibx_frontend_memory ibx_frontend_memory(const void *address, size_t n)
{
    enum ibx_frontend_memory kind = FRONTEND_ORDINARY;
    ibx_frontend_ranges_lock();
    struct frontend_range *range = ibx_frontend_ranges_holding(&ranges, address, n);
    if (range) {
        range->in_use = true;
        kind = range->allocated ? FRONTEND_ALLOCATED : FRONTEND_REGISTERED;
    }
    ibx_frontend_ranges_unlock();
    return kind;
}

bool ibx_frontend_memory_used(const void *address, size_t n)
{
    uintptr_t begin = (uintptr_t)address;
    bool used = false;
    ibx_frontend_ranges_lock();
    for (size_t at = ibx_frontend_ranges_find(&ranges, begin); at < ranges.count && !used; at++) {
        const struct frontend_range *range = &ranges.items[at];
        if (range->begin > begin && range->begin - begin >= n)
            break;
        used = range->in_use;
    }
    ibx_frontend_ranges_unlock();
    return used;
}

/* ------------------------------------------------------------------------------ the calls */

static int allocate(const struct ibx_frontend_calls *calls, void **address, size_t n)
{
    if (!address)
        return ibx_frontend_refuse(CUDA_INVALID_VALUE);
    *address = NULL;
    if (!n)
        return CUDA_SUCCESS;
    void *memory = calls->allocate(n);
    int rc = memory ? add(memory, n, true) : CUDA_MEMORY_ALLOCATION;
    if (!rc)
        *address = memory;
    else if (memory)
        calls->release(memory, n);
    return rc ? ibx_frontend_refuse(rc) : CUDA_SUCCESS;
}

int cudaMallocHost(void **address, size_t n)
{
    static _Atomic(void *) next;
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    int (*call)(void **, size_t);
    if (calls)
        return allocate(calls, address, n);
    *(void **)&call = ibx_frontend_gvirtus(&next, "cudaMallocHost");
    return call ? call(address, n) : CUDA_NOT_SUPPORTED;
}

int cudaHostAlloc(void **address, size_t n, unsigned flags)
{
    static _Atomic(void *) next;
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    int (*call)(void **, size_t, unsigned);
    if (calls)
        return flags & ~HOST_ALLOC_FLAGS ? ibx_frontend_refuse(CUDA_INVALID_VALUE)
                                         : allocate(calls, address, n);
    *(void **)&call = ibx_frontend_gvirtus(&next, "cudaHostAlloc");
    return call ? call(address, n, flags) : CUDA_NOT_SUPPORTED;
}

int cudaFreeHost(void *address)
{
    static _Atomic(void *) next;
    struct frontend_range range;
    int (*call)(void *);
    if (!address)
        return CUDA_SUCCESS;
    if (take_out(address, true, &range)) {
        if (range.in_use) { /* as CUDA does before it frees what a device may be at */
            ibx_frontend_plugin()->finish(address, range.n);
            ibx_frontend_devices_wait();
        }
        ibx_frontend_plugin()->release(address, range.n);
        return CUDA_SUCCESS;
    }
    if (is_inside(address)) /* GVirtuS gives what it does not know to free(3) */
        return ibx_frontend_refuse(CUDA_INVALID_VALUE);
    *(void **)&call = ibx_frontend_gvirtus(&next, "cudaFreeHost");
    return call ? call(address) : CUDA_NOT_SUPPORTED;
}

int cudaHostRegister(void *address, size_t n, unsigned flags)
{
    static _Atomic(void *) next;
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    int (*call)(void *, size_t, unsigned);
    if (!calls) {
        *(void **)&call = ibx_frontend_gvirtus(&next, "cudaHostRegister");
        return call ? call(address, n, flags) : CUDA_NOT_SUPPORTED;
    }
    if (!address || !n || n > UINTPTR_MAX - (uintptr_t)address || flags & ~HOST_REGISTER_FLAGS)
        return ibx_frontend_refuse(CUDA_INVALID_VALUE);
    int rc = add(address, n, false);
    if (rc)
        return ibx_frontend_refuse(rc);
    calls->prepare(address, n);
    return CUDA_SUCCESS;
}

int cudaHostUnregister(void *address)
{
    static _Atomic(void *) next;
    struct frontend_range range;
    int (*call)(void *);
    if (take_out(address, false, &range)) {
        if (range.in_use)
            ibx_frontend_plugin()->finish(address, range.n);
        return CUDA_SUCCESS;
    }
    if (ibx_frontend_plugin())
        return ibx_frontend_refuse(CUDA_NOT_REGISTERED);
    *(void **)&call = ibx_frontend_gvirtus(&next, "cudaHostUnregister");
    return call ? call(address) : CUDA_NOT_SUPPORTED;
}
