/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/snapshot/cache.h"

#include "common/clock.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CONNECT_MS 3000 /* in which the server has to answer */
#define SILENT_MS  5000 /* without a datagram, or hashes */
#define HASHES_MS  5    /* between two looks whether hashes have come */
#define LOOK_MS    100  /* between two looks whether to stop */
#define DRAIN_MS   100  /* for datagrams on their way when all have been sent */
#define LINES      4u
#define LEFT       2 /* result: the feed was closed. Positive, since a server may choose errnos */
#define EXIT_MS    1000 /* how long the end of the process waits for threads that were left */

static const struct ibx_state feed_states[] = {
    [FEED_WAITING] = {"waiting", IBX_TO(FEED_CONNECTING) | IBX_TO(FEED_OVER),
                      IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [FEED_CONNECTING] = {"connecting", IBX_TO(FEED_JOINING) | IBX_TO(FEED_LEFT), 0},
    [FEED_JOINING] = {"joining", IBX_TO(FEED_MEMBER) | IBX_TO(FEED_OVER), IBX_STATE_FINAL},
    [FEED_MEMBER] = {"member", IBX_TO(FEED_DRAINING) | IBX_TO(FEED_OVER), IBX_STATE_FINAL},
    [FEED_DRAINING] = {"draining", IBX_TO(FEED_OVER), IBX_STATE_FINAL},
    [FEED_OVER] = {"over", 0, IBX_STATE_FINAL},
    [FEED_LEFT] = {"left", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table feed_table = IBX_STATE_TABLE("snapshot feed", feed_states);

struct snapshot_feed {
    struct snapshot_feed_config config;
    struct ibx_options options;
    char uri[IBX_URI_MAX + 2], group_text[64];
    pthread_t thread;
    uint64_t pages; /* of guest RAM */
    int stop_fd, notice_fd;
    struct ibx_conn *conn; /* this and the next ones are used by the thread only */
    struct ibx_multicast_receiver *receiver;
    struct ibx_multicast_group group;
    uint64_t heard_ns, reported_ns;
    uint64_t sent;         /* datagrams in all, which the server tells when it has sent them */
    struct ibx_error fail; /* why the feed has to end, once set */
    bool told_wrong, told_strange;
    pthread_mutex_t lock; /* of the rest */
    struct ibx_state_machine state;
    struct ibx_multicast_receiver_stats stats;
    char lines[LINES][IBX_ERROR_MAX];
    unsigned line_count;
};

/* ------------------------------------------------------------ the end of the process */

static pthread_mutex_t leaving = PTHREAD_MUTEX_INITIALIZER; /* of `leavers` */
static pthread_cond_t fewer = PTHREAD_COND_INITIALIZER;
static unsigned leavers; /* threads in LEFT, which nobody joins */
static _Atomic bool exits;
static _Thread_local bool (*ends)(void); /* of the options of this thread's feed */

/* Threads in LEFT must not be in OpenSSL, or in a library of a fabric, while exit(3) ends those. */
static void at_exit(void)
{
    const struct timespec until = ibx_timespec_of(ibx_deadline_in_ms(EXIT_MS));
    exits = true;
    pthread_mutex_lock(&leaving);
    while (leavers && !pthread_cond_clockwait(&fewer, &leaving, CLOCK_MONOTONIC, &until))
        ;
    pthread_mutex_unlock(&leaving);
}

static void watch_exit(void)
{
    atexit(at_exit);
}

static void count_left(int more)
{
    pthread_mutex_lock(&leaving);
    leavers += (unsigned)more;
    pthread_cond_signal(&fewer);
    pthread_mutex_unlock(&leaving);
}

static bool has_to_end(void)
{
    return exits || (ends && ends());
}

/* ------------------------------------------------------------ what others see */

static void say(struct snapshot_feed *feed, const char *line)
{
    pthread_mutex_lock(&feed->lock);
    if (feed->line_count < LINES)
        snprintf(feed->lines[feed->line_count++], IBX_ERROR_MAX, "%s", line);
    pthread_mutex_unlock(&feed->lock);
    eventfd_write(feed->notice_fd, 1);
}

bool ibx_snapshot_feed_says(struct snapshot_feed *feed, char line[IBX_ERROR_MAX])
{
    eventfd_t count;
    pthread_mutex_lock(&feed->lock);
    const bool any = feed->line_count;
    eventfd_read(feed->notice_fd, &count);
    if (any) {
        memcpy(line, feed->lines[0], IBX_ERROR_MAX);
        memmove(feed->lines[0], feed->lines[1], sizeof(feed->lines[0]) * (LINES - 1));
        feed->line_count--;
    }
    pthread_mutex_unlock(&feed->lock);
    return any;
}

/* Moves to a state. False: the feed was closed meanwhile (LEFT). */
static bool move(struct snapshot_feed *feed, enum feed_state to)
{
    pthread_mutex_lock(&feed->lock);
    const bool left = feed->state.now == FEED_LEFT;
    if (!left)
        ibx_state_move(&feed->state, to);
    pthread_mutex_unlock(&feed->lock);
    if (to == FEED_OVER)
        eventfd_write(feed->notice_fd, 1);
    return !left;
}

bool ibx_snapshot_feed_over(struct snapshot_feed *feed)
{
    pthread_mutex_lock(&feed->lock);
    const bool over = feed->state.now == FEED_OVER;
    pthread_mutex_unlock(&feed->lock);
    return over;
}

int ibx_snapshot_feed_fd(const struct snapshot_feed *feed)
{
    return feed->notice_fd;
}

void ibx_snapshot_feed_stats(struct snapshot_feed *feed, struct ibx_multicast_receiver_stats *sum)
{
    pthread_mutex_lock(&feed->lock);
    sum->packets += feed->stats.packets;
    sum->pages += feed->stats.pages;
    sum->wrong += feed->stats.wrong;
    sum->strange += feed->stats.strange;
    pthread_mutex_unlock(&feed->lock);
}

static void note_stats(struct snapshot_feed *feed)
{
    pthread_mutex_lock(&feed->lock);
    ibx_multicast_receiver_stats(feed->receiver, &feed->stats);
    pthread_mutex_unlock(&feed->lock);
}

/* ------------------------------------------------------------ pages */

static bool is_wanted(void *context, uint64_t page)
{
    const struct snapshot_feed *feed = context;
    return page < feed->pages && ibx_page_map_data(feed->config.map, page) &&
           ibx_fault_missing(feed->config.engine, page);
}

static bool take_page(void *context, uint64_t page, const uint8_t *bytes)
{
    struct snapshot_feed *feed = context;
    struct ibx_error why = {0};
    char line[IBX_ERROR_MAX + 64];
    const int rc = ibx_fault_push(feed->config.engine, feed->config.worker, page, bytes, &why);
    if (rc >= 0)
        return true;
    if (!feed->told_wrong) {
        snprintf(line, sizeof(line), "%s by multicast of %s: it is dropped", why.message,
                 feed->group_text);
        say(feed, line);
    }
    feed->told_wrong = true;
    return false;
}

/* A bit for each chunk of which a page is missing; NULL: no memory. */
static uint8_t *make_want(const struct snapshot_feed *feed, uint32_t *length, bool *any)
{
    const struct ibx_page_map *map = feed->config.map;
    *length = (uint32_t)((ibx_multicast_chunks(feed->pages) + 7) / 8);
    *any = false;
    uint8_t *want = calloc(*length, 1);
    for (uint64_t page = 0; want && page < feed->pages; page++) {
        const uint64_t chunk = page / IBX_MULTICAST_CHUNK_PAGES;
        if (!ibx_page_map_data(map, page) || ibx_fault_present(feed->config.engine, page))
            continue;
        want[chunk / 8] |= (uint8_t)(1u << chunk % 8);
        *any = true;
    }
    return want;
}

/* ------------------------------------------------------------ the server */

static bool is_told_to_stop(const struct snapshot_feed *feed)
{
    struct pollfd fd = {.fd = feed->stop_fd, .events = POLLIN};
    return poll(&fd, 1, 0) > 0;
}

static int take_message(struct snapshot_feed *feed, const struct ibx_event *event,
                        struct ibx_snapshot_any *m, struct ibx_error *err)
{
    int rc = ibx_snapshot_decode(event->data, event->length, m, err);
    if (!rc && m->type == IBX_SNAPSHOT_NO_GROUP) {
        char why[IBX_ERROR_MAX];
        snprintf(why, sizeof(why), "%.*s", (int)m->bytes.length, (const char *)m->bytes.bytes);
        ibx_text_sanitize(why);
        rc = ibx_error_set(err, m->code, "%.500s", why);
    } else if (!rc && m->type != (feed->receiver ? IBX_SNAPSHOT_FED : IBX_SNAPSHOT_GROUP)) {
        rc = ibx_error_set(err, -EPROTO, "it sent message %d out of turn", (int)m->type);
    }
    return rc;
}

/* Takes a message of the server. 1: there was one; 0: none. */
static int look_at_server(struct snapshot_feed *feed, struct ibx_snapshot_any *m,
                          struct ibx_error *err)
{
    struct ibx_event event;
    const int n = ibx_poll(feed->conn, &event, 1);
    if (n < 0 || (n && event.type == IBX_EVENT_CLOSED))
        return ibx_error_set(err, -ECONNRESET, "the server is lost: %s",
                             ibx_conn_reason(feed->conn));
    if (!n || event.type != IBX_EVENT_MESSAGE)
        return 0;
    const int rc = take_message(feed, &event, m, err);
    ibx_message_release(feed->conn, &event);
    return rc ? rc : 1;
}

/* Sends a message; waits for credit until the feed has to stop. */
static int send_soon(const struct snapshot_feed *feed, const struct ibx_snapshot_any *m,
                     struct ibx_error *err)
{
    const uint64_t until = ibx_deadline_in_ms(feed->options.timeout_ms);
    int rc;
    do
        rc = ibx_snapshot_send(feed->conn, m, ibx_deadline_in_ms(LOOK_MS), err);
    while (rc == -ETIMEDOUT && ibx_now_ns() < until && !is_told_to_stop(feed));
    return rc;
}

/* Connects and sends JOIN. LEFT: the feed was closed meanwhile, and nothing of the cache may be
 * used any more. */
static int connect_server(struct snapshot_feed *feed, struct ibx_error *err)
{
    struct ibx_snapshot_any join = {.type = IBX_SNAPSHOT_JOIN};
    struct ibx_options *options = &feed->options;
    options->message = IBX_MIGRATE_MESSAGE;
    snprintf(options->purpose, sizeof(options->purpose), IBX_SNAPSHOT_PURPOSE);
    if (options->timeout_ms > CONNECT_MS)
        options->timeout_ms = CONNECT_MS;
    memcpy(join.id, feed->config.manifest->id, sizeof(join.id));
    ends = options->ends;
    options->ends = has_to_end;
    move(feed, FEED_CONNECTING);
    /* In WAITING ibx_snapshot_feed_close() asks to stop, and joins the thread. */
    const int rc = is_told_to_stop(feed) ? ibx_error_set(err, -ECANCELED, "it was closed")
                                         : ibx_connect(feed->uri, options, &feed->conn, err);
    if (!move(feed, FEED_JOINING))
        return LEFT;
    return rc ? rc : send_soon(feed, &join, err);
}

static int await_group(struct snapshot_feed *feed, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(feed->options.timeout_ms);
    struct ibx_snapshot_any m;
    uint8_t secret[IBX_SECRET_BYTES];
    int rc;
    while (!(rc = look_at_server(feed, &m, err))) {
        if (is_told_to_stop(feed) || ibx_now_ns() >= deadline)
            return ibx_error_set(err, -ETIMEDOUT, "it does not say which group it sends to");
        ibx_wait(feed->conn, LOOK_MS);
    }
    if (rc < 0)
        return rc;
    feed->group = m.group;
    ibx_conn_secret(feed->conn, IBX_SNAPSHOT_SECRET, secret);
    const bool good = ibx_multicast_key_open(secret, &feed->group, m.sealed);
    OPENSSL_cleanse(secret, sizeof(secret));
    ibx_multicast_group_print(&feed->group.address, feed->group_text, sizeof(feed->group_text));
    return good ? 0
                : ibx_error_set(err, -EBADMSG, "the key of its group was changed on its way here");
}

static int join_group(struct snapshot_feed *feed, struct ibx_error *err)
{
    const char *drop = secure_getenv("IBX_MULTICAST_DROP"); /* tests: lose every n-th datagram */
    struct ibx_multicast_receiver_config config = {.group = feed->group,
                                                   .wanted = is_wanted,
                                                   .take = take_page,
                                                   .context = feed,
                                                   .drop_every = drop ? (unsigned)atoi(drop) : 0};
    struct ibx_uri uri;
    int rc = ibx_uri_parse(feed->uri, &uri, err);
    if (!rc && !uri.host[0])
        rc = ibx_error_set(err, -EADDRNOTAVAIL, "%s is no address", feed->uri);
    if (!rc)
        rc = ibx_multicast_interface(feed->config.interface, uri.host, &config.interface, err);
    return rc ? rc : ibx_multicast_receiver_open(&config, &feed->receiver, err);
}

static int send_want(struct snapshot_feed *feed, const uint8_t *want, uint32_t length,
                     struct ibx_error *err)
{
    const size_t max = ibx_conn_caps(feed->conn)->message_max;
    const uint32_t most = (uint32_t)(max < IBX_MIGRATE_MESSAGE ? max : IBX_MIGRATE_MESSAGE) - 16;
    int rc = 0;
    for (uint32_t at = 0, n; !rc && at < length; at += n) {
        struct ibx_snapshot_any m = {.type = IBX_SNAPSHOT_WANT, .length = length, .offset = at};
        n = length - at < most ? length - at : most;
        m.bytes.bytes = want + at;
        m.bytes.length = n;
        rc = send_soon(feed, &m, err);
    }
    return rc;
}

/* ------------------------------------------------------------ the thread */

/* Waits until the checker has all hashes, which the engine READs before all else. */
static int await_hashes(const struct snapshot_feed *feed, struct ibx_error *err)
{
    const uint64_t end = ibx_snapshot_pieces(feed->config.manifest);
    uint64_t at = 0, until = ibx_deadline_in_ms(SILENT_MS);
    struct pollfd stop = {.fd = feed->stop_fd, .events = POLLIN};
    for (;;) {
        const uint64_t next = ibx_snapshot_checker_lacks(feed->config.checker, at, end);
        if (next == end)
            return 0;
        if (next > at)
            until = ibx_deadline_in_ms(SILENT_MS);
        at = next;
        if (poll(&stop, 1, HASHES_MS) > 0 || ibx_now_ns() >= until)
            return ibx_error_set(err, -ETIMEDOUT, "the hashes of pages do not come");
    }
}

/* Joins the group. 1: no page is missing, so there is nothing to join for. */
static int begin(struct snapshot_feed *feed, struct ibx_error *err)
{
    uint32_t length;
    bool any;
    uint8_t *want = make_want(feed, &length, &any);
    free(want);
    if (want && !any)
        return 1;
    int rc = await_hashes(feed, err);
    if (!rc)
        rc = connect_server(feed, err);
    if (!rc)
        rc = await_group(feed, err);
    if (!rc)
        rc = join_group(feed, err);
    if (rc)
        return rc;
    want = make_want(feed, &length, &any);
    rc = want ? send_want(feed, want, length, err)
              : ibx_error_set(err, -ENOMEM, "no memory for what is missing");
    free(want);
    feed->heard_ns = ibx_now_ns();
    return rc;
}

static void tell_strangers(struct snapshot_feed *feed)
{
    char line[IBX_ERROR_MAX];
    if (feed->told_strange || !feed->stats.strange)
        return;
    feed->told_strange = true;
    snprintf(line, sizeof(line),
             "datagrams come to %s that nobody with the group's key has made: they are dropped",
             feed->group_text);
    say(feed, line);
}

/* Handles datagrams that have come; returns how many. Negative: no more will come. */
static int receive(struct snapshot_feed *feed, struct ibx_error *err)
{
    const int n = ibx_multicast_receive(feed->receiver, err);
    if (n <= 0)
        return n;
    note_stats(feed);
    tell_strangers(feed);
    return n;
}

static void doze(struct snapshot_feed *feed, int ms)
{
    struct pollfd fds[] = {{.fd = feed->stop_fd, .events = POLLIN},
                           {.fd = ibx_multicast_receiver_fd(feed->receiver), .events = POLLIN},
                           {.fd = ibx_fd(feed->conn), .events = POLLIN}};
    if (feed->state.now == FEED_DRAINING)
        fds[2].fd = -1; /* the server has nothing more to say */
    else if (ibx_arm(feed->conn) > 0)
        return;
    poll(fds, 3, ms);
}

/* Reports to the server how much comes, from which it chooses its rate. Skipped without credit. */
static void report(struct snapshot_feed *feed)
{
    const struct ibx_snapshot_any m = {
        .type = IBX_SNAPSHOT_HEARD, .through = feed->stats.through, .packets = feed->stats.packets};
    const uint64_t now = ibx_now_ns();
    if (!feed->stats.through || now - feed->reported_ns < LOOK_MS * IBX_NS_PER_MS)
        return;
    feed->reported_ns = now;
    ibx_snapshot_send(feed->conn, &m, 0, NULL);
}

/* One round of the loop in MEMBER. 1: the server has sent all. */
static int member_step(struct snapshot_feed *feed, struct ibx_error *err)
{
    struct ibx_snapshot_any m;
    const uint64_t proven = feed->stats.proven;
    const int came = receive(feed, err);
    if (came < 0)
        return came;
    if (feed->stats.proven != proven)
        feed->heard_ns = ibx_now_ns();
    const int rc = look_at_server(feed, &m, err);
    if (rc == 1)
        feed->sent = m.packets;
    if (rc)
        return rc;
    report(feed);
    if (ibx_now_ns() - feed->heard_ns > SILENT_MS * IBX_NS_PER_MS)
        return ibx_error_set(err, -ETIMEDOUT,
                             "nothing came from the multicast group %s for %u s: does the "
                             "network between carry it, with so many --multicast-hops?",
                             feed->group_text, SILENT_MS / 1000);
    if (!came)
        doze(feed, LOOK_MS);
    return 0;
}

/* Receives the last datagrams, which may come after the server has said that all were sent. */
static void drain(struct snapshot_feed *feed)
{
    const uint64_t deadline = ibx_deadline_in_ms(DRAIN_MS);
    int came = 0;
    while (came >= 0 && feed->stats.packets < feed->sent && ibx_now_ns() < deadline &&
           !is_told_to_stop(feed)) {
        came = receive(feed, NULL);
        if (!came)
            doze(feed, 10);
    }
}

static void tell_end(struct snapshot_feed *feed, int rc, const struct ibx_error *why)
{
    char line[IBX_ERROR_MAX + 400];
    const struct ibx_multicast_receiver_stats *s = &feed->stats;
    const uint64_t lost = feed->sent > s->packets ? feed->sent - s->packets : 0;
    if (rc < 0)
        snprintf(line, sizeof(line), "no multicast from %s any more (%s): pages are READ",
                 feed->uri, why->message);
    else
        snprintf(line, sizeof(line),
                 "%s has sent all: %llu pages came, %llu of %llu datagrams did not; what is "
                 "missing is READ",
                 feed->group_text, (unsigned long long)s->pages, (unsigned long long)lost,
                 (unsigned long long)feed->sent);
    say(feed, line);
}

/* ------------------------------------------------------------ opening, closing */

static void release(struct snapshot_feed *feed)
{
    ibx_multicast_receiver_close(feed->receiver);
    ibx_close(feed->conn);
    if (feed->stop_fd >= 0)
        close(feed->stop_fd);
    if (feed->notice_fd >= 0)
        close(feed->notice_fd);
    OPENSSL_cleanse(&feed->group, sizeof(feed->group));
    pthread_mutex_destroy(&feed->lock);
    free(feed);
}

static void *feed_main(void *argument)
{
    struct snapshot_feed *feed = argument;
    struct ibx_error err = {0};
    pthread_setname_np(pthread_self(), "ibx-feed");
    int rc = begin(feed, &err);
    const bool nothing = rc == 1;
    if (rc == LEFT) {
        release(feed);
        count_left(-1);
        return NULL;
    }
    if (!rc)
        move(feed, FEED_MEMBER);
    while (!rc && !is_told_to_stop(feed))
        rc = member_step(feed, &err);
    if (rc == 1 && !nothing) {
        move(feed, FEED_DRAINING);
        drain(feed);
    }
    if (rc && !nothing)
        tell_end(feed, rc, &err);
    move(feed, FEED_OVER);
    return NULL;
}

int ibx_snapshot_feed_open(const struct snapshot_feed_config *config, struct snapshot_feed **out,
                           struct ibx_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct snapshot_feed *feed = calloc(1, sizeof(*feed));
    pthread_once(&once, watch_exit);
    if (!feed)
        return ibx_error_set(err, -ENOMEM, "no memory for what comes by multicast");
    feed->config = *config;
    feed->options = *config->options;
    feed->pages = config->map->blocks[config->manifest->ram_count].first;
    snprintf(feed->uri, sizeof(feed->uri), "%s", config->uri);
    pthread_mutex_init(&feed->lock, NULL);
    ibx_state_begin(&feed->state, &feed_table, FEED_WAITING);
    feed->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    feed->notice_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = feed->stop_fd < 0 || feed->notice_fd < 0
                 ? -errno
                 : -pthread_create(&feed->thread, NULL, feed_main, feed);
    if (rc) {
        release(feed);
        return ibx_error_set_task(err, rc, "no thread for what comes by multicast");
    }
    *out = feed;
    return 0;
}

void ibx_snapshot_feed_close(struct snapshot_feed *feed, struct ibx_multicast_receiver_stats *sum)
{
    const pthread_t thread = feed->thread;
    eventfd_write(feed->stop_fd, 1);
    pthread_mutex_lock(&feed->lock);
    const bool connecting = feed->state.now == FEED_CONNECTING;
    if (connecting) {
        count_left(1);
        ibx_state_move(&feed->state, FEED_LEFT);
    }
    pthread_mutex_unlock(&feed->lock);
    if (connecting) { /* the thread owns the feed now, and will free it; no page has come */
        pthread_detach(thread);
        return;
    }
    pthread_join(thread, NULL);
    ibx_snapshot_feed_stats(feed, sum);
    release(feed);
}
