/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory of the device and of the host. */
#include "frontend-glue/preload/memory/managed.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/driver_api/driver.h"

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* Notes what a call has made, if it has succeeded, as the current context's. */
static int made(int rc, enum owned_kind kind, const void *handle)
{
    if (!rc)
        ibx_frontend_owned(kind, handle, ibx_driver_current());
    return rc;
}

/* ----------------------------------------------------------------------------- the device's */

static int allocate(uint64_t *address, size_t n)
{
    void *memory = NULL;
    if (address)
        *address = 0; /* natively, too, if the call fails */
    if (!address || !n)
        return CUDA_INVALID_VALUE;
    const int rc = cudaMalloc(&memory, n);
    *address = (uintptr_t)memory;
    return made(rc, OWNED_MEMORY, memory);
}

EXPORTED int cuMemAlloc_v2(uint64_t *address, size_t n)
{
    return IN_CONTEXT(allocate(address, n));
}

static int allocate_rows(uint64_t *address, size_t *pitch, size_t width, size_t height,
                         unsigned element)
{
    void *memory = NULL;
    if (!address || !pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_INVALID_VALUE;
    const int rc = cudaMallocPitch(&memory, pitch, width, height);
    *address = (uintptr_t)memory;
    return made(rc, OWNED_MEMORY, memory);
}

EXPORTED int cuMemAllocPitch_v2(uint64_t *address, size_t *pitch, size_t width, size_t height,
                                unsigned element)
{
    return IN_CONTEXT(allocate_rows(address, pitch, width, height, element));
}

EXPORTED int cuMemFree_v2(uint64_t address)
{
    return ANYWHERE(cudaFree(at(address)));
}

static int allocate_managed(uint64_t *address, size_t n, unsigned flags)
{
    void *memory = NULL;
    if (!address || !n)
        return CUDA_INVALID_VALUE;
    const int rc = cudaMallocManaged(&memory, n, flags);
    *address = (uintptr_t)memory;
    return made(rc, OWNED_MEMORY, memory);
}

EXPORTED int cuMemAllocManaged(uint64_t *address, size_t n, unsigned flags)
{
    return IN_CONTEXT(allocate_managed(address, n, flags));
}

EXPORTED int cuMemGetInfo_v2(size_t *left, size_t *all)
{
    return IN_CONTEXT(cudaMemGetInfo(left, all));
}

/* ------------------------------------------------------------------------------- the host's */

static int allocate_host(void **address, size_t n, unsigned flags)
{
    if (!address)
        return CUDA_INVALID_VALUE;
    if (!n) { /* unlike device memory, 0 bytes are no error */
        *address = NULL;
        return CUDA_SUCCESS;
    }
    const int rc = cudaHostAlloc(address, n, flags);
    return rc ? rc : made(rc, OWNED_HOST, *address);
}

EXPORTED int cuMemHostAlloc(void **address, size_t n, unsigned flags)
{
    return IN_CONTEXT(allocate_host(address, n, flags));
}

EXPORTED int cuMemAllocHost_v2(void **address, size_t n)
{
    return IN_CONTEXT(allocate_host(address, n, 0));
}

EXPORTED int cuMemFreeHost(void *address)
{
    return ANYWHERE(address ? cudaFreeHost(address) : CUDA_SUCCESS);
}

EXPORTED int cuMemHostRegister_v2(void *address, size_t n, unsigned flags)
{
    return IN_CONTEXT(made(cudaHostRegister(address, n, flags), OWNED_REGISTERED, address));
}

EXPORTED int cuMemHostUnregister(void *address)
{
    return ANYWHERE(cudaHostUnregister(address));
}

static int device_pointer(uint64_t *address, void *memory, unsigned flags)
{
    void *there = NULL;
    const int rc = address ? cudaHostGetDevicePointer(&there, memory, flags) : CUDA_INVALID_VALUE;
    if (!rc)
        *address = (uintptr_t)there;
    return rc;
}

EXPORTED int cuMemHostGetDevicePointer_v2(uint64_t *address, void *memory, unsigned flags)
{
    return IN_CONTEXT(device_pointer(address, memory, flags));
}

EXPORTED int cuMemHostGetFlags(unsigned *flags, void *memory)
{
    return IN_CONTEXT(cudaHostGetFlags(flags, memory));
}

/* ---------------------------------------------------------------------------------- managed */

/* _v2 takes a location; the older version a device number, where -1 is the host. */
EXPORTED int cuMemPrefetchAsync_v2(uint64_t address, size_t n, struct memory_location location,
                                   unsigned flags, void *stream)
{
    return IN_CONTEXT_OF(stream, cudaMemPrefetchAsync_v2(at(address), n, location, flags, stream));
}

EXPORTED int cuMemPrefetchAsync(uint64_t address, size_t n, int device, void *stream)
{
    return IN_CONTEXT_OF(stream, cudaMemPrefetchAsync_v2(
                                     at(address), n, ibx_frontend_location_of(device), 0, stream));
}

EXPORTED int cuMemPrefetchBatchAsync(const uint64_t *addresses, const size_t *n, size_t count,
                                     const struct memory_location *to, const size_t *first,
                                     size_t to_count, unsigned long long flags, void *stream)
{
    return IN_CONTEXT_OF(stream,
                         cudaMemPrefetchBatchAsync((void *const *)(const void *)addresses, n, count,
                                                   to, first, to_count, flags, stream));
}

EXPORTED int cuMemDiscardBatchAsync(const uint64_t *addresses, const size_t *n, size_t count,
                                    unsigned long long flags, void *stream)
{
    return IN_CONTEXT_OF(stream, cudaMemDiscardBatchAsync((void *const *)(const void *)addresses, n,
                                                          count, flags, stream));
}

SAME_AS(cuMemDiscardAndPrefetchBatchAsync, cuMemPrefetchBatchAsync)

EXPORTED int cuMemAdvise_v2(uint64_t address, size_t n, int advice, struct memory_location location)
{
    return IN_CONTEXT(cudaMemAdvise_v2(at(address), n, advice, location));
}

EXPORTED int cuMemAdvise(uint64_t address, size_t n, int advice, int device)
{
    return IN_CONTEXT(cudaMemAdvise_v2(at(address), n, advice, ibx_frontend_location_of(device)));
}

EXPORTED int cuMemRangeGetAttribute(void *data, size_t size, int attribute, uint64_t address,
                                    size_t n)
{
    return IN_CONTEXT(cudaMemRangeGetAttribute(data, size, attribute, at(address), n));
}

EXPORTED int cuMemRangeGetAttributes(void **data, size_t *sizes, const int *attributes,
                                     size_t count, uint64_t address, size_t n)
{
    return IN_CONTEXT(cudaMemRangeGetAttributes(data, sizes, attributes, count, at(address), n));
}

EXPORTED int cuStreamAttachMemAsync(void *stream, uint64_t address, size_t n, unsigned flags)
{
    return IN_CONTEXT(cudaStreamAttachMemAsync(stream, at(address), n, flags));
}

/* ------------------------------------------------------------------- of other processes */

static int open_memory(uint64_t *address, struct ipc_handle handle, unsigned flags)
{
    void *memory = NULL;
    const int rc = address ? cudaIpcOpenMemHandle(&memory, handle, flags) : CUDA_INVALID_VALUE;
    if (!rc)
        *address = (uintptr_t)memory;
    return rc;
}

EXPORTED int cuIpcGetMemHandle(struct ipc_handle *handle, uint64_t address)
{
    return IN_CONTEXT(cudaIpcGetMemHandle(handle, at(address)));
}

EXPORTED int cuIpcOpenMemHandle_v2(uint64_t *address, struct ipc_handle handle, unsigned flags)
{
    return IN_CONTEXT(open_memory(address, handle, flags));
}

EXPORTED int cuIpcCloseMemHandle(uint64_t address)
{
    return IN_CONTEXT(cudaIpcCloseMemHandle(at(address)));
}

EXPORTED int cuIpcGetEventHandle(struct ipc_handle *handle, void *event)
{
    return IN_CONTEXT(cudaIpcGetEventHandle(handle, event));
}

EXPORTED int cuIpcOpenEventHandle(void **event, struct ipc_handle handle)
{
    return IN_CONTEXT(cudaIpcOpenEventHandle(event, handle));
}

SAME_AS(cuMemAlloc, cuMemAlloc_v2)
SAME_AS(cuMemAllocPitch, cuMemAllocPitch_v2)
SAME_AS(cuMemFree, cuMemFree_v2)
SAME_AS(cuMemGetInfo, cuMemGetInfo_v2)
SAME_AS(cuMemAllocHost, cuMemAllocHost_v2)
SAME_AS(cuMemHostRegister, cuMemHostRegister_v2)
SAME_AS(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2)
SAME_AS(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2)
