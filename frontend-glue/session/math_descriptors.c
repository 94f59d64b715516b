/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/session/math_descriptors.h"

#include "common/wire.h"
#include "frontend-glue/session/math_calls.h"

#include <string.h>

#define PLAIN   IBX_ATTRIBUTE_PLAIN
#define MADE_OF IBX_ATTRIBUTE_MADE_OF
#define DEVICE  IBX_ATTRIBUTE_DEVICE
#define REFUSED IBX_ATTRIBUTE_REFUSED

/* By cublasLt.h, which says what is usual. */
static const struct ibx_attribute of_layout[] = {
    {IBX_LAYOUT_TYPE, 4, MADE_OF, 0},
    {1, 4, PLAIN, 0}, /* order */
    {IBX_LAYOUT_ROWS, 8, MADE_OF, 0},
    {IBX_LAYOUT_COLUMNS, 8, MADE_OF, 0},
    {IBX_LAYOUT_PITCH, 8, MADE_OF, 0},
    {5, 4, PLAIN, 1}, /* batch count */
    {6, 8, PLAIN, 0}, /* strided batch offset */
    {7, 8, PLAIN, 0}, /* plane offset */
    {8, 4, PLAIN, 0}, /* batch mode */
};
static const struct ibx_attribute of_matmul[] = {
    {IBX_MATMUL_COMPUTE_TYPE, 4, MADE_OF, 0},
    {IBX_MATMUL_SCALE_TYPE, 4, MADE_OF, 0},
    {IBX_MATMUL_POINTER_MODE, 4, PLAIN, 0},
    {3, 4, PLAIN, 0}, /* transpositions of A, B and C */
    {4, 4, PLAIN, 0},
    {5, 4, PLAIN, 0},
    {6, 4, PLAIN, 2},  /* fill mode */
    {7, 4, PLAIN, 1},  /* epilogue */
    {8, 8, DEVICE, 0}, /* bias */
    {10, 8, PLAIN, 0},
    {11, 8, DEVICE, 0}, /* the epilogue's auxiliary matrix */
    {12, 8, PLAIN, 0},
    {13, 8, PLAIN, 0},
    {14, 8, PLAIN, 0},
    {15, 4, PLAIN, 0},  /* multiprocessors */
    {17, 8, DEVICE, 0}, /* scales of A, B, C and D */
    {18, 8, DEVICE, 0},
    {19, 8, DEVICE, 0},
    {20, 8, DEVICE, 0},
    {21, 8, DEVICE, 0}, /* the largest of D */
    {22, 4, PLAIN, UINT32_MAX},
    {23, 8, DEVICE, 0}, /* scale and largest of the auxiliary matrix */
    {24, 8, DEVICE, 0},
    {25, 1, PLAIN, 0}, /* fast accumulation */
    {26, 4, PLAIN, UINT32_MAX},
    {27, 4, PLAIN, 0}, /* chunks that are waited for, and their counters */
    {28, 4, PLAIN, 0},
    {29, 8, DEVICE, 0},
    {30, 8, DEVICE, 0},
    {31, 4, PLAIN, 0}, /* modes of these scales */
    {32, 4, PLAIN, 0},
    {33, 4, PLAIN, 0},
    {34, 4, PLAIN, 0},
    {35, 4, PLAIN, 0},
    {36, 8, DEVICE, 0},
    {37, 4, PLAIN, 0},
    {IBX_MATMUL_EMULATION, 8, REFUSED, 0},
};
static const struct ibx_attribute of_transform[] = {
    {IBX_TRANSFORM_SCALE, 4, MADE_OF, 0},
    {IBX_TRANSFORM_MODE, 4, PLAIN, 0},
    {2, 4, PLAIN, 0}, /* transpositions of A and B */
    {3, 4, PLAIN, 0},
};
static const struct ibx_attribute of_preference[] = {
    {IBX_PREFERENCE_SEARCH, 4, PLAIN, 0},
    {1, 8, PLAIN, 0}, /* bytes of workspace */
    {3, 4, PLAIN, 7}, /* reductions */
    {5, 4, PLAIN, 256},
    {6, 4, PLAIN, 256},
    {7, 4, PLAIN, 256},
    {8, 4, PLAIN, 256},
    {9, 4, PLAIN, 0},          /* waves, a float */
    {12, 8, PLAIN, UINT64_MAX} /* implementations */
};

#define ALL(attributes)                                                                            \
    {                                                                                              \
        attributes, sizeof(attributes) / sizeof((attributes)[0])                                   \
    }
static const struct {
    const struct ibx_attribute *attributes;
    size_t count;
} types[IBX_DESCRIPTOR_TYPES] = {
    [IBX_DESCRIPTOR_LAYOUT] = ALL(of_layout),
    [IBX_DESCRIPTOR_MATMUL] = ALL(of_matmul),
    [IBX_DESCRIPTOR_TRANSFORM] = ALL(of_transform),
    [IBX_DESCRIPTOR_PREFERENCE] = ALL(of_preference),
};

const struct ibx_attribute *ibx_attribute_find(enum ibx_descriptor_type type, unsigned number)
{
    for (size_t i = 0; i < types[type].count; i++) {
        if (types[type].attributes[i].number == number)
            return &types[type].attributes[i];
    }
    return NULL;
}

/* Reads the next attribute; false: there is none, or it is malformed or refused. */
static bool next(enum ibx_descriptor_type type, struct ibx_reader *r,
                 const struct ibx_attribute **attribute, uint64_t *value)
{
    const uint8_t head = ibx_get_u8(r);
    *attribute = r->failed ? NULL : ibx_attribute_find(type, head >> 2);
    if (!*attribute || (1u << (head & 3)) != (*attribute)->size)
        return false;
    *value = 0;
    switch ((*attribute)->size) {
    case 1:
        *value = ibx_get_u8(r);
        break;
    case 4:
        *value = ibx_get_u32(r);
        break;
    default:
        *value = ibx_get_u64(r);
    }
    return !r->failed && ((*attribute)->use != REFUSED || !*value);
}

bool ibx_descriptor_each(enum ibx_descriptor_type type, const uint8_t *bytes, size_t n, size_t i,
                         const struct ibx_attribute **attribute, uint64_t *value)
{
    struct ibx_reader r = ibx_reader_of(bytes, n);
    bool good = next(type, &r, attribute, value);
    while (i-- && good)
        good = next(type, &r, attribute, value);
    return good;
}

/* Where it is set; n: nowhere. */
static size_t find(const uint8_t *bytes, size_t n, unsigned number)
{
    size_t at = 0;
    while (at < n && bytes[at] >> 2 != number)
        at += 1 + ((size_t)1 << (bytes[at] & 3));
    return at < n ? at : n;
}

bool ibx_descriptor_good(enum ibx_descriptor_type type, const uint8_t *bytes, size_t n)
{
    struct ibx_reader r = ibx_reader_of(bytes, n);
    const struct ibx_attribute *attribute;
    uint64_t value, seen = 0;
    bool good = n <= IBX_DESCRIPTOR_MAX;
    while (good && r.position < n) {
        good = next(type, &r, &attribute, &value) && !(seen >> attribute->number & 1);
        seen |= good ? (uint64_t)1 << attribute->number : 0;
    }
    for (size_t i = 0; i < types[type].count; i++) {
        attribute = &types[type].attributes[i];
        good = good && (attribute->use != MADE_OF || (seen >> attribute->number & 1));
    }
    return good;
}

uint64_t ibx_descriptor_value(enum ibx_descriptor_type type, const uint8_t *bytes, size_t n,
                              unsigned number)
{
    const struct ibx_attribute *attribute = ibx_attribute_find(type, number);
    const size_t at = find(bytes, n, number);
    uint64_t value = attribute->usual;
    struct ibx_reader r = ibx_reader_of(bytes + at, n - at);
    if (at < n)
        next(type, &r, &attribute, &value);
    return value;
}

bool ibx_descriptor_set(uint8_t *bytes, size_t room, size_t *n,
                        const struct ibx_attribute *attribute, uint64_t value)
{
    const size_t at = find(bytes, *n, attribute->number), size = attribute->size;
    const unsigned logarithm = size == 8 ? 3u : size == 4 ? 2u : 0u;
    if (at == *n && 1 + size > room - *n)
        return false;
    struct ibx_writer w = ibx_writer_of(bytes + at, 1 + size);
    ibx_put_u8(&w, (uint8_t)((unsigned)attribute->number << 2 | logarithm));
    if (size == 1)
        ibx_put_u8(&w, (uint8_t)value);
    else if (size == 4)
        ibx_put_u32(&w, (uint32_t)value);
    else
        ibx_put_u64(&w, value);
    *n += at == *n ? 1 + size : 0;
    return true;
}

enum ibx_scalar_place ibx_descriptor_scalar(enum ibx_descriptor_type type, const uint8_t *bytes,
                                            size_t n, bool second, size_t *size)
{
    const bool product = type == IBX_DESCRIPTOR_MATMUL;
    const unsigned mode_at = product ? IBX_MATMUL_POINTER_MODE : IBX_TRANSFORM_MODE;
    const unsigned scale_at = product ? IBX_MATMUL_SCALE_TYPE : IBX_TRANSFORM_SCALE;
    *size = ibx_math_bytes_of_type((int)ibx_descriptor_value(type, bytes, n, scale_at));
    switch (ibx_descriptor_value(type, bytes, n, mode_at)) {
    case 0:
        return *size ? IBX_SCALAR_HOST : IBX_SCALAR_UNKNOWN;
    case 1: /* DEVICE */
    case 2: /* DEVICE_VECTOR */
        return IBX_SCALAR_DEVICE;
    case 3: /* ALPHA_DEVICE_VECTOR_BETA_ZERO */
        return second ? IBX_SCALAR_NONE : IBX_SCALAR_DEVICE;
    case 4: /* ALPHA_DEVICE_VECTOR_BETA_HOST */
        return !second ? IBX_SCALAR_DEVICE : *size ? IBX_SCALAR_HOST : IBX_SCALAR_UNKNOWN;
    default:
        return IBX_SCALAR_UNKNOWN;
    }
}
