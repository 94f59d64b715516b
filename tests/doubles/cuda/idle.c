/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The double of CUDA's library, with a GPU that does nothing: copies move no bytes, kernels are not
 * run, and both are over at once. The rest is the double's. So the time of a call has no part of a
 * GPU.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORT          __attribute__((visibility("default")))
#define ONE_ADDRESS     91 /* CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
#define SUCCESS         0
#define NOT_INITIALIZED 3

EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *stream);
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *stream);
EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n);
EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n);
EXPORT int cuStreamWriteValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags);
EXPORT int cuLaunchKernel(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                          void *stream, void **arguments, void **extra);
EXPORT int cuEventRecord(void *event, void *stream);
EXPORT int cuEventSynchronize(void *event);
EXPORT int cuEventQuery(void *event);
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *stream)
{
    (void)to, (void)from, (void)n, (void)stream;
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *stream)
{
    (void)to, (void)from, (void)n, (void)stream;
    return SUCCESS;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n)
{
    (void)to, (void)from, (void)n;
    return SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n)
{
    (void)to, (void)from, (void)n;
    return SUCCESS;
}

int cuStreamWriteValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags)
{
    (void)stream, (void)flags;
    atomic_store((_Atomic uint32_t *)(uintptr_t)address, value);
    return SUCCESS;
}

int cuLaunchKernel(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   void *stream, void **arguments, void **extra)
{
    (void)kernel, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y;
    (void)block_z, (void)shared, (void)stream, (void)arguments, (void)extra;
    return SUCCESS;
}

int cuEventRecord(void *event, void *stream)
{
    (void)event, (void)stream;
    return SUCCESS;
}

int cuEventSynchronize(void *event)
{
    (void)event;
    return SUCCESS;
}

int cuEventQuery(void *event)
{
    (void)event;
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    int (*next)(int *value, int attribute, int device) = NULL;
    void *library = dlopen("libcuda-double.so", RTLD_LAZY | RTLD_NOLOAD);
    if (attribute == ONE_ADDRESS) {
        *value = 1;
        return SUCCESS;
    }
    if (library)
        *(void **)&next = dlsym(library, "cuDeviceGetAttribute");
    return next ? next(value, attribute, device) : NOT_INITIALIZED;
}
