/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The destination's side of a page connection: a page source of the fault engine.
 *
 * A request is cut where regions meet, and arrives when all of its READs are over. Requests that
 * are not urgent leave room for those that are.
 */
#include "migrate/pages/pages.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REGIONS_MAX    (1u << 20)
#define FLIGHTS        96u
#define FLIGHTS_BULK   32u /* of them, open to requests that are not urgent */
#define EVENTS_AT_ONCE 16

struct region {
    uint64_t start, length; /* bytes, at the source: through all blocks */
    struct ibx_remote remote;
};

struct flight {
    uint64_t cookie;
    size_t length;
    unsigned parts; /* READs that are not over */
    int status;     /* the first failure */
    bool busy;
};

struct block {
    uint64_t first; /* byte, through all blocks */
    uint64_t size, page_size;
    struct ibx_mr *alias;
    char id[IBX_GUEST_ID_MAX];
};

struct ibx_page_reader {
    struct ibx_conn *conn;
    struct block *blocks;
    unsigned block_count;
    struct region *regions; /* by their start, once armed */
    size_t region_count, region_room;
    bool armed;
    struct ibx_mr *buffer;
    struct flight flights[FLIGHTS];
    unsigned flying;
    int ended;                  /* the connection has, and touches no buffer any more */
    char reason[IBX_ERROR_MAX]; /* of ours to end it; else the connection's own counts */
};

/* -------------------------------------------------------------------- beginning */

int ibx_page_reader_create(struct ibx_conn *conn, const struct ibx_migrate_block *blocks,
                           unsigned block_count, struct ibx_page_reader **out,
                           struct ibx_error *err)
{
    struct ibx_page_reader *source = calloc(1, sizeof(*source));
    struct block *own = calloc(block_count ? block_count : 1, sizeof(*own));
    uint64_t bytes = 0;
    int rc = source && own ? 0 : ibx_error_set(err, -ENOMEM, "no memory for a page source");
    for (unsigned i = 0; !rc && i < block_count; i++) {
        own[i].first = bytes;
        own[i].size = blocks[i].size;
        own[i].page_size = blocks[i].page_size;
        snprintf(own[i].id, sizeof(own[i].id), "%s", blocks[i].id);
        if (!own[i].page_size || own[i].size > UINT64_MAX - bytes)
            rc = ibx_error_set(err, -EINVAL, "memory backend %s of %llu bytes cannot be", own[i].id,
                               (unsigned long long)own[i].size);
        bytes += own[i].size;
    }
    if (rc) {
        free(source);
        free(own);
        return rc;
    }
    source->conn = conn;
    source->blocks = own;
    source->block_count = block_count;
    *out = source;
    return 0;
}

struct ibx_conn *ibx_page_reader_conn(struct ibx_page_reader *source)
{
    return source->conn;
}

const struct ibx_path *ibx_page_reader_path(const struct ibx_page_reader *source)
{
    return ibx_conn_path(source->conn);
}

const char *ibx_page_reader_reason(const struct ibx_page_reader *source)
{
    return source->reason[0] ? source->reason : ibx_conn_reason(source->conn);
}

void ibx_page_reader_destroy(struct ibx_page_reader *source)
{
    if (!source)
        return;
    ibx_close(source->conn); /* and its registrations */
    free(source->regions);
    free(source->blocks);
    free(source);
}

/* Ends the connection for a reason of our own. */
static void give_up(struct ibx_page_reader *source, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void give_up(struct ibx_page_reader *source, const char *format, ...)
{
    va_list args;
    if (!source->reason[0] && !ibx_conn_reason(source->conn)[0]) {
        va_start(args, format);
        vsnprintf(source->reason, sizeof(source->reason), format, args);
        va_end(args);
    }
    ibx_abort(source->conn);
}

/* ---------------------------------------------------------------------- regions */

static int region_check(const struct ibx_page_reader *source, const struct ibx_migrate_region *part,
                        struct ibx_error *err)
{
    if (part->block >= source->block_count)
        return ibx_error_set(err, -EPROTO,
                             "the source exposes block %u, but there are %u memory backends",
                             part->block, source->block_count);
    const struct block *block = &source->blocks[part->block];
    const char *wrong = NULL;
    if (part->offset > block->size || part->length > block->size - part->offset)
        wrong = "lies outside of it";
    else if (!part->length || part->offset % block->page_size || part->length % block->page_size)
        wrong = "is not of whole pages";
    else if (part->remote.length != part->length ||
             part->remote.address + part->length < part->remote.address)
        wrong = "is not what its key is for";
    if (!wrong)
        return 0;
    return ibx_error_set(
        err, -EPROTO, "the region of 0x%llx bytes at 0x%llx of memory backend %s %s",
        (unsigned long long)part->length, (unsigned long long)part->offset, block->id, wrong);
}

static int region_add(struct ibx_page_reader *source, const struct ibx_migrate_region *part,
                      struct ibx_error *err)
{
    int rc = region_check(source, part, err);
    if (rc)
        return rc;
    if (source->region_count == REGIONS_MAX)
        return ibx_error_set(err, -EPROTO, "the source exposes more than %u regions", REGIONS_MAX);
    if (source->region_count == source->region_room) {
        size_t room = source->region_room ? source->region_room * 2 : 64;
        struct region *more = realloc(source->regions, room * sizeof(*more));
        if (!more)
            return ibx_error_set(err, -ENOMEM, "no memory for %zu regions", room);
        source->regions = more;
        source->region_room = room;
    }
    source->regions[source->region_count++] = (struct region){
        source->blocks[part->block].first + part->offset, part->length, part->remote};
    return 0;
}

static int message_heed(struct ibx_page_reader *source, const struct ibx_event *event,
                        struct ibx_error *err)
{
    struct ibx_migrate_any message;
    int rc = ibx_migrate_decode(event->data, event->length, &message, err);
    if (rc)
        return rc;
    if (message.type == IBX_MIGRATE_REGION)
        return region_add(source, &message.is.region, err);
    ibx_error_set(err, -EPROTO, "%s on a page connection, where REGION is expected",
                  ibx_migrate_message_name(message.type));
    ibx_migrate_message_free(&message);
    return -EPROTO;
}

int ibx_page_reader_regions(struct ibx_page_reader *source, struct ibx_error *err)
{
    struct ibx_event events[EVENTS_AT_ONCE];
    struct ibx_error why = {0};
    int n;
    if (source->armed)
        return ibx_error_set(err, -EBUSY, "the page source is in use");
    while (!source->ended && (n = ibx_poll(source->conn, events, EVENTS_AT_ONCE)) > 0)
        for (int i = 0; i < n; i++) {
            if (events[i].type == IBX_EVENT_CLOSED)
                source->ended = events[i].status;
            if (events[i].type != IBX_EVENT_MESSAGE)
                continue;
            if (!source->reason[0] && message_heed(source, &events[i], &why))
                give_up(source, "%s", why.message);
            ibx_message_release(source->conn, &events[i]);
        }
    if (why.code)
        return ibx_error_set(err, why.code, "%s", why.message);
    if (source->ended || source->reason[0])
        return ibx_error_set(err, source->ended ? source->ended : -EPROTO,
                             "a page connection has ended: %s", ibx_page_reader_reason(source));
    return (int)source->region_count;
}

static int region_order(const void *one, const void *other)
{
    const struct region *a = one, *b = other;
    return (a->start > b->start) - (a->start < b->start);
}

static int regions_sort(struct ibx_page_reader *source, struct ibx_error *err)
{
    if (!source->region_count)
        return 0;
    qsort(source->regions, source->region_count, sizeof(*source->regions), region_order);
    for (size_t i = 1; i < source->region_count; i++) {
        const struct region *before = &source->regions[i - 1], *after = &source->regions[i];
        if (after->start - before->start < before->length)
            return ibx_error_set(err, -EPROTO,
                                 "the source exposes byte 0x%llx of the memory in two regions",
                                 (unsigned long long)after->start);
    }
    return 0;
}

/* The region with this byte, or the next one: its index, or their number. */
static size_t region_find(const struct ibx_page_reader *source, uint64_t byte)
{
    size_t low = 0, high = source->region_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (source->regions[middle].start + source->regions[middle].length > byte)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The first byte of [from, from + length) that no region has, or its end. */
static uint64_t regions_reach(const struct ibx_page_reader *source, uint64_t from, uint64_t length)
{
    uint64_t at = from;
    for (size_t i = region_find(source, from); i < source->region_count; i++) {
        const struct region *r = &source->regions[i];
        if (r->start > at || at - from >= length)
            break;
        at = r->start + r->length;
    }
    return at - from < length ? at : from + length;
}

/* ------------------------------------------------------------ what the engine calls */

static struct ibx_mr *local_of(const struct ibx_page_reader *source, const void *buffer,
                               size_t length)
{
    for (unsigned i = 0; i <= source->block_count; i++) {
        struct ibx_mr *mr = i ? source->blocks[i - 1].alias : source->buffer;
        if (!mr)
            continue;
        uintptr_t at = (uintptr_t)buffer - (uintptr_t)ibx_mr_address(mr);
        if (at <= ibx_mr_length(mr) && length <= ibx_mr_length(mr) - at)
            return mr;
    }
    return NULL;
}

static struct flight *flight_take(struct ibx_page_reader *source, bool urgent)
{
    if (source->flying >= (urgent ? FLIGHTS : FLIGHTS_BULK))
        return NULL;
    for (unsigned i = 0; i < FLIGHTS; i++)
        if (!source->flights[i].busy)
            return &source->flights[i];
    return NULL;
}

/* Posts one READ a region. What is posted before one fails has to come back first. */
static int flight_start(struct ibx_page_reader *source, struct flight *flight,
                        const struct ibx_fault_request *request, struct ibx_mr *mr)
{
    const struct region *r = &source->regions[region_find(source, request->offset)];
    uint64_t at = request->offset, end = at + request->length;
    int rc = 0;
    for (; at < end && !rc; r++) {
        uint64_t stop = r->start + r->length < end ? r->start + r->length : end;
        rc = ibx_read(source->conn, mr, (char *)request->buffer + (at - request->offset),
                      &r->remote, at - r->start, (size_t)(stop - at),
                      (uint64_t)(flight - source->flights), request->urgent ? IBX_URGENT : 0);
        flight->parts += !rc;
        at = stop;
    }
    if (rc && flight->parts)
        flight->status = rc;
    return flight->parts ? 0 : rc;
}

static int request_read(void *context, const struct ibx_fault_request *request)
{
    struct ibx_page_reader *source = context;
    if (ibx_page_reader_reason(source)[0])
        return -EAGAIN; /* poll is about to say so */
    struct ibx_mr *mr = local_of(source, request->buffer, request->length);
    uint64_t reach = regions_reach(source, request->offset, request->length);
    if (!mr || reach != request->offset + request->length) {
        give_up(source, "byte 0x%llx of the memory is wanted, but %s", (unsigned long long)reach,
                mr ? "the source does not expose it" : "not into registered memory");
        return -EAGAIN;
    }
    struct flight *flight = flight_take(source, request->urgent);
    if (!flight)
        return -EAGAIN;
    *flight = (struct flight){.cookie = request->cookie, .length = request->length};
    int rc = flight_start(source, flight, request, mr);
    if (rc)
        return rc == -ENOTCONN ? -EAGAIN : rc;
    flight->busy = true;
    source->flying++;
    return 0;
}

/* The engine cancels only when it stops: then the connection is of no more use, and what is in
 * flight comes back at once, also from a link that is dead. */
static void cancel(void *context, uint64_t cookie)
{
    (void)cookie;
    give_up(context, "%s", "the pages are no longer wanted");
}

/* 1 when the flight is over. */
static int read_heed(struct ibx_page_reader *source, const struct ibx_event *event,
                     struct ibx_fault_arrival *arrival)
{
    struct flight *flight = &source->flights[event->cookie];
    if (event->status && !flight->status)
        flight->status = event->status;
    if (--flight->parts)
        return 0;
    /* With the connection all of its READs fail: why, poll says when all are back. */
    if (flight->status && ibx_page_reader_reason(source)[0])
        flight->status = -ECANCELED;
    *arrival = (struct ibx_fault_arrival){.cookie = flight->cookie,
                                          .status = flight->status,
                                          .length = flight->status ? 0 : flight->length};
    flight->busy = false;
    source->flying--;
    return 1;
}

static int poll_arrivals(void *context, struct ibx_fault_arrival *arrivals, int max)
{
    struct ibx_page_reader *source = context;
    struct ibx_event events[EVENTS_AT_ONCE];
    int arrived = 0, want, n;
    if (source->ended)
        return source->ended;
    do {
        want = max - arrived < EVENTS_AT_ONCE ? max - arrived : EVENTS_AT_ONCE;
        n = ibx_poll(source->conn, events, want);
        for (int i = 0; i < n; i++) {
            if (events[i].type == IBX_EVENT_READ)
                arrived += read_heed(source, &events[i], &arrivals[arrived]);
            if (events[i].type == IBX_EVENT_CLOSED)
                source->ended = events[i].status;
            if (events[i].type != IBX_EVENT_MESSAGE)
                continue;
            ibx_message_release(source->conn, &events[i]);
            give_up(source, "%s", "the source sent a message where pages are expected");
        }
    } while (n == want && arrived < max && !source->ended);
    return arrived ? arrived : source->ended;
}

static int arm(void *context)
{
    const struct ibx_page_reader *source = context;
    return source->ended ? 1 : ibx_arm(source->conn);
}

static int fd(void *context)
{
    const struct ibx_page_reader *source = context;
    return ibx_fd(source->conn);
}

static const struct ibx_fault_reader_ops operations = {
    .request = request_read, .cancel = cancel, .poll = poll_arrivals, .arm = arm, .fd = fd};

/* ------------------------------------------------------------------ into the engine */

int ibx_page_reader_serve(struct ibx_page_reader *source, size_t buffer_bytes,
                          struct ibx_fault_reader *as, struct ibx_error *err)
{
    if (buffer_bytes && !source->buffer) {
        int rc =
            ibx_mr_allocate(source->conn, buffer_bytes, IBX_ACCESS_LOCAL, &source->buffer, err);
        if (rc)
            return rc;
    }
    *as =
        (struct ibx_fault_reader){.ops = &operations,
                                  .context = source,
                                  .buffer = source->buffer ? ibx_mr_address(source->buffer) : NULL};
    return 0;
}

int ibx_page_reader_arm(struct ibx_page_reader *source, size_t buffer_bytes,
                        struct ibx_fault_reader *as, struct ibx_error *err)
{
    int rc = ibx_page_reader_regions(source, err);
    if (rc < 0)
        return rc;
    rc = regions_sort(source, err);
    if (!rc)
        rc = ibx_page_reader_serve(source, buffer_bytes, as, err);
    source->armed = !rc;
    return rc;
}

int ibx_page_reader_aliases(struct ibx_page_reader *source, const struct ibx_page_reader *other,
                            void *const *aliases, struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < source->block_count; i++) {
        struct block *block = &source->blocks[i];
        const struct ibx_mr *there = other ? other->blocks[i].alias : NULL;
        if (!aliases[i] || block->alias)
            continue;
        struct ibx_span span = ibx_span_host(aliases[i], (size_t)block->size);
        rc = there ? ibx_mr_share(source->conn, there, &block->alias, err)
                   : ibx_mr_register(source->conn, &span, IBX_ACCESS_LOCAL, &block->alias, err);
    }
    return rc;
}

int ibx_page_reader_remote(const struct ibx_page_reader *source, uint64_t offset, size_t length,
                           struct ibx_remote *remote)
{
    size_t i = region_find(source, offset);
    const struct region *r = &source->regions[i];
    if (i == source->region_count || offset < r->start || length > r->length - (offset - r->start))
        return -ERANGE;
    *remote = r->remote;
    remote->address += offset - r->start;
    remote->length = length;
    return 0;
}

/* ------------------------------------------------------------------ before the commit */

struct cover {
    const struct ibx_page_reader *source;
    const struct ibx_page_map *map;
    struct ibx_error *err;
};

/* Of one run of pages, which may go through several blocks. */
static int run_covered(void *context, uint64_t first, uint64_t count, bool data)
{
    const struct cover *cover = context;
    const struct ibx_page_reader *source = cover->source;
    for (unsigned i = 0; data && i < source->block_count; i++) {
        const struct block *block = &source->blocks[i];
        uint64_t from = cover->map->blocks[i].first, end = from + cover->map->blocks[i].pages;
        uint64_t low = first > from ? first : from;
        uint64_t high = first + count < end ? first + count : end;
        if (low >= high)
            continue;
        uint64_t at = block->first + (low - from) * block->page_size;
        uint64_t length = (high - low) * block->page_size;
        uint64_t reach = regions_reach(source, at, length);
        if (reach != at + length)
            return ibx_error_set(
                cover->err, -EPROTO,
                "page %llu of memory backend %s holds data, but the source does not expose it",
                (unsigned long long)((reach - block->first) / block->page_size), block->id);
    }
    return 0;
}

int ibx_page_reader_covers(const struct ibx_page_reader *source, const struct ibx_page_map *map,
                           struct ibx_error *err)
{
    struct cover cover = {source, map, err};
    bool same = map->block_count == source->block_count;
    for (unsigned i = 0; same && i < source->block_count; i++)
        same = map->blocks[i].pages * map->blocks[i].page_size == source->blocks[i].size &&
               map->blocks[i].page_size == source->blocks[i].page_size;
    if (!same)
        return ibx_error_set(err, -EINVAL, "the page map (%u blocks) is not of this memory",
                             map->block_count);
    return ibx_page_map_runs(map, run_covered, &cover);
}
