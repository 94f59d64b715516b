/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Complete folders with records of children that have waited since the process that filled the
 * folder was killed. Somebody else may have made the folder, with records of that user. A
 * process acts as QEMU, with memory whose faults nobody serves. */
#include "migrate/journal/journal.h"
#include "migrate/snapshot/cache.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"

#include "userfaultfd/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE  IBX_SNAPSHOT_PAGE
#define BYTES (8 * PAGE)

static char top[] = "/dev/shm/ibx-left-XXXXXX", path[64], name[96];
static struct ibx_snapshot_folder folder;
static struct snapshot_child child;
static pid_t qemu;
static int said; /* a pipe from it: the address of its memory, and then the first byte there */
static struct ibx_error error;

static int begin(void **state)
{
    struct ibx_snapshot_manifest *m = &folder.manifest;
    (void)state;
    memcpy(top + sizeof(top) - 7, "XXXXXX", 6);
    assert_non_null(mkdtemp(top));
    snprintf(path, sizeof(path), "%s/snapshot", top);
    folder = (struct ibx_snapshot_folder){.count = 0};
    assert_int_equal(ibx_snapshot_folder_make(path, &folder, &error), 0);
    m->ram_count = 1;
    m->ram[0].size = BYTES;
    snprintf(m->ram[0].id, sizeof(m->ram[0].id), "mem0");
    m->state_bytes = 1;
    m->complete = true;
    m->description = json_object();
    assert_int_equal(ibx_snapshot_folder_files(&folder, IBX_SNAPSHOT_FILES_MAKE, &error), 0);
    assert_int_equal(ibx_snapshot_folder_seal(&folder, &error), 0);
    return 0;
}

static int end(void **state)
{
    char command[64];
    (void)state;
    if (qemu > 0) {
        kill(qemu, SIGKILL);
        waitpid(qemu, NULL, 0);
        close(said);
    }
    qemu = 0;
    ibx_snapshot_folder_close(&folder);
    snprintf(command, sizeof(command), "rm -rf %s", top);
    return system(command);
}

/* Acts as QEMU with memory of the file, or of none (-1). */
static void be_qemu(int fd, int out)
{
    const int kind = MAP_PRIVATE | (fd < 0 ? MAP_ANONYMOUS : 0);
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, kind, fd, 0);
    struct ibx_fault_range range = {.start = (uintptr_t)memory, .length = BYTES, .page_size = PAGE};
    int uffd = -1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (memory == MAP_FAILED || ibx_fault_uffd_open(0, &uffd, NULL) ||
        ibx_fault_register(uffd, &range, NULL) ||
        write(out, &range.start, sizeof(range.start)) != sizeof(range.start) ||
        write(out, &uffd, sizeof(uffd)) != sizeof(uffd))
        _exit(2);
    const char first = *(volatile char *)memory;
    if (write(out, &first, 1) != 1)
        _exit(2);
    pause();
    _exit(0);
}

static bool says(void *to, size_t n)
{
    struct pollfd p = {.fd = said, .events = POLLIN};
    return poll(&p, 1, (int)patience_ms(20000)) == 1 && read(said, to, n) == (ssize_t)n;
}

/* Starts a process that waits at its first page, and writes a record of it into the folder. */
static void leave_child(int fd)
{
    int from[2];
    uint64_t address;
    assert_int_equal(pipe(from), 0);
    qemu = fork();
    assert_true(qemu >= 0);
    if (!qemu)
        be_qemu(fd, from[1]);
    close(from[1]);
    said = from[0];
    if (!says(&address, sizeof(address)))
        skip(); /* this host has no userfaultfd */
    child = (struct snapshot_child){
        .pid = qemu, .started = ibx_process_started(qemu), .count = 1, .addresses = {address}};
    assert_true(says(&child.remote, sizeof(child.remote)));
    assert_int_equal(ibx_snapshot_child_record_write(&folder, &child, &error), 0);
    assert_true(ibx_snapshot_children_left(&folder));
}

static void test_left_child_continues(NO_STATE)
{
    char byte = 'x';
    leave_child(folder.fds[0]);
    ibx_snapshot_let_left_go(&folder);
    assert_true(says(&byte, 1));
    assert_int_equal(byte, 0);
    assert_false(ibx_snapshot_children_left(&folder));
}

/* Its pages must come from elsewhere, and must not become zeros. */
static void test_child_with_other_memory_keeps_waiting(NO_STATE)
{
    static char bytes[PAGE] = "v";
    char byte = 'x';
    int uffd;
    leave_child(-1);
    ibx_snapshot_let_left_go(&folder);
    assert_int_equal(ibx_fault_uffd_take(qemu, child.remote, &uffd, &error), 0);
    struct uffdio_copy copy = {
        .dst = child.addresses[0], .src = (uintptr_t)bytes, .len = sizeof(bytes)};
    assert_int_equal(ioctl(uffd, UFFDIO_COPY, &copy), 0);
    close(uffd);
    assert_true(says(&byte, 1));
    assert_int_equal(byte, 'v');
    assert_false(ibx_snapshot_children_left(&folder));
}

static void too_long(int number)
{
    static const char text[] = "it waits for somebody at a pipe\n";
    const ssize_t ignored = write(STDERR_FILENO, text, sizeof(text) - 1);
    (void)number, (void)ignored;
    _exit(1);
}

static void put_pipe(const char *file)
{
    snprintf(name, sizeof(name), "%s/%s", path, file);
    assert_int_equal(mkfifo(name, 0600), 0);
}

/* Pipes in place of the files, which nobody else ever opens. */
static void test_pipe_is_refused(NO_STATE)
{
    char mark[32];
    snprintf(mark, sizeof(mark), "verified.%d", (int)getpid());
    put_pipe("child.1");
    put_pipe(mark);
    put_pipe("manifest.json.new");
    signal(SIGALRM, too_long);
    alarm(patience_ms(5000) / 1000);
    assert_false(ibx_snapshot_children_left(&folder));
    ibx_snapshot_let_left_go(&folder);
    ibx_snapshot_mark_verified(&folder);
    assert_int_equal(ibx_snapshot_folder_seal(&folder, &error), -ENXIO);
    alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_left_child_continues, begin, end),
        cmocka_unit_test_setup_teardown(test_child_with_other_memory_keeps_waiting, begin, end),
        cmocka_unit_test_setup_teardown(test_pipe_is_refused, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
