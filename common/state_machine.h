/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A state machine as a table, with one place that moves it. The test state_diagrams compares the
 * table with the diagram above its enum. In a diagram [*] is the outside: an arrow from it leads to
 * an initial state, an arrow to it comes from a final one. An example, with a state's name, its
 * allowed moves and its flags:
 *
 *     state machine: lid
 *       [*] -> CLOSED -> OPEN -> CLOSED
 *       CLOSED | OPEN -> BROKEN -> [*]          words after two spaces say why
 *
 *     static const struct ibx_state lid_states[] = {
 *         [LID_CLOSED] = {"closed", IBX_TO(LID_OPEN) | IBX_TO(LID_BROKEN), IBX_STATE_INITIAL},
 *         [LID_OPEN] = {"open", IBX_TO(LID_CLOSED) | IBX_TO(LID_BROKEN), 0},
 *         [LID_BROKEN] = {"broken", 0, IBX_STATE_FINAL}};
 *     static const struct ibx_state_table lid_table = IBX_STATE_TABLE("lid", lid_states);
 *
 * A machine may have several initial states. It is used by one thread, or under its owner's lock.
 */
#ifndef IBX_COMMON_STATE_MACHINE_H
#define IBX_COMMON_STATE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#define IBX_TO(state) (1u << (state))
#define IBX_STATE_TABLE(machine, states)                                                           \
    {                                                                                              \
        (machine), (states), sizeof(states) / sizeof(*(states))                                    \
    }

enum ibx_state_flags { IBX_STATE_INITIAL = 1, IBX_STATE_FINAL = 2 };

struct ibx_state {
    const char *name;
    uint32_t to;    /* allowed moves: IBX_TO() of each next state */
    unsigned flags; /* enum ibx_state_flags */
};

struct ibx_state_table {
    const char *machine;
    const struct ibx_state *states;
    unsigned count; /* at most 32 */
};

struct ibx_state_machine {
    const struct ibx_state_table *table;
    unsigned now; /* any code may read it; only the two functions below write it */
};

/* The name for messages; "unknown" for a number without a state. */
const char *ibx_state_name(const struct ibx_state_table *table, unsigned state);
bool ibx_state_allows(const struct ibx_state_table *table, unsigned from, unsigned to);

/* Begins in an initial state. -EINVAL and a log line: `first` is no initial state, and nothing has
 * changed; a debug build aborts. */
int ibx_state_begin(struct ibx_state_machine *m, const struct ibx_state_table *table,
                    unsigned first);
/* Moves. -EINVAL and a log line: the table does not allow it, and nothing has changed; a debug
 * build aborts. */
int ibx_state_move(struct ibx_state_machine *m, unsigned to);

#endif
