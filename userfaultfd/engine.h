/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Inside the engine. Threads: each worker runs ibx_fault_worker_main() and owns its page reader and
 * its slots. Locks, in the order in which they are taken:
 *
 *   placing  only with events. Shared: bytes are being placed. Exclusive: the descriptor is being
 *            read. As soon as a REMOVE event is read, its caller may go on and drop the pages, so
 *            nothing may be placed between the reading and the marking.
 *   lock     state, reason, the waiting faults, the bandwidth clock.
 *
 * Faults that wait are in one list until their page is present. What to do about each follows from
 * its page's state alone, so nothing is lost when a reader fails: its pages are missing again.
 *
 *   engine.c      states and queries       events.c      what userfaultfd reports
 *   setup.c       create, destroy, resume  place.c       UFFDIO_COPY, ZEROPAGE, CONTINUE, WAKE
 *   worker.c      the threads              fetch.c       what is fetched next
 *   descriptor.c  userfaultfd descriptors  stride.c      stride prefetch
 *
 * engine.c, events.c, place.c and fetch.c call each other: all of them fail the engine, and placing
 * has to read events when the kernel answers EAGAIN.
 */
#ifndef IBX_USERFAULTFD_ENGINE_H
#define IBX_USERFAULTFD_ENGINE_H

#include "common/state_machine.h"
#include "userfaultfd/fault.h"
#include "userfaultfd/histogram.h"
#include "userfaultfd/pagemap.h"
#include "userfaultfd/stride.h"

#include <pthread.h>

#define SMALL_PAGE     4096u
#define HUGE_PAGE      (2u * 1024 * 1024)
#define URGENT_SLOTS   16u /* faulted pages in flight, a worker */
#define STRIDE_SLOTS   32u /* prefetched pages of strides in flight, a worker; small ones only */
#define SINGLE_SLOTS   (URGENT_SLOTS + STRIDE_SLOTS)
#define AROUND_SLOTS   2u  /* kept for fault-around, beside `depth` for the background */
#define STRIDE_QUEUE   8u  /* stride prefetches still to be asked for, a worker */
#define WINDOWS        64u /* fault-around windows still to be asked for, a worker */
#define EVENTS_AT_ONCE 32u
#define DEPTH_LOW      4u /* background requests in flight, a worker, while faults come */

struct waiter {
    uint64_t page;
    uint64_t since_ns;
    bool seen;      /* by the stride detector */
    bool duplicate; /* it was asked for although it was claimed */
};

/*
 * state machine: slot
 *   [*] -> FREE -> IN_FLIGHT -> ARRIVED -> FREE
 *   IN_FLIGHT -> FREE    it failed, or the engine stops
 *   FREE -> [*]
 */
enum slot_state { SLOT_FREE, SLOT_IN_FLIGHT, SLOT_ARRIVED };

/* A run of claimed pages on its way. */
struct slot {
    struct ibx_state_machine state;
    enum ibx_fault_cause cause;
    struct fault_range *range;
    uint64_t page;
    uint32_t count;      /* pages claimed */
    uint32_t good;       /* of them, arrived */
    uint32_t placed;     /* of them, no longer this slot's */
    uint32_t generation; /* in the cookie, so that a stale one is seen */
    bool zero;
    bool duplicate;  /* another worker has the claims: places what that has not placed yet */
    uint64_t faults; /* of the engine when it was asked for */
    uint8_t *memory; /* in the buffer; NULL when all is in place */
    uint8_t *bytes;  /* where they arrive */
};

struct fault_range {
    struct ibx_fault_range is;
    uint64_t pages;
    unsigned index;
};

struct fault_worker {
    struct ibx_fault *engine;
    struct ibx_fault_reader reader; /* changed by resume, under the lock, in STOPPED */
    pthread_t thread;
    bool started;
    _Atomic bool drained;
    void *own_buffer;
    int wake_fd;
    struct slot *slots; /* URGENT_SLOTS, STRIDE_SLOTS, then the others */
    unsigned slot_count, in_flight, bulk, arrived;
    uint64_t windows[WINDOWS]; /* a ring of faulted pages */
    unsigned window_head, window_count;
    struct stride_prefetch strides[STRIDE_QUEUE]; /* a ring, too */
    unsigned stride_head, stride_count;
    uint64_t scanned; /* the value of engine->changes at the last look at the list */
    bool rescan;      /* not finished, or nothing reports when the reader has room: look again */
    bool reader_full; /* until the next arrival */
    bool look_events; /* the descriptor may be readable; poll(2) has not just denied it */
    bool look_reader; /* likewise the reader */
    bool sure_events; /* the descriptor is readable, by poll(2) */
    uint64_t seen_faults;  /* at the last look of the background */
    uint32_t chunk;        /* bytes, now */
    unsigned depth;        /* requests, now */
    uint64_t capped_until; /* ns; 0: not held back */
    uint64_t last_busy_ns;
    uint64_t cancel_ns; /* at the end: when what is in flight is waited for no longer */
};

struct ibx_fault {
    int uffd, event_fd;
    bool events;
    _Atomic bool background;
    uint64_t early, early_end; /* pages that the background takes before it is on */
    unsigned fault_workers;
    unsigned spin_us, depth;
    uint32_t fault_around, chunk_min, chunk_max, page_max, slot_bytes;
    size_t buffer_bytes;
    struct fault_range *ranges;
    unsigned range_count;
    struct fault_worker *workers;
    unsigned worker_count;
    struct pagemap map;
    _Atomic uint64_t *arrived; /* the caller's, or NULL */
    uint64_t total;
    pthread_rwlock_t placing;
    pthread_mutex_t lock;
    _Atomic int state; /* enum ibx_fault_state; written under the lock */
    _Atomic bool ending;
    struct ibx_error reason;
    struct waiter *waiters;
    size_t waiter_room;
    _Atomic size_t waiting;
    struct stride_detector strides; /* under the lock */
    _Atomic uint64_t changes;       /* of the list, or of a page that one waits for */
    _Atomic uint64_t missing, present, cursor, cap;
    uint64_t next_ns; /* the bandwidth clock */
    void *zeros;      /* one page of them, of the largest size */
    int *children;    /* descriptors of forked processes */
    unsigned child_count;
    _Atomic uint64_t by_cause[IBX_FAULT_CAUSES];
    _Atomic uint64_t bytes, faults, zero_faults, requests, retries, reader_stalls, kernel_stalls,
        cap_stalls, existed, removes, forks;
    struct histogram latency;
};

/* Whether this worker reads and serves faults: the workers for faults do, or all when there are
 * none. Others would wake for every fault only to find it taken. */
static inline bool serves_faults(const struct fault_worker *w)
{
    const struct ibx_fault *e = w->engine;
    return !e->fault_workers || w < e->workers + e->fault_workers;
}

static inline void count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* engine.c */
/* Begins to drain; the first reason stays. */
void ibx_fault_fail(struct ibx_fault *e, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void ibx_fault_check_complete(struct ibx_fault *e);
/* Nothing of this worker is in flight any more. */
void ibx_fault_drained(struct fault_worker *w);
/* Out of STOPPED; under the lock. */
void ibx_fault_serve_again(struct ibx_fault *e);
void ibx_fault_wake_workers(struct ibx_fault *e);
/* The list has changed, or a page that a fault waits for. */
void ibx_fault_changed(struct ibx_fault *e);
struct fault_range *ibx_fault_range_of_page(struct ibx_fault *e, uint64_t page);
struct fault_range *ibx_fault_range_of_address(struct ibx_fault *e, uint64_t address);
/* Pages that were not present are now; they were missing, claimed or discarded. */
void ibx_fault_pages_done(struct ibx_fault *e, enum ibx_fault_cause cause, uint64_t pages);

/* These pages are about to be what the faulting process sees. */
void ibx_fault_note_arrived(struct ibx_fault *e, uint64_t page, uint64_t pages);

/* events.c */
/* Reads what userfaultfd reports; true when there was something. `sure`: the descriptor is
 * readable, so poll(2) is not asked. */
bool ibx_fault_events_read(struct ibx_fault *e, bool sure);
/* A fault begins to wait. */
void ibx_fault_waiter_add(struct ibx_fault *e, uint64_t page, uint64_t since_ns);
/* The faults on these pages are answered. */
void ibx_fault_waiters_end(struct ibx_fault *e, uint64_t page, uint64_t pages);

/* place.c */
/* Places up to `limit` further pages of an arrived slot; -ECANCELED when the engine stops. */
int ibx_fault_place(struct ibx_fault *e, struct slot *slot, uint32_t limit);
/* Places one arrived page of a slot before its turn. */
int ibx_fault_place_one(struct ibx_fault *e, const struct slot *slot, uint64_t page);
/* Answers a fault on a page that is present: with a zero page if there is none, else by waking. */
int ibx_fault_answer(struct ibx_fault *e, uint64_t page);
int ibx_fault_wake(struct ibx_fault *e, uint64_t address, uint64_t length);

/* fetch.c: each returns whether it did something */
bool ibx_fault_fetch_faulted(struct fault_worker *w);
bool ibx_fault_fetch_strides(struct fault_worker *w);
bool ibx_fault_fetch_around(struct fault_worker *w);
bool ibx_fault_fetch_background(struct fault_worker *w);
void ibx_fault_slot_init(struct slot *slot);
/* Gives the claims of a slot back that were not placed, and frees it. */
void ibx_fault_slot_release(struct fault_worker *w, struct slot *slot);

/* worker.c */
void *ibx_fault_worker_main(void *worker);

#endif
