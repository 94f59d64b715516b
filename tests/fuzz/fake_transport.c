/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/fuzz/fake_transport.h"

#include "frontend-glue/session/session_internal.h"

#include "transport/core/crypto.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CONNS 8u
#define ENDS  0xffffu /* in place of a message's length */

struct ibx_conn {
    struct ibx_reader messages; /* of the peer, not yet delivered */
    uint8_t flags;
    unsigned sends;
    unsigned unreleased;
    void *held[FAKE_SLOTS];
    unsigned completions; /* of copies that have not been polled yet */
    bool read;            /* whether they were READs */
    uint64_t cookies[64]; /* the oldest first */
    bool holding;         /* whether memory of the peer is held; no other call is made meanwhile */
    bool closed;
};

static struct ibx_conn fakes[CONNS]; /* used one after the other */
static unsigned conn_count;
static struct ibx_reader rest; /* of the input, for further connections */
static uint8_t how;            /* the flags */
static struct ibx_session *session;
static struct ibx_mr *regions[256]; /* of all connections */
static unsigned region_count;
static struct ibx_path path = {.provider = "fake", .peer = "the fuzzer"};
static struct ibx_caps caps = {
    .message_max = FAKE_MESSAGE, .chunk = 4096, .depth = 4, .rendezvous = 2000};

void fake_transport_begin(uint8_t flags, struct ibx_reader input, const char *name)
{
    how = flags;
    rest = input;
    conn_count = 0;
    caps.register_free = !(flags & 16);
    snprintf(path.name, sizeof(path.name), "%s", name);
}

void fake_transport_of(struct ibx_session *s)
{
    session = s;
}

unsigned fake_transport_regions(void)
{
    return region_count;
}

struct ibx_conn *fake_conn_next(void)
{
    struct ibx_reader r = rest;
    const uint8_t *from = rest.data ? rest.data + rest.position : NULL; /* empty input */
    size_t length = 0;
    if (conn_count == CONNS || (conn_count && !ibx_reader_left(&rest)))
        return NULL;
    while (ibx_reader_left(&r) >= 2) {
        uint16_t n = ibx_get_u16(&r);
        if (n == ENDS)
            break;
        ibx_get_bytes(&r, n);
        length = r.failed ? ibx_reader_left(&rest) : r.position - rest.position;
        if (r.failed)
            break;
    }
    rest = r.failed ? ibx_reader_of(NULL, 0) : r;
    struct ibx_conn *conn = &fakes[conn_count++];
    *conn = (struct ibx_conn){.messages = ibx_reader_of(from, length), .flags = how};
    return conn;
}

int ibx_network_changes(void)
{
    return -ENOSYS;
}

void ibx_network_changes_seen(int fd)
{
    (void)fd;
}

int ibx_connect(const char *uri, const struct ibx_options *options, struct ibx_conn **conn,
                struct ibx_error *err)
{
    (void)uri;
    (void)options;
    *conn = fake_conn_next();
    return *conn ? 0 : ibx_error_set(err, -ESTALE, "the input is over");
}

int ibx_establish(struct ibx_conn *conn, struct ibx_error *err)
{
    (void)conn;
    (void)err;
    return 0;
}

int ibx_listen(const char *uri, const struct ibx_options *options, struct ibx_listener **listener,
               struct ibx_error *err)
{
    (void)uri;
    (void)options;
    (void)listener;
    return ibx_error_set(err, -ENOSYS, "not here");
}

int ibx_accept(struct ibx_listener *listener, struct ibx_conn **conn, struct ibx_error *err)
{
    (void)listener;
    (void)conn;
    return ibx_error_set(err, -ENOSYS, "not here");
}

/* No programs are served here. */
uint64_t ibx_listener_taken(const struct ibx_listener *listener)
{
    (void)listener;
    return 0;
}

void ibx_listener_take_from(struct ibx_listener *listener, int socket)
{
    (void)listener;
    (void)socket;
}

const uint8_t *ibx_conn_program(const struct ibx_conn *conn)
{
    (void)conn;
    return NULL;
}

int ibx_conn_hand_over(struct ibx_conn *conn, int socket)
{
    (void)conn;
    (void)socket;
    return -ENOSYS;
}

int ibx_listener_fd(const struct ibx_listener *listener)
{
    (void)listener;
    return -1;
}

const char *ibx_listener_uri(const struct ibx_listener *listener)
{
    (void)listener;
    return "";
}

void ibx_listener_close(struct ibx_listener *listener)
{
    require(!listener);
}

const struct ibx_caps *ibx_conn_caps(const struct ibx_conn *conn)
{
    (void)conn;
    return &caps;
}

const struct ibx_path *ibx_conn_path(const struct ibx_conn *conn)
{
    (void)conn;
    return &path;
}

const char *ibx_conn_reason(const struct ibx_conn *conn)
{
    return conn->closed ? "the input is over" : "";
}

int ibx_conn_status(const struct ibx_conn *conn)
{
    return conn->closed ? -ECONNRESET : 0;
}

void ibx_conn_packets_lost(const struct ibx_conn *conn)
{
    (void)conn;
}

/* A region consists of its memory's address only. */
struct ibx_mr {
    struct ibx_span span;
    bool allocated;
};

static int region_make(struct ibx_conn *conn, const struct ibx_span *span, struct ibx_mr **mr)
{
    (void)conn;
    *mr = malloc(sizeof(**mr));
    require(*mr && region_count < sizeof(regions) / sizeof(regions[0]));
    **mr = (struct ibx_mr){.span = *span, .allocated = !span->address};
    if (!span->address)
        (*mr)->span.address = calloc(1, span->length);
    regions[region_count++] = *mr;
    return 0;
}

int ibx_mr_register(struct ibx_conn *conn, const struct ibx_span *span, unsigned access,
                    struct ibx_mr **mr, struct ibx_error *err)
{
    (void)access;
    if (conn->flags & 2)
        return ibx_error_set(err, -ENOMEM, "told to fail");
    require(span->address && span->length);
    return region_make(conn, span, mr);
}

int ibx_mr_allocate(struct ibx_conn *conn, size_t length, unsigned access, struct ibx_mr **mr,
                    struct ibx_error *err)
{
    struct ibx_span span = ibx_span_host(NULL, length);
    (void)access;
    (void)err;
    return region_make(conn, &span, mr);
}

void *ibx_mr_address(const struct ibx_mr *mr)
{
    return mr->span.address;
}

size_t ibx_mr_length(const struct ibx_mr *mr)
{
    return mr->span.length;
}

void ibx_mr_deregister(struct ibx_mr *mr)
{
    if (!mr)
        return;
    unsigned i = 0;
    while (i < region_count && regions[i] != mr)
        i++;
    require(i < region_count);
    regions[i] = regions[--region_count];
    if (mr->allocated)
        free(mr->span.address);
    free(mr);
}

int ibx_mr_remote(const struct ibx_mr *mr, size_t offset, size_t length, struct ibx_remote *remote)
{
    require(offset <= mr->span.length && length <= mr->span.length - offset);
    *remote = (struct ibx_remote){(uintptr_t)mr->span.address + offset, length, {7}, 0};
    return 0;
}

/* A body in the client's memory: the request that copies it whole to the device's first bytes. */
static void read_frame(uint8_t *at, uint64_t length, uint64_t offset, size_t n)
{
    uint8_t head[16], tail[12];
    struct ibx_writer w = ibx_writer_of(head, sizeof(head));
    ibx_put_u64(&w, 0);
    ibx_put_u64(&w, length - 28);
    w = ibx_writer_of(tail, sizeof(tail));
    ibx_put_u64(&w, length - 28);
    ibx_put_u32(&w, 1);
    for (size_t i = 0; i < n; i++, offset++) {
        if (offset < sizeof(head))
            at[i] = head[offset];
        else if (length - offset <= sizeof(tail))
            at[i] = tail[sizeof(tail) - (length - offset)];
    }
}

static int copy(struct ibx_conn *conn, bool read, struct ibx_mr *mr, void *local,
                const struct ibx_remote *remote, uint64_t offset, size_t length, uint64_t cookie)
{
    uint8_t *start = mr->span.address, *at = local;
    if (conn->closed)
        return -ENOTCONN;
    if (offset > remote->length || length > remote->length - offset ||
        remote->address + offset + length < remote->address)
        return -ERANGE;
    require(length && at >= start && at + length <= start + mr->span.length && !conn->holding);
    if (read)
        memset(at, 0x5a, length);
    if (read && conn->flags & 128)
        read_frame(at, remote->length, offset, length);
    require(!conn->completions || conn->read == read);
    require(conn->completions < 64);
    conn->read = read;
    conn->cookies[conn->completions++] = cookie;
    return 0;
}

int ibx_read(struct ibx_conn *conn, struct ibx_mr *mr, void *local, const struct ibx_remote *remote,
             uint64_t offset, size_t length, uint64_t cookie, unsigned flags)
{
    (void)flags;
    return copy(conn, true, mr, local, remote, offset, length, cookie);
}

int ibx_write(struct ibx_conn *conn, struct ibx_mr *mr, const void *local,
              const struct ibx_remote *remote, uint64_t offset, size_t length, uint64_t cookie,
              unsigned flags)
{
    (void)flags;
    return copy(conn, false, mr, (void *)(uintptr_t)local, remote, offset, length, cookie);
}

/* Memory of the peer with an odd key is mapped here, as one allocation. */
int ibx_remote_hold(struct ibx_conn *conn, const struct ibx_remote *remote, unsigned access,
                    struct ibx_reach *reach)
{
    static uint8_t lent[65536] = {1};
    require(!conn->holding && access);
    if (!(remote->keys[0] & 1) || !remote->length || remote->length > sizeof(lent))
        return -EOPNOTSUPP;
    *reach = (struct ibx_reach){.address = lent,
                                .base = lent,
                                .length = sizeof(lent),
                                .id = remote->keys[1],
                                .writable = remote->keys[2] & 1};
    conn->holding = true;
    return 0;
}

int ibx_remote_copy(struct ibx_conn *conn, bool read, void *local, const struct ibx_remote *remote,
                    uint64_t offset, size_t n)
{
    (void)conn;
    (void)read;
    (void)local;
    (void)remote;
    (void)offset;
    (void)n;
    abort(); /* the session was told that this is impossible */
}

void ibx_remote_release(struct ibx_conn *conn)
{
    require(conn->holding);
    conn->holding = false;
}

int ibx_send(struct ibx_conn *conn, const struct iovec *iov, int iovcnt, uint64_t cookie,
             unsigned flags)
{
    uint8_t sent[FAKE_MESSAGE];
    size_t length = 0;
    (void)cookie;
    (void)flags;
    if (conn->closed)
        return -ENOTCONN;
    if (conn->flags & 4 && ++conn->sends % 3 == 0)
        return -EAGAIN;
    for (int i = 0; i < iovcnt; i++) {
        require(iov[i].iov_len <= FAKE_MESSAGE - length);
        if (iov[i].iov_len)
            memcpy(sent + length, iov[i].iov_base, iov[i].iov_len);
        length += iov[i].iov_len;
    }
    require(length >= 1 && sent[0] >= MESSAGE_DATA && sent[0] <= MESSAGE_REPORT && sent[0] != 6);
    return 0;
}

/* Each message is in memory of exactly its size, which is freed when it is released. */
static bool next_message(struct ibx_conn *conn, struct ibx_event *event)
{
    size_t length = ibx_get_u16(&conn->messages);
    const uint8_t *bytes = ibx_get_bytes(&conn->messages, length);
    if (!bytes || length > FAKE_MESSAGE || conn->unreleased == FAKE_SLOTS)
        return false;
    unsigned slot = 0;
    while (conn->held[slot])
        slot++;
    void *copied = malloc(length ? length : 1);
    memcpy(copied, bytes, length);
    conn->held[slot] = copied;
    conn->unreleased++;
    *event = (struct ibx_event){
        .type = IBX_EVENT_MESSAGE, .data = copied, .length = length, .slot = slot};
    return true;
}

int ibx_poll(struct ibx_conn *conn, struct ibx_event *events, int max)
{
    require(max > 0 && !conn->closed && !conn->holding);
    if (conn->completions) {
        conn->completions--;
        uint64_t cookie = conn->cookies[0];
        memmove(conn->cookies, conn->cookies + 1, conn->completions * sizeof(cookie));
        events[0] = (struct ibx_event){.type = conn->read ? IBX_EVENT_READ : IBX_EVENT_WRITE,
                                       .cookie = cookie,
                                       .status = conn->flags & 8 ? -EIO : 0};
        return 1;
    }
    if (next_message(conn, &events[0]))
        return 1;
    events[0] = (struct ibx_event){.type = IBX_EVENT_CLOSED, .status = -ECONNRESET};
    conn->closed = true;
    return 1;
}

void ibx_message_release(struct ibx_conn *conn, const struct ibx_event *event)
{
    require(event->slot < FAKE_SLOTS && conn->held[event->slot] == event->data);
    free(conn->held[event->slot]);
    conn->held[event->slot] = NULL;
    conn->unreleased--;
}

/* No memory is mapped by both ends. */
void *ibx_shared_allocate(size_t length, struct ibx_error *err)
{
    (void)length;
    (void)err;
    return NULL;
}

bool ibx_shared_free(void *address)
{
    (void)address;
    return false;
}

bool ibx_shared_holds(const void *address, size_t length)
{
    (void)address;
    (void)length;
    return false;
}

bool ibx_shared_piece(const void *address, size_t length, struct ibx_span *piece)
{
    (void)address;
    (void)length;
    (void)piece;
    return false;
}

uint64_t ibx_shared_freed(void)
{
    return 0;
}

int ibx_shared_give(struct ibx_conn *conn)
{
    (void)conn;
    return -EOPNOTSUPP;
}

int ibx_shared_of_peer(struct ibx_conn *conn, uint64_t *bytes)
{
    (void)conn;
    (void)bytes;
    return -EOPNOTSUPP;
}

void ibx_expect(struct ibx_conn *conn, unsigned us)
{
    (void)conn;
    (void)us;
}

int ibx_wait_watch(struct ibx_conn *conn, int fd)
{
    (void)conn;
    (void)fd;
    return 0;
}

int ibx_lookup_begin(const struct ibx_uri *uri, struct ibx_lookup **lookup, struct ibx_error *err)
{
    (void)uri;
    (void)err;
    *lookup = NULL;
    return 0;
}

int ibx_lookup_wait(struct ibx_lookup *lookup, unsigned ms, struct ibx_error *err)
{
    (void)lookup;
    (void)ms;
    (void)err;
    return 0;
}

unsigned ibx_lookup_hosts(const struct ibx_lookup *lookup)
{
    (void)lookup;
    return 1;
}

void ibx_lookup_end(struct ibx_lookup *lookup)
{
    (void)lookup;
}

bool ibx_wait_watched(const struct ibx_conn *conn)
{
    (void)conn;
    return false;
}

int ibx_wait(struct ibx_conn *conn, int timeout_ms)
{
    (void)conn;
    (void)timeout_ms;
    return 1;
}

void ibx_abort(struct ibx_conn *conn)
{
    conn->messages = ibx_reader_of(NULL, 0);
    conn->flags |= 8;
}

bool ibx_conn_over(const struct ibx_conn *conn)
{
    (void)conn;
    return false;
}

/* A client reconnects while there is input; then its process has ended. */
void ibx_hang_up(struct ibx_conn *conn)
{
    struct session_link *link = &session->link;
    require(!conn->completions);
    if (!session->server)
        return;
    link->offered = fake_conn_next();
    if (link->offered)
        return;
    if (link->peer_fd >= 0)
        close(link->peer_fd);
    link->peer_fd = eventfd(1, EFD_CLOEXEC);
}

void ibx_wake(struct ibx_conn *conn)
{
    (void)conn;
}

const uint8_t *ibx_conn_claimed(const struct ibx_conn *conn)
{
    (void)conn;
    return NULL;
}

int ibx_conn_user(const struct ibx_conn *conn, unsigned *user)
{
    (void)conn;
    (void)user;
    return -ENOENT;
}

void ibx_conn_secret(const struct ibx_conn *conn, const char *label,
                     uint8_t secret[IBX_SECRET_BYTES])
{
    (void)conn;
    (void)label;
    memset(secret, 0, IBX_SECRET_BYTES);
}

int ibx_conn_take_regions(struct ibx_conn *to, struct ibx_conn *from)
{
    require(to != from && !to->closed && !from->completions);
    return 0;
}

struct ibx_mr *ibx_conn_find_region(const struct ibx_conn *conn, const struct ibx_remote *remote)
{
    (void)conn;
    for (unsigned i = 0; i < region_count; i++) {
        const uint64_t begin = (uintptr_t)regions[i]->span.address;
        if (remote->address >= begin && remote->address - begin <= regions[i]->span.length &&
            remote->length <= regions[i]->span.length - (remote->address - begin))
            return regions[i];
    }
    return NULL;
}

bool ibx_mr_usable(const struct ibx_mr *mr)
{
    (void)mr;
    return true;
}

void ibx_regcache_tidy(struct ibx_regcache *cache)
{
    (void)cache;
}

void ibx_regcache_move(struct ibx_regcache *cache, struct ibx_conn *conn)
{
    (void)cache;
    require(!conn->closed);
}

void *ibx_secret_allocate(size_t length)
{
    return calloc(1, length);
}

void ibx_secret_free(void *secret)
{
    free(secret);
}

bool ibx_conn_inherited(const struct ibx_conn *conn)
{
    (void)conn;
    return false;
}

void ibx_close(struct ibx_conn *conn)
{
    for (unsigned i = 0; conn && i < FAKE_SLOTS; i++)
        free(conn->held[i]);
    require(region_count == 0 || (session && conn != session->conn));
}

/* Everything that is taken from the cache must be put back once, before the cache's end. */
struct ibx_regcache {
    unsigned out;
};

int ibx_regcache_create(struct ibx_conn *conn, size_t bytes, unsigned entries,
                        struct ibx_regcache **cache, struct ibx_error *err)
{
    static struct ibx_regcache only;
    (void)conn;
    (void)bytes;
    (void)entries;
    (void)err;
    only.out = 0;
    *cache = &only;
    return 0;
}

void ibx_regcache_destroy(struct ibx_regcache *cache)
{
    require(!cache || !cache->out);
}

int ibx_regcache_get(struct ibx_regcache *cache, void *address, size_t length, unsigned access,
                     struct ibx_mr **mr, struct ibx_error *err)
{
    struct ibx_span span = ibx_span_host(address, length);
    int rc = ibx_mr_register(session->conn, &span, access, mr, err);
    cache->out += !rc;
    return rc;
}

void ibx_regcache_put(struct ibx_regcache *cache, struct ibx_mr *mr)
{
    require(cache->out);
    cache->out--;
    ibx_mr_deregister(mr);
}

/* No connection has a key. */
void ibx_keys_release(struct ibx_keys *keys)
{
    require(!keys);
}
