/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The messages of a session: sent with credit, received into one of two queues. */
#include "frontend-glue/session/session_internal.h"

#include "common/clock.h"
#include "common/handlers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BUS_BYTES_A_US  20000u /* bytes per us of a copy that is limited by a GPU's bus only */
#define EXPECTED_MAX_US 20000u

int ibx_messages_init(struct ibx_session *s)
{
    /* Credit bounds what is unread at any time, whichever queue it is in. */
    unsigned size = s->options.slots + 1;
    s->stream.items = malloc(size * sizeof(struct ibx_event));
    s->control.items = malloc(size * sizeof(struct ibx_event));
    s->stream.size = s->control.size = size;
    return s->stream.items && s->control.items ? 0 : -ENOMEM;
}

void ibx_messages_fini(struct ibx_session *s)
{
    free(s->stream.items);
    free(s->control.items);
    s->stream = s->control = (struct message_queue){0};
}

static uint8_t type_of(const struct ibx_event *event)
{
    return event->length ? *(const uint8_t *)event->data : 0;
}

bool ibx_message_is(const struct ibx_event *event, enum message_type type)
{
    return event->length == 1 && type_of(event) == type;
}

static struct ibx_event *queue_at(struct message_queue *queue, unsigned i)
{
    return &queue->items[(queue->head + i) % queue->size];
}

/* Counts the message as taken: it is not sent again over another connection. */
static struct ibx_event queue_pop(struct ibx_session *s, struct message_queue *queue)
{
    s->link.taken[queue == &s->control ? ORDER_CONTROL : ORDER_STREAM]++;
    struct ibx_event event = *queue_at(queue, 0);
    queue->head = (queue->head + 1) % queue->size;
    queue->count--;
    return event;
}

static int file_message(struct ibx_session *s, const struct ibx_event *event)
{
    uint8_t type = type_of(event);
    if (type >= MESSAGE_KEEP && type <= MESSAGE_REPORT)
        return ibx_link_message(s, event);
    bool control = ibx_message_order(type) == ORDER_CONTROL;
    struct message_queue *queue = control ? &s->control : &s->stream;
    if (queue->count == queue->size)
        return ibx_session_fail(s, -EPROTO, "%s sent more messages than it had credit for",
                                s->path.peer);
    *queue_at(queue, queue->count++) = *event;
    return 0;
}

static int file_event(struct ibx_session *s, const struct ibx_event *event)
{
    switch (event->type) {
    case IBX_EVENT_MESSAGE:
        return file_message(s, event);
    case IBX_EVENT_READ:
    case IBX_EVENT_WRITE:
        return ibx_rendezvous_completed(s, event);
    case IBX_EVENT_SEND:
        return 0;
    case IBX_EVENT_CLOSED:
        s->ended = true;
        s->end_status = event->status;
        return 0;
    }
    return 0;
}

/* The connection has ended. A peer that closes between calls is no failure. 1: the session
 * continues; otherwise as ibx_session_fail(). */
static int end(struct ibx_session *s)
{
    if (ibx_link_survives(s)) {
        int rc = ibx_link_resume(s);
        return rc ? rc : 1; /* the caller checks again: a post may have been given up */
    }
    const char *why = ibx_conn_reason(s->conn);
    if (s->end_status == -ECONNRESET && !s->payloads && !s->ops.pending)
        return ibx_session_leave(s, why);
    return ibx_session_fail(s, s->end_status ? s->end_status : -ECONNRESET,
                            "connection with %s: %s", s->path.peer, why);
}

int ibx_session_poll(struct ibx_session *s)
{
    struct ibx_event events[8];
    ibx_held_replies_take(s);
    if (s->ended || ibx_link_has_offer(s))
        return end(s);
    if (s->link.kept.sent < s->link.kept.count)
        ibx_kept_push(&s->link.kept, s->conn);
    int n = ibx_poll(s->conn, events, 8);
    if (n < 0 && ibx_conn_inherited(s->conn))
        return ibx_session_fail(
            s, n, "a forked child has no connection with %s: that one is its parent's",
            s->path.peer);
    for (int i = 0; i < n; i++) {
        int rc = file_event(s, &events[i]);
        if (rc)
            return rc;
    }
    return n;
}

int ibx_session_poll_reply(struct ibx_session *s)
{
    int rc = ibx_session_has_bytes(s) ? 0 : ibx_session_poll(s);
    if (rc >= 0)
        rc = ibx_session_take_owed(s, false);
    return rc < 0 ? rc : !s->owed.count && ibx_session_has_bytes(s);
}

void ibx_session_set_pause(struct ibx_session *s, void (*pause)(void *context), void *context)
{
    s->pause = pause;
    s->pause_context = context;
}

bool ibx_session_limit(struct ibx_session *s, unsigned ms)
{
    if (ms && (!ibx_session_live(s) || s->ended))
        return false;
    s->until = ms ? ibx_deadline_in_ms(ms) : 0;
    return true;
}

static bool is_late(const struct ibx_session *s)
{
    return s->until && ibx_now_ns() >= s->until;
}

static int fail_late(struct ibx_session *s)
{
    return ibx_session_fail(s, -ETIMEDOUT, "%s does not answer before this process ends",
                            s->path.peer);
}

static bool waits_in_pieces(const struct ibx_session *s)
{
    return s->pause && ibx_handlers_held() && ibx_session_live(s) && !is_late(s);
}

static void wait_for_a_piece(struct ibx_session *s)
{
    ibx_wait(s->conn, IBX_HANDLERS_MS);
    s->pause(s->pause_context);
}

void ibx_session_await_reply(struct ibx_session *s)
{
    atomic_store_explicit(&s->awaits_reply, true, memory_order_release);
    while (waits_in_pieces(s) && !ibx_session_poll_reply(s))
        wait_for_a_piece(s);
}

void ibx_session_reply_begins(struct ibx_session *s)
{
    atomic_store_explicit(&s->awaits_reply, false, memory_order_release);
}

bool ibx_session_awaits_reply(const struct ibx_session *s)
{
    return atomic_load_explicit(&s->awaits_reply, memory_order_acquire);
}

void ibx_session_await_owed(struct ibx_session *s)
{
    while (waits_in_pieces(s) && s->owed.count && !ibx_session_poll_reply(s))
        wait_for_a_piece(s);
}

/* A child of a client may keep its connection open after the client has ended. So a server is woken
 * up, once a connection, when the client's process ends. All that it has sent has arrived by then.
 */
static void watch_process(struct ibx_session *s)
{
    if (!s->server || s->link.peer_fd < 0 || s->link.watched == s->conn)
        return;
    s->link.watched = s->conn;
    ibx_wait_watch(s->conn, s->link.peer_fd);
}

/* Whether the process of a server's client has ended, though children may hold its connection;
 * checked in waits. */
static bool process_ended(const struct ibx_session *s)
{
    return s->server && ibx_wait_watched(s->conn) && ibx_link_peer_died(s);
}

bool ibx_session_client_gone(struct ibx_session *s, uint64_t *since)
{
    struct ibx_event events[8];
    const bool lent = ibx_held_replies_take(s);
    const bool polls = ibx_session_live(s) && !s->ended && !ibx_link_has_offer(s);
    const int n = polls ? ibx_poll(s->conn, events, 8) : 0;
    for (int i = 0; i < n && ibx_session_live(s); i++)
        file_event(s, &events[i]);
    if (lent)
        ibx_held_replies_lend(s);
    if (!ibx_session_live(s) || ibx_link_peer_died(s))
        return true;
    if (!s->ended || ibx_link_has_offer(s)) {
        *since = 0;
        return false;
    }
    const uint64_t now = ibx_now_ns();
    *since = *since ? *since : now;
    return !ibx_link_survives(s) || now - *since > s->link.seconds * 1000 * IBX_NS_PER_MS;
}

/* All that the client has sent has arrived. */
static void end_with_process(struct ibx_session *s)
{
    s->ended = true;
    s->end_status = -ECONNRESET;
}

int ibx_session_pump(struct ibx_session *s)
{
    for (bool over = false;;) {
        int n = ibx_session_poll(s);
        if (n)
            return n < 0 ? n : 0;
        if (over) {
            end_with_process(s);
            continue;
        }
        if (is_late(s))
            return fail_late(s);
        watch_process(s);
        if (s->hooks->waits)
            s->hooks->waits(s->context);
        const int ms = s->until ? ibx_ms_until(s->until) : -1;
        over = process_ended(s) || (ibx_wait(s->conn, ms) == -EINTR && process_ended(s));
    }
}

/* Queued after messages that have waited for credit since the last connection. */
int ibx_session_try_send(struct ibx_session *s, const struct iovec *iov, int iovcnt)
{
    struct kept *kept = &s->link.kept;
    if (s->link.state.now == LINK_SINGLE)
        return ibx_send(s->conn, iov, iovcnt, 0, 0);
    if (!ibx_kept_push(kept, s->conn))
        return -EAGAIN;
    int rc = ibx_send(s->conn, iov, iovcnt, 0, 0);
    return rc ? rc : ibx_kept_add(kept, iov, iovcnt);
}

static int send_or_wait(struct ibx_session *s, const struct iovec *iov, int iovcnt)
{
    for (bool over = false;;) {
        int rc = ibx_session_try_send(s, iov, iovcnt);
        if (!rc)
            return 0;
        if (rc != -EAGAIN && rc != -ENOTCONN)
            return ibx_session_fail(s, rc, "sending to %s failed: %s", s->path.peer, strerror(-rc));
        /* Without credit: waits for the peer. A lost connection is reported there. */
        int events = ibx_session_poll(s);
        if (events < 0)
            return events;
        rc = s->server ? 0 : ibx_session_take_owed(s, false);
        if (rc)
            return rc;
        if (events)
            continue;
        if (over) { /* the connection is over, and gives no more credit */
            end_with_process(s);
            continue;
        }
        if (is_late(s))
            return fail_late(s);
        watch_process(s);
        ibx_wait(s->conn, 1);
        over = process_ended(s);
    }
}

int ibx_session_send(struct ibx_session *s, const struct iovec *iov, int iovcnt)
{
    /* The message around this one, if this is sent in the middle of another. */
    const size_t around = s->out.sending;
    size_t n = 0;
    for (int i = 0; i < iovcnt; i++)
        n += iov[i].iov_len;
    s->out.sending = n > around ? n : around;
    const int rc = send_or_wait(s, iov, iovcnt);
    s->out.sending = around;
    return rc;
}

int ibx_session_send_short(struct ibx_session *s, enum message_type type)
{
    uint8_t byte = (uint8_t)type;
    struct iovec iov = {&byte, 1};
    return ibx_session_send(s, &iov, 1);
}

/* Server, while it waits for a CTS: a client that has sent FLUSH sends none before the answer. The
 * answer comes when everything before the FLUSH has been read; otherwise neither side can go on. */
static int answer_early_flush(struct ibx_session *s)
{
    bool behind = s->in.behind.kind && s->in.behind.left;
    bool all_read = !s->in.segment.left && !behind && !ibx_incoming_has_more(&s->in);
    for (unsigned i = 0; i < s->stream.count; i++) {
        if (!ibx_message_is(queue_at(&s->stream, i), MESSAGE_FLUSH))
            continue;
        if (i || !all_read)
            return ibx_session_fail(
                s, -EDEADLK, "%s sends long requests ahead of long replies that it does not read",
                s->path.peer);
        struct ibx_event event = queue_pop(s, &s->stream);
        ibx_message_release(s->conn, &event);
        return ibx_session_send_short(s, MESSAGE_FLUSHED);
    }
    return 0;
}

/* Answers FLUSH unless a request that has arrived already comes first. */
static int answer_unless_more(struct ibx_session *s)
{
    const int n = ibx_session_poll(s);
    return n ? (n < 0 ? n : 0) : ibx_session_answer_delayed(s);
}

int ibx_session_next_message(struct ibx_session *s, struct message_queue *queue,
                             struct ibx_event *event)
{
    while (!queue->count) {
        int rc = s->server && queue == &s->control ? answer_early_flush(s) : 0;
        if (!rc)
            rc = s->delayed ? answer_unless_more(s) : ibx_session_pump(s);
        if (rc)
            return rc;
    }
    *event = queue_pop(s, queue);
    return 0;
}

int ibx_session_confirmed(struct ibx_session *s, enum message_type type, const char *what)
{
    struct ibx_event event;
    int rc = ibx_session_next_message(s, &s->control, &event);
    if (rc)
        return rc;
    bool good = ibx_message_is(&event, type);
    ibx_message_release(s->conn, &event);
    return good ? 0 : ibx_session_fail(s, -EPROTO, "%s did not confirm %s", s->path.peer, what);
}

void ibx_session_expect(struct ibx_session *s, uint64_t n)
{
    uint64_t us = n / BUS_BYTES_A_US;
    ibx_expect(s->conn, us < EXPECTED_MAX_US ? (unsigned)us : EXPECTED_MAX_US);
}
