/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Faults through the engine: one after the other with nothing else going on, and while it fills all
 * of the memory. Over the wire, and over the floor. */
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
#define LOOK     4096u      /* pages looked at from a place on for one that is missing */
#define SLACK_NS 1000ul     /* how late a pause may end */

/* The engine with memory of which every page is missing. */
struct scene {
    struct bench *bench;
    struct ibx_fault_range range;
    struct ibx_fault_config config;
    struct ibx_fault *engine;
    bool floor, filling;
};

struct toucher {
    pthread_t thread;
    const struct scene *scene;
    uint64_t seed;
    uint64_t *took; /* ns */
    size_t count, room;
    struct ibx_error err;
};

/* ------------------------------------------------------------------- a scene */

/* All pages are missing again, in both mappings. */
static int memory_empty(const struct bench *b, struct ibx_error *err)
{
    const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    if (!fallocate(b->fd, mode, 0, (off_t)b->args->size))
        return 0;
    return ibx_error_set(err, -errno, "the memory cannot be emptied: %s", strerror(errno));
}

static int scene_open(struct scene *s, struct bench *b, bool floor, bool filling,
                      struct ibx_error *err)
{
    *s = (struct scene){.bench = b, .floor = floor, .filling = filling};
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
    int rc = memory_empty(b, err);
    if (!rc)
        rc = ibx_fault_uffd_open(IBX_FAULT_EVENT_REMOVE, &s->config.uffd, err);
    if (!rc)
        rc = ibx_fault_register(s->config.uffd, &s->range, err);
    if (!rc)
        rc = ibx_bench_cpus_use(&b->args->workers, err); /* which they inherit */
    if (!rc)
        rc = ibx_fault_create(&s->config, &s->engine, err);
    return rc;
}

static void scene_close(struct scene *s)
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

/* ------------------------------------------------------------------ touching */

static const uint8_t *page_at(const struct bench *b, uint64_t page)
{
    return b->memory + page * b->args->page;
}

/* 0 when its first word is as it should be: the whole page is looked at when time does not count.
 */
static int touch(struct toucher *t, uint64_t page)
{
    const struct scene *s = t->scene;
    const volatile uint64_t *word =
        (const volatile uint64_t *)(const void *)page_at(s->bench, page);
    uint64_t began = ibx_now_ns(), found = *word, took = ibx_now_ns() - began;
    if (t->count < t->room)
        t->took[t->count++] = took;
    if (found == bench_word(bench_number(s->bench, s->floor, page), 0))
        return 0;
    return ibx_error_set(&t->err, -EBADMSG, "page %llu is wrong after a fault",
                         (unsigned long long)page);
}

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* A page that is not there, by chance; or there was none near. */
static bool missing_page(struct toucher *t, uint64_t *page)
{
    const struct bench *b = t->scene->bench;
    uint64_t from = random_next(&t->seed) % b->pages;
    for (uint64_t i = 0; i < LOOK && i < b->pages; i++) {
        *page = (from + i) % b->pages;
        if (!ibx_fault_present(t->scene->engine, *page))
            return true;
    }
    return false;
}

static void toucher_pause(const struct toucher *t)
{
    uint64_t ns = t->scene->bench->args->pause_us * IBX_NS_PER_US;
    struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
    if (ns)
        clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
}

static void *toucher_main(void *argument)
{
    struct toucher *t = argument;
    const struct scene *s = t->scene;
    uint64_t page;
    prctl(PR_SET_TIMERSLACK, SLACK_NS);
    if (ibx_bench_cpus_use(&s->bench->args->touchers, &t->err))
        return NULL;
    while (!stopped(s->engine) && ibx_fault_state(s->engine) != IBX_FAULT_COMPLETE) {
        bool missing = missing_page(t, &page);
        if (missing && touch(t, page))
            break;
        if (s->filling)
            toucher_pause(t);
        else if (!missing || t->count == t->room)
            break;
    }
    return NULL;
}

/* An engine that stops leaves threads waiting in their faults for ever: they are let go first. */
static void touchers_join(struct scene *s, struct toucher *touchers, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct timespec now;
        do {
            clock_gettime(CLOCK_REALTIME, &now);
            now.tv_nsec += 50 * 1000000;
            now.tv_sec += now.tv_nsec / 1000000000;
            now.tv_nsec %= 1000000000;
            if (stopped(s->engine))
                ibx_fault_unregister(s->config.uffd, &s->range, NULL);
        } while (pthread_timedjoin_np(touchers[i].thread, NULL, &now) == ETIMEDOUT);
    }
}

static int touchers_start(const struct scene *s, struct toucher *touchers, unsigned count,
                          size_t room, unsigned *started, struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < count; i++) {
        touchers[i] = (struct toucher){
            .scene = s, .seed = 0x2545f4914f6cdd1du * (i + 1) ^ ibx_now_ns(), .room = room};
        touchers[i].took = calloc(room, sizeof(uint64_t));
        rc = touchers[i].took
                 ? -pthread_create(&touchers[i].thread, NULL, toucher_main, &touchers[i])
                 : -ENOMEM;
        if (rc)
            return ibx_error_set(err, rc, "no thread that faults: %s", strerror(-rc));
        ++*started;
    }
    return 0;
}

/* Their samples in one, to be freed. */
static uint64_t *samples_join(const struct toucher *touchers, unsigned count, size_t *total)
{
    *total = 0;
    for (unsigned i = 0; i < count; i++)
        *total += touchers[i].count;
    uint64_t *all = calloc(*total + 1, sizeof(*all)), *at = all;
    for (unsigned i = 0; all && i < count; at += touchers[i++].count)
        memcpy(at, touchers[i].took, touchers[i].count * sizeof(*all));
    return all;
}

/* ----------------------------------------------------------------- one scene */

static int await_complete(struct scene *s, struct ibx_error *err)
{
    struct pollfd wait = {.fd = ibx_fault_event_fd(s->engine), .events = POLLIN};
    while (ibx_fault_state(s->engine) == IBX_FAULT_SERVING)
        poll(&wait, 1, -1);
    return stopped(s->engine) ? engine_reason(s->engine, err) : 0;
}

/* Every page that should be there, all of it. */
static int verify(const struct scene *s, struct ibx_error *err)
{
    const struct bench *b = s->bench;
    for (uint64_t page = 0; page < b->pages; page++)
        if (ibx_fault_present(s->engine, page) &&
            !ibx_bench_page_right(page_at(b, page), bench_number(b, s->floor, page), b->args->page))
            return ibx_error_set(err, -EBADMSG, "page %llu arrived with wrong bytes",
                                 (unsigned long long)page);
    return 0;
}

/* What one scene has shown. */
struct shown {
    double p50, p99, engine_p50, engine_p99; /* us */
    double fill, background;                 /* GB/s */
    double cpu;                              /* s for a GB */
    double faults;                           /* a second */
};

static uint64_t cpu_ns(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void show(const struct scene *s, const struct toucher *touchers, unsigned count,
                 uint64_t took, uint64_t cpu, struct shown *shown)
{
    struct ibx_fault_stats stats;
    size_t total;
    uint64_t *samples = samples_join(touchers, count, &total);
    ibx_fault_stats(s->engine, &stats);
    const double page = s->bench->args->page, ns = (double)took;
    uint64_t alone = stats.by_cause[IBX_FAULT_BY_FAULT];
    *shown = (struct shown){
        .p50 = samples ? ibx_bench_quantile_us(samples, total, 500) : 0,
        .p99 = samples ? ibx_bench_quantile_us(samples, total, 990) : 0,
        .engine_p50 = (double)stats.latency_p50 / 1e3,
        .engine_p99 = (double)stats.latency_p99 / 1e3,
        .fill = (double)stats.bytes / ns,
        .background = ((double)stats.bytes - (double)alone * page) / ns,
        .cpu = stats.bytes ? (double)cpu / (double)stats.bytes : 0,
        .faults = (double)stats.faults * 1e9 / ns,
    };
    free(samples);
}

static int scene_run(struct scene *s, struct toucher *touchers, unsigned count, size_t room,
                     struct shown *shown, struct ibx_error *err)
{
    unsigned started = 0;
    uint64_t began = ibx_now_ns(), cpu = cpu_ns();
    int rc = ibx_fault_serve(s->engine);
    if (rc)
        return ibx_error_set(err, rc, "the fault engine does not serve: %s", strerror(-rc));
    rc = touchers_start(s, touchers, count, room, &started, err);
    if (!rc && s->filling)
        rc = await_complete(s, err);
    uint64_t took = ibx_now_ns() - began;
    cpu = cpu_ns() - cpu;
    if (rc) /* those that were started must not wait for pages */
        ibx_fault_stop(s->engine, rc, "the measurement failed");
    touchers_join(s, touchers, started);
    for (unsigned i = 0; !rc && i < started; i++)
        if (touchers[i].err.code)
            rc = ibx_error_set(err, touchers[i].err.code, "%s", touchers[i].err.message);
    if (!rc && stopped(s->engine))
        rc = engine_reason(s->engine, err);
    if (!rc)
        rc = verify(s, err);
    if (!rc)
        show(s, touchers, started, took, cpu, shown);
    return rc;
}

static int scene_measure(struct bench *b, bool floor, bool filling, struct shown *shown,
                         struct ibx_error *err)
{
    struct toucher touchers[BENCH_THREADS_MAX] = {0};
    unsigned count = filling ? b->args->threads : 1;
    struct scene scene;
    int rc = scene_open(&scene, b, floor, filling, err);
    if (!rc)
        rc = scene_run(&scene, touchers, count, filling ? SAMPLES : b->args->touches, shown, err);
    scene_close(&scene);
    for (unsigned i = 0; i < count; i++)
        free(touchers[i].took);
    return rc;
}

/* ------------------------------------------------------------------- a round */

static void note_alone(struct bench_round *round, bool floor, const struct shown *shown)
{
    double *is = round->is;
    is[floor ? FLOOR_P50 : FAULT_P50] = shown->p50;
    is[floor ? FLOOR_P99 : FAULT_P99] = shown->p99;
    is[floor ? FLOOR_ENGINE_P50 : FAULT_ENGINE_P50] = shown->engine_p50;
    is[floor ? FLOOR_ENGINE_P99 : FAULT_ENGINE_P99] = shown->engine_p99;
    if (floor)
        return;
    is[BEYOND_P50] = shown->p50 - is[READ_P50];
    is[BEYOND_P99] = shown->p99 - is[READ_P99];
    is[BEYOND_ENGINE_P50] = shown->engine_p50 - is[READ_P50];
    is[BEYOND_ENGINE_P99] = shown->engine_p99 - is[READ_P99];
}

static void note_filling(struct bench_round *round, bool floor, const struct shown *shown)
{
    double *is = round->is;
    is[floor ? FILL_FLOOR : FILL] = shown->fill;
    is[floor ? FILL_FLOOR_CPU : FILL_CPU] = shown->cpu;
    if (floor)
        return;
    is[BACKGROUND] = shown->background;
    is[RATIO_ONE] = is[RAW_ONE] > 0 ? shown->background / is[RAW_ONE] : 0;
    is[RATIO_ALL] = is[RAW_ALL] > 0 ? shown->background / is[RAW_ALL] : 0;
    is[BUSY_P50] = shown->p50;
    is[BUSY_P99] = shown->p99;
    is[BUSY_ENGINE_P50] = shown->engine_p50;
    is[BUSY_ENGINE_P99] = shown->engine_p99;
    is[BUSY_FAULTS] = shown->faults;
}

/* What is compared lies side by side; every other round in the reverse order. */
int ibx_bench_measure(struct bench *b, unsigned number, struct bench_round *round,
                      struct ibx_error *err)
{
    struct shown alone[2], filling[2];
    bool first = number % 2;
    memset(round, 0, sizeof(*round));
    int rc = ibx_bench_wire_latency(b, round, err);
    for (unsigned i = 0; !rc && i < 2; i++)
        rc = scene_measure(b, first ^ i, false, &alone[first ^ i], err);
    if (!rc)
        rc = ibx_bench_wire_rate(b, 1, &round->is[RAW_ONE], err);
    if (!rc)
        rc = ibx_bench_wire_rate(b, b->bulk_links, &round->is[RAW_ALL], err);
    for (unsigned i = 0; !rc && i < 2; i++)
        rc = scene_measure(b, first ^ i, true, &filling[first ^ i], err);
    for (unsigned i = 0; !rc && i < 2; i++) {
        note_alone(round, i, &alone[i]);
        note_filling(round, i, &filling[i]);
    }
    return rc;
}
