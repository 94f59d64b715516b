/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Acts for a tool that stands still (SIGSTOP, a debugger, a frozen control group) while QEMU leaves
 * shared RAM out of what it migrates (x-ignore-shared). Whoever has QEMU save the VM meanwhile
 * would lose its memory, and be told that all is well. So this resets that setting, over the tool's
 * own monitor: QEMU serves no other client while the tool has it.
 *
 * While QEMU migrates the VM it refuses that. Then this asks again whenever QEMU reports something,
 * since that may be the end of the migration. It does not read from the monitor: the answers are
 * for the tool, too, which learns from them that its migration must not go on (ibx_qmp_stood_in()).
 * So in the end there is more than this looks at, or than the socket takes. QEMU still does what it
 * is asked for then, and is asked again from time to time.
 *
 * state machine: stand-in
 *   [*] -> IDLE -> ASKED -> REFUSED -> ASKED    REFUSED: QEMU migrates the VM
 *   ASKED -> ASKED                              no answer is seen
 *   ASKED -> DONE                               QEMU saves the VM with its RAM again
 *   ASKED | REFUSED | DONE -> IDLE -> [*]       the tool goes on
 *   ASKED | REFUSED | DONE -> [*]               the tool has ended
 */
#ifndef IBX_MIGRATE_COMMON_STAND_IN_H
#define IBX_MIGRATE_COMMON_STAND_IN_H

#include "common/state_machine.h"

#include <jansson.h>
#include <stdatomic.h>
#include <sys/types.h>

#define IBX_STAND_IN_UNREAD 65536 /* bytes of what the tool has not read that are looked at */

enum stand_in_state { STAND_IN_IDLE, STAND_IN_ASKED, STAND_IN_REFUSED, STAND_IN_DONE };

struct ibx_stand_in {
    struct ibx_state_machine state;
    int monitor;                /* a copy of the tool's descriptor; -1: none */
    pid_t tool;                 /* parent of this process */
    const atomic_uint *beats;   /* the tool counts them in its loop; 0: it has not begun to */
    unsigned beat;              /* the last one seen */
    uint64_t beat_ns, again_ns; /* when it came; when to ask again though nothing is reported */
    uint64_t held_ns, turns; /* since when a tracer holds it, 0: none; ibx_process_turns() then */
    uint64_t unseen_ns;      /* ... though no answer to the last question has been seen */
    size_t unread;           /* bytes before the question, or up to the end of its answer */
    char bytes[IBX_STAND_IN_UNREAD];
};

/* To be called in a child of the tool. `monitor` is taken over. */
void ibx_stand_in_init(struct ibx_stand_in *stand_in, int monitor, const atomic_uint *beats);
/* Whether there is anything to do with these settings to put back (NULL: none): then
 * ibx_stand_in_look() has to be called every IBX_STAND_IN_LOOK_MS. */
#define IBX_STAND_IN_LOOK_MS 5
bool ibx_stand_in_has_work(const struct ibx_stand_in *stand_in, const json_t *before);
void ibx_stand_in_look(struct ibx_stand_in *stand_in, const json_t *before);
/* Closes the monitor, so that QEMU serves the next client once the tool's is closed, too. */
void ibx_stand_in_end(struct ibx_stand_in *stand_in);
/* The same, but the monitor is the caller's from now on. */
int ibx_stand_in_leave(struct ibx_stand_in *stand_in);

#endif
