/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Functions of cuBLAS, cuBLASLt, cuRAND, cuFFT, cuSPARSE and cuSOLVER, as extension requests. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MATH_LIBRARIES_MATH_CALLS_H
#define IBX_FRONTEND_GLUE_PRELOAD_MATH_LIBRARIES_MATH_CALLS_H

#include "frontend-glue/preload/preload.h"
#include "frontend-glue/session/math_arguments.h"
#include "frontend-glue/session/math_calls.h"
#include "frontend-glue/session/math_descriptors.h"

#include <stdio.h>

#define IBX_PARAMETER(k, a) IBX_TYPE_##a argument##k
#define IBX_INITIALISER(k, a)                                                                      \
    {                                                                                              \
        .IBX_MEMBER_##a = argument##k                                                              \
    }

/* math_calls.c */

/* Makes the call `number` (session/math_calls.h) and returns the library's status. */
int ibx_frontend_math(unsigned number, const union ibx_math_value *values);
/* The same, always as a request at once: deferred settings of the handle are left aside. */
int ibx_frontend_math_now(unsigned number, const union ibx_math_value *values);

/* math_unnoticed.c: work of the device that captures and cudaGetLastError() do not notice */

struct ibx_math_unnoticed {
    struct ibx_frontend_errors before;
    int mode;     /* of the thread's captures, before */
    bool relaxed; /* `mode` was changed */
};
void ibx_math_unnoticed_begin(struct ibx_math_unnoticed *u);
void ibx_math_unnoticed_end(struct ibx_math_unnoticed *u, bool failed);

/* math_handles.c: the process's handles, except descriptors of cuDNN that requests have made */

enum ibx_math_handle {
    IBX_MATH_USUAL,     /* made by a request; scalar arguments are in host memory */
    IBX_MATH_ON_DEVICE, /* made by a request; scalar arguments are in device memory */
    IBX_MATH_FOREIGN,   /* made by GVirtuS's function, to which its calls go */
    IBX_MATH_ON_HOST /* a random generator of GVirtuS that fills host memory, as GVirtuS's functions
                        do */
};
/* The kind of a handle, IBX_MATH_USUAL if there is none. Handles of different types may have the
 * same value. */
enum ibx_math_handle ibx_math_handle_is(enum ibx_math_type type, uint64_t handle);
/* Sets it. False: there is no memory. */
bool ibx_math_handle_set(enum ibx_math_type type, uint64_t handle, enum ibx_math_handle is);
/* The handle is destroyed. False: there was none. */
bool ibx_math_handle_end(enum ibx_math_type type, uint64_t handle);
/* The handle, which may be new, has its work in this stream from now on. Without memory it is not
 * noted. */
void ibx_math_handle_selects(enum ibx_math_type type, uint64_t handle, const void *stream);
/* Whether that is cudaStreamPerThread: the own stream of whichever thread makes the call. */
bool ibx_math_handle_is_in_own(enum ibx_math_type type, uint64_t handle);

/* math_vectors.c: the cudaDataType of dense vectors, as the program stated it: the back end must
 * not decide how many bytes of the program's scalars are read. */

void ibx_math_vector_made(uint64_t handle, int type);
void ibx_math_vector_ended(uint64_t handle);
/* The type; -1: the vector is unknown, or there was no memory to note it. */
int ibx_math_vector_type(uint64_t handle);

/* math_settings.c: settings of cuBLAS handles, some of which are sent later */

/* Handles a call that sets something. False: the call sets nothing, or the handle's settings are
 * not kept: it has to be made. */
bool ibx_math_settings_set(uint64_t handle, unsigned number, const union ibx_math_value *values,
                           int *status);
/* To be called before any other use of the handle: sends the settings that were deferred. Returns
 * the status of the first that fails. */
int ibx_math_settings_use(uint64_t handle);
/* The handle was destroyed, or is new: nothing is known of it. */
void ibx_math_settings_end(uint64_t handle);

/* math_answers.c: answers of cuBLASLt and cuDNN that are kept */

bool ibx_math_answers_are_same(const struct ibx_math_function *f);
/* Whether the answer to this request is known; it is in `out` then. If not, *since is for
 * ibx_math_answer_keep(). */
bool ibx_math_answer_known(const uint8_t *body, size_t n, uint8_t *out, size_t out_n,
                           uint64_t *since);
/* Keeps an answer of the back end, unless all answers were forgotten since: what the request names
 * may no longer exist. */
void ibx_math_answer_keep(const uint8_t *body, size_t n, const uint8_t *out, size_t out_n,
                          uint64_t since);
/* Forgets all answers: a handle was destroyed, and one of another device may get the same value; or
 * a handle is new, and a former one of the same value may have ended with a reset, or have been the
 * parent process's. */
void ibx_math_answers_forget(void);

/* math_lt.c */

/* Whether cuBLASLt's descriptors are this library's, because the back end has cuBLASLt for our
 * requests. It stays so for the whole process, once the back end was asked. */
bool ibx_frontend_lt_is_ours(void);

/* math_descriptors.c */

/* The bytes of a descriptor; NULL: it is none of this type. */
const uint8_t *ibx_descriptor_bytes(enum ibx_descriptor_type type, const void *descriptor,
                                    size_t *n);

/* The exported functions. */
#pragma GCC visibility push(default)
#define MATH(name, use, ...) int name(IBX_EACH(IBX_PARAMETER, __VA_ARGS__));
#include "frontend-glue/session/math_blas.def"
#undef MATH_APART
#define MATH_APART(...)
#include "frontend-glue/session/math_dnn.def"
#include "frontend-glue/session/math_fft.def"
#include "frontend-glue/session/math_lt.def"
#include "frontend-glue/session/math_rng.def"
#include "frontend-glue/session/math_solver.def"
#include "frontend-glue/session/math_sparse.def"
#undef MATH
/* math_descriptors.c */
#define DESCRIPTOR(stem)                                                                           \
    int stem##Destroy(void *descriptor);                                                           \
    int stem##SetAttribute(void *descriptor, int number, const void *value, size_t n);             \
    int stem##GetAttribute(const void *descriptor, int number, void *value, size_t n,              \
                           size_t *written);
DESCRIPTOR(cublasLtMatrixLayout)
DESCRIPTOR(cublasLtMatmulDesc)
DESCRIPTOR(cublasLtMatrixTransformDesc)
DESCRIPTOR(cublasLtMatmulPreference)
#undef DESCRIPTOR
int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns,
                               int64_t pitch);
int cublasLtMatrixLayoutInit_internal(void *at, size_t n, int type, uint64_t rows, uint64_t columns,
                                      int64_t pitch);
int cublasLtMatmulDescCreate(void **made, int compute, int scale);
int cublasLtMatmulDescInit_internal(void *at, size_t n, int compute, int scale);
int cublasLtMatrixTransformDescCreate(void **made, int scale);
int cublasLtMatrixTransformDescInit_internal(void *at, size_t n, int scale);
int cublasLtMatmulPreferenceCreate(void **made);
int cublasLtMatmulPreferenceInit_internal(void *at, size_t n);
/* math_lt.c */
const char *cublasLtGetStatusName(int status);
const char *cublasLtGetStatusString(int status);
size_t cublasLtGetVersion(void);
size_t cublasLtGetCudartVersion(void);
int cublasLtHeuristicsCacheSetCapacity(size_t capacity);
unsigned cublasLtDisableCpuInstructionsSetMask(unsigned mask);
int cublasLtLoggerSetCallback(void (*callback)(int level, const char *function,
                                               const char *message));
int cublasLtLoggerSetFile(FILE *file);
int cublasLtLoggerOpenFile(const char *path);
int cublasLtLoggerSetLevel(int level);
int cublasLtLoggerSetMask(int mask);
int cublasLtLoggerForceDisable(void);
/* math_composed.c */
int curandCreateGeneratorHost(void **generator, int type);
#define COPIES(direction, suffix, integer)                                                         \
    int cublas##direction##Vector##suffix(integer n, integer element, const void *from,            \
                                          integer from_step, void *to, integer to_step);           \
    int cublas##direction##Matrix##suffix(integer rows, integer columns, integer element,          \
                                          const void *from, integer from_rows, void *to,           \
                                          integer to_rows);                                        \
    int cublas##direction##VectorAsync##suffix(integer n, integer element, const void *from,       \
                                               integer from_step, void *to, integer to_step,       \
                                               void *stream);                                      \
    int cublas##direction##MatrixAsync##suffix(integer rows, integer columns, integer element,     \
                                               const void *from, integer from_rows, void *to,      \
                                               integer to_rows, void *stream);
COPIES(Set, , int)
COPIES(Set, _64, int64_t)
COPIES(Get, , int)
COPIES(Get, _64, int64_t)
#undef COPIES
const char *cublasGetStatusName(int status);
const char *cublasGetStatusString(int status);
const char *cusparseGetErrorName(int status);
const char *cusparseGetErrorString(int status);
/* math_host_solvers.c */
#define SOLVER(name, real)                                                                         \
    int cusolverSp##name##Host(void *handle, int n, int nonzeros, void *matrix,                    \
                               const void *values, const int *rows, const int *columns,            \
                               const void *b, real tolerance, int reorder, void *x,                \
                               int *singularity);
SOLVER(Scsrlsvqr, float)
SOLVER(Scsrlsvlu, float)
SOLVER(Scsrlsvchol, float)
SOLVER(Dcsrlsvqr, double)
SOLVER(Dcsrlsvlu, double)
SOLVER(Dcsrlsvchol, double)
SOLVER(Ccsrlsvqr, float)
SOLVER(Ccsrlsvlu, float)
SOLVER(Ccsrlsvchol, float)
SOLVER(Zcsrlsvqr, double)
SOLVER(Zcsrlsvlu, double)
SOLVER(Zcsrlsvchol, double)
#undef SOLVER
#pragma GCC visibility pop

#endif
