/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What doubles of CUDA's libraries share: handles, and memory of the driver's double. */
#ifndef IBX_TESTS_DOUBLES_CUDA_MATH_HANDLES_H
#define IBX_TESTS_DOUBLES_CUDA_MATH_HANDLES_H

#include "tests/doubles/cuda/runtime.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern __attribute__((visibility("hidden")))
atomic_uint math_handles; /* handles of this library that were made and not ended */

struct handle {
    void *stream;
    atomic_int on_device; /* the pointer mode */
    unsigned seed;
    int on_host; /* it is a generator that fills memory of the host */
    atomic_int users;
    /* Of cuBLAS's handles. */
    void *workspace;
    int math_mode, processors;
    int sparse; /* it is a handle of cusolverSp */
};

/* Whether this thread alone uses the handle. Lets other threads run, so that two threads in one
 * handle are noticed. */
static inline int math_alone(atomic_int *users)
{
    const int before = atomic_fetch_add(users, 1);
    for (int i = 0; i < 5; i++)
        sched_yield();
    return atomic_fetch_sub(users, 1) == 1 && !before;
}

static inline void *math_driver(const char *name)
{
    void *library = dlopen(getenv("IBX_LIBCUDA"), RTLD_LAZY | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL;
}

static inline int math_wait(const struct handle *h)
{
    int (*wait)(void *stream) = NULL;
    *(void **)&wait = math_driver("cuStreamSynchronize");
    return wait(h->stream);
}

/* The i-th of elements that are `step` values of `size` bytes apart. A client may have made up all
 * of these numbers. */
static inline void *math_nth(const void *first, size_t i, long long step, size_t size)
{
    return (void *)((uintptr_t)first + i * (uint64_t)step * size);
}

/* Copies to or from memory of the device. False: it is not the device's. The handle's stream has
 * been waited for, and no work goes into the legacy one. */
static inline int math_get(void *to, const void *from, size_t n)
{
    int (*copy)(void *host, const void *device, size_t count) = NULL;
    _Bool (*peek)(const void *device, void *host, size_t count) = NULL;
    *(void **)&peek = math_driver("ibx_double_peek");
    *(void **)&copy = math_driver("cuMemcpyDtoH_v2");
    return peek(from, to, n) || !copy(to, from, n);
}

static inline int math_put(void *to, const void *from, size_t n)
{
    int (*copy)(void *device, const void *host, size_t count) = NULL;
    _Bool (*poke)(void *device, const void *host, size_t count) = NULL;
    *(void **)&poke = math_driver("ibx_double_poke");
    *(void **)&copy = math_driver("cuMemcpyHtoD_v2");
    return poke(to, from, n) || !copy(to, from, n);
}

/* The same by the handle's pointer mode. */
static inline int math_scalar(const struct handle *h, void *to, const void *from, size_t n)
{
    if (h->on_device)
        return math_get(to, from, n);
    memcpy(to, from, n);
    return 1;
}

static inline int math_result(const struct handle *h, void *to, const void *from, size_t n)
{
    if (h->on_device)
        return math_put(to, from, n);
    memcpy(to, from, n);
    return 1;
}

static inline int math_make(struct handle **made)
{
    *made = calloc(1, sizeof(**made));
    math_handles += *made != NULL;
    return *made ? 0 : 3;
}

static inline int math_end(struct handle *h)
{
    math_wait(h);
    free(h);
    math_handles--;
    return 0;
}

#endif
