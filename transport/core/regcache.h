/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A cache of registrations of host memory, for providers whose caps.register_free is false.
 *
 * A cached registration dies when the memory under it is unmapped, moved, emptied (MADV_DONTNEED,
 * MADV_FREE, MADV_REMOVE) or mapped over, which the kernel reports through userfaultfd: once
 * munmap(2) and the like have returned, ibx_regcache_get() does not find it any more. Only private
 * anonymous memory is cached. Other memory, and all memory where userfaultfd is not permitted, is
 * registered for each call, which is slow.
 *
 * The kernel does not report MADV_GUARD_INSTALL (Linux 6.13), which empties memory, too: what is to
 * be copied must not lie where guard pages come and go.
 *
 * An application notices two things. munmap and the like of cached memory wait some microseconds
 * for a thread of this process to take note. And mremap(2) of a range that was cached only in part
 * fails with EFAULT, because the kernel sees two kinds of memory there; glibc's realloc(3) then
 * copies.
 *
 * Threads: a cache belongs to the thread that owns its connection; different caches are
 * independent. One thread of the process watches for all of them. It starts with the first
 * ibx_regcache_get(), and again in a forked child.
 */
#ifndef IBX_TRANSPORT_CORE_REGCACHE_H
#define IBX_TRANSPORT_CORE_REGCACHE_H

#include "transport/transport.h"

struct ibx_regcache;

/* A cache of at most `bytes` and `entries` (1 to 4096), for `conn`. Entries in use count but are
 * never evicted. Destroy it before closing the connection. -EINVAL: the number of entries; -ENOMEM.
 */
int ibx_regcache_create(struct ibx_conn *conn, size_t bytes, unsigned entries,
                        struct ibx_regcache **cache, struct ibx_error *err);
/* Call it before ibx_conn_take_regions(). Deregisters what is not in use and has died with its
 * memory, or could not be moved the last time, so that the new connection need not register it. */
void ibx_regcache_tidy(struct ibx_regcache *cache);
/* Call it after ibx_conn_take_regions(): `conn` is now the connection of the cache. */
void ibx_regcache_move(struct ibx_regcache *cache, struct ibx_conn *conn);
/* Deregisters everything; all regions must have been put back. Accepts NULL. */
void ibx_regcache_destroy(struct ibx_regcache *cache);

/* A region that holds at least the bytes [address, address + length) with at least `access`. It may
 * be larger: use ibx_mr_address() to find the bytes in it. The memory must stay mapped until
 * ibx_regcache_put(). -EINVAL: not a range of memory; errors of ibx_mr_register(). */
int ibx_regcache_get(struct ibx_regcache *cache, void *address, size_t length, unsigned access,
                     struct ibx_mr **mr, struct ibx_error *err);
void ibx_regcache_put(struct ibx_regcache *cache, struct ibx_mr *mr);

struct ibx_regcache_stats {
    unsigned long hits, misses;
    unsigned long uncached; /* of the misses: registered for one use only */
    unsigned long stale;    /* died with their memory */
    unsigned long evicted;
    size_t bytes; /* registered now, in `entries` */
    unsigned entries;
};
void ibx_regcache_stats(const struct ibx_regcache *cache, struct ibx_regcache_stats *stats);

#endif
