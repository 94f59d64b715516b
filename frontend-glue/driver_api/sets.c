/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory that is set. The runtime can only set bytes. For elements of two or four different bytes a
 * request goes to the back end's driver. If the back end does not know this request, a short copy
 * fills the beginning, and copies within the device, each as long as all before it, fill the rest.
 */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/driver_api/driver.h"

#define SEED 1024u /* bytes of the first copy, which go in the request */

struct set {
    uint64_t at;
    size_t pitch;
    unsigned value, element; /* bytes of an element */
    size_t width, rows;      /* elements */
};

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static bool is_of_bytes(const struct set *s)
{
    const unsigned byte = s->value & 0xff;
    return s->element == 1 || s->value == (s->element == 2 ? byte * 0x101u : byte * 0x1010101u);
}

static struct ibx_cuda_memset as_runtime(const struct set *s)
{
    return (struct ibx_cuda_memset){at(s->at), s->pitch, s->value, s->element, s->width, s->rows};
}

/* Adds a node to the graph that is being captured. */
static int set_captured(const struct set *s, void *stream)
{
    const struct ibx_cuda_memset node = as_runtime(s);
    void *graph = NULL, *made = NULL, *const *behind = NULL;
    const void *edges = NULL;
    size_t count = 0;
    int status = 0;
    int rc = cudaStreamGetCaptureInfo_v3(stream, &status, NULL, &graph, &behind, &edges, &count);
    if (!rc)
        rc = cudaGraphAddMemsetNode(&made, graph, behind, count, &node);
    if (!rc)
        rc = cudaStreamUpdateCaptureDependencies_v2(stream, &made, NULL, 1, 1); /* 1: sets them */
    return rc;
}

static int set_row(const struct set *s, size_t n, void *stream)
{
    uint8_t seed[SEED];
    for (size_t i = 0; i < sizeof(seed); i += s->element)
        memcpy(seed + i, &s->value, s->element); /* of a little-endian host */
    size_t done = n < sizeof(seed) ? n : sizeof(seed);
    int rc = cudaMemcpyAsync(at(s->at), seed, done, CUDA_MEMCPY_TO_DEVICE, stream);
    while (done < n && !rc) {
        const size_t next = done < n - done ? done : n - done;
        rc = cudaMemcpyAsync(at(s->at + done), at(s->at), next, CUDA_MEMCPY_ON_DEVICE, stream);
        done += next;
    }
    return rc;
}

static int set_rows(const struct set *s, size_t n, void *stream)
{
    int rc = set_row(s, n, stream);
    for (size_t done = 1; done < s->rows && !rc;) {
        const size_t next = done < s->rows - done ? done : s->rows - done;
        rc = cudaMemcpy2DAsync(at(s->at + done * s->pitch), s->pitch, at(s->at), s->pitch, n, next,
                               CUDA_MEMCPY_ON_DEVICE, stream);
        done += next;
    }
    return rc;
}

static int set_now(struct set s, void *stream, bool waits)
{
    size_t n, all;
    if (__builtin_mul_overflow(s.width, s.element, &n) ||
        __builtin_mul_overflow(s.pitch, s.rows, &all) || s.at % s.element ||
        (s.rows > 1 && (s.pitch < n || s.pitch % s.element)))
        return CUDA_INVALID_VALUE;
    if (!n || !s.rows)
        return CUDA_SUCCESS;
    const size_t extent = ibx_frontend_extent(s.pitch, n, s.rows);
    if (ibx_frontend_is_short(at(s.at), extent))
        return CUDA_INVALID_VALUE;
    if (is_of_bytes(&s)) {
        const int byte = (int)(s.value & 0xff);
        if (s.rows > 1)
            return cudaMemset2DAsync(at(s.at), s.pitch, byte, n, s.rows, stream);
        return waits ? cudaMemset(at(s.at), byte, n) : cudaMemsetAsync(at(s.at), byte, n, stream);
    }
    if (stream && ibx_frontend_captures(stream))
        return set_captured(&s, stream);
    const struct ibx_cuda_memset whole = as_runtime(&s);
    int rc;
    return ibx_frontend_set_elements(&whole, stream, &rc) ? rc : set_rows(&s, n, stream);
}

static int set(struct set s, void *stream, bool waits)
{
    const int rc = set_now(s, stream, waits);
    return waits ? ibx_frontend_was_set(rc, at(s.at), NULL) : rc;
}

/* In the thread's own stream. */
static int set_in_own(struct set s)
{
    const int rc = set_now(s, CUDA_STREAM_PER_THREAD, false);
    return ibx_frontend_was_set(rc, at(s.at), CUDA_STREAM_PER_THREAD);
}

/* Each call with and without a stream, and both for programs with a default stream for each
 * thread. */
#define SET(suffix, type, bytes)                                                                   \
    EXPORTED int cuMemsetD##suffix##_v2(uint64_t address, type value, size_t count)                \
    {                                                                                              \
        return IN_CONTEXT(set((struct set){address, 0, value, bytes, count, 1}, NULL, true));      \
    }                                                                                              \
    EXPORTED int cuMemsetD##suffix##Async(uint64_t address, type value, size_t count,              \
                                          void *stream)                                            \
    {                                                                                              \
        return IN_CONTEXT_OF(                                                                      \
            stream, set((struct set){address, 0, value, bytes, count, 1}, stream, false));         \
    }                                                                                              \
    EXPORTED int cuMemsetD2D##suffix##_v2(uint64_t address, size_t pitch, type value,              \
                                          size_t width, size_t rows)                               \
    {                                                                                              \
        return IN_CONTEXT(                                                                         \
            set((struct set){address, pitch, value, bytes, width, rows}, NULL, true));             \
    }                                                                                              \
    EXPORTED int cuMemsetD2D##suffix##Async(uint64_t address, size_t pitch, type value,            \
                                            size_t width, size_t rows, void *stream)               \
    {                                                                                              \
        return IN_CONTEXT_OF(                                                                      \
            stream, set((struct set){address, pitch, value, bytes, width, rows}, stream, false));  \
    }                                                                                              \
    SAME_AS(cuMemsetD##suffix, cuMemsetD##suffix##_v2)                                             \
    SAME_AS(cuMemsetD2D##suffix, cuMemsetD2D##suffix##_v2)                                         \
    EXPORTED int cuMemsetD##suffix##_v2_ptds(uint64_t address, type value, size_t count)           \
    {                                                                                              \
        return IN_CONTEXT(set_in_own((struct set){address, 0, value, bytes, count, 1}));           \
    }                                                                                              \
    EXPORTED int cuMemsetD##suffix##Async_ptsz(uint64_t address, type value, size_t count,         \
                                               void *stream)                                       \
    {                                                                                              \
        return cuMemsetD##suffix##Async(address, value, count, ibx_frontend_own(stream));          \
    }                                                                                              \
    EXPORTED int cuMemsetD2D##suffix##_v2_ptds(uint64_t address, size_t pitch, type value,         \
                                               size_t width, size_t rows)                          \
    {                                                                                              \
        return IN_CONTEXT(set_in_own((struct set){address, pitch, value, bytes, width, rows}));    \
    }                                                                                              \
    EXPORTED int cuMemsetD2D##suffix##Async_ptsz(uint64_t address, size_t pitch, type value,       \
                                                 size_t width, size_t rows, void *stream)          \
    {                                                                                              \
        return cuMemsetD2D##suffix##Async(address, pitch, value, width, rows,                      \
                                          ibx_frontend_own(stream));                               \
    }

SET(8, uint8_t, 1)
SET(16, uint16_t, 2)
SET(32, uint32_t, 4)
