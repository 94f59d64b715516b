/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Hashes, keyed hashes and random bytes, by OpenSSL: for the handshake and for providers. */
#ifndef IBX_TRANSPORT_CORE_CRYPTO_H
#define IBX_TRANSPORT_CORE_CRYPTO_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IBX_HASH_BYTES 32

/* One part of what is hashed. */
struct ibx_piece {
    const void *data;
    size_t length;
};

/* SHA-256, and HMAC-SHA-256. When OpenSSL fails, the result is random: it matches nothing. */
void ibx_hash(const struct ibx_piece *pieces, int count, uint8_t out[IBX_HASH_BYTES]);
void ibx_hmac(const uint8_t key[IBX_HASH_BYTES], const struct ibx_piece *pieces, int count,
              uint8_t out[IBX_HASH_BYTES]);
/* Compares in constant time. */
bool ibx_hash_equal(const uint8_t a[IBX_HASH_BYTES], const uint8_t b[IBX_HASH_BYTES]);
/* Zeroed memory for secrets: not in core dumps, not in swap as far as RLIMIT_MEMLOCK allows, wiped
 * when it is freed. In whole pages. NULL: there is no memory. */
void *ibx_secret_allocate(size_t length);
void ibx_secret_free(void *secret);
/* -EIO: OpenSSL has no random bytes. */
int ibx_random(void *out, size_t length, struct ibx_error *err);

#endif
