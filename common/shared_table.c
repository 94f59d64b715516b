/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/shared_table.h"

#include "common/forked.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define WORD  sizeof(uint64_t)
#define TRIES 16u /* to read what is written anew meanwhile, or to change what others change */

/* A value has two copies. A writer fills the one that is not read, and then says so: the lowest
 * bit of `state` is which one is read, the next one whether any is, and those above count. */
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
    _Atomic unsigned used;  /* nothing was taken behind these, unless somebody has gone wrong */
    _Atomic unsigned first; /* most likely none before this one is free */
    _Atomic uint64_t takes; /* ... and no place has been taken more often */
    uint64_t places[];
};

struct ibx_shared_table { /* each process's own, but for `shared` */
    struct shared *shared;
    unsigned count;
    bool secret;
    size_t n, words, stride; /* of a value in bytes and in words; of a place in words */
    _Atomic unsigned seen;   /* the most that `used` was */
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

/* Others find the place. */
static void use(struct ibx_shared_table *table, unsigned i)
{
    unsigned n = atomic_load(&table->shared->used);
    for (unsigned t = 0; t < TRIES && (n <= i || n > table->count); t++) {
        if (atomic_compare_exchange_strong(&table->shared->used, &n, i + 1))
            break;
    }
}

/* One from `from` on, before `to`; -1: none is free. */
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
    atomic_fetch_add(&table->shared->takes, 1); /* before it can be counted among what is taken */
    int place = take_between(table, from, table->count, owner);
    if (place < 0)
        place = take_between(table, 0, from, owner);
    if (place >= 0) /* not if one has become free meanwhile that comes before it */
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
    atomic_thread_fence(memory_order_release); /* who sees any word below sees the last `state` */
    for (size_t i = 0; i < table->words; i++) {
        uint64_t word = 0;
        const size_t at = i * WORD, left = table->n - at;
        memcpy(&word, (const uint8_t *)value + at, left < WORD ? left : WORD);
        atomic_store_explicit(&p->words[which * table->words + i], word, memory_order_relaxed);
    }
    atomic_store_explicit(&p->state, next_state(state) | WRITTEN | which, memory_order_release);
    use(table, (unsigned)place);
}

/* Nobody reads it from the first instruction on, and nobody takes it before the last but one. */
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

/* The owner; 0: there is nothing, or it does not begin so. */
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
