/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which pages a process writes, seen from outside and without stopping it: a userfaultfd protects
 * them asynchronously (Linux 6.7), so that the first write to each page only leaves a mark in the
 * page table of that process, and PAGEMAP_SCAN collects the marks and protects pages, again or for
 * the first time.
 *
 * Only writes through the page table of that process are seen. A device that reads into pages which
 * the kernel has pinned for it marks them when they are pinned, not when the data comes.
 */
#ifndef IBX_USERFAULTFD_DIRTY_H
#define IBX_USERFAULTFD_DIRTY_H

#include "common/error.h"

#include <stdbool.h>
#include <stdint.h>

/* UFFDIO_API on a new descriptor. -EOPNOTSUPP: the kernel is older. */
int ibx_dirty_enable(int uffd, struct ibx_error *err);
/* From here on all pages of the range count as written, holes too, until a scan protects them. */
int ibx_dirty_register(int uffd, uint64_t start, uint64_t length, struct ibx_error *err);
/* Unregisters the range in parts: the page faults of the process wait for each part, 1 ms. */
void ibx_dirty_unregister(int uffd, uint64_t start, uint64_t length);
/* Memory of a process. Bit 0 of `bits` below is the page at `start`. */
struct ibx_dirty_range {
    int pagemap; /* /proc/PID/pagemap of the process, open */
    uint64_t start, length, page_size;
};

/* Sets the bit of every page that was written since it was protected, or was never protected; other
 * bits stay as they are. Pages that are not mapped count as written, since the kernel may have
 * unmapped them. `bits` may be NULL. With `protect` the same scan protects these pages, so that no
 * write is missed. -EOPNOTSUPP: the kernel is older. */
int ibx_dirty_scan(const struct ibx_dirty_range *range, bool protect, uint64_t *bits,
                   struct ibx_error *err);
/* Scans and protects the pages whose bit in `which` is set, and all others in the same aligned
 * 2 MiB. Protecting a part of a 2 MiB mapping would make the kernel drop that mapping, whose one
 * mark stands for all of its pages. */
int ibx_dirty_protect(const struct ibx_dirty_range *range, const uint64_t *which, uint64_t *bits,
                      struct ibx_error *err);
/* Sets the bits of pages that are mapped; with `perhaps` also of those that the page table has as
 * swapped out. `count`: how many bits were newly set, or without `bits` how many pages are mapped.
 * `bits` and `count` may be NULL. */
int ibx_dirty_mapped(const struct ibx_dirty_range *range, bool perhaps, uint64_t *bits,
                     uint64_t *count, struct ibx_error *err);

#endif
