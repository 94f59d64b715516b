/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Faults through the engine, over the network and over the floor: one after the other on idle
 * connections, and at random while the engine fills all of the memory. */
#include "tools/bench/fault/fault.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define SAMPLES  (1u << 16) /* of a thread while the memory is filled */
#define SEARCH   4096u      /* pages to search for a missing one */
#define SLACK_NS 1000ul     /* how late a pause may end */

/* An engine, with memory of which every page is missing at first. */
struct trial {
    struct bench *bench;
    struct ibx_fault_range range;
    struct ibx_fault_config config;
    struct ibx_fault *engine;
    bool floor;
    bool filling; /* the background fetches all pages; otherwise only faults do */
};

struct fault_thread {
    pthread_t thread;
    const struct trial *trial;
    uint64_t seed;
    uint64_t *took; /* ns */
    size_t count, room;
    struct ibx_error err;
};

/* ------------------------------------------------------------------- a trial */

/* Makes all pages missing again, in both mappings. */
static int empty_memory(const struct bench *b, struct ibx_error *err)
{
    const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    if (!fallocate(b->fd, mode, 0, (off_t)b->args->size))
        return 0;
    return ibx_error_set(err, -errno, "the memory cannot be emptied: %s", strerror(errno));
}

static int trial_open(struct trial *s, struct bench *b, bool floor, bool filling,
                      struct ibx_error *err)
{
    *s = (struct trial){.bench = b, .floor = floor, .filling = filling};
    s->range = (struct ibx_fault_range){.start = (uintptr_t)b->memory,
                                        .length = b->args->size,
                                        .page_size = b->args->page,
                                        .alias = b->alias};
    s->config = (struct ibx_fault_config){
        .uffd = -1,
        .events = true, /* as ib-migrate must */
        .ranges = &s->range,
        .range_count = 1,
        .readers = floor ? b->floor : b->wire,
        .worker_count = b->links,
        .spin_us = b->args->spin_us,
        .no_background = !filling,
        .fault_workers = b->args->fault_workers,
        .fault_around = filling ? 0 : 1,
    };
    int rc = empty_memory(b, err);
    if (!rc)
        rc = ibx_fault_uffd_open(IBX_FAULT_EVENT_REMOVE, &s->config.uffd, err);
    if (!rc)
        rc = ibx_fault_register(s->config.uffd, &s->range, err);
    if (!rc)
        rc = ibx_bench_cpus_use(&b->args->workers, err); /* the workers inherit this */
    if (!rc)
        rc = ibx_fault_create(&s->config, &s->engine, err);
    return rc;
}

static void trial_close(struct trial *s)
{
    ibx_fault_destroy(s->engine);
    if (s->config.uffd < 0)
        return;
    ibx_fault_unregister(s->config.uffd, &s->range, NULL);
    close(s->config.uffd);
}

static int engine_reason(struct ibx_fault *engine, struct ibx_error *err)
{
    return ibx_error_prefix(err, ibx_fault_reason(engine, err), "the fault engine");
}

static bool stopped(const struct ibx_fault *engine)
{
    enum ibx_fault_state state = ibx_fault_state(engine);
    return state != IBX_FAULT_SERVING && state != IBX_FAULT_COMPLETE;
}

/* ------------------------------------------------------------------- threads */

static const uint8_t *page_at(const struct bench *b, uint64_t page)
{
    return b->memory + page * b->args->page;
}

/* Touches a page and checks its first word; verify() checks the rest, outside of the measurement.
 * If the engine stops, the thread is woken without its page, and the engine's reason is the error.
 */
static int touch(struct fault_thread *t, uint64_t page)
{
    const struct trial *s = t->trial;
    const volatile uint64_t *word =
        (const volatile uint64_t *)(const void *)page_at(s->bench, page);
    uint64_t began = ibx_now_ns(), found = *word, took = ibx_now_ns() - began;
    if (t->count < t->room)
        t->took[t->count++] = took;
    if (found == bench_word(bench_number(s->bench, s->floor, page), 0))
        return 0;
    if (stopped(s->engine))
        return -ECANCELED;
    return ibx_error_set(&t->err, -EBADMSG, "page %llu is wrong after a fault",
                         (unsigned long long)page);
}

/* Finds a missing page at or after a random one; false: there is none near. */
static bool find_missing(struct fault_thread *t, uint64_t *page)
{
    const struct bench *b = t->trial->bench;
    t->seed ^= t->seed << 13; /* xorshift64 */
    t->seed ^= t->seed >> 7;
    t->seed ^= t->seed << 17;
    for (uint64_t i = 0; i < SEARCH && i < b->pages; i++) {
        *page = (t->seed + i) % b->pages;
        if (!ibx_fault_present(t->trial->engine, *page))
            return true;
    }
    return false;
}

static void *thread_main(void *argument)
{
    struct fault_thread *t = argument;
    const struct trial *s = t->trial;
    const uint64_t ns = s->bench->args->pause_us * IBX_NS_PER_US;
    const struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000u),
                                   .tv_nsec = (long)(ns % 1000000000u)};
    uint64_t page;
    prctl(PR_SET_TIMERSLACK, SLACK_NS);
    if (ibx_bench_cpus_use(&s->bench->args->touchers, &t->err))
        return NULL;
    while (ibx_fault_state(s->engine) == IBX_FAULT_SERVING) {
        bool missing = find_missing(t, &page);
        if (missing && touch(t, page))
            break;
        if (!s->filling && (!missing || t->count == t->room))
            break;
        if (s->filling && ns)
            clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
    }
    return NULL;
}

static int start_threads(const struct trial *s, struct fault_thread *threads, unsigned count,
                         size_t room, unsigned *started, struct ibx_error *err)
{
    for (unsigned i = 0; i < count; i++) {
        threads[i] = (struct fault_thread){
            .trial = s, .seed = 0x2545f4914f6cdd1du * (i + 1) ^ ibx_now_ns(), .room = room};
        threads[i].took = calloc(room, sizeof(uint64_t));
        int rc = threads[i].took
                     ? -pthread_create(&threads[i].thread, NULL, thread_main, &threads[i])
                     : -ENOMEM;
        if (rc)
            return ibx_error_set_task(err, rc, "no thread that faults");
        ++*started;
    }
    return 0;
}

/* Joins the threads. If the engine has stopped, they would never return from their faults, so the
 * memory is unregistered, which wakes them. */
static void join_threads(struct trial *s, struct fault_thread *threads, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct timespec until;
        do {
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += 50 * 1000000;
            until.tv_sec += until.tv_nsec / 1000000000;
            until.tv_nsec %= 1000000000;
            if (stopped(s->engine))
                ibx_fault_unregister(s->config.uffd, &s->range, NULL);
        } while (pthread_timedjoin_np(threads[i].thread, NULL, &until) == ETIMEDOUT);
    }
}

/* The samples of all threads in one array, to be freed by free(). */
static uint64_t *join_samples(const struct fault_thread *threads, unsigned count, size_t *total)
{
    *total = 0;
    for (unsigned i = 0; i < count; i++)
        *total += threads[i].count;
    uint64_t *all = calloc(*total + 1, sizeof(*all)), *at = all;
    for (unsigned i = 0; all && i < count; at += threads[i++].count)
        memcpy(at, threads[i].took, threads[i].count * sizeof(*all));
    return all;
}

/* ----------------------------------------------------------------- one trial */

struct result {
    double latency[4]; /* us: p50, p99, and the engine's p50 and p99, as in enum bench_figure */
    double fill, background; /* GB/s */
    double cpu;              /* s for a GB */
    double faults;           /* a second */
};

static uint64_t cpu_ns(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Compares all bytes of every page that arrived. */
static int verify(const struct trial *s, struct ibx_error *err)
{
    const struct bench *b = s->bench;
    for (uint64_t page = 0; page < b->pages; page++)
        if (ibx_fault_present(s->engine, page) &&
            !ibx_bench_page_right(page_at(b, page), bench_number(b, s->floor, page), b->args->page))
            return ibx_error_set(err, -EBADMSG, "page %llu arrived with wrong bytes",
                                 (unsigned long long)page);
    return 0;
}

static void evaluate(const struct trial *s, const struct fault_thread *threads, unsigned count,
                     uint64_t took, uint64_t cpu, struct result *result)
{
    struct ibx_fault_stats stats;
    size_t total;
    uint64_t *samples = join_samples(threads, count, &total);
    ibx_fault_stats(s->engine, &stats);
    const double page = s->bench->args->page, ns = (double)took, bytes = (double)stats.bytes;
    *result = (struct result){
        .latency = {samples ? ibx_bench_quantile_us(samples, total, 500) : 0,
                    samples ? ibx_bench_quantile_us(samples, total, 990) : 0,
                    (double)stats.latency_p50 / 1e3, (double)stats.latency_p99 / 1e3},
        .fill = bytes / ns,
        .background = (bytes - (double)stats.by_cause[IBX_FAULT_BY_FAULT] * page) / ns,
        .cpu = bytes > 0 ? (double)cpu / bytes : 0,
        .faults = (double)stats.faults * 1e9 / ns,
    };
    free(samples);
}

static int trial_run(struct trial *s, struct fault_thread *threads, unsigned count, size_t room,
                     struct result *result, struct ibx_error *err)
{
    struct pollfd end = {.fd = ibx_fault_event_fd(s->engine), .events = POLLIN};
    unsigned started = 0;
    uint64_t began = ibx_now_ns(), cpu = cpu_ns();
    int rc = ibx_fault_serve(s->engine);
    if (rc)
        return ibx_error_set(err, rc, "the fault engine does not serve: %s", strerror(-rc));
    rc = start_threads(s, threads, count, room, &started, err);
    while (!rc && s->filling && ibx_fault_state(s->engine) == IBX_FAULT_SERVING)
        poll(&end, 1, -1);
    uint64_t took = ibx_now_ns() - began;
    cpu = cpu_ns() - cpu;
    if (rc) /* so that running threads do not wait for pages */
        ibx_fault_stop(s->engine, rc, "the measurement failed");
    join_threads(s, threads, started);
    for (unsigned i = 0; !rc && i < started; i++)
        if (threads[i].err.code)
            rc = ibx_error_set(err, threads[i].err.code, "%s", threads[i].err.message);
    if (!rc && stopped(s->engine))
        rc = engine_reason(s->engine, err);
    if (!rc)
        rc = verify(s, err);
    if (!rc)
        evaluate(s, threads, started, took, cpu, result);
    return rc;
}

static int measure_trial(struct bench *b, bool floor, bool filling, struct result *result,
                         struct ibx_error *err)
{
    struct fault_thread threads[BENCH_THREADS_MAX] = {0};
    unsigned count = filling ? b->args->threads : 1;
    struct trial trial;
    int rc = trial_open(&trial, b, floor, filling, err);
    if (!rc)
        rc = trial_run(&trial, threads, count, filling ? SAMPLES : b->args->touches, result, err);
    trial_close(&trial);
    for (unsigned i = 0; i < count; i++)
        free(threads[i].took);
    return rc;
}

/* ------------------------------------------------------------------- a round */

static void record(double *is, const struct result idle[2], const struct result filling[2])
{
    for (unsigned i = 0; i < 4; i++) {
        is[FAULT_P50 + i] = idle[0].latency[i];
        is[FLOOR_P50 + i] = idle[1].latency[i];
        is[BUSY_P50 + i] = filling[0].latency[i];
        is[BEYOND_P50 + i] = is[FAULT_P50 + i] - is[READ_P50 + i % 2];
    }
    is[FILL] = filling[0].fill;
    is[FILL_FLOOR] = filling[1].fill;
    is[FILL_CPU] = filling[0].cpu;
    is[FILL_FLOOR_CPU] = filling[1].cpu;
    is[BACKGROUND] = filling[0].background;
    is[RATIO_ONE] = is[RAW_ONE] > 0 ? is[BACKGROUND] / is[RAW_ONE] : 0;
    is[RATIO_ALL] = is[RAW_ALL] > 0 ? is[BACKGROUND] / is[RAW_ALL] : 0;
    is[BUSY_FAULTS] = filling[0].faults;
}

/* Figures that are compared with each other are measured back to back, in reverse order in every
 * other round. */
int ibx_bench_measure(struct bench *b, unsigned number, struct bench_round *round,
                      struct ibx_error *err)
{
    struct result idle[2], filling[2]; /* [0]: over the wire; [1]: the floor */
    bool first = number % 2;
    memset(round, 0, sizeof(*round));
    int rc = ibx_bench_wire_latency(b, round, err);
    for (unsigned i = 0; !rc && i < 2; i++)
        rc = measure_trial(b, first ^ i, false, &idle[first ^ i], err);
    if (!rc)
        rc = ibx_bench_wire_rate(b, 1, &round->is[RAW_ONE], err);
    if (!rc)
        rc = ibx_bench_wire_rate(b, b->bulk_links, &round->is[RAW_ALL], err);
    for (unsigned i = 0; !rc && i < 2; i++)
        rc = measure_trial(b, first ^ i, true, &filling[first ^ i], err);
    if (!rc)
        record(round->is, idle, filling);
    return rc;
}
