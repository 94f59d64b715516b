/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by staging.c, which copies through chunks, unstaged.c, which does without,
 * overdue_copies.c, unawaited_copies.c, and lent_chunks.c. staging.c asks the others whether a copy
 * is theirs, and they make it by the steps of staging.c. */
#ifndef IBX_GPUDIRECT_STAGING_INTERNAL_H
#define IBX_GPUDIRECT_STAGING_INTERNAL_H

#include "common/state_machine.h"
#include "gpudirect/staging.h"
#include "gpudirect/completion_word.h"

#include <stdatomic.h>

#define IBX_STAGING_AT_ONCE 2u /* pieces of a straight copy given to the GPU at a time */
#define IBX_STAGING_GONE    IBX_CUDA_CONTEXT_IS_DESTROYED

/*
 * A slot holds one chunk of the current copy.
 *
 * state machine: staging slot
 *   [*] -> FREE -> MOVING -> FILLED -> DMA -> FREE -> [*]   to the device
 *   FREE -> DMA -> FILLED -> MOVING -> FILLED -> FREE       from the device, by one or more moves
 *   MOVING -> FREE                                          the copy has failed
 *   DMA -> FREE                                             an overdue copy has the chunk now
 *   FILLED -> FREE                                          the bytes were left elsewhere
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

/* A chunk that the GPU uses after the call (lent_chunks.c): an event is behind each of its copies,
 * which end in their order. */
struct ibx_lent_chunk {
    struct ibx_lent_chunk *next;
    const struct ibx_cuda *cuda;
    void *context; /* of the events */
    struct ibx_quota *quota;
    atomic_uint *taken; /* a number of chunks that has this one, too; or NULL */
    unsigned forgets;   /* how often contexts had been forgotten when this one was there */
    unsigned chunk;
    size_t used;                   /* bytes */
    unsigned copies, over, events; /* made from here; done, from the first on; that exist */
    bool kept; /* for good: a graph of the context may use it, or nobody knows its events */
    void *event[];
};

/* Bytes of copies that are not waited for (unawaited_copies.c). A staging has at most so many
 * chunks of them, and one has the bytes of at most so many copies. */
#define IBX_UNAWAITED_CHUNKS 4u
#define IBX_UNAWAITED_COPIES 256u

struct ibx_staging {
    const struct ibx_cuda *cuda;
    void *context; /* of the events */
    unsigned events;
    void *begun_events[IBX_STAGING_AT_ONCE]; /* of copies that were begun, in turn */
    unsigned begun_ready, begun_next;        /* how many exist; which one is used next */
    unsigned open;                           /* copies that were begun and not ended */
    unsigned generation;                     /* counts how often begun_events were dropped */
    void *before;                            /* an event before a copy; NULL: there is none yet */
    struct ibx_word *word;                   /* of the events' context, or NULL */
    bool wordless;                           /* no word could be had in this context */
    unsigned count;                          /* slots with a chunk */
    size_t chunk;                            /* bytes of a plain copy in one of them */
    struct ibx_quota *quota;                 /* in which its chunks count, or NULL */
    struct ibx_turn *turn;                   /* for whose turns its copies wait, or NULL */
    struct ibx_staging_slot slots[IBX_STAGING_DEPTH];

    struct ibx_gpu_copy copy;
    bool captured;         /* the client has begun to capture the stream of the chunks' copy */
    bool gone;             /* its context, since the copy began: chunks were not filled or read */
    uint64_t total, begun; /* bytes of the copy; of these, how many have been given a slot */
    size_t step;           /* bytes of one slot */
    enum ibx_turn_company company;
    unsigned moving;    /* slots in that state */
    unsigned current;   /* from the device: the slot whose bytes are moved next */
    unsigned refill;    /* the slot that takes the next piece once it is empty */
    unsigned fetched;   /* from the device: slots that have had a piece */
    uint64_t delivered; /* bytes delivered, through chunks or straight */
    uint32_t serial;

    unsigned left; /* counts pieces of ibx_staging_leave() that have a slot's event behind them */
    void *left_stream;

    struct ibx_lent_chunk *unawaited; /* with copies that are not waited for */
    struct ibx_lent_chunk *overdue;   /* each with one copy, which the GPU has and does not begin */
    bool aside; /* another context makes the current copy: streams that wait keep it waiting here */
};

/* Whether the copy is one row without padding. */
static inline bool ibx_gpu_copy_is_plain(const struct ibx_gpu_copy *copy)
{
    return copy->height == 1 && copy->host_pitch <= copy->width;
}

/* Makes `copy` the current copy, of which nothing is begun. */
void ibx_staging_set_copy(struct ibx_staging *staging, const struct ibx_gpu_copy *copy);
/* Lets the current copy continue at byte `at`, with no slot in use. */
void ibx_staging_restart_at(struct ibx_staging *staging, uint64_t at);

/* Creates the missing events of the slots, at least IBX_STAGING_AT_ONCE, in the current context. 0
 * or a CUresult. */
int ibx_staging_events_ready(struct ibx_staging *staging);
/* Creates those of begun_events. */
int ibx_staging_begun_events_ready(struct ibx_staging *staging);

/* Creates `before`. */
int ibx_staging_before_ready(struct ibx_staging *staging);

/* Waits for this session's turn to have the GPU copy `length` bytes of the host's side. */
void ibx_staging_take_turn(struct ibx_staging *staging, size_t length);
/* Records an event in the stream. CUDA copies also in a stream of another device, where an event of
 * this context cannot be recorded: then this waits for that stream. 0 or a CUresult. */
int ibx_staging_record(struct ibx_staging *staging, void *event, void *stream);
/* Starts to copy `length` bytes, from byte `at` of the copy on, between `host` and the device, and
 * records `event` (unless NULL) after it. Sets `*begun` once the copy is begun. 0 or a CUresult. */
int ibx_staging_dma(struct ibx_staging *staging, void *host, uint64_t at, size_t length,
                    bool to_device, void *event, bool *begun);

/* unstaged.c. Whether a word (completion_word.h) may tell the end of the current copy. The events
 * must be ready. */
bool ibx_staging_has_word(struct ibx_staging *staging);
/* unstaged.c. Copies the first `length` bytes of the current copy from the device to pinned memory
 * and waits for them by a word. 0 or a CUresult. */
int ibx_staging_by_word(struct ibx_staging *staging, void *host, size_t length);

/* overdue_copies.c. Waits for the first slot of a copy that comes after nothing. 0; or a CUresult;
 * or IBX_STAGING_OVERDUE: the slots have no chunks any more, and there are overdue copies. */
int ibx_staging_await_first(struct ibx_staging *staging);
/* The same for the current slot, when nothing of the copy is moving. IBX_STAGING_OVERDUE: the copy
 * has fewer slots, which are free, goes on where this one began, and another context makes it. */
int ibx_staging_await_current(struct ibx_staging *staging);
/* Has another context make a slot's piece of the current copy. 0, a CUresult (it was not made), or
 * a negative errno. */
int ibx_staging_dma_aside(struct ibx_staging *staging, struct ibx_staging_slot *slot,
                          bool to_device);
/* Before filled slots of a copy to the device that comes after nothing are given to the GPU: waits
 * until it makes such copies, or has another context make these (`aside`). 0 or a CUresult. */
int ibx_staging_find_way(struct ibx_staging *staging);
/* Copies `n` bytes that are at the beginning of a chunk to the device, in the queues for copies. */
int ibx_staging_to_device_alone(struct ibx_staging *staging, uint8_t *chunk, uint64_t to, size_t n);
/* Of a session that ends: has slots under way of a copy that comes after nothing be overdue. */
void ibx_staging_leave_slots(struct ibx_staging *staging);
/* Waits for overdue copies, but not for ever: chunks of the others are left to the GPU. */
void ibx_staging_overdue_end(struct ibx_staging *staging);

/* lent_chunks.c. A chunk for so many copies of the staging, in its context; its number is set
 * later, and until then it may be freed by free(). NULL: there is no memory. */
struct ibx_lent_chunk *ibx_lent_chunk_new(const struct ibx_staging *staging, unsigned copies);
/* Whether the GPU has made all copies, or never makes them. */
bool ibx_lent_chunk_is_over(struct ibx_lent_chunk *chunk);
/* Gives it back to the pool; with its events, unless they are gone with their context. */
void ibx_lent_chunk_free(struct ibx_lent_chunk *chunk, bool events);
/* Frees those of the current context that are over. */
void ibx_lent_chunks_free_over(const struct ibx_cuda *cuda, struct ibx_lent_chunk **list);
/* As ibx_staging_forget(), for these. */
void ibx_lent_chunks_forget(struct ibx_lent_chunk **list, const void *context);
/* Leaves all to the GPU; gives those back at once whose context is gone. How many it has left. */
unsigned ibx_lent_chunks_abandon(struct ibx_lent_chunk **list);
/* Frees those that were left, in the current context, and are over. */
void ibx_lent_chunks_take_back(const struct ibx_cuda *cuda);

/* unawaited_copies.c. Copies n bytes, from byte `at` of the current copy on, to the device, and
 * does not wait for that; `bytes` need not last. *rc: 0 or a CUresult. False: there is no room, and
 * nothing was done. */
bool ibx_staging_copy_unawaited(struct ibx_staging *staging, const void *bytes, uint64_t at,
                                size_t n, int *rc);
/* Before the end: does not wait for them. */
void ibx_staging_unawaited_end(struct ibx_staging *staging);

/* Waits for the GPU, so that chunks and slots can be used again. */
void ibx_staging_reset_slots(struct ibx_staging *staging);
/* After an error, which may be sticky in the events' context: waits for the GPU and drops the
 * events, except those of copies that were begun. Returns `rc`. */
int ibx_staging_stop_gpu(struct ibx_staging *staging, int rc);

#endif
