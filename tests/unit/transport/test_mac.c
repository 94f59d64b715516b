/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* MACs of messages: their bytes, and that only the peer's next message is accepted. */
#include "transport/core/mac.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define LONG 5000u

static uint8_t session[IBX_HASH_BYTES];
static struct ibx_mac *client, *server;

static int setup(void **state)
{
    (void)state;
    for (unsigned i = 0; i < sizeof(session); i++)
        session[i] = (uint8_t)i;
    return ibx_mac_create(session, IBX_ROLE_CLIENT, &client, NULL) ||
           ibx_mac_create(session, IBX_ROLE_SERVER, &server, NULL);
}

static int teardown(void **state)
{
    (void)state;
    ibx_mac_destroy(client);
    ibx_mac_destroy(server);
    return 0;
}

/* Makes the message with its MAC, as it is sent. Returns its length. */
static size_t seal(struct ibx_mac *from, const void *text, size_t length, uint8_t *out)
{
    memcpy(out, text, length);
    assert_int_equal(ibx_mac_make(from, out, length, out + length), 0);
    ibx_mac_sent(from);
    return length + IBX_MAC_BYTES;
}

static void assert_bytes(const uint8_t *message, const char *hex)
{
    char text[2 * IBX_MAC_BYTES + 1];
    for (unsigned i = 0; i < IBX_MAC_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", message[i]);
    assert_string_equal(text, hex);
}

/* Computed by openssl kdf, enc and mac according to docs/protocol.md. */
static void test_golden_bytes(void **state)
{
    (void)state;
    uint8_t message[64];
    assert_int_equal(seal(client, "ping", 4, message), 20);
    assert_bytes(message + 4, "1a231e8bbbdf304f27da36352a82b866");
    seal(client, "ping", 4, message);
    assert_bytes(message + 4, "56135f74e0a627d096252c1784d2f3c4");
    seal(client, "", 0, message);
    assert_bytes(message, "dcf811af612add5a0039fbbeb5c5b734");
    seal(server, "ping", 4, message);
    assert_bytes(message + 4, "8df8cb4dce125d9f51238b7672b99892");
}

/* Both directions at once, messages of all lengths, over many refills of the one-time keys. */
static void test_good_messages(void **state)
{
    (void)state;
    uint8_t text[LONG], message[LONG + IBX_MAC_BYTES];
    for (unsigned i = 0; i < sizeof(text); i++)
        text[i] = (uint8_t)(i * 7);
    for (unsigned i = 0; i < 500; i++) {
        size_t n = seal(client, text, i * 9 % LONG, message);
        assert_int_equal(ibx_mac_check(server, message, n), 0);
        if (i % 3)
            continue;
        n = seal(server, text, i, message);
        assert_int_equal(ibx_mac_check(client, message, n), 0);
    }
}

/* If a message is not sent after all, the next message gets its number. */
static void test_message_that_is_not_sent(void **state)
{
    (void)state;
    uint8_t message[64], unsent[IBX_MAC_BYTES];
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(ibx_mac_make(client, "never sent", 10, unsent), 0);
        size_t n = seal(client, "sent", 4, message);
        assert_int_equal(ibx_mac_check(server, message, n), 0);
    }
}

#define MESSAGES 5u
static uint8_t sent[MESSAGES][64];
static size_t lengths[MESSAGES];

/* The message must be refused in the place of message `expected`. */
static void refused(const void *message, size_t length, unsigned expected)
{
    assert_int_equal(ibx_mac_check(server, message, length), -EBADMSG);
    /* After a failure all later messages are refused, correct ones too. */
    for (unsigned i = expected + 1; i < MESSAGES; i++)
        assert_int_equal(ibx_mac_check(server, sent[i], lengths[i]), -EBADMSG);
    for (unsigned i = 0; i < MESSAGES; i++)
        assert_int_equal(ibx_mac_check(server, sent[i], lengths[i]), -EBADMSG);
}

static void begin(unsigned good)
{
    teardown(NULL);
    assert_int_equal(setup(NULL), 0);
    for (unsigned i = 0; i < MESSAGES; i++)
        lengths[i] = seal(client, "some message", 10 + i % 2, sent[i]);
    for (unsigned i = 0; i < good; i++)
        assert_int_equal(ibx_mac_check(server, sent[i], lengths[i]), 0);
}

static void test_changed_bits(void **state)
{
    (void)state;
    begin(0);
    for (unsigned bit = 0; bit < 8 * lengths[2]; bit++) {
        begin(2);
        sent[2][bit / 8] ^= (uint8_t)(1u << bit % 8);
        refused(sent[2], lengths[2], 2);
    }
}

static void test_other_lengths(void **state)
{
    (void)state;
    for (size_t n = 0; n < 64; n++) {
        begin(1);
        if (n == lengths[1])
            continue;
        /* Shortened or lengthened, with the MAC at the new end. */
        uint8_t moved[64] = {0};
        memcpy(moved, sent[1], n < lengths[1] ? n : lengths[1]);
        if (n % 2 && n >= IBX_MAC_BYTES)
            memcpy(moved + n - IBX_MAC_BYTES, sent[1] + lengths[1] - IBX_MAC_BYTES, IBX_MAC_BYTES);
        refused(moved, n, 1);
    }
}

static void test_other_places(void **state)
{
    (void)state;
    for (unsigned expected = 0; expected < MESSAGES; expected++) {
        for (unsigned given = 0; given < MESSAGES; given++) {
            begin(expected);
            if (given == expected)
                assert_int_equal(ibx_mac_check(server, sent[given], lengths[given]), 0);
            else
                refused(sent[given], lengths[given], expected);
        }
    }
}

static void test_message_sent_back(void **state)
{
    (void)state;
    begin(0);
    assert_int_equal(ibx_mac_check(client, sent[0], lengths[0]), -EBADMSG);
}

static void test_another_session(void **state)
{
    (void)state;
    struct ibx_mac *other;
    begin(0);
    session[31] ^= 1;
    assert_int_equal(ibx_mac_create(session, IBX_ROLE_SERVER, &other, NULL), 0);
    assert_int_equal(ibx_mac_check(other, sent[0], lengths[0]), -EBADMSG);
    ibx_mac_destroy(other);
    ibx_mac_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_golden_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_good_messages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_message_that_is_not_sent, setup, teardown),
        cmocka_unit_test_setup_teardown(test_changed_bits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_lengths, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_places, setup, teardown),
        cmocka_unit_test_setup_teardown(test_message_sent_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_another_session, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
