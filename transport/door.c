/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The dialogue at the door: prove, agree, set up. docs/protocol.md has the
 * frames byte by byte.
 *
 *   client                                server
 *   HELLO nonce, slots, message  ------>
 *                                <------  CHALLENGE nonce, host, slots, message
 *   PROOF                        ------>                                     | no MAC
 *                                <------  PROOF                              v
 *   TRY provider                 ------>                                     | MAC on
 *                                <------  OFFER blob   (or RESULT reason)    | every frame
 *   ANSWER blob                  ------>               (or RESULT reason)    v
 *        ...both set the provider up...
 *   RESULT                       <----->  RESULT
 *   (unless both are 0: the next TRY, or the end)
 *
 * Every frame: u32 length of what follows, u8 type, payload, and once both have
 * proven themselves 16 bytes of MAC over direction, number and frame.
 */
#include "transport/conn.h"

#include "common/clock.h"
#include "common/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FRAME_MAX   4096u
#define MAC_BYTES   16u
#define NONCE_BYTES 32u
#define VERSION     1u

static const uint8_t magic[4] = {'I', 'B', 'X', 'D'};

enum frame_type {
    FRAME_HELLO = 1,
    FRAME_CHALLENGE,
    FRAME_PROOF,
    FRAME_TRY,
    FRAME_OFFER,
    FRAME_ANSWER,
    FRAME_RESULT,
    FRAME_REFUSE, /* instead of any frame before TRY: i32 -errno, string; then the end */
};

struct frame {
    uint8_t bytes[4 + 1 + FRAME_MAX + MAC_BYTES];
    uint8_t type;
    struct ibx_reader payload; /* of a received frame */
    struct ibx_writer out;     /* of one being written */
};

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
            return -errno;
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

static void frame_begin(struct frame *frame, enum frame_type type)
{
    frame->type = (uint8_t)type;
    frame->bytes[4] = frame->type;
    frame->out = ibx_writer_of(frame->bytes + 5, FRAME_MAX);
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

static int frame_send(struct ibx_conn *conn, struct frame *frame, uint64_t deadline)
{
    struct door *door = &conn->door;
    if (frame->out.failed)
        return -EMSGSIZE;
    size_t length = 5 + frame->out.length;
    size_t mac_bytes = door->authenticated ? MAC_BYTES : 0;
    struct ibx_writer head = ibx_writer_of(frame->bytes, 4);
    ibx_put_u32(&head, (uint32_t)(length - 4 + mac_bytes));
    if (mac_bytes) {
        uint8_t mac[IBX_HASH_BYTES];
        frame_mac(conn, conn->role == IBX_ROLE_CLIENT, door->sent, frame->bytes, length, mac);
        memcpy(frame->bytes + length, mac, MAC_BYTES);
        length += MAC_BYTES;
    } else {
        transcribe(door, frame->bytes, length);
    }
    door->sent++;
    return send_all(door->fd, frame->bytes, length, deadline);
}

static int frame_check_mac(struct ibx_conn *conn, struct frame *frame, size_t *length)
{
    struct door *door = &conn->door;
    if (!door->authenticated) {
        transcribe(door, frame->bytes, *length);
        return 0;
    }
    if (*length < 5 + MAC_BYTES)
        return -EBADMSG;
    *length -= MAC_BYTES;
    uint8_t mac[IBX_HASH_BYTES], got[IBX_HASH_BYTES];
    frame_mac(conn, conn->role == IBX_ROLE_SERVER, door->received, frame->bytes, *length, mac);
    memcpy(got, frame->bytes + *length, MAC_BYTES);
    memcpy(got + MAC_BYTES, mac + MAC_BYTES, IBX_HASH_BYTES - MAC_BYTES);
    return ibx_hash_equal(mac, got) ? 0 : -EBADMSG;
}

static int frame_receive(struct ibx_conn *conn, struct frame *frame, uint64_t deadline)
{
    struct door *door = &conn->door;
    int rc = recv_all(door->fd, frame->bytes, 5, deadline);
    if (rc)
        return rc;
    struct ibx_reader head = ibx_reader_of(frame->bytes, 5);
    size_t body = ibx_get_u32(&head);
    if (body < 1 || body > 1 + FRAME_MAX + (door->authenticated ? MAC_BYTES : 0))
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

/* Reads a code and a sentence, both from the peer and so not to be trusted. */
static int read_reason(struct ibx_reader *r, char *reason, size_t size)
{
    int code = (int)(int32_t)ibx_get_u32(r);
    ibx_get_string(r, reason, size);
    if (r->failed)
        return -EPROTO;
    ibx_text_sanitize(reason);
    return code > 0 || code < -4095 ? -EPROTO : code;
}

static void put_reason(struct ibx_writer *w, int code, const char *reason)
{
    char text[256];
    snprintf(text, sizeof(text), "%s", code ? reason : "");
    ibx_put_u32(w, (uint32_t)code);
    ibx_put_string(w, text);
}

static int broken(struct ibx_conn *conn, int rc, struct ibx_error *err)
{
    const char *why = rc == -ETIMEDOUT    ? "no answer in time"
                      : rc == -ECONNRESET ? "it closed the connection"
                      : rc == -EPROTO     ? "it does not speak this protocol"
                      : rc == -EBADMSG    ? "a frame was tampered with"
                                          : strerror(-rc);
    return ibx_error_set(err, rc, "setting up with %s failed: %s", conn->path.peer, why);
}

/* Receives a frame that must be of `type`; a REFUSE becomes its sentence. */
static int expect(struct ibx_conn *conn, struct frame *frame, enum frame_type type,
                  uint64_t deadline, struct ibx_error *err)
{
    int rc = frame_receive(conn, frame, deadline);
    if (!rc && frame->type == FRAME_REFUSE) {
        char reason[256];
        rc = read_reason(&frame->payload, reason, sizeof(reason));
        return ibx_error_set(err, rc ? rc : -ECONNREFUSED, "%s refuses: %s", conn->path.peer,
                             reason);
    }
    if (!rc && frame->type != type)
        rc = -EPROTO;
    return rc ? broken(conn, rc, err) : 0;
}

static int refuse(struct ibx_conn *conn, int code, const char *to_peer, struct ibx_error *err)
{
    struct frame frame;
    frame_begin(&frame, FRAME_REFUSE);
    put_reason(&frame.out, code, to_peer);
    frame_send(conn, &frame, ibx_deadline_in_ms(1000));
    return ibx_error_set(err, code, "refused %s: %s", conn->path.peer, to_peer);
}

/* --------------------------------------------------------------------- proofs */

/* The same on both ends of one running kernel, and only there; fresh for each connection. */
static void host_mark(const uint8_t client_nonce[NONCE_BYTES],
                      const uint8_t server_nonce[NONCE_BYTES], uint8_t mark[IBX_HASH_BYTES])
{
    char boot[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, boot, sizeof(boot));
    if (fd >= 0)
        close(fd);
    if (n <= 0 && ibx_random(boot, sizeof(boot), NULL) == 0)
        n = sizeof(boot); /* unknown: equal to nobody */
    struct ibx_piece pieces[4] = {
        {"host ", 5}, {boot, (size_t)n}, {client_nonce, NONCE_BYTES}, {server_nonce, NONCE_BYTES}};
    ibx_hash(pieces, 4, mark);
}

struct proofs {
    uint8_t client[IBX_HASH_BYTES], server[IBX_HASH_BYTES];
};

/* All three come from the key and everything said so far; without a key they only tie the
 * channels of one connection together. */
static void derive(struct ibx_conn *conn, struct proofs *proofs)
{
    static const uint8_t no_key[IBX_HASH_BYTES];
    const uint8_t *key = conn->key.present ? conn->key.bytes : no_key;
    struct ibx_piece said = {conn->door.transcript, IBX_HASH_BYTES};
    struct ibx_piece client[2] = {{"ibx client ", 11}, said};
    struct ibx_piece server[2] = {{"ibx server ", 11}, said};
    struct ibx_piece session[2] = {{"ibx session ", 12}, said};
    ibx_hmac(key, client, 2, proofs->client);
    ibx_hmac(key, server, 2, proofs->server);
    ibx_hmac(key, session, 2, conn->door.session_key);
}

static bool address_bytes(const struct sockaddr_storage *address, uint8_t out[16])
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    if (address->ss_family == AF_INET6) {
        memcpy(out, &((const struct sockaddr_in6 *)address)->sin6_addr, 16);
        return true;
    }
    if (address->ss_family != AF_INET)
        return false;
    memcpy(out, mapped, 12);
    memcpy(out + 12, &((const struct sockaddr_in *)address)->sin_addr, 4);
    return true;
}

/* Whether the peer speaks from this host: a unix socket, loopback, or our own address. */
static bool peer_is_local(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_length = sizeof(here), there_length = sizeof(there);
    uint8_t a[16], b[16];
    if (getsockname(fd, (struct sockaddr *)&here, &here_length) ||
        getpeername(fd, (struct sockaddr *)&there, &there_length))
        return false;
    if (here.ss_family == AF_UNIX)
        return true;
    return address_bytes(&here, a) && address_bytes(&there, b) && !memcmp(a, b, 16);
}

/* Both ends go on with the smaller of both wishes. */
static int agree(struct ibx_conn *conn, struct ibx_reader *r)
{
    uint32_t slots = ibx_get_u32(r);
    uint64_t message = ibx_get_u64(r);
    if (r->failed || slots < 4 || message < 1024)
        return -EPROTO;
    if (slots < conn->options.slots)
        conn->options.slots = slots;
    if (message < conn->options.message)
        conn->options.message = (size_t)message;
    return 0;
}

static void put_opening(struct ibx_conn *conn, struct ibx_writer *w, const uint8_t *nonce)
{
    ibx_put_bytes(w, magic, sizeof(magic));
    ibx_put_u16(w, VERSION);
    ibx_put_u8(w, conn->key.present);
    ibx_put_bytes(w, nonce, NONCE_BYTES);
    ibx_put_u32(w, conn->options.slots);
    ibx_put_u64(w, conn->options.message);
}

/* Reads what put_opening() wrote: -EPROTO for a stranger, -EPROTONOSUPPORT for another version. */
static int get_opening(struct ibx_conn *conn, struct ibx_reader *r, bool *has_key,
                       uint8_t nonce[NONCE_BYTES])
{
    const uint8_t *m = ibx_get_bytes(r, sizeof(magic));
    if (!m || memcmp(m, magic, sizeof(magic)))
        return -EPROTO;
    if (ibx_get_u16(r) != VERSION)
        return r->failed ? -EPROTO : -EPROTONOSUPPORT;
    *has_key = ibx_get_u8(r) != 0;
    const uint8_t *n = ibx_get_bytes(r, NONCE_BYTES);
    if (!n)
        return -EPROTO;
    memcpy(nonce, n, NONCE_BYTES);
    return agree(conn, r);
}

static int prove_server(struct ibx_conn *conn, uint64_t deadline, struct ibx_error *err)
{
    struct frame frame;
    uint8_t theirs[NONCE_BYTES], ours[NONCE_BYTES], mark[IBX_HASH_BYTES];
    bool has_key = false;
    int rc = expect(conn, &frame, FRAME_HELLO, deadline, err);
    if (!rc)
        rc = ibx_random(ours, sizeof(ours), err);
    if (rc)
        return rc;
    rc = get_opening(conn, &frame.payload, &has_key, theirs);
    if (rc)
        return refuse(conn, rc,
                      rc == -EPROTONOSUPPORT ? "another version of the protocol is needed"
                                             : "it does not speak this protocol",
                      err);
    if (conn->key.present && !has_key)
        return refuse(conn, -EACCES, "a key is asked for: set key_file on the client", err);
    if (!conn->key.present && has_key)
        return refuse(conn, -EACCES,
                      "the server has no key but the client has: set key_file on the "
                      "server",
                      err);
    if (!conn->key.present && !conn->options.insecure && !peer_is_local(conn->door.fd))
        return refuse(conn, -EACCES,
                      "without a key only this host is served: set key_file on both "
                      "ends, or insecure : yes on the server",
                      err);

    frame_begin(&frame, FRAME_CHALLENGE);
    put_opening(conn, &frame.out, ours);
    host_mark(theirs, ours, mark);
    ibx_put_bytes(&frame.out, mark, sizeof(mark));
    rc = frame_send(conn, &frame, deadline);
    if (rc)
        return broken(conn, rc, err);
    struct proofs proofs;
    derive(conn, &proofs);
    rc = expect(conn, &frame, FRAME_PROOF, deadline, err);
    if (rc)
        return rc;
    const uint8_t *proof = ibx_get_bytes(&frame.payload, IBX_HASH_BYTES);
    if (!proof || !ibx_hash_equal(proof, proofs.client))
        return refuse(conn, -EACCES, "the key is not the server's", err);
    frame_begin(&frame, FRAME_PROOF);
    ibx_put_bytes(&frame.out, proofs.server, IBX_HASH_BYTES);
    rc = frame_send(conn, &frame, deadline);
    if (rc)
        return broken(conn, rc, err);
    conn->door.authenticated = true;
    return 0;
}

static int prove_client(struct ibx_conn *conn, uint64_t deadline, bool *same_host,
                        struct ibx_error *err)
{
    struct frame frame;
    uint8_t ours[NONCE_BYTES], theirs[NONCE_BYTES], mark[IBX_HASH_BYTES];
    bool has_key = false;
    int rc = ibx_random(ours, sizeof(ours), err);
    if (rc)
        return rc;
    frame_begin(&frame, FRAME_HELLO);
    put_opening(conn, &frame.out, ours);
    rc = frame_send(conn, &frame, deadline);
    if (rc)
        return broken(conn, rc, err);
    rc = expect(conn, &frame, FRAME_CHALLENGE, deadline, err);
    if (rc)
        return rc;
    rc = get_opening(conn, &frame.payload, &has_key, theirs);
    const uint8_t *server_mark = ibx_get_bytes(&frame.payload, IBX_HASH_BYTES);
    if (rc || !server_mark)
        return broken(conn, -EPROTO, err);
    if (has_key != conn->key.present)
        return ibx_error_set(err, -EACCES, "%s has %s key, this side has %s", conn->path.peer,
                             has_key ? "a" : "no", conn->key.present ? "one" : "none");
    host_mark(ours, theirs, mark);
    *same_host = ibx_hash_equal(mark, server_mark);

    struct proofs proofs;
    derive(conn, &proofs);
    frame_begin(&frame, FRAME_PROOF);
    ibx_put_bytes(&frame.out, proofs.client, IBX_HASH_BYTES);
    rc = frame_send(conn, &frame, deadline);
    if (rc)
        return broken(conn, rc, err);
    rc = expect(conn, &frame, FRAME_PROOF, deadline, err);
    if (rc)
        return rc;
    const uint8_t *proof = ibx_get_bytes(&frame.payload, IBX_HASH_BYTES);
    if (!proof || !ibx_hash_equal(proof, proofs.server))
        return ibx_error_set(err, -EACCES,
                             "%s does not know the key: it is not the server it "
                             "should be",
                             conn->path.peer);
    conn->door.authenticated = true;
    return 0;
}

/* ------------------------------------------------------------------- providers */

static void note_refusal(struct ibx_conn *conn, const char *name, const char *reason)
{
    struct ibx_path *path = &conn->path;
    if (path->refused_count == sizeof(path->refused) / sizeof(path->refused[0]))
        return;
    unsigned i = path->refused_count++;
    snprintf(path->refused[i].provider, sizeof(path->refused[i].provider), "%s", name);
    snprintf(path->refused[i].reason, sizeof(path->refused[i].reason), "%.255s", reason);
    ibx_log(IBX_LOG_INFO, "%s with %s refused: %s", name, path->peer, reason);
}

/* Is `name` in the comma-separated list of wanted providers? */
static bool wanted(const char *list, const char *name)
{
    size_t n = strlen(name);
    if (!strcmp(list, "auto"))
        return true;
    for (const char *p = list; *p;) {
        size_t m = strcspn(p, ",");
        if (m == n && !memcmp(p, name, n))
            return true;
        p += m + (p[m] == ',');
    }
    return false;
}

static int endpoint_open(struct ibx_conn *conn, const char *name, struct ibx_error *err)
{
    conn->inner = ibx_provider_find(name);
    if (!conn->inner)
        return ibx_error_set(err, -ENOSYS, "%.15s is not in this build", name);
    conn->provider = conn->inner;
#ifdef IBX_WITH_FAULTY
    if (conn->options.faults)
        conn->provider = &ibx_provider_faulty;
#endif
    conn->door.result_known = false;
    void *endpoint = NULL;
    int rc = conn->provider->open(&conn->link, &endpoint, err);
    conn->endpoint = rc ? NULL : endpoint;
    return rc;
}

static void endpoint_close(struct ibx_conn *conn)
{
    if (!conn->endpoint)
        return;
    conn->provider->close(conn->endpoint);
    conn->endpoint = NULL;
}

static int send_result(struct ibx_conn *conn, int code, const char *reason, uint64_t deadline)
{
    struct frame frame;
    frame_begin(&frame, FRAME_RESULT);
    put_reason(&frame.out, code, reason);
    return frame_send(conn, &frame, deadline);
}

/* Receives the peer's RESULT unless ibx_door_wait() has met it. Negative: the door broke. */
static int learn_result(struct ibx_conn *conn, uint64_t deadline, struct ibx_error *err)
{
    struct frame frame;
    struct door *door = &conn->door;
    if (door->result_known)
        return 0;
    int rc = expect(conn, &frame, FRAME_RESULT, deadline, err);
    if (rc)
        return rc;
    door->result = read_reason(&frame.payload, door->result_reason, sizeof(door->result_reason));
    door->result_known = true;
    return 0;
}

int ibx_door_wait(struct ibx_conn *conn, int fd, short events, uint64_t deadline)
{
    struct door *door = &conn->door;
    for (;;) {
        struct pollfd wait[2] = {{.fd = fd, .events = events}, {.fd = door->fd, .events = POLLIN}};
        int rc = poll(wait, door->result_known ? 1 : 2, ibx_ms_until(deadline));
        if (rc < 0 && errno != EINTR)
            return -errno;
        if (rc == 0)
            return -ETIMEDOUT;
        if (rc > 0 && wait[0].revents)
            return 0;
        if (rc > 0 && wait[1].revents) {
            if (learn_result(conn, deadline, NULL)) {
                door->result_known = true;
                door->result = -ECONNRESET;
                snprintf(door->result_reason, sizeof(door->result_reason), "the peer went away");
            }
            if (door->result)
                return -ECANCELED;
        }
    }
}

/* After `rc` from this side's finish: tells it, learns the peer's. 0 when both stand; 1 when this
 * provider failed (reason noted, the next may be tried); negative when the door broke. */
static int exchange_results(struct ibx_conn *conn, const char *name, int rc,
                            const struct ibx_error *why, struct ibx_error *err)
{
    uint64_t deadline = ibx_deadline_in_ms(conn->options.timeout_ms);
    int sent = send_result(conn, rc, why->message, deadline);
    if (sent)
        return broken(conn, sent, err);
    int learned = learn_result(conn, deadline, err);
    if (learned)
        return learned;
    if (!rc && !conn->door.result)
        return 0;
    note_refusal(conn, name, rc && rc != -ECANCELED ? why->message : conn->door.result_reason);
    return 1;
}

/* As exchange_results(). */
static int try_provider(struct ibx_conn *conn, const char *name, struct ibx_error *err)
{
    struct frame frame;
    struct ibx_error why = {0};
    uint64_t deadline = ibx_deadline_in_ms(conn->options.timeout_ms);
    int rc = endpoint_open(conn, name, &why);
    if (rc) {
        note_refusal(conn, name, why.message);
        return 1;
    }
    frame_begin(&frame, FRAME_TRY);
    ibx_put_string(&frame.out, name);
    rc = frame_send(conn, &frame, deadline);
    if (!rc)
        rc = frame_receive(conn, &frame, deadline);
    if (rc)
        return broken(conn, rc, err);
    if (frame.type == FRAME_RESULT) {
        char reason[256];
        read_reason(&frame.payload, reason, sizeof(reason));
        note_refusal(conn, name, reason);
        return 1;
    }
    if (frame.type != FRAME_OFFER)
        return broken(conn, -EPROTO, err);

    struct frame answer;
    frame_begin(&answer, FRAME_ANSWER);
    rc = conn->provider->join(conn->endpoint, &frame.payload, &answer.out, &why);
    if (rc) {
        note_refusal(conn, name, why.message);
        rc = send_result(conn, rc, why.message, deadline);
        return rc ? broken(conn, rc, err) : 1;
    }
    rc = frame_send(conn, &answer, deadline);
    if (rc)
        return broken(conn, rc, err);
    rc = conn->provider->finish(conn->endpoint, NULL, ibx_deadline_in_ms(conn->options.timeout_ms),
                                &why);
    return exchange_results(conn, name, rc, &why, err);
}

/* What the server thinks of a provider the client wants; as exchange_results(). */
static int serve_provider(struct ibx_conn *conn, const char *name, struct ibx_error *err)
{
    struct frame frame;
    struct ibx_error why = {0};
    uint64_t deadline = ibx_deadline_in_ms(conn->options.timeout_ms);
    int rc = 0;
    if (!wanted(conn->options.provider, name))
        rc = ibx_error_set(&why, -EPERM, "the server allows only provider : %s",
                           conn->options.provider);
    if (!rc)
        rc = endpoint_open(conn, name, &why);
    frame_begin(&frame, FRAME_OFFER);
    if (!rc)
        rc = conn->provider->offer(conn->endpoint, &frame.out, &why);
    if (rc) {
        note_refusal(conn, name, why.message);
        rc = send_result(conn, rc, why.message, deadline);
        return rc ? broken(conn, rc, err) : 1;
    }
    rc = frame_send(conn, &frame, deadline);
    if (!rc)
        rc = frame_receive(conn, &frame, deadline);
    if (rc)
        return broken(conn, rc, err);
    if (frame.type == FRAME_RESULT) {
        char reason[256];
        read_reason(&frame.payload, reason, sizeof(reason));
        note_refusal(conn, name, reason);
        return 1;
    }
    if (frame.type != FRAME_ANSWER)
        return broken(conn, -EPROTO, err);
    rc = conn->provider->finish(conn->endpoint, &frame.payload,
                                ibx_deadline_in_ms(conn->options.timeout_ms), &why);
    return exchange_results(conn, name, rc, &why, err);
}

static int none_left(struct ibx_conn *conn, struct ibx_error *err)
{
    char list[IBX_ERROR_MAX] = "";
    for (unsigned i = 0; i < conn->path.refused_count; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof(list) - n, "%s%s: %s", i ? "; " : "",
                 conn->path.refused[i].provider, conn->path.refused[i].reason);
    }
    return ibx_error_set(err, -ENOTSUP, "no path to %s: %.600s", conn->path.peer,
                         list[0] ? list : "the client named no provider");
}

int ibx_door_server(struct ibx_conn *conn, struct ibx_error *err)
{
    int rc = prove_server(conn, ibx_deadline_in_ms(conn->options.timeout_ms), err);
    for (unsigned tries = 0; !rc && tries < IBX_PROVIDERS_MAX; tries++) {
        struct frame frame;
        char name[16];
        rc = frame_receive(conn, &frame, ibx_deadline_in_ms(conn->options.timeout_ms));
        if (rc == -ECONNRESET && tries)
            return none_left(conn, err);
        if (!rc && frame.type != FRAME_TRY)
            rc = -EPROTO;
        if (rc)
            return broken(conn, rc, err);
        ibx_get_string(&frame.payload, name, sizeof(name));
        ibx_text_sanitize(name);
        if (frame.payload.failed)
            return broken(conn, -EPROTO, err);
        int result = serve_provider(conn, name, err);
        if (!result)
            return ibx_conn_live(conn, err);
        endpoint_close(conn);
        if (result < 0)
            return result;
    }
    return rc ? rc : none_left(conn, err);
}

/* The client's own reason not to try one, or NULL. */
static const char *unsuitable(const char *name, bool same_host)
{
    if (!strcmp(name, "shm") && !same_host)
        return "the server is on another host";
    return NULL;
}

static int client_try_all(struct ibx_conn *conn, bool same_host, struct ibx_error *err)
{
    char list[sizeof(conn->options.provider)];
    if (!strcmp(conn->options.provider, "auto"))
        snprintf(list, sizeof(list), "shm,verbs,ofi,tcp");
    else
        memcpy(list, conn->options.provider, sizeof(list));
    char *save = NULL;
    for (char *name = strtok_r(list, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
        const char *reason = unsuitable(name, same_host);
        if (reason) {
            note_refusal(conn, name, reason);
            continue;
        }
        int rc = try_provider(conn, name, err);
        if (!rc)
            return ibx_conn_live(conn, err);
        endpoint_close(conn);
        if (rc < 0)
            return rc;
    }
    return none_left(conn, err);
}

int ibx_door_client(struct ibx_conn *conn, struct ibx_error *err)
{
    bool same_host = false;
    int rc = prove_client(conn, ibx_deadline_in_ms(conn->options.timeout_ms), &same_host, err);
    return rc ? rc : client_try_all(conn, same_host, err);
}
