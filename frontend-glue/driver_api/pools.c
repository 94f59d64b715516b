/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Pools of memory, and memory in the order of a stream. */
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/driver_api/driver.h"

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* The memory is freed with the context in which it was made. */
static int allocate(uint64_t *address, size_t n, void *pool, void *stream)
{
    void *memory = NULL;
    if (!address)
        return CUDA_INVALID_VALUE;
    const int rc = pool ? cudaMallocFromPoolAsync(&memory, n, pool, stream)
                        : cudaMallocAsync(&memory, n, stream);
    *address = (uintptr_t)memory;
    if (!rc)
        ibx_frontend_owned(OWNED_MEMORY, memory, ibx_driver_current());
    return rc;
}

EXPORTED int cuMemAllocAsync(uint64_t *address, size_t n, void *stream)
{
    return IN_CONTEXT_OF(stream, allocate(address, n, NULL, stream));
}

EXPORTED int cuMemAllocFromPoolAsync(uint64_t *address, size_t n, void *pool, void *stream)
{
    return IN_CONTEXT_OF(stream, pool ? allocate(address, n, pool, stream) : CUDA_INVALID_VALUE);
}

EXPORTED int cuMemFreeAsync(uint64_t address, void *stream)
{
    return IN_CONTEXT_OF(stream, cudaFreeAsync(at(address), stream));
}

/* A pool is no context's. */
EXPORTED int cuMemPoolCreate(void **pool, const struct pool_properties *properties)
{
    return ANYWHERE(cudaMemPoolCreate(pool, properties));
}

EXPORTED int cuMemPoolDestroy(void *pool)
{
    return ANYWHERE(cudaMemPoolDestroy(pool));
}

EXPORTED int cuMemPoolTrimTo(void *pool, size_t keep)
{
    return ANYWHERE(cudaMemPoolTrimTo(pool, keep));
}

EXPORTED int cuMemPoolSetAttribute(void *pool, int attribute, void *value)
{
    return ANYWHERE(cudaMemPoolSetAttribute(pool, attribute, value));
}

EXPORTED int cuMemPoolGetAttribute(void *pool, int attribute, void *value)
{
    return ANYWHERE(cudaMemPoolGetAttribute(pool, attribute, value));
}

EXPORTED int cuMemPoolSetAccess(void *pool, const struct memory_access *list, size_t count)
{
    return ANYWHERE(cudaMemPoolSetAccess(pool, list, count));
}

EXPORTED int cuMemPoolGetAccess(int *flags, void *pool, const struct memory_location *location)
{
    return ANYWHERE(cudaMemPoolGetAccess(flags, pool, location));
}

EXPORTED int cuMemPoolExportToShareableHandle(void *made, void *pool, int type,
                                              unsigned long long flags)
{
    return ANYWHERE(cudaMemPoolExportToShareableHandle(made, pool, type, (unsigned)flags));
}

EXPORTED int cuMemPoolImportFromShareableHandle(void **pool, void *handle, int type,
                                                unsigned long long flags)
{
    return ANYWHERE(cudaMemPoolImportFromShareableHandle(pool, handle, type, (unsigned)flags));
}

EXPORTED int cuMemPoolExportPointer(struct ipc_handle *handle, uint64_t address)
{
    return ANYWHERE(cudaMemPoolExportPointer(handle, at(address)));
}

static int import_pointer(uint64_t *address, void *pool, const struct ipc_handle *handle)
{
    void *memory = NULL;
    const int rc = address ? cudaMemPoolImportPointer(&memory, pool, handle) : CUDA_INVALID_VALUE;
    if (!rc)
        *address = (uintptr_t)memory;
    return rc;
}

EXPORTED int cuMemPoolImportPointer(uint64_t *address, void *pool, const struct ipc_handle *handle)
{
    return IN_CONTEXT(import_pointer(address, pool, handle));
}

EXPORTED int cuDeviceGetDefaultMemPool(void **pool, int device)
{
    return ANYWHERE(cudaDeviceGetDefaultMemPool(pool, device));
}

EXPORTED int cuDeviceGetMemPool(void **pool, int device)
{
    return ANYWHERE(cudaDeviceGetMemPool(pool, device));
}

EXPORTED int cuDeviceSetMemPool(int device, void *pool)
{
    return ANYWHERE(cudaDeviceSetMemPool(device, pool));
}

EXPORTED int cuMemGetDefaultMemPool(void **pool, const struct memory_location *location, int type)
{
    return ANYWHERE(cudaMemGetDefaultMemPool(pool, location, type));
}

EXPORTED int cuMemGetMemPool(void **pool, const struct memory_location *location, int type)
{
    return ANYWHERE(cudaMemGetMemPool(pool, location, type));
}

EXPORTED int cuMemSetMemPool(const struct memory_location *location, int type, void *pool)
{
    return ANYWHERE(cudaMemSetMemPool(location, type, pool));
}
