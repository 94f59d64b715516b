/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Queries of streams, devices and kernels that GVirtuS does not know: as extension requests, or
 * answered here.
 */
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/preload.h"

#include <stdio.h>

#define SHARED_BANKS 1 /* cudaSharedMemBankSizeFourByte: all that GPUs have since 2014 */
#define SHARED_MOST  2
#define FLAGS_VALID  1u /* cudaInitDeviceFlagsAreValid */

/* Makes a request whose answer is one number. `wanted`: the caller's output pointer, which must not
 * be NULL. */
static int number(const struct extension_request *e, const void *wanted, uint64_t *answer)
{
    return wanted ? ibx_frontend_request_ask(e, answer) : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

static int int_of(const struct extension_request *e, int *value)
{
    uint64_t answer = 0;
    const int rc = number(e, value, &answer);
    if (!rc)
        *value = (int)(uint32_t)answer;
    return rc;
}

/* ------------------------------------------------------------------------------- streams */

int cudaStreamGetId(void *stream, unsigned long long *id)
{
    struct extension_request e;
    uint64_t answer = 0;
    ibx_frontend_request_begin(&e, IBX_EXT_STREAM_ID, "cudaStreamGetId");
    ibx_put_u64(&e.body, (uintptr_t)stream);
    const int rc = number(&e, id, &answer);
    if (!rc)
        *id = answer;
    return rc;
}

int cudaStreamGetDevice(void *stream, int *device)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_STREAM_DEVICE, "cudaStreamGetDevice");
    ibx_put_u64(&e.body, (uintptr_t)stream);
    return int_of(&e, device);
}

int cudaStreamCopyAttributes(void *to, void *from)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_STREAM_COPY_ATTRIBUTES, "cudaStreamCopyAttributes");
    ibx_put_u64(&e.body, (uintptr_t)to);
    ibx_put_u64(&e.body, (uintptr_t)from);
    return ibx_frontend_request_make(&e, NULL, 0);
}

/* ------------------------------------------------------------------------------- devices */

int cudaGetDeviceFlags(unsigned *flags)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_DEVICE_FLAGS, "cudaGetDeviceFlags");
    return int_of(&e, (int *)flags);
}

int cudaDeviceGetCacheConfig(int *config)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_DEVICE_CACHE, "cudaDeviceGetCacheConfig");
    return int_of(&e, config);
}

int cudaDeviceGetP2PAttribute(int *value, int attribute, int from, int to)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_BETWEEN_DEVICES, "cudaDeviceGetP2PAttribute");
    ibx_put_u32(&e.body, (uint32_t)attribute);
    ibx_put_u32(&e.body, (uint32_t)from);
    ibx_put_u32(&e.body, (uint32_t)to);
    return int_of(&e, value);
}

int cudaDeviceGetTexture1DLinearMaxWidth(size_t *most, const struct ibx_cuda_channel *channel,
                                         int device)
{
    struct extension_request e;
    uint64_t answer = 0;
    if (!channel)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_frontend_request_begin(&e, IBX_EXT_TEXTURE_WIDTH, "cudaDeviceGetTexture1DLinearMaxWidth");
    ibx_layout_put(&e.body, IBX_LAYOUT_CHANNEL, channel);
    ibx_put_u32(&e.body, (uint32_t)device);
    const int rc = number(&e, most, &answer);
    if (!rc)
        *most = answer;
    return rc;
}

/* Parses "DOMAIN:BUS:DEVICE.FUNCTION". The domain and the function are optional. */
static bool read_place(const char *id, unsigned place[3])
{
    if (id && sscanf(id, "%x:%x:%x", &place[0], &place[1], &place[2]) == 3)
        return true;
    place[0] = 0; /* the first sscanf() has read the bus into it */
    return id && sscanf(id, "%x:%x", &place[1], &place[2]) == 2;
}

int cudaDeviceGetByPCIBusId(int *device, const char *id)
{
    unsigned wanted[3], is[3];
    char place[32];
    if (!device || !read_place(id, wanted))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    for (int i = 0, count = 0; !i || i < count; i++) {
        const int rc = i ? CUDA_SUCCESS : CALL_NEXT(cudaGetDeviceCount, &count);
        if (rc || (count && cudaDeviceGetPCIBusId(place, sizeof(place), i)))
            return rc ? rc : CUDA_INVALID_DEVICE;
        if (count && read_place(place, is) && !memcmp(is, wanted, sizeof(is))) {
            *device = i;
            return CUDA_SUCCESS;
        }
    }
    return ibx_frontend_fail(CUDA_INVALID_DEVICE);
}

/* Creates a context of the device, and leaves the current device selected. */
int cudaInitDevice(int device, unsigned flags, unsigned what)
{
    int before = 0, rc = what & ~FLAGS_VALID ? ibx_frontend_fail(CUDA_INVALID_VALUE) : 0;
    if (!rc && !(rc = cudaGetDevice(&before)) && !(rc = cudaSetDevice(device))) {
        rc = what ? CALL_NEXT(cudaSetDeviceFlags, flags) : CUDA_SUCCESS;
        const int back = cudaSetDevice(before);
        rc = rc ? rc : back;
    }
    return rc;
}

int cudaDeviceGetSharedMemConfig(int *config)
{
    if (!config)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    *config = SHARED_BANKS;
    return CUDA_SUCCESS;
}

/* CUDA ignores this setting on all GPUs since 2014. */
int cudaDeviceSetSharedMemConfig(int config)
{
    return config < 0 || config > SHARED_MOST ? ibx_frontend_fail(CUDA_INVALID_VALUE)
                                              : CUDA_SUCCESS;
}

int cudaFuncSetSharedMemConfig(const void *function, int config)
{
    return function ? cudaDeviceSetSharedMemConfig(config)
                    : ibx_frontend_fail(CUDA_INVALID_FUNCTION);
}

/* ------------------------------------------------------------------------------- kernels */

/* Begins a request about a kernel. False: `function` is not known as a kernel, and *rc is the
 * error. */
static bool begin(struct extension_request *e, enum ibx_extension call, const char *name,
                  const void *function, int *rc)
{
    uint8_t kernel[8];
    if (!ibx_frontend_plugin())
        ibx_frontend_connect();
    ibx_frontend_request_begin(e, call, name);
    *rc = ibx_frontend_kernel_name(function, kernel) ? CUDA_SUCCESS
                                                     : ibx_frontend_fail(CUDA_INVALID_FUNCTION);
    ibx_put_bytes(&e->body, kernel, sizeof(kernel));
    return !*rc;
}

static int clusters(enum ibx_extension call, const char *name, int *found, const void *function,
                    const struct launch_config *c)
{
    struct extension_request e;
    int rc;
    if (!c || (c->count && !c->attributes))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!begin(&e, call, name, function, &rc))
        return rc;
    const struct dim3 sizes[] = {c->grid, c->block};
    for (unsigned i = 0; i < 2; i++) {
        ibx_put_u32(&e.body, sizes[i].x);
        ibx_put_u32(&e.body, sizes[i].y);
        ibx_put_u32(&e.body, sizes[i].z);
    }
    ibx_put_u64(&e.body, c->shared);
    ibx_put_u64(&e.body, (uintptr_t)c->stream);
    for (unsigned i = 0; i < c->count && !e.body.failed; i++) {
        ibx_put_u32(&e.body, (uint32_t)c->attributes[i].id);
        ibx_put_bytes(&e.body, c->attributes[i].value, IBX_EXT_ATTRIBUTE);
    }
    return int_of(&e, found);
}

int cudaOccupancyMaxActiveClusters(int *count, const void *function,
                                   const struct launch_config *config)
{
    return clusters(IBX_EXT_CLUSTERS, "cudaOccupancyMaxActiveClusters", count, function, config);
}

int cudaOccupancyMaxPotentialClusterSize(int *size, const void *function,
                                         const struct launch_config *config)
{
    return clusters(IBX_EXT_CLUSTER_SIZE, "cudaOccupancyMaxPotentialClusterSize", size, function,
                    config);
}

int cudaOccupancyAvailableDynamicSMemPerBlock(size_t *n, const void *function, int blocks,
                                              int threads)
{
    struct extension_request e;
    uint64_t answer = 0;
    int rc;
    if (!begin(&e, IBX_EXT_SHARED_MEMORY, "cudaOccupancyAvailableDynamicSMemPerBlock", function,
               &rc))
        return rc;
    ibx_put_u32(&e.body, (uint32_t)blocks);
    ibx_put_u32(&e.body, (uint32_t)threads);
    rc = number(&e, n, &answer);
    if (!rc)
        *n = answer;
    return rc;
}

int cudaFuncGetParamInfo(const void *function, size_t index, size_t *at, size_t *n)
{
    struct extension_request e;
    uint8_t bytes[16] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    int rc;
    if (!begin(&e, IBX_EXT_PARAMETER, "cudaFuncGetParamInfo", function, &rc))
        return rc;
    ibx_put_u64(&e.body, index);
    rc = at ? ibx_frontend_request_make(&e, bytes, sizeof(bytes))
            : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (rc)
        return rc;
    *at = ibx_get_u64(&r);
    if (n)
        *n = ibx_get_u64(&r);
    return CUDA_SUCCESS;
}

/* The back end lists so many parameters in an answer; the last answer has fewer. */
int cudaFuncGetParamCount(const void *function, size_t *count)
{
    struct extension_request e;
    uint8_t bytes[4 + 8 * IBX_EXT_LISTED];
    size_t all = 0, here = 0;
    int rc;
    if (!count)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    do {
        if (!begin(&e, IBX_EXT_PARAMETERS, "cudaFuncGetParamCount", function, &rc))
            return rc;
        ibx_put_u32(&e.body, (uint32_t)all);
        if ((rc = ibx_frontend_request_make(&e, bytes, sizeof(bytes))))
            return rc;
        struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
        here = ibx_get_u32(&r);
        all += here;
    } while (here == IBX_EXT_LISTED && all < IBX_EXT_ARGUMENTS_MAX);
    if (here >= IBX_EXT_LISTED)
        return ibx_frontend_fail(CUDA_UNKNOWN);
    *count = all;
    return CUDA_SUCCESS;
}

/* Returns the mangled name with which nvcc's code registered the kernel. */
int cudaFuncGetName(const char **name, const void *function)
{
    if (!name || !function)
        return ibx_frontend_fail(name ? CUDA_INVALID_FUNCTION : CUDA_INVALID_VALUE);
    const char *found = ibx_frontend_name_of_kernel(function);
    if (!found)
        return ibx_frontend_fail(CUDA_INVALID_HANDLE);
    *name = found;
    return CUDA_SUCCESS;
}

/* As in __cudaGetKernel(), the handle is the host function. */
int cudaGetKernel(void **kernel, const void *function)
{
    if (!kernel || !function)
        return ibx_frontend_fail(kernel ? CUDA_INVALID_FUNCTION : CUDA_INVALID_VALUE);
    return __cudaGetKernel(kernel, function);
}

int cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device)
{
    int before = 0, rc = cudaGetDevice(&before);
    if (rc || (rc = cudaSetDevice(device)))
        return rc;
    rc = CALL_NEXT(cudaFuncSetAttribute, kernel, attribute, value);
    const int back = cudaSetDevice(before);
    return rc ? rc : back;
}
