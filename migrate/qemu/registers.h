/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * registers.h: what differs between processors where a stopped thread of another process makes a
 * system call (inject.c). x86-64 and aarch64 are known. All functions are called by the thread that
 * traces the other one, and return 0, or -errno as ptrace(2) sets it.
 */
#ifndef IBX_MIGRATE_QEMU_REGISTERS_H
#define IBX_MIGRATE_QEMU_REGISTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

/* The instruction that makes a system call. */
struct ibx_call_instruction {
    uint8_t bytes[4];
    size_t length;    /* of bytes[]; 0: this processor is not known */
    size_t alignment; /* its address is a multiple of this */
};

extern const struct ibx_call_instruction ibx_call_instruction;

#define IBX_VECTORS_MOST 16384u /* bytes; Linux 6.18 has at most 8.8 KiB */

struct ibx_registers {
    struct user_regs_struct general;
    bool are_wide; /* the thread runs code of 64 bits; otherwise general has nothing of use */
    /* aarch64: vector registers that a system call clears in part, as ptrace gives them. */
    int vectors_kind; /* NT_ARM_SVE or NT_ARM_SSVE; 0: a system call clears none */
    size_t vectors_length;
    _Alignas(16) uint8_t vectors[IBX_VECTORS_MOST];
};

int ibx_registers_read(pid_t pid, struct ibx_registers *r);

/* Gives the thread these registers again, after a system call. */
int ibx_registers_restore(pid_t pid, const struct ibx_registers *r);

/* Where the instruction may lie by which the thread, which sleeps in a system call, came there; 0:
 * no other call may be made by that one. */
uint64_t ibx_registers_last_call(const struct ibx_registers *r);

/* Sets the thread's registers such that the instruction at `at` makes system call `number`. `r`
 * are the thread's registers, and stay. */
int ibx_registers_prepare(pid_t pid, const struct ibx_registers *r, uint64_t at, long number,
                          const uint64_t arguments[6]);

/* Reads what the system call returned. -EINPROGRESS: the thread is not behind `at`. */
int ibx_registers_result(pid_t pid, uint64_t at, int64_t *result);

#endif
