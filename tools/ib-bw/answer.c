/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The back end's side of the calls, whose bytes call.c describes; ib-bw(1) compares it with
 * GVirtuS's. Names, lengths and layouts are checked; a wrong one ends the connection. */
#include "tools/ib-bw/ib-bw.h"

#include "common/log.h"
#include "common/wire.h"
#include "frontend-glue/session/session.h"

#include <stdlib.h>
#include <string.h>

struct answer {
    struct bw_stream *stream;
    size_t max_bytes;
    struct bw_buffer body;
    size_t received; /* bytes of the last H2D payload, at BW_H2D_HEAD of the body */
    struct bw_buffer reply;
    size_t prepared; /* bytes of payload in the reply's buffer */
};

static const char *peer_of(const struct bw_stream *s)
{
    const struct ibx_path *path = s->session ? ibx_session_path(s->session) : NULL;
    return path ? path->peer : s->session ? "a client" : "a client of stock";
}

/* Logs a client's mistake and returns false, which ends the connection. */
static bool complain(struct bw_stream *s, const char *what, uint64_t value)
{
    ibx_log(IBX_LOG_WARN, "%s sent %s (%llu): connection closed", peer_of(s), what,
            (unsigned long long)value);
    return false;
}

bool ibx_bw_read_name(struct bw_stream *s, char name[BW_NAME_MAX])
{
    for (unsigned i = 0; i < BW_NAME_MAX; i++) {
        if (s->ops->read(s, &name[i], 1) != 1)
            return false;
        if (!name[i])
            return true;
    }
    return complain(s, "a routine's name without an end", BW_NAME_MAX);
}

static bool read_body(struct answer *a, uint64_t *length)
{
    uint8_t bytes[8];
    if (a->stream->ops->read(a->stream, bytes, sizeof(bytes)) != sizeof(bytes))
        return false;
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    *length = ibx_get_u64(&r);
    if (*length > a->max_bytes + BW_H2D_HEAD + BW_H2D_TAIL)
        return complain(a->stream, "a body longer than --max-bytes allows", *length);
    if (ibx_bw_buffer_room(&a->body, (size_t)*length))
        return complain(a->stream, "a body for which there is no memory", *length);
    return !*length ||
           a->stream->ops->read(a->stream, a->body.data, (size_t)*length) == (ssize_t)*length;
}

bool ibx_bw_reply(struct bw_stream *s, uint32_t code, const void *data, size_t n)
{
    uint8_t head[4 + 8 + 8];
    struct ibx_writer w = ibx_writer_of(head, sizeof(head));
    ibx_put_u32(&w, code);
    ibx_put_u64(&w, 0); /* 0.0 seconds */
    ibx_put_u64(&w, n);
    return s->ops->write(s, head, 4) == 4 && s->ops->write(s, head + 4, 8) == 8 &&
           s->ops->write(s, head + 12, 8) == 8 && (!n || s->ops->write(s, data, n) == (ssize_t)n) &&
           !s->ops->sync(s);
}

static bool reply_code(struct answer *a, enum bw_exit code)
{
    return ibx_bw_reply(a->stream, code, NULL, 0);
}

/* ibBwPrepare: makes room for the payloads of the next calls, and the payload to send. */
static bool prepare(struct answer *a, size_t length)
{
    struct ibx_reader r = ibx_reader_of(a->body.data, length);
    uint64_t bytes = ibx_get_u64(&r), seed = ibx_get_u64(&r);
    if (r.failed || ibx_reader_left(&r))
        return complain(a->stream, "a malformed " BW_CALL_PREPARE, length);
    if (bytes > a->max_bytes)
        return reply_code(a, BW_EXIT_TOO_LONG);
    a->received = a->prepared = 0;
    if (!bytes) {
        ibx_bw_buffer_fini(&a->body);
        ibx_bw_buffer_fini(&a->reply);
        return reply_code(a, BW_EXIT_OK);
    }
    if (ibx_bw_buffer_room(&a->reply, BW_D2H_HEAD + (size_t)bytes))
        return reply_code(a, BW_EXIT_TOO_LONG);
    struct ibx_writer w = ibx_writer_of(a->reply.data, BW_D2H_HEAD);
    ibx_put_u64(&w, bytes);
    ibx_bw_payload_fill(a->reply.data + BW_D2H_HEAD, (size_t)bytes, seed);
    a->prepared = (size_t)bytes;
    return reply_code(a, BW_EXIT_OK);
}

static bool h2d(struct answer *a, size_t length)
{
    struct ibx_reader r = ibx_reader_of(a->body.data, length);
    uint64_t token = ibx_get_u64(&r), n = ibx_get_u64(&r);
    const uint8_t *payload = ibx_get_bytes(&r, (size_t)n);
    uint64_t count = ibx_get_u64(&r);
    ibx_get_u32(&r); /* kind */
    if (r.failed || ibx_reader_left(&r) || count != n || !n)
        return complain(a->stream, "a malformed H2D copy", length);
    a->received = (size_t)n;
    bool good = ibx_bw_payload_marked(payload, a->received, token);
    return reply_code(a, good ? BW_EXIT_OK : BW_EXIT_DAMAGED);
}

static bool d2h(struct answer *a, size_t length)
{
    struct ibx_reader r = ibx_reader_of(a->body.data, length);
    uint64_t one = ibx_get_u64(&r);
    ibx_get_u8(&r);
    uint64_t token = ibx_get_u64(&r), n = ibx_get_u64(&r);
    ibx_get_u32(&r); /* kind */
    if (r.failed || ibx_reader_left(&r) || one != 1)
        return complain(a->stream, "a malformed D2H copy", length);
    if (!n || n != a->prepared)
        return complain(a->stream, "a D2H copy that was not prepared", n);
    ibx_bw_payload_mark(a->reply.data + BW_D2H_HEAD, a->prepared, token);
    return ibx_bw_reply(a->stream, BW_EXIT_OK, a->reply.data, BW_D2H_HEAD + a->prepared);
}

/* Handles cudaMemcpy. The kind is its last field, which GVirtuS reads first, too. */
static bool copy(struct answer *a, size_t length)
{
    if (length < 4)
        return complain(a->stream, "a copy without a kind", length);
    a->received = 0;
    struct ibx_reader r = ibx_reader_of(a->body.data + length - 4, 4);
    uint32_t kind = ibx_get_u32(&r);
    if (kind == BW_KIND_H2D)
        return h2d(a, length);
    if (kind == BW_KIND_D2H)
        return d2h(a, length);
    return complain(a->stream, "a copy of an unknown kind", kind);
}

static bool checksum(struct answer *a)
{
    uint8_t bytes[8];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_put_u64(&w, a->received ? ibx_bw_payload_sum(a->body.data + BW_H2D_HEAD, a->received) : 0);
    return ibx_bw_reply(a->stream, BW_EXIT_OK, bytes, sizeof(bytes));
}

static bool answer_one(struct answer *a)
{
    char name[BW_NAME_MAX];
    uint64_t length = 0;
    if (!ibx_bw_read_name(a->stream, name) || !read_body(a, &length))
        return false;
    if (!strcmp(name, BW_CALL_MEMCPY))
        return copy(a, (size_t)length);
    if (!strcmp(name, BW_CALL_PREPARE))
        return prepare(a, (size_t)length);
    if (!strcmp(name, BW_CALL_CHECKSUM) && !length)
        return checksum(a);
    ibx_text_sanitize(name);
    ibx_log(IBX_LOG_WARN, "%s asked for \"%s\", which ib-bw does not have: connection closed",
            peer_of(a->stream), name);
    return false;
}

void ibx_bw_answer(struct bw_stream *stream, size_t max_bytes)
{
    struct answer a = {.stream = stream, .max_bytes = max_bytes};
    while (answer_one(&a))
        ;
    stream->ops->destroy(stream); /* before the buffers that it may have registered */
    ibx_bw_buffer_fini(&a.body);
    ibx_bw_buffer_fini(&a.reply);
}
