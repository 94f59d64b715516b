/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The provider's calls: setting a connection up and taking it down.
 *
 *     server: offer   opens its endpoints, offers their addresses
 *     client: join    opens the same libfabric provider, answers likewise
 *     both:   finish  insert each other's addresses; the client sends a HELLO with its proof on
 *                     every lane, the server answers each with its own
 *
 * libfabric is not used before offer or join, because several of its providers do not survive
 * fork(2). Connections share nothing but a domain, if their users want it (domain.c).
 */
#include "transport/ofi/ofi.h"
#include "transport/core/crypto.h"

#include "common/address.h"
#include "common/clock.h"
#include "common/descriptor.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define DEFAULT_CHUNK (512u << 10) /* measured over tcp; hardware likes 128 to 512 KiB */
#define DEFAULT_DEPTH 32u
/* Measured over tcp: 64 KiB as messages take 36 to 38 us, one-sidedly 35 to 49; 128 KiB 63 to 66
 * and 42 to 54. Of native fabrics there is no figure yet; a READ costs little more than a message.
 */
#define RENDEZVOUS_EMULATED 131072u
#define RENDEZVOUS_NATIVE   16384u
#define RXM_EAGER           16384u /* bytes that ofi_rxm sends at once; more costs round trips */
#define SETTLE_NS           (1 * IBX_NS_PER_MS)
#define CLOSE_MS            100u /* for endpoints that are busy; most close at once */

/* ------------------------------------------------------------------- opening */

/* A completion queue that can be waited for, or else one that cannot. */
static int open_cq(struct ofi_endpoint *e, struct ibx_error *err)
{
    struct fi_cq_attr attr = {
        .size = e->recv_count + e->send_count + e->work_count,
        .format = FI_CQ_FORMAT_MSG,
        .wait_obj = FI_WAIT_FD,
    };
    int rc = fi_cq_open(e->home->domain, &attr, &e->cq, NULL);
    if (!rc && fi_control(&e->cq->fid, FI_GETWAIT, &e->cq_fd)) {
        fi_close(&e->cq->fid);
        rc = -FI_ENOSYS;
    }
    if (rc) {
        e->cq_fd = -1;
        attr.wait_obj = FI_WAIT_NONE;
        rc = fi_cq_open(e->home->domain, &attr, &e->cq, NULL);
    }
    if (rc) {
        e->cq = NULL;
        return ibx_ofi_open_error(e->choice.info, "a completion queue", rc, err);
    }
    /* Some descriptors can miss an event, as fi_cxi(7) documents. */
    if (e->cq_fd >= 0 && ibx_ofi_name_matches(e->own.provider, "tcp"))
        return 0;
    e->timer_fd = ibx_descriptor_apart(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (e->timer_fd < 0)
        return ibx_error_set(err, -errno, "no timer: %s", strerror(errno));
    return 0;
}

static const struct ibx_state lane_states[] = {
    [OFI_LANE_NEW] = {"new", IBX_TO(OFI_LANE_SENT) | IBX_TO(OFI_LANE_PROVEN), IBX_STATE_INITIAL},
    [OFI_LANE_SENT] = {"sent", IBX_TO(OFI_LANE_READY), 0},
    [OFI_LANE_PROVEN] = {"proven", IBX_TO(OFI_LANE_READY), 0},
    [OFI_LANE_READY] = {"ready", 0, IBX_STATE_FINAL}};
const struct ibx_state_table ibx_ofi_lane_table = IBX_STATE_TABLE("ofi lane", lane_states);

static int open_lane(struct ofi_endpoint *e, unsigned i)
{
    struct ofi_lane *lane = &e->lanes[i];
    ibx_state_begin(&lane->state, &ibx_ofi_lane_table, OFI_LANE_NEW);
    int rc = fi_endpoint(e->home->domain, e->choice.info, &lane->ep, NULL);
    if (rc) {
        lane->ep = NULL;
        return rc;
    }
    rc = fi_ep_bind(lane->ep, &e->av->fid, 0);
    if (!rc)
        rc = fi_ep_bind(lane->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV);
    if (!rc)
        rc = fi_enable(lane->ep);
    e->own.address[i].length = OFI_ADDRESS_MAX;
    if (!rc)
        rc = fi_getname(&lane->ep->fid, e->own.address[i].bytes, &e->own.address[i].length);
    if (!rc)
        return 0;
    fi_close(&lane->ep->fid);
    lane->ep = NULL;
    return rc;
}

/* Lane 0 must open; hardware may not have enough contexts for the rest. */
static int open_lanes(struct ofi_endpoint *e, struct ibx_error *err)
{
    for (unsigned i = 0; i < e->lane_count; i++) {
        int rc = open_lane(e, i);
        if (rc && !i)
            return ibx_ofi_open_error(e->choice.info, "an endpoint", rc, err);
        if (rc) {
            ibx_log(IBX_LOG_INFO, "ofi: only %u endpoints: %s", i, fi_strerror(-rc));
            e->lane_count = i;
            break;
        }
    }
    e->own.lanes = e->lane_count;
    return 0;
}

static int open_objects(struct ofi_endpoint *e, struct ibx_error *err)
{
    struct fi_info *info = e->choice.info;
    struct fi_av_attr av = {.type = info->domain_attr->av_type, .count = e->lane_count};
    int rc = ibx_ofi_domain_hold(ibx_link_options(e->link)->domain, &e->choice, &e->home, err);
    if (rc)
        return rc;
    rc = fi_av_open(e->home->domain, &av, &e->av, NULL);
    return rc ? ibx_ofi_open_error(info, "an address vector", rc, err) : 0;
}

static unsigned smaller(size_t a, size_t b)
{
    return (unsigned)(a < b ? a : b);
}

static unsigned lanes_wanted(const struct ibx_options *options)
{
    return 1 + (options->lanes ? options->lanes : 1);
}

static size_t message_memory(const struct ibx_options *options)
{
    return ibx_ofi_msg_memory(options->slots, options->message, lanes_wanted(options));
}

/* Sizes, from the options and the limits of the provider. */
static void settle_sizes(struct ofi_endpoint *e, unsigned lanes_at_most)
{
    const struct ibx_options *options = ibx_link_options(e->link);
    const struct fi_info *info = e->choice.info;
    bool split = e->choice.delivery_complete && !(info->domain_attr->mr_mode & FI_MR_ENDPOINT);
    e->lane_count = smaller(split ? lanes_wanted(options) : 1, lanes_at_most);
    e->is_shm = ibx_ofi_name_matches(e->own.provider, "shm");
    e->depth = options->depth ? options->depth : DEFAULT_DEPTH;
    e->chunk = options->chunk ? options->chunk : DEFAULT_CHUNK;
    if (e->chunk > info->ep_attr->max_msg_size)
        e->chunk = info->ep_attr->max_msg_size;
    e->own.slots = options->slots;
    /* A third of the receive queue is left for what needs no credit. */
    if (info->rx_attr->size >= 8 && e->own.slots > info->rx_attr->size * 2 / 3)
        e->own.slots = (unsigned)(info->rx_attr->size * 2 / 3);
    e->own.message = smaller(options->message, info->ep_attr->max_msg_size - OFI_HEADER_BYTES);
    if (strstr(e->own.provider, ";ofi_rxm") && e->own.message <= RXM_EAGER)
        e->own.message = smaller(e->own.message, RXM_EAGER - OFI_HEADER_BYTES);
}

static int open_all(struct ofi_endpoint *e, const struct ofi_wanted *wanted, unsigned lanes_at_most,
                    struct ibx_error *err)
{
    int rc = ibx_ofi_info_choose(ibx_link_options(e->link), wanted, &e->choice, err);
    if (rc)
        return rc;
    const struct fi_info *info = e->choice.info;
    snprintf(e->own.provider, sizeof(e->own.provider), "%s", info->fabric_attr->prov_name);
    snprintf(e->own.fabric, sizeof(e->own.fabric), "%s",
             info->fabric_attr->name ? info->fabric_attr->name : "");
    e->own.version = fi_version();
    e->own.addr_format = info->addr_format;
    e->own.host = ibx_ofi_side_host();
    settle_sizes(e, lanes_at_most);
    rc = open_objects(e, err);
    if (!rc)
        rc = ibx_ofi_io_init(e, err);
    if (!rc)
        rc = ibx_ofi_msg_init(e, err);
    if (!rc)
        rc = open_cq(e, err);
    if (!rc)
        rc = open_lanes(e, err);
    if (!rc)
        rc = ibx_ofi_mr_buffers(e, err);
    if (rc)
        return rc;
    ibx_ofi_msg_post(e);
    if (e->failure.code && err)
        *err = e->failure;
    return e->failure.code;
}

/* ------------------------------------------------------- the provider's calls */

static const struct ibx_state ofi_states[] = {
    [OFI_SETUP] = {"setup", IBX_TO(OFI_LIVE) | IBX_TO(OFI_STOPPED) | IBX_TO(OFI_CLOSED),
                   IBX_STATE_INITIAL},
    [OFI_LIVE] = {"live", IBX_TO(OFI_STOPPED) | IBX_TO(OFI_CLOSED), 0},
    [OFI_STOPPED] = {"stopped", IBX_TO(OFI_CLOSED), 0},
    [OFI_CLOSED] = {"closed", 0, IBX_STATE_FINAL}};
static const struct ibx_state_table ofi_table = IBX_STATE_TABLE("ofi connection", ofi_states);

static int ofi_open(struct ibx_link *link, void **endpoint, struct ibx_error *err)
{
    struct ofi_endpoint *e = calloc(1, sizeof(*e));
    if (!e)
        return ibx_error_set(err, -ENOMEM, "no memory for a libfabric connection");
    ibx_state_begin(&e->state, &ofi_table, OFI_SETUP);
    e->link = link;
    e->cq_fd = -1;
    e->timer_fd = -1;
    *endpoint = e;
    return 0;
}

static int ofi_offer(void *endpoint, struct ibx_writer *offer, struct ibx_error *err)
{
    struct ofi_endpoint *e = endpoint;
    struct ofi_wanted wanted = {0};
    ibx_address_of_socket(ibx_link_socket(e->link), false, &wanted.local);
    int rc = open_all(e, &wanted, OFI_LANES_MAX, err);
    if (!rc)
        ibx_ofi_side_put(offer, &e->own);
    return rc;
}

/* Whether this end can use what the server offers. */
static int accept_offer(const struct ofi_endpoint *e, struct ibx_error *err)
{
    const struct ibx_options *options = ibx_link_options(e->link);
    const struct ofi_side *peer = &e->peer;
    if (options->ofi_provider[0] && !ibx_ofi_name_matches(peer->provider, options->ofi_provider))
        return ibx_error_set(err, -EOPNOTSUPP,
                             "the server offers libfabric's %s, but ofi_provider is %s here",
                             peer->provider, options->ofi_provider);
    if (!ibx_ofi_name_matches(peer->provider, "shm"))
        return 0;
    if (peer->host != ibx_ofi_side_host())
        return ibx_error_set(err, -EHOSTUNREACH,
                             "the server offers libfabric's shm, but is another host; choose "
                             "another one there by ofi_provider");
    if (peer->version != fi_version())
        return ibx_error_set(
            err, -EOPNOTSUPP,
            "libfabric's shm needs the same version of libfabric on both ends, not %u.%u and %s",
            FI_MAJOR(peer->version), FI_MINOR(peer->version), ibx_ofi_version_text());
    return 0;
}

static int ofi_join(void *endpoint, struct ibx_reader *offer, struct ibx_writer *answer,
                    struct ibx_error *err)
{
    struct ofi_endpoint *e = endpoint;
    int rc = ibx_ofi_side_get(offer, &e->peer, err);
    if (!rc)
        rc = accept_offer(e, err);
    if (rc)
        return rc;
    struct ofi_wanted wanted = {
        .provider = e->peer.provider,
        .fabric = e->peer.fabric,
        .addr_format = e->peer.addr_format,
    };
    ibx_ofi_side_local_towards(&e->peer, &wanted.local);
    rc = open_all(e, &wanted, e->peer.lanes, err);
    if (!rc)
        ibx_ofi_side_put(answer, &e->own);
    return rc;
}

static void derive_secrets(struct ofi_endpoint *e)
{
    uint8_t client[IBX_PROOF_BYTES], server[IBX_PROOF_BYTES];
    bool is_client = ibx_link_role(e->link) == IBX_ROLE_CLIENT;
    ibx_link_proof(e->link, "ofi client", is_client ? e->proof_out : e->proof_in);
    ibx_link_proof(e->link, "ofi server", is_client ? e->proof_in : e->proof_out);
    ibx_link_proof(e->link, "ofi client messages", client);
    ibx_link_proof(e->link, "ofi server messages", server);
    struct ibx_reader out = ibx_reader_of(is_client ? client : server, IBX_PROOF_BYTES);
    struct ibx_reader in = ibx_reader_of(is_client ? server : client, IBX_PROOF_BYTES);
    e->cookie_out = ibx_get_u64(&out);
    e->cookie_in = ibx_get_u64(&in);
}

static int insert_peer(struct ofi_endpoint *e, struct ibx_error *err)
{
    if (!ibx_ofi_side_fits(&e->own, &e->peer))
        return ibx_error_set(err, -EPROTO, "the peer's libfabric address is of another kind");
    for (unsigned i = 0; i < e->lane_count; i++) {
        int n = fi_av_insert(e->av, e->peer.address[i].bytes, 1, &e->lanes[i].peer, 0, NULL);
        if (n != 1)
            return ibx_ofi_open_error(e->choice.info, "a route to the peer's address",
                                      n < 0 ? n : -FI_EINVAL, err);
    }
    return 0;
}

static bool settled(const struct ofi_endpoint *e)
{
    for (unsigned i = 0; i < e->lane_count; i++) {
        if (e->lanes[i].state.now != OFI_LANE_READY)
            return false;
    }
    return !e->in_flight;
}

static int send_hellos(struct ofi_endpoint *e)
{
    for (unsigned i = 0; i < e->lane_count; i++) {
        struct ofi_lane *lane = &e->lanes[i];
        bool proven = lane->state.now == OFI_LANE_PROVEN;
        if (!proven &&
            (ibx_link_role(e->link) == IBX_ROLE_SERVER || lane->state.now != OFI_LANE_NEW))
            continue;
        int rc = ibx_ofi_msg_hello(e, i);
        if (rc && rc != -EAGAIN)
            return rc;
        if (!rc)
            ibx_ofi_move(e, &lane->state, proven ? OFI_LANE_READY : OFI_LANE_SENT);
    }
    return 0;
}

/* Waits for at most a millisecond: setting up proceeds only while it is polled. */
static int wait_a_little(struct ofi_endpoint *e, uint64_t deadline_ns, struct ibx_error *err)
{
    uint64_t now = ibx_now_ns(), until = now + SETTLE_NS;
    if (now >= deadline_ns)
        return ibx_error_set(err, -ETIMEDOUT,
                             "no proof from the peer over libfabric's %s in time; a firewall "
                             "between the two, or no common fabric?",
                             e->own.provider);
    struct fid *fids[] = {&e->cq->fid};
    bool can_sleep = e->cq_fd >= 0 && !fi_trywait(e->home->fabric, fids, 1);
    int rc = ibx_link_wait(e->link, can_sleep ? e->cq_fd : -1, POLLIN,
                           until < deadline_ns ? until : deadline_ns);
    if (rc && rc != -ETIMEDOUT)
        return ibx_error_set(err, rc, "the peer gave up on libfabric's %s", e->own.provider);
    return 0;
}

static int prove(struct ofi_endpoint *e, uint64_t deadline_ns, struct ibx_error *err)
{
    while (!settled(e)) {
        int rc = send_hellos(e);
        ibx_ofi_msg_post(e);
        int taken = ibx_ofi_io_take(e);
        if (!rc)
            rc = e->failure.code;
        if (rc && e->failure.code && err)
            *err = e->failure;
        if (rc)
            return rc;
        /* Others' messages may come without end. */
        if (!settled(e) && (!taken || ibx_now_ns() >= deadline_ns))
            rc = wait_a_little(e, deadline_ns, err);
        if (rc)
            return rc;
    }
    return 0;
}

static int watch(struct ofi_endpoint *e, struct ibx_error *err)
{
    int rc = 0;
    if (e->cq_fd >= 0)
        rc = ibx_link_watch(e->link, e->cq_fd);
    if (!rc && e->timer_fd >= 0)
        rc = ibx_link_watch(e->link, e->timer_fd);
    e->watched = !rc;
    return rc ? ibx_error_set(err, rc, "cannot wait for libfabric: %s", strerror(-rc)) : 0;
}

static int ofi_finish(void *endpoint, struct ibx_reader *answer, uint64_t deadline_ns,
                      struct ibx_error *err)
{
    struct ofi_endpoint *e = endpoint;
    int rc = answer ? ibx_ofi_side_get(answer, &e->peer, err) : 0;
    if (rc)
        return rc;
    if (e->peer.lanes < e->lane_count)
        e->lane_count = e->peer.lanes;
    derive_secrets(e);
    e->credits = e->peer.slots;
    rc = insert_peer(e, err);
    if (!rc)
        rc = prove(e, deadline_ns, err);
    if (!rc)
        rc = watch(e, err);
    return rc || ibx_ofi_move(e, &e->state, OFI_LIVE) ? rc : -EINVAL;
}

static void ofi_query(void *endpoint, struct ibx_caps *caps, char *description, size_t size)
{
    const struct ofi_endpoint *e = endpoint;
    const struct fi_domain_attr *domain = e->choice.info->domain_attr;
    *caps = (struct ibx_caps){
        .message_max = smaller(e->own.message, e->peer.message),
        .chunk = e->chunk,
        .depth = e->depth,
        .lanes = e->lane_count > 1 ? e->lane_count - 1 : 1,
        .rendezvous = e->choice.native ? RENDEZVOUS_NATIVE : RENDEZVOUS_EMULATED,
        .register_free = false, /* deregistration costs a round trip where registration does not */
        .shares = e->choice.shareable,
        .peer_drives = domain->data_progress != FI_PROGRESS_AUTO,
        .dmabuf = IBX_OFI_DMABUF && e->choice.info->caps & FI_HMEM,
        .gpu_pointers = e->choice.info->caps & FI_HMEM,
    };
    snprintf(description, size, "libfabric %s %s%s%s, %u endpoint%s, %s", ibx_ofi_version_text(),
             e->own.provider, domain->name ? " on " : "", domain->name ? domain->name : "",
             e->lane_count, e->lane_count > 1 ? "s" : "",
             e->cq_fd >= 0 ? "woken by a descriptor" : "woken by naps of at most 1 ms");
}

/* An endpoint may be busy for a moment, and close once its completions have been taken. False: one
 * stays open, so libfabric may still use what it has been given. */
static bool close_lanes(struct ofi_endpoint *e)
{
    const uint64_t deadline = ibx_deadline_in_ms(CLOSE_MS);
    int rc;
    while ((rc = ibx_ofi_io_close_lanes(e)) && ibx_now_ns() < deadline) {
        if (!ibx_ofi_io_take(e))
            poll(NULL, 0, 1);
    }
    if (rc)
        ibx_log(IBX_LOG_WARN, "ofi: an endpoint does not close, and its memory stays: %s",
                fi_strerror(-rc));
    return !rc;
}

static void ofi_close(void *endpoint)
{
    struct ofi_endpoint *e = endpoint;
    if (e->watched && e->cq_fd >= 0)
        ibx_link_unwatch(e->link, e->cq_fd);
    if (e->watched && e->timer_fd >= 0)
        ibx_link_unwatch(e->link, e->timer_fd);
    if (!close_lanes(e))
        return;
    if (e->memory_mr)
        ibx_ofi_fid_close(&e->memory_mr->fid);
    if (e->cq)
        ibx_ofi_fid_close(&e->cq->fid);
    if (e->av)
        ibx_ofi_fid_close(&e->av->fid);
    ibx_ofi_domain_release(e->home);
    fi_freeinfo(e->choice.info);
    if (e->timer_fd >= 0)
        close(e->timer_fd);
    ibx_ofi_msg_fini(e);
    free(e->works);
    free(e);
}

const struct ibx_provider ibx_provider_ofi = {
    .name = "ofi",
    .probe = ibx_ofi_probe,
    .message_memory = message_memory,
    .open = ofi_open,
    .offer = ofi_offer,
    .join = ofi_join,
    .finish = ofi_finish,
    .query = ofi_query,
    .mr_register = ibx_ofi_mr_register,
    .mr_deregister = ibx_ofi_mr_deregister,
    .rdma = ibx_ofi_io_rdma,
    .send = ibx_ofi_msg_send,
    .release = ibx_ofi_msg_release,
    .progress = ibx_ofi_io_progress,
    .arm = ibx_ofi_io_arm,
    .abort = ibx_ofi_io_abort,
    .close = ofi_close,
};
