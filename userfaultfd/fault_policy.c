/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What is fetched next. Faulted pages go alone and at once. Of a walk through memory
 * (fault_trend.h) the pages follow that come next. Round any other fault its window follows: where
 * some workers are for faults only it is the background that turns there, and has small requests of
 * its own anyway, so that nothing long is before the next fault. The background takes what is left.
 * Its requests double, in number and then in size, with each that comes back while no fault came,
 * and fall back to few and small ones with the first fault.
 */
#include "userfaultfd/fault_engine.h"

#include "common/clock.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define BATCH    16u
#define BURST_NS (5 * IBX_NS_PER_MS) /* what the bandwidth limit may be ahead */

static struct slot *slot_take(struct fault_worker *w, unsigned from, unsigned to)
{
    for (unsigned i = from; i < to; i++)
        if (w->slots[i].state == SLOT_FREE)
            return &w->slots[i];
    return NULL;
}

void ibx_fault_slot_release(struct fault_worker *w, struct slot *slot)
{
    struct ibx_fault *e = w->engine;
    uint64_t back = 0, gone = 0;
    for (; slot->placed < slot->count && !slot->doubled; slot->placed++) {
        uint64_t page = slot->page + slot->placed;
        if (pagemap_move(&e->map, page, PAGE_CLAIMED, PAGE_MISSING))
            back++;
        else if (pagemap_move(&e->map, page, PAGE_VOID, PAGE_PRESENT))
            gone++;
        else /* it was discarded between the two looks */
            gone += pagemap_move(&e->map, page, PAGE_VOID, PAGE_PRESENT);
    }
    atomic_fetch_add(&e->missing, back);
    ibx_fault_pages_done(e, IBX_FAULT_BY_REMOVE, gone);
    if (back || gone)
        ibx_fault_changed(e);
    if (slot - w->slots >= (ptrdiff_t)SINGLE_SLOTS)
        w->bulk--;
    slot->state = SLOT_FREE;
    slot->generation++;
}

/* In place: make the pages there first, since writing to a full tmpfs would kill us (SIGBUS). */
static int alias_populate(struct ibx_fault *e, const struct slot *slot, size_t length)
{
    if (!madvise(slot->bytes, length, MADV_POPULATE_WRITE) || errno == EINVAL) /* before 5.14 */
        return 0;
    int code = errno;
    ibx_fault_fail(e, -code,
                   "no memory for page %llu in the shared memory: %s; make room in the tmpfs "
                   "(/dev/shm) or in the huge pages",
                   (unsigned long long)slot->page, strerror(code));
    return -code;
}

/* Asks for `pages` claimed pages; on failure they are missing again, unless another has the claim.
 */
static int slot_request(struct fault_worker *w, struct slot *slot, struct fault_range *r,
                        uint64_t page, uint32_t pages, enum ibx_fault_cause cause, bool doubled)
{
    struct ibx_fault *e = w->engine;
    uint64_t place = (page - r->is.first_page) * r->is.page_size;
    *slot = (struct slot){.state = SLOT_FLYING,
                          .cause = cause,
                          .range = r,
                          .page = page,
                          .count = pages,
                          .doubled = doubled,
                          .generation = slot->generation,
                          .memory = slot->memory};
    slot->faults = atomic_load_explicit(&e->faults, memory_order_relaxed);
    slot->bytes = r->is.alias ? (uint8_t *)r->is.alias + place : slot->memory;
    if (slot - w->slots >= (ptrdiff_t)SINGLE_SLOTS)
        w->bulk++;
    struct ibx_fault_request request = {
        .page = page,
        .offset = r->is.source_offset + place,
        .length = (size_t)pages * r->is.page_size,
        .buffer = slot->bytes,
        .cookie = (uint64_t)slot->generation << 32 | (uint64_t)(slot - w->slots),
        .range = r->index,
        .urgent = slot - w->slots < (ptrdiff_t)SINGLE_SLOTS,
    };
    int rc = r->is.alias ? alias_populate(e, slot, request.length) : 0;
    if (!rc)
        rc = w->source.ops->request(w->source.source, &request);
    if (!rc) {
        w->flying++;
        count(&e->requests, 1);
        return 0;
    }
    ibx_fault_slot_release(w, slot);
    if (rc == -EAGAIN) {
        w->source_full = w->flying > 0; /* else no arrival will end it */
        w->rescan |= !w->source_full;
        count(&e->reader_stalls, 1);
    } else {
        ibx_fault_fail(e, rc, "the page source refused %zu bytes of page %llu: %s", request.length,
                       (unsigned long long)page, strerror(-rc));
    }
    return rc;
}

/* Claims missing pages from `page` on, up to `max` and `end`; how many. */
static uint32_t claim(struct ibx_fault *e, uint64_t page, uint64_t end, uint32_t max)
{
    uint32_t n = 0;
    while (n < max && page + n < end && pagemap_move(&e->map, page + n, PAGE_MISSING, PAGE_CLAIMED))
        n++;
    atomic_fetch_sub(&e->missing, n);
    return n;
}

/* -------------------------------------------------------------------- faults */

static void window_push(struct fault_worker *w, uint64_t page)
{
    if (w->window_count == WINDOWS) { /* the oldest is the least wanted */
        w->window_head = (w->window_head + 1) % WINDOWS;
        w->window_count--;
    }
    w->windows[(w->window_head + w->window_count++) % WINDOWS] = page;
}

static void ahead_push(struct fault_worker *w, const struct trend_next *next)
{
    if (w->ahead_count == AHEADS) {
        w->ahead_head = (w->ahead_head + 1) % AHEADS;
        w->ahead_count--;
    }
    w->aheads[(w->ahead_head + w->ahead_count++) % AHEADS] = *next;
}

/* A fault that was not seen before: whether it is a step of a walk. Under the lock. */
static bool trend_heed(struct fault_worker *w, struct waiter *waiter)
{
    struct ibx_fault *e = w->engine;
    waiter->heeded = true;
    if (ibx_fault_range_of_page(e, waiter->page)->is.page_size > SMALL_PAGE)
        return false;
    struct trend_next next =
        ibx_fault_trend(&e->trends, waiter->page, e->surroundings > SMALL_PAGE ? AHEAD_SLOTS : 0);
    if (next.pages)
        ahead_push(w, &next);
    return next.step != 0;
}

enum deed { DEED_ANSWER, DEED_FETCH, DEED_FETCH_ALONE, DEED_DOUBLE };

/* Whether a page that is on its way behind long ones, with a worker that carries those and may wait
 * for a processor, should be fetched here, too. Both bring the same bytes, and the kernel takes
 * those that come first; but in place the later ones would be written over the guest's. */
static bool worth_doubling(const struct fault_worker *w, const struct waiter *waiter)
{
    const struct fault_range *r = ibx_fault_range_of_page(w->engine, waiter->page);
    if (!w->engine->fault_workers || waiter->doubled || r->is.alias || r->is.page_size > SMALL_PAGE)
        return false;
    for (unsigned i = 0; i < w->slot_count; i++)
        if (w->slots[i].state != SLOT_FREE && waiter->page - w->slots[i].page < w->slots[i].count)
            return false;
    return true;
}

/* Takes from the list what can be answered, and copies what can be fetched and is now claimed. */
static unsigned faults_pick(struct fault_worker *w, struct waiter *batch, enum deed *deed)
{
    struct ibx_fault *e = w->engine;
    unsigned picked = 0, slots = 0;
    for (unsigned i = 0; i < URGENT_SLOTS; i++)
        slots += w->slots[i].state == SLOT_FREE;
    w->rescan = false;
    pthread_mutex_lock(&e->lock);
    w->scanned = atomic_load(&e->changes);
    size_t n = atomic_load_explicit(&e->waiting, memory_order_relaxed);
    for (size_t i = 0; i < n;) {
        const bool walks = !e->waiters[i].heeded && trend_heed(w, &e->waiters[i]);
        struct waiter one = e->waiters[i];
        enum page_state state = pagemap_get(&e->map, one.page);
        if (state == PAGE_PRESENT && picked < BATCH) {
            deed[picked] = DEED_ANSWER;
            batch[picked++] = one;
            e->waiters[i] = e->waiters[--n];
            continue;
        }
        i++;
        if (state == PAGE_PRESENT) {
            w->rescan = true;
        } else if (state == PAGE_MISSING && ibx_fault_now(e) == IBX_FAULT_SERVING) {
            if (!slots || picked == BATCH || w->source_full)
                w->rescan = true;
            else if (claim(e, one.page, one.page + 1, 1)) {
                slots--;
                deed[picked] = walks ? DEED_FETCH_ALONE : DEED_FETCH;
                batch[picked++] = one;
            }
        } else if (state == PAGE_CLAIMED && ibx_fault_now(e) == IBX_FAULT_SERVING && slots &&
                   picked < BATCH && !w->source_full && worth_doubling(w, &one)) {
            e->waiters[i - 1].doubled = true;
            slots--;
            deed[picked] = DEED_DOUBLE;
            batch[picked++] = one;
        }
    }
    atomic_store_explicit(&e->waiting, n, memory_order_release);
    pthread_mutex_unlock(&e->lock);
    return picked;
}

/* The first page of the window round this one. */
static uint64_t window_of(const struct ibx_fault *e, const struct fault_range *r, uint64_t page)
{
    uint64_t pages = e->surroundings / r->is.page_size;
    return (page - r->is.first_page) / pages * pages + r->is.first_page;
}

static void fault_fetch(struct fault_worker *w, uint64_t page, enum deed deed)
{
    struct ibx_fault *e = w->engine;
    struct fault_range *r = ibx_fault_range_of_page(e, page);
    struct slot *slot = slot_take(w, 0, URGENT_SLOTS);
    if (slot_request(w, slot, r, page, 1, IBX_FAULT_BY_FAULT, deed == DEED_DOUBLE))
        w->rescan = true;
    else if (deed != DEED_FETCH || e->surroundings <= r->is.page_size)
        return;
    else if (e->fault_workers && atomic_load_explicit(&e->background, memory_order_relaxed))
        atomic_store_explicit(&e->cursor, window_of(e, r, page), memory_order_relaxed);
    else
        window_push(w, page);
}

bool ibx_fault_policy_faults(struct fault_worker *w)
{
    struct ibx_fault *e = w->engine;
    struct waiter batch[BATCH];
    enum deed deed[BATCH];
    if (!atomic_load_explicit(&e->waiting, memory_order_acquire)) {
        w->rescan = false;
        return false;
    }
    if (!w->rescan && w->scanned == atomic_load(&e->changes))
        return false;
    unsigned n = faults_pick(w, batch, deed);
    for (unsigned i = 0; i < n; i++) /* these take a wire's time: first */
        if (deed[i] != DEED_ANSWER)
            fault_fetch(w, batch[i].page, deed[i]);
    for (unsigned i = 0; i < n; i++) {
        if (deed[i] != DEED_ANSWER)
            continue;
        if (ibx_fault_answer(e, batch[i].page))
            ibx_fault_waiter_add(e, batch[i].page, batch[i].since_ns);
        else
            histogram_add(&e->latency, ibx_now_ns() - batch[i].since_ns);
    }
    return n > 0;
}

/* --------------------------------------------------------- what is not urgent */

/* Whether the bandwidth limit lets more go now. The clock runs ahead of time by what was sent. */
static bool cap_open(struct fault_worker *w, uint64_t now)
{
    struct ibx_fault *e = w->engine;
    if (!atomic_load_explicit(&e->cap, memory_order_relaxed)) {
        w->capped_until = 0;
        return true;
    }
    pthread_mutex_lock(&e->lock);
    uint64_t next = e->next_ns;
    pthread_mutex_unlock(&e->lock);
    bool was = w->capped_until != 0;
    w->capped_until = next > now + BURST_NS ? next - BURST_NS : 0;
    if (w->capped_until && !was)
        count(&e->cap_stalls, 1);
    return !w->capped_until;
}

static void cap_spend(struct ibx_fault *e, uint64_t bytes, uint64_t now)
{
    uint64_t cap = atomic_load_explicit(&e->cap, memory_order_relaxed);
    if (!cap)
        return;
    pthread_mutex_lock(&e->lock);
    uint64_t from = e->next_ns > now ? e->next_ns : now;
    e->next_ns = from + (uint64_t)((double)bytes * 1e9 / (double)cap);
    pthread_mutex_unlock(&e->lock);
}

/* Requests the next missing run of [from, to) and says where it ended; 0: there was none. */
static uint64_t run_request(struct fault_worker *w, uint64_t from, uint64_t to, uint32_t bytes,
                            enum ibx_fault_cause cause)
{
    struct ibx_fault *e = w->engine;
    struct slot *slot = slot_take(w, SINGLE_SLOTS, w->slot_count);
    uint64_t now = ibx_now_ns();
    if (!slot || w->source_full || !cap_open(w, now))
        return 0;
    while (true) {
        uint64_t page = pagemap_find_missing(&e->map, from, to);
        if (page >= to)
            return 0;
        struct fault_range *r = ibx_fault_range_of_page(e, page);
        uint64_t end = r->is.first_page + r->pages;
        uint32_t max = bytes / r->is.page_size;
        uint32_t n = claim(e, page, end < to ? end : to, max ? max : 1);
        if (n) {
            if (slot_request(w, slot, r, page, n, cause, false))
                return 0;
            cap_spend(e, (uint64_t)n * r->is.page_size, now);
            return page + n;
        }
        from = page + 1; /* another worker was faster */
    }
}

/* One page of a walk. False: not now. */
static bool ahead_fetch(struct fault_worker *w, uint64_t page)
{
    struct ibx_fault *e = w->engine;
    struct fault_range *r = ibx_fault_range_of_page(e, page);
    struct slot *slot = slot_take(w, URGENT_SLOTS, SINGLE_SLOTS);
    uint64_t now = ibx_now_ns();
    if (!r || r->is.page_size > SMALL_PAGE)
        return true;
    if (!slot || w->source_full || !cap_open(w, now))
        return false;
    if (claim(e, page, page + 1, 1)) {
        if (slot_request(w, slot, r, page, 1, IBX_FAULT_BY_AROUND, false))
            return false;
        cap_spend(e, SMALL_PAGE, now);
    }
    return true;
}

bool ibx_fault_policy_ahead(struct fault_worker *w)
{
    const unsigned before = w->flying;
    while (w->ahead_count) {
        struct trend_next *next = &w->aheads[w->ahead_head];
        while (next->pages && ahead_fetch(w, next->from + next->step)) {
            next->from += next->step;
            next->pages--;
        }
        if (next->pages)
            break;
        w->ahead_head = (w->ahead_head + 1) % AHEADS;
        w->ahead_count--;
    }
    return w->flying != before;
}

bool ibx_fault_policy_surroundings(struct fault_worker *w)
{
    struct ibx_fault *e = w->engine;
    bool busy = false;
    while (w->window_count) {
        uint64_t page = w->windows[(w->window_head + w->window_count - 1) % WINDOWS];
        const struct fault_range *r = ibx_fault_range_of_page(e, page);
        uint64_t from = window_of(e, r, page), end = r->is.first_page + r->pages;
        uint64_t to = from + e->surroundings / r->is.page_size;
        to = to < end ? to : end;
        if (run_request(w, from, to, e->chunk_max, IBX_FAULT_BY_AROUND)) {
            busy = true;
            continue;
        }
        if (pagemap_find_missing(&e->map, from, to) < to)
            break; /* no slot, the source is full, or the limit is reached: later */
        w->window_count--;
        if (to < e->map.pages) /* the background goes on where it is hot */
            atomic_store_explicit(&e->cursor, to, memory_order_relaxed);
    }
    return busy;
}

static void window_adapt(struct fault_worker *w)
{
    struct ibx_fault *e = w->engine;
    uint64_t faults = atomic_load_explicit(&e->faults, memory_order_relaxed);
    if (faults != w->seen_faults) {
        w->seen_faults = faults;
        w->chunk = e->chunk_min;
        w->depth = e->depth < DEPTH_LOW ? e->depth : DEPTH_LOW;
    }
}

bool ibx_fault_policy_background(struct fault_worker *w)
{
    struct ibx_fault *e = w->engine;
    window_adapt(w);
    /* One at a time: between two there is a look at the faults. */
    if ((e->fault_workers && serves_faults(w)) || w->bulk >= w->depth ||
        !atomic_load_explicit(&e->missing, memory_order_relaxed))
        return false;
    if (!atomic_load_explicit(&e->background, memory_order_relaxed))
        return pagemap_find_missing(&e->map, e->early, e->early_end) < e->early_end &&
               run_request(w, e->early, e->early_end, w->chunk, IBX_FAULT_BY_BACKGROUND);
    uint64_t cursor = atomic_load_explicit(&e->cursor, memory_order_relaxed);
    uint64_t end = run_request(w, cursor, e->map.pages, w->chunk, IBX_FAULT_BY_BACKGROUND);
    if (!end && cursor)
        end = run_request(w, 0, cursor, w->chunk, IBX_FAULT_BY_BACKGROUND);
    if (end)
        atomic_store_explicit(&e->cursor, end % e->map.pages, memory_order_relaxed);
    return end != 0;
}
