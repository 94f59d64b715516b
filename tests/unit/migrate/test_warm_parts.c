/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The order in which pages are sent to the destination before the stop, and when that ends. */
#include "migrate/source/source.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <stdlib.h>
#include <string.h>

#define PIECE 512u

static struct source s;
static struct ibx_send_options options;
static struct ibx_error error;

/* Guest RAM of one block, all of which is wanted. */
static void ram_of(uint64_t pages, uint64_t page_size)
{
    const struct ibx_migrate_block block = {"ram", pages * page_size, page_size, 0};
    struct ibx_page_map *maps[] = {&s.vm.map, &s.warm.wanted, &s.warm.held, &s.warm.part};
    memset(&s, 0, sizeof(s));
    s.options = &options;
    ibx_source_warm_init(&s.warm);
    for (size_t i = 0; i < sizeof(maps) / sizeof(maps[0]); i++)
        assert_int_equal(ibx_page_map_init(maps[i], &block, 1, &error), 0);
    ibx_page_map_set(&s.warm.wanted, 0, pages);
    ibx_page_map_recount(&s.warm.wanted);
    s.warm.pass_pages = pages;
    s.vm.ram.bytes = pages * page_size;
    s.status.warm_rounds = 1;
    s.warm.began_ns = ibx_now_ns();
}

static void done(void)
{
    ibx_page_map_fini(&s.vm.map);
    ibx_page_map_fini(&s.warm.wanted);
    ibx_page_map_fini(&s.warm.held);
    ibx_page_map_fini(&s.warm.part);
}

/* The next part has arrived. */
static uint64_t send_part(void)
{
    ibx_source_warm_choose(&s);
    ibx_page_map_recount(&s.warm.part);
    ibx_page_map_remove(&s.warm.wanted, &s.warm.part);
    ibx_page_map_add(&s.warm.held, &s.warm.part);
    s.warm.pass_sent += s.warm.part.data_pages;
    return s.warm.part.data_pages;
}

static void test_each_page_once(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 511, 512, 513, 5 * 512 + 7, 64 * 512, 1000 * 512 - 1};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t sent = 0, n;
        ram_of(sizes[i], 4096);
        while ((n = send_part()) > 0)
            sent += n;
        assert_int_equal(sent, sizes[i]);
        assert_int_equal(s.warm.wanted.data_pages, 0);
        done();
    }
}

/* A part that ends within a piece continues there. */
static void test_huge_pages(void **state)
{
    (void)state;
    uint64_t sent = 0, n;
    ram_of(37, 2 << 20);
    while ((n = send_part()) > 0)
        sent += n;
    assert_int_equal(sent, 37);
    done();
}

/* No quarter of guest RAM has much more than a quarter of what is sent first. */
static void test_spread(void **state)
{
    (void)state;
    ram_of(1024 * PIECE, 4096);
    unsigned of[4] = {0};
    for (uint64_t i = 0, first, end; i < 16; i++) {
        assert_true(ibx_warm_piece(&s.warm.wanted, i * PIECE, &first, &end));
        assert_int_equal(end - first, PIECE);
        of[first / PIECE / 256]++;
    }
    for (unsigned i = 0; i < 4; i++)
        assert_in_range(of[i], 3, 5);
    done();
}

/* `of` 12 pages that were sent are written again. */
static bool ends_with(unsigned of, unsigned parts)
{
    ram_of(64 * PIECE, 4096);
    for (unsigned i = 0; i < parts; i++)
        send_part();
    const uint64_t sent = s.warm.pass_sent;
    uint64_t again = (sent * of + 11) / 12;
    for (uint64_t page = 0; page < 64 * PIECE && again; page++)
        if (!ibx_page_map_data(&s.warm.wanted, page)) {
            ibx_page_map_set(&s.warm.wanted, page, 1);
            again--;
        }
    ibx_page_map_recount(&s.warm.wanted);
    const bool ends = ibx_source_warm_is_enough(&s);
    done();
    return ends;
}

static void test_ends_when_it_is_useless(void **state)
{
    (void)state;
    assert_true(ends_with(9, 3));
    assert_true(ends_with(8, 2));
    assert_false(ends_with(7, 3));
    assert_false(ends_with(0, 3));
    assert_false(ends_with(12, 1)); /* too few to judge */
}

/* Marks pages [first, first + count) of guest RAM as wanted, or as not. */
static void wanted(bool is, uint64_t first, uint64_t count)
{
    if (is)
        ibx_page_map_set(&s.warm.wanted, first, count);
    for (uint64_t page = first; !is && page < first + count; page++)
        s.warm.wanted.bits[page / 64] &= ~(1ull << page % 64);
    ibx_page_map_recount(&s.warm.wanted);
}

/* Half of guest RAM is empty at first. Pages that the guest fills later do not count as written
 * again. */
static void test_goes_on_with_new_pages(void **state)
{
    (void)state;
    ram_of(64 * PIECE, 4096);
    wanted(false, 32 * PIECE, 32 * PIECE);
    s.warm.pass_pages = 32 * PIECE;
    for (unsigned i = 0; i < 3; i++)
        send_part();
    assert_true(s.warm.pass_sent >= 8 * PIECE);
    wanted(true, 32 * PIECE, 32 * PIECE);
    assert_false(ibx_source_warm_is_enough(&s));
    done();
}

/* In a later pass, earlier results say nothing about the pages that it sends. */
static void test_later_passes_go_on(void **state)
{
    (void)state;
    ram_of(64 * PIECE, 4096);
    while (send_part() > 0) {
    }
    wanted(true, 0, 24 * PIECE);
    assert_false(ibx_source_warm_is_enough(&s));
    assert_int_equal(s.status.warm_rounds, 2);
    for (unsigned i = 0; i < 2; i++)
        send_part();
    assert_true(s.warm.pass_sent >= 8 * PIECE);
    wanted(true, 32 * PIECE, 16 * PIECE);
    assert_false(ibx_source_warm_is_enough(&s));
    done();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_page_once),
        cmocka_unit_test(test_huge_pages),
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_ends_when_it_is_useless),
        cmocka_unit_test(test_goes_on_with_new_pages),
        cmocka_unit_test(test_later_passes_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
