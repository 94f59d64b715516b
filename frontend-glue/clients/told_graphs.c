/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Graphs of captures that clients were told. CUDA has such a graph until the capture ends, also if
 * that was invalidated, and destroys it if the end fails. So nobody else destroys it meanwhile, and
 * who ends the capture has it alone.
 */
#include "frontend-glue/clients/captures_internal.h"

int ibx_captures_tell_graph(struct gpu_session *x, uint64_t id, uint64_t graph)
{
    pthread_mutex_lock(&ibx_captures_lock);
    const struct ibx_captured *c = ibx_capture_entry_of(x, id, 0);
    const bool there = c, told = c && c->graph == graph;
    pthread_mutex_unlock(&ibx_captures_lock);
    if (told || !there)
        return there ? 0 : CUDA_NOT_SUPPORTED;
    if (!ibx_graph_note_part(x, graph, 0))
        return CUDA_MEMORY_ALLOCATION;
    pthread_mutex_lock(&ibx_captures_lock);
    struct ibx_captured *now = ibx_capture_entry_of(x, id, 0);
    if (now)
        now->graph = graph;
    pthread_mutex_unlock(&ibx_captures_lock);
    if (!now)
        ibx_handles_capture_over(x, graph, false);
    return now ? 0 : CUDA_NOT_SUPPORTED;
}

/* The capture of which a client was told this graph. False: there is none. */
static bool find_told(const struct gpu_session *x, uint64_t graph, struct ibx_captured *told)
{
    pthread_mutex_lock(&ibx_captures_lock);
    const struct ibx_captured *c = ibx_capture_entry_of(x, 0, graph);
    if (c)
        *told = *c;
    pthread_mutex_unlock(&ibx_captures_lock);
    return c;
}

/* Whether the capture is under way, as far as this session can ask: of a thread's own stream it
 * cannot. */
static bool is_still(struct gpu_session *x, const struct ibx_captured *told)
{
    pthread_mutex_lock(&ibx_captures_lock);
    const bool may_ask = told->stream > 2 || ibx_capture_holds(x, told->stream);
    pthread_mutex_unlock(&ibx_captures_lock);
    return !may_ask || ibx_capture_is_still(x, told->stream, told->id);
}

/* Whether the stream can be asked about: the last of its users destroys one that a client has given
 * back before it knew of the capture, and with it the capture and its graph. */
static bool is_there(struct gpu_session *x, uint64_t stream)
{
    return stream <= (uintptr_t)IBX_CUDA_STREAM_PER_THREAD ||
           ibx_handles_has(x, IBX_HANDLE_STREAM, stream) || ibx_named_any_event(x);
}

static void forget(const struct gpu_session *x, const struct ibx_captured *told)
{
    pthread_mutex_lock(&ibx_captures_lock);
    struct ibx_captured *c = ibx_capture_entry_of(x, told->id, 0);
    const bool has = c && c->graph == told->graph;
    if (has)
        c->graph = 0;
    pthread_mutex_unlock(&ibx_captures_lock);
    if (has)
        ibx_handles_capture_over(x, told->graph, false);
}

/* The stream is a bare address, too: nobody destroys it while CUDA is asked. If it is gone, it may
 * be that its end has not come yet, and is about to wait for those who use the graph. */
bool ibx_captures_has_graph(struct gpu_session *x, uint64_t graph)
{
    struct ibx_captured told;
    if (!graph || !ibx_captures_any_of_tenant(x) || !find_told(x, graph, &told))
        return true;
    ibx_captures_graphs_hold(x);
    const bool known = find_told(x, graph, &told), there = known && is_there(x, told.stream);
    const bool has = !known || (there && is_still(x, &told));
    ibx_captures_graphs_let_go(x);
    if (!has && (there || ibx_handles_change(x, IBX_HANDLE_GRAPH, graph)))
        forget(x, &told);
    return has;
}

uint64_t ibx_told_graph(struct gpu_session *x, uint64_t stream, bool take)
{
    pthread_mutex_lock(&ibx_captures_lock);
    struct ibx_captured *c = ibx_capture_entry_in(x, stream);
    const uint64_t graph = c ? c->graph : 0;
    if (c && take)
        c->graph = 0;
    pthread_mutex_unlock(&ibx_captures_lock);
    return graph;
}

void ibx_told_graph_answered(struct gpu_session *x, bool is_over, bool made)
{
    const uint64_t graph = x->handler.ended_graph;
    x->handler.ended_graph = 0;
    if (!graph)
        return;
    pthread_mutex_lock(&ibx_captures_lock);
    struct ibx_captured *c = is_over ? NULL : ibx_capture_entry_in(x, ibx_captures_stream_of(x));
    if (c)
        c->graph = graph;
    pthread_mutex_unlock(&ibx_captures_lock);
    if (!c)
        ibx_handles_capture_over(x, graph, made);
}

/* A question may come before the lock. */
bool ibx_told_graphs_end_begin(struct gpu_session *x, uint64_t stream)
{
    for (uint64_t graph = ibx_told_graph(x, stream, false), now;; graph = now) {
        const bool alone = !graph || ibx_handles_change(x, IBX_HANDLE_GRAPH, graph);
        if (!alone && ibx_handles_is_captured(x, graph) &&
            ibx_told_graph(x, stream, false) == graph)
            return false;
        pthread_rwlock_wrlock(ibx_captures_graphs_lock(x));
        now = ibx_told_graph(x, stream, false);
        if (now == graph)
            return true;
        pthread_rwlock_unlock(ibx_captures_graphs_lock(x));
    }
}
