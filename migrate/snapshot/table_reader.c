/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Requests of the engine become requests below, under numbers of this file. A request whose hashes
 * are not there yet is held: it is passed to the engine when its pages have arrived and all of its
 * hashes are kept. A fetch of hashes is posted right after the request that needs them, with the
 * same urgency. A fetch that is not urgent also brings following hashes, as many as are kept right
 * before, because the background continues there.
 *
 * Several workers may need the same piece of the table at once, and then each fetches it: none
 * waits for the connection of another one.
 */
#include "migrate/snapshot/snapshot.h"

#include "common/state_machine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS     128u
#define FETCHES      16u
#define FETCHES_BULK 8u                      /* of these, how many requests not urgent may use */
#define FETCH_BYTES  (8 * IBX_SNAPSHOT_PAGE) /* of a fetch, at most */
#define FETCH_COOKIE REQUESTS
#define ARRIVALS     16

_Static_assert(IBX_SNAPSHOT_TABLE_BUFFER == FETCHES * FETCH_BYTES, "buffer");

/*
 * state machine: request of pages with hashes
 *   [*] -> FREE -> ASKED -> ARRIVED -> FREE -> [*]   the pages come; the engine gets them
 *   FREE -> ARRIVED      pages of the table that the checker keeps
 *   ASKED | ARRIVED -> [*]     the connection has ended
 */
enum held_state { HELD_FREE, HELD_ASKED, HELD_ARRIVED };
static const struct ibx_state held_states[] = {
    [HELD_FREE] = {"free", IBX_TO(HELD_ASKED) | IBX_TO(HELD_ARRIVED),
                   IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [HELD_ASKED] = {"asked", IBX_TO(HELD_ARRIVED), IBX_STATE_FINAL},
    [HELD_ARRIVED] = {"arrived", IBX_TO(HELD_FREE), IBX_STATE_FINAL},
};
static const struct ibx_state_table held_table =
    IBX_STATE_TABLE("request of pages with hashes", held_states);

struct held {
    struct ibx_state_machine state;
    uint64_t cookie;     /* the engine's */
    uint64_t first, end; /* pieces of the table that it needs */
    struct ibx_fault_arrival arrival;
    bool urgent;
    enum {
        HASHES_WANTED,
        HASHES_WRONG, /* one of them came, and was not what was frozen */
        HASHES_LOST,  /* one of them did not come */
    } hashes;
    int why; /* HASHES_LOST: a negative errno */
};

struct fetch {
    uint64_t first, end; /* pieces of the table; first == end: the fetch is free */
    bool urgent;
};

struct ibx_snapshot_table_reader {
    struct ibx_fault_reader below;
    struct ibx_snapshot_checker *checker;
    unsigned worker;
    uint64_t table; /* the number of the table's first page in the snapshot */
    uint64_t last;  /* the number of its pieces */
    uint32_t piece; /* bytes of a piece */
    uint32_t each;  /* pages that have their hashes in one piece */
    uint32_t most;  /* pieces in a fetch, at most */
    uint8_t *buffer, *own;
    struct held held[REQUESTS];
    unsigned arrived; /* how many of `held` are in HELD_ARRIVED */
    struct fetch fetches[FETCHES];
    unsigned bulk; /* how many of `fetches` are not urgent */
};

/* ------------------------------------------------------------ fetching hashes */

/* The fetch under way that brings this piece; if `urgent`, only an urgent one. NULL: there is none.
 */
static const struct fetch *fetch_of(const struct ibx_snapshot_table_reader *reader, uint64_t piece,
                                    bool urgent)
{
    for (unsigned i = 0; i < FETCHES; i++) {
        const struct fetch *fetch = &reader->fetches[i];
        if (piece >= fetch->first && piece < fetch->end && (fetch->urgent || !urgent))
            return fetch;
    }
    return NULL;
}

static struct fetch *fetch_free(struct ibx_snapshot_table_reader *reader, bool urgent)
{
    if (!urgent && reader->bulk == FETCHES_BULK)
        return NULL;
    for (unsigned i = 0; i < FETCHES; i++)
        if (reader->fetches[i].end == reader->fetches[i].first)
            return &reader->fetches[i];
    return NULL;
}

static uint8_t *fetch_buffer(const struct ibx_snapshot_table_reader *reader,
                             const struct fetch *fetch)
{
    return reader->buffer + (size_t)(fetch - reader->fetches) * FETCH_BYTES;
}

static bool is_kept(const struct ibx_snapshot_table_reader *reader, uint64_t piece)
{
    return ibx_snapshot_checker_lacks(reader->checker, piece, piece + 1) != piece;
}

/* How many pieces right before this one are kept, `most` at most. */
static uint64_t kept_before(const struct ibx_snapshot_table_reader *reader, uint64_t piece)
{
    uint64_t count = 0;
    while (count < reader->most && count < piece && is_kept(reader, piece - count - 1))
        count++;
    return count;
}

/* Where a fetch from `piece` on ends: after pieces that are needed up to `end`, and `more` that
 * nobody has claimed. */
static uint64_t fetch_end(struct ibx_snapshot_table_reader *reader, uint64_t piece, uint64_t end,
                          uint64_t more)
{
    uint64_t at = piece;
    do
        ibx_snapshot_checker_claim(reader->checker, at++);
    while (at < end && at - piece < reader->most && !is_kept(reader, at));
    while (at >= end && at - end < more && at < reader->last && at - piece < reader->most &&
           ibx_snapshot_checker_claim(reader->checker, at))
        at++;
    return at;
}

static void unclaim(struct ibx_snapshot_table_reader *reader, const struct fetch *fetch)
{
    for (uint64_t piece = fetch->first; piece < fetch->end; piece++)
        ibx_snapshot_checker_unclaim(reader->checker, piece);
}

static void lose_hashes(struct held *held, int why)
{
    held->hashes = HASHES_LOST;
    held->why = why;
}

/* Starts a fetch for a request. NULL: not possible now, or never: then its hashes are lost. */
static const struct fetch *fetch_start(struct ibx_snapshot_table_reader *reader, struct held *held,
                                       uint64_t piece)
{
    struct fetch *fetch = fetch_free(reader, held->urgent);
    if (!fetch)
        return NULL;
    *fetch = (struct fetch){.first = piece, .urgent = held->urgent};
    fetch->end = fetch_end(reader, piece, held->end, held->urgent ? 0 : kept_before(reader, piece));
    const uint64_t at = fetch->first * reader->piece;
    const struct ibx_fault_request request = {
        .page = reader->table + at / IBX_SNAPSHOT_PAGE,
        .offset = reader->table * IBX_SNAPSHOT_PAGE + at,
        .length = (size_t)(fetch->end - fetch->first) * reader->piece,
        .buffer = fetch_buffer(reader, fetch),
        .cookie = FETCH_COOKIE + (uint64_t)(fetch - reader->fetches),
        .urgent = held->urgent};
    const int rc = reader->below.ops->request(reader->below.context, &request);
    reader->bulk += !rc && !held->urgent;
    if (!rc)
        return fetch;
    unclaim(reader, fetch);
    *fetch = (struct fetch){.first = 0};
    if (rc != -EAGAIN)
        lose_hashes(held, rc);
    return NULL;
}

static void fetch_done(struct ibx_snapshot_table_reader *reader, struct fetch *fetch,
                       const struct ibx_fault_arrival *arrival)
{
    const uint64_t pieces = arrival->status ? 0 : arrival->length / reader->piece;
    const uint8_t *bytes = fetch_buffer(reader, fetch);
    unclaim(reader, fetch);
    ibx_snapshot_checker_note(reader->checker, pieces * reader->piece);
    for (uint64_t piece = fetch->first; piece < fetch->end; piece++, bytes += reader->piece) {
        const bool came = piece - fetch->first < pieces;
        if (came && !ibx_snapshot_checker_keep(reader->checker, reader->worker, piece, bytes, NULL))
            continue;
        for (unsigned i = 0; i < REQUESTS; i++) {
            struct held *held = &reader->held[i];
            if (piece < held->first || piece >= held->end)
                continue;
            if (came)
                held->hashes = HASHES_WRONG;
            else
                lose_hashes(held, arrival->status ? arrival->status : -EAGAIN);
        }
    }
    reader->bulk -= !fetch->urgent;
    *fetch = (struct fetch){.first = 0};
}

/* Whether all hashes that a request needs are kept, or some will never be. If not, starts to fetch
 * the missing ones. */
static bool settled(struct ibx_snapshot_table_reader *reader, struct held *held)
{
    bool all = true;
    uint64_t piece = held->first;
    if (held->arrival.status || held->hashes != HASHES_WANTED)
        return true;
    while ((piece = ibx_snapshot_checker_lacks(reader->checker, piece, held->end)) < held->end) {
        const struct fetch *fetch = fetch_of(reader, piece, held->urgent);
        if (!fetch && !(fetch = fetch_start(reader, held, piece)))
            return held->hashes != HASHES_WANTED;
        piece = fetch->end;
        all = false;
    }
    return all;
}

static bool is_ready(struct ibx_snapshot_table_reader *reader, unsigned i)
{
    return reader->held[i].state.now == HELD_ARRIVED && settled(reader, &reader->held[i]);
}

/* ------------------------------------------------------------ for the engine */

static struct held *held_free(struct ibx_snapshot_table_reader *reader)
{
    for (unsigned i = 0; i < REQUESTS; i++)
        if (reader->held[i].state.now == HELD_FREE)
            return &reader->held[i];
    return NULL;
}

/* Serves a request for pages of the table itself, if the checker keeps all of them. */
static bool copied(struct ibx_snapshot_table_reader *reader, const struct ibx_fault_request *r,
                   uint64_t page, uint64_t end)
{
    const uint64_t pieces = IBX_SNAPSHOT_PAGE / reader->piece;
    if (page < reader->table)
        return false;
    const uint64_t from = (page - reader->table) * pieces, to = (end - reader->table) * pieces;
    if (ibx_snapshot_checker_lacks(reader->checker, from, to) < to)
        return false;
    ibx_snapshot_checker_copy(reader->checker, from, to - from, r->buffer);
    return true;
}

static int request(void *context, const struct ibx_fault_request *r)
{
    struct ibx_snapshot_table_reader *reader = context;
    const uint64_t page = r->offset / IBX_SNAPSHOT_PAGE, end = page + r->length / IBX_SNAPSHOT_PAGE;
    struct held *held = held_free(reader);
    struct ibx_fault_request own = *r;
    if (!held)
        return -EAGAIN;
    *held = (struct held){.state = held->state, .cookie = r->cookie, .urgent = r->urgent};
    if (page < reader->table) {
        held->first = page / reader->each;
        held->end = (end - 1) / reader->each + 1;
    }
    if (copied(reader, r, page, end)) {
        held->arrival = (struct ibx_fault_arrival){.length = r->length};
        reader->arrived++;
        return ibx_state_move(&held->state, HELD_ARRIVED);
    }
    own.cookie = (uint64_t)(held - reader->held);
    const int rc = reader->below.ops->request(reader->below.context, &own);
    if (rc) {
        held->first = held->end = 0;
        return rc;
    }
    settled(reader, held); /* starts to fetch its hashes */
    return ibx_state_move(&held->state, HELD_ASKED);
}

/* A page whose hashes did not come is requested again with them, unless they were refused: they
 * would be refused again, and nobody would learn of it. */
static void give(struct ibx_snapshot_table_reader *reader, struct held *held,
                 struct ibx_fault_arrival *arrival)
{
    *arrival = held->arrival;
    arrival->cookie = held->cookie;
    if (held->hashes == HASHES_LOST && !arrival->status)
        *arrival = (struct ibx_fault_arrival){
            .cookie = held->cookie, .status = held->why == -ECANCELED ? -EAGAIN : held->why};
    held->first = held->end = 0;
    ibx_state_move(&held->state, HELD_FREE);
    reader->arrived--;
}

static void take(struct ibx_snapshot_table_reader *reader, const struct ibx_fault_arrival *arrival)
{
    if (arrival->cookie >= FETCH_COOKIE) {
        fetch_done(reader, &reader->fetches[arrival->cookie - FETCH_COOKIE], arrival);
        return;
    }
    struct held *held = &reader->held[arrival->cookie];
    held->arrival = *arrival;
    ibx_state_move(&held->state, HELD_ARRIVED);
    reader->arrived++;
}

static int poll_arrivals(void *context, struct ibx_fault_arrival *arrivals, int max)
{
    struct ibx_snapshot_table_reader *reader = context;
    struct ibx_fault_arrival got[ARRIVALS];
    const int n =
        reader->below.ops->poll(reader->below.context, got, max < ARRIVALS ? max : ARRIVALS);
    int count = 0;
    for (int i = 0; i < n; i++)
        take(reader, &got[i]);
    for (unsigned i = 0; n >= 0 && reader->arrived && i < REQUESTS && count < max; i++)
        if (is_ready(reader, i))
            give(reader, &reader->held[i], &arrivals[count++]);
    return n < 0 ? n : count;
}

/* A request whose pages have arrived waits for hashes, so all fetches of hashes are cancelled. */
static void cancel(void *context, uint64_t cookie)
{
    struct ibx_snapshot_table_reader *reader = context;
    const struct ibx_fault_reader *below = &reader->below;
    bool hashes = false;
    for (unsigned i = 0; below->ops->cancel && i < REQUESTS; i++) {
        const struct held *held = &reader->held[i];
        const bool is = held->state.now != HELD_FREE && held->cookie == cookie;
        if (is && held->state.now == HELD_ASKED)
            below->ops->cancel(below->context, i);
        hashes |= is && held->state.now == HELD_ARRIVED;
    }
    for (unsigned i = 0; hashes && i < FETCHES; i++)
        if (reader->fetches[i].end != reader->fetches[i].first)
            below->ops->cancel(below->context, FETCH_COOKIE + i);
}

static int arm(void *context)
{
    struct ibx_snapshot_table_reader *reader = context;
    for (unsigned i = 0; reader->arrived && i < REQUESTS; i++)
        if (is_ready(reader, i))
            return 1;
    return reader->below.ops->arm ? reader->below.ops->arm(reader->below.context) : 0;
}

static int fd(void *context)
{
    const struct ibx_snapshot_table_reader *reader = context;
    return reader->below.ops->fd ? reader->below.ops->fd(reader->below.context) : -1;
}

static const struct ibx_fault_reader_ops operations = {
    .request = request, .cancel = cancel, .poll = poll_arrivals, .arm = arm, .fd = fd};

/* ------------------------------------------------------------ making one */

struct ibx_snapshot_table_reader *
ibx_snapshot_table_reader_create(const struct ibx_fault_reader *below, uint8_t *buffer,
                                 struct ibx_snapshot_checker *checker, unsigned worker,
                                 const struct ibx_snapshot_manifest *manifest)
{
    struct ibx_snapshot_table_reader *reader = calloc(1, sizeof(*reader));
    if (!reader)
        return NULL;
    *reader = (struct ibx_snapshot_table_reader){.below = *below,
                                                 .checker = checker,
                                                 .worker = worker,
                                                 .table = ibx_snapshot_hashed_pages(manifest),
                                                 .last = ibx_snapshot_pieces(manifest),
                                                 .piece = ibx_snapshot_piece_bytes(manifest),
                                                 .each = ibx_snapshot_checker_piece_pages(checker),
                                                 .buffer = buffer};
    reader->most = FETCH_BYTES / reader->piece;
    for (unsigned i = 0; i < REQUESTS; i++)
        ibx_state_begin(&reader->held[i].state, &held_table, HELD_FREE);
    if (!buffer)
        reader->buffer = reader->own = malloc(IBX_SNAPSHOT_TABLE_BUFFER);
    if (reader->buffer)
        return reader;
    free(reader);
    return NULL;
}

void ibx_snapshot_table_reader_serve(struct ibx_snapshot_table_reader *reader,
                                     struct ibx_fault_reader *as)
{
    *as = (struct ibx_fault_reader){
        .ops = &operations, .context = reader, .buffer = reader->below.buffer};
}

void ibx_snapshot_table_reader_destroy(struct ibx_snapshot_table_reader *reader)
{
    if (reader)
        free(reader->own);
    free(reader);
}
