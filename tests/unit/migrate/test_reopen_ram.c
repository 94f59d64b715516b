/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Guest RAM that a record describes is opened again while its QEMU, here this process, lives:
 * one block that is mapped, and one whose file has been removed. */
#include "migrate/journal/journal.h"
#include "migrate/qemu/qemu_internal.h"
#include "tests/fixtures/open_fds.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOBODY 65534u
#define BYTES  4096

static char folder[32], mapped[64], removed[64];
static void *memory;
static int file; /* the mapped block's file, as QEMU has it open */
static struct ibx_record record;

static int make(const char *path, mode_t mode)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && !ftruncate(fd, BYTES) && !fchmod(fd, mode));
    return fd;
}

static void note(unsigned i, int fd, const char *path)
{
    struct stat st;
    struct ibx_journal_block *block = &record.blocks[i];
    assert_int_equal(fstat(fd, &st), 0);
    *block = (struct ibx_journal_block){
        .size = BYTES, .page_size = BYTES, .dev = st.st_dev, .ino = st.st_ino};
    snprintf(block->id, sizeof(block->id), "mem%u", i);
    block->file.file = ibx_guest_file_hash(st.st_dev, st.st_ino);
    if (!st.st_nlink)
        return;
    block->file.owner = st.st_uid;
    block->file.mode = st.st_mode;
    snprintf(block->file.path, sizeof(block->file.path), "%s", path);
}

static int begin(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/ibx-reopen-XXXXXX");
    assert_true(mkdtemp(folder) && !chmod(folder, 0755));
    snprintf(mapped, sizeof(mapped), "%s/mapped", folder);
    snprintf(removed, sizeof(removed), "%s/removed", folder);
    record = (struct ibx_record){.block_count = 2, .pid = getpid(), .id = {1}};
    file = make(mapped, 0666);
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    assert_true(memory != MAP_FAILED);
    note(0, file, mapped);
    record.blocks[0].address = (uintptr_t)memory;
    const int other = make(removed, 0444);
    note(1, other, removed);
    close(other);
    return 0;
}

static int end(void **state)
{
    (void)state;
    munmap(memory, BYTES);
    close(file);
    unlink(mapped);
    unlink(removed);
    return rmdir(folder);
}

/* Returns how many descriptors it keeps open, or an error. */
static int reopen(int (*by)(const struct ibx_record *, struct ibx_guest_ram *, struct ibx_error *),
                  struct ibx_guest_ram *ram, struct ibx_error *err)
{
    const int before = open_fds();
    memset(err, 0, sizeof(*err));
    assert_int_equal(ibx_journal_recall_ram(&record, ram, NULL), 0);
    const int rc = by(&record, ram, err), after = open_fds();
    assert_int_equal(rc, err->code);
    if (rc)
        ibx_guest_ram_fini(ram);
    return rc ? rc : after - before;
}

static int access_mode(const struct ibx_guest_ram *ram, unsigned i)
{
    return fcntl(ram->blocks[i].fd, F_GETFL) & O_ACCMODE;
}

/* Becomes a user to whom access can be refused, unlike root. */
static void become(uid_t user)
{
    assert_int_equal(seteuid(user), 0);
    prctl(PR_SET_DUMPABLE, 1); /* so that /proc shows this process to it */
}

static void test_writing_is_not_allowed(NO_STATE)
{
    struct ibx_guest_ram ram;
    struct ibx_error err;
    if (geteuid())
        skip();
    become(NOBODY);
    const int source = reopen(ibx_journal_reopen_ram, &ram, &err);
    const int modes[] = {source < 0 ? -1 : access_mode(&ram, 0),
                         source < 0 ? -1 : access_mode(&ram, 1)};
    if (source >= 0)
        ibx_guest_ram_fini(&ram);
    const int before = open_fds(), destination = reopen(ibx_journal_reopen_to_fill, &ram, &err);
    const int after = open_fds();
    become(0);
    assert_int_equal(source, 2);
    assert_int_equal(modes[0], O_RDONLY);
    assert_int_equal(modes[1], O_RDONLY);
    /* The pages must be written into the file. */
    assert_int_equal(destination, -EACCES);
    assert_non_null(strstr(err.message, removed));
    assert_int_equal(after, before);
}

static void is_opened_for_writing(unsigned i, struct ibx_guest_ram *ram)
{
    struct stat st;
    assert_int_equal(access_mode(ram, i), O_RDWR);
    assert_int_equal(fstat(ram->blocks[i].fd, &st), 0);
    assert_int_equal(st.st_ino == record.blocks[i].ino, st.st_nlink != 0);
    assert_true(st.st_size >= BYTES);
}

static void look(const char *words)
{
    struct ibx_guest_ram ram;
    struct ibx_error err;
    assert_int_equal(reopen(ibx_journal_reopen_to_fill, &ram, &err), 2);
    for (unsigned i = 0; i < 2; i++) {
        is_opened_for_writing(i, &ram);
        assert_int_equal(ram.blocks[i].unmapped, i);
    }
    ibx_guest_ram_fini(&ram);
    const int source = reopen(ibx_journal_reopen_ram, &ram, &err);
    assert_int_equal(source, words ? -ENOENT : 2);
    if (!words)
        ibx_guest_ram_fini(&ram);
    else if (!strstr(err.message, words))
        fail_msg("%s", err.message);
}

static void test_a_block_that_is_unmapped(NO_STATE)
{
    assert_int_equal(chmod(removed, 0600), 0);
    record.blocks[1].file.mode = S_IFREG | 0600;
    look(NULL);
}

static void test_its_file_was_replaced_or_removed(NO_STATE)
{
    char other[80];
    snprintf(other, sizeof(other), "%s/other", folder);
    /* created while the first one exists, so that it gets another inode */
    close(make(other, 0600));
    assert_int_equal(rename(other, removed), 0);
    look(removed);
    assert_int_equal(unlink(removed), 0);
    look(removed);
}

/* Each look names it: while it is open, before it is opened, and by the record alone. */
static void test_a_file_that_was_cut_short(NO_STATE)
{
    struct ibx_guest_ram ram, again;
    struct ibx_error err = {0};
    assert_int_equal(chmod(removed, 0600), 0);
    record.blocks[1].file.mode = S_IFREG | 0600;
    assert_int_equal(reopen(ibx_journal_reopen_ram, &ram, &err), 2);
    assert_int_equal(ibx_guest_ram_check_sizes(&ram, false, &err), 0);
    assert_int_equal(ibx_journal_check_sizes(&record, &err), 0);
    assert_int_equal(ftruncate(file, BYTES / 2), 0);
    const int open_one = ibx_guest_ram_check_sizes(&ram, true, &err);
    assert_int_equal(open_one, -ESTALE);
    assert_non_null(strstr(err.message, "was cut short to 2048 of 4096 bytes"));
    assert_int_equal(reopen(ibx_journal_reopen_ram, &again, &err), -ESTALE);
    assert_non_null(strstr(err.message, "was cut short to 2048 of 4096 bytes"));
    memset(&err, 0, sizeof(err));
    assert_int_equal(ibx_journal_check_sizes(&record, &err), -ESTALE);
    assert_non_null(strstr(err.message, mapped));
    assert_int_equal(munmap(memory, BYTES), 0); /* only another host may need it now */
    memory = NULL;
    assert_int_equal(ibx_guest_ram_check_sizes(&ram, true, &err), 0);
    assert_int_equal(ibx_journal_check_sizes(&record, &err), 0);
    assert_int_equal(ibx_guest_ram_check_sizes(&ram, false, &err), -ESTALE);
    ibx_guest_ram_fini(&ram);
    assert_int_equal(unlink(mapped), 0); /* nobody can tell any more */
    assert_int_equal(ibx_journal_check_sizes(&record, &err), 0);
}

/* As if it were removed: the destination can go on without what was in it. */
static void test_its_file_was_cut_short(NO_STATE)
{
    assert_int_equal(truncate(removed, BYTES / 2), 0);
    look("was cut short");
}

static void is_another_one(const char *words)
{
    struct ibx_guest_ram ram;
    struct ibx_error err;
    assert_int_equal(reopen(ibx_journal_reopen_to_fill, &ram, &err), -ESTALE);
    text_has(err.message, words);
}

/* Somebody who could not write to the memory of the VM may have done so since. */
static void test_its_file_has_other_rights(NO_STATE)
{
    assert_int_equal(chmod(removed, 0666), 0);
    is_another_one("another mode");
    if (geteuid())
        return;
    assert_int_equal(chmod(removed, 0444), 0);
    assert_int_equal(chown(removed, NOBODY, (gid_t)-1), 0);
    is_another_one("another owner");
}

static void test_its_file_has_other_pages(NO_STATE)
{
    assert_int_equal(chmod(removed, 0600), 0);
    record.blocks[1].file.mode = S_IFREG | 0600;
    record.blocks[1].page_size = 2u << 20;
    is_another_one("pages of 4096 bytes, not of 2097152");
}

static void test_its_file_had_no_name(NO_STATE)
{
    const int fd = memfd_create("memory", MFD_CLOEXEC);
    assert_true(fd >= 0 && !ftruncate(fd, BYTES));
    note(1, fd, "");
    close(fd);
    look("without a name");
}

/* A file whose name is too long for a record may be hot-plugged again. */
static void test_its_file_has_a_name_that_is_not_known(NO_STATE)
{
    struct ibx_guest_ram ram;
    struct ibx_error err;
    record.blocks[1].file.path[0] = '\0';
    assert_int_equal(reopen(ibx_journal_reopen_to_fill, &ram, &err), -ENOENT);
}

/* QEMU reports the name that it was given, which may be a link to the file. */
static void test_its_file_is_behind_a_link(NO_STATE)
{
    char link[80];
    struct ibx_guest_ram ram;
    struct ibx_error err;
    struct ibx_journal_block *noted = &record.blocks[1];
    assert_int_equal(chmod(removed, 0600), 0);
    snprintf(link, sizeof(link), "%s/link", folder);
    assert_int_equal(symlink("removed", link), 0);
    struct ibx_guest_block block = {.dev = noted->dev, .ino = noted->ino, .file = noted->file.file};
    block.fd = open(removed, O_RDWR | O_CLOEXEC);
    snprintf(block.path, sizeof(block.path), "%s", link);
    ibx_guest_file_describe(getpid(), &block, &noted->file);
    close(block.fd);
    look(NULL);
    assert_string_equal(noted->file.path, removed);
    /* A record of an earlier version names the link. The file exists. */
    snprintf(noted->file.path, sizeof(noted->file.path), "%s", link);
    const int rc = reopen(ibx_journal_reopen_to_fill, &ram, &err);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(rc, -ESTALE);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_writing_is_not_allowed, begin, end),
        cmocka_unit_test_setup_teardown(test_a_block_that_is_unmapped, begin, end),
        cmocka_unit_test_setup_teardown(test_its_file_was_replaced_or_removed, begin, end),
        cmocka_unit_test_setup_teardown(test_a_file_that_was_cut_short, begin, end),
        cmocka_unit_test_setup_teardown(test_its_file_was_cut_short, begin, end),
        cmocka_unit_test_setup_teardown(test_its_file_has_other_rights, begin, end),
        cmocka_unit_test_setup_teardown(test_its_file_has_other_pages, begin, end),
        cmocka_unit_test_setup_teardown(test_its_file_had_no_name, begin, end),
        cmocka_unit_test_setup_teardown(test_its_file_has_a_name_that_is_not_known, begin, end),
        cmocka_unit_test_setup_teardown(test_its_file_is_behind_a_link, begin, end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
