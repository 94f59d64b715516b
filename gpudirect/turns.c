/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/turns.h"

#include "common/clock.h"
#include "common/forked.h"
#include "common/thread.h"

#include <pthread.h>
#include <stdatomic.h>

#define HOLD_MIN_NS ((uint64_t)50000) /* waking a sleeping thread takes as long */
#define HOLD_MAX_NS ((uint64_t)20000000)
#define ENTER_NS    ((uint64_t)100000) /* longest busy waiting for the driver */

#define GPUS    64u /* GPUs beyond that share turns with others */
#define LINE    64u /* bytes of a cache line */
#define BITS    64u
#define PROCESS 48u /* an id has the process from this bit on, the session below */

typedef _Atomic uint64_t number;

/* What other sessions see of a session that copies. Only that session writes it. */
struct seen {
    _Alignas(LINE) number ns; /* time of its last copy: IBX_TURN_BUSY_NS later the place is free */
    number id, owner;
    number round, spent, left; /* bytes that it has copied in that round, and may still copy */
};

struct copied {
    number id, ns;
};

/* The state of one GPU. Each number is atomic, but several read together may be of different
 * moments: they are estimates. */
struct turns {
    _Alignas(LINE) atomic_uint event; /* futex: changed to make waiting sessions look again */
    atomic_uint used;                 /* places in use are all below this index */
    number round, began_ns;
    number total;               /* bytes in this round */
    number until_ns;            /* when the round ends at the latest; 0: no session waits yet */
    number short_ns;            /* time of the last short copy */
    struct copied last, before; /* the session that copied last, and the last other one before */
    struct seen seen[IBX_TURN_SEEN];
};

static struct turns own[GPUS];
static struct turns *gpus = own; /* or in memory that several processes share */

/* With several processes: `words` words for each GPU, in which a bit says that the process has
 * sessions there. NULL: there is one process only. */
static number *present;
static unsigned words, process;

/* Of this process, for each GPU. */
static struct {
    _Alignas(LINE) atomic_uint joined; /* sessions */
    atomic_bool inside;                /* a session is between ibx_turn_enter() and _exit() */
} here[GPUS];
static pthread_mutex_t joins = PTHREAD_MUTEX_INITIALIZER;
static number sessions;

static uint64_t get(const number *at)
{
    return atomic_load_explicit(at, memory_order_relaxed);
}

static void set(number *at, uint64_t value)
{
    atomic_store_explicit(at, value, memory_order_relaxed);
}

static struct turns *turns_of(const struct ibx_turn *turn)
{
    return &gpus[turn->gpu % GPUS];
}

static unsigned used(const struct turns *turns)
{
    const unsigned n = atomic_load_explicit(&turns->used, memory_order_relaxed);
    return n < IBX_TURN_SEEN ? n : IBX_TURN_SEEN;
}

/* `ns` may be later than `now`: other threads have read the clock later, or have written nonsense.
 */
static bool is_within(uint64_t ns, uint64_t now, uint64_t span)
{
    return (now > ns ? now - ns : ns - now) < span;
}

static bool is_busy(uint64_t seen_ns, uint64_t now)
{
    return is_within(seen_ns, now, IBX_TURN_BUSY_NS);
}

/* Makes waiting sessions look again. */
static void wake(struct turns *turns)
{
    atomic_fetch_add(&turns->event, 1);
    ibx_forked_wake(&turns->event);
}

/* A waiting session sets until_ns before it looks at the others, so none is overlooked here. */
static bool anybody_waits(const struct turns *turns)
{
    atomic_thread_fence(memory_order_seq_cst);
    return get(&turns->until_ns);
}

/* ---------------------------------------------------------------------- who is seen */

/* Takes the first free place. NULL: all are taken. */
static struct seen *take_place(struct turns *turns, struct ibx_turn *turn, uint64_t now)
{
    unsigned i = 0, n = used(turns);
    for (;; i++) {
        if (i == IBX_TURN_SEEN)
            return NULL;
        uint64_t ns = get(&turns->seen[i].ns);
        if (!is_busy(ns, now) && atomic_compare_exchange_strong(&turns->seen[i].ns, &ns, now))
            break;
    }
    while (n > i + 1 && !is_busy(get(&turns->seen[n - 1].ns), now))
        n--;
    atomic_store_explicit(&turns->used, n > i ? n : i + 1, memory_order_relaxed);
    turn->place = i;
    set(&turns->seen[i].id, turn->id);
    return &turns->seen[i];
}

static struct seen *place_of(struct turns *turns, const struct ibx_turn *turn)
{
    struct seen *seen = &turns->seen[turn->place];
    return get(&seen->id) == turn->id ? seen : NULL;
}

/* Publishes what others see of this session. With `anew` it takes a place if it has none. */
static void show(struct turns *turns, struct ibx_turn *turn, uint64_t left, bool anew)
{
    struct seen *seen = place_of(turns, turn);
    if (!seen && anew)
        seen = take_place(turns, turn, turn->seen_ns);
    if (!seen)
        return;
    if (used(turns) <= turn->place) /* another session lowered `used` and missed this place */
        atomic_store_explicit(&turns->used, turn->place + 1, memory_order_relaxed);
    set(&seen->owner, (uintptr_t)turn->owner);
    set(&seen->ns, turn->seen_ns);
    set(&seen->round, turn->round);
    set(&seen->spent, turn->spent);
    set(&seen->left, left);
}

static void leave_place(struct seen *seen)
{
    set(&seen->id, 0);
    set(&seen->ns, 0);
}

static void note(struct copied *copied, uint64_t id, uint64_t ns)
{
    set(&copied->id, id);
    set(&copied->ns, ns);
}

/* Finds again which of the visible sessions have copied last. */
static void remember(struct turns *turns)
{
    note(&turns->last, 0, 0);
    note(&turns->before, 0, 0);
    for (unsigned i = 0; i < used(turns); i++) {
        const uint64_t id = get(&turns->seen[i].id), ns = get(&turns->seen[i].ns);
        if (ns > get(&turns->last.ns)) {
            note(&turns->before, get(&turns->last.id), get(&turns->last.ns));
            note(&turns->last, id, ns);
        } else if (ns > get(&turns->before.ns)) {
            note(&turns->before, id, ns);
        }
    }
}

/* Notes that this session copies now. Returns when another one has copied last; 0: never. */
static uint64_t come(struct turns *turns, const struct ibx_turn *turn, uint64_t now)
{
    const uint64_t last = get(&turns->last.id);
    if (last == turn->id) {
        set(&turns->last.ns, now);
        return get(&turns->before.ns);
    }
    const uint64_t ns = get(&turns->last.ns);
    note(&turns->before, last, ns);
    note(&turns->last, turn->id, now);
    return ns;
}

/* ---------------------------------------------------------------------------- rounds */

/* Begins the round after `round`, unless another session has begun it. */
static void round_begin(struct turns *turns, uint64_t round, uint64_t now)
{
    if (!atomic_compare_exchange_strong(&turns->round, &round, round + 1))
        return;
    set(&turns->began_ns, now);
    set(&turns->total, 0);
    if (atomic_exchange(&turns->until_ns, 0))
        wake(turns);
}

/* The session's quantum in bytes. Busy sessions of one owner share that owner's quantum. */
static uint64_t quantum(const struct turns *turns, const struct ibx_turn *turn, uint64_t now)
{
    uint64_t sharing = 1;
    const unsigned n = turn->owner ? used(turns) : 0;
    for (unsigned i = 0; i < n; i++) {
        const struct seen *s = &turns->seen[i];
        sharing += get(&s->owner) == (uintptr_t)turn->owner && get(&s->id) != turn->id &&
                   is_busy(get(&s->ns), now);
    }
    return IBX_TURN_QUANTUM * turn->weight / IBX_TURN_WEIGHT / sharing + 1;
}

/* The session enters the current round. Unless it has been idle, bytes that it had left in its last
 * round are added to its quantum, and bytes that it copied beyond its quantum count in this one. */
static void catch_up(struct ibx_turn *turn, uint64_t round, uint64_t most, bool was_busy)
{
    const uint64_t all = most + turn->carried;
    const uint64_t rest = turn->spent < all ? all - turn->spent : 0;
    const uint64_t debt = turn->spent > all ? turn->spent - all : 0;
    turn->carried = !was_busy ? 0 : rest < most / 8 ? rest : most / 8;
    turn->spent = !was_busy ? 0 : debt < most ? debt : most;
    turn->round = round;
}

/* Bytes that other sessions have left in this round. Those that have copied less than half as much
 * as this one do not count. */
static uint64_t others_left(const struct turns *turns, const struct ibx_turn *turn, uint64_t most,
                            uint64_t now)
{
    const uint64_t half = (turn->spent < most ? turn->spent : most) / 2;
    uint64_t sum = 0;
    for (unsigned i = 0, n = used(turns); i < n; i++) {
        const struct seen *s = &turns->seen[i];
        if (get(&s->id) != turn->id && is_busy(get(&s->ns), now) && get(&s->round) == turn->round &&
            get(&s->spent) >= half)
            sum += get(&s->left);
    }
    return sum;
}

/* When this round, in which the others have `rest` bytes left, ends at the latest. */
static uint64_t end_of_round(struct turns *turns, uint64_t rest, uint64_t now)
{
    const uint64_t age = now - get(&turns->began_ns), total = get(&turns->total);
    const uint64_t taken = age < 2 * HOLD_MAX_NS ? age : 2 * HOLD_MAX_NS;
    const double more = (double)taken * (double)rest / (double)(total ? total : 1);
    uint64_t hold = more < (double)HOLD_MAX_NS ? (uint64_t)more : HOLD_MAX_NS, until = 0;
    hold = hold > taken * 3 / 5 ? hold : taken * 3 / 5;
    hold = hold < HOLD_MIN_NS ? HOLD_MIN_NS : hold > HOLD_MAX_NS ? HOLD_MAX_NS : hold;
    if (atomic_compare_exchange_strong(&turns->until_ns, &until, now + hold))
        return now + hold;
    return until < now + HOLD_MAX_NS ? until : now + HOLD_MAX_NS;
}

/* This session has used up its quantum: waits for the end of the round and begins the next one,
 * unless another session has. */
static void wait_for_others(struct turns *turns, struct ibx_turn *turn, uint64_t most, uint64_t now)
{
    const uint64_t began = now, rest = others_left(turns, turn, most, now);
    const uint64_t until = rest ? end_of_round(turns, rest, now) : now;
    while (now < until) {
        const unsigned event = atomic_load(&turns->event);
        atomic_thread_fence(memory_order_seq_cst);
        if (get(&turns->round) != turn->round || !others_left(turns, turn, most, now))
            break;
        ibx_forked_wait(&turns->event, event, until);
        now = ibx_now_ns();
    }
    turn->held_ns += now - began;
    round_begin(turns, turn->round, now);
}

/* ---------------------------------------------------------------- of several processes */

bool ibx_turns_share(unsigned processes)
{
    const unsigned n = (processes + BITS - 1) / BITS;
    struct turns *all = ibx_forked_map(GPUS * (sizeof(*all) + n * sizeof(*present)));
    if (!all)
        return false;
    gpus = all;
    present = (number *)(all + GPUS);
    words = n;
    return true;
}

void ibx_turns_are_of(unsigned number_of_it)
{
    process = number_of_it;
}

static number *bits_of(unsigned gpu, unsigned of)
{
    return &present[gpu * words + of / BITS];
}

static uint64_t bit_of(unsigned of)
{
    return (uint64_t)1 << of % BITS;
}

static bool is_of(uint64_t id, unsigned of)
{
    return id >> PROCESS == of + 1u;
}

void ibx_turns_ended(unsigned of)
{
    for (unsigned gpu = 0; present && gpu < GPUS; gpu++) {
        struct turns *turns = &gpus[gpu];
        if (!(atomic_fetch_and(bits_of(gpu, of), ~bit_of(of)) & bit_of(of)))
            continue;
        for (unsigned i = 0; i < used(turns); i++) {
            if (is_of(get(&turns->seen[i].id), of))
                leave_place(&turns->seen[i]);
        }
        if (is_of(get(&turns->last.id), of) || is_of(get(&turns->before.id), of))
            remember(turns);
        wake(turns);
    }
}

/* Whether other processes have sessions on this GPU. Sets this process's own bit again if another
 * process has overwritten it. */
static bool others_present(unsigned gpu)
{
    uint64_t others = 0;
    number *bits = bits_of(gpu, process);
    if (!(get(bits) & bit_of(process)))
        atomic_fetch_or(bits, bit_of(process));
    for (unsigned i = 0; i < words; i++)
        others |= get(&present[gpu * words + i]) & ~(i == process / BITS ? bit_of(process) : 0);
    return others;
}

static bool is_alone(unsigned gpu)
{
    const bool several = present && others_present(gpu);
    return !several && atomic_load_explicit(&here[gpu].joined, memory_order_relaxed) == 1;
}

/* ------------------------------------------------------------------------ the calls */

static void enter(const struct ibx_turn *turn)
{
    const unsigned gpu = turn->gpu % GPUS;
    pthread_mutex_lock(&joins);
    if (!atomic_fetch_add(&here[gpu].joined, 1) && present)
        atomic_fetch_or(bits_of(gpu, process), bit_of(process));
    pthread_mutex_unlock(&joins);
}

/* Leaves the GPU's turns. Sessions that waited for this one are woken. */
static void leave(const struct ibx_turn *turn)
{
    const unsigned gpu = turn->gpu % GPUS;
    struct turns *turns = &gpus[gpu];
    struct seen *seen = place_of(turns, turn);
    if (seen)
        leave_place(seen);
    if (get(&turns->last.id) == turn->id || get(&turns->before.id) == turn->id)
        remember(turns);
    wake(turns);
    pthread_mutex_lock(&joins);
    if (atomic_fetch_sub(&here[gpu].joined, 1) == 1 && present)
        atomic_fetch_and(bits_of(gpu, process), ~bit_of(process));
    pthread_mutex_unlock(&joins);
}

void ibx_turn_join(struct ibx_turn *turn, const void *owner, unsigned weight)
{
    const uint64_t id = (uint64_t)(process + 1) << PROCESS | atomic_fetch_add(&sessions, 1);
    *turn =
        (struct ibx_turn){.joined = true, .owner = owner, .weight = weight ? weight : 1, .id = id};
    enter(turn);
}

void ibx_turn_leave(struct ibx_turn *turn)
{
    if (turn->joined)
        leave(turn);
    turn->joined = false;
}

void ibx_turn_go(struct ibx_turn *turn, unsigned gpu)
{
    if (!turn->joined || turn->gpu == gpu)
        return;
    leave(turn);
    *turn = (struct ibx_turn){.joined = true,
                              .owner = turn->owner,
                              .weight = turn->weight,
                              .gpu = gpu,
                              .id = turn->id,
                              .held_ns = turn->held_ns};
    enter(turn);
}

static enum ibx_turn_company company(const struct turns *turns, uint64_t others_ns, uint64_t now)
{
    if (!others_ns || !is_within(others_ns, now, IBX_TURN_NEAR_NS))
        return IBX_TURN_ALONE;
    if (!is_busy(others_ns, now))
        return IBX_TURN_NEAR;
    return is_busy(get(&turns->short_ns), now) ? IBX_TURN_BESIDE : IBX_TURN_BESIDE_LONG;
}

enum ibx_turn_company ibx_turn_take(struct ibx_turn *turn, uint64_t bytes)
{
    if (!turn || !turn->joined || is_alone(turn->gpu % GPUS))
        return IBX_TURN_ALONE;
    struct turns *turns = turns_of(turn);
    const uint64_t now = ibx_now_ns();
    const bool was_busy = is_busy(turn->seen_ns, now);
    if (!is_busy(get(&turns->last.ns), now)) /* nobody has copied for a while */
        round_begin(turns, get(&turns->round), now);
    turn->seen_ns = now;
    if (bytes && bytes <= IBX_TURN_SHORT)
        set(&turns->short_ns, now);
    const enum ibx_turn_company with = company(turns, come(turns, turn, now), now);
    const uint64_t most = quantum(turns, turn, now), round = get(&turns->round);
    const bool comes = turn->round != round;
    if (comes)
        catch_up(turn, round, most, was_busy);
    turn->spent += bytes;
    atomic_fetch_add_explicit(&turns->total, bytes, memory_order_relaxed);
    const uint64_t all = most + turn->carried, left = turn->spent < all ? all - turn->spent : 0;
    show(turns, turn, left, comes || !was_busy);
    if (bytes && !left) {
        if (anybody_waits(turns)) /* perhaps for this session, which has nothing left now */
            wake(turns);
        wait_for_others(turns, turn, most, now);
        turn->seen_ns = ibx_now_ns();
        come(turns, turn, turn->seen_ns);
        show(turns, turn, left, false);
    }
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

static bool try_enter(atomic_bool *inside)
{
    return !atomic_load_explicit(inside, memory_order_relaxed) &&
           !atomic_exchange_explicit(inside, true, memory_order_acquire);
}

bool ibx_turn_enter(const struct ibx_turn *turn, enum ibx_turn_company company)
{
    if (!turn || company < IBX_TURN_BESIDE_LONG || !processors_abound())
        return false;
    uint64_t until = 0;
    for (unsigned i = 0; !try_enter(&here[turn->gpu % GPUS].inside); i++) {
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
        atomic_store_explicit(&here[turn->gpu % GPUS].inside, false, memory_order_release);
}
