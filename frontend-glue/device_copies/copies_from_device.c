/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/device_copies/copies_internal.h"

#include <errno.h>

static int gpu_failed(struct ibx_session *s, int code)
{
    return ibx_session_fail(s, -EIO, "a copy for %s broke off in the middle of its reply: %s",
                            s->path.peer, ibx_cuda_error_name(s->copies.cuda, code));
}

/* Straight into the client's memory, which is held. */
static int deliver_in_place(struct ibx_session *s, void *to, size_t n)
{
    struct copies *x = &s->copies;
    int rc = ibx_staging_deliver_straight(x->staging, to, n);
    ibx_remote_release(s->conn);
    if (rc)
        return rc > 0 ? gpu_failed(s, rc) : rc;
    x->in_place += n == x->frame.out;
    return 0;
}

int ibx_copies_deliver(struct ibx_session *s, const struct ibx_remote *remote, size_t n)
{
    struct copies *x = &s->copies;
    if (x->source)
        return ibx_copies_direct_deliver(s, remote, n);
    bool plain = x->frame.height == 1 && x->frame.out == x->frame.width;
    void *to = NULL;
    enum copies_reach reach =
        plain ? ibx_copies_hold(s, remote, 0, n, IBX_ACCESS_REMOTE_WRITE, &to) : COPIES_FAR;
    x->straight = reach == COPIES_PINNED;
    if (x->straight)
        return deliver_in_place(s, to, n);
    x->remote = *remote;
    x->remote_at = 0;
    bool by_crew = reach == COPIES_BY_CREW;
    struct ibx_staging_wire wire =
        by_crew ? ibx_copies_wire_threads(s, false) : ibx_copies_wire_write(s);
    int rc = ibx_staging_deliver(x->staging, &wire, n);
    if (by_crew)
        rc = ibx_copies_threads_end(s, rc);
    return rc > 0 ? gpu_failed(s, rc) : rc;
}

/* The reply up to its payload of n bytes. Its count stays inline: so a client can have the bytes,
 * and nothing else, where it wants them. */
static int begin_reply(struct ibx_session *s, uint64_t began, uint64_t n)
{
    uint8_t count[8];
    struct ibx_writer w = ibx_writer_of(count, sizeof(count));
    ibx_put_u64(&w, n);
    int rc = ibx_copies_write_head(s, began, sizeof(count) + n);
    return rc ? rc : ibx_session_gather(s, count, sizeof(count));
}

/* The copy of n bytes stands in chunks, of which the first have come from the GPU. */
static int answer_staged(struct ibx_session *s, uint64_t began, uint64_t n)
{
    struct copies *x = &s->copies;
    int rc = begin_reply(s, began, n);
    if (rc)
        return rc;
    if (n >= s->caps->rendezvous) {
        rc = ibx_session_write_body(s, NULL, (size_t)n);
    } else {
        struct ibx_staging_wire wire = ibx_copies_wire_to_message(s);
        rc = ibx_staging_deliver(x->staging, &wire, n);
        if (rc > 0)
            rc = gpu_failed(s, rc);
    }
    if (!rc)
        rc = ibx_session_sync(s);
    if (!rc)
        ibx_staging_end(x->staging);
    return rc;
}

/* By the fabric: what came before in the stream has ended well when the reply begins. */
static int run_direct(struct ibx_session *s, const struct request *q, uint64_t began,
                      struct ibx_mr *source)
{
    struct copies *x = &s->copies;
    struct ibx_gpu_copy copy = ibx_copies_copy_of(&x->frame);
    int rc = ibx_staging_settle(x->staging, copy.stream);
    if (rc)
        return ibx_copies_outcome(x, rc);
    ibx_copies_consume(s, q);
    x->source = source;
    x->delivered = 0;
    rc = begin_reply(s, began, x->frame.out);
    if (!rc)
        rc = ibx_session_write_body(s, NULL, (size_t)x->frame.out);
    if (!rc)
        rc = ibx_session_sync(s);
    x->source = NULL;
    x->by_fabric += !rc;
    return rc ? rc : DONE;
}

static int run_short_from_device(struct ibx_session *s, const struct request *q, uint64_t began)
{
    struct copies *x = &s->copies;
    uint8_t out[8 + IBX_CHOICE_FROM_MAX];
    size_t n = (size_t)x->frame.width;
    struct ibx_writer w = ibx_writer_of(out, 8);
    ibx_put_u64(&w, n);
    int rc = ibx_copies_outcome(x, x->cuda->memcpy_from_device(out + 8, x->frame.src, n));
    if (rc != DONE)
        return rc;
    x->inlined++;
    ibx_copies_consume(s, q);
    rc = ibx_copies_answer(s, began, out, 8 + n);
    return rc ? rc : DONE;
}

/* -------------------------------------------------- where the client said it wants it */

static int answer_aimed(struct ibx_session *s, uint64_t began, uint64_t n)
{
    uint8_t segment[9];
    struct ibx_writer w = ibx_writer_of(segment, sizeof(segment));
    ibx_put_u8(&w, SEGMENT_AIMED);
    ibx_put_u64(&w, n);
    int rc = s->copies.placed ? ibx_copies_tell_placed(s) : 0;
    if (!rc)
        rc = begin_reply(s, began, n);
    if (!rc)
        rc = ibx_session_add_segment(s, segment, sizeof(segment));
    return rc ? rc : ibx_session_sync(s);
}

/* By the GPU itself; the memory is held. */
static int aimed_in_place(struct ibx_session *s, void *to, const struct ibx_gpu_copy *copy)
{
    struct copies *x = &s->copies;
    int rc = x->early ? x->cuda->memcpy_from_device_async(to, copy->device, (size_t)copy->width,
                                                          copy->stream)
                      : ibx_staging_straight_from_device(x->staging, to, copy);
    if (x->early && !rc)
        ibx_client_pin_fence_record(&x->pins, x->cuda);
    ibx_remote_release(s->conn);
    x->in_place += !rc;
    x->placed = !rc;
    return ibx_copies_outcome(x, rc);
}

static int aimed_by_fabric(struct ibx_session *s, struct ibx_mr *source,
                           const struct ibx_gpu_copy *copy)
{
    struct copies *x = &s->copies;
    int rc = ibx_staging_settle(x->staging, copy->stream);
    if (rc)
        return ibx_copies_outcome(x, rc);
    x->source = source;
    x->delivered = 0;
    rc = ibx_copies_direct_deliver(s, &s->aim.remote, (size_t)copy->width);
    x->source = NULL;
    x->by_fabric += !rc;
    return ibx_copies_outcome(x, rc);
}

/* By way of chunks; with a crew the memory is held. */
static int aimed_staged(struct ibx_session *s, const struct ibx_gpu_copy *copy, bool by_crew)
{
    struct copies *x = &s->copies;
    if (!ibx_copies_stage(s, copy->width, !by_crew)) {
        if (by_crew)
            ibx_remote_release(s->conn);
        return PASS;
    }
    x->arrived = 0;
    x->remote = s->aim.remote;
    x->remote_at = 0;
    int rc = ibx_staging_from_device(x->staging, copy, true);
    struct ibx_staging_wire wire =
        by_crew ? ibx_copies_wire_threads(s, false) : ibx_copies_wire_write(s);
    if (!rc)
        rc = ibx_staging_deliver(x->staging, &wire, copy->width);
    if (by_crew)
        rc = ibx_copies_threads_end(s, rc);
    return ibx_copies_stage_end(x, rc);
}

/* All of it is there before the reply begins: so whatever fails on the GPU is GVirtuS's to run. */
static int run_aimed(struct ibx_session *s, const struct request *q, uint64_t began)
{
    struct copies *x = &s->copies;
    struct ibx_gpu_copy copy = ibx_copies_copy_of(&x->frame);
    void *to = NULL;
    if (!ibx_copies_lane(x))
        return PASS;
    enum copies_reach reach =
        ibx_copies_hold(s, &s->aim.remote, 0, copy.width, IBX_ACCESS_REMOTE_WRITE, &to);
    bool direct = reach == COPIES_FAR && copy.width >= ibx_copies_way(x, false)->direct_min;
    struct ibx_mr *source = direct ? ibx_copies_direct(s, x->frame.src, copy.width) : NULL;
    int rc = reach == COPIES_PINNED ? aimed_in_place(s, to, &copy)
             : source               ? aimed_by_fabric(s, source, &copy)
                                    : aimed_staged(s, &copy, reach == COPIES_BY_CREW);
    if (rc != DONE)
        return rc;
    ibx_copies_consume(s, q);
    rc = answer_aimed(s, began, copy.width);
    return rc ? rc : DONE;
}

int ibx_copies_run_from_device(struct ibx_session *s, const struct request *q, uint64_t began)
{
    struct copies *x = &s->copies;
    const struct ibx_frame *f = &x->frame;
    bool one_row = f->height == 1 && f->out == f->width, plain = one_row && f->stream <= 1;
    if (one_row && s->aim.remote.length == f->out)
        return run_aimed(s, q, began);
    if (plain && f->width <= ibx_copies_way(x, false)->inline_max)
        return run_short_from_device(s, q, began);
    struct ibx_gpu_copy copy = ibx_copies_copy_of(f);
    bool direct =
        one_row && f->out >= s->caps->rendezvous && f->out >= ibx_copies_way(x, false)->direct_min;
    struct ibx_mr *source = direct ? ibx_copies_direct(s, f->src, f->out) : NULL;
    if (source)
        return run_direct(s, q, began, source);
    if (!ibx_gpu_copy_fits(&copy) || !ibx_copies_stage(s, f->out, f->out >= s->caps->rendezvous))
        return PASS;
    x->arrived = 0;
    int rc = ibx_staging_from_device(x->staging, &copy, !x->straight);
    if (rc)
        return ibx_copies_stage_end(x, rc);
    ibx_copies_consume(s, q);
    rc = answer_staged(s, began, f->out);
    return rc ? rc : DONE;
}
