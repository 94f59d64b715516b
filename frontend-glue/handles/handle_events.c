/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Events that the nodes of graphs name. A client may destroy an event that is in a graph. But the
 * driver ends the process if an executable graph is made of, or updated by, a graph that names a
 * destroyed event, and if an executable graph is launched that waits for one. (One that records it
 * may be launched.) So these calls are refused then, and a request that makes one of them holds the
 * events: others that destroy them wait.
 */
#include "frontend-glue/handles/handle_lists.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_uint waiting; /* executable graphs that wait for events */

void **ibx_graph_nodes_of(void *function, void *graph, size_t *count, int *rc)
{
    int (*get)(void *graph, void **nodes, size_t *count) = NULL;
    memcpy(&get, &function, sizeof(get));
    *rc = get(graph, NULL, count);
    void **nodes = *rc ? NULL : calloc(*count + 1, sizeof(*nodes));
    if (!*rc && !nodes)
        *rc = CUDA_MEMORY_ALLOCATION;
    if (nodes && *count && (*rc = get(graph, nodes, count))) {
        free(nodes);
        nodes = NULL;
    }
    return nodes;
}

/* ------------------------------------------------------- what the nodes of a graph name */

struct search {
    void *get_nodes;
    int (*type_of)(void *node, int *type);
    int (*child_of)(void *node, void **graph);
    int (*recorded_by)(void *node, void **event);
    int (*awaited_by)(void *node, void **event);
};

/* False: the runtime lacks a function. */
static bool look_up(struct search *s)
{
    s->get_nodes = ibx_back_end_runtime("cudaGraphGetNodes");
    *(void **)&s->type_of = ibx_back_end_runtime("cudaGraphNodeGetType");
    *(void **)&s->child_of = ibx_back_end_runtime("cudaGraphChildGraphNodeGetGraph");
    *(void **)&s->recorded_by = ibx_back_end_runtime("cudaGraphEventRecordNodeGetEvent");
    *(void **)&s->awaited_by = ibx_back_end_runtime("cudaGraphEventWaitNodeGetEvent");
    return s->get_nodes && s->type_of && s->child_of && s->recorded_by && s->awaited_by;
}

/* False: no memory. */
static bool add_event(struct ibx_graph_events *g, const struct ibx_graph_event *event)
{
    if (g->count == g->room) {
        const size_t room = g->room ? 2 * g->room : 16;
        struct ibx_graph_event *more = realloc(g->named, room * sizeof(*more));
        if (!more)
            return false;
        g->named = more;
        g->room = room;
    }
    g->named[g->count++] = *event;
    return true;
}

/* The graphs of conditional nodes have no nodes with events: CUDA refuses these. */
static int find_events(const struct search *s, struct ibx_graph_events *g, void *graph,
                       unsigned depth)
{
    size_t count = 0;
    int rc = 0, type;
    void *of = NULL;
    void **nodes = ibx_graph_nodes_of(s->get_nodes, graph, &count, &rc);
    for (size_t i = 0; nodes && i < count && !rc; i++) {
        rc = s->type_of(nodes[i], &type);
        if (!rc && type == CHILD_NODE && depth < IBX_EXT_GRAPHS_DEEP &&
            !(rc = s->child_of(nodes[i], &of)))
            rc = find_events(s, g, of, depth + 1);
        if (rc || (type != WAIT_NODE && type != RECORD_NODE))
            continue;
        rc = type == WAIT_NODE ? s->awaited_by(nodes[i], &of) : s->recorded_by(nodes[i], &of);
        const struct ibx_graph_event event = {
            .node = (uintptr_t)nodes[i], .event = (uintptr_t)of, .waits = type == WAIT_NODE};
        if (!rc && !add_event(g, &event))
            rc = CUDA_MEMORY_ALLOCATION;
    }
    free(nodes);
    return rc;
}

/* Locked. The request holds the events from now on. CUDA_INVALID_HANDLE: one is gone. `unseen`:
 * there may be events that are not known here. */
static int hold_all(struct gpu_session *x, struct ibx_graph_event *events, size_t n, bool unseen)
{
    struct ibx_graph_events *g = &x->graph_events;
    g->held = calloc(n + 1, sizeof(struct handle *));
    if (!g->held)
        return CUDA_MEMORY_ALLOCATION;
    for (size_t i = 0; i < n; i++) {
        struct handle *h = ibx_handle_find(x, IBX_HANDLE_EVENT, events[i].event);
        if (h && events[i].number && events[i].number != h->number)
            h = NULL; /* another event with the same handle */
        if (!h && !(unseen && !events[i].number))
            return CUDA_INVALID_HANDLE;
        if (!h)
            continue;
        events[i].number = h->number;
        h->holders++;
        g->held[g->held_count++] = h;
    }
    return 0;
}

int ibx_graph_events_begin(struct gpu_session *x, void *graph)
{
    struct search s;
    struct ibx_graph_events *g = &x->graph_events;
    ibx_graph_events_end(x);
    int rc = graph && look_up(&s) ? find_events(&s, g, graph, 0) : 0;
    if (rc || !g->count)
        return rc;
    const bool unseen = ibx_named_any_event(x);
    pthread_mutex_lock(&ibx_handles_lock);
    rc = hold_all(x, g->named, g->count, unseen);
    pthread_mutex_unlock(&ibx_handles_lock);
    return rc;
}

bool ibx_graph_events_any_waits(const struct gpu_session *x)
{
    const struct ibx_graph_events *g = &x->graph_events;
    bool any = false;
    for (size_t i = 0; i < g->count; i++)
        any = any || g->named[i].waits;
    return any;
}

void ibx_graph_events_end(struct gpu_session *x)
{
    struct ibx_graph_events *g = &x->graph_events;
    if (g->held)
        ibx_handles_release(g->held, g->held_count);
    free(g->named);
    *g = (struct ibx_graph_events){.named = NULL};
}

/* --------------------------------------------------------- what executable graphs wait for */

static void forget_waits(struct handle *h)
{
    if (!h->waits)
        return;
    atomic_fetch_sub(&waiting, 1);
    free(h->waits->named);
    free(h->waits);
    h->waits = NULL;
}

void ibx_handle_forget_nodes(struct handle *h)
{
    forget_waits(h);
    ibx_handle_forget_extras(h);
}

/* Locked. False: no memory. */
static bool add_wait(struct handle *exec, const struct ibx_graph_event *event)
{
    if (!exec->waits) {
        exec->waits = calloc(1, sizeof(*exec->waits));
        atomic_fetch_add(&waiting, exec->waits != NULL);
    }
    return exec->waits && add_event(exec->waits, event);
}

bool ibx_graph_events_note(struct gpu_session *x, uint64_t exec)
{
    const struct ibx_graph_events *g = &x->graph_events;
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = ibx_handle_find(x, IBX_HANDLE_EXEC, exec);
    bool good = found;
    if (found)
        ibx_handle_forget_nodes(found);
    for (size_t i = 0; i < g->count && good; i++)
        good = !g->named[i].waits || add_wait(found, &g->named[i]);
    pthread_mutex_unlock(&ibx_handles_lock);
    return good;
}

/* Locked. The entry of a node; NULL: there is none. After an update the entries are of the nodes of
 * the graph that it was made by, and CUDA does not tell which of these stands for which one: an
 * only one stands for the only one. If there are more, the events of all count until the next
 * update. */
static struct ibx_graph_event *wait_of(const struct handle *exec, uint64_t node)
{
    const struct ibx_graph_events *waits = exec->waits;
    for (size_t i = 0; waits && i < waits->count; i++) {
        if (waits->named[i].node == node)
            return &waits->named[i];
    }
    return waits && waits->count == 1 ? &waits->named[0] : NULL;
}

bool ibx_graph_event_set(struct gpu_session *x, uint64_t exec, uint64_t node, uint64_t event)
{
    struct ibx_graph_event now = {.node = node, .event = event, .waits = true};
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = ibx_handle_find(x, IBX_HANDLE_EXEC, exec);
    const struct handle *named = ibx_handle_find(x, IBX_HANDLE_EVENT, event);
    struct ibx_graph_event *before = found ? wait_of(found, node) : NULL;
    now.number = named ? named->number : 0;
    if (before)
        *before = now;
    const bool good = before || (found && add_wait(found, &now));
    pthread_mutex_unlock(&ibx_handles_lock);
    return good;
}

int ibx_graph_events_launch(struct gpu_session *x, uint64_t exec)
{
    int rc = 0;
    if (!atomic_load(&waiting))
        return 0;
    const bool unseen = ibx_named_any_event(x);
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, IBX_HANDLE_EXEC, exec);
    if (found && found->waits)
        rc = hold_all(x, found->waits->named, found->waits->count, unseen);
    pthread_mutex_unlock(&ibx_handles_lock);
    return rc;
}
