/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Threads that copy: every piece is copied and reported once, and none after the end. */
#include "gpudirect/copy_threads.h"
#include "tests/fixtures/patience.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define PIECE  ((size_t)5000)
#define PIECES 400u

static uint8_t peer[PIECES * PIECE], local[PIECES * PIECE];

struct copying {
    atomic_uint begun, running, most;
    unsigned fail_at; /* the piece that fails; 0: none */
    unsigned meet;    /* how many pieces wait for each other */
    unsigned wide;    /* threads of this copy; 0: the usual number */
    size_t slice;     /* bytes of a slice; 0: a whole piece */
    pthread_t owner;
    atomic_bool owners; /* the owner has copied */
    atomic_bool others; /* a thread other than the owner has copied */
    atomic_bool failed; /* the failing piece has ended */
    atomic_bool told;   /* the owner has been told of the failure */
};

/* Delays other pieces until the failure is reported, even if its thread gets no processor. */
static void outlast_failure(struct copying *c, unsigned piece, bool owner)
{
    while (piece > c->fail_at && !(owner ? c->failed : c->told))
        sched_yield();
    for (unsigned i = 0; i < 500; i++)
        sched_yield();
}

static int copy(void *context, void *to, uint64_t offset, size_t n)
{
    struct copying *c = context;
    /* counted before the others notice: pieces that wait for each other end once the last one
     * has started */
    unsigned now = ++c->running, piece = ++c->begun, most = c->most;
    while (now > most && !atomic_compare_exchange_weak(&c->most, &most, now))
        ;
    const bool owner = pthread_equal(pthread_self(), c->owner), fails = piece == c->fail_at;
    if (owner)
        c->owners = true;
    else
        c->others = true;
    while (piece <= c->meet && c->begun < c->meet)
        sched_yield();
    if (c->fail_at && !fails)
        outlast_failure(c, piece, owner);
    memcpy(to, peer + offset, n);
    c->running--;
    if (fails)
        c->failed = true;
    return fails ? -ESRCH : 0;
}

/* Copies all pieces through eight slots. */
static int copy_all(struct ibx_copy_threads *t, struct copying *c)
{
    unsigned next = 0, over = 0;
    uint32_t busy = 0;
    int rc = 0;
    c->owner = pthread_self();
    ibx_copy_threads_begin(t, copy, c);
    if (c->wide)
        ibx_copy_threads_widen(t, c->wide, c->slice ? c->slice : PIECE);
    while (over < PIECES && !rc) {
        for (unsigned slot = 0; slot < 8 && next < PIECES; slot++) {
            if (busy & 1u << slot)
                continue;
            busy |= 1u << slot;
            ibx_copy_threads_post(t, slot, local + next * PIECE, next * PIECE, PIECE);
            next++;
        }
        uint32_t slots = 0;
        rc = ibx_copy_threads_take(t, true, &slots);
        assert_true(rc || (slots && (slots & busy) == slots));
        busy &= ~slots;
        over += (unsigned)__builtin_popcount(slots);
    }
    c->told = rc != 0;
    ibx_copy_threads_stop(t);
    assert_int_equal(c->running, 0);
    return rc;
}

static void test_all_pieces(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(peer); i++)
        peer[i] = (uint8_t)(i * 31 + i / 997);
    for (unsigned threads = 1; threads <= IBX_COPY_THREADS_MAX; threads += 3) {
        struct ibx_copy_threads *t;
        struct copying c = {.meet = threads < 8 ? threads : 8};
        assert_int_equal(ibx_copy_threads_create(threads, &t, NULL), 0);
        memset(local, 0, sizeof(local));
        assert_int_equal(copy_all(t, &c), 0);
        assert_memory_equal(local, peer, sizeof(peer));
        assert_int_equal(c.begun, PIECES);
        /* the pieces did run at the same time */
        assert_true(c.most <= threads && c.most >= c.meet);
        assert_int_equal(c.others, threads > 1);
        ibx_copy_threads_destroy(t);
    }
}

/* More threads take part in a long copy; the next copy has the usual number again. */
static void test_more_threads_for_a_long_copy(void **state)
{
    (void)state;
    struct ibx_copy_threads *t;
    assert_int_equal(ibx_copy_threads_create(3, &t, NULL), 0);
    for (unsigned round = 0; round < 20; round++) {
        struct copying wide = {.meet = 5, .wide = 6}, usual = {.meet = 3};
        struct copying failing = {.fail_at = 9, .wide = 6};
        memset(local, 0, sizeof(local));
        assert_int_equal(copy_all(t, &wide), 0);
        assert_memory_equal(local, peer, sizeof(peer));
        assert_int_equal(wide.begun, PIECES);
        assert_int_equal(wide.most, 5); /* the owner has other work */
        assert_false(wide.owners);
        assert_int_equal(copy_all(t, &usual), 0);
        assert_int_equal(usual.most, 3);
        assert_int_equal(copy_all(t, &failing), -ESRCH);
    }
    ibx_copy_threads_destroy(t);
}

/* Several threads copy one piece, which is reported once. */
static void test_slices(void **state)
{
    (void)state;
    struct ibx_copy_threads *t;
    assert_int_equal(ibx_copy_threads_create(2, &t, NULL), 0);
    for (unsigned round = 0; round < 20; round++) {
        struct copying c = {.meet = 4}, all = {.wide = 6, .slice = 1100};
        struct copying failing = {.fail_at = 33, .wide = 6, .slice = 1100};
        uint32_t slots = 0;
        c.owner = pthread_self();
        memset(local, 0, sizeof(local));
        ibx_copy_threads_begin(t, copy, &c);
        ibx_copy_threads_widen(t, 6, 1000);
        ibx_copy_threads_post(t, 7, local, 0, 3500); /* four slices, which wait for each other */
        assert_int_equal(ibx_copy_threads_take(t, true, &slots), 0);
        assert_int_equal(slots, 1u << 7);
        slots = 0;
        assert_int_equal(ibx_copy_threads_take(t, false, &slots), 0);
        assert_int_equal(slots, 0);
        ibx_copy_threads_stop(t);
        assert_memory_equal(local, peer, 3500);
        assert_int_equal(local[3500], 0);
        assert_int_equal(copy_all(t, &all), 0);
        assert_memory_equal(local, peer, sizeof(peer));
        assert_int_equal(all.begun, 5 * PIECES);
        assert_int_equal(copy_all(t, &failing), -ESRCH);
    }
    ibx_copy_threads_destroy(t);
}

/* Every call reports the failure until the next copy begins, even a call that does not wait. */
static void test_failure_is_reported(void **state)
{
    (void)state;
    struct ibx_copy_threads *t;
    struct copying c = {.fail_at = 1};
    uint32_t slots = 0;
    c.owner = pthread_self();
    assert_int_equal(ibx_copy_threads_create(3, &t, NULL), 0);
    ibx_copy_threads_begin(t, copy, &c);
    assert_int_equal(ibx_copy_threads_take(t, false, &slots), 0);
    ibx_copy_threads_post(t, 0, local, 0, PIECE);
    assert_int_equal(ibx_copy_threads_take(t, true, &slots), -ESRCH);
    assert_int_equal(ibx_copy_threads_take(t, false, &slots), -ESRCH);
    assert_int_equal(ibx_copy_threads_take(t, false, &slots), -ESRCH);
    ibx_copy_threads_stop(t);
    c = (struct copying){.owner = pthread_self()};
    ibx_copy_threads_begin(t, copy, &c);
    assert_int_equal(ibx_copy_threads_take(t, false, &slots), 0);
    ibx_copy_threads_stop(t);
    ibx_copy_threads_destroy(t);
}

/* A whole copy, of any length and with any number of threads. */
static void test_one_copy(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(peer); i++)
        peer[i] = (uint8_t)(i * 7 + i / 251 + 1);
    static const size_t lengths[] = {0, 1, 5000, (256u << 10) + 1, 1299999, sizeof(peer) - 3};
    for (unsigned threads = 1; threads <= IBX_COPY_THREADS_MAX; threads += 5) {
        struct ibx_copy_threads *t;
        assert_int_equal(ibx_copy_threads_create(threads, &t, NULL), 0);
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            struct copying c = {.owner = pthread_self()};
            size_t n = lengths[i];
            memset(local, 0, sizeof(local));
            assert_int_equal(ibx_copy_threads_run(t, copy, &c, local + 1, 2, n), 0);
            assert_memory_equal(local + 1, peer + 2, n);
            assert_true(!local[0] && !local[n + 1]);
            assert_int_equal(c.running, 0);
        }
        struct copying c = {.owner = pthread_self(), .fail_at = 1, .told = true};
        assert_int_equal(ibx_copy_threads_run(t, copy, &c, local, 0, sizeof(peer)), -ESRCH);
        assert_int_equal(c.running, 0);
        ibx_copy_threads_destroy(t);
    }
}

/* The first failure is returned, the remaining pieces are not started, then or with the next copy,
 * and the threads are ready for that. The owner alone starts none behind the failure. */
static void test_failure(void **state)
{
    (void)state;
    for (unsigned threads = 1; threads <= 4; threads += 3) {
        struct ibx_copy_threads *t;
        assert_int_equal(ibx_copy_threads_create(threads, &t, NULL), 0);
        for (unsigned at = 1; at < PIECES; at = at * 3 + 1) {
            struct copying c = {.fail_at = at}, again = {0};
            assert_int_equal(copy_all(t, &c), -ESRCH);
            assert_true(c.begun >= at && c.begun <= at + (threads > 1 ? 8 : 0));
            assert_int_equal(copy_all(t, &again), 0);
            assert_int_equal(again.begun, PIECES);
        }
        ibx_copy_threads_destroy(t);
    }
    ibx_copy_threads_destroy(NULL);
}

/* A child has no threads to wait for. */
static void test_fork(void **state)
{
    (void)state;
    struct ibx_copy_threads *t;
    assert_int_equal(ibx_copy_threads_create(4, &t, NULL), 0);
    pid_t child = fork();
    if (!child) {
        ibx_copy_threads_destroy(t);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    ibx_copy_threads_destroy(t);
}

#define WATCHED ((size_t)1 << 20)

static struct {
    uint8_t *at;
    int fd;
    atomic_int signal; /* the latest signal for this memory */
    pthread_t owner;
    atomic_bool in_copy_thread;
} watched;

static void touched(int number)
{
    watched.signal = number;
    watched.in_copy_thread = !pthread_equal(pthread_self(), watched.owner);
    if (number == SIGBUS ? ftruncate(watched.fd, (off_t)WATCHED)
                         : mprotect(watched.at, WATCHED, PROT_READ | PROT_WRITE))
        abort();
}

/* Copies one piece by the other thread: a caller that does not wait copies nothing itself. */
static void copy_into_watched(struct ibx_copy_threads *t)
{
    struct copying c = {.owner = pthread_self()};
    uint32_t slots = 0;
    watched.signal = 0;
    ibx_copy_threads_begin(t, copy, &c);
    ibx_copy_threads_post(t, 3, watched.at, 0, PIECE);
    while (!slots) {
        assert_int_equal(ibx_copy_threads_take(t, false, &slots), 0);
        sched_yield();
    }
    assert_int_equal(slots, 1u << 3);
    assert_memory_equal(watched.at, peer, PIECE);
    assert_true(watched.in_copy_thread);
}

/* An application may watch memory by its signals, for checkpoints or garbage collection. If a
 * copying thread had blocked them, the process would end. */
static void test_signals_of_memory(void **state)
{
    (void)state;
    struct ibx_copy_threads *t;
    struct sigaction action = {.sa_handler = touched}, segv, bus;
    assert_int_equal(ibx_copy_threads_create(2, &t, NULL), 0);
    sigaction(SIGSEGV, &action, &segv);
    sigaction(SIGBUS, &action, &bus);
    watched.owner = pthread_self();
    watched.fd = memfd_create("watched", MFD_CLOEXEC);
    assert_int_equal(ftruncate(watched.fd, (off_t)WATCHED), 0);
    watched.at = mmap(NULL, WATCHED, PROT_READ, MAP_SHARED, watched.fd, 0);
    assert_true(watched.at != MAP_FAILED);
    memset(peer, 1, PIECE);
    copy_into_watched(t);
    assert_int_equal(watched.signal, SIGSEGV);
    assert_int_equal(ftruncate(watched.fd, 0), 0); /* the memory has no pages any more */
    memset(peer, 2, PIECE);
    copy_into_watched(t);
    assert_int_equal(watched.signal, SIGBUS);
    sigaction(SIGSEGV, &segv, NULL);
    sigaction(SIGBUS, &bus, NULL);
    munmap(watched.at, WATCHED);
    close(watched.fd);
    ibx_copy_threads_destroy(t);
}

/* ------------------------------------------------------------------------------ idle */

static struct {
    atomic_bool armed;  /* no calls come, and waits are short */
    atomic_uint asleep; /* threads that have waited */
    /* waits, looks at the clock, and yields before the first wait, by threads other than the owner
     */
    atomic_uint waits, readings, yields;
    pthread_t owner;
} idle;

static _Thread_local bool has_waited;

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    idle.readings += idle.armed && !pthread_equal(pthread_self(), idle.owner);
    return __real_clock_gettime(clock, time);
}

int __real_sched_yield(void);
int __wrap_sched_yield(void);
int __wrap_sched_yield(void)
{
    idle.yields += idle.armed && !has_waited && !pthread_equal(pthread_self(), idle.owner);
    return __real_sched_yield();
}

bool __real_ibx_thread_may_spin(void);
bool __wrap_ibx_thread_may_spin(void);
bool __wrap_ibx_thread_may_spin(void)
{
    return idle.armed || __real_ibx_thread_may_spin();
}

bool __real_ibx_thread_wait(pthread_cond_t *condition, pthread_mutex_t *lock);
bool __wrap_ibx_thread_wait(pthread_cond_t *condition, pthread_mutex_t *lock);
bool __wrap_ibx_thread_wait(pthread_cond_t *condition, pthread_mutex_t *lock)
{
    if (!idle.armed)
        return __real_ibx_thread_wait(condition, lock);
    idle.asleep += !has_waited;
    has_waited = true;
    idle.waits++;
    pthread_mutex_unlock(lock);
    sched_yield();
    pthread_mutex_lock(lock);
    return false;
}

/* A thread that only wakes because its wait is over does not poll before it sleeps again. */
static void test_idle(void **state)
{
    (void)state;
    struct ibx_copy_threads *t;
    idle.owner = pthread_self();
    idle.armed = true;
    assert_int_equal(ibx_copy_threads_create(3, &t, NULL), 0);
    while (idle.asleep < 2)
        sched_yield();
    const unsigned readings = idle.readings, waits = idle.waits;
    assert_true(readings); /* the threads have looked for work at first */
    while (idle.waits < waits + 10)
        sched_yield();
    assert_int_equal(idle.readings, readings);
    idle.armed = false;
    struct copying c = {.meet = 3};
    memset(local, 0, sizeof(local));
    assert_int_equal(copy_all(t, &c), 0);
    assert_memory_equal(local, peer, sizeof(peer));
    ibx_copy_threads_destroy(t);
}

/* Threads that look for work let others run, which may have the work and no processor. One that
 * loses its own processor at once does not look for long, so this tries again. */
static void test_looking_yields(void **state)
{
    (void)state;
    idle.owner = pthread_self();
    idle.armed = true;
    for (unsigned tries = 0; tries < 300 && !idle.yields; tries++) {
        struct ibx_copy_threads *t;
        const unsigned before = idle.asleep;
        assert_int_equal(ibx_copy_threads_create(3, &t, NULL), 0);
        while (idle.asleep < before + 2)
            sched_yield();
        ibx_copy_threads_destroy(t);
    }
    idle.armed = false;
    assert_true(idle.yields);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_pieces), cmocka_unit_test(test_more_threads_for_a_long_copy),
        cmocka_unit_test(test_slices),     cmocka_unit_test(test_failure_is_reported),
        cmocka_unit_test(test_one_copy),   cmocka_unit_test(test_failure),
        cmocka_unit_test(test_fork),       cmocka_unit_test(test_signals_of_memory),
        cmocka_unit_test(test_idle),       cmocka_unit_test(test_looking_yields),
    };
    alarm(120 * patience_times());
    return cmocka_run_group_tests_name("copy_threads", tests, NULL, NULL);
}
