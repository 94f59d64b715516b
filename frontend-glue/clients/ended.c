/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Whether there are clients whose processes have ended and whose things are still to be freed
 * (client_ends.c): for callers that wait for memory, and for those to whom it matters whether a
 * client is alone.
 */
#include "frontend-glue/clients/clients.h"

#include "common/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define ROOM_MS 1000u /* for so long a caller waits for more memory */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static _Atomic pid_t counted_in; /* the process to which the next two belong */
static _Atomic unsigned all;     /* clients */
static _Atomic unsigned pending; /* ... of which it is not known that something is in the way */
static _Atomic unsigned hurried; /* threads that wait for memory */
static uint64_t given;           /* how often things were given back: locked */

void ibx_ended_begin(void)
{
    atomic_store(&all, 0);
    atomic_store(&pending, 0);
    atomic_store(&counted_in, getpid());
}

void ibx_ended_one_more(void)
{
    atomic_fetch_add(&all, 1);
    atomic_fetch_add(&pending, 1);
}

void ibx_ended_stuck(void)
{
    atomic_fetch_sub(&pending, 1);
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&changed); /* nobody waits for that one any more */
    pthread_mutex_unlock(&lock);
}

void ibx_ended_over(bool was_stuck)
{
    atomic_fetch_sub(&all, 1);
    if (!was_stuck)
        atomic_fetch_sub(&pending, 1);
    ibx_ended_given();
}

void ibx_ended_given(void)
{
    pthread_mutex_lock(&lock);
    given++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

bool ibx_ended_hurries(void)
{
    return atomic_load(&hurried);
}

bool ibx_clients_several(struct gpu_session *x)
{
    return ibx_clients_others(x) || (atomic_load(&all) && atomic_load(&counted_in) == getpid());
}

bool ibx_client_ends_wait(void)
{
    if (!atomic_load(&pending) || atomic_load(&counted_in) != getpid())
        return false;
    const struct timespec until = ibx_timespec_of(ibx_deadline_in_ms(ROOM_MS));
    int rc = 0;
    atomic_fetch_add(&hurried, 1);
    pthread_mutex_lock(&lock);
    const uint64_t before = given;
    while (atomic_load(&pending) && given == before && !rc)
        rc = pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until);
    const bool more = given != before;
    pthread_mutex_unlock(&lock);
    atomic_fetch_sub(&hurried, 1);
    return more;
}
