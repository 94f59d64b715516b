/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Tells regcache.c when memory goes away; for that file only.
 *
 * Watched ranges are registered with a userfaultfd in write-protect mode, but
 * nothing is ever protected, so no fault can arise: only the events UNMAP, REMAP
 * and REMOVE are of use. The thread that changes the address space sleeps in its
 * system call until the event has been read. Hence the rules:
 *
 *   - one thread of the process reads events, and it never allocates, frees or
 *     unmaps anything: it would wait for itself;
 *   - nobody does so while holding the lock, for the reader takes it; nor does a
 *     signal handler, all of which are blocked meanwhile;
 *   - reading an event and marking its ranges is one hold of the lock. So when the
 *     system call has returned, no range it changed is alive.
 */
#ifndef IBX_TRANSPORT_CORE_REGCACHE_WATCH_H
#define IBX_TRANSPORT_CORE_REGCACHE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct ibx_watch_range {
    uintptr_t start, end; /* page aligned */
    bool alive;           /* the memory is what it was when the range was added */
    struct ibx_watch_range *next, *prev;
};

/* Everything below wants the lock held, but for the first three. */
void ibx_watch_lock(void);
void ibx_watch_unlock(void);
/* Whether all pages are there, private and anonymous: what lies in files and shared memory also
 * changes by other ways (truncation, another process), of which no event tells. */
bool ibx_watch_anonymous(uintptr_t start, uintptr_t end);

/* Users keep the reader alive; it starts with the first range. The last release stops it, since
 * this code may be unloaded; it drops the lock. */
void ibx_watch_retain(void);
void ibx_watch_release_unlock(void);
/* Goes up in a forked child, where all ranges and users of the parent are forgotten. */
unsigned ibx_watch_generation(void);
/* The number of ranges that have died. */
unsigned ibx_watch_deaths(void);

/* Brings `alive` of all ranges up to date. False when it cannot be told: memory is not watched, or
 * another thread is changing the address space right now. */
bool ibx_watch_settle(void);
/* False when this memory, or any memory in this process, cannot be watched. */
bool ibx_watch_add(struct ibx_watch_range *range);
/* Ends the watch over a range, and its life. */
void ibx_watch_remove(struct ibx_watch_range *range);

#endif
