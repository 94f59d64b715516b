/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory of devices and of this host.
 *
 *   device_memory.c  cudaMalloc*, cudaFree; which pointers are device memory
 *   host_memory.c    cudaMallocHost, cudaHostAlloc, cudaHostRegister and their opposites
 *   host_order.c     waits before host memory is accessed here, in the order of a stream, and the
 *                    order of streams around work that is done here
 *   sets.c           cudaMemset*
 *   kernel_reach.c   page-locked memory that kernels use
 *   small_memory.c   short page-locked memory
 *   registered.c     registered memory that kernels use
 *   mappings.c       what is mapped in this process
 *   pools.c, host_pools.c  memory pools
 *   handle_files.c  descriptors for other processes
 *   device_objects.c  the list of arrays, textures and surfaces, and their end at a reset
 *   ipc.c            memory and events of other processes
 *   managed.h        lists the files of cudaMallocManaged
 *
 * Most of these files call each other in circles. A pointer may be to memory of any kind: whoever
 * frees or finds memory asks the files of the other kinds. Page-locked memory that a kernel is
 * about to use becomes managed or is moved (kernel_reach.c has managed_in_place.c or registered.c
 * do it), and host_memory.c ends that when the memory is freed. Work in a stream has an order with
 * memory that this library keeps for it, so host_order.c and host_pools.c ask pools.c for the
 * device of a stream, and use events, which ipc.c destroys.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MEMORY_MEMORY_H
#define IBX_FRONTEND_GLUE_PRELOAD_MEMORY_MEMORY_H

#include "frontend-glue/preload/preload.h"

/* --------------------------------------------------------------------------------- host_order.c */

/* Waits for all that a copy in the stream would come after: work in the stream and, if that is a
 * blocking one, in the legacy stream; or, in the legacy stream (NULL), in all blocking streams. A
 * captured stream returns the error of a wait for it. */
int ibx_frontend_wait_in_order(void *stream);
/* For commands that the back end does not see. Natively, in the legacy stream, they come after all
 * work that blocking streams had before, and later work in blocking streams comes after them; in
 * another stream they come after what is in it and, if it is a blocking one, in the legacy stream
 * (H200). wait_for_work() is for copies within host memory, which CUDA waits for, whatever memory
 * that work uses; order_work() is for work that is not waited for, which a later wait for the
 * stream includes; order_legacy() is for what is work in the legacy stream alone. None does
 * anything if there is no work. While streams are captured, ibx_frontend_legacy_refuses() must have
 * been asked before. All return a CUDA error. */
int ibx_frontend_wait_for_work(void *stream);
int ibx_frontend_order_work(void *stream);
int ibx_frontend_order_legacy(void *stream);

/* ------------------------------------------------------------------------------- kernel_reach.c */

/* To be called before a launch, with n bytes of arguments as the kernel gets them: gives kernels
 * access to page-locked memory that they point to. An error is what the launch has to return: the
 * kernel could not access one of them. */
int ibx_frontend_arguments_reach(const void *arguments, size_t n);
/* To be called before n bytes are copied to the device, where a kernel may find addresses in
 * them: the same for page-locked memory that was allocated, if there are few bytes. No error, since
 * perhaps no kernel uses it. */
void ibx_frontend_copied_reach(const void *bytes, size_t n);
/* The same before a launch of a graph, whose arguments are not known here: for all page-locked
 * memory that kernels have ever accessed. */
int ibx_frontend_graph_reach(void);
/* Whether there is page-locked memory. Quick. */
bool ibx_frontend_host_any(void);
/* Gives kernels access to the page-locked memory around the address. 0: they have it, at the same
 * address, or there is none. After an error _reach() logs what to do, and _try() returns which
 * memory it was. */
int ibx_frontend_host_reach(const void *address);
int ibx_frontend_host_try(const void *address, struct range *range);
/* Whether ibx_frontend_host_reach() would succeed, as far as is known without a request for pages
 * of the back end. _likely(): and nothing would move for that. */
bool ibx_frontend_host_can_reach(const void *address);
bool ibx_frontend_host_likely(const void *address);
/* Whether kernels could access the memory that was allocated last. */
bool ibx_frontend_reach_likely(void);
/* Notes memory that was allocated or registered. */
void ibx_frontend_reach_begins(uintptr_t begin, size_t n);
/* Ends the access of kernels to memory that is about to be freed, or is not registered any more. */
void ibx_frontend_reach_ends(const struct range *range);
/* After cudaDeviceReset. */
void ibx_frontend_reach_reset(void);

/* -------------------------------------------------------------------------------- host_memory.c */

/* After a call that sets memory, without a stream, and returned `rc`: waits for the stream in which
 * it was set if the memory is page-locked, as CUDA does. Work that is captured there is not run,
 * and not waited for. */
int ibx_frontend_was_set(int rc, const void *address, void *stream);
/* The page-locked memory that contains the address; false: none. _reached() notes that kernels have
 * access to it since an epoch and, if it is registered, in the process after so many forks. */
bool ibx_frontend_host_range(const void *address, struct range *range);
/* The same within ibx_frontend_ranges_lock(), until the list changes; NULL: none. */
const struct range *ibx_frontend_host_found(const void *address);
void ibx_frontend_host_reached(const struct range *range, unsigned epoch, unsigned forks);
/* Notes that it has become managed memory in place. */
void ibx_frontend_host_in_place(const struct range *range, unsigned forks);
/* Notes whether registered memory can move, which is told from then on. */
void ibx_frontend_host_moves(const struct range *range, enum range_moves moves);
/* Page-locked memory to which kernels had access, but not since that epoch. False: there is none.
 */
bool ibx_frontend_host_lapsed(unsigned epoch, struct range *range);
enum host_memory { HOST_PAGEABLE, HOST_REGISTERED, HOST_ALLOCATED };
/* What kind of memory all these bytes are, for a copy that may stay under way. */
enum host_memory ibx_frontend_host_memory(const void *address, size_t n);
/* As cudaMallocHost(), but the CUDA error that it returns is not the thread's last one. The memory
 * is freed by _drop() when nothing uses it any more: that does not wait. */
int ibx_frontend_host_make(void **address, size_t n);
void ibx_frontend_host_drop(void *address);
/* A device was reset, which frees or unregisters page-locked memory of its context. */
void ibx_frontend_host_memory_reset(int device);
/* Whether the range of page-locked memory there is the one with that number. */
bool ibx_frontend_host_numbered(const void *address, uint64_t number);
/* Whether all of it is page-locked memory that this library has allocated. */
bool ibx_frontend_host_ours(const void *address, size_t n);
/* Whether all of it is mapped in this process. */
bool ibx_frontend_all_mapped(const void *address, size_t n);
/* Whether the address is in page-locked memory: the device that was current then, and the flags. */
bool ibx_frontend_host_known(const void *address, int *device, unsigned *flags);
/* Whether n bytes are more than the page-locked memory there has, whatever is behind it: other such
 * memory, the rest of its last page, or what was mapped there since registered memory was unmapped.
 * CUDA goes by what it was told. */
bool ibx_frontend_host_is_short(const void *address, size_t n);
/* Whether page-locked memory with one of these bytes had an asynchronous copy, or kernels have had
 * access to it. */
bool ibx_frontend_host_memory_used(const void *address, size_t n);

/* --------------------------------------------------------------------------------------- sets.c */

/* To be called before a node sets memory: gives the device access if this is page-locked memory.
 * Returns a CUDA error, also what CUDA refuses at once. */
int ibx_frontend_set_check(const struct ibx_cuda_memset *set);
/* Sets elements of 2 or 4 bytes in the order of a stream that is not captured. False: the back end
 * does not know the request. */
bool ibx_frontend_set_elements(const struct ibx_cuda_memset *set, void *stream, int *rc);

/* ------------------------------------------------------------------------------- small_memory.c */

#define IBX_FRONTEND_SMALL ((size_t)64 << 10) /* the longest piece, in bytes */
/* Allocates a piece of page-locked memory that kernels can access; `shared`: only if its slab is
 * shared with the back end. NULL: it is too long, or there is no such memory. */
void *ibx_frontend_small_take(const struct ibx_frontend_calls *calls, size_t n, bool shared);
/* Frees a piece, which no work of the device uses any more. False: it is no piece. */
bool ibx_frontend_small_give(const void *address, size_t n);
/* Kernels could not get access to a piece: no more pieces are allocated. */
void ibx_frontend_small_refuse(void);
/* The slab that contains a piece; kernels have access to all of it or nothing. False: it is no
 * piece. _reached() notes the access. */
bool ibx_frontend_small_whole(const void *address, struct range *whole);
void ibx_frontend_small_reached(const void *address, unsigned epoch);

/* --------------------------------------------------------------------------------- registered.c */

/* For kernel_reach.c, one thread at a time. The whole pages around a registered range, and shared
 * memory for their bytes. */
struct ibx_registered_pages {
    uintptr_t at;
    size_t n;
    uint8_t *shared;
};
/* The number of a range that has shared memory there, though its registration has ended or its
 * memory was unmapped. False: there is none. */
bool ibx_registered_in_the_way(const struct range *range, uint64_t *number);
/* Gets shared memory for a registered range, or finds what it has. Then the back end is asked to
 * map that, and if it does, _move() moves the program's bytes there; otherwise _refused() frees it,
 * if nothing has moved yet. `path`: the connection cannot do it. Both return a CUDA error. */
int ibx_registered_begin(const struct range *range, struct ibx_registered_pages *pages);
int ibx_registered_move(const struct range *range);
void ibx_registered_refused(const struct range *range, bool path);
/* Whether the memory is such that it can move. Reads what this process has mapped. */
enum range_moves ibx_registered_moves(const struct range *range);
/* Why this thread's last such call has failed: a part of a sentence. */
const char *ibx_registered_why(void);
/* The pages of the registered range of that number, if it has shared memory. */
bool ibx_registered_has(uint64_t range, struct ibx_registered_pages *pages);
/* Moves the bytes back to private pages, after the back end has unmapped the others. */
void ibx_registered_back(uint64_t range);
/* From any thread: the shared memory of these bytes, which copies can use instead; NULL: they have
 * not moved. */
uint8_t *ibx_registered_shared(const void *address, size_t n);

/* ------------------------------------------------------------------------------ device_memory.c */

/* The direction of a copy between these pointers, from cudaMemcpyDefault or any other kind;
 * CUDA_MEMCPY_DEFAULT if only GVirtuS can tell. */
int ibx_frontend_copy_kind(const void *to, const void *from, int kind);
/* Whether one look at the lists settles a copy of n bytes that its kind calls one between device
 * and host memory, as nearly all are: that is its kind, and neither side is shorter. *ours: as
 * ibx_frontend_host_ours() says; *known: as ibx_frontend_given_out() says of the device's side.
 * False: each function has to be asked. */
bool ibx_frontend_copy_is_plain(const void *device, const void *host, size_t n, bool *ours,
                                bool *known);
/* Whether one side of the copy is host memory; its kind is resolved then. */
bool ibx_frontend_copy_of_host(struct ibx_cuda_memcpy3d *copy);
/* Whether both sides of a copy are host memory, whatever its kind says: of this process, or of the
 * back end, whose pages stand in for page-locked memory. Such a copy must not be a node of CUDA's:
 * the launch of its graph makes it, waits for what is before it in the graph, and keeps out all
 * other calls, though a function of this process may need one. */
bool ibx_frontend_copy_is_on_host(const struct ibx_cuda_memcpy3d *copy);
/* Whether a side of a copy within the device is memory that nobody has given out: then CUDA may say
 * at once that it is no device memory. */
bool ibx_frontend_copy_of_unknown(const struct ibx_cuda_memcpy3d *copy);
bool ibx_frontend_is_device(const void *address);
/* Whether this process can read the 8 (aligned) bytes there. */
bool ibx_frontend_is_readable(const void *address);
/* Whether it was returned as device memory; _only_device(): and nothing is mapped there in this
 * process. _only_host(): it was not, nor is it managed memory, and something is mapped there. */
bool ibx_frontend_given_out(const void *address);
bool ibx_frontend_only_device(const void *address);
bool ibx_frontend_only_host(const void *address);
/* Whether n bytes are more than the device allocation there has, as far as it is known. */
bool ibx_frontend_goes_beyond(uintptr_t address, size_t n);
/* Whether n bytes are more than there is, of the device's memory, or else of page-locked memory. */
bool ibx_frontend_is_short(const void *address, size_t n);
/* The bytes from the first one of rows, or of planes of `rows` rows, to the last one: 0 of nothing,
 * SIZE_MAX if they are more than there can be. */
size_t ibx_frontend_extent(size_t pitch, size_t width, size_t height);
size_t ibx_frontend_planes_extent(size_t pitch, size_t rows, const struct ibx_cuda_extent *extent);
/* Whether device memory or page-locked memory is shorter than the copy, all of which is in bytes.
 */
bool ibx_frontend_planes_are_short(const struct ibx_cuda_memcpy3d *bytes);
/* Checks that rows are within the pitch, and planes within their distance; `p`: in bytes. For a
 * single row CUDA needs no pitch; but for an array that is not `known` the pitch is all that limits
 * the row in this process's memory. A single plane needs no distance, but may not go beyond one
 * that is given. _planes_within(): both sides of a copy without arrays. */
static inline int ibx_frontend_side_within(const struct ibx_cuda_pitched *memory,
                                           const struct ibx_cuda_extent *at,
                                           const struct ibx_cuda_memcpy3d *p, bool known)
{
    const size_t row = p->extent.width;
    const bool one = p->extent.height == 1 && p->extent.depth == 1;
    if (!memory->at || (one && !memory->pitch && (known || ibx_frontend_only_device(memory->at))))
        return CUDA_SUCCESS;
    if (row > memory->pitch)
        return one ? CUDA_INVALID_VALUE : CUDA_INVALID_PITCH;
    if (p->extent.depth > 1 && p->extent.height > memory->y)
        return CUDA_INVALID_PITCH;
    if (memory->y && (p->extent.height > memory->y || at->height > memory->y - p->extent.height))
        return CUDA_INVALID_VALUE;
    return at->width > memory->pitch - row ? CUDA_INVALID_VALUE : CUDA_SUCCESS;
}
int ibx_frontend_planes_within(const struct ibx_cuda_memcpy3d *bytes);
/* The device on which it was allocated; if unknown, the current one. */
int ibx_frontend_device_of(const void *address);
/* Notes device memory that another call than cudaMalloc has returned, and its end. */
void ibx_frontend_device_memory(void *address, size_t n);
void ibx_frontend_memory_of(void *address, size_t n, int device);
/* The same of a node's memory. CUDA may give the place of what an earlier node frees to a later
 * one, so nothing here says how long the memory is; the driver knows. */
void ibx_frontend_graph_memory(void *address, size_t n);
void ibx_frontend_device_memory_gone(const void *address);
/* Something else is there now. What was noted of these n bytes was memory whose end no call shows,
 * as that of a graph. */
void ibx_frontend_memory_lapsed(uintptr_t at, size_t n);
/* Notes reserved device addresses, which no call for memory frees. */
void ibx_frontend_reserved_memory(void *address, size_t n);
bool ibx_frontend_is_reserved(const void *address);
/* A device was reset: its memory is freed, and so are addresses that were reserved while it was
 * current. _reserved_resets(): the number of resets. */
void ibx_frontend_device_memory_reset(int device);
unsigned ibx_frontend_reserved_resets(void);
/* Before and after a call that frees memory and waits for all work. _before_free() waits in a way
 * that lets this process make copies for which graphs wait; _freed() returns `rc`, or the error of
 * such a copy. */
void ibx_frontend_before_free(void);
int ibx_frontend_freed(int rc);
/* The device allocation that contains the address; false: none is known. */
bool ibx_frontend_allocation(const void *address, struct range *range);

/* -------------------------------------------------------------------------------------- pools.c */

/* A device was reset, which destroys its pools. */
void ibx_frontend_pools_reset(int device);
/* Streams up to CUDA_STREAM_PER_THREAD are of the current device. The back end is asked only if
 * this process uses several devices. If it cannot tell, the answer is the current device. */
int ibx_frontend_device_of_stream(const void *stream);

/* ------------------------------------------------------------------------------- managed_list.c */

bool ibx_frontend_is_managed(const void *address);
/* Whether it is page-locked memory that has become managed in place. */
bool ibx_frontend_is_in_place(const void *address);

/* ------------------------------------------------------------------------------------ managed.c */

/* cudaFree of managed memory. False: it is none. *rc: an error; else *base is the device memory to
 * free. */
bool ibx_frontend_managed_free(const void *address, void **base, int *rc);
/* The same while there are captures, in which CUDA may refuse it, so that the program still has the
 * memory: `free_it` frees the device memory, and its result is *rc. False: no allocation begins
 * there. */
bool ibx_frontend_managed_free_captured(const void *address, int (*free_it)(void *base), int *rc);
#define IBX_FRONTEND_MAPPED 2u /* cudaHostAllocMapped, cudaHostRegisterMapped */
/* cudaHostAlloc with this flag: memory that the device uses, too. False: not available. And
 * cudaFreeHost of it; false: it is no such memory. */
bool ibx_frontend_mapped(void **address, size_t n, unsigned flags, int *rc);
bool ibx_frontend_mapped_free(void *address, int *rc);
/* After a reset of the device, which frees managed memory. */
void ibx_frontend_managed_reset(void);

/* --------------------------------------------------------------------------- managed_in_place.c */

/* Page-locked memory from allocate() becomes managed memory at its address. An error: it stays
 * page-locked, and if nobody else has logged the reason, this does. _end(): unmaps it, with the
 * back end's pages. */
int ibx_frontend_in_place(const struct range *range);
void ibx_frontend_in_place_end(const struct range *range);
/* After a reset of a device, which may have unpinned those pages: pins them again. */
void ibx_frontend_in_place_again(const struct range *range);

/* ------------------------------------------------------------------------------- managed_work.c */

/* Before cudaDeviceReset: writes the host's changes to the device, because __managed__ variables
 * survive the reset with their values. */
void ibx_frontend_managed_resets(void);
/* Before and after a launch: whether it is captured, if that makes a difference. */
bool ibx_frontend_managed_captured(void *stream);
void ibx_frontend_managed_launched(void);
/* The driver may load a kernel now. It waits for the device then, and keeps out the calls that a
 * function of a stream needs if it touches managed memory. So such functions return before, unless
 * one takes long: it may be waiting for what the program does next. */
void ibx_frontend_managed_before_load(void);
/* Waits for the device, if an access to managed memory would have to. */
void ibx_frontend_managed_rests(void);
/* A capture is about to begin, and counts already: copies that this library makes in the legacy
 * stream for managed memory are over afterwards. Others are made beside captures from now on. */
void ibx_frontend_managed_captures(void);

/* ----------------------------------------------------------------------------- managed_faults.c */

/* The end of the process: nothing is fetched from the device any more. */
void ibx_frontend_managed_ends(void);

/* ------------------------------------------------------------------------------ managed_hints.c */

/* Whether this host has this NUMA node. */
bool ibx_frontend_host_node(int id);

/* ---------------------------------------------------------------------------------------- ipc.c */

/* What other processes own, and this one has opened. */
enum opened_kind {
    OPENED_MEMORY,
    OPENED_EVENT,
    OPENED_POOL,
    OPENED_POINTER,
    SHARED_EVENT /* an event of this process that it has shared: see ipc.c */
};
bool ibx_frontend_opened(enum opened_kind kind, const void *value);
/* The only device was reset, which closes all of them. */
void ibx_frontend_opened_reset(void);
/* Notes an opened pool, and n bytes of memory from one; false: no memory. */
bool ibx_frontend_pool_opened(void *pool);
bool ibx_frontend_pointer_opened(void *memory, size_t n);
/* Forgets it; false: it was not opened. */
bool ibx_frontend_pool_closed(const void *pool);
bool ibx_frontend_pointer_closed(const void *memory);

/* ------------------------------------------------------------------------------- handle_files.c */

enum handle_file {
    FILE_OF_POOL,
    FILE_OF_MAPPED /* memory of cuMemCreate */
};
/* Makes a file with a handle of IBX_EXT_HANDLE bytes. -1: there is no memory for it, or this
 * process may have no such file. */
int ibx_frontend_handle_file(enum handle_file kind, const uint8_t *handle);
/* False: it is no such file. */
bool ibx_frontend_handle_in_file(enum handle_file kind, int fd, uint8_t *handle);
/* Whether a file of this process may have n bytes. SIGXFSZ ends a process that exceeds this limit
 * (ulimit -f), also in memory. */
bool ibx_frontend_file_is_in_limit(size_t n);

#endif
