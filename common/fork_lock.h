/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A lock that a forked child finds free, also where a thread of its parent had it. What it guards
 * must make sense in the middle of a change. */
#ifndef IBX_COMMON_FORK_LOCK_H
#define IBX_COMMON_FORK_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct ibx_fork_lock {
    pthread_mutex_t mutex;
    struct ibx_fork_lock *next; /* fork_lock.c's, as what follows */
    atomic_bool known;
};
#define IBX_FORK_LOCK                                                                              \
    {                                                                                              \
        .mutex = PTHREAD_MUTEX_INITIALIZER                                                         \
    }

/* Of static storage. From any thread. */
void ibx_fork_lock_take(struct ibx_fork_lock *lock);
void ibx_fork_lock_release(struct ibx_fork_lock *lock);

#endif
