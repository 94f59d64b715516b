/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What virtual_memory.c and virtual_sharing.c share: the lists of memory, which are locked. */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_VIRTUAL_MEMORY_INTERNAL_H
#define IBX_FRONTEND_GLUE_CLIENTS_VIRTUAL_MEMORY_INTERNAL_H

#include "frontend-glue/clients/clients.h"
#include "frontend-glue/clients/ranges.h"
#include "frontend-glue/clients/virtual_memory.h"
#include "frontend-glue/session/mapped_memory.h"

/* What CUDA has made: each client that has it has a number of its own for it. */
struct backing {
    unsigned long long handle; /* CUDA's, released when no client names it any more */
    size_t n;
    int device;
    uint64_t charge;       /* bytes taken of IBX_HOLD_DEVICE */
    unsigned names, users; /* numbers that name it; numbers that name it or are mapped */
};

struct memory {
    struct ibx_range number; /* a range of one: the number by which the client names it */
    struct memory *next, **at;
    struct backing *is;
    struct ibx_tenant *tenant; /* of all that have the backing */
    const void *context;
    unsigned mappings;
    bool named; /* by the client */
};

/* The driver's functions; NULL in older drivers. */
struct ibx_virtual_driver {
    int (*granularity)(size_t *n, const struct ibx_mapped_properties *properties, int option);
    int (*reserve)(uint64_t *address, size_t n, size_t alignment, uint64_t wanted,
                   unsigned long long flags);
    int (*free)(uint64_t address, size_t n);
    int (*create)(unsigned long long *handle, size_t n,
                  const struct ibx_mapped_properties *properties, unsigned long long flags);
    int (*release)(unsigned long long handle);
    int (*map)(uint64_t address, size_t n, size_t offset, unsigned long long handle,
               unsigned long long flags);
    int (*unmap)(uint64_t address, size_t n);
    int (*set_access)(uint64_t address, size_t n, const struct ibx_mapped_access *list,
                      size_t count);
    int (*get_access)(unsigned long long *flags, const struct ibx_mapped_location *location,
                      uint64_t address);
    /* These two may be missing where there are the others. */
    int (*export)(int *fd, unsigned long long handle, int type, unsigned long long flags);
    int (*import)(unsigned long long *handle, void *fd, int type);
};
extern struct ibx_virtual_driver ibx_virtual_driver; /* after ibx_virtual_is_known() */

/* Takes the lock, and has the driver's calls end no capture. */
int ibx_virtual_enter(void);
void ibx_virtual_leave(int mode);
/* Locked. NULL: there is no memory of that number. */
struct memory *ibx_virtual_find(uint64_t number);
/* Locked. Enters it in the list, as one more user of its backing, with a new number. False: no
 * memory. */
bool ibx_virtual_enter_memory(struct memory *m);
/* Counts what is about to be made as memory of cudaMalloc, and as one entry. False: the tenant may
 * have no more. */
bool ibx_virtual_count(struct gpu_session *x, struct backing *b);
void ibx_virtual_count_no_more(const struct gpu_session *x, const struct backing *b);
/* Memory of the session's client, without a backing. NULL: *rc says why. */
struct memory *ibx_virtual_new_memory(struct gpu_session *x, int *rc);

#endif
