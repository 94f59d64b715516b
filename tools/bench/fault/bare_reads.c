/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* READs without the engine, over the connections that serve faults. */
#include "tools/bench/fault/fault.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define IN_FLIGHT 16u
#define PIECE     (1u << 20)
#define WARM      200u
#define SPIN_US   50u
#define STRIDE    1000003u /* a prime: every page is visited */

_Static_assert(IBX_EXPORT_STRETCH % PIECE == 0, "a piece lies within one region");

static int by_size(const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

double ibx_bench_quantile_us(uint64_t *ns, size_t count, unsigned permille)
{
    if (!count)
        return 0;
    qsort(ns, count, sizeof(*ns), by_size);
    size_t at = count * permille / 1000;
    return (double)ns[at < count ? at : count - 1] / 1e3;
}

/* One thread, on one link. */
struct reader {
    pthread_t thread;
    struct bench *bench;
    unsigned link;
    bool urgent;               /* single pages, one at a time; otherwise pieces, many */
    uint64_t bytes;            /* of one READ */
    uint64_t *took;            /* urgent: ns of each READ */
    uint64_t wanted;           /* READs; 0: as many as fit into the time */
    uint64_t done;             /* READs */
    uint64_t completed;        /* ns: when the last one completed */
    uint64_t window;           /* ns that all READs took together */
    uint64_t at[IN_FLIGHT];    /* offset of each in the served memory */
    uint64_t began[IN_FLIGHT]; /* ns */
    struct ibx_error err;
};

static uint8_t *buffer_of(const struct reader *r, uint64_t cookie)
{
    return (uint8_t *)ibx_mr_address(r->bench->raw[r->link]) + cookie * r->bytes;
}

static int failed(struct reader *r, int code)
{
    const char *reason = ibx_page_reader_reason(r->bench->readers[r->link]);
    return ibx_error_set(&r->err, code, "READ without the engine: %s",
                         *reason ? reason : strerror(-code));
}

static int post(struct reader *r, uint64_t nth, uint64_t cookie)
{
    const struct bench *b = r->bench;
    struct ibx_page_reader *source = b->readers[r->link];
    struct ibx_remote remote;
    uint64_t units = b->args->size / r->bytes, first = units / b->links * r->link;
    r->at[cookie] = (first + nth * (r->urgent ? STRIDE : 1)) % units * r->bytes;
    int rc = ibx_page_reader_remote(source, r->at[cookie], r->bytes, &remote);
    r->began[cookie] = ibx_now_ns();
    if (!rc)
        rc = ibx_read(ibx_page_reader_conn(source), b->raw[r->link], buffer_of(r, cookie), &remote,
                      0, r->bytes, cookie, r->urgent ? IBX_URGENT : 0);
    return rc ? failed(r, rc) : 0;
}

/* Checks the first word of every page; all words would take longer than the READ. */
static bool arrived_right(const struct reader *r, uint64_t cookie)
{
    const uint32_t page = r->bench->args->page;
    uint64_t first;
    for (uint64_t at = 0; at < r->bytes; at += page) {
        uint64_t byte = r->at[cookie] + at;
        memcpy(&first, buffer_of(r, cookie) + at, sizeof(first));
        if (first != bench_word(byte / page, byte % page / 8))
            return false;
    }
    return true;
}

/* 1: a READ has completed; 0: none yet. */
static int next_done(struct reader *r, uint64_t *cookie)
{
    struct ibx_conn *conn = ibx_page_reader_conn(r->bench->readers[r->link]);
    struct ibx_event event;
    int n = ibx_poll(conn, &event, 1);
    uint64_t now = ibx_now_ns();
    if (!n) {
        /* Single pages poll without a sleep, for the least latency; pieces poll as a session does.
         */
        if (r->urgent || now - r->completed < SPIN_US * IBX_NS_PER_US)
            sched_yield();
        else
            ibx_wait(conn, BENCH_TIMEOUT_MS);
        return 0;
    }
    if (n < 0 || event.type != IBX_EVENT_READ)
        return failed(r, n < 0 ? n : -EPROTO);
    if (event.status)
        return failed(r, event.status);
    r->completed = now;
    *cookie = event.cookie;
    return 1;
}

static int keep_reading(struct reader *r)
{
    const unsigned depth = r->urgent ? 1 : IN_FLIGHT;
    uint64_t posted = 0, start = ibx_now_ns(), cookie = 0;
    uint64_t end = start + (uint64_t)(r->bench->args->seconds * 1e9);
    int rc = 0;
    while (!rc && posted < depth) {
        rc = post(r, posted, posted);
        posted++;
    }
    while (!rc && r->done < posted) {
        rc = next_done(r, &cookie);
        if (rc <= 0)
            continue;
        uint64_t now = ibx_now_ns();
        if (r->took && r->done >= WARM)
            r->took[r->done - WARM] = now - r->began[cookie];
        r->window = now - start;
        r->done++;
        rc = arrived_right(r, cookie) ? 0
                                      : ibx_error_set(&r->err, -EBADMSG,
                                                      "a READ without the engine brought wrong "
                                                      "bytes");
        bool more = r->wanted ? posted < r->wanted : now < end;
        if (!rc && more)
            rc = post(r, posted++, cookie);
    }
    return rc;
}

static void *reader_main(void *argument)
{
    struct reader *r = argument;
    /* With the priority of the worker that serves faults, where the system allows it. */
    if (r->urgent)
        ibx_thread_prompt();
    keep_reading(r);
    return NULL;
}

static int readers_run(struct reader *readers, unsigned count, struct ibx_error *err)
{
    unsigned started = 0;
    int rc = 0;
    for (; !rc && started < count; started += !rc)
        rc = -pthread_create(&readers[started].thread, NULL, reader_main, &readers[started]);
    if (rc)
        ibx_error_set_task(err, rc, "no thread for READs");
    for (unsigned i = 0; i < started; i++) {
        pthread_join(readers[i].thread, NULL);
        if (!rc && readers[i].err.code)
            rc = ibx_error_set(err, readers[i].err.code, "%s", readers[i].err.message);
    }
    return rc;
}

int ibx_bench_wire_latency(struct bench *b, struct bench_round *round, struct ibx_error *err)
{
    const unsigned reads = b->args->touches;
    uint64_t *took = calloc(reads, sizeof(*took));
    struct reader reader = {
        .bench = b, .urgent = true, .bytes = b->args->page, .took = took, .wanted = reads + WARM};
    int rc = took ? readers_run(&reader, 1, err)
                  : ibx_error_set(err, -ENOMEM, "no memory for %u samples", reads);
    if (!rc) {
        round->is[READ_P50] = ibx_bench_quantile_us(took, reads, 500);
        round->is[READ_P99] = ibx_bench_quantile_us(took, reads, 990);
    }
    free(took);
    return rc;
}

int ibx_bench_wire_rate(struct bench *b, unsigned links, double *gbps, struct ibx_error *err)
{
    struct reader readers[IBX_MIGRATE_LINKS_MAX];
    for (unsigned i = 0; i < links; i++) /* the last links, since the first are for faults */
        readers[i] = (struct reader){.bench = b, .link = b->links - 1 - i, .bytes = PIECE};
    int rc = readers_run(readers, links, err);
    *gbps = 0;
    for (unsigned i = 0; !rc && i < links; i++)
        *gbps += (double)readers[i].done * PIECE / (double)readers[i].window;
    return rc;
}
