/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Limits of what clients make libraries hold (math_calls.c): handles, which cost host memory, and
 * some of them GPU memory, too; and host memory in which a function works.
 */
#include "frontend-glue/tenants/math_limits.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Which requests must have a handle of a type alone. */
enum alone {
    WHO_SELECTS = 1, /* its stream or pointer mode: threads may share the handle otherwise */
    WHO_SETS_UP,     /* its contents, or its stream */
    WHO_WORKS        /* ... or uses it, which changes it */
};

static const struct {
    enum ibx_hold hold;
    enum alone alone;
    bool filled; /* functions whose own handle is another one may write to it, too */
} types[IBX_MATH_TYPES] = {
    [IBX_MATH_COMM] = {IBX_HOLD_LIBRARIES, WHO_SELECTS, false}, /* math_nccl.c has it alone */
    [IBX_MATH_DNN] = {IBX_HOLD_LIBRARIES, WHO_SELECTS, false},
    [IBX_MATH_GRAPH] = {IBX_HOLD_GRAPH_PARTS, WHO_SETS_UP, false},
    [IBX_MATH_TENSOR] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
    [IBX_MATH_FILTER] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
    [IBX_MATH_CONVOLUTION] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
    [IBX_MATH_ACTIVATION] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
    [IBX_MATH_POOLING] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
    [IBX_MATH_SPATIAL] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
    [IBX_MATH_RNN] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
    [IBX_MATH_RNNDATA] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
    [IBX_MATH_DROPOUT] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
    [IBX_MATH_BLAS] = {IBX_HOLD_LIBRARIES, WHO_SELECTS, false},
    [IBX_MATH_LT] = {IBX_HOLD_LIBRARIES, WHO_SELECTS, false},
    [IBX_MATH_SPARSE] = {IBX_HOLD_LIBRARIES, WHO_SELECTS, false},
    [IBX_MATH_SOLVER] = {IBX_HOLD_LIBRARIES, WHO_SELECTS, false},
    [IBX_MATH_SPSOLVER] = {IBX_HOLD_LIBRARIES, WHO_SELECTS, false},
    [IBX_MATH_RNG] = {IBX_HOLD_LIBRARIES, WHO_WORKS, false},
    [IBX_MATH_FFT] = {IBX_HOLD_PLANS, WHO_SETS_UP, false},
    [IBX_MATH_DISTRIBUTION] = {IBX_HOLD_PLANS, WHO_SETS_UP, false},
    [IBX_MATH_SPGEMM] = {IBX_HOLD_PLANS, WHO_SETS_UP, true},
    [IBX_MATH_SPSM] = {IBX_HOLD_PLANS, WHO_SETS_UP, true},
    [IBX_MATH_SPSV] = {IBX_HOLD_PLANS, WHO_SETS_UP, true},
    [IBX_MATH_CSRIC02] = {IBX_HOLD_PLANS, WHO_SETS_UP, true},
    [IBX_MATH_CSRILU02] = {IBX_HOLD_PLANS, WHO_SETS_UP, true},
    [IBX_MATH_BSRIC02] = {IBX_HOLD_PLANS, WHO_SETS_UP, true},
    [IBX_MATH_BSRILU02] = {IBX_HOLD_PLANS, WHO_SETS_UP, true},
    [IBX_MATH_CSRU2CSR] = {IBX_HOLD_PLANS, WHO_SETS_UP, true},
    [IBX_MATH_CSRQR] = {IBX_HOLD_PLANS, WHO_SETS_UP, true},
    [IBX_MATH_CSRCHOL] = {IBX_HOLD_PLANS, WHO_SETS_UP, true},
    [IBX_MATH_REFACTOR] = {IBX_HOLD_PLANS, WHO_WORKS, true},
    [IBX_MATH_IRSINFOS] = {IBX_HOLD_PLANS, WHO_SETS_UP, true},
    [IBX_MATH_SYEVJ] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, true},
    [IBX_MATH_GESVDJ] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, true},
    [IBX_MATH_SPMAT] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
    [IBX_MATH_DNMAT] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
    [IBX_MATH_SPVEC] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
    [IBX_MATH_DNVEC] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
    [IBX_MATH_MATRIX] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
    [IBX_MATH_PARAMS] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
    [IBX_MATH_IRSPARAMS] = {IBX_HOLD_DESCRIPTORS, WHO_SETS_UP, false},
};

enum ibx_hold ibx_math_hold(unsigned type)
{
    return types[type].hold;
}

/* The type of the handle that the function makes; IBX_MATH_TYPES: none. */
static unsigned made_by(const struct ibx_math_function *f)
{
    for (unsigned i = 0; i < f->count; i++) {
        const struct ibx_math_argument *a = &f->arguments[i];
        if (ibx_math_is_made(a))
            return a->n;
    }
    return IBX_MATH_TYPES;
}

enum ibx_hold ibx_math_makes(const struct ibx_math_function *f)
{
    const unsigned type = made_by(f);
    return type < IBX_MATH_TYPES ? ibx_math_hold(type) : IBX_HOLDS;
}

/* cudnnBackendDescriptorType_t */
#define HEURISTIC 4
#define PLAN      5

unsigned ibx_math_weight(const struct ibx_math_function *f, const union ibx_math_value *values)
{
    const bool heavy = f->number == IBX_MATH_cudnnBackendCreateDescriptor &&
                       (values[0].i == HEURISTIC || values[0].i == PLAN);
    return heavy || made_by(f) == IBX_MATH_COMM ? IBX_MATH_HEAVY : 1;
}

unsigned ibx_math_weight_most(unsigned type)
{
    return type == IBX_MATH_GRAPH || type == IBX_MATH_COMM ? IBX_MATH_HEAVY : 1;
}

/* Functions that make a handle: these are few, and handlers of libraries get many requests. */
#define MAKERS 64u
static const struct ibx_math_function *makers[MAKERS];
static unsigned maker_count;
static pthread_once_t makers_once = PTHREAD_ONCE_INIT;

static void find_makers(void)
{
    const struct ibx_math_function *f;
    for (size_t i = 0; (f = ibx_math_each(i)) && maker_count < MAKERS; i++) {
        if (made_by(f) < IBX_MATH_TYPES)
            makers[maker_count++] = f;
    }
}

bool ibx_math_maker(const char *name, size_t most, unsigned *type)
{
    pthread_once(&makers_once, find_makers);
    for (unsigned i = 0; i < maker_count; i++) {
        if (strncmp(makers[i]->name, name, most) != 0)
            continue;
        *type = made_by(makers[i]);
        return true;
    }
    return false;
}

bool ibx_math_needs_alone(const struct ibx_math_function *f, unsigned type)
{
    const bool selects = f->use == IBX_MATH_USE_SELECTS;
    switch (types[type].alone) {
    case WHO_SELECTS:
        return selects || f->number == IBX_MATH_cublasSetPointerMode_v2 ||
               f->number == IBX_MATH_cusparseSetPointerMode;
    case WHO_SETS_UP:
        return selects || f->use == IBX_MATH_USE_SETS_UP;
    default:
        return f->use != IBX_MATH_USE_ASKS && f->use != IBX_MATH_USE_ENDS;
    }
}

bool ibx_math_fills(const struct ibx_math_function *f, unsigned type)
{
    const bool sets_dropout = f->number == IBX_MATH_cudnnSetDropoutDescriptor ||
                              f->number == IBX_MATH_cudnnRestoreDropoutDescriptor;
    return types[type].filled || (type == IBX_MATH_DROPOUT && sets_dropout) ||
           (type == IBX_MATH_TENSOR && f->number == IBX_MATH_cudnnGetRNNWeightParams);
}

/* ------------------------------------------------------------------------------- workspaces */

/* The library's function NAME_bufferSize for function NAME; NULL: there is none. */
static const struct ibx_math_function *size_function_of(const struct ibx_math_function *f)
{
    char name[64];
    const struct ibx_math_function *asks = NULL;
    if (snprintf(name, sizeof(name), "%s_bufferSize", f->name) >= (int)sizeof(name))
        return NULL;
    for (size_t i = 0; (asks = ibx_math_each(i)) && strcmp(asks->name, name) != 0;)
        i++;
    return asks;
}

static unsigned next_of(const struct ibx_math_function *f, unsigned from, unsigned kind)
{
    while (from < f->count && f->arguments[from].kind != kind)
        from++;
    return from;
}

/* The arguments of the asking function are some of the function's, in the same order: those before
 * its workspace, except for some (pivots), and those after the size of the workspace. */
const struct ibx_math_function *ibx_math_size_call(const struct ibx_math_function *f,
                                                   const union ibx_math_value *values,
                                                   size_t sizes[2], union ibx_math_value *out)
{
    const struct ibx_math_function *asks = size_function_of(f);
    const unsigned workspace = next_of(f, 0, IBX_MATH_WORKSPACE);
    unsigned from = 0, outputs = 0;
    for (unsigned i = 0; asks && i < asks->count; i++) {
        const unsigned kind = asks->arguments[i].kind;
        const bool own = next_of(f, from, kind) < workspace;
        if (kind == IBX_MATH_OUTPUT && !own && outputs < 2) {
            out[i].p = &sizes[outputs++];
            from = workspace + 2;
            continue;
        }
        from = next_of(f, from, kind);
        if (from >= f->count)
            return NULL;
        out[i] = values[from++];
    }
    return outputs == 2 ? asks : NULL;
}
