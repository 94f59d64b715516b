/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The stacks of this process, which hold records of migrations of tens of KiB each. If a stack
 * were too small, the process would be killed somewhere in the middle of a migration. */
#include "tools/ib-migrate/ib-migrate.h"

#include <alloca.h>
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define STACK_KIB       1024u /* of each thread */
#define STACK_LEAST_KIB 256u  /* with less, migrations were seen to end by SIGSEGV */
#define STEP_BYTES      4096u /* no page is smaller */

static struct rlimit before; /* as this process was started */
static enum { LEFT_ALONE, RAISED } changed;

/* glibc has taken that of threads from the limit before main(). */
static void set_threads(size_t bytes)
{
    pthread_attr_t attributes;
    size_t now;
    if (pthread_getattr_default_np(&attributes))
        return;
    if (!pthread_attr_getstacksize(&attributes, &now) && now < bytes &&
        !pthread_attr_setstacksize(&attributes, bytes))
        pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
}

/* The stack of the first thread is this large from now on. Not by recursion, which clang turns into
 * a loop in one frame. */
__attribute__((noinline)) static void grow(size_t bytes)
{
    volatile char *room = alloca(bytes);
    for (size_t at = bytes; at >= STEP_BYTES; at -= STEP_BYTES)
        room[at - STEP_BYTES] = 0;
}

/* The kernel adds to the first thread's stack as it is used, and counts that as address space. So
 * where that is limited, a call may end the process by SIGSEGV at any time, as if it had no memory
 * for its frame. `most` is the limit of the stack. */
static int take_address_space(rlim_t most, struct ibx_error *err)
{
    const size_t bytes = (size_t)(most < STACK_KIB << 10 ? most : STACK_KIB << 10) / 2;
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY)
        return 0;
    void *room = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        return ibx_error_set(err, -ENOMEM, "no memory for a stack of %zu KiB", bytes >> 10);
    munmap(room, bytes);
    grow(bytes);
    return 0;
}

int ibx_cli_make_room_for_stacks(struct ibx_error *err)
{
    const rlim_t wanted = STACK_KIB << 10;
    struct rlimit limit, raised;
    if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur >= wanted)
        return take_address_space(wanted, err);
    raised = (struct rlimit){wanted, limit.rlim_max > wanted ? limit.rlim_max : wanted};
    if (setrlimit(RLIMIT_STACK, &raised)) { /* no process without privileges exceeds that */
        raised = (struct rlimit){limit.rlim_max, limit.rlim_max};
        if (setrlimit(RLIMIT_STACK, &raised))
            raised = limit;
    }
    before = limit;
    changed = RAISED;
    if (raised.rlim_cur < STACK_LEAST_KIB << 10)
        return ibx_error_set(err, -ENOMEM,
                             "the stack may have %llu KiB here, and needs %u: raise that limit "
                             "(ulimit -s)",
                             (unsigned long long)raised.rlim_cur >> 10, STACK_LEAST_KIB);
    set_threads((size_t)raised.rlim_cur);
    return take_address_space(raised.rlim_cur, err);
}

void ibx_cli_give_stack_back(void)
{
    if (changed == RAISED)
        setrlimit(RLIMIT_STACK, &before); /* which is lower, and always allowed */
}
