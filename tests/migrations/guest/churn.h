/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What the guest does to its memory, and what `expect` computes natively.
 *
 * A vCPU owns a run of pages, zero at first. One beat visits `beat` of them, with a constant stride
 * through all of its memory or, `scattered`, in an order without a pattern, folds every word that
 * it finds into a running checksum and writes another one. The fold is a bijection of the checksum:
 * one wrong byte, once visited, makes every later checksum wrong.
 */
#ifndef IBX_TESTS_GUEST_CHURN_H
#define IBX_TESTS_GUEST_CHURN_H

#include <stdint.h>

#define CHURN_PAGE_WORDS 1024u
#define CHURN_BASE       0x1000000u /* physical address of the first page: 16 MiB */
#define CHURN_MIB        16u
#define CHURN_CPUS       1u
#define CHURN_BEAT       256u  /* pages a beat */
#define CHURN_STRIDE     1607u /* odd, so that it reaches every page of a power of two */

struct churn {
    uint32_t *words;
    uint32_t pages; /* a power of two */
    uint32_t beat;  /* pages a beat */
    uint32_t scattered;
    uint32_t at;    /* the next page, when scattered */
    uint32_t next;  /* visit number */
    uint32_t count; /* beats done */
    uint32_t sum;
};

static inline void churn_init(struct churn *c, uint32_t *words, uint32_t pages, uint32_t beat,
                              uint32_t cpu, uint32_t scattered)
{
    c->words = words;
    c->pages = pages;
    c->beat = beat;
    c->scattered = scattered;
    c->at = 0;
    c->next = 0;
    c->count = 0;
    c->sum = 0x811c9dc5u + cpu;
}

static inline void churn_page(struct churn *c, uint32_t *page)
{
    uint32_t sum = c->sum, step = 1013904223u + c->count;
    for (uint32_t i = 0; i < CHURN_PAGE_WORDS; i++) {
        uint32_t word = page[i];
        sum = (sum ^ word) * 16777619u;
        sum ^= sum >> 15;
        page[i] = word * 1664525u + step + i;
    }
    c->sum = sum;
}

/* A full period modulo any power of two: every page once, then again in the same order. */
static inline uint32_t churn_number(struct churn *c)
{
    if (!c->scattered)
        return (c->next * CHURN_STRIDE) & (c->pages - 1);
    c->at = (c->at * 1664525u + 1013904223u) & (c->pages - 1);
    return c->at;
}

static inline void churn_beat(struct churn *c)
{
    for (uint32_t i = 0; i < c->beat; i++, c->next++) {
        uint32_t number = churn_number(c);
        churn_page(c, c->words + (uintptr_t)number * CHURN_PAGE_WORDS);
    }
    c->count++;
}

/* Pages of each of `cpus` vCPUs out of `mib` MiB: the largest power of two that fits. */
static inline uint32_t churn_pages(uint32_t mib, uint32_t cpus)
{
    uint32_t pages = 1;
    while (pages * 2 * cpus <= mib * 256)
        pages *= 2;
    return pages;
}

#endif
