/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What nodes have in an executable graph, and not in the graph that it was made of: functions of
 * clients' modules, and arrays. No object of CUDA's tells when these are needed no more. And for
 * which of these a graph has such an object. */
#include "frontend-glue/handles/handle_lists.h"
#include "frontend-glue/gvirtus_handlers/client_functions.h"

#include <pthread.h>
#include <stdlib.h>

#define OF_GRAPH_MOST 64u /* of a graph's are remembered, since each request looks through them */

void ibx_handle_forget_extras(struct handle *h)
{
    for (unsigned i = 0; i < h->extra_count; i++)
        h->extras[i].end(h->extras[i].what);
    h->extra_count = 0;
    free(h->extras);
    h->extras = NULL;
}

/* Locked. */
static bool has(const struct handle *h, const void *what)
{
    unsigned i = 0;
    while (i < h->extra_count && h->extras[i].what != what)
        i++;
    return i < h->extra_count;
}

/* Locked. False: no memory. */
static bool add(struct handle *h, const struct extra *extra)
{
    struct extra *more = realloc(h->extras, (h->extra_count + 1) * sizeof(*more));
    if (!more)
        return false;
    h->extras = more;
    h->extras[h->extra_count++] = *extra;
    return true;
}

/* Locked. Ends what the node has had so far: launches that are under way are waited for by whoever
 * gives it back. */
static void forget_of_node(struct handle *h, uint64_t node)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < h->extra_count; i++) {
        if (h->extras[i].node == node)
            h->extras[i].end(h->extras[i].what);
        else
            h->extras[kept++] = h->extras[i];
    }
    h->extra_count = kept;
}

bool ibx_handles_exec_has(struct gpu_session *x, uint64_t exec, uint64_t node, void *const *whats,
                          unsigned count, void (*end)(void *what))
{
    unsigned added = 0;
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = ibx_handle_find(x, IBX_HANDLE_EXEC, exec);
    if (found)
        forget_of_node(found, node);
    while (found && added < count && add(found, &(struct extra){whats[added], end, node}))
        added++;
    pthread_mutex_unlock(&ibx_handles_lock);
    for (unsigned i = added; i < count; i++)
        end(whats[i]);
    return added == count;
}

static void never(void *what)
{
    (void)what;
}

/* A module stays until its client's process has ended, an array until the client has. */
void ibx_handles_exec_captured(struct gpu_session *x, uint64_t exec)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, IBX_HANDLE_EXEC, exec);
    for (unsigned i = 0; found && i < found->extra_count; i++) {
        if (found->extras[i].end == ibx_functions_graph_end)
            ibx_functions_graph_unknown(found->extras[i].what);
        else
            found->extras[i].end = never;
    }
    pthread_mutex_unlock(&ibx_handles_lock);
}

/* Locked. A graph within another one is none: that may end, unseen. */
static struct handle *find_graph(const struct gpu_session *x, uint64_t graph)
{
    struct handle *found = ibx_handle_find(x, IBX_HANDLE_GRAPH, graph);
    return found && !found->of ? found : NULL;
}

bool ibx_handles_graph_has(struct gpu_session *x, uint64_t graph, const void *what)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = find_graph(x, graph);
    const bool is = found && has(found, what);
    pthread_mutex_unlock(&ibx_handles_lock);
    return is;
}

void ibx_handles_graph_note(struct gpu_session *x, uint64_t graph, void *what)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = find_graph(x, graph);
    if (found && found->extra_count < OF_GRAPH_MOST && !has(found, what))
        (void)add(found, &(struct extra){what, never, 0});
    pthread_mutex_unlock(&ibx_handles_lock);
}
