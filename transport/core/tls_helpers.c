/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "transport/core/tls_helpers.h"

#include "common/thread.h"

#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    pid_t process; /* whose threads they are */
    unsigned holders;
    unsigned count; /* of threads */
    pthread_t threads[IBX_TLS_HELPERS_MAX];
    bool started, stopping;
    bool taken; /* by a connection */
    void (*work)(void *batch, unsigned worker);
    void *batch;
    uint64_t number; /* of the batch */
    unsigned active; /* threads in work() */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .idle = PTHREAD_COND_INITIALIZER};

/* The helpers and the caller together take half of the processors. */
static unsigned wanted(void)
{
#ifdef IBX_TLS_HELPERS
    return IBX_TLS_HELPERS;
#else
    unsigned half = ibx_thread_processors() / 2;
    return half < 2 ? 0 : half > IBX_TLS_HELPERS_MAX ? IBX_TLS_HELPERS_MAX : half - 1;
#endif
}

static void *help(void *argument)
{
    unsigned worker = (unsigned)(uintptr_t)argument;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (!pool.stopping && (!pool.batch || pool.number == seen))
            ibx_thread_wait(&pool.wake, &pool.lock);
        if (pool.stopping)
            break;
        seen = pool.number;
        pool.active++;
        void *batch = pool.batch;
        void (*work)(void *, unsigned) = pool.work;
        pthread_mutex_unlock(&pool.lock);
        work(batch, worker);
        pthread_mutex_lock(&pool.lock);
        if (!--pool.active)
            pthread_cond_signal(&pool.idle);
    }
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

/* With the lock held. */
static void start(void)
{
    for (unsigned n = wanted(); pool.count < n; pool.count++) {
        void *worker = (void *)(uintptr_t)(pool.count + 1);
        if (ibx_thread_begin(&pool.threads[pool.count], help, worker))
            break;
    }
    pool.started = true;
}

/* A child of fork(2) has none of its parent's threads, and perhaps a lock that one of them held. */
static void forked(void)
{
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.idle, NULL);
    pool.holders = pool.count = pool.active = 0;
    pool.started = pool.taken = pool.stopping = false;
    pool.batch = NULL;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forked);
}

void ibx_tls_helpers_hold(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&pool.lock);
    pool.holders++;
    pthread_mutex_unlock(&pool.lock);
}

/* A forked child also releases what its parent held, of which it has counted nothing. */
void ibx_tls_helpers_release(void)
{
    pthread_mutex_lock(&pool.lock);
    if (pool.holders)
        pool.holders--;
    if (!pool.holders && pool.started && !pool.stopping) {
        pool.stopping = true;
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
        for (unsigned i = 0; i < pool.count; i++)
            pthread_join(pool.threads[i], NULL);
        pthread_mutex_lock(&pool.lock);
        pool.count = 0;
        pool.started = pool.stopping = false;
    }
    pthread_mutex_unlock(&pool.lock);
}

bool ibx_tls_helpers_begin(void (*work)(void *batch, unsigned worker), void *batch)
{
    pthread_mutex_lock(&pool.lock);
    if (!pool.started && !pool.stopping)
        start();
    bool help = pool.count && !pool.taken && !pool.stopping;
    if (help) {
        pool.taken = true;
        pool.work = work;
        pool.batch = batch;
        pool.number++;
        pthread_cond_broadcast(&pool.wake);
    }
    pthread_mutex_unlock(&pool.lock);
    return help;
}

void ibx_tls_helpers_end(void)
{
    pthread_mutex_lock(&pool.lock);
    pool.batch = NULL;
    while (pool.active)
        ibx_thread_wait(&pool.idle, &pool.lock);
    pool.taken = false;
    pthread_mutex_unlock(&pool.lock);
}
