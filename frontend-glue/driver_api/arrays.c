/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Arrays: a CUarray is a cudaArray_t. The driver has a format where the runtime has bits. */
#include "frontend-glue/preload/copies/copies.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/driver_api/driver.h"

size_t ibx_driver_element(const void *array, bool *known, int *rc)
{
    const size_t n = array ? ibx_frontend_array_element(array, known) : 0;
    *rc = n ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
    return n;
}

/* ------------------------------------------------------------------------------- calls */

/* CUDA_ARRAY_DESCRIPTOR */
struct planar {
    size_t width, height;
    unsigned format, channels;
};

static int create(void **array, const struct ibx_driver_array *d)
{
    struct ibx_cuda_channel channel;
    if (!array || !d || !d->width || !ibx_driver_channel(&channel, d->format, d->channels))
        return CUDA_INVALID_VALUE;
    const struct ibx_cuda_extent extent = {d->width, d->height, d->depth};
    const int rc = cudaMalloc3DArray(array, &channel, extent, d->flags);
    if (!rc)
        ibx_frontend_owned(OWNED_ARRAY, *array, ibx_driver_current());
    return rc;
}

static int create_planar(void **array, const struct planar *p)
{
    if (!p)
        return CUDA_INVALID_VALUE;
    const struct ibx_driver_array d = {p->width, p->height, 0, p->format, p->channels, 0};
    return create(array, &d);
}

static int describe(struct ibx_driver_array *d, void *array)
{
    struct ibx_cuda_channel channel;
    struct ibx_cuda_extent extent;
    struct ibx_driver_array is = {0};
    const int rc = d ? cudaArrayGetInfo(&channel, &extent, &is.flags, array) : CUDA_INVALID_VALUE;
    if (rc || !ibx_driver_format(&channel, &is.format, &is.channels))
        return rc ? rc : CUDA_NOT_SUPPORTED;
    is.width = extent.width;
    is.height = extent.height;
    is.depth = extent.depth;
    *d = is;
    return CUDA_SUCCESS;
}

static int describe_planar(struct planar *p, void *array)
{
    struct ibx_driver_array d;
    const int rc = p ? describe(&d, array) : CUDA_INVALID_VALUE;
    if (!rc)
        *p = (struct planar){d.width, d.height, d.format, d.channels};
    return rc;
}

EXPORTED int cuArrayCreate_v2(void **array, const struct planar *description)
{
    return IN_CONTEXT(create_planar(array, description));
}

EXPORTED int cuArray3DCreate_v2(void **array, const struct ibx_driver_array *description)
{
    return IN_CONTEXT(create(array, description));
}

EXPORTED int cuArrayGetDescriptor_v2(struct planar *description, void *array)
{
    return ANYWHERE(describe_planar(description, array));
}

EXPORTED int cuArray3DGetDescriptor_v2(struct ibx_driver_array *description, void *array)
{
    return ANYWHERE(describe(description, array));
}

EXPORTED int cuArrayDestroy(void *array)
{
    return ANYWHERE(array ? cudaFreeArray(array) : CUDA_INVALID_HANDLE);
}

static int create_levels(void **mipmap, const struct ibx_driver_array *d, unsigned levels)
{
    struct ibx_cuda_channel channel;
    if (!mipmap || !d || !ibx_driver_channel(&channel, d->format, d->channels))
        return CUDA_INVALID_VALUE;
    const struct ibx_cuda_extent extent = {d->width, d->height, d->depth};
    const int rc = cudaMallocMipmappedArray(mipmap, &channel, extent, levels, d->flags);
    if (!rc)
        ibx_frontend_owned(OWNED_MIPMAP, *mipmap, ibx_driver_current());
    return rc;
}

EXPORTED int cuMipmappedArrayCreate(void **mipmap, const struct ibx_driver_array *description,
                                    unsigned levels)
{
    return IN_CONTEXT(create_levels(mipmap, description, levels));
}

EXPORTED int cuMipmappedArrayGetLevel(void **array, void *mipmap, unsigned level)
{
    return IN_CONTEXT(cudaGetMipmappedArrayLevel(array, mipmap, level));
}

EXPORTED int cuMipmappedArrayDestroy(void *mipmap)
{
    return IN_CONTEXT(mipmap ? cudaFreeMipmappedArray(mipmap) : CUDA_INVALID_HANDLE);
}

SAME_AS(cuArrayCreate, cuArrayCreate_v2)
SAME_AS(cuArray3DCreate, cuArray3DCreate_v2)
SAME_AS(cuArrayGetDescriptor, cuArrayGetDescriptor_v2)
SAME_AS(cuArray3DGetDescriptor, cuArray3DGetDescriptor_v2)
