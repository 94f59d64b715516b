/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A program that opens libcudart itself, as packages of Python do, or libcublas and the like, takes
 * CUDA's calls from it by dlsym(3), which does not look for them in what is preloaded. It gets them
 * here all the same: the functions of this library, where that has one of the name, and GVirtuS's
 * otherwise. Likewise the driver's from libcuda.so.1, whoever's that is; of the driver there are no
 * others.
 *
 * dlsym(3) knows its caller by where it returns to, on which RTLD_NEXT depends. So this one ends by
 * a jump to the C library's, for which its file is compiled apart, optimized, and without
 * sanitizers: their own libraries call it before they have begun.
 */
#include "frontend-glue/preload/dlsym.h"

#include "frontend-glue/preload/remote_libraries.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>

/* Whose locals are in its way. */
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

/* Of the first glibc that there was. One that is not found would make memory for an error, and who
 * replaces malloc(3) may be calling. */
#ifdef __x86_64__
#define VERSION "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define VERSION "GLIBC_2.17"
#else
#define VERSION "GLIBC_2.34"
#endif

static look_up *of_libc; /* no atomic: whoever writes it writes the same */
static void *itself;     /* this library */

APART static look_up *next_one(void)
{
    look_up *next = of_libc;
    if (!next)
        *(void **)&next = dlvsym(RTLD_NEXT, "dlsym", VERSION);
    return of_libc = next;
}

/* Ahead of this library's other ones. */
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

/* Whether this library has functions of that one. */
static bool is_known(const char *path)
{
    static const char *const names[] = {IBX_REMOTE_LIBRARIES, "libcudnn"};
    bool known = false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        known = known || is_named(path, names[i]);
    return known;
}

/* This library's function of that name, where the program has asked such a library for one, whether
 * that has it or not. */
/* cuDNN's libraries look for each other's functions so. */
APART static void *ours(look_up *next, void *handle, const char *name, const void *caller)
{
    struct link_map *library = NULL;
    Dl_info info;
    if ((!begins(name, "cu") && !begins(name, "__cuda")) ||
        (begins(name, "cudnn") && dladdr(caller, &info) && is_named(info.dli_fname, "libcudnn")))
        return NULL;
    void *function = next(itself, name), *theirs = function ? next(handle, name) : NULL;
    const bool is_there = theirs ? dladdr(theirs, &info) && is_known(info.dli_fname)
                                 : function && !dlinfo(handle, RTLD_DI_LINKMAP, &library) &&
                                       is_known(library->l_name);
    dlerror(); /* of what was not found here */
    return is_there ? function : NULL;
}

static bool is_of_driver(const char *name)
{
    return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

/* This library's function of the driver, or NULL: it has none. False: the program has not asked the
 * driver for one. A library of the plugin's looks for GPUs of this host there. */
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
    if (function || !next)
        return function;
    JUMP return next(handle, name);
}
