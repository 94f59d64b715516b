/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies whose handlers pass a struct of the client's on to CUDA: it may name memory of the back
 * end's own, by its type or by a kind of copy for which CUDA takes any address. And CUDA does not
 * look where rows and planes lie in the host's memory.
 */
#include "frontend-glue/gvirtus_handlers/request_shapes.h"

#include "common/wire.h"

#define TOO_LONG (UINT64_C(1) << 62)

static uint64_t get(const uint8_t *body, size_t at)
{
    struct ibx_reader r = ibx_reader_of(body + at, 8);
    return ibx_get_u64(&r);
}

static uint32_t get_u32(const uint8_t *body, size_t at)
{
    struct ibx_reader r = ibx_reader_of(body + at, 4);
    return ibx_get_u32(&r);
}

static void put(uint8_t *body, size_t at, uint64_t value)
{
    struct ibx_writer w = ibx_writer_of(body + at, 8);
    ibx_put_u64(&w, value);
}

static void put_u32(uint8_t *body, size_t at, uint32_t value)
{
    struct ibx_writer w = ibx_writer_of(body + at, 4);
    ibx_put_u32(&w, value);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The offset of byte x of a row in a plane; UINT64_MAX: it is too large for a number. */
static uint64_t offset(uint64_t x, uint64_t row, uint64_t plane, uint64_t pitch, uint64_t rows)
{
    uint64_t at;
    return __builtin_mul_overflow(plane, rows, &at) || __builtin_add_overflow(at, row, &at) ||
                   __builtin_mul_overflow(at, pitch, &at) || __builtin_add_overflow(at, x, &at)
               ? UINT64_MAX
               : at;
}

static uint64_t sum(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* ------------------------------------------------------------------------------ cuMemcpy2D */

/* A length, struct CUDA_MEMCPY2D, an i32 that says whether the source follows, its length, and the
 * bytes. */
enum {
    SOURCE_X = 8,
    SOURCE_Y = 16,
    SOURCE_TYPE = 24,
    SOURCE_PITCH = 56,
    TARGET_TYPE = 80,
    WIDTH = 120,
    HEIGHT = 128,
    FOLLOWS = 136,
    ROWS = 140,
    ROW_BYTES = 148
};
enum { NO_TYPE, HOST, DEVICE, ARRAY, UNIFIED };

/* Whether the rows that CUDA would read have come with the request. */
static bool rows_came(const uint8_t *body, size_t n)
{
    const uint64_t width = get(body, WIDTH), height = get(body, HEIGHT), x = get(body, SOURCE_X);
    if (n < ROW_BYTES || get_u32(body, FOLLOWS) != 1)
        return false;
    const uint64_t pitch = larger(get(body, SOURCE_PITCH), sum(x, width));
    const uint64_t rows = sum(get(body, SOURCE_Y), height), come = get(body, ROWS);
    return !width || !height ||
           (come <= n - ROW_BYTES && rows >= 1 &&
            offset(sum(x, width), rows - 1, 0, pitch, 0) <= come && rows < UINT64_MAX);
}

void ibx_copy_rows_sanitize(uint8_t *body, size_t n)
{
    if (n < 8)
        return;
    if (n < ROWS || get(body, 0) != FOLLOWS - SOURCE_X) {
        put(body, 0, TOO_LONG); /* the handler finds too few bytes */
        return;
    }
    /* By a unified address CUDA would find memory of the host, too. */
    const uint32_t target =
        get_u32(body, TARGET_TYPE) == UNIFIED ? DEVICE : get_u32(body, TARGET_TYPE);
    uint32_t source = get_u32(body, SOURCE_TYPE) == UNIFIED ? DEVICE : get_u32(body, SOURCE_TYPE);
    if ((source == HOST && !rows_came(body, n)) || target == HOST)
        source = NO_TYPE; /* CUDA refuses it */
    put_u32(body, SOURCE_TYPE, source);
    put_u32(body, TARGET_TYPE, target);
}

/* ---------------------------------------------------------------------------- cudaMemcpy3D */

/* A length, struct cudaMemcpy3DParms, the length of the source, which the handler puts in the place
 * of the struct's, and its bytes. */
enum {
    FROM_ARRAY = 8,
    FROM_X = 16,
    FROM = 40,
    TO_ARRAY = 72,
    TO_X = 80,
    TO = 104,
    EXTENT = 136,
    KIND = 160,
    PLANES = 168,
    PLANE_BYTES = 176
};
enum { TO_DEVICE = 1, ON_DEVICE = 3, ANY_KIND = 4, NO_KIND = 5 };

struct planes {
    uint64_t x, y, z;              /* where the copy begins */
    uint64_t pitch, rows;          /* of a plane */
    uint64_t width, height, depth; /* of the copy */
};

static struct planes planes_of(const uint8_t *body, size_t position, size_t pointer)
{
    return (struct planes){.x = get(body, position),
                           .y = get(body, position + 8),
                           .z = get(body, position + 16),
                           .pitch = get(body, pointer + 8),
                           .rows = get(body, pointer + 24),
                           .width = get(body, EXTENT),
                           .height = get(body, EXTENT + 8),
                           .depth = get(body, EXTENT + 16)};
}

/* The end of what is copied, if the last row has that many bytes; UINT64_MAX: there are too many.
 */
static uint64_t end(const struct planes *p, uint64_t row)
{
    if (!p->width || !p->height || !p->depth)
        return 0;
    const uint64_t last = sum(p->y, p->height) - 1, plane = sum(p->z, p->depth) - 1;
    return offset(row, last, plane, larger(p->pitch, row), larger(p->rows, sum(last, 1)));
}

/* Whether the planes that CUDA would read have come with the request. The width is in units of an
 * array, if there is one, of 16 bytes at most; and CUDA refuses rows beyond their pitch. */
static bool planes_came(const uint8_t *body, size_t n)
{
    const struct planes p = planes_of(body, FROM_X, FROM);
    const uint64_t come = get(body, PLANES);
    const uint64_t row = get(body, TO_ARRAY) ? p.pitch : sum(p.x, p.width);
    return come <= n - PLANE_BYTES && p.pitch && end(&p, row) <= come;
}

uint64_t ibx_copy_planes_bytes(const uint8_t *body, size_t n)
{
    if (n < PLANES)
        return 1;
    const struct planes p = planes_of(body, TO_X, TO);
    return larger(1, end(&p, get(body, FROM_ARRAY) ? p.pitch : sum(p.x, p.width)));
}

void ibx_copy_planes_sanitize(uint8_t *body, size_t n)
{
    if (n < PLANE_BYTES) /* the handler finds too few bytes */
        return;
    uint32_t kind = get_u32(body, KIND);
    if (kind == ANY_KIND)
        kind = get(body, PLANES) ? TO_DEVICE : ON_DEVICE;
    const bool good = kind == ON_DEVICE ? get(body, FROM_ARRAY) && !get(body, PLANES)
                                        : kind == TO_DEVICE && planes_came(body, n);
    put_u32(body, KIND, good ? kind : NO_KIND); /* which CUDA refuses */
}
