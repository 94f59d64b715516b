/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* TLS over a socket: two ends of ibx with a relay between them, and an end of OpenSSL. */
#include "transport/core/tls.h"

#include "tests/fixtures/tls_pair.h"
#include "transport/core/tls_record.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define WORDS      100u
#define MOST       (3u << 20)
#define BASE_BYTES 2000u /* more than a handshake and the words have in one direction */

/* ------------------------------------------------------------------------ records */

/* RFC 8448, chapter 3: the client's application data. */
static const uint8_t rfc_secret[] = {
    0x9e, 0x40, 0x64, 0x6c, 0xe7, 0x9a, 0x7f, 0x9d, 0xc0, 0x5a, 0xf8, 0x88, 0x9b, 0xce, 0x65, 0x52,
    0x87, 0x5a, 0xfa, 0x0b, 0x06, 0xdf, 0x00, 0x87, 0xf7, 0x92, 0xeb, 0xb7, 0xc1, 0x75, 0x04, 0xa5};
static const uint8_t rfc_record[] = {
    0x17, 0x03, 0x03, 0x00, 0x43, 0xa2, 0x3f, 0x70, 0x54, 0xb6, 0x2c, 0x94, 0xd0, 0xaf, 0xfa,
    0xfe, 0x82, 0x28, 0xba, 0x55, 0xcb, 0xef, 0xac, 0xea, 0x42, 0xf9, 0x14, 0xaa, 0x66, 0xbc,
    0xab, 0x3f, 0x2b, 0x98, 0x19, 0xa8, 0xa5, 0xb4, 0x6b, 0x39, 0x5b, 0xd5, 0x4a, 0x9a, 0x20,
    0x44, 0x1e, 0x2b, 0x62, 0x97, 0x4e, 0x1f, 0x5a, 0x62, 0x92, 0xa2, 0x97, 0x70, 0x14, 0xbd,
    0x1e, 0x3d, 0xea, 0xe6, 0x3a, 0xee, 0xbb, 0x21, 0x69, 0x49, 0x15, 0xe4};

static void test_records_are_those_of_the_rfc(void **state)
{
    (void)state;
    struct ibx_tls_direction out, in;
    uint8_t text[50], record[sizeof(rfc_record)], back[sizeof(text)];
    for (unsigned i = 0; i < sizeof(text); i++)
        text[i] = (uint8_t)i;
    assert_int_equal(ibx_tls_direction_init(&out, true, IBX_TLS_AES_128_GCM, rfc_secret), 0);
    assert_int_equal(ibx_tls_direction_init(&in, false, IBX_TLS_AES_128_GCM, rfc_secret), 0);
    struct iovec pieces[] = {{text, 7}, {NULL, 0}, {text + 7, 43}};
    struct ibx_tls_job job = {
        .text = {pieces, 3, 0}, .record = record, .length = sizeof(text), .content = IBX_TLS_DATA};
    assert_int_equal(ibx_tls_record_length(&job.text), sizeof(text));
    for (unsigned worker = 0; worker < IBX_TLS_WORKERS; worker++) {
        memset(record, 0, sizeof(record));
        ibx_tls_seal(&out, worker, &job);
        assert_int_equal(job.status, 0);
        assert_memory_equal(record, rfc_record, sizeof(record));
    }

    assert_int_equal(ibx_tls_record_size(record, 4), 0);
    assert_int_equal(ibx_tls_record_size(record, 5), sizeof(record));
    struct iovec room[] = {{back, 49}, {back + 49, 1}};
    job.text = (struct ibx_tls_cursor){room, 2, 0};
    for (unsigned worker = 0; worker < IBX_TLS_WORKERS; worker++) {
        job.content = 0;
        ibx_tls_open(&in, worker, &job);
        assert_int_equal(job.status, 0);
        assert_int_equal(job.content, IBX_TLS_DATA);
        assert_memory_equal(back, text, sizeof(text));
    }
    /* The same bytes fail as the second record, and leave no plain text behind. */
    job.number = 1;
    ibx_tls_open(&in, 0, &job);
    assert_int_equal(job.status, -EBADMSG);
    memset(text, 0, sizeof(text));
    assert_memory_equal(back, text, sizeof(text));
    ibx_tls_direction_fini(&out);
    ibx_tls_direction_fini(&in);
}

static void test_malformed_records_are_refused(void **state)
{
    (void)state;
    static const uint8_t bad[][5] = {{0x16, 3, 3, 0, 0x43}, {0x17, 3, 1, 0, 0x43},
                                     {0x17, 3, 3, 0, 16},   {0x17, 3, 3, 0x40, 0x12},
                                     {0x17, 3, 3, 0xff, 0}, {0x15, 3, 3, 0, 2}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(ibx_tls_record_size(bad[i], 5), -EBADMSG);
    assert_int_equal(ibx_tls_record_size((const uint8_t[]){0x17, 3, 3, 0x40, 0x11}, 5), 0x4016);
}

/* A long piece starts a new record, so that it can be decrypted in place. */
static void test_long_pieces_start_records(void **state)
{
    (void)state;
    static uint8_t bytes[100000];
    struct iovec pieces[] = {{bytes, 32}, {bytes, 40000}, {bytes, 32}, {bytes, 100}};
    struct ibx_tls_cursor cursor = {pieces, 4, 0};
    static const size_t expected[] = {32, 16384, 16384, 40000 - 32768 + 132};
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        assert_int_equal(ibx_tls_record_length(&cursor), expected[i]);
        ibx_tls_cursor_move(&cursor, expected[i]);
    }
    assert_int_equal(ibx_tls_record_length(&cursor), 0);
}

/* ----------------------------------------------------------------------- two ends */

static uint8_t words[2][WORDS];

/* Both send their words. Each must receive a prefix of the other's, and then the end. */
static void talk(struct tls_pair *pair)
{
    for (unsigned i = 0; i < 2; i++) {
        struct iovec iov = {words[i], WORDS};
        if (!pair->status[i])
            assert_true(ibx_tls_send(pair->tls[i], &iov, 1) != 0);
    }
    for (unsigned i = 0; i < 2; i++) {
        uint8_t heard[2 * WORDS];
        size_t got = 0;
        while (!pair->status[i]) {
            tls_pair_relay(pair);
            struct iovec iov = {heard + got, sizeof(heard) - got};
            ssize_t n = ibx_tls_receive(pair->tls[i], &iov, 1);
            if (n <= 0) {
                pair->status[i] = (int)n;
                break;
            }
            got += (size_t)n;
        }
        assert_true(got <= WORDS);
        assert_memory_equal(heard, words[!i], got);
        pair->heard[i] = got;
    }
}

static void test_two_ends_talk(void **state)
{
    (void)state;
    for (unsigned unix_socket = 0; unix_socket < 2; unix_socket++) {
        struct tls_pair pair;
        tls_pair_open(&pair, unix_socket, tls_key, tls_key);
        tls_pair_shake(&pair);
        assert_int_equal(pair.status[0], 0);
        assert_int_equal(pair.status[1], 0);
        assert_false(ibx_tls_readable(pair.tls[0]));
        assert_string_equal(ibx_tls_description(pair.tls[0]), ibx_tls_description(pair.tls[1]));
        talk(&pair);
        assert_int_equal(pair.heard[0], WORDS);
        assert_int_equal(pair.heard[1], WORDS);
        assert_int_equal(pair.status[0], -EAGAIN);
        tls_pair_close(&pair);
    }
}

static void test_another_key_is_refused(void **state)
{
    (void)state;
    uint8_t other[IBX_TLS_PSK_BYTES];
    memcpy(other, tls_key, sizeof(other));
    other[31] ^= 1;
    struct tls_pair pair;
    tls_pair_open(&pair, false, tls_key, other);
    tls_pair_shake(&pair);
    assert_int_equal(pair.status[0], -EACCES);
    assert_int_equal(pair.status[1], -EACCES);
    tls_pair_close(&pair);
}

static void flip_at(unsigned from, size_t offset)
{
    struct tls_pair pair;
    tls_pair_open(&pair, true, tls_key, tls_key);
    pair.relay[from].flip = offset;
    tls_pair_shake(&pair);
    talk(&pair);
    tls_pair_cut(&pair);
    if (pair.relay[from].passed > offset) {
        /* The receiver of that byte knows whether it came after its own handshake. */
        int status = pair.status[!from];
        assert_true(status == -EBADMSG || status == -EACCES || status == -EPROTO ||
                    status == -ECONNRESET || status == -EAGAIN);
        /* Exception: the third byte of a hello is a version that TLS 1.3 ignores. */
        assert_true(pair.heard[!from] < WORDS || offset == 2);
    }
    tls_pair_close(&pair);
}

/* Every byte of both directions, of the handshake and after it. */
static void test_every_flipped_byte_is_noticed(void **state)
{
    (void)state;
    struct tls_pair pair;
    tls_pair_open(&pair, true, tls_key, tls_key);
    tls_pair_shake(&pair);
    talk(&pair);
    size_t bytes[2] = {pair.relay[0].passed, pair.relay[1].passed};
    tls_pair_close(&pair);
    for (unsigned from = 0; from < 2; from++) {
        assert_in_range(bytes[from], 3 * WORDS / 2, BASE_BYTES);
        for (size_t i = 0; i < bytes[from]; i++)
            flip_at(from, i);
    }
}

/* A connection that ends without close_notify counts as broken, wherever it is cut. */
static void test_every_cut_is_noticed(void **state)
{
    (void)state;
    for (size_t at = 0; at < BASE_BYTES; at += 3) {
        struct tls_pair pair;
        tls_pair_open(&pair, true, tls_key, tls_key);
        pair.relay[0].limit = at;
        tls_pair_shake(&pair);
        talk(&pair);
        tls_pair_cut(&pair);
        uint8_t more[WORDS];
        struct iovec iov = {more, sizeof(more)};
        if (pair.status[1] == -EAGAIN)
            pair.status[1] = tls_pair_done(&pair, 1) ? (int)ibx_tls_receive(pair.tls[1], &iov, 1)
                                                     : ibx_tls_handshake(pair.tls[1], &(short){0});
        assert_int_equal(pair.status[1], -ECONNRESET);
        bool whole = pair.relay[0].passed < at;
        tls_pair_close(&pair);
        if (whole)
            return;
    }
    fail_msg("no session was shorter than %u bytes", BASE_BYTES);
}

static void test_orderly_end_is_recognized(void **state)
{
    (void)state;
    struct tls_pair pair;
    uint8_t heard[WORDS];
    struct iovec iov = {heard, sizeof(heard)};
    tls_pair_open(&pair, true, tls_key, tls_key);
    tls_pair_shake(&pair);
    talk(&pair);
    ibx_tls_finish(pair.tls[0]);
    assert_int_equal(ibx_tls_send(pair.tls[0], &iov, 1), -EPIPE);
    tls_pair_cut(&pair);
    assert_int_equal(ibx_tls_receive(pair.tls[1], &iov, 1), 0);
    assert_int_equal(ibx_tls_receive(pair.tls[1], &iov, 1), 0);
    assert_true(ibx_tls_readable(pair.tls[1]));
    tls_pair_close(&pair);
}

/* Three records of one direction, in another order, as an attacker could send them. */
static void order(const unsigned *which, unsigned count)
{
    struct tls_pair pair;
    tls_pair_open(&pair, true, tls_key, tls_key);
    tls_pair_shake(&pair);
    uint8_t records[3][200], heard[1000];
    ssize_t size[3];
    for (unsigned i = 0; i < 3; i++) {
        struct iovec iov = {words[0], WORDS};
        assert_int_equal(ibx_tls_send(pair.tls[0], &iov, 1), WORDS);
        size[i] = recv(pair.middle[0], records[i], sizeof(records[i]), MSG_DONTWAIT);
        assert_true(size[i] > (ssize_t)WORDS);
    }
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(send(pair.middle[1], records[which[i]], (size_t)size[which[i]], 0),
                         size[which[i]]);
    struct iovec iov = {heard, sizeof(heard)};
    ssize_t n = ibx_tls_receive(pair.tls[1], &iov, 1);
    unsigned good = 0;
    while (good < count && which[good] == good)
        good++;
    assert_int_equal(n, good ? (int)(good * WORDS) : -EBADMSG);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(ibx_tls_receive(pair.tls[1], &iov, 1), -EBADMSG);
    tls_pair_close(&pair);
}

static void test_records_keep_their_order(void **state)
{
    (void)state;
    order((const unsigned[]){0, 0, 1}, 3); /* twice */
    order((const unsigned[]){0, 2, 1}, 3); /* swapped */
    order((const unsigned[]){1, 2}, 2);    /* one is missing */
}

/* ----------------------------------------------------------------------- much of it */

/* Gather lists with pieces of all lengths, through sockets with small buffers. */
static void pour(bool unix_socket, size_t much, int socket_bytes, unsigned seed)
{
    static uint8_t source[MOST], sink[MOST];
    struct tls_pair pair;
    size_t sent = 0, got = 0;
    srand(seed);
    for (size_t i = 0; i < much; i++)
        source[i] = (uint8_t)rand();
    tls_pair_open(&pair, unix_socket, tls_key, tls_key);
    for (unsigned i = 0; i < 2 && socket_bytes; i++) {
        setsockopt(pair.fd[i], SOL_SOCKET, SO_SNDBUF, &socket_bytes, sizeof(socket_bytes));
        setsockopt(pair.fd[i], SOL_SOCKET, SO_RCVBUF, &socket_bytes, sizeof(socket_bytes));
    }
    tls_pair_shake(&pair);
    while (got < much) {
        struct iovec out[5], in[5];
        int count = tls_pieces(out, source + sent, much - sent);
        ssize_t n = sent < much ? ibx_tls_send(pair.tls[0], out, count)
                                : ibx_tls_send(pair.tls[0], NULL, 0);
        assert_true(n >= 0 || n == -EAGAIN);
        sent += n > 0 ? (size_t)n : 0;
        assert_true(sent == much || n || ibx_tls_unsent(pair.tls[0]));
        tls_pair_relay(&pair);
        do {
            count = tls_pieces(in, sink + got, much - got);
            n = count ? ibx_tls_receive(pair.tls[1], in, count) : -EAGAIN;
            got += n > 0 ? (size_t)n : 0;
        } while (n > 0 && rand() % 4);
        assert_true(n > 0 || n == -EAGAIN);
        /* A message that is complete inside TLS must not wait for the socket. */
        while (count && ibx_tls_readable(pair.tls[1]) && got < much) {
            count = tls_pieces(in, sink + got, much - got);
            n = ibx_tls_receive(pair.tls[1], in, count);
            assert_true(n > 0 || n == -EAGAIN);
            got += n > 0 ? (size_t)n : 0;
        }
    }
    assert_memory_equal(sink, source, much);
    assert_false(ibx_tls_unsent(pair.tls[0]));
    tls_pair_close(&pair);
}

static void test_long_transfers_arrive_complete(void **state)
{
    (void)state;
    pour(true, MOST, 0, 1);
    pour(true, MOST / 4, 4096, 2);
    pour(false, MOST, 0, 3);
    pour(false, MOST / 32, 8192, 4);
}

/* ThreadSanitizer does not allow a child of a process with threads to start threads. */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define FORKS 0
#else
#define FORKS 1
#endif

/* A child has none of its parent's helper threads; its own connections start new ones. */
static void test_a_child_has_its_own_helpers(void **state)
{
    (void)state;
    struct tls_pair pair;
    int status = -1;
    tls_pair_open(&pair, true, tls_key, tls_key); /* still uses the parent's */
    tls_pair_shake(&pair);
    pour(true, MOST / 4, 0, 5);
    for (int i = 0; i < 3 * FORKS; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            pour(true, MOST / 4, 0, 6);
            tls_pair_close(&pair);
            pour(true, MOST / 4, 0, 7);
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        pour(true, MOST / 4, 0, 8);
    }
    tls_pair_close(&pair);
}

/* ------------------------------------------------------------------- OpenSSL's own end */

static int openssl_use(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *length,
                       SSL_SESSION **session)
{
    (void)md;
    *id = (const unsigned char *)"ibx";
    *length = 3;
    *session = tls_stranger_session(ssl);
    return 1;
}

/* OpenSSL's context, and the end of ibx on the other side of the socket. */
struct openssl_end {
    SSL_CTX *context;
    SSL *ssl;
    struct ibx_tls *tls;
    int fd[2];
};

static void stranger_open(struct openssl_end *s, bool server, const char *suites)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, s->fd), 0);
    s->context = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    SSL_CTX_set_ciphersuites(s->context, suites);
    SSL_CTX_set_num_tickets(s->context, 0);
    SSL_CTX_set_psk_find_session_callback(s->context, tls_stranger_find);
    SSL_CTX_set_psk_use_session_callback(s->context, openssl_use);
    assert_int_equal(ibx_tls_create(s->fd[0], server ? IBX_ROLE_CLIENT : IBX_ROLE_SERVER, tls_key,
                                    &s->tls, NULL),
                     0);
}

static int stranger_shake(struct openssl_end *s, bool server)
{
    s->ssl = SSL_new(s->context);
    SSL_set_fd(s->ssl, s->fd[1]);
    int mine = -EAGAIN, theirs = 0;
    for (int i = 0; i < 10 && (mine == -EAGAIN || theirs != 1); i++) {
        short events;
        if (mine == -EAGAIN)
            mine = ibx_tls_handshake(s->tls, &events);
        theirs = server ? SSL_accept(s->ssl) : SSL_connect(s->ssl);
    }
    return mine;
}

static void stranger_close(struct openssl_end *s)
{
    ibx_tls_destroy(s->tls);
    SSL_free(s->ssl);
    SSL_CTX_free(s->context);
    close(s->fd[0]);
    close(s->fd[1]);
}

static void stranger_talk(struct openssl_end *s, bool update)
{
    for (unsigned i = 0; i < 9; i++) {
        uint8_t heard[WORDS];
        struct iovec say = {words[0], WORDS}, hear = {heard, WORDS};
        assert_int_equal(ibx_tls_send(s->tls, &say, 1), WORDS);
        assert_int_equal(SSL_read(s->ssl, heard, WORDS), WORDS);
        assert_memory_equal(heard, words[0], WORDS);
        if (update)
            assert_int_equal(SSL_key_update(s->ssl, i & 1 ? SSL_KEY_UPDATE_REQUESTED
                                                          : SSL_KEY_UPDATE_NOT_REQUESTED),
                             1);
        assert_int_equal(SSL_write(s->ssl, words[1], WORDS), WORDS);
        assert_int_equal(ibx_tls_receive(s->tls, &hear, 1), WORDS);
        assert_memory_equal(heard, words[1], WORDS);
    }
}

static void test_openssl_is_compatible(void **state)
{
    (void)state;
    static const char *const suites[] = {"TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"};
    for (unsigned i = 0; i < 8; i++) {
        struct openssl_end s;
        bool server = i & 1;
        stranger_open(&s, server, suites[i >> 1 & 1]);
        assert_int_equal(stranger_shake(&s, server), 0);
        stranger_talk(&s, i & 4);
        uint8_t heard[8];
        struct iovec hear = {heard, sizeof(heard)};
        SSL_shutdown(s.ssl);
        assert_int_equal(ibx_tls_receive(s.tls, &hear, 1), 0);
        ibx_tls_finish(s.tls);
        assert_int_equal(SSL_read(s.ssl, heard, sizeof(heard)), 0);
        assert_int_equal(SSL_get_shutdown(s.ssl), SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
        stranger_close(&s);
    }
}

/* A server with a certificate, but without the key. */
static void test_certificate_does_not_replace_the_key(void **state)
{
    (void)state;
    struct openssl_end s;
    stranger_open(&s, true, "TLS_AES_128_GCM_SHA256");
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 1000);
    X509_set_pubkey(certificate, key);
    assert_true(X509_sign(certificate, key, EVP_sha256()) > 0);
    assert_int_equal(SSL_CTX_use_certificate(s.context, certificate), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(s.context, key), 1);
    SSL_CTX_set_psk_find_session_callback(s.context, NULL);
    assert_int_equal(stranger_shake(&s, true), -EPROTO);
    stranger_close(&s);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

/* A key exchange without forward secrecy, and older versions of TLS, are refused too. */
static void test_weaker_than_tls_13_with_dhe_is_refused(void **state)
{
    (void)state;
    struct openssl_end s;
    stranger_open(&s, false, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_max_proto_version(s.context, TLS1_2_VERSION);
    SSL_CTX_set_cipher_list(s.context, "ALL:@SECLEVEL=0");
    assert_int_equal(stranger_shake(&s, false), -EPROTO);
    stranger_close(&s);
    stranger_open(&s, true, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_options(s.context, SSL_OP_ALLOW_NO_DHE_KEX);
    SSL_CTX_set1_groups_list(s.context, "P-521"); /* no group in common */
    assert_int_equal(stranger_shake(&s, true), -EPROTO);
    stranger_close(&s);
}

int main(void)
{
    for (unsigned i = 0; i < WORDS; i++) {
        words[0][i] = (uint8_t)(i + 1);
        words[1][i] = (uint8_t)(200 - i);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records_are_those_of_the_rfc),
        cmocka_unit_test(test_malformed_records_are_refused),
        cmocka_unit_test(test_long_pieces_start_records),
        cmocka_unit_test(test_two_ends_talk),
        cmocka_unit_test(test_another_key_is_refused),
        cmocka_unit_test(test_every_flipped_byte_is_noticed),
        cmocka_unit_test(test_every_cut_is_noticed),
        cmocka_unit_test(test_orderly_end_is_recognized),
        cmocka_unit_test(test_records_keep_their_order),
        cmocka_unit_test(test_long_transfers_arrive_complete),
        cmocka_unit_test(test_a_child_has_its_own_helpers),
        cmocka_unit_test(test_openssl_is_compatible),
        cmocka_unit_test(test_certificate_does_not_replace_the_key),
        cmocka_unit_test(test_weaker_than_tls_13_with_dhe_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
