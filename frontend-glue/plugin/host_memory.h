/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The application's own memory: which copies of it are under way, and where page-locked memory
 * lies. */
#ifndef IBX_FRONTEND_GLUE_PLUGIN_HOST_MEMORY_H
#define IBX_FRONTEND_GLUE_PLUGIN_HOST_MEMORY_H

#include "frontend-glue/preload/attach_table.h"

/* A copy of any thread that has begun and not returned; it is in that thread's stack. */
struct ibx_host_copy {
    struct ibx_host_copy *next;
    uintptr_t begin; /* of its bytes in host memory */
    size_t n;
};

void ibx_host_copy_begins(struct ibx_host_copy *copy, const struct ibx_frontend_copy *of);
void ibx_host_copy_ends(const struct ibx_host_copy *copy);
/* Waits until no copy under way uses these bytes. */
void ibx_host_copies_drain(const void *address, size_t n);
/* To be called in a forked child, which has none of its parent's copies. */
void ibx_host_copies_forget(void);

/* Maps private resident memory of this process, page-aligned; NULL: errno says why. If possible the
 * memory is between IBX_SHARED_FROM and IBX_SHARED_UNTIL, where the back end can map pages of its
 * own at the same address, for kernels that use the memory. */
void *ibx_host_memory_map(size_t n);

#endif
