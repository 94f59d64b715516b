/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* One connection: beginning, end, and what GVirtuS calls on it. */
#include "frontend-glue/call_pipeline/internal.h"

#include "common/clock.h"
#include "common/handlers.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FINISH_LOOK_NS 20000u

static const struct ibx_state request_states[] = {
    [REQUEST_STAGING] = {"staging", IBX_TO(REQUEST_ANSWERED) | IBX_TO(REQUEST_WAITING),
                         IBX_STATE_INITIAL},
    [REQUEST_ANSWERED] = {"answered", IBX_TO(REQUEST_STAGING), 0},
    [REQUEST_WAITING] = {"waiting", IBX_TO(REQUEST_STAGING), 0}};
static const struct ibx_state_table request_table =
    IBX_STATE_TABLE("request of GVirtuS", request_states);

static const struct ibx_state divert_states[] = {
    [DIVERT_NONE] = {"none", IBX_TO(DIVERT_NEXT), IBX_STATE_INITIAL},
    [DIVERT_NEXT] = {"next", IBX_TO(DIVERT_NONE) | IBX_TO(DIVERT_KEPT) | IBX_TO(DIVERT_LONG), 0},
    [DIVERT_KEPT] = {"kept", IBX_TO(DIVERT_NONE), 0},
    [DIVERT_LONG] = {"too long", IBX_TO(DIVERT_NONE), 0}};
static const struct ibx_state_table divert_table =
    IBX_STATE_TABLE("launch that is kept", divert_states);

/* --------------------------------------------------------------- beginning and end */

static bool is_eager(const struct ibx_session *session)
{
    const struct ibx_path *path = ibx_session_path(session);
    return path && (!strcmp(path->provider, "shm") || !strcmp(path->provider, "verbs"));
}

/* The session's pause, in the pipeline's own thread, which has the lock: signal handlers that were
 * held back can run. */
static void pause_wait(void *context)
{
    struct ibx_pipeline *p = context;
    pthread_mutex_unlock(&p->lock);
    ibx_handlers_run();
    pthread_mutex_lock(&p->lock);
}

struct ibx_pipeline *ibx_pipeline_create(struct ibx_session *session, enum ibx_pipeline_mode mode)
{
    struct ibx_pipeline *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->session = session;
    p->mode = mode;
    ibx_state_begin(&p->state, &request_table, REQUEST_STAGING);
    ibx_state_begin(&p->divert, &divert_table, DIVERT_NONE);
    p->eager = is_eager(session);
    p->room = ibx_session_room(session);
    memset(p->device.body, 0xff, sizeof(p->device.body));
    p->device.current = -1;
    p->launches_from = ibx_process_outdated(IBX_OUTDATED_ALL);
    p->others_from = ibx_process_outdated(IBX_OUTDATED_STREAMS);
    p->libraries_from = ibx_process_outdated(IBX_OUTDATED_LIBRARIES);
    p->returned.losses = ibx_process_reported_losses();
    p->call = ibx_call_find("", 0);
    pthread_mutex_init(&p->lock, NULL);
    ibx_session_set_pause(session, pause_wait, p);
    ibx_configurations_init(&p->configurations);
    ibx_process_add(p);
    if (ibx_session_kept(session)) {
        ibx_connection_monitor_begin();
        /* The server's process may be another one than that of earlier threads. */
        ibx_connection_monitor_check();
    }
    p->server_ends = ibx_process_ends();
    return p;
}

/* Takes it out of the process's list, and waits until nobody has its lock. False: its thread is in
 * a call. */
static bool leave_process(struct ibx_pipeline *p)
{
    const uint64_t since = ibx_now_ns(), deadline = since + ibx_process_end_ns();
    int busy;
    ibx_process_remove(p);
    while ((busy = pthread_mutex_trylock(&p->lock)) && ibx_now_ns() < deadline)
        nanosleep(&(struct timespec){.tv_nsec = (long)FINISH_LOOK_NS}, NULL);
    ibx_process_end_waited(since);
    if (busy)
        return false;
    ibx_process_count(-(int)(p->answered - p->replied));
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_destroy(&p->lock);
    return true;
}

bool ibx_pipeline_destroy(struct ibx_pipeline *p)
{
    if (!p)
        return true;
    if (!ibx_pipeline_is_inherited(p)) {
        ibx_pipeline_finish_last(p);
        if (!leave_process(p))
            return false;
    }
    ibx_successes_fini(&p->launches);
    ibx_successes_fini(&p->others);
    ibx_successes_fini(&p->libraries);
    ibx_successes_fini(&p->forms);
    ibx_replies_clear(&p->replies);
    free(p->backlog.bytes);
    free(p);
    return true;
}

void ibx_pipeline_lock(struct ibx_pipeline *p)
{
    if (p && !ibx_pipeline_is_inherited(p))
        pthread_mutex_lock(&p->lock);
}

void ibx_pipeline_unlock(struct ibx_pipeline *p)
{
    if (p && !ibx_pipeline_is_inherited(p))
        pthread_mutex_unlock(&p->lock);
}

/* ------------------------------------------------------------------ GVirtuS's calls */

/* Whether the staged bytes begin a launch that is to be kept. */
static bool keeps(const struct ibx_pipeline *p)
{
    static const char launch[] = "cudaLaunchKernel";
    return p->divert.now == DIVERT_NEXT && p->staged_length >= sizeof(launch) &&
           !memcmp(p->staged, launch, sizeof(launch));
}

/* Stages the bytes. False: they are to be written to the session now. */
static bool stages(struct ibx_pipeline *p, const void *bytes, size_t n)
{
    if (p->state.now == REQUEST_ANSWERED || (p->state.now == REQUEST_WAITING && p->reads)) {
        ibx_state_move(&p->state, REQUEST_STAGING);
        p->staged_length = 0;
    }
    if (p->state.now == REQUEST_STAGING && n <= sizeof(p->staged) - p->staged_length) {
        if (n)
            memcpy(p->staged + p->staged_length, bytes, n);
        p->staged_length += n;
        return true;
    }
    if (p->state.now == REQUEST_STAGING && keeps(p))
        ibx_state_move(&p->divert, DIVERT_LONG);
    if (p->state.now == REQUEST_STAGING && p->divert.now == DIVERT_LONG)
        return true; /* the rest of that launch is not sent either */
    if (p->state.now == REQUEST_STAGING)
        ibx_awaited_begin_long(p);
    return false;
}

void ibx_pipeline_write(struct ibx_pipeline *p, const void *bytes, size_t n)
{
    if (ibx_pipeline_is_inherited(p)) {
        ibx_session_write(p->session, bytes, n);
        return;
    }
    if (p->mode != IBX_PIPELINE_OFF && stages(p, bytes, n))
        return;
    pthread_mutex_lock(&p->lock);
    ibx_session_write(p->session, bytes, n);
    pthread_mutex_unlock(&p->lock);
}

/* The request is complete: it is answered here, or sent. */
static void request_ends(struct ibx_pipeline *p)
{
    if (p->divert.now == DIVERT_LONG || keeps(p)) {
        if (p->divert.now == DIVERT_NEXT)
            ibx_state_move(&p->divert, DIVERT_KEPT);
        ibx_answer_success(p);
        ibx_state_move(&p->state, REQUEST_ANSWERED);
        return;
    }
    if (p->foreign || ibx_call_request(p->staged, p->staged_length, &p->call) != p->staged_length) {
        ibx_awaited_begin_long(p);
        return;
    }
    size_t n;
    const uint8_t *body = ibx_request_body(p, &n);
    ibx_answer_or_send(p, body, n);
}

void ibx_pipeline_sync(struct ibx_pipeline *p)
{
    if (ibx_pipeline_is_inherited(p)) {
        ibx_session_sync(p->session);
        return;
    }
    if (p->state.now == REQUEST_STAGING && p->staged_length)
        request_ends(p);
    if (p->mode != IBX_PIPELINE_OFF && p->state.now != REQUEST_WAITING)
        return;
    pthread_mutex_lock(&p->lock);
    ibx_session_sync(p->session);
    pthread_mutex_unlock(&p->lock);
}

/* Locked. The session has ended, and this call returns an error for that. */
static void drop_and_tell(struct ibx_pipeline *p)
{
    ibx_backlog_drop(p);
    if (ibx_session_server_gone(p->session))
        ibx_process_tell_losses(ibx_process_losses());
}

bool ibx_pipeline_read(struct ibx_pipeline *p, void *buffer, size_t n)
{
    if (ibx_pipeline_is_inherited(p))
        return ibx_session_read(p->session, buffer, n) == (ssize_t)n;
    if (p->state.now == REQUEST_ANSWERED) {
        const size_t some = n < p->answer_left ? n : p->answer_left;
        memcpy(buffer, p->answer, some);
        memset((uint8_t *)buffer + some, 0, n - some);
        p->answer += some;
        p->answer_left -= some;
        return true;
    }
    pthread_mutex_lock(&p->lock);
    if (!p->reads)
        ibx_session_await_reply(p->session);
    const bool good = ibx_session_read(p->session, buffer, n) == (ssize_t)n;
    ibx_session_reply_begins(p->session);
    if (!ibx_session_live(p->session))
        drop_and_tell(p);
    pthread_mutex_unlock(&p->lock);
    if (p->mode == IBX_PIPELINE_OFF)
        return good;
    if (good)
        ibx_awaited_note_reply(p, buffer, n);
    else
        p->reads++; /* so that the next write begins a request */
    return good;
}

bool ibx_pipeline_skip(struct ibx_pipeline *p, uint64_t n)
{
    uint8_t some[64];
    pthread_mutex_lock(&p->lock);
    bool good = !ibx_session_check_unread(p->session, n);
    if (!good)
        drop_and_tell(p);
    pthread_mutex_unlock(&p->lock);
    for (size_t now; good && n; n -= now) {
        now = n < sizeof(some) ? (size_t)n : sizeof(some);
        good = ibx_pipeline_read(p, some, now);
    }
    return good;
}

/* ------------------------------------------------------- other calls on the session */

/* Work is about to be enqueued in another way: waits until other threads' requests have been run
 * that it has to come after, and locks. */
static void lock_for_work(struct ibx_pipeline *p, uint64_t stream, bool stays)
{
    const bool one = stream > STREAM_LEGACY;
    const struct ibx_scope scope = {
        .any = true, .all = !one, .stream = one ? stream : STREAMS_NONE, .events = true};
    p->effects.leaves = !stays ? IBX_LEAVES_NOTHING
                        : one  ? IBX_LEAVES_IN_STREAM
                               : IBX_LEAVES_IN_LEGACY;
    ibx_process_work(p->effects.leaves);
    p->effects.left = ibx_process_left();
    p->effects.breaks = ibx_process_breaks();
    ibx_process_order(p, &scope);
    pthread_mutex_lock(&p->lock);
}

void ibx_pipeline_enter(struct ibx_pipeline *p, uint64_t stream, bool stays)
{
    if (!p || ibx_pipeline_is_inherited(p))
        return;
    lock_for_work(p, stream, stays);
    ibx_backlog_gather(p);
}

void ibx_pipeline_enter_alone(struct ibx_pipeline *p)
{
    if (!p || ibx_pipeline_is_inherited(p))
        return;
    p->effects.leaves = IBX_LEAVES_NOTHING; /* it belongs to a graph, whose launch may stay */
    ibx_process_work(p->effects.leaves);
    p->effects.breaks = ibx_process_breaks();
    pthread_mutex_lock(&p->lock);
    ibx_backlog_gather(p);
}

int ibx_pipeline_leave(struct ibx_pipeline *p, int exit_code, bool waits)
{
    if (!p || ibx_pipeline_is_inherited(p))
        return exit_code;
    if (ibx_session_live(p->session)) /* other threads may wait for requests that were gathered */
        ibx_session_send_ahead(p->session);
    if (!ibx_session_live(p->session))
        drop_and_tell(p);
    pthread_mutex_unlock(&p->lock);
    ibx_process_work(p->effects.leaves);
    return ibx_awaited_returned(p, exit_code, waits);
}

void ibx_pipeline_settled(struct ibx_pipeline *p)
{
    if (p && !ibx_pipeline_is_inherited(p))
        ibx_process_settled(p->effects.left);
}

static bool finish_until(struct ibx_pipeline *p, uint64_t deadline)
{
    if (!p || ibx_pipeline_is_inherited(p))
        return true;
    while (!ibx_pipeline_idle(p) && ibx_now_ns() < deadline) {
        if (!pthread_mutex_trylock(&p->lock)) { /* otherwise the lock's holder is about to send */
            ibx_backlog_push(p, true);
            pthread_mutex_unlock(&p->lock);
        }
        if (!ibx_pipeline_idle(p))
            nanosleep(&(struct timespec){.tv_nsec = (long)FINISH_LOOK_NS}, NULL);
    }
    if (!ibx_pipeline_idle(p))
        return false;
    ibx_process_leave_failure(atomic_exchange(&p->failure, 0));
    return true;
}

bool ibx_pipeline_finish(struct ibx_pipeline *p, unsigned ms)
{
    return finish_until(p, ibx_deadline_in_ms(ms));
}

bool ibx_pipeline_finish_last(struct ibx_pipeline *p)
{
    const uint64_t since = ibx_now_ns();
    const bool finished = finish_until(p, since + ibx_process_end_ns());
    ibx_process_end_waited(since);
    return finished;
}

/* The connection monitor may hold the lock for long. */
bool ibx_pipeline_limit(struct ibx_pipeline *p, unsigned ms)
{
    const uint64_t deadline = ibx_deadline_in_ms(ms);
    const struct timespec until = ibx_timespec_of(deadline);
    if (!p || ibx_pipeline_is_inherited(p) || !ibx_pipeline_finish(p, ms) ||
        pthread_mutex_clocklock(&p->lock, CLOCK_MONOTONIC, &until))
        return false;
    const int left = ibx_ms_until(deadline);
    const bool limited = left > 0 && ibx_session_limit(p->session, (unsigned)left);
    pthread_mutex_unlock(&p->lock);
    return limited;
}

void ibx_pipeline_unlimit(struct ibx_pipeline *p)
{
    pthread_mutex_lock(&p->lock);
    ibx_session_limit(p->session, 0);
    pthread_mutex_unlock(&p->lock);
}

void ibx_pipeline_settle(struct ibx_pipeline *p, uint64_t stream)
{
    if (!p || ibx_pipeline_is_inherited(p))
        return;
    lock_for_work(p, stream, true);
    if (!ibx_pipeline_idle(p))
        ibx_backlog_finish(p);
    pthread_mutex_unlock(&p->lock);
}

void ibx_pipeline_elsewhere(void)
{
    ibx_process_work(IBX_LEAVES_IN_STREAM);
}
