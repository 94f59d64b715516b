/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Contexts that clients reset or destroy. All clients share one, unless they make their own. The
 * events that sessions have in a context go with it: no session may touch them any more.
 */
#include "frontend-glue/clients/graph_slots.h"
#include "frontend-glue/clients/virtual_memory.h"

#include <pthread.h>
#include <stdatomic.h>

#define GONE 4096u /* contexts that are remembered; a power of two */

/* Exit codes by which nothing was done: GVirtuS's for an unknown request, and CUDA's. */
#define UNKNOWN         (-1)
#define INVALID_VALUE   1
#define NOT_INITIALIZED 3
#define INVALID_CONTEXT 201

static struct {
    pthread_mutex_t mutex;
    _Atomic unsigned count; /* of all that went */
    void *contexts[GONE];   /* the last of them; NULL: unknown which */
} gone = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void forget(struct copies *x, void *context)
{
    if (x->staging)
        ibx_staging_forget(x->staging, context);
    ibx_client_pins_forget(&x->pins, context);
}

unsigned ibx_copies_resets(void)
{
    return atomic_load(&gone.count);
}

void ibx_copies_resets_begin(struct copies *x)
{
    x->resets = ibx_copies_resets();
}

void ibx_copies_handle_resets(struct copies *x)
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

/* The primary context of the calling thread's device, which its runtime resets. */
static void find_primary(struct copies *x, const struct ibx_cuda *cuda)
{
    int device = x->requests.device, active = 0;
    unsigned flags;
    if (device < 0 && cuda->ctx_get_device(&device))
        device = 0;
    if (!cuda->device_primary_ctx_get_state || !cuda->device_primary_ctx_retain ||
        !cuda->device_primary_ctx_release ||
        cuda->device_primary_ctx_get_state(device, &flags, &active))
        return;
    x->handler.takes_context = active;
    if (active && !cuda->device_primary_ctx_retain(&x->handler.taken_context, device))
        cuda->device_primary_ctx_release(device);
}

void ibx_copies_lose_context(struct copies *x)
{
    bool named = x->requests.names_context;
    x->handler.taken_context = named ? (void *)(uintptr_t)x->requests.context : NULL;
    x->handler.takes_context = !named || x->handler.taken_context;
    const struct ibx_cuda *cuda = ibx_cuda_load(NULL);
    if (!cuda)
        return;
    if (!named)
        find_primary(x, cuda);
    ibx_copies_handle_resets(x);
    if (x->staging)
        ibx_staging_drop_events(x->staging);
    ibx_client_pins_drop_fences(&x->pins, cuda);
}

/* The context may be gone although the answer is an error: that of earlier work. */
void ibx_copies_lost_context(struct copies *x, int exit_code)
{
    bool refused =
        exit_code == INVALID_VALUE || exit_code == NOT_INITIALIZED || exit_code == INVALID_CONTEXT;
    if (!x->handler.takes_context || exit_code == UNKNOWN || (refused && x->requests.names_context))
        return;
    pthread_mutex_lock(&gone.mutex);
    gone.contexts[gone.count % GONE] = x->handler.taken_context;
    gone.count++;
    ibx_owners_forget(x->handler.taken_context);
    ibx_handles_forget(x->handler.taken_context);
    ibx_virtual_forget(x->handler.taken_context);
    ibx_end_forget(x->handler.taken_context);
    ibx_frees_forget(x->handler.taken_context);
    ibx_slots_forget(x->handler.taken_context);
    ibx_left_work_forget(x->handler.taken_context);
    ibx_cleared_forget(x->handler.taken_context);
    ibx_client_ends_forget(x->handler.taken_context);
    pthread_mutex_unlock(&gone.mutex);
}
