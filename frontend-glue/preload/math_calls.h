/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Functions of cuBLAS, cuRAND, cuFFT, cuSPARSE and cuSOLVER, in requests of our own. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MATH_CALLS_H
#define IBX_FRONTEND_GLUE_PRELOAD_MATH_CALLS_H

#include "frontend-glue/session/math_arguments.h"
#include "frontend-glue/session/math_calls.h"

#define IBX_PARAMETER(k, a) IBX_TYPE_##a argument##k
#define IBX_INITIALISER(k, a)                                                                      \
    {                                                                                              \
        .IBX_MEMBER_##a = argument##k                                                              \
    }

/* math_calls.c */

/* Makes the call: the library's status. */
int ibx_frontend_math(unsigned number, const union ibx_math_value *values);

/* math_handles.c: what handles there are that are not as most are. */

enum ibx_math_handle {
    IBX_MATH_USUAL,     /* our request has made it; scalars are in memory of the host */
    IBX_MATH_ON_DEVICE, /* likewise; of the device */
    IBX_MATH_FOREIGN,   /* GVirtuS's: its functions take it */
    IBX_MATH_ON_HOST    /* GVirtuS's generator that fills memory of the host, as its functions do */
};
/* The same value may be a handle of several types. */
enum ibx_math_handle ibx_math_handle_is(enum ibx_math_type type, uint64_t handle);
/* False: no memory. */
bool ibx_math_handle_set(enum ibx_math_type type, uint64_t handle, enum ibx_math_handle is);

/* What this library exports. */
#pragma GCC visibility push(default)
#define MATH(name, use, ...) int name(IBX_EACH(IBX_PARAMETER, __VA_ARGS__));
#include "frontend-glue/session/math_blas.def"
#include "frontend-glue/session/math_fft.def"
#include "frontend-glue/session/math_rng.def"
#include "frontend-glue/session/math_solver.def"
#include "frontend-glue/session/math_sparse.def"
#undef MATH
/* math_composed.c */
int curandCreateGeneratorHost(void **generator, int type);
int cublasSetVector(int n, int element, const void *from, int from_step, void *to, int to_step);
int cublasGetVector(int n, int element, const void *from, int from_step, void *to, int to_step);
int cublasSetMatrix(int rows, int columns, int element, const void *from, int from_rows, void *to,
                    int to_rows);
int cublasGetMatrix(int rows, int columns, int element, const void *from, int from_rows, void *to,
                    int to_rows);
int cublasSetVectorAsync(int n, int element, const void *from, int from_step, void *to, int to_step,
                         void *stream);
int cublasGetVectorAsync(int n, int element, const void *from, int from_step, void *to, int to_step,
                         void *stream);
int cublasSetMatrixAsync(int rows, int columns, int element, const void *from, int from_rows,
                         void *to, int to_rows, void *stream);
int cublasGetMatrixAsync(int rows, int columns, int element, const void *from, int from_rows,
                         void *to, int to_rows, void *stream);
const char *cublasGetStatusName(int status);
const char *cublasGetStatusString(int status);
const char *cusparseGetErrorName(int status);
const char *cusparseGetErrorString(int status);
#pragma GCC visibility pop

#endif
