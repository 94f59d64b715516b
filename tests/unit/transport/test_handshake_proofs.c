/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The server's side of the handshake: which clients it authenticates, and which provider it
 * chooses. */
#include "tests/fixtures/handshake_scene.h"

#include "common/clock.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

/* -------------------------------------------------------------------------- proofs */

static void expect_refused(struct handshake_scene *s, bool has_key, const char *key,
                           const char *from, const char *expected)
{
    struct raw_frame frame;
    pthread_create(&s->thread, NULL, handshake_serve, s);
    struct raw raw = raw_connect(s->port, from, "127.0.0.1");
    uint8_t opening[300], client[RAW_HASH], server[RAW_HASH];
    raw_send_frame(&raw, HELLO, opening, raw_opening(&raw, opening, has_key));
    assert_true(raw_receive(&raw, &frame));
    if (key) {
        struct ibx_piece piece = {key, strlen(key)};
        ibx_hash(&piece, 1, raw.key);
        raw_take_opening(&raw, &frame);
        raw_derive(&raw, client, server);
        raw_send_proof(&raw, client);
        assert_true(raw_receive(&raw, &frame));
    }
    handshake_expect_failure(s, -EACCES, expected);
    assert_int_equal(frame.type, REFUSE);
    assert_true(raw_receives_end(&raw));
    raw_close(&raw);
}

static void wrong_keys(void **state)
{
    (void)state;
    struct handshake_scene s;
    handshake_open(&s, true, 10000);
    expect_refused(&s, false, NULL, "127.0.0.1",
                   "a key is required: set rdma.key_file (--key-file) on the client");
    expect_refused(&s, true, "another key of 32 bytes as well.", "127.0.0.1",
                   "the key differs from the server's: copy the server's key file");
    handshake_close(&s);
    handshake_open(&s, false, 10000);
    expect_refused(&s, true, NULL, "127.0.0.1", "the server has no key but the client has");
    handshake_close(&s);
}

/* A proof follows the refusal's fields if the client knows the key. Other clients do not get it,
 * since they could test guesses of the key with it. */
static void expect_proof_of_refusal(const struct raw *raw, const struct raw_frame *frame,
                                    bool expected)
{
    uint8_t proof[RAW_HASH];
    const size_t n = 6u + frame->payload[4] + frame->payload[5] * 256u;
    const struct ibx_piece pieces[] = {{"refuse ", 7}, {frame->payload, n}};
    assert_int_equal(frame->payload_length, n + (expected ? RAW_HASH : 0));
    ibx_hmac(raw->session, pieces, 2, proof);
    if (expected)
        assert_memory_equal(frame->payload + n, proof, RAW_HASH);
}

/* Connects a client with this key, name and purpose. `refusal` is NULL if it is accepted. */
static void meet(struct handshake_scene *s, const char *key, const char *name, const char *purpose,
                 const char *refusal)
{
    struct raw_frame frame;
    struct raw raw = handshake_connect(s);
    struct ibx_piece piece = {key, strlen(key)};
    ibx_hash(&piece, 1, raw.key);
    raw.name = name;
    raw.purpose = purpose;
    if (!refusal) {
        handshake_play_to(&raw, STEPS);
        raw_close(&raw);
        assert_int_equal(handshake_result(s), 0);
        assert_string_equal(s->name, name);
        return;
    }
    handshake_make_step(&raw, AT_HELLO, &frame);
    raw_send(&raw, frame.bytes, frame.length);
    assert_true(raw_receive(&raw, &frame));
    if (frame.type == CHALLENGE) {
        uint8_t client[RAW_HASH], server[RAW_HASH];
        raw_take_opening(&raw, &frame);
        raw_derive(&raw, client, server);
        raw_send_proof(&raw, client);
        raw_expect(&raw, REFUSE, &frame);
        expect_proof_of_refusal(&raw, &frame, !strstr(refusal, "another key"));
    }
    handshake_expect_failure(s, -EACCES, refusal);
    raw_close(&raw);
}

#define ALICE "alice:616c69636520616c69636520616c696365\n" /* "alice alice alice" */
#define BOB   "bob:626f6220626f6220626f6220626f6220\n"     /* "bob bob bob bob " */

static void names_purposes_and_allowed_clients(void **state)
{
    (void)state;
    struct handshake_scene s;
    char file[] = "/tmp/ibx_test_names.XXXXXX";
    static const char alice[] = "alice alice alice", bob[] = "bob bob bob bob ";
    int fd = mkstemp(file);
    assert_int_equal(write(fd, ALICE BOB, strlen(ALICE BOB)), strlen(ALICE BOB));
    close(fd);
    handshake_open(&s, false, 10000);
    snprintf(s.options.key_file, sizeof(s.options.key_file), "%s", file);
    handshake_listen_again(&s);
    meet(&s, alice, "alice", "", NULL);
    meet(&s, bob, "bob", "whatever", NULL); /* this server has no purpose */
    meet(&s, alice, "bob", "", "the server has another key of this name, or none");
    meet(&s, alice, "carol", "", "the server has another key of this name, or none");
    meet(&s, alice, "", "", "the server's keys have names");

    snprintf(s.options.allow, sizeof(s.options.allow), "bob");
    handshake_listen_again(&s);
    meet(&s, bob, "bob", "", NULL);
    meet(&s, alice, "alice", "", "this name is not allowed");
    meet(&s, alice, "bob", "", "the server has another key of this name, or none");
    s.options.allow[0] = '\0';

    snprintf(s.options.purpose, sizeof(s.options.purpose), "gvirtus");
    handshake_listen_again(&s);
    meet(&s, alice, "alice", "gvirtus", NULL);
    meet(&s, alice, "alice", "ib-migrate",
         "the server is for \"gvirtus\", the client for \"ib-migrate\"");
    meet(&s, alice, "alice", "", "the client for \"\"");
    meet(&s, alice, "alice", "\x1b[31m\nred", "the client for \"?[31m?red\"");

    snprintf(s.options.purpose, sizeof(s.options.purpose), "ib-bw,gvirtus");
    handshake_listen_again(&s);
    meet(&s, alice, "alice", "gvirtus", NULL);
    meet(&s, alice, "alice", "ib-bw", NULL);
    for (unsigned i = 0; i < 3; i++) {
        static const char *const others[] = {"ib-migrate", "ib-bw,gvirtus", "ib"};
        meet(&s, alice, "alice", others[i], "the server is for \"ib-bw,gvirtus\", the client for");
    }
    /* the purpose of the last client */
    snprintf(s.options.purpose, sizeof(s.options.purpose), "gvirtus");
    handshake_close(&s);
    unlink(file);
}

/* Names that cannot be in a key file, and strings longer than their fields. */
static void names_of_nonsense(void **state)
{
    (void)state;
    struct handshake_scene s;
    char lengthy[80] = "";
    memset(lengthy, 'n', 64);
    const char *const names[] = {"a b", "\x1b[31m", "a:b", lengthy};
    handshake_open(&s, true, 10000);
    for (int i = 0; i < 8; i++) {
        struct raw_frame frame;
        struct raw raw = handshake_connect(&s);
        raw_set_key(&raw);
        if (i < 4)
            raw.name = names[i];
        else
            raw.purpose = lengthy + (i - 4) % 3 * 8;
        handshake_make_step(&raw, AT_HELLO, &frame);
        raw_send(&raw, frame.bytes, frame.length);
        handshake_expect_failure(&s, -EPROTO, "it does not speak this protocol");
        raw_close(&raw);
    }
    handshake_close(&s);
}

static void public_key_of_low_order(void **state)
{
    (void)state;
    struct handshake_scene s;
    handshake_open(&s, false, 10000);
    for (uint8_t one = 0; one < 2; one++) {
        struct raw_frame frame;
        uint8_t any[RAW_HASH] = {0};
        struct raw raw = handshake_connect(&s);
        memset(raw.own_public, 0, 32);
        raw.own_public[0] = one;
        handshake_play_to(&raw, AT_PROOF);
        raw_expect(&raw, CHALLENGE, &frame);
        raw_send_proof(&raw, any);
        handshake_expect_failure(&s, -EPROTO, "its public key is of low order");
        raw_close(&raw);
    }
    handshake_close(&s);
}

/* ----------------------------------------------------------------------- encryption */

/* Checks which flags the server agrees to for this wish of the client, or its refusal. */
static void agree(struct handshake_scene *s, uint8_t wish, uint8_t flags, const char *refusal)
{
    struct raw_frame frame;
    struct raw raw = handshake_connect(s);
    uint8_t client[RAW_HASH], server[RAW_HASH];
    raw_set_key(&raw);
    raw.encryption = wish;
    raw.flags = flags;
    handshake_make_step(&raw, AT_HELLO, &frame);
    raw_send(&raw, frame.bytes, frame.length);
    assert_true(raw_receive(&raw, &frame));
    if (frame.type == CHALLENGE) {
        raw_take_opening(&raw, &frame);
        raw_derive(&raw, client, server);
        raw_send_proof(&raw, client);
        raw_expect(&raw, refusal ? REFUSE : PROOF, &frame);
    }
    if (refusal) {
        handshake_expect_failure(s, -EACCES, refusal);
        raw_close(&raw);
    } else {
        raw_close(&raw);
        assert_int_not_equal(handshake_result(s), 0); /* the client has disconnected */
    }
}

/* Encryption is on if both ends want it. The server refuses a client that ignores the agreement. */
static void agreement_on_encryption(void **state)
{
    (void)state;
    enum { OFF, AUTO, REQUIRED };
    static const uint8_t none = 0, here = RAW_SAME_HOST, both = RAW_SAME_HOST | RAW_ENCRYPT;
    static const char without[] = "does not encrypt, although encryption was agreed";
    static const char not_agreed[] = "encrypts, although that was not agreed";
    static const char conflict[] = "one end has rdma.encryption : required and the other one off";
    struct handshake_scene s;
    handshake_open(&s, true, 10000);
    agree(&s, AUTO, here, NULL);
    agree(&s, AUTO, RAW_ENCRYPT, NULL);
    agree(&s, AUTO, none, without);
    agree(&s, REQUIRED, here, without);
    agree(&s, REQUIRED, both, NULL);
    agree(&s, OFF, none, NULL);
    agree(&s, OFF, RAW_ENCRYPT, not_agreed);
    s.options.encryption = IBX_ENCRYPTION_REQUIRED;
    handshake_listen_again(&s);
    agree(&s, AUTO, here, without);
    agree(&s, AUTO, both, NULL);
    agree(&s, OFF, none, conflict);
    s.options.encryption = IBX_ENCRYPTION_OFF;
    handshake_listen_again(&s);
    agree(&s, AUTO, none, NULL);
    agree(&s, AUTO, RAW_ENCRYPT, not_agreed);
    agree(&s, REQUIRED, both, conflict);
    handshake_close(&s);
}

/* The server does not believe "the same host" from a client with another address, whether or not
 * that client encrypts. */
static void same_host_by_address(void **state)
{
    (void)state;
    struct handshake_scene s;
    handshake_open(&s, true, 10000);
    for (unsigned encrypts = 0; encrypts < 2; encrypts++) {
        struct raw_frame frame;
        uint8_t client[RAW_HASH], server[RAW_HASH];
        pthread_create(&s.thread, NULL, handshake_serve, &s);
        struct raw raw = raw_connect(s.port, "127.0.0.2", "127.0.0.1");
        raw_set_key(&raw);
        raw.flags = encrypts ? RAW_SAME_HOST | RAW_ENCRYPT : RAW_SAME_HOST;
        handshake_make_step(&raw, AT_HELLO, &frame);
        raw_send(&raw, frame.bytes, frame.length);
        raw_expect(&raw, CHALLENGE, &frame);
        assert_int_equal(frame.payload[RAW_OPENING], 0); /* the server reports what it sees */
        raw_take_opening(&raw, &frame);
        raw_derive(&raw, client, server);
        raw_send_proof(&raw, client);
        raw_expect(&raw, REFUSE, &frame);
        handshake_expect_failure(&s, -EACCES, "says that it is on the server's host");
        raw_close(&raw);
    }
    handshake_close(&s);
}

/* 127.0.0.2 is not the server's address on this connection. This is as close to another host as
 * one host can come. */
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
    raw.flags = 0;
    handshake_play_to(&raw, STEPS);
    raw_close(&raw);
    assert_int_equal(handshake_result(&s), 0);
    handshake_close(&s);
}

/* All of 127.0.0.0/8 is this host. Debian maps the host's name to 127.0.1.1, and a client that
 * connects there has the address 127.0.0.1. */
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

/* One bit of any byte of HELLO or PROOF is flipped in transit. The transcripts then differ, so
 * the proof is wrong if nothing fails earlier. */
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
            if (at < 4) /* the server would wait for the rest of a longer frame */
                shutdown(raw.fd, SHUT_WR);
            if (step == AT_HELLO && raw_receive(&raw, &received) && received.type == CHALLENGE) {
                uint8_t client[RAW_HASH], server[RAW_HASH];
                raw_take_opening(&raw, &received);
                raw_derive(&raw, client, server);
                raw_send_proof(&raw, client);
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
            if (at >= 4) /* the frame's length is unchanged */
                assert_int_equal(rc, -EBADMSG);
            raw_close(&raw);
        }
    }
    handshake_close(&s);
}

/* Frames that were once correct are sent again: the same frame, the proof of another connection,
 * the server's own proof. */
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

    /* the server's own frame, sent back to it */
    raw = handshake_connect(&s);
    raw_set_key(&raw);
    handshake_play_to(&raw, AT_ANSWER);
    raw_expect(&raw, OFFER, &received);
    raw_send(&raw, received.bytes, received.length);
    handshake_expect_failure(&s, -EBADMSG, "a frame was tampered with");
    raw_close(&raw);

    /* A recorded dialogue, with the same nonce. */
    struct raw first = handshake_connect(&s);
    raw_set_key(&first);
    handshake_play_to(&first, AT_PROOF);
    handshake_make_step(&first, AT_PROOF, &proof);
    raw_close(&first);
    handshake_result(&s);
    raw = handshake_connect(&s);
    memcpy(raw.client_nonce, first.client_nonce, 32);
    uint8_t opening[300];
    raw_send_frame(&raw, HELLO, opening, raw_opening(&raw, opening, true));
    raw_expect(&raw, CHALLENGE, &received);
    assert_memory_not_equal(received.payload + 7, first.server_nonce, 32);
    raw_send(&raw, proof.bytes, proof.length);
    handshake_expect_failure(&s, -EACCES,
                             "the key differs from the server's: copy the server's key file");
    raw_close(&raw);
    handshake_close(&s);
}

/* ----------------------------------------------------------------------- providers */

static void offer_answer(struct raw *raw, const char *name, uint8_t expected)
{
    uint8_t payload[300];
    struct raw_frame frame;
    raw_send_frame(raw, TRY, payload, raw_string(payload, name));
    raw_expect(raw, expected, &frame);
}

/* The server refuses one provider after the other with a reason, and stops after the fourth. */
static void providers_that_fail(void **state)
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

static void provider_fails_then_another_works(void **state)
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
            uint8_t payload[300];
            raw_send_frame(&raw, ANSWER, NULL, 0);
            raw_expect(&raw, RESULT, &frame);
            assert_int_equal((int8_t)frame.payload[0], -ENODEV);
            raw_send_frame(&raw, RESULT, payload, raw_result(payload, -ECANCELED, "as you like"));
        }
        uint8_t payload[300];
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

/* The client fails, before its ANSWER or after it. */
static void client_gives_up_and_goes(void **state)
{
    (void)state;
    for (int after = 0; after < 2; after++) {
        struct handshake_scene s;
        struct raw_frame frame;
        uint8_t payload[300];
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

/* The provider refuses an answer that it does not understand. */
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

/* After establishment nothing may be sent on the handshake socket. */
static void nothing_is_sent_on_the_handshake_socket_later(void **state)
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

/* The client wishes for more than any machine has; the server's own options count. */
static void excessive_wishes(void **state)
{
    (void)state;
    struct handshake_scene s;
    struct raw_frame frame;
    uint8_t opening[300], client[RAW_HASH], server[RAW_HASH], payload[300];
    handshake_open(&s, false, 10000);
    struct raw raw = handshake_connect(&s);
    raw_opening(&raw, opening, false);
    memset(opening + 72, 0xff, 12);
    raw_send_frame(&raw, HELLO, opening, RAW_OPENING + 4);
    raw_expect(&raw, CHALLENGE, &frame);
    raw_take_opening(&raw, &frame);
    raw_derive(&raw, client, server);
    raw_send_proof(&raw, client);
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
        cmocka_unit_test(wrong_keys),
        cmocka_unit_test(names_purposes_and_allowed_clients),
        cmocka_unit_test(names_of_nonsense),
        cmocka_unit_test(public_key_of_low_order),
        cmocka_unit_test(agreement_on_encryption),
        cmocka_unit_test(same_host_by_address),
        cmocka_unit_test(without_a_key_only_this_host),
        cmocka_unit_test(without_a_key_by_the_hosts_own_name),
        cmocka_unit_test(tampered_before_the_proof),
        cmocka_unit_test(tampered_after_the_proof),
        cmocka_unit_test(replays),
        cmocka_unit_test(providers_that_fail),
        cmocka_unit_test(provider_fails_then_another_works),
        cmocka_unit_test(client_gives_up_and_goes),
        cmocka_unit_test(answer_of_nonsense),
        cmocka_unit_test(only_the_providers_that_the_server_allows),
        cmocka_unit_test(nothing_is_sent_on_the_handshake_socket_later),
        cmocka_unit_test(excessive_wishes),
    };
    return cmocka_run_group_tests(tests, raw_make_key, raw_remove_key);
}
