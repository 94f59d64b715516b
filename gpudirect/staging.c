/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/staging.h"

#include "gpudirect/copy_threads.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define STEP_UNIT    (64u << 10) /* short copies are cut into multiples of it */
#define TAKE_WAIT_MS 50u         /* for a chunk, when all are taken */

/*
 * A chunk of the copy in hand.
 *
 *   to the device     FREE --move--> MOVING --arrived--> FILLED --DMA--> DMA --event--> FREE
 *   from the device   FREE --DMA--> DMA --event--> FILLED --move--> MOVING --arrived--> FILLED, or
 *                     FREE when its last byte has been moved
 */
enum slot_state { SLOT_FREE, SLOT_MOVING, SLOT_FILLED, SLOT_DMA };

struct slot {
    enum slot_state state;
    unsigned chunk;
    void *event;     /* after the slot's last DMA */
    uint64_t at;     /* of its first byte, in the host's bytes */
    size_t length;   /* bytes of payload */
    uint8_t *next;   /* from the device: first byte not yet moved ... */
    size_t left;     /* ... and how many there are */
    uint32_t serial; /* of its DMA */
};

struct ibx_staging {
    const struct ibx_cuda *cuda;
    void *context; /* in which the events are */
    unsigned events;
    unsigned count; /* slots with a chunk */
    size_t chunk;   /* bytes of a plain copy in one of them */
    struct slot slots[IBX_STAGING_DEPTH];

    struct ibx_gpu_copy copy;
    uint64_t total, begun; /* bytes of it, and how many have a slot or had one */
    size_t step;           /* bytes of one slot */
    unsigned moving;       /* slots in that state */
    unsigned current;      /* from the device: the slot whose bytes are moved next ... */
    unsigned refill;       /* ... and the one that takes the next piece, once it is empty */
    unsigned fetched;      /* slots that have been given to the GPU at all */
    uint64_t delivered;    /* bytes, of which the last call may have been straight */
    uint32_t serial;
};

/* ------------------------------------------------------------------------ sizes */

/* One row, and nothing behind it. */
static bool is_plain(const struct ibx_gpu_copy *copy)
{
    return copy->height == 1 && copy->host_pitch <= copy->width;
}

uint64_t ibx_gpu_copy_bytes(const struct ibx_gpu_copy *copy)
{
    return is_plain(copy) ? copy->width : copy->host_pitch * copy->height;
}

bool ibx_gpu_copy_fits(const struct ibx_gpu_copy *copy)
{
    return is_plain(copy) || copy->host_pitch <= IBX_PINNED_CHUNK;
}

/* Bytes of one chunk: an eighth of a short copy, so that its parts overlap too; whole rows. */
static size_t step_of(const struct ibx_staging *st, const struct ibx_gpu_copy *copy, uint64_t total)
{
    if (!is_plain(copy))
        return IBX_PINNED_CHUNK - IBX_PINNED_CHUNK % (size_t)copy->host_pitch;
    uint64_t part = total / IBX_STAGING_DEPTH / STEP_UNIT * STEP_UNIT;
    if (part < STEP_UNIT)
        part = STEP_UNIT;
    return part < st->chunk ? (size_t)part : st->chunk;
}

static void copy_set(struct ibx_staging *st, const struct ibx_gpu_copy *copy)
{
    st->copy = *copy;
    st->total = ibx_gpu_copy_bytes(copy);
    st->step = step_of(st, copy, st->total);
    st->begun = 0;
    st->current = st->refill = 0;
    st->fetched = 0;
    st->delivered = 0;
}

/* Where the next piece begins: with `spread` in groups of so many runs, of which each is a piece
 * ahead in turn. What is left for no whole group comes in order. */
static uint64_t next_at(const struct ibx_staging *st, unsigned spread)
{
    uint64_t run = IBX_COPY_THREADS_APART / st->step, group = run * spread,
             i = st->begun / st->step, in = i % group;
    if (spread < 2 || (i - in + group) * st->step > st->total)
        return st->begun;
    return (i - in + in % spread * run + in / spread) * st->step;
}

/* The next piece of the copy into a free slot. */
static void slot_begin(struct ibx_staging *st, struct slot *slot, unsigned spread)
{
    slot->at = next_at(st, spread);
    slot->length = st->total - slot->at < st->step ? (size_t)(st->total - slot->at) : st->step;
    st->begun += slot->length;
}

/* ------------------------------------------------------------------------- lanes */

int ibx_staging_create(const struct ibx_cuda *cuda, struct ibx_staging **staging,
                       struct ibx_error *err)
{
    struct ibx_staging *st = calloc(1, sizeof(*st));
    if (!st)
        return ibx_error_set(err, -ENOMEM, "no memory to stage copies");
    st->cuda = cuda;
    st->chunk = IBX_PINNED_CHUNK;
    *staging = st;
    return 0;
}

/* A context that is gone took its events along: all that is left is to forget them. */
void ibx_staging_drop_events(struct ibx_staging *st)
{
    const struct ibx_cuda *cuda = st->cuda;
    void *context = NULL, *popped = NULL;
    bool foreign = cuda->ctx_get_current(&context) || context != st->context;
    bool inside = st->events && (!foreign || !cuda->ctx_push_current(st->context));
    for (unsigned i = 0; inside && i < st->events; i++)
        cuda->event_destroy(st->slots[i].event);
    if (foreign && inside)
        cuda->ctx_pop_current(&popped);
    st->events = 0;
    st->context = NULL;
}

/* One event a slot, at least one, in the current context. 0 or a CUresult. */
static int events_ready(struct ibx_staging *st)
{
    unsigned wanted = st->count ? st->count : 1;
    void *context = NULL;
    int rc = st->cuda->ctx_get_current(&context);
    if (!rc && context != st->context) {
        ibx_staging_drop_events(st);
        st->context = context;
    }
    while (!rc && st->events < wanted) {
        rc = st->cuda->event_create(&st->slots[st->events].event, IBX_CUDA_EVENT_DISABLE_TIMING);
        st->events += !rc;
    }
    return rc;
}

void ibx_staging_forget(struct ibx_staging *st, const void *context)
{
    if (context && st->context != context)
        return;
    for (unsigned i = 0; i < st->count; i++) {
        if (st->slots[i].state == SLOT_DMA)
            st->slots[i].state = SLOT_FREE; /* it ended with the context */
    }
    st->events = 0;
    st->context = NULL;
}

void ibx_staging_destroy(struct ibx_staging *st)
{
    if (!st)
        return;
    ibx_staging_end(st);
    ibx_staging_drop_events(st);
    free(st);
}

void ibx_staging_set_chunk(struct ibx_staging *st, size_t bytes)
{
    st->chunk = bytes;
}

bool ibx_staging_begin(struct ibx_staging *st, uint64_t bytes)
{
    struct ibx_gpu_copy plain = {.width = bytes, .height = 1};
    size_t step = step_of(st, &plain, bytes);
    while (st->count < IBX_STAGING_DEPTH && (!st->count || st->count * (uint64_t)step < bytes)) {
        int chunk = ibx_pinned_take(st->count ? 0 : TAKE_WAIT_MS);
        if (chunk < 0)
            break;
        struct slot *slot = &st->slots[st->count++];
        slot->chunk = (unsigned)chunk;
        slot->state = SLOT_FREE;
    }
    return st->count;
}

unsigned ibx_staging_chunks(const struct ibx_staging *st)
{
    return st->count;
}

unsigned ibx_staging_chunk(const struct ibx_staging *st, unsigned slot)
{
    return st->slots[slot].chunk;
}

/* Nothing may be in flight when the lane, or a chunk, is used again: also when the copy ended since
 * its client captures a stream and waiting is forbidden to it. */
static void slots_free(struct ibx_staging *st)
{
    for (unsigned i = 0; i < st->count; i++) {
        if (st->slots[i].state == SLOT_DMA) {
            int mode = ibx_cuda_capture_relax(st->cuda);
            st->cuda->event_synchronize(st->slots[i].event);
            ibx_cuda_capture_restore(st->cuda, mode);
        }
        st->slots[i].state = SLOT_FREE;
    }
}

void ibx_staging_end(struct ibx_staging *st)
{
    slots_free(st);
    for (unsigned i = 0; i < st->count; i++)
        ibx_pinned_give(st->slots[i].chunk);
    st->count = 0;
    st->moving = 0;
}

/* --------------------------------------------------------------------------- DMA */

/* Bytes of the host's side, from `at` on, that lie at `host`. */
struct part {
    void *host;
    uint64_t at;
    size_t length;
};

/* 2D copies: the rows of a part. */
static int dma_rows(const struct ibx_staging *st, const struct part *part, bool to_device)
{
    const struct ibx_gpu_copy *copy = &st->copy;
    uint64_t device = copy->device + part->at / copy->host_pitch * copy->device_pitch;
    struct ibx_cuda_memcpy2d rows = {.width = copy->width,
                                     .height = part->length / copy->host_pitch};
    if (to_device) {
        rows.src_type = IBX_CUDA_MEMORY_HOST;
        rows.src_host = part->host;
        rows.src_pitch = copy->host_pitch;
        rows.dst_type = IBX_CUDA_MEMORY_DEVICE;
        rows.dst_device = device;
        rows.dst_pitch = copy->device_pitch;
    } else {
        rows.src_type = IBX_CUDA_MEMORY_DEVICE;
        rows.src_device = device;
        rows.src_pitch = copy->device_pitch;
        rows.dst_type = IBX_CUDA_MEMORY_HOST;
        rows.dst_host = part->host;
        rows.dst_pitch = copy->host_pitch;
        /* What lies between the rows travels too, and the chunk has had other users. */
        if (copy->host_pitch != copy->width)
            memset(part->host, 0, part->length);
    }
    return st->cuda->memcpy_2d_async(&rows, copy->stream);
}

static int dma_part(const struct ibx_staging *st, const struct part *part, bool to_device)
{
    const struct ibx_gpu_copy *copy = &st->copy;
    if (!is_plain(copy))
        return dma_rows(st, part, to_device);
    if (to_device)
        return st->cuda->memcpy_to_device_async(copy->device + part->at, part->host, part->length,
                                                copy->stream);
    return st->cuda->memcpy_from_device_async(part->host, copy->device + part->at, part->length,
                                              copy->stream);
}

/* A stream of another device takes copies but no event of ours, and no client that captures may
 * wait for one: the copy is under way. */
static void stream_wait(const struct ibx_staging *st, void *stream)
{
    int mode = ibx_cuda_capture_relax(st->cuda);
    st->cuda->stream_synchronize(stream);
    ibx_cuda_capture_restore(st->cuda, mode);
}

/* Gives a slot to the GPU. 0 or a CUresult. */
static int dma_start(struct ibx_staging *st, struct slot *slot, bool to_device)
{
    const struct ibx_gpu_copy *copy = &st->copy;
    struct part part = {ibx_pinned_payload(slot->chunk), slot->at, slot->length};
    int rc = dma_part(st, &part, to_device);
    if (rc)
        return rc;
    rc = st->cuda->event_record(slot->event, copy->stream);
    if (rc) {
        stream_wait(st, copy->stream);
        return rc;
    }
    slot->state = SLOT_DMA;
    slot->serial = ++st->serial;
    return 0;
}

/* The slot whose DMA began first (or last), NULL: none is under way. */
static struct slot *dma_pick(struct ibx_staging *st, bool last)
{
    struct slot *found = NULL;
    for (unsigned i = 0; i < st->count; i++) {
        struct slot *slot = &st->slots[i];
        if (slot->state == SLOT_DMA &&
            (!found || (slot->serial - found->serial < UINT32_MAX / 2) == last))
            found = slot;
    }
    return found;
}

/* After an error, which may be one of the events' context. */
static int stop_gpu(struct ibx_staging *st, int rc)
{
    slots_free(st);
    ibx_staging_drop_events(st);
    return rc;
}

/* -------------------------------------------------------------------------- wire */

static int move_start(struct ibx_staging *st, const struct ibx_staging_wire *wire, unsigned i,
                      void *local, uint64_t offset, size_t n)
{
    int rc = wire->move(wire->context, i, st->slots[i].chunk, local, offset, n);
    if (rc)
        return rc;
    st->slots[i].state = SLOT_MOVING;
    st->moving++;
    return 0;
}

static int take_arrivals(struct ibx_staging *st, const struct ibx_staging_wire *wire, bool wait)
{
    uint32_t slots = 0;
    int rc = wire->arrived(wire->context, wait, &slots);
    if (rc)
        return rc;
    for (unsigned i = 0; i < st->count; i++) {
        if (!(slots & 1u << i) || st->slots[i].state != SLOT_MOVING)
            continue;
        st->slots[i].state = SLOT_FILLED;
        st->moving--;
    }
    return 0;
}

/* Waits for moves under way, then for DMA; returns `refused` unless the wire fails as well. */
static int stop_all(struct ibx_staging *st, const struct ibx_staging_wire *wire, int refused)
{
    while (st->moving) {
        int rc = take_arrivals(st, wire, true);
        if (rc)
            return rc;
    }
    if (refused != IBX_STAGING_REFUSED)
        return stop_gpu(st, refused);
    slots_free(st);
    return refused;
}

/* --------------------------------------------------------------------- to the device */

/* Takes back slots that the GPU is done with; `wait`: at least one. */
static int free_slots(struct ibx_staging *st, bool wait)
{
    struct slot *oldest;
    while ((oldest = dma_pick(st, false))) {
        int rc = wait ? st->cuda->event_synchronize(oldest->event)
                      : st->cuda->event_query(oldest->event);
        if (rc)
            return rc == IBX_CUDA_NOT_READY ? 0 : rc;
        oldest->state = SLOT_FREE;
        wait = false;
    }
    return 0;
}

static int fill_slots(struct ibx_staging *st, const struct ibx_staging_wire *wire)
{
    for (unsigned i = 0; i < st->count && st->begun < st->total; i++) {
        struct slot *slot = &st->slots[i];
        if (slot->state != SLOT_FREE)
            continue;
        slot_begin(st, slot, wire->spread);
        int rc = move_start(st, wire, i, ibx_pinned_payload(slot->chunk), slot->at, slot->length);
        if (rc)
            return rc;
    }
    return 0;
}

/* 0 or a CUresult; counts the bytes given to the GPU. */
static int empty_slots(struct ibx_staging *st, uint64_t *given)
{
    int rc = 0;
    for (unsigned i = 0; i < st->count && !rc; i++) {
        struct slot *slot = &st->slots[i];
        if (slot->state != SLOT_FILLED)
            continue;
        rc = dma_start(st, slot, true);
        *given += slot->length;
    }
    return rc;
}

int ibx_staging_to_device(struct ibx_staging *st, const struct ibx_staging_wire *wire,
                          const struct ibx_gpu_copy *copy)
{
    copy_set(st, copy);
    int rc = events_ready(st);
    if (rc)
        return stop_gpu(st, rc);
    bool open = !wire->open;
    uint64_t given = 0;
    while (given < st->total) {
        rc = fill_slots(st, wire);
        if (rc)
            return rc;
        if (st->moving || !open) {
            rc = take_arrivals(st, wire, true);
            if (rc)
                return rc;
        }
        if (!open) {
            rc = wire->open(wire->context, &st->copy);
            if (rc < 0)
                return rc;
            if (rc > 1)
                return stop_all(st, wire, rc);
            open = !rc;
        }
        rc = open ? empty_slots(st, &given) : 0;
        if (!rc)
            rc = free_slots(st, !st->moving && given < st->total && open);
        if (rc)
            return stop_all(st, wire, rc);
    }
    struct slot *last = dma_pick(st, true);
    rc = last ? st->cuda->event_synchronize(last->event) : 0;
    if (rc)
        return stop_gpu(st, rc);
    for (unsigned i = 0; i < st->count; i++)
        st->slots[i].state = SLOT_FREE;
    return 0;
}

/* ------------------------------------------------------------------- from the device */

/* The next piece of the copy on its way into a free slot. 0 or a CUresult. */
static int fetch(struct ibx_staging *st, struct slot *slot)
{
    if (st->begun == st->total)
        return 0;
    slot_begin(st, slot, 1);
    slot->next = ibx_pinned_payload(slot->chunk);
    slot->left = slot->length;
    return dma_start(st, slot, false);
}

/* The slots that have had no piece yet, in their order; up to `count` of them. */
static int fetch_first(struct ibx_staging *st, unsigned count)
{
    int rc = 0;
    while (st->fetched < count && !rc)
        rc = fetch(st, &st->slots[st->fetched++]);
    return rc;
}

int ibx_staging_from_device(struct ibx_staging *st, const struct ibx_gpu_copy *copy, bool ahead)
{
    copy_set(st, copy);
    int rc = events_ready(st);
    if (!rc)
        rc = fetch_first(st, ahead ? st->count : 1);
    struct slot *first = &st->slots[0];
    if (!rc)
        rc = st->cuda->event_synchronize(first->event);
    if (rc)
        return stop_gpu(st, rc);
    first->state = SLOT_FILLED;
    return 0;
}

/* Waits until the current slot is filled; meanwhile the wire goes on. */
static int current_ready(struct ibx_staging *st, const struct ibx_staging_wire *wire)
{
    struct slot *slot = &st->slots[st->current];
    while (slot->state == SLOT_DMA && st->moving) {
        int rc = st->cuda->event_query(slot->event);
        if (rc && rc != IBX_CUDA_NOT_READY)
            return rc;
        if (!rc)
            slot->state = SLOT_FILLED;
        else if ((rc = take_arrivals(st, wire, false)))
            return rc;
    }
    if (slot->state != SLOT_DMA)
        return 0;
    int rc = st->cuda->event_synchronize(slot->event);
    if (!rc)
        slot->state = SLOT_FILLED;
    return rc;
}

/* Places whose bytes have all been moved take the next pieces, in turn: pieces are moved in order.
 */
static int refetch(struct ibx_staging *st)
{
    int rc = 0;
    for (;;) {
        struct slot *slot = &st->slots[st->refill];
        if (rc || slot->state != SLOT_FILLED || slot->left)
            return rc;
        slot->state = SLOT_FREE;
        st->refill = (st->refill + 1) % st->count;
        rc = fetch(st, slot);
    }
}

/* Starts to move what the current slot has of the next n bytes. */
static int move_current(struct ibx_staging *st, const struct ibx_staging_wire *wire,
                        uint64_t offset, uint64_t n, uint64_t *moved)
{
    struct slot *slot = &st->slots[st->current];
    size_t some = n < slot->left ? (size_t)n : slot->left;
    int rc = move_start(st, wire, st->current, slot->next, offset, some);
    if (rc)
        return rc;
    slot->next += some;
    slot->left -= some;
    *moved = some;
    if (!slot->left)
        st->current = (st->current + 1) % st->count;
    return 0;
}

int ibx_staging_deliver(struct ibx_staging *st, const struct ibx_staging_wire *wire, uint64_t n)
{
    if (n > st->total - st->delivered)
        return stop_gpu(st, -ERANGE);
    st->delivered += n;
    for (uint64_t given = 0; given < n || st->moving;) {
        int rc = fetch_first(st, st->count);
        if (!rc)
            rc = refetch(st);
        if (rc)
            return stop_all(st, wire, rc);
        const struct slot *slot = &st->slots[st->current];
        bool empty = slot->state == SLOT_FREE || (slot->state == SLOT_FILLED && !slot->left);
        if (given == n || slot->state == SLOT_MOVING || (empty && st->moving)) {
            rc = take_arrivals(st, wire, true);
            if (rc)
                return rc;
            continue;
        }
        rc = current_ready(st, wire);
        if (rc)
            return rc < 0 ? rc : stop_all(st, wire, rc);
        uint64_t moved;
        rc = move_current(st, wire, given, n - given, &moved);
        if (rc)
            return rc;
        given += moved;
    }
    return 0;
}

/* ------------------------------------------------------------------------ straight */

/* Not by synchronizing the stream: others may put work into it without end. */
static int settle(struct ibx_staging *st, void *stream)
{
    int rc = st->cuda->event_record(st->slots[0].event, stream);
    return rc ? rc : st->cuda->event_synchronize(st->slots[0].event);
}

int ibx_staging_settle(struct ibx_staging *st, void *stream)
{
    int rc = events_ready(st);
    if (!rc)
        rc = settle(st, stream);
    return rc ? stop_gpu(st, rc) : 0;
}

/* A part of the copy in hand to or from pinned memory that is no chunk; waits for it. */
static int straight(struct ibx_staging *st, const struct part *part, bool to_device)
{
    int rc = dma_part(st, part, to_device);
    if (rc)
        return rc;
    rc = settle(st, st->copy.stream);
    if (rc) /* as in dma_start() */
        stream_wait(st, st->copy.stream);
    return rc;
}

/* As the application's own cudaMemcpy, which is two calls of the driver less. */
static int straight_at_once(struct ibx_staging *st, void *host, const struct ibx_gpu_copy *copy,
                            bool to_device)
{
    size_t n = (size_t)copy->width;
    int rc = to_device ? st->cuda->memcpy_to_device(copy->device, host, n)
                       : st->cuda->memcpy_from_device(host, copy->device, n);
    return rc ? stop_gpu(st, rc) : 0;
}

static int straight_whole(struct ibx_staging *st, void *host, const struct ibx_gpu_copy *copy,
                          bool to_device)
{
    if (is_plain(copy) && (!copy->stream || copy->stream == IBX_CUDA_STREAM_LEGACY))
        return straight_at_once(st, host, copy, to_device);
    copy_set(st, copy);
    struct part all = {host, 0, (size_t)st->total};
    int rc = events_ready(st);
    if (!rc)
        rc = straight(st, &all, to_device);
    return rc ? stop_gpu(st, rc) : 0;
}

int ibx_staging_straight_to_device(struct ibx_staging *st, const void *from,
                                   const struct ibx_gpu_copy *copy)
{
    return straight_whole(st, (void *)(uintptr_t)from, copy, true);
}

int ibx_staging_straight_from_device(struct ibx_staging *st, void *to,
                                     const struct ibx_gpu_copy *copy)
{
    return straight_whole(st, to, copy, false);
}

int ibx_staging_deliver_straight(struct ibx_staging *st, void *to, uint64_t n)
{
    if (n > st->total - st->delivered)
        return stop_gpu(st, -ERANGE);
    slots_free(st);
    struct part next = {to, st->delivered, (size_t)n};
    int rc = n ? straight(st, &next, false) : 0;
    if (rc)
        return stop_gpu(st, rc);
    st->delivered += n;
    /* As if the copy began here. */
    st->begun = st->delivered;
    st->current = st->refill = 0;
    st->fetched = 0;
    return 0;
}
