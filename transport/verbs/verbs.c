/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The provider's calls: chunks, completions, progress(), the end.
 *
 * Every chunk requests a completion of its own: the core reports each, and at chunk sizes a
 * completion costs nothing. Messages share theirs.
 */
#include "transport/verbs/verbs.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_DEFAULT     (256u << 10)
#define BULK_MIN          4u /* chunks in flight, however slow the fabric */
#define BULK_START        8u
#define BULK_QUEUE_NS     (2 * IBX_NS_PER_MS)
#define RENDEZVOUS        (8u << 10)
#define BATCH             32
#define BATCHES_MAX       8    /* polls of a completion queue in one progress */
#define IDLE_POLLS_PER_CM 8192 /* a system call; arm() does it every time */
#define ABORT_MS          2000u
#define ACK_BATCH         64u

static const struct ibx_state verbs_states[] = {
    [VERBS_LIVE] = {"live", IBX_TO(VERBS_LOST) | IBX_TO(VERBS_ABORTED), IBX_STATE_INITIAL},
    [VERBS_LOST] = {"lost", IBX_TO(VERBS_REPORTED) | IBX_TO(VERBS_ABORTED), 0},
    [VERBS_REPORTED] = {"reported", IBX_TO(VERBS_ABORTED), 0},
    [VERBS_ABORTED] = {"aborted", 0, IBX_STATE_FINAL}};
static const struct ibx_state_table verbs_table = IBX_STATE_TABLE("verbs connection", verbs_states);

bool ibx_verbs_move(struct verbs *v, struct ibx_state_machine *machine, unsigned to)
{
    if (!ibx_state_move(machine, to))
        return true;
    ibx_verbs_lost(v, -EINVAL, "internal error: a %s made a move that its state forbids",
                   machine->table->machine);
    return false;
}

void ibx_verbs_lost(struct verbs *v, int status, const char *format, ...)
{
    if (v->state.now != VERBS_LIVE)
        return;
    ibx_state_move(&v->state, VERBS_LOST);
    va_list args;
    va_start(args, format);
    vsnprintf(v->lost_reason, sizeof(v->lost_reason), format, args);
    va_end(args);
    v->lost_status = status;
}

/* ------------------------------------------------------------------ life cycle */

static void fork_init(void)
{
    /* Without it a fork on kernels before 5.12 takes registered pages away from the parent. */
    int rc = ibv_fork_init();
    if (rc)
        ibx_log(IBX_LOG_INFO, "ibv_fork_init: %s; do not fork while connected", strerror(rc));
}

static int verbs_open(struct ibx_link *link, void **endpoint, struct ibx_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fork_init);
    int rc = ibx_verbs_device_any(err);
    if (rc)
        return rc;
    struct verbs *v = calloc(1, sizeof(*v));
    if (!v)
        return ibx_error_set(err, -ENOMEM, "no memory for a verbs endpoint");
    ibx_state_begin(&v->state, &verbs_table, VERBS_LIVE);
    v->link = link;
    v->events = rdma_create_event_channel();
    if (!v->events) {
        rc = ibx_error_set(err, -errno, "/dev/infiniband/rdma_cm: %s (modprobe rdma_ucm)",
                           strerror(errno));
        free(v);
        return rc;
    }
    rc = ibx_verbs_fd_prepare(v->events->fd, "the RDMA event channel", err);
    if (rc) {
        rdma_destroy_event_channel(v->events);
        free(v);
        return rc;
    }
    *endpoint = v;
    return 0;
}

/* librdmacm keeps a device open that it has seen once, and notices that one has gone only when it
 * lists them (version 44: and finds another one). A driver that cannot take a device away from its
 * users, as soft-RoCE, waits for them until then. */
static void forget_removed_devices(void)
{
    struct ibv_context **devices = rdma_get_devices(NULL);
    if (devices)
        rdma_free_devices(devices);
}

static void verbs_close(void *endpoint)
{
    struct verbs *v = endpoint;
    ibx_verbs_cm_progress(v); /* the peer may have noticed first */
    const bool removed = v->device_removed;
    for (unsigned i = 0; i < v->lane_count; i++)
        ibx_verbs_qp_destroy(&v->lanes[i]);
    if (v->messages.slots)
        ibx_verbs_messages_close(v);
    for (unsigned i = 0; i < v->lane_count; i++) {
        if (v->lanes[i].id)
            rdma_destroy_id(v->lanes[i].id);
    }
    for (unsigned i = 0; i < IBX_RAILS_MAX; i++)
        ibx_verbs_rail_close(v, &v->rails[i]);
    if (v->events_watched)
        ibx_link_unwatch(v->link, v->events->fd);
    rdma_destroy_event_channel(v->events);
    free(v->lanes);
    free(v);
    if (removed)
        forget_removed_devices();
}

/* Bytes of one chunk: the option or the default, at most what every rail takes. */
static size_t chunk_bytes(const struct verbs *v)
{
    const struct ibx_options *options = ibx_link_options(v->link);
    size_t bytes = options->chunk ? options->chunk : CHUNK_DEFAULT;
    for (unsigned i = 0; i < v->rail_count; i++) {
        if (v->rails[i].max_message && v->rails[i].max_message < bytes)
            bytes = v->rails[i].max_message;
    }
    return bytes;
}

static void describe(const struct verbs *v, char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size, "verbs");
    for (unsigned i = 0; i < v->rail_count && n < size; i++) {
        const struct verbs_rail *rail = &v->rails[i];
        struct ibv_qp_attr attr = {0};
        struct ibv_qp_init_attr init;
        const struct verbs_lane *lane = &v->lanes[i ? 1 + i : 0];
        ibv_query_qp(lane->qp, &attr, IBV_QP_AV | IBV_QP_PATH_MTU, &init);
        n += (size_t)snprintf(out + n, size - n, "%s %s port %u gid %u mtu %u", i ? "," : "",
                              ibv_get_device_name(rail->context->device), rail->port_num,
                              attr.ah_attr.grh.sgid_index, ibx_verbs_mtu_bytes(attr.path_mtu));
    }
    if (n < size)
        snprintf(out + n, size - n, ", %u queue pairs", v->lane_count);
}

static void verbs_query(void *endpoint, struct ibx_caps *caps, char *description, size_t size)
{
    struct verbs *v = endpoint;
    v->caps = (struct ibx_caps){
        .message_max = v->messages.message_max,
        .chunk = chunk_bytes(v),
        .depth = 0,
        .lanes = v->lane_count - 1,
        .rendezvous = v->messages.message_max < RENDEZVOUS ? v->messages.message_max : RENDEZVOUS,
        .shares = true,
        .dmabuf = ibx_verbs_mr_dmabuf(v),
        .gpu_pointers =
            !access("/sys/module/nvidia_peermem", F_OK) || !access("/sys/module/nv_peer_mem", F_OK),
    };
    for (unsigned i = 1; i < v->lane_count; i++)
        v->caps.depth += v->lanes[i].depth;
    v->bulk_max = v->caps.depth < BULK_START ? v->caps.depth : BULK_START;
    *caps = v->caps;
    describe(v, description, size);
}

/* ---------------------------------------------------------------------- chunks */

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
 * no more bulk is in flight than the fabric carries in BULK_QUEUE_NS: chunks that took longer halve
 * the number, once for all that were posted before; the others raise it. A fast fabric is soon at
 * caps.depth and stays there. The time of a chunk counts only if the user polls often.
 */
static void bulk_done(struct verbs *v, uint64_t posted_ns)
{
    uint64_t took = v->polled_ns - posted_ns;
    v->bulk--;
    if (took <= BULK_QUEUE_NS) {
        v->bulk_max += v->bulk_max < v->caps.depth;
    } else if (v->attentive && posted_ns >= v->shrunk_ns && v->bulk_max > BULK_MIN) {
        v->bulk_max = v->bulk_max / 2 > BULK_MIN ? v->bulk_max / 2 : BULK_MIN;
        v->shrunk_ns = v->polled_ns;
    }
}

static int verbs_rdma(void *endpoint, struct ibx_chunk *chunk)
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

/* ----------------------------------------------------------------- completions */

static int status_errno(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_SUCCESS:
        return 0;
    case IBV_WC_WR_FLUSH_ERR:
        return -ECONNRESET;
    case IBV_WC_LOC_LEN_ERR:
        return -EMSGSIZE;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
        return -EFAULT;
    case IBV_WC_REM_ACCESS_ERR:
        return -EACCES;
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_INV_RD_REQ_ERR:
    case IBV_WC_BAD_RESP_ERR:
        return -EPROTO;
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
        return -EREMOTEIO;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
        return -ETIMEDOUT;
    default:
        return -EIO;
    }
}

/* A failed work request has already brought its queue pair down, and with it the connection. */
static int wc_failed(struct verbs *v, const struct ibv_wc *wc, const char *what)
{
    int status = status_errno(wc->status);
    if (!status || v->state.now == VERBS_ABORTED)
        return 0;
    if (wc->status == IBV_WC_WR_FLUSH_ERR) {
        /* An effect: it waits, so that the cause, if there is one, is reported first. */
        ibx_verbs_lost(v, status, "the queue pair went into the error state");
        return 0;
    }
    const char *why = wc->status == IBV_WC_REM_ACCESS_ERR
                          ? "the peer has no such region, or not with that access"
                      : wc->status == IBV_WC_RETRY_EXC_ERR ? "the peer does not answer any more"
                      : status == -EFAULT ? "local memory is not registered (any more)"
                                          : "the queue pair is broken";
    char reason[160];
    snprintf(reason, sizeof(reason), "%s failed: %s (%s, vendor error %#x)", what, why,
             ibv_wc_status_str(wc->status), wc->vendor_err);
    v->link->up->lost(v->link, status, reason);
    return 1;
}

static int chunk_over(struct verbs *v, struct ibx_chunk *chunk, int status)
{
    struct verbs_lane *lane = &v->lanes[chunk->lane];
    uint64_t number = chunk->cookie[0];
    flight_remove(lane, chunk);
    if (lane->index)
        bulk_done(v, chunk->cookie[1]);
    v->link->up->chunk_done(v->link, chunk, status);
    return 1 + (lane->index ? 0 : ibx_verbs_sends_retire(v, number, status));
}

static int take_completion(struct verbs *v, const struct ibv_wc *wc)
{
    /* After an abort a chunk that was completed counts as flushed, too. */
    int status = v->state.now == VERBS_ABORTED ? -ECONNRESET : status_errno(wc->status);
    uint64_t number = wc->wr_id >> 2;
    switch (wc->wr_id & VERBS_ID_MASK) {
    case VERBS_ID_SEND:
        return wc_failed(v, wc, "sending a message") + ibx_verbs_sends_retire(v, number, status);
    case VERBS_ID_RECEIVE:
        if (wc->status != IBV_WC_SUCCESS)
            return wc_failed(v, wc, "receiving a message");
        return v->state.now == VERBS_ABORTED ? 0
                                             : ibx_verbs_message_received(v, number, wc->byte_len);
    default: {
        struct ibx_chunk *chunk = (struct ibx_chunk *)(uintptr_t)wc->wr_id;
        const char *what = chunk->kind == IBX_RDMA_READ ? "an RDMA READ" : "an RDMA WRITE";
        int made = wc_failed(v, wc, what);
        return made + chunk_over(v, chunk, status);
    }
    }
}

/* `wc` has the first n completions and room for BATCH. */
static int take_batches(struct verbs *v, struct verbs_rail *rail, struct ibv_wc *wc, int n)
{
    int made = 0;
    for (int batch = 1;; batch++) {
        if (n < 0)
            ibx_verbs_lost(v, -EIO, "the completion queue of %s failed",
                           ibv_get_device_name(rail->context->device));
        for (int i = 0; i < n; i++)
            made += take_completion(v, &wc[i]);
        if (n < BATCH || batch == BATCHES_MAX)
            return made;
        n = ibv_poll_cq(rail->cq, BATCH, wc);
    }
}

/* Most polls find nothing, and the time to the next one is latency. */
static int poll_rail(struct verbs *v, struct verbs_rail *rail)
{
    struct ibv_wc wc[BATCH];
    int n = ibv_poll_cq(rail->cq, BATCH, wc);
    return n ? take_batches(v, rail, wc, n) : 0;
}

/* ---------------------------------------------------------------------- ending */

static void verbs_abort(void *endpoint)
{
    struct verbs *v = endpoint;
    if (v->state.now == VERBS_ABORTED)
        return;
    ibx_state_move(&v->state, VERBS_ABORTED);
    /* Messages were copied, so the device touches no memory of the user for them. */
    ibx_verbs_sends_retire(v, UINT64_MAX, -ECONNRESET);
    v->abort_deadline = ibx_deadline_in_ms(ABORT_MS);
    for (unsigned i = 0; i < v->lane_count; i++) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
        if (v->lanes[i].qp)
            ibv_modify_qp(v->lanes[i].qp, &attr, IBV_QP_STATE);
        if (v->lanes[i].state.now == VERBS_LANE_UP)
            rdma_disconnect(v->lanes[i].id);
    }
}

/* A device that does not flush in time loses its queue pairs: after that it touches none of their
 * memory either. */
static int give_up_flushing(struct verbs *v)
{
    int made = 0;
    for (unsigned i = 0; i < v->lane_count; i++)
        ibx_verbs_qp_destroy(&v->lanes[i]);
    for (unsigned i = 0; i < v->lane_count; i++) {
        while (v->lanes[i].flight)
            made += chunk_over(v, v->lanes[i].flight, -ECONNRESET);
    }
    ibx_log(IBX_LOG_WARN, "%d chunks were not flushed in %u ms; their queue pairs were destroyed",
            made, ABORT_MS);
    return made;
}

static bool in_flight(const struct verbs *v)
{
    for (unsigned i = 0; i < v->lane_count; i++) {
        if (v->lanes[i].flight)
            return true;
    }
    return false;
}

/* -------------------------------------------------------------------- progress */

/* Nothing completed, and there is more to do than to poll again. Not inlined, so that the poll that
 * finds nothing stays short. */
static __attribute__((noinline)) int idle_round(struct verbs *v)
{
    if (v->state.now == VERBS_ABORTED)
        return in_flight(v) && ibx_now_ns() > v->abort_deadline ? give_up_flushing(v) : 0;
    if (v->idle >= IDLE_POLLS_PER_CM) {
        v->idle = 0;
        ibx_verbs_cm_progress(v);
    }
    if (v->state.now != VERBS_LOST)
        return 0;
    ibx_verbs_move(v, &v->state, VERBS_REPORTED);
    v->link->up->lost(v->link, v->lost_status, v->lost_reason);
    return 1;
}

static int verbs_progress(void *endpoint)
{
    struct verbs *v = endpoint;
    int made = 0;
    if (v->bulk) {
        uint64_t now = ibx_now_ns();
        v->attentive = now - v->polled_ns <= BULK_QUEUE_NS / 4;
        v->polled_ns = now;
    }
    for (unsigned i = 0; i < v->rail_count; i++)
        made += poll_rail(v, &v->rails[i]);
    if (!made) {
        bool more = ++v->idle >= IDLE_POLLS_PER_CM || v->state.now != VERBS_LIVE;
        return more ? idle_round(v) : 0;
    }
    v->idle = 0;
    v->moved = true;
    /* Credits that the release could not return wait for a completion: of a send, which frees a
     * buffer, or of the last message for which the peer had credit. */
    ibx_verbs_credits_return(v);
    return made;
}

/* Takes the event of an armed rail, if there is one. One arming raises no second event. */
static void drain_channel(struct verbs *v, struct verbs_rail *rail)
{
    struct ibv_cq *cq;
    void *context;
    if (ibv_get_cq_event(rail->channel, &cq, &context))
        return;
    ibx_verbs_move(v, &rail->event, VERBS_EVENT_UNARMED);
    if (++rail->unacked == ACK_BATCH) {
        ibv_ack_cq_events(rail->cq, rail->unacked);
        rail->unacked = 0;
    }
}

/* An armed queue stays armed until its event is taken, so only a fresh arming has to poll once more
 * for completions before it. Every check here is a system call: the connection manager, whose
 * descriptor wakes the sleeper too, is checked only after a wake-up without completions. */
static int verbs_arm(void *endpoint)
{
    struct verbs *v = endpoint;
    int again = 0;
    for (unsigned i = 0; i < v->rail_count; i++) {
        struct verbs_rail *rail = &v->rails[i];
        if (rail->event.now == VERBS_EVENT_FRESH)
            ibx_verbs_move(v, &rail->event, VERBS_EVENT_ARMED);
        else if (rail->event.now == VERBS_EVENT_ARMED)
            drain_channel(v, rail);
        if (rail->event.now == VERBS_EVENT_ARMED)
            continue;
        if (ibv_req_notify_cq(rail->cq, 0))
            ibx_verbs_lost(v, -EIO, "the completion queue cannot be armed");
        ibx_verbs_move(v, &rail->event, VERBS_EVENT_FRESH);
        again = 1;
    }
    if (again)
        return 1;
    if (!v->moved)
        ibx_verbs_cm_progress(v);
    v->moved = false;
    return v->state.now == VERBS_LOST;
}

const struct ibx_provider ibx_provider_verbs = {
    .name = "verbs",
    .probe = ibx_verbs_probe,
    .message_memory = ibx_verbs_message_memory,
    .open = verbs_open,
    .offer = ibx_verbs_offer,
    .join = ibx_verbs_join,
    .finish = ibx_verbs_finish,
    .query = verbs_query,
    .mr_register = ibx_verbs_mr_register,
    .mr_deregister = ibx_verbs_mr_deregister,
    .rdma = verbs_rdma,
    .send = ibx_verbs_send,
    .release = ibx_verbs_release,
    .progress = verbs_progress,
    .arm = verbs_arm,
    .abort = verbs_abort,
    .close = verbs_close,
};
