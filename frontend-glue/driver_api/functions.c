/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Attributes of kernels, and occupancy. */
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/runtime/runtime.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/driver_api/driver.h"

#define ATTRIBUTES_MAX 512u /* bytes of cudaFuncAttributes, at most */

/* cudaFuncAttributes, as far as all versions of CUDA have it. */
struct attributes {
    size_t shared, constant, local;
    int threads, registers, ptx, binary, cache_all, dynamic_shared, carveout;
    int cluster_must_be_set, cluster[3], scheduling, non_portable;
};

/* A call of the runtime: the driver's handle of a kernel of the program. */
EXPORTED int cudaGetFuncBySymbol(const void **function, const void *symbol)
{
    if (!function)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const int rc = ibx_frontend_no_kernel(symbol);
    if (!rc)
        *function = symbol;
    return rc ? ibx_frontend_fail(rc) : CUDA_SUCCESS;
}

#define LASTING 8 /* attributes below this number do not change */
#define KNOWN   8u

/* The kernels about which the thread has asked last. */
static _Thread_local struct known {
    const void *function;
    unsigned since; /* ibx_frontend_modules_gone() */
    int device;
    struct attributes is;
} known[KNOWN];

static struct known *place_of(const void *function)
{
    return &known[((uintptr_t)function >> 4 ^ (uintptr_t)function >> 8) % KNOWN];
}

static int ask(struct attributes *a, const void *function)
{
    union {
        struct attributes is;
        uint8_t bytes[ATTRIBUTES_MAX];
    } all = {0};
    const unsigned since = ibx_frontend_modules_gone();
    const int rc = cudaFuncGetAttributes(&all, function);
    if (rc)
        return rc;
    *a = all.is;
    *place_of(function) = (struct known){function, since, ibx_frontend_current_device(), all.is};
    return CUDA_SUCCESS;
}

/* CUfunction_attribute */
static int attribute_of(int *value, int attribute, const void *function)
{
    const struct known *k = place_of(function);
    const bool lasts = function && attribute >= 0 && attribute < LASTING &&
                       k->function == function && k->since == ibx_frontend_modules_gone() &&
                       k->device == ibx_frontend_current_device();
    struct attributes a = k->is;
    const int rc = !value ? CUDA_INVALID_VALUE : lasts ? CUDA_SUCCESS : ask(&a, function);
    if (rc)
        return rc;
    const int values[] = {a.threads,    (int)a.shared,         (int)a.constant,
                          (int)a.local, a.registers,           a.ptx,
                          a.binary,     a.cache_all,           a.dynamic_shared,
                          a.carveout,   a.cluster_must_be_set, a.cluster[0],
                          a.cluster[1], a.cluster[2],          a.non_portable,
                          a.scheduling};
    if (attribute < 0 || (size_t)attribute >= sizeof(values) / sizeof(values[0]))
        return CUDA_INVALID_VALUE;
    *value = values[attribute];
    return CUDA_SUCCESS;
}

EXPORTED int cuFuncGetAttribute(int *value, int attribute, const void *function)
{
    return ANYWHERE(attribute_of(value, attribute, function));
}

EXPORTED int cuFuncSetAttribute(const void *function, int attribute, int value)
{
    return ANYWHERE(cudaFuncSetAttribute(function, attribute, value));
}

EXPORTED int cuFuncSetCacheConfig(const void *function, int config)
{
    return ANYWHERE(cudaFuncSetCacheConfig(function, config));
}

EXPORTED int cuFuncSetSharedMemConfig(const void *function, int config)
{
    return IN_CONTEXT(cudaFuncSetSharedMemConfig(function, config));
}

EXPORTED int cuFuncGetParamInfo(const void *function, size_t index, size_t *offset, size_t *n)
{
    return ANYWHERE(function ? cudaFuncGetParamInfo(function, index, offset, n)
                             : CUDA_INVALID_VALUE);
}

/* The attribute on a device that need not be the current one. */
static int attribute_on(int *value, int attribute, const void *kernel, int device)
{
    const int before = ibx_frontend_current_device();
    int rc = ibx_driver_check_device(device);
    if (!rc && device != before)
        rc = cudaSetDevice(device);
    if (!rc)
        rc = attribute_of(value, attribute, kernel);
    if (before != ibx_frontend_current_device())
        cudaSetDevice(before);
    return rc;
}

EXPORTED int cuKernelGetAttribute(int *value, int attribute, const void *kernel, int device)
{
    return ANYWHERE(attribute_on(value, attribute, kernel, device));
}

EXPORTED int cuKernelSetAttribute(int attribute, int value, void *kernel, int device)
{
    return ANYWHERE(cudaKernelSetAttributeForDevice(kernel, attribute, value, device));
}

EXPORTED int cuKernelSetCacheConfig(const void *kernel, int config, int device)
{
    (void)device;
    return ANYWHERE(cudaFuncSetCacheConfig(kernel, config));
}

EXPORTED int cuKernelGetParamInfo(const void *kernel, size_t index, size_t *offset, size_t *n)
{
    return ANYWHERE(kernel ? cudaFuncGetParamInfo(kernel, index, offset, n) : CUDA_INVALID_VALUE);
}

EXPORTED int cuFuncGetParamCount(const void *function, size_t *count)
{
    return ANYWHERE(cudaFuncGetParamCount(function, count));
}

SAME_AS(cuKernelGetParamCount, cuFuncGetParamCount)

/* ----------------------------------------------------------------------------- occupancy */

EXPORTED int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                                  int threads, size_t shared,
                                                                  unsigned flags)
{
    return IN_CONTEXT(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks, function, threads, shared, flags));
}

EXPORTED int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                         int threads, size_t shared)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared,
                                                                0);
}

EXPORTED int cuOccupancyAvailableDynamicSMemPerBlock(size_t *n, const void *function, int blocks,
                                                     int threads)
{
    return IN_CONTEXT(cudaOccupancyAvailableDynamicSMemPerBlock(n, function, blocks, threads));
}

#define WARP_SIZE         10 /* CUdevice_attribute */
#define MULTIPROCESSORS   16
#define THREADS_OF_ONE    39
#define THREADS_PER_BLOCK 0 /* CUfunction_attribute */
/* Upper bounds of values that the back end returns and that are multiplied here. */
#define THREADS_MOST (1 << 14)
#define BLOCKS_MOST  (1 << 14)
#define WARPS_MOST   1024 /* that are tried, with one request each */

/* The largest block size with which a multiprocessor has the most threads at once, and how many
 * blocks of it fill the device. Both are 0 if none fits. */
static int best_block(int *grid, int *block, const void *function, size_t (*shared_of)(int threads),
                      size_t shared, int limit, unsigned flags)
{
    const int device = ibx_frontend_current_device();
    int most = 0, warp = 0, count = 0, room = 0, best = 0, best_blocks = 0, best_threads = 0;
    int rc = grid && block ? attribute_of(&most, THREADS_PER_BLOCK, function) : CUDA_INVALID_VALUE;
    if (rc || (rc = ibx_driver_attribute(&warp, WARP_SIZE, device)) ||
        (rc = ibx_driver_attribute(&count, MULTIPROCESSORS, device)) ||
        (rc = ibx_driver_attribute(&room, THREADS_OF_ONE, device)))
        return rc;
    if (limit > 0 && limit < most)
        most = limit;
    if (warp <= 0 || warp > THREADS_MOST || most < 0 || most > THREADS_MOST ||
        most / warp > WARPS_MOST || count < 0 || count > BLOCKS_MOST)
        return CUDA_UNKNOWN;
    const int top = (most + warp - 1) / warp * warp;
    for (int size = top; size > 0 && best < room; size -= warp) {
        const int threads = size < most ? size : most;
        int blocks = 0;
        rc = cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            &blocks, function, threads, shared_of ? shared_of(threads) : shared, flags);
        if (!rc && (blocks < 0 || blocks > BLOCKS_MOST))
            rc = CUDA_UNKNOWN;
        if (rc)
            return rc;
        if (blocks * threads > best) {
            best = blocks * threads;
            best_blocks = blocks;
            best_threads = threads;
        }
    }
    *grid = best_blocks * count;
    *block = best_threads;
    return CUDA_SUCCESS;
}

EXPORTED int cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, const void *function,
                                                       size_t (*shared_of)(int threads),
                                                       size_t shared, int limit, unsigned flags)
{
    return IN_CONTEXT(best_block(grid, block, function, shared_of, shared, limit, flags));
}

EXPORTED int cuOccupancyMaxPotentialBlockSize(int *grid, int *block, const void *function,
                                              size_t (*shared_of)(int threads), size_t shared,
                                              int limit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of, shared,
                                                     limit, 0);
}

EXPORTED int cuOccupancyMaxActiveClusters(int *count, const void *function,
                                          const struct ibx_driver_launch *launch)
{
    struct launch_config config;
    return IN_CONTEXT(ibx_driver_config(&config, launch)
                          ? cudaOccupancyMaxActiveClusters(count, function, &config)
                          : CUDA_INVALID_VALUE);
}

EXPORTED int cuOccupancyMaxPotentialClusterSize(int *size, const void *function,
                                                const struct ibx_driver_launch *launch)
{
    struct launch_config config;
    return IN_CONTEXT(ibx_driver_config(&config, launch)
                          ? cudaOccupancyMaxPotentialClusterSize(size, function, &config)
                          : CUDA_INVALID_VALUE);
}
