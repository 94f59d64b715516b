/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Doubles of cuBLAS, cuRAND, cuFFT, cuSPARSE and cuSOLVER, as far as tests call them: each of
 * libcublas.so, libcurand.so and so on has all of this. Handles are addresses, as in the libraries:
 * an invalid one is not noticed before it is used. Work is done at once, after the work in the
 * handle's stream, in memory of the driver's double.
 */
#include "tests/doubles/cuda/math_handles.h"

#include <math.h>

#define BLAS_INVALID_VALUE    7
#define BLAS_EXECUTION_FAILED 13
#define BLAS_INTERNAL_ERROR   14 /* another thread has changed the pointer mode meanwhile */

/* ------------------------------------------------------------------------------- cuBLAS */

atomic_uint math_handles;

/* Handles of this library that were made and not ended. */
EXPORT unsigned ibx_double_handles(void)
{
    return math_handles;
}

EXPORT int cublasCreate_v2(struct handle **made)
{
    return math_make(made);
}

EXPORT int cublasDestroy_v2(struct handle *h)
{
    return math_end(h);
}

static atomic_int settings; /* that were made so far, of handles */

/* Whichever property it is. */
EXPORT int cublasGetProperty(int which, int *value)
{
    (void)which;
    *value = settings;
    return 0;
}

/* The handle may be NULL. */
EXPORT int cublasGetVersion_v2(const struct handle *h, int *version)
{
    (void)h;
    *version = 130000;
    return 0;
}

EXPORT int cublasSetStream_v2(struct handle *h, void *stream)
{
    settings++;
    h->stream = stream;
    h->workspace = NULL;
    return 0;
}

EXPORT int cublasGetStream_v2(const struct handle *h, void **stream)
{
    *stream = h->stream;
    return 0;
}

EXPORT int cublasSetPointerMode_v2(struct handle *h, int mode)
{
    h->on_device = mode;
    return 0;
}

EXPORT int cublasGetPointerMode_v2(const struct handle *h, int *mode)
{
    *mode = h->on_device;
    return 0;
}

EXPORT int cublasSetWorkspace_v2(struct handle *h, void *memory, size_t n)
{
    char byte = 0;
    settings++;
    h->workspace = memory;
    return !n || math_get(&byte, memory, 1) ? 0 : BLAS_INVALID_VALUE;
}

EXPORT int cublasSetMathMode(struct handle *h, int mode)
{
    settings++;
    if (mode < 0 || mode > 3)
        return BLAS_INVALID_VALUE;
    h->math_mode = mode;
    return 0;
}

EXPORT int cublasGetMathMode(const struct handle *h, int *mode)
{
    *mode = h->math_mode;
    return 0;
}

EXPORT int cublasSetSmCountTarget(struct handle *h, int target)
{
    h->processors = target;
    return target < 0 ? BLAS_INVALID_VALUE : 0;
}

/* Y becomes what is set in the handle: whether it has a workspace, its mode, its number of
 * processors. */
EXPORT int cublasScopy_v2(const struct handle *h, int n, const float *x, int x_step, float *y,
                          int y_step)
{
    const float is[] = {h->workspace != NULL, (float)h->math_mode, (float)h->processors};
    (void)n, (void)x, (void)x_step, (void)y_step;
    return !math_wait(h) && math_put(y, is, sizeof(is)) ? 0 : BLAS_EXECUTION_FAILED;
}

/* As work in the handle's stream. */
EXPORT int cublasDcopy_v2(const struct handle *h, int n, const double *x, int x_step, double *y,
                          int y_step)
{
    int (*copy)(uint64_t to, uint64_t from, size_t bytes, void *stream) = NULL;
    *(void **)&copy = math_driver("cuMemcpyAsync");
    if (n < 0 || x_step != 1 || y_step != 1)
        return BLAS_INVALID_VALUE;
    return copy((uintptr_t)y, (uintptr_t)x, (size_t)n * sizeof(*x), h->stream)
               ? BLAS_EXECUTION_FAILED
               : 0;
}

static int isamax(const struct handle *h, int64_t n, const float *x, int64_t step, int64_t *best)
{
    float value, most = -1;
    *best = n > 0;
    for (int64_t i = 0; i < n; i++) {
        if (math_wait(h) ||
            !math_get(&value, math_nth(x, (size_t)i, step, sizeof(value)), sizeof(value)))
            return BLAS_EXECUTION_FAILED;
        *best = fabsf(value) > most ? i + 1 : *best;
        most = fmaxf(most, fabsf(value));
    }
    return 0;
}

EXPORT int cublasIsamax_v2(const struct handle *h, int n, const float *x, int step, int *result)
{
    int64_t best;
    const int rc = isamax(h, n, x, step, &best), found = (int)best;
    return rc || math_result(h, result, &found, sizeof(found)) ? rc : BLAS_EXECUTION_FAILED;
}

EXPORT int cublasIsamax_v2_64(const struct handle *h, int64_t n, const float *x, int64_t step,
                              int64_t *result)
{
    int64_t best;
    const int rc = isamax(h, n, x, step, &best);
    return rc || math_result(h, result, &best, sizeof(best)) ? rc : BLAS_EXECUTION_FAILED;
}

EXPORT int cublasSaxpy_v2(const struct handle *h, int n, const float *alpha, const float *x,
                          int x_step, float *y, int y_step)
{
    const int mode = h->on_device;
    float by, from, to;
    if (math_wait(h) || !math_scalar(h, &by, alpha, sizeof(by)))
        return BLAS_EXECUTION_FAILED;
    for (int i = 0; i < n; i++) {
        float *at = math_nth(y, (size_t)i, y_step, sizeof(*y));
        if (!math_get(&from, math_nth(x, (size_t)i, x_step, sizeof(*x)), sizeof(from)) ||
            !math_get(&to, at, sizeof(to)))
            return BLAS_EXECUTION_FAILED;
        to += by * from;
        if (!math_put(at, &to, sizeof(to)))
            return BLAS_EXECUTION_FAILED;
    }
    return h->on_device == mode ? 0 : BLAS_INTERNAL_ERROR;
}

/* No program here passes integers that do not fit into 32 bits. */
EXPORT int cublasSaxpy_v2_64(const struct handle *h, int64_t n, const float *alpha, const float *x,
                             int64_t x_step, float *y, int64_t y_step)
{
    return n != (int)n || x_step != (int)x_step || y_step != (int)y_step
               ? BLAS_INVALID_VALUE
               : cublasSaxpy_v2(h, (int)n, alpha, x, (int)x_step, y, (int)y_step);
}

/* C becomes the numbers of one group, as far as they are 64 bits long, and its alpha. */
EXPORT int cublasSgemmGroupedBatched_64(const struct handle *h, const int *transa,
                                        const int *transb, const int64_t *m, const int64_t *n,
                                        const int64_t *k, const float *alpha, const void *a,
                                        const int64_t *lda, const void *b, const int64_t *ldb,
                                        const float *beta, void *c, const int64_t *ldc,
                                        int64_t groups, const int64_t *sizes)
{
    const int64_t at = groups - 1;
    const double numbers[] = {(double)m[at],   (double)n[at],     (double)k[at],
                              (double)lda[at], (double)ldb[at],   (double)ldc[at],
                              alpha[at],       (double)beta[at],  (double)sizes[at],
                              transa[at],      (double)transb[at]};
    (void)a, (void)b;
    return !math_wait(h) && math_put(c, numbers, sizeof(numbers)) ? 0 : BLAS_EXECUTION_FAILED;
}

EXPORT int cublasSrotg_v2(const struct handle *h, float *a, float *b, float *c, float *s)
{
    float x, y;
    if (math_wait(h) || !math_scalar(h, &x, a, sizeof(x)) || !math_scalar(h, &y, b, sizeof(y)))
        return BLAS_EXECUTION_FAILED;
    const float r = sqrtf(x * x + y * y), cosine = x / r, sine = y / r, z = 1 / cosine;
    return math_result(h, a, &r, sizeof(r)) && math_result(h, b, &z, sizeof(z)) &&
                   math_result(h, c, &cosine, sizeof(cosine)) &&
                   math_result(h, s, &sine, sizeof(sine))
               ? 0
               : BLAS_EXECUTION_FAILED;
}

/* Each matrix is one number: this double is about batches. */
EXPORT int cublasDgemmStridedBatched(const struct handle *h, int transa, int transb, int m, int n,
                                     int k, const double *alpha, const double *a, int lda,
                                     long long a_stride, const double *b, int ldb,
                                     long long b_stride, const double *beta, double *c, int ldc,
                                     long long c_stride, int count)
{
    double scale, old, x, y, z;
    if (math_wait(h) || transa || transb || m != 1 || n != 1 || k != 1 || lda != 1 || ldb != 1 ||
        ldc != 1 || !math_scalar(h, &scale, alpha, sizeof(scale)) ||
        !math_scalar(h, &old, beta, sizeof(old)))
        return BLAS_INVALID_VALUE;
    for (int i = 0; i < count; i++) {
        double *at = math_nth(c, (size_t)i, c_stride, sizeof(*c));
        if (!math_get(&x, math_nth(a, (size_t)i, a_stride, sizeof(*a)), sizeof(x)) ||
            !math_get(&y, math_nth(b, (size_t)i, b_stride, sizeof(*b)), sizeof(y)) ||
            !math_get(&z, at, sizeof(z)))
            return BLAS_EXECUTION_FAILED;
        z = scale * x * y + old * z;
        math_put(at, &z, sizeof(z));
    }
    return 0;
}

EXPORT int cublasHgemm(const struct handle *h, int transa, int transb, int m, int n, int k,
                       const void *alpha, const void *a, int lda, const void *b, int ldb,
                       const void *beta, void *c, int ldc)
{
    (void)transa, (void)transb, (void)m, (void)n, (void)k, (void)a, (void)lda, (void)b, (void)ldb;
    (void)beta, (void)ldc;
    return !math_wait(h) && math_put(c, alpha, 2) ? 0 : BLAS_EXECUTION_FAILED;
}

/* C becomes the bytes of alpha, 16 of them: what the client has sent of it. */
EXPORT int cublasGemmEx(const struct handle *h, int transa, int transb, int m, int n, int k,
                        const void *alpha, const void *a, int a_type, int lda, const void *b,
                        int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
                        int compute, int algorithm)
{
    (void)transa, (void)transb, (void)m, (void)n, (void)k, (void)a, (void)a_type, (void)lda;
    (void)b, (void)b_type, (void)ldb, (void)beta, (void)c_type, (void)ldc, (void)algorithm;
    const size_t bytes = compute == 64 ? 2 : compute == 70 ? 8 : 4;
    return !math_wait(h) && math_put(c, alpha, bytes) ? 0 : BLAS_EXECUTION_FAILED;
}

EXPORT int cublasSgetrsBatched(const struct handle *h, int trans, int n, int columns,
                               const float *const *a, int lda, const int *pivots, float *const *b,
                               int ldb, int *info, int count)
{
    (void)trans, (void)columns, (void)a, (void)lda, (void)pivots, (void)b, (void)ldb, (void)count;
    *info = n < 0 ? -2 : 0;
    return math_wait(h) ? BLAS_EXECUTION_FAILED : n < 0 ? BLAS_INVALID_VALUE : 0;
}

EXPORT int cublasSgeqrfBatched(const struct handle *h, int m, int n, float *const *a, int lda,
                               float *const *factors, int *info, int count)
{
    (void)n, (void)a, (void)lda, (void)factors, (void)count;
    *info = m < 0 ? -1 : 0;
    return math_wait(h) ? BLAS_EXECUTION_FAILED : m < 0 ? BLAS_INVALID_VALUE : 0;
}

/* ------------------------------------------------------------------------------- cuRAND */

EXPORT int curandCreateGenerator(struct handle **made, int type)
{
    return type == 100 ? math_make(made) : 103;
}

EXPORT int curandCreateGeneratorHost(struct handle **made, int type)
{
    const int rc = curandCreateGenerator(made, type);
    if (!rc)
        (*made)->on_host = 1;
    return rc;
}

EXPORT int curandDestroyGenerator(struct handle *h)
{
    return math_end(h);
}

EXPORT int curandSetStream(struct handle *h, void *stream)
{
    h->stream = stream;
    return 0;
}

EXPORT int curandSetGeneratorOrdering(struct handle *h, int order)
{
    h->seed += (unsigned)order;
    return 0;
}

EXPORT int curandSetPseudoRandomGeneratorSeed(struct handle *h, unsigned long long seed)
{
    h->seed = (unsigned)seed;
    return 0;
}

EXPORT int curandGenerateNormal(struct handle *h, float *to, size_t n, float mean, float deviation)
{
    if (!math_alone(&h->users))
        return 999;
    for (size_t i = 0; i < n; i++) {
        const float value = mean + deviation * (float)h->seed++;
        if (h->on_host) {
            to[i] = value;
            continue;
        }
        if (math_wait(h) || !math_put(math_nth(to, i, 1, sizeof(value)), &value, sizeof(value)))
            return 201;
    }
    return 0;
}

EXPORT int curandGeneratePoisson(struct handle *h, unsigned *to, size_t n, double lambda)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned value = (unsigned)lambda + h->seed++;
        if (math_wait(h) || !math_put(math_nth(to, i, 1, sizeof(value)), &value, sizeof(value)))
            return 201;
    }
    return 0;
}

#define DIMENSIONS 20000

EXPORT int curandGetDirectionVectors32(const uint32_t (**vectors)[32], int set)
{
    static uint32_t all[2][DIMENSIONS][32];
    if (set != 101 && set != 102)
        return 104;
    for (unsigned i = 0; i < DIMENSIONS; i++)
        for (unsigned bit = 0; bit < 32; bit++)
            all[set - 101][i][bit] = i * 32 + bit + (unsigned)set;
    *vectors = all[set - 101];
    return 0;
}

EXPORT int curandGetScrambleConstants64(const uint64_t **constants)
{
    static uint64_t all[DIMENSIONS];
    for (unsigned i = 0; i < DIMENSIONS; i++)
        all[i] = (uint64_t)i << 33;
    *constants = all;
    return 0;
}

/* ------------------------------------------------------------------------------- cuFFT */

#define PLANS 64

static struct plan {
    int used, rank, n[3], strided;
    void *stream;
    atomic_int users;
} plans[PLANS];

EXPORT int cufftCreate(int *plan)
{
    int i = 1;
    while (i < PLANS && plans[i].used)
        i++;
    if (i == PLANS)
        return 2;
    plans[i].used = 1;
    plans[i].stream = NULL;
    math_handles++;
    *plan = i;
    return 0;
}

EXPORT int cufftDestroy(int plan)
{
    plans[plan].used = 0;
    math_handles--;
    return 0;
}

EXPORT int cufftSetStream(int plan, void *stream)
{
    plans[plan].stream = stream;
    return 0;
}

EXPORT int cufftMakePlanMany(int plan, int rank, const int *n, const int *in, int in_stride,
                             int in_distance, const int *out, int out_stride, int out_distance,
                             int type, int batch, size_t *work)
{
    struct plan *p = &plans[plan];
    (void)in_stride, (void)in_distance, (void)out_stride, (void)out_distance, (void)type;
    (void)batch;
    if (rank < 1 || rank > 3 || !n || !in != !out || !work)
        return 4;
    if (!math_alone(&p->users))
        return 5;
    p->rank = rank;
    memcpy(p->n, n, (size_t)rank * sizeof(*n));
    p->strided = in && in[0] == n[0] && out[0] == n[0];
    *work = (size_t)n[0] * 100;
    return 0;
}

EXPORT int cufftPlanMany(int *plan, int rank, const int *n, const int *in, int in_stride,
                         int in_distance, const int *out, int out_stride, int out_distance,
                         int type, int batch)
{
    size_t work;
    const int rc = cufftCreate(plan);
    return rc ? rc
              : cufftMakePlanMany(*plan, rank, n, in, in_stride, in_distance, out, out_stride,
                                  out_distance, type, batch, &work);
}

/* The first word becomes what the plan is. */
EXPORT int cufftExecC2C(int plan, const void *from, void *to, int direction)
{
    const struct plan *p = &plans[plan];
    const struct handle h = {.stream = p->stream};
    unsigned word;
    if (math_wait(&h) || !math_get(&word, from, sizeof(word)))
        return 6;
    word += (unsigned)p->n[0] * 100 + (p->strided ? 10 : 0) + (unsigned)direction;
    return math_put(to, &word, sizeof(word)) ? 0 : 6;
}

/* ------------------------------------------------------------------------------- cuSPARSE */

/* The values are floats, whatever the type says, since scalars of half precision are floats. */
struct vector {
    int64_t size;
    float *values;
    int type;
};

EXPORT int cusparseCreate(struct handle **made)
{
    return math_make(made);
}

EXPORT int cusparseDestroy(struct handle *h)
{
    return h ? math_end(h) : 0;
}

EXPORT int cusparseSetPointerMode(struct handle *h, int mode)
{
    h->on_device = mode;
    return 0;
}

EXPORT int cusparseGetPointerMode(const struct handle *h, int *mode)
{
    *mode = h->on_device;
    return 0;
}

EXPORT int cusparseCreateDnVec(struct vector **made, int64_t size, void *values, int type)
{
    *made = type && type != 2 && type != 14 ? NULL : malloc(sizeof(**made));
    if (!*made)
        return 2;
    **made = (struct vector){size, values, type};
    math_handles++;
    return 0;
}

EXPORT int cusparseDestroyDnVec(struct vector *vector)
{
    free(vector);
    math_handles--;
    return 0;
}

EXPORT int cusparseDnVecGet(const struct vector *vector, int64_t *size, void **values, int *type)
{
    *size = vector->size;
    *values = vector->values;
    *type = vector->type;
    return 0;
}

/* There are no sparse vectors here: both are dense, and the result is made of their first
 * numbers. */
EXPORT int cusparseSpVV(const struct handle *h, int operation, const struct vector *x,
                        const struct vector *y, void *result, int type, void *buffer)
{
    float a, b;
    (void)operation, (void)type, (void)buffer;
    if (math_wait(h) || !math_get(&a, x->values, sizeof(a)) || !math_get(&b, y->values, sizeof(b)))
        return 6;
    a *= b;
    return math_result(h, result, &a, sizeof(a)) ? 0 : 6;
}

EXPORT int cusparseConstDnVecGet(const struct vector *vector, int64_t *size, void **values,
                                 int *type)
{
    return cusparseDnVecGet(vector, size, values, type);
}

/* Of the first numbers, too. */
EXPORT int cusparseAxpby(const struct handle *h, const void *alpha, const struct vector *x,
                         const void *beta, const struct vector *y)
{
    float a, b, by, with;
    if (math_wait(h) || !math_get(&a, x->values, sizeof(a)) ||
        !math_get(&b, y->values, sizeof(b)) || !math_scalar(h, &by, alpha, sizeof(by)) ||
        !math_scalar(h, &with, beta, sizeof(with)))
        return 6;
    b = by * a + with * b;
    return math_put(y->values, &b, sizeof(b)) ? 0 : 6;
}

EXPORT int cusparseCreateSpVec(struct vector **made, int64_t size, int64_t count, void *indices,
                               void *values, int of, int base, int type)
{
    (void)count, (void)indices, (void)of, (void)base;
    return cusparseCreateDnVec(made, size, values, type);
}

EXPORT int cusparseDestroySpVec(struct vector *vector)
{
    return cusparseDestroyDnVec(vector);
}

/* ------------------------------------------------------------------------------- cuSOLVER */

EXPORT int cusolverDnCreate(struct handle **made)
{
    return math_make(made);
}

EXPORT int cusolverDnDestroy(struct handle *h)
{
    return math_end(h);
}

EXPORT int cusolverDnSetStream(struct handle *h, void *stream)
{
    if (h->sparse)
        abort();
    h->stream = stream;
    return 0;
}

EXPORT int cusolverDnGetStream(const struct handle *h, void **stream)
{
    *stream = h->stream;
    return 0;
}

EXPORT int cusolverDnCreateParams(struct handle **made)
{
    return math_make(made);
}

EXPORT int cusolverDnDestroyParams(struct handle *h)
{
    return math_end(h);
}

EXPORT int cusolverDnDgetrf_bufferSize(const struct handle *h, int m, int n, double *a, int lda,
                                       int *size)
{
    (void)h, (void)a, (void)lda;
    *size = (int)((unsigned)m * (unsigned)n);
    return 0;
}

EXPORT int cusolverDnXgesvdr_bufferSize(const struct handle *h, const struct handle *params,
                                        signed char jobu, signed char jobv, int64_t m, int64_t n,
                                        int64_t k, int64_t p, int64_t rounds, int a_type,
                                        const void *a, int64_t lda, int s_type, const void *s,
                                        int u_type, const void *u, int64_t ldu, int v_type,
                                        const void *v, int64_t ldv, int compute,
                                        size_t *device_bytes, size_t *host_bytes)
{
    (void)h, (void)params, (void)jobu, (void)jobv, (void)m, (void)n, (void)p, (void)rounds;
    (void)a_type, (void)a, (void)lda, (void)s_type, (void)s, (void)u_type, (void)u, (void)ldu;
    (void)v_type, (void)v, (void)ldv, (void)compute;
    *device_bytes = 8;
    *host_bytes = (size_t)k * 8;
    return 0;
}

/* Fills its workspace, and writes what it was given. */
EXPORT int cusolverDnXgesvdr(const struct handle *h, const struct handle *params, signed char jobu,
                             signed char jobv, int64_t m, int64_t n, int64_t k, int64_t p,
                             int64_t rounds, int a_type, void *a, int64_t lda, int s_type, void *s,
                             int u_type, void *u, int64_t ldu, int v_type, void *v, int64_t ldv,
                             int compute, void *on_device, size_t device_bytes, void *on_host,
                             size_t host_bytes, int *info)
{
    const int64_t said = (((((m * 10 + n) * 10 + k) * 10 + p) * 10 + rounds) * 10 + lda) * 10 + ldu;
    const int good = jobu == 'S' && jobv == 'N' && a_type == 1 && s_type == 0 && u_type == 4 &&
                     v_type == 5 && ldv == 9 && compute == 1 && a && !s && u && !v && on_device &&
                     device_bytes == 8;
    const int number = good ? (int)said : 0;
    (void)params;
    memset(on_host, 'w', host_bytes);
    return !math_wait(h) && math_put(info, &number, sizeof(number)) ? 0 : 6;
}

EXPORT int cusolverDnXgetrf_bufferSize(const struct handle *h, const struct handle *params,
                                       int64_t m, int64_t n, int a_type, const void *a, int64_t lda,
                                       int compute, size_t *device_bytes, size_t *host_bytes)
{
    (void)h, (void)params, (void)n, (void)a_type, (void)a, (void)lda, (void)compute;
    *device_bytes = 8;
    *host_bytes = m > 8 ? (size_t)m * 8 : 0;
    return 0;
}

/* Fills its workspaces, and writes its info. */
EXPORT int cusolverDnXgetrf(const struct handle *h, const struct handle *params, int64_t m,
                            int64_t n, int a_type, void *a, int64_t lda, int64_t *pivots,
                            int compute, void *on_device, size_t device_bytes, void *on_host,
                            size_t host_bytes, int *info)
{
    const unsigned said = (unsigned)m * (unsigned)n + (params ? params->seed : 0);
    (void)a_type, (void)a, (void)lda, (void)pivots, (void)compute, (void)on_device;
    (void)device_bytes;
    (void)host_bytes; /* it is not checked */
    if (m > 8)
        memset(on_host, 'w', (size_t)m * 8);
    return !math_wait(h) && math_put(info, &said, sizeof(said)) ? 0 : 6;
}
