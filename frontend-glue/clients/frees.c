/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * cudaFree waits for all work of the device, and meanwhile the driver may keep other calls out. A
 * graph whose function a client has to call, such as a copy of that client's (host_work.c), may
 * need one of these calls: then nothing would go on any more. So if clients have such graphs,
 * memory is freed at a moment when none is under way: this thread first waits by
 * cudaDeviceSynchronize, which keeps nobody out, and again if a graph was launched meanwhile.
 *
 * If the work of another client never ended, everybody would be kept out for good: so all work is
 * waited for here, too (own_work.c).
 *
 * The driver waits likewise as it loads a kernel, by default when the kernel is first looked up,
 * and as it unloads a client's kernels. Both are done at such a moment, too.
 *
 * A stream that waits for a word (cuStreamWaitValue32) may wait until somebody calls the driver,
 * which the free would keep out: its client, or another thread of ours if that has ended. So if
 * there are several clients, no such wait is added while a free is in CUDA, for HELD_MOST_MS; and
 * if one was added since all work had ended, all work is waited for anew. Meanwhile each is held
 * for HELD_MS, and for twice as long each time that this was in vain, up to HELD_MOST_MS: who adds
 * one now and then, and always has work for longer than that, would keep memory from being freed.
 *
 * So that such a moment comes, launches of graphs are held while somebody waits for it, each for
 * HELD_MS at most: what a graph waits for may come from the thread that launches the next one. If
 * the moment has not come, because launches of several clients follow each other, the next ones are
 * held for twice as long, up to HELD_MOST_MS. A graph that always waits for the launch of the next
 * one leaves no such moment; memory is not freed while there are such graphs, since all clients
 * might stand still then.
 */
#include "frontend-glue/clients/clients.h"

#include "common/clock.h"
#include "common/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define HELD_MS      200u
#define HELD_MOST_MS 3200u
#define LOADED       1024u /* kernels */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t launches;  /* of graphs, so far */
static unsigned launching; /* launches that are in CUDA now */
static unsigned waiting;   /* frees that wait for the device */
static unsigned held_ms = HELD_MS;
static unsigned settling; /* frees that wait for all work */
static unsigned word_ms = HELD_MS;
static unsigned adding; /* waits for words that are being added, */
static uint64_t added;  /* and so far */
static unsigned inside; /* frees that are in CUDA, or in one of GVirtuS's handlers */

/* Whether it is memory of a pool, for which cudaFree does not wait. */
static bool is_pooled(struct gpu_session *x, uint64_t address)
{
    static const int names[1] = {IBX_CUDA_POINTER_MEMPOOL};
    void *pool = NULL, *values[1] = {&pool};
    return ibx_back_end_have_cuda(x) &&
           !x->cuda->pointer_get_attributes(1, names, values, address) && pool;
}

/* Locked, except while it waits. Waits until no graph is under way. */
static void wait_for_graphs(int (*wait)(void))
{
    int (*forget)(void) = NULL;
    uint64_t before;
    int rc;
    *(void **)&forget = ibx_back_end_runtime("cudaGetLastError");
    waiting++;
    do {
        while (launching) /* `wait` does not see a graph that is not in its stream yet */
            ibx_thread_wait(&changed, &lock);
        before = launches;
        pthread_mutex_unlock(&lock);
        rc = wait();
        pthread_mutex_lock(&lock);
        held_ms = launches == before ? HELD_MS : held_ms < HELD_MOST_MS ? 2 * held_ms : held_ms;
    } while (launches != before && !rc && !ibx_captures_any()); /* `wait` ends these */
    while (launching)
        ibx_thread_wait(&changed, &lock);
    waiting--;
    if (rc && forget)
        forget(); /* the error is not the client's */
}

/* Whether cudaFree waits for work: not for memory of a pool, nor if there is no memory. */
static bool waits(struct gpu_session *x, uint64_t address)
{
    uint64_t base;
    size_t n;
    return !address || !ibx_back_end_have_cuda(x) ||
           (!x->cuda->mem_get_address_range(&base, &n, address) && !is_pooled(x, address));
}

/* Waits until all work has ended that was there at some moment. Returns how many waits for words
 * had been added before. */
static uint64_t settle(struct gpu_session *x)
{
    pthread_mutex_lock(&lock);
    settling++;
    while (adding) /* it may not be seen in its stream yet */
        ibx_thread_wait(&changed, &lock);
    const uint64_t before = added;
    pthread_mutex_unlock(&lock);
    ibx_own_work_settle_all(x);
    pthread_mutex_lock(&lock);
    settling--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return before;
}

/* False: a wait for a word was added meanwhile. */
static bool begin(struct gpu_session *x, bool settles, bool graphs)
{
    int (*wait)(void) = NULL;
    const uint64_t before = settles ? settle(x) : 0;
    if (graphs)
        *(void **)&wait = ibx_back_end_runtime("cudaDeviceSynchronize");
    if (wait && !ibx_captures_wait_try()) /* the wait would end a capture */
        wait = NULL;
    pthread_mutex_lock(&lock);
    if (wait)
        wait_for_graphs(wait);
    const bool begins = !settles || added == before;
    inside += begins;
    if (settles)
        word_ms = begins ? HELD_MS : word_ms < HELD_MOST_MS ? 2 * word_ms : word_ms;
    pthread_mutex_unlock(&lock);
    if (wait)
        ibx_captures_wait_end();
    return begins;
}

void ibx_frees_begin(struct gpu_session *x, uint64_t address)
{
    const bool settles = ibx_clients_several(x) && waits(x, address);
    const bool graphs = ibx_host_work_repeats() && !(address && is_pooled(x, address));
    while (!begin(x, settles, graphs)) {
    }
}

void ibx_frees_end(void)
{
    pthread_mutex_lock(&lock);
    inside--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------ kernels */

/* A hash table: the kernel and context that were looked up last, for each hash. */
static _Atomic uint64_t loaded[LOADED];

static _Atomic uint64_t *loaded_at(uint64_t load)
{
    return &loaded[(load >> 4 ^ load >> 16) % LOADED];
}

/* A function and the current context as a number: each device loads its own kernel. */
static uint64_t load_of(struct gpu_session *x, uint64_t function)
{
    void *context = NULL;
    if (!ibx_back_end_have_cuda(x) || x->cuda->ctx_get_current(&context))
        context = NULL;
    return function ^ (uint64_t)(uintptr_t)context << 20;
}

bool ibx_frees_begin_load(struct gpu_session *x, uint64_t function)
{
    const uint64_t load = ibx_host_work_repeats() ? load_of(x, function) : 0;
    if (!load || atomic_load(loaded_at(load)) == load)
        return false;
    ibx_frees_begin(x, 0);
    return true;
}

void ibx_frees_end_load(struct gpu_session *x, uint64_t function)
{
    const uint64_t load = load_of(x, function);
    ibx_frees_end();
    atomic_store(loaded_at(load), load);
}

void ibx_frees_unloaded(void)
{
    for (unsigned i = 0; i < LOADED; i++)
        atomic_store(&loaded[i], 0);
}

/* ------------------------------------------------------------------------ executable graphs */

void ibx_frees_forget(const void *context)
{
    ibx_frees_unloaded();
    ibx_exec_ends_forget(context);
    ibx_exec_functions_forget(context);
}

enum captured {
    CAPTURED_NOT,
    CAPTURED,
    CAPTURED_PERHAPS, /* CUDA does not tell: beside a capture it may refuse the legacy stream */
};

static enum captured is_captured(struct gpu_session *x, void *stream)
{
    int capturing = 0;
    if (!ibx_captures_any())
        return CAPTURED_NOT;
    if (!ibx_back_end_have_cuda(x) || (uintptr_t)stream <= 1 ||
        x->cuda->stream_is_capturing(stream, &capturing))
        return CAPTURED_PERHAPS;
    return capturing ? CAPTURED : CAPTURED_NOT;
}

/* How many functions of clients the launch will call: none, if the stream is being captured. Then
 * what comes of the capture may call them. */
static unsigned functions_of(struct gpu_session *x, const void *graph, void *stream)
{
    const unsigned functions = ibx_handles_functions(x, (uintptr_t)graph);
    const bool captured = functions && is_captured(x, stream) == CAPTURED;
    if (captured)
        ibx_exec_functions_keep(graph);
    return captured ? 0 : functions;
}

/* Locked, except while it waits: until there are none of these, for `ms` at most. */
static void hold(const unsigned *some, unsigned ms)
{
    const uint64_t deadline = ibx_deadline_in_ms(ms);
    const struct timespec until = ibx_timespec_of(deadline);
    while (*some && ibx_now_ns() < deadline)
        pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until);
}

/* Whether its last launch has ended is asked of an event, which can be recorded in the stream
 * unless that may be captured; in the legacy stream, unless one is that waits for it. What is
 * captured is no launch. */
static void note_launch(struct gpu_session *x, const void *graph, void *stream)
{
    const enum captured captured = is_captured(x, stream);
    const bool legacy =
        captured == CAPTURED_PERHAPS && (uintptr_t)stream <= 1 && ibx_captures_legacy_try();
    if (captured == CAPTURED_NOT || legacy)
        ibx_exec_ends_launched(x, graph, stream);
    else if (captured == CAPTURED_PERHAPS)
        ibx_exec_ends_unseen(x, graph);
    if (legacy)
        ibx_captures_legacy_end();
}

int ibx_frees_launch(struct gpu_session *x, int (*launch)(void *graph, void *stream), void *graph,
                     void *stream)
{
    if (!ibx_host_work_repeats())
        return launch(graph, stream);
    const unsigned functions = functions_of(x, graph, stream);
    ibx_graph_room_take(functions);
    ibx_exec_functions_launch(graph, 1);
    pthread_mutex_lock(&lock);
    hold(&waiting, held_ms);
    while (inside)
        ibx_thread_wait(&changed, &lock);
    launches++;
    launching++;
    pthread_mutex_unlock(&lock);
    const int rc = launch(graph, stream);
    if (rc) {
        ibx_exec_functions_launch(graph, -1);
        ibx_graph_room_give(functions);
    }
    pthread_mutex_lock(&lock);
    launching--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (!rc)
        note_launch(x, graph, stream);
    return rc;
}

/* ------------------------------------------------------------------------ waits for words */

void ibx_frees_word_begin(struct gpu_session *x)
{
    const bool several = ibx_clients_several(x);
    pthread_mutex_lock(&lock);
    if (several) {
        hold(&settling, word_ms);
        hold(&inside, HELD_MOST_MS);
    }
    adding++;
    added++;
    pthread_mutex_unlock(&lock);
}

void ibx_frees_word_end(void)
{
    pthread_mutex_lock(&lock);
    adding--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
