/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * If each program has a process of its own (rdma.processes : program): what these share with each
 * other. A handle that a client hands to another program is a number, which leads to CUDA's own
 * handle here. Clients of the same tenant can find it until its object, or the process that has
 * made it, is gone.
 */
#ifndef IBX_FRONTEND_GLUE_TENANTS_SHARED_HANDLES_H
#define IBX_FRONTEND_GLUE_TENANTS_SHARED_HANDLES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define IBX_SHARED_HANDLE 64u /* bytes of a handle, ours and CUDA's */
#define IBX_SHARED_NUMBER 16u /* ... of which the first ones are random; the others are zero */

enum ibx_shared_kind {
    IBX_SHARED_MEMORY, /* this and the next as in IPC_CLOSE */
    IBX_SHARED_EVENT,
    IBX_SHARED_POOL,
    IBX_SHARED_POINTER,  /* memory of a pool */
    IBX_SHARED_MAPPABLE, /* memory that is mapped apart from its addresses */
};

/* CUDA's handle for other processes; for a pool, and for memory that is mapped apart from its
 * addresses, where its descriptor can be fetched (passed_descriptors.h). */
struct ibx_cuda_handle {
    _Alignas(8) uint8_t bytes[IBX_SHARED_HANDLE];
};

struct ibx_shared_handle {
    uint8_t number[IBX_SHARED_NUMBER];
    enum ibx_shared_kind kind;
    struct ibx_cuda_handle cuda;
    uint64_t n; /* bytes of memory */
    int device; /* of memory that is mapped */
};

static inline bool ibx_shared_is_number(const uint8_t *handle)
{
    static const uint8_t zeros[IBX_SHARED_HANDLE - IBX_SHARED_NUMBER];
    return !memcmp(handle + IBX_SHARED_NUMBER, zeros, sizeof(zeros));
}

#define IBX_SHARED_PLACES 16384u /* 7 MiB, of which only what is used is there */

/* create(): called by the process that listens, before it forks; for `places` handles, at most a
 * quarter of them one tenant's. False: no memory. are_of(): called in a forked process: which one
 * it is. ended(): called by the process that listens: that one has ended. */
bool ibx_shared_handles_create(unsigned places);
void ibx_shared_handles_are_of(unsigned process);
void ibx_shared_handles_ended(unsigned process);

/* Whether there are such processes; only then the functions below may be called. From any
 * thread. */
bool ibx_shared_handles_any(void);
/* Publishes a handle. Returns its place, for withdraw(); -1: there is no room, or the tenant has as
 * many as it may have. */
int ibx_shared_handles_publish(const char *tenant, const struct ibx_shared_handle *handle);
void ibx_shared_handles_withdraw(int place);
/* Finds a handle of another process. False: there is none of that number, kind and tenant. */
bool ibx_shared_handles_find(const char *tenant, enum ibx_shared_kind kind, const uint8_t *number,
                             struct ibx_shared_handle *found);

#endif
