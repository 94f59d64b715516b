/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How the kernel shall treat the calling thread; without any effect where it may not or cannot. */
#ifndef IBX_COMMON_THREAD_H
#define IBX_COMMON_THREAD_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

/* Somebody waits for whatever it is woken for, and it takes microseconds: a better priority than
 * now where that is permitted, and (Linux 6.12) short slices of time, so that it comes before those
 * with long ones as soon as it wakes. */
void ibx_thread_prompt(void);
/* On how many processors the calling thread may run; at least 1. */
unsigned ibx_thread_processors(void);
/* Whether processors are so many that one can look busily for what comes next, which is faster than
 * being woken, without taking it from others who have work. */
bool ibx_thread_may_spin(void);

/* poll(2) for at most `wait_ns`, of which it looks without going to sleep until `busy_until_ns`
 * (CLOCK_MONOTONIC): being woken takes tens of microseconds. */
int ibx_thread_poll(struct pollfd *fds, unsigned count, uint64_t wait_ns, uint64_t busy_until_ns);

/* Between two looks at what another processor writes. */
static inline void ibx_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
