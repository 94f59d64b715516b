/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Contexts that clients reset or destroy. All clients share one, unless they make their own. Events
 * that sessions have in a context are destroyed with it: no session may use them any more.
 */
#include "frontend-glue/clients/graph_slots.h"
#include "frontend-glue/clients/unpinned_copies.h"
#include "frontend-glue/clients/virtual_memory.h"

/* Exit codes of requests that have done nothing: GVirtuS's for an unknown request, and CUDA's. */
#define UNKNOWN         (-1)
#define INVALID_VALUE   1
#define NOT_INITIALIZED 3
#define INVALID_CONTEXT 201

/* The primary context of the calling thread's device, which its runtime resets. */
static void find_primary(struct gpu_session *x, const struct ibx_cuda *cuda)
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

void ibx_context_lose(struct gpu_session *x)
{
    bool named = x->requests.names_context;
    x->handler.taken_context = named ? (void *)(uintptr_t)x->requests.context : NULL;
    x->handler.takes_context = !named || x->handler.taken_context;
    const struct ibx_cuda *cuda = ibx_cuda_load(NULL);
    if (!cuda)
        return;
    if (!named)
        find_primary(x, cuda);
    ibx_back_end_handle_resets(x);
    if (x->staging)
        ibx_staging_drop_events(x->staging);
    ibx_client_pins_drop_fences(&x->pins, cuda);
}

static void forget(const void *context)
{
    ibx_owners_forget(context);
    ibx_handles_forget(context);
    ibx_virtual_forget(context);
    ibx_end_forget(context);
    ibx_frees_forget(context);
    ibx_slots_forget(context);
    ibx_unpinned_forget(context);
    ibx_left_work_forget(context);
    ibx_word_stream_forget(context);
    ibx_cleared_forget(context);
    ibx_pending_clear_forget(context);
    ibx_client_ends_forget(context);
    ibx_staging_forget_for_all(context);
}

/* The context may be gone although the answer is an error, which may be that of earlier work. */
void ibx_context_lost(struct gpu_session *x, int exit_code)
{
    bool refused =
        exit_code == INVALID_VALUE || exit_code == NOT_INITIALIZED || exit_code == INVALID_CONTEXT;
    if (!x->handler.takes_context || exit_code == UNKNOWN || (refused && x->requests.names_context))
        return;
    ibx_back_end_note_reset(x->handler.taken_context, forget);
}
