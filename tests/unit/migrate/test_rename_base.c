/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The memory of a VM that left by libvirt gets a second name, and no other file does.
 *
 * The memory of a returned VM gets the name that QEMU reports, if that is a file that QEMU's
 * user could replace anyway. Another file that this user puts in the memory's place is not
 * mistaken for it. */
#include "migrate/journal/journal.h"
#include "migrate/qemu/qemu_internal.h"
#include "tests/fixtures/open_fds.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define QEMU  4711u
#define BYTES 4096
/* with a name that was checked earlier, some attempts would open the other file */
#define TIMES 2000

static char folder[32], base[64], names[IBX_GUEST_BLOCKS_MAX][IBX_GUEST_FILE_PATH];
static struct ibx_record record, own;

static void make(const char *path, unsigned owner)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, BYTES), 0);
    assert_int_equal(fchown(fd, owner, 0), 0);
    close(fd);
}

static ino_t inode(const char *path)
{
    struct stat st;
    return lstat(path, &st) ? 0 : st.st_ino;
}

/* The folder is root's and contains a file that QEMU's user could not replace. */
static int begin(void **state)
{
    struct stat st;
    (void)state;
    if (geteuid())
        return 0;
    snprintf(folder, sizeof(folder), "/tmp/ibx-base-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(base, sizeof(base), "%s/base", folder);
    make(base, QEMU);
    assert_int_equal(stat(base, &st), 0);
    record = (struct ibx_record){.source = true, .block_count = 1, .id = {1}};
    struct ibx_journal_block *block = &record.blocks[0];
    *block = (struct ibx_journal_block){
        .size = BYTES, .page_size = BYTES, .dev = st.st_dev, .ino = st.st_ino};
    strcpy(block->id, "mem0");
    block->file.file = ibx_guest_file_hash(st.st_dev, st.st_ino);
    block->file.owner = st.st_uid;
    block->file.mode = st.st_mode;
    strcpy(block->file.path, base);
    own = record;
    return 0;
}

static int end(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return folder[0] ? system(command) : 0;
}

static int rename_to(const char *name)
{
    struct ibx_error err = {0};
    snprintf(names[0], sizeof(names[0]), "%s/%s", folder, name);
    const int rc = ibx_journal_rename_base(&record, names, &own, &err);
    assert_int_equal(rc, err.code);
    return rc;
}

static void needs_root(void)
{
    if (geteuid())
        skip();
}

static void test_a_file_of_its_own(NO_STATE)
{
    needs_root();
    const ino_t is = inode(base);
    snprintf(names[0], sizeof(names[0]), "%s/own", folder);
    make(names[0], QEMU);
    const int fds = open_fds();
    assert_int_equal(rename_to("own"), 0);
    assert_string_equal(own.blocks[0].file.path, names[0]);
    assert_int_equal(inode(names[0]), is);
    assert_int_equal(inode(base), 0);
    assert_int_equal(rename_to("own"), 0); /* the memory has that name already */
    assert_int_equal(open_fds(), fds);
}

static void test_files_of_others(NO_STATE)
{
    char path[64], link[64];
    needs_root();
    const ino_t is = inode(base);
    snprintf(path, sizeof(path), "%s/root", folder);
    make(path, 0);
    const ino_t before = inode(path);
    assert_int_equal(rename_to("root"), -EPERM);
    assert_int_equal(inode(path), before);
    assert_true(rename_to("nothing") < 0); /* in a folder where that user cannot create files */
    snprintf(link, sizeof(link), "%s/link", folder);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(rename_to("link"), -EPERM);
    snprintf(link, sizeof(link), "%s/folder", folder);
    assert_int_equal(mkdir(link, 0700), 0);
    assert_int_equal(rename_to("folder"), -EPERM);
    assert_int_equal(inode(base), is);
    assert_string_equal(own.blocks[0].file.path, base);
}

/* QEMU reports the name that it was given, which may be a link to the file. */
static void test_a_link_to_a_file_of_its_own(NO_STATE)
{
    char path[64], link[64];
    struct stat st;
    needs_root();
    const ino_t is = inode(base);
    snprintf(path, sizeof(path), "%s/own", folder);
    make(path, QEMU);
    snprintf(link, sizeof(link), "%s/link", folder);
    assert_int_equal(symlink("own", link), 0);
    assert_int_equal(rename_to("link"), 0);
    assert_int_equal(inode(path), is);
    assert_true(!lstat(link, &st) && S_ISLNK(st.st_mode));
    assert_int_equal(rename_to("link"), 0); /* the link leads to the memory already */
}

/* A file with a second name may belong to another user under that name. */
static void test_a_file_with_two_names(NO_STATE)
{
    char path[64], second[64];
    needs_root();
    snprintf(path, sizeof(path), "%s/own", folder);
    snprintf(second, sizeof(second), "%s/second", folder);
    make(path, QEMU);
    assert_int_equal(link(path, second), 0);
    assert_int_equal(rename_to("own"), -EPERM);
}

/* The first of two files cannot be renamed: the second one is, and the record of the QEMU that has
 * both says which names they have. */
static void test_one_of_two(NO_STATE)
{
    char root[64], two[64];
    struct stat st;
    struct ibx_error err = {0};
    needs_root();
    snprintf(root, sizeof(root), "%s/root", folder);
    make(root, 0);
    snprintf(two, sizeof(two), "%s/two", folder);
    make(two, QEMU);
    assert_int_equal(stat(two, &st), 0);
    struct ibx_journal_block *block = &record.blocks[1];
    *block = record.blocks[0];
    strcpy(block->id, "mem1");
    strcpy(block->file.path, two);
    block->ino = st.st_ino;
    block->file.file = ibx_guest_file_hash(st.st_dev, st.st_ino);
    record.block_count = 2;
    own = record;
    snprintf(names[0], sizeof(names[0]), "%s", root);
    snprintf(names[1], sizeof(names[1]), "%s/own", folder);
    make(names[1], QEMU);
    assert_int_equal(ibx_journal_rename_base(&record, names, &own, &err), -EPERM);
    assert_non_null(strstr(err.message, root));
    assert_int_equal(inode(names[1]), st.st_ino);
    assert_string_equal(own.blocks[0].file.path, base);
    assert_string_equal(own.blocks[1].file.path, names[1]);
    names[1][0] = '\0';
}

static atomic_bool over;

/* Replaces the file while the memory is searched for, as QEMU's user could. */
static void *replace_repeatedly(void *with)
{
    while (!atomic_load(&over))
        renameat2(AT_FDCWD, base, AT_FDCWD, with, RENAME_EXCHANGE);
    return NULL;
}

static void test_another_file_in_its_place(NO_STATE)
{
    char with[64];
    struct stat st;
    pthread_t thread;
    unsigned opened = 0;
    needs_root();
    snprintf(with, sizeof(with), "%s/own", folder);
    make(with, QEMU);
    record.pid_started = 1; /* its QEMU has ended */
    atomic_store(&over, false);
    assert_int_equal(pthread_create(&thread, NULL, replace_repeatedly, with), 0);
    while (opened < TIMES) {
        struct ibx_guest_ram ram;
        const int rc = ibx_journal_open_base(&record, &ram, NULL);
        if (!rc) {
            assert_int_equal(fstat(ram.blocks[0].fd, &st), 0);
            assert_int_equal(st.st_ino, record.blocks[0].ino);
            opened++;
        }
        ibx_guest_ram_fini(&ram);
    }
    atomic_store(&over, true);
    pthread_join(thread, NULL);
}

static void test_a_second_name_for_the_memory_alone(NO_STATE)
{
    struct ibx_error err = {0};
    char second[128];
    needs_root();
    const struct ibx_record before = record;
    snprintf(second, sizeof(second), "%s.base.ibx-01%030d", folder, 0);
    assert_int_equal(ibx_journal_link_files(&record, &err), 0);
    assert_int_equal(inode(second), inode(base));
    ibx_journal_unlink_files(&record);
    assert_int_equal(inode(second), 0);
    record = before;
    char away[80];
    snprintf(away, sizeof(away), "%s/away", folder);
    assert_int_equal(rename(base, away), 0);
    make(base, QEMU);
    assert_int_equal(ibx_journal_link_files(&record, &err), -ESTALE);
    assert_int_equal(inode(second), 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_file_of_its_own, begin, end),
        cmocka_unit_test_setup_teardown(test_files_of_others, begin, end),
        cmocka_unit_test_setup_teardown(test_a_link_to_a_file_of_its_own, begin, end),
        cmocka_unit_test_setup_teardown(test_a_file_with_two_names, begin, end),
        cmocka_unit_test_setup_teardown(test_one_of_two, begin, end),
        cmocka_unit_test_setup_teardown(test_a_second_name_for_the_memory_alone, begin, end),
        cmocka_unit_test_setup_teardown(test_another_file_in_its_place, begin, end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
