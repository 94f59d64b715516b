/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The registration cache. An entry dies when its memory goes (range.alive), or when its owner
 * retires it. The reader of events (regcache_watch.c) only marks a death. The owner deregisters
 * dead entries that are not in use, without the lock of the watch, because that allocates and frees
 * memory.
 *
 * state machine: cached registration
 *   [*] -> FREE -> WATCHED -> RETIRED -> FREE        evicted, replaced, or not to be cached
 *   WATCHED -> FREE                                  its memory went
 *   WATCHED | RETIRED -> INHERITED -> FREE -> [*]    in use in a forked child
 */
#include "transport/core/regcache.h"

#include "common/state_machine.h"
#include "transport/core/regcache_watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ENTRIES_MAX 4096u

enum entry_state { ENTRY_FREE, ENTRY_WATCHED, ENTRY_RETIRED, ENTRY_INHERITED };

static const struct ibx_state entry_states[] = {
    [ENTRY_FREE] = {"free", IBX_TO(ENTRY_WATCHED), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [ENTRY_WATCHED] = {"watched",
                       IBX_TO(ENTRY_RETIRED) | IBX_TO(ENTRY_INHERITED) | IBX_TO(ENTRY_FREE), 0},
    [ENTRY_RETIRED] = {"retired", IBX_TO(ENTRY_INHERITED) | IBX_TO(ENTRY_FREE), 0},
    [ENTRY_INHERITED] = {"inherited", IBX_TO(ENTRY_FREE), 0},
};
static const struct ibx_state_table entry_table =
    IBX_STATE_TABLE("cached registration", entry_states);

struct entry {
    struct ibx_state_machine state; /* enum entry_state */
    struct ibx_watch_range range;
    unsigned access;
    unsigned users;
    struct ibx_mr *mr; /* NULL until it is registered */
    struct entry *newer, *older;
};

/* Only its owner writes to it, except for `range.alive` of the entries. */
struct ibx_regcache {
    struct ibx_conn *conn;
    size_t bytes_max;
    unsigned entries_max;
    struct entry *entries;         /* entries_max of them */
    struct entry *newest, *oldest; /* those not free, by their last use */
    bool unclean;                  /* some entries are dead */
    unsigned deaths, generation;   /* of the watch, as last seen */
    struct ibx_regcache_stats stats;
};

static size_t entry_bytes(const struct entry *entry)
{
    return entry->range.end - entry->range.start;
}

static void list_remove(struct ibx_regcache *cache, struct entry *entry)
{
    *(entry->newer ? &entry->newer->older : &cache->newest) = entry->older;
    *(entry->older ? &entry->older->newer : &cache->oldest) = entry->newer;
}

static void list_add(struct ibx_regcache *cache, struct entry *entry)
{
    entry->newer = NULL;
    entry->older = cache->newest;
    *(entry->older ? &entry->older->newer : &cache->oldest) = entry;
    cache->newest = entry;
}

/* Counts an entry that is not free. */
static void entry_add(struct ibx_regcache *cache, struct entry *entry)
{
    list_add(cache, entry);
    cache->stats.bytes += entry_bytes(entry);
    cache->stats.entries++;
}

static void entry_free(struct ibx_regcache *cache, struct entry *entry)
{
    cache->stats.bytes -= entry_bytes(entry);
    cache->stats.entries--;
    list_remove(cache, entry);
    if (entry->state.now == ENTRY_WATCHED) {
        cache->stats.stale++;
        ibx_watch_remove(&entry->range);
    }
    ibx_state_move(&entry->state, ENTRY_FREE);
}

/* The caller has the lock of the watch. */
static void entry_retire(struct ibx_regcache *cache, struct entry *entry)
{
    ibx_watch_remove(&entry->range);
    ibx_state_move(&entry->state, ENTRY_RETIRED);
    cache->unclean = true;
}

/* Frees one dead entry that is not in use; false when there is none. */
static bool reap_one(struct ibx_regcache *cache, struct ibx_mr **mr)
{
    bool found = false;
    *mr = NULL;
    ibx_watch_lock();
    cache->unclean |= cache->deaths != ibx_watch_deaths();
    cache->deaths = ibx_watch_deaths();
    struct entry *entry = cache->unclean ? cache->oldest : NULL;
    while (entry && (entry->range.alive || entry->users))
        entry = entry->newer;
    if (entry) {
        found = true;
        *mr = entry->state.now == ENTRY_INHERITED ? NULL : entry->mr;
        entry_free(cache, entry);
    } else {
        cache->unclean = false;
    }
    ibx_watch_unlock();
    return found;
}

static void reap(struct ibx_regcache *cache)
{
    struct ibx_mr *mr;
    while (reap_one(cache, &mr))
        ibx_mr_deregister(mr);
}

/* Evicts idle entries, the least recently used first, until at most `bytes` and `entries` are left.
 */
static void evict(struct ibx_regcache *cache, size_t bytes_max, unsigned entries_max)
{
    size_t bytes = cache->stats.bytes;
    unsigned entries = cache->stats.entries;
    ibx_watch_lock();
    for (struct entry *entry = cache->oldest; entry; entry = entry->newer) {
        if (bytes <= bytes_max && entries <= entries_max)
            break;
        if (entry->users)
            continue;
        if (entry->range.alive) {
            entry_retire(cache, entry);
            cache->stats.evicted++;
        }
        bytes -= entry_bytes(entry);
        entries--;
    }
    ibx_watch_unlock();
    reap(cache);
}

/* Whether `bytes` more fit, after evicting idle entries. */
static bool make_room(struct ibx_regcache *cache, size_t bytes)
{
    if (bytes > cache->bytes_max)
        return false;
    evict(cache, cache->bytes_max - bytes, cache->entries_max - 1);
    return cache->stats.bytes <= cache->bytes_max - bytes &&
           cache->stats.entries < cache->entries_max;
}

/* A forked child drops the parent's registrations; entries that its own thread still uses stay
 * until they are put back. The caller has the lock of the watch. */
static void drop_inherited(struct ibx_regcache *cache)
{
    cache->newest = cache->oldest = NULL;
    cache->stats.bytes = 0;
    cache->stats.entries = 0;
    for (unsigned i = 0; i < cache->entries_max; i++) {
        struct entry *entry = &cache->entries[i];
        if (entry->state.now == ENTRY_FREE)
            continue;
        entry->range.alive = false;
        if (!entry->users) {
            ibx_state_move(&entry->state, ENTRY_FREE);
            continue;
        }
        if (entry->state.now != ENTRY_INHERITED)
            ibx_state_move(&entry->state, ENTRY_INHERITED);
        entry_add(cache, entry);
    }
    cache->generation = ibx_watch_generation();
    ibx_watch_retain();
}

/* The entry of a hit, in use now, or NULL. */
static struct entry *look_up(struct ibx_regcache *cache, uintptr_t start, uintptr_t end,
                             unsigned access)
{
    struct entry *entry = NULL;
    ibx_watch_lock();
    if (cache->generation != ibx_watch_generation())
        drop_inherited(cache);
    if (ibx_watch_settle())
        entry = cache->newest;
    while (entry && !(entry->range.alive && entry->range.start <= start &&
                      end <= entry->range.end && !(access & ~entry->access)))
        entry = entry->older;
    if (entry) {
        entry->users++;
        list_remove(cache, entry);
        list_add(cache, entry);
    }
    ibx_watch_unlock();
    if (entry)
        cache->stats.hits++;
    else
        cache->stats.misses++;
    return entry;
}

/* An entry for a registration that is about to be made: its memory is watched before it exists.
 * Entries that lie wholly inside and allow no more are retired. NULL: it cannot be cached. */
static struct entry *reserve(struct ibx_regcache *cache, uintptr_t start, uintptr_t end,
                             unsigned access)
{
    if (!make_room(cache, end - start))
        return NULL;
    struct entry *entry = cache->entries;
    while (entry->state.now != ENTRY_FREE)
        entry++;
    entry->range = (struct ibx_watch_range){.start = start, .end = end};
    entry->access = access;
    entry->users = 1;
    entry->mr = NULL;
    ibx_watch_lock();
    if (!ibx_watch_add(&entry->range)) {
        ibx_watch_unlock();
        return NULL;
    }
    ibx_state_move(&entry->state, ENTRY_WATCHED);
    for (struct entry *old = cache->newest; old; old = old->older) {
        if (old->range.alive && start <= old->range.start && old->range.end <= end &&
            !(old->access & ~access))
            entry_retire(cache, old);
    }
    entry_add(cache, entry);
    ibx_watch_unlock();
    return entry;
}

/* Registers; at the system's own limit, idle entries are evicted. */
static int register_range(struct ibx_regcache *cache, uintptr_t start, uintptr_t end,
                          unsigned access, struct ibx_mr **mr, struct ibx_error *err)
{
    struct ibx_span span = ibx_span_host((void *)start, end - start);
    int rc;
    unsigned before;
    do {
        before = cache->stats.entries;
        rc = ibx_mr_register(cache->conn, &span, access, mr, err);
        if (rc == -ENOMEM)
            evict(cache, 0, 0);
    } while (rc == -ENOMEM && cache->stats.entries < before);
    return rc;
}

static int miss(struct ibx_regcache *cache, uintptr_t start, uintptr_t end, unsigned access,
                struct ibx_mr **mr, struct ibx_error *err)
{
    struct entry *entry = reserve(cache, start, end, access);
    struct ibx_mr *made = NULL;
    int rc = register_range(cache, start, end, access, &made, err);
    /* Registration has made the pages present, so that their kind is known now. */
    bool keep = entry && !rc && ibx_watch_anonymous(start, end);
    ibx_watch_lock();
    if (entry) {
        entry->mr = made;
        entry->users = !rc;
        if (!keep)
            entry_retire(cache, entry);
        keep = entry->range.alive;
    }
    ibx_watch_unlock();
    cache->stats.uncached += !keep;
    reap(cache);
    if (!rc)
        *mr = made;
    return rc;
}

int ibx_regcache_get(struct ibx_regcache *cache, void *address, size_t length, unsigned access,
                     struct ibx_mr **mr, struct ibx_error *err)
{
    const uintptr_t mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
    uintptr_t start = (uintptr_t)address & ~mask;
    if (!length || start > UINTPTR_MAX - 2 * mask || length > UINTPTR_MAX - 2 * mask - start)
        return ibx_error_set(err, -EINVAL, "%zu bytes at %p cannot be registered", length, address);
    uintptr_t end = ((uintptr_t)address + length + mask) & ~mask;
    struct entry *entry = look_up(cache, start, end, access);
    if (!entry)
        return miss(cache, start, end, access, mr, err);
    *mr = entry->mr;
    reap(cache);
    return 0;
}

void ibx_regcache_put(struct ibx_regcache *cache, struct ibx_mr *mr)
{
    ibx_watch_lock();
    if (cache->generation != ibx_watch_generation())
        drop_inherited(cache);
    struct entry *entry = cache->newest;
    while (entry && entry->mr != mr)
        entry = entry->older;
    if (entry && !--entry->users && !entry->range.alive)
        cache->unclean = true;
    ibx_watch_unlock();
    if (!entry)
        ibx_mr_deregister(mr);
    reap(cache);
}

void ibx_regcache_stats(const struct ibx_regcache *cache, struct ibx_regcache_stats *stats)
{
    *stats = cache->stats;
}

/* --------------------------------------------------------- creation and the end */

int ibx_regcache_create(struct ibx_conn *conn, size_t bytes, unsigned entries,
                        struct ibx_regcache **out, struct ibx_error *err)
{
    if (!entries || entries > ENTRIES_MAX)
        return ibx_error_set(err, -EINVAL, "a cache cannot have %u registrations: use 1 to %u",
                             entries, ENTRIES_MAX);
    struct ibx_regcache *cache = calloc(1, sizeof(*cache));
    if (cache)
        cache->entries = calloc(entries, sizeof(*cache->entries));
    if (!cache || !cache->entries) {
        free(cache);
        return ibx_error_set(err, -ENOMEM, "no memory for a cache of %u registrations", entries);
    }
    cache->conn = conn;
    cache->bytes_max = bytes;
    cache->entries_max = entries;
    for (unsigned i = 0; i < entries; i++)
        ibx_state_begin(&cache->entries[i].state, &entry_table, ENTRY_FREE);
    ibx_watch_lock();
    drop_inherited(cache);
    ibx_watch_unlock();
    *out = cache;
    return 0;
}

void ibx_regcache_tidy(struct ibx_regcache *cache)
{
    ibx_watch_lock();
    if (cache->generation != ibx_watch_generation())
        drop_inherited(cache);
    for (struct entry *entry = cache->newest; entry; entry = entry->older) {
        if (entry->range.alive && !entry->users && !ibx_mr_usable(entry->mr))
            entry_retire(cache, entry);
    }
    ibx_watch_unlock();
    reap(cache);
}

void ibx_regcache_move(struct ibx_regcache *cache, struct ibx_conn *conn)
{
    cache->conn = conn;
}

void ibx_regcache_destroy(struct ibx_regcache *cache)
{
    if (!cache)
        return;
    ibx_watch_lock();
    if (cache->generation != ibx_watch_generation())
        drop_inherited(cache);
    ibx_watch_unlock();
    evict(cache, 0, 0);
    ibx_watch_lock();
    ibx_watch_release_unlock();
    free(cache->entries);
    free(cache);
}
