/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* For math_calls.c: libraries of CUDA, by math_libraries.c, and cuBLASLt's descriptors. */
#ifndef IBX_FRONTEND_GLUE_DEVICE_CALLS_MATH_DESCRIPTORS_H
#define IBX_FRONTEND_GLUE_DEVICE_CALLS_MATH_DESCRIPTORS_H

#include "frontend-glue/session/math_descriptors.h"

struct gpu_session;
struct ibx_math_function;

/* As a client has sent it, while its request is in hand. */
struct ibx_descriptor {
    enum ibx_descriptor_type type;
    const uint8_t *bytes;
    size_t n; /* 0: it is NULL */
};

/* Bytes of the library's own form: as many as cublasLt.h has. */
static inline size_t ibx_descriptor_room(enum ibx_descriptor_type type)
{
    return type == IBX_DESCRIPTOR_MATMUL ? 256 : 64;
}

/* Makes it in so many bytes. `works`: the device goes to the addresses in it, which have to be the
 * tenant's. 0; a status of the library's. */
int ibx_descriptor_make(struct gpu_session *x, const struct ibx_descriptor *d, bool works,
                        void *made);

/* NULL: the library is not loaded, or has none of that name. */
void *ibx_math_function_of(const struct ibx_math_function *f);
/* Another function of the library that has function `number`. */
void *ibx_math_symbol(unsigned number, const char *name);

#endif
