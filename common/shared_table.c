/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/shared_table.h"

#include "common/forked.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define WORD  sizeof(uint64_t)
#define TRIES 16u /* to read a value that is being replaced, or to change what others change */

/* A value has two copies. A writer fills the one that is not read, and then changes `state`: its
 * lowest bit is which copy is read, the next one whether any is, and those above count the
 * changes. */
#define WHICH   ((uint64_t)1)
#define WRITTEN ((uint64_t)2)
#define COUNTED ((uint64_t)4)

struct place {
    _Atomic uint64_t state;
    _Atomic uint32_t owner; /* 0: it is free */
    uint32_t unused;
    _Atomic uint64_t words[]; /* of both copies */
};

struct shared {
    _Atomic unsigned used;  /* no place from here on was ever taken, if no process is faulty */
    _Atomic unsigned first; /* most likely no place before this one is free */
    _Atomic uint64_t takes; /* tries to take a place, of all processes */
    uint64_t places[];
};

struct ibx_shared_table { /* each process has its own, but `shared` is common */
    struct shared *shared;
    unsigned count;
    bool secret;
    size_t n, words, stride; /* of a value in bytes and in words; of a place in words */
    _Atomic unsigned seen;   /* the highest `used` so far: a faulty process may lower it */
};

struct ibx_shared_table *ibx_shared_table_create(unsigned count, size_t n, bool secret)
{
    struct ibx_shared_table *table = calloc(1, sizeof(*table));
    if (!table)
        return NULL;
    table->count = count;
    table->secret = secret;
    table->n = n;
    table->words = (n + WORD - 1) / WORD;
    table->stride = sizeof(struct place) / WORD + 2 * table->words;
    table->shared = ibx_forked_map(sizeof(struct shared) + count * table->stride * WORD);
    if (table->shared)
        return table;
    free(table);
    return NULL;
}

void ibx_shared_table_destroy(struct ibx_shared_table *table)
{
    if (table)
        munmap(table->shared, sizeof(struct shared) + table->count * table->stride * WORD);
    free(table);
}

static struct place *place_at(const struct ibx_shared_table *table, unsigned i)
{
    return (struct place *)&table->shared->places[i * table->stride];
}

static unsigned used(const struct ibx_shared_table *table)
{
    _Atomic unsigned *seen = (_Atomic unsigned *)&table->seen;
    const unsigned now = atomic_load(&table->shared->used);
    const unsigned before = atomic_load_explicit(seen, memory_order_relaxed);
    if (now <= before || now > table->count)
        return before;
    atomic_store_explicit(seen, now, memory_order_relaxed);
    return now;
}

/* Makes `used` include the place, so that other processes find it. */
static void use(struct ibx_shared_table *table, unsigned i)
{
    unsigned n = atomic_load(&table->shared->used);
    for (unsigned t = 0; t < TRIES && (n <= i || n > table->count); t++) {
        if (atomic_compare_exchange_strong(&table->shared->used, &n, i + 1))
            break;
    }
}

/* Takes a free place in [from, to); -1: none is free. */
static int take_between(struct ibx_shared_table *table, unsigned from, unsigned to, uint32_t owner)
{
    for (unsigned i = from; i < to; i++) {
        uint32_t nobody = 0;
        struct place *p = place_at(table, i);
        if (atomic_load_explicit(&p->owner, memory_order_relaxed) ||
            !atomic_compare_exchange_strong(&p->owner, &nobody, owner))
            continue;
        if (table->secret)
            mlock(p, table->stride * WORD);
        use(table, i);
        return (int)i;
    }
    return -1;
}

int ibx_shared_table_take(struct ibx_shared_table *table, uint32_t owner)
{
    unsigned first = atomic_load(&table->shared->first);
    const unsigned from = first < table->count ? first : 0;
    atomic_fetch_add(&table->shared->takes, 1); /* before the place can be counted as taken */
    int place = take_between(table, from, table->count, owner);
    if (place < 0)
        place = take_between(table, 0, from, owner);
    if (place >= 0) /* unless a place before it has become free meanwhile */
        atomic_compare_exchange_strong(&table->shared->first, &first, (unsigned)place + 1);
    return place;
}

uint64_t ibx_shared_table_takes(const struct ibx_shared_table *table)
{
    return atomic_load(&table->shared->takes);
}

unsigned ibx_shared_table_taken(const struct ibx_shared_table *table)
{
    unsigned n = 0;
    for (unsigned i = 0; i < used(table); i++)
        n += atomic_load_explicit(&place_at(table, i)->owner, memory_order_relaxed) != 0;
    return n;
}

static uint64_t next_state(uint64_t state)
{
    return (state & ~(COUNTED - 1)) + COUNTED;
}

void ibx_shared_table_write(struct ibx_shared_table *table, int place, const void *value)
{
    struct place *p = place_at(table, (unsigned)place);
    const uint64_t state = atomic_load_explicit(&p->state, memory_order_relaxed);
    const uint64_t which = ~state & WHICH;
    atomic_thread_fence(memory_order_release); /* a reader that sees a word stored below sees the
                                                  last `state`, too */
    for (size_t i = 0; i < table->words; i++) {
        uint64_t word = 0;
        const size_t at = i * WORD, left = table->n - at;
        memcpy(&word, (const uint8_t *)value + at, left < WORD ? left : WORD);
        atomic_store_explicit(&p->words[which * table->words + i], word, memory_order_relaxed);
    }
    atomic_store_explicit(&p->state, next_state(state) | WRITTEN | which, memory_order_release);
    use(table, (unsigned)place);
}

/* From the first store on nobody reads the place, and nobody takes it before its owner is 0. */
static void clear(struct ibx_shared_table *table, unsigned i)
{
    struct place *p = place_at(table, i);
    const uint64_t state = atomic_load_explicit(&p->state, memory_order_relaxed);
    atomic_store_explicit(&p->state, next_state(state) | (state & WHICH), memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* as above */
    for (size_t w = 0; w < 2 * table->words; w++)
        atomic_store_explicit(&p->words[w], 0, memory_order_relaxed);
    atomic_store_explicit(&p->owner, 0, memory_order_release);
    unsigned first = atomic_load(&table->shared->first);
    for (unsigned t = 0; t < TRIES && i < first; t++) {
        if (atomic_compare_exchange_strong(&table->shared->first, &first, i))
            break;
    }
}

void ibx_shared_table_give(struct ibx_shared_table *table, int place)
{
    clear(table, (unsigned)place);
}

void ibx_shared_table_forget(struct ibx_shared_table *table, uint32_t owner)
{
    for (unsigned i = 0; i < used(table); i++) {
        if (atomic_load(&place_at(table, i)->owner) == owner)
            clear(table, i);
    }
}

static void copy(const struct ibx_shared_table *table, const _Atomic uint64_t *words, size_t n,
                 void *to)
{
    uint8_t *at = to;
    for (size_t i = 0; i < table->words && i * WORD < n; i++, at += WORD) {
        const uint64_t word = atomic_load_explicit(&words[i], memory_order_relaxed);
        if (n - i * WORD >= WORD)
            memcpy(at, &word, WORD);
        else
            memcpy(at, &word, n - i * WORD);
    }
}

/* Copies the value of the place if its first n bytes are `first`, and returns its owner. 0: there
 * is none, or another value. */
static uint32_t read_place(const struct ibx_shared_table *table, struct place *p, const void *first,
                           size_t n, void *value)
{
    for (unsigned t = 0; t < TRIES; t++) {
        const uint64_t state = atomic_load_explicit(&p->state, memory_order_acquire);
        const _Atomic uint64_t *words = &p->words[(state & WHICH) * table->words];
        const uint32_t owner = atomic_load_explicit(&p->owner, memory_order_relaxed);
        if (!owner || !(state & WRITTEN))
            return 0;
        copy(table, words, n, value);
        const bool is = !n || !memcmp(value, first, n);
        if (is)
            copy(table, words, table->n, value);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&p->state, memory_order_relaxed) == state)
            return is && (!n || !memcmp(value, first, n)) ? owner : 0;
    }
    return 0;
}

uint32_t ibx_shared_table_next(const struct ibx_shared_table *table, unsigned *place,
                               const void *first, size_t n, void *value)
{
    uint32_t owner = 0;
    while (!owner && *place < used(table))
        owner = read_place(table, place_at(table, (*place)++), first, n, value);
    return owner;
}
