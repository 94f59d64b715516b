/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What handles of libraries count as, and which of them one request must have alone. */
#ifndef IBX_FRONTEND_GLUE_TENANTS_MATH_LIMITS_H
#define IBX_FRONTEND_GLUE_TENANTS_MATH_LIMITS_H

#include "frontend-glue/tenants/tenants.h"
#include "frontend-glue/session/math_calls.h"

/* What a handle of that type (enum ibx_math_type) counts as. */
enum ibx_hold ibx_math_hold(unsigned type);
/* What the handle that the function makes counts as; IBX_HOLDS: it makes none. */
enum ibx_hold ibx_math_makes(const struct ibx_math_function *f);
/* As how many the handle counts that the function makes: an execution plan of cuDNN has kernels,
 * which may also be in GPU memory, a heuristic that finds engines for a graph has 39 KB, and a
 * communicator of NCCL has threads, sockets and buffers in GPU memory. */
#define IBX_MATH_HEAVY 16u
unsigned ibx_math_weight(const struct ibx_math_function *f, const union ibx_math_value *values);
/* The most that a handle of that type counts as, if it is not known with which values it was
 * made. */
unsigned ibx_math_weight_most(unsigned type);
/* Whether the function of that name, of which the first `most` bytes are compared, makes a handle;
 * *type: of which type. From any thread. */
bool ibx_math_maker(const char *name, size_t most, unsigned *type);

/* Whether a request for that function must have its own handle, of that type, alone. Libraries say
 * that several threads may use one handle of cuBLAS, cuSPARSE or cuSOLVER; in others the library
 * changes things without a lock. A handle's pointer mode and stream were checked before. */
bool ibx_math_needs_alone(const struct ibx_math_function *f, unsigned type);
/* Whether the function may write into the object of such a handle that is not its own, but another
 * argument. */
bool ibx_math_fills(const struct ibx_math_function *f, unsigned type);

/* The call that asks the library how many bytes of workspace a function needs that takes a
 * workspace in host memory. *out: the arguments for that call, after which sizes[0] are the bytes
 * in device memory, and sizes[1] those in host memory. NULL: there is none. */
const struct ibx_math_function *ibx_math_size_call(const struct ibx_math_function *f,
                                                   const union ibx_math_value *values,
                                                   size_t sizes[2], union ibx_math_value *out);

#endif
