/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Replaces the file that a block of guest RAM is in, by three system calls that QEMU is made to
 * call (ptrace, inject.c). The block's address in QEMU does not change, so nothing in QEMU
 * notices. */
#include "migrate/qemu/qemu_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAME    "ibx-base" /* under which QEMU gets the descriptor */
#define FDS_MAX 8u         /* of one file in QEMU */

/* QEMU's descriptors of one file. */
struct found {
    uint64_t dev, ino;
    int fds[FDS_MAX];
    unsigned count;
    bool looked; /* at one at least */
};

static bool collect(void *context, int number, const char *path)
{
    struct found *found = context;
    struct stat st;
    found->looked = true;
    if (!ibx_proc_stat(path, &st) && st.st_dev == found->dev && st.st_ino == found->ino)
        found->fds[found->count++] = number;
    return found->count == FDS_MAX;
}

/* Finds them in a QEMU whose descriptors this process may read. One that it may not read all the
 * same, even as root, is of another file, such as one on another user's FUSE. */
static int find_descriptors(pid_t pid, struct found *found)
{
    const int rc = ibx_proc_find_descriptor(pid, collect, found);
    const bool of_another = found->looked && (rc == -EACCES || rc == -EPERM);
    return rc == -ENOENT || of_another ? 0 : rc;
}

static int not_shown(pid_t pid, int rc, struct ibx_error *err)
{
    return ibx_error_set(err, rc,
                         "/proc does not show how QEMU (process %d) has its memory mapped and "
                         "open: %s%s",
                         (int)pid, strerror(-rc), ibx_proc_remedy(rc));
}

/* A system call that QEMU is to make. */
struct call {
    const char *what; /* for messages: "cannot ..." */
    long number;
    uint64_t arguments[6];
    uint64_t expected; /* its result */
};

static int inject(pid_t pid, const struct call *call, uint64_t deadline_ns, struct ibx_error *err)
{
    int64_t result;
    int rc = ibx_inject_syscall(pid, call->number, call->arguments, &result, deadline_ns, err);
    if (rc || (uint64_t)result == call->expected)
        return rc;
    const bool failed = result < 0 && result >= -4095;
    return ibx_error_set_theirs(
        err, failed ? (int)result : -EIO, "QEMU (process %d) cannot %s: %s", (int)pid, call->what,
        failed ? strerror((int)-result) : "the kernel answers something else");
}

/* The madvise(2) advice that QEMU has given for the memory at an address. A new mapping there has
 * to be given it again. */
struct advised {
    uint64_t address;
    int advice[2];
    unsigned count;
};

static bool advice_there(void *context, uint64_t start, uint64_t end, const char *flags)
{
    struct advised *advised = context;
    if (advised->address < start || advised->address >= end)
        return false;
    if (strstr(flags, " dd"))
        advised->advice[advised->count++] = MADV_DONTDUMP;
    if (strstr(flags, " dc"))
        advised->advice[advised->count++] = MADV_DONTFORK;
    return true;
}

static int replace(pid_t pid, const struct ibx_guest_block *block, int number, uint64_t deadline_ns,
                   struct ibx_error *err)
{
    struct advised advised = {.address = block->address};
    struct found found = {.dev = block->dev, .ino = block->ino};
    int rc = ibx_proc_find_flags(pid, advice_there, &advised);
    if (rc >= 0)
        rc = find_descriptors(pid, &found);
    if (rc < 0)
        return not_shown(pid, rc, err);
    const struct call map = {.what = "map the memory of the VM that returns",
                             .number = SYS_mmap,
                             .arguments = {block->address, block->size, PROT_READ | PROT_WRITE,
                                           MAP_SHARED | MAP_FIXED, (uint64_t)number, block->offset},
                             .expected = block->address};
    rc = inject(pid, &map, deadline_ns, err);
    for (unsigned i = 0; !rc && i < advised.count; i++) {
        const struct call advise = {
            .what = "advise on the memory of the VM that returns",
            .number = SYS_madvise,
            .arguments = {block->address, block->size, (uint64_t)advised.advice[i]}};
        rc = inject(pid, &advise, deadline_ns, err);
    }
    for (unsigned i = 0; !rc && i < found.count; i++) {
        const struct call copy = {
            .what = "open the memory of the VM that returns",
            .number = SYS_dup3,
            .arguments = {(uint64_t)number, (uint64_t)found.fds[i], O_CLOEXEC},
            .expected = (uint64_t)found.fds[i]};
        rc = inject(pid, &copy, deadline_ns, err);
    }
    return rc;
}

static int adopt(pid_t pid, struct ibx_guest_block *block, const struct ibx_guest_block *base,
                 struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    struct found found = {.dev = base->dev, .ino = base->ino};
    const int fd = fcntl(base->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return ibx_error_set(err, -errno, "no descriptor for guest RAM: %s", strerror(errno));
    int rc = ibx_qmp_getfd(qmp, NAME, base->fd, deadline_ns, err);
    const int looked = rc ? 0 : find_descriptors(pid, &found);
    if (looked < 0) /* otherwise the number of one */
        rc = not_shown(pid, looked, err);
    if (!rc && !found.count)
        rc = ibx_error_set(err, -ENOENT,
                           "QEMU (process %d) was given the file of guest RAM %s and does not have "
                           "it open",
                           (int)pid, block->id);
    if (!rc)
        rc = replace(pid, block, found.fds[0], deadline_ns, err);
    if (!rc)
        rc = ibx_qmp_execute(qmp, "closefd", json_pack("{s:s}", "fdname", NAME), NULL, deadline_ns,
                             err);
    if (rc) {
        close(fd);
        return rc;
    }
    close(block->fd);
    block->fd = fd;
    block->dev = base->dev;
    block->ino = base->ino;
    block->file = ibx_guest_file_hash(base->dev, base->ino);
    memcpy(block->path, base->path, sizeof(block->path));
    block->named = true;
    return 0;
}

int ibx_guest_ram_adoptable(const struct ibx_guest_ram *ram, const struct ibx_guest_ram *base,
                            struct ibx_error *err)
{
    for (size_t i = 0; i < ram->count; i++) {
        const struct ibx_guest_block *to = &ram->blocks[i];
        const struct ibx_guest_block *from = i < base->count ? &base->blocks[i] : NULL;
        if (!from || strcmp(from->id, to->id) || from->size != to->size ||
            from->page_size != to->page_size || from->offset != to->offset)
            return ibx_error_set(err, -EINVAL,
                                 "guest RAM %s of this QEMU (process %d) is not as it was in the "
                                 "QEMU that the VM was borrowed from: start this one with the same "
                                 "memory backends",
                                 to->id, (int)ram->pid);
        if (from->dev != to->dev)
            return ibx_error_set(err, -EXDEV,
                                 "guest RAM %s of this QEMU is in %s, and that of the borrowed VM "
                                 "in another file system (%s): start this QEMU with a mem-path "
                                 "there",
                                 to->id, to->path, from->path);
    }
    return 0;
}

int ibx_guest_ram_adopt(struct ibx_guest_ram *ram, const struct ibx_guest_ram *base,
                        struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    int rc = ibx_guest_ram_adoptable(ram, base, err);
    for (size_t i = 0; !rc && i < ram->count; i++)
        rc = adopt(ram->pid, &ram->blocks[i], &base->blocks[i], qmp, deadline_ns, err);
    return rc;
}
