/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A client's memory that this process has mapped too, pinned so that the GPU reads and writes it in
 * place. An entry is a whole allocation under an id, which stands for its pages: other pages never
 * have it. Memory that was freed is unpinned when other pages appear at its place, or an allocation
 * that goes beyond it, or when room is needed. A shorter allocation of the same pages uses its pin.
 *
 * Unpinning waits for all work of the context, and a kernel may wait for the very program that
 * would wait here. So while work is under way, nothing is unpinned for an allocation. A longer one
 * of the same pages keeps the pins that are there, and what is between them is pinned, too: then
 * its memory is pinned in parts, and CUDA makes no copy beyond one part. Copies of other memory
 * take other paths until one finds that the work is over.
 *
 * A copy may still run when its call returns. A stream fence, an event behind the last such copy of
 * a stream, tells when the memory may be unpinned.
 *
 * A struct ibx_client_pins belongs to one connection and its thread.
 */
#ifndef IBX_GPUDIRECT_CLIENT_PINS_H
#define IBX_GPUDIRECT_CLIENT_PINS_H

#include "common/quota.h"
#include "common/state_machine.h"
#include "gpudirect/cuda.h"

#include <stdbool.h>

#define IBX_CLIENT_PINS   4096u
#define IBX_STREAM_FENCES 64u /* at most the bits of a uint64_t */

/*
 * An entry.
 *
 * state machine: client pin
 *   [*] -> PINNED -> [*]
 *   [*] -> REFUSED -> [*]   CUDA does not pin it: not tried again under this id
 *   PINNED -> REFUSED       a reset has unpinned it, and CUDA does not pin it again
 */
enum ibx_client_pin_state { IBX_PIN_PINNED, IBX_PIN_REFUSED };

struct ibx_client_pin {
    uint8_t *base;
    size_t length;
    uint64_t id;
    struct ibx_state_machine state;
    void *context;   /* in which it was pinned */
    uint64_t fences; /* a bit for each fence behind copies that may still use this memory */
    uint64_t used;   /* larger is later */
};

/* A fence waits for its own stream only, up to the last copy. The stream may have been destroyed
 * since: cuStreamDestroy() keeps a stream until its work is done, so no other stream has the same
 * handle before the fence is over. */
struct ibx_stream_fence {
    void *event; /* NULL: an entry that was never used */
    void *context, *stream;
};

struct ibx_client_pins {
    struct ibx_client_pin *pins; /* by address; IBX_CLIENT_PINS at most */
    unsigned count, room;        /* of `pins` in use; that there is memory for */
    size_t bytes, bytes_max;     /* pinned now; at most */
    struct ibx_quota *quota;     /* also limits the bytes; NULL: no quota */
    uint64_t clock;
    struct ibx_stream_fence fences[IBX_STREAM_FENCES];
    unsigned pin;   /* found last */
    unsigned fence; /* chosen by ibx_client_pin_fence() for ibx_client_pin_fence_record() */
    /* NULL, or called before and after a driver call that waits for all work of the context and
     * may block other callers of the driver meanwhile. */
    void (*waits)(void *owner, bool begins);
    /* NULL, or whether work of the client's is under way; with `others` whether any may be. */
    bool (*works)(void *owner, bool others);
    void *owner;
    unsigned in_parts; /* how often memory was pinned in parts already */
    bool put_off;      /* the latest memory is not pinned, or made no room, because of such work */
};

/* Whether the client has touched all of its memory, as far as mincore(2) tells. */
bool ibx_client_pin_is_whole(uint8_t *base, size_t length);
/* Pins [base, base + length), the allocation `id`, in the calling thread's context unless it is
 * pinned already. True: it is pinned. False: it exceeds bytes_max or the quota, has pages that were
 * never touched, CUDA refuses to pin it, or other memory would have to be unpinned while the client
 * has work under way. `err` is not set in the last case, nor if it exceeds bytes_max, nor when CUDA
 * has refused this memory before. */
bool ibx_client_pin(struct ibx_client_pins *pins, const struct ibx_cuda *cuda, void *base,
                    size_t length, uint64_t id, bool writable, struct ibx_error *err);
/* Bytes from the address to the end of the part that was pinned with it. */
size_t ibx_client_pin_rest(struct ibx_client_pins *pins, const void *address);
/* Before a copy that may outlive its call, to or from pinned memory with that address: chooses the
 * stream's fence. False: the caller has to wait for the copy, since the current context has no
 * event for this stream or all fences are in use. */
bool ibx_client_pin_fence(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                          const void *base, void *stream);
/* After that copy, of n bytes from that address on, was put into the stream: these stay pinned
 * until the fence is over. */
void ibx_client_pin_fence_record(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                                 const void *address, size_t n);
/* Waits for all fences. */
void ibx_client_pins_wait(struct ibx_client_pins *pins, const struct ibx_cuda *cuda);
/* To be called after `context` was reset or destroyed with its streams and events; NULL: any
 * context may have been. */
void ibx_client_pins_forget(struct ibx_client_pins *pins, const void *context);
/* Before a reset: waits for all fences and destroys their events. */
void ibx_client_pins_drop_fences(struct ibx_client_pins *pins, const struct ibx_cuda *cuda);
/* Gives the quota's room to other memory of the client: unpins the memory that was not used for
 * longest, until n bytes more may be taken. False: that is more than this connection has pinned, or
 * unpinning would wait, and `put_off` says so. */
bool ibx_client_pins_yield(struct ibx_client_pins *pins, const struct ibx_cuda *cuda, uint64_t n);
/* Unpins everything, before the mappings end. `cuda` may be NULL when nothing is pinned. */
void ibx_client_pins_drop(struct ibx_client_pins *pins, const struct ibx_cuda *cuda);

#endif
