/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/qemu/qemu_internal.h"
#include "migrate/qemu/registers.h"

#include "userfaultfd/fault.h"

#include "common/clock.h"
#include "common/rights.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAAu, 0x00u) /* Linux 6.1 */
#endif
#define UFFD_FLAGS     (O_CLOEXEC | O_NONBLOCK)
#define DEVICE         "/dev/userfaultfd"
#define DEVICE_NAME    "ibx-userfaultfd" /* under which QEMU gets the device's descriptor */
#define SYSCTL         "/proc/sys/vm/unprivileged_userfaultfd"
#define ANON_NAME      "anon_inode:[userfaultfd]"
#define CAP_SYS_PTRACE 19
#define SMALL_PAGE     4096u

/* ------------------------------------------------------------ what QEMU may do */

static bool unprivileged_may(void)
{
    int fd = open(SYSCTL, O_RDONLY | O_CLOEXEC);
    char value = '0';
    bool yes = fd >= 0 && read(fd, &value, 1) == 1 && value == '1';
    if (fd >= 0)
        close(fd);
    return yes;
}

static int open_device(struct ibx_error *err)
{
    int fd = open(DEVICE, O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        return fd;
    return ibx_error_set(
        err, -errno,
        "QEMU is not allowed to create a userfaultfd, and " DEVICE " cannot be opened "
        "for it: %s; run this tool as the host's root on Linux 6.1 or later (in a container "
        "started with --device " DEVICE "), give its user access to " DEVICE
        ", or set sysctl vm.unprivileged_userfaultfd=1 and start QEMU without "
        "-sandbox",
        strerror(errno));
}

int ibx_uffd_possible(pid_t pid, enum ibx_uffd_way *way, struct ibx_error *err)
{
    if (!ibx_call_instruction.length)
        return ibx_inject_syscall(pid, 0, NULL, NULL, 0, err); /* sets the reason */
    if (ibx_fault_uffd_absent())
        return ibx_error_set(
            err, -ENOSYS, "no userfaultfd can be made in QEMU (process %d): " IBX_FAULT_UFFD_ABSENT,
            (int)pid);
    unsigned long long capabilities, filter;
    int rc = ibx_process_status(pid, "CapEff:", 16, &capabilities, err);
    if (!rc)
        rc = ibx_process_status(pid, "Seccomp:", 10, &filter, err);
    if (rc)
        return rc;
    /* A seccomp filter (-sandbox on) may kill QEMU for userfaultfd(2), but not for an ioctl. A
     * userfaultfd that also gets faults of the kernel needs the host's CAP_SYS_PTRACE, which root
     * of a container's own users has not, or the sysctl. */
    const bool capable =
        capabilities >> CAP_SYS_PTRACE & 1 && ibx_process_in_first_user_namespace(pid);
    const bool direct = !filter && (capable || unprivileged_may());
    if (!direct) {
        int device = open_device(err);
        if (device < 0)
            return device;
        close(device);
    }
    if (way)
        *way = direct ? IBX_UFFD_SYSCALL : IBX_UFFD_DEVICE;
    return 0;
}

/* ------------------------------------------------------------ QEMU's descriptors */

/* A descriptor to look for, by the name of its anonymous inode, or else by a device number. */
struct wanted {
    const char *link;
    dev_t rdev;
    int number, count; /* the last descriptor found, and how many were found */
};

static bool matches(const char *path, const struct wanted *wanted)
{
    struct stat st;
    if (!wanted->link)
        return !ibx_proc_stat(path, &st) && S_ISCHR(st.st_mode) && st.st_rdev == wanted->rdev;
    char link[64];
    ssize_t n = readlink(path, link, sizeof(link));
    return n == (ssize_t)strlen(wanted->link) && !memcmp(link, wanted->link, (size_t)n);
}

static bool count_those(void *context, int number, const char *path)
{
    struct wanted *wanted = context;
    if (matches(path, wanted)) {
        wanted->number = number;
        wanted->count++;
    }
    return false;
}

/* Finds such a descriptor of `pid` and returns its number. -ENOENT: there is none; -ENOTUNIQ: there
 * are several; others: there is none among those that may be read. */
static int find_descriptor(pid_t pid, struct wanted wanted)
{
    const int rc = ibx_proc_find_descriptor(pid, count_those, &wanted);
    return !wanted.count ? rc : wanted.count > 1 ? -ENOTUNIQ : wanted.number;
}

/* Whether descriptor `remote` of the process is a userfaultfd: 0; -ENOENT: it is not; others: it
 * may not be read. */
static int check_uffd(pid_t pid, int remote)
{
    char path[64], fds[32];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, remote);
    snprintf(fds, sizeof(fds), "/proc/%d/fd", (int)pid);
    errno = 0;
    if (matches(path, &(struct wanted){.link = ANON_NAME}))
        return 0;
    if (errno != ENOENT)
        return errno ? -errno : -ENOENT;
    /* Perhaps it is the process that does not exist, or that /proc hides. */
    const int rc = access(fds, F_OK) ? ibx_proc_error(pid, errno) : -ENOENT;
    return rc == -ESRCH ? -ENOENT : rc;
}

/* ------------------------------------------------------------ making */

/* Runs a system call in QEMU that returns a new descriptor. */
static int inject_new(pid_t pid, long number, const uint64_t arguments[6], struct ibx_uffd *uffd,
                      uint64_t deadline_ns, struct ibx_error *err)
{
    int64_t result;
    int rc = ibx_inject_syscall(pid, number, arguments, &result, deadline_ns, err);
    if (rc)
        return rc;
    if (result < 0 || result > INT_MAX)
        return ibx_error_set(err, result < -4095 ? -EIO : (int)result,
                             "QEMU (process %d) is not allowed to create a userfaultfd: %s%s",
                             (int)pid, strerror((int)-result),
                             result == -EACCES
                                 ? "; where QEMU is confined, as in a security module's policy, "
                                   "allow it a userfaultfd (SELinux: class anon_inode)"
                                 : "");
    uffd->remote = (int)result;
    return 0;
}

static int make_by_syscall(struct ibx_uffd *uffd, uint64_t deadline_ns, struct ibx_error *err)
{
    const uint64_t arguments[6] = {UFFD_FLAGS};
    return inject_new(uffd->pid, SYS_userfaultfd, arguments, uffd, deadline_ns, err);
}

/* QEMU gets the open device, makes a userfaultfd with it and gives the device back. */
static int make_by_device(struct ibx_qmp *qmp, struct ibx_uffd *uffd, uint64_t deadline_ns,
                          struct ibx_error *err)
{
    if (!qmp)
        return ibx_error_set(err, -EINVAL, DEVICE " can be passed to QEMU over QMP only");
    struct stat st;
    int device = open_device(err);
    if (device < 0)
        return device;
    int rc = fstat(device, &st)
                 ? ibx_error_set(err, -errno, "cannot look at " DEVICE ": %s", strerror(errno))
                 : ibx_qmp_getfd(qmp, DEVICE_NAME, device, deadline_ns, err);
    close(device);
    if (rc)
        return rc;
    int number = find_descriptor(uffd->pid, (struct wanted){.rdev = st.st_rdev});
    if (number < 0) {
        rc = ibx_error_set(err, number,
                           "cannot find " DEVICE " among the descriptors of QEMU "
                           "(process %d): %s",
                           (int)uffd->pid, strerror(-number));
    } else {
        const uint64_t arguments[6] = {(uint64_t)number, (unsigned)USERFAULTFD_IOC_NEW, UFFD_FLAGS};
        rc = inject_new(uffd->pid, SYS_ioctl, arguments, uffd, deadline_ns, err);
    }
    /* If this fails, QEMU keeps the device, which does no harm. */
    ibx_qmp_execute(qmp, "closefd", json_pack("{s:s}", "fdname", DEVICE_NAME), NULL, deadline_ns,
                    NULL);
    return rc;
}

int ibx_uffd_make(pid_t pid, struct ibx_qmp *qmp, enum ibx_uffd_way way, struct ibx_uffd *uffd,
                  uint64_t deadline_ns, struct ibx_error *err)
{
    struct ibx_uffd made = {.pid = pid, .fd = -1, .remote = -1, .way = way};
    int rc = way == IBX_UFFD_ANY ? ibx_uffd_possible(pid, &made.way, err) : 0;
    if (rc)
        return rc;
    rc = made.way == IBX_UFFD_SYSCALL ? make_by_syscall(&made, deadline_ns, err)
                                      : make_by_device(qmp, &made, deadline_ns, err);
    /* For instance, a security module forbids the system call; /proc does not show its rules. */
    if ((rc == -EPERM || rc == -EACCES) && way == IBX_UFFD_ANY && made.way == IBX_UFFD_SYSCALL &&
        qmp) {
        made.way = IBX_UFFD_DEVICE;
        rc = make_by_device(qmp, &made, deadline_ns, err);
    }
    if (rc)
        return rc;
    rc = ibx_fault_uffd_take(pid, made.remote, &made.fd, err);
    if (rc) {
        const uint64_t arguments[6] = {(uint64_t)made.remote};
        int64_t ignored;
        ibx_inject_syscall(pid, SYS_close, arguments, &ignored, ibx_deadline_in_ms(1000), NULL);
        return rc;
    }
    *uffd = made;
    return 0;
}

int ibx_uffd_take(pid_t pid, int remote, struct ibx_uffd *uffd, struct ibx_error *err)
{
    struct ibx_uffd taken = {.pid = pid, .remote = remote};
    const int gone = remote < 0 ? 0 : check_uffd(pid, remote);
    if (remote < 0)
        taken.remote = find_descriptor(pid, (struct wanted){.link = ANON_NAME});
    else if (gone)
        taken.remote = gone;
    if (taken.remote == -ENOTUNIQ)
        return ibx_error_set(err, -ENOTUNIQ,
                             "QEMU (process %d) has several userfaultfds: is its "
                             "own post-copy under way?",
                             (int)pid);
    if (taken.remote == -ENOENT)
        return ibx_error_set(err, -ENOENT,
                             "QEMU (process %d) has no userfaultfd: it is not receiving a VM from "
                             "this tool",
                             (int)pid);
    if (taken.remote < 0)
        return ibx_error_set(
            err, taken.remote,
            "/proc does not show whether QEMU (process %d) has a userfaultfd: %s%s", (int)pid,
            strerror(-taken.remote), ibx_proc_remedy(taken.remote));
    int rc = ibx_fault_uffd_take(pid, taken.remote, &taken.fd, err);
    if (!rc)
        *uffd = taken;
    return rc;
}

/* Whether the mapping is registered for missing ("um") or minor ("ui") faults. */
static bool awaits_pages(void *context, uint64_t start, uint64_t end, const char *flags)
{
    (void)context, (void)start, (void)end;
    return strstr(flags, " um") || strstr(flags, " ui");
}

int ibx_uffd_awaits_pages(pid_t pid, struct ibx_error *err)
{
    int rc = find_descriptor(pid, (struct wanted){.link = ANON_NAME});
    if (rc == -ENOENT)
        return 0;
    if (rc >= 0 || rc == -ENOTUNIQ)
        rc = ibx_proc_find_flags(pid, awaits_pages, NULL);
    if (rc >= 0)
        return rc;
    return ibx_error_set(
        err, rc,
        "/proc does not show whether pages of this VM have yet to come to QEMU (process %d): %s%s",
        (int)pid, strerror(-rc), ibx_proc_remedy(rc));
}

int ibx_uffd_close_in_qemu(struct ibx_uffd *uffd, uint64_t deadline_ns, struct ibx_error *err)
{
    const int gone = check_uffd(uffd->pid, uffd->remote);
    if (gone)
        return ibx_error_set(err, gone == -ENOENT ? -EBADF : gone,
                             "descriptor %d of QEMU (process %d) is not%s the userfaultfd any "
                             "more%s",
                             uffd->remote, (int)uffd->pid, gone == -ENOENT ? "" : " to be seen as",
                             ibx_proc_remedy(gone));
    const uint64_t arguments[6] = {(uint64_t)uffd->remote};
    int64_t result;
    int rc = ibx_inject_syscall(uffd->pid, SYS_close, arguments, &result, deadline_ns, err);
    if (rc)
        return rc;
    if (result)
        return ibx_error_set(err, -EIO, "QEMU (process %d) could not close its userfaultfd: %s",
                             (int)uffd->pid, strerror((int)-result));
    close(uffd->fd);
    uffd->fd = uffd->remote = -1;
    return 0;
}

static int advise(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                  bool allowed, uint64_t deadline_ns, struct ibx_error *err)
{
    const uint64_t arguments[6] = {block->address, block->size,
                                   allowed ? MADV_HUGEPAGE : MADV_NOHUGEPAGE};
    int64_t result = 0;
    int rc = ibx_inject_syscall(ram->pid, SYS_madvise, arguments, &result, deadline_ns, err);
    if (rc || !result || result == -EINVAL) /* -EINVAL: a kernel without transparent huge pages */
        return rc;
    if (allowed && result == -ENOMEM) /* QEMU has unmapped it since */
        return 0;
    return ibx_error_set(err, result < -4095 ? -EIO : (int)result,
                         "huge pages cannot be kept from guest RAM %s in QEMU (process %d): %s",
                         block->id, (int)ram->pid, strerror((int)-result));
}

int ibx_guest_ram_huge_pages(const struct ibx_guest_ram *ram, bool allowed, uint64_t deadline_ns,
                             struct ibx_error *err)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < ram->count; i++) {
        const struct ibx_guest_block *block = &ram->blocks[i];
        if (block->shared && block->page_size <= SMALL_PAGE)
            rc = advise(ram, block, allowed, deadline_ns, err);
    }
    return rc;
}
