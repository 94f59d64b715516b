/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies of one row. Each has up to four names: one that waits, one in a stream, and both for
 * programs with a default stream for each thread.
 */
#include "frontend-glue/driver_api/driver.h"
#include "frontend-glue/preload/copies/copies.h"
#include "frontend-glue/preload/streams/streams.h"

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* In the asynchronous name the suffix comes after "Async". */
#define COPY(name, suffix, to_type, from_type, to_at, from_at, kind)                               \
    EXPORTED int name##suffix(to_type to, from_type from, size_t n)                                \
    {                                                                                              \
        return IN_CONTEXT(cudaMemcpy(to_at, from_at, n, kind));                                    \
    }                                                                                              \
    EXPORTED int name##suffix##_ptds(to_type to, from_type from, size_t n)                         \
    {                                                                                              \
        return IN_CONTEXT(                                                                         \
            ibx_driver_in_own(cudaMemcpyAsync(to_at, from_at, n, kind, CUDA_STREAM_PER_THREAD)));  \
    }                                                                                              \
    EXPORTED int name##Async##suffix(to_type to, from_type from, size_t n, void *stream)           \
    {                                                                                              \
        return IN_CONTEXT_OF(stream, cudaMemcpyAsync(to_at, from_at, n, kind, stream));            \
    }                                                                                              \
    EXPORTED int name##Async##suffix##_ptsz(to_type to, from_type from, size_t n, void *stream)    \
    {                                                                                              \
        return name##Async##suffix(to, from, n, ibx_frontend_own(stream));                         \
    }

COPY(cuMemcpy, , uint64_t, uint64_t, at(to), at(from), CUDA_MEMCPY_DEFAULT)
COPY(cuMemcpyHtoD, _v2, uint64_t, const void *, at(to), from, CUDA_MEMCPY_TO_DEVICE)
COPY(cuMemcpyDtoH, _v2, void *, uint64_t, to, at(from), CUDA_MEMCPY_FROM_DEVICE)
COPY(cuMemcpyDtoD, _v2, uint64_t, uint64_t, at(to), at(from), CUDA_MEMCPY_ON_DEVICE)

SAME_AS(cuMemcpyHtoD, cuMemcpyHtoD_v2)
SAME_AS(cuMemcpyDtoH, cuMemcpyDtoH_v2)
SAME_AS(cuMemcpyDtoD, cuMemcpyDtoD_v2)
SAME_AS(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2)
SAME_AS(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2)
SAME_AS(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2)

/* ------------------------------------------------------------------------ between contexts */

/* An address belongs to one device, so CUDA accepts NULL for the contexts, and an asynchronous copy
 * need not name them. */
static int of_peers(void *to, const void *to_context, const void *from, const void *from_context,
                    size_t n, void *stream, bool waits)
{
    const int to_device = ibx_driver_device_of(to_context);
    const int from_device = ibx_driver_device_of(from_context);
    if (to_device < 0 || from_device < 0)
        return CUDA_INVALID_CONTEXT;
    if (waits)
        return cudaMemcpyPeer(to, to_device, from, from_device, n);
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, n, stream);
}

EXPORTED int cuMemcpyPeer(uint64_t to, void *to_context, uint64_t from, void *from_context,
                          size_t n)
{
    return IN_CONTEXT(of_peers(at(to), to_context, at(from), from_context, n, NULL, true));
}

EXPORTED int cuMemcpyPeerAsync(uint64_t to, void *to_context, uint64_t from, void *from_context,
                               size_t n, void *stream)
{
    return IN_CONTEXT_OF(stream,
                         of_peers(at(to), to_context, at(from), from_context, n, stream, false));
}

EXPORTED int cuMemcpyPeer_ptds(uint64_t to, void *to_context, uint64_t from, void *from_context,
                               size_t n)
{
    return IN_CONTEXT(ibx_driver_in_own(
        of_peers(at(to), to_context, at(from), from_context, n, CUDA_STREAM_PER_THREAD, false)));
}

EXPORTED int cuMemcpyPeerAsync_ptsz(uint64_t to, void *to_context, uint64_t from,
                                    void *from_context, size_t n, void *stream)
{
    return cuMemcpyPeerAsync(to, to_context, from, from_context, n, ibx_frontend_own(stream));
}

/* --------------------------------------------------------------------- several at once */

/* CUDA 12's versions, without _v2, tell which copy has failed. */
static int batch(const uint64_t *to, const uint64_t *from, const size_t *n, size_t count,
                 const struct copy_attributes *attributes, const size_t *first,
                 size_t attribute_count, size_t *failed, void *stream)
{
    const struct copy_batch all = {(void *const *)(const void *)to,
                                   (const void *const *)(const void *)from,
                                   n,
                                   count,
                                   attributes,
                                   first,
                                   attribute_count};
    return IN_CONTEXT_OF(stream, ibx_frontend_copy_batch(&all, failed, stream));
}

#define BATCH(suffix, stream_of)                                                                   \
    EXPORTED int cuMemcpyBatchAsync##suffix(                                                       \
        const uint64_t *to, const uint64_t *from, const size_t *n, size_t count,                   \
        const struct copy_attributes *attributes, const size_t *first, size_t attribute_count,     \
        size_t *failed, void *stream)                                                              \
    {                                                                                              \
        return batch(to, from, n, count, attributes, first, attribute_count, failed, stream_of);   \
    }                                                                                              \
    EXPORTED int cuMemcpyBatchAsync_v2##suffix(                                                    \
        const uint64_t *to, const uint64_t *from, const size_t *n, size_t count,                   \
        const struct copy_attributes *attributes, const size_t *first, size_t attribute_count,     \
        void *stream)                                                                              \
    {                                                                                              \
        return batch(to, from, n, count, attributes, first, attribute_count, NULL, stream_of);     \
    }                                                                                              \
    EXPORTED int cuMemcpy3DBatchAsync##suffix(size_t count, const struct planes_in_batch *list,    \
                                              size_t *failed, unsigned long long flags,            \
                                              void *stream)                                        \
    {                                                                                              \
        return IN_CONTEXT_OF(                                                                      \
            stream, ibx_frontend_copy_planes_batch(count, list, failed, flags, stream_of));        \
    }                                                                                              \
    EXPORTED int cuMemcpy3DBatchAsync_v2##suffix(size_t count, const struct planes_in_batch *list, \
                                                 unsigned long long flags, void *stream)           \
    {                                                                                              \
        return IN_CONTEXT_OF(stream,                                                               \
                             ibx_frontend_copy_planes_batch(count, list, NULL, flags, stream_of)); \
    }                                                                                              \
    EXPORTED int cuMemcpyWithAttributesAsync##suffix(                                              \
        uint64_t to, uint64_t from, size_t n, const struct copy_attributes *how, void *stream)     \
    {                                                                                              \
        return IN_CONTEXT_OF(stream,                                                               \
                             cudaMemcpyWithAttributesAsync(at(to), at(from), n, how, stream_of));  \
    }                                                                                              \
    EXPORTED int cuMemcpy3DWithAttributesAsync##suffix(const struct planes_in_batch *p,            \
                                                       unsigned long long flags, void *stream)     \
    {                                                                                              \
        return IN_CONTEXT_OF(stream, cudaMemcpy3DWithAttributesAsync(p, flags, stream_of));        \
    }

BATCH(, stream)
BATCH(_ptsz, ibx_frontend_own(stream))

/* -------------------------------------------------------------------------------- arrays */

/* Copies of bytes to or from the first row of an array. */
EXPORTED int cuMemcpyHtoA_v2(void *array, size_t x, const void *from, size_t n)
{
    return IN_CONTEXT(cudaMemcpyToArray(array, x, 0, from, n, CUDA_MEMCPY_TO_DEVICE));
}

EXPORTED int cuMemcpyHtoAAsync_v2(void *array, size_t x, const void *from, size_t n, void *stream)
{
    return IN_CONTEXT_OF(
        stream, cudaMemcpyToArrayAsync(array, x, 0, from, n, CUDA_MEMCPY_TO_DEVICE, stream));
}

EXPORTED int cuMemcpyAtoH_v2(void *to, void *array, size_t x, size_t n)
{
    return IN_CONTEXT(cudaMemcpyFromArray(to, array, x, 0, n, CUDA_MEMCPY_FROM_DEVICE));
}

EXPORTED int cuMemcpyAtoHAsync_v2(void *to, void *array, size_t x, size_t n, void *stream)
{
    return IN_CONTEXT_OF(
        stream, cudaMemcpyFromArrayAsync(to, array, x, 0, n, CUDA_MEMCPY_FROM_DEVICE, stream));
}

EXPORTED int cuMemcpyDtoA_v2(void *array, size_t x, uint64_t from, size_t n)
{
    return IN_CONTEXT(cudaMemcpyToArray(array, x, 0, at(from), n, CUDA_MEMCPY_ON_DEVICE));
}

EXPORTED int cuMemcpyAtoD_v2(uint64_t to, void *array, size_t x, size_t n)
{
    return IN_CONTEXT(cudaMemcpyFromArray(at(to), array, x, 0, n, CUDA_MEMCPY_ON_DEVICE));
}

EXPORTED int cuMemcpyAtoA_v2(void *to, size_t to_x, void *from, size_t from_x, size_t n)
{
    return IN_CONTEXT(
        cudaMemcpy2DArrayToArray(to, to_x, 0, from, from_x, 0, n, 1, CUDA_MEMCPY_ON_DEVICE));
}

SAME_AS(cuMemcpyHtoA, cuMemcpyHtoA_v2)
SAME_AS(cuMemcpyHtoAAsync, cuMemcpyHtoAAsync_v2)
SAME_AS(cuMemcpyAtoH, cuMemcpyAtoH_v2)
SAME_AS(cuMemcpyAtoHAsync, cuMemcpyAtoHAsync_v2)
SAME_AS(cuMemcpyDtoA, cuMemcpyDtoA_v2)
SAME_AS(cuMemcpyAtoD, cuMemcpyAtoD_v2)
SAME_AS(cuMemcpyAtoA, cuMemcpyAtoA_v2)
