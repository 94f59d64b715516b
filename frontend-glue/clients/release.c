/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How each kind of thing that a client has made in the context is given back to CUDA: by which
 * function, and in which order. own_reset.c, own_work.c and client_ends.c decide what, and when.
 */
#include "frontend-glue/clients/clients.h"
#include "frontend-glue/clients/graph_slots.h"
#include "frontend-glue/clients/virtual_memory.h"
#include "frontend-glue/session/math_calls.h"

#include <stdlib.h>

/* In the order in which things are given back: what is made of others first. */
static const struct {
    enum ibx_handle_kind kind;
    const char *give_back;
} ends[] = {
    {IBX_HANDLE_EXEC, "cudaGraphExecDestroy"},
    {IBX_HANDLE_GRAPH, "cudaGraphDestroy"},
    {IBX_HANDLE_TEXTURE, "cudaDestroyTextureObject"},
    {IBX_HANDLE_SURFACE, "cudaDestroySurfaceObject"},
    {IBX_HANDLE_MIPMAP, "cudaFreeMipmappedArray"},
    {IBX_HANDLE_ARRAY, "cudaFreeArray"},
    {IBX_HANDLE_EVENT, "cudaEventDestroy"},
    {IBX_HANDLE_STREAM, "cudaStreamDestroy"},
    {IBX_HANDLE_OPENED, "cudaIpcCloseMemHandle"},
    {IBX_HANDLE_OPENED_POINTER, "cudaFree"},
    {IBX_HANDLE_OPENED_POOL, "cudaMemPoolDestroy"},
    {IBX_HANDLE_MEMORY, "cudaFree"},
    {IBX_HANDLE_MAPPABLE, NULL},
    {IBX_HANDLE_MADE_POOL, "cudaMemPoolDestroy"},
    {IBX_HANDLE_MADE_CONTEXT, NULL},
    {IBX_HANDLE_FUNCTION, NULL},
    {IBX_HANDLE_TEXTURE_REFERENCE, NULL},
    {IBX_HANDLE_MODULE, NULL},
    {IBX_HANDLE_LT_OPERATION, NULL},
    {IBX_HANDLE_LT_LAYOUT, NULL},
    {IBX_HANDLE_LT_PREFERENCE, NULL},
};

static void give_back(struct gpu_session *x, const struct ibx_taken *taken, const char *function)
{
    if (taken->kind >= IBX_HANDLE_MATH) {
        ibx_end_math(taken->kind - IBX_HANDLE_MATH, taken->value);
        return;
    }
    if (taken->kind == IBX_HANDLE_MAPPABLE) {
        ibx_end_mappable_gone(taken->value);
        ibx_virtual_end_memory(taken->value);
        return;
    }
    if (ibx_handle_is_of_handlers(taken->kind))
        return; /* GVirtuS leaves it, too */
    ibx_end_gone(taken->value);
    if (taken->kind == IBX_HANDLE_MEMORY)
        ibx_gpu_registrations_freed(NULL, taken->value);
    if (taken->kind == IBX_HANDLE_EXEC)
        ibx_exec_ends_wait(x, pointer_to(taken->value));
    if (taken->kind == IBX_HANDLE_OPENED_POINTER || taken->kind == IBX_HANDLE_OPENED_POOL)
        ibx_end_opened(taken->kind, taken->value);
    else if (taken->kind != IBX_HANDLE_MEMORY || !ibx_virtual_end_addresses(taken->value))
        ibx_back_end_undo(function, taken->value);
    ibx_taken_gone(taken);
}

bool ibx_release_memory_async(uint64_t memory, void *stream)
{
    int (*give)(void *address, void *of) = NULL;
    int (*forget)(void) = NULL;
    *(void **)&give = ibx_back_end_runtime("cudaFreeAsync");
    *(void **)&forget = ibx_back_end_runtime("cudaGetLastError");
    ibx_end_gone(memory);
    ibx_gpu_registrations_freed(NULL, memory);
    if (ibx_virtual_end_addresses(memory)) /* this does not wait either */
        return true;
    if (give && !give(pointer_to(memory), stream))
        return true;
    if (forget)
        forget();
    return false;
}

bool ibx_release_kind(unsigned i, enum ibx_handle_kind *kind)
{
    const unsigned count = sizeof(ends) / sizeof(ends[0]);
    if (i < IBX_MATH_TYPES)
        *kind = (enum ibx_handle_kind)(IBX_HANDLE_MATH + i);
    else if (i < IBX_MATH_TYPES + count)
        *kind = ends[i - IBX_MATH_TYPES].kind;
    return i < IBX_MATH_TYPES + count;
}

void ibx_release_taken(struct gpu_session *x, const struct ibx_taken *taken, size_t count)
{
    enum ibx_handle_kind kind;
    for (unsigned i = 0; ibx_release_kind(i, &kind); i++) {
        for (size_t k = 0; k < count; k++) {
            if (taken[k].kind == kind)
                give_back(x, &taken[k],
                          i < IBX_MATH_TYPES ? NULL : ends[i - IBX_MATH_TYPES].give_back);
        }
    }
}

/* No session is needed for a stream or an event. */
void ibx_release_destroyed(const struct ibx_taken *taken)
{
    const struct ibx_cuda *cuda = ibx_cuda_load(NULL);
    void *context = (void *)(uintptr_t)taken->context, *popped = NULL;
    if (!cuda || (context && cuda->ctx_push_current(context)))
        return; /* it is gone with its context */
    const int mode = ibx_cuda_capture_relax(cuda);
    ibx_release_taken(NULL, taken, 1);
    ibx_cuda_capture_restore(cuda, mode);
    if (context)
        cuda->ctx_pop_current(&popped);
}

/* Gives it back in the context in which it was made; if that is gone, so is the thing. */
static void give_back_there(struct gpu_session *x, const struct ibx_taken *taken,
                            const char *function)
{
    void *context = (void *)(uintptr_t)taken->context, *popped = NULL;
    if (context && x->cuda->ctx_push_current(context))
        return;
    give_back(x, taken, function);
    if (context)
        x->cuda->ctx_pop_current(&popped);
}

/* The last launch of each is waited for by its event, which keeps nobody out; what it waits for
 * from its client has been released by then. In a broken context graphs are freed by a reset. */
void ibx_release_graphs(struct gpu_session *x, uint64_t client)
{
    struct ibx_taken *taken = NULL;
    const bool can = ibx_back_end_have_cuda(x) && !ibx_context_broken();
    const size_t count = can ? ibx_handles_take_graphs(client, &taken) : 0;
    const int mode = count ? ibx_cuda_capture_relax(x->cuda) : 0;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        for (size_t k = 0; k < count; k++) {
            if (taken[k].kind == ends[i].kind)
                give_back_there(x, &taken[k], ends[i].give_back);
        }
    }
    if (count)
        ibx_cuda_capture_restore(x->cuda, mode);
    free(taken);
    if (can)
        ibx_slots_yield(x);
}
