/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which pages go to the destination next while the VM runs, and whether any do (warm.c).
 *
 * A pass takes guest RAM in pieces of 2 MiB that lie all over it, so that what was sent at any time
 * is a sample of it. How much of that has been written again can only grow until the pass ends: the
 * first one is given up as soon as it is known that it leaves too much. So a guest that writes
 * faster than the link takes its memory is found out after some parts, by what it has written to
 * them.
 */
#include "migrate/source/source.h"

#include "common/clock.h"

#include <inttypes.h>

#define ROUNDS_DEFAULT  8u
#define SECONDS_DEFAULT 60u
#define PART_LEAST_MS   50u /* a part should take at least this, */
#define PART_MOST_MS    250u
#define PART_OVERHEAD   16u          /* and so many times as long as the steps around its pages */
#define PART_LEAST      (1ull << 20) /* bytes */
#define PART_FIRST      (8ull << 20) /* of the first one: how long it takes is not known */
#define ENOUGH_MS       10           /* what is fetched within this is as well left to post-copy */
#define PIECE_PAGES     512u
#define PIECE_SMALL     (64u << 10) /* bytes of a page: greater ones are pieces of their own */
#define SAMPLE_PIECES   8u          /* a smaller sample of a pass decides nothing */

/* ---------------------------------------------------------------- the order */

static uint64_t piece_pages(const struct ibx_page_map *map)
{
    return map->blocks[0].page_size > PIECE_SMALL ? 1 : PIECE_PAGES;
}

static uint64_t pieces_of(const struct ibx_page_map *map)
{
    return (map->pages + piece_pages(map) - 1) / piece_pages(map);
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    for (uint64_t rest; b; a = b, b = rest)
        rest = a % b;
    return a;
}

/* The distance from each piece to the next one, around the end. It is about the golden section of
 * all, so that any number of pieces one after the other lie about as far from each other. */
static uint64_t stride_of(uint64_t pieces)
{
    uint64_t stride = pieces * 618 / 1000 + 1;
    while (common_divisor(stride, pieces) > 1)
        stride++;
    return stride;
}

bool ibx_warm_piece(const struct ibx_page_map *map, uint64_t place, uint64_t *first, uint64_t *end)
{
    const uint64_t size = piece_pages(map), pieces = pieces_of(map), number = place / size;
    if (number >= pieces)
        return false;
    const uint64_t page = number * stride_of(pieces) % pieces * size;
    *first = page + place % size;
    *end = page + size < map->pages ? page + size : map->pages;
    return true;
}

/* Whether any page is wanted from the cursor on. */
static bool any_left(const struct source_warm *warm)
{
    const struct ibx_page_map *map = &warm->wanted;
    uint64_t place = warm->cursor, first, end;
    for (; ibx_warm_piece(map, place, &first, &end);
         place += piece_pages(map) - place % piece_pages(map))
        if (first < end && ibx_guest_bits_next(map->bits, first, end, true) < end)
            return true;
    return false;
}

/* ---------------------------------------------------------------- a part */

/* After this time no further part begins. */
static uint64_t ends_ns(const struct source *s)
{
    const uint64_t seconds = s->options->warm_seconds ? s->options->warm_seconds : SECONDS_DEFAULT;
    return s->warm.began_ns + seconds * 1000 * IBX_NS_PER_MS;
}

/* How long a part should take. All of its pages are protected before the first of them is fetched,
 * so that short parts cost the VM fewer page faults. If the steps around them take long, because of
 * a round trip or the VM's disks, parts are longer. */
static uint64_t part_ms(const struct source *s)
{
    const uint64_t ms = s->warm.overhead_ns * PART_OVERHEAD / IBX_NS_PER_MS;
    return ms < PART_LEAST_MS ? PART_LEAST_MS : ms > PART_MOST_MS ? PART_MOST_MS : ms;
}

/* A part that was begun is fetched as a whole: none should take longer than there is time. */
static uint64_t part_bytes(const struct source *s)
{
    const uint64_t now = ibx_now_ns(), end = ends_ns(s), wished_ms = part_ms(s);
    const uint64_t left_ms = end > now ? (end - now) / IBX_NS_PER_MS : 0;
    const uint64_t bytes = s->warm.rate / 1000 * (left_ms < wished_ms ? left_ms : wished_ms);
    if (!s->warm.rate)
        return PART_FIRST;
    return bytes > PART_LEAST ? bytes : PART_LEAST;
}

/* Adds to the part the first of the pages [first, end) that are wanted, as many as there is room
 * for; returns where to go on. */
static uint64_t take(struct source_warm *warm, uint64_t first, uint64_t end, uint64_t *room)
{
    struct ibx_page_map *part = &warm->part;
    const uint64_t page = ibx_guest_bits_next(warm->wanted.bits, first, end, true);
    if (page == end)
        return end;
    const unsigned block = ibx_page_map_block(part, page);
    const uint64_t last = part->blocks[block].first + part->blocks[block].pages,
                   size = part->blocks[block].page_size, most = *room / size ? *room / size : 1;
    uint64_t till = ibx_guest_bits_next(warm->wanted.bits, page, last < end ? last : end, false);
    till = till - page < most ? till : page + most;
    ibx_page_map_set(part, page, till - page);
    *room -= (till - page) * size < *room ? (till - page) * size : *room;
    return till;
}

void ibx_source_warm_choose(struct source *s)
{
    struct source_warm *warm = &s->warm;
    uint64_t room = part_bytes(s), first, end;
    ibx_page_map_restart(&warm->part);
    while (room && ibx_warm_piece(&warm->wanted, warm->cursor, &first, &end)) {
        const uint64_t till = first < end ? take(warm, first, end, &room) : end;
        const uint64_t size = piece_pages(&warm->wanted);
        warm->cursor += till < end ? till - first : size - warm->cursor % size;
    }
}

/* ---------------------------------------------------------------- the end */

static uint64_t bytes_of(const struct source *s, uint64_t pages)
{
    return s->vm.map.pages ? s->vm.ram.bytes / s->vm.map.pages * pages : 0;
}

/* Pages that have come and been written again. What is wanted besides these may be new: a guest
 * that reads a file fills memory that was empty. */
static uint64_t written_again(const struct source_warm *warm)
{
    uint64_t again = 0;
    for (uint64_t i = 0; i < (warm->wanted.pages + 63) / 64; i++)
        again += (unsigned)__builtin_popcountll(warm->wanted.bits[i] & warm->held.bits[i]);
    return again;
}

/* A pass of which half was written again is too much. In a sample it has to be two thirds, and only
 * in the first pass: in later ones, what is held also came in earlier passes. */
static bool cannot_pay(const struct source *s)
{
    const struct source_warm *warm = &s->warm;
    return s->status.warm_rounds == 1 &&
           warm->pass_sent >= SAMPLE_PIECES * piece_pages(&warm->wanted) &&
           written_again(warm) * 3 >= warm->pass_sent * 2;
}

static void notify_why(const struct source *s)
{
    ibx_migration_notify(&s->options->observer,
                         "the VM writes to its memory faster than it crosses: most of %" PRIu64
                         " MiB that came in %" PRIu64 " ms has been written again; the rest is "
                         "fetched after the stop",
                         bytes_of(s, s->warm.pass_sent) >> 20,
                         (uint64_t)((ibx_now_ns() - s->warm.began_ns) / IBX_NS_PER_MS));
}

bool ibx_source_warm_is_enough(struct source *s)
{
    struct source_warm *warm = &s->warm;
    const unsigned rounds = s->options->warm_rounds ? s->options->warm_rounds : ROUNDS_DEFAULT;
    const uint64_t left = warm->wanted.data_pages;
    if (source_warm_lost(warm) || !left || source_returns(s) || ibx_now_ns() >= ends_ns(s) ||
        (warm->rate && bytes_of(s, left) < warm->rate / 1000 * ENOUGH_MS))
        return true;
    if (any_left(warm)) {
        if (!cannot_pay(s))
            return false;
        notify_why(s);
        return true;
    }
    /* The end of a pass; what was written since its parts were sent begins the next one. */
    if (s->status.warm_rounds == rounds || left * 2 >= warm->pass_pages)
        return true;
    s->status.warm_rounds++;
    warm->pass_pages = left;
    warm->pass_sent = 0;
    warm->cursor = 0;
    return false;
}
