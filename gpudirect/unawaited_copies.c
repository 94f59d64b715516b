/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Short asynchronous copies to the device whose bytes the caller does not keep. CUDA takes up to 64
 * KiB of pageable memory in the call and returns, whatever the stream waits for; what ends that may
 * be a later call of the same program. So such a copy is made from chunks that the GPU keeps until
 * it has made it. A chunk takes one copy after the other, with an event behind each, and is used
 * again once all of these are done. Without room the copy is waited for, as CUDA waits when much is
 * under way (about 2 MiB on an H200, driver 580).
 *
 * The chunks of a staging that ends before its copies have been made are left to the GPU, since the
 * stream may wait without end (lent_chunks.c).
 */
#include "gpudirect/staging_internal.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNED 256u

static atomic_uint taken; /* chunks of all stagings, for which others must not wait */

static bool has_room(const struct ibx_lent_chunk *c, size_t n)
{
    return !c->kept && c->copies < IBX_UNAWAITED_COPIES && n <= IBX_PINNED_CHUNK - c->used;
}

/* Whether no copy is under way from the chunk, which then is as a new one. */
static bool empty(struct ibx_lent_chunk *c)
{
    if (!ibx_lent_chunk_is_over(c))
        return false;
    c->used = 0;
    c->copies = c->over = 0;
    return true;
}

/* Whether at least as many chunks of the quota are left as are held: other copies need some. */
static bool leaves_quota(const struct ibx_staging *st)
{
    return !st->quota || ibx_quota_left(st->quota) >= ibx_quota_used(st->quota);
}

static struct ibx_lent_chunk *new_chunk(struct ibx_staging *st)
{
    struct ibx_lent_chunk *c = ibx_lent_chunk_new(st, IBX_UNAWAITED_COPIES);
    const bool room = atomic_fetch_add(&taken, 1) < ibx_pinned_count() / 2 && leaves_quota(st);
    const int chunk = c && room ? ibx_pinned_take(st->quota, 0) : -1;
    if (chunk < 0) {
        atomic_fetch_sub(&taken, 1);
        free(c);
        return NULL;
    }
    c->taken = &taken;
    c->chunk = (unsigned)chunk;
    c->next = st->unawaited;
    return st->unawaited = c;
}

/* A chunk of the events' context with room for n bytes; NULL: there is none. Copies go to the first
 * one until it is full. */
static struct ibx_lent_chunk *chunk_for(struct ibx_staging *st, size_t n)
{
    unsigned count = 0;
    for (struct ibx_lent_chunk **at = &st->unawaited, *c; (c = *at); at = &c->next, count++) {
        if (c->context != st->context || !(has_room(c, n) || empty(c)))
            continue;
        *at = c->next;
        c->next = st->unawaited;
        return st->unawaited = c;
    }
    return count < IBX_UNAWAITED_CHUNKS ? new_chunk(st) : NULL;
}

static bool event_ready(struct ibx_lent_chunk *c)
{
    const bool missing = c->copies == c->events;
    if (missing && c->cuda->event_create(&c->event[c->events], IBX_CUDA_EVENT_DISABLE_TIMING))
        return false;
    c->events += missing;
    return true;
}

bool ibx_staging_copy_unawaited(struct ibx_staging *st, const void *bytes, uint64_t at, size_t n,
                                int *rc)
{
    struct ibx_lent_chunk *c = n <= IBX_UNAWAITED_MOST ? chunk_for(st, n) : NULL;
    bool begun = false;
    if (!c || !event_ready(c))
        return false;
    uint8_t *here = (uint8_t *)ibx_pinned_payload(c->chunk) + c->used;
    memcpy(here, bytes, n);
    *rc = ibx_staging_dma(st, here, at, n, true, c->event[c->copies], &begun);
    if (*rc && begun) /* no event is behind it */
        ibx_cuda_stream_wait(st->cuda, st->copy.stream);
    if (!*rc) {
        c->copies++;
        c->used += (n + ALIGNED - 1) / ALIGNED * ALIGNED;
    }
    return true;
}

void ibx_staging_unawaited_look(struct ibx_staging *st)
{
    if (!st->unawaited)
        return;
    const int mode = ibx_cuda_capture_relax(st->cuda);
    ibx_lent_chunks_free_over(st->cuda, &st->unawaited);
    ibx_cuda_capture_restore(st->cuda, mode);
}

void ibx_staging_unawaited_end(struct ibx_staging *st)
{
    ibx_staging_unawaited_look(st);
    ibx_lent_chunks_abandon(&st->unawaited);
}
