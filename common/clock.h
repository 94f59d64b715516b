/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Monotonic time in nanoseconds, and deadlines made of it. */
#ifndef IBX_COMMON_CLOCK_H
#define IBX_COMMON_CLOCK_H

#include <limits.h>
#include <stdint.h>
#include <time.h>

#define IBX_NS_PER_MS 1000000ull
#define IBX_NS_PER_US 1000ull

/* The time of a clock of clock_gettime(2), for instance the CPU time of a thread; 0: there is no
 * such clock. */
static inline uint64_t ibx_clock_ns(clockid_t clock)
{
    struct timespec t = {0};
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline uint64_t ibx_now_ns(void)
{
    return ibx_clock_ns(CLOCK_MONOTONIC);
}

static inline uint64_t ibx_deadline_in_ms(uint64_t ms)
{
    return ibx_now_ns() + ms * IBX_NS_PER_MS;
}

/* Nanoseconds as pthread_cond_clockwait(3) and others take them. */
static inline struct timespec ibx_timespec_of(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

/* Milliseconds until the deadline for poll(2), rounded up; 0 when it has passed. */
static inline int ibx_ms_until(uint64_t deadline_ns)
{
    uint64_t now = ibx_now_ns();
    if (now >= deadline_ns)
        return 0;
    uint64_t ms = (deadline_ns - now + IBX_NS_PER_MS - 1) / IBX_NS_PER_MS;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

#endif
