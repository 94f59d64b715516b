/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's runtime: its answers about streams, devices and kernels are made of the
 * arguments of the question. */
#include "frontend-glue/session/extensions.h"
#include "tests/doubles/cuda/driver.h"
#include "tests/doubles/cuda/runtime.h"

#include <stdint.h>
#include <string.h>

#define INVALID_VALUE    1
#define INVALID_FUNCTION 98

/* ------------------------------------------------------------------------------- streams */

static void *copied_to, *copied_from;

EXPORT int cudaStreamGetId(void *stream, unsigned long long *id)
{
    *id = ((unsigned long long)1 << 40) + (uintptr_t)stream % 1000;
    return returns(0);
}

EXPORT int cudaStreamGetDevice(void *stream, int *device)
{
    const int rc = device_of_stream(stream, device);
    *device = copied_to == stream && copied_from ? 7 : *device;
    return returns(rc);
}

EXPORT int cudaStreamCopyAttributes(void *to, void *from)
{
    copied_to = to;
    copied_from = from;
    return returns(0);
}

/* ------------------------------------------------------------------------------- devices */

EXPORT int cudaGetDeviceFlags(unsigned *flags)
{
    *flags = 8;
    return returns(0);
}

EXPORT int cudaDeviceGetCacheConfig(int *config)
{
    *config = 2;
    return returns(0);
}

EXPORT int cudaDeviceGetP2PAttribute(int *value, int attribute, int from, int to)
{
    *value = (int)((unsigned)attribute * 100 + (unsigned)from * 10 + (unsigned)to);
    return returns(from == to ? 101 : 0);
}

EXPORT int cudaDeviceGetTexture1DLinearMaxWidth(size_t *most,
                                                const struct ibx_cuda_channel *channel, int device)
{
    *most = ((size_t)1 << 33) + (size_t)channel->x;
    return returns(device ? 101 : 0);
}

/* ------------------------------------------------------------------------------- kernels */

struct config {
    unsigned size[6];
    size_t shared;
    void *stream;
    const struct {
        int id;
        _Alignas(8) int value[16];
    } * attributes;
    unsigned count;
};

static int clusters(int *number, const void *kernel, const struct config *c, int times)
{
    unsigned sum = (unsigned)c->shared;
    for (unsigned i = 0; i < 6; i++)
        sum = sum * 3 + c->size[i];
    for (unsigned i = 0; i < c->count; i++)
        sum += (unsigned)c->attributes[i].id * 1000 + (unsigned)c->attributes[i].value[0] * 100000;
    *number = (int)(sum * (unsigned)times);
    return returns(is_kernel(kernel) ? 0 : INVALID_FUNCTION);
}

EXPORT int cudaOccupancyMaxActiveClusters(int *number, const void *kernel, const struct config *c)
{
    return clusters(number, kernel, c, 1);
}

EXPORT int cudaOccupancyMaxPotentialClusterSize(int *number, const void *kernel,
                                                const struct config *c)
{
    return clusters(number, kernel, c, 2);
}

EXPORT int cudaOccupancyAvailableDynamicSMemPerBlock(size_t *n, const void *kernel, int blocks,
                                                     int threads)
{
    *n = (size_t)blocks * 1000 + (size_t)threads;
    return returns(is_kernel(kernel) ? 0 : INVALID_FUNCTION);
}

EXPORT int cudaFuncGetParamInfo(const void *kernel, size_t index, size_t *at, size_t *n)
{
    *at = index * 8;
    *n = 8;
    return returns(!is_kernel(kernel) ? INVALID_FUNCTION : index > 2 ? INVALID_VALUE : 0);
}
