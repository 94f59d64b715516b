/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The first half of the handshake: both ends prove that they know the key, and agree on limits.
 * Without a key a server only serves its own host, unless options.insecure is set.
 */
#include "transport/handshake/handshake.h"

#include "common/address.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NONCE_BYTES 32u
#define VERSION     1u
#define WRONG_PROOF 1

static const uint8_t magic[4] = {'I', 'B', 'X', 'D'};

/* Equal on both ends only under one running kernel; different for each connection. */
static void host_mark(const uint8_t client_nonce[NONCE_BYTES],
                      const uint8_t server_nonce[NONCE_BYTES], uint8_t mark[IBX_HASH_BYTES])
{
    char boot[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, boot, sizeof(boot));
    if (fd >= 0)
        close(fd);
    if (n <= 0 && ibx_random(boot, sizeof(boot), NULL) == 0)
        n = sizeof(boot); /* unknown: it equals no other */
    struct ibx_piece pieces[4] = {
        {"host ", 5}, {boot, (size_t)n}, {client_nonce, NONCE_BYTES}, {server_nonce, NONCE_BYTES}};
    ibx_hash(pieces, 4, mark);
}

struct proofs {
    uint8_t client[IBX_HASH_BYTES], server[IBX_HASH_BYTES];
};

/* The proofs and the session key come from the key and all frames so far. Without a key they only
 * tie the channels of one connection together. */
static void derive(struct ibx_handshake *h, struct proofs *proofs)
{
    static const uint8_t no_key[IBX_HASH_BYTES];
    const uint8_t *key = h->key ? h->key->bytes : no_key;
    struct ibx_piece transcript = {h->transcript, IBX_HASH_BYTES};
    struct ibx_piece client[2] = {{"ibx client ", 11}, transcript};
    struct ibx_piece server[2] = {{"ibx server ", 11}, transcript};
    struct ibx_piece session[2] = {{"ibx session ", 12}, transcript};
    ibx_hmac(key, client, 2, proofs->client);
    ibx_hmac(key, server, 2, proofs->server);
    ibx_hmac(key, session, 2, h->conn->session_key);
}

/* Whether the peer is on this host: a unix socket, our own address, or loopback. A connection to
 * any address of IPv4's loopback comes from 127.0.0.1; Debian has a host's own name at 127.0.1.1.
 */
static bool peer_is_local(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t length = sizeof(here);
    if (!getsockname(fd, (struct sockaddr *)&here, &length) && here.ss_family == AF_UNIX)
        return true;
    if (!ibx_address_of_socket(fd, false, &here) || !ibx_address_of_socket(fd, true, &there))
        return false;
    const struct sockaddr_in *to = (const struct sockaddr_in *)&here;
    const struct sockaddr_in *from = (const struct sockaddr_in *)&there;
    bool loopback = here.ss_family == AF_INET && there.ss_family == AF_INET &&
                    ntohl(to->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET &&
                    from->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
    return loopback ||
           ibx_address_same((const struct sockaddr *)&here, (const struct sockaddr *)&there);
}

/* ------------------------------------------------------------ HELLO, CHALLENGE */

static void put_opening(const struct ibx_handshake *h, struct ibx_writer *w, const uint8_t *nonce)
{
    ibx_put_bytes(w, magic, sizeof(magic));
    ibx_put_u16(w, VERSION);
    ibx_put_u8(w, (h->key != NULL));
    ibx_put_bytes(w, nonce, NONCE_BYTES);
    ibx_put_u32(w, h->conn->options.slots);
    ibx_put_u64(w, h->conn->options.message);
}

/* Reads what put_opening() wrote, and takes the smaller one of both sides' limits. -EPROTO: this is
 * no ibx peer; -EPROTONOSUPPORT: one of another version. */
static int get_opening(struct ibx_handshake *h, struct ibx_reader *r, bool *has_key,
                       uint8_t nonce[NONCE_BYTES])
{
    struct ibx_options *options = &h->conn->options;
    const uint8_t *m = ibx_get_bytes(r, sizeof(magic));
    if (!m || memcmp(m, magic, sizeof(magic)))
        return -EPROTO;
    if (ibx_get_u16(r) != VERSION)
        return r->failed ? -EPROTO : -EPROTONOSUPPORT;
    *has_key = ibx_get_u8(r) != 0;
    const uint8_t *n = ibx_get_bytes(r, NONCE_BYTES);
    uint32_t slots = ibx_get_u32(r);
    uint64_t message = ibx_get_u64(r);
    if (r->failed || slots < 4 || message < 1024)
        return -EPROTO;
    memcpy(nonce, n, NONCE_BYTES);
    if (slots < options->slots)
        options->slots = slots;
    if (message < options->message)
        options->message = (size_t)message;
    return 0;
}

/* -------------------------------------------------------------------- proofs */

static int send_proof(struct ibx_handshake *h, const uint8_t proof[IBX_HASH_BYTES],
                      uint64_t deadline, struct ibx_error *err)
{
    struct frame frame;
    ibx_handshake_frame_begin(&frame, FRAME_PROOF);
    ibx_put_bytes(&frame.out, proof, IBX_HASH_BYTES);
    return ibx_handshake_frame_send(h, &frame, deadline, err);
}

/* WRONG_PROOF, without a message: it is not this one. */
static int receive_proof(struct ibx_handshake *h, const uint8_t proof[IBX_HASH_BYTES],
                         uint64_t deadline, struct ibx_error *err)
{
    struct frame frame;
    int rc = ibx_handshake_frame_expect(h, &frame, FRAME_PROOF, deadline, err);
    if (rc)
        return rc;
    const uint8_t *got = ibx_get_bytes(&frame.payload, IBX_HASH_BYTES);
    return got && ibx_hash_equal(got, proof) ? 0 : WRONG_PROOF;
}

/* Whether the server takes a client that sent this HELLO: the code and the reason of a refusal. */
static int check_hello(struct ibx_handshake *h, struct ibx_reader *hello,
                       uint8_t nonce[NONCE_BYTES], const char **reason)
{
    bool has_key = false;
    int rc = get_opening(h, hello, &has_key, nonce);
    *reason = rc == -EPROTONOSUPPORT         ? "another version of the protocol is needed"
              : rc                           ? "it does not speak this protocol"
              : (h->key != NULL) && !has_key ? "a key is asked for: set key_file on the client"
              : !(h->key != NULL) && has_key
                  ? "the server has no key but the client has: set key_file on the server"
              : !(h->key != NULL) && !h->conn->options.insecure &&
                      !peer_is_local(h->conn->handshake_socket)
                  ? "without a key only this host is served: set key_file on both ends, or "
                    "insecure : yes on the server"
                  : NULL;
    return rc ? rc : *reason ? -EACCES : 0;
}

int ibx_handshake_authenticate_server(struct ibx_handshake *h, uint64_t deadline,
                                      struct ibx_error *err)
{
    struct frame frame;
    struct proofs proofs;
    const char *reason;
    uint8_t theirs[NONCE_BYTES], ours[NONCE_BYTES], mark[IBX_HASH_BYTES];
    int rc = ibx_handshake_frame_expect(h, &frame, FRAME_HELLO, deadline, err);
    if (!rc)
        rc = ibx_random(ours, sizeof(ours), err);
    if (rc)
        return rc;
    rc = check_hello(h, &frame.payload, theirs, &reason);
    if (rc)
        return ibx_handshake_refuse(h, rc, reason, err);

    ibx_handshake_frame_begin(&frame, FRAME_CHALLENGE);
    put_opening(h, &frame.out, ours);
    host_mark(theirs, ours, mark);
    ibx_put_bytes(&frame.out, mark, sizeof(mark));
    rc = ibx_handshake_frame_send(h, &frame, deadline, err);
    if (rc)
        return rc;
    derive(h, &proofs);
    rc = receive_proof(h, proofs.client, deadline, err);
    if (rc == WRONG_PROOF)
        return ibx_handshake_refuse(h, -EACCES, "the key is not the server's: copy its key file",
                                    err);
    if (!rc)
        rc = send_proof(h, proofs.server, deadline, err);
    return rc ? rc : ibx_state_move(&h->state, HANDSHAKE_AUTHENTICATED);
}

int ibx_handshake_authenticate_client(struct ibx_handshake *h, uint64_t deadline,
                                      struct ibx_error *err)
{
    struct frame frame;
    struct proofs proofs;
    const char *peer = h->conn->path.peer;
    uint8_t ours[NONCE_BYTES], theirs[NONCE_BYTES], mark[IBX_HASH_BYTES];
    bool has_key = false;
    int rc = ibx_random(ours, sizeof(ours), err);
    if (rc)
        return rc;
    ibx_handshake_frame_begin(&frame, FRAME_HELLO);
    put_opening(h, &frame.out, ours);
    rc = ibx_handshake_frame_send(h, &frame, deadline, err);
    if (!rc)
        rc = ibx_handshake_frame_expect(h, &frame, FRAME_CHALLENGE, deadline, err);
    if (rc)
        return rc;
    rc = get_opening(h, &frame.payload, &has_key, theirs);
    const uint8_t *server_mark = ibx_get_bytes(&frame.payload, IBX_HASH_BYTES);
    if (rc || !server_mark)
        return ibx_handshake_broken(h, -EPROTO, err);
    if (has_key != (h->key != NULL))
        return ibx_error_set(err, -EACCES, "%s has %s key, this side has %s", peer,
                             has_key ? "a" : "no", (h->key != NULL) ? "one" : "none");
    host_mark(ours, theirs, mark);
    h->conn->same_host = ibx_hash_equal(mark, server_mark);

    derive(h, &proofs);
    rc = send_proof(h, proofs.client, deadline, err);
    if (!rc)
        rc = receive_proof(h, proofs.server, deadline, err);
    if (rc == WRONG_PROOF)
        return ibx_error_set(err, -EACCES,
                             "%s does not know the key: it is not the server it should be", peer);
    return rc ? rc : ibx_state_move(&h->state, HANDSHAKE_AUTHENTICATED);
}
