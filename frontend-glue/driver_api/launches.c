/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Launches, which the runtime's launch makes. Arguments come one by one, or in one buffer in the
 * kernel's layout (`extra`), which the runtime's launch knows.
 */
#include "frontend-glue/preload/kernels/kernels.h"
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
