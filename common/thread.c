/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/thread.h"

#include "common/clock.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN_PROCESSORS 8
#define PROMPT_NICE     (-10)                 /* added to the present one */
#define YIELD_NICE      5                     /* the same */
#define PROMPT_SLICE    (100 * IBX_NS_PER_US) /* the kernel's minimum */
#define WAIT_MS         3000
#define CREATE_TRIES    20u
#define CREATE_LOOK_US  1000
#define CHECK_MOST      8u
#define GONE_MS         20
#define GONE_LOOK_US    20

/* struct sched_attr of the kernel; glibc 2.36 has no header with it. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period; /* ns; for ordinary threads, `runtime` is their slice */
};

int ibx_thread_begin(pthread_t *thread, void *(*run)(void *), void *argument)
{
    pthread_t detached;
    sigset_t most, before;
    sigfillset(&most);
    sigdelset(&most, SIGSEGV);
    sigdelset(&most, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &most, &before);
    const int rc = pthread_create(thread ? thread : &detached, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!rc && !thread)
        pthread_detach(detached);
    return -rc;
}

int ibx_thread_create(pthread_t *thread, void *(*run)(void *), void *argument)
{
    int rc;
    for (unsigned i = 0;
         (rc = pthread_create(thread, NULL, run, argument)) == EAGAIN && i < CREATE_TRIES; i++)
        usleep(CREATE_LOOK_US);
    return -rc;
}

struct checks {
    pthread_mutex_t until; /* all have been created */
    struct checked {
        struct checks *all;
        pthread_t thread;
        pid_t number;
    } of[CHECK_MOST];
};

static void *tell_number(void *argument)
{
    struct checked *c = argument;
    c->number = gettid();
    pthread_mutex_lock(&c->all->until);
    pthread_mutex_unlock(&c->all->until);
    return NULL;
}

/* A thread that has been joined still counts until the kernel has forgotten its number. */
int ibx_thread_check(unsigned count)
{
    struct checks all = {.until = PTHREAD_MUTEX_INITIALIZER};
    unsigned made = 0;
    int rc = 0;
    pthread_mutex_lock(&all.until);
    for (; !rc && made < count && made < CHECK_MOST; made += !rc) {
        all.of[made].all = &all;
        rc = ibx_thread_create(&all.of[made].thread, tell_number, &all.of[made]);
    }
    pthread_mutex_unlock(&all.until);
    for (unsigned i = 0; i < made; i++)
        pthread_join(all.of[i].thread, NULL);
    const uint64_t deadline = ibx_deadline_in_ms(GONE_MS);
    for (unsigned i = 0; i < made; i++)
        while (!tgkill(getpid(), all.of[i].number, 0) && ibx_now_ns() < deadline)
            usleep(GONE_LOOK_US);
    return rc;
}

/* Threads with another policy stay as they are. */
static void slice_set(uint64_t ns)
{
    struct attributes a = {.size = sizeof(a)};
    if (syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0) || a.policy != SCHED_OTHER)
        return;
    a.flags = 0;
    a.runtime = ns;
    syscall(SYS_sched_setattr, 0, &a, 0);
}

static void nice_add(int more)
{
    errno = 0;
    const int nice = getpriority(PRIO_PROCESS, 0);
    if (!errno)
        setpriority(PRIO_PROCESS, 0, nice + more);
}

void ibx_thread_prompt(void)
{
    nice_add(PROMPT_NICE);
    slice_set(PROMPT_SLICE);
}

void ibx_thread_give_way(void)
{
    if (ibx_thread_may_spin())
        nice_add(YIELD_NICE);
}

/* sched_getaffinity() fails with more processors than the set has bits. */
unsigned ibx_thread_processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) ? CPU_SETSIZE : (unsigned)CPU_COUNT(&set);
}

bool ibx_thread_may_spin(void)
{
    return ibx_thread_processors() >= SPIN_PROCESSORS;
}

bool ibx_thread_wait(pthread_cond_t *condition, pthread_mutex_t *lock)
{
    const struct timespec until = ibx_timespec_of(ibx_deadline_in_ms(WAIT_MS));
    return !pthread_cond_clockwait(condition, lock, CLOCK_MONOTONIC, &until);
}

/* poll(2) has failed: sleeps at most a millisecond, so that a caller who tries again does not spin,
 * and returns -1. */
static int failed(int error, uint64_t left_ns)
{
    const uint64_t ns = left_ns < IBX_NS_PER_MS ? left_ns : IBX_NS_PER_MS;
    if (error != EINTR)
        clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = (long)ns}, NULL);
    errno = error;
    return -1;
}

int ibx_thread_await(struct pollfd *fds, unsigned count, int timeout_ms)
{
    const uint64_t wait_ns =
        timeout_ms < 0 ? UINT64_MAX : (uint64_t)timeout_ms * (uint64_t)IBX_NS_PER_MS;
    const int ready = poll(fds, count, timeout_ms);
    return ready < 0 ? failed(errno, wait_ns) : ready;
}

int ibx_thread_poll(struct pollfd *fds, unsigned count, uint64_t wait_ns, uint64_t busy_until_ns)
{
    uint64_t now = ibx_now_ns();
    const uint64_t end = now + wait_ns;
    for (; now < busy_until_ns && now < end; now = ibx_now_ns()) {
        const int ready = poll(fds, count, 0);
        if (ready)
            return ready;
        ibx_cpu_relax();
    }
    const uint64_t left = now < end ? end - now : 0, second = 1000 * IBX_NS_PER_MS;
    const struct timespec most = {.tv_sec = (time_t)(left / second),
                                  .tv_nsec = (long)(left % second)};
    const int ready = ppoll(fds, count, &most, NULL);
    return ready < 0 ? failed(errno, left) : ready;
}
