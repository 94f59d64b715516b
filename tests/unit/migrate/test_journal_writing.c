/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A record in its file is complete or absent, whatever happens to the process that writes it. */
#include "tests/fixtures/journal_scene.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Writes records of very different lengths for ever. */
static void write_until_killed(void)
{
    struct ibx_record r = only();
    for (uint64_t turn = 0;; turn++) {
        r.epoch++;
        memset(r.qmp, 'q', sizeof(r.qmp) - 1);
        r.qmp[turn % 2 ? 10 : 4000] = '\0';
        if (ibx_journal_write(folder, &r, NULL))
            _exit(1);
    }
}

static void a_killed_writer_leaves_a_whole_record(NO_STATE)
{
    struct ibx_record r = sample(true, 3);
    assert_int_equal(write_record(&r), 0);
    for (unsigned turn = 0; turn < 25; turn++) {
        const uint64_t from = only().epoch;
        pid_t child = fork_bound();
        if (!child)
            write_until_killed();
        /* Whatever the writer is doing, a complete record is read. Some rounds end at once. */
        while (only().epoch < from + turn % 5)
            assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        struct ibx_record found = only();
        assert_in_range(found.epoch, from + turn % 5, UINT64_MAX);
        assert_true(found.epoch == 1 || strlen(found.qmp) == 10 || strlen(found.qmp) == 4000);
    }
    r = only();
    r.epoch++;
    assert_int_equal(write_record(&r), 0); /* over what a killed process left behind */
    assert_int_equal(only().epoch, r.epoch);
}

static bool unwritten(int rc, int expected)
{
    char path[PATH_MAX];
    struct ibx_record r = sample(true, 3);
    ibx_journal_path(folder, &r, ".new", path, sizeof(path));
    return rc == expected && strstr(error.message, folder) &&
           strstr(error.message, strerror(-expected)) && access(path, F_OK);
}

/* Changes the record until there is no space for the next one. */
static int on_a_full_disk(void)
{
    struct ibx_record r = sample(true, 3), *all;
    char path[PATH_MAX], block[4096] = {0};
    size_t count;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", folder, "tmpfs", 0, "size=64k,mode=0700"))
        return CHILD_SKIPS;
    CHECK(!ibx_journal_write(folder, &r, &error));
    snprintf(path, sizeof(path), "%s/filler", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    while (write(fd, block, sizeof(block)) > 0)
        ;
    CHECK(errno == ENOSPC);
    r.state = IBX_JOURNAL_MAY_RUN;
    CHECK(unwritten(ibx_journal_write(folder, &r, &error), -ENOSPC));
    CHECK(strstr(error.message, "cp -a") && !strstr(error.message, "choose another"));
    CHECK(!ibx_journal_list(folder, &all, &count, &error) && count == 1);
    CHECK(all[0].state == IBX_JOURNAL_HERE);
    free(all);
    CHECK(!ftruncate(fd, 0) && !close(fd) && !ibx_journal_write(folder, &r, &error));
    CHECK(!ibx_journal_lock(folder, &r, &fd, &error) && r.written_s);
    ibx_journal_unlock(folder, &r, fd);
    CHECK(!mount(NULL, folder, NULL, MS_REMOUNT | MS_RDONLY, NULL));
    r.state = IBX_JOURNAL_MOVED;
    CHECK(unwritten(ibx_journal_write(folder, &r, &error), -EROFS));
    CHECK(!ibx_journal_list(folder, &all, &count, &error) && count == 1);
    CHECK(all[0].state == IBX_JOURNAL_MAY_RUN);
    free(all);
    CHECK(ibx_journal_lock(folder, &r, &fd, &error) == -EROFS && strstr(error.message, "cp -a"));
    ibx_journal_path(folder, &r, ".lock", path, sizeof(path));
    fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && !flock(fd, LOCK_EX)); /* a tool that has it from before */
    int another;
    CHECK(ibx_journal_lock(folder, &r, &another, &error) == -EBUSY);
    CHECK(!mount(NULL, folder, NULL, MS_REMOUNT, NULL) && !truncate(path, 0)); /* a watchdog's */
    CHECK(!mount(NULL, folder, NULL, MS_REMOUNT | MS_RDONLY, NULL));
    CHECK(ibx_journal_lock(folder, &r, &another, &error) == -EBUSY);
    r.written_s = 0; /* a new migration */
    r.id[0] ^= 1;
    CHECK(ibx_journal_lock(folder, &r, &another, &error) == -EROFS);
    CHECK(strstr(error.message, "choose another") && !close(fd));
    r.state = IBX_JOURNAL_HERE;
    CHECK(unwritten(ibx_journal_write(folder, &r, &error), -EROFS));
    CHECK(strstr(error.message, "choose another") && !strstr(error.message, "cp -a"));
    r.base[0] = 1; /* the return of a borrowed VM, whose record is in this folder */
    CHECK(unwritten(ibx_journal_write(folder, &r, &error), -EROFS));
    CHECK(strstr(error.message, "cp -a") && !strstr(error.message, "choose another"));
    CHECK(ibx_journal_lock(folder, &r, &another, &error) == -EROFS);
    CHECK(strstr(error.message, "cp -a") && !strstr(error.message, "choose another"));
    return 0;
}

static void full_and_read_only_disks(NO_STATE)
{
    passes_with_its_folder(on_a_full_disk); /* only root may mount */
}

static unsigned syncs, fails_at; /* which fsync(2) fails; 0: none */

int fsync(int fd)
{
    if (++syncs == fails_at) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

/* The sync of the text fails, or that of the folder, when the text already has its name. */
static void failed_sync_leaves_no_record(NO_STATE)
{
    static const enum ibx_journal_state states[] = {IBX_JOURNAL_HERE, IBX_JOURNAL_MAY_RUN,
                                                    IBX_JOURNAL_MOVED, IBX_JOURNAL_DONE};
    struct ibx_record r = sample(true, 3), *all;
    size_t count;
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        r.state = states[i];
        for (fails_at = 1; fails_at <= 2; fails_at++) {
            syncs = 0;
            assert_true(unwritten(write_record(&r), -EIO));
            assert_int_equal(ibx_journal_list(folder, &all, &count, &error), 0);
            assert_int_equal(count, i > 0);
            assert_true(!i || all[0].state == states[i - 1]);
            free(all);
        }
        fails_at = 0;
        assert_int_equal(write_record(&r), 0);
        assert_int_equal(only().state, states[i]);
    }
}

/* Somebody has copied another migration's record over this one. */
static void failed_sync_leaves_the_other_record(NO_STATE)
{
    struct ibx_record r = sample(true, 3), other = sample(true, 4), now;
    char path[PATH_MAX], text[8192];
    assert_int_equal(write_record(&r), 0);
    assert_int_equal(write_record(&other), 0);
    ibx_journal_path(folder, &other, ".json", path, sizeof(path));
    const size_t length = get_file(path, text, sizeof(text));
    ibx_journal_path(folder, &r, ".json", path, sizeof(path));
    put_file(path, text, length);
    other.state = IBX_JOURNAL_MAY_RUN;
    assert_int_equal(write_record(&other), 0);
    syncs = 0;
    fails_at = 2;
    assert_true(unwritten(write_record(&r), -EIO));
    fails_at = 0;
    now = other;
    assert_int_equal(ibx_journal_reload(folder, &now, &error), 0);
    assert_int_equal(now.state, IBX_JOURNAL_MAY_RUN);
    assert_int_equal(write_record(&r), 0);
    now = r;
    assert_int_equal(ibx_journal_reload(folder, &now, &error), 0);
}

/* Then it is all that is left of the record. */
static void failed_sync_leaves_the_copy(NO_STATE)
{
    struct ibx_record r = sample(true, 3), now;
    char path[PATH_MAX];
    bring_to(&r, IBX_JOURNAL_MOVED);
    ibx_journal_path(folder, &r, ".json", path, sizeof(path));
    for (fails_at = 1; fails_at <= 2; fails_at++) {
        put_file(path, "{", 1);
        now = only();
        now.state = IBX_JOURNAL_ROLLED_BACK;
        syncs = 0;
        assert_true(unwritten(write_record(&now), -EIO));
        assert_int_equal(only().state, IBX_JOURNAL_MOVED);
    }
    fails_at = 0;
}

static bool renames_no_copy; /* as a disk of which the last block is taken just then */

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    if (renames_no_copy && strstr(to, ".copy")) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
}

static void damage(const struct ibx_record *r)
{
    char path[PATH_MAX];
    ibx_journal_path(folder, r, ".json", path, sizeof(path));
    put_file(path, "{", 1);
}

/* A copy of an earlier state could say that the VM is here when it runs elsewhere. */
static void a_copy_that_cannot_be_renewed_is_removed(NO_STATE)
{
    struct ibx_record r = sample(true, 3);
    bring_to(&r, IBX_JOURNAL_MAY_RUN);
    r.state = IBX_JOURNAL_MOVED;
    renames_no_copy = true;
    const int rc = write_record(&r);
    renames_no_copy = false;
    assert_int_equal(rc, 0);
    damage(&r);
    list_refuses(&r, "not a record");
}

/* The tool goes on from the state of before, and so does the next one, by the copy. */
static void failed_sync_leaves_the_copy_of_before(NO_STATE)
{
    struct ibx_record r = sample(true, 3);
    bring_to(&r, IBX_JOURNAL_MAY_RUN);
    r.state = IBX_JOURNAL_MOVED;
    syncs = 0;
    fails_at = 1;
    assert_true(unwritten(write_record(&r), -EIO));
    fails_at = 0;
    damage(&r);
    assert_int_equal(only().state, IBX_JOURNAL_MAY_RUN);
    assert_true(only().copied);
}

/* Nobody is told that a note is there, or a record gone, which a crash of the host may undo. */
static void what_is_not_on_disk_is_not_done(NO_STATE)
{
    struct ibx_record r = sample(true, 3);
    assert_int_equal(write_record(&r), 0);
    for (fails_at = 1; fails_at <= 2; fails_at++) {
        syncs = 0;
        assert_int_equal(ibx_journal_touch_base(folder, &r, &error), -EIO);
    }
    syncs = 0;
    fails_at = 1;
    assert_int_equal(ibx_journal_remove(folder, &r, &error), -EIO);
    fails_at = 0;
}

/* A crash of the host does not take the folder away, with all records in it. */
static void a_new_folder_is_on_disk(NO_STATE)
{
    char inner[PATH_MAX], outer[PATH_MAX], chosen[PATH_MAX];
    snprintf(outer, sizeof(outer), "%s/outer", folder);
    snprintf(inner, sizeof(inner), "%s/inner", outer);
    syncs = 0;
    assert_int_equal(ibx_journal_folder(inner, true, chosen, sizeof(chosen), &error), 0);
    assert_int_equal(syncs, 2);
    assert_int_equal(ibx_journal_folder(inner, true, chosen, sizeof(chosen), &error), 0);
    assert_int_equal(syncs, 2);
    assert_true(!rmdir(inner) && !rmdir(outer));
}

/* Such a note may be there. */
static void notes_in_a_folder_that_is_refused_count(NO_STATE)
{
    struct ibx_record r = sample(true, 1);
    r.borrow = IBX_BORROW_LAZY;
    assert_int_equal(chmod(folder, 0777), 0);
    assert_true(ibx_journal_base_touched(folder, &r) && ibx_journal_home_marked(folder, &r));
    assert_true(ibx_journal_back_marked(folder, &r));
    assert_int_equal(chmod(folder, 0700), 0);
    assert_false(ibx_journal_base_touched(folder, &r) || ibx_journal_home_marked(folder, &r));
    assert_false(ibx_journal_back_marked(folder, &r));
}

/* It stays until it is removed, also with the record, and is the source's alone. */
static void a_rollback_is_noted(NO_STATE)
{
    struct ibx_record r = sample(true, 1), there = sample(false, 1);
    assert_int_equal(ibx_journal_write(folder, &r, &error), 0);
    assert_false(ibx_journal_back_marked(folder, &r));
    assert_int_equal(ibx_journal_mark_back(folder, &r, &error), 0);
    assert_int_equal(ibx_journal_mark_back(folder, &r, &error), 0);
    assert_true(ibx_journal_back_marked(folder, &r));
    assert_false(ibx_journal_back_marked(folder, &there));
    ibx_journal_unmark_back(folder, &r);
    assert_false(ibx_journal_back_marked(folder, &r));
    assert_int_equal(ibx_journal_mark_back(folder, &r, &error), 0);
    assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
    assert_false(ibx_journal_back_marked(folder, &r));
}

/* Both sides of a migration may be on one host. */
static void the_borrower_leaves_the_note_of_home(NO_STATE)
{
    struct ibx_record home = sample(true, 1), borrower = sample(false, 1);
    home.borrow = borrower.borrow = IBX_BORROW_LAZY;
    assert_int_equal(ibx_journal_mark_home(folder, home.id, &error), 0);
    ibx_journal_forget_page_states(&borrower);
    const bool noted = ibx_journal_home_marked(folder, &home);
    ibx_journal_forget_page_states(&home);
    assert_true(noted);
    assert_false(ibx_journal_home_marked(folder, &home));
}

static int without_rights(void)
{
    struct ibx_record r = sample(true, 3), *all;
    char lock[32];
    size_t count;
    int fd;
    if (!become_nobody())
        return CHILD_SKIPS;
    CHECK(!chmod(folder, 0700) && !ibx_journal_write(folder, &r, &error));
    CHECK(!chmod(folder, 0500));
    r.state = IBX_JOURNAL_MAY_RUN;
    CHECK(unwritten(ibx_journal_write(folder, &r, &error), -EACCES));
    CHECK(ibx_journal_lock(folder, &r, &fd, &error) == -EACCES);
    CHECK(ibx_journal_remove(folder, &r, &error) == -EACCES);
    CHECK(!ibx_journal_list(folder, &all, &count, &error) && count == 1);
    CHECK(all[0].state == IBX_JOURNAL_HERE);
    free(all);
    snprintf(lock, sizeof(lock), "%s", "/proc/ibx");
    CHECK(ibx_journal_folder(lock, true, lock, sizeof(lock), &error) &&
          strstr(error.message, "/proc"));
    CHECK(!chmod(folder, 0000));
    CHECK(ibx_journal_list(folder, &all, &count, &error) == -EACCES);
    CHECK(!chmod(folder, 0700));
    return 0;
}

static void folders_without_rights(NO_STATE)
{
    passes_with_its_folder(without_rights);
}

static void invalid_text(NO_STATE)
{
    struct ibx_record r = sample(true, 1);
    strcpy(r.name, "b\xc3"); /* cut within a character */
    assert_int_equal(write_record(&r), 0);
    assert_string_equal(only().name, "b?");
    strcpy(r.name, "b\xc3\xbc\"\n");
    assert_int_equal(write_record(&r), 0);
    assert_string_equal(only().name, r.name);
    strcpy(r.qmp, "/run/\xff");
    assert_int_equal(write_record(&r), -EINVAL);
    error_has("/run/?");
}

/* The folder, the previous record or the new one cannot be opened. */
static int message_says_how_to_open_more(void)
{
    CHECK(geteuid() || !chown(folder, 0, 0)); /* the owner of the records */
    struct ibx_record r = only();
    char wanted[64];
    snprintf(wanted, sizeof(wanted), "prlimit --pid %d --nofile=", (int)getpid());
    unsigned refused = 0;
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
    int rc = -1;
    for (limit.rlim_cur = 0; rc; limit.rlim_cur++) {
        CHECK(limit.rlim_cur < limit.rlim_max && !setrlimit(RLIMIT_NOFILE, &limit));
        struct ibx_error why = {0};
        rc = ibx_journal_write(folder, &r, &why);
        CHECK(!rc || (rc == -EMFILE && strstr(why.message, wanted)));
        refused += strstr(why.message, "cannot be opened: ") != NULL;
    }
    CHECK(refused && refused < limit.rlim_cur - 1);
    return 0;
}

/* A process that may open many descriptors has all of them open, so it needs a higher limit. */
static int message_says_how_many_more(void)
{
    CHECK(geteuid() || !chown(folder, 0, 0)); /* the owner of the records */
    struct ibx_record r = only();
    struct ibx_error why = {0};
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = 600;
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
    while (dup(STDERR_FILENO) >= 0)
        ;
    CHECK(ibx_journal_write(folder, &r, &why) == -EMFILE);
    CHECK(strstr(why.message, limit.rlim_max < 1200 ? " --nofile=1200" : " --nofile=1200:"));
    return 0;
}

/* A note that is not seen could have a VM run twice, or in memory that is not its own any more. */
static int notes_are_seen_all_the_same(void)
{
    CHECK(geteuid() || !chown(folder, 0, 0)); /* the owner of the records */
    const struct rlimit none = {0};
    struct ibx_record noted = sample(true, 1), other = sample(true, 2);
    char path[PATH_MAX];
    noted.borrow = other.borrow = IBX_BORROW_LAZY;
    CHECK(!ibx_journal_touch_base(folder, &noted, &error));
    ibx_journal_path(folder, &noted, ".home", path, sizeof(path));
    CHECK(!close(open(path, O_WRONLY | O_CREAT, 0600)));
    CHECK(!setrlimit(RLIMIT_NOFILE, &none));
    CHECK(ibx_journal_base_touched(folder, &noted) && ibx_journal_home_marked(folder, &noted));
    CHECK(!ibx_journal_base_touched(folder, &other) && !ibx_journal_home_marked(folder, &other));
    return 0;
}

/* Then a record that cannot be read may be the newest: no other one is taken for it. */
static int no_record_is_left_out(void)
{
    CHECK(geteuid() || !chown(folder, 0, 0)); /* the owner of the records */
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
    int rc = -1;
    for (limit.rlim_cur = 0; rc; limit.rlim_cur++) {
        CHECK(limit.rlim_cur < limit.rlim_max && !setrlimit(RLIMIT_NOFILE, &limit));
        struct ibx_error unread = {0};
        struct ibx_record *all = NULL;
        size_t count = 0;
        rc = ibx_journal_list_readable(folder, &all, &count, &unread, NULL);
        CHECK(!unread.code && (rc == -EMFILE || (!rc && count == 1)));
        free(all);
    }
    return 0;
}

static void too_many_open_files(NO_STATE)
{
    struct ibx_record r = sample(true, 1);
    assert_int_equal(write_record(&r), 0);
    passes_with_its_folder(no_record_is_left_out);
    passes_with_its_folder(message_says_how_to_open_more);
    passes_with_its_folder(message_says_how_many_more);
    passes_with_its_folder(notes_are_seen_all_the_same);
}

/* ------------------------------------------------------------ another folder in its place */

/* FOLDER/way/state is the folder of the records, of which a copy is in FOLDER/theirs/state. */
static void choose_folder_on_the_way(struct ibx_record *r, char chosen[PATH_MAX])
{
    char path[PATH_MAX];
    static const char *const names[] = {"theirs", "way"};
    for (unsigned i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s/state", folder, names[i]);
        assert_int_equal(ibx_journal_folder(path, true, chosen, PATH_MAX, &error), 0);
        *r = sample(true, (uint8_t)(i + 1));
        assert_int_equal(ibx_journal_write(chosen, r, &error), 0);
    }
}

static void exchange_way(const char *away, const char *target, uid_t owner)
{
    char way[PATH_MAX], other[PATH_MAX];
    snprintf(way, sizeof(way), "%s/way", folder);
    snprintf(other, sizeof(other), "%s/%s", folder, away);
    assert_int_equal(rename(way, other), 0);
    assert_int_equal(symlink(target, way), 0);
    assert_int_equal(lchown(way, owner, (gid_t)-1), 0);
}

/* Another user may exchange a folder of the path for a link after the path was checked. */
static void a_folder_behind_a_strangers_link_is_refused(NO_STATE)
{
    char chosen[PATH_MAX], lock[PATH_MAX + 64];
    struct ibx_record r, *list = NULL;
    size_t count;
    int fd;
    if (geteuid())
        skip();
    choose_folder_on_the_way(&r, chosen);
    exchange_way("moved", "theirs", 12345);
    assert_int_equal(ibx_journal_list(chosen, &list, &count, &error), -EPERM);
    error_has("user 12345 owns a link");
    assert_int_equal(ibx_journal_write(chosen, &r, &error), -EPERM);
    assert_int_equal(ibx_journal_lock(chosen, &r, &fd, &error), -EPERM);
    assert_int_equal(ibx_journal_lock_base(chosen, &r, &fd, &error), -EPERM);
    ibx_journal_path(chosen, &r, ".lock", lock, sizeof(lock));
    assert_int_equal(access(lock, F_OK), -1);
}

/* An administrator may move the folder, and leave a link. */
static void a_folder_that_its_owner_moves_is_followed(NO_STATE)
{
    char chosen[PATH_MAX];
    struct ibx_record r, *list = NULL;
    size_t count;
    choose_folder_on_the_way(&r, chosen);
    exchange_way("moved", "theirs", geteuid()); /* another folder */
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(ibx_journal_list(chosen, &list, &count, &error), 0);
        assert_int_equal(count, 1);
        assert_int_equal(list->id[0], 1);
        free(list);
    }
    assert_int_equal(ibx_journal_write(chosen, &r, &error), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_killed_writer_leaves_a_whole_record),
        TEST(full_and_read_only_disks),
        TEST(failed_sync_leaves_no_record),
        TEST(failed_sync_leaves_the_other_record),
        TEST(failed_sync_leaves_the_copy),
        TEST(failed_sync_leaves_the_copy_of_before),
        TEST(a_copy_that_cannot_be_renewed_is_removed),
        TEST(what_is_not_on_disk_is_not_done),
        TEST(a_new_folder_is_on_disk),
        TEST(notes_in_a_folder_that_is_refused_count),
        TEST(a_rollback_is_noted),
        TEST(the_borrower_leaves_the_note_of_home),
        TEST(folders_without_rights),
        TEST(invalid_text),
        TEST(too_many_open_files),
        TEST(a_folder_behind_a_strangers_link_is_refused),
        TEST(a_folder_that_its_owner_moves_is_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
