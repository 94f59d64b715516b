/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/device_copies/copies_internal.h"

#include <string.h>

#define NEXT_US 200u /* a copy that is not waited for mostly has others behind it */

int ibx_copies_run_from_message(struct ibx_session *s)
{
    struct copies *x = &s->copies;
    const struct ibx_frame *f = &x->frame;
    bool plain = f->height == 1 && f->stream <= 1;
    if (plain && f->width <= ibx_copies_way(x, true)->inline_max) {
        int rc = x->cuda->memcpy_to_device(f->dst, x->payload, (size_t)f->width);
        x->inlined += !rc;
        return ibx_copies_outcome(x, rc);
    }
    struct ibx_gpu_copy copy = ibx_copies_copy_of(f);
    struct ibx_staging_wire wire = ibx_copies_wire_from_message(s);
    if (!ibx_gpu_copy_fits(&copy) || !ibx_copies_stage(s, f->payload, false))
        return PASS;
    return ibx_copies_stage_end(x, ibx_staging_to_device(x->staging, &wire, &copy));
}

/* ------------------------------------------------------------------------- windows */

/* The ends of a long body say what it is; they are fetched while its first chunks are. */
static int windows_fetch(struct ibx_session *s, uint64_t length)
{
    struct copies *x = &s->copies;
    struct ibx_error err = {0};
    int rc = x->windows ? 0
                        : ibx_mr_allocate(s->conn, (size_t)2 * IBX_FRAME_WINDOW, IBX_ACCESS_LOCAL,
                                          &x->windows, &err);
    if (rc)
        return ibx_session_fail(s, rc, "no memory for a request's ends: %s", err.message);
    uint8_t *at = ibx_mr_address(x->windows);
    x->arrived &= ~COPIES_WINDOWS;
    rc = ibx_copies_post(s, true, x->windows, at, 0, IBX_FRAME_WINDOW, IBX_STAGING_DEPTH + 1,
                         IBX_URGENT);
    return rc ? rc
              : ibx_copies_post(s, true, x->windows, at + IBX_FRAME_WINDOW,
                                length - IBX_FRAME_WINDOW, IBX_FRAME_WINDOW, IBX_STAGING_DEPTH + 2,
                                IBX_URGENT);
}

static int windows_wait(struct ibx_session *s)
{
    while ((s->copies.arrived & COPIES_WINDOWS) != COPIES_WINDOWS && !s->ops_status) {
        int rc = ibx_session_pump(s);
        if (rc)
            return rc;
    }
    return s->ops_status ? ibx_session_fail(s, s->ops_status, "copying with %s failed: %s",
                                            s->path.peer, strerror(-s->ops_status))
                         : 0;
}

/* Both windows are here: whether they are those of a good copy to the device. */
static bool windows_parse(struct copies *x, enum ibx_frame_call call, uint64_t length)
{
    const uint8_t *at = ibx_mr_address(x->windows);
    struct ibx_frame_body body = {at, at + IBX_FRAME_WINDOW, length};
    return ibx_frame_parse(call, &body, &x->frame) && x->frame.kind == IBX_FRAME_H2D &&
           ibx_copies_sound(x, &x->frame);
}

/* -------------------------------------------------------------------- exposed bodies */

/* ibx_staging_wire.open; the call is in x->frame.call, the body's length in x->remote.length. */
static int exposed_open(void *context, struct ibx_gpu_copy *copy)
{
    struct ibx_session *s = context;
    struct copies *x = &s->copies;
    if ((x->arrived & COPIES_WINDOWS) != COPIES_WINDOWS)
        return 1;
    if (!windows_parse(x, x->frame.call, x->remote.length))
        return IBX_STAGING_REFUSED;
    *copy = ibx_copies_copy_of(&x->frame);
    return 0;
}

/* A plain copy's payload begins and ends where every such body's does: so its first chunks come
 * together with the windows. */
static int run_plain(struct ibx_session *s, const struct request *q)
{
    struct copies *x = &s->copies;
    size_t around = ibx_frame_plain_bytes(q->call);
    struct ibx_gpu_copy size = {.width = q->length - around, .height = 1};
    struct ibx_staging_wire wire = ibx_copies_wire_read(s);
    wire.open = exposed_open;
    x->remote_at = IBX_FRAME_PAYLOAD_AT;
    if (!ibx_copies_stage(s, size.width, true))
        return PASS;
    x->frame.call = q->call;
    int rc = windows_fetch(s, q->length);
    if (rc)
        return rc;
    rc = ibx_staging_to_device(x->staging, &wire, &size);
    int windows = rc >= 0 ? windows_wait(s) : 0;
    return windows ? windows : ibx_copies_stage_end(x, rc);
}

/* Straight out of the client's memory, which is held. */
static int run_in_place(struct ibx_session *s, const void *from, const struct ibx_gpu_copy *copy)
{
    struct copies *x = &s->copies;
    int rc = x->early ? x->cuda->memcpy_to_device_async(x->frame.dst, from, (size_t)copy->width,
                                                        copy->stream)
                      : ibx_staging_straight_to_device(x->staging, from, copy);
    if (x->early && !rc)
        ibx_client_pin_fence_record(&x->pins, x->cuda);
    ibx_remote_release(s->conn);
    x->in_place += !rc;
    x->placed = !rc;
    if (x->early)
        ibx_expect(s->conn, NEXT_US);
    return ibx_copies_outcome(x, rc);
}

/* The frame is known, and good. */
static int run_known(struct ibx_session *s)
{
    struct copies *x = &s->copies;
    struct ibx_gpu_copy copy = ibx_copies_copy_of(&x->frame);
    void *from = NULL;
    if (!ibx_copies_lane(x))
        return PASS;
    enum copies_reach reach = ibx_copies_hold(s, &x->remote, x->remote_at, x->frame.payload,
                                              IBX_ACCESS_REMOTE_READ, &from);
    if (reach == COPIES_PINNED)
        return run_in_place(s, from, &copy);
    bool by_crew = reach == COPIES_BY_CREW;
    bool direct =
        !by_crew && x->frame.height == 1 && x->frame.width >= ibx_copies_way(x, true)->direct_min;
    struct ibx_mr *target = direct ? ibx_copies_direct(s, x->frame.dst, x->frame.width) : NULL;
    if (target)
        return ibx_copies_direct_to_device(s, target);
    if (!ibx_gpu_copy_fits(&copy) || !ibx_copies_stage(s, x->frame.payload, !by_crew)) {
        if (by_crew)
            ibx_remote_release(s->conn);
        return PASS;
    }
    struct ibx_staging_wire wire =
        by_crew ? ibx_copies_wire_threads(s, true) : ibx_copies_wire_read(s);
    int rc = ibx_staging_to_device(x->staging, &wire, &copy);
    if (by_crew)
        rc = ibx_copies_threads_end(s, rc);
    return ibx_copies_stage_end(x, rc);
}

int ibx_copies_run_exposed(struct ibx_session *s, const struct request *q)
{
    struct copies *x = &s->copies;
    x->remote = q->remote;
    x->remote_at = 0;
    x->arrived = 0;
    if (q->tail_length)
        return ibx_copies_parse(q, &x->frame) && ibx_copies_sound(x, &x->frame) ? run_known(s)
                                                                                : PASS;
    bool direct = q->length >= ibx_copies_way(x, true)->direct_min && ibx_copies_direct_likely(s);
    if (ibx_frame_plain_bytes(q->call) && !ibx_copies_threads_likely(s, q->length) && !direct)
        return run_plain(s, q);
    int rc = windows_fetch(s, q->length);
    if (!rc)
        rc = windows_wait(s);
    if (rc)
        return rc;
    if (!windows_parse(x, q->call, q->length))
        return PASS;
    x->remote_at = x->frame.payload_at;
    return run_known(s);
}
