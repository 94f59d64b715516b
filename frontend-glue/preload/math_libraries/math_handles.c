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
static struct known *list; /* protected by the lock */
static size_t room;        /* capacity of the list; protected by the lock */
static atomic_size_t count;

/* The lock is held across a fork, because the child uses the list. */
IBX_FORKS_WAIT_FOR(lock);

/* Called under the lock. The index of the handle, or of the next one. */
static size_t find(enum ibx_math_type type, uint64_t handle)
{
    size_t i = 0;
    while (i < atomic_load(&count) && (list[i].handle != handle || list[i].type != type))
        i++;
    return i;
}

enum ibx_math_handle ibx_math_handle_is(enum ibx_math_type type, uint64_t handle)
{
    if (!atomic_load_explicit(&count, memory_order_acquire))
        return IBX_MATH_USUAL;
    pthread_mutex_lock(&lock);
    const size_t i = find(type, handle);
    const enum ibx_math_handle is = i < atomic_load(&count) ? list[i].is : IBX_MATH_USUAL;
    pthread_mutex_unlock(&lock);
    return is;
}

/* Called under the lock. Makes room for one more; false: there is no memory. */
static bool grow(void)
{
    const size_t more = room ? 2 * room : 16;
    if (atomic_load(&count) < room)
        return true;
    struct known *grown = realloc(list, more * sizeof(*grown));
    if (!grown)
        return false;
    list = grown;
    room = more;
    return true;
}

bool ibx_math_handle_set(enum ibx_math_type type, uint64_t handle, enum ibx_math_handle is)
{
    if (is == IBX_MATH_USUAL && !atomic_load(&count))
        return true;
    pthread_mutex_lock(&lock);
    const size_t n = atomic_load(&count), i = find(type, handle);
    bool good = true;
    if (is == IBX_MATH_USUAL && i < n) {
        list[i] = list[n - 1];
        atomic_store(&count, n - 1);
    } else if (is != IBX_MATH_USUAL && (good = i < n || grow())) {
        list[i] = (struct known){type, handle, is};
        atomic_store(&count, i < n ? n : n + 1);
    }
    pthread_mutex_unlock(&lock);
    return good;
}
