/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Frames at the door: their bytes, their MACs, and the sentences inside. */
#include "transport/handshake/handshake.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

/* ------------------------------------------------------------------ raw bytes */

static int wait_door(int fd, short events, uint64_t deadline)
{
    struct pollfd wait = {.fd = fd, .events = events};
    for (;;) {
        int rc = poll(&wait, 1, ibx_ms_until(deadline));
        if (rc > 0)
            return 0;
        if (rc == 0)
            return -ETIMEDOUT;
        if (errno != EINTR)
            return -errno;
    }
}

static int send_all(int fd, const uint8_t *data, size_t length, uint64_t deadline)
{
    while (length) {
        ssize_t n = send(fd, data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            data += n;
            length -= (size_t)n;
        } else if (errno == EAGAIN) {
            int rc = wait_door(fd, POLLOUT, deadline);
            if (rc)
                return rc;
        } else if (errno != EINTR) {
            return errno == EPIPE ? -ECONNRESET : -errno;
        }
    }
    return 0;
}

static int recv_all(int fd, uint8_t *data, size_t length, uint64_t deadline)
{
    while (length) {
        ssize_t n = recv(fd, data, length, MSG_DONTWAIT);
        if (n > 0) {
            data += n;
            length -= (size_t)n;
        } else if (n == 0) {
            return -ECONNRESET;
        } else if (errno == EAGAIN) {
            int rc = wait_door(fd, POLLIN, deadline);
            if (rc)
                return rc;
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

/* --------------------------------------------------------------------- frames */

void ibx_handshake_frame_begin(struct door_frame *frame, enum door_frame_type type)
{
    frame->type = (uint8_t)type;
    frame->bytes[4] = frame->type;
    frame->out = ibx_writer_of(frame->bytes + 5, IBX_HANDSHAKE_PAYLOAD_MAX);
}

static void frame_mac(struct ibx_conn *conn, bool from_client, uint64_t number,
                      const uint8_t *bytes, size_t length, uint8_t mac[IBX_HASH_BYTES])
{
    uint8_t head[9] = {from_client};
    struct ibx_writer w = ibx_writer_of(head + 1, 8);
    ibx_put_u64(&w, number);
    struct ibx_piece pieces[3] = {{"frame ", 6}, {head, sizeof(head)}, {bytes, length}};
    ibx_hmac(conn->door.session_key, pieces, 3, mac);
}

static void transcribe(struct door *door, const uint8_t *bytes, size_t length)
{
    struct ibx_piece pieces[2] = {{door->transcript, IBX_HASH_BYTES}, {bytes, length}};
    ibx_hash(pieces, 2, door->transcript);
}

int ibx_handshake_frame_send(struct ibx_conn *conn, struct door_frame *frame, uint64_t deadline)
{
    struct door *door = &conn->door;
    if (frame->out.failed)
        return -EMSGSIZE;
    size_t length = 5 + frame->out.length;
    size_t mac_bytes = door->authenticated ? IBX_HANDSHAKE_MAC_BYTES : 0;
    struct ibx_writer head = ibx_writer_of(frame->bytes, 4);
    ibx_put_u32(&head, (uint32_t)(length - 4 + mac_bytes));
    if (mac_bytes) {
        uint8_t mac[IBX_HASH_BYTES];
        frame_mac(conn, conn->role == IBX_ROLE_CLIENT, door->sent, frame->bytes, length, mac);
        memcpy(frame->bytes + length, mac, IBX_HANDSHAKE_MAC_BYTES);
        length += IBX_HANDSHAKE_MAC_BYTES;
    } else {
        transcribe(door, frame->bytes, length);
    }
    door->sent++;
    return send_all(door->fd, frame->bytes, length, deadline);
}

static int frame_check_mac(struct ibx_conn *conn, struct door_frame *frame, size_t *length)
{
    struct door *door = &conn->door;
    if (!door->authenticated) {
        transcribe(door, frame->bytes, *length);
        return 0;
    }
    if (*length < 5 + IBX_HANDSHAKE_MAC_BYTES)
        return -EBADMSG;
    *length -= IBX_HANDSHAKE_MAC_BYTES;
    uint8_t mac[IBX_HASH_BYTES], got[IBX_HASH_BYTES];
    frame_mac(conn, conn->role == IBX_ROLE_SERVER, door->received, frame->bytes, *length, mac);
    memcpy(got, frame->bytes + *length, IBX_HANDSHAKE_MAC_BYTES);
    memcpy(got + IBX_HANDSHAKE_MAC_BYTES, mac + IBX_HANDSHAKE_MAC_BYTES,
           IBX_HASH_BYTES - IBX_HANDSHAKE_MAC_BYTES);
    return ibx_hash_equal(mac, got) ? 0 : -EBADMSG;
}

int ibx_handshake_frame_receive(struct ibx_conn *conn, struct door_frame *frame, uint64_t deadline)
{
    struct door *door = &conn->door;
    int rc = recv_all(door->fd, frame->bytes, 5, deadline);
    if (rc)
        return rc;
    struct ibx_reader head = ibx_reader_of(frame->bytes, 5);
    size_t body = ibx_get_u32(&head);
    if (body < 1 ||
        body > 1 + IBX_HANDSHAKE_PAYLOAD_MAX + (door->authenticated ? IBX_HANDSHAKE_MAC_BYTES : 0))
        return -EPROTO;
    rc = recv_all(door->fd, frame->bytes + 5, body - 1, deadline);
    if (rc)
        return rc;
    size_t length = 4 + body;
    rc = frame_check_mac(conn, frame, &length);
    if (rc)
        return rc;
    door->received++;
    frame->type = frame->bytes[4];
    frame->payload = ibx_reader_of(frame->bytes + 5, length - 5);
    return 0;
}

int ibx_handshake_reason_get(struct ibx_reader *r, char *reason, size_t size)
{
    int code = (int)(int32_t)ibx_get_u32(r);
    ibx_get_string(r, reason, size);
    if (r->failed)
        return -EPROTO;
    ibx_text_sanitize(reason);
    return code > 0 || code < -4095 ? -EPROTO : code;
}

void ibx_handshake_reason_put(struct ibx_writer *w, int code, const char *reason)
{
    char text[256];
    snprintf(text, sizeof(text), "%s", code ? reason : "");
    ibx_put_u32(w, (uint32_t)code);
    ibx_put_string(w, text);
}

int ibx_handshake_broken(struct ibx_conn *conn, int rc, struct ibx_error *err)
{
    const char *why = rc == -ETIMEDOUT    ? "no answer in time"
                      : rc == -ECONNRESET ? "it closed the connection"
                      : rc == -EPROTO     ? "it does not speak this protocol"
                      : rc == -EBADMSG    ? "a frame was tampered with"
                                          : strerror(-rc);
    bool stranger = conn->role == IBX_ROLE_CLIENT && !conn->door.authenticated;
    return ibx_error_set(err, rc, "setting up with %s failed: %s%s", conn->path.peer, why,
                         stranger ? "; see that an ibx server listens there" : "");
}

int ibx_handshake_expect(struct ibx_conn *conn, struct door_frame *frame, enum door_frame_type type,
                         uint64_t deadline, struct ibx_error *err)
{
    int rc = ibx_handshake_frame_receive(conn, frame, deadline);
    if (!rc && frame->type == FRAME_REFUSE) {
        char reason[256];
        rc = ibx_handshake_reason_get(&frame->payload, reason, sizeof(reason));
        return ibx_error_set(err, rc ? rc : -ECONNREFUSED, "%s refuses: %s", conn->path.peer,
                             reason);
    }
    if (!rc && frame->type != type)
        rc = -EPROTO;
    return rc ? ibx_handshake_broken(conn, rc, err) : 0;
}

int ibx_handshake_refuse(struct ibx_conn *conn, int code, const char *to_peer,
                         struct ibx_error *err)
{
    struct door_frame frame;
    ibx_handshake_frame_begin(&frame, FRAME_REFUSE);
    ibx_handshake_reason_put(&frame.out, code, to_peer);
    ibx_handshake_frame_send(conn, &frame, ibx_deadline_in_ms(1000));
    return ibx_error_set(err, code, "refused %s: %s", conn->path.peer, to_peer);
}
