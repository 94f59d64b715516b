/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* On the wire (docs/protocol.md, "The page map") a segment begins at a multiple of its size, and so
 * at a word of `bits`. */
#include "migrate/pages/pages.h"

#include "common/bits.h"
#include "common/wire.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGES_MAX (1ull << 40)

enum segment_kind {
    SEGMENT_ZERO,
    SEGMENT_DATA,
    SEGMENT_RUNS_ZERO,
    SEGMENT_RUNS_DATA,
    SEGMENT_BITS
};

static uint64_t words_of(uint64_t pages)
{
    return (pages + 63) / 64;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The lowest `n` of 64 bits. */
static uint64_t mask(unsigned n)
{
    return n < 64 ? (1ull << n) - 1 : UINT64_MAX;
}

int ibx_page_map_init(struct ibx_page_map *map, const struct ibx_migrate_block *blocks,
                      unsigned count, struct ibx_error *err)
{
    struct ibx_page_map fresh = {.block_count = count};
    if (count > IBX_GUEST_BLOCKS_MAX)
        return ibx_error_set(err, -EINVAL, "%u blocks of guest RAM: %u at most", count,
                             IBX_GUEST_BLOCKS_MAX);
    for (unsigned i = 0; i < count; i++) {
        if (!blocks[i].page_size || blocks[i].size % blocks[i].page_size)
            return ibx_error_set(err, -EINVAL,
                                 "guest RAM %s has %" PRIu64 " bytes, not whole pages of %" PRIu64,
                                 blocks[i].id, blocks[i].size, blocks[i].page_size);
        fresh.blocks[i].first = fresh.pages;
        fresh.blocks[i].pages = blocks[i].size / blocks[i].page_size;
        fresh.blocks[i].page_size = blocks[i].page_size;
        if (fresh.blocks[i].pages > PAGES_MAX - fresh.pages)
            return ibx_error_set(
                err, -E2BIG, "guest RAM up to %s has more than 2^40 pages, which cannot migrate",
                blocks[i].id);
        fresh.pages += fresh.blocks[i].pages;
    }
    fresh.bits = calloc(words_of(fresh.pages) + 1, sizeof(uint64_t));
    if (!fresh.bits)
        return ibx_error_set(err, -ENOMEM, "no memory for the map of %" PRIu64 " pages",
                             fresh.pages);
    *map = fresh;
    return 0;
}

int ibx_page_map_init_ram(struct ibx_page_map *map, const struct ibx_guest_ram *ram,
                          struct ibx_error *err)
{
    struct ibx_migrate_block *blocks = calloc(IBX_GUEST_BLOCKS_MAX, sizeof(*blocks));
    if (!blocks)
        return ibx_error_set(err, -ENOMEM, "no memory for %u blocks", IBX_GUEST_BLOCKS_MAX);
    int rc = ibx_page_map_init(map, blocks, ibx_migrate_describe_blocks(blocks, ram), err);
    free(blocks);
    return rc;
}

void ibx_page_map_fini(struct ibx_page_map *map)
{
    free(map->bits);
    memset(map, 0, sizeof(*map));
}

unsigned ibx_page_map_block(const struct ibx_page_map *map, uint64_t page)
{
    unsigned i = 0;
    while (i + 1 < map->block_count && page - map->blocks[i].first >= map->blocks[i].pages)
        i++;
    return i;
}

/* ------------------------------------------------------------ bits */

/* Returns `n` (1 to 64) bits from bit `at` on; reads no word beyond these bits. */
static uint64_t bits_get(const uint64_t *bits, uint64_t at, unsigned n)
{
    unsigned shift = at % 64;
    uint64_t value = bits[at / 64] >> shift;
    if (shift && n > 64 - shift)
        value |= bits[at / 64 + 1] << (64 - shift);
    return value & mask(n);
}

/* Sets `n` bits, which lie in one word, to `value`, and updates data_pages. */
static void bits_put(struct ibx_page_map *map, uint64_t at, unsigned n, uint64_t value)
{
    uint64_t *word = &map->bits[at / 64], where = mask(n) << at % 64;
    map->data_pages -= (uint64_t)__builtin_popcountll(*word & where);
    *word = (*word & ~where) | (value << at % 64 & where);
    map->data_pages += (uint64_t)__builtin_popcountll(*word & where);
}

static void bits_fill(struct ibx_page_map *map, uint64_t first, uint64_t count, bool data)
{
    while (count) {
        unsigned n = (unsigned)min_u64(count, 64 - first % 64);
        bits_put(map, first, n, data ? UINT64_MAX : 0);
        first += n;
        count -= n;
    }
}

/* The first page after `page` whose bit differs from that of `page`, or `end`. */
static uint64_t run_end(const struct ibx_page_map *map, uint64_t page, uint64_t end)
{
    return ibx_guest_bits_next(map->bits, page, end, !ibx_page_map_data(map, page));
}

void ibx_page_map_set(struct ibx_page_map *map, uint64_t first, uint64_t count)
{
    bits_fill(map, first, count, true);
}

void ibx_page_map_recount(struct ibx_page_map *map)
{
    map->data_pages = ibx_bits_count(map->bits, words_of(map->pages));
}

void ibx_page_map_recall(struct ibx_page_map *map, const void *bits)
{
    memcpy(map->bits, bits, words_of(map->pages) * sizeof(uint64_t));
    ibx_page_map_recount(map);
}

void ibx_page_map_add(struct ibx_page_map *map, const struct ibx_page_map *more)
{
    for (uint64_t i = 0; i < words_of(map->pages); i++)
        map->bits[i] |= more->bits[i];
    ibx_page_map_recount(map);
}

void ibx_page_map_remove(struct ibx_page_map *map, const struct ibx_page_map *less)
{
    for (uint64_t i = 0; i < words_of(map->pages); i++)
        map->bits[i] &= ~less->bits[i];
    ibx_page_map_recount(map);
}

void ibx_page_map_keep(struct ibx_page_map *map, const struct ibx_page_map *only)
{
    for (uint64_t i = 0; i < words_of(map->pages); i++)
        map->bits[i] &= only->bits[i];
    ibx_page_map_recount(map);
}

void ibx_page_map_copy(struct ibx_page_map *map, const struct ibx_page_map *from)
{
    memcpy(map->bits, from->bits, words_of(map->pages) * sizeof(uint64_t));
    map->data_pages = from->data_pages;
}

void ibx_page_map_put_block(struct ibx_page_map *map, unsigned block, const uint64_t *bits)
{
    const uint64_t first = map->blocks[block].first, pages = map->blocks[block].pages;
    uint64_t done = first % 64 ? 0 : pages / 64 * 64;
    if (done) { /* whole words, as nearly always */
        uint64_t *words = &map->bits[first / 64];
        map->data_pages -= ibx_bits_count(words, done / 64);
        memcpy(words, bits, done / 8);
        map->data_pages += ibx_bits_count(words, done / 64);
    }
    while (done < pages) {
        unsigned n = (unsigned)min_u64(pages - done, 64 - (first + done) % 64);
        bits_put(map, first + done, n, bits_get(bits, done, n));
        done += n;
    }
}

int ibx_page_map_search(struct ibx_page_map *map, const struct ibx_guest_ram *ram,
                        struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < ram->count; i++) {
        const struct ibx_guest_block *block = &ram->blocks[i];
        uint64_t written, *bits = ibx_guest_bits_make(block, err);
        if (!bits)
            return -ENOMEM;
        written = ibx_page_map_get_block(map, i, bits);
        rc = written ? ibx_guest_block_written_since(ram, block, bits, &written, err)
                     : ibx_guest_block_written(ram, block, bits, &written, err);
        if (!rc)
            ibx_page_map_put_block(map, i, bits);
        free(bits);
    }
    return rc;
}

uint64_t ibx_page_map_get_block(const struct ibx_page_map *map, unsigned block, uint64_t *bits)
{
    const uint64_t first = map->blocks[block].first, pages = map->blocks[block].pages;
    for (uint64_t done = 0; done < pages; done += 64)
        bits[done / 64] = bits_get(map->bits, first + done, (unsigned)min_u64(pages - done, 64));
    return ibx_bits_count(bits, words_of(pages));
}

int ibx_page_map_runs(const struct ibx_page_map *map,
                      int (*each)(void *context, uint64_t first, uint64_t count, bool data),
                      void *context)
{
    for (unsigned i = 0; i < map->block_count; i++) {
        uint64_t at = map->blocks[i].first, end = at + map->blocks[i].pages;
        while (at < end) {
            uint64_t next = run_end(map, at, end);
            int rc = each(context, at, next - at, ibx_page_map_data(map, at));
            if (rc)
                return rc;
            at = next;
        }
    }
    return 0;
}

/* ------------------------------------------------------------ to the wire */

static uint64_t segment_end(const struct ibx_page_map *map, uint64_t first)
{
    return min_u64(map->pages, first + IBX_PAGE_MAP_SEGMENT);
}

/* The number of runs of equal pages in [first, end); counts no further than `most` + 1. */
static unsigned count_runs(const struct ibx_page_map *map, uint64_t first, uint64_t end,
                           unsigned most)
{
    unsigned runs = 0;
    for (uint64_t at = first; at < end && runs <= most; runs++)
        at = run_end(map, at, end);
    return runs;
}

static void give_segment(const struct ibx_page_map *map, uint64_t first, struct ibx_writer *w)
{
    uint64_t end = segment_end(map, first), bytes = (end - first + 7) / 8;
    bool data = ibx_page_map_data(map, first);
    /* The form with runs takes 2 bytes, and 2 more for each run. */
    unsigned most = bytes > 2 ? (unsigned)(bytes - 2) / 2 : 0;
    unsigned runs = count_runs(map, first, end, most ? most : 1);
    if (runs == 1) {
        ibx_put_u8(w, data ? SEGMENT_DATA : SEGMENT_ZERO);
    } else if (runs <= most) {
        ibx_put_u8(w, data ? SEGMENT_RUNS_DATA : SEGMENT_RUNS_ZERO);
        ibx_put_u16(w, (uint16_t)runs);
        for (uint64_t at = first, next; at < end; at = next) {
            next = run_end(map, at, end);
            ibx_put_u16(w, (uint16_t)(next - at));
        }
    } else {
        ibx_put_u8(w, SEGMENT_BITS);
        for (uint64_t i = 0; i < bytes; i++)
            ibx_put_u8(w, (uint8_t)(map->bits[first / 64 + i / 8] >> 8 * (i % 8)));
    }
}

size_t ibx_page_map_encode(const struct ibx_page_map *map, uint64_t *from, uint8_t *out,
                           size_t size)
{
    struct ibx_writer w = ibx_writer_of(out, size);
    if (*from >= map->pages)
        return 0;
    ibx_put_u64(&w, *from);
    while (*from < map->pages) {
        struct ibx_writer before = w;
        give_segment(map, *from, &w);
        if (w.failed)
            return before.length;
        *from = segment_end(map, *from);
    }
    return w.length;
}

/* ------------------------------------------------------------ and back */

static int take_runs(struct ibx_page_map *map, uint64_t end, bool data, struct ibx_reader *r,
                     struct ibx_error *err)
{
    unsigned runs = ibx_get_u16(r);
    uint64_t at = map->next;
    if (!r->failed && runs < 2)
        return ibx_error_set(err, -EPROTO, "%u runs at page %" PRIu64 ": there must be two", runs,
                             at);
    for (unsigned i = 0; i < runs && !r->failed; i++, data = !data) {
        uint64_t count = ibx_get_u16(r);
        if (!r->failed && (!count || count > end - at))
            return ibx_error_set(err, -EPROTO,
                                 "a run of %" PRIu64 " pages at page %" PRIu64
                                 " of a segment up to %" PRIu64,
                                 count, at, end);
        bits_fill(map, at, count, data);
        at += count;
    }
    if (!r->failed && at != end)
        return ibx_error_set(err, -EPROTO,
                             "runs end at page %" PRIu64 " of a segment up to %" PRIu64, at, end);
    return 0;
}

static int take_bits(struct ibx_page_map *map, uint64_t end, struct ibx_reader *r,
                     struct ibx_error *err)
{
    uint64_t pages = end - map->next, bytes = (pages + 7) / 8;
    const uint8_t *bits = ibx_get_bytes(r, bytes);
    if (!bits)
        return 0;
    if (pages % 8 && bits[bytes - 1] >> pages % 8)
        return ibx_error_set(err, -EPROTO, "bits behind page %" PRIu64 ", the last", end - 1);
    for (uint64_t i = 0; i < bytes; i++)
        bits_put(map, map->next + 8 * i, (unsigned)min_u64(8, pages - 8 * i), bits[i]);
    return 0;
}

static int take_segment(struct ibx_page_map *map, struct ibx_reader *r, struct ibx_error *err)
{
    uint64_t end = segment_end(map, map->next);
    unsigned kind = ibx_get_u8(r);
    int rc = 0;
    switch (kind) {
    case SEGMENT_ZERO:
    case SEGMENT_DATA:
        bits_fill(map, map->next, end - map->next, kind == SEGMENT_DATA);
        break;
    case SEGMENT_RUNS_ZERO:
    case SEGMENT_RUNS_DATA:
        rc = take_runs(map, end, kind == SEGMENT_RUNS_DATA, r, err);
        break;
    case SEGMENT_BITS:
        rc = take_bits(map, end, r, err);
        break;
    default:
        return ibx_error_set(err, -EPROTO, "segment of kind %u at page %" PRIu64, kind, map->next);
    }
    if (rc)
        return rc;
    if (r->failed)
        return ibx_error_set(err, -EPROTO, "it is cut short at page %" PRIu64, map->next);
    map->next = end;
    return 0;
}

int ibx_page_map_decode(struct ibx_page_map *map, const uint8_t *bytes, size_t length,
                        struct ibx_error *err)
{
    struct ibx_reader r = ibx_reader_of(bytes, length);
    uint64_t first = ibx_get_u64(&r);
    int rc = 0;
    if (!ibx_reader_left(&r))
        rc = ibx_error_set(err, -EPROTO, "%zu bytes are no piece", length);
    else if (first != map->next)
        rc = ibx_error_set(err, -EPROTO, "page %" PRIu64 " comes where page %" PRIu64 " should",
                           first, map->next);
    while (!rc && ibx_reader_left(&r)) {
        if (map->next == map->pages)
            rc = ibx_error_set(err, -EPROTO, "%zu bytes behind its %" PRIu64 " pages",
                               ibx_reader_left(&r), map->pages);
        else
            rc = take_segment(map, &r, err);
    }
    return rc ? ibx_error_prefix(err, rc, "a piece of the page map from the peer is not valid") : 0;
}

void ibx_page_map_restart(struct ibx_page_map *map)
{
    memset(map->bits, 0, words_of(map->pages) * sizeof(uint64_t));
    map->data_pages = map->next = 0;
}

/* ------------------------------------------------------------ hash */

static bool hash_bits(EVP_MD_CTX *md, const struct ibx_page_map *map)
{
    uint8_t out[4096];
    uint64_t left = (map->pages + 7) / 8;
    if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) /* as on the wire */
        return EVP_DigestUpdate(md, map->bits, left) == 1;
    for (uint64_t word = 0; left;) {
        struct ibx_writer w = ibx_writer_of(out, sizeof(out));
        while (w.length < sizeof(out) && w.length < left)
            ibx_put_u64(&w, map->bits[word++]);
        size_t length = (size_t)min_u64(left, w.length);
        if (EVP_DigestUpdate(md, out, length) != 1)
            return false;
        left -= length;
    }
    return true;
}

void ibx_page_map_hash(const struct ibx_page_map *map, uint8_t hash[IBX_MIGRATE_HASH_BYTES])
{
    uint8_t head[16 + 2 + 16 * IBX_GUEST_BLOCKS_MAX];
    struct ibx_writer w = ibx_writer_of(head, sizeof(head));
    ibx_put_bytes(&w, "ibx page map ", 13);
    ibx_put_u16(&w, (uint16_t)map->block_count);
    for (unsigned i = 0; i < map->block_count; i++) {
        ibx_put_u64(&w, map->blocks[i].pages);
        ibx_put_u64(&w, map->blocks[i].page_size);
    }
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    bool good = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1 &&
                EVP_DigestUpdate(md, head, w.length) == 1 && hash_bits(md, map) &&
                EVP_DigestFinal_ex(md, hash, NULL) == 1;
    EVP_MD_CTX_free(md);
    /* OpenSSL has no memory: a random hash matches no other. */
    if (!good && getentropy(hash, IBX_MIGRATE_HASH_BYTES))
        abort();
}
