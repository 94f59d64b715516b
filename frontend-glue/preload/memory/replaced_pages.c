/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Pages of the program's that others replace, with the same bytes, while its threads may access
 * them: page-locked memory that becomes managed (managed_in_place.c), and registered memory that
 * moves (registered.c). No write is lost meanwhile:
 *
 * - Copies that begin are left to GVirtuS's front end (withheld()), and copies under way end.
 * - Threads that write wait in the handler of their fault until the last step is done; others read.
 * - The bytes are copied.
 * - The other pages are mapped there, in one step.
 *
 * A system call of another thread that writes there, and that began before the first step, may fail
 * with EFAULT from the second step on.
 */
#include "frontend-glue/preload/memory/managed.h"
#include "frontend-glue/preload/memory/memory.h"

#include "common/log.h"
#include "common/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* The memory whose pages are replaced now; one at a time, since kernel_reach.c makes one request at
 * a time. `joins_until` is set last. */
static _Atomic uintptr_t joins_from, joins_until;

static void in_child(void)
{
    atomic_store(&joins_until, 0);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

bool ibx_managed_joins(uintptr_t at, size_t n)
{
    const uintptr_t until = atomic_load(&joins_until);
    return until && at < until && atomic_load(&joins_from) < at + n;
}

void ibx_managed_wait_for_join(uintptr_t at)
{
    const int cancel = ibx_thread_hold_cancel();
    while (ibx_managed_joins(at, 1))
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    ibx_thread_release_cancel(cancel);
}

/* A handler of the program's that writes there would wait in this thread, for this thread; others
 * wait for it, too, and it may be cancelled. */
void ibx_managed_join_begin(uintptr_t at, size_t n, struct join *held)
{
    sigset_t all;
    held->cancel = ibx_thread_hold_cancel();
    ibx_managed_catch_again();
    atomic_store(&joins_from, at);
    atomic_store(&joins_until, at + n);
    ibx_frontend_plugin()->drain((void *)at, n);
    sigfillset(&all);
    ibx_managed_real_mask(SIG_SETMASK, &all, &held->before);
}

void ibx_managed_join_end(const struct join *held)
{
    atomic_store(&joins_until, 0);
    ibx_managed_real_mask(SIG_SETMASK, &held->before, NULL);
    ibx_thread_release_cancel(held->cancel);
}

/* ---------------------------------------------------------------------------------- the steps */

#define WORDS 8u /* of a step; pages are multiples of it */

/* An allocator may have parts of these pages that sanitizers let nobody read; so that this does not
 * become a call of memcpy(3), the compiler may not join the steps. */
__attribute__((no_sanitize("address"))) void ibx_managed_copy_whole(void *to, const void *from,
                                                                    size_t n)
{
    const uint64_t *in = from;
    for (uint64_t *out = to; n; n -= WORDS * sizeof(*out), in += WORDS, out += WORDS) {
        for (unsigned i = 0; i < WORDS; i++)
            out[i] = in[i];
        __asm__ volatile("" ::: "memory");
    }
}

/* Makes the old pages writable again. If Linux had unmapped them before it found that it cannot map
 * the others (no memory, or too many mappings), maps memory with a copy of the bytes. */
static void restore(void *here, size_t n, const void *copy, const char *kind)
{
    const int access = PROT_READ | PROT_WRITE;
    if (!copy || ibx_frontend_all_mapped(here, n))
        mprotect(here, n, access);
    else if (mmap(here, n, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED)
        ibx_managed_copy_whole(here, copy, n);
    else
        ibx_log(IBX_LOG_ERROR,
                "%zu bytes of %s memory at %p are lost, since this process can map no memory "
                "there: %s: end the program; where it has more mappings than vm.max_map_count, "
                "raise that by sysctl(8)",
                n, kind, here, strerror(errno));
}

int ibx_managed_replace(void *here, size_t n, void *there, void *to, const char *kind)
{
    const void *copy = NULL;
    int rc = mprotect(here, n, PROT_READ) ? -errno : 0;
    if (!rc) {
        ibx_managed_copy_whole(to, here, n);
        copy = to;
        if (mremap(there, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, here) == MAP_FAILED)
            rc = -errno;
    }
    if (rc)
        restore(here, n, copy, kind);
    return rc;
}
