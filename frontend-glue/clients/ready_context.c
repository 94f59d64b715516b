/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A context that exists before the process has a client. A program makes its context at its first
 * call, which takes some 200 ms; a spare process (back_end_processes/client_processes.h) has made
 * the context of the first GPU by then, and pinned the memory for copies.
 *
 * It is the primary context, which the runtime uses as well. If a program selects another GPU
 * first, this process releases the context, which then exists only if the program uses the first
 * GPU later. A spare process makes no context if a GPU takes one process at a time. If something
 * breaks the unused context (an uncorrectable memory error, a GPU that was reset), the next program
 * would get it: so the process checks it once a second, and ends if it is broken.
 */
#include "frontend-glue/clients/clients.h"

#include "common/log.h"
#include "common/thread.h"
#include "gpudirect/pinned.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FIRST        0 /* device */
#define COMPUTE_MODE 20
#define SHARED       0 /* CU_COMPUTEMODE_DEFAULT */
#define LOOK_MS      1000

/*
 *   NO_CONTEXT -> MAKES_IT            in a thread
 *   MAKES_IT -> HELD                  nobody has come yet
 *   MAKES_IT | HELD -> TAKEN          the first client has come
 *   MAKES_IT | HELD -> BROKE          the process ends
 */
enum ready { NO_CONTEXT, MAKES_IT, HELD, TAKEN, BROKE };

static atomic_uint ready; /* enum ready, which move() alone changes */
static atomic_bool holds; /* this process has retained the context */
static atomic_bool elsewhere;
static size_t pinned_bytes;

static bool move(unsigned from, unsigned to)
{
    return atomic_compare_exchange_strong(&ready, &from, to);
}

static void end(const char *why)
{
    ibx_log(IBX_LOG_WARN, "process %d, which was waiting for clients, ends: %s", (int)getpid(),
            why);
    _exit(EXIT_FAILURE);
}

/* A driver that has once found no GPU finds none in this process any more, as when this service
 * begins before the driver is there. So the process ends, and the next client's process tries
 * again. */
static void no_driver(const struct ibx_cuda *cuda, int rc)
{
    char why[160];
    snprintf(why, sizeof(why), "there is no GPU yet (cuInit: %s)", ibx_cuda_error_name(cuda, rc));
    if (move(MAKES_IT, BROKE))
        end(why);
}

/* NULL: there is none; the program's first call makes it, or fails with the reason. */
static void *make(const struct ibx_cuda *cuda)
{
    int (*init)(unsigned) = NULL;
    void *context = NULL;
    int mode = SHARED;
    *(void **)&init = ibx_cuda_symbol("cuInit");
    if (!init || !cuda->device_primary_ctx_retain || !cuda->device_primary_ctx_release)
        return NULL;
    int rc = init(0);
    if (rc)
        no_driver(cuda, rc);
    if (!rc)
        rc = cuda->device_get_attribute(&mode, COMPUTE_MODE, FIRST);
    if (!rc && mode != SHARED) {
        ibx_log(IBX_LOG_INFO, "GPU 0 takes one process at a time, so that no spare one uses it");
        return NULL;
    }
    if (!rc)
        rc = cuda->device_primary_ctx_retain(&context, FIRST);
    if (rc)
        ibx_log(IBX_LOG_INFO, "a spare process has no context on GPU 0 (%s): its program makes one",
                ibx_cuda_error_name(cuda, rc));
    return rc ? NULL : context;
}

static void let_go(void)
{
    if (atomic_exchange(&holds, false))
        ibx_cuda_load(NULL)->device_primary_ctx_release(FIRST);
}

static int look_at(const struct ibx_cuda *cuda, void *context)
{
    void *popped;
    int rc = cuda->ctx_push_current(context);
    if (rc)
        return rc;
    rc = cuda->stream_query(IBX_CUDA_STREAM_LEGACY);
    cuda->ctx_pop_current(&popped);
    return rc == IBX_CUDA_NOT_READY ? 0 : rc;
}

static void *run(void *nothing)
{
    pthread_setname_np(pthread_self(), "ibx-context");
    const struct ibx_cuda *cuda = ibx_cuda_load(NULL);
    void *context = cuda ? make(cuda) : NULL;
    (void)nothing;
    if (!context)
        return NULL;
    atomic_store(&holds, true);
    if (atomic_load(&elsewhere))
        let_go();
    else
        ibx_pinned_prepare(pinned_bytes);
    if (move(MAKES_IT, HELD))
        ibx_log(IBX_LOG_INFO, "process %d has a context on GPU 0, and waits for clients",
                (int)getpid());
    while (atomic_load(&ready) == HELD) {
        const int rc = look_at(cuda, context);
        if (rc && move(HELD, BROKE)) {
            char why[160];
            snprintf(why, sizeof(why), "its context on GPU 0 is broken (%s)",
                     ibx_cuda_error_name(cuda, rc));
            end(why);
        }
        poll(NULL, 0, LOOK_MS);
    }
    return NULL;
}

void ibx_ready_context_make(const struct gpu_session *x)
{
    if (x->options.mode == IBX_GPU_OFF || !move(NO_CONTEXT, MAKES_IT))
        return;
    pinned_bytes = x->options.memory;
    ibx_thread_begin(NULL, run, NULL);
}

void ibx_ready_context_taken(void)
{
    if (move(MAKES_IT, TAKEN) || move(HELD, TAKEN))
        return;
    while (atomic_load(&ready) == BROKE)
        pause();
}

void ibx_ready_context_selected(int device)
{
    if (device <= FIRST || atomic_load(&elsewhere))
        return;
    atomic_store(&elsewhere, true);
    let_go();
}
