/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Events of userfaultfd: faults, and changes that the owner of the memory makes to it. */
#include "userfaultfd/engine.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void ibx_fault_waiter_add(struct ibx_fault *e, uint64_t page, uint64_t number, uint64_t since_ns)
{
    pthread_mutex_lock(&e->lock);
    size_t n = atomic_load_explicit(&e->waiting, memory_order_relaxed);
    bool room = n < e->waiter_room;
    if (!room) {
        struct waiter *more = realloc(e->waiters, 2 * e->waiter_room * sizeof *more);
        if (more) {
            e->waiters = more;
            e->waiter_room *= 2;
            room = true;
        }
    }
    if (room) {
        e->waiters[n] = (struct waiter){.page = page, .number = number, .since_ns = since_ns};
        atomic_store(&e->waiting, n + 1);
        atomic_thread_fence(memory_order_seq_cst); /* before the page's state is read */
        count_change(e);
    }
    pthread_mutex_unlock(&e->lock);
    if (!room) { /* not noted: wake the thread, which faults again */
        struct fault_range *r = ibx_fault_range_of_page(e, page);
        ibx_fault_wake(e, r->is.start + (page - r->is.first_page) * r->is.page_size,
                       r->is.page_size);
    }
}

void ibx_fault_waiters_end(struct ibx_fault *e, uint64_t page, uint64_t pages)
{
    /* The pages were made present before. Either this finds the waiter, or who adds it finds them
     * present (ibx_fault_waiter_add()). */
    atomic_thread_fence(memory_order_seq_cst);
    if (!atomic_load(&e->waiting))
        return;
    uint64_t now = ibx_now_ns();
    pthread_mutex_lock(&e->lock);
    size_t n = atomic_load_explicit(&e->waiting, memory_order_relaxed);
    for (size_t i = 0; i < n;) {
        if (e->waiters[i].page - page >= pages) {
            i++;
            continue;
        }
        histogram_add(&e->latency, now - e->waiters[i].since_ns);
        e->waiters[i] = e->waiters[--n];
    }
    atomic_store_explicit(&e->waiting, n, memory_order_release);
    pthread_mutex_unlock(&e->lock);
}

uint64_t ibx_fault_waits_since(struct ibx_fault *e)
{
    uint64_t since = 0;
    pthread_mutex_lock(&e->lock);
    const size_t n = atomic_load_explicit(&e->waiting, memory_order_relaxed);
    for (size_t i = 0; i < n; i++)
        since = !since || e->waiters[i].since_ns < since ? e->waiters[i].since_ns : since;
    pthread_mutex_unlock(&e->lock);
    return since;
}

static void fault_came(struct ibx_fault *e, uint64_t address, uint64_t now)
{
    struct fault_range *r = ibx_fault_range_of_address(e, address);
    if (!r) {
        ibx_fault_fail(e, -EFAULT,
                       "a fault at 0x%llx, outside of all ranges; register only what is given to "
                       "the engine",
                       (unsigned long long)address);
        return;
    }
    const uint64_t page = r->is.first_page + (address - r->is.start) / r->is.page_size;
    count(&e->faults, 1);
    atomic_store_explicit(&e->flight.fault_ns, now, memory_order_relaxed);
    if (e->touched)
        e->touched(e->touched_context, page);
    const bool huge = r->is.page_size > SMALL_PAGE;
    ibx_fault_waiter_add(e, page, huge ? ibx_fault_place_number(r, address) : page, now);
}

/* These pages are zero from now on: those in flight are discarded on arrival, others not fetched.
 */
static void pages_dropped(struct ibx_fault *e, uint64_t page, uint64_t end)
{
    uint64_t dropped = 0;
    ibx_fault_note_arrived(e, page, end > page ? end - page : 0);
    ibx_fault_note_placed(e, page, end > page ? end - page : 0);
    const uint64_t from = page;
    for (; page < end; page++) {
        while (true) {
            enum page_state state = pagemap_get(&e->map, page);
            if (state == PAGE_MISSING && pagemap_move(&e->map, page, state, PAGE_PRESENT)) {
                dropped++;
                break;
            }
            if (state == PAGE_PRESENT || state == PAGE_DISCARDED ||
                (state == PAGE_CLAIMED && pagemap_move(&e->map, page, state, PAGE_DISCARDED)))
                break;
        }
    }
    if (from < end)
        ibx_fault_note_removed(e, ibx_fault_range_of_page(e, from), from, end - from);
    atomic_fetch_sub(&e->missing, dropped);
    ibx_fault_pages_done(e, IBX_FAULT_BY_REMOVE, dropped);
    ibx_fault_changed(e);
}

static void range_dropped(struct ibx_fault *e, uint64_t start, uint64_t end)
{
    count(&e->removes, 1);
    for (unsigned i = 0; i < e->range_count; i++) {
        const struct ibx_fault_range *r = &e->ranges[i].is;
        uint64_t from = start > r->start ? start : r->start;
        uint64_t to = end < r->start + r->length ? end : r->start + r->length;
        if (from < to) /* huge pages are dropped as a whole only */
            pages_dropped(e, r->first_page + (from - r->start + r->page_size - 1) / r->page_size,
                          r->first_page + (to - r->start) / r->page_size);
    }
}

static void range_moved(struct ibx_fault *e, uint64_t from, uint64_t to, uint64_t length)
{
    for (unsigned i = 0; i < e->range_count; i++) {
        struct ibx_fault_range *r = &e->ranges[i].is;
        if (from >= r->start + r->length || r->start >= from + length)
            continue;
        if (from == r->start && length == r->length) {
            r->start = to;
            continue;
        }
        ibx_fault_fail(e, -EOPNOTSUPP,
                       "0x%llx bytes at 0x%llx were moved (mremap), a part of the range at 0x%llx: "
                       "only whole ranges can be followed",
                       (unsigned long long)length, (unsigned long long)from,
                       (unsigned long long)r->start);
    }
}

/* The child is not served. Its descriptor stays open, since the child would run on zero pages once
 * it was closed. */
static void child_came(struct ibx_fault *e, int fd)
{
    count(&e->forks, 1);
    ibx_log(IBX_LOG_WARN, "the process whose memory is filled has forked: the child is not served");
    pthread_mutex_lock(&e->lock);
    int *more = realloc(e->children, (e->child_count + 1) * sizeof *more);
    if (more) {
        e->children = more;
        more[e->child_count++] = fd;
    }
    pthread_mutex_unlock(&e->lock);
    if (!more)
        ibx_log(IBX_LOG_ERROR, "out of memory: descriptor %d of a child is left open", fd);
}

void ibx_fault_event_handle(struct ibx_fault *e, const struct uffd_msg *m, uint64_t now)
{
    switch (m->event) {
    case UFFD_EVENT_PAGEFAULT:
        fault_came(e, m->arg.pagefault.address, now);
        break;
    case UFFD_EVENT_REMOVE:
    case UFFD_EVENT_UNMAP:
        range_dropped(e, m->arg.remove.start, m->arg.remove.end);
        break;
    case UFFD_EVENT_REMAP:
        range_moved(e, m->arg.remap.from, m->arg.remap.to, m->arg.remap.len);
        break;
    case UFFD_EVENT_FORK:
        child_came(e, (int)m->arg.fork.ufd);
        break;
    default:
        ibx_fault_fail(e, -EPROTO, "userfaultfd event 0x%x is unknown", m->event);
    }
}

void ibx_fault_note_events(struct ibx_fault *engine)
{
    if (!engine->events)
        return;
    pthread_rwlock_rdlock(&engine->placing);
    pthread_rwlock_unlock(&engine->placing);
}

bool ibx_fault_events_read(struct ibx_fault *e, bool sure)
{
    struct uffd_msg own[EVENTS_AT_ONCE];
    /* `lasting->events` needs no lock of its own: with events `placing` lets one worker read. */
    struct uffd_msg *messages = e->lasting && e->events ? e->lasting->events : own;
    if (e->events) {
        struct pollfd look = {.fd = e->uffd, .events = POLLIN};
        if (!sure && poll(&look, 1, 0) <= 0) /* saves the exclusive lock when there are no events */
            return false;
        pthread_rwlock_wrlock(&e->placing);
    }
    ssize_t n = read(e->uffd, messages, sizeof own);
    int code = errno;
    uint64_t now = ibx_now_ns();
    for (ssize_t i = 0; i < n / (ssize_t)sizeof *messages; i++) {
        ibx_fault_event_handle(e, &messages[i], now);
        messages[i].event = 0; /* handled: an engine that takes over finds it in the page map */
    }
    if (e->events)
        pthread_rwlock_unlock(&e->placing);
    if (n < 0 && code != EAGAIN && code != EINTR)
        ibx_fault_fail(e, -code, "reading the userfaultfd: %s", strerror(code));
    if (n > 0)
        ibx_fault_check_complete(e);
    return n > 0;
}
