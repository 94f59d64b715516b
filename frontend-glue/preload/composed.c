/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls that GVirtuS lacks, or fails at, and that consist of others.
 */
#include "frontend-glue/preload/internal.h"

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
    const int rc = extent.width && rows ? cudaMallocPitch(&at, &pitch, extent.width, rows) : 0;
    if (!rc)
        *memory = (struct ibx_cuda_pitched){at, pitch, extent.width, extent.height};
    return rc;
}

int cudaMemset3DAsync(struct ibx_cuda_pitched memory, int value, struct ibx_cuda_extent extent,
                      void *stream)
{
    size_t plane, last;
    if (!extent.width || !extent.height || !extent.depth)
        return CUDA_SUCCESS;
    if (!memory.at || extent.width > memory.pitch || extent.height > memory.y ||
        __builtin_mul_overflow(memory.pitch, memory.y, &plane) ||
        __builtin_mul_overflow(plane, extent.depth, &last))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (extent.height == memory.y) /* no rows between the planes stay as they are */
        return cudaMemset2DAsync(memory.at, memory.pitch, value, extent.width,
                                 extent.height * extent.depth, stream);
    int rc = CUDA_SUCCESS;
    for (size_t z = 0; z < extent.depth && !rc; z++)
        rc = cudaMemset2DAsync((char *)memory.at + z * plane, memory.pitch, value, extent.width,
                               extent.height, stream);
    return rc;
}

int cudaMemset3D(struct ibx_cuda_pitched memory, int value, struct ibx_cuda_extent extent)
{
    return cudaMemset3DAsync(memory, value, extent, NULL);
}

/* ------------------------------------------------------------------------- several devices */

int cudaDeviceGetPCIBusId(char *id, int n, int device)
{
    int domain = 0, bus = 0, slot = 0;
    if (!id || n <= 0)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    int rc = cudaDeviceGetAttribute(&domain, PCI_DOMAIN, device);
    if (!rc)
        rc = cudaDeviceGetAttribute(&bus, PCI_BUS, device);
    if (!rc)
        rc = cudaDeviceGetAttribute(&slot, PCI_DEVICE, device);
    if (!rc)
        snprintf(id, (size_t)n, "%04X:%02X:%02X.0", (unsigned)domain, (unsigned)bus,
                 (unsigned)slot);
    return rc;
}

/* -------------------------------------------------------------------------------- events */

int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags)
{
    if (flags & ~RECORD_EXTERNAL)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (flags && ibx_frontend_captures(stream)) /* a node of the graph's own */
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    return cudaEventRecord(event, stream);
}
