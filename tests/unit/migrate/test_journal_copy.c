/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The copy of a record, which counts when the record is damaged, and only then; and what else does
 * not outlive a migration. */
#include "tests/fixtures/journal_scene.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

static char aside[PATH_MAX], named[PATH_MAX]; /* a record that is put back when it is locked */

int __real_ibx_journal_lock(const char *in, const struct ibx_record *record, int *fd,
                            struct ibx_error *err);
int __wrap_ibx_journal_lock(const char *in, const struct ibx_record *record, int *fd,
                            struct ibx_error *err);
int __wrap_ibx_journal_lock(const char *in, const struct ibx_record *record, int *fd,
                            struct ibx_error *err)
{
    if (aside[0])
        assert_int_equal(rename(aside, named), 0);
    aside[0] = '\0';
    return __real_ibx_journal_lock(in, record, fd, err);
}

static void damage(const struct ibx_record *r)
{
    char path[PATH_MAX];
    ibx_journal_path(folder, r, ".json", path, sizeof(path));
    put_file(path, "{", 1);
    assert_int_equal(ibx_journal_check(folder, r, &error), -EBADMSG);
}

/* A tool that only wants to continue the migration finds this record, and mends it. */
static void damage_is_mended(const struct ibx_record *r)
{
    damage(r);
    struct ibx_record found = only(), again = *r;
    assert_true(found.copied && found.state == r->state && found.number == r->number);
    assert_int_equal(ibx_journal_reload(folder, &again, &error), 0);
    assert_true(again.copied);
    assert_int_equal(write_record(&found), 0);
    assert_false(found.copied || only().copied);
    assert_int_equal(ibx_journal_check(folder, r, &error), 0);
}

/* While the VM may be on the other side, a copy continues what a damaged record would have. */
static void a_damaged_record_has_a_copy(NO_STATE)
{
    static const struct {
        bool source;
        enum ibx_journal_state state;
    } unfinished[] = {{true, IBX_JOURNAL_MAY_RUN},  {true, IBX_JOURNAL_MOVED},
                      {true, IBX_JOURNAL_BROKEN},   {false, IBX_JOURNAL_MAY_RUN},
                      {false, IBX_JOURNAL_RUNNING}, {false, IBX_JOURNAL_COMPLETE}};
    for (unsigned i = 0; i < COUNT(unfinished); i++) {
        struct ibx_record r = sample(unfinished[i].source, 0xab);
        bring_to(&r, unfinished[i].state);
        damage_is_mended(&r);
        assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
    }
}

static void no_copy_is_older_than_the_record(NO_STATE)
{
    char path[PATH_MAX];
    struct ibx_record r = sample(true, 0xab);
    bring_to(&r, IBX_JOURNAL_MOVED);
    ibx_journal_path(folder, &r, ".copy", path, sizeof(path));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0); /* it cannot be written, and that is no error */
    assert_int_equal(write_record(&r), 0);
    damage(&r);
    list_refuses(&r, "line");
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(write_record(&r), 0);
    r.state = IBX_JOURNAL_DONE;
    assert_int_equal(write_record(&r), 0);
    damage(&r);
    list_refuses(&r, "line");
    assert_int_equal(access(path, F_OK), -1);
}

/* A copy counts only under the conditions of a record. */
static void a_copy_of_others_does_not_count(NO_STATE)
{
    char path[PATH_MAX], other[PATH_MAX];
    struct ibx_record r = sample(true, 0xab), second = sample(true, 0xcd);
    bring_to(&r, IBX_JOURNAL_MOVED);
    damage(&r);
    ibx_journal_path(folder, &r, ".copy", path, sizeof(path));
    assert_int_equal(chmod(path, 0622), 0);
    list_refuses(&r, "line");
    assert_int_equal(write_record(&r), 0);
    damage(&r);
    bring_to(&second, IBX_JOURNAL_MOVED);
    ibx_journal_path(folder, &second, ".copy", other, sizeof(other));
    assert_int_equal(rename(other, path), 0); /* that of another migration */
    list_refuses(&r, "line");
}

/* There is room for the new record, before the old one is removed, and for nothing else. */
static int in_little_room(void)
{
    char path[PATH_MAX], filler[PATH_MAX];
    struct ibx_record r = sample(true, 0xab);
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", folder, "tmpfs", 0, "size=64k,mode=0700"))
        return CHILD_SKIPS;
    CHECK(!ibx_journal_write(folder, &r, &error));
    snprintf(filler, sizeof(filler), "%s/filler", folder);
    struct statvfs room;
    CHECK(!statvfs(folder, &room));
    const int fd = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && !posix_fallocate(fd, 0, (off_t)((room.f_bavail - 1) * room.f_bsize)));
    close(fd);
    r.state = IBX_JOURNAL_MAY_RUN;
    CHECK(!ibx_journal_write(folder, &r, &error));
    ibx_journal_path(folder, &r, ".copy", path, sizeof(path));
    CHECK(access(path, F_OK));
    CHECK(only().state == IBX_JOURNAL_MAY_RUN);
    return 0;
}

/* A disk that has room for a record alone still has it. */
static void no_copy_takes_the_room_of_the_record(NO_STATE)
{
    passes_in_child(in_little_room); /* only root may mount */
}

static bool says_moved(const struct ibx_record *r)
{
    struct ibx_record now = *r;
    return !ibx_journal_reload(folder, &now, &error) && now.copied &&
           now.state == IBX_JOURNAL_MOVED;
}

/* The copy is all that is left of the record, and there is no room to write it anew beside it. */
static int without_room(void)
{
    char path[PATH_MAX], block[4096] = {0};
    struct ibx_record r = sample(true, 0xab), next;
    int lock;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", folder, "tmpfs", 0, "size=64k,mode=0700"))
        return CHILD_SKIPS;
    bring_to(&r, IBX_JOURNAL_MOVED);
    damage(&r);
    CHECK(!ibx_journal_lock(folder, &r, &lock, &error));
    snprintf(path, sizeof(path), "%s/filler", folder);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    while (write(fd, block, sizeof(block)) > 0)
        ;
    static const enum ibx_journal_state states[] = {IBX_JOURNAL_MOVED, IBX_JOURNAL_BROKEN,
                                                    IBX_JOURNAL_ROLLED_BACK};
    for (unsigned i = 0; i < COUNT(states); i++) {
        next = only();
        next.state = states[i];
        CHECK(ibx_journal_write(folder, &next, &error) == -ENOSPC && says_moved(&r));
    }
    CHECK(!ftruncate(fd, 0) && !close(fd) && !ibx_journal_write(folder, &next, &error));
    CHECK(only().state == IBX_JOURNAL_ROLLED_BACK && !only().copied);
    ibx_journal_path(folder, &r, ".copy", path, sizeof(path));
    CHECK(access(path, F_OK));
    close(lock);
    return 0;
}

static void no_copy_is_lost_before_the_record_is_written_anew(NO_STATE)
{
    passes_in_child(without_room); /* only root may mount */
}

static bool unreadable; /* records, and not their copies */

ssize_t read(int fd, void *bytes, size_t length)
{
    char link[64], path[PATH_MAX] = "";
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (unreadable && readlink(link, path, sizeof(path) - 1) > 0 && strstr(path, ".json")) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_read, fd, bytes, length);
}

/* A disk that cannot read a record any more can write a new one. */
static void an_unreadable_record_is_mended(NO_STATE)
{
    struct ibx_record r = sample(true, 0xab), found;
    bring_to(&r, IBX_JOURNAL_MOVED);
    unreadable = true;
    assert_int_equal(ibx_journal_check(folder, &r, &error), -EBADMSG);
    found = only();
    assert_true(found.copied && found.state == IBX_JOURNAL_MOVED);
    found.epoch++;
    assert_int_equal(write_record(&found), 0);
    unreadable = false;
    assert_true(!only().copied && only().epoch == found.epoch);
}

/* Mends a damaged record, and damages it once more, for ever. */
static void mend_until_killed(void)
{
    struct ibx_record r = only();
    char path[PATH_MAX];
    ibx_journal_path(folder, &r, ".json", path, sizeof(path));
    for (;;) {
        r.epoch++;
        if (ibx_journal_write(folder, &r, NULL))
            _exit(1);
        put_file(path, "{", 1);
    }
}

/* Whatever a tool is doing that writes a damaged record anew, what it said can still be read. */
static void a_killed_mender_leaves_what_the_record_said(NO_STATE)
{
    struct ibx_record r = sample(true, 0xab);
    bring_to(&r, IBX_JOURNAL_MOVED);
    for (unsigned turn = 0; turn < 25; turn++) {
        const uint64_t from = only().epoch;
        const pid_t child = fork_bound();
        if (!child)
            mend_until_killed();
        while (only().epoch < from + turn % 5)
            assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        assert_true(only().state == IBX_JOURNAL_MOVED && only().epoch >= from + turn % 5);
    }
}

/* A later migration has a higher number than one of which only the copy can be read. */
static void a_damaged_record_keeps_its_number(NO_STATE)
{
    struct ibx_record r = sample(true, 0xab), later = sample(true, 0xcd);
    bring_to(&r, IBX_JOURNAL_MOVED);
    damage(&r);
    assert_int_equal(write_record(&later), 0);
    assert_in_range(later.number, r.number + 1, UINT64_MAX);
}

/* An earlier version does not remove the copy when it ends the migration. The next one does. */
static void no_copy_outlives_the_migration(NO_STATE)
{
    char path[PATH_MAX];
    struct ibx_record r = sample(true, 0xab);
    bring_to(&r, IBX_JOURNAL_DONE);
    ibx_journal_path(folder, &r, ".copy", path, sizeof(path));
    put_file(path, "{", 1);
    ibx_journal_prune_old(folder, "/run/another");
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(only().state, IBX_JOURNAL_DONE);
}

/* A tool may write its record anew, after somebody has removed it, while others look for copies of
 * which there is none. */
static void the_copy_of_a_record_that_is_written_anew_stays(NO_STATE)
{
    char copy[PATH_MAX];
    struct ibx_record r = sample(true, 0xab);
    bring_to(&r, IBX_JOURNAL_MOVED);
    ibx_journal_path(folder, &r, ".json", named, sizeof(named));
    ibx_journal_path(folder, &r, ".copy", copy, sizeof(copy));
    snprintf(aside, sizeof(aside), "%s/aside", folder);
    assert_int_equal(rename(named, aside), 0);
    ibx_journal_prune_old(folder, "/run/another");
    assert_string_equal(aside, "");
    assert_int_equal(access(copy, F_OK), 0);
    damage_is_mended(&r);
}

/* For libvirt, guest memory has a second name meanwhile. A tool that was killed when its record
 * said that the migration is over has left it. */
static void no_second_name_of_memory_outlives_the_migration(NO_STATE)
{
    static const struct {
        enum ibx_journal_state is;
        bool libvirt, goes;
    } cases[] = {{IBX_JOURNAL_KEPT, true, true},
                 {IBX_JOURNAL_ROLLED_BACK, true, true},
                 {IBX_JOURNAL_DONE, true, true},
                 {IBX_JOURNAL_MAY_RUN, true, false}, /* recover needs it */
                 {IBX_JOURNAL_KEPT, false, false}};  /* others make none: this is the file itself */
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ibx_record r = sample(true, 0xab);
        char name[PATH_MAX], digits[2 * IBX_MIGRATE_ID_BYTES + 1];
        struct stat st;
        ibx_hex_text(r.id, IBX_MIGRATE_ID_BYTES, digits);
        snprintf(r.blocks[0].file.path, sizeof(r.blocks[0].file.path), "%s/web.pc.ram", folder);
        snprintf(name, sizeof(name), "%s.ibx-%s", r.blocks[0].file.path, digits);
        put_file(name, "page", 4);
        assert_int_equal(stat(name, &st), 0);
        r.block_count = 1;
        r.blocks[0].dev = st.st_dev;
        r.blocks[0].ino = st.st_ino;
        r.libvirt = cases[i].libvirt;
        bring_to(&r, cases[i].is);
        ibx_journal_prune_old(folder, "/run/another");
        assert_int_equal(access(name, F_OK), cases[i].goes ? -1 : 0);
        assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
        unlink(name);
    }
}

/* What a QEMU calls the folder of its memory may be a link of anybody's, which stands where that
 * QEMU may make no file: root makes none there for it. */
static void no_second_name_of_memory_is_beside_a_link(NO_STATE)
{
    static const struct {
        const char *folder, *name; /* of the memory, and its second one */
        int rc;
    } cases[] = {{"theirs/vm", "theirs/vm.ram", 0},
                 {"ours/link", "ours/link.ram", -ENOTDIR},
                 {"ours/..", "ours/...ram", -EINVAL}};
    char path[PATH_MAX], digits[2 * IBX_MIGRATE_ID_BYTES + 1];
    static const char *const folders[] = {"theirs", "theirs/vm", "ours"};
    static const char *const files[] = {"theirs/vm/ram", "ram"};
    for (unsigned i = 0; i < COUNT(folders); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    for (unsigned i = 0; i < COUNT(files); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
        put_file(path, "page", 4);
    }
    snprintf(path, sizeof(path), "%s/ours/link", folder);
    assert_int_equal(symlink("../theirs/vm", path), 0);
    for (unsigned i = 0; i < COUNT(cases); i++) {
        struct ibx_record r = sample(true, 0xab);
        struct stat st;
        char *const at = r.blocks[0].file.path;
        ibx_hex_text(r.id, IBX_MIGRATE_ID_BYTES, digits);
        snprintf(at, IBX_GUEST_FILE_PATH, "%s/%s/ram", folder, cases[i].folder);
        assert_int_equal(stat(at, &st), 0);
        r.block_count = 1;
        r.blocks[0].dev = st.st_dev;
        r.blocks[0].ino = st.st_ino;
        assert_int_equal(ibx_journal_link_files(&r, &error), cases[i].rc);
        snprintf(path, sizeof(path), "%s/%s.ibx-%s", folder, cases[i].name, digits);
        assert_int_equal(access(path, F_OK), cases[i].rc ? -1 : 0);
    }
}

/* An earlier version deletes the record and not its copy. */
static void no_copy_outlives_the_record(NO_STATE)
{
    static const char text[] = "{";
    char path[PATH_MAX], lock[PATH_MAX], other[PATH_MAX];
    struct ibx_record r = sample(false, 0xab);
    int fd;
    ibx_journal_path(folder, &r, ".copy", path, sizeof(path));
    ibx_journal_path(folder, &r, ".lock", lock, sizeof(lock));
    snprintf(other, sizeof(other), "%s/%s.copy", folder, "operator");
    put_file(path, text, 1);
    put_file(other, text, 1);
    assert_int_equal(ibx_journal_lock(folder, &r, &fd, &error), 0);
    ibx_journal_prune_old(folder, "/run/another");
    assert_int_equal(access(path, F_OK), 0); /* its tool is at work */
    ibx_journal_unlock(folder, &r, fd);
    ibx_journal_prune_old(folder, "/run/another");
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(lock, F_OK), -1);
    assert_int_equal(access(other, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_damaged_record_has_a_copy),
        TEST(no_copy_is_older_than_the_record),
        TEST(a_copy_of_others_does_not_count),
        TEST(no_copy_outlives_the_migration),
        TEST(no_copy_outlives_the_record),
        TEST(the_copy_of_a_record_that_is_written_anew_stays),
        TEST(no_second_name_of_memory_outlives_the_migration),
        TEST(no_second_name_of_memory_is_beside_a_link),
        TEST(no_copy_takes_the_room_of_the_record),
        TEST(a_damaged_record_keeps_its_number),
        TEST(no_copy_is_lost_before_the_record_is_written_anew),
        TEST(an_unreadable_record_is_mended),
        TEST(a_killed_mender_leaves_what_the_record_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
