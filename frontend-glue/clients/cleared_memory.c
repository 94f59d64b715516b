/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Natively the driver clears memory before another process gets it. Within one process it does not:
 * a program would find there what another one has freed. So if this process has ever had several
 * programs, the memory that one of them gets is cleared before the program learns of it: in the
 * stream in which it is allocated, if there is one; otherwise in a stream of our own, which is
 * waited for. A process that has only had one program pays nothing for this.
 */
#include "frontend-glue/clients/clients.h"

#include "common/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define MOST_URGENT     (-1000) /* CUDA uses the nearest priority that exists */
#define INVALID_CONTEXT 201     /* CUresult */

/* The stream for clearing in a context. It has only such work, so waiting for it is short. */
struct clearing {
    struct clearing *next;
    const void *context;
    void *stream;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct clearing *all;

/* Its work goes ahead of other work that waits for room on the GPU, and waits for no other
 * stream. Returns CUDA's error. */
static int make_urgent_stream(void **stream)
{
    int (*create)(void **made, unsigned flags, int priority) = NULL;
    *(void **)&create = ibx_back_end_runtime("cudaStreamCreateWithPriority");
    const int rc =
        create ? create(stream, IBX_STREAM_NON_BLOCKING, MOST_URGENT) : CUDA_NOT_SUPPORTED;
    if (rc)
        ibx_back_end_forget_error();
    return rc;
}

/* Locked. */
static int make(const void *context, struct clearing **out)
{
    struct clearing *made = malloc(sizeof(*made));
    if (!made)
        return CUDA_MEMORY_ALLOCATION;
    *made = (struct clearing){.next = all, .context = context};
    const int rc = make_urgent_stream(&made->stream);
    if (rc) {
        free(made);
        return rc;
    }
    *out = all = made;
    return 0;
}

/* The stream for the thread's context. */
static int stream_of_own(const struct ibx_cuda *cuda, void **stream)
{
    void *context = NULL;
    int rc = cuda->ctx_get_current(&context);
    if (rc || !context)
        return rc ? rc : INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    struct clearing *c = all;
    while (c && c->context != context)
        c = c->next;
    rc = c ? 0 : make(context, &c);
    if (!rc)
        *stream = c->stream;
    pthread_mutex_unlock(&lock);
    return rc;
}

void ibx_cleared_forget(const void *context)
{
    pthread_mutex_lock(&lock);
    for (struct clearing **at = &all; *at;) {
        struct clearing *c = *at;
        if (context && c->context != context) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        free(c);
    }
    pthread_mutex_unlock(&lock);
}

static int clear_and_wait(const struct ibx_cuda *cuda, void *address, size_t n)
{
    int (*set)(void *at, int value, size_t bytes, void *in_stream) = NULL;
    void *stream = NULL;
    *(void **)&set = ibx_back_end_runtime("cudaMemsetAsync");
    const int mode = ibx_cuda_capture_relax(cuda);
    int rc = set ? stream_of_own(cuda, &stream) : CUDA_NOT_SUPPORTED;
    rc = rc ? rc : set(address, 0, n, stream);
    rc = rc ? rc : cuda->stream_synchronize(stream);
    ibx_cuda_capture_restore(cuda, mode);
    return rc;
}

/* What the client is told: that there is no memory, unless its context is broken. */
static int told(int rc)
{
    return rc && !ibx_call_breaks_contexts(rc) ? CUDA_MEMORY_ALLOCATION : rc;
}

int ibx_clear_new(struct gpu_session *x, uint64_t address, uint64_t n)
{
    if (!n || !ibx_clients_were_several() || !ibx_back_end_have_cuda(x))
        return 0;
    return told(clear_and_wait(x->cuda, pointer_to(address), n));
}

int ibx_clear_new_in(struct gpu_session *x, uint64_t address, uint64_t n, void *stream)
{
    int (*set)(void *at, int value, size_t bytes, void *in_stream) = NULL;
    if (!n || !ibx_clients_were_several())
        return 0;
    *(void **)&set = ibx_back_end_runtime("cudaMemsetAsync");
    ibx_captures_spare(x, (uintptr_t)stream);
    int rc = set ? set(pointer_to(address), 0, n, stream) : CUDA_NOT_SUPPORTED;
    if (rc)
        ibx_back_end_forget_error(); /* perhaps no access to the memory's device */
    else if (!ibx_pending_clear_add(x, address, stream))
        rc = x->cuda->stream_synchronize(stream);
    return told(rc);
}

void ibx_clear_tell(const struct gpu_session *x)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "memory that %s gets by %s cannot be cleared: it may contain what another program "
                "had there",
                ibx_session_path(x->s)->peer, x->requests.name);
}
