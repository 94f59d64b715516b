/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory that is mapped apart from its addresses (cuMemCreate, cuMemMap). From any thread. Results
 * are the driver's codes, which are the runtime's; what is set is set on success only.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_VIRTUAL_MEMORY_H
#define IBX_FRONTEND_GLUE_CLIENTS_VIRTUAL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu_session;

/* Whether the driver has all that the next ones need, before they are called. In the thread's
 * context. */
bool ibx_virtual_is_known(void);
int ibx_virtual_granularity(const struct gpu_session *x, int device, int option, size_t *n);
/* Addresses of the session's client, in that context. */
int ibx_virtual_reserve(struct gpu_session *x, size_t n, size_t alignment, uint64_t *begin,
                        const void **context);
/* Whether the client has reserved these at once, and nothing is mapped there. */
bool ibx_virtual_is_empty(struct gpu_session *x, uint64_t begin, uint64_t n);
/* Gives these back, if that is so still. */
bool ibx_virtual_free(struct gpu_session *x, uint64_t begin, uint64_t n);
/* Memory, and the number by which the client knows it: cleared, and counted as the tenant's. */
int ibx_virtual_create(struct gpu_session *x, size_t n, int device, uint64_t *number);
/* All of that memory, which the client may name, at addresses of its own; whole mappings, between
 * which there may be nothing where they are unmapped. */
int ibx_virtual_map(struct gpu_session *x, uint64_t at, uint64_t n, uint64_t number);
int ibx_virtual_unmap(struct gpu_session *x, uint64_t at, uint64_t n);
int ibx_virtual_set_access(struct gpu_session *x, uint64_t at, uint64_t n, int device,
                           unsigned flags);
int ibx_virtual_get_access(struct gpu_session *x, uint64_t at, int device,
                           unsigned long long *flags);

/* Whether the address is in addresses that a client has reserved. */
bool ibx_virtual_holds(uint64_t address);
/* Likewise, and not all of n bytes from there on are mapped: parts of a copy could be made. */
bool ibx_virtual_lacks(uint64_t address, uint64_t n);
/* Gives back the addresses that begin there, with what is mapped to them, which no work of their
 * client's uses any more. False: none do. */
bool ibx_virtual_end_addresses(uint64_t begin);
/* Nobody names that memory any more; it is there as long as it is mapped. */
void ibx_virtual_end_memory(uint64_t number);
/* The context is gone, and no work is left in it; NULL: it is not known which. */
void ibx_virtual_forget(const void *context);

#endif
