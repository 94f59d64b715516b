/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The engine's states, and queries. */
#include "userfaultfd/engine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* -------------------------------------------------------------------- states */

static const struct ibx_state states[] = {
    [IBX_FAULT_HELD] = {"held",
                        IBX_TO(IBX_FAULT_SERVING) | IBX_TO(IBX_FAULT_COMPLETE) |
                            IBX_TO(IBX_FAULT_DRAINING),
                        IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [IBX_FAULT_SERVING] = {"serving", IBX_TO(IBX_FAULT_COMPLETE) | IBX_TO(IBX_FAULT_DRAINING),
                           IBX_STATE_FINAL},
    [IBX_FAULT_COMPLETE] = {"complete", IBX_TO(IBX_FAULT_DRAINING), IBX_STATE_FINAL},
    [IBX_FAULT_DRAINING] = {"draining", IBX_TO(IBX_FAULT_STOPPED), IBX_STATE_FINAL},
    [IBX_FAULT_STOPPED] = {"stopped", IBX_TO(IBX_FAULT_SERVING) | IBX_TO(IBX_FAULT_COMPLETE),
                           IBX_STATE_FINAL},
};
static const struct ibx_state_table table = IBX_STATE_TABLE("fault engine", states);

enum ibx_fault_state ibx_fault_state(const struct ibx_fault *engine)
{
    return (enum ibx_fault_state)atomic_load_explicit(&engine->state, memory_order_acquire);
}

const char *ibx_fault_state_name(enum ibx_fault_state state)
{
    return ibx_state_name(&table, (unsigned)state);
}

static void signal_fd(int fd)
{
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);
    (void)n; /* EAGAIN: it is readable already */
}

void ibx_fault_wake_workers(struct ibx_fault *e)
{
    for (unsigned i = 0; i < e->worker_count; i++)
        signal_fd(e->workers[i].wake_fd);
}

void ibx_fault_changed(struct ibx_fault *e)
{
    count_change(e);
    for (unsigned i = 0; atomic_load(&e->waiting) && i < e->fault_workers; i++)
        signal_fd(e->workers[i].wake_fd);
}

/* The only place that changes the state. The caller holds the lock; readers of the state need none.
 * False: the table does not allow the move. */
static bool move(struct ibx_fault *e, enum ibx_fault_state to)
{
    if (!ibx_state_allows(&table, ibx_fault_state(e), to))
        return false;
    atomic_store(&e->state, to); /* before begin_serving() looks at the pages again */
    if (to == IBX_FAULT_COMPLETE || to == IBX_FAULT_STOPPED)
        signal_fd(e->event_fd);
    for (unsigned i = 0; to == IBX_FAULT_DRAINING && i < e->worker_count; i++)
        e->workers[i].drained = false;
    ibx_fault_wake_workers(e);
    return true;
}

void ibx_fault_stop(struct ibx_fault *engine, int code, const char *reason)
{
    pthread_mutex_lock(&engine->lock);
    if (move(engine, IBX_FAULT_DRAINING))
        ibx_error_set(&engine->reason, code, "%s", reason);
    pthread_mutex_unlock(&engine->lock);
}

void ibx_fault_fail(struct ibx_fault *e, int code, const char *format, ...)
{
    char text[IBX_ERROR_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ibx_fault_stop(e, code, text);
}

void ibx_fault_drained(struct fault_worker *w)
{
    struct ibx_fault *e = w->engine;
    bool all = true;
    pthread_mutex_lock(&e->lock);
    w->drained = true;
    for (unsigned i = 0; i < e->worker_count; i++)
        all &= e->workers[i].drained;
    if (all)
        move(e, IBX_FAULT_STOPPED);
    pthread_mutex_unlock(&e->lock);
}

static bool everything_present(const struct ibx_fault *e)
{
    return atomic_load(&e->present) == e->total;
}

void ibx_fault_check_complete(struct ibx_fault *e)
{
    if (atomic_load(&e->state) != IBX_FAULT_SERVING || !everything_present(e))
        return;
    pthread_mutex_lock(&e->lock);
    if (ibx_fault_state(e) == IBX_FAULT_SERVING) /* serve and resume complete HELD and STOPPED */
        move(e, IBX_FAULT_COMPLETE);
    pthread_mutex_unlock(&e->lock);
}

/* The caller holds the lock. False: the engine may not serve now. Whoever brings the last page may
 * have found the state of before in ibx_fault_check_complete(), so this looks once more. */
static bool begin_serving(struct ibx_fault *e)
{
    if (!move(e, everything_present(e) ? IBX_FAULT_COMPLETE : IBX_FAULT_SERVING))
        return false;
    if (ibx_fault_state(e) == IBX_FAULT_SERVING && everything_present(e))
        move(e, IBX_FAULT_COMPLETE);
    return true;
}

int ibx_fault_serve(struct ibx_fault *engine)
{
    pthread_mutex_lock(&engine->lock);
    int rc = -EBUSY;
    if (ibx_fault_state(engine) == IBX_FAULT_HELD && begin_serving(engine))
        rc = 0;
    pthread_mutex_unlock(&engine->lock);
    return rc;
}

void ibx_fault_serve_again(struct ibx_fault *e)
{
    count_change(e); /* so that the workers scan the list again */
    begin_serving(e);
}

int ibx_fault_reason(struct ibx_fault *engine, struct ibx_error *err)
{
    pthread_mutex_lock(&engine->lock);
    enum ibx_fault_state state = ibx_fault_state(engine);
    bool stopped = state == IBX_FAULT_DRAINING || state == IBX_FAULT_STOPPED;
    int rc = stopped ? engine->reason.code : -EINPROGRESS;
    if (stopped && err)
        *err = engine->reason;
    pthread_mutex_unlock(&engine->lock);
    return stopped ? rc
                   : ibx_error_set(err, rc, "the fault engine is %s", ibx_fault_state_name(state));
}

int ibx_fault_event_fd(const struct ibx_fault *engine)
{
    return engine->event_fd;
}

/* -------------------------------------------------------------------- pages */

struct fault_range *ibx_fault_range_of_page(struct ibx_fault *e, uint64_t page)
{
    for (unsigned i = 0; i < e->range_count; i++)
        if (page - e->ranges[i].is.first_page < e->ranges[i].pages)
            return &e->ranges[i];
    return NULL;
}

struct fault_range *ibx_fault_range_of_address(struct ibx_fault *e, uint64_t address)
{
    for (unsigned i = 0; i < e->range_count; i++)
        if (address - e->ranges[i].is.start < e->ranges[i].is.length)
            return &e->ranges[i];
    return NULL;
}

void ibx_fault_pages_done(struct ibx_fault *e, enum ibx_fault_cause cause, uint64_t pages)
{
    if (!pages)
        return;
    count(&e->by_cause[cause], pages);
    atomic_fetch_add(&e->present, pages);
}

bool ibx_fault_present(const struct ibx_fault *engine, uint64_t page)
{
    return page < engine->map.pages && pagemap_get(&engine->map, page) == PAGE_PRESENT;
}

static void marked(struct ibx_fault *e, uint64_t pages, enum ibx_fault_cause cause)
{
    atomic_fetch_sub(&e->missing, pages);
    ibx_fault_pages_done(e, cause, pages);
}

static int mark(struct ibx_fault *engine, uint64_t first, uint64_t pages,
                enum ibx_fault_cause cause)
{
    if (first > engine->map.pages || pages > engine->map.pages - first)
        return -ERANGE;
    uint64_t n = pagemap_move_run(&engine->map, first, pages, PAGE_MISSING, PAGE_PRESENT);
    marked(engine, n, cause);
    if (n) {
        count_change(engine);
        if (ibx_fault_state(engine) != IBX_FAULT_HELD) /* faults may wait for these pages */
            ibx_fault_wake_workers(engine);
        ibx_fault_check_complete(engine);
    }
    return 0;
}

int ibx_fault_mark_zero(struct ibx_fault *engine, uint64_t first, uint64_t count)
{
    return mark(engine, first, count, IBX_FAULT_BY_ZERO);
}

int ibx_fault_mark_present(struct ibx_fault *engine, uint64_t first, uint64_t count)
{
    return mark(engine, first, count, IBX_FAULT_BY_REBUILD);
}

int ibx_fault_mark_missing(struct ibx_fault *engine, uint64_t first, uint64_t count)
{
    if (first > engine->map.pages || count > engine->map.pages - first)
        return -ERANGE;
    if (ibx_fault_state(engine) != IBX_FAULT_HELD)
        return -EBUSY;
    const uint64_t n = pagemap_move_run(&engine->map, first, count, PAGE_PRESENT, PAGE_MISSING);
    atomic_fetch_add(&engine->missing, n);
    atomic_fetch_sub(&engine->by_cause[IBX_FAULT_BY_REBUILD], n);
    atomic_fetch_sub(&engine->present, n);
    return 0;
}

int ibx_fault_wake_all(struct ibx_fault *engine, struct ibx_error *err)
{
    for (unsigned i = 0; i < engine->range_count; i++) {
        const struct ibx_fault_range *r = &engine->ranges[i].is;
        int rc = ibx_fault_wake(engine, r->start, r->length);
        if (rc)
            return ibx_error_set(err, rc, "waking the faults at 0x%llx: %s",
                                 (unsigned long long)r->start, strerror(-rc));
    }
    return 0;
}

int ibx_fault_rebuild(struct ibx_fault *engine, const uint8_t *present, uint64_t pages,
                      struct ibx_error *err)
{
    pthread_mutex_lock(&engine->lock);
    enum ibx_fault_state state = ibx_fault_state(engine);
    bool may = state == IBX_FAULT_HELD || state == IBX_FAULT_STOPPED;
    uint64_t n = 0;
    for (uint64_t i = 0; may && i < pages && i < engine->map.pages; i++)
        if (present[i / 8] >> i % 8 & 1)
            n += pagemap_move(&engine->map, i, PAGE_MISSING, PAGE_PRESENT);
    marked(engine, n, IBX_FAULT_BY_REBUILD);
    if (may) /* all threads are woken below: those whose page is still missing fault again */
        atomic_store_explicit(&engine->waiting, 0, memory_order_release);
    pthread_mutex_unlock(&engine->lock);
    return may ? ibx_fault_wake_all(engine, err)
               : ibx_error_set(err, -EBUSY, "the page map cannot be rebuilt while the engine is %s",
                               ibx_fault_state_name(state));
}

static void set_bits(_Atomic uint64_t *words, uint64_t page, uint64_t pages)
{
    const uint64_t end = page + pages;
    while (words && page < end) {
        const uint64_t till = (page / 64 + 1) * 64 < end ? (page / 64 + 1) * 64 : end;
        const uint64_t bits = ~0ull >> (64 - (till - page)) << page % 64;
        atomic_fetch_or_explicit(&words[page / 64], bits, memory_order_release);
        page = till;
    }
}

void ibx_fault_note_arrived(struct ibx_fault *e, uint64_t page, uint64_t pages)
{
    set_bits(e->arrived, page, pages);
}

void ibx_fault_note_placed(struct ibx_fault *e, uint64_t page, uint64_t pages)
{
    set_bits(e->placed, page, pages);
}

void ibx_fault_note_removed(struct ibx_fault *e, const struct fault_range *r, uint64_t page,
                            uint64_t pages)
{
    if (e->removed && r->is.alias)
        e->removed(e->check_context, page, pages);
}

void ibx_fault_set_background(struct ibx_fault *engine, bool on)
{
    atomic_store_explicit(&engine->background, on, memory_order_relaxed);
    ibx_fault_wake_workers(engine);
}

void ibx_fault_set_bandwidth(struct ibx_fault *engine, uint64_t bytes_per_second)
{
    pthread_mutex_lock(&engine->lock);
    atomic_store(&engine->cap, bytes_per_second);
    engine->next_ns = 0;
    pthread_mutex_unlock(&engine->lock);
    ibx_fault_wake_workers(engine);
}

void ibx_fault_stats(const struct ibx_fault *engine, struct ibx_fault_stats *stats)
{
    const struct ibx_fault *e = engine;
    *stats = (struct ibx_fault_stats){
        .pages = e->total,
        .present = atomic_load(&e->present),
        .bytes = atomic_load(&e->bytes),
        .faults = atomic_load(&e->faults),
        .waiting = atomic_load(&e->waiting),
        .zero_faults = atomic_load(&e->zero_faults),
        .requests = atomic_load(&e->requests),
        .retries = atomic_load(&e->retries),
        .reader_stalls = atomic_load(&e->reader_stalls),
        .kernel_stalls = atomic_load(&e->kernel_stalls),
        .cap_stalls = atomic_load(&e->cap_stalls),
        .existed = atomic_load(&e->existed),
        .twice = atomic_load(&e->twice),
        .removes = atomic_load(&e->removes),
        .forks = atomic_load(&e->forks),
        .latency_count = atomic_load(&e->latency.count),
        .latency_p50 = histogram_quantile(&e->latency, 500),
        .latency_p99 = histogram_quantile(&e->latency, 990),
        .latency_max = atomic_load(&e->latency.max),
        .latency_sum = atomic_load(&e->latency.sum),
    };
    for (unsigned i = 0; i < IBX_FAULT_CAUSES; i++)
        stats->by_cause[i] = atomic_load(&e->by_cause[i]);
}
