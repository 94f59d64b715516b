/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A program into which nvcc has linked CUDA's runtime, as it does by default, calls no libcudart:
 * neither GVirtuS nor this library would see any of its calls, and that runtime wants a driver's
 * private tables. Likewise a library, which may be opened at any time. So before constructors run,
 * each of that runtime's functions becomes a jump (runtime_inside.c; when: loader.c). They are
 * found by their names in the symbol table of the file; one that is stripped, or for whose version
 * of CUDA there is no libcudart, is told so.
 *
 * The first call of a function of an object's finds where all of these lead to: this library's
 * functions, or GVirtuS's. To load its libcudart takes the loader, which is not there earlier.
 */
#include "frontend-glue/preload/dlsym.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/runtime/loader.h"
#include "frontend-glue/preload/runtime/runtime_answers.h"

#include "common/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* As a person calls it. */
static const char *path_of(const struct ibx_inside *inside, char path[PATH_MAX])
{
    const bool is_program = !strcmp(inside->path, IBX_INSIDE_PROGRAM);
    const ssize_t n = is_program ? readlink(IBX_INSIDE_PROGRAM, path, PATH_MAX - 1) : -1;
    if (n > 0)
        path[n] = 0;
    return n > 0 ? path : inside->path;
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

/* One of GVirtuS's for another version of CUDA that is in use, of which there may be one: its
 * functions and this library's belong together. */
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

static void tell_unreached(struct ibx_inside *inside, const char *why, const char *what)
{
    char path[PATH_MAX];
    if (!atomic_flag_test_and_set(&inside->is_unreached_told))
        ibx_log(IBX_LOG_WARN,
                "%s contains a statically linked CUDA runtime, whose calls cannot reach the remote "
                "GPU, and fail: %s%s; LD_LIBRARY_PATH has to name the folder of GVirtuS's front "
                "end for that version of CUDA",
                path_of(inside, path), why, what);
}

static void tell_other(struct ibx_inside *inside, const struct other *other)
{
    char path[PATH_MAX];
    if (!atomic_flag_test_and_set(&inside->is_unreached_told))
        ibx_log(IBX_LOG_WARN,
                "%s contains a statically linked CUDA runtime, of the version of %s, and the "
                "process uses %s: its calls cannot reach the remote GPU, and fail; build all of "
                "the program's libraries with one version of CUDA",
                path_of(inside, path), inside->version, other->path);
}

/* GVirtuS's libcudart of that version, which gvirtus.c finds as one that a program has opened;
 * NULL: there is none, which is said. It stays. */
static void *load(struct ibx_inside *inside)
{
    struct other other = {.than = inside->version};
    void *library = dlopen(inside->version, RTLD_LAZY | RTLD_NOLOAD);
    if (!library && is_in_use(&other)) {
        tell_other(inside, &other);
        return NULL;
    }
    if (!library)
        library = dlopen(inside->version, RTLD_LAZY);
    if (library && !ibx_frontend_is_nvidias(library))
        return library;
    tell_unreached(inside, library ? inside->version : dlerror(),
                   library ? " is found, but NVIDIA's" : "");
    if (library)
        dlclose(library);
    return NULL;
}

/* ---------------------------------------------------------------------- the first call */

/* Whoever is first decides where one leads to. */
static void lead(struct ibx_inside_function *f, void *target)
{
    void *expected = (void *)(uintptr_t)ibx_inside_first;
    atomic_compare_exchange_strong(&f->target, &expected, target);
}

/* Threads that make it at once do the same. None of them waits for another, which may have the
 * loader's lock in a library's constructor: another one needs that to load libcudart. */
static void bind(struct ibx_inside *inside)
{
    void *libcudart = load(inside);
    for (size_t i = 0; i < inside->count; i++) {
        struct ibx_inside_function *f = &inside->functions[i];
        void *target = libcudart ? dlsym(libcudart, f->name) : NULL; /* this library's, if it has */
        if (!target)
            target = libcudart ? ibx_inside_lacked(f->name) : ibx_inside_unreached(f->name);
        lead(f, target);
    }
    dlerror(); /* of functions that are nowhere else */
    atomic_store(&inside->is_bound, true);
}

/* A library's constructor may call before this library's. errno is the program's, which may not
 * have begun to look at it. */
void ibx_inside_bind(struct ibx_inside_function *function)
{
    const int before = errno;
    ibx_frontend_dlsym_begin();
    if (!atomic_load(&function->of->is_bound))
        bind(function->of);
    errno = before;
}

/* ----------------------------------------------------------------- what is not reached */

static void tell(const struct ibx_inside *inside)
{
    char buffer[PATH_MAX], libcudart[PATH_MAX];
    const char *path = path_of(inside, buffer);
    const bool is_program = !inside->map->l_prev;
    if (inside->state == IBX_INSIDE_NAMELESS && !(is_program && ibx_frontend_libcudart(libcudart)))
        ibx_log(IBX_LOG_WARN,
                "%s has kernels, is not linked with libcudart.so, and has no symbols: the runtime "
                "that nvcc puts into a program or library by default does not reach the remote GPU "
                "then, and its calls fail; do not strip it, or link it with nvcc -cudart shared",
                path);
    if (inside->state == IBX_INSIDE_RELOCATED)
        ibx_log(IBX_LOG_WARN,
                "%s contains a statically linked CUDA runtime, and code that is relocated "
                "(DT_TEXTREL), which is not changed to reach the remote GPU; compile it with "
                "-fPIC, or link it with nvcc -cudart shared",
                path);
    if (inside->state == IBX_INSIDE_ELSEWHERE)
        ibx_log(IBX_LOG_WARN,
                "%s is opened into a namespace of its own (dlmopen), from where the calls of the "
                "CUDA runtime that is linked statically into it do not reach the remote GPU, and "
                "fail; open it by dlopen",
                path);
    if (inside->state == IBX_INSIDE_REFUSED)
        ibx_log(IBX_LOG_WARN,
                "%s contains a statically linked CUDA runtime, and its code may not be changed to "
                "reach the remote GPU: %s; allow that, or link it with nvcc -cudart shared",
                path, strerror(inside->error));
}

/* errno is dlopen(3)'s. */
void ibx_loader_tell(void)
{
    const int before = errno;
    for (struct ibx_inside *inside; (inside = ibx_loader_untold());)
        tell(inside);
    errno = before;
}

__attribute__((constructor)) static void begin(void)
{
    const int before = errno;
    if (!ibx_loader_begin(program_invocation_name))
        ibx_log(IBX_LOG_INFO,
                "libraries that contain a statically linked CUDA runtime and are opened from now "
                "on do not reach the remote GPU: the loader's _dl_debug_state() has a debugger's "
                "breakpoint, or may not be changed");
    ibx_loader_tell();
    errno = before;
}
