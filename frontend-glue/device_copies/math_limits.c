/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What clients make libraries (math_calls.c) hold: handles, which cost memory of the host, and some
 * of them memory of a GPU, too.
 */
#include "frontend-glue/device_copies/math_limits.h"

enum ibx_hold ibx_math_hold(unsigned type)
{
    switch ((enum ibx_math_type)type) {
    case IBX_MATH_BLAS:
    case IBX_MATH_LT:
    case IBX_MATH_SPARSE:
    case IBX_MATH_SOLVER:
    case IBX_MATH_SPSOLVER:
    case IBX_MATH_RNG:
        return IBX_HOLD_LIBRARIES;
    case IBX_MATH_FFT:
    case IBX_MATH_DISTRIBUTION:
    case IBX_MATH_SPGEMM:
    case IBX_MATH_SPSM:
    case IBX_MATH_SPSV:
    case IBX_MATH_CSRIC02:
    case IBX_MATH_CSRILU02:
    case IBX_MATH_CSRQR:
    case IBX_MATH_CSRCHOL:
    case IBX_MATH_REFACTOR:
    case IBX_MATH_IRSINFOS:
        return IBX_HOLD_PLANS;
    default:
        return IBX_HOLD_DESCRIPTORS;
    }
}

enum ibx_hold ibx_math_makes(const struct ibx_math_function *f)
{
    for (unsigned i = 0; i < f->count; i++) {
        const struct ibx_math_argument *a = &f->arguments[i];
        if (a->kind == IBX_MATH_MAKES || a->kind == IBX_MATH_MAKES_PLAN)
            return ibx_math_hold(a->n);
    }
    return IBX_HOLDS;
}

int ibx_math_no_memory(unsigned number)
{
    switch (number >> 12) {
    case IBX_MATH_CURAND:
        return 102;
    case IBX_MATH_CUFFT:
    case IBX_MATH_CUSPARSE:
    case IBX_MATH_CUSOLVER:
        return 2;
    default: /* cuBLAS's */
        return 3;
    }
}
