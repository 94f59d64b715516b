/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which handles of libraries count as what. */
#ifndef IBX_FRONTEND_GLUE_DEVICE_COPIES_MATH_LIMITS_H
#define IBX_FRONTEND_GLUE_DEVICE_COPIES_MATH_LIMITS_H

#include "frontend-glue/device_copies/tenants.h"
#include "frontend-glue/session/math_calls.h"

/* What a handle of that type (enum ibx_math_type) counts as. */
enum ibx_hold ibx_math_hold(unsigned type);
/* What such a function makes one of; IBX_HOLDS: it makes none. */
enum ibx_hold ibx_math_makes(const struct ibx_math_function *f);
/* The status of the function's library when there is no memory. */
int ibx_math_no_memory(unsigned number);

#endif
