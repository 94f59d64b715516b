/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A double of NVIDIA's libcuda.so.1, for machines without a GPU: what it exports
 * by the driver's names behaves as the driver does, as far as ibx uses it.
 *
 *   - device memory is reserved addresses that trap when the CPU touches them;
 *     its bytes are elsewhere
 *   - each stream has a worker and keeps its order; the legacy stream waits for
 *     all blocking streams, and they for it
 *   - asynchronous copies read and write host memory when they run, not before,
 *     and their host memory has to be pinned
 *   - host memory is registered once and in no part twice
 *   - contexts are current per thread; a sticky error stays until a reset
 *   - a capture forbids to wait, to pin and to allocate: in mode GLOBAL to all threads but those
 * that have exchanged their mode; and what is forbidden ends it. cuCtxSynchronize always does
 *
 * Below is what only tests call. The two devices are 0 and 1.
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
    unsigned long copies_sync;  /* cuMemcpyHtoD and cuMemcpyDtoH */
    unsigned long copies_async; /* all others */
    unsigned long
        unpinned_async; /* of these, with host memory that is not pinned: an error of ours */
    unsigned long in_flight_max; /* asynchronous copies submitted and not done, at most */
    unsigned long events;        /* alive */
    unsigned long flushes;       /* of what a fabric has written */
    unsigned long sync_memops;   /* allocations that were made synchronous */
    unsigned long exports;       /* dma-bufs handed out */
    unsigned long host_pins;     /* host memory registered now ... */
    unsigned long host_pinned;   /* ... and ever */
    unsigned long lost_events;   /* destroyed when they were gone already: an error of ours */
    unsigned long busy_unpins;   /* memory let go before its copies were over: an error of ours */
};

/* The bytes of device memory; false when the range is not one allocation's. */
bool ibx_double_peek(uint64_t device, void *to, size_t n);
bool ibx_double_poke(uint64_t device, const void *from, size_t n);
void ibx_double_get_stats(struct ibx_double_stats *stats);
/* The `in`-th call of `function` from now (1: the next) returns `code`; with `sticky` all calls do
 * from then on. "dma" is no function: the in-th asynchronous copy fails when it runs, always
 * sticky. NULL: no more failures, and a sticky error is forgotten. */
void ibx_double_inject(const char *function, unsigned in, int code, bool sticky);
/* What cuDeviceGetAttribute() says from now on; of attribute 0, whether a dma-buf can be mapped by
 * PCIe. At first there are dma-bufs, not so mapped, and writes are ordered. */
void ibx_double_attribute(int attribute, int value);
/* Each copy takes so long in addition. */
void ibx_double_slow(unsigned microseconds);
/* Nothing submitted runs until it is let go again. */
void ibx_double_hold(bool held);
/* Nothing of this stream does: its work is endless. NULL: none is. */
void ibx_double_hold_stream(void *stream);
/* The stream is being captured, as far as cuStreamIsCapturing() says; NULL: none is. */
void ibx_double_capture(void *stream);

#ifdef __cplusplus
}
#endif

#endif
