/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The device state that a source sends, whatever it is and however its bytes arrive: QEMU gets all
 * of them in their order, and none of the end before it may. The first byte says in what pieces the
 * others come.
 */
#include "migrate/destination/stream.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define STATE_MOST 4096u /* bytes: a socket has room for them */
#define HEAD       6u    /* EOF, 6, the length of the JSON */
#define FOOTER     0x7e

static size_t piece_of(uint8_t choice, size_t left)
{
    const size_t n = 1 + choice % 64u;
    return n < left ? n : left;
}

static size_t json_at(const uint8_t *end)
{
    return (size_t)end[2] << 24 | (size_t)end[3] << 16 | (size_t)end[4] << 8 | end[5];
}

/* Where the end of such a stream begins, with a description or without; n: it has none. */
static size_t end_of(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i + HEAD <= n; i++)
        if (!bytes[i] && bytes[i + 1] == 6 && json_at(bytes + i) == n - i - HEAD &&
            (i + HEAD == n || bytes[i + HEAD] == '{'))
            return i;
    return bytes[n - 1] ? n : n - 1;
}

static uint8_t given[STATE_MOST];
static size_t given_bytes;

/* What QEMU reads now. */
static void read_given(int fd)
{
    ssize_t n;
    while ((n = recv(fd, given + given_bytes, sizeof(given) - given_bytes, MSG_DONTWAIT)) > 0)
        given_bytes += (size_t)n;
}

static void check_held(const struct destination_stream *stream, const uint8_t *bytes, size_t n)
{
    const uint8_t *held = bytes + given_bytes;
    const size_t left = n - given_bytes;
    require(given_bytes <= end_of(bytes, n));
    require(left && !held[0] && (left == 1 || (held[1] == 6 && json_at(held) == left - HEAD)));
    require(stream->total == n && stream->ram_set_up <= n);
}

static void give(const uint8_t *bytes, size_t n, uint8_t choice)
{
    struct destination_stream stream;
    struct ibx_error err = {0};
    int qemu[2];
    given_bytes = 0;
    require(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, qemu));
    ibx_destination_stream_init(&stream, STREAM_CLOSED);
    stream.fd = qemu[0];
    require(!ibx_destination_stream_open(&stream, NULL, &err));
    for (size_t at = 0, some; at < n; at += some) {
        some = piece_of(choice, n - at);
        require(!ibx_destination_stream_append(&stream, bytes + at, some, &err));
        require(!ibx_destination_stream_feed(&stream, &err));
        read_given(qemu[1]);
        require(given_bytes < at + some);
    }
    const int rc = ibx_destination_stream_end(&stream, n, &err);
    const bool cut_off = stream.ram_set_up && end_of(bytes, n) == n - 1 && bytes[n - 6] != FOOTER;
    require(rc ? err.message[0] && (cut_off || end_of(bytes, n) == n)
               : !cut_off && end_of(bytes, n) < n);
    require(!ibx_destination_stream_feed(&stream, &err));
    read_given(qemu[1]);
    require(given_bytes <= n && !memcmp(given, bytes, given_bytes));
    if (!rc) {
        check_held(&stream, bytes, n);
        require(!ibx_state_move(&stream.state, STREAM_RELEASED));
        require(!ibx_destination_stream_feed(&stream, &err));
        read_given(qemu[1]);
        require(given_bytes == n && !memcmp(given, bytes, n));
    }
    ibx_destination_stream_cut(&stream);
    close(qemu[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > STATE_MOST)
        return 0;
    uint8_t *bytes = malloc(size - 1); /* not a byte to spare */
    require(bytes != NULL);
    memcpy(bytes, data + 1, size - 1);
    give(bytes, size - 1, data[0]);
    free(bytes);
    return 0;
}
