/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Messages of a source in an order that ibx's source never uses, once the VM runs at the
 * destination; and what a destination that gives up or recovers leaves to others. */
#include "migrate/destination/destination.h"
#include "tests/fixtures/new_destination.h"
#include "tests/fixtures/unit.h"
#include "userfaultfd/protect.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define EPOCH 3u

static struct destination destination;
static const struct ibx_receive_options options = {.folder = "/nonexistent"};

static void begin(enum destination_state first)
{
    new_destination(&destination, &options);
    destination.complete_ns = 1;
    destination.status.record.epoch = EPOCH;
    assert_int_equal(ibx_destination_begin(&destination, first), 0);
}

static int on(const struct ibx_migrate_any *message)
{
    struct ibx_error err = {0};
    struct message_context context = {&destination, &err};
    return ibx_destination_on_message(&context, message);
}

static const struct ibx_migrate_any gives_up = {.type = IBX_MIGRATE_ABORT, .is.reason = "no"};
static const struct ibx_migrate_any confirm = {.type = IBX_MIGRATE_CONFIRM, .is.epoch = EPOCH};

/* An ABORT after the commit only ends its connection: the source may confirm later. */
static void test_confirmed_after_an_abort(NO_STATE)
{
    struct ibx_error err = {0};
    begin(DESTINATION_FILLING);
    assert_int_equal(on(&gives_up), -ECONNABORTED);
    assert_int_equal(destination.state.now, DESTINATION_FILLING);
    assert_int_equal(on(&confirm), -EPROTO);
    assert_int_equal(ibx_destination_move(&destination, DESTINATION_COMPLETE, &err), 0);
    assert_int_equal(on(&confirm), 0);
    assert_int_equal(destination.peer.now, PEER_CONFIRMED);
}

/* A confirmed migration stays confirmed. */
static void test_aborted_after_the_confirmation(NO_STATE)
{
    begin(DESTINATION_COMPLETE);
    assert_int_equal(on(&confirm), 0);
    assert_int_equal(on(&gives_up), -ECONNABORTED);
    assert_int_equal(on(&confirm), 0);
    assert_int_equal(destination.peer.now, PEER_CONFIRMED);
}

/* A source that has confirmed is not missed, however long the last record cannot be written. */
static void test_no_patience_is_needed_after_the_confirmation(NO_STATE)
{
    static const struct ibx_receive_options impatient = {.folder = "/nonexistent", .give_up_s = 1};
    static const enum destination_state states[] = {DESTINATION_COMPLETE, DESTINATION_SHUT_DOWN};
    for (unsigned i = 0; i < 4; i++) {
        struct ibx_error err = {0};
        const bool confirmed = i % 2;
        begin(states[i / 2]);
        destination.options = &impatient; /* lost_ns is 0: the link was lost when the host began */
        assert_int_equal(confirmed ? on(&confirm) : 0, 0);
        assert_int_equal(ibx_destination_check_patience(&destination, &err),
                         confirmed ? 0 : -ETIMEDOUT);
        assert_int_equal(destination.state.now, confirmed ? states[i / 2] : DESTINATION_LEFT);
    }
}

/* Nor is one that has not come yet. */
static void test_the_first_source_may_come_late(NO_STATE)
{
    static const struct ibx_receive_options impatient = {.folder = "/nonexistent", .give_up_s = 1};
    struct ibx_error err = {0};
    begin(DESTINATION_LISTENING);
    destination.options = &impatient;
    assert_int_equal(ibx_destination_check_patience(&destination, &err), 0);
    assert_int_equal(destination.state.now, DESTINATION_LISTENING);
}

/* The source finds wrong pages while the link is lost. It reports them and ends. It may know of
 * wrong pages even if pages are not compared. */
static void test_broken_after_the_shutdown(NO_STATE)
{
    static const struct ibx_migrate_any broken = {.type = IBX_MIGRATE_BROKEN, .is.reason = "no"};
    for (unsigned verify = 0; verify < 2; verify++) {
        begin(DESTINATION_SHUT_DOWN);
        destination.status.record.verify = verify;
        destination.status.record.totals.pages = 7;
        assert_int_equal(on(&broken), -EBADMSG);
        assert_int_equal(destination.state.now, DESTINATION_BROKEN);
        assert_int_equal(destination.status.record.totals.pages,
                         0); /* no record with them is read */
    }
}

/* The source may have committed: it is told that the VM has never run here, unless it has given up
 * itself, or this tool cannot know. */
static void test_who_gives_up_answers(NO_STATE)
{
    for (unsigned i = 0; i < 3; i++) {
        struct ibx_error err = {0};
        begin(DESTINATION_RESUMING);
        destination.ram.recovered = i == 1;
        if (i == 2)
            assert_int_equal(ibx_state_move(&destination.peer, PEER_ABORTED), 0);
        assert_int_equal(ibx_destination_refuse_commit(&destination, -EIO, &err), -EIO);
        assert_int_equal(destination.state.now, i ? DESTINATION_GIVEN_UP : DESTINATION_ANSWERING);
    }
}

/* The guest might take pages that came again for zeros: as long as that is unknown, the migration
 * is not complete. */
static void test_not_complete_before_qemu_has_told(NO_STATE)
{
    struct ibx_error err = {0};
    begin(DESTINATION_FILLING);
    destination.zeros_unknown = -ETIMEDOUT;
    assert_int_equal(ibx_destination_complete(&destination, &err), 0);
    assert_int_equal(destination.state.now, DESTINATION_FILLING);
    text_has(err.message, "its monitor does not answer");
    destination.zeros_unknown = 0; /* the record cannot be written, and has no totals before */
    destination.retry_ns = 0;
    destination.ram.discarded = 3;
    assert_int_equal(ibx_destination_complete(&destination, &err), 0);
    assert_int_equal(destination.state.now, DESTINATION_FILLING);
    text_has(err.message, "/nonexistent");
    const struct ibx_journal_totals none = {0};
    assert_memory_equal(&destination.status.record.totals, &none, sizeof(none));
}

/* A source may choose the id of another migration, whose record this one then cannot write. What
 * the tool of that one has noted, and a recover of it needs, stays. */
static void test_notes_of_another_migration_stay(NO_STATE)
{
    static const enum ibx_journal_page_state kinds[] = {IBX_PAGE_STATE_ARRIVED, IBX_PAGE_STATE_TAGS,
                                                        IBX_PAGE_STATE_BASE};
    struct ibx_record *record = &destination.status.record;
    for (unsigned written = 0; written < 2; written++) {
        struct ibx_page_state notes[3] = {{.memory = NULL}};
        char paths[3][128];
        begin(DESTINATION_LISTENING);
        memset(record->id, 0x7d, sizeof(record->id));
        snprintf((char *)record->id, sizeof(record->id), "%d", (int)getpid());
        record->written_s = written;
        for (unsigned i = 0; i < 3; i++) {
            ibx_journal_page_state_path(record, kinds[i], paths[i], sizeof(paths[i]));
            assert_int_equal(ibx_page_state_make(&notes[i], 8, paths[i], "it", "not", NULL), 0);
        }
        ibx_destination_ram_give_up(&destination.ram, record);
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(access(paths[i], F_OK), written ? -1 : 0);
            ibx_page_state_fini(&notes[i]);
            unlink(paths[i]);
        }
    }
}

/* A tool that was killed with all pages here has left its userfaultfd in QEMU, or has closed it.
 * Then its number may be that of another one by now: the protection of the VM's next migration, or
 * of a snapshot that QEMU makes. Only the first is this migration's, and to be removed. This
 * process acts as QEMU. */
static void test_recover_takes_only_its_own_userfaultfd(NO_STATE)
{
    const size_t length = 4096;
    void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    for (unsigned own = 0; own < 2; own++) {
        struct ibx_error err = {0};
        struct ibx_record *record = &destination.status.record;
        const struct ibx_fault_range range = {.start = (uintptr_t)at, .length = length};
        int uffd;
        new_destination(&destination, &options);
        assert_int_equal(ibx_fault_uffd_open(own ? 0 : UFFD_FEATURE_PAGEFAULT_FLAG_WP, &uffd, &err),
                         0);
        if (own)
            assert_int_equal(ibx_fault_register(uffd, &range, &err), 0);
        else
            assert_int_equal(ibx_protect_register(uffd, (uintptr_t)at, length, &err), 0);
        *record = (struct ibx_record){.epoch = EPOCH,
                                      .state = IBX_JOURNAL_COMPLETE,
                                      .pid = getpid(),
                                      .pid_started = ibx_process_started(getpid()),
                                      .uffd = uffd,
                                      .block_count = 1};
        record->blocks[0] = (struct ibx_journal_block){
            .id = "ram", .size = length, .page_size = length, .address = (uintptr_t)at};
        assert_int_equal(ibx_destination_recover(&destination, &err), 0);
        assert_int_equal(destination.ram.state.now, own ? RAM_REGISTERED : RAM_UNTOUCHED);
        ibx_destination_ram_fini(&destination.ram);
        close(uffd);
    }
    munmap(at, length);
}

/* ------------------------------------------------------------ where libvirt drives */

static const struct ibx_migrate_any decided = {.type = IBX_MIGRATE_DECIDED, .is.epoch = EPOCH};

/* Another process acts as QEMU. */
static void begin_managed(enum destination_state first, bool ran)
{
    struct ibx_record *record = &destination.status.record;
    begin(first);
    destination.qemu.managed = true;
    destination.qemu.ran = ran;
    signal(SIGCHLD, SIG_IGN); /* so that the kernel reaps it */
    let_child_be_qemu(record);
    assert_true(ibx_journal_qemu_lives(record));
}

static bool ended(void)
{
    const struct ibx_record *record = &destination.status.record;
    for (unsigned i = 0; i < 1000 && ibx_journal_qemu_lives(record); i++)
        usleep(1000);
    return !ibx_journal_qemu_lives(record);
}

static char noticed[IBX_ERROR_MAX];

static void note_notice(void *context, const char *text)
{
    (void)context;
    snprintf(noticed, sizeof(noticed), "%s", text);
}

/* If it cannot be read whether the process with that number is still QEMU, it is not killed, and a
 * person is told. */
static void test_no_other_process_is_killed(NO_STATE)
{
    static const struct ibx_migrate_observer observer = {.notify = note_notice};
    struct rlimit before, none;
    begin_managed(DESTINATION_RESUMING, false);
    destination.qemu.observer = &observer;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    ibx_destination_qemu_end(&destination.qemu);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_non_null(strstr(noticed, "whether it is that process is not known"));
    /* A process that has been killed does not stop any more. */
    const pid_t pid = destination.status.record.pid;
    kill(pid, SIGSTOP);
    assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
    kill(pid, SIGCONT);
    ibx_destination_qemu_end(&destination.qemu);
    assert_true(ended());
}

/* libvirt has continued the VM at the source, so it must not start here. */
static void test_source_continues_the_vm_before_it_ran(NO_STATE)
{
    static const enum destination_state states[] = {DESTINATION_RESUMING, DESTINATION_FILLING};
    for (unsigned i = 0; i < 2; i++) {
        begin_managed(states[i], false);
        assert_int_equal(on(&gives_up), -ECONNABORTED);
        assert_int_equal(destination.state.now, DESTINATION_GIVEN_UP);
        assert_true(ended());
    }
}

/* It must not run on here either. */
static void test_source_continues_the_vm_after_it_ran(NO_STATE)
{
    begin_managed(DESTINATION_FILLING, true);
    assert_int_equal(on(&gives_up), -EBADMSG);
    assert_int_equal(destination.state.now, DESTINATION_BROKEN);
    assert_true(ibx_journal_qemu_lives(&destination.status.record));
    kill(destination.status.record.pid, SIGKILL);
    assert_true(ended());
}

/* With all of its pages the VM does not need the source. */
static void test_source_continues_the_vm_when_complete(NO_STATE)
{
    begin_managed(DESTINATION_COMPLETE, true);
    assert_int_equal(on(&gives_up), -ECONNABORTED);
    assert_int_equal(destination.state.now, DESTINATION_COMPLETE);
    kill(destination.status.record.pid, SIGKILL);
    assert_true(ended());
}

static void test_decided(NO_STATE)
{
    begin(DESTINATION_RESUMING);
    assert_int_equal(on(&decided), -EPROTO); /* libvirt does not drive this migration */
    begin_managed(DESTINATION_RESUMING, false);
    assert_int_equal(on(&decided), 0);
    assert_true(destination.qemu.decided);
    kill(destination.status.record.pid, SIGKILL);
    begin_managed(DESTINATION_FILLING, true);
    assert_int_equal(on(&decided), 0);
    assert_false(destination.qemu.decided);
    kill(destination.status.record.pid, SIGKILL);
    assert_true(ended());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_confirmed_after_an_abort),
        cmocka_unit_test(test_aborted_after_the_confirmation),
        cmocka_unit_test(test_no_patience_is_needed_after_the_confirmation),
        cmocka_unit_test(test_the_first_source_may_come_late),
        cmocka_unit_test(test_broken_after_the_shutdown),
        cmocka_unit_test(test_who_gives_up_answers),
        cmocka_unit_test(test_not_complete_before_qemu_has_told),
        cmocka_unit_test(test_notes_of_another_migration_stay),
        cmocka_unit_test(test_recover_takes_only_its_own_userfaultfd),
        cmocka_unit_test(test_no_other_process_is_killed),
        cmocka_unit_test(test_source_continues_the_vm_before_it_ran),
        cmocka_unit_test(test_source_continues_the_vm_after_it_ran),
        cmocka_unit_test(test_source_continues_the_vm_when_complete),
        cmocka_unit_test(test_decided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
