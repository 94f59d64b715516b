/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include "common/fork_lock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct known {
    enum ibx_math_type type;
    uint64_t handle;
    enum ibx_math_handle is;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Protected by the lock. */
static struct known *list;
static size_t count, room;    /* handles; capacity of the list */
static atomic_size_t unusual; /* handles that are not IBX_MATH_USUAL */

/* Handles whose work goes into cudaStreamPerThread. Protected by the lock. */
struct in_own {
    enum ibx_math_type type;
    uint64_t handle;
};
static struct in_own *in_own;
static size_t in_own_room;
static atomic_size_t in_own_count;

/* The lock is held across a fork, because the child uses the list. */
IBX_FORKS_WAIT_FOR(lock);

/* Called under the lock. The index of the handle, or of the next one. */
static size_t find(enum ibx_math_type type, uint64_t handle)
{
    size_t i = 0;
    while (i < count && (list[i].handle != handle || list[i].type != type))
        i++;
    return i;
}

enum ibx_math_handle ibx_math_handle_is(enum ibx_math_type type, uint64_t handle)
{
    if (!atomic_load_explicit(&unusual, memory_order_acquire))
        return IBX_MATH_USUAL;
    pthread_mutex_lock(&lock);
    const size_t i = find(type, handle);
    const enum ibx_math_handle is = i < count ? list[i].is : IBX_MATH_USUAL;
    pthread_mutex_unlock(&lock);
    return is;
}

/* Called under the lock. Makes room for one more; false: there is no memory. */
static bool grow(void)
{
    const size_t more = room ? 2 * room : 16;
    if (count < room)
        return true;
    struct known *grown = realloc(list, more * sizeof(*grown));
    if (!grown)
        return false;
    list = grown;
    room = more;
    return true;
}

/* Called under the lock. Removes the i-th, if there is one. */
static void take_out(size_t i)
{
    if (i == count)
        return;
    if (list[i].is != IBX_MATH_USUAL)
        atomic_fetch_sub(&unusual, 1);
    list[i] = list[--count];
}

/* Called under the lock. As find(). */
static size_t find_in_own(enum ibx_math_type type, uint64_t handle)
{
    size_t i = 0;
    while (i < in_own_count && (in_own[i].handle != handle || in_own[i].type != type))
        i++;
    return i;
}

/* Called under the lock. Removes the handle, if it is there. */
static void take_out_of_own(enum ibx_math_type type, uint64_t handle)
{
    const size_t i = find_in_own(type, handle);
    if (i < in_own_count)
        in_own[i] = in_own[--in_own_count];
}

bool ibx_math_handle_set(enum ibx_math_type type, uint64_t handle, enum ibx_math_handle is)
{
    pthread_mutex_lock(&lock);
    take_out(find(type, handle));
    const bool good = grow();
    if (good) {
        list[count++] = (struct known){type, handle, is};
        atomic_fetch_add(&unusual, is != IBX_MATH_USUAL);
    }
    pthread_mutex_unlock(&lock);
    return good;
}

bool ibx_math_handle_end(enum ibx_math_type type, uint64_t handle)
{
    pthread_mutex_lock(&lock);
    const size_t i = find(type, handle);
    const bool known = i < count;
    take_out(i);
    take_out_of_own(type, handle);
    pthread_mutex_unlock(&lock);
    return known;
}

/* Called under the lock. False: there is no memory. */
static bool grow_own(void)
{
    const size_t more = in_own_room ? 2 * in_own_room : 16;
    if (in_own_count < in_own_room)
        return true;
    struct in_own *grown = realloc(in_own, more * sizeof(*grown));
    if (!grown)
        return false;
    in_own = grown;
    in_own_room = more;
    return true;
}

void ibx_math_handle_selects(enum ibx_math_type type, uint64_t handle, const void *stream)
{
    pthread_mutex_lock(&lock);
    take_out_of_own(type, handle);
    if (stream == CUDA_STREAM_PER_THREAD && grow_own())
        in_own[in_own_count++] = (struct in_own){type, handle};
    pthread_mutex_unlock(&lock);
}

bool ibx_math_handle_is_in_own(enum ibx_math_type type, uint64_t handle)
{
    if (!atomic_load_explicit(&in_own_count, memory_order_acquire))
        return false;
    pthread_mutex_lock(&lock);
    const bool is = find_in_own(type, handle) < in_own_count;
    pthread_mutex_unlock(&lock);
    return is;
}
