/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Handles that requests name for GVirtuS's handlers of libraries and of the driver: libraries'
 * handles and descriptors, contexts, modules, and functions in modules. CUDA and the libraries take
 * nearly all of them for addresses in this process. So a handle has to be one that a call has
 * returned to the client, of something that still exists.
 *
 * Another handle is replaced by none where the library refuses that (tried with those of CUDA 13;
 * of the driver its manual says so). cuDNN, cuSOLVER and cuBLASLt follow NULL in some functions:
 * there the session ends.
 */
#include "frontend-glue/handles/handles.h"

#include "frontend-glue/session/frames.h"
#include "frontend-glue/session/math_calls.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MATH(type)  (IBX_HANDLE_MATH + IBX_MATH_##type)
#define PLACES      8u
#define TYPE_HANDLE 0u /* cudnnBackendAttributeType_t */
#define TYPE_PARTS  15u
#define SCALAR      4u /* bytes of alpha and of beta for the handler of cublasLtMatmul */

static atomic_bool unseen; /* a handler has returned what could not be read */

/* What becomes of a handle that is not the client's. */
enum instead {
    NONE_INSTEAD, /* it is replaced by none */
    ENDS          /* the session ends; also if there is none, where there has to be one */
};

/* Where it is. */
enum where {
    AT,           /* so many bytes behind the beginning */
    AFTER_NUMBER, /* ... behind an int, which has its length before it, or whose length is 0 */
    AFTER_STRING  /* ... behind a string */
};

struct place {
    uint8_t kind; /* enum ibx_handle_kind */
    uint8_t at;
    uint8_t where; /* enum where */
};

struct naming {
    const char *name;
    unsigned count;
    struct place places[PLACES];
};

/* ------------------------------------------------------------------------------ handles */

static bool is_known(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    void *current = NULL;
    if (ibx_handles_has(x, kind, value))
        return true;
    if (kind == MATH(LT) && ibx_handles_has(x, MATH(BLAS), value))
        return true; /* a handle of cuBLAS does as well */
    if (kind == IBX_HANDLE_CONTEXT &&
        (ibx_handles_has(x, IBX_HANDLE_MADE_CONTEXT, value) ||
         (ibx_back_end_have_cuda(x) && !x->cuda->ctx_get_current(&current) &&
          (uintptr_t)current == value)))
        return true;
    /* Before the first reply in this process nobody has been given anything. */
    return atomic_load(&unseen) || ibx_reply_shape_known(&x->replies) == IBX_REPLY_ODD ||
           !ibx_cuda_load(NULL);
}

void ibx_named_handlers_made(struct gpu_session *x, uint64_t made, bool seen)
{
    const enum ibx_handle_kind kind = x->handler.made_kind;
    const bool of_module = kind == IBX_HANDLE_FUNCTION || kind == IBX_HANDLE_TEXTURE_REFERENCE;
    if (!seen)
        atomic_store(&unseen, true);
    if (!made || (kind == IBX_HANDLE_CONTEXT && ibx_handles_has(x, IBX_HANDLE_MADE_CONTEXT, made)))
        return;
    if (!(of_module ? ibx_handles_add_part(x, kind, made, x->handler.made_of)
                    : ibx_handles_add(x, kind, made)))
        atomic_store(&unseen, true);
}

static int refuse(struct gpu_session *x)
{
    return ibx_session_fail(x->s, -EPROTO,
                            "%s names a handle of a library in %s that no call has returned to it, "
                            "or that is gone",
                            ibx_session_path(x->s)->peer, x->requests.name);
}

static size_t position(const struct place *place, const uint8_t *body, size_t n)
{
    size_t at = place->at;
    if (place->where == AFTER_NUMBER)
        at += ibx_body_number(body, n, 0, 8) ? 12 : 8;
    if (place->where == AFTER_STRING) /* a handler may move back: the sum may wrap around */
        at += 16 + (size_t)(ibx_body_number(body, n, 8, 8) ? ibx_body_number(body, n, 0, 8) : 0);
    return at;
}

/* `needed`: none is refused as well, if the session ends. */
static int invalidate(struct gpu_session *x, enum ibx_handle_kind kind, size_t at,
                      enum instead instead, bool needed, uint8_t *body, size_t n)
{
    const unsigned bytes = kind == MATH(FFT) ? 4 : 8;
    if (at > n || bytes > n - at)
        return 0;
    const uint64_t value = ibx_body_number(body, n, at, bytes);
    if (value ? is_known(x, kind, value) : instead != ENDS || !needed)
        return 0;
    if (instead == ENDS)
        return refuse(x);
    memset(body + at, kind == MATH(FFT) ? 0xff : 0, bytes); /* cuFFT's plans are small numbers */
    ibx_named_tell(x);
    return 0;
}

/* Whether the sum of a string's length and of what is before it wraps around. What is changed there
 * would be the length itself, so that the handler would find the handle elsewhere. */
static bool wraps(const struct place *place, const uint8_t *body, size_t n)
{
    return place->where == AFTER_STRING && position(place, body, n) < place->at + 16u;
}

static int invalidate_all(struct gpu_session *x, const struct naming *naming, enum instead instead,
                          uint8_t *body, size_t n)
{
    int rc = 0;
    for (unsigned i = 0; i < naming->count && !rc; i++) {
        const struct place *place = &naming->places[i];
        rc = wraps(place, body, n) ? refuse(x)
                                   : invalidate(x, (enum ibx_handle_kind)place->kind,
                                                position(place, body, n), instead, !i, body, n);
    }
    return rc;
}

static int by_name(const void *name, const void *naming)
{
    return strcmp(name, ((const struct naming *)naming)->name);
}

/* ------------------------------------------------------------------------------- cuDNN */

#define DNN_COUNT(...) (sizeof((struct place[]){__VA_ARGS__}) / sizeof(struct place))
/* clang-format off */
#define X(at, type) {MATH(type), at, AT}
#define DNN_NAMES(name, ...) {#name, DNN_COUNT(__VA_ARGS__), {__VA_ARGS__}},
/* clang-format on */
static const struct naming of_dnn[] = {
#include "frontend-glue/handles/dnn_handles.def"
};

/* The elements of an attribute: their type, their number, and behind the length of all their bytes
 * the elements themselves. `sets`: cuDNN reads them; else it writes handles, and follows only
 * descriptors. */
static int invalidate_attribute(struct gpu_session *x, bool sets, uint8_t *body, size_t n)
{
    const uint64_t type = ibx_body_number(body, n, 12, 4), count = ibx_body_number(body, n, 16, 8);
    int rc = 0;
    if ((type != TYPE_PARTS && !(sets && type == TYPE_HANDLE)) || !ibx_body_number(body, n, 24, 8))
        return 0;
    for (uint64_t i = 0; i < count && !rc && i < n / 8; i++)
        rc = invalidate(x, type == TYPE_HANDLE ? MATH(DNN) : MATH(GRAPH), 32 + 8 * (size_t)i, ENDS,
                        false, body, n);
    return rc;
}

static int invalidate_dnn(struct gpu_session *x, const char *name, uint8_t *body, size_t n)
{
    const struct naming *found =
        bsearch(name, of_dnn, sizeof(of_dnn) / sizeof(of_dnn[0]), sizeof(of_dnn[0]), by_name);
    const enum instead instead = strncmp(name, "cudnnDestroy", 12) ? ENDS : NONE_INSTEAD;
    const bool sets = !strcmp(name, "cudnnBackendSetAttribute");
    const int rc = found ? invalidate_all(x, found, instead, body, n) : 0;
    return rc || (!sets && strcmp(name, "cudnnBackendGetAttribute") != 0)
               ? rc
               : invalidate_attribute(x, sets, body, n);
}

/* ------------------------------------------------------------------- cuBLAS and cuBLASLt */

static const struct naming of_lt[] = {
    {"cublasLtMatmulAlgoGetHeuristic",
     7,
     {{MATH(LT), 0, AT},
      {IBX_HANDLE_LT_OPERATION, 8, AT},
      {IBX_HANDLE_LT_LAYOUT, 16, AT},
      {IBX_HANDLE_LT_LAYOUT, 24, AT},
      {IBX_HANDLE_LT_LAYOUT, 32, AT},
      {IBX_HANDLE_LT_LAYOUT, 40, AT},
      {IBX_HANDLE_LT_PREFERENCE, 48, AT}}},
    {"cublasLtMatmulDescDestroy", 1, {{IBX_HANDLE_LT_OPERATION, 0, AT}}},
    {"cublasLtMatmulDescSetAttribute", 1, {{IBX_HANDLE_LT_OPERATION, 0, AT}}},
    {"cublasLtMatmulPreferenceDestroy", 1, {{IBX_HANDLE_LT_PREFERENCE, 0, AT}}},
    {"cublasLtMatmulPreferenceSetAttribute", 1, {{IBX_HANDLE_LT_PREFERENCE, 0, AT}}},
    {"cublasLtMatrixLayoutDestroy", 1, {{IBX_HANDLE_LT_LAYOUT, 0, AT}}},
};

/* Behind alpha and beta, each of which has its length before it, or is missing. */
static int invalidate_matmul(struct gpu_session *x, uint8_t *body, size_t n)
{
    const size_t a = 24 + (ibx_body_number(body, n, 16, 8) ? SCALAR : 0);
    const size_t beta = a + 32, c = beta + 8 + (ibx_body_number(body, n, beta, 8) ? SCALAR : 0);
    const struct naming matmul = {"",
                                  6,
                                  {{MATH(LT), 0, AT},
                                   {IBX_HANDLE_LT_OPERATION, 8, AT},
                                   {IBX_HANDLE_LT_LAYOUT, (uint8_t)(a + 8), AT},
                                   {IBX_HANDLE_LT_LAYOUT, (uint8_t)(a + 24), AT},
                                   {IBX_HANDLE_LT_LAYOUT, (uint8_t)(c + 8), AT},
                                   {IBX_HANDLE_LT_LAYOUT, (uint8_t)(c + 24), AT}}};
    return invalidate_all(x, &matmul, ENDS, body, n);
}

static int invalidate_lt(struct gpu_session *x, const char *name, uint8_t *body, size_t n)
{
    if (!strcmp(name, "cublasLtMatmul"))
        return invalidate_matmul(x, body, n);
    const struct naming *found =
        bsearch(name, of_lt, sizeof(of_lt) / sizeof(of_lt[0]), sizeof(of_lt[0]), by_name);
    return found ? invalidate_all(x, found, ENDS, body, n) : 0;
}

/* Functions with a handle have names that end in _v2, and some others. */
static bool has_blas_handle(const char *name)
{
    static const char *const others[] = {
        "cublasGemmEx",      "cublasGemmStridedBatchedEx", "cublasSgemmStridedBatched",
        "cublasSetMathMode", "cublasGetMathMode",
    };
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (!strcmp(others[i], name))
            return true;
    }
    return n > 3 && !strcmp(name + n - 3, "_v2") && strcmp(name, "cublasCreate_v2") != 0;
}

/* --------------------------------------------------------------------- other libraries */

/* Names begin so; the handle is the first argument. */
static const struct {
    const char *begins;
    uint8_t kind, instead;
} of_libraries[] = {
    {"cufftDestroy", MATH(FFT), NONE_INSTEAD},
    {"cufftExec", MATH(FFT), NONE_INSTEAD},
    {"cufftGetSize", MATH(FFT), NONE_INSTEAD},
    {"cufftMakePlan", MATH(FFT), NONE_INSTEAD},
    {"cufftSet", MATH(FFT), NONE_INSTEAD},
    {"cufftXtMakePlan", MATH(FFT), NONE_INSTEAD},
    {"cufftXtSetGPUs", MATH(FFT), NONE_INSTEAD},
    {"curandDestroyGenerator", MATH(RNG), NONE_INSTEAD},
    {"curandGenerate", MATH(RNG), NONE_INSTEAD},
    {"curandSet", MATH(RNG), NONE_INSTEAD},
    {"cusolverDnDestroy", MATH(SOLVER), ENDS},
    {"cusolverDnGetStream", MATH(SOLVER), ENDS},
    {"cusolverDnSetStream", MATH(SOLVER), ENDS},
    {"cusparseDestroy", MATH(SPARSE), NONE_INSTEAD},
    {"cusparseGetStream", MATH(SPARSE), NONE_INSTEAD},
    {"cusparseGetVersion", MATH(SPARSE), NONE_INSTEAD},
    {"cusparseSetStream", MATH(SPARSE), NONE_INSTEAD},
};

static int invalidate_library(struct gpu_session *x, const char *name, uint8_t *body, size_t n)
{
    for (size_t i = 0; i < sizeof(of_libraries) / sizeof(of_libraries[0]); i++) {
        const char *begins = of_libraries[i].begins;
        if (!strncmp(begins, name, strlen(begins)))
            return invalidate(x, (enum ibx_handle_kind)of_libraries[i].kind, 0,
                              (enum instead)of_libraries[i].instead, true, body, n);
    }
    return 0;
}

/* -------------------------------------------------------------------------- the driver */

/* clang-format off */
#define C(at) {IBX_HANDLE_CONTEXT, at, AT}
#define F(at) {IBX_HANDLE_FUNCTION, at, AT}
#define T(at) {IBX_HANDLE_TEXTURE_REFERENCE, at, AT}
#define M     {IBX_HANDLE_MODULE, 0, AFTER_STRING}
/* clang-format on */

static const struct naming of_driver[] = {
    {"cuCtxDestroy", 1, {{IBX_HANDLE_MADE_CONTEXT, 0, AT}}},
    {"cuCtxDetach", 1, {{IBX_HANDLE_MADE_CONTEXT, 0, AT}}},
    {"cuCtxDisablePeerAccess", 1, {C(0)}},
    {"cuCtxEnablePeerAccess", 1, {C(0)}},
    {"cuCtxPushCurrent", 1, {C(0)}},
    {"cuCtxSetCurrent", 1, {C(0)}},
    {"cuFuncGetAttribute", 1, {{IBX_HANDLE_FUNCTION, 4, AFTER_NUMBER}}},
    {"cuFuncSetBlockShape", 1, {F(12)}},
    {"cuFuncSetCacheConfig", 1, {F(4)}},
    {"cuFuncSetSharedSize", 1, {F(4)}},
    {"cuLaunch", 1, {F(0)}},
    {"cuLaunchGrid", 1, {F(8)}},
    {"cuLaunchGridAsync", 1, {F(8)}},
    {"cuLaunchKernel", 1, {F(0)}},
    {"cuModuleGetFunction", 1, {M}},
    {"cuModuleGetGlobal", 1, {M}},
    {"cuModuleGetTexRef", 1, {M}},
    {"cuModuleUnload", 1, {{IBX_HANDLE_MODULE, 0, AT}}},
    {"cuParamSetSize", 1, {F(4)}},
    {"cuParamSetTexRef", 2, {F(0), T(12)}},
    {"cuParamSetf", 1, {F(8)}},
    {"cuParamSeti", 1, {F(8)}},
    {"cuParamSetv", 1, {F(24)}},
    {"cuTexRefGetAddress", 1, {T(0)}},
    {"cuTexRefGetArray", 1, {T(0)}},
    {"cuTexRefGetFlags", 1, {T(0)}},
    {"cuTexRefSetAddress", 1, {T(0)}},
    {"cuTexRefSetAddressMode", 1, {T(8)}},
    {"cuTexRefSetArray", 1, {T(12)}},
    {"cuTexRefSetFilterMode", 1, {T(4)}},
    {"cuTexRefSetFlags", 1, {T(4)}},
    {"cuTexRefSetFormat", 1, {T(8)}},
};

static int invalidate_driver(struct gpu_session *x, const char *name, uint8_t *body, size_t n)
{
    const struct naming *found = bsearch(name, of_driver, sizeof(of_driver) / sizeof(of_driver[0]),
                                         sizeof(of_driver[0]), by_name);
    const int rc = found ? invalidate_all(x, found, NONE_INSTEAD, body, n) : 0;
    if (!strcmp(name, "cuModuleUnload") && n >= 8 &&
        !ibx_handles_may_end(x, IBX_HANDLE_MODULE, ibx_body_number(body, n, 0, 8))) {
        memset(body, 0, 8);
        ibx_named_tell(x);
    }
    x->handler.made_of = found && found->places[0].where == AFTER_STRING
                             ? ibx_body_number(body, n, position(&found->places[0], body, n), 8)
                             : 0;
    return rc;
}

/* ---------------------------------------------------------------------------------- NVML */

/* The handle has its length before it. */
static int invalidate_nvml(struct gpu_session *x, const char *name, uint8_t *body, size_t n)
{
    const bool names = !strncmp(name, "nvmlDevice", 10) && !strstr(name, "GetCount") &&
                       !strstr(name, "GetHandleBy") && ibx_body_number(body, n, 0, 8);
    return names ? invalidate(x, IBX_HANDLE_NVML_DEVICE, 8, ENDS, false, body, n) : 0;
}

int ibx_named_handlers_invalidate(struct gpu_session *x, uint8_t *body, size_t n)
{
    const char *name = x->requests.name;
    if (x->options.mode == IBX_GPU_OFF)
        return 0;
    if (!strncmp(name, "nvml", 4))
        return invalidate_nvml(x, name, body, n);
    if (name[0] != 'c' || name[1] != 'u')
        return 0;
    if (name[2] >= 'A' && name[2] <= 'Z')
        return invalidate_driver(x, name, body, n);
    if (!strncmp(name, "cuda", 4))
        return 0;
    if (!strncmp(name, "cudnn", 5))
        return invalidate_dnn(x, name, body, n);
    if (!strncmp(name, "cublasLt", 8))
        return invalidate_lt(x, name, body, n);
    if (!strncmp(name, "cublas", 6))
        return has_blas_handle(name) ? invalidate(x, MATH(BLAS), 0, NONE_INSTEAD, true, body, n)
                                     : 0;
    return invalidate_library(x, name, body, n);
}
