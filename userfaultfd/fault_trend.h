/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which pages will fault next: those who walk through memory with a constant step, forwards,
 * backwards, or with pages left out, are found among the last faults, several at once, whoever they
 * are. What follows each walk doubles with every fault that was foreseen. Walks that end and begin
 * elsewhere with the same step, as loops in loops do, are followed from their first page on.
 *
 * Not thread-safe.
 */
#ifndef IBX_USERFAULTFD_FAULT_TREND_H
#define IBX_USERFAULTFD_FAULT_TREND_H

#include <stdint.h>

#define TREND_RECENT 16u
#define TREND_WALKS  8u

struct trend_walk {
    uint64_t last;  /* the latest fault */
    uint64_t step;  /* pages, modulo 2^64; 0: none */
    unsigned ahead; /* pages behind `last` that were asked for */
    uint64_t used;  /* when, by `faults` */
};

struct trends {
    uint64_t faults;               /* so far */
    uint64_t recent[TREND_RECENT]; /* pages that no walk foresaw, a ring */
    uint64_t count;                /* of them, so far */
    uint64_t step;                 /* with which a fault was foreseen at last */
    unsigned credit;               /* walks that may be taken to begin with it */
    struct trend_walk walks[TREND_WALKS];
};

/* `pages` pages follow: from + step, from + 2 step, ... */
struct trend_next {
    uint64_t from, step;
    unsigned pages;
};

/* A fault: what to ask for ahead, up to `most` pages behind it; often nothing (`pages` is 0). */
struct trend_next ibx_fault_trend(struct trends *trends, uint64_t page, unsigned most);

#endif
