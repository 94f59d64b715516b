/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How a program gets the driver's functions by their names. A name stands for several functions,
 * one from each version of CUDA that has changed its parameters: the caller says for which version
 * it was compiled.
 */
#include "frontend-glue/driver_api/driver.h"
#include "frontend-glue/preload/dlsym.h"
#include "frontend-glue/preload/static_runtime/redirect.h"

#include "common/log.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define NAME_MAX_BYTES 128u
#define NEWEST         13000 /* the newest version of CUDA whose functions are here */

/* CUdriverProcAddress_flags, and what was found */
#define FLAG_LEGACY     1u
#define FLAG_PER_THREAD 2u
enum { FOUND, NOT_FOUND };

/* The suffix of the function that a name stands for, from a version on. Sorted. */
static const struct {
    const char *name;
    int since;
    const char *suffix;
} versions[] = {
    {"cuArray3DCreate", 3020, "_v2"},
    {"cuArray3DGetDescriptor", 3020, "_v2"},
    {"cuArrayCreate", 3020, "_v2"},
    {"cuArrayGetDescriptor", 3020, "_v2"},
    {"cuCtxCreate", 3020, "_v2"},
    {"cuCtxCreate", 11040, "_v3"},
    {"cuCtxCreate", 12050, "_v4"},
    {"cuCtxDestroy", 4000, "_v2"},
    {"cuCtxGetDevice", 13000, "_v2"},
    {"cuCtxPopCurrent", 4000, "_v2"},
    {"cuCtxPushCurrent", 4000, "_v2"},
    {"cuCtxSynchronize", 13000, "_v2"},
    {"cuDeviceGetUuid", 11040, "_v2"},
    {"cuDevicePrimaryCtxRelease", 11000, "_v2"},
    {"cuDevicePrimaryCtxReset", 11000, "_v2"},
    {"cuDevicePrimaryCtxSetFlags", 11000, "_v2"},
    {"cuDeviceTotalMem", 3020, "_v2"},
    {"cuEventDestroy", 4000, "_v2"},
    {"cuEventElapsedTime", 12080, "_v2"},
    {"cuGetProcAddress", 12000, "_v2"},
    {"cuGraphAddDependencies", 12030, "_v2"},
    {"cuGraphAddKernelNode", 12000, "_v2"},
    {"cuGraphAddNode", 12030, "_v2"},
    {"cuGraphExecKernelNodeSetParams", 12000, "_v2"},
    {"cuGraphExecUpdate", 12000, "_v2"},
    {"cuGraphGetEdges", 12030, "_v2"},
    {"cuGraphInstantiate", 11000, "_v2"},
    {"cuGraphInstantiate", 12000, "WithFlags"},
    {"cuGraphKernelNodeGetParams", 12000, "_v2"},
    {"cuGraphKernelNodeSetParams", 12000, "_v2"},
    {"cuGraphNodeGetDependencies", 12030, "_v2"},
    {"cuGraphNodeGetDependentNodes", 12030, "_v2"},
    {"cuGraphRemoveDependencies", 12030, "_v2"},
    {"cuIpcOpenMemHandle", 11000, "_v2"},
    {"cuLinkAddData", 6050, "_v2"},
    {"cuLinkAddFile", 6050, "_v2"},
    {"cuLinkCreate", 6050, "_v2"},
    {"cuMemAdvise", 12020, "_v2"},
    {"cuMemAlloc", 3020, "_v2"},
    {"cuMemAllocHost", 3020, "_v2"},
    {"cuMemAllocPitch", 3020, "_v2"},
    {"cuMemFree", 3020, "_v2"},
    {"cuMemGetAddressRange", 3020, "_v2"},
    {"cuMemGetInfo", 3020, "_v2"},
    {"cuMemHostGetDevicePointer", 3020, "_v2"},
    {"cuMemHostRegister", 6050, "_v2"},
    {"cuMemPrefetchAsync", 12020, "_v2"},
    {"cuMemcpy2D", 3020, "_v2"},
    {"cuMemcpy2DAsync", 3020, "_v2"},
    {"cuMemcpy2DUnaligned", 3020, "_v2"},
    {"cuMemcpy3D", 3020, "_v2"},
    {"cuMemcpy3DAsync", 3020, "_v2"},
    {"cuMemcpy3DBatchAsync", 13000, "_v2"},
    {"cuMemcpyAtoA", 3020, "_v2"},
    {"cuMemcpyAtoD", 3020, "_v2"},
    {"cuMemcpyAtoH", 3020, "_v2"},
    {"cuMemcpyAtoHAsync", 3020, "_v2"},
    {"cuMemcpyBatchAsync", 13000, "_v2"},
    {"cuMemcpyDtoA", 3020, "_v2"},
    {"cuMemcpyDtoD", 3020, "_v2"},
    {"cuMemcpyDtoDAsync", 3020, "_v2"},
    {"cuMemcpyDtoH", 3020, "_v2"},
    {"cuMemcpyDtoHAsync", 3020, "_v2"},
    {"cuMemcpyHtoA", 3020, "_v2"},
    {"cuMemcpyHtoAAsync", 3020, "_v2"},
    {"cuMemcpyHtoD", 3020, "_v2"},
    {"cuMemcpyHtoDAsync", 3020, "_v2"},
    {"cuMemsetD16", 3020, "_v2"},
    {"cuMemsetD2D16", 3020, "_v2"},
    {"cuMemsetD2D32", 3020, "_v2"},
    {"cuMemsetD2D8", 3020, "_v2"},
    {"cuMemsetD32", 3020, "_v2"},
    {"cuMemsetD8", 3020, "_v2"},
    {"cuModuleGetGlobal", 3020, "_v2"},
    {"cuStreamBeginCapture", 10010, "_v2"},
    {"cuStreamDestroy", 4000, "_v2"},
    {"cuStreamGetCaptureInfo", 11030, "_v2"},
    {"cuStreamGetCaptureInfo", 12030, "_v3"},
    {"cuStreamGetCtx", 12050, "_v2"},
    {"cuStreamUpdateCaptureDependencies", 12030, "_v2"},
};

int cuDriverGetVersion(int *version);

/* This library; NULL: it cannot be found. */
static void *itself(void)
{
    static _Atomic(void *) known;
    void *library = atomic_load(&known);
    const char *file = library ? NULL : ibx_frontend_file_of(&versions);
    if (file) {
        library = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
        atomic_store(&known, library);
    }
    return library;
}

static void *look_up(const char *name, const char *suffix, const char *stream)
{
    char all[NAME_MAX_BYTES];
    void *library = itself();
    if (!library || snprintf(all, sizeof(all), "%s%s%s", name, suffix, stream) >= (int)sizeof(all))
        return NULL;
    void *function = ibx_frontend_dlsym(library, all);
    dlerror();
    return function;
}

static const char *suffix_of(const char *name, int version)
{
    const char *suffix = "";
    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++)
        if (!strcmp(versions[i].name, name) && versions[i].since <= version)
            suffix = versions[i].suffix;
    return suffix;
}

/* NULL: there is no such function, or it is not supported over a remote GPU. */
static void *find(const char *name, int version, bool per_thread)
{
    void *function = NULL;
    if (strncmp(name, "cu", 2) != 0 || !(name[2] >= 'A' && name[2] <= 'Z') ||
        ibx_driver_is_absent(name))
        return NULL;
    const char *suffix = suffix_of(name, version);
    if (per_thread && !(function = look_up(name, suffix, "_ptsz")))
        function = look_up(name, suffix, "_ptds");
    return function ? function : look_up(name, suffix, "");
}

/* Whether the version is newer than the functions here and than the back end's driver, as far as
 * that is known. */
static bool is_newer(int version)
{
    int is = 0;
    return ibx_driver_initialized() && !cuDriverGetVersion(&is) && version > is && version > NEWEST;
}

/* A function that does not exist is not an error. */
static int get(const char *name, void **function, int version, unsigned long long flags,
               int *status, bool per_thread)
{
    if (!name || !function || flags & ~(unsigned long long)(FLAG_LEGACY | FLAG_PER_THREAD) ||
        is_newer(version))
        return CUDA_INVALID_VALUE;
    const bool own = flags ? flags & FLAG_PER_THREAD : per_thread;
    *function = find(name, version, own);
    if (status)
        *status = *function ? FOUND : NOT_FOUND;
    return CUDA_SUCCESS;
}

/* CUDA 11's version, which has no status. */
EXPORTED int cuGetProcAddress(const char *name, void **function, int version,
                              unsigned long long flags)
{
    return get(name, function, version, flags, NULL, false);
}

EXPORTED int cuGetProcAddress_ptsz(const char *name, void **function, int version,
                                   unsigned long long flags)
{
    return get(name, function, version, flags, NULL, true);
}

EXPORTED int cuGetProcAddress_v2(const char *name, void **function, int version,
                                 unsigned long long flags, int *status)
{
    return get(name, function, version, flags, status, false);
}

EXPORTED int cuGetProcAddress_v2_ptsz(const char *name, void **function, int version,
                                      unsigned long long flags, int *status)
{
    return get(name, function, version, flags, status, true);
}

/* Libraries that need no warning: compilers and NVML do without the tables, and cuInit() warns of a
 * libcudart of NVIDIA's. */
static bool is_known(const char *file)
{
    static const char *const names[] = {"libnvrtc", "libnvJitLink", "libnvptxcompiler",
                                        "libnvidia-ml.so", "libcudart.so"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (ibx_frontend_is_named(file, names[i]))
            return true;
    return false;
}

/* What a library that asks for such a table has to do without. */
static const char *lacks(const char *file)
{
    if (file && ibx_frontend_is_named(file, "libcupti"))
        return "by which profilers see kernels: those of a remote GPU are seen by a profiler of "
               "the back end's process alone";
    if (file && ibx_static_runtime_is_of_nvidia(file))
        return "which is NVIDIA's: what it does by the private tables of this host's driver fails "
               "over a remote GPU";
    return "as to all: what relies on the private tables of this host's driver fails over a remote "
           "GPU. If a CUDA runtime is linked into it statically, as nvcc does by default, do not "
           "strip it, or link it with nvcc -cudart shared";
}

/* Private tables of functions, by which NVIDIA's own libraries and tools use the driver. There are
 * none here. */
EXPORTED int cuGetExportTable(const void **table, const void *id)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    (void)id;
    if (table)
        *table = NULL;
    const char *file = ibx_frontend_file_of(__builtin_return_address(0));
    if (!(file && is_known(file)) && !atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN, "cuGetExportTable returns CUDA_ERROR_NOT_FOUND to %s, %s",
                file ? file : "the program", lacks(file));
    return table ? CUDA_SYMBOL_NOT_FOUND : CUDA_INVALID_VALUE;
}

/* ------------------------------------------------------------------------- the runtime's */

/* The version of the runtime: the back end's, since GVirtuS's libcudart has none of its own. */
static int version_of_runtime(void)
{
    static atomic_int known;
    int version = atomic_load(&known);
    if (version)
        return version;
    if (cudaRuntimeGetVersion(&version)) { /* libcudart's name says it, too */
        const int major = ibx_frontend_cuda_version();
        version = major ? major * 1000 : NEWEST;
    }
    atomic_store(&known, version);
    return version;
}

int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                     unsigned long long flags, int *status)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!symbol || !function)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const int rc = get(symbol, function, (int)version, flags, status, false);
    if (!rc && !*function && !atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "cudaGetDriverEntryPoint finds no %.64s: it is not there for a remote GPU; "
                "ibx-gvirtus(1) lists what is",
                symbol);
    return rc ? ibx_frontend_fail(rc) : rc;
}

int cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                            int *status)
{
    return cudaGetDriverEntryPointByVersion(symbol, function, (unsigned)version_of_runtime(), flags,
                                            status);
}

/* The names that CUDA's header gives these calls in programs with a default stream for each thread.
 * The calls have no stream. Only CUDA's header has prototypes of these names. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define EXPORTED __attribute__((visibility("default")))

EXPORTED int cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function,
                                          unsigned long long flags, int *status)
{
    return cudaGetDriverEntryPoint(symbol, function, flags, status);
}

EXPORTED int cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function,
                                                   unsigned version, unsigned long long flags,
                                                   int *status)
{
    return cudaGetDriverEntryPointByVersion(symbol, function, version, flags, status);
}
