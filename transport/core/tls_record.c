/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "transport/core/tls_record.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <string.h>

/* ------------------------------------------------------------------------- keys */

/* HKDF-Expand-Label of RFC 8446, 7.1, for at most one hash. */
static void expand(const uint8_t secret[IBX_HASH_BYTES], const char *label, uint8_t *out, size_t n)
{
    uint8_t info[64], block[IBX_HASH_BYTES];
    size_t length = strlen(label);
    info[0] = 0;
    info[1] = (uint8_t)n;
    info[2] = (uint8_t)(6 + length);
    memcpy(info + 3, "tls13 ", 6);
    memcpy(info + 9, label, length);
    info[9 + length] = 0;  /* no context */
    info[10 + length] = 1; /* the first block */
    ibx_hmac(secret, &(struct ibx_piece){info, 11 + length}, 1, block);
    memcpy(out, block, n);
    OPENSSL_cleanse(block, sizeof(block));
}

static void key_set(struct ibx_tls_direction *d)
{
    expand(d->secret, "iv", d->iv, sizeof(d->iv));
    d->records = 0;
    d->key++;
}

void ibx_tls_direction_key(const struct ibx_tls_direction *d, uint8_t key[IBX_TLS_KEY_BYTES_MAX])
{
    expand(d->secret, "key", key, d->suite == IBX_TLS_AES_128_GCM ? 16 : 32);
}

/* The worker's cipher, with the present key. */
static struct ibx_tls_cipher *cipher_of(struct ibx_tls_direction *d, unsigned worker)
{
    struct ibx_tls_cipher *cipher = d->workers[worker].cipher;
    if (d->workers[worker].key == d->key)
        return cipher;
    uint8_t key[IBX_TLS_KEY_BYTES_MAX];
    ibx_tls_direction_key(d, key);
    bool good = true;
    if (cipher)
        good = ibx_tls_cipher_rekey(cipher, key);
    else
        cipher = ibx_tls_cipher_create(d->suite, IBX_TLS_FASTEST, d->seals, key);
    OPENSSL_cleanse(key, sizeof(key));
    d->workers[worker].cipher = cipher;
    if (!cipher || !good)
        return NULL;
    d->workers[worker].key = d->key;
    return cipher;
}

int ibx_tls_direction_init(struct ibx_tls_direction *d, bool seals, enum ibx_tls_suite suite,
                           const uint8_t secret[IBX_HASH_BYTES])
{
    *d = (struct ibx_tls_direction){.seals = seals, .suite = suite};
    memcpy(d->secret, secret, sizeof(d->secret));
    key_set(d);
    return cipher_of(d, 0) && !ibx_crypto_lacked() ? 0 : -ENOMEM;
}

void ibx_tls_direction_fini(struct ibx_tls_direction *d)
{
    for (unsigned i = 0; i < IBX_TLS_WORKERS; i++)
        ibx_tls_cipher_destroy(d->workers[i].cipher);
    OPENSSL_cleanse(d, sizeof(*d));
}

void ibx_tls_direction_update(struct ibx_tls_direction *d)
{
    uint8_t next[IBX_HASH_BYTES];
    expand(d->secret, "traffic upd", next, sizeof(next));
    memcpy(d->secret, next, sizeof(next));
    OPENSSL_cleanse(next, sizeof(next));
    key_set(d);
}

/* The cipher begins a record: its number is in the nonce, its header is authenticated. */
static bool record_begin(struct ibx_tls_cipher *cipher, const struct ibx_tls_direction *d,
                         const struct ibx_tls_job *job)
{
    uint8_t nonce[IBX_TLS_IV_BYTES];
    memcpy(nonce, d->iv, sizeof(nonce));
    for (unsigned i = 0; i < 8; i++)
        nonce[IBX_TLS_IV_BYTES - 1 - i] ^= (uint8_t)(job->number >> (8 * i));
    return cipher && ibx_tls_cipher_begin(cipher, nonce, job->record, IBX_TLS_HEADER_BYTES);
}

/* ---------------------------------------------------------------------- gathering */

size_t ibx_tls_cursor_room(const struct ibx_tls_cursor *cursor)
{
    size_t room = 0;
    for (int i = 0; i < cursor->left; i++)
        room += cursor->iov[i].iov_len;
    return room - cursor->at;
}

void ibx_tls_cursor_move(struct ibx_tls_cursor *cursor, size_t n)
{
    cursor->at += n;
    while (cursor->left && cursor->at >= cursor->iov->iov_len) {
        cursor->at -= cursor->iov->iov_len;
        cursor->iov++;
        cursor->left--;
    }
}

/* The next contiguous bytes, at most `limit` of them. */
static uint8_t *cursor_piece(struct ibx_tls_cursor *cursor, size_t limit, size_t *n)
{
    ibx_tls_cursor_move(cursor, 0); /* past empty entries */
    size_t there = cursor->iov->iov_len - cursor->at;
    *n = there < limit ? there : limit;
    return (uint8_t *)cursor->iov->iov_base + cursor->at;
}

size_t ibx_tls_record_length(const struct ibx_tls_cursor *cursor)
{
    size_t n = 0, at = cursor->at;
    for (int i = 0; i < cursor->left && n < IBX_TLS_BODY_MAX; i++, at = 0) {
        size_t there = cursor->iov[i].iov_len - at;
        if (n && there >= IBX_TLS_BODY_MAX)
            break;
        n += there;
    }
    return n < IBX_TLS_BODY_MAX ? n : IBX_TLS_BODY_MAX;
}

/* ------------------------------------------------------------------------ sealing */

static void header_put(uint8_t *record, size_t body)
{
    record[0] = IBX_TLS_DATA;
    record[1] = 3;
    record[2] = 3;
    record[3] = (uint8_t)(body >> 8);
    record[4] = (uint8_t)body;
}

void ibx_tls_seal(struct ibx_tls_direction *d, unsigned worker, struct ibx_tls_job *job)
{
    struct ibx_tls_cipher *cipher = cipher_of(d, worker);
    struct ibx_tls_cursor text = job->text;
    uint8_t *out = job->record + IBX_TLS_HEADER_BYTES;
    const uint8_t kind = (uint8_t)job->content;
    job->status = -EIO;
    header_put(job->record, job->length + 1 + IBX_TLS_TAG_BYTES);
    if (!record_begin(cipher, d, job))
        return;
    for (size_t left = job->length, n; left; left -= n) {
        const uint8_t *from = cursor_piece(&text, left, &n);
        if (!ibx_tls_cipher_update(cipher, out, from, n))
            return;
        out += n;
        ibx_tls_cursor_move(&text, n);
    }
    if (ibx_tls_cipher_update(cipher, out, &kind, 1) && ibx_tls_cipher_seal_end(cipher, out + 1))
        job->status = 0;
}

/* ------------------------------------------------------------------------ opening */

ssize_t ibx_tls_record_size(const uint8_t *record, size_t have)
{
    if (have < IBX_TLS_HEADER_BYTES)
        return 0;
    size_t body = (size_t)record[3] << 8 | record[4];
    if (record[0] != IBX_TLS_DATA || record[1] != 3 || record[2] != 3 ||
        body < 1 + IBX_TLS_TAG_BYTES || body > IBX_TLS_BODY_MAX + 1 + IBX_TLS_TAG_BYTES)
        return -EBADMSG;
    return (ssize_t)(IBX_TLS_HEADER_BYTES + body);
}

static bool open_text(struct ibx_tls_cipher *cipher, const struct ibx_tls_job *job, uint8_t *kind)
{
    const uint8_t *in = job->record + IBX_TLS_HEADER_BYTES;
    struct ibx_tls_cursor text = job->text;
    for (size_t left = job->length, n; left; left -= n) {
        uint8_t *to = cursor_piece(&text, left, &n);
        if (!ibx_tls_cipher_update(cipher, to, in, n))
            return false;
        in += n;
        ibx_tls_cursor_move(&text, n);
    }
    return ibx_tls_cipher_update(cipher, kind, in, 1) && ibx_tls_cipher_open_end(cipher, in + 1);
}

void ibx_tls_wipe(const struct ibx_tls_job *job)
{
    struct ibx_tls_cursor text = job->text;
    for (size_t left = job->length, n; left; left -= n) {
        uint8_t *at = cursor_piece(&text, left, &n);
        memset(at, 0, n);
        ibx_tls_cursor_move(&text, n);
    }
}

void ibx_tls_open(struct ibx_tls_direction *d, unsigned worker, struct ibx_tls_job *job)
{
    struct ibx_tls_cipher *cipher = cipher_of(d, worker);
    uint8_t kind = 0;
    /* Nobody pads here: a record whose last byte is zero is refused like a forged one. */
    bool good = record_begin(cipher, d, job) && open_text(cipher, job, &kind) &&
                (kind == IBX_TLS_DATA || kind == IBX_TLS_ALERT || kind == IBX_TLS_HANDSHAKE);
    job->content = kind;
    job->status = good ? 0 : -EBADMSG;
    if (!good)
        ibx_tls_wipe(job);
}
