/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A VM that stays at its source: what is undone, recorded and told, and that it does not stay as
 * long as only the destination knows whether it runs there. */
#include "tests/fixtures/journal_scene.h"
#include "tests/fixtures/new_source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ------------------------------------------------------------ replaced functions */

static unsigned released, disowned; /* how often the watchdog was, and the destination */
static struct source source;

void __wrap_ibx_watchdog_release(struct ibx_watchdog *watchdog);
void __wrap_ibx_watchdog_release(struct ibx_watchdog *watchdog)
{
    (void)watchdog;
    released++;
}

/* The destination takes no epoch that it has seen. The VM runs by now: whoever kills this tool
 * while it connects finds that in the record, and no watchdog. */
int __wrap_ibx_source_link_disown(struct source_link *link, const char *why);
int __wrap_ibx_source_link_disown(struct source_link *link, const char *why)
{
    (void)link, (void)why;
    assert_int_equal(source.state.now, SOURCE_KEPT);
    assert_int_equal(source.status.record.epoch, 2);
    assert_int_equal(source.status.record.state, IBX_JOURNAL_KEPT);
    assert_int_equal(released, 1);
    disowned++;
    return 0;
}

/* ------------------------------------------------------------ steps */

static int qemus_end;

/* A VM whose QEMU has ended, in a migration of which the record says `state`; 0: there is none. */
static void begin(enum source_state at, enum source_stream_state stream,
                  enum ibx_journal_state state)
{
    static const struct ibx_send_options options = {.folder = folder, .qmp = "/nonexistent"};
    int pair[2];
    released = disowned = 0;
    new_source(&source, &options);
    assert_int_equal(ibx_source_begin(&source, SOURCE_ASKING), 0);
    source.status.record = sample(true, 3);
    source.status.record.pid = getpid();
    source.status.record.pid_started = ibx_process_started(getpid()) + 1;
    source.status.record.boot[0] = '\0';
    if (state)
        bring_to(&source.status.record, state);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    source.stream.fd = pair[0];
    qemus_end = pair[1];
    source.stream.state.now = stream;
    source.state.now = at;
    source.peer.now = PEER_READY;
}

static void keep(enum source_state to)
{
    char byte;
    struct ibx_error err = {.message = "something went wrong"};
    assert_int_equal(ibx_source_keep(&source, -EIO, &err), -EIO);
    assert_int_equal(source.state.now, to);
    if (to == SOURCE_KEPT) {
        assert_int_equal(released, 1);
        assert_int_equal(recv(qemus_end, &byte, 1, MSG_DONTWAIT), 0); /* QEMU's stream has ended */
    }
    ibx_source_stream_close(&source.stream);
    close(qemus_end);
}

/* ------------------------------------------------------------ tests */

/* Nothing can be continued, and the record is over. */
static void its_qemu_has_ended(NO_STATE)
{
    begin(SOURCE_STOPPED, STREAM_OPEN, IBX_JOURNAL_MAY_RUN);
    keep(SOURCE_KEPT);
    assert_int_equal(only().state, IBX_JOURNAL_KEPT);
    assert_int_equal(only().epoch, 1);
    assert_int_equal(disowned, 0);
}

/* A destination that has the whole state would wait for COMMIT, and has to learn it. */
static void the_destination_waits(NO_STATE)
{
    begin(SOURCE_SENDING, STREAM_SENT, IBX_JOURNAL_MAY_RUN);
    keep(SOURCE_KEPT);
    assert_int_equal(disowned, 1);
    assert_int_equal(only().state, IBX_JOURNAL_KEPT);
    assert_int_equal(only().epoch, 2);
}

static void the_destination_has_given_up(NO_STATE)
{
    static const enum source_state states[] = {SOURCE_SENDING, SOURCE_COMMITTED};
    for (unsigned i = 0; i < COUNT(states); i++) {
        begin(states[i], STREAM_HELD, IBX_JOURNAL_MAY_RUN);
        source.peer.now = PEER_ABORTED;
        keep(SOURCE_KEPT);
        assert_int_equal(disowned, 0);
        assert_int_equal(only().state, IBX_JOURNAL_KEPT);
        assert_int_equal(ibx_journal_remove(folder, &source.status.record, &error), 0);
    }
}

/* The destination had reported to have it: then it was taken back. */
static void libvirt_has_taken_it_back(NO_STATE)
{
    begin(SOURCE_LOST, STREAM_HELD, IBX_JOURNAL_MOVED);
    source.peer.now = PEER_LOADED;
    keep(SOURCE_KEPT);
    assert_int_equal(only().state, IBX_JOURNAL_ROLLED_BACK);
    assert_int_equal(disowned, 0);
}

static void there_was_no_record_yet(NO_STATE)
{
    struct ibx_record *all;
    size_t count;
    begin(SOURCE_EXPOSING, STREAM_MADE, (enum ibx_journal_state)0);
    keep(SOURCE_KEPT);
    assert_int_equal(ibx_journal_list(folder, &all, &count, &error), 0);
    assert_int_equal(count, 0);
    free(all);
}

/* After COMMIT a lost link says nothing of the VM: only ABORT does. */
static void a_lost_link_keeps_no_vm(NO_STATE)
{
    static const int codes[] = {-ECONNRESET, -ETIMEDOUT, -EPROTO};
    for (unsigned i = 0; i < COUNT(codes); i++) {
        struct ibx_error err = {.message = "the link is lost"};
        begin(SOURCE_COMMITTED, STREAM_HELD, IBX_JOURNAL_MAY_RUN);
        source.peer.now = PEER_LOADED;
        assert_int_equal(ibx_source_link_trouble(&source, codes[i], &err), 0);
        assert_int_equal(source.state.now, SOURCE_COMMITTED);
        assert_int_equal(only().state, IBX_JOURNAL_MAY_RUN);
        assert_true(source.lost_ns);
        ibx_source_stream_close(&source.stream);
        close(qemus_end);
        assert_int_equal(ibx_journal_remove(folder, &source.status.record, &error), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(its_qemu_has_ended),           TEST(the_destination_waits),
        TEST(the_destination_has_given_up), TEST(libvirt_has_taken_it_back),
        TEST(there_was_no_record_yet),      TEST(a_lost_link_keeps_no_vm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
