/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The fault engine beside the wire that it fetches pages over, in one process's memory and without
 * a VM; tests/vm/faults runs it over real verbs.
 *
 *   fault_bench URI MIB alone|filling
 *
 * A forked process exports so many MiB, this one READs single pages for a while, urgently, and then
 * touches memory that is not there: `alone`, one page after the other and nothing else; `filling`,
 * at random from two threads while the background transfer brings all of it. Every byte is checked.
 * Prints the latency of READs and of faults (which begins when the fault was read), us.
 */
#include "common/clock.h"
#include "migrate/pages.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE        4096u
#define READS       2000u
#define READS_WARM  200u
#define TOUCHES     2000u /* of each toucher */
#define TOUCHERS    2u
#define PATIENCE_MS 120000
#define SPIN_US     50       /* as in ib-migrate */
#define STRIDE      1000003u /* a prime: every page is visited */

struct bench {
    const char *uri;
    uint64_t pages;
    bool filling;
    struct ibx_options options;
    struct ibx_move_block block;
};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "fault_bench: %s: %s\n", what, why);
    exit(1);
}

static uint64_t word_of(uint64_t page, unsigned at)
{
    return (page + 1) * 0x9e3779b97f4a7c15u ^ at;
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* --------------------------------------------------------------------- source */

static int make_memory(const struct bench *b)
{
    int fd = memfd_create("fault-bench", MFD_CLOEXEC);
    uint64_t *words = MAP_FAILED;
    if (fd >= 0 && !ftruncate(fd, (off_t)b->block.size))
        words = mmap(NULL, b->block.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (words == MAP_FAILED)
        fail("memory", strerror(errno));
    for (uint64_t page = 0; page < b->pages; page++)
        for (unsigned i = 0; i < PAGE / 8; i++)
            words[page * PAGE / 8 + i] = word_of(page, i);
    munmap(words, b->block.size);
    return fd;
}

static void expose(const struct bench *b, struct ibx_page_export *pages)
{
    struct ibx_page_map map;
    struct ibx_error err = {0};
    uint32_t regions;
    struct pollfd wait = {.fd = ibx_page_export_fd(pages), .events = POLLIN};
    uint64_t *bits = malloc((size_t)(b->pages + 63) / 64 * 8);
    if (!bits || ibx_page_map_init(&map, &b->block, 1, &err))
        fail("map", err.message);
    memset(bits, 0xff, (size_t)(b->pages + 63) / 64 * 8);
    ibx_page_map_put_block(&map, 0, bits);
    free(bits);
    if (ibx_page_export_expose(pages, &map, &err))
        fail("expose", err.message);
    while (ibx_page_export_done(pages, &regions, &err) == -EAGAIN)
        poll(&wait, 1, 100);
    ibx_page_map_fini(&map);
}

/* Until the other side has all it wants; its CPU time after that is said. */
static void be_source(const struct bench *b)
{
    struct ibx_guest_block block = {.size = b->block.size, .page_size = PAGE, .shared = true};
    struct ibx_guest_ram ram = {.blocks = &block, .count = 1};
    struct ibx_page_export_config config = {.ram = &ram,
                                            .uri = b->uri,
                                            .options = &b->options,
                                            .join = {.id = {1}, .epoch = 1},
                                            .links = 1};
    struct ibx_page_export *pages;
    struct ibx_error err = {0};
    memcpy(block.id, b->block.id, sizeof(b->block.id));
    block.fd = make_memory(b);
    if (ibx_page_export_open(&config, &pages, &err))
        fail("export", err.message);
    expose(b, pages);
    uint64_t cpu = cpu_ns(), began = ibx_now_ns();
    struct pollfd wait = {.fd = ibx_page_export_fd(pages), .events = POLLIN};
    while (!ibx_page_export_failed(pages, NULL))
        poll(&wait, 1, -1);
    cpu = cpu_ns() - cpu;
    printf("source: %.1f ms of CPU time, %.2f %% of the time\n", (double)cpu / 1e6,
           100 * (double)cpu / (double)(ibx_now_ns() - began));
    fflush(stdout);
    ibx_page_export_close(pages);
}

/* ---------------------------------------------------------------- destination */

static struct ibx_page_source *accept_source(struct ibx_listener *listener, const struct bench *b)
{
    struct ibx_conn *conn = NULL;
    struct ibx_page_source *source;
    struct ibx_error err = {0};
    struct ibx_event event;
    struct pollfd wait = {.fd = ibx_listener_fd(listener), .events = POLLIN};
    if (poll(&wait, 1, PATIENCE_MS) != 1 || ibx_accept(listener, &conn, &err) ||
        ibx_establish(conn, &err))
        fail("accept", err.message);
    while (!ibx_poll(conn, &event, 1))
        ibx_wait(conn, PATIENCE_MS);
    if (event.type != IBX_EVENT_MESSAGE)
        fail("JOIN", ibx_conn_reason(conn));
    ibx_message_release(conn, &event);
    if (ibx_page_source_create(conn, &b->block, 1, &source, &err))
        fail("source", err.message);
    return source;
}

static void await_regions(struct ibx_page_source *source, const struct bench *b)
{
    struct ibx_error err = {0};
    uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    bool whole = ibx_conn_caps(ibx_page_source_conn(source))->register_free;
    uint64_t wanted = whole ? 1 : (b->block.size + IBX_EXPORT_STRETCH - 1) / IBX_EXPORT_STRETCH;
    int n;
    while ((n = ibx_page_source_regions(source, &err)) >= 0 && (uint64_t)n < wanted) {
        if (ibx_now_ns() > deadline)
            fail("regions", "they do not come");
        ibx_wait(ibx_page_source_conn(source), 100);
    }
    if (n < 0)
        fail("regions", err.message);
}

static int by_size(const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

/* The wire alone, on the queue pair that faults use. Returns the median, ns. */
static uint64_t read_alone(const struct ibx_fault_source *as, const struct bench *b)
{
    static uint64_t took[READS];
    for (unsigned i = 0; i < READS + READS_WARM; i++) {
        struct ibx_fault_arrival arrival;
        uint64_t page = (uint64_t)i * STRIDE % b->pages, began = ibx_now_ns(), first;
        struct ibx_fault_request request = {.page = page,
                                            .offset = page * PAGE,
                                            .length = PAGE,
                                            .buffer = as->buffer,
                                            .urgent = true};
        int rc = as->ops->request(as->source, &request), n = 0;
        while (!rc && !(n = as->ops->poll(as->source, &arrival, 1)))
            ;
        if (rc || n < 0 || arrival.status)
            fail("READ", ibx_page_source_reason(as->source));
        if (i >= READS_WARM)
            took[i - READS_WARM] = ibx_now_ns() - began;
        memcpy(&first, as->buffer, 8);
        if (first != word_of(page, 0))
            fail("READ", "a wrong page");
    }
    qsort(took, READS, sizeof(took[0]), by_size);
    printf("READ of one page: p50 %.0f us, p99 %.0f us\n", (double)took[READS / 2] / 1e3,
           (double)took[READS * 99 / 100] / 1e3);
    return took[READS / 2];
}

struct toucher {
    pthread_t thread;
    const struct bench *bench;
    const uint64_t *memory;
    uint64_t start, wrong;
};

static uint64_t page_wrong(const uint64_t *memory, uint64_t page)
{
    uint64_t wrong = 0;
    for (unsigned i = 0; i < PAGE / 8; i++)
        wrong += memory[page * PAGE / 8 + i] != word_of(page, i);
    return wrong;
}

static void *touch(void *argument)
{
    struct toucher *t = argument;
    for (uint64_t i = 0; i < TOUCHES; i++)
        t->wrong += page_wrong(t->memory, (t->start + i * STRIDE) % t->bench->pages);
    return NULL;
}

static void touch_all(const struct bench *b, const uint64_t *memory)
{
    struct toucher touchers[TOUCHERS];
    unsigned count = b->filling ? TOUCHERS : 1;
    for (unsigned i = 0; i < count; i++) {
        touchers[i] = (struct toucher){.bench = b, .memory = memory, .start = b->pages / 2 * i};
        if (pthread_create(&touchers[i].thread, NULL, touch, &touchers[i]))
            fail("thread", "none");
    }
    for (unsigned i = 0; i < count; i++) {
        pthread_join(touchers[i].thread, NULL);
        if (touchers[i].wrong)
            fail("memory", "a wrong page");
    }
}

static void await_complete(struct ibx_fault *engine)
{
    struct pollfd wait = {.fd = ibx_fault_event_fd(engine), .events = POLLIN};
    struct ibx_error err = {0};
    poll(&wait, 1, PATIENCE_MS);
    if (ibx_fault_state(engine) == IBX_FAULT_COMPLETE)
        return;
    ibx_fault_reason(engine, &err);
    fail("the engine did not complete", err.message);
}

static void say(const struct bench *b, const struct ibx_fault_stats *stats, uint64_t wire,
                uint64_t took)
{
    printf("%llu faults: p50 %.0f us (READ and %+.0f us), p99 %.0f us, at most %.0f us\n",
           (unsigned long long)stats->latency_count, (double)stats->latency_p50 / 1e3,
           ((double)stats->latency_p50 - (double)wire) / 1e3, (double)stats->latency_p99 / 1e3,
           (double)stats->latency_max / 1e3);
    if (b->filling)
        printf("%.0f MB in %.2f s: %.0f MB/s\n", (double)stats->bytes / 1e6, (double)took / 1e9,
               (double)stats->bytes * 1e3 / (double)took);
    fflush(stdout);
}

/* Fills the memory, and looks at it. */
static void measure(struct ibx_fault *engine, const struct bench *b, const uint64_t *memory,
                    uint64_t wire)
{
    struct ibx_fault_stats stats;
    uint64_t began = ibx_now_ns();
    if (ibx_fault_serve(engine))
        fail("engine", "it does not serve");
    touch_all(b, memory);
    if (b->filling)
        await_complete(engine);
    uint64_t took = ibx_now_ns() - began;
    ibx_fault_stats(engine, &stats);
    for (uint64_t page = 0; b->filling && page < b->pages; page++)
        if (page_wrong(memory, page))
            fail("memory", "a wrong page");
    say(b, &stats, wire, took);
}

static void be_destination(struct ibx_listener *listener, const struct bench *b)
{
    struct ibx_error err = {0};
    struct ibx_fault_source as;
    struct ibx_fault *engine;
    uint64_t *memory =
        mmap(NULL, b->block.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibx_fault_range range = {
        .start = (uintptr_t)memory, .length = b->block.size, .page_size = PAGE};
    struct ibx_fault_config config = {.ranges = &range,
                                      .range_count = 1,
                                      .sources = &as,
                                      .worker_count = 1,
                                      .spin_us = SPIN_US,
                                      .no_background = !b->filling,
                                      .surroundings = b->filling ? 0 : 1};
    struct ibx_page_source *source = accept_source(listener, b);
    printf("%s\n", ibx_page_source_path(source)->description);
    await_regions(source, b);
    if (memory == MAP_FAILED || madvise(memory, b->block.size, MADV_NOHUGEPAGE) ||
        ibx_page_source_arm(source, ibx_fault_buffer_bytes(&config), &as, &err) ||
        ibx_fault_uffd_open(0, &config.uffd, &err) || ibx_fault_register(config.uffd, &range, &err))
        fail("memory", err.code ? err.message : strerror(errno));
    uint64_t wire = read_alone(&as, b);
    if (ibx_fault_create(&config, &engine, &err))
        fail("engine", err.message);
    measure(engine, b, memory, wire);
    ibx_fault_destroy(engine);
    ibx_page_source_destroy(source);
}

/* ----------------------------------------------------------------------- main */

static struct bench parse(int argc, char **argv)
{
    struct bench b = {.block = {.id = "/objects/ram", .page_size = PAGE}};
    unsigned long mib = argc == 4 ? strtoul(argv[2], NULL, 10) : 0;
    if (!mib || mib > 1u << 20 || (strcmp(argv[3], "alone") && strcmp(argv[3], "filling")))
        fail("usage", "fault_bench URI MIB alone|filling");
    b.filling = !strcmp(argv[3], "filling");
    b.block.size = (uint64_t)mib << 20;
    b.pages = b.block.size / PAGE;
    ibx_options_init(&b.options);
    b.options.insecure = true;
    b.options.message = IBX_MOVE_MESSAGE;
    return b;
}

int main(int argc, char **argv)
{
    struct bench b = parse(argc, argv);
    struct ibx_listener *listener;
    struct ibx_error err = {0};
    int status;
    if (ibx_listen(argv[1], &b.options, &listener, &err))
        fail("listen", err.message);
    b.uri = ibx_listener_uri(listener);
    pid_t child = fork();
    if (child == 0) {
        be_source(&b);
        _exit(0);
    }
    be_destination(listener, &b);
    ibx_listener_close(listener);
    if (waitpid(child, &status, 0) != child || status)
        fail("source", "failed");
    return 0;
}
