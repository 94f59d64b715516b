/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Contexts that were destroyed: each session drops, in its own thread, what it had in them. */
#include "frontend-glue/back_end_common/back_end.h"

#include <pthread.h>
#include <stdatomic.h>

#define GONE 4096u /* contexts that are remembered; a power of two */

static struct {
    pthread_mutex_t mutex;
    _Atomic unsigned count; /* how many have gone */
    void *contexts[GONE];   /* the last of them; NULL: it is not known which */
} gone = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void forget(struct gpu_session *x, void *context)
{
    if (x->staging)
        ibx_staging_forget(x->staging, context);
    ibx_client_pins_forget(&x->pins, context);
}

unsigned ibx_back_end_resets(void)
{
    return atomic_load(&gone.count);
}

void ibx_back_end_resets_begin(struct gpu_session *x)
{
    x->resets = ibx_back_end_resets();
}

void ibx_back_end_handle_resets(struct gpu_session *x)
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

void ibx_back_end_note_reset(void *context, void (*forget_all)(const void *context))
{
    pthread_mutex_lock(&gone.mutex);
    gone.contexts[gone.count % GONE] = context;
    gone.count++;
    forget_all(context);
    pthread_mutex_unlock(&gone.mutex);
}
