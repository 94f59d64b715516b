/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How many nodes of graphs a tenant may have, and how deep its graphs may be nested. A graph that
 * is put into another one is copied with all that is in it, so a few requests, each of which puts
 * the graph of the one before into another one twice, would ask for more than any host has.
 *
 * Room for what a request makes is reserved before CUDA makes it. What comes into a graph while
 * streams are captured is counted by requests, for each capture, until that is over: then the graph
 * exists and can be measured. A capture that is too large ends its session, and with it the
 * captures of the session.
 *
 * CUDA keeps for each captured stream which nodes its next one comes behind, and makes an edge for
 * each. There is one after a piece of work, but a wait for an event adds as many as the event's
 * stream had, and an event keeps as many. So what they get counts as nodes, too.
 */
#include "frontend-glue/clients/clients.h"

#include <stdlib.h>
#include <string.h>

#define NEW_EDGES 13000 /* from this version of CUDA on, edges have data */

/* ------------------------------------------------------------------------------------ nodes */

int ibx_graph_node_room(struct gpu_session *x, const void *graph, size_t behind, uint64_t inner,
                        unsigned depth, uint64_t *weight)
{
    const struct ibx_graph_size size = ibx_handles_size(x, IBX_HANDLE_GRAPH, (uintptr_t)graph);
    const uint64_t edges = behind > 1 ? behind - 1 : 0; /* the first edge counts with the node */
    *weight = 0;
    if (size.level + 1 + depth > IBX_EXT_GRAPHS_DEEP) {
        ibx_room_tell(x, IBX_HOLDS);
        return CUDA_NOT_SUPPORTED;
    }
    if (!ibx_room_take(x, IBX_HOLD_GRAPHS, 1 + edges + inner))
        return CUDA_MEMORY_ALLOCATION;
    *weight = 1 + edges + inner;
    return 0;
}

/* How many edges a graph has, apart from those in graphs within it; 0: not known. CUDA may refuse
 * to tell if edges have data, such as those of programmatic launches. */
static size_t edges_of(void *graph)
{
    int (*get)(void *graph, void **from, void **to, void *edges, size_t *count) = NULL;
    int (*get_before)(void *graph, void **from, void **to, size_t *count) = NULL;
    int (*version)(int *found) = NULL;
    void *function = ibx_back_end_runtime("cudaGraphGetEdges");
    size_t n = 0;
    int found = 0;
    *(void **)&version = ibx_back_end_runtime("cudaRuntimeGetVersion");
    if (!function || !version || version(&found))
        return 0;
    memcpy(&get, &function, sizeof(get));
    memcpy(&get_before, &function, sizeof(get_before));
    const bool had_error = ibx_back_end_has_error();
    const int rc =
        found < NEW_EDGES ? get_before(graph, NULL, NULL, &n) : get(graph, NULL, NULL, NULL, &n);
    if (rc && !had_error)
        ibx_back_end_forget_error();
    return rc ? 0 : n;
}

/* Adds up the nodes of a graph and of the graphs in it, and the edges beyond one for each node.
 * False: too many graphs are within each other. */
static bool count(void *graph, unsigned depth, uint64_t *nodes, unsigned *deepest)
{
    int (*type_of)(void *node, int *type) = NULL;
    int (*child_of)(void *node, void **child) = NULL;
    void *list = ibx_back_end_runtime("cudaGraphGetNodes"), *child = NULL;
    size_t n = 0;
    int rc = 0, type = 0;
    *(void **)&type_of = ibx_back_end_runtime("cudaGraphNodeGetType");
    *(void **)&child_of = ibx_back_end_runtime("cudaGraphChildGraphNodeGetGraph");
    void **all = list && type_of && child_of ? ibx_graph_nodes_of(list, graph, &n, &rc) : NULL;
    *deepest = depth > *deepest ? depth : *deepest;
    const size_t edges = all ? edges_of(graph) : 0;
    *nodes += all ? (edges > n ? edges : n) : 0;
    bool good = depth < IBX_EXT_GRAPHS_DEEP;
    for (size_t i = 0; all && i < n && good; i++) {
        if (!type_of(all[i], &type) && type == CHILD_NODE && !child_of(all[i], &child))
            good = count(child, depth + 1, nodes, deepest);
    }
    free(all);
    return good;
}

bool ibx_graph_measure(struct gpu_session *x, uint64_t graph)
{
    uint64_t nodes = 0;
    unsigned depth = 0;
    const bool good = count(pointer_to(graph), 0, &nodes, &depth);
    if (good)
        ibx_handles_grow(x, graph, nodes, depth);
    else
        ibx_room_tell(x, IBX_HOLDS);
    return good;
}

/* `added`: it is a handle of the session's. */
static bool own(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t handle, bool added)
{
    if (!added)
        return false;
    if (ibx_room_own(x, handle) && (kind != IBX_HANDLE_EXEC || ibx_graph_events_note(x, handle)))
        return true;
    ibx_handles_remove(x, kind, handle);
    return false;
}

bool ibx_graph_note(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t handle)
{
    return own(x, kind, handle, ibx_handles_add(x, kind, handle));
}

bool ibx_graph_note_part(struct gpu_session *x, uint64_t graph, uint64_t outer)
{
    const bool added = ibx_handles_add_graph_part(x, graph, outer);
    const bool noted = own(x, IBX_HANDLE_GRAPH, graph, added);
    if (noted && outer)
        ibx_handles_within(x, graph, outer);
    return noted;
}

/* --------------------------------------------------------------------------------- captures */

/* A request that is about to be refused may name anything: CUDA is asked only about streams that
 * exist. */
static bool is_captured(struct gpu_session *x, uint64_t stream, uint64_t *id)
{
    return stream > 0 && stream != (uintptr_t)IBX_CUDA_STREAM_LEGACY &&
           ibx_named_stream(x, stream) && ibx_captures_active(x, stream, id);
}

/* Whether a request may add work to a capture, whose number is *id. For a library it is not known
 * in which streams it works: the session's own captures count. */
static bool is_work(struct gpu_session *x, const struct ibx_call *call, const uint8_t *body,
                    size_t n, uint64_t *id)
{
    uint64_t stream = 0;
    switch (call->kind) {
    case IBX_CALL_LAUNCH:
    case IBX_CALL_REPEATS:
    case IBX_CALL_ENQUEUES:
    case IBX_CALL_COPIES:
        return ibx_call_stream(call, body, n, &stream) && is_captured(x, stream, id);
    default:
        return ibx_call_is_open(call->kind) && x->handler.captures == CAPTURES_SPARED &&
               ibx_captures_own(x, id);
    }
}

/* Locked. The entry of that capture, which is made if there is none. NULL: no memory. */
static struct ibx_capture_work *work_of(struct ibx_captured_work *w, uint64_t id)
{
    struct ibx_capture_work *c = w->list;
    while (c && c->id != id)
        c = c->next;
    if (c || !(c = malloc(sizeof(*c))))
        return c;
    *c = (struct ibx_capture_work){w->list, id, 0};
    w->list = c;
    return c;
}

/* Counts n more for that capture; id 0: it is not known which capture it is. False: too much. */
static bool captures_more(struct gpu_session *x, uint64_t id, uint64_t n)
{
    struct ibx_tenant *tenant = x->isolation.tenant;
    if (!tenant || !n)
        return true;
    struct ibx_captured_work *w = ibx_tenant_captured(tenant);
    pthread_mutex_lock(&w->lock);
    struct ibx_capture_work *c = id ? work_of(w, id) : NULL;
    *(c ? &c->work : &w->of_any) += n;
    w->all += n;
    const bool room = w->all <= ibx_quota_left(ibx_tenant_quota(tenant, IBX_HOLD_GRAPHS));
    pthread_mutex_unlock(&w->lock);
    if (!room)
        ibx_room_tell(x, IBX_HOLD_GRAPHS);
    return room;
}

void ibx_graph_capture_over(struct ibx_tenant *tenant, uint64_t id)
{
    struct ibx_captured_work *w = ibx_tenant_captured(tenant);
    pthread_mutex_lock(&w->lock);
    struct ibx_capture_work **at = &w->list;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    struct ibx_capture_work *over = *at;
    if (over) {
        w->all -= over->work;
        *at = over->next;
    }
    pthread_mutex_unlock(&w->lock);
    free(over);
}

void ibx_graph_captures_over(struct ibx_tenant *tenant)
{
    struct ibx_captured_work *w = ibx_tenant_captured(tenant);
    pthread_mutex_lock(&w->lock);
    struct ibx_capture_work *over = w->list;
    w->list = NULL;
    w->all = w->of_any = 0;
    pthread_mutex_unlock(&w->lock);
    while (over) {
        struct ibx_capture_work *next = over->next;
        free(over);
        over = next;
    }
}

bool ibx_graph_captures(struct gpu_session *x, const struct ibx_call *call, const uint8_t *body,
                        size_t n)
{
    uint64_t id = 0;
    return !ibx_captures_any() || !is_work(x, call, body, n, &id) || captures_more(x, id, 1);
}

/* The stream of a call that waits for an event, or records one; 0: it does neither. */
static uint64_t joined_stream(const char *name, const uint8_t *body, size_t n, bool *waits)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    *waits = strstr(name, "StreamWaitEvent");
    if (!*waits && !strstr(name, "EventRecord"))
        return 0;
    if (!*waits)
        ibx_get_u64(&r);
    return ibx_get_u64(&r);
}

/* Whether the tenant's captured work fits into its limit. Takes no room: threads that ask at the
 * same time may together exceed the limit a little. */
static bool may_join(struct gpu_session *x)
{
    struct ibx_tenant *tenant = x->isolation.tenant;
    if (!tenant)
        return true;
    struct ibx_captured_work *w = ibx_tenant_captured(tenant);
    pthread_mutex_lock(&w->lock);
    const bool may = w->all <= ibx_quota_left(ibx_tenant_quota(tenant, IBX_HOLD_GRAPHS));
    pthread_mutex_unlock(&w->lock);
    return may;
}

bool ibx_graph_joins_begin(struct gpu_session *x, const char *name, const uint8_t *body, size_t n)
{
    uint64_t id = 0;
    bool waits = false;
    const uint64_t stream = ibx_captures_any() ? joined_stream(name, body, n, &waits) : 0;
    x->capturing.joins = stream;
    x->capturing.behind = 0;
    if (!stream)
        return true;
    if (waits && is_captured(x, stream, &id))
        x->capturing.behind = ibx_captures_behind(x, stream);
    return may_join(x);
}

bool ibx_graph_joins_end(struct gpu_session *x)
{
    uint64_t id = 0;
    const uint64_t stream = x->capturing.joins;
    x->capturing.joins = 0;
    if (!stream || !is_captured(x, stream, &id))
        return true;
    const uint64_t before = x->capturing.behind, now = ibx_captures_behind(x, stream);
    return captures_more(x, id, now > before ? now - before : 0);
}

bool ibx_graph_captures_in(struct gpu_session *x, uint64_t stream)
{
    uint64_t id = 0;
    return !ibx_captures_any() || !is_captured(x, stream, &id) || captures_more(x, id, 1);
}

bool ibx_graph_launches(struct gpu_session *x, uint64_t exec, uint64_t stream)
{
    uint64_t id = 0;
    if (!ibx_captures_any() || !is_captured(x, stream, &id))
        return true;
    const struct ibx_graph_size size = ibx_handles_size(x, IBX_HANDLE_EXEC, exec);
    if (size.depth + 1 < IBX_EXT_GRAPHS_DEEP)
        return captures_more(x, id, size.nodes);
    ibx_room_tell(x, IBX_HOLDS);
    return false;
}

void ibx_graph_launched(struct gpu_session *x, uint64_t exec, uint64_t stream, unsigned before)
{
    uint64_t id = 0;
    if ((ibx_captures_any() && is_captured(x, stream, &id)) || ibx_captures_ended_since(x, before))
        ibx_handles_exec_captured(x, exec);
}

int ibx_captures_full(struct gpu_session *x)
{
    return ibx_session_fail(x->s, -EDQUOT,
                            "%s of tenant \"%s\" captures more than all graphs of a tenant may "
                            "have",
                            ibx_session_path(x->s)->peer, ibx_tenant_name(x->isolation.tenant));
}
