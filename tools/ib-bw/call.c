/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The front end's side of the calls, as GVirtuS makes them:
 *
 *   Write(name with its NUL) Write(8: length) Write(body) Sync Sync
 *   Read(4: exit code) Read(8: seconds) Read(8: length) [Read(length)]
 *
 * with the bodies of its cudaMemcpy:
 *
 *   H2D  dst 8, n 8, payload, count 8, kind 4           answered with nothing
 *   D2H  u64 1, one NUL byte, src 8, count 8, kind 4    answered with n 8, payload
 *
 * The device addresses of a bench are free, so they carry the token that marks the call's payload.
 * The marks are looked at in every call; the checksum of the whole payload is compared after the
 * first and the last call of a slice. Neither is timed.
 */
#include "tools/ib-bw/ib-bw.h"

#include "common/clock.h"
#include "common/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KEEP_BYTES ((size_t)4 << 20) /* a server may keep so much between slices */

struct call_path {
    struct bw_path path;
    struct bw_stream *stream;
    struct bw_front *front;
    uint64_t token; /* of the last call */
    bool answered;
};

struct call {
    const char *name;
    const void *body;
    size_t length;
    void *reply; /* of `reply_length` bytes, no more and no less */
    size_t reply_length;
};

static int ended(struct bw_stream *s, ssize_t rc, struct ibx_error *err)
{
    const char *reason = s->ops->reason(s);
    return ibx_error_set(err, rc < 0 ? (int)rc : -ECONNRESET, "the connection ended: %s",
                         *reason ? reason : "the server closed it");
}

static int send_request(struct bw_stream *s, const struct call *call, struct ibx_error *err)
{
    uint8_t length[8];
    struct ibx_writer w = ibx_writer_of(length, sizeof(length));
    ibx_put_u64(&w, call->length);
    ssize_t rc = s->ops->write(s, call->name, strlen(call->name) + 1);
    if (rc > 0)
        rc = s->ops->write(s, length, sizeof(length));
    if (rc > 0 && call->length)
        rc = s->ops->write(s, call->body, call->length);
    if (rc > 0)
        rc = s->ops->sync(s);
    if (!rc)
        rc = s->ops->sync(s);
    return rc ? ended(s, rc, err) : 0;
}

/* The exit code (enum bw_exit) is an output: with another than BW_EXIT_OK there is no reply. */
static int receive_reply(struct bw_stream *s, const struct call *call, uint32_t *code,
                         struct ibx_error *err)
{
    uint8_t head[4 + 8 + 8];
    ssize_t rc = s->ops->read(s, head, 4);
    if (rc > 0)
        rc = s->ops->read(s, head + 4, 8);
    if (rc > 0)
        rc = s->ops->read(s, head + 12, 8);
    if (rc <= 0)
        return ended(s, rc, err);
    struct ibx_reader r = ibx_reader_of(head, sizeof(head));
    *code = ibx_get_u32(&r);
    ibx_get_u64(&r); /* the back end's seconds */
    uint64_t length = ibx_get_u64(&r);
    uint64_t due = *code == BW_EXIT_OK ? call->reply_length : 0;
    if (length != due)
        return ibx_error_set(err, -EPROTO,
                             "%s was answered with %llu bytes where %llu are due: is an ib-bw "
                             "serving there?",
                             call->name, (unsigned long long)length, (unsigned long long)due);
    if (length) {
        rc = s->ops->read(s, call->reply, length);
        if (rc <= 0)
            return ended(s, rc, err);
    }
    return 0;
}

/* One call; `ns` may be NULL. */
static int make_call(struct bw_stream *s, const struct call *call, uint64_t *ns,
                     struct ibx_error *err)
{
    uint32_t code = BW_EXIT_OK;
    uint64_t start = ibx_now_ns();
    int rc = send_request(s, call, err);
    if (!rc)
        rc = receive_reply(s, call, &code, err);
    if (rc)
        return rc;
    if (ns)
        *ns = ibx_now_ns() - start;
    switch (code) {
    case BW_EXIT_OK:
        return 0;
    case BW_EXIT_DAMAGED:
        return ibx_error_set(err, -EBADMSG, "the payload of a call arrived damaged at the server");
    case BW_EXIT_TOO_LONG:
        return ibx_error_set(err, -EFBIG, "the server does not take so much: see its --max-bytes");
    default:
        return ibx_error_set(err, -EPROTO, "%s failed at the server with code %u", call->name,
                             code);
    }
}

static int prepare_server(struct bw_stream *s, size_t bytes, uint64_t seed, struct ibx_error *err)
{
    uint8_t body[16];
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    ibx_put_u64(&w, bytes);
    ibx_put_u64(&w, seed);
    struct call call = {.name = BW_CALL_PREPARE, .body = body, .length = w.length};
    return make_call(s, &call, NULL, err);
}

/* ------------------------------------------------------------------- to the device */

static int h2d(struct call_path *p, size_t n, uint64_t *ns, struct ibx_error *err)
{
    uint8_t *body = p->front->request.data;
    struct ibx_writer w = ibx_writer_of(body, BW_H2D_HEAD);
    ibx_put_u64(&w, ++p->token);
    ibx_put_u64(&w, n);
    w = ibx_writer_of(body + BW_H2D_HEAD + n, BW_H2D_TAIL);
    ibx_put_u64(&w, n);
    ibx_put_u32(&w, BW_KIND_H2D);
    ibx_bw_payload_mark(body + BW_H2D_HEAD, n, p->token);
    struct call call = {
        .name = BW_CALL_MEMCPY, .body = body, .length = BW_H2D_HEAD + n + BW_H2D_TAIL};
    return make_call(p->stream, &call, ns, err);
}

static int h2d_check(struct call_path *p, size_t n, struct ibx_error *err)
{
    uint8_t reply[8];
    struct call call = {.name = BW_CALL_CHECKSUM, .reply = reply, .reply_length = sizeof(reply)};
    int rc = make_call(p->stream, &call, NULL, err);
    if (rc)
        return rc;
    struct ibx_reader r = ibx_reader_of(reply, sizeof(reply));
    if (ibx_get_u64(&r) == ibx_bw_payload_sum(p->front->request.data + BW_H2D_HEAD, n))
        return 0;
    return ibx_error_set(err, -EBADMSG, "a payload of %zu bytes arrived damaged at the server", n);
}

/* ----------------------------------------------------------------- from the device */

static int d2h(struct call_path *p, size_t n, uint64_t *ns, struct ibx_error *err)
{
    uint8_t body[BW_D2H_REQUEST];
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    ibx_put_u64(&w, 1);
    ibx_put_u8(&w, 0);
    ibx_put_u64(&w, ++p->token);
    ibx_put_u64(&w, n);
    ibx_put_u32(&w, BW_KIND_D2H);
    uint8_t *reply = p->front->reply.data;
    struct call call = {.name = BW_CALL_MEMCPY,
                        .body = body,
                        .length = w.length,
                        .reply = reply,
                        .reply_length = BW_D2H_HEAD + n};
    int rc = make_call(p->stream, &call, ns, err);
    if (rc)
        return rc;
    struct ibx_reader r = ibx_reader_of(reply, BW_D2H_HEAD);
    if (ibx_get_u64(&r) == n && ibx_bw_payload_marked(reply + BW_D2H_HEAD, n, p->token))
        return 0;
    return ibx_error_set(err, -EBADMSG, "a payload of %zu bytes arrived damaged from the server",
                         n);
}

/* The request buffer is free in this direction: what should have come is made there. */
static int d2h_check(struct call_path *p, size_t n, struct ibx_error *err)
{
    uint8_t *expected = p->front->request.data;
    ibx_bw_payload_mark(expected, n, p->token);
    if (!memcmp(expected, p->front->reply.data + BW_D2H_HEAD, n))
        return 0;
    return ibx_error_set(err, -EBADMSG, "a payload of %zu bytes arrived damaged from the server",
                         n);
}

/* ------------------------------------------------------------------------- slices */

static int make_payloads(struct call_path *p, const struct bw_slice *slice, struct ibx_error *err)
{
    struct bw_front *front = p->front;
    bool in = slice->op == BW_H2D;
    if (ibx_bw_buffer_room(&front->request, BW_H2D_HEAD + slice->bytes + BW_H2D_TAIL) ||
        (!in && ibx_bw_buffer_room(&front->reply, BW_D2H_HEAD + slice->bytes)))
        return ibx_error_set(err, -ENOMEM, "no memory for payloads of %zu bytes", slice->bytes);
    ibx_bw_payload_fill(front->request.data + (in ? BW_H2D_HEAD : 0), slice->bytes, slice->seed);
    return prepare_server(p->stream, slice->bytes, slice->seed, err);
}

static int run_calls(struct call_path *p, const struct bw_slice *slice, struct bw_results *results,
                     struct bw_cell *cell, struct ibx_error *err)
{
    bool in = slice->op == BW_H2D;
    int (*call)(struct call_path *, size_t, uint64_t *, struct ibx_error *) = in ? h2d : d2h;
    int (*check)(struct call_path *, size_t, struct ibx_error *) = in ? h2d_check : d2h_check;
    uint64_t ns, end = 0;
    for (unsigned i = 0; i < slice->warmup; i++) {
        int rc = call(p, slice->bytes, &ns, err);
        if (!rc && !i)
            rc = check(p, slice->bytes, err);
        if (rc)
            return rc;
    }
    for (uint64_t done = 0; !atomic_load(&ibx_bw_stop); done++) {
        uint64_t now = ibx_now_ns();
        if (!done)
            end = now + slice->budget_ns;
        if (slice->count ? done == slice->count : done && now >= end)
            break;
        int rc = call(p, slice->bytes, &ns, err);
        if (rc)
            return rc;
        if (!ibx_bw_cell_add(results, cell, ns))
            break;
    }
    return check(p, slice->bytes, err);
}

static int run_slice(struct bw_path *path, const struct bw_slice *slice, struct bw_results *results,
                     struct bw_cell *cell, struct ibx_error *err)
{
    struct call_path *p = (struct call_path *)path;
    int rc = make_payloads(p, slice, err);
    if (rc && rc != -ENOMEM && !p->answered)
        return rc == -EFBIG ? rc : ibx_error_prefix(err, rc, BW_NO_ANSWER);
    if (!rc) {
        p->answered = true;
        rc = run_calls(p, slice, results, cell, err);
    }
    if (!rc && slice->bytes > KEEP_BYTES)
        rc = prepare_server(p->stream, 0, 0, err);
    return rc;
}

static void destroy(struct bw_path *path)
{
    struct call_path *p = (struct call_path *)path;
    p->stream->ops->destroy(p->stream);
    free(p);
}

int ibx_bw_path_of_stream(struct bw_stream *stream, struct bw_front *front, struct bw_path **path,
                          struct ibx_error *err)
{
    struct call_path *p = calloc(1, sizeof(*p));
    if (!p) {
        stream->ops->destroy(stream);
        return ibx_error_set(err, -ENOMEM, "no memory for a path");
    }
    p->path.run = run_slice;
    p->path.destroy = destroy;
    p->stream = stream;
    p->front = front;
    *path = &p->path;
    return 0;
}
