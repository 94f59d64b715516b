/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Replaces preload/memory/host_pools.c, for fake_frontend.c: there are no pools of page-locked
 * memory, so most of these functions are not called. */
#include "frontend-glue/preload/memory/host_pools.h"

bool ibx_host_pool_is(const void *handle)
{
    (void)handle;
    return false;
}

bool ibx_host_pool_has(const void *address)
{
    (void)address;
    return false;
}

void *ibx_host_pool_standard(void)
{
    return NULL;
}

void *ibx_host_pool_current(void)
{
    return NULL;
}

void ibx_host_pool_set_current(void *handle)
{
    (void)handle;
}

int ibx_host_pool_create(void **handle, size_t most)
{
    (void)handle, (void)most;
    return CUDA_NOT_SUPPORTED;
}

int ibx_host_pool_destroy(void *handle)
{
    (void)handle;
    return CUDA_INVALID_VALUE;
}

int ibx_host_pool_trim(void *handle, size_t keep)
{
    (void)handle, (void)keep;
    return CUDA_INVALID_VALUE;
}

int ibx_host_pool_set(void *handle, int attribute, uint64_t value)
{
    (void)handle, (void)attribute, (void)value;
    return CUDA_INVALID_VALUE;
}

int ibx_host_pool_get(const void *handle, int attribute, uint64_t *value)
{
    (void)handle, (void)attribute, (void)value;
    return CUDA_INVALID_VALUE;
}

int ibx_host_pool_access(void *handle, const struct memory_location *where, const int *set,
                         int *get)
{
    (void)handle, (void)where, (void)set, (void)get;
    return CUDA_INVALID_VALUE;
}

int ibx_host_pool_allocate(void **address, size_t n, void *handle, void *stream)
{
    (void)address, (void)n, (void)handle, (void)stream;
    return CUDA_INVALID_VALUE;
}

int ibx_host_pool_free(void *address, void *stream)
{
    (void)address, (void)stream;
    return CUDA_INVALID_VALUE;
}

void ibx_host_pools_reset(int device)
{
    (void)device;
}

void ibx_host_pools_in_child(void) {}
