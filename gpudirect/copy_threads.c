/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/copy_threads.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define THREADS_LEAST    3u
#define THREADS_MOST     4u /* unless the user asks for more */
#define THREADS_WIDE     8u /* for a long copy: see ibx_copy_threads_wide_count() */
#define PROCESSORS_LEAST 8u
#define SPIN_NS          (100 * IBX_NS_PER_US)
#define YIELD_NS         1000u               /* between two yields of a thread that spins */
#define PIECE_LEAST      ((size_t)256 << 10) /* of ibx_copy_threads_run() */

struct job {
    unsigned slot;
    void *local;
    uint64_t offset;
    size_t n, taken; /* bytes, and how many of them a thread has begun to copy */
};

struct ibx_copy_threads {
    pthread_mutex_t lock;
    pthread_cond_t posted, posted_wide, over;
    pthread_t threads[IBX_COPY_THREADS_MAX];
    unsigned count;          /* threads created */
    unsigned usual;          /* of these; the others are for long copies */
    unsigned started;        /* threads that run; each takes the next number */
    atomic_uint taking_part; /* threads with a lower number take part in the current copy */
    pid_t owner;
    bool ending;

    ibx_copy_threads_copy copy;
    void *context;
    unsigned sleeping, sleeping_wide; /* usual threads, and others */
    uint64_t spin_ns;                 /* how long a thread looks for a job before it sleeps */
    struct job jobs[IBX_COPY_THREADS_SLOTS]; /* a ring of jobs of which not all is begun */
    size_t left[IBX_COPY_THREADS_SLOTS];     /* bytes of a slot's job that are not copied yet */
    size_t slice;                            /* of a job that a thread takes, at most */
    unsigned first, waiting, running;        /* jobs; and slices that are being copied */
    uint32_t done;                           /* slots */
    int status;
    unsigned ends_seen;      /* value of `ends` at the last ibx_copy_threads_take() */
    atomic_uint posts, ends; /* jobs waiting, jobs ended ever: to be read without the lock */
};

static void set_waiting(struct ibx_copy_threads *t, unsigned waiting)
{
    t->waiting = waiting;
    atomic_store_explicit(&t->posts, waiting, memory_order_relaxed);
}

/* The next slice of the oldest job. The caller has made sure that a job waits. */
static struct job take_slice(struct ibx_copy_threads *t)
{
    struct job *job = &t->jobs[t->first], slice = *job;
    slice.local = (uint8_t *)job->local + job->taken;
    slice.offset += job->taken;
    slice.n = job->n - job->taken < t->slice ? job->n - job->taken : t->slice;
    job->taken += slice.n;
    if (job->taken == job->n) {
        t->first = (t->first + 1) % IBX_COPY_THREADS_SLOTS;
        set_waiting(t, t->waiting - 1);
    }
    return slice;
}

/* Copies the next slice of the oldest job. Releases the lock meanwhile. */
static void run_one(struct ibx_copy_threads *t)
{
    const struct job job = take_slice(t);
    t->running++;
    ibx_copy_threads_copy copy = t->copy;
    void *context = t->context;
    pthread_mutex_unlock(&t->lock);
    int rc = copy(context, job.local, job.offset, job.n);
    pthread_mutex_lock(&t->lock);
    t->running--;
    t->left[job.slot] -= job.n;
    if (rc && !t->status)
        t->status = rc;
    if (!t->left[job.slot])
        t->done |= 1u << job.slot;
    if (!t->left[job.slot] || rc)
        atomic_fetch_add_explicit(&t->ends, 1, memory_order_relaxed);
    pthread_cond_signal(&t->over); /* only the owner waits for it */
}

static bool takes_part(const struct ibx_copy_threads *t, unsigned number)
{
    return number < atomic_load_explicit(&t->taking_part, memory_order_relaxed);
}

static bool has_work(const struct ibx_copy_threads *t, unsigned number)
{
    return atomic_load_explicit(&t->posts, memory_order_relaxed) && takes_part(t, number);
}

/* Spins for a while before the thread sleeps, since copies come in series, and waking a thread
 * takes longer than many copies do. Lets other threads run meanwhile: where there are more of them
 * than processors, the bytes that this one waits for are copied by a thread that waits for its
 * processor. Releases the lock meanwhile. False: no job has come. */
static bool spin(struct ibx_copy_threads *t, unsigned number)
{
    uint64_t now = ibx_now_ns(), yield_at = now + YIELD_NS;
    const uint64_t until = now + t->spin_ns;
    pthread_mutex_unlock(&t->lock);
    for (; !has_work(t, number) && now < until; now = ibx_now_ns()) {
        ibx_cpu_relax();
        if (now < yield_at)
            continue;
        sched_yield();
        yield_at = now + YIELD_NS;
    }
    pthread_mutex_lock(&t->lock);
    return (t->waiting && takes_part(t, number)) || t->ending;
}

static void *work(void *argument)
{
    struct ibx_copy_threads *t = argument;
    pthread_mutex_lock(&t->lock);
    const unsigned number = t->started++;
    const bool usual = number < t->usual;
    unsigned *sleeping = usual ? &t->sleeping : &t->sleeping_wide;
    bool called = true; /* woken, or a job has ended: the next job may come soon, so spin first */
    while (!t->ending) {
        if (t->waiting && takes_part(t, number)) {
            run_one(t);
            called = true;
        } else if (!t->spin_ns || !called || !spin(t, number)) {
            ++*sleeping;
            called = ibx_thread_wait(usual ? &t->posted : &t->posted_wide, &t->lock);
            --*sleeping;
        }
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static int create_threads(struct ibx_copy_threads *t, unsigned count)
{
    int rc = 0;
    while (!rc && t->count + 1 < count && t->count < IBX_COPY_THREADS_MAX) {
        rc = ibx_thread_begin(&t->threads[t->count], work, t);
        t->count += !rc;
    }
    return rc;
}

/* Leaves processors to the client, other sessions and the driver. Never two: without copy threads
 * client and back end copy one half each, which is faster than two threads here. */
unsigned ibx_copy_threads_count(void)
{
    unsigned processors = ibx_thread_processors();
    return processors >= 4 * THREADS_MOST   ? THREADS_MOST
           : processors >= PROCESSORS_LEAST ? THREADS_LEAST
                                            : 1;
}

/* Eight threads copy 40 to 50 GB/s, four copy 25 to 30; a GPU takes 55 (docs/experiments.md). Half
 * of the processors remain for others. */
unsigned ibx_copy_threads_wide_count(void)
{
    const unsigned half = ibx_thread_processors() / 2, usual = ibx_copy_threads_count();
    const unsigned wide = half < THREADS_WIDE ? half : THREADS_WIDE;
    return usual > 1 && wide > usual ? wide : usual;
}

int ibx_copy_threads_create(unsigned count, struct ibx_copy_threads **threads,
                            struct ibx_error *err)
{
    struct ibx_copy_threads *t = calloc(1, sizeof(*t));
    if (!t)
        return ibx_error_set(err, -ENOMEM, "no memory for copy threads");
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->posted, NULL);
    pthread_cond_init(&t->posted_wide, NULL);
    pthread_cond_init(&t->over, NULL);
    t->owner = getpid();
    t->spin_ns = ibx_thread_may_spin() ? SPIN_NS : 0;
    t->usual = IBX_COPY_THREADS_MAX; /* set before the first thread reads it */
    t->taking_part = t->usual;
    int rc = create_threads(t, count);
    pthread_mutex_lock(&t->lock);
    t->usual = t->count;
    t->taking_part = t->count;
    pthread_mutex_unlock(&t->lock);
    if (rc && !t->count) {
        ibx_copy_threads_destroy(t);
        return ibx_error_set(err, rc, "%u copy threads cannot be created: lower rdma.gpu_threads",
                             count);
    }
    *threads = t;
    return 0;
}

void ibx_copy_threads_destroy(struct ibx_copy_threads *t)
{
    if (!t)
        return;
    if (t->owner == getpid()) {
        pthread_mutex_lock(&t->lock);
        t->ending = true;
        pthread_cond_broadcast(&t->posted);
        pthread_cond_broadcast(&t->posted_wide);
        pthread_mutex_unlock(&t->lock);
        for (unsigned i = 0; i < t->count; i++)
            pthread_join(t->threads[i], NULL);
        pthread_cond_destroy(&t->over);
        pthread_cond_destroy(&t->posted);
        pthread_cond_destroy(&t->posted_wide);
        pthread_mutex_destroy(&t->lock);
    }
    free(t);
}

void ibx_copy_threads_begin(struct ibx_copy_threads *t, ibx_copy_threads_copy copy, void *context)
{
    pthread_mutex_lock(&t->lock);
    t->copy = copy;
    t->context = context;
    t->done = 0;
    t->status = 0;
    t->ends_seen = t->ends;
    t->slice = SIZE_MAX;
    t->taking_part = t->usual;
    pthread_mutex_unlock(&t->lock);
}

/* Wakes all sleeping threads at once, rather than one with each piece. */
void ibx_copy_threads_widen(struct ibx_copy_threads *t, unsigned count, size_t slice)
{
    if (count > t->count + 1)
        create_threads(t, count);
    pthread_mutex_lock(&t->lock);
    t->taking_part = t->count;
    t->slice = slice;
    if (t->spin_ns && t->sleeping)
        pthread_cond_broadcast(&t->posted);
    if (t->spin_ns && t->sleeping_wide)
        pthread_cond_broadcast(&t->posted_wide);
    pthread_mutex_unlock(&t->lock);
}

static void wake(pthread_cond_t *sleepers, bool all)
{
    if (all)
        pthread_cond_broadcast(sleepers);
    else
        pthread_cond_signal(sleepers);
}

static bool is_wide(const struct ibx_copy_threads *t)
{
    return t->taking_part > t->usual;
}

void ibx_copy_threads_post(struct ibx_copy_threads *t, unsigned slot, void *local, uint64_t offset,
                           size_t n)
{
    pthread_mutex_lock(&t->lock);
    t->jobs[(t->first + t->waiting) % IBX_COPY_THREADS_SLOTS] =
        (struct job){slot, local, offset, n, 0};
    t->left[slot] = n;
    set_waiting(t, t->waiting + 1);
    const bool several = n > t->slice;
    if (t->sleeping)
        wake(&t->posted, several);
    if (t->sleeping_wide &&
        is_wide(t)) /* wakes of both kinds: a thread that was signalled may not be awake yet */
        wake(&t->posted_wide, several);
    pthread_mutex_unlock(&t->lock);
}

/* Waits until another job has ended; spins first, since other threads are in the middle of their
 * jobs. Releases the lock meanwhile. */
static void await_end(struct ibx_copy_threads *t)
{
    unsigned seen = atomic_load_explicit(&t->ends, memory_order_relaxed);
    uint64_t until = ibx_now_ns() + t->spin_ns;
    pthread_mutex_unlock(&t->lock);
    while (atomic_load_explicit(&t->ends, memory_order_relaxed) == seen && ibx_now_ns() < until)
        ibx_cpu_relax();
    pthread_mutex_lock(&t->lock);
    while (t->ends == seen)
        ibx_thread_wait(&t->over, &t->lock);
}

int ibx_copy_threads_take(struct ibx_copy_threads *t, bool wait, uint32_t *slots)
{
    /* Does not take the lock without need: threads that end a piece need it. */
    if (!wait && atomic_load_explicit(&t->ends, memory_order_relaxed) == t->ends_seen)
        return 0;
    pthread_mutex_lock(&t->lock);
    while (wait && !t->done && !t->status && (t->waiting || t->running)) {
        if (t->waiting && !is_wide(t))
            run_one(t);
        else
            await_end(t);
    }
    *slots |= t->done;
    t->done = 0;
    t->ends_seen = t->ends;
    int status = t->status;
    t->ends_seen -= status != 0; /* the next call looks again */
    pthread_mutex_unlock(&t->lock);
    return status;
}

int ibx_copy_threads_run(struct ibx_copy_threads *t, ibx_copy_threads_copy copy, void *context,
                         void *local, uint64_t offset, size_t n)
{
    const size_t apart = IBX_COPY_THREADS_APART;
    size_t piece = (n / (t->count + 1) + PIECE_LEAST - 1) & ~(PIECE_LEAST - 1);
    piece = piece < PIECE_LEAST ? PIECE_LEAST : piece > apart ? apart : piece;
    uint32_t free = UINT32_MAX; /* slots */
    int rc = 0;
    ibx_copy_threads_begin(t, copy, context);
    for (size_t at = 0; at < n && !rc;) {
        if (!free) {
            rc = ibx_copy_threads_take(t, true, &free);
            continue;
        }
        unsigned slot = (unsigned)__builtin_ctz(free);
        size_t length = piece - (piece == apart ? (offset + at) % apart : 0);
        length = n - at < length ? n - at : length;
        free &= ~(1u << slot);
        ibx_copy_threads_post(t, slot, (uint8_t *)local + at, offset + at, length);
        at += length;
    }
    while (!rc && free != UINT32_MAX)
        rc = ibx_copy_threads_take(t, true, &free);
    if (rc)
        ibx_copy_threads_stop(t);
    return rc;
}

void ibx_copy_threads_stop(struct ibx_copy_threads *t)
{
    pthread_mutex_lock(&t->lock);
    set_waiting(t, 0);
    t->taking_part = t->usual;
    while (t->running)
        ibx_thread_wait(&t->over, &t->lock);
    pthread_mutex_unlock(&t->lock);
}
