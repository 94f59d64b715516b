/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Doubles of cuSOLVER's sparse functions and newer dense ones, and of functions that return what
 * cuSPARSE's descriptors have, as far as tests call them. */
#include "tests/doubles/cuda/math_handles.h"

#define INVALID_VALUE    3
#define EXECUTION_FAILED 6
#define ZERO_PIVOT       9

EXPORT int cusolverSpCreate(struct handle **made)
{
    const int status = math_make(made);
    if (!status)
        (*made)->sparse = 1;
    return status;
}

EXPORT int cusolverSpDestroy(struct handle *h)
{
    return math_end(h);
}

EXPORT int cusolverSpSetStream(struct handle *h, void *stream)
{
    h->stream = stream;
    return 0;
}

EXPORT int cusolverSpGetStream(const struct handle *h, void **stream)
{
    *stream = h->stream;
    return 0;
}

/* Only for matrices that have nothing but a diagonal: nnz is m. */
EXPORT int cusolverSpDcsrlsvqr(const struct handle *h, int m, int nnz, const struct handle *matrix,
                               const double *values, const int *rows, const int *columns,
                               const double *b, double tolerance, int reorder, double *x,
                               int *singularity)
{
    double by, of;
    (void)rows, (void)columns, (void)reorder;
    *singularity = -1;
    if (math_wait(h) || m != nnz || matrix->seed > 3)
        return INVALID_VALUE;
    for (int i = 0; i < m; i++) {
        if (!math_get(&by, math_nth(values, (size_t)i, 1, 8), sizeof(by)) ||
            !math_get(&of, math_nth(b, (size_t)i, 1, 8), sizeof(of)))
            return EXECUTION_FAILED;
        if (by < tolerance && *singularity < 0)
            *singularity = i;
        of = by < tolerance ? 0 : of / by;
        if (!math_put(math_nth(x, (size_t)i, 1, 8), &of, sizeof(of)))
            return EXECUTION_FAILED;
    }
    return 0;
}

EXPORT int cusolverSpCreateCsrqrInfo(struct handle **made)
{
    return math_make(made);
}

EXPORT int cusolverSpDestroyCsrqrInfo(struct handle *h)
{
    return math_end(h);
}

EXPORT int cusolverRfCreate(struct handle **made)
{
    return math_make(made);
}

EXPORT int cusolverRfDestroy(struct handle *h)
{
    return math_end(h);
}

/* The handle comes last. */
EXPORT int cusolverRfResetValues(int n, int nnz, const int *rows, const int *columns,
                                 const double *values, const int *p, const int *q, struct handle *h)
{
    double first;
    (void)rows, (void)columns, (void)p, (void)q;
    if (!math_get(&first, values, sizeof(first)))
        return EXECUTION_FAILED;
    h->seed = (unsigned)(n * 100 + nnz * 10 + (int)first);
    return 0;
}

EXPORT int cusolverRfGetAlgs(const struct handle *h, int *factorization, int *solve)
{
    *factorization = (int)h->seed;
    *solve = 5;
    return 0;
}

/* Answers with what is between the limits. */
EXPORT int cusolverDnXsyevdx_bufferSize(const struct handle *h, const struct handle *params,
                                        int jobz, int range, int uplo, int64_t n, int type,
                                        const void *a, int64_t lda, const void *vl, const void *vu,
                                        int64_t il, int64_t iu, int64_t *found, int w_type,
                                        const void *w, int compute, size_t *on_device,
                                        size_t *on_host)
{
    double low = 0, high = 0;
    (void)h, (void)jobz, (void)uplo, (void)n, (void)type, (void)a, (void)lda, (void)w;
    (void)compute;
    if (range == 1001 && (!vl || !vu || w_type != 1))
        return INVALID_VALUE;
    if (range == 1001) {
        memcpy(&low, vl, sizeof(low));
        memcpy(&high, vu, sizeof(high));
    }
    *found = (int64_t)(high - low) + (int64_t)params->seed;
    *on_device = (size_t)(iu - il);
    *on_host = vl ? 8 : 0;
    return 0;
}

EXPORT int cusolverDnSgesvdaStridedBatched(const struct handle *h, int jobz, int rank, int m, int n,
                                           const float *a, int lda, long long a_stride, float *s,
                                           long long s_stride, float *u, int ldu,
                                           long long u_stride, float *v, int ldv,
                                           long long v_stride, float *work, int lwork, int *info,
                                           double *residuals, int count)
{
    const int good = 0;
    (void)jobz, (void)rank, (void)m, (void)n, (void)a, (void)lda, (void)a_stride, (void)s;
    (void)s_stride, (void)u, (void)ldu, (void)u_stride, (void)v, (void)ldv, (void)v_stride;
    (void)work, (void)lwork;
    for (int i = 0; i < count; i++)
        residuals[i] = i * 0.5;
    return !math_wait(h) && math_put(info, &good, sizeof(good)) ? 0 : EXECUTION_FAILED;
}

/* ------------------------------------------------------------------------------- cuSPARSE */

EXPORT int cusparseCreateMatDescr(struct handle **made)
{
    return math_make(made);
}

EXPORT int cusparseDestroyMatDescr(struct handle *h)
{
    return math_end(h);
}

EXPORT int cusparseSetMatType(struct handle *h, int type)
{
    h->seed = (unsigned)type;
    return type < 0 || type > 3 ? INVALID_VALUE : 0;
}

EXPORT int cusparseGetMatType(const struct handle *h)
{
    return (int)h->seed;
}

/* Of a matrix of m rows and columns; `by_column`: how many are in each column. */
EXPORT int cusparseSnnz(const struct handle *h, int by_column, int m, int n,
                        const struct handle *matrix, const float *a, int lda, int *each, int *total)
{
    int count[8] = {0}, sum = 0;
    float value;
    (void)matrix;
    for (int i = 0; i < m * n; i++) {
        if (!math_get(&value, a + i % m + i / m * lda, sizeof(value)))
            return EXECUTION_FAILED;
        count[by_column ? i / m : i % m] += value != 0;
        sum += value != 0;
    }
    return math_put(each, count, sizeof(int) * (size_t)(by_column ? n : m)) &&
                   math_result(h, total, &sum, sizeof(sum))
               ? 0
               : EXECUTION_FAILED;
}

EXPORT int cusparseCreateCsru2csrInfo(struct handle **made)
{
    return math_make(made);
}

EXPORT int cusparseDestroyCsru2csrInfo(struct handle *h)
{
    return math_end(h);
}

/* Of two elements, which change their places. */
static int swap(struct handle *info, double *values)
{
    double both[2];
    if (!math_get(both, values, sizeof(both)))
        return EXECUTION_FAILED;
    const double swapped[2] = {both[1], both[0]};
    info->seed ^= 1;
    return math_put(values, swapped, sizeof(swapped)) ? 0 : EXECUTION_FAILED;
}

EXPORT int cusparseDcsru2csr(const struct handle *h, int m, int n, int nnz,
                             const struct handle *matrix, double *values, const int *rows,
                             int *columns, struct handle *info, void *buffer)
{
    (void)h, (void)m, (void)n, (void)matrix, (void)rows, (void)columns, (void)buffer;
    return nnz != 2 || info->seed & 1 ? INVALID_VALUE : swap(info, values);
}

EXPORT int cusparseDcsr2csru(const struct handle *h, int m, int n, int nnz,
                             const struct handle *matrix, double *values, const int *rows,
                             int *columns, struct handle *info, void *buffer)
{
    (void)h, (void)m, (void)n, (void)matrix, (void)rows, (void)columns, (void)buffer;
    return nnz != 2 || !(info->seed & 1) ? INVALID_VALUE : swap(info, values);
}

EXPORT int cusparseCreateBsrilu02Info(struct handle **made)
{
    return math_make(made);
}

EXPORT int cusparseDestroyBsrilu02Info(struct handle *h)
{
    return math_end(h);
}

/* Every second time there is one. */
EXPORT int cusparseXbsrilu02_zeroPivot(const struct handle *h, struct handle *info, int *position)
{
    info->seed ^= 1;
    const int found = info->seed & 1 ? 7 : -1;
    if (!math_result(h, position, &found, sizeof(found)))
        return EXECUTION_FAILED;
    return found < 0 ? 0 : ZERO_PIVOT;
}

/* A sparse matrix is its attributes here. */
EXPORT int cusparseCreateCsr(struct handle **made, int64_t rows, int64_t columns, int64_t nnz,
                             void *offsets, void *indices, void *values, int offset_type,
                             int index_type, int base, int type)
{
    (void)rows, (void)columns, (void)nnz, (void)offsets, (void)indices, (void)values;
    (void)offset_type, (void)index_type, (void)base, (void)type;
    return math_make(made);
}

EXPORT int cusparseDestroySpMat(struct handle *h)
{
    return math_end(h);
}

EXPORT int cusparseSpMatSetAttribute(struct handle *h, int attribute, const void *value, size_t n)
{
    if (attribute || n != sizeof(h->seed))
        return INVALID_VALUE;
    memcpy(&h->seed, value, n);
    return 0;
}

EXPORT int cusparseSpMatGetAttribute(const struct handle *h, int attribute, void *value, size_t n)
{
    if (attribute || n != sizeof(h->seed))
        return INVALID_VALUE;
    memcpy(value, &h->seed, n);
    return 0;
}
