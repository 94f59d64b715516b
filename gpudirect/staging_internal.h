/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by staging.c, which copies through chunks, and unstaged.c, which does without. */
#ifndef IBX_GPUDIRECT_STAGING_INTERNAL_H
#define IBX_GPUDIRECT_STAGING_INTERNAL_H

#include "common/state_machine.h"
#include "gpudirect/staging.h"
#include "gpudirect/word.h"

#define IBX_STAGING_AT_ONCE 2u /* pieces of a straight copy that the GPU has: an event each */

/*
 * A slot holds one chunk of the copy in hand.
 *
 * state machine: staging slot
 *   [*] -> FREE -> MOVING -> FILLED -> DMA -> FREE -> [*]   to the device
 *   FREE -> DMA -> FILLED -> MOVING -> FILLED -> FREE       from the device, by one or more moves
 *   MOVING -> FREE                                          the copy has failed
 */
enum slot_state { SLOT_FREE, SLOT_MOVING, SLOT_FILLED, SLOT_DMA };

struct ibx_staging_slot {
    struct ibx_state_machine state;
    unsigned chunk;
    void *event;     /* after the slot's last DMA */
    uint64_t at;     /* of its first byte, in the host's bytes */
    size_t length;   /* bytes of payload */
    uint8_t *next;   /* from the device: the first byte not yet moved */
    size_t left;     /* bytes not yet moved */
    uint32_t serial; /* of its DMA */
};

struct ibx_staging {
    const struct ibx_cuda *cuda;
    void *context; /* of the events */
    unsigned events;
    void *begun_events[IBX_STAGING_AT_ONCE]; /* of copies that were begun, in turn */
    unsigned begun_ready, begun_next;        /* events there are; the next one's number */
    unsigned open;                           /* copies that were begun and not ended */
    unsigned generation;                     /* counts how often those events went */
    struct ibx_word *word;                   /* of the events' context, or NULL */
    bool wordless;                           /* there is none for it */
    unsigned count;                          /* slots with a chunk */
    size_t chunk;                            /* bytes of a plain copy in one of them */
    struct ibx_quota *quota;                 /* that its chunks count in, or NULL */
    struct ibx_turn *turn;                   /* whose turn its copies wait for, or NULL */
    struct ibx_staging_slot slots[IBX_STAGING_DEPTH];

    struct ibx_gpu_copy copy;
    uint64_t total, begun; /* bytes of it, and how many have or had a slot */
    size_t step;           /* bytes of one slot */
    enum ibx_turn_company company;
    unsigned moving;    /* slots in that state */
    unsigned current;   /* from the device: the slot whose bytes are moved next */
    unsigned refill;    /* the slot that takes the next piece once it is empty */
    unsigned fetched;   /* slots that the GPU has been given at all */
    uint64_t delivered; /* bytes, of which the last call may have been straight */
    uint32_t serial;

    unsigned left; /* pieces begun of copies that were not waited for, behind slots' events */
    void *left_stream;
};

/* One row, and nothing behind it. */
static inline bool ibx_gpu_copy_is_plain(const struct ibx_gpu_copy *copy)
{
    return copy->height == 1 && copy->host_pitch <= copy->width;
}

/* The copy in hand is that one, of which nothing was begun; it continues at byte `at` with no slot
 * in use. */
void ibx_staging_set_copy(struct ibx_staging *staging, const struct ibx_gpu_copy *copy);
void ibx_staging_restart_at(struct ibx_staging *staging, uint64_t at);

/* One event a slot, at least IBX_STAGING_AT_ONCE, in the current context. 0 or a CUresult. */
int ibx_staging_events_ready(struct ibx_staging *staging);
/* The same for begun_events. */
int ibx_staging_begun_events_ready(struct ibx_staging *staging);

/* Waits until it is this session's turn to have the GPU copy so many bytes of the host's side. */
void ibx_staging_take_turn(struct ibx_staging *staging, size_t length);
/* Puts an event behind what the stream has. No event of this context can be put into a stream of
 * another device, in which CUDA copies, too: then what was begun there ends here. 0 or a CUresult.
 */
int ibx_staging_record(struct ibx_staging *staging, void *event, void *stream);
/* Starts to copy between `host` and the device `length` bytes from byte `at` on, with an event (if
 * any) behind it. `*begun` is set once a copy was begun. 0 or a CUresult. */
int ibx_staging_dma(struct ibx_staging *staging, void *host, uint64_t at, size_t length,
                    bool to_device, void *event, bool *begun);

/* unstaged.c. Whether the end of the copy in hand may be seen by a word (word.h); the events are
 * ready. And the first `length` bytes of it from the device into pinned memory, so; waits for them.
 * 0 or a CUresult. */
bool ibx_staging_has_word(struct ibx_staging *staging);
int ibx_staging_by_word(struct ibx_staging *staging, void *host, size_t length);

/* Waits for the GPU, so that chunks and slots can be used again. */
void ibx_staging_reset_slots(struct ibx_staging *staging);
/* After an error, which may be one of the events' context; returns `rc`. What was begun keeps its
 * event. */
int ibx_staging_stop_gpu(struct ibx_staging *staging, int rc);

#endif
