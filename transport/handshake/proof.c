/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The first half of the dialogue at the door: who is there, and what both go on with. */
#include "transport/handshake/handshake.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NONCE_BYTES 32u
#define VERSION     1u

static const uint8_t magic[4] = {'I', 'B', 'X', 'D'};

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

/* Who goes to another address of IPv4's loopback comes from 127.0.0.1 all the same. Debian has a
 * host's own name at 127.0.1.1. */
static bool over_loopback(const uint8_t here[16], const uint8_t there[16])
{
    static const uint8_t address[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
    return !memcmp(there, address, 16) && !memcmp(here, address, 13);
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
    return address_bytes(&here, a) && address_bytes(&there, b) &&
           (!memcmp(a, b, 16) || over_loopback(a, b));
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

int ibx_handshake_prove_server(struct ibx_conn *conn, uint64_t deadline, struct ibx_error *err)
{
    struct door_frame frame;
    uint8_t theirs[NONCE_BYTES], ours[NONCE_BYTES], mark[IBX_HASH_BYTES];
    bool has_key = false;
    int rc = ibx_handshake_expect(conn, &frame, FRAME_HELLO, deadline, err);
    if (!rc)
        rc = ibx_random(ours, sizeof(ours), err);
    if (rc)
        return rc;
    rc = get_opening(conn, &frame.payload, &has_key, theirs);
    if (rc)
        return ibx_handshake_refuse(conn, rc,
                                    rc == -EPROTONOSUPPORT
                                        ? "another version of the protocol is needed"
                                        : "it does not speak this protocol",
                                    err);
    if (conn->key.present && !has_key)
        return ibx_handshake_refuse(conn, -EACCES, "a key is asked for: set key_file on the client",
                                    err);
    if (!conn->key.present && has_key)
        return ibx_handshake_refuse(conn, -EACCES,
                                    "the server has no key but the client has: set key_file on the "
                                    "server",
                                    err);
    if (!conn->key.present && !conn->options.insecure && !peer_is_local(conn->door.fd))
        return ibx_handshake_refuse(conn, -EACCES,
                                    "without a key only this host is served: set key_file on both "
                                    "ends, or insecure : yes on the server",
                                    err);

    ibx_handshake_frame_begin(&frame, FRAME_CHALLENGE);
    put_opening(conn, &frame.out, ours);
    host_mark(theirs, ours, mark);
    ibx_put_bytes(&frame.out, mark, sizeof(mark));
    rc = ibx_handshake_frame_send(conn, &frame, deadline);
    if (rc)
        return ibx_handshake_broken(conn, rc, err);
    struct proofs proofs;
    derive(conn, &proofs);
    rc = ibx_handshake_expect(conn, &frame, FRAME_PROOF, deadline, err);
    if (rc)
        return rc;
    const uint8_t *proof = ibx_get_bytes(&frame.payload, IBX_HASH_BYTES);
    if (!proof || !ibx_hash_equal(proof, proofs.client))
        return ibx_handshake_refuse(conn, -EACCES, "the key is not the server's: copy its key file",
                                    err);
    ibx_handshake_frame_begin(&frame, FRAME_PROOF);
    ibx_put_bytes(&frame.out, proofs.server, IBX_HASH_BYTES);
    rc = ibx_handshake_frame_send(conn, &frame, deadline);
    if (rc)
        return ibx_handshake_broken(conn, rc, err);
    conn->door.authenticated = true;
    return 0;
}

int ibx_handshake_prove_client(struct ibx_conn *conn, uint64_t deadline, bool *same_host,
                               struct ibx_error *err)
{
    struct door_frame frame;
    uint8_t ours[NONCE_BYTES], theirs[NONCE_BYTES], mark[IBX_HASH_BYTES];
    bool has_key = false;
    int rc = ibx_random(ours, sizeof(ours), err);
    if (rc)
        return rc;
    ibx_handshake_frame_begin(&frame, FRAME_HELLO);
    put_opening(conn, &frame.out, ours);
    rc = ibx_handshake_frame_send(conn, &frame, deadline);
    if (rc)
        return ibx_handshake_broken(conn, rc, err);
    rc = ibx_handshake_expect(conn, &frame, FRAME_CHALLENGE, deadline, err);
    if (rc)
        return rc;
    rc = get_opening(conn, &frame.payload, &has_key, theirs);
    const uint8_t *server_mark = ibx_get_bytes(&frame.payload, IBX_HASH_BYTES);
    if (rc || !server_mark)
        return ibx_handshake_broken(conn, -EPROTO, err);
    if (has_key != conn->key.present)
        return ibx_error_set(err, -EACCES, "%s has %s key, this side has %s", conn->path.peer,
                             has_key ? "a" : "no", conn->key.present ? "one" : "none");
    host_mark(ours, theirs, mark);
    *same_host = ibx_hash_equal(mark, server_mark);

    struct proofs proofs;
    derive(conn, &proofs);
    ibx_handshake_frame_begin(&frame, FRAME_PROOF);
    ibx_put_bytes(&frame.out, proofs.client, IBX_HASH_BYTES);
    rc = ibx_handshake_frame_send(conn, &frame, deadline);
    if (rc)
        return ibx_handshake_broken(conn, rc, err);
    rc = ibx_handshake_expect(conn, &frame, FRAME_PROOF, deadline, err);
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
