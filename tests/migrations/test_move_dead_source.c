/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The source's QEMU is killed after the commit, and its tool with it: the file of guest RAM
 * outlives both, and ib-migrate recover serves from it. recover refuses it if it is no longer that
 * file, or if another process writes to it. The file has another name meanwhile, so that no QEMU
 * that is started by the old command line writes to it.
 */
#include "tests/fixtures/mover.h"

#include "common/clock.h"
#include "migrate/common/vm.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* The file that was set aside; NULL: there is none. */
static const char *aside(void)
{
    static char path[PATH_MAX];
    char pattern[128];
    glob_t found;
    snprintf(pattern, sizeof(pattern), "%s.ibx-*", vms[0].ram);
    const bool any = !glob(pattern, 0, NULL, &found);
    if (any)
        snprintf(path, sizeof(path), "%s", found.gl_pathv[0]);
    globfree(&found);
    return any ? path : NULL;
}

/* Only the destination is left. The VM has made so many beats there, and nearly all other pages are
 * missing. */
static void source_dies_after(unsigned long beats)
{
    pair_filling(NULL, NULL);
    vm_wait_beats(&vms[1], beats);
    mover_kill(&sender, SIGKILL);
    vm_kill(&vms[0]);
    mover_await(&receiver, "reconnecting", 0);
}

static void source_dies(void)
{
    source_dies_after(0);
}

static void recover_refuses(const char *words)
{
    struct mover *refused = MOVER_RUN(3, "recover", "--qmp", vms[0].tool, TIMED);
    mover_must_print(refused, words);
}

static void recovered(void)
{
    pair_recover(&sender);
    pair_filled();
    assert_null(aside());
}

static void test_source_and_its_tool_die(void)
{
    source_dies();
    struct mover *shown = MOVER_RUN(0, "status", "--qmp", vms[0].tool);
    mover_must_print(shown, "and its memory is in /dev/shm/");
    struct mover *kept = MOVER_RUN(0, "prune", "--unfinished", "--qmp", vms[0].tool);
    mover_must_print(kept, "kept: ");
    mover_must_print(kept, "ib-migrate recover serves it");
    recovered();
    assert_int_equal(access(vms[0].ram, F_OK), -1);
    MOVER_RUN(0, "prune", "--qmp", vms[0].tool);
}

/* The tool that recovers dies, too: the next one finds the file by its new name. */
static void test_again(void)
{
    source_dies();
    pair_recover(&sender);
    mover_await(&sender, "filling", 0);
    assert_non_null(aside());
    assert_int_equal(access(vms[0].ram, F_OK), -1);
    mover_kill(&sender, SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    recovered();
}

/* A VM with the memory of the one that died. */
static void start_anew(struct vm *vm)
{
    char ram[160];
    snprintf(ram, sizeof(ram), "memory-backend-file,id=mem0,size=%uM,mem-path=%s,share=on",
             VM_RAM_MIB, vms[0].ram);
    vm_start(vm, &(struct vm_options){.append = "", .ram = ram});
}

/* A manager has started the source's VM anew: it has written to the file. */
static void test_source_was_started_anew(void)
{
    struct vm anew;
    source_dies();
    start_anew(&anew);
    recover_refuses("may have overwritten the VM's memory");
    assert_null(aside());
    vm_end(&anew);
}

/* The file is lost, too, as after a restart of the host: nobody brings these pages back. Each side
 * says so; a tool that waits at the destination says it again and again, and can be interrupted;
 * and once the VM's QEMU was ended, no record is in the way. */
static void test_source_is_gone_for_good(void)
{
    source_dies();
    assert_int_equal(unlink(vms[0].ram), 0);
    recover_refuses("end its QEMU there and start it from its disk");
    struct mover *source = MOVER_RUN(0, "status", "--qmp", vms[0].tool);
    mover_must_print(source, "end its QEMU there and start it from its disk");
    struct mover *destination = MOVER_RUN(0, "status", "--qmp", vms[1].tool);
    mover_must_print(destination, "end this QEMU and start the VM from its disk");
    mover_kill(&receiver, SIGKILL);
    pair_timeout = "timeout_ms=100"; /* until it reminds: 60 times that */
    mover_recover(&receiver, &vms[1]);
    pair_timeout = PAIR_TIMEOUT;
    mover_await_words(&receiver, "start it from its disk");
    mover_await_words(&receiver, "the source has been away for ");
    mover_kill(&receiver, SIGTERM);
    mover_await_words(&receiver, "interrupt once more");
    mover_kill(&receiver, SIGTERM);
    mover_ends(&receiver, 3);
    vm_kill(&vms[1]);
    for (unsigned i = 0; i < 2; i++)
        mover_must_print(MOVER_RUN(0, "prune", "--unfinished", "--qmp", vms[i].tool), "deleted: ");
}

/* The VM that was started anew has ended before anybody looked. It has made more beats than the VM
 * before its stop, so that the page of its stack differs. The destination has that page, since the
 * VM cannot beat without it: the VM is stopped there, and nobody calls the migration complete. */
static void test_somebody_was_there(void)
{
    struct vm anew;
    source_dies_after(1);
    start_anew(&anew);
    vm_wait_beats(&anew, vm_beats(&vms[0]) + pair_beats);
    vm_end(&anew);
    pair_recover(&sender);
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    mover_ends(&sender, 1);
    mover_ends(&receiver, 1);
    mover_must_print(&sender, "broken");
    assert_false(vm_runs(&vms[1]));
}

/* The tool lives, and its QEMU is started anew at once: the new QEMU gets another file. */
static void test_started_anew_while_its_tool_serves(void)
{
    struct vm anew;
    char ram[160];
    pair_filling(NULL, NULL);
    vm_kill(&vms[0]);
    mover_await_words(&sender, "its pages are held here");
    assert_non_null(aside());
    snprintf(ram, sizeof(ram), "memory-backend-file,id=mem0,size=%uM,mem-path=%s,share=on",
             VM_RAM_MIB, vms[0].ram);
    vm_start(&anew, &(struct vm_options){.append = "", .ram = ram});
    vm_wait_beats(&anew, pair_beats);
    pair_filled();
    assert_null(aside());
    vm_end(&anew);
}

/* The VM is lost at the destination, too, and the tool is killed before it has removed the file:
 * the tool that reports the loss removes it. */
static void test_lost_at_both_ends(void)
{
    for (unsigned i = 0; i < 2; i++) {
        mover_stop_next("source:lost");
        pair_filling(NULL, NULL);
        vm_kill(&vms[0]);
        mover_await_words(&sender, "its pages are held here");
        vm_kill(&vms[1]);
        mover_ends(&receiver, 3);
        mover_await_stop(&sender);
        mover_kill(&sender, SIGKILL);
        assert_non_null(aside());
        if (!i)
            mover_must_print(MOVER_RUN(6, "recover", "--qmp", vms[0].tool, TIMED),
                             "nothing can restart it from where it stopped");
        const uint64_t deadline = vm_soon();
        for (; i && aside(); poll(NULL, 0, 5)) { /* once the tool's watchdog has ended */
            MOVER_RUN(0, "prune", "--unfinished", "--qmp", vms[0].tool);
            assert_true(ibx_now_ns() < deadline);
        }
        assert_null(aside());
        mover_end_all(NULL);
    }
}

/* The migration is never harmed, and goes on when the file is as before. */
static void test_another_file(void)
{
    char other[128];
    source_dies();
    snprintf(other, sizeof(other), "%s.other", vms[0].ram);
    assert_int_equal(rename(vms[0].ram, other), 0);
    recover_refuses("No such file");
    int fd = open(vms[0].ram, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    assert_int_equal(ftruncate(fd, (off_t)VM_RAM_MIB << 20), 0);
    close(fd);
    recover_refuses("it is another file now");
    assert_int_equal(unlink(vms[0].ram), 0);
    assert_int_equal(symlink(other, vms[0].ram), 0);
    recover_refuses("it is another file now");
    assert_int_equal(rename(other, vms[0].ram), 0);
    assert_int_equal(chmod(vms[0].ram, 0660), 0);
    recover_refuses("it has another mode now");
    assert_int_equal(chmod(vms[0].ram, 0600), 0);
    assert_int_equal(chown(vms[0].ram, 12345, (gid_t)-1), 0);
    recover_refuses("it has another owner now");
    assert_int_equal(chown(vms[0].ram, 0, (gid_t)-1), 0);
    recovered();
}

/* The tool is killed before it knows that the destination has all pages, and other pages of the
 * file hold data then, though no byte has changed. */
static void source_dies_unaware(void (*change)(int fd, off_t zeros, off_t hole))
{
    enum { ZEROS_AT = 50 << 20, HOLE_AT = 52 << 20, BYTES = 4096 };
    pair_start(NULL);
    const int fd = open(vms[0].ram, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, (char[BYTES]){0}, BYTES, ZEROS_AT), BYTES);
    pair_run_to("destination:complete", NULL);
    mover_kill(&sender, SIGKILL);
    assert_int_equal(lseek(fd, ZEROS_AT, SEEK_DATA), ZEROS_AT);
    assert_int_equal(lseek(fd, HOLE_AT, SEEK_HOLE), HOLE_AT);
    change(fd, ZEROS_AT, HOLE_AT);
    close(fd);
    mover_kill(&receiver, SIGCONT);
}

/* Like a program that dumps the memory, or a kernel that makes a huge page of the pages around. */
static void look_at_hole(int fd, off_t zeros, off_t hole)
{
    (void)zeros;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *at = mmap(NULL, page, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, hole);
    assert_ptr_not_equal(at, MAP_FAILED);
    munmap(at, page);
    assert_int_equal(lseek(fd, hole, SEEK_DATA), hole);
}

/* Like a guest, before the stop, after it was noted that the page holds data. */
static void give_zeros_back(int fd, off_t zeros, off_t hole)
{
    (void)hole;
    assert_int_equal(
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, zeros, sysconf(_SC_PAGESIZE)), 0);
}

static void recovers(void)
{
    pair_recover(&sender);
    pair_done();
    pair_moved("");
}

static void test_source_with_more_pages(void)
{
    source_dies_unaware(look_at_hole);
    recovers();
}

static void test_source_with_fewer_pages(void)
{
    source_dies_unaware(give_zeros_back);
    recovers();
}

static void test_source_with_fewer_pages_and_no_qemu(void)
{
    source_dies_unaware(give_zeros_back);
    vm_kill(&vms[0]);
    recovers();
}

static void remove_map(const char *record, const char *note)
{
    (void)record;
    if (strstr(note, ".source.map"))
        assert_int_equal(unlink(note), 0);
}

/* Nobody knows any more which pages the destination was told of: the tool ends, each time, and
 * nothing is given up. */
static void page_map_is_lost(void (*change)(int fd, off_t zeros, off_t hole))
{
    static const char remedy[] = "if the VM is as it should be there";
    source_dies_unaware(change);
    assert_int_equal(mover_each_note(remove_map), 2);
    recover_refuses(remedy);
    vm_kill(&vms[0]);
    recover_refuses(remedy);
    assert_non_null(aside());
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats);
    mover_kill(&receiver, SIGTERM); /* it may not have seen yet that the last link is lost */
    if (!mover_ends_or_prints(&receiver, 3, "interrupt once more")) {
        mover_kill(&receiver, SIGTERM);
        mover_ends(&receiver, 3);
    }
    assert_int_equal(unlink(aside()), 0);
    for (unsigned i = 0; i < 2; i++)
        mover_must_print(MOVER_RUN(0, "prune", "--unfinished", "--qmp", vms[i].tool), "deleted: ");
    assert_true(vm_runs(&vms[1]));
    mover_end_all(NULL);
}

static void test_source_whose_page_map_is_lost(void)
{
    page_map_is_lost(look_at_hole);
    page_map_is_lost(give_zeros_back);
}

/* Killed before COMMIT was sent: nobody knows any more whether the VM ran on here for a moment. */
static void test_before_the_commit(void)
{
    pair_start(NULL);
    pair_run_to("source:committed", NULL);
    mover_kill(&sender, SIGKILL);
    vm_kill(&vms[0]);
    mover_await_words(&receiver, "reconnecting");
    pair_recover(&sender);
    mover_ends(&sender, 3);
    mover_must_print(&sender, "the VM never ran at");
    mover_kill(&receiver, SIGKILL); /* which would stay for a minute to answer */
    vm_end(&vms[1]);
    struct mover *refused = MOVER_RUN(1, "rollback", "--yes", "--qmp", vms[0].tool, TIMED);
    mover_must_print(refused, "in which the VM stopped has ended");
}

/* With --remove the file was removed from where it was; otherwise prune names it, and can remove
 * it. */
static void test_what_is_left_behind_is_named(void)
{
    pair_start(NULL);
    pair_run(NULL);
    pair_done();
    vm_kill(&vms[0]);
    struct mover *told = MOVER_RUN(0, "prune", "--remove", "--qmp", vms[0].tool);
    mover_must_print(told, "deleted: ");
    assert_int_equal(access(vms[0].ram, F_OK), -1);
}

int main(void)
{
    static const struct vm_test tests[] = {VM_TEST(test_source_and_its_tool_die),
                                           VM_TEST(test_again),
                                           VM_TEST(test_source_is_gone_for_good),
                                           VM_TEST(test_source_was_started_anew),
                                           VM_TEST(test_somebody_was_there),
                                           VM_TEST(test_started_anew_while_its_tool_serves),
                                           VM_TEST(test_lost_at_both_ends),
                                           VM_TEST(test_another_file),
                                           VM_TEST(test_source_with_more_pages),
                                           VM_TEST(test_source_with_fewer_pages),
                                           VM_TEST(test_source_with_fewer_pages_and_no_qemu),
                                           VM_TEST(test_source_whose_page_map_is_lost),
                                           VM_TEST(test_before_the_commit),
                                           VM_TEST(test_what_is_left_behind_is_named),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
