/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What is fetched next. A faulted page is fetched alone and at once. If it is part of a stride
 * (stride.h), the next pages of the stride follow, else its fault-around window. With fault workers
 * the background continues at that window instead; its requests are small while faults occur, so
 * that the next fault does not wait behind a long one.
 *
 * What is known to be needed (the plan) comes next. The background fetches all other pages. Its
 * requests double, first in number, then in size, with each that arrives without a fault in
 * between; after a fault they are few and small again.
 *
 * What is small depends on the round trip: over a long one as much more is on its way, without
 * which the wire would be empty most of the time, and a window is larger, since each fault that it
 * saves takes that long.
 */
#include "userfaultfd/engine.h"

#include "common/clock.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define BATCH    16u
#define BURST_NS (5 * IBX_NS_PER_MS) /* how far the bandwidth clock may be ahead */

/* Beyond which windows, and the background's small requests, grow with the round trip. With two to
 * four workers 1 to 2 MiB are on their way up to the second, which fills 10 Gbit/s. */
#define AROUND_NS  (IBX_NS_PER_MS / 4)
#define CHUNK_NS   (IBX_NS_PER_MS * 3 / 4)
#define AROUND_MAX (512u << 10) /* bytes */

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

static struct slot *slot_take(struct fault_worker *w, unsigned from, unsigned to)
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
        uint64_t page = slot->page + slot->placed;
        if (pagemap_move(&e->map, page, PAGE_CLAIMED, PAGE_MISSING))
            back++;
        else
            gone += pagemap_move(&e->map, page, PAGE_DISCARDED, PAGE_PRESENT);
    }
    atomic_fetch_add(&e->missing, back);
    ibx_fault_pages_done(e, IBX_FAULT_BY_REMOVE, gone);
    if (back || gone)
        ibx_fault_changed(e);
    if (slot - w->slots >= (ptrdiff_t)SINGLE_SLOTS)
        w->bulk--;
    ibx_state_move(&slot->state, SLOT_FREE);
    slot->generation++;
}

/* Allocates pages that are filled in place: writing to a full tmpfs would raise SIGBUS. */
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

/* Requests `pages` claimed pages. After a failure they are missing again, unless another worker has
 * the claim. */
static int slot_request(struct fault_worker *w, struct slot *slot, struct fault_range *r,
                        uint64_t page, uint32_t pages, enum ibx_fault_cause cause, bool duplicate)
{
    struct ibx_fault *e = w->engine;
    uint64_t place = (page - r->is.first_page) * r->is.page_size;
    *slot = (struct slot){.state = slot->state,
                          .worker = (unsigned)(w - w->engine->workers),
                          .cause = cause,
                          .range = r,
                          .page = page,
                          .count = pages,
                          .duplicate = duplicate,
                          .generation = slot->generation,
                          .memory = slot->memory};
    ibx_state_move(&slot->state, SLOT_IN_FLIGHT);
    slot->faults = atomic_load_explicit(&e->faults, memory_order_relaxed);
    slot->asked_ns = ibx_now_ns();
    slot->bytes = r->is.alias ? (uint8_t *)r->is.alias + place : slot->memory;
    if (slot - w->slots >= (ptrdiff_t)SINGLE_SLOTS)
        w->bulk++;
    struct ibx_fault_request request = {
        .page = page,
        .offset = r->is.reader_offset + place,
        .length = (size_t)pages * r->is.page_size,
        .buffer = slot->bytes,
        .cookie = (uint64_t)slot->generation << 32 | (uint64_t)(slot - w->slots),
        .range = r->index,
        .urgent = slot - w->slots < (ptrdiff_t)SINGLE_SLOTS,
    };
    int rc = r->is.alias ? alias_populate(e, slot, request.length) : 0;
    if (!rc)
        rc = w->reader.ops->request(w->reader.context, &request);
    if (!rc) {
        w->in_flight++;
        count(&e->requests, 1);
        return 0;
    }
    ibx_fault_slot_release(w, slot);
    if (rc == -EAGAIN) {
        w->reader_full = w->in_flight > 0; /* otherwise no arrival would clear it */
        w->rescan |= !w->reader_full;
        count(&e->reader_stalls, 1);
    } else {
        ibx_fault_fail(e, rc, "the page reader refused %zu bytes of page %llu: %s", request.length,
                       (unsigned long long)page, strerror(-rc));
    }
    return rc;
}

/* Claims missing pages from `page` on, at most `max` and up to `end`; returns how many. */
static uint32_t claim(struct ibx_fault *e, uint64_t page, uint64_t end, uint32_t max)
{
    uint32_t n = 0;
    while (n < max && page + n < end && pagemap_move(&e->map, page + n, PAGE_MISSING, PAGE_CLAIMED))
        n++;
    atomic_fetch_sub(&e->missing, n);
    return n;
}

/* -------------------------------------------------------------- the round trip */

/* Follows the least, which has waited for nothing, and forgets it when all take longer. */
void ibx_fault_note_round_trip(struct ibx_fault *e, uint64_t ns)
{
    const uint64_t before = atomic_load_explicit(&e->round_trip_ns, memory_order_relaxed);
    const uint64_t most = before + before / 64;
    atomic_store_explicit(&e->round_trip_ns, !before || ns < most ? ns : most,
                          memory_order_relaxed);
}

/* The bytes of a window, a power of two. */
static uint32_t around_of(const struct ibx_fault *e)
{
    const uint64_t ns = atomic_load_explicit(&e->round_trip_ns, memory_order_relaxed);
    uint32_t bytes = e->fault_around;
    for (uint64_t step = 2 * AROUND_NS; bytes > SMALL_PAGE && step <= ns && bytes < AROUND_MAX;
         step *= 2)
        bytes *= 2;
    return bytes;
}

/* The bytes of a request of the background while faults occur. */
static uint32_t low_chunk(const struct ibx_fault *e)
{
    const uint64_t ns = atomic_load_explicit(&e->round_trip_ns, memory_order_relaxed);
    const uint64_t bytes = e->chunk_min * (ns / (CHUNK_NS / 4)) / 4;
    return bytes <= e->chunk_min  ? e->chunk_min
           : bytes < e->chunk_max ? (uint32_t)(bytes / SMALL_PAGE * SMALL_PAGE)
                                  : e->chunk_max;
}

/* And how many of these are in flight: more than usual if even the largest do not do. */
static unsigned low_depth(const struct ibx_fault *e)
{
    const uint64_t ns = atomic_load_explicit(&e->round_trip_ns, memory_order_relaxed);
    const uint64_t enough = DEPTH_LOW * (e->chunk_min * (ns / CHUNK_NS) / e->chunk_max);
    const uint64_t depth = enough > DEPTH_LOW ? enough : DEPTH_LOW;
    return depth < e->depth ? (unsigned)depth : e->depth;
}

/* -------------------------------------------------------------------- faults */

static void window_push(struct fault_worker *w, uint64_t page)
{
    if (w->window_count == WINDOWS) { /* drop the oldest */
        w->window_head = (w->window_head + 1) % WINDOWS;
        w->window_count--;
    }
    w->windows[(w->window_head + w->window_count++) % WINDOWS] = page;
}

static void stride_push(struct fault_worker *w, const struct stride_prefetch *next)
{
    if (w->stride_count == STRIDE_QUEUE) {
        w->stride_head = (w->stride_head + 1) % STRIDE_QUEUE;
        w->stride_count--;
    }
    w->strides[(w->stride_head + w->stride_count++) % STRIDE_QUEUE] = *next;
}

/* Whether a new fault is part of a stride, of which it queues the prefetch. Under the lock. */
static bool stride_detect(struct fault_worker *w, struct waiter *waiter)
{
    struct ibx_fault *e = w->engine;
    waiter->seen = true;
    if (ibx_fault_range_of_page(e, waiter->page)->is.page_size > SMALL_PAGE)
        return false;
    struct stride_prefetch next = ibx_fault_stride(&e->strides, waiter->page,
                                                   e->fault_around > SMALL_PAGE ? STRIDE_SLOTS : 0);
    if (next.pages)
        stride_push(w, &next);
    return next.distance != 0;
}

enum action { ACTION_ANSWER, ACTION_FETCH, ACTION_FETCH_ALONE, ACTION_DUPLICATE };

/* Whether to fetch a page that another worker has claimed, where it may wait behind long requests
 * or for a processor. Both bring the same bytes, and the kernel takes the first. Not in minor mode,
 * where the second would overwrite what the owner of the memory has written. */
static bool worth_duplicating(const struct fault_worker *w, const struct waiter *waiter)
{
    const struct fault_range *r = ibx_fault_range_of_page(w->engine, waiter->page);
    if (!w->engine->fault_workers || w->engine->exclusive || waiter->duplicate || r->is.alias ||
        r->is.protect)
        return false;
    for (unsigned i = 0; i < w->slot_count; i++)
        if (w->slots[i].state.now != SLOT_FREE &&
            waiter->page - w->slots[i].page < w->slots[i].count)
            return false;
    return true;
}

/* Moves faults that can be answered from the list to `batch`, and copies those whose page it claims
 * to fetch. */
static unsigned faults_pick(struct fault_worker *w, struct waiter *batch, enum action *action)
{
    struct ibx_fault *e = w->engine;
    unsigned picked = 0, slots = 0;
    for (unsigned i = 0; i < URGENT_SLOTS; i++)
        slots += w->slots[i].state.now == SLOT_FREE;
    w->rescan = false;
    pthread_mutex_lock(&e->lock);
    w->scanned = atomic_load(&e->changes);
    size_t n = atomic_load_explicit(&e->waiting, memory_order_relaxed);
    for (size_t i = 0; i < n;) {
        const bool strides = !e->waiters[i].seen && stride_detect(w, &e->waiters[i]);
        struct waiter one = e->waiters[i];
        enum page_state state = pagemap_get(&e->map, one.page);
        if (state == PAGE_PRESENT && picked < BATCH) {
            action[picked] = ACTION_ANSWER;
            batch[picked++] = one;
            e->waiters[i] = e->waiters[--n];
            continue;
        }
        i++;
        if (state == PAGE_PRESENT) {
            w->rescan = true;
        } else if (state == PAGE_MISSING && ibx_fault_state(e) == IBX_FAULT_SERVING) {
            if (!slots || picked == BATCH || w->reader_full)
                w->rescan = true;
            else if (claim(e, one.page, one.page + 1, 1)) {
                slots--;
                action[picked] = strides ? ACTION_FETCH_ALONE : ACTION_FETCH;
                batch[picked++] = one;
            }
        } else if (state == PAGE_CLAIMED && ibx_fault_state(e) == IBX_FAULT_SERVING && slots &&
                   picked < BATCH && !w->reader_full && worth_duplicating(w, &one)) {
            e->waiters[i - 1].duplicate = true;
            slots--;
            action[picked] = ACTION_DUPLICATE;
            batch[picked++] = one;
        }
    }
    atomic_store_explicit(&e->waiting, n, memory_order_release);
    pthread_mutex_unlock(&e->lock);
    return picked;
}

/* The first page of the fault-around window of so many bytes with this one. */
static uint64_t window_of(const struct fault_range *r, uint64_t page, uint32_t bytes)
{
    uint64_t pages = bytes / r->is.page_size;
    return (page - r->is.first_page) / pages * pages + r->is.first_page;
}

/* Where the background goes on after a fault: at its window; behind a huge page, which is a window
 * of its own. False: where it is. */
static bool background_turns(const struct ibx_fault *e, const struct fault_range *r, uint64_t page,
                             uint64_t *next)
{
    if (r->is.page_size > SMALL_PAGE)
        *next = (page + 1) % e->map.pages;
    else if (e->fault_around > SMALL_PAGE)
        *next = window_of(r, page, around_of(e));
    else
        return false;
    return true;
}

static void fault_fetch(struct fault_worker *w, uint64_t page, enum action action)
{
    struct ibx_fault *e = w->engine;
    struct fault_range *r = ibx_fault_range_of_page(e, page);
    struct slot *slot = slot_take(w, 0, URGENT_SLOTS);
    const bool ahead =
        e->fault_workers && atomic_load_explicit(&e->background, memory_order_relaxed);
    uint64_t next;
    if (slot_request(w, slot, r, page, 1, IBX_FAULT_BY_FAULT, action == ACTION_DUPLICATE))
        w->rescan = true;
    else if (action == ACTION_FETCH && ahead && background_turns(e, r, page, &next))
        atomic_store_explicit(&e->cursor, next, memory_order_relaxed);
    /* What the background has asked for before is on its way for long where the round trip is. */
    if (action == ACTION_FETCH && e->fault_around > r->is.page_size &&
        (!ahead || around_of(e) > e->fault_around))
        window_push(w, page);
}

bool ibx_fault_fetch_faulted(struct fault_worker *w)
{
    struct ibx_fault *e = w->engine;
    struct waiter batch[BATCH];
    enum action action[BATCH];
    if (!atomic_load_explicit(&e->waiting, memory_order_acquire)) {
        w->rescan = false;
        return false;
    }
    if (!w->rescan && w->scanned == atomic_load(&e->changes))
        return false;
    unsigned n = faults_pick(w, batch, action);
    for (unsigned i = 0; i < n; i++) /* requests first: they take a round trip */
        if (action[i] != ACTION_ANSWER)
            fault_fetch(w, batch[i].page, action[i]);
    for (unsigned i = 0; i < n; i++) {
        if (action[i] != ACTION_ANSWER)
            continue;
        if (ibx_fault_answer(e, batch[i].page))
            ibx_fault_waiter_add(e, batch[i].page, batch[i].since_ns);
        else
            histogram_add(&e->latency, ibx_now_ns() - batch[i].since_ns);
    }
    return n > 0;
}

/* ----------------------------------------------------- prefetch and background */

/* Whether the bandwidth limit allows a request now. Each request moves its clock ahead. */
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

/* Requests the first missing run of [from, to) and returns its end; 0: none was requested. */
static uint64_t run_request(struct fault_worker *w, uint64_t from, uint64_t to, uint32_t bytes,
                            enum ibx_fault_cause cause)
{
    struct ibx_fault *e = w->engine;
    struct slot *slot = slot_take(w, SINGLE_SLOTS, w->slot_count);
    uint64_t now = ibx_now_ns();
    if (!slot || w->reader_full || !cap_open(w, now))
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
        from = page + 1; /* another worker has claimed it */
    }
}

/* Requests one page of a stride unless it is present or claimed. False: try again later. */
static bool stride_fetch(struct fault_worker *w, uint64_t page)
{
    struct ibx_fault *e = w->engine;
    struct fault_range *r = ibx_fault_range_of_page(e, page);
    struct slot *slot = slot_take(w, URGENT_SLOTS, SINGLE_SLOTS);
    uint64_t now = ibx_now_ns();
    if (!r || r->is.page_size > SMALL_PAGE)
        return true;
    if (!slot || w->reader_full || !cap_open(w, now))
        return false;
    if (claim(e, page, page + 1, 1)) {
        if (slot_request(w, slot, r, page, 1, IBX_FAULT_BY_PREFETCH, false))
            return false;
        cap_spend(e, SMALL_PAGE, now);
    }
    return true;
}

bool ibx_fault_fetch_strides(struct fault_worker *w)
{
    const unsigned before = w->in_flight;
    while (w->stride_count) {
        struct stride_prefetch *next = &w->strides[w->stride_head];
        while (next->pages && stride_fetch(w, next->from + next->distance)) {
            next->from += next->distance;
            next->pages--;
        }
        if (next->pages)
            break;
        w->stride_head = (w->stride_head + 1) % STRIDE_QUEUE;
        w->stride_count--;
    }
    return w->in_flight != before;
}

bool ibx_fault_fetch_around(struct fault_worker *w)
{
    struct ibx_fault *e = w->engine;
    bool busy = false;
    while (w->window_count) {
        uint64_t page = w->windows[(w->window_head + w->window_count - 1) % WINDOWS];
        const struct fault_range *r = ibx_fault_range_of_page(e, page);
        const uint32_t around = around_of(e);
        uint64_t from = window_of(r, page, around), end = r->is.first_page + r->pages;
        uint64_t to = from + around / r->is.page_size;
        to = to < end ? to : end;
        if (run_request(w, from, to, e->chunk_max, IBX_FAULT_BY_PREFETCH)) {
            busy = true;
            continue;
        }
        if (pagemap_find_missing(&e->map, from, to) < to)
            break; /* no slot, the reader is full, or the limit is reached */
        w->window_count--;
        if (to < e->map.pages) /* the background continues after it */
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
        w->chunk = low_chunk(e);
        w->depth = low_depth(e);
    }
}

/* The next part of the plan. A run counts as done when it has no missing page; one that fails later
 * is left to faults and to the background. */
static bool plan_fetch(struct fault_worker *w)
{
    struct ibx_fault *e = w->engine;
    size_t at = atomic_load_explicit(&e->plan_at, memory_order_relaxed);
    while (at < e->plan_count) {
        const struct ibx_fault_run *run = &e->plan[at];
        const uint64_t end = run->page + run->pages;
        if (run_request(w, run->page, end, e->chunk_max, IBX_FAULT_BY_PREFETCH))
            return true;
        if (pagemap_find_missing(&e->map, run->page, end) < end)
            return false; /* no slot, the reader is full, or the limit is reached */
        if (atomic_compare_exchange_weak(&e->plan_at, &at, at + 1))
            at++;
    }
    return false;
}

bool ibx_fault_fetch_background(struct fault_worker *w)
{
    struct ibx_fault *e = w->engine;
    window_adapt(w);
    if (!(e->fault_workers && serves_faults(w)) && plan_fetch(w))
        return true;
    /* One request per call, so that the worker looks for faults between two. */
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
