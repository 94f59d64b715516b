/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The end of a move at its destination: every page is there, and the source does not know yet. A
 * tool that dies there, a full disk on either side, a QEMU that cannot be released and a lost
 * confirmation hold up only the end, which comes as soon as it can.
 */
#include "tests/fixtures/mover.h"

#include "migrate/qemu/qemu.h"

#include "common/clock.h"

#include <sys/socket.h>
#include <sys/stat.h>

/* A move whose receiver has stopped itself at a state. */
static void stopped_at(const char *state, const char *option)
{
    pair_start(NULL);
    pair_run_to(state, (const char *[]){option, NULL});
}

static bool has_userfaultfd(void)
{
    struct ibx_uffd uffd;
    if (ibx_uffd_take(vms[1].pid, -1, &uffd, NULL))
        return false;
    close(uffd.fd);
    return true;
}

static void await_let_go(void)
{
    const uint64_t deadline = vm_soon();
    while (has_userfaultfd()) {
        if (ibx_now_ns() >= deadline)
            fail_msg("QEMU still has its userfaultfd");
        poll(NULL, 0, 2);
    }
}

static void on_record(const struct vm *vm, const char *state, const char *words)
{
    struct mover *status = MOVER_RUN(0, "status", "--qmp", vm->tool);
    mover_must_print(status, state);
    mover_must_print(status, words);
}

/* Both have ended well, and the VM runs at the destination, which nothing of ours is left in. */
static void ended(void)
{
    pair_done();
    assert_false(has_userfaultfd());
    on_record(&vms[1], "done", "not needed any more");
    pair_moved("");
}

/* Killed before it has released QEMU: the next tool releases it. */
static void test_killed_when_complete(void)
{
    stopped_at("destination:complete", NULL);
    mover_kill(&receiver, SIGKILL);
    mover_await(&sender, "reconnecting", 0);
    assert_true(has_userfaultfd());
    on_record(&vms[1], "complete", "ib-migrate recover");
    pair_recover(&receiver);
    ended();
}

/* The notes of this move's destination, which has one record only. */
static bool has_list(void)
{
    char path[PATH_MAX];
    mover_arrived_path(path);
    return !access(path, F_OK);
}

/* The other tool's notes of which pages have come do not stay, either: nobody needs them any
 * more. */
static void test_killed_when_complete_in_minor_mode(void)
{
    stopped_at("destination:complete", "--minor");
    assert_true(has_list());
    mover_kill(&receiver, SIGKILL);
    pair_recover(&receiver);
    ended();
    assert_false(has_list());
}

/* A source that is away keeps all pages until it is told that they have arrived, whatever
 * becomes of the tools at the destination, and of QEMU there. */
static void test_killed_again_and_qemu_ended(void)
{
    stopped_at("destination:complete", NULL);
    mover_await_record("source", "moved");
    mover_kill(&sender, SIGSTOP);
    mover_kill(&receiver, SIGKILL);
    pair_recover(&receiver);
    mover_await_words(&receiver, "waiting at ");
    await_let_go();
    mover_kill(&receiver, SIGKILL);
    vm_kill(&vms[1]);
    on_record(&vms[0], "moved", "leave this QEMU");
    on_record(&vms[1], "complete", "with all of its pages");
    pair_recover(&receiver);
    mover_await_words(&receiver, "waiting at ");
    mover_kill(&receiver, SIGTERM);
    mover_ends(&receiver, 3); /* the VM is not lost: it had all of its pages */
    pair_recover(&receiver);
    mover_await_words(&receiver, "waiting at ");
    mover_kill(&sender, SIGCONT);
    pair_done();
    on_record(&vms[0], "done", "must not be continued");
}

/* The source's tool is killed as well, and each is started again. */
static void test_both_killed(void)
{
    stopped_at("destination:complete", NULL);
    mover_kill(&sender, SIGKILL);
    mover_kill(&receiver, SIGKILL);
    pair_recover(&sender);
    pair_recover(&receiver);
    ended();
}

/* A QEMU that is stopped can close nothing. */
static void test_qemu_cannot_be_let_go_of(void)
{
    stopped_at("destination:complete", NULL);
    kill(vms[1].pid, SIGSTOP);
    mover_kill(&receiver, SIGCONT);
    mover_await_words(&receiver, "QEMU cannot be let go of");
    assert_true(has_userfaultfd());
    /* The source is not kept from confirming by that, and waits for the end. */
    const uint64_t deadline = vm_soon();
    struct mover *status;
    do {
        assert_true(ibx_now_ns() < deadline);
        status = MOVER_RUN(0, "status", "--qmp", vms[0].tool);
    } while (!mover_printed(status, "done"));
    assert_int_equal(waitpid(sender.pid, NULL, WNOHANG), 0);
    kill(vms[1].pid, SIGCONT);
    ended();
}

/* Without the record there is no end: if a tool died then, nobody could tell the VM from one that
 * still needs its pages. A folder in the place of the new record stands for a disk that takes
 * none. */
static void record_cannot_be_written(const char *state, const char *option, const char *first)
{
    char place[PATH_MAX];
    stopped_at(state, option);
    mover_record_path(place);
    strcpy(strrchr(place, '.'), ".new");
    assert_int_equal(mkdir(place, 0700), 0);
    mover_kill(&receiver, SIGCONT);
    mover_await_words(&receiver, "the record cannot be written");
    mover_must_print(&receiver, first);
    assert_true(has_userfaultfd());
    assert_int_equal(waitpid(sender.pid, NULL, WNOHANG), 0);
    if (option)
        vm_do(&vms[1], "cont", NULL);
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats); /* the VM does not wait for it */
    assert_int_equal(rmdir(place), 0);
    ended();
}

static const char all_the_same[] = "; the VM is here and gets its pages all the same, but the "
                                   "migration does not end before";

static void test_record_cannot_be_written(void)
{
    record_cannot_be_written("destination:resuming", NULL, all_the_same);
}

static void test_record_of_a_paused_vm_cannot_be_written(void)
{
    record_cannot_be_written("destination:resuming", "--paused", all_the_same);
}

static void test_record_cannot_be_written_later(void)
{
    record_cannot_be_written("destination:filling", NULL, "trying again");
}

/* The last record, which says that the source has confirmed it: the source waits, too, but is not
 * needed. */
static void test_last_record_cannot_be_written(void)
{
    char place[PATH_MAX];
    stopped_at("destination:complete", NULL);
    mover_record_path(place);
    strcpy(strrchr(place, '.'), ".new");
    assert_int_equal(mkdir(place, 0700), 0);
    mover_kill(&receiver, SIGCONT);
    mover_await_words(&receiver, "cannot be written");
    mover_await_record("source", "done");
    assert_int_equal(waitpid(receiver.pid, NULL, WNOHANG), 0);
    assert_int_equal(waitpid(sender.pid, NULL, WNOHANG), 0);
    on_record(&vms[1], "complete", "with all of its pages");
    mover_kill(&sender, SIGINT);
    mover_await_words(&sender, "the confirmation may not have arrived there");
    mover_await_words(&receiver, "this is tried again without the source");
    assert_int_equal(rmdir(place), 0);
    ended();
}

/* A state folder that somebody has emptied has the records again as soon as they are written: else
 * nobody could continue the migration, and no tool would end. */
static void removed_records(const char *state)
{
    char place[PATH_MAX];
    stopped_at(state, NULL);
    mover_record_path(place);
    assert_int_equal(unlink(place), 0);
    strcpy(strstr(place, ".destination"), ".source.json");
    assert_int_equal(unlink(place), 0);
    mover_kill(&sender, SIGCONT);
    mover_kill(&receiver, SIGCONT);
    ended();
}

static void test_records_removed_before_the_commit(void)
{
    removed_records("source:sending");
}

static void test_records_removed_while_filling(void)
{
    removed_records("destination:filling");
}

#define ANEW "record of this migration, and it was written anew to "

static void cut_short(const char *record, const char *note)
{
    (void)note;
    assert_int_equal(truncate(record, 100), 0);
}

/* Until both tools have written all that they write before the end: who writes a record for its own
 * sake says nothing of what it was. The source's last entry is that all of its RAM is protected. */
static void filling_as_recorded(void)
{
    pair_filling(NULL, NULL);
    mover_await_record("source", "moved");
    mover_await_entry("source", "guarded", json_true());
    mover_await_record("destination", "running");
}

/* Each tool knows what its record said, and does not wait for the next state. */
static void test_records_cut_short_while_filling(void)
{
    filling_as_recorded();
    mover_each_note(cut_short);
    mover_await_words(&sender, ANEW);
    mover_await_words(&receiver, ANEW);
    pair_filled();
}

/* Nobody is there to write them anew: a copy says what they said. */
static void records_cut_short_when_both_are_killed(void)
{
    filling_as_recorded();
    mover_kill(&receiver, SIGKILL);
    mover_kill(&sender, SIGKILL);
    mover_each_note(cut_short);
    for (unsigned i = 0; i < 2; i++)
        on_record(&vms[i], i ? "running" : "moved", ".json is damaged, and a copy of it was read");
}

static void test_records_cut_short_without_a_tool(void)
{
    records_cut_short_when_both_are_killed();
    pair_recover(&receiver);
    pair_recover(&sender);
    pair_done();
    pair_moved("");
}

static void test_rolled_back_by_a_copy(void)
{
    records_cut_short_when_both_are_killed();
    vm_kill(&vms[1]);
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    pair_runs_at_the_source();
}

/* With the sockets of both tools, which come back, too. */
static void test_state_folder_removed_while_filling(void)
{
    char command[160], path[PATH_MAX];
    const uint64_t deadline = vm_soon();
    filling_as_recorded();
    mover_record_path(path);
    strcpy(strrchr(path, '.'), ".sock");
    snprintf(command, sizeof(command), "rm -r %s", mover_state_dir);
    while (system(command)) /* a tool has written a file there meanwhile */
        assert_true(ibx_now_ns() < deadline);
    mover_await_words(&sender, ANEW);
    mover_await_words(&receiver, ANEW);
    while (access(path, F_OK)) {
        assert_true(ibx_now_ns() < deadline);
        poll(NULL, 0, 2);
    }
    MOVER_RUN(0, "set", "--max-bandwidth", HARDLY, "--qmp", vms[1].tool);
    mover_kill(&receiver, SIGKILL);
    mover_kill(&sender, SIGKILL);
    pair_recover(&receiver);
    pair_recover(&sender);
    pair_done();
    pair_moved("");
}

/* A folder in the place of the source's new record, once the one that it may be writing has another
 * name. */
static void source_record_cannot_be_written(char place[PATH_MAX])
{
    const uint64_t deadline = vm_soon();
    mover_record_path(place);
    strcpy(strstr(place, ".destination"), ".source.new");
    while (mkdir(place, 0700)) {
        assert_int_equal(errno, EEXIST);
        assert_true(ibx_now_ns() < deadline);
    }
}

/* All pages are there, and the source ends when it could write that. Whoever interrupts it is told
 * what is missing. */
static void ends_once_it_is_written(const char *place)
{
    mover_await_words(&sender, "and only this is missing for the end");
    mover_await_record("destination", "complete");
    mover_kill(&sender, SIGINT);
    mover_await_words(&sender, "only the record of that is missing");
    assert_int_equal(waitpid(sender.pid, NULL, WNOHANG), 0);
    assert_int_equal(rmdir(place), 0);
    ended();
}

/* The watchdog does not say, either, that the VM does not go on. */
static void test_watchdog_cannot_write(void)
{
    char place[PATH_MAX];
    const uint64_t deadline = vm_soon();
    stopped_at("source:stopped", NULL);
    source_record_cannot_be_written(place);
    mover_kill(&sender, SIGKILL);
    while (!mover_printed(&sender, "ib-migrate ended, and VM")) {
        assert_true(ibx_now_ns() < deadline);
        poll(NULL, 0, 2);
    }
    mover_must_print(&sender, "goes on here, which could not be recorded");
    assert_int_equal(rmdir(place), 0);
    mover_ends(&receiver, 1);
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    pair_stayed();
}

/* The tool does not say so, either, nor that the VM may be elsewhere, as its record says. */
static void test_source_cannot_write_that_it_stays(void)
{
    char place[PATH_MAX];
    stopped_at("source:stopped", NULL);
    source_record_cannot_be_written(place);
    mover_kill(&sender, SIGINT);
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "the VM stays here, and that could not be recorded");
    mover_must_print(&sender, "ib-migrate rollback --qmp");
    mover_must_print(&sender, "stayed here");
    assert_false(mover_printed(&sender, "may run at"));
    assert_int_equal(rmdir(place), 0);
    mover_ends(&receiver, 1);
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    pair_stayed();
}

/* The VM gets its pages from a source whose disk is full from its commit on. */
static void test_source_record_cannot_be_written(void)
{
    char place[PATH_MAX];
    pair_start(NULL);
    pair_run_to("source:committed", (const char *[]){"--max-bandwidth", HARDLY, NULL});
    source_record_cannot_be_written(place);
    mover_kill(&sender, SIGCONT);
    mover_await_words(&sender, "cannot be written");
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    ends_once_it_is_written(place);
}

/* ... also when the link has to be made anew meanwhile. */
static void test_source_record_cannot_be_written_again(void)
{
    char place[PATH_MAX];
    pair_filling(NULL, NULL);
    mover_await_record("source", "moved");
    source_record_cannot_be_written(place);
    mover_kill(&receiver, SIGKILL);
    mover_await(&sender, "reconnecting", 0);
    pair_recover(&receiver);
    ends_once_it_is_written(place);
}

/* A tool that only waits for the source and is interrupted says what is still to be done. */
static void test_interrupted_when_complete(void)
{
    stopped_at("destination:complete", NULL);
    mover_kill(&sender, SIGKILL);
    mover_kill(&receiver, SIGCONT);
    mover_await(&receiver, "reconnecting", 0);
    mover_kill(&receiver, SIGINT);
    mover_ends(&receiver, 3);
    mover_must_print(&receiver, "the source has not confirmed it");
    pair_recover(&sender);
    pair_recover(&receiver);
    ended();
}

/* Both tools at the end; the source's is stopped before it sends CONFIRM. */
static void about_to_confirm(void)
{
    pair_start(NULL);
    pair_run_to("source:confirming", NULL);
    on_record(&vms[0], "done", "must not be continued");
}

/* While the source may confirm at any moment, a tool ends only when it is interrupted twice. */
static void test_interrupted_before_the_confirmation(void)
{
    about_to_confirm();
    await_let_go();
    mover_kill(&receiver, SIGINT);
    mover_await_words(&receiver, "only the source's confirmation is missing; interrupt once");
    mover_kill(&receiver, SIGINT);
    mover_ends(&receiver, 3);
    mover_must_print(&receiver, "the source has not confirmed it");
    assert_false(mover_printed(&receiver, "needs pages"));
    mover_kill(&sender, SIGCONT);
    pair_recover(&receiver);
    ended();
}

/* A tool that is told to end when it has done everything says so, as if it had not been told. */
static void interrupted_at(const char *state)
{
    pair_start(NULL);
    struct mover *stopped = pair_run_to(state, NULL);
    mover_kill(stopped, SIGTERM);
    mover_kill(stopped, SIGCONT);
    mover_ends(&receiver, 0);
    mover_ends(&sender, 0);
    mover_must_print(stopped, "\"summary\"");
}

static void test_interrupted_when_done(void)
{
    interrupted_at("destination:done");
}

static void test_interrupted_when_done_at_the_source(void)
{
    interrupted_at("source:done");
}

/* The QEMU of a source that has nothing left to do is missed by nobody. */
static void test_qemu_ends_before_the_confirmation(void)
{
    about_to_confirm();
    mover_kill(&receiver, SIGSTOP);
    vm_kill(&vms[0]);
    mover_kill(&sender, SIGCONT);
    mover_await_words(&sender, "with all of its pages, and only the confirmation");
    assert_false(mover_printed(&sender, "its pages are held here"));
    mover_kill(&receiver, SIGCONT);
    ended();
}

/* CONFIRM is lost: the source sends it again to the next tool. */
static void test_confirmation_lost(void)
{
    about_to_confirm();
    mover_kill(&receiver, SIGKILL);
    mover_kill(&sender, SIGCONT);
    mover_await(&sender, "reconnecting", 0);
    pair_recover(&receiver);
    ended();
}

/* ... or, when it has been interrupted meanwhile, as it is asked to later. */
static void test_confirmation_interrupted(void)
{
    about_to_confirm();
    mover_kill(&receiver, SIGKILL);
    mover_kill(&sender, SIGINT);
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 0);
    mover_must_print(&sender, "may not have arrived there");
    pair_recover(&receiver);
    mover_await_words(&receiver, "waiting at ");
    mover_start(&sender, (const char *[]){"recover", "--quit", "--qmp", vms[0].tool, TIMED, NULL});
    vm_await_end(&vms[0]);
    ended();
}

/* The receiver's address, with a long timeout asked for by the URI of the sender alone. */
static const char *patient_uri(void)
{
    static char uri[320];
    snprintf(uri, sizeof(uri), "%s?timeout_ms=600000", receiver.uri);
    return uri;
}

/* Connections stay open and unanswered: another one comes only when a try has ended. */
static void await_tries(int listener)
{
    int tries[3];
    for (unsigned i = 0; i < 3; i++) {
        struct pollfd wait = {.fd = listener, .events = POLLIN};
        assert_int_equal(poll(&wait, 1, (int)VM_WAIT_MS), 1);
        tries[i] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        assert_true(tries[i] >= 0);
    }
    for (unsigned i = 0; i < 3; i++)
        close(tries[i]);
}

/* However patient the URI is, one try of many takes seconds. */
static void tries_are_short(const char *state)
{
    pair_start(NULL);
    pair_receive(NULL);
    mover_stop_next(state);
    mover_send(&sender, &vms[0], patient_uri(), NULL);
    mover_await_stop(&sender);
    mover_kill(&receiver, SIGKILL);
    int listener = mover_listen_in_place_of(receiver.uri); /* ... and sends nothing */
    mover_kill(&sender, SIGCONT);
    await_tries(listener);
    close(listener);
    mover_kill(&sender, SIGKILL);
    mover_end_all(NULL);
}

static void test_tries_are_short(void)
{
    tries_are_short("source:confirming");
}

static void test_long_tries_are_short_while_serving(void)
{
    tries_are_short("source:serving");
}

/* The last line of a tool that only had to confirm a move. */
static void summed_up(const struct mover *m, bool confirmed, int status)
{
    json_t *summary = mover_summary(m), *record = json_object_get(summary, "record");
    assert_non_null(record);
    assert_string_equal(json_string_value(json_object_get(summary, "role")), "source");
    assert_string_equal(json_string_value(json_object_get(summary, "phase")),
                        confirmed ? "done" : "failed");
    assert_int_equal(json_is_true(json_object_get(summary, "complete")), confirmed);
    assert_int_equal(json_integer_value(json_object_get(summary, "exit_status")), status);
    assert_int_equal(json_is_null(json_object_get(summary, "error")), confirmed);
    assert_string_equal(json_string_value(json_object_get(record, "state")), "done");
    json_decref(summary);
}

/* The source's tool has died with it: recover sends it, and a second recover finds nobody. */
static void test_confirmation_never_said(void)
{
    struct mover again;
    const char *const recover_source[] = {"recover", "--qmp", vms[0].tool, "--json", TIMED, NULL};
    about_to_confirm();
    mover_kill(&sender, SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    mover_must_print(&receiver, "if ib-migrate status there says done");
    vm_kill(&vms[0]); /* it is not needed any more */
    mover_start(&again, recover_source);
    mover_ends(&again, 0);
    mover_must_print(&again, "the destination knows it");
    summed_up(&again, true, 0);
    mover_ends(&receiver, 0);
    on_record(&vms[1], "done", "not needed any more");
    mover_start(&again, recover_source);
    mover_ends(&again, 1);
    mover_must_print(&again, "the confirmation only if ib-migrate status reports complete there");
    summed_up(&again, false, 1);
    pair_moved("");
}

int main(void)
{
    pair_beats = 40;
    static const struct vm_test tests[] = {VM_TEST(test_killed_when_complete),
                                           VM_TEST(test_killed_when_complete_in_minor_mode),
                                           VM_TEST(test_killed_again_and_qemu_ended),
                                           VM_TEST(test_both_killed),
                                           VM_TEST(test_qemu_cannot_be_let_go_of),
                                           VM_TEST(test_record_cannot_be_written),
                                           VM_TEST(test_record_of_a_paused_vm_cannot_be_written),
                                           VM_TEST(test_record_cannot_be_written_later),
                                           VM_TEST(test_last_record_cannot_be_written),
                                           VM_TEST(test_records_removed_before_the_commit),
                                           VM_TEST(test_records_removed_while_filling),
                                           VM_TEST(test_records_cut_short_while_filling),
                                           VM_TEST(test_records_cut_short_without_a_tool),
                                           VM_TEST(test_rolled_back_by_a_copy),
                                           VM_TEST(test_state_folder_removed_while_filling),
                                           VM_TEST(test_watchdog_cannot_write),
                                           VM_TEST(test_source_record_cannot_be_written),
                                           VM_TEST(test_source_record_cannot_be_written_again),
                                           VM_TEST(test_source_cannot_write_that_it_stays),
                                           VM_TEST(test_interrupted_when_complete),
                                           VM_TEST(test_interrupted_before_the_confirmation),
                                           VM_TEST(test_interrupted_when_done),
                                           VM_TEST(test_interrupted_when_done_at_the_source),
                                           VM_TEST(test_qemu_ends_before_the_confirmation),
                                           VM_TEST(test_confirmation_lost),
                                           VM_TEST(test_confirmation_interrupted),
                                           VM_TEST(test_confirmation_never_said),
                                           VM_TEST(test_tries_are_short),
                                           VM_TEST(test_long_tries_are_short_while_serving),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
