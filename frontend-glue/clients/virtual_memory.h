/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory that is mapped apart from its addresses (cuMemCreate, cuMemMap). From any thread. Results
 * that are int are CUresult, the same codes as cudaError_t; outputs are set on success only.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_VIRTUAL_MEMORY_H
#define IBX_FRONTEND_GLUE_CLIENTS_VIRTUAL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu_session;

/* Whether the driver has all functions that the next ones need: to be asked first. These are called
 * in the thread's context. */
bool ibx_virtual_is_known(void);
int ibx_virtual_granularity(const struct gpu_session *x, int device, int option, size_t *n);
/* Reserves n bytes of addresses for the session's client. *context: the one that was current.
 * CUDA_MEMORY_ALLOCATION: also if the tenant has too many. */
int ibx_virtual_reserve(struct gpu_session *x, size_t n, size_t alignment, uint64_t *begin,
                        const void **context);
/* Whether the client has reserved exactly these addresses in one call, and nothing is mapped
 * there. */
bool ibx_virtual_is_empty(struct gpu_session *x, uint64_t begin, uint64_t n);
/* Gives these addresses back, if that is still so. */
bool ibx_virtual_free(struct gpu_session *x, uint64_t begin, uint64_t n);
/* Makes memory, cleared, and counted as the tenant's. *number: by which the client names it. */
int ibx_virtual_create(struct gpu_session *x, size_t n, int device, uint64_t *number);
/* ibx_virtual_map() maps all of that memory at addresses of the client's own: CUDA_INVALID_VALUE if
 * it does not have these, or if something is mapped there; CUDA_NOT_SUPPORTED if n is not all of
 * the memory. ibx_virtual_unmap() takes whole mappings, with or without gaps between them;
 * set_access() takes whole mappings without gaps. */
int ibx_virtual_map(struct gpu_session *x, uint64_t at, uint64_t n, uint64_t number);
int ibx_virtual_unmap(struct gpu_session *x, uint64_t at, uint64_t n);
int ibx_virtual_set_access(struct gpu_session *x, uint64_t at, uint64_t n, int device,
                           unsigned flags);
int ibx_virtual_get_access(struct gpu_session *x, uint64_t at, int device,
                           unsigned long long *flags);

/* Memory that programs share. */
struct ibx_virtual_memory {
    uint64_t number, n;
    int device;
};
/* What the client's memory is. *fd: CUDA's descriptor of it, the caller's; NULL: it is not wanted.
 */
int ibx_virtual_export(uint64_t number, int *fd, struct ibx_virtual_memory *is);
/* Gives the session's client a number of its own for memory that another client of its tenant names
 * by `number`: *is. It is given up by ibx_virtual_end_memory(). */
int ibx_virtual_name_again(struct gpu_session *x, uint64_t number, struct ibx_virtual_memory *is);
/* The same by the descriptor of another process, which remains the caller's, for memory of is->n
 * bytes on is->device. */
int ibx_virtual_import(struct gpu_session *x, int fd, struct ibx_virtual_memory *is);

/* Whether the address is in a range that any client has reserved. */
bool ibx_virtual_holds(uint64_t address);
/* Whether the address is in a reserved range, and not all of the n bytes from there on are
 * mapped: a copy could then be made in part. */
bool ibx_virtual_lacks(uint64_t address, uint64_t n);
/* Gives back the reserved addresses that begin there, with their mappings. No work of their client
 * uses them any more. False: there are none. */
bool ibx_virtual_end_addresses(uint64_t begin);
/* The client no longer names that memory; it exists as long as it is mapped. */
void ibx_virtual_end_memory(uint64_t number);
/* The context is gone, and no work is left in it; NULL: it is not known which. */
void ibx_virtual_forget(const void *context);

#endif
