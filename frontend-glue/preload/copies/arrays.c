/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Arrays of the device, as extension requests: GVirtuS lacks most of these calls, and its
 * handlers of the others cannot handle arrays with several planes. Bytes of the host get to an
 * array through device memory, in rows without gaps, so that they take the path of all copies. The
 * asynchronous calls run after all that is in their stream, and are complete when they return.
 */
#include "frontend-glue/preload/memory/device_objects.h"
#include "frontend-glue/preload/copies/copies.h"
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <stdlib.h>

/* ----------------------------------------------------------------- how large elements are */

bool ibx_frontend_array_unit(const void *array, struct ibx_array_unit *unit, bool *known)
{
    struct ibx_frontend_array shape;
    *known = ibx_frontend_array_known(array, &shape);
    if (!*known && cudaGetChannelDesc(&shape.channel, array))
        return false;
    *unit = ibx_array_unit_of(&shape.channel);
    return unit->bytes;
}

size_t ibx_frontend_array_element(const void *array, bool *known)
{
    struct ibx_array_unit unit;
    return ibx_frontend_array_unit(array, &unit, known) && unit.texels == 1 ? unit.bytes : 0;
}

/* --------------------------------------------------------------------------------- arrays */

int cudaMalloc3DArray(void **array, const struct ibx_cuda_channel *channel,
                      struct ibx_cuda_extent extent, unsigned flags)
{
    struct extension_request e;
    uint64_t made = 0;
    if (!array || !channel)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_frontend_request_begin(&e, IBX_EXT_MALLOC_ARRAY, "cudaMalloc3DArray");
    ibx_layout_put(&e.body, IBX_LAYOUT_CHANNEL, channel);
    ibx_layout_put(&e.body, IBX_LAYOUT_EXTENT, &extent);
    ibx_put_u32(&e.body, flags);
    ibx_frontend_device_used();
    *array = NULL;
    int rc = ibx_frontend_unsafe_beside();
    rc = rc ? rc : ibx_frontend_request_ask(&e, &made);
    if (!rc) {
        *array = (void *)(uintptr_t)made;
        ibx_frontend_array_made(
            &(struct ibx_frontend_array){.array = *array,
                                         .channel = *channel,
                                         .extent = extent,
                                         .flags = flags,
                                         .device = ibx_frontend_current_device()});
    }
    return rc;
}

int cudaMallocArray(void **array, const struct ibx_cuda_channel *channel, size_t width,
                    size_t height, unsigned flags)
{
    return cudaMalloc3DArray(array, channel, (struct ibx_cuda_extent){width, height, 0}, flags);
}

int cudaFreeArray(void *array)
{
    struct ibx_frontend_array shape;
    struct extension_request e;
    const int unsafe = array ? ibx_frontend_unsafe_beside() : CUDA_SUCCESS;
    if (!array || unsafe)
        return unsafe;
    ibx_frontend_owned_gone(OWNED_ARRAY, array);
    ibx_frontend_request_begin(&e, IBX_EXT_FREE_ARRAY, "cudaFreeArray");
    ibx_put_u64(&e.body, (uintptr_t)array);
    const bool known = ibx_frontend_array_known(array, &shape);
    ibx_frontend_array_gone(
        array); /* before the call: another thread may get the same handle right after it */
    ibx_frontend_before_free();
    const int rc = ibx_frontend_freed(ibx_frontend_request_make(&e, NULL, 0));
    if (rc == CUDA_CAPTURE_UNSUPPORTED && known)
        ibx_frontend_array_made(&shape); /* it is still there */
    return rc;
}

/* Each output may be NULL. */
int cudaArrayGetInfo(struct ibx_cuda_channel *channel, struct ibx_cuda_extent *extent,
                     unsigned *flags, void *array)
{
    struct ibx_frontend_array shape;
    if (!ibx_frontend_array_known(array, &shape)) {
        const int rc = cudaGetChannelDesc(&shape.channel, array);
        return rc ? rc : ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    }
    if (channel)
        *channel = shape.channel;
    if (extent)
        *extent = shape.extent;
    if (flags)
        *flags = shape.flags;
    return CUDA_SUCCESS;
}

int cudaGetChannelDesc(struct ibx_cuda_channel *channel, const void *array)
{
    struct extension_request e;
    uint8_t bytes[20];
    if (!channel || !array)
        return ibx_frontend_fail(channel ? CUDA_INVALID_HANDLE : CUDA_INVALID_VALUE);
    ibx_frontend_request_begin(&e, IBX_EXT_CHANNEL_DESC, "cudaGetChannelDesc");
    ibx_put_u64(&e.body, (uintptr_t)array);
    int rc = ibx_frontend_request_make(&e, bytes, sizeof(bytes));
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    if (!rc)
        ibx_layout_get(&r, IBX_LAYOUT_CHANNEL, channel);
    return rc;
}

/* --------------------------------------------------- bytes of the host, on the device for a while
 */

int ibx_frontend_bounce_begin(struct ibx_frontend_bounce *b, size_t n)
{
    *b = (struct ibx_frontend_bounce){.mode = ibx_frontend_relax()};
    return cudaMalloc(&b->memory, n);
}

int ibx_frontend_bounce_end(const struct ibx_frontend_bounce *b, int rc)
{
    const int freed = b->memory ? cudaFree(b->memory) : CUDA_SUCCESS;
    ibx_frontend_relax_end(b->mode);
    return rc ? rc : freed;
}

bool ibx_frontend_ends_within(size_t at, size_t n, size_t length, size_t texels, size_t unit)
{
    const size_t all = ((length ? length : 1) + texels - 1) / texels * unit;
    return at <= all && n <= all - at;
}

/* ------------------------------------------------------------------------ copies of planes */

/* The same copy with its memory's columns and its width in bytes, and its height in rows of memory.
 * An array's units are not taken from the back end if they are known here. The width is 0 if the
 * units are unknown. *known: as for ibx_frontend_array_element(). */
static struct ibx_cuda_memcpy3d in_bytes(const struct ibx_cuda_memcpy3d *p, bool *known)
{
    const void *array = p->to_array ? p->to_array : p->from_array;
    struct ibx_cuda_memcpy3d b = *p;
    struct ibx_array_unit unit;
    *known = !array;
    if (!array)
        return b;
    if (ibx_frontend_array_unit(array, &unit, known))
        return ibx_frontend_planes_in_bytes(p, &unit);
    b.extent.width = 0;
    return b;
}

static char *row_at(const struct ibx_cuda_pitched *memory, const struct ibx_cuda_extent *at,
                    size_t y, size_t z)
{
    return (char *)memory->at + (at->depth + z) * memory->pitch * memory->y +
           (at->height + y) * memory->pitch + at->width;
}

/* How a copy with host memory is made: in the legacy stream or, beside captures, in this one, which
 * has no work. The legacy stream's work would invalidate captures of streams that wait for it. */
struct way {
    bool beside;
    void *stream;
};

static int move_plane(const struct ibx_cuda_pitched *to, const struct ibx_cuda_pitched *from,
                      const struct ibx_cuda_memcpy3d *p, int kind, const struct way *way)
{
    return way->beside ? cudaMemcpy2DAsync(to->at, to->pitch, from->at, from->pitch,
                                           p->extent.width, p->extent.height, kind, way->stream)
                       : cudaMemcpy2D(to->at, to->pitch, from->at, from->pitch, p->extent.width,
                                      p->extent.height, kind);
}

/* Copies plane after plane between host memory and `packed`, device memory in rows without gaps.
 * `p`: in bytes. */
static int move_planes(const struct ibx_cuda_memcpy3d *p, void *packed, bool to_device,
                       const struct way *way)
{
    const size_t row = p->extent.width;
    int rc = CUDA_SUCCESS;
    for (size_t z = 0; z < p->extent.depth && !rc; z++) {
        void *plane = (void *)((uintptr_t)packed + z * row * p->extent.height);
        const struct ibx_cuda_pitched device = {plane, row, row, p->extent.height};
        struct ibx_cuda_pitched host = to_device ? p->from : p->to;
        host.at = to_device ? row_at(&p->from, &p->from_at, 0, z) : row_at(&p->to, &p->to_at, 0, z);
        rc = to_device ? move_plane(&device, &host, p, CUDA_MEMCPY_TO_DEVICE, way)
                       : move_plane(&host, &device, p, CUDA_MEMCPY_FROM_DEVICE, way);
    }
    return rc;
}

static int planes_on_device(const struct ibx_cuda_memcpy3d *wish)
{
    struct ibx_cuda_memcpy3d p = *wish;
    struct extension_request e;
    p.kind = CUDA_MEMCPY_ON_DEVICE;
    ibx_frontend_request_begin(&e, IBX_EXT_MEMCPY_3D, "cudaMemcpy3D");
    ibx_layout_put(&e.body, IBX_LAYOUT_MEMCPY3D, &p);
    return ibx_frontend_request_make(&e, NULL, 0);
}

static int planes_by(const struct way *way, const struct ibx_cuda_memcpy3d *p)
{
    int rc;
    if (!way->beside || !ibx_frontend_planes_in_stream(p, true, way->stream, &rc))
        return planes_on_device(p);
    return rc ? rc : ibx_frontend_stream_wait(way->stream);
}

static int planes_on_host(const struct ibx_cuda_memcpy3d *p)
{
    for (size_t z = 0; z < p->extent.depth; z++)
        for (size_t y = 0; y < p->extent.height; y++)
            memcpy(row_at(&p->to, &p->to_at, y, z), row_at(&p->from, &p->from_at, y, z),
                   p->extent.width);
    return CUDA_SUCCESS;
}

/* `bytes`: the copy in bytes. */
static int planes_by_bounce(const struct ibx_cuda_memcpy3d *wish,
                            const struct ibx_cuda_memcpy3d *bytes, bool from_host,
                            const struct way *way)
{
    const size_t row = bytes->extent.width, rows = bytes->extent.height;
    struct ibx_cuda_memcpy3d p = *wish;
    struct ibx_frontend_bounce b;
    size_t n = 0;
    if (!row || !ibx_frontend_bytes_of(row, rows, &n) ||
        !ibx_frontend_bytes_of(n, p.extent.depth, &n))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    int rc = ibx_frontend_bounce_begin(&b, n);
    const struct ibx_cuda_pitched packed = {b.memory, row, row, rows};
    if (from_host) {
        p.from = packed;
        p.from_at = (struct ibx_cuda_extent){0};
        rc = rc ? rc : move_planes(bytes, b.memory, true, way);
        rc = rc ? rc : planes_by(way, &p);
    } else {
        p.to = packed;
        p.to_at = (struct ibx_cuda_extent){0};
        rc = rc ? rc : planes_by(way, &p);
        rc = rc ? rc : move_planes(bytes, b.memory, false, way);
    }
    return ibx_frontend_bounce_end(&b, rc);
}

static bool is_empty(const struct ibx_cuda_memcpy3d *p)
{
    return !p->extent.width || !p->extent.height || !p->extent.depth;
}

/* Whether the kind of the copy is the wrong way round: device memory is on the side that it calls
 * the host, and host memory on the other. Page-locked memory CUDA knows by its address. */
static bool goes_backwards(const struct ibx_cuda_memcpy3d *p)
{
    const bool to_device = p->kind == CUDA_MEMCPY_TO_DEVICE;
    const void *host = to_device ? p->from.at : p->to.at,
               *device = to_device ? p->to.at : p->from.at;
    int of;
    unsigned flags;
    if ((!to_device && p->kind != CUDA_MEMCPY_FROM_DEVICE) || p->from_array || p->to_array)
        return false;
    return ibx_frontend_only_device(host) && !ibx_frontend_only_device(device) &&
           !ibx_frontend_is_managed(device) && !ibx_frontend_host_known(device, &of, &flags);
}

/* Whether the copy goes beyond the array. */
static bool is_beyond(const void *array, const struct ibx_cuda_extent *at,
                      const struct ibx_cuda_extent *n)
{
    struct ibx_frontend_array is;
    if (!array || !ibx_frontend_array_known(array, &is))
        return false;
    const size_t texels = ibx_array_unit_of(&is.channel).texels;
    return !ibx_frontend_ends_within(at->width, n->width, is.extent.width, texels, texels) ||
           !ibx_frontend_ends_within(at->height, n->height, is.extent.height, texels, texels) ||
           !ibx_frontend_ends_within(at->depth, n->depth, is.extent.depth, 1, 1);
}

/* What CUDA refuses at once of a copy that is not empty. *bytes: the copy in bytes. */
static int check_copy(const struct ibx_cuda_memcpy3d *p, struct ibx_cuda_memcpy3d *bytes)
{
    bool known = true;
    if (!ibx_cuda_has_two_sides(p))
        return CUDA_INVALID_VALUE;
    if (ibx_frontend_is_no_kind(p->kind))
        return CUDA_INVALID_DIRECTION;
    if (goes_backwards(p))
        return CUDA_INVALID_VALUE;
    *bytes = p->from.at || p->to.at ? in_bytes(p, &known) : *p;
    int rc = ibx_frontend_side_within(&bytes->from, &bytes->from_at, bytes, known);
    if (!rc)
        rc = ibx_frontend_side_within(&bytes->to, &bytes->to_at, bytes, known);
    return !rc && (ibx_frontend_planes_are_short(bytes) ||
                   is_beyond(p->from_array, &p->from_at, &p->extent) ||
                   is_beyond(p->to_array, &p->to_at, &p->extent))
               ? CUDA_INVALID_VALUE
               : rc;
}

/* A copy that was checked. `bytes`: the same in bytes. */
static int copy_checked(const struct ibx_cuda_memcpy3d *p, const struct ibx_cuda_memcpy3d *bytes,
                        const struct way *way)
{
    struct ibx_cuda_memcpy3d is = *p;
    const bool of_host = ibx_frontend_copy_of_host(&is);
    const int rc = ibx_frontend_before_on_host(&is, way->beside ? way->stream : NULL);
    if (rc || !of_host)
        return rc ? rc : planes_on_device(p);
    return is.kind == CUDA_MEMCPY_ON_HOST
               ? planes_on_host(p)
               : planes_by_bounce(p, bytes, is.kind == CUDA_MEMCPY_TO_DEVICE, way);
}

int cudaMemcpy3D(const struct ibx_cuda_memcpy3d *p)
{
    struct ibx_cuda_memcpy3d bytes;
    if (p && is_empty(p))
        return CUDA_SUCCESS;
    const int rc = check_copy(p, &bytes);
    return rc ? ibx_frontend_fail(rc) : copy_checked(p, &bytes, &(struct way){.beside = false});
}

/* The call's columns and width are in bytes, those of cudaMemcpy3D in elements. */
int cudaMemcpy2DArrayToArray(void *to, size_t to_x, size_t to_y, const void *from, size_t from_x,
                             size_t from_y, size_t width, size_t height, int kind)
{
    bool known;
    const size_t n = ibx_frontend_array_element(from, &known);
    if (kind != CUDA_MEMCPY_ON_DEVICE && kind != CUDA_MEMCPY_DEFAULT)
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    if (!n || n != ibx_frontend_array_element(to, &known) || to_x % n || from_x % n || width % n)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const struct ibx_cuda_memcpy3d p = {.from_array = (void *)(uintptr_t)from,
                                        .from_at = {from_x / n, from_y, 0},
                                        .to_array = to,
                                        .to_at = {to_x / n, to_y, 0},
                                        .extent = {width / n, height, 1},
                                        .kind = CUDA_MEMCPY_ON_DEVICE};
    return cudaMemcpy3D(&p);
}

/* ------------------------------------------------------------------- the same behind a stream */

int ibx_frontend_copy_over(int rc, const void *stream)
{
    return rc || !stream ? rc : ibx_frontend_stream_wait(NULL);
}

/* A copy from or to host memory is complete when the call returns. */
int cudaMemcpy3DAsync(const struct ibx_cuda_memcpy3d *p, void *stream)
{
    struct ibx_cuda_memcpy3d bytes;
    if (p && is_empty(p)) /* no error in a capture, but in one that is invalid */
        return ibx_frontend_capture_is_invalid(stream) ? ibx_frontend_fail(CUDA_CAPTURE_INVALIDATED)
                                                       : CUDA_SUCCESS;
    int rc = check_copy(p, &bytes);
    if (rc)
        return ibx_frontend_fail(rc);
    struct ibx_cuda_memcpy3d is = *p;
    const bool of_host = ibx_frontend_copy_of_host(&is);
    if ((of_host || ibx_frontend_copy_is_on_host(&is)) && ibx_frontend_captures(stream))
        return ibx_frontend_capture_copy(&is, stream);
    if ((rc = ibx_frontend_before_on_host(&is, stream)))
        return rc;
    if (!of_host && ibx_frontend_planes_in_stream(p, ibx_frontend_copy_of_unknown(p), stream, &rc))
        return rc;
    const struct way way = {.beside = of_host && ibx_frontend_capturing(), .stream = stream};
    if (of_host && is.kind == CUDA_MEMCPY_ON_HOST)
        return planes_on_host(p);
    rc = ibx_frontend_stream_wait(stream);
    rc = rc ? rc : copy_checked(p, &bytes, &way);
    return way.beside ? rc : ibx_frontend_copy_over(rc, stream);
}
