/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Datagrams by verbs: a queue pair of its own for unreliable datagrams (UD) at each end, and a
 * group that rdma_cm joins. Switches copy the datagrams, those of InfiniBand and those of Ethernet
 * (RoCE v2: UDP to port 4791). A datagram is at most as long as the port's MTU, 4096 bytes or less;
 * a receive buffer has 40 bytes of a routing header before it. A datagram that comes when no
 * receive is posted is lost; multicast has to bear losses anyhow.
 *
 * Any process in the network can send to such a queue pair: its key (qkey) is the same for all.
 */
#include "migrate/multicast/datagrams.h"

#include "common/clock.h"
#include "common/library_environment.h"
#include "common/verbs_fork.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT_ONCE       IBX_MULTICAST_AT_ONCE
#define JOIN_MS       3000  /* in which a subnet manager has to answer */
#define SEND_MS       1000  /* in which a device has to send datagrams */
#define HEADS         74u   /* of InfiniBand; those of RoCE v2 are a little less */
#define HALVES        2u    /* of the memory that is sent from: one is filled meanwhile */
#define ROUTING       40u   /* bytes of the routing header before a received datagram */
#define RECEIVES      2048u /* 8 MiB, as the buffer of a socket */
#define RECEIVES_MIN  64u
#define RECEIVE_BYTES (ROUTING + IBX_MULTICAST_PACKET) /* longer ones than any port has */
#define NOT_SUPPORTED 524 /* the kernel's own ENOTSUPP, which user space has no name for */

/* A queue pair and what belongs to it, of a sender or a member. */
struct pair {
    struct rdma_event_channel *events;
    struct rdma_cm_id *id; /* on a device */
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    uint8_t *memory;
    size_t mtu;
    struct sockaddr_storage group;
    unsigned interface;
    bool joined;
    struct ibv_ah_attr way; /* to the group */
    uint32_t number, qkey;  /* of its queue pair */
};

/* ------------------------------------------------------------ a device */

static void fork_init(void)
{
    ibx_verbs_fork_init();
}

static int prepare_fd(int fd, struct ibx_error *err)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) || fcntl(fd, F_SETFD, FD_CLOEXEC)
               ? ibx_error_set(err, -errno, "a descriptor of verbs cannot be polled: %s",
                               strerror(errno))
               : 0;
}

int ibx_multicast_verbs_any(struct ibx_error *err)
{
    int count = 0, unsafe = ibx_library_environment_check(err);
    if (unsafe)
        return unsafe;
    struct ibv_context **devices = rdma_get_devices(&count);
    if (devices)
        rdma_free_devices(devices);
    return devices && count
               ? 0
               : ibx_error_set(err, -ENODEV,
                               "this host has no RDMA device to send datagrams by: give a "
                               "--multicast-group without verbs://; ib-doctor says more");
}

static const char *name_of(const struct pair *p)
{
    return ibv_get_device_name(p->id->verbs->device);
}

/* False: no RDMA device has this address. */
static bool bind_to(struct pair *p, struct sockaddr *address)
{
    if (rdma_create_id(p->events, &p->id, NULL, RDMA_PS_UDP)) {
        p->id = NULL;
        return false;
    }
    if (!rdma_bind_addr(p->id, address) && p->id->verbs)
        return true;
    rdma_destroy_id(p->id);
    p->id = NULL;
    return false;
}

static int find_device(struct pair *p, struct ibx_error *err)
{
    char interface[IF_NAMESIZE] = "?";
    struct ifaddrs *all = NULL;
    if_indextoname(p->interface, interface);
    if (getifaddrs(&all))
        return ibx_error_set(err, -errno, "the addresses of this host are not known: %s",
                             strerror(errno));
    for (struct ifaddrs *at = all; at && !p->id; at = at->ifa_next)
        if (at->ifa_addr && at->ifa_addr->sa_family == p->group.ss_family &&
            if_nametoindex(at->ifa_name) == p->interface)
            bind_to(p, at->ifa_addr);
    freeifaddrs(all);
    return p->id
               ? 0
               : ibx_error_set(err, -ENODEV,
                               "no RDMA device has an address of IPv%d of %s: \"rdma link\" lists "
                               "devices and their interfaces; give --multicast-interface one of "
                               "them, or the server a --multicast-group without verbs://",
                               p->group.ss_family == AF_INET6 ? 6 : 4, interface);
}

static int check_device(struct pair *p, struct ibx_error *err)
{
    struct ibv_device_attr device;
    struct ibv_port_attr port;
    int rc = ibv_query_device(p->id->verbs, &device);
    if (!rc)
        rc = ibv_query_port(p->id->verbs, p->id->port_num, &port);
    if (rc)
        return ibx_error_set(err, -rc, "%s cannot be asked what it can do: %s", name_of(p),
                             strerror(rc));
    if (p->id->verbs->device->transport_type != IBV_TRANSPORT_IB || device.max_mcast_grp <= 0)
        return ibx_error_set(err, -EOPNOTSUPP,
                             "%s has no multicast: give --multicast-interface another one, or the "
                             "server a --multicast-group without verbs://",
                             name_of(p));
    if (port.state != IBV_PORT_ACTIVE)
        return ibx_error_set(err, -ENETDOWN, "port %u of %s is not active: is its link up?",
                             p->id->port_num, name_of(p));
    p->mtu = (size_t)128 << port.active_mtu;
    return 0;
}

/* ------------------------------------------------------------ a queue pair */

static void *make_memory(struct pair *p, size_t size)
{
    void *memory = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    if (!memory)
        return NULL;
    p->mr = ibv_reg_mr(p->pd, memory, size, IBV_ACCESS_LOCAL_WRITE);
    if (!p->mr)
        free(memory);
    return p->mr ? memory : NULL;
}

static int no_resource(const struct pair *p, const char *what, struct ibx_error *err)
{
    return ibx_error_set(
        err, errno ? -errno : -EIO,
        "%s gives no %s for datagrams: %s (is there enough memlock? \"ulimit -l\")", name_of(p),
        what, strerror(errno));
}

static int make_queues(struct pair *p, unsigned sends, unsigned receives, struct ibx_error *err)
{
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_UD,
                                    .cap = {.max_send_wr = sends ? sends : 1,
                                            .max_recv_wr = receives ? receives : 1,
                                            .max_send_sge = 1,
                                            .max_recv_sge = 1}};
    p->channel = ibv_create_comp_channel(p->id->verbs);
    p->cq = p->channel ? ibv_create_cq(p->id->verbs, (int)(sends + receives), NULL, p->channel, 0)
                       : NULL;
    if (!p->cq)
        return no_resource(p, "completion queue", err);
    attr.send_cq = attr.recv_cq = p->cq;
    if (rdma_create_qp(p->id, p->pd, &attr))
        return no_resource(p, "queue pair", err);
    return prepare_fd(p->channel->fd, err);
}

/* ------------------------------------------------------------ the group */

/* 1: an event has come for the group or the device; sets its type and status. 0: none has. */
static int look_at_events(struct pair *p, enum rdma_cm_event_type *type, int *status)
{
    struct rdma_cm_event *event;
    if (rdma_get_cm_event(p->events, &event))
        return 0;
    *type = event->event;
    *status = event->status;
    if (event->event == RDMA_CM_EVENT_MULTICAST_JOIN && !event->status) {
        p->way = event->param.ud.ah_attr;
        p->number = event->param.ud.qp_num;
        p->qkey = event->param.ud.qkey;
    }
    rdma_ack_cm_event(event);
    return 1;
}

static const char *event_text(enum rdma_cm_event_type type)
{
    return type == RDMA_CM_EVENT_DEVICE_REMOVAL    ? "the device was removed"
           : type == RDMA_CM_EVENT_MULTICAST_ERROR ? "it is no member of the group any more"
                                                   : rdma_event_str(type);
}

static int refused(const struct pair *p, int code, struct ibx_error *err)
{
    const struct sockaddr_storage *group = &p->group;
    char text[64];
    if (code != NOT_SUPPORTED || group->ss_family != AF_INET6)
        return ibx_multicast_failed("cannot join", group, p->interface,
                                    code == NOT_SUPPORTED ? EOPNOTSUPP : code, err);
    ibx_multicast_group_print(group, text, sizeof(text));
    return ibx_error_set(err, -EOPNOTSUPP,
                         "%s cannot join %s: RoCE v2 has groups of IPv4 only, as verbs://239.1.2.3",
                         name_of(p), text);
}

/* Asks to join; `sends` as a send-only member, which not every subnet manager supports. */
static int request_join(struct pair *p, bool sends)
{
    struct rdma_cm_join_mc_attr_ex attr = {
        .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
        .join_flags = sends ? RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER : RDMA_MC_JOIN_FLAG_FULLMEMBER,
        .addr = (struct sockaddr *)&p->group};
    return rdma_join_multicast_ex(p->id, &attr, NULL) ? errno : 0;
}

static int await_join(struct pair *p)
{
    const uint64_t until = ibx_deadline_in_ms(JOIN_MS);
    struct pollfd fd = {.fd = p->events->fd, .events = POLLIN};
    enum rdma_cm_event_type type;
    int status;
    while (ibx_now_ns() < until) {
        if (!look_at_events(p, &type, &status)) {
            poll(&fd, 1, ibx_ms_until(until));
            continue;
        }
        if (type == RDMA_CM_EVENT_MULTICAST_JOIN || type == RDMA_CM_EVENT_MULTICAST_ERROR)
            return type == RDMA_CM_EVENT_MULTICAST_JOIN && !status ? 0
                   : status < 0                                    ? -status
                                                                   : ECONNREFUSED;
    }
    return ETIMEDOUT;
}

static int join(struct pair *p, bool sends, struct ibx_error *err)
{
    int code = EOPNOTSUPP;
    for (int once = sends; once >= 0 && code; once--) {
        code = request_join(p, once);
        if (code)
            continue;
        code = await_join(p);
        p->joined = !code;
        if (code)
            rdma_leave_multicast(p->id, (struct sockaddr *)&p->group);
    }
    return code ? refused(p, code, err) : 0;
}

static void close_pair(struct pair *p)
{
    if (p->joined)
        rdma_leave_multicast(p->id, (struct sockaddr *)&p->group);
    if (p->id && p->id->qp)
        rdma_destroy_qp(p->id);
    if (p->cq)
        ibv_destroy_cq(p->cq);
    if (p->channel)
        ibv_destroy_comp_channel(p->channel);
    if (p->mr)
        ibv_dereg_mr(p->mr);
    if (p->pd)
        ibv_dealloc_pd(p->pd);
    if (p->id)
        rdma_destroy_id(p->id);
    if (p->events)
        rdma_destroy_event_channel(p->events);
    free(p->memory);
}

/* Opens the device of that interface, without a queue pair. After a failure the caller closes what
 * was opened. */
static int open_pair(struct pair *p, const struct sockaddr_storage *group, unsigned interface,
                     struct ibx_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int rc = ibx_library_environment_check(err);
    if (rc)
        return rc;
    pthread_once(&once, fork_init);
    p->group = *group;
    p->interface = interface;
    p->events = rdma_create_event_channel();
    if (!p->events)
        return ibx_error_set(
            err, -errno,
            "this host has no RDMA connection manager (%s): \"modprobe rdma_ucm\", "
            "or give a --multicast-group without verbs://",
            strerror(errno));
    rc = prepare_fd(p->events->fd, err);
    if (!rc)
        rc = find_device(p, err);
    if (!rc)
        rc = check_device(p, err);
    if (rc)
        return rc;
    p->pd = ibv_alloc_pd(p->id->verbs);
    return p->pd ? 0 : no_resource(p, "protection domain", err);
}

/* Consumes notifications of completions and asks for the next one. The caller has to poll once
 * more, for completions that came between. */
static void arm(struct pair *p)
{
    struct ibv_cq *cq;
    void *context;
    while (!ibv_get_cq_event(p->channel, &cq, &context))
        ibv_ack_cq_events(cq, 1);
    ibv_req_notify_cq(p->cq, 0);
}

/* ------------------------------------------------------------ sending */

struct verbs_out {
    struct ibx_multicast_out out;
    struct pair pair;
    struct ibv_ah *way;
    unsigned half;     /* the half of the memory that is being filled */
    bool busy[HALVES]; /* the device is sending from this half */
    struct ibv_sge segments[AT_ONCE];
    struct ibv_send_wr requests[AT_ONCE];
};

typedef uint8_t page_room[IBX_MULTICAST_PAGE_ROOM];

static page_room *half_at(const struct verbs_out *v, unsigned half)
{
    return (page_room *)(void *)v->pair.memory + (size_t)half * AT_ONCE;
}

/* Takes a completion of sent datagrams. 1: there is none. */
static int take_completion(struct verbs_out *v, struct ibx_error *err)
{
    struct ibv_wc wc;
    const int n = ibv_poll_cq(v->pair.cq, 1, &wc);
    if (n > 0 && wc.status == IBV_WC_SUCCESS) {
        v->busy[wc.wr_id % HALVES] = false;
        return 0;
    }
    if (!n)
        return 1;
    return ibx_error_set(err, -EIO, "%s does not send datagrams: %s", name_of(&v->pair),
                         n < 0 ? "its completion queue is in error" : ibv_wc_status_str(wc.status));
}

static int await_half(struct verbs_out *v, struct ibx_error *err)
{
    const uint64_t until = ibx_deadline_in_ms(SEND_MS);
    struct pollfd fd = {.fd = v->pair.channel->fd, .events = POLLIN};
    bool armed = false;
    while (v->busy[v->half]) {
        const int rc = take_completion(v, err);
        if (rc < 0)
            return rc;
        if (rc && armed && ibx_now_ns() >= until)
            return ibx_error_set(err, -ETIMEDOUT, "%s has taken none for %u ms", name_of(&v->pair),
                                 SEND_MS);
        if (rc && armed)
            poll(&fd, 1, ibx_ms_until(until));
        if (rc)
            arm(&v->pair);
        armed = rc;
    }
    return 0;
}

/* Only the last of the requests is signalled, when all are done. */
static void prepare(struct verbs_out *v, unsigned pages, unsigned parts)
{
    const struct pair *p = &v->pair;
    unsigned n = 0;
    for (unsigned page = 0; page < pages; page++) {
        uint8_t *at = v->out.pages[page];
        for (unsigned part = 0; part < parts; part++, n++) {
            const size_t length = ibx_multicast_datagram(parts, part);
            v->segments[n] = (struct ibv_sge){(uintptr_t)at, (uint32_t)length, p->mr->lkey};
            v->requests[n] = (struct ibv_send_wr){.wr_id = v->half,
                                                  .next = &v->requests[n + 1],
                                                  .sg_list = &v->segments[n],
                                                  .num_sge = 1,
                                                  .opcode = IBV_WR_SEND,
                                                  .wr.ud = {v->way, p->number, p->qkey}};
            at += length;
        }
    }
    v->requests[n - 1].next = NULL;
    v->requests[n - 1].send_flags = IBV_SEND_SIGNALED;
}

static int verbs_send(struct ibx_multicast_out *out, unsigned pages, unsigned parts,
                      struct ibx_error *err)
{
    struct verbs_out *v = (struct verbs_out *)out;
    struct ibv_send_wr *bad;
    enum rdma_cm_event_type type;
    int status;
    if (look_at_events(&v->pair, &type, &status))
        return ibx_error_set(err, -ENETDOWN, "%s sends no datagrams any more: %s",
                             name_of(&v->pair), event_text(type));
    prepare(v, pages, parts);
    const int code = ibv_post_send(v->pair.id->qp, v->requests, &bad);
    if (code)
        return ibx_error_set(err, -code, "%s takes no datagrams: %s", name_of(&v->pair),
                             strerror(code));
    v->busy[v->half] = true;
    v->half = (v->half + 1) % HALVES;
    v->out.pages = half_at(v, v->half);
    return await_half(v, err);
}

static void verbs_out_close(struct ibx_multicast_out *out)
{
    struct verbs_out *v = (struct verbs_out *)out;
    if (v->way)
        ibv_destroy_ah(v->way);
    close_pair(&v->pair);
    free(v);
}

static int open_out(struct verbs_out *v, unsigned hops, struct ibx_error *err)
{
    struct pair *p = &v->pair;
    p->memory = make_memory(p, sizeof(page_room) * AT_ONCE * HALVES);
    if (!p->memory)
        return no_resource(p, "registered memory", err);
    int rc = join(p, true, err); /* without a queue pair, so that nothing is received */
    if (!rc)
        rc = make_queues(p, AT_ONCE * HALVES, 0, err);
    if (rc)
        return rc;
    p->way.grh.hop_limit = (uint8_t)hops;
    v->way = ibv_create_ah(p->pd, &p->way);
    v->out.pages = half_at(v, 0);
    v->out.room = p->mtu;
    return v->way ? 0 : no_resource(p, "address handle", err);
}

int ibx_multicast_verbs_out(const struct sockaddr_storage *group, unsigned interface, unsigned hops,
                            struct ibx_multicast_out **out, struct ibx_error *err)
{
    static const struct ibx_multicast_out_ops ops = {verbs_send, verbs_out_close};
    struct verbs_out *v = calloc(1, sizeof(*v));
    if (!v)
        return ibx_error_set(err, -ENOMEM, "no memory for a multicast group's datagrams");
    v->out = (struct ibx_multicast_out){.ops = &ops, .heads = HEADS};
    int rc = open_pair(&v->pair, group, interface, err);
    if (!rc)
        rc = open_out(v, hops, err);
    if (rc)
        verbs_out_close(&v->out);
    else
        *out = &v->out;
    return rc;
}

/* ------------------------------------------------------------ receiving */

struct verbs_in {
    struct ibx_multicast_in in;
    struct pair pair;
    unsigned receives;
};

static int post(struct verbs_in *v, const uint64_t *slots, unsigned n)
{
    struct ibv_sge segments[AT_ONCE];
    struct ibv_recv_wr requests[AT_ONCE], *bad;
    for (unsigned i = 0; i < n; i++) {
        segments[i] = (struct ibv_sge){(uintptr_t)v->pair.memory + slots[i] * RECEIVE_BYTES,
                                       RECEIVE_BYTES, v->pair.mr->lkey};
        requests[i] = (struct ibv_recv_wr){.wr_id = slots[i],
                                           .next = i + 1 < n ? &requests[i + 1] : NULL,
                                           .sg_list = &segments[i],
                                           .num_sge = 1};
    }
    return n ? ibv_post_recv(v->pair.id->qp, requests, &bad) : 0;
}

static int fail_in(const struct verbs_in *v, const char *why, struct ibx_error *err)
{
    return ibx_error_set(err, -EIO, "%s receives no datagrams any more: %s", name_of(&v->pair),
                         why);
}

static int hand_out(struct verbs_in *v, const struct ibv_wc *wc, int n, ibx_multicast_each *each,
                    void *context, struct ibx_error *err)
{
    uint64_t slots[AT_ONCE];
    for (int i = 0; i < n; i++) {
        if (wc[i].status != IBV_WC_SUCCESS)
            return fail_in(v, ibv_wc_status_str(wc[i].status), err);
        slots[i] = wc[i].wr_id;
        const size_t all = wc[i].byte_len;
        each(context, v->pair.memory + slots[i] * RECEIVE_BYTES + ROUTING,
             all > ROUTING && all <= RECEIVE_BYTES ? all - ROUTING : 0);
    }
    const int code = post(v, slots, (unsigned)n);
    return code ? fail_in(v, strerror(code), err) : n;
}

static int verbs_take(struct ibx_multicast_in *in, ibx_multicast_each *each, void *context,
                      struct ibx_error *err)
{
    struct verbs_in *v = (struct verbs_in *)in;
    struct ibv_wc wc[AT_ONCE];
    enum rdma_cm_event_type type;
    int status, n = ibv_poll_cq(v->pair.cq, (int)AT_ONCE, wc);
    if (!n) {
        arm(&v->pair);
        n = ibv_poll_cq(v->pair.cq, (int)AT_ONCE, wc);
    }
    if (n < 0)
        return fail_in(v, "its completion queue is in error", err);
    if (!n && look_at_events(&v->pair, &type, &status))
        return fail_in(v, event_text(type), err);
    return hand_out(v, wc, n, each, context, err);
}

static void verbs_in_close(struct ibx_multicast_in *in)
{
    struct verbs_in *v = (struct verbs_in *)in;
    close_pair(&v->pair);
    free(v);
}

/* Makes as many receives as the device and the limit on locked memory allow. */
static int make_receives(struct verbs_in *v, struct ibx_error *err)
{
    struct pair *p = &v->pair;
    struct ibv_device_attr device;
    unsigned most = RECEIVES;
    if (!ibv_query_device(p->id->verbs, &device)) {
        const int less = device.max_qp_wr < device.max_cqe ? device.max_qp_wr : device.max_cqe;
        most = less > (int)RECEIVES ? RECEIVES : less > 1 ? (unsigned)less - 1 : 1;
    }
    while (!(p->memory = make_memory(p, (size_t)most * RECEIVE_BYTES)) && most / 2 >= RECEIVES_MIN)
        most /= 2;
    v->receives = most;
    return p->memory ? 0 : no_resource(p, "registered memory", err);
}

static int open_in(struct verbs_in *v, struct ibx_error *err)
{
    int rc = make_receives(v, err);
    if (!rc)
        rc = make_queues(&v->pair, 1, v->receives, err);
    for (uint64_t at = 0; !rc && at < v->receives; at += AT_ONCE) {
        uint64_t slots[AT_ONCE];
        unsigned n = 0;
        for (; n < AT_ONCE && at + n < v->receives; n++)
            slots[n] = at + n;
        const int code = post(v, slots, n);
        rc = code ? fail_in(v, strerror(code), err) : 0;
    }
    return rc ? rc : join(&v->pair, false, err); /* rdma_cm attaches the queue pair */
}

int ibx_multicast_verbs_in(const struct sockaddr_storage *group, unsigned interface,
                           struct ibx_multicast_in **in, struct ibx_error *err)
{
    static const struct ibx_multicast_in_ops ops = {verbs_take, verbs_in_close};
    struct verbs_in *v = calloc(1, sizeof(*v));
    if (!v)
        return ibx_error_set(err, -ENOMEM, "no memory for a multicast group's datagrams");
    v->in.ops = &ops;
    int rc = open_pair(&v->pair, group, interface, err);
    if (!rc)
        rc = open_in(v, err);
    if (rc) {
        verbs_in_close(&v->in);
        return rc;
    }
    v->in.fd = v->pair.channel->fd;
    *in = &v->in;
    return 0;
}
