/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds device memory that requests of GVirtuS name, if their handlers copy, fill or free it.
 * Kernels and other libraries' calls are not looked into. */
#ifndef IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_NAMED_MEMORY_H
#define IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_NAMED_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IBX_NAMED_MAX 4u

enum ibx_naming_role { IBX_NAMING_COPIES, IBX_NAMING_FREES };

struct ibx_named {
    uint64_t at;         /* where in the body the address is */
    uint64_t address, n; /* device memory; or the handle of an array or a graph, with n 1 */
    uint64_t bad;        /* the address that ibx_naming_invalidate() puts in its place */
    uint64_t reply;      /* bytes that the handler allocates for the reply */
    bool handle;         /* it is a handle, not memory */
    bool array;          /* CUDA takes it for a pointer to one of its arrays */
};

/* Finds what the body names, and returns how many. A value that is beyond the body is 0. */
unsigned ibx_naming_find(const char *name, const void *body, size_t n, enum ibx_naming_role *role,
                         struct ibx_named named[IBX_NAMED_MAX]);
/* Whether ibx_naming_find() knows requests of that name. */
bool ibx_naming_known(const char *name);
/* Whether such requests allocate memory, or an array. */
bool ibx_naming_allocates(const char *name);
/* How many bytes such a request asks for, rounded up to 512; 0: none, or the request allocates
 * nothing. */
uint64_t ibx_naming_allocation(const char *name, const void *body, size_t n);
/* Has the request ask for more than any device has: CUDA refuses memory because there is too
 * little, and an array because of its size. */
void ibx_naming_enlarge(const char *name, void *body, size_t n);
/* What such a request has allocated, by its reply's payload, which is the address, or 8 and then
 * the address, or the address and then a pitch. 0: it is something else. */
uint64_t ibx_naming_allocated(const uint8_t *payload, size_t n);
/* Replaces the address in the body by one that CUDA refuses. Of an array it becomes 0:
 * cudaFreeArray frees nothing, and other calls fail. */
void ibx_naming_invalidate(const struct ibx_named *named, void *body, size_t n);

#endif
