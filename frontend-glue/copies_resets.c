/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Contexts that clients reset or destroy. All clients have one and the same, unless
 * they make their own, and with it goes what sessions have there: events, which
 * nobody may touch any more. What copies wait for in other contexts stays.
 */
#include "frontend-glue/copies_internal.h"

#include <pthread.h>
#include <stdatomic.h>

#define GONE 64u /* contexts that are remembered */

static struct {
    pthread_mutex_t mutex;
    _Atomic unsigned count; /* of all that went */
    void *contexts[GONE];   /* the last of them; NULL: nobody knows which */
} gone = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void forget(struct copies *x, void *context)
{
    if (x->staging)
        ibx_staging_forget(x->staging, context);
    ibx_client_pins_forget(&x->pins, context);
}

void copies_resets_begin(struct copies *x)
{
    x->resets = atomic_load(&gone.count);
}

void copies_heed_resets(struct copies *x)
{
    if (atomic_load(&gone.count) == x->resets)
        return;
    pthread_mutex_lock(&gone.mutex);
    if (gone.count - x->resets > GONE)
        forget(x, NULL);
    else
        for (unsigned i = x->resets; i != gone.count; i++)
            forget(x, gone.contexts[i % GONE]);
    x->resets = gone.count;
    pthread_mutex_unlock(&gone.mutex);
}

void copies_lose_context(struct copies *x)
{
    x->losing = (void *)(uintptr_t)x->requests.context;
    const struct ibx_cuda *cuda = x->options.mode == IBX_GPU_OFF ? NULL : ibx_cuda_load(NULL);
    if (!cuda)
        return;
    if (!x->losing)
        cuda->ctx_get_current(&x->losing);
    copies_heed_resets(x);
    if (x->staging)
        ibx_staging_drop_events(x->staging);
    ibx_client_pins_drop_events(&x->pins, cuda);
}

void copies_lost_context(struct copies *x)
{
    pthread_mutex_lock(&gone.mutex);
    gone.contexts[gone.count % GONE] = x->losing;
    gone.count++;
    pthread_mutex_unlock(&gone.mutex);
}
