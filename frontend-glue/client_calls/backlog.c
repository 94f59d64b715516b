/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Requests that were answered and that the back end has not run: the backlog of those that were not
 * sent, and the replies to those that were.
 */
#include "frontend-glue/client_calls/internal.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_EVERY_NS  20000u /* where looking at the connection is a system call */
#define EAGER_MESSAGES 8u     /* under way, before messages of a cheap fabric are filled */
#define BATCH          4096u  /* bytes that are worth a message beside others under way */
#define COPIES_BATCH   32768u /* the same, of copies alone */
#define REQUEST_NS     500u   /* half the time that the back end takes for one, at least */
#define PATIENCE_MOST  100000u

static const struct ibx_scope of_copies = {
    .any = true, .all = true, .stream = STREAMS_NONE, .events = true};

/* Locked. Nothing is outstanding any more. */
static void all_replied(struct ibx_pipeline *p)
{
    p->messages = 0;
    atomic_store(&p->streams, STREAMS_NONE);
    atomic_store(&p->events, false);
    atomic_store(&p->memory, false);
    atomic_store(&p->unsent, false);
}

/* Locked. The session has ended: what was not answered by the back end never is. */
void ibx_backlog_drop(struct ibx_pipeline *p)
{
    const uint64_t lost = p->answered - p->replied;
    const bool at_once = !atomic_exchange(&p->ended, true);
    p->backlog_begin = p->backlog_end = p->backlog_cut = 0;
    p->backlog_requests = 0;
    p->kept.n = 0;
    if (lost)
        ibx_process_lose(lost); /* before those who wait for it go on */
    if (at_once && ibx_session_server_gone(p->session) && (p->plain_known || p->answered))
        ibx_process_lose_all(p, lost);
    atomic_store(&p->replied, p->answered);
    ibx_process_count(-(int)lost);
    all_replied(p);
}

static void replied(void *context, int exit_code)
{
    struct ibx_pipeline *p = context;
    int none = 0;
    if (atomic_load(&p->ended))
        return;
    const bool unseen = ibx_unseen_replied(p, p->replied + 1, exit_code);
    exit_code = ibx_library_replied(p, p->replied + 1, exit_code);
    if (exit_code && !unseen && p->replied >= p->mute) { /* registrations tell nobody of errors */
        ibx_log(IBX_LOG_INFO,
                "a CUDA call that had returned 0 before it was run has failed with error %d: the "
                "next call that waits for the device returns it",
                exit_code);
        atomic_compare_exchange_strong(&p->failure, &none, exit_code);
        ibx_process_reset(); /* such calls wait again until they succeed */
    }
    atomic_fetch_add(&p->replied, 1);
    ibx_process_count(-1);
    if (p->answered - p->replied == p->backlog_requests)
        p->messages = 0; /* all that were sent */
    if (ibx_pipeline_idle(p))
        all_replied(p);
}

/* Locked. Whole requests that fit into one message. One that does not, since the session goes on
 * over a connection with shorter ones, goes in several. While it is refused it stays the same,
 * whatever comes behind it: a thousand requests are not looked through again for each that comes.
 */
static struct ibx_message next_message(struct ibx_pipeline *p)
{
    const size_t room = ibx_session_room(p->session), left = p->backlog_end - p->backlog_begin;
    const uint8_t *from = p->backlog + p->backlog_begin;
    const struct ibx_call *call;
    size_t one;
    if (left <= room)
        return (struct ibx_message){.n = left, .requests = p->backlog_requests};
    if (p->backlog_cut > room)
        return (struct ibx_message){.n = room, .cut = p->backlog_cut - room};
    if (p->kept.n && p->kept_room == room)
        return p->kept;
    struct ibx_message message = {.n = p->backlog_cut, .requests = p->backlog_cut > 0};
    while ((one = ibx_call_request(from + message.n, left - message.n, &call)) &&
           message.n + one <= room) {
        message.n += one;
        message.requests++;
    }
    if (!message.n && one)
        message = (struct ibx_message){.n = room, .cut = one - room};
    p->kept = message;
    p->kept_room = room;
    return message;
}

static void take_from_backlog(struct ibx_pipeline *p, const struct ibx_message *message)
{
    p->backlog_begin += message->n;
    p->backlog_cut = message->cut;
    p->backlog_requests -= message->requests;
    p->kept.n = 0;
    if (p->backlog_begin == p->backlog_end)
        p->backlog_begin = p->backlog_end = 0;
}

/* Locked. Whether a message is worth sending beside those that are under way. Where messages cost
 * much, event records alone are none: they leave with what comes behind them, and no message is on
 * its way between an event and the work that it is to time. */
static bool worth_sending(const struct ibx_pipeline *p, bool now)
{
    const size_t left = p->backlog_end - p->backlog_begin;
    if (!now && !p->eager && p->records_alone && left < BATCH)
        return false;
    return !p->messages || left >= (p->copies_alone ? COPIES_BATCH : BATCH) ||
           ((now || p->eager) && p->messages < EAGER_MESSAGES);
}

/* Locked. Takes what has come; false: the session has ended. */
static bool look(struct ibx_pipeline *p, bool now)
{
    if (!p->messages && !p->refused)
        return ibx_session_live(p->session);
    if (!p->eager) {
        const uint64_t time = ibx_now_ns();
        if (!now && time - p->looked_at < LOOK_EVERY_NS)
            return true;
        p->looked_at = time;
    }
    return ibx_session_look(p->session);
}

/* Locked. For how long nobody has to send what was left, or to take replies: half the time that the
 * back end needs for what it has. Where each reply is a message it may want credit before. */
static uint32_t patience(const struct ibx_pipeline *p)
{
    const uint64_t sent = p->answered - p->replied - p->backlog_requests;
    if (p->chatty > p->replied)
        return 0;
    return sent < PATIENCE_MOST / REQUEST_NS ? (uint32_t)sent * REQUEST_NS : PATIENCE_MOST;
}

void ibx_backlog_push(struct ibx_pipeline *p, bool now)
{
    if (ibx_pipeline_idle(p))
        return;
    if (!look(p, now)) {
        ibx_backlog_drop(p);
        return;
    }
    if (ibx_session_broken(p->session)) { /* the keeper, or the next call that waits, sends it */
        p->refused = true;
        atomic_store(&p->unsent, false);
        return;
    }
    while (p->backlog_end > p->backlog_begin && worth_sending(p, now)) {
        const struct ibx_message message = next_message(p);
        p->refused = !message.n ||
                     !ibx_session_send_now(p->session, p->backlog + p->backlog_begin, message.n);
        if (p->refused)
            break;
        take_from_backlog(p, &message);
        p->messages++;
    }
    if (!ibx_session_live(p->session))
        ibx_backlog_drop(p);
    atomic_store(&p->patience, patience(p));
    /* A back end whose replies nobody takes has to stop. */
    atomic_store(&p->unsent, p->backlog_end > p->backlog_begin || p->messages >= EAGER_MESSAGES);
}

/* Locked. Hands the backlog to the session, in front of the request that follows. */
void ibx_backlog_gather(struct ibx_pipeline *p)
{
    if (ibx_pipeline_idle(p))
        return;
    if (ibx_session_live(p->session)) {
        while (p->backlog_end > p->backlog_begin && ibx_session_live(p->session)) {
            struct ibx_message message = next_message(p);
            if (!message.n)
                message = (struct ibx_message){.n = p->backlog_end - p->backlog_begin,
                                               .requests = p->backlog_requests};
            ibx_session_gather_ahead(p->session, p->backlog + p->backlog_begin, message.n);
            take_from_backlog(p, &message);
        }
        p->messages++;
        atomic_store(&p->unsent, false);
    }
    if (!ibx_session_live(p->session))
        ibx_backlog_drop(p);
}

/* Locked. Sends the backlog and takes all replies. */
void ibx_backlog_finish(struct ibx_pipeline *p)
{
    ibx_backlog_gather(p);
    if (ibx_session_live(p->session))
        ibx_session_sync(p->session);
    if (ibx_session_live(p->session))
        ibx_session_await_owed(p->session);
    if (ibx_session_live(p->session))
        ibx_session_take_owed(p->session, true);
    if (!ibx_session_live(p->session))
        ibx_backlog_drop(p);
}

/* Locked. Room for n more bytes. */
static bool backlog_room(struct ibx_pipeline *p, size_t n)
{
    if (p->backlog_room - p->backlog_end >= n)
        return true;
    const size_t used = p->backlog_end - p->backlog_begin;
    if (used + n <= p->backlog_room / 2) {
        memmove(p->backlog, p->backlog + p->backlog_begin, used);
    } else {
        if (used + n > BACKLOG_MAX)
            return false;
        size_t room = p->backlog_room ? 2 * p->backlog_room : 32u << 10;
        uint8_t *more = malloc(room);
        if (!more)
            return false;
        if (used)
            memcpy(more, p->backlog + p->backlog_begin, used);
        free(p->backlog);
        p->backlog = more;
        p->backlog_room = room;
    }
    p->backlog_begin = 0;
    p->backlog_end = used;
    return true;
}

/* Locked. Whether this thread is so far ahead of the back end that its next call waits. */
static bool is_far_ahead(const struct ibx_pipeline *p)
{
    return p->answered - p->replied >= AHEAD_MOST;
}

static void note_scope(struct ibx_pipeline *p, const struct ibx_scope *scope)
{
    uint64_t before = atomic_load(&p->streams), stream = scope->all ? STREAMS_MANY : scope->stream;
    if (before == STREAMS_NONE)
        atomic_store(&p->streams, stream);
    else if (before != stream)
        atomic_store(&p->streams, STREAMS_MANY);
    if (scope->events)
        atomic_store(&p->events, true);
}

/* Locked. One more is about to be answered; its number. */
static uint64_t note_answered(struct ibx_pipeline *p, const struct ibx_scope *scope, bool library)
{
    note_scope(p, scope);
    ibx_session_owe(p->session, replied, p);
    ibx_process_count(1);
    const uint64_t number = atomic_fetch_add(&p->answered, 1) + 1;
    ibx_library_note(p, number, library);
    return number;
}

/* Locked. What is to be sent leaves soon. */
static void leave_behind(struct ibx_pipeline *p)
{
    ibx_backlog_push(p, false);
    if (atomic_load(&p->unsent) && !ibx_process_send_soon(atomic_load(&p->patience)))
        ibx_backlog_finish(p);
}

/* Locked. What the request is that is about to be added. */
static void note_kind(struct ibx_pipeline *p, bool copy, bool record)
{
    const bool first = p->backlog_end == p->backlog_begin;
    p->copies_alone = copy && (first || p->copies_alone);
    p->records_alone = record && (first || p->records_alone);
}

bool ibx_backlog_add_copy(struct ibx_pipeline *p, uint64_t device, const void *host, size_t n)
{
    static const char name[] = "cudaMemcpy";
    const size_t body = ibx_frame_plain_bytes(IBX_FRAME_MEMCPY) + n;
    const size_t length = sizeof(name) + 8 + body;
    ibx_process_work(false);
    ibx_process_order(p, &of_copies);
    pthread_mutex_lock(&p->lock);
    bool good = !atomic_load(&p->ended) && ibx_session_live(p->session) && length <= p->room &&
                !is_far_ahead(p) && backlog_room(p, length);
    if (good) {
        struct ibx_writer w = ibx_writer_of(p->backlog + p->backlog_end, length);
        ibx_put_bytes(&w, name, sizeof(name));
        ibx_put_u64(&w, body);
        ibx_put_u64(&w, device);
        ibx_put_u64(&w, n);
        ibx_put_bytes(&w, host, n);
        ibx_put_u64(&w, n);
        ibx_put_u32(&w, IBX_FRAME_H2D);
        note_kind(p, true, false);
        p->backlog_end += length;
        p->backlog_requests++;
        p->chatty = note_answered(p, &of_copies, false);
        leave_behind(p);
        good = !atomic_load(&p->ended);
    }
    pthread_mutex_unlock(&p->lock);
    ibx_process_work(false);
    return good;
}

bool ibx_backlog_copy_begin(struct ibx_pipeline *p)
{
    ibx_process_work(false);
    ibx_process_order(p, &of_copies);
    pthread_mutex_lock(&p->lock);
    ibx_backlog_gather(p);
    if (atomic_load(&p->ended) || !ibx_session_live(p->session)) {
        pthread_mutex_unlock(&p->lock);
        return false;
    }
    p->chatty = note_answered(p, &of_copies, false);
    return true;
}

void ibx_backlog_copy_end(struct ibx_pipeline *p)
{
    if (ibx_session_live(p->session)) {
        p->messages++;
        leave_behind(p);
    }
    if (!ibx_session_live(p->session))
        ibx_backlog_drop(p);
    pthread_mutex_unlock(&p->lock);
    ibx_process_work(false);
}

/* Locked. Whether the request in hand can be taken. */
static bool has_room(struct ibx_pipeline *p)
{
    const bool mutes = p->call->kind == IBX_CALL_REGISTERS;
    if (atomic_load(&p->ended) || !ibx_session_live(p->session) || p->staged_length > p->room)
        return false;
    if (mutes && p->answered != p->replied && p->answered != p->mute)
        return false;
    if (is_far_ahead(p) || !backlog_room(p, p->staged_length))
        ibx_backlog_finish(p); /* as for a full stream */
    return ibx_session_live(p->session) && backlog_room(p, p->staged_length);
}

/* Answers the request in hand. False: it has to wait, since there is no connection or no memory. */
bool ibx_backlog_add(struct ibx_pipeline *p, const struct ibx_scope *scope, bool sure)
{
    const bool work = ibx_call_adds_work(p->call);
    size_t n;
    const uint8_t *body = ibx_request_body(p, &n);
    const bool stays = ibx_request_stays(p->call, body, n);
    if (work)
        ibx_process_work(stays);
    ibx_process_order(p, scope);
    pthread_mutex_lock(&p->lock);
    bool good = has_room(p);
    if (good) {
        memcpy(p->backlog + p->backlog_end, p->staged, p->staged_length);
        note_kind(p, false, ibx_call_records(p->call));
        p->backlog_end += p->staged_length;
        p->backlog_requests++;
        if (p->call->kind == IBX_CALL_FREES)
            atomic_store(&p->memory, true);
        const uint64_t request = note_answered(p, scope, p->call->kind == IBX_CALL_LIBRARY);
        if (!ibx_call_is_quick(p->call, body, n))
            p->chatty = request;
        if (!sure)
            atomic_store(&p->unsure, request);
        if (!sure && p->call->kind == IBX_CALL_LAUNCH)
            ibx_unseen_add(p, request);
        if (p->call->kind == IBX_CALL_REGISTERS)
            p->mute = request;
        leave_behind(p);
        good = !atomic_load(&p->ended);
    }
    pthread_mutex_unlock(&p->lock);
    if (work)
        ibx_process_work(stays); /* once more: a query meanwhile may have come before it */
    return good;
}
