/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/client_copies/client_copies.h"

#include "common/clock.h"
#include "common/handlers.h"
#include "common/log.h"
#include "common/state_machine.h"
#include "common/thread.h"
#include "common/wire.h"
#include "frontend-glue/session/hooks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define COPIERS    4u   /* streams that copy at once */
#define JOBS       256u /* most of one copier; beyond that the caller waits, as for a full stream */
#define FAILURES   16u
#define CUT_OFF_MS 500u /* most that exit(3) in an interrupted thread waits for the copies */
#define LOOK_MS    500u /* from one look at an idle copier's connection to the next */

struct job {
    struct job *next;
    struct ibx_frontend_copy copy;
    int device;
    uint64_t number; /* in the order of the calls */
};

/*
 * state machine: copier
 *   [*] -> NONE -> STARTING -> READY
 *   STARTING -> NONE                  it cannot be made, or does not connect
 *   READY -> LOST -> [*]              its session has ended
 */
enum copier_state { COPIER_NONE, COPIER_STARTING, COPIER_READY, COPIER_LOST };

static const struct ibx_state copier_states[] = {
    [COPIER_NONE] = {"none", IBX_TO(COPIER_STARTING), IBX_STATE_INITIAL},
    [COPIER_STARTING] = {"starting", IBX_TO(COPIER_READY) | IBX_TO(COPIER_NONE), 0},
    [COPIER_READY] = {"ready", IBX_TO(COPIER_LOST), 0},
    [COPIER_LOST] = {"lost", 0, IBX_STATE_FINAL}};
static const struct ibx_state_table copier_table = IBX_STATE_TABLE("copier", copier_states);

/* A thread that makes copies over a connection of its own. */
struct copier {
    struct ibx_state_machine state; /* enum copier_state */
    struct ibx_session *session;    /* of its thread */
    int first_device;               /* on which it makes its first context */
    int device;                     /* selected by it; -1: none */
    struct job *first, **last;      /* in order, with the one that is being run */
    unsigned count;
};

struct failure {
    uint64_t stream; /* 0: any */
    int code;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a job came or went, a copier changed its state */
    struct copier copiers[COPIERS];
    struct failure failures[FAILURES];
    unsigned failure_count;
    bool forbidden;
    uint64_t jobs; /* jobs so far */
} async = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
static _Atomic unsigned pending; /* jobs of all copiers */
static atomic_bool failed;       /* there may be failures that no call has returned */
static pthread_once_t begun = PTHREAD_ONCE_INIT;

/* -------------------------------------------------------------------- exit and fork */

/* A handler has interrupted this thread inside, and called exit(3): the copiers' lock may be this
 * thread's, and then their jobs never end. */
static void wait_without_lock(void)
{
    for (const uint64_t until = ibx_deadline_in_ms(CUT_OFF_MS);
         atomic_load(&pending) && ibx_now_ns() < until;)
        nanosleep(&(struct timespec){.tv_nsec = IBX_NS_PER_MS}, NULL);
}

/* exit(3) calls this before the destructors of objects made before the first background copy, which
 * may hold the memory of copies. */
static void at_exit(void)
{
    if (ibx_inside_exits()) {
        wait_without_lock();
        return;
    }
    const struct ibx_inside inside = ibx_inside_begin();
    ibx_async_copy_forbid();
    ibx_async_copy_wait(0);
    ibx_inside_end(inside);
}

static void before_fork(void)
{
    pthread_mutex_lock(&async.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&async.lock);
}

static void begin_copiers(void)
{
    memset(async.copiers, 0, sizeof(async.copiers));
    for (unsigned i = 0; i < COPIERS; i++)
        ibx_state_begin(&async.copiers[i].state, &copier_table, COPIER_NONE);
}

/* The threads and connections belong to the parent; the child does not touch them. */
static void forget(void)
{
    pthread_mutex_init(&async.lock, NULL);
    pthread_cond_init(&async.changed, NULL);
    begin_copiers();
    async.failure_count = 0;
    atomic_store(&failed, false);
    atomic_store(&pending, 0);
}

static void begin(void)
{
    begin_copiers();
    async.forbidden = pthread_atfork(before_fork, after_fork, forget) || atexit(at_exit);
}

/* ------------------------------------------------------------------ a copier's thread */

static int select_device(struct copier *copier, int device)
{
    uint8_t body[4];
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    int code = 0;
    if (copier->device == device)
        return 0;
    ibx_put_u32(&w, (uint32_t)device);
    int rc = ibx_client_call(copier->session, "cudaSetDevice", body, sizeof(body), &code);
    if (!rc && !code)
        copier->device = device;
    return rc ? IBX_CUDA_ERROR_UNKNOWN : code;
}

static int run(struct copier *copier, const struct job *job)
{
    int code = select_device(copier, job->device);
    if (!code && ibx_client_copy(copier->session, &job->copy, &code))
        code = IBX_CUDA_ERROR_UNKNOWN;
    return code;
}

/* Locked. If there is no room, the last entry stands for all that follow. */
static void note_failure(uint64_t stream, int code)
{
    atomic_store(&failed, true);
    if (async.failure_count < FAILURES)
        async.failures[async.failure_count++] = (struct failure){stream, code};
    else
        async.failures[FAILURES - 1].stream = 0;
}

/* Locked. */
static void finish(struct copier *copier, int code)
{
    struct job *job = copier->first;
    if (code)
        note_failure(job->copy.stream, code);
    copier->first = job->next;
    if (!copier->first)
        copier->last = &copier->first;
    copier->count--;
    if (copier->state.now == COPIER_READY && !ibx_session_live(copier->session))
        ibx_state_move(&copier->state, COPIER_LOST);
    atomic_fetch_sub(&pending, 1);
    pthread_cond_broadcast(&async.changed);
    free(job);
}

/* Connects and makes a context on the device, as GVirtuS's first call in a thread does. */
static bool connected(struct copier *copier)
{
    const int device = copier->first_device;
    struct ibx_error err = {0};
    int code = 0;
    if (ibx_session_connect(copier->session, &err))
        ibx_log(IBX_LOG_WARN, "asynchronous copies are made synchronously: %s", err.message);
    else
        code = select_device(copier, device);
    if (code)
        ibx_log(IBX_LOG_WARN,
                "asynchronous copies are made synchronously: cudaSetDevice(%d) for them failed "
                "with CUDA error %d",
                device, code);
    return !err.code && !code;
}

/* Locked, except while it looks. If the connection is broken, continues the session over a new one,
 * since the back end does not keep the session for long. */
static void look_after(struct copier *copier)
{
    pthread_mutex_unlock(&async.lock);
    const bool good =
        ibx_session_look_closely(copier->session) && ibx_session_resume_if_ended(copier->session);
    pthread_mutex_lock(&async.lock);
    if (!good)
        ibx_state_move(&copier->state, COPIER_LOST);
}

/* Locked. In a thread of the program: waits until something may have changed. */
static void wait_for_change(void)
{
    if (!ibx_handlers_held()) {
        ibx_thread_wait(&async.changed, &async.lock);
        return;
    }
    const struct timespec until = ibx_timespec_of(ibx_deadline_in_ms(IBX_HANDLERS_MS));
    pthread_cond_clockwait(&async.changed, &async.lock, CLOCK_MONOTONIC, &until);
    pthread_mutex_unlock(&async.lock);
    ibx_handlers_run();
    pthread_mutex_lock(&async.lock);
}

/* Locked, except while it waits until there is a job. */
static void wait_for_job(struct copier *copier)
{
    uint64_t look_at = ibx_deadline_in_ms(LOOK_MS);
    while (!copier->first) {
        const struct timespec until = ibx_timespec_of(look_at);
        if (copier->state.now == COPIER_LOST)
            ibx_thread_wait(&async.changed, &async.lock);
        else if (ibx_now_ns() < look_at)
            pthread_cond_clockwait(&async.changed, &async.lock, CLOCK_MONOTONIC, &until);
        else {
            look_after(copier);
            look_at = ibx_deadline_in_ms(LOOK_MS);
        }
    }
}

static void *make_copies(void *argument)
{
    struct copier *copier = argument;
    bool good = connected(copier);
    pthread_mutex_lock(&async.lock);
    good = !ibx_state_move(&copier->state, good ? COPIER_READY : COPIER_NONE) && good;
    async.forbidden = async.forbidden || !good;
    pthread_cond_broadcast(&async.changed);
    while (good) {
        wait_for_job(copier);
        const struct job *job = copier->first;
        pthread_mutex_unlock(&async.lock);
        int code = run(copier, job);
        pthread_mutex_lock(&async.lock);
        finish(copier, code);
    }
    pthread_mutex_unlock(&async.lock);
    ibx_session_destroy(copier->session);
    return NULL;
}

/* ------------------------------------------------------------------ the callers' threads */

/* Locked, except while it waits until the copier has connected. False: it has not. */
static bool copier_begin(struct copier *copier, const struct ibx_session *session, int device)
{
    struct ibx_error err = {0};
    copier->device = -1;
    copier->first_device = device;
    copier->first = NULL;
    copier->last = &copier->first;
    bool good = !ibx_state_move(&copier->state, COPIER_STARTING) &&
                !ibx_session_create_like(session, &copier->session, &err);
    if (good && ibx_thread_begin(NULL, make_copies, copier)) {
        ibx_session_destroy(copier->session);
        good = false;
    }
    if (!good)
        ibx_state_move(&copier->state, COPIER_NONE);
    while (copier->state.now == COPIER_STARTING)
        wait_for_change();
    return copier->state.now == COPIER_READY;
}

static bool is_of(const struct job *job, uint64_t stream)
{
    return stream <= IBX_ASYNC_COPY_STREAM_SPECIAL || job->copy.stream == stream;
}

/* Locked. */
static struct copier *copier_of_stream(uint64_t stream, uint64_t end)
{
    for (unsigned i = 0; i < COPIERS; i++) {
        for (const struct job *job = async.copiers[i].first; job; job = job->next) {
            if (job->number < end && is_of(job, stream))
                return &async.copiers[i];
        }
    }
    return NULL;
}

/* Locked. The copier that has copies of this stream; otherwise an idle one, a new one, or the least
 * busy. */
static struct copier *pick(const struct ibx_session *session, uint64_t stream, int device)
{
    struct copier *least = NULL, *none = NULL, *same = copier_of_stream(stream, UINT64_MAX);
    if (same || async.forbidden)
        return same && same->state.now == COPIER_READY ? same : NULL;
    for (unsigned i = 0; i < COPIERS; i++) {
        struct copier *copier = &async.copiers[i];
        if (copier->state.now == COPIER_NONE)
            none = copier;
        if (copier->state.now == COPIER_READY && (!least || copier->count < least->count))
            least = copier;
    }
    if (!none || (least && !least->count))
        return least;
    /* The lock was released: another thread may have used this stream. */
    return copier_begin(none, session, device) ? pick(session, stream, device) : NULL;
}

bool ibx_async_copy_start(const struct ibx_session *session, const struct ibx_frontend_copy *copy,
                          int device)
{
    pthread_once(&begun, begin);
    struct job *job = malloc(sizeof(*job));
    if (!job)
        return false;
    *job = (struct job){NULL, *copy, device < 0 ? 0 : device, 0};
    pthread_mutex_lock(&async.lock);
    struct copier *copier = NULL;
    do { /* during the wait the stream's copies may go to another copier or end */
        if (copier)
            wait_for_change();
        copier = pick(session, copy->stream, job->device);
    } while (copier && copier->count >= JOBS);
    if (copier) {
        job->number = async.jobs++;
        *copier->last = job;
        copier->last = &job->next;
        copier->count++;
        atomic_fetch_add(&pending, 1);
        pthread_cond_broadcast(&async.changed);
    }
    pthread_mutex_unlock(&async.lock);
    if (!copier)
        free(job);
    return copier;
}

void ibx_async_copy_forbid(void)
{
    pthread_once(&begun, begin);
    pthread_mutex_lock(&async.lock);
    async.forbidden = true;
    pthread_mutex_unlock(&async.lock);
}

bool ibx_async_copy_any(void)
{
    return atomic_load(&pending);
}

bool ibx_async_copy_pending(uint64_t stream)
{
    if (!ibx_async_copy_any())
        return false;
    const struct ibx_inside inside = ibx_inside_begin();
    pthread_mutex_lock(&async.lock);
    bool found = copier_of_stream(stream, UINT64_MAX);
    pthread_mutex_unlock(&async.lock);
    ibx_inside_end(inside);
    return found;
}

void ibx_async_copy_wait(uint64_t stream)
{
    if (!ibx_async_copy_any())
        return;
    const struct ibx_inside inside = ibx_inside_begin();
    pthread_mutex_lock(&async.lock);
    const uint64_t end = async.jobs; /* later copies are not waited for */
    while (copier_of_stream(stream, end))
        wait_for_change();
    pthread_mutex_unlock(&async.lock);
    ibx_inside_end(inside);
}

/* Locked. */
static bool is_touched(const uint8_t *address, size_t n)
{
    for (unsigned i = 0; i < COPIERS; i++) {
        for (const struct job *job = async.copiers[i].first; job; job = job->next) {
            const uint8_t *host = job->copy.host;
            if (host < address + n && address < host + job->copy.n)
                return true;
        }
    }
    return false;
}

void ibx_async_copy_wait_memory(const void *address, size_t n)
{
    if (!ibx_async_copy_any())
        return;
    const struct ibx_inside inside = ibx_inside_begin();
    pthread_mutex_lock(&async.lock);
    while (is_touched(address, n))
        wait_for_change();
    pthread_mutex_unlock(&async.lock);
    ibx_inside_end(inside);
}

int ibx_async_copy_failure(uint64_t stream)
{
    int code = 0;
    if (!atomic_load(&failed))
        return 0;
    const struct ibx_inside inside = ibx_inside_begin();
    pthread_mutex_lock(&async.lock);
    for (unsigned i = 0; i < async.failure_count && !code; i++) {
        const struct failure *failure = &async.failures[i];
        if (stream > IBX_ASYNC_COPY_STREAM_SPECIAL && failure->stream && failure->stream != stream)
            continue;
        code = failure->code;
        async.failures[i] = async.failures[--async.failure_count];
    }
    atomic_store(&failed, async.failure_count);
    pthread_mutex_unlock(&async.lock);
    ibx_inside_end(inside);
    return code;
}

void ibx_async_copy_forget_failures(void)
{
    pthread_mutex_lock(&async.lock);
    atomic_store(&failed, false);
    async.failure_count = 0;
    pthread_mutex_unlock(&async.lock);
}
