/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Records of TLS 1.3 (RFC 8446, chapter 5): how bytes are sealed and opened once the handshake is
 * over. OpenSSL's own records copy every byte once more on each side and are written one at a time,
 * which halves the rate (docs/experiments.md). So here, as in the kernel's TLS, only the handshake
 * is OpenSSL's, with the ciphers (tls_cipher.h).
 *
 * One direction of a connection:
 *   secret -> key, iv          the cipher; records are numbered from 0
 *   KeyUpdate -> next secret   both ends go on with it, from 0; it bounds what a key seals
 */
#ifndef IBX_TRANSPORT_CORE_TLS_RECORD_H
#define IBX_TRANSPORT_CORE_TLS_RECORD_H

#include "transport/core/crypto.h"
#include "transport/core/tls_cipher.h"
#include "transport/core/tls_helpers.h"

#include <sys/uio.h>

#define IBX_TLS_HEADER_BYTES 5u
#define IBX_TLS_BODY_MAX     (1u << 14)
/* What a record has around its bytes: header, the kind of content, tag. */
#define IBX_TLS_OVERHEAD   (IBX_TLS_HEADER_BYTES + 1u + IBX_TLS_TAG_BYTES)
#define IBX_TLS_RECORD_MAX (IBX_TLS_BODY_MAX + IBX_TLS_OVERHEAD)

enum ibx_tls_content { IBX_TLS_ALERT = 21, IBX_TLS_HANDSHAKE = 22, IBX_TLS_DATA = 23 };

/* A place in a gather list. */
struct ibx_tls_cursor {
    const struct iovec *iov;
    int left;  /* entries */
    size_t at; /* in the first one */
};

/* Threads that seal or open records of one direction at the same time. */
#define IBX_TLS_WORKERS (1u + IBX_TLS_HELPERS_MAX)

struct ibx_tls_direction {
    enum ibx_tls_suite suite;
    uint8_t secret[IBX_HASH_BYTES];
    uint8_t iv[IBX_TLS_IV_BYTES];
    uint64_t records; /* under this key */
    unsigned key;     /* counts them, from 1 */
    bool seals;
    struct {
        struct ibx_tls_cipher *cipher; /* made when it is needed */
        unsigned key;                  /* which it has */
    } workers[IBX_TLS_WORKERS];
};

/* One of several records that are sealed or opened together, each by any worker. */
struct ibx_tls_job {
    struct ibx_tls_cursor text; /* what is sealed, or where it is opened to */
    uint8_t *record;
    size_t length; /* of the text */
    uint64_t number;
    enum ibx_tls_content content; /* opened: which it was */
    int status;                   /* 0 or negative errno */
};

/* Makes the keys of one direction from the handshake's traffic secret. -ENOMEM. */
int ibx_tls_direction_init(struct ibx_tls_direction *d, bool seals, enum ibx_tls_suite suite,
                           const uint8_t secret[IBX_HASH_BYTES]);
void ibx_tls_direction_fini(struct ibx_tls_direction *d);
/* The present key. */
void ibx_tls_direction_key(const struct ibx_tls_direction *d, uint8_t key[IBX_TLS_KEY_BYTES_MAX]);
/* The next key, after a KeyUpdate. */
void ibx_tls_direction_update(struct ibx_tls_direction *d);

size_t ibx_tls_cursor_room(const struct ibx_tls_cursor *cursor);
void ibx_tls_cursor_move(struct ibx_tls_cursor *cursor, size_t n);

/* How many of these bytes the next record takes. A long piece begins a record of its own, so that
 * the peer can open it where it belongs. */
size_t ibx_tls_record_length(const struct ibx_tls_cursor *cursor);
/* Makes the record of that number of a job's text: its status is 0, or -EIO when OpenSSL failed. */
void ibx_tls_seal(struct ibx_tls_direction *d, unsigned worker, struct ibx_tls_job *job);

/* The size of the record that begins with these bytes; 0: they are fewer than 5; -EBADMSG: this is
 * no record. */
ssize_t ibx_tls_record_size(const uint8_t *record, size_t have);
/* Opens a whole record, whose text has `length` bytes, to where `text` is, which may be in the
 * record's own memory, behind its header. Status -EBADMSG: it was not sealed by the peer with that
 * number; the room is then zeros. */
void ibx_tls_open(struct ibx_tls_direction *d, unsigned worker, struct ibx_tls_job *job);
/* Overwrites the text with zeros. */
void ibx_tls_wipe(const struct ibx_tls_job *job);

#endif
