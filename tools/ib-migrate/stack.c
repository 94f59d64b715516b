/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The stacks of this process, which hold records of migrations of tens of KiB each. If a stack
 * were too small, the process would be killed somewhere in the middle of a migration. */
#include "tools/ib-migrate/ib-migrate.h"

#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>

#define STACK_KIB       1024u /* of each thread */
#define STACK_LEAST_KIB 256u  /* with less, migrations were seen to end by SIGSEGV */

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

int ibx_cli_make_room_for_stacks(struct ibx_error *err)
{
    const rlim_t wanted = STACK_KIB << 10;
    struct rlimit limit, raised;
    if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur >= wanted)
        return 0;
    raised = (struct rlimit){wanted, limit.rlim_max > wanted ? limit.rlim_max : wanted};
    if (setrlimit(RLIMIT_STACK, &raised)) { /* no process without privileges exceeds that */
        raised = (struct rlimit){limit.rlim_max, limit.rlim_max};
        if (setrlimit(RLIMIT_STACK, &raised))
            raised = limit;
    }
    if (raised.rlim_cur < STACK_LEAST_KIB << 10)
        return ibx_error_set(err, -ENOMEM,
                             "the stack may have %llu KiB here, and needs %u: raise that limit "
                             "(ulimit -s)",
                             (unsigned long long)raised.rlim_cur >> 10, STACK_LEAST_KIB);
    set_threads((size_t)raised.rlim_cur);
    return 0;
}
