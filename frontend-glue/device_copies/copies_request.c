/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Requests at the beginning of the stream, which stay in it until it is known what they are. One
 * comes in one of three ways:
 *
 *   INLINE[name, length, body]                        whole in a message, or gathered from several
 *   INLINE[name, length] EXPOSED[body]                as one write of GVirtuS's front end
 *   INLINE[name, length, head] EXPOSED[payload] INLINE[tail ...]
 *                                                     as a front end that does not copy payloads
 */
#include "frontend-glue/device_copies/copies_internal.h"

#include <stdlib.h>
#include <string.h>

#define GATHER_MAX (1u << 20) /* longer bodies are exposed, unless the client cannot */

/* The tail of a body whose payload is exposed, in the segment behind that. */
static bool peek_tail(struct request *q)
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

/* What follows in the same message, if it is the body or its payload, exposed. */
static bool peek_exposed(struct ibx_session *s, struct request *q)
{
    q->after = s->reader;
    if (!s->has_current || ibx_get_u8(&q->after) != SEGMENT_EXPOSED)
        return false;
    ibx_remote_get(&q->after, &q->remote);
    if (q->after.failed || q->length < 2 * IBX_FRAME_WINDOW)
        return false;
    if (q->remote.length == q->length && !q->head_length)
        return true;
    return peek_tail(q);
}

/* Puts the next n bytes of the stream into memory of our own, and that in front of the rest. */
static int gather(struct ibx_session *s, size_t n)
{
    struct copies *x = &s->copies;
    if (x->held_size < n) {
        uint8_t *more = realloc(x->held, n);
        if (!more)
            return 0; /* nothing was read */
        x->held = more;
        x->held_size = n;
    }
    for (size_t got = 0; got < n;) {
        int rc = ibx_session_refill(s);
        if (rc)
            return rc;
        size_t some = n - got < s->segment.left ? n - got : (size_t)s->segment.left;
        rc = ibx_session_read_some(s, x->held + got, some);
        if (rc)
            return rc;
        got += some;
    }
    s->behind = s->segment;
    s->segment = (struct segment){.kind = SEGMENT_INLINE, .left = n, .inline_at = x->held};
    return 1;
}

int ibx_copies_find_request(struct ibx_session *s, struct request *q)
{
    int rc = ibx_session_refill(s);
    if (rc || s->segment.kind != SEGMENT_INLINE)
        return rc;
    size_t name, left = (size_t)s->segment.left;
    *q = (struct request){.call = ibx_frame_name(s->segment.inline_at, left, &name)};
    if (q->call == IBX_FRAME_OTHER || left - name < 8)
        return 0;
    struct ibx_reader r = ibx_reader_of(s->segment.inline_at + name, 8);
    q->length = ibx_get_u64(&r);
    q->head = s->segment.inline_at + name + 8;
    q->head_length = left - name - 8;
    if (q->head_length >= q->length) {
        q->body = q->head;
        q->inline_length = name + 8 + (size_t)q->length;
        return 1;
    }
    q->inline_length = left;
    if (!s->behind.kind && peek_exposed(s, q))
        return 1;
    if (q->length > GATHER_MAX || s->behind.kind)
        return 0;
    rc = gather(s, name + 8 + (size_t)q->length);
    return rc > 0 ? ibx_copies_find_request(s, q) : rc;
}

void ibx_copies_consume(struct ibx_session *s, const struct request *q)
{
    s->segment.inline_at += q->inline_length;
    s->segment.left -= q->inline_length;
    if (q->body)
        return;
    s->reader = q->after;
    s->bodies_read++;
    if (q->rest_length)
        s->segment =
            (struct segment){.kind = SEGMENT_INLINE, .left = q->rest_length, .inline_at = q->rest};
}

bool ibx_copies_parse(const struct request *q, struct ibx_frame *frame)
{
    uint8_t first[IBX_FRAME_WINDOW] = {0}, last[IBX_FRAME_WINDOW] = {0};
    struct ibx_frame_body body = {first, last, q->length};
    if (q->body) {
        size_t window = q->length < IBX_FRAME_WINDOW ? (size_t)q->length : IBX_FRAME_WINDOW;
        body.first = q->body;
        body.last = q->body + q->length - window;
        return ibx_frame_parse(q->call, &body, frame);
    }
    memcpy(first, q->head, q->head_length);
    memcpy(last + IBX_FRAME_WINDOW - q->tail_length, q->tail, q->tail_length);
    return ibx_frame_parse(q->call, &body, frame) && frame->kind == IBX_FRAME_H2D &&
           frame->payload_at == q->head_length && frame->payload == q->remote.length;
}
