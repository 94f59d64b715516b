/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* To be preloaded: a process whose clock of the day is a minute behind, as one that has just been
 * set back; what it was told before that has times of the future. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BEHIND_S 60

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *t)
{
    const long rc = syscall(SYS_clock_gettime, clock, t);
    if (!rc && clock == CLOCK_REALTIME)
        t->tv_sec -= BEHIND_S;
    return (int)rc;
}
