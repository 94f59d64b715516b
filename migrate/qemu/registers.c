/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/qemu/registers.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#if defined(__x86_64__) || defined(__aarch64__)

/* Returns how many bytes of this kind of registers the thread has, or -errno. */
static ssize_t get(pid_t pid, int kind, void *to, size_t most)
{
    struct iovec all = {to, most};
    if (ptrace(PTRACE_GETREGSET, pid, (void *)(uintptr_t)(unsigned)kind, &all))
        return -errno;
    return (ssize_t)all.iov_len;
}

static int set(pid_t pid, int kind, const void *from, size_t length)
{
    struct iovec all = {(void *)(uintptr_t)from, length};
    return ptrace(PTRACE_SETREGSET, pid, (void *)(uintptr_t)(unsigned)kind, &all) ? -errno : 0;
}

/* A thread of 32 bits has fewer bytes of them. */
static int get_general(pid_t pid, struct user_regs_struct *general, bool *are_wide)
{
    const ssize_t n = get(pid, NT_PRSTATUS, general, sizeof(*general));
    *are_wide = n == (ssize_t)sizeof(*general);
    return n < 0 ? (int)n : 0;
}

static int set_general(pid_t pid, const struct user_regs_struct *general)
{
    return set(pid, NT_PRSTATUS, general, sizeof(*general));
}

#endif

#if defined(__x86_64__)

#define AT     rip /* members of user_regs_struct: the next instruction, */
#define RESULT rax /* ... and what a system call has returned */

/* syscall */
const struct ibx_call_instruction ibx_call_instruction = {{0x0f, 0x05}, 2, 1};

int ibx_registers_read(pid_t pid, struct ibx_registers *r)
{
    return get_general(pid, &r->general, &r->are_wide);
}

int ibx_registers_restore(pid_t pid, const struct ibx_registers *r)
{
    return set_general(pid, &r->general);
}

uint64_t ibx_registers_last_call(const struct ibx_registers *r)
{
    return r->general.rip - ibx_call_instruction.length;
}

int ibx_registers_prepare(pid_t pid, const struct ibx_registers *r, uint64_t at, long number,
                          const uint64_t arguments[6])
{
    struct user_regs_struct g = r->general;
    const uint64_t *a = arguments;
    g.AT = at;
    g.rax = (uint64_t)number;
    g.orig_rax = UINT64_MAX; /* no system call to restart on the way out */
    g.rdi = a[0], g.rsi = a[1], g.rdx = a[2], g.r10 = a[3], g.r8 = a[4], g.r9 = a[5];
    return set_general(pid, &g);
}

#elif defined(__aarch64__)

#define AT     pc
#define RESULT regs[0]

#define ARM_SSVE         0x40b    /* NT_ARM_SSVE, Linux 5.19 */
#define VECTORS_ARE_WIDE 1u       /* SVE_PT_REGS_SVE */
#define BRANCH_TYPE      0xc00ull /* PSR_BTYPE_MASK */

/* user_sve_header of the kernel's asm/ptrace.h */
struct vectors_head {
    uint32_t size, most;
    uint16_t length, most_length, flags, reserved;
};

/* svc #0 */
const struct ibx_call_instruction ibx_call_instruction = {{0x01, 0x00, 0x00, 0xd4}, 4, 4};

/* A system call keeps what NEON has of the vector registers, and clears what SVE adds to them; it
 * ends SME's streaming mode. A thread that sleeps in a system call has nothing of these. */
static int get_vectors(pid_t pid, struct ibx_registers *r)
{
    static const int kinds[] = {NT_ARM_SVE, ARM_SSVE};
    r->vectors_kind = 0;
    for (unsigned i = 0; i < 2 && !r->vectors_kind; i++) {
        struct vectors_head head;
        const ssize_t n = get(pid, kinds[i], r->vectors, sizeof(r->vectors));
        if (n < (ssize_t)sizeof(head))
            continue; /* a processor or a kernel without them */
        memcpy(&head, r->vectors, sizeof(head));
        if (!(head.flags & VECTORS_ARE_WIDE))
            continue;
        if (head.size > (size_t)n)
            return -EOVERFLOW;
        r->vectors_kind = kinds[i];
        r->vectors_length = head.size;
    }
    return 0;
}

int ibx_registers_read(pid_t pid, struct ibx_registers *r)
{
    const int rc = get_general(pid, &r->general, &r->are_wide);
    return rc ? rc : get_vectors(pid, r);
}

int ibx_registers_restore(pid_t pid, const struct ibx_registers *r)
{
    const int rc = set_general(pid, &r->general);
    if (rc || !r->vectors_kind)
        return rc;
    return set(pid, r->vectors_kind, r->vectors, r->vectors_length);
}

/* The kernel has already set a thread that sleeps in a system call back to that instruction, and
 * takes another call there for the one to restart. */
uint64_t ibx_registers_last_call(const struct ibx_registers *r)
{
    (void)r;
    return 0;
}

int ibx_registers_prepare(pid_t pid, const struct ibx_registers *r, uint64_t at, long number,
                          const uint64_t arguments[6])
{
    struct user_regs_struct g = r->general;
    memcpy(g.regs, arguments, 6 * sizeof(*arguments));
    g.regs[8] = (uint64_t)number;
    g.AT = at;
    g.pstate &= ~BRANCH_TYPE; /* the instruction is no target of branches */
    return set_general(pid, &g);
}

#else

const struct ibx_call_instruction ibx_call_instruction;

int ibx_registers_read(pid_t pid, struct ibx_registers *r)
{
    (void)pid, (void)r;
    return -ENOTSUP;
}

int ibx_registers_restore(pid_t pid, const struct ibx_registers *r)
{
    (void)pid, (void)r;
    return -ENOTSUP;
}

uint64_t ibx_registers_last_call(const struct ibx_registers *r)
{
    (void)r;
    return 0;
}

int ibx_registers_prepare(pid_t pid, const struct ibx_registers *r, uint64_t at, long number,
                          const uint64_t arguments[6])
{
    (void)pid, (void)r, (void)at, (void)number, (void)arguments;
    return -ENOTSUP;
}

int ibx_registers_result(pid_t pid, uint64_t at, int64_t *result)
{
    (void)pid, (void)at, (void)result;
    return -ENOTSUP;
}

#endif

#ifdef AT

int ibx_registers_result(pid_t pid, uint64_t at, int64_t *result)
{
    struct user_regs_struct g;
    bool are_wide;
    const int rc = get_general(pid, &g, &are_wide);
    if (rc || !are_wide)
        return rc ? rc : -EINPROGRESS;
    *result = (int64_t)g.RESULT;
    return g.AT == at + ibx_call_instruction.length ? 0 : -EINPROGRESS;
}

#endif
