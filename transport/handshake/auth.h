/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Keys, keyed hashes and random bytes for the door, by OpenSSL. */
#ifndef IBX_TRANSPORT_HANDSHAKE_AUTH_H
#define IBX_TRANSPORT_HANDSHAKE_AUTH_H

#include "transport/transport.h"

#define IBX_HASH_BYTES 32

struct ibx_key {
    bool present;
    uint8_t bytes[IBX_HASH_BYTES]; /* SHA-256 of the file's content */
};

/* Reads a key file: a regular file of at least 16 bytes (a final newline does not count) that
 * nobody but its owner - the caller or root - may read. "" gives an absent key. */
int ibx_key_load(const char *path, struct ibx_key *key, struct ibx_error *err);

/* One piece of what is hashed. */
struct ibx_piece {
    const void *data;
    size_t length;
};

void ibx_hash(const struct ibx_piece *pieces, int count, uint8_t out[IBX_HASH_BYTES]);
/* HMAC-SHA-256. */
void ibx_hmac(const uint8_t key[IBX_HASH_BYTES], const struct ibx_piece *pieces, int count,
              uint8_t out[IBX_HASH_BYTES]);
bool ibx_hash_equal(const uint8_t a[IBX_HASH_BYTES], const uint8_t b[IBX_HASH_BYTES]);
int ibx_random(void *out, size_t length, struct ibx_error *err);

#endif
