/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Keys that killed runs have left are removed by their names, unless they may be needed. */
#include "tests/fixtures/journal_scene.h"
#include "tools/ib-migrate/run.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void path_of(char digit, char path[PATH_MAX])
{
    char id[33] = {0};
    memset(id, digit, 32);
    snprintf(path, PATH_MAX, "%s/run-%s.key", folder, id);
}

/* Creates the key of a run with this id, `old` seconds ago. */
static void make_key(char digit, int old)
{
    char path[PATH_MAX];
    path_of(digit, path);
    put_file(path, "k", 1);
    const struct timespec then[2] = {{time(NULL) - old, 0}, {time(NULL) - old, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, then, 0), 0);
}

static bool is_there(char digit)
{
    char path[PATH_MAX];
    path_of(digit, path);
    return !access(path, F_OK);
}

static void test_unneeded_keys_are_removed(NO_STATE)
{
    char path[PATH_MAX];
    make_key('a', 1000);
    make_key('b', 0);    /* its maker may not have locked it yet */
    make_key('c', 1000); /* its maker is alive */
    path_of('d', path);
    assert_int_equal(ibx_run_key_make(path, "k", &error), 0); /* this prunes too */
    path_of('c', path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && !flock(fd, LOCK_EX));
    char other[PATH_MAX];
    snprintf(other, sizeof(other), "%s/run-0123.key", folder);
    put_file(other, "k", 1);
    ibx_cli_prune_keys(folder);
    assert_false(is_there('a'));
    assert_true(is_there('b') && is_there('c') && is_there('d'));
    assert_int_equal(unlink(other), 0); /* not the name of a run's key */
    close(fd);
    ibx_cli_prune_keys(folder);
    assert_false(is_there('c'));
}

/* The record has the folder as the operator typed it at that time. */
static void test_key_in_a_record_stays(NO_STATE)
{
    char path[PATH_MAX];
    struct ibx_record r = sample(true, 5);
    make_key('e', 1000);
    make_key('f', 1000);
    path_of('e', path);
    snprintf(r.key_file, sizeof(r.key_file), "/typed/otherwise%s", strrchr(path, '/'));
    assert_int_equal(write_record(&r), 0);
    ibx_cli_prune_keys(folder);
    assert_true(is_there('e'));
    assert_false(is_there('f'));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_unneeded_keys_are_removed),
        TEST(test_key_in_a_record_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
