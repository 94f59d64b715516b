/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Rails (what lanes on one device share) and queue pairs. */
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define DEPTH_DEFAULT   64u /* bulk chunks in flight a connection */
#define URGENT_DEPTH    64u
#define INLINE_WANTED   512u
#define MIN_RNR_TIMER   12 /* 0.64 ms; credits keep receivers ready, so it never counts */
#define RETRIES         6u /* with 7, the maximum, rxe never stops retrying */
#define ACK_TIMEOUT_MAX 31

int ibx_verbs_fd_prepare(int fd, const char *what, struct ibx_error *err)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return ibx_error_set(err, -errno, "%s cannot be polled: %s", what, strerror(errno));
    return 0;
}

/* Chunks that one bulk lane may have in flight. */
static unsigned lane_depth(const struct verbs *v)
{
    unsigned depth = ibx_link_options(v->link)->depth;
    unsigned lanes = v->lane_count - 1;
    return ((depth ? depth : DEPTH_DEFAULT) + lanes - 1) / lanes;
}

static unsigned lane_sends(const struct verbs *v, unsigned index)
{
    return index ? lane_depth(v) : URGENT_DEPTH + ibx_verbs_messages_sends(v);
}

/* Every work request may have a completion, also unsignaled ones: flushed ones do. */
static int completions(const struct verbs *v, const struct verbs_rail *rail)
{
    unsigned entries = 0;
    for (unsigned i = 0; i < v->lane_count; i++) {
        if (v->lanes[i].rail == rail)
            entries += lane_sends(v, i) + (i ? 1 : ibx_verbs_messages_receives(v));
    }
    return (int)entries;
}

static const struct ibx_state event_states[] = {
    [VERBS_EVENT_UNARMED] = {"unarmed", IBX_TO(VERBS_EVENT_FRESH),
                             IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [VERBS_EVENT_FRESH] = {"fresh", IBX_TO(VERBS_EVENT_ARMED), 0},
    [VERBS_EVENT_ARMED] = {"armed", IBX_TO(VERBS_EVENT_UNARMED), 0}};
static const struct ibx_state_table event_table = IBX_STATE_TABLE("verbs event", event_states);

static int make_queues(struct verbs *v, struct verbs_rail *rail, struct ibx_error *err)
{
    const char *name = ibv_get_device_name(rail->context->device);
    int entries = completions(v, rail);
    if (entries > rail->limits.max_cqe)
        return ibx_error_set(
            err, -EINVAL,
            "%s has room for %d completions but rdma.depth and rdma.slots ask for %d: make "
            "them smaller",
            name, rail->limits.max_cqe, entries);
    ibx_state_begin(&rail->event, &event_table, VERBS_EVENT_UNARMED);
    rail->channel = ibv_create_comp_channel(rail->context);
    if (rail->channel)
        rail->cq = ibv_create_cq(rail->context, entries, NULL, rail->channel, 0);
    if (!rail->cq)
        return ibx_error_set(err, -errno, "%s cannot create a completion queue of %d entries: %s",
                             name, entries, strerror(errno));
    int rc = ibx_verbs_fd_prepare(rail->channel->fd, "the completion channel", err);
    if (rc)
        return rc;
    rc = ibx_link_watch(v->link, rail->channel->fd);
    if (rc)
        return ibx_error_set(err, rc, "cannot watch the completion channel: %s", strerror(-rc));
    rail->watched = true;
    return 0;
}

/* Opens a context, because that of rdma_cm is shared by the process and fails in a forked child. */
static int open_device(struct verbs *v, struct verbs_rail *rail, struct rdma_cm_id *id,
                       struct ibx_error *err)
{
    const char *name = ibv_get_device_name(id->verbs->device);
    struct ibv_port_attr port;
    int rc = ibx_verbs_device_hold(ibx_link_options(v->link)->domain, id->verbs->device,
                                   &rail->device, err);
    if (rc)
        return rc;
    rail->context = rail->device->context;
    rail->pd = rail->device->pd;
    rc = ibv_query_device(rail->context, &rail->limits);
    if (!rc)
        rc = ibv_query_port(rail->context, id->port_num, &port);
    if (rc)
        return ibx_error_set(err, -rc, "%s does not report its limits: %s", name, strerror(rc));
    rail->port_num = id->port_num;
    rail->max_message = port.max_msg_sz;
    return 0;
}

int ibx_verbs_rail_open(struct verbs *v, struct verbs_rail *rail, struct rdma_cm_id *id,
                        struct ibx_error *err)
{
    if (rail->context) {
        const char *here = ibv_get_device_name(rail->context->device);
        bool same =
            !strcmp(here, ibv_get_device_name(id->verbs->device)) && rail->port_num == id->port_num;
        return same ? 0 : ibx_error_set(err, -EINVAL, "one rail's route leads through two devices");
    }
    int rc = open_device(v, rail, id, err);
    return rc ? rc : make_queues(v, rail, err);
}

void ibx_verbs_rail_close(struct verbs *v, struct verbs_rail *rail)
{
    if (rail->watched)
        ibx_link_unwatch(v->link, rail->channel->fd);
    if (rail->cq) {
        if (rail->unacked)
            ibv_ack_cq_events(rail->cq, rail->unacked);
        ibv_destroy_cq(rail->cq);
    }
    if (rail->channel)
        ibv_destroy_comp_channel(rail->channel);
    if (rail->device)
        ibx_verbs_device_release(rail->device);
    if (rail->listener)
        rdma_destroy_id(rail->listener);
    *rail = (struct verbs_rail){0};
}

/* Devices do not report how much they send inline, so smaller sizes are tried until one works. */
static struct ibv_qp *try_sizes(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    for (;;) {
        struct ibv_qp *qp = ibv_create_qp(pd, attr);
        if (qp || !attr->cap.max_inline_data)
            return qp;
        unsigned less = attr->cap.max_inline_data / 2;
        attr->cap.max_inline_data = less < 32 ? 0 : less;
    }
}

int ibx_verbs_qp_create(struct verbs *v, struct verbs_lane *lane, struct ibx_error *err)
{
    struct verbs_rail *rail = lane->rail;
    unsigned sends = lane_sends(v, lane->index);
    unsigned receives = lane->index ? 1 : ibx_verbs_messages_receives(v);
    const char *name = ibv_get_device_name(rail->context->device);
    if (sends > (unsigned)rail->limits.max_qp_wr || receives > (unsigned)rail->limits.max_qp_wr)
        return ibx_error_set(
            err, -EINVAL,
            "%s takes %d work requests on a queue pair but rdma.depth and rdma.slots ask "
            "for %u: make them smaller",
            name, rail->limits.max_qp_wr, sends > receives ? sends : receives);
    struct ibv_qp_init_attr attr = {
        .send_cq = rail->cq,
        .recv_cq = rail->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = sends,
                .max_recv_wr = receives,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = lane->index ? 0 : INLINE_WANTED},
    };
    lane->qp = try_sizes(rail->pd, &attr);
    if (!lane->qp)
        return ibx_error_set(err, -errno, "%s cannot create a queue pair of %u work requests: %s",
                             name, sends, strerror(errno));
    if (!ibx_verbs_device_enter(rail->device, lane))
        return ibx_error_set(err, -ECONNABORTED,
                             "%s does not let go of memory that another connection had registered",
                             name);
    lane->inline_max = attr.cap.max_inline_data;
    lane->depth = lane->index ? sends : URGENT_DEPTH;
    struct ibv_qp_attr state = {.qp_state = IBV_QPS_INIT};
    int mask;
    if (rdma_init_qp_attr(lane->id, &state, &mask))
        return ibx_error_set(err, -errno, "the attributes for the INIT state are not known: %s",
                             strerror(errno));
    state.qp_access_flags = IBV_ACCESS_LOCAL_WRITE; /* more once a region is exposed: mr.c */
    int rc = ibv_modify_qp(lane->qp, &state, mask);
    return rc ? ibx_error_set(err, -rc, "%s refuses the INIT state: %s", name, strerror(rc)) : 0;
}

/* Options that rdma_cm does not take; both ends agreed on the MTU. */
static int apply_options(struct verbs *v, const struct verbs_lane *lane, struct ibv_qp_attr *attr,
                         struct ibx_error *err)
{
    const struct ibx_options *options = ibx_link_options(v->link);
    const char *name = ibv_get_device_name(lane->rail->context->device);
    unsigned path = ibx_verbs_mtu_bytes(attr->path_mtu);
    if (v->mtu > path)
        return ibx_error_set(err, -EINVAL,
                             "mtu %u was asked for but the path through %s carries %u bytes: "
                             "raise the MTU of the network, or leave mtu out",
                             v->mtu, name, path);
    if (v->mtu)
        attr->path_mtu = ibx_verbs_mtu_code(v->mtu);
    if (options->gid_index >= 0 && attr->ah_attr.is_global &&
        attr->ah_attr.grh.sgid_index != options->gid_index)
        return ibx_error_set(err, -EINVAL,
                             "gid_index %d was asked for but the route uses GID index %u of %s: "
                             "change gid_index, or the route",
                             options->gid_index, attr->ah_attr.grh.sgid_index, name);
    return 0;
}

/* The device's code (4.096 us * 2^code) with which all retries together take timeout_ms at most. */
static uint8_t ack_timeout(const struct verbs *v)
{
    uint64_t each_ns = ibx_link_options(v->link)->timeout_ms * 1000000ull / (RETRIES + 1);
    uint8_t code = 1;
    while (code < ACK_TIMEOUT_MAX && (4096ull << (code + 1)) <= each_ns)
        code++;
    return code;
}

static uint8_t limit(uint8_t wanted, int device)
{
    return device < wanted ? (uint8_t)device : wanted;
}

int ibx_verbs_qp_connect(struct verbs *v, struct verbs_lane *lane, struct ibx_error *err)
{
    const struct ibv_device_attr *limits = &lane->rail->limits;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    int mask;
    if (rdma_init_qp_attr(lane->id, &attr, &mask))
        return ibx_error_set(err, -errno, "the attributes for the RTR state are not known: %s",
                             strerror(errno));
    int rc = apply_options(v, lane, &attr, err);
    if (rc)
        return rc;
    attr.min_rnr_timer = MIN_RNR_TIMER;
    attr.max_dest_rd_atomic = limit(attr.max_dest_rd_atomic, limits->max_qp_rd_atom);
    rc = ibv_modify_qp(lane->qp, &attr, mask);
    if (rc)
        return ibx_error_set(err, -rc, "queue pair %u cannot receive: %s", lane->index,
                             strerror(rc));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS};
    if (rdma_init_qp_attr(lane->id, &attr, &mask))
        return ibx_error_set(err, -errno, "the attributes for the RTS state are not known: %s",
                             strerror(errno));
    attr.timeout = ack_timeout(v);
    attr.retry_cnt = RETRIES;
    attr.max_rd_atomic = limit(attr.max_rd_atomic, limits->max_qp_init_rd_atom);
    lane->reads_max = attr.max_rd_atomic;
    rc = ibv_modify_qp(lane->qp, &attr, mask);
    return rc ? ibx_error_set(err, -rc, "queue pair %u cannot send: %s", lane->index, strerror(rc))
              : 0;
}

void ibx_verbs_qp_destroy(struct verbs_lane *lane)
{
    if (!lane->qp)
        return;
    ibx_verbs_device_leave(lane->rail->device, lane);
    ibv_destroy_qp(lane->qp);
    lane->qp = NULL;
}
