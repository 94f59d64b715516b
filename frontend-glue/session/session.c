/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The byte stream of a GVirtuS communicator over messages. */
#include "frontend-glue/client_copies/client_stage.h"
#include "frontend-glue/session/session_internal.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define ABANDON_MS 5000u /* for copies under way when a session ends; ibx_close() is final */
#define SEND_ALONG 2048u /* a write of so many bytes is not worth a copy of its own */

/* ------------------------------------------------------------------- beginning */

int ibx_session_create(const char *uri, const struct ibx_options *options,
                       struct ibx_session **session, struct ibx_error *err)
{
    struct ibx_uri parsed;
    int rc = ibx_uri_parse(uri, &parsed, err);
    if (rc)
        return rc;
    struct ibx_session *s = calloc(1, sizeof(*s));
    if (!s)
        return ibx_error_set(err, -ENOMEM, "no memory for a session");
    s->uri = strdup(uri);
    if (!s->uri) {
        free(s);
        return ibx_error_set(err, -ENOMEM, "no memory for a session");
    }
    s->options = *options;
    rc = ibx_uri_options(&parsed, &s->options, err);
    if (rc) {
        ibx_session_destroy(s);
        return rc;
    }
    s->bodies_tail = &s->bodies;
    ibx_copies_init(&s->copies, &(struct ibx_gpu_options){.mode = IBX_GPU_OFF});
    *session = s;
    return 0;
}

int ibx_session_create_like(const struct ibx_session *other, struct ibx_session **session,
                            struct ibx_error *err)
{
    int rc = ibx_session_create(other->uri, &other->options, session, err);
    if (!rc)
        ibx_copies_init(&(*session)->copies, &other->copies.options);
    return rc;
}

void ibx_session_set_gpu(struct ibx_session *s, const struct ibx_gpu_options *options)
{
    ibx_copies_init(&s->copies, options);
}

void ibx_session_count_copies(const struct ibx_session *s, struct ibx_copy_counts *counts)
{
    const struct copies *x = &s->copies;
    *counts = (struct ibx_copy_counts){.all = x->ran,
                                       .inlined = x->inlined,
                                       .in_place = x->in_place,
                                       .by_crew = x->by_crew,
                                       .direct = x->by_fabric};
}

const char *ibx_session_refused_way(const struct ibx_session *s)
{
    return s->copies.refused;
}

int ibx_session_serve(struct ibx_session *s, struct ibx_error *err)
{
    if (s->state != SESSION_NEW)
        return ibx_error_set(err, -EINVAL, "the session at %s is in use already", s->uri);
    int rc = ibx_listen(s->uri, &s->options, &s->listener, err);
    if (!rc)
        s->state = SESSION_LISTENING;
    return rc;
}

const char *ibx_session_uri(const struct ibx_session *s)
{
    return s->listener ? ibx_listener_uri(s->listener) : s->uri;
}

/* What a live session needs beyond its connection. */
static int come_alive(struct ibx_session *s)
{
    s->caps = ibx_conn_caps(s->conn);
    s->path = *ibx_conn_path(s->conn);
    s->out = malloc(s->caps->message_max);
    if (!s->out || ibx_messages_init(s))
        return ibx_session_fail(s, -ENOMEM, "no memory for a session with %s", s->path.peer);
    s->state = SESSION_LIVE;
    return 0;
}

/* Waits for a knock. Running out of descriptors must not end the server: it is said and waited
 * out. */
int ibx_session_accept(struct ibx_session *listening, struct ibx_session **session,
                       struct ibx_error *err)
{
    if (listening->state != SESSION_LISTENING)
        return ibx_error_set(err, -EINVAL, "nobody listens at %s", listening->uri);
    struct ibx_conn *conn = NULL;
    while (!conn) {
        struct pollfd wait = {.fd = ibx_listener_fd(listening->listener), .events = POLLIN};
        if (poll(&wait, 1, -1) < 0 && errno != EINTR)
            return ibx_error_set(err, -errno, "waiting at %s: %s", listening->uri, strerror(errno));
        struct ibx_error why = {0};
        int rc = ibx_accept(listening->listener, &conn, &why);
        if (rc && rc != -EAGAIN) {
            ibx_log(IBX_LOG_ERROR, "%s", why.message);
            poll(NULL, 0, 100);
        }
    }
    struct ibx_session *s;
    int rc = ibx_session_create(listening->uri, &listening->options, &s, err);
    if (rc) {
        ibx_close(conn);
        return rc;
    }
    ibx_copies_init(&s->copies, &listening->copies.options);
    s->server = true;
    s->conn = conn;
    s->state = SESSION_KNOCKED;
    *session = s;
    return 0;
}

int ibx_session_connect(struct ibx_session *s, struct ibx_error *err)
{
    if (s->state != SESSION_NEW)
        return ibx_error_set(err, -EINVAL, "the session at %s is in use already", s->uri);
    int rc = ibx_connect(s->uri, &s->options, &s->conn, err);
    if (rc)
        return rc;
    rc = come_alive(s);
    return rc ? ibx_error_set(err, rc, "%s", s->reason) : 0;
}

static int establish(struct ibx_session *s)
{
    struct ibx_error err = {0};
    int rc = ibx_establish(s->conn, &err);
    if (!rc)
        return come_alive(s);
    return ibx_session_fail(s, rc, "%s", err.message);
}

/* ------------------------------------------------------------------------- end */

/* Registrations may be given back only when no copy is under way any more. */
static void abandon_ops(struct ibx_session *s)
{
    struct ibx_event events[8];
    uint64_t deadline = ibx_deadline_in_ms(ABANDON_MS);
    ibx_abort(s->conn);
    while (s->ops_pending && ibx_now_ns() < deadline) {
        int n = ibx_poll(s->conn, events, 8);
        if (n < 0)
            return;
        for (int i = 0; i < n; i++)
            s->ops_pending -= events[i].type == IBX_EVENT_READ || events[i].type == IBX_EVENT_WRITE;
        if (!n)
            ibx_wait(s->conn, 100);
    }
}

static void release_all(struct ibx_session *s)
{
    s->state = SESSION_DEAD;
    if (s->conn && ibx_conn_inherited(s->conn)) {
        ibx_close(s->conn); /* all else is the parent's, and in use there */
    } else if (s->conn) {
        abandon_ops(s);
        ibx_client_stage_destroy(s->stage);
        s->stage = NULL;
        ibx_rendezvous_fini(s);
        ibx_copies_release(s);
        ibx_close(s->conn);
    }
    ibx_copies_fini(s);
    s->conn = NULL;
    s->caps = NULL;
    free(s->out);
    s->out = NULL;
    ibx_messages_fini(s);
    s->has_current = false;
    s->segment = s->behind = (struct segment){.kind = SEGMENT_NONE};
}

int ibx_session_fail(struct ibx_session *s, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(s->reason, sizeof(s->reason), format, args);
    va_end(args);
    ibx_log(IBX_LOG_WARN, "%s", s->reason);
    release_all(s);
    return code;
}

int ibx_session_leave(struct ibx_session *s, const char *why)
{
    snprintf(s->reason, sizeof(s->reason), "%s: %s", s->path.peer, why);
    ibx_log(IBX_LOG_INFO, "%s", s->reason);
    release_all(s);
    return -ENOTCONN;
}

void ibx_session_close(struct ibx_session *s)
{
    ibx_listener_close(s->listener);
    s->listener = NULL;
    release_all(s);
}

void ibx_session_destroy(struct ibx_session *s)
{
    if (!s)
        return;
    ibx_session_close(s);
    free(s->uri);
    free(s);
}

const struct ibx_path *ibx_session_path(const struct ibx_session *s)
{
    return s->path.provider[0] ? &s->path : NULL;
}

const char *ibx_session_reason(const struct ibx_session *s)
{
    return s->reason;
}

/* --------------------------------------------------------------------- reading */

static int malformed(struct ibx_session *s)
{
    return ibx_session_fail(s, -EPROTO, "%s sent a malformed message of %zu bytes", s->path.peer,
                            s->current.length);
}

/* Client: the head of a reply says how many bodies the server has read. */
static int read_count(struct ibx_session *s)
{
    uint32_t bodies_read = ibx_get_u32(&s->reader);
    return s->reader.failed ? malformed(s) : ibx_rendezvous_confirm(s, bodies_read);
}

/* Makes the next DATA message current; answers the FLUSHes that may stand between two of them. */
static int next_data(struct ibx_session *s)
{
    for (;;) {
        struct ibx_event event;
        int rc = ibx_session_next_message(s, &s->stream, &event);
        if (rc)
            return rc;
        s->reader = ibx_reader_of(event.data, event.length);
        uint8_t type = ibx_get_u8(&s->reader);
        if (type == MESSAGE_DATA) {
            s->current = event;
            s->has_current = true;
            return s->server ? 0 : read_count(s);
        }
        bool flush = s->server && ibx_message_is(&event, MESSAGE_FLUSH);
        ibx_message_release(s->conn, &event);
        if (!flush)
            return ibx_session_fail(s, -EPROTO, "%s sent message %u where data was due",
                                    s->path.peer, type);
        rc = ibx_session_send_short(s, MESSAGE_FLUSHED);
        if (rc)
            return rc;
    }
}

/* Server: memory that is lent, once until it is used. No bytes of the stream. */
static int next_landing(struct ibx_session *s)
{
    struct ibx_remote remote;
    ibx_remote_get(&s->reader, &remote);
    if (s->reader.failed || !s->server || !remote.length || s->landing.remote.length)
        return malformed(s);
    s->landing.remote = remote;
    return 0;
}

/* Server: likewise, for the reply to the request that follows. */
static int next_aim(struct ibx_session *s)
{
    struct ibx_remote remote;
    ibx_remote_get(&s->reader, &remote);
    if (s->reader.failed || !s->server || !remote.length || s->aim.remote.length)
        return malformed(s);
    s->aim.remote = remote;
    return 0;
}

/* Reads the head of the next segment of the current message. */
static int next_segment(struct ibx_session *s)
{
    struct ibx_reader *r = &s->reader;
    struct segment segment = {.kind = ibx_get_u8(r)};
    switch (segment.kind) {
    case SEGMENT_INLINE:
        segment.left = ibx_get_u32(r);
        segment.inline_at = ibx_get_bytes(r, segment.left);
        break;
    case SEGMENT_EXPOSED:
        r->failed = r->failed || !s->server;
        ibx_remote_get(r, &segment.remote);
        segment.left = segment.remote.length;
        break;
    case SEGMENT_PENDING:
        r->failed = r->failed || s->server;
        segment.left = ibx_get_u64(r);
        break;
    case SEGMENT_LANDED:
        segment.left = ibx_get_u64(r);
        r->failed = r->failed || s->server || !ibx_posted_reply_expects(s, segment.left);
        break;
    case SEGMENT_AIMED:
        segment.left = ibx_get_u64(r);
        r->failed = r->failed || s->server || !s->aim.mr || segment.left != s->aim.length;
        break;
    case SEGMENT_LANDING:
        return next_landing(s);
    case SEGMENT_AIM:
        return next_aim(s);
    case SEGMENT_SETTLE:
        s->settle = s->server;
        return s->server ? 0 : malformed(s);
    case SEGMENT_PLACED:
        s->placed = !s->server;
        return s->server ? malformed(s) : 0;
    default:
        r->failed = true;
    }
    bool empty = segment.kind != SEGMENT_INLINE && !segment.left;
    if (r->failed || empty)
        return malformed(s);
    if (!s->server)
        ibx_posted_reply_prepare(s, segment.kind, segment.left);
    s->segment = segment;
    return 0;
}

int ibx_session_refill(struct ibx_session *s)
{
    while (!s->segment.left) {
        int rc = 0;
        if (s->behind.kind) {
            s->segment = s->behind;
            s->behind.kind = SEGMENT_NONE;
        } else if (s->has_current && ibx_reader_left(&s->reader)) {
            rc = next_segment(s);
        } else {
            if (s->has_current)
                ibx_message_release(s->conn, &s->current);
            s->has_current = false;
            rc = next_data(s);
        }
        if (rc)
            return rc;
    }
    return 0;
}

int ibx_session_read_some(struct ibx_session *s, uint8_t *to, size_t n)
{
    switch (s->segment.kind) {
    case SEGMENT_EXPOSED:
        return ibx_rendezvous_take(s, to, n);
    case SEGMENT_PENDING:
        return ibx_rendezvous_receive(s, to, n);
    case SEGMENT_LANDED:
        return ibx_posted_reply_take(s, to, n);
    case SEGMENT_AIMED:
        s->segment.left -= n;
        return to == s->aim.to && !s->segment.left ? 0 : malformed(s);
    default:
        memcpy(to, s->segment.inline_at, n);
        s->segment.inline_at += n;
        s->segment.left -= n;
        return 0;
    }
}

ssize_t ibx_session_read(struct ibx_session *s, void *buffer, size_t n)
{
    uint8_t *to = buffer;
    int rc = 0;
    if (s->state == SESSION_KNOCKED)
        rc = establish(s);
    if (s->state != SESSION_LIVE)
        return 0;
    rc = s->server && n ? ibx_copies_run(s) : 0;
    for (size_t got = 0; got < n && !rc;) {
        rc = ibx_session_refill(s);
        if (rc)
            break;
        size_t some = n - got < s->segment.left ? n - got : (size_t)s->segment.left;
        rc = ibx_session_read_some(s, to + got, some);
        got += some;
    }
    if (rc == -ENOTCONN)
        return 0;
    s->in_frame = s->in_frame || (n && !rc);
    if (!rc && s->server)
        ibx_copies_note_read(s, buffer, n);
    return rc ? rc : (ssize_t)n;
}

bool ibx_session_in_frame(const struct ibx_session *s)
{
    return s->in_frame;
}

/* --------------------------------------------------------------------- writing */

/* Sends the gathered message, and perhaps more that is not copied into it. A server delivers the
 * bodies that it announces at once: the client, waiting for one, takes nothing else meanwhile. */
static int send_data(struct ibx_session *s, const struct iovec *iov, int iovcnt)
{
    s->out_length = 0;
    s->out_inline = 0;
    if (s->server) {
        struct ibx_writer w = ibx_writer_of(s->out + 1, 4);
        ibx_put_u32(&w, s->bodies_read);
    }
    int rc = ibx_session_send(s, iov, iovcnt);
    return !rc && s->server && s->bodies ? ibx_rendezvous_deliver(s) : rc;
}

static int send_gathered(struct ibx_session *s)
{
    struct iovec iov = {s->out, s->out_length};
    return s->out_length ? send_data(s, &iov, 1) : 0;
}

/* Room for `n` more bytes in the gathered message; what is there may leave first. */
static int make_room(struct ibx_session *s, size_t n)
{
    if (s->out_length && s->out_length + n > s->caps->message_max) {
        int rc = send_gathered(s);
        if (rc)
            return rc;
    }
    if (!s->out_length) {
        s->out[0] = MESSAGE_DATA;
        s->out_length = s->server ? 5 : 1; /* send_data() fills the server's count in */
        if (!s->server)
            s->out_length += ibx_posted_reply_lend(s, s->out + 1, SEGMENT_LANDING_BYTES);
    }
    return 0;
}

static void patch_inline(struct ibx_session *s, size_t length)
{
    struct ibx_writer w = ibx_writer_of(s->out + s->out_inline, 4);
    ibx_put_u32(&w, (uint32_t)length);
}

int ibx_session_gather(struct ibx_session *s, const uint8_t *from, size_t n)
{
    while (n) {
        int rc = make_room(s, SEGMENT_HEAD_INLINE + 1);
        if (rc)
            return rc;
        if (!s->out_inline) {
            s->out[s->out_length] = SEGMENT_INLINE;
            s->out_inline = s->out_length + 1;
            s->out_length += SEGMENT_HEAD_INLINE;
        }
        size_t room = s->caps->message_max - s->out_length;
        size_t some = n < room ? n : room;
        memcpy(s->out + s->out_length, from, some);
        s->out_length += some;
        patch_inline(s, s->out_length - s->out_inline - 4);
        from += some;
        n -= some;
    }
    return 0;
}

/* Sends what was gathered and n more bytes straight from where they are: for the transport copies
 * them anyway. */
static int send_along(struct ibx_session *s, const uint8_t *from, size_t n)
{
    while (n) {
        int rc = make_room(s, SEGMENT_HEAD_INLINE + 1);
        if (rc)
            return rc;
        size_t room = s->caps->message_max - s->out_length - SEGMENT_HEAD_INLINE;
        size_t some = n < room ? n : room;
        s->out[s->out_length] = SEGMENT_INLINE;
        s->out_inline = s->out_length + 1;
        s->out_length += SEGMENT_HEAD_INLINE;
        patch_inline(s, some);
        struct iovec iov[2] = {{s->out, s->out_length}, {(void *)(uintptr_t)from, some}};
        rc = send_data(s, iov, 2);
        if (rc)
            return rc;
        from += some;
        n -= some;
    }
    return 0;
}

int ibx_session_add_segment(struct ibx_session *s, const uint8_t *bytes, size_t n)
{
    int rc = make_room(s, n);
    if (rc)
        return rc;
    s->out_inline = 0;
    memcpy(s->out + s->out_length, bytes, n);
    s->out_length += n;
    return 0;
}

int ibx_session_write_body(struct ibx_session *s, const void *data, size_t n)
{
    uint8_t bytes[1 + IBX_REMOTE_BYTES];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    if (s->server) {
        bool lands = ibx_posted_reply_fits(s, n);
        if (!lands) { /* an empty segment: such bodies could land */
            ibx_put_u8(&w, SEGMENT_INLINE);
            ibx_put_u32(&w, 0);
        }
        ibx_put_u8(&w, lands ? SEGMENT_LANDED : SEGMENT_PENDING);
        ibx_put_u64(&w, n);
        int rc = ibx_session_add_segment(s, bytes, w.length);
        if (!rc && ibx_rendezvous_announce(s, data, n))
            rc = ibx_session_fail(s, -ENOMEM, "no memory to note a reply of %zu bytes", n);
        return rc;
    }
    struct ibx_remote remote;
    if (ibx_rendezvous_expose(s, data, n, &remote))
        return 1;
    ibx_put_u8(&w, SEGMENT_EXPOSED);
    ibx_remote_put(&w, &remote);
    return ibx_session_add_segment(s, bytes, w.length);
}

/* A client that writes again without having read a reply: its earlier bodies may still be needed
 * by the server, and this caller may be about to reuse them. */
static int flush_bodies(struct ibx_session *s)
{
    struct ibx_event event;
    int rc = ibx_session_send_short(s, MESSAGE_FLUSH);
    if (!rc)
        rc = ibx_session_next_message(s, &s->control, &event);
    if (rc)
        return rc;
    bool good = ibx_message_is(&event, MESSAGE_FLUSHED);
    ibx_message_release(s->conn, &event);
    if (!good)
        return ibx_session_fail(s, -EPROTO, "%s did not confirm a request's body", s->path.peer);
    ibx_rendezvous_drop(s);
    return 0;
}

ssize_t ibx_session_write(struct ibx_session *s, const void *buffer, size_t n)
{
    if (s->state != SESSION_LIVE)
        return -ENOTCONN;
    int rc = s->synced ? flush_bodies(s) : 0;
    if (rc)
        return rc;
    if (s->server)
        ibx_copies_note_write(s, buffer, n);
    rc = n >= s->caps->rendezvous ? ibx_session_write_body(s, buffer, n) : 1;
    if (rc > 0)
        rc = n >= SEND_ALONG ? send_along(s, buffer, n) : ibx_session_gather(s, buffer, n);
    return rc ? rc : (ssize_t)n;
}

int ibx_session_sync(struct ibx_session *s)
{
    s->in_frame = false;
    if (s->server)
        ibx_copies_note_sync(s); /* before the client knows what its request has done */
    if (s->state != SESSION_LIVE)
        return -ENOTCONN;
    int rc = send_gathered(s);
    if (s->server) {
        s->aim.remote.length = 0;
        s->settle = false;
    }
    s->synced = s->bodies != NULL;
    uint64_t exposed = 0;
    for (const struct body *body = s->bodies; body; body = body->next)
        exposed += body->length;
    if (exposed && !rc)
        ibx_session_expect(s, exposed);
    return rc;
}
