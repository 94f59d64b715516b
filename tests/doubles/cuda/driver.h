/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A double of NVIDIA's libcuda.so.1, for machines without a GPU. Its functions with the driver's
 * names behave as the driver's, as far as ibx uses them.
 *
 *   - device memory is reserved addresses that trap when the CPU touches them; its bytes are
 *     elsewhere
 *   - each stream has a worker and keeps its order; the legacy stream waits for all blocking
 *     streams, and these wait for it
 *   - asynchronous copies read and write host memory when they run, and it has to be pinned
 *   - no part of host memory is registered twice
 *   - contexts are current per thread; a sticky error stays, on all devices; after a reset it is 46
 *   - a capture forbids waiting, pinning and allocating: in mode GLOBAL to all threads except those
 *     that have exchanged their mode. A forbidden call ends it, cuCtxSynchronize always
 *
 * The functions below are for tests. The two devices are 0 and 1.
 */
#ifndef TESTS_CUDA_DOUBLE_H
#define TESTS_CUDA_DOUBLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ibx_double_stats {
    unsigned long copies_sync;      /* cuMemcpyHtoD and cuMemcpyDtoH */
    unsigned long copies_async;     /* all others */
    unsigned long unpinned_async;   /* of these, with unpinned host memory: a fault of ibx */
    unsigned long in_flight_max;    /* asynchronous copies submitted and not done, at most */
    unsigned long events;           /* alive */
    unsigned long allocations;      /* of device memory, alive */
    unsigned long streams;          /* that were made, alive */
    unsigned long pools;            /* made or opened from another process, and alive */
    unsigned long flushes;          /* of what a fabric has written */
    unsigned long sync_memops;      /* allocations that were made synchronous */
    unsigned long exports;          /* dma-bufs handed out */
    unsigned long host_pins;        /* pieces of host memory that are registered now */
    unsigned long host_pinned;      /* pieces of host memory that were ever registered */
    unsigned long lost_events;      /* destroyed after they were gone already: a fault of ibx */
    unsigned long busy_unpins;      /* unpinned before copies had ended: a fault of ibx */
    unsigned long waits;            /* waits for all streams that were begun */
    unsigned long event_waits;      /* threads that wait for events now */
    unsigned long stream_waits;     /* ... for streams */
    unsigned long queued;           /* entries of the fullest stream: at a thousand CUDA has its
                                       callers wait, which the double does not */
    unsigned long beside_functions; /* copies to or from the host, and streams that were made, while
                                       a stream waited for a function: not by a graph's own nodes */
    unsigned long reservations;     /* of addresses, alive */
    unsigned long mappable;         /* pieces of memory for these, alive */
    unsigned long linking;          /* PTX that is being added to a link */
    unsigned long primary_holds;    /* of the primary contexts, by cuDevicePrimaryCtxRetain() */
    unsigned long execs;            /* executable graphs that were made and not destroyed */
    unsigned long execs_refused;    /* ... that were not made: another one has the graph's memory */
};

#define IBX_DOUBLE_KERNEL 0x7000u /* the only kernel, and the runtime's function for it */

/* IBX_DOUBLE_WIDE + n, with n from 1 to IBX_DOUBLE_WIDEST, are kernels, too. They have three
 * parameters: the address of memory, n bytes, and a u32 that is added to each byte that the kernel
 * writes there. */
#define IBX_DOUBLE_WIDE   0x1000000u
#define IBX_DOUBLE_WIDEST 32752u

/* Read and write bytes of device memory; false: the range is not within one allocation. */
bool ibx_double_peek(uint64_t device, void *to, size_t n);
bool ibx_double_poke(uint64_t device, const void *from, size_t n);
void ibx_double_get_stats(struct ibx_double_stats *stats);
/* The `in`-th call of `function` from now (1: the next) returns `code`; with `sticky` all calls do
 * from then on. "dma" is no function: the in-th asynchronous copy fails when it runs, always
 * sticky. NULL: no more failures, and a sticky error is forgotten. */
void ibx_double_inject(const char *function, unsigned in, int code, bool sticky);
/* What cuDeviceGetAttribute() returns from now on. Attribute 0: whether a dma-buf can be mapped by
 * PCIe. At first there are dma-bufs, which cannot, and writes are ordered; pinned memory has no
 * address for the device, by which it could set words there. */
void ibx_double_attribute(int attribute, int value);
/* Each copy takes that much longer. */
void ibx_double_slow(unsigned microseconds);
/* From now on each function that a client has registered is a kernel of its own: as the one that
 * copies, and also captured. unload(): it is unloaded; `function`: the name that the runtime knows.
 * As driver 580, the double then ends the process when a graph with it is made executable, or
 * launched. */
void ibx_double_kernels_apart(bool they);
void ibx_double_unload(const void *function);
/* While this holds, no submitted work runs. */
void ibx_double_hold(bool held);
/* While held, the linker compiles nothing. */
void ibx_double_hold_linker(bool held);
/* Work of this stream never runs, as if it were endless, nor does that of those before. NULL: no
 * such streams any more. */
void ibx_double_hold_stream(void *stream);
/* The same once the stream has made so many more copies. */
void ibx_double_hold_stream_after(void *stream, unsigned copies);
/* Releases this stream. */
void ibx_double_release_stream(void *stream);
/* Whether the next work of this stream has been submitted, and waits for other work. */
bool ibx_double_stream_waits(void *stream);
/* As if a kernel had printed that: the next call that waits writes it to `stdout`; 64 KiB at a
 * time. */
void ibx_double_print(const char *text);
/* The next node of that captured stream would come behind so many others. */
void ibx_double_captures_behind(void *stream, size_t nodes);
/* The stream is being captured, as far as cuStreamIsCapturing() says; NULL: none is. */
void ibx_double_capture(void *stream);

#ifdef __cplusplus
}
#endif

#endif
