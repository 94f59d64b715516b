/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A file that another process shows in /proc is checked before it is opened, and must be the
 * same afterwards. Of what it shows as its command line no more is read than a program can get, and
 * its mappings take little memory. Who can write to guest RAM is found, or that it is not known. */
#include "migrate/qemu/qemu_internal.h"
#include "tests/fixtures/in_child.h"
#include "tests/fixtures/shown_line.h"
#include "tests/fixtures/unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[] = "/tmp/ibx-proc-XXXXXX", own[64];
static int file, watch;

/* The kernel has no memory to list files of /proc, or to show what is in them. */
static bool list_fails, shown_fails, lines_fail;

struct dirent *__real_readdir64(DIR *dir);
struct dirent *__wrap_readdir64(DIR *dir);
struct dirent *__wrap_readdir64(DIR *dir)
{
    errno = list_fails ? ENOMEM : errno;
    return list_fails ? NULL : __real_readdir64(dir);
}

/* The kernel cannot be asked for some of the mappings: before Linux 6.11. */
static bool asked_in_vain;
static unsigned questions;

int __real_ioctl(int fd, unsigned long request, void *argument);
int __wrap_ioctl(int fd, unsigned long request, void *argument);
int __wrap_ioctl(int fd, unsigned long request, void *argument)
{
    questions++;
    errno = asked_in_vain ? ENOTTY : errno;
    return asked_in_vain ? -1 : __real_ioctl(fd, request, argument);
}

char *__real_fgets(char *line, int size, FILE *from);
char *__wrap_fgets(char *line, int size, FILE *from);
char *__wrap_fgets(char *line, int size, FILE *from)
{
    errno = shown_fails ? ENOMEM : errno;
    return shown_fails ? NULL : __real_fgets(line, size, from);
}

/* What getline(3) is, depends on the compiler's options. */
ssize_t __real___getdelim(char **line, size_t *size, int end, FILE *from);
ssize_t __wrap___getdelim(char **line, size_t *size, int end, FILE *from);
ssize_t __wrap___getdelim(char **line, size_t *size, int end, FILE *from)
{
    errno = lines_fail ? ENOMEM : errno;
    return lines_fail ? -1 : __real___getdelim(line, size, end, from);
}

ssize_t __wrap_getline(char **line, size_t *size, FILE *from);
ssize_t __wrap_getline(char **line, size_t *size, FILE *from)
{
    return __wrap___getdelim(line, size, '\n', from);
}

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

/* Otherwise a guest that has taken over its QEMU could use up the memory and the time of a tool. */
static void test_endless_command_line(NO_STATE)
{
    const size_t length = (size_t)64 << 20;
    char *text = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *argument = NULL;
    size_t size = 0, most = (size_t)6 << 20; /* that execve(2) takes */
    assert_true(text != MAP_FAILED);
    memset(text, 'a', most);
    text[most - 1] = '\0'; /* otherwise the kernel shows one page */
    memcpy(text, "qemu\0-no-shutdown", 18);
    for (unsigned endless = 0; endless < 2; endless++) {
        const pid_t child = shows(text, endless ? length : most);
        if (!child)
            skip();
        FILE *arguments = ibx_proc_arguments(child);
        assert_int_equal(arguments == NULL, endless);
        assert_int_equal(ibx_proc_stays(child), !endless);
        for (unsigned i = 0; arguments && i < 3; i++)
            assert_int_equal(getdelim(&argument, &size, '\0', arguments), i == 0 ? 5
                                                                          : i == 1
                                                                              ? 13
                                                                              : (long)most - 18);
        if (arguments)
            fclose(arguments);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    free(argument);
    munmap(text, length);
}

/* A process may have as many mappings as the host allows, 65530 and often more, whoever it is. */
static void test_many_mappings(NO_STATE)
{
    enum { COUNT = 8000, PAGE = 4096 };
    struct ibx_error err = {0};
    struct guest_mappings mappings;
    const int fd = memfd_create("many", MFD_CLOEXEC);
    char *at = mmap(NULL, 2 * COUNT * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(fd >= 0 && at != MAP_FAILED);
    assert_int_equal(ftruncate(fd, PAGE), 0);
    for (size_t i = 0; i < COUNT; i++)
        assert_true(mmap(at + 2 * i * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                         fd, 0) != MAP_FAILED);
    const struct mallinfo2 before = mallinfo2();
    assert_int_equal(ibx_guest_mappings_read(getpid(), &mappings, &err), 0);
    const struct mallinfo2 now = mallinfo2();
    assert_true(mappings.count >= COUNT);
    assert_non_null(strstr(mappings.items[COUNT / 2].path, "many"));
    assert_true(now.uordblks + now.hblkhd - before.uordblks - before.hblkhd < COUNT * 400);
    ibx_guest_mappings_fini(&mappings);
    munmap(at, 2 * COUNT * PAGE);
    close(fd);
}

/* A process that can write to the file in one of two ways, and no longer in the other one. */
static pid_t writer(bool maps)
{
    int ready[2];
    char byte;
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    const pid_t child = fork_bound();
    if (!child) {
        const void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (maps)
            close(file);
        else
            munmap((void *)(uintptr_t)at, 4096);
        while (write(ready[1], "", 1) == 1)
            pause();
        _exit(1);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

static int check_unused(unsigned descriptors, const char *words)
{
    struct stat st;
    struct rlimit before, few;
    struct ibx_error err = {0};
    assert_int_equal(fstat(file, &st), 0);
    struct ibx_guest_block block = {
        .id = "ram0", .fd = file, .dev = st.st_dev, .ino = st.st_ino, .size = 4096};
    const struct ibx_guest_ram ram = {.blocks = &block, .count = 1};
    const int next = dup(file);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){.rlim_cur = (rlim_t)next + descriptors, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    const int rc = ibx_guest_ram_check_unused(&ram, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    if (rc && !strstr(err.message, words))
        fail_msg("%s", err.message);
    return rc;
}

/* Memory that another process may write to is not used, also if that is not known. */
static void test_who_writes_to_memory(NO_STATE)
{
    asked_in_vain = true;
    assert_int_equal(check_unused(8, ""), 0);
    for (unsigned maps = 0; maps < 2; maps++) {
        const pid_t child = writer(maps);
        assert_int_equal(check_unused(8, "if it has written nothing there, end it"), -EBUSY);
        shown_fails = true;
        assert_int_equal(check_unused(8, maps ? "may have" : "not known"), maps ? -EBUSY : -ENOMEM);
        shown_fails = false;
        lines_fail = true;
        assert_int_equal(check_unused(8,
                                      "not known whether another process writes to guest RAM: try "
                                      "again when this host has memory"),
                         -ENOMEM);
        lines_fail = false;
        list_fails = true;
        assert_int_equal(check_unused(8, "not known"), -ENOMEM);
        list_fails = false;
        for (unsigned descriptors = 0; descriptors < 3; descriptors++) {
            const int rc = check_unused(descriptors, "");
            if (rc != -EMFILE && rc != -EBUSY)
                fail_msg("with %u descriptors left: %d", descriptors, rc);
        }
        asked_in_vain = false;
        assert_int_equal(check_unused(8, "if it has written nothing there, end it"), -EBUSY);
        asked_in_vain = true;
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    assert_int_equal(check_unused(8, ""), 0);
    asked_in_vain = false;
}

static bool is_wanted(void *context, const struct ibx_proc_mapping *mapping)
{
    const struct ibx_proc_mapping *wanted = context;
    return mapping->start == wanted->start && mapping->end == wanted->end &&
           mapping->offset == wanted->offset && mapping->dev == wanted->dev &&
           mapping->ino == wanted->ino && !strcmp(mapping->permissions, wanted->permissions) &&
           !strcmp(mapping->path, wanted->path);
}

/* Each field of a mapping is what the kernel shows, blanks in the file's name, too. */
static void test_fields_of_a_mapping(NO_STATE)
{
    enum { AT = 0xabc000, LENGTH = 3 * 4096 };
    struct stat st;
    const int fd = memfd_create("a name", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, AT + LENGTH), 0);
    assert_int_equal(fstat(fd, &st), 0);
    char *const at = mmap(NULL, LENGTH, PROT_READ, MAP_SHARED, fd, AT);
    assert_true(at != MAP_FAILED);
    struct ibx_proc_mapping wanted = {.start = (uintptr_t)at,
                                      .end = (uintptr_t)at + LENGTH,
                                      .offset = AT,
                                      .dev = st.st_dev,
                                      .ino = st.st_ino,
                                      .permissions = "r--s",
                                      .path = "/memfd:a name (deleted)"};
    assert_int_equal(ibx_proc_find_mapping(getpid(), is_wanted, &wanted), 1);
    munmap(at, LENGTH);
    close(fd);
}

struct seen {
    struct ibx_proc_mapping wanted;
    unsigned found, writable, others;
};

static bool see(void *context, const struct ibx_proc_mapping *mapping)
{
    struct seen *seen = context;
    if (is_wanted(&seen->wanted, mapping))
        seen->found++;
    else if (!strcmp(mapping->permissions, "rw-s"))
        seen->writable++;
    else
        seen->others++;
    return false;
}

/* Looks at the mappings of this process, which has two of a file, shared: one writable, one not. */
static struct seen look_at_writable(void)
{
    enum { AT = 0xabc000, LENGTH = 3 * 4096 };
    struct seen seen = {.wanted = {.offset = AT, .permissions = "rw-s"}};
    struct stat st;
    const int fd = memfd_create("written", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, AT + LENGTH), 0);
    assert_int_equal(fstat(fd, &st), 0);
    char *const at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, AT);
    void *const read = mmap(NULL, LENGTH, PROT_READ, MAP_SHARED, fd, AT);
    assert_true(at != MAP_FAILED && read != MAP_FAILED);
    seen.wanted.start = (uintptr_t)at;
    seen.wanted.end = (uintptr_t)at + LENGTH;
    seen.wanted.dev = st.st_dev;
    seen.wanted.ino = st.st_ino;
    seen.wanted.path = asked_in_vain ? "/memfd:written (deleted)" : "";
    assert_int_equal(ibx_proc_find_writable(getpid(), is_wanted, &seen.wanted), 1);
    questions = 0;
    assert_int_equal(ibx_proc_find_writable(getpid(), see, &seen), 0);
    munmap(at, LENGTH);
    munmap(read, LENGTH);
    close(fd);
    return seen;
}

/* A kernel that can be asked for shared and writable mappings tells those, and no others; of any
 * other kernel all mappings are read. */
static void test_writable_mappings(NO_STATE)
{
    asked_in_vain = true;
    const struct seen all = look_at_writable();
    asked_in_vain = false;
    assert_int_equal(all.found, 1);
    assert_true(all.others > 1);
    const struct seen some = look_at_writable();
    if (questions == 1) /* before Linux 6.11 */
        skip();
    assert_int_equal(some.found, 1);
    assert_int_equal(some.writable, all.writable);
    assert_int_equal(some.others, 0);
    assert_int_equal(questions, some.writable + 2);
}

static bool is_none(void *context, int number, const char *link)
{
    (void)context;
    (void)number;
    (void)link;
    return false;
}

/* A list of descriptors that ends early has not been searched. */
static void test_descriptors_that_cannot_be_listed(NO_STATE)
{
    assert_int_equal(ibx_proc_find_descriptor(getpid(), is_none, NULL), -ENOENT);
    list_fails = true;
    const int rc = ibx_proc_find_descriptor(getpid(), is_none, NULL);
    list_fails = false;
    assert_int_equal(rc, -ENOMEM);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_endless_command_line),
        cmocka_unit_test(test_many_mappings),
        cmocka_unit_test(test_fields_of_a_mapping),
        cmocka_unit_test(test_writable_mappings),
        cmocka_unit_test(test_descriptors_that_cannot_be_listed),
        cmocka_unit_test_setup_teardown(test_who_writes_to_memory, begin, end),
        cmocka_unit_test_setup_teardown(test_wrong_file_is_not_opened, begin, end),
        cmocka_unit_test_setup_teardown(test_checked_file_is_opened, begin, end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
