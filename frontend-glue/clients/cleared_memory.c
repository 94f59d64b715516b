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

#define MOST_URGENT (-1000) /* CUDA uses the nearest priority that exists */

/* The stream for clearing in a context. It has only such work, so waiting for it is short. */
struct clearing {
    struct clearing *next;
    const void *context;
    void *stream;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct clearing *all;

/* Its work goes ahead of other work that waits for room on the GPU, and waits for no other
 * stream. */
static void *urgent_stream(void)
{
    int (*create)(void **stream, unsigned flags, int priority) = NULL;
    void *stream = NULL;
    *(void **)&create = ibx_back_end_runtime("cudaStreamCreateWithPriority");
    if (create && !create(&stream, IBX_STREAM_NON_BLOCKING, MOST_URGENT))
        return stream;
    ibx_back_end_forget_error();
    return NULL;
}

/* Locked. NULL: there is none. */
static struct clearing *make(const void *context)
{
    struct clearing *made = malloc(sizeof(*made));
    if (!made)
        return NULL;
    *made = (struct clearing){.next = all, .context = context, .stream = urgent_stream()};
    if (!made->stream) {
        free(made);
        return NULL;
    }
    all = made;
    return made;
}

/* The stream for the thread's context. NULL: there is none. */
static void *stream_of_own(const struct ibx_cuda *cuda)
{
    void *context = NULL;
    if (cuda->ctx_get_current(&context) || !context)
        return NULL;
    pthread_mutex_lock(&lock);
    struct clearing *c = all;
    while (c && c->context != context)
        c = c->next;
    c = c ? c : make(context);
    void *stream = c ? c->stream : NULL;
    pthread_mutex_unlock(&lock);
    return stream;
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

static bool clear_and_wait(const struct ibx_cuda *cuda, void *address, size_t n)
{
    int (*set)(void *at, int value, size_t bytes, void *in_stream) = NULL;
    *(void **)&set = ibx_back_end_runtime("cudaMemsetAsync");
    const int mode = ibx_cuda_capture_relax(cuda);
    void *stream = set ? stream_of_own(cuda) : NULL;
    const bool cleared = stream && !set(address, 0, n, stream) && !cuda->stream_synchronize(stream);
    ibx_cuda_capture_restore(cuda, mode);
    return cleared;
}

bool ibx_clear_new(struct gpu_session *x, uint64_t address, uint64_t n)
{
    if (!n || !ibx_clients_were_several() || !ibx_back_end_have_cuda(x))
        return true;
    return clear_and_wait(x->cuda, pointer_to(address), n);
}

bool ibx_clear_new_in(struct gpu_session *x, uint64_t address, uint64_t n, void *stream)
{
    int (*set)(void *at, int value, size_t bytes, void *in_stream) = NULL;
    if (!n || !ibx_clients_were_several())
        return true;
    *(void **)&set = ibx_back_end_runtime("cudaMemsetAsync");
    ibx_captures_spare(x, (uintptr_t)stream);
    if (set && !set(pointer_to(address), 0, n, stream))
        return true;
    ibx_back_end_forget_error(); /* perhaps no access to the memory's device */
    return false;
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
