/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The path in_place: the GPU reads or writes memory of the client's that this process has mapped
 * and pinned too. */
#include "frontend-glue/device_copies/copies.h"

#include "common/log.h"

#define NEXT_US 200u /* another copy often follows one that is not waited for */

/* Only here can a copy be answered while it is under way. */
static bool in_place_able(struct copies *x)
{
    struct copy *c = &x->copy;
    struct ibx_error err = {0};
    if (!c->held || !c->reach.id)
        return false;
    bool leave = c->reach.lasting && !c->settle && c->frame.call == IBX_FRAME_MEMCPY_ASYNC;
    if (!leave && c->bytes < ibx_copies_way(x)->in_place_min)
        return false;
    bool pinned = ibx_client_pin(&x->pins, x->cuda, c->reach.base, c->reach.length, c->reach.id,
                                 c->reach.writable, &err);
    if (err.code && !x->told_pins)
        ibx_log(IBX_LOG_WARN, "copies for %s go through chunks: %s", ibx_session_path(x->s)->peer,
                err.message);
    x->told_pins = x->told_pins || err.code;
    if (err.code)
        ibx_copies_note_refusal(x, err.message);
    c->early =
        pinned && leave && ibx_client_pin_fence(&x->pins, x->cuda, c->reach.base, c->gpu.stream);
    return pinned;
}

static int finish(struct copies *x, int rc)
{
    if (x->copy.early && !rc)
        ibx_client_pin_fence_record(&x->pins, x->cuda);
    ibx_remote_release(ibx_session_conn(x->s));
    x->copy.placed = !rc;
    return ibx_copies_outcome(x, rc);
}

static int in_place_to_device(struct copies *x)
{
    const struct ibx_gpu_copy *gpu = &x->copy.gpu;
    void *from = x->copy.reach.address;
    int rc = x->copy.early ? x->cuda->memcpy_to_device_async(gpu->device, from, (size_t)gpu->width,
                                                             gpu->stream)
                           : ibx_staging_straight(x->staging, from, gpu, true);
    rc = finish(x, rc);
    if (x->copy.early)
        ibx_expect(ibx_session_conn(x->s), NEXT_US);
    return rc;
}

static int in_place_to_client(struct copies *x)
{
    const struct ibx_gpu_copy *gpu = &x->copy.gpu;
    void *to = x->copy.reach.address;
    return finish(x, x->copy.early ? x->cuda->memcpy_from_device_async(
                                         to, gpu->device, (size_t)gpu->width, gpu->stream)
                                   : ibx_staging_straight(x->staging, to, gpu, false));
}

static int in_place_part(struct copies *x, size_t n)
{
    int rc = ibx_staging_deliver_straight(x->staging, x->copy.reach.address, n);
    ibx_remote_release(ibx_session_conn(x->s));
    return rc > 0 ? ibx_copies_broke_off(x, rc) : rc;
}

const struct copy_path ibx_path_in_place = {
    .holds = true,
    .able = in_place_able,
    .to_device = in_place_to_device,
    .to_client = in_place_to_client,
    .part = in_place_part,
};
