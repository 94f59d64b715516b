/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* For math_calls.c: functions of CUDA's libraries (math_libraries.c), and descriptors of cuBLASLt
 * (math_descriptors.c). */
#ifndef IBX_FRONTEND_GLUE_DEVICE_CALLS_MATH_DESCRIPTORS_H
#define IBX_FRONTEND_GLUE_DEVICE_CALLS_MATH_DESCRIPTORS_H

#include "frontend-glue/session/math_descriptors.h"

struct gpu_session;
struct ibx_math_function;

/* A descriptor as a client has sent it; valid while its request is in hand. */
struct ibx_descriptor {
    enum ibx_descriptor_type type;
    const uint8_t *bytes;
    size_t n; /* 0: the descriptor is NULL */
};

/* Bytes of a descriptor in the library's own form, as in cublasLt.h. */
static inline size_t ibx_descriptor_room(enum ibx_descriptor_type type)
{
    return type == IBX_DESCRIPTOR_MATMUL ? 256 : 64;
}

/* Makes the library's descriptor in `made`, of ibx_descriptor_room() bytes. `works`: the device
 * will use the addresses in it, which have to be memory that the client may name. 0, or a status of
 * the library. */
int ibx_descriptor_make(struct gpu_session *x, const struct ibx_descriptor *d, bool works,
                        void *made);

/* The library's function; NULL: the library is not loaded, or has no such function. */
void *ibx_math_function_of(const struct ibx_math_function *f);
/* Another function of the library that has function `number`. */
void *ibx_math_symbol(unsigned number, const char *name);

#endif
