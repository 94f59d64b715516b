/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A listener's descriptor is the epoll instance of its clients, so whoever waits for it is woken
 * for the listening socket, for each of these sockets, and for the next deadline.
 *
 * A fork(2) copies the list, but the clients stay the parent's. The child closes its copies of
 * their sockets at once: or else a client whose server dies would not notice as long as the child
 * lives. The epoll instance is shared; ibx_pool_step() puts a new one in its place in the child.
 */
#include "transport/handshake/pool.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define PROVE_MS         10000u /* for HELLO and PROOF: a busy host has few processors */
#define PROVE_CROWDED_MS 2000u  /* ... while more than half of the places are taken */
#define TAKEN_AT_ONCE    64     /* connection requests in one step */
#define EVENTS_AT_ONCE   32
#define PROOFS_AT_ONCE   8
#define EXCHANGE_MS      1000u /* how long newcomers get one half of a key exchange */
#define LINES_PER_SECOND 10u
#define SPARE_FILES      64u /* descriptors that strangers leave, or a quarter of a low limit */
#define FEW              8u  /* clients that may have any descriptor */

/* ------------------------------------------------------------------------ forks */

/* Guards the list of pools, and the lists of clients while they change. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibx_pool *pools;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    for (struct ibx_pool *pool = pools; pool; pool = pool->next) {
        for (struct ibx_stranger *s = pool->oldest; s; s = s->next) {
            close(s->handshake->conn->handshake_socket);
            s->handshake->conn->handshake_socket = -1;
        }
    }
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, in_child);
}

static void enlist(struct ibx_pool *pool)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    pool->next = pools;
    pools = pool;
    pthread_mutex_unlock(&lock);
}

static void delist(struct ibx_pool *pool)
{
    struct ibx_pool **link = &pools;
    pthread_mutex_lock(&lock);
    while (*link && *link != pool)
        link = &(*link)->next;
    if (*link)
        *link = pool->next;
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------- the log */

/* One client may make several connections at once: their ports are no reason for another line. */
static bool same_but_for_ports(const char *a, const char *b)
{
    for (; *a && *a == *b; a++, b++) {
        if (*a != ':')
            continue;
        a += strspn(a + 1, "0123456789");
        b += strspn(b + 1, "0123456789");
    }
    return !*a && !*b;
}

/* Whether the client closed before its first byte, as one does that only asks whether a connection
 * would be answered. */
static bool said_nothing(const struct ibx_stranger *s, int rc)
{
    return rc == -ECONNRESET && !s->handshake->received && !s->turn.frame.at;
}

/* Logs why a client was turned away. Strangers must not fill the log. */
static void turned_away(struct ibx_pool *pool, const struct ibx_error *why)
{
    uint64_t now = ibx_now_ns();
    if (now - pool->lines_from > 1000 * IBX_NS_PER_MS) {
        if (pool->left_out)
            ibx_log(IBX_LOG_WARN, "%u more client%s turned away", pool->left_out,
                    pool->left_out == 1 ? " was" : "s were");
        pool->lines_from = now;
        pool->lines = pool->left_out = 0;
        pool->last[0] = '\0';
    }
    if (same_but_for_ports(why->message, pool->last)) {
        pool->left_out++;
        return;
    }
    memcpy(pool->last, why->message, sizeof(pool->last));
    if (pool->lines++ < LINES_PER_SECOND)
        ibx_log(IBX_LOG_WARN, "%s", why->message);
    else
        pool->left_out++;
}

/* ------------------------------------------------------------------- descriptors */

static int watch(const struct ibx_pool *pool, int operation, int fd, uint32_t events, void *item)
{
    struct epoll_event event = {.events = events, .data.ptr = item};
    return epoll_ctl(pool->epoll_fd, operation, fd, &event) ? -errno : 0;
}

/* The items of the two descriptors that are no clients. */
static char listening_item, timer_item;

static int make_descriptors(struct ibx_pool *pool)
{
    pool->armed = false;
    pool->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    pool->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (pool->epoll_fd < 0 || pool->timer_fd < 0)
        return -errno;
    int rc = watch(pool, EPOLL_CTL_ADD, pool->listening, EPOLLIN, &listening_item);
    return rc ? rc : watch(pool, EPOLL_CTL_ADD, pool->timer_fd, EPOLLIN, &timer_item);
}

static bool is_crowded(const struct ibx_pool *pool)
{
    return pool->count > pool->options->unauthenticated / 2;
}

static uint64_t deadline_of(const struct ibx_pool *pool, const struct ibx_stranger *s)
{
    const unsigned most = is_crowded(pool) ? PROVE_CROWDED_MS : PROVE_MS;
    const unsigned ms = pool->options->timeout_ms;
    return s->came + (ms < most ? ms : most) * IBX_NS_PER_MS;
}

/* Sets the timer: to now while PROOFs wait, otherwise to the deadline of the oldest client. A timer
 * that is set already stays: at worst it goes off too early, and is set again. */
static void arm_timer(struct ibx_pool *pool)
{
    if (!pool->oldest || (pool->armed && !pool->count_waiting))
        return;
    uint64_t at = pool->count_waiting ? 1 : deadline_of(pool, pool->oldest);
    struct itimerspec when = {.it_value = ibx_timespec_of(at)};
    pool->armed = !timerfd_settime(pool->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

/* ------------------------------------------------------------------------- clients */

/* Takes the client off the list; its connection is the caller's. */
static struct ibx_conn *leave(struct ibx_pool *pool, struct ibx_stranger *s)
{
    struct ibx_conn *conn = s->handshake->conn;
    pthread_mutex_lock(&lock);
    *s->link = s->next;
    if (s->next)
        s->next->link = s->link;
    else
        pool->newest = s->link;
    pool->count--;
    pool->count_known -= s->known;
    pool->count_waiting -= s->turn.phase == IBX_TURN_WAITS;
    pthread_mutex_unlock(&lock);
    /* A child may have the socket open, too: closing it here would not end the watch. */
    if (pool->owner == getpid())
        watch(pool, EPOLL_CTL_DEL, conn->handshake_socket, 0, NULL);
    explicit_bzero(s, sizeof(*s));
    free(s);
    return conn;
}

static void drop(struct ibx_pool *pool, struct ibx_stranger *s)
{
    struct ibx_conn *conn = leave(pool, s);
    if (pool->owner == getpid())
        shutdown(conn->handshake_socket, SHUT_RDWR); /* a child may have it open, too */
    ibx_close(conn);
}

/* Refuses and drops this client, so that another one has its place. False: `s` is NULL. */
static bool give_way(struct ibx_pool *pool, struct ibx_stranger *s, struct ibx_error *err)
{
    struct ibx_error why = {0};
    if (!s)
        return false;
    ibx_handshake_turn_refuse(s->handshake, &s->turn,
                              "too many clients are authenticating: try again", &why);
    turned_away(pool, &why);
    if (err)
        *err = why;
    drop(pool, s);
    return true;
}

/* Drops clients whose time is over. On a busy host either end may have had no processor for so
 * long. So a client whose PROOF is here stays, since it waits for this end only, and others are
 * told to try again. */
static void expire(struct ibx_pool *pool, struct ibx_error *err)
{
    const uint64_t now = ibx_now_ns();
    struct ibx_stranger *next;
    for (struct ibx_stranger *s = pool->oldest; s && now >= deadline_of(pool, s); s = next) {
        struct ibx_error why = {0};
        next = s->next;
        if (s->turn.phase == IBX_TURN_WAITS)
            continue;
        ibx_handshake_turn_refuse(s->handshake, &s->turn, "no PROOF came in time: try again", &why);
        ibx_handshake_broken(s->handshake, -ETIMEDOUT, &why);
        turned_away(pool, &why);
        if (err)
            *err = why;
        drop(pool, s);
    }
}

/* The events that wake a client in this phase. A PROOF waits for its turn, not for the socket. */
static uint32_t events_of(enum ibx_turn_phase phase)
{
    return phase == IBX_TURN_READS ? EPOLLIN : phase == IBX_TURN_SENDS ? EPOLLOUT : 0;
}

/* Continues a client's handshake as far as possible without waiting. 1: `*conn` has proven
 * itself. */
static int go_on(struct ibx_pool *pool, struct ibx_stranger *s, struct ibx_conn **conn,
                 struct ibx_error *err)
{
    struct ibx_error why = {0};
    const enum ibx_turn_phase before = s->turn.phase;
    pool->count_waiting -= before == IBX_TURN_WAITS;
    int rc = ibx_handshake_turn(s->handshake, &s->turn, &why);
    pool->count_waiting += s->turn.phase == IBX_TURN_WAITS;
    if (!rc) {
        ibx_pool_note_proven(pool, &s->source);
        *conn = leave(pool, s);
        return 1;
    }
    if (rc == -EAGAIN) {
        if (before != s->turn.phase)
            watch(pool, EPOLL_CTL_MOD, s->handshake->conn->handshake_socket,
                  events_of(s->turn.phase), s);
        return 0;
    }
    /* What this end lacks is no fault of the client's. */
    if (before == IBX_TURN_WAITS && rc != -ENOMEM && !s->handshake->no_room)
        ibx_pool_note_wrong(pool, &s->source);
    if (!said_nothing(s, rc))
        turned_away(pool, &why);
    if (err)
        *err = why;
    drop(pool, s);
    return 0;
}

/* Handles an event of the client's socket. While its PROOF waits, that can only be the end. */
static int on_event(struct ibx_pool *pool, struct ibx_stranger *s, struct ibx_conn **conn,
                    struct ibx_error *err)
{
    if (s->turn.phase != IBX_TURN_WAITS)
        return go_on(pool, s, conn, err);
    drop(pool, s);
    return 0;
}

static int look_at_proofs(struct ibx_pool *pool, struct ibx_conn **conn, struct ibx_error *err)
{
    int rc = 0;
    for (int i = 0; i < PROOFS_AT_ONCE && !rc; i++) {
        struct ibx_stranger *s = ibx_pool_next_proof(pool);
        if (!s)
            break;
        rc = go_on(pool, s, conn, err);
    }
    return rc;
}

/* ----------------------------------------------------------------------- requests */

/* To make a key pair costs an X25519, too. So one pair serves all clients that come within
 * EXCHANGE_MS, and is freed with the last of them. Their nonces keep their secrets apart. */
static int lend_exchange(struct ibx_pool *pool, struct ibx_handshake *h, struct ibx_error *err)
{
    uint64_t now = ibx_now_ns();
    int rc = 0;
    if (!pool->exchange || now >= pool->exchange_until) {
        ibx_exchange_destroy(pool->exchange);
        pool->exchange = NULL;
        rc = ibx_exchange_create(&pool->exchange, pool->public_key, err);
        pool->exchange_until = now + EXCHANGE_MS * IBX_NS_PER_MS;
    }
    if (!rc)
        rc = ibx_exchange_hold(pool->exchange, err);
    if (rc)
        return rc;
    h->exchange = pool->exchange;
    memcpy(h->public_key, pool->public_key, sizeof(h->public_key));
    return 0;
}

static void join(struct ibx_pool *pool, struct ibx_stranger *s, const struct ibx_source *source)
{
    s->source = *source;
    s->known = ibx_pool_is_known(pool, source);
    s->came = ibx_now_ns();
    pthread_mutex_lock(&lock);
    s->link = pool->newest;
    *pool->newest = s;
    pool->newest = &s->next;
    pool->count++;
    pool->count_known += s->known;
    pthread_mutex_unlock(&lock);
    if (is_crowded(pool)) /* all deadlines are sooner now */
        pool->armed = false;
}

/* Whether a new client, with the lowest descriptor that was free, has one of those that strangers
 * leave to clients that have proven themselves, and to the rest of the process. */
static bool is_spare(const struct ibx_pool *pool, int fd)
{
    struct rlimit limit;
    if (pool->count < FEW || getrlimit(RLIMIT_NOFILE, &limit))
        return false;
    const rlim_t spare = limit.rlim_cur / 4 < SPARE_FILES ? limit.rlim_cur / 4 : SPARE_FILES;
    return (rlim_t)fd >= limit.rlim_cur - spare;
}

/* Another client gives way to the new one at `fd`, which gets the descriptor that is free then. Or
 * else the next one would get it, and nobody would give way. */
static int leave_spare(struct ibx_pool *pool, int fd, struct ibx_error *err)
{
    if (!give_way(pool, ibx_pool_spare_one(pool), err))
        return fd;
    const int lower = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (lower < 0)
        return fd;
    close(lower < fd ? fd : lower);
    return lower < fd ? lower : fd;
}

/* Closes a new connection. 0: there may be more. */
static int keep_out(struct ibx_pool *pool, int fd, struct ibx_error *err)
{
    struct ibx_error why = {0};
    ibx_error_set(&why, -EBUSY,
                  "a client was not let in: few descriptors are left, for those that "
                  "have authenticated");
    turned_away(pool, &why);
    if (err)
        *err = why;
    close(fd);
    return 0;
}

/* Accepts one connection. 0; 1: `*conn` has proven itself already; -EAGAIN: there are no more. */
static int take(struct ibx_pool *pool, struct ibx_conn **conn, struct ibx_error *err)
{
    int fd = accept4(pool->listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        int code = errno;
        /* Strangers must not use up the descriptors. Without one the kernel does not even look
         * whether there is a request. */
        struct pollfd request = {.fd = pool->listening, .events = POLLIN};
        if ((code == EMFILE || code == ENFILE) && poll(&request, 1, 0) == 0)
            return -EAGAIN;
        if (code == EMFILE || code == ENFILE) {
            if (give_way(pool, ibx_pool_least(pool), err))
                return 0;
        }
        return code == ECONNABORTED || code == EINTR ? -EAGAIN : -code;
    }
    const struct ibx_source source = ibx_pool_source_of(fd);
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (is_spare(pool, fd))
        fd = leave_spare(pool, fd, err);
    if (is_spare(pool, fd) && !ibx_pool_is_known(pool, &source)) /* nobody gives way to it */
        return keep_out(pool, fd, err);
    give_way(pool, ibx_pool_too_many(pool, &source), err);
    struct ibx_stranger *s = calloc(1, sizeof(*s));
    if (!s) {
        close(fd);
        return -ENOMEM;
    }
    s->handshake = ibx_handshake_create(fd, IBX_ROLE_SERVER, pool->options, pool->keys, err);
    if (!s->handshake) {
        free(s);
        return -ENOMEM;
    }
    join(pool, s, &source);
    int rc = lend_exchange(pool, s->handshake, err);
    if (!rc)
        rc = watch(pool, EPOLL_CTL_ADD, fd, EPOLLIN, s);
    if (rc) {
        drop(pool, s);
        return rc;
    }
    return go_on(pool, s, conn, err);
}

static int take_some(struct ibx_pool *pool, struct ibx_conn **conn, struct ibx_error *err)
{
    int rc = 0;
    for (int i = 0; i < TAKEN_AT_ONCE && !rc; i++)
        rc = take(pool, conn, err);
    return rc == -EAGAIN ? 0 : rc;
}

/* ------------------------------------------------------------------------- a step */

/* This process is a child of the one whose clients these are: makes the pool its own. Until the
 * child has an epoll instance of its own, the pool stays the parent's, because what is added to the
 * shared instance is added for the parent. */
static int adopt(struct ibx_pool *pool)
{
    const int epoll_fd = pool->epoll_fd, timer_fd = pool->timer_fd;
    while (pool->oldest)
        drop(pool, pool->oldest);
    int rc = make_descriptors(pool);
    if (!rc && dup3(pool->epoll_fd, epoll_fd, O_CLOEXEC) < 0)
        rc = -errno;
    if (pool->epoll_fd >= 0)
        close(pool->epoll_fd);
    pool->epoll_fd = epoll_fd;
    const int unused = rc ? pool->timer_fd : timer_fd;
    if (unused >= 0)
        close(unused);
    if (rc)
        pool->timer_fd = timer_fd;
    else
        pool->owner = getpid();
    return rc;
}

int ibx_pool_step(struct ibx_pool *pool, struct ibx_conn **conn, struct ibx_error *err)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    int rc = pool->owner == getpid() ? 0 : adopt(pool);
    if (rc)
        return rc;
    int n = epoll_wait(pool->epoll_fd, events, EVENTS_AT_ONCE, 0);
    bool requests = false;
    for (int i = 0; i < n && !rc; i++) {
        void *item = events[i].data.ptr;
        uint64_t times;
        if (item == &listening_item)
            requests = true; /* last: it may drop clients that are among these events */
        else if (item == &timer_item)
            pool->armed = read(pool->timer_fd, &times, sizeof(times)) < 0 && pool->armed;
        else
            rc = on_event(pool, item, conn, err);
    }
    if (!rc) {
        expire(pool, err);
        rc = requests ? take_some(pool, conn, err) : 0;
    }
    if (!rc)
        rc = look_at_proofs(pool, conn, err);
    arm_timer(pool);
    return rc > 0 ? 0 : rc == 0 ? -EAGAIN : rc;
}

int ibx_pool_fd(const struct ibx_pool *pool)
{
    return pool->epoll_fd;
}

struct ibx_pool *ibx_pool_create(int listening, const struct ibx_options *options,
                                 struct ibx_keys *keys, struct ibx_error *err)
{
    struct ibx_pool *pool = calloc(1, sizeof(*pool));
    if (!pool) {
        ibx_error_set(err, -ENOMEM, "no memory for a listener");
        return NULL;
    }
    pool->listening = listening;
    pool->options = options;
    pool->keys = keys;
    pool->newest = &pool->oldest;
    pool->owner = getpid();
    enlist(pool);
    int rc = make_descriptors(pool);
    if (!rc)
        return pool;
    ibx_error_set(err, rc, "no event descriptors: %s", strerror(-rc));
    ibx_pool_destroy(pool);
    return NULL;
}

void ibx_pool_destroy(struct ibx_pool *pool)
{
    if (!pool)
        return;
    delist(pool);
    while (pool->oldest)
        drop(pool, pool->oldest);
    ibx_exchange_destroy(pool->exchange);
    if (pool->epoll_fd >= 0)
        close(pool->epoll_fd);
    if (pool->timer_fd >= 0)
        close(pool->timer_fd);
    free(pool);
}
