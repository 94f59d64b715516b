/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files of libibx-frontend.so. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_FRONTEND_INTERNAL_H
#define IBX_FRONTEND_GLUE_PRELOAD_FRONTEND_INTERNAL_H

#include "frontend-glue/preload/frontend.h"

#include <stdatomic.h>

#define EXPORTED __attribute__((visibility("default")))

/* Of cudaError_t. */
#define CUDA_SUCCESS            0
#define CUDA_INVALID_VALUE      1
#define CUDA_MEMORY_ALLOCATION  2
#define CUDA_NOT_READY          600
#define CUDA_ALREADY_REGISTERED 712
#define CUDA_NOT_REGISTERED     713
#define CUDA_NOT_SUPPORTED      801

/* Of enum cudaMemcpyKind. */
#define CUDA_MEMCPY_ON_HOST     0
#define CUDA_MEMCPY_TO_DEVICE   1
#define CUDA_MEMCPY_FROM_DEVICE 2
#define CUDA_MEMCPY_ON_DEVICE   3
#define CUDA_MEMCPY_DEFAULT     4

/* NULL: there is none (yet). */
const struct ibx_frontend_calls *ibx_frontend_plugin(void);
/* GVirtuS's function of that name, which is kept in *place; NULL: it has none. */
void *ibx_frontend_gvirtus(_Atomic(void *) *place, const char *symbol);

/* ----------------------------------------------------------------- frontend_ranges.c */

struct frontend_range {
    uintptr_t begin;
    size_t n;
    bool allocated; /* here; else registered by the application */
    bool in_use;    /* there was an asynchronous copy */
};

/* Sorted by address; none overlaps another. Whoever calls has locked it. */
struct frontend_ranges {
    struct frontend_range *items;
    size_t count, room;
};

/* All there are; a forked child finds them in order, and unlocked. */
void ibx_frontend_ranges_lock(void);
void ibx_frontend_ranges_unlock(void);
/* The place of the first range that does not end before `begin`, or `count`. */
size_t ibx_frontend_ranges_find(const struct frontend_ranges *ranges, uintptr_t begin);
/* The range that holds all n bytes (not 0), or NULL. */
struct frontend_range *ibx_frontend_ranges_holding(const struct frontend_ranges *ranges,
                                                   const void *address, size_t n);
/* 0, -EEXIST where it would overlap another one, -ENOMEM. */
int ibx_frontend_ranges_add(struct frontend_ranges *ranges, const struct frontend_range *range);
void ibx_frontend_ranges_remove(struct frontend_ranges *ranges, size_t at);

/* -------------------------------------------------------------------- frontend_device.c */

/* What cudaMemcpyDefault (or any other kind) means for these two pointers; again
 * CUDA_MEMCPY_DEFAULT where nobody but GVirtuS can tell. */
int ibx_frontend_kind(const void *to, const void *from, int kind);
/* The calling thread uses the device that it has selected. */
void ibx_frontend_device_used(void);
/* Waits for all that is under way on every device that this process has used. */
void ibx_frontend_devices_wait(void);

/* --------------------------------------------------------------------- frontend_host.c */

enum ibx_frontend_memory {
    FRONTEND_ORDINARY,
    FRONTEND_REGISTERED, /* page-locked, the application's ... */
    FRONTEND_ALLOCATED,  /* ... or from here */
};
/* What these bytes are, all of them; an asynchronous copy may be under way in them from now on. */
enum ibx_frontend_memory ibx_frontend_memory(const void *address, size_t n);
/* Whether there was an asynchronous copy in memory that holds one of these bytes. */
bool ibx_frontend_memory_used(const void *address, size_t n);

/* --------------------------------------------------------------------- frontend_sync.c */

/* What a call that waits for the stream (0: for all) returns, when GVirtuS's has returned `rc`: the
 * error of an asynchronous copy comes to light then. */
int ibx_frontend_outcome(int rc, uint64_t stream);
/* What a call returns that is refused here: `rc`, which cudaGetLastError() tells once more. */
int ibx_frontend_refuse(int rc);
EXPORTED int cudaStreamSynchronize(void *stream);
EXPORTED int cudaDeviceSynchronize(void);

#endif
