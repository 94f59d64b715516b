/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The page map compared with a plain array of one byte per page, and malformed pieces of it. */
#include "migrate/pages/pages.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SEGMENT IBX_PAGE_MAP_SEGMENT
#define PIECE   9000u /* the least that ibx_page_map_encode() accepts */

static struct ibx_error error;
static uint64_t seed = 1;

static uint64_t random_below(uint64_t n)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (seed >> 33) % n;
}

static struct ibx_page_map made(const struct ibx_migrate_block *blocks, unsigned count)
{
    struct ibx_page_map map;
    assert_int_equal(ibx_page_map_init(&map, blocks, count, &error), 0);
    return map;
}

static struct ibx_page_map made_pages(uint64_t pages)
{
    struct ibx_migrate_block block = {"ram", pages * 4096, 4096, 0};
    return made(&block, 1);
}

static void put(struct ibx_page_map *map, unsigned block, const uint8_t *model)
{
    uint64_t pages = map->blocks[block].pages, words = (pages + 63) / 64;
    uint64_t *bits = calloc(words ? words : 1, 8);
    assert_non_null(bits);
    for (uint64_t i = 0; i < pages; i++)
        bits[i / 64] |= (uint64_t)(model[i] != 0) << i % 64;
    if (pages % 64) /* the bits after the last page may have any value */
        bits[words - 1] |= UINT64_MAX << pages % 64;
    ibx_page_map_put_block(map, block, bits);
    free(bits);
}

static void check(const struct ibx_page_map *map, const uint8_t *model)
{
    uint64_t data = 0;
    for (uint64_t i = 0; i < map->pages; i++) {
        if (ibx_page_map_data(map, i) != (model[i] != 0))
            fail_msg("page %llu", (unsigned long long)i);
        data += model[i] != 0;
    }
    assert_int_equal(map->data_pages, data);
}

/* Sends the map in pieces of `size` bytes. Returns the number of bytes. */
static size_t send_over(const struct ibx_page_map *from, struct ibx_page_map *to, size_t size)
{
    uint64_t page = 0;
    size_t total = 0, n;
    uint8_t *piece = malloc(size);
    assert_non_null(piece);
    while ((n = ibx_page_map_encode(from, &page, piece, size))) {
        uint8_t *copy = malloc(n); /* so that a sanitizer detects reads behind it */
        assert_non_null(copy);
        memcpy(copy, piece, n);
        assert_int_equal(ibx_page_map_decode(to, copy, n, &error), 0);
        assert_int_equal(to->next, page);
        free(copy);
        total += n;
    }
    free(piece);
    assert_int_equal(page, from->pages);
    assert_int_equal(to->next, to->pages);
    return total;
}

static void same(const struct ibx_page_map *a, const struct ibx_page_map *b)
{
    uint8_t first[IBX_MIGRATE_HASH_BYTES], second[IBX_MIGRATE_HASH_BYTES];
    ibx_page_map_hash(a, first);
    ibx_page_map_hash(b, second);
    assert_memory_equal(first, second, sizeof(first));
    assert_int_equal(a->data_pages, b->data_pages);
}

/* ------------------------------------------------------------ round trips */

/* Fills a model with stretches of different kinds, so that all four encodings are used. */
static void paint(uint8_t *model, uint64_t pages)
{
    for (uint64_t at = 0; at < pages;) {
        uint64_t length = 1 + random_below(2 * SEGMENT), kind = random_below(5);
        for (uint64_t end = at + length, run = 0; at < end && at < pages; at++) {
            if (kind == 4 && !run)
                run = 1 + random_below(700);
            run -= run > 0;
            model[at] = kind == 0   ? 0
                        : kind == 1 ? 1
                        : kind == 2 ? random_below(2) != 0
                        : kind == 3 ? random_below(100) == 0
                        : run       ? model[at ? at - 1 : 0]
                                    : !model[at ? at - 1 : 0];
        }
    }
}

struct run_check {
    const struct ibx_page_map *map;
    const uint8_t *model;
    uint64_t at;
    bool last; /* the value of the previous run */
};

static bool is_block_start(const struct ibx_page_map *map, uint64_t page)
{
    bool found = false;
    for (unsigned i = 0; i < map->block_count; i++)
        found |= map->blocks[i].first == page;
    return found;
}

static int check_run(void *context, uint64_t first, uint64_t count, bool data)
{
    struct run_check *c = context;
    assert_int_equal(first, c->at);
    assert_true(count > 0);
    assert_true(data != c->last || is_block_start(c->map, first));
    for (uint64_t i = first; i < first + count; i++) {
        assert_int_equal(c->model[i] != 0, data);
        assert_true(i == first || !is_block_start(c->map, i));
    }
    c->at += count;
    c->last = data;
    return 0;
}

/* Blocks of 4 KiB, 2 MiB and 1 GiB pages that end within words and segments. */
static void random_maps_arrive(NO_STATE)
{
    for (unsigned turn = 0; turn < 10; turn++) {
        struct ibx_migrate_block blocks[5] = {
            {"a", (1 + random_below(3 * SEGMENT)) * 4096, 4096, 0},
            {"b", (1 + random_below(600)) << 21, 2u << 20, 0},
            {"c", (1 + random_below(2 * SEGMENT)) * 4096, 4096, 0},
            {"d", (1 + random_below(3)) << 30, 1u << 30, 0},
            {"e", (1 + random_below(SEGMENT)) * 16384, 16384, 0},
        };
        unsigned count = 1 + turn % 5;
        struct ibx_page_map from = made(blocks, count), to = made(blocks, count);
        uint8_t *model = calloc(1, from.pages);
        assert_non_null(model);
        for (unsigned pass = 0; pass < 2; pass++) { /* the second map is received over the first */
            paint(model, from.pages);
            for (unsigned i = 0; i < count; i++)
                put(&from, i, model + from.blocks[i].first);
            check(&from, model);
        }
        send_over(&from, &to, turn % 2 ? PIECE : 65535);
        check(&to, model);
        same(&from, &to);
        struct run_check c = {.map = &from, .model = model};
        assert_int_equal(ibx_page_map_runs(&from, check_run, &c), 0);
        assert_int_equal(c.at, from.pages);
        free(model);
        ibx_page_map_fini(&from);
        ibx_page_map_fini(&to);
    }
}

/* Which encoding a map gets, by its shape, and how long that is. */
static void shortest_encoding_is_chosen(NO_STATE)
{
    static uint8_t model[SEGMENT];
    const struct {
        unsigned period, bytes;
        uint8_t kind;
    } cases[] = {
        {0, 1, 0},           /* no data */
        {1, 1, 1},           /* all data */
        {SEGMENT / 2, 7, 3}, /* two runs, beginning with data */
        {17, 3 + 2 * 3856, 3},
        {3, 8193, 4},
        {2, 8193, 4},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ibx_page_map from = made_pages(SEGMENT), to = made_pages(SEGMENT);
        for (unsigned k = 0; k < SEGMENT; k++)
            model[k] = cases[i].period == 0             ? 0
                       : cases[i].period == SEGMENT / 2 ? k < SEGMENT / 2
                       : cases[i].period == 17          ? k / 17 % 2 == 0
                                                        : k % cases[i].period == 0;
        put(&from, 0, model);
        uint8_t piece[PIECE];
        uint64_t page = 0;
        assert_int_equal(ibx_page_map_encode(&from, &page, piece, sizeof(piece)),
                         8 + cases[i].bytes);
        assert_int_equal(piece[8], cases[i].kind);
        send_over(&from, &to, PIECE);
        check(&to, model);
        ibx_page_map_fini(&from);
        ibx_page_map_fini(&to);
    }
}

/* 8 GiB and more: 2^22 pages, nearly all of them zero, in one message. */
static void large_maps_are_short(NO_STATE)
{
    const uint64_t pages = 1ull << 22;
    struct ibx_page_map from = made_pages(pages), to = made_pages(pages);
    uint64_t *bits = calloc(pages / 64, 8);
    assert_non_null(bits);
    for (unsigned i = 0; i < 64; i++)
        bits[i * 1024 + 5] = 0xf0;
    ibx_page_map_put_block(&from, 0, bits);
    assert_int_equal(from.data_pages, 256);
    assert_int_equal(send_over(&from, &to, 65535), 8 + 64 * 9);
    same(&from, &to);
    for (unsigned i = 0; i < pages / 64; i++)
        bits[i] = 0x5555555555555555;
    ibx_page_map_put_block(&from, 0, bits);
    ibx_page_map_restart(&to);
    assert_int_equal(to.next, 0);
    assert_int_equal(to.data_pages, 0);
    assert_int_equal(send_over(&from, &to, 65535), pages / 8 + 64 + 10 * 8);
    same(&from, &to);
    free(bits);
    ibx_page_map_fini(&from);
    ibx_page_map_fini(&to);
}

static int stop_at_second(void *context, uint64_t first, uint64_t count, bool data)
{
    (void)first;
    (void)count;
    (void)data;
    return ++*(int *)context == 2 ? -ECANCELED : 0;
}

static void runs_stop_when_told(NO_STATE)
{
    static const uint8_t model[100] = {[3] = 1, [7] = 1};
    struct ibx_page_map map = made_pages(100);
    put(&map, 0, model);
    int calls = 0;
    assert_int_equal(ibx_page_map_runs(&map, stop_at_second, &calls), -ECANCELED);
    assert_int_equal(calls, 2);
    ibx_page_map_fini(&map);
}

/* ------------------------------------------------------------ golden, hostile */

static void hash_is_golden(NO_STATE)
{
    const struct ibx_migrate_block blocks[] = {{"a", 70 * 4096, 4096, 0},
                                               {"b", 5ull << 21, 2u << 20, 0}};
    struct ibx_page_map map = made(blocks, 2);
    static const uint8_t model[75] = {1, 0, 1, [63] = 1, [64] = 1, [69] = 1, [70] = 1, [74] = 1};
    uint8_t hash[IBX_MIGRATE_HASH_BYTES];
    /* "ibx page map ", 2, 70, 4096, 5, 2 MiB, then 05 00 00 00 00 00 00 80 61 04: sha256sum */
    static const uint8_t golden[IBX_MIGRATE_HASH_BYTES] = {
        0x7e, 0x74, 0xa5, 0x60, 0xcd, 0x78, 0x58, 0x8e, 0x4f, 0x7a, 0xf4,
        0x6f, 0x0f, 0x2b, 0x4e, 0x10, 0xa0, 0x81, 0xec, 0x95, 0x0a, 0x3c,
        0x43, 0x48, 0xdf, 0x2e, 0x14, 0x43, 0x98, 0x7f, 0xb4, 0x5d};
    put(&map, 0, model);
    put(&map, 1, model + 70);
    ibx_page_map_hash(&map, hash);
    assert_memory_equal(hash, golden, sizeof(hash));
    ibx_page_map_fini(&map);
}

static void pieces_are_golden(NO_STATE)
{
    static uint8_t model[2 * SEGMENT + 20];
    model[SEGMENT - 1] = 1;
    memset(model + SEGMENT, 1, SEGMENT);
    model[2 * SEGMENT] = model[2 * SEGMENT + 9] = model[2 * SEGMENT + 19] = 1;
    const uint8_t expected[] = {0, 0, 0, 0, 0, 0, 0, 0, /* from page 0 on */
                                /* 65535 zero pages, one with data */
                                2, 2, 0, 0xff, 0xff, 1, 0, 1, /* all data */
                                4, 0x01, 0x02, 0x08};         /* bits */
    struct ibx_page_map map = made_pages(sizeof(model));
    put(&map, 0, model);
    uint8_t piece[PIECE];
    uint64_t page = 0;
    assert_int_equal(ibx_page_map_encode(&map, &page, piece, sizeof(piece)), sizeof(expected));
    assert_memory_equal(piece, expected, sizeof(expected));
    assert_int_equal(ibx_page_map_encode(&map, &page, piece, sizeof(piece)), 0);
    ibx_page_map_fini(&map);
}

/* A piece for a map of 65556 pages (its last segment has 20) must be refused with this word. */
static void refused(const char *word, const uint8_t *bytes, size_t length)
{
    struct ibx_page_map map = made_pages(SEGMENT + 20);
    uint8_t *copy = malloc(length ? length : 1);
    assert_non_null(copy);
    if (length)
        memcpy(copy, bytes, length);
    assert_int_equal(ibx_page_map_decode(&map, copy, length, &error), -EPROTO);
    if (!strstr(error.message, word))
        fail_msg("\"%s\" does not say \"%s\"", error.message, word);
    assert_true(map.next <= map.pages && map.data_pages <= map.pages);
    /* The map can be started again, and nothing of it stays. */
    static const uint8_t zeros[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    ibx_page_map_restart(&map);
    assert_int_equal(ibx_page_map_decode(&map, zeros, sizeof(zeros), &error), 0);
    for (uint64_t i = 0; i < map.pages; i++)
        assert_false(ibx_page_map_data(&map, i));
    free(copy);
    ibx_page_map_fini(&map);
}

#define REFUSED(word, ...)                                                                         \
    do {                                                                                           \
        const uint8_t bytes_[] = {__VA_ARGS__};                                                    \
        refused(word, bytes_, sizeof(bytes_));                                                     \
    } while (0)
#define FROM(page) (page), 0, 0, 0, 0, 0, 0, 0

static void hostile_pieces_are_refused(NO_STATE)
{
    refused("0 bytes are no piece", NULL, 0);
    REFUSED("7 bytes are no piece", 0, 0, 0, 0, 0, 0, 0);
    REFUSED("8 bytes are no piece", FROM(0));
    REFUSED("page 1 comes where page 0", FROM(1), 0);
    REFUSED("kind 5", FROM(0), 5);
    REFUSED("kind 255", FROM(0), 1, 255);
    REFUSED("behind its 65556 pages", FROM(0), 0, 0, 0);
    REFUSED("cut short", FROM(0), 2);
    REFUSED("cut short", FROM(0), 2, 2, 0, 1, 0);
    REFUSED("cut short", FROM(0), 4, 1, 2, 3);
    REFUSED("0 runs", FROM(0), 2, 0, 0);
    REFUSED("1 runs", FROM(0), 3, 1, 0, 0xff, 0xff);
    REFUSED("a run of 0 pages", FROM(0), 2, 2, 0, 0, 0, 0xff, 0xff);
    REFUSED("a run of 2 pages at page 65535", FROM(0), 2, 2, 0, 0xff, 0xff, 2, 0);
    REFUSED("a run of 21 pages", FROM(0), 1, 3, 2, 0, 21, 0, 1, 0);
    REFUSED("runs end at page 65535", FROM(0), 3, 2, 0, 0xfe, 0xff, 1, 0);
    REFUSED("bits behind page 65555", FROM(0), 1, 4, 0, 0, 0x10);
}

static void pieces_come_once_and_in_order(NO_STATE)
{
    static uint8_t model[3 * SEGMENT];
    for (unsigned i = 0; i < sizeof(model); i++)
        model[i] = i % 3 == 0;
    struct ibx_page_map from = made_pages(sizeof(model)), to = made_pages(sizeof(model));
    put(&from, 0, model);
    uint8_t first[PIECE], second[PIECE];
    uint64_t page = 0;
    size_t n = ibx_page_map_encode(&from, &page, first, PIECE);
    size_t m = ibx_page_map_encode(&from, &page, second, PIECE);
    assert_int_equal(ibx_page_map_decode(&to, second, m, &error), -EPROTO);
    assert_int_equal(ibx_page_map_decode(&to, first, n, &error), 0);
    assert_int_equal(ibx_page_map_decode(&to, first, n, &error), -EPROTO);
    assert_int_equal(ibx_page_map_decode(&to, second, m, &error), 0);
    assert_int_equal(to.next, 2 * SEGMENT);
    ibx_page_map_fini(&from);
    ibx_page_map_fini(&to);
}

/* Randomly changed pieces give an error or a map, and write nothing outside it. */
static void changed_pieces_write_nothing_outside(NO_STATE)
{
    static uint8_t model[SEGMENT + 200];
    struct ibx_page_map from = made_pages(sizeof(model)), to = made_pages(sizeof(model));
    for (unsigned turn = 0; turn < 500; turn++) {
        uint8_t piece[65535];
        uint64_t page = 0;
        if (turn % 20 == 0) {
            paint(model, sizeof(model));
            put(&from, 0, model);
        }
        size_t n = ibx_page_map_encode(&from, &page, piece, sizeof(piece));
        for (unsigned k = 0; k < 1 + turn % 3; k++)
            piece[8 + random_below(turn % 2 ? n - 8 : 6)] = (uint8_t)random_below(256);
        uint8_t *copy = malloc(n);
        assert_non_null(copy);
        memcpy(copy, piece, n);
        ibx_page_map_restart(&to);
        int rc = ibx_page_map_decode(&to, copy, n - random_below(2), &error);
        assert_true(rc == 0 || rc == -EPROTO);
        assert_true(to.next <= to.pages);
        uint64_t data = 0;
        for (uint64_t i = 0; i < to.pages; i++)
            data += ibx_page_map_data(&to, i);
        assert_int_equal(data, to.data_pages);
        assert_int_equal(to.bits[to.pages / 64] >> to.pages % 64, 0);
        free(copy);
    }
    ibx_page_map_fini(&from);
    ibx_page_map_fini(&to);
}

/* The number of pages in the result is kept up to date. */
static void sets_of_pages_are_combined(NO_STATE)
{
    enum { PAGES = 200 };
    struct ibx_page_map map = made_pages(PAGES), other = made_pages(PAGES);
    uint8_t model[PAGES], others[PAGES];
    for (unsigned round = 0; round < 40; round++) {
        for (unsigned i = 0; i < PAGES; i++) {
            model[i] = random_below(2) != 0;
            others[i] = random_below(2) != 0;
        }
        put(&map, 0, model);
        put(&other, 0, others);
        for (unsigned i = 0; i < PAGES; i++)
            model[i] = round % 4 == 0   ? model[i] || others[i]
                       : round % 4 == 1 ? model[i] && !others[i]
                       : round % 4 == 2 ? model[i] && others[i]
                                        : others[i];
        if (round % 4 == 0)
            ibx_page_map_add(&map, &other);
        else if (round % 4 == 1)
            ibx_page_map_remove(&map, &other);
        else if (round % 4 == 2)
            ibx_page_map_keep(&map, &other);
        else
            ibx_page_map_copy(&map, &other);
        check(&map, model);
        check(&other, others);
    }
    ibx_page_map_fini(&map);
    ibx_page_map_fini(&other);
}

static void too_much_is_refused(NO_STATE)
{
    struct ibx_page_map map = {.pages = 77};
    struct ibx_migrate_block blocks[2] = {{"a", 1ull << 52, 4096, 0}, {"b", 4096, 4096, 0}};
    assert_int_equal(ibx_page_map_init(&map, blocks, 2, &error), -E2BIG);
    assert_non_null(strstr(error.message, "up to b"));
    blocks[1].page_size = 0;
    assert_int_equal(ibx_page_map_init(&map, &blocks[1], 1, &error), -EINVAL);
    blocks[1].page_size = 8192;
    assert_int_equal(ibx_page_map_init(&map, &blocks[1], 1, &error), -EINVAL);
    assert_int_equal(ibx_page_map_init(&map, blocks, IBX_GUEST_BLOCKS_MAX + 1, &error), -EINVAL);
    assert_int_equal(map.pages, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_maps_arrive),
        cmocka_unit_test(shortest_encoding_is_chosen),
        cmocka_unit_test(large_maps_are_short),
        cmocka_unit_test(runs_stop_when_told),
        cmocka_unit_test(hash_is_golden),
        cmocka_unit_test(pieces_are_golden),
        cmocka_unit_test(hostile_pieces_are_refused),
        cmocka_unit_test(pieces_come_once_and_in_order),
        cmocka_unit_test(changed_pieces_write_nothing_outside),
        cmocka_unit_test(sets_of_pages_are_combined),
        cmocka_unit_test(too_much_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
