/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is held back of a device state: its EOF, wherever the pieces of the stream are cut. */
#include "migrate/destination/stream.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define STREAM 4096

struct stream {
    uint8_t bytes[STREAM];
    size_t length, eof; /* eof: the position of EOF */
};

/* Makes noise that is full of the relevant bytes, then EOF, and a description unless its length
 * is 0. */
static void stream_make(struct stream *s, unsigned *seed, size_t description)
{
    static const uint8_t noise[] = {0, 6, 0, 0, 0, 1, '{', 0x7f, 6, 0};
    s->length = 0;
    for (size_t n = 1 + (size_t)rand_r(seed) % 500; n; n--)
        s->bytes[s->length++] = noise[(size_t)rand_r(seed) % sizeof(noise)];
    s->eof = s->length;
    s->bytes[s->length++] = 0;
    if (!description)
        return;
    s->bytes[s->length++] = 6;
    s->bytes[s->length++] = 0;
    s->bytes[s->length++] = 0;
    s->bytes[s->length++] = (uint8_t)(description >> 8);
    s->bytes[s->length++] = (uint8_t)description;
    memset(s->bytes + s->length, ' ', description);
    s->bytes[s->length] = '{';
    s->length += description;
}

/* Gives the stream in random pieces, as a tool does. Returns how much QEMU was given. */
static size_t give_in_pieces(const struct stream *s, unsigned *seed, bool *whole)
{
    size_t given = 0;
    for (size_t come = 0; come < s->length;) {
        come += 1 + (size_t)rand_r(seed) % 64;
        come = come < s->length ? come : s->length;
        given += ibx_state_tail(s->bytes + given, come - given, false, whole);
        assert_false(*whole);
        assert_true(given <= s->eof);
    }
    given += ibx_state_tail(s->bytes + given, s->length - given, true, whole);
    return given;
}

static void test_eof_is_never_given(NO_STATE)
{
    unsigned seed = 7;
    for (int round = 0; round < 20000; round++) {
        struct stream s;
        bool whole;
        stream_make(&s, &seed, round % 3 ? 1 + (size_t)rand_r(&seed) % 300 : 0);
        size_t given = give_in_pieces(&s, &seed, &whole);
        assert_true(whole);
        assert_true(given <= s.eof);
    }
}

/* If no noise looks like it, exactly EOF and its description are held back. */
static void test_no_more_than_the_tail(NO_STATE)
{
    static const uint8_t plain[] = "\5state\0\6\0\0\0\2{}", short_one[] = {5, 5, 5, 0};
    bool whole;
    assert_int_equal(ibx_state_tail(plain, sizeof(plain) - 1, true, &whole), 6);
    assert_true(whole);
    assert_int_equal(ibx_state_tail(short_one, sizeof(short_one), true, &whole), 3);
    assert_true(whole);
}

static void test_not_a_stream_of_qemu(NO_STATE)
{
    static const uint8_t wrong[] = "\5state\0\6\0\0\0\3{}", other[] = {5, 5, 5};
    bool whole = true;
    ibx_state_tail(wrong, sizeof(wrong) - 1, true, &whole);
    assert_false(whole);
    whole = true;
    ibx_state_tail(other, sizeof(other), true, &whole);
    assert_false(whole);
    whole = true;
    assert_int_equal(ibx_state_tail(other, 0, true, &whole), 0);
    assert_false(whole);
}

/* Of a state whose sections end with footers, EOF alone is the end only behind a footer: another
 * byte of 0 is where the state was cut off. That there are footers is seen at the set-up of guest
 * RAM: its last word is 0x10, and the next byte is a footer's first. */
static void test_cut_off_at_a_zero(NO_STATE)
{
    static const uint8_t set_up[] = {1, 0, 0, 0, 0, 0, 0, 0, 0x10, 0x7e, 0, 0, 0, 2, 5},
                         more_zeros[] = {0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0x7e, 0, 0, 0, 2, 5},
                         other_word[] = {1, 0, 0, 0, 0, 0, 0, 0, 0x20, 0x7e, 0, 0, 0, 2, 5},
                         few_zeros[] = {1, 1, 1, 0, 0, 0, 0, 0, 0x10, 0x7e, 0, 0, 0, 2, 5};
    static const uint8_t cut[] = {5, 0, 0, 0, 0, 0, 0}, end[] = {5, 0x7e, 0, 0, 0, 3, 0};
    static const struct {
        const uint8_t *begins, *goes_on;
        int rc;
    } cases[] = {{set_up, cut, -EPROTO},
                 {more_zeros, cut, -EPROTO},
                 {set_up, end, 0},
                 {other_word, cut, 0},
                 {few_zeros, cut, 0}};
    for (unsigned c = 0; c < COUNT(cases); c++) {
        struct destination_stream stream;
        struct ibx_error err = {0};
        ibx_destination_stream_init(&stream, STREAM_CLOSED);
        stream.fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        assert_int_equal(ibx_destination_stream_open(&stream, NULL, &err), 0);
        assert_int_equal(
            ibx_destination_stream_append(&stream, cases[c].begins, sizeof(set_up), &err), 0);
        for (size_t i = 0; i < sizeof(cut); i++)
            assert_int_equal(ibx_destination_stream_append(&stream, cases[c].goes_on + i, 1, &err),
                             0);
        assert_int_equal(ibx_destination_stream_end(&stream, sizeof(set_up) + sizeof(cut), &err),
                         cases[c].rc);
        ibx_destination_stream_fini(&stream);
    }
}

#define PIECE 4096u
#define WAITS ((size_t)375 * PIECE) /* bytes that a slow QEMU has not read yet, at most */

static uint8_t byte_at(size_t at)
{
    return (uint8_t)(1 + at % 251);
}

/* QEMU reads one piece, or what there is of it. Returns how far it has read. */
static size_t read_piece(int qemu, size_t at)
{
    uint8_t bytes[PIECE];
    const ssize_t n = read(qemu, bytes, sizeof(bytes));
    assert_true(n > 0);
    for (ssize_t i = 0; i < n; i++, at++)
        assert_int_equal(bytes[i], byte_at(at));
    return at;
}

/* However long a state is, its buffer grows with what waits for QEMU, and not with what came. */
static void test_room_for_what_waits(NO_STATE)
{
    struct destination_stream stream;
    struct ibx_error err = {0};
    uint8_t piece[PIECE];
    int ends[2];
    size_t came = 0, taken = 0;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    ibx_destination_stream_init(&stream, STREAM_CLOSED);
    stream.fd = ends[0];
    assert_int_equal(ibx_destination_stream_open(&stream, NULL, &err), 0);
    while (came < 4 * WAITS) {
        for (unsigned i = 0; i < PIECE; i++)
            piece[i] = byte_at(came++);
        assert_int_equal(ibx_destination_stream_append(&stream, piece, PIECE, &err), 0);
        while (stream.end - stream.from > WAITS - PIECE) {
            assert_int_equal(ibx_destination_stream_feed(&stream, &err), 0);
            if (ibx_destination_stream_stuck(&stream))
                taken = read_piece(ends[1], taken);
        }
        assert_in_range(stream.capacity, 1, 2 * WAITS);
    }
    assert_true(taken > WAITS);
    ibx_destination_stream_fini(&stream);
    close(ends[1]);
}

static const uint8_t tail[] = {0, 6, 0, 0, 0, 2, '{', '}'};

/* A tool whose QEMU is at the other end of the socket. */
static void stream_begin(struct destination_stream *stream, int *qemu)
{
    struct ibx_error err = {0};
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    ibx_destination_stream_init(stream, STREAM_CLOSED);
    stream->fd = ends[0];
    *qemu = ends[1];
    assert_int_equal(ibx_destination_stream_open(stream, NULL, &err), 0);
}

/* More of the state comes, of which QEMU gets so many bytes. */
static void passes(struct destination_stream *stream, int qemu, const uint8_t *more, size_t length,
                   size_t given)
{
    static uint8_t got[STREAM];
    struct ibx_error err = {0};
    assert_int_equal(ibx_destination_stream_append(stream, more, length, &err), 0);
    assert_int_equal(ibx_destination_stream_feed(stream, &err), 0);
    const ssize_t n = recv(qemu, got, sizeof(got), MSG_DONTWAIT);
    assert_int_equal(n < 0 && errno == EAGAIN ? 0 : n, given);
}

/* What QEMU has not read yet may be what it cannot load. */
static void test_loaded_when_qemu_has_read_it(NO_STATE)
{
    static const uint8_t sections[] = "a state";
    struct destination_stream stream;
    struct ibx_error err = {0};
    uint8_t got[STREAM];
    int qemu;
    stream_begin(&stream, &qemu);
    passes(&stream, qemu, sections, sizeof(sections) - 1, sizeof(sections) - 2);
    assert_int_equal(ibx_destination_stream_append(&stream, tail, sizeof(tail), &err), 0);
    assert_int_equal(ibx_destination_stream_end(&stream, stream.total, &err), 0);
    assert_false(ibx_destination_stream_loaded(&stream)); /* QEMU was not given it all */
    assert_int_equal(ibx_destination_stream_feed(&stream, &err), 0);
    assert_false(ibx_destination_stream_loaded(&stream));
    assert_int_equal(read(qemu, got, sizeof(got)), 1);
    assert_true(ibx_destination_stream_loaded(&stream));
    ibx_destination_stream_fini(&stream);
    close(qemu);
}

/* QEMU runs the VM when it has the end. That is given after the commit only, and QEMU's answers do
 * not break the connection then. */
static void test_the_end_waits_for_the_commit(NO_STATE)
{
    static const uint8_t sections[] = "a state";
    struct destination_stream stream;
    struct ibx_error err = {0};
    uint8_t got[STREAM];
    int qemu;
    stream_begin(&stream, &qemu);
    passes(&stream, qemu, sections, sizeof(sections) - 1,
           sizeof(sections) - 2); /* the last byte may begin the end */
    passes(&stream, qemu, tail, sizeof(tail), 1);
    const uint64_t total = stream.total;
    assert_int_equal(ibx_destination_stream_end(&stream, total + 1, &err), -EPROTO);
    assert_int_equal(ibx_destination_stream_end(&stream, total - 1, &err), -EPROTO);
    assert_int_equal(ibx_destination_stream_end(&stream, total, &err), 0);
    passes(&stream, qemu, sections, 0, 0);
    assert_int_equal(write(qemu, "answer", 6), 6);
    assert_int_equal(ibx_state_move(&stream.state, STREAM_RELEASED), 0);
    assert_int_equal(ibx_destination_stream_feed(&stream, &err), 0);
    assert_int_equal(stream.state.now, STREAM_FED);
    assert_int_equal(read(qemu, got, sizeof(got)), sizeof(tail));
    assert_memory_equal(got, tail, sizeof(tail));
    assert_int_equal(read(qemu, got, sizeof(got)), 0);
    close(qemu);
}

/* The end is not given when the buffer begins anew right before it. */
static void test_the_end_comes_when_there_is_no_room(NO_STATE)
{
    static uint8_t sections[STREAM];
    struct destination_stream stream;
    int qemu;
    memset(sections, 5, sizeof(sections));
    stream_begin(&stream, &qemu);
    passes(&stream, qemu, sections, 300, 299);
    const size_t rest = stream.capacity - stream.end - 1;
    passes(&stream, qemu, sections, rest, rest);
    passes(&stream, qemu, tail, sizeof(tail), 1);
    ibx_destination_stream_fini(&stream);
    close(qemu);
}

static void test_state_without_end(NO_STATE)
{
    struct destination_stream stream;
    struct ibx_error err = {0};
    ibx_destination_stream_init(&stream, STREAM_CLOSED);
    stream.end = (size_t)1 << 30;
    assert_int_equal(ibx_destination_stream_append(&stream, tail, 1, &err), -EPROTO);
    assert_non_null(strstr(err.message, "longer than 1024 MiB"));
    ibx_destination_stream_fini(&stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eof_is_never_given),
        cmocka_unit_test(test_no_more_than_the_tail),
        cmocka_unit_test(test_not_a_stream_of_qemu),
        cmocka_unit_test(test_cut_off_at_a_zero),
        cmocka_unit_test(test_room_for_what_waits),
        cmocka_unit_test(test_loaded_when_qemu_has_read_it),
        cmocka_unit_test(test_the_end_waits_for_the_commit),
        cmocka_unit_test(test_the_end_comes_when_there_is_no_room),
        cmocka_unit_test(test_state_without_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
