/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Device memory that a request of GVirtuS's names, of those whose handlers copy, fill or free it.
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
    uint64_t address, n; /* device memory, or the handle of an array or a graph, of 1 byte then */
    uint64_t bad;        /* another address */
    uint64_t reply;      /* bytes that the handler makes for the reply */
    bool handle;         /* it is that of something else, or an array of the driver's */
    bool array;          /* CUDA's runtime takes it for the address of an array of its own */
};

/* What the body names: how many. A value that is not in the body is 0. */
unsigned ibx_naming_find(const char *name, const void *body, size_t n, enum ibx_naming_role *role,
                         struct ibx_named named[IBX_NAMED_MAX]);
/* Whether ibx_naming_find() knows requests of that name. */
bool ibx_naming_known(const char *name);
/* Whether it is a copy, known or not. */
bool ibx_naming_copies(const char *name);
/* Whether such requests allocate memory, or an array. */
bool ibx_naming_allocates(const char *name);
/* How many bytes such a request asks for, in steps of 512: 0: none, or it is none. */
uint64_t ibx_naming_allocation(const char *name, const void *body, size_t n);
/* Makes it ask for more than any device has: CUDA refuses it for want of memory, and an array for
 * its size. */
void ibx_naming_enlarge(const char *name, void *body, size_t n);
/* What one has allocated, by its reply's payload: the address, or 8 and then the address, or the
 * address and then a pitch. 0: it is something else. */
uint64_t ibx_naming_allocated(const uint8_t *payload, size_t n);
/* Puts an address into the body that the handler's call refuses; cudaFreeArray takes it for none
 * and frees nothing. */
void ibx_naming_spoil(const struct ibx_named *named, void *body, size_t n);

#endif
