/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory of devices and of this host.
 *
 *   device_memory.c  cudaMalloc*, cudaFree; which pointers are the device's
 *   host_memory.c    cudaMallocHost, cudaHostAlloc, cudaHostRegister, and what frees them
 *   kernel_reach.c, small_memory.c  page-locked memory that kernels use
 *   pools.c          pools of memory
 *   ipc.c            memory and events of other processes
 *   managed.h        lists the files of cudaMallocManaged
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MEMORY_MEMORY_H
#define IBX_FRONTEND_GLUE_PRELOAD_MEMORY_MEMORY_H

#include "frontend-glue/preload/preload.h"

/* ------------------------------------------------------------------------------- kernel_reach.c */

/* Before a launch: its arguments, as they lie in a kernel's. An error is what it is to return: one
 * of them is in page-locked memory that the kernel would not reach. */
int ibx_frontend_arguments_reach(const void *arguments, size_t n);
/* Before a launch of a graph, whose arguments are not known here: all page-locked memory that
 * kernels have ever reached. As above. */
int ibx_frontend_graph_reach(void);
/* Whether there is page-locked memory at all. Quick. */
bool ibx_frontend_host_any(void);
/* The page-locked memory around that address. 0: kernels reach it, at its own, or there is none.
 * Of an error the first function says what to do, the second which memory it was. */
int ibx_frontend_host_reach(const void *address);
int ibx_frontend_host_try(const void *address, struct range *range);
/* Whether the first one would not fail, as far as is known without asking the back end to have
 * pages of its own there. */
bool ibx_frontend_host_likely(const void *address);
/* Whether what was allocated last was not out of reach. */
bool ibx_frontend_reach_likely(void);
/* Memory that was allocated, or registered. */
void ibx_frontend_reach_begins(uintptr_t begin, size_t n);
/* Memory that is about to be given back. */
void ibx_frontend_reach_ends(const struct range *range);
/* After cudaDeviceReset. */
void ibx_frontend_reach_reset(void);

/* -------------------------------------------------------------------------------- host_memory.c */

/* host_memory.c: that memory, as far as there is any; and that kernels reach it since an epoch. */
bool ibx_frontend_host_range(const void *address, struct range *range);
void ibx_frontend_host_reached(const struct range *range, unsigned epoch);
/* ... and that it has become managed memory. */
void ibx_frontend_host_in_place(const struct range *range, unsigned forks);
/* Memory that kernels have reached, but not since that epoch. False: there is none. */
bool ibx_frontend_host_lapsed(unsigned epoch, struct range *range);
enum host_memory { HOST_PAGEABLE, HOST_REGISTERED, HOST_ALLOCATED };
/* What all these bytes are, for a copy that may stay under way in them. */
enum host_memory ibx_frontend_host_memory(const void *address, size_t n);
/* The device was reset: page-locked memory of its context is freed, or page-locked no more. */
void ibx_frontend_host_memory_reset(int device);
/* Whether all of it is memory that this library has allocated. */
bool ibx_frontend_host_ours(const void *address, size_t n);
/* Whether all of it is mapped here. */
bool ibx_frontend_all_mapped(const void *address, size_t n);
/* Whether it is page-locked: what was the thread's device then, and with which flags. */
bool ibx_frontend_host_known(const void *address, int *device, unsigned *flags);
/* Whether there was an asynchronous copy in memory that holds one of these bytes, or kernels have
 * reached that. */
bool ibx_frontend_host_memory_used(const void *address, size_t n);

/* ------------------------------------------------------------------------------- small_memory.c */

#define IBX_FRONTEND_SMALL ((size_t)64 << 10) /* bytes of a piece at most */
/* A piece of page-locked memory for kernels. NULL: it is too long, or there is none. */
void *ibx_frontend_small_take(const struct ibx_frontend_calls *calls, size_t n);
/* Gives it back, which no work of the device's uses any more. False: it was no such piece. */
bool ibx_frontend_small_give(const void *address, size_t n);
/* Kernels do not reach a piece: from now on there are none. */
void ibx_frontend_small_refuse(void);
/* The slab of a piece, of which kernels reach all or nothing; and that they do since an epoch.
 * False: it is none. */
bool ibx_frontend_small_whole(const void *address, struct range *whole);
void ibx_frontend_small_reached(const void *address, unsigned epoch);

/* ------------------------------------------------------------------------------ device_memory.c */

/* What cudaMemcpyDefault (or any other kind) means for these two pointers; CUDA_MEMCPY_DEFAULT
 * again where only GVirtuS can tell. */
int ibx_frontend_copy_kind(const void *to, const void *from, int kind);
/* Whether one side of it is the host's; the kind is said then, too. */
bool ibx_frontend_copy_of_host(struct ibx_cuda_memcpy3d *copy);
bool ibx_frontend_is_device(const void *address);
/* Whether this process can read the (aligned) eight bytes there. */
bool ibx_frontend_is_readable(const void *address);
/* Whether it was given out as the device's; and this process has nothing there. */
bool ibx_frontend_given_out(const void *address);
bool ibx_frontend_only_device(const void *address);
/* Whether they are more bytes than the allocation of cudaMalloc's that was seen there has. */
bool ibx_frontend_goes_beyond(uintptr_t address, size_t n);
/* On which one it was allocated; the current one if it is not known. */
int ibx_frontend_device_of(const void *address);
/* Memory of the device that another call than cudaMalloc has returned, and that is no more. */
void ibx_frontend_device_memory(void *address, size_t n);
void ibx_frontend_memory_of(void *address, size_t n, int device);
void ibx_frontend_device_memory_gone(const void *address);
/* Addresses of the device's, which no call frees that frees memory. */
void ibx_frontend_reserved_memory(void *address, size_t n);
bool ibx_frontend_is_reserved(const void *address);
/* The device was reset: it has no memory, nor are addresses reserved that were while it was
 * current. So often so far. */
void ibx_frontend_device_memory_reset(int device);
unsigned ibx_frontend_reserved_resets(void);
/* Around a call that waits for all work as it gives memory back: before it, in a way that lets this
 * process make the copies that graphs wait for; and what it returns, of such copies too. */
void ibx_frontend_before_free(void);
int ibx_frontend_freed(int rc);
/* The allocation around that address; false: none is known. */
bool ibx_frontend_allocation(const void *address, struct range *range);

/* -------------------------------------------------------------------------------------- pools.c */

/* The device was reset. */
void ibx_frontend_pools_reset(int device);

/* ------------------------------------------------------------------------------- managed_list.c */

bool ibx_frontend_is_managed(const void *address);

/* ------------------------------------------------------------------------------------ managed.c */

/* cudaFree of managed memory; false: it is none. *rc: an error; or *base is what is to be freed. */
bool ibx_frontend_managed_free(const void *address, void **base, int *rc);
#define IBX_FRONTEND_MAPPED 2u /* cudaHostAllocMapped, cudaHostRegisterMapped */
/* cudaHostAlloc with that flag: the device uses the memory, too. False: it cannot. And cudaFreeHost
 * of it; false: it is none. */
bool ibx_frontend_mapped(void **address, size_t n, unsigned flags, int *rc);
bool ibx_frontend_mapped_free(void *address, int *rc);
/* The device was reset, and managed memory goes with it. */
void ibx_frontend_managed_reset(void);

/* --------------------------------------------------------------------------- managed_in_place.c */

/* managed_in_place.c: page-locked memory of allocate()'s becomes managed memory where it is. An
 * error: it stays what it was, and a sentence says why where nobody else does. And it is unmapped,
 * with the pages that the back end has there. */
int ibx_frontend_in_place(const struct range *range);
void ibx_frontend_in_place_end(const struct range *range);
/* After a reset of a device by which those pages may not be pinned any more. */
void ibx_frontend_in_place_again(const struct range *range);

/* ------------------------------------------------------------------------------- managed_work.c */

/* Before cudaDeviceReset: variables outlast it, with what the program has written. */
void ibx_frontend_managed_resets(void);
/* Around a launch: whether it is captured, where that makes a difference. */
bool ibx_frontend_managed_captured(void *stream);
void ibx_frontend_managed_launched(void);
/* Waits for the device where an access to managed memory would wait for it. */
void ibx_frontend_managed_rests(void);

/* ----------------------------------------------------------------------------- managed_faults.c */

/* GVirtuS's front end is about to go: nothing is fetched any more. */
void ibx_frontend_managed_ends(void);

/* ------------------------------------------------------------------------------ managed_hints.c */

/* managed_hints.c: whether this host has that NUMA node. */
bool ibx_frontend_host_node(int id);

/* ---------------------------------------------------------------------------------------- ipc.c */

/* What other processes have, which give it back. */
enum opened_kind {
    OPENED_MEMORY,
    OPENED_EVENT,
    OPENED_POOL,
    OPENED_POINTER,
    SHARED_EVENT /* of this process's own: ipc.c */
};
bool ibx_frontend_opened(enum opened_kind kind, const void *value);
/* The only device was reset: all of them are closed. */
void ibx_frontend_opened_reset(void);
/* A pool, and memory of one, n bytes: false: no memory. */
bool ibx_frontend_pool_opened(void *pool);
bool ibx_frontend_pointer_opened(void *memory, size_t n);
/* Forgets it; false: it was none. */
bool ibx_frontend_pool_closed(const void *pool);
bool ibx_frontend_pointer_closed(const void *memory);

#endif
