/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which bytes of a device state the source sends and which it holds back: all but the
 * description for debuggers, wherever the pieces are cut. */
#include "migrate/source/stream.h"
#include "tests/fixtures/denied_call.h"
#include "tests/fixtures/in_child.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 8192

struct state {
    uint8_t bytes[MOST];
    size_t length, end;
};

static void put(struct state *s, const void *bytes, size_t n)
{
    memcpy(s->bytes + s->length, bytes, n);
    s->length += n;
}

/* Makes noise that is full of the bytes with which the end starts, then an end with this much
 * JSON. */
static void state_make(struct state *s, unsigned *seed, size_t json)
{
    static const uint8_t noise[] = {0, 6, 0, 0, 0, 1, '{', 0x7f, 6, 0};
    const uint8_t head[] = {0, 6, 0, 0, (uint8_t)(json >> 8), (uint8_t)json, '{'};
    s->length = 0;
    for (size_t n = 1 + (size_t)rand_r(seed) % 500; n; n--)
        put(s, &noise[(size_t)rand_r(seed) % sizeof(noise)], 1);
    s->end = s->length;
    put(s, head, sizeof(head));
    for (size_t i = 1; i < json; i++)
        put(s, i + 1 < json ? "x" : "}", 1);
}

static void test_all_but_the_end(NO_STATE)
{
    unsigned seed = 11;
    for (int round = 0; round < 5000; round++) {
        static struct state s;
        size_t sent = 0, come = 0;
        state_make(&s, &seed, 2 + (size_t)rand_r(&seed) % 2000);
        while (come < s.length) {
            come += 1 + (size_t)rand_r(&seed) % (round % 2 ? 64 : 1500);
            come = come < s.length ? come : s.length;
            sent += ibx_state_may_end(s.bytes + sent, come - sent);
            assert_true(sent <= s.end);
        }
        sent += ibx_state_ends(s.bytes + sent, come - sent);
        assert_int_equal(sent, s.end);
    }
}

/* Bytes that cannot be the end are not held back for long. */
static void test_no_end(NO_STATE)
{
    /* without a zero except for the last byte */
    static const uint8_t none[] = "states without a zero";
    static const uint8_t json[] = {0, 6, 0, 0, 0, 9, '{', 'x', 'x', '}'};
    static const uint8_t behind[] = {0, 6, 0, 0, 0, 2, '{', '}', 5}; /* this was not the end */
    static const uint8_t section[] = {0, 4, 0, 0, 0, 2, '{', '}'};   /* of another kind */
    static const uint8_t later[] = {0, 6, 0, 0, 0, 9, '{', 'x', 0, 5, 5, 5, 5, 5, 5};
    assert_int_equal(ibx_state_may_end(none, sizeof(none) - 1), sizeof(none) - 1);
    assert_int_equal(ibx_state_may_end(none, 0), 0);
    assert_int_equal(ibx_state_may_end(json, sizeof(json)), 0);
    assert_int_equal(ibx_state_ends(json, sizeof(json)), sizeof(json)); /* 4 bytes, not 9 */
    assert_int_equal(ibx_state_ends(json, 0), 0);
    assert_int_equal(ibx_state_ends(behind, sizeof(behind)), sizeof(behind));
    assert_int_equal(ibx_state_ends(section, sizeof(section)), sizeof(section));
    assert_int_equal(ibx_state_may_end(later, sizeof(later)), sizeof(later));
}

static void look(struct source_stream *stream)
{
    struct ibx_error err = {0};
    assert_int_equal(ibx_source_stream_look(stream, &err), 0);
}

/* The state waits for the page map, unless QEMU cannot write more of it before the stop. From
 * then on it is read without pauses. */
static void test_state_waits_for_the_page_map(NO_STATE)
{
    struct source_stream stream;
    struct ibx_error err = {0};
    char bytes[100] = {0};
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    ibx_source_stream_init(&stream);
    look(&stream);
    assert_false(ibx_source_stream_waits(&stream, true));
    assert_int_equal(ibx_source_stream_adopt(&stream, pair[0], &err), 0);
    look(&stream);
    assert_true(ibx_source_stream_waits(&stream, false));
    assert_int_equal(write(pair[1], bytes, sizeof(bytes)), sizeof(bytes));
    const uint64_t from_ns = ibx_now_ns(), deadline = ibx_deadline_in_ms(patience_ms(20000));
    for (look(&stream); ibx_source_stream_waits(&stream, false) && ibx_now_ns() < deadline;
         look(&stream))
        sched_yield();
    assert_in_range(ibx_now_ns(), from_ns + 5 * IBX_NS_PER_MS, deadline - 1);
    assert_true(ibx_source_stream_waits(&stream, true)); /* as far as is known, this is all */
    assert_int_equal(read(pair[0], bytes, sizeof(bytes)), sizeof(bytes));
    look(&stream);
    assert_false(ibx_source_stream_waits(&stream, false));
    assert_int_equal(write(pair[1], bytes, sizeof(bytes) / 2), sizeof(bytes) / 2);
    look(&stream);
    assert_false(ibx_source_stream_waits(&stream, false));
    ibx_source_stream_close(&stream);
    close(pair[1]);
}

static int says_what_is_denied(void)
{
    struct source_stream stream;
    struct ibx_error err = {0};
    int pair[2];
    if (!deny_call(SYS_ioctl, EACCES))
        return CHILD_SKIPS;
    ibx_source_stream_init(&stream);
    if (ibx_source_stream_look(&stream, &err))
        return 1; /* nothing is asked yet */
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) ||
        ibx_source_stream_adopt(&stream, pair[0], &err))
        return 2;
    return ibx_source_stream_look(&stream, &err) == -EACCES &&
                   strstr(err.message, "(FIONREAD): Permission denied; allow ioctl(2)")
               ? 0
               : 3;
}

/* The tool would wait for state that has come. */
static void test_a_look_that_is_denied(NO_STATE)
{
    passes_in_child(says_what_is_denied);
}

/* An end without any state is read at once, because nobody writes any more. */
static void test_a_stream_that_ends_does_not_wait(NO_STATE)
{
    struct source_stream stream;
    struct ibx_error err = {0};
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    ibx_source_stream_init(&stream);
    assert_int_equal(ibx_source_stream_adopt(&stream, pair[0], &err), 0);
    look(&stream);
    assert_true(ibx_source_stream_waits(&stream, false));
    close(pair[1]);
    look(&stream);
    assert_false(ibx_source_stream_waits(&stream, false));
    ibx_source_stream_close(&stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_but_the_end),
        cmocka_unit_test(test_no_end),
        cmocka_unit_test(test_state_waits_for_the_page_map),
        cmocka_unit_test(test_a_look_that_is_denied),
        cmocka_unit_test(test_a_stream_that_ends_does_not_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
