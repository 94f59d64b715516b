/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Turns of the sessions of this process, or of all processes of a back end, on each of its GPUs:
 * deficit round robin. A session takes turns with the others of the GPU that it copies to and from.
 * In a round each session may copy a quantum of bytes, times its weight. One that has used up its
 * quantum waits for the others until
 *
 *   - all sessions that copy as busily have used up theirs, or
 *   - as much time has passed as the rest of the round takes at the speed so far, three fifths
 *     of the time until then at least: over tcp some sessions are that much slower than others,
 *     without a fault of their own, where their threads share a core with others.
 *
 * A session that had bytes left then may copy as many more in the next round, an eighth of a
 * quantum at most. A session that stops, dies, or copies little delays no other: sessions do not
 * wait for one that has copied less than half as much as they have. A session that is slow on
 * purpose takes at most two fifths of the time of another.
 *
 * A session that copies while others do also gives the GPU no more than two pieces at a time, short
 * ones if any of the others makes short copies. The GPU works in the order in which it is given
 * work, so a short copy waits for microseconds.
 *
 * While several sessions copy, their threads enter the driver one after the other, by busy waiting.
 * The driver's own lock would put a thread to sleep, and waking it takes longer than the call.
 *
 * There is no lock: what sessions know of each other are numbers that one session writes and the
 * others read. So a session that is stopped or killed at any instruction blocks no other. Several
 * processes write this memory, and one of them may have been taken over by an attacker: a session
 * that reads nonsense waits for 20 ms at most, as in any round. Others see at most IBX_TURN_SEEN
 * sessions of a GPU, each for 5 ms after a copy; nobody waits for sessions beyond that number.
 *
 * From any thread; a struct ibx_turn belongs to one session and its thread.
 */
#ifndef IBX_GPUDIRECT_TURNS_H
#define IBX_GPUDIRECT_TURNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IBX_TURN_QUANTUM ((uint64_t)8 << 20) /* bytes, at a weight of 100 */
#define IBX_TURN_PIECE   ((size_t)256 << 10) /* bytes of a piece in IBX_TURN_BESIDE */
#define IBX_TURN_LONG    ((size_t)4 << 20)   /* bytes of a piece in IBX_TURN_NEAR */
#define IBX_TURN_LONGER  ((size_t)2 << 20)   /* bytes of a piece in IBX_TURN_BESIDE_LONG */
#define IBX_TURN_SHORT   ((size_t)64 << 10)  /* bytes of a short copy, at most */
#define IBX_TURN_ROW     256u                /* a shorter row takes as long as one of this size */
#define IBX_TURN_BUSY_NS ((uint64_t)5000000) /* a session counts as busy so long after a copy */
#define IBX_TURN_NEAR_NS ((uint64_t)1000000000) /* ... and may copy again, so long */
#define IBX_TURN_WEIGHT  100u
#define IBX_TURN_SEEN    256u

struct ibx_turn {
    bool joined;
    const void *owner; /* whose sessions share the weight; NULL: this one has its own */
    unsigned weight;
    unsigned gpu;
    uint64_t id;      /* no other session has it, in any process */
    unsigned place;   /* index of the place in which others see it, unless another has taken it */
    uint64_t seen_ns; /* time of the last copy */
    uint64_t round;   /* the round that `spent` and `carried` belong to */
    uint64_t spent;   /* bytes copied in it */
    uint64_t carried; /* bytes that it may copy beyond its quantum */
    uint64_t held_ns; /* how long it has waited in all */
};

/* Shares the turns with up to `processes` processes at a time that this one forks from now on. To
 * be called before any session joins. False: no memory. */
bool ibx_turns_share(unsigned processes);
/* In a forked process, before any session joins: tells its number, below `processes`. An owner is
 * the same pointer in all of them. */
void ibx_turns_are_of(unsigned process);
/* In the process that forked it: that process has ended; its sessions are removed. */
void ibx_turns_ended(unsigned process);

/* Initialises `turn` as a session on GPU 0. `weight` is 1 or more; IBX_TURN_WEIGHT is the usual
 * one.
 */
void ibx_turn_join(struct ibx_turn *turn, const void *owner, unsigned weight);
/* Without effect on a session that has not joined. */
void ibx_turn_leave(struct ibx_turn *turn);
/* The session copies to and from `gpu` from now on. Without effect if it has not joined. */
void ibx_turn_go(struct ibx_turn *turn, unsigned gpu);

enum ibx_turn_company {
    IBX_TURN_ALONE,
    IBX_TURN_NEAR,        /* others have copied lately */
    IBX_TURN_BESIDE_LONG, /* others copy, but make no short copies */
    IBX_TURN_BESIDE,      /* others copy */
};

/* Who else copies; counts as a copy of nothing. */
enum ibx_turn_company ibx_turn_company(struct ibx_turn *turn);
/* To be called before `bytes` are given to the GPU: counts them, and waits for the others if the
 * session's quantum is used up. Returns who else copies. */
enum ibx_turn_company ibx_turn_take(struct ibx_turn *turn, uint64_t bytes);
/* To be called around driver calls that give the GPU work and do not wait. Waits busily until no
 * other session of this process on that GPU is between enter and exit, 100 us at most, since that
 * one may have to wait in the driver. False: it did not enter, because no other session copies,
 * there are too few processors, or the time is over; the driver may be called all the same. */
bool ibx_turn_enter(const struct ibx_turn *turn, enum ibx_turn_company company);
void ibx_turn_exit(const struct ibx_turn *turn, bool entered);
/* The bytes to count for `rows` rows of `width` bytes. */
static inline uint64_t ibx_turn_bytes(uint64_t width, uint64_t rows)
{
    return (width < IBX_TURN_ROW ? IBX_TURN_ROW : width) * rows;
}

#endif
