/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The provider's calls: a connection's beginning and end, progress() and sleeping. */
#include "transport/verbs/verbs.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/verbs_fork.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_DEFAULT     (256u << 10)
#define BULK_START        8u
#define RENDEZVOUS        (8u << 10)
#define IDLE_POLLS_PER_CM 8192 /* a look at rdma_cm is a system call */
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
    const int rc = ibx_verbs_fork_init();
    if (rc)
        ibx_log(IBX_LOG_INFO, "ibv_fork_init: %s; do not fork while connected", strerror(rc));
}

static int verbs_open(struct ibx_link *link, void **endpoint, struct ibx_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int rc = ibx_verbs_device_any(err); /* first: only there the environment is checked */
    if (rc)
        return rc;
    pthread_once(&once, fork_init);
    struct verbs *v = calloc(1, sizeof(*v));
    if (!v)
        return ibx_error_set(err, -ENOMEM, "no memory for a verbs endpoint");
    ibx_state_begin(&v->state, &verbs_table, VERBS_LIVE);
    v->link = link;
    v->events = rdma_create_event_channel();
    if (!v->events) {
        rc = ibx_error_set(err, -errno, "no RDMA event channel: %s", strerror(errno));
        const int file = ibx_verbs_file_check("rdma_cm", "rdma_ucm", err);
        rc = file ? file : rc;
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

/* librdmacm keeps a device open that it has seen once, and notices only when it lists the devices
 * that one has gone (version 44: and finds another one). A driver that cannot take a device away
 * from its users, such as soft-RoCE, waits for librdmacm until then. */
static void forget_removed_devices(void)
{
    struct ibv_context **devices = rdma_get_devices(NULL);
    if (devices)
        rdma_free_devices(devices);
}

static void verbs_close(void *endpoint)
{
    struct verbs *v = endpoint;
    ibx_verbs_cm_progress(v); /* the peer may have noticed that a device has gone */
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

/* ------------------------------------------------------------------ completions */

/* Kept short: most polls find nothing, and the time until the next one is latency. */
static int poll_rail(struct verbs *v, struct verbs_rail *rail)
{
    struct ibv_wc wc[VERBS_BATCH];
    int n = ibv_poll_cq(rail->cq, VERBS_BATCH, wc);
    return n ? ibx_verbs_completions_take(v, rail, wc, n) : 0;
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

/* Destroys the queue pairs of a device that does not flush in time: after that it does not touch
 * their memory either. What its completion queues still report about them is not read. */
static int give_up_flushing(struct verbs *v)
{
    int made = 0;
    v->rail_count = 0; /* they are not polled any more */
    for (unsigned i = 0; i < v->lane_count; i++)
        ibx_verbs_qp_destroy(&v->lanes[i]);
    for (unsigned i = 0; i < v->lane_count; i++) {
        while (v->lanes[i].flight)
            made += ibx_verbs_chunk_over(v, v->lanes[i].flight, -ECONNRESET);
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

/* Nothing was completed, and there is more to do than to poll again. Not inlined, so that the poll
 * that finds nothing stays short. */
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
        v->attentive = now - v->polled_ns <= VERBS_BULK_QUEUE_NS / 4;
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
 * for completions before it, which raise no event; or more often, if progress() does not take all
 * at a time. Every check here is a system call: the connection manager, whose descriptor wakes the
 * sleeper too, is checked only after a wake-up without completions. */
static int verbs_arm(void *endpoint)
{
    struct verbs *v = endpoint;
    int again = 0;
    for (unsigned i = 0; i < v->rail_count; i++) {
        struct verbs_rail *rail = &v->rails[i];
        if (rail->more) {
            rail->more = false;
            again = 1;
            continue;
        }
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
    .rdma = ibx_verbs_rdma,
    .send = ibx_verbs_send,
    .release = ibx_verbs_release,
    .progress = verbs_progress,
    .arm = verbs_arm,
    .abort = verbs_abort,
    .close = verbs_close,
};
