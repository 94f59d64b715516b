/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which pointers are device memory. For cudaMemcpyDefault CUDA decides by the address, since host
 * and device share one address space. Here they are two processes, and both may have memory at the
 * same address:
 *
 *   managed memory                              device
 *   not mapped in this process                  device
 *   mapped, never returned as device memory     host
 *   both, but only reserved here (no access)    device
 *   both, in page-locked memory                 host
 *   both, otherwise                             device at the beginning of an allocation, as
 * GVirtuS decides it; after that host, unless the other side of the copy is host memory
 */
#include "frontend-glue/preload/memory/host_pools.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct ranges ranges; /* memory that calls have returned; protected by the lock of ranges */

/* ------------------------------------------------------------------------------ what it is */

static bool is_mapped(const void *address)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)address / page * page;
    unsigned char resident;
    return !mincore((void *)at, 1, &resident) || errno != ENOMEM;
}

/* By a system call that reads 8 bytes there before it fails because of its first argument. */
bool ibx_frontend_is_readable(const void *address)
{
    const uintptr_t at = (uintptr_t)address & ~(uintptr_t)7;
    return !syscall(SYS_rt_sigprocmask, -1, at, NULL, 8) || errno != EFAULT;
}

enum side { HOST, DEVICE, EITHER };

static enum side side_of(const void *address)
{
    unsigned flags;
    int device;
    if (ibx_frontend_is_managed(address) || !is_mapped(address))
        return DEVICE;
    ibx_frontend_ranges_lock();
    const struct range *range = ibx_frontend_ranges_holding(&ranges, address, 1);
    const bool known = range, begins = known && range->begin == (uintptr_t)address;
    ibx_frontend_ranges_unlock();
    if (!known)
        return HOST;
    return begins || !ibx_frontend_is_readable(address)        ? DEVICE
           : ibx_frontend_host_known(address, &device, &flags) ? HOST
                                                               : EITHER;
}

bool ibx_frontend_is_device(const void *address)
{
    return side_of(address) == DEVICE;
}

bool ibx_frontend_given_out(const void *address)
{
    ibx_frontend_ranges_lock();
    const bool known = ibx_frontend_ranges_holding(&ranges, address, 1);
    ibx_frontend_ranges_unlock();
    return known;
}

static bool is_unknown(const void *array, const void *address)
{
    return !array && !ibx_frontend_given_out(address) && !ibx_frontend_is_managed(address);
}

bool ibx_frontend_copy_of_unknown(const struct ibx_cuda_memcpy3d *p)
{
    return is_unknown(p->from_array, p->from.at) || is_unknown(p->to_array, p->to.at);
}

bool ibx_frontend_allocation(const void *address, struct range *range)
{
    return ibx_frontend_ranges_copy(&ranges, address, range);
}

bool ibx_frontend_only_device(const void *address)
{
    return ibx_frontend_given_out(address) && !is_mapped(address);
}

bool ibx_frontend_only_host(const void *address)
{
    return is_unknown(NULL, address) && is_mapped(address);
}

int ibx_frontend_device_of(const void *address)
{
    ibx_frontend_ranges_lock();
    const struct range *range = ibx_frontend_ranges_holding(&ranges, address, 1);
    const int device = range ? range->device : ibx_frontend_current_device();
    ibx_frontend_ranges_unlock();
    return device;
}

/* Whether it is page-locked memory; no device memory that has the same address. */
static bool is_page_locked(const void *address)
{
    struct range range;
    return ibx_frontend_host_any() && ibx_frontend_host_range(address, &range) &&
           !ibx_frontend_given_out(address);
}

static int kind_between(bool to_host, bool from_host)
{
    if (to_host)
        return from_host ? CUDA_MEMCPY_ON_HOST : CUDA_MEMCPY_FROM_DEVICE;
    return from_host ? CUDA_MEMCPY_TO_DEVICE : CUDA_MEMCPY_ON_DEVICE;
}

/* The kind of a copy whose kind names each side's. CUDA goes by the addresses that it knows: also
 * if both sides are device memory, or if they are confused, and the host's is page-locked; or if
 * both are the host's, and the one that is called the device's is page-locked. */
static int kind_by_sides(const void *to, const void *from, int kind)
{
    const bool to_device = kind == CUDA_MEMCPY_TO_DEVICE;
    struct range range;
    if (kind == CUDA_MEMCPY_ON_DEVICE)
        return kind_between(is_page_locked(to), is_page_locked(from));
    if (!to_device && kind != CUDA_MEMCPY_FROM_DEVICE)
        return kind;
    const void *device = to_device ? to : from, *host = to_device ? from : to; /* as it says */
    if (!ibx_frontend_only_device(host))
        return is_page_locked(device) ? CUDA_MEMCPY_ON_HOST : kind;
    if (ibx_frontend_only_device(device))
        return CUDA_MEMCPY_ON_DEVICE;
    return !ibx_frontend_host_range(device, &range) ? kind
           : to_device                              ? CUDA_MEMCPY_FROM_DEVICE
                                                    : CUDA_MEMCPY_TO_DEVICE;
}

/* The side of an address by the kind of the copy. If the application called it the host's, it may
 * be the device's or managed all the same: CUDA goes by the address. */
static enum side side_by(int kind, const void *address)
{
    if (kind == CUDA_MEMCPY_DEFAULT)
        return side_of(address);
    const bool there = !ibx_frontend_only_device(address) &&
                       (kind != CUDA_MEMCPY_ON_HOST || ibx_frontend_is_readable(address));
    return !there || ibx_frontend_is_managed(address) ? DEVICE : HOST;
}

int ibx_frontend_copy_kind(const void *to, const void *from, int kind)
{
    const bool on_device = kind == CUDA_MEMCPY_ON_DEVICE;
    const bool managed = ibx_frontend_is_managed(to) || ibx_frontend_is_managed(from);
    const bool looks = managed || kind == CUDA_MEMCPY_DEFAULT || kind == CUDA_MEMCPY_ON_HOST;
    if (!looks || ibx_frontend_is_no_kind(kind))
        return kind_by_sides(to, from, kind);
    const bool to_device = (kind == CUDA_MEMCPY_TO_DEVICE || on_device) && !is_page_locked(to),
               from_device =
                   (kind == CUDA_MEMCPY_FROM_DEVICE || on_device) && !is_page_locked(from);
    enum side target = to_device ? DEVICE : side_by(kind, to),
              source = from_device ? DEVICE : side_by(kind, from);
    if (target == EITHER && source == EITHER)
        target = source = HOST;
    else if (target == EITHER)
        target = source == HOST ? DEVICE : HOST;
    else if (source == EITHER)
        source = target == HOST ? DEVICE : HOST;
    return kind_between(target == HOST, source == HOST);
}

/* Locked. As ibx_frontend_goes_beyond(). */
static bool goes_beyond(const struct range *range, uintptr_t address, size_t n)
{
    return !range->reserved && !range->of_graph && n > range->n - (address - range->begin);
}

/* Each lock takes two instructions that other processors are told of: that is as much as the rest
 * of a look at short lists. */
bool ibx_frontend_copy_is_plain(const void *device, const void *host, size_t n, bool *ours,
                                bool *known)
{
    const uintptr_t at = (uintptr_t)device, host_at = (uintptr_t)host;
    if (ibx_frontend_is_managed(device) || ibx_frontend_is_managed(host))
        return false;
    ibx_frontend_ranges_lock();
    const struct range *there = ibx_frontend_ranges_holding(&ranges, device, 1);
    const struct range *here = ibx_frontend_host_found(host);
    const bool plain = !ibx_frontend_ranges_holding(&ranges, host, 1) &&
                       !ibx_frontend_host_found(device) && !(there && goes_beyond(there, at, n)) &&
                       !(here && n > here->n - (host_at - here->begin));
    *ours = plain && here && here->allocated;
    *known = plain && there;
    ibx_frontend_ranges_unlock();
    return plain;
}

/* CUDA goes by the address where it knows that, also if the kind calls page-locked memory the
 * device's. `of_host`: the kind that calls this side alone the host's. */
static bool is_of_host(const void *array, const void *address, int kind, int of_host)
{
    if (array || ibx_frontend_is_managed(address) || ibx_frontend_only_device(address))
        return false;
    if (kind == of_host || kind == CUDA_MEMCPY_ON_HOST)
        return true;
    return kind == CUDA_MEMCPY_DEFAULT ? !ibx_frontend_is_device(address) : is_page_locked(address);
}

bool ibx_frontend_copy_of_host(struct ibx_cuda_memcpy3d *p)
{
    const bool from_host = is_of_host(p->from_array, p->from.at, p->kind, CUDA_MEMCPY_TO_DEVICE);
    const bool to_host = is_of_host(p->to_array, p->to.at, p->kind, CUDA_MEMCPY_FROM_DEVICE);
    p->kind = kind_between(to_host, from_host);
    return from_host || to_host;
}

bool ibx_frontend_copy_is_on_host(const struct ibx_cuda_memcpy3d *p)
{
    const bool to_host = p->kind == CUDA_MEMCPY_FROM_DEVICE || p->kind == CUDA_MEMCPY_ON_HOST;
    const bool from_host = p->kind == CUDA_MEMCPY_TO_DEVICE || p->kind == CUDA_MEMCPY_ON_HOST;
    return (to_host || ibx_frontend_is_in_place(p->to.at) || is_page_locked(p->to.at)) &&
           (from_host || ibx_frontend_is_in_place(p->from.at) || is_page_locked(p->from.at));
}

/* --------------------------------------------------------------------- allocations */

/* Locked. What is noted there is no longer there. */
static void remove_within(uintptr_t begin, size_t n)
{
    const size_t at = ibx_frontend_ranges_find(&ranges, begin);
    while (at < ranges.count && ranges.items[at].begin < begin + n)
        ibx_frontend_ranges_remove(&ranges, &ranges.items[at]);
}

/* Adds an allocation. An older one at this address was freed by a call that this library does not
 * see. Without memory for the entry, an address that both sides have counts as the host's. */
static void note_range(const struct range *range)
{
    if (!range->n)
        return;
    ibx_frontend_ranges_lock();
    remove_within(range->begin, range->n);
    ibx_frontend_ranges_add(&ranges, range);
    ibx_frontend_ranges_unlock();
}

static void note(void *address, size_t n, bool pooled, int device)
{
    const struct range range = {
        .begin = (uintptr_t)address, .n = n, .pooled = pooled, .device = device};
    note_range(&range);
}

bool ibx_frontend_goes_beyond(uintptr_t address, size_t n)
{
    ibx_frontend_ranges_lock();
    const struct range *range = ibx_frontend_ranges_holding(&ranges, (void *)address, 1);
    const bool beyond = range && goes_beyond(range, address, n);
    ibx_frontend_ranges_unlock();
    return beyond;
}

bool ibx_frontend_is_short(const void *address, size_t n)
{
    return ibx_frontend_goes_beyond((uintptr_t)address, n) ||
           (ibx_frontend_host_is_short(address, n) && !ibx_frontend_given_out(address));
}

size_t ibx_frontend_planes_extent(size_t pitch, size_t rows, const struct ibx_cuda_extent *extent)
{
    size_t plane, planes, row;
    if (!extent->width || !extent->height || !extent->depth)
        return 0;
    return __builtin_mul_overflow(pitch, rows, &plane) ||
                   __builtin_mul_overflow(plane, extent->depth - 1, &planes) ||
                   __builtin_mul_overflow(pitch, extent->height - 1, &row) ||
                   __builtin_add_overflow(planes, row, &planes) ||
                   __builtin_add_overflow(planes, extent->width, &planes)
               ? SIZE_MAX
               : planes;
}

size_t ibx_frontend_extent(size_t pitch, size_t width, size_t height)
{
    return ibx_frontend_planes_extent(pitch, 0, &(struct ibx_cuda_extent){width, height, 1});
}

/* As ibx_frontend_copy_of_host() takes the side, since both processes may have memory there.
 * Managed memory may be page-locked memory in its place. */
static bool side_is_short(const struct ibx_cuda_pitched *memory, const struct ibx_cuda_extent *at,
                          const struct ibx_cuda_memcpy3d *p, int of_host)
{
    struct ibx_cuda_extent all; /* with what is before the copy's first byte */
    if (!memory->at || !p->extent.width || !p->extent.height || !p->extent.depth)
        return false;
    const size_t n = __builtin_add_overflow(at->width, p->extent.width, &all.width) ||
                             __builtin_add_overflow(at->height, p->extent.height, &all.height) ||
                             __builtin_add_overflow(at->depth, p->extent.depth, &all.depth)
                         ? SIZE_MAX
                         : ibx_frontend_planes_extent(memory->pitch, memory->y, &all);
    return ibx_frontend_is_managed(memory->at) || is_of_host(NULL, memory->at, p->kind, of_host)
               ? ibx_frontend_host_is_short(memory->at, n)
               : ibx_frontend_goes_beyond((uintptr_t)memory->at, n);
}

bool ibx_frontend_planes_are_short(const struct ibx_cuda_memcpy3d *bytes)
{
    return side_is_short(&bytes->from, &bytes->from_at, bytes, CUDA_MEMCPY_TO_DEVICE) ||
           side_is_short(&bytes->to, &bytes->to_at, bytes, CUDA_MEMCPY_FROM_DEVICE);
}

int ibx_frontend_planes_within(const struct ibx_cuda_memcpy3d *p)
{
    const int rc = ibx_frontend_side_within(&p->from, &p->from_at, p, true);
    return rc ? rc : ibx_frontend_side_within(&p->to, &p->to_at, p, true);
}

void ibx_frontend_memory_lapsed(uintptr_t at, size_t n)
{
    ibx_frontend_ranges_lock();
    if (n)
        remove_within(at, n);
    ibx_frontend_ranges_unlock();
}

void ibx_frontend_device_memory(void *address, size_t n)
{
    ibx_frontend_memory_of(address, n, ibx_frontend_current_device());
}

void ibx_frontend_memory_of(void *address, size_t n, int device)
{
    ibx_frontend_device_used();
    note(address, n, true, device);
}

/* Memory, or addresses for it, on the current device. */
static void note_here(void *address, size_t n, struct range kind)
{
    kind.begin = (uintptr_t)address;
    kind.n = n;
    kind.pooled = true;
    kind.device = ibx_frontend_current_device();
    ibx_frontend_device_used();
    note_range(&kind);
}

void ibx_frontend_graph_memory(void *address, size_t n)
{
    note_here(address, n, (struct range){.of_graph = true});
}

void ibx_frontend_reserved_memory(void *address, size_t n)
{
    note_here(address, n, (struct range){.reserved = true});
}

bool ibx_frontend_is_reserved(const void *address)
{
    struct range range;
    return ibx_frontend_allocation(address, &range) && range.reserved;
}

static atomic_uint reserved_resets; /* number of device resets */

void ibx_frontend_device_memory_reset(int device)
{
    ibx_frontend_ranges_lock();
    for (size_t at = 0; at < ranges.count;) {
        if (ranges.items[at].device == device)
            ibx_frontend_ranges_remove(&ranges, &ranges.items[at]);
        else
            at++;
    }
    ibx_frontend_ranges_unlock();
    atomic_fetch_add(&reserved_resets, 1);
}

unsigned ibx_frontend_reserved_resets(void)
{
    return atomic_load(&reserved_resets);
}

void ibx_frontend_device_memory_gone(const void *address)
{
    ibx_frontend_ranges_lock();
    struct range *range = ibx_frontend_ranges_at(&ranges, address);
    if (range)
        ibx_frontend_ranges_remove(&ranges, range);
    ibx_frontend_ranges_unlock();
}

/* Allocates through the plugin, if possible. False: GVirtuS has to. */
static bool allocated(void **address, size_t n, int *rc)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    uint8_t size[8], made[8];
    struct ibx_writer w = ibx_writer_of(size, sizeof(size));
    struct ibx_reader r = ibx_reader_of(made, sizeof(made));
    const struct ibx_frontend_request request = {
        .name = "cudaMalloc", .body = size, .n = sizeof(size), .out = made, .out_n = sizeof(made)};
    ibx_put_u64(&w, n);
    if (ibx_frontend_forbidden(rc))
        return true;
    if (!calls || calls->call(&request, rc))
        return false;
    if (!*rc)
        *address = (void *)(uintptr_t)ibx_get_u64(&r);
    return true;
}

int cudaMalloc(void **address, size_t n)
{
    int rc;
    if (!address)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    *address = NULL; /* natively, too, if the call fails */
    ibx_frontend_look_for_libraries();
    if (n && (rc = ibx_frontend_unsafe_beside()))
        return rc;
    if (!allocated(address, n, &rc))
        rc = CALL_NEXT(cudaMalloc, address, n);
    ibx_frontend_device_used();
    if (!rc)
        note(*address, n, false, ibx_frontend_current_device());
    return rc;
}

int cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height)
{
    size_t n;
    if (!address || !pitch)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    *address = NULL;
    int rc = width && height ? ibx_frontend_unsafe_beside() : CUDA_SUCCESS;
    if (rc)
        return rc;
    rc = CALL_NEXT(cudaMallocPitch, address, pitch, width, height);
    ibx_frontend_device_used();
    if (!rc && !__builtin_mul_overflow(*pitch, height, &n))
        note(*address, n, false, ibx_frontend_current_device());
    return rc;
}

/* While cudaFree waits, the driver may block other calls, which cudaDeviceSynchronize does not; but
 * that would invalidate captures. */
void ibx_frontend_before_free(void)
{
    const bool waits = ibx_frontend_host_functions() && !ibx_frontend_capturing();
    if (waits && ibx_frontend_one_device())
        CALL_NEXT(cudaDeviceSynchronize);
    else if (waits)
        ibx_frontend_devices_wait();
    ibx_frontend_wait_begins();
}

int ibx_frontend_freed(int rc)
{
    if (!rc)
        ibx_frontend_printed();
    const int failure = rc ? CUDA_SUCCESS : ibx_frontend_graph_failure();
    return failure ? ibx_frontend_fail(failure) : rc;
}

/* Takes the allocation out of the list. False: it is not in it. */
static bool take_out(const void *address, struct range *taken)
{
    ibx_frontend_ranges_lock();
    struct range *range = ibx_frontend_ranges_at(&ranges, address);
    const bool there = range;
    if (range) {
        *taken = *range;
        ibx_frontend_ranges_remove(&ranges, range);
    }
    ibx_frontend_ranges_unlock();
    return there;
}

/* Waits for the device, except for memory of a pool or a graph, and NULL. */
static int free_memory(void *address)
{
    struct range range = {.pooled = false};
    /* before the call: another thread may get the same address right after it */
    const bool ours = take_out(address, &range), waits = address && !range.pooled;
    if (waits)
        ibx_frontend_before_free();
    uint8_t bytes[8];
    struct ibx_writer body = ibx_writer_of(bytes, sizeof(bytes));
    int rc;
    ibx_put_u64(&body, (uintptr_t)address);
    if (!ours || !ibx_frontend_called("cudaFree", &body, &rc))
        rc = CALL_NEXT(cudaFree, address);
    if (rc && ours && ibx_frontend_capturing())
        note_range(&range); /* CUDA frees nothing in a capture */
    return waits ? ibx_frontend_freed(rc) : rc;
}

/* Of whatever kind it is. */
static int free_any(void *address)
{
    int code;
    if (ibx_frontend_forbidden(&code))
        return code;
    if (ibx_frontend_capturing() && ibx_frontend_managed_free_captured(address, free_memory, &code))
        return code;
    if (ibx_frontend_managed_free(address, &address, &code) && code)
        return code;
    if (ibx_host_pool_has(address)) {
        code = ibx_frontend_device_wait_within();
        return code ? code : ibx_host_pool_free(address, NULL);
    }
    if (ibx_frontend_opened(OPENED_MEMORY, address) || ibx_frontend_is_reserved(address))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    return ibx_frontend_pointer_closed(address) ? CUDA_SUCCESS : free_memory(address);
}

int cudaFree(void *address)
{
    struct owned_note note;
    if (ibx_frontend_unloads())
        return CUDA_UNLOADING;
    int rc = ibx_frontend_unsafe_beside();
    if (rc)
        return rc;
    ibx_frontend_owned_lift(OWNED_MEMORY, address, &note);
    rc = free_any(address);
    if (rc && ibx_frontend_capturing()) /* CUDA frees nothing in a capture */
        ibx_frontend_owned_again(&note);
    return rc;
}
