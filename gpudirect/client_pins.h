/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A client's memory that this process has mapped as well, pinned so that the GPU
 * reads and writes it in place. Whole allocations, each under an id that no other
 * one ever has: an allocation that the client gave back and made anew has another
 * id, and what was pinned before is let go then, or for want of room.
 *
 * A cache belongs to one connection and its thread.
 */
#ifndef IBX_GPUDIRECT_CLIENT_PINS_H
#define IBX_GPUDIRECT_CLIENT_PINS_H

#include "gpudirect/cuda.h"

#include <stdbool.h>

#define IBX_CLIENT_PINS   64u
#define IBX_CLIENT_TRAILS 64u /* no more than there are bits in a uint64_t */

struct ibx_client_pin {
    uint8_t *base; /* NULL: a free place */
    size_t length;
    uint64_t id;
    void *context; /* in which it was pinned */
    bool refused;  /* CUDA does not pin it: not tried again under this id */
    uint64_t left; /* a bit for each trail of copies that may be under way to or from it */
    uint64_t used; /* the higher the later */
};

/* The copies that were left in one stream, by an event behind the last one. That waits for nothing
 * else: neither for other clients' work nor for what comes later in the stream, which may have been
 * destroyed meanwhile. Another one has its handle only when its work is done, for until then it is
 * there (cuStreamDestroy() in the CUDA Driver API's reference). */
struct ibx_client_trail {
    void *event; /* NULL: a place that was never used */
    void *context, *stream;
};

struct ibx_client_pins {
    struct ibx_client_pin pins[IBX_CLIENT_PINS];
    size_t bytes, bytes_max; /* pinned now; at most */
    uint64_t clock;
    struct ibx_client_trail trails[IBX_CLIENT_TRAILS];
    unsigned pin, trail; /* of the copy that is about to be left */
};

/* Whether [base, base + length), the allocation `id`, is pinned in the calling thread's context,
 * now if it was not. False, and a sentence when it is CUDA that refuses, the first time. */
bool ibx_client_pin(struct ibx_client_pins *pins, const struct ibx_cuda *cuda, void *base,
                    size_t length, uint64_t id, bool writable, struct ibx_error *err);
/* A copy to or from the allocation that is pinned at `base` is about to be left under way in a
 * stream. False: it must not be, for no event of the current context can be put behind it, or too
 * many streams have such copies. */
bool ibx_client_pin_leave(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                          const void *base, void *stream);
/* That copy is in the stream: from now on it is waited for before the allocation is let go. */
void ibx_client_pin_left(struct ibx_client_pins *pins, const struct ibx_cuda *cuda);
/* Waits for all copies that were left. */
void ibx_client_pins_settle(struct ibx_client_pins *pins, const struct ibx_cuda *cuda);
/* A context was reset or destroyed, and took streams and events along. NULL: it may have been any.
 */
void ibx_client_pins_forget(struct ibx_client_pins *pins, const void *context);
/* Before that: waits as above, and lets go of all events. */
void ibx_client_pins_drop_events(struct ibx_client_pins *pins, const struct ibx_cuda *cuda);
/* Lets go of everything; before the mappings end. `cuda` may be NULL when there is nothing. */
void ibx_client_pins_drop(struct ibx_client_pins *pins, const struct ibx_cuda *cuda);

#endif
