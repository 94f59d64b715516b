/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Functions of cuBLAS, cuRAND and cuSPARSE that are no request of their own. */
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include "frontend-glue/preload/preload.h"

#define BLAS_INVALID_VALUE   7
#define BLAS_MAPPING_ERROR   11
#define TO_DEVICE            1
#define FROM_DEVICE          2
#define RNG_INIT_FAILED      203
#define SPARSE_INVALID_VALUE 3

/* GVirtuS has such a generator, and its functions copy the numbers to host memory. All other calls
 * of the generator are like those of others. */
int curandCreateGeneratorHost(void **generator, int type)
{
    int (*next)(void **generator, int type) = NEXT(curandCreateGeneratorHost);
    const bool may = ibx_frontend_first_begins();
    const int status = may && next ? next(generator, type) : RNG_INIT_FAILED;
    ibx_frontend_first_is_over();
    if (!status && generator)
        ibx_math_handle_set(IBX_MATH_RNG, (uintptr_t)*generator, IBX_MATH_ON_HOST);
    return status;
}

/* ------------------------------------------------------------------------------- copies */

struct rows {
    const void *from;
    void *to;
    int64_t element; /* bytes */
    int64_t width, height;
    int64_t from_pitch, to_pitch; /* elements */
};

/* `stream` NULL: the call waits for the copy. */
static int copy(const struct rows *r, int kind, void *const *stream)
{
    size_t width, from, to, n;
    int rc;
    if (r->width < 0 || r->height < 0 || r->element <= 0 || r->from_pitch <= 0 ||
        r->to_pitch <= 0 || __builtin_mul_overflow(r->width, r->element, &width) ||
        __builtin_mul_overflow(r->from_pitch, r->element, &from) ||
        __builtin_mul_overflow(r->to_pitch, r->element, &to) ||
        __builtin_mul_overflow(width, r->height, &n))
        return BLAS_INVALID_VALUE;
    if (!r->width || !r->height)
        return CUDA_SUCCESS;
    const bool plain = from == width && to == width;
    if (plain)
        rc = stream ? cudaMemcpyAsync(r->to, r->from, n, kind, *stream)
                    : cudaMemcpy(r->to, r->from, n, kind);
    else
        rc = stream ? cudaMemcpy2DAsync(r->to, to, r->from, from, width, (size_t)r->height, kind,
                                        *stream)
                    : cudaMemcpy2D(r->to, to, r->from, from, width, (size_t)r->height, kind);
    return rc ? BLAS_MAPPING_ERROR : CUDA_SUCCESS;
}

/* Each function has one form with 32-bit and one with 64-bit integers. */
#define VECTOR(name, integer, kind)                                                                \
    int name(integer n, integer element, const void *from, integer from_step, void *to,            \
             integer to_step)                                                                      \
    {                                                                                              \
        const struct rows rows = {from, to, element, 1, n, from_step, to_step};                    \
        return copy(&rows, kind, NULL);                                                            \
    }
#define VECTOR_ASYNC(name, integer, kind)                                                          \
    int name(integer n, integer element, const void *from, integer from_step, void *to,            \
             integer to_step, void *stream)                                                        \
    {                                                                                              \
        const struct rows rows = {from, to, element, 1, n, from_step, to_step};                    \
        return copy(&rows, kind, &stream);                                                         \
    }
#define MATRIX(name, integer, kind)                                                                \
    int name(integer rows, integer columns, integer element, const void *from, integer from_rows,  \
             void *to, integer to_rows)                                                            \
    {                                                                                              \
        const struct rows all = {from, to, element, rows, columns, from_rows, to_rows};            \
        return copy(&all, kind, NULL);                                                             \
    }
#define MATRIX_ASYNC(name, integer, kind)                                                          \
    int name(integer rows, integer columns, integer element, const void *from, integer from_rows,  \
             void *to, integer to_rows, void *stream)                                              \
    {                                                                                              \
        const struct rows all = {from, to, element, rows, columns, from_rows, to_rows};            \
        return copy(&all, kind, &stream);                                                          \
    }
#define COPIES(direction, kind)                                                                    \
    VECTOR(cublas##direction##Vector, int, kind)                                                   \
    VECTOR(cublas##direction##Vector_64, int64_t, kind)                                            \
    VECTOR_ASYNC(cublas##direction##VectorAsync, int, kind)                                        \
    VECTOR_ASYNC(cublas##direction##VectorAsync_64, int64_t, kind)                                 \
    MATRIX(cublas##direction##Matrix, int, kind)                                                   \
    MATRIX(cublas##direction##Matrix_64, int64_t, kind)                                            \
    MATRIX_ASYNC(cublas##direction##MatrixAsync, int, kind)                                        \
    MATRIX_ASYNC(cublas##direction##MatrixAsync_64, int64_t, kind)
COPIES(Set, TO_DEVICE)
COPIES(Get, FROM_DEVICE)

/* ------------------------------------------------------------------------------- sparse vectors */

/* The scalars have the type in which the library computes: that of the dense vector's values, as
 * the program stated it, or single precision if those are of half precision. The request has as
 * many bytes as the longest type. */
static int with_scalars(unsigned number, union ibx_math_value *values, unsigned first,
                        unsigned second)
{
    static const uint8_t bytes_of[] = {
        [0] = 4, [1] = 8, [2] = 4, [4] = 8, [5] = 16, [6] = 8, [14] = 4, [15] = 8};
    uint8_t scalars[2][16] = {{0}};
    const uint64_t handle = (uintptr_t)values[0].p;
    if (ibx_math_handle_is(IBX_MATH_SPARSE, handle) != IBX_MATH_USUAL)
        return ibx_frontend_math(number, values);
    const int type = ibx_math_vector_type((uintptr_t)values[4].p);
    const bool known = type >= 0 && (size_t)type < sizeof(bytes_of) && bytes_of[type];
    if (!known || !values[first].p || !values[second].p)
        return SPARSE_INVALID_VALUE; /* also if the vector is unknown */
    memcpy(scalars[0], values[first].p, bytes_of[type]);
    memcpy(scalars[1], values[second].p, bytes_of[type]);
    values[first].p = scalars[0];
    values[second].p = scalars[1];
    return ibx_frontend_math(number, values);
}

int cusparseAxpby(void *handle, void *alpha, void *x, void *beta, void *y)
{
    union ibx_math_value values[] = {{.p = handle}, {.p = alpha}, {.p = x}, {.p = beta}, {.p = y}};
    return with_scalars(IBX_MATH_cusparseAxpby, values, 1, 3);
}

int cusparseRot(void *handle, void *cosine, void *sine, void *x, void *y)
{
    union ibx_math_value values[] = {{.p = handle}, {.p = cosine}, {.p = sine}, {.p = x}, {.p = y}};
    return with_scalars(IBX_MATH_cusparseRot, values, 1, 2);
}

/* ------------------------------------------------------------------------------- statuses */

struct meaning {
    const char *name, *text;
};

static const struct meaning of_blas[] = {
    [0] = {"CUBLAS_STATUS_SUCCESS", "success"},
    [1] = {"CUBLAS_STATUS_NOT_INITIALIZED", "the library was not initialized"},
    [3] = {"CUBLAS_STATUS_ALLOC_FAILED", "the resource allocation failed"},
    [7] = {"CUBLAS_STATUS_INVALID_VALUE",
           "an unsupported value or parameter was passed to the function"},
    [8] = {"CUBLAS_STATUS_ARCH_MISMATCH",
           "the function requires an architectural feature absent from the device"},
    [11] = {"CUBLAS_STATUS_MAPPING_ERROR", "an access to GPU memory space failed"},
    [13] = {"CUBLAS_STATUS_EXECUTION_FAILED", "the function failed to launch on the GPU"},
    [14] = {"CUBLAS_STATUS_INTERNAL_ERROR", "an internal operation failed"},
    [15] = {"CUBLAS_STATUS_NOT_SUPPORTED", "the requested functionality is not supported"},
    [16] = {"CUBLAS_STATUS_LICENSE_ERROR", "the license check failed"},
};
static const struct meaning of_sparse[] = {
    {"CUSPARSE_STATUS_SUCCESS", "success"},
    {"CUSPARSE_STATUS_NOT_INITIALIZED", "initialization error"},
    {"CUSPARSE_STATUS_ALLOC_FAILED", "out of memory"},
    {"CUSPARSE_STATUS_INVALID_VALUE", "invalid value"},
    {"CUSPARSE_STATUS_ARCH_MISMATCH", "architecture mismatch"},
    {"CUSPARSE_STATUS_MAPPING_ERROR", "texture memory mapping error"},
    {"CUSPARSE_STATUS_EXECUTION_FAILED", "kernel launch failure"},
    {"CUSPARSE_STATUS_INTERNAL_ERROR", "internal error"},
    {"CUSPARSE_STATUS_MATRIX_TYPE_NOT_SUPPORTED", "matrix type not supported"},
    {"CUSPARSE_STATUS_ZERO_PIVOT", "zero pivot"},
    {"CUSPARSE_STATUS_NOT_SUPPORTED", "operation not supported"},
    {"CUSPARSE_STATUS_INSUFFICIENT_RESOURCES", "insufficient resources"},
};

static const struct meaning *meaning_of(int status, const struct meaning *meanings, size_t count)
{
    return status >= 0 && (size_t)status < count && meanings[status].name ? &meanings[status]
                                                                          : NULL;
}

#define MEANING(status, all) meaning_of(status, all, sizeof(all) / sizeof((all)[0]))

const char *cublasGetStatusName(int status)
{
    const struct meaning *m = MEANING(status, of_blas);
    return m ? m->name : "unrecognized status";
}

const char *cublasGetStatusString(int status)
{
    const struct meaning *m = MEANING(status, of_blas);
    return m ? m->text : "unrecognized status";
}

const char *cusparseGetErrorName(int status)
{
    const struct meaning *m = MEANING(status, of_sparse);
    return m ? m->name : "unrecognized error code";
}

const char *cusparseGetErrorString(int status)
{
    const struct meaning *m = MEANING(status, of_sparse);
    return m ? m->text : "unrecognized error code";
}
