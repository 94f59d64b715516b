/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Answers to copies, as GVirtuS's handler would write them. */
#include "frontend-glue/device_copies/copies.h"

#include "common/clock.h"

int ibx_copies_tell_output(struct gpu_session *x, const struct ibx_request *q)
{
    const bool waits =
        q->call != IBX_FRAME_MEMCPY_ASYNC && x->copy.answered == COPY_ANSWERED_AT_END;
    return waits ? ibx_kernel_output_tell(x, false) : 0;
}

int ibx_copies_begin_answer(struct gpu_session *x, const struct ibx_request *q)
{
    int rc = ibx_session_answer_delayed(x->s);
    if (rc)
        return rc;
    ibx_session_consume(x->s, q);
    rc = ibx_copies_tell_output(x, q);
    if (rc)
        return rc;
    return x->copy.placed ? ibx_session_reply_placed(x->s) : 0;
}

int ibx_copies_write_head(struct gpu_session *x, int exit_code, uint64_t began, uint64_t out)
{
    uint8_t head[IBX_REPLY_HEAD_MAX];
    double seconds = (double)(ibx_now_ns() - began) / 1e9;
    size_t n = ibx_reply_head(x->replies.shape, exit_code, seconds, out, head);
    ssize_t rc = ibx_session_write(x->s, head, n);
    return rc < 0 ? (int)rc : 0;
}

int ibx_copies_answer(struct gpu_session *x, uint64_t began, const void *out, size_t n)
{
    int rc = ibx_copies_write_head(x, 0, began, n);
    ssize_t wrote = !rc && n ? ibx_session_write(x->s, out, n) : 0;
    if (rc || wrote < 0)
        return rc ? rc : (int)wrote;
    return ibx_session_sync(x->s);
}

/* The count before the payload goes inline, so that the payload alone can be put where the client
 * wants it. */
int ibx_copies_begin_reply(struct gpu_session *x, uint64_t began, uint64_t n)
{
    uint8_t count[8];
    struct ibx_writer w = ibx_writer_of(count, sizeof(count));
    ibx_put_u64(&w, n);
    int rc = ibx_copies_write_head(x, 0, began, sizeof(count) + n);
    return rc ? rc : ibx_session_gather(x->s, count, sizeof(count));
}

int ibx_copies_reply_early(struct gpu_session *x, uint64_t began, uint64_t n)
{
    int rc = ibx_copies_begin_reply(x, began, n);
    return rc ? rc : ibx_session_reply_early(x->s, n);
}
