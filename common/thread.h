/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Threads of ibx in processes that have others; the scheduling of the calling thread, and its
 * waits. Where the kernel refuses a scheduling, the call has no effect. */
#ifndef IBX_COMMON_THREAD_H
#define IBX_COMMON_THREAD_H

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Starts a thread in which no signal handler of the program runs, except for SIGSEGV and SIGBUS: a
 * program may handle faults of memory that it has given. `thread`: NULL: it is detached. Returns 0
 * or a negative errno. */
int ibx_thread_begin(pthread_t *thread, void *(*run)(void *), void *argument);
/* pthread_create(3) that tries again for some 20 ms if the limit on threads is reached (EAGAIN):
 * the kernel still counts a thread for a moment after it has been joined. Returns 0 or a negative
 * errno. */
int ibx_thread_create(pthread_t *thread, void *(*run)(void *), void *argument);
/* Whether this process can have so many more threads now (8 at most), for a caller who can refuse
 * work, but not stop it later: creates them, ends them, and waits, for some 20 ms at most, until
 * the kernel does not count them any more. Returns 0 or a negative errno. */
int ibx_thread_check(unsigned count);

/* For a thread that does work of microseconds for which others wait: raises its priority where that
 * is permitted, and (Linux 6.12) gives it short time slices, so that it runs as soon as it wakes.
 */
void ibx_thread_prompt(void);
/* For a thread that moves what nobody waits for yet, and that may poll busily meanwhile: lowers its
 * priority where threads do poll (ibx_thread_may_spin()), so that threads that wake run at once
 * even if every processor is busy. Threads that it starts inherit the priority. */
void ibx_thread_give_way(void);
/* The number of processors on which the calling thread may run; at least 1. */
unsigned ibx_thread_processors(void);
/* Whether there are enough processors to poll busily, which is faster than being woken, without
 * taking time from threads that have work. */
bool ibx_thread_may_spin(void);

/* poll(2) for at most `wait_ns`, without sleeping until `busy_until_ns` (CLOCK_MONOTONIC): a
 * wake-up takes tens of microseconds. */
int ibx_thread_poll(struct pollfd *fds, unsigned count, uint64_t wait_ns, uint64_t busy_until_ns);
/* poll(2), which waits for at most `timeout_ms` (-1: no limit). */
int ibx_thread_await(struct pollfd *fds, unsigned count, int timeout_ms);
/* If poll(2) fails, both return -1 with errno. Before that they sleep for a millisecond, or for as
 * long as they may wait if that is less (not for EINTR, nor while they poll busily): many callers
 * only wait, and then look by themselves. If a program has set RLIMIT_NOFILE to less than `count`,
 * poll(2) always fails (EINVAL). */

/* Between hold and release, pthread_cancel(3) of the calling thread has no effect yet. It would end
 * the thread in the middle of poll(2) or write(2), with locks that nobody unlocks any more.
 * `before` is what hold has returned. */
static inline int ibx_thread_hold_cancel(void)
{
    int before = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void ibx_thread_release_cancel(int before)
{
    pthread_setcancelstate(before, &before);
}

/* pthread_cond_wait(3) that returns after three seconds at the latest: glibc before 2.41 loses a
 * wake-up now and then (its bug 25847), and whoever signals after that waits for the thread that
 * has missed it. The caller checks its condition again, as after every such wait. False: the three
 * seconds are over. */
bool ibx_thread_wait(pthread_cond_t *condition, pthread_mutex_t *lock);

/* Between two polls of memory that another processor writes. */
static inline void ibx_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
