/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/fork_lock.h"

#include "common/clock.h"

static pthread_mutex_t entering = PTHREAD_MUTEX_INITIALIZER; /* of `all`; a fork takes it, too */
static struct ibx_fork_lock *all;

static void before_fork(void)
{
    pthread_mutex_lock(&entering);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&entering);
}

static void in_child(void)
{
    for (struct ibx_fork_lock *lock = all; lock; lock = lock->next)
        lock->mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_unlock(&entering);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

/* Puts the lock into the list before it is first taken: no process forks while a lock that is not
 * in the list is taken. */
static void enter(struct ibx_fork_lock *lock)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&entering);
    if (!atomic_load(&lock->known)) {
        lock->next = all;
        all = lock;
        atomic_store(&lock->known, true);
    }
    pthread_mutex_unlock(&entering);
}

void ibx_fork_lock_take(struct ibx_fork_lock *lock)
{
    if (!atomic_load(&lock->known))
        enter(lock);
    pthread_mutex_lock(&lock->mutex);
}

bool ibx_fork_lock_try(struct ibx_fork_lock *lock)
{
    if (!atomic_load(&lock->known))
        enter(lock);
    return !pthread_mutex_trylock(&lock->mutex);
}

bool ibx_fork_lock_try_for(struct ibx_fork_lock *lock, unsigned ms)
{
    const struct timespec until = ibx_timespec_of(ibx_deadline_in_ms(ms));
    if (!atomic_load(&lock->known))
        enter(lock);
    return !pthread_mutex_clocklock(&lock->mutex, CLOCK_MONOTONIC, &until);
}

void ibx_fork_lock_release(struct ibx_fork_lock *lock)
{
    pthread_mutex_unlock(&lock->mutex);
}
