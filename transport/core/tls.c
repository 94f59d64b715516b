/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "transport/core/tls.h"

#include "transport/core/tls_record.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#ifdef __aarch64__
#include <sys/auxv.h>
#endif

/* Records that go to the socket in one call, and room for so many that come from it. */
#define GATHERED  16u
#define RAW_BYTES (GATHERED * IBX_TLS_RECORD_MAX)
/* Up to here a record is opened inside and copied, so that what TLS says itself touches no memory
 * of the caller's. */
#define SMALL_BYTES 64u
/* A key seals half of the 2^24.5 records that RFC 8446, 5.5, allows AES-GCM: 190 GB. */
#ifndef IBX_TLS_KEY_RECORDS
#define IBX_TLS_KEY_RECORDS (1u << 23)
#endif

#define IDENTITY          "ibx"
#define KEY_UPDATE        24
#define UPDATE_BYTES      5u
#define ALERT_CLOSE       0
#define ALERT_BAD_RECORD  20
#define ALERT_BAD_DECRYPT 51

struct ibx_tls {
    int fd;
    enum ibx_role role;
    uint8_t psk[IBX_TLS_PSK_BYTES];
    SSL *ssl;         /* until the handshake is done */
    BIO *from, *into; /* its bytes, of `ssl` */
    /* From the handshake: what the client and the server seal with. */
    uint8_t secrets[2][IBX_HASH_BYTES];
    unsigned have_secrets;

    struct ibx_tls_direction out, in;
    int send_failed;           /* negative errno */
    atomic_bool update_wanted; /* by the peer */
    uint8_t *sealed;           /* GATHERED records, and a KeyUpdate before them */
    size_t sealed_at, sealed_end;

    bool closed;     /* the peer did, in order */
    int read_failed; /* negative errno */
    uint8_t *raw;    /* what the socket gave */
    size_t raw_at, raw_end;
    const uint8_t *plain; /* in it: opened, not taken yet */
    size_t plain_left;
};

/* -------------------------------------------------------------------- the handshake */

static SSL_CTX *contexts[2]; /* by role; for the whole process */
static pthread_once_t contexts_once = PTHREAD_ONCE_INIT;

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
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite); /* it says only: SHA-256 */
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
    /* One end without the instructions decides for both. */
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

static void contexts_create(void)
{
    contexts[IBX_ROLE_SERVER] = context_create(IBX_ROLE_SERVER);
    contexts[IBX_ROLE_CLIENT] = context_create(IBX_ROLE_CLIENT);
}

static bool ssl_create(struct ibx_tls *tls)
{
    pthread_once(&contexts_once, contexts_create);
    tls->ssl = contexts[tls->role] ? SSL_new(contexts[tls->role]) : NULL;
    tls->from = BIO_new(BIO_s_mem());
    tls->into = BIO_new(BIO_s_mem());
    if (!tls->ssl || !tls->from || !tls->into) {
        BIO_free(tls->from);
        BIO_free(tls->into);
        return false;
    }
    SSL_set_bio(tls->ssl, tls->from, tls->into);
    SSL_set_app_data(tls->ssl, tls);
    if (tls->role == IBX_ROLE_SERVER)
        SSL_set_accept_state(tls->ssl);
    else
        SSL_set_connect_state(tls->ssl);
    return true;
}

int ibx_tls_create(int fd, enum ibx_role role, const uint8_t psk[IBX_TLS_PSK_BYTES],
                   struct ibx_tls **out, struct ibx_error *err)
{
    struct ibx_tls *tls = calloc(1, sizeof(*tls));
    if (tls) {
        tls->fd = fd;
        tls->role = role;
        memcpy(tls->psk, psk, sizeof(tls->psk));
        tls->sealed = malloc(RAW_BYTES + IBX_TLS_OVERHEAD + UPDATE_BYTES);
        tls->raw = malloc(RAW_BYTES);
    }
    if (!tls || !tls->sealed || !tls->raw || !ssl_create(tls)) {
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
    SSL_free(tls->ssl);
    ibx_tls_direction_fini(&tls->out);
    ibx_tls_direction_fini(&tls->in);
    free(tls->sealed);
    if (tls->raw)
        OPENSSL_cleanse(tls->raw, tls->raw_end);
    free(tls->raw);
    OPENSSL_cleanse(tls, sizeof(*tls));
    free(tls);
}

/* What is in `sealed`, to the socket: 0 when it has all. */
static int flush(struct ibx_tls *tls)
{
    while (tls->sealed_at < tls->sealed_end) {
        ssize_t n = send(tls->fd, tls->sealed + tls->sealed_at, tls->sealed_end - tls->sealed_at,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EPIPE ? -ECONNRESET : -errno;
        tls->sealed_at += (size_t)n;
    }
    tls->sealed_at = tls->sealed_end = 0;
    return 0;
}

/* What OpenSSL has to say in the handshake. */
static int flush_handshake(struct ibx_tls *tls)
{
    for (;;) {
        int rc = flush(tls);
        if (rc)
            return rc;
        int n = BIO_read(tls->into, tls->sealed, RAW_BYTES);
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

/* Binders or MACs that do not fit, found here or told by the peer. */
static int handshake_failure(void)
{
    unsigned long code = ERR_peek_error();
    int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
    ERR_clear_error();
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

/* From here on OpenSSL only lends its ciphers. */
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
        int n = BIO_read(tls->from, tls->raw, RAW_BYTES);
        tls->raw_end = n > 0 ? (size_t)n : 0;
    }
    int rc = ibx_tls_direction_init(&tls->out, true, suite, tls->secrets[mine]);
    if (!rc)
        rc = ibx_tls_direction_init(&tls->in, false, suite, tls->secrets[!mine]);
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

const char *ibx_tls_description(const struct ibx_tls *tls)
{
    return tls->out.suite == IBX_TLS_AES_128_GCM ? "TLS 1.3 AES-128-GCM"
                                                 : "TLS 1.3 ChaCha20-Poly1305";
}

/* ------------------------------------------------------------------------- sending */

static bool seal_next(struct ibx_tls *tls, enum ibx_tls_content content,
                      struct ibx_tls_cursor *cursor, size_t n)
{
    size_t size = ibx_tls_seal(&tls->out, content, cursor, n, tls->sealed + tls->sealed_end);
    tls->sealed_end += size;
    if (!size)
        tls->send_failed = -EIO;
    return size;
}

static bool seal_own(struct ibx_tls *tls, enum ibx_tls_content content, const void *bytes, size_t n)
{
    struct iovec iov = {(void *)(uintptr_t)bytes, n};
    return seal_next(tls, content, &(struct ibx_tls_cursor){&iov, 1, 0}, n);
}

static void key_renew(struct ibx_tls *tls)
{
    static const uint8_t update[UPDATE_BYTES] = {KEY_UPDATE, 0, 0, 1, 0}; /* the peer need not */
    atomic_store(&tls->update_wanted, false);
    if (seal_own(tls, IBX_TLS_HANDSHAKE, update, sizeof(update)) &&
        ibx_tls_direction_update(&tls->out))
        tls->send_failed = -EIO;
}

ssize_t ibx_tls_send(struct ibx_tls *tls, const struct iovec *iov, int n)
{
    struct ibx_tls_cursor cursor = {iov, n, 0};
    size_t taken = 0, next;
    int rc = tls->send_failed ? tls->send_failed : flush(tls);
    if (rc) {
        tls->send_failed = rc == -EAGAIN ? 0 : rc;
        return rc;
    }
    if (n && (tls->out.records >= IBX_TLS_KEY_RECORDS || atomic_load(&tls->update_wanted)))
        key_renew(tls);
    for (unsigned i = 0; i < GATHERED && (next = ibx_tls_record_length(&cursor)); i++) {
        if (tls->send_failed || !seal_next(tls, IBX_TLS_DATA, &cursor, next))
            break;
        taken += next;
    }
    rc = tls->send_failed ? tls->send_failed : flush(tls);
    if (!rc || rc == -EAGAIN)
        return (ssize_t)taken;
    tls->send_failed = rc;
    return rc;
}

bool ibx_tls_unsent(const struct ibx_tls *tls)
{
    return tls->sealed_at < tls->sealed_end;
}

void ibx_tls_finish(struct ibx_tls *tls)
{
    static const uint8_t close[] = {1, ALERT_CLOSE};
    if (tls->ssl || tls->send_failed || flush(tls))
        return;
    if (seal_own(tls, IBX_TLS_ALERT, close, sizeof(close)))
        flush(tls);
    tls->send_failed = -EPIPE;
}

/* ----------------------------------------------------------------------- receiving */

/* What TLS says itself. */
static int take_own(struct ibx_tls *tls, enum ibx_tls_content content, const uint8_t *bytes,
                    size_t n)
{
    if (content == IBX_TLS_ALERT && n == 2) {
        tls->closed = bytes[1] == ALERT_CLOSE;
        bool changed = bytes[1] == ALERT_BAD_RECORD || bytes[1] == ALERT_BAD_DECRYPT;
        return tls->closed ? 0 : changed ? -EBADMSG : -ECONNRESET;
    }
    if (content == IBX_TLS_HANDSHAKE && n == UPDATE_BYTES && bytes[0] == KEY_UPDATE && !bytes[1] &&
        !bytes[2] && bytes[3] == 1 && bytes[4] <= 1) {
        if (bytes[4])
            atomic_store(&tls->update_wanted, true);
        return ibx_tls_direction_update(&tls->in) ? -EIO : 0;
    }
    return -EBADMSG;
}

/* Opens one whole record: where it belongs, when it fits there, otherwise inside. */
static int open_next(struct ibx_tls *tls, struct ibx_tls_cursor *cursor, size_t size, size_t *got)
{
    uint8_t *record = tls->raw + tls->raw_at;
    size_t n = size - IBX_TLS_OVERHEAD;
    struct iovec here = {record + IBX_TLS_HEADER_BYTES, n};
    struct ibx_tls_cursor inside = {&here, 1, 0};
    bool direct = n > SMALL_BYTES && n <= ibx_tls_cursor_room(cursor);
    enum ibx_tls_content content;
    int rc = ibx_tls_open(&tls->in, record, size, direct ? cursor : &inside, &content);
    if (rc)
        return rc;
    tls->raw_at += size;
    if (direct && content == IBX_TLS_DATA) {
        *got += n;
        return 0;
    }
    if (content != IBX_TLS_DATA)
        return direct ? -EBADMSG : take_own(tls, content, here.iov_base, n);
    tls->plain = here.iov_base;
    tls->plain_left = n;
    return 0;
}

static void plain_take(struct ibx_tls *tls, struct ibx_tls_cursor *cursor, size_t *got)
{
    while (tls->plain_left && cursor->left) {
        size_t there = cursor->iov->iov_len - cursor->at;
        size_t n = there < tls->plain_left ? there : tls->plain_left;
        if (n)
            memcpy((uint8_t *)cursor->iov->iov_base + cursor->at, tls->plain, n);
        tls->plain += n;
        tls->plain_left -= n;
        *got += n;
        ibx_tls_cursor_move(cursor, n);
    }
}

/* Takes what is there already; the number of bytes, or why there will be no more. */
static ssize_t take(struct ibx_tls *tls, struct ibx_tls_cursor *cursor)
{
    size_t got = 0;
    while (!tls->closed && !tls->read_failed) {
        plain_take(tls, cursor, &got);
        if (!cursor->left || tls->plain_left)
            break;
        size_t have = tls->raw_end - tls->raw_at;
        ssize_t size = ibx_tls_record_size(tls->raw + tls->raw_at, have);
        if (size >= 0 && (!size || (size_t)size > have))
            break;
        tls->read_failed = size < 0 ? (int)size : open_next(tls, cursor, (size_t)size, &got);
    }
    return got ? (ssize_t)got : tls->read_failed;
}

ssize_t ibx_tls_receive(struct ibx_tls *tls, const struct iovec *iov, int n)
{
    struct ibx_tls_cursor cursor = {iov, n, 0};
    ibx_tls_cursor_move(&cursor, 0);
    ssize_t got = take(tls, &cursor);
    if (got || tls->closed || !cursor.left)
        return got || tls->closed ? got : -EAGAIN;
    tls->raw_end -= tls->raw_at;
    memmove(tls->raw, tls->raw + tls->raw_at, tls->raw_end);
    tls->raw_at = 0;
    do {
        got = recv(tls->fd, tls->raw + tls->raw_end, RAW_BYTES - tls->raw_end, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) {
        tls->read_failed = got && errno == EAGAIN ? 0 : got ? -errno : -ECONNRESET;
        return tls->read_failed ? tls->read_failed : -EAGAIN;
    }
    tls->raw_end += (size_t)got;
    got = take(tls, &cursor);
    return got || tls->closed ? got : -EAGAIN;
}

bool ibx_tls_readable(const struct ibx_tls *tls)
{
    size_t have = tls->raw_end - tls->raw_at;
    ssize_t size = ibx_tls_record_size(tls->raw + tls->raw_at, have);
    return tls->plain_left || tls->closed || tls->read_failed || size < 0 ||
           (size && (size_t)size <= have);
}
