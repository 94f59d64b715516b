/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies that come after no work, and that the GPU may not begin nevertheless. Each kind of work
 * has a few queues in a context, which streams share. On an H200, copies to the host of four
 * streams that wait keep all others of that kind out, of any priority; so do four with long copies
 * to the device. If they wait for a function of a program, and that for the copy, nothing gets on.
 *
 * So after a while such a copy from the device is overdue: the GPU keeps its chunks until it makes
 * it, and a kernel of another context (second_context.h) copies the bytes into other chunks. As
 * long as there are overdue copies, all that are alone are made so.
 *
 * A copy to the device cannot be left behind like that, since it would overwrite what comes after
 * it. So a probe (queue_probe.h) goes before it. If that is overdue, a kernel of the other context
 * makes the copy, and from then on all copies to the device that are alone.
 */
#include "gpudirect/staging_internal.h"
#include "gpudirect/queue_probe.h"
#include "gpudirect/second_context.h"

#include "common/clock.h"

#include <string.h>
#include <time.h>

#define FIRST_MS 100u  /* until a copy is overdue, which then costs a context ... */
#define NEXT_MS  2u    /* ... and once there is that context */
#define END_MS   1000u /* that the end of a session waits for overdue ones */
#define NAP_NS   20000u
#define SHORT    ((size_t)64 << 10) /* bytes: longer copies to the device have other queues */
#define SPIN_NS  1000000u /* for so long it is asked for without naps: most copies end by then */

/* Whether the event is done, or has an error: then the copy is not made any more. */
static bool is_done(const struct ibx_cuda *cuda, void *event)
{
    return cuda->event_query(event) != IBX_CUDA_NOT_READY;
}

/* An error that concerns a capture says nothing about the copy. */
bool ibx_overdue_copy_is_made(const struct ibx_cuda *cuda, const struct ibx_overdue_copy *copy)
{
    const int rc = cuda->event_query(copy->event);
    return rc != IBX_CUDA_NOT_READY && !ibx_cuda_is_of_capture(rc);
}

static bool is_done_by(const struct ibx_staging *st, void *event, unsigned ms)
{
    const uint64_t began = ibx_now_ns(), deadline = began + ms * 1000000ull;
    uint64_t now = began;
    while (!is_done(st->cuda, event)) {
        if (now >= deadline)
            return false;
        if (now - began > SPIN_NS)
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        now = ibx_now_ns();
    }
    return true;
}

/* ------------------------------------------------------------------------ put aside */

/* Leaves the slots under way, with their chunks and events, to the GPU; the others are free. None
 * of the copy is moving, and no copy is overdue yet. */
static int put_aside(struct ibx_staging *st)
{
    struct ibx_overdue *overdue = &st->overdue;
    unsigned chunks = 0, events = 0;
    int rc = 0;
    overdue->context = st->context;
    for (unsigned i = 0; i < st->events && !rc; i++) {
        struct ibx_staging_slot *slot = &st->slots[i];
        const bool used = i < st->count, under_way = used && slot->state.now == SLOT_DMA;
        if (used && slot->state.now != SLOT_FREE)
            rc = ibx_state_move(&slot->state, SLOT_FREE);
        if (under_way)
            overdue->copies[overdue->count++] = (struct ibx_overdue_copy){slot->chunk, slot->event};
        else
            st->slots[events++] = *slot;
        chunks += used && !under_way;
    }
    st->count = chunks;
    st->events = events;
    st->left = 0;
    return rc ? rc : IBX_STAGING_OVERDUE;
}

/* Whether the slot is overdue, and there is another context to copy what it has to. */
static bool is_overdue(const struct ibx_staging *st, const struct ibx_staging_slot *slot)
{
    const struct ibx_cuda *cuda = st->cuda;
    const unsigned ms = ibx_second_context_is_there(cuda) ? NEXT_MS : FIRST_MS;
    return !is_done_by(st, slot->event, ms) && !st->overdue.count &&
           ibx_second_context_make(cuda) && !is_done(cuda, slot->event);
}

int ibx_staging_await_first(struct ibx_staging *st)
{
    if (!is_overdue(st, &st->slots[0]))
        return st->cuda->event_synchronize(st->slots[0].event);
    const int rc = put_aside(st);
    if (rc == IBX_STAGING_OVERDUE)
        ibx_staging_end(st);
    return rc;
}

/* Whether a slot has a chunk that the GPU does not use. */
static bool has_free(const struct ibx_staging *st)
{
    unsigned i = 0;
    while (i < st->count && st->slots[i].state.now == SLOT_DMA)
        i++;
    return i < st->count;
}

int ibx_staging_await_current(struct ibx_staging *st)
{
    const struct ibx_staging_slot *slot = &st->slots[st->current];
    const uint64_t at = slot->at, delivered = st->delivered;
    if (!has_free(st) || !is_overdue(st, slot))
        return st->cuda->event_synchronize(slot->event);
    const int rc = put_aside(st);
    ibx_staging_restart_at(st, at);
    st->delivered = delivered;
    st->aside = true;
    return rc;
}

/* --------------------------------------------------------------- by another context */

int ibx_staging_dma_aside(struct ibx_staging *st, struct ibx_staging_slot *slot, bool to_device)
{
    const uint64_t device = st->copy.device + slot->at;
    const uint64_t chunk = (uintptr_t)ibx_pinned_payload(slot->chunk);
    int rc = ibx_second_context_copy(st->cuda, to_device ? device : chunk,
                                     to_device ? chunk : device, slot->length);
    if (rc)
        return rc;
    if (to_device)
        return ibx_state_move(&slot->state, SLOT_FREE);
    rc = ibx_state_move(&slot->state, SLOT_DMA);
    return rc ? rc : ibx_state_move(&slot->state, SLOT_FILLED);
}

/* The driver makes short copies to the device in the queues that kernels use, of which eight
 * streams that wait with kernels leave none; but not if they have two rows that are apart. An odd
 * number of bytes, which only variables have, goes as it is. */
int ibx_staging_to_device_alone(struct ibx_staging *st, uint8_t *chunk, uint64_t to, size_t n)
{
    const size_t half = n / 2;
    if (n % 2 || n >= SHORT)
        return st->cuda->memcpy_to_device_async(to, chunk, n, st->copy.stream);
    memmove(chunk + SHORT, chunk + half, half);
    const struct ibx_cuda_memcpy2d rows = {.src_type = IBX_CUDA_MEMORY_HOST,
                                           .src_host = chunk,
                                           .src_pitch = SHORT,
                                           .dst_type = IBX_CUDA_MEMORY_DEVICE,
                                           .dst_device = to,
                                           .dst_pitch = half,
                                           .width = half,
                                           .height = 2};
    return st->cuda->memcpy_2d_async(&rows, st->copy.stream);
}

/* Begins a probe of the queues that the filled slots take, if there are any. An odd number of bytes
 * may share those of kernels, see above. */
static int probe(struct ibx_staging *st, bool *any)
{
    const struct ibx_staging_slot *filled = NULL;
    bool odd = false;
    for (unsigned i = 0; i < st->count; i++) {
        const struct ibx_staging_slot *slot = &st->slots[i];
        filled = slot->state.now == SLOT_FILLED ? slot : filled;
        odd = odd || (filled == slot && slot->length % 2 && slot->length < SHORT);
    }
    *any = filled;
    const void *bytes = filled ? ibx_pinned_payload(filled->chunk) : NULL;
    int rc = filled ? ibx_staging_before_ready(st) : 0;
    if (filled && !rc)
        rc = ibx_queue_probe(st->cuda, st->context, st->copy.stream, bytes, IBX_QUEUE_OF_COPIES);
    if (odd && !rc)
        rc = ibx_queue_probe(st->cuda, st->context, st->copy.stream, bytes, IBX_QUEUE_OF_KERNELS);
    return rc || !filled ? rc : st->cuda->event_record(st->before, st->copy.stream);
}

/* Without memory for a probe there is none: an error of the context shows in the copy itself. */
int ibx_staging_find_way(struct ibx_staging *st)
{
    const struct ibx_cuda *cuda = st->cuda;
    bool any = false;
    st->aside = st->copy.alone && ibx_second_context_is_there(cuda);
    if (st->aside)
        ibx_staging_has_overdue(st); /* gives chunks back that are not overdue any more */
    if (!st->copy.alone || st->aside || probe(st, &any) || !any ||
        is_done_by(st, st->before, FIRST_MS))
        return 0;
    st->aside = ibx_second_context_make(cuda);
    return st->aside ? 0 : cuda->event_synchronize(st->before);
}

/* ------------------------------------------------------------------------ their end */

static void give_chunks(struct ibx_staging *st)
{
    for (unsigned i = 0; i < st->overdue.count; i++)
        ibx_pinned_give(st->quota, st->overdue.copies[i].chunk);
    st->overdue.count = 0;
}

static void end(struct ibx_staging *st)
{
    const bool entered = st->overdue.count && !st->cuda->ctx_push_current(st->overdue.context);
    void *popped;
    for (unsigned i = 0; i < st->overdue.count && entered; i++)
        st->cuda->event_destroy(st->overdue.copies[i].event);
    if (entered)
        st->cuda->ctx_pop_current(&popped);
    give_chunks(st);
}

bool ibx_staging_has_overdue(struct ibx_staging *st)
{
    const struct ibx_overdue *overdue = &st->overdue;
    if (!overdue->count)
        return false;
    for (unsigned i = 0; i < overdue->count; i++)
        if (!ibx_overdue_copy_is_made(st->cuda, &overdue->copies[i]))
            return true;
    end(st);
    return false;
}

void ibx_staging_overdue_forget(struct ibx_staging *st, const void *context)
{
    if (!context || st->overdue.context == context)
        give_chunks(st);
}

/* If copies before this one are overdue, too, it waits for the GPU. */
void ibx_staging_leave_slots(struct ibx_staging *st)
{
    bool any = false;
    for (unsigned i = 0; i < st->count; i++)
        any = any || st->slots[i].state.now == SLOT_DMA;
    if (any && st->copy.alone && !st->overdue.count)
        put_aside(st);
}

/* Gives back what the GPU has made by the deadline; the other copies remain. */
static void give_made(struct ibx_staging *st, uint64_t deadline)
{
    struct ibx_overdue *overdue = &st->overdue;
    const unsigned count = overdue->count;
    overdue->count = 0;
    for (unsigned i = 0; i < count; i++) {
        const struct ibx_overdue_copy copy = overdue->copies[i];
        const uint64_t now = ibx_now_ns();
        const unsigned ms = now < deadline ? (unsigned)((deadline - now) / 1000000) : 0;
        if (is_done_by(st, copy.event, ms) && ibx_overdue_copy_is_made(st->cuda, &copy)) {
            st->cuda->event_destroy(copy.event);
            ibx_pinned_give(st->quota, copy.chunk);
        } else {
            overdue->copies[overdue->count++] = copy;
        }
    }
}

void ibx_staging_overdue_end(struct ibx_staging *st)
{
    void *popped;
    if (!st->overdue.count)
        return;
    if (!st->cuda->ctx_push_current(st->overdue.context)) {
        const int mode = ibx_cuda_capture_relax(st->cuda);
        give_made(st, ibx_deadline_in_ms(END_MS));
        ibx_cuda_capture_restore(st->cuda, mode);
        st->cuda->ctx_pop_current(&popped);
    }
    if (st->overdue.count)
        ibx_abandoned_chunks_add(st->cuda, &st->overdue, st->quota);
}
