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
#include "common/log.h"

#include <errno.h>
#include <stdlib.h>
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

/* Makes what slots under way need for their chunks. False: there is no memory. */
static bool have_lent(const struct ibx_staging *st, struct ibx_lent_chunk **lent)
{
    unsigned i = 0;
    while (i < st->count && (lent[i] = ibx_lent_chunk_new(st, 1)))
        i++;
    const bool all = i == st->count;
    while (!all && i)
        free(lent[--i]);
    return all;
}

/* The slot's chunk and event are overdue from now on. */
static void lend(struct ibx_staging *st, const struct ibx_staging_slot *slot,
                 struct ibx_lent_chunk *c)
{
    c->chunk = slot->chunk;
    c->event[0] = slot->event;
    c->copies = c->events = 1;
    c->next = st->overdue;
    st->overdue = c;
}

/* Leaves the slots under way, with their chunks and events, to the GPU; the others are free. None
 * of the copy is moving. IBX_STAGING_OVERDUE, or -ENOMEM: nothing was done. */
static int put_aside(struct ibx_staging *st)
{
    struct ibx_lent_chunk *lent[IBX_STAGING_DEPTH];
    unsigned chunks = 0, events = 0;
    int rc = 0;
    if (!have_lent(st, lent))
        return -ENOMEM;
    for (unsigned i = 0; i < st->events; i++) {
        struct ibx_staging_slot *slot = &st->slots[i];
        const bool used = i < st->count, under_way = used && slot->state.now == SLOT_DMA;
        if (used && slot->state.now != SLOT_FREE && !rc)
            rc = ibx_state_move(&slot->state, SLOT_FREE);
        if (under_way)
            lend(st, slot, lent[i]);
        else if (used)
            free(lent[i]);
        if (!under_way)
            st->slots[events++] = *slot;
        chunks += used && !under_way;
    }
    st->count = chunks;
    st->events = events;
    st->left = 0;
    return rc ? rc : IBX_STAGING_OVERDUE;
}

/* Whether the slot's piece is made in the time that one has. */
static bool comes_in_time(const struct ibx_staging *st, const struct ibx_staging_slot *slot)
{
    return is_done_by(st, slot->event, ibx_second_context_is_there(st->cuda) ? NEXT_MS : FIRST_MS);
}

/* Has the slots under way be overdue, if the piece of this one is not made in time, and there is
 * another context, made now perhaps, to copy it. IBX_STAGING_OVERDUE; or 0: the piece is waited
 * for; or a negative errno. */
static int leave_late(struct ibx_staging *st, const struct ibx_staging_slot *slot)
{
    if (comes_in_time(st, slot) || st->overdue || !ibx_second_context_make(st->cuda) ||
        is_done(st->cuda, slot->event))
        return 0;
    const int rc = put_aside(st);
    return rc == -ENOMEM ? 0 : rc;
}

int ibx_staging_await_first(struct ibx_staging *st)
{
    const int rc = leave_late(st, &st->slots[0]);
    if (rc == IBX_STAGING_OVERDUE)
        ibx_staging_end(st);
    return rc ? rc : st->cuda->event_synchronize(st->slots[0].event);
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
    const int rc = has_free(st) ? leave_late(st, slot) : 0;
    if (!rc)
        return st->cuda->event_synchronize(slot->event);
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

bool ibx_staging_has_overdue(struct ibx_staging *st)
{
    struct ibx_lent_chunk *c = st->overdue;
    while (c && ibx_lent_chunk_is_over(c))
        c = c->next;
    if (c)
        return true;
    while ((c = st->overdue)) {
        st->overdue = c->next;
        ibx_lent_chunk_free(c, true);
    }
    return false;
}

void ibx_staging_leave_slots(struct ibx_staging *st)
{
    bool any = false;
    for (unsigned i = 0; i < st->count; i++)
        any = any || st->slots[i].state.now == SLOT_DMA;
    if (any && st->copy.alone)
        put_aside(st);
}

/* Waits in the chunk's context. Whether its copy is over by the deadline. */
static bool is_over_by(const struct ibx_staging *st, struct ibx_lent_chunk *c, uint64_t deadline)
{
    void *popped;
    if (st->cuda->ctx_push_current(c->context))
        return false;
    const int mode = ibx_cuda_capture_relax(st->cuda);
    const uint64_t now = ibx_now_ns();
    is_done_by(st, c->event[0], now < deadline ? (unsigned)((deadline - now) / 1000000) : 0);
    const bool over = ibx_lent_chunk_is_over(c);
    ibx_cuda_capture_restore(st->cuda, mode);
    st->cuda->ctx_pop_current(&popped);
    return over;
}

void ibx_staging_overdue_end(struct ibx_staging *st)
{
    struct ibx_lent_chunk *left = NULL, *c;
    const uint64_t deadline = st->overdue ? ibx_deadline_in_ms(END_MS) : 0;
    while ((c = st->overdue)) {
        st->overdue = c->next;
        if (is_over_by(st, c, deadline)) {
            ibx_lent_chunk_free(c, true);
        } else {
            c->next = left;
            left = c;
        }
    }
    const unsigned count = ibx_lent_chunks_abandon(&left);
    if (count)
        ibx_log(IBX_LOG_WARN,
                "a session has ended, and the GPU has not begun %u copies of it yet: chunks of "
                "page-locked memory stay with them until it has made them",
                count);
}
