/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What nodes have in an executable graph, and not in the graph that it was made of: functions of
 * clients' modules, and arrays. No object of CUDA's tells when these are needed no more. And for
 * which of these a graph has such an object. */
#include "frontend-glue/handles/handle_lists.h"
#include "frontend-glue/gvirtus_handlers/client_functions.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>

/* What a node of an executable graph has; of a graph, something that it has an object for, and no
 * list. */
struct extras {
    uint64_t key; /* the node; or the address of that */
    unsigned count;
    struct extra {
        void *what;
        void (*end)(void *what); /* to be called once, when it is needed no more */
    } * list;
};

static int compare(const void *a, const void *b)
{
    const struct extras *left = a, *right = b;
    return (left->key > right->key) - (left->key < right->key);
}

static void end_all(void *of)
{
    struct extras *e = of;
    for (unsigned i = 0; i < e->count; i++)
        e->list[i].end(e->list[i].what);
    free(e->list);
    free(e);
}

void ibx_handle_forget_extras(struct handle *h)
{
    tdestroy(h->extras, end_all);
    h->extras = NULL;
}

/* Locked. NULL: it has nothing. */
static struct extras *extras_of(const struct handle *h, uint64_t key)
{
    struct extras *const *found = tfind(&(struct extras){.key = key}, &h->extras, compare);
    return found ? *found : NULL;
}

/* Locked. NULL: no memory. */
static struct extras *enter(struct handle *h, uint64_t key)
{
    struct extras *made = calloc(1, sizeof(*made));
    if (!made)
        return NULL;
    made->key = key;
    if (tsearch(made, &h->extras, compare))
        return made;
    free(made);
    return NULL;
}

/* Locked. False: no memory. */
static bool add(struct extras *e, void *what, void (*end)(void *what))
{
    struct extra *more = e ? realloc(e->list, (e->count + 1) * sizeof(*more)) : NULL;
    if (!more)
        return false;
    e->list = more;
    e->list[e->count++] = (struct extra){what, end};
    return true;
}

/* Locked. Ends what the node has had so far: launches that are under way are waited for by whoever
 * gives it back. */
static void forget_of_node(struct handle *h, uint64_t node)
{
    struct extras *e = extras_of(h, node);
    if (!e)
        return;
    tdelete(e, &h->extras, compare);
    end_all(e);
}

bool ibx_handles_exec_has(struct gpu_session *x, uint64_t exec, uint64_t node, void *const *whats,
                          unsigned count, void (*end)(void *what))
{
    unsigned added = 0;
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = ibx_handle_find(x, IBX_HANDLE_EXEC, exec);
    if (found)
        forget_of_node(found, node);
    struct extras *e = found && count ? enter(found, node) : NULL;
    while (added < count && add(e, whats[added], end))
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
static void stay(const void *at, VISIT visit, int level)
{
    const struct extras *e = *(struct extras *const *)at;
    (void)level;
    for (unsigned i = 0; i < e->count && (visit == postorder || visit == leaf); i++) {
        if (e->list[i].end == ibx_functions_graph_end)
            ibx_functions_graph_unknown(e->list[i].what);
        else
            e->list[i].end = never;
    }
}

void ibx_handles_exec_captured(struct gpu_session *x, uint64_t exec)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, IBX_HANDLE_EXEC, exec);
    if (found)
        twalk(found->extras, stay);
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
    const bool is = found && extras_of(found, (uintptr_t)what);
    pthread_mutex_unlock(&ibx_handles_lock);
    return is;
}

void ibx_handles_graph_note(struct gpu_session *x, uint64_t graph, const void *what)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = find_graph(x, graph);
    if (found && !extras_of(found, (uintptr_t)what))
        enter(found, (uintptr_t)what);
    pthread_mutex_unlock(&ibx_handles_lock);
}
