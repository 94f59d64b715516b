/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The end that fetches, as the destination of a migration does: connections, memory, rounds. */
#include "tools/bench/fault/fault.h"
#include "tools/options.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RAW_BYTES (16u << 20) /* in flight on a link by READs without the engine */
#define POLL_MS   100

/* ------------------------------------------------------------------- connections */

/* An error if the child that serves has ended; it has printed its reason. */
static int check_server(int server, struct ibx_error *err)
{
    siginfo_t info = {0};
    if (server)
        waitid(P_PID, (id_t)server, &info, WEXITED | WNOHANG | WNOWAIT);
    return info.si_pid ? ibx_error_set(err, -ECHILD, "the serving end has ended") : 0;
}

static int accept_one(struct ibx_listener *listener, int server, struct ibx_conn **conn,
                      struct ibx_error *err)
{
    struct pollfd wait = {.fd = ibx_listener_fd(listener), .events = POLLIN};
    int rc;
    while ((rc = ibx_accept(listener, conn, err)) == -EAGAIN) {
        rc = check_server(server, err);
        if (rc)
            return rc;
        poll(&wait, 1, POLL_MS);
    }
    if (rc)
        return rc;
    rc = ibx_establish(*conn, err);
    if (rc)
        ibx_close(*conn);
    return rc;
}

/* The first message of a connection. */
static int take_join(struct ibx_conn *conn, struct ibx_migrate_join *join, struct ibx_error *err)
{
    struct ibx_event event;
    struct ibx_migrate_any message = {0};
    int n = 0, rc = 0;
    while (!rc && !(n = ibx_poll(conn, &event, 1)))
        if (!ibx_wait(conn, BENCH_TIMEOUT_MS))
            rc = ibx_error_set(err, -ETIMEDOUT, "the peer sends nothing");
    if (!rc && (n < 0 || event.type != IBX_EVENT_MESSAGE))
        rc = ibx_error_set(err, -ECONNRESET, "a connection ended: %s", ibx_conn_reason(conn));
    if (!rc) {
        rc = ibx_migrate_decode(event.data, event.length, &message, err);
        if (!rc && message.type != IBX_MIGRATE_JOIN)
            rc = ibx_error_set(err, -EPROTO, "the peer is no `ib-fault serve'");
        *join = message.is.join;
        ibx_migrate_message_free(&message);
        ibx_message_release(conn, &event);
    }
    return rc;
}

/* Accepts a connection. They come in any order; the first one tells what is served, and by how many
 * links. */
static int take_link(struct bench *b, struct bench_args *args, struct ibx_listener *listener,
                     int server, bool first, struct ibx_error *err)
{
    struct ibx_conn *conn;
    struct ibx_migrate_join join;
    struct bench_args joined = *args;
    int rc = accept_one(listener, server, &conn, err);
    if (rc)
        return rc;
    rc = take_join(conn, &join, err);
    if (!rc)
        rc = ibx_bench_join_read(&join, &joined, err);
    if (!rc && !first &&
        (joined.links != args->links || joined.size != args->size || joined.page != args->page))
        rc = ibx_error_set(err, -EPROTO, "two ends that serve have connected at once");
    if (!rc && (join.link >= joined.links || b->readers[join.link]))
        rc = ibx_error_set(err, -EPROTO, "two ends that serve have connected at once");
    struct ibx_migrate_block block = {
        .id = "served", .size = joined.size, .page_size = joined.page};
    if (!rc)
        rc = ibx_page_reader_create(conn, &block, 1, &b->readers[join.link], err);
    if (rc) {
        ibx_close(conn);
        return rc;
    }
    *args = joined;
    b->links = joined.links;
    return 0;
}

static int await_regions(const struct bench *b, struct ibx_page_reader *reader,
                         struct ibx_error *err)
{
    struct ibx_conn *conn = ibx_page_reader_conn(reader);
    const uint64_t size = b->args->size, deadline = ibx_deadline_in_ms(BENCH_TIMEOUT_MS);
    uint64_t wanted = ibx_conn_caps(conn)->register_free
                          ? 1
                          : (size + IBX_EXPORT_STRETCH - 1) / IBX_EXPORT_STRETCH;
    int n;
    while ((n = ibx_page_reader_regions(reader, err)) >= 0 && (uint64_t)n < wanted) {
        if (ibx_now_ns() > deadline)
            return ibx_error_set(err, -ETIMEDOUT, "the serving end exposes its memory too slowly");
        ibx_wait(conn, POLL_MS);
    }
    return n < 0 ? n : 0;
}

static int take_connections(struct bench *b, struct bench_args *args, struct ibx_listener *listener,
                            int server, struct ibx_error *err)
{
    unsigned links = 1;
    for (unsigned i = 0; i < links; i++) {
        int rc = take_link(b, args, listener, server, !i, err);
        if (rc)
            return rc;
        links = args->links;
    }
    unsigned faults = args->fault_workers < links ? args->fault_workers : links - 1;
    b->bulk_links = links - faults;
    b->pages = args->size / args->page;
    for (unsigned i = 0; i < links; i++) {
        int rc = await_regions(b, b->readers[i], err);
        if (rc)
            return rc;
    }
    return 0;
}

/* --------------------------------------------------------------------- memory */

static int map_memory(struct bench *b, struct ibx_error *err)
{
    const uint64_t size = b->args->size;
    int rc = ibx_bench_memory_check(size, b->args->page, err);
    if (!rc)
        rc = ibx_bench_memory_file(size, b->args->page, &b->fd, err);
    if (rc)
        return rc;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
    void *alias = b->args->minor && memory != MAP_FAILED
                      ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0)
                      : NULL;
    if (memory == MAP_FAILED || alias == MAP_FAILED)
        return ibx_error_set(err, -errno, "%llu MiB cannot be mapped: %s",
                             (unsigned long long)size >> 20, strerror(errno));
    b->memory = memory;
    b->alias = alias;
    return 0;
}

/* Registers the buffers of every link: the engine's, and those of READs without the engine. */
static int arm_readers(struct bench *b, struct ibx_error *err)
{
    struct ibx_fault_range range = {.page_size = b->args->page};
    struct ibx_fault_config config = {.ranges = &range, .range_count = 1};
    void *aliases[1] = {b->alias};
    const size_t bytes = ibx_fault_buffer_bytes(&config);
    int rc = 0;
    for (unsigned i = 0; !rc && i < b->links; i++) {
        struct ibx_conn *conn = ibx_page_reader_conn(b->readers[i]);
        rc = ibx_page_reader_arm(b->readers[i], bytes, &b->wire[i], err);
        if (!rc)
            rc = ibx_page_reader_aliases(b->readers[i], i ? b->readers[0] : NULL, aliases, err);
        if (!rc)
            rc = ibx_mr_allocate(conn, RAW_BYTES, IBX_ACCESS_LOCAL, &b->raw[i], err);
    }
    return rc;
}

static void bench_close(struct bench *b)
{
    for (unsigned i = 0; i < b->links; i++)
        ibx_page_reader_destroy(b->readers[i]);
    ibx_bench_floor_free(b);
    if (b->memory)
        munmap(b->memory, b->args->size);
    if (b->alias)
        munmap(b->alias, b->args->size);
    if (b->fd >= 0)
        close(b->fd);
}

/* --------------------------------------------------------------------- rounds */

static int measure_all(struct bench *b, struct ibx_error *err)
{
    const struct bench_args *args = b->args;
    struct bench_round *rounds = calloc(args->rounds, sizeof(*rounds));
    int rc = rounds ? 0 : ibx_error_set(err, -ENOMEM, "no memory for %u rounds", args->rounds);
    for (unsigned i = 0; !rc && i < args->rounds; i++) {
        fprintf(stderr, "ib-fault: round %u of %u\n", i + 1, args->rounds);
        rc = ibx_bench_measure(b, i, &rounds[i], err);
    }
    if (!rc && (!args->json || strcmp(args->json, "-")))
        ibx_bench_table_print(b, rounds, args->rounds);
    if (!rc && args->json)
        rc = ibx_bench_json_write(b, rounds, args->rounds, args->json, err);
    free(rounds);
    return rc;
}

int ibx_bench_fetch(struct bench_args *args, struct ibx_listener *listener, int server)
{
    struct bench b = {.args = args, .fd = -1};
    struct ibx_error err = {0};
    cpu_set_t any;
    /* The threads that fault must not inherit the processors of the workers. */
    if (!args->touchers.given && !sched_getaffinity(0, sizeof(any), &any))
        args->touchers = (struct bench_cpus){any, true};
    int rc = take_connections(&b, args, listener, server, &err);
    if (!rc)
        rc = map_memory(&b, &err);
    if (!rc)
        rc = arm_readers(&b, &err);
    if (!rc)
        rc = ibx_bench_floor_make(&b, &err);
    if (!rc)
        rc = ibx_bench_cpus_use(&args->workers, &err);
    if (!rc)
        rc = measure_all(&b, &err);
    bench_close(&b);
    return rc ? ibx_tool_fail(&err) : EXIT_SUCCESS;
}
