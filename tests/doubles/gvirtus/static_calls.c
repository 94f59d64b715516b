/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What nvcc makes of a file with kernels: it calls CUDA's runtime, for the first time before
 * main(), as kernels are registered. HOST_ONLY: what a C compiler makes of one without. */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#ifndef HOST_ONLY
__attribute__((section(".nv_fatbin"), used)) static const char kernels[16] = "kernels";
#endif

int cudaGetDeviceCount(int *count);
int cudaMalloc(void **device, size_t n);
int cudaMemcpy(void *to, const void *from, size_t n, int kind);
int cudaFree(void *device);
int cudaNothing(void);
int static_calls(void);

static int devices, registered = -1;

__attribute__((constructor)) static void begin(void)
{
    registered = errno ? -1 : cudaGetDeviceCount(&devices);
}

int static_calls(void)
{
    static char there[100000], back[100000];
    void *device;
    int rc = registered;
    memset(there, 's', sizeof(there));
    if (!rc)
        rc = cudaMalloc(&device, sizeof(there));
    if (!rc)
        rc = cudaMemcpy(device, there, sizeof(there), 1);
    if (!rc)
        rc = cudaMemcpy(back, device, sizeof(back), 2);
    if (!rc)
        rc = cudaFree(device);
    if (!rc && (devices < 1 || memcmp(there, back, sizeof(back)) != 0 || cudaNothing() != 35))
        rc = -1;
    return rc;
}
