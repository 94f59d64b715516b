/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Where each program has a process of its own (rdma.processes : program): what these share with
 * each other. A handle that a client hands to another program is a number, which leads here to
 * CUDA's own handle. It is known to clients of the same tenant, until what it stands for is gone,
 * or the process that has made it.
 */
#ifndef IBX_FRONTEND_GLUE_TENANTS_SHARED_HANDLES_H
#define IBX_FRONTEND_GLUE_TENANTS_SHARED_HANDLES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define IBX_SHARED_HANDLE 64u /* bytes of a handle, ours and CUDA's */
#define IBX_SHARED_NUMBER 16u /* ... of which the first ones are random; the others are zero */

enum ibx_shared_kind {
    IBX_SHARED_MEMORY, /* these as in IPC_CLOSE */
    IBX_SHARED_EVENT,
    IBX_SHARED_POOL,
    IBX_SHARED_POINTER, /* memory of a pool */
};

/* CUDA's handle for other processes; or of a pool, where its descriptor is to be had
 * (passed_descriptors.h). */
struct ibx_cuda_handle {
    _Alignas(8) uint8_t bytes[IBX_SHARED_HANDLE];
};

struct ibx_shared_handle {
    uint8_t number[IBX_SHARED_NUMBER];
    enum ibx_shared_kind kind;
    struct ibx_cuda_handle cuda;
    uint64_t n; /* bytes of memory */
};

static inline bool ibx_shared_is_number(const uint8_t *handle)
{
    static const uint8_t zeros[IBX_SHARED_HANDLE - IBX_SHARED_NUMBER];
    return !memcmp(handle + IBX_SHARED_NUMBER, zeros, sizeof(zeros));
}

#define IBX_SHARED_PLACES 16384u /* 7 MiB, of which only what is used is there */

/* The process that listens, before it forks: at most `places` handles, a quarter of them one
 * tenant's. False: no memory. In such a process: which of them it is. In the one that listens:
 * that one has ended. */
bool ibx_shared_handles_create(unsigned places);
void ibx_shared_handles_are_of(unsigned process);
void ibx_shared_handles_ended(unsigned process);

/* Whether there are such processes; the functions below are for them. From any thread. */
bool ibx_shared_handles_any(void);
/* The place of the handle, until it is withdrawn; -1: there is no room, or the tenant has as many
 * as it may have. */
int ibx_shared_handles_publish(const char *tenant, const struct ibx_shared_handle *handle);
void ibx_shared_handles_withdraw(int place);
/* Of another process. False: there is none of that number, kind and tenant. */
bool ibx_shared_handles_find(const char *tenant, enum ibx_shared_kind kind, const uint8_t *number,
                             struct ibx_shared_handle *found);

#endif
