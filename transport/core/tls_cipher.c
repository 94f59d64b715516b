/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "transport/core/tls_cipher.h"

#include "transport/core/crypto.h"
#include "transport/transport.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#ifdef IBX_WITH_IPSEC_MB
#include <dlfcn.h>
#include <intel-ipsec-mb.h>
#include <pthread.h>

#define OPENSSL_WITH_VECTORS 0x30100000ul
#define NEEDED               (IMB_FEATURE_AVX512_SKX | IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ)
#define VECTOR_BYTES         64u

/* Keys and the state of a record, in memory for secrets. */
struct vectors {
    _Alignas(VECTOR_BYTES) struct gcm_key_data key;
    struct gcm_context_data record;
};
#endif

struct ibx_tls_cipher {
    enum ibx_tls_suite suite;
    bool seals;
    EVP_CIPHER_CTX *openssl; /* NULL: ipsec-mb */
#ifdef IBX_WITH_IPSEC_MB
    void *secret; /* around `vectors` */
    struct vectors *vectors;
#endif
};

/* ----------------------------------------------------------------------- ipsec-mb */

#ifdef IBX_WITH_IPSEC_MB

/* ipsec-mb's table of functions. Those for GCM keep no state in it, so all threads share it. NULL:
 * OpenSSL is used. */
static const IMB_MGR *table;
static pthread_once_t loaded = PTHREAD_ONCE_INIT;

static const IMB_MGR *library_load(void)
{
    void *library = dlopen("libIPSec_MB.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        return NULL;
    IMB_MGR *(*allocate)(uint64_t) = NULL;
    void (*begin)(IMB_MGR *, IMB_ARCH *) = NULL;
    unsigned (*version)(void) = NULL;
    /* POSIX allows the conversion of what dlsym() returns, ISO C does not. */
    *(void **)&allocate = dlsym(library, "alloc_mb_mgr");
    *(void **)&begin = dlsym(library, "init_mb_mgr_auto");
    *(void **)&version = dlsym(library, "imb_get_version");
    /* The layout of the table depends on the version. */
    IMB_MGR *manager = NULL;
    if (allocate && begin && version && version() == IMB_VERSION_NUM)
        manager = allocate(0);
    if (!manager)
        return NULL;
    IMB_ARCH arch;
    begin(manager, &arch);
    return (manager->features & NEEDED) == NEEDED && !manager->imb_errno ? manager : NULL;
}

static struct {
    const char *name, *remedy;
} answer;

static void load(void)
{
    __builtin_cpu_init();
    if (OpenSSL_version_num() >= OPENSSL_WITH_VECTORS) {
        answer.name = "OpenSSL 3.1 or newer";
    } else if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("vpclmulqdq")) {
        answer.name = "OpenSSL; this processor has no AES in 512-bit vectors";
    } else {
        table = library_load();
        answer.name = table ? "ipsec-mb, AES in 512-bit vectors" : "OpenSSL before 3.1";
        answer.remedy = table ? NULL : "ipsec-mb is three times as fast: apt install libipsec-mb1";
    }
}

const char *ibx_cipher_description(const char **remedy)
{
    pthread_once(&loaded, load);
    *remedy = answer.remedy;
    return answer.name;
}

static bool vectors_create(struct ibx_tls_cipher *cipher, enum ibx_tls_engine engine)
{
    if (cipher->suite != IBX_TLS_AES_128_GCM || engine != IBX_TLS_FASTEST)
        return false;
    pthread_once(&loaded, load);
    cipher->secret = table ? ibx_secret_allocate(sizeof(struct vectors) + VECTOR_BYTES) : NULL;
    if (!cipher->secret)
        return false;
    uintptr_t at = (uintptr_t)cipher->secret + VECTOR_BYTES - 1;
    cipher->vectors = (struct vectors *)(at - at % VECTOR_BYTES);
    return true;
}

#else

const char *ibx_cipher_description(const char **remedy)
{
    *remedy = NULL;
    return "OpenSSL; built without libipsec-mb";
}

#endif

/* ------------------------------------------------------------------------ OpenSSL */

static bool openssl_create(struct ibx_tls_cipher *cipher)
{
    bool aes = cipher->suite == IBX_TLS_AES_128_GCM;
    cipher->openssl = EVP_CIPHER_CTX_new();
    return cipher->openssl &&
           EVP_CipherInit_ex(cipher->openssl, aes ? EVP_aes_128_gcm() : EVP_chacha20_poly1305(),
                             NULL, NULL, NULL, cipher->seals) == 1;
}

/* --------------------------------------------------------------------------- both */

struct ibx_tls_cipher *ibx_tls_cipher_create(enum ibx_tls_suite suite, enum ibx_tls_engine engine,
                                             bool seals, const uint8_t *key)
{
    struct ibx_tls_cipher *cipher = calloc(1, sizeof(*cipher));
    if (!cipher)
        return NULL;
    cipher->suite = suite;
    cipher->seals = seals;
    bool good = false;
#ifdef IBX_WITH_IPSEC_MB
    good = vectors_create(cipher, engine);
#else
    (void)engine;
#endif
    if ((good || openssl_create(cipher)) && ibx_tls_cipher_rekey(cipher, key))
        return cipher;
    ibx_tls_cipher_destroy(cipher);
    return NULL;
}

void ibx_tls_cipher_destroy(struct ibx_tls_cipher *cipher)
{
    if (!cipher)
        return;
    EVP_CIPHER_CTX_free(cipher->openssl);
#ifdef IBX_WITH_IPSEC_MB
    ibx_secret_free(cipher->secret);
#endif
    free(cipher);
}

bool ibx_tls_cipher_is_ipsec_mb(const struct ibx_tls_cipher *cipher)
{
    return !cipher->openssl;
}

bool ibx_tls_cipher_rekey(struct ibx_tls_cipher *cipher, const uint8_t *key)
{
#ifdef IBX_WITH_IPSEC_MB
    if (!cipher->openssl) {
        IMB_AES128_GCM_PRE(table, key, &cipher->vectors->key);
        return true;
    }
#endif
    return EVP_CipherInit_ex(cipher->openssl, NULL, NULL, key, NULL, -1) == 1;
}

bool ibx_tls_cipher_begin(struct ibx_tls_cipher *cipher, const uint8_t nonce[IBX_TLS_IV_BYTES],
                          const void *header, size_t n)
{
#ifdef IBX_WITH_IPSEC_MB
    if (!cipher->openssl) {
        struct vectors *v = cipher->vectors;
        IMB_AES128_GCM_INIT(table, &v->key, &v->record, nonce, header, n);
        return true;
    }
#endif
    int done;
    return EVP_CipherInit_ex(cipher->openssl, NULL, NULL, NULL, nonce, -1) == 1 &&
           EVP_CipherUpdate(cipher->openssl, NULL, &done, header, (int)n) == 1;
}

bool ibx_tls_cipher_update(struct ibx_tls_cipher *cipher, uint8_t *to, const uint8_t *from,
                           size_t n)
{
#ifdef IBX_WITH_IPSEC_MB
    if (!cipher->openssl) {
        struct vectors *v = cipher->vectors;
        if (cipher->seals)
            IMB_AES128_GCM_ENC_UPDATE(table, &v->key, &v->record, to, from, n);
        else
            IMB_AES128_GCM_DEC_UPDATE(table, &v->key, &v->record, to, from, n);
        return true;
    }
#endif
    int done;
    return EVP_CipherUpdate(cipher->openssl, to, &done, from, (int)n) == 1;
}

bool ibx_tls_cipher_seal_end(struct ibx_tls_cipher *cipher, uint8_t tag[IBX_TLS_TAG_BYTES])
{
#ifdef IBX_WITH_IPSEC_MB
    if (!cipher->openssl) {
        struct vectors *v = cipher->vectors;
        IMB_AES128_GCM_ENC_FINALIZE(table, &v->key, &v->record, tag, IBX_TLS_TAG_BYTES);
        return true;
    }
#endif
    uint8_t none[EVP_MAX_BLOCK_LENGTH];
    int done;
    return EVP_CipherFinal_ex(cipher->openssl, none, &done) == 1 &&
           EVP_CIPHER_CTX_ctrl(cipher->openssl, EVP_CTRL_AEAD_GET_TAG, IBX_TLS_TAG_BYTES, tag) == 1;
}

bool ibx_tls_cipher_open_end(struct ibx_tls_cipher *cipher, const uint8_t tag[IBX_TLS_TAG_BYTES])
{
    uint8_t own[EVP_MAX_BLOCK_LENGTH];
#ifdef IBX_WITH_IPSEC_MB
    if (!cipher->openssl) {
        struct vectors *v = cipher->vectors;
        IMB_AES128_GCM_DEC_FINALIZE(table, &v->key, &v->record, own, IBX_TLS_TAG_BYTES);
        return !CRYPTO_memcmp(own, tag, IBX_TLS_TAG_BYTES);
    }
#endif
    int done;
    memcpy(own, tag, IBX_TLS_TAG_BYTES);
    return EVP_CIPHER_CTX_ctrl(cipher->openssl, EVP_CTRL_AEAD_SET_TAG, IBX_TLS_TAG_BYTES, own) ==
               1 &&
           EVP_CipherFinal_ex(cipher->openssl, own, &done) == 1;
}
