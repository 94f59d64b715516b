/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A lock that a forked child finds free, even if a thread of its parent had taken it. So what the
 * lock guards must be usable in the middle of a change. */
#ifndef IBX_COMMON_FORK_LOCK_H
#define IBX_COMMON_FORK_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* For a plain mutex of one file, instead: a fork waits until the mutex is free, so that the child
 * finds what it guards complete. A thread must take it as its only or its first lock. Use this once
 * in a file. */
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
        pthread_mutex_unlock(&(mutex));                                                            \
    }                                                                                              \
    __attribute__((constructor)) static void wait_at_forks(void)                                   \
    {                                                                                              \
        pthread_atfork(before_fork, in_parent, in_child);                                          \
    }                                                                                              \
    _Static_assert(1, "")

struct ibx_fork_lock {
    pthread_mutex_t mutex;
    struct ibx_fork_lock *next; /* this and `known` are for fork_lock.c */
    atomic_bool known;
};
#define IBX_FORK_LOCK                                                                              \
    {                                                                                              \
        .mutex = PTHREAD_MUTEX_INITIALIZER                                                         \
    }

/* The lock has static storage duration. From any thread. */
void ibx_fork_lock_take(struct ibx_fork_lock *lock);
/* The same without waiting. False: a thread has it, perhaps this one. */
bool ibx_fork_lock_try(struct ibx_fork_lock *lock);
/* The same, but waits for so many ms at most. */
bool ibx_fork_lock_try_for(struct ibx_fork_lock *lock, unsigned ms);
void ibx_fork_lock_release(struct ibx_fork_lock *lock);

#endif
