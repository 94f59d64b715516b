/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Launches, which the runtime's launch makes. Arguments come one by one, or in one buffer in the
 * kernel's layout (`extra`), which the runtime's launch knows. Calls from before CUDA 4, which
 * gpu-burn still makes, fill such a buffer, which stays with the kernel.
 */
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/runtime/runtime.h"
#include "frontend-glue/driver_api/driver.h"

#include <stdlib.h>

/* CU_LAUNCH_PARAM_* */
#define EXTRA_END    ((void *)0)
#define EXTRA_BUFFER ((void *)1)
#define EXTRA_SIZE   ((void *)2)

bool ibx_driver_config(struct launch_config *config, const struct ibx_driver_launch *launch)
{
    if (!launch || (launch->count && !launch->attributes))
        return false;
    *config = (struct launch_config){launch->grid,   launch->block,      launch->shared,
                                     launch->stream, launch->attributes, launch->count};
    return true;
}

/* Reads the list `extra`: the buffer of arguments, and its length, which is 0 if the list has none.
 * False: the list is invalid. */
static bool read_extra(void **extra, uint8_t **bytes, size_t *n)
{
    const size_t *size = NULL;
    *bytes = NULL;
    for (; *extra != EXTRA_END; extra += 2) {
        if (*extra == EXTRA_BUFFER)
            *bytes = extra[1];
        else if (*extra == EXTRA_SIZE)
            size = extra[1];
        else
            return false;
    }
    *n = size ? *size : 0;
    return *bytes || !*n;
}

int ibx_driver_unpack(struct ibx_driver_arguments *a, const void *function, void **extra)
{
    size_t n, count = IBX_DRIVER_FEW;
    uint8_t *bytes;
    *a = (struct ibx_driver_arguments){.all = a->few};
    if (!read_extra(extra, &bytes, &n) ||
        !ibx_frontend_kernel_arguments(function, bytes, n, a->few, &count))
        return CUDA_INVALID_VALUE;
    if (count <= IBX_DRIVER_FEW)
        return CUDA_SUCCESS;
    a->all = a->more = calloc(count, sizeof(*a->more));
    if (a->more && ibx_frontend_kernel_arguments(function, bytes, n, a->more, &count))
        return CUDA_SUCCESS;
    free(a->more);
    a->more = NULL;
    return CUDA_MEMORY_ALLOCATION;
}

void ibx_driver_unpacked(struct ibx_driver_arguments *a)
{
    free(a->more);
}

bool ibx_driver_is_packed(void *const *extra)
{
    return extra && *extra != EXTRA_END;
}

static int launch(const struct launch_config *config, const void *function, void **arguments,
                  void **extra)
{
    struct ibx_driver_arguments unpacked;
    if (!function)
        return CUDA_INVALID_HANDLE;
    if (!ibx_driver_is_packed(extra))
        return cudaLaunchKernelExC(config, function, arguments);
    int rc = arguments ? CUDA_INVALID_VALUE : ibx_driver_unpack(&unpacked, function, extra);
    if (rc)
        return rc;
    rc = cudaLaunchKernelExC(config, function, unpacked.all);
    ibx_driver_unpacked(&unpacked);
    return rc;
}

EXPORTED int cuLaunchKernel(const void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                            void *stream, void **arguments, void **extra)
{
    const struct launch_config config = {
        {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, NULL, 0};
    return IN_CONTEXT_OF(stream, launch(&config, function, arguments, extra));
}

EXPORTED int cuLaunchKernelEx(const struct ibx_driver_launch *launched, const void *function,
                              void **arguments, void **extra)
{
    struct launch_config config;
    return IN_CONTEXT_OF(launched ? launched->stream : NULL,
                         ibx_driver_config(&config, launched)
                             ? launch(&config, function, arguments, extra)
                             : CUDA_INVALID_VALUE);
}

EXPORTED int cuLaunchCooperativeKernel(const void *function, unsigned grid_x, unsigned grid_y,
                                       unsigned grid_z, unsigned block_x, unsigned block_y,
                                       unsigned block_z, unsigned shared, void *stream,
                                       void **arguments)
{
    const struct dim3 grid = {grid_x, grid_y, grid_z}, block = {block_x, block_y, block_z};
    return IN_CONTEXT_OF(stream, function ? cudaLaunchCooperativeKernel(function, grid, block,
                                                                        arguments, shared, stream)
                                          : CUDA_INVALID_HANDLE);
}

/* ---------------------------------------------------------------- launches before CUDA 4 */

#define SET_BYTES 4096u /* of a kernel's arguments */

/* What the next launches of a kernel take, until its library is unloaded. */
struct set_launch {
    struct set_launch *next;
    const void *function, *library;
    struct dim3 block;
    unsigned shared;
    unsigned n; /* bytes of arguments */
    uint8_t bytes[SET_BYTES];
};

static struct set_launch *set_launches; /* protected by the lock of ranges */

/* With the lock. NULL: nothing was set. */
static struct set_launch *find_set(const void *function)
{
    struct set_launch *s = set_launches;
    while (s && s->function != function)
        s = s->next;
    return s;
}

/* Returns with the lock, except on an error. */
static int begin_set(struct set_launch **set, const void *function)
{
    if (!function)
        return CUDA_INVALID_HANDLE;
    const int rc = ibx_frontend_no_kernel(function);
    if (rc)
        return rc;
    const void *library = ibx_frontend_library_of(function);
    ibx_frontend_ranges_lock();
    *set = find_set(function);
    if (*set)
        return CUDA_SUCCESS;
    *set = calloc(1, sizeof(**set));
    if (!*set) {
        ibx_frontend_ranges_unlock();
        return CUDA_MEMORY_ALLOCATION;
    }
    (*set)->function = function;
    (*set)->library = library;
    (*set)->block = (struct dim3){1, 1, 1};
    (*set)->next = set_launches;
    set_launches = *set;
    return CUDA_SUCCESS;
}

void ibx_driver_launches_forget(const void *library)
{
    ibx_frontend_ranges_lock();
    for (struct set_launch **at = &set_launches; *at;) {
        struct set_launch *s = *at;
        if (!library || s->library != library) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        free(s);
    }
    ibx_frontend_ranges_unlock();
}

static int set_block(const void *function, int x, int y, int z)
{
    struct set_launch *set;
    if (x <= 0 || y <= 0 || z <= 0)
        return CUDA_INVALID_VALUE;
    const int rc = begin_set(&set, function);
    if (rc)
        return rc;
    set->block = (struct dim3){(unsigned)x, (unsigned)y, (unsigned)z};
    ibx_frontend_ranges_unlock();
    return CUDA_SUCCESS;
}

static int set_shared(const void *function, unsigned n)
{
    struct set_launch *set;
    const int rc = begin_set(&set, function);
    if (rc)
        return rc;
    set->shared = n;
    ibx_frontend_ranges_unlock();
    return CUDA_SUCCESS;
}

static int set_size(const void *function, unsigned n)
{
    struct set_launch *set;
    const int rc = n <= SET_BYTES ? begin_set(&set, function) : CUDA_INVALID_VALUE;
    if (rc)
        return rc;
    set->n = n;
    ibx_frontend_ranges_unlock();
    return CUDA_SUCCESS;
}

static int set_argument(const void *function, int at, const void *bytes, unsigned n)
{
    struct set_launch *set;
    uint8_t given[SET_BYTES];
    if (at < 0 || (unsigned)at > SET_BYTES || n > SET_BYTES - (unsigned)at || (!bytes && n))
        return CUDA_INVALID_VALUE;
    if (n) /* without the lock: a first access to managed memory calls the back end */
        memcpy(given, bytes, n);
    const int rc = begin_set(&set, function);
    if (rc)
        return rc;
    memcpy(set->bytes + at, given, n);
    ibx_frontend_ranges_unlock();
    return CUDA_SUCCESS;
}

static int launch_set(const void *function, int width, int height, void *stream)
{
    struct set_launch set = {.block = {1, 1, 1}};
    if (width <= 0 || height <= 0)
        return CUDA_INVALID_VALUE;
    ibx_frontend_ranges_lock();
    const struct set_launch *is = find_set(function);
    if (is)
        set = *is;
    ibx_frontend_ranges_unlock();
    const struct launch_config config = {
        {(unsigned)width, (unsigned)height, 1}, set.block, set.shared, stream, NULL, 0};
    size_t n = set.n;
    void *extra[] = {EXTRA_BUFFER, set.bytes, EXTRA_SIZE, &n, EXTRA_END};
    return launch(&config, function, NULL, extra);
}

EXPORTED int cuFuncSetBlockShape(const void *function, int x, int y, int z)
{
    return IN_CONTEXT(set_block(function, x, y, z));
}

EXPORTED int cuFuncSetSharedSize(const void *function, unsigned n)
{
    return IN_CONTEXT(set_shared(function, n));
}

EXPORTED int cuParamSetSize(const void *function, unsigned n)
{
    return IN_CONTEXT(set_size(function, n));
}

EXPORTED int cuParamSeti(const void *function, int at, unsigned value)
{
    return IN_CONTEXT(set_argument(function, at, &value, sizeof(value)));
}

EXPORTED int cuParamSetf(const void *function, int at, float value)
{
    return IN_CONTEXT(set_argument(function, at, &value, sizeof(value)));
}

EXPORTED int cuParamSetv(const void *function, int at, const void *value, unsigned n)
{
    return IN_CONTEXT(set_argument(function, at, value, n));
}

EXPORTED int cuLaunch(const void *function)
{
    return IN_CONTEXT(launch_set(function, 1, 1, NULL));
}

EXPORTED int cuLaunchGrid(const void *function, int width, int height)
{
    return IN_CONTEXT(launch_set(function, width, height, NULL));
}

EXPORTED int cuLaunchGridAsync(const void *function, int width, int height, void *stream)
{
    return IN_CONTEXT_OF(stream, launch_set(function, width, height, stream));
}
