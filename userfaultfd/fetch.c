/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What is fetched next. A faulted page is fetched alone and at once. If it is part of a stride
 * (stride.h), the next pages of the stride follow, else its fault-around window. With fault workers
 * the background continues at that window instead; its requests are small while faults occur, so
 * that the next fault does not wait behind a long one.
 *
 * What is known to be needed (the plan) comes next, then huge pages of a stride (huge_strides.c),
 * then over a wire the pages of a loop (stride.h), one by one in requests of many. The background
 * fetches all other pages. Its requests double, first in number, then in size, with each that
 * arrives without a fault in between; after a fault they are few and small again.
 *
 * Requests and windows grow with the round trip. Over a long one, more has to be in flight, or the
 * wire would be idle most of the time, and a larger window saves faults that take a round trip
 * each.
 */
#include "userfaultfd/engine.h"

#include "common/clock.h"

#include <string.h>

#define BATCH    16u
#define BURST_NS (5 * IBX_NS_PER_MS) /* how far the bandwidth clock may be ahead */

/* Round trips beyond which fault-around windows, and the background's small requests, grow. Up to
 * CHUNK_NS two to four workers have 1 to 2 MiB in flight, which fills 10 Gbit/s. */
#define AROUND_NS  (IBX_NS_PER_MS / 4)
#define CHUNK_NS   (IBX_NS_PER_MS * 3 / 4)
#define AROUND_MAX (512u << 10) /* bytes */

#define FLIGHT_PARTS 4u          /* requests by which what may be in flight is divided */
#define LEAST_PART   (64u << 10) /* bytes of such a request, at least */

/* Loops are followed from this round trip on: over a shorter one, requests of scattered pages cost
 * more than they save. After a fault outside the loop, ASIDE background requests go there first. */
#define LOOP_NS (IBX_NS_PER_MS / 10)
#define ASIDE   4u
#define STEPS   1024u /* pages of a loop that one search for missing ones looks at */

/* -------------------------------------------------------------- the round trip */

/* The bytes of a window, a power of two. */
static uint32_t around_of(const struct ibx_fault *e)
{
    const uint64_t ns = round_trip_of(e);
    uint32_t bytes = e->fault_around;
    for (uint64_t step = 2 * AROUND_NS; bytes > SMALL_PAGE && step <= ns && bytes < AROUND_MAX;
         step *= 2)
        bytes *= 2;
    return bytes;
}

/* The bytes of a request of the background while faults occur. */
static uint32_t low_chunk(const struct ibx_fault *e)
{
    const uint64_t ns = round_trip_of(e);
    const uint64_t bytes = e->chunk_min * (ns / (CHUNK_NS / 4)) / 4;
    return bytes <= e->chunk_min  ? e->chunk_min
           : bytes < e->chunk_max ? (uint32_t)(bytes / SMALL_PAGE * SMALL_PAGE)
                                  : e->chunk_max;
}

/* How many of these are in flight: more than DEPTH_LOW where requests of chunk_max do not fill the
 * wire. */
static unsigned low_depth(const struct ibx_fault *e)
{
    const uint64_t ns = round_trip_of(e);
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

/* Whether a fault is part of a stride. When it looks at a fault for the first time, it queues the
 * prefetch. The caller holds the lock. */
static bool stride_detect(struct fault_worker *w, struct waiter *waiter)
{
    struct ibx_fault *e = w->engine;
    if (waiter->seen)
        return waiter->strides;
    waiter->seen = true;
    if (ibx_fault_range_of_page(e, waiter->page)->is.page_size > SMALL_PAGE)
        return waiter->strides = ibx_fault_ahead_detect(e, waiter->number);
    struct stride_prefetch next = ibx_fault_stride(&e->strides, waiter->page,
                                                   e->fault_around > SMALL_PAGE ? STRIDE_SLOTS : 0);
    if (next.pages)
        stride_push(w, &next);
    waiter->strides = next.distance != 0;
    return waiter->strides;
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
            slot_index(&w->slots[i], waiter->page) != UINT32_MAX)
            return false;
    return true;
}

/* Whether this worker is about to fetch this page, for another fault on it. */
static bool is_picked(const struct waiter *batch, unsigned picked, uint64_t page)
{
    for (unsigned i = 0; i < picked; i++)
        if (batch[i].page == page)
            return true;
    return false;
}

/* Moves faults that can be answered from the list to `batch`. Faults whose page it claims, to fetch
 * it, are copied to `batch` and stay in the list. */
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
        const bool strides = stride_detect(w, &e->waiters[i]);
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
            else if (ibx_fault_claim(e, one.page, one.page + 1, 1)) {
                slots--;
                action[picked] = strides ? ACTION_FETCH_ALONE : ACTION_FETCH;
                batch[picked++] = one;
            }
        } else if (state == PAGE_CLAIMED && ibx_fault_state(e) == IBX_FAULT_SERVING && slots &&
                   picked < BATCH && !w->reader_full && worth_duplicating(w, &one) &&
                   !is_picked(batch, picked, one.page)) {
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

/* The first page of the fault-around window of `bytes` that contains `page`. */
static uint64_t window_of(const struct fault_range *r, uint64_t page, uint32_t bytes)
{
    uint64_t pages = bytes / r->is.page_size;
    return (page - r->is.first_page) / pages * pages + r->is.first_page;
}

/* Where the background continues after a fault: at the window around it, or after a huge page,
 * which is its own window. False: there are no windows, and the background does not move. */
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
    struct slot *slot = ibx_fault_slot_take(w, 0, URGENT_SLOTS);
    const bool ahead =
        e->fault_workers && atomic_load_explicit(&e->background, memory_order_relaxed);
    uint64_t next;
    const struct wanted wanted = {.page = page,
                                  .pages = 1,
                                  .cause = IBX_FAULT_BY_FAULT,
                                  .duplicate = action == ACTION_DUPLICATE};
    if (ibx_fault_slot_request(w, slot, r, &wanted)) {
        w->rescan = true; /* no window is pushed, so that the page is requested alone again */
        return;
    }
    count(&e->twice, wanted.duplicate);
    if (action == ACTION_FETCH && ahead && background_turns(e, r, page, &next)) {
        atomic_store_explicit(&e->cursor, next, memory_order_relaxed);
        atomic_store_explicit(&e->aside, ASIDE, memory_order_relaxed);
    }
    /* Over a long round trip, fault workers fetch the window themselves: the background's next
     * request would wait behind those that are in flight. */
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
            ibx_fault_waiter_add(e, batch[i].page, batch[i].number, batch[i].since_ns);
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

/* Whether the wire takes a request now, and how long it may be. */
static bool flight_open(const struct fault_worker *w, uint64_t now, uint32_t *bytes)
{
    const uint64_t room = ibx_fault_flight_room(w, now), part = room / FLIGHT_PARTS;
    const uint32_t least = *bytes < LEAST_PART ? *bytes : LEAST_PART;
    if (*bytes > part)
        *bytes = part > least ? (uint32_t)part : least;
    const bool open = !w->flying || w->flying + *bytes <= room;
    if (!open)
        atomic_store_explicit(&w->engine->flight.held, true, memory_order_relaxed);
    return open;
}

/* Requests the first run of missing pages in [from, to) and returns its end; 0: no request. */
static uint64_t run_request(struct fault_worker *w, uint64_t from, uint64_t to, uint32_t bytes,
                            enum ibx_fault_cause cause)
{
    struct ibx_fault *e = w->engine;
    struct slot *slot = ibx_fault_slot_take(w, SINGLE_SLOTS, w->slot_count);
    uint64_t now = ibx_now_ns();
    if (!slot || w->reader_full || !cap_open(w, now) || !flight_open(w, now, &bytes))
        return 0;
    while (true) {
        uint64_t page = pagemap_find_missing(&e->map, from, to);
        if (page >= to)
            return 0;
        struct fault_range *r = ibx_fault_range_of_page(e, page);
        uint64_t end = r->is.first_page + r->pages;
        uint32_t max = bytes / r->is.page_size;
        uint32_t n = ibx_fault_claim(e, page, end < to ? end : to, max ? max : 1);
        if (n) {
            const struct wanted wanted = {.page = page, .pages = n, .cause = cause};
            if (ibx_fault_slot_request(w, slot, r, &wanted))
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
    struct slot *slot = ibx_fault_slot_take(w, URGENT_SLOTS, SINGLE_SLOTS);
    uint64_t now = ibx_now_ns();
    if (!r || r->is.page_size > SMALL_PAGE)
        return true;
    if (!slot || w->reader_full || !cap_open(w, now))
        return false;
    if (ibx_fault_claim(e, page, page + 1, 1)) {
        const struct wanted wanted = {.page = page, .pages = 1, .cause = IBX_FAULT_BY_PREFETCH};
        if (ibx_fault_slot_request(w, slot, r, &wanted))
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

/* Requests the next part of the plan. A run is done when none of its pages is missing. Pages whose
 * request fails after that are left to faults and the background, or to resume, which starts the
 * plan again. */
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

/* Claims the next missing pages of the loop, at most `max` of one range. */
static uint32_t loop_claim(struct ibx_fault *e, uint64_t *list, uint32_t max,
                           struct fault_range **in)
{
    struct stride_loop *loop = &e->strides.loop;
    uint32_t n = 0;
    *in = NULL;
    pthread_mutex_lock(&e->lock);
    struct fault_range *r = loop->left ? ibx_fault_range_of_page(e, loop->where) : NULL;
    if (r && !r->is.alias && r->is.page_size == SMALL_PAGE)
        *in = r;
    uint64_t page;
    for (unsigned i = 0; *in && i < STEPS && n < max; i++) {
        if (!ibx_fault_loop_next(loop, r->is.first_page, r->is.first_page + r->pages, &page))
            break;
        if (ibx_fault_claim(e, page, page + 1, 1))
            list[n++] = page;
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}

static bool loop_fetch(struct fault_worker *w)
{
    struct ibx_fault *e = w->engine;
    struct slot *slot = ibx_fault_slot_take(w, SINGLE_SLOTS, w->slot_count);
    uint32_t bytes = SCATTERED_MAX * SMALL_PAGE;
    const uint64_t now = ibx_now_ns();
    struct fault_range *r;
    if (!e->wire || !w->reader.ops->scatters || round_trip_of(e) < LOOP_NS ||
        atomic_load_explicit(&e->aside, memory_order_relaxed) || !slot || w->bulk >= e->depth ||
        w->reader_full || !cap_open(w, now) || !flight_open(w, now, &bytes))
        return false;
    bytes = bytes < e->slot_bytes ? bytes : e->slot_bytes;
    const uint32_t n = loop_claim(e, slot->list, bytes / SMALL_PAGE, &r);
    const struct wanted wanted = {
        .page = slot->list[0], .pages = n, .cause = IBX_FAULT_BY_PREFETCH, .scattered = true};
    if (!n || ibx_fault_slot_request(w, slot, r, &wanted))
        return false;
    cap_spend(e, (uint64_t)n * SMALL_PAGE, now);
    return true;
}

static bool ahead_fetch(struct fault_worker *w)
{
    uint64_t page;
    return w->bulk < w->depth && ibx_fault_ahead_next(w->engine, &page) &&
           run_request(w, page, page + 1, w->engine->chunk_max, IBX_FAULT_BY_PREFETCH);
}

/* Requests the pages of config.early while there is no background: all at once, in many pieces over
 * all connections, since TCP lets each have little in flight at first. */
static bool early_fetch(struct fault_worker *w)
{
    struct ibx_fault *e = w->engine;
    const uint64_t at = pagemap_find_missing(&e->map, e->early, e->early_end);
    const unsigned most = e->depth > 1 ? e->depth / 2 : 1;
    if (at == e->early_end || w->bulk >= most)
        return false;
    const uint64_t size = ibx_fault_range_of_page(e, at)->is.page_size;
    const uint64_t pieces = (e->worker_count - e->fault_workers) * most;
    const uint64_t bytes = ((e->early_end - e->early) * size + pieces - 1) / pieces;
    return run_request(w, at, e->early_end, bytes < e->chunk_max ? (uint32_t)bytes : e->chunk_max,
                       IBX_FAULT_BY_BACKGROUND);
}

bool ibx_fault_fetch_background(struct fault_worker *w)
{
    struct ibx_fault *e = w->engine;
    window_adapt(w);
    if (!(e->fault_workers && serves_faults(w)) && plan_fetch(w))
        return true;
    /* One request per call, so that the worker looks for faults between two. */
    if ((e->fault_workers && serves_faults(w)) ||
        !atomic_load_explicit(&e->missing, memory_order_relaxed))
        return false;
    if (!atomic_load_explicit(&e->background, memory_order_relaxed))
        return early_fetch(w);
    if (ahead_fetch(w) || loop_fetch(w))
        return true;
    if (w->bulk >= w->depth)
        return false;
    uint64_t cursor = atomic_load_explicit(&e->cursor, memory_order_relaxed);
    uint64_t end = run_request(w, cursor, e->map.pages, w->chunk, IBX_FAULT_BY_BACKGROUND);
    if (!end && cursor)
        end = run_request(w, 0, cursor, w->chunk, IBX_FAULT_BY_BACKGROUND);
    if (end)
        atomic_store_explicit(&e->cursor, end % e->map.pages, memory_order_relaxed);
    unsigned aside = end ? atomic_load_explicit(&e->aside, memory_order_relaxed) : 0;
    while (aside && !atomic_compare_exchange_weak(&e->aside, &aside, aside - 1)) /* not below 0 */
        ;
    return end != 0;
}
