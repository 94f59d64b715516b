/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Pools of page-locked memory, for pools.c and the calls that free memory. Functions that return an
 * int return a CUDA error, which is the thread's last one then. The handle of a pool must be one
 * for which ibx_host_pool_is() is true.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MEMORY_HOST_POOLS_H
#define IBX_FRONTEND_GLUE_PRELOAD_MEMORY_HOST_POOLS_H

#include "frontend-glue/preload/preload.h"

bool ibx_host_pool_is(const void *handle);
/* Whether memory that begins there is of such a pool. Quick if there never was any. */
bool ibx_host_pool_has(const void *address);

/* The default pool, which is not destroyed, and the current one of this process. */
void *ibx_host_pool_standard(void);
void *ibx_host_pool_current(void);
void ibx_host_pool_set_current(void *handle);

/* `most`: bytes; 0: no limit. */
int ibx_host_pool_create(void **handle, size_t most);
/* Memory of it that is in use stays until it is freed. */
int ibx_host_pool_destroy(void *handle);
int ibx_host_pool_trim(void *handle, size_t keep);
int ibx_host_pool_set(void *handle, int attribute, uint64_t value);
int ibx_host_pool_get(const void *handle, int attribute, uint64_t *value);
/* Sets or returns cudaMemAccessFlags for a place; NULL: not. */
int ibx_host_pool_access(void *handle, const struct memory_location *where, const int *set,
                         int *get);

/* Not in a stream that is captured. */
int ibx_host_pool_allocate(void **address, size_t n, void *handle, void *stream);
int ibx_host_pool_free(void *address, void *stream);
/* The device's context is gone, and page-locked memory and events with it. */
void ibx_host_pools_reset(int device);
/* A child that was forked has none of the parent's pools. */
void ibx_host_pools_in_child(void);

#endif
