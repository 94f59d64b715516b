/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Functions of cuBLAS, cuBLASLt, cuRAND, cuFFT, cuSPARSE and cuSOLVER, in requests of our own. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MATH_LIBRARIES_MATH_CALLS_H
#define IBX_FRONTEND_GLUE_PRELOAD_MATH_LIBRARIES_MATH_CALLS_H

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

/* Makes the call: the library's status. */
int ibx_frontend_math(unsigned number, const union ibx_math_value *values);
/* Likewise, by a request, whatever is set in its handle. */
int ibx_frontend_math_now(unsigned number, const union ibx_math_value *values);

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

/* math_vectors.c: the cudaDataType of the values of dense vectors, as the program has said it: how
 * long its scalars are is not for the back end to say. */

void ibx_math_vector_made(uint64_t handle, int type);
void ibx_math_vector_ended(uint64_t handle);
/* -1: there is no such vector, or there was no memory. */
int ibx_math_vector_type(uint64_t handle);

/* math_settings.c: what is set in handles of cuBLAS, which may not be in force yet */

/* False: it is nothing that is set, or not known for that handle: the call is made. */
bool ibx_math_settings_set(uint64_t handle, unsigned number, const union ibx_math_value *values,
                           int *status);
/* Before the handle is used otherwise: what is set in it comes into force. The status of what does
 * not. */
int ibx_math_settings_use(uint64_t handle);
/* It is no more, or new. */
void ibx_math_settings_end(uint64_t handle);

/* math_answers.c: answers of cuBLASLt and cuDNN that stay the same */

bool ibx_math_answers_are_same(const struct ibx_math_function *f);
/* *since: where it is not known, for ibx_math_answer_keep() when the back end has answered. */
bool ibx_math_answer_known(const uint8_t *body, size_t n, uint8_t *out, size_t out_n,
                           uint64_t *since);
/* Unless all have been forgotten since: what it names may have been what is no more. */
void ibx_math_answer_keep(const uint8_t *body, size_t n, const uint8_t *out, size_t out_n,
                          uint64_t since);
/* A handle is no more, whose number another one may be given, of another device; or is new: one of
 * its number may have gone with a reset, or been the parent process's. */
void ibx_math_answers_forget(void);

/* math_lt.c */

/* Whether descriptors of cuBLASLt are this library's: the back end has made a handle of it by our
 * requests, or would have. The same for the whole process, as long as it has a back end. */
bool ibx_frontend_lt_is_ours(void);

/* math_descriptors.c */

/* What is in a descriptor; NULL: it is none of that type. */
const uint8_t *ibx_descriptor_bytes(enum ibx_descriptor_type type, const void *descriptor,
                                    size_t *n);

/* What this library exports. */
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
#pragma GCC visibility pop

#endif
