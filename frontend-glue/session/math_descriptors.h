/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Descriptors of cuBLASLt. Natively the library keeps them in memory of the program, possibly on
 * its stack, and nothing tells when they end. So the client keeps in that memory what was set, and
 * each request that names a descriptor contains it. The back end makes a descriptor of the library
 * from it, for that call. No byte of the library's own format comes from a client.
 *
 * The bytes of a descriptor, in memory and on the wire, are the attributes that were set: one byte
 * (the attribute's number times 4, plus the binary logarithm of its size), then the value.
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

#define IBX_DESCRIPTOR_MAX 252u /* bytes of a descriptor, at most */

/* Attributes that this code interprets. */
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
        IBX_ATTRIBUTE_MADE_OF, /* set when the descriptor is made */
        IBX_ATTRIBUTE_DEVICE,  /* a device address, or NULL */
        IBX_ATTRIBUTE_REFUSED  /* must be NULL */
    } use;
    uint64_t usual; /* the default */
};

/* The attribute with this number; NULL: there is none. */
const struct ibx_attribute *ibx_attribute_find(enum ibx_descriptor_type type, unsigned number);
/* The i-th attribute in a descriptor's n bytes. False: there are not so many, or the bytes are
 * malformed. */
bool ibx_descriptor_each(enum ibx_descriptor_type type, const uint8_t *bytes, size_t n, size_t i,
                         const struct ibx_attribute **attribute, uint64_t *value);
/* Whether the bytes are well-formed, and contain the attributes that are set when such a descriptor
 * is made. */
bool ibx_descriptor_good(enum ibx_descriptor_type type, const uint8_t *bytes, size_t n);
/* The value of an attribute in a good descriptor, or its default. */
uint64_t ibx_descriptor_value(enum ibx_descriptor_type type, const uint8_t *bytes, size_t n,
                              unsigned number);
/* Sets an attribute. False: `room` bytes are not enough. *n: the bytes in use. */
bool ibx_descriptor_set(uint8_t *bytes, size_t room, size_t *n,
                        const struct ibx_attribute *attribute, uint64_t value);

/* Where the scalars of a call are, by its descriptor of a product or transformation. */
enum ibx_scalar_place { IBX_SCALAR_HOST, IBX_SCALAR_DEVICE, IBX_SCALAR_NONE, IBX_SCALAR_UNKNOWN };
/* `second`: beta. *size: the bytes of a scalar in host memory. */
enum ibx_scalar_place ibx_descriptor_scalar(enum ibx_descriptor_type type, const uint8_t *bytes,
                                            size_t n, bool second, size_t *size);

#endif
