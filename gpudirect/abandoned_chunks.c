/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Chunks of sessions that have ended while the GPU had copies to make there. They come back to the
 * pool once the GPU has made these, or their context is gone. Until then they count in their
 * quotas.
 */
#include "gpudirect/staging_internal.h"
#include "gpudirect/queue_probe.h"

#include "common/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct abandoned {
    struct abandoned *next;
    void *context; /* of the events */
    struct ibx_quota *quota;
    struct ibx_overdue_copy copy;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct abandoned *) first; /* changed under the lock */

/* Without memory to note it, the chunk is nobody's any more. The caller holds the lock. */
static void abandon(void *context, struct ibx_quota *quota, const struct ibx_overdue_copy *copy)
{
    struct abandoned *l = malloc(sizeof(*l));
    if (!l)
        return;
    *l = (struct abandoned){
        .next = atomic_load(&first), .context = context, .quota = quota, .copy = *copy};
    atomic_store(&first, l);
}

/* A context that is destroyed already was forgotten perhaps, and is not another time. One that is
 * destroyed later is forgotten after this, since that needs the lock. */
void ibx_abandoned_chunks_add(const struct ibx_cuda *cuda, struct ibx_overdue *overdue,
                              struct ibx_quota *quota)
{
    pthread_mutex_lock(&lock);
    const bool destroyed = ibx_cuda_context_is_destroyed(cuda, overdue->context);
    for (unsigned i = 0; i < overdue->count && !destroyed; i++)
        abandon(overdue->context, quota, &overdue->copies[i]);
    pthread_mutex_unlock(&lock);
    for (unsigned i = 0; i < overdue->count && destroyed; i++)
        ibx_pinned_give(quota, overdue->copies[i].chunk);
    if (!destroyed)
        ibx_log(IBX_LOG_WARN,
                "a session has ended, and the GPU has not begun %u copies of it yet: chunks of "
                "page-locked memory stay with them until it has made them",
                overdue->count);
    overdue->count = 0;
}

static void give(struct abandoned *l)
{
    ibx_pinned_give(l->quota, l->copy.chunk);
    free(l);
}

/* Takes those out of the list that `is_over` says. The caller holds the lock. */
static void sweep(bool (*is_over)(const struct abandoned *l, const void *argument),
                  const void *argument)
{
    struct abandoned *kept = NULL, *next;
    for (struct abandoned *l = atomic_load(&first); l; l = next) {
        next = l->next;
        if (is_over(l, argument)) {
            give(l);
            continue;
        }
        l->next = kept;
        kept = l;
    }
    atomic_store(&first, kept);
}

/* The events may be asked in their own context only: another one may be destroyed meanwhile. */
static bool is_made(const struct abandoned *l, const void *argument)
{
    const struct ibx_cuda *cuda = argument;
    void *context;
    if (cuda->ctx_get_current(&context) || context != l->context ||
        !ibx_overdue_copy_is_made(cuda, &l->copy))
        return false;
    cuda->event_destroy(l->copy.event);
    return true;
}

void ibx_abandoned_chunks_take_back(const struct ibx_cuda *cuda)
{
    /* A thread that has the lock may wait inside the driver, for its own context. */
    if (!atomic_load_explicit(&first, memory_order_relaxed) || pthread_mutex_trylock(&lock))
        return;
    sweep(is_made, cuda);
    pthread_mutex_unlock(&lock);
}

static bool is_gone(const struct abandoned *l, const void *context)
{
    return l->context == context;
}

void ibx_staging_forget_for_all(const void *context)
{
    pthread_mutex_lock(&lock);
    sweep(is_gone, context);
    pthread_mutex_unlock(&lock);
    ibx_queue_probe_forget(context);
}
