/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include "common/fork_lock.h"

#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdlib.h>

struct known {
    enum ibx_math_type type;
    uint64_t handle;
    enum ibx_math_handle is;
    bool is_set; /* `is`, by ibx_math_handle_set(); otherwise only the stream is known */
    bool in_own; /* its work goes into cudaStreamPerThread */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *all;                 /* a tree (tsearch(3)) of them, under the lock */
static atomic_int unusual, owned; /* handles that are not IBX_MATH_USUAL, or are in_own */

/* The lock is held across a fork, because the child uses the tree. */
IBX_FORKS_WAIT_FOR(lock);

static int compare(const void *a, const void *b)
{
    const struct known *left = a, *right = b;
    return left->handle != right->handle ? (left->handle > right->handle ? 1 : -1)
                                         : (left->type > right->type) - (left->type < right->type);
}

/* Called under the lock. NULL: there is none. */
static struct known *find(enum ibx_math_type type, uint64_t handle)
{
    const struct known wanted = {.type = type, .handle = handle};
    struct known *const *found = tfind(&wanted, &all, compare);
    return found ? *found : NULL;
}

enum ibx_math_handle ibx_math_handle_is(enum ibx_math_type type, uint64_t handle)
{
    if (!atomic_load_explicit(&unusual, memory_order_acquire))
        return IBX_MATH_USUAL;
    pthread_mutex_lock(&lock);
    const struct known *k = find(type, handle);
    const enum ibx_math_handle is = k ? k->is : IBX_MATH_USUAL;
    pthread_mutex_unlock(&lock);
    return is;
}

/* Called under the lock. The handle, which may be new; NULL: there is no memory. */
static struct known *find_or_add(enum ibx_math_type type, uint64_t handle)
{
    struct known *k = find(type, handle), *made = k ? NULL : malloc(sizeof(*made));
    if (!made)
        return k;
    *made = (struct known){.type = type, .handle = handle};
    if (tsearch(made, &all, compare))
        return made;
    free(made);
    return NULL;
}

/* Called under the lock. */
static void set_kind(struct known *k, enum ibx_math_handle is)
{
    atomic_fetch_add(&unusual, (is != IBX_MATH_USUAL) - (k->is != IBX_MATH_USUAL));
    k->is = is;
}

static void set_own(struct known *k, bool in_own)
{
    atomic_fetch_add(&owned, in_own - k->in_own);
    k->in_own = in_own;
}

/* Called under the lock. Removes the handle from the tree. */
static void take_out(struct known *k)
{
    set_kind(k, IBX_MATH_USUAL);
    set_own(k, false);
    tdelete(k, &all, compare);
    free(k);
}

bool ibx_math_handle_set(enum ibx_math_type type, uint64_t handle, enum ibx_math_handle is)
{
    pthread_mutex_lock(&lock);
    struct known *k = find_or_add(type, handle);
    if (k) {
        k->is_set = true;
        set_kind(k, is);
    }
    pthread_mutex_unlock(&lock);
    return k;
}

bool ibx_math_handle_end(enum ibx_math_type type, uint64_t handle)
{
    pthread_mutex_lock(&lock);
    struct known *k = find(type, handle);
    const bool known = k && k->is_set;
    if (k)
        take_out(k);
    pthread_mutex_unlock(&lock);
    return known;
}

void ibx_math_handle_selects(enum ibx_math_type type, uint64_t handle, const void *stream)
{
    const bool in_own = stream == CUDA_STREAM_PER_THREAD;
    pthread_mutex_lock(&lock);
    struct known *k = in_own ? find_or_add(type, handle) : find(type, handle);
    if (k)
        set_own(k, in_own);
    if (k && !in_own && !k->is_set)
        take_out(k);
    pthread_mutex_unlock(&lock);
}

bool ibx_math_handle_is_in_own(enum ibx_math_type type, uint64_t handle)
{
    if (!atomic_load_explicit(&owned, memory_order_acquire))
        return false;
    pthread_mutex_lock(&lock);
    const struct known *k = find(type, handle);
    const bool is = k && k->in_own;
    pthread_mutex_unlock(&lock);
    return is;
}
