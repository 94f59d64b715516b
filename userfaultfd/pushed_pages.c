/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Pages that were pushed: that come another way than by the readers. Such a page is claimed as a
 * worker claims it, so that no worker fetches it meanwhile. A fault on it then waits for this
 * thread, so config.check is called before the claim: wrong bytes delay no fault.
 */
#include "userfaultfd/engine.h"

#include <string.h>

bool ibx_fault_missing(const struct ibx_fault *engine, uint64_t page)
{
    return page < engine->map.pages && pagemap_get(&engine->map, page) == PAGE_MISSING;
}

/* The page could not be placed, because the engine stops or has failed: it is missing again. */
static void put_back(struct ibx_fault *e, const struct fault_range *r, uint64_t page)
{
    if (pagemap_move(&e->map, page, PAGE_CLAIMED, PAGE_MISSING)) {
        atomic_fetch_add(&e->missing, 1);
    } else if (pagemap_get(&e->map, page) == PAGE_DISCARDED) {
        ibx_fault_empty(r, page, 1);
        pagemap_move(&e->map, page, PAGE_DISCARDED, PAGE_PRESENT);
        ibx_fault_pages_done(e, IBX_FAULT_BY_REMOVE, 1);
    }
    ibx_fault_changed(e);
}

/* Minor mode: copies the bytes to where a reader would fetch them. */
static int fill_alias(struct ibx_fault *e, struct slot *slot, const void *bytes)
{
    const struct fault_range *r = slot->range;
    slot->bytes = (uint8_t *)r->is.alias + (slot->page - r->is.first_page) * SMALL_PAGE;
    const int rc = ibx_fault_alias_populate(e, slot, SMALL_PAGE);
    if (!rc)
        memcpy(slot->bytes, bytes, SMALL_PAGE);
    return rc;
}

int ibx_fault_push(struct ibx_fault *e, unsigned worker, uint64_t page, const void *bytes,
                   struct ibx_error *err)
{
    struct fault_range *r = ibx_fault_range_of_page(e, page);
    const enum ibx_fault_state state = ibx_fault_state(e);
    if (!r || r->is.page_size != SMALL_PAGE || !ibx_fault_missing(e, page) ||
        (state != IBX_FAULT_SERVING && state != IBX_FAULT_HELD))
        return 0;
    const int wrong = e->check ? e->check(e->check_context, worker, page, 1, bytes, err) : 0;
    if (wrong)
        return wrong;
    if (!ibx_fault_claim(e, page, page + 1, 1))
        return 0;
    struct slot slot = {.cause = IBX_FAULT_BY_PUSH,
                        .range = r,
                        .page = page,
                        .count = 1,
                        .good = 1,
                        .worker = worker,
                        .checked = true,
                        .bytes = (uint8_t *)(uintptr_t)bytes};
    int rc = r->is.alias ? fill_alias(e, &slot, bytes) : 0;
    if (!rc)
        rc = ibx_fault_place(e, &slot, 1);
    if (rc)
        put_back(e, r, page);
    ibx_fault_check_complete(e);
    return !rc;
}
