/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls of an application that do not go through GVirtuS's front end, in GVirtuS's own frames. They
 * are requests like any other, and come between two requests of GVirtuS.
 */
#include "frontend-glue/call_pipeline/internal.h"

#include "frontend-glue/session/extensions.h"
#include "frontend-glue/session/math_calls.h"

#include <errno.h>
#include <string.h>

#define GATHERED_MAX (16u << 10) /* bytes; longer copies are worth a message of their own */
#define PIECE        1024u       /* bytes of a write: too short to become a payload by reference */

/* Whether the request in hand, if any, was answered, and all of its reply was read. */
static bool is_between(const struct ibx_pipeline *p)
{
    switch ((enum request_state)p->state.now) {
    case REQUEST_STAGING:
        return !p->staged_length;
    case REQUEST_ANSWERED:
        return !p->answer_left;
    case REQUEST_WAITING:
        break;
    }
    struct ibx_reader r = ibx_reader_of(p->reply + IBX_REPLY_HEAD - 8, 8);
    return p->reads >= 3 && p->reply_length == IBX_REPLY_HEAD + ibx_get_u64(&r);
}

/* Whether the application's own calls may go over the connection. */
static bool is_usable(const struct ibx_pipeline *p)
{
    return p && p->mode != IBX_PIPELINE_OFF && !ibx_pipeline_is_inherited(p) && !p->foreign &&
           !atomic_load(&p->ended);
}

static bool stage(struct ibx_pipeline *p, const struct ibx_pipeline_request *call, size_t name)
{
    struct ibx_writer w = ibx_writer_of(p->staged, sizeof(p->staged));
    ibx_put_bytes(&w, call->name, name);
    ibx_put_u64(&w, call->n);
    ibx_put_bytes(&w, call->body, call->n);
    p->staged_length = w.failed ? 0 : w.length;
    return !w.failed;
}

/* Sends an extension request that is too long to be staged: as GVirtuS would write it, but in
 * pieces that become messages. */
static void send_long(struct ibx_pipeline *p, const struct ibx_pipeline_request *call, size_t name)
{
    uint8_t length[8];
    struct ibx_writer w = ibx_writer_of(length, sizeof(length));
    ibx_put_u64(&w, call->n);
    ibx_pipeline_write(p, call->name, name);
    ibx_pipeline_write(p, length, sizeof(length));
    for (size_t at = 0, n; at < call->n; at += n) {
        n = call->n - at < PIECE ? call->n - at : PIECE;
        ibx_pipeline_write(p, (const uint8_t *)call->body + at, n);
    }
    ibx_pipeline_sync(p);
}

/* Reads the reply. If the connection breaks within it, the call returns an error, which GVirtuS's
 * own front end could not do. */
static int take_reply(struct ibx_pipeline *p, const struct ibx_pipeline_request *call, bool ours)
{
    uint8_t head[IBX_REPLY_HEAD] = {0};
    struct ibx_reader r = ibx_reader_of(head, sizeof(head));
    bool good = ibx_pipeline_read(p, head, 4) && ibx_pipeline_read(p, head + 4, 8) &&
                ibx_pipeline_read(p, head + 12, 8);
    const int code = (int)ibx_get_u32(&r);
    ibx_get_u64(&r);
    const uint64_t left = ibx_get_u64(&r);
    const bool due = (!code || ours) && left == call->out_n;
    if (good && due && left)
        good = ibx_pipeline_read(p, call->out, (size_t)left);
    /* GVirtuS's handlers answer with output even when they fail. */
    if (good && !due && left)
        good = ibx_pipeline_skip(p, left);
    if (!good)
        ibx_session_tell_end(p->session);
    return good && (due || code) ? code : IBX_CUDA_ERROR_UNKNOWN;
}

int ibx_pipeline_call(struct ibx_pipeline *p, const struct ibx_pipeline_request *call,
                      int *exit_code)
{
    const size_t name = strlen(call->name) + 1;
    const struct ibx_call *known = ibx_call_find(call->name, name);
    /* The form of their replies is known. */
    const bool ours = ibx_extension_is(known->name) || ibx_math_is(known->name);
    const bool fits = ours || known->length == call->n || known->kind == IBX_CALL_COPIES ||
                      known->kind == IBX_CALL_WAITS || known->kind == IBX_CALL_LAUNCH;
    if (!is_usable(p) || !is_between(p) || !fits ||
        !(ours || (call->unseen && p->plain_known) ||
          ibx_successes_hold(&p->forms, ibx_call_key(known, call->out_n))))
        return -ENOTCONN;
    if (p->state.now != REQUEST_STAGING)
        ibx_state_move(&p->state, REQUEST_STAGING);
    const bool staged = stage(p, call, name);
    if (!staged && !ours)
        return -ENOTCONN;
    if (staged) {
        p->call = known;
        p->unseen = call->unseen;
        ibx_answer_or_send(p, p->staged + name + 8, call->n);
        if (p->state.now == REQUEST_WAITING)
            ibx_pipeline_sync(p);
    } else {
        send_long(p, call, name);
    }
    *exit_code = take_reply(p, call, ours);
    return 0;
}

bool ibx_pipeline_copy_gathered(struct ibx_pipeline *p, uint64_t device, const void *host, size_t n)
{
    return is_usable(p) && !p->eager && n <= GATHERED_MAX && is_between(p) &&
           ibx_answer_copy_may_be_early(p, device, n) && ibx_backlog_add_copy(p, device, host, n);
}

bool ibx_pipeline_copy_begin(struct ibx_pipeline *p, uint64_t device, size_t n)
{
    return is_usable(p) && is_between(p) && ibx_answer_copy_may_be_early(p, device, n) &&
           ibx_backlog_copy_begin(p);
}

void ibx_pipeline_copy_end(struct ibx_pipeline *p)
{
    ibx_backlog_copy_end(p);
}

void ibx_pipeline_unseen(struct ibx_pipeline *p, bool unseen)
{
    if (p)
        p->unseen = unseen && is_usable(p) && is_between(p);
}

bool ibx_pipeline_divert(struct ibx_pipeline *p)
{
    if (!is_usable(p) || !is_between(p))
        return false;
    ibx_state_move(&p->divert, DIVERT_NEXT);
    return true;
}

const uint8_t *ibx_pipeline_diverted(struct ibx_pipeline *p, size_t *n)
{
    const struct ibx_call *call;
    const bool kept = p->divert.now == DIVERT_KEPT &&
                      ibx_call_request(p->staged, p->staged_length, &call) == p->staged_length;
    ibx_state_move(&p->divert, DIVERT_NONE);
    return kept ? ibx_request_body(p, n) : NULL;
}

void ibx_pipeline_learn(struct ibx_pipeline *p, const char *name)
{
    if (p)
        ibx_successes_add(&p->forms, ibx_call_key(ibx_call_find(name, strlen(name) + 1), 0));
}

/* ------------------------------------------------------------- what the thread knows */

static bool knows(struct ibx_pipeline *p)
{
    if (!is_usable(p) || !is_between(p))
        return false;
    ibx_pipeline_forget_old(p);
    return true;
}

static bool has_no_error(struct ibx_pipeline *p)
{
    static const char name[] = "cudaGetLastError";
    static _Atomic(const struct ibx_call *) found;
    const struct ibx_call *call = atomic_load_explicit(&found, memory_order_relaxed);
    if (!call)
        atomic_store(&found, call = ibx_call_find(name, sizeof(name)));
    return ibx_answer_no_error(p, call);
}

bool ibx_pipeline_has_no_error(struct ibx_pipeline *p)
{
    return knows(p) && has_no_error(p);
}

bool ibx_pipeline_knows_no_error(const struct ibx_pipeline *p)
{
    return is_usable(p) && p->returned.clean;
}

bool ibx_pipeline_has_no_late_error(const struct ibx_pipeline *p)
{
    return is_usable(p) && !p->returned.late && !ibx_answer_has_late_error(p);
}

bool ibx_pipeline_errors(const struct ibx_pipeline *p, int *number)
{
    if (is_usable(p))
        *number = (int)(p->returned.errors + (unsigned)atomic_load(&p->unsure));
    return is_usable(p);
}

bool ibx_pipeline_answered(const struct ibx_pipeline *p, int *number)
{
    if (is_usable(p))
        *number = (int)(uint32_t)atomic_load(&p->answered);
    return is_usable(p);
}

bool ibx_pipeline_failures(const struct ibx_pipeline *p, unsigned answered, int *number)
{
    if (!is_usable(p))
        return false;
    const bool none_since = (uint32_t)atomic_load(&p->answered) == answered;
    if (!none_since && !ibx_answer_errors_known(p))
        return false;
    const uint64_t last = none_since ? 0 : atomic_load(&p->failed); /* behind what is known */
    const bool failed = last && (int32_t)((uint32_t)last - answered) > 0;
    *number = (int)(2 * p->returned.errors + failed);
    return true;
}

bool ibx_pipeline_launch_failure(const struct ibx_pipeline *p, int *error)
{
    const bool known = is_usable(p) && ibx_answer_errors_known(p);
    const int only = known && !p->returned.late && !atomic_load(&p->failure)
                         ? atomic_load(&p->launch_failure)
                         : 0;
    if (only)
        *error = only;
    return only;
}

unsigned ibx_pipeline_server_ends(void)
{
    return ibx_process_ends();
}

unsigned ibx_pipeline_server(const struct ibx_pipeline *p)
{
    return ibx_process_server(p);
}

bool ibx_pipeline_device(struct ibx_pipeline *p, int *device)
{
    if (!knows(p) || p->device.current < 0 || ibx_process_is_broken())
        return false;
    *device = p->device.current;
    return true;
}

bool ibx_pipeline_selected(struct ibx_pipeline *p, int device)
{
    return knows(p) && p->device.known && (int)ibx_request_word(p->device.body) == device &&
           !ibx_process_is_broken() && has_no_error(p);
}

bool ibx_pipeline_rests(struct ibx_pipeline *p, uint64_t stream)
{
    return knows(p) && ibx_idle_holds(p, &p->streams_idle, stream);
}

bool ibx_pipeline_all_rests(struct ibx_pipeline *p)
{
    return is_usable(p) && !ibx_process_devices() && ibx_process_rests();
}

bool ibx_pipeline_device_rests(const struct ibx_pipeline *p)
{
    return is_usable(p) && ibx_process_all_rests();
}

bool ibx_pipeline_legacy_rests(struct ibx_pipeline *p)
{
    return knows(p) && ibx_process_legacy_rests();
}

uint64_t ibx_pipeline_legacy_left(void)
{
    return ibx_process_left().in_legacy;
}

void ibx_pipeline_legacy_over(uint64_t left)
{
    ibx_process_legacy_settled(left);
}

uint64_t ibx_pipeline_all_left(void)
{
    return ibx_process_left().anywhere;
}

void ibx_pipeline_all_over(uint64_t left)
{
    ibx_process_settled((struct ibx_left){.anywhere = left});
}

void ibx_pipeline_legacy_orders(void)
{
    ibx_process_work(IBX_LEAVES_IN_LEGACY);
}

bool ibx_pipeline_is_over(struct ibx_pipeline *p, uint64_t event)
{
    return knows(p) && ibx_idle_holds(p, &p->events_idle, event);
}

bool ibx_pipeline_is_pending(struct ibx_pipeline *p, uint64_t event)
{
    struct ibx_event_use last;
    return knows(p) && p->mode == IBX_PIPELINE_ALL && !atomic_load(&p->failure) &&
           !ibx_process_captures() && ibx_events_last(event, &last) && ibx_process_waits_for(&last);
}
