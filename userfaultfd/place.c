/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Places pages: UFFDIO_COPY, ZEROPAGE, CONTINUE, WAKE, and their errors. */
#include "userfaultfd/engine.h"

#include "common/clock.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define REFUSALS   1000u /* in a row, and for so long: no huge page is free */
#define REFUSED_NS (1000 * IBX_NS_PER_MS)

static uint64_t address_of(const struct fault_range *r, uint64_t page)
{
    return r->is.start + (page - r->is.first_page) * r->is.page_size;
}

static void placing_begin(struct ibx_fault *e)
{
    if (e->events)
        pthread_rwlock_rdlock(&e->placing);
}

static void placing_end(struct ibx_fault *e)
{
    if (e->events)
        pthread_rwlock_unlock(&e->placing);
}

/* After EAGAIN, which means that an event has to be read first. False when the engine stops. Called
 * without `placing`. */
static bool after_event(struct ibx_fault *e)
{
    count(&e->kernel_stalls, 1);
    if (ibx_fault_events_read(e, false))
        ibx_fault_changed(e); /* the fault workers may be asleep and have not seen the event */
    else
        sched_yield();
    enum ibx_fault_state state = ibx_fault_state(e);
    return !atomic_load(&e->ending) && (state == IBX_FAULT_SERVING || state == IBX_FAULT_COMPLETE);
}

static int failed(struct ibx_fault *e, const char *what, const struct fault_range *r, uint64_t page,
                  int code)
{
    const char *remedy = "";
    if ((code == ENOMEM || code == ENOSPC) && r->is.page_size > SMALL_PAGE)
        remedy = "; no huge page is free for it, or its control group or hugetlbfs may take no "
                 "more: make room";
    else if (code == ENOMEM || code == ENOSPC)
        remedy = "; the tmpfs (/dev/shm) that it lies in, the control group of its process or this "
                 "host is full: make room";
    else if (code == ESRCH)
        remedy = "; the process is gone";
    else if (code == EEXIST)
        remedy = ": somebody else has written to it or looked at it before it came";
    else if (code == ENOENT)
        remedy = "; the range is not mapped or not registered any more";
    else if (code == EFAULT)
        remedy = "; the page is not in the shared memory, or cannot be had";
    ibx_fault_fail(e, -code, "%s of page %llu at 0x%llx: %s%s", what, (unsigned long long)page,
                   (unsigned long long)address_of(r, page), strerror(code), remedy);
    return -code;
}

int ibx_fault_wake(struct ibx_fault *e, uint64_t address, uint64_t length)
{
    struct uffdio_range where = {address, length};
    return ioctl(e->uffd, UFFDIO_WAKE, &where) ? -errno : 0;
}

static uint64_t copy_mode(const struct fault_range *r)
{
    return r->is.protect ? UFFDIO_COPY_MODE_WP : 0;
}

/* Places pages and wakes their faults. The number of bytes placed, or a negative errno. */
static int64_t fill(struct ibx_fault *e, const struct fault_range *r, uint64_t page,
                    uint64_t length, const uint8_t *bytes)
{
    uint64_t at = address_of(r, page);
    int rc;
    int64_t done;
    if (r->is.alias) {
        struct uffdio_continue work = {.range = {at, length}};
        rc = ioctl(e->uffd, UFFDIO_CONTINUE, &work) ? -errno : 0;
        done = work.mapped;
    } else {
        struct uffdio_copy work = {
            .dst = at, .src = (uintptr_t)bytes, .len = length, .mode = copy_mode(r)};
        rc = ioctl(e->uffd, UFFDIO_COPY, &work) ? -errno : 0;
        done = work.copy;
    }
    return rc && done <= 0 ? rc : done;
}

/* Huge pages are kept: freeing one would give up its reservation, too. */
void ibx_fault_empty(const struct fault_range *r, uint64_t page, uint64_t pages)
{
    if (r->is.alias && r->is.page_size == SMALL_PAGE)
        madvise((uint8_t *)r->is.alias + (page - r->is.first_page) * SMALL_PAGE, pages * SMALL_PAGE,
                MADV_REMOVE);
}

static void done(struct ibx_fault *e, struct slot *slot, uint32_t pages, enum page_state from)
{
    uint64_t page = slot_page(slot, slot->placed);
    uint64_t moved = pagemap_move_run(&e->map, page, pages, from, PAGE_PRESENT);
    slot->placed += pages;
    if (from == PAGE_DISCARDED) {
        /* Faults on these pages are answered as on any present page. */
        ibx_fault_pages_done(e, IBX_FAULT_BY_REMOVE, moved);
        ibx_fault_changed(e);
        return;
    }
    /* Counting the last page completes the engine, so all else is noted before. */
    if (slot->cause != IBX_FAULT_BY_PUSH)
        count(&e->bytes, moved * slot->range->is.page_size);
    ibx_fault_waiters_end(e, page, pages);
    ibx_fault_pages_done(e, slot->cause, moved);
}

static int keep_unmapped(struct ibx_fault *e, uint64_t page, uint64_t pages, const void *bytes)
{
    struct ibx_error why = {0};
    const int rc = e->unmapped(e->unmapped_context, page, pages, bytes, &why);
    if (why.code)
        ibx_fault_fail(e, why.code, "%s", why.message);
    return rc;
}

/* Whether a page that is placed here takes a huge page. In minor mode it is there already. */
static bool takes_huge_page(const struct fault_range *r)
{
    return r->is.page_size > SMALL_PAGE && !r->is.alias;
}

/* What EEXIST of the kernel means. If no huge page is free, Linux says that of UFFDIO_COPY, too
 * (hugetlb_mfill_atomic_pte(), up to 6.18 at least): so it is believed of a huge page only where
 * somebody besides this slot may have placed it. */
static int64_t existing(const struct ibx_fault *e, const struct fault_range *r, uint64_t page)
{
    const bool doubled =
        !takes_huge_page(r) || atomic_load(&e->doubled[page / 64]) >> (page % 64) & 1;
    return doubled ? -EEXIST : -ENOMEM;
}

static void room_seen(struct ibx_fault *e, const struct fault_range *r)
{
    if (takes_huge_page(r))
        atomic_store_explicit(&e->refused, 0, memory_order_relaxed);
}

/* The same for a fault on a page that is present: -EEXIST, or -ENOMEM. Its thread has been woken
 * already where the page is there, and faults again and again where it is not; each page that is
 * placed explains only as many refusals as there are threads. */
static int refused(struct ibx_fault *e, const struct fault_range *r)
{
    if (!takes_huge_page(r))
        return -EEXIST;
    const uint64_t now = ibx_now_ns();
    if (!atomic_fetch_add_explicit(&e->refused, 1, memory_order_relaxed))
        atomic_store_explicit(&e->refused_ns, now, memory_order_relaxed);
    const bool often = atomic_load_explicit(&e->refused, memory_order_relaxed) > REFUSALS;
    const uint64_t since = atomic_load_explicit(&e->refused_ns, memory_order_relaxed);
    return often && now > since + REFUSED_NS ? -ENOMEM : -EEXIST;
}

/* One step under `placing`: 0, -EAGAIN, or an error of the kernel. */
static int step(struct ibx_fault *e, struct slot *slot, uint32_t limit)
{
    struct fault_range *r = slot->range;
    uint64_t page = slot_page(slot, slot->placed), size = r->is.page_size;
    enum page_state state = pagemap_get(&e->map, page);
    uint32_t n = 1;
    limit = slot->scattered ? 1 : limit;
    while (n < limit && pagemap_get(&e->map, page + n) == state)
        n++;
    /* Placed before its turn, or for a duplicate: left to the worker that has the claim. */
    if (state == PAGE_PRESENT || (slot->duplicate && state != PAGE_CLAIMED)) {
        slot->placed += n;
        return 0;
    }
    if (state == PAGE_DISCARDED) {
        ibx_fault_note_removed(e, r, page, n); /* config.check may have seen these pages */
        ibx_fault_empty(r, page, n);
        done(e, slot, n, state);
        return 0;
    }
    ibx_fault_note_arrived(e, page, n);
    const uint8_t *from = slot->bytes + slot->placed * size;
    int64_t bytes = fill(e, r, page, n * size, from);
    if (bytes == -EEXIST && !e->exclusive)
        bytes = existing(e, r, page);
    if (bytes == -ENOENT && e->unmapped) {
        const int kept = keep_unmapped(e, page, n, from);
        bytes = kept ? kept : (int64_t)(n * size);
    }
    if (bytes > 0 || bytes == -EEXIST)
        ibx_fault_note_placed(e, page, bytes > 0 ? (uint64_t)bytes / size : 1);
    if (bytes > 0) {
        room_seen(e, r);
        done(e, slot, (uint32_t)((uint64_t)bytes / size), state);
        return 0;
    }
    if (bytes == -EEXIST && !e->exclusive) { /* it is placed already, with the same bytes */
        count(&e->existed, 1);
        ibx_fault_wake(e, address_of(r, page), size);
        done(e, slot, 1, state);
        return 0;
    }
    /* The owner has freed the page since it arrived. The event is about to come, or never comes
     * (huge pages). */
    if (bytes == -EFAULT && r->is.alias && pagemap_move(&e->map, page, state, PAGE_DISCARDED))
        return 0;
    return bytes ? (int)bytes : -EAGAIN;
}

/* Calls config.check for the slot's next pages, without holding `placing`, because it takes time.
 * Pages that are present were placed before their turn or by another worker, and are skipped. */
static int check(struct ibx_fault *e, const struct slot *slot, uint32_t end)
{
    const uint64_t size = slot->range->is.page_size;
    struct ibx_error why = {0};
    for (uint32_t at = slot->placed, next; e->check && !slot->checked && at < end; at = next) {
        const uint64_t page = slot_page(slot, at);
        const bool present = pagemap_get(&e->map, page) == PAGE_PRESENT;
        next = at + 1;
        while (next < end && !slot->scattered &&
               (pagemap_get(&e->map, slot->page + next) == PAGE_PRESENT) == present)
            next++;
        if (present)
            continue;
        int rc = e->check(e->check_context, slot->worker, page, next - at, slot->bytes + at * size,
                          &why);
        if (!rc)
            continue;
        ibx_fault_fail(e, rc, "%s", why.message);
        return rc;
    }
    return 0;
}

int ibx_fault_place(struct ibx_fault *e, struct slot *slot, uint32_t limit)
{
    uint32_t end = slot->good - slot->placed < limit ? slot->good : slot->placed + limit;
    int checked = check(e, slot, end);
    if (checked)
        return checked;
    while (slot->placed < end) {
        placing_begin(e);
        int rc = step(e, slot, end - slot->placed);
        placing_end(e);
        if (rc == -EAGAIN && !after_event(e))
            return -ECANCELED;
        if (rc && rc != -EAGAIN)
            return failed(e, slot->range->is.alias ? "UFFDIO_CONTINUE" : "UFFDIO_COPY", slot->range,
                          slot_page(slot, slot->placed), -rc);
    }
    return 0;
}

int ibx_fault_place_one(struct ibx_fault *e, const struct slot *slot, uint64_t page)
{
    struct slot one = *slot;
    one.placed = slot_index(slot, page);
    return ibx_fault_place(e, &one, 1);
}

/* Whether a page that faults now had been placed before, so that the guest has discarded it since.
 * Then the zero page counts as a write for ibx_dirty_scan() and is not placed write-protected. */
static bool was_placed(const struct ibx_fault *e, uint64_t page)
{
    return e->placed && atomic_load(&e->placed[page / 64]) >> (page % 64) & 1;
}

/* Maps the present pages after this one, up to the end of its fault-around window: each page that
 * the owner has not mapped yet would fault. */
static void map_behind(struct ibx_fault *e, const struct fault_range *r, uint64_t page)
{
    const uint64_t around = e->fault_around / r->is.page_size, first = page - r->is.first_page;
    uint64_t end = around > 1 ? (first / around + 1) * around : first + 1, n = 1;
    end = end < r->pages ? end : r->pages;
    while (first + n < end && pagemap_get(&e->map, page + n) == PAGE_PRESENT)
        n++;
    struct uffdio_continue work = {.range = {address_of(r, page + 1), (n - 1) * r->is.page_size},
                                   .mode = UFFDIO_CONTINUE_MODE_DONTWAKE};
    if (n > 1) /* the kernel stops at the first page that is mapped already, or at a hole */
        ioctl(e->uffd, UFFDIO_CONTINUE, &work);
}

/* 0: a zero page was placed. In minor mode a page of the page cache is mapped instead: -EEXIST. */
static int answer(struct ibx_fault *e, struct fault_range *r, uint64_t page)
{
    uint64_t size = r->is.page_size;
    if (r->is.alias) {
        int64_t bytes = fill(e, r, page, size, NULL);
        if (bytes > 0)
            map_behind(e, r, page);
        if (bytes > 0)
            return -EEXIST;
        if (bytes != -EFAULT) /* -EFAULT: the page cache does not have the page */
            return bytes ? (int)bytes : -EAGAIN;
    }
    if (size > SMALL_PAGE || r->is.protect) { /* UFFDIO_ZEROPAGE cannot place such pages */
        struct uffdio_copy copy = {.dst = address_of(r, page),
                                   .src = (uintptr_t)e->zeros,
                                   .len = size,
                                   .mode = was_placed(e, page) ? 0 : copy_mode(r)};
        return ioctl(e->uffd, UFFDIO_COPY, &copy) ? -errno : 0;
    }
    struct uffdio_zeropage work = {.range = {address_of(r, page), size}};
    return ioctl(e->uffd, UFFDIO_ZEROPAGE, &work) ? -errno : 0;
}

int ibx_fault_answer(struct ibx_fault *e, uint64_t page)
{
    struct fault_range *r = ibx_fault_range_of_page(e, page);
    while (true) {
        placing_begin(e);
        if (!r->is.alias)
            ibx_fault_note_arrived(e, page, 1);
        int rc = answer(e, r, page);
        if (rc == 0)
            room_seen(e, r);
        else if (rc == -EEXIST)
            rc = refused(e, r);
        if (rc == -EEXIST || rc == -ENOENT) /* the page was placed, or unmapped, meanwhile */
            ibx_fault_wake(e, address_of(r, page), r->is.page_size);
        placing_end(e);
        if (rc == 0 || rc == -EEXIST)
            ibx_fault_note_placed(e, page, 1);
        if (rc == 0)
            count(&e->zero_faults, 1);
        if (rc == 0 || rc == -EEXIST || rc == -ENOENT)
            return 0;
        if (rc != -EAGAIN)
            return failed(e, r->is.page_size > SMALL_PAGE ? "UFFDIO_COPY" : "UFFDIO_ZEROPAGE", r,
                          page, -rc);
        if (!after_event(e))
            return -ECANCELED;
    }
}
