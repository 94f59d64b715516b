/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether other processes can write to guest RAM is looked for in all processes, whoever's they
 * are, and a QEMU's images in its descriptors. One has a file open on a file system that answers
 * nothing any more. */
#include "migrate/preflight/preflight.h"
#include "migrate/qemu/qemu_internal.h"
#include "tests/fixtures/in_child.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define FILE_NODE 2  /* of which the server tells nothing */
#define SILENT_S  10 /* then the server ends, and so do waits for it, which no signal ends */
#define LATE_MS   5000

static char folder[] = "/tmp/ibx-file-users-XXXXXX", memory[64], place[64];

static void reply(int fuse, const struct fuse_in_header *to, const void *out, size_t n, int code)
{
    struct fuse_out_header head = {
        .len = (uint32_t)(sizeof(head) + n), .error = code, .unique = to->unique};
    const struct iovec parts[] = {{&head, sizeof(head)}, {(void *)(uintptr_t)out, n}};
    if (writev(fuse, parts, n ? 2 : 1) < 0)
        return; /* it was interrupted */
}

static void answer(int fuse, const struct fuse_in_header *in)
{
    const struct fuse_init_out init = {
        .major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096};
    const struct fuse_attr_out root = {.attr = {.ino = 1, .mode = S_IFDIR | 0755, .nlink = 2}};
    const struct fuse_entry_out entry = {
        .nodeid = FILE_NODE, .attr = {.ino = FILE_NODE, .mode = S_IFREG | 0600, .nlink = 1}};
    const struct fuse_open_out opened = {.fh = 1};
    if (in->opcode == FUSE_INIT)
        reply(fuse, in, &init, sizeof(init), 0);
    else if (in->opcode == FUSE_GETATTR && in->nodeid == FUSE_ROOT_ID)
        reply(fuse, in, &root, sizeof(root), 0);
    else if (in->opcode == FUSE_LOOKUP)
        reply(fuse, in, &entry, sizeof(entry), 0);
    else if (in->opcode == FUSE_OPEN)
        reply(fuse, in, &opened, sizeof(opened), 0);
    else if (in->nodeid != FILE_NODE)
        reply(fuse, in, NULL, 0, -ENOSYS);
}

static void serve(int fuse)
{
    static char bytes[1 << 17];
    alarm(SILENT_S);
    while (read(fuse, bytes, sizeof(bytes)) > 0 || errno == EINTR || errno == ENOENT)
        answer(fuse, (const struct fuse_in_header *)bytes);
    _exit(0);
}

/* Mounts it, and has its file open in a process. 0: that is not possible here. */
static pid_t begin_silence(void)
{
    char options[128], path[96], byte;
    int told[2];
    const int fuse = open("/dev/fuse", O_RDWR);
    snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other",
             fuse);
    snprintf(path, sizeof(path), "%s/file", place);
    if (fuse < 0 || unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("ibx-test", place, "fuse", MS_NOSUID | MS_NODEV, options) || pipe(told))
        return 0;
    if (!fork_bound())
        serve(fuse);
    close(fuse);
    const pid_t user = fork_bound();
    if (!user) {
        const int fd = open(path, O_RDWR);
        if (fd >= 0 && write(told[1], "x", 1) == 1)
            for (;;)
                pause();
        _exit(1);
    }
    close(told[1]);
    const bool good = read(told[0], &byte, 1) == 1;
    close(told[0]);
    return good ? user : 0;
}

static bool fits_not(const void *context, const struct stat *st)
{
    (void)context;
    (void)st;
    return false;
}

/* Whether each of its files is found not to fit. */
static bool none_fits(pid_t user)
{
    char path[64];
    bool any = false;
    for (int fd = 0; fd < 64; fd++) {
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)user, fd);
        const int rc = ibx_proc_open(path, O_RDONLY, fits_not, NULL);
        if (rc != -ESTALE && rc != -ENOENT)
            return false;
        any |= rc == -ESTALE;
    }
    return any;
}

static int beside_silence(void)
{
    struct stat st;
    struct ibx_error err = {0};
    struct ibx_images images;
    const pid_t user = geteuid() ? 0 : begin_silence();
    if (!user)
        return CHILD_SKIPS;
    const int fd = open(memory, O_RDWR);
    if (fd < 0 || fstat(fd, &st))
        return 2;
    struct ibx_guest_block block = {
        .id = "ram0", .fd = fd, .dev = st.st_dev, .ino = st.st_ino, .size = 4096};
    const struct ibx_guest_ram ram = {.blocks = &block, .count = 1};
    const uint64_t late = ibx_deadline_in_ms(LATE_MS);
    const int rc = ibx_guest_ram_check_unused(&ram, &err);
    const int found = ibx_preflight_find_images(user, false, &images, &err);
    const bool none = none_fits(user);
    if (rc || found)
        print_error("%s\n", err.message);
    if (!none)
        return 7;
    return rc ? 3 : found ? 4 : images.count ? 5 : ibx_now_ns() > late ? 6 : 0;
}

static void test_a_file_system_that_is_silent(NO_STATE)
{
    passes_in_child(beside_silence);
}

/* A FIFO over the maps of a process, which nobody writes to, as where that process has its lock and
 * waits for a disk. */
static int beside_a_locked_process(void)
{
    char path[96], maps[64], words[64];
    struct stat st;
    struct ibx_error err = {0};
    const pid_t locked = fork_bound();
    if (!locked)
        for (;;)
            pause();
    snprintf(path, sizeof(path), "%s/fifo", folder);
    snprintf(maps, sizeof(maps), "/proc/%d/maps", (int)locked);
    snprintf(words, sizeof(words), "%s (", maps);
    const bool hidden = !geteuid() && !unshare(CLONE_NEWNS) && !mkfifo(path, 0600) &&
                        !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
                        !mount(path, maps, NULL, MS_BIND, NULL);
    unlink(path);
    const int fd = open(memory, O_RDWR);
    if (!hidden)
        return CHILD_SKIPS;
    if (fd < 0 || fstat(fd, &st))
        return 2;
    struct ibx_guest_block block = {
        .id = "ram0", .fd = fd, .dev = st.st_dev, .ino = st.st_ino, .size = 4096};
    const struct ibx_guest_ram ram = {.blocks = &block, .count = 1};
    alarm(60);
    if (ibx_guest_ram_check_unused(&ram, &err) != -ETIMEDOUT)
        return 3;
    return strstr(err.message, words) ? 0 : 4;
}

static void test_a_process_whose_maps_cannot_be_read(NO_STATE)
{
    passes_in_child(beside_a_locked_process);
}

/* Locks it as QEMU locks an image that it writes to. */
static int locked_image(const char *path)
{
    const int fd = open(path, O_RDWR);
    struct flock writer = {.l_type = F_RDLCK, .l_start = 101, .l_len = 1},
                 alone = {.l_type = F_RDLCK, .l_start = 201, .l_len = 1};
    return fd < 0 || fcntl(fd, F_OFD_SETLK, &writer) || fcntl(fd, F_OFD_SETLK, &alone) ? -1 : fd;
}

/* That an image is still locked, or whether it ever was, is not taken for "no" by a tool that has
 * no descriptor left for the look. */
static int without_a_descriptor(void)
{
    char path[PATH_MAX];
    struct ibx_error err = {0};
    struct ibx_images images, again;
    struct rlimit before, few;
    const int image = locked_image(memory);
    if (image < 0 || ibx_preflight_find_images(getpid(), false, &images, &err) ||
        images.count != 1 || ibx_preflight_keeps_image(getpid(), &images, path, &err) != 1 ||
        strcmp(path, memory) != 0)
        return 2;
    const int next = dup(image);
    close(next);
    if (getrlimit(RLIMIT_NOFILE, &before))
        return 3;
    few = (struct rlimit){.rlim_cur = (rlim_t)next + 1, .rlim_max = before.rlim_max};
    for (unsigned i = 0; i < 2; i++, few.rlim_cur--) { /* for the list of them alone, for none */
        setrlimit(RLIMIT_NOFILE, &few);
        const int found = ibx_preflight_find_images(getpid(), false, &again, &err);
        const int kept = ibx_preflight_keeps_image(getpid(), &images, path, &err);
        setrlimit(RLIMIT_NOFILE, &before);
        if (found != -EMFILE || kept != -EMFILE || !strstr(err.message, "which images QEMU"))
            return 4;
    }
    return 0;
}

static void test_locks_that_cannot_be_read(NO_STATE)
{
    passes_in_child(without_a_descriptor);
}

static int begin(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(memory, sizeof(memory), "%s/ram", folder);
    snprintf(place, sizeof(place), "%s/place", folder);
    assert_int_equal(mkdir(place, 0700), 0);
    return close(open(memory, O_RDWR | O_CREAT | O_EXCL, 0600));
}

static int end(void **state)
{
    (void)state;
    return rmdir(place) || unlink(memory) || rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_system_that_is_silent),
        cmocka_unit_test(test_a_process_whose_maps_cannot_be_read),
        cmocka_unit_test(test_locks_that_cannot_be_read),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
