/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * READs and WRITEs: how many chunks are in flight, and how they are posted.
 *
 * Every chunk requests a completion of its own: the core reports each, and at chunk sizes a
 * completion costs nothing. Messages share theirs.
 */
#include "transport/verbs/verbs.h"

#include "common/clock.h"

#include <errno.h>

#define BULK_MIN 4u /* chunks in flight, however slow the fabric */

static void flight_add(struct verbs_lane *lane, struct ibx_chunk *chunk)
{
    chunk->prev = NULL;
    chunk->next = lane->flight;
    if (chunk->next)
        chunk->next->prev = chunk;
    lane->flight = chunk;
    lane->chunks++;
    lane->reads += chunk->kind == IBX_RDMA_READ;
}

static void flight_remove(struct verbs_lane *lane, struct ibx_chunk *chunk)
{
    if (chunk->prev)
        chunk->prev->next = chunk->next;
    else
        lane->flight = chunk->next;
    if (chunk->next)
        chunk->next->prev = chunk->prev;
    lane->chunks--;
    lane->reads -= chunk->kind == IBX_RDMA_READ;
}

/*
 * Urgent work has a queue pair of its own, but shares the wire with the bulk that is in flight. So
 * no more bulk is in flight than the fabric carries in VERBS_BULK_QUEUE_NS: chunks that took longer
 * halve the number, once for all that were posted before; the others raise it. A fast fabric is
 * soon at caps.depth and stays there. The time of a chunk counts only if the user polls often.
 */
static void bulk_done(struct verbs *v, uint64_t posted_ns)
{
    uint64_t took = v->polled_ns - posted_ns;
    v->bulk--;
    if (took <= VERBS_BULK_QUEUE_NS) {
        v->bulk_max += v->bulk_max < v->caps.depth;
    } else if (v->attentive && posted_ns >= v->shrunk_ns && v->bulk_max > BULK_MIN) {
        v->bulk_max = v->bulk_max / 2 > BULK_MIN ? v->bulk_max / 2 : BULK_MIN;
        v->shrunk_ns = v->polled_ns;
    }
}

int ibx_verbs_rdma(void *endpoint, struct ibx_chunk *chunk)
{
    struct verbs *v = endpoint;
    struct verbs_lane *lane = &v->lanes[chunk->lane];
    unsigned rail = (unsigned)(lane->rail - v->rails);
    bool reads = chunk->kind == IBX_RDMA_READ;
    if (reads && !lane->reads_max)
        return -EOPNOTSUPP;
    if (lane->chunks >= lane->depth || (reads && lane->reads >= lane->reads_max) ||
        (lane->index && v->bulk >= v->bulk_max))
        return -EAGAIN;
    struct ibv_sge sge = {.addr = (uintptr_t)chunk->local, .length = (uint32_t)chunk->length};
    int rc = ibx_verbs_mr_lkey(chunk->mr, rail, reads, &sge.lkey);
    if (!rc && chunk->remote_keys[rail] > UINT32_MAX)
        rc = -EPROTO;
    if (rc)
        return rc;
    struct ibv_send_wr *bad;
    struct ibv_send_wr wr = {
        .wr_id = (uintptr_t)chunk,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED,
    };
    wr.wr.rdma.remote_addr = chunk->remote_address;
    wr.wr.rdma.rkey = (uint32_t)chunk->remote_keys[rail];
    /* The CPU copies inline data, so only host memory can be inline. */
    if (!reads && chunk->length <= lane->inline_max && chunk->mr->span.kind == IBX_MEMORY_HOST)
        wr.send_flags |= IBV_SEND_INLINE;
    rc = ibv_post_send(lane->qp, &wr, &bad);
    if (rc)
        return -rc;
    chunk->cookie[0] = ++lane->posted;
    if (lane->index) {
        chunk->cookie[1] = ibx_now_ns();
        v->bulk++;
    }
    flight_add(lane, chunk);
    return 0;
}

int ibx_verbs_chunk_over(struct verbs *v, struct ibx_chunk *chunk, int status)
{
    struct verbs_lane *lane = &v->lanes[chunk->lane];
    uint64_t number = chunk->cookie[0];
    flight_remove(lane, chunk);
    if (lane->index)
        bulk_done(v, chunk->cookie[1]);
    v->link->up->chunk_done(v->link, chunk, status);
    return 1 + (lane->index ? 0 : ibx_verbs_sends_retire(v, number, status));
}
