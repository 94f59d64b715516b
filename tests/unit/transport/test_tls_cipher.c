/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The fastest cipher of this processor and OpenSSL encrypt alike, and each decrypts the other's
 * output. */
#include "transport/core/tls_cipher.h"

#include "transport/transport.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BYTES_MAX 17000u

static const uint8_t key[2][IBX_TLS_KEY_BYTES_MAX] = {{1, 2, 3}, {7}};
static const uint8_t nonce[IBX_TLS_IV_BYTES] = {4, 5};
static const uint8_t header[] = {23, 3, 3, 0, 17};

static uint8_t text[BYTES_MAX];

/* Processes n bytes in pieces of varying lengths. */
static void pass(struct ibx_tls_cipher *cipher, uint8_t *to, const uint8_t *from, size_t n)
{
    static const size_t pieces[] = {1, 16, 5000, 15, 17, 4096, 3, 256};
    assert_true(ibx_tls_cipher_begin(cipher, nonce, header, sizeof(header)));
    for (unsigned i = 0; n; i++) {
        size_t piece = pieces[i % 8] < n ? pieces[i % 8] : n;
        assert_true(ibx_tls_cipher_update(cipher, to, from, piece));
        to += piece;
        from += piece;
        n -= piece;
    }
}

/* Uses keys[0], then keys[1] in the same ciphers. */
static void compare(enum ibx_tls_suite suite, size_t n)
{
    static uint8_t sealed[2][BYTES_MAX], back[BYTES_MAX];
    uint8_t tag[2][IBX_TLS_TAG_BYTES];
    struct ibx_tls_cipher *seal[2], *open[2];
    for (unsigned e = 0; e < 2; e++) {
        seal[e] = ibx_tls_cipher_create(suite, e, true, key[0]);
        open[e] = ibx_tls_cipher_create(suite, e, false, key[0]);
        assert_true(seal[e] && open[e]);
    }
    for (unsigned k = 0; k < 2; k++) {
        for (unsigned e = 0; e < 2; e++) {
            assert_true(ibx_tls_cipher_rekey(seal[e], key[k]));
            assert_true(ibx_tls_cipher_rekey(open[e], key[k]));
            pass(seal[e], sealed[e], text, n);
            assert_true(ibx_tls_cipher_seal_end(seal[e], tag[e]));
        }
        assert_memory_equal(sealed[0], sealed[1], n);
        assert_memory_equal(tag[0], tag[1], sizeof(tag[0]));
        for (unsigned e = 0; e < 2; e++) {
            pass(open[e], back, sealed[e], n);
            assert_true(ibx_tls_cipher_open_end(open[e], tag[!e]));
            assert_memory_equal(back, text, n);
            for (unsigned bit = 0; bit < 8 * IBX_TLS_TAG_BYTES; bit += 7) {
                tag[!e][bit / 8] ^= (uint8_t)(1u << bit % 8);
                pass(open[e], back, sealed[e], n);
                assert_false(ibx_tls_cipher_open_end(open[e], tag[!e]));
                tag[!e][bit / 8] ^= (uint8_t)(1u << bit % 8);
            }
        }
    }
    for (unsigned e = 0; e < 2; e++) {
        ibx_tls_cipher_destroy(seal[e]);
        ibx_tls_cipher_destroy(open[e]);
    }
}

static void test_both_ciphers_agree(void **state)
{
    static const size_t lengths[] = {0, 1, 15, 16, 17, 255, 256, 257, 767, 769, 5033, 16385, 17000};
    (void)state;
    for (unsigned i = 0; i < BYTES_MAX; i++)
        text[i] = (uint8_t)(i * 31 + i / 256);
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        compare(IBX_TLS_AES_128_GCM, lengths[i]);
        compare(IBX_TLS_CHACHA20_POLY1305, lengths[i]);
    }
}

/* Otherwise the comparison above would compare OpenSSL with itself. */
static void test_the_fastest_is_chosen(void **state)
{
    (void)state;
    const char *remedy;
    bool vectors = !strncmp(ibx_cipher_description(&remedy), "ipsec-mb", 8);
    struct ibx_tls_cipher *aes =
        ibx_tls_cipher_create(IBX_TLS_AES_128_GCM, IBX_TLS_FASTEST, true, key[0]);
    struct ibx_tls_cipher *chacha =
        ibx_tls_cipher_create(IBX_TLS_CHACHA20_POLY1305, IBX_TLS_FASTEST, true, key[0]);
    struct ibx_tls_cipher *plain =
        ibx_tls_cipher_create(IBX_TLS_AES_128_GCM, IBX_TLS_OPENSSL, true, key[0]);
    assert_int_equal(ibx_tls_cipher_is_ipsec_mb(aes), vectors);
    assert_false(ibx_tls_cipher_is_ipsec_mb(chacha));
    assert_false(ibx_tls_cipher_is_ipsec_mb(plain));
    ibx_tls_cipher_destroy(aes);
    ibx_tls_cipher_destroy(chacha);
    ibx_tls_cipher_destroy(plain);
    ibx_tls_cipher_destroy(NULL);
    if (!vectors)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ciphers_agree),
        cmocka_unit_test(test_the_fastest_is_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
