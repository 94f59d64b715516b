/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* An endless device state, from a QEMU that its guest controls: how long the source spends on it
 * in one call, and how much of it is held. This file replaces QEMU's end and the channel. */
#include "migrate/source/stream.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MIB    ((uint64_t)1 << 20)
#define A_CALL (16 * MIB) /* far more than one call may take */

static const uint8_t *head; /* what comes first; noise follows */
static size_t head_length;
static uint64_t written, before, sent; /* `before`: before this call */

ssize_t __real_read(int fd, void *bytes, size_t length);
ssize_t __wrap_read(int fd, void *bytes, size_t length);
int __wrap_ibx_channel_send(struct ibx_channel *channel, const struct ibx_migrate_any *message,
                            struct ibx_error *err);
size_t __wrap_ibx_channel_room(const struct ibx_channel *channel);

ssize_t __wrap_read(int fd, void *bytes, size_t length)
{
    if (!head)
        return __real_read(fd, bytes, length);
    memset(bytes, 'x', length);
    if (!written)
        memcpy(bytes, head, head_length);
    written += length;
    return written - before < A_CALL ? (ssize_t)length : 0; /* 0 if the call reads without limit */
}

int __wrap_ibx_channel_send(struct ibx_channel *channel, const struct ibx_migrate_any *message,
                            struct ibx_error *err)
{
    (void)channel, (void)err;
    sent += message->is.state.length;
    return 0;
}

size_t __wrap_ibx_channel_room(const struct ibx_channel *channel)
{
    (void)channel;
    return IBX_MIGRATE_MESSAGE - 1;
}

/* Makes calls until QEMU has written this many bytes. Returns how much was held at most. */
static size_t carry(const uint8_t *begin, size_t length, uint64_t bytes)
{
    struct source_stream stream;
    struct ibx_channel channel = {0};
    struct ibx_error err = {0};
    size_t most = 0;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    ibx_source_stream_init(&stream);
    assert_int_equal(ibx_source_stream_adopt(&stream, pair[0], &err), 0);
    stream.managed = false;
    written = sent = 0;
    head = begin;
    head_length = length;
    while (written < bytes) {
        before = written;
        if (ibx_source_stream_carry(&stream, &channel, true, &err))
            fail_msg("after %ju MiB: %s", (uintmax_t)(written / MIB), err.message);
        most = stream.held_length > most ? stream.held_length : most;
    }
    head = NULL;
    assert_int_equal(sent + stream.held_length, written);
    ibx_source_stream_close(&stream);
    close(pair[1]);
    return most;
}

static void test_it_has_no_end(NO_STATE)
{
    static const uint8_t magic[] = "QEVM";
    assert_true(carry(magic, sizeof(magic), 4 * A_CALL) < MIB);
}

/* The state announces its end and continues. */
static void test_bytes_after_its_end(NO_STATE)
{
    static const uint8_t end[] = {'Q', 0, 6, 0, 0, 1, 0, '{'};
    assert_true(carry(end, sizeof(end), 4 * A_CALL) < MIB);
}

/* The description is 4 GiB long. */
static void test_endless_description(NO_STATE)
{
    static const uint8_t end[] = {'Q', 0, 6, 0xff, 0xff, 0xff, 0xff, '{'};
    assert_true(carry(end, sizeof(end), 4 * A_CALL) < MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_has_no_end),
        cmocka_unit_test(test_bytes_after_its_end),
        cmocka_unit_test(test_endless_description),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
