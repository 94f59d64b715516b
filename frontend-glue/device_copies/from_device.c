/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/device_copies/copies.h"

#include "common/clock.h"

int ibx_copies_write_head(struct copies *x, int exit_code, uint64_t began, uint64_t out)
{
    uint8_t head[IBX_REPLY_HEAD_MAX];
    double seconds = (double)(ibx_now_ns() - began) / 1e9;
    size_t n = ibx_reply_head(x->replies.shape, exit_code, seconds, out, head);
    ssize_t rc = ibx_session_write(x->s, head, n);
    return rc < 0 ? (int)rc : 0;
}

int ibx_copies_answer(struct copies *x, uint64_t began, const void *out, size_t n)
{
    int rc = ibx_copies_write_head(x, 0, began, n);
    ssize_t wrote = !rc && n ? ibx_session_write(x->s, out, n) : 0;
    if (rc || wrote < 0)
        return rc ? rc : (int)wrote;
    return ibx_session_sync(x->s);
}

int ibx_copies_deliver(void *context, const struct ibx_remote *remote, size_t n)
{
    struct copies *x = context;
    x->copy.remote = *remote;
    x->copy.remote_at = 0;
    if (x->copy.direct)
        return ibx_path_direct.part(x, n);
    ibx_copies_begin(x, COPY_PART, n);
    const struct copy_path *path = ibx_copies_path(x);
    x->last_in_place = path == &ibx_path_in_place;
    return path->part(x, n); /* there is one: staged is able to move any part */
}

/* The reply up to its payload of n bytes. The count is inline, so that a client can have the bytes
 * alone where it wants them. */
static int begin_reply(struct copies *x, uint64_t began, uint64_t n)
{
    uint8_t count[8];
    struct ibx_writer w = ibx_writer_of(count, sizeof(count));
    ibx_put_u64(&w, n);
    int rc = ibx_copies_write_head(x, 0, began, sizeof(count) + n);
    return rc ? rc : ibx_session_gather(x->s, count, sizeof(count));
}

int ibx_copies_reply_early(struct copies *x, uint64_t began, uint64_t n)
{
    int rc = begin_reply(x, began, n);
    return rc ? rc : ibx_session_reply_early(x->s, n);
}

/* The payload is still the GPU's, or in chunks as far as it has come. */
static int answer_delivered(struct copies *x, uint64_t began)
{
    size_t n = (size_t)x->copy.bytes;
    int rc = begin_reply(x, began, n);
    if (rc)
        return rc;
    rc = n >= ibx_session_caps(x->s)->rendezvous ? ibx_session_write_payload(x->s, NULL, n)
                                                 : ibx_copies_write_staged(x, n);
    if (!rc)
        rc = ibx_session_sync(x->s);
    if (!rc && !x->copy.direct)
        ibx_staging_end(x->staging);
    return rc;
}

/* In a stack frame of its own: other paths need the stack, which may be small. */
__attribute__((noinline)) static int run_inline(struct copies *x, const struct ibx_request *q,
                                                uint64_t began)
{
    uint8_t out[8 + IBX_CHOICE_FROM_MAX];
    struct ibx_writer w = ibx_writer_of(out, 8);
    ibx_put_u64(&w, x->copy.bytes);
    x->copy.out = out + 8;
    int rc = ibx_path_inline.to_reply(x);
    x->copy.out = NULL;
    if (rc != IBX_REQUEST_DONE)
        return rc;
    ibx_session_consume(x->s, q);
    rc = ibx_copies_answer(x, began, out, sizeof(uint64_t) + (size_t)x->copy.bytes);
    return rc ? rc : IBX_REQUEST_DONE;
}

/* What was delayed is answered first, not while chunks hold bytes of this one: that forgets what
 * another client has reset. */
static int run_by_reply(struct copies *x, const struct ibx_request *q, uint64_t began)
{
    int rc = ibx_session_answer_delayed(x->s);
    if (rc)
        return rc;
    ibx_copies_begin(x, COPY_TO_REPLY, x->copy.frame.out);
    const struct copy_path *path = ibx_copies_path(x);
    if (path == &ibx_path_inline)
        return run_inline(x, q, began);
    rc = path ? path->to_reply(x) : IBX_REQUEST_PASS;
    if (rc != IBX_REQUEST_DONE)
        return rc;
    ibx_session_consume(x->s, q);
    rc = answer_delivered(x, began);
    return rc ? rc : IBX_REQUEST_DONE;
}

/* WRITEs to the client's EARLY_CTS. The whole payload is there before the reply begins, so GVirtuS
 * can still run a copy that fails on the GPU. */
static int run_to_client(struct copies *x, const struct ibx_request *q, uint64_t began)
{
    if (!ibx_copies_staging(x))
        return IBX_REQUEST_PASS;
    x->copy.remote = q->reply_to;
    ibx_copies_begin(x, COPY_TO_CLIENT, x->copy.frame.width);
    const struct copy_path *path = ibx_copies_path(x);
    int rc = path ? path->to_client(x) : IBX_REQUEST_PASS;
    if (rc != IBX_REQUEST_DONE)
        return rc;
    if (x->copy.late)
        return ibx_copies_delay(x, q, began);
    rc = ibx_session_answer_delayed(x->s);
    if (rc)
        return rc;
    ibx_session_consume(x->s, q);
    rc = x->copy.placed ? ibx_session_reply_placed(x->s) : 0;
    if (!rc)
        rc = ibx_copies_reply_early(x, began, x->copy.bytes);
    if (!rc)
        rc = ibx_session_sync(x->s);
    return rc ? rc : IBX_REQUEST_DONE;
}

int ibx_copies_from_device(struct copies *x, const struct ibx_request *q, uint64_t began)
{
    const struct ibx_frame *f = &x->copy.frame;
    x->arrived = 0;
    bool one_row = f->height == 1 && f->out == f->width;
    return one_row && q->reply_to.length == f->out ? run_to_client(x, q, began)
                                                   : run_by_reply(x, q, began);
}
