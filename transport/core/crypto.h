/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Hashes, keyed hashes and random bytes, by OpenSSL: for the handshake and for providers. */
#ifndef IBX_TRANSPORT_CORE_CRYPTO_H
#define IBX_TRANSPORT_CORE_CRYPTO_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IBX_HASH_BYTES 32

/* Call it before anything else here. Threads may be in these calls, and in TLS, while the process
 * ends: so OpenSSL's own atexit(3) handler, which would free what they use, is not installed. */
void ibx_crypto_stay(void);

/* One part of what is hashed. */
struct ibx_piece {
    const void *data;
    size_t length;
};

/* SHA-256, and HMAC-SHA-256. When OpenSSL fails, the result is random: it matches nothing. */
void ibx_hash(const struct ibx_piece *pieces, int count, uint8_t out[IBX_HASH_BYTES]);
void ibx_hmac(const uint8_t key[IBX_HASH_BYTES], const struct ibx_piece *pieces, int count,
              uint8_t out[IBX_HASH_BYTES]);
/* HKDF-SHA-256 (RFC 5869), 32 bytes: `info` says for what. When OpenSSL fails, the result is
 * random, too. */
void ibx_hkdf(const struct ibx_piece *secret, const struct ibx_piece *salt,
              const struct ibx_piece *info, uint8_t out[IBX_HASH_BYTES]);

/* Whether one of these calls of this thread had no memory, since the thread asked last: then a
 * proof that does not match says nothing of the peer. */
bool ibx_crypto_lacked(void);

/* X25519 with a fresh key pair, which may have several holders. */
#define IBX_PUBLIC_BYTES 32
struct ibx_exchange;
/* Makes a key pair, whose public key is `ours`, with one holder. -EIO. */
int ibx_exchange_create(struct ibx_exchange **exchange, uint8_t ours[IBX_PUBLIC_BYTES],
                        struct ibx_error *err);
/* Adds a holder; each holder calls ibx_exchange_destroy(). -EIO. */
int ibx_exchange_hold(struct ibx_exchange *exchange, struct ibx_error *err);
/* Computes the secret that both ends share, which the caller wipes. -EPROTO: `theirs` is of low
 * order and no valid public key: everybody would know the secret. -ENOMEM. */
int ibx_exchange_secret(struct ibx_exchange *exchange, const uint8_t theirs[IBX_PUBLIC_BYTES],
                        uint8_t secret[IBX_HASH_BYTES], struct ibx_error *err);
/* Accepts NULL. */
void ibx_exchange_destroy(struct ibx_exchange *exchange);
/* Compares in constant time. */
bool ibx_hash_equal(const uint8_t a[IBX_HASH_BYTES], const uint8_t b[IBX_HASH_BYTES]);
/* -EIO or -ENOMEM: OpenSSL has no random bytes. */
int ibx_random(void *out, size_t length, struct ibx_error *err);

/* secret.c */

/* Zeroed memory for secrets: not in core dumps, not in swap as far as RLIMIT_MEMLOCK allows, wiped
 * when it is freed. In whole pages. NULL: there is no memory. */
void *ibx_secret_allocate(size_t length);
void ibx_secret_free(void *secret);

#endif
