/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Functions of cuBLAS and other libraries (session/math_calls.h) of an application whose back
 * end answers anything. A function writes only what its caller has named, in memory without a
 * spare byte, and reports no more results than there is room for.
 *
 * fake_frontend.c replaces the plugin and GVirtuS's front end. Input, in this order:
 *
 * - u8 n, and n steps of eight bytes: the function's number, two bytes, and choices for its
 *   arguments, which are used cyclically;
 * - the answers, see fake_frontend.h. */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/math_libraries/math_calls.h"
#include "tests/fuzz/fake_frontend.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define STEP    8u
#define CHOICES (STEP - 2)
#define HANDLES 4u
#define MADE    256u /* by one input, at most */

/* ------------------------------------------------------------ the program */

/* The functions that the library exports, in the order of ibx_math_each(). */
#undef MATH_BY_HAND
#define MATH_BY_HAND    MATH
#define MATH(name, ...) (void *)(uintptr_t)name,
static void *const exported[] = {
#include "frontend-glue/session/math_blas.def"
#include "frontend-glue/session/math_rng.def"
#include "frontend-glue/session/math_fft.def"
#include "frontend-glue/session/math_sparse.def"
#include "frontend-glue/session/math_solver.def"
#include "frontend-glue/session/math_lt.def"
#undef MATH_APART
#define MATH_APART(...) NULL, /* it has other parameters */
#include "frontend-glue/session/math_dnn.def"
#include "frontend-glue/session/math_nccl.def"
};
#undef MATH
_Static_assert(sizeof(exported) / sizeof(exported[0]) == IBX_MATH_FUNCTIONS, "all of them");

static uint64_t handles[HANDLES], made[MADE];
static unsigned made_count;
static void *descriptors[IBX_DESCRIPTOR_TYPES];
static void *named[IBX_MATH_ARGUMENTS + 1];
static unsigned named_count;

/* Memory for n bytes, which is freed after the step. */
static void *memory(size_t n)
{
    require(named_count <= IBX_MATH_ARGUMENTS);
    void *at = malloc(n);
    require(at || !n);
    if (n)
        memset(at, 1, n);
    return named[named_count++] = at;
}

static void put_plain(const struct ibx_math_argument *a, union ibx_math_value *v, uint8_t choice)
{
    static const int numbers[] = {0, 1, 2, 3, 5, 14, 68, 70, 127, -1, 13000, INT32_MAX};
    static const uint64_t longs[] = {0, 1, 4, 8, 64, 1000, 13000, UINT64_MAX};
    switch (a->kind) {
    case IBX_MATH_INT:
        v->i = numbers[choice % (sizeof(numbers) / sizeof(numbers[0]))];
        break;
    case IBX_MATH_LONG:
        v->l = longs[choice % (sizeof(longs) / sizeof(longs[0]))];
        break;
    case IBX_MATH_DEVICE:
    case IBX_MATH_STREAM:
    case IBX_MATH_LAST_STREAM:
        v->p = (void *)(uintptr_t)(choice % 4 * 0x1000);
        break;
    case IBX_MATH_HANDLE:
    case IBX_MATH_OTHER:
        v->p = (void *)(uintptr_t)handles[choice % HANDLES];
        break;
    case IBX_MATH_PLAN:
        v->i = (int)handles[choice % HANDLES];
        break;
    case IBX_MATH_DESCRIPTOR:
        v->p = choice % 8 ? descriptors[a->n] : NULL;
        break;
    default:
        v->p = NULL;
    }
}

/* The largest number of results of a search at once; the function asks for no more. */
#define SEARCH_MOST (128u * 96u)

/* As much of the host's memory as the function uses. */
static void put_host(const struct ibx_math_argument *a, unsigned i, union ibx_math_value *values,
                     uint8_t choice)
{
    switch (a->kind) {
    case IBX_MATH_MAKES:
        values[i].p = choice % 8 ? memory(8) : NULL;
        break;
    case IBX_MATH_MAKES_PLAN:
        values[i].p = choice % 8 ? memory(4) : NULL;
        break;
    case IBX_MATH_ALPHA:
    case IBX_MATH_BETA:
        values[i].p = memory(16);
        break;
    case IBX_MATH_SCALAR:
    case IBX_MATH_RESULT:
    case IBX_MATH_CHANGED:
    case IBX_MATH_HOST_CHANGED:
    case IBX_MATH_OUTPUT:
    case IBX_MATH_ARRAY:
    case IBX_MATH_ARRAY_OR_NULL:
    case IBX_MATH_HOST_OR_NULL:
        values[i].p = choice % 8 ? memory(ibx_math_bytes(a, values)) : NULL;
        break;
    default:
        break;
    }
    if (a->kind == IBX_MATH_OUTPUT && a->size == IBX_MATH_BYTES_OF_INT && a->n == 96 &&
        values[a->of].i > 128 && values[i].p)
        values[i].p = memory(SEARCH_MOST);
}

/* Keeps what a later step may use, as a program would. */
static void keep(const struct ibx_math_function *f, const union ibx_math_value *values,
                 uint8_t choice)
{
    for (unsigned i = 0; i < f->count; i++) {
        const unsigned kind = f->arguments[i].kind;
        if ((kind != IBX_MATH_MAKES && kind != IBX_MATH_MAKES_PLAN) || !values[i].p ||
            made_count == MADE)
            continue;
        uint64_t value = 0;
        memcpy(&value, values[i].p, kind == IBX_MATH_MAKES ? 8 : 4);
        handles[choice % HANDLES] = made[made_count++] = value;
    }
}

/* Checks how many results or bytes are reported: a program reads that many. */
static void require_room(const struct ibx_math_function *f, const union ibx_math_value *values)
{
    int count = 0;
    uint64_t bytes = 0;
    switch (f->number) {
    case IBX_MATH_cublasLtMatmulAlgoGetIds:
    case IBX_MATH_cublasLtMatmulAlgoGetHeuristic:
        if (values[f->count - 1].p)
            memcpy(&count, values[f->count - 1].p, sizeof(count));
        require(count >= 0 && (!count || count <= values[7].i));
        break;
    case IBX_MATH_cublasLtMatmulAlgoCapGetAttribute:
    case IBX_MATH_cublasLtMatmulAlgoConfigGetAttribute:
        if (values[f->count - 1].p)
            memcpy(&bytes, values[f->count - 1].p, sizeof(bytes));
        require(!values[3].l || bytes <= values[3].l);
        break;
    default:
        break;
    }
}

static void run_step(const uint8_t *step)
{
    union ibx_math_value values[IBX_MATH_ARGUMENTS] = {{0}};
    const unsigned which = (step[0] | (unsigned)step[1] << 8) % IBX_MATH_FUNCTIONS;
    const struct ibx_math_function *f = ibx_math_each(which);
    for (unsigned i = 0; i < f->count; i++)
        put_plain(&f->arguments[i], &values[i], step[2 + i % CHOICES]);
    for (unsigned i = 0; i < f->count; i++)
        put_host(&f->arguments[i], i, values, step[2 + (i + i / CHOICES) % CHOICES]);
    if (exported[which] && !f->call(exported[which], values)) {
        keep(f, values, step[2]);
        require_room(f, values);
    }
    while (named_count)
        free(named[--named_count]);
}

static void make_descriptors(void)
{
    require(!cublasLtMatrixLayoutCreate(&descriptors[IBX_DESCRIPTOR_LAYOUT], 0, 16, 16, 16));
    require(!cublasLtMatmulDescCreate(&descriptors[IBX_DESCRIPTOR_MATMUL], 68, 0));
    require(!cublasLtMatrixTransformDescCreate(&descriptors[IBX_DESCRIPTOR_TRANSFORM], 0));
    require(!cublasLtMatmulPreferenceCreate(&descriptors[IBX_DESCRIPTOR_PREFERENCE]));
}

/* The answer to the first request says, for the whole process, whose descriptors they are. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const uint8_t good[] = {0, 4, 0, 1, 0, 0, 0};
    (void)argc, (void)argv;
    fake_frontend_begin(ibx_reader_of(good, sizeof(good)));
    require(ibx_frontend_lt_is_ours());
    make_descriptors();
    return 0;
}

/* Like a program that continues: nothing of this input is kept. */
static void forget(void)
{
    fake_frontend_begin(ibx_reader_of(NULL, 0));
    for (unsigned i = 0; i < made_count + HANDLES; i++) {
        const uint64_t handle = i < made_count ? made[i] : handles[i - made_count];
        for (unsigned type = 0; type < IBX_MATH_TYPES; type++)
            ibx_math_handle_end((enum ibx_math_type)type, handle);
        ibx_math_settings_end(handle);
        ibx_math_vector_ended(handle);
    }
    ibx_math_answers_forget();
    made_count = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned count;
    const uint8_t *steps = fake_frontend_steps(data, size, STEP, &count);
    if (!steps)
        return 0;
    for (unsigned i = 0; i < HANDLES; i++)
        handles[i] = 0x1000 * i;
    for (unsigned i = 0; i < count; i++)
        run_step(steps + STEP * i);
    forget();
    return 0;
}
