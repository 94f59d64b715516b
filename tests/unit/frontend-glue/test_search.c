/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* libibx-search.so in a program with rights that its caller lacks: the caller's variables choose no
 * library there. This program starts itself so: a copy with the set-user-ID bit, as another user.
 */
#include "tests/fixtures/in_child.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#define OTHER 12345 /* a user's id */
#define FOUND 3     /* what the copy returns: the library that the variables name */

static char folder[] = "/tmp/ibx-search-XXXXXX";

static void copy(const char *from, const char *name, mode_t mode)
{
    char path[96];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    const int in = open(from, O_RDONLY | O_CLOEXEC);
    const int out = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
    assert_true(in >= 0 && out >= 0 && !fstat(in, &st));
    for (off_t at = 0; at < st.st_size;)
        assert_true(sendfile(out, in, &at, (size_t)(st.st_size - at)) > 0);
    assert_int_equal(fchmod(out, mode), 0);
    close(in);
    assert_int_equal(close(out), 0);
}

static int begin(void **state)
{
    const char *search = getenv("IBX_TEST_SEARCH");
    (void)state;
    assert_non_null(search);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chmod(folder, 0755), 0);
    copy("/proc/self/exe", "plain", 0755);
    copy("/proc/self/exe", "secure", 04755);
    copy(search, "libibx-search.so", 0755);
    copy(search, "libcudart.so", 0755); /* a library for this machine */
    return 0;
}

static int end(void **state)
{
    static const char *const names[] = {"plain", "secure", "libibx-search.so", "libcudart.so"};
    char path[96];
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

/* In the copy: what the loader gets for this library. */
static int search_in(const char *place, bool wants_secure)
{
    char path[96], *(*look)(const char *name, uintptr_t *cookie, unsigned flag);
    unsigned (*version)(unsigned version);
    uintptr_t cookie = 0;
    if (!getauxval(AT_SECURE) == wants_secure)
        return CHILD_SKIPS; /* a file system without set-user-ID bits */
    snprintf(path, sizeof(path), "%s/libibx-search.so", place);
    void *search = dlopen(path, RTLD_NOW);
    *(void **)&version = search ? dlsym(search, "la_version") : NULL;
    *(void **)&look = search ? dlsym(search, "la_objsearch") : NULL;
    if (!version || !look || version(1) != 1)
        return 1;
    const char *got = look("libcudart.so", &cookie, 1);
    snprintf(path, sizeof(path), "%s/libcudart.so", place);
    return !strcmp(got, path) ? FOUND : strcmp(got, "libcudart.so") ? 1 : 0;
}

/* What the copy of that name returns if another user calls it. */
static int called_by_another(const char *name, const char *variable)
{
    char path[96], value[128];
    int status;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    snprintf(value, sizeof(value), "%s=%s", variable, folder);
    const pid_t child = fork_bound();
    if (!child) {
        char *const arguments[] = {path, folder, NULL}, *const environment[] = {value, NULL};
        if (setresgid(OTHER, OTHER, OTHER) || setresuid(OTHER, OTHER, OTHER))
            _exit(CHILD_SKIPS);
        execve(path, arguments, environment);
        _exit(1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == CHILD_SKIPS)
        skip();
    return WEXITSTATUS(status);
}

static void variables_choose_libraries(NO_STATE)
{
    assert_int_equal(called_by_another("plain", "LD_LIBRARY_PATH"), FOUND);
}

static void variables_of_a_caller_with_fewer_rights_do_not(NO_STATE)
{
    assert_int_equal(called_by_another("secure", "LD_LIBRARY_PATH"), 0);
}

int main(int argc, char **argv)
{
    const char *name = strrchr(argv[0], '/');
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variables_choose_libraries),
        cmocka_unit_test(variables_of_a_caller_with_fewer_rights_do_not),
    };
    if (argc == 2)
        return search_in(argv[1], name && !strcmp(name, "/secure"));
    return geteuid() ? CHILD_SKIPS : cmocka_run_group_tests(tests, begin, end);
}
