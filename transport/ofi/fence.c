/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Deregistration where software moves the data.
 *
 * A provider that emulates RMA, or advances it only while it is polled, may be in the middle of an
 * access of the peer when its region is closed, and goes on with it: bytes would arrive in memory
 * that has been freed or reused by then. So the side that deregisters closes the region, sends a
 * FENCE, and waits until the peer answers that everything it had in flight is over. If the peer
 * does not answer the connection is lost, and nothing touches memory once the endpoints are closed.
 */
#include "transport/ofi/ofi.h"

#include "common/clock.h"

#include <errno.h>

void ibx_ofi_on_fence(struct ofi_endpoint *e, uint32_t number)
{
    if (e->old_chunks || e->answer_due) {
        ibx_ofi_fail(e, -EPROTO, "the peer sent a FENCE before the last one was answered");
        return;
    }
    e->requested = number;
    e->epoch++;
    e->old_chunks = e->chunks_in_flight;
    e->answer_due = true;
}

void ibx_ofi_fence_on_chunk(struct ofi_endpoint *e, const struct ofi_request *r)
{
    if (e->old_chunks && r->epoch != e->epoch)
        e->old_chunks--;
}

void ibx_ofi_fence_answer(struct ofi_endpoint *e)
{
    if (e->answer_due && !e->old_chunks && !ibx_ofi_stopped(e))
        e->answer_due = ibx_ofi_msg_control(e, OFI_FENCED, e->requested) == -EAGAIN;
}

void ibx_ofi_on_fenced(struct ofi_endpoint *e, uint32_t number)
{
    if (number == e->fence)
        e->fenced = number;
}

static bool step(struct ofi_endpoint *e, bool *sent)
{
    int rc = *sent ? 0 : ibx_ofi_msg_control(e, OFI_FENCE, e->fence);
    *sent = *sent || !rc;
    if (rc && rc != -EAGAIN)
        return false;
    ibx_ofi_msg_post(e);
    int taken = ibx_ofi_io_take(e);
    if (taken && e->send_turn == OFI_SEND_REFUSED)
        e->send_turn = OFI_SEND_AGAIN; /* that may have been credit */
    ibx_ofi_fence_answer(e);           /* both may be fencing at once */
    return taken || e->fenced == e->fence || ibx_ofi_io_nap(e);
}

void ibx_ofi_fence(struct ofi_endpoint *e)
{
    unsigned limit_ms = ibx_link_options(e->link)->timeout_ms;
    uint64_t deadline = ibx_deadline_in_ms(limit_ms);
    bool sent = false, alive = true;
    e->fence++;
    while (alive && e->fenced != e->fence && ibx_now_ns() < deadline)
        alive = step(e, &sent);
    if (e->fenced == e->fence)
        return;
    if (alive)
        ibx_ofi_fail(e, -ETIMEDOUT, "the peer did not confirm the end of its accesses within %u ms",
                     limit_ms);
    else
        ibx_ofi_fail(e, -ECONNRESET, "the peer closed the connection");
    ibx_ofi_io_end(e);
}
