/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Stride prefetch: finds faults at a constant distance, forwards or backwards, among the last ones,
 * and predicts the pages that fault next. It follows several strides at once. The number of pages
 * doubles with each prediction that was right. When a stride ends and one with the same distance
 * begins elsewhere, as in nested loops, that one is followed from its first page on.
 *
 * When strides of one distance begin at a constant shift of each other, as in a loop within a loop
 * or where a stride wraps around in memory again and again, all of their pages are predicted: those
 * of a pass are congruent to its start modulo the distance and lie between the lowest and the
 * highest page that has been seen, extended by a quarter on both sides, because the ends of passes
 * do not fault when they were prefetched.
 *
 * Not thread-safe.
 */
#ifndef IBX_USERFAULTFD_STRIDE_H
#define IBX_USERFAULTFD_STRIDE_H

#include <stdbool.h>
#include <stdint.h>

#define STRIDE_RECENT 16u
#define STRIDE_LATEST 64u
#define STRIDES_MAX   8u

struct stride {
    uint64_t last;     /* the latest fault */
    uint64_t distance; /* pages, modulo 2^64; 0: none */
    unsigned ahead;    /* pages after `last` that were requested */
    uint64_t used;     /* when, by `faults` */
};

#define STARTS_RECENT 8u

/* Pages of a loop that are to be fetched next. */
struct stride_loop {
    uint64_t step;      /* the distance, without its sign */
    bool down;          /* each pass goes from high to low pages */
    uint64_t shift;     /* from the start of a pass to that of the next, modulo `step` */
    uint64_t low, high; /* pages that were seen */
    uint64_t phase;     /* of the pass: the start, modulo `step` */
    uint64_t at;        /* the next page of it, or LOOP_BEGINS */
    uint64_t where;     /* the latest page at which a fault showed that the loop continues */
    uint64_t left;      /* passes; 0: there is no loop */
    unsigned strays;    /* strides that began at another distance since a fault was in it */
};
#define LOOP_BEGINS UINT64_MAX

struct stride_detector {
    uint64_t faults;                /* so far */
    uint64_t latest[STRIDE_LATEST]; /* a ring of faulted pages */
    uint64_t recent[STRIDE_RECENT]; /* a ring of faulted pages that were not predicted */
    uint64_t count;                 /* of them, so far */
    uint64_t distance;              /* of the last prediction that was right */
    unsigned credit;                /* strides that may begin with this distance */
    struct stride strides[STRIDES_MAX];
    uint64_t starts[STARTS_RECENT]; /* a ring of first pages of strides at loop.step */
    uint64_t start_count;           /* of them, so far */
    struct stride_loop loop;
};

/* `pages` pages follow: from + distance, from + 2 distance, ... */
struct stride_prefetch {
    uint64_t from, distance;
    unsigned pages;
};

/* After a fault on `page`: what to prefetch, at most `most` pages; often none. The distance is 0 if
 * the page is part of no stride. Several threads may wait for one page: for those after the first
 * it is not 0, and there are no pages. */
struct stride_prefetch ibx_fault_stride(struct stride_detector *detector, uint64_t page,
                                        unsigned most);

/* The next page of the loop within [from, to), present or not; false: there is none any more. */
bool ibx_fault_loop_next(struct stride_loop *loop, uint64_t from, uint64_t to, uint64_t *page);

#endif
