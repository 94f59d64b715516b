/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which requests are answered without the back end, or before it. */
#include "frontend-glue/call_pipeline/internal.h"

#include "frontend-glue/session/extensions.h"

#include <string.h>

static void set_answer(struct ibx_pipeline *p, const uint8_t *answer, size_t n)
{
    p->answer = answer;
    p->answer_left = n;
}

static bool launch_succeeds(const struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    return ibx_launch_is_plain(body, n) &&
           ibx_successes_hold(&p->launches, ibx_launch_key(p, body)) &&
           ibx_successes_hold(&p->others, ibx_launch_stream_key(p, body));
}

/* The same for one with attributes. */
static bool queued_launch_succeeds(const struct ibx_pipeline *p,
                                   const struct ibx_queued_launch *launch)
{
    return launch->plain && ibx_successes_hold(&p->launches, ibx_queued_launch_key(p, launch)) &&
           ibx_successes_hold(&p->others, ibx_launch_stream_key(p, launch->body));
}

/* Whether the launch may be run later: also one by <<<>>> that may fail (*sure false). */
static bool launch_may_be_early(struct ibx_pipeline *p, const uint8_t *body, size_t n, bool *sure)
{
    *sure = launch_succeeds(p, body, n);
    if (!*sure) {
        ibx_unseen_learn(p);
        *sure = launch_succeeds(p, body, n);
    }
    return *sure || ibx_unseen_may_be_early(p, body, n);
}

/* Whether it is a record of an event, or a wait for one, with an event and a stream of this device:
 * these succeed the first time, too. */
static bool handles_are_good(const struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const bool waits = p->call->stream_at == 0;
    const uint64_t first = ibx_get_u64(&r), second = ibx_get_u64(&r);
    const uint64_t event = waits ? second : first, stream = waits ? first : second;
    return p->call->event && !strncmp(p->call->name, waits ? "cudaStreamWait" : "cudaEvent", 9) &&
           !(waits && ibx_get_u32(&r)) && !r.failed &&
           ibx_successes_hold(&p->forms, ibx_call_key(p->call, 0)) &&
           ibx_successes_hold(&p->others, ibx_event_key(p, event)) &&
           (!stream || ibx_successes_hold(&p->others, ibx_stream_key(p, stream)));
}

/* Whether the copy needs nothing of this process once its request was written. */
static bool copy_is_plain(const uint8_t *body, size_t n)
{
    const size_t window = n < IBX_FRAME_WINDOW ? n : IBX_FRAME_WINDOW;
    struct ibx_frame_body bytes = {body, body + n - window, n};
    struct ibx_frame frame;
    return ibx_frame_parse(IBX_FRAME_MEMCPY_ASYNC, &bytes, &frame) && frame.kind != IBX_FRAME_D2H;
}

bool ibx_answer_copy_may_be_early(const struct ibx_pipeline *p, uint64_t device, uint64_t n)
{
    static const char name[] = "cudaMemcpy";
    return p->mode == IBX_PIPELINE_ALL && !atomic_load(&p->ended) && !atomic_load(&p->failure) &&
           !ibx_process_is_broken() && !ibx_process_captures() && !ibx_process_devices() &&
           !ibx_process_shares_memory() && ibx_process_rests() &&
           ibx_successes_hold(&p->forms, ibx_call_key(ibx_call_find(name, sizeof(name)), 0)) &&
           ibx_allocations_hold(device, n);
}

/* Whether the request in hand is a synchronous copy to the device that may be answered before it is
 * run. */
static bool waiting_copy_is_plain(const struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    struct ibx_frame frame;
    const size_t window = n < IBX_FRAME_WINDOW ? n : IBX_FRAME_WINDOW;
    const struct ibx_frame_body bytes = {body, body + n - window, n};
    return !strcmp(p->call->name, "cudaMemcpy") &&
           ibx_frame_parse(IBX_FRAME_MEMCPY, &bytes, &frame) && frame.kind == IBX_FRAME_H2D &&
           ibx_answer_copy_may_be_early(p, frame.dst, frame.payload);
}

/* Whether an update that has succeeded succeeds again: no request has changed a graph since, other
 * than by kernels' arguments. */
static bool refreshes_again(struct ibx_pipeline *p, const uint8_t *body)
{
    if (!ibx_successes_hold(&p->others, ibx_refresh_key(p, body)))
        return false;
    ibx_request_refreshes_late(p);
    set_answer(p, ibx_refresh_answer, sizeof(ibx_refresh_answer));
    return true;
}

/* Whether the request may be run later; its reply is set then. *sure: it cannot fail by itself. */
static bool may_be_early(struct ibx_pipeline *p, const uint8_t *body, size_t n, bool *sure)
{
    const struct ibx_call *call = p->call;
    const bool all = p->mode == IBX_PIPELINE_ALL;
    struct ibx_queued_launch launch;
    ibx_answer_success(p);
    *sure = true;
    if (ibx_process_captures() || ibx_process_is_broken() || (call->length && call->length != n))
        return false;
    ibx_pipeline_forget_old(p);
    switch (call->kind) {
    case IBX_CALL_LAUNCH:
        return launch_may_be_early(p, body, n, sure);
    case IBX_CALL_REPEATS:
        return ibx_successes_hold(&p->others, ibx_request_key(p, body, n)) ||
               handles_are_good(p, body, n);
    case IBX_CALL_LIBRARY:
        return ibx_library_answer(p, body, n);
    case IBX_CALL_REGISTERS:
        return ibx_successes_hold(&p->forms, ibx_call_key(call, 0));
    case IBX_CALL_FREES:
        return all && p->effects.frees && ibx_idle_device(p) &&
               ibx_successes_hold(&p->forms, ibx_call_key(call, 0));
    case IBX_CALL_DESTROYS:
        return all && ibx_call_ends_event(call) &&
               ibx_events_made(ibx_request_event(call, body, n)) &&
               ibx_successes_hold(&p->forms, ibx_call_key(call, 0));
    case IBX_CALL_WAITS:
        return waiting_copy_is_plain(p, body, n);
    case IBX_CALL_SET_DEVICE:
        return ibx_pipeline_may_select(p, body, n);
    case IBX_CALL_EXTENSION:
        return ibx_request_refreshes(call, body, n)
                   ? refreshes_again(p, body)
                   : ibx_request_sets_node(call, body, n) &&
                         ibx_successes_hold(&p->others, ibx_node_key(p, body, n));
    case IBX_CALL_COPIES:
    case IBX_CALL_ENQUEUES:
        if (ibx_request_queued_launch(call, body, n, &launch))
            return queued_launch_succeeds(p, &launch);
        *sure = false;
        return all && ibx_successes_hold(&p->forms, ibx_form_key(call, body, n)) &&
               (call->kind == IBX_CALL_ENQUEUES || copy_is_plain(body, n));
    default:
        return false;
    }
}

void ibx_answer_success(struct ibx_pipeline *p)
{
    static const uint8_t success[IBX_REPLY_HEAD];
    set_answer(p, success, sizeof(success));
}

bool ibx_answer_errors_known(const struct ibx_pipeline *p)
{
    return atomic_load(&p->unsure) <= atomic_load(&p->replied);
}

bool ibx_answer_has_late_error(const struct ibx_pipeline *p)
{
    return !ibx_answer_errors_known(p) || atomic_load(&p->failure) ||
           atomic_load(&p->launch_failure);
}

bool ibx_answer_no_error(struct ibx_pipeline *p, const struct ibx_call *call)
{
    if (!p->returned.clean || !ibx_successes_hold(&p->forms, ibx_call_key(call, 0)) ||
        ibx_answer_has_late_error(p))
        return false;
    if (ibx_pipeline_idle(p))
        return true;
    pthread_mutex_lock(&p->lock); /* notices if the connection has ended meanwhile */
    ibx_backlog_push(p, false);
    pthread_mutex_unlock(&p->lock);
    return !atomic_load(&p->ended) && !atomic_load(&p->failure);
}

static bool answer_known(struct ibx_pipeline *p)
{
    uint8_t key[sizeof(p->staged)];
    const struct ibx_known_reply *known = ibx_replies_find(&p->replies, key, ibx_reply_key(p, key));
    if (known)
        set_answer(p, known->bytes + known->request, known->reply);
    return known;
}

/* Answers a pop as the back end would. */
static bool answer_pop(struct ibx_pipeline *p)
{
    size_t n = ibx_configurations_pop(&p->configurations, p->reply + IBX_REPLY_HEAD);
    struct ibx_writer w = ibx_writer_of(p->reply, IBX_REPLY_HEAD);
    ibx_put_u32(&w, 0);
    ibx_put_u64(&w, 0);
    ibx_put_u64(&w, n);
    set_answer(p, p->reply, IBX_REPLY_HEAD + n);
    return n;
}

static bool answer_push(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    struct ibx_configurations *all = &p->configurations;
    if (n != IBX_CONFIGURATION_BYTES || !all->push_known || all->form < 0 || all->lost ||
        all->count == IBX_CONFIGURATIONS)
        return false;
    ibx_configurations_push(all, body, false);
    ibx_answer_success(p);
    return true;
}

/* Answers the request in hand without the back end, if that is possible. */
static bool answer_here(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    ibx_answer_success(p);
    ibx_pipeline_forget_old(p);
    if (atomic_load(&p->ended))
        return false;
    switch (p->call->kind) {
    case IBX_CALL_PUSH:
        return answer_push(p, body, n);
    case IBX_CALL_POP:
        return answer_pop(p);
    case IBX_CALL_LAST_ERROR:
    case IBX_CALL_PEEK_ERROR:
        return ibx_answer_no_error(p, p->call);
    case IBX_CALL_SET_DEVICE:
        return p->device.known && n == sizeof(p->device.body) && !memcmp(body, p->device.body, n) &&
               ibx_answer_no_error(p, p->call);
    case IBX_CALL_GET_DEVICE:
    case IBX_CALL_CONSTANT:
        return answer_known(p);
    case IBX_CALL_SELECTS:
        return ibx_library_has_selected(p, body, n);
    case IBX_CALL_QUERIES:
        return ibx_idle_answers(p, body, n);
    default:
        return false;
    }
}

void ibx_answer_or_send(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    /* First of all: after the request another thread may get the same address. */
    struct ibx_reader r = ibx_reader_of(body, n);
    if (p->call->kind == IBX_CALL_FREES)
        p->effects.frees = ibx_allocations_remove(ibx_get_u64(&r));
    if (ibx_call_extension(p->call, body, n) == IBX_EXT_FREE_ASYNC) {
        ibx_get_u16(&r);
        ibx_allocations_remove(ibx_get_u64(&r));
    }
    bool sure, answered = answer_here(p, body, n);
    if (!answered && may_be_early(p, body, n, &sure)) {
        const struct ibx_scope scope = ibx_request_scope(p->call, body, n);
        answered = ibx_backlog_add(p, &scope, sure);
        if (answered && p->call->kind == IBX_CALL_SET_DEVICE) {
            ibx_pipeline_selects(p, body, n);
            p->device.current = -1;
        }
    }
    p->unseen = false;
    if (answered)
        ibx_state_move(&p->state, REQUEST_ANSWERED);
    else
        ibx_awaited_begin(p, body, n);
}
