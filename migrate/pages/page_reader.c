/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The destination's side of a page connection: a page reader of the fault engine. A request is cut
 * where regions meet, and arrives when all of its READs have completed. Requests that are not
 * urgent leave room for those that are.
 */
#include "migrate/pages/pages.h"

#include "common/state_machine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REGIONS_MORE   64u /* than the memory has pieces: they cost nothing */
#define FETCHES_MAX    96u
#define FETCHES_BULK   32u /* of these, how many requests that are not urgent may use */
#define EVENTS_AT_ONCE 16

/*
 * state machine: page reader
 *   [*] -> COLLECTING -> ARMED        all regions have come
 *   ARMED -> COLLECTING               more regions may come: the next round of --warm
 *   COLLECTING | ARMED -> CLOSED      the connection has ended; no buffer is touched any more
 *   CLOSED -> [*]
 *   COLLECTING | ARMED -> [*]
 */
enum reader_state { READER_COLLECTING, READER_ARMED, READER_CLOSED };
static const struct ibx_state reader_states[] = {
    [READER_COLLECTING] = {"collecting", IBX_TO(READER_ARMED) | IBX_TO(READER_CLOSED),
                           IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [READER_ARMED] = {"armed", IBX_TO(READER_CLOSED) | IBX_TO(READER_COLLECTING), IBX_STATE_FINAL},
    [READER_CLOSED] = {"closed", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table reader_table = IBX_STATE_TABLE("page reader", reader_states);

struct region {
    uint64_t start, length; /* bytes; offsets count through all blocks of the source */
    struct ibx_remote remote;
};

struct fetch {
    uint64_t cookie;
    size_t length;
    unsigned parts; /* READs that have not completed */
    int status;     /* the first failure */
    bool busy;
};

/* Bytes of a request that are contiguous at the source. */
struct piece {
    uint64_t offset;
    size_t length;
    char *buffer;
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
    uint64_t region_most; /* a source makes them of whole pieces (IBX_EXPORT_PIECE) */
    struct ibx_state_machine state;
    struct ibx_mr *buffer;
    struct fetch fetches[FETCHES_MAX];
    unsigned in_flight;
    int error;                  /* of the closed connection */
    char reason[IBX_ERROR_MAX]; /* why this side ended it; "": see the connection's own reason */
};

/* -------------------------------------------------------------------- beginning */

int ibx_page_reader_create(struct ibx_conn *conn, const struct ibx_migrate_block *blocks,
                           unsigned block_count, struct ibx_page_reader **out,
                           struct ibx_error *err)
{
    struct ibx_page_reader *reader = calloc(1, sizeof(*reader));
    struct block *own = calloc(block_count ? block_count : 1, sizeof(*own));
    uint64_t bytes = 0, most = REGIONS_MORE;
    int rc = reader && own ? 0 : ibx_error_set(err, -ENOMEM, "no memory to read pages");
    for (unsigned i = 0; !rc && i < block_count; i++) {
        own[i].first = bytes;
        own[i].size = blocks[i].size;
        own[i].page_size = blocks[i].page_size;
        snprintf(own[i].id, sizeof(own[i].id), "%s", blocks[i].id);
        if (!own[i].page_size || own[i].size > UINT64_MAX - bytes)
            rc = ibx_error_set(err, -EINVAL, "memory backend %s cannot have %llu bytes", own[i].id,
                               (unsigned long long)own[i].size);
        bytes += own[i].size;
        most += own[i].size / IBX_EXPORT_PIECE + !!(own[i].size % IBX_EXPORT_PIECE);
    }
    if (rc) {
        free(reader);
        free(own);
        return rc;
    }
    ibx_state_begin(&reader->state, &reader_table, READER_COLLECTING);
    reader->conn = conn;
    reader->blocks = own;
    reader->block_count = block_count;
    reader->region_most = most;
    *out = reader;
    return 0;
}

struct ibx_conn *ibx_page_reader_conn(const struct ibx_page_reader *reader)
{
    return reader->conn;
}

const char *ibx_page_reader_reason(const struct ibx_page_reader *reader)
{
    return reader->reason[0] ? reader->reason : ibx_conn_reason(reader->conn);
}

void ibx_page_reader_destroy(struct ibx_page_reader *reader)
{
    if (!reader)
        return;
    ibx_close(reader->conn); /* and its registrations */
    free(reader->regions);
    free(reader->blocks);
    free(reader);
}

/* Ends the connection for a reason of this side. */
static void give_up(struct ibx_page_reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void give_up(struct ibx_page_reader *reader, const char *format, ...)
{
    va_list args;
    if (!reader->reason[0] && !ibx_conn_reason(reader->conn)[0]) {
        va_start(args, format);
        vsnprintf(reader->reason, sizeof(reader->reason), format, args);
        va_end(args);
    }
    ibx_abort(reader->conn);
}

static void on_closed(struct ibx_page_reader *reader, int error)
{
    reader->error = error;
    ibx_state_move(&reader->state, READER_CLOSED);
}

/* ---------------------------------------------------------------------- regions */

/* What follows from the message alone was checked when it was decoded. */
static int region_check(const struct ibx_page_reader *reader, const struct ibx_migrate_region *part,
                        struct ibx_error *err)
{
    if (part->block >= reader->block_count)
        return ibx_error_set(err, -EPROTO,
                             "the source exposes block %u, but there are %u memory backends",
                             part->block, reader->block_count);
    const struct block *block = &reader->blocks[part->block];
    const char *wrong = NULL;
    if (part->offset > block->size || part->length > block->size - part->offset)
        wrong = "lies outside of it";
    else if (!part->length || part->offset % block->page_size || part->length % block->page_size)
        wrong = "is not of whole pages";
    if (!wrong)
        return 0;
    return ibx_error_set(
        err, -EPROTO, "the region of 0x%llx bytes at 0x%llx of memory backend %s %s",
        (unsigned long long)part->length, (unsigned long long)part->offset, block->id, wrong);
}

static int region_add(struct ibx_page_reader *reader, const struct ibx_migrate_region *part,
                      struct ibx_error *err)
{
    int rc = region_check(reader, part, err);
    if (rc)
        return rc;
    if (reader->region_count >= reader->region_most)
        return ibx_error_set(err, -EPROTO,
                             "the source exposes more than %llu regions: more than one for each "
                             "%llu bytes of memory",
                             (unsigned long long)reader->region_most, IBX_EXPORT_PIECE);
    if (reader->region_count == reader->region_room) {
        size_t room = reader->region_room ? reader->region_room * 2 : 64;
        struct region *more = realloc(reader->regions, room * sizeof(*more));
        if (!more)
            return ibx_error_set(err, -ENOMEM, "no memory for %zu regions", room);
        reader->regions = more;
        reader->region_room = room;
    }
    reader->regions[reader->region_count++] = (struct region){
        reader->blocks[part->block].first + part->offset, part->length, part->remote};
    return 0;
}

static int on_message(struct ibx_page_reader *reader, const struct ibx_event *event,
                      struct ibx_error *err)
{
    struct ibx_migrate_any message;
    int rc = ibx_migrate_decode(event->data, event->length, &message, err);
    if (rc)
        return rc;
    if (message.type == IBX_MIGRATE_REGION)
        return region_add(reader, &message.is.region, err);
    ibx_error_set(err, -EPROTO, "%s on a page connection, where REGION is expected",
                  ibx_migrate_message_name(message.type));
    ibx_migrate_message_free(&message);
    return -EPROTO;
}

int ibx_page_reader_regions(struct ibx_page_reader *reader, struct ibx_error *err)
{
    struct ibx_event events[EVENTS_AT_ONCE];
    struct ibx_error why = {0};
    int n;
    if (reader->state.now == READER_ARMED)
        return ibx_error_set(err, -EBUSY, "the page reader is in use");
    while (reader->state.now == READER_COLLECTING &&
           (n = ibx_poll(reader->conn, events, EVENTS_AT_ONCE)) > 0)
        for (int i = 0; i < n; i++) {
            if (events[i].type == IBX_EVENT_CLOSED)
                on_closed(reader, events[i].status);
            if (events[i].type != IBX_EVENT_MESSAGE)
                continue;
            if (!reader->reason[0] && on_message(reader, &events[i], &why))
                give_up(reader, "%s", why.message);
            ibx_message_release(reader->conn, &events[i]);
        }
    if (why.code)
        return ibx_error_set(err, why.code, "%s", why.message);
    if (reader->error || reader->reason[0])
        return ibx_error_set(err, reader->error ? reader->error : -EPROTO,
                             "a page connection has ended: %s", ibx_page_reader_reason(reader));
    return (int)reader->region_count;
}

static int region_order(const void *one, const void *other)
{
    const struct region *a = one, *b = other;
    return (a->start > b->start) - (a->start < b->start);
}

static int regions_sort(struct ibx_page_reader *reader, struct ibx_error *err)
{
    if (!reader->region_count)
        return 0;
    qsort(reader->regions, reader->region_count, sizeof(*reader->regions), region_order);
    for (size_t i = 1; i < reader->region_count; i++) {
        const struct region *before = &reader->regions[i - 1], *after = &reader->regions[i];
        if (after->start - before->start < before->length)
            return ibx_error_set(err, -EPROTO,
                                 "the source exposes byte 0x%llx of the memory in two regions",
                                 (unsigned long long)after->start);
    }
    return 0;
}

/* The index of the region that contains this byte, or of the next one; region_count: neither. */
static size_t region_find(const struct ibx_page_reader *reader, uint64_t byte)
{
    size_t low = 0, high = reader->region_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (reader->regions[middle].start + reader->regions[middle].length > byte)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The first byte of [from, from + length) that no region has, or its end. */
static uint64_t regions_reach(const struct ibx_page_reader *reader, uint64_t from, uint64_t length)
{
    uint64_t at = from;
    for (size_t i = region_find(reader, from); i < reader->region_count; i++) {
        const struct region *r = &reader->regions[i];
        if (r->start > at || at - from >= length)
            break;
        at = r->start + r->length;
    }
    return at - from < length ? at : from + length;
}

/* ------------------------------------------------------------ what the engine calls */

static struct ibx_mr *local_of(const struct ibx_page_reader *reader, const void *buffer,
                               size_t length)
{
    for (unsigned i = 0; i <= reader->block_count; i++) {
        struct ibx_mr *mr = i ? reader->blocks[i - 1].alias : reader->buffer;
        if (!mr)
            continue;
        uintptr_t at = (uintptr_t)buffer - (uintptr_t)ibx_mr_address(mr);
        if (at <= ibx_mr_length(mr) && length <= ibx_mr_length(mr) - at)
            return mr;
    }
    return NULL;
}

static struct fetch *fetch_take(struct ibx_page_reader *reader, bool urgent)
{
    if (reader->in_flight >= (urgent ? FETCHES_MAX : FETCHES_BULK))
        return NULL;
    for (unsigned i = 0; i < FETCHES_MAX; i++)
        if (!reader->fetches[i].busy)
            return &reader->fetches[i];
    return NULL;
}

/* Posts one READ for each region that the piece touches. READs that were posted before a failure
 * still complete; fetch->parts counts them. */
static int read_piece(struct ibx_page_reader *reader, struct fetch *fetch,
                      const struct piece *piece, struct ibx_mr *mr, unsigned flags)
{
    const struct region *r = &reader->regions[region_find(reader, piece->offset)];
    uint64_t at = piece->offset, end = at + piece->length;
    int rc = 0;
    for (; at < end && !rc; r++) {
        uint64_t stop = r->start + r->length < end ? r->start + r->length : end;
        rc = ibx_read(reader->conn, mr, piece->buffer + (at - piece->offset), &r->remote,
                      at - r->start, (size_t)(stop - at), (uint64_t)(fetch - reader->fetches),
                      flags);
        fetch->parts += !rc;
        at = stop;
    }
    return rc;
}

/* Piece `i` of a request: all of it if its pages are contiguous, else its page `i`. */
static struct piece piece_of(const struct ibx_fault_request *request, uint32_t i)
{
    const size_t length = request->pages ? request->length / request->page_count : request->length;
    const uint64_t behind = request->pages ? (request->pages[i] - request->page) * length : 0;
    return (struct piece){request->offset + behind, length, (char *)request->buffer + i * length};
}

static uint32_t pieces_of(const struct ibx_fault_request *request)
{
    return request->pages ? request->page_count : 1;
}

static int fetch_start(struct ibx_page_reader *reader, struct fetch *fetch,
                       const struct ibx_fault_request *request, struct ibx_mr *mr)
{
    const unsigned flags = (request->urgent ? IBX_URGENT : 0) | (request->more ? IBX_MORE : 0);
    int rc = 0;
    for (uint32_t i = 0; !rc && i < pieces_of(request); i++) {
        const struct piece piece = piece_of(request, i);
        rc = read_piece(reader, fetch, &piece, mr, flags);
    }
    if (rc && fetch->parts)
        fetch->status = rc;
    return fetch->parts ? 0 : rc;
}

/* Whether the source exposes all of the request; if not, `missing` is the first byte that it does
 * not expose. */
static bool exposed(const struct ibx_page_reader *reader, const struct ibx_fault_request *request,
                    uint64_t *missing)
{
    for (uint32_t i = 0; i < pieces_of(request); i++) {
        const struct piece piece = piece_of(request, i);
        *missing = regions_reach(reader, piece.offset, piece.length);
        if (*missing != piece.offset + piece.length)
            return false;
    }
    return true;
}

static int request_read(void *context, const struct ibx_fault_request *request)
{
    struct ibx_page_reader *reader = context;
    uint64_t missing = request->offset;
    if (ibx_page_reader_reason(reader)[0])
        return -EAGAIN; /* poll is about to report it */
    struct ibx_mr *mr = local_of(reader, request->buffer, request->length);
    if (!mr || !exposed(reader, request, &missing)) {
        give_up(reader, "byte 0x%llx of the memory is wanted, but %s", (unsigned long long)missing,
                mr ? "the source does not expose it" : "not into registered memory");
        return -EAGAIN;
    }
    struct fetch *fetch = fetch_take(reader, request->urgent);
    if (!fetch)
        return -EAGAIN;
    *fetch = (struct fetch){.cookie = request->cookie, .length = request->length};
    int rc = fetch_start(reader, fetch, request, mr);
    if (rc)
        return rc == -ENOTCONN ? -EAGAIN : rc;
    fetch->busy = true;
    reader->in_flight++;
    return 0;
}

/* The engine cancels only when it stops, and then the connection is of no more use. Ending it makes
 * all requests complete at once, even if the network is dead. */
static void cancel(void *context, uint64_t cookie)
{
    (void)cookie;
    give_up(context, "%s", "the pages are no longer wanted");
}

/* Notes that a READ has completed. 1: it was the last one of its request, and `arrival` is set. */
static int on_read(struct ibx_page_reader *reader, const struct ibx_event *event,
                   struct ibx_fault_arrival *arrival)
{
    struct fetch *fetch = &reader->fetches[event->cookie];
    if (event->status && !fetch->status)
        fetch->status = event->status;
    if (--fetch->parts)
        return 0;
    /* The connection has ended, so all READs fail; poll reports why once the last has completed. */
    if (fetch->status && ibx_page_reader_reason(reader)[0])
        fetch->status = -ECANCELED;
    *arrival = (struct ibx_fault_arrival){.cookie = fetch->cookie,
                                          .status = fetch->status,
                                          .length = fetch->status ? 0 : fetch->length};
    fetch->busy = false;
    reader->in_flight--;
    return 1;
}

static int poll_arrivals(void *context, struct ibx_fault_arrival *arrivals, int max)
{
    struct ibx_page_reader *reader = context;
    struct ibx_event events[EVENTS_AT_ONCE];
    int arrived = 0, want, n;
    if (reader->state.now == READER_CLOSED)
        return reader->error;
    do {
        want = max - arrived < EVENTS_AT_ONCE ? max - arrived : EVENTS_AT_ONCE;
        n = ibx_poll(reader->conn, events, want);
        for (int i = 0; i < n; i++) {
            if (events[i].type == IBX_EVENT_READ)
                arrived += on_read(reader, &events[i], &arrivals[arrived]);
            if (events[i].type == IBX_EVENT_CLOSED)
                on_closed(reader, events[i].status);
            if (events[i].type != IBX_EVENT_MESSAGE)
                continue;
            ibx_message_release(reader->conn, &events[i]);
            give_up(reader, "%s", "the source sent a message where pages are expected");
        }
    } while (n == want && arrived < max && reader->state.now != READER_CLOSED);
    return arrived ? arrived : reader->error;
}

static int arm(void *context)
{
    const struct ibx_page_reader *reader = context;
    return reader->state.now == READER_CLOSED ? 1 : ibx_arm(reader->conn);
}

static int fd(void *context)
{
    const struct ibx_page_reader *reader = context;
    return ibx_fd(reader->conn);
}

static const struct ibx_fault_reader_ops operations = {.request = request_read,
                                                       .cancel = cancel,
                                                       .poll = poll_arrivals,
                                                       .arm = arm,
                                                       .fd = fd,
                                                       .scatters = true};

/* ------------------------------------------------------------------ into the engine */

int ibx_page_reader_serve(struct ibx_page_reader *reader, size_t buffer_bytes,
                          struct ibx_fault_reader *as, struct ibx_error *err)
{
    if (buffer_bytes && !reader->buffer) {
        int rc =
            ibx_mr_allocate(reader->conn, buffer_bytes, IBX_ACCESS_LOCAL, &reader->buffer, err);
        if (rc)
            return rc;
    }
    *as =
        (struct ibx_fault_reader){.ops = &operations,
                                  .context = reader,
                                  .buffer = reader->buffer ? ibx_mr_address(reader->buffer) : NULL};
    return 0;
}

int ibx_page_reader_arm(struct ibx_page_reader *reader, size_t buffer_bytes,
                        struct ibx_fault_reader *as, struct ibx_error *err)
{
    int rc = ibx_page_reader_regions(reader, err);
    if (rc < 0)
        return rc;
    rc = regions_sort(reader, err);
    if (!rc)
        rc = ibx_page_reader_serve(reader, buffer_bytes, as, err);
    return rc ? rc : ibx_state_move(&reader->state, READER_ARMED);
}

void ibx_page_reader_disarm(struct ibx_page_reader *reader)
{
    if (reader->state.now == READER_ARMED)
        ibx_state_move(&reader->state, READER_COLLECTING);
}

int ibx_page_reader_aliases(struct ibx_page_reader *reader, const struct ibx_page_reader *other,
                            void *const *aliases, struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < reader->block_count; i++) {
        struct block *block = &reader->blocks[i];
        const struct ibx_mr *there = other ? other->blocks[i].alias : NULL;
        if (!aliases[i] || block->alias)
            continue;
        struct ibx_span span = ibx_span_host(aliases[i], (size_t)block->size);
        rc = there ? ibx_mr_share(reader->conn, there, &block->alias, err)
                   : ibx_mr_register(reader->conn, &span, IBX_ACCESS_LOCAL, &block->alias, err);
    }
    return rc;
}

int ibx_page_reader_remote(const struct ibx_page_reader *reader, uint64_t offset, size_t length,
                           struct ibx_remote *remote)
{
    size_t i = region_find(reader, offset);
    const struct region *r = &reader->regions[i];
    if (i == reader->region_count || offset < r->start || length > r->length - (offset - r->start))
        return -ERANGE;
    *remote = r->remote;
    remote->address += offset - r->start;
    remote->length = length;
    return 0;
}

/* ------------------------------------------------------------------ before the commit */

struct cover {
    const struct ibx_page_reader *reader;
    const struct ibx_page_map *map;
    struct ibx_error *err;
};

static int run_covered(void *context, uint64_t first, uint64_t count, bool data)
{
    const struct cover *cover = context;
    const struct ibx_page_reader *reader = cover->reader;
    for (unsigned i = 0; data && i < reader->block_count; i++) {
        const struct block *block = &reader->blocks[i];
        uint64_t from = cover->map->blocks[i].first, end = from + cover->map->blocks[i].pages;
        uint64_t low = first > from ? first : from;
        uint64_t high = first + count < end ? first + count : end;
        if (low >= high)
            continue;
        uint64_t at = block->first + (low - from) * block->page_size;
        uint64_t length = (high - low) * block->page_size;
        uint64_t reach = regions_reach(reader, at, length);
        if (reach != at + length)
            return ibx_error_set(
                cover->err, -EPROTO,
                "page %llu of memory backend %s holds data, but the source does not expose it",
                (unsigned long long)((reach - block->first) / block->page_size), block->id);
    }
    return 0;
}

int ibx_page_reader_covers(const struct ibx_page_reader *reader, const struct ibx_page_map *map,
                           struct ibx_error *err)
{
    struct cover cover = {reader, map, err};
    bool same = map->block_count == reader->block_count;
    for (unsigned i = 0; same && i < reader->block_count; i++)
        same = map->blocks[i].pages * map->blocks[i].page_size == reader->blocks[i].size &&
               map->blocks[i].page_size == reader->blocks[i].page_size;
    if (!same)
        return ibx_error_set(err, -EINVAL, "the page map (%u blocks) is not of this memory",
                             map->block_count);
    return ibx_page_map_runs(map, run_covered, &cover);
}
