/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Guest RAM at the source, while the destination fetches it: nobody in QEMU may change it. A
 * userfaultfd of QEMU's (migrate/qemu/inject_uffd.c) protects it against writes; who tries it, a
 * vCPU, a device or a reset, stops in the kernel, and the page stays as it was. QEMU has a copy of
 * the descriptor, so it stays so when this tool is killed.
 */
#ifndef IBX_MIGRATE_COMMON_GUARD_H
#define IBX_MIGRATE_COMMON_GUARD_H

#include "common/state_machine.h"
#include "migrate/qemu/qemu.h"

/*
 * state machine: guard
 *   [*] -> NONE -> MADE -> ARMED       MADE: a part may be protected
 *   NONE -> CAUGHT                     a tool before this one armed it
 *   MADE | ARMED -> CAUGHT             a thread of QEMU waits to write
 *   MADE | ARMED | CAUGHT -> NONE -> [*]
 */
enum ibx_guard_state { GUARD_NONE, GUARD_MADE, GUARD_ARMED, GUARD_CAUGHT };

struct ibx_guard {
    struct ibx_state_machine state;
    struct ibx_uffd uffd; /* fd -1 in NONE */
    struct {
        char id[IBX_GUEST_ID_MAX];
        uint64_t start, length; /* in QEMU */
    } ranges[IBX_GUEST_BLOCKS_MAX];
    unsigned count;
    unsigned range; /* MADE: what is protected next */
    uint64_t offset;
};

void ibx_guard_init(struct ibx_guard *guard);
/* Makes a userfaultfd in QEMU for its guest RAM, which is not on it yet. */
int ibx_guard_make(struct ibx_guard *guard, const struct ibx_guest_ram *ram, struct ibx_qmp *qmp,
                   struct ibx_error *err);
/* Takes that of a tool that has ended; `remote`: its number in QEMU, or -1. Afterwards MADE or
 * CAUGHT. -ENOENT: there is none. */
int ibx_guard_take(struct ibx_guard *guard, const struct ibx_guest_ram *ram, int remote,
                   struct ibx_error *err);
/* MADE: whether somebody waits by now: CAUGHT. */
bool ibx_guard_look(struct ibx_guard *guard);
/* MADE: protects 16 MiB more, in a third of a millisecond. 0: ARMED; -EAGAIN: there is more. */
int ibx_guard_arm(struct ibx_guard *guard, struct ibx_error *err);
/* MADE: the next call of that is the last one. */
bool ibx_guard_ends(const struct ibx_guard *guard);
/* -EBUSY, once, with a sentence: a thread of QEMU tried to write and waits from now on: CAUGHT. */
int ibx_guard_check(struct ibx_guard *guard, struct ibx_error *err);
/* Everybody may write again; closes it in QEMU, too. */
void ibx_guard_release(struct ibx_guard *guard);
/* Closes this tool's copy alone: what is protected stays so. */
void ibx_guard_leave(struct ibx_guard *guard);

#endif
