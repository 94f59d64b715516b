/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/qemu/qemu_internal.h"
#include "migrate/qemu/registers.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define VDSO_MAX    65536u /* bytes */
#define STACK_BYTES ((size_t)256 << 10)
#define SPINS       2000u /* polls of a tracee before the thread sleeps between polls */
#define PAUSE_NS    100000

/* One injection. It runs in a task of its own, because a tracee that does not stop is released only
 * when its tracer ends. */
struct injection {
    pid_t pid;
    long number;
    const uint64_t *arguments;
    uint64_t deadline_ns;
    uint64_t vdso; /* address of a system call instruction there; 0: none */
    bool denied;   /* PTRACE_SEIZE failed with EPERM */
    struct ibx_error *err;
    int64_t result;
    int rc;
};

/* ------------------------------------------------------------ waiting */

static int gone(const struct injection *in)
{
    return ibx_error_set(in->err, -ESRCH, "QEMU (process %d) ended meanwhile", (int)in->pid);
}

/* Waits for the tracee to stop. -ETIMEDOUT; deadline 0: no limit. */
static int wait_stop(const struct injection *in, uint64_t deadline_ns, int *status)
{
    for (unsigned look = 0;; look++) {
        pid_t who = waitpid(in->pid, status, __WALL | WNOHANG);
        if (who == in->pid)
            return WIFSTOPPED(*status) ? 0 : gone(in);
        if (who < 0 && errno != EINTR)
            return gone(in);
        if (deadline_ns && ibx_now_ns() >= deadline_ns)
            return -ETIMEDOUT;
        if (look < SPINS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
}

/* Waits for the stop that PTRACE_INTERRUPT requested; delivers signals that come before it. */
static int wait_interrupted(const struct injection *in)
{
    for (;;) {
        int status;
        int rc = wait_stop(in, in->deadline_ns, &status);
        if (rc == -ETIMEDOUT)
            return ibx_error_set(
                in->err, rc,
                "the main thread of QEMU (process %d) did not come to a stop in "
                "time: it waits for a disk, a network file system or a page of the VM",
                (int)in->pid);
        if (rc)
            return rc;
        int sig = WSTOPSIG(status);
        if (status >> 16 == PTRACE_EVENT_STOP && sig == SIGTRAP)
            return 0;
        if (status >> 16 == PTRACE_EVENT_STOP)
            return ibx_error_set(in->err, -EBUSY,
                                 "QEMU (process %d) is stopped by signal %d: kill -CONT %d first",
                                 (int)in->pid, sig, (int)in->pid);
        if (ptrace(PTRACE_CONT, in->pid, NULL, (void *)(uintptr_t)(unsigned)sig))
            return gone(in);
    }
}

/* ------------------------------------------------------------ finding a system call instruction */

static bool is_syscall(pid_t pid, uint64_t address)
{
    errno = 0;
    const long word = ptrace(PTRACE_PEEKTEXT, pid, (void *)(uintptr_t)address, NULL);
    return !errno && !memcmp(&word, ibx_call_instruction.bytes, ibx_call_instruction.length);
}

struct code {
    uint64_t start, size;
};

/* A mapped file may be called [vdso], too, but has an inode. */
static bool is_vdso(void *context, const struct ibx_proc_mapping *m)
{
    if (m->ino || strcmp(m->path, "[vdso]") != 0)
        return false;
    *(struct code *)context = (struct code){m->start, m->end - m->start};
    return true;
}

/* Returns where the instruction lies in n bytes of code, which begin at a page; n: nowhere. */
static size_t find_in(const uint8_t *code, size_t n)
{
    const struct ibx_call_instruction *call = &ibx_call_instruction;
    for (size_t at = 0; at + call->length <= n; at += call->alignment)
        if (!memcmp(code + at, call->bytes, call->length))
            return at;
    return n;
}

/* Finds the bytes of the instruction in QEMU's vDSO: wherever they are, jumping to them makes a
 * system call. */
static uint64_t find_in_vdso(pid_t pid)
{
    char path[64];
    struct code vdso = {0};
    ibx_proc_find_mapping(pid, is_vdso, &vdso);
    snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
    int mem = vdso.size && vdso.size <= VDSO_MAX ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    uint8_t *code = mem >= 0 ? malloc((size_t)vdso.size) : NULL;
    ssize_t n = code ? pread(mem, code, (size_t)vdso.size, (off_t)vdso.start) : 0;
    const size_t at = n > 0 ? find_in(code, (size_t)n) : 0;
    const uint64_t found = n > 0 && at < (size_t)n ? vdso.start + at : 0;
    free(code);
    if (mem >= 0)
        close(mem);
    return found;
}

/* A thread that sleeps in a system call stands right behind its instruction, which some processors
 * can use again. Otherwise the one in the vDSO is. */
static uint64_t find_syscall(const struct injection *in, const struct ibx_registers *r)
{
    const uint64_t last = ibx_registers_last_call(r);
    if (last && is_syscall(in->pid, last))
        return last;
    return in->vdso && is_syscall(in->pid, in->vdso) ? in->vdso : 0;
}

/* ------------------------------------------------------------ the step */

/* Single-steps the system call instruction. The stop after it is a SIGTRAP by the kernel: if the
 * registers are restored there, the kernel restarts the system call that was interrupted. */
static int step(struct injection *in, const struct ibx_registers *saved, uint64_t at)
{
    int status;
    if (ibx_registers_prepare(in->pid, saved, at, in->number, in->arguments))
        return gone(in);
    /* Other signals are blocked, so this wait ends with the instruction or with QEMU. It has no
     * deadline: to leave QEMU in the middle would harm it, and the call does not sleep. */
    if (ptrace(PTRACE_SINGLESTEP, in->pid, NULL, NULL) || wait_stop(in, 0, &status))
        return gone(in);
    int64_t result;
    int rc = ibx_registers_result(in->pid, at, &result);
    if (rc && rc != -EINPROGRESS)
        return gone(in);
    if (!rc && WSTOPSIG(status) == SIGTRAP)
        in->result = result;
    else
        rc = ibx_error_set(in->err, -EIO,
                           "the step in QEMU ended at signal %d instead of behind "
                           "the system call",
                           WSTOPSIG(status));
    if (ibx_registers_restore(in->pid, saved))
        return gone(in);
    return rc;
}

/* Makes the system call in the stopped thread, and restores its registers and signal mask. */
static int run_stopped(struct injection *in)
{
    struct ibx_registers saved;
    uint64_t mask, held = ~(1ull << (SIGTRAP - 1));
    if (ibx_registers_read(in->pid, &saved) ||
        ptrace(PTRACE_GETSIGMASK, in->pid, (void *)sizeof(mask), &mask))
        return gone(in);
    if (!saved.are_wide)
        return ibx_error_set(in->err, -ENOTSUP, "QEMU (process %d) is not a 64-bit program",
                             (int)in->pid);
    uint64_t at = find_syscall(in, &saved);
    if (!at)
        return ibx_error_set(in->err, -ENOTSUP,
                             "no system call instruction found in QEMU "
                             "(process %d)",
                             (int)in->pid);
    if (ptrace(PTRACE_SETSIGMASK, in->pid, (void *)sizeof(held), &held))
        return gone(in);
    int rc = step(in, &saved, at);
    if (ptrace(PTRACE_SETSIGMASK, in->pid, (void *)sizeof(mask), &mask) && !rc)
        rc = gone(in);
    return rc;
}

/* ------------------------------------------------------------ seizing */

/* Whether ptrace(2) is denied to this process, whatever it traces: the kernel itself says ESRCH of
 * a process that is no tracee. */
static bool profile_denies(void)
{
    return ptrace(PTRACE_DETACH, getpid(), NULL, NULL) && errno != ESRCH;
}

static int seize_error(const struct injection *in, int code)
{
    unsigned long long tracer = 0, memory = 0;
    if (code == ESRCH)
        return ibx_error_set(in->err, -ESRCH, "there is no process %d", (int)in->pid);
    /* The kernel says EPERM of a process that has ended and that nobody has waited for. */
    if (!ibx_process_status(in->pid, "VmSize:", 10, &memory, NULL) && !memory)
        return ibx_error_set(in->err, -ESRCH, "QEMU (process %d) has ended", (int)in->pid);
    if (profile_denies())
        return ibx_error_set(in->err, -code,
                             "a seccomp profile denies ptrace (%s) to this tool, which needs "
                             "it for QEMU (process %d): allow ptrace in the profile "
                             "of this tool's container or service",
                             strerror(code), (int)in->pid);
    if (!ibx_process_status(in->pid, "TracerPid:", 10, &tracer, NULL) && tracer)
        return ibx_error_set(in->err, -EBUSY,
                             "process %llu traces QEMU (process %d) already: end that debugger "
                             "first",
                             tracer, (int)in->pid);
    return ibx_error_set(
        in->err, -code,
        "this tool is not allowed to trace QEMU (process %d): %s; run this tool as root or with "
        "CAP_SYS_PTRACE, and see /proc/sys/kernel/yama/ptrace_scope (0 or 1; where it is 3, nobody "
        "may until the host restarts with less)",
        (int)in->pid, strerror(code));
}

static void *injection_run(void *argument)
{
    struct injection *in = argument;
    if (ptrace(PTRACE_SEIZE, in->pid, NULL, NULL)) {
        in->denied = errno == EPERM;
        in->rc = seize_error(in, errno);
        return NULL;
    }
    in->rc = ptrace(PTRACE_INTERRUPT, in->pid, NULL, NULL) ? gone(in) : wait_interrupted(in);
    if (!in->rc)
        in->rc = run_stopped(in);
    /* Fails if QEMU's thread is not stopped; then it is released when this task ends. */
    ptrace(PTRACE_DETACH, in->pid, NULL, NULL);
    return NULL;
}

/* If the tool were killed by SIGKILL (or its process group) in the middle of an injection, QEMU
 * would be left with wrong registers and end. So a helper process injects, in a session of its own,
 * and finishes even then. It shares this process's memory, as after vfork(2), since memory
 * registered with an HCA must not be copied, and this thread waits for it. After the seizure the
 * helper takes no lock, because threads of a killed tool may have died with it. */
static int helper_main(void *argument)
{
    setsid();
    /* Closes its copies of descriptors, so that peers see the end of those that the tool closes. */
    close_range(3, ~0u, 0);
    injection_run(argument);
    return 0;
}

static int run_helper(struct injection *in)
{
    uint8_t *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED)
        return errno;
    pid_t helper = clone(helper_main, stack + STACK_BYTES, CLONE_VM | CLONE_VFORK, in);
    const int code = helper < 0 ? errno : 0;
    int status = 0;
    while (helper > 0 && waitpid(helper, &status, __WALL) < 0 && errno == EINTR)
        ;
    if (!WIFEXITED(status))
        in->rc = ibx_error_set(in->err, -EIO,
                               "the process by which this tool traces QEMU (process %d) was killed",
                               (int)in->pid);
    munmap(stack, STACK_BYTES);
    return code;
}

/* Injects from a thread, for systems (Yama) where a process may trace only its descendants: QEMU
 * may be a child of this process, but not of the helper. */
static int run_thread(struct injection *in)
{
    pthread_t thread;
    in->denied = false;
    int code = pthread_create(&thread, NULL, injection_run, in);
    if (!code)
        pthread_join(thread, NULL);
    return code;
}

int ibx_inject_syscall(pid_t pid, long number, const uint64_t arguments[6], int64_t *result,
                       uint64_t deadline_ns, struct ibx_error *err)
{
    if (!ibx_call_instruction.length)
        return ibx_error_set(err, -ENOTSUP,
                             "VMs can be received on hosts with x86-64 or aarch64 only: elsewhere "
                             "this tool cannot make QEMU create a userfaultfd");
    struct injection in = {.pid = pid,
                           .number = number,
                           .arguments = arguments,
                           .deadline_ns = deadline_ns ? deadline_ns : 1,
                           .vdso = find_in_vdso(pid),
                           .err = err};
    /* A signal that ends this process in the middle would leave QEMU with wrong registers. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = run_helper(&in);
    if (!code && in.denied)
        code = run_thread(&in);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code)
        return ibx_error_set_task(err, -code, "no process to trace QEMU");
    if (in.rc)
        return in.rc;
    *result = in.result;
    return 0;
}
