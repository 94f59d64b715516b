/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A transition that the source's table refuses changes nothing, above all not where the VM may
 * run. */
#include "migrate/source/source.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct source source;
static const struct ibx_send_options options = {.folder = "/nonexistent"};

/* The record's QEMU does not exist, so a command to continue it would be noticed. */
static void begin(enum source_state first)
{
    source = (struct source){.options = &options, .lock_fd = -1};
    ibx_source_vm_init(&source.vm);
    ibx_source_stream_init(&source.stream);
    ibx_source_warm_init(&source.warm);
    ibx_gate_init(&source.gate, NULL);
    ibx_source_link_init(&source.link, &source.status.record, &source.transport, &source.vm, 0,
                         true);
    assert_int_equal(ibx_source_begin(&source, first), 0);
    source.vm.undo.touched = true;
}

/* A debug build aborts; any other build refuses. */
static void test_refused(NO_STATE)
{
    static const enum source_state from[] = {SOURCE_ASKING, SOURCE_COMMITTED, SOURCE_SERVING};
    static const enum source_state to[] = {SOURCE_COMMITTED, SOURCE_CONFIRMING, SOURCE_KEPT};
    for (unsigned i = 0; i < 3; i++) {
        int status;
        pid_t child = fork();
        if (!child) {
            struct ibx_error err = {0};
            signal(SIGABRT, SIG_DFL);
            begin(from[i]);
            int rc = ibx_source_move(&source, to[i], &err);
            _exit(rc == -EINVAL && err.message[0] && source.state.now == from[i] ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGABRT : !WEXITSTATUS(status));
    }
}

static void test_entries(NO_STATE)
{
    static const enum source_state entries[] = {SOURCE_ASKING, SOURCE_COMMITTED, SOURCE_SERVING};
    for (unsigned i = 0; i < 3; i++)
        begin(entries[i]);
    assert_int_equal(source.peer.now, PEER_LOADED);
}

/* The VM runs at the destination. Whatever fails, it is not continued here. */
static void test_never_continued_once_it_runs_there(NO_STATE)
{
    struct ibx_error err = {.message = "something went wrong"};
    begin(SOURCE_SERVING);
    assert_int_equal(ibx_source_keep(&source, -EIO, &err), -EIO);
    assert_int_equal(source.state.now, SOURCE_SERVING);
    assert_true(source.vm.undo.touched);
}

/* The destination has given up, but QEMU has ended here, so nothing can be continued. */
static void test_kept_without_qemu(NO_STATE)
{
    struct ibx_error err = {.message = "the destination gave up"};
    begin(SOURCE_COMMITTED);
    assert_int_equal(ibx_source_keep(&source, -ECONNABORTED, &err), -ECONNABORTED);
    assert_int_equal(source.state.now, SOURCE_STRANDED);
    assert_non_null(strstr(err.message, "could not be continued"));
    assert_non_null(strstr(err.message, "ib-migrate rollback"));
}

/* After this time without a sign of life the destination counts as gone: 60 times the
 * transport's timeout. */
static int unheard_after_s(enum source_state in, unsigned looked_s)
{
    struct ibx_error err = {0};
    const uint64_t now = ibx_now_ns(), s = 1000 * IBX_NS_PER_MS;
    begin(in);
    source.transport.timeout_ms = 1000;
    source.heard_ns = source.nobody_ns = now - 70 * s;
    source.unheard_look_ns = now - looked_s * s;
    int rc = ibx_source_check_unheard(&source, &err);
    assert_true(source.heard_ns <= ibx_now_ns() && source.nobody_ns <= ibx_now_ns());
    return rc ? rc : ibx_source_check_unheard(&source, &err);
}

/* A tool that was stopped itself does not blame the other side for its silence. */
static void test_stopped_while_nothing_is_heard(NO_STATE)
{
    static const enum source_state in[] = {SOURCE_COMMITTED, SOURCE_SERVING};
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(unheard_after_s(in[i], 1), -ETIMEDOUT);
        assert_int_equal(source.state.now, SOURCE_LEFT);
        assert_int_equal(unheard_after_s(in[i], 65), 0);
        assert_int_equal(unheard_after_s(in[i], 75), 0);
        assert_int_equal(source.state.now, in[i]);
    }
}

/* The time that a host needs to resolve a name does not count as silence; otherwise the end
 * would never come. */
static void test_long_attempt_does_not_count_as_silence(NO_STATE)
{
    struct ibx_error err = {0};
    begin(SOURCE_COMMITTED);
    source.transport.timeout_ms = 1000;
    source.heard_ns = ibx_now_ns() - 70 * 1000 * IBX_NS_PER_MS;
    source.unheard_look_ns = ibx_now_ns() - 40 * 1000 * IBX_NS_PER_MS; /* before the attempt */
    source.link.retry_ns = UINT64_MAX;
    assert_int_equal(ibx_source_reconnect(&source, &err), 0);
    assert_int_equal(ibx_source_check_unheard(&source, &err), -ETIMEDOUT);
}

/* While the disk is full the epoch grows only if somebody may have seen it. The next tool starts
 * with the one on disk, and passes later ones by attempts of some seconds each. */
static void test_no_new_epoch_without_a_disk_and_an_answer(NO_STATE)
{
    static const struct ibx_send_options full = {.folder = "/dev/full/journal"};
    struct ibx_error err = {0};
    begin(SOURCE_SERVING);
    source.options = &full;
    source.lost_ns = ibx_now_ns();
    ibx_options_init(&source.transport);
    source.status.record = (struct ibx_record){
        .source = true, .state = IBX_JOURNAL_MOVED, .epoch = 5, .uri = "tcp://127.0.0.1:1"};
    for (unsigned i = 0; i < 3; i++) {
        source.link.retry_ns = 0;
        assert_int_equal(ibx_source_reconnect(&source, &err), 0);
        assert_true(source.note_ns && !source_linked(&source.link));
        assert_int_equal(source.status.record.epoch, 6);
    }
    ibx_source_tried(&source, -EAGAIN, IBX_ANSWER_RUNNING); /* refused, so it was seen */
    assert_int_equal(ibx_source_note_epoch(&source, &err), 0);
    assert_int_equal(source.status.record.epoch, 7);
}

static int reset_happens(struct ibx_error *err)
{
    json_t *event = json_pack("{s:s}", "event", "RESET");
    const int rc = ibx_source_on_intruder(&source, event, err);
    json_decref(event);
    return rc;
}

/* If QEMU has answered after every page had arrived, no page can be of another VM. Pages that
 * are not compared yet cannot be compared any more, and the tool does not end with success. */
static void test_reset_when_every_page_has_come(NO_STATE)
{
    struct ibx_error err = {0};
    begin(SOURCE_SERVING);
    ibx_source_guard_init(&source);
    source.status.record.verify = true;
    assert_int_equal(ibx_source_verified(&source, &err), -EPROTO);
    assert_int_equal(ibx_state_move(&source.guarding, GUARDING_LAST), 0);
    assert_int_equal(ibx_state_move(&source.guarding, GUARDING_NEEDLESS), 0);
    assert_int_equal(reset_happens(&err), 0);
    assert_int_equal(source.state.now, SOURCE_SERVING);
    assert_int_equal(ibx_source_verified(&source, &err), 0);
    assert_int_equal(ibx_source_verdict(&source, &err), -EBUSY);
    assert_non_null(strstr(err.message, "the last could not be compared"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_entries),
        cmocka_unit_test(test_never_continued_once_it_runs_there),
        cmocka_unit_test(test_kept_without_qemu),
        cmocka_unit_test(test_stopped_while_nothing_is_heard),
        cmocka_unit_test(test_long_attempt_does_not_count_as_silence),
        cmocka_unit_test(test_no_new_epoch_without_a_disk_and_an_answer),
        cmocka_unit_test(test_reset_when_every_page_has_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
