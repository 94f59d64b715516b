/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A connection's life: creation, establishment, events, messages, the end. */
#include "transport/core/conn.h"

#include "common/address.h"
#include "common/clock.h"
#include "common/descriptor.h"
#include "common/log.h"
#include "transport/core/segments.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define POLLS_PER_PEER_CHECK 4096u /* polls between two looks at the handshake socket */
#define IDLE_POLL            8u    /* polls that an idle one counts for */
#define DRAIN_MS             5000u
#define SHORT_MESSAGE        1024u /* up to here a message is put together on the stack */
/* Measured: with MACs, longer payloads and those that take several messages are faster by READ and
 * WRITE (docs/experiments.md). */
#define RENDEZVOUS_WITH_MACS (64u << 10)

static const struct ibx_state conn_states[] = {
    [CONN_REQUESTED] = {"requested", IBX_TO(CONN_ESTABLISHED) | IBX_TO(CONN_CLOSED),
                        IBX_STATE_INITIAL},
    [CONN_ESTABLISHED] = {"established", IBX_TO(CONN_LOST), 0},
    [CONN_LOST] = {"lost", IBX_TO(CONN_DRAINING), 0},
    [CONN_DRAINING] = {"draining", IBX_TO(CONN_CLOSED), 0},
    [CONN_CLOSED] = {"closed", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table conn_table = IBX_STATE_TABLE("connection", conn_states);

/* ------------------------------------------------------------------- upcalls */

static void up_message(struct ibx_link *link, const void *data, size_t length, uint64_t slot)
{
    struct ibx_event event = {
        .type = IBX_EVENT_MESSAGE, .data = data, .length = length, .slot = slot};
    struct ibx_conn *conn = link->conn;
    conn->late += conn->state.now != CONN_ESTABLISHED;
    int rc = conn->mac ? ibx_mac_check(conn->mac, data, length) : 0;
    if (rc) {
        ibx_conn_lost(conn, rc,
                      rc == -EBADMSG ? "a message was changed on its way, or is not the one that "
                                       "the peer sent next: somebody else writes to this connection"
                                     : "OpenSSL cannot check the MAC of a message");
        return;
    }
    event.length -= conn->mac ? IBX_MAC_BYTES : 0;
    if (ibx_events_push(conn, &event))
        ibx_conn_lost(conn, -ENOMEM, "no memory for a received message");
}

static void up_send_done(struct ibx_link *link, uint64_t cookie, int status)
{
    struct ibx_event event = {.type = IBX_EVENT_SEND, .cookie = cookie, .status = status};
    if (ibx_events_push(link->conn, &event))
        ibx_conn_lost(link->conn, -ENOMEM, "no memory for a completion");
}

static void up_lost(struct ibx_link *link, int status, const char *reason)
{
    ibx_conn_lost(link->conn, status, reason);
}

static const struct ibx_upcalls upcalls = {
    .chunk_done = ibx_chunk_done,
    .message = up_message,
    .send_done = up_send_done,
    .lost = up_lost,
};

/* ----------------------------------------------------------- what links offer */

const struct ibx_options *ibx_link_options(const struct ibx_link *link)
{
    return &link->conn->options;
}

enum ibx_role ibx_link_role(const struct ibx_link *link)
{
    return link->conn->role;
}

int ibx_link_socket(const struct ibx_link *link)
{
    return link->conn->handshake_socket;
}

struct ibx_tls *ibx_link_tls(const struct ibx_link *link)
{
    return link->conn->tls;
}

void ibx_link_proof(const struct ibx_link *link, const char *label, uint8_t proof[IBX_PROOF_BYTES])
{
    struct ibx_piece pieces[2] = {{"proof ", 6}, {label, strlen(label)}};
    ibx_hmac(link->conn->session_key, pieces, 2, proof);
}

void ibx_conn_secret(const struct ibx_conn *conn, const char *label,
                     uint8_t secret[IBX_SECRET_BYTES])
{
    struct ibx_piece pieces[2] = {{"secret ", 7}, {label, strlen(label)}};
    ibx_hmac(conn->session_key, pieces, 2, secret);
}

int ibx_link_wait(struct ibx_link *link, int fd, short events, uint64_t deadline_ns)
{
    struct ibx_conn_setup *setup = link->conn->setup;
    return setup->wait(setup, fd, events, deadline_ns);
}

int ibx_link_watch(struct ibx_link *link, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(link->conn->epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

void ibx_link_unwatch(struct ibx_link *link, int fd)
{
    epoll_ctl(link->conn->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

/* ------------------------------------------------------------- establishment */

struct ibx_conn *ibx_conn_create(int fd, enum ibx_role role, const struct ibx_options *options,
                                 struct ibx_conn_setup *setup, struct ibx_error *err)
{
    struct ibx_conn *conn = calloc(1, sizeof(*conn));
    if (!conn) {
        close(fd);
        setup->destroy(setup);
        ibx_error_set(err, -ENOMEM, "no memory for a connection");
        return NULL;
    }
    ibx_state_begin(&conn->state, &conn_table, CONN_REQUESTED);
    conn->role = role;
    conn->options = *options;
    ibx_domain_hold(options->domain);
    conn->handshake_socket = fd;
    conn->setup = setup;
    conn->epoll_fd = -1;
    conn->wake_fd = conn->address_fd = -1;
    conn->link = (struct ibx_link){.up = &upcalls, .conn = conn, .owner = conn};
    return conn;
}

_Atomic unsigned ibx_conn_forks;

static void forked(void)
{
    atomic_fetch_add(&ibx_conn_forks, 1);
}

/* Threads that meet here have a fork counted twice, which does no harm. A lock would, in the child
 * of a fork at that moment. */
static int watch_forks(void)
{
    static atomic_bool watched;
    const int rc = atomic_load(&watched) ? 0 : -pthread_atfork(NULL, NULL, forked);
    if (!rc)
        atomic_store(&watched, true);
    return rc;
}

int ibx_conn_prepare(struct ibx_conn *conn, struct ibx_error *err)
{
    const int rc = watch_forks();
    conn->forks = atomic_load(&ibx_conn_forks);
    conn->owner = getpid(); /* last: ibx_hang_up() of another thread looks at both */
    if (rc)
        return ibx_error_set(err, rc, "a forked child would not be noticed: %s", strerror(-rc));
    conn->epoll_fd = ibx_descriptor_apart(epoll_create1(EPOLL_CLOEXEC));
    conn->wake_fd = ibx_descriptor_apart(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (conn->epoll_fd < 0 || conn->wake_fd < 0 || ibx_link_watch(&conn->link, conn->wake_fd))
        return ibx_error_set(err, -errno, "no event descriptors: %s", strerror(errno));
    return 0;
}

/* Nothing more is sent on the socket, so TCP_USER_TIMEOUT concerns the keepalive alone. */
static void keep_alive(int fd, unsigned timeout_ms)
{
    int one = 1, idle = (int)(timeout_ms / 2000 + 1), interval = idle / 3 + 1, count = 3;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
}

/* Keeps what the socket no longer knows when the connection has ended. */
static void note_peer(struct ibx_conn *conn)
{
    int bytes = 0;
    socklen_t length = sizeof(bytes);
    ibx_address_of_socket(conn->handshake_socket, true, &conn->peer);
    if (!getsockopt(conn->handshake_socket, IPPROTO_TCP, TCP_MAXSEG, &bytes, &length))
        conn->segment = (unsigned)bytes;
}

/* Messages of peers with a key carry a MAC, unless they go in TLS. */
static int begin_macs(struct ibx_conn *conn, struct ibx_error *err)
{
    bool in_tls = conn->tls && conn->provider->takes_socket;
    if (!conn->keyed || in_tls)
        return 0;
    conn->caps.message_max -= IBX_MAC_BYTES;
    if (conn->caps.rendezvous > conn->caps.message_max)
        conn->caps.rendezvous = conn->caps.message_max;
    if (conn->caps.rendezvous > RENDEZVOUS_WITH_MACS)
        conn->caps.rendezvous = RENDEZVOUS_WITH_MACS;
    return ibx_mac_create(conn->session_key, conn->role, &conn->mac, err);
}

int ibx_conn_establish(struct ibx_conn *conn, struct ibx_error *err)
{
    conn->provider->query(conn->endpoint, &conn->caps, conn->path.description,
                          sizeof(conn->path.description));
    int rc = begin_macs(conn, err);
    if (rc)
        return rc;
    snprintf(conn->path.provider, sizeof(conn->path.provider), "%s", conn->provider->name);
    conn->path.round_trip_ns = ibx_conn_round_trip(conn);
    if (ibx_chunks_init(conn))
        return ibx_error_set(err, -ENOMEM, "no memory for %u chunks in flight", conn->caps.depth);
    if (!conn->provider->takes_socket) {
        keep_alive(conn->handshake_socket, conn->options.timeout_ms);
        if (ibx_link_watch(&conn->link, conn->handshake_socket))
            return ibx_error_set(err, -errno, "cannot watch the handshake socket: %s",
                                 strerror(errno));
    }
    note_peer(conn);
    ibx_own_address_watch(conn);
    ibx_state_move(&conn->state, CONN_ESTABLISHED);
    ibx_log(IBX_LOG_INFO, "connected to %s by %s", conn->path.peer, conn->path.description);
    return 0;
}

void ibx_conn_fail(struct ibx_conn *conn)
{
    ibx_state_move(&conn->state, CONN_CLOSED);
}

bool ibx_conn_inherited(const struct ibx_conn *conn)
{
    return conn->owner && (ibx_conn_is_copy(conn) || conn->owner != getpid());
}

const struct ibx_caps *ibx_conn_caps(const struct ibx_conn *conn)
{
    return &conn->caps;
}

const struct ibx_path *ibx_conn_path(const struct ibx_conn *conn)
{
    return &conn->path;
}

bool ibx_conn_over(const struct ibx_conn *conn)
{
    return !ibx_conn_has_endpoint(conn);
}

const char *ibx_conn_reason(const struct ibx_conn *conn)
{
    return conn->lost_reason;
}

int ibx_conn_status(const struct ibx_conn *conn)
{
    return conn->lost_status;
}

void ibx_conn_packets_lost(const struct ibx_conn *conn)
{
    if (conn->provider->takes_socket)
        ibx_segments_lost((const struct sockaddr *)&conn->peer, conn->segment);
}

/* ------------------------------------------------------------------- the end */

/* May be called from inside a provider's progress: only takes note. drain() acts. */
void ibx_conn_lost(struct ibx_conn *conn, int status, const char *reason)
{
    if (conn->state.now != CONN_ESTABLISHED)
        return;
    ibx_state_move(&conn->state, CONN_LOST);
    conn->lost_status = status ? status : -ECONNRESET;
    snprintf(conn->lost_reason, sizeof(conn->lost_reason), "%s", reason);
}

void ibx_conn_check_peer(struct ibx_conn *conn)
{
    conn->polls = 0;
    if (conn->state.now != CONN_ESTABLISHED || conn->provider->takes_socket)
        return;
    char byte;
    ssize_t n = recv(conn->handshake_socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n == 0)
        ibx_conn_lost(conn, -ECONNRESET, "the peer closed the connection");
    else if (n > 0)
        ibx_conn_lost(conn, -EPROTO,
                      "the peer sent data on the handshake socket after establishment");
    else
        ibx_conn_lost(conn, -errno,
                      errno == ETIMEDOUT ? "the link to the peer is dead" : strerror(errno));
}

/* Moves a lost connection towards its end. */
static void drain(struct ibx_conn *conn)
{
    if (conn->state.now == CONN_LOST) {
        ibx_state_move(&conn->state, CONN_DRAINING);
        if (!conn->provider->takes_socket)
            ibx_link_unwatch(&conn->link, conn->handshake_socket);
        ibx_chunks_flush(conn, conn->lost_status);
        conn->provider->abort(conn->endpoint);
    }
    if (conn->state.now == CONN_DRAINING && !conn->in_flight) {
        struct ibx_event event = {.type = IBX_EVENT_CLOSED, .status = conn->lost_status};
        if (!ibx_events_push(conn, &event))
            ibx_state_move(&conn->state, CONN_CLOSED);
    }
}

int ibx_conn_progress(struct ibx_conn *conn)
{
    int made = 0;
    unsigned before = conn->events.count;
    bool lost = conn->lost_status;
    if (ibx_conn_has_endpoint(conn) || conn->state.now == CONN_DRAINING)
        made = conn->provider->progress(conn->endpoint);
    if (made > 0)
        conn->replenished = conn->progressed = true;
    if (conn->urgent.head || conn->bulk.head)
        ibx_chunks_dispatch(conn);
    /* Also while there is much to do: on shared memory the regions of a dead peer still work. */
    conn->polls += made ? 1 : IDLE_POLL;
    if (conn->polls >= POLLS_PER_PEER_CHECK)
        ibx_conn_check_peer(conn);
    /* Messages that the peer sent before its end come first: the end waits for a round of progress
     * that began when the end was known and brought nothing. The peer had credit for `slots`
     * messages; more of them cannot be old ones. */
    if (lost && (conn->events.count == before || conn->late > conn->options.slots))
        drain(conn);
    return made;
}

int ibx_poll(struct ibx_conn *conn, struct ibx_event *events, int max)
{
    if (ibx_conn_is_copy(conn))
        return -ENOTCONN;
    if (!conn->events.count) {
        if (conn->state.now == CONN_CLOSED || conn->state.now == CONN_REQUESTED)
            return -ENOTCONN;
        ibx_conn_progress(conn);
    }
    int n = 0;
    while (conn->events.count && n < max)
        ibx_events_pop(conn, &events[n++]);
    return n;
}

/* Puts the message and its MAC together in private memory, so that the bytes that are sent are
 * those that the MAC is for, even if another thread of the caller changes the message meanwhile. */
static int send_with_mac(struct ibx_conn *conn, const struct iovec *iov, int iovcnt, size_t length,
                         uint64_t cookie, unsigned flags)
{
    uint8_t few[SHORT_MESSAGE + IBX_MAC_BYTES];
    uint8_t *bytes = length <= SHORT_MESSAGE ? few : malloc(length + IBX_MAC_BYTES);
    if (!bytes)
        return -ENOMEM;
    ibx_gather(bytes, iov, iovcnt);
    int rc = ibx_mac_make(conn->mac, bytes, length, bytes + length);
    struct iovec whole = {bytes, length + IBX_MAC_BYTES};
    if (!rc)
        rc = conn->provider->send(conn->endpoint, &whole, 1, whole.iov_len, cookie, flags);
    if (!rc)
        ibx_mac_sent(conn->mac);
    if (bytes != few)
        free(bytes);
    return rc;
}

int ibx_send(struct ibx_conn *conn, const struct iovec *iov, int iovcnt, uint64_t cookie,
             unsigned flags)
{
    if (!ibx_conn_is_up(conn))
        return -ENOTCONN;
    size_t length = 0;
    for (int i = 0; i < iovcnt; i++) {
        if (iov[i].iov_len > conn->caps.message_max - length)
            return -EMSGSIZE;
        length += iov[i].iov_len;
    }
    int rc = conn->mac ? send_with_mac(conn, iov, iovcnt, length, cookie, flags)
                       : conn->provider->send(conn->endpoint, iov, iovcnt, length, cookie, flags);
    conn->starved = rc == -EAGAIN;
    conn->replenished = false;
    if (rc && rc != -EAGAIN) {
        ibx_conn_lost(conn, rc, strerror(-rc));
        return -ENOTCONN;
    }
    return rc;
}

void ibx_message_release(struct ibx_conn *conn, const struct ibx_event *event)
{
    if (conn->endpoint && !ibx_conn_is_copy(conn))
        conn->provider->release(conn->endpoint, event->slot);
}

void ibx_receive_ahead(struct ibx_conn *conn)
{
    if (ibx_conn_is_up(conn) && conn->provider->receive_ahead)
        conn->provider->receive_ahead(conn->endpoint);
}

void ibx_pad(struct ibx_conn *conn, size_t bytes)
{
    if (ibx_conn_is_up(conn) && conn->provider->pad)
        conn->provider->pad(conn->endpoint, bytes);
}

void ibx_abort(struct ibx_conn *conn)
{
    ibx_conn_lost(conn, -ECONNABORTED, "closed by this side");
}

void ibx_hang_up(struct ibx_conn *conn)
{
    if (!ibx_conn_inherited(conn))
        shutdown(conn->handshake_socket, SHUT_RDWR);
}

/* Ends work in flight, regions and the provider's endpoint. */
static void end_endpoint(struct ibx_conn *conn)
{
    ibx_abort(conn);
    if (conn->state.now == CONN_LOST)
        drain(conn);
    uint64_t deadline = ibx_deadline_in_ms(DRAIN_MS);
    while (conn->in_flight && ibx_now_ns() < deadline)
        ibx_conn_progress(conn);
    while (conn->regions)
        ibx_mr_deregister(conn->regions);
    ibx_path_close(conn);
    /* A forked child may have the socket open, too: without shutdown(2), closing it here would tell
     * the peer nothing. A connection that was only accepted (no owner) may belong to a child by
     * now. */
    if (conn->owner)
        shutdown(conn->handshake_socket, SHUT_RDWR);
}

void ibx_close(struct ibx_conn *conn)
{
    if (!conn)
        return;
    /* In a forked child all of this still belongs to the parent. A child that runs its exit
     * handlers must not end the parent's connection, so it only closes its descriptors. */
    if (!ibx_conn_inherited(conn))
        end_endpoint(conn);
    ibx_chunks_fini(conn);
    if (conn->setup)
        conn->setup->destroy(conn->setup);
    ibx_tls_destroy(conn->tls);
    ibx_mac_destroy(conn->mac);
    if (conn->handshake_socket >= 0)
        close(conn->handshake_socket);
    if (conn->epoll_fd >= 0)
        close(conn->epoll_fd);
    if (conn->wake_fd >= 0)
        close(conn->wake_fd);
    if (conn->address_fd >= 0)
        close(conn->address_fd);
    ibx_secret_free(conn->session_key);
    ibx_domain_release(conn->options.domain);
    free(conn);
}
