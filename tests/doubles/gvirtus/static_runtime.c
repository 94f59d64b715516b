/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What nvcc links into a program by default: CUDA's runtime, hidden from libraries, which fails
 * without a driver. CUDA_12: of that version. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

#define HIDDEN __attribute__((visibility("hidden"), noinline))

HIDDEN int libcudart_static_0123456789abcdef0123456789abcdef01234567(const char *call);
HIDDEN int cudaGetDeviceCount(int *count);
HIDDEN int cudaMalloc(void **device, size_t n);
HIDDEN int cudaMemcpy(void *to, const void *from, size_t n, int kind);
HIDDEN int cudaFree(void *device);
HIDDEN int cudaMemcpyBatchAsync(void);
HIDDEN int cudaGetDeviceProperties_v2(void);
HIDDEN int cudaNothing(void);

int libcudart_static_0123456789abcdef0123456789abcdef01234567(const char *call)
{
    const int is_there = dlsym(RTLD_NEXT, "cuNothing") != NULL; /* as it looks for the driver's */
    return printf("%s without a driver\n", call) < 0 || is_there ? -1 : 35;
}

/* In the real one none that matters is shorter. */
#define LONG __asm__ volatile(".rept 32\n\tnop\n\t.endr")
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

/* Nobody else has it. */
int cudaNothing(void)
{
    return FAILS;
}
