/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* OpenSSL has no memory for a digest: it matches nothing, and nobody else is blamed for that. */
#include "tests/fixtures/unit.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

static bool none; /* no memory */

static void *get(size_t bytes, const char *file, int line)
{
    (void)file, (void)line;
    return none ? NULL : malloc(bytes);
}

static void *resize(void *at, size_t bytes, const char *file, int line)
{
    (void)file, (void)line;
    return none ? NULL : realloc(at, bytes);
}

static void give(void *at, const char *file, int line)
{
    (void)file, (void)line;
    free(at);
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
    assert_int_equal(ibx_exchange_create(&exchange, ours, &err), 0);
    none = true;
    const int without = ibx_exchange_secret(exchange, ours, secret, &err);
    none = false;
    assert_int_equal(without, -ENOMEM);
    assert_non_null(strstr(err.message, "no memory"));
    assert_int_equal(ibx_exchange_secret(exchange, ours, secret, &err), 0);
    ibx_exchange_destroy(exchange);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_memory_for_a_digest),
                                       cmocka_unit_test(test_no_memory_for_a_secret)};
    if (!CRYPTO_set_mem_functions(get, resize, give))
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
