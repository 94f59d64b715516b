/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies between a peer's memory and this process's GPU, through pinned chunks:
 * while the fabric fills (or empties) some, the GPU's copy engine has others.
 *
 *   to the device    wire READ -> chunk -> DMA      in the order in which chunks arrive
 *   from the device  DMA -> chunk -> wire WRITE     in order
 *
 * A lane belongs to one connection and its thread; all lanes share the pool of
 * pinned.h and take of it what is free, at most IBX_STAGING_DEPTH chunks a copy.
 *
 * Copies run in the calling thread's current context, on the stream that they
 * name, and have ended when the call returns, as those of cudaMemcpy.
 *
 * Returns of all calls: 0; a positive CUresult, after which the lane is free for
 * the next copy; a negative errno of the wire, after which the lane may be gone
 * already and nothing of it has been touched since.
 */
#ifndef IBX_GPUDIRECT_STAGING_H
#define IBX_GPUDIRECT_STAGING_H

#include "gpudirect/cuda.h"
#include "gpudirect/pinned.h"

#include <stdbool.h>
#include <sys/types.h>

#define IBX_STAGING_DEPTH 8u /* chunks of one copy */

/* The host's side is rows of `host_pitch` bytes one after the other, the device's rows of
 * `device_pitch`; a plain copy is one row of `width` bytes, which its pitches, or zeros, do not
 * exceed. */
struct ibx_gpu_copy {
    uint64_t device; /* address of the first row */
    uint64_t device_pitch, host_pitch;
    uint64_t width, height; /* bytes, rows; neither is 0 */
    void *stream;
};

/* Bytes of the host's side: host_pitch * height, or the width of a plain copy. */
uint64_t ibx_gpu_copy_bytes(const struct ibx_gpu_copy *copy);
/* Whether a copy can be staged: a row has to fit into a chunk, a plain copy always does. */
bool ibx_gpu_copy_fits(const struct ibx_gpu_copy *copy);

/* The peer's side, by offsets in the host's bytes. `slot` is 0 to IBX_STAGING_DEPTH - 1 and names
 * the copy in hand; a slot is moved again only after its last move was reported. */
struct ibx_staging_wire {
    void *context;
    /* Begins to move `n` bytes between the peer's at `offset` and `local`, in pool chunk `chunk`.
     */
    int (*move)(void *context, unsigned slot, unsigned chunk, void *local, uint64_t offset,
                size_t n);
    /* Sets a bit for each slot whose move is over. With `wait` it returns when there is one. */
    int (*arrived)(void *context, bool wait, uint32_t *slots);
    /* To the device only, may be NULL: called once before anything is given to the GPU and after
     * bytes have arrived; fills in where to. 0: go on; 1: not known yet, wait; IBX_STAGING_REFUSED:
     * stop, nothing was done. */
    int (*open)(void *context, struct ibx_gpu_copy *copy);
    /* To the device only: the next moves are of so many slots IBX_COPY_THREADS_APART from each
     * other, in turns, in copies that are long enough; 1: of one after the other. For threads. */
    unsigned spread;
};
#define IBX_STAGING_REFUSED 0x7fffffff

struct ibx_staging;

int ibx_staging_create(const struct ibx_cuda *cuda, struct ibx_staging **staging,
                       struct ibx_error *err);
/* A context was reset or destroyed, and what the lane had in it is gone. NULL: it may have been
 * any. */
void ibx_staging_forget(struct ibx_staging *staging, const void *context);
/* Before that: lets go of what the lane has in its context. Between copies. */
void ibx_staging_drop_events(struct ibx_staging *staging);
/* Accepts NULL. Waits for DMA in flight and gives the chunks back; no move may be in flight. */
void ibx_staging_destroy(struct ibx_staging *staging);

/* Bytes of a plain copy in one chunk, at most and at first IBX_PINNED_CHUNK; before a copy. */
void ibx_staging_set_chunk(struct ibx_staging *staging, size_t bytes);

/* Takes the chunks for a copy of `bytes`: false when the pool is exhausted and stayed so for a
 * while. Then the caller copies in another way. */
bool ibx_staging_begin(struct ibx_staging *staging, uint64_t bytes);
/* How many there are, and the number of each in the pool. */
unsigned ibx_staging_chunks(const struct ibx_staging *staging);
unsigned ibx_staging_chunk(const struct ibx_staging *staging, unsigned slot);
/* Gives them back, after a copy or instead of one; waits for DMA in flight. */
void ibx_staging_end(struct ibx_staging *staging);

/* After begin: a whole copy. With wire->open only the number of bytes of `copy` counts before. */
int ibx_staging_to_device(struct ibx_staging *staging, const struct ibx_staging_wire *wire,
                          const struct ibx_gpu_copy *copy);

/* After begin: starts DMA into the chunks and waits for the first one, by which earlier errors of
 * the stream and bad addresses have shown. `ahead`: of the chunks that follow, too, or else only
 * when they are wanted. */
int ibx_staging_from_device(struct ibx_staging *staging, const struct ibx_gpu_copy *copy,
                            bool ahead);
/* Moves the next `n` bytes; returns when they have arrived. The wire's offsets count from the first
 * byte of this call. -ERANGE: the copy has fewer. */
int ibx_staging_deliver(struct ibx_staging *staging, const struct ibx_staging_wire *wire,
                        uint64_t n);
/* The same straight into pinned memory `to`, of a plain copy; what the chunks hold of these bytes
 * is not used. */
int ibx_staging_deliver_straight(struct ibx_staging *staging, void *to, uint64_t n);
/* Waits for the earlier work of a stream, by which its errors have shown. No chunks are needed. */
int ibx_staging_settle(struct ibx_staging *staging, void *stream);
/* Instead of begin and a staged copy: straight out of pinned memory, which holds all of the host's
 * bytes, or into it. */
int ibx_staging_straight_to_device(struct ibx_staging *staging, const void *from,
                                   const struct ibx_gpu_copy *copy);
int ibx_staging_straight_from_device(struct ibx_staging *staging, void *to,
                                     const struct ibx_gpu_copy *copy);

#endif
