/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls that GVirtuS lacks or makes wrongly, and that are composed of other calls.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/copies/copies.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/preload/memory/host_pools.h"
#include "frontend-glue/preload/memory/managed.h"
#include "frontend-glue/preload/memory/memory.h"

#include <stdint.h>
#include <stdio.h>

/* cudaDeviceAttr */
#define PCI_BUS    33
#define PCI_DEVICE 34
#define PCI_DOMAIN 50

#define RECORD_EXTERNAL 1u /* cudaEventRecordExternal */

/* ------------------------------------------------------------------------- memory of planes */

int cudaMalloc3D(struct ibx_cuda_pitched *memory, struct ibx_cuda_extent extent)
{
    void *at = NULL;
    size_t pitch = 0, rows;
    if (!memory || __builtin_mul_overflow(extent.height, extent.depth, &rows))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    memory->at = NULL;
    const int rc = extent.width && rows ? cudaMallocPitch(&at, &pitch, extent.width, rows) : 0;
    if (!rc)
        *memory = (struct ibx_cuda_pitched){at, pitch, extent.width, extent.height};
    return rc;
}

int cudaMemset3DAsync(struct ibx_cuda_pitched memory, int value, struct ibx_cuda_extent extent,
                      void *stream)
{
    const size_t n = ibx_frontend_planes_extent(memory.pitch, memory.y, &extent);
    const size_t plane = memory.pitch * memory.y;
    if (!n)
        return CUDA_SUCCESS;
    if (!memory.at || extent.width > memory.pitch || extent.height > memory.y || n == SIZE_MAX ||
        ibx_frontend_is_short(memory.at, n))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (extent.height == memory.y) /* the planes are contiguous */
        return cudaMemset2DAsync(memory.at, memory.pitch, value, extent.width,
                                 extent.height * extent.depth, stream);
    int rc = CUDA_SUCCESS;
    for (size_t z = 0; z < extent.depth && !rc; z++)
        rc = cudaMemset2DAsync((void *)((uintptr_t)memory.at + z * plane), memory.pitch, value,
                               extent.width, extent.height, stream);
    return rc;
}

int cudaMemset3D(struct ibx_cuda_pitched memory, int value, struct ibx_cuda_extent extent)
{
    return ibx_frontend_was_set(cudaMemset3DAsync(memory, value, extent, NULL), memory.at, NULL);
}

/* Each client's thread minds only its own captures at the back end. */
int cudaDeviceSetLimit(int limit, size_t value)
{
    const int rc = ibx_frontend_unsafe_beside();
    return rc ? rc : CALL_NEXT(cudaDeviceSetLimit, limit, value);
}

/* ------------------------------------------------------------------ names before CUDA 4 */

/* G5's front end sends these, but its back end does not know them. */
int cudaThreadSynchronize(void)
{
    return cudaDeviceSynchronize();
}

int cudaThreadExit(void)
{
    return cudaDeviceReset();
}

/* ------------------------------------------------------------------------- several devices */

int cudaDeviceGetPCIBusId(char *id, int n, int device)
{
    int domain = 0, bus = 0, slot = 0, length = 0;
    if (!id || n <= 0)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    int rc = cudaDeviceGetAttribute(&domain, PCI_DOMAIN, device);
    if (!rc)
        rc = cudaDeviceGetAttribute(&bus, PCI_BUS, device);
    if (!rc)
        rc = cudaDeviceGetAttribute(&slot, PCI_DEVICE, device);
    if (!rc)
        length = snprintf(id, (size_t)n, "%04X:%02X:%02X.0", (unsigned)domain, (unsigned)bus,
                          (unsigned)slot);
    return length < n ? rc : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

/* -------------------------------------------------------------------------------- events */

int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags)
{
    struct extension_request e;
    int rc;
    if (flags & ~RECORD_EXTERNAL)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!flags)
        return cudaEventRecord(event, stream);
    ibx_frontend_request_begin(&e, IBX_EXT_RECORD, "cudaEventRecordWithFlags");
    ibx_put_u64(&e.body, (uintptr_t)event);
    ibx_put_u64(&e.body, (uintptr_t)stream);
    ibx_put_u32(&e.body, flags);
    return ibx_frontend_captured(&e, stream, &rc) ? rc : ibx_frontend_fail(CUDA_ILLEGAL_STATE);
}

/* ----------------------------------------------------------------- copies between devices */

/* The devices of a process share one address space, so the numbers of the two devices are only
 * checked. */
static int of_peers(const struct peer_planes *p, struct ibx_cuda_memcpy3d *copy)
{
    const int rc = p ? ibx_frontend_are_devices(p->from_device, p->to_device)
                     : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc)
        *copy = (struct ibx_cuda_memcpy3d){.from_array = p->from_array,
                                           .from_at = p->from_at,
                                           .from = p->from,
                                           .to_array = p->to_array,
                                           .to_at = p->to_at,
                                           .to = p->to,
                                           .extent = p->extent,
                                           .kind = CUDA_MEMCPY_ON_DEVICE};
    return rc;
}

static bool is_empty(const struct ibx_cuda_extent *extent)
{
    return !extent->width || !extent->height || !extent->depth;
}

/* Between pools of two devices, by memory that both devices reach. CUDA's own function of that name
 * needs none, but has no request here. */
static int by_memory(const struct peer_planes *p)
{
    struct peer_planes in = *p, out = *p;
    void *memory = NULL;
    size_t n = 0;
    if (__builtin_mul_overflow(p->extent.width, p->extent.height, &n) ||
        __builtin_mul_overflow(n, p->extent.depth, &n))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const int mode = ibx_frontend_relax();
    int rc = cudaMalloc(&memory, n);
    in.to = out.from =
        (struct ibx_cuda_pitched){memory, p->extent.width, p->extent.width, p->extent.height};
    in.to_at = out.from_at = (struct ibx_cuda_extent){0};
    rc = rc ? rc : cudaMemcpy3DPeer(&in);
    rc = rc ? rc : cudaMemcpy3DPeer(&out);
    const int freed = memory ? cudaFree(memory) : CUDA_SUCCESS; /* waits for the copies */
    ibx_frontend_relax_end(mode);
    return rc ? rc : freed;
}

int cudaMemcpy3DPeer(const struct peer_planes *parameters)
{
    struct ibx_cuda_memcpy3d copy;
    int back, rc = of_peers(parameters, &copy);
    if (rc)
        return rc;
    if (!is_empty(&copy.extent) && ibx_frontend_peers_apart(copy.to.at, copy.from.at))
        return by_memory(parameters);
    rc = ibx_frontend_peers_begin(copy.to.at, copy.from.at, NULL, &back);
    return ibx_frontend_peers_end(rc ? rc : cudaMemcpy3D(&copy), NULL, back);
}

int cudaMemcpy3DPeerAsync(const struct peer_planes *parameters, void *stream)
{
    struct ibx_cuda_memcpy3d copy;
    int back, rc = of_peers(parameters, &copy);
    const bool some = !rc && !is_empty(&copy.extent);
    if (some && ibx_frontend_captures(stream))
        return ibx_frontend_peers_captured(copy.to_array ? copy.from.at : copy.to.at,
                                           parameters->to_device,
                                           copy.from_array ? copy.to.at : copy.from.at,
                                           parameters->from_device, copy.extent.width, stream);
    if (rc)
        return rc;
    if (some && ibx_frontend_peers_apart(copy.to.at, copy.from.at))
        return (rc = ibx_frontend_wait_in_order(stream)) ? rc : by_memory(parameters);
    rc = ibx_frontend_peers_begin(copy.to.at, copy.from.at, stream, &back);
    return ibx_frontend_peers_end(rc ? rc : cudaMemcpy3DAsync(&copy, stream), stream, back);
}

/* ---------------------------------------------------------------- hints for several places */

/* Whether the ranges are there, as CUDA 13 asks for it: not in the legacy stream. */
static bool are_ranges(void *const *addresses, const size_t *n, size_t count,
                       unsigned long long flags, const void *stream)
{
    return addresses && n && count && !flags && (uintptr_t)stream > 1;
}

/* Each place is for the ranges from first[i] on. */
int cudaMemPrefetchBatchAsync(void *const *addresses, const size_t *n, size_t count,
                              const struct memory_location *to, const size_t *first,
                              size_t to_count, unsigned long long flags, void *stream)
{
    bool good = are_ranges(addresses, n, count, flags, stream) && to && first && to_count &&
                to_count <= count && !first[0];
    for (size_t i = 1; i < to_count && good; i++)
        good = first[i] > first[i - 1] && first[i] < count;
    int rc = good ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_INVALID_VALUE);
    for (size_t i = 0, at = 0; i < count && !rc; i++) {
        at += at + 1 < to_count && first[at + 1] == i;
        rc = cudaMemPrefetchAsync_v2(addresses[i], n[i], to[at], 0, stream);
    }
    return rc;
}

/* Discarding is optional: only the arguments are checked. */
int cudaMemDiscardBatchAsync(void *const *addresses, const size_t *n, size_t count,
                             unsigned long long flags, void *stream)
{
    int rc = are_ranges(addresses, n, count, flags, stream) ? CUDA_SUCCESS
                                                            : ibx_frontend_fail(CUDA_INVALID_VALUE);
    for (size_t i = 0; i < count && !rc; i++)
        rc = ibx_managed_check(addresses[i], n[i]);
    return rc;
}

int cudaMemDiscardAndPrefetchBatchAsync(void *const *addresses, const size_t *n, size_t count,
                                        const struct memory_location *to, const size_t *first,
                                        size_t to_count, unsigned long long flags, void *stream)
{
    return cudaMemPrefetchBatchAsync(addresses, n, count, to, first, to_count, flags, stream);
}

/* ------------------------------------------------------------------------ pools at a place */

#define PAGE_LOCKED 1 /* cudaMemAllocationTypePinned */

/* Only pools of page-locked memory and of a device's are supported. *host: the former. This host's
 * memory is in one place here, also if it has several NUMA nodes. */
static int check_place(const struct memory_location *location, int type, bool *host)
{
    *host = false;
    if (!location)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    *host = location->type == CUDA_AT_HOST ||
            (location->type == CUDA_AT_NODE && ibx_frontend_host_node(location->id));
    return (*host || location->type == CUDA_AT_DEVICE) && type == PAGE_LOCKED
               ? CUDA_SUCCESS
               : ibx_frontend_fail(CUDA_NOT_SUPPORTED);
}

int cudaMemGetDefaultMemPool(void **pool, const struct memory_location *location, int type)
{
    bool host;
    const int rc = check_place(location, type, &host);
    if (rc || !host)
        return rc ? rc : cudaDeviceGetDefaultMemPool(pool, location->id);
    if (!pool)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    *pool = ibx_host_pool_standard();
    return CUDA_SUCCESS;
}

int cudaMemGetMemPool(void **pool, const struct memory_location *location, int type)
{
    bool host;
    const int rc = check_place(location, type, &host);
    if (rc || !host)
        return rc ? rc : cudaDeviceGetMemPool(pool, location->id);
    if (!pool)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    *pool = ibx_host_pool_current();
    return CUDA_SUCCESS;
}

int cudaMemSetMemPool(const struct memory_location *location, int type, void *pool)
{
    bool host;
    const int rc = check_place(location, type, &host);
    if (rc || !host)
        return rc ? rc : cudaDeviceSetMemPool(location->id, pool);
    if (!ibx_host_pool_is(pool))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_host_pool_set_current(pool);
    return CUDA_SUCCESS;
}

/* -------------------------------------------------------------------------------- graphs */

#define UPLOADS 2u /* cudaGraphInstantiateFlagUpload */

int cudaGraphInstantiateWithParams(void **exec, void *graph, struct instantiate_parameters *p)
{
    if (!p)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    p->failed = NULL;
    int rc = cudaGraphInstantiateWithFlags(exec, graph, p->flags & ~(unsigned long long)UPLOADS);
    if (!rc && p->flags & UPLOADS)
        rc = cudaGraphUpload(*exec, p->stream);
    p->result = rc != CUDA_SUCCESS; /* cudaGraphInstantiateError */
    return rc;
}

static struct ibx_cuda_memcpy3d plain_copy(void *to, const void *from, size_t n, int kind)
{
    return (struct ibx_cuda_memcpy3d){.from = {(void *)(uintptr_t)from, n, n, 1},
                                      .to = {to, n, n, 1},
                                      .extent = {n, 1, 1},
                                      .kind = kind};
}

int cudaGraphMemcpyNodeSetParams1D(void *node, void *to, const void *from, size_t n, int kind)
{
    const struct ibx_cuda_memcpy3d copy = plain_copy(to, from, n, kind);
    return cudaGraphMemcpyNodeSetParams(node, &copy);
}

int cudaGraphExecMemcpyNodeSetParams1D(void *exec, void *node, void *to, const void *from, size_t n,
                                       int kind)
{
    const struct ibx_cuda_memcpy3d copy = plain_copy(to, from, n, kind);
    return cudaGraphExecMemcpyNodeSetParams(exec, node, &copy);
}

/* Whether the kind of a copy does not fit the symbol, which is the device's. */
static bool is_wrong_way(int kind, int right)
{
    return kind != right && kind != CUDA_MEMCPY_ON_DEVICE && kind != CUDA_MEMCPY_DEFAULT;
}

/* The address at which a copy of n bytes from or to a variable begins. */
static int place_in(const void *symbol, size_t n, size_t offset, int kind, int right, void **at)
{
    size_t size = 0;
    int rc = is_wrong_way(kind, right) ? ibx_frontend_fail(CUDA_INVALID_DIRECTION)
                                       : cudaGetSymbolSize(&size, symbol);
    if (!rc)
        rc = cudaGetSymbolAddress(at, symbol);
    if (!rc && (offset > size || n > size - offset))
        rc = ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc)
        *at = (void *)((uintptr_t)*at + offset);
    return rc;
}

int cudaGraphAddMemcpyNodeToSymbol(void **node, void *graph, void *const *behind, size_t count,
                                   const void *symbol, const void *from, size_t n, size_t offset,
                                   int kind)
{
    void *to = NULL;
    const int rc = place_in(symbol, n, offset, kind, CUDA_MEMCPY_TO_DEVICE, &to);
    return rc ? rc : cudaGraphAddMemcpyNode1D(node, graph, behind, count, to, from, n, kind);
}

int cudaGraphAddMemcpyNodeFromSymbol(void **node, void *graph, void *const *behind, size_t count,
                                     void *to, const void *symbol, size_t n, size_t offset,
                                     int kind)
{
    void *from = NULL;
    const int rc = place_in(symbol, n, offset, kind, CUDA_MEMCPY_FROM_DEVICE, &from);
    return rc ? rc : cudaGraphAddMemcpyNode1D(node, graph, behind, count, to, from, n, kind);
}

int cudaGraphMemcpyNodeSetParamsToSymbol(void *node, const void *symbol, const void *from, size_t n,
                                         size_t offset, int kind)
{
    void *to = NULL;
    const int rc = place_in(symbol, n, offset, kind, CUDA_MEMCPY_TO_DEVICE, &to);
    return rc ? rc : cudaGraphMemcpyNodeSetParams1D(node, to, from, n, kind);
}

int cudaGraphMemcpyNodeSetParamsFromSymbol(void *node, void *to, const void *symbol, size_t n,
                                           size_t offset, int kind)
{
    void *from = NULL;
    const int rc = place_in(symbol, n, offset, kind, CUDA_MEMCPY_FROM_DEVICE, &from);
    return rc ? rc : cudaGraphMemcpyNodeSetParams1D(node, to, from, n, kind);
}

int cudaGraphExecMemcpyNodeSetParamsToSymbol(void *exec, void *node, const void *symbol,
                                             const void *from, size_t n, size_t offset, int kind)
{
    void *to = NULL;
    const int rc = place_in(symbol, n, offset, kind, CUDA_MEMCPY_TO_DEVICE, &to);
    return rc ? rc : cudaGraphExecMemcpyNodeSetParams1D(exec, node, to, from, n, kind);
}

int cudaGraphExecMemcpyNodeSetParamsFromSymbol(void *exec, void *node, void *to, const void *symbol,
                                               size_t n, size_t offset, int kind)
{
    void *from = NULL;
    const int rc = place_in(symbol, n, offset, kind, CUDA_MEMCPY_FROM_DEVICE, &from);
    return rc ? rc : cudaGraphExecMemcpyNodeSetParams1D(exec, node, to, from, n, kind);
}
