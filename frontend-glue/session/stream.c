/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The stream of a session as segments of DATA messages: read on one side, written on the other. */
#include "frontend-glue/session/session_internal.h"

#include "frontend-glue/session/calls.h"

#include <errno.h>
#include <string.h>

#define REPLIES_MAX 1024u /* bytes of replies that are sent together, about */
#define SEND_ALONG  2048u /* bytes; a longer write is sent without a copy */

/* --------------------------------------------------------------------- reading */

static int malformed(struct ibx_session *s)
{
    return ibx_session_fail(s, -EPROTO, "%s sent a malformed message of %zu bytes", s->path.peer,
                            s->in.message.length);
}

/* Makes the next DATA message current; answers FLUSHes between two of them. */
static int next_data(struct ibx_session *s)
{
    for (;;) {
        struct ibx_event event;
        int rc = ibx_session_next_message(s, &s->stream, &event);
        if (rc)
            return rc;
        s->in.reader = ibx_reader_of(event.data, event.length);
        uint8_t type = ibx_get_u8(&s->in.reader);
        if (type == MESSAGE_DATA) {
            s->in.message = event;
            if (s->server)
                return 0;
            uint32_t payloads_read = ibx_get_u32(&s->in.reader);
            return s->in.reader.failed ? malformed(s) : ibx_rendezvous_confirm(s, payloads_read);
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

/* Server: reads a segment with the memory for a reply's payload. It contains no bytes of the
 * stream. */
static int next_memory(struct ibx_session *s)
{
    struct ibx_remote remote;
    ibx_name_get(&s->in.reader, &remote);
    if (s->in.reader.failed || !s->server || !remote.length || s->early_cts.remote.length)
        return malformed(s);
    s->early_cts.remote = remote;
    return 0;
}

/* Server: reads a segment with memory that will be copied. It contains no bytes of the stream. */
static int next_prepare(struct ibx_session *s)
{
    struct ibx_remote remote;
    ibx_name_get(&s->in.reader, &remote);
    if (s->in.reader.failed || !s->server || !remote.length)
        return malformed(s);
    if (!ibx_session_resolve(s, &remote)) /* the client has released it meanwhile */
        return 0;
    return s->hooks->prepare ? s->hooks->prepare(s->context, &remote) : 0;
}

/* Client: reads a segment that tells what kernels have printed. It contains no bytes of the stream.
 */
static int next_printed(struct ibx_session *s)
{
    const uint8_t some = ibx_get_u8(&s->in.reader);
    if (s->in.reader.failed || some > 1 || s->server)
        return malformed(s);
    atomic_store(&s->printed, some ? IBX_PRINTED_SOME : IBX_PRINTED_NOTHING);
    return 0;
}

/* Reads the head of the next segment of the current message. */
static int next_segment(struct ibx_session *s)
{
    struct ibx_reader *r = &s->in.reader;
    struct segment segment = {.kind = ibx_get_u8(r)};
    switch (segment.kind) {
    case SEGMENT_INLINE:
        segment.left = ibx_get_u32(r);
        segment.inline_at = ibx_get_bytes(r, segment.left);
        break;
    case SEGMENT_RTS_READ:
        r->failed = r->failed || !s->server;
        ibx_name_get(r, &segment.remote);
        segment.left = segment.remote.length;
        break;
    case SEGMENT_RTS_WRITE:
        r->failed = r->failed || s->server;
        segment.left = ibx_get_u64(r);
        break;
    case SEGMENT_EARLY_DONE:
        segment.left = ibx_get_u64(r);
        r->failed =
            r->failed || s->server || !s->early_cts.to || segment.left != s->early_cts.length;
        break;
    case SEGMENT_EARLY_CTS:
        return next_memory(s);
    case SEGMENT_SETTLE:
        s->settle = s->server;
        return s->server ? 0 : malformed(s);
    case SEGMENT_PLACED:
        s->placed = !s->server;
        return s->server ? malformed(s) : 0;
    case SEGMENT_PREPARE:
        return next_prepare(s);
    case SEGMENT_PRINTED:
        return next_printed(s);
    default:
        r->failed = true;
    }
    bool empty = segment.kind != SEGMENT_INLINE && !segment.left;
    if (r->failed || empty)
        return malformed(s);
    s->in.segment = segment;
    return 0;
}

void ibx_session_release_current(struct ibx_session *s)
{
    if (ibx_incoming_any(&s->in))
        ibx_message_release(s->in.conn ? s->in.conn : s->conn, &s->in.message);
    s->in.message.data = NULL;
    if (s->in.conn)
        ibx_close(s->in.conn);
    s->in.conn = NULL;
}

int ibx_session_refill(struct ibx_session *s)
{
    while (!s->in.segment.left) {
        int rc = 0;
        if (s->in.behind.kind) {
            s->in.segment = s->in.behind;
            s->in.behind.kind = SEGMENT_NONE;
        } else if (ibx_incoming_has_more(&s->in)) {
            rc = next_segment(s);
        } else {
            ibx_session_release_current(s);
            rc = next_data(s);
        }
        if (rc)
            return rc;
    }
    return 0;
}

/* Reads n bytes of the current segment, which has at least as many; as ibx_session_fail(). */
static int read_some(struct ibx_session *s, uint8_t *to, size_t n)
{
    switch (s->in.segment.kind) {
    case SEGMENT_RTS_READ:
        return ibx_rendezvous_take(s, to, n);
    case SEGMENT_RTS_WRITE:
        return ibx_rendezvous_receive(s, to, n);
    case SEGMENT_EARLY_DONE:
        s->in.segment.left -= n;
        return to == s->early_cts.to && !s->in.segment.left ? 0 : malformed(s);
    default:
        memcpy(to, s->in.segment.inline_at, n);
        s->in.segment.inline_at += n;
        s->in.segment.left -= n;
        return 0;
    }
}

int ibx_session_read_all(struct ibx_session *s, uint8_t *to, size_t n)
{
    int rc = 0;
    for (size_t got = 0; got < n && !rc;) {
        rc = ibx_session_refill(s);
        if (rc)
            break;
        size_t some = n - got < s->in.segment.left ? n - got : (size_t)s->in.segment.left;
        rc = read_some(s, to + got, some);
        got += some;
    }
    return rc;
}

ssize_t ibx_session_read(struct ibx_session *s, void *buffer, size_t n)
{
    if (s->state.now == SESSION_ACCEPTED)
        ibx_session_establish(s);
    ibx_held_replies_take(s);
    if (!ibx_session_live(s))
        return 0;
    int rc = s->server && n ? ibx_session_run_requests(s) : 0;
    if (!rc && s->owed.count)
        rc = ibx_session_take_owed(s, true);
    if (!rc)
        rc = ibx_session_read_all(s, buffer, n);
    if (rc == -ENOTCONN)
        return 0;
    s->in_frame = s->in_frame || (n && !rc);
    if (!rc && s->in.segment.left == s->held.left)
        ibx_held_replies_lend(s); /* the request is complete, and is run now */
    if (!rc && s->server && s->hooks->note_read)
        rc = s->hooks->note_read(s->context, buffer, n);
    return rc ? rc : (ssize_t)n;
}

/* --------------------------------------------------------------------- writing */

static void forget_gathered(struct ibx_session *s)
{
    s->out.length = 0;
    s->out.inline_at = 0;
    s->out.ahead = false;
    s->held.any = false;
}

static void count_payloads(struct ibx_session *s)
{
    struct ibx_writer w = ibx_writer_of(s->out.bytes + 1, 4);
    ibx_put_u32(&w, s->payloads_read);
}

/* Sends the gathered message, with further bytes that are not copied into it. A server delivers the
 * payloads that it announces at once: the client waits for one, and takes nothing else. */
static int send_data(struct ibx_session *s, const struct iovec *iov, int iovcnt)
{
    forget_gathered(s);
    if (s->server)
        count_payloads(s);
    int rc = ibx_session_send(s, iov, iovcnt);
    return !rc && s->server && s->payloads ? ibx_rendezvous_deliver(s) : rc;
}

static int send_gathered(struct ibx_session *s)
{
    struct iovec iov = {s->out.bytes, s->out.length};
    return s->out.length ? send_data(s, &iov, 1) : 0;
}

int ibx_session_try_gathered(struct ibx_session *s)
{
    struct iovec iov = {s->out.bytes, s->out.length};
    count_payloads(s);
    const int rc = ibx_session_try_send(s, &iov, 1);
    if (rc != -EAGAIN && rc != -ENOTCONN) /* else it may have been sent, and is not sent twice */
        forget_gathered(s);
    return rc;
}

/* Makes room for n more bytes in the gathered message, which may be sent for that. */
int ibx_session_reserve(struct ibx_session *s, size_t n)
{
    if (s->out.length && s->out.length + n > s->out.most) {
        int rc = send_gathered(s);
        if (rc)
            return rc;
    }
    if (!s->out.length) {
        s->out.bytes[0] = MESSAGE_DATA;
        s->out.length = s->server ? 5 : 1; /* send_data() fills the server's count in */
    }
    return 0;
}

static void patch_inline(struct ibx_session *s, size_t length)
{
    struct ibx_writer w = ibx_writer_of(s->out.bytes + s->out.inline_at, 4);
    ibx_put_u32(&w, (uint32_t)length);
}

int ibx_session_gather(struct ibx_session *s, const uint8_t *from, size_t n)
{
    while (n) {
        int rc = ibx_session_reserve(s, SEGMENT_HEAD_INLINE + 1);
        if (rc)
            return rc;
        if (!s->out.inline_at) {
            s->out.bytes[s->out.length] = SEGMENT_INLINE;
            s->out.inline_at = s->out.length + 1;
            s->out.length += SEGMENT_HEAD_INLINE;
        }
        size_t room = s->out.most - s->out.length;
        size_t some = n < room ? n : room;
        memcpy(s->out.bytes + s->out.length, from, some);
        s->out.length += some;
        patch_inline(s, s->out.length - s->out.inline_at - 4);
        from += some;
        n -= some;
    }
    return 0;
}

int ibx_session_gather_whole(struct ibx_session *s, const uint8_t *from, size_t n)
{
    const int rc = ibx_session_reserve(s, (s->out.inline_at ? 0 : SEGMENT_HEAD_INLINE) + n);
    return rc ? rc : ibx_session_gather(s, from, n);
}

/* Sends what was gathered, and n more bytes from where they are, because the transport copies them
 * anyway. */
static int send_along(struct ibx_session *s, const uint8_t *from, size_t n)
{
    while (n) {
        int rc = ibx_session_reserve(s, SEGMENT_HEAD_INLINE + 1);
        if (rc)
            return rc;
        /* a request in one piece need not be gathered */
        const size_t begun = s->out.inline_at ? s->out.length - s->out.inline_at - 4 : 0;
        const size_t head = s->out.inline_at ? 0 : SEGMENT_HEAD_INLINE;
        const size_t room = s->out.most - s->out.length - head;
        const size_t some = n < room ? n : room;
        if (head) {
            s->out.bytes[s->out.length] = SEGMENT_INLINE;
            s->out.inline_at = s->out.length + 1;
            s->out.length += head;
        }
        patch_inline(s, begun + some);
        struct iovec iov[2] = {{s->out.bytes, s->out.length}, {(void *)(uintptr_t)from, some}};
        rc = send_data(s, iov, 2);
        if (rc)
            return rc;
        from += some;
        n -= some;
    }
    return 0;
}

int ibx_session_gather_around(struct ibx_session *s, const void *payload, size_t n,
                              const void *tail, size_t tail_length)
{
    const size_t all = n + tail_length;
    int rc = ibx_session_reserve(s, SEGMENT_HEAD_INLINE + 1);
    if (rc)
        return rc;
    size_t begun = s->out.inline_at ? s->out.length - s->out.inline_at - 4 : 0;
    size_t head = s->out.inline_at ? 0 : SEGMENT_HEAD_INLINE;
    if (n < SEND_ALONG || s->out.length + head + all > s->out.most) {
        rc = ibx_session_gather(s, payload, n);
        return rc ? rc : ibx_session_gather(s, tail, tail_length);
    }
    if (head) {
        s->out.bytes[s->out.length] = SEGMENT_INLINE;
        s->out.inline_at = s->out.length + 1;
        s->out.length += head;
    }
    patch_inline(s, begun + all);
    struct iovec iov[3] = {{s->out.bytes, s->out.length},
                           {(void *)(uintptr_t)payload, n},
                           {(void *)(uintptr_t)tail, tail_length}};
    return send_data(s, iov, 3);
}

int ibx_session_add_segment(struct ibx_session *s, const uint8_t *bytes, size_t n)
{
    int rc = ibx_session_reserve(s, n);
    if (rc)
        return rc;
    s->out.inline_at = 0;
    memcpy(s->out.bytes + s->out.length, bytes, n);
    s->out.length += n;
    return 0;
}

int ibx_session_add_remote(struct ibx_session *s, enum segment_kind kind,
                           const struct ibx_remote *remote)
{
    uint8_t bytes[SEGMENT_REMOTE_BYTES];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_put_u8(&w, (uint8_t)kind);
    ibx_name_put(&w, remote, s->link.epoch);
    if (kind == SEGMENT_EARLY_CTS || kind == SEGMENT_PREPARE)
        ibx_name_sent(s, remote);
    return ibx_session_add_segment(s, bytes, w.length);
}

/* Adds a segment that consists of a kind and a length. */
static int add_length(struct ibx_session *s, enum segment_kind kind, uint64_t length)
{
    uint8_t bytes[9];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_put_u8(&w, (uint8_t)kind);
    ibx_put_u64(&w, length);
    return ibx_session_add_segment(s, bytes, w.length);
}

int ibx_session_write_payload(struct ibx_session *s, const void *data, size_t n)
{
    struct ibx_remote remote;
    if (s->server) {
        int rc = add_length(s, SEGMENT_RTS_WRITE, n);
        return rc ? rc : ibx_rendezvous_announce(s, data, n);
    }
    if (ibx_rendezvous_expose(s, data, n, &remote))
        return ibx_session_live(s) ? 1 : -ECONNRESET;
    return ibx_session_add_remote(s, SEGMENT_RTS_READ, &remote);
}

/* For a client that writes again without having read a reply: the server may still need its earlier
 * payloads, and the caller may be about to reuse their memory. */
static int flush_payloads(struct ibx_session *s)
{
    int rc = ibx_session_send_short(s, MESSAGE_FLUSH);
    if (!rc)
        rc = ibx_session_confirmed(s, MESSAGE_FLUSHED, "a request's payload");
    if (!rc)
        ibx_rendezvous_drop(s);
    return rc;
}

static ssize_t write_zeros(struct ibx_session *s, size_t n)
{
    static const uint8_t zeros[4096];
    int rc = 0;
    for (size_t at = 0, some; at < n && !rc; at += some) {
        some = n - at < sizeof(zeros) ? n - at : sizeof(zeros);
        rc = ibx_session_gather(s, zeros, some);
    }
    return rc ? rc : (ssize_t)n;
}

ssize_t ibx_session_write(struct ibx_session *s, const void *buffer, size_t n)
{
    ibx_held_replies_take(s);
    if (!ibx_session_live(s))
        return -ENOTCONN;
    int rc = s->synced ? flush_payloads(s) : 0;
    if (rc)
        return rc;
    if (s->server && s->hooks->note_write && s->hooks->note_write(s->context, buffer, n))
        return write_zeros(s, n);
    rc = n >= s->caps->rendezvous ? ibx_session_write_payload(s, buffer, n) : 1;
    if (rc > 0)
        rc = n >= SEND_ALONG ? send_along(s, buffer, n) : ibx_session_gather(s, buffer, n);
    return rc ? rc : (ssize_t)n;
}

/* Server: whether the next request has arrived and runs quickly, so that the two replies can be
 * sent together: a client that sends many requests ahead gets few messages back. */
static bool reply_can_wait(struct ibx_session *s)
{
    const struct ibx_call *call;
    if (!s->out.length || s->out.length >= REPLIES_MAX || s->payloads || s->in.behind.kind ||
        s->in.segment.kind != SEGMENT_INLINE)
        return false;
    const uint8_t *next = s->in.segment.inline_at;
    const size_t length = ibx_call_request(next, (size_t)s->in.segment.left, &call);
    if (!length)
        return false;
    const size_t head = strlen((const char *)next) + 1 + 8;
    return ibx_call_is_quick(call, next + head, length - head) &&
           ibx_held_replies_hold(s, s->in.segment.left - length);
}

int ibx_session_sync(struct ibx_session *s)
{
    s->in_frame = false;
    ibx_held_replies_take(s);
    if (s->held.failed)
        return ibx_session_fail(s, s->held.failed, "sending to %s failed: %s", s->path.peer,
                                strerror(-s->held.failed));
    if (s->server && s->hooks->note_sync)
        s->hooks->note_sync(s->context); /* before the client learns the result of its request */
    if (!ibx_session_live(s))
        return -ENOTCONN;
    int rc = s->server && reply_can_wait(s) ? 0 : send_gathered(s);
    if (s->server && s->hooks->note_sent)
        s->hooks->note_sent(s->context);
    if (s->server) {
        s->early_cts.remote.length = 0;
        s->settle = false;
    }
    s->synced = false;
    uint64_t exposed = 0;
    for (const struct payload *payload = s->payloads; payload; payload = payload->next) {
        s->synced = s->synced || !payload->stays;
        exposed += payload->length;
    }
    if (exposed && !rc)
        ibx_session_expect(s, exposed);
    return rc;
}

/* ------------------------------------------------------------------------ for hooks */

/* The memory that came with the request belongs to it. */
void ibx_session_delay(struct ibx_session *s)
{
    s->early_cts.remote.length = 0;
    s->settle = false;
    s->delayed = true;
}

int ibx_session_answer_delayed(struct ibx_session *s)
{
    const bool delayed = s->delayed;
    s->delayed = false;
    return delayed ? s->hooks->answer(s->context) : 0;
}

int ibx_session_sync_delayed(struct ibx_session *s)
{
    return send_gathered(s);
}

int ibx_session_reply_early(struct ibx_session *s, uint64_t n)
{
    return add_length(s, SEGMENT_EARLY_DONE, n);
}

int ibx_session_reply_placed(struct ibx_session *s)
{
    return ibx_session_add_segment(s, &(uint8_t){SEGMENT_PLACED}, 1);
}

int ibx_session_reply_printed(struct ibx_session *s, bool some)
{
    return ibx_session_add_segment(s, (uint8_t[]){SEGMENT_PRINTED, some}, 2);
}

int ibx_session_settle(struct ibx_session *s)
{
    return ibx_session_add_segment(s, &(uint8_t){SEGMENT_SETTLE}, 1);
}

bool ibx_session_take_placed(struct ibx_session *s)
{
    bool placed = s->placed;
    s->placed = false;
    return placed;
}

enum ibx_printed ibx_session_take_printed(struct ibx_session *s)
{
    return atomic_load_explicit(&s->printed, memory_order_relaxed)
               ? atomic_exchange(&s->printed, IBX_PRINTED_UNKNOWN)
               : IBX_PRINTED_UNKNOWN;
}
