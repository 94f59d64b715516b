/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The application's own memory: which copies of it are under way, and where page-locked memory
 * lies. */
#ifndef IBX_FRONTEND_GLUE_PLUGIN_HOST_MEMORY_H
#define IBX_FRONTEND_GLUE_PLUGIN_HOST_MEMORY_H

#include "frontend-glue/preload/attach_table.h"

/* A copy of any thread's that has begun and not returned, in its stack. */
struct ibx_host_copy {
    struct ibx_host_copy *next;
    uintptr_t begin; /* of the host's bytes */
    size_t n;
};

void ibx_host_copy_begins(struct ibx_host_copy *copy, const struct ibx_frontend_copy *of);
void ibx_host_copy_ends(const struct ibx_host_copy *copy);
/* Until none of them is of these bytes. */
void ibx_host_copies_drain(const void *address, size_t n);
/* In a child, which has none of its parent's. */
void ibx_host_copies_forget(void);

/* Resident memory of this process's alone, page-aligned; NULL: errno says why. It lies where the
 * back end may have pages of its own, if kernels are to use it: little else is there, in either
 * process. */
void *ibx_host_memory_map(size_t n);

#endif
