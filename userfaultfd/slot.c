/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Requests: a slot is one, from when its pages are claimed until they are placed. */
#include "userfaultfd/engine.h"

#include "common/clock.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static const struct ibx_state slot_states[] = {
    [SLOT_FREE] = {"free", IBX_TO(SLOT_IN_FLIGHT), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [SLOT_IN_FLIGHT] = {"in flight", IBX_TO(SLOT_ARRIVED) | IBX_TO(SLOT_FREE), 0},
    [SLOT_ARRIVED] = {"arrived", IBX_TO(SLOT_FREE), 0},
};
static const struct ibx_state_table slot_table = IBX_STATE_TABLE("slot", slot_states);

void ibx_fault_slot_init(struct slot *slot)
{
    ibx_state_begin(&slot->state, &slot_table, SLOT_FREE);
}

struct slot *ibx_fault_slot_take(struct fault_worker *w, unsigned from, unsigned to)
{
    for (unsigned i = from; i < to; i++)
        if (w->slots[i].state.now == SLOT_FREE)
            return &w->slots[i];
    return NULL;
}

void ibx_fault_slot_release(struct fault_worker *w, struct slot *slot)
{
    struct ibx_fault *e = w->engine;
    uint64_t back = 0, gone = 0;
    for (; slot->placed < slot->count && !slot->duplicate; slot->placed++) {
        uint64_t page = slot_page(slot, slot->placed);
        if (pagemap_move(&e->map, page, PAGE_CLAIMED, PAGE_MISSING)) {
            back++;
        } else if (pagemap_get(&e->map, page) == PAGE_DISCARDED) {
            ibx_fault_note_removed(e, slot->range, page, 1); /* it may have been checked */
            ibx_fault_empty(slot->range, page, 1);
            gone += pagemap_move(&e->map, page, PAGE_DISCARDED, PAGE_PRESENT);
        }
    }
    atomic_fetch_add(&e->missing, back);
    ibx_fault_pages_done(e, IBX_FAULT_BY_REMOVE, gone);
    if (back || gone)
        ibx_fault_changed(e);
    if (gone) /* it may have been the last page */
        ibx_fault_check_complete(e);
    if (slot - w->slots >= (ptrdiff_t)SINGLE_SLOTS)
        w->bulk--;
    ibx_state_move(&slot->state, SLOT_FREE);
    slot->generation++;
}

int ibx_fault_alias_populate(struct ibx_fault *e, const struct slot *slot, size_t length)
{
    const int advice = e->cached ? MADV_POPULATE_READ : MADV_POPULATE_WRITE;
    if (!madvise(slot->bytes, length, advice) || errno == EINVAL) /* before 5.14 */
        return 0;
    const int code = errno == EFAULT ? ENOSPC : errno; /* madvise(2) says EFAULT for a full tmpfs */
    const char *full = slot->range->is.page_size > SMALL_PAGE
                           ? "the huge pages that its hugetlbfs may take are used up"
                           : "the tmpfs (/dev/shm) that it lies in is full";
    ibx_fault_fail(e, -code, "no memory for page %llu of guest RAM: %s%s%s; make room",
                   (unsigned long long)slot->page, full,
                   code == ENOSPC ? "" : ", or: ", code == ENOSPC ? "" : strerror(code));
    return -code;
}

/* The reader has taken no request for the slot, because it is full (-EAGAIN) or has failed. */
static void not_requested(struct fault_worker *w, struct slot *slot, size_t length, int rc)
{
    struct ibx_fault *e = w->engine;
    ibx_fault_slot_release(w, slot);
    if (rc == -EAGAIN) {
        w->reader_full = w->in_flight > 0; /* otherwise no arrival would clear it */
        w->rescan |= !w->reader_full;
        count(&e->reader_stalls, 1);
    } else {
        ibx_fault_fail(e, rc, "page %llu (%zu bytes) cannot be requested: %s",
                       (unsigned long long)slot->page, length, strerror(-rc));
    }
}

int ibx_fault_slot_request(struct fault_worker *w, struct slot *slot, struct fault_range *r,
                           const struct wanted *wanted)
{
    struct ibx_fault *e = w->engine;
    const uint64_t page = wanted->page;
    uint64_t place = (page - r->is.first_page) * r->is.page_size;
    *slot = (struct slot){.state = slot->state,
                          .worker = (unsigned)(w - w->engine->workers),
                          .cause = wanted->cause,
                          .range = r,
                          .page = page,
                          .list = slot->list,
                          .scattered = wanted->scattered,
                          .count = wanted->pages,
                          .duplicate = wanted->duplicate,
                          .generation = slot->generation,
                          .memory = slot->memory};
    ibx_state_move(&slot->state, SLOT_IN_FLIGHT);
    if (wanted->duplicate)
        ibx_fault_note_doubled(e, page);
    slot->faults = atomic_load_explicit(&e->faults, memory_order_relaxed);
    slot->asked_ns = ibx_now_ns();
    slot->bytes = r->is.alias ? (uint8_t *)r->is.alias + place : slot->memory;
    if (slot - w->slots >= (ptrdiff_t)SINGLE_SLOTS)
        w->bulk++;
    struct ibx_fault_request request = {
        .page = page,
        .offset = r->is.reader_offset + place,
        .length = (size_t)wanted->pages * r->is.page_size,
        .buffer = slot->bytes,
        .cookie = (uint64_t)slot->generation << 32 | (uint64_t)(slot - w->slots),
        .range = r->index,
        .urgent = slot - w->slots < (ptrdiff_t)SINGLE_SLOTS,
        /* Of a stride: one after the other, and the worker polls when it has requested all. */
        .more = wanted->cause == IBX_FAULT_BY_PREFETCH,
        .pages = wanted->scattered ? slot->list : NULL,
        .page_count = wanted->scattered ? wanted->pages : 0,
    };
    int rc = r->is.alias ? ibx_fault_alias_populate(e, slot, request.length) : 0;
    if (!rc)
        rc = w->reader.ops->request(w->reader.context, &request);
    if (rc) {
        not_requested(w, slot, request.length, rc);
        return rc;
    }
    w->in_flight++;
    if (!request.urgent)
        ibx_fault_flying(w, (int64_t)request.length);
    count(&e->requests, 1);
    return 0;
}

uint32_t ibx_fault_claim(struct ibx_fault *e, uint64_t page, uint64_t end, uint32_t max)
{
    uint32_t n = 0;
    while (n < max && page + n < end && pagemap_move(&e->map, page + n, PAGE_MISSING, PAGE_CLAIMED))
        n++;
    atomic_fetch_sub(&e->missing, n);
    return n;
}
