/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A userfaultfd that belongs to a running QEMU, obtained without QEMU's help.
 *
 * A userfaultfd serves the address space of whoever creates it, so QEMU has to make the call. Its
 * main thread is seized with ptrace for a moment, executes one system call in place of what it was
 * about to do, gets all its registers back (an interrupted system call is restarted by the kernel
 * as if a signal had been ignored) and is released; pidfd_getfd then copies the descriptor to us.
 *
 * QEMU goes on unharmed whatever fails here. The one exception: this tool killed by SIGKILL within
 * the step itself, some ten microseconds. That happens only on the destination, before it has
 * anything to lose, or after the move is complete.
 *
 * x86-64 only; elsewhere every call says -ENOTSUP.
 */
#ifndef IBX_MIGRATE_QEMU_INJECT_H
#define IBX_MIGRATE_QEMU_INJECT_H

#include "migrate/qemu/qmp.h"

enum ibx_uffd_way {
    IBX_UFFD_ANY,     /* the system call where QEMU may make it, else the device */
    IBX_UFFD_SYSCALL, /* userfaultfd(2) */
    IBX_UFFD_DEVICE,  /* /dev/userfaultfd (Linux 6.1) passed by QMP, then its ioctl */
};

/* QEMU's userfaultfd. Until it is closed in QEMU, or QEMU ends, missing pages wait. */
struct ibx_uffd {
    pid_t pid;
    int fd;     /* ours; non-blocking, CLOEXEC */
    int remote; /* its number in QEMU */
    enum ibx_uffd_way way;
    uint64_t stopped_ns; /* how long QEMU's main thread stood still, at most */
};

/* Makes one. `pid` is QEMU's, `qmp` its monitor (for the device; may be NULL with SYSCALL). The API
 * handshake (UFFDIO_API) is left to the caller. -EPERM: QEMU or we may not; -EBUSY: QEMU is being
 * traced or is stopped by a signal; -ETIMEDOUT: its main thread did not come to a stop.
 * `uffd` is set on success only; the caller owns uffd->fd. */
int ibx_uffd_make(pid_t pid, struct ibx_qmp *qmp, enum ibx_uffd_way way, struct ibx_uffd *uffd,
                  uint64_t deadline_ns, struct ibx_error *err);
/* Finds the one that an earlier run of this tool made, and takes a copy. -ENOENT: there is none;
 * -ENOTUNIQ: QEMU has several, pass `remote` (otherwise -1) as it was recorded. */
int ibx_uffd_take(pid_t pid, int remote, struct ibx_uffd *uffd, struct ibx_error *err);
/* Closes it in QEMU and here. Only for a complete move: pages that are missing then read as zeros.
 * uffd->stopped_ns becomes that of the closing. After a failure both are open still. */
int ibx_uffd_close_in_qemu(struct ibx_uffd *uffd, uint64_t deadline_ns, struct ibx_error *err);

/* Whether IBX_UFFD_ANY would find a way, in advance and without touching QEMU: 0, or the sentence.
 * `way` (may be NULL) gets the way. */
int ibx_uffd_possible(pid_t pid, enum ibx_uffd_way *way, struct ibx_error *err);

/* One system call in the main thread of `pid`. `result` gets what the kernel returned, a negative
 * errno too; `stopped_ns` may be NULL. For calls that do not wait and end no thread. */
int ibx_inject_syscall(pid_t pid, long number, const uint64_t arguments[6], int64_t *result,
                       uint64_t *stopped_ns, uint64_t deadline_ns, struct ibx_error *err);

#endif
