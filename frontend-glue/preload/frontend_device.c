/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which pointers are the device's. With cudaMemcpyDefault CUDA tells by the address alone, for host
 * and device share one address space. Here they are two, of two processes, in which one number may
 * stand for memory of both. What is not mapped here is no host memory; what is mapped and was not
 * given out as device memory is. Of what is both GVirtuS decides, by the beginnings of the
 * allocations that it knows; addresses that are merely reserved here, without access, are the
 * device's.
 */
#include "frontend-glue/preload/frontend_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

EXPORTED int cudaMalloc(void **address, size_t n);
EXPORTED int cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height);
EXPORTED int cudaFree(void *address);
EXPORTED int cudaSetDevice(int device);

static struct frontend_ranges ranges;

/* ------------------------------------------------------------------------------ what it is */

static bool is_mapped(const void *address)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)address / page * page;
    unsigned char resident;
    return !mincore((void *)at, 1, &resident) || errno != ENOMEM;
}

/* The kernel reads eight bytes there, before it sees that it is asked for nothing that there is. */
static bool is_readable(const void *address)
{
    const uintptr_t at = (uintptr_t)address & ~(uintptr_t)7;
    return !syscall(SYS_rt_sigprocmask, -1, at, NULL, 8) || errno != EFAULT;
}

enum side { HOST, DEVICE, EITHER };

static enum side side_of(const void *address)
{
    if (!is_mapped(address))
        return DEVICE;
    ibx_frontend_ranges_lock();
    bool known = ibx_frontend_ranges_holding(&ranges, address, 1);
    ibx_frontend_ranges_unlock();
    return !known ? HOST : is_readable(address) ? EITHER : DEVICE;
}

int ibx_frontend_kind(const void *to, const void *from, int kind)
{
    if (kind != CUDA_MEMCPY_DEFAULT)
        return kind;
    enum side target = side_of(to), source = side_of(from);
    if (target == EITHER || source == EITHER)
        return kind;
    if (target == DEVICE)
        return source == DEVICE ? CUDA_MEMCPY_ON_DEVICE : CUDA_MEMCPY_TO_DEVICE;
    return source == DEVICE ? CUDA_MEMCPY_FROM_DEVICE : CUDA_MEMCPY_ON_HOST;
}

/* ---------------------------------------------------------------------- devices in use */

/* A bit each; nobody has more. */
static _Atomic uint64_t in_use;
static _Thread_local int current; /* as long as the thread has not said otherwise */

/* GVirtuS makes connections of its own for a child: it has selected nothing, and used nothing. */
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
    if (device >= 0 && device < 64)
        atomic_fetch_or(&in_use, (uint64_t)1 << device);
}

void ibx_frontend_device_used(void)
{
    note_device(current);
}

static int select_device(int device)
{
    static _Atomic(void *) next;
    int (*call)(int);
    *(void **)&call = ibx_frontend_gvirtus(&next, "cudaSetDevice");
    return call ? call(device) : CUDA_NOT_SUPPORTED;
}

int cudaSetDevice(int device)
{
    int rc = select_device(device);
    if (!rc) {
        current = device;
        note_device(device);
    }
    return rc;
}

static void synchronize(void)
{
    static _Atomic(void *) next;
    int (*call)(void);
    *(void **)&call = ibx_frontend_gvirtus(&next, "cudaDeviceSynchronize");
    if (call)
        call();
}

/* To select one makes a context on it: so those that nobody has used are left alone. */
void ibx_frontend_devices_wait(void)
{
    uint64_t others = atomic_load(&in_use);
    bool away = false;
    synchronize();
    for (int device = 0; device < 64; device++) {
        if (device == current || !(others >> device & 1) || select_device(device))
            continue;
        synchronize();
        away = true;
    }
    if (away)
        select_device(current);
}

/* ------------------------------------------------------------------- allocations pass by */

/* What lay there before has been freed in a way that was not seen. Without memory for the note
 * such a pointer is the host's where both are. */
static void note(void *address, size_t n)
{
    struct frontend_range range = {.begin = (uintptr_t)address, .n = n};
    if (!n)
        return;
    ibx_frontend_ranges_lock();
    size_t at = ibx_frontend_ranges_find(&ranges, range.begin);
    while (at < ranges.count && ranges.items[at].begin < range.begin + n)
        ibx_frontend_ranges_remove(&ranges, at);
    ibx_frontend_ranges_add(&ranges, &range);
    ibx_frontend_ranges_unlock();
}

int cudaMalloc(void **address, size_t n)
{
    static _Atomic(void *) next;
    int (*call)(void **, size_t);
    *(void **)&call = ibx_frontend_gvirtus(&next, "cudaMalloc");
    int rc = call ? call(address, n) : CUDA_NOT_SUPPORTED;
    ibx_frontend_device_used();
    if (!rc)
        note(*address, n);
    return rc;
}

int cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height)
{
    static _Atomic(void *) next;
    int (*call)(void **, size_t *, size_t, size_t);
    size_t n;
    *(void **)&call = ibx_frontend_gvirtus(&next, "cudaMallocPitch");
    int rc = call ? call(address, pitch, width, height) : CUDA_NOT_SUPPORTED;
    ibx_frontend_device_used();
    if (!rc && !__builtin_mul_overflow(*pitch, height, &n))
        note(*address, n);
    return rc;
}

int cudaFree(void *address)
{
    static _Atomic(void *) next;
    int (*call)(void *);
    *(void **)&call = ibx_frontend_gvirtus(&next, "cudaFree");
    /* Before: then another thread may be given the same place. */
    ibx_frontend_ranges_lock();
    size_t at = ibx_frontend_ranges_find(&ranges, (uintptr_t)address);
    if (at < ranges.count && ranges.items[at].begin == (uintptr_t)address)
        ibx_frontend_ranges_remove(&ranges, at);
    ibx_frontend_ranges_unlock();
    return call ? call(address) : CUDA_NOT_SUPPORTED;
}
