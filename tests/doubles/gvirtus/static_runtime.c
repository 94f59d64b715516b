/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Stands for what nvcc links into a program by default: CUDA's runtime, hidden from libraries,
 * which fails without a driver. It begins and ends with functions of its own, as the real one does.
 * CUDA_12: it is of CUDA 12. OWN: a function of the program is beside it. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

#ifdef __clang__
#define HIDDEN __attribute__((visibility("hidden"), noinline))
#else
#define HIDDEN __attribute__((visibility("hidden"), noinline, no_reorder))
#endif

HIDDEN int libcudart_static_0123456789abcdef0123456789abcdef01234567(const char *call);
HIDDEN int cudaGetDeviceCount(int *count);
HIDDEN int cudaMalloc(void **device, size_t n);
HIDDEN int cudaMemcpy(void *to, const void *from, size_t n, int kind);
HIDDEN int cudaFree(void *device);
HIDDEN int cudaMemcpyBatchAsync(void);
HIDDEN int cudaGetDeviceProperties_v2(void);
HIDDEN int cudaNothing(void);
HIDDEN int libcudart_static_76543210fedcba9876543210fedcba9876543210(void);
HIDDEN int cudaBeside(int value);

/* In the real runtime no function that matters is shorter. */
#define LONG __asm__ volatile(".rept 32\n\tnop\n\t.endr")

#ifdef OWN
int cudaBeside(int value)
{
    LONG;
    return value + 8;
}
#endif

int libcudart_static_0123456789abcdef0123456789abcdef01234567(const char *call)
{
    const int is_there = dlsym(RTLD_NEXT, "cuNothing") != NULL; /* as for the driver's */
    return printf("%s without a driver\n", call) < 0 || is_there ? -1 : 35;
}

#define FAILS                                                                                      \
    ({                                                                                             \
        LONG;                                                                                      \
        libcudart_static_0123456789abcdef0123456789abcdef01234567(__func__);                       \
    })

int cudaGetDeviceCount(int *count)
{
    return (*count = 0) + FAILS;
}

int cudaMalloc(void **device, size_t n)
{
    *device = NULL;
    return n ? FAILS : 0;
}

int cudaMemcpy(void *to, const void *from, size_t n, int kind)
{
    return to && from && n && kind ? FAILS : 1;
}

int cudaFree(void *device)
{
    return device ? FAILS : 0;
}

#ifdef CUDA_12
int cudaGetDeviceProperties_v2(void)
#else
int cudaMemcpyBatchAsync(void)
#endif
{
    return FAILS;
}

/* No other library has it. */
int cudaNothing(void)
{
    return FAILS;
}

int libcudart_static_76543210fedcba9876543210fedcba9876543210(void)
{
    LONG;
    return 0;
}
