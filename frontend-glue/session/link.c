/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How a session survives its connection. Both ends keep the messages that the other one may not
 * have taken, and number them by counting. When the connection has ended the client connects again,
 * by whatever path there is, and claims the session in the handshake (transport/handshake/claim.c);
 * both say how many messages they have taken, and send the others again. READs and WRITEs that were
 * under way begin again, in memory that is registered anew. All above this file notices a pause.
 *
 *   kept.c     messages that may have to be sent again
 *   names.c    what the client's memory is called on each connection
 *   waiting.c  where the server's sessions are found
 */
#include "frontend-glue/session/session_internal.h"

#include "common/clock.h"
#include "common/log.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAUSE_MS       10u /* between two attempts to connect, at first */
#define PAUSE_MAX_MS   500u
#define DRAIN_MS       5000u
#define BYE_MS         50u
#define KEEP_BYTES     13u
#define KEPT_BYTES     17u
#define RESUME_BYTES   29u
#define RESUMED_BYTES  21u
#define BEHIND_MAX_FDS 2

static const struct ibx_state link_states[] = {
    [LINK_SINGLE] = {"single", IBX_TO(LINK_CONNECTED), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [LINK_CONNECTED] = {"connected", IBX_TO(LINK_BROKEN), IBX_STATE_FINAL},
    [LINK_BROKEN] = {"broken", IBX_TO(LINK_RESUMING) | IBX_TO(LINK_LOST), 0},
    [LINK_RESUMING] = {"resuming", IBX_TO(LINK_CONNECTED) | IBX_TO(LINK_BROKEN), 0},
    [LINK_LOST] = {"lost", 0, IBX_STATE_FINAL}};
static const struct ibx_state_table link_table = IBX_STATE_TABLE("link of a session", link_states);

void ibx_link_init(struct ibx_session *s)
{
    ibx_state_begin(&s->link.state, &link_table, LINK_SINGLE);
    s->link.peer_fd = s->link.offer_fd = -1;
}

void ibx_link_fini(struct ibx_session *s)
{
    struct session_link *link = &s->link;
    ibx_waiting_remove(s);
    ibx_kept_fini(&link->kept);
    ibx_names_clear(s);
    ibx_secret_free(link->secret);
    link->secret = NULL;
    if (link->peer_fd >= 0)
        close(link->peer_fd);
    if (link->offer_fd >= 0)
        close(link->offer_fd);
    link->peer_fd = link->offer_fd = -1;
}

bool ibx_link_survives(const struct ibx_session *s)
{
    return s->link.state.now == LINK_CONNECTED && !s->link.bye && !ibx_conn_inherited(s->conn);
}

/* ------------------------------------------------------------------------- agreement */

/* Which processes a process number is valid for. */
static uint64_t process_namespace(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) ? 0 : (uint64_t)st.st_ino;
}

/* On one host the end of the peer's process is seen at once. */
static void watch_peer(struct ibx_session *s, uint32_t pid, uint64_t its_namespace)
{
    if (s->path.remote || !its_namespace || its_namespace != process_namespace())
        return;
    s->link.peer_fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
}

static bool peer_has_died(const struct ibx_session *s)
{
    struct pollfd wait = {.fd = s->link.peer_fd, .events = POLLIN};
    return s->link.peer_fd >= 0 && poll(&wait, 1, 0) > 0 && wait.revents & POLLIN;
}

/* From here on messages count. */
static int begin(struct ibx_session *s)
{
    struct session_link *link = &s->link;
    uint8_t id[IBX_SECRET_BYTES];
    link->secret = ibx_secret_allocate(IBX_SECRET_BYTES);
    if (!link->secret || ibx_kept_init(&link->kept, s->options.slots))
        return -ENOMEM;
    ibx_conn_secret(s->conn, "session id", id);
    memcpy(link->id, id, sizeof(link->id));
    ibx_conn_secret(s->conn, "session resumption", link->secret);
    return ibx_state_move(&link->state, LINK_CONNECTED);
}

static int begin_server(struct ibx_session *s)
{
    struct session_link *link = &s->link;
    unsigned user = 0;
    link->offer_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = link->offer_fd < 0 ? -errno : begin(s);
    if (rc)
        return rc;
    memcpy(link->name, s->path.name, sizeof(link->name));
    link->has_user = !s->path.remote && !ibx_conn_user(s->conn, &user);
    link->user = user;
    ibx_waiting_add(s);
    return 0;
}

/* Server. */
static int keep(struct ibx_session *s, struct ibx_reader *r)
{
    struct session_link *link = &s->link;
    uint8_t bytes[KEPT_BYTES];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    const uint32_t pid = ibx_get_u32(r);
    const uint64_t its_namespace = ibx_get_u64(r);
    bool early = !link->taken[ORDER_STREAM] && !s->stream.count && !s->control.count;
    if (r->failed || !s->server || link->state.now != LINK_SINGLE || !early)
        return -EPROTO;
    bool wanted = link->seconds && link->waiting;
    int rc = wanted ? begin_server(s) : 0;
    if (rc)
        ibx_log(IBX_LOG_WARN, "the session with %s ends with its connection: %s", s->path.peer,
                strerror(-rc));
    bool kept = link->state.now == LINK_CONNECTED;
    if (kept)
        watch_peer(s, pid, its_namespace);
    ibx_put_u8(&w, MESSAGE_KEPT);
    ibx_put_u32(&w, kept ? link->seconds : 0);
    ibx_put_u32(&w, (uint32_t)getpid());
    ibx_put_u64(&w, process_namespace());
    struct iovec iov = {bytes, w.length};
    rc = ibx_send(s->conn, &iov, 1, 0, 0);
    return rc == -ENOTCONN ? 0 : rc;
}

/* Client. */
static int kept(struct ibx_session *s, struct ibx_reader *r)
{
    struct session_link *link = &s->link;
    const uint32_t seconds = ibx_get_u32(r), pid = ibx_get_u32(r);
    const uint64_t its_namespace = ibx_get_u64(r);
    if (r->failed || s->server || link->agreed || link->state.now != LINK_SINGLE || !link->seconds)
        return -EPROTO;
    link->agreed = seconds < link->seconds ? seconds : link->seconds;
    link->seconds = 0; /* the answer is here */
    int rc = link->agreed ? begin(s) : 0;
    if (!rc && link->agreed)
        watch_peer(s, pid, its_namespace);
    return rc;
}

int ibx_link_message(struct ibx_session *s, const struct ibx_event *event)
{
    struct ibx_reader r = ibx_reader_of(event->data, event->length);
    int rc = -EPROTO;
    const uint8_t type = ibx_get_u8(&r);
    if (type == MESSAGE_KEEP)
        rc = keep(s, &r);
    if (type == MESSAGE_KEPT)
        rc = kept(s, &r);
    if (type == MESSAGE_BYE && event->length == 1 && s->link.state.now == LINK_CONNECTED) {
        s->link.bye = true;
        rc = 0;
    }
    ibx_message_release(s->conn, event);
    return rc ? ibx_session_fail(s, rc,
                                 "%s sent message %u out of place, or there is no memory: %s",
                                 s->path.peer, type, strerror(-rc))
              : 0;
}

/* The end of the session shows in its first read, as it would a moment later. */
void ibx_link_agree(struct ibx_session *s)
{
    uint8_t bytes[KEEP_BYTES];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    const uint64_t deadline = ibx_deadline_in_ms(s->options.timeout_ms);
    if (!s->link.seconds)
        return;
    ibx_put_u8(&w, MESSAGE_KEEP);
    ibx_put_u32(&w, (uint32_t)getpid());
    ibx_put_u64(&w, process_namespace());
    struct iovec iov = {bytes, w.length};
    int rc = ibx_send(s->conn, &iov, 1, 0, 0);
    while (!rc && s->link.seconds) { /* until the answer */
        rc = ibx_session_poll(s);
        if (rc > 0)
            rc = 0;
        else if (!rc && ibx_now_ns() > deadline)
            rc = -ETIMEDOUT;
        else if (!rc)
            ibx_wait(s->conn, ibx_ms_until(deadline));
    }
    if (rc && ibx_session_live(s))
        ibx_session_fail(s, rc, "%s does not answer: %s", s->path.peer, strerror(-rc));
}

void ibx_link_say_bye(struct ibx_session *s)
{
    uint8_t byte = MESSAGE_BYE;
    struct iovec iov = {&byte, 1};
    struct ibx_event event;
    const uint64_t deadline = ibx_deadline_in_ms(BYE_MS);
    if (s->link.state.now != LINK_CONNECTED || s->ended || s->link.bye)
        return;
    while (ibx_send(s->conn, &iov, 1, 0, 0) == -EAGAIN && ibx_now_ns() < deadline) {
        int n = ibx_poll(s->conn, &event, 1);
        if (n > 0 && event.type == IBX_EVENT_MESSAGE)
            ibx_message_release(s->conn, &event);
        if (n > 0 && (event.type == IBX_EVENT_READ || event.type == IBX_EVENT_WRITE))
            s->ops_posted--;
        if (!n)
            ibx_wait(s->conn, 1);
    }
}

/* ------------------------------------------------------------------- messages in turn */

static int send_one(struct ibx_session *s, const struct ibx_writer *w, uint64_t deadline)
{
    struct iovec iov = {w->data, w->length};
    int rc;
    while ((rc = ibx_send(s->conn, &iov, 1, 0, 0)) == -EAGAIN && ibx_now_ns() < deadline)
        ibx_wait(s->conn, 1);
    return rc == -EAGAIN ? -ETIMEDOUT : rc;
}

/* The next message, copied: of this type and at most n bytes; its length, or a negative errno. */
static int receive_one(struct ibx_session *s, enum message_type type, uint8_t *bytes, size_t n,
                       uint64_t deadline)
{
    struct ibx_event event;
    int rc;
    while (!(rc = ibx_poll(s->conn, &event, 1))) {
        if (ibx_link_has_offer(s)) /* of a client that has given this one up */
            return -ECANCELED;
        if (ibx_now_ns() > deadline)
            return -ETIMEDOUT;
        ibx_wait(s->conn, ibx_ms_until(deadline));
    }
    if (rc < 0 || event.type != IBX_EVENT_MESSAGE)
        return rc < 0 ? rc : -ENOTCONN;
    bool good = event.length && event.length <= n && *(const uint8_t *)event.data == type;
    if (good)
        memcpy(bytes, event.data, event.length);
    ibx_message_release(s->conn, &event);
    return good ? (int)event.length : -EPROTO;
}

/* ------------------------------------------------------------------ the other connection */

/* What the old connection still has to do, and what it brought and nobody has taken. */
static void drain(struct ibx_session *s)
{
    struct ibx_event events[8];
    const uint64_t deadline = ibx_deadline_in_ms(DRAIN_MS);
    ibx_abort(s->conn);
    while (s->ops_posted && ibx_now_ns() < deadline) {
        int n = ibx_poll(s->conn, events, 8);
        if (n < 0)
            break;
        for (int i = 0; i < n; i++) {
            if (events[i].type == IBX_EVENT_READ || events[i].type == IBX_EVENT_WRITE)
                ibx_rendezvous_completed(s, &events[i]);
        }
        if (!n)
            ibx_wait(s->conn, 100);
    }
    ibx_hang_up(s->conn);
    s->stream.count = s->control.count = 0;
    s->ended = false;
}

/* Regions move; the old connection goes, unless a message of it is being read. */
static int move_to(struct ibx_session *s, struct ibx_conn *fresh)
{
    struct ibx_conn *old = s->conn;
    ibx_names_before(s);
    int rc = ibx_conn_take_regions(fresh, old);
    if (s->cache)
        ibx_regcache_move(s->cache, fresh);
    ibx_waiting_use(s, fresh);
    ibx_names_after(s);
    s->caps = ibx_conn_caps(fresh);
    s->message_max = s->caps->message_max < s->out_size ? s->caps->message_max : s->out_size;
    if (s->has_current && !s->current_conn)
        s->current_conn = old;
    else
        ibx_close(old);
    return rc;
}

/* Whether all that is under way fits into this connection's messages. */
static bool fits(const struct ibx_session *s, const struct ibx_conn *conn)
{
    const size_t most = ibx_conn_caps(conn)->message_max;
    return ibx_kept_longest(&s->link.kept) <= most && s->out_length <= most;
}

static void put_taken(struct ibx_writer *w, const struct ibx_session *s)
{
    for (unsigned order = 0; order < ORDERS; order++)
        ibx_put_u64(w, s->link.taken[order]);
}

static void get_taken(struct ibx_reader *r, uint64_t taken[ORDERS])
{
    for (unsigned order = 0; order < ORDERS; order++)
        taken[order] = ibx_get_u64(r);
}

/* ------------------------------------------------------------------------- the client */

/* The server keeps the session for that long; -ESTALE: it has none. */
static int connect_once(struct ibx_session *s, bool *reached, struct ibx_conn **fresh,
                        struct ibx_error *err)
{
    struct ibx_claim claim = {.secret = s->link.secret};
    struct ibx_options options = s->options;
    struct ibx_uri uri;
    char text[sizeof(uri.host) + 64], whole[sizeof(text) + sizeof(uri.query) + 1];
    memcpy(claim.id, s->link.id, sizeof(claim.id));
    options.claim = &claim;
    int rc = ibx_uri_parse(s->uri, &uri, err);
    if (rc)
        return rc;
    if (s->link.only_tcp)
        memcpy(uri.scheme, "tcp", sizeof("tcp"));
    ibx_uri_print(&uri, text, sizeof(text));
    snprintf(whole, sizeof(whole), "%s%s%s", text, uri.query[0] ? "?" : "", uri.query);
    rc = ibx_connect(whole, &options, fresh, err);
    *reached = claim.reached;
    if (!rc && !fits(s, *fresh)) {
        ibx_close(*fresh);
        s->link.only_tcp = true;
        rc = ibx_error_set(err, -EMSGSIZE, "that path carries shorter messages");
    }
    return rc;
}

static int client_exchange(struct ibx_session *s)
{
    const uint64_t deadline = ibx_deadline_in_ms(s->options.timeout_ms);
    uint8_t bytes[1024];
    uint64_t taken[ORDERS];
    unsigned at = 0;
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_put_u8(&w, MESSAGE_RESUME);
    ibx_put_u64(&w, s->link.epoch);
    ibx_put_u32(&w, ibx_names_count(s));
    put_taken(&w, s);
    int rc = send_one(s, &w, deadline);
    while (!rc && (w.length = ibx_names_message(s, bytes, sizeof(bytes), &at)) > 0)
        rc = send_one(s, &w, deadline);
    if (!rc)
        rc = receive_one(s, MESSAGE_RESUMED, bytes, sizeof(bytes), deadline);
    if (rc < 0)
        return rc;
    struct ibx_reader r = ibx_reader_of(bytes, (size_t)rc);
    ibx_get_u8(&r);
    const int code = (int)ibx_get_u32(&r);
    get_taken(&r, taken);
    if (r.failed)
        return -EPROTO;
    s->link.only_tcp = s->link.only_tcp || code == -EMSGSIZE;
    return code ? code : ibx_kept_rewind(&s->link.kept, taken);
}

/* One attempt; *err says why not. */
static int client_attempt(struct ibx_session *s, bool *reached, struct ibx_error *err)
{
    struct ibx_conn *fresh;
    int rc = connect_once(s, reached, &fresh, err);
    if (rc)
        return rc;
    ibx_state_move(&s->link.state, LINK_RESUMING);
    s->link.epoch++;
    rc = move_to(s, fresh);
    if (!rc)
        rc = s->link.epoch >> 16 ? -EPROTO : client_exchange(s);
    if (!rc)
        return 0;
    ibx_state_move(&s->link.state, LINK_BROKEN);
    drain(s);
    return ibx_error_set(err, rc, "resuming: %s", strerror(-rc));
}

static int connect_again(struct ibx_session *s, struct ibx_error *err)
{
    const unsigned ms = s->link.agreed * 1000;
    uint64_t deadline = ibx_deadline_in_ms(ms);
    unsigned pause = PAUSE_MS;
    for (;;) {
        bool reached = false;
        if (peer_has_died(s))
            return ibx_error_set(err, -ECONNRESET, "the back end's process has ended");
        int rc = client_attempt(s, &reached, err);
        if (!rc || rc == -ESTALE || rc == -EPROTO || rc == -EACCES)
            return rc;
        if (reached) /* it is there, and busy */
            deadline = ibx_deadline_in_ms(ms);
        if (ibx_now_ns() > deadline)
            return ibx_error_prefix(err, -ETIMEDOUT, "no connection for %u seconds",
                                    s->link.agreed);
        poll(NULL, 0, (int)pause);
        pause = 2 * pause < PAUSE_MAX_MS ? 2 * pause : PAUSE_MAX_MS;
    }
}

/* ------------------------------------------------------------------------- the server */

static int receive_names(struct ibx_session *s, unsigned count, uint64_t deadline)
{
    uint8_t *bytes = count ? malloc(s->message_max) : NULL;
    int rc = count && !bytes ? -ENOMEM : 0;
    while (!rc && s->link.name_count < count) {
        rc = receive_one(s, MESSAGE_NAMES, bytes, s->message_max, deadline);
        rc = rc < 0 ? rc : ibx_names_take(s, bytes + 1, (size_t)rc - 1);
    }
    free(bytes);
    return rc;
}

static int server_exchange(struct ibx_session *s)
{
    const uint64_t deadline = ibx_deadline_in_ms(s->options.timeout_ms);
    uint8_t bytes[RESUME_BYTES];
    uint64_t taken[ORDERS];
    int rc = receive_one(s, MESSAGE_RESUME, bytes, sizeof(bytes), deadline);
    if (rc < 0)
        return rc;
    struct ibx_reader r = ibx_reader_of(bytes, (size_t)rc);
    ibx_get_u8(&r);
    const uint64_t epoch = ibx_get_u64(&r);
    const uint32_t names = ibx_get_u32(&r);
    get_taken(&r, taken);
    if (r.failed || epoch <= s->link.epoch || epoch >> 16)
        return -EPROTO;
    s->link.epoch = epoch;
    ibx_names_clear(s);
    rc = receive_names(s, names, deadline);
    if (rc)
        return rc;
    const int code = fits(s, s->conn) ? 0 : -EMSGSIZE;
    if (!code)
        rc = ibx_kept_rewind(&s->link.kept, taken);
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_put_u8(&w, MESSAGE_RESUMED);
    ibx_put_u32(&w, (uint32_t)code);
    put_taken(&w, s);
    if (!rc)
        rc = send_one(s, &w, deadline);
    return rc ? rc : code;
}

static int server_attempt(struct ibx_session *s, struct ibx_conn *fresh)
{
    struct ibx_error err = {0};
    int rc = ibx_establish(fresh, &err);
    if (rc) {
        ibx_log(IBX_LOG_INFO, "%s", err.message);
        ibx_close(fresh);
        return rc;
    }
    ibx_state_move(&s->link.state, LINK_RESUMING);
    rc = move_to(s, fresh);
    if (!rc)
        rc = server_exchange(s);
    if (!rc)
        return 0;
    ibx_log(IBX_LOG_INFO, "resuming the session of %s: %s", s->path.peer, strerror(-rc));
    ibx_state_move(&s->link.state, LINK_BROKEN);
    drain(s);
    return rc;
}

static int wait_for_client(struct ibx_session *s, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(s->link.seconds * 1000);
    for (;;) {
        struct pollfd wait[BEHIND_MAX_FDS] = {{.fd = s->link.offer_fd, .events = POLLIN},
                                              {.fd = s->link.peer_fd, .events = POLLIN}};
        struct ibx_conn *fresh = ibx_waiting_take(s);
        if (fresh && !server_attempt(s, fresh))
            return 0;
        if (ibx_link_has_offer(s))
            continue;
        if (peer_has_died(s))
            return ibx_error_set(err, -ECONNRESET, "its process has ended");
        if (ibx_now_ns() > deadline)
            return ibx_error_set(err, -ETIMEDOUT, "it did not come back for %u seconds",
                                 s->link.seconds);
        poll(wait, BEHIND_MAX_FDS, ibx_ms_until(deadline));
    }
}

/* -------------------------------------------------------------------------- either side */

static void log_resumed(const struct ibx_session *s, const struct ibx_path *before, uint64_t began,
                        const char *why)
{
    const struct ibx_path *path = ibx_conn_path(s->conn);
    bool changed = strcmp(before->provider, path->provider) != 0;
    ibx_log(IBX_LOG_WARN,
            "the connection with %s broke (%s); the session goes on after %llu ms by %s%s%s",
            before->peer, why, (unsigned long long)((ibx_now_ns() - began) / IBX_NS_PER_MS),
            path->description, changed ? ", before by " : "", changed ? before->provider : "");
}

int ibx_link_resume(struct ibx_session *s)
{
    struct session_link *link = &s->link;
    struct ibx_error err = {0};
    const uint64_t began = ibx_now_ns();
    char why[256];
    snprintf(why, sizeof(why), "%s", ibx_conn_reason(s->conn));
    if (!why[0])
        snprintf(why, sizeof(why), "the client came by another one");
    ibx_state_move(&link->state, LINK_BROKEN);
    drain(s);
    if (s->hooks->broken)
        s->hooks->broken(s->context);
    int rc = s->server ? wait_for_client(s, &err) : connect_again(s, &err);
    if (rc) {
        ibx_state_move(&link->state, LINK_LOST);
        return ibx_session_fail(s, rc, "connection with %s: %s; the session cannot go on: %s",
                                s->path.peer, why, err.message);
    }
    ibx_state_move(&link->state, LINK_CONNECTED);
    link->only_tcp = false;
    link->resumed++;
    log_resumed(s, &s->path, began, why);
    s->path = *ibx_conn_path(s->conn);
    ibx_rendezvous_give_up(s);
    if (s->hooks->resumed)
        s->hooks->resumed(s->context);
    ibx_kept_push(&link->kept, s->conn);
    return ibx_rendezvous_again(s);
}

bool ibx_session_kept(const struct ibx_session *s)
{
    return ibx_session_live(s) && s->link.state.now != LINK_SINGLE;
}

bool ibx_session_broken(const struct ibx_session *s)
{
    return ibx_session_live(s) && s->ended && ibx_link_survives(s);
}

bool ibx_session_mend(struct ibx_session *s)
{
    if (ibx_session_broken(s))
        ibx_link_resume(s);
    return ibx_session_live(s);
}

bool ibx_link_mend(struct ibx_session *s)
{
    return ibx_session_live(s) && ibx_link_survives(s) && ibx_conn_over(s->conn) &&
           !ibx_link_resume(s);
}
