/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The client's side of the handshake with peers that are no server, lack the key, or change
 * frames. */
#include "tests/fixtures/client_scene.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <cmocka.h>

#define TRY_BYTES (5 + 2 + 3 + 16) /* of "shm" */

/* -------------------------------------------------------------------------- nonsense */

static void wrong_lengths(void **state)
{
    (void)state;
    static const uint8_t lengths[][4] = {
        {0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff}, {0, 0, 0, 0x80}, {0x12, 0x10, 0, 0}};
    struct scene s;
    open_scene(&s, false, 10000);
    for (enum step step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < sizeof(lengths) / 4; i++) {
            uint8_t bytes[5] = {[4] = CHALLENGE};
            struct raw_frame frame;
            struct raw raw = take_client(&s);
            memcpy(bytes, lengths[i], 4);
            play_to(&raw, step);
            make_step(&raw, step, &frame);
            raw_send(&raw, bytes, 5);
            expect_failure(&s, -EPROTO, "it does not speak this protocol");
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

static void frames_out_of_order(void **state)
{
    (void)state;
    static const uint8_t right[STEPS] = {CHALLENGE, PROOF, OFFER, RESULT};
    struct scene s;
    open_scene(&s, false, 10000);
    for (enum step step = 0; step < STEPS; step++) {
        for (unsigned type = 0; type < 12; type++) {
            /* RESULT instead of OFFER ends the attempt with one provider; REFUSE ends all. */
            if (type == right[step] || type == REFUSE || (step == AT_OFFER && type == RESULT))
                continue;
            struct raw_frame frame, other;
            uint8_t payload[300];
            struct raw raw = take_client(&s);
            play_to(&raw, step);
            make_step(&raw, step, &frame);
            raw.sent--;
            size_t n = raw_opening(&raw, payload, false);
            raw_frame_make(&raw, &other, (uint8_t)type, payload, n);
            raw_send(&raw, other.bytes, other.length);
            expect_failure(&s, -EPROTO, "it does not speak this protocol");
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

/* If the peer is not a server of ibx, the message quotes its first bytes. */
static void banners_of_other_servers(void **state)
{
    (void)state;
    static const struct {
        const char *says, *is;
    } cases[] = {{"HTTP/1.1 400 Bad Request\r\n", "a web server (HTTP) listens there"},
                 {"<!DOCTYPE HTML>\n<html>", "a web server (HTTP) listens there"},
                 {"SSH-2.0-OpenSSH_9.2p1\r\n", "an SSH server listens there"},
                 {"{\"QMP\": {\"version\": {", "a QEMU monitor (QMP) listens there"},
                 {"\x15\x03\x03\x01\x02", "a TLS server listens there"},
                 {"RFB 003.008\n", "a VNC server listens there"},
                 {"220 mail ESMTP\r\n", "a mail or FTP server listens there"},
                 {"\xff\xff\xff\xff\xff", "it does not speak this protocol; see that an ibx"}};
    struct scene s;
    open_scene(&s, true, 10000);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct raw_frame frame;
        struct raw raw = take_client(&s);
        raw_expect(&raw, HELLO, &frame);
        raw_send(&raw, cases[i].says, strlen(cases[i].says));
        expect_failure(&s, -EPROTO, cases[i].is);
        raw_close(&raw);
    }
    close_scene(&s);
}

/* A REFUSE may replace any frame before TRY. Its sentence is reported, made safe for a terminal. */
static void refusals(void **state)
{
    (void)state;
    static const struct {
        int32_t code;
        const char *reason, *text;
        int expected;
    } cases[] = {
        {-EACCES, "not you", "refuses: not you", -EACCES},
        {0, "no code", "refuses: no code", -ECONNREFUSED},
        {-EPROTONOSUPPORT, "red \x1b[31m\nline\x80", "refuses: red ?[31m?line?", -EPROTONOSUPPORT},
        {-ECANCELED, "given up", "refuses: given up", -ECONNREFUSED}, /* callers act on this code */
        {-ETIMEDOUT, "no host", "refuses: no host", -ECONNREFUSED},
        /* nothing was claimed */
        {-ESTALE, "no such session", "refuses: no such session", -ECONNREFUSED},
        {5, "positive", "refuses: positive", -EPROTO},
        {INT32_MIN, "huge", "refuses: huge", -EPROTO},
    };
    struct scene s;
    open_scene(&s, false, 10000);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (enum step step = 0; step <= AT_PROOF; step++) {
            struct raw_frame frame, refuse;
            uint8_t payload[300];
            struct raw raw = take_client(&s);
            play_to(&raw, step);
            make_step(&raw, step, &frame);
            raw.sent--;
            raw_frame_make(&raw, &refuse, REFUSE, payload,
                           raw_result(payload, cases[i].code, cases[i].reason));
            raw_send(&raw, refuse.bytes, refuse.length);
            expect_failure(&s, cases[i].expected, cases[i].text);
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

/* The peer's sentence is longer than any message, or its length is false. */
static void refusal_that_is_too_long(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    uint8_t payload[3000];
    open_scene(&s, false, 10000);
    for (unsigned length = 0; length < 3000; length += 299) {
        for (unsigned claimed = 0; claimed < 3; claimed++) {
            struct raw raw = take_client(&s);
            raw_expect(&raw, HELLO, &frame);
            memset(payload, 'x', sizeof(payload));
            memset(payload, 0xff, 4); /* -1 */
            unsigned claim = claimed == 0 ? length : claimed == 1 ? length + 1 : 0xffff;
            payload[4] = (uint8_t)claim;
            payload[5] = (uint8_t)(claim >> 8);
            raw_send_frame(&raw, REFUSE, payload, 6 + length > 3000 ? 3000 : 6 + length);
            int rc = client_result(&s);
            assert_true(rc == -ECONNREFUSED || rc == -EPROTO);
            assert_non_null(strstr(s.err.message, "refuses"));
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

/* -------------------------------------------------------------------------- proofs */

static void server_without_the_key(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    uint8_t payload[300];
    open_scene(&s, true, 10000);

    /* The server announces that it has no key. */
    struct raw raw = take_client(&s);
    raw_expect(&raw, HELLO, &frame);
    assert_int_equal(frame.payload[6], 1);
    raw_take_opening(&raw, &frame);
    size_t n = raw_opening(&raw, payload, false);
    raw_send_frame(&raw, CHALLENGE, payload, n + RAW_HASH);
    expect_failure(&s, -EACCES, "has no key, this side has one");
    raw_close(&raw);

    /* The server has another key, does not check the client's proof, and sends an arbitrary
     * proof. */
    for (int wrong = 0; wrong < 3; wrong++) {
        uint8_t client_proof[RAW_HASH], server_proof[RAW_HASH];
        raw = take_client(&s);
        memset(raw.key, 0x33, RAW_HASH);
        raw_expect(&raw, HELLO, &frame);
        raw_take_opening(&raw, &frame);
        n = raw_opening(&raw, payload, true);
        raw_host_mark(&raw, payload + n);
        raw_send_frame(&raw, CHALLENGE, payload, n + RAW_HASH);
        raw_derive(&raw, client_proof, server_proof);
        raw_expect(&raw, PROOF, &frame);
        memcpy(client_proof, frame.payload + 1, RAW_HASH);
        /* the proof of the wrong key; the client's own proof; nothing */
        raw_send_frame(&raw, PROOF, wrong == 0 ? server_proof : client_proof,
                       wrong == 2 ? 0 : RAW_HASH);
        expect_failure(&s, -EACCES, "does not know the key");
        /* The client's TRY has followed its PROOF, and reveals nothing. */
        assert_int_equal(recv(raw.fd, payload, TRY_BYTES, MSG_WAITALL), TRY_BYTES);
        assert_int_equal(payload[4], TRY);
        assert_true(raw_receives_end(&raw));
        raw_close(&raw);
    }
    close_scene(&s);

    /* The server asks for a key, and the client has none. */
    open_scene(&s, false, 10000);
    raw = take_client(&s);
    raw_expect(&raw, HELLO, &frame);
    n = raw_opening(&raw, payload, true);
    raw_send_frame(&raw, CHALLENGE, payload, n + RAW_HASH);
    expect_failure(&s, -EACCES, "has a key, this side has none");
    raw_close(&raw);
    close_scene(&s);
}

static void tampered_frames(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true, 10000);
    for (enum step step = 0; step < STEPS; step++) {
        for (size_t at = 0, length = 1; at < length; at++) {
            struct raw_frame frame;
            struct raw raw = take_client(&s);
            raw_set_key(&raw);
            play_to(&raw, step);
            make_step(&raw, step, &frame);
            length = frame.length;
            frame.bytes[at] ^= (uint8_t)(1u << at % 8);
            raw_send(&raw, frame.bytes, frame.length);
            if (step == AT_CHALLENGE && at >= 5) {
                /* The peer's wishes and nonce are accepted; then neither proof is right. */
                uint8_t proof[RAW_HASH] = {0};
                raw_send(&raw, "\x21\0\0\0\x03", 5);
                raw_send(&raw, proof, RAW_HASH);
            }
            shutdown(raw.fd, SHUT_WR);
            int rc = client_result(&s);
            assert_true(rc == -EBADMSG || rc == -EPROTO || rc == -ECONNRESET || rc == -EACCES ||
                        rc == -EPROTONOSUPPORT);
            if (step >= AT_OFFER && at >= 4)
                assert_int_equal(rc, -EBADMSG);
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_lengths),
        cmocka_unit_test(frames_out_of_order),
        cmocka_unit_test(banners_of_other_servers),
        cmocka_unit_test(refusals),
        cmocka_unit_test(refusal_that_is_too_long),
        cmocka_unit_test(server_without_the_key),
        cmocka_unit_test(tampered_frames),
    };
    return cmocka_run_group_tests(tests, raw_make_key, raw_remove_key);
}
