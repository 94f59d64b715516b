/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Turns of the sessions of this process, or of all processes of a back end, on each of its GPUs:
 * deficit round robin. A session is with those of the GPU that it copies to and from. In a round
 * each session may copy a quantum of bytes, times its weight. One that has had its quantum waits
 * for the others, until
 *
 *   - all that copy as busily have had theirs, or
 *   - as much time has passed as the rest of the round takes at the speed so far, three fifths
 *     of the time until then at least: over tcp some sessions are that much slower than others,
 *     without a fault of their own, where their threads share a core with others.
 *
 * Who was behind then may copy as much more in the next round, an eighth of a quantum at most. A
 * session that stops, dies, or copies little holds nobody: it has not copied half as much as the
 * one that would have to wait for it. Nor does one that is slow on purpose take from another one
 * more than two fifths of its time.
 *
 * Who copies beside others also leaves no more than two pieces to the GPU at once, short ones if
 * any of the others makes short copies. The GPU takes what it is given in order: so a short copy
 * waits for microseconds.
 *
 * Calls that give the GPU work go into the driver one after the other, beside others: it lets one
 * thread in at a time, and the kernel would have to wake the next, which takes longer than the
 * call.
 *
 * There is no lock: what sessions know of each other are numbers that one session writes and the
 * others read. So one that is stopped or killed at any instruction holds nobody up, and who finds
 * nonsense in memory that several processes write (one of them may be taken over) waits for 20 ms
 * at most, as in any round. IBX_TURN_SEEN sessions of a GPU are seen by others at a time, for 5 ms
 * after each copy: should more than that copy at once, nobody waits for those beyond them.
 *
 * From any thread; a struct ibx_turn belongs to one session and its thread.
 */
#ifndef IBX_GPUDIRECT_TURNS_H
#define IBX_GPUDIRECT_TURNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IBX_TURN_QUANTUM ((uint64_t)8 << 20)    /* bytes, at a weight of 100 */
#define IBX_TURN_PIECE   ((size_t)256 << 10)    /* beside others */
#define IBX_TURN_LONG    ((size_t)4 << 20)      /* a piece, where there are others that may come */
#define IBX_TURN_LONGER  ((size_t)2 << 20)      /* a piece beside others of which none is short */
#define IBX_TURN_SHORT   ((size_t)64 << 10)     /* bytes of a short copy, at most */
#define IBX_TURN_ROW     256u                   /* a row of fewer bytes takes no less time */
#define IBX_TURN_BUSY_NS ((uint64_t)5000000)    /* a session is, for so long after a copy */
#define IBX_TURN_NEAR_NS ((uint64_t)1000000000) /* it may come again */
#define IBX_TURN_WEIGHT  100u
#define IBX_TURN_SEEN    256u

struct ibx_turn {
    bool joined;
    const void *owner; /* whose sessions share the weight; NULL: this one has its own */
    unsigned weight;
    unsigned gpu;
    uint64_t id;      /* no other session has it, in any process */
    unsigned place;   /* where others see it, if that is still its own */
    uint64_t seen_ns; /* of the last copy */
    uint64_t round;   /* in which the next two are */
    uint64_t spent;   /* bytes */
    uint64_t carried; /* bytes that it may copy beyond its quantum */
    uint64_t held_ns; /* it has waited in all */
};

/* Turns of several processes, of `processes` at a time, that this one forks from now on: before any
 * session joins. False: no memory. */
bool ibx_turns_share(unsigned processes);
/* In such a process, before any session joins. An owner is the same pointer in all of them. */
void ibx_turns_are_of(unsigned process);
/* In the one that has forked it: it has ended, and holds no turns any more. */
void ibx_turns_ended(unsigned process);

/* Begins with zeros, on GPU 0. `weight` is 1 or more. */
void ibx_turn_join(struct ibx_turn *turn, const void *owner, unsigned weight);
/* Accepts one that has not joined. */
void ibx_turn_leave(struct ibx_turn *turn);
/* It copies to and from that GPU from now on. Accepts one that has not joined. */
void ibx_turn_go(struct ibx_turn *turn, unsigned gpu);

enum ibx_turn_company {
    IBX_TURN_ALONE,
    IBX_TURN_NEAR,        /* others have copied lately */
    IBX_TURN_BESIDE_LONG, /* others copy, but none of them little at once */
    IBX_TURN_BESIDE,      /* others copy */
};

/* Who else copies; counts as a copy of nothing. */
enum ibx_turn_company ibx_turn_company(struct ibx_turn *turn);
/* Before `bytes` are given to the GPU: waits for the session's turn. The same. */
enum ibx_turn_company ibx_turn_take(struct ibx_turn *turn, uint64_t bytes);
/* Around calls that give the GPU work and wait for nothing. Waits busily until nobody else of this
 * process and that GPU is in there, but not for long: the other one may have to wait in the driver.
 * False: it was left out, since there is no company, or few processors, or that time is over. */
bool ibx_turn_enter(const struct ibx_turn *turn, enum ibx_turn_company company);
void ibx_turn_exit(const struct ibx_turn *turn, bool entered);
/* What rows of a copy count. */
static inline uint64_t ibx_turn_bytes(uint64_t width, uint64_t rows)
{
    return (width < IBX_TURN_ROW ? IBX_TURN_ROW : width) * rows;
}

#endif
