/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A file that another process shows in /proc is checked before it is opened, and must be the
 * same afterwards. */
#include "migrate/qemu/qemu.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

static char path[] = "/tmp/ibx-proc-XXXXXX", own[64];
static int file, watch;

static bool is_regular(const void *context, const struct stat *st)
{
    (void)context;
    return S_ISREG(st->st_mode);
}

/* Acts as a QEMU that replaces its descriptor while it is checked. */
static bool replace_descriptor(const void *context, const struct stat *st)
{
    const int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
    (void)context;
    assert_int_equal(dup2(other, file), file);
    close(other);
    return S_ISREG(st->st_mode);
}

static bool was_opened(void)
{
    struct inotify_event event;
    return read(watch, &event, sizeof(event)) > 0;
}

static int begin(void **state)
{
    (void)state;
    strcpy(path + sizeof(path) - 7, "XXXXXX");
    file = mkstemp(path);
    watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    assert_true(file >= 0 && watch >= 0 && inotify_add_watch(watch, path, IN_OPEN) >= 0);
    assert_int_equal(write(file, "bytes", 5), 5);
    snprintf(own, sizeof(own), "/proc/self/fd/%d", file);
    return 0;
}

static int end(void **state)
{
    (void)state;
    close(file);
    close(watch);
    unlink(path);
    return 0;
}

static bool fits_not(const void *context, const struct stat *st)
{
    (void)context;
    (void)st;
    return false;
}

static void test_wrong_file_is_not_opened(NO_STATE)
{
    assert_int_equal(ibx_proc_open(own, O_RDONLY, fits_not, NULL), -ESTALE);
    assert_false(was_opened());
    assert_int_equal(ibx_proc_open("/proc/self/fd/9999", O_RDONLY, is_regular, NULL), -ENOENT);
    const int fd = ibx_proc_open(own, O_RDONLY, is_regular, NULL);
    assert_true(fd >= 0 && was_opened());
    close(fd);
}

static void test_checked_file_is_opened(NO_STATE)
{
    char bytes[8];
    const int fd = ibx_proc_open(own, O_RDONLY, replace_descriptor, NULL);
    assert_true(fd >= 0);
    assert_int_equal(read(fd, bytes, sizeof(bytes)), 5);
    close(fd);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_wrong_file_is_not_opened, begin, end),
        cmocka_unit_test_setup_teardown(test_checked_file_is_opened, begin, end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
