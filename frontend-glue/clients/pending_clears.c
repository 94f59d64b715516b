/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory of pools that is being cleared for the client that has got it (cleared_memory.c), in the
 * client's stream. cudaFree does not wait for work that uses memory of a pool: CUDA leaves that to
 * the program, which does not know of the clear. When the pool has given the pages back, the clear
 * would fail, and break the contexts of all clients (719). So an event is recorded behind it, and
 * the memory is freed behind that event.
 */
#include "frontend-glue/clients/clients.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define BUCKETS 256u

struct pending {
    struct pending *next;
    uint64_t address;
    void *context;
    void *event; /* behind the latest clear of this memory */
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pending *pending[BUCKETS]; /* by address */
static atomic_uint count;

static struct pending **bucket_of(uint64_t address)
{
    return &pending[(address * UINT64_C(0x9e3779b97f4a7c15) >> 32) % BUCKETS];
}

/* Locked. Where this memory is in its bucket; the end of the bucket: nothing is known of it. */
static struct pending **find(uint64_t address)
{
    struct pending **at = bucket_of(address);
    while (*at && (*at)->address != address)
        at = &(*at)->next;
    return at;
}

/* Locked. */
static struct pending *take_out(struct pending **at)
{
    struct pending *taken = *at;
    *at = taken->next;
    atomic_fetch_sub(&count, 1);
    return taken;
}

/* Locked. Takes one out of the bucket whose clear is over, so that there are not more of them than
 * clears under way, and one for each bucket. NULL: there is none. */
static struct pending *take_over(const struct ibx_cuda *cuda, uint64_t address, const void *context)
{
    struct pending **at = bucket_of(address);
    while (*at &&
           ((*at)->context != context || cuda->event_query((*at)->event) == IBX_CUDA_NOT_READY))
        at = &(*at)->next;
    return *at ? take_out(at) : NULL;
}

/* In the current context. NULL: CUDA fails, or there is no memory. */
static struct pending *make(const struct ibx_cuda *cuda, void *context)
{
    struct pending *made = malloc(sizeof(*made));
    if (!made)
        return NULL;
    *made = (struct pending){.context = context};
    if (cuda->event_create(&made->event, IBX_CUDA_EVENT_DISABLE_TIMING)) {
        free(made);
        return NULL;
    }
    return made;
}

/* Locked, so that no reset of the context is noted meanwhile, which destroys the event. */
static bool add(const struct ibx_cuda *cuda, uint64_t address, void *stream, void *context)
{
    struct pending *p = take_over(cuda, address, context);
    p = p ? p : make(cuda, context);
    if (!p)
        return false;
    if (cuda->event_record(p->event, stream)) {
        cuda->event_destroy(p->event);
        free(p);
        return false;
    }
    p->address = address;
    p->next = *bucket_of(address);
    *bucket_of(address) = p;
    atomic_fetch_add(&count, 1);
    return true;
}

bool ibx_pending_clear_add(const struct gpu_session *x, uint64_t address, void *stream)
{
    const struct ibx_cuda *cuda = x->cuda;
    void *context = NULL, *popped = NULL;
    if (cuda->stream_get_context(stream, &context) || !context || cuda->ctx_push_current(context))
        return false;
    const int mode = ibx_cuda_capture_relax(cuda);
    pthread_mutex_lock(&lock);
    const bool added = add(cuda, address, stream, context);
    pthread_mutex_unlock(&lock);
    ibx_cuda_capture_restore(cuda, mode);
    cuda->ctx_pop_current(&popped);
    return added;
}

bool ibx_pending_clear(struct gpu_session *x, uint64_t address)
{
    if (!address || !atomic_load(&count) || !ibx_back_end_have_cuda(x))
        return false;
    const int mode = ibx_cuda_capture_relax(x->cuda);
    pthread_mutex_lock(&lock);
    const struct pending *p = *find(address);
    const bool is = p && x->cuda->event_query(p->event) == IBX_CUDA_NOT_READY;
    pthread_mutex_unlock(&lock);
    ibx_cuda_capture_restore(x->cuda, mode);
    return is;
}

void ibx_pending_clear_wait(struct gpu_session *x, uint64_t address)
{
    uint64_t ns = 0;
    while (ibx_pending_clear(x, address))
        ibx_nap(&ns);
}

bool ibx_pending_clear_before(uint64_t address, void *stream)
{
    int (*wait)(void *in, void *event, unsigned flags) = NULL;
    if (!atomic_load(&count))
        return true;
    *(void **)&wait = ibx_back_end_runtime("cudaStreamWaitEvent");
    pthread_mutex_lock(&lock);
    const struct pending *p = *find(address);
    const bool is = !p || (wait && !wait(stream, p->event, 0));
    pthread_mutex_unlock(&lock);
    if (!is)
        ibx_back_end_forget_error();
    return is;
}

void ibx_pending_clear_gone(uint64_t address)
{
    if (!address || !atomic_load(&count))
        return;
    pthread_mutex_lock(&lock);
    struct pending **at = find(address), *gone = *at ? take_out(at) : NULL;
    if (gone)
        ibx_cuda_load(NULL)->event_destroy(gone->event);
    pthread_mutex_unlock(&lock);
    free(gone);
}

void ibx_pending_clear_forget(const void *context)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (struct pending **at = &pending[i]; *at;) {
            if (context && (*at)->context != context)
                at = &(*at)->next;
            else
                free(take_out(at));
        }
    }
    pthread_mutex_unlock(&lock);
}
