/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The kernel encrypts what one end sends, or both. The other end, which decrypts in user space,
 * must not notice a difference. If the kernel cannot encrypt, only the first tests run. With the
 * argument "works" or "falls-back" it is an error if this kernel does not do that. */
#include "transport/core/tls_kernel.h"

#include "common/clock.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/tls_pair.h"

#include <errno.h>
#include <linux/sockios.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define MOST  (2u << 20)
#define WORDS 100u

static unsigned patience; /* milliseconds for what must happen; set by main() */
static uint8_t source[MOST], sink[MOST];
static const char *wanted = "";

static bool works(void)
{
    const char *why;
    return ibx_tls_kernel_works(&why);
}

static void need_kernel(void)
{
    if (!works())
        skip();
}

static bool by_kernel(const struct ibx_tls *tls)
{
    return strstr(ibx_tls_description(tls), "by the kernel") != NULL;
}

static void shake(struct tls_pair *pair)
{
    uint64_t end = ibx_now_ns() + patience * IBX_NS_PER_MS;
    pair->status[0] = pair->status[1] = -EAGAIN;
    while ((pair->status[0] == -EAGAIN || pair->status[1] == -EAGAIN) && ibx_now_ns() < end) {
        for (unsigned i = 0; i < 2; i++) {
            short events;
            if (pair->status[i] == -EAGAIN)
                pair->status[i] = ibx_tls_handshake(pair->tls[i], &events);
            tls_pair_relay(pair);
        }
    }
    assert_int_equal(pair->status[0], 0);
    assert_int_equal(pair->status[1], 0);
}

/* Receives up to `most` bytes at one end until there are no more. Returns the last status. */
static int receive_all(struct tls_pair *pair, unsigned end, uint8_t *to, size_t most, size_t *got)
{
    uint64_t until = ibx_now_ns() + patience * IBX_NS_PER_MS;
    *got = 0;
    while (*got < most && ibx_now_ns() < until) {
        struct iovec iov = {to + *got, most - *got};
        tls_pair_relay(pair);
        ssize_t n = ibx_tls_receive(pair->tls[end], &iov, 1);
        if (n > 0)
            *got += (size_t)n;
        else if (n != -EAGAIN)
            return (int)n;
    }
    return -EAGAIN;
}

/* Forwards everything that the client has sent. */
static void relay_all(struct tls_pair *pair)
{
    int unread = 1, unacknowledged = 1;
    for (uint64_t end = ibx_now_ns() + patience * IBX_NS_PER_MS; unread || unacknowledged;) {
        tls_pair_relay(pair);
        assert_int_equal(ioctl(pair->fd[0], SIOCOUTQ, &unacknowledged), 0);
        assert_int_equal(ioctl(pair->middle[0], FIONREAD, &unread), 0);
        assert_true(ibx_now_ns() < end);
    }
}

/* Sends gather lists of all lengths from one end to the other. */
static void pour(struct tls_pair *pair, unsigned from, size_t much)
{
    uint64_t until = ibx_now_ns() + patience * IBX_NS_PER_MS;
    size_t sent = 0, got = 0;
    while (got < much) {
        struct iovec out[5], in[5];
        int count = tls_pieces(out, source + sent, much - sent);
        ssize_t n = sent < much ? ibx_tls_send(pair->tls[from], out, count)
                                : ibx_tls_send(pair->tls[from], NULL, 0);
        assert_true(n >= 0 || n == -EAGAIN);
        sent += n > 0 ? (size_t)n : 0;
        tls_pair_relay(pair);
        count = tls_pieces(in, sink + got, much - got);
        n = ibx_tls_receive(pair->tls[!from], in, count);
        assert_true(n > 0 || n == -EAGAIN);
        got += n > 0 ? (size_t)n : 0;
        assert_true(ibx_now_ns() < until);
    }
    assert_memory_equal(sink, source, much);
    assert_false(ibx_tls_unsent(pair->tls[from]));
}

/* -------------------------------------------------------------------- on any kernel */

static void test_this_kernel_does_what_the_argument_says(void **state)
{
    (void)state;
    const char *why = "";
    bool can = ibx_tls_kernel_works(&why);
    if (can)
        assert_null(why);
    else
        print_message("not by this kernel: %s\n", why);
    if (!strcmp(wanted, "works"))
        assert_true(can);
    if (!strcmp(wanted, "falls-back")) {
        assert_false(can);
        assert_non_null(strstr(why, "kernel"));
    }
}

/* Each end decides for itself who encrypts. */
static void test_ends_choose_for_themselves(void **state)
{
    (void)state;
    for (unsigned which = 0; which < 4; which++) {
        struct tls_pair pair;
        tls_pair_open_kernel(&pair, which & 1, which & 2);
        shake(&pair);
        assert_int_equal(by_kernel(pair.tls[0]), works() && which & 1);
        assert_int_equal(by_kernel(pair.tls[1]), works() && which & 2);
        for (unsigned round = 0; round < 5; round++) {
            pour(&pair, 0, WORDS);
            pour(&pair, 1, WORDS);
        }
        tls_pair_close(&pair);
    }
}

static void test_unix_socket_stays_in_user_space(void **state)
{
    (void)state;
    struct tls_pair pair;
    tls_pair_open(&pair, true, tls_key, tls_key);
    ibx_tls_use_kernel(pair.tls[0]);
    shake(&pair);
    assert_false(by_kernel(pair.tls[0]));
    pour(&pair, 0, 100000);
    tls_pair_close(&pair);
}

/* -------------------------------------------------------------------- if the kernel can encrypt */

static void test_long_transfers_arrive_complete(void **state)
{
    (void)state;
    static const struct {
        unsigned kernels;
        size_t much;
        int socket_bytes;
    } cases[] = {{1, MOST, 0}, {2, MOST, 0}, {3, MOST, 0}, {3, MOST / 16, 8192}};
    need_kernel();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tls_pair pair;
        int bytes = cases[i].socket_bytes;
        srand((unsigned)i);
        tls_pair_open_kernel(&pair, cases[i].kernels & 1, cases[i].kernels & 2);
        for (unsigned end = 0; end < 2 && bytes; end++) {
            setsockopt(pair.fd[end], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
            setsockopt(pair.fd[end], SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
        }
        shake(&pair);
        pour(&pair, 0, cases[i].much);
        pour(&pair, 1, cases[i].much);
        tls_pair_close(&pair);
    }
}

/* A record of the kernel that a relay has changed is refused, whichever byte it is. */
static void test_a_flipped_byte_ends_the_connection(void **state)
{
    (void)state;
    need_kernel();
    for (size_t at = 0; at < WORDS + IBX_TLS_OVERHEAD; at++) {
        struct tls_pair pair;
        uint8_t heard[WORDS];
        size_t got;
        tls_pair_open_kernel(&pair, true, true);
        shake(&pair);
        pour(&pair, 0, WORDS);
        pair.relay[0].flip = pair.relay[0].passed + at;
        struct iovec iov = {source, WORDS};
        assert_int_equal(ibx_tls_send(pair.tls[0], &iov, 1), WORDS);
        ibx_tls_finish(pair.tls[0]);
        relay_all(&pair);
        /* otherwise a length that was increased waits for more */
        shutdown(pair.middle[1], SHUT_WR);
        int status = receive_all(&pair, 1, heard, WORDS, &got);
        assert_int_equal(got, 0);
        assert_true(status == -EBADMSG || (status == -ECONNRESET && (at == 3 || at == 4)));
        tls_pair_close(&pair);
    }
}

static void test_orderly_end_is_recognized(void **state)
{
    (void)state;
    need_kernel();
    for (unsigned in_order = 0; in_order < 2; in_order++) {
        struct tls_pair pair;
        uint8_t heard[2 * WORDS];
        size_t got;
        tls_pair_open_kernel(&pair, true, false);
        shake(&pair);
        struct iovec iov = {source, WORDS};
        assert_int_equal(ibx_tls_send(pair.tls[0], &iov, 1), WORDS);
        if (in_order)
            ibx_tls_finish(pair.tls[0]);
        assert_int_equal(receive_all(&pair, 1, heard, WORDS, &got), -EAGAIN);
        assert_memory_equal(heard, source, WORDS);
        if (in_order) {
            assert_int_equal(ibx_tls_send(pair.tls[0], &iov, 1), -EPIPE);
            assert_int_equal(receive_all(&pair, 1, heard, 1, &got), 0);
        } else {
            tls_pair_cut(&pair);
            assert_int_equal(receive_all(&pair, 1, heard, 1, &got), -ECONNRESET);
        }
        assert_int_equal(got, 0);
        tls_pair_close(&pair);
    }
}

/* ------------------------------------------------------------- OpenSSL at the other end */

/* Whether to wait on until `end`. */
static bool waits(uint64_t end)
{
    assert_true(ibx_now_ns() < end);
    return true;
}

/* OpenSSL decrypts what the kernel encrypts, and the keys of both ends change whenever OpenSSL
 * wants. */
static void test_openssl_understands_the_kernel(void **state)
{
    (void)state;
    need_kernel();
    struct tls_pair pair;
    uint8_t heard[WORDS];
    short events;
    tls_pair_open_kernel(&pair, true, false);
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_num_tickets(context, 0);
    SSL_CTX_set_psk_find_session_callback(context, tls_stranger_find);
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, pair.fd[1]);
    int mine = -EAGAIN, theirs = 0;
    for (uint64_t end = ibx_now_ns() + patience * IBX_NS_PER_MS;
         (mine || theirs != 1) && waits(end);) {
        tls_pair_relay(&pair);
        mine = mine ? ibx_tls_handshake(pair.tls[0], &events) : 0;
        tls_pair_relay(&pair);
        theirs = theirs == 1 ? 1 : SSL_accept(ssl);
    }
    assert_true(by_kernel(pair.tls[0]));
    for (unsigned i = 0; i < 9; i++) {
        struct iovec say = {source + i, WORDS};
        size_t got;
        int n;
        assert_int_equal(ibx_tls_send(pair.tls[0], &say, 1), WORDS);
        for (uint64_t end = ibx_now_ns() + patience * IBX_NS_PER_MS;
             (n = SSL_read(ssl, heard, WORDS)) <= 0 && waits(end);)
            tls_pair_relay(&pair);
        assert_int_equal(n, WORDS);
        assert_memory_equal(heard, source + i, WORDS);
        assert_int_equal(
            SSL_key_update(ssl, i & 1 ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED),
            1);
        assert_int_equal(SSL_write(ssl, source + 50, WORDS), WORDS);
        assert_int_equal(receive_all(&pair, 0, heard, WORDS, &got), -EAGAIN);
        assert_memory_equal(heard, source + 50, WORDS);
    }
    ibx_tls_finish(pair.tls[0]);
    int n;
    for (uint64_t end = ibx_now_ns() + patience * IBX_NS_PER_MS;
         (n = SSL_read(ssl, heard, WORDS)) && waits(end);)
        tls_pair_relay(&pair);
    assert_int_equal(SSL_get_shutdown(ssl), SSL_RECEIVED_SHUTDOWN);
    SSL_free(ssl);
    SSL_CTX_free(context);
    tls_pair_close(&pair);
}

int main(int argc, char **argv)
{
    patience = patience_ms(20000);
    wanted = argc > 1 ? argv[1] : "";
    srand(1);
    for (size_t i = 0; i < sizeof(source); i++)
        source[i] = (uint8_t)rand();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_this_kernel_does_what_the_argument_says),
        cmocka_unit_test(test_ends_choose_for_themselves),
        cmocka_unit_test(test_unix_socket_stays_in_user_space),
        cmocka_unit_test(test_long_transfers_arrive_complete),
        cmocka_unit_test(test_a_flipped_byte_ends_the_connection),
        cmocka_unit_test(test_orderly_end_is_recognized),
        cmocka_unit_test(test_openssl_understands_the_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
