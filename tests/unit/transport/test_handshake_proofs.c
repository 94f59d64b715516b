/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The server's side of the handshake: which clients are authenticated, and which provider is taken.
 */
#include "tests/scenes/handshake_scene.h"

#include "common/clock.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <cmocka.h>

/* -------------------------------------------------------------------------- proofs */

static void expect_refused(struct handshake_scene *s, bool has_key, const char *key,
                           const char *from, const char *expected)
{
    struct raw_frame frame;
    pthread_create(&s->thread, NULL, handshake_serve, s);
    struct raw raw = raw_connect(s->port, from, "127.0.0.1");
    uint8_t opening[64], client[RAW_HASH], server[RAW_HASH];
    raw_send_frame(&raw, HELLO, opening, raw_opening(&raw, opening, has_key));
    assert_true(raw_receive(&raw, &frame));
    if (key) {
        struct ibx_piece piece = {key, strlen(key)};
        ibx_hash(&piece, 1, raw.key);
        raw_derive(&raw, client, server);
        raw_send_frame(&raw, PROOF, client, RAW_HASH);
        assert_true(raw_receive(&raw, &frame));
    }
    handshake_expect_failure(s, -EACCES, expected);
    assert_int_equal(frame.type, REFUSE);
    assert_true(raw_receives_end(&raw));
    raw_close(&raw);
}

static void keys_that_do_not_fit(void **state)
{
    (void)state;
    struct handshake_scene s;
    handshake_open(&s, true, 10000);
    expect_refused(&s, false, NULL, "127.0.0.1", "a key is asked for: set key_file on the client");
    expect_refused(&s, true, "another key of 32 bytes as well.", "127.0.0.1",
                   "the key is not the server's: copy its key file");
    handshake_close(&s);
    handshake_open(&s, false, 10000);
    expect_refused(&s, true, NULL, "127.0.0.1", "the server has no key but the client has");
    handshake_close(&s);
}

/* 127.0.0.2 is not the address that the server has on this connection: the nearest to another host
 * that one host has. */
static void without_a_key_only_this_host(void **state)
{
    (void)state;
    struct handshake_scene s;
    handshake_open(&s, false, 10000);
    expect_refused(&s, false, NULL, "127.0.0.2", "without a key only this host is served");
    handshake_close(&s);
    handshake_open(&s, false, 10000);
    ibx_listener_close(s.listener);
    s.options.insecure = true;
    assert_int_equal(ibx_listen("rdma://127.0.0.1:0", &s.options, &s.listener, NULL), 0);
    s.port = (uint16_t)atoi(strrchr(ibx_listener_uri(s.listener), ':') + 1);
    pthread_create(&s.thread, NULL, handshake_serve, &s);
    struct raw raw = raw_connect(s.port, "127.0.0.2", "127.0.0.1");
    handshake_play_to(&raw, STEPS);
    raw_close(&raw);
    assert_int_equal(handshake_result(&s), 0);
    handshake_close(&s);
}

/* All of 127.0.0.0/8 is this host, and Debian has the host's name at 127.0.1.1: a client that goes
 * there comes from 127.0.0.1. */
static void without_a_key_by_the_hosts_own_name(void **state)
{
    (void)state;
    struct handshake_scene s;
    handshake_open(&s, false, 10000);
    ibx_listener_close(s.listener);
    assert_int_equal(ibx_listen("rdma://0.0.0.0:0", &s.options, &s.listener, NULL), 0);
    s.port = (uint16_t)atoi(strrchr(ibx_listener_uri(s.listener), ':') + 1);
    pthread_create(&s.thread, NULL, handshake_serve, &s);
    struct raw raw = raw_connect(s.port, "0.0.0.0", "127.0.1.1");
    handshake_play_to(&raw, STEPS);
    raw_close(&raw);
    assert_int_equal(handshake_result(&s), 0);
    handshake_close(&s);
}

/* One bit of any byte of HELLO or PROOF turned on the way: the transcripts differ, so the
 * proof is wrong if nothing was noticed before. */
static void tampered_before_the_proof(void **state)
{
    (void)state;
    struct handshake_scene s;
    handshake_open(&s, true, 10000);
    for (enum handshake_step step = AT_HELLO; step <= AT_PROOF; step++) {
        for (size_t at = 0, length = 1; at < length; at++) {
            struct raw_frame frame, received;
            struct raw raw = handshake_connect(&s);
            raw_set_key(&raw);
            handshake_play_to(&raw, step);
            handshake_make_step(&raw, step, &frame);
            length = frame.length;
            frame.bytes[at] ^= (uint8_t)(1u << at % 8);
            raw_send(&raw, frame.bytes, frame.length);
            if (at < 4) /* a longer frame would be waited for */
                shutdown(raw.fd, SHUT_WR);
            if (step == AT_HELLO && raw_receive(&raw, &received) && received.type == CHALLENGE) {
                uint8_t client[RAW_HASH], server[RAW_HASH];
                memcpy(raw.server_nonce, received.payload + 7, 32);
                raw_derive(&raw, client, server);
                raw_send_frame(&raw, PROOF, client, RAW_HASH);
            }
            shutdown(raw.fd, SHUT_WR);
            assert_int_not_equal(handshake_result(&s), 0);
            assert_string_not_equal(s.err.message, "");
            raw_close(&raw);
        }
    }
    handshake_close(&s);
}

static void tampered_after_the_proof(void **state)
{
    (void)state;
    struct handshake_scene s;
    handshake_open(&s, true, 10000);
    for (enum handshake_step step = AT_TRY; step < STEPS; step++) {
        for (size_t at = 0, length = 1; at < length; at++) {
            struct raw_frame frame;
            struct raw raw = handshake_connect(&s);
            raw_set_key(&raw);
            handshake_play_to(&raw, step);
            handshake_make_step(&raw, step, &frame);
            length = frame.length;
            frame.bytes[at] ^= (uint8_t)(1u << at % 8);
            raw_send(&raw, frame.bytes, frame.length);
            shutdown(raw.fd, SHUT_WR);
            int rc = handshake_result(&s);
            assert_true(rc == -EBADMSG || rc == -EPROTO || rc == -ECONNRESET);
            if (at >= 4) /* the length itself is right */
                assert_int_equal(rc, -EBADMSG);
            raw_close(&raw);
        }
    }
    handshake_close(&s);
}

/* What was right once, sent again: the same frame, another connection's proof, the server's own. */
static void replays(void **state)
{
    (void)state;
    struct handshake_scene s;
    struct raw_frame frame, proof, received;
    handshake_open(&s, true, 10000);

    struct raw raw = handshake_connect(&s);
    raw_set_key(&raw);
    handshake_play_to(&raw, AT_TRY);
    handshake_make_step(&raw, AT_TRY, &frame);
    raw_send(&raw, frame.bytes, frame.length);
    raw_expect(&raw, OFFER, &received);
    raw_send(&raw, frame.bytes, frame.length);
    handshake_expect_failure(&s, -EBADMSG, "a frame was tampered with");
    raw_close(&raw);

    /* The server's frame reflected. */
    raw = handshake_connect(&s);
    raw_set_key(&raw);
    handshake_play_to(&raw, AT_ANSWER);
    raw_expect(&raw, OFFER, &received);
    raw_send(&raw, received.bytes, received.length);
    handshake_expect_failure(&s, -EBADMSG, "a frame was tampered with");
    raw_close(&raw);

    /* A recorded dialogue, with the very nonce of then. */
    struct raw first = handshake_connect(&s);
    raw_set_key(&first);
    handshake_play_to(&first, AT_PROOF);
    handshake_make_step(&first, AT_PROOF, &proof);
    raw_close(&first);
    handshake_result(&s);
    raw = handshake_connect(&s);
    memcpy(raw.client_nonce, first.client_nonce, 32);
    uint8_t opening[64];
    raw_send_frame(&raw, HELLO, opening, raw_opening(&raw, opening, true));
    raw_expect(&raw, CHALLENGE, &received);
    assert_memory_not_equal(received.payload + 7, first.server_nonce, 32);
    raw_send(&raw, proof.bytes, proof.length);
    handshake_expect_failure(&s, -EACCES, "the key is not the server's: copy its key file");
    raw_close(&raw);
    handshake_close(&s);
}

/* ----------------------------------------------------------------------- providers */

static void offer_answer(struct raw *raw, const char *name, uint8_t expected)
{
    uint8_t payload[64];
    struct raw_frame frame;
    raw_send_frame(raw, TRY, payload, raw_string(payload, name));
    raw_expect(raw, expected, &frame);
}

/* One provider after another is refused with a reason; the fourth failure is the last. */
static void providers_that_are_not_there(void **state)
{
    (void)state;
    struct handshake_scene s;
    handshake_open(&s, false, 10000);
    struct raw raw = handshake_connect(&s);
    handshake_play_to(&raw, AT_TRY);
    struct raw_frame frame;
    raw_expect(&raw, PROOF, &frame);
    raw.authenticated = true;
    offer_answer(&raw, "verbs", RESULT);
    offer_answer(&raw, "ofi", RESULT);
    offer_answer(&raw, "no\x1b[31mthing", RESULT);
    offer_answer(&raw, "", RESULT);
    handshake_expect_failure(&s, -ENOTSUP, "verbs: verbs is not in this build; ofi: ofi is not");
    assert_null(strchr(s.err.message, '\x1b'));
    assert_true(raw_receives_end(&raw));
    raw_close(&raw);
    handshake_close(&s);
}

static void provider_fails_then_another_stands(void **state)
{
    (void)state;
    for (int where = 0; where < 3; where++) {
        struct handshake_scene s;
        handshake_open(&s, false, 10000);
        int *const fails[] = {&memory_control.fail_open, &memory_control.fail_offer,
                              &memory_control.fail_finish};
        *fails[where] = -ENODEV;
        struct raw raw = handshake_connect(&s);
        handshake_play_to(&raw, AT_TRY);
        struct raw_frame frame;
        raw_expect(&raw, PROOF, &frame);
        raw.authenticated = true;
        offer_answer(&raw, "shm", where < 2 ? RESULT : OFFER);
        if (where == 2) {
            uint8_t payload[64];
            raw_send_frame(&raw, ANSWER, NULL, 0);
            raw_expect(&raw, RESULT, &frame);
            assert_int_equal((int8_t)frame.payload[0], -ENODEV);
            raw_send_frame(&raw, RESULT, payload, raw_result(payload, -ECANCELED, "as you like"));
        }
        uint8_t payload[64];
        offer_answer(&raw, "tcp", OFFER);
        raw_send_frame(&raw, ANSWER, NULL, 0);
        raw_expect(&raw, RESULT, &frame);
        raw_send_frame(&raw, RESULT, payload, raw_result(payload, 0, ""));
        raw_close(&raw);
        assert_int_equal(handshake_result(&s), 0);
        assert_string_equal(s.provider, "tcp");
        *fails[where] = 0;
        handshake_close(&s);
    }
}

/* The client's half fails: by RESULT instead of ANSWER, or after it. */
static void client_gives_up_and_goes(void **state)
{
    (void)state;
    for (int after = 0; after < 2; after++) {
        struct handshake_scene s;
        struct raw_frame frame;
        uint8_t payload[64];
        handshake_open(&s, false, 10000);
        struct raw raw = handshake_connect(&s);
        handshake_play_to(&raw, after ? AT_RESULT : AT_ANSWER);
        raw_expect(&raw, after ? RESULT : OFFER, &frame);
        raw_send_frame(&raw, RESULT, payload, raw_result(payload, -EIO, "no\tluck"));
        raw_close(&raw);
        handshake_expect_failure(&s, -ENOTSUP, "shm: on the client: no?luck");
        handshake_close(&s);
    }
}

/* An answer the provider does not like is the provider's to refuse. */
static void answer_of_nonsense(void **state)
{
    (void)state;
    struct handshake_scene s;
    struct raw_frame frame;
    uint8_t nonsense[4096] = {1};
    handshake_open(&s, false, 10000);
    struct raw raw = handshake_connect(&s);
    handshake_play_to(&raw, AT_ANSWER);
    raw_expect(&raw, OFFER, &frame);
    raw_send_frame(&raw, ANSWER, nonsense, sizeof(nonsense)); /* as long as a frame may be */
    raw_expect(&raw, RESULT, &frame);
    assert_int_equal((int8_t)frame.payload[0], -EPROTO);
    raw_close(&raw);
    handshake_expect_failure(&s, -ECONNRESET, "it closed the connection");
    handshake_close(&s);
}

static void only_the_providers_that_the_server_allows(void **state)
{
    (void)state;
    struct handshake_scene s;
    struct raw_frame frame;
    handshake_open(&s, false, 10000);
    ibx_listener_close(s.listener);
    assert_int_equal(ibx_listen("tcp://127.0.0.1:0", &s.options, &s.listener, NULL), 0);
    s.port = (uint16_t)atoi(strrchr(ibx_listener_uri(s.listener), ':') + 1);
    struct raw raw = handshake_connect(&s);
    handshake_play_to(&raw, AT_TRY);
    raw_expect(&raw, PROOF, &frame);
    raw.authenticated = true;
    offer_answer(&raw, "shm", RESULT);
    raw_close(&raw);
    handshake_expect_failure(&s, -ENOTSUP, "shm: only provider : tcp is allowed");
    handshake_close(&s);
}

/* After establishment the client sends on the handshake socket. */
static void door_is_silent_after_establishment(void **state)
{
    (void)state;
    struct handshake_scene s;
    handshake_open(&s, false, 10000);
    struct raw raw = handshake_connect(&s);
    handshake_play_to(&raw, STEPS);
    raw_send(&raw, "x", 1);
    assert_int_equal(handshake_result(&s), 0);
    assert_int_equal(s.closed_status, -EPROTO);
    assert_string_equal(s.reason, "the peer sent data on the handshake socket after establishment");
    raw_close(&raw);
    handshake_close(&s);
}

/* More than any machine has: the server's own wishes count then. */
static void wishes_without_measure(void **state)
{
    (void)state;
    struct handshake_scene s;
    struct raw_frame frame;
    uint8_t opening[64], client[RAW_HASH], server[RAW_HASH], payload[64];
    handshake_open(&s, false, 10000);
    struct raw raw = handshake_connect(&s);
    raw_opening(&raw, opening, false);
    memset(opening + 39, 0xff, 12);
    raw_send_frame(&raw, HELLO, opening, 51);
    raw_expect(&raw, CHALLENGE, &frame);
    raw_derive(&raw, client, server);
    raw_send_frame(&raw, PROOF, client, RAW_HASH);
    raw_expect(&raw, PROOF, &frame);
    raw.authenticated = true;
    offer_answer(&raw, "shm", OFFER);
    raw_send_frame(&raw, ANSWER, NULL, 0);
    raw_expect(&raw, RESULT, &frame);
    raw_send_frame(&raw, RESULT, payload, raw_result(payload, 0, ""));
    raw_close(&raw);
    assert_int_equal(handshake_result(&s), 0);
    assert_int_equal(s.message_max, 16384);
    handshake_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_that_do_not_fit),
        cmocka_unit_test(without_a_key_only_this_host),
        cmocka_unit_test(without_a_key_by_the_hosts_own_name),
        cmocka_unit_test(tampered_before_the_proof),
        cmocka_unit_test(tampered_after_the_proof),
        cmocka_unit_test(replays),
        cmocka_unit_test(providers_that_are_not_there),
        cmocka_unit_test(provider_fails_then_another_stands),
        cmocka_unit_test(client_gives_up_and_goes),
        cmocka_unit_test(answer_of_nonsense),
        cmocka_unit_test(only_the_providers_that_the_server_allows),
        cmocka_unit_test(door_is_silent_after_establishment),
        cmocka_unit_test(wishes_without_measure),
    };
    return cmocka_run_group_tests(tests, raw_make_key, raw_remove_key);
}
