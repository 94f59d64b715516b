/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Signal masks. A thread that blocks SIGSEGV would be killed by an access to managed memory, so no
 * thread does. If the program blocks it, SIGSTKFLT, which Linux never raises, is blocked instead.
 * The kernel keeps, restores and inherits that like any mask, also when a handler is left by
 * siglongjmp(3); and a program that asks is told that SIGSEGV is blocked.
 */
#include "frontend-glue/preload/memory/managed.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>

#define MARK SIGSTKFLT

bool ibx_managed_marked(const sigset_t *set)
{
    return sigismember(set, MARK) == 1;
}

static void take_place(sigset_t *set, int from, int to)
{
    if (sigismember(set, from) == 1)
        sigaddset(set, to);
    else
        sigdelset(set, to);
    sigdelset(set, from);
}

void ibx_managed_mark(sigset_t *set)
{
    take_place(set, SIGSEGV, MARK);
}

void ibx_managed_unmark(sigset_t *set)
{
    take_place(set, MARK, SIGSEGV);
}

typedef int (*masker)(int how, const sigset_t *set, sigset_t *old);
static _Atomic(void *) found_mask, found_process_mask;

int ibx_managed_real_mask(int how, const sigset_t *set, sigset_t *old)
{
    masker next = NULL;
    *(void **)&next = ibx_frontend_next(&found_mask, "pthread_sigmask");
    return next(how, set, old);
}

/* Before main(), as in managed_io.c. The process may have been started with SIGSEGV blocked. */
__attribute__((constructor)) static void begin(void)
{
    sigset_t now;
    ibx_frontend_next(&found_process_mask, "sigprocmask");
    if (ibx_managed_real_mask(SIG_BLOCK, NULL, &now) || sigismember(&now, SIGSEGV) != 1)
        return;
    ibx_managed_mark(&now);
    ibx_managed_real_mask(SIG_SETMASK, &now, NULL);
}

/* The set as the kernel is to have it. */
static const sigset_t *marked(const sigset_t *set, sigset_t *copy)
{
    if (!set)
        return NULL;
    *copy = *set;
    ibx_managed_mark(copy);
    return copy;
}

static int set_mask(masker next, int how, const sigset_t *set, sigset_t *old)
{
    sigset_t copy;
    const int rc = next(how, marked(set, &copy), old);
    if (!rc && old)
        ibx_managed_unmark(old);
    return rc;
}

__attribute__((visibility("default"))) int pthread_sigmask(int how, const sigset_t *set,
                                                           sigset_t *old)
{
    return set_mask(ibx_managed_real_mask, how, set, old);
}

__attribute__((visibility("default"))) int sigprocmask(int how, const sigset_t *set, sigset_t *old)
{
    masker next = NULL;
    *(void **)&next = ibx_frontend_next(&found_process_mask, "sigprocmask");
    return set_mask(next, how, set, old);
}

/* ------------------------------------------------------------------- older calls for that */

static int mask_one(int how, int number)
{
    sigset_t this;
    sigemptyset(&this);
    return sigaddset(&this, number) ? -1 : sigprocmask(how, &this, NULL);
}

__attribute__((visibility("default"))) int sighold(int number)
{
    return mask_one(SIG_BLOCK, number);
}

__attribute__((visibility("default"))) int sigrelse(int number)
{
    return mask_one(SIG_UNBLOCK, number);
}

/* A mask of the first 32 signals, one bit each. */
static int mask_bits(int how, unsigned bits)
{
    unsigned before = 0;
    sigset_t set, old;
    sigemptyset(&set);
    for (int number = 1; number <= 32; number++) {
        if (bits >> (number - 1) & 1)
            sigaddset(&set, number);
    }
    if (sigprocmask(how, &set, &old))
        return -1;
    for (int number = 1; number <= 32; number++)
        before |= (unsigned)(sigismember(&old, number) == 1) << (number - 1);
    return (int)before;
}

__attribute__((visibility("default"))) int sigblock(int mask)
{
    return mask_bits(SIG_BLOCK, (unsigned)mask);
}

__attribute__((visibility("default"))) int sigsetmask(int mask)
{
    return mask_bits(SIG_SETMASK, (unsigned)mask);
}

/* -------------------------------------------------------------- calls that have a mask for a time
 */

/* Calls the next function of this name with the same arguments, with `mask` as the kernel is to
 * have it. */
#define WITH_MASK(name, parameters, ...)                                                           \
    static _Atomic(void *) found_##name;                                                           \
    __attribute__((constructor)) static void find_##name(void)                                     \
    {                                                                                              \
        ibx_frontend_next(&found_##name, #name);                                                   \
    }                                                                                              \
    __attribute__((visibility("default"))) int own_##name parameters __asm__(#name);               \
    int own_##name parameters                                                                      \
    {                                                                                              \
        __typeof__(&own_##name) next = NULL;                                                       \
        sigset_t copy;                                                                             \
        *(void **)&next = ibx_frontend_next(&found_##name, #name);                                 \
        mask = marked(mask, &copy);                                                                \
        if (next)                                                                                  \
            return next(__VA_ARGS__);                                                              \
        errno = ENOSYS; /* the C library is older and lacks it */                                  \
        return -1;                                                                                 \
    }

WITH_MASK(sigsuspend, (const sigset_t *mask), mask)
WITH_MASK(__sigsuspend, (const sigset_t *mask), mask)
WITH_MASK(ppoll, (struct pollfd * of, nfds_t n, const struct timespec *most, const sigset_t *mask),
          of, n, most, mask)
WITH_MASK(__ppoll_chk,
          (struct pollfd * of, nfds_t n, const struct timespec *most, const sigset_t *mask,
           size_t room),
          of, n, most, mask, room)
WITH_MASK(pselect,
          (int n, fd_set *in, fd_set *out, fd_set *other, const struct timespec *most,
           const sigset_t *mask),
          n, in, out, other, most, mask)
WITH_MASK(epoll_pwait, (int fd, struct epoll_event *of, int n, int ms, const sigset_t *mask), fd,
          of, n, ms, mask)
WITH_MASK(epoll_pwait2,
          (int fd, struct epoll_event *of, int n, const struct timespec *most,
           const sigset_t *mask),
          fd, of, n, most, mask)
WITH_MASK(pthread_attr_setsigmask_np, (pthread_attr_t * of, const sigset_t *mask), of, mask)
