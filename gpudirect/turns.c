/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/turns.h"

#include "common/clock.h"
#include "common/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#define HOLD_MIN_NS ((uint64_t)50000) /* a thread that sleeps comes back no sooner */
#define HOLD_MAX_NS ((uint64_t)20000000)
#define ENTER_NS    ((uint64_t)100000) /* of busy waiting for the driver */

#define GPUS 64u /* beyond that several have their turns together */

/* Of one GPU. */
struct turns {
    pthread_mutex_t mutex;
    pthread_cond_t next;   /* a round has begun */
    struct ibx_turn *last; /* who copied last */
    uint64_t round, began_ns;
    uint64_t total;    /* bytes in this round */
    uint64_t until_ns; /* it ends then; 0: nobody has had his turn yet */
    uint64_t short_ns; /* when somebody made a short copy */
    atomic_uint joined;
    atomic_bool inside; /* somebody is in the driver */
};

static struct turns gpus[GPUS];
static pthread_once_t begun = PTHREAD_ONCE_INIT;

static void begin(void)
{
    for (unsigned i = 0; i < GPUS; i++) {
        pthread_mutex_init(&gpus[i].mutex, NULL);
        pthread_cond_init(&gpus[i].next, NULL);
        gpus[i].round = 1;
    }
}

static struct turns *turns_of(const struct ibx_turn *turn)
{
    return &gpus[turn->gpu % GPUS];
}

/* All of these are called with the mutex. */

static void unlink_turn(struct turns *turns, struct ibx_turn *turn)
{
    if (turn->before)
        turn->before->next = turn->next;
    else
        turns->last = turn->next;
    if (turn->next)
        turn->next->before = turn->before;
    turn->next = turn->before = NULL;
}

static void link_first(struct turns *turns, struct ibx_turn *turn)
{
    turn->next = turns->last;
    if (turns->last)
        turns->last->before = turn;
    turns->last = turn;
}

static void round_begin(struct turns *turns, uint64_t now)
{
    turns->round++;
    turns->began_ns = now;
    turns->total = 0;
    turns->until_ns = 0;
    pthread_cond_broadcast(&turns->next);
}

static bool is_busy(const struct ibx_turn *turn, uint64_t now)
{
    return now - turn->seen_ns < IBX_TURN_BUSY_NS || turn->seen_ns > now;
}

/* Of an owner's busy sessions each has its part. */
static uint64_t quantum(const struct turns *turns, const struct ibx_turn *turn, uint64_t now)
{
    uint64_t sharing = 1;
    for (const struct ibx_turn *t = turns->last; turn->owner && t && is_busy(t, now); t = t->next)
        sharing += t != turn && t->owner == turn->owner;
    return IBX_TURN_QUANTUM * turn->weight / IBX_TURN_WEIGHT / sharing + 1;
}

/* What it may still copy in this round. */
static uint64_t left(const struct turns *turns, const struct ibx_turn *turn, uint64_t now)
{
    uint64_t most = quantum(turns, turn, now);
    if (turn->round == turns->round)
        most += turn->carried;
    const uint64_t spent = turn->round == turns->round ? turn->spent : 0;
    return spent < most ? most - spent : 0;
}

/* It comes into the round of now. What it had left is carried, or what it copied beyond that,
 * unless it was away. */
static void catch_up(const struct turns *turns, struct ibx_turn *turn, bool was_busy, uint64_t now)
{
    if (turn->round == turns->round)
        return;
    const uint64_t most = quantum(turns, turn, now), all = most + turn->carried;
    const uint64_t rest = turn->spent < all ? all - turn->spent : 0;
    const uint64_t debt = turn->spent > all ? turn->spent - all : 0;
    turn->carried = !was_busy ? 0 : rest < most / 8 ? rest : most / 8;
    turn->spent = !was_busy ? 0 : debt < most ? debt : most;
    turn->round = turns->round;
}

/* Bytes that sessions as busy as this one have left. */
static uint64_t others_left(const struct turns *turns, const struct ibx_turn *turn, uint64_t now)
{
    const uint64_t most = quantum(turns, turn, now),
                   half = (turn->spent < most ? turn->spent : most) / 2;
    uint64_t sum = 0;
    for (const struct ibx_turn *t = turns->last; t && is_busy(t, now); t = t->next) {
        if (t != turn && t->round == turns->round && t->spent >= half)
            sum += left(turns, t, now);
    }
    return sum;
}

/* This session has had its turn: waits for the end of the round, which it begins if nobody else
 * has. */
static void wait_for_others(struct turns *turns, struct ibx_turn *turn, uint64_t now)
{
    const uint64_t round = turns->round, began = now;
    uint64_t rest = others_left(turns, turn, now);
    if (rest && !turns->until_ns) {
        const uint64_t taken = now - turns->began_ns;
        uint64_t hold = (uint64_t)((double)taken * (double)rest / (double)turns->total);
        hold = hold > taken * 3 / 5 ? hold : taken * 3 / 5;
        hold = hold < HOLD_MIN_NS ? HOLD_MIN_NS : hold > HOLD_MAX_NS ? HOLD_MAX_NS : hold;
        turns->until_ns = now + hold;
    }
    while (turns->round == round && rest && now < turns->until_ns) {
        const struct timespec until = ibx_timespec_of(turns->until_ns);
        pthread_cond_clockwait(&turns->next, &turns->mutex, CLOCK_MONOTONIC, &until);
        now = ibx_now_ns();
        rest = turns->round == round ? others_left(turns, turn, now) : 0;
    }
    turn->held_ns += now - began;
    if (turns->round == round)
        round_begin(turns, now);
}

/* ------------------------------------------------------------------------ the calls */

/* At the end of those of its GPU. */
static void enter_list(struct ibx_turn *turn)
{
    struct turns *turns = turns_of(turn);
    pthread_mutex_lock(&turns->mutex);
    struct ibx_turn **at = &turns->last, *before = NULL;
    while (*at) {
        before = *at;
        at = &before->next;
    }
    turn->before = before;
    *at = turn;
    atomic_fetch_add(&turns->joined, 1);
    pthread_mutex_unlock(&turns->mutex);
}

/* Who waits for this one finds the round over. */
static void leave_list(struct ibx_turn *turn)
{
    struct turns *turns = turns_of(turn);
    pthread_mutex_lock(&turns->mutex);
    unlink_turn(turns, turn);
    atomic_fetch_sub(&turns->joined, 1);
    pthread_cond_broadcast(&turns->next);
    pthread_mutex_unlock(&turns->mutex);
}

void ibx_turn_join(struct ibx_turn *turn, const void *owner, unsigned weight)
{
    pthread_once(&begun, begin);
    *turn = (struct ibx_turn){.joined = true, .owner = owner, .weight = weight ? weight : 1};
    enter_list(turn);
}

void ibx_turn_leave(struct ibx_turn *turn)
{
    if (turn->joined)
        leave_list(turn);
    turn->joined = false;
}

void ibx_turn_go(struct ibx_turn *turn, unsigned gpu)
{
    if (!turn->joined || turn->gpu == gpu)
        return;
    leave_list(turn);
    *turn = (struct ibx_turn){.joined = true,
                              .owner = turn->owner,
                              .weight = turn->weight,
                              .gpu = gpu,
                              .held_ns = turn->held_ns};
    enter_list(turn);
}

static enum ibx_turn_company company(const struct turns *turns, const struct ibx_turn *turn,
                                     uint64_t now)
{
    const struct ibx_turn *other = turn->next;
    if (!other || !other->seen_ns)
        return IBX_TURN_ALONE;
    if (!is_busy(other, now))
        return now - other->seen_ns < IBX_TURN_NEAR_NS ? IBX_TURN_NEAR : IBX_TURN_ALONE;
    return now - turns->short_ns < IBX_TURN_BUSY_NS || turns->short_ns > now ? IBX_TURN_BESIDE
                                                                             : IBX_TURN_BESIDE_LONG;
}

enum ibx_turn_company ibx_turn_take(struct ibx_turn *turn, uint64_t bytes)
{
    struct turns *turns = turn && turn->joined ? turns_of(turn) : NULL;
    if (!turns || atomic_load_explicit(&turns->joined, memory_order_relaxed) == 1)
        return IBX_TURN_ALONE;
    const uint64_t now = ibx_now_ns();
    pthread_mutex_lock(&turns->mutex);
    const bool was_busy = is_busy(turn, now);
    if (turns->last && !is_busy(turns->last, now)) /* nobody has copied for a while */
        round_begin(turns, now);
    turn->seen_ns = now;
    if (bytes && bytes <= IBX_TURN_SHORT)
        turns->short_ns = now;
    if (turns->last != turn) {
        unlink_turn(turns, turn);
        link_first(turns, turn);
    }
    const enum ibx_turn_company with = company(turns, turn, now);
    catch_up(turns, turn, was_busy, now);
    turn->spent += bytes;
    turns->total += bytes;
    if (bytes && !left(turns, turn, now)) {
        if (turns->until_ns) /* somebody waits, for this one perhaps */
            pthread_cond_broadcast(&turns->next);
        wait_for_others(turns, turn, now);
        turn->seen_ns = ibx_now_ns();
        unlink_turn(turns, turn); /* others have copied meanwhile */
        link_first(turns, turn);
    }
    pthread_mutex_unlock(&turns->mutex);
    return with;
}

enum ibx_turn_company ibx_turn_company(struct ibx_turn *turn)
{
    return ibx_turn_take(turn, 0);
}

/* ------------------------------------------------------------------ into the driver */

static bool processors_abound(void)
{
    static atomic_uint spins; /* 0: not known, 1: they do, 2: they do not */
    if (!atomic_load_explicit(&spins, memory_order_relaxed))
        atomic_store(&spins, ibx_thread_may_spin() ? 1 : 2);
    return atomic_load_explicit(&spins, memory_order_relaxed) == 1;
}

static bool try_enter(struct turns *turns)
{
    return !atomic_load_explicit(&turns->inside, memory_order_relaxed) &&
           !atomic_exchange_explicit(&turns->inside, true, memory_order_acquire);
}

bool ibx_turn_enter(const struct ibx_turn *turn, enum ibx_turn_company company)
{
    if (!turn || company < IBX_TURN_BESIDE_LONG || !processors_abound())
        return false;
    uint64_t until = 0;
    for (unsigned i = 0; !try_enter(turns_of(turn)); i++) {
        if (i % 64 == 0) {
            const uint64_t now = ibx_now_ns();
            until = until ? until : now + ENTER_NS;
            if (now > until)
                return false;
        }
        ibx_cpu_relax();
    }
    return true;
}

void ibx_turn_exit(const struct ibx_turn *turn, bool entered)
{
    if (entered)
        atomic_store_explicit(&turns_of(turn)->inside, false, memory_order_release);
}
