/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A registrar for tests of the registration cache. It notes what was in the
 * memory when it was "registered", as a device would go on to see it: a stale
 * registration shows by its note, keys[0] of the region.
 */
#ifndef IBX_TESTS_UNIT_REGCACHE_FAKE_H
#define IBX_TESTS_UNIT_REGCACHE_FAKE_H

#include "tests/scenes/island.h"
#include "transport/core/provider.h"
#include "transport/core/regcache.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGE    4096u
#define ENTRIES 8u
#define BYTES   (64u * PAGE)
#define LOCAL   IBX_ACCESS_LOCAL
#define READ    IBX_ACCESS_REMOTE_READ
#define WRITE   IBX_ACCESS_REMOTE_WRITE

/* ---------------------------------------------------------------- the registrar */

struct registrar {
    unsigned entered, left;
    size_t bytes;   /* registered now */
    size_t limit;   /* -ENOMEM beyond */
    int answer;     /* of every registration, if not 0 */
    uintptr_t last; /* address of the last one that left */
};

/* The page may begin with another's bytes: to a device that is all the same. */
__attribute__((no_sanitize("address", "thread"), noinline)) static uint64_t
first_word(const void *page)
{
    return *(const volatile uint64_t *)page;
}

/* In place of transport/core/regions.c: the "connection" of the cache is a registrar. */
int ibx_mr_register(struct ibx_conn *conn, const struct ibx_span *span, unsigned access,
                    struct ibx_mr **mr, struct ibx_error *err)
{
    struct registrar *r = (struct registrar *)conn;
    if (r->answer)
        return ibx_error_set(err, r->answer, "no registration today");
    if (r->limit && r->bytes + span->length > r->limit)
        return ibx_error_set(err, -ENOMEM, "too much");
    *mr = calloc(1, sizeof(**mr));
    (*mr)->conn = conn;
    (*mr)->span = *span;
    (*mr)->access = access;
    (*mr)->keys[0] = first_word(span->address);
    r->entered++;
    r->bytes += span->length;
    return 0;
}

void ibx_mr_deregister(struct ibx_mr *mr)
{
    if (!mr)
        return;
    struct registrar *r = (struct registrar *)mr->conn;
    r->left++;
    r->bytes -= mr->span.length;
    r->last = (uintptr_t)mr->span.address;
    free(mr);
}

bool ibx_mr_usable(const struct ibx_mr *mr)
{
    return !mr->dead;
}

static inline int create(struct registrar *r, unsigned entries, struct ibx_regcache **cache,
                         struct ibx_error *err)
{
    return ibx_regcache_create((struct ibx_conn *)r, BYTES, entries, cache, err);
}

static inline struct ibx_regcache *make(struct registrar *r)
{
    struct ibx_regcache *cache;
    struct ibx_error err;
    assert_int_equal(create(r, ENTRIES, &cache, &err), 0);
    return cache;
}

static inline struct ibx_mr *get(struct ibx_regcache *cache, void *address, size_t length,
                                 unsigned access)
{
    struct ibx_mr *mr = NULL;
    struct ibx_error err = {0};
    int rc = ibx_regcache_get(cache, address, length, access, &mr, &err);
    if (rc)
        fail_msg("%d: %s", rc, err.message);
    assert_true((char *)mr->span.address <= (char *)address);
    assert_true((char *)mr->span.address + mr->span.length >= (char *)address + length);
    assert_int_equal(access & ~mr->access, 0);
    return mr;
}

static inline struct ibx_mr *get_and_put(struct ibx_regcache *cache, void *address, size_t length)
{
    struct ibx_mr *mr = get(cache, address, length, LOCAL);
    ibx_regcache_put(cache, mr);
    return mr;
}

static inline struct ibx_regcache_stats stats(const struct ibx_regcache *cache)
{
    struct ibx_regcache_stats s;
    ibx_regcache_stats(cache, &s);
    return s;
}

/* A hit leaves the registrar alone. */
#define ASSERT_HIT(r, call)                                                                        \
    do {                                                                                           \
        unsigned entered_before = (r).entered;                                                     \
        call;                                                                                      \
        assert_int_equal((r).entered, entered_before);                                             \
    } while (0)
#define ASSERT_MISS(r, call)                                                                       \
    do {                                                                                           \
        unsigned entered_before = (r).entered;                                                     \
        call;                                                                                      \
        assert_int_equal((r).entered, entered_before + 1);                                         \
    } while (0)

/* --------------------------------------------------------------------- memory */

static inline void touch(char *memory, size_t length)
{
    for (size_t i = 0; i < length; i += PAGE)
        memory[i] = 1;
}

static inline char *map_at(void *where, size_t length, int flags)
{
    char *memory =
        mmap(where, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    assert_true(memory != MAP_FAILED);
    touch(memory, length);
    return memory;
}

/* New memory, with nothing beside it. */
static inline char *map(size_t pages)
{
    static atomic_ullong next = ISLAND;
    unsigned long long where = atomic_fetch_add(&next, (pages + 16) * PAGE);
    return map_at((void *)(uintptr_t)where, pages * PAGE, MAP_FIXED_NOREPLACE);
}

static inline void check_uncached(char *memory, size_t length)
{
    struct registrar r = {0};
    struct ibx_regcache *cache = make(&r);
    ASSERT_MISS(r, get_and_put(cache, memory, length));
    ASSERT_MISS(r, get_and_put(cache, memory, length));
    assert_int_equal(r.left, 2);
    assert_int_equal(stats(cache).uncached, 2);
    assert_int_equal(stats(cache).entries, 0);
    ibx_regcache_destroy(cache);
}

/* Nothing works as tested without userfaultfd: the tests are skipped. */
static inline bool watch_works(void)
{
    struct registrar r = {0};
    struct ibx_regcache *cache = make(&r);
    char *memory = map(1);
    get_and_put(cache, memory, 1);
    bool works = stats(cache).uncached == 0;
    ibx_regcache_destroy(cache);
    munmap(memory, PAGE);
    return works;
}

#endif
