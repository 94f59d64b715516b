/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Notices when memory goes away; for regcache.c only.
 *
 * Watched ranges are registered with a userfaultfd in write-protect mode, but nothing is ever
 * protected, so that no fault can arise: only the events UNMAP, REMAP and REMOVE are used. A thread
 * that changes the address space sleeps in its system call until the event has been read. Hence:
 *
 *   - one thread of the process reads events. It never allocates, frees or unmaps anything, because
 *     it would wait for itself;
 *   - no thread does so while it holds the lock, because the reader takes the lock. Signal handlers
 *     must not either, so the holder of the lock blocks all signals;
 *   - reading an event and marking its ranges is one hold of the lock. So when the system call has
 *     returned, no range that it changed is alive.
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

/* All calls but the first three need the lock. */
void ibx_watch_lock(void);
void ibx_watch_unlock(void);
/* Whether all pages are present, private and anonymous. Files and shared memory also change in ways
 * without an event: truncation, another process. */
bool ibx_watch_anonymous(uintptr_t start, uintptr_t end);

/* The reader starts with the first range. The last user's release stops it, because this code may
 * be unloaded; the release drops the lock. */
void ibx_watch_retain(void);
void ibx_watch_release_unlock(void);
/* Increases in a forked child, which has none of the parent's ranges and users. */
unsigned ibx_watch_generation(void);
/* The number of ranges that have died. */
unsigned ibx_watch_deaths(void);

/* Brings `alive` of all ranges up to date. False: that is unknown, because memory is not watched,
 * or another thread is changing the address space right now. */
bool ibx_watch_settle(void);
/* False: this memory, or any memory of this process, cannot be watched. */
bool ibx_watch_add(struct ibx_watch_range *range);
/* Ends the watch over a range; it is not alive any more. */
void ibx_watch_remove(struct ibx_watch_range *range);

#endif
