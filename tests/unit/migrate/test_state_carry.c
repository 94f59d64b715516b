/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A device state that never ends, as a QEMU writes that its guest has taken over: how long the
 * source is at it, and how much of it is held. QEMU's end and the channel are this file's. */
#include "migrate/source/stream.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MIB    ((uint64_t)1 << 20)
#define A_CALL (16 * MIB) /* far more than a call may take */

static const uint8_t *head; /* what comes first, and then noise */
static size_t head_length;
static uint64_t written, before, sent; /* `before` this call */

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
    return written - before < A_CALL ? (ssize_t)length : 0; /* or nobody has had enough */
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

/* Calls until QEMU has written so much; how much is held at most. */
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

/* It says that it ends, and goes on. */
static void test_behind_its_end(NO_STATE)
{
    static const uint8_t end[] = {'Q', 0, 6, 0, 0, 1, 0, '{'};
    assert_true(carry(end, sizeof(end), 4 * A_CALL) < MIB);
}

/* A description of 4 GiB. */
static void test_an_end_without_an_end(NO_STATE)
{
    static const uint8_t end[] = {'Q', 0, 6, 0xff, 0xff, 0xff, 0xff, '{'};
    assert_true(carry(end, sizeof(end), 4 * A_CALL) < MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_has_no_end),
        cmocka_unit_test(test_behind_its_end),
        cmocka_unit_test(test_an_end_without_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
