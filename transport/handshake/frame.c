/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The frames of the handshake: their bytes, their MACs, refusals. */
#include "transport/handshake/handshake.h"

#include "common/clock.h"
#include "common/unix_connect.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

bool ibx_handshake_lacked(struct ibx_handshake *h)
{
    h->lacked = ibx_crypto_lacked() || h->lacked;
    return h->lacked;
}

/* ------------------------------------------------------------------ raw bytes */

int ibx_handshake_poll(struct pollfd *fds, unsigned count, bool (*ends)(void), uint64_t deadline)
{
    for (;;) {
        const int ms = ibx_ms_until(deadline);
        if (ends && ends())
            return -EINTR;
        const bool asks = ends && ms > IBX_ASK_MS;
        const int rc = poll(fds, count, asks ? IBX_ASK_MS : ms);
        if (rc > 0 || (rc == 0 && !asks))
            return rc;
        if (rc < 0 && errno != EINTR)
            return -errno;
    }
}

int ibx_handshake_wait_socket(const struct ibx_conn *conn, short events, uint64_t deadline)
{
    struct pollfd wait = {.fd = conn->handshake_socket, .events = events};
    const int rc = ibx_handshake_poll(&wait, 1, conn->options.ends, deadline);
    return rc > 0 ? 0 : rc ? rc : -ETIMEDOUT;
}

/* Some bytes, through TLS once it is there: their number, or a negative errno. */
static ssize_t move_some(struct ibx_conn *conn, bool sending, uint8_t *data, size_t length)
{
    struct iovec piece = {data, length};
    if (conn->tls)
        return sending ? ibx_tls_send(conn->tls, &piece, 1) : ibx_tls_receive(conn->tls, &piece, 1);
    int fd = conn->handshake_socket;
    ssize_t n = sending ? send(fd, data, length, MSG_NOSIGNAL | MSG_DONTWAIT)
                        : recv(fd, data, length, MSG_DONTWAIT);
    return n < 0 ? -errno : n;
}

/* Moves what the socket takes or has now. 0: all of it; -EAGAIN: the rest when it is ready. */
static int transfer(struct ibx_conn *conn, bool sending, uint8_t *data, size_t length, size_t *at)
{
    while (*at < length) {
        ssize_t n = move_some(conn, sending, data + *at, length - *at);
        if (n > 0)
            *at += (size_t)n;
        else if (n == 0)
            return -ECONNRESET;
        else if (n != -EINTR)
            return n == -EPIPE ? -ECONNRESET : (int)n;
    }
    return sending && conn->tls ? (int)ibx_tls_send(conn->tls, NULL, 0) : 0;
}

/* --------------------------------------------------------------------- frames */

void ibx_handshake_frame_begin(struct frame *frame, enum frame_type type)
{
    frame->type = (uint8_t)type;
    frame->length = frame->at = 0;
    frame->bytes[4] = frame->type;
    frame->out = ibx_writer_of(frame->bytes + 5, IBX_HANDSHAKE_PAYLOAD_MAX);
}

static void frame_mac(const struct ibx_handshake *h, bool from_client, uint64_t number,
                      const uint8_t *bytes, size_t length, uint8_t mac[IBX_HASH_BYTES])
{
    uint8_t head[9] = {from_client};
    struct ibx_writer w = ibx_writer_of(head + 1, 8);
    ibx_put_u64(&w, number);
    struct ibx_piece pieces[3] = {{"frame ", 6}, {head, sizeof(head)}, {bytes, length}};
    ibx_hmac(h->conn->session_key, pieces, 3, mac);
}

static void transcribe(struct ibx_handshake *h, const uint8_t *bytes, size_t length)
{
    struct ibx_piece pieces[2] = {{h->transcript, IBX_HASH_BYTES}, {bytes, length}};
    ibx_hash(pieces, 2, h->transcript);
}

/* Whether this end has sent its PROOF. */
static bool sends_macs(const struct ibx_handshake *h)
{
    return h->state.now >= HANDSHAKE_PROVEN;
}

/* Whether the other end has sent its PROOF. */
static bool receives_macs(const struct ibx_handshake *h)
{
    return h->state.now >= HANDSHAKE_AUTHENTICATED;
}

int ibx_handshake_frame_finish(struct ibx_handshake *h, struct frame *frame, struct ibx_error *err)
{
    if (frame->out.failed)
        return ibx_handshake_broken(h, -EMSGSIZE, err);
    size_t length = 5 + frame->out.length;
    size_t mac_bytes = sends_macs(h) ? IBX_HANDSHAKE_MAC_BYTES : 0;
    struct ibx_writer head = ibx_writer_of(frame->bytes, 4);
    ibx_put_u32(&head, (uint32_t)(length - 4 + mac_bytes));
    if (mac_bytes) {
        uint8_t mac[IBX_HASH_BYTES];
        frame_mac(h, h->conn->role == IBX_ROLE_CLIENT, h->sent, frame->bytes, length, mac);
        memcpy(frame->bytes + length, mac, mac_bytes);
        if (ibx_handshake_lacked(h)) /* the peer would take the frame for a forged one */
            return ibx_handshake_broken(h, -ENOMEM, err);
    } else {
        transcribe(h, frame->bytes, length);
    }
    h->sent++;
    frame->length = length + mac_bytes;
    return 0;
}

int ibx_handshake_frame_write(struct ibx_handshake *h, struct frame *frame)
{
    return transfer(h->conn, true, frame->bytes, frame->length, &frame->at);
}

/* Sends a finished frame. */
static int push(struct ibx_handshake *h, struct frame *frame, uint64_t deadline,
                struct ibx_error *err)
{
    int rc;
    while ((rc = ibx_handshake_frame_write(h, frame)) == -EAGAIN) {
        rc = ibx_handshake_wait_socket(h->conn, POLLOUT, deadline);
        if (rc)
            break;
    }
    return rc ? ibx_handshake_broken(h, rc, err) : 0;
}

int ibx_handshake_frame_send(struct ibx_handshake *h, struct frame *frame, uint64_t deadline,
                             struct ibx_error *err)
{
    int rc = ibx_handshake_frame_finish(h, frame, err);
    return rc ? rc : push(h, frame, deadline, err);
}

/* Checks the MAC of a received frame, and takes it off `*length`. */
static int check_mac(struct ibx_handshake *h, struct frame *frame, size_t *length)
{
    if (!receives_macs(h)) {
        transcribe(h, frame->bytes, *length);
        return 0;
    }
    if (*length < 5 + IBX_HANDSHAKE_MAC_BYTES)
        return -EBADMSG;
    *length -= IBX_HANDSHAKE_MAC_BYTES;
    uint8_t mac[IBX_HASH_BYTES], got[IBX_HASH_BYTES];
    frame_mac(h, h->conn->role == IBX_ROLE_SERVER, h->received, frame->bytes, *length, mac);
    /* Only the first bytes travel; the others are made equal for the comparison. */
    memcpy(got, mac, IBX_HASH_BYTES);
    memcpy(got, frame->bytes + *length, IBX_HANDSHAKE_MAC_BYTES);
    return ibx_hash_equal(mac, got) ? 0 : ibx_handshake_lacked(h) ? -ENOMEM : -EBADMSG;
}

static int read_bytes(struct ibx_handshake *h, struct frame *frame)
{
    int rc = frame->at < 5 ? transfer(h->conn, false, frame->bytes, 5, &frame->at) : 0;
    if (rc)
        return rc;
    struct ibx_reader head = ibx_reader_of(frame->bytes, 5);
    size_t body = ibx_get_u32(&head), most = 1 + IBX_HANDSHAKE_PAYLOAD_MAX;
    if (receives_macs(h))
        most += IBX_HANDSHAKE_MAC_BYTES;
    if (body < 1 || body > most)
        return -EPROTO;
    frame->length = 4 + body;
    return transfer(h->conn, false, frame->bytes, frame->length, &frame->at);
}

int ibx_handshake_frame_read(struct ibx_handshake *h, struct frame *frame)
{
    int rc = read_bytes(h, frame);
    if (!rc)
        rc = check_mac(h, frame, &frame->length);
    if (rc)
        return rc;
    h->received++;
    frame->type = frame->bytes[4];
    frame->payload = ibx_reader_of(frame->bytes + 5, frame->length - 5);
    return 0;
}

int ibx_handshake_frame_receive(struct ibx_handshake *h, struct frame *frame, uint64_t deadline,
                                struct ibx_error *err)
{
    int rc;
    frame->at = 0;
    while ((rc = ibx_handshake_frame_read(h, frame)) == -EAGAIN) {
        rc = ibx_handshake_wait_socket(h->conn, POLLIN, deadline);
        if (rc)
            break;
    }
    if (rc && h->conn->role == IBX_ROLE_CLIENT && h->state.now == HANDSHAKE_UNAUTHENTICATED)
        return ibx_handshake_unanswered(h, frame, rc, err);
    return rc ? ibx_handshake_broken(h, rc, err) : 0;
}

/* The code of a REFUSE that was received. Whoever listens there may have sent it. Callers decide by
 * codes, so only those pass with which a server turns a client away. With -EAGAIN, for instance,
 * they would wait for more of a connection that has ended. */
static int code_of_refusal(const struct ibx_handshake *h, int code)
{
    switch (code) {
    case -EACCES:
    case -EBUSY:
    case -EPROTO:
    case -EPROTONOSUPPORT:
        return code;
    case -ESTALE: /* the claim was refused */
        return h->conn->options.claim ? code : -ECONNREFUSED;
    default:
        return -ECONNREFUSED;
    }
}

int ibx_handshake_frame_check(struct ibx_handshake *h, struct frame *frame, enum frame_type type,
                              struct ibx_error *err)
{
    if (frame->type == type)
        return 0;
    /* A server does not log a stranger's words, nor return its code to the loop of its caller. */
    if (frame->type != FRAME_REFUSE || h->conn->role == IBX_ROLE_SERVER)
        return ibx_handshake_broken(h, -EPROTO, err);
    if (ibx_handshake_lacked(h)) /* perhaps for what it has sent */
        return ibx_handshake_broken(h, -ENOMEM, err);
    char reason[256];
    const int code =
        code_of_refusal(h, ibx_handshake_reason_get(&frame->payload, reason, sizeof(reason)));
    struct ibx_claim *claim = h->conn->options.claim;
    if (claim && (code == -ESTALE || code == -EACCES))
        claim->refused = ibx_handshake_refusal_proven(h, &frame->payload);
    return ibx_error_set_theirs(err, code, "%s refuses: %s", h->conn->path.peer, reason);
}

int ibx_handshake_frame_expect(struct ibx_handshake *h, struct frame *frame, enum frame_type type,
                               uint64_t deadline, struct ibx_error *err)
{
    int rc = ibx_handshake_frame_receive(h, frame, deadline, err);
    return rc ? rc : ibx_handshake_frame_check(h, frame, type, err);
}

/* ------------------------------------------------------------------- failures */

int ibx_handshake_broken(struct ibx_handshake *h, int rc, struct ibx_error *err)
{
    const char *why = rc == -ETIMEDOUT         ? "no answer in time"
                      : rc == -EINTR           ? "this process was told to end"
                      : rc == -ECONNRESET      ? "it closed the connection"
                      : rc == -EPROTO          ? "it does not speak this protocol"
                      : rc == -EBADMSG         ? "a frame was tampered with"
                      : rc == -EPROTONOSUPPORT ? "another version of the protocol is needed"
                                               : strerror(-rc);
    bool unknown = h->conn->role == IBX_ROLE_CLIENT && !receives_macs(h) &&
                   rc != -EPROTONOSUPPORT && rc != -EINTR && rc != -ENOMEM;
    return ibx_error_set(err, rc, "the handshake with %s failed: %s%s", h->conn->path.peer, why,
                         unknown ? "; see that an ibx server listens there" : "");
}

int ibx_handshake_reason_get(struct ibx_reader *r, char *reason, size_t size)
{
    int code = ibx_get_errno(r);
    ibx_get_string(r, reason, size);
    if (r->failed)
        return -EPROTO;
    ibx_text_sanitize(reason);
    return code;
}

void ibx_handshake_reason_put(struct ibx_writer *w, int code, const char *reason)
{
    char text[256];
    snprintf(text, sizeof(text), "%s", code ? reason : "");
    ibx_put_u32(w, (uint32_t)code);
    ibx_put_string(w, text);
}
