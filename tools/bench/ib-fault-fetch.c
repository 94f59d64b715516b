/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The end that fetches, as a move's destination does: connections, memory, rounds. */
#include "tools/bench/ib-fault.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RAW_BYTES (16u << 20) /* READs without the engine have so many in flight, a link */
#define LOOK_MS   100

/* ------------------------------------------------------------------- coming in */

/* Whether the child that was to lend has ended, with a sentence of its own. */
static int lender_check(int lender, struct ibx_error *err)
{
    int status;
    if (!lender || waitid(P_PID, (id_t)lender, &(siginfo_t){0}, WEXITED | WNOHANG | WNOWAIT) < 0)
        return 0;
    siginfo_t info = {0};
    waitid(P_PID, (id_t)lender, &info, WEXITED | WNOHANG | WNOWAIT);
    status = info.si_pid ? -ECHILD : 0;
    return status ? ibx_error_set(err, status, "the end that lends has ended") : 0;
}

static int accept_one(struct ibx_listener *listener, int lender, struct ibx_conn **conn,
                      struct ibx_error *err)
{
    struct pollfd wait = {.fd = ibx_listener_fd(listener), .events = POLLIN};
    int rc;
    while ((rc = ibx_accept(listener, conn, err)) == -EAGAIN) {
        rc = lender_check(lender, err);
        if (rc)
            return rc;
        poll(&wait, 1, LOOK_MS);
    }
    if (rc)
        return rc;
    rc = ibx_establish(*conn, err);
    if (rc)
        ibx_close(*conn);
    return rc;
}

/* The first message of a connection. */
static int join_take(struct ibx_conn *conn, struct ibx_migrate_join *join, struct ibx_error *err)
{
    struct ibx_event event;
    struct ibx_migrate_any message = {0};
    int n = 0, rc = 0;
    while (!rc && !(n = ibx_poll(conn, &event, 1)))
        if (!ibx_wait(conn, BENCH_PATIENCE_MS))
            rc = ibx_error_set(err, -ETIMEDOUT, "who connected says nothing");
    if (!rc && (n < 0 || event.type != IBX_EVENT_MESSAGE))
        rc = ibx_error_set(err, -ECONNRESET, "a connection ended: %s", ibx_conn_reason(conn));
    if (!rc) {
        rc = ibx_migrate_decode(event.data, event.length, &message, err);
        if (!rc && message.type != IBX_MIGRATE_JOIN)
            rc = ibx_error_set(err, -EPROTO, "who came is no `ib-fault lend`");
        *join = message.is.join;
        ibx_migrate_message_free(&message);
        ibx_message_release(conn, &event);
    }
    return rc;
}

/* The first JOIN says what is lent and by how many links. */
static int link_take(struct bench *b, struct bench_args *args, struct ibx_listener *listener,
                     int lender, unsigned index, struct ibx_error *err)
{
    struct ibx_conn *conn;
    struct ibx_migrate_join join;
    struct bench_args told = *args;
    int rc = accept_one(listener, lender, &conn, err);
    if (rc)
        return rc;
    rc = join_take(conn, &join, err);
    if (!rc)
        rc = ibx_bench_join_read(&join, &told, err);
    if (!rc && index &&
        (told.links != args->links || told.size != args->size || told.page != args->page ||
         join.link != index))
        rc = ibx_error_set(err, -EPROTO, "two who lend have come at once");
    struct ibx_migrate_block block = {.id = "lent", .size = told.size, .page_size = told.page};
    if (!rc)
        rc = ibx_page_reader_create(conn, &block, 1, &b->sources[index], err);
    if (rc) {
        ibx_close(conn);
        return rc;
    }
    *args = told;
    b->links = index + 1;
    return 0;
}

static int regions_await(const struct bench *b, struct ibx_page_reader *source,
                         struct ibx_error *err)
{
    struct ibx_conn *conn = ibx_page_reader_conn(source);
    const uint64_t size = b->args->size, deadline = ibx_deadline_in_ms(BENCH_PATIENCE_MS);
    uint64_t wanted = ibx_conn_caps(conn)->register_free
                          ? 1
                          : (size + IBX_EXPORT_STRETCH - 1) / IBX_EXPORT_STRETCH;
    int n;
    while ((n = ibx_page_reader_regions(source, err)) >= 0 && (uint64_t)n < wanted) {
        if (ibx_now_ns() > deadline)
            return ibx_error_set(err, -ETIMEDOUT, "the lender exposes its memory too slowly");
        ibx_wait(conn, LOOK_MS);
    }
    return n < 0 ? n : 0;
}

static int connections_take(struct bench *b, struct bench_args *args, struct ibx_listener *listener,
                            int lender, struct ibx_error *err)
{
    unsigned links = 1;
    for (unsigned i = 0; i < links; i++) {
        int rc = link_take(b, args, listener, lender, i, err);
        if (rc)
            return rc;
        links = args->links;
    }
    unsigned faults = args->fault_workers < links ? args->fault_workers : links - 1;
    b->bulk_links = links - faults;
    b->pages = args->size / args->page;
    for (unsigned i = 0; i < links; i++) {
        int rc = regions_await(b, b->sources[i], err);
        if (rc)
            return rc;
    }
    return 0;
}

/* --------------------------------------------------------------------- memory */

static int memory_map(struct bench *b, struct ibx_error *err)
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

/* Buffers of every link: the engine's as if in missing mode, and READs' without it. */
static int sources_arm(struct bench *b, struct ibx_error *err)
{
    struct ibx_fault_range range = {.page_size = b->args->page};
    struct ibx_fault_config config = {.ranges = &range, .range_count = 1};
    void *aliases[1] = {b->alias};
    const size_t bytes = ibx_fault_buffer_bytes(&config);
    int rc = 0;
    for (unsigned i = 0; !rc && i < b->links; i++) {
        struct ibx_conn *conn = ibx_page_reader_conn(b->sources[i]);
        rc = ibx_page_reader_arm(b->sources[i], bytes, &b->wire[i], err);
        if (!rc)
            rc = ibx_page_reader_aliases(b->sources[i], i ? b->sources[0] : NULL, aliases, err);
        if (!rc)
            rc = ibx_mr_allocate(conn, RAW_BYTES, IBX_ACCESS_LOCAL, &b->raw[i], err);
    }
    return rc;
}

static void bench_close(struct bench *b)
{
    for (unsigned i = 0; i < b->links; i++)
        ibx_page_reader_destroy(b->sources[i]);
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

int ibx_bench_fetch(struct bench_args *args, struct ibx_listener *listener, int lender)
{
    struct bench b = {.args = args, .fd = -1};
    struct ibx_error err = {0};
    cpu_set_t any;
    /* Threads that fault shall not be where the workers are only because they are started there. */
    if (!args->touchers.given && !sched_getaffinity(0, sizeof(any), &any))
        args->touchers = (struct bench_cpus){any, true};
    int rc = connections_take(&b, args, listener, lender, &err);
    if (!rc)
        rc = memory_map(&b, &err);
    if (!rc)
        rc = sources_arm(&b, &err);
    if (!rc)
        rc = ibx_bench_floor_make(&b, &err);
    if (!rc)
        rc = ibx_bench_cpus_use(&args->workers, &err);
    if (!rc)
        rc = measure_all(&b, &err);
    bench_close(&b);
    if (rc)
        fprintf(stderr, "ib-fault: %s\n", err.message);
    return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
