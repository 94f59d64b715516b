/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Actions of other clients of the source's QEMU while the destination still needs its pages: nobody
 * runs the VM twice, and no page that is still to be served changes. Nothing else protects these
 * VMs: they have no disks, whose locks would.
 */
#include "tests/fixtures/mover.h"

#include "common/clock.h"
#include "userfaultfd/protect.h"

#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE      4096u
#define LAST_PART (16ull << 20) /* that the tool protects last */
#define PROTECTED (1ull << 57)  /* in /proc/PID/pagemap */

/* This guest never dozes: when it is continued, it writes before a tool can stop it again. */
static const struct vm_options resets = {.append = "doze=0", .extra = {"-action", "reboot=reset"}};

static int refused(const char *command, const char *words)
{
    struct ibx_error why = {0};
    int rc = ibx_qmp_execute(vms[0].qmp, command, NULL, NULL, vm_soon(), &why);
    if (!rc || !strstr(why.message, words))
        fail_msg("%s: %d \"%s\" does not say \"%s\"", command, rc, why.message, words);
    return rc;
}

static void is_held(void)
{
    json_t *status = vm_run(&vms[0], "query-status", NULL);
    assert_string_equal(json_string_value(json_object_get(status, "status")), "finish-migrate");
    json_decref(status);
    refused("cont", "not finalized yet");
    assert_false(mover_resumed(&vms[0]));
}

static void is_released(void)
{
    json_t *status = vm_run(&vms[0], "query-status", NULL);
    assert_string_equal(json_string_value(json_object_get(status, "status")), "postmigrate");
    json_decref(status);
}

/* `cont` is refused from the commit to the end, but no longer when nothing is left to protect. */
static void test_cont_is_refused(void)
{
    pair_start(NULL);
    mover_kill(pair_run_to("source:committed", (const char *[]){"--max-bandwidth", HARDLY, NULL}),
               SIGCONT);
    is_held();
    mover_await(&sender, "filling", 0);
    is_held();
    pair_filled();
    assert_false(mover_resumed(&vms[0]));
    is_released();
}

/* ... also while no tool is there, and by the next one. */
static void test_cont_is_refused_without_a_tool(void)
{
    pair_filling(NULL, NULL);
    mover_await(&sender, "filling", 0);
    mover_kill(&sender, SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    is_held();
    for (unsigned i = 0; i < 2; i++) { /* twice, since the first one dies, too */
        pair_recover(&sender);
        mover_await(&receiver, "filling", 0);
        is_held();
        if (!i)
            mover_kill(&sender, SIGKILL);
    }
    pair_filled();
    is_released();
}

/* A QEMU that ends for itself, unlike one that is killed, cancels its migration first: it does not
 * run the VM then. Its memory is held by the tool. */
static void test_quit(void)
{
    int status;
    const uint64_t deadline = vm_soon();
    pair_filling(NULL, NULL);
    mover_await(&sender, "filling", 0);
    const unsigned long before = vm_beats(&vms[0]);
    vm_do(&vms[0], "quit", NULL);
    while (waitpid(vms[0].pid, &status, WNOHANG) != vms[0].pid) {
        if (ibx_now_ns() >= deadline)
            fail_msg("QEMU does not quit");
        poll(NULL, 0, 2);
    }
    vms[0].pid = 0;
    assert_int_equal(vm_beats(&vms[0]), before);
    assert_false(mover_resumed(&vms[0]));
    pair_filled();
}

/* A tool that dies at the very end leaves a QEMU that refuses still; recover releases it. */
static void test_killed_at_the_end(void)
{
    pair_start(NULL);
    mover_kill(pair_run_to("source:confirming", NULL), SIGKILL);
    is_held();
    pair_recover(&sender);
    mover_ends(&sender, 0);
    mover_ends(&receiver, 0);
    is_released();
    pair_moved("");
}

/* ------------------------------------------------------------ who writes all the same */

/* The address of the last page of the source's RAM in its QEMU. */
static uint64_t last_page(void)
{
    char path[64], line[512];
    uint64_t start, end, found = 0;
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)vms[0].pid);
    FILE *maps = fopen(path, "re");
    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps))
        if (strstr(line, vms[0].ram) && sscanf(line, "%" SCNx64 "-%" SCNx64, &start, &end) == 2)
            found = end - PAGE;
    fclose(maps);
    assert_true(found);
    return found;
}

static void await_protection(void)
{
    const uint64_t deadline = vm_soon(), at = last_page() / PAGE;
    uint64_t entry = 0;
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/pagemap", (int)vms[0].pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    while (!(entry & PROTECTED)) {
        assert_int_equal(pread(fd, &entry, sizeof(entry), (off_t)(at * sizeof(entry))),
                         sizeof(entry));
        if (ibx_now_ns() >= deadline)
            fail_msg("guest RAM is not protected");
        poll(NULL, 0, 2);
    }
    close(fd);
}

/* Whether somebody is held by the userfaultfd of the source's QEMU (there is one at most). */
static bool somebody_is_held(void)
{
    char pattern[64], line[128];
    unsigned long total = 0;
    glob_t found;
    snprintf(pattern, sizeof(pattern), "/proc/%d/fdinfo/*", (int)vms[0].pid);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc && !total; i++) {
        FILE *info = fopen(found.gl_pathv[i], "re");
        while (info && fgets(line, sizeof(line), info) && sscanf(line, "total: %lu", &total) != 1) {
        }
        if (info)
            fclose(info);
    }
    globfree(&found);
    return total > 0;
}

static void await_held(void)
{
    const uint64_t deadline = vm_soon();
    while (!somebody_is_held()) {
        if (ibx_now_ns() >= deadline)
            fail_msg("the VM that was continued writes, and nobody holds it");
        poll(NULL, 0, 2);
    }
}

/* A device of the source's writes to guest RAM: fw_cfg, by DMA, to its page at 63 MiB, which nobody
 * uses. Its monitor does not answer before that is done. */
static void write_by_a_device(void)
{
    vm_hmp_blocks(&vms[0], "o /w 0x518 0xf003");
}

static void filling_under_protection(void)
{
    pair_filling(&resets, NULL);
    await_protection();
    /* It has asked QEMU, which answers one after the other, and has the answer. */
    mover_await_asleep(&sender);
    for (unsigned i = 0; i < 2; i++)
        json_decref(vm_run(&vms[0], "query-status", NULL));
    mover_await_asleep(&sender);
}

/* The source's tool says so, never that all is well. */
static void noticed(const char *words)
{
    mover_await_words(&sender, words);
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "with all of its pages as they were");
    mover_must_print(&sender, "kill -9");
    mover_ends(&receiver, 0);
    vm_kill(&vms[0]); /* its monitor may answer nobody */
}

/* ... and the VM has every page as it was. */
static void disturbed(const char *words)
{
    noticed(words);
    pair_moved("");
}

/* The next tool finds QEMU, which answers nobody, and that it is held. */
static void test_a_write_is_held_and_the_tool_killed(void)
{
    filling_under_protection();
    write_by_a_device();
    mover_await_words(&sender, "is blocked in that write");
    mover_kill(&sender, SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    pair_recover(&sender);
    disturbed("is blocked in that write");
}

/* ... also at the very end, before the protection is removed. */
static void test_a_write_is_held_at_the_end(void)
{
    mover_stop_next("source:confirming");
    filling_under_protection();
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    mover_await_stop(&sender);
    write_by_a_device();
    await_held();
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "is blocked in that write");
    mover_must_print(&sender, "with all of its pages as they were");
    mover_ends(&receiver, 0);
    assert_true(somebody_is_held());
    vm_kill(&vms[0]);
    pair_moved("");
}

/* ... also when there was no tool to see it, and the next one has looked a moment before. */
static void test_a_write_without_a_tool(void)
{
    filling_under_protection();
    mover_kill(&sender, SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    mover_stop_next("source:looked");
    pair_recover(&sender);
    mover_await_stop(&sender);
    write_by_a_device();
    await_held();
    mover_kill(&sender, SIGCONT);
    disturbed("is blocked in that write");
}

/* The destination is lost: who was held goes on, and the VM with it. */
static void test_rolled_back_under_protection(void)
{
    for (int written = 0; written < 2; written++) {
        filling_under_protection();
        if (written) {
            write_by_a_device();
            mover_await_words(&sender, "is blocked in that write");
        }
        mover_kill(&sender, SIGKILL);
        mover_kill(&receiver, SIGKILL);
        vm_kill(&vms[1]);
        const unsigned long before = vm_beats(&vms[0]);
        MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
        vm_wait_beats(&vms[0], before + pair_beats);
        mover_heartbeats((const struct vm *[]){&vms[0], NULL}, "");
        struct ibx_uffd uffd;
        assert_int_equal(ibx_uffd_take(vms[0].pid, -1, &uffd, NULL), -ENOENT);
        mover_end_all(NULL);
    }
}

/* QEMU resets a VM that has migrated. Its RAM is as it was. */
static void test_reset(void)
{
    filling_under_protection();
    vm_do(&vms[0], "system_reset", NULL);
    disturbed("another client has reset the VM");
}

/* migrate_cancel is what QEMU does not refuse: it continues the VM. It may do so before it answers,
 * and then a vCPU that is held in a write may hold QEMU's lock, too: nobody waits for the answer.
 */
static void continue_it(void)
{
    vm_ok(ibx_qmp_post(vms[0].qmp, "migrate_cancel", vm_soon(), &vm_error));
}

/* A VM that is continued gets no further than to its first write, whether a tool looks or not. A
 * tool that looks may be faster, and stop it before that. */
static void test_continued_in_spite_of_all(void)
{
    for (int looks = 0; looks < 2; looks++) {
        struct stat before;
        filling_under_protection();
        assert_int_equal(stat(vms[0].serial, &before), 0);
        const unsigned long beats = vm_beats(&vms[0]);
        mover_kill(&sender, looks ? SIGCONT : SIGSTOP);
        continue_it();
        if (!looks)
            await_held();
        mover_kill(&sender, SIGCONT);
        noticed(looks ? "the pages are what they were" : "is blocked in that write");
        /* Up to there it may have written the rest of a line, as it does at the destination. */
        assert_in_range(vm_beats(&vms[0]), beats, beats + 1);
        assert_int_equal(truncate(vms[0].serial, before.st_size), 0);
        pair_moved("");
        mover_end_all(NULL);
    }
}

static const char *past_clock; /* to be preloaded by the next sender; or NULL */

/* The VM is continued before the protection is there: nobody knows what it has changed here. */
static void continued_before_the_protection(const char *state, const char *option)
{
    const bool held = !strcmp(state, "source:arming");
    pair_start(&(struct vm_options){.append = "", .extra = {"-no-shutdown"}});
    pair_receive((const char *[]){"--max-bandwidth", HARDLY, option, NULL});
    mover_stop_next(state);
    mover_preload(past_clock);
    pair_send((const char *[]){option, NULL});
    mover_preload(NULL);
    mover_await_stop(&sender);
    continue_it();
    json_decref(vm_event(&vms[0], "RESUME", NULL));
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "another client has continued the VM");
    mover_must_print(&sender, "migration is broken");
    mover_ends(&receiver, 1);
    if (!held) /* else its monitor may answer nobody */
        assert_false(vm_runs(&vms[0]));
    assert_false(vm_runs(&vms[1]));
    mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[0].tool), "broken");
    vm_end(&vms[1]);
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    pair_runs_at_the_source();
}

static void test_continued_before_the_protection(void)
{
    continued_before_the_protection("source:committed", NULL);
}

/* ... or was whole: what was not protected yet may have changed. */
static void test_continued_before_the_protection_was_whole(void)
{
    continued_before_the_protection("source:arming", NULL);
}

/* ... by a host whose clock was set back meanwhile: QEMU's events have times of that clock. */
static void test_continued_before_the_protection_by_another_clock(void)
{
    past_clock = getenv("IBX_PAST_CLOCK");
    if (!past_clock)
        skip();
    continued_before_the_protection("source:arming", NULL);
    past_clock = NULL;
}

/* Pages that are not compared may have changed as well. */
static void test_continued_unverified(void)
{
    continued_before_the_protection("source:committed", "--no-verify");
}

/* Up to the moment before the protection is whole: three quarters of the memory are protected. */
static void stopped_while_arming(void)
{
    pair_start(&resets);
    pair_receive((const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_stop_next("source:arming");
    pair_send(NULL);
    mover_await_stop(&sender);
}

/* Both sides know it. Neither monitor may answer: one main thread may be held, and the other may
 * wait for a page. */
static void both_know_it(void)
{
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, "migration is broken");
    mover_must_print(&receiver, "was paused");
    mover_await_record("destination", "broken");
    vm_kill(&vms[0]);
    vm_kill(&vms[1]);
}

/* A thread that waits to write may have written to the rest before. */
static void test_a_write_after_a_tool_killed_while_arming(void)
{
    stopped_while_arming();
    mover_kill(&sender, SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    continue_it();
    await_held();
    pair_recover(&sender);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "may have changed before the destination had fetched it");
    both_know_it();
    mover_must_print(&receiver, "may have changed before the destination had fetched it");
}

/* The destination's tool is not there. It is told as soon as both tools run again, and no page of
 * such memory is served any more. */
static void test_told_later(void)
{
    stopped_while_arming();
    mover_kill(&receiver, SIGKILL);
    vm_do(&vms[0], "system_reset", NULL);
    json_decref(vm_event(&vms[0], "RESET", NULL));
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "may have changed before the destination had fetched it");
    mover_must_print(&sender, "could not be told");
    mover_await_record("source", "broken");
    pair_recover(&receiver);
    mover_await(&receiver, "reconnecting", 0);
    pair_recover(&sender);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "which knows it");
    both_know_it();
}

/* A destination that cannot pause its VM says so. */
static void test_told_to_one_that_cannot_pause(void)
{
    stopped_while_arming();
    kill(vms[1].pid, SIGSTOP);
    vm_do(&vms[0], "system_reset", NULL);
    json_decref(vm_event(&vms[0], "RESET", NULL));
    mover_kill(&sender, SIGCONT);
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, "could not be paused");
    mover_ends(&sender, 1);
    mover_must_print(&sender, "could not pause the VM");
    vm_kill(&vms[0]);
    vm_kill(&vms[1]);
}

/* ... that was made while there was no tool, and none of it is held: QEMU tells of it only then. */
static void reset_without_a_tool(void)
{
    vm_do(&vms[0], "system_reset", NULL);
    json_decref(vm_event(&vms[0], "RESET", NULL));
    pair_recover(&sender);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "may have changed before the destination had fetched it");
}

static void test_reset_after_a_tool_killed_while_arming(void)
{
    stopped_while_arming();
    mover_kill(&sender, SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    reset_without_a_tool();
    both_know_it();
}

/* ... before the commit has reached the destination: the VM never runs there. */
static void test_reset_after_a_tool_killed_at_the_commit(void)
{
    pair_start(&resets);
    mover_kill(pair_run_to("source:committed", NULL), SIGKILL);
    reset_without_a_tool();
    mover_ends(&receiver, 1);
    assert_false(mover_resumed(&vms[1])); /* its QEMU has ended */
    mover_await_record("source", "broken");
}

/* A VM that was stopped at the address where an x86 begins is not taken for one that was reset
 * since: nobody says that it is broken. */
static void test_recovered_before_its_first_instruction(void)
{
    pair_start(&resets);
    vm_do(&vms[0], "stop", NULL);
    vm_do(&vms[0], "system_reset", NULL);
    json_decref(vm_event(&vms[0], "RESET", NULL));
    mover_kill(pair_run_to("source:committed", NULL), SIGKILL);
    pair_recover(&sender);
    mover_ends(&sender, 3);
    mover_must_print(&sender, "has the registers of an x86 at reset");
    mover_await_record("source", "may-run");
}

/* The last part of the memory, as the tool would have protected it next. */
static void protect_the_rest(void)
{
    struct ibx_uffd uffd;
    vm_ok(ibx_uffd_take(vms[0].pid, -1, &uffd, &vm_error));
    const uint64_t end = last_page() + PAGE;
    vm_ok(ibx_protect_forbid(uffd.fd, end - LAST_PART, LAST_PART, &vm_error));
    close(uffd.fd);
    await_protection();
}

/* ... and all was protected after it: the tool was killed before it could hear of it. */
static void test_reset_before_a_tool_killed_under_protection(void)
{
    stopped_while_arming();
    mover_kill(&sender, SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    vm_do(&vms[0], "system_reset", NULL);
    json_decref(vm_event(&vms[0], "RESET", NULL));
    protect_the_rest();
    pair_recover(&sender);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "may have changed before the destination had fetched it");
    both_know_it();
}

/* Where nobody has done anything, the next tool protects the rest. */
static void test_recovered_while_arming(void)
{
    stopped_while_arming();
    mover_kill(&sender, SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    pair_recover(&sender);
    await_protection();
    pair_filled();
}

/* Under the protection a reset changes nothing, whoever sees it. */
static void test_reset_under_protection_without_a_tool(void)
{
    filling_under_protection();
    mover_kill(&sender, SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    vm_do(&vms[0], "system_reset", NULL);
    pair_recover(&sender);
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    mover_wait(&sender); /* 1 if it was held */
    mover_ends(&receiver, 0);
    vm_kill(&vms[0]);
    pair_moved("");
}

/* As after a tool that was killed between making one and closing it, or a QEMU that did not close
 * it: nothing in it waits for a page. */
static void test_an_unused_userfaultfd_is_no_obstacle(void)
{
    struct ibx_uffd left;
    pair_start(NULL);
    vm_ok(ibx_uffd_make(vms[0].pid, vms[0].qmp, IBX_UFFD_ANY, &left, vm_soon(), &vm_error));
    close(left.fd);
    pair_run(NULL);
    pair_moved("");
}

int main(void)
{
    pair_beats = 10;
    static const struct vm_test tests[] = {
        VM_TEST(test_cont_is_refused),
        VM_TEST(test_cont_is_refused_without_a_tool),
        VM_TEST(test_killed_at_the_end),
        VM_TEST(test_quit),
        VM_TEST(test_a_write_is_held_and_the_tool_killed),
        VM_TEST(test_a_write_is_held_at_the_end),
        VM_TEST(test_a_write_without_a_tool),
        VM_TEST(test_rolled_back_under_protection),
        VM_TEST(test_reset),
        VM_TEST(test_continued_in_spite_of_all),
        VM_TEST(test_continued_before_the_protection),
        VM_TEST(test_continued_before_the_protection_was_whole),
        VM_TEST(test_continued_before_the_protection_by_another_clock),
        VM_TEST(test_continued_unverified),
        VM_TEST(test_a_write_after_a_tool_killed_while_arming),
        VM_TEST(test_told_later),
        VM_TEST(test_told_to_one_that_cannot_pause),
        VM_TEST(test_reset_after_a_tool_killed_while_arming),
        VM_TEST(test_reset_after_a_tool_killed_at_the_commit),
        VM_TEST(test_recovered_before_its_first_instruction),
        VM_TEST(test_reset_before_a_tool_killed_under_protection),
        VM_TEST(test_recovered_while_arming),
        VM_TEST(test_reset_under_protection_without_a_tool),
        VM_TEST(test_an_unused_userfaultfd_is_no_obstacle),
        {0}};
    return vm_tests(tests, mover_end_all);
}
