/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which pointers are the device's. For cudaMemcpyDefault CUDA decides by the address, since host
 * and device share one address space. Here they are two processes, and both may have memory at one
 * address:
 *
 *   managed                                        the device's
 *   not mapped here                                the device's
 *   mapped, never given out as device memory       the host's
 *   both, but only reserved here, without access   the device's
 *   both, in page-locked memory                    the host's
 *   otherwise both                                 the device's at the beginning of an allocation,
 *                                                  as GVirtuS decides it; behind that the host's,
 *                                                  but in a copy whose other side is the host's
 */
#include "frontend-glue/preload/internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct ranges ranges;
static _Thread_local int current; /* device */

/* ------------------------------------------------------------------------------ what it is */

static bool is_mapped(const void *address)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)address / page * page;
    unsigned char resident;
    return !mincore((void *)at, 1, &resident) || errno != ENOMEM;
}

/* The kernel reads eight bytes there before it refuses the call for its first argument. */
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

bool ibx_frontend_allocation(const void *address, struct range *range)
{
    ibx_frontend_ranges_lock();
    const struct range *found = ibx_frontend_ranges_holding(&ranges, address, 1);
    if (found)
        *range = *found;
    ibx_frontend_ranges_unlock();
    return found;
}

bool ibx_frontend_only_device(const void *address)
{
    return ibx_frontend_given_out(address) && !is_mapped(address);
}

int ibx_frontend_device_of(const void *address)
{
    ibx_frontend_ranges_lock();
    const struct range *range = ibx_frontend_ranges_holding(&ranges, address, 1);
    const int device = range ? range->device : current;
    ibx_frontend_ranges_unlock();
    return device;
}

/* What was said to be the host's is the device's, as the other side: CUDA copies there. */
static bool both_only_device(const void *to, const void *from, int kind)
{
    const bool to_device = kind == CUDA_MEMCPY_TO_DEVICE;
    if (!to_device && kind != CUDA_MEMCPY_FROM_DEVICE)
        return false;
    return ibx_frontend_only_device(to_device ? from : to) &&
           ibx_frontend_only_device(to_device ? to : from);
}

/* Where the application has said that it is the host's, it may be managed all the same; CUDA minds
 * nothing that is the device's either where both sides were said to be the host's. */
static enum side side_by(int kind, const void *address)
{
    if (kind == CUDA_MEMCPY_DEFAULT)
        return side_of(address);
    const bool there = kind != CUDA_MEMCPY_ON_HOST || ibx_frontend_is_readable(address);
    return !there || ibx_frontend_is_managed(address) ? DEVICE : HOST;
}

int ibx_frontend_copy_kind(const void *to, const void *from, int kind)
{
    const bool to_device = kind == CUDA_MEMCPY_TO_DEVICE || kind == CUDA_MEMCPY_ON_DEVICE;
    const bool from_device = kind == CUDA_MEMCPY_FROM_DEVICE || kind == CUDA_MEMCPY_ON_DEVICE;
    const bool managed = ibx_frontend_is_managed(to) || ibx_frontend_is_managed(from);
    const bool looks = managed || kind == CUDA_MEMCPY_DEFAULT || kind == CUDA_MEMCPY_ON_HOST;
    if (!looks || (unsigned)kind > CUDA_MEMCPY_DEFAULT)
        return both_only_device(to, from, kind) ? CUDA_MEMCPY_ON_DEVICE : kind;
    enum side target = to_device ? DEVICE : side_by(kind, to),
              source = from_device ? DEVICE : side_by(kind, from);
    if (target == EITHER && source == EITHER)
        target = source = HOST;
    else if (target == EITHER)
        target = source == HOST ? DEVICE : HOST;
    else if (source == EITHER)
        source = target == HOST ? DEVICE : HOST;
    if (target == DEVICE)
        return source == DEVICE ? CUDA_MEMCPY_ON_DEVICE : CUDA_MEMCPY_TO_DEVICE;
    return source == DEVICE ? CUDA_MEMCPY_FROM_DEVICE : CUDA_MEMCPY_ON_HOST;
}

/* ---------------------------------------------------------------------- devices in use */

static _Atomic uint64_t in_use; /* a bit each, for the first 64 devices */

/* GVirtuS makes new connections for a child: it has selected nothing, and used nothing. */
static void in_child(void)
{
    atomic_store(&in_use, 0);
    current = 0;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static void note_device(int device)
{
    if (device >= 0 && device < 64 &&
        !(atomic_load_explicit(&in_use, memory_order_relaxed) >> device & 1))
        atomic_fetch_or(&in_use, (uint64_t)1 << device);
}

void ibx_frontend_device_used(void)
{
    ibx_frontend_runtime_used();
    note_device(current);
}

bool ibx_frontend_device_in_use(int device)
{
    return device >= 0 && device < 64 && atomic_load(&in_use) >> device & 1;
}

int ibx_frontend_current_device(void)
{
    return current;
}

bool ibx_frontend_one_device(void)
{
    const uint64_t devices = atomic_load(&in_use);
    return !(devices & (devices - 1));
}

int cudaGetDevice(int *device)
{
    if (!device)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    return ibx_frontend_knows(IBX_FRONTEND_DEVICE, 0, device) ? CUDA_SUCCESS
                                                              : CALL_NEXT(cudaGetDevice, device);
}

int cudaSetDevice(int device)
{
    if (ibx_frontend_knows(IBX_FRONTEND_SELECTED, (uint64_t)device, NULL))
        return CUDA_SUCCESS;
    int rc = CALL_NEXT(cudaSetDevice, device);
    if (!rc) {
        current = device;
        note_device(device);
        ibx_frontend_peers_selected(device);
    }
    return rc;
}

/* The first device is that of threads that have selected none. */
void ibx_frontend_each_device(void (*visit)(int device))
{
    const uint64_t all = atomic_load(&in_use) | 1;
    bool away = false;
    visit(current);
    for (int device = 0; device < 64; device++) {
        if (device == current || !(all >> device & 1) || CALL_NEXT(cudaSetDevice, device))
            continue;
        away = true;
        visit(device);
    }
    if (away)
        CALL_NEXT(cudaSetDevice, current);
}

/* GVirtuS's cudaSetDevice makes a context on a device, so unused devices are left alone. */
int ibx_frontend_devices_wait(void)
{
    uint64_t others = atomic_load(&in_use);
    const unsigned ended = ibx_frontend_threads_ended();
    bool away = false;
    int rc = CALL_NEXT(cudaDeviceSynchronize);
    for (int device = 0; device < 64; device++) {
        if (device == current || !(others >> device & 1))
            continue;
        int code = CALL_NEXT(cudaSetDevice, device);
        away = away || !code;
        if (!code)
            code = CALL_NEXT(cudaDeviceSynchronize);
        rc = rc ? rc : code;
    }
    if (!rc)
        ibx_frontend_threads_rest(ended);
    const int back = away ? CALL_NEXT(cudaSetDevice, current) : CUDA_SUCCESS;
    return rc ? rc : back;
}

/* --------------------------------------------------------------------- allocations */

/* An older range at that address was freed by a call that is not seen here. Without memory for the
 * range such a pointer counts as the host's where it is both. */
static void note_range(const struct range *range)
{
    if (!range->n)
        return;
    ibx_frontend_ranges_lock();
    size_t at = ibx_frontend_ranges_find(&ranges, range->begin);
    while (at < ranges.count && ranges.items[at].begin < range->begin + range->n)
        ibx_frontend_ranges_remove(&ranges, &ranges.items[at]);
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
    const bool beyond = range && !range->pooled && n > range->n - (address - range->begin);
    ibx_frontend_ranges_unlock();
    return beyond;
}

void ibx_frontend_device_memory(void *address, size_t n)
{
    ibx_frontend_memory_of(address, n, current);
}

void ibx_frontend_memory_of(void *address, size_t n, int device)
{
    ibx_frontend_device_used();
    note(address, n, true, device);
}

void ibx_frontend_reserved_memory(void *address, size_t n)
{
    const struct range range = {
        .begin = (uintptr_t)address, .n = n, .pooled = true, .reserved = true, .device = current};
    ibx_frontend_device_used();
    note_range(&range);
}

bool ibx_frontend_is_reserved(const void *address)
{
    struct range range;
    return ibx_frontend_allocation(address, &range) && range.reserved;
}

static atomic_uint reserved_resets;

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

/* Without GVirtuS, if that is possible. */
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
    ibx_frontend_look_for_libraries();
    if (!allocated(address, n, &rc))
        rc = CALL_NEXT(cudaMalloc, address, n);
    ibx_frontend_device_used();
    if (!rc)
        note(*address, n, false, current);
    return rc;
}

int cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height)
{
    size_t n;
    if (!address || !pitch)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    int rc = CALL_NEXT(cudaMallocPitch, address, pitch, width, height);
    ibx_frontend_device_used();
    if (!rc && !__builtin_mul_overflow(*pitch, height, &n))
        note(*address, n, false, current);
    return rc;
}

/* While it waits the driver may keep other calls out. A wait for the device alone does not, but
 * ends captures. */
void ibx_frontend_before_free(void)
{
    if (!ibx_frontend_host_functions() || ibx_frontend_capturing())
        return;
    if (ibx_frontend_one_device())
        CALL_NEXT(cudaDeviceSynchronize);
    else
        ibx_frontend_devices_wait();
}

int ibx_frontend_freed(int rc)
{
    const int failure = rc ? CUDA_SUCCESS : ibx_frontend_graph_failure();
    return failure ? ibx_frontend_fail(failure) : rc;
}

/* It waits for the device, but where the memory is a pool's or a graph's, or none. */
int cudaFree(void *address)
{
    ibx_frontend_owned_gone(OWNED_MEMORY, address);
    int code;
    if (ibx_frontend_forbidden(&code))
        return code;
    if (ibx_frontend_managed_free(address, &address, &code) && code)
        return code;
    if (ibx_frontend_opened(OPENED_MEMORY, address) || ibx_frontend_is_reserved(address))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (ibx_frontend_pointer_closed(address))
        return CUDA_SUCCESS;
    /* First: after the call another thread may be given the same address. */
    ibx_frontend_ranges_lock();
    struct range *range = ibx_frontend_ranges_at(&ranges, address);
    const bool ours = range, waits = address && !(range && range->pooled);
    if (range)
        ibx_frontend_ranges_remove(&ranges, range);
    ibx_frontend_ranges_unlock();
    if (waits)
        ibx_frontend_before_free();
    uint8_t bytes[8];
    struct ibx_writer body = ibx_writer_of(bytes, sizeof(bytes));
    int rc;
    ibx_put_u64(&body, (uintptr_t)address);
    if (!ours || !ibx_frontend_called("cudaFree", &body, &rc))
        rc = CALL_NEXT(cudaFree, address);
    return waits ? ibx_frontend_freed(rc) : rc;
}
