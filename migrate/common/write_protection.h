/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Protects guest RAM at the source while the destination fetches it. A userfaultfd of QEMU
 * (migrate/qemu/inject_uffd.c) write-protects it: a vCPU, a device or a reset that writes is
 * blocked in the kernel, and the page stays as it was. QEMU has a copy of the descriptor, so the
 * protection stays when this tool is killed.
 */
#ifndef IBX_MIGRATE_COMMON_WRITE_PROTECTION_H
#define IBX_MIGRATE_COMMON_WRITE_PROTECTION_H

#include "common/state_machine.h"
#include "migrate/qemu/qemu.h"

/*
 * state machine: write protection
 *   [*] -> NONE -> MADE -> ARMED       MADE: a part may be protected
 *   NONE -> CAUGHT                     a tool before this one armed it
 *   MADE | ARMED -> CAUGHT             a thread of QEMU waits to write
 *   MADE | ARMED | CAUGHT -> NONE -> [*]
 */
enum ibx_write_protection_state {
    PROTECTION_NONE,
    PROTECTION_MADE,
    PROTECTION_ARMED,
    PROTECTION_CAUGHT
};

struct ibx_write_protection {
    struct ibx_state_machine state;
    struct ibx_uffd uffd; /* fd -1 in NONE */
    struct {
        char id[IBX_GUEST_ID_MAX];
        uint64_t start, length; /* bytes; addresses in QEMU */
    } ranges[IBX_GUEST_BLOCKS_MAX];
    unsigned count;
    unsigned range; /* MADE: what is protected next, from `offset` on */
    uint64_t offset;
};

void ibx_write_protection_init(struct ibx_write_protection *protection);
/* Makes a userfaultfd in QEMU. Afterwards MADE: no memory is registered yet. Errors as
 * ibx_uffd_make(), or -EOPNOTSUPP: the kernel cannot write-protect shared memory. */
int ibx_write_protection_make(struct ibx_write_protection *protection,
                              const struct ibx_guest_ram *ram, struct ibx_qmp *qmp,
                              struct ibx_error *err);
/* Takes over the userfaultfd of a tool that has ended; `remote`: its descriptor number in QEMU, or
 * -1. Afterwards MADE or CAUGHT. -ENOENT: QEMU has none; other errors as ibx_uffd_take(). */
int ibx_write_protection_take(struct ibx_write_protection *protection,
                              const struct ibx_guest_ram *ram, int remote, struct ibx_error *err);
/* In MADE: whether a thread of QEMU waits to write by now. If so, the protection is CAUGHT. */
bool ibx_write_protection_look(struct ibx_write_protection *protection);
/* In MADE: protects 16 MiB more, which takes a third of a millisecond. -EAGAIN: there is more to
 * protect; 0: all is protected and the protection is ARMED. In other states it returns 0 and does
 * nothing. */
int ibx_write_protection_arm(struct ibx_write_protection *protection, struct ibx_error *err);
/* In MADE: whether the next call of ibx_write_protection_arm() is the last one. */
bool ibx_write_protection_ends(const struct ibx_write_protection *protection);
/* -EBUSY, once, with a sentence: a thread of QEMU has tried to write, and waits from now on. The
 * protection is CAUGHT then. 0 otherwise. */
int ibx_write_protection_check(struct ibx_write_protection *protection, struct ibx_error *err);
/* Removes the protection, so that everybody may write again, and closes the userfaultfd here and in
 * QEMU. */
void ibx_write_protection_release(struct ibx_write_protection *protection);
/* Closes only this tool's copy of the userfaultfd: the protection stays. */
void ibx_write_protection_leave(struct ibx_write_protection *protection);

#endif
