/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * cuBLASXt: products of matrices in memory of the host or of the device, which wait for the result.
 * Natively they are divided into tiles, which several GPUs compute. Here a call copies its matrices
 * whole to the first GPU that was selected, and calls the function of cuBLAS there that has the
 * same arguments. Natively, too, these copies are no part of a capture.
 */
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include "frontend-glue/preload/graphs/graphs.h"

#include <stdlib.h>

/* The prototypes are in the library's header. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define NOT_INITIALIZED  1
#define ALLOC_FAILED     3
#define INVALID_VALUE    7
#define MAPPING_ERROR    11
#define EXECUTION_FAILED 13
#define INTERNAL_ERROR   14

#define BOARDS    1024 /* of all devices, at most: as natively */
#define BLOCK     1024 /* initial dimension of a tile, as natively */
#define MATRICES  3u   /* of a call, at most */
#define ALIGNMENT 256u /* as cudaMalloc aligns */

struct context {
    void *blas, *stream; /* of the device; NULL: none is selected */
    int device;
    int block, pinning; /* kept for the program alone */
};

/* The values have its address, and behind that its leading dimension. The last matrix of a call is
 * its result. */
struct matrix {
    unsigned at;
    uint64_t rows, columns;
};

struct operands {
    union ibx_math_value *values;
    const struct matrix *of;
    unsigned count;
    bool reads_result;
    size_t element;          /* bytes */
    size_t begins[MATRICES]; /* where each is in device memory */
    size_t bytes;            /* of all there */
};

/* ------------------------------------------------------------------------------- calls */

/* Lays the matrices out, one behind the other without gaps in them. False: one is not valid. */
static bool lay_out(struct operands *o)
{
    for (unsigned i = 0; i < o->count; i++) {
        const struct matrix *m = &o->of[i];
        size_t n;
        if (!o->values[m->at].p || o->values[m->at + 1].l < m->rows ||
            __builtin_mul_overflow(m->rows, m->columns, &n) ||
            __builtin_mul_overflow(n, o->element, &n) ||
            __builtin_add_overflow(n, ALIGNMENT - 1, &n))
            return false;
        o->begins[i] = o->bytes;
        if (__builtin_add_overflow(o->bytes, n / ALIGNMENT * ALIGNMENT, &o->bytes))
            return false;
    }
    return true;
}

static int copy_rows(const struct operands *o, const struct matrix *m, char *device, bool back,
                     void *stream)
{
    const size_t width = m->rows * o->element, pitch = o->values[m->at + 1].l * o->element;
    char *programs = o->values[m->at].p;
    return back ? cudaMemcpy2DAsync(programs, pitch, device, width, width, m->columns,
                                    CUDA_MEMCPY_DEFAULT, stream)
                : cudaMemcpy2DAsync(device, width, programs, pitch, width, m->columns,
                                    CUDA_MEMCPY_DEFAULT, stream);
}

static int compute_at(const struct context *x, unsigned number, const struct operands *o,
                      char *device)
{
    const unsigned result = o->count - 1;
    union ibx_math_value values[IBX_MATH_ARGUMENTS];
    memcpy(values, o->values, (o->of[result].at + 2) * sizeof(*values)); /* no others follow it */
    values[0].p = x->blas;
    for (unsigned i = 0; i < o->count; i++) {
        values[o->of[i].at].p = device + o->begins[i];
        values[o->of[i].at + 1].l = o->of[i].rows;
        if ((i != result || o->reads_result) &&
            copy_rows(o, &o->of[i], device + o->begins[i], false, x->stream))
            return MAPPING_ERROR;
    }
    const int status = ibx_frontend_math(number, values);
    if (!status && copy_rows(o, &o->of[result], device + o->begins[result], true, x->stream))
        return MAPPING_ERROR;
    return status;
}

static int compute_on_device(const struct context *x, unsigned number, struct operands *o)
{
    void *device = NULL;
    if (cudaMalloc(&device, o->bytes))
        return ALLOC_FAILED;
    int status = compute_at(x, number, o, device);
    if (cudaStreamSynchronize(x->stream) && !status)
        status = EXECUTION_FAILED;
    cudaFree(device);
    return status;
}

/* Then a call has nothing to do: natively even C stays as it is. */
static bool one_is_empty(const struct operands *o)
{
    bool empty = false;
    for (unsigned i = 0; i < o->count; i++)
        empty = empty || !o->of[i].rows || !o->of[i].columns;
    return empty;
}

static int compute(unsigned number, size_t element, union ibx_math_value *values,
                   const struct matrix *matrices, unsigned count, bool reads_result)
{
    const struct context *x = values[0].p;
    struct operands o = {.values = values,
                         .of = matrices,
                         .count = count,
                         .reads_result = reads_result,
                         .element = element};
    struct ibx_math_unnoticed unnoticed;
    int before, status = NOT_INITIALIZED;
    if (!x || !x->blas)
        return NOT_INITIALIZED;
    if (!lay_out(&o))
        return INVALID_VALUE;
    if (one_is_empty(&o))
        return 0;
    ibx_math_unnoticed_begin(&unnoticed);
    if (!cudaGetDevice(&before) && !cudaSetDevice(x->device)) {
        status = compute_on_device(x, number, &o);
        cudaSetDevice(before);
    }
    ibx_math_unnoticed_end(&unnoticed, status);
    return status;
}

/* ------------------------------------------------------------------------------- shapes */

/* cuBLAS does not read C if beta is 0. */
static bool reads(const void *beta, size_t element)
{
    static const char zero[16];
    return !beta || memcmp(beta, zero, element);
}

/* `v` are the arguments of cuBLAS's function. Of syrk and its like one triangle of the result stays
 * as it is, so that is copied to the device whatever beta is. */

static int gemm(unsigned number, size_t element, union ibx_math_value *v)
{
    const uint64_t m = v[3].l, n = v[4].l, k = v[5].l;
    const struct matrix of[] = {
        {7, v[1].i ? k : m, v[1].i ? m : k}, {9, v[2].i ? n : k, v[2].i ? k : n}, {12, m, n}};
    return compute(number, element, v, of, 3, reads(v[11].p, element));
}

/* Also herk. */
static int syrk(unsigned number, size_t element, union ibx_math_value *v)
{
    const uint64_t n = v[3].l, k = v[4].l;
    const struct matrix of[] = {{6, v[2].i ? k : n, v[2].i ? n : k}, {9, n, n}};
    return compute(number, element, v, of, 2, true);
}

/* Also her2k, syrkx and herkx. */
static int syr2k(unsigned number, size_t element, union ibx_math_value *v)
{
    const uint64_t n = v[3].l, k = v[4].l, rows = v[2].i ? k : n, columns = v[2].i ? n : k;
    const struct matrix of[] = {{6, rows, columns}, {8, rows, columns}, {11, n, n}};
    return compute(number, element, v, of, 3, true);
}

/* Also hemm. */
static int symm(unsigned number, size_t element, union ibx_math_value *v)
{
    const uint64_t m = v[3].l, n = v[4].l, order = v[1].i ? n : m;
    const struct matrix of[] = {{6, order, order}, {8, m, n}, {11, m, n}};
    return compute(number, element, v, of, 3, reads(v[10].p, element));
}

static int trsm(unsigned number, size_t element, union ibx_math_value *v)
{
    const uint64_t m = v[5].l, n = v[6].l, order = v[1].i ? n : m;
    const struct matrix of[] = {{8, order, order}, {10, m, n}};
    return compute(number, element, v, of, 2, true);
}

static int trmm(unsigned number, size_t element, union ibx_math_value *v)
{
    const uint64_t m = v[5].l, n = v[6].l, order = v[1].i ? n : m;
    const struct matrix of[] = {{8, order, order}, {10, m, n}, {12, m, n}};
    return compute(number, element, v, of, 3, false);
}

/* ------------------------------------------------------------------------------- exported */

#define EXPORTED __attribute__((visibility("default")))

#define XT(name, version, shape, element, ...)                                                     \
    EXPORTED int cublasXt##name(IBX_EACH(IBX_PARAMETER, __VA_ARGS__))                              \
    {                                                                                              \
        union ibx_math_value values[] = {IBX_EACH(IBX_INITIALISER, __VA_ARGS__)};                  \
        return shape(IBX_MATH_cublas##name##version##_64, element, values);                        \
    }
#define XT_REAL(name, version, shape, ...)                                                         \
    XT(S##name, version, shape, 4, __VA_ARGS__)                                                    \
    XT(D##name, version, shape, 8, __VA_ARGS__)
#define XT_COMPLEX(name, version, shape, ...)                                                      \
    XT(C##name, version, shape, 8, __VA_ARGS__)                                                    \
    XT(Z##name, version, shape, 16, __VA_ARGS__)
#define XT_ALL(name, version, shape, ...)                                                          \
    XT_REAL(name, version, shape, __VA_ARGS__)                                                     \
    XT_COMPLEX(name, version, shape, __VA_ARGS__)

XT_ALL(gemm, _v2, gemm, P, I, I, L, L, L, P, P, L, P, L, P, P, L)
XT_ALL(syrk, _v2, syrk, P, I, I, L, L, P, P, L, P, P, L)
XT_COMPLEX(herk, _v2, syrk, P, I, I, L, L, P, P, L, P, P, L)
XT_ALL(syr2k, _v2, syr2k, P, I, I, L, L, P, P, L, P, L, P, P, L)
XT_COMPLEX(her2k, _v2, syr2k, P, I, I, L, L, P, P, L, P, L, P, P, L)
XT_ALL(syrkx, , syr2k, P, I, I, L, L, P, P, L, P, L, P, P, L)
XT_COMPLEX(herkx, , syr2k, P, I, I, L, L, P, P, L, P, L, P, P, L)
XT_ALL(symm, _v2, symm, P, I, I, L, L, P, P, L, P, L, P, P, L)
XT_COMPLEX(hemm, _v2, symm, P, I, I, L, L, P, P, L, P, L, P, P, L)
XT_ALL(trsm, _v2, trsm, P, I, I, I, I, L, L, P, P, L, P, L)
XT_ALL(trmm, _v2, trmm, P, I, I, I, I, L, L, P, P, L, P, L, P, L)

EXPORTED int cublasXtCreate(struct context **made)
{
    struct context *x = made ? calloc(1, sizeof(*x)) : NULL;
    if (!x)
        return made ? ALLOC_FAILED : INVALID_VALUE;
    x->block = BLOCK;
    *made = x;
    return 0;
}

EXPORTED int cublasXtDestroy(struct context *x)
{
    if (!x)
        return NOT_INITIALIZED;
    if (x->blas) {
        cublasDestroy_v2(x->blas);
        ibx_frontend_stream_destroy(x->stream);
    }
    free(x);
    return 0;
}

static int select_current(struct context *x)
{
    void *stream = NULL, *blas = NULL;
    if (cudaStreamCreate(&stream))
        return ALLOC_FAILED;
    int status = cublasCreate_v2(&blas);
    if (!status && (status = cublasSetStream_v2(blas, stream)))
        cublasDestroy_v2(blas);
    if (status) {
        ibx_frontend_stream_destroy(stream);
        return status;
    }
    x->blas = blas;
    x->stream = stream;
    return 0;
}

EXPORTED int cublasXtDeviceSelect(struct context *x, int n, const int *devices)
{
    int all, before, status = INTERNAL_ERROR;
    if (!x)
        return NOT_INITIALIZED;
    if (n <= 0 || !devices || x->blas) /* selected once, as natively */
        return INVALID_VALUE;
    if (cudaGetDeviceCount(&all) || cudaGetDevice(&before))
        return INTERNAL_ERROR;
    for (int i = 0; i < n; i++) {
        if (devices[i] < 0 || devices[i] >= all)
            return INTERNAL_ERROR;
    }
    if (!cudaSetDevice(devices[0])) {
        status = select_current(x);
        cudaSetDevice(before);
    }
    if (!status)
        x->device = devices[0];
    return status;
}

EXPORTED int cublasXtMaxBoards(int *boards)
{
    if (!boards)
        return INVALID_VALUE;
    *boards = BOARDS;
    return 0;
}

EXPORTED int cublasXtGetNumBoards(int n, const int *devices, int *boards)
{
    if (n <= 0 || !devices || !boards)
        return INVALID_VALUE;
    *boards = n;
    return 0;
}

/* The following have no effect here: no call is divided, and the processor computes no share. */

EXPORTED int cublasXtSetBlockDim(struct context *x, int block)
{
    if (!x || block <= 0)
        return x ? INVALID_VALUE : NOT_INITIALIZED;
    x->block = block;
    return 0;
}

EXPORTED int cublasXtGetBlockDim(const struct context *x, int *block)
{
    if (!x || !block)
        return x ? INVALID_VALUE : NOT_INITIALIZED;
    *block = x->block;
    return 0;
}

EXPORTED int cublasXtSetPinningMemMode(struct context *x, int mode)
{
    if (!x || mode < 0 || mode > 1)
        return x ? INVALID_VALUE : NOT_INITIALIZED;
    x->pinning = mode;
    return 0;
}

EXPORTED int cublasXtGetPinningMemMode(const struct context *x, int *mode)
{
    if (!x || !mode)
        return x ? INVALID_VALUE : NOT_INITIALIZED;
    *mode = x->pinning;
    return 0;
}

EXPORTED int cublasXtSetCpuRoutine(const struct context *x, int routine, int type, void *function)
{
    (void)routine, (void)type, (void)function;
    return x ? 0 : NOT_INITIALIZED;
}

EXPORTED int cublasXtSetCpuRatio(const struct context *x, int routine, int type, float ratio)
{
    (void)routine, (void)type, (void)ratio;
    return x ? 0 : NOT_INITIALIZED;
}
