/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Page-locked memory. GVirtuS returns memory of malloc(3) for it and ignores registrations; here it
 * is memory that the fabric can access. What GVirtuS allocated before the plugin attached is freed
 * by GVirtuS, which would pass any other address to free(3), too.
 */
#include "frontend-glue/preload/memory/host_pools.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/thread.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#define HOST_ALLOC_FLAGS    7u  /* portable, mapped, write combined */
#define HOST_REGISTER_FLAGS 11u /* portable, mapped, read only; not I/O memory */
#define PORTABLE            1u
#define WORDS_MOST          4096u /* bytes; longer allocations are buffers for copies */
#define KEPT_MOST           64u

static struct ranges ranges;     /* page-locked memory; protected by the lock of ranges */
static struct ranges of_gvirtus; /* memory that GVirtuS has allocated */

/* Adds a range. Allocated memory replaces registered memory at the same address, which must have
 * been unmapped since. */
static int add(void *address, size_t n, bool allocated, unsigned flags)
{
    struct range range = {.begin = (uintptr_t)address,
                          .n = n,
                          .allocated = allocated,
                          .device = ibx_frontend_current_device(),
                          .flags = flags};
    ibx_frontend_ranges_lock();
    size_t at = ibx_frontend_ranges_find(&ranges, range.begin);
    while (allocated && at < ranges.count && !ranges.items[at].allocated &&
           ranges.items[at].begin < range.begin + n)
        ibx_frontend_ranges_remove(&ranges, &ranges.items[at]);
    int rc = ibx_frontend_ranges_add(&ranges, &range);
    ibx_frontend_ranges_unlock();
    if (!rc)
        ibx_frontend_reach_begins(range.begin, n);
    return rc == -EEXIST ? CUDA_ALREADY_REGISTERED : rc ? CUDA_MEMORY_ALLOCATION : CUDA_SUCCESS;
}

/* Removes the range that begins there from the list, after background copies in it have completed.
 */
static bool take_out(void *address, bool allocated, struct range *range)
{
    ibx_frontend_ranges_lock();
    struct range *found = ibx_frontend_ranges_at(&ranges, address);
    if (found && found->allocated != allocated)
        found = NULL;
    if (found) {
        *range = *found;
        ibx_frontend_ranges_remove(&ranges, found);
    }
    ibx_frontend_ranges_unlock();
    if (found && range->in_use)
        ibx_frontend_plugin()->finish(address, range->n);
    return found;
}

enum host_memory ibx_frontend_host_memory(const void *address, size_t n)
{
    enum host_memory kind = HOST_PAGEABLE;
    ibx_frontend_ranges_lock();
    struct range *range = ibx_frontend_ranges_holding(&ranges, address, n);
    if (range) {
        range->in_use = true;
        kind = range->allocated ? HOST_ALLOCATED : HOST_REGISTERED;
    }
    ibx_frontend_ranges_unlock();
    return kind;
}

bool ibx_frontend_host_ours(const void *address, size_t n)
{
    ibx_frontend_ranges_lock();
    const struct range *range = ibx_frontend_ranges_holding(&ranges, address, n);
    const bool ours = range && range->allocated;
    ibx_frontend_ranges_unlock();
    return ours;
}

const struct range *ibx_frontend_host_found(const void *address)
{
    return ibx_frontend_ranges_holding(&ranges, address, 1);
}

bool ibx_frontend_host_known(const void *address, int *device, unsigned *flags)
{
    struct range range;
    const bool known = ibx_frontend_ranges_copy(&ranges, address, &range);
    if (known) {
        *device = range.device;
        *flags = range.flags;
    }
    return known;
}

int ibx_frontend_was_set(int rc, const void *address, void *stream)
{
    int device;
    unsigned flags;
    return !rc && ibx_frontend_host_any() && ibx_frontend_host_known(address, &device, &flags) &&
                   !ibx_frontend_captures(stream)
               ? ibx_frontend_stream_wait(stream)
               : rc;
}

bool ibx_frontend_host_range(const void *address, struct range *range)
{
    return ibx_frontend_ranges_copy(&ranges, address, range);
}

bool ibx_frontend_host_numbered(const void *address, uint64_t number)
{
    struct range range;
    return ibx_frontend_host_range(address, &range) && range.number == number;
}

bool ibx_frontend_host_is_short(const void *address, size_t n)
{
    struct range range;
    return ibx_frontend_host_any() && ibx_frontend_host_range(address, &range) &&
           n > range.begin + range.n - (uintptr_t)address;
}

void ibx_frontend_host_reached(const struct range *range, unsigned epoch, unsigned forks)
{
    ibx_frontend_ranges_lock();
    struct range *found = ibx_frontend_ranges_at(&ranges, (void *)range->begin);
    if (found) {
        found->reach = epoch;
        found->moved = found->allocated ? 0 : forks;
    }
    ibx_frontend_ranges_unlock();
}

void ibx_frontend_host_in_place(const struct range *range, unsigned forks)
{
    ibx_frontend_ranges_lock();
    struct range *found = ibx_frontend_ranges_at(&ranges, (void *)range->begin);
    if (found)
        found->in_place = forks;
    ibx_frontend_ranges_unlock();
}

void ibx_frontend_host_moves(const struct range *range, enum range_moves moves)
{
    ibx_frontend_ranges_lock();
    struct range *found = ibx_frontend_ranges_at(&ranges, (void *)range->begin);
    if (found && found->number == range->number)
        found->moves = moves;
    ibx_frontend_ranges_unlock();
}

bool ibx_frontend_host_lapsed(unsigned epoch, struct range *range)
{
    bool found = false;
    ibx_frontend_ranges_lock();
    for (size_t i = 0; i < ranges.count && !found; i++) {
        *range = ranges.items[i];
        found = range->reach && range->reach != epoch;
    }
    ibx_frontend_ranges_unlock();
    return found;
}

bool ibx_frontend_host_memory_used(const void *address, size_t n)
{
    uintptr_t begin = (uintptr_t)address;
    bool used = false;
    ibx_frontend_ranges_lock();
    for (size_t at = ibx_frontend_ranges_find(&ranges, begin); at < ranges.count && !used; at++) {
        const struct range *range = &ranges.items[at];
        if (range->begin > begin && range->begin - begin >= n)
            break;
        used = range->in_use || range->reach;
    }
    ibx_frontend_ranges_unlock();
    return used;
}

/* Notes an allocation of GVirtuS, which has returned `rc`. An earlier range there is gone. */
static int allocated_by_gvirtus(int rc, void **address, size_t n)
{
    if (rc || !address || !*address || !n)
        return rc;
    const struct range made = {.begin = (uintptr_t)*address, .n = n};
    ibx_frontend_ranges_lock();
    const size_t at = ibx_frontend_ranges_find(&of_gvirtus, made.begin);
    while (at < of_gvirtus.count && of_gvirtus.items[at].begin < made.begin + n)
        ibx_frontend_ranges_remove(&of_gvirtus, &of_gvirtus.items[at]);
    const int full = ibx_frontend_ranges_add(&of_gvirtus, &made);
    ibx_frontend_ranges_unlock();
    if (full && !CALL_NEXT(cudaFreeHost, *address))
        *address = NULL;
    return full ? CUDA_MEMORY_ALLOCATION : CUDA_SUCCESS;
}

/* Whether it is such memory, and removes it from the list. */
static bool take_from_gvirtus(const void *address)
{
    ibx_frontend_ranges_lock();
    struct range *found = ibx_frontend_ranges_at(&of_gvirtus, address);
    if (found)
        ibx_frontend_ranges_remove(&of_gvirtus, found);
    ibx_frontend_ranges_unlock();
    return found;
}

/* ------------------------------------------------------------------------------ the calls */

/* Allocates memory; NULL: *rc is the error. */
static void *make(const struct ibx_frontend_calls *calls, size_t n, unsigned flags, int *rc)
{
    void *const piece = ibx_frontend_small_take(calls, n, true);
    void *memory = piece ? piece : calls->allocate(n);
    *rc = memory ? add(memory, n, true, flags) : CUDA_MEMORY_ALLOCATION;
    if (!*rc || !memory)
        return memory;
    if (!piece || !ibx_frontend_small_give(piece, n))
        calls->release(memory, n);
    return NULL;
}

static int allocate(const struct ibx_frontend_calls *calls, void **address, size_t n,
                    unsigned flags)
{
    int rc = CUDA_SUCCESS;
    if (!address)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    *address = n ? make(calls, n, flags, &rc) : NULL;
    return rc ? ibx_frontend_fail(rc) : CUDA_SUCCESS;
}

int ibx_frontend_host_make(void **address, size_t n)
{
    int rc;
    if (!ibx_frontend_plugin())
        ibx_frontend_connect();
    if (!ibx_frontend_plugin())
        return CUDA_NOT_SUPPORTED;
    *address = make(ibx_frontend_plugin(), n, 0, &rc);
    return rc;
}

int cudaMallocHost(void **address, size_t n)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    const int rc = n ? ibx_frontend_unsafe() : CUDA_SUCCESS;
    if (rc)
        return rc;
    return calls ? allocate(calls, address, n, 0)
                 : allocated_by_gvirtus(CALL_NEXT(cudaMallocHost, address, n), address, n);
}

/* Natively kernels can access all page-locked memory at its address. A few bytes that are allocated
 * for all devices are most often a word through which the program and its kernels communicate. */
static bool is_for_kernels(size_t n, unsigned flags)
{
    return flags & IBX_FRONTEND_MAPPED || (flags & PORTABLE && n <= WORDS_MOST);
}

static int free_host(void *address);

static void *make_small(const struct ibx_frontend_calls *calls, size_t n, unsigned flags)
{
    struct range range;
    void *memory = ibx_frontend_small_take(calls, n, false);
    if (memory && add(memory, n, true, flags)) {
        ibx_frontend_small_give(memory, n);
        return NULL;
    }
    if (!memory || !ibx_frontend_host_try(memory, &range))
        return memory;
    ibx_frontend_small_refuse();
    free_host(memory);
    return NULL;
}

/* Memory that kernels can access at once; NULL: there is none. */
static void *make_for_kernels(const struct ibx_frontend_calls *calls, size_t n, unsigned flags)
{
    struct range range;
    int rc;
    void *memory = ibx_frontend_reach_likely() ? make_small(calls, n, flags) : NULL;
    if (memory || !ibx_frontend_reach_likely())
        return memory;
    memory = make(calls, n, flags, &rc);
    if (memory && ibx_frontend_host_try(memory, &range)) {
        free_host(memory);
        return NULL;
    }
    return memory;
}

int cudaHostAlloc(void **address, size_t n, unsigned flags)
{
    const bool for_kernels = is_for_kernels(n, flags);
    int rc = n ? ibx_frontend_unsafe() : CUDA_SUCCESS;
    if (rc)
        return rc;
    if (for_kernels && !ibx_frontend_plugin())
        ibx_frontend_connect();
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    if (!calls)
        return allocated_by_gvirtus(CALL_NEXT(cudaHostAlloc, address, n, flags), address, n);
    if (address)
        *address = NULL;
    if (flags & ~HOST_ALLOC_FLAGS)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    void *memory = for_kernels && address && n ? make_for_kernels(calls, n, flags) : NULL;
    if (memory) {
        *address = memory;
        return CUDA_SUCCESS;
    }
    if (for_kernels && address && n && ibx_frontend_mapped(address, n, flags, &rc))
        return rc;
    return allocate(calls, address, n, flags);
}

/* Memory that was freed or unregistered during a capture, when a wait for the devices would
 * invalidate the capture. The next free after the capture frees it. Protected by the lock of
 * ranges.
 */
static struct range kept[KEPT_MOST];
static unsigned kept_count;

static bool keep(const struct range *range)
{
    ibx_frontend_ranges_lock();
    const bool room = kept_count < KEPT_MOST;
    if (room)
        kept[kept_count++] = *range;
    ibx_frontend_ranges_unlock();
    return room;
}

static unsigned take_kept(struct range *taken)
{
    ibx_frontend_ranges_lock();
    const unsigned count = kept_count;
    for (unsigned i = 0; i < count; i++)
        taken[i] = kept[i];
    kept_count = 0;
    ibx_frontend_ranges_unlock();
    return count;
}

static void give_back(const struct range *range)
{
    void *address = (void *)range->begin;
    if (range->in_place) {
        ibx_frontend_in_place_end(range);
        return;
    }
    if (range->allocated && ibx_frontend_small_give(address, range->n))
        return;
    ibx_frontend_reach_ends(range);
    if (!range->allocated)
        return;
    ibx_frontend_plugin()->release(address, range->n);
}

/* CUDA returns from the calls that end page-locked memory when the devices have no work, whatever
 * that accesses: programs rely on it for other memory, too, and for copies that host functions
 * hold up. */
static bool must_wait(void)
{
    return ibx_frontend_host_functions() || !ibx_frontend_knows(IBX_FRONTEND_DEVICE_RESTS, 0, NULL);
}

/* A wait for the devices would invalidate captures, beside which CUDA permits these calls to some
 * threads: then streams are waited for one by one. Memory that was used may be used by work of any
 * device. */
static void wait_for_work(bool used)
{
    if (!must_wait())
        return;
    if (ibx_frontend_capturing())
        ibx_frontend_streams_rest(true);
    else if (used)
        ibx_frontend_devices_wait();
    else
        ibx_frontend_own_work_wait();
}

/* Waits for the devices first, as CUDA does. */
static void free_range(const struct range *range)
{
    struct range before[KEPT_MOST];
    const bool used = range->in_use || range->reach || range->in_place;
    const bool captures = ibx_frontend_capturing();
    const unsigned count = captures ? 0 : take_kept(before);
    wait_for_work(used || count);
    if (captures && used && keep(range))
        return;
    give_back(range);
    for (unsigned i = 0; i < count; i++)
        give_back(&before[i]);
}

void ibx_frontend_host_drop(void *address)
{
    struct range range;
    if (take_out(address, true, &range))
        give_back(&range);
}

static int free_host(void *address)
{
    struct range range;
    int rc;
    ibx_frontend_owned_gone(OWNED_HOST, address);
    ibx_frontend_print_all(); /* natively both this and the next one wait for the device */
    if (ibx_frontend_mapped_free(address, &rc))
        return rc;
    if (ibx_host_pool_has(address))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (take_out(address, true, &range)) {
        free_range(&range);
        return CUDA_SUCCESS;
    }
    if (take_from_gvirtus(address)) {
        if (ibx_frontend_plugin())
            wait_for_work(false);
        return CALL_NEXT(cudaFreeHost, address);
    }
    if (!ibx_frontend_plugin())
        return CALL_NEXT(cudaFreeHost, address);
    return ibx_frontend_fail(CUDA_INVALID_VALUE);
}

int cudaFreeHost(void *address)
{
    int rc;
    if (ibx_frontend_forbidden(&rc))
        return rc;
    rc = ibx_frontend_unsafe();
    return rc || !address ? rc : free_host(address);
}

/* Called under the lock. NULL: there is none. */
static struct range *any_of(int device)
{
    size_t i = 0;
    while (i < ranges.count && ranges.items[i].device != device)
        i++;
    return i < ranges.count ? &ranges.items[i] : NULL;
}

static bool next_in_place(uintptr_t from, struct range *range)
{
    ibx_frontend_ranges_lock();
    size_t at = ibx_frontend_ranges_find(&ranges, from);
    while (at < ranges.count && !ranges.items[at].in_place)
        at++;
    const bool found = at < ranges.count;
    if (found)
        *range = ranges.items[at];
    ibx_frontend_ranges_unlock();
    return found;
}

/* Managed memory of other devices may have been pinned by the context that was reset. */
static void keep_in_place(void)
{
    struct range range;
    for (uintptr_t from = 0; next_in_place(from, &range); from = range.begin + range.n)
        ibx_frontend_in_place_again(&range);
}

void ibx_frontend_host_memory_reset(int device)
{
    for (;;) {
        struct range range;
        ibx_frontend_ranges_lock();
        struct range *found = ibx_frontend_plugin() ? any_of(device) : NULL;
        if (found) {
            range = *found;
            ibx_frontend_ranges_remove(&ranges, found);
        }
        ibx_frontend_ranges_unlock();
        if (!found)
            break;
        if (range.in_use)
            ibx_frontend_plugin()->finish((void *)range.begin, range.n);
        if (range.allocated || range.moved)
            give_back(&range);
    }
    keep_in_place();
}

/* msync(2) with MS_ASYNC only checks that all pages are mapped. It is a cancellation point. */
bool ibx_frontend_all_mapped(const void *address, size_t n)
{
    const size_t before = (uintptr_t)address % (uintptr_t)sysconf(_SC_PAGESIZE);
    const int cancel = ibx_thread_hold_cancel();
    const bool all =
        !msync((void *)((uintptr_t)address - before), before + n, MS_ASYNC) || errno != ENOMEM;
    ibx_thread_release_cancel(cancel);
    return all;
}

/* Whether CUDA has allocated the memory there, page-locked or managed: it is not registered. */
static bool is_allocated(const void *address)
{
    struct range range;
    return ibx_frontend_is_managed(address) ||
           (ibx_frontend_host_range(address, &range) && range.allocated);
}

int cudaHostRegister(void *address, size_t n, unsigned flags)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    int rc = ibx_frontend_unsafe();
    if (rc)
        return rc;
    if (!calls)
        return CALL_NEXT(cudaHostRegister, address, n, flags);
    if (!address || !n || n > UINTPTR_MAX - (uintptr_t)address || flags & ~HOST_REGISTER_FLAGS)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!ibx_frontend_all_mapped(address, n) || is_allocated(address))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    rc = add(address, n, false, flags);
    if (rc)
        return ibx_frontend_fail(rc);
    calls->prepare(address, n);
    return CUDA_SUCCESS;
}

int cudaHostUnregister(void *address)
{
    struct range range;
    int rc;
    if (ibx_frontend_forbidden(&rc) || (rc = ibx_frontend_unsafe()))
        return rc;
    ibx_frontend_owned_gone(OWNED_REGISTERED, address);
    ibx_frontend_print_all();
    if (take_out(address, false, &range)) {
        if (range.moved)
            free_range(&range);
        else
            wait_for_work(range.in_use);
        return CUDA_SUCCESS;
    }
    if (!ibx_frontend_plugin())
        return CALL_NEXT(cudaHostUnregister, address);
    if (!address)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const bool inside = ibx_frontend_host_range(address, &range) && !range.allocated &&
                        range.begin != (uintptr_t)address;
    return ibx_frontend_fail(inside ? CUDA_INVALID_VALUE : CUDA_NOT_REGISTERED);
}
