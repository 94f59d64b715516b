/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "transport/core/crypto.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>

void ibx_crypto_stay(void)
{
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
}

static _Thread_local bool lacked;

/* OpenSSL makes its context once in a process. Where it had no memory for that, most functions of
 * 3.0 nevertheless take a lock of this context, which is NULL, and crash. */
static bool has_context(void)
{
    return OSSL_LIB_CTX_get0_global_default() != NULL;
}

/* When OpenSSL has no memory for a digest, no proof may ever match by accident. It may have none
 * for random bytes either. */
static void fill_unguessable(uint8_t out[IBX_HASH_BYTES])
{
    lacked = true;
    ERR_clear_error();
    if (getrandom(out, IBX_HASH_BYTES, 0) != IBX_HASH_BYTES)
        abort();
}

bool ibx_crypto_lacked(void)
{
    const bool was = lacked;
    lacked = false;
    return was;
}

void ibx_hash(const struct ibx_piece *pieces, int count, uint8_t out[IBX_HASH_BYTES])
{
    EVP_MD_CTX *md = has_context() ? EVP_MD_CTX_new() : NULL;
    bool good = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1;
    for (int i = 0; good && i < count; i++)
        good = EVP_DigestUpdate(md, pieces[i].data, pieces[i].length) == 1;
    good = good && EVP_DigestFinal_ex(md, out, NULL) == 1;
    EVP_MD_CTX_free(md);
    if (!good)
        fill_unguessable(out);
}

void ibx_hmac(const uint8_t key[IBX_HASH_BYTES], const struct ibx_piece *pieces, int count,
              uint8_t out[IBX_HASH_BYTES])
{
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                           OSSL_PARAM_construct_end()};
    EVP_MAC *mac = has_context() ? EVP_MAC_fetch(NULL, "HMAC", NULL) : NULL;
    EVP_MAC_CTX *context = mac ? EVP_MAC_CTX_new(mac) : NULL;
    bool good = context && EVP_MAC_init(context, key, IBX_HASH_BYTES, params) == 1;
    for (int i = 0; good && i < count; i++)
        good = EVP_MAC_update(context, pieces[i].data, pieces[i].length) == 1;
    size_t written = 0;
    good = good && EVP_MAC_final(context, out, &written, IBX_HASH_BYTES) == 1;
    EVP_MAC_CTX_free(context);
    EVP_MAC_free(mac);
    if (!good)
        fill_unguessable(out);
}

void ibx_hkdf(const struct ibx_piece *secret, const struct ibx_piece *salt,
              const struct ibx_piece *info, uint8_t out[IBX_HASH_BYTES])
{
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)secret->data, secret->length),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, (void *)salt->data, salt->length),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)info->data, info->length),
        OSSL_PARAM_construct_end()};
    EVP_KDF *kdf = has_context() ? EVP_KDF_fetch(NULL, "HKDF", NULL) : NULL;
    EVP_KDF_CTX *context = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    bool good = context && EVP_KDF_derive(context, out, IBX_HASH_BYTES, params) == 1;
    EVP_KDF_CTX_free(context);
    EVP_KDF_free(kdf);
    if (!good)
        fill_unguessable(out);
}

/* OpenSSL's error is -ENOMEM or, for a reason that is not the operator's, -EIO. What it makes once
 * and for all it does not try again, and later failures do not say that memory was lacking then. */
static int no_crypto(const char *what, struct ibx_error *err)
{
    bool memory = false;
    struct rlimit space;
    for (unsigned long code; (code = ERR_get_error());)
        memory |= ERR_GET_REASON(code) == ERR_R_MALLOC_FAILURE;
    if (!memory && !getrlimit(RLIMIT_AS, &space) && space.rlim_cur != RLIM_INFINITY)
        return ibx_error_set(err, -ENOMEM, "OpenSSL fails to make %s, perhaps for lack of memory",
                             what);
    return memory ? ibx_error_set(err, -ENOMEM, "OpenSSL has no memory for %s", what)
                  : ibx_error_set(err, -EIO, "OpenSSL fails to make %s", what);
}

/* struct ibx_exchange is an EVP_PKEY. */
int ibx_exchange_create(struct ibx_exchange **exchange, uint8_t ours[IBX_PUBLIC_BYTES],
                        struct ibx_error *err)
{
    EVP_PKEY *pair = has_context() ? EVP_PKEY_Q_keygen(NULL, NULL, "X25519") : NULL;
    size_t length = IBX_PUBLIC_BYTES;
    if (!pair || EVP_PKEY_get_raw_public_key(pair, ours, &length) != 1) {
        EVP_PKEY_free(pair);
        return no_crypto("an X25519 key", err);
    }
    *exchange = (struct ibx_exchange *)pair;
    return 0;
}

int ibx_exchange_hold(struct ibx_exchange *exchange, struct ibx_error *err)
{
    if (EVP_PKEY_up_ref((EVP_PKEY *)exchange) == 1)
        return 0;
    return ibx_error_set(err, -EIO, "OpenSSL lends no X25519 key");
}

int ibx_exchange_secret(struct ibx_exchange *exchange, const uint8_t theirs[IBX_PUBLIC_BYTES],
                        uint8_t secret[IBX_HASH_BYTES], struct ibx_error *err)
{
    static const uint8_t zeros[IBX_HASH_BYTES];
    size_t length = IBX_HASH_BYTES;
    EVP_PKEY *peer = EVP_PKEY_new_raw_public_key_ex(NULL, "X25519", NULL, theirs, IBX_PUBLIC_BYTES);
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new((EVP_PKEY *)exchange, NULL);
    /* A public key of low order fails no sooner than in the last call. */
    const bool ready = peer && context && EVP_PKEY_derive_init(context) == 1 &&
                       EVP_PKEY_derive_set_peer(context, peer) == 1;
    bool good = ready && EVP_PKEY_derive(context, secret, &length) == 1 &&
                length == IBX_HASH_BYTES && CRYPTO_memcmp(secret, zeros, IBX_HASH_BYTES);
    EVP_PKEY_CTX_free(context);
    EVP_PKEY_free(peer);
    ERR_clear_error();
    if (!ready)
        return ibx_error_set(err, -ENOMEM, "OpenSSL has no memory for a key");
    return good ? 0 : ibx_error_set(err, -EPROTO, "its public key is of low order");
}

void ibx_exchange_destroy(struct ibx_exchange *exchange)
{
    EVP_PKEY_free((EVP_PKEY *)exchange);
}

bool ibx_hash_equal(const uint8_t a[IBX_HASH_BYTES], const uint8_t b[IBX_HASH_BYTES])
{
    return CRYPTO_memcmp(a, b, IBX_HASH_BYTES) == 0;
}

int ibx_random(void *out, size_t length, struct ibx_error *err)
{
    if (has_context() && RAND_bytes(out, (int)length) == 1)
        return 0;
    return no_crypto("random bytes", err);
}
