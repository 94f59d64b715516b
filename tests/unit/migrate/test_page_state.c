/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The next tool finds a page state, and takes no other user's file for one, although everybody can
 * write to /dev/shm. */
#include "migrate/common/page_state.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES 4096u
#define OTHER 12345 /* another user's id */

static char top[] = "/tmp/ibx-note-XXXXXX", path[64], aside[64];
static struct ibx_error error;

/* Makes a page state, as an earlier tool would leave it. */
static int begin(void **state)
{
    struct ibx_page_state pages;
    (void)state;
    memcpy(top + sizeof(top) - 7, "XXXXXX", 6);
    assert_non_null(mkdtemp(top));
    snprintf(path, sizeof(path), "%s/note", top);
    snprintf(aside, sizeof(aside), "%s/aside", top);
    assert_int_equal(ibx_page_state_make(&pages, BYTES, path, "it is noted", "do without", &error),
                     0);
    ((uint64_t *)pages.memory)[1] = 77;
    ibx_page_state_fini(&pages);
    return 0;
}

static int end(void **state)
{
    (void)state;
    unlink(path);
    unlink(aside);
    return rmdir(top);
}

static int find(size_t bytes)
{
    struct ibx_page_state pages = {0};
    const int rc = ibx_page_state_find(&pages, bytes, path, &error);
    if (!rc)
        assert_int_equal(((uint64_t *)pages.memory)[1], 77);
    ibx_page_state_fini(&pages);
    return rc;
}

static void test_found(NO_STATE)
{
    struct ibx_page_state again;
    assert_int_equal(find(BYTES), 0);
    assert_int_equal(ibx_page_state_make(&again, BYTES, path, "it is noted", "do without", &error),
                     -EEXIST);
    assert_non_null(strstr(error.message, "File exists; remove it"));
    assert_non_null(strstr(error.message, "do without"));
    assert_int_equal(find(BYTES), 0);
}

/* Lowers this limit of the process to 0. The message must say what is lacking and which limit to
 * raise. */
static void limit_is_reported(__rlimit_resource_t resource, int code, const char *words)
{
    struct ibx_page_state pages;
    struct rlimit before, none;
    assert_int_equal(getrlimit(resource, &before), 0);
    none = (struct rlimit){.rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(resource, &none), 0);
    const int rc = ibx_page_state_make(&pages, BYTES, aside, "it is noted", "do without", &error);
    assert_int_equal(setrlimit(resource, &before), 0);
    assert_int_equal(rc, code);
    assert_non_null(strstr(error.message, words));
    assert_int_equal(access(aside, F_OK), -1);
}

static void test_message_says_what_is_lacking(NO_STATE)
{
    signal(SIGXFSZ, SIG_IGN);
    limit_is_reported(RLIMIT_NOFILE, -EMFILE,
                      "Too many open files; raise the limit on open files (ulimit -n)");
    limit_is_reported(RLIMIT_FSIZE, -EFBIG,
                      "File too large; raise the limit on the size of files (ulimit -f)");
    limit_is_reported(RLIMIT_AS, -ENOMEM,
                      "cannot be mapped: Cannot allocate memory; raise the limit on addr");
}

/* /dev/shm does not exist, or cannot be written to. */
static void test_no_folder_for_notes(NO_STATE)
{
    struct ibx_page_state pages;
    char at[96];
    snprintf(at, sizeof(at), "%s/none/note", top);
    assert_int_equal(ibx_page_state_make(&pages, BYTES, at, "it is noted", "do without", &error),
                     -ENOENT);
    assert_non_null(strstr(error.message, "let this ib-migrate write to /dev/shm"));
    assert_null(strstr(error.message, "make room"));
}

/* What the tools say when a page state is gone makes people give up the VM's pages. */
static void test_without_descriptors_it_is_not_gone(NO_STATE)
{
    struct ibx_page_state pages = {0};
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const int rc = ibx_page_state_find(&pages, BYTES, path, &error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(rc, -EMFILE);
    assert_non_null(strstr(error.message, "cannot be opened: Too many open files; raise the"));
    assert_int_equal(find(BYTES), 0);
}

static void test_wrong_length(NO_STATE)
{
    assert_int_equal(find(BYTES * 2), -ESTALE);
    assert_int_equal(find(BYTES / 2), -ESTALE);
}

static void test_file_that_others_can_write(NO_STATE)
{
    for (unsigned bit = 020; bit; bit = bit == 020 ? 002 : 0) {
        assert_int_equal(chmod(path, 0600 | bit), 0);
        assert_int_equal(find(BYTES), -ESTALE);
    }
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(find(BYTES), 0);
}

static void test_file_of_another_user(NO_STATE)
{
    if (geteuid())
        skip();
    assert_int_equal(chown(path, OTHER, OTHER), 0);
    assert_int_equal(find(BYTES), -ESTALE);
}

/* A name like any root's file has, which others may have given it (fs.protected_hardlinks). */
static void test_file_with_another_name(NO_STATE)
{
    assert_int_equal(link(path, aside), 0);
    assert_int_equal(find(BYTES), -ESTALE);
}

/* What another user has made at the page state's place, or a link to what is not the page state's
 * own. */
static void takes_the_place_of(int made)
{
    struct ibx_page_state pages;
    struct stat st;
    assert_int_equal(made, 0);
    assert_int_equal(ibx_page_state_make(&pages, BYTES, path, "it is noted", "do without", &error),
                     0);
    ((uint64_t *)pages.memory)[1] = 77;
    ibx_page_state_fini(&pages);
    assert_int_equal(lstat(path, &st), 0);
    assert_int_equal(st.st_uid, geteuid());
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(find(BYTES), 0);
}

/* Users see the names of page states, and so can guess that of the next one of the same migration.
 * They must not keep root's VMs from migrating. */
static void test_others_cannot_occupy_the_name(NO_STATE)
{
    if (geteuid())
        skip();
    takes_the_place_of(chown(path, OTHER, OTHER));
    takes_the_place_of(unlink(path) || mkfifo(path, 0666) || chown(path, OTHER, OTHER));
    takes_the_place_of(unlink(path) || symlink(top, path) || lchown(path, OTHER, OTHER));
    takes_the_place_of(unlink(path) || mkdir(path, 0777) || chown(path, OTHER, OTHER));
}

static void test_link_is_not_followed(NO_STATE)
{
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(symlink(aside, path), 0);
    assert_int_equal(find(BYTES), -ESTALE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_found, begin, end),
        cmocka_unit_test_setup_teardown(test_message_says_what_is_lacking, begin, end),
        cmocka_unit_test_setup_teardown(test_no_folder_for_notes, begin, end),
        cmocka_unit_test_setup_teardown(test_without_descriptors_it_is_not_gone, begin, end),
        cmocka_unit_test_setup_teardown(test_wrong_length, begin, end),
        cmocka_unit_test_setup_teardown(test_file_that_others_can_write, begin, end),
        cmocka_unit_test_setup_teardown(test_file_of_another_user, begin, end),
        cmocka_unit_test_setup_teardown(test_file_with_another_name, begin, end),
        cmocka_unit_test_setup_teardown(test_others_cannot_occupy_the_name, begin, end),
        cmocka_unit_test_setup_teardown(test_link_is_not_followed, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
