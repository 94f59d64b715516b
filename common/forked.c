/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/forked.h"

#include "common/clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *ibx_forked_map(size_t n)
{
    void *memory =
        mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, n, MADV_DONTDUMP);
    return memory;
}

void ibx_forked_wait(atomic_uint *word, unsigned value, uint64_t until_ns)
{
    const struct timespec until = ibx_timespec_of(until_ns);
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

void ibx_forked_wake(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
