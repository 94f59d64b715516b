/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What outlives an engine whose process is killed: the page map, in shared memory, and the events
 * that were read. A page is claimed before it is placed, and present only after that. So each page
 * that the killed engine had claimed is fetched again, whether it was placed or not: the kernel
 * refuses a second copy (EEXIST), and a removal has moved the page on in the map.
 */
#include "userfaultfd/engine.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <string.h>

#define MAP_MADE 0x3170616d78626931ull /* the layout of struct map_memory, first version */

static size_t words_of(uint64_t pages)
{
    return (size_t)(pages / PAGES_A_WORD + 1);
}

size_t ibx_fault_map_bytes(const struct ibx_fault_range *ranges, unsigned count)
{
    uint64_t pages = 0;
    for (unsigned i = 0; i < count; i++) {
        const uint64_t end = ranges[i].first_page + ranges[i].length / ranges[i].page_size;
        pages = end > pages ? end : pages;
    }
    return sizeof(struct map_memory) + words_of(pages) * sizeof(uint64_t);
}

int ibx_fault_map_use(struct ibx_fault *e, void *memory, struct ibx_error *err)
{
    struct map_memory *m = memory;
    e->adopted = m->made != 0;
    if (e->adopted && (m->made != MAP_MADE || m->pages != e->map.pages))
        return ibx_error_set(err, -EINVAL,
                             "the page map of an earlier engine has %llu pages, not %llu, or is "
                             "of another version",
                             (unsigned long long)m->pages, (unsigned long long)e->map.pages);
    e->lasting = m;
    e->map.words = m->words;
    return 0;
}

void ibx_fault_map_made(struct ibx_fault *e)
{
    memset(e->lasting->events, 0, sizeof e->lasting->events);
    e->lasting->pages = e->map.pages;
    atomic_thread_fence(memory_order_release);
    e->lasting->made = MAP_MADE;
}

int ibx_fault_map_adopt(struct ibx_fault *e, struct ibx_error *err)
{
    uint64_t missing = 0;
    for (unsigned i = 0; i < e->range_count; i++) {
        const struct ibx_fault_range *r = &e->ranges[i].is;
        const uint64_t pages = e->ranges[i].pages;
        for (uint64_t page = r->first_page; page < r->first_page + pages; page++)
            if (pagemap_move(&e->map, page, PAGE_CLAIMED, PAGE_MISSING))
                ibx_fault_note_doubled(e, page);
        pagemap_move_run(&e->map, r->first_page, pages, PAGE_DISCARDED, PAGE_PRESENT);
        for (uint64_t page = r->first_page; page < r->first_page + pages; page++)
            missing += pagemap_get(&e->map, page) == PAGE_MISSING;
    }
    atomic_store(&e->missing, missing);
    ibx_fault_pages_done(e, IBX_FAULT_BY_REBUILD, e->total - missing);
    for (unsigned i = 0; i < EVENTS_AT_ONCE; i++) {
        struct uffd_msg *m = &e->lasting->events[i];
        if (m->event == UFFD_EVENT_FORK) /* the killed process had the child's descriptor */
            ibx_log(IBX_LOG_WARN, "the process whose memory is filled had forked: its child has "
                                  "been left");
        else if (m->event && m->event != UFFD_EVENT_PAGEFAULT) /* faults come again */
            ibx_fault_event_handle(e, m, ibx_now_ns());
        m->event = 0;
    }
    return ibx_fault_wake_all(e, err);
}
