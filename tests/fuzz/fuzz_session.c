/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A session whose peer sends anything: what it says it read is what was sent, each message is given
 * back once, no copy reaches outside of registered memory, and it comes to an end.
 *
 * A connection of this file's own takes the place of transport's. Input:
 *
 *   flags        bit 0: this side is the client; 1: nothing can be registered; 2: every third send
 *                finds no credit; 3: copies fail; 4: registrations come from a cache; 5: the server
 *                runs copies of a GPU's; 6: one of the GPU's calls fails; 7: what it READs is
 * frames n, n steps   n's bit 7: the session survives its connections; what this side does: 0 to 99
 * reads and 100 to 199 writes that many times 8 bytes (the last three 20000), 200 and up syncs; a
 * client from 240 on copies as run_copy() says messages     of the peer, each after its length in
 * two bytes; 0xffff is the end of a connection, and what follows is of the next one
 */
#include "frontend-glue/client_copies/client_copies.h"
#include "frontend-glue/device_copies/copies.h"
#include "frontend-glue/session/session_internal.h"

#include "common/log.h"
#include "tests/fuzz/fake_cuda.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CONNS   8u
#define ENDS    0xffffu /* in place of a message's length */
#define SLOTS   4u
#define MESSAGE 1024u
#define LONGEST 20000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static void require(bool good)
{
    if (!good)
        abort();
}

/* ---------------------------------------------------------- in place of the transport */

struct ibx_conn {
    struct ibx_reader messages; /* of the peer, still to come */
    uint8_t flags;
    unsigned sends;
    unsigned unreleased;
    void *held[SLOTS];
    unsigned completions; /* of copies, not yet polled */
    bool read;            /* what they were */
    uint64_t cookies[64]; /* the oldest first */
    bool holding;         /* memory of the peer's: nothing else is done meanwhile */
    bool closed;
};

static struct ibx_conn fakes[CONNS]; /* one after the other */
static unsigned conn_count;
static struct ibx_reader rest; /* of the input, for further ones */
static uint8_t how;            /* the flags */
static struct ibx_session *session;
static struct ibx_mr *regions[256]; /* of all connections */
static unsigned region_count;
static struct ibx_caps caps = {
    .message_max = MESSAGE, .chunk = 4096, .depth = 4, .rendezvous = 2000};
static struct ibx_path path = {.provider = "fake", .peer = "the fuzzer"};

/* The next connection, with the messages up to its end; NULL: there are no more. */
static struct ibx_conn *conn_next(void)
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

int ibx_connect(const char *uri, const struct ibx_options *options, struct ibx_conn **conn,
                struct ibx_error *err)
{
    (void)uri;
    (void)options;
    *conn = conn_next();
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

/* A region is where its memory is, and nothing else. */
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

void ibx_remote_put(struct ibx_writer *writer, const struct ibx_remote *remote)
{
    ibx_put_u64(writer, remote->address);
    ibx_put_u64(writer, remote->length);
    for (int i = 0; i < IBX_RAILS_MAX; i++)
        ibx_put_u64(writer, remote->keys[i]);
}

void ibx_remote_get(struct ibx_reader *reader, struct ibx_remote *remote)
{
    remote->address = ibx_get_u64(reader);
    remote->length = ibx_get_u64(reader);
    for (int i = 0; i < IBX_RAILS_MAX; i++)
        remote->keys[i] = ibx_get_u64(reader);
    remote->epoch = 0;
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

/* Memory of the peer's under an odd key is mapped here, one allocation of it. */
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
    abort(); /* said to be impossible */
}

void ibx_remote_release(struct ibx_conn *conn)
{
    require(conn->holding);
    conn->holding = false;
}

int ibx_send(struct ibx_conn *conn, const struct iovec *iov, int iovcnt, uint64_t cookie,
             unsigned flags)
{
    uint8_t sent[MESSAGE];
    size_t length = 0;
    (void)cookie;
    (void)flags;
    if (conn->closed)
        return -ENOTCONN;
    if (conn->flags & 4 && ++conn->sends % 3 == 0)
        return -EAGAIN;
    for (int i = 0; i < iovcnt; i++) {
        require(iov[i].iov_len <= MESSAGE - length);
        if (iov[i].iov_len)
            memcpy(sent + length, iov[i].iov_base, iov[i].iov_len);
        length += iov[i].iov_len;
    }
    require(length >= 1 && sent[0] >= MESSAGE_DATA && sent[0] <= MESSAGE_BYE && sent[0] != 6);
    return 0;
}

/* Each message in memory of exactly its size, freed when it is released. */
static bool next_message(struct ibx_conn *conn, struct ibx_event *event)
{
    size_t length = ibx_get_u16(&conn->messages);
    const uint8_t *bytes = ibx_get_bytes(&conn->messages, length);
    if (!bytes || length > MESSAGE || conn->unreleased == SLOTS)
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
    require(event->slot < SLOTS && conn->held[event->slot] == event->data);
    free(conn->held[event->slot]);
    conn->held[event->slot] = NULL;
    conn->unreleased--;
}

/* There is no memory that both ends map. */
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

void ibx_expect(struct ibx_conn *conn, unsigned us)
{
    (void)conn;
    (void)us;
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

/* A client comes again while there is input; then its process has ended. */
void ibx_hang_up(struct ibx_conn *conn)
{
    struct session_link *link = &session->link;
    require(!conn->completions);
    if (!session->server)
        return;
    link->offered = conn_next();
    link->has_offer = link->offered;
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
    for (unsigned i = 0; conn && i < SLOTS; i++)
        free(conn->held[i]);
    require(region_count == 0 || (session && conn != session->conn));
}

/* Everything taken from the cache is put back before its end, and once. */
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

/* In place of dead_backend.c, which has nothing more to say to a fuzzer. */
void ibx_session_tell_end(struct ibx_session *s)
{
    s->answering = true;
}

/* -------------------------------------------------------------------------- the test */

static uint8_t outgoing[LONGEST], incoming[LONGEST];

static size_t step_length(uint8_t step)
{
    return step % 100 > 96 ? LONGEST : step % 100 * 8u;
}

/* By itself, in the place of GVirtuS. The bits of `step`: to the device, of rows, asynchronous; and
 * short. */
static bool run_copy(struct ibx_session *s, uint8_t step)
{
    int code = -1;
    struct ibx_frontend_copy wish = {
        .to_device = step & 1,
        .async = step & 4 && !(step & 2),
        .device = 4096,
        .host = step & 1 ? outgoing : incoming,
        .n = step & 8   ? 100
             : step & 2 ? 1000
                        : LONGEST,
        .stream = step & 4 ? 77 : 0,
        .rows = step & 2 ? 10 : 0,
        .host_pitch = step & 2 ? (step & 4 ? 1900 : 1000) : 0,
        .device_pitch = step & 2 ? 1024 : 0,
    };
    int rc = ibx_client_copy(s, &wish, &code);
    require(rc == 0 || rc == -ENOTCONN);
    require(ibx_session_live(s) || code == IBX_CUDA_ERROR_UNKNOWN);
    require(rc || s->state.now == SESSION_DEAD || !s->early_cts.mr);
    return ibx_session_live(s);
}

/* As GVirtuS reads: of a named tenant all else ends the session. */
static size_t read_length(const struct ibx_session *s, size_t n)
{
    const struct copies *x = ibx_copies_of(s);
    if (!x || x->requests.stage == IBX_REQUEST_NAME)
        return 1;
    if (x->requests.stage == IBX_REQUEST_LENGTH)
        return 8;
    return x->requests.length <= LONGEST ? (size_t)x->requests.length : n;
}

/* False when the session has come to its end. */
static bool run_step(struct ibx_session *s, uint8_t step)
{
    size_t n = step_length(step);
    ssize_t rc;
    if (step >= 240 && !s->server)
        return run_copy(s, step);
    if (step < 100 && path.name[0])
        n = read_length(s, n);
    if (step < 100)
        rc = ibx_session_read(s, incoming, n);
    else if (step < 200)
        rc = ibx_session_write(s, outgoing, n);
    else
        return ibx_session_sync(s) == 0;
    require(rc <= 0 || rc == (ssize_t)n);
    require(rc >= 0 || s->state.now == SESSION_DEAD);
    require(rc >= 0 || ibx_session_reason(s)[0]);
    return ibx_session_live(s);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    ibx_log_set_level(IBX_LOG_ERROR);
    return 0;
}

/* None, and both ends of what a file may say. */
static const struct ibx_tuning tunings[3] = {
    [1] = {.found = true,
           .choice = {.ways = {{.inline_max = IBX_CHOICE_TO_MAX},
                               {.inline_max = IBX_CHOICE_FROM_MAX}},
                      .chunk = IBX_CHOICE_CHUNK_UNIT}},
    [2] = {.found = true,
           .choice = {.ways = {{0, IBX_CHOICE_NEVER, IBX_CHOICE_NEVER, IBX_CHOICE_NEVER},
                               {0, IBX_CHOICE_NEVER, IBX_CHOICE_NEVER, IBX_CHOICE_NEVER}},
                      .chunk = IBX_PINNED_CHUNK}},
};

/* Every other page of the device's first ones is another tenant's. */
static void own_some(const struct ibx_tenant_limits *limits)
{
    struct ibx_tenant *other = ibx_tenant_get("bob", limits, 2);
    ibx_owners_forget(NULL);
    for (uint64_t i = 0; i < 8; i++)
        require(ibx_owners_add(other, 4096 + i * 8192, 4096, NULL, 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ibx_options options = {.slots = SLOTS, .message = MESSAGE};
    struct ibx_session *s;
    struct ibx_reader input = ibx_reader_of(data, size);
    const uint8_t flags = how = ibx_get_u8(&input);
    uint8_t count = ibx_get_u8(&input);
    const bool kept = count & 128;
    count &= 127;
    const uint8_t *steps = ibx_get_bytes(&input, count);
    if (!steps)
        return 0;
    rest = ibx_reader_of(data + input.position, size - input.position);
    conn_count = 0;
    caps.register_free = !(flags & 16);
    strcpy(path.name, flags & 32 && count & 4 ? "alice" : "");
    require(!ibx_session_create("rdma://fuzzer:1", &options, &s, NULL));
    session = s;
    ibx_session_keep(s, kept ? 1 : 0);
    if (flags & 1) {
        if (ibx_session_connect(s, NULL) || !ibx_session_live(s))
            count = 0;
    } else { /* as ibx_session_accept() leaves it */
        require(!ibx_session_adopt(s, conn_next()));
        s->link.waiting = kept ? ibx_waiting_create() : NULL;
        require(ibx_session_read(s, incoming, 0) == 0 && ibx_session_live(s));
        if (flags & 32) {
            struct ibx_gpu_options gpu = {
                .mode = IBX_GPU_ON, .memory = 2 * (size_t)IBX_PINNED_STRIDE, .threads = 1};
            gpu.tuning = tunings[count % 3];
            gpu.limits.requests = 1u << 20;
            own_some(&gpu.limits);
            require(!ibx_device_copies_attach(s, &gpu, NULL));
            ibx_copies_of(s)->replies.shape = IBX_REPLY_TIMED;
        }
        fake_cuda_fail_in = flags & 64 ? 1 + count % 8u : 0;
    }
    for (unsigned i = 0; i < count && run_step(s, steps[i]); i++)
        ;
    ibx_session_destroy(s);
    session = NULL;
    require(region_count == 0 && (!ibx_pinned_count() || !ibx_pinned_taken()));
    return 0;
}
