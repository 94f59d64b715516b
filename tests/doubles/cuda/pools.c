/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's runtime: pools of memory. A pool that this file has not made, or that is no
 * more, ends the process, as CUDA's would. */
#include "tests/doubles/cuda/runtime.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POOLS 8

struct location {
    int type, id;
};
struct access {
    struct location location;
    int flags;
};
struct properties {
    int allocation, handles;
    struct location location;
    void *security;
    size_t most;
    unsigned short usage;
    uint8_t reserved[54];
};

/* The first one is the device's own. */
static struct pool {
    bool made;
    int flags; /* of access by device 1 */
    uint64_t values[8];
} pools[POOLS] = {{.made = true}};

static struct pool *pool_of(void *handle)
{
    struct pool *pool = handle;
    if (pool < pools || pool >= pools + POOLS || !pool->made)
        abort();
    return pool;
}

static int set_pool(void *address, void *pool)
{
    int (*set)(uint64_t device, void *of) = NULL;
    *(void **)&set = driver_function("ibx_double_pooled");
    return set((uintptr_t)address, pool);
}

static int allocate(void **address, size_t n, void *pool)
{
    const int rc = cudaMalloc(address, n);
    return rc ? rc : set_pool(*address, pool);
}

int pooled_malloc(void **address, size_t n)
{
    return allocate(address, n, &pools[0]);
}

/* Of the stream's device, whichever is current. */
EXPORT int cudaMallocAsync(void **address, size_t n, void *stream)
{
    int device = 0;
    if (device_of_stream(stream, &device))
        return returns(400);
    enter_device(device);
    const int rc = pooled_malloc(address, n);
    leave_device();
    return rc;
}

EXPORT int cudaMallocFromPoolAsync(void **address, size_t n, void *from, void *stream)
{
    struct pool *pool = pool_of(from);
    pool->values[6] = n == 7878; /* one that stays here, unless the pool goes */
    for (unsigned i = 0; i < 200 && pool->values[6] && pool->made; i++)
        usleep(1000);
    pool->values[6] = 0;
    (void)stream;
    return allocate(address, n, pool_of(from));
}

EXPORT int cudaFreeAsync(void *address, void *stream)
{
    int (*wait)(void *of) = NULL, (*is_captured)(void *of, int *status) = NULL;
    static uint8_t no_pool; /* whose memory cudaFree does not wait for */
    int status = 0;
    *(void **)&wait = driver_function("cuStreamSynchronize");
    *(void **)&is_captured = driver_function("cuStreamIsCapturing");
    const bool captured = stream && !is_captured(stream, &status) && status;
    const int rc = captured ? 0 : wait(stream ? stream : (void *)1);
    if (rc || set_pool(address, &no_pool))
        return returns(rc ? rc : 1);
    return cudaFree(address);
}

EXPORT int cudaDeviceGetDefaultMemPool(void **found, int device)
{
    *found = &pools[0];
    return returns(device ? 101 : 0);
}

EXPORT int cudaDeviceGetMemPool(void **found, int device)
{
    return cudaDeviceGetDefaultMemPool(found, device);
}

EXPORT int cudaMemPoolSetAttribute(void *of, int attribute, void *value)
{
    memcpy(&pool_of(of)->values[attribute & 7], value, attribute <= 3 ? 4 : 8);
    return returns(0);
}

EXPORT int cudaMemPoolGetAttribute(void *of, int attribute, void *value)
{
    memcpy(value, &pool_of(of)->values[attribute & 7], attribute <= 3 ? 4 : 8);
    return returns(0);
}

/* Of page-locked memory of device 0, for this process alone. Attribute 7 is what it was to hold. */
EXPORT int cudaMemPoolCreate(void **pool, const struct properties *p)
{
    unsigned i = 1;
    while (i < POOLS && pools[i].made)
        i++;
    if (i == POOLS || p->allocation != 1 || p->handles || p->location.type != 1 || p->location.id)
        return returns(1);
    pools[i] = (struct pool){.made = true, .values = {[7] = p->most}};
    *pool = &pools[i];
    return returns(0);
}

EXPORT int cudaMemPoolDestroy(void *pool)
{
    pool_of(pool)->made = false;
    return returns(0);
}

EXPORT int cudaMemPoolSetAccess(void *pool, const struct access *list, size_t count)
{
    if (count != 1 || list->location.type != 1 || list->location.id != 1)
        return returns(1);
    pool_of(pool)->flags = list->flags;
    return returns(0);
}

EXPORT int cudaMemPoolGetAccess(int *flags, void *pool, const struct location *location)
{
    *flags = location->id ? pool_of(pool)->flags : 3;
    return returns(location->type == 1 ? 0 : 1);
}
