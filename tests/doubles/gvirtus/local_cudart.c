/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Stands for NVIDIA's libcudart.so.13, as Python packages bring it, on a host without a GPU. */
#include <stddef.h>

#define SEEN __attribute__((visibility("default")))

int cudaGetDeviceCount(int *count);
int cudaMalloc(void **device, size_t n);
int cudaFree(void *device);
int cudaGetExportTable(const void **table, const void *id);

SEEN int cudaGetDeviceCount(int *count)
{
    *count = 0;
    return 35;
}

SEEN int cudaMalloc(void **device, size_t n)
{
    *device = NULL;
    return n ? 35 : 0;
}

SEEN int cudaFree(void *device)
{
    return device ? 35 : 0;
}

SEEN int cudaGetExportTable(const void **table, const void *id)
{
    *table = id;
    return 35;
}
