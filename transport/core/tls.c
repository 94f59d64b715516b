/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The handshake, by OpenSSL. */
#include "transport/core/tls_kernel.h"
#include "transport/core/tls_state.h"

#include "common/log.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#ifdef __aarch64__
#include <sys/auxv.h>
#endif

#define IDENTITY "ibx"

static _Atomic(SSL_CTX *) contexts[2]; /* by role; for the whole process */

/* Where the processor has no instructions for AES, ChaCha20 is several times as fast. */
static bool aes_is_fast(void)
{
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
    return getauxval(AT_HWCAP) & HWCAP_AES;
#else
    return false;
#endif
}

static SSL_SESSION *session_of(SSL *ssl)
{
    static const uint8_t suite[2] = {IBX_TLS_AES_128_GCM >> 8, IBX_TLS_AES_128_GCM & 0xff};
    const struct ibx_tls *tls = SSL_get_app_data(ssl);
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite); /* only its hash matters, SHA-256 */
    SSL_SESSION *session = SSL_SESSION_new();
    if (session && cipher && SSL_SESSION_set1_master_key(session, tls->psk, sizeof(tls->psk)) &&
        SSL_SESSION_set_cipher(session, cipher) &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static int client_psk(SSL *ssl, const EVP_MD *md, const unsigned char **identity, size_t *length,
                      SSL_SESSION **session)
{
    *session = !md || EVP_MD_is_a(md, "SHA256") ? session_of(ssl) : NULL;
    *identity = (const unsigned char *)IDENTITY;
    *length = strlen(IDENTITY);
    return *session != NULL;
}

static int server_psk(SSL *ssl, const unsigned char *identity, size_t length, SSL_SESSION **session)
{
    bool ours = length == strlen(IDENTITY) && !memcmp(identity, IDENTITY, length);
    *session = ours ? session_of(ssl) : NULL;
    return !ours || *session;
}

/* OpenSSL gives the secrets in a line of text: label, client's random, secret. */
static void secret_take(const SSL *ssl, const char *line)
{
    static const char *const labels[] = {"CLIENT_TRAFFIC_SECRET_0 ", "SERVER_TRAFFIC_SECRET_0 "};
    struct ibx_tls *tls = SSL_get_app_data(ssl);
    for (unsigned i = 0; i < 2; i++) {
        const char *hex = strrchr(line, ' ');
        size_t length = 0;
        if (!strncmp(line, labels[i], strlen(labels[i])) && hex &&
            OPENSSL_hexstr2buf_ex(tls->secrets[i], IBX_HASH_BYTES, &length, hex + 1, '\0') == 1 &&
            length == IBX_HASH_BYTES)
            tls->have_secrets |= 1u << i;
    }
}

static SSL_CTX *context_create(enum ibx_role role)
{
    const char *suites = aes_is_fast() ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                       : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
    bool server = role == IBX_ROLE_SERVER;
    SSL_CTX *context = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    if (!context || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(context, suites) != 1 ||
        SSL_CTX_set1_groups_list(context, "X25519") != 1 ||
        SSL_CTX_set_num_tickets(context, 0) != 1) {
        SSL_CTX_free(context);
        return NULL;
    }
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
    SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX);
    /* If one end lacks the instructions, both use ChaCha20. */
    if (server && !aes_is_fast())
        SSL_CTX_set_options(context, SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    /* A server that shows a certificate instead of the PSK is refused; ours has none to show. */
    SSL_CTX_set_verify(context, server ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_keylog_callback(context, secret_take);
    if (server)
        SSL_CTX_set_psk_find_session_callback(context, server_psk);
    else
        SSL_CTX_set_psk_use_session_callback(context, client_psk);
    return context;
}

/* The context is made for the first connection, and again for each further one until that works:
 * this process may have been out of memory. NULL: it does not work now. */
static SSL_CTX *context_of(enum ibx_role role)
{
    SSL_CTX *there = atomic_load(&contexts[role]);
    if (there)
        return there;
    SSL_CTX *made = context_create(role);
    if (!made || atomic_compare_exchange_strong(&contexts[role], &there, made))
        return made;
    SSL_CTX_free(made); /* another thread was first */
    return there;
}

static bool ssl_create(struct ibx_tls *tls)
{
    SSL_CTX *context = context_of(tls->role);
    tls->ssl = context ? SSL_new(context) : NULL;
    tls->from = BIO_new(BIO_s_mem());
    tls->into = BIO_new(BIO_s_mem());
    if (!tls->ssl || !tls->from || !tls->into) {
        BIO_free(tls->from);
        BIO_free(tls->into);
        return false;
    }
    SSL_set_bio(tls->ssl, tls->from, tls->into);
    if (SSL_set_app_data(tls->ssl, tls) != 1)
        return false;
    if (tls->role == IBX_ROLE_SERVER)
        SSL_set_accept_state(tls->ssl);
    else
        SSL_set_connect_state(tls->ssl);
    return true;
}

int ibx_tls_create(int fd, enum ibx_role role, const uint8_t psk[IBX_TLS_PSK_BYTES],
                   struct ibx_tls **out, struct ibx_error *err)
{
    struct ibx_tls *tls = ibx_secret_allocate(sizeof(*tls));
    if (tls) {
        ibx_tls_helpers_hold();
        tls->fd = fd;
        tls->role = role;
        memcpy(tls->psk, psk, sizeof(tls->psk));
        tls->sealed = malloc(IBX_TLS_RAW_BYTES + IBX_TLS_OVERHEAD + IBX_TLS_UPDATE_BYTES);
        tls->raw = malloc(IBX_TLS_RAW_BYTES);
    }
    if (!tls || !tls->sealed || !tls->raw || !ssl_create(tls)) {
        ERR_clear_error();
        ibx_tls_destroy(tls);
        return ibx_error_set(err, -ENOMEM,
                             "no encrypted connection can be made: OpenSSL %s has no memory, or "
                             "not the ciphers of TLS 1.3",
                             OpenSSL_version(OPENSSL_VERSION_STRING));
    }
    *out = tls;
    return 0;
}

void ibx_tls_destroy(struct ibx_tls *tls)
{
    if (!tls)
        return;
    ibx_tls_helpers_release();
    SSL_free(tls->ssl);
    ibx_tls_direction_fini(&tls->out);
    ibx_tls_direction_fini(&tls->in);
    free(tls->sealed);
    if (tls->raw)
        OPENSSL_cleanse(tls->raw, tls->raw_end);
    free(tls->raw);
    ibx_secret_free(tls);
}

void ibx_tls_use_kernel(struct ibx_tls *tls)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const char *why;
    tls->kernel_wanted = ibx_tls_kernel_works(&why);
    if (!tls->kernel_wanted && !atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "ktls : yes has no effect, because the kernel's TLS cannot be used: %s", why);
}

/* Sends what OpenSSL has written in the handshake. */
static int flush_handshake(struct ibx_tls *tls)
{
    for (;;) {
        int rc = ibx_tls_flush(tls);
        if (rc)
            return rc;
        int n = BIO_read(tls->into, tls->sealed, IBX_TLS_RAW_BYTES);
        if (n <= 0)
            return 0;
        tls->sealed_end = (size_t)n;
    }
}

/* One read of the socket, for OpenSSL. */
static int feed_handshake(struct ibx_tls *tls)
{
    ssize_t n;
    do {
        n = recv(tls->fd, tls->raw, IBX_TLS_RECORD_MAX, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n && errno == EAGAIN ? -EAGAIN : -ECONNRESET;
    return BIO_write(tls->from, tls->raw, (int)n) == n ? 0 : -ENOMEM;
}

/* -EACCES: a binder or a MAC does not match, as found here or reported by the peer. -ENOMEM.
 * Otherwise -EPROTO. */
static int handshake_failure(void)
{
    unsigned long code = ERR_peek_error();
    int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
    bool memory = true;
    for (; code; code = ERR_get_error())
        memory = memory && ERR_GET_REASON(code) != ERR_R_MALLOC_FAILURE;
    if (!memory)
        return -ENOMEM;
    switch (reason) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC:
    case SSL_R_DIGEST_CHECK_FAILED:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
    case SSL_R_SSLV3_ALERT_BAD_RECORD_MAC:
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
        return -EACCES;
    default:
        return -EPROTO;
    }
}

/* From here on only the ciphers of OpenSSL are used. */
static int handshake_done(struct ibx_tls *tls)
{
    const SSL_CIPHER *cipher = SSL_get_current_cipher(tls->ssl);
    enum ibx_tls_suite suite = SSL_CIPHER_get_protocol_id(cipher);
    unsigned mine = tls->role == IBX_ROLE_SERVER;
    /* Without the PSK nobody has proven anything. */
    if (!SSL_session_reused(tls->ssl) || SSL_version(tls->ssl) != TLS1_3_VERSION ||
        (suite != IBX_TLS_AES_128_GCM && suite != IBX_TLS_CHACHA20_POLY1305) ||
        tls->have_secrets != 3 || SSL_pending(tls->ssl))
        return -EPROTO;
    if (BIO_pending(tls->from) > 0) {
        int n = BIO_read(tls->from, tls->raw, IBX_TLS_RAW_BYTES);
        tls->raw_end = n > 0 ? (size_t)n : 0;
    }
    int rc = ibx_tls_direction_init(&tls->out, true, suite, tls->secrets[mine]);
    if (!rc)
        rc = ibx_tls_direction_init(&tls->in, false, suite, tls->secrets[!mine]);
    tls->kernel = !rc && tls->kernel_wanted && !ibx_tls_kernel_seal(tls->fd, &tls->out);
    OPENSSL_cleanse(tls->secrets, sizeof(tls->secrets));
    OPENSSL_cleanse(tls->psk, sizeof(tls->psk));
    SSL_free(tls->ssl);
    tls->ssl = NULL;
    return rc;
}

int ibx_tls_handshake(struct ibx_tls *tls, short *events)
{
    while (tls->ssl) {
        ERR_clear_error();
        int done = SSL_do_handshake(tls->ssl);
        int error = done == 1 ? 0 : SSL_get_error(tls->ssl, done);
        int rc = flush_handshake(tls);
        if (error && error != SSL_ERROR_WANT_READ)
            return handshake_failure();
        *events = POLLOUT;
        if (rc)
            return rc;
        if (done == 1)
            return handshake_done(tls);
        *events = POLLIN;
        rc = feed_handshake(tls);
        if (rc)
            return rc;
    }
    return 0;
}

/* OpenSSL derives the traffic secrets once the binder in the ClientHello has proved right. */
bool ibx_tls_peer_has_key(const struct ibx_tls *tls)
{
    return tls && (tls->have_secrets || !tls->ssl);
}

const char *ibx_tls_description(const struct ibx_tls *tls)
{
    return tls->kernel                             ? "TLS 1.3 AES-128-GCM by the kernel"
           : tls->out.suite == IBX_TLS_AES_128_GCM ? "TLS 1.3 AES-128-GCM"
                                                   : "TLS 1.3 ChaCha20-Poly1305";
}
