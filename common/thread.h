/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Scheduling of the calling thread. Where the kernel refuses, the calls have no effect. */
#ifndef IBX_COMMON_THREAD_H
#define IBX_COMMON_THREAD_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

/* For a thread that does work of microseconds for which others wait: raises its priority where that
 * is permitted, and (Linux 6.12) gives it short time slices, so that it runs as soon as it wakes.
 */
void ibx_thread_prompt(void);
/* For a thread that moves what nobody waits for yet, and may poll busily meanwhile: lowers its
 * priority where threads do poll (ibx_thread_may_spin()), so that those that wake run at once
 * though every processor is busy. Threads that it starts inherit that. */
void ibx_thread_give_way(void);
/* The number of processors on which the calling thread may run; at least 1. */
unsigned ibx_thread_processors(void);
/* Whether there are enough processors to poll busily, which is faster than being woken, without
 * taking time from threads that have work. */
bool ibx_thread_may_spin(void);

/* poll(2) for at most `wait_ns`, without sleeping until `busy_until_ns` (CLOCK_MONOTONIC): a
 * wake-up takes tens of microseconds. */
int ibx_thread_poll(struct pollfd *fds, unsigned count, uint64_t wait_ns, uint64_t busy_until_ns);

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
