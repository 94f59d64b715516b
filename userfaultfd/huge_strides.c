/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Strides through huge pages. A page of 2 MiB takes as long as 512 small ones, so what carries the
 * background fetches the pages of a stride, several at a time, before all else; the fault worker
 * stays free for the next fault. Strides are detected in units of small pages (stride.h), from the
 * exact address of the fault, which the kernel reports where it can (ibx_fault_uffd_enable()): a
 * distance of, say, 3.1 huge pages is constant in small pages only.
 */
#include "userfaultfd/engine.h"

#define RANGE_SHIFT 40u /* the index of the range is above the number of the small page in it */
#define MOST_AHEAD  32u /* pages */

uint64_t ibx_fault_place_number(const struct fault_range *r, uint64_t address)
{
    return (uint64_t)r->index << RANGE_SHIFT | (address - r->is.start) / SMALL_PAGE;
}

/* The huge page that contains small page `number`; UINT64_MAX: no range has it. */
static uint64_t page_of(const struct ibx_fault *e, uint64_t number)
{
    const uint64_t index = number >> RANGE_SHIFT;
    if (index >= e->range_count)
        return UINT64_MAX;
    const struct fault_range *r = &e->ranges[index];
    const uint64_t page = (number & ((1ull << RANGE_SHIFT) - 1)) / (r->is.page_size / SMALL_PAGE);
    return page < r->pages ? r->is.first_page + page : UINT64_MAX;
}

bool ibx_fault_ahead_detect(struct ibx_fault *e, uint64_t number)
{
    const struct stride_prefetch next =
        ibx_fault_stride(&e->huge_strides, number, e->fault_around > SMALL_PAGE ? MOST_AHEAD : 0);
    if (next.pages && e->ahead_count == STRIDE_QUEUE) { /* drop the oldest */
        e->ahead_head = (e->ahead_head + 1) % STRIDE_QUEUE;
        e->ahead_count--;
    }
    if (next.pages)
        e->ahead[(e->ahead_head + e->ahead_count++) % STRIDE_QUEUE] = next;
    atomic_store_explicit(&e->is_ahead, e->ahead_count > 0, memory_order_relaxed);
    return next.distance != 0;
}

bool ibx_fault_ahead_next(struct ibx_fault *e, uint64_t *page)
{
    bool found = false;
    if (!atomic_load_explicit(&e->is_ahead, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&e->lock);
    while (e->ahead_count && !found) {
        struct stride_prefetch *next = &e->ahead[e->ahead_head];
        *page = next->pages ? page_of(e, next->from + next->distance) : UINT64_MAX;
        found = *page != UINT64_MAX && pagemap_get(&e->map, *page) == PAGE_MISSING;
        if (found)
            break;
        if (*page != UINT64_MAX) { /* the page is present or in flight */
            next->from += next->distance;
            next->pages--;
            continue;
        }
        e->ahead_head = (e->ahead_head + 1) % STRIDE_QUEUE;
        e->ahead_count--;
    }
    atomic_store_explicit(&e->is_ahead, e->ahead_count > 0, memory_order_relaxed);
    pthread_mutex_unlock(&e->lock);
    return found;
}
