/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Events that other processes can open (cudaEventInterprocess). In the process that has made such
 * an event, CUDA's driver ends with SIGSEGV if a stream of another device waits for it (H200,
 * driver 580, natively, too). Natively a forked child, which opens the event, may do that, but here
 * it shares the process with its parent; and with rdma.processes one or tenant, so do the programs
 * of others. So a stream of the event's own device waits for it, and the other stream waits for an
 * event without that flag, which is recorded behind that wait.
 */
#include "frontend-glue/clients/clients.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define INTERPROCESS 4u   /* cudaEventInterprocess */
#define BUCKETS      256u /* PyTorch makes up to 1,000 such events in each process */

struct shared_event {
    struct shared_event *next;
    uint64_t event;
    void *context;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared_event *events[BUCKETS]; /* by handle */
static atomic_uint count;

static struct shared_event **bucket_of(uint64_t event)
{
    return &events[(event * UINT64_C(0x9e3779b97f4a7c15) >> 32) % BUCKETS];
}

/* Locked. Where the event is in its bucket; the end of the bucket: it is not. */
static struct shared_event **find(uint64_t event)
{
    struct shared_event **at = bucket_of(event);
    while (*at && (*at)->event != event)
        at = &(*at)->next;
    return at;
}

void ibx_shared_event_gone(uint64_t event)
{
    if (!atomic_load(&count))
        return;
    pthread_mutex_lock(&lock);
    struct shared_event **at = find(event), *gone = *at;
    if (gone) {
        *at = gone->next;
        atomic_fetch_sub(&count, 1);
    }
    pthread_mutex_unlock(&lock);
    free(gone);
}

/* Locked. As ibx_shared_event_forget(), for one bucket. */
static void forget_in(struct shared_event **at, const void *context)
{
    struct shared_event *gone;
    while ((gone = *at)) {
        if (context && gone->context != context) {
            at = &gone->next;
            continue;
        }
        *at = gone->next;
        free(gone);
        atomic_fetch_sub(&count, 1);
    }
}

void ibx_shared_event_forget(const void *context)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < BUCKETS; i++)
        forget_in(&events[i], context);
    pthread_mutex_unlock(&lock);
}

void ibx_shared_event_made(struct gpu_session *x, uint64_t event, unsigned flags)
{
    void *context = NULL;
    ibx_shared_event_gone(event); /* an old one whose end was not seen */
    if (!(flags & INTERPROCESS) || !ibx_back_end_have_cuda(x) || x->cuda->ctx_get_current(&context))
        return;
    struct shared_event *made = malloc(sizeof(*made));
    if (!made)
        return;
    pthread_mutex_lock(&lock);
    struct shared_event **bucket = bucket_of(event);
    *made = (struct shared_event){*bucket, event, context};
    *bucket = made;
    atomic_fetch_add(&count, 1);
    pthread_mutex_unlock(&lock);
}

bool ibx_shared_event_any(void)
{
    return atomic_load(&count);
}

/* The event's context; NULL: it is none of these. */
static void *context_of(uint64_t event)
{
    pthread_mutex_lock(&lock);
    const struct shared_event *s = *find(event);
    void *context = s ? s->context : NULL;
    pthread_mutex_unlock(&lock);
    return context;
}

/* An event that is recorded behind `event`, in its context, which is current; NULL: CUDA has
 * refused. */
static void *event_behind(const struct ibx_cuda *cuda, void *event)
{
    int (*wait)(void *in, void *for_event, unsigned flags) = NULL;
    void *plain = NULL, *stream = ibx_own_stream_begin();
    *(void **)&wait = ibx_cuda_symbol("cuStreamWaitEvent");
    if (stream && cuda->event_create(&plain, IBX_CUDA_EVENT_DISABLE_TIMING))
        plain = NULL;
    if (plain && (!wait || wait(stream, event, 0) || cuda->event_record(plain, stream))) {
        cuda->event_destroy(plain);
        plain = NULL;
    }
    if (stream)
        ibx_own_stream_leave(stream);
    return plain;
}

bool ibx_shared_event_wait(const struct gpu_session *x, void *stream, void *event, unsigned flags,
                           int (*wait)(void *stream, void *event, unsigned flags), int *code)
{
    void *current = NULL, *of_stream = NULL, *popped = NULL;
    const struct ibx_cuda *cuda = x->cuda;
    void *context = atomic_load(&count) ? context_of((uintptr_t)event) : NULL;
    int capturing = 0;
    if (!context || cuda->ctx_get_current(&current))
        return false;
    if (!cuda->stream_is_capturing(stream, &capturing) && capturing)
        return false; /* the driver refuses it, or makes a node for the event itself */
    if ((uintptr_t)stream <= (uintptr_t)IBX_CUDA_STREAM_PER_THREAD)
        of_stream = current;
    else if (cuda->stream_get_context(stream, &of_stream))
        return false;
    if (of_stream == context)
        return false;
    *code = CUDA_INVALID_HANDLE;
    if (cuda->ctx_push_current(context))
        return true;
    void *plain = event_behind(cuda, event);
    cuda->ctx_pop_current(&popped);
    if (!plain)
        return true;
    *code = wait(stream, plain, flags);
    cuda->event_destroy(plain); /* CUDA keeps what the wait needs */
    return true;
}
