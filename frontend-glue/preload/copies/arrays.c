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
    int rc = ibx_frontend_request_ask(&e, &made);
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
    ibx_frontend_owned_gone(OWNED_ARRAY, array);
    struct ibx_frontend_array shape;
    struct extension_request e;
    if (!array)
        return CUDA_SUCCESS;
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

/* Frees the device memory. Returns `rc` or, if that is 0, the error of cudaFree, which waits for
 * the copies from and to the memory. */
static int bounce_end(void *memory, int rc)
{
    const int freed = memory ? cudaFree(memory) : CUDA_SUCCESS;
    return rc ? rc : freed;
}

static bool is_host(const void *address, int kind, int host_kind)
{
    return (kind == host_kind && !ibx_frontend_is_managed(address)) ||
           (kind == CUDA_MEMCPY_DEFAULT && !ibx_frontend_is_device(address));
}

/* ------------------------------------------------------------------ copies of bytes, of rows */

static int device_to_array(void *array, size_t x, size_t y, const void *from, size_t n)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_TO_ARRAY, "cudaMemcpyToArray");
    ibx_put_u64(&e.body, (uintptr_t)array);
    ibx_put_u64(&e.body, x);
    ibx_put_u64(&e.body, y);
    ibx_put_u64(&e.body, (uintptr_t)from);
    ibx_put_u64(&e.body, n);
    return ibx_frontend_request_make(&e, NULL, 0);
}

/* Whether bytes, which go on in the next row behind the end of one, go beyond an array that this
 * process has made. The back end would say so as well, but only after the host's bytes were read,
 * which a copy that is too long may not have. */
static bool bytes_are_beyond(const void *array, size_t x, size_t y, size_t n)
{
    struct ibx_frontend_array is;
    if (!array || !ibx_frontend_array_known(array, &is))
        return false;
    const struct ibx_array_unit unit = ibx_array_unit_of(&is.channel);
    const size_t row = ibx_array_units(&unit, is.extent.width) * unit.bytes;
    const size_t rows = ibx_array_units(&unit, is.extent.height ? is.extent.height : 1);
    return x > row || y >= rows || n > (rows - y) * row - x;
}

int cudaMemcpyToArray(void *array, size_t x, size_t y, const void *from, size_t n, int kind)
{
    void *memory = NULL; /* of the device */
    if (!n)
        return CUDA_SUCCESS;
    if (ibx_frontend_is_no_kind(kind))
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    if (!is_host(from, kind, CUDA_MEMCPY_TO_DEVICE))
        return device_to_array(array, x, y, from, n);
    if (bytes_are_beyond(array, x, y, n))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    int rc = cudaMalloc(&memory, n);
    if (!rc)
        rc = cudaMemcpy(memory, from, n, CUDA_MEMCPY_TO_DEVICE);
    if (!rc)
        rc = device_to_array(array, x, y, memory, n);
    return bounce_end(memory, rc);
}

static int array_to_device(void *to, const void *array, size_t x, size_t y, size_t n)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_FROM_ARRAY, "cudaMemcpyFromArray");
    ibx_put_u64(&e.body, (uintptr_t)to);
    ibx_put_u64(&e.body, (uintptr_t)array);
    ibx_put_u64(&e.body, x);
    ibx_put_u64(&e.body, y);
    ibx_put_u64(&e.body, n);
    return ibx_frontend_request_make(&e, NULL, 0);
}

int cudaMemcpyFromArray(void *to, const void *array, size_t x, size_t y, size_t n, int kind)
{
    void *memory = NULL; /* of the device */
    if (!n)
        return CUDA_SUCCESS;
    if (ibx_frontend_is_no_kind(kind))
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    if (!is_host(to, kind, CUDA_MEMCPY_FROM_DEVICE))
        return array_to_device(to, array, x, y, n);
    int rc = cudaMalloc(&memory, n);
    if (!rc)
        rc = array_to_device(memory, array, x, y, n);
    if (!rc)
        rc = cudaMemcpy(to, memory, n, CUDA_MEMCPY_FROM_DEVICE);
    return bounce_end(memory, rc);
}

/* `unit`: in which the rest counts, but for the length. A length of 0 is one. */
static bool ends_within(size_t at, size_t n, size_t length, size_t texels, size_t unit)
{
    const size_t all = ((length ? length : 1) + texels - 1) / texels * unit;
    return at <= all && n <= all - at;
}

/* The same of rows; columns and width in bytes. */
static bool rows_are_beyond(const void *array, size_t x, size_t y, size_t width, size_t height)
{
    struct ibx_frontend_array is;
    if (!array || !ibx_frontend_array_known(array, &is))
        return false;
    const struct ibx_array_unit unit = ibx_array_unit_of(&is.channel);
    return !ends_within(x, width, is.extent.width, unit.texels, unit.bytes) ||
           !ends_within(y, height, is.extent.height, unit.texels, 1);
}

static int rows_to_array(void *array, size_t x, size_t y, const void *from, size_t pitch,
                         size_t width, size_t height)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_2D_TO_ARRAY, "cudaMemcpy2DToArray");
    ibx_put_u64(&e.body, (uintptr_t)array);
    ibx_put_u64(&e.body, x);
    ibx_put_u64(&e.body, y);
    ibx_put_u64(&e.body, (uintptr_t)from);
    ibx_put_u64(&e.body, pitch);
    ibx_put_u64(&e.body, width);
    ibx_put_u64(&e.body, height);
    return ibx_frontend_request_make(&e, NULL, 0);
}

static bool bytes_of(size_t width, size_t height, size_t *n)
{
    return !__builtin_mul_overflow(width, height, n) && *n <= PTRDIFF_MAX;
}

int cudaMemcpy2DToArray(void *array, size_t x, size_t y, const void *from, size_t pitch,
                        size_t width, size_t height, int kind)
{
    void *memory = NULL; /* of the device */
    size_t n;
    if (!width || !height)
        return CUDA_SUCCESS;
    if (ibx_frontend_is_no_kind(kind))
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    if (!is_host(from, kind, CUDA_MEMCPY_TO_DEVICE))
        return rows_to_array(array, x, y, from, pitch, width, height);
    if (!bytes_of(width, height, &n) || rows_are_beyond(array, x, y, width, height))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    int rc = cudaMalloc(&memory, n);
    if (!rc)
        rc = cudaMemcpy2D(memory, width, from, pitch, width, height, CUDA_MEMCPY_TO_DEVICE);
    if (!rc)
        rc = rows_to_array(array, x, y, memory, width, width, height);
    return bounce_end(memory, rc);
}

static int rows_from_array(void *to, size_t pitch, const void *array, size_t x, size_t y,
                           size_t width, size_t height)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_2D_FROM_ARRAY, "cudaMemcpy2DFromArray");
    ibx_put_u64(&e.body, (uintptr_t)to);
    ibx_put_u64(&e.body, pitch);
    ibx_put_u64(&e.body, (uintptr_t)array);
    ibx_put_u64(&e.body, x);
    ibx_put_u64(&e.body, y);
    ibx_put_u64(&e.body, width);
    ibx_put_u64(&e.body, height);
    return ibx_frontend_request_make(&e, NULL, 0);
}

int cudaMemcpy2DFromArray(void *to, size_t pitch, const void *array, size_t x, size_t y,
                          size_t width, size_t height, int kind)
{
    void *memory = NULL; /* of the device */
    size_t n;
    if (!width || !height)
        return CUDA_SUCCESS;
    if (ibx_frontend_is_no_kind(kind))
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    if (!is_host(to, kind, CUDA_MEMCPY_FROM_DEVICE))
        return rows_from_array(to, pitch, array, x, y, width, height);
    if (!bytes_of(width, height, &n) || rows_are_beyond(array, x, y, width, height))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    int rc = cudaMalloc(&memory, n);
    if (!rc)
        rc = rows_from_array(memory, width, array, x, y, width, height);
    if (!rc)
        rc = cudaMemcpy2D(to, pitch, memory, width, width, height, CUDA_MEMCPY_FROM_DEVICE);
    return bounce_end(memory, rc);
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

/* Copies plane after plane between host memory and `packed`, device memory in rows without gaps.
 * `p`: in bytes. */
static int move_planes(const struct ibx_cuda_memcpy3d *p, void *packed, bool to_device)
{
    const size_t row = p->extent.width;
    int rc = CUDA_SUCCESS;
    for (size_t z = 0; z < p->extent.depth && !rc; z++) {
        void *plane = (void *)((uintptr_t)packed + z * row * p->extent.height);
        rc = to_device ? cudaMemcpy2D(plane, row, row_at(&p->from, &p->from_at, 0, z),
                                      p->from.pitch, row, p->extent.height, CUDA_MEMCPY_TO_DEVICE)
                       : cudaMemcpy2D(row_at(&p->to, &p->to_at, 0, z), p->to.pitch, plane, row, row,
                                      p->extent.height, CUDA_MEMCPY_FROM_DEVICE);
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

/* As ibx_frontend_before_host(), for all bytes from the first row to the last. */
static int before_planes(const struct ibx_cuda_pitched *memory, const struct ibx_cuda_extent *at,
                         const struct ibx_cuda_extent *extent, void *stream)
{
    const char *first = row_at(memory, at, 0, 0),
               *last = row_at(memory, at, extent->height - 1, extent->depth - 1);
    return ibx_frontend_before_host(first, (size_t)(last - first) + extent->width, stream);
}

static int planes_on_host(const struct ibx_cuda_memcpy3d *p, void *stream)
{
    int rc = before_planes(&p->from, &p->from_at, &p->extent, stream);
    if (rc || (rc = before_planes(&p->to, &p->to_at, &p->extent, stream)))
        return rc;
    for (size_t z = 0; z < p->extent.depth; z++)
        for (size_t y = 0; y < p->extent.height; y++)
            memcpy(row_at(&p->to, &p->to_at, y, z), row_at(&p->from, &p->from_at, y, z),
                   p->extent.width);
    return CUDA_SUCCESS;
}

/* `bytes`: the copy in bytes. */
static int planes_by_bounce(const struct ibx_cuda_memcpy3d *wish,
                            const struct ibx_cuda_memcpy3d *bytes, bool from_host)
{
    const size_t row = bytes->extent.width, rows = bytes->extent.height;
    struct ibx_cuda_memcpy3d p = *wish;
    void *memory = NULL; /* of the device */
    size_t n = 0;
    if (!row || !bytes_of(row, rows, &n) || !bytes_of(n, p.extent.depth, &n))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    int rc = cudaMalloc(&memory, n);
    const struct ibx_cuda_pitched packed = {memory, row, row, rows};
    if (from_host) {
        p.from = packed;
        p.from_at = (struct ibx_cuda_extent){0};
        rc = rc ? rc : move_planes(bytes, memory, true);
        rc = rc ? rc : planes_on_device(&p);
    } else {
        p.to = packed;
        p.to_at = (struct ibx_cuda_extent){0};
        rc = rc ? rc : planes_on_device(&p);
        rc = rc ? rc : move_planes(bytes, memory, false);
    }
    return bounce_end(memory, rc);
}

static bool is_copy(const struct ibx_cuda_memcpy3d *p)
{
    return p && !p->from_array != !p->from.at && !p->to_array != !p->to.at;
}

/* Checks that rows are within the pitch, and planes within their distance; `p`: in bytes. For a
 * single row CUDA needs no pitch; but for an array that is not `known` the pitch is all that limits
 * the row in this process's memory.
 */
static int within(const struct ibx_cuda_pitched *memory, const struct ibx_cuda_extent *at,
                  const struct ibx_cuda_memcpy3d *p, bool known)
{
    const size_t row = p->extent.width;
    const bool one = p->extent.height == 1 && p->extent.depth == 1;
    if (!memory->at || (one && !memory->pitch && (known || ibx_frontend_only_device(memory->at))))
        return CUDA_SUCCESS;
    if (row > memory->pitch)
        return one ? CUDA_INVALID_VALUE : CUDA_INVALID_PITCH;
    if (p->extent.depth > 1 && p->extent.height > memory->y)
        return CUDA_INVALID_PITCH;
    return at->width > memory->pitch - row ? CUDA_INVALID_VALUE : CUDA_SUCCESS;
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
    return !ends_within(at->width, n->width, is.extent.width, texels, texels) ||
           !ends_within(at->height, n->height, is.extent.height, texels, texels) ||
           !ends_within(at->depth, n->depth, is.extent.depth, 1, 1);
}

/* What CUDA refuses at once of a copy that is not empty. *bytes: the copy in bytes. */
static int check_copy(const struct ibx_cuda_memcpy3d *p, struct ibx_cuda_memcpy3d *bytes)
{
    bool known = true;
    if (!is_copy(p))
        return CUDA_INVALID_VALUE;
    if (ibx_frontend_is_no_kind(p->kind))
        return CUDA_INVALID_DIRECTION;
    if (goes_backwards(p))
        return CUDA_INVALID_VALUE;
    *bytes = p->from.at || p->to.at ? in_bytes(p, &known) : *p;
    int rc = within(&bytes->from, &bytes->from_at, bytes, known);
    if (!rc)
        rc = within(&bytes->to, &bytes->to_at, bytes, known);
    return !rc && (ibx_frontend_planes_are_short(bytes) ||
                   is_beyond(p->from_array, &p->from_at, &p->extent) ||
                   is_beyond(p->to_array, &p->to_at, &p->extent))
               ? CUDA_INVALID_VALUE
               : rc;
}

/* A copy that was checked. `bytes`: the same in bytes. */
static int copy_checked(const struct ibx_cuda_memcpy3d *p, const struct ibx_cuda_memcpy3d *bytes)
{
    struct ibx_cuda_memcpy3d is = *p;
    if (!ibx_frontend_copy_of_host(&is))
        return planes_on_device(p);
    return is.kind == CUDA_MEMCPY_ON_HOST
               ? planes_on_host(p, NULL)
               : planes_by_bounce(p, bytes, is.kind == CUDA_MEMCPY_TO_DEVICE);
}

int cudaMemcpy3D(const struct ibx_cuda_memcpy3d *p)
{
    struct ibx_cuda_memcpy3d bytes;
    if (p && is_empty(p))
        return CUDA_SUCCESS;
    const int rc = check_copy(p, &bytes);
    return rc ? ibx_frontend_fail(rc) : copy_checked(p, &bytes);
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

/* Ends an asynchronous call that was made in the legacy stream. A copy within the device is not
 * complete yet, and a stream that the legacy stream does not block would not wait for it. So this
 * does. */
static int over(int rc, const void *stream)
{
    return rc || !stream ? rc : cudaStreamSynchronize(NULL);
}

/* Rows between memory and an array, as a copy of planes; its columns and its width are in bytes.
 * False: the array's elements are not known here, or it has blocks of them, or parts of elements
 * are copied. */
static bool as_planes(struct ibx_cuda_memcpy3d *rows)
{
    bool known;
    const bool to_array = rows->to_array;
    const size_t n =
        ibx_frontend_array_element(to_array ? rows->to_array : rows->from_array, &known);
    struct ibx_cuda_extent *at = to_array ? &rows->to_at : &rows->from_at;
    if (!n || !known || at->width % n || rows->extent.width % n)
        return false;
    at->width /= n;
    rows->extent.width /= n;
    return true;
}

/* The same for bytes that are within one row of the array. */
static bool as_row(struct ibx_cuda_memcpy3d *row)
{
    const void *array = row->to_array ? row->to_array : row->from_array;
    const size_t x = row->to_array ? row->to_at.width : row->from_at.width;
    struct ibx_frontend_array is;
    if (!array || !ibx_frontend_array_known(array, &is))
        return false;
    const size_t n = is.extent.width * ibx_array_unit_of(&is.channel).bytes;
    return x <= n && row->extent.width <= n - x && as_planes(row);
}

int cudaMemcpyToArrayAsync(void *array, size_t x, size_t y, const void *from, size_t n, int kind,
                           void *stream)
{
    struct ibx_cuda_memcpy3d p = {.from = {(void *)(uintptr_t)from, n, n, 1},
                                  .to_array = array,
                                  .to_at = {x, y, 0},
                                  .extent = {n, 1, 1},
                                  .kind = kind};
    if (as_row(&p))
        return cudaMemcpy3DAsync(&p, stream);
    const int rc = cudaStreamSynchronize(stream);
    return rc ? rc : over(cudaMemcpyToArray(array, x, y, from, n, kind), stream);
}

int cudaMemcpyFromArrayAsync(void *to, const void *array, size_t x, size_t y, size_t n, int kind,
                             void *stream)
{
    struct ibx_cuda_memcpy3d p = {.from_array = (void *)(uintptr_t)array,
                                  .from_at = {x, y, 0},
                                  .to = {to, n, n, 1},
                                  .extent = {n, 1, 1},
                                  .kind = kind};
    if (as_row(&p))
        return cudaMemcpy3DAsync(&p, stream);
    const int rc = cudaStreamSynchronize(stream);
    return rc ? rc : over(cudaMemcpyFromArray(to, array, x, y, n, kind), stream);
}

int cudaMemcpy2DToArrayAsync(void *array, size_t x, size_t y, const void *from, size_t pitch,
                             size_t width, size_t height, int kind, void *stream)
{
    struct ibx_cuda_memcpy3d p = {.from = {(void *)(uintptr_t)from, pitch, width, height},
                                  .to_array = array,
                                  .to_at = {x, y, 0},
                                  .extent = {width, height, 1},
                                  .kind = kind};
    if (array && as_planes(&p))
        return cudaMemcpy3DAsync(&p, stream);
    const int rc = cudaStreamSynchronize(stream);
    return rc ? rc
              : over(cudaMemcpy2DToArray(array, x, y, from, pitch, width, height, kind), stream);
}

int cudaMemcpy2DFromArrayAsync(void *to, size_t pitch, const void *array, size_t x, size_t y,
                               size_t width, size_t height, int kind, void *stream)
{
    struct ibx_cuda_memcpy3d p = {.from_array = (void *)(uintptr_t)array,
                                  .from_at = {x, y, 0},
                                  .to = {to, pitch, width, height},
                                  .extent = {width, height, 1},
                                  .kind = kind};
    if (array && as_planes(&p))
        return cudaMemcpy3DAsync(&p, stream);
    const int rc = cudaStreamSynchronize(stream);
    return rc ? rc
              : over(cudaMemcpy2DFromArray(to, pitch, array, x, y, width, height, kind), stream);
}

/* A copy from or to host memory is complete when the call returns. */
int cudaMemcpy3DAsync(const struct ibx_cuda_memcpy3d *p, void *stream)
{
    struct ibx_cuda_memcpy3d bytes;
    if (p && is_empty(p))
        return CUDA_SUCCESS;
    int rc = check_copy(p, &bytes);
    if (rc)
        return ibx_frontend_fail(rc);
    struct ibx_cuda_memcpy3d is = *p;
    const bool of_host = ibx_frontend_copy_of_host(&is);
    if (of_host && ibx_frontend_captures(stream))
        return ibx_frontend_capture_copy(&is, stream);
    if (!of_host && ibx_frontend_planes_in_stream(p, ibx_frontend_copy_of_unknown(p), stream, &rc))
        return rc;
    if (of_host && is.kind == CUDA_MEMCPY_ON_HOST)
        return planes_on_host(p, stream);
    rc = cudaStreamSynchronize(stream);
    return rc ? rc : over(copy_checked(p, &bytes), stream);
}
