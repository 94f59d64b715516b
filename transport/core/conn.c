/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A connection's life after the door: events, sleeping, the end. */
#include "transport/core/conn.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define POLLS_PER_DOOR_LOOK 4096u /* an idle one counts for IDLE_POLL of them */
#define IDLE_POLL           8u
#define POLLS_PER_WAKE_LOOK 4096u
#define YIELD_NS            1000u
#define YIELD_LATER_NS      10000u /* the first, where there are ... */
#define PLENTY_PROCESSORS   4      /* ... so many, and who is waited for has one of its own */
#define DRAIN_MS            5000u
#define FUTILE_SPINS        8u  /* in a row, and busy polling is left out ... */
#define WAITS_WITHOUT_SPIN  64u /* ... for so many waits; one wait of busy polling decides again */
#define LOST_NS             500000u /* a yield that takes so long has run others than the peer */
#define LOSS_WEIGHT         8u   /* of such a yield, in waits whose polling has found something */
#define LOSSES              24u  /* so much weight of them, and polling is left out as well ... */
#define WAITS_AFTER_LOSSES  256u /* ... for longer, as each try costs milliseconds */

struct ibx_conn *ibx_conn_new(int fd, enum ibx_role role, const struct ibx_options *options)
{
    struct ibx_conn *conn = calloc(1, sizeof(*conn));
    if (!conn) {
        close(fd);
        return NULL;
    }
    conn->role = role;
    conn->options = *options;
    ibx_domain_hold(options->domain);
    conn->door.fd = fd;
    conn->epoll_fd = -1;
    conn->wake_fd = -1;
    ibx_peer_name(fd, conn->path.peer, sizeof(conn->path.peer));
    return conn;
}

/* ------------------------------------------------------------------- upcalls */

static void up_chunk_done(struct ibx_link *link, struct ibx_chunk *chunk, int status)
{
    ibx_chunk_done(link->conn, chunk, status);
}

static void up_message(struct ibx_link *link, const void *data, size_t length, uint64_t slot)
{
    struct ibx_event event = {
        .type = IBX_EVENT_MESSAGE, .data = data, .length = length, .slot = slot};
    link->conn->late += link->conn->lost_status != 0;
    if (ibx_events_push(link->conn, &event))
        ibx_conn_lost(link->conn, -ENOMEM, "no memory for a received message");
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

const struct ibx_upcalls ibx_conn_upcalls = {
    .chunk_done = up_chunk_done,
    .message = up_message,
    .send_done = up_send_done,
    .lost = up_lost,
};

/* ----------------------------------------------------------- what links offer */

const struct ibx_provider *ibx_link_inner(const struct ibx_link *link)
{
    return link->conn->inner;
}

const struct ibx_options *ibx_link_options(const struct ibx_link *link)
{
    return &link->conn->options;
}

enum ibx_role ibx_link_role(const struct ibx_link *link)
{
    return link->conn->role;
}

int ibx_link_door(const struct ibx_link *link)
{
    return link->conn->door.fd;
}

void ibx_link_proof(const struct ibx_link *link, const char *label, uint8_t proof[IBX_PROOF_BYTES])
{
    struct ibx_piece pieces[2] = {{"proof ", 6}, {label, strlen(label)}};
    ibx_hmac(link->conn->door.session_key, pieces, 2, proof);
}

int ibx_link_wait(struct ibx_link *link, int fd, short events, uint64_t deadline_ns)
{
    return ibx_handshake_wait(link->conn, fd, events, deadline_ns);
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

/* --------------------------------------------------------------- coming alive */

/* Nothing is said at the door any more, so TCP_USER_TIMEOUT concerns the keepalive alone. Where the
 * provider goes on with the door it is the provider's to keep. */
static void keep_alive(int fd, unsigned timeout_ms)
{
    int one = 1, idle = (int)(timeout_ms / 2000 + 1), interval = idle / 3 + 1, count = 3;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
}

int ibx_conn_live(struct ibx_conn *conn, struct ibx_error *err)
{
    conn->provider->query(conn->endpoint, &conn->caps, conn->path.description,
                          sizeof(conn->path.description));
    snprintf(conn->path.provider, sizeof(conn->path.provider), "%s", conn->inner->name);
    if (ibx_chunks_init(conn))
        return ibx_error_set(err, -ENOMEM, "no memory for %u chunks in flight", conn->caps.depth);
    if (!conn->inner->takes_door)
        keep_alive(conn->door.fd, conn->options.timeout_ms);
    if (!conn->inner->takes_door && ibx_link_watch(&conn->link, conn->door.fd))
        return ibx_error_set(err, -errno, "cannot watch the door: %s", strerror(errno));
    conn->state = CONN_LIVE;
    ibx_log(IBX_LOG_INFO, "connected to %s by %s", conn->path.peer, conn->path.description);
    return 0;
}

static int make_sleepable(struct ibx_conn *conn, struct ibx_error *err)
{
    conn->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    conn->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (conn->epoll_fd < 0 || conn->wake_fd < 0 || ibx_link_watch(&conn->link, conn->wake_fd))
        return ibx_error_set(err, -errno, "no event descriptors: %s", strerror(errno));
    return 0;
}

/* Makes the descriptors, runs the door's dialogue. */
static int come_alive(struct ibx_conn *conn, int (*door)(struct ibx_conn *, struct ibx_error *),
                      struct ibx_error *err)
{
    conn->link = (struct ibx_link){.up = &ibx_conn_upcalls, .conn = conn, .owner = conn};
    conn->owner = getpid();
    int rc = make_sleepable(conn, err);
    if (!rc)
        rc = door(conn, err);
    if (rc)
        conn->state = CONN_ENDED;
    return rc;
}

int ibx_establish(struct ibx_conn *conn, struct ibx_error *err)
{
    if (conn->role != IBX_ROLE_SERVER || conn->state != CONN_KNOCKED)
        return ibx_error_set(err, -EINVAL, "only a freshly accepted connection is established");
    return come_alive(conn, ibx_handshake_server, err);
}

int ibx_connect(const char *text, const struct ibx_options *options, struct ibx_conn **out,
                struct ibx_error *err)
{
    struct ibx_uri uri;
    struct ibx_key key;
    struct ibx_options all = *options;
    int rc = ibx_uri_parse(text, &uri, err);
    if (!rc)
        rc = ibx_uri_options(&uri, &all, err);
    if (!rc)
        rc = ibx_key_load(all.key_file, &key, err);
    int fd = -1;
    if (!rc)
        rc = ibx_handshake_connect(&uri, all.timeout_ms, &fd, err);
    if (rc)
        return rc;
    struct ibx_conn *conn = ibx_conn_new(fd, IBX_ROLE_CLIENT, &all);
    if (!conn)
        return ibx_error_set(err, -ENOMEM, "no memory for a connection");
    conn->key = key;
    ibx_uri_print(&uri, conn->uri, sizeof(conn->uri));
    explicit_bzero(&key, sizeof(key));
    rc = come_alive(conn, ibx_handshake_client, err);
    if (rc) {
        ibx_close(conn);
        return rc;
    }
    *out = conn;
    return 0;
}

bool ibx_conn_inherited(const struct ibx_conn *conn)
{
    return conn->owner && conn->owner != getpid();
}

const struct ibx_caps *ibx_conn_caps(const struct ibx_conn *conn)
{
    return &conn->caps;
}

const struct ibx_path *ibx_conn_path(const struct ibx_conn *conn)
{
    return &conn->path;
}

const char *ibx_conn_reason(const struct ibx_conn *conn)
{
    return conn->lost_reason;
}

/* ------------------------------------------------------------------- the end */

/* May be called from inside a provider's progress: only takes note. drain() acts. */
void ibx_conn_lost(struct ibx_conn *conn, int status, const char *reason)
{
    if (conn->state != CONN_LIVE || conn->lost_status)
        return;
    conn->lost_status = status ? status : -ECONNRESET;
    snprintf(conn->lost_reason, sizeof(conn->lost_reason), "%s", reason);
}

static void look_at_door(struct ibx_conn *conn)
{
    conn->polls = 0;
    if (conn->state != CONN_LIVE || conn->inner->takes_door)
        return;
    char byte;
    ssize_t n = recv(conn->door.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n == 0)
        ibx_conn_lost(conn, -ECONNRESET, "the peer closed the connection");
    else if (n > 0)
        ibx_conn_lost(conn, -EPROTO, "the peer spoke at the door after establishment");
    else
        ibx_conn_lost(conn, -errno,
                      errno == ETIMEDOUT ? "the link to the peer is dead" : strerror(errno));
}

/* Moves a lost connection towards its end. */
static void drain(struct ibx_conn *conn)
{
    if (conn->state == CONN_LIVE) {
        conn->state = CONN_DRAINING;
        if (!conn->inner->takes_door)
            ibx_link_unwatch(&conn->link, conn->door.fd);
        ibx_chunks_flush(conn, conn->lost_status);
        conn->provider->abort(conn->endpoint);
    }
    if (conn->state == CONN_DRAINING && !conn->in_flight) {
        struct ibx_event event = {.type = IBX_EVENT_CLOSED, .status = conn->lost_status};
        if (!ibx_events_push(conn, &event))
            conn->state = CONN_ENDED;
    }
}

/* What the peer sent before it closed the door is taken first: the end has to wait for a round that
 * knew of it and brought nothing. It had credit for so many messages; more are new ones. */
static void end_when_heard(struct ibx_conn *conn, unsigned events_before)
{
    bool heard = conn->events.count == events_before || conn->late > conn->options.slots;
    if (heard && conn->state != CONN_ENDED)
        drain(conn);
}

static int step(struct ibx_conn *conn)
{
    int made = 0;
    unsigned before = conn->events.count;
    bool lost = conn->lost_status;
    if (conn->state == CONN_LIVE || conn->state == CONN_DRAINING)
        made = conn->provider->progress(conn->endpoint);
    if (made > 0)
        conn->fed = conn->moved = true;
    if (!conn->lost_status && (conn->urgent.head || conn->bulk.head))
        ibx_chunks_dispatch(conn);
    /* Also while there is much to do: on shared memory a dead peer's regions still work. */
    conn->polls += made ? 1 : IDLE_POLL;
    if (conn->polls >= POLLS_PER_DOOR_LOOK)
        look_at_door(conn);
    if (lost)
        end_when_heard(conn, before);
    return made;
}

int ibx_poll(struct ibx_conn *conn, struct ibx_event *events, int max)
{
    if (!conn->events.count) {
        if (conn->state == CONN_ENDED || conn->state == CONN_KNOCKED)
            return -ENOTCONN;
        step(conn);
    }
    int n = 0;
    while (conn->events.count && n < max)
        ibx_events_pop(conn, &events[n++]);
    return n;
}

int ibx_send(struct ibx_conn *conn, const struct iovec *iov, int iovcnt, uint64_t cookie,
             unsigned flags)
{
    if (conn->state != CONN_LIVE || conn->lost_status)
        return -ENOTCONN;
    size_t length = 0;
    for (int i = 0; i < iovcnt; i++) {
        if (iov[i].iov_len > conn->caps.message_max - length)
            return -EMSGSIZE;
        length += iov[i].iov_len;
    }
    int rc = conn->provider->send(conn->endpoint, iov, iovcnt, length, cookie, flags);
    conn->starved = rc == -EAGAIN;
    conn->fed = false;
    if (rc && rc != -EAGAIN) {
        ibx_conn_lost(conn, rc, strerror(-rc));
        return -ENOTCONN;
    }
    return rc;
}

void ibx_message_release(struct ibx_conn *conn, const struct ibx_event *event)
{
    if (conn->endpoint)
        conn->provider->release(conn->endpoint, event->slot);
}

void ibx_abort(struct ibx_conn *conn)
{
    ibx_conn_lost(conn, -ECONNABORTED, "closed by this side");
}

/* What ends a connection everywhere: work in flight, regions, the provider's endpoint. */
static void end_endpoint(struct ibx_conn *conn)
{
    if (conn->state == CONN_LIVE) {
        ibx_conn_lost(conn, -ECONNABORTED, "closed by this side");
        drain(conn);
    }
    uint64_t deadline = ibx_deadline_in_ms(DRAIN_MS);
    while (conn->in_flight && ibx_now_ns() < deadline)
        step(conn);
    while (conn->regions)
        ibx_mr_deregister(conn->regions);
    if (conn->endpoint)
        conn->provider->close(conn->endpoint);
}

void ibx_close(struct ibx_conn *conn)
{
    if (!conn)
        return;
    /* In a forked child all of that is still the parent's, and shared with it: a child that runs
     * its exit handlers must not end the parent's connection. It lets go of the door alone. */
    if (!ibx_conn_inherited(conn))
        end_endpoint(conn);
    ibx_chunks_fini(conn);
    if (conn->door.fd >= 0)
        close(conn->door.fd);
    if (conn->epoll_fd >= 0)
        close(conn->epoll_fd);
    if (conn->wake_fd >= 0)
        close(conn->wake_fd);
    explicit_bzero(&conn->key, sizeof(conn->key));
    explicit_bzero(&conn->door, sizeof(conn->door));
    ibx_domain_release(conn->options.domain);
    free(conn);
}

/* ------------------------------------------------------------------- sleeping */

int ibx_fd(const struct ibx_conn *conn)
{
    return conn->epoll_fd;
}

int ibx_arm(struct ibx_conn *conn)
{
    if (conn->events.count || conn->lost_status || conn->state != CONN_LIVE)
        return 1;
    /* The door wakes the sleeper, too, and is looked at by who was woken for nothing. */
    if (!conn->moved)
        look_at_door(conn);
    if (conn->lost_status || conn->provider->arm(conn->endpoint))
        return 1;
    conn->moved = false;
    return 0;
}

/* Credit is no event, but a sender that was refused for want of it waits for nothing else. */
static bool worth_polling(const struct ibx_conn *conn)
{
    return conn->events.count || conn->state == CONN_ENDED || (conn->starved && conn->fed);
}

static bool woken(struct ibx_conn *conn)
{
    uint64_t count;
    return read(conn->wake_fd, &count, sizeof(count)) == sizeof(count);
}

/* How long to poll busily. Two ends on one core whose processes are of different sessions or
 * control groups cannot count on sched_yield(): then each would poll to the end before the other
 * one runs, which makes a call of some microseconds one of twice spin_us. And where others want the
 * core, who yields it loses it for milliseconds, while a sleeper that is woken has it at once. */
static unsigned spin_time_us(struct ibx_conn *conn)
{
    bool loses = conn->lost >= LOSSES;
    if (conn->futile < FUTILE_SPINS && !loses)
        return conn->options.spin_us;
    if (conn->skipped < (loses ? WAITS_AFTER_LOSSES : WAITS_WITHOUT_SPIN)) {
        conn->skipped++;
        return 0;
    }
    conn->skipped = 0;
    return conn->options.spin_us;
}

static bool processors_abound(void)
{
    static _Atomic unsigned count;
    if (!count)
        count = ibx_thread_processors();
    return count >= PLENTY_PROCESSORS;
}

/* On a busy core the peer, or whoever feeds it, may be waiting for this very core. Returns whether
 * somebody else had it for long; `now` is the time before, and then after it. */
static bool give_way(uint64_t *now)
{
    uint64_t before = *now;
    sched_yield();
    *now = ibx_now_ns();
    return *now - before >= LOST_NS;
}

/* What busy polling has come to, for spin_time_us(). */
static void judge(struct ibx_conn *conn, bool found, bool lost)
{
    if (lost) {
        conn->lost += conn->lost < LOSSES ? LOSS_WEIGHT : 0;
    } else if (found) {
        conn->futile = 0;
        conn->lost -= conn->lost > 0;
    } else {
        conn->futile += conn->futile < FUTILE_SPINS;
    }
}

/* Busy polling, or one look if `once`: 1 when there is something to take, 0 when the time is over,
 * -EINTR for ibx_wake(). Work for the peer makes no event but begins the time anew, as more of it
 * follows; neither the deadline nor a wake waits for such a peer. */
static int spin(struct ibx_conn *conn, unsigned spin_us, bool once, uint64_t deadline)
{
    uint64_t end = 0, yield_at = 0;
    bool lost = false;
    once = once || !spin_us;
    for (unsigned i = 1;; i++) {
        bool moved = step(conn) > 0;
        if (worth_polling(conn)) {
            if (end || lost)
                judge(conn, true, lost);
            return 1;
        }
        if (moved) {
            /* Whoever gives work to do polls for its end: asleep, this side would have to be woken
             * for each piece of it. */
            conn->futile = 0;
            spin_us = conn->lost < LOSSES ? conn->options.spin_us : spin_us;
            once = !spin_us;
            end = 0;
        }
        if (once)
            return 0;
        uint64_t now = ibx_now_ns();
        if (!end) {
            end = now + spin_us * IBX_NS_PER_US;
            end = end < conn->expected ? conn->expected : end;
            yield_at = now + (processors_abound() ? YIELD_LATER_NS : 0);
        }
        if (now >= end || now >= deadline) {
            if (now >= end)
                judge(conn, false, lost);
            return 0;
        }
        /* A poll of some providers is a system call, so time counts here and not their number. */
        bool away = false;
        if (now >= yield_at) {
            away = give_way(&now);
            lost |= away;
            yield_at = now + YIELD_NS;
        }
        /* So many polls, each of which loses the core, are seconds. */
        if ((away || i % POLLS_PER_WAKE_LOOK == 0) && woken(conn))
            return -EINTR;
        ibx_cpu_relax();
    }
}

/* Sleeps once. Returns -EINTR for ibx_wake(), otherwise 0. */
static int sleep_once(struct ibx_conn *conn, int timeout_ms)
{
    struct epoll_event ready[8];
    int n = epoll_wait(conn->epoll_fd, ready, 8, timeout_ms);
    int rc = 0;
    for (int i = 0; i < n; i++) {
        if (ready[i].data.fd == conn->wake_fd && woken(conn))
            rc = -EINTR;
        if (ready[i].data.fd == conn->door.fd)
            look_at_door(conn);
    }
    return rc;
}

int ibx_wait(struct ibx_conn *conn, int timeout_ms)
{
    uint64_t deadline = timeout_ms < 0 ? UINT64_MAX : ibx_deadline_in_ms((uint64_t)timeout_ms);
    unsigned spin_us = worth_polling(conn) ? 0 : spin_time_us(conn);
    int ready = worth_polling(conn) ? 1 : spin(conn, spin_us, false, deadline);
    unsigned refused = 0;
    while (!ready) {
        int left = timeout_ms < 0 ? -1 : ibx_ms_until(deadline);
        bool armed = !ibx_arm(conn);
        /* An endpoint that has credit to give does not sleep either. */
        bool credit = !armed && conn->starved;
        /* The first refusal to sleep is the rule, to look once more after arming. */
        if ((armed || refused++) && sleep_once(conn, armed ? left : 0) == -EINTR)
            return -EINTR;
        ready = spin(conn, spin_us, true, deadline);
        if (!ready && credit)
            ready = 1;
        if (!ready && !left)
            return 0;
    }
    if (ready < 0)
        return ready;
    conn->starved = false; /* told: the next wait is for events, unless a send fails again */
    return 1;
}

void ibx_expect(struct ibx_conn *conn, unsigned us)
{
    conn->expected = processors_abound() ? ibx_now_ns() + us * IBX_NS_PER_US : 0;
}

void ibx_wake(struct ibx_conn *conn)
{
    uint64_t one = 1;
    int before = errno; /* of what a signal handler has interrupted */
    ssize_t ignored = write(conn->wake_fd, &one, sizeof(one));
    (void)ignored;
    errno = before;
}
