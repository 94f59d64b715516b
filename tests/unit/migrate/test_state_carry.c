/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* An endless device state, from a QEMU that its guest controls: how long the source spends on it
 * in one call, and how much of it is held. And what is read of a state before the VM is stopped.
 * This file replaces QEMU's end, its monitor and the channel. */
#include "migrate/common/vm.h"
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

/* ------------------------------------------------------------- before the VM is stopped */

static int pump_fails;
static bool pump_hears, any_event; /* the next pump takes an event in; there is one */

int __wrap_ibx_qmp_pump(struct ibx_qmp *qmp, struct ibx_error *err);
bool __wrap_ibx_qmp_has_events(const struct ibx_qmp *qmp);

int __wrap_ibx_qmp_pump(struct ibx_qmp *qmp, struct ibx_error *err)
{
    (void)qmp;
    any_event |= pump_hears;
    return pump_fails ? ibx_error_set(err, pump_fails, "QEMU has ended") : 0;
}

bool __wrap_ibx_qmp_has_events(const struct ibx_qmp *qmp)
{
    (void)qmp;
    return any_event;
}

/* A stream into which QEMU has written so much before it stops the VM. */
static struct source_stream narrow(size_t bytes)
{
    struct source_stream stream;
    struct ibx_error err = {0};
    uint64_t hold;
    static char state[2 * IBX_VM_STREAM_NARROW];
    memset(state, 'x', sizeof(state)); /* none of it may be the end */
    ibx_source_stream_init(&stream);
    assert_int_equal(ibx_source_stream_make(&stream, &hold, &err), 0);
    assert_int_equal(ibx_state_move(&stream.state, STREAM_NARROW), 0);
    assert_true(bytes <= sizeof(state));
    assert_int_equal(write(stream.theirs, state, bytes), bytes);
    pump_hears = any_event = false;
    pump_fails = 0;
    sent = 0;
    return stream;
}

/* Reads, and looks how much is left to be read. */
static int reads_some(struct source_stream *stream, size_t *left)
{
    struct ibx_error err = {0};
    const int rc = ibx_source_stream_read_some(stream, NULL, &err);
    assert_int_equal(ibx_source_stream_look(stream, &err), 0);
    *left = stream->pending - stream->held_length;
    return rc;
}

/* Each read lets QEMU come closer to the stop. So nothing is read when QEMU has something to say
 * first, which may be that a block job has begun. */
static void test_events_come_before_a_read(NO_STATE)
{
    struct source_stream stream = narrow(100);
    size_t left;
    pump_hears = true;
    assert_int_equal(reads_some(&stream, &left), 0);
    assert_int_equal(left, 100);
    pump_hears = any_event = false;
    pump_fails = -ECONNRESET;
    assert_int_equal(reads_some(&stream, &left), -ECONNRESET);
    assert_int_equal(left, 100);
    pump_fails = 0;
    assert_int_equal(reads_some(&stream, &left), 0);
    assert_int_equal(left, 0);
    assert_int_equal(stream.held_length, 100);
    assert_int_equal(reads_some(&stream, &left), 0); /* there is nothing */
    ibx_source_stream_close(&stream);
}

/* It is no more in one read than what QEMU may write at once. What was read is sent; but to send it
 * reads no more until the VM is stopped. */
static void test_little_is_read_before_the_stop(NO_STATE)
{
    struct source_stream stream = narrow(IBX_VM_STREAM_NARROW + 100);
    struct ibx_channel channel = {0};
    struct ibx_error err = {0};
    size_t left;
    assert_int_equal(reads_some(&stream, &left), 0);
    assert_int_equal(left, 100);
    assert_int_equal(ibx_source_stream_carry(&stream, &channel, false, &err), 0);
    assert_int_equal(ibx_source_stream_look(&stream, &err), 0);
    assert_int_equal(stream.pending, 100);
    assert_int_equal(sent, IBX_VM_STREAM_NARROW);
    assert_int_equal(ibx_source_stream_widen(&stream), 0);
    assert_int_equal(stream.theirs, -1); /* only QEMU has it, so its end is noticed */
    assert_int_equal(ibx_source_stream_carry(&stream, &channel, false, &err), -EPIPE);
    assert_int_equal(sent, IBX_VM_STREAM_NARROW + 100);
    ibx_source_stream_close(&stream);
}

/* How many bytes QEMU can write until it waits for somebody who reads. */
static size_t fill(int fd)
{
    static const char state[32 * 1024];
    size_t all = 0;
    for (ssize_t n; (n = send(fd, state, sizeof(state), MSG_DONTWAIT)) > 0; all += (size_t)n)
        assert_true(all < 64 * MIB);
    return all;
}

/* QEMU does not come to the stop by itself. After that it need not wait for each part to be read.
 */
static void test_the_stream_is_narrow_until_the_stop(NO_STATE)
{
    struct source_stream stream = narrow(0);
    const int qemus = dup(stream.theirs);
    const size_t before_the_stop = fill(qemus);
    assert_in_range(before_the_stop, 1, 3 * IBX_VM_STREAM_NARROW);
    assert_int_equal(ibx_source_stream_widen(&stream), 0);
    assert_true(fill(qemus) > 4 * before_the_stop);
    close(qemus);
    ibx_source_stream_close(&stream);
}

/* While nothing can be sent, so much of the state is held and no more. */
static void test_what_is_held_before_the_stop(NO_STATE)
{
    struct source_stream stream = narrow(0);
    size_t left, parts = 0;
    for (; ibx_source_stream_has_room(&stream) && parts < 1000; parts++) {
        assert_int_equal(
            write(stream.theirs, (char[IBX_VM_STREAM_NARROW]){0}, IBX_VM_STREAM_NARROW),
            IBX_VM_STREAM_NARROW);
        assert_int_equal(reads_some(&stream, &left), 0);
    }
    assert_int_equal(parts * IBX_VM_STREAM_NARROW, MIB / 4);
    ibx_source_stream_close(&stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_has_no_end),
        cmocka_unit_test(test_bytes_after_its_end),
        cmocka_unit_test(test_endless_description),
        cmocka_unit_test(test_events_come_before_a_read),
        cmocka_unit_test(test_little_is_read_before_the_stop),
        cmocka_unit_test(test_the_stream_is_narrow_until_the_stop),
        cmocka_unit_test(test_what_is_held_before_the_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
