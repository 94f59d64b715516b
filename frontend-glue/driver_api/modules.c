/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Modules and libraries of kernels: both are what cudaLibraryLoadData() makes. A module goes with
 * its context. A module that cannot be compiled is refused at once, and a library when it is first
 * used, unless CUDA_MODULE_LOADING is EAGER. Options of the compiler that exist are accepted; only
 * those that ask for logs or a time have an effect (compiler.c).
 */
#include "frontend-glue/preload/runtime/runtime.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/driver_api/driver.h"

#include "common/clock.h"

#include <stdlib.h>

#define LOADS_AT_ONCE      1 /* CU_MODULE_EAGER_LOADING */
#define LOADS_LATE         2 /* CU_MODULE_LAZY_LOADING */
#define FUNCTION_IS_LOADED 1 /* CU_FUNCTION_LOADING_STATE_LOADED */

/* Whether the driver loads libraries when they are loaded, and not when they are first used. */
static bool loads_at_once(void)
{
    const char *mode = secure_getenv("CUDA_MODULE_LOADING");
    return mode && !strcmp(mode, "EAGER");
}

/* Tries what was loaded, if rc is 0, unless it is tried later; notes a module. */
static int loaded(int rc, void **library, bool module)
{
    void *made = *library;
    bool tried;
    if (rc || (!module && !loads_at_once()))
        return rc;
    rc = ibx_frontend_library_try(made, &tried);
    if (rc) {
        *library = NULL;
        cudaLibraryUnload(made);
        return rc;
    }
    if (module)
        ibx_frontend_owned(OWNED_LIBRARY, made, ibx_driver_current());
    return CUDA_SUCCESS;
}

static int load_data(void **library, const void *code, bool module)
{
    if (!library || !code)
        return CUDA_INVALID_VALUE;
    return loaded(cudaLibraryLoadData(library, code, NULL, NULL, 0, NULL, NULL, 0), library,
                  module);
}

static int load_timed(void **module, const void *code, const struct ibx_compiler *c)
{
    const uint64_t begin = ibx_now_ns();
    const int rc = load_data(module, code, true);
    if (!rc)
        ibx_frontend_compiler_took(c, code, ibx_now_ns() - begin);
    return rc;
}

static int load_file(void **library, const char *path, bool module)
{
    if (!library || !path)
        return CUDA_INVALID_VALUE;
    return loaded(cudaLibraryLoadFromFile(library, path, NULL, NULL, 0, NULL, NULL, 0), library,
                  module);
}

/* Whether a kernel of the image was loaded. One in which no kernel is known may be one that cannot
 * be compiled. */
static bool is_good(void *library)
{
    bool tried;
    return !ibx_frontend_library_try(library, &tried) && tried;
}

/* Writes the log that the program wants of an image, which is `good` or not. Returns what is wrong
 * with it, as far as the back end says. An image that was compiled can be used, even if the linker
 * has no memory for the log, or refuses the image. */
static int write_log(bool good, const struct ibx_compiler *c, const void *code)
{
    const int result = !good || c->is_verbose ? ibx_frontend_compile_module(c, code) : CUDA_SUCCESS;
    if (good && result)
        ibx_frontend_compiler_no_error(c);
    return good ? CUDA_SUCCESS : result;
}

/* To be called after the attempt to load the image, whose result is `rc`. */
static int told(int rc, const struct ibx_compiler *c, void **library, const void *code)
{
    if (!code || !library || !ibx_frontend_compiler_is_asked(c))
        return rc;
    const int result = write_log(!rc && is_good(*library), c, code);
    if (!result)
        return rc;
    if (!rc) {
        cudaLibraryUnload(*library);
        *library = NULL;
    }
    return result;
}

/* The same for a library. If it is to be loaded later, it is compiled only for its log. */
static int library_told(int rc, const struct ibx_compiler *c, void **library, const void *code)
{
    if (rc || loads_at_once())
        return told(rc, c, library, code);
    if (ibx_frontend_compiler_is_asked(c))
        write_log(is_good(*library), c, code);
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------- modules */

EXPORTED int cuModuleLoadData(void **module, const void *code)
{
    return IN_CONTEXT(load_data(module, code, true));
}

EXPORTED int cuModuleLoadDataEx(void **module, const void *code, unsigned count, const int *options,
                                void **values)
{
    const struct ibx_compiler c = ibx_frontend_compiler_of(count, options, values);
    if (ibx_frontend_compiler_is_wrong(&c, count, options, values))
        return IN_CONTEXT(CUDA_INVALID_VALUE);
    ibx_frontend_compiler_is_silent(&c);
    return IN_CONTEXT(told(load_timed(module, code, &c), &c, module, code));
}

EXPORTED int cuModuleLoadFatBinary(void **module, const void *code)
{
    return IN_CONTEXT(load_data(module, code, true));
}

EXPORTED int cuModuleLoad(void **module, const char *path)
{
    return IN_CONTEXT(load_file(module, path, true));
}

/* The next library may get the same addresses. */
int ibx_driver_unload(void *library)
{
    ibx_driver_launches_forget(library);
    return cudaLibraryUnload(library);
}

EXPORTED int cuModuleUnload(void *module)
{
    return ANYWHERE(ibx_driver_unload(module));
}

EXPORTED int cuModuleGetLoadingMode(int *mode)
{
    return ANYWHERE(mode ? (*mode = loads_at_once() ? LOADS_AT_ONCE : LOADS_LATE, CUDA_SUCCESS)
                         : CUDA_INVALID_VALUE);
}

EXPORTED int cuModuleGetFunction(void **function, void *module, const char *name)
{
    return ANYWHERE(cudaLibraryGetKernel(function, module, name));
}

EXPORTED int cuModuleGetFunctionCount(unsigned *count, void *module)
{
    return ANYWHERE(cudaLibraryGetKernelCount(count, module));
}

EXPORTED int cuModuleEnumerateFunctions(void **functions, unsigned count, void *module)
{
    return ANYWHERE(cudaLibraryEnumerateKernels(functions, count, module));
}

static int variable(uint64_t *address, size_t *n, void *library, const char *name, bool managed)
{
    void *at = NULL;
    if (!name || (!address && !n))
        return CUDA_INVALID_VALUE;
    const int rc = managed ? cudaLibraryGetManaged(&at, n, library, name)
                           : cudaLibraryGetGlobal(&at, n, library, name);
    if (address) /* the driver clears these on an error, too */
        *address = (uintptr_t)at;
    if (rc && n)
        *n = 0;
    return rc;
}

EXPORTED int cuModuleGetGlobal_v2(uint64_t *address, size_t *n, void *module, const char *name)
{
    return ANYWHERE(variable(address, n, module, name, false));
}

/* ------------------------------------------------------------------------------- libraries */

EXPORTED int cuLibraryLoadData(void **library, const void *code, const int *options, void **values,
                               unsigned count, const int *library_options,
                               void *const *library_values, unsigned library_count)
{
    (void)library_options, (void)library_values, (void)library_count;
    const struct ibx_compiler c = ibx_frontend_compiler_of(count, options, values);
    ibx_frontend_compiler_is_silent(&c);
    return ANYWHERE(library_told(load_data(library, code, false), &c, library, code));
}

EXPORTED int cuLibraryLoadFromFile(void **library, const char *path, const int *options,
                                   void **values, unsigned count, const int *library_options,
                                   void *const *library_values, unsigned library_count)
{
    (void)library_options, (void)library_values, (void)library_count;
    const struct ibx_compiler c = ibx_frontend_compiler_of(count, options, values);
    ibx_frontend_compiler_is_silent(&c);
    return ANYWHERE(load_file(library, path, false));
}

EXPORTED int cuLibraryUnload(void *library)
{
    return ANYWHERE(ibx_driver_unload(library));
}

EXPORTED int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    return ANYWHERE(cudaLibraryGetKernel(kernel, library, name));
}

EXPORTED int cuLibraryGetKernelCount(unsigned *count, void *library)
{
    return ANYWHERE(cudaLibraryGetKernelCount(count, library));
}

EXPORTED int cuLibraryEnumerateKernels(void **kernels, unsigned count, void *library)
{
    return ANYWHERE(cudaLibraryEnumerateKernels(kernels, count, library));
}

EXPORTED int cuLibraryGetModule(void **module, void *library)
{
    const int rc = module ? IN_CONTEXT(ibx_frontend_library_use(library)) : CUDA_INVALID_VALUE;
    if (!rc)
        *module = library;
    return rc;
}

EXPORTED int cuLibraryGetGlobal(uint64_t *address, size_t *n, void *library, const char *name)
{
    return IN_CONTEXT(variable(address, n, library, name, false));
}

EXPORTED int cuLibraryGetManaged(uint64_t *address, size_t *n, void *library, const char *name)
{
    return IN_CONTEXT(variable(address, n, library, name, true));
}

/* ------------------------------------------------------------------------------- kernels */

static int function_of(void **function, void *kernel)
{
    if (!function)
        return CUDA_INVALID_VALUE;
    if (!kernel)
        return CUDA_INVALID_HANDLE;
    *function = kernel;
    return CUDA_SUCCESS;
}

EXPORTED int cuKernelGetFunction(void **function, void *kernel)
{
    return IN_CONTEXT(function_of(function, kernel));
}

EXPORTED int cuKernelGetName(const char **name, const void *kernel)
{
    return ANYWHERE(kernel ? cudaFuncGetName(name, kernel) : CUDA_INVALID_VALUE);
}

static int library_of(void **library, const void *kernel)
{
    void *found = library ? ibx_frontend_library_of(kernel) : NULL;
    if (!found)
        return library ? CUDA_INVALID_HANDLE : CUDA_INVALID_VALUE;
    *library = found;
    return CUDA_SUCCESS;
}

EXPORTED int cuKernelGetLibrary(void **library, const void *kernel)
{
    return ANYWHERE(library_of(library, kernel));
}

EXPORTED int cuFuncGetModule(void **module, const void *function)
{
    return ANYWHERE(function ? library_of(module, function) : CUDA_INVALID_VALUE);
}

EXPORTED int cuFuncGetName(const char **name, const void *function)
{
    return ANYWHERE(function ? cudaFuncGetName(name, function) : CUDA_INVALID_VALUE);
}

static int is_loaded(int *state, const void *function)
{
    if (!function)
        return CUDA_INVALID_HANDLE;
    if (!state)
        return CUDA_INVALID_VALUE;
    *state = FUNCTION_IS_LOADED;
    return CUDA_SUCCESS;
}

EXPORTED int cuFuncIsLoaded(int *state, const void *function)
{
    return ANYWHERE(is_loaded(state, function));
}

EXPORTED int cuFuncLoad(const void *function)
{
    return ANYWHERE(function ? CUDA_SUCCESS : CUDA_INVALID_HANDLE);
}

SAME_AS(cuModuleGetGlobal, cuModuleGetGlobal_v2)
