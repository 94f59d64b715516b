/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Chunks that the GPU uses after the call that has given them to it, until it has made the copies
 * there, or their context is gone. Those that a session has when it ends are kept in one list, and
 * come back to the pool by whoever looks next in their context. Until then they count in their
 * quotas: otherwise a client that comes again and again could take all.
 */
#include "gpudirect/staging_internal.h"
#include "gpudirect/queue_probe.h"

#include <pthread.h>
#include <stdlib.h>

#define REMEMBERED 64u /* contexts that were forgotten; a power of two */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct ibx_lent_chunk *) abandoned; /* changed under the lock */
static atomic_uint forgets;               /* how often contexts were; changed under the lock */
static const void *forgotten[REMEMBERED]; /* the last of these */

/* ------------------------------------------------------------------------ one of them */

struct ibx_lent_chunk *ibx_lent_chunk_new(const struct ibx_staging *st, unsigned copies)
{
    struct ibx_lent_chunk *c = calloc(1, sizeof(*c) + copies * sizeof(c->event[0]));
    if (!c)
        return NULL;
    c->cuda = st->cuda;
    c->context = st->context;
    c->quota = st->quota;
    c->forgets = atomic_load(&forgets);
    return c;
}

/* Whether an answer to a query of an event says nothing about it: the thread has no context, or the
 * error concerns another capture. */
static bool says_nothing(int rc)
{
    return rc == IBX_CUDA_INVALID_CONTEXT ||
           (ibx_cuda_is_of_capture(rc) && rc != IBX_CUDA_CAPTURED_EVENT);
}

/* An event of a stream that the client has begun to capture meanwhile never is done: the copy is a
 * node of a graph. */
bool ibx_lent_chunk_is_over(struct ibx_lent_chunk *c)
{
    int rc = 0;
    while (c->over < c->copies && !c->kept &&
           (rc = c->cuda->event_query(c->event[c->over])) != IBX_CUDA_NOT_READY &&
           !says_nothing(rc)) {
        c->kept = rc == IBX_CUDA_CAPTURED_EVENT;
        c->over += !c->kept;
    }
    return c->over == c->copies;
}

void ibx_lent_chunk_free(struct ibx_lent_chunk *c, bool events)
{
    void *popped;
    const bool entered = events && !c->cuda->ctx_push_current(c->context);
    for (unsigned i = 0; i < c->events && entered; i++)
        c->cuda->event_destroy(c->event[i]);
    if (entered)
        c->cuda->ctx_pop_current(&popped);
    ibx_pinned_give(c->quota, c->chunk);
    if (c->taken)
        atomic_fetch_sub(c->taken, 1);
    free(c);
}

/* ------------------------------------------------------------------------ lists */

/* Frees those that `goes` says. */
static void free_some(struct ibx_lent_chunk **at,
                      bool (*goes)(struct ibx_lent_chunk *, const void *), const void *context,
                      bool events)
{
    while (*at) {
        struct ibx_lent_chunk *c = *at;
        if (!goes(c, context)) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        ibx_lent_chunk_free(c, events);
    }
}

/* Events may be asked in their own context only: another thread may destroy another one meanwhile.
 */
static bool ends_over(struct ibx_lent_chunk *c, const void *context)
{
    return c->context == context && ibx_lent_chunk_is_over(c);
}

void ibx_lent_chunks_free_over(const struct ibx_cuda *cuda, struct ibx_lent_chunk **list)
{
    void *context;
    if (!cuda->ctx_get_current(&context))
        free_some(list, ends_over, context, true);
}

/* The context is gone; NULL: any may be, but a graph may still use what is kept. */
static bool ends_gone(struct ibx_lent_chunk *c, const void *context)
{
    return context ? c->context == context : !c->kept;
}

void ibx_lent_chunks_forget(struct ibx_lent_chunk **list, const void *context)
{
    free_some(list, ends_gone, context, false);
    for (struct ibx_lent_chunk *c = *list; c; c = c->next)
        c->forgets = atomic_load(&forgets);
}

/* ------------------------------------------------------------- of sessions that have ended */

/* Whether its context is gone, and was forgotten perhaps, which is not done another time. A new
 * context may have the address by now: then the driver has no such event, and nobody may ask for
 * it. An error that is none of the context's says nothing. The caller holds the lock. */
static bool is_gone(struct ibx_lent_chunk *c)
{
    const unsigned count = atomic_load(&forgets), since = count - c->forgets;
    const int rc = ibx_cuda_context_enters(c->cuda, c->context);
    if (rc)
        return rc == IBX_CUDA_CONTEXT_IS_DESTROYED || rc == IBX_CUDA_INVALID_CONTEXT;
    c->kept = c->kept || since > REMEMBERED; /* it may be gone */
    for (unsigned i = 1; i <= since && !c->kept; i++) {
        const void *one = forgotten[(count - i) % REMEMBERED];
        if (one == c->context)
            return true;
        c->kept = !one;
    }
    return false;
}

/* A context that is destroyed later is forgotten after this, since that needs the lock. */
unsigned ibx_lent_chunks_abandon(struct ibx_lent_chunk **list)
{
    unsigned count = 0;
    pthread_mutex_lock(&lock);
    for (struct ibx_lent_chunk *c; (c = *list);) {
        *list = c->next;
        if (is_gone(c)) {
            ibx_lent_chunk_free(c, false);
            continue;
        }
        c->next = atomic_load(&abandoned);
        atomic_store(&abandoned, c);
        count++;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

void ibx_lent_chunks_take_back(const struct ibx_cuda *cuda)
{
    /* A thread that has the lock may wait inside the driver, for its own context. */
    if (!atomic_load_explicit(&abandoned, memory_order_relaxed) || pthread_mutex_trylock(&lock))
        return;
    struct ibx_lent_chunk *list = atomic_load(&abandoned);
    ibx_lent_chunks_free_over(cuda, &list);
    atomic_store(&abandoned, list);
    pthread_mutex_unlock(&lock);
}

void ibx_staging_forget_for_all(const void *context)
{
    pthread_mutex_lock(&lock);
    forgotten[atomic_load(&forgets) % REMEMBERED] = context;
    atomic_fetch_add(&forgets, 1);
    struct ibx_lent_chunk *list = atomic_load(&abandoned);
    for (struct ibx_lent_chunk *c = list; c && !context; c = c->next)
        c->kept = true; /* the GPU may still use it */
    ibx_lent_chunks_forget(&list, context);
    atomic_store(&abandoned, list);
    pthread_mutex_unlock(&lock);
    ibx_queue_probe_forget(context);
}
