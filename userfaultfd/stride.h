/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Stride prefetch: finds faults at a constant distance (forwards, backwards, with pages left out)
 * among the last ones, several strides at once, and predicts the pages that fault next. The number
 * of pages doubles with every prediction that came true. A stride that ends and begins elsewhere
 * with the same distance, as nested loops do, is followed from its first page on.
 *
 * Not thread-safe.
 */
#ifndef IBX_USERFAULTFD_STRIDE_H
#define IBX_USERFAULTFD_STRIDE_H

#include <stdint.h>

#define STRIDE_RECENT 16u
#define STRIDES_MAX   8u

struct stride {
    uint64_t last;     /* the latest fault */
    uint64_t distance; /* pages, modulo 2^64; 0: none */
    unsigned ahead;    /* pages behind `last` that were asked for */
    uint64_t used;     /* when, by `faults` */
};

struct stride_detector {
    uint64_t faults;                /* so far */
    uint64_t recent[STRIDE_RECENT]; /* pages that were not predicted, a ring */
    uint64_t count;                 /* of them, so far */
    uint64_t distance;              /* of the last prediction that came true */
    unsigned credit;                /* how many strides may begin with it */
    struct stride strides[STRIDES_MAX];
};

/* `pages` pages follow: from + distance, from + 2 distance, ... */
struct stride_prefetch {
    uint64_t from, distance;
    unsigned pages;
};

/* A fault: what to prefetch, at most `most` pages; often nothing (`pages` is 0). */
struct stride_prefetch ibx_fault_stride(struct stride_detector *detector, uint64_t page,
                                        unsigned most);

#endif
