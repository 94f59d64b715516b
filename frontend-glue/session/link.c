/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How a session survives its connection. Both ends keep the messages that the other one may not
 * have taken, and number them by counting. When the connection has ended, the client connects
 * again, over any path, and claims the session in the handshake (transport/handshake/claim.c). Both
 * say how many messages they have taken, and send the others again. READs and WRITEs that were
 * under way are repeated, in memory that is registered anew. Callers above this file only notice a
 * pause.
 *
 *   agreement.c  whether a session survives at all
 *   unacknowledged.c  messages that may have to be sent again
 *   names.c      the names (remotes) of the client's memory on each connection
 *   reconnect.c  how the client finds its server again
 *   session_registry.c  where the server finds the session
 *   report.c     what a server reports about such sessions
 */
#include "frontend-glue/session/session_internal.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DRAIN_MS       5000u
#define RESUME_BYTES   29u
#define BEHIND_MAX_FDS 2

static const struct ibx_state link_states[] = {
    [LINK_SINGLE] = {"single", IBX_TO(LINK_CONNECTED), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [LINK_CONNECTED] = {"connected", IBX_TO(LINK_BROKEN), IBX_STATE_FINAL},
    [LINK_BROKEN] = {"broken", IBX_TO(LINK_RESUMING) | IBX_TO(LINK_LOST) | IBX_TO(LINK_SERVER_GONE),
                     0},
    [LINK_RESUMING] = {"resuming", IBX_TO(LINK_CONNECTED) | IBX_TO(LINK_BROKEN), 0},
    [LINK_LOST] = {"lost", 0, IBX_STATE_FINAL},
    [LINK_SERVER_GONE] = {"lost with the server's process", 0, IBX_STATE_FINAL}};
static const struct ibx_state_table link_table = IBX_STATE_TABLE("link of a session", link_states);

void ibx_link_init(struct ibx_session *s)
{
    ibx_state_begin(&s->link.state, &link_table, LINK_SINGLE);
    s->link.peer_fd = s->link.offer_fd = s->link.record = -1;
}

void ibx_link_fini(struct ibx_session *s)
{
    struct session_link *link = &s->link;
    ibx_session_registry_remove(s);
    ibx_kept_fini(&link->kept);
    ibx_names_clear(s);
    ibx_secret_free(link->secret);
    link->secret = NULL;
    ibx_keys_release(link->keys);
    link->keys = NULL;
    if (link->peer_fd >= 0)
        close(link->peer_fd);
    if (link->offer_fd >= 0)
        close(link->offer_fd);
    link->peer_fd = link->offer_fd = -1;
}

bool ibx_link_survives(const struct ibx_session *s)
{
    return s->link.state.now == LINK_CONNECTED && !s->link.peer && !s->until &&
           !ibx_conn_inherited(s->conn);
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

/* Receives the next message, which must be of this type and at most n bytes. Returns its length, or
 * a negative errno. */
static int receive_one(struct ibx_session *s, enum message_type type, uint8_t *bytes, size_t n,
                       uint64_t deadline)
{
    struct ibx_event event;
    int rc;
    while (!(rc = ibx_poll(s->conn, &event, 1))) {
        if (ibx_link_has_offer(s)) /* the client has given this connection up */
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

/* Completes the work of the old connection, and takes the messages that it received. */
static void drain(struct ibx_session *s)
{
    struct ibx_event events[8];
    const uint64_t deadline = ibx_deadline_in_ms(DRAIN_MS);
    ibx_abort(s->conn);
    while (s->ops.posted && ibx_now_ns() < deadline) {
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
    s->link.watched = NULL;
}

/* Moves regions to the new connection, and closes the old one, unless a message of it is being
 * read. */
static int move_to(struct ibx_session *s, struct ibx_conn *fresh)
{
    struct ibx_conn *old = s->conn;
    if (s->cache)
        ibx_regcache_tidy(s->cache);
    ibx_shared_regions_leave(s);
    ibx_names_before(s);
    int rc = ibx_conn_take_regions(fresh, old);
    if (s->cache)
        ibx_regcache_move(s->cache, fresh);
    ibx_session_registry_use(s, fresh);
    ibx_names_after(s);
    s->caps = ibx_conn_caps(fresh);
    s->out.most = s->caps->message_max < s->out.size ? s->caps->message_max : s->out.size;
    if (ibx_incoming_any(&s->in) && !s->in.conn)
        s->in.conn = old;
    else
        ibx_close(old);
    return rc;
}

/* Whether all messages that are under way fit into this connection's messages. */
static bool fits(const struct ibx_session *s, const struct ibx_conn *conn)
{
    const size_t most = ibx_conn_caps(conn)->message_max;
    return ibx_kept_longest(&s->link.kept) <= most && s->out.length <= most &&
           s->out.sending <= most;
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

/* One attempt to reach the server */
static int connect_once(struct ibx_session *s, struct reconnect *reconnect, struct ibx_conn **fresh,
                        struct ibx_error *err)
{
    int rc = ibx_reconnect(s, reconnect, fresh, err);
    if (!rc && !fits(s, *fresh)) {
        ibx_close(*fresh);
        rc = ibx_reconnect_by_tcp(s, err);
    }
    return rc;
}

static int client_exchange(struct ibx_session *s, struct ibx_error *err)
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
    const int code = ibx_get_errno(&r);
    get_taken(&r, taken);
    if (r.failed)
        return -EPROTO;
    if (code == -EMSGSIZE) /* the server says so, because of its messages */
        return ibx_reconnect_by_tcp(s, err);
    if (code)
        return ibx_reconnect_unregistered(s, code, err);
    return ibx_kept_rewind(&s->link.kept, taken);
}

/* One attempt to continue; *err is the reason if it fails. */
static int client_attempt(struct ibx_session *s, struct reconnect *reconnect, struct ibx_error *err)
{
    struct ibx_conn *fresh;
    int rc = connect_once(s, reconnect, &fresh, err);
    reconnect->connected = !rc;
    if (rc)
        return rc;
    ibx_state_move(&s->link.state, LINK_RESUMING);
    s->link.epoch++;
    rc = move_to(s, fresh);
    if (rc)
        rc = ibx_reconnect_unregistered(s, rc, err);
    if (!rc)
        rc = s->link.epoch >> 16 ? -EPROTO : client_exchange(s, err);
    if (!rc)
        return 0;
    ibx_state_move(&s->link.state, LINK_BROKEN);
    drain(s);
    if (rc == -EMSGSIZE || rc == -EAGAIN)
        return rc;
    return ibx_error_set(err, rc, "resuming: %s", strerror(-rc));
}

bool ibx_link_peer_died(const struct ibx_session *s)
{
    struct pollfd wait = {.fd = s->link.peer_fd, .events = POLLIN};
    return s->link.peer_fd >= 0 && poll(&wait, 1, 0) > 0 && wait.revents & POLLIN;
}

/* -EPROTO, or -EACCES: over a connection, that memory cannot be registered, by either end, and tcp
 * is not allowed. In a handshake it may come of any byte that somebody else has changed. */
static bool is_final(int rc)
{
    return rc == -EPROTO || rc == -EACCES;
}

/* Whether trying again is no use, after an attempt that failed with `rc`. Who has not proven to be
 * the server cannot say so. */
static bool is_in_vain(const struct reconnect *reconnect, int rc)
{
    return reconnect->refused || rc == -EMSGSIZE || (is_final(rc) && reconnect->connected);
}

/* The server keeps the session for that long; -ESTALE: it has none. */
static int try_again(struct ibx_session *s, struct reconnect *reconnect, struct ibx_error *err)
{
    const unsigned ms = s->link.agreed * 1000;
    uint64_t deadline = ibx_deadline_in_ms(ms);
    for (;;) {
        if (ibx_link_peer_died(s))
            return ibx_error_set(err, -ECONNRESET, "the back end's process has ended");
        int rc = client_attempt(s, reconnect, err);
        if (!rc || is_in_vain(reconnect, rc))
            return rc;
        if (reconnect->reached && !is_final(rc)) /* the server lives, and is busy */
            deadline = ibx_deadline_in_ms(ms);
        if (ibx_now_ns() > deadline) {
            err->code = -ETIMEDOUT;
            return ibx_error_prefix(err, -ETIMEDOUT, "no connection for %u seconds",
                                    s->link.agreed);
        }
        ibx_reconnect_pause(s, reconnect, rc);
    }
}

static int connect_again(struct ibx_session *s, struct ibx_error *err)
{
    struct reconnect reconnect;
    if (ibx_conn_status(s->conn) == -EFAULT)
        return ibx_error_set(err, -EFAULT,
                             "a copy is from memory that this program may not read, or to memory "
                             "that it may not write: pass memory that is mapped for that");
    int rc = ibx_reconnect_judge(s, err);
    if (rc)
        return rc;
    ibx_reconnect_begin(s, &reconnect);
    rc = try_again(s, &reconnect, err);
    ibx_reconnect_end(&reconnect);
    return rc;
}

/* ------------------------------------------------------------------------- the server */

static int receive_names(struct ibx_session *s, unsigned count, uint64_t deadline)
{
    uint8_t *bytes = count ? malloc(s->out.most) : NULL;
    int rc = count && !bytes ? -ENOMEM : 0;
    while (!rc && s->link.name_count < count) {
        rc = receive_one(s, MESSAGE_NAMES, bytes, s->out.most, deadline);
        rc = rc < 0 ? rc : ibx_names_take(s, bytes + 1, (size_t)rc - 1);
    }
    free(bytes);
    return rc;
}

/* `moved`: 0, or why its memory could not be registered anew, which the client is told. */
static int server_exchange(struct ibx_session *s, int moved)
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
    const int code = moved ? moved : fits(s, s->conn) ? 0 : -EMSGSIZE;
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
        ibx_session_registry_drop(s, fresh);
        return rc;
    }
    ibx_state_move(&s->link.state, LINK_RESUMING);
    rc = server_exchange(s, move_to(s, fresh));
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
        struct ibx_conn *fresh = ibx_session_registry_take(s);
        if (fresh && !server_attempt(s, fresh))
            return 0;
        if (ibx_link_has_offer(s))
            continue;
        if (ibx_link_peer_died(s))
            return ibx_error_set(err, -ECONNRESET, "its process has ended");
        if (ibx_now_ns() > deadline)
            return ibx_error_set(err, -ETIMEDOUT, "it did not come back for %u seconds",
                                 s->link.seconds);
        ibx_thread_await(wait, BEHIND_MAX_FDS, ibx_ms_until(deadline));
    }
}

/* -------------------------------------------------------------------------- either side */

static void tell_resumed(struct ibx_session *s, const struct ibx_path *before, uint64_t began,
                         const char *why)
{
    const uint64_t ms = (ibx_now_ns() - began) / IBX_NS_PER_MS;
    const struct ibx_path *path = ibx_conn_path(s->conn);
    bool changed = strcmp(before->provider, path->provider) != 0;
    ibx_log(IBX_LOG_WARN,
            "the connection with %s broke (%s); after %llu ms the session continues over %s%s%s",
            before->peer, why, (unsigned long long)ms, path->description,
            changed ? ", before over " : "", changed ? before->provider : "");
    ibx_session_registry_note(s, path, (unsigned)ms);
}

/* A process may end while some of its threads are in no call; these say nothing. */
static bool is_between_calls(const struct ibx_session *s)
{
    return !s->in_frame && !s->payloads && !s->ops.pending;
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
        const bool gone = !s->server && (rc == -ECONNRESET || rc == -ESTALE);
        ibx_state_move(&link->state, gone ? LINK_SERVER_GONE : LINK_LOST);
        if (s->server && rc == -ECONNRESET && is_between_calls(s))
            return ibx_session_leave(s, err.message);
        return ibx_session_fail(s, rc, "connection with %s: %s; the session cannot go on: %s",
                                s->path.peer, why, err.message);
    }
    ibx_state_move(&link->state, LINK_CONNECTED);
    link->only_tcp = BY_ANY_PATH;
    link->resumed++;
    link->resumed_at = ibx_now_ns();
    tell_resumed(s, &s->path, began, why);
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

uint32_t ibx_session_process(const struct ibx_session *s, uint64_t *process_namespace)
{
    *process_namespace = s->link.process_namespace;
    return s->link.process;
}

bool ibx_session_server_gone(const struct ibx_session *s)
{
    return s->link.state.now == LINK_SERVER_GONE;
}

int ibx_session_process_watch(const struct ibx_session *s)
{
    return s->link.peer_fd < 0 ? -1 : fcntl(s->link.peer_fd, F_DUPFD_CLOEXEC, 0);
}

bool ibx_session_took_leave(const struct ibx_session *s)
{
    return s->link.peer == LEAVE_SESSION;
}

bool ibx_session_process_ended(const struct ibx_session *s)
{
    return s->link.peer == LEAVE_PROCESS;
}

bool ibx_session_broken(const struct ibx_session *s)
{
    return ibx_session_live(s) && s->ended && ibx_link_survives(s);
}

bool ibx_session_resume_if_ended(struct ibx_session *s)
{
    if (ibx_session_broken(s))
        ibx_link_resume(s);
    return ibx_session_live(s);
}

bool ibx_link_resume_if_ended(struct ibx_session *s)
{
    return ibx_session_live(s) && ibx_link_survives(s) && ibx_conn_over(s->conn) &&
           !ibx_link_resume(s);
}
