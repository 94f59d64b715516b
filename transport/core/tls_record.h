/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Records of TLS 1.3 (RFC 8446, chapter 5), for core/tls.c: how bytes are sealed and opened once
 * the handshake is over. OpenSSL's own record layer copies every byte once more on each side and
 * writes a record at a time, which costs a third of the rate (docs/measurements.md). So here, as in
 * the kernel's TLS, only the handshake and the ciphers are OpenSSL's.
 *
 * One direction of a connection:
 *   secret -> key, iv       the cipher; records are numbered from 0
 *   KeyUpdate -> next secret   both ends go on with it, from 0: a key protects a bounded number of
 * records
 */
#ifndef IBX_TRANSPORT_CORE_TLS_RECORD_H
#define IBX_TRANSPORT_CORE_TLS_RECORD_H

#include "transport/core/crypto.h"

#include <sys/uio.h>

#define IBX_TLS_HEADER_BYTES 5u
#define IBX_TLS_TAG_BYTES    16u
#define IBX_TLS_IV_BYTES     12u
#define IBX_TLS_BODY_MAX     (1u << 14)
/* What a record has around its bytes: header, the kind of content, tag. */
#define IBX_TLS_OVERHEAD   (IBX_TLS_HEADER_BYTES + 1u + IBX_TLS_TAG_BYTES)
#define IBX_TLS_RECORD_MAX (IBX_TLS_BODY_MAX + IBX_TLS_OVERHEAD)

enum ibx_tls_content { IBX_TLS_ALERT = 21, IBX_TLS_HANDSHAKE = 22, IBX_TLS_DATA = 23 };

enum ibx_tls_suite { IBX_TLS_AES_128_GCM = 0x1301, IBX_TLS_CHACHA20_POLY1305 = 0x1303 };

struct evp_cipher_ctx_st;

struct ibx_tls_direction {
    struct evp_cipher_ctx_st *cipher;
    enum ibx_tls_suite suite;
    uint8_t secret[IBX_HASH_BYTES];
    uint8_t iv[IBX_TLS_IV_BYTES];
    uint64_t records; /* under this key */
    bool seals;
};

/* A place in a gather list. */
struct ibx_tls_cursor {
    const struct iovec *iov;
    int left;  /* entries */
    size_t at; /* in the first one */
};

/* From the traffic secret of the handshake. -ENOMEM. */
int ibx_tls_direction_init(struct ibx_tls_direction *d, bool seals, enum ibx_tls_suite suite,
                           const uint8_t secret[IBX_HASH_BYTES]);
void ibx_tls_direction_fini(struct ibx_tls_direction *d);
/* The next key, after a KeyUpdate. */
int ibx_tls_direction_update(struct ibx_tls_direction *d);

size_t ibx_tls_cursor_room(const struct ibx_tls_cursor *cursor);
void ibx_tls_cursor_move(struct ibx_tls_cursor *cursor, size_t n);

/* How many of these bytes the next record takes. A long piece begins a record of its own, so that
 * the peer can open it where it belongs. */
size_t ibx_tls_record_length(const struct ibx_tls_cursor *cursor);
/* Makes a record of the next `n` bytes and moves the cursor; returns its size, 0: OpenSSL failed.
 */
size_t ibx_tls_seal(struct ibx_tls_direction *d, enum ibx_tls_content content,
                    struct ibx_tls_cursor *cursor, size_t n, uint8_t *record);

/* The size of the record that begins so; 0: fewer than 5 bytes; -EBADMSG: it is none. */
ssize_t ibx_tls_record_size(const uint8_t *record, size_t have);
/* Opens a whole record to where the cursor is, which has room for size - IBX_TLS_OVERHEAD bytes,
 * and moves it. The cursor may name the record's own memory, behind its header. -EBADMSG: it was
 * not sealed by the peer as the next one; the room is then zeros. */
int ibx_tls_open(struct ibx_tls_direction *d, const uint8_t *record, size_t size,
                 struct ibx_tls_cursor *cursor, enum ibx_tls_content *content);

#endif
