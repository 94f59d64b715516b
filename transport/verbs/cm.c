/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Connecting the queue pairs by rdma_cm.
 *
 *   offer   u8 version, u8 rails, u8 lanes a rail, u16 MTU (0 any): of the options or, where it is
 *           not the longest, of the ports,
 *           then a rail each: u8 4 or 6, 16 bytes of address, u16 port
 *   answer  u8 rails, u8 lanes a rail, u16 MTU: the smaller of both ends'
 *
 * Then every lane is an rdma_cm connection of its own. RDMA has no authentication, so its request
 * and its reply carry a proof that only the two authenticated ends can make, over the lane, the
 * addresses and the queue pair numbers. Neither side connects a queue pair before it has checked
 * the other's.
 *
 *   request private data   u8 version, u8 0, u16 lane, 32 bytes of proof
 *   reply private data     32 bytes of proof
 */
#include "transport/verbs/verbs.h"

#include "common/address.h"
#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define VERSION       1u
#define LANES_DEFAULT 4u
#define RESOLVE_MS    2000u
#define REQUEST_BYTES (4u + IBX_PROOF_BYTES)

/* An event of rdma_cm, kept beyond its acknowledgement. */
struct cm_event {
    enum rdma_cm_event_type type;
    int status;
    struct rdma_cm_id *id;
    struct rdma_cm_id *listener;
    uint32_t qp_num; /* the peer's */
    uint8_t data[REQUEST_BYTES];
    size_t length;
    uint8_t responder_resources, initiator_depth;
};

/* Takes the next event. -EAGAIN: there is none. */
static int event_take(struct verbs *v, struct cm_event *event)
{
    struct rdma_cm_event *from;
    if (rdma_get_cm_event(v->events, &from))
        return -errno;
    *event = (struct cm_event){
        .type = from->event, .status = from->status, .id = from->id, .listener = from->listen_id};
    if (from->event == RDMA_CM_EVENT_CONNECT_REQUEST ||
        from->event == RDMA_CM_EVENT_CONNECT_RESPONSE) {
        const struct rdma_conn_param *param = &from->param.conn;
        event->qp_num = param->qp_num;
        event->responder_resources = param->responder_resources;
        event->initiator_depth = param->initiator_depth;
        event->length = param->private_data_len;
        if (event->length > sizeof(event->data))
            event->length = sizeof(event->data);
        if (event->length)
            memcpy(event->data, param->private_data, event->length);
    }
    rdma_ack_cm_event(from);
    return 0;
}

/* -ETIMEDOUT also where events come without end, as strangers' requests may. */
static int event_wait(struct verbs *v, struct cm_event *event, uint64_t deadline_ns)
{
    for (;;) {
        int rc = ibx_now_ns() < deadline_ns ? event_take(v, event) : -ETIMEDOUT;
        if (rc != -EAGAIN)
            return rc;
        rc = ibx_link_wait(v->link, v->events->fd, POLLIN, deadline_ns);
        if (rc)
            return rc;
    }
}

static const struct ibx_state lane_states[] = {
    [VERBS_LANE_NEW] = {"new", IBX_TO(VERBS_LANE_ADDRESSED) | IBX_TO(VERBS_LANE_CONNECTING),
                        IBX_STATE_INITIAL},
    [VERBS_LANE_ADDRESSED] = {"addressed", IBX_TO(VERBS_LANE_ROUTED), 0},
    [VERBS_LANE_ROUTED] = {"routed", IBX_TO(VERBS_LANE_CONNECTING), 0},
    [VERBS_LANE_CONNECTING] = {"connecting", IBX_TO(VERBS_LANE_UP), 0},
    [VERBS_LANE_UP] = {"up", IBX_TO(VERBS_LANE_DOWN), 0},
    [VERBS_LANE_DOWN] = {"down", 0, IBX_STATE_FINAL}};
static const struct ibx_state_table lane_table = IBX_STATE_TABLE("verbs lane", lane_states);

static int lane_move(struct verbs_lane *lane, enum verbs_lane_state to, struct ibx_error *err)
{
    int rc = ibx_state_move(&lane->state, to);
    return rc ? ibx_error_set(err, rc, "internal error: queue pair %u cannot become %s from %s",
                              lane->index, ibx_state_name(&lane_table, to),
                              ibx_state_name(&lane_table, lane->state.now))
              : 0;
}

static bool all_in(const struct verbs *v, enum verbs_lane_state state)
{
    for (unsigned i = 0; i < v->lane_count; i++) {
        if (v->lanes[i].state.now != state)
            return false;
    }
    return true;
}

static int wait_failed(int rc, const char *what, struct ibx_error *err)
{
    const char *why = rc == -ETIMEDOUT   ? "no answer in time"
                      : rc == -ECANCELED ? "the peer gave up"
                                         : strerror(-rc);
    return ibx_error_set(err, rc, "%s: %s", what, why);
}

/* Rail 0 has lane 0 as well; bulk lanes are distributed in turn, so that few chunks still use all
 * rails. */
static int lanes_make(struct verbs *v, struct ibx_error *err)
{
    v->lane_count = 1 + v->rail_count * v->lanes_per_rail;
    v->lanes = calloc(v->lane_count, sizeof(*v->lanes));
    if (!v->lanes)
        return ibx_error_set(err, -ENOMEM, "no memory for %u queue pairs", v->lane_count);
    for (unsigned i = 0; i < v->lane_count; i++) {
        ibx_state_begin(&v->lanes[i].state, &lane_table, VERBS_LANE_NEW);
        v->lanes[i].index = i;
        v->lanes[i].rail = &v->rails[i ? (i - 1) % v->rail_count : 0];
    }
    return 0;
}

/* --------------------------------------------------------------------- proofs */

enum proof_side { PROOF_REQUEST, PROOF_REPLY };

/* rdma_cm tells both ends the client's address and both queue pair numbers, so a proof that was
 * overheard is invalid on any other queue pair. */
static void prove(struct verbs *v, const struct verbs_lane *lane, enum proof_side side,
                  uint32_t client_qp, uint32_t server_qp, uint8_t proof[IBX_PROOF_BYTES])
{
    char client[INET6_ADDRSTRLEN], label[160];
    bool is_client = ibx_link_role(v->link) == IBX_ROLE_CLIENT;
    ibx_verbs_address_print(is_client ? rdma_get_local_addr(lane->id)
                                      : rdma_get_peer_addr(lane->id),
                            client, sizeof(client));
    if (side == PROOF_REQUEST)
        snprintf(label, sizeof(label), "verbs queue pair %u request from %s %u", lane->index,
                 client, client_qp);
    else
        snprintf(label, sizeof(label), "verbs queue pair %u reply to %s %u by %u", lane->index,
                 client, client_qp, server_qp);
    ibx_link_proof(v->link, label, proof);
}

/* ---------------------------------------------------------------------- server */

/* What both sides do first for a lane that has an rdma_cm_id. */
static int lane_open(struct verbs *v, struct verbs_lane *lane, struct ibx_error *err)
{
    int rc = ibx_verbs_rail_open(v, lane->rail, lane->id, err);
    if (!rc && !lane->index)
        rc = ibx_verbs_messages_open(v, err);
    if (!rc)
        rc = ibx_verbs_qp_create(v, lane, err);
    if (!rc && !lane->index)
        rc = ibx_verbs_messages_prepost(v, err);
    return rc;
}

/* The address of the handshake socket or of its peer, without the port. */
static bool socket_address(const struct verbs *v, bool peer, struct sockaddr_storage *address)
{
    bool found = ibx_address_of_socket(ibx_link_socket(v->link), peer, address);
    if (found)
        *ibx_address_port(address) = 0;
    return found;
}

/* An address of this host on rail n's device, if possible the one of the handshake. `family`: the
 * family that it must have to reach another address of that family, or AF_UNSPEC. */
static int device_address(struct verbs *v, unsigned n, const char *device, sa_family_t family,
                          struct sockaddr_storage *address, struct ibx_error *err)
{
    struct sockaddr_storage own;
    bool found = socket_address(v, false, &own);
    if (family && !(found && own.ss_family == family)) { /* any address of that family */
        own = (struct sockaddr_storage){.ss_family = family};
        found = true;
    }
    return ibx_verbs_device_address(ibx_link_options(v->link), device,
                                    found ? (const struct sockaddr *)&own : NULL, v->ports, n,
                                    address, err);
}

static int rail_listen(struct verbs *v, unsigned n, struct ibx_error *err)
{
    const struct ibx_options *options = ibx_link_options(v->link);
    struct verbs_rail *rail = &v->rails[n];
    char device[64];
    ibx_verbs_device_name(options, n, device, sizeof(device));
    int rc = device_address(v, n, device, AF_UNSPEC, &rail->address, err);
    if (rc)
        return rc;
    if (rdma_create_id(v->events, &rail->listener, NULL, RDMA_PS_TCP)) {
        rail->listener = NULL;
        return ibx_error_set(err, -errno, "rdma_create_id failed: %s", strerror(errno));
    }
    char text[INET6_ADDRSTRLEN];
    ibx_verbs_address_print((struct sockaddr *)&rail->address, text, sizeof(text));
    /* 0 is the largest backlog: unauthenticated peers must not displace the client. */
    if (rdma_bind_addr(rail->listener, (struct sockaddr *)&rail->address) ||
        rdma_listen(rail->listener, 0))
        return ibx_error_set(err, -errno, "cannot listen for RDMA connections on %s: %s", text,
                             strerror(errno));
    return ibx_verbs_device_check(options, n, rail->listener, err);
}

static unsigned smaller(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* The smaller of two MTUs; 0 is any. */
static unsigned smaller_mtu(unsigned a, unsigned b)
{
    return !a || (b && b < a) ? b : a;
}

/* The MTU to offer, in bytes; 0: unknown, or the longest that exists, which need not be sent. */
static unsigned port_mtu(const struct rdma_cm_id *id)
{
    struct ibv_port_attr port;
    if (ibv_query_port(id->verbs, id->port_num, &port) || port.active_mtu == IBV_MTU_4096)
        return 0;
    return ibx_verbs_mtu_bytes(port.active_mtu);
}

static void put_address(struct ibx_writer *w, const struct verbs_rail *rail)
{
    uint8_t bytes[16] = {0};
    size_t length;
    const void *host = ibx_address_host((const struct sockaddr *)&rail->address, &length);
    if (host)
        memcpy(bytes, host, length);
    ibx_put_u8(w, length == 16 ? 6 : 4);
    ibx_put_bytes(w, bytes, sizeof(bytes));
    ibx_put_u16(w, ntohs(rdma_get_src_port(rail->listener)));
}

int ibx_verbs_offer(void *endpoint, struct ibx_writer *offer, struct ibx_error *err)
{
    struct verbs *v = endpoint;
    const struct ibx_options *options = ibx_link_options(v->link);
    v->lanes_per_rail = options->lanes ? options->lanes : LANES_DEFAULT;
    v->mtu = options->mtu;
    char device[64];
    while (v->rail_count < options->rails) {
        int rc = rail_listen(v, v->rail_count, err);
        /* Fewer devices than rails are a smaller offer, unless they were named. */
        if (rc && (!v->rail_count ||
                   ibx_verbs_device_name(options, v->rail_count, device, sizeof(device))))
            return rc;
        if (rc)
            break;
        if (!options->mtu)
            v->mtu = smaller_mtu(v->mtu, port_mtu(v->rails[v->rail_count].listener));
        v->rail_count++;
    }
    ibx_put_u8(offer, VERSION);
    ibx_put_u8(offer, (uint8_t)v->rail_count);
    ibx_put_u8(offer, (uint8_t)v->lanes_per_rail);
    ibx_put_u16(offer, (uint16_t)v->mtu);
    for (unsigned i = 0; i < v->rail_count; i++)
        put_address(offer, &v->rails[i]);
    return 0;
}

static int read_answer(struct verbs *v, struct ibx_reader *answer, struct ibx_error *err)
{
    unsigned rails = ibx_get_u8(answer), lanes = ibx_get_u8(answer), mtu = ibx_get_u16(answer);
    if (answer->failed || ibx_reader_left(answer) || !rails || rails > v->rail_count || !lanes ||
        lanes > v->lanes_per_rail || smaller_mtu(mtu, v->mtu) != mtu)
        return ibx_error_set(err, -EPROTO, "the client's answer to the verbs offer is malformed");
    v->rail_count = rails;
    v->lanes_per_rail = lanes;
    v->mtu = mtu;
    return lanes_make(v, err);
}

/* The lane a request is for, or NULL and why it is refused. */
static struct verbs_lane *request_lane(struct verbs *v, const struct cm_event *event,
                                       const char **why)
{
    struct ibx_reader r = ibx_reader_of(event->data, event->length);
    unsigned version = ibx_get_u8(&r), zero = ibx_get_u8(&r), index = ibx_get_u16(&r);
    const uint8_t *proof = ibx_get_bytes(&r, IBX_PROOF_BYTES);
    *why = "it does not follow this protocol";
    if (!proof || version != VERSION || zero || index >= v->lane_count)
        return NULL;
    struct verbs_lane *lane = &v->lanes[index];
    *why = "that queue pair is connected already";
    if (lane->state.now != VERBS_LANE_NEW)
        return NULL;
    *why = "it arrived at the wrong device";
    if (lane->rail->listener != event->listener)
        return NULL;
    uint8_t expected[IBX_PROOF_BYTES];
    lane->id = event->id;
    prove(v, lane, PROOF_REQUEST, event->qp_num, 0, expected);
    lane->id = NULL;
    *why = "its proof is wrong";
    return CRYPTO_memcmp(proof, expected, sizeof(expected)) ? NULL : lane;
}

static int accept_lane(struct verbs *v, struct verbs_lane *lane, const struct cm_event *event,
                       struct ibx_error *err)
{
    lane->id = event->id;
    lane->id->context = lane;
    int rc = ibx_verbs_device_check(ibx_link_options(v->link), (unsigned)(lane->rail - v->rails),
                                    lane->id, err);
    if (!rc)
        rc = lane_open(v, lane, err);
    if (!rc)
        rc = ibx_verbs_qp_connect(v, lane, err);
    if (rc)
        return rc;
    uint8_t proof[IBX_PROOF_BYTES];
    prove(v, lane, PROOF_REPLY, event->qp_num, lane->qp->qp_num, proof);
    const struct ibv_device_attr *limits = &lane->rail->limits;
    struct rdma_conn_param param = {
        .private_data = proof,
        .private_data_len = sizeof(proof),
        .responder_resources =
            (uint8_t)smaller(event->responder_resources, (unsigned)limits->max_qp_rd_atom),
        .initiator_depth =
            (uint8_t)smaller(event->initiator_depth, (unsigned)limits->max_qp_init_rd_atom),
        .rnr_retry_count = 6,
        .qp_num = lane->qp->qp_num,
    };
    if (rdma_accept(lane->id, &param))
        return ibx_error_set(err, -errno, "rdma_accept failed: %s", strerror(errno));
    return lane_move(lane, VERBS_LANE_CONNECTING, err);
}

/* A request without a valid proof is rejected; the right one may still arrive. */
static int handle_request(struct verbs *v, const struct cm_event *event, struct ibx_error *err)
{
    const char *why;
    struct verbs_lane *lane = request_lane(v, event, &why);
    if (lane)
        return accept_lane(v, lane, event, err);
    char peer[INET6_ADDRSTRLEN];
    ibx_verbs_address_print(rdma_get_peer_addr(event->id), peer, sizeof(peer));
    if (!v->told)
        ibx_log(IBX_LOG_WARN, "refused an RDMA connection from %s: %s", peer, why);
    v->told = true;
    rdma_reject(event->id, NULL, 0);
    rdma_destroy_id(event->id);
    return 0;
}

/* ---------------------------------------------------------------------- client */

static int get_address(struct verbs *v, struct ibx_reader *r, struct verbs_rail *rail)
{
    unsigned kind = ibx_get_u8(r);
    const uint8_t *bytes = ibx_get_bytes(r, 16);
    uint16_t port = htons(ibx_get_u16(r));
    if (r->failed || (kind != 4 && kind != 6) || !port)
        return -EPROTO;
    ibx_address_make(&rail->address, bytes, kind == 4 ? 4 : 16, port);
    /* A link-local address is valid on one link only: the one to the peer. */
    struct sockaddr_storage own;
    struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *)&rail->address;
    if (sin6->sin6_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&sin6->sin6_addr) &&
        socket_address(v, true, &own) && own.ss_family == AF_INET6)
        sin6->sin6_scope_id = ((struct sockaddr_in6 *)&own)->sin6_scope_id;
    return 0;
}

static int read_offer(struct verbs *v, struct ibx_reader *offer, struct ibx_error *err)
{
    const struct ibx_options *options = ibx_link_options(v->link);
    unsigned version = ibx_get_u8(offer), rails = ibx_get_u8(offer), lanes = ibx_get_u8(offer);
    unsigned mtu = ibx_get_u16(offer);
    int rc = offer->failed || !rails || rails > IBX_RAILS_MAX || !lanes || lanes > VERBS_LANES_MAX
                 ? -EPROTO
                 : 0;
    for (unsigned i = 0; i < rails && !rc; i++)
        rc = get_address(v, offer, &v->rails[i]);
    if (rc || ibx_reader_left(offer) || version != VERSION || (mtu && mtu < 256) || mtu > 4096)
        return ibx_error_set(err, -EPROTO, "the server's verbs offer is malformed");
    v->rail_count = smaller(rails, options->rails);
    v->lanes_per_rail = smaller(lanes, options->lanes ? options->lanes : LANES_DEFAULT);
    v->mtu = smaller_mtu(mtu, options->mtu);
    return lanes_make(v, err);
}

static int no_route(const struct verbs_lane *lane, int code, struct ibx_error *err)
{
    char text[INET6_ADDRSTRLEN];
    ibx_verbs_address_print((const struct sockaddr *)&lane->rail->address, text, sizeof(text));
    return ibx_error_set(err, code, "no RDMA device routes to %s: %s", text, strerror(-code));
}

/* The source address by which rdma_cm uses the device of the options; NULL: the route decides. */
static int rail_source(struct verbs *v, unsigned n, struct sockaddr_storage *source, bool *bound,
                       struct ibx_error *err)
{
    const struct ibx_options *options = ibx_link_options(v->link);
    char device[64];
    *bound = ibx_verbs_device_name(options, n, device, sizeof(device)) || options->port_num ||
             options->gid_index >= 0;
    return *bound ? device_address(v, n, device, v->rails[n].address.ss_family, source, err) : 0;
}

/* How long an address or a route may take to resolve: RESOLVE_MS, but half of timeout_ms at most
 * and a fifth at least. The server waits for the answer meanwhile, so a path that leads nowhere
 * must leave time to try another one. Whoever gives a connection more time than usual expects a
 * slow host. */
static unsigned resolve_ms(const struct verbs *v)
{
    const unsigned all = ibx_link_options(v->link)->timeout_ms;
    const unsigned usual = smaller(RESOLVE_MS, all / 2);
    return usual > all / 5 ? usual : all / 5;
}

static int resolve_start(struct verbs *v, struct ibx_error *err)
{
    for (unsigned n = 0; n < v->rail_count; n++) {
        struct sockaddr_storage source;
        bool bound;
        int rc = rail_source(v, n, &source, &bound, err);
        if (rc)
            return rc;
        for (unsigned i = 0; i < v->lane_count; i++) {
            struct verbs_lane *lane = &v->lanes[i];
            if (lane->rail != &v->rails[n])
                continue;
            if (rdma_create_id(v->events, &lane->id, lane, RDMA_PS_TCP)) {
                lane->id = NULL;
                return ibx_error_set(err, -errno, "rdma_create_id failed: %s", strerror(errno));
            }
            if (rdma_resolve_addr(lane->id, bound ? (struct sockaddr *)&source : NULL,
                                  (struct sockaddr *)&lane->rail->address, (int)resolve_ms(v)))
                return no_route(lane, -errno, err);
        }
    }
    return 0;
}

static int resolve_step(struct verbs *v, const struct cm_event *event, struct ibx_error *err)
{
    struct verbs_lane *lane = event->id->context;
    if (event->type == RDMA_CM_EVENT_ADDR_RESOLVED && lane->state.now == VERBS_LANE_NEW) {
        int rc = ibx_verbs_device_check(ibx_link_options(v->link),
                                        (unsigned)(lane->rail - v->rails), lane->id, err);
        if (!rc)
            rc = lane_move(lane, VERBS_LANE_ADDRESSED, err);
        if (rc)
            return rc;
        return rdma_resolve_route(lane->id, (int)resolve_ms(v)) ? no_route(lane, -errno, err) : 0;
    }
    if (event->type == RDMA_CM_EVENT_ROUTE_RESOLVED && lane->state.now == VERBS_LANE_ADDRESSED)
        return lane_move(lane, VERBS_LANE_ROUTED, err);
    return no_route(lane, event->status < 0 ? event->status : -EHOSTUNREACH, err);
}

static int resolve(struct verbs *v, struct ibx_error *err)
{
    uint64_t deadline = ibx_deadline_in_ms(resolve_ms(v));
    int rc = resolve_start(v, err);
    while (!rc && !all_in(v, VERBS_LANE_ROUTED)) {
        struct cm_event event;
        rc = event_wait(v, &event, deadline);
        rc = rc ? wait_failed(rc, "cannot resolve the RDMA route", err)
                : resolve_step(v, &event, err);
    }
    return rc;
}

/* Routes alone may lead all rails through the same device, which gains nothing. */
static void check_rails(const struct verbs *v)
{
    for (unsigned n = 1; n < v->rail_count; n++) {
        const struct rdma_cm_id *before = v->lanes[n].id, *id = v->lanes[1 + n].id;
        const char *name = ibv_get_device_name(id->verbs->device);
        if (id->port_num == before->port_num &&
            !strcmp(name, ibv_get_device_name(before->verbs->device)))
            ibx_log(IBX_LOG_WARN,
                    "rails %u and %u both lead through port %u of %s: name a device for each by "
                    "device, or give their networks routes of their own",
                    n, n + 1, id->port_num, name);
    }
}

/* Lowers the MTU to what the paths carry, if the server's is larger. An MTU that this end's options
 * ask for is not lowered: if the path does not carry it, that is an error. */
static void fit_mtu(struct verbs *v)
{
    for (unsigned i = 0; i < v->lane_count && !ibx_link_options(v->link)->mtu; i++) {
        const struct rdma_cm_id *id = v->lanes[i].id;
        const unsigned path =
            id->route.num_paths ? ibx_verbs_mtu_bytes(id->route.path_rec->mtu) : 0;
        if (v->mtu)
            v->mtu = smaller_mtu(smaller_mtu(v->mtu, path), port_mtu(id));
    }
}

int ibx_verbs_join(void *endpoint, struct ibx_reader *offer, struct ibx_writer *answer,
                   struct ibx_error *err)
{
    struct verbs *v = endpoint;
    int rc = read_offer(v, offer, err);
    if (!rc)
        rc = resolve(v, err);
    if (!rc) {
        check_rails(v);
        fit_mtu(v);
    }
    for (unsigned i = 0; i < v->lane_count && !rc; i++)
        rc = lane_open(v, &v->lanes[i], err);
    if (rc)
        return rc;
    ibx_put_u8(answer, (uint8_t)v->rail_count);
    ibx_put_u8(answer, (uint8_t)v->lanes_per_rail);
    ibx_put_u16(answer, (uint16_t)v->mtu);
    return 0;
}

static int connect_lane(struct verbs *v, struct verbs_lane *lane, struct ibx_error *err)
{
    uint8_t data[REQUEST_BYTES], proof[IBX_PROOF_BYTES];
    struct ibx_writer w = ibx_writer_of(data, sizeof(data));
    prove(v, lane, PROOF_REQUEST, lane->qp->qp_num, 0, proof);
    ibx_put_u8(&w, VERSION);
    ibx_put_u8(&w, 0);
    ibx_put_u16(&w, (uint16_t)lane->index);
    ibx_put_bytes(&w, proof, sizeof(proof));
    const struct ibv_device_attr *limits = &lane->rail->limits;
    struct rdma_conn_param param = {
        .private_data = data,
        .private_data_len = (uint8_t)w.length,
        .responder_resources = (uint8_t)smaller((unsigned)limits->max_qp_rd_atom, 255),
        .initiator_depth = (uint8_t)smaller((unsigned)limits->max_qp_init_rd_atom, 255),
        .flow_control = 1,
        .retry_count = 6,
        .rnr_retry_count = 6,
        .qp_num = lane->qp->qp_num,
    };
    if (rdma_connect(lane->id, &param))
        return ibx_error_set(err, -errno, "rdma_connect failed: %s", strerror(errno));
    return lane_move(lane, VERBS_LANE_CONNECTING, err);
}

static int handle_reply(struct verbs *v, struct verbs_lane *lane, const struct cm_event *event,
                        struct ibx_error *err)
{
    uint8_t expected[IBX_PROOF_BYTES];
    prove(v, lane, PROOF_REPLY, lane->qp->qp_num, event->qp_num, expected);
    if (event->length < sizeof(expected) || CRYPTO_memcmp(event->data, expected, sizeof(expected)))
        return ibx_error_set(
            err, -EACCES, "the server's proof on queue pair %u is wrong: another process answers",
            lane->index);
    int rc = ibx_verbs_qp_connect(v, lane, err);
    if (rc)
        return rc;
    if (rdma_establish(lane->id))
        return ibx_error_set(err, -errno, "rdma_establish failed: %s", strerror(errno));
    return lane_move(lane, VERBS_LANE_UP, err);
}

/* ------------------------------------------------------------------ both sides */

static int finish_step(struct verbs *v, const struct cm_event *event, struct ibx_error *err)
{
    struct verbs_lane *lane = event->id->context;
    bool server = ibx_link_role(v->link) == IBX_ROLE_SERVER;
    if (event->type == RDMA_CM_EVENT_CONNECT_REQUEST && server)
        return handle_request(v, event, err);
    if (!lane)
        return 0;
    if (event->type == RDMA_CM_EVENT_CONNECT_RESPONSE && !server &&
        lane->state.now == VERBS_LANE_CONNECTING)
        return handle_reply(v, lane, event, err);
    if (event->type == RDMA_CM_EVENT_ESTABLISHED && lane->state.now == VERBS_LANE_CONNECTING)
        return lane_move(lane, VERBS_LANE_UP, err);
    if (event->type == RDMA_CM_EVENT_REJECTED)
        return ibx_error_set(err, -ECONNREFUSED, "the peer refused queue pair %u (reason %d)",
                             lane->index, event->status);
    return ibx_error_set(err, -ECONNABORTED, "connecting queue pair %u failed: %s, status %d",
                         lane->index, rdma_event_str(event->type), event->status);
}

int ibx_verbs_finish(void *endpoint, struct ibx_reader *answer, uint64_t deadline_ns,
                     struct ibx_error *err)
{
    struct verbs *v = endpoint;
    int rc = answer ? read_answer(v, answer, err) : 0;
    for (unsigned i = 0; i < v->lane_count && !answer && !rc; i++)
        rc = connect_lane(v, &v->lanes[i], err);
    while (!rc && !all_in(v, VERBS_LANE_UP)) {
        struct cm_event event;
        rc = event_wait(v, &event, deadline_ns);
        rc = rc ? wait_failed(rc, "cannot connect the queue pairs", err)
                : finish_step(v, &event, err);
    }
    for (unsigned i = 0; i < IBX_RAILS_MAX; i++) {
        if (v->rails[i].listener)
            rdma_destroy_id(v->rails[i].listener);
        v->rails[i].listener = NULL;
    }
    if (!rc)
        rc = ibx_link_watch(v->link, v->events->fd);
    v->events_watched = !rc;
    return rc;
}

void ibx_verbs_cm_progress(struct verbs *v)
{
    struct cm_event event;
    while (!event_take(v, &event)) {
        struct verbs_lane *lane = event.id->context;
        if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
            rdma_reject(event.id, NULL, 0);
            rdma_destroy_id(event.id);
        } else if (event.type == RDMA_CM_EVENT_DISCONNECTED && lane) {
            if (lane->state.now == VERBS_LANE_UP)
                ibx_verbs_move(v, &lane->state, VERBS_LANE_DOWN);
            ibx_verbs_lost(v, -ECONNRESET, "the peer disconnected its queue pairs");
        } else if (event.type == RDMA_CM_EVENT_DEVICE_REMOVAL) {
            v->device_removed = true;
            ibx_verbs_lost(v, -ENODEV, "the RDMA device was removed");
        }
    }
}
