/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The folder of a snapshot if others can write to its parent or two processes want it; and a
 * memory file. */
#include "migrate/common/common.h"
#include "migrate/snapshot/snapshot.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char top[] = "/tmp/ibx-folder-XXXXXX", path[64], other[64], moved[64], name[96];
static struct ibx_error error;

static int begin(void **state)
{
    (void)state;
    memcpy(top + sizeof(top) - 7, "XXXXXX", 6);
    assert_non_null(mkdtemp(top));
    snprintf(path, sizeof(path), "%s/snapshot", top);
    snprintf(other, sizeof(other), "%s/other", top);
    snprintf(moved, sizeof(moved), "%s/moved", top);
    assert_int_equal(mkdir(other, 0700), 0);
    return 0;
}

static int end(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", top);
    return system(command);
}

static void manifest_make(struct ibx_snapshot_folder *folder)
{
    struct ibx_snapshot_manifest *m = &folder->manifest;
    m->ram_count = 1;
    m->ram[0].size = 8 * IBX_SNAPSHOT_PAGE;
    snprintf(m->ram[0].id, sizeof(m->ram[0].id), "mem0");
    m->state_bytes = 1;
    m->complete = true;
    m->description = json_object();
}

/* Makes a complete snapshot in the folder at `path`. */
static void snapshot_make(void)
{
    struct ibx_snapshot_folder folder = {.count = 0};
    assert_int_equal(ibx_snapshot_folder_make(path, &folder, &error), 0);
    manifest_make(&folder);
    assert_int_equal(ibx_snapshot_folder_files(&folder, IBX_SNAPSHOT_FILES_MAKE, &error), 0);
    assert_int_equal(ibx_snapshot_folder_seal(&folder, &error), 0);
    ibx_snapshot_folder_close(&folder);
}

static bool has(const char *folder, const char *file)
{
    snprintf(name, sizeof(name), "%s/%s", folder, file);
    return !access(name, F_OK);
}

/* Somebody appends to a file that was opened: what is behind its end then is no page of a block. */
static void test_file_that_grows(NO_STATE)
{
    static const uint8_t more[64 * IBX_SNAPSHOT_PAGE] = {1};
    struct ibx_snapshot_folder folder;
    struct ibx_page_map map;
    snapshot_make();
    assert_int_equal(ibx_snapshot_folder_open(path, true, &folder, &error), 0);
    assert_int_equal(pwrite(folder.fds[0], more, sizeof(more), 6 * IBX_SNAPSHOT_PAGE),
                     sizeof(more));
    assert_int_equal(ibx_snapshot_folder_map(&folder, &map, &error), 0);
    assert_true(ibx_page_map_data(&map, 6) && ibx_page_map_data(&map, 7));
    assert_true(map.data_pages <= map.pages);
    ibx_page_map_fini(&map);
    ibx_snapshot_folder_close(&folder);
}

static void test_link_to_a_folder_is_refused(NO_STATE)
{
    struct ibx_snapshot_folder folder = {.count = 0};
    char slash[80];
    assert_int_equal(symlink(other, path), 0);
    snprintf(slash, sizeof(slash), "%s/", path);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(ibx_snapshot_folder_make(i ? slash : path, &folder, &error), -ENOTDIR);
        assert_non_null(strstr(error.message, "is a link: name the folder itself"));
        ibx_snapshot_folder_close(&folder);
    }
    assert_int_equal(ibx_snapshot_folder_open(path, false, &folder, &error), -ENOTDIR);
}

/* An empty path, for example of an unset variable, does not mean the working directory. If the
 * parent folder is missing too, the message says what to do. */
static void test_missing_folder(NO_STATE)
{
    struct ibx_snapshot_folder folder = {.count = 0};
    char here[4096];
    assert_non_null(getcwd(here, sizeof(here)));
    assert_int_equal(chdir(other), 0);
    const int opened = ibx_snapshot_folder_open("", false, &folder, &error);
    struct ibx_error why = error;
    const int made = ibx_snapshot_folder_make("", &folder, &error);
    ibx_snapshot_folder_close(&folder);
    assert_int_equal(chdir(here), 0);
    assert_int_equal(opened, -ENOENT);
    assert_non_null(strstr(why.message, "name the folder"));
    assert_int_equal(made, -ENOENT);
    assert_non_null(strstr(error.message, "name the folder"));
    snprintf(name, sizeof(name), "%s/none/snapshot", top);
    assert_int_equal(ibx_snapshot_folder_open(name, false, &folder, &error), -ENOENT);
    assert_non_null(strstr(error.message, "correct the path"));
}

/* A user who can write to the parent folder puts a link there between two steps. */
static void test_link_in_its_place_gets_nothing(NO_STATE)
{
    struct ibx_snapshot_folder folder = {.count = 0}, again;
    assert_int_equal(ibx_snapshot_folder_make(path, &folder, &error), 0);
    manifest_make(&folder);
    assert_int_equal(rename(path, moved), 0);
    assert_int_equal(symlink(other, path), 0);
    assert_int_equal(ibx_snapshot_folder_files(&folder, IBX_SNAPSHOT_FILES_MAKE, &error), 0);
    assert_int_equal(ibx_snapshot_folder_sync(&folder, &error), 0);
    assert_int_equal(ibx_snapshot_folder_seal(&folder, &error), 0);
    assert_true(has(moved, "ram.0") && has(moved, "state") && has(moved, "manifest.json"));
    assert_false(has(other, "ram.0") || has(other, "state") || has(other, "manifest.json"));
    assert_int_equal(ibx_snapshot_folder_open(moved, false, &again, &error), 0);
    ibx_snapshot_folder_close(&again);
    ibx_snapshot_folder_remove(&folder);
    assert_false(has(moved, "ram.0") || has(moved, "manifest.json"));
    assert_true(has(top, "other"));
    ibx_snapshot_folder_close(&folder);
}

/* Another folder there, perhaps of another user, is not removed either. */
static void test_another_folder_in_its_place_stays(NO_STATE)
{
    struct ibx_snapshot_folder folder = {.count = 0};
    assert_int_equal(ibx_snapshot_folder_make(path, &folder, &error), 0);
    assert_int_equal(rename(path, moved), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    ibx_snapshot_folder_remove(&folder);
    assert_true(has(top, "snapshot"));
    ibx_snapshot_folder_close(&folder);
}

/* A link to a file of the right size is not accepted as one of the snapshot's files. */
static void test_link_to_a_file_is_refused(NO_STATE)
{
    static const char *const files[] = {"ram.0", "manifest.json"};
    struct ibx_snapshot_folder again = {.count = 0};
    char link[80], target[80];
    snapshot_make();
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(link, sizeof(link), "%s/%s", path, files[i]);
        snprintf(target, sizeof(target), "%s/%s", other, files[i]);
        assert_int_equal(rename(link, target), 0);
        assert_int_equal(symlink(target, link), 0);
        assert_int_equal(ibx_snapshot_folder_open(path, false, &again, &error), -ELOOP);
        assert_non_null(strstr(error.message, files[i]));
        assert_non_null(strstr(error.message, "put the file itself there"));
    }
}

static void in_theirs(const char *file)
{
    snprintf(name, sizeof(name), "%s/theirs/%s", top, file);
}

/* The owner of a folder on the path could redirect it to another folder of root: root would
 * serve the VM's memory there, or create a folder. */
static void test_path_of_another_user_is_refused(NO_STATE)
{
    struct ibx_snapshot_folder folder = {.count = 0};
    char theirs[80], memory[80];
    if (geteuid())
        skip();
    snapshot_make();
    assert_int_equal(ibx_snapshot_folder_open(path, false, &folder, &error), 0);
    ibx_snapshot_folder_close(&folder);
    snprintf(memory, sizeof(memory), "%s/ram.0", path);
    assert_int_equal(ibx_snapshot_memory_file(memory, false, &folder, &error), 0);
    ibx_snapshot_folder_close(&folder);
    snprintf(theirs, sizeof(theirs), "%s/theirs", top);
    assert_int_equal(mkdir(theirs, 0755), 0);
    in_theirs("way");
    assert_int_equal(symlink(top, name), 0);
    assert_int_equal(lchown(name, 1000, 1000), 0);
    in_theirs("ram");
    assert_int_equal(symlink(memory, name), 0);
    assert_int_equal(chown(theirs, 1000, 1000), 0);
    in_theirs("way/snapshot");
    assert_int_equal(ibx_snapshot_folder_open(name, false, &folder, &error), -EPERM);
    assert_non_null(strstr(error.message, "user 1000"));
    assert_int_equal(ibx_snapshot_folder_make(name, &folder, &error), -EPERM);
    in_theirs("way/snapshot/ram.0");
    assert_int_equal(ibx_snapshot_memory_file(name, false, &folder, &error), -EPERM);
    in_theirs("ram");
    assert_int_equal(ibx_snapshot_memory_file(name, false, &folder, &error), -EPERM);
    in_theirs("way/new");
    assert_int_equal(ibx_snapshot_folder_make(name, &folder, &error), -EPERM);
    assert_false(has(top, "new"));
}

/* A previous owner of a file may still have it open. */
static void test_file_of_another_user_is_refused(NO_STATE)
{
    static const char *const files[] = {"ram.0", "state", "manifest.json"};
    struct ibx_snapshot_folder folder = {.count = 0};
    char file[96];
    if (geteuid())
        skip();
    snapshot_make();
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(file, sizeof(file), "%s/%s", path, files[i]);
        assert_int_equal(chown(file, 1000, 1000), 0);
        assert_int_equal(ibx_snapshot_folder_open(path, false, &folder, &error), -EPERM);
        assert_non_null(strstr(error.message, files[i]));
        assert_non_null(strstr(error.message, "user 1000"));
        assert_int_equal(chown(file, 0, 0), 0);
    }
    assert_int_equal(ibx_snapshot_folder_open(path, false, &folder, &error), 0);
    ibx_snapshot_folder_close(&folder);
}

/* The advice can be pasted into a shell. */
static void test_what_others_can_read_is_refused(NO_STATE)
{
    struct ibx_snapshot_folder folder = {.count = 0};
    char advice[128];
    snprintf(name, sizeof(name), "%s/my snapshot", top);
    assert_int_equal(mkdir(name, 0755), 0);
    assert_int_equal(ibx_snapshot_folder_open(name, true, &folder, &error), -EPERM);
    snprintf(advice, sizeof(advice), "chmod 0700 '%s'", name);
    assert_non_null(strstr(error.message, advice));
    snprintf(name, sizeof(name), "%s/my memory", top);
    const int fd = open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(fchmod(fd, 0644) || ftruncate(fd, IBX_SNAPSHOT_PAGE), 0);
    close(fd);
    assert_int_equal(ibx_snapshot_memory_file(name, false, &folder, &error), -EPERM);
    snprintf(advice, sizeof(advice), "chmod 0600 '%s'", name);
    assert_non_null(strstr(error.message, advice));
}

/* A tool that reads a whole file blocks signals, and stops when one is pending. */
static void test_a_memory_file_is_read_until_a_signal(NO_STATE)
{
    struct ibx_snapshot_folder folder = {.count = 0};
    struct migration_signals signals;
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(pwrite(fd, "x", 1, 0), 1);
    assert_int_equal(ftruncate(fd, 8 * IBX_SNAPSHOT_PAGE), 0);
    close(fd);
    assert_int_equal(ibx_migration_signals_open(&signals, &error), 0);
    assert_int_equal(ibx_snapshot_memory_file(path, true, &folder, &error), 0);
    ibx_snapshot_folder_close(&folder);
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    const int rc = ibx_snapshot_memory_file(path, true, &folder, &error);
    assert_int_equal(ibx_migration_signals_take(&signals, true), 1); /* it is still pending */
    ibx_migration_signals_close(&signals);
    assert_int_equal(rc, -EINTR);
}

/* Two start at once: the second one does nothing and removes nothing. */
static void test_one_process_fills_it(NO_STATE)
{
    struct ibx_snapshot_folder folder = {.count = 0}, second = {.count = 0};
    assert_int_equal(ibx_snapshot_folder_make(path, &folder, &error), 0);
    assert_int_equal(ibx_snapshot_folder_make(path, &second, &error), -EBUSY);
    assert_non_null(strstr(error.message, "another ib-migrate fills"));
    manifest_make(&folder);
    assert_int_equal(ibx_snapshot_folder_files(&folder, IBX_SNAPSHOT_FILES_MAKE, &error), 0);
    assert_int_equal(ibx_snapshot_folder_seal(&folder, &error), 0);
    manifest_make(&second);
    assert_int_equal(ibx_snapshot_folder_files(&second, IBX_SNAPSHOT_FILES_MAKE, &error), -EEXIST);
    ibx_snapshot_folder_remove(&second);
    assert_true(has(path, "ram.0") && has(path, "manifest.json"));
    ibx_snapshot_folder_close(&second);
    ibx_snapshot_folder_close(&folder);
    assert_int_equal(ibx_snapshot_folder_make(path, &second, &error), -EEXIST);
    ibx_snapshot_folder_close(&second);
}

/* A snapshot whose manifest cannot be put in its place is none: the operator is told why, and no
 * part of the manifest stays. */
static void test_manifest_that_cannot_be_written(NO_STATE)
{
    struct ibx_snapshot_folder folder = {.count = 0};
    assert_int_equal(ibx_snapshot_folder_make(path, &folder, &error), 0);
    manifest_make(&folder);
    assert_int_equal(ibx_snapshot_folder_files(&folder, IBX_SNAPSHOT_FILES_MAKE, &error), 0);
    snprintf(name, sizeof(name), "%s/manifest.json", path);
    assert_int_equal(mkdir(name, 0700), 0);
    error.message[0] = 0;
    assert_int_equal(ibx_snapshot_folder_seal(&folder, &error), -EISDIR);
    assert_non_null(strstr(error.message, "snapshot/manifest.json cannot be written: Is a dir"));
    assert_false(has(path, "manifest.json.new"));
    ibx_snapshot_folder_close(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_file_that_grows, begin, end),
        cmocka_unit_test_setup_teardown(test_link_to_a_folder_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_missing_folder, begin, end),
        cmocka_unit_test_setup_teardown(test_link_in_its_place_gets_nothing, begin, end),
        cmocka_unit_test_setup_teardown(test_another_folder_in_its_place_stays, begin, end),
        cmocka_unit_test_setup_teardown(test_link_to_a_file_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_path_of_another_user_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_file_of_another_user_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_what_others_can_read_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_a_memory_file_is_read_until_a_signal, begin, end),
        cmocka_unit_test_setup_teardown(test_one_process_fills_it, begin, end),
        cmocka_unit_test_setup_teardown(test_manifest_that_cannot_be_written, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
