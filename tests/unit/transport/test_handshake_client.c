/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The client's side of the handshake against servers that send it byte by byte, and stop or refuse.
 */
#include "tests/scenes/client_scene.h"

#include "common/clock.h"
#include "tests/scenes/forward_clock.h"
#include "transport/handshake/handshake.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#define TIMEOUT_MS 60000u /* of the test's clock */

static void honest_server_is_believed(void **state)
{
    (void)state;
    for (int with_key = 0; with_key < 2; with_key++) {
        struct scene s;
        struct raw_frame frame;
        open_scene(&s, with_key, 10000);
        struct raw raw = take_client(&s);
        if (with_key)
            raw_set_key(&raw);
        play_to(&raw, STEPS);
        raw_expect(&raw, RESULT, &frame);
        assert_int_equal(client_result(&s), 0);
        assert_string_equal(s.path.provider, "shm");
        assert_int_equal(s.path.refused_count, 0);
        assert_true(raw_receives_end(&raw));
        raw_close(&raw);
        close_scene(&s);
    }
}

/* ------------------------------------------------------------------- golden bytes */

static void hello_try_answer_and_result_golden_bytes(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    open_scene(&s, false, 10000);
    s.options.slots = 0x0102;
    s.options.message = 0x30405;
    struct raw raw = take_client(&s);
    static const uint8_t hello[] = {52, 0, 0, 0, 1, 'I', 'B', 'X', 'D', 1, 0, 0};
    static const uint8_t wishes[] = {2, 1, 0, 0, 5, 4, 3, 0, 0, 0, 0, 0};
    raw_expect(&raw, HELLO, &frame);
    assert_int_equal(frame.length, 56);
    assert_memory_equal(frame.bytes, hello, sizeof(hello));
    assert_memory_equal(frame.bytes + 44, wishes, sizeof(wishes));

    uint8_t payload[128], client_proof[RAW_HASH], server_proof[RAW_HASH];
    memcpy(raw.client_nonce, frame.payload + 7, 32);
    size_t n = raw_opening(&raw, payload, false);
    raw_host_mark(&raw, payload + n);
    raw_send_frame(&raw, CHALLENGE, payload, n + RAW_HASH);
    raw_derive(&raw, client_proof, server_proof);
    static const uint8_t proof[] = {33, 0, 0, 0, 3};
    raw_expect(&raw, PROOF, &frame);
    assert_int_equal(frame.length, 37);
    assert_memory_equal(frame.bytes, proof, sizeof(proof));
    assert_memory_equal(frame.bytes + 5, client_proof, RAW_HASH);
    raw_send_frame(&raw, PROOF, server_proof, RAW_HASH);
    raw.authenticated = true; /* from here on raw_receive() checks MACs */

    static const uint8_t try[] = {1 + 5 + 16, 0, 0, 0, 4, 3, 0, 's', 'h', 'm'};
    raw_expect(&raw, TRY, &frame);
    assert_int_equal(frame.length, sizeof(try) + 16);
    assert_memory_equal(frame.bytes, try, sizeof(try));
    raw_send_frame(&raw, OFFER, payload, put_wire(payload));
    static const uint8_t answer[] = {1 + 16, 0, 0, 0, 6};
    raw_expect(&raw, ANSWER, &frame);
    assert_memory_equal(frame.bytes, answer, sizeof(answer));
    static const uint8_t result[] = {1 + 6 + 16, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0};
    raw_expect(&raw, RESULT, &frame);
    assert_memory_equal(frame.bytes, result, sizeof(result));
    raw_send_frame(&raw, RESULT, payload, raw_result(payload, 0, ""));
    assert_int_equal(client_result(&s), 0);
    raw_close(&raw);
    close_scene(&s);
}

/* A failure of the client's: -errno in four bytes, then its sentence. */
static void failing_result_golden_bytes(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    open_scene(&s, false, 10000);
    memory_control.fail_join = -19;
    struct raw raw = take_client(&s);
    play_to(&raw, AT_RESULT);
    static const uint8_t result[] = {1 + 6 + 17 + 16, 0, 0, 0, 7, 0xed, 0xff, 0xff, 0xff, 17, 0};
    raw_expect(&raw, RESULT, &frame);
    assert_memory_equal(frame.bytes, result, sizeof(result));
    assert_memory_equal(frame.bytes + sizeof(result), "join told to fail", 17);
    raw_close(&raw);
    expect_failure(&s, -ECONNRESET, "it closed the connection");
    close_scene(&s);
}

/* ------------------------------------------------------------- cut short, and silent */

/* Sending to a server that is gone fails as receiving from it does. */
static void frame_for_nobody(void **state)
{
    (void)state;
    int fds[2];
    struct frame frame;
    struct ibx_options options;
    struct ibx_error err = {0};
    ibx_options_init(&options);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    struct ibx_handshake *h = ibx_handshake_create(fds[0], IBX_ROLE_CLIENT, &options, NULL, NULL);
    assert_non_null(h);
    close(fds[1]);
    ibx_handshake_frame_begin(&frame, FRAME_HELLO);
    uint64_t deadline = ibx_now_ns() + 10000 * IBX_NS_PER_MS;
    assert_int_equal(ibx_handshake_frame_send(h, &frame, deadline, &err), -ECONNRESET);
    assert_non_null(strstr(err.message, "it closed the connection"));
    ibx_close(h->conn);
}

static void cut_off_at_every_byte(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true, 10000);
    for (enum step step = 0; step < STEPS; step++) {
        for (size_t n = 0, length = 1; n < length; n++) {
            struct raw_frame frame;
            struct raw raw = take_client(&s);
            raw_set_key(&raw);
            play_to(&raw, step);
            make_step(&raw, step, &frame);
            raw_send(&raw, frame.bytes, n);
            length = frame.length;
            /* All that the client has sent is read, so that it meets an end and no reset. */
            shutdown(raw.fd, SHUT_WR);
            expect_failure(&s, -ECONNRESET, "it closed the connection");
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

static void silent_in_every_state(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, false, TIMEOUT_MS);
    for (enum step step = 0; step < STEPS; step++) {
        for (int half = 0; half < 2; half++) {
            struct raw_frame frame;
            struct raw raw = take_client(&s);
            play_to(&raw, step);
            make_step(&raw, step, &frame);
            if (half)
                raw_send(&raw, frame.bytes, frame.length - 1);
            forward_clock_until(&s.over, TIMEOUT_MS / 4);
            expect_failure(&s, -ETIMEDOUT, "no answer in time");
            assert_true(s.took_ns >= (TIMEOUT_MS - 1) * IBX_NS_PER_MS);
            assert_true(s.took_ns < 2 * TIMEOUT_MS * IBX_NS_PER_MS);
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

/* A listening socket that nobody accepts from. */
static void nobody_takes_the_knock(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, false, 100);
    client(&s);
    assert_int_equal(s.rc, -ETIMEDOUT);
    assert_non_null(
        strstr(s.err.message, "no answer in time; see that an ibx server listens there"));
    close_scene(&s);
}

static void nobody_listens(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, false, 1000);
    int listening = s.listening;
    close(listening);
    client(&s);
    assert_int_equal(s.rc, -ECONNREFUSED);
    assert_non_null(strstr(s.err.message, "no server answers at 127.0.0.1 port"));
    s.listening = raw_listen(&s.port);
    close_scene(&s);
}

/* ----------------------------------------------------------------------- providers */

static void try_is(struct raw *raw, const char *name)
{
    struct raw_frame frame;
    uint8_t expected[64];
    raw_expect(raw, TRY, &frame);
    size_t n = raw_string(expected, name);
    assert_int_equal(frame.payload_length, n);
    assert_memory_equal(frame.payload, expected, n);
}

/* The server refuses one; the other is tried on the same socket, and the reason is kept. */
static void refused_provider_and_its_reason(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    uint8_t payload[300];
    open_scene(&s, false, 10000);
    struct raw raw = take_client(&s);
    play_to(&raw, AT_OFFER);
    raw.authenticated = true;
    try_is(&raw, "shm");
    raw_send_frame(&raw, RESULT, payload, raw_result(payload, -EPERM, "not\aon a Sunday"));
    try_is(&raw, "tcp");
    raw_send_frame(&raw, OFFER, payload, put_wire(payload));
    raw_expect(&raw, ANSWER, &frame);
    raw_expect(&raw, RESULT, &frame);
    raw_send_frame(&raw, RESULT, payload, raw_result(payload, 0, ""));
    assert_int_equal(client_result(&s), 0);
    assert_string_equal(s.path.provider, "tcp");
    assert_int_equal(s.path.refused_count, 3);
    assert_string_equal(s.path.refused[0].provider, "shm");
    assert_string_equal(s.path.refused[0].reason, "on the server: not?on a Sunday");
    assert_string_equal(s.path.refused[1].reason, "verbs is not in this build");
    raw_close(&raw);
    close_scene(&s);
}

/* A mark that is not this host's: shared memory is not even asked for. */
static void server_on_another_host(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    uint8_t payload[128], proof[RAW_HASH], own[RAW_HASH];
    open_scene(&s, false, 10000);
    struct raw raw = take_client(&s);
    raw_expect(&raw, HELLO, &frame);
    memcpy(raw.client_nonce, frame.payload + 7, 32);
    size_t n = raw_opening(&raw, payload, false);
    raw_host_mark(&raw, payload + n);
    payload[n] ^= 1;
    raw_send_frame(&raw, CHALLENGE, payload, n + RAW_HASH);
    raw_derive(&raw, proof, own);
    raw_expect(&raw, PROOF, &frame);
    raw_send_frame(&raw, PROOF, own, RAW_HASH);
    raw.authenticated = true;
    try_is(&raw, "tcp");
    raw_send_frame(&raw, RESULT, payload, raw_result(payload, -EPERM, "no"));
    expect_failure(&s, -ENOTSUP, "shm: the server is on another host; ");
    assert_non_null(strstr(s.err.message, "tcp: on the server: no"));
    raw_close(&raw);
    close_scene(&s);
}

/* Offers that the provider does not like, up to the longest frame. */
static void offers_of_nonsense(void **state)
{
    (void)state;
    static const size_t lengths[] = {0, 1, 7, 8, 9, 100, 4096};
    struct scene s;
    struct raw_frame frame;
    uint8_t nonsense[4096];
    memset(nonsense, 0xab, sizeof(nonsense));
    open_scene(&s, false, 10000);
    s.options.provider[0] = '\0';
    assert_int_equal(ibx_options_set(&s.options, "provider", "shm", NULL), 0);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct raw raw = take_client(&s);
        play_to(&raw, AT_OFFER);
        raw.authenticated = true;
        try_is(&raw, "shm");
        raw_send_frame(&raw, OFFER, nonsense, lengths[i]);
        raw_expect(&raw, RESULT, &frame);
        expect_failure(&s, -ENOTSUP,
                       lengths[i] < 8 ? "a malformed offer" : "there is no such wire");
        assert_true(raw_receives_end(&raw));
        raw_close(&raw);
    }
    close_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(honest_server_is_believed),
        cmocka_unit_test(hello_try_answer_and_result_golden_bytes),
        cmocka_unit_test(failing_result_golden_bytes),
        cmocka_unit_test(frame_for_nobody),
        cmocka_unit_test(cut_off_at_every_byte),
        cmocka_unit_test(silent_in_every_state),
        cmocka_unit_test(nobody_takes_the_knock),
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(refused_provider_and_its_reason),
        cmocka_unit_test(server_on_another_host),
        cmocka_unit_test(offers_of_nonsense),
    };
    return cmocka_run_group_tests(tests, raw_make_key, raw_remove_key);
}
