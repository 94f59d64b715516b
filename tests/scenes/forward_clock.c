/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/forward_clock.h"

#include "common/clock.h"

#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <time.h>
#include <cmocka.h>

#define LOOK_MS   2    /* real ones, between two looks of who waits */
#define STEPS_MAX 1000 /* until what is to come has come */
#define HELD_MS   3600000ull

static atomic_ullong ahead_ns; /* of the real clock */
static atomic_ullong held_ns;  /* that one, where this one stands still; 0: it goes on */
static atomic_uint looks;

int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    int rc = __real_clock_gettime(clock, t);
    const uint64_t held = clock == CLOCK_MONOTONIC ? held_ns : 0;
    *t = held ? ibx_timespec_of(held) : *t;
    uint64_t ns = (uint64_t)t->tv_nsec + ahead_ns;
    t->tv_sec += (time_t)(ns / 1000000000u);
    t->tv_nsec = (long)(ns % 1000000000u);
    return rc;
}

void forward_clock_hold(bool held)
{
    static uint64_t before_ns;
    if (held && !held_ns) {
        before_ns = ahead_ns;
        held_ns = ibx_now_ns() - before_ns;
        ahead_ns += HELD_MS * IBX_NS_PER_MS;
    } else if (!held && held_ns) {
        held_ns = 0;
        ahead_ns = before_ns;
    }
}

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    const uint64_t end = timeout_ms < 0 ? UINT64_MAX : ibx_deadline_in_ms((uint64_t)timeout_ms);
    for (;;) {
        const bool last = ibx_now_ns() >= end;
        int rc = __real_poll(fds, count, last ? 0 : LOOK_MS);
        if (rc || last)
            return rc;
        looks++;
    }
}

void forward_clock(unsigned ms, const atomic_bool *over)
{
    ahead_ns += ms * IBX_NS_PER_MS;
    /* One may have begun before. */
    for (unsigned before = looks; looks - before < 2 && !*over;)
        sched_yield();
}

void forward_clock_until(const atomic_bool *over, unsigned step_ms)
{
    for (unsigned steps = 0; !*over; steps++) {
        assert_true(steps < STEPS_MAX);
        forward_clock(step_ms, over);
    }
}
