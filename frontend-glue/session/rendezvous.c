/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Long writes of the stream: moved one-sidedly, always by the server. */
#include "frontend-glue/session/session_internal.h"

#include "common/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* How many bytes of GVirtuS's memory a session keeps registered, if registration pins memory. */
#define CACHE_BYTES   (4ull << 30)
#define CACHE_ENTRIES 64u

#define POSTED_FIRST   16u  /* initial room for READs and WRITEs under way */
#define FAILURES_MAX   300u /* failures of one of them, on as many connections */
#define FAILURES_ALONE 3u   /* the same if only this one has failed */

#define THREADS_MIN    (3u << 20)   /* bytes below which several threads gain nothing */
#define PREPARE_MIN    (64u << 10)  /* bytes; shorter memory is pinned quickly */
#define DIRECT_AT_ONCE (512u << 10) /* a stopped back end may still copy it: docs/security.md */

static const struct ibx_state post_states[] = {
    [POST_NONE] = {"none", IBX_TO(POST_WAITING), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [POST_WAITING] = {"waiting", IBX_TO(POST_POSTED) | IBX_TO(POST_NONE), 0},
    [POST_POSTED] = {"posted", IBX_TO(POST_WAITING) | IBX_TO(POST_NONE), 0}};
static const struct ibx_state_table post_table =
    IBX_STATE_TABLE("READ or WRITE of a session", post_states);

static int register_anew(struct ibx_session *s, const void *data, size_t length, unsigned access,
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
        ibx_log(IBX_LOG_INFO, "%zu bytes at %p are copied through messages: %s", length, data,
                err.message);
    return rc;
}

/* Registers [data, data + length), or finds a registration. A failure is no error: the caller
 * copies instead, unless the session has ended with its connection. */
static int register_memory(struct ibx_session *s, const void *data, size_t length, unsigned access,
                           struct ibx_mr **mr)
{
    if (ibx_conn_over(s->conn) && !ibx_link_resume_if_ended(s))
        return -ENOTCONN;
    *mr = ibx_shared_region_get(s, data, length);
    return *mr ? 0 : register_anew(s, data, length, access, mr);
}

static void release_memory(struct ibx_session *s, struct ibx_mr *mr)
{
    if (!mr || ibx_shared_region_put(s, mr))
        return;
    if (s->cache)
        ibx_regcache_put(s->cache, mr);
    else
        ibx_mr_deregister(mr);
}

static void release_in_use(struct ibx_session *s)
{
    release_memory(s, s->ops.in_use);
    s->ops.in_use = NULL;
}

/* -------------------------------------------------------------- payloads of this side */

static struct payload *payload_add(struct ibx_session *s, const void *data, size_t length)
{
    struct payload *payload = malloc(sizeof(*payload));
    if (!payload)
        return NULL;
    *payload = (struct payload){.data = data, .length = length};
    *s->payloads_tail = payload;
    s->payloads_tail = &payload->next;
    return payload;
}

static void payload_pop(struct ibx_session *s)
{
    struct payload *payload = s->payloads;
    s->payloads = payload->next;
    if (!s->payloads)
        s->payloads_tail = &s->payloads;
    release_memory(s, payload->mr);
    free(payload);
}

int ibx_rendezvous_announce(struct ibx_session *s, const void *data, size_t length)
{
    return payload_add(s, data, length)
               ? 0
               : ibx_session_fail(s, -ENOMEM, "no memory to note a reply of %zu bytes", length);
}

void ibx_rendezvous_drop(struct ibx_session *s)
{
    while (s->payloads) {
        payload_pop(s);
        s->payloads_read++;
        s->payloads_flushed += s->payloads_flushed != UINT32_MAX; /* as many as are in doubt */
    }
    s->synced = false;
}

/* The reply to a request that was answered early may have been under way when FLUSHED was received.
 */
int ibx_rendezvous_confirm(struct ibx_session *s, uint32_t payloads_read)
{
    const int32_t more = (int32_t)(payloads_read - s->payloads_read);
    if (more < 0 && 0u - (uint32_t)more > s->payloads_flushed)
        return ibx_session_fail(
            s, -EPROTO, "%s reports that it has read fewer payloads than before", s->path.peer);
    while ((int32_t)(payloads_read - s->payloads_read) > 0) {
        if (!s->payloads)
            return ibx_session_fail(s, -EPROTO, "%s reports that it has read payloads never sent",
                                    s->path.peer);
        payload_pop(s);
        s->payloads_read++;
    }
    s->synced = s->synced && s->payloads;
    return 0;
}

void ibx_rendezvous_fini(struct ibx_session *s)
{
    ibx_rendezvous_drop(s);
    ibx_session_cts_end(s);
    release_in_use(s);
    ibx_shared_regions_leave(s);
    ibx_mr_deregister(s->bounce);
    s->bounce = NULL;
    ibx_regcache_destroy(s->cache);
    s->cache = NULL;
}

/* ------------------------------------------------------------------ the server */

bool ibx_session_posts_pending(const struct ibx_session *s)
{
    return s->ops.pending;
}

int ibx_session_copied(struct ibx_session *s, int rc)
{
    return rc < 0
               ? ibx_session_fail(s, rc, "copying with %s failed: %s", s->path.peer, strerror(-rc))
               : rc;
}

int ibx_session_check_posts(struct ibx_session *s)
{
    return ibx_session_copied(s, s->ops.status);
}

int ibx_session_finish_posts(struct ibx_session *s)
{
    while (s->ops.pending) {
        int rc = ibx_session_pump(s);
        if (rc)
            return rc;
    }
    return ibx_session_check_posts(s);
}

static struct posted *place_for_post(struct ibx_session *s)
{
    unsigned i = 0;
    while (i < s->ops.size && s->ops.items[i].state.now != POST_NONE)
        i++;
    if (i < s->ops.size)
        return &s->ops.items[i];
    unsigned size = s->ops.size ? 2 * s->ops.size : POSTED_FIRST;
    struct posted *more = realloc(s->ops.items, size * sizeof(*more));
    if (!more)
        return NULL;
    for (unsigned k = s->ops.size; k < size; k++)
        ibx_state_begin(&more[k].state, &post_table, POST_NONE);
    s->ops.items = more;
    s->ops.size = size;
    return &more[i];
}

/* Returns as ibx_session_fail(). Without a connection it waits for the next one. */
static int post(struct ibx_session *s, struct posted *p)
{
    const uint64_t cookie = (uint64_t)(p - s->ops.items) + 1;
    void *local = (void *)((uintptr_t)ibx_mr_address(p->mr) + p->at); /* may be a device address */
    struct ibx_remote remote = p->remote;
    int rc = -ESTALE;
    if (ibx_session_resolve(s, &remote))
        rc = p->read ? ibx_read(s->conn, p->mr, local, &remote, p->offset, p->n, cookie, p->flags)
                     : ibx_write(s->conn, p->mr, local, &remote, p->offset, p->n, cookie, p->flags);
    if (!rc) {
        s->ops.posted++;
        return ibx_state_move(&p->state, POST_POSTED);
    }
    if (rc == -ENOTCONN && ibx_link_survives(s))
        return 0;
    s->ops.pending--;
    ibx_state_move(&p->state, POST_NONE);
    return ibx_session_fail(s, rc, "%s of %zu bytes with %s failed: %s", p->read ? "READ" : "WRITE",
                            p->n, s->path.peer, strerror(-rc));
}

/* A READ or WRITE that failed is posted again on the next connection, unless no connection can do
 * it. */
int ibx_rendezvous_completed(struct ibx_session *s, const struct ibx_event *event)
{
    if (event->cookie - 1 >= s->ops.size ||
        s->ops.items[event->cookie - 1].state.now != POST_POSTED) {
        ibx_log(IBX_LOG_ERROR, "a READ or WRITE with %s has completed that was not posted",
                s->path.peer);
        return 0;
    }
    struct posted *p = &s->ops.items[event->cookie - 1];
    s->ops.posted--;
    if (event->status && ibx_session_live(s) && s->link.state.now != LINK_SINGLE && !s->link.peer) {
        /* It failed for another reason than the end of the connection. */
        bool lonely = !*ibx_conn_reason(s->conn);
        p->failures += lonely ? FAILURES_MAX / FAILURES_ALONE : 1;
        if (p->failures <= FAILURES_MAX) {
            ibx_abort(s->conn);
            return ibx_state_move(&p->state, POST_WAITING);
        }
    }
    ibx_state_move(&p->state, POST_NONE);
    s->ops.pending--;
    if (event->status && !s->ops.status)
        s->ops.status = event->status;
    if (p->cookie && s->hooks->arrived)
        s->hooks->arrived(s->context, p->cookie);
    return 0;
}

/* READs and WRITEs in GPU memory were registered on the last connection only: their caller repeats
 * them. */
void ibx_rendezvous_give_up(struct ibx_session *s)
{
    for (unsigned i = 0; i < s->ops.size; i++) {
        struct posted *p = &s->ops.items[i];
        if (p->state.now != POST_WAITING || ibx_mr_usable(p->mr))
            continue;
        ibx_state_move(&p->state, POST_NONE);
        s->ops.pending--;
        s->ops.given_up = true;
    }
}

bool ibx_session_take_given_up(struct ibx_session *s)
{
    const bool given_up = s->ops.given_up;
    s->ops.given_up = false;
    return given_up;
}

int ibx_rendezvous_again(struct ibx_session *s)
{
    int rc = 0;
    for (unsigned i = 0; i < s->ops.size && !rc; i++) {
        if (s->ops.items[i].state.now == POST_WAITING)
            rc = post(s, &s->ops.items[i]);
    }
    return rc;
}

int ibx_session_post(struct ibx_session *s, const struct ibx_session_op *op)
{
    struct posted *posted = place_for_post(s);
    if (!posted)
        return ibx_session_fail(s, -ENOMEM, "no memory for a copy with %s", s->path.peer);
    *posted = (struct posted){
        .state = posted->state,
        .read = op->read,
        .mr = op->mr,
        .at = (uint64_t)((uint8_t *)op->local - (uint8_t *)ibx_mr_address(op->mr)),
        .remote = *op->remote,
        .offset = op->offset,
        .n = op->n,
        .cookie = op->cookie,
        .flags = op->flags,
    };
    s->ops.pending++;
    ibx_state_move(&posted->state, POST_WAITING);
    return post(s, posted);
}

int ibx_session_allocate(struct ibx_session *s, size_t bytes, unsigned access, struct ibx_mr **mr,
                         struct ibx_error *err)
{
    if (ibx_session_live(s) && ibx_conn_over(s->conn))
        ibx_link_resume_if_ended(s);
    if (!ibx_session_live(s))
        return ibx_error_set(err, -ECONNRESET, "%.500s", s->reason);
    if (ibx_conn_over(s->conn))
        return ibx_error_set(err, -ENOTCONN, "the connection is closed");
    return ibx_mr_allocate(s->conn, bytes, access, mr, err);
}

static int bounce_ready(struct ibx_session *s, size_t bytes, unsigned access)
{
    struct ibx_error err = {0};
    int rc = s->bounce ? 0 : ibx_session_allocate(s, bytes, access, &s->bounce, &err);
    return rc ? ibx_session_fail(s, rc, "no bounce buffer: %s", err.message) : 0;
}

/* Without a registration of `data`: piece by piece through the bounce buffer. The CPU copies one
 * piece while the fabric moves the others. */
static int move_bounced(struct ibx_session *s, bool read, uint8_t *data,
                        const struct ibx_remote *remote, uint64_t offset, size_t n)
{
    int rc = bounce_ready(s, (size_t)BOUNCE_PIECES * BOUNCE_PIECE_BYTES, IBX_ACCESS_LOCAL);
    if (rc)
        return rc;
    size_t given = 0, taken = 0;
    /* Completions of one kind are not ordered, so a round waits for all its pieces. */
    while (taken < n) {
        size_t start = given;
        for (unsigned i = 0; i < BOUNCE_PIECES && given < n; i++) {
            size_t length = n - given < BOUNCE_PIECE_BYTES ? n - given : BOUNCE_PIECE_BYTES;
            uint8_t *piece = (uint8_t *)ibx_mr_address(s->bounce) + (size_t)i * BOUNCE_PIECE_BYTES;
            if (!read)
                memcpy(piece, data + given, length);
            rc = ibx_session_post(s, &(struct ibx_session_op){.read = read,
                                                              .mr = s->bounce,
                                                              .local = piece,
                                                              .remote = remote,
                                                              .offset = offset + given,
                                                              .n = length});
            if (rc)
                return rc;
            given += length;
        }
        rc = ibx_session_finish_posts(s);
        if (rc)
            return rc;
        if (read)
            memcpy(data + start, ibx_mr_address(s->bounce), given - start);
        taken = given;
    }
    return 0;
}

/* Memory of the client that is held for the copy threads, which address its pieces as the client
 * does. */
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

/* If this host has processors to spare, several threads copy between GVirtuS's memory and the
 * client's. 1: the fabric has to; otherwise as ibx_session_fail(). */
static int move_by_threads(struct ibx_session *s, bool read, uint8_t *data,
                           const struct ibx_remote *remote, uint64_t offset, size_t n)
{
    unsigned access = read ? IBX_ACCESS_REMOTE_READ : IBX_ACCESS_REMOTE_WRITE;
    struct ibx_remote part = *remote;
    struct ibx_reach reach;
    if (n < THREADS_MIN || s->no_threads || s->ops.pending || offset > remote->length ||
        n > remote->length - offset)
        return 1;
    part.address += offset;
    part.length = n;
    if (!ibx_session_resolve(s, &part) || ibx_remote_hold(s->conn, &part, access, &reach))
        return 1;
    struct held held = {s->conn, &part, &reach, read};
    struct ibx_copy_threads *threads = ibx_session_threads(s);
    /* The kernel may refuse now, though it did not last time. */
    bool able = threads && (reach.address || !ibx_remote_copy(s->conn, true, NULL, &part, 0, 0));
    int rc = able ? ibx_copy_threads_run(threads, copy_held, &held, data, part.address, n) : 1;
    ibx_remote_release(s->conn);
    return ibx_session_copied(s, rc);
}

static int move(struct ibx_session *s, bool read, uint8_t *data, const struct ibx_remote *remote,
                uint64_t offset, size_t n)
{
    int by_threads = move_by_threads(s, read, data, remote, offset, n);
    if (by_threads <= 0)
        return by_threads;
    if (register_memory(s, data, n, IBX_ACCESS_LOCAL, &s->ops.in_use))
        return move_bounced(s, read, data, remote, offset, n);
    const struct ibx_session_op op = {.read = read,
                                      .mr = s->ops.in_use,
                                      .local = data,
                                      .remote = remote,
                                      .offset = offset,
                                      .n = n};
    int rc = ibx_session_post(s, &op);
    if (!rc)
        rc = ibx_session_finish_posts(s);
    if (!rc)
        release_in_use(s);
    return rc;
}

int ibx_rendezvous_take(struct ibx_session *s, uint8_t *to, size_t n)
{
    struct segment *segment = &s->in.segment;
    int rc = move(s, true, to, &segment->remote, segment->remote_at, n);
    if (!rc) {
        segment->remote_at += n;
        segment->left -= n;
        s->payloads_read += !segment->left;
    }
    return rc;
}

static int next_cts(struct ibx_session *s, size_t at_most, struct ibx_remote *cts)
{
    struct ibx_event event;
    int rc = ibx_session_next_message(s, &s->control, &event);
    if (rc)
        return rc;
    struct ibx_reader r = ibx_reader_of(event.data, event.length);
    uint8_t type = ibx_get_u8(&r);
    ibx_name_get(&r, cts);
    bool bad = r.failed || type != MESSAGE_CTS || ibx_reader_left(&r) || !cts->length ||
               cts->length > at_most;
    ibx_message_release(s->conn, &event);
    return bad ? ibx_session_fail(s, -EPROTO, "%s sent message %u where a CTS was due",
                                  s->path.peer, type)
               : 0;
}

/* The next n bytes of a reply's payload. */
static int deliver_part(struct ibx_session *s, const struct payload *payload, size_t at,
                        const struct ibx_remote *remote, size_t n)
{
    if (!payload->data)
        return s->hooks->deliver(s->context, remote, n);
    return move(s, false, (uint8_t *)(uintptr_t)payload->data + at, remote, 0, n);
}

static int deliver_by_cts(struct ibx_session *s, const struct payload *payload)
{
    for (size_t at = 0; at < payload->length;) {
        struct ibx_remote cts;
        int rc = next_cts(s, payload->length - at, &cts);
        if (rc)
            return rc;
        size_t n = (size_t)cts.length;
        rc = deliver_part(s, payload, at, &cts, n);
        if (!rc)
            rc = ibx_session_send_short(s, MESSAGE_DONE);
        if (rc)
            return rc;
        at += n;
    }
    return 0;
}

/* A failure ends the session and its payloads with it. */
int ibx_rendezvous_deliver(struct ibx_session *s)
{
    while (s->payloads) {
        int rc = deliver_by_cts(s, s->payloads);
        if (rc)
            return rc;
        payload_pop(s);
    }
    return 0;
}

/* ------------------------------------------------------------------ the client */

/* Registers [data, data + length) and names it as the server does. -errno: it cannot be. */
static int register_remote(struct ibx_session *s, const void *data, size_t length, unsigned access,
                           struct ibx_mr **mr, struct ibx_remote *remote)
{
    int rc = register_memory(s, data, length, access, mr);
    if (rc)
        return rc;
    size_t at = (size_t)((const char *)data - (const char *)ibx_mr_address(*mr));
    rc = ibx_mr_remote(*mr, at, length, remote);
    if (rc)
        release_memory(s, *mr);
    return rc;
}

/* Tells the server, and waits until the server has acted on it. Returns as ibx_session_fail(). */
static int prepare_there(struct ibx_session *s, const struct ibx_remote *remote)
{
    int rc = ibx_session_sync(s);
    if (!rc)
        rc = ibx_session_take_owed(s, true);
    if (!rc)
        rc = ibx_session_add_remote(s, SEGMENT_PREPARE, remote);
    if (!rc)
        rc = ibx_session_sync(s);
    if (!rc)
        rc = ibx_session_send_short(s, MESSAGE_FLUSH);
    return rc ? rc : ibx_session_confirmed(s, MESSAGE_FLUSHED, "that it knows of memory");
}

void ibx_session_prepare(struct ibx_session *s, void *address, size_t n)
{
    struct ibx_remote remote;
    unsigned both = IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE;
    bool told = n >= PREPARE_MIN && ibx_session_idle(s) && !strcmp(s->path.provider, "shm") &&
                ibx_shared_holds(address, n);
    if (!ibx_session_live(s) || (s->caps->register_free && !told) ||
        register_remote(s, address, n, both, &s->ops.in_use, &remote))
        return;
    if (!told || !prepare_there(s, &remote)) /* if not, it was released with the session */
        release_in_use(s);
}

int ibx_session_share(struct ibx_session *s)
{
    if (!ibx_session_live(s) || (ibx_conn_over(s->conn) && !ibx_link_resume_if_ended(s)))
        return -ENOTCONN;
    return ibx_shared_give(s->conn);
}

int ibx_rendezvous_expose(struct ibx_session *s, const void *data, size_t length,
                          struct ibx_remote *remote)
{
    struct ibx_mr *mr;
    int rc = register_remote(s, data, length, IBX_ACCESS_REMOTE_READ, &mr, remote);
    if (rc)
        return rc;
    struct payload *payload = payload_add(s, data, length);
    if (!payload) {
        release_memory(s, mr);
        return -ENOMEM;
    }
    payload->mr = mr;
    payload->name = ibx_name_of(s, remote);
    return 0;
}

int ibx_session_write_registered(struct ibx_session *s, const void *data,
                                 const struct ibx_remote *remote)
{
    int rc = ibx_session_add_remote(s, SEGMENT_RTS_READ, remote);
    struct payload *payload = rc ? NULL : payload_add(s, data, (size_t)remote->length);
    if (payload)
        payload->name = ibx_name_of(s, remote);
    else if (!rc)
        rc = ibx_session_fail(s, -ENOMEM, "no memory to note a copy of %zu bytes",
                              (size_t)remote->length);
    return rc;
}

int ibx_session_cts(struct ibx_session *s, void *to, size_t n)
{
    struct ibx_mr *mr;
    struct ibx_remote remote;
    if (register_remote(s, to, n, IBX_ACCESS_REMOTE_WRITE, &mr, &remote))
        return ibx_session_live(s) ? 0 : -ECONNRESET;
    s->early_cts.mr = mr;
    ibx_session_cts_expect(s, to, n);
    return ibx_session_cts_registered(s, &remote);
}

int ibx_session_cts_registered(struct ibx_session *s, const struct ibx_remote *remote)
{
    return ibx_session_add_remote(s, SEGMENT_EARLY_CTS, remote);
}

void ibx_session_cts_expect(struct ibx_session *s, void *to, size_t n)
{
    s->early_cts.to = to;
    s->early_cts.length = n;
}

void ibx_session_cts_end(struct ibx_session *s)
{
    release_memory(s, s->early_cts.mr);
    s->early_cts.mr = NULL;
    s->early_cts.to = NULL;
}

/* Has the server WRITE the next n bytes to `to`. */
static int clear_to_send(struct ibx_session *s, struct ibx_mr *mr, const uint8_t *to, size_t n)
{
    uint8_t bytes[SEGMENT_REMOTE_BYTES];
    struct ibx_remote remote;
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    int rc = ibx_mr_remote(mr, (size_t)(to - (const uint8_t *)ibx_mr_address(mr)), n, &remote);
    if (rc)
        return ibx_session_fail(s, rc, "cannot name the reply's memory: %s", strerror(-rc));
    ibx_put_u8(&w, MESSAGE_CTS);
    ibx_name_put(&w, &remote, s->link.epoch);
    ibx_name_sent(s, &remote);
    rc = ibx_session_send(s, &(struct iovec){bytes, w.length}, 1);
    if (rc)
        return rc;
    ibx_session_expect(s, n);
    return ibx_session_confirmed(s, MESSAGE_DONE, "a reply's payload");
}

/* A reply's payload for memory that cannot be registered: through a piece of memory that can. */
static int receive_bounced(struct ibx_session *s, uint8_t *to, size_t n)
{
    int rc = bounce_ready(s, BOUNCE_PIECE_BYTES, IBX_ACCESS_REMOTE_WRITE);
    for (size_t at = 0; at < n && !rc; at += BOUNCE_PIECE_BYTES) {
        size_t length = n - at < BOUNCE_PIECE_BYTES ? n - at : BOUNCE_PIECE_BYTES;
        rc = clear_to_send(s, s->bounce, ibx_mr_address(s->bounce), length);
        if (!rc)
            memcpy(to + at, ibx_mr_address(s->bounce), length);
    }
    return rc;
}

int ibx_rendezvous_receive(struct ibx_session *s, uint8_t *to, size_t n)
{
    int rc;
    if (register_memory(s, to, n, IBX_ACCESS_REMOTE_WRITE, &s->ops.in_use)) {
        rc = receive_bounced(s, to, n);
    } else {
        rc = clear_to_send(s, s->ops.in_use, to, n);
        if (!rc)
            release_in_use(s);
    }
    if (!rc)
        s->in.segment.left -= n;
    return rc;
}
