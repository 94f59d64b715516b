/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* OpenSSL gets no memory. A digest that cannot be computed matches nothing, and the peer is not
 * blamed for it. A connection is refused if ibx cannot notice forks. */
#include "tests/fixtures/in_child.h"
#include "transport/core/crypto.h"
#include "transport/core/tls.h"
#include "transport/handshake/pool.h"
#include "transport/transport.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define HASHES    10 /* a client computes fewer */
#define HMACS     9
#define ACCEPT_MS 10 /* without a client; after that the server's thread checks whether to stop */

/* No memory at all; for the n-th next digest of a hash, or HMAC (0: for all of them). */
static _Thread_local bool none;
static _Thread_local unsigned none_for_one; /* for the n-th next allocation; 0: for all */
static _Thread_local unsigned none_for_hash, none_for_hmac;

static bool is_none(void)
{
    const bool last = none_for_one == 1;
    none_for_one -= none_for_one > 0;
    return none || last;
}

static void *get(size_t bytes, const char *file, int line)
{
    (void)file, (void)line;
    return is_none() ? NULL : malloc(bytes);
}

static void *resize(void *at, size_t bytes, const char *file, int line)
{
    (void)file, (void)line;
    return is_none() ? NULL : realloc(at, bytes);
}

/* calloc(3) of the product itself */
static _Thread_local unsigned no_calloc; /* for the n-th next one; 0: there is memory for all */
void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);

void *__wrap_calloc(size_t n, size_t bytes)
{
    const bool last = no_calloc == 1;
    no_calloc -= no_calloc > 0;
    return last ? NULL : __real_calloc(n, bytes);
}

static void give(void *at, const char *file, int line)
{
    (void)file, (void)line;
    free(at);
}

void __real_ibx_hash(const struct ibx_piece *pieces, int count, uint8_t out[IBX_HASH_BYTES]);
void __wrap_ibx_hash(const struct ibx_piece *pieces, int count, uint8_t out[IBX_HASH_BYTES]);
void __real_ibx_hmac(const uint8_t key[IBX_HASH_BYTES], const struct ibx_piece *pieces, int count,
                     uint8_t out[IBX_HASH_BYTES]);
void __wrap_ibx_hmac(const uint8_t key[IBX_HASH_BYTES], const struct ibx_piece *pieces, int count,
                     uint8_t out[IBX_HASH_BYTES]);

void __wrap_ibx_hmac(const uint8_t key[IBX_HASH_BYTES], const struct ibx_piece *pieces, int count,
                     uint8_t out[IBX_HASH_BYTES])
{
    const bool had_none = none;
    none = none || none_for_hmac == 1;
    none_for_hmac -= none_for_hmac > 0;
    __real_ibx_hmac(key, pieces, count, out);
    none = had_none;
}

void __wrap_ibx_hash(const struct ibx_piece *pieces, int count, uint8_t out[IBX_HASH_BYTES])
{
    const bool had_none = none;
    none = none || none_for_hash == 1;
    none_for_hash -= none_for_hash > 0;
    __real_ibx_hash(pieces, count, out);
    none = had_none;
}

/* how often the server has counted a client's PROOF as wrong */
static atomic_uint blamed;
void __real_ibx_pool_note_wrong(struct ibx_pool *pool, const struct ibx_source *source);
void __wrap_ibx_pool_note_wrong(struct ibx_pool *pool, const struct ibx_source *source);

void __wrap_ibx_pool_note_wrong(struct ibx_pool *pool, const struct ibx_source *source)
{
    blamed++;
    __real_ibx_pool_note_wrong(pool, source);
}

static atomic_bool forks_unseen; /* pthread_atfork() fails for lack of memory */
int __real_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));
int __wrap_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));

int __wrap_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
    return forks_unseen ? ENOMEM : __real_pthread_atfork(prepare, parent, child);
}

static void make(unsigned what, uint8_t out[IBX_HASH_BYTES])
{
    static const uint8_t key[IBX_HASH_BYTES] = {1};
    const struct ibx_piece piece = {"piece", 5};
    if (what == 0)
        ibx_hash(&piece, 1, out);
    else if (what == 1)
        ibx_hmac(key, &piece, 1, out);
    else
        ibx_hkdf(&(struct ibx_piece){key, sizeof(key)}, &piece, &piece, out);
}

static void test_no_memory_for_a_digest(NO_STATE)
{
    for (unsigned what = 0; what < 3; what++) {
        uint8_t right[IBX_HASH_BYTES], without[2][IBX_HASH_BYTES], again[IBX_HASH_BYTES];
        make(what, right);
        assert_false(ibx_crypto_lacked());
        none = true;
        make(what, without[0]);
        make(what, without[1]);
        none = false;
        assert_true(ibx_crypto_lacked());
        assert_false(ibx_crypto_lacked());
        assert_false(ibx_hash_equal(without[0], right));
        assert_false(ibx_hash_equal(without[0], without[1]));
        make(what, again);
        assert_true(ibx_hash_equal(again, right));
        assert_false(ibx_crypto_lacked());
    }
}

static void test_no_memory_for_a_secret(NO_STATE)
{
    struct ibx_exchange *exchange;
    struct ibx_error err = {0};
    uint8_t ours[IBX_PUBLIC_BYTES], secret[IBX_HASH_BYTES];
    none = true;
    const int unmade = ibx_exchange_create(&exchange, ours, &err);
    none = false;
    assert_int_equal(unmade, -ENOMEM);
    assert_non_null(strstr(err.message, "no memory for an X25519 key"));
    assert_int_equal(ibx_exchange_create(&exchange, ours, &err), 0);
    none = true;
    const int without = ibx_exchange_secret(exchange, ours, secret, &err);
    none = false;
    assert_int_equal(without, -ENOMEM);
    assert_non_null(strstr(err.message, "no memory"));
    assert_int_equal(ibx_exchange_secret(exchange, ours, secret, &err), 0);
    /* The peer's key is never blamed. */
    bool over = false;
    for (unsigned n = 1; !over; n++) {
        none_for_one = n;
        const int rc = ibx_exchange_secret(exchange, ours, secret, &err);
        over = none_for_one;
        none_for_one = 0;
        assert_true(!rc || rc == -ENOMEM);
    }
    ibx_exchange_destroy(exchange);
}

/* OpenSSL has no memory for what it makes once and for all, and then has enough. */
static int without_a_context(void)
{
    const struct ibx_piece piece = {"x", 1};
    uint8_t digests[4][IBX_HASH_BYTES] = {{0}};
    struct ibx_exchange *exchange;
    none = true;
    if (ibx_random(digests[0], IBX_HASH_BYTES, NULL) >= 0)
        return 1;
    none = false;
    if (ibx_random(digests[0], IBX_HASH_BYTES, NULL) >= 0 ||
        ibx_exchange_create(&exchange, digests[0], NULL) >= 0)
        return 2;
    for (unsigned again = 0; again < 4; again += 2) {
        ibx_hash(&piece, 1, digests[again]);
        ibx_hmac(digests[0], &piece, 1, digests[again + 1]);
        if (!ibx_crypto_lacked())
            return 3;
    }
    ibx_hkdf(&piece, &piece, &piece, digests[0]);
    return ibx_crypto_lacked() && memcmp(digests[1], digests[3], IBX_HASH_BYTES) ? 0 : 4;
}

/* Must run before anything else that needs OpenSSL. */
static void test_no_memory_for_what_openssl_makes_once(NO_STATE)
{
    passes_in_child(without_a_context);
}

static int put_program(uint8_t number[IBX_PROGRAM_BYTES])
{
    struct ibx_writer w = ibx_writer_of(number, IBX_PROGRAM_BYTES);
    return ibx_handshake_program_put(&w, NULL);
}

/* Each thread has random numbers of its own from OpenSSL. */
static void *put_program_without_memory(void *rc)
{
    uint8_t number[IBX_PROGRAM_BYTES];
    none = true;
    *(int *)rc = put_program(number);
    none = false;
    return NULL;
}

/* Must run before any connection of this process. */
static void test_no_memory_for_the_number_of_the_program(NO_STATE)
{
    uint8_t first[IBX_PROGRAM_BYTES] = {0}, second[IBX_PROGRAM_BYTES];
    int without = 0;
    pthread_t thread;
    assert_int_equal(ibx_random(first, sizeof(first), NULL), 0);
    assert_int_equal(pthread_create(&thread, NULL, put_program_without_memory, &without), 0);
    pthread_join(thread, NULL);
    assert_int_not_equal(without, 0);
    assert_int_equal(put_program(first), 0);
    assert_int_equal(put_program(second), 0);
    assert_memory_equal(first, second, sizeof(first));
}

static _Thread_local bool no_random;
int __real_RAND_bytes(unsigned char *out, int length);
int __wrap_RAND_bytes(unsigned char *out, int length);

int __wrap_RAND_bytes(unsigned char *out, int length)
{
    return no_random ? 0 : __real_RAND_bytes(out, length);
}

/* OpenSSL does not try again what it makes once and for all, and then does not say that it had no
 * memory. */
static void test_no_memory_that_openssl_does_not_own_to(NO_STATE)
{
    struct rlimit before, limit;
    struct ibx_error unlimited = {0}, limited = {0};
    uint8_t bytes[IBX_PROGRAM_BYTES];
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    limit = before;
    limit.rlim_cur = (rlim_t)1 << 60; /* more than any process has */
    no_random = true;
    const int first = ibx_random(bytes, sizeof(bytes), &unlimited);
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    const int second = ibx_random(bytes, sizeof(bytes), &limited);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    no_random = false;
    assert_int_equal(first, -EIO);
    assert_int_equal(second, -ENOMEM);
    assert_non_null(strstr(limited.message, "perhaps for lack of memory"));
    assert_non_null(strstr(limited.message, IBX_ERROR_RAISE_SPACE));
}

/* Must run before any TLS of this process: what all of its connections share is made for the first
 * one. What OpenSSL makes once and for all is made before, because OpenSSL does not try again. */
static void test_no_memory_for_the_first_tls(NO_STATE)
{
    static const uint8_t psk[IBX_TLS_PSK_BYTES] = {3};
    struct ibx_error err = {0};
    int ends[2];
    SSL_CTX_free(SSL_CTX_new(TLS_method()));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    for (unsigned role = 0; role < 2; role++) {
        struct ibx_tls *tls;
        none = true;
        const int without = ibx_tls_create(ends[role], (enum ibx_role)role, psk, &tls, &err);
        none = false;
        assert_int_equal(without, -ENOMEM);
        if (ibx_tls_create(ends[role], (enum ibx_role)role, psk, &tls, &err))
            fail_msg("%s", err.message);
        ibx_tls_destroy(tls);
        close(ends[role]);
    }
}

/* One allocation fails, of those for a connection in TLS or, behind them, of its first step. */
static void test_no_memory_for_a_part_of_tls(NO_STATE)
{
    static const uint8_t psk[IBX_TLS_PSK_BYTES] = {3};
    bool over = false;
    for (unsigned n = 1; !over; n++) {
        struct ibx_tls *tls = NULL;
        short events;
        int ends[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        none_for_one = n;
        const int rc = ibx_tls_create(ends[0], IBX_ROLE_CLIENT, psk, &tls, NULL);
        assert_true(!rc || rc == -ENOMEM);
        if (!rc)
            ibx_tls_handshake(tls, &events);
        over = none_for_one;
        none_for_one = 0;
        ibx_tls_destroy(tls);
        close(ends[0]);
        close(ends[1]);
    }
}

static const uint8_t secret_of_all[IBX_SECRET_BYTES] = {7};

/* The digest for which the server's thread has no memory: none; the last one before it accepts;
 * the transcript of a handshake; the proof of a claim that is correct. */
enum lacks { NOTHING, BEFORE, TRANSCRIPT, CLAIM };

struct server {
    struct ibx_claim_check check;
    struct ibx_options options;
    struct ibx_listener *listener;
    pthread_t thread;
    enum lacks lacks; /* takes effect once */
    atomic_bool ends;
    char key_file[32];
};

static bool find_session(void *context, const uint8_t *id, struct ibx_claimed *claimed)
{
    struct server *server = context;
    (void)id;
    memcpy(claimed->secret, secret_of_all, sizeof(claimed->secret));
    none_for_hmac = server->lacks == CLAIM ? 1 : 0;
    server->lacks = NOTHING;
    return true;
}

static void *accept_all(void *context)
{
    struct server *server = context;
    struct ibx_conn *conn;
    uint8_t digest[IBX_HASH_BYTES];
    none = server->lacks == BEFORE;
    make(0, digest);
    none = false;
    none_for_hash = server->lacks == TRANSCRIPT ? 1 : 0;
    while (!server->ends) {
        if (ibx_accept_wait(server->listener, ACCEPT_MS, &conn, NULL))
            continue;
        ibx_establish(conn, NULL);
        ibx_close(conn);
    }
    return NULL;
}

/* Afterwards server->options are those for a client. */
static void begin(struct server *server, enum lacks lacks)
{
    struct ibx_options *options = &server->options;
    struct ibx_error err = {0};
    *server = (struct server){.lacks = lacks, .key_file = "/tmp/ibx-crypto-memory-XXXXXX"};
    const int fd = mkstemp(server->key_file);
    assert_int_equal(dprintf(fd, "00112233445566778899aabbccddeeff\n"), 33);
    close(fd);
    ibx_options_init(options);
    assert_int_equal(ibx_options_set(options, "key_file", server->key_file, NULL), 0);
    assert_int_equal(ibx_options_set(options, "provider", "tcp", NULL), 0);
    server->check = (struct ibx_claim_check){find_session, server};
    options->claim_check = &server->check;
    if (ibx_listen("rdma://127.0.0.1:0", options, &server->listener, &err))
        fail_msg("%s", err.message);
    options->claim_check = NULL;
    assert_int_equal(pthread_create(&server->thread, NULL, accept_all, server), 0);
}

static void end(struct server *server)
{
    server->ends = true;
    pthread_join(server->thread, NULL);
    ibx_listener_close(server->listener);
    unlink(server->key_file);
}

/* Connects as a client with a correct proof of its claim. */
static int claim(struct server *server, struct ibx_claim *claim, struct ibx_error *err)
{
    struct ibx_conn *conn = NULL;
    *claim = (struct ibx_claim){.secret = secret_of_all};
    server->options.claim = claim;
    const int rc = ibx_connect(ibx_listener_uri(server->listener), &server->options, &conn, err);
    ibx_close(conn);
    return rc;
}

/* Must run before any other connection of this process. */
static void test_no_memory_to_see_forks(NO_STATE)
{
    struct server server;
    struct ibx_claim claimed;
    struct ibx_error err = {0};
    begin(&server, NOTHING);
    forks_unseen = true;
    assert_int_equal(claim(&server, &claimed, &err), -ENOMEM);
    assert_non_null(strstr(err.message, "forked"));
    forks_unseen = false;
    if (claim(&server, &claimed, &err))
        fail_msg("%s", err.message);
    end(&server);
}

static void lacks_once(enum lacks lacks)
{
    struct server server;
    struct ibx_claim claimed;
    struct ibx_error err = {0};
    begin(&server, lacks);
    assert_int_equal(claim(&server, &claimed, &err), -ECONNREFUSED);
    assert_non_null(strstr(err.message, "no memory"));
    assert_false(claimed.refused || claimed.reached);
    if (claim(&server, &claimed, &err))
        fail_msg("%s", err.message);
    assert_true(claimed.reached);
    end(&server);
    assert_int_equal(blamed, 0);
}

static void test_no_memory_for_a_claim(NO_STATE)
{
    lacks_once(CLAIM);
}

/* The failure affects a later step of the same handshake. */
static void test_no_memory_for_a_transcript(NO_STATE)
{
    lacks_once(TRANSCRIPT);
}

/* A client sends no proof and no MAC that it could not compute: the server would say that its key
 * differs, and turn it away after a few. Nor does it use a key that it could not hash. */
static void test_no_memory_at_the_client(NO_STATE)
{
    struct server server;
    struct ibx_claim claimed;
    struct ibx_error err = {0};
    begin(&server, NOTHING);
    for (unsigned i = 1; i <= HASHES + HMACS; i++) {
        none_for_hash = i <= HASHES ? i : 0;
        none_for_hmac = i > HASHES ? i - HASHES : 0;
        const int rc = claim(&server, &claimed, &err);
        const unsigned left = none_for_hash + none_for_hmac;
        none_for_hash = none_for_hmac = 0;
        if (!rc) {
            assert_true(left); /* it was not needed */
            continue;
        }
        assert_true(i != HASHES && i != HASHES + HMACS); /* all that a client computes was tried */
        assert_int_equal(left, 0);
        assert_null(strstr(err.message, "see that an ibx server listens"));
        assert_int_equal(rc, -ENOMEM);
        assert_true(strstr(err.message, "no memory") || strstr(err.message, strerror(ENOMEM)));
        assert_false(claimed.refused);
        assert_int_equal(blamed, 0);
    }
    end(&server);
}

/* One of the product's own allocations fails. Sanitizers look at what it does with the others. */
static void test_no_memory_for_a_part_of_the_client(NO_STATE)
{
    struct server server;
    struct ibx_claim claimed;
    struct ibx_error err = {0};
    bool over = false;
    begin(&server, NOTHING);
    for (unsigned n = 1; !over; n++) {
        no_calloc = n;
        const int rc = claim(&server, &claimed, &err);
        over = no_calloc;
        no_calloc = 0;
        assert_true(!rc || !over);
    }
    end(&server);
}

/* If memory lacked for something else, the client does not notice. */
static void test_no_memory_before(NO_STATE)
{
    struct server server;
    struct ibx_claim claimed;
    struct ibx_error err = {0};
    begin(&server, BEFORE);
    if (claim(&server, &claimed, &err))
        fail_msg("%s", err.message);
    assert_true(claimed.reached);
    end(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_memory_for_what_openssl_makes_once),
        cmocka_unit_test(test_no_memory_for_the_number_of_the_program),
        cmocka_unit_test(test_no_memory_that_openssl_does_not_own_to),
        cmocka_unit_test(test_no_memory_to_see_forks),
        cmocka_unit_test(test_no_memory_for_a_digest),
        cmocka_unit_test(test_no_memory_for_a_secret),
        cmocka_unit_test(test_no_memory_for_the_first_tls),
        cmocka_unit_test(test_no_memory_for_a_part_of_tls),
        cmocka_unit_test(test_no_memory_for_a_claim),
        cmocka_unit_test(test_no_memory_for_a_transcript),
        cmocka_unit_test(test_no_memory_at_the_client),
        cmocka_unit_test(test_no_memory_for_a_part_of_the_client),
        cmocka_unit_test(test_no_memory_before)};
    if (!CRYPTO_set_mem_functions(get, resize, give))
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
