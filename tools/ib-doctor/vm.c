/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What ib-migrate needs: KVM, QEMU, userfaultfd, and what the kernel's userfaultfd can do. */
#include "tools/ib-doctor/ib-doctor.h"

#include "common/rights.h"
#include "userfaultfd/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <linux/capability.h>
#include <linux/userfaultfd.h>

#define DEVICE "/dev/userfaultfd"

/* From <linux/userfaultfd.h>, which may be too old to have them. */
#define MAKE_BY_DEVICE  _IO(0xAA, 0x00)
#define USER_MODE_ONLY  1
#define MINOR_HUGETLBFS (1ull << 9)
#define MINOR_SHMEM     (1ull << 10)
#define WP_ASYNC        (1ull << 15)

/* ------------------------------------------------------------------ KVM, QEMU */

#ifdef __aarch64__
#define PROGRAM "qemu-system-aarch64"
#define PACKAGE "qemu-system-arm"
#define FOR_KVM                                                                                    \
    "with Linux that the firmware starts at EL2, or nested virtualization of the outer VM"
#else
#define PROGRAM "qemu-system-x86_64"
#define PACKAGE "qemu-system-x86"
#define FOR_KVM                                                                                    \
    "modprobe kvm_intel or kvm_amd, with virtualization on in the firmware or the outer VM"
#endif

static void check_kvm(void)
{
    const char *path = ibx_doctor_path("/dev/kvm");
    const bool there = ibx_doctor_exists("/dev/kvm");
    int fd = ibx_doctor_root()[0] ? -1 : open(path, O_RDWR | O_CLOEXEC);
    const int code = errno;
    if (fd >= 0)
        close(fd);
    if (fd >= 0 || (there && ibx_doctor_root()[0]))
        ibx_doctor_add("vm", "KVM", DOCTOR_OK, NULL, fd >= 0 ? "usable" : "there");
    else if (there && code == EACCES)
        ibx_doctor_add("vm", "KVM", DOCTOR_LIMITED,
                       "for a QEMU of this user: adduser USER kvm, and a new login", "/dev/kvm: %s",
                       strerror(code));
    else
        ibx_doctor_add("vm", "KVM", DOCTOR_LIMITED,
                       "VMs run in emulation (-accel tcg), many times slower: " FOR_KVM, "%s",
                       there ? strerror(code) : "there is no /dev/kvm");
}

/* Asks the first QEMU that is found for its version: "QEMU emulator version 7.2.22 (Debian ...)".
 */
static const char *ask_qemu(char *answer, int size)
{
    static const char *const programs[] = {PROGRAM, "qemu-kvm", "/usr/libexec/qemu-kvm"};
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
        char command[80];
        snprintf(command, sizeof(command), "%s --version 2>/dev/null </dev/null", programs[i]);
        FILE *from = popen(command, "re");
        const bool found = from && fgets(answer, size, from);
        if (from)
            pclose(from);
        if (found)
            return programs[i];
    }
    return NULL;
}

static void check_qemu(void)
{
    char answer[160];
    unsigned major, minor;
    const char *program = ask_qemu(answer, sizeof(answer));
    const char *version = program ? strstr(answer, "version ") : NULL;
    if (!program)
        ibx_doctor_add("vm", "QEMU", DOCTOR_MISSING,
                       "for ib-migrate: apt install " PACKAGE ", or QEMU 4.0 or later",
                       PROGRAM " is not in the PATH");
    else if (!version || sscanf(version, "version %u.%u", &major, &minor) != 2)
        ibx_doctor_add("vm", "QEMU", DOCTOR_LIMITED, "ib-migrate needs QEMU 4.0 or later",
                       "%s does not tell its version", program);
    else
        ibx_doctor_add("vm", "QEMU", major < 4 ? DOCTOR_MISSING : DOCTOR_OK,
                       "ib-migrate needs QEMU 4.0 or later", "%u.%u, %s", major, minor, program);
}

/* ---------------------------------------------------------------- userfaultfd */

static int open_userfaultfd(int flags)
{
    return (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | flags);
}

static int open_by_device(void)
{
    int device = open(DEVICE, O_RDWR | O_CLOEXEC);
    if (device < 0)
        return -1;
    int fd = ioctl(device, MAKE_BY_DEVICE, O_CLOEXEC | O_NONBLOCK);
    close(device);
    return fd;
}

#define BY_PROFILE                                                                                 \
    ", so a seccomp profile forbids it, as a container's does: allow userfaultfd(2) there, or "    \
    "start the container with --device " DEVICE
#define NO_RIGHT                                                                                   \
    "ib-migrate serves page faults of the kernel, too (KVM, reads of a disk): run it as root, "    \
    "give its user access to " DEVICE ", or sysctl vm.unprivileged_userfaultfd=1"

/* Reports whether userfaultfd also gets faults of the kernel, which are needed: KVM touches missing
 * pages for a vCPU, and read(2) does into guest memory. */
static void add_userfaultfd(bool kernel, bool programs, int code)
{
    if (kernel) {
        ibx_doctor_add("vm", "userfaultfd", DOCTOR_OK, NULL,
                       "for page faults of programs and of the kernel");
        return;
    }
    /* Without a seccomp profile the kernel does not refuse a process with CAP_SYS_PTRACE, and never
     * answers that there is no such call. */
    const bool by_profile =
        !programs && (code == ENOSYS || (code == EPERM && ibx_capable(CAP_SYS_PTRACE)));
    ibx_doctor_add("vm", "userfaultfd", programs ? DOCTOR_LIMITED : DOCTOR_MISSING,
                   !by_profile      ? NO_RIGHT
                   : code == ENOSYS ? "this kernel has it" BY_PROFILE
                                    : "it is root's" BY_PROFILE,
                   "%s (vm.unprivileged_userfaultfd is %lld)",
                   programs ? "for page faults of programs only" : strerror(code),
                   ibx_doctor_read_number("/proc/sys/vm/unprivileged_userfaultfd", -1));
}

static void check_device(bool opens, int code)
{
    ibx_doctor_add("vm", DEVICE, opens ? DOCTOR_OK : DOCTOR_LIMITED,
                   code == ENOENT
                       ? "a QEMU with -sandbox on, or of another user than root, gets it from "
                         "ib-migrate: Linux 6.1 or later has it; in a container, --device " DEVICE
                       : "ib-migrate gives it to a QEMU with -sandbox on, or of another user than "
                         "root: run ib-migrate as root, or chgrp and chmod it for its user",
                   "%s", opens ? "usable" : strerror(code));
}

/* The features that UFFDIO_API reports; 0: there is no descriptor. */
static uint64_t features_of(int fd)
{
    struct uffdio_api api = {.api = UFFD_API};
    return fd >= 0 && !ioctl(fd, UFFDIO_API, &api) ? api.features : 0;
}

static void check_features(uint64_t features)
{
    const bool huge = features & MINOR_HUGETLBFS, shared = features & MINOR_SHMEM;
    ibx_doctor_add(
        "vm", "--warm, borrow", features & WP_ASYNC ? DOCTOR_OK : DOCTOR_LIMITED,
        "Linux 6.7 or later tells which pages a VM writes; borrow needs that, and "
        "without it send --warm fetches all pages after the stop",
        "%s", features & WP_ASYNC ? "supported by this kernel" : "not supported by this kernel");
    ibx_doctor_add(
        "vm", "--minor", shared ? DOCTOR_OK : DOCTOR_LIMITED,
        "Linux 5.14 or later supports it, 5.13 for huge pages; without it each page is copied "
        "once more",
        "%s",
        shared && huge ? "supported by this kernel, in /dev/shm and in huge pages"
        : shared       ? "supported by this kernel, in /dev/shm"
        : huge         ? "supported by this kernel, in huge pages only"
                       : "not supported by this kernel");
}

static void check_userfaultfd(void)
{
    if (ibx_fault_uffd_absent()) {
        ibx_doctor_add("vm", "userfaultfd", DOCTOR_MISSING,
                       "no VM can be received, cloned or restored here: " IBX_FAULT_UFFD_ABSENT,
                       "not in this kernel");
        return;
    }
    const int fd = open_userfaultfd(0), code = errno;
    const int by_device = open_by_device(), device_code = errno;
    const int users = fd < 0 ? open_userfaultfd(USER_MODE_ONLY) : -1;
    add_userfaultfd(fd >= 0 || by_device >= 0, users >= 0, code);
    check_device(by_device >= 0, device_code);
    if (fd >= 0 || by_device >= 0 || users >= 0)
        check_features(features_of(fd >= 0 ? fd : by_device >= 0 ? by_device : users));
    const int all[] = {fd, by_device, users};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] >= 0)
            close(all[i]);
}

/* Traces a waiting child, which every process may do. 0, or the errno if something forbids it to
 * all processes, as a container's seccomp profile does. */
static int trace_child(void)
{
    int ends[2], code = 0;
    if (pipe2(ends, O_CLOEXEC))
        return errno;
    const pid_t child = fork();
    if (!child) {
        char byte;
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) < 0);
    }
    if (child < 0 || ptrace(PTRACE_SEIZE, child, NULL, NULL))
        code = errno;
    close(ends[0]);
    close(ends[1]);
    if (child > 0)
        waitpid(child, NULL, __WALL);
    return code;
}

#define WHAT_FOR "ib-migrate has QEMU make a userfaultfd by ptrace: "

/* Checks ptrace(2), by which ib-migrate has a QEMU make a userfaultfd; reading QEMU's files in
 * /proc takes the same right. With a Yama scope of 2, even tracing a child needs CAP_SYS_PTRACE. */
static void check_ptrace(void)
{
    const int code = trace_child();
    const long long scope = ibx_doctor_read_number("/proc/sys/kernel/yama/ptrace_scope", 0);
    const bool may = ibx_capable_in_namespace(CAP_SYS_PTRACE);
    if (scope > 2)
        ibx_doctor_add("vm", "ptrace", DOCTOR_MISSING,
                       WHAT_FOR "kernel.yama.ptrace_scope below 3, which takes a restart",
                       "of no process: ptrace_scope is 3");
    else if (code && (may || scope < 2))
        ibx_doctor_add("vm", "ptrace", DOCTOR_MISSING,
                       WHAT_FOR "allow it in the container's seccomp profile", "of no process: %s",
                       strerror(code));
    else if (ibx_capable(CAP_SYS_PTRACE))
        ibx_doctor_add("vm", "ptrace", DOCTOR_OK, NULL, "of the QEMU of any user");
    else if (may)
        ibx_doctor_add("vm", "ptrace", DOCTOR_LIMITED,
                       WHAT_FOR "for one outside of this namespace run it there, as root",
                       "of QEMUs in this user namespace alone, ptrace_scope %lld", scope);
    else
        ibx_doctor_add("vm", "ptrace", scope ? DOCTOR_MISSING : DOCTOR_LIMITED,
                       "ib-migrate needs it of the QEMU, and libvirt's QEMUs are another user's: "
                       "run it as root, in a container with --cap-add SYS_PTRACE",
                       scope ? "of no QEMU: no CAP_SYS_PTRACE, and ptrace_scope is %lld"
                             : "of QEMUs of this user alone: no CAP_SYS_PTRACE, ptrace_scope %lld",
                       scope);
}

void ibx_doctor_check_vm(void)
{
    check_kvm();
    check_qemu();
    check_ptrace();
    check_userfaultfd();
}
