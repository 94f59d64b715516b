/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies that the fabric makes between the client's memory and the GPU's: READs
 * straight into it, WRITEs straight out of it. The fabric knows no streams: what
 * came before in the copy's stream is waited for first, and what was written is
 * flushed, where the GPU wants that, before anybody hears that it is there.
 */
#include "frontend-glue/device_copies/copies_internal.h"

#include "common/log.h"

#include <errno.h>
#include <string.h>

static int enter(void *context, const struct ibx_span *span, void **registration,
                 struct ibx_error *err)
{
    struct ibx_session *s = context;
    struct ibx_mr *mr;
    int rc = ibx_mr_register(s->conn, span, IBX_ACCESS_LOCAL, &mr, err);
    if (!rc)
        *registration = mr;
    return rc;
}

static void leave(void *context, void *registration)
{
    (void)context;
    ibx_mr_deregister(registration);
}

static void tell(struct ibx_session *s, enum ibx_log_level level, const struct ibx_error *err)
{
    struct copies *x = &s->copies;
    if (!x->refusal_told && err->code)
        ibx_log(level, "copies for %s go through chunks, not straight into GPU memory: %s",
                s->path.peer, err->message);
    if (err->code)
        ibx_copies_note_refusal(x, err->message);
    x->refusal_told = x->refusal_told || err->code;
}

bool ibx_copies_direct_likely(struct ibx_session *s)
{
    struct copies *x = &s->copies;
    struct ibx_error err = {0};
    if (x->indirect)
        return false;
    if (!s->caps->dmabuf && !s->caps->gpu_pointers) {
        x->indirect = true;
        if (!s->caps->register_free) /* a fabric that could */
            ibx_error_set(&err, -EOPNOTSUPP,
                          "this fabric's device registers no dma-buf, and no nvidia-peermem is "
                          "loaded");
        tell(s, IBX_LOG_INFO, &err);
        return false;
    }
    if (x->spans.registrar.enter)
        return true;
    x->indirect = !ibx_gpu_writes_ordered(x->cuda, &err);
    tell(s, IBX_LOG_WARN, &err);
    x->spans.registrar = (struct ibx_gpu_registrar){
        .by_dmabuf = s->caps->dmabuf,
        .by_pointer = s->caps->gpu_pointers,
        .enter = enter,
        .leave = leave,
        .context = s,
    };
    return !x->indirect;
}

struct ibx_mr *ibx_copies_direct(struct ibx_session *s, uint64_t device, uint64_t n)
{
    struct copies *x = &s->copies;
    struct ibx_error err = {0};
    void *mr = NULL;
    if (!ibx_copies_direct_likely(s) || !ibx_copies_lane(x))
        return NULL;
    if (ibx_gpu_span_get(&x->spans, x->cuda, device, (size_t)n, &mr, &err))
        tell(s, IBX_LOG_WARN, &err);
    return mr;
}

/* READs or WRITEs and waits. 0 or as ibx_session_fail(). */
static int move(struct ibx_session *s, bool read, struct ibx_mr *mr, uint64_t device, uint64_t at,
                size_t n)
{
    int rc = ibx_copies_post(s, read, mr, (void *)(uintptr_t)device, at, n, 0, 0);
    while (!rc && s->ops_pending)
        rc = ibx_session_pump(s);
    if (!rc && s->ops_status)
        rc = ibx_session_fail(s, s->ops_status, "copying with %s failed: %s", s->path.peer,
                              strerror(-s->ops_status));
    return rc;
}

int ibx_copies_direct_to_device(struct ibx_session *s, struct ibx_mr *mr)
{
    struct copies *x = &s->copies;
    struct ibx_gpu_copy copy = ibx_copies_copy_of(&x->frame);
    int rc = ibx_staging_settle(x->staging, copy.stream);
    if (rc)
        return ibx_copies_outcome(x, rc);
    rc = move(s, true, mr, copy.device, x->remote_at, (size_t)copy.width);
    if (rc)
        return rc;
    rc = ibx_gpu_writes_flush(x->cuda);
    x->by_fabric += !rc;
    return ibx_copies_outcome(x, rc);
}

int ibx_copies_direct_deliver(struct ibx_session *s, const struct ibx_remote *remote, size_t n)
{
    struct copies *x = &s->copies;
    if (n > x->frame.out - x->delivered)
        return ibx_session_fail(s, -ERANGE, "%s wants more than there is", s->path.peer);
    x->remote = *remote;
    int rc = move(s, false, x->source, x->frame.src + x->delivered, 0, n);
    if (!rc)
        x->delivered += n;
    return rc;
}
