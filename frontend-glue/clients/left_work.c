/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Work in CUDA's per-thread streams, and in streams that were destroyed. The former have no
 * handles, and a session's is gone when its thread ends; its work goes on. The work in the legacy
 * stream goes on as well, and that stream is never idle while others keep it busy. So an event is
 * put behind such work as the thread ends, or before the stream is destroyed; client_ends.c learns
 * from it when the work is over. If a client leaves very much work, some of its events are moved,
 * each behind all work that it stood for.
 */
#include "frontend-glue/clients/clients.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define EACH 16u /* most events of one client in a context */

struct left {
    struct left *next;
    uint64_t client, number;
    void *event, *context;
    bool legacy; /* of the legacy stream: one for a client in a context */
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct left *lefts;
static uint64_t numbers;    /* in the order in which work was noted; from 1 */
static pid_t process;       /* to which `lefts` belong */
static const void *watched; /* NULL: all contexts */
static _Atomic bool lost;   /* the watched context is gone */

static bool has_ended(const struct ibx_cuda *cuda, const struct left *l)
{
    void *popped = NULL;
    if (cuda->ctx_push_current(l->context))
        return true; /* it is gone */
    const bool ended = cuda->event_query(l->event) != IBX_CUDA_NOT_READY;
    if (ended)
        cuda->event_destroy(l->event);
    cuda->ctx_pop_current(&popped);
    return ended;
}

/* Locked. Drops events that have ended; in a forked process also all of its parent's. */
static void drop_ended(const struct ibx_cuda *cuda)
{
    if (process != getpid())
        lefts = NULL;
    process = getpid();
    for (struct left **at = &lefts; *at;) {
        struct left *l = *at;
        if (has_ended(cuda, l)) {
            *at = l->next;
            free(l);
        } else {
            at = &l->next;
        }
    }
}

bool ibx_left_work_any(const struct ibx_cuda *cuda, uint64_t client, uint64_t number)
{
    pthread_mutex_lock(&lock);
    drop_ended(cuda);
    const struct left *l = lefts;
    while (l && (l->legacy || (l->client != client && l->number > number)))
        l = l->next;
    pthread_mutex_unlock(&lock);
    return l;
}

bool ibx_left_work_in_legacy(const struct ibx_cuda *cuda, uint64_t client)
{
    pthread_mutex_lock(&lock);
    drop_ended(cuda);
    const struct left *l = lefts;
    while (l && !(l->legacy && l->client == client))
        l = l->next;
    pthread_mutex_unlock(&lock);
    return l;
}

uint64_t ibx_left_work_so_far(void)
{
    pthread_mutex_lock(&lock);
    const uint64_t number = numbers;
    pthread_mutex_unlock(&lock);
    return number;
}

/* Locked. The client's last event of the kind, if it has as many as it may; NULL: it has fewer. */
static const struct left *last_of_many(const struct left *like)
{
    const struct left *last = NULL;
    unsigned count = 0;
    for (const struct left *l = lefts; l; l = l->next) {
        if (l->client != like->client || l->context != like->context || l->legacy != like->legacy)
            continue;
        last = last ? last : l;
        count++;
    }
    return count >= (like->legacy ? 1 : EACH) ? last : NULL;
}

/* In the thread's context: moves an existing event behind the stream's work as well. False: a new
 * one is needed. */
static bool join(const struct ibx_cuda *cuda, const struct left *like, void *stream)
{
    int (*wait)(void *of, void *event, unsigned flags) = NULL;
    *(void **)&wait = ibx_cuda_symbol("cuStreamWaitEvent");
    pthread_mutex_lock(&lock);
    drop_ended(cuda);
    const struct left *l = wait ? last_of_many(like) : NULL;
    const bool joined = l && !wait(stream, l->event, 0) && !cuda->event_record(l->event, stream);
    pthread_mutex_unlock(&lock);
    return joined;
}

static bool keep(const struct ibx_cuda *cuda, const struct left *like)
{
    struct left *made = malloc(sizeof(*made));
    if (!made) {
        cuda->event_destroy(like->event);
        return false;
    }
    *made = *like;
    pthread_mutex_lock(&lock);
    drop_ended(cuda);
    made->number = ++numbers;
    made->next = lefts;
    lefts = made;
    pthread_mutex_unlock(&lock);
    return true;
}

static bool is_busy(const struct ibx_cuda *cuda, void *stream)
{
    int capturing = 0;
    return !cuda->stream_is_capturing(stream, &capturing) && !capturing &&
           cuda->stream_query(stream) == IBX_CUDA_NOT_READY;
}

/* In the thread's context: puts an event behind the stream's work. False: there is none. */
static bool put_behind(const struct ibx_cuda *cuda, uint64_t client, void *stream, bool legacy)
{
    struct left l = {.client = client, .legacy = legacy};
    if (cuda->ctx_get_current(&l.context))
        return false;
    if (join(cuda, &l, stream))
        return true;
    if (cuda->event_create(&l.event, IBX_CUDA_EVENT_DISABLE_TIMING))
        return false;
    if (!cuda->event_record(l.event, stream))
        return keep(cuda, &l);
    cuda->event_destroy(l.event);
    return false;
}

/* If the work cannot be noted, the client counts as one whose work cannot be found. */
static void keep_work(struct gpu_session *x, uint64_t client, void *stream)
{
    if (is_busy(x->cuda, stream) && !put_behind(x->cuda, client, stream, false))
        ibx_clients_hide_work(x);
}

/* Notes the work of the legacy stream, some of which may be the client's: it is all in one order,
 * whoever's it is. To query the stream while somebody captures would end the capture. */
static void keep_legacy_work(struct gpu_session *x, uint64_t client)
{
    const bool quiet = ibx_captures_wait_try();
    const bool busy = !quiet || x->cuda->stream_query(IBX_CUDA_STREAM_LEGACY) == IBX_CUDA_NOT_READY;
    void *stream = busy ? ibx_own_stream_behind_legacy() : NULL;
    if (busy && !(stream && put_behind(x->cuda, client, stream, true)))
        ibx_clients_hide_work(x);
    if (stream)
        ibx_own_stream_leave(stream);
    if (quiet)
        ibx_captures_wait_end();
}

/* In the thread's context. */
static void keep_work_of_context(struct gpu_session *x, uint64_t client)
{
    keep_work(x, client, IBX_CUDA_STREAM_PER_THREAD);
    keep_legacy_work(x, client);
}

static void keep_all_work(struct gpu_session *x, uint64_t client)
{
    void *current = NULL, *context = NULL;
    if (!x->cuda->ctx_get_current(&current) && current)
        keep_work_of_context(x, client);
    for (int i = 0, entered; (entered = ibx_cuda_primary_enter(x->cuda, i, &context)) >= 0; i++) {
        if (entered && context != current)
            keep_work_of_context(x, client);
        if (entered)
            ibx_cuda_primary_leave(x->cuda, i);
    }
}

void ibx_left_work_keep(struct gpu_session *x, uint64_t client)
{
    if (!ibx_back_end_have_cuda(x) || !ibx_clients_give_begin())
        return;
    const int mode = ibx_cuda_capture_relax(x->cuda);
    keep_all_work(x, client);
    ibx_cuda_capture_restore(x->cuda, mode);
    ibx_clients_give_end();
}

void ibx_left_work_of_stream(struct gpu_session *x, uint64_t stream)
{
    const uint64_t client = ibx_clients_number(x);
    if (!client || !ibx_back_end_have_cuda(x) || !ibx_handles_has(x, IBX_HANDLE_STREAM, stream) ||
        !ibx_clients_give_begin())
        return;
    const int mode = ibx_cuda_capture_relax(x->cuda);
    keep_work(x, client, (void *)(uintptr_t)stream);
    ibx_cuda_capture_restore(x->cuda, mode);
    ibx_clients_give_end();
}

void ibx_left_work_forget(const void *context)
{
    pthread_mutex_lock(&lock);
    if (!context || !watched || context == watched)
        atomic_store(&lost, true);
    for (struct left **at = &lefts; *at;) {
        struct left *l = *at;
        if (!context || l->context == context) {
            *at = l->next;
            free(l);
        } else {
            at = &l->next;
        }
    }
    pthread_mutex_unlock(&lock);
}

void ibx_left_work_watch(const void *context)
{
    pthread_mutex_lock(&lock);
    watched = context;
    atomic_store(&lost, false);
    pthread_mutex_unlock(&lock);
}

bool ibx_left_work_lost(void)
{
    return atomic_load(&lost);
}
