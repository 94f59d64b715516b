/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Solvers of cuSOLVER for sparse matrices in host memory (cusolverSp?csrlsv*Host). Natively the
 * processor solves. Here the system is copied to the device, which has the same solvers, except
 * that by LU factors: QR factors solve the same systems. Unlike natively, a call waits for the work
 * of the device, since cudaFree() does.
 */
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/preload.h"

#define SOLVER_ALLOC_FAILED   2
#define SOLVER_INVALID_VALUE  3
#define SOLVER_INTERNAL_ERROR 7

#define NON_BLOCKING 1u   /* cudaStreamNonBlocking */
#define ALIGNMENT    256u /* as cudaMalloc aligns */

/* In the order in which they are in device memory, each aligned. */
enum part { VALUES, ROWS, COLUMNS, RIGHT_SIDE, SOLUTION, PARTS };

struct linear_system {
    unsigned number; /* of the solver on the device */
    void *handle;
    int n, nonzeros; /* rows and columns; values */
    void *matrix;    /* its description, cuSPARSE's */
    const void *of[SOLUTION];
    union ibx_math_value tolerance;
    int reorder;
    void *x;
    int *singularity;
    size_t element;       /* bytes of a value */
    size_t bytes[PARTS];  /* of each part */
    size_t begins[PARTS]; /* where each is in device memory */
};

/* Lays the parts out. Returns how many bytes all have. */
static size_t lay_out(struct linear_system *s)
{
    const size_t n = (size_t)s->n, nonzeros = (size_t)s->nonzeros;
    size_t all = 0;
    s->bytes[VALUES] = nonzeros * s->element;
    s->bytes[ROWS] = (n + 1) * sizeof(int);
    s->bytes[COLUMNS] = nonzeros * sizeof(int);
    s->bytes[RIGHT_SIDE] = s->bytes[SOLUTION] = n * s->element;
    for (enum part part = VALUES; part < PARTS; part++) {
        s->begins[part] = all;
        all += (s->bytes[part] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return all;
}

/* All is added to this stream, which is the handle's meanwhile. */
static int solve_at(struct linear_system *s, char *device, void *stream)
{
    union ibx_math_value values[] = {{.p = s->handle},
                                     {.i = s->n},
                                     {.i = s->nonzeros},
                                     {.p = s->matrix},
                                     {.p = device + s->begins[VALUES]},
                                     {.p = device + s->begins[ROWS]},
                                     {.p = device + s->begins[COLUMNS]},
                                     {.p = device + s->begins[RIGHT_SIDE]},
                                     s->tolerance,
                                     {.i = s->reorder},
                                     {.p = device + s->begins[SOLUTION]},
                                     {.p = s->singularity}};
    for (enum part part = VALUES; part < SOLUTION; part++) {
        if (cudaMemcpyAsync(device + s->begins[part], s->of[part], s->bytes[part],
                            CUDA_MEMCPY_TO_DEVICE, stream))
            return SOLVER_INTERNAL_ERROR;
    }
    const int status = ibx_frontend_math(s->number, values);
    if (!status && cudaMemcpyAsync(s->x, device + s->begins[SOLUTION], s->bytes[SOLUTION],
                                   CUDA_MEMCPY_FROM_DEVICE, stream))
        return SOLVER_INTERNAL_ERROR;
    /* also after an error: the stream may still read the memory, which is freed now */
    return cudaStreamSynchronize(stream) && !status ? SOLVER_INTERNAL_ERROR : status;
}

/* Not in the program's own stream, which may be captured. */
static int solve_in_own_stream(struct linear_system *s, void *programs)
{
    void *device = NULL, *stream = NULL;
    if (cudaStreamCreateWithFlags(&stream, NON_BLOCKING))
        return SOLVER_ALLOC_FAILED;
    int status = cudaMalloc(&device, lay_out(s)) ? SOLVER_ALLOC_FAILED : 0;
    if (!status)
        status = cusolverSpSetStream(s->handle, stream);
    if (!status) {
        status = solve_at(s, device, stream);
        cusolverSpSetStream(s->handle, programs);
    }
    cudaFree(device);
    ibx_frontend_stream_destroy(stream);
    return status;
}

static int solve(struct linear_system *s)
{
    void *programs = NULL;
    int status = cusolverSpGetStream(s->handle, &programs);
    if (status)
        return status;
    if (s->n <= 0 || s->nonzeros <= 0 || !s->x || !s->singularity)
        return SOLVER_INVALID_VALUE;
    for (enum part part = VALUES; part < SOLUTION; part++) {
        if (!s->of[part])
            return SOLVER_INVALID_VALUE;
    }
    struct ibx_math_unnoticed unnoticed;
    ibx_math_unnoticed_begin(&unnoticed);
    status = solve_in_own_stream(s, programs);
    ibx_math_unnoticed_end(&unnoticed, status);
    return status;
}

/* The formats in which cuSOLVER names its functions: S, D, C, Z. */
#define SOLVER(format, method, device_method, size, real, member)                                  \
    int cusolverSp##format##csrlsv##method##Host(                                                  \
        void *handle, int n, int nonzeros, void *matrix, const void *values, const int *rows,      \
        const int *columns, const void *b, real tolerance, int reorder, void *x, int *singularity) \
    {                                                                                              \
        struct linear_system s = {.number = IBX_MATH_cusolverSp##format##csrlsv##device_method,    \
                                  .handle = handle,                                                \
                                  .n = n,                                                          \
                                  .nonzeros = nonzeros,                                            \
                                  .matrix = matrix,                                                \
                                  .of = {values, rows, columns, b},                                \
                                  .tolerance = {.member = tolerance},                              \
                                  .reorder = reorder,                                              \
                                  .x = x,                                                          \
                                  .singularity = singularity,                                      \
                                  .element = size};                                                \
        return solve(&s);                                                                          \
    }
#define SOLVERS(format, size, real, member)                                                        \
    SOLVER(format, qr, qr, size, real, member)                                                     \
    SOLVER(format, lu, qr, size, real, member)                                                     \
    SOLVER(format, chol, chol, size, real, member)
SOLVERS(S, 4, float, f)
SOLVERS(D, 8, double, d)
SOLVERS(C, 8, float, f)
SOLVERS(Z, 16, double, d)
