/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Descriptors of cuBLASLt (session/math_descriptors.h), which are in this process: to make or
 * change one needs no request. They are in memory of this library or, made by the functions ..Init,
 * in memory of the program, whose size cublasLt.h defines.
 */
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include "frontend-glue/preload/preload.h"

#include <stdlib.h>

#define SUCCESS       0
#define ALLOC_FAILED  3
#define INVALID_VALUE 7
#define NOT_SUPPORTED 15

#define MARK 0xb178u /* identifies a descriptor, together with its type */

struct descriptor {
    uint16_t mark;
    uint8_t length; /* bytes that follow */
    uint8_t room;   /* bytes that fit */
    uint8_t bytes[];
};

static uint16_t mark_of(enum ibx_descriptor_type type)
{
    return (uint16_t)(MARK + type);
}

const uint8_t *ibx_descriptor_bytes(enum ibx_descriptor_type type, const void *descriptor,
                                    size_t *n)
{
    const struct descriptor *d = descriptor;
    if (!d || d->mark != mark_of(type))
        return NULL;
    *n = d->length;
    return d->bytes;
}

static int set(struct descriptor *d, enum ibx_descriptor_type type, unsigned number, uint64_t value)
{
    const struct ibx_attribute *attribute = ibx_attribute_find(type, number);
    size_t n = d->length;
    if (!ibx_descriptor_set(d->bytes, d->room, &n, attribute, value))
        return ALLOC_FAILED;
    d->length = (uint8_t)n;
    return SUCCESS;
}

/* Writes the initial content of a descriptor. A preference gets one attribute, because a descriptor
 * without bytes stands for NULL in a request. */
static int begin(void *at, size_t n, enum ibx_descriptor_type type)
{
    struct descriptor *d = at;
    if (!at || n < sizeof(*d) + 16)
        return at ? ALLOC_FAILED : INVALID_VALUE;
    const size_t room = n - sizeof(*d);
    *d = (struct descriptor){mark_of(type), 0,
                             (uint8_t)(room < IBX_DESCRIPTOR_MAX ? room : IBX_DESCRIPTOR_MAX)};
    return type == IBX_DESCRIPTOR_PREFERENCE ? set(d, type, IBX_PREFERENCE_SEARCH, 0) : SUCCESS;
}

/* A descriptor with room for all attributes; NULL: there is no memory. */
static void *new_one(void)
{
    return malloc(sizeof(struct descriptor) + IBX_DESCRIPTOR_MAX);
}

#define WHOLE (sizeof(struct descriptor) + IBX_DESCRIPTOR_MAX)

/* Returns the new descriptor in *to, or frees it if `status` is an error. */
static int made(void **to, void *new, int status)
{
    if (status)
        free(new);
    else
        *to = new;
    return status;
}

static int destroy(void *descriptor, enum ibx_descriptor_type type)
{
    struct descriptor *d = descriptor;
    if (d && d->mark != mark_of(type))
        return INVALID_VALUE;
    if (d)
        d->mark = 0;
    free(d);
    return SUCCESS;
}

/* The number in n bytes, in the byte order of the host. */
static uint64_t number_at(const void *value, size_t n)
{
    uint8_t byte;
    uint32_t word;
    uint64_t number = 0;
    if (n == 1) {
        memcpy(&byte, value, n);
        return byte;
    }
    if (n == 4) {
        memcpy(&word, value, n);
        return word;
    }
    memcpy(&number, value, sizeof(number));
    return number;
}

static void put_number(void *value, size_t n, uint64_t number)
{
    const uint8_t byte = (uint8_t)number;
    const uint32_t word = (uint32_t)number;
    memcpy(value, n == 1 ? (const void *)&byte : n == 4 ? (const void *)&word : &number, n);
}

static int set_attribute(void *descriptor, enum ibx_descriptor_type type, int number,
                         const void *value, size_t n)
{
    struct descriptor *d = descriptor;
    const struct ibx_attribute *a = number < 0 ? NULL : ibx_attribute_find(type, (unsigned)number);
    if (!d || d->mark != mark_of(type) || !a || !value || n != a->size)
        return INVALID_VALUE;
    const uint64_t is = number_at(value, n);
    if (a->use == IBX_ATTRIBUTE_REFUSED && is)
        return NOT_SUPPORTED;
    return set(d, type, a->number, is);
}

static int get_attribute(const void *descriptor, enum ibx_descriptor_type type, int number,
                         void *value, size_t n, size_t *written)
{
    const struct descriptor *d = descriptor;
    const struct ibx_attribute *a = number < 0 ? NULL : ibx_attribute_find(type, (unsigned)number);
    if (!d || d->mark != mark_of(type) || !a || (n ? !value || n != a->size : !written))
        return INVALID_VALUE;
    if (n)
        put_number(value, n, ibx_descriptor_value(type, d->bytes, d->length, a->number));
    if (written)
        *written = a->size;
    return SUCCESS;
}

/* ------------------------------------------------------------------------------- functions */

/* If cuBLASLt's descriptors are GVirtuS's, its function gets the call. */
#define THEIRS(function, ...)                                                                      \
    do {                                                                                           \
        if (!ibx_frontend_lt_is_ours()) {                                                          \
            __typeof__(&(function)) next = NEXT(function);                                         \
            const int rc =                                                                         \
                ibx_frontend_first_begins() && next ? next(__VA_ARGS__) : NOT_SUPPORTED;           \
            ibx_frontend_first_is_over();                                                          \
            return rc;                                                                             \
        }                                                                                          \
    } while (0)

#define DESCRIPTOR(stem, type)                                                                     \
    int stem##Destroy(void *descriptor)                                                            \
    {                                                                                              \
        THEIRS(stem##Destroy, descriptor);                                                         \
        return destroy(descriptor, type);                                                          \
    }                                                                                              \
    int stem##SetAttribute(void *descriptor, int number, const void *value, size_t n)              \
    {                                                                                              \
        THEIRS(stem##SetAttribute, descriptor, number, value, n);                                  \
        return set_attribute(descriptor, type, number, value, n);                                  \
    }                                                                                              \
    int stem##GetAttribute(const void *descriptor, int number, void *value, size_t n,              \
                           size_t *written)                                                        \
    {                                                                                              \
        THEIRS(stem##GetAttribute, descriptor, number, value, n, written);                         \
        return get_attribute(descriptor, type, number, value, n, written);                         \
    }
DESCRIPTOR(cublasLtMatrixLayout, IBX_DESCRIPTOR_LAYOUT)
DESCRIPTOR(cublasLtMatmulDesc, IBX_DESCRIPTOR_MATMUL)
DESCRIPTOR(cublasLtMatrixTransformDesc, IBX_DESCRIPTOR_TRANSFORM)
DESCRIPTOR(cublasLtMatmulPreference, IBX_DESCRIPTOR_PREFERENCE)

static int begin_layout(void *at, size_t n, int type, uint64_t rows, uint64_t columns,
                        int64_t pitch)
{
    int status = begin(at, n, IBX_DESCRIPTOR_LAYOUT);
    if (!status)
        status = set(at, IBX_DESCRIPTOR_LAYOUT, IBX_LAYOUT_TYPE, (uint32_t)type);
    if (!status)
        status = set(at, IBX_DESCRIPTOR_LAYOUT, IBX_LAYOUT_ROWS, rows);
    if (!status)
        status = set(at, IBX_DESCRIPTOR_LAYOUT, IBX_LAYOUT_COLUMNS, columns);
    if (!status)
        status = set(at, IBX_DESCRIPTOR_LAYOUT, IBX_LAYOUT_PITCH, (uint64_t)pitch);
    return status;
}

static int begin_matmul(void *at, size_t n, int compute, int scale)
{
    int status = begin(at, n, IBX_DESCRIPTOR_MATMUL);
    if (!status)
        status = set(at, IBX_DESCRIPTOR_MATMUL, IBX_MATMUL_COMPUTE_TYPE, (uint32_t)compute);
    if (!status)
        status = set(at, IBX_DESCRIPTOR_MATMUL, IBX_MATMUL_SCALE_TYPE, (uint32_t)scale);
    return status;
}

static int begin_transform(void *at, size_t n, int scale)
{
    const int status = begin(at, n, IBX_DESCRIPTOR_TRANSFORM);
    return status ? status
                  : set(at, IBX_DESCRIPTOR_TRANSFORM, IBX_TRANSFORM_SCALE, (uint32_t)scale);
}

int cublasLtMatrixLayoutInit_internal(void *at, size_t n, int type, uint64_t rows, uint64_t columns,
                                      int64_t pitch)
{
    THEIRS(cublasLtMatrixLayoutInit_internal, at, n, type, rows, columns, pitch);
    return begin_layout(at, n, type, rows, columns, pitch);
}

int cublasLtMatrixLayoutCreate(void **to, int type, uint64_t rows, uint64_t columns, int64_t pitch)
{
    THEIRS(cublasLtMatrixLayoutCreate, to, type, rows, columns, pitch);
    void *new = to ? new_one() : NULL;
    return new ? made(to, new, begin_layout(new, WHOLE, type, rows, columns, pitch))
               : (to ? ALLOC_FAILED : INVALID_VALUE);
}

int cublasLtMatmulDescInit_internal(void *at, size_t n, int compute, int scale)
{
    THEIRS(cublasLtMatmulDescInit_internal, at, n, compute, scale);
    return begin_matmul(at, n, compute, scale);
}

int cublasLtMatmulDescCreate(void **to, int compute, int scale)
{
    THEIRS(cublasLtMatmulDescCreate, to, compute, scale);
    void *new = to ? new_one() : NULL;
    return new ? made(to, new, begin_matmul(new, WHOLE, compute, scale))
               : (to ? ALLOC_FAILED : INVALID_VALUE);
}

int cublasLtMatrixTransformDescInit_internal(void *at, size_t n, int scale)
{
    THEIRS(cublasLtMatrixTransformDescInit_internal, at, n, scale);
    return begin_transform(at, n, scale);
}

int cublasLtMatrixTransformDescCreate(void **to, int scale)
{
    THEIRS(cublasLtMatrixTransformDescCreate, to, scale);
    void *new = to ? new_one() : NULL;
    return new ? made(to, new, begin_transform(new, WHOLE, scale))
               : (to ? ALLOC_FAILED : INVALID_VALUE);
}

int cublasLtMatmulPreferenceInit_internal(void *at, size_t n)
{
    THEIRS(cublasLtMatmulPreferenceInit_internal, at, n);
    return begin(at, n, IBX_DESCRIPTOR_PREFERENCE);
}

int cublasLtMatmulPreferenceCreate(void **to)
{
    THEIRS(cublasLtMatmulPreferenceCreate, to);
    void *new = to ? new_one() : NULL;
    return new ? made(to, new, begin(new, WHOLE, IBX_DESCRIPTOR_PREFERENCE))
               : (to ? ALLOC_FAILED : INVALID_VALUE);
}
