/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Turns of several processes, which share a simulated clock. Each process makes one step when it
 * is told to: it copies a piece, or waits. */
#include "gpudirect/turns.h"

#include "common/forked.h"
#include "tests/unit/forked_memory.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define PIECE     IBX_TURN_PIECE
#define QUANTUM   IBX_TURN_QUANTUM
#define PIECE_NS  ((uint64_t)5000)
#define ROUND_NS  ((uint64_t)20000000) /* nobody waits longer */
#define PLAYERS   5u
#define SCRIBBLES 300u
#define TRIES     40u

struct answer {
    bool waits;
    enum ibx_turn_company company;
    uint64_t until_ns, held_ns;
};

enum order { COPY, COPY_SHORT, LEAVE, RUN };

static struct shared {
    _Atomic uint64_t now_ns, steps;
} * shared;

static struct player {
    pid_t pid;
    int socket;
    bool waits;
    uint64_t copied, until_ns;
    struct answer last;
} all[PLAYERS];
static unsigned players;

/* the variables of a player's process */
static int ordered = -1;
static bool runs; /* it makes steps by itself */
static uint64_t tick_ns;

int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    (void)clock;
    const uint64_t now = atomic_fetch_add(&shared->now_ns, tick_ns);
    *time = (struct timespec){(time_t)(now / 1000000000u), (long)(now % 1000000000u)};
    return 0;
}

/* ------------------------------------------------------------------- a player's process */

static enum order next_order(void)
{
    enum order order;
    if (read(ordered, &order, sizeof(order)) != sizeof(order))
        _exit(0);
    return order;
}

static void answer(struct answer answer)
{
    if (write(ordered, &answer, sizeof(answer)) != sizeof(answer))
        _exit(1);
}

void __wrap_ibx_forked_wait(atomic_uint *word, unsigned value, uint64_t until_ns);
void __wrap_ibx_forked_wait(atomic_uint *word, unsigned value, uint64_t until_ns)
{
    while (!runs && atomic_load(word) == value && atomic_load(&shared->now_ns) < until_ns) {
        answer((struct answer){.waits = true, .until_ns = until_ns});
        next_order();
    }
}

static _Noreturn void play(unsigned process, const void *owner, unsigned weight)
{
    struct ibx_turn turn;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ibx_turns_are_of(process);
    ibx_turn_join(&turn, owner, weight);
    answer((struct answer){0});
    for (;;) {
        const enum order order = next_order();
        struct answer done = {0};
        if (order == LEAVE)
            ibx_turn_leave(&turn);
        else
            done.company = ibx_turn_take(&turn, order == COPY ? PIECE : 1);
        done.held_ns = turn.held_ns;
        if (order != RUN) {
            answer(done);
            continue;
        }
        runs = true;
        tick_ns = 1000;
        for (answer(done);; atomic_fetch_add(&shared->steps, 1))
            ibx_turn_take(&turn, PIECE);
    }
}

/* ----------------------------------------------------------------------------- the test */

static struct player *begin(unsigned process, const void *owner, unsigned weight)
{
    struct player *p = &all[process];
    int sockets[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    *p = (struct player){.pid = fork(), .socket = sockets[0]};
    assert_true(p->pid >= 0);
    if (!p->pid) {
        close(sockets[0]);
        ordered = sockets[1];
        play(process, owner, weight);
    }
    close(sockets[1]);
    assert_int_equal(read(p->socket, &p->last, sizeof(p->last)), sizeof(p->last));
    players = players > process ? players : process + 1;
    return p;
}

static void killed(struct player *p)
{
    if (p->pid <= 0)
        return;
    kill(p->pid, SIGKILL);
    assert_int_equal(waitpid(p->pid, NULL, 0), p->pid);
    close(p->socket);
    p->pid = 0;
}

static void ended(struct player *p)
{
    killed(p);
    ibx_turns_ended((unsigned)(p - all));
}

static int set_up(void **state)
{
    (void)state;
    alarm(100);
    atomic_fetch_add(&shared->now_ns, (uint64_t)100 * 1000000000u);
    assert_true(ibx_turns_share(PLAYERS));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    while (players)
        ended(&all[--players]);
    return 0;
}

static struct answer tell(struct player *p, enum order order)
{
    assert_int_equal(write(p->socket, &order, sizeof(order)), sizeof(order));
    assert_int_equal(read(p->socket, &p->last, sizeof(p->last)), sizeof(p->last));
    const uint64_t now = atomic_load(&shared->now_ns);
    p->waits = p->last.waits;
    p->until_ns = p->last.until_ns;
    assert_true(!p->waits || p->until_ns <= now + ROUND_NS);
    return p->last;
}

/* When all of them wait, the clock advances to the end of the first wait. */
static void pass_time(void)
{
    uint64_t first = UINT64_MAX;
    for (unsigned i = 0; i < players; i++) {
        if (all[i].pid && !all[i].waits)
            return;
        first = all[i].pid && all[i].until_ns < first ? all[i].until_ns : first;
    }
    if (first > atomic_load(&shared->now_ns))
        atomic_store(&shared->now_ns, first);
}

static void step(struct player *p)
{
    if (!tell(p, COPY).waits) {
        p->copied += PIECE;
        atomic_fetch_add(&shared->now_ns, PIECE_NS);
    }
    pass_time();
}

/* Lets each process copy as many pieces as `times` says in each round. */
static void share_gpu_for(const unsigned *times, unsigned rounds)
{
    for (unsigned i = 0; i < players; i++)
        all[i].copied = 0;
    for (unsigned i = 0; i < rounds; i++) {
        for (unsigned k = 0; k < players; k++) {
            for (unsigned n = 0; n < times[k]; n++)
                step(&all[k]);
        }
    }
}

static void assert_ratio(uint64_t a, uint64_t b, double ratio)
{
    const double is = (double)a / (double)b;
    if (is < ratio * 0.93 || is > ratio * 1.07)
        fail_msg("%.3f to one, not %.3f", is, ratio);
}

/* ------------------------------------------------------------------------------- company */

static void test_company(void **state)
{
    (void)state;
    struct player *a = begin(0, NULL, 100);
    assert_int_equal(tell(a, COPY).company, IBX_TURN_ALONE);
    struct player *b = begin(1, NULL, 100);
    assert_int_equal(tell(a, COPY).company, IBX_TURN_ALONE);
    assert_int_equal(tell(b, COPY).company, IBX_TURN_BESIDE_LONG);
    assert_int_equal(tell(a, COPY).company, IBX_TURN_BESIDE_LONG);
    assert_int_equal(tell(b, COPY_SHORT).company, IBX_TURN_BESIDE);
    assert_int_equal(tell(a, COPY).company, IBX_TURN_BESIDE);
    atomic_fetch_add(&shared->now_ns, IBX_TURN_BUSY_NS);
    assert_int_equal(tell(a, COPY).company, IBX_TURN_NEAR);
    tell(b, COPY);
    tell(b, LEAVE);
    assert_int_equal(tell(a, COPY).company, IBX_TURN_ALONE);
}

/* ---------------------------------------------------------------------------------- fair */

static void test_the_faster_waits(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++)
        begin(i, NULL, 100);
    share_gpu_for((unsigned[]){2, 1}, 2000);
    assert_ratio(all[0].copied, all[1].copied, 1);
}

static void test_five(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 5; i++)
        begin(i, NULL, 100);
    share_gpu_for((unsigned[]){3, 2, 2, 2, 3}, 1000);
    for (unsigned i = 1; i < 5; i++)
        assert_ratio(all[i].copied, all[0].copied, 1);
}

static void test_weights(void **state)
{
    (void)state;
    begin(0, "alice", 300);
    begin(1, "bob", 100);
    share_gpu_for((unsigned[]){1, 1}, 3000);
    assert_ratio(all[0].copied, all[1].copied, 3);
}

/* The processes of one owner have the weight of one. */
static void test_owners(void **state)
{
    (void)state;
    static const char owner[] = "alice";
    for (unsigned i = 0; i < 3; i++)
        begin(i, owner, 100);
    begin(3, NULL, 100);
    share_gpu_for((unsigned[]){1, 1, 1, 1}, 3000);
    assert_ratio(all[0].copied + all[1].copied + all[2].copied, all[3].copied, 1);
}

/* processes that have ended or are stopped */

/* The survivor copies for ten rounds, and waits in the present round at most. */
static void copies_on(struct player *p)
{
    const uint64_t held = tell(p, COPY).held_ns;
    while (p->waits)
        step(p);
    const uint64_t began = atomic_load(&shared->now_ns);
    for (p->copied = 0; p->copied < 10 * QUANTUM;)
        step(p);
    assert_true(p->last.held_ns - held <= ROUND_NS);
    assert_true(atomic_load(&shared->now_ns) - began <= ROUND_NS + 10 * QUANTUM / PIECE * PIECE_NS);
}

/* The killed process has copied, or waits for its turn. */
static void test_killed(void **state)
{
    (void)state;
    struct player *a = begin(0, NULL, 100);
    for (unsigned i = 0; i < 10; i++) {
        struct player *b = begin(1, NULL, 100);
        for (unsigned k = 0; k < 20 || (i % 2 && !b->waits); k++) {
            step(a);
            for (unsigned n = 0; n < 1 + k % 2 && !b->waits; n++)
                step(b);
        }
        killed(b);
        if (i % 3)
            copies_on(a); /* the death is not noticed yet */
        ended(b);
        assert_int_equal(tell(a, COPY).waits ? IBX_TURN_ALONE : a->last.company, IBX_TURN_ALONE);
        copies_on(a);
    }
}

/* Waits until the running processes have made this many steps. */
static void wait_for_steps(unsigned long steps)
{
    const uint64_t until = atomic_load(&shared->steps) + steps;
    while (atomic_load(&shared->steps) < until)
        sched_yield();
}

/* From now on the process makes steps by itself. */
static void let_run(struct player *p, unsigned long steps)
{
    tell(p, RUN);
    wait_for_steps(steps);
}

/* Killed at any instruction of a call. */
static void test_killed_at_any_instruction(void **state)
{
    (void)state;
    struct player *a = begin(0, NULL, 100);
    for (unsigned i = 0; i < TRIES; i++) {
        struct player *b = begin(1, NULL, 100), *c = begin(2, NULL, 100);
        let_run(b, i);
        let_run(c, 1 + (unsigned)rand() % 500);
        killed(b);
        wait_for_steps(1000); /* the other one does not wait for it */
        killed(c);
        ended(b);
        ended(c);
        assert_int_equal(tell(a, COPY).company, IBX_TURN_ALONE);
        copies_on(a);
    }
}

static void test_stopped_anywhere(void **state)
{
    (void)state;
    struct player *a = begin(0, NULL, 100);
    for (unsigned i = 0; i < TRIES; i++) {
        int status = 0;
        struct player *b = begin(1, NULL, 100);
        let_run(b, 1 + (unsigned)rand() % 500);
        assert_int_equal(kill(b->pid, SIGSTOP), 0);
        assert_int_equal(waitpid(b->pid, &status, WUNTRACED), b->pid);
        b->waits = true; /* it is stopped while time passes */
        b->until_ns = UINT64_MAX;
        copies_on(a);
        ended(b);
    }
}

/* ------------------------------------------------------------------------------ nonsense */

static uint64_t nonsense(void)
{
    const uint64_t some[] = {0, UINT64_MAX, atomic_load(&shared->now_ns), (unsigned)rand() % 256,
                             (uint64_t)rand() << 32 ^ (uint64_t)rand()};
    return some[(unsigned)rand() % 5];
}

/* Overwrites one in `one_in` of the shared words. */
static void scribble(size_t n, int one_in)
{
    for (size_t at = 0; at + 8 <= n; at += 8) {
        const uint64_t value = nonsense();
        if (rand() % one_in == 0)
            memcpy(shared_bytes + at, &value, 8);
    }
}

/* The others take turns again when the process that wrote nonsense is gone. */
static void assert_healed(void)
{
    ibx_turns_ended(3);
    share_gpu_for((unsigned[]){2, 2, 2}, 100); /* rounds that had started end */
    share_gpu_for((unsigned[]){2, 2, 2}, 2000);
    assert_ratio(all[0].copied, all[1].copied + all[2].copied, 1);
    assert_ratio(all[1].copied, all[2].copied, 1);
}

/* A process of the back end that an attacker controls writes anything to the table. The others
 * continue. */
static void test_nonsense(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++)
        begin(i, i ? "alice" : NULL, 100);
    for (unsigned i = 0; i < SCRIBBLES; i++) {
        scribble(17000, i % 2 ? 1 : 20); /* the words of one GPU */
        for (unsigned k = 0; k < 1 + i % 40; k++)
            for (unsigned n = 0; n < 3; n++)
                step(&all[n]);
    }
    assert_healed();
    for (int byte = 0; byte < 256; byte += 255) {
        memset(shared_bytes, byte, shared_size);
        assert_healed();
    }
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_company),
        CASE(test_the_faster_waits),
        CASE(test_five),
        CASE(test_weights),
        CASE(test_owners),
        CASE(test_killed),
        CASE(test_killed_at_any_instruction),
        CASE(test_stopped_anywhere),
        CASE(test_nonsense),
    };
    shared = __real_ibx_forked_map(sizeof(*shared));
    return shared ? cmocka_run_group_tests_name("turns-processes", tests, NULL, NULL) : 1;
}
