/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Measures the transport over real verbs; tests/vm/verbs compares the figures with perftest's in
 * the same guest.
 *
 *   verbs_bench ADDRESS read|write BYTES [OPTION=VALUE...]   MB/s (10^6)
 *   verbs_bench ADDRESS latency [OPTION=VALUE...]            us, half a round trip (below)
 *   verbs_bench ADDRESS call [OPTION=VALUE...]               the same, waiting as a session does
 *   verbs_bench ADDRESS cache [OPTION=VALUE...]              is cached memory always the right one?
 *
 * There are two figures for round trips: the maximum of the fastest hundredth, and the median.
 *
 * This process is the server and initiates transfers, as GVirtuS's back end does; a forked
 * process connects to it. */
#include "common/clock.h"
#include "transport/core/regcache.h"
#include "transport/transport.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define WINDOW        16 /* operations in flight */
#define BENCH_SECONDS 2
#define PINGS         500
#define PINGS_WARM    100
#define CACHE_ROUNDS  300
#define CACHE_BYTES   (192u << 10)

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "verbs_bench: %s: %s\n", what, why);
    exit(1);
}

static bool waits; /* if there is nothing to poll, waits instead of polling again */

static struct ibx_event next_event(struct ibx_conn *conn, enum ibx_event_type type)
{
    struct ibx_event event;
    int n;
    while ((n = ibx_poll(conn, &event, 1)) == 0) {
        if (waits)
            ibx_wait(conn, -1);
    }
    if (n < 0 || event.type != type || event.status)
        fail("the connection ended", ibx_conn_reason(conn));
    return event;
}

static void send_bytes(struct ibx_conn *conn, const void *bytes, size_t length)
{
    struct iovec iov = {(void *)(uintptr_t)bytes, length};
    int rc = ibx_send(conn, &iov, 1, 0, 0);
    if (rc)
        fail("send", strerror(-rc));
}

static struct ibx_remote receive_remote(struct ibx_conn *conn)
{
    struct ibx_event event = next_event(conn, IBX_EVENT_MESSAGE);
    struct ibx_reader r = ibx_reader_of(event.data, event.length);
    struct ibx_remote remote;
    ibx_remote_get(&r, &remote);
    if (r.failed)
        fail("remote", "too short");
    ibx_message_release(conn, &event);
    return remote;
}

static void send_remote(struct ibx_conn *conn, const struct ibx_mr *mr)
{
    uint8_t bytes[IBX_REMOTE_BYTES];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    struct ibx_remote remote;
    if (ibx_mr_remote(mr, 0, ibx_mr_length(mr), &remote))
        fail("remote", "no access");
    ibx_remote_put(&w, &remote);
    send_bytes(conn, bytes, w.length);
}

static struct ibx_mr *allocate(struct ibx_conn *conn, size_t length, unsigned access)
{
    struct ibx_mr *mr;
    struct ibx_error err;
    if (ibx_mr_allocate(conn, length, access, &mr, &err))
        fail("allocate", err.message);
    memset(ibx_mr_address(mr), 0x5a, length);
    return mr;
}

/* Sleeps until the other side has gone. */
static void wait_for_end(struct ibx_conn *conn)
{
    struct ibx_event event;
    do {
        ibx_wait(conn, -1);
    } while (ibx_poll(conn, &event, 1) >= 0);
}

/* ------------------------------------------------------------------ bandwidth */

static void bandwidth_peer(struct ibx_conn *conn, size_t bytes)
{
    struct ibx_mr *mr =
        allocate(conn, bytes * WINDOW, IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE);
    send_remote(conn, mr);
    wait_for_end(conn);
}

static void bandwidth(struct ibx_conn *conn, bool reads, size_t bytes)
{
    struct ibx_mr *mr = allocate(conn, bytes * WINDOW, IBX_ACCESS_LOCAL);
    struct ibx_remote remote = receive_remote(conn);
    uint64_t done = 0, posted = 0, start = ibx_now_ns(),
             end = start + BENCH_SECONDS * 1000000000ull;
    while (done < posted || ibx_now_ns() < end) {
        while (posted - done < WINDOW && ibx_now_ns() < end) {
            size_t offset = posted % WINDOW * bytes;
            char *local = (char *)ibx_mr_address(mr) + offset;
            int rc = reads ? ibx_read(conn, mr, local, &remote, offset, bytes, posted, 0)
                           : ibx_write(conn, mr, local, &remote, offset, bytes, posted, 0);
            if (rc)
                fail("post", strerror(-rc));
            posted++;
        }
        next_event(conn, reads ? IBX_EVENT_READ : IBX_EVENT_WRITE);
        done++;
    }
    printf("%.2f\n", (double)(done * bytes) * 1000 / (double)(ibx_now_ns() - start));
}

/* -------------------------------------------------------------------- latency */

/* Both sides poll. On one processor each would wait for the end of the other's time slice. */
static void stay_on(size_t processor)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    sched_setaffinity(0, sizeof(set), &set);
}

static void echo(struct ibx_conn *conn)
{
    stay_on(1);
    for (int i = 0; i < PINGS + PINGS_WARM; i++) {
        struct ibx_event event = next_event(conn, IBX_EVENT_MESSAGE);
        send_bytes(conn, event.data, event.length);
        ibx_message_release(conn, &event);
    }
    wait_for_end(conn);
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void latency(struct ibx_conn *conn)
{
    static uint64_t took[PINGS];
    stay_on(0);
    uint64_t start = ibx_now_ns();
    for (int i = -PINGS_WARM; i < PINGS; i++) {
        send_bytes(conn, &start, 8);
        struct ibx_event event = next_event(conn, IBX_EVENT_MESSAGE);
        ibx_message_release(conn, &event);
        uint64_t now = ibx_now_ns();
        if (i >= 0)
            took[i] = now - start;
        start = now;
    }
    qsort(took, PINGS, sizeof(took[0]), by_size);
    printf("%.2f %.2f\n", (double)took[PINGS / 100] / 2000, (double)took[PINGS / 2] / 2000);
}

/* ---------------------------------------------------------------------- cache */

/* Fills new memory, mostly where freed memory was, and lets the other side READ it through a
 * cached registration, which must never show what was there before. */
static void cache_peer(struct ibx_conn *conn)
{
    struct ibx_regcache *cache;
    struct ibx_error err;
    if (ibx_regcache_create(conn, 64 << 20, 64, &cache, &err))
        fail("cache", err.message);
    char *last = NULL;
    unsigned same = 0;
    for (unsigned round = 0; round < CACHE_ROUNDS; round++) {
        char *memory =
            mmap(NULL, CACHE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            fail("mmap", strerror(errno));
        same += memory == last;
        last = memory;
        /* Every way in which memory can go: unmapped, emptied, moved; and memory that stays. */
        for (int use = 0; use < 3; use++) {
            memset(memory, (int)(round * 3 + (unsigned)use) & 0xff, CACHE_BYTES);
            struct ibx_mr *mr;
            if (ibx_regcache_get(cache, memory, CACHE_BYTES, IBX_ACCESS_REMOTE_READ, &mr, &err))
                fail("get", err.message);
            struct ibx_remote remote;
            uint8_t bytes[IBX_REMOTE_BYTES];
            struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
            ibx_mr_remote(mr, (size_t)(memory - (char *)ibx_mr_address(mr)), CACHE_BYTES, &remote);
            ibx_remote_put(&w, &remote);
            send_bytes(conn, bytes, w.length);
            struct ibx_event event = next_event(conn, IBX_EVENT_MESSAGE);
            ibx_message_release(conn, &event);
            ibx_regcache_put(cache, mr);
            if (round % 3 == 1)
                madvise(memory, CACHE_BYTES, MADV_DONTNEED);
        }
        if (round % 3 == 2) {
            char *moved = mremap(memory, CACHE_BYTES, CACHE_BYTES * 2, MREMAP_MAYMOVE);
            munmap(moved == MAP_FAILED ? memory : moved, CACHE_BYTES * 2);
        } else {
            munmap(memory, CACHE_BYTES);
        }
    }
    struct ibx_regcache_stats stats;
    ibx_regcache_stats(cache, &stats);
    fprintf(stderr, "%u rounds, %u at the same address, %lu hits, %lu misses, %lu stale\n",
            CACHE_ROUNDS, same, stats.hits, stats.misses, stats.stale);
    if (!stats.hits)
        fail("cache", "never hit: nothing was tested");
    ibx_regcache_destroy(cache);
    wait_for_end(conn);
}

static void cache(struct ibx_conn *conn)
{
    struct ibx_mr *mr = allocate(conn, CACHE_BYTES, IBX_ACCESS_LOCAL);
    const unsigned char *got = ibx_mr_address(mr);
    unsigned wrong = 0;
    for (unsigned i = 0; i < CACHE_ROUNDS * 3; i++) {
        struct ibx_remote remote = receive_remote(conn);
        if (ibx_read(conn, mr, ibx_mr_address(mr), &remote, 0, CACHE_BYTES, i, 0))
            fail("read", ibx_conn_reason(conn));
        next_event(conn, IBX_EVENT_READ);
        unsigned char expected = (unsigned char)(i & 0xff);
        bool right = true;
        for (size_t k = 0; k < CACHE_BYTES && right; k++)
            right = got[k] == expected;
        wrong += !right;
        send_bytes(conn, "", 1);
    }
    printf("%u\n", wrong);
    if (wrong)
        fail("cache", "old memory was read");
}

/* ----------------------------------------------------------------------- main */

struct task {
    const char *name;
    size_t bytes;
};

static bool pings(const struct task *task)
{
    return !strcmp(task->name, "latency") || !strcmp(task->name, "call");
}

static void serve(struct ibx_conn *conn, const struct task *task)
{
    if (pings(task))
        latency(conn);
    else if (!strcmp(task->name, "cache"))
        cache(conn);
    else
        bandwidth(conn, !strcmp(task->name, "read"), task->bytes);
}

static int run_client(const char *uri, const struct ibx_options *options, const struct task *task)
{
    struct ibx_conn *conn;
    struct ibx_error err = {0};
    if (ibx_connect(uri, options, &conn, &err))
        fail("connect", err.message);
    if (pings(task))
        echo(conn);
    else if (!strcmp(task->name, "cache"))
        cache_peer(conn);
    else
        bandwidth_peer(conn, task->bytes);
    ibx_close(conn);
    return 0;
}

static struct ibx_conn *accept_one(struct ibx_listener *listener)
{
    struct ibx_conn *conn;
    struct ibx_error err = {0};
    if (ibx_accept_wait(listener, 30000, &conn, &err) || ibx_establish(conn, &err))
        fail("establish", err.message);
    return conn;
}

static struct task parse(int argc, char **argv, struct ibx_options *options)
{
    struct task task = {.name = argc > 2 ? argv[2] : ""};
    struct ibx_error err = {0};
    bool sized = !strcmp(task.name, "read") || !strcmp(task.name, "write");
    waits = !strcmp(task.name, "call");
    if (!sized && !pings(&task) && strcmp(task.name, "cache"))
        fail("usage",
             "verbs_bench ADDRESS read|write BYTES | latency | call | cache [OPTION=VALUE...]");
    if (sized && (argc < 4 || ibx_size_parse(argv[3], &task.bytes, &err)))
        fail("usage", "read and write want a number of bytes");
    for (int i = sized ? 4 : 3; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value)
            fail("usage", argv[i]);
        *value = '\0';
        if (ibx_options_set(options, argv[i], value + 1, &err))
            fail("usage", err.message);
    }
    return task;
}

int main(int argc, char **argv)
{
    struct ibx_options options;
    struct ibx_listener *listener;
    struct ibx_error err = {0};
    char uri[128];
    ibx_options_init(&options);
    options.insecure = true;
    struct task task = parse(argc, argv, &options);
    snprintf(uri, sizeof(uri), "verbs://%s:0", argv[1]);
    if (ibx_listen(uri, &options, &listener, &err))
        fail("listen", err.message);
    pid_t child = fork();
    if (child == 0)
        _exit(run_client(ibx_listener_uri(listener), &options, &task));
    struct ibx_conn *conn = accept_one(listener);
    fprintf(stderr, "%s\n", ibx_conn_path(conn)->description);
    serve(conn, &task);
    fflush(stdout);
    ibx_close(conn);
    ibx_listener_close(listener);
    int status;
    if (waitpid(child, &status, 0) != child || status)
        fail("client", "failed");
    return 0;
}
