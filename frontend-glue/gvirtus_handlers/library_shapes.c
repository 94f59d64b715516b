/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Handlers of libraries (cuBLAS, cuDNN, cuRAND, NVML) take lengths from a request without checks:
 * of arrays on their stack, of a reply, of host memory. They pass on scalars at any alignment.
 */
#include "frontend-glue/gvirtus_handlers/request_shapes.h"

#include <string.h>

#define NAME_KNOWN    23u /* characters of a request's name */
#define BUFFER_BLOCK  UINT64_C(4096)
#define DIMENSIONS    64u    /* of tensors; cuDNN has at most 8 */
#define REPLY_NUMBERS 960u   /* behind others in a reply's first block, which must not move */
#define STACK_BYTES   65536u /* that a handler may take */
#define HEURISTICS    512u   /* of 96 bytes each */
#define NVML_TEXT     256u   /* NVML's longest has 96 */
#define RANDOM_MOST   (UINT64_C(1) << 40)

#define TRANSFORM_BYTES 20u /* of a request for a transform by cuFFT, at least */

static const struct limit {
    const char *name;
    unsigned at, bytes;
    uint64_t most, instead; /* `instead` replaces larger numbers, and those below 0 */
    uint64_t least;         /* ... and smaller ones */
} limits[] = {
    {"cublasLtMatmulAlgoGetHeuristic", 56, 4, HEURISTICS, 0, 0},
    {"cudnnBackendGetAttribute", 16, 8, INT32_MAX, 0, 0},
    {"cudnnBackendSetAttribute", 16, 8, INT32_MAX, 0, 0},
    {"cudnnGetConvolutionNdForwardOutputDim", 24, 4, DIMENSIONS, 0, 0},
    /* The handler sends what is on the stack up to a NUL, which cuDNN writes if there is room. */
    {"cudnnGetLastErrorString", 0, 8, STACK_BYTES, STACK_BYTES, 1},
    {"cudnnGetRNNDataDescriptor", 8, 4, REPLY_NUMBERS, 0, 0},
    {"cudnnGetTensorNdDescriptor", 8, 4, DIMENSIONS, 0, 0},
    {"nvmlDeviceGetName", 16, 4, NVML_TEXT, 0, 0},
    {"nvmlSystemGetDriverVersion", 0, 4, NVML_TEXT, 0, 0},
    /* Its `extra`: the handler has CUDA read what follows this number on the stack. */
    {"cuLaunchKernel", 52, 8, 0, UINT64_MAX, 0},
};

/* Where bodies have the numbers of vectors and matrices, i32 unless shown. */
static const struct shape {
    const char *name;
    unsigned rows, columns; /* columns: 0 of a vector, which is one row */
    unsigned element, step; /* step: from an element to the next, or from a column to the next */
    unsigned length;        /* u64, of the bytes that came; 0: the host's bytes are written */
    unsigned host;          /* where the host's bytes begin, or are written to */
} shapes[] = {
    {"cublasSetVector", 0, 0, 4, 8, 24, 32},
    {"cublasSetMatrix", 0, 4, 8, 24, 28, 36},
    {"cublasGetVector", 0, 0, 4, 12, 0, 32},
    {"cublasGetMatrix", 0, 4, 8, 33, 0, 32},
};

/* Requests for random numbers, with the most bytes that G5's handlers read. G3's handlers have
 * cuRAND write all numbers into the request. It is longer by one number, which they read; or it has
 * none, is as long as G5's, and cuRAND writes to NULL. */
static const struct {
    const char *name;
    unsigned bytes;
} randoms[] = {
    {"curandGenerate", 24},
    {"curandGenerateLogNormal", 32},
    {"curandGenerateLogNormalDouble", 40},
    {"curandGenerateLongLong", 24},
    {"curandGenerateNormal", 32},
    {"curandGenerateNormalDouble", 40},
    {"curandGeneratePoisson", 32},
    {"curandGenerateUniform", 24},
    {"curandGenerateUniformDouble", 24},
};

static int64_t integer(const uint8_t *body, size_t n, unsigned at)
{
    return (int32_t)ibx_body_number(body, n, at, 4);
}

/* The bytes of host memory that the call reaches, and those that the handler sends, which it counts
 * as an int. UINT64_MAX: too many. */
static uint64_t reach(const struct shape *s, const uint8_t *body, size_t n)
{
    const int64_t rows = integer(body, n, s->rows), element = integer(body, n, s->element);
    const int64_t columns = s->columns ? integer(body, n, s->columns) : 1,
                  step = integer(body, n, s->step);
    int64_t sent = 0, most = 0;
    if (!rows || !columns || !element)
        return 0;
    if (rows < 0 || columns < 0 || element < 0 || step <= 0)
        return UINT64_MAX; /* cuBLAS refuses it, but the handler sends something nevertheless */
    const int64_t elements = s->columns ? rows : 1, steps = (s->columns ? columns : rows) - 1;
    if (__builtin_mul_overflow(rows, columns, &sent) ||
        __builtin_mul_overflow(sent, element, &sent) || sent > INT32_MAX ||
        __builtin_mul_overflow(steps, step, &most) ||
        __builtin_add_overflow(most, elements, &most) ||
        __builtin_mul_overflow(most, element, &most))
        return UINT64_MAX;
    return (uint64_t)(sent > most ? sent : most);
}

/* Elements of 0 bytes: cuBLAS refuses them, and the handler sends none. */
static void sanitize_vector(const struct shape *s, uint8_t *body, size_t n, uint64_t room)
{
    if (n < s->host || n < s->step + 4)
        return; /* the handler finds too few bytes */
    const uint64_t left = n - s->host;
    const uint64_t come = s->length ? ibx_body_number(body, n, s->length, 8) : room - s->host;
    if ((s->length && come > left) || reach(s, body, n) > come)
        ibx_body_set_number(body, n, s->element, 4, 0);
}

static void sanitize_number(const struct limit *l, uint8_t *body, size_t n)
{
    const uint64_t number = ibx_body_number(body, n, l->at, l->bytes);
    if (number > l->most || number < l->least)
        ibx_body_set_number(body, n, l->at, l->bytes, l->instead);
}

/* A longer request loses its generator, without which cuRAND refuses. In one of G5's length with 0
 * at byte 8, byte 16 becomes 0. For G3's handler that is how many numbers to write to NULL. For
 * G5's handler byte 8 is that count, so byte 16 (an address, a mean, or Poisson's lambda, 0 of
 * which cuRAND may refuse) does not matter. */
static void sanitize_random(const char *name, uint8_t *body, size_t n)
{
    for (size_t i = 0; i < sizeof(randoms) / sizeof(randoms[0]); i++) {
        if (strcmp(randoms[i].name, name) != 0)
            continue;
        if (n > randoms[i].bytes)
            ibx_body_set_number(body, n, 0, 8, 0);
        else if (n == randoms[i].bytes && !ibx_body_number(body, n, 8, 8))
            ibx_body_set_number(body, n, 16, 8, 0);
    }
}

/* cuBLAS (13) ends the process, likely since it reads these scalars by instructions that need 16
 * bytes' alignment, which they do not have in the request. It refuses to work without a handle
 * before that. */
static void sanitize_unaligned(const char *name, uint8_t *body, size_t n)
{
    if (!strcmp(name, "cublasZhpmv_v2"))
        ibx_body_set_number(body, n, 0, 8, 0);
}

/* A plan and two addresses of the device. If the second one is missing, the handler goes on with an
 * address that it has not set. It gets no plan then, without which cuFFT refuses. */
static void sanitize_transform(const char *name, uint8_t *body, size_t n)
{
    if (!strncmp(name, "cufftExec", 9) && n < TRANSFORM_BYTES)
        ibx_body_set_number(body, n, 0, 4, UINT32_MAX);
}

static uint64_t room_for(uint64_t longest)
{
    return longest > UINT64_MAX - BUFFER_BLOCK ? longest
                                               : (longest / BUFFER_BLOCK + 1) * BUFFER_BLOCK;
}

void ibx_library_shapes_sanitize(const char *name, uint8_t *body, size_t n, uint64_t longest)
{
    static const struct limit random = {"curandGenerate", 8, 8, RANDOM_MOST, 0, 0};
    const uint64_t room = room_for(longest > n ? longest : n);
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        if (!strncmp(limits[i].name, name, NAME_KNOWN))
            sanitize_number(&limits[i], body, n);
    }
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        if (!strcmp(shapes[i].name, name))
            sanitize_vector(&shapes[i], body, n, room);
    }
    if (!strncmp(name, random.name, strlen(random.name))) {
        sanitize_number(&random, body, n);
        sanitize_random(name, body, n);
    }
    sanitize_unaligned(name, body, n);
    sanitize_transform(name, body, n);
}
