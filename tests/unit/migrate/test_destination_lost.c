/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a destination tells the source when its QEMU has ended: by that the source continues the VM
 * itself, or does not. */
#include "migrate/destination/destination.h"
#include "tests/fixtures/new_destination.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct destination d;
static const struct ibx_receive_options options = {.folder = "/nonexistent"};

/* ------------------------------------------------------------ replaced functions */

static struct {
    char order[8]; /* what was sent: r for RUNNING, a for ABORT */
    char running[IBX_MIGRATE_STATUS];
    int rc;
} sent;

int __wrap_ibx_channel_send(struct ibx_channel *channel, const struct ibx_migrate_any *message,
                            struct ibx_error *err);
int __wrap_ibx_channel_send(struct ibx_channel *channel, const struct ibx_migrate_any *message,
                            struct ibx_error *err)
{
    (void)channel, (void)err;
    assert_int_equal(message->type, IBX_MIGRATE_RUNNING);
    memcpy(sent.running, message->is.status, sizeof(sent.running));
    if (!sent.rc)
        strcat(sent.order, "r");
    return sent.rc;
}

int __wrap_ibx_channel_send_abort(struct ibx_channel *channel, const char *reason);
int __wrap_ibx_channel_send_abort(struct ibx_channel *channel, const char *reason)
{
    (void)channel, (void)reason;
    strcat(sent.order, "a");
    return 0;
}

void __wrap_ibx_channel_linger(struct ibx_channel *channel, uint64_t deadline_ns);
void __wrap_ibx_channel_linger(struct ibx_channel *channel, uint64_t deadline_ns)
{
    (void)channel, (void)deadline_ns;
}

int __wrap_ibx_destination_qemu_check(struct destination_qemu *qemu, bool recovered,
                                      struct ibx_error *err);
int __wrap_ibx_destination_qemu_check(struct destination_qemu *qemu, bool recovered,
                                      struct ibx_error *err)
{
    (void)qemu, (void)recovered;
    return ibx_error_set(err, -ECONNRESET, "its monitor has ended");
}

/* ------------------------------------------------------------ steps */

/* QEMU is a process that waits. */
static void begin(enum destination_state at, enum destination_stream_state stream)
{
    memset(&sent, 0, sizeof(sent));
    new_destination(&d, &options);
    assert_int_equal(ibx_destination_begin(&d, DESTINATION_RESUMING), 0);
    d.state.now = at;
    d.stream.state.now = stream;
    d.stream.fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    d.link.state.now = LINK_SERVING;
    let_child_be_qemu(&d.status.record);
}

static void qemu_ends(void)
{
    kill(d.status.record.pid, SIGKILL);
    waitpid(d.status.record.pid, NULL, 0);
}

/* QEMU has ended. Checks what was sent, and where that leads. */
static void lost(const char *order, enum destination_state to)
{
    struct ibx_error err = {0};
    qemu_ends();
    assert_int_equal(ibx_destination_check_qemu(&d, &err), -ECONNRESET);
    assert_string_equal(sent.order, order);
    assert_int_equal(d.state.now, to);
    d.link.state.now = LINK_NONE;
    ibx_destination_stream_fini(&d.stream);
}

/* ------------------------------------------------------------ tests */

/* It cannot have run the VM: the source continues it. */
static void test_ended_without_the_end_of_the_state(NO_STATE)
{
    begin(DESTINATION_RESUMING, STREAM_RELEASED);
    lost("a", DESTINATION_GIVEN_UP);
    assert_int_equal(d.stream.fd, -1);
    begin(DESTINATION_WAITING, STREAM_WHOLE);
    lost("a", DESTINATION_GIVEN_UP);
    assert_int_equal(d.stream.state.now, STREAM_CUT);
}

/* It may have run the VM, and written to its disks. ABORT alone would mean that it never ran. */
static void test_ended_with_the_end_of_the_state(NO_STATE)
{
    static const enum destination_stream_state states[] = {STREAM_ENDING, STREAM_FED};
    for (unsigned i = 0; i < COUNT(states); i++) {
        begin(DESTINATION_RESUMING, states[i]);
        lost("ra", DESTINATION_FAILED);
        assert_string_equal(sent.running, IBX_JOURNAL_QEMU_ENDED);
        begin(DESTINATION_RESUMING, states[i]);
        sent.rc = -EAGAIN;
        lost("", DESTINATION_FAILED);
        begin(DESTINATION_RESUMING, states[i]);
        d.link.state.now = LINK_NONE;
        lost("", DESTINATION_FAILED);
    }
}

/* The source knows that it ran. */
static void test_ended_with_a_vm(NO_STATE)
{
    begin(DESTINATION_FILLING, STREAM_FED);
    lost("a", DESTINATION_FAILED);
}

/* QEMU reads the end of the state, and does not answer: it is ended, so that it never runs the VM.
 */
static void test_stuck(NO_STATE)
{
    struct ibx_error err = {0};
    begin(DESTINATION_RESUMING, STREAM_FED);
    d.qemu.state.now = QEMU_FAILED;
    d.qemu.completed = true;
    snprintf(d.qemu.status, sizeof(d.qemu.status), "inmigrate");
    assert_int_equal(ibx_destination_check_qemu(&d, &err), -ECONNRESET);
    assert_int_equal(d.state.now, DESTINATION_GIVEN_UP);
    assert_string_equal(sent.order, "a");
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(20000));
    while (ibx_journal_qemu_lives(&d.status.record) && ibx_now_ns() < deadline)
        sched_yield();
    assert_false(ibx_journal_qemu_lives(&d.status.record));
    qemu_ends();
    d.link.state.now = LINK_NONE;
    ibx_destination_stream_fini(&d.stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ended_without_the_end_of_the_state),
        cmocka_unit_test(test_ended_with_the_end_of_the_state),
        cmocka_unit_test(test_ended_with_a_vm),
        cmocka_unit_test(test_stuck),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
