/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The cipher of a record, for one thread at a time: OpenSSL's, or for AES-128-GCM Intel's ipsec-mb,
 * which is loaded where the processor has AES and carry-less multiplication in 512-bit vectors and
 * OpenSSL is older than 3.1, the first that uses them: 11.6 GB/s a core instead of 3.9.
 */
#ifndef IBX_TRANSPORT_CORE_TLS_CIPHER_H
#define IBX_TRANSPORT_CORE_TLS_CIPHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IBX_TLS_TAG_BYTES     16u
#define IBX_TLS_IV_BYTES      12u
#define IBX_TLS_KEY_BYTES_MAX 32u

enum ibx_tls_suite { IBX_TLS_AES_128_GCM = 0x1301, IBX_TLS_CHACHA20_POLY1305 = 0x1303 };

enum ibx_tls_engine { IBX_TLS_FASTEST, IBX_TLS_OPENSSL };

struct ibx_tls_cipher;

/* A cipher of the suite with this key, to seal or to open. NULL: there is no memory, or OpenSSL
 * failed. */
struct ibx_tls_cipher *ibx_tls_cipher_create(enum ibx_tls_suite suite, enum ibx_tls_engine engine,
                                             bool seals, const uint8_t *key);
/* Replaces the key. False: OpenSSL failed. */
bool ibx_tls_cipher_rekey(struct ibx_tls_cipher *cipher, const uint8_t *key);
/* Accepts NULL. */
void ibx_tls_cipher_destroy(struct ibx_tls_cipher *cipher);
/* For tests. False: it is OpenSSL's. */
bool ibx_tls_cipher_is_ipsec_mb(const struct ibx_tls_cipher *cipher);

/* A record: begin, any number of updates, one end. False: OpenSSL failed, or at the end of opening:
 * it is not what was sealed. `n` is at most INT_MAX. */
bool ibx_tls_cipher_begin(struct ibx_tls_cipher *cipher, const uint8_t nonce[IBX_TLS_IV_BYTES],
                          const void *header, size_t n);
bool ibx_tls_cipher_update(struct ibx_tls_cipher *cipher, uint8_t *to, const uint8_t *from,
                           size_t n);
bool ibx_tls_cipher_seal_end(struct ibx_tls_cipher *cipher, uint8_t tag[IBX_TLS_TAG_BYTES]);
bool ibx_tls_cipher_open_end(struct ibx_tls_cipher *cipher, const uint8_t tag[IBX_TLS_TAG_BYTES]);

#endif
