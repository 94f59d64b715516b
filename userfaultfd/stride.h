/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Stride prefetch: finds faults at a constant distance, forwards or backwards, among the last ones,
 * and predicts the pages that fault next. It follows several strides at once. The number of pages
 * doubles with each prediction that was right. When a stride ends and one with the same distance
 * begins elsewhere, as in nested loops, that one is followed from its first page on.
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
    unsigned ahead;    /* pages after `last` that were requested */
    uint64_t used;     /* when, by `faults` */
};

struct stride_detector {
    uint64_t faults;                /* so far */
    uint64_t recent[STRIDE_RECENT]; /* a ring of faulted pages that were not predicted */
    uint64_t count;                 /* of them, so far */
    uint64_t distance;              /* of the last prediction that was right */
    unsigned credit;                /* strides that may begin with this distance */
    struct stride strides[STRIDES_MAX];
};

/* `pages` pages follow: from + distance, from + 2 distance, ... */
struct stride_prefetch {
    uint64_t from, distance;
    unsigned pages;
};

/* After a fault on `page`: what to prefetch, at most `most` pages; often none. */
struct stride_prefetch ibx_fault_stride(struct stride_detector *detector, uint64_t page,
                                        unsigned most);

#endif
