/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Doubles of cuBLAS's functions of whole matrices that cuBLASXt uses, as far as tests call them. */
#include "tests/doubles/cuda/math_handles.h"

#define BLAS_INVALID_VALUE    7
#define BLAS_EXECUTION_FAILED 13

/* A number of a matrix, which may be transposed. */
static int number_of(const float *matrix, int transposed, int64_t rows, int64_t row, int64_t column,
                     float *value)
{
    const int64_t at = transposed ? row * rows + column : column * rows + row;
    return math_get(value, math_nth(matrix, (size_t)at, 1, sizeof(*value)), sizeof(*value));
}

EXPORT int cublasSgemm_v2_64(const struct handle *h, int transa, int transb, int64_t m, int64_t n,
                             int64_t k, const float *alpha, const float *a, int64_t lda,
                             const float *b, int64_t ldb, const float *beta, float *c, int64_t ldc)
{
    for (int64_t row = 0; row < m; row++) {
        for (int64_t column = 0; column < n; column++) {
            float *at = math_nth(c, (size_t)(column * ldc + row), 1, sizeof(*c));
            float sum = 0, x, y;
            for (int64_t i = 0; i < k; i++) {
                if (math_wait(h) || !number_of(a, transa, lda, row, i, &x) ||
                    !number_of(b, transb, ldb, i, column, &y))
                    return BLAS_EXECUTION_FAILED;
                sum += x * y;
            }
            if (!math_get(&y, at, sizeof(y)))
                return BLAS_EXECUTION_FAILED;
            y = *alpha * sum + (*beta != 0 ? *beta * y : 0); /* C may be anything if beta is 0 */
            math_put(at, &y, sizeof(y));
        }
    }
    return 0;
}

/* The first numbers of C become the leading dimension of A and its last number. */
static int tell_shape(const struct handle *h, const double *a, int64_t columns, int64_t lda,
                      double *c)
{
    double shape[2] = {(double)lda, 0};
    return !math_wait(h) &&
                   math_get(&shape[1], math_nth(a, (size_t)(columns * lda - 1), 1, 8), 8) &&
                   math_put(c, shape, sizeof(shape))
               ? 0
               : BLAS_EXECUTION_FAILED;
}

EXPORT int cublasDsymm_v2_64(const struct handle *h, int side, int fill, int64_t m, int64_t n,
                             const double *alpha, const double *a, int64_t lda, const double *b,
                             int64_t ldb, const double *beta, double *c, int64_t ldc)
{
    (void)fill, (void)alpha, (void)b, (void)beta;
    return ldb != m || ldc != m ? BLAS_INVALID_VALUE : tell_shape(h, a, side ? n : m, lda, c);
}

EXPORT int cublasDtrsm_v2_64(const struct handle *h, int side, int fill, int trans, int diagonal,
                             int64_t m, int64_t n, const double *alpha, const double *a,
                             int64_t lda, double *b, int64_t ldb)
{
    (void)fill, (void)trans, (void)diagonal, (void)alpha;
    return ldb != m ? BLAS_INVALID_VALUE : tell_shape(h, a, side ? n : m, lda, b);
}

EXPORT int cublasDtrmm_v2_64(const struct handle *h, int side, int fill, int trans, int diagonal,
                             int64_t m, int64_t n, const double *alpha, const double *a,
                             int64_t lda, const double *b, int64_t ldb, double *c, int64_t ldc)
{
    (void)fill, (void)trans, (void)diagonal, (void)alpha, (void)b;
    return ldb != m || ldc != m ? BLAS_INVALID_VALUE : tell_shape(h, a, side ? n : m, lda, c);
}

EXPORT int cublasDsyrk_v2_64(const struct handle *h, int fill, int trans, int64_t n, int64_t k,
                             const double *alpha, const double *a, int64_t lda, const double *beta,
                             double *c, int64_t ldc)
{
    (void)fill, (void)alpha, (void)beta;
    return ldc != n ? BLAS_INVALID_VALUE : tell_shape(h, a, trans ? n : k, lda, c);
}
