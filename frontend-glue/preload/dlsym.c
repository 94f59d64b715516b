/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A program that opens libcudart, libcublas and the like itself, as packages of Python do, looks up
 * CUDA's functions in it by dlsym(3), which does not consult preloaded libraries. This file
 * replaces dlsym(3): such a program gets this library's function if there is one of that name, else
 * GVirtuS's. The same holds for libcuda.so.1, whether GVirtuS's, NVIDIA's or this project's: of the
 * driver only this library's functions are returned. And modules of Python are found by dlsym(3).
 *
 * dlsym(3) identifies its caller by the return address; RTLD_NEXT depends on that. So the function
 * ends by a jump to the C library's dlsym(). For that this file is compiled separately, with
 * optimization and without sanitizers, whose own libraries call dlsym() before they are
 * initialized.
 */
#include "frontend-glue/preload/dlsym.h"

#include "frontend-glue/preload/remote_libraries.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>

/* A function with locals that would prevent the jump. */
#define APART __attribute__((noinline))
#ifdef __has_attribute
#if __has_attribute(musttail)
#define JUMP __attribute__((musttail))
#endif
#endif
#ifndef JUMP
#define JUMP
#endif

typedef void *look_up(void *restrict handle, const char *restrict name);

/* The version of dlsym() in the first glibc for this machine. A version that does not exist would
 * make dlvsym() allocate an error message, and the caller may be a replacement of malloc(3). */
#ifdef __x86_64__
#define VERSION "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define VERSION "GLIBC_2.17"
#else
#define VERSION "GLIBC_2.34"
#endif

static look_up *of_libc; /* not atomic: all threads write the same value */
static void *itself;     /* this library */
static ibx_python_begins *python_begins;

void ibx_frontend_dlsym_python(ibx_python_begins *function)
{
    python_begins = function;
}

APART static look_up *next_one(void)
{
    look_up *next = of_libc;
    if (!next)
        *(void **)&next = dlvsym(RTLD_NEXT, "dlsym", VERSION);
    return of_libc = next;
}

/* Runs before the other constructors of this library. */
__attribute__((constructor(101))) void ibx_frontend_dlsym_begin(void)
{
    Dl_info info;
    if (!itself && dladdr((void *)&of_libc, &info) && info.dli_fname)
        itself = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
}

static bool begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

static bool is_named(const char *path, const char *begin)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    return path && begins(slash ? slash + 1 : path, begin);
}

/* Whether this library replaces functions of the library at `path`. */
static bool is_known(const char *path)
{
    static const char *const names[] = {IBX_REMOTE_LIBRARIES, "libcudnn", "libnccl.so"};
    bool known = false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        known = known || is_named(path, names[i]);
    return known;
}

/* This library's function of this name if `handle` is one of those libraries, even if that one
 * lacks the function; else NULL. Not for cuDNN's own libraries, which find each other's functions
 * in this way. */
APART static void *ours(look_up *next, void *handle, const char *name, const void *caller)
{
    struct link_map *library = NULL;
    Dl_info info;
    if ((!begins(name, "cu") && !begins(name, "__cuda") && !begins(name, "nccl") &&
         !begins(name, "pnccl")) ||
        (begins(name, "cudnn") && dladdr(caller, &info) && is_named(info.dli_fname, "libcudnn")))
        return NULL;
    void *function = next(itself, name), *theirs = function ? next(handle, name) : NULL;
    const bool is_there = theirs ? dladdr(theirs, &info) && is_known(info.dli_fname)
                                 : function && !dlinfo(handle, RTLD_DI_LINKMAP, &library) &&
                                       is_known(library->l_name);
    dlerror(); /* clears the error of failed lookups */
    return is_there ? function : NULL;
}

static bool is_of_driver(const char *name)
{
    return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

/* Sets *function to this library's function of the driver's API, or to NULL if it has none. False:
 * `handle` is not the driver, or the caller is libfabric, which is loaded by the plugin and looks
 * for GPUs of this host. */
APART static bool ours_of_driver(look_up *next, void *handle, const char *name, const void *caller,
                                 void **function)
{
    struct link_map *library = NULL;
    Dl_info info;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &library) || !is_named(library->l_name, "libcuda.so") ||
        (dladdr(caller, &info) && is_named(info.dli_fname, "libfabric.so")))
        return false;
    *function = next(itself, name);
    return true;
}

/* The function by which a module of Python's begins. */
APART static void *python_module(look_up *next, void *handle, const char *name)
{
    struct link_map *library = NULL;
    void *function = next(handle, name);
    return function && !dlinfo(handle, RTLD_DI_LINKMAP, &library) && library->l_name
               ? python_begins(library, function)
               : function;
}

void *ibx_frontend_dlsym(void *handle, const char *name)
{
    look_up *next = next_one();
    return next ? next(handle, name) : NULL;
}

__attribute__((visibility("default"))) void *dlsym(void *restrict handle, const char *restrict name)
{
    look_up *next = next_one();
    const bool asks = next && itself && handle != RTLD_DEFAULT && handle != RTLD_NEXT;
    void *function = asks ? ours(next, handle, name, __builtin_return_address(0)) : NULL;
    if (asks && is_of_driver(name) &&
        ours_of_driver(next, handle, name, __builtin_return_address(0), &function))
        return function;
    if (asks && python_begins && begins(name, "PyInit_"))
        function = python_module(next, handle, name);
    if (function || !next)
        return function;
    JUMP return next(handle, name);
}
