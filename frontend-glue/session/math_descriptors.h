/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Descriptors of cuBLASLt. The library keeps them in memory of the program, which may be on its
 * stack and has no end that could be seen. So the client keeps in that memory what was set in it,
 * and each request that names a descriptor has that; the back end makes one of the library's of it,
 * for that call. No byte of the library's own form comes from a client.
 *
 * A descriptor's bytes, there and on the wire, are its attributes that were set: one byte, the
 * attribute's number times 4 and the binary logarithm of its size, and so many bytes.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_MATH_DESCRIPTORS_H
#define IBX_FRONTEND_GLUE_SESSION_MATH_DESCRIPTORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ibx_descriptor_type {
    IBX_DESCRIPTOR_LAYOUT,     /* cublasLtMatrixLayout_t */
    IBX_DESCRIPTOR_MATMUL,     /* cublasLtMatmulDesc_t */
    IBX_DESCRIPTOR_TRANSFORM,  /* cublasLtMatrixTransformDesc_t */
    IBX_DESCRIPTOR_PREFERENCE, /* cublasLtMatmulPreference_t */
    IBX_DESCRIPTOR_TYPES
};

#define IBX_DESCRIPTOR_MAX 252u /* bytes of one, at most */

/* Attributes that this code looks into. */
#define IBX_LAYOUT_TYPE         0u
#define IBX_LAYOUT_ROWS         2u
#define IBX_LAYOUT_COLUMNS      3u
#define IBX_LAYOUT_PITCH        4u
#define IBX_MATMUL_COMPUTE_TYPE 0u
#define IBX_MATMUL_SCALE_TYPE   1u
#define IBX_MATMUL_POINTER_MODE 2u
#define IBX_MATMUL_EMULATION    38u
#define IBX_TRANSFORM_SCALE     0u
#define IBX_TRANSFORM_MODE      1u
#define IBX_PREFERENCE_SEARCH   0u

struct ibx_attribute {
    uint8_t number;
    uint8_t size; /* 1, 4 or 8 */
    enum ibx_attribute_use {
        IBX_ATTRIBUTE_PLAIN,
        IBX_ATTRIBUTE_MADE_OF, /* it is there from the beginning */
        IBX_ATTRIBUTE_DEVICE,  /* an address on the device, or NULL */
        IBX_ATTRIBUTE_REFUSED  /* NULL only */
    } use;
    uint64_t usual; /* until it is set */
};

/* NULL: there is none of that number. */
const struct ibx_attribute *ibx_attribute_find(enum ibx_descriptor_type type, unsigned number);
/* The i-th attribute in a descriptor's n bytes; false: it has not so many, or they are malformed.
 */
bool ibx_descriptor_each(enum ibx_descriptor_type type, const uint8_t *bytes, size_t n, size_t i,
                         const struct ibx_attribute **attribute, uint64_t *value);
/* Whether they are well-formed, and have what a descriptor is made of. */
bool ibx_descriptor_good(enum ibx_descriptor_type type, const uint8_t *bytes, size_t n);
/* What is set in one that is good, or usual. */
uint64_t ibx_descriptor_value(enum ibx_descriptor_type type, const uint8_t *bytes, size_t n,
                              unsigned number);
/* False: `room` bytes are not enough; *n: so many are used. */
bool ibx_descriptor_set(uint8_t *bytes, size_t room, size_t *n,
                        const struct ibx_attribute *attribute, uint64_t value);

/* Where the scalars of a call are by its descriptor, of a product or a transformation. */
enum ibx_scalar_place { IBX_SCALAR_HOST, IBX_SCALAR_DEVICE, IBX_SCALAR_NONE, IBX_SCALAR_UNKNOWN };
/* `second`: of beta. *size: of one of the host. */
enum ibx_scalar_place ibx_descriptor_scalar(enum ibx_descriptor_type type, const uint8_t *bytes,
                                            size_t n, bool second, size_t *size);

#endif
