/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The server's side of the handshake. The client sends its frames byte by byte, correct and
 * wrong ones. */
#include "tests/fixtures/handshake_scene.h"

#include "common/clock.h"
#include "tests/fixtures/forward_clock.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <cmocka.h>

#define TIMEOUT_MS 60000u /* on the test's clock */
#define PROVE_MS   10000u /* time limit for HELLO and PROOF */

static atomic_bool no_descriptor;

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    if (!no_descriptor || strcmp(path, "/proc/sys/kernel/random/boot_id") != 0)
        return __real_open64(path, flags, mode);
    errno = EMFILE;
    return -1;
}

/* A server that cannot read its boot id now does not claim that the client is on another host.
 * Must run first: no other test may have read the boot id. */
static void boot_id_without_descriptors(void **state)
{
    (void)state;
    struct handshake_scene s;
    struct raw_frame frame;
    handshake_open(&s, false, 10000);
    no_descriptor = true;
    struct raw raw = handshake_connect(&s);
    handshake_play_to(&raw, AT_PROOF);
    raw_expect(&raw, REFUSE, &frame);
    raw_close(&raw);
    handshake_expect_failure(&s, -EBUSY, "Too many open files: try again");
    no_descriptor = false;
    handshake_close(&s);
}

static void correct_client_is_accepted(void **state)
{
    (void)state;
    for (int with_key = 0; with_key < 2; with_key++) {
        struct handshake_scene s;
        handshake_open(&s, with_key, 10000);
        struct raw raw = handshake_connect(&s);
        if (with_key)
            raw_set_key(&raw);
        handshake_play_to(&raw, STEPS);
        raw_close(&raw);
        assert_int_equal(handshake_result(&s), 0);
        assert_string_equal(s.provider, "shm");
        assert_int_equal(s.closed_status, -ECONNRESET);
        handshake_close(&s);
    }
}

/* Both ends use the smaller of their limits. */
static void the_smaller_limits_count(void **state)
{
    (void)state;
    static const struct {
        uint32_t slots, our_slots;
        uint64_t message, our_message;
        unsigned agreed_slots, agreed_message; /* 0: refused */
    } cases[] = {
        {8, 16, 2048, 16384, 8, 2048},
        {32, 16, 65536, 16384, 16, 16384},
        {16, 8, 16384, 2048, 8, 2048},
        {4, 16, 1024, 16384, 4, 1024},
        {3, 16, 16384, 16384, 0, 0},
        {16, 16, 1023, 16384, 0, 0},
        {UINT32_MAX, 16, UINT64_MAX, 16384, 16, 16384},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct handshake_scene s;
        struct raw_frame frame;
        handshake_open(&s, false, 10000);
        s.options.slots = cases[i].our_slots;
        s.options.message = cases[i].our_message;
        handshake_listen_again(&s);
        struct raw raw = handshake_connect(&s);
        raw.slots = cases[i].slots;
        raw.message = cases[i].message;
        if (cases[i].agreed_slots) {
            handshake_play_to(&raw, STEPS);
            raw_close(&raw);
            assert_int_equal(handshake_result(&s), 0);
            assert_int_equal(s.slots, cases[i].agreed_slots);
            assert_int_equal(s.message_max, cases[i].agreed_message);
        } else {
            handshake_make_step(&raw, AT_HELLO, &frame);
            raw_send(&raw, frame.bytes, frame.length);
            handshake_expect_failure(&s, -EPROTO, "it does not speak this protocol");
            raw_close(&raw);
        }
        handshake_close(&s);
    }
}

/* ------------------------------------------------------------------- golden bytes */

static void challenge_golden_bytes(void **state)
{
    (void)state;
    struct handshake_scene s;
    struct raw_frame frame;
    uint8_t mark[RAW_HASH];
    handshake_open(&s, false, 10000);
    struct raw raw = handshake_connect(&s);
    handshake_play_to(&raw, AT_PROOF);
    raw_expect(&raw, CHALLENGE, &frame);
    static const uint8_t head[] = {150, 0, 0, 0, 2, 'I', 'B', 'X', 'D', 2, 0, 0};
    static const uint8_t wishes[] = {1, 16, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 1};
    assert_int_equal(frame.length, 154);
    assert_memory_equal(frame.bytes, head, sizeof(head));
    assert_memory_equal(frame.bytes + 76, wishes, sizeof(wishes));
    raw_take_opening(&raw, &frame);
    raw_host_mark(&raw, mark);
    assert_memory_equal(frame.bytes + 90, mark, RAW_HASH);
    bool found = false; /* the server's socket is in this process */
    for (int fd = 3; fd < 1000 && !found; fd++) {
        raw_end_mark(&raw, fd, mark);
        found = fd != raw.fd && !memcmp(frame.bytes + 122, mark, RAW_HASH);
    }
    assert_true(found);
    raw_close(&raw);
    handshake_expect_failure(&s, -ECONNRESET, "it closed the connection");
    handshake_close(&s);
}

static void proof_offer_and_result_golden_bytes(void **state)
{
    (void)state;
    struct handshake_scene s;
    struct raw_frame frame;
    uint8_t client[RAW_HASH], server[RAW_HASH];
    handshake_open(&s, true, 10000);
    struct raw raw = handshake_connect(&s);
    raw_set_key(&raw);
    handshake_play_to(&raw, AT_PROOF);
    raw_expect(&raw, CHALLENGE, &frame);
    assert_int_equal(frame.bytes[11], 1); /* the server has a key */
    raw_take_opening(&raw, &frame);
    raw_derive(&raw, client, server);
    raw_send_proof(&raw, client);
    static const uint8_t proof_head[] = {33, 0, 0, 0, 3};
    raw_expect(&raw, PROOF, &frame);
    assert_memory_equal(frame.bytes, proof_head, 5);
    assert_memory_equal(frame.bytes + 5, server, RAW_HASH);
    raw.authenticated = true; /* from here on raw_receive() checks MACs */
    raw_send_frame(&raw, TRY, "\3\0shm", 5);
    static const uint8_t offer_head[] = {1 + 8 + 16, 0, 0, 0, 5};
    raw_expect(&raw, OFFER, &frame);
    assert_memory_equal(frame.bytes, offer_head, 5);
    raw_send_frame(&raw, ANSWER, NULL, 0);
    static const uint8_t result[] = {1 + 6 + 16, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0};
    raw_expect(&raw, RESULT, &frame);
    assert_memory_equal(frame.bytes, result, sizeof(result));
    raw_close(&raw);
    handshake_expect_failure(&s, -ECONNRESET, "it closed the connection");
    handshake_close(&s);
}

/* ------------------------------------------------------------- cut short, and silent */

/* The client disconnects after any byte of any of its frames. */
static void client_disconnects_after_every_byte(void **state)
{
    (void)state;
    struct handshake_scene s;
    handshake_open(&s, true, 10000);
    for (enum handshake_step step = 0; step < STEPS; step++) {
        for (size_t n = 0, length = 1; n < length; n++) {
            struct raw_frame frame;
            struct raw raw = handshake_connect(&s);
            raw_set_key(&raw);
            handshake_play_to(&raw, step);
            handshake_make_step(&raw, step, &frame);
            raw_send(&raw, frame.bytes, n);
            length = frame.length;
            raw_close(&raw);
            handshake_expect_failure(&s, -ECONNRESET, "it closed the connection");
        }
    }
    handshake_close(&s);
}

/* The client stays connected and sends no more. The server gives up at the deadline, not before
 * and not much later. */
static void client_is_silent_in_every_state(void **state)
{
    (void)state;
    struct handshake_scene s;
    handshake_open(&s, false, TIMEOUT_MS);
    for (enum handshake_step step = 0; step < STEPS; step++) {
        for (int half = 0; half < 2; half++) {
            struct raw_frame frame;
            struct raw raw = handshake_connect(&s);
            handshake_play_to(&raw, step);
            handshake_make_step(&raw, step, &frame);
            if (half)
                raw_send(&raw, frame.bytes, frame.length - 1);
            const uint64_t limit = step < AT_TRY ? PROVE_MS : TIMEOUT_MS;
            forward_clock_until(&s.over, (unsigned)limit / 4);
            handshake_expect_failure(&s, -ETIMEDOUT, "no answer in time");
            assert_true(s.took_ns >= (limit - 1) * IBX_NS_PER_MS);
            /* a generous limit: the machine may be busy */
            assert_true(s.took_ns < (limit + TIMEOUT_MS) * IBX_NS_PER_MS);
            raw_close(&raw);
        }
    }
    handshake_close(&s);
}

/* A byte now and then does not extend the deadline. */
static void slow_bytes_do_not_extend_the_deadline(void **state)
{
    (void)state;
    struct handshake_scene s;
    struct raw_frame frame;
    handshake_open(&s, false, TIMEOUT_MS);
    struct raw raw = handshake_connect(&s);
    handshake_make_step(&raw, AT_HELLO, &frame);
    size_t sent = 0;
    while (sent < frame.length && !s.over) {
        raw_send(&raw, frame.bytes + sent++, 1);
        forward_clock(PROVE_MS / 10, &s.over);
    }
    assert_true(sent < frame.length);
    handshake_expect_failure(&s, -ETIMEDOUT, "no answer in time");
    raw_close(&raw);
    handshake_close(&s);
}

/* -------------------------------------------------------------------------- nonsense */

/* Sends bytes at a step, then disconnects. The server must refuse with one of three codes. */
static void expect_rejection(struct handshake_scene *s, enum handshake_step step, const void *bytes,
                             size_t length)
{
    struct raw_frame frame;
    struct raw raw = handshake_connect(s);
    handshake_play_to(&raw, step);
    handshake_make_step(&raw, step, &frame);
    raw_send(&raw, bytes, length);
    shutdown(raw.fd, SHUT_WR);
    int rc = handshake_result(s);
    assert_true(rc == -EPROTO || rc == -EBADMSG || rc == -ECONNRESET);
    assert_string_not_equal(s->err.message, "");
    raw_close(&raw);
}

static void wrong_lengths(void **state)
{
    (void)state;
    static const uint8_t lengths[][4] = {
        {0, 0, 0, 0},       {0xff, 0xff, 0xff, 0xff}, {0, 0, 0, 0x80},
        {0x12, 0x10, 0, 0}, {0xff, 0xff, 0xff, 0},    {0, 0x20, 0, 0},
    };
    struct handshake_scene s;
    handshake_open(&s, false, 10000);
    for (enum handshake_step step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < sizeof(lengths) / 4; i++) {
            uint8_t bytes[5] = {[4] = HELLO};
            memcpy(bytes, lengths[i], 4);
            struct raw_frame frame;
            struct raw raw = handshake_connect(&s);
            handshake_play_to(&raw, step);
            handshake_make_step(&raw, step, &frame);
            raw_send(&raw, bytes, 5);
            /* The server refuses at once; it does not wait for that many bytes. */
            handshake_expect_failure(&s, -EPROTO, "it does not speak this protocol");
            raw_close(&raw);
        }
    }
    handshake_close(&s);
}

/* Once frames carry MACs, a frame that is too short for one is refused. */
static void too_short_for_a_mac(void **state)
{
    (void)state;
    struct handshake_scene s;
    handshake_open(&s, false, 10000);
    for (enum handshake_step step = AT_TRY; step < STEPS; step++) {
        for (uint8_t body = 1; body <= RAW_MAC; body++) {
            uint8_t bytes[4 + RAW_MAC] = {body, 0, 0, 0, TRY};
            struct raw_frame frame;
            struct raw raw = handshake_connect(&s);
            handshake_play_to(&raw, step);
            handshake_make_step(&raw, step, &frame);
            raw_send(&raw, bytes, 4u + body);
            handshake_expect_failure(&s, -EBADMSG, "a frame was tampered with");
            raw_close(&raw);
        }
    }
    handshake_close(&s);
}

/* A well-formed frame of every other type in every state. */
static void frames_out_of_order(void **state)
{
    (void)state;
    static const uint8_t right[STEPS] = {HELLO, PROOF, TRY, ANSWER, RESULT};
    struct handshake_scene s;
    handshake_open(&s, false, 10000);
    for (enum handshake_step step = 0; step < STEPS; step++) {
        for (unsigned type = 0; type < 12; type++) {
            /* A client may end an attempt with RESULT. */
            if (type == right[step] || (step == AT_ANSWER && type == RESULT))
                continue;
            struct raw_frame frame, other;
            uint8_t payload[300];
            struct raw raw = handshake_connect(&s);
            handshake_play_to(&raw, step);
            handshake_make_step(&raw, step, &frame);
            raw.sent--;
            size_t n = raw_opening(&raw, payload, false);
            raw_frame_make(&raw, &other, (uint8_t)type, payload, n);
            raw_send(&raw, other.bytes, other.length);
            handshake_expect_failure(&s, -EPROTO, "it does not speak this protocol");
            raw_close(&raw);
        }
    }
    handshake_close(&s);
}

static void garbage(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "\n\n\n\n\n\n"};
    struct handshake_scene s;
    handshake_open(&s, false, 10000);
    for (size_t i = 0; i < 4; i++) {
        for (enum handshake_step step = 0; step < STEPS; step++)
            expect_rejection(&s, step, texts[i], strlen(texts[i]));
    }
    handshake_close(&s);
}

static void other_protocols_and_versions(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint8_t value;
        int code;
        const char *expected;
    } bad[] = {
        {0, 'i', -EPROTO, "it does not speak this protocol"},
        {3, 'Y', -EPROTO, "it does not speak this protocol"},
        {4, 0, -EPROTONOSUPPORT, "another version of the protocol is needed"},
        {4, 1, -EPROTONOSUPPORT, "another version of the protocol is needed"},
        {4, 3, -EPROTONOSUPPORT, "another version of the protocol is needed"},
        {5, 1, -EPROTONOSUPPORT, "another version of the protocol is needed"},
        {71, 3, -EPROTO, "it does not speak this protocol"}, /* encryption: unknown value */
        {72, 3, -EPROTO, "it does not speak this protocol"}, /* slots: too many */
        {77, 0, -EPROTO, "it does not speak this protocol"}, /* message: 0 */
    };
    struct handshake_scene s;
    handshake_open(&s, false, 10000);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint8_t opening[300];
        struct raw_frame frame;
        struct raw raw = handshake_connect(&s);
        size_t n = raw_opening(&raw, opening, false);
        opening[bad[i].at] = bad[i].value;
        raw_send_frame(&raw, HELLO, opening, n);
        handshake_expect_failure(&s, bad[i].code, bad[i].expected);
        raw_expect(&raw, REFUSE, &frame); /* the client is told why */
        assert_memory_equal(frame.payload + 6, bad[i].expected, frame.payload_length - 6);
        assert_true(raw_receives_end(&raw));
        raw_close(&raw);
    }
    handshake_close(&s);
}

/* A client of version 1, byte by byte, is refused with the frame of that version. */
static void client_of_version_1(void **state)
{
    (void)state;
    uint8_t hello[56] = {52, 0, 0, 0, 1, 'I', 'B', 'X', 'D', 1, 0, 0};
    static const uint8_t wishes[] = {16, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0};
    static const uint8_t refuse[] = {48, 0, 0, 0, 8, 0xa3, 0xff, 0xff, 0xff, 41, 0, 'a', 'n'};
    struct handshake_scene s;
    struct raw_frame frame;
    memcpy(hello + 44, wishes, sizeof(wishes));
    handshake_open(&s, false, 10000);
    struct raw raw = handshake_connect(&s);
    raw_send(&raw, hello, sizeof(hello));
    raw_expect(&raw, REFUSE, &frame);
    assert_memory_equal(frame.bytes, refuse, sizeof(refuse));
    handshake_expect_failure(&s, -EPROTONOSUPPORT, "another version of the protocol is needed");
    raw_close(&raw);
    handshake_close(&s);
}

/* The length of the fields after the names decides what they are. Old clients send nothing
 * there, or a claim; current ones send a program number, alone or after a claim. In a later
 * version's HELLO without a claim, 31 bytes may follow. */
static void fields_after_the_names(void **state)
{
    (void)state;
    static const struct {
        size_t n, program_at; /* SIZE_MAX: no program number */
        bool claims;
    } tails[] = {
        {0, SIZE_MAX, false}, {15, SIZE_MAX, false}, {16, 0, false},
        {17, 0, false},       {47, 0, false},        {48, SIZE_MAX, true},
        {63, SIZE_MAX, true}, {64, 48, true},        {300, 48, true},
    };
    struct handshake_scene s;
    handshake_open(&s, false, 10000);
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        uint8_t opening[600];
        struct raw_frame frame;
        struct raw raw = handshake_connect(&s);
        const size_t n = raw_opening(&raw, opening, false);
        for (size_t k = 0; k < tails[i].n; k++)
            opening[n + k] = (uint8_t)(k + 1);
        raw_send_frame(&raw, HELLO, opening, n + tails[i].n);
        for (enum handshake_step step = AT_PROOF; step < (tails[i].claims ? AT_TRY : STEPS);
             step++) {
            handshake_make_step(&raw, step, &frame);
            raw_send(&raw, frame.bytes, frame.length);
        }
        if (tails[i].claims) { /* the server has no such session */
            handshake_expect_failure(&s, -ESTALE, "no such session is waiting here");
            raw_close(&raw);
            continue;
        }
        raw_close(&raw);
        assert_int_equal(handshake_result(&s), 0);
        assert_int_equal(s.has_program, tails[i].program_at != SIZE_MAX);
        for (size_t k = 0; s.has_program && k < IBX_PROGRAM_BYTES; k++)
            assert_int_equal(s.program[k], tails[i].program_at + k + 1);
    }
    handshake_close(&s);
}

/* A payload cut to any length below that of its fields, in an otherwise well-formed frame. */
static void truncated_payloads(void **state)
{
    (void)state;
    static const size_t lengths[STEPS] = {RAW_OPENING + 4, 33, 5, 0, 6};
    struct handshake_scene s;
    handshake_open(&s, false, 10000);
    for (enum handshake_step step = 0; step < STEPS; step++) {
        for (size_t n = 0; n < lengths[step]; n++) {
            struct raw_frame frame, shorter;
            uint8_t payload[300];
            struct raw raw = handshake_connect(&s);
            handshake_play_to(&raw, step);
            handshake_make_step(&raw, step, &frame);
            raw.sent--;
            memcpy(payload, frame.bytes + 5, n);
            raw_frame_make(&raw, &shorter, frame.bytes[4], payload, n);
            raw_send(&raw, shorter.bytes, shorter.length);
            /* the server reads it as a failure of the client; then the client disconnects */
            if (step == AT_RESULT) {
                raw_close(&raw);
                assert_int_not_equal(handshake_result(&s), 0);
            } else {
                handshake_expect_failure(&s, step == AT_PROOF ? -EACCES : -EPROTO, "");
                raw_close(&raw);
            }
        }
    }
    handshake_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boot_id_without_descriptors),
        cmocka_unit_test(correct_client_is_accepted),
        cmocka_unit_test(the_smaller_limits_count),
        cmocka_unit_test(challenge_golden_bytes),
        cmocka_unit_test(proof_offer_and_result_golden_bytes),
        cmocka_unit_test(client_disconnects_after_every_byte),
        cmocka_unit_test(client_is_silent_in_every_state),
        cmocka_unit_test(slow_bytes_do_not_extend_the_deadline),
        cmocka_unit_test(wrong_lengths),
        cmocka_unit_test(too_short_for_a_mac),
        cmocka_unit_test(frames_out_of_order),
        cmocka_unit_test(garbage),
        cmocka_unit_test(other_protocols_and_versions),
        cmocka_unit_test(client_of_version_1),
        cmocka_unit_test(fields_after_the_names),
        cmocka_unit_test(truncated_payloads),
    };
    return cmocka_run_group_tests(tests, raw_make_key, raw_remove_key);
}
