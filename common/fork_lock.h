/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A lock that a forked child finds free, also where a thread of its parent had it. What it guards
 * must make sense in the middle of a change. */
#ifndef IBX_COMMON_FORK_LOCK_H
#define IBX_COMMON_FORK_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Or a plain mutex of a file's: a fork waits for whoever has it, so that a child finds what it
 * guards whole. It must be the only one of the thread's, or the first. Once in a file. */
#define IBX_FORKS_WAIT_FOR(mutex)                                                                  \
    static void before_fork(void)                                                                  \
    {                                                                                              \
        pthread_mutex_lock(&(mutex));                                                              \
    }                                                                                              \
    static void in_parent(void)                                                                    \
    {                                                                                              \
        pthread_mutex_unlock(&(mutex));                                                            \
    }                                                                                              \
    static void in_child(void)                                                                     \
    {                                                                                              \
        pthread_mutex_init(&(mutex), NULL);                                                        \
    }                                                                                              \
    __attribute__((constructor)) static void wait_at_forks(void)                                   \
    {                                                                                              \
        pthread_atfork(before_fork, in_parent, in_child);                                          \
    }                                                                                              \
    _Static_assert(1, "")

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
