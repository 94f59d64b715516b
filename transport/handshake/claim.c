/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A client whose connection has broken claims the session that it carried: HELLO then has, behind
 * the names, 16 bytes of id and 32 bytes of proof = HMAC-SHA-256(secret, "claim " || id || nonce ||
 * public key), with the nonce and the public key of this HELLO. Whoever has seen a claim can repeat
 * it, but cannot finish the handshake for which it is good: that takes the private half of the key
 * pair.
 */
#include "transport/handshake/handshake.h"

#include <string.h>

#define CLAIM_BYTES (IBX_CLAIM_ID_BYTES + IBX_HASH_BYTES)

static void prove(const uint8_t *secret, const uint8_t *id, const uint8_t *nonce,
                  const uint8_t *public_key, uint8_t proof[IBX_HASH_BYTES])
{
    struct ibx_piece pieces[] = {{"claim ", 6},
                                 {id, IBX_CLAIM_ID_BYTES},
                                 {nonce, NONCE_BYTES},
                                 {public_key, IBX_PUBLIC_BYTES}};
    ibx_hmac(secret, pieces, 4, proof);
}

void ibx_handshake_claim_put(const struct ibx_handshake *h, struct ibx_writer *w)
{
    const struct ibx_claim *claim = h->conn->options.claim;
    uint8_t proof[IBX_HASH_BYTES];
    if (!claim)
        return;
    prove(claim->secret, claim->id, h->nonce, h->public_key, proof);
    ibx_put_bytes(w, claim->id, sizeof(claim->id));
    ibx_put_bytes(w, proof, sizeof(proof));
}

void ibx_handshake_claim_get(struct ibx_handshake *h, struct ibx_reader *r)
{
    if (ibx_reader_left(r) < CLAIM_BYTES)
        return; /* bytes beyond the fields are ignored */
    memcpy(h->peer.claim_id, ibx_get_bytes(r, IBX_CLAIM_ID_BYTES), IBX_CLAIM_ID_BYTES);
    memcpy(h->peer.claim_proof, ibx_get_bytes(r, IBX_HASH_BYTES), IBX_HASH_BYTES);
    h->peer.claims = true;
}

/* All refusals have the same words: a client that may not have the session learns nothing about
 * it. */
const char *ibx_handshake_claim_check(struct ibx_handshake *h)
{
    static const char none[] =
        "no such session is waiting here: the back end was started again, or "
        "the session has ended";
    const struct ibx_claim_check *check = h->conn->options.claim_check;
    struct ibx_claimed claimed = {0};
    uint8_t proof[IBX_HASH_BYTES];
    uid_t user = 0;
    if (!h->peer.claims)
        return NULL;
    if (!check || !check->find(check->context, h->peer.claim_id, &claimed))
        return none;
    prove(claimed.secret, h->peer.claim_id, h->peer.nonce, h->peer.public_key, proof);
    explicit_bzero(claimed.secret, sizeof(claimed.secret));
    bool good = ibx_hash_equal(proof, h->peer.claim_proof);
    if (!good || strcmp(claimed.name, h->key ? h->key->name : ""))
        return none;
    if (claimed.has_user && !ibx_handshake_peer_user(h->conn->handshake_socket, &user) &&
        user != claimed.user)
        return none;
    memcpy(h->conn->claimed, h->peer.claim_id, sizeof(h->conn->claimed));
    h->conn->has_claimed = true;
    return NULL;
}

const uint8_t *ibx_conn_claimed(const struct ibx_conn *conn)
{
    return conn->has_claimed ? conn->claimed : NULL;
}

int ibx_conn_user(const struct ibx_conn *conn, unsigned *user)
{
    uid_t uid;
    int rc = ibx_handshake_peer_user(conn->handshake_socket, &uid);
    if (!rc)
        *user = uid;
    return rc;
}
