/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Sets up the lanes. The server offers a port of its own for this one connection. The client opens
 * as many further sockets to it as it can and reports their number; each begins with a proof that
 * it belongs to the connection. Without any, everything shares lane 0. Where the handshake went on
 * in TLS, each of these sockets begins with TLS as well, in which the server answers from finish
 * on.
 *
 *   offer   terms, u8 address kind (0 none, 1 port, 2 name), u16 port | string name, u8 offered
 *   answer  terms, u8 agreed
 *
 * Earlier ends send neither of the two last bytes and ignore them.
 */
#include "transport/tcp/tcp.h"

#include "common/address.h"
#include "common/clock.h"
#include "common/descriptor.h"
#include "common/log.h"
#include "transport/core/segments.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFAULT_LANES  1u
#define SEALED_LANES   4u    /* the most by default where each has a thread */
#define LANES_MS       1000u /* for all: a firewall that drops packets must not cost more */
#define UNPROVEN_MAX   32u   /* sockets that have not proven yet that they are lanes */
#define NAME_BYTES_MAX 64u   /* of an abstract unix socket */

/* A packet that is lost alone, such as the answer to a call when its VM has just left for another
 * host, is sent again after 200 ms, unless the kernel (6.15) can be told to wait for less. Then the
 * receiver is told to acknowledge sooner than that. Also, while nothing answers, the kernel doubles
 * the pause between two tries, so that a VM that stands still for 150 ms is heard of up to 150 ms
 * later. With few packets under way it can be told to begin with six pauses of one length. */
#ifndef TCP_RTO_MIN_US
#define TCP_RTO_MIN_US 45
#endif
#ifndef TCP_DELACK_MAX_US
#define TCP_DELACK_MAX_US 46
#endif
#define RETRANSMIT_MIN_US  20000
#define RECEIVE_AHEAD      (4 << 20)
#define ACKNOWLEDGE_MAX_US 10000

enum address_kind { ADDRESS_NONE, ADDRESS_PORT, ADDRESS_NAME };

/* ---------------------------------------------------------------------- sockets */

static bool ends_on_one_host(int fd)
{
    struct sockaddr_storage here, there;
    int domain;
    socklen_t length = sizeof(domain);
    if (!getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) && domain == AF_UNIX)
        return true;
    return ibx_address_of_socket(fd, false, &here) && ibx_address_of_socket(fd, true, &there) &&
           ibx_address_same((struct sockaddr *)&here, (struct sockaddr *)&there);
}

/* None of these is needed for correctness, so their failures are not errors. */
static void socket_tune(const struct tcp *tcp, int fd, unsigned lane)
{
    const struct ibx_options *options = ibx_link_options(tcp->link);
    int one = 1, retransmit = RETRANSMIT_MIN_US, acknowledge = ACKNOWLEDGE_MAX_US;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_RTO_MIN_US, &retransmit, sizeof(retransmit));
    setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_DELACK_MAX_US, &acknowledge, sizeof(acknowledge));
    ibx_tcp_keepalive_set(tcp, fd);
    if (options->unsent_max)
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &options->unsent_max,
                   sizeof(options->unsent_max));
    if (lane == 0) {
        int interactive = 6; /* TC_PRIO_INTERACTIVE: ahead of the bulk lanes in the host's queues */
        setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &interactive, sizeof(interactive));
    }
    /* Inside a host there is no network to share, and the pacing of BBR halves the rate
     * (docs/experiments.md). Every kernel has reno, and every user may choose it. */
    if (tcp->same_host)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

/* Opens the window for messages, so that they come in one round trip and not in several: the
 * kernel's own window grows only with what has come. That takes the right to exceed
 * net.core.rmem_max, since less would be less than what the kernel's own grows to. The kernel may
 * then hold twice as much for this socket while nobody reads, so the caller has to know its peer. A
 * buffer that was set does not grow any more, but bulk needs that where the wire is longer. So on
 * bulk lanes SO_RCVLOWAT makes the buffer as large as a reader needs that waits for so much at
 * once, and it grows from there. */
void ibx_tcp_receive_ahead(void *endpoint)
{
    const struct tcp *tcp = endpoint;
    const int buffer = RECEIVE_AHEAD, one = 1;
    if (tcp->same_host)
        return;
    setsockopt(tcp->lanes[0].fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer));
    for (unsigned i = 1; i <= tcp->lane_count; i++) {
        setsockopt(tcp->lanes[i].fd, SOL_SOCKET, SO_RCVLOWAT, &buffer, sizeof(buffer));
        setsockopt(tcp->lanes[i].fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
    }
}

static int error_of(int fd)
{
    int code = 0;
    socklen_t length = sizeof(code);
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &length) ? -errno : -code;
}

/* ------------------------------------------------------------------------- offer */

/* A listener at the address of the handshake's socket, and its port or name. */
static int listener_open(struct tcp *tcp, struct sockaddr_storage *address, socklen_t *length)
{
    *length = sizeof(*address);
    if (getsockname(ibx_link_socket(tcp->link), (struct sockaddr *)address, length))
        return -errno;
    in_port_t *port = ibx_address_port(address);
    if (port)
        *port = 0;
    else
        *length = sizeof(sa_family_t); /* the kernel picks an abstract name */
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    tcp->listener = fd;
    if (bind(fd, (struct sockaddr *)address, *length) ||
        listen(fd, IBX_TCP_LANES_MAX + UNPROVEN_MAX))
        return -errno;
    *length = sizeof(*address);
    return getsockname(fd, (struct sockaddr *)address, length) ? -errno : 0;
}

static void address_put(struct ibx_writer *w, struct sockaddr_storage *address, socklen_t length)
{
    if (address->ss_family == AF_UNIX) {
        const struct sockaddr_un *un = (const struct sockaddr_un *)address;
        size_t n = length - offsetof(struct sockaddr_un, sun_path) - 1;
        ibx_put_u8(w, ADDRESS_NAME);
        ibx_put_u16(w, (uint16_t)n);
        ibx_put_bytes(w, un->sun_path + 1, n);
        return;
    }
    ibx_put_u8(w, ADDRESS_PORT);
    ibx_put_u16(w, ntohs(*ibx_address_port(address)));
}

/* How many bulk lanes to have. Several plain lanes, if a user asks for them, have a thread each;
 * how many are best by default was measured with encryption only. Connections of one domain are
 * driven by several threads already. */
static unsigned lanes_wanted(const struct tcp *tcp)
{
    const struct ibx_options *options = ibx_link_options(tcp->link);
    unsigned wanted = options->lanes, quarter = tcp->threads_max / 2;
    if (options->messages_only)
        return 0;
    if (wanted || !ibx_link_tls(tcp->link) || options->domain || quarter < DEFAULT_LANES)
        return wanted ? wanted : DEFAULT_LANES;
    return quarter < SEALED_LANES ? quarter : SEALED_LANES;
}

int ibx_tcp_offer(void *endpoint, struct ibx_writer *offer, struct ibx_error *err)
{
    struct tcp *tcp = endpoint;
    const struct ibx_options *options = ibx_link_options(tcp->link);
    struct sockaddr_storage address = {0};
    socklen_t length;
    (void)err;
    int rc = listener_open(tcp, &address, &length);
    tcp->mine.lanes = rc ? 0 : lanes_wanted(tcp);
    ibx_tcp_terms_put(&tcp->mine, offer);
    if (rc) {
        ibx_log(IBX_LOG_INFO, "tcp offers no bulk sockets: %s", strerror(-rc));
        ibx_put_u8(offer, ADDRESS_NONE);
    } else {
        address_put(offer, &address, length);
    }
    ibx_put_u8(offer, IBX_TCP_PLACES | (options->signs ? IBX_TCP_SIGNS : 0));
    return 0;
}

/* -------------------------------------------------------------------------- join */

/* The peer's address with the port or name that it offered. -EPROTO, or an error of
 * getpeername(2). */
static int address_get(struct tcp *tcp, struct ibx_reader *r, struct sockaddr_storage *address,
                       socklen_t *length)
{
    unsigned kind = ibx_get_u8(r);
    *length = sizeof(*address);
    if (r->failed)
        return -EPROTO;
    if (getpeername(ibx_link_socket(tcp->link), (struct sockaddr *)address, length))
        return -errno;
    if (kind == ADDRESS_NAME && address->ss_family == AF_UNIX) {
        struct sockaddr_un *un = (struct sockaddr_un *)address;
        size_t n = ibx_get_u16(r);
        const uint8_t *name = ibx_get_bytes(r, n);
        if (!name || !n || n > NAME_BYTES_MAX)
            return -EPROTO;
        un->sun_path[0] = '\0';
        memcpy(un->sun_path + 1, name, n);
        *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
        return 0;
    }
    in_port_t port = htons((uint16_t)ibx_get_u16(r));
    if (r->failed || !port || kind != ADDRESS_PORT)
        return -EPROTO;
    in_port_t *to = ibx_address_port(address);
    if (!to)
        return -EPROTO;
    *to = port;
    return 0;
}

/* What the peer offers or agrees to in the last byte: bits. There are no signs without places. */
static unsigned agreed_in(struct ibx_reader r)
{
    const unsigned bits = ibx_reader_left(&r) ? ibx_get_u8(&r) : 0;
    return bits & IBX_TCP_PLACES ? bits & (IBX_TCP_PLACES | IBX_TCP_SIGNS) : 0;
}

/* The same of an offer, behind its terms. */
static unsigned offered_in(struct ibx_reader offer)
{
    const unsigned kind = ibx_get_u8(&offer);
    if (kind == ADDRESS_PORT)
        ibx_get_u16(&offer);
    else if (kind == ADDRESS_NAME)
        ibx_get_bytes(&offer, ibx_get_u16(&offer));
    return kind <= ADDRESS_NAME && !offer.failed ? agreed_in(offer) : 0;
}

static void lane_proof(const struct tcp *tcp, unsigned lane, uint8_t proof[IBX_PROOF_BYTES])
{
    char label[32];
    snprintf(label, sizeof(label), "tcp lane %u", lane);
    ibx_link_proof(tcp->link, label, proof);
}

/* TLS on a further socket, where the first one has it. */
static int lane_encrypt(const struct tcp *tcp, int fd, struct ibx_tls **tls)
{
    uint8_t psk[IBX_PROOF_BYTES];
    struct ibx_error err = {0};
    *tls = NULL;
    if (!ibx_link_tls(tcp->link))
        return 0;
    ibx_link_proof(tcp->link, "tcp lanes in TLS", psk);
    int rc = ibx_tls_create(fd, ibx_link_role(tcp->link), psk, tls, &err);
    OPENSSL_cleanse(psk, sizeof(psk));
    if (!rc && ibx_link_options(tcp->link)->ktls)
        ibx_tls_use_kernel(*tls);
    return rc;
}

/* The first bytes of a lane; the buffer of a fresh socket has room for them. */
static int hello_send(struct tcp *tcp, unsigned index)
{
    struct tcp_lane *lane = &tcp->lanes[index];
    uint8_t proof[IBX_PROOF_BYTES], hello[IBX_TCP_HELLO_BYTES];
    lane_proof(tcp, index, proof);
    ibx_tcp_hello_put(index, proof, hello);
    struct iovec piece = {hello, sizeof(hello)};
    return ibx_tcp_lane_write(lane, &piece, 1) == (ssize_t)sizeof(hello) ? 0 : -EIO;
}

static int lane_connect(struct tcp *tcp, unsigned lane, const struct sockaddr_storage *address,
                        socklen_t length, uint64_t deadline)
{
    int fd = ibx_descriptor_apart(
        socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return -errno;
    ibx_segments_limit(fd, (const struct sockaddr *)address);
    int rc = connect(fd, (const struct sockaddr *)address, length) ? -errno : 0;
    if (rc == -EINPROGRESS) {
        rc = ibx_link_wait(tcp->link, fd, POLLOUT, deadline);
        if (!rc)
            rc = error_of(fd);
    }
    if (!rc && ibx_address_meets_itself(fd))
        rc = -ECONNREFUSED;
    struct ibx_tls *tls = NULL;
    if (!rc)
        rc = lane_encrypt(tcp, fd, &tls);
    tcp->lanes[lane].fd = fd;
    tcp->lanes[lane].tls = tls;
    if (!rc) {
        short events;
        rc = tls ? ibx_tls_handshake(tls, &events) : hello_send(tcp, lane);
        rc = tls && rc == -EAGAIN ? 0 : rc; /* goes on in finish */
    }
    if (rc) {
        ibx_tls_destroy(tls);
        close(fd);
        tcp->lanes[lane].fd = -1;
    }
    return rc;
}

int ibx_tcp_join(void *endpoint, struct ibx_reader *offer, struct ibx_writer *answer,
                 struct ibx_error *err)
{
    struct tcp *tcp = endpoint;
    const struct ibx_options *options = ibx_link_options(tcp->link);
    struct sockaddr_storage address = {0};
    socklen_t length = 0;
    int rc = ibx_tcp_terms_get(offer, &tcp->peer);
    const unsigned agreed = rc ? 0 : offered_in(*offer);
    tcp->places = agreed & IBX_TCP_PLACES;
    tcp->expects_signs = agreed & IBX_TCP_SIGNS;
    if (!rc && tcp->peer.lanes)
        rc = address_get(tcp, offer, &address, &length);
    if (rc == -EPROTO)
        return ibx_error_set(err, rc, "the server's tcp offer is malformed");
    if (rc)
        return ibx_error_set(err, rc, "the server's address is unknown: %s", strerror(-rc));

    unsigned want = lanes_wanted(tcp);
    unsigned ms = options->timeout_ms < LANES_MS ? options->timeout_ms : LANES_MS;
    uint64_t deadline = ibx_deadline_in_ms(ms);
    if (want > tcp->peer.lanes)
        want = tcp->peer.lanes;
    while (tcp->lane_count < want && !rc) {
        rc = lane_connect(tcp, tcp->lane_count + 1, &address, length, deadline);
        if (!rc)
            tcp->lane_count++;
    }
    if (rc == -ECANCELED)
        return ibx_error_set(err, rc, "the server gave up while the tcp lanes were made");
    if (rc)
        ibx_log(IBX_LOG_INFO,
                "tcp continues with %u of %u bulk sockets: a further one cannot be opened (%s); a "
                "firewall between the hosts has to let ephemeral ports pass",
                tcp->lane_count, want, strerror(-rc));
    tcp->mine.lanes = tcp->lane_count;
    ibx_tcp_terms_put(&tcp->mine, answer);
    ibx_put_u8(answer, (uint8_t)agreed);
    return 0;
}

/* ------------------------------------------------------------------------ finish */

/* Connections to the listener that have not proven yet that they are lanes. */
struct unproven {
    struct {
        int fd;              /* -1: free */
        struct ibx_tls *tls; /* NULL: plain */
        size_t have;
        uint8_t hello[IBX_TCP_HELLO_BYTES];
    } all[UNPROVEN_MAX];
    unsigned next; /* to be dropped when all are in use */
    unsigned accepted;
    bool told;   /* the log tells of the first one that was closed: strangers cannot fill it */
    bool unsent; /* a socket has not taken what TLS answers: the kernel lacks memory */
    int lost;    /* 0, or why this host has closed a socket that may be a lane: it lacks memory */
};

static void unproven_drop(struct unproven *s, unsigned i)
{
    ibx_tls_destroy(s->all[i].tls);
    if (s->all[i].fd >= 0)
        close(s->all[i].fd);
    s->all[i].tls = NULL;
    s->all[i].fd = -1;
}

static ssize_t unproven_receive(struct unproven *s, unsigned i)
{
    struct iovec piece = {s->all[i].hello + s->all[i].have, IBX_TCP_HELLO_BYTES - s->all[i].have};
    struct ibx_tls *tls = s->all[i].tls;
    short events = 0;
    int rc = tls ? ibx_tls_handshake(tls, &events) : 0;
    s->unsent |= rc == -EAGAIN && events == POLLOUT;
    if (rc)
        return rc;
    if (tls)
        return ibx_tls_receive(tls, &piece, 1);
    ssize_t n = recv(s->all[i].fd, piece.iov_base, piece.iov_len, MSG_DONTWAIT);
    return n >= 0 ? n : errno == EINTR ? -EAGAIN : -errno;
}

/* Reads a hello; a right proof makes the socket a lane. */
static void unproven_read(struct tcp *tcp, struct unproven *s, unsigned i)
{
    uint8_t *hello = s->all[i].hello;
    ssize_t n = unproven_receive(s, i);
    if (n == -EAGAIN)
        return;
    if (n > 0)
        s->all[i].have += (size_t)n;
    if (n > 0 && s->all[i].have < IBX_TCP_HELLO_BYTES)
        return;
    if (n == -ENOMEM) {
        s->lost = -ENOMEM;
        unproven_drop(s, i);
        return;
    }
    unsigned lane = 0;
    const uint8_t *shown;
    uint8_t proof[IBX_PROOF_BYTES];
    bool good = n > 0 && !ibx_tcp_hello_get(hello, &lane, &shown) && lane <= tcp->peer.lanes &&
                tcp->lanes[lane].fd < 0;
    if (good) {
        lane_proof(tcp, lane, proof);
        good = !CRYPTO_memcmp(proof, shown, sizeof(proof));
    }
    if (!good) {
        if (!s->told)
            ibx_log(IBX_LOG_WARN, "tcp closed a socket that did not authenticate as a lane");
        s->told = true;
        unproven_drop(s, i);
        return;
    }
    tcp->lanes[lane].fd = s->all[i].fd;
    tcp->lanes[lane].tls = s->all[i].tls;
    s->all[i].fd = -1;
    s->all[i].tls = NULL;
    s->accepted++;
}

/* A free place, or else that of the oldest socket that has not shown that it has the PSK: one that
 * has it only needs time. */
static unsigned unproven_place(struct unproven *s)
{
    for (unsigned i = 0; i < UNPROVEN_MAX; i++) {
        if (s->all[i].fd < 0)
            return i;
    }
    unsigned tries = 0;
    while (tries++ < UNPROVEN_MAX && ibx_tls_peer_has_key(s->all[s->next % UNPROVEN_MAX].tls))
        s->next++;
    unproven_drop(s, s->next % UNPROVEN_MAX);
    return s->next++ % UNPROVEN_MAX;
}

/* Accepts some connections; then it is the turn of those that were accepted. Each is read before
 * the next one is accepted, which may take its place. -EMFILE and others: there is no descriptor
 * for the next one now. */
static int unproven_accept(struct tcp *tcp, struct unproven *s, int epoll)
{
    for (unsigned n = 0; n < UNPROVEN_MAX; n++) {
        int fd = accept4(tcp->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return ibx_accept_shortage(errno) ? -errno : 0;
        const unsigned i = unproven_place(s);
        struct epoll_event event = {.events = EPOLLIN};
        s->all[i].fd = fd;
        s->all[i].have = 0;
        s->lost = lane_encrypt(tcp, fd, &s->all[i].tls);
        if (!s->lost && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
            s->lost = -errno;
        if (!s->lost)
            unproven_read(tcp, s, i);
        else
            unproven_drop(s, i);
        if (s->lost)
            return 0;
    }
    return 0;
}

static int lanes_await(struct tcp *tcp, struct unproven *s, int epoll, uint64_t deadline)
{
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, tcp->listener, &event))
        return -errno;
    for (;;) {
        s->unsent = false;
        const int shortage = unproven_accept(tcp, s, epoll);
        for (unsigned i = 0; i < UNPROVEN_MAX; i++) {
            if (s->all[i].fd >= 0)
                unproven_read(tcp, s, i);
        }
        if (s->accepted == tcp->peer.lanes)
            return 0;
        if (s->lost) /* a client opens none of its lanes again */
            return s->lost;
        /* As long as there are more, the wait below ends at once. */
        if (ibx_now_ns() >= deadline)
            return shortage ? shortage : -ETIMEDOUT;
        int rc = shortage || s->unsent ? ibx_link_pause(tcp->link, deadline)
                                       : ibx_link_wait(tcp->link, epoll, POLLIN, deadline);
        if (rc)
            return rc;
    }
}

/* The server's half: waits for the lanes that the client has made. */
static int lanes_accept(struct tcp *tcp, uint64_t deadline, struct ibx_error *err)
{
    struct unproven s = {0};
    for (unsigned i = 0; i < UNPROVEN_MAX; i++)
        s.all[i].fd = -1;
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int rc = lanes_await(tcp, &s, epoll, deadline);
    for (unsigned i = 0; i < UNPROVEN_MAX; i++)
        unproven_drop(&s, i);
    if (epoll >= 0)
        close(epoll);
    tcp->lane_count = s.accepted;
    if (rc)
        return ibx_error_set(err, rc, "only %u of the client's %u tcp lanes arrived: %s",
                             s.accepted, tcp->peer.lanes, strerror(-rc));
    return 0;
}

/* Waits until TLS may go on. A fresh socket that takes nothing is writable all the same, since its
 * buffer is empty: the kernel lacks memory. */
static int tls_await(struct tcp *tcp, const struct tcp_lane *lane, short events, uint64_t deadline)
{
    if (events != POLLOUT)
        return ibx_link_wait(tcp->link, lane->fd, events, deadline);
    return ibx_now_ns() < deadline ? ibx_link_pause(tcp->link, deadline) : -ETIMEDOUT;
}

/* Until the socket has what TLS has taken. */
static int hello_flush(struct tcp *tcp, const struct tcp_lane *lane, uint64_t deadline)
{
    int rc;
    while ((rc = (int)ibx_tls_send(lane->tls, NULL, 0)) == -EAGAIN) {
        rc = tls_await(tcp, lane, POLLOUT, deadline);
        if (rc)
            break;
    }
    return rc;
}

/* The client's half, where they are encrypted: the server answers now. */
static int lanes_prove(struct tcp *tcp, uint64_t deadline, struct ibx_error *err)
{
    for (unsigned i = 1; i <= tcp->lane_count; i++) {
        struct tcp_lane *lane = &tcp->lanes[i];
        short events = 0;
        int rc;
        while ((rc = ibx_tls_handshake(lane->tls, &events)) == -EAGAIN) {
            rc = tls_await(tcp, lane, events, deadline);
            if (rc)
                break;
        }
        if (!rc)
            rc = hello_send(tcp, i);
        if (!rc)
            rc = hello_flush(tcp, lane, deadline);
        if (rc)
            return ibx_error_set(err, rc, "tcp lane %u of %u cannot be encrypted: %s", i,
                                 tcp->lane_count, strerror(-rc));
    }
    return 0;
}

static void engine_start(struct tcp *tcp)
{
    if (tcp->engine == TCP_ENGINE_SYSCALLS || !tcp->lane_count)
        return;
    if (tcp->lanes[0].tls) {
        ibx_log(IBX_LOG_INFO, "tcp continues without io_uring, which cannot encrypt");
        tcp->engine = TCP_ENGINE_SYSCALLS;
        return;
    }
#ifdef IBX_WITH_URING
    int rc = ibx_tcp_uring_open(tcp);
#else
    int rc = -ENOSYS;
#endif
    if (rc) {
        ibx_log(IBX_LOG_INFO, "tcp continues without io_uring: %s", strerror(-rc));
        tcp->engine = TCP_ENGINE_SYSCALLS;
    }
}

static int lanes_start(struct tcp *tcp, struct ibx_error *err)
{
    int rc = 0;
    tcp->lanes[0].fd = ibx_link_socket(tcp->link);
    tcp->lanes[0].tls = ibx_link_tls(tcp->link);
    tcp->same_host = ends_on_one_host(tcp->lanes[0].fd);
    for (unsigned i = 0; i <= tcp->lane_count && !rc; i++) {
        socket_tune(tcp, tcp->lanes[i].fd, i);
        rc = ibx_tcp_lane_init(&tcp->lanes[i], tcp, i, tcp->lanes[i].fd);
    }
    if (rc)
        return ibx_error_set(err, rc, "no memory for %u lanes", tcp->lane_count + 1);
    tcp->segment_limit =
        ibx_link_role(tcp->link) == IBX_ROLE_CLIENT ? ibx_segments_limit_of(tcp->lanes[0].fd) : 0;
    engine_start(tcp);
    /* io_uring watches its lanes itself. */
    for (unsigned i = 0; i <= tcp->lane_count && !rc; i++) {
        if (i && tcp_uring(tcp))
            break;
        rc = ibx_link_watch(tcp->link, tcp->lanes[i].fd);
        tcp->lanes[i].watched = !rc;
    }
    tcp->writable = ibx_descriptor_apart(epoll_create1(EPOLL_CLOEXEC));
    if (!rc)
        rc = ibx_tcp_peer_watch(tcp);
    if (!rc)
        rc = tcp->writable < 0 ? -errno : ibx_link_watch(tcp->link, tcp->writable);
    return rc ? ibx_error_set(err, rc, "the lanes cannot be watched: %s", strerror(-rc)) : 0;
}

int ibx_tcp_finish(void *endpoint, struct ibx_reader *answer, uint64_t deadline_ns,
                   struct ibx_error *err)
{
    struct tcp *tcp = endpoint;
    unsigned agreed = 0;
    int rc = 0;
    if (answer) {
        rc = ibx_tcp_terms_get(answer, &tcp->peer);
        if (rc || tcp->peer.lanes > tcp->mine.lanes)
            return ibx_error_set(err, -EPROTO, "the client's answer to the tcp offer is malformed");
        agreed = agreed_in(*answer);
        tcp->places = agreed & IBX_TCP_PLACES;
        if (tcp->peer.lanes)
            rc = lanes_accept(tcp, deadline_ns, err);
        if (tcp->listener >= 0)
            close(tcp->listener);
        tcp->listener = -1;
    } else if (ibx_link_tls(tcp->link)) {
        rc = lanes_prove(tcp, deadline_ns, err);
    }
    if (rc)
        return rc;
    rc = ibx_tcp_messages_init(tcp, err);
    if (!rc)
        rc = ibx_tcp_work_init(tcp, err);
    if (!rc)
        rc = lanes_start(tcp, err);
    if (!rc && agreed & IBX_TCP_SIGNS && ibx_link_options(tcp->link)->signs)
        ibx_tcp_signs_begin(tcp);
    return rc;
}
