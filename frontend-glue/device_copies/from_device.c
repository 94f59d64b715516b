/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/device_copies/copies.h"

/* Answers with a payload that is still in GPU memory, or partly in chunks. */
static int answer_delivered(struct gpu_session *x, uint64_t began)
{
    size_t n = (size_t)x->copy.bytes;
    int rc = ibx_copies_begin_reply(x, began, n);
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

/* In a stack frame of its own, since other paths need the stack, which may be small. */
__attribute__((noinline)) static int run_inline(struct gpu_session *x, const struct ibx_request *q,
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
    rc = ibx_copies_tell_output(x, q);
    if (!rc)
        rc = ibx_copies_answer(x, began, out, sizeof(uint64_t) + (size_t)x->copy.bytes);
    return rc ? rc : IBX_REQUEST_DONE;
}

/* A delayed reply is sent first. Not later, when chunks hold bytes of this copy: sending it forgets
 * contexts that another client has reset. */
static int run_by_reply(struct gpu_session *x, const struct ibx_request *q, uint64_t began)
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
    /* The first bytes have come, so that kernels before the copy have ended. */
    const bool whole = x->copy.bytes < ibx_session_caps(x->s)->rendezvous;
    rc = path == &ibx_path_staged && whole ? ibx_copies_tell_output(x, q) : 0;
    if (!rc)
        rc = answer_delivered(x, began);
    return rc ? rc : IBX_REQUEST_DONE;
}

/* WRITEs to the memory that the client has named with its request (EARLY_CTS). The whole payload is
 * there before the reply begins, so GVirtuS can still run a copy that fails on the GPU. */
static int run_to_client(struct gpu_session *x, const struct ibx_request *q, uint64_t began)
{
    if (!ibx_copies_staging(x))
        return IBX_REQUEST_PASS;
    x->copy.remote = q->reply_to;
    ibx_copies_begin(x, COPY_TO_CLIENT, x->copy.frame.width);
    const struct copy_path *path = ibx_copies_path(x);
    int rc = path ? path->to_client(x) : IBX_REQUEST_PASS;
    if (rc != IBX_REQUEST_DONE)
        return rc;
    if (x->copy.answered == COPY_ANSWERED_LATE)
        return ibx_copies_delay(x, q, began);
    rc = ibx_copies_begin_answer(x, q);
    if (!rc)
        rc = ibx_copies_reply_early(x, began, x->copy.bytes);
    if (!rc)
        rc = ibx_session_sync(x->s);
    return rc ? rc : IBX_REQUEST_DONE;
}

int ibx_copies_from_device(struct gpu_session *x, const struct ibx_request *q, uint64_t began)
{
    const struct ibx_frame *f = &x->copy.frame;
    x->arrived = 0;
    bool one_row = f->height == 1 && f->out == f->width;
    return one_row && q->reply_to.length == f->out ? run_to_client(x, q, began)
                                                   : run_by_reply(x, q, began);
}
