/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ib-fault: what serving page faults over a network costs, beside READs over the same connections
 * and beside the fault engine without a network (the floor).
 *
 * One end serves memory as the source of a migration does (page server); the other end fills memory
 * of its own from it as the destination does (page readers, fault engine). There is no VM. In
 * turns, over the same connections:
 *
 *   - single pages are READ without the engine, one after the other;
 *   - a thread touches one missing page after the other, at random, on idle connections;
 *   - READs of 1 MiB are made without the engine, 16 in flight a connection;
 *   - threads touch missing pages at random while the background fills all of the memory;
 *   - both kinds of faults are measured again with a memcpy in place of READs (the floor).
 *
 * Every page that arrived is compared with what was served; a wrong byte ends the program.
 *
 *   args.c        command line          ib-fault.c   main, and self's two processes
 *   serve.c       the source's part     fetch.c      the destination's part: connections, rounds
 *   bare_reads.c  READs alone           measure.c    faults
 *   floor.c       faults without a network           show.c   table and JSON
 *   memory.c      memory that both ends make and check
 */
#ifndef IBX_TOOLS_BENCH_FAULT_FAULT_H
#define IBX_TOOLS_BENCH_FAULT_FAULT_H

#include "migrate/pages/pages.h"

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#define BENCH_SMALL_PAGE  4096u
#define BENCH_HUGE_PAGE   (2u << 20)
#define BENCH_THREADS_MAX 64u
#define BENCH_ROUNDS_MAX  100u
#define BENCH_TIMEOUT_MS  120000
#define BENCH_NICE_NONE   100

/* ------------------------------------------------------------- command line */

enum bench_command { BENCH_SELF, BENCH_FETCH, BENCH_SERVE };

/* Processors; none set: any. */
struct bench_cpus {
    cpu_set_t set;
    bool given;
};

struct bench_args {
    enum bench_command command;
    const char *uri;
    struct ibx_options options;
    /* Options of the serving end, which its JOIN tells the other end. */
    uint64_t size; /* bytes, whole huge pages */
    uint32_t page; /* bytes */
    unsigned links;
    /* Options of the fetching end. */
    unsigned fault_workers;
    unsigned threads;  /* that fault while memory is filled */
    unsigned pause_us; /* of such a thread between two faults */
    unsigned touches;  /* faults and READs of a round on idle connections */
    unsigned rounds;
    double seconds; /* of raw READs a round, for their rate */
    unsigned spin_us;
    bool minor;
    const char *json;
    struct bench_cpus workers, touchers, server;
    int nice; /* of the process, or BENCH_NICE_NONE */
};

/* Fills `args`; ends the process if the line is wrong or asks for help. */
void ibx_bench_args_parse(int argc, char **argv, struct bench_args *args);

/* ------------------------------------------------------------------- memory */

/* Word `at` of a page as served. */
static inline uint64_t bench_word(uint64_t page, uint64_t at)
{
    return (page + 1) * 0x9e3779b97f4a7c15u ^ at;
}
void ibx_bench_pages_fill(void *memory, uint64_t bytes, uint32_t page_size);
/* Whether `page` has the bytes of page `number`. */
bool ibx_bench_page_right(const void *page, uint64_t number, uint32_t page_size);
/* An unnamed file of memory, of huge pages if `page` is one. */
int ibx_bench_memory_file(uint64_t bytes, uint32_t page, int *fd, struct ibx_error *err);
/* -ENOMEM: that much memory is not free. */
int ibx_bench_memory_check(uint64_t bytes, uint32_t page, struct ibx_error *err);

/* Restricts this thread, and those that it starts, to these processors. -EINVAL. */
int ibx_bench_cpus_use(const struct bench_cpus *cpus, struct ibx_error *err);
int ibx_bench_nice_use(const struct bench_args *args, struct ibx_error *err);

/* ------------------------------------------------------------------ the ends */

/* Serves until the other end closes. Exit status. */
int ibx_bench_serve(const struct bench_args *args, const char *uri);
/* Waits for the serving end, measures, and reports. `server`: the child that serves, or 0. Exit
 * status. */
int ibx_bench_fetch(struct bench_args *args, struct ibx_listener *listener, int server);

/* The size, page size and links that a JOIN carries. -EPROTO. */
void ibx_bench_join_make(const struct bench_args *args, struct ibx_migrate_join *join);
int ibx_bench_join_read(const struct ibx_migrate_join *join, struct bench_args *args,
                        struct ibx_error *err);

/* ----------------------------------------------------------------- measuring */

/* The state of a run of the fetching end. */
struct bench {
    const struct bench_args *args;
    unsigned links, bulk_links; /* all; those that do not carry faults only */
    uint64_t pages;
    struct ibx_page_reader *readers[IBX_MIGRATE_LINKS_MAX];
    struct ibx_fault_reader wire[IBX_MIGRATE_LINKS_MAX]; /* armed */
    struct ibx_fault_reader
        floor[IBX_MIGRATE_LINKS_MAX];          /* copies memory of this process instead */
    struct ibx_mr *raw[IBX_MIGRATE_LINKS_MAX]; /* where READs without the engine go */
    uint8_t *local; /* what `floor` copies: the first `local_pages` pages, again and again */
    uint64_t local_pages;
    int fd;
    uint8_t *memory, *alias; /* two mappings of fd: `memory` is registered; alias: --minor */
};

/* The number of the page whose bytes belong in page `page`. */
static inline uint64_t bench_number(const struct bench *b, bool floor, uint64_t page)
{
    return floor ? page % b->local_pages : page;
}

/* In microseconds or GB/s (10^9 bytes a second), in the order of the JSON; show.c has the names. */
enum bench_figure {
    READ_P50, /* of a page, without the engine */
    READ_P99,
    FAULT_P50, /* one thread on idle connections, from touching a page until it has the word */
    FAULT_P99,
    FAULT_ENGINE_P50, /* the same faults, from reading the fault until the page is placed; the */
    FAULT_ENGINE_P99, /* rest is the kernel's: delivering the fault and waking the thread */
    BEYOND_P50,       /* FAULT less READ */
    BEYOND_P99,
    BEYOND_ENGINE_P50,
    BEYOND_ENGINE_P99,
    FLOOR_P50, /* as FAULT, with a memcpy in the place of a READ */
    FLOOR_P99,
    FLOOR_ENGINE_P50,
    FLOOR_ENGINE_P99,
    RAW_ONE,    /* READs of 1 MiB without the engine over one link */
    RAW_ALL,    /* over as many links as the background has */
    BACKGROUND, /* pages that no thread waited for, while threads fault */
    RATIO_ONE,  /* BACKGROUND over RAW_ONE */
    RATIO_ALL,
    FILL, /* all pages in the time until all were there */
    FILL_FLOOR,
    FILL_CPU, /* processor time of this process for that, seconds for 10^9 bytes */
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

/* A quantile of the samples in microseconds; sorts them; 0 if there are none. */
double ibx_bench_quantile_us(uint64_t *ns, size_t count, unsigned permille);

/* READs of single pages, urgent, one after the other; p50 and p99. */
int ibx_bench_wire_latency(struct bench *b, struct bench_round *round, struct ibx_error *err);
/* READs of 1 MiB, 16 in flight a link, one thread a link. GB/s. */
int ibx_bench_wire_rate(struct bench *b, unsigned links, double *gbps, struct ibx_error *err);

/* Makes the page readers of the floor, and frees them. */
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
