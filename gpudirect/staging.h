/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies between a peer's memory and this process's GPU through pinned chunks. While the wire fills
 * (or empties) some chunks, the GPU's copy engine works on others.
 *
 *   to the device    wire READ -> chunk -> DMA      in the order in which chunks arrive
 *   from the device  DMA -> chunk -> wire WRITE     in order
 *
 * A struct ibx_staging belongs to one connection and its thread. All share the pool of pinned.h;
 * each copy takes what is free there, at most IBX_STAGING_DEPTH chunks, one a slot.
 *
 * Copies run in the calling thread's current context, on the stream that they name, and have ended
 * when the call returns, as those of cudaMemcpy; unless they say that they need not.
 *
 * All calls return 0; or a positive CUresult, after which the next copy can begin; or the negative
 * errno of the wire, after which the struct ibx_staging may be destroyed already.
 */
#ifndef IBX_GPUDIRECT_STAGING_H
#define IBX_GPUDIRECT_STAGING_H

#include "gpudirect/cuda.h"
#include "gpudirect/pinned.h"
#include "gpudirect/turns.h"

#include <stdbool.h>
#include <sys/types.h>

#define IBX_STAGING_DEPTH 8u /* chunks of one copy */

/* A 2D copy: rows start every `host_pitch` bytes on the host's side and every `device_pitch` bytes
 * on the device; `width` bytes of each are copied. A plain copy is one row, with a host_pitch of at
 * most `width`. */
struct ibx_gpu_copy {
    uint64_t device; /* address of the first row */
    uint64_t device_pitch, host_pitch;
    uint64_t width, height; /* bytes, rows; neither is 0 */
    void *stream;
    bool
        beside_graphs; /* graphs wait for their client: no driver call may wait inside the driver */
    bool changes;      /* to the device: work that the copy comes after may write its bytes */
    bool alone;     /* a plain one, staged: it comes after no work, in a stream for such copies in
                       this direction. Streams that wait may not keep it waiting */
    bool unawaited; /* a plain one of at most IBX_UNAWAITED_MOST bytes, staged, to the device: the
                    call may return before it has ended */
};
/* Bytes; CUDA takes so much pageable memory in the call. */
#define IBX_UNAWAITED_MOST ((size_t)64 << 10)

/* Bytes of the host's side: host_pitch * height, or the width of a plain copy. */
uint64_t ibx_gpu_copy_bytes(const struct ibx_gpu_copy *copy);
/* Whether a copy can be staged: a row has to fit into a chunk, a plain copy always does. */
bool ibx_gpu_copy_fits(const struct ibx_gpu_copy *copy);

/* The peer's side, by offsets in the host's bytes. `slot` is 0 to IBX_STAGING_DEPTH - 1; it is
 * moved again only after its last move was reported. */
struct ibx_staging_wire {
    void *context;
    /* Begins to move `n` bytes between the peer's memory at `offset` and `local`, in chunk `chunk`
     * of the pool. */
    int (*move)(void *context, unsigned slot, unsigned chunk, void *local, uint64_t offset,
                size_t n);
    /* Sets a bit for each slot whose move has ended. With `wait` it returns when there is one. */
    int (*arrived)(void *context, bool wait, uint32_t *slots);
    /* To the device only, may be NULL: called after bytes have arrived and before anything is given
     * to the GPU; sets the device's side of `copy`. 0: go on; 1: not known yet, wait;
     * IBX_STAGING_REFUSED: stop, nothing was done. */
    int (*open)(void *context, struct ibx_gpu_copy *copy);
    /* To the device only, for copy threads: in long copies this many consecutive moves are
     * IBX_COPY_THREADS_APART from each other. 1: moves follow one another. */
    unsigned spread;
};
#define IBX_STAGING_REFUSED 0x7fffffff
/* A copy from the device that is alone has not begun for long, and streams that wait for the caller
 * may be the reason. The GPU has its chunks until it makes it. To be begun again, with others. */
#define IBX_STAGING_OVERDUE 0x7ffffffe

struct ibx_staging;

/* -ENOMEM. */
int ibx_staging_create(const struct ibx_cuda *cuda, struct ibx_staging **staging);
/* Accepts NULL. Waits for DMA in flight, and gives the chunks back; no move may be in flight. Waits
 * for copies that streams that wait keep waiting, and overdue ones, for a second at most: then the
 * GPU keeps their chunks until it has made them. Does not wait for copies that were left. */
void ibx_staging_destroy(struct ibx_staging *staging);
/* A context was reset or destroyed, with its events; NULL: any may have been. A copy under way in
 * it ends with a CUresult. Who calls this tells the session all contexts that were forgotten for
 * all sessions by then. */
void ibx_staging_forget(struct ibx_staging *staging, const void *context);
/* For all sessions together, in the thread that has reset or destroyed a context: what the process
 * has there is gone. */
void ibx_staging_forget_for_all(const void *context);
/* Gives back the chunks of copies that were left and have ended. To be called when the session has
 * nothing to do, in a thread that may call CUDA; a context that was reset was forgotten before. */
void ibx_staging_unawaited_look(struct ibx_staging *staging);
/* Destroys the events. To be called before a reset of their context, not during a copy. */
void ibx_staging_drop_events(struct ibx_staging *staging);

/* Creates what straight copies need (events, a word), so that the first one does not have to. */
void ibx_staging_prepare(struct ibx_staging *staging);

/* To be called before a copy: its chunks count in this quota. NULL, the default: no quota. */
void ibx_staging_set_quota(struct ibx_staging *staging, struct ibx_quota *quota);
/* Copies wait for the turns of this session. NULL, the default: they do not wait for turns. */
void ibx_staging_set_turn(struct ibx_staging *staging, struct ibx_turn *turn);
/* Before a copy: bytes of a plain copy in one chunk, at most and by default IBX_PINNED_CHUNK. */
void ibx_staging_set_chunk(struct ibx_staging *staging, size_t bytes);

/* Takes chunks for a copy of `bytes`. False: the pool stayed empty, or the quota used up, for 50
 * ms, and the caller has to copy in another way. */
bool ibx_staging_begin(struct ibx_staging *staging, uint64_t bytes);
/* How many chunks the copy has, and the number in the pool of the chunk of a slot. */
unsigned ibx_staging_chunks(const struct ibx_staging *staging);
unsigned ibx_staging_chunk(const struct ibx_staging *staging, unsigned slot);
/* Gives the chunks back, after a copy or instead of one. Waits for DMA in flight. Not chunks of a
 * copy whose stream the client has begun to capture meanwhile: its graph may use them at any time,
 * so they are nobody's any more, and stay in the quota. */
void ibx_staging_end(struct ibx_staging *staging);

/* To be called after begin: a whole copy to the device. With wire->open, only the number of bytes
 * of `copy` is used before wire->open has set the device's side. */
int ibx_staging_to_device(struct ibx_staging *staging, const struct ibx_staging_wire *wire,
                          const struct ibx_gpu_copy *copy);

/* To be called after begin: starts DMA and waits for the first chunk, so that a bad address or an
 * earlier error of the stream is returned here; so is IBX_STAGING_OVERDUE. With `ahead` DMA starts
 * into all chunks, otherwise into the first only, and into the others during ibx_staging_deliver().
 */
int ibx_staging_from_device(struct ibx_staging *staging, const struct ibx_gpu_copy *copy,
                            bool ahead);
/* Whether copies that were overdue have not been made yet. Then a second context of the device
 * makes copies that are alone, if there is one. */
bool ibx_staging_has_overdue(struct ibx_staging *staging);
/* Moves the next `n` bytes; returns when they have arrived. The wire's offsets count from the first
 * byte of this call. -ERANGE: the copy has fewer. */
int ibx_staging_deliver(struct ibx_staging *staging, const struct ibx_staging_wire *wire,
                        uint64_t n);
/* Copies the next `n` bytes of a plain copy straight into pinned memory `to`, without the wire;
 * what the chunks already have of these bytes is not used. */
int ibx_staging_deliver_straight(struct ibx_staging *staging, void *to, uint64_t n);

/* Waits for the work that the stream has, and returns its error. Needs no chunks. */
int ibx_staging_settle(struct ibx_staging *staging, void *stream);
/* To be called before an asynchronous copy of `n` bytes without rows, from pinned memory to the
 * device: has the driver read them in the order of the stream. Needs no chunks. 0 or a CUresult. */
int ibx_staging_put_behind(struct ibx_staging *staging, void *stream, uint64_t n);
/* A whole copy straight between the device and pinned memory `host`, which has all bytes of the
 * host's side. Needs no chunks. */
int ibx_staging_straight(struct ibx_staging *staging, void *host, const struct ibx_gpu_copy *copy,
                         bool to_device);
/* A straight copy from the device that one call begins and another waits for; between the two, one
 * more copy may be begun. Only if ibx_staging_may_begin(): the copy is plain, and no other session
 * copies. If either call returns an error, the copy has ended; the second one also fails if the
 * context is gone. */
struct ibx_staging_begun {
    void *event;         /* after the copy; NULL: it was destroyed with its context */
    unsigned generation; /* ibx_staging.generation when the copy was begun */
};
bool ibx_staging_may_begin(struct ibx_staging *staging, const struct ibx_gpu_copy *copy);
int ibx_staging_begin_straight(struct ibx_staging *staging, void *host,
                               const struct ibx_gpu_copy *copy, struct ibx_staging_begun *begun);
int ibx_staging_end_straight(struct ibx_staging *staging, struct ibx_staging_begun *begun);
/* A plain straight copy that is not waited for. While other sessions make short copies, the GPU is
 * given two pieces of the copy at a time, so that the short ones come in between, and the call
 * returns once the GPU has the last piece. That limit does not hold for a copy behind other work of
 * its stream. */
int ibx_staging_leave(struct ibx_staging *staging, void *host, const struct ibx_gpu_copy *copy,
                      bool to_device);

#endif
