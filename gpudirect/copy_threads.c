/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/copy_threads.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define THREADS_LEAST    3u
#define THREADS_MOST     4u /* unless more are asked for */
#define PROCESSORS_LEAST 8u
#define LINGER_NS        (100 * IBX_NS_PER_US)
#define PIECE_LEAST      ((size_t)256 << 10) /* of ibx_copy_threads_run() */

struct job {
    unsigned place;
    void *local;
    uint64_t offset;
    size_t n;
};

struct ibx_copy_threads {
    pthread_mutex_t lock;
    pthread_cond_t posted, over;
    pthread_t threads[IBX_COPY_THREADS_THREADS_MAX];
    unsigned count; /* of threads made */
    pid_t owner;
    bool ending;

    ibx_copy_threads_copy copy;
    void *context;
    unsigned sleeping;                        /* threads */
    uint64_t linger_ns;                       /* how long they look for more to do before */
    atomic_uint stirred;                      /* jobs waiting, for who looks without the lock */
    struct job jobs[IBX_COPY_THREADS_PLACES]; /* a ring of those not begun */
    unsigned first, waiting;
    unsigned running;
    uint32_t done;    /* places */
    atomic_uint ends; /* of jobs, for who looks without the lock */
    int status;
};

/* Takes the oldest job and does it, without the lock meanwhile. Locked; there is one. */
static void run_one(struct ibx_copy_threads *crew)
{
    struct job job = crew->jobs[crew->first];
    crew->first = (crew->first + 1) % IBX_COPY_THREADS_PLACES;
    atomic_store_explicit(&crew->stirred, --crew->waiting, memory_order_relaxed);
    crew->running++;
    ibx_copy_threads_copy copy = crew->copy;
    void *context = crew->context;
    pthread_mutex_unlock(&crew->lock);
    int rc = copy(context, job.local, job.offset, job.n);
    pthread_mutex_lock(&crew->lock);
    crew->running--;
    crew->done |= 1u << job.place;
    atomic_fetch_add_explicit(&crew->ends, 1, memory_order_relaxed);
    if (rc && !crew->status)
        crew->status = rc;
    pthread_cond_signal(&crew->over); /* only the owner waits for it */
}

/* Waking a thread costs more than many a copy takes, and copies come in rows. Locked, but
 * meanwhile; false: there is nothing to do. */
static bool linger(struct ibx_copy_threads *crew)
{
    uint64_t until = ibx_now_ns() + crew->linger_ns;
    pthread_mutex_unlock(&crew->lock);
    while (!atomic_load_explicit(&crew->stirred, memory_order_relaxed) && ibx_now_ns() < until)
        ibx_cpu_relax();
    pthread_mutex_lock(&crew->lock);
    return crew->waiting || crew->ending;
}

static void *work(void *argument)
{
    struct ibx_copy_threads *crew = argument;
    pthread_mutex_lock(&crew->lock);
    while (!crew->ending) {
        if (crew->waiting) {
            run_one(crew);
        } else if (!crew->linger_ns || !linger(crew)) {
            crew->sleeping++;
            pthread_cond_wait(&crew->posted, &crew->lock);
            crew->sleeping--;
        }
    }
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

/* Signals are for the process's own threads. */
static int threads_make(struct ibx_copy_threads *crew, unsigned threads)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV); /* of memory that the application watches */
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = 0;
    while (!rc && crew->count + 1 < threads && crew->count < IBX_COPY_THREADS_THREADS_MAX) {
        rc = pthread_create(&crew->threads[crew->count], NULL, work, crew);
        crew->count += !rc;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* The client, other sessions and the driver want processors, too. Two threads are slower than the
 * client and this thread, which copy one half each where there is no crew. */
unsigned ibx_copy_threads_count(void)
{
    unsigned there = ibx_thread_processors();
    return there >= 4 * THREADS_MOST ? THREADS_MOST : there >= PROCESSORS_LEAST ? THREADS_LEAST : 1;
}

int ibx_copy_threads_create(unsigned threads, struct ibx_copy_threads **out, struct ibx_error *err)
{
    struct ibx_copy_threads *crew = calloc(1, sizeof(*crew));
    if (!crew)
        return ibx_error_set(err, -ENOMEM, "no memory for threads that copy");
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->posted, NULL);
    pthread_cond_init(&crew->over, NULL);
    crew->owner = getpid();
    crew->linger_ns = ibx_thread_may_spin() ? LINGER_NS : 0;
    int rc = threads_make(crew, threads);
    if (rc && !crew->count) {
        ibx_copy_threads_destroy(crew);
        return ibx_error_set(
            err, -rc, "%u threads that copy cannot be made: lower rdma.gpu_threads", threads);
    }
    *out = crew; /* with as many as there could be */
    return 0;
}

void ibx_copy_threads_destroy(struct ibx_copy_threads *crew)
{
    if (!crew)
        return;
    if (crew->owner == getpid()) {
        pthread_mutex_lock(&crew->lock);
        crew->ending = true;
        pthread_cond_broadcast(&crew->posted);
        pthread_mutex_unlock(&crew->lock);
        for (unsigned i = 0; i < crew->count; i++)
            pthread_join(crew->threads[i], NULL);
        pthread_cond_destroy(&crew->over);
        pthread_cond_destroy(&crew->posted);
        pthread_mutex_destroy(&crew->lock);
    }
    free(crew);
}

void ibx_copy_threads_begin(struct ibx_copy_threads *crew, ibx_copy_threads_copy copy,
                            void *context)
{
    pthread_mutex_lock(&crew->lock);
    crew->copy = copy;
    crew->context = context;
    crew->done = 0;
    crew->status = 0;
    pthread_mutex_unlock(&crew->lock);
}

void ibx_copy_threads_post(struct ibx_copy_threads *crew, unsigned place, void *local,
                           uint64_t offset, size_t n)
{
    pthread_mutex_lock(&crew->lock);
    crew->jobs[(crew->first + crew->waiting++) % IBX_COPY_THREADS_PLACES] =
        (struct job){place, local, offset, n};
    atomic_store_explicit(&crew->stirred, crew->waiting, memory_order_relaxed);
    if (crew->sleeping)
        pthread_cond_signal(&crew->posted);
    pthread_mutex_unlock(&crew->lock);
}

/* Until another job is over: busily first, for the others are in the middle of theirs. Locked, but
 * meanwhile. */
static void await_end(struct ibx_copy_threads *crew)
{
    unsigned seen = atomic_load_explicit(&crew->ends, memory_order_relaxed);
    uint64_t until = ibx_now_ns() + crew->linger_ns;
    pthread_mutex_unlock(&crew->lock);
    while (atomic_load_explicit(&crew->ends, memory_order_relaxed) == seen && ibx_now_ns() < until)
        ibx_cpu_relax();
    pthread_mutex_lock(&crew->lock);
    while (crew->ends == seen)
        pthread_cond_wait(&crew->over, &crew->lock);
}

int ibx_copy_threads_take(struct ibx_copy_threads *crew, bool wait, uint32_t *places)
{
    pthread_mutex_lock(&crew->lock);
    while (wait && !crew->done && !crew->status && (crew->waiting || crew->running)) {
        if (crew->waiting)
            run_one(crew);
        else
            await_end(crew);
    }
    *places |= crew->done;
    crew->done = 0;
    int status = crew->status;
    pthread_mutex_unlock(&crew->lock);
    return status;
}

int ibx_copy_threads_run(struct ibx_copy_threads *crew, ibx_copy_threads_copy copy, void *context,
                         void *local, uint64_t offset, size_t n)
{
    size_t piece = (n / (crew->count + 1) + PIECE_LEAST - 1) & ~(PIECE_LEAST - 1);
    piece = piece < PIECE_LEAST              ? PIECE_LEAST
            : piece > IBX_COPY_THREADS_APART ? IBX_COPY_THREADS_APART
                                             : piece;
    uint32_t free = UINT32_MAX; /* places */
    int rc = 0;
    ibx_copy_threads_begin(crew, copy, context);
    for (size_t at = 0; at < n && !rc;) {
        if (!free) {
            rc = ibx_copy_threads_take(crew, true, &free);
            continue;
        }
        unsigned place = (unsigned)__builtin_ctz(free);
        size_t length =
            piece - (piece == IBX_COPY_THREADS_APART ? (offset + at) % IBX_COPY_THREADS_APART : 0);
        length = n - at < length ? n - at : length;
        free &= ~(1u << place);
        ibx_copy_threads_post(crew, place, (uint8_t *)local + at, offset + at, length);
        at += length;
    }
    while (!rc && free != UINT32_MAX)
        rc = ibx_copy_threads_take(crew, true, &free);
    if (rc)
        ibx_copy_threads_stop(crew);
    return rc;
}

void ibx_copy_threads_stop(struct ibx_copy_threads *crew)
{
    pthread_mutex_lock(&crew->lock);
    crew->waiting = 0;
    atomic_store_explicit(&crew->stirred, 0, memory_order_relaxed);
    while (crew->running)
        pthread_cond_wait(&crew->over, &crew->lock);
    pthread_mutex_unlock(&crew->lock);
}
