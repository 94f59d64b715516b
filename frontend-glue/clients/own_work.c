/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls of a client that wait for the device. Natively they wait for the work of its own process.
 * In the context that all clients share, CUDA waits for everybody's work, which may never end, and
 * in some of these calls, such as cudaFree, it meanwhile keeps out everybody's launches and
 * allocations. So if there are other clients, only the client's own work is waited for here, by
 * events, which keep nobody out and are not part of what others capture; and memory is freed by
 * cudaFreeAsync, which does not wait.
 *
 * The client's work is in its streams, in CUDA's per-thread stream of the session's thread, and
 * perhaps in the legacy stream, which all clients share. Work that libraries have in streams of
 * their own, or that other threads have in their per-thread streams, cannot be found; nor is it
 * known which sessions belong to a client that has not said which process it is, or that comes from
 * several addresses. A call of such a client waits for all work that can be found, before CUDA
 * does.
 */
#include "frontend-glue/clients/clients.h"
#include "frontend-glue/clients/virtual_memory.h"

#include <stdlib.h>

#define SETTLE_MS 1000u /* for so long work is waited for */
#define MOMENT_MS 50u   /* ... and for so long, once that was in vain: a program has many modules */

/* ------------------------------------------------------------------- the client's own work */

/* The work of the client that was under way when this was made. */
struct own {
    void **events; /* behind the work of its streams */
    size_t count;
    unsigned resets; /* ibx_back_end_resets() as it was made: a reset destroys the events */
};

/* False: a stream is being captured, or CUDA fails. `quiet`: nobody captures, nor begins to;
 * otherwise streams are not queried, since to query one that is being captured would end the
 * capture. */
static bool put_events(const struct ibx_cuda *cuda, struct handle **streams, size_t count,
                       bool quiet, struct own *own)
{
    for (size_t i = 0; i < count; i++) {
        void *stream = (void *)(uintptr_t)ibx_handles_value(streams[i]);
        int capturing = 0;
        if (cuda->stream_is_capturing(stream, &capturing) || capturing)
            return false;
        if (quiet && cuda->stream_query(stream) != IBX_CUDA_NOT_READY)
            continue;
        if (cuda->event_create(&own->events[own->count], IBX_CUDA_EVENT_DISABLE_TIMING))
            return false;
        if (cuda->event_record(own->events[own->count++], stream))
            return false;
    }
    return true;
}

/* Puts an event behind the work of the legacy stream, whoever's it is. False: CUDA fails. */
static bool put_behind_legacy(const struct ibx_cuda *cuda, bool quiet, struct own *own)
{
    const int rc = quiet ? cuda->stream_query(IBX_CUDA_STREAM_LEGACY) : IBX_CUDA_NOT_READY;
    void *event = rc == IBX_CUDA_NOT_READY ? ibx_own_event_behind_legacy(cuda) : NULL;
    if (event)
        own->events[own->count++] = event;
    return !rc || event;
}

/* Whether the thread's own stream is being captured: to wait for it would end the capture. */
static bool is_captured(const struct gpu_session *x)
{
    int capturing = 0;
    return x->thread_stream &&
           (x->cuda->stream_is_capturing(IBX_CUDA_STREAM_PER_THREAD, &capturing) || capturing);
}

static bool find_own(const struct ibx_cuda *cuda, uint64_t client, const void *context,
                     struct own *own)
{
    size_t count = 0;
    struct handle **streams = ibx_handles_hold_streams(client, context, &count);
    *own = (struct own){.events = streams ? calloc(count + 1, sizeof(void *)) : NULL,
                        .resets = ibx_back_end_resets()};
    const bool quiet = ibx_captures_wait_try();
    const bool found = own->events && put_events(cuda, streams, count, quiet, own) &&
                       put_behind_legacy(cuda, quiet, own);
    if (quiet)
        ibx_captures_wait_end();
    if (streams)
        ibx_handles_release(streams, count);
    return found;
}

static void forget_own(const struct ibx_cuda *cuda, struct own *own)
{
    while (own->count && own->resets == ibx_back_end_resets())
        cuda->event_destroy(own->events[--own->count]);
    free(own->events);
}

/* False: CUDA fails. */
static bool wait_for_own(struct gpu_session *x, uint64_t client, const struct own *own)
{
    uint64_t ns = 0;
    int rc = 0;
    for (size_t i = 0; i < own->count && !rc; i++)
        rc = x->cuda->event_synchronize(own->events[i]);
    if (x->thread_stream && !rc)
        rc = x->cuda->stream_synchronize(IBX_CUDA_STREAM_PER_THREAD);
    while (!rc && ibx_left_work_any(x->cuda, client, 0))
        ibx_nap(&ns);
    return !rc;
}

/* False also if a client resets the context now. */
bool ibx_own_work_wait(struct gpu_session *x)
{
    struct own own = {.events = NULL};
    void *context = NULL;
    if (!ibx_clients_several(x) || !ibx_clients_find_work(x) || ibx_named_any_unseen() ||
        !ibx_back_end_have_cuda(x) || x->cuda->ctx_get_current(&context) || !context ||
        !ibx_clients_give_begin())
        return false;
    const uint64_t client = ibx_clients_number(x);
    ibx_captures_spare(x, 0);
    const int mode = ibx_cuda_capture_relax(x->cuda);
    const bool over = !is_captured(x) && find_own(x->cuda, client, context, &own) &&
                      wait_for_own(x, client, &own);
    forget_own(x->cuda, &own);
    ibx_cuda_capture_restore(x->cuda, mode);
    ibx_clients_give_end();
    return over;
}

/* ---------------------------------------------------------------------------- all work */

/* Whether work of other clients may be under way in the context. */
static bool others_work(struct gpu_session *x, uint64_t client, const void *context)
{
    size_t count = 0, i = 0;
    if (ibx_clients_use_thread_streams(x) || !ibx_captures_wait_try())
        return true;
    struct handle **streams = ibx_handles_hold_streams(0, context, &count);
    while (i < count && (ibx_handles_client(streams[i]) == client ||
                         x->cuda->stream_query((void *)(uintptr_t)ibx_handles_value(streams[i])) !=
                             IBX_CUDA_NOT_READY))
        i++;
    const bool any = !streams || i < count || ibx_left_work_any(x->cuda, 0, UINT64_MAX) ||
                     x->cuda->stream_query(IBX_CUDA_STREAM_LEGACY) == IBX_CUDA_NOT_READY;
    if (streams)
        ibx_handles_release(streams, count);
    ibx_captures_wait_end();
    return any;
}

/* Frees memory by cudaFreeAsync, when the client's own work is over. False: it is to be freed by
 * cudaFree, since nobody else works, or CUDA has no other way. */
static bool free_beside(struct gpu_session *x, uint64_t memory, const void *context)
{
    if (!ibx_own_work_wait(x) || !others_work(x, ibx_clients_number(x), context))
        return false;
    const uint64_t number = ibx_owners_number(memory);
    void *stream = ibx_own_stream_begin();
    const bool freed = stream && ibx_release_memory_async(memory, stream);
    if (stream)
        ibx_own_stream_end(x->cuda, stream);
    if (freed)
        ibx_owners_remove(memory, number);
    return freed;
}

/* Frees memory of a pool that is still being cleared: cudaFree would not wait for the clear, nor
 * may it wait for other work of the program. False: nothing was done. */
static bool free_cleared(struct gpu_session *x, uint64_t memory)
{
    const uint64_t number = ibx_owners_number(memory);
    const int mode = ibx_cuda_capture_relax(x->cuda);
    void *stream = ibx_own_stream_begin();
    const bool freed = stream && ibx_pending_clear_before(memory, stream) &&
                       ibx_release_memory_async(memory, stream);
    if (freed)
        ibx_own_stream_leave(stream);
    else if (stream)
        ibx_own_stream_end(x->cuda, stream); /* waits for the clear */
    ibx_cuda_capture_restore(x->cuda, mode);
    if (freed)
        ibx_owners_remove(memory, number);
    return freed;
}

bool ibx_own_work_free(struct gpu_session *x, uint64_t memory)
{
    const void *context = NULL;
    void *popped = NULL;
    const bool cleared = ibx_pending_clear(x, memory);
    if (!(cleared || ibx_clients_several(x)) || !ibx_back_end_have_cuda(x) ||
        !ibx_back_end_runtime("cudaFreeAsync") || ibx_virtual_holds(memory) ||
        !ibx_handles_is_own(x, IBX_HANDLE_MEMORY, memory, &context) || !context ||
        x->cuda->ctx_push_current((void *)(uintptr_t)context))
        return false;
    const bool freed = cleared ? free_cleared(x, memory) : free_beside(x, memory, context);
    x->cuda->ctx_pop_current(&popped);
    return freed;
}

/* The work that uses it may not be known here: CUDA waits for that, too, as it frees it. */
bool ibx_own_work_leave(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    struct ibx_taken taken = {.kind = kind, .value = value, .owned = ibx_owners_number(value)};
    uint64_t whose;
    if (!ibx_clients_several(x) || !ibx_handles_is_own(x, kind, value, &taken.context))
        return false;
    ibx_own_work_wait(x);
    const enum ibx_work work = ibx_own_work_settle(x, SETTLE_MS, &whose);
    if (work == IBX_WORK_OVER || work == IBX_WORK_LOST || !ibx_handles_remove(x, kind, value))
        return false;
    if (!ibx_client_ends_leave(&taken)) {
        ibx_own_work_settle_all(x);
        ibx_release_taken(x, &taken, 1);
    }
    return true;
}

void ibx_own_unload_guard(struct gpu_session *x, uint8_t *bytes, size_t n)
{
    uint8_t *last = ibx_request_ends_name(&x->requests, bytes, n, "cudaUnregisterFatBinary");
    uint64_t whose;
    if (!last)
        return;
    const unsigned ms = x->keeps_kernels ? MOMENT_MS : SETTLE_MS;
    const enum ibx_work work = ibx_own_work_settle(x, ms, &whose);
    x->keeps_kernels = work != IBX_WORK_OVER && work != IBX_WORK_LOST;
    if (!x->keeps_kernels)
        return;
    ibx_functions_share(ibx_functions_user_of(x), 0);
    *last = '?';
}
