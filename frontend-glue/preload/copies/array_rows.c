/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies of bytes and of rows between memory and arrays of the device. arrays.c says how.
 */
#include "frontend-glue/preload/memory/device_objects.h"
#include "frontend-glue/preload/copies/copies.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

static bool is_host(const void *address, int kind, int host_kind)
{
    return (kind == host_kind && !ibx_frontend_is_managed(address)) ||
           (kind == CUDA_MEMCPY_DEFAULT && !ibx_frontend_is_device(address));
}

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
    struct ibx_frontend_bounce b;
    if (!n)
        return CUDA_SUCCESS;
    if (ibx_frontend_is_no_kind(kind))
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    if (!is_host(from, kind, CUDA_MEMCPY_TO_DEVICE))
        return device_to_array(array, x, y, from, n);
    if (bytes_are_beyond(array, x, y, n))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    int rc = ibx_frontend_bounce_begin(&b, n);
    if (!rc)
        rc = cudaMemcpy(b.memory, from, n, CUDA_MEMCPY_TO_DEVICE);
    if (!rc)
        rc = device_to_array(array, x, y, b.memory, n);
    return ibx_frontend_bounce_end(&b, rc);
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
    struct ibx_frontend_bounce b;
    if (!n)
        return CUDA_SUCCESS;
    if (ibx_frontend_is_no_kind(kind))
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    if (!is_host(to, kind, CUDA_MEMCPY_FROM_DEVICE))
        return array_to_device(to, array, x, y, n);
    int rc = ibx_frontend_bounce_begin(&b, n);
    if (!rc)
        rc = array_to_device(b.memory, array, x, y, n);
    if (!rc)
        rc = cudaMemcpy(to, b.memory, n, CUDA_MEMCPY_FROM_DEVICE);
    return ibx_frontend_bounce_end(&b, rc);
}

/* The same of rows; columns and width in bytes. */
static bool rows_are_beyond(const void *array, size_t x, size_t y, size_t width, size_t height)
{
    struct ibx_frontend_array is;
    if (!array || !ibx_frontend_array_known(array, &is))
        return false;
    const struct ibx_array_unit unit = ibx_array_unit_of(&is.channel);
    return !ibx_frontend_ends_within(x, width, is.extent.width, unit.texels, unit.bytes) ||
           !ibx_frontend_ends_within(y, height, is.extent.height, unit.texels, 1);
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

/* What CUDA refuses of rows between memory and an array, in this order. A single row need not have
 * a pitch. `other`: the kind that says that the memory is the host's. */
static int check_rows(const void *array, size_t pitch, size_t width, size_t height, int kind,
                      int other)
{
    if (height > 1 && width > pitch)
        return CUDA_INVALID_PITCH;
    if (kind != other && kind != CUDA_MEMCPY_ON_DEVICE && kind != CUDA_MEMCPY_DEFAULT)
        return CUDA_INVALID_DIRECTION;
    if (!array)
        return CUDA_INVALID_HANDLE;
    return pitch && width > pitch ? CUDA_INVALID_VALUE : CUDA_SUCCESS;
}

int cudaMemcpy2DToArray(void *array, size_t x, size_t y, const void *from, size_t pitch,
                        size_t width, size_t height, int kind)
{
    struct ibx_frontend_bounce b;
    size_t n;
    if (!width || !height)
        return CUDA_SUCCESS;
    int rc = check_rows(array, pitch, width, height, kind, CUDA_MEMCPY_TO_DEVICE);
    if (rc)
        return ibx_frontend_fail(rc);
    if (!is_host(from, kind, CUDA_MEMCPY_TO_DEVICE))
        return rows_to_array(array, x, y, from, pitch, width, height);
    if (!ibx_frontend_bytes_of(width, height, &n) || rows_are_beyond(array, x, y, width, height))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    rc = ibx_frontend_bounce_begin(&b, n);
    if (!rc)
        rc = cudaMemcpy2D(b.memory, width, from, pitch, width, height, CUDA_MEMCPY_TO_DEVICE);
    if (!rc)
        rc = rows_to_array(array, x, y, b.memory, width, width, height);
    return ibx_frontend_bounce_end(&b, rc);
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
    struct ibx_frontend_bounce b;
    size_t n;
    if (!width || !height)
        return CUDA_SUCCESS;
    int rc = check_rows(array, pitch, width, height, kind, CUDA_MEMCPY_FROM_DEVICE);
    if (rc)
        return ibx_frontend_fail(rc);
    if (!is_host(to, kind, CUDA_MEMCPY_FROM_DEVICE))
        return rows_from_array(to, pitch, array, x, y, width, height);
    if (!ibx_frontend_bytes_of(width, height, &n) || rows_are_beyond(array, x, y, width, height))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    rc = ibx_frontend_bounce_begin(&b, n);
    if (!rc)
        rc = rows_from_array(b.memory, width, array, x, y, width, height);
    if (!rc)
        rc = cudaMemcpy2D(to, pitch, b.memory, width, width, height, CUDA_MEMCPY_FROM_DEVICE);
    return ibx_frontend_bounce_end(&b, rc);
}

/* ------------------------------------------------------------------- the same behind a stream */

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
    const int rc = ibx_frontend_stream_wait(stream);
    return rc ? rc : ibx_frontend_copy_over(cudaMemcpyToArray(array, x, y, from, n, kind), stream);
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
    const int rc = ibx_frontend_stream_wait(stream);
    return rc ? rc : ibx_frontend_copy_over(cudaMemcpyFromArray(to, array, x, y, n, kind), stream);
}

int cudaMemcpy2DToArrayAsync(void *array, size_t x, size_t y, const void *from, size_t pitch,
                             size_t width, size_t height, int kind, void *stream)
{
    struct ibx_cuda_memcpy3d p = {.from = {(void *)(uintptr_t)from, pitch, width, height},
                                  .to_array = array,
                                  .to_at = {x, y, 0},
                                  .extent = {width, height, 1},
                                  .kind = kind};
    if (!width || !height)
        return CUDA_SUCCESS;
    int rc = check_rows(array, pitch, width, height, kind, CUDA_MEMCPY_TO_DEVICE);
    if (rc)
        return ibx_frontend_fail(rc);
    if (as_planes(&p))
        return cudaMemcpy3DAsync(&p, stream);
    rc = ibx_frontend_stream_wait(stream);
    return rc ? rc
              : ibx_frontend_copy_over(
                    cudaMemcpy2DToArray(array, x, y, from, pitch, width, height, kind), stream);
}

int cudaMemcpy2DFromArrayAsync(void *to, size_t pitch, const void *array, size_t x, size_t y,
                               size_t width, size_t height, int kind, void *stream)
{
    struct ibx_cuda_memcpy3d p = {.from_array = (void *)(uintptr_t)array,
                                  .from_at = {x, y, 0},
                                  .to = {to, pitch, width, height},
                                  .extent = {width, height, 1},
                                  .kind = kind};
    if (!width || !height)
        return CUDA_SUCCESS;
    int rc = check_rows(array, pitch, width, height, kind, CUDA_MEMCPY_FROM_DEVICE);
    if (rc)
        return ibx_frontend_fail(rc);
    if (as_planes(&p))
        return cudaMemcpy3DAsync(&p, stream);
    rc = ibx_frontend_stream_wait(stream);
    return rc ? rc
              : ibx_frontend_copy_over(
                    cudaMemcpy2DFromArray(to, pitch, array, x, y, width, height, kind), stream);
}
