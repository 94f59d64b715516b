/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Two bits per page, changed by compare-and-swap. The worker that moves a page from missing to
 * claimed fetches it, and no other one. In minor mode a second fetch would overwrite what the owner
 * of the memory has written since the first.
 *
 *     missing -> claimed -> present
 *        ^---------'  |
 *                     +-> discarded -> present     in flight; dropped on arrival
 */
#ifndef IBX_USERFAULTFD_PAGEMAP_H
#define IBX_USERFAULTFD_PAGEMAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum page_state { PAGE_MISSING = 0, PAGE_CLAIMED = 1, PAGE_PRESENT = 2, PAGE_DISCARDED = 3 };

#define PAGES_A_WORD 32u

struct pagemap {
    _Atomic uint64_t *words;
    uint64_t pages;
};

static inline unsigned pagemap_shift(uint64_t page)
{
    return (unsigned)(page % PAGES_A_WORD) * 2;
}

static inline enum page_state pagemap_get(const struct pagemap *map, uint64_t page)
{
    uint64_t word = atomic_load_explicit(&map->words[page / PAGES_A_WORD], memory_order_acquire);
    return (enum page_state)(word >> pagemap_shift(page) & 3);
}

/* Moves a page from one state to another; false when it is not in the first. */
static inline bool pagemap_move(struct pagemap *map, uint64_t page, enum page_state from,
                                enum page_state to)
{
    _Atomic uint64_t *word = &map->words[page / PAGES_A_WORD];
    unsigned shift = pagemap_shift(page);
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
    do {
        if ((old >> shift & 3) != from)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(
        word, &old, (old & ~(3ull << shift)) | (uint64_t)to << shift, memory_order_acq_rel,
        memory_order_relaxed));
    return true;
}

/* The pages of this word that are in that state, as bit 0 of each page's two bits. */
static inline uint64_t pagemap_word_has(uint64_t word, enum page_state state)
{
    uint64_t differs = word ^ (uint64_t)state * 0x5555555555555555ull;
    return ~(differs | differs >> 1) & 0x5555555555555555ull;
}

/* Moves those of [page, page + count) that are in the first state; returns how many. */
static inline uint64_t pagemap_move_run(struct pagemap *map, uint64_t page, uint64_t count,
                                        enum page_state from, enum page_state to)
{
    const uint64_t end = page + count;
    uint64_t moved = 0;
    while (page < end) {
        _Atomic uint64_t *word = &map->words[page / PAGES_A_WORD];
        const uint64_t next = (page / PAGES_A_WORD + 1) * PAGES_A_WORD;
        uint64_t within = ~0ull << pagemap_shift(page);
        if (end < next)
            within &= ~(~0ull << pagemap_shift(end));
        uint64_t old = atomic_load_explicit(word, memory_order_relaxed), these;
        do {
            these = pagemap_word_has(old, from) & within;
        } while (these && !atomic_compare_exchange_weak_explicit(
                              word, &old, old ^ these * (uint64_t)(from ^ to), memory_order_acq_rel,
                              memory_order_relaxed));
        moved +=
            these == 0x5555555555555555ull ? PAGES_A_WORD : (uint64_t)__builtin_popcountll(these);
        page = next;
    }
    return moved;
}

/* The first missing page of [from, to), or `to`. */
static inline uint64_t pagemap_find_missing(const struct pagemap *map, uint64_t from, uint64_t to)
{
    const uint64_t low = 0x5555555555555555ull;
    while (from < to) {
        uint64_t word =
            atomic_load_explicit(&map->words[from / PAGES_A_WORD], memory_order_relaxed);
        uint64_t missing = ~(word | word >> 1) & low & ~0ull << pagemap_shift(from);
        if (missing) {
            uint64_t page = from / PAGES_A_WORD * PAGES_A_WORD;
            page += (unsigned)__builtin_ctzll(missing) / 2;
            return page < to ? page : to;
        }
        from = (from / PAGES_A_WORD + 1) * PAGES_A_WORD;
    }
    return to;
}

#endif
