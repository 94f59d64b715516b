/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ib-fault: what serving page faults over a wire costs, beside that wire alone and beside the fault
 * engine alone. Private to the files tools/ib-fault*.
 *
 * One end lends memory exactly as the source of a VM does (page exports), the other fills memory of
 * its own from it exactly as the destination does (page readers, the fault engine), without a VM.
 */
#ifndef IBX_TOOLS_BENCH_IB_FAULT_H
#define IBX_TOOLS_BENCH_IB_FAULT_H

#include "migrate/pages/pages.h"

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#define BENCH_SMALL_PAGE  4096u
#define BENCH_HUGE_PAGE   (2u << 20)
#define BENCH_THREADS_MAX 64u
#define BENCH_ROUNDS_MAX  100u
#define BENCH_PATIENCE_MS 120000

/* ------------------------------------------------------------- command line */

enum bench_command { BENCH_SELF, BENCH_FETCH, BENCH_LEND };

/* Processors; none set: any. */
struct bench_cpus {
    cpu_set_t set;
    bool given;
};

struct bench_args {
    enum bench_command command;
    const char *uri;
    struct ibx_options options;
    /* The lender's, which the fetching end is told. */
    uint64_t size; /* bytes, whole huge pages */
    uint32_t page; /* bytes */
    unsigned links;
    /* The fetching end's. */
    unsigned fault_workers;
    unsigned threads;  /* that fault while memory is filled */
    unsigned pause_us; /* of such a thread between two faults */
    unsigned touches;  /* faults and READs of a round with nothing else going on */
    unsigned rounds;
    double seconds; /* of raw READs a round, for their rate */
    unsigned spin_us;
    bool minor;
    const char *json;
    struct bench_cpus workers, touchers, lender;
    int nice;
    bool nice_given;
};

/* Fills `args`; ends the process where the line is wrong or asks for help. */
void ibx_bench_args_parse(int argc, char **argv, struct bench_args *args);

/* ------------------------------------------------------------------- memory */

/* Word `at` of a page, which is what the lender writes there. */
static inline uint64_t bench_word(uint64_t page, uint64_t at)
{
    return (page + 1) * 0x9e3779b97f4a7c15u ^ at;
}
void ibx_bench_pages_fill(void *memory, uint64_t bytes, uint32_t page_size);
/* Whether a page is as written; `number` is the one it was written as. */
bool ibx_bench_page_right(const void *page, uint64_t number, uint32_t page_size);
/* An unnamed file of memory, of huge pages if `page` is one. */
int ibx_bench_memory_file(uint64_t bytes, uint32_t page, int *fd, struct ibx_error *err);
/* -ENOMEM when so much memory is not free. */
int ibx_bench_memory_check(uint64_t bytes, uint32_t page, struct ibx_error *err);

/* Lets this thread, and those it starts, run there only. */
int ibx_bench_cpus_use(const struct bench_cpus *cpus, struct ibx_error *err);
int ibx_bench_nice_use(const struct bench_args *args, struct ibx_error *err);

/* ------------------------------------------------------------------ the ends */

/* Lends until the other end closes. Exit status. */
int ibx_bench_lend(const struct bench_args *args, const char *uri);
/* Waits for who lends, measures, and reports. `lender`: a child that lends, or 0. Exit status. */
int ibx_bench_fetch(struct bench_args *args, struct ibx_listener *listener, int lender);

/* The size, page size and links that a lender's JOIN tells of. */
void ibx_bench_join_make(const struct bench_args *args, struct ibx_migrate_join *join);
int ibx_bench_join_read(const struct ibx_migrate_join *join, struct bench_args *args,
                        struct ibx_error *err);

/* ----------------------------------------------------------------- measuring */

/* Everything that a run of the fetching end holds. */
struct bench {
    const struct bench_args *args;
    unsigned links, bulk_links; /* of them, not for faults alone */
    uint64_t pages;
    struct ibx_page_reader *sources[IBX_MIGRATE_LINKS_MAX];
    struct ibx_fault_reader wire[IBX_MIGRATE_LINKS_MAX]; /* armed */
    struct ibx_fault_reader
        floor[IBX_MIGRATE_LINKS_MAX];          /* copies memory of this process instead */
    struct ibx_mr *raw[IBX_MIGRATE_LINKS_MAX]; /* where READs without the engine go */
    uint8_t *lent; /* what `floor` copies: the first `lent_pages` pages, again and again */
    uint64_t lent_pages;
    int fd;
    uint8_t *memory, *alias; /* two mappings of fd: `memory` is registered; alias: --minor */
};

/* The page of the lender's that belongs in page `page`. */
static inline uint64_t bench_number(const struct bench *b, bool floor, uint64_t page)
{
    return floor ? page % b->lent_pages : page;
}

/* In the order of the report. us and GB/s (10^9). */
enum bench_figure {
    READ_P50,
    READ_P99,
    FAULT_P50, /* one thread, nothing else: as it sees it */
    FAULT_P99,
    FAULT_ENGINE_P50, /* ... and the engine: from its reading the fault on */
    FAULT_ENGINE_P99,
    BEYOND_P50, /* fault less READ */
    BEYOND_P99,
    BEYOND_ENGINE_P50,
    BEYOND_ENGINE_P99,
    FLOOR_P50, /* the same with a memcpy in the place of the wire */
    FLOOR_P99,
    FLOOR_ENGINE_P50,
    FLOOR_ENGINE_P99,
    RAW_ONE,    /* READs without the engine over one link */
    RAW_ALL,    /* ... over as many as the background has */
    BACKGROUND, /* pages that nobody waited for while threads fault */
    RATIO_ONE,  /* of RAW_ONE, which is `ib-bw --raw`'s */
    RATIO_ALL,
    FILL, /* all pages */
    FILL_FLOOR,
    FILL_CPU, /* processor time of this end for that, seconds for 10^9 bytes */
    FILL_FLOOR_CPU,
    BUSY_P50, /* faults meanwhile */
    BUSY_P99,
    BUSY_ENGINE_P50,
    BUSY_ENGINE_P99,
    BUSY_FAULTS, /* a second */
    BENCH_FIGURES
};

struct bench_round {
    double is[BENCH_FIGURES];
};

/* Quantile of unsorted samples, which get sorted; 0 without any. us */
double ibx_bench_quantile_us(uint64_t *ns, size_t count, unsigned permille);

/* READs of single pages, urgent, one after the other; p50 and p99. */
int ibx_bench_wire_latency(struct bench *b, struct bench_round *round, struct ibx_error *err);
/* READs of 1 MiB, 16 in flight a link, one thread a link. GB/s. */
int ibx_bench_wire_rate(struct bench *b, unsigned links, double *gbps, struct ibx_error *err);

/* Makes the sources of the floor, and frees them. */
int ibx_bench_floor_make(struct bench *b, struct ibx_error *err);
void ibx_bench_floor_free(struct bench *b);

/* All figures once. */
int ibx_bench_measure(struct bench *b, unsigned number, struct bench_round *round,
                      struct ibx_error *err);

/* ------------------------------------------------------------------- reports */

void ibx_bench_table_print(const struct bench *b, const struct bench_round *rounds, unsigned count);
/* "-": standard output. */
int ibx_bench_json_write(const struct bench *b, const struct bench_round *rounds, unsigned count,
                         const char *file, struct ibx_error *err);

#endif
