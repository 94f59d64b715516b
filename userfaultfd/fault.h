/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The fault engine fills memory on demand, and in the background, through userfaultfd.
 *
 * It takes a userfaultfd (of this process or of another) with ranges registered on it, and page
 * readers that fetch pages from wherever they are. It knows no network and no transport. The
 * destination of a migration calls it, with page connections as readers (migrate/pages/).
 *
 *     ibx_fault_uffd_open() / ibx_fault_uffd_take() + ibx_fault_uffd_enable()
 *     ibx_fault_register() for each range
 *     ibx_fault_create()       HELD: faults are read and kept waiting
 *     ibx_fault_mark_zero()    what need not be fetched
 *     ibx_fault_serve()        SERVING
 *     wait for ibx_fault_event_fd(), then ibx_fault_state()
 *     ibx_fault_destroy(), ibx_fault_unregister()
 *
 * Pages are numbered globally: page `range.first_page + k` is the k-th of its range. A worker
 * claims a page before it fetches it, so each is fetched once. The order is: the page that faulted,
 * alone; then those around it (an aligned window) or the next ones of its stride; then, in the
 * background, all others.
 *
 * A page that is known to be zero takes no memory until it is touched. When the ranges are
 * unregistered after COMPLETE, pages that were never touched are holes and read as zeros.
 *
 * All calls are safe from any thread, except that destroy is the last one.
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
    uint64_t page; /* the first, in the global numbering */
    uint64_t
        offset; /* of that page for the reader, bytes: range.reader_offset + place in the range */
    size_t length;   /* bytes; whole pages of one range */
    void *buffer;    /* to fill: inside the worker's buffer, or in place in the range's alias */
    uint64_t cookie; /* comes back with the arrival */
    unsigned range;  /* index of the range in the config */
    bool urgent;     /* a fault waits for it: goes before everything that is not urgent */
};

struct ibx_fault_arrival {
    uint64_t cookie;
    int status;    /* 0; -EAGAIN or -ECANCELED: request it again; else the reader is broken */
    size_t length; /* bytes that are there, from the first; the rest is requested again */
    bool zero;     /* all of it is zero, `buffer` was not written */
};

/*
 * Only the worker thread that owns the reader calls these. Every accepted request arrives exactly
 * once; the buffer is the reader's until then.
 */
struct ibx_fault_reader_ops {
    /* 0, -EAGAIN (full: again after the next arrival), or an error, which stops the engine. */
    int (*request)(void *context, const struct ibx_fault_request *request);
    /* May be NULL. The request shall arrive soon, with -ECANCELED or with its data. */
    void (*cancel)(void *context, uint64_t cookie);
    /* Up to `max` arrivals; never blocks. An error: the reader has ended and will touch no buffer
     * any more; what was outstanding does not arrive. */
    int (*poll)(void *context, struct ibx_fault_arrival *arrivals, int max);
    /* Before sleeping on the fd: 1 when there is something to poll now, 0 to sleep. May be NULL. */
    int (*arm)(void *context);
    /* Readable when there is something to poll; -1 or NULL: polled every millisecond. */
    int (*fd)(void *context);
};

struct ibx_fault_reader {
    const struct ibx_fault_reader_ops *ops;
    void *context;
    /* Where pages arrive before they are placed (missing mode), of ibx_fault_buffer_bytes(),
     * page-aligned; NULL: the engine allocates it. Kept by the caller until destroy or resume. */
    void *buffer;
};

/* ------------------------------------------------------------ ranges */

struct ibx_fault_range {
    uint64_t start;         /* address in the faulting process */
    uint64_t length;        /* bytes */
    uint32_t page_size;     /* bytes: 4096, or 2 MiB of hugetlb memory */
    uint64_t first_page;    /* in the global numbering */
    uint64_t reader_offset; /* of its first byte, for the reader */
    /* Minor mode: the same shared memory mapped in this process (and not registered), filled in
     * place and then mapped by UFFDIO_CONTINUE. NULL: missing mode, UFFDIO_COPY. */
    void *alias;
};

struct ibx_fault_config {
    int uffd;    /* borrowed, made non-blocking; keep it open until the ranges are unregistered */
    bool events; /* it was enabled with any IBX_FAULT_EVENT_...: placing then excludes reading */
    const struct ibx_fault_range *ranges; /* copied */
    unsigned range_count;
    const struct ibx_fault_reader *readers; /* one a worker thread; copied */
    unsigned worker_count;
    unsigned spin_us;   /* busy polling before a worker sleeps; UINT_MAX: it never sleeps */
    bool no_background; /* faults only, and `early_count` pages from `early` on, which are about to
                         * fault; until ibx_fault_set_background() */
    uint64_t early, early_count;
    unsigned fault_workers; /* so many workers, the first ones, read faults and fetch only what they
                             * need, with priority (common/thread.h); at least one worker does the
                             * rest, whatever this is. 0: all do both */
    uint64_t max_bandwidth; /* bytes per second of what is not urgent; 0: no limit */
    uint32_t fault_around;  /* bytes, a power of two; 0: 64 KiB; 1: none */
    uint32_t chunk_min;     /* bytes of a background request while faults come; 0: 128 KiB */
    uint32_t chunk_max;     /* and at most; 0: 1 MiB. At least one page each */
    unsigned depth;         /* background requests in flight a worker, at most; 0: 8 */
    /* A bit a page, up to the last page of all ranges: set before the faulting process can see the
     * page, when all of its bytes have come or it was discarded. An engine that takes over
     * (ibx_fault_rebuild) needs it for ranges with an alias: it may not fetch these pages again,
     * and neither the page cache (which has incomplete pages) nor the page tables tell it which.
     * Kept by the caller until destroy, in memory that outlives this process; NULL: not wanted. */
    _Atomic uint64_t *arrived;
};

/* Bytes of buffer that each reader of such a config needs (0 when all ranges have an alias). */
size_t ibx_fault_buffer_bytes(const struct ibx_fault_config *config);

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
 * In all states faults and events are read; only in SERVING and COMPLETE are faults answered (in
 * COMPLETE by zero pages: of known-zero and of discarded memory). DRAINING and STOPPED keep what is
 * present; what was in flight is missing again, and its faults go on waiting.
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
/* Stops and joins the workers; faults then wait until the ranges are unregistered or another engine
 * takes over (ibx_fault_rebuild). In COMPLETE it cancels requests only after a second. Accepts
 * NULL.
 */
void ibx_fault_destroy(struct ibx_fault *engine);

/* HELD -> SERVING (or COMPLETE). -EBUSY in another state. */
int ibx_fault_serve(struct ibx_fault *engine);
/* -> DRAINING -> STOPPED, with this reason. Nothing in DRAINING and STOPPED. */
void ibx_fault_stop(struct ibx_fault *engine, int code, const char *reason);
/* STOPPED -> SERVING with other readers, one a worker. -EBUSY in another state. */
int ibx_fault_resume(struct ibx_fault *engine, const struct ibx_fault_reader *readers,
                     struct ibx_error *err);

enum ibx_fault_state ibx_fault_state(const struct ibx_fault *engine);
const char *ibx_fault_state_name(enum ibx_fault_state state);
/* Why it stopped; -EINPROGRESS when it has not. */
int ibx_fault_reason(struct ibx_fault *engine, struct ibx_error *err);
/* An eventfd, readable after COMPLETE or STOPPED was reached; the reader reads it empty. */
int ibx_fault_event_fd(const struct ibx_fault *engine);

/* These pages are zero and shall not be fetched. What is not missing any more is left alone.
 * -ERANGE. */
int ibx_fault_mark_zero(struct ibx_fault *engine, uint64_t first, uint64_t count);
/* For an engine that takes over from one that died: bit k of `present` (byte k / 8, bit k % 8) says
 * that page k is there already: in missing mode from SEEK_DATA for instance, in minor mode from
 * `arrived` of the one that died (word k / 64, bit k % 64) and nothing else. Then wakes all
 * ranges, since the faults that the other one read come again only so. -EBUSY unless HELD or
 * STOPPED. */
int ibx_fault_rebuild(struct ibx_fault *engine, const uint8_t *present, uint64_t pages,
                      struct ibx_error *err);
/* Whether a page is present (or known to be zero, or discarded). */
bool ibx_fault_present(const struct ibx_fault *engine, uint64_t page);
/* Whether pages are fetched that no fault waits for; at once. */
void ibx_fault_set_background(struct ibx_fault *engine, bool on);
/* Bytes a second, 0 for no limit; at once. */
void ibx_fault_set_bandwidth(struct ibx_fault *engine, uint64_t bytes_per_second);

enum ibx_fault_cause {
    IBX_FAULT_BY_FAULT,
    IBX_FAULT_BY_AROUND,
    IBX_FAULT_BY_BACKGROUND,
    IBX_FAULT_BY_ZERO,    /* known to be zero */
    IBX_FAULT_BY_REMOVE,  /* discarded by its owner before it came */
    IBX_FAULT_BY_REBUILD, /* there before */
    IBX_FAULT_CAUSES
};

struct ibx_fault_stats {
    uint64_t pages;                      /* in all ranges */
    uint64_t present;                    /* of them, in any of the ways below */
    uint64_t by_cause[IBX_FAULT_CAUSES]; /* pages */
    uint64_t bytes;                      /* fetched */
    uint64_t faults;                     /* read from the kernel */
    uint64_t waiting;                    /* faults not answered yet */
    uint64_t zero_faults;                /* answered with a zero page */
    uint64_t requests;
    uint64_t retries;       /* short arrivals and those to request again */
    uint64_t reader_stalls; /* the reader was full */
    uint64_t kernel_stalls; /* EAGAIN: an event had to be read first */
    uint64_t cap_stalls;    /* the bandwidth limit held the background back */
    uint64_t existed;       /* EEXIST: the page was there */
    uint64_t removes;       /* events: memory discarded or unmapped */
    uint64_t forks;         /* events: children, which are not served */
    /* From reading the fault to its page being there, in nanoseconds; exact to 1/16. */
    uint64_t latency_count, latency_p50, latency_p99, latency_max, latency_sum;
};
/* A snapshot; the figures are each right, but may be of slightly different moments. */
void ibx_fault_stats(const struct ibx_fault *engine, struct ibx_fault_stats *stats);

/* ------------------------------------------------------------ descriptors */

/*
 * REMOVE: madvise(MADV_DONTNEED, MADV_REMOVE): the pages are zero from then on and never fetched
 *   (a balloon; also for a shared mapping, whose memory MADV_DONTNEED alone would have kept).
 * UNMAP: the pages are gone. REMAP: a range that moves as a whole is followed; moved
 * in part, the engine stops. FORK: the child is not served: it waits at its first missing page
 * until the engine is destroyed, the parent goes on. Needs CAP_SYS_PTRACE.
 */
#define IBX_FAULT_EVENT_FORK   (1ull << 1)
#define IBX_FAULT_EVENT_REMAP  (1ull << 2)
#define IBX_FAULT_EVENT_REMOVE (1ull << 3)
#define IBX_FAULT_EVENT_UNMAP  (1ull << 6)

/* A new, enabled descriptor for this process's own memory; `features` as below. */
int ibx_fault_uffd_open(uint64_t features, int *uffd, struct ibx_error *err);
/* The handshake (UFFDIO_API) on a fresh descriptor: UFFD_FEATURE_... bits of <linux/userfaultfd.h>,
 * of which the events are above. -EOPNOTSUPP names what this kernel lacks. */
int ibx_fault_uffd_enable(int uffd, uint64_t features, struct ibx_error *err);
/* A duplicate of descriptor `fd` of process `pid` (pidfd_getfd), close-on-exec. */
int ibx_fault_uffd_take(pid_t pid, int fd, int *uffd, struct ibx_error *err);
/* Registers a range, for missing pages or, with an alias, for those too that are in the page cache
 * but not mapped. */
int ibx_fault_register(int uffd, const struct ibx_fault_range *range, struct ibx_error *err);
/* Faults that wait there go on, on zero pages: only when every page is present. */
int ibx_fault_unregister(int uffd, const struct ibx_fault_range *range, struct ibx_error *err);

#endif
