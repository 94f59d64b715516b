/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Extension requests that ask about streams, devices and kernels. CUDA's runtime looks streams and
 * kernels up itself; a kernel is named by the address under which the client has registered it.
 */
#include "frontend-glue/extensions/extensions.h"

#define ATTRIBUTES_MAX 16u

/* cudaLaunchAttribute, cudaLaunchConfig_t */
struct attribute {
    int id;
    _Alignas(8) uint8_t value[IBX_EXT_ATTRIBUTE];
};
struct config {
    unsigned grid[3], block[3];
    size_t shared;
    void *stream;
    const struct attribute *attributes;
    unsigned count;
};

/* ------------------------------------------------------------------------------- streams */

static int stream_id(struct extension_request *e)
{
    int (*get)(void *stream, unsigned long long *id) = NULL;
    unsigned long long id = 0;
    void *stream = stream_in(e);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(stream, &id);
    ibx_put_u64(&e->out, id);
    return rc;
}

static int stream_number(struct extension_request *e)
{
    int (*get)(void *stream, int *number) = NULL;
    int number = 0;
    void *stream = stream_in(e);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(stream, &number);
    ibx_put_u64(&e->out, (uint32_t)number);
    return rc;
}

static int copy_attributes(struct extension_request *e)
{
    int (*copy)(void *to, void *from) = NULL;
    void *to = stream_in(e), *from = stream_in(e);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, copy);
    return copy(to, from);
}

/* ------------------------------------------------------------------------------- devices */

/* Numbers of the current device: its flags, its preferred cache. */
static int device_number(struct extension_request *e)
{
    int (*get)(unsigned *number) = NULL;
    unsigned number = 0;
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(&number);
    ibx_put_u64(&e->out, number);
    return rc;
}

static int between_devices(struct extension_request *e)
{
    int (*get)(int *value, int attribute, int from, int to) = NULL;
    int value = 0;
    const int attribute = (int)ibx_get_u32(&e->in), from = (int)ibx_get_u32(&e->in),
              to = (int)ibx_get_u32(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(&value, attribute, from, to);
    ibx_put_u64(&e->out, (uint32_t)value);
    return rc;
}

static int texture_width(struct extension_request *e)
{
    int (*get)(size_t * most, const struct ibx_cuda_channel *channel, int device) = NULL;
    struct ibx_cuda_channel channel = {0};
    size_t most = 0;
    ibx_layout_get(&e->in, IBX_LAYOUT_CHANNEL, &channel);
    const int device = (int)ibx_get_u32(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(&most, &channel, device);
    ibx_put_u64(&e->out, most);
    return rc;
}

/* ------------------------------------------------------------------------------- pointers */

/* What is at an address that the client does not know. Another tenant's memory counts as none. */
static int pointer_is(struct extension_request *e)
{
    const int names[] = {IBX_CUDA_POINTER_MEMORY_TYPE, IBX_CUDA_POINTER_ORDINAL};
    unsigned type = 0;
    int device = 0;
    void *values[] = {&type, &device};
    const void *address = pointer(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    if (!ibx_back_end_have_cuda(e->x))
        return CUDA_NOT_SUPPORTED;
    const bool known = mine(e, address, 1) &&
                       !e->x->cuda->pointer_get_attributes(2, names, values, (uintptr_t)address) &&
                       type == IBX_CUDA_MEMORY_DEVICE;
    ibx_put_u32(&e->out, known);
    ibx_put_u32(&e->out, known ? (uint32_t)device : 0);
    return 0;
}

/* ------------------------------------------------------------------------------- kernels */

#define INVALID_FUNCTION 98 /* cudaError_t */

/* The name by which the runtime knows the client's function `named`; its module is held until the
 * request ends. From CUDA 12 on, the calls below also take a kernel's handle in place of a
 * function, and would dereference it. The look-up loads the kernel, and no graph may wait for its
 * client meanwhile. */
static int look_up(const struct extension_request *e, uint64_t named, const void **kernel)
{
    int (*find)(void **found, const void *symbol) = NULL;
    void *found = NULL;
    *(void **)&find = ibx_back_end_runtime("cudaGetFuncBySymbol");
    if (!find)
        return CUDA_NOT_SUPPORTED;
    *kernel = pointer_to(ibx_functions_take(ibx_functions_user_of(e->x), named));
    if (!*kernel)
        return INVALID_FUNCTION;
    const bool loads = ibx_frees_begin_load(e->x, (uintptr_t)*kernel);
    const int rc = find(&found, *kernel);
    if (loads)
        ibx_frees_end_load(e->x, (uintptr_t)*kernel);
    return rc;
}

/* How many clusters are active at once, or how large one may be. */
static int clusters(struct extension_request *e)
{
    int (*get)(int *number, const void *kernel, const struct config *config) = NULL;
    struct attribute attributes[ATTRIBUTES_MAX];
    struct config c = {.attributes = attributes};
    int number = 0;
    const void *kernel = NULL;
    const uint64_t named = ibx_get_u64(&e->in);
    for (unsigned i = 0; i < 6; i++)
        *(i < 3 ? &c.grid[i] : &c.block[i - 3]) = ibx_get_u32(&e->in);
    c.shared = ibx_get_u64(&e->in);
    c.stream = stream_in(e);
    while (ibx_reader_left(&e->in) && c.count < ATTRIBUTES_MAX) {
        attributes[c.count].id = (int)ibx_get_u32(&e->in);
        const uint8_t *value = ibx_get_bytes(&e->in, IBX_EXT_ATTRIBUTE);
        attribute_in(e, (uint32_t)attributes[c.count].id, value);
        if (value)
            memcpy(attributes[c.count++].value, value, IBX_EXT_ATTRIBUTE);
    }
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    int rc = look_up(e, named, &kernel);
    if (!rc)
        rc = get(&number, kernel, &c);
    ibx_put_u64(&e->out, (uint32_t)number);
    return rc;
}

static int shared_memory(struct extension_request *e)
{
    int (*get)(size_t * n, const void *kernel, int blocks, int threads) = NULL;
    size_t n = 0;
    const void *kernel = NULL;
    const uint64_t named = ibx_get_u64(&e->in);
    const int blocks = (int)ibx_get_u32(&e->in), threads = (int)ibx_get_u32(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    int rc = look_up(e, named, &kernel);
    if (!rc)
        rc = get(&n, kernel, blocks, threads);
    ibx_put_u64(&e->out, n);
    return rc;
}

static int parameter(struct extension_request *e)
{
    int (*get)(const void *kernel, size_t index, size_t *at, size_t *n) = NULL;
    size_t at = 0, n = 0;
    const void *kernel = NULL;
    const uint64_t named = ibx_get_u64(&e->in);
    const size_t index = ibx_get_u64(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    int rc = look_up(e, named, &kernel);
    if (!rc)
        rc = get(kernel, index, &at, &n);
    ibx_put_u64(&e->out, at);
    ibx_put_u64(&e->out, n);
    return rc;
}

static int parameters(struct extension_request *e)
{
    struct ibx_parameter found[IBX_EXT_LISTED] = {{0}};
    size_t count = IBX_EXT_LISTED;
    const uint64_t named = ibx_get_u64(&e->in);
    const size_t first = ibx_get_u32(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    const int rc = ibx_device_parameters(e->x, named, first, found, &count);
    ibx_put_u32(&e->out, (uint32_t)count);
    for (size_t i = 0; i < IBX_EXT_LISTED; i++) {
        ibx_put_u32(&e->out, (uint32_t)found[i].at);
        ibx_put_u32(&e->out, (uint32_t)found[i].bytes);
    }
    return rc;
}

const struct extension_call ibx_query_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_STREAM_ID] = {"cudaStreamGetId", stream_id},
    [IBX_EXT_STREAM_DEVICE] = {"cudaStreamGetDevice", stream_number},
    [IBX_EXT_STREAM_FLAGS] = {"cudaStreamGetFlags", stream_number},
    [IBX_EXT_STREAM_PRIORITY] = {"cudaStreamGetPriority", stream_number},
    [IBX_EXT_STREAM_COPY_ATTRIBUTES] = {"cudaStreamCopyAttributes", copy_attributes},
    [IBX_EXT_DEVICE_FLAGS] = {"cudaGetDeviceFlags", device_number},
    [IBX_EXT_DEVICE_CACHE] = {"cudaDeviceGetCacheConfig", device_number},
    [IBX_EXT_BETWEEN_DEVICES] = {"cudaDeviceGetP2PAttribute", between_devices},
    [IBX_EXT_TEXTURE_WIDTH] = {"cudaDeviceGetTexture1DLinearMaxWidth", texture_width},
    [IBX_EXT_POINTER] = {"cudaFree", pointer_is},
    [IBX_EXT_CLUSTERS] = {"cudaOccupancyMaxActiveClusters", clusters},
    [IBX_EXT_CLUSTER_SIZE] = {"cudaOccupancyMaxPotentialClusterSize", clusters},
    [IBX_EXT_SHARED_MEMORY] = {"cudaOccupancyAvailableDynamicSMemPerBlock", shared_memory},
    [IBX_EXT_PARAMETER] = {"cudaFuncGetParamInfo", parameter},
    [IBX_EXT_PARAMETERS] = {"cudaGetFuncBySymbol", parameters},
};
