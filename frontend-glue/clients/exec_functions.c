/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Functions of clients that nodes call in an executable graph, and not in the graph that it was
 * made of (cudaGraphExecHostNodeSetParams). CUDA takes user objects only for graphs, so nothing
 * tells when such a function is needed no more: it is replaced by the node's next one, by an update
 * of the executable graph or by its end, and launches before that may still call it.
 */
#include "frontend-glue/clients/clients.h"

#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdlib.h>

/* The function of a node. */
struct set {
    const void *node, *function;
    struct set *next;
};

/* An executable graph with such functions. */
struct changed {
    const void *exec, *context; /* NULL: it is not known in which context it is */
    struct set *sets;
    void *by_node; /* a tree of them */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *all; /* a tree, by exec */
static _Atomic unsigned count;

/* By the first member, of both structures. */
static int compare(const void *a, const void *b)
{
    const void *const *left = a, *const *right = b;
    const uintptr_t at = (uintptr_t)*left, other = (uintptr_t)*right;
    return (at > other) - (at < other);
}

/* Locked. NULL: there is none. */
static struct changed *find(const void *exec)
{
    const struct changed wanted = {.exec = exec};
    struct changed *const *found = tfind(&wanted, &all, compare);
    return found ? *found : NULL;
}

/* Locked. NULL: no memory. */
static struct changed *make(struct gpu_session *x, const void *exec)
{
    void *context = NULL;
    struct changed *made = malloc(sizeof(*made));
    if (!ibx_back_end_have_cuda(x) || x->cuda->ctx_get_current(&context))
        context = NULL;
    if (made)
        *made = (struct changed){.exec = exec, .context = context};
    if (made && !tsearch(made, &all, compare)) {
        free(made);
        return NULL;
    }
    atomic_fetch_add(&count, made != NULL);
    return made;
}

/* Locked. The entry of a node; NULL: no memory. */
static struct set *set_of(struct changed *c, const void *node)
{
    const struct set wanted = {.node = node};
    struct set *const *found = tfind(&wanted, &c->by_node, compare);
    if (found)
        return *found;
    struct set *made = malloc(sizeof(*made));
    if (!made)
        return NULL;
    *made = (struct set){node, NULL, c->sets};
    if (!tsearch(made, &c->by_node, compare)) {
        free(made);
        return NULL;
    }
    c->sets = made;
    return made;
}

void ibx_exec_functions_set(struct gpu_session *x, const void *exec, const void *node,
                            const void *function)
{
    pthread_mutex_lock(&lock);
    struct changed *c = find(exec);
    if (!c)
        c = make(x, exec);
    struct set *s = c ? set_of(c, node) : NULL;
    if (s && s->function)
        ibx_host_work_replace(s->function, false);
    if (s)
        s->function = function;
    pthread_mutex_unlock(&lock);
    if (!s)
        ibx_host_work_for_good(function);
}

static bool any(void)
{
    return atomic_load_explicit(&count, memory_order_relaxed);
}

void ibx_exec_functions_launch(const void *exec, int more)
{
    if (!any())
        return;
    pthread_mutex_lock(&lock);
    const struct changed *c = find(exec);
    for (const struct set *s = c ? c->sets : NULL; s; s = s->next)
        ibx_host_work_launch(s->function, more);
    pthread_mutex_unlock(&lock);
}

void ibx_exec_functions_keep(const void *exec)
{
    if (!any())
        return;
    pthread_mutex_lock(&lock);
    const struct changed *c = find(exec);
    for (const struct set *s = c ? c->sets : NULL; s; s = s->next)
        ibx_host_work_for_good(s->function);
    pthread_mutex_unlock(&lock);
}

static void keep_set(void *set)
{
    (void)set;
}

/* Locked; it is not in the tree any more. */
static void end(struct changed *c, bool over)
{
    tdestroy(c->by_node, keep_set);
    for (struct set *s; (s = c->sets);) {
        c->sets = s->next;
        ibx_host_work_replace(s->function, over);
        free(s);
    }
    free(c);
    atomic_fetch_sub(&count, 1);
}

void ibx_exec_functions_gone(const void *exec)
{
    if (!any())
        return;
    pthread_mutex_lock(&lock);
    struct changed *c = find(exec);
    if (c) {
        tdelete(c, &all, compare);
        end(c, false);
    }
    pthread_mutex_unlock(&lock);
}

/* Locked. The context that is gone, for forget_one(); NULL: all are. */
static const void *gone;

/* Those in other contexts stay. */
static void forget_one(void *entry)
{
    struct changed *c = entry;
    if (!gone || c->context == gone || !tsearch(c, &all, compare))
        end(c, true);
}

void ibx_exec_functions_forget(const void *context)
{
    pthread_mutex_lock(&lock);
    void *before = all;
    all = NULL;
    gone = context;
    tdestroy(before, forget_one);
    pthread_mutex_unlock(&lock);
}
