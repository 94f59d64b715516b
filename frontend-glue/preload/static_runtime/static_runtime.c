/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * nvcc links CUDA's runtime statically into programs and libraries by default. Such a program calls
 * no libcudart, so neither GVirtuS nor this library would see its calls, and that runtime needs
 * private tables of a driver. So each function of such a runtime is made a jump (redirect.c)
 * before constructors run (loader.c). The functions are found by name in the symbol table of the
 * file. There is a warning if the file is stripped, or if there is no libcudart of the same
 * version.
 *
 * The first call of any function of an object decides where all its functions lead: to this
 * library's functions, or to GVirtuS's. It cannot be decided earlier, because GVirtuS's libcudart
 * may have to be loaded, and the loader cannot be called while it is at work.
 */
#include "frontend-glue/preload/dlsym.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/static_runtime/loader.h"
#include "frontend-glue/preload/static_runtime/runtime_answers.h"

#include "common/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The path for messages. */
static const char *path_of(const struct ibx_static_runtime *runtime, char path[PATH_MAX])
{
    const bool is_program = !strcmp(runtime->path, IBX_STATIC_RUNTIME_PROGRAM);
    const ssize_t n = is_program ? readlink(IBX_STATIC_RUNTIME_PROGRAM, path, PATH_MAX - 1) : -1;
    if (n > 0)
        path[n] = 0;
    return n > 0 ? path : runtime->path;
}

/* --------------------------------------------------------------------------- libcudart */

struct other {
    char path[PATH_MAX];
    const char *than;
};

static bool is_other(const char *path, ElfW(Dyn) * dynamic, void *argument)
{
    struct other *other = argument;
    (void)dynamic;
    if (!ibx_frontend_is_named(path, "libcudart.so") || ibx_frontend_is_named(path, other->than))
        return false;
    snprintf(other->path, sizeof(other->path), "%s", path);
    return true;
}

/* Whether a libcudart of GVirtuS's for another version of CUDA is loaded. There can be only one,
 * because its functions and this library's work together. */
static bool is_in_use(struct other *other)
{
    void *library = ibx_frontend_each_library(is_other, other)
                        ? dlopen(other->path, RTLD_LAZY | RTLD_NOLOAD)
                        : NULL;
    const bool gvirtus = library && !ibx_frontend_is_nvidias(library);
    if (library)
        dlclose(library);
    return gvirtus;
}

static void tell_unreached(struct ibx_static_runtime *runtime, const char *why, const char *what)
{
    char path[PATH_MAX];
    if (!atomic_flag_test_and_set(&runtime->is_unreached_reported))
        ibx_log(IBX_LOG_WARN,
                "%s contains a statically linked CUDA runtime, whose calls cannot reach the remote "
                "GPU, and fail: %s%s; LD_LIBRARY_PATH has to name the folder of GVirtuS's front "
                "end for that version of CUDA",
                path_of(runtime, path), why, what);
}

static void tell_other(struct ibx_static_runtime *runtime, const struct other *other)
{
    char path[PATH_MAX];
    if (!atomic_flag_test_and_set(&runtime->is_unreached_reported))
        ibx_log(IBX_LOG_WARN,
                "%s contains a statically linked CUDA runtime, of the version of %s, and the "
                "process uses %s: its calls cannot reach the remote GPU, and fail; build all of "
                "the program's libraries with one version of CUDA",
                path_of(runtime, path), runtime->version, other->path);
}

void *ibx_static_runtime_load(struct ibx_static_runtime *runtime)
{
    struct other other = {.than = runtime->version};
    void *library = dlopen(runtime->version, RTLD_LAZY | RTLD_NOLOAD);
    if (!library && is_in_use(&other)) {
        tell_other(runtime, &other);
        return NULL;
    }
    if (!library)
        library = dlopen(runtime->version, RTLD_LAZY);
    if (library && !ibx_frontend_is_nvidias(library))
        return library;
    tell_unreached(runtime, library ? runtime->version : dlerror(),
                   library ? " is found, but NVIDIA's" : "");
    if (library)
        dlclose(library);
    return NULL;
}

/* ---------------------------------------------------------------------- the first call */

/* Sets the target of a function unless another thread has set it. */
static void lead(struct ibx_static_function *f, void *target)
{
    void *expected = (void *)(uintptr_t)ibx_static_runtime_first;
    atomic_compare_exchange_strong(&f->target, &expected, target);
}

/* Threads that call at the same time all do this, with the same result. They must not wait for each
 * other: one may hold the loader's lock in the constructor of a library, and another one needs it
 * to load libcudart. */
static void bind(struct ibx_static_runtime *runtime)
{
    void *libcudart = ibx_static_runtime_load(runtime);
    for (size_t i = 0; i < runtime->count; i++) {
        struct ibx_static_function *f = &runtime->functions[i];
        /* This library's function, if it has one. */
        void *target = libcudart ? dlsym(libcudart, f->name) : NULL;
        if (!target)
            target = libcudart ? ibx_static_runtime_lacked(f->name)
                               : ibx_static_runtime_unreached(f->name);
        lead(f, target);
    }
    dlerror(); /* clears the error of failed lookups */
    atomic_store(&runtime->is_bound, true);
}

/* May be called by a library's constructor, before this library's. It does not change errno, which
 * the program may still want to read. */
void ibx_static_runtime_bind(struct ibx_static_function *function)
{
    const int before = errno;
    ibx_frontend_dlsym_begin();
    if (!atomic_load(&function->of->is_bound))
        bind(function->of);
    errno = before;
}

/* ----------------------------------------------------------------- what is not reached */

static void tell(const struct ibx_static_runtime *runtime)
{
    char buffer[PATH_MAX], libcudart[PATH_MAX];
    const char *path = path_of(runtime, buffer);
    const bool is_program = !runtime->map->l_prev;
    if (runtime->state == IBX_STATIC_RUNTIME_NAMELESS &&
        !(is_program && ibx_frontend_libcudart(libcudart)))
        ibx_log(IBX_LOG_WARN,
                "%s has kernels, is not linked with libcudart.so, and has no symbols: the runtime "
                "that nvcc puts into a program or library by default does not reach the remote GPU "
                "then, and its calls fail; do not strip it, or link it with nvcc -cudart shared",
                path);
    if (runtime->state == IBX_STATIC_RUNTIME_RELOCATED)
        ibx_log(IBX_LOG_WARN,
                "%s contains a statically linked CUDA runtime, and code that is relocated "
                "(DT_TEXTREL), which is not changed to reach the remote GPU; compile it with "
                "-fPIC, or link it with nvcc -cudart shared",
                path);
    if (runtime->state == IBX_STATIC_RUNTIME_ELSEWHERE)
        ibx_log(IBX_LOG_WARN,
                "%s is opened into a namespace of its own (dlmopen), from where the calls of the "
                "CUDA runtime that is linked statically into it do not reach the remote GPU, and "
                "fail; open it by dlopen",
                path);
    if (runtime->state == IBX_STATIC_RUNTIME_REFUSED)
        ibx_log(IBX_LOG_WARN,
                "%s contains a statically linked CUDA runtime, and its code may not be changed to "
                "reach the remote GPU: %s; allow that, or link it with nvcc -cudart shared",
                path, strerror(runtime->error));
}

/* Does not change errno, which dlopen(3) returns. */
void ibx_loader_tell(void)
{
    const int before = errno;
    for (struct ibx_static_runtime *runtime; (runtime = ibx_loader_untold());)
        tell(runtime);
    errno = before;
}

__attribute__((constructor)) static void begin(void)
{
    const int before = errno;
    if (!ibx_loader_begin(program_invocation_name))
        ibx_log(IBX_LOG_INFO,
                "libraries that contain a statically linked CUDA runtime and are opened from now "
                "on do not reach the remote GPU: the loader's _dl_debug_state() has a debugger's "
                "breakpoint, may not be changed, or is too far from this library, which has to be "
                "the first in LD_PRELOAD then");
    ibx_loader_tell();
    errno = before;
}
