/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/device_copies/copies.h"

#include <string.h>

bool ibx_copies_parse(const struct ibx_request *q, struct ibx_frame *frame)
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
    const size_t window = q->length < IBX_FRAME_WINDOW ? (size_t)q->length : IBX_FRAME_WINDOW;
    memcpy(last + window - q->tail_length, q->tail, q->tail_length);
    return ibx_frame_parse(q->call, &body, frame) && frame->kind == IBX_FRAME_H2D &&
           frame->payload_at == q->head_length && frame->payload == q->remote.length;
}

/* ------------------------------------------------------------------------- windows */

/* The ends of a long body identify the copy. They are fetched together with its first chunks. */
static int windows_fetch(struct gpu_session *x)
{
    struct ibx_error err = {0};
    const struct ibx_remote *remote = &x->copy.remote;
    int rc = x->windows ? 0
                        : ibx_session_allocate(x->s, (size_t)2 * IBX_FRAME_WINDOW, IBX_ACCESS_LOCAL,
                                               &x->windows, &err);
    if (rc)
        return ibx_session_fail(x->s, rc, "no memory for a request's ends: %s", err.message);
    uint8_t *at = ibx_mr_address(x->windows);
    x->arrived &= ~COPIES_WINDOWS;
    struct ibx_session_op op = {.read = true,
                                .mr = x->windows,
                                .local = at,
                                .remote = remote,
                                .n = IBX_FRAME_WINDOW,
                                .cookie = IBX_STAGING_DEPTH + 1,
                                .flags = IBX_URGENT};
    rc = ibx_session_post(x->s, &op);
    op.local = at + IBX_FRAME_WINDOW;
    op.offset = remote->length - IBX_FRAME_WINDOW;
    op.cookie = IBX_STAGING_DEPTH + 2;
    return rc ? rc : ibx_session_post(x->s, &op);
}

static bool windows_here(const struct gpu_session *x)
{
    return (x->arrived & COPIES_WINDOWS) == COPIES_WINDOWS;
}

static int windows_wait(struct gpu_session *x)
{
    int rc = ibx_session_check_posts(x->s);
    while (!rc && !windows_here(x)) {
        rc = ibx_session_pump(x->s);
        if (!rc)
            rc = ibx_session_check_posts(x->s);
    }
    return rc;
}

/* Whether the windows, which are both here, are those of a valid copy to the device. */
static bool windows_parse(struct gpu_session *x, enum ibx_frame_call call)
{
    const uint8_t *at = ibx_mr_address(x->windows);
    struct ibx_frame_body body = {at, at + IBX_FRAME_WINDOW, x->copy.remote.length};
    return ibx_frame_parse(call, &body, &x->copy.frame) && x->copy.frame.kind == IBX_FRAME_H2D &&
           ibx_copies_sound(x, &x->copy.frame);
}

/* ------------------------------------------------------------- bodies to be READ whole */

/* ibx_staging_wire.open; the call is in copy.frame.call. */
static int open_body(void *context, struct ibx_gpu_copy *gpu)
{
    struct gpu_session *x = context;
    if (!windows_here(x))
        return 1;
    if (!windows_parse(x, x->copy.frame.call))
        return IBX_STAGING_REFUSED;
    ibx_copies_begin(x, COPY_FROM_CLIENT, x->copy.frame.payload);
    *gpu = x->copy.gpu;
    return 0;
}

/* Runs a plain copy. The payload of all such bodies begins and ends at the same places: so its
 * first chunks are fetched together with the windows. */
static int run_plain(struct gpu_session *x, const struct ibx_request *q)
{
    uint64_t bytes = q->length - ibx_frame_plain_bytes(q->call);
    struct ibx_gpu_copy size = {.width = bytes, .height = 1};
    struct ibx_staging_wire wire = ibx_copies_wire(x, COPY_WIRE_FABRIC);
    wire.open = open_body;
    x->copy.remote_at = IBX_FRAME_PAYLOAD_AT;
    x->copy.frame.call = q->call;
    x->copy.path = PATH_STAGED;
    if (!ibx_copies_take_chunks(x, bytes, true))
        return IBX_REQUEST_PASS;
    int rc = windows_fetch(x);
    if (rc)
        return rc;
    rc = ibx_staging_to_device(x->staging, &wire, &size);
    int windows = rc >= 0 ? windows_wait(x) : 0;
    return windows ? windows : ibx_copies_staged_outcome(x, rc);
}

/* Whether the copy threads will copy a body of that length, as far as is known before the hold. */
static bool threads_likely(struct gpu_session *x, uint64_t length)
{
    return length >= IBX_FRAME_WINDOW &&
           length - IBX_FRAME_WINDOW >= ibx_copies_way(x)->copy_threads_min &&
           ibx_session_caps(x->s)->remote_copy && ibx_session_threads(x->s);
}

/* ------------------------------------------------------------------------- the whole */

/* Runs a copy whose frame is known and valid. */
static int run_known(struct gpu_session *x, enum copy_stage stage)
{
    if (stage == COPY_FROM_CLIENT && !ibx_copies_staging(x))
        return IBX_REQUEST_PASS;
    ibx_copies_begin(x, stage, x->copy.frame.payload);
    const struct copy_path *path = ibx_copies_path(x);
    return path ? path->to_device(x) : IBX_REQUEST_PASS;
}

int ibx_copies_to_device(struct gpu_session *x, const struct ibx_request *q)
{
    x->arrived = 0;
    if (q->body) {
        x->copy.payload = q->body + x->copy.frame.payload_at;
        return run_known(x, COPY_FROM_MESSAGE);
    }
    x->copy.remote = q->remote;
    x->copy.stage = COPY_FROM_CLIENT;
    if (q->tail_length)
        return ibx_copies_parse(q, &x->copy.frame) && ibx_copies_sound(x, &x->copy.frame)
                   ? run_known(x, COPY_FROM_CLIENT)
                   : IBX_REQUEST_PASS;
    bool direct = q->length >= ibx_copies_way(x)->direct_min && ibx_copies_direct_likely(x);
    if (ibx_frame_plain_bytes(q->call) && !threads_likely(x, q->length) && !direct)
        return run_plain(x, q);
    int rc = windows_fetch(x);
    if (!rc)
        rc = windows_wait(x);
    if (rc)
        return rc;
    if (!windows_parse(x, q->call))
        return IBX_REQUEST_PASS;
    x->copy.remote_at = x->copy.frame.payload_at;
    return run_known(x, COPY_FROM_CLIENT);
}

/* ------------------------------------------------------------- copies that GVirtuS runs */

/* Whether the memory is such that the GPU may be writing to it. */
static bool is_lasting(struct gpu_session *x, struct ibx_remote remote)
{
    struct ibx_conn *conn = ibx_session_conn(x->s);
    struct ibx_reach reach = {0};
    if (!ibx_session_resolve(x->s, &remote) || ibx_session_posts_pending(x->s) ||
        ibx_remote_hold(conn, &remote, IBX_ACCESS_REMOTE_READ, &reach))
        return false;
    ibx_remote_release(conn);
    return reach.lasting;
}

/* Whether the stream may be waited for. */
static bool is_open(struct gpu_session *x, uint64_t stream)
{
    int capturing = 0;
    if (!ibx_named_stream(x, stream))
        return false;
    if (stream <= 1) {
        ibx_captures_spare(x, stream);
        return true;
    }
    return !ibx_captures_any() ||
           (!x->cuda->stream_is_capturing((void *)(uintptr_t)stream, &capturing) && !capturing);
}

/* By the runtime, which makes the thread's context if there is none yet. */
void ibx_copies_pass_in_order(struct gpu_session *x, const struct ibx_request *q)
{
    int (*wait)(void *stream) = NULL;
    struct ibx_frame frame;
    if (q->call != IBX_FRAME_MEMCPY_ASYNC || !q->tail_length || x->host_queue ||
        !ibx_copies_parse(q, &frame) || !ibx_back_end_have_cuda(x) || !is_lasting(x, q->remote))
        return;
    const int mode = ibx_cuda_capture_relax(x->cuda);
    *(void **)&wait = ibx_back_end_runtime("cudaStreamSynchronize");
    if (wait && is_open(x, frame.stream) && wait((void *)(uintptr_t)frame.stream))
        ibx_back_end_forget_error();
    ibx_cuda_capture_restore(x->cuda, mode);
}
