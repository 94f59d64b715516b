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

#define IBX_CLIENT_PINS 64u

struct ibx_client_pin {
    uint8_t *base; /* NULL: a free place */
    size_t length;
    uint64_t id;
    void *context; /* in which it was pinned */
    bool refused;  /* CUDA does not pin it: not tried again under this id */
    bool left;     /* copies may be under way to or from it */
    uint64_t used; /* the higher the later */
};

struct ibx_client_pins {
    struct ibx_client_pin pins[IBX_CLIENT_PINS];
    size_t bytes, bytes_max; /* pinned now; at most */
    uint64_t clock;
};

/* Whether [base, base + length), the allocation `id`, is pinned in the calling thread's context,
 * now if it was not. False, and a sentence when it is CUDA that refuses, the first time. */
bool ibx_client_pin(struct ibx_client_pins *pins, const struct ibx_cuda *cuda, void *base,
                    size_t length, uint64_t id, bool writable, struct ibx_error *err);
/* A copy to or from the allocation that is pinned at `base` is about to be left under way in a
 * stream: it is waited for before the allocation is let go. False: it must not be, for it would be
 * another context's, which need not be the current one. */
bool ibx_client_pin_leave(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                          const void *base, void *stream);
/* Lets go of everything; before the mappings end. `cuda` may be NULL when there is nothing. */
void ibx_client_pins_drop(struct ibx_client_pins *pins, const struct ibx_cuda *cuda);

#endif
