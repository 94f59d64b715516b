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
/* From here on all of its pages count as written, holes too, until they have been scanned. */
int ibx_dirty_register(int uffd, uint64_t start, uint64_t length, struct ibx_error *err);
/* Forgets the range, in parts: each keeps the page faults of the process waiting, for 1 ms. */
void ibx_dirty_unregister(int uffd, uint64_t start, uint64_t length);
/* `pagemap`: /proc/PID/pagemap of the process. Sets the bit of every page (of `page_size` bytes,
 * lowest first) that was written since it was protected, or never was, and counts them; the others
 * stay as they are. Pages that are not mapped count as written, since the kernel may have unmapped
 * them. Both may be NULL. With `protect` they are protected at the same time, so that no write is
 * missed. -EOPNOTSUPP: the kernel is older. */
int ibx_dirty_scan(int pagemap, uint64_t start, uint64_t length, uint64_t page_size, bool protect,
                   uint64_t *bits, uint64_t *count, struct ibx_error *err);
/* The same for those pages of which the bit in `which` is set, and for all others in the same 2 MiB
 * (at a multiple of that), so that no entry of a page table that maps as much is protected in part:
 * the kernel would drop it, and its mark is that of all these pages. */
int ibx_dirty_protect(int pagemap, uint64_t start, uint64_t length, uint64_t page_size,
                      const uint64_t *which, uint64_t *bits, struct ibx_error *err);
/* Which pages are mapped, in the same way; with `perhaps` also those of which the page table has
 * anything at all. */
int ibx_dirty_mapped(int pagemap, uint64_t start, uint64_t length, uint64_t page_size, bool perhaps,
                     uint64_t *bits, uint64_t *count, struct ibx_error *err);

#endif
