/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/session/calls.h"

#include "common/wire.h"
#include "frontend-glue/session/extensions.h"
#include "frontend-glue/session/math_calls.h"

#include <stdlib.h>
#include <string.h>

#define NONE IBX_CALL_NO_STREAM
#define LAST IBX_CALL_LAST_STREAM
#define ALL  IBX_CALL_ALL_STREAMS

/* Sorted by name, for bsearch(3). */
static const struct ibx_call calls[] = {
    {"cudaDeviceCanAccessPeer", IBX_CALL_CONSTANT, NONE, 0, false, false},
    {"cudaDeviceDisablePeerAccess", IBX_CALL_OTHER, ALL, 4, true, false},
    {"cudaDeviceEnablePeerAccess", IBX_CALL_OTHER, ALL, 8, true, false},
    {"cudaDeviceGetAttribute", IBX_CALL_CONSTANT, NONE, 0, false, false},
    {"cudaDeviceGetPCIBusId", IBX_CALL_CONSTANT, NONE, 0, false, false},
    {"cudaDeviceGetStreamPriorityRange", IBX_CALL_CONSTANT, NONE, 0, false, false},
    {"cudaDeviceReset", IBX_CALL_RESETS, ALL, 0, true, false},
    {"cudaDeviceSynchronize", IBX_CALL_QUERIES, ALL, 0, true, false},
    {"cudaDriverGetVersion", IBX_CALL_CONSTANT, NONE, 0, false, true},
    {"cudaEventCreate", IBX_CALL_ASKS, NONE, 0, false, false},
    {"cudaEventCreateWithFlags", IBX_CALL_ASKS, NONE, 0, false, false},
    {"cudaEventDestroy", IBX_CALL_DESTROYS, NONE, 8, true, false},
    {"cudaEventElapsedTime", IBX_CALL_ASKS, NONE, 0, true, false},
    {"cudaEventQuery", IBX_CALL_QUERIES, NONE, 8, true, false},
    {"cudaEventRecord", IBX_CALL_REPEATS, 8, 16, true, false},
    {"cudaEventSynchronize", IBX_CALL_QUERIES, NONE, 8, true, false},
    {"cudaFree", IBX_CALL_FREES, ALL, 8, true, false},
    {"cudaFuncGetAttributes", IBX_CALL_CONSTANT, NONE, 0, false, false},
    {"cudaGetDevice", IBX_CALL_GET_DEVICE, NONE, 0, false, true},
    {"cudaGetDeviceCount", IBX_CALL_CONSTANT, NONE, 0, false, true},
    {"cudaGetDeviceProperties", IBX_CALL_CONSTANT, NONE, 0, false, false},
    {"cudaGetDeviceProperties_v2", IBX_CALL_CONSTANT, NONE, 0, false, false},
    {"cudaGetErrorName", IBX_CALL_CONSTANT, NONE, 0, false, false},
    {"cudaGetErrorString", IBX_CALL_CONSTANT, NONE, 0, false, false},
    {"cudaGetLastError", IBX_CALL_LAST_ERROR, NONE, 0, false, false},
    {"cudaGraphExecDestroy", IBX_CALL_DESTROYS, ALL, 8, true, false},
    {"cudaGraphLaunch", IBX_CALL_REPEATS, 8, 16, true, false},
    {"cudaLaunchKernel", IBX_CALL_LAUNCH, 40, 0, false, false},
    {"cudaMalloc", IBX_CALL_ALLOCATES, NONE, 8, false, false},
    {"cudaMemGetInfo", IBX_CALL_ALLOCATES, NONE, 0, false, false},
    {"cudaMemcpy", IBX_CALL_WAITS, ALL, 0, true, false},
    {"cudaMemcpy2D", IBX_CALL_WAITS, ALL, 0, true, false},
    {"cudaMemcpyAsync", IBX_CALL_COPIES, LAST, 0, false, false},
    {"cudaMemcpyToSymbol", IBX_CALL_WAITS, ALL, 0, true, false},
    {"cudaMemset", IBX_CALL_ENQUEUES, ALL, 20, false, false},
    {"cudaMemsetAsync", IBX_CALL_ENQUEUES, LAST, 28, false, false},
    {"cudaOccupancyMaxActiveBlocksPerMultiprocessor", IBX_CALL_CONSTANT, NONE, 0, false, false},
    {"cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", IBX_CALL_CONSTANT, NONE, 0, false,
     false},
    {"cudaPeekAtLastError", IBX_CALL_PEEK_ERROR, NONE, 0, false, false},
    {"cudaPopCallConfiguration", IBX_CALL_POP, NONE, 0, false, false},
    {"cudaPushCallConfiguration", IBX_CALL_PUSH, NONE, 40, false, false},
    {"cudaRegisterFatBinaryEnd", IBX_CALL_REGISTERS, ALL, 0, false, false},
    {"cudaRegisterFunction", IBX_CALL_REGISTERS, ALL, 0, false, false},
    {"cudaRegisterVar", IBX_CALL_REGISTERS, ALL, 0, false, false},
    {"cudaRuntimeGetVersion", IBX_CALL_CONSTANT, NONE, 0, false, true},
    {"cudaSetDevice", IBX_CALL_SET_DEVICE, NONE, 4, false, false},
    {"cudaStreamBeginCapture", IBX_CALL_BEGIN_CAPTURE, ALL, 0, true, false},
    {"cudaStreamCreate", IBX_CALL_ASKS, NONE, 0, false, false},
    {"cudaStreamCreateWithFlags", IBX_CALL_ASKS, NONE, 0, false, false},
    {"cudaStreamCreateWithPriority", IBX_CALL_ASKS, NONE, 0, false, false},
    {"cudaStreamDestroy", IBX_CALL_DESTROYS, 0, 8, true, false},
    {"cudaStreamEndCapture", IBX_CALL_END_CAPTURE, ALL, 0, true, false},
    {"cudaStreamQuery", IBX_CALL_QUERIES, 0, 8, false, false},
    {"cudaStreamSynchronize", IBX_CALL_QUERIES, 0, 8, false, false},
    {"cudaStreamWaitEvent", IBX_CALL_REPEATS, 0, 20, true, false},
    {"cudaThreadExit", IBX_CALL_RESETS, ALL, 0, true, false},
    {IBX_EXT_QUEUE, IBX_CALL_ENQUEUES, LAST, 0, false, false},
    {IBX_EXT_WORK, IBX_CALL_EXTENSION, NONE, 0, false, false},
    {IBX_MATH_ABORTS, IBX_CALL_SETS_UP, NONE, 0, false, false},
    {IBX_MATH_ADDS, IBX_CALL_LIBRARY, IBX_CALL_OF_HANDLE, 0, false, false},
    {IBX_MATH_ADDS_IN, IBX_CALL_LIBRARY, IBX_CALL_OF_LIBRARY, 0, false, false},
    {IBX_MATH_ASKS, IBX_CALL_ASKS, NONE, 0, false, false},
    {IBX_MATH_SELECTS, IBX_CALL_SELECTS, ALL, 0, true, false},
    {IBX_MATH_SETS_UP, IBX_CALL_SETS_UP, ALL, 0, true, false},
    {IBX_MATH_WAITS, IBX_CALL_OTHER, ALL, 0, true, false},
    {IBX_EXT_NAME, IBX_CALL_EXTENSION, ALL, 0, true, false},
};

/* Prefixes of calls after which kernels and handles may be invalid. */
static const char *const resetting[] = {
    "cuCtx",          "cuModule",          "cudaDeviceSet",
    "cudaFuncSet",    "cudaRegister",      "cudaUnregister",
    "cudaThreadExit", "cudaThreadSet",     "cudaSetDeviceFlags",
    "cudaSetValid",   "cudaGraphicsReset", "cudaCtxResetPersistingL2Cache",
    "cudaInitDevice",
};

/* Functions of libraries that add work to their handle's stream, and return only whether that
 * succeeded. For cuBLAS the part after the type letters: cublasSgemm_v2, cublasCherk_v2. */
static const char *const of_blas[] = {
    "axpy", "copy", "dgmm", "gbmv", "geam", "gemm", "gemv", "ger",  "hbmv", "hemm",
    "hemv", "her",  "hpmv", "hpr",  "sbmv", "scal", "spmv", "spr",  "swap", "symm",
    "symv", "syr",  "tbmv", "tbsv", "tpmv", "tpsv", "trmm", "trmv", "trsm", "trsv",
};
static const char *const of_libraries[] = {
    "cublasGemm",    "cudnnActivation", "cudnnAddTensor", "cudnnBatchNorm", "cudnnConvolution",
    "cudnnOpTensor", "cudnnPooling",    "cudnnSoftmax",   "cufftExec",      "curandGenerate",
};
static const char *const selecting[] = {
    "cublasSetStream",
    "cudnnSetStream",
    "cufftSetStream",
    "curandSetStream",
};
static const char *const setting_up[] = {
    "cublasCreate", "cublasDestroy", "cublasLt", "cublasSet", "cudnnBackend",
    "cudnnCreate",  "cudnnDestroy",  "cudnnSet", "cufft",     "curand",
};

static bool begins(const char *text, const char *const *with, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!strncmp(text, with[i], strlen(with[i])))
            return true;
    }
    return false;
}

#define BEGINS(text, with) begins(text, with, sizeof(with) / sizeof((with)[0]))

/* Also names with two type letters: cublasCsscal, cublasZdscal. */
static bool is_of_blas(const char *name)
{
    static const char blas[] = "cublas";
    const char *types = name + sizeof(blas) - 1;
    if (strncmp(name, blas, sizeof(blas) - 1) || !*types || !strchr("SDCZH", *types))
        return false;
    return BEGINS(types + 1, of_blas) ||
           ((types[1] == 's' || types[1] == 'd') && BEGINS(types + 2, of_blas));
}

static const struct ibx_call *find_of_library(const char *name)
{
    static const char *const libraries[] = {"cublas", "cudnn", "cufft", "curand"};
    static const struct ibx_call adds = {"", IBX_CALL_LIBRARY, IBX_CALL_OF_HANDLE, 0, false, false};
    static const struct ibx_call runs = {"", IBX_CALL_LIBRARY, IBX_CALL_OF_PLAN, 0, false, false};
    static const struct ibx_call names = {"",   IBX_CALL_LIBRARY, IBX_CALL_OF_LIBRARY, 0, false,
                                          false};
    static const struct ibx_call selects = {"", IBX_CALL_SELECTS, ALL, 0, true, false};
    static const struct ibx_call sets = {"", IBX_CALL_SETS_UP, ALL, 0, true, false};
    if (!BEGINS(name, libraries))
        return NULL;
    /* Its handle may be one of cuBLAS's, which has another stream. */
    if (!strcmp(name, "cublasLtMatmul"))
        return &names;
    if (is_of_blas(name) || BEGINS(name, of_libraries))
        return strncmp(name, "cufft", 5) ? &adds : &runs;
    if (BEGINS(name, selecting))
        return &selects;
    return BEGINS(name, setting_up) ? &sets : NULL;
}

static int by_name(const void *name, const void *call)
{
    return strcmp(name, ((const struct ibx_call *)call)->name);
}

static const struct ibx_call *look_up(const void *name, size_t n)
{
    static const struct ibx_call other = {"", IBX_CALL_OTHER, ALL, 0, true, false};
    static const struct ibx_call resets = {"", IBX_CALL_RESETS, ALL, 0, true, false};
    const char *text = name;
    if (!n || memchr(text, 0, n) != text + n - 1)
        return &resets;
    if (!strncmp(text, "__", 2))
        text += 2;
    const struct ibx_call *found =
        bsearch(text, calls, sizeof(calls) / sizeof(calls[0]), sizeof(calls[0]), by_name);
    if (found)
        return found;
    if (BEGINS(text, resetting))
        return &resets;
    found = find_of_library(text);
    if (found)
        return found;
    static const struct ibx_call shares = {"", IBX_CALL_SHARES, ALL, 0, true, false};
    if ((strstr(text, "Ipc") && strstr(text, "Event")) || strstr(text, "ExternalSemaphore"))
        return &shares;
    /* Captures are not in the table, but their effect on other calls is known. */
    static const struct ibx_call capture = {"", IBX_CALL_BEGIN_CAPTURE, ALL, 0, true, false};
    return strstr(text, "BeginCapture") ? &capture : &other;
}

/* A cache for this thread: it makes the same few calls repeatedly, each is looked up several times,
 * and names of libraries are compared with all of the above. */
#define FOUND      16u /* a power of two */
#define FOUND_NAME 40u

static _Thread_local struct {
    const struct ibx_call *call; /* NULL: empty */
    size_t n;
    char name[FOUND_NAME];
} found_last[FOUND];

const struct ibx_call *ibx_call_find(const void *name, size_t n)
{
    const uint8_t *bytes = name;
    if (n < 2 || n > FOUND_NAME)
        return look_up(name, n);
    const unsigned i = (unsigned)(n + 7u * bytes[n / 2] + bytes[n - 2]) & (FOUND - 1);
    if (found_last[i].call && found_last[i].n == n && !memcmp(found_last[i].name, name, n))
        return found_last[i].call;
    found_last[i].call = look_up(name, n);
    found_last[i].n = n;
    memcpy(found_last[i].name, name, n);
    return found_last[i].call;
}

unsigned ibx_call_extension(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    return call->kind == IBX_CALL_EXTENSION ? ibx_get_u16(&r) : 0;
}

bool ibx_call_is_quick(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    return call->kind == IBX_CALL_LAUNCH || call->kind == IBX_CALL_REPEATS ||
           call->kind == IBX_CALL_LIBRARY ||
           (call->kind == IBX_CALL_ENQUEUES && call->stream_at != ALL) ||
           call->kind == IBX_CALL_REGISTERS ||
           ibx_call_extension(call, body, n) == IBX_EXT_SET_KERNEL;
}

bool ibx_call_stream(const struct ibx_call *call, const uint8_t *body, size_t n, uint64_t *stream)
{
    if ((call->stream_at < 0 && call->stream_at != LAST) || n < 8)
        return false;
    size_t at = call->stream_at == LAST ? n - 8 : (size_t)call->stream_at;
    if (at > n - 8)
        return false;
    struct ibx_reader r = ibx_reader_of(body + at, 8);
    *stream = ibx_get_u64(&r);
    return true;
}

size_t ibx_call_request(const uint8_t *bytes, size_t n, const struct ibx_call **call)
{
    const uint8_t *nul = memchr(bytes, 0, n);
    size_t name = nul ? (size_t)(nul - bytes) + 1 : 0;
    if (!nul || n - name < 8)
        return 0;
    struct ibx_reader r = ibx_reader_of(bytes + name, 8);
    uint64_t length = ibx_get_u64(&r);
    if (length > n - name - 8)
        return 0;
    *call = ibx_call_find(bytes, name);
    return name + 8 + (size_t)length;
}

bool ibx_call_breaks_contexts(int exit_code)
{
    static const int codes[] = {214, 220, 226, 700, 702, 710, 714, 715,
                                716, 717, 718, 719, 721, 810, 911};
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        if (codes[i] == exit_code)
            return true;
    }
    return false;
}
