/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Requests that were answered and that the back end has not run: the backlog, those of them that
 * were not sent; and the replies to those that were sent.
 */
#include "frontend-glue/call_pipeline/internal.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_EVERY_NS  20000u /* if a look at the connection is a system call */
#define EAGER_MESSAGES 8u     /* under way; beyond that, cheap messages are filled, too */
#define BATCH          4096u  /* bytes that are worth a message while others are under way */
#define COPIES_BATCH   32768u /* the same, if they are only copies */
#define REQUEST_NS     500u   /* half of the least time that the back end takes for one */
#define PATIENCE_MOST  100000u

static const struct ibx_scope of_copies = {
    .any = true, .all = true, .stream = STREAMS_NONE, .events = true};

/* Locked. Nothing is outstanding any more. */
static void all_replied(struct ibx_pipeline *p)
{
    p->backlog.messages = 0;
    atomic_store(&p->concerns.events, EVENTS_NONE);
    atomic_store(&p->concerns.memory, false);
    atomic_store(&p->unsent, false);
}

void ibx_backlog_drop(struct ibx_pipeline *p)
{
    struct ibx_backlog *b = &p->backlog;
    const uint64_t lost = p->answered - p->replied;
    const bool at_once = !atomic_exchange(&p->ended, true);
    b->begin = b->end = b->cut = 0;
    b->requests = 0;
    b->kept.n = 0;
    if (lost)
        ibx_process_lose(lost); /* before threads that wait for these go on */
    if (at_once)
        ibx_process_cut();
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
    const bool tells = unseen || p->replied >= p->mute; /* registrations return no errors */
    if (exit_code && tells)
        atomic_store(&p->failed, p->replied + 1);
    if (exit_code && tells && !unseen) {
        ibx_log(IBX_LOG_INFO,
                "a CUDA call that had returned 0 before it was run has failed with error %d: the "
                "next call that waits for the device returns it",
                exit_code);
        atomic_compare_exchange_strong(&p->failure, &none, exit_code);
        ibx_process_outdate(IBX_OUTDATED_ALL); /* such calls wait again until they have succeeded */
    }
    atomic_fetch_add(&p->replied, 1);
    ibx_process_count(-1);
    if (p->answered - p->replied == p->backlog.requests)
        p->backlog.messages = 0; /* all that were sent have a reply */
    if (ibx_pipeline_idle(p))
        all_replied(p);
}

/* Locked. As many whole requests as fit into one message. A single request that does not fit, since
 * the session goes on over a connection with shorter messages, goes in several. A message that was
 * refused stays the same, whatever comes behind it: so a thousand requests need not be looked
 * through again for each new one. */
static struct ibx_message next_message(struct ibx_pipeline *p)
{
    struct ibx_backlog *b = &p->backlog;
    const size_t room = ibx_session_room(p->session), left = b->end - b->begin;
    const uint8_t *from = b->bytes + b->begin;
    const struct ibx_call *call;
    size_t one;
    if (left <= room)
        return (struct ibx_message){.n = left, .requests = b->requests};
    if (b->cut > room)
        return (struct ibx_message){.n = room, .cut = b->cut - room};
    if (b->kept.n && b->kept_room == room)
        return b->kept;
    struct ibx_message message = {.n = b->cut, .requests = b->cut > 0};
    while ((one = ibx_call_request(from + message.n, left - message.n, &call)) &&
           message.n + one <= room) {
        message.n += one;
        message.requests++;
    }
    if (!message.n && one)
        message = (struct ibx_message){.n = room, .cut = one - room};
    b->kept = message;
    b->kept_room = room;
    return message;
}

static void take_from_backlog(struct ibx_pipeline *p, const struct ibx_message *message)
{
    struct ibx_backlog *b = &p->backlog;
    b->begin += message->n;
    b->cut = message->cut;
    b->requests -= message->requests;
    b->kept.n = 0;
    if (b->begin == b->end)
        b->begin = b->end = 0;
}

/* Locked. Whether a message is worth sending while others are under way. If messages are expensive,
 * event records alone are not: they are sent with the requests behind them, so that no message is
 * on its way between an event and the work that it is to time. */
static bool worth_sending(const struct ibx_pipeline *p, bool now)
{
    const struct ibx_backlog *b = &p->backlog;
    const size_t left = b->end - b->begin;
    if (!now && !p->eager && b->kind == BACKLOG_RECORDS && left < BATCH)
        return false;
    return !b->messages || left >= (b->kind == BACKLOG_COPIES ? COPIES_BATCH : BATCH) ||
           ((now || p->eager) && b->messages < EAGER_MESSAGES);
}

/* Locked. Takes replies that have come. False: the session has ended. */
static bool look(struct ibx_pipeline *p, bool now)
{
    struct ibx_backlog *b = &p->backlog;
    if (!b->messages && !b->refused)
        return ibx_session_live(p->session);
    if (!p->eager) {
        const uint64_t time = ibx_now_ns();
        if (!now && time - b->looked_at < LOOK_EVERY_NS)
            return true;
        b->looked_at = time;
    }
    return ibx_session_look(p->session);
}

/* Locked. For how long sending the rest, or taking replies, can wait: half the time that the back
 * end needs for the requests that it has. 0 if each reply is a message: the back end may want
 * credit earlier. */
static uint32_t patience(const struct ibx_pipeline *p)
{
    const uint64_t sent = p->answered - p->replied - p->backlog.requests;
    if (p->chatty > p->replied)
        return 0;
    return sent < PATIENCE_MOST / REQUEST_NS ? (uint32_t)sent * REQUEST_NS : PATIENCE_MOST;
}

void ibx_backlog_push(struct ibx_pipeline *p, bool now)
{
    struct ibx_backlog *b = &p->backlog;
    if (ibx_pipeline_idle(p))
        return;
    if (!look(p, now)) {
        ibx_backlog_drop(p);
        return;
    }
    if (ibx_session_broken(p->session)) { /* the connection monitor or a call that waits sends it */
        b->refused = true;
        atomic_store(&p->unsent, false);
        return;
    }
    while (b->end > b->begin && worth_sending(p, now)) {
        const struct ibx_message message = next_message(p);
        b->refused =
            !message.n || !ibx_session_send_now(p->session, b->bytes + b->begin, message.n);
        if (b->refused)
            break;
        take_from_backlog(p, &message);
        b->messages++;
    }
    if (!ibx_session_live(p->session))
        ibx_backlog_drop(p);
    atomic_store(&p->patience, patience(p));
    /* Replies have to be taken, too: without that the back end would have to stop. */
    atomic_store(&p->unsent, b->end > b->begin || b->messages >= EAGER_MESSAGES);
}

void ibx_backlog_gather(struct ibx_pipeline *p)
{
    struct ibx_backlog *b = &p->backlog;
    if (ibx_pipeline_idle(p))
        return;
    if (ibx_session_live(p->session)) {
        while (b->end > b->begin && ibx_session_live(p->session)) {
            struct ibx_message message = next_message(p);
            if (!message.n)
                message = (struct ibx_message){.n = b->end - b->begin, .requests = b->requests};
            ibx_session_gather_ahead(p->session, b->bytes + b->begin, message.n);
            take_from_backlog(p, &message);
        }
        b->messages++;
        atomic_store(&p->unsent, false);
    }
    if (!ibx_session_live(p->session))
        ibx_backlog_drop(p);
}

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

/* Locked. Makes room for n more bytes. False: BACKLOG_MAX, or no memory. */
static bool backlog_room(struct ibx_pipeline *p, size_t n)
{
    struct ibx_backlog *b = &p->backlog;
    if (b->room - b->end >= n)
        return true;
    const size_t used = b->end - b->begin;
    if (used + n <= b->room / 2) {
        memmove(b->bytes, b->bytes + b->begin, used);
    } else {
        if (used + n > BACKLOG_MAX)
            return false;
        size_t room = b->room ? 2 * b->room : 32u << 10;
        uint8_t *more = malloc(room);
        if (!more)
            return false;
        if (used)
            memcpy(more, b->bytes + b->begin, used);
        free(b->bytes);
        b->bytes = more;
        b->room = room;
    }
    b->begin = 0;
    b->end = used;
    return true;
}

/* Locked. Whether this thread is so far ahead of the back end that its next call has to wait. */
static bool is_far_ahead(const struct ibx_pipeline *p)
{
    return p->answered - p->replied >= AHEAD_MOST;
}

/* The stream takes the place of the one that was used longest ago. Other threads look for a stream
 * first, and then among the others. */
static void note_stream(struct ibx_pipeline *p, uint64_t stream, uint64_t number)
{
    struct ibx_stream_uses *uses = &p->concerns.streams;
    unsigned at = 0;
    for (unsigned i = 0; i < IBX_STREAM_USES && uses->of[at].stream != stream; i++) {
        if (uses->of[i].stream == stream || uses->of[i].number < uses->of[at].number)
            at = i;
    }
    if (uses->of[at].stream != stream) {
        if (uses->of[at].number > uses->others)
            atomic_store(&uses->others, uses->of[at].number);
        atomic_store(&uses->of[at].stream, stream);
    }
    atomic_store(&uses->of[at].number, number);
}

/* Locked, as is all that writes `events`. An event that is destroyed early is one of this process.
 * Nobody names it any more. */
static void note_events(struct ibx_pipeline *p, const struct ibx_scope *scope)
{
    const bool named =
        scope->event && (ibx_call_ends_event(p->call) || ibx_events_made(scope->event));
    if (!named)
        atomic_store(&p->concerns.events, EVENTS_ANY);
    else if (atomic_load(&p->concerns.events) == EVENTS_NONE)
        atomic_store(&p->concerns.events, EVENTS_NAMED);
}

static void note_scope(struct ibx_pipeline *p, const struct ibx_scope *scope, uint64_t number)
{
    if (scope->all)
        atomic_store(&p->concerns.streams.all, number);
    else if (scope->stream != STREAMS_NONE && scope->stream != STREAM_THREAD)
        note_stream(p, scope->stream, number);
    if (scope->events)
        note_events(p, scope);
}

/* Locked. One more request is about to be answered; returns its number. */
static uint64_t note_answered(struct ibx_pipeline *p, const struct ibx_scope *scope, bool library)
{
    const uint64_t number = atomic_load(&p->answered) + 1;
    note_scope(p, scope, number);
    ibx_session_owe(p->session, replied, p);
    ibx_process_count(1);
    atomic_store(&p->answered, number);
    ibx_library_note(p, number, library);
    return number;
}

/* Locked. Sends the backlog, or has it sent soon. */
static void leave_behind(struct ibx_pipeline *p)
{
    ibx_backlog_push(p, false);
    if (atomic_load(&p->unsent) && !ibx_process_send_soon(atomic_load(&p->patience)))
        ibx_backlog_finish(p);
}

/* Locked. Notes the kind of the request that is about to be added. */
static void note_kind(struct ibx_pipeline *p, enum backlog_kind kind)
{
    struct ibx_backlog *b = &p->backlog;
    const bool first = b->end == b->begin;
    b->kind = first || kind == b->kind ? kind : BACKLOG_OTHER;
}

bool ibx_backlog_add_copy(struct ibx_pipeline *p, uint64_t device, const void *host, size_t n)
{
    struct ibx_backlog *b = &p->backlog;
    static const char name[] = "cudaMemcpy";
    const size_t body = ibx_frame_plain_bytes(IBX_FRAME_MEMCPY) + n;
    const size_t length = sizeof(name) + 8 + body;
    ibx_process_work(IBX_LEAVES_NOTHING);
    ibx_process_order(p, &of_copies);
    pthread_mutex_lock(&p->lock);
    bool good = !atomic_load(&p->ended) && ibx_session_live(p->session) && length <= p->room &&
                !is_far_ahead(p) && backlog_room(p, length);
    if (good) {
        struct ibx_writer w = ibx_writer_of(b->bytes + b->end, length);
        ibx_put_bytes(&w, name, sizeof(name));
        ibx_put_u64(&w, body);
        ibx_put_u64(&w, device);
        ibx_put_u64(&w, n);
        ibx_put_bytes(&w, host, n);
        ibx_put_u64(&w, n);
        ibx_put_u32(&w, IBX_FRAME_H2D);
        note_kind(p, BACKLOG_COPIES);
        b->end += length;
        b->requests++;
        p->chatty = note_answered(p, &of_copies, false);
        leave_behind(p);
        good = !atomic_load(&p->ended);
    }
    pthread_mutex_unlock(&p->lock);
    ibx_process_work(IBX_LEAVES_NOTHING);
    return good;
}

bool ibx_backlog_copy_begin(struct ibx_pipeline *p)
{
    ibx_process_work(IBX_LEAVES_NOTHING);
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
        p->backlog.messages++;
        leave_behind(p);
    }
    if (!ibx_session_live(p->session))
        ibx_backlog_drop(p);
    pthread_mutex_unlock(&p->lock);
    ibx_process_work(IBX_LEAVES_NOTHING);
}

/* Locked. Whether the request in hand can be added; makes room for it. */
static bool has_room(struct ibx_pipeline *p)
{
    const bool mutes = p->call->kind == IBX_CALL_REGISTERS;
    if (atomic_load(&p->ended) || !ibx_session_live(p->session) || p->staged_length > p->room)
        return false;
    if (mutes && p->answered != p->replied && p->answered != p->mute)
        return false;
    if (is_far_ahead(p) || !backlog_room(p, p->staged_length))
        ibx_backlog_finish(p); /* as CUDA does if a stream is full */
    return ibx_session_live(p->session) && backlog_room(p, p->staged_length);
}

/* The request in hand, which has this number now, names the event. */
static void note_event(const struct ibx_pipeline *p, uint64_t event, uint64_t number)
{
    const struct ibx_event_use use = {p->id, number};
    if (ibx_call_records(p->call))
        ibx_events_record(event, &use);
    else
        ibx_events_use(event, &use);
}

bool ibx_backlog_add(struct ibx_pipeline *p, const struct ibx_scope *scope, bool sure)
{
    struct ibx_backlog *b = &p->backlog;
    const bool work = ibx_call_adds_work(p->call);
    size_t n;
    const uint8_t *body = ibx_request_body(p, &n);
    const enum ibx_leaves left = ibx_request_leaves(p->call, body, n);
    if (work)
        ibx_process_work(left);
    ibx_process_order(p, scope);
    if (ibx_call_ends_event(p->call))
        ibx_events_remove(scope->event);
    pthread_mutex_lock(&p->lock);
    bool good = has_room(p);
    if (good) {
        memcpy(b->bytes + b->end, p->staged, p->staged_length);
        note_kind(p, ibx_call_records(p->call) ? BACKLOG_RECORDS : BACKLOG_OTHER);
        b->end += p->staged_length;
        b->requests++;
        if (p->call->kind == IBX_CALL_FREES || ibx_call_ends_event(p->call))
            atomic_store(&p->concerns.memory, true);
        const uint64_t request = note_answered(p, scope, p->call->kind == IBX_CALL_LIBRARY);
        if (!ibx_call_is_quick(p->call, body, n))
            p->chatty = request;
        if (!sure)
            atomic_store(&p->unsure, request);
        if (!sure && p->call->kind == IBX_CALL_LAUNCH)
            ibx_unseen_add(p, request);
        if (p->call->kind == IBX_CALL_REGISTERS)
            p->mute = request;
        if (scope->event)
            note_event(p, scope->event, request);
        leave_behind(p);
        good = !atomic_load(&p->ended);
    }
    pthread_mutex_unlock(&p->lock);
    if (work)
        ibx_process_work(left); /* again: a query may have come before this request meanwhile */
    return good;
}
