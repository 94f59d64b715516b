/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include "common/fork_lock.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>

struct vector {
    uint64_t handle;
    int type;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *tree; /* protected by the lock */

/* The lock is held across a fork, because the child uses the tree. */
IBX_FORKS_WAIT_FOR(lock);

static int compare(const void *a, const void *b)
{
    const struct vector *left = a, *right = b;
    return (left->handle > right->handle) - (left->handle < right->handle);
}

void ibx_math_vector_made(uint64_t handle, int type)
{
    struct vector *made = malloc(sizeof(*made));
    if (!made)
        return;
    *made = (struct vector){handle, type};
    pthread_mutex_lock(&lock);
    struct vector **at = tsearch(made, &tree, compare);
    if (at && *at != made) /* an earlier one with this handle, whose end was not seen */
        (*at)->type = type;
    const bool taken = at && *at == made;
    pthread_mutex_unlock(&lock);
    if (!taken)
        free(made);
}

void ibx_math_vector_ended(uint64_t handle)
{
    const struct vector wanted = {.handle = handle};
    pthread_mutex_lock(&lock);
    struct vector **at = tfind(&wanted, &tree, compare), *found = at ? *at : NULL;
    if (found)
        tdelete(found, &tree, compare);
    pthread_mutex_unlock(&lock);
    free(found);
}

int ibx_math_vector_type(uint64_t handle)
{
    const struct vector wanted = {.handle = handle};
    pthread_mutex_lock(&lock);
    struct vector *const *at = tfind(&wanted, &tree, compare);
    const int type = at ? (*at)->type : -1;
    pthread_mutex_unlock(&lock);
    return type;
}
