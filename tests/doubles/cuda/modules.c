/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A double of CUDA's driver: the module of its kernel. It has every variable whose name is
 * KINDmemory.offset.bytes: so many bytes at that offset of one of eight pieces of memory. Variables
 * of the kinds "m" and "l" are managed, and outlast resets; those of kind "l" are known only to
 * their library.
 *
 * A test may have the functions of clients' modules be kernels of their own, which can be unloaded.
 */
#include "tests/doubles/cuda/internal.h"

#include <stdatomic.h>
#include <stdio.h>

#define NOT_FOUND 500
#define PIECES    8u
#define PIECE     (1u << 20)
#define MODULE    ((void *)0x7010)
#define LIBRARY   ((void *)0x7020)

/* A piece that was freed, by a reset for instance, is made again. */
static int piece(unsigned number, uint64_t *at)
{
    static uint64_t pieces[PIECES];
    char byte;
    int rc = SUCCESS;
    if (!pieces[number] || !ibx_double_peek(pieces[number], &byte, 1))
        rc = cuMemAlloc_v2(&pieces[number], PIECE);
    *at = pieces[number];
    return rc;
}

static void keep(uint64_t at)
{
    pthread_mutex_lock(&mutex);
    struct allocation *a = find((void *)(uintptr_t)at, 1);
    if (a)
        a->stays = true;
    leave(SUCCESS);
}

static int find_variable(const char *name, bool managed, uint64_t *at, size_t *n)
{
    char kind;
    unsigned number;
    size_t offset;
    if (sscanf(name, "%c%u.%zu.%zu", &kind, &number, &offset, n) != 4 || number >= PIECES ||
        offset > PIECE || *n > PIECE - offset || (kind == 'l') != managed)
        return NOT_FOUND;
    const int rc = piece(number, at);
    if (!rc && (kind == 'm' || kind == 'l'))
        keep(*at);
    *at += offset;
    return rc;
}

EXPORT int cuFuncGetModule(void **module, void *function)
{
    *module = MODULE;
    return (uintptr_t)function == IBX_DOUBLE_KERNEL ? SUCCESS : INVALID_HANDLE;
}

EXPORT int cuModuleGetGlobal_v2(uint64_t *at, size_t *n, void *module, const char *name)
{
    return module == MODULE ? find_variable(name, false, at, n) : INVALID_HANDLE;
}

EXPORT int cuKernelGetLibrary(void **library, void *kernel)
{
    *library = LIBRARY;
    return (uintptr_t)kernel == IBX_DOUBLE_KERNEL ? SUCCESS : INVALID_HANDLE;
}

EXPORT int cuLibraryGetManaged(uint64_t *at, size_t *n, void *library, const char *name)
{
    return library == LIBRARY ? find_variable(name, true, at, n) : INVALID_HANDLE;
}

/* ------------------------------------------------------- functions that can be unloaded */

#define UNLOADED 64u

static atomic_bool apart;
static _Atomic(const void *) unloaded[UNLOADED]; /* the last ones */
static atomic_uint unloads;

static bool is_client_function(const void *function)
{
    return (uintptr_t)function >> 56 == 0x1b;
}

EXPORT void ibx_double_kernels_apart(bool they)
{
    apart = they;
}

EXPORT void ibx_double_unload(const void *function)
{
    unloaded[unloads++ % UNLOADED] = function;
}

EXPORT void *ibx_double_kernel_of(const void *function)
{
    return apart && is_client_function(function) ? (void *)(uintptr_t)function
                                                 : (void *)IBX_DOUBLE_KERNEL;
}

bool is_copy_kernel(const void *kernel)
{
    return (uintptr_t)kernel == IBX_DOUBLE_KERNEL || is_client_function(kernel);
}

EXPORT bool ibx_double_is_loaded(const void *kernel)
{
    unsigned i = 0;
    while (i < UNLOADED && (!kernel || unloaded[i] != kernel))
        i++;
    return i == UNLOADED;
}
