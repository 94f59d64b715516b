/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Requests at the beginning of the stream, where they stay until a hook has run them. A request has
 * one of three forms:
 *
 *   INLINE[name, length, body]             whole in a message, or gathered from several
 *   INLINE[name, length] RTS_READ[body]    one write of GVirtuS's front end
 *   INLINE[name, length, head] RTS_READ[payload] INLINE[tail ...]
 *                                          from a front end that does not copy payloads
 */
#include "frontend-glue/session/session_internal.h"

#include "frontend-glue/session/extensions.h"
#include "frontend-glue/session/math_calls.h"

#include <stdlib.h>
#include <string.h>

#define GATHER_MAX    (1u << 20)  /* longer bodies are READ, if the client can register them */
#define EXTENSION_MAX (64u << 10) /* bytes of an extension request; no client has longer ones */

#define EXTENSION_BEGINS   "ibx" /* the prefix of its name ... */
#define EXTENSION_NAME_MAX 32u   /* ... which has at most so many bytes */

/* Reads the tail of a body, in the segment after its payload. */
static bool peek_tail(struct ibx_request *q)
{
    if (!q->head_length || q->head_length > IBX_FRAME_WINDOW ||
        q->remote.length >= q->length - q->head_length)
        return false;
    uint64_t tail = q->length - q->head_length - q->remote.length;
    if (tail > IBX_FRAME_WINDOW || ibx_get_u8(&q->after) != SEGMENT_INLINE)
        return false;
    size_t length = ibx_get_u32(&q->after);
    q->tail = ibx_get_bytes(&q->after, length);
    if (q->after.failed || length < tail)
        return false;
    q->tail_length = (size_t)tail;
    q->rest = q->tail + tail;
    q->rest_length = length - (size_t)tail;
    return true;
}

/* Whether the body, or its payload, follows in the same message as memory to READ. */
static bool peek_remote(struct ibx_session *s, struct ibx_request *q)
{
    q->after = s->in.reader;
    if (!ibx_incoming_any(&s->in) || ibx_get_u8(&q->after) != SEGMENT_RTS_READ)
        return false;
    ibx_name_get(&q->after, &q->remote);
    if (q->after.failed)
        return false;
    if (q->remote.length == q->length && !q->head_length)
        /* The hook looks for the payload in these windows. */
        return q->length >= 2 * IBX_FRAME_WINDOW;
    return peek_tail(q);
}

/* Copies the next n bytes of the stream into the session's memory, which then is the beginning of
 * the stream. Some of them may have been gathered before. */
static int gather(struct ibx_session *s, size_t n)
{
    const size_t here = (size_t)s->in.segment.left;
    if (s->in.gathered_size < n) {
        uint8_t *more = malloc(n);
        if (!more)
            return 0; /* nothing has been read */
        memcpy(more, s->in.segment.inline_at, here);
        free(s->in.gathered);
        s->in.gathered = more;
        s->in.gathered_size = n;
    } else {
        memmove(s->in.gathered, s->in.segment.inline_at, here);
    }
    s->in.segment.left = 0;
    int rc = ibx_session_read_all(s, s->in.gathered + here, n - here);
    if (rc)
        return rc;
    s->in.behind = s->in.segment;
    s->in.segment =
        (struct segment){.kind = SEGMENT_INLINE, .left = n, .inline_at = s->in.gathered};
    return 1;
}

/* Whether an incomplete name may be that of an extension request. */
static bool may_be_extension(const uint8_t *bytes, size_t n)
{
    return n < EXTENSION_NAME_MAX && !memcmp(bytes, EXTENSION_BEGINS, n < 3 ? n : 3);
}

/* Gathers an extension request that is split over messages, even within its name, because GVirtuS
 * does not know it. Clients send them whole, except when a session continues over another fabric.
 * 1: now there is more of it; 0: it is none; otherwise as ibx_session_fail(). */
static int gather_extension(struct ibx_session *s)
{
    const size_t left = (size_t)s->in.segment.left;
    const uint8_t *bytes = s->in.segment.inline_at, *nul = memchr(bytes, 0, left);
    const size_t name = nul ? (size_t)(nul - bytes) + 1 : 0;
    if (!name)
        return may_be_extension(bytes, left) ? gather(s, left + 1) : 0;
    const struct ibx_call *call = ibx_call_find(bytes, name);
    const bool extension = ibx_extension_is(call->name) || ibx_math_is(call->name);
    const bool resets = call->kind == IBX_CALL_RESETS && call->name[0];
    if (!extension && !resets)
        return 0;
    if (left - name < 8)
        return extension ? gather(s, name + 8) : 0; /* a reset has to be complete */
    struct ibx_reader r = ibx_reader_of(bytes + name, 8);
    const uint64_t length = ibx_get_u64(&r);
    if (length > EXTENSION_MAX || length <= left - name - 8)
        return 0;
    return gather(s, name + 8 + (size_t)length);
}

/* Finds a call that is no copy, if it is complete. */
static int find_call(struct ibx_session *s, struct ibx_request *q)
{
    const struct ibx_call *call;
    size_t whole;
    const struct segment *segment = &s->in.segment;
    while (!(whole = ibx_call_request(segment->inline_at, (size_t)segment->left, &call))) {
        const int rc = gather_extension(s);
        if (rc <= 0)
            return rc;
    }
    if (!call->name[0])
        return 0;
    const uint8_t *bytes = segment->inline_at;
    const size_t head = (size_t)((const uint8_t *)memchr(bytes, 0, whole) - bytes) + 9;
    *q = (struct ibx_request){.call = IBX_FRAME_OTHER,
                              .called = call,
                              .length = whole - head,
                              .body = bytes + head,
                              .inline_length = whole};
    return 1;
}

/* Finds a request with a known name at the beginning of the stream. 1; 0: there is none, or it is
 * not complete; otherwise as ibx_session_fail(). */
static int find_request(struct ibx_session *s, struct ibx_request *q)
{
    int rc = ibx_session_refill(s);
    if (rc || s->in.segment.kind != SEGMENT_INLINE)
        return rc;
    size_t name, left = (size_t)s->in.segment.left;
    *q = (struct ibx_request){.call = ibx_frame_name(s->in.segment.inline_at, left, &name),
                              .reply_to = s->early_cts.remote,
                              .settle = s->settle};
    if (q->call == IBX_FRAME_OTHER)
        return find_call(s, q);
    if (left - name < 8)
        return 0;
    struct ibx_reader r = ibx_reader_of(s->in.segment.inline_at + name, 8);
    q->length = ibx_get_u64(&r);
    q->head = s->in.segment.inline_at + name + 8;
    q->head_length = left - name - 8;
    if (q->head_length >= q->length) {
        q->body = q->head;
        q->inline_length = name + 8 + (size_t)q->length;
        return 1;
    }
    q->inline_length = left;
    if (!s->in.behind.kind && peek_remote(s, q))
        return 1;
    if (q->length > GATHER_MAX || s->in.behind.kind)
        return 0;
    rc = gather(s, name + 8 + (size_t)q->length);
    return rc > 0 ? find_request(s, q) : rc;
}

void ibx_session_consume(struct ibx_session *s, const struct ibx_request *q)
{
    s->in.segment.inline_at += q->inline_length;
    s->in.segment.left -= q->inline_length;
    if (q->body)
        return;
    s->in.reader = q->after;
    s->payloads_read++;
    if (q->rest_length)
        s->in.segment =
            (struct segment){.kind = SEGMENT_INLINE, .left = q->rest_length, .inline_at = q->rest};
}

int ibx_session_run_requests(struct ibx_session *s)
{
    const struct ibx_session_hooks *hooks = s->hooks;
    int rc = IBX_REQUEST_DONE;
    /* a delayed reply waits only for a request that has arrived and runs quickly */
    while (rc == IBX_REQUEST_DONE && hooks->request && hooks->wants_request(s->context)) {
        struct ibx_request q;
        rc = find_request(s, &q);
        if (rc <= 0)
            break;
        ibx_held_replies_lend(s);
        rc = hooks->request(s->context, &q);
        ibx_held_replies_take(s);
    }
    return rc < 0 ? rc : ibx_session_answer_delayed(s);
}
