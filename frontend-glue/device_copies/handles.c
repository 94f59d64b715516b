/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Handles that requests of our own have returned. CUDA takes that of an array or a pool for an
 * address in this process, so one that was made up, or is of another kind, would end it. A tenant
 * names its own only, as what it is.
 */
#include "frontend-glue/device_copies/copies.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>

struct handle {
    struct handle *next;
    enum ibx_handle_kind kind;
    uint64_t value;
    const void *context;             /* in which it is; NULL: not known */
    const struct ibx_tenant *tenant; /* NULL: every tenant's */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *tree;
static struct handle *all;

static int compare(const void *a, const void *b)
{
    const struct handle *left = a, *right = b;
    const int kinds = (left->kind > right->kind) - (left->kind < right->kind);
    return kinds ? kinds : (left->value > right->value) - (left->value < right->value);
}

static struct handle *find(const struct copies *x, enum ibx_handle_kind kind, uint64_t value)
{
    const struct handle wanted = {.kind = kind, .value = value};
    struct handle *const *found = tfind(&wanted, &tree, compare);
    const struct ibx_tenant *tenant = found ? (*found)->tenant : NULL;
    return found && (!tenant || tenant == x->isolation.tenant) ? *found : NULL;
}

/* Locked. */
static void drop(struct handle *gone)
{
    struct handle **at = &all;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    tdelete(gone, &tree, compare);
    free(gone);
}

bool ibx_handles_add(struct copies *x, enum ibx_handle_kind kind, uint64_t value)
{
    void *context = NULL;
    struct handle *made = malloc(sizeof(*made));
    if (!made)
        return false;
    if (ibx_copies_have_cuda(x) && x->cuda->ctx_get_current(&context))
        context = NULL;
    *made = (struct handle){.kind = kind,
                            .value = value,
                            .context = context,
                            .tenant = kind == IBX_HANDLE_POOL ? NULL : x->isolation.tenant};
    pthread_mutex_lock(&lock);
    struct handle *const *at = tsearch(made, &tree, compare);
    if (at && *at == made) {
        made->next = all;
        all = made;
    } else if (at) { /* a pool, or one whose end was not seen */
        (*at)->tenant = made->tenant;
        (*at)->context = context;
    }
    pthread_mutex_unlock(&lock);
    if (!at || *at != made)
        free(made);
    return at;
}

void ibx_handles_forget(const void *context)
{
    pthread_mutex_lock(&lock);
    for (struct handle *h = all, *next; h; h = next) {
        next = h->next;
        if (!context || !h->context || h->context == context)
            drop(h);
    }
    pthread_mutex_unlock(&lock);
}

bool ibx_handles_know(struct copies *x, enum ibx_handle_kind kind, uint64_t value)
{
    pthread_mutex_lock(&lock);
    const bool known = find(x, kind, value);
    pthread_mutex_unlock(&lock);
    return known;
}

bool ibx_handles_remove(struct copies *x, enum ibx_handle_kind kind, uint64_t value)
{
    pthread_mutex_lock(&lock);
    struct handle *found = find(x, kind, value);
    const bool known = found;
    if (found)
        drop(found);
    pthread_mutex_unlock(&lock);
    return known;
}
