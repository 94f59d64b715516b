/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which handles of libraries count as what, and which bear no two requests at once. */
#ifndef IBX_FRONTEND_GLUE_TENANTS_MATH_LIMITS_H
#define IBX_FRONTEND_GLUE_TENANTS_MATH_LIMITS_H

#include "frontend-glue/tenants/tenants.h"
#include "frontend-glue/session/math_calls.h"

/* What a handle of that type (enum ibx_math_type) counts as. */
enum ibx_hold ibx_math_hold(unsigned type);
/* What such a function makes one of; IBX_HOLDS: it makes none. */
enum ibx_hold ibx_math_makes(const struct ibx_math_function *f);
/* As how many of these what it makes counts: of cuDNN's graphs a plan has kernels, which may be in
 * the memory of a GPU, too, and what finds engines for a graph has 39 KB. */
#define IBX_MATH_HEAVY 16u
unsigned ibx_math_weight(const struct ibx_math_function *f, const union ibx_math_value *values);
/* Likewise of a handle of that type, at most: where nobody knows with which values it was made. */
unsigned ibx_math_weight_most(unsigned type);
/* Whether the function whose name begins so, in `most` bytes or all of it, makes a handle: its
 * type. From any thread. */
bool ibx_math_maker(const char *name, size_t most, unsigned *type);

/* Whether a request for that function must have its own handle, of that type, alone. Libraries say
 * of handles of cuBLAS, cuSPARSE and cuSOLVER that several threads may use one; what is in others
 * they change without a lock. A handle's pointer mode and stream were looked at before. */
bool ibx_math_needs_alone(const struct ibx_math_function *f, unsigned type);
/* Whether the function may write into what has such a handle that is not its own one. */
bool ibx_math_fills(const struct ibx_math_function *f, unsigned type);

/* The call that asks the library in how many bytes such a function works, which has memory of the
 * host among its arguments: `out` becomes its arguments, and sizes[0] is what it says of the device
 * then, sizes[1] of the host. NULL: there is none. */
const struct ibx_math_function *ibx_math_size_call(const struct ibx_math_function *f,
                                                   const union ibx_math_value *values,
                                                   size_t sizes[2], union ibx_math_value *out);

#endif
