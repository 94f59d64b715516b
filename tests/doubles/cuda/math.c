/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Doubles of cuBLAS, cuRAND, cuFFT, cuSPARSE and cuSOLVER, as far as tests call them: libcublas.so,
 * libcurand.so and so on are all of this. Handles are addresses, as theirs; what is none is not
 * noticed before it is looked into. Work is done at once, behind what is in the handle's stream, in
 * memory of the driver's double.
 */
#include "tests/doubles/cuda/runtime.h"

#include <dlfcn.h>
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLAS_INVALID_VALUE    7
#define BLAS_EXECUTION_FAILED 13
#define BLAS_INTERNAL_ERROR   14 /* another thread has changed the pointer mode meanwhile */

struct handle {
    void *stream;
    atomic_int on_device; /* the pointer mode */
    unsigned seed;
};

static void *driver(const char *name)
{
    void *library = dlopen(getenv("IBX_LIBCUDA"), RTLD_LAZY | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL;
}

static int wait_for(const struct handle *h)
{
    int (*wait)(void *stream) = NULL;
    *(void **)&wait = driver("cuStreamSynchronize");
    return wait(h->stream);
}

/* The i-th, `step` values of `size` bytes apart. A client may have made up all of these. */
static void *nth(const void *first, size_t i, long long step, size_t size)
{
    return (void *)((uintptr_t)first + i * (uint64_t)step * size);
}

/* False: it is none of the device's. */
static int get(void *to, const void *from, size_t n)
{
    int (*copy)(void *host, const void *device, size_t count) = NULL;
    *(void **)&copy = driver("cuMemcpyDtoH_v2");
    return !copy(to, from, n);
}

static int put(void *to, const void *from, size_t n)
{
    int (*copy)(void *device, const void *host, size_t count) = NULL;
    *(void **)&copy = driver("cuMemcpyHtoD_v2");
    return !copy(to, from, n);
}

/* By the pointer mode. */
static int get_scalar(const struct handle *h, void *to, const void *from, size_t n)
{
    if (h->on_device)
        return get(to, from, n);
    memcpy(to, from, n);
    return 1;
}

static int put_result(const struct handle *h, void *to, const void *from, size_t n)
{
    if (h->on_device)
        return put(to, from, n);
    memcpy(to, from, n);
    return 1;
}

/* ------------------------------------------------------------------------------- cuBLAS */

static atomic_uint handles;

/* Made and not ended, of this library. */
EXPORT unsigned ibx_double_handles(void)
{
    return handles;
}

static int make(struct handle **made)
{
    *made = calloc(1, sizeof(**made));
    handles += *made != NULL;
    return *made ? 0 : 3;
}

static int end(struct handle *h)
{
    wait_for(h);
    free(h);
    handles--;
    return 0;
}

EXPORT int cublasCreate_v2(struct handle **made)
{
    return make(made);
}

EXPORT int cublasDestroy_v2(struct handle *h)
{
    return end(h);
}

EXPORT int cublasSetStream_v2(struct handle *h, void *stream)
{
    h->stream = stream;
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
    (void)h;
    return !n || get(&byte, memory, 1) ? 0 : BLAS_INVALID_VALUE;
}

EXPORT int cublasIsamax_v2(const struct handle *h, int n, const float *x, int step, int *result)
{
    int best = n > 0;
    float most = -1;
    for (int i = 0; i < n; i++) {
        float value;
        if (wait_for(h) || !get(&value, nth(x, (size_t)i, step, sizeof(value)), sizeof(value)))
            return BLAS_EXECUTION_FAILED;
        best = fabsf(value) > most ? i + 1 : best;
        most = fmaxf(most, fabsf(value));
    }
    return put_result(h, result, &best, sizeof(best)) ? 0 : BLAS_EXECUTION_FAILED;
}

EXPORT int cublasSaxpy_v2(const struct handle *h, int n, const float *alpha, const float *x,
                          int x_step, float *y, int y_step)
{
    const int mode = h->on_device;
    float by, from, to;
    if (wait_for(h) || !get_scalar(h, &by, alpha, sizeof(by)))
        return BLAS_EXECUTION_FAILED;
    for (int i = 0; i < n; i++) {
        float *at = nth(y, (size_t)i, y_step, sizeof(*y));
        if (!get(&from, nth(x, (size_t)i, x_step, sizeof(*x)), sizeof(from)) ||
            !get(&to, at, sizeof(to)))
            return BLAS_EXECUTION_FAILED;
        to += by * from;
        if (!put(at, &to, sizeof(to)))
            return BLAS_EXECUTION_FAILED;
    }
    return h->on_device == mode ? 0 : BLAS_INTERNAL_ERROR;
}

EXPORT int cublasSrotg_v2(const struct handle *h, float *a, float *b, float *c, float *s)
{
    float x, y;
    if (wait_for(h) || !get_scalar(h, &x, a, sizeof(x)) || !get_scalar(h, &y, b, sizeof(y)))
        return BLAS_EXECUTION_FAILED;
    const float r = sqrtf(x * x + y * y), cosine = x / r, sine = y / r, z = 1 / cosine;
    return put_result(h, a, &r, sizeof(r)) && put_result(h, b, &z, sizeof(z)) &&
                   put_result(h, c, &cosine, sizeof(cosine)) &&
                   put_result(h, s, &sine, sizeof(sine))
               ? 0
               : BLAS_EXECUTION_FAILED;
}

/* Each matrix is one number: batches are what is looked at here. */
EXPORT int cublasDgemmStridedBatched(const struct handle *h, int transa, int transb, int m, int n,
                                     int k, const double *alpha, const double *a, int lda,
                                     long long a_stride, const double *b, int ldb,
                                     long long b_stride, const double *beta, double *c, int ldc,
                                     long long c_stride, int count)
{
    double scale, old, x, y, z;
    if (wait_for(h) || transa || transb || m != 1 || n != 1 || k != 1 || lda != 1 || ldb != 1 ||
        ldc != 1 || !get_scalar(h, &scale, alpha, sizeof(scale)) ||
        !get_scalar(h, &old, beta, sizeof(old)))
        return BLAS_INVALID_VALUE;
    for (int i = 0; i < count; i++) {
        double *at = nth(c, (size_t)i, c_stride, sizeof(*c));
        if (!get(&x, nth(a, (size_t)i, a_stride, sizeof(*a)), sizeof(x)) ||
            !get(&y, nth(b, (size_t)i, b_stride, sizeof(*b)), sizeof(y)) || !get(&z, at, sizeof(z)))
            return BLAS_EXECUTION_FAILED;
        z = scale * x * y + old * z;
        put(at, &z, sizeof(z));
    }
    return 0;
}

EXPORT int cublasHgemm(const struct handle *h, int transa, int transb, int m, int n, int k,
                       const void *alpha, const void *a, int lda, const void *b, int ldb,
                       const void *beta, void *c, int ldc)
{
    (void)transa, (void)transb, (void)m, (void)n, (void)k, (void)a, (void)lda, (void)b, (void)ldb;
    (void)beta, (void)ldc;
    return !wait_for(h) && put(c, alpha, 2) ? 0 : BLAS_EXECUTION_FAILED;
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
    return !wait_for(h) && put(c, alpha, bytes) ? 0 : BLAS_EXECUTION_FAILED;
}

EXPORT int cublasSgetrsBatched(const struct handle *h, int trans, int n, int columns,
                               const float *const *a, int lda, const int *pivots, float *const *b,
                               int ldb, int *info, int count)
{
    (void)trans, (void)columns, (void)a, (void)lda, (void)pivots, (void)b, (void)ldb, (void)count;
    *info = n < 0 ? -2 : 0;
    return wait_for(h) ? BLAS_EXECUTION_FAILED : n < 0 ? BLAS_INVALID_VALUE : 0;
}

EXPORT int cublasSgeqrfBatched(const struct handle *h, int m, int n, float *const *a, int lda,
                               float *const *factors, int *info, int count)
{
    (void)n, (void)a, (void)lda, (void)factors, (void)count;
    *info = m < 0 ? -1 : 0;
    return wait_for(h) ? BLAS_EXECUTION_FAILED : m < 0 ? BLAS_INVALID_VALUE : 0;
}

/* ------------------------------------------------------------------------------- cuRAND */

EXPORT int curandCreateGenerator(struct handle **made, int type)
{
    return type == 100 ? make(made) : 103;
}

EXPORT int curandDestroyGenerator(struct handle *h)
{
    return end(h);
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
    for (size_t i = 0; i < n; i++) {
        const float value = mean + deviation * (float)h->seed++;
        if (wait_for(h) || !put(nth(to, i, 1, sizeof(value)), &value, sizeof(value)))
            return 201;
    }
    return 0;
}

EXPORT int curandGeneratePoisson(struct handle *h, unsigned *to, size_t n, double lambda)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned value = (unsigned)lambda + h->seed++;
        if (wait_for(h) || !put(nth(to, i, 1, sizeof(value)), &value, sizeof(value)))
            return 201;
    }
    return 0;
}

/* ------------------------------------------------------------------------------- cuFFT */

#define PLANS 64

static struct plan {
    int used, rank, n[3], strided;
    void *stream;
} plans[PLANS];

EXPORT int cufftCreate(int *plan)
{
    int i = 1;
    while (i < PLANS && plans[i].used)
        i++;
    if (i == PLANS)
        return 2;
    plans[i] = (struct plan){.used = 1};
    handles++;
    *plan = i;
    return 0;
}

EXPORT int cufftDestroy(int plan)
{
    plans[plan].used = 0;
    handles--;
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
    if (rank < 1 || rank > 3 || !n || !in != !out)
        return 4;
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
    if (wait_for(&h) || !get(&word, from, sizeof(word)))
        return 6;
    word += (unsigned)p->n[0] * 100 + (p->strided ? 10 : 0) + (unsigned)direction;
    return put(to, &word, sizeof(word)) ? 0 : 6;
}

/* ------------------------------------------------------------------------------- cuSPARSE */

/* The values are floats, whatever the type says: scalars of half precision's are. */
struct vector {
    int64_t size;
    float *values;
    int type;
};

EXPORT int cusparseCreate(struct handle **made)
{
    return make(made);
}

EXPORT int cusparseDestroy(struct handle *h)
{
    return end(h);
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
    handles++;
    return 0;
}

EXPORT int cusparseDestroyDnVec(struct vector *vector)
{
    free(vector);
    handles--;
    return 0;
}

EXPORT int cusparseDnVecGet(const struct vector *vector, int64_t *size, void **values, int *type)
{
    *size = vector->size;
    *values = vector->values;
    *type = vector->type;
    return 0;
}

/* There are no sparse ones here: both are dense, and the result is of the first numbers. */
EXPORT int cusparseSpVV(const struct handle *h, int operation, const struct vector *x,
                        const struct vector *y, void *result, int type, void *buffer)
{
    float a, b;
    (void)operation, (void)type, (void)buffer;
    if (wait_for(h) || !get(&a, x->values, sizeof(a)) || !get(&b, y->values, sizeof(b)))
        return 6;
    a *= b;
    return put_result(h, result, &a, sizeof(a)) ? 0 : 6;
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
    if (wait_for(h) || !get(&a, x->values, sizeof(a)) || !get(&b, y->values, sizeof(b)) ||
        !get_scalar(h, &by, alpha, sizeof(by)) || !get_scalar(h, &with, beta, sizeof(with)))
        return 6;
    b = by * a + with * b;
    return put(y->values, &b, sizeof(b)) ? 0 : 6;
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
    return make(made);
}

EXPORT int cusolverDnDestroy(struct handle *h)
{
    return end(h);
}

EXPORT int cusolverDnSetStream(struct handle *h, void *stream)
{
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
    return make(made);
}

EXPORT int cusolverDnDestroyParams(struct handle *h)
{
    return end(h);
}

EXPORT int cusolverDnDgetrf_bufferSize(const struct handle *h, int m, int n, double *a, int lda,
                                       int *size)
{
    (void)h, (void)a, (void)lda;
    *size = (int)((unsigned)m * (unsigned)n);
    return 0;
}

/* It fills what it works in, and says how it went. */
EXPORT int cusolverDnXgetrf(const struct handle *h, const struct handle *params, int64_t m,
                            int64_t n, int a_type, void *a, int64_t lda, int64_t *pivots,
                            int compute, void *on_device, size_t device_bytes, void *on_host,
                            size_t host_bytes, int *info)
{
    const unsigned said = (unsigned)m * (unsigned)n + params->seed;
    (void)a_type, (void)a, (void)lda, (void)pivots, (void)compute, (void)on_device;
    (void)device_bytes;
    if (host_bytes)
        memset(on_host, 'w', host_bytes);
    return !wait_for(h) && put(info, &said, sizeof(said)) ? 0 : 6;
}
