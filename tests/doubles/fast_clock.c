/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* To be preloaded: a process for which time passes a hundred times as fast from SIGUSR1 on, so that
 * its time limits of a minute are over in a second. */
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TIMES 100
#define S     1000000000
#define PIECE 10000000 /* ns: a wait that has begun before the signal notices it then */

static _Atomic int64_t since; /* 0: not yet */

static int64_t ns_of(const struct timespec *t)
{
    return (int64_t)t->tv_sec * S + t->tv_nsec;
}

static int64_t real_ns(void)
{
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return ns_of(&t);
}

static int64_t now_ns(void)
{
    const int64_t real = real_ns(), from = atomic_load(&since);
    return from ? from + (real - from) * TIMES : real;
}

static void on_signal(int number)
{
    (void)number;
    int64_t not_yet = 0;
    atomic_compare_exchange_strong(&since, &not_yet, real_ns());
}

__attribute__((constructor)) static void begin(void)
{
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_signal, .sa_flags = SA_RESTART}, NULL);
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *t)
{
    const long rc = syscall(SYS_clock_gettime, clock, t);
    if (!rc && clock == CLOCK_MONOTONIC) {
        const int64_t now = now_ns();
        *t = (struct timespec){.tv_sec = now / S, .tv_nsec = now % S};
    }
    return (int)rc;
}

/* `wait_ns` < 0: for ever. The kernel writes what is left of a piece into it. */
static int wait_in_pieces(struct pollfd *fds, nfds_t count, int64_t wait_ns, const sigset_t *mask)
{
    const int64_t end = wait_ns < 0 ? INT64_MAX : now_ns() + wait_ns;
    for (;;) {
        const int64_t now = now_ns(), left = now < end ? end - now : 0;
        struct timespec piece = {.tv_nsec = left < PIECE ? left : PIECE};
        const long n = syscall(SYS_ppoll, fds, count, &piece, mask, _NSIG / 8);
        if (n || now >= end)
            return (int)n;
    }
}

__attribute__((visibility("default"))) int poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    return wait_in_pieces(fds, count, timeout_ms < 0 ? -1 : (int64_t)timeout_ms * 1000000, NULL);
}

__attribute__((visibility("default"))) int
ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    return wait_in_pieces(fds, count, timeout ? ns_of(timeout) : -1, mask);
}
