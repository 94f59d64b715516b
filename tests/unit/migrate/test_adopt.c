/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Guest RAM is replaced in a process that also has a file open that nobody else may ask about. */
#include "tests/fixtures/in_child.h"
#include "tests/fixtures/qmp_peer.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { PAGE = 4096, MORE_MAX = 8 };

static char hidden[64]; /* the path of the descriptor, as of another user's FUSE */

int __real_statx(int dir, const char *path, int flags, unsigned mask, struct statx *st);
int __wrap_statx(int dir, const char *path, int flags, unsigned mask, struct statx *st);
int __wrap_statx(int dir, const char *path, int flags, unsigned mask, struct statx *st)
{
    if (strcmp(path, hidden) != 0)
        return __real_statx(dir, path, flags, mask, st);
    errno = EACCES;
    return -1;
}

/* A block of guest RAM in a file of its own, which holds one letter. */
static struct ibx_guest_block block_with(const char *letter, uint64_t address)
{
    struct stat st;
    const int fd = memfd_create("ram", MFD_CLOEXEC);
    assert_true(fd >= 0 && !ftruncate(fd, PAGE) && pwrite(fd, letter, 1, 0) == 1);
    assert_int_equal(fstat(fd, &st), 0);
    return (struct ibx_guest_block){.id = "ram0",
                                    .fd = fd,
                                    .size = PAGE,
                                    .page_size = PAGE,
                                    .address = address,
                                    .dev = st.st_dev,
                                    .ino = st.st_ino};
}

/* Acts as a QEMU, and tells which letter its memory begins with. */
static _Noreturn void live(const char *memory, int asked, int told)
{
    char byte;
    while (read(asked, &byte, 1) == 1 && write(told, memory, 1) == 1)
        ;
    _exit(0);
}

static char letter_of(int ask, int answer)
{
    char letter = '\0';
    assert_int_equal(write(ask, "", 1), 1);
    assert_int_equal(read(answer, &letter, 1), 1);
    return letter;
}

/* `more`: so many further descriptors of the memory that returns. */
static void adopts(unsigned more)
{
    int ask[2], answer[2], further[MORE_MAX];
    char *memory = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibx_guest_block block = block_with("a", (uintptr_t)memory);
    struct ibx_guest_block before = block_with("b", 0);
    assert_true(mmap(memory, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, block.fd, 0) ==
                memory);
    assert_int_equal(pipe(ask) || pipe(answer), 0);
    for (unsigned i = 0; i < more; i++)
        further[i] = dup(before.fd);
    const pid_t child = fork_bound();
    if (!child)
        live(memory, ask[0], answer[1]);
    snprintf(hidden, sizeof(hidden), "/proc/%d/fd/%d", (int)child, ask[0]);
    struct ibx_guest_ram ram = {.pid = child, .blocks = &block, .count = 1};
    const struct ibx_guest_ram base = {.blocks = &before, .count = 1};
    assert_int_equal(letter_of(ask[1], answer[0]), 'a');
    attached(SCRIPT({"getfd", READY(2), 0}, {"closefd", READY(3), 0}));
    const int rc = ibx_guest_ram_adopt(&ram, &base, qmp, ibx_deadline_in_ms(GENEROUS), &error);
    if (rc == -EPERM)
        skip(); /* no process may be traced here */
    if (rc)
        fail_msg("%s", error.message);
    done();
    assert_int_equal(letter_of(ask[1], answer[0]), 'b');
    assert_int_equal(block.ino, before.ino);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(close(ask[i]) || close(answer[i]), 0);
    for (unsigned i = 0; i < more; i++)
        assert_int_equal(close(further[i]), 0);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(block.fd);
    close(before.fd);
    munmap(memory, PAGE);
}

static void test_a_descriptor_that_may_not_be_read(NO_STATE)
{
    adopts(0);
}

/* More than are looked for. */
static void test_many_descriptors_of_what_returns(NO_STATE)
{
    adopts(MORE_MAX);
}

/* The list of its descriptors cannot be read: then it is not said that it has not got the file. */
static void test_descriptors_that_cannot_be_listed(NO_STATE)
{
    struct ibx_guest_block block = block_with("a", 0), before = block_with("b", 0);
    struct ibx_guest_ram ram = {.pid = getpid(), .blocks = &block, .count = 1};
    const struct ibx_guest_ram base = {.blocks = &before, .count = 1};
    struct rlimit all, few;
    attached(SCRIPT({"getfd", READY(2), 0}));
    const int next = dup(0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
    few = (struct rlimit){.rlim_cur = (rlim_t)next + 1, .rlim_max = all.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    const int rc = ibx_guest_ram_adopt(&ram, &base, qmp, ibx_deadline_in_ms(GENEROUS), &error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
    assert_int_equal(rc, -EMFILE);
    assert_non_null(strstr(error.message, "/proc does not show"));
    done();
    close(block.fd);
    close(before.fd);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_descriptors_that_cannot_be_listed),
        cmocka_unit_test(test_a_descriptor_that_may_not_be_read),
        cmocka_unit_test(test_many_descriptors_of_what_returns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
