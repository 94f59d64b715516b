/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The path direct: the fabric READs the client's memory directly into GPU memory, or WRITEs GPU
 * memory to the client's. The fabric knows no streams: earlier work of the copy's stream is waited
 * for first. What was written to the GPU is flushed, if the GPU needs that, before the reply tells
 * of it.
 */
#include "frontend-glue/device_copies/copies.h"
#include "frontend-glue/clients/virtual_memory.h"

#include "common/log.h"

#include <errno.h>

#define CUDA_OUT_OF_MEMORY 2  /* CUresult */
#define TRIES              3u /* tries of a copy, each on a new connection */

static int enter(void *context, const struct ibx_span *span, void **registration,
                 struct ibx_error *err)
{
    struct gpu_session *x = context;
    struct ibx_mr *mr;
    int rc = ibx_mr_register(ibx_session_conn(x->s), span, IBX_ACCESS_LOCAL, &mr, err);
    if (!rc)
        *registration = mr;
    return rc;
}

static void leave(void *context, void *registration)
{
    (void)context;
    ibx_mr_deregister(registration);
}

/* Not between broken() and resumed(), while the session has no connection. */
static void wake(void *context)
{
    const struct gpu_session *x = context;
    ibx_wake(ibx_session_conn(x->s));
}

static void tell(struct gpu_session *x, enum ibx_log_level level, const struct ibx_error *err)
{
    if (!err->code)
        return;
    if (!x->logged_direct)
        ibx_log(level, "copies for %s go through chunks, not straight into GPU memory: %s",
                ibx_session_path(x->s)->peer, err->message);
    ibx_copies_note_refusal(x, err->message);
    x->logged_direct = true;
}

bool ibx_copies_direct_likely(struct gpu_session *x)
{
    const struct ibx_caps *caps = ibx_session_caps(x->s);
    struct ibx_error err = {0};
    if (x->not_direct)
        return false;
    if (!caps->dmabuf && !caps->gpu_pointers) {
        x->not_direct = true;
        if (!caps->register_free) /* a fabric with registration, which could do so */
            ibx_error_set(&err, -EOPNOTSUPP,
                          "this fabric's device registers no dma-buf, and no nvidia-peermem is "
                          "loaded");
        tell(x, IBX_LOG_INFO, &err);
        return false;
    }
    if (x->registrations.registrar.enter)
        return true;
    x->not_direct = !ibx_gpu_writes_ordered(x->cuda, &err);
    tell(x, IBX_LOG_WARN, &err);
    x->registrations.registrar = (struct ibx_gpu_registrar){
        .by_dmabuf = caps->dmabuf,
        .by_pointer = caps->gpu_pointers,
        .enter = enter,
        .leave = leave,
        .wake = wake,
        .context = x,
    };
    return !x->not_direct;
}

/* The memory's registration with this connection, or NULL. */
static struct ibx_mr *registration(struct gpu_session *x)
{
    const struct copy *c = &x->copy;
    struct ibx_error err = {0};
    void *mr = NULL;
    if (ibx_copies_direct_likely(x) &&
        ibx_gpu_registration_get(&x->registrations, x->cuda, c->gpu.device, (size_t)c->gpu.width,
                                 &mr, &err))
        tell(x, IBX_LOG_WARN, &err);
    return mr;
}

static bool direct_able(struct gpu_session *x)
{
    struct copy *c = &x->copy;
    bool stage = c->stage == COPY_FROM_CLIENT || c->stage == COPY_TO_CLIENT ||
                 (c->stage == COPY_TO_REPLY && c->frame.out == c->frame.width &&
                  c->frame.out >= ibx_session_caps(x->s)->rendezvous);
    if (!stage || c->gpu.unawaited || c->frame.height != 1 ||
        c->gpu.width < ibx_copies_way(x)->direct_min)
        return false;
    if (!ibx_copies_direct_likely(x) || !ibx_copies_staging(x))
        return false;
    if (c->alone && ibx_staging_has_overdue(x->staging)) /* its stream waits */
        return false;
    if (ibx_host_maps_hold(x, c->gpu.device, 1)) /* it is host memory */
        return false;
    if (ibx_virtual_holds(c->gpu.device)) /* other memory may be mapped there at any time */
        return false;
    c->mr = registration(x);
    c->direct = c->mr;
    return c->direct;
}

/* READs or WRITEs the next n bytes and waits. If the connection breaks, begins these bytes again on
 * the next one. 1: that one does not reach GPU memory, or these bytes break each connection, and
 * none of them count; 0 or as ibx_session_fail(). */
static int move(struct gpu_session *x, bool read, size_t n)
{
    struct copy *c = &x->copy;
    void *device = (void *)(uintptr_t)(c->gpu.device + c->delivered);
    ibx_turn_take(&x->turn, n);
    ibx_session_take_given_up(x->s);
    unsigned tries = 0;
    do {
        if (!c->mr && tries < TRIES)
            c->mr = registration(x);
        c->direct = c->mr;
        if (!c->direct)
            return 1;
        tries++;
        int rc = ibx_session_post(x->s, &(struct ibx_session_op){.read = read,
                                                                 .mr = c->mr,
                                                                 .local = device,
                                                                 .remote = &c->remote,
                                                                 .offset = c->remote_at,
                                                                 .n = n});
        if (!rc)
            rc = ibx_session_finish_posts(x->s);
        if (rc)
            return rc;
    } while (ibx_session_take_given_up(x->s));
    c->delivered += n;
    return 0;
}

/* Makes the whole copy by chunks instead. If that is not possible, GVirtuS can still run the
 * request. */
static int through_chunks(struct gpu_session *x, int (*run)(struct gpu_session *x))
{
    x->copy.path = PATH_STAGED;
    return ibx_gpu_copy_fits(&x->copy.gpu) ? run(x) : IBX_REQUEST_PASS;
}

/* Waits for earlier work of the stream, whose errors show then. */
static int settle(struct gpu_session *x)
{
    return ibx_staging_settle(x->staging, x->copy.gpu.stream);
}

static int direct_to_device(struct gpu_session *x)
{
    int rc = settle(x);
    if (rc)
        return ibx_copies_outcome(x, rc);
    rc = move(x, true, (size_t)x->copy.gpu.width);
    if (rc > 0)
        return through_chunks(x, ibx_path_staged.to_device);
    return rc ? rc : ibx_copies_outcome(x, ibx_gpu_writes_flush(x->cuda));
}

static int direct_to_client(struct gpu_session *x)
{
    int rc = settle(x);
    if (rc)
        return ibx_copies_outcome(x, rc);
    rc = move(x, false, (size_t)x->copy.gpu.width);
    return rc > 0 ? through_chunks(x, ibx_path_staged.to_client) : ibx_copies_outcome(x, rc);
}

static int direct_to_reply(struct gpu_session *x)
{
    return ibx_copies_outcome(x, settle(x));
}

/* The rest of a reply comes from the GPU into chunks: this part, and the next ones. */
static int parts_through_chunks(struct gpu_session *x, size_t n)
{
    const struct copy *c = &x->copy;
    const uint64_t left = c->frame.out - c->delivered;
    const struct ibx_gpu_copy rest = {.device = c->gpu.device + c->delivered,
                                      .device_pitch = left,
                                      .host_pitch = left,
                                      .width = left,
                                      .height = 1,
                                      .stream = c->gpu.stream};
    if (!ibx_copies_take_chunks(x, left, true))
        return ibx_copies_broke_off(x, CUDA_OUT_OF_MEMORY);
    int rc = ibx_staging_from_device(x->staging, &rest, true);
    if (rc)
        return rc > 0 ? ibx_copies_broke_off(x, rc) : rc;
    return ibx_copies_deliver(x, &c->remote, n);
}

static int direct_part(struct gpu_session *x, size_t n)
{
    if (n > x->copy.frame.out - x->copy.delivered)
        return ibx_session_fail(x->s, -ERANGE, "%s wants more than there is",
                                ibx_session_path(x->s)->peer);
    int rc = move(x, false, n);
    return rc > 0 ? parts_through_chunks(x, n) : rc;
}

const struct copy_path ibx_path_direct = {
    .able = direct_able,
    .to_device = direct_to_device,
    .to_client = direct_to_client,
    .to_reply = direct_to_reply,
    .part = direct_part,
};
