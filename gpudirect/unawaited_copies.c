/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Short asynchronous copies to the device whose bytes the caller does not keep. CUDA takes up to 64
 * KiB of pageable memory in the call and returns, whatever the stream waits for; what ends that may
 * be a later call of the same program. So such a copy is made from chunks that the GPU keeps until
 * it has made it. A chunk takes one copy after the other, with an event behind each, and is used
 * again once all of these are done. Without room the copy is waited for, as CUDA waits when much is
 * under way (about 2 MiB on an H200, driver 580).
 *
 * The chunks of a staging that ends before its copies have been made are left to whoever looks next
 * in their context, since the stream may wait without end. Until then they count in their quota, as
 * abandoned_chunks.c has it: otherwise a client that comes again and again could take them all.
 */
#include "gpudirect/staging_internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNED 256u

struct ibx_unawaited_chunk {
    struct ibx_unawaited_chunk *next;
    const struct ibx_cuda *cuda;
    void *context; /* of the events */
    struct ibx_quota *quota;
    unsigned chunk;
    size_t used;                   /* bytes */
    unsigned copies, over, events; /* made from here; done, from the first on; that exist */
    bool kept;                     /* a graph of the context may use it at any time */
    void *event[IBX_UNAWAITED_COPIES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibx_unawaited_chunk *orphans;
static atomic_uint taken; /* chunks of all stagings, for which others must not wait */

/* Whether an answer to a query of an event says nothing about it: the thread has no context, or the
 * error concerns another capture. */
static bool says_nothing(int rc)
{
    return rc == IBX_CUDA_INVALID_CONTEXT ||
           (ibx_cuda_is_of_capture(rc) && rc != IBX_CUDA_CAPTURED_EVENT);
}

/* Whether all copies that were made from the chunk, in the current context, are done. An event of a
 * stream that the client has begun to capture meanwhile never is: the copy is a node of a graph. */
static bool is_over(struct ibx_unawaited_chunk *c)
{
    int rc = 0;
    while (c->over < c->copies && !c->kept &&
           (rc = c->cuda->event_query(c->event[c->over])) != IBX_CUDA_NOT_READY &&
           !says_nothing(rc)) {
        c->kept = rc == IBX_CUDA_CAPTURED_EVENT;
        c->over += !c->kept;
    }
    if (c->over < c->copies)
        return false;
    c->used = 0;
    c->copies = c->over = 0;
    return true;
}

/* With the events, unless they are gone with their context, and all graphs there. */
static void free_chunk(struct ibx_unawaited_chunk *c, bool events)
{
    for (unsigned i = 0; i < c->events && events; i++)
        c->cuda->event_destroy(c->event[i]);
    ibx_pinned_give(c->quota, c->chunk);
    atomic_fetch_sub(&taken, 1);
    free(c);
}

/* Frees those that `goes` says. */
static void free_some(struct ibx_unawaited_chunk **at,
                      bool (*goes)(struct ibx_unawaited_chunk *, const void *), const void *context,
                      bool events)
{
    while (*at) {
        struct ibx_unawaited_chunk *c = *at;
        if (!goes(c, context)) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        free_chunk(c, events);
    }
}

/* Events may be asked in their own context only: another thread may destroy another one meanwhile.
 */
static bool ends_over(struct ibx_unawaited_chunk *c, const void *context)
{
    return c->context == context && is_over(c);
}

/* Frees those of the current context whose copies are done. */
static void free_over(const struct ibx_cuda *cuda, struct ibx_unawaited_chunk **at)
{
    void *context;
    if (!cuda->ctx_get_current(&context))
        free_some(at, ends_over, context, true);
}

/* The context is gone; NULL: any may be, but a graph may still use what is kept. */
static bool ends_gone(struct ibx_unawaited_chunk *c, const void *context)
{
    return context ? c->context == context : !c->kept;
}

static bool has_room(const struct ibx_unawaited_chunk *c, size_t n)
{
    return !c->kept && c->copies < IBX_UNAWAITED_COPIES && n <= IBX_PINNED_CHUNK - c->used;
}

/* Whether at least as many chunks of the quota are left as are held: other copies need some. */
static bool leaves_quota(const struct ibx_staging *st)
{
    return !st->quota || ibx_quota_left(st->quota) >= ibx_quota_used(st->quota);
}

static struct ibx_unawaited_chunk *new_chunk(struct ibx_staging *st)
{
    if (!pthread_mutex_trylock(&lock)) { /* another thread, which has it, does the same */
        free_over(st->cuda, &orphans);
        pthread_mutex_unlock(&lock);
    }
    struct ibx_unawaited_chunk *c = calloc(1, sizeof(*c));
    const bool room = atomic_fetch_add(&taken, 1) < ibx_pinned_count() / 2 && leaves_quota(st);
    const int chunk = c && room ? ibx_pinned_take(st->quota, 0) : -1;
    if (chunk < 0) {
        atomic_fetch_sub(&taken, 1);
        free(c);
        return NULL;
    }
    c->cuda = st->cuda;
    c->context = st->context;
    c->quota = st->quota;
    c->chunk = (unsigned)chunk;
    c->next = st->unawaited_chunks;
    return st->unawaited_chunks = c;
}

/* A chunk of the events' context with room for n bytes; NULL: there is none. Copies go to the first
 * one until it is full. */
static struct ibx_unawaited_chunk *chunk_for(struct ibx_staging *st, size_t n)
{
    unsigned count = 0;
    for (struct ibx_unawaited_chunk **at = &st->unawaited_chunks, *c; (c = *at);
         at = &c->next, count++) {
        if (c->context != st->context || !(has_room(c, n) || is_over(c)))
            continue;
        *at = c->next;
        c->next = st->unawaited_chunks;
        return st->unawaited_chunks = c;
    }
    return count < IBX_UNAWAITED_CHUNKS ? new_chunk(st) : NULL;
}

static bool event_ready(struct ibx_unawaited_chunk *c)
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
    struct ibx_unawaited_chunk *c = n <= IBX_UNAWAITED_MOST ? chunk_for(st, n) : NULL;
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

void ibx_staging_unawaited_forget(struct ibx_staging *st, const void *context)
{
    free_some(&st->unawaited_chunks, ends_gone, context, false);
}

void ibx_unawaited_forget(const void *context)
{
    pthread_mutex_lock(&lock);
    free_some(&orphans, ends_gone, context, false);
    pthread_mutex_unlock(&lock);
}

void ibx_staging_unawaited_look(struct ibx_staging *st)
{
    if (!st->unawaited_chunks)
        return;
    const int mode = ibx_cuda_capture_relax(st->cuda);
    free_over(st->cuda, &st->unawaited_chunks);
    ibx_cuda_capture_restore(st->cuda, mode);
}

static bool ends_destroyed(struct ibx_unawaited_chunk *c, const void *argument)
{
    (void)argument;
    return ibx_cuda_context_is_destroyed(c->cuda, c->context);
}

/* A context that is destroyed already was forgotten perhaps, and is not another time. One that is
 * destroyed later is forgotten after this, since that needs the lock. */
void ibx_staging_unawaited_end(struct ibx_staging *st)
{
    ibx_staging_unawaited_look(st);
    pthread_mutex_lock(&lock);
    free_some(&st->unawaited_chunks, ends_destroyed, NULL, false);
    for (struct ibx_unawaited_chunk *c; (c = st->unawaited_chunks);) {
        st->unawaited_chunks = c->next;
        c->next = orphans;
        orphans = c;
    }
    pthread_mutex_unlock(&lock);
}
