/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "transport/core/mac.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <string.h>

#define KEY_BYTES 32u /* of one message */
#define KEYS      32u /* made at once: a call of OpenSSL costs as much as ten of them */

/* One direction. The one-time keys are the key stream of AES-256-CTR, in order. */
struct way {
    EVP_CIPHER_CTX *stream;
    EVP_MAC_CTX *poly;
    unsigned next; /* of `keys`; KEYS: there are none left */
    uint8_t keys[KEYS][KEY_BYTES];
};

struct ibx_mac {
    struct way out, in;
    int broken; /* why no more messages are taken, or 0 */
};

static int way_open(struct way *way, EVP_MAC *poly, const uint8_t session_key[IBX_HASH_BYTES],
                    bool to_server)
{
    static const uint8_t zeros[16];
    const char *info = to_server ? "ibx messages to server" : "ibx messages to client";
    struct ibx_piece secret = {session_key, IBX_HASH_BYTES}, salt = {"", 0};
    uint8_t key[IBX_HASH_BYTES];
    ibx_hkdf(&secret, &salt, &(struct ibx_piece){info, strlen(info)}, key);
    way->next = KEYS;
    way->stream = EVP_CIPHER_CTX_new();
    way->poly = poly ? EVP_MAC_CTX_new(poly) : NULL;
    bool good = way->stream && way->poly &&
                EVP_EncryptInit_ex(way->stream, EVP_aes_256_ctr(), NULL, key, zeros) == 1;
    OPENSSL_cleanse(key, sizeof(key));
    return good ? 0 : -EIO;
}

static void way_close(struct way *way)
{
    EVP_CIPHER_CTX_free(way->stream);
    EVP_MAC_CTX_free(way->poly);
}

int ibx_mac_create(const uint8_t session_key[IBX_HASH_BYTES], enum ibx_role role,
                   struct ibx_mac **out, struct ibx_error *err)
{
    struct ibx_mac *mac = ibx_secret_allocate(sizeof(*mac));
    if (!mac)
        return ibx_error_set(err, -ENOMEM, "no memory for the keys of messages");
    EVP_MAC *poly = EVP_MAC_fetch(NULL, "POLY1305", NULL);
    bool client = role == IBX_ROLE_CLIENT;
    int rc = way_open(&mac->out, poly, session_key, client);
    if (!rc)
        rc = way_open(&mac->in, poly, session_key, !client);
    EVP_MAC_free(poly);
    ERR_clear_error();
    if (ibx_crypto_lacked()) {
        ibx_mac_destroy(mac);
        return ibx_error_set(err, -ENOMEM, "no memory for the keys of messages");
    }
    if (rc) {
        ibx_mac_destroy(mac);
        return ibx_error_set(err, rc,
                             "this OpenSSL has no Poly1305 or no AES-256-CTR: messages "
                             "cannot be authenticated");
    }
    *out = mac;
    return 0;
}

void ibx_mac_destroy(struct ibx_mac *mac)
{
    if (!mac)
        return;
    way_close(&mac->out);
    way_close(&mac->in);
    ibx_secret_free(mac);
}

/* The next KEYS keys. */
static int refill(struct way *way)
{
    int written = 0;
    memset(way->keys, 0, sizeof(way->keys));
    if (EVP_EncryptUpdate(way->stream, way->keys[0], &written, way->keys[0], sizeof(way->keys)) !=
        1)
        return -EIO;
    way->next = 0;
    return 0;
}

/* The MAC of a message under the next key. */
static int compute(struct way *way, const void *message, size_t length, uint8_t out[IBX_MAC_BYTES])
{
    size_t written = 0;
    if (way->next == KEYS && refill(way))
        return -EIO;
    return EVP_MAC_init(way->poly, way->keys[way->next], KEY_BYTES, NULL) == 1 &&
                   EVP_MAC_update(way->poly, message, length) == 1 &&
                   EVP_MAC_final(way->poly, out, &written, IBX_MAC_BYTES) == 1 &&
                   written == IBX_MAC_BYTES
               ? 0
               : -EIO;
}

int ibx_mac_make(struct ibx_mac *mac, const void *message, size_t length,
                 uint8_t out[IBX_MAC_BYTES])
{
    return compute(&mac->out, message, length, out);
}

void ibx_mac_sent(struct ibx_mac *mac)
{
    mac->out.next++;
}

int ibx_mac_check(struct ibx_mac *mac, const void *message, size_t length)
{
    uint8_t right[IBX_MAC_BYTES];
    if (mac->broken)
        return mac->broken;
    if (length < IBX_MAC_BYTES) {
        mac->broken = -EBADMSG;
        return mac->broken;
    }
    length -= IBX_MAC_BYTES;
    mac->broken = compute(&mac->in, message, length, right);
    if (!mac->broken && CRYPTO_memcmp(right, (const uint8_t *)message + length, IBX_MAC_BYTES))
        mac->broken = -EBADMSG;
    mac->in.next++;
    return mac->broken;
}
