/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The thread that owns a page reader: reads events, serves faults, places arrivals, requests pages
 * in the background; then spins or sleeps. */
#include "userfaultfd/engine.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES    (64u * 1024) /* placed between two looks at the faults */
#define ARRIVALS       16
#define AWAITED        16u
#define LEAST_BYTES    (4 * SMALL_PAGE) /* of requests from which the round trip is measured */
#define POLL_MS_NO_FD  1
#define POLL_MS_ALWAYS 1000
#define DUPLICATES_MS  1000 /* how long destroy waits for duplicates before it cancels them */

/* More background requests, then larger ones, if no fault was read since this one was made. */
static void background_grow(struct fault_worker *w, const struct slot *slot)
{
    struct ibx_fault *e = w->engine;
    if (atomic_load_explicit(&e->faults, memory_order_relaxed) != slot->faults)
        return;
    if (w->depth < e->depth)
        w->depth = w->depth * 2 < e->depth ? w->depth * 2 : e->depth;
    else if (w->chunk < e->chunk_max)
        w->chunk = w->chunk * 2 < e->chunk_max ? w->chunk * 2 : e->chunk_max;
}

static void arrival_note(struct ibx_fault *e, const struct slot *slot, uint64_t bytes)
{
    const uint64_t now = ibx_now_ns();
    if (bytes <= LEAST_BYTES)
        ibx_fault_note_round_trip(e, now - slot->asked_ns, now);
    ibx_fault_note_arrival(e, bytes, now);
}

static void arrival_handle(struct fault_worker *w, const struct ibx_fault_arrival *a)
{
    struct ibx_fault *e = w->engine;
    uint64_t index = a->cookie & UINT32_MAX;
    struct slot *slot = index < w->slot_count ? &w->slots[index] : NULL;
    if (!slot || slot->state.now != SLOT_IN_FLIGHT || slot->generation != a->cookie >> 32) {
        ibx_fault_fail(e, -EPROTO, "pages come that were not requested (cookie 0x%llx)",
                       (unsigned long long)a->cookie);
        return;
    }
    /* In COMPLETE only duplicates are in flight, and they may fail. */
    const bool matters = ibx_fault_state(e) != IBX_FAULT_COMPLETE;
    w->in_flight--;
    w->reader_full = false;
    if (matters && a->status && a->status != -EAGAIN && a->status != -ECANCELED)
        ibx_fault_fail(e, a->status, "fetching page %llu (%u pages) failed: %s",
                       (unsigned long long)slot->page, slot->count, strerror(-a->status));
    if (index >= SINGLE_SLOTS)
        ibx_fault_flying(w, -(int64_t)(slot->count * slot->range->is.page_size));
    if (!a->status)
        arrival_note(e, slot, a->length);
    uint64_t pages = a->length / slot->range->is.page_size;
    slot->good = a->status ? 0 : pages < slot->count ? (uint32_t)pages : slot->count;
    if (matters && !a->status && !slot->good)
        ibx_fault_fail(e, -EIO, "%zu bytes come of page %llu, less than a page", a->length,
                       (unsigned long long)slot->page);
    if (slot->good < slot->count)
        count(&e->retries, 1);
    if (!slot->good) {
        ibx_fault_slot_release(w, slot);
        return;
    }
    ibx_state_move(&slot->state, SLOT_ARRIVED);
    w->arrived++;
}

static bool arrivals_take(struct fault_worker *w)
{
    struct ibx_fault_arrival arrivals[ARRIVALS];
    int n = w->reader.ops->poll(w->reader.context, arrivals, ARRIVALS);
    for (int i = 0; i < n && i < ARRIVALS; i++)
        arrival_handle(w, &arrivals[i]);
    if (n >= 0)
        return n > 0;
    if (ibx_fault_state(w->engine) != IBX_FAULT_COMPLETE)
        ibx_fault_fail(w->engine, n, "no more pages come: %s", strerror(-n));
    for (unsigned i = 0; i < w->slot_count; i++)
        if (w->slots[i].state.now == SLOT_IN_FLIGHT)
            ibx_fault_slot_release(w, &w->slots[i]);
    w->in_flight = 0;
    ibx_fault_flying(w, -(int64_t)w->flying);
    return true;
}

static void slot_finish(struct fault_worker *w, struct slot *slot)
{
    if (slot->cause == IBX_FAULT_BY_BACKGROUND && slot->placed == slot->count)
        background_grow(w, slot);
    w->arrived--;
    ibx_fault_slot_release(w, slot);
    ibx_fault_check_complete(w->engine);
}

static struct slot *slot_of(struct fault_worker *w, uint64_t page)
{
    for (unsigned i = SINGLE_SLOTS; i < w->slot_count; i++) {
        struct slot *slot = &w->slots[i];
        const uint32_t at = slot->state.now == SLOT_ARRIVED ? slot_index(slot, page) : UINT32_MAX;
        if (at < slot->good && at >= slot->placed)
            return slot;
    }
    return NULL;
}

/* Places arrived pages of long requests that faults wait for. */
static void awaited_place(struct fault_worker *w)
{
    struct ibx_fault *e = w->engine;
    uint64_t pages[AWAITED];
    unsigned n = 0;
    if (!w->arrived || !atomic_load_explicit(&e->waiting, memory_order_acquire))
        return;
    pthread_mutex_lock(&e->lock);
    size_t waiting = atomic_load_explicit(&e->waiting, memory_order_relaxed);
    for (size_t i = 0; i < waiting && n < AWAITED; i++)
        if (pagemap_get(&e->map, e->waiters[i].page) == PAGE_CLAIMED &&
            slot_of(w, e->waiters[i].page))
            pages[n++] = e->waiters[i].page;
    pthread_mutex_unlock(&e->lock);
    for (unsigned i = 0; i < n; i++)
        if (ibx_fault_place_one(e, slot_of(w, pages[i]), pages[i]))
            return; /* the engine stops, the slot keeps the page */
}

/* Places all pages that faults wait for, and one piece of the others. */
static bool arrivals_place(struct fault_worker *w)
{
    bool piece_done = false, busy = w->arrived > 0;
    awaited_place(w);
    for (unsigned i = 0; i < w->slot_count && w->arrived; i++) {
        struct slot *slot = &w->slots[i];
        if (slot->state.now != SLOT_ARRIVED || (i >= SINGLE_SLOTS && piece_done))
            continue;
        uint32_t limit = PIECE_BYTES / slot->range->is.page_size;
        piece_done = i >= SINGLE_SLOTS;
        int rc = ibx_fault_place(w->engine, slot, limit ? limit : 1);
        if (rc || slot->placed == slot->good)
            slot_finish(w, slot);
    }
    return busy;
}

/* Only duplicates are in flight in COMPLETE. They get some time to arrive, because a reader that
 * cancels may have to end its connection, while the other end waits for a confirmation over it. */
static bool waits_for_duplicates(struct fault_worker *w)
{
    if (ibx_fault_state(w->engine) != IBX_FAULT_COMPLETE)
        return false;
    if (!w->cancel_ns)
        w->cancel_ns = ibx_deadline_in_ms(DUPLICATES_MS);
    return ibx_now_ns() < w->cancel_ns;
}

/* Called until no request is in flight any more; then this worker is drained. */
static bool drain(struct fault_worker *w, bool *asked)
{
    const bool cancel = !*asked && w->reader.ops->cancel && !waits_for_duplicates(w);
    for (unsigned i = 0; i < w->slot_count; i++) {
        struct slot *slot = &w->slots[i];
        if (slot->state.now == SLOT_ARRIVED) {
            w->arrived--;
            ibx_fault_slot_release(w, slot);
        } else if (slot->state.now == SLOT_IN_FLIGHT && cancel) {
            w->reader.ops->cancel(w->reader.context,
                                  (uint64_t)slot->generation << 32 | (uint64_t)i);
        }
    }
    *asked |= cancel;
    bool busy = w->in_flight && arrivals_take(w);
    if (w->in_flight || w->arrived)
        return busy;
    w->window_count = w->stride_count = 0;
    w->reader_full = w->rescan = false; /* after resume every worker scans the list */
    *asked = false;
    ibx_fault_drained(w);
    return true;
}

/* -------------------------------------------------------------------- sleeping */

static int sleep_ms(const struct fault_worker *w, bool reader, int reader_fd)
{
    if ((reader && reader_fd < 0) || w->rescan || w->cancel_ns)
        return POLL_MS_NO_FD;
    if (w->capped_until) {
        int ms = ibx_ms_until(w->capped_until);
        return ms < POLL_MS_ALWAYS ? ms : POLL_MS_ALWAYS;
    }
    return POLL_MS_ALWAYS;
}

static void look_at_all(struct fault_worker *w)
{
    w->events = EVENTS_PERHAPS;
    w->look_reader = true;
}

static void rest(struct fault_worker *w, bool reader)
{
    struct ibx_fault *e = w->engine;
    look_at_all(w);
    /* The pause has ended; cap_open() may set another one. */
    if (w->capped_until && ibx_now_ns() >= w->capped_until) {
        w->capped_until = 0;
        return;
    }
    if (e->spin_us == UINT_MAX || ibx_now_ns() - w->last_busy_ns < e->spin_us * IBX_NS_PER_US) {
        /* The thread that faulted, or the one that serves the READ, may be on this processor with a
         * lower priority. */
        sched_yield();
        return;
    }
    int reader_fd = -1;
    if (reader) {
        if (w->reader.ops->arm && w->reader.ops->arm(w->reader.context) > 0)
            return;
        reader_fd = w->reader.ops->fd ? w->reader.ops->fd(w->reader.context) : -1;
    }
    struct pollfd fds[] = {{.fd = w->wake_fd, .events = POLLIN},
                           {.fd = serves_faults(w) ? e->uffd : -1, .events = POLLIN},
                           {.fd = reader_fd, .events = POLLIN}};
    if (poll(fds, 3, sleep_ms(w, reader, reader_fd)) <= 0)
        return;
    w->events = fds[1].revents & POLLIN            ? EVENTS_READABLE
                : fds[0].revents || fds[1].revents ? EVENTS_PERHAPS
                                                   : EVENTS_NONE;
    w->look_reader = fds[0].revents || fds[2].revents || reader_fd < 0;
    uint64_t woken;
    if (fds[0].revents && read(w->wake_fd, &woken, sizeof woken) < 0 && errno != EAGAIN)
        ibx_fault_fail(e, -errno, "eventfd: %s", strerror(errno));
    if (fds[1].revents & (POLLERR | POLLNVAL))
        ibx_fault_fail(e, -EBADF, "the userfaultfd is not usable: was it enabled (UFFDIO_API)?");
}

/* Whether more work can come only from the kernel or the reader, which poll(2) reports at once:
 * then another round would only delay the thread that serves the fault, perhaps on this processor.
 * Only an engine that serves has a reader that may be asked. */
static bool settled(const struct fault_worker *w, bool serving)
{
    const struct ibx_fault *e = w->engine;
    return serving && !e->spin_us && !w->arrived && !w->rescan &&
           w->scanned == atomic_load(&e->changes) && w->reader.ops->fd &&
           w->reader.ops->fd(w->reader.context) >= 0;
}

void *ibx_fault_worker_main(void *worker)
{
    struct fault_worker *w = worker;
    struct ibx_fault *e = w->engine;
    const bool faults = serves_faults(w);
    bool asked = false;
    pthread_setname_np(pthread_self(), "ibx-fault");
    /* Faults, and the owner of the memory, which causes them, get a processor before other work. */
    if ((e->fault_workers || e->prompt) && faults)
        ibx_thread_prompt();
    else if (e->fault_workers)
        ibx_thread_give_way();
    look_at_all(w);
    while (true) {
        bool ending = atomic_load(&e->ending), more = false;
        bool busy = !ending && faults && w->events != EVENTS_NONE &&
                    ibx_fault_events_read(e, w->events == EVENTS_READABLE);
        enum ibx_fault_state state = ibx_fault_state(e);
        bool serving = state == IBX_FAULT_SERVING && !ending;
        if (!ending && faults && (serving || state == IBX_FAULT_COMPLETE))
            busy |= ibx_fault_fetch_faulted(w);
        if (serving || (!ending && state == IBX_FAULT_COMPLETE && w->in_flight + w->arrived > 0)) {
            busy |= w->look_reader && arrivals_take(w);
            busy |= arrivals_place(w);
        }
        if (serving) {
            more |= ibx_fault_fetch_strides(w);
            more |= ibx_fault_fetch_around(w);
            more |= ibx_fault_fetch_background(w);
        }
        if (ending && !w->in_flight && !w->arrived)
            return NULL;
        if (ending || (state == IBX_FAULT_DRAINING && !w->drained))
            more |= drain(w, &asked);
        if (busy || more)
            w->last_busy_ns = ibx_now_ns();
        if (more || (busy && !settled(w, serving)))
            look_at_all(w);
        else
            rest(w, serving || w->in_flight);
    }
}
