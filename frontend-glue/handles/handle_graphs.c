/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* In which graphs nodes and graphs are, and the object that belongs to a node. */
#include "frontend-glue/handles/handle_lists.h"

#include <pthread.h>
#include <stdatomic.h>

static _Atomic uint64_t changes = 1;

uint64_t ibx_graph_changes(void)
{
    return atomic_load(&changes);
}

void ibx_graphs_changed(void)
{
    atomic_fetch_add(&changes, 1);
}

void ibx_handles_graph_plain(struct gpu_session *x, uint64_t graph, uint64_t at)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = ibx_handle_find(x, IBX_HANDLE_GRAPH, graph);
    if (found)
        found->plain_at = at;
    pthread_mutex_unlock(&ibx_handles_lock);
}

bool ibx_handles_graph_is_plain(struct gpu_session *x, uint64_t graph)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, IBX_HANDLE_GRAPH, graph);
    const bool is = found && found->plain_at == ibx_graph_changes();
    pthread_mutex_unlock(&ibx_handles_lock);
    return is;
}

bool ibx_handle_is_in(const struct gpu_session *x, uint64_t outer, uint64_t graph, uint64_t number)
{
    while (graph && graph != outer) {
        const struct handle *found = ibx_handle_find(x, IBX_HANDLE_GRAPH, graph);
        graph = found && found->moved < number ? found->of : 0;
    }
    return graph;
}

bool ibx_handles_list_node(struct gpu_session *x, uint64_t node, uint64_t graph)
{
    return ibx_handle_add(x, IBX_HANDLE_NODE, node, graph, 1, true);
}

bool ibx_handles_contains(struct gpu_session *x, uint64_t outer, uint64_t graph)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const bool is = ibx_handle_is_in(x, outer, graph, UINT64_MAX);
    pthread_mutex_unlock(&ibx_handles_lock);
    return is;
}

bool ibx_handles_condition_fits(struct gpu_session *x, uint64_t condition, uint64_t graph)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, IBX_HANDLE_CONDITION, condition);
    const bool fits = found && ibx_handle_is_in(x, found->of, graph, UINT64_MAX);
    pthread_mutex_unlock(&ibx_handles_lock);
    return fits;
}

bool ibx_handles_is_within(struct gpu_session *x, uint64_t graph)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, IBX_HANDLE_GRAPH, graph);
    const bool is = found && found->of;
    pthread_mutex_unlock(&ibx_handles_lock);
    return is;
}

uint64_t ibx_handles_outermost(struct gpu_session *x, uint64_t graph)
{
    const struct handle *found;
    pthread_mutex_lock(&ibx_handles_lock);
    while ((found = ibx_handle_find(x, IBX_HANDLE_GRAPH, graph)) && found->of)
        graph = found->of;
    pthread_mutex_unlock(&ibx_handles_lock);
    return graph;
}

uint64_t ibx_handles_graph_of(struct gpu_session *x, uint64_t node, bool outermost)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, IBX_HANDLE_NODE, node);
    uint64_t graph = found ? found->of : 0;
    while (outermost && (found = ibx_handle_find(x, IBX_HANDLE_GRAPH, graph)) && found->of)
        graph = found->of;
    pthread_mutex_unlock(&ibx_handles_lock);
    return graph;
}

uint64_t ibx_handles_set_object(struct gpu_session *x, uint64_t node, uint64_t object)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = ibx_handle_find(x, IBX_HANDLE_NODE, node);
    const uint64_t before = found ? found->object : 0;
    if (found)
        found->object = object;
    pthread_mutex_unlock(&ibx_handles_lock);
    return before;
}

void ibx_handles_move(struct gpu_session *x, uint64_t graph, uint64_t other)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = ibx_handle_find(x, IBX_HANDLE_GRAPH, graph);
    if (found)
        found->moved = ibx_handle_next_number();
    pthread_mutex_unlock(&ibx_handles_lock);
    ibx_handles_within(x, graph, other);
}

/* ---------------------------------------------------------------- graphs of captures */

/* Another tenant may have a graph at the address of one that has ended unseen. */
void ibx_handles_capture_begins(const struct gpu_session *x, uint64_t graph)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = ibx_handle_of_tenant(x, IBX_HANDLE_GRAPH, graph);
    if (h)
        h->into = true;
    pthread_mutex_unlock(&ibx_handles_lock);
}

void ibx_handles_capture_over(const struct gpu_session *x, uint64_t graph, bool made)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = ibx_handle_of_tenant(x, IBX_HANDLE_GRAPH, graph);
    const bool was = h && h->into;
    if (was)
        h->into = false;
    if (was && !made) {
        ibx_owners_remove(graph, ibx_owners_number(graph));
        ibx_handle_forget_parts(IBX_HANDLE_GRAPH, graph);
        ibx_handle_drop(h);
    }
    pthread_mutex_unlock(&ibx_handles_lock);
}

bool ibx_handles_is_captured(struct gpu_session *x, uint64_t graph)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *h = ibx_handle_find(x, IBX_HANDLE_GRAPH, graph);
    const bool is = h && h->into;
    pthread_mutex_unlock(&ibx_handles_lock);
    return is;
}

bool ibx_handles_must_stay(struct gpu_session *x, uint64_t graph)
{
    return ibx_handles_is_captured(x, graph) || ibx_handles_is_within(x, graph);
}
