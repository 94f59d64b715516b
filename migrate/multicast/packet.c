/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/multicast/multicast.h"

#include "common/wire.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>

#define MAGIC     0x6d786269u /* "ibxm" */
#define VERSION   1u
#define NONCE     12u
#define PART_UNIT 16u /* bytes: all parts but the last are multiples of it */

/* ------------------------------------------------------------ parts of a page */

unsigned ibx_multicast_parts(size_t room)
{
    size_t length;
    for (unsigned parts = 1; parts <= IBX_MULTICAST_PARTS_MAX; parts++) {
        ibx_multicast_part_at(parts, 0, &length);
        if (IBX_MULTICAST_HEAD + length + IBX_MULTICAST_TAG <= room)
            return parts;
    }
    return 0;
}

size_t ibx_multicast_part_at(unsigned parts, unsigned part, size_t *length)
{
    const size_t unit = (size_t)PART_UNIT * parts;
    const size_t each = (IBX_MULTICAST_PAGE + unit - 1) / unit * PART_UNIT, at = part * each;
    *length = part + 1 < parts ? each : IBX_MULTICAST_PAGE - at;
    return at;
}

size_t ibx_multicast_datagram(unsigned parts, unsigned part)
{
    size_t length;
    ibx_multicast_part_at(parts, part, &length);
    return IBX_MULTICAST_HEAD + length + IBX_MULTICAST_TAG;
}

/* ------------------------------------------------------------ the head */

static void put_head(uint8_t *out, const struct ibx_multicast_packet *p,
                     const uint8_t id[IBX_MULTICAST_ID])
{
    struct ibx_writer w = ibx_writer_of(out, IBX_MULTICAST_HEAD);
    ibx_put_u32(&w, MAGIC);
    ibx_put_u8(&w, VERSION);
    ibx_put_u8(&w, (uint8_t)p->part);
    ibx_put_u8(&w, (uint8_t)p->parts);
    ibx_put_u8(&w, 0);
    ibx_put_bytes(&w, id, IBX_MULTICAST_ID);
    ibx_put_u64(&w, p->number);
    ibx_put_u64(&w, p->page);
}

bool ibx_multicast_peek(const void *datagram, size_t length, const uint8_t id[IBX_MULTICAST_ID],
                        struct ibx_multicast_packet *packet)
{
    struct ibx_reader r = ibx_reader_of(datagram, length);
    const bool known = ibx_get_u32(&r) == MAGIC && ibx_get_u8(&r) == VERSION;
    const unsigned part = ibx_get_u8(&r), parts = ibx_get_u8(&r), zero = ibx_get_u8(&r);
    const uint8_t *theirs = ibx_get_bytes(&r, IBX_MULTICAST_ID);
    const uint64_t number = ibx_get_u64(&r), page = ibx_get_u64(&r);
    size_t bytes;
    if (r.failed || !known || zero || memcmp(theirs, id, IBX_MULTICAST_ID) || !parts ||
        parts > IBX_MULTICAST_PARTS_MAX || part >= parts)
        return false;
    ibx_multicast_part_at(parts, part, &bytes);
    *packet = (struct ibx_multicast_packet){number, page, part, parts};
    return ibx_reader_left(&r) == bytes + IBX_MULTICAST_TAG;
}

/* ------------------------------------------------------------ sealing */

struct ibx_multicast_cipher {
    EVP_CIPHER_CTX *context; /* with the key */
    uint8_t id[IBX_MULTICAST_ID];
};

struct ibx_multicast_cipher *ibx_multicast_cipher_create(const struct ibx_multicast_group *group,
                                                         bool seals)
{
    struct ibx_multicast_cipher *cipher = calloc(1, sizeof(*cipher));
    if (!cipher)
        return NULL;
    memcpy(cipher->id, group->id, sizeof(cipher->id));
    cipher->context = EVP_CIPHER_CTX_new();
    if (cipher->context &&
        EVP_CipherInit_ex(cipher->context, EVP_aes_128_gcm(), NULL, group->key, NULL, seals) == 1)
        return cipher;
    ibx_multicast_cipher_destroy(cipher);
    return NULL;
}

void ibx_multicast_cipher_destroy(struct ibx_multicast_cipher *cipher)
{
    if (cipher)
        EVP_CIPHER_CTX_free(cipher->context);
    free(cipher);
}

/* The nonce is the datagram's number as it is in the head, after four bytes of zeros. */
static void make_nonce(const uint8_t *head, uint8_t nonce[NONCE])
{
    memset(nonce, 0, NONCE);
    memcpy(nonce + NONCE - 8, head + 8 + IBX_MULTICAST_ID, 8);
}

size_t ibx_multicast_seal(struct ibx_multicast_cipher *cipher,
                          const struct ibx_multicast_packet *packet, const uint8_t *page,
                          uint8_t *out)
{
    EVP_CIPHER_CTX *c = cipher->context;
    uint8_t nonce[NONCE];
    size_t length;
    int n;
    const size_t at = ibx_multicast_part_at(packet->parts, packet->part, &length);
    uint8_t *body = out + IBX_MULTICAST_HEAD;
    put_head(out, packet, cipher->id);
    make_nonce(out, nonce);
    if (EVP_EncryptInit_ex(c, NULL, NULL, NULL, nonce) != 1 ||
        EVP_EncryptUpdate(c, NULL, &n, out, IBX_MULTICAST_HEAD) != 1 ||
        EVP_EncryptUpdate(c, body, &n, page + at, (int)length) != 1 ||
        EVP_EncryptFinal_ex(c, body + length, &n) != 1 ||
        EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, IBX_MULTICAST_TAG, body + length) != 1)
        return 0;
    return IBX_MULTICAST_HEAD + length + IBX_MULTICAST_TAG;
}

bool ibx_multicast_open(struct ibx_multicast_cipher *cipher, const void *datagram, size_t length,
                        uint8_t *part)
{
    EVP_CIPHER_CTX *c = cipher->context;
    const uint8_t *head = datagram, *body = head + IBX_MULTICAST_HEAD;
    const size_t bytes = length - IBX_MULTICAST_HEAD - IBX_MULTICAST_TAG;
    uint8_t nonce[NONCE], tag[IBX_MULTICAST_TAG];
    int n;
    memcpy(tag, body + bytes, sizeof(tag));
    make_nonce(head, nonce);
    return EVP_DecryptInit_ex(c, NULL, NULL, NULL, nonce) == 1 &&
           EVP_DecryptUpdate(c, NULL, &n, head, IBX_MULTICAST_HEAD) == 1 &&
           EVP_DecryptUpdate(c, part, &n, body, (int)bytes) == 1 &&
           EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, sizeof(tag), tag) == 1 &&
           EVP_DecryptFinal_ex(c, part + bytes, &n) == 1;
}

/* ------------------------------------------------------------ the key, for a member */

/* AES-256-GCM; the nonce is zero, since each secret is used once. */
static bool key_crypt(bool seals, const uint8_t secret[32], const uint8_t *id, const uint8_t *from,
                      uint8_t *to, uint8_t *tag)
{
    static const uint8_t nonce[NONCE];
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    uint8_t rest[16];
    int n;
    bool good =
        c && EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, secret, nonce, seals) == 1 &&
        EVP_CipherUpdate(c, NULL, &n, id, IBX_MULTICAST_ID) == 1 &&
        EVP_CipherUpdate(c, to, &n, from, IBX_MULTICAST_KEY) == 1 &&
        (seals || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, IBX_MULTICAST_TAG, tag) == 1) &&
        EVP_CipherFinal_ex(c, rest, &n) == 1 &&
        (!seals || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, IBX_MULTICAST_TAG, tag) == 1);
    EVP_CIPHER_CTX_free(c);
    return good;
}

bool ibx_multicast_key_seal(const uint8_t secret[32], const struct ibx_multicast_group *group,
                            uint8_t sealed[IBX_MULTICAST_SEALED_KEY])
{
    return key_crypt(true, secret, group->id, group->key, sealed, sealed + IBX_MULTICAST_KEY);
}

bool ibx_multicast_key_open(const uint8_t secret[32], struct ibx_multicast_group *group,
                            const uint8_t sealed[IBX_MULTICAST_SEALED_KEY])
{
    uint8_t key[IBX_MULTICAST_KEY], tag[IBX_MULTICAST_TAG];
    memcpy(tag, sealed + IBX_MULTICAST_KEY, sizeof(tag));
    if (!key_crypt(false, secret, group->id, sealed, key, tag))
        return false;
    memcpy(group->key, key, sizeof(key));
    OPENSSL_cleanse(key, sizeof(key));
    return true;
}
