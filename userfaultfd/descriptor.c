/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* userfaultfd descriptors: open, take from another process, enable, register ranges. */
#include "userfaultfd/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

#define SYSCTL "/proc/sys/vm/unprivileged_userfaultfd"

#ifdef UFFD_FEATURE_EXACT_ADDRESS
#define EXACT_ADDRESS UFFD_FEATURE_EXACT_ADDRESS
#else
#define EXACT_ADDRESS (1ull << 11)
#endif

static const char *const feature_names[] = {
    "PAGEFAULT_FLAG_WP",  "EVENT_FORK",      "EVENT_REMAP", "EVENT_REMOVE",
    "MISSING_HUGETLBFS",  "MISSING_SHMEM",   "EVENT_UNMAP", "SIGBUS",
    "THREAD_ID",          "MINOR_HUGETLBFS", "MINOR_SHMEM", "EXACT_ADDRESS",
    "WP_HUGETLBFS_SHMEM", "WP_UNPOPULATED",  "POISON",      "WP_ASYNC"};

bool ibx_fault_uffd_absent(void)
{
    const int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK), code = errno;
    if (fd >= 0)
        close(fd);
    return fd < 0 && code == ENOSYS && access(SYSCTL, F_OK);
}

/* Opens a userfaultfd by userfaultfd(2), or where that is not permitted, by /dev/userfaultfd
 * (Linux 6.1), which needs only the permissions of that file. */
static int raw_open(struct ibx_error *err)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0)
        return fd;
    int code = errno;
    int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    if (device >= 0) {
        fd = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
        close(device);
        if (fd >= 0)
            return fd;
    }
    if (code == ENOSYS && ibx_fault_uffd_absent())
        return ibx_error_set(err, -code, "userfaultfd: %s; " IBX_FAULT_UFFD_ABSENT, strerror(code));
    if (code == ENOSYS)
        return ibx_error_set(err, -code,
                             "userfaultfd: %s, by a seccomp profile, since this kernel has it; "
                             "allow userfaultfd(2) there, or start the container with --device "
                             "/dev/userfaultfd",
                             strerror(code));
    return ibx_error_set(err, -code,
                         "userfaultfd: %s; run as root, or give this user read and write access to "
                         "/dev/userfaultfd, or set vm.unprivileged_userfaultfd to 1",
                         strerror(code));
}

static int features_have(uint64_t *features, struct ibx_error *err)
{
    int fd = raw_open(err);
    if (fd < 0)
        return fd;
    struct uffdio_api api = {.api = UFFD_API};
    int rc = ioctl(fd, UFFDIO_API, &api) ? -errno : 0;
    close(fd);
    if (rc)
        return ibx_error_set(err, rc, "userfaultfd handshake (UFFDIO_API): %s", strerror(-rc));
    *features = api.features;
    return 0;
}

static int features_lack(uint64_t wanted, struct ibx_error *err)
{
    uint64_t have = 0;
    int rc = features_have(&have, err);
    if (rc)
        return rc;
    uint64_t lack = wanted & ~have;
    if (!lack)
        return ibx_error_set(err, -EINVAL,
                             "this userfaultfd was enabled before: UFFDIO_API works once only");
    unsigned bit = (unsigned)__builtin_ctzll(lack);
    const char *name =
        bit < sizeof feature_names / sizeof *feature_names ? feature_names[bit] : "unknown";
    return ibx_error_set(
        err, -EOPNOTSUPP,
        "this kernel's userfaultfd lacks feature %s (0x%llx of 0x%llx); do without "
        "it, or use Linux 6.1 or later (6.10 on aarch64)",
        name, (unsigned long long)lack, (unsigned long long)wanted);
}

int ibx_fault_uffd_enable(int uffd, uint64_t features, struct ibx_error *err)
{
    /* Linux 5.18 can report at which address in a huge page a fault occurred. */
    struct uffdio_api api = {.api = UFFD_API, .features = features | EXACT_ADDRESS};
    if (!ioctl(uffd, UFFDIO_API, &api))
        return 0;
    if (errno == EINVAL) {
        api = (struct uffdio_api){.api = UFFD_API, .features = features};
        if (!ioctl(uffd, UFFDIO_API, &api))
            return 0;
    }
    int code = errno;
    if (code == EINVAL)
        return features_lack(features, err);
    if (code == EPERM)
        return ibx_error_set(err, -code,
                             "userfaultfd event FORK needs CAP_SYS_PTRACE; ask without it");
    return ibx_error_set(err, -code, "userfaultfd handshake (UFFDIO_API) on descriptor %d: %s",
                         uffd, strerror(code));
}

int ibx_fault_uffd_open(uint64_t features, int *uffd, struct ibx_error *err)
{
    int fd = raw_open(err);
    if (fd < 0)
        return fd;
    int rc = ibx_fault_uffd_enable(fd, features, err);
    if (rc) {
        close(fd);
        return rc;
    }
    *uffd = fd;
    return 0;
}

/* The kernel allows both calls for a process itself. */
int ibx_fault_check_take(struct ibx_error *err)
{
    const char *call = "pidfd_open";
    int process = (int)syscall(SYS_pidfd_open, getpid(), 0), taken = -1, code = errno;
    if (process >= 0) {
        call = "pidfd_getfd";
        taken = (int)syscall(SYS_pidfd_getfd, process, process, 0);
        code = errno;
        close(process);
    }
    if (taken >= 0)
        close(taken);
    if (taken >= 0 || (code != EPERM && code != EACCES && code != ENOSYS))
        return 0;
    if (prctl(PR_GET_SECCOMP) > 0)
        return ibx_error_set(err, -code,
                             "a seccomp profile denies %s (%s) to this process: allow it there "
                             "(docker run --cap-add SYS_PTRACE does)",
                             call, strerror(code));
    if (code == ENOSYS)
        return ibx_error_set(err, -code, "this kernel has no %s (%s): Linux 5.6 or later is needed",
                             call, strerror(code));
    return ibx_error_set(err, -code,
                         "this process may not call %s (%s): allow it where processes are "
                         "confined, as in a security module's policy",
                         call, strerror(code));
}

int ibx_fault_uffd_take(pid_t pid, int fd, int *uffd, struct ibx_error *err)
{
    int process = (int)syscall(SYS_pidfd_open, pid, 0);
    int taken = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, fd, 0); /* CLOEXEC */
    int code = errno;
    if (process >= 0)
        close(process);
    if (taken < 0 && ibx_fault_check_take(err))
        return -code;
    if (process < 0)
        return ibx_error_set(err, -code, "process %d: %s", (int)pid, strerror(code));
    if (taken < 0)
        return ibx_error_set(
            err, -code,
            "descriptor %d of process %d: %s; this needs the right to trace it: the "
            "same user and kernel.yama.ptrace_scope 0, or CAP_SYS_PTRACE",
            fd, (int)pid, strerror(code));
    char path[64], name[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", taken);
    ssize_t n = readlink(path, name, sizeof name - 1);
    if (n < 0 || strncmp(name, "anon_inode:[userfaultfd]", 24)) {
        close(taken);
        return ibx_error_set(err, -EINVAL, "descriptor %d of process %d is %s, not a userfaultfd",
                             fd, (int)pid, n < 0 ? "unreadable" : name);
    }
    *uffd = taken;
    return 0;
}

int ibx_fault_register(int uffd, const struct ibx_fault_range *range, struct ibx_error *err)
{
    struct uffdio_register wish = {.range = {range->start, range->length},
                                   .mode = UFFDIO_REGISTER_MODE_MISSING};
    uint64_t need = 1ull << _UFFDIO_WAKE | 1ull << _UFFDIO_COPY;
    if (range->alias) {
        wish.mode |= UFFDIO_REGISTER_MODE_MINOR;
        need |= 1ull << _UFFDIO_CONTINUE;
    }
    if (range->protect) {
        wish.mode |= UFFDIO_REGISTER_MODE_WP;
        need |= 1ull << _UFFDIO_WRITEPROTECT;
    }
    if (ioctl(uffd, UFFDIO_REGISTER, &wish)) {
        int code = errno;
        const char *why = code == EINVAL ? "; it must be page-aligned anonymous, shared or hugetlb "
                                           "memory, and minor mode wants shared memory"
                          : code == EBUSY ? "; another userfaultfd holds it"
                                          : "";
        return ibx_error_set(err, -code, "registering 0x%llx bytes at 0x%llx: %s%s",
                             (unsigned long long)range->length, (unsigned long long)range->start,
                             strerror(code), why);
    }
    if ((wish.ioctls & need) == need)
        return 0;
    ioctl(uffd, UFFDIO_UNREGISTER, &wish.range);
    return ibx_error_set(err, -EOPNOTSUPP,
                         "the kernel cannot fill the 0x%llx bytes at 0x%llx through userfaultfd "
                         "(operations 0x%llx, wanted 0x%llx)",
                         (unsigned long long)range->length, (unsigned long long)range->start,
                         (unsigned long long)wish.ioctls, (unsigned long long)need);
}

int ibx_fault_unregister(int uffd, const struct ibx_fault_range *range, struct ibx_error *err)
{
    struct uffdio_range where = {range->start, range->length};
    if (!ioctl(uffd, UFFDIO_UNREGISTER, &where))
        return 0;
    return ibx_error_set(err, -errno, "unregistering 0x%llx bytes at 0x%llx: %s",
                         (unsigned long long)range->length, (unsigned long long)range->start,
                         strerror(errno));
}
