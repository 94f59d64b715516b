/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Creates, resumes and destroys the engine. */
#include "userfaultfd/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEFAULT_FAULT_AROUND (64u * 1024)
#define DEFAULT_CHUNK_MIN    (128u * 1024)
#define DEFAULT_CHUNK_MAX    (1024u * 1024)
#define DEFAULT_DEPTH        8u
#define DEFAULT_DEPTH_HUGE   2u                 /* of 2 MiB each: one arrives while one is placed */
#define POPULATED_MAX        (8u * 1024 * 1024) /* bytes of the buffers for faulted pages */
#define DEPTH_MAX            1024u
#define CHUNK_LIMIT          (64u * 1024 * 1024)
#define FIRST_WAITERS        64u
#define PAGES_MAX            (1ull << 40)

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
    return value ? value : otherwise;
}

static uint32_t largest_page(const struct ibx_fault_config *config)
{
    uint32_t largest = SMALL_PAGE;
    for (unsigned i = 0; i < config->range_count; i++)
        if (config->ranges[i].page_size > largest)
            largest = config->ranges[i].page_size;
    return largest;
}

/* Small by default: background requests in flight take processor time and the wire from faults. */
static unsigned depth_of(const struct ibx_fault_config *config)
{
    return or_default(config->depth,
                      largest_page(config) > SMALL_PAGE ? DEFAULT_DEPTH_HUGE : DEFAULT_DEPTH);
}

static uint32_t slot_bytes(const struct ibx_fault_config *config)
{
    uint32_t page = largest_page(config), chunk = or_default(config->chunk_max, DEFAULT_CHUNK_MAX);
    return chunk > page ? chunk : page;
}

size_t ibx_fault_buffer_bytes(const struct ibx_fault_config *config)
{
    bool any = false;
    for (unsigned i = 0; i < config->range_count; i++)
        any |= !config->ranges[i].alias;
    size_t others = depth_of(config) + AROUND_SLOTS;
    return any ? URGENT_SLOTS * (size_t)largest_page(config) + STRIDE_SLOTS * (size_t)SMALL_PAGE +
                     others * slot_bytes(config)
               : 0;
}

/* -------------------------------------------------------------------- checks */

bool ibx_fault_serves_pages_of(uint64_t bytes)
{
    return bytes == SMALL_PAGE || bytes == HUGE_PAGE;
}

static int range_check(const struct ibx_fault_range *r, unsigned index, struct ibx_error *err)
{
    if (!ibx_fault_serves_pages_of(r->page_size))
        return ibx_error_set(err, -EINVAL, "range %u has pages of %u bytes: only 4096 and 2097152",
                             index, r->page_size);
    uint64_t odd = r->start | r->length | (uintptr_t)r->alias;
    if (!r->length || odd % r->page_size || r->start + r->length < r->start)
        return ibx_error_set(err, -EINVAL,
                             "range %u (0x%llx bytes at 0x%llx) is empty, or not of whole pages of "
                             "%u bytes",
                             index, (unsigned long long)r->length, (unsigned long long)r->start,
                             r->page_size);
    uint64_t pages = r->length / r->page_size;
    if (r->first_page > PAGES_MAX || pages > PAGES_MAX - r->first_page)
        return ibx_error_set(err, -EINVAL, "range %u has pages beyond number %llu", index,
                             (unsigned long long)PAGES_MAX);
    if (r->reader_offset + r->length < r->length)
        return ibx_error_set(err, -EINVAL, "range %u ends beyond the reader's last byte", index);
    return 0;
}

static int ranges_check(const struct ibx_fault_config *c, struct ibx_error *err)
{
    if (!c->range_count || c->range_count > IBX_FAULT_RANGES_MAX)
        return ibx_error_set(err, -EINVAL, "%u ranges: give 1 to %u", c->range_count,
                             IBX_FAULT_RANGES_MAX);
    for (unsigned i = 0; i < c->range_count; i++) {
        const struct ibx_fault_range *a = &c->ranges[i];
        int rc = range_check(a, i, err);
        if (rc)
            return rc;
        for (unsigned j = 0; j < i; j++) {
            const struct ibx_fault_range *b = &c->ranges[j];
            bool bytes = a->start < b->start + b->length && b->start < a->start + a->length;
            bool numbers = a->first_page < b->first_page + b->length / b->page_size &&
                           b->first_page < a->first_page + a->length / a->page_size;
            if (bytes || numbers)
                return ibx_error_set(err, -EINVAL, "ranges %u and %u share %s", j, i,
                                     bytes ? "addresses" : "page numbers");
        }
    }
    return 0;
}

static int readers_check(const struct ibx_fault_reader *readers, unsigned n, size_t buffer,
                         struct ibx_error *err)
{
    for (unsigned i = 0; i < n; i++) {
        const struct ibx_fault_reader_ops *ops = readers[i].ops;
        if (!ops || !ops->request || !ops->poll)
            return ibx_error_set(err, -EINVAL, "page reader %u cannot be asked or polled", i);
        if (buffer && (uintptr_t)readers[i].buffer % SMALL_PAGE)
            return ibx_error_set(err, -EINVAL, "the buffer of page reader %u is not page-aligned",
                                 i);
    }
    return 0;
}

static int config_check(const struct ibx_fault_config *c, struct ibx_error *err)
{
    uint32_t near = or_default(c->fault_around, DEFAULT_FAULT_AROUND);
    uint32_t low = or_default(c->chunk_min, DEFAULT_CHUNK_MIN);
    uint32_t high = or_default(c->chunk_max, DEFAULT_CHUNK_MAX);
    if (!c->worker_count || c->worker_count > IBX_FAULT_WORKERS_MAX)
        return ibx_error_set(err, -EINVAL, "%u workers: give 1 to %u", c->worker_count,
                             IBX_FAULT_WORKERS_MAX);
    if (near & (near - 1) || low > high || low < SMALL_PAGE || high > CHUNK_LIMIT ||
        (low | high) % SMALL_PAGE || c->depth > DEPTH_MAX)
        return ibx_error_set(err, -EINVAL,
                             "fault_around %u, chunks of %u to %u bytes, depth %u: give a power of "
                             "two, multiples of 4096 up to %u, at most %u",
                             near, low, high, c->depth, CHUNK_LIMIT, DEPTH_MAX);
    int rc = ranges_check(c, err);
    for (unsigned i = 0; !rc && c->map_memory && i < c->range_count; i++)
        if (c->ranges[i].alias)
            rc = ibx_error_set(err, -EINVAL, "range %u is in minor mode, which has `arrived`", i);
    return rc ? rc : readers_check(c->readers, c->worker_count, ibx_fault_buffer_bytes(c), err);
}

/* -------------------------------------------------------------------- making */

static int map_make(struct ibx_fault *e, void *memory, struct ibx_error *err)
{
    for (unsigned i = 0; i < e->range_count; i++) {
        uint64_t end = e->ranges[i].is.first_page + e->ranges[i].pages;
        e->map.pages = end > e->map.pages ? end : e->map.pages;
        e->total += e->ranges[i].pages;
    }
    int rc = memory ? ibx_fault_map_use(e, memory, err) : 0;
    if (rc || e->adopted)
        return rc;
    if (!memory)
        e->map.words = calloc(e->map.pages / PAGES_A_WORD + 1, sizeof *e->map.words);
    if (!e->map.words)
        return ibx_error_set(err, -ENOMEM, "no memory for a map of %llu pages",
                             (unsigned long long)e->map.pages);
    /* All pages are PRESENT (binary 10) at first, so that numbers outside of all ranges are never
     * found missing. */
    memset((void *)e->map.words, 0xaa, (e->map.pages / PAGES_A_WORD + 1) * sizeof *e->map.words);
    for (unsigned i = 0; i < e->range_count; i++)
        pagemap_move_run(&e->map, e->ranges[i].is.first_page, e->ranges[i].pages, PAGE_PRESENT,
                         PAGE_MISSING);
    atomic_store(&e->missing, e->total);
    if (memory)
        ibx_fault_map_made(e);
    return 0;
}

/* Limited to the pages that exist. */
static void early_make(struct ibx_fault *e, const struct ibx_fault_config *config)
{
    const uint64_t pages = e->map.pages;
    e->early = config->early < pages ? config->early : pages;
    e->early_end = e->early + (config->early_count < pages - e->early ? config->early_count
                                                                      : pages - e->early);
}

/* Limited to the pages that exist. */
static int plan_make(struct ibx_fault *e, const struct ibx_fault_config *config,
                     struct ibx_error *err)
{
    e->plan = config->plan_count ? calloc(config->plan_count, sizeof *e->plan) : NULL;
    if (config->plan_count && !e->plan)
        return ibx_error_set(err, -ENOMEM, "no memory for %zu runs of pages", config->plan_count);
    for (size_t i = 0; i < config->plan_count; i++) {
        const struct ibx_fault_run *run = &config->plan[i];
        if (run->page < e->map.pages)
            e->plan[e->plan_count++] = (struct ibx_fault_run){
                run->page,
                run->pages < e->map.pages - run->page ? run->pages : e->map.pages - run->page};
    }
    return 0;
}

static int ranges_make(struct ibx_fault *e, const struct ibx_fault_config *config)
{
    e->ranges = calloc(config->range_count, sizeof *e->ranges);
    if (!e->ranges)
        return -ENOMEM;
    e->range_count = config->range_count;
    for (unsigned i = 0; i < e->range_count; i++) {
        struct ibx_fault_range is = config->ranges[i];
        e->ranges[i] = (struct fault_range){is, is.length / is.page_size, i};
    }
    return 0;
}

static void buffer_use(struct fault_worker *w, void *buffer)
{
    uint8_t *at = buffer ? buffer : w->own_buffer;
    for (unsigned i = 0; at && i < w->slot_count; i++) {
        w->slots[i].memory = at;
        at += i < URGENT_SLOTS   ? w->engine->page_max
              : i < SINGLE_SLOTS ? SMALL_PAGE
                                 : w->engine->slot_bytes;
    }
}

/* Touches the buffers of the first requests now, not while a fault waits: at the first touch of a
 * huge page, which some readers' buffers have, the kernel clears 2 MiB. Errors are ignored: Linux
 * before 5.14 lacks this advice, and a lack of memory shows at the first request. */
static void buffer_populate(const struct fault_worker *w)
{
    const struct ibx_fault *e = w->engine;
    const size_t small = STRIDE_SLOTS * (size_t)SMALL_PAGE;
    const size_t urgent = URGENT_SLOTS * (size_t)e->page_max + small;
    if (!w->slots[0].memory)
        return;
    if (serves_faults(w))
        madvise(w->slots[0].memory, urgent < POPULATED_MAX ? urgent : POPULATED_MAX,
                MADV_POPULATE_WRITE);
    if (!e->fault_workers || !serves_faults(w))
        madvise(w->slots[SINGLE_SLOTS].memory, e->slot_bytes, MADV_POPULATE_WRITE);
}

/* Allocates a buffer for a reader whose caller has given none. */
static int own_buffer_make(struct fault_worker *w, const struct ibx_fault_reader *reader)
{
    if (reader->buffer || w->own_buffer || !w->engine->buffer_bytes)
        return 0;
    void *m = mmap(NULL, w->engine->buffer_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return -errno;
    w->own_buffer = m;
    return 0;
}

static int worker_make(struct ibx_fault *e, struct fault_worker *w,
                       const struct ibx_fault_reader *reader)
{
    w->engine = e;
    w->reader = *reader;
    w->depth = e->depth < DEPTH_LOW ? e->depth : DEPTH_LOW;
    w->chunk = e->chunk_min;
    w->seen_faults = UINT64_MAX; /* differs from any count: the first requests are small ones */
    w->slot_count = SINGLE_SLOTS + AROUND_SLOTS + e->depth;
    w->slots = calloc(w->slot_count, sizeof *w->slots);
    if (!w->slots)
        return -ENOMEM;
    w->lists = calloc((w->slot_count - SINGLE_SLOTS) * SCATTERED_MAX, sizeof *w->lists);
    if (!w->lists)
        return -ENOMEM;
    for (unsigned i = 0; i < w->slot_count; i++) {
        ibx_fault_slot_init(&w->slots[i]);
        if (i >= SINGLE_SLOTS)
            w->slots[i].list = w->lists + (i - SINGLE_SLOTS) * SCATTERED_MAX;
    }
    int rc = own_buffer_make(w, reader);
    if (rc)
        return rc;
    buffer_use(w, reader->buffer);
    buffer_populate(w);
    w->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return w->wake_fd < 0 ? -errno : 0;
}

static void take_config(struct ibx_fault *e, const struct ibx_fault_config *config)
{
    e->uffd = config->uffd;
    e->events = config->events;
    e->arrived = config->arrived;
    e->placed = config->placed;
    e->exclusive = config->exclusive;
    e->cached = config->cached;
    e->check = config->check;
    e->check_context = config->check_context;
    e->removed = config->removed;
    e->unmapped = config->unmapped;
    e->unmapped_context = config->unmapped_context;
    e->touched = config->touched;
    e->touched_context = config->touched_context;
    e->background = !config->no_background;
    e->wire = config->wire;
    e->round_trip_ns = config->wire ? config->round_trip_ns : 0;
    e->fault_workers = config->fault_workers < config->worker_count ? config->fault_workers
                                                                    : config->worker_count - 1;
    e->no_faults = config->no_faults;
    e->prompt = config->prompt;
    if (e->no_faults)
        e->fault_workers = 0;
    e->spin_us = config->spin_us;
    e->depth = depth_of(config);
    e->fault_around = or_default(config->fault_around, DEFAULT_FAULT_AROUND);
    e->chunk_min = or_default(config->chunk_min, DEFAULT_CHUNK_MIN);
    e->chunk_max = or_default(config->chunk_max, DEFAULT_CHUNK_MAX);
    e->page_max = largest_page(config);
    e->slot_bytes = slot_bytes(config);
    e->buffer_bytes = ibx_fault_buffer_bytes(config);
    atomic_store(&e->cap, config->max_bandwidth);
}

static int engine_make(struct ibx_fault *e, const struct ibx_fault_config *config,
                       struct ibx_error *err)
{
    take_config(e, config);
    e->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    e->waiters = calloc(FIRST_WAITERS, sizeof *e->waiters);
    e->waiter_room = FIRST_WAITERS;
    e->zeros = mmap(NULL, e->page_max, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (e->event_fd < 0 || !e->waiters || e->zeros == MAP_FAILED || ranges_make(e, config))
        return ibx_error_set(err, -ENOMEM, "no memory or descriptors for the fault engine");
    int rc = map_make(e, config->map_memory, err);
    if (!rc && e->page_max > SMALL_PAGE) {
        e->doubled = calloc(e->map.pages / 64 + 1, sizeof *e->doubled);
        rc = e->doubled ? 0 : ibx_error_set(err, -ENOMEM, "no memory for the fault engine");
    }
    if (!rc)
        rc = plan_make(e, config, err);
    early_make(e, config);
    e->workers = rc ? NULL : calloc(config->worker_count, sizeof *e->workers);
    for (unsigned i = 0; e->workers && i < config->worker_count && !rc; i++) {
        e->workers[i].wake_fd = -1;
        e->worker_count++;
        rc = worker_make(e, &e->workers[i], &config->readers[i]);
        if (rc)
            ibx_error_set(err, rc, "setting up worker %u of the fault engine: %s", i,
                          strerror(-rc));
    }
    return rc ? rc : e->workers ? 0 : ibx_error_set(err, -ENOMEM, "no memory for the workers");
}

static void engine_free(struct ibx_fault *e)
{
    for (unsigned i = 0; i < e->worker_count; i++) {
        struct fault_worker *w = &e->workers[i];
        free(w->slots);
        free(w->lists);
        if (w->own_buffer)
            munmap(w->own_buffer, e->buffer_bytes);
        if (w->wake_fd >= 0)
            close(w->wake_fd);
    }
    for (unsigned i = 0; i < e->child_count; i++)
        close(e->children[i]);
    if (e->zeros && e->zeros != MAP_FAILED)
        munmap(e->zeros, e->page_max);
    if (e->event_fd >= 0)
        close(e->event_fd);
    free(e->children);
    free(e->workers);
    free(e->ranges);
    free(e->waiters);
    free(e->plan);
    free((void *)e->doubled);
    if (!e->lasting)
        free((void *)e->map.words);
    pthread_mutex_destroy(&e->lock);
    pthread_rwlock_destroy(&e->placing);
    free(e);
}

static void locks_make(struct ibx_fault *e)
{
    pthread_rwlockattr_t attr;
    pthread_rwlockattr_init(&attr); /* placing must not starve the reading of events */
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&e->placing, &attr);
    pthread_rwlockattr_destroy(&attr);
    pthread_mutex_init(&e->lock, NULL);
}

int ibx_fault_create(const struct ibx_fault_config *config, struct ibx_fault **engine,
                     struct ibx_error *err)
{
    int rc = config_check(config, err);
    if (rc)
        return rc;
    int flags = fcntl(config->uffd, F_GETFL);
    if (flags < 0 || fcntl(config->uffd, F_SETFL, flags | O_NONBLOCK))
        return ibx_error_set(err, -errno, "userfaultfd descriptor %d: %s", config->uffd,
                             strerror(errno));
    struct ibx_fault *e = calloc(1, sizeof *e);
    if (!e)
        return ibx_error_set(err, -ENOMEM, "no memory for the fault engine");
    locks_make(e);
    e->event_fd = -1;
    rc = engine_make(e, config, err);
    if (rc) {
        engine_free(e);
        return rc;
    }
    rc = e->adopted ? ibx_fault_map_adopt(e, err) : 0;
    if (rc) {
        engine_free(e);
        return rc;
    }
    for (unsigned i = 0; i < e->worker_count; i++) {
        struct fault_worker *w = &e->workers[i];
        rc = -pthread_create(&w->thread, NULL, ibx_fault_worker_main, w);
        if (rc) {
            ibx_fault_destroy(e);
            return ibx_error_set_task(err, rc, "starting worker %u of the fault engine", i);
        }
        w->started = true;
    }
    *engine = e;
    return 0;
}

void ibx_fault_destroy(struct ibx_fault *engine)
{
    if (!engine)
        return;
    atomic_store(&engine->ending, true);
    ibx_fault_wake_workers(engine);
    for (unsigned i = 0; i < engine->worker_count; i++)
        if (engine->workers[i].started)
            pthread_join(engine->workers[i].thread, NULL);
    if (engine->no_faults && engine->waiting) /* faults read along with events: to come again */
        ibx_fault_wake_all(engine, NULL);
    engine_free(engine);
}

int ibx_fault_resume(struct ibx_fault *engine, const struct ibx_fault_reader *readers,
                     struct ibx_error *err)
{
    int rc = readers_check(readers, engine->worker_count, engine->buffer_bytes, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&engine->lock);
    enum ibx_fault_state state = ibx_fault_state(engine);
    if (state != IBX_FAULT_STOPPED)
        rc = ibx_error_set(err, -EBUSY, "the fault engine is %s, only a stopped one is resumed",
                           ibx_fault_state_name(state));
    for (unsigned i = 0; !rc && i < engine->worker_count; i++) {
        struct fault_worker *w = &engine->workers[i];
        rc = own_buffer_make(w, &readers[i]);
        if (rc) {
            ibx_error_set(err, rc, "no memory for the pages of worker %u", i);
            break;
        }
        w->reader = readers[i];
        buffer_use(w, readers[i].buffer);
    }
    if (!rc) {
        atomic_store(&engine->plan_at, 0); /* some of it may have been on its way */
        ibx_fault_serve_again(engine);
    }
    pthread_mutex_unlock(&engine->lock);
    return rc;
}
