/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The device state of a VM that is frozen, while events come. */
#include "migrate/snapshot/freeze.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int stream[2], events[2];
static unsigned heard, fails_at;
static struct ibx_freeze_state got;
static struct ibx_error error;

static int begin(void **unused)
{
    (void)unused;
    heard = fails_at = 0;
    got = (struct ibx_freeze_state){.bytes = NULL};
    memset(&error, 0, sizeof(error));
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, stream) ||
           socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, events);
}

static int end(void **unused)
{
    (void)unused;
    free(got.bytes);
    close(stream[0]);
    if (stream[1] >= 0)
        close(stream[1]);
    return close(events[0]) || close(events[1]);
}

/* QEMU writes a part each time when nothing is there yet. What is heard changes errno, as a number
 * in JSON does, and a descriptor that is gone. */
static int hear(void *context, struct ibx_error *err)
{
    static const int codes[] = {0, EBADF, EAGAIN};
    (void)context;
    if (++heard == fails_at)
        return ibx_error_set(err, -ECONNRESET, "QEMU has ended");
    if (heard % 2 && heard < 12) {
        assert_int_equal(write(stream[1], "state", 5), 5);
    } else if (heard == 12) {
        close(stream[1]);
        stream[1] = -1;
    }
    errno = codes[heard % 3];
    return 0;
}

static int read_it(unsigned ms)
{
    assert_int_equal(write(events[1], "", 1), 1); /* so that it does not sleep */
    const struct ibx_freeze_source source = {stream[0], events[0], hear, NULL, -1};
    return ibx_freeze_state_read(&got, &source, ms, &error);
}

static void test_all_of_it_is_read(NO_STATE)
{
    assert_int_equal(read_it(20000), 0);
    assert_int_equal(got.length, 6 * 5);
    assert_memory_equal(got.bytes, "statestatestatestatestatestate", 6 * 5);
}

static void test_an_error_that_is_heard(NO_STATE)
{
    fails_at = 3;
    assert_int_equal(read_it(20000), -ECONNRESET);
    assert_string_equal(error.message, "QEMU has ended");
}

/* What has come in before a read is heard before it: each read lets QEMU come closer to the stop of
 * the VM, which ends QEMU if a block job has begun. */
static void test_events_come_before_a_read(NO_STATE)
{
    char bytes[8];
    assert_int_equal(write(stream[1], "state", 5), 5);
    fails_at = 1;
    assert_int_equal(read_it(20000), -ECONNRESET);
    assert_int_equal(read(stream[0], bytes, sizeof(bytes)), 5);
}

/* An error of the stream is not taken for a wait. */
static void test_an_error_of_the_stream(NO_STATE)
{
    assert_int_equal(write(stream[0], "x", 1), 1); /* nobody reads it: ECONNRESET for this end */
    close(stream[1]);
    stream[1] = -1;
    heard = 20;
    assert_int_equal(read_it(20000), -ECONNRESET);
    assert_non_null(strstr(error.message, "cannot be read: Connection reset by peer"));
}

static void test_it_does_not_come(NO_STATE)
{
    heard = 20;
    assert_int_equal(read_it(1), -ETIMEDOUT);
    assert_non_null(strstr(error.message, "did not write its state within 0 s"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_all_of_it_is_read, begin, end),
        cmocka_unit_test_setup_teardown(test_an_error_that_is_heard, begin, end),
        cmocka_unit_test_setup_teardown(test_events_come_before_a_read, begin, end),
        cmocka_unit_test_setup_teardown(test_an_error_of_the_stream, begin, end),
        cmocka_unit_test_setup_teardown(test_it_does_not_come, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
