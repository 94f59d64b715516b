/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A cache of registrations of host memory, for providers whose
 * caps.register_free is false.
 *
 * A cached registration dies when the memory under it is unmapped, moved,
 * emptied (MADV_DONTNEED, MADV_FREE, MADV_REMOVE) or mapped over: the kernel says
 * so through userfaultfd, which is used for its events only and never holds up a
 * page fault. Once munmap(2) and the like have returned, ibx_regcache_get() does
 * not find the old registration any more. Only private anonymous memory is
 * cached (malloc, mmap); all other memory, and all memory where userfaultfd is
 * not permitted, is registered for each call, which is right but slow.
 *
 * What is cached, the application notices in two ways. munmap and the like of
 * such memory wait for one thread of this process to take note, some
 * microseconds. And mremap(2) of a range of which only a part was ever cached
 * fails with EFAULT, for the kernel sees two kinds of memory there; realloc(3)
 * of glibc then copies instead.
 *
 * Threads: a cache belongs to the one thread that owns its connection; different
 * caches are independent. One thread of the process watches for all of them; it
 * starts with the first ibx_regcache_get(), and anew in a forked child.
 */
#ifndef IBX_TRANSPORT_CORE_REGCACHE_H
#define IBX_TRANSPORT_CORE_REGCACHE_H

#include "transport/transport.h"

struct ibx_regcache;

/* How memory is registered: by a connection, or by a test. */
struct ibx_registrar {
    int (*enter)(void *context, const struct ibx_span *span, unsigned access, struct ibx_mr **mr,
                 struct ibx_error *err);
    void (*leave)(void *context, struct ibx_mr *mr);
    void *context;
};

/* A cache of at most `bytes` and `entries` (1 to 4096), for `conn`; what is in use counts but is
 * never evicted. Destroy it before closing the connection. */
int ibx_regcache_create(struct ibx_conn *conn, size_t bytes, unsigned entries,
                        struct ibx_regcache **cache, struct ibx_error *err);
int ibx_regcache_create_for(const struct ibx_registrar *registrar, size_t bytes, unsigned entries,
                            struct ibx_regcache **cache, struct ibx_error *err);
/* Deregisters everything; all regions must have been put back. Accepts NULL. */
void ibx_regcache_destroy(struct ibx_regcache *cache);

/* A region that holds at least the bytes [address, address + length) with at least `access`. It may
 * be larger: use ibx_mr_address() to find the bytes in it. The memory must stay as it is until
 * ibx_regcache_put(). Errors are the registrar's. */
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
