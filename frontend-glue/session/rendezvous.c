/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Long pieces of the stream: moved one-sidedly, always by the server. */
#include "frontend-glue/session/session_internal.h"

#include "common/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What a session keeps registered of memory that GVirtuS owns, where registration pins it. */
#define CACHE_BYTES   (4ull << 30)
#define CACHE_ENTRIES 64u

#define CREW_MIN       (3u << 20)   /* below it a crew gains nothing */
#define DIRECT_AT_ONCE (512u << 10) /* what a stopped back end may still copy: docs/security.md */

/* Registers [data, data + length), or finds it registered. A failure is no error: the caller copies
 * instead. */
static int pin(struct ibx_session *s, const void *data, size_t length, unsigned access,
               struct ibx_mr **mr)
{
    struct ibx_error err = {0};
    struct ibx_span span = ibx_span_host((void *)(uintptr_t)data, length);
    int rc = 0;
    if (!s->caps->register_free && !s->cache)
        rc = ibx_regcache_create(s->conn, CACHE_BYTES, CACHE_ENTRIES, &s->cache, &err);
    if (!rc && s->cache)
        rc = ibx_regcache_get(s->cache, span.address, length, access, mr, &err);
    else if (!rc)
        rc = ibx_mr_register(s->conn, &span, access, mr, &err);
    if (rc)
        ibx_log(IBX_LOG_INFO, "%zu bytes at %p go by copy: %s", length, data, err.message);
    return rc;
}

static void unpin(struct ibx_session *s, struct ibx_mr *mr)
{
    if (mr && s->cache)
        ibx_regcache_put(s->cache, mr);
    else
        ibx_mr_deregister(mr);
}

void ibx_session_prepare(struct ibx_session *s, void *address, size_t n)
{
    struct ibx_mr *mr;
    unsigned both = IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE;
    if (s->state == SESSION_LIVE && !s->caps->register_free && !pin(s, address, n, both, &mr))
        unpin(s, mr);
}

static struct body *body_add(struct ibx_session *s, const void *data, size_t length)
{
    struct body *body = malloc(sizeof(*body));
    if (!body)
        return NULL;
    *body = (struct body){.data = data, .length = length};
    *s->bodies_tail = body;
    s->bodies_tail = &body->next;
    return body;
}

static void body_pop(struct ibx_session *s)
{
    struct body *body = s->bodies;
    s->bodies = body->next;
    if (!s->bodies)
        s->bodies_tail = &s->bodies;
    if (body->mr)
        unpin(s, body->mr);
    free(body);
}

int ibx_rendezvous_expose(struct ibx_session *s, const void *data, size_t length,
                          struct ibx_remote *remote)
{
    struct ibx_mr *mr;
    int rc = pin(s, data, length, IBX_ACCESS_REMOTE_READ, &mr);
    if (rc)
        return rc;
    rc = ibx_mr_remote(mr, (size_t)((const char *)data - (const char *)ibx_mr_address(mr)), length,
                       remote);
    struct body *body = rc ? NULL : body_add(s, data, length);
    if (!body) {
        unpin(s, mr);
        return rc ? rc : -ENOMEM;
    }
    body->mr = mr;
    return 0;
}

int ibx_rendezvous_note(struct ibx_session *s, const void *data, size_t length)
{
    return body_add(s, data, length) ? 0 : -ENOMEM;
}

int ibx_rendezvous_prepost(struct ibx_session *s, void *to, size_t n, struct ibx_remote *remote)
{
    struct ibx_mr *mr;
    int rc = pin(s, to, n, IBX_ACCESS_REMOTE_WRITE, &mr);
    if (rc)
        return rc;
    rc = ibx_mr_remote(mr, (size_t)((char *)to - (char *)ibx_mr_address(mr)), n, remote);
    if (rc) {
        unpin(s, mr);
        return rc;
    }
    s->aim = (struct aim){.mr = mr, .to = to, .length = n};
    return 0;
}

void ibx_rendezvous_unpost(struct ibx_session *s)
{
    if (!s->aim.lent)
        unpin(s, s->aim.mr);
    s->aim.mr = NULL;
}

int ibx_rendezvous_announce(struct ibx_session *s, const void *data, size_t length)
{
    struct body *body = body_add(s, data, length);
    if (!body)
        return -ENOMEM;
    if (ibx_posted_reply_fits(s, length)) {
        body->landing = s->landing.remote;
        s->landing.remote.length = 0;
    }
    return 0;
}

void ibx_rendezvous_drop(struct ibx_session *s)
{
    while (s->bodies) {
        body_pop(s);
        s->bodies_read++;
    }
    s->synced = false;
}

int ibx_rendezvous_confirm(struct ibx_session *s, uint32_t bodies_read)
{
    while (s->bodies_read != bodies_read) {
        if (!s->bodies)
            return ibx_session_fail(s, -EPROTO, "%s says that it has read bodies never sent",
                                    s->path.peer);
        body_pop(s);
        s->bodies_read++;
    }
    s->synced = s->synced && s->bodies;
    return 0;
}

void ibx_rendezvous_fini(struct ibx_session *s)
{
    ibx_rendezvous_drop(s);
    ibx_rendezvous_unpost(s);
    unpin(s, s->in_use);
    s->in_use = NULL;
    ibx_mr_deregister(s->bounce);
    s->bounce = NULL;
    ibx_mr_deregister(s->landing.mr);
    s->landing.mr = NULL;
    ibx_regcache_destroy(s->cache);
    s->cache = NULL;
}

/* ------------------------------------------------------------------ the server */

static int wait_ops(struct ibx_session *s, unsigned at_most)
{
    while (s->ops_pending > at_most) {
        int rc = ibx_session_pump(s);
        if (rc)
            return rc;
    }
    if (s->ops_status)
        return ibx_session_fail(s, s->ops_status, "copying with %s failed: %s", s->path.peer,
                                strerror(-s->ops_status));
    return 0;
}

static int post(struct ibx_session *s, bool read, struct ibx_mr *mr, void *local,
                const struct ibx_remote *remote, uint64_t offset, size_t n)
{
    int rc = read ? ibx_read(s->conn, mr, local, remote, offset, n, 0, 0)
                  : ibx_write(s->conn, mr, local, remote, offset, n, 0, 0);
    if (rc)
        return ibx_session_fail(s, rc, "%s of %zu bytes with %s failed: %s",
                                read ? "READ" : "WRITE", n, s->path.peer, strerror(-rc));
    s->ops_pending++;
    return 0;
}

static int bounce_ready(struct ibx_session *s)
{
    struct ibx_error err = {0};
    if (s->bounce)
        return 0;
    int rc = ibx_mr_allocate(s->conn, (size_t)BOUNCE_PIECES * BOUNCE_PIECE_BYTES, IBX_ACCESS_LOCAL,
                             &s->bounce, &err);
    return rc ? ibx_session_fail(s, rc, "no bounce buffer: %s", err.message) : 0;
}

/* Without a registration of `data`: piece by piece through the bounce buffer. One piece is copied
 * by the CPU while the fabric has the others. */
static int move_bounced(struct ibx_session *s, bool read, uint8_t *data,
                        const struct ibx_remote *remote, uint64_t offset, size_t n)
{
    int rc = bounce_ready(s);
    if (rc)
        return rc;
    uint8_t *pieces = ibx_mr_address(s->bounce);
    size_t given = 0, taken = 0;
    /* Completions of one kind are not ordered, so a round waits for all its pieces. */
    while (taken < n) {
        size_t start = given;
        for (unsigned i = 0; i < BOUNCE_PIECES && given < n; i++) {
            size_t length = n - given < BOUNCE_PIECE_BYTES ? n - given : BOUNCE_PIECE_BYTES;
            uint8_t *piece = pieces + (size_t)i * BOUNCE_PIECE_BYTES;
            if (!read)
                memcpy(piece, data + given, length);
            rc = post(s, read, s->bounce, piece, remote, offset + given, length);
            if (rc)
                return rc;
            given += length;
        }
        rc = wait_ops(s, 0);
        if (rc)
            return rc;
        if (read)
            memcpy(data + start, pieces, given - start);
        taken = given;
    }
    return 0;
}

/* Gives back what `in_use` holds, unless a failure has done so. */
static void finish_use(struct ibx_session *s)
{
    unpin(s, s->in_use);
    s->in_use = NULL;
}

/* For a crew: memory of the client that is held. Its pieces are named by their addresses there. */
struct held {
    struct ibx_conn *conn;
    const struct ibx_remote *remote;
    const struct ibx_reach *reach;
    bool read;
};

static int copy_held(void *context, void *local, uint64_t address, size_t n)
{
    const struct held *held = context;
    uint64_t offset = address - held->remote->address;
    uint8_t *mapped = held->reach->address, *data = local;
    int rc = 0;
    if (mapped)
        memcpy(held->read ? data : mapped + offset, held->read ? mapped + offset : data, n);
    for (size_t at = 0, some; !mapped && at < n && !rc; at += some) {
        some = n - at < DIRECT_AT_ONCE ? n - at : DIRECT_AT_ONCE;
        rc = ibx_remote_copy(held->conn, held->read, data + at, held->remote, offset + at, some);
    }
    return rc;
}

/* Where this host has processors to spare: several threads copy between GVirtuS's memory and the
 * client's. 1: the fabric has to. */
static int move_by_crew(struct ibx_session *s, bool read, uint8_t *data,
                        const struct ibx_remote *remote, uint64_t offset, size_t n)
{
    unsigned access = read ? IBX_ACCESS_REMOTE_READ : IBX_ACCESS_REMOTE_WRITE;
    struct ibx_remote part = *remote;
    struct ibx_reach reach;
    if (n < CREW_MIN || s->copies.alone || s->ops_pending || offset > remote->length ||
        n > remote->length - offset)
        return 1;
    part.address += offset;
    part.length = n;
    if (ibx_remote_hold(s->conn, &part, access, &reach))
        return 1;
    struct held held = {s->conn, &part, &reach, read};
    struct ibx_copy_threads *crew = ibx_copies_threads(&s->copies);
    /* The kernel may have become unwilling since the last time. */
    bool able = crew && (reach.address || !ibx_remote_copy(s->conn, true, NULL, &part, 0, 0));
    int rc = able ? ibx_copy_threads_run(crew, copy_held, &held, data, part.address, n) : 1;
    ibx_remote_release(s->conn);
    return rc < 0
               ? ibx_session_fail(s, rc, "copying with %s failed: %s", s->path.peer, strerror(-rc))
               : rc;
}

static int move(struct ibx_session *s, bool read, uint8_t *data, const struct ibx_remote *remote,
                uint64_t offset, size_t n)
{
    int by_crew = move_by_crew(s, read, data, remote, offset, n);
    if (by_crew <= 0)
        return by_crew;
    if (pin(s, data, n, IBX_ACCESS_LOCAL, &s->in_use))
        return move_bounced(s, read, data, remote, offset, n);
    int rc = post(s, read, s->in_use, data, remote, offset, n);
    if (!rc)
        rc = wait_ops(s, 0);
    if (!rc)
        finish_use(s);
    return rc;
}

int ibx_rendezvous_take(struct ibx_session *s, uint8_t *to, size_t n)
{
    struct segment *segment = &s->segment;
    int rc = move(s, true, to, &segment->remote, segment->remote_at, n);
    if (!rc) {
        segment->remote_at += n;
        segment->left -= n;
        s->bodies_read += !segment->left;
    }
    return rc;
}

static int next_grant(struct ibx_session *s, size_t at_most, struct ibx_remote *grant)
{
    struct ibx_event event;
    int rc = ibx_session_next_message(s, &s->control, &event);
    if (rc)
        return rc;
    struct ibx_reader r = ibx_reader_of(event.data, event.length);
    uint8_t type = ibx_get_u8(&r);
    ibx_remote_get(&r, grant);
    bool bad = r.failed || type != MESSAGE_GRANT || ibx_reader_left(&r) || !grant->length ||
               grant->length > at_most;
    ibx_message_release(s->conn, &event);
    return bad ? ibx_session_fail(s, -EPROTO, "%s sent message %u where a grant was due",
                                  s->path.peer, type)
               : 0;
}

/* The next n bytes of a reply's body. */
static int deliver_part(struct ibx_session *s, const struct body *body, size_t at,
                        const struct ibx_remote *remote, size_t n)
{
    if (!body->data)
        return ibx_copies_deliver(s, remote, n);
    return move(s, false, (uint8_t *)(uintptr_t)body->data + at, remote, 0, n);
}

static int deliver_granted(struct ibx_session *s, const struct body *body)
{
    for (size_t at = 0; at < body->length;) {
        struct ibx_remote grant;
        int rc = next_grant(s, body->length - at, &grant);
        if (rc)
            return rc;
        size_t n = (size_t)grant.length;
        rc = deliver_part(s, body, at, &grant, n);
        if (!rc)
            rc = ibx_session_send_short(s, MESSAGE_DONE);
        if (rc)
            return rc;
        at += n;
    }
    return 0;
}

static int deliver_landing(struct ibx_session *s, const struct body *body)
{
    int rc = deliver_part(s, body, 0, &body->landing, body->length);
    return rc ? rc : ibx_session_send_short(s, MESSAGE_LANDED);
}

/* A failure ends the session and its bodies with it. */
int ibx_rendezvous_deliver(struct ibx_session *s)
{
    while (s->bodies) {
        const struct body *body = s->bodies;
        int rc = body->landing.length ? deliver_landing(s, body) : deliver_granted(s, body);
        if (rc)
            return rc;
        body_pop(s);
    }
    return 0;
}

/* ------------------------------------------------------------------ the client */

static int grant(struct ibx_session *s, struct ibx_mr *mr, const uint8_t *to, size_t n)
{
    uint8_t bytes[1 + IBX_REMOTE_BYTES];
    struct ibx_remote remote;
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    int rc = ibx_mr_remote(mr, (size_t)(to - (const uint8_t *)ibx_mr_address(mr)), n, &remote);
    if (rc)
        return ibx_session_fail(s, rc, "cannot name the reply's memory: %s", strerror(-rc));
    ibx_put_u8(&w, MESSAGE_GRANT);
    ibx_remote_put(&w, &remote);
    struct iovec iov = {bytes, w.length};
    rc = ibx_session_send(s, &iov, 1);
    struct ibx_event event;
    if (!rc)
        ibx_session_expect(s, n);
    if (!rc)
        rc = ibx_session_next_message(s, &s->control, &event);
    if (rc)
        return rc;
    bool done = ibx_message_is(&event, MESSAGE_DONE);
    ibx_message_release(s->conn, &event);
    return done ? 0
                : ibx_session_fail(s, -EPROTO, "%s did not confirm a reply's body", s->path.peer);
}

/* A reply's body for memory that cannot be registered: through a piece that can. */
static int receive_bounced(struct ibx_session *s, uint8_t *to, size_t n)
{
    if (!s->bounce) {
        struct ibx_error err = {0};
        int rc =
            ibx_mr_allocate(s->conn, BOUNCE_PIECE_BYTES, IBX_ACCESS_REMOTE_WRITE, &s->bounce, &err);
        if (rc)
            return ibx_session_fail(s, rc, "a reply of %zu bytes finds no memory: %s", n,
                                    err.message);
    }
    for (size_t at = 0; at < n; at += BOUNCE_PIECE_BYTES) {
        size_t length = n - at < BOUNCE_PIECE_BYTES ? n - at : BOUNCE_PIECE_BYTES;
        int rc = grant(s, s->bounce, ibx_mr_address(s->bounce), length);
        if (rc)
            return rc;
        memcpy(to + at, ibx_mr_address(s->bounce), length);
    }
    return 0;
}

int ibx_rendezvous_receive(struct ibx_session *s, uint8_t *to, size_t n)
{
    int rc;
    if (pin(s, to, n, IBX_ACCESS_REMOTE_WRITE, &s->in_use)) {
        rc = receive_bounced(s, to, n);
    } else {
        rc = grant(s, s->in_use, to, n);
        if (!rc)
            finish_use(s);
    }
    if (!rc)
        s->segment.left -= n;
    return rc;
}
