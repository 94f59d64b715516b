/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Handles in requests for GVirtuS's handlers: each place that a row of the tables names is looked
 * at, and nothing else. A client has one handle of each kind, and names it, none, or another. */
#include "frontend-glue/handles/handles.h"
#include "tests/fixtures/unit.h"

#include "common/wire.h"
#include "frontend-glue/session/math_calls.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define MATH(type) (IBX_HANDLE_MATH + IBX_MATH_##type)
#define BODY       160u
#define ANOTHER    0x7f0011223344u

/* ------------------------------------------------------------------- what the back end says */

static struct gpu_session x = {.options.mode = IBX_GPU_AUTO};
static enum ibx_reply_shape shape = IBX_REPLY_TIMED;
static bool has_driver = true, has_memory = true;
static unsigned told; /* that a handle was replaced */
static struct {
    unsigned count, kind;
    uint64_t value, module;
} added;

static uint64_t own(unsigned kind)
{
    return 0x10000 + kind;
}

bool ibx_handles_has(struct gpu_session *of, enum ibx_handle_kind kind, uint64_t value)
{
    (void)of;
    return value == own(kind);
}

bool ibx_handles_add_part(struct gpu_session *of, enum ibx_handle_kind kind, uint64_t value,
                          uint64_t module)
{
    (void)of;
    added.count++;
    added.kind = kind;
    added.value = value;
    added.module = module;
    return has_memory;
}

bool ibx_handles_add(struct gpu_session *of, enum ibx_handle_kind kind, uint64_t value)
{
    return ibx_handles_add_part(of, kind, value, 0);
}

bool ibx_back_end_have_cuda(struct gpu_session *of)
{
    return of->cuda;
}

const struct ibx_cuda *ibx_cuda_load(struct ibx_error *err)
{
    static const struct ibx_cuda cuda;
    (void)err;
    return has_driver ? &cuda : NULL;
}

enum ibx_reply_shape ibx_reply_shape_known(const struct ibx_reply_watch *watch)
{
    (void)watch;
    return shape;
}

static bool stays; /* what a client unloads */

bool ibx_handles_may_end(struct gpu_session *of, enum ibx_handle_kind kind, uint64_t value)
{
    (void)of, (void)kind, (void)value;
    return !stays;
}

void ibx_named_tell(const struct gpu_session *of)
{
    (void)of;
    told++;
}

const struct ibx_path *ibx_session_path(const struct ibx_session *session)
{
    static const struct ibx_path path;
    (void)session;
    return &path;
}

int ibx_session_fail(struct ibx_session *session, int code, const char *format, ...)
{
    (void)session, (void)format;
    return code;
}

/* ------------------------------------------------------------------------------ a request */

struct place {
    unsigned kind, at;
};

/* How the body is before its handles. */
enum before { NOTHING, NUMBER, NO_NUMBER, STRING, NO_STRING, LENGTH, SCALARS, NO_SCALARS };

static void set(uint8_t *body, size_t at, uint64_t value, unsigned bytes)
{
    struct ibx_writer w = ibx_writer_of(body + at, bytes);
    ibx_put_uint(&w, value, bytes);
}

static void begin(uint8_t *body, enum before before)
{
    memset(body, 0, BODY);
    if (before == NUMBER)
        set(body, 0, 4, 8);
    if (before == STRING || before == LENGTH)
        set(body, 0, 8, 8);
    if (before == STRING)
        set(body, 8, 8, 8);
    if (before == SCALARS) {
        set(body, 16, 4, 8);
        set(body, 60, 4, 8);
    }
}

static unsigned bytes_of(const struct place *place)
{
    return place->kind == MATH(FFT) ? 4 : 8;
}

static int invalidate(const char *name, uint8_t *body, size_t n)
{
    snprintf(x.requests.name, sizeof(x.requests.name), "%s", name);
    return ibx_named_handlers_invalidate(&x, body, n);
}

/* How a request ends that has this value at the place numbered `which`. It is `less` bytes shorter
 * than up to its last handle, in memory of that length. */
enum end { PASSED, WITHOUT, ENDED };
static enum end end_without(const char *name, enum before before, const struct place *places,
                            unsigned count, unsigned which, uint64_t value, size_t less)
{
    const unsigned told_before = told;
    uint8_t whole[BODY];
    size_t n = 0;
    begin(whole, before);
    for (unsigned i = 0; i < count; i++) {
        const size_t end = places[i].at + bytes_of(&places[i]);
        set(whole, places[i].at, i == which ? value : own(places[i].kind), bytes_of(&places[i]));
        n = end > n ? end : n;
    }
    n -= less;
    uint8_t *body = malloc(n);
    assert_non_null(body);
    memcpy(body, whole, n);
    const int rc = invalidate(name, body, n);
    const bool same = !memcmp(body, whole, n);
    if (!same)
        set(whole, places[which].at, places[which].kind == MATH(FFT) ? UINT32_MAX : 0,
            bytes_of(&places[which]));
    assert_memory_equal(body, whole, n); /* nothing else has changed */
    free(body);
    assert_true(rc == 0 || (rc == -EPROTO && same));
    assert_int_equal(told - told_before, !same);
    return rc ? ENDED : same ? PASSED : WITHOUT;
}

static enum end end_with(const char *name, enum before before, const struct place *places,
                         unsigned count, unsigned which, uint64_t value)
{
    return end_without(name, before, places, count, which, value, 0);
}

#define EXPECT(name, what, wanted)                                                                 \
    do {                                                                                           \
        const enum end is = what;                                                                  \
        if (is != (wanted))                                                                        \
            fail_msg("%s: %d instead of %d: %s", name, is, wanted, #what);                         \
    } while (0)

/* Each handle in turn is another one, and is not there. */
static void check(const char *name, enum before before, const struct place *places, unsigned count,
                  enum end wanted)
{
    EXPECT(name, end_with(name, before, places, count, count, 0), PASSED);
    for (unsigned i = 0; i < count; i++) {
        const enum end none = !i && wanted == ENDED ? ENDED : PASSED;
        EXPECT(name, end_with(name, before, places, count, i, ANOTHER), wanted);
        EXPECT(name, end_with(name, before, places, count, i, own(IBX_HANDLE_STREAM)), wanted);
        EXPECT(name, end_with(name, before, places, count, i, 0), none);
    }
    /* The last one is not all there: the handler does not find it, either. */
    EXPECT(name, end_without(name, before, places, count, count - 1, ANOTHER, 1), PASSED);
}

/* ------------------------------------------------------------------------------- the tables */

#define X(at, type)                                                                                \
    {                                                                                              \
        MATH(type), at                                                                             \
    }
#define DNN_NAMES(name, ...)                                                                       \
    {#name, sizeof((struct place[]){__VA_ARGS__}) / sizeof(struct place), {__VA_ARGS__}},

static void cudnn(NO_STATE)
{
    static const struct {
        const char *name;
        unsigned count;
        struct place places[8];
    } rows[] = {
#include "frontend-glue/handles/dnn_handles.def"
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        check(rows[i].name, NOTHING, rows[i].places, rows[i].count,
              strncmp(rows[i].name, "cudnnDestroy", 12) ? ENDED : WITHOUT);
}

/* The elements of an attribute are handles of cuDNN or descriptors, or are not followed. */
static void attributes(NO_STATE)
{
    static const char *const names[] = {"cudnnBackendSetAttribute", "cudnnBackendGetAttribute"};
    static const struct {
        unsigned type, kind;
        enum end set, got;
    } types[] = {
        {15, MATH(GRAPH), ENDED, ENDED}, {0, MATH(DNN), ENDED, PASSED}, {3, 0, PASSED, PASSED}};
    for (size_t i = 0; i < 2 * COUNT(types); i++) {
        const bool sets = i % 2 == 0;
        for (unsigned other = 0; other < 4; other++) {
            uint8_t body[BODY] = {0};
            set(body, 0, own(MATH(GRAPH)), 8);
            set(body, 12, types[i / 2].type, 4);
            set(body, 16, 3, 8);
            set(body, 24, 24, 8);
            for (unsigned k = 0; k < 4; k++)
                set(body, 32 + 8 * k, k == other ? ANOTHER : own(types[i / 2].kind), 8);
            const enum end end = sets ? types[i / 2].set : types[i / 2].got;
            assert_int_equal(invalidate(names[!sets], body, sizeof(body)),
                             end == ENDED && other < 3 ? -EPROTO : 0);
            set(body, 24, 0, 8); /* there are no elements */
            assert_int_equal(invalidate(names[!sets], body, sizeof(body)), 0);
        }
    }
}

static void driver(NO_STATE)
{
    static const struct {
        const char *name;
        enum before before;
        struct place place;
    } rows[] = {
        {"cuCtxDestroy", NOTHING, {IBX_HANDLE_MADE_CONTEXT, 0}},
        {"cuCtxDetach", NOTHING, {IBX_HANDLE_MADE_CONTEXT, 0}},
        {"cuCtxDisablePeerAccess", NOTHING, {IBX_HANDLE_CONTEXT, 0}},
        {"cuCtxEnablePeerAccess", NOTHING, {IBX_HANDLE_CONTEXT, 0}},
        {"cuCtxPushCurrent", NOTHING, {IBX_HANDLE_CONTEXT, 0}},
        {"cuCtxSetCurrent", NOTHING, {IBX_HANDLE_CONTEXT, 0}},
        {"cuFuncGetAttribute", NUMBER, {IBX_HANDLE_FUNCTION, 16}},
        {"cuFuncGetAttribute", NO_NUMBER, {IBX_HANDLE_FUNCTION, 12}},
        {"cuFuncSetBlockShape", NOTHING, {IBX_HANDLE_FUNCTION, 12}},
        {"cuFuncSetCacheConfig", NOTHING, {IBX_HANDLE_FUNCTION, 4}},
        {"cuFuncSetSharedSize", NOTHING, {IBX_HANDLE_FUNCTION, 4}},
        {"cuLaunch", NOTHING, {IBX_HANDLE_FUNCTION, 0}},
        {"cuLaunchGrid", NOTHING, {IBX_HANDLE_FUNCTION, 8}},
        {"cuLaunchGridAsync", NOTHING, {IBX_HANDLE_FUNCTION, 8}},
        {"cuLaunchKernel", NOTHING, {IBX_HANDLE_FUNCTION, 0}},
        {"cuModuleGetFunction", STRING, {IBX_HANDLE_MODULE, 24}},
        {"cuModuleGetFunction", NO_STRING, {IBX_HANDLE_MODULE, 16}},
        {"cuModuleGetGlobal", STRING, {IBX_HANDLE_MODULE, 24}},
        {"cuModuleGetTexRef", STRING, {IBX_HANDLE_MODULE, 24}},
        {"cuModuleUnload", NOTHING, {IBX_HANDLE_MODULE, 0}},
        {"cuParamSetSize", NOTHING, {IBX_HANDLE_FUNCTION, 4}},
        {"cuParamSetf", NOTHING, {IBX_HANDLE_FUNCTION, 8}},
        {"cuParamSeti", NOTHING, {IBX_HANDLE_FUNCTION, 8}},
        {"cuParamSetv", NOTHING, {IBX_HANDLE_FUNCTION, 24}},
        {"cuTexRefGetAddress", NOTHING, {IBX_HANDLE_TEXTURE_REFERENCE, 0}},
        {"cuTexRefGetArray", NOTHING, {IBX_HANDLE_TEXTURE_REFERENCE, 0}},
        {"cuTexRefGetFlags", NOTHING, {IBX_HANDLE_TEXTURE_REFERENCE, 0}},
        {"cuTexRefSetAddress", NOTHING, {IBX_HANDLE_TEXTURE_REFERENCE, 0}},
        {"cuTexRefSetAddressMode", NOTHING, {IBX_HANDLE_TEXTURE_REFERENCE, 8}},
        {"cuTexRefSetArray", NOTHING, {IBX_HANDLE_TEXTURE_REFERENCE, 12}},
        {"cuTexRefSetFilterMode", NOTHING, {IBX_HANDLE_TEXTURE_REFERENCE, 4}},
        {"cuTexRefSetFlags", NOTHING, {IBX_HANDLE_TEXTURE_REFERENCE, 4}},
        {"cuTexRefSetFormat", NOTHING, {IBX_HANDLE_TEXTURE_REFERENCE, 8}},
    };
    static const struct place texture[] = {{IBX_HANDLE_FUNCTION, 0},
                                           {IBX_HANDLE_TEXTURE_REFERENCE, 12}};
    for (size_t i = 0; i < COUNT(rows); i++)
        check(rows[i].name, rows[i].before, &rows[i].place, 1, WITHOUT);
    check("cuParamSetTexRef", NOTHING, texture, 2, WITHOUT);
}

static void cublas_lt(NO_STATE)
{
    static const struct place heuristic[] = {{MATH(LT), 0},
                                             {IBX_HANDLE_LT_OPERATION, 8},
                                             {IBX_HANDLE_LT_LAYOUT, 16},
                                             {IBX_HANDLE_LT_LAYOUT, 24},
                                             {IBX_HANDLE_LT_LAYOUT, 32},
                                             {IBX_HANDLE_LT_LAYOUT, 40},
                                             {IBX_HANDLE_LT_PREFERENCE, 48}};
    static const struct place with[] = {{MATH(LT), 0},
                                        {IBX_HANDLE_LT_OPERATION, 8},
                                        {IBX_HANDLE_LT_LAYOUT, 36},
                                        {IBX_HANDLE_LT_LAYOUT, 52},
                                        {IBX_HANDLE_LT_LAYOUT, 80},
                                        {IBX_HANDLE_LT_LAYOUT, 96}};
    static const struct place without[] = {{MATH(LT), 0},
                                           {IBX_HANDLE_LT_OPERATION, 8},
                                           {IBX_HANDLE_LT_LAYOUT, 32},
                                           {IBX_HANDLE_LT_LAYOUT, 48},
                                           {IBX_HANDLE_LT_LAYOUT, 72},
                                           {IBX_HANDLE_LT_LAYOUT, 88}};
    static const struct place operation = {IBX_HANDLE_LT_OPERATION, 0};
    static const struct place layout = {IBX_HANDLE_LT_LAYOUT, 0};
    static const struct place preference = {IBX_HANDLE_LT_PREFERENCE, 0};
    check("cublasLtMatmulAlgoGetHeuristic", NOTHING, heuristic, COUNT(heuristic), ENDED);
    check("cublasLtMatmul", SCALARS, with, COUNT(with), ENDED);
    check("cublasLtMatmul", NO_SCALARS, without, COUNT(without), ENDED);
    check("cublasLtMatmulDescDestroy", NOTHING, &operation, 1, ENDED);
    check("cublasLtMatmulDescSetAttribute", NOTHING, &operation, 1, ENDED);
    check("cublasLtMatmulPreferenceDestroy", NOTHING, &preference, 1, ENDED);
    check("cublasLtMatmulPreferenceSetAttribute", NOTHING, &preference, 1, ENDED);
    check("cublasLtMatrixLayoutDestroy", NOTHING, &layout, 1, ENDED);
    /* A handle of cuBLAS does as well. */
    EXPECT("cublasLtMatmul",
           end_with("cublasLtMatmul", NO_SCALARS, without, COUNT(without), 0, own(MATH(BLAS))),
           PASSED);
}

/* The handle is the first argument. */
static void other_libraries(NO_STATE)
{
    static const struct {
        const char *name;
        unsigned kind;
        enum end end;
    } rows[] = {
        {"cublasDestroy_v2", MATH(BLAS), WITHOUT},
        {"cublasSgemm_v2", MATH(BLAS), WITHOUT},
        {"cublasGemmEx", MATH(BLAS), WITHOUT},
        {"cublasGemmStridedBatchedEx", MATH(BLAS), WITHOUT},
        {"cublasSgemmStridedBatched", MATH(BLAS), WITHOUT},
        {"cublasSetMathMode", MATH(BLAS), WITHOUT},
        {"cublasGetMathMode", MATH(BLAS), WITHOUT},
        {"cufftDestroy", MATH(FFT), WITHOUT},
        {"cufftExecC2C", MATH(FFT), WITHOUT},
        {"cufftGetSize1d", MATH(FFT), WITHOUT},
        {"cufftMakePlanMany64", MATH(FFT), WITHOUT},
        {"cufftSetStream", MATH(FFT), WITHOUT},
        {"cufftXtMakePlanMany", MATH(FFT), WITHOUT},
        {"cufftXtSetGPUs", MATH(FFT), WITHOUT},
        {"curandDestroyGenerator", MATH(RNG), WITHOUT},
        {"curandGenerateUniform", MATH(RNG), WITHOUT},
        {"curandSetStream", MATH(RNG), WITHOUT},
        {"cusolverDnDestroy", MATH(SOLVER), ENDED},
        {"cusolverDnGetStream", MATH(SOLVER), ENDED},
        {"cusolverDnSetStream", MATH(SOLVER), ENDED},
        {"cusparseDestroy", MATH(SPARSE), WITHOUT},
        {"cusparseGetStream", MATH(SPARSE), WITHOUT},
        {"cusparseGetVersion", MATH(SPARSE), WITHOUT},
        {"cusparseSetStream", MATH(SPARSE), WITHOUT},
        /* Those that name none. */
        {"cublasCreate_v2", 0, PASSED},
        {"cublasSetVector", 0, PASSED},
        {"_v2", 0, PASSED},
        {"cufftPlan1d", 0, PASSED},
        {"curandCreateGenerator", 0, PASSED},
        {"cudaFree", 0, PASSED},
        {"cudnnCreate", 0, PASSED},
        {"nvrtcGetErrorString", 0, PASSED},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct place place = {rows[i].kind, 0};
        check(rows[i].name, NOTHING, &place, 1, rows[i].end);
    }
}

/* The handle has its length before it, or is missing. */
static void nvml(NO_STATE)
{
    static const struct place device = {IBX_HANDLE_NVML_DEVICE, 8};
    static const struct {
        const char *name;
        enum before before;
        enum end end;
    } rows[] = {
        {"nvmlDeviceGetName", LENGTH, ENDED},
        {"nvmlDeviceGetName", NOTHING, PASSED},
        {"nvmlDeviceGetCount_v2", LENGTH, PASSED},
        {"nvmlDeviceGetHandleByIndex", LENGTH, PASSED},
        {"nvmlSystemGetDriverVersion", LENGTH, PASSED},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        EXPECT(rows[i].name,
               end_with(rows[i].name, rows[i].before, &device, 1, 0, own(device.kind)), PASSED);
        EXPECT(rows[i].name, end_with(rows[i].name, rows[i].before, &device, 1, 0, ANOTHER),
               rows[i].end);
        EXPECT(rows[i].name, end_with(rows[i].name, rows[i].before, &device, 1, 0, 0), PASSED);
    }
}

/* Of a handle that is not all there nothing is read, and nothing written behind the body. */
static void short_bodies(NO_STATE)
{
    static const char *const names[] = {"cudnnRNNForward", "cuLaunchKernel", "cublasLtMatmul",
                                        "cufftDestroy", "nvmlDeviceGetName"};
    for (size_t i = 0; i < COUNT(names); i++)
        for (size_t n = 0; n < 4; n++) {
            uint8_t body[4] = {1, 2, 3, 4};
            assert_int_equal(invalidate(names[i], body, n), 0);
            assert_memory_equal(body, ((uint8_t[]){1, 2, 3, 4}), 4);
        }
}

/* A length by which the handle would be in the length itself. */
static void wrapped_strings(NO_STATE)
{
    for (unsigned back = 1; back <= 16; back++) {
        uint8_t body[BODY] = {0};
        set(body, 0, UINT64_MAX - back + 1, 8);
        set(body, 8, 1, 8);
        assert_int_equal(invalidate("cuModuleGetFunction", body, sizeof(body)), -EPROTO);
    }
}

/* The context of the thread is everybody's, and so are those that the client has made. */
static int get_current(void **context)
{
    *context = (void *)(uintptr_t)ANOTHER;
    return 0;
}

static int get_none(void **context)
{
    *context = NULL;
    return 201; /* of a context */
}

static void contexts(NO_STATE)
{
    static const struct ibx_cuda current = {.ctx_get_current = get_current},
                                 none = {.ctx_get_current = get_none};
    static const struct place context = {IBX_HANDLE_CONTEXT, 0}, module = {IBX_HANDLE_MODULE, 0};
    const char *name = "cuCtxSetCurrent", *other = "cuModuleUnload";
    EXPECT(name, end_with(name, NOTHING, &context, 1, 0, own(IBX_HANDLE_MADE_CONTEXT)), PASSED);
    x.cuda = &current;
    EXPECT(name, end_with(name, NOTHING, &context, 1, 0, ANOTHER), PASSED);
    EXPECT(name, end_with(name, NOTHING, &context, 1, 0, ANOTHER + 1), WITHOUT);
    EXPECT(other, end_with(other, NOTHING, &module, 1, 0, ANOTHER), WITHOUT);
    x.cuda = &none;
    EXPECT(name, end_with(name, NOTHING, &context, 1, 0, ANOTHER), WITHOUT);
    x.cuda = NULL;
}

/* What a handler has returned, with the module that it is of. */
static void made(NO_STATE)
{
    static const unsigned kinds[] = {IBX_HANDLE_MODULE, IBX_HANDLE_FUNCTION,
                                     IBX_HANDLE_TEXTURE_REFERENCE, IBX_HANDLE_CONTEXT};
    for (size_t i = 0; i < COUNT(kinds); i++) {
        uint8_t body[24] = {0};
        set(body, 16, own(IBX_HANDLE_MODULE), 8);
        assert_int_equal(invalidate("cuModuleGetFunction", body, sizeof(body)), 0);
        x.handler.made_kind = (enum ibx_handle_kind)kinds[i];
        added.count = 0;
        ibx_named_handlers_made(&x, 0, true); /* none */
        assert_int_equal(added.count, 0);
        ibx_named_handlers_made(&x, 7, true);
        assert_true(added.count == 1 && added.kind == kinds[i] && added.value == 7);
        assert_int_equal(added.module, i == 1 || i == 2 ? own(IBX_HANDLE_MODULE) : 0);
    }
    added.count = 0; /* a context that the client has made stays that */
    ibx_named_handlers_made(&x, own(IBX_HANDLE_MADE_CONTEXT), true);
    assert_int_equal(added.count, 0);
    uint8_t context[8];
    set(context, 0, own(IBX_HANDLE_CONTEXT), 8);
    assert_int_equal(invalidate("cuCtxSetCurrent", context, sizeof(context)), 0);
    assert_int_equal(x.handler.made_of, 0); /* it is of no module */
}

/* How a client is treated that names what it was not given. */
static enum end treated(void)
{
    static const struct place module = {IBX_HANDLE_MODULE, 0};
    return end_with("cuModuleUnload", NOTHING, &module, 1, 0, ANOTHER);
}

/* A module that has to stay, because a graph may have a function of it. */
static void captured(NO_STATE)
{
    static const struct place module = {IBX_HANDLE_MODULE, 0}, used = {IBX_HANDLE_MODULE, 16};
    const uint64_t its = own(IBX_HANDLE_MODULE);
    stays = true;
    assert_int_equal(end_with("cuModuleUnload", NOTHING, &module, 1, 0, its), WITHOUT);
    assert_int_equal(end_with("cuModuleGetFunction", NO_STRING, &used, 1, 0, its), PASSED);
    stays = false;
    assert_int_equal(end_with("cuModuleUnload", NOTHING, &module, 1, 0, its), PASSED);
}

/* Where replies cannot be read, or there is no driver, all is allowed. */
static void unseen(NO_STATE)
{
    assert_int_equal(treated(), WITHOUT);
    shape = IBX_REPLY_ODD;
    assert_int_equal(treated(), PASSED);
    shape = IBX_REPLY_TIMED, has_driver = false;
    assert_int_equal(treated(), PASSED);
    has_driver = true, x.options.mode = IBX_GPU_OFF;
    assert_int_equal(treated(), PASSED);
    x.options.mode = IBX_GPU_AUTO;
    assert_int_equal(treated(), WITHOUT);
}

/* A handle that could not be read, or kept: all is allowed in that process from then on. */
static void missed(NO_STATE)
{
    for (unsigned i = 0; i < 3; i++) {
        const pid_t child = fork();
        int status = 0;
        if (!child) {
            has_memory = i != 1;
            ibx_named_handlers_made(&x, i == 1 ? 7 : 0, i != 0);
            _exit((int)treated());
        }
        assert_true(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), i == 2 ? WITHOUT : PASSED);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(cudnn),           cmocka_unit_test(attributes),
        cmocka_unit_test(driver),          cmocka_unit_test(cublas_lt),
        cmocka_unit_test(other_libraries), cmocka_unit_test(nvml),
        cmocka_unit_test(short_bodies),    cmocka_unit_test(wrapped_strings),
        cmocka_unit_test(contexts),        cmocka_unit_test(made),
        cmocka_unit_test(unseen),          cmocka_unit_test(missed),
        cmocka_unit_test(captured)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
