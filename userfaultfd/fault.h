/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The fault engine fills memory on demand, and in the background, through userfaultfd.
 *
 * It takes a userfaultfd (of this process or of another) with registered ranges, and page readers
 * that fetch pages. It knows no network and no transport. The destination of a migration calls it,
 * with page connections as readers (migrate/pages/).
 *
 * In missing mode a page is fetched into a buffer and copied to its place (UFFDIO_COPY). In minor
 * mode, for shared memory that this process has mapped a second time, it is fetched into place and
 * then mapped (UFFDIO_CONTINUE).
 *
 *     ibx_fault_uffd_open() / ibx_fault_uffd_take() + ibx_fault_uffd_enable()
 *     ibx_fault_register() for each range
 *     ibx_fault_create()       HELD: faults are read and wait
 *     ibx_fault_mark_zero()    for pages that need not be fetched, and _mark_present()
 *     ibx_fault_serve()        SERVING
 *     wait for ibx_fault_event_fd(), then ibx_fault_state()
 *     ibx_fault_destroy(), ibx_fault_unregister()
 *
 * Pages are numbered globally: page `range.first_page + k` is the k-th of its range. A worker
 * claims a page before it fetches it. A page that has faulted is fetched alone and first, then the
 * aligned window around it or the next pages of its stride, and in the background all others.
 *
 * A page that is known to be zero takes no memory until it is touched. When the ranges are
 * unregistered after COMPLETE, pages that were never touched are holes, which read as zeros.
 *
 * All calls may come from any thread; destroy is the last one.
 */
#ifndef IBX_USERFAULTFD_FAULT_H
#define IBX_USERFAULTFD_FAULT_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define IBX_FAULT_RANGES_MAX  1024
#define IBX_FAULT_WORKERS_MAX 64

struct ibx_fault;

/* ------------------------------------------------------------ page readers */

struct ibx_fault_request {
    uint64_t page;   /* the first one's number */
    uint64_t offset; /* its first byte, as the reader counts: from range.reader_offset on */
    size_t length;   /* bytes; whole pages of one range */
    void *buffer;    /* to fill: in the worker's buffer, or in the range's alias */
    uint64_t cookie; /* comes back with the arrival */
    unsigned range;  /* index of the range in the config */
    bool urgent;     /* to be served before all that are not urgent */
    bool more;       /* others may follow, and be sent with it, before the reader is polled */
    /* NULL, or the numbers of `page_count` scattered pages of the range, of which `page` is the
     * first; they fill the buffer in this order. Valid until the call returns. */
    const uint64_t *pages;
    uint32_t page_count;
};

struct ibx_fault_arrival {
    uint64_t cookie;
    int status;    /* 0; -EAGAIN or -ECANCELED: it is requested again; else the engine stops */
    size_t length; /* bytes filled, from the first on; the rest is requested again */
};

/*
 * Called only by the worker thread that owns the reader. Every accepted request arrives exactly
 * once; the buffer belongs to the reader until then. A STOPPED engine calls nothing of a reader and
 * uses no buffer, so that both may be freed before resume or destroy.
 */
struct ibx_fault_reader_ops {
    /* 0, -EAGAIN (full until the next arrival), or an error, which stops the engine. */
    int (*request)(void *context, const struct ibx_fault_request *request);
    /* Makes a request arrive soon, with -ECANCELED or with its data. May be NULL. */
    void (*cancel)(void *context, uint64_t cookie);
    /* Takes up to `max` arrivals without blocking. After an error the reader touches no buffer any
     * more, and no further request arrives. */
    int (*poll)(void *context, struct ibx_fault_arrival *arrivals, int max);
    /* Before a sleep on the fd: 1 when poll() would find an arrival now, else 0. May be NULL. */
    int (*arm)(void *context);
    /* A descriptor that is readable when there are arrivals; -1 or NULL: poll() is called every
     * millisecond. */
    int (*fd)(void *context);
    bool scatters; /* takes requests with `pages` */
};

struct ibx_fault_reader {
    const struct ibx_fault_reader_ops *ops;
    void *context;
    /* Missing mode: where pages arrive, ibx_fault_buffer_bytes() bytes, page-aligned, the caller's
     * until the engine is STOPPED or destroyed. NULL: the engine allocates it. */
    void *buffer;
};

/* ------------------------------------------------------------ ranges */

struct ibx_fault_range {
    uint64_t start;         /* address in the faulting process */
    uint64_t length;        /* bytes */
    uint32_t page_size;     /* bytes: 4096, or 2 MiB of hugetlb memory */
    uint64_t first_page;    /* in the global numbering */
    uint64_t reader_offset; /* of its first byte, for the reader */
    /* Minor mode: the same shared memory as mapped in this process, not registered. NULL: missing
     * mode. */
    void *alias;
    /* Missing mode: pages are placed write-protected, so that ibx_dirty_scan() finds which of them
     * were written since. The descriptor was enabled with IBX_FAULT_DIRTY. */
    bool protect;
};

/* Contiguous pages: `pages` pages from `page` on. */
struct ibx_fault_run {
    uint64_t page, pages;
};

struct ibx_fault_config {
    int uffd;    /* the caller's, made non-blocking; open until the ranges are unregistered */
    bool events; /* it was enabled with any IBX_FAULT_EVENT_... */
    const struct ibx_fault_range *ranges; /* copied */
    unsigned range_count;
    const struct ibx_fault_reader *readers; /* one a worker thread; copied */
    unsigned worker_count;
    unsigned spin_us; /* how long a worker polls before it sleeps; UINT_MAX: it never sleeps */
    /* Until ibx_fault_set_background() fetch only what faults need, and `early_count` pages from
     * page `early` on, which will fault soon. */
    bool no_background;
    uint64_t early, early_count;
    /* The source is on another host: the amount in flight follows the round trip and the rate of
     * the wire, and the pages of loops are fetched before they fault (stride.h). */
    bool wire;
    uint64_t round_trip_ns; /* estimate, used until the first page has been measured; 0: unknown */
    /* Pages that will be needed soon: fetched in this order, before they fault and before the rest
     * of the background, even with no_background. Copied; numbers outside of all ranges are
     * skipped. */
    const struct ibx_fault_run *plan;
    size_t plan_count;
    /* The first `fault_workers` workers read faults and fetch what faults need, with priority
     * (common/thread.h); the others, at least one, do the rest. 0: all do both. */
    unsigned fault_workers;
    /* All workers that serve faults get that priority, without fault_workers too. For a single
     * worker where there is no background. */
    bool prompt;
    /* This engine answers no fault, because pages that count as present here may be missing: the
     * next engine of this userfaultfd does. All workers fetch in the background. */
    bool no_faults;
    uint64_t max_bandwidth; /* bytes per second of requests that are not urgent; 0: no limit */
    uint32_t fault_around;  /* bytes, a power of two; 0: 64 KiB; 1: none */
    uint32_t chunk_min;     /* bytes of a background request while faults occur; 0: 128 KiB */
    uint32_t chunk_max;     /* bytes of the largest one; 0: 1 MiB. At least one page each */
    unsigned depth; /* background requests in flight per worker, at most; 0: 8, of huge pages 2 */
    /* NULL, or a bit per page up to the last page, in memory of the caller that outlives this
     * process. A bit is set when the page is complete or was discarded, before the faulting process
     * can see it; for zero pages in missing mode only. In minor mode an engine that takes over
     * (ibx_fault_rebuild) must not fetch these pages again, and only these bits tell which they
     * are: the page cache has incomplete pages, too, and page tables lack pages that have come. */
    _Atomic uint64_t *arrived;
    /* The same, but a bit is set after the page was placed or discarded. A page whose bit is set in
     * `arrived` and not here may be in its place or not. */
    _Atomic uint64_t *placed;
    /* Minor mode: most of the pages are in the page cache already, with other bytes. */
    bool cached;
    /* Only this engine makes pages in the ranges: a page that exists before it was placed is an
     * error (-EEXIST), and no page is fetched twice. */
    bool exclusive;
    /* NULL, or ibx_fault_map_bytes() of shared memory, page-aligned and zero at first, that
     * outlives this process. It has all that another engine needs to take over when this process
     * is killed at any instruction. Missing mode only. The other engine is created with the same
     * ranges, the same descriptor and this memory, and needs no ibx_fault_rebuild(): it knows which
     * pages are present, which were removed, and which events had been read and not noted. */
    void *map_memory;
    /* NULL, or called with pages that have arrived, before the faulting process can see them; a
     * page may be checked twice. An error stops the engine with that reason. `worker` counts from
     * 0; calls with the same number come from one thread. */
    int (*check)(void *context, unsigned worker, uint64_t page, uint32_t pages, const void *bytes,
                 struct ibx_error *err);
    void *check_context;
    /* NULL, or called by any worker, with check_context, for pages of a range in minor mode that
     * were removed, perhaps after `check` had seen them. The owner can empty the memory (fallocate)
     * before the event tells of it, so `check` may have seen zeros in their place. */
    void (*removed)(void *context, uint64_t page, uint64_t pages);
    /* Called by any worker where the owner of the memory has unmapped pages before they came, so
     * that nobody waits for them: 0, or an error of the engine, with or without a sentence.
     * `bytes`: not in minor mode. NULL: it is an error (-ENOENT). */
    int (*unmapped)(void *context, uint64_t page, uint64_t pages, const void *bytes,
                    struct ibx_error *err);
    void *unmapped_context;
    /* Called by any worker with the page of each fault, in the order in which they are read, a page
     * perhaps several times; NULL: not. */
    void (*touched)(void *context, uint64_t page);
    void *touched_context;
};

/* Bytes of config.map_memory for these ranges. */
size_t ibx_fault_map_bytes(const struct ibx_fault_range *ranges, unsigned count);

/* Bytes of buffer that each reader needs; 0 when all ranges are in minor mode. */
size_t ibx_fault_buffer_bytes(const struct ibx_fault_config *config);

/* Whether the engine fetches pages of so many bytes: 4096, or 2 MiB. */
bool ibx_fault_serves_pages_of(uint64_t bytes);

/* ------------------------------------------------------------ engine */

/*
 * state machine: fault engine
 *   [*] -> HELD -> SERVING -> COMPLETE          serve; every page is present
 *   HELD -> COMPLETE                            serve, when every page is present
 *   HELD | SERVING | COMPLETE -> DRAINING       an error, stop
 *   DRAINING -> STOPPED                         no request is in flight
 *   STOPPED -> SERVING | COMPLETE               resume
 *   HELD | SERVING | COMPLETE | DRAINING | STOPPED -> [*]
 *
 * Faults and events are read in all states, and faults are answered in SERVING and COMPLETE (in
 * COMPLETE by zero pages, of known-zero and of discarded memory). DRAINING and STOPPED keep present
 * pages; pages that were in flight are missing again, and their faults still wait.
 */
enum ibx_fault_state {
    IBX_FAULT_HELD,
    IBX_FAULT_SERVING,
    IBX_FAULT_COMPLETE,
    IBX_FAULT_DRAINING,
    IBX_FAULT_STOPPED,
};

/* Starts the workers, in HELD. -EINVAL with the reason, -ENOMEM, and errors of pthread_create. */
int ibx_fault_create(const struct ibx_fault_config *config, struct ibx_fault **engine,
                     struct ibx_error *err);
/* Stops and joins the workers. Faults then wait until the ranges are unregistered or another engine
 * takes over (ibx_fault_rebuild). In COMPLETE requests in flight are cancelled after a second.
 * Accepts NULL. */
void ibx_fault_destroy(struct ibx_fault *engine);

/* HELD -> SERVING (or COMPLETE). -EBUSY in another state. */
int ibx_fault_serve(struct ibx_fault *engine);
/* -> DRAINING -> STOPPED, with this reason. Without effect in DRAINING and STOPPED. */
void ibx_fault_stop(struct ibx_fault *engine, int code, const char *reason);
/* STOPPED -> SERVING with other readers, one a worker. -EBUSY in another state. */
int ibx_fault_resume(struct ibx_fault *engine, const struct ibx_fault_reader *readers,
                     struct ibx_error *err);

enum ibx_fault_state ibx_fault_state(const struct ibx_fault *engine);
const char *ibx_fault_state_name(enum ibx_fault_state state);
/* Why it stopped; -EINPROGRESS when it has not. */
int ibx_fault_reason(struct ibx_fault *engine, struct ibx_error *err);
/* An eventfd, readable after COMPLETE or STOPPED was reached, until the caller has read it. */
int ibx_fault_event_fd(const struct ibx_fault *engine);

/* These pages are zero and need not be fetched. Has no effect on pages that are not missing.
 * -ERANGE: numbers beyond the last page. */
int ibx_fault_mark_zero(struct ibx_fault *engine, uint64_t first, uint64_t count);
/* These pages are in their place already. As above. */
int ibx_fault_mark_present(struct ibx_fault *engine, uint64_t first, uint64_t count);
/* Undoes ibx_fault_mark_present() for these pages: they are missing. -ERANGE as above; -EBUSY: the
 * engine is not HELD. */
int ibx_fault_mark_missing(struct ibx_fault *engine, uint64_t first, uint64_t count);
/* Places a page that was pushed: that came another way than by a reader. `bytes`: 4096; only for
 * ranges with pages of that size. config.check, if set, is called first with `worker`, a number
 * that no worker of the engine and no other thread uses. 1: the page was placed. 0: it was not: the
 * page is not missing, the engine is neither SERVING nor HELD, or it failed, or is HELD and an
 * event has to be read first. -EBADMSG and others: what config.check returned; nothing was done. */
int ibx_fault_push(struct ibx_fault *engine, unsigned worker, uint64_t page, const void *bytes,
                   struct ibx_error *err);
/* Whether a page is neither present nor being fetched. */
bool ibx_fault_missing(const struct ibx_fault *engine, uint64_t page);
/* For an engine that takes over from one that died: page k is present if bit k of `present` is set
 * (byte k / 8, bit k % 8). In missing mode the bits may come from SEEK_DATA, in minor mode only
 * from `arrived` of the other engine (word k / 64, bit k % 64). Wakes all ranges, so that threads
 * whose faults the other engine has read fault again. -EBUSY unless HELD or STOPPED. */
int ibx_fault_rebuild(struct ibx_fault *engine, const uint8_t *present, uint64_t pages,
                      struct ibx_error *err);
/* Waits until every event that was read before this call is in the page map: reading an event lets
 * the thread that caused it continue, before the event is noted. */
void ibx_fault_note_events(struct ibx_fault *engine);
/* Whether a page is present (or known to be zero, or discarded). */
bool ibx_fault_present(const struct ibx_fault *engine, uint64_t page);
/* Whether pages that no fault waits for are fetched. Takes effect at once. */
void ibx_fault_set_background(struct ibx_fault *engine, bool on);
/* Bytes per second, 0 for no limit. Takes effect at once. */
void ibx_fault_set_bandwidth(struct ibx_fault *engine, uint64_t bytes_per_second);

enum ibx_fault_cause {
    IBX_FAULT_BY_FAULT,
    IBX_FAULT_BY_PREFETCH, /* after a fault: the window around it, or its stride */
    IBX_FAULT_BY_BACKGROUND,
    IBX_FAULT_BY_ZERO,    /* known to be zero */
    IBX_FAULT_BY_REMOVE,  /* discarded by its owner before it arrived */
    IBX_FAULT_BY_REBUILD, /* present before */
    IBX_FAULT_BY_PUSH,    /* ibx_fault_push() */
    IBX_FAULT_CAUSES
};

struct ibx_fault_stats {
    uint64_t pages;                      /* in all ranges */
    uint64_t present;                    /* the sum of by_cause */
    uint64_t by_cause[IBX_FAULT_CAUSES]; /* pages */
    uint64_t bytes;                      /* fetched: not those that were pushed */
    uint64_t faults;                     /* read from the kernel */
    uint64_t waiting;                    /* faults not answered yet */
    uint64_t zero_faults;                /* answered with a zero page */
    uint64_t requests;
    uint64_t retries;       /* arrivals of which some pages had to be requested again */
    uint64_t reader_stalls; /* the reader was full */
    uint64_t kernel_stalls; /* EAGAIN: an event had to be read first */
    uint64_t cap_stalls;    /* the bandwidth limit held the background back */
    uint64_t existed;       /* EEXIST: the page was present */
    uint64_t twice;         /* pages requested while another worker had them in flight */
    uint64_t removes;       /* events: memory discarded or unmapped */
    uint64_t forks;         /* events: children, which are not served */
    /* From reading a fault to placing its page, nanoseconds; exact to 1/16. */
    uint64_t latency_count, latency_p50, latency_p99, latency_max, latency_sum;
};
/* A snapshot, not atomic as a whole. */
void ibx_fault_stats(const struct ibx_fault *engine, struct ibx_fault_stats *stats);
/* When the oldest fault that is not answered yet was read (ibx_now_ns()); 0: no fault waits. */
uint64_t ibx_fault_waits_since(struct ibx_fault *engine);

/* ------------------------------------------------------------ descriptors */

/*
 * REMOVE: madvise(MADV_DONTNEED, MADV_REMOVE), as of a balloon: the pages are zero from then on and
 *   never fetched, also those of a shared mapping, which MADV_DONTNEED alone would keep.
 * UNMAP: the pages no longer exist.
 * REMAP: a range that moves as a whole is followed; when a part moves, the engine stops.
 * FORK: the parent is served, the child is not: it waits at its first missing page until the engine
 *   is destroyed. Needs CAP_SYS_PTRACE.
 */
#define IBX_FAULT_EVENT_FORK   (1ull << 1)
#define IBX_FAULT_EVENT_REMAP  (1ull << 2)
#define IBX_FAULT_EVENT_REMOVE (1ull << 3)
#define IBX_FAULT_EVENT_UNMAP  (1ull << 6)
/* For ranges with `protect`: UFFD_FEATURE_WP_ASYNC, Linux 6.7. */
#define IBX_FAULT_DIRTY (1ull << 15)

/* Whether this kernel is built without userfaultfd(2), rather than that a seccomp profile answers
 * ENOSYS: then the sysctl vm.unprivileged_userfaultfd still exists. */
bool ibx_fault_uffd_absent(void);
/* The remedy, for error messages. */
#define IBX_FAULT_UFFD_ABSENT "it takes a kernel that is built with CONFIG_USERFAULTFD"
/* A new, enabled descriptor for this process's own memory; `features` as below. */
int ibx_fault_uffd_open(uint64_t features, int *uffd, struct ibx_error *err);
/* UFFDIO_API on a new descriptor, with UFFD_FEATURE_... bits of <linux/userfaultfd.h>, of which the
 * events are above, and with UFFD_FEATURE_EXACT_ADDRESS where this kernel has it.
 * -EOPNOTSUPP names the feature that it lacks. */
int ibx_fault_uffd_enable(int uffd, uint64_t features, struct ibx_error *err);
/* Whether this process may duplicate descriptors of others at all: -EPERM, -EACCES, -ENOSYS if its
 * seccomp profile or the kernel forbids the calls. */
int ibx_fault_check_take(struct ibx_error *err);
/* A duplicate of descriptor `fd` of process `pid` (pidfd_getfd), close-on-exec. */
int ibx_fault_uffd_take(pid_t pid, int fd, int *uffd, struct ibx_error *err);
/* Registers a range for missing pages; in minor mode also for pages that are in the page cache but
 * not mapped; with `protect` also for writes. */
int ibx_fault_register(int uffd, const struct ibx_fault_range *range, struct ibx_error *err);
/* Only when every page is present: threads that wait for one would continue on zero pages. */
int ibx_fault_unregister(int uffd, const struct ibx_fault_range *range, struct ibx_error *err);

#endif
