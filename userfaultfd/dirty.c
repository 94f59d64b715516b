/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "userfaultfd/dirty.h"

#include "userfaultfd/fault.h"
#include "userfaultfd/protect.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>

#define WP_ASYNC   (1ull << 15)  /* UFFD_FEATURE_WP_ASYNC, with which holes are noted, too */
#define REGIONS    1024u         /* that one ioctl returns at most */
#define PART_BYTES (64ull << 20) /* unregistered at a time */
#define HUGE_BYTES (2ull << 20)  /* that one entry of a page table may map */

/* PAGEMAP_SCAN of <linux/fs.h>, from Linux 6.7 on. */
struct scan {
    uint64_t size, flags, start, end, walk_end, regions, region_count, max_pages, inverted, all_of,
        any_of, reported;
};
struct region {
    uint64_t start, end, categories;
};
#define SCAN         _IOWR('f', 16, struct scan)
#define SCAN_PROTECT (1u << 0)
#define SCAN_ASYNC   (1u << 1) /* -EPERM where the range is not protected asynchronously */
#define WRITTEN      (1u << 1)
#define PRESENT      (1u << 3)
#define SWAPPED      (1u << 4)

static int too_old(struct ibx_error *err)
{
    return ibx_error_set(err, -EOPNOTSUPP,
                         "this kernel does not tell which pages are written (userfaultfd's "
                         "WP_ASYNC and PAGEMAP_SCAN): Linux 6.7 does (6.10 on aarch64)");
}

int ibx_dirty_enable(int uffd, struct ibx_error *err)
{
    int rc = ibx_fault_uffd_enable(uffd, WP_ASYNC, err);
    return rc == -EOPNOTSUPP ? too_old(err) : rc;
}

int ibx_dirty_register(int uffd, uint64_t start, uint64_t length, struct ibx_error *err)
{
    return ibx_protect_register(uffd, start, length, err);
}

void ibx_dirty_unregister(int uffd, uint64_t start, uint64_t length)
{
    for (uint64_t at = 0; at < length; at += PART_BYTES) {
        struct uffdio_range part = {start + at,
                                    length - at < PART_BYTES ? length - at : PART_BYTES};
        ioctl(uffd, UFFDIO_UNREGISTER, &part);
    }
}

static void note(const struct region *region, uint64_t start, uint64_t page_size, uint64_t *bits,
                 uint64_t *count)
{
    const uint64_t end = (region->end - start + page_size - 1) / page_size;
    for (uint64_t page = (region->start - start) / page_size, next; page < end; page = next) {
        next = (page / 64 + 1) * 64;
        uint64_t *word = &bits[page / 64], these = ~0ull << page % 64;
        if (next > end) {
            next = end;
            these &= ~0ull >> (64 - end % 64);
        }
        *count += (uint64_t)__builtin_popcountll(these & ~*word);
        *word |= these;
    }
}

static int search(const struct ibx_dirty_range *range, struct scan *scan, uint64_t *bits,
                  uint64_t *count, struct ibx_error *err)
{
    struct region regions[REGIONS];
    const uint64_t start = scan->start;
    scan->regions = (uintptr_t)regions;
    scan->region_count = REGIONS;
    while (scan->start < scan->end) {
        const int n = ioctl(range->pagemap, SCAN, scan);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == ENOTTY || errno == EINVAL))
            return too_old(err);
        if (n < 0)
            return ibx_error_set(err, -errno,
                                 "0x%" PRIx64 " bytes at 0x%" PRIx64
                                 " of QEMU cannot be searched for pages: %s",
                                 scan->end - start, start, strerror(errno));
        for (int i = 0; bits && i < n; i++)
            note(&regions[i], range->start, range->page_size, bits, count);
        for (int i = 0; !bits && i < n; i++)
            *count += (regions[i].end - regions[i].start) / range->page_size;
        scan->start = scan->walk_end;
    }
    return 0;
}

/* A scan that asks for WRITTEN alone takes the kernel 0.4 ms a GiB of small pages; with any other
 * category in the masks it takes 8 ms. */
static struct scan of_written(uint64_t start, uint64_t end, bool protect)
{
    return (struct scan){.size = sizeof(struct scan),
                         .flags = protect ? SCAN_PROTECT | SCAN_ASYNC : SCAN_ASYNC,
                         .start = start,
                         .end = end,
                         .all_of = WRITTEN,
                         .reported = WRITTEN};
}

int ibx_dirty_scan(const struct ibx_dirty_range *range, bool protect, uint64_t *bits,
                   struct ibx_error *err)
{
    uint64_t count = 0;
    struct scan scan = of_written(range->start, range->start + range->length, protect);
    return search(range, &scan, bits, &count, err);
}

static bool any(const uint64_t *bits, uint64_t page, uint64_t end)
{
    bool found = false;
    for (; !found && page < end; page = (page / 64 + 1) * 64) {
        const uint64_t last = page / 64 == end / 64 ? ~(~0ull << end % 64) : ~0ull;
        found = (bits[page / 64] & ~0ull << page % 64 & last) != 0;
    }
    return found;
}

/* One scan for every run of neighbours that are to be protected. */
int ibx_dirty_protect(const struct ibx_dirty_range *range, const uint64_t *which, uint64_t *bits,
                      struct ibx_error *err)
{
    const uint64_t start = range->start, end = start + range->length, page_size = range->page_size;
    const uint64_t step = page_size > HUGE_BYTES ? page_size : HUGE_BYTES;
    uint64_t count = 0, from = start;
    int rc = 0;
    for (uint64_t at = start, next; !rc && at < end; at = next) {
        next = at - at % step + step < end ? at - at % step + step : end;
        const bool wanted = any(which, (at - start) / page_size, (next - start) / page_size);
        const uint64_t to = wanted ? next : at;
        if (to > from && (!wanted || next == end)) {
            struct scan scan = of_written(from, to, true);
            rc = search(range, &scan, bits, &count, err);
        }
        from = wanted ? from : next;
    }
    return rc;
}

int ibx_dirty_mapped(const struct ibx_dirty_range *range, bool perhaps, uint64_t *bits,
                     uint64_t *count, struct ibx_error *err)
{
    uint64_t mapped = 0;
    const uint64_t which = perhaps ? PRESENT | SWAPPED : PRESENT;
    struct scan scan = {.size = sizeof(scan),
                        .start = range->start,
                        .end = range->start + range->length,
                        .any_of = which,
                        .reported = which};
    int rc = search(range, &scan, bits, &mapped, err);
    if (!rc && count)
        *count = mapped;
    return rc;
}
