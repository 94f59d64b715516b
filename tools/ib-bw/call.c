/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The front end's side of the calls, as GVirtuS makes them:
 *
 *   Write(name with its NUL) Write(8: length) Write(body) Sync Sync
 *   Read(4: exit code) Read(8: seconds) Read(8: length) [Read(length)]
 *
 * with the bodies of its cudaMemcpy:
 *
 *   H2D  dst 8, n 8, payload, count 8, kind 4           the reply is empty
 *   D2H  u64 1, one NUL byte, src 8, count 8, kind 4    the reply is n 8, payload
 *
 * Device addresses have no meaning here, so they carry the token that marks the call's payload.
 * Every call checks the marks; after the first and the last call of a slice the whole payload is
 * checked. No check is timed.
 */
#include "tools/ib-bw/ib-bw.h"

#include "common/clock.h"
#include "common/wire.h"
#include "frontend-glue/session/session.h"

#include <errno.h>
#include <string.h>

#define KEEP_BYTES ((size_t)4 << 20) /* longer payloads a server frees after each slice */

static int ended(struct bw_stream *s, ssize_t rc, struct ibx_error *err)
{
    const char *reason = s->session ? ibx_session_reason(s->session) : "the stock connection ended";
    return ibx_error_set(err, rc < 0 ? (int)rc : -ECONNRESET, "the connection ended: %s",
                         *reason ? reason : "the server closed it");
}

static int damaged(size_t n, const char *where, struct ibx_error *err)
{
    return ibx_error_set(err, -EBADMSG, "a payload of %zu bytes arrived damaged %s the server", n,
                         where);
}

static int send_request(struct bw_stream *s, const struct bw_call *call, struct ibx_error *err)
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

/* Receives the reply to a call. *code is an enum bw_exit; unless it is BW_EXIT_OK, the reply is
 * empty.
 */
static int receive_reply(struct bw_stream *s, const struct bw_call *call, uint32_t *code,
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
    uint64_t length = ibx_get_u64(&r), due = *code == BW_EXIT_OK ? call->reply_length : 0;
    if (length != due)
        return ibx_error_set(err, -EPROTO,
                             "the reply to %s has %llu bytes instead of %llu: is an ib-bw serving "
                             "there?",
                             call->name, (unsigned long long)length, (unsigned long long)due);
    rc = length ? s->ops->read(s, call->reply, length) : 1;
    return rc <= 0 ? ended(s, rc, err) : 0;
}

int ibx_bw_call(struct bw_stream *s, const struct bw_call *call, uint64_t *ns,
                struct ibx_error *err)
{
    uint32_t code = BW_EXIT_OK;
    uint64_t start = ibx_now_ns();
    int rc = send_request(s, call, err);
    if (!rc)
        rc = receive_reply(s, call, &code, err);
    *ns = ibx_now_ns() - start;
    if (rc || code == BW_EXIT_OK)
        return rc;
    if (code == BW_EXIT_DAMAGED)
        return ibx_error_set(err, -EBADMSG, "the payload of a call arrived damaged at the server");
    if (code == BW_EXIT_TOO_LONG)
        return ibx_error_set(err, -EFBIG,
                             "the server does not take payloads of this size: see its --max-bytes");
    return ibx_error_set(err, -EPROTO, "%s failed at the server with code %u", call->name, code);
}

static int prepare_server(struct bw_stream *s, size_t bytes, uint64_t seed, struct ibx_error *err)
{
    uint8_t body[16];
    uint64_t ns;
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    ibx_put_u64(&w, bytes);
    ibx_put_u64(&w, seed);
    struct bw_call call = {.name = BW_CALL_PREPARE, .body = body, .length = w.length};
    return ibx_bw_call(s, &call, &ns, err);
}

/* ------------------------------------------------------------------- to the device */

static int h2d(struct bw_bench *bench, struct bw_stream *s, size_t n, uint64_t *ns,
               struct ibx_error *err)
{
    uint8_t *body = bench->request.data;
    struct ibx_writer w = ibx_writer_of(body, BW_H2D_HEAD);
    ibx_put_u64(&w, ++bench->token);
    ibx_put_u64(&w, n);
    w = ibx_writer_of(body + BW_H2D_HEAD + n, BW_H2D_TAIL);
    ibx_put_u64(&w, n);
    ibx_put_u32(&w, BW_KIND_H2D);
    ibx_bw_payload_mark(body + BW_H2D_HEAD, n, bench->token);
    struct bw_call call = {
        .name = BW_CALL_MEMCPY, .body = body, .length = BW_H2D_HEAD + n + BW_H2D_TAIL};
    return ibx_bw_call(s, &call, ns, err);
}

static int h2d_check(struct bw_bench *bench, struct bw_stream *s, size_t n, struct ibx_error *err)
{
    uint8_t reply[8];
    uint64_t ns;
    struct bw_call call = {.name = BW_CALL_CHECKSUM, .reply = reply, .reply_length = sizeof(reply)};
    int rc = ibx_bw_call(s, &call, &ns, err);
    struct ibx_reader r = ibx_reader_of(reply, sizeof(reply));
    if (!rc && ibx_get_u64(&r) != ibx_bw_payload_sum(bench->request.data + BW_H2D_HEAD, n))
        rc = damaged(n, "at", err);
    return rc;
}

/* ----------------------------------------------------------------- from the device */

static int d2h(struct bw_bench *bench, struct bw_stream *s, size_t n, uint64_t *ns,
               struct ibx_error *err)
{
    uint8_t body[BW_D2H_REQUEST], *reply = bench->reply.data;
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    ibx_put_u64(&w, 1);
    ibx_put_u8(&w, 0);
    ibx_put_u64(&w, ++bench->token);
    ibx_put_u64(&w, n);
    ibx_put_u32(&w, BW_KIND_D2H);
    struct bw_call call = {.name = BW_CALL_MEMCPY,
                           .body = body,
                           .length = w.length,
                           .reply = reply,
                           .reply_length = BW_D2H_HEAD + n};
    int rc = ibx_bw_call(s, &call, ns, err);
    struct ibx_reader r = ibx_reader_of(reply, BW_D2H_HEAD);
    if (!rc &&
        (ibx_get_u64(&r) != n || !ibx_bw_payload_marked(reply + BW_D2H_HEAD, n, bench->token)))
        rc = damaged(n, "from", err);
    return rc;
}

/* The request buffer is free in this direction and holds the expected payload. */
static int d2h_check(struct bw_bench *bench, size_t n, struct ibx_error *err)
{
    ibx_bw_payload_mark(bench->request.data, n, bench->token);
    return memcmp(bench->request.data, bench->reply.data + BW_D2H_HEAD, n) ? damaged(n, "from", err)
                                                                           : 0;
}

/* ------------------------------------------------------------------------- slices */

static int make_payloads(struct bw_bench *bench, struct bw_stream *s, const struct bw_slice *slice,
                         struct ibx_error *err)
{
    bool in = slice->op == BW_H2D;
    if (ibx_bw_buffer_room(&bench->request, BW_H2D_HEAD + slice->bytes + BW_H2D_TAIL) ||
        (!in && ibx_bw_buffer_room(&bench->reply, BW_D2H_HEAD + slice->bytes)))
        return ibx_error_set(err, -ENOMEM, "no memory for payloads of %zu bytes", slice->bytes);
    ibx_bw_payload_fill(bench->request.data + (in ? BW_H2D_HEAD : 0), slice->bytes, slice->seed);
    return prepare_server(s, slice->bytes, slice->seed, err);
}

static int call_once(struct bw_bench *bench, struct bw_stream *s, const struct bw_slice *slice,
                     uint64_t *ns, struct ibx_error *err)
{
    return slice->op == BW_H2D ? h2d(bench, s, slice->bytes, ns, err)
                               : d2h(bench, s, slice->bytes, ns, err);
}

static int check(struct bw_bench *bench, struct bw_stream *s, const struct bw_slice *slice,
                 struct ibx_error *err)
{
    return slice->op == BW_H2D ? h2d_check(bench, s, slice->bytes, err)
                               : d2h_check(bench, slice->bytes, err);
}

static int run_calls(struct bw_bench *bench, struct bw_stream *s, const struct bw_slice *slice,
                     struct bw_cell *cell, struct ibx_error *err)
{
    uint64_t ns;
    int rc = 0;
    for (unsigned i = 0; !rc && i < slice->warmup; i++) {
        rc = call_once(bench, s, slice, &ns, err);
        if (!rc && !i)
            rc = check(bench, s, slice, err);
    }
    const uint64_t end = ibx_now_ns() + slice->budget_ns;
    for (uint64_t done = 0; !rc && !atomic_load(&bench->results.stopped); done++) {
        if (slice->count ? done == slice->count : done && ibx_now_ns() >= end)
            break;
        rc = call_once(bench, s, slice, &ns, err);
        if (!rc && !ibx_bw_cell_add(&bench->results, cell, ns))
            break;
    }
    return rc ? rc : check(bench, s, slice, err);
}

int ibx_bw_slice_run(struct bw_bench *bench, struct bw_stream *s, const struct bw_slice *slice,
                     struct bw_cell *cell, struct ibx_error *err)
{
    int rc = make_payloads(bench, s, slice, err);
    if (!rc)
        rc = run_calls(bench, s, slice, cell, err);
    if (!rc && slice->bytes > KEEP_BYTES)
        rc = prepare_server(s, 0, 0, err);
    return rc;
}
