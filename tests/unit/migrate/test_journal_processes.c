/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether the process that a record names has ended, and which records are of one process. */
#include "migrate/common/common.h"
#include "migrate/journal/journal.h"
#include "tests/fixtures/journal_scene.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *boot; /* the file that the kernel shows in the place of its own; NULL: its own */
static int unreadable;   /* the error of when processes have started; 0: none */

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, mode_t mode);
int __wrap_open64(const char *path, int flags, mode_t mode)
{
    const size_t length = strlen(path);
    if (unreadable && length > 5 && !strcmp(path + length - 5, "/stat")) {
        errno = unreadable;
        return -1;
    }
    return __real_open64(boot && strstr(path, "/boot_id") ? boot : path, flags, mode);
}

static bool twice; /* each name of a folder comes twice */

struct dirent *__real_readdir64(DIR *dir);
struct dirent *__wrap_readdir64(DIR *dir);
struct dirent *__wrap_readdir64(DIR *dir)
{
    static struct dirent *last;
    if (last && twice) {
        struct dirent *again = last;
        last = NULL;
        return again;
    }
    last = __real_readdir64(dir);
    return last;
}

/* A process whose name looks like the fields that follow it in /proc/PID/stat. */
static struct ibx_record child_of_odd_name(void)
{
    int named[2], byte;
    assert_int_equal(pipe2(named, O_CLOEXEC), 0);
    const pid_t child = fork();
    if (!child) {
        const int fd = open("/proc/self/comm", O_WRONLY | O_CLOEXEC);
        if (write(fd, "a) Z 1 (", 8) == 8 && write(named[1], "", 1) == 1)
            alarm(60);
        pause();
    }
    assert_true(child > 0);
    close(named[1]);
    assert_int_equal(read(named[0], &byte, 1), 1);
    close(named[0]);
    return (struct ibx_record){.pid = child, .pid_started = ibx_process_started(child)};
}

static void end(const struct ibx_record *r)
{
    siginfo_t info;
    kill(r->pid, SIGKILL);
    assert_int_equal(waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(ibx_process_started(r->pid), 0); /* a zombie does not count as running */
    assert_true(ibx_journal_qemu_gone(r));
    assert_int_equal(waitpid(r->pid, NULL, 0), r->pid);
    assert_int_equal(ibx_process_started(r->pid), 0);
    assert_true(ibx_journal_qemu_gone(r));
    assert_false(ibx_journal_qemu_lives(r));
}

static void processes_with_one_number_are_distinguished(NO_STATE)
{
    const uint64_t mine = ibx_process_started(getpid());
    assert_true(mine > 0);
    assert_int_equal(ibx_process_started(getpid()), mine);
    assert_true(ibx_process_started(1) <= mine);
    assert_int_equal(ibx_process_started(0), 0);
    assert_int_equal(ibx_process_started(-1), 0);
    struct ibx_record r = child_of_odd_name();
    assert_true(r.pid_started >= mine);
    assert_false(ibx_journal_qemu_gone(&r));
    assert_true(ibx_journal_qemu_lives(&r));
    /* A process with this number that started at another time is another process. */
    r.pid_started++;
    assert_true(ibx_journal_qemu_gone(&r));
    assert_false(ibx_journal_qemu_lives(&r));
    r.pid_started--;
    /* A record that does not say which process it is says of none that it has ended. */
    struct ibx_record unknown = r;
    unknown.pid_started = 0;
    assert_false(ibx_journal_qemu_gone(&unknown));
    unknown.pid = 0;
    assert_false(ibx_journal_qemu_gone(&unknown));
    end(&r);
}

static void a_stopped_process_is_known(NO_STATE)
{
    const struct ibx_record r = child_of_odd_name();
    siginfo_t info;
    const char at_first = ibx_process_state(r.pid); /* it runs, or sleeps */
    assert_true(at_first && at_first != 'T');
    assert_int_equal(kill(r.pid, SIGSTOP), 0);
    assert_int_equal(waitid(P_PID, (id_t)r.pid, &info, WSTOPPED | WNOWAIT), 0);
    assert_int_equal(ibx_process_state(r.pid), 'T');
    assert_int_equal(ibx_process_state(0), '\0');
    end(&r);
}

/* A QEMU counts as ended only if that is certain: its record could be deleted otherwise, or its VM
 * be continued elsewhere. */
static void what_cannot_be_read_has_not_ended(NO_STATE)
{
    const struct ibx_record r = child_of_odd_name();
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const bool gone = ibx_journal_qemu_gone(&r), lives = ibx_journal_qemu_lives(&r);
    const uint64_t started = ibx_process_started(r.pid);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(started, 0);
    assert_false(gone);
    assert_true(lives);
    end(&r);
}

/* hidepid of proc(5) hides the processes of other users. */
static void hidden_processes_have_not_ended(NO_STATE)
{
    const struct ibx_record r = child_of_odd_name();
    unreadable = ENOENT;
    const bool gone = ibx_journal_qemu_gone(&r), lives = ibx_journal_qemu_lives(&r);
    unreadable = 0;
    assert_false(gone);
    assert_true(lives);
    end(&r);
}

/* After a boot another process can have the number and the start time of QEMU. */
static void another_boot_has_other_processes(NO_STATE)
{
    struct ibx_record r = child_of_odd_name(), other;
    char path[128];
    ibx_process_boot(r.boot);
    if (!r.boot[0])
        skip();
    other = r;
    assert_false(ibx_journal_qemu_gone(&r));
    assert_true(ibx_journal_same_process(&r, &other));
    assert_int_equal(make_folder(NULL), 0);
    snprintf(path, sizeof(path), "%s/boot_id", folder);
    put_file(path, "01234567-0000\n", 14);
    boot = path;
    ibx_process_boot(other.boot);
    assert_string_equal(other.boot, "01234567-0000");
    assert_true(ibx_journal_qemu_gone(&r));
    assert_false(ibx_journal_qemu_lives(&r));
    assert_false(ibx_journal_same_process(&r, &other));
    boot = NULL;
    assert_int_equal(remove_folder(NULL), 0);
    other.boot[0] = '\0'; /* as an earlier version wrote it */
    assert_false(ibx_journal_qemu_gone(&other));
    assert_true(ibx_journal_same_process(&r, &other));
    end(&r);
}

/* Whether a QEMU without a uuid is that of an unfinished migration, only its number and start time
 * tell. */
static void what_cannot_be_read_is_not_another_process(NO_STATE)
{
    struct ibx_record r = sample(true, 7);
    const struct ibx_record child = child_of_odd_name();
    const struct ibx_guest_ram ram = {.pid = child.pid};
    r.pid = child.pid;
    r.pid_started = child.pid_started;
    ibx_process_boot(r.boot);
    assert_int_equal(make_folder(NULL), 0);
    assert_int_equal(write_record(&r), 0);
    assert_int_equal(ibx_migration_check_unfinished(folder, &ram, true, false, &error), -EBUSY);
    unreadable = EMFILE;
    const int rc = ibx_migration_check_unfinished(folder, &ram, true, false, &error);
    unreadable = 0;
    assert_int_equal(rc, -EMFILE);
    error_has("when QEMU");
    end(&child);
    assert_int_equal(ibx_migration_check_unfinished(folder, &ram, true, false, &error), 0);
    assert_int_equal(remove_folder(NULL), 0);
}

/* A tmpfs numbers its files anew after a boot: one with the same number has no pages of a VM that
 * had left before. */
static void a_file_of_an_earlier_boot_is_not_needed(NO_STATE)
{
    struct ibx_record r = sample(true, 7);
    struct ibx_guest_block block = {.id = "mem0",
                                    .shared = true,
                                    .dev = r.blocks[0].dev,
                                    .ino = r.blocks[0].ino,
                                    .file = r.blocks[0].file.file};
    const struct ibx_guest_ram ram = {.pid = getpid(), .count = 1, .blocks = &block};
    assert_int_equal(make_folder(NULL), 0);
    bring_to(&r, IBX_JOURNAL_MOVED);
    assert_int_equal(ibx_migration_check_unfinished(folder, &ram, false, false, &error), -EBUSY);
    error_has("still needs pages");
    block.file--; /* the boot is a part of it */
    assert_int_equal(ibx_migration_check_unfinished(folder, &ram, false, false, &error), 0);
    block.file = 0; /* not known */
    assert_int_equal(ibx_migration_check_unfinished(folder, &ram, false, false, &error), -EBUSY);
    assert_int_equal(remove_folder(NULL), 0);
}

/* Nor has one of a VM that is lost at its destination, or has all of its pages there, or one that
 * QEMU has mapped for itself alone. */
static void memory_that_nobody_needs_may_be_overwritten(NO_STATE)
{
    struct ibx_record lost = sample(true, 7), done = sample(true, 8);
    struct ibx_guest_block block = {
        .id = "mem0", .shared = true, .dev = lost.blocks[0].dev, .ino = lost.blocks[0].ino};
    const struct ibx_guest_ram ram = {.pid = getpid(), .count = 1, .blocks = &block};
    assert_int_equal(make_folder(NULL), 0);
    bring_to(&done, IBX_JOURNAL_DONE);
    bring_to(&lost, IBX_JOURNAL_MOVED);
    block.shared = false;
    assert_int_equal(ibx_migration_check_unfinished(folder, &ram, false, false, &error), 0);
    block.shared = true;
    assert_int_equal(ibx_migration_check_unfinished(folder, &ram, false, false, &error), -EBUSY);
    strcpy(lost.vm_status, IBX_JOURNAL_QEMU_ENDED);
    assert_int_equal(write_record(&lost), 0);
    assert_true(ibx_journal_lost_there(&lost));
    assert_int_equal(ibx_migration_check_unfinished(folder, &ram, false, false, &error), 0);
    assert_int_equal(remove_folder(NULL), 0);
}

/* readdir(3) may return a file twice that is replaced meanwhile. */
static void a_record_that_is_replaced_is_listed_once(NO_STATE)
{
    struct ibx_record r = sample(true, 5), other = sample(false, 5), *all;
    size_t count;
    assert_int_equal(make_folder(NULL), 0);
    assert_int_equal(write_record(&r), 0);
    assert_int_equal(write_record(&other), 0); /* the other side's, on the same host */
    twice = true;
    assert_int_equal(ibx_journal_list(folder, &all, &count, &error), 0);
    twice = false;
    assert_int_equal(count, 2);
    assert_true(all[0].source != all[1].source);
    free(all);
    assert_int_equal(remove_folder(NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_boot_has_other_processes),
        cmocka_unit_test(what_cannot_be_read_is_not_another_process),
        cmocka_unit_test(a_file_of_an_earlier_boot_is_not_needed),
        cmocka_unit_test(memory_that_nobody_needs_may_be_overwritten),
        cmocka_unit_test(processes_with_one_number_are_distinguished),
        cmocka_unit_test(a_stopped_process_is_known),
        cmocka_unit_test(what_cannot_be_read_has_not_ended),
        cmocka_unit_test(hidden_processes_have_not_ended),
        cmocka_unit_test(a_record_that_is_replaced_is_listed_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
