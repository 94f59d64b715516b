/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A client's requests that were answered before the server has run them. Their replies arrive in
 * the order of the stream, before the next reply that somebody reads, and are consumed here; also
 * while this side waits for credit, since a server whose replies nobody takes runs nothing more.
 */
#include "frontend-glue/session/session_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define REPLY_HEAD 20u /* exit code, seconds, length of the rest */

void ibx_session_owe(struct ibx_session *s, ibx_owed_reply *reply, void *context)
{
    s->owed.ever++;
    s->owed.count++;
    s->owed.reply = reply;
    s->owed.context = context;
}

/* One reply is complete. */
static void reply_ends(struct ibx_session *s)
{
    struct ibx_reader r = ibx_reader_of(s->owed.head, REPLY_HEAD);
    int exit_code = (int)ibx_get_u32(&r);
    s->owed.got = 0;
    s->owed.count--;
    s->owed.reply(s->owed.context, exit_code);
}

int ibx_session_check_unread(struct ibx_session *s, uint64_t n)
{
    if (!ibx_session_live(s))
        return -ENOTCONN;
    return n < s->caps->rendezvous
               ? 0
               : ibx_session_fail(s, -EPROTO,
                                  "%s answers a call with %" PRIu64 " bytes that it does not have",
                                  s->path.peer, n);
}

/* Consumes bytes of the current segment. */
static int take_some(struct ibx_session *s)
{
    struct segment *segment = &s->in.segment;
    if (segment->kind != SEGMENT_INLINE)
        return ibx_session_fail(s, -EPROTO, "%s answers a call of no output with a payload",
                                s->path.peer);
    while (segment->left && s->owed.count) {
        uint64_t left = s->owed.got < REPLY_HEAD ? REPLY_HEAD - s->owed.got : s->owed.rest;
        size_t n = left < segment->left ? (size_t)left : (size_t)segment->left;
        if (s->owed.got < REPLY_HEAD) {
            memcpy(s->owed.head + s->owed.got, segment->inline_at, n);
            s->owed.got += n;
            struct ibx_reader r = ibx_reader_of(s->owed.head + REPLY_HEAD - 8, 8);
            s->owed.rest = s->owed.got == REPLY_HEAD ? ibx_get_u64(&r) : 0;
            const int rc = ibx_session_check_unread(s, s->owed.rest);
            if (rc)
                return rc;
        } else {
            s->owed.rest -= n; /* a failed handler may have output, too */
        }
        segment->inline_at += n;
        segment->left -= n;
        if (s->owed.got == REPLY_HEAD && !s->owed.rest)
            reply_ends(s);
    }
    return 0;
}

bool ibx_session_has_bytes(const struct ibx_session *s)
{
    return s->in.segment.left || ibx_incoming_has_more(&s->in) || s->stream.count;
}

int ibx_session_take_owed(struct ibx_session *s, bool wait)
{
    int rc = 0;
    while (s->owed.count && (wait || ibx_session_has_bytes(s)) && !rc) {
        rc = ibx_session_refill(s);
        if (!rc)
            rc = take_some(s);
    }
    /* Releases it, for its credit. */
    if (!s->in.segment.left && ibx_incoming_any(&s->in) && !ibx_reader_left(&s->in.reader)) {
        ibx_session_release_current(s);
    }
    return rc;
}

uint64_t ibx_session_owed_last(const struct ibx_session *s)
{
    return s->owed.ever;
}

int ibx_session_wait_owed(struct ibx_session *s, uint64_t number)
{
    int rc = 0;
    while (!rc && s->owed.ever - s->owed.count < number) {
        rc = ibx_session_take_owed(s, false);
        if (!rc && s->owed.ever - s->owed.count < number)
            rc = ibx_session_pump(s);
    }
    return rc;
}

void ibx_session_keep_payloads(struct ibx_session *s)
{
    for (struct payload *payload = s->payloads; payload; payload = payload->next)
        payload->stays = true;
    s->synced = false;
}

bool ibx_session_look(struct ibx_session *s)
{
    if (!ibx_session_live(s) || (!s->ended && ibx_session_poll(s) < 0))
        return false;
    return !ibx_session_take_owed(s, false) && (!s->ended || ibx_link_survives(s));
}

bool ibx_session_look_closely(struct ibx_session *s)
{
    if (ibx_session_live(s) && !s->ended)
        ibx_wait(s->conn, 0);
    return ibx_session_look(s);
}

int ibx_session_gather_ahead(struct ibx_session *s, const uint8_t *bytes, size_t n)
{
    int rc = ibx_session_gather_whole(s, bytes, n);
    s->out.ahead = true;
    return rc;
}

int ibx_session_send_ahead(struct ibx_session *s)
{
    return s->out.length && s->out.ahead ? ibx_session_sync(s) : 0;
}

bool ibx_session_send_now(struct ibx_session *s, const uint8_t *bytes, size_t n)
{
    uint8_t head[1 + SEGMENT_HEAD_INLINE];
    struct ibx_writer w = ibx_writer_of(head, sizeof(head));
    ibx_put_u8(&w, MESSAGE_DATA);
    ibx_put_u8(&w, SEGMENT_INLINE);
    ibx_put_u32(&w, (uint32_t)n);
    struct iovec iov[2] = {{head, w.length}, {(void *)(uintptr_t)bytes, n}};
    const int rc = s->out.length || s->ended ? -EAGAIN : ibx_session_try_send(s, iov, 2);
    /* It may have been sent, and must not be sent twice. */
    if (rc && rc != -EAGAIN && rc != -ENOTCONN)
        ibx_session_fail(s, rc, "sending to %s failed: %s", s->path.peer, strerror(-rc));
    return !rc;
}

size_t ibx_session_room(const struct ibx_session *s)
{
    return s->out.most - 1 - SEGMENT_HEAD_INLINE;
}
