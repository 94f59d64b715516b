/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Functions of the client's that a stream waits for (cudaLaunchHostFunc, cudaStreamAddCallback). In
 * their place CUDA calls one of ours, in a thread of the driver's, which waits there until the
 * client has called its own: so the order is CUDA's. A thread of the client's asks what is to be
 * called, over a connection of its own (IBX_EXTRA_WORK), and says what was.
 *
 *   the stream gets there            the client's thread
 *   WAITING -> REACHED               asks
 *              REACHED -> TAKEN      calls the function
 *              TAKEN -> OVER         asks again, and says so
 *
 * A queue belongs to the session that asks. When that ends nothing waits for it any more. CUDA is
 * given a number and no address: what it calls a second time (a graph that another session has
 * begun to capture meanwhile) is found no more, and returns.
 */
#include "frontend-glue/device_copies/copies.h"

#include "common/clock.h"
#include "frontend-glue/session/extra.h"

#include <errno.h>
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <sys/random.h>

#define INVALID_VALUE     1 /* cudaError_t */
#define MEMORY_ALLOCATION 2
#define NOT_SUPPORTED     801

#define FUNCTIONS_MAX 65536u /* of one queue, at a time */
#define ASK_MS        20u    /* the connection is not looked at for so long */

enum function_state { FUNCTION_WAITING, FUNCTION_REACHED, FUNCTION_TAKEN, FUNCTION_OVER };

struct function {
    struct ibx_host_queue *queue;
    struct function *next; /* of those that were reached */
    uintptr_t id;          /* what CUDA has of it */
    uint64_t number;       /* the client's */
    enum function_state state;
    int status; /* of the stream, as a callback is told */
};

struct ibx_host_queue {
    struct ibx_host_queue *next;
    uint64_t id; /* nobody else can guess it */
    const struct ibx_tenant *tenant;
    struct function *reached; /* in that order */
    unsigned holders;         /* the session, and functions */
    bool ended;               /* the session has */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct ibx_host_queue *queues; /* of sessions */
static void *functions;               /* a tree of all, by id */
static uintptr_t last_id;

static int compare(const void *a, const void *b)
{
    const struct function *left = a, *right = b;
    return (left->id > right->id) - (left->id < right->id);
}

/* Locked. */
static struct ibx_host_queue *find(const struct copies *x, uint64_t id)
{
    struct ibx_host_queue *q = queues;
    while (q && (q->id != id || q->tenant != x->isolation.tenant))
        q = q->next;
    return q;
}

/* Locked. */
static void let_go(struct ibx_host_queue *q)
{
    if (!--q->holders)
        free(q);
}

/* ------------------------------------------------------------------- a thread of the driver's */

/* Locked. NULL: it was called already. */
static struct function *first_call(void *id)
{
    const struct function wanted = {.id = (uintptr_t)id};
    struct function *const *found = tfind(&wanted, &functions, compare);
    return found && (*found)->state == FUNCTION_WAITING ? *found : NULL;
}

/* Locked. */
static void forget(struct function *f)
{
    tdelete(f, &functions, compare);
    let_go(f->queue);
    free(f);
}

static void wait_for_client(void *id, int status)
{
    pthread_mutex_lock(&lock);
    struct function *f = first_call(id), **at = f ? &f->queue->reached : NULL;
    if (!f) {
        pthread_mutex_unlock(&lock);
        return;
    }
    while (*at)
        at = &(*at)->next;
    *at = f;
    f->state = FUNCTION_REACHED;
    f->status = status;
    pthread_cond_broadcast(&changed);
    while (f->state != FUNCTION_OVER && !f->queue->ended)
        pthread_cond_wait(&changed, &lock);
    for (at = &f->queue->reached; *at != f;)
        at = &(*at)->next;
    *at = f->next;
    forget(f);
    pthread_mutex_unlock(&lock);
}

static void call_function(void *id)
{
    wait_for_client(id, 0);
}

static void call_back(void *stream, int status, void *id)
{
    (void)stream;
    wait_for_client(id, status);
}

/* ----------------------------------------------------------------------------- requests */

int ibx_host_work_open(struct copies *x, uint64_t *id)
{
    struct ibx_host_queue *q = x->host_queue ? NULL : calloc(1, sizeof(*q));
    if (!q || getrandom(&q->id, sizeof(q->id), 0) != sizeof(q->id)) {
        free(q);
        return x->host_queue ? INVALID_VALUE : MEMORY_ALLOCATION;
    }
    q->tenant = x->isolation.tenant;
    q->holders = 1;
    pthread_mutex_lock(&lock);
    q->next = queues;
    queues = q;
    pthread_mutex_unlock(&lock);
    x->host_queue = q;
    *id = q->id;
    return 0;
}

/* The id of a function that will be called, which its queue knows of; 0: *rc says why not. */
static uintptr_t add(struct copies *x, uint64_t id, uint64_t number, int *rc)
{
    struct function *f = calloc(1, sizeof(*f));
    uintptr_t made = 0;
    pthread_mutex_lock(&lock);
    struct ibx_host_queue *q = find(x, id);
    *rc = !q || !number ? INVALID_VALUE : !f || q->holders > FUNCTIONS_MAX ? MEMORY_ALLOCATION : 0;
    if (!*rc) {
        *f = (struct function){.queue = q, .id = ++last_id, .number = number};
        *rc = tsearch(f, &functions, compare) ? 0 : MEMORY_ALLOCATION;
    }
    if (!*rc) {
        q->holders++;
        made = f->id;
    }
    pthread_mutex_unlock(&lock);
    if (*rc)
        free(f);
    return made;
}

int ibx_host_work_add(struct copies *x, const struct ibx_host_work *work, void *enqueue)
{
    int (*launch)(void *stream, void (*function)(void *), void *argument) = NULL;
    int (*add_callback)(void *stream, void (*function)(void *, int, void *), void *argument,
                        unsigned flags) = NULL;
    int capturing = 0, rc = 0;
    if (work->stream > 1 && ibx_copies_have_cuda(x)) /* the legacy stream is never captured */
        rc = x->cuda->stream_is_capturing((void *)(uintptr_t)work->stream, &capturing);
    if (rc || capturing) /* a graph would call it more than once */
        return rc ? rc : NOT_SUPPORTED;
    void *id = (void *)add(x, work->queue, work->number, &rc);
    if (!id)
        return rc;
    if (work->callback) {
        memcpy(&add_callback, &enqueue, sizeof(add_callback));
        rc = add_callback((void *)(uintptr_t)work->stream, call_back, id, 0);
    } else {
        memcpy(&launch, &enqueue, sizeof(launch));
        rc = launch((void *)(uintptr_t)work->stream, call_function, id);
    }
    if (!rc)
        return 0;
    pthread_mutex_lock(&lock);
    struct function *f = first_call(id);
    if (f)
        forget(f);
    pthread_mutex_unlock(&lock);
    return rc;
}

/* Locked. The first one in that state, and of that number unless it is 0. */
static struct function *in_state(const struct ibx_host_queue *q, enum function_state state,
                                 uint64_t number)
{
    struct function *f = q->reached;
    while (f && (f->state != state || (number && f->number != number)))
        f = f->next;
    return f;
}

int ibx_host_work_ask(struct copies *x, uint64_t over, bool wait, uint64_t *number, int *status)
{
    const uint64_t deadline = ibx_deadline_in_ms(ASK_MS);
    const struct timespec until = {(time_t)(deadline / 1000000000u),
                                   (long)(deadline % 1000000000u)};
    const struct ibx_host_queue *q = x->host_queue;
    struct function *f;
    int timeout = 0;
    if (!q)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct function *done = over ? in_state(q, FUNCTION_TAKEN, over) : NULL;
    if (done) {
        done->state = FUNCTION_OVER;
        pthread_cond_broadcast(&changed);
    }
    while (!(f = in_state(q, FUNCTION_REACHED, 0)) && wait && !timeout)
        timeout = pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until);
    *number = f ? f->number : 0;
    *status = f ? f->status : 0;
    if (f)
        f->state = FUNCTION_TAKEN;
    pthread_mutex_unlock(&lock);
    return over && !done ? INVALID_VALUE : 0;
}

void ibx_host_work_end(struct copies *x)
{
    struct ibx_host_queue *q = x->host_queue;
    if (!q)
        return;
    x->host_queue = NULL;
    pthread_mutex_lock(&lock);
    struct ibx_host_queue **at = &queues;
    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    q->ended = true;
    pthread_cond_broadcast(&changed);
    let_go(q);
    pthread_mutex_unlock(&lock);
}
