/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Handles that requests of our own have returned: arrays, and pools of memory. CUDA takes such a
 * handle for an address in this process, so one that was made up would end it. A tenant names its
 * own only.
 */
#include "frontend-glue/device_copies/copies.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>

struct handle {
    uint64_t value;
    const struct ibx_tenant *tenant; /* NULL: every tenant's */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *tree;

static int compare(const void *a, const void *b)
{
    const struct handle *left = a, *right = b;
    return (left->value > right->value) - (left->value < right->value);
}

static struct handle *find(const struct copies *x, uint64_t value)
{
    const struct handle wanted = {.value = value};
    struct handle *const *found = tfind(&wanted, &tree, compare);
    const struct ibx_tenant *tenant = found ? (*found)->tenant : NULL;
    return found && (!tenant || tenant == x->isolation.tenant) ? *found : NULL;
}

bool ibx_handles_add(struct copies *x, const void *value, bool shared)
{
    struct handle *made = malloc(sizeof(*made));
    if (!made)
        return false;
    *made = (struct handle){(uintptr_t)value, shared ? NULL : x->isolation.tenant};
    pthread_mutex_lock(&lock);
    struct handle *const *at = tsearch(made, &tree, compare);
    if (at && *at != made) /* its context was reset, and the address is used again */
        (*(struct handle **)at)->tenant = made->tenant;
    pthread_mutex_unlock(&lock);
    if (!at || *at != made)
        free(made);
    return at;
}

bool ibx_handles_know(struct copies *x, uint64_t value)
{
    pthread_mutex_lock(&lock);
    const bool known = find(x, value);
    pthread_mutex_unlock(&lock);
    return known;
}

bool ibx_handles_remove(struct copies *x, uint64_t value)
{
    pthread_mutex_lock(&lock);
    struct handle *found = find(x, value);
    if (found)
        tdelete(found, &tree, compare);
    pthread_mutex_unlock(&lock);
    free(found);
    return found;
}
