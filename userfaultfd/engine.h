/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The inside of the engine. Each worker is a thread, ibx_fault_worker_main(), and owns its page
 * reader and its slots. Locks, in the order in which they are taken:
 *
 *   placing  only with events. Shared while pages are placed, exclusive while the descriptor is
 *            read: once a REMOVE event is read, its caller continues and drops the pages, so no
 *            page may be placed before the event is recorded in the page map.
 *   lock     state, reason, the waiting faults, the bandwidth clock.
 *
 * Waiting faults stay in one list until their page is present. What happens to each depends on the
 * state of its page only, so a reader that fails loses none: its pages are missing again.
 *
 *   engine.c      states and queries       events.c      what userfaultfd reports
 *   setup.c       create, destroy, resume  place.c       UFFDIO_COPY, ZEROPAGE, CONTINUE, WAKE
 *   worker.c      the threads              fetch.c       what is fetched next
 *   descriptor.c  userfaultfd descriptors  stride.c      stride prefetch
 *   slot.c        requests                 flight.c      how much is in flight over a wire
 *   takeover.c    what outlives a killed engine
 *   pushed_pages.c  pages that come without a READ of the engine
 *   huge_strides.c  strides through huge pages
 *
 * Independent of the engine: dirty.c tells which pages are written, protect.c stops writes.
 *
 * engine.c, events.c, place.c and fetch.c call each other: all of them can fail the engine, and
 * placing has to read events when the kernel answers EAGAIN.
 */
#ifndef IBX_USERFAULTFD_ENGINE_H
#define IBX_USERFAULTFD_ENGINE_H

#include "common/state_machine.h"
#include "userfaultfd/fault.h"
#include "userfaultfd/histogram.h"
#include "userfaultfd/pagemap.h"
#include "userfaultfd/stride.h"

#include <linux/userfaultfd.h>
#include <pthread.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

#define SMALL_PAGE 4096u
#define HUGE_PAGE  (2u * 1024 * 1024)
/* Of each worker: */
#define URGENT_SLOTS   16u /* faulted pages in flight */
#define STRIDE_SLOTS   32u /* prefetched pages of strides in flight; small pages only */
#define SINGLE_SLOTS   (URGENT_SLOTS + STRIDE_SLOTS)
#define AROUND_SLOTS   2u  /* for fault-around, beside `depth` for the background */
#define STRIDE_QUEUE   8u  /* stride prefetches to be requested */
#define WINDOWS        64u /* fault-around windows to be requested */
#define EVENTS_AT_ONCE 32u
#define DEPTH_LOW      4u  /* background requests in flight while faults occur */
#define SCATTERED_MAX  64u /* pages of one request whose pages are not contiguous */

struct waiter {
    uint64_t page;
    uint64_t number; /* for the stride detector: `page`, or ibx_fault_place_number() */
    uint64_t since_ns;
    bool seen;      /* the stride detector has seen this fault */
    bool strides;   /* the fault is part of a stride */
    bool duplicate; /* requested a second time, while another worker has the claim */
};

/*
 * state machine: slot
 *   [*] -> FREE -> IN_FLIGHT -> ARRIVED -> FREE
 *   IN_FLIGHT -> FREE    it failed, or the engine stops
 *   FREE -> [*]
 */
enum slot_state { SLOT_FREE, SLOT_IN_FLIGHT, SLOT_ARRIVED };

/* A run of claimed pages that is being fetched. */
struct slot {
    struct ibx_state_machine state;
    enum ibx_fault_cause cause;
    struct fault_range *range;
    uint64_t page;
    uint64_t *list;      /* room for SCATTERED_MAX pages; NULL in slots of single pages */
    bool scattered;      /* the pages are those of the list, not `page` and those behind it */
    uint32_t count;      /* pages claimed */
    uint32_t good;       /* of them, arrived */
    uint32_t placed;     /* of them, placed, or left to another worker */
    uint32_t generation; /* in the cookie, so that a stale cookie is detected */
    unsigned worker;     /* the worker that owns this slot */
    bool checked;        /* config.check has seen it */
    bool duplicate;  /* another worker has the claims; this slot places what is not placed yet */
    uint64_t faults; /* engine->faults at the request */
    uint64_t asked_ns;
    uint8_t *memory; /* in the worker's buffer; NULL when all ranges are in minor mode */
    uint8_t *bytes;  /* where they arrive */
};

static inline uint64_t slot_page(const struct slot *slot, uint32_t index)
{
    return slot->scattered ? slot->list[index] : slot->page + index;
}

/* The index of `page` in the slot; UINT32_MAX: the slot does not have it. */
static inline uint32_t slot_index(const struct slot *slot, uint64_t page)
{
    if (!slot->scattered)
        return page - slot->page < slot->count ? (uint32_t)(page - slot->page) : UINT32_MAX;
    for (uint32_t i = 0; i < slot->count; i++)
        if (slot->list[i] == page)
            return i;
    return UINT32_MAX;
}

struct fault_range {
    struct ibx_fault_range is;
    uint64_t pages;
    unsigned index;
};

/* flight.c: what all workers together have learned of the wire. */
struct flight {
    _Atomic uint64_t round_trip_ns; /* about the least of small requests; 0: not measured yet */
    _Atomic uint64_t forgot_ns;     /* when round_trip_ns was last allowed to grow */
    _Atomic uint64_t window_ns, window_bytes; /* start of the window; bytes arrived in it */
    _Atomic uint64_t latest;                  /* bytes per second of the window before */
    _Atomic uint64_t rate;                    /* of the wire so far, bytes per second */
    _Atomic unsigned steady;                  /* full windows since `rate` grew */
    _Atomic unsigned factor;                  /* in 64ths; 0: FACTOR_LEAST */
    _Atomic uint64_t bytes;                   /* in flight, without single pages */
    _Atomic bool held;                        /* a request had to wait in this window */
    _Atomic uint64_t fault_ns;                /* when the latest fault was read */
};

/* What a worker knows of the userfaultfd: each unnecessary look is a system call, which delays a
 * fault. */
enum events_seen {
    EVENTS_NONE,    /* poll(2) has just said that it is not readable */
    EVENTS_PERHAPS, /* not known */
    EVENTS_READABLE /* poll(2) has just said so */
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
    uint64_t *lists;    /* memory of slot.list in the others */
    unsigned slot_count, in_flight, bulk, arrived;
    uint64_t flying;           /* bytes in flight in the others */
    uint64_t windows[WINDOWS]; /* a ring of faulted pages */
    unsigned window_head, window_count;
    struct stride_prefetch strides[STRIDE_QUEUE]; /* a ring, too */
    unsigned stride_head, stride_count;
    uint64_t scanned; /* engine->changes when the list was last scanned */
    bool rescan;      /* the list has to be scanned again, though it has not changed */
    bool reader_full; /* until the next arrival */
    enum events_seen events;
    bool look_reader;      /* false: poll(2) has just said that the reader has nothing */
    uint64_t seen_faults;  /* engine->faults at the last background request */
    uint32_t chunk;        /* bytes of a background request, now */
    unsigned depth;        /* background requests in flight, now */
    uint64_t capped_until; /* ns: when the bandwidth limit allows a request; 0: now */
    uint64_t last_busy_ns;
    uint64_t cancel_ns; /* at the end: when requests in flight are cancelled */
};

struct ibx_fault {
    int uffd, event_fd;
    bool events;
    _Atomic bool background;
    uint64_t early, early_end; /* pages that are fetched before the background is on */
    bool wire;
    uint64_t round_trip_ns; /* the caller's estimate, used until a page has been measured */
    unsigned fault_workers;
    bool no_faults, prompt;
    unsigned spin_us, depth;
    uint32_t fault_around, chunk_min, chunk_max, page_max, slot_bytes;
    size_t buffer_bytes;
    struct fault_range *ranges;
    unsigned range_count;
    struct fault_worker *workers;
    unsigned worker_count;
    struct pagemap map;
    struct map_memory *lasting;           /* config.map_memory, or NULL; the page map lies in it */
    bool adopted;                         /* `lasting` was made by another engine, which died */
    _Atomic uint64_t refused, refused_ns; /* EEXIST for a zero huge page: how often, since when */
    _Atomic uint64_t *doubled; /* a bit a page, if there are huge ones: the kernel may have it */
    struct ibx_fault_run *plan;
    size_t plan_count;
    _Atomic size_t plan_at;
    void (*touched)(void *context, uint64_t page);
    void *touched_context;
    _Atomic uint64_t *arrived, *placed; /* the caller's, or NULL */
    bool exclusive, cached;
    int (*check)(void *context, unsigned worker, uint64_t page, uint32_t pages, const void *bytes,
                 struct ibx_error *err); /* or NULL */
    void *check_context;
    void (*removed)(void *context, uint64_t page, uint64_t pages);
    int (*unmapped)(void *context, uint64_t page, uint64_t pages, const void *bytes,
                    struct ibx_error *err);
    void *unmapped_context; /* or NULL */
    uint64_t total;
    pthread_rwlock_t placing;
    pthread_mutex_t lock;
    _Atomic int state; /* enum ibx_fault_state; written under the lock */
    _Atomic bool ending;
    struct ibx_error reason;
    struct waiter *waiters;
    size_t waiter_room;
    _Atomic size_t waiting;
    /* Under the lock: */
    struct stride_detector strides, huge_strides;
    struct stride_prefetch ahead[STRIDE_QUEUE]; /* a ring, of huge_strides */
    unsigned ahead_head, ahead_count;
    _Atomic bool is_ahead;
    _Atomic uint64_t changes; /* counts changes of the list and of pages in it */
    _Atomic uint64_t missing, present, cursor, cap;
    uint64_t next_ns; /* the bandwidth clock */
    struct flight flight;
    _Atomic unsigned aside; /* background requests to be made before the next loop request */
    void *zeros;            /* a page of zeros, of the largest size */
    int *children;          /* descriptors of forked processes */
    unsigned child_count;
    _Atomic uint64_t by_cause[IBX_FAULT_CAUSES];
    _Atomic uint64_t bytes, faults, zero_faults, requests, retries, reader_stalls, kernel_stalls,
        cap_stalls, existed, twice, removes, forks;
    struct histogram latency;
};

/* Whether this worker reads and serves faults: the fault workers do, or all when there are none.
 * The others would only wake for faults that are served already. */
static inline bool serves_faults(const struct fault_worker *w)
{
    const struct ibx_fault *e = w->engine;
    return !e->no_faults && (!e->fault_workers || w < e->workers + e->fault_workers);
}

static inline void count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Who finds the new count finds what was changed before, too: the states of pages, the list. */
static inline void count_change(struct ibx_fault *e)
{
    atomic_fetch_add(&e->changes, 1);
}

/* engine.c */
/* Moves the engine to DRAINING. The reason of the first call is kept. */
void ibx_fault_fail(struct ibx_fault *e, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void ibx_fault_check_complete(struct ibx_fault *e);
/* This worker has no request in flight any more. */
void ibx_fault_drained(struct fault_worker *w);
/* Leaves STOPPED. The caller holds the lock. */
void ibx_fault_serve_again(struct ibx_fault *e);
void ibx_fault_wake_workers(struct ibx_fault *e);
/* Wakes the fault workers: the list of waiting faults or the state of their pages has changed. */
void ibx_fault_changed(struct ibx_fault *e);
struct fault_range *ibx_fault_range_of_page(struct ibx_fault *e, uint64_t page);
struct fault_range *ibx_fault_range_of_address(struct ibx_fault *e, uint64_t address);
/* Wakes all threads that wait for a fault; those whose page is still missing fault again. */
int ibx_fault_wake_all(struct ibx_fault *e, struct ibx_error *err);
/* Counts pages that have become present. */
void ibx_fault_pages_done(struct ibx_fault *e, enum ibx_fault_cause cause, uint64_t pages);
/* Sets bits of config.arrived: the faulting process is about to see these pages. */
void ibx_fault_note_arrived(struct ibx_fault *e, uint64_t page, uint64_t pages);
/* Sets bits of config.placed: these pages are in their place. */
void ibx_fault_note_placed(struct ibx_fault *e, uint64_t page, uint64_t pages);
/* Calls config.removed when the range is in minor mode. */
void ibx_fault_note_removed(struct ibx_fault *e, const struct fault_range *r, uint64_t page,
                            uint64_t pages);

/* events.c */
void ibx_fault_event_handle(struct ibx_fault *e, const struct uffd_msg *message, uint64_t now);
/* Reads faults and events; false when there are none. `sure`: the caller knows that the descriptor
 * is readable, which saves a poll(2). */
bool ibx_fault_events_read(struct ibx_fault *e, bool sure);
/* Adds a fault to the list. */
void ibx_fault_waiter_add(struct ibx_fault *e, uint64_t page, uint64_t number, uint64_t since_ns);
/* Removes the faults on these pages, which are answered, from the list. */
void ibx_fault_waiters_end(struct ibx_fault *e, uint64_t page, uint64_t pages);

/* place.c */
/* Places the next pages of an arrived slot, up to `limit`; -ECANCELED when the engine stops. */
int ibx_fault_place(struct ibx_fault *e, struct slot *slot, uint32_t limit);
/* Places one arrived page of a slot before its turn. */
int ibx_fault_place_one(struct ibx_fault *e, const struct slot *slot, uint64_t page);
/* Answers a fault on a page that is present: by a zero page where none is mapped, else by a wake.
 */
int ibx_fault_answer(struct ibx_fault *e, uint64_t page);
int ibx_fault_wake(struct ibx_fault *e, uint64_t address, uint64_t length);
/* Minor mode: frees pages that arrived although their owner had discarded them, so that the owner
 * sees zeros. To be called before they count as present: after that the owner may write to them. */
void ibx_fault_empty(const struct fault_range *r, uint64_t page, uint64_t pages);

/* fetch.c: each returns whether it requested or answered anything */
bool ibx_fault_fetch_faulted(struct fault_worker *w);
bool ibx_fault_fetch_strides(struct fault_worker *w);
bool ibx_fault_fetch_around(struct fault_worker *w);
bool ibx_fault_fetch_background(struct fault_worker *w);

/* huge_strides.c */
/* The number of the small page at `address` in a range of huge pages; ranges share no number. */
uint64_t ibx_fault_place_number(const struct fault_range *r, uint64_t address);
/* Whether a fault in a huge page is part of a stride; queues the prefetch of that stride. The
 * caller holds the lock. */
bool ibx_fault_ahead_detect(struct ibx_fault *e, uint64_t number);
/* The next missing page of the queued strides; false: none is missing. Takes the lock. */
bool ibx_fault_ahead_next(struct ibx_fault *e, uint64_t *page);

/* slot.c */
/* Claimed pages: `pages` from `page` on, or those of the slot's list. */
struct wanted {
    uint64_t page;
    uint32_t pages;
    enum ibx_fault_cause cause;
    bool duplicate, scattered;
};

void ibx_fault_slot_init(struct slot *slot);
/* A free slot among those with index [from, to), or NULL. */
struct slot *ibx_fault_slot_take(struct fault_worker *w, unsigned from, unsigned to);
/* Claims missing pages from `page` on, at most `max` and up to `end`; returns how many. */
uint32_t ibx_fault_claim(struct ibx_fault *e, uint64_t page, uint64_t end, uint32_t max);
/* Allocates the slot's pages, which are filled in place: a write to a full tmpfs would raise
 * SIGBUS. With config.cached it populates by reading: a read fault on a page in the page cache maps
 * its neighbours, too, 16 writable pages at a time, which helps requests of scattered pages. A
 * failure ends the engine. */
int ibx_fault_alias_populate(struct ibx_fault *e, const struct slot *slot, size_t length);
/* Requests claimed pages. After a failure they are missing again, unless another worker has the
 * claim. */
int ibx_fault_slot_request(struct fault_worker *w, struct slot *slot, struct fault_range *r,
                           const struct wanted *wanted);
/* Frees a slot; pages that were not placed are missing again. */
void ibx_fault_slot_release(struct fault_worker *w, struct slot *slot);

/* flight.c */
/* Adds `bytes` (negative: subtracts) to what is in flight beside single pages. */
static inline void ibx_fault_flying(struct fault_worker *w, int64_t bytes)
{
    w->flying += (uint64_t)bytes;
    count(&w->engine->flight.bytes, (uint64_t)bytes);
}
/* A request of a few pages took `ns`. */
void ibx_fault_note_round_trip(struct ibx_fault *e, uint64_t ns, uint64_t now_ns);
void ibx_fault_note_arrival(struct ibx_fault *e, uint64_t bytes, uint64_t now_ns);
/* Bytes that this worker may have in flight beside single pages. */
uint64_t ibx_fault_flight_room(const struct fault_worker *w, uint64_t now_ns);
static inline uint64_t round_trip_of(const struct ibx_fault *e)
{
    const uint64_t seen = atomic_load_explicit(&e->flight.round_trip_ns, memory_order_relaxed);
    return seen ? seen : e->round_trip_ns;
}

/* takeover.c */
/* Memory that survives the process. Events are read into `events` and cleared there once they are
 * in the page map, so none is lost: a process that is killed does not die within read(2). */
struct map_memory {
    uint64_t made;  /* MAP_MADE: the rest is valid */
    uint64_t pages; /* of all ranges, to the last number */
    struct uffd_msg events[EVENTS_AT_ONCE];
    _Atomic uint64_t words[]; /* struct pagemap */
};
/* Notes that a huge page may be placed by somebody besides the one that has the claim now. */
static inline void ibx_fault_note_doubled(struct ibx_fault *e, uint64_t page)
{
    if (e->doubled)
        atomic_fetch_or(&e->doubled[page / 64], 1ull << (page % 64));
}

/* Puts the page map into `memory`; a map that is there already is kept (`adopted`). -EINVAL: that
 * one has other ranges or another layout. */
int ibx_fault_map_use(struct ibx_fault *e, void *memory, struct ibx_error *err);
/* Marks the memory as valid, after the page map has been initialised. */
void ibx_fault_map_made(struct ibx_fault *e);
/* Continues where the killed engine ended. To be called before the first worker starts. */
int ibx_fault_map_adopt(struct ibx_fault *e, struct ibx_error *err);

/* worker.c */
void *ibx_fault_worker_main(void *worker);

#endif
