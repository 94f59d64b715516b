/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The regions that a source exposes, as a page reader takes them. The test plays the source. */
#include "tests/fixtures/pages_scene.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static struct ibx_migrate_any region_of(unsigned block, uint64_t offset, uint64_t length)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_REGION};
    message.is.region = (struct ibx_migrate_region){
        (uint16_t)block, offset, length, {.address = 1u << 20, .length = length}};
    return message;
}

/* Gives the destination a message behind so many regions. Returns how many it has then, or an
 * error. */
static int take(struct scene *s, struct ibx_conn *conn, int before,
                const struct ibx_migrate_any *message, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(60000);
    struct ibx_event event;
    int rc = before;
    raw_send(conn, message);
    while (rc == before && ibx_now_ns() < deadline) {
        ibx_poll(conn, &event, 1);
        rc = ibx_page_reader_regions(s->readers[0], err);
    }
    return rc;
}

/* Gives the destination these messages, then the final one. Returns its result. */
static int hostile(const struct ibx_migrate_any *messages, unsigned count, struct ibx_error *err)
{
    struct scene s;
    int rc = 0;
    assert_true(scene_make(&s, 1, false));
    struct ibx_conn *conn = scene_connect_raw(&s);
    for (unsigned i = 0; i < count && rc == (int)i; i++)
        rc = take(&s, conn, rc, &messages[i], err);
    if (rc >= 0)
        rc = ibx_page_reader_arm(s.readers[0], SMALL, &s.as[0], err);
    if (rc == 0)
        rc = ibx_page_reader_covers(s.readers[0], &s.map, err);
    ibx_close(conn);
    scene_end(&s);
    return rc;
}

static void test_hostile_regions(NO_STATE)
{
    const uint64_t last = 256 * SMALL; /* bytes of the last block */
    const struct {
        struct ibx_migrate_any messages[3];
        unsigned count;
        const char *says;
    } cases[] = {
        {{region_of(BLOCKS, 0, SMALL)}, 1, "block 2"},
        {{region_of(UINT16_MAX, 0, SMALL)}, 1, "65535"},
        {{region_of(1, last, SMALL)}, 1, "outside"},
        {{region_of(1, last + SMALL, SMALL)}, 1, "outside"},
        {{region_of(1, last - SMALL, 2 * SMALL)}, 1, "outside"},
        {{region_of(1, UINT64_MAX - SMALL + 1, SMALL)}, 1, ""},
        {{region_of(1, SMALL, UINT64_MAX - SMALL + 1)}, 1, ""},
        {{region_of(1, 0, 0)}, 1, ""},
        {{region_of(1, 1, SMALL)}, 1, ""},
        {{region_of(1, 0, SMALL + 1)}, 1, ""},
        {{region_of(1, 0, last), region_of(0, 0, SMALL), region_of(1, last - SMALL, SMALL)},
         3,
         "in two regions"},
        {{region_of(1, 0, SMALL), region_of(1, 0, SMALL)}, 2, "in two regions"},
        {{{.type = IBX_MIGRATE_READY}}, 1, "READY"},
        {{region_of(1, 0, last), region_of(0, 0, 4 * SMALL)}, 2, "page 4 of"},
        {{region_of(0, 0, SMALL)}, 1, "page 3 of"},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct ibx_error err = {0};
        assert_int_equal(hostile(cases[i].messages, cases[i].count, &err), -EPROTO);
        if (!strstr(err.message, cases[i].says))
            fail_msg("case %u: %s", i, err.message);
    }
}

static void test_hostile_key(NO_STATE)
{
    struct ibx_error err = {0};
    struct ibx_migrate_any message = region_of(1, 0, 4 * SMALL);
    message.is.region.remote.length = SMALL;
    assert_int_equal(hostile(&message, 1, &err), -EPROTO);
    message = region_of(1, 0, 4 * SMALL);
    message.is.region.remote.address = UINT64_MAX - SMALL;
    assert_int_equal(hostile(&message, 1, &err), -EPROTO);
}

/* A region of 4 KiB pages in memory of 2 MiB pages. */
static void test_hostile_regions_of_huge_pages(NO_STATE)
{
    const uint64_t huge = 2u << 20;
    const struct ibx_migrate_any messages[] = {region_of(1, SMALL, huge), region_of(1, 0, SMALL)};
    for (unsigned i = 0; i < COUNT(messages); i++) {
        struct ibx_error err = {0};
        struct scene s;
        assert_true(scene_make(&s, 1, false));
        s.described[1].page_size = huge;
        s.described[1].size = 2 * huge;
        struct ibx_conn *conn = scene_connect_raw(&s);
        assert_int_equal(take(&s, conn, 0, &messages[i], &err), -EPROTO);
        text_has(err.message, "whole pages");
        ibx_close(conn);
        scene_end(&s);
    }
}

/* Bytes that are not exposed have no remote address, be they before, between or behind regions. */
static void test_remote_of_bytes(NO_STATE)
{
    const struct ibx_migrate_any part = region_of(0, 4 * SMALL, 4 * SMALL);
    struct ibx_error err = {0};
    struct ibx_remote remote;
    struct scene s;
    assert_true(scene_make(&s, 1, false));
    struct ibx_conn *conn = scene_connect_raw(&s);
    assert_int_equal(take(&s, conn, 0, &part, &err), 1);
    assert_int_equal(ibx_page_reader_arm(s.readers[0], SMALL, &s.as[0], &err), 0);
    const struct ibx_page_reader *reader = s.readers[0];
    assert_int_equal(ibx_page_reader_remote(reader, 0, SMALL, &remote), -ERANGE);
    assert_int_equal(ibx_page_reader_remote(reader, 3 * SMALL, 2 * SMALL, &remote), -ERANGE);
    assert_int_equal(ibx_page_reader_remote(reader, 7 * SMALL, 2 * SMALL, &remote), -ERANGE);
    assert_int_equal(ibx_page_reader_remote(reader, 8 * SMALL, SMALL, &remote), -ERANGE);
    assert_int_equal(ibx_page_reader_remote(reader, 5 * SMALL, 3 * SMALL, &remote), 0);
    assert_int_equal(remote.address, part.is.region.remote.address + SMALL);
    assert_int_equal(remote.length, 3 * SMALL);
    ibx_close(conn);
    scene_end(&s);
}

/* Regions of single pages: 64 more than the memory has pieces (129 in the first block, and 1), and
 * another one. Each takes memory here. */
static void test_too_many_regions(NO_STATE)
{
    struct ibx_migrate_any messages[64 + 129 + 1 + 1];
    const unsigned count = sizeof(messages) / sizeof(*messages);
    struct ibx_error err = {0};
    for (unsigned i = 0; i < count; i++)
        messages[i] = region_of(0, (uint64_t)i * SMALL, SMALL);
    assert_int_equal(hostile(messages, count, &err), -EPROTO);
    assert_non_null(strstr(err.message, "more than 194 regions"));
}

/* A source that ends before it has exposed all: nobody waits for the rest, and the regions that
 * came are not used. */
static void test_source_ends_first(NO_STATE)
{
    const struct ibx_migrate_any part = region_of(0, 4 * SMALL, 4 * SMALL);
    const uint64_t deadline = ibx_deadline_in_ms(60000);
    struct ibx_error err = {0};
    struct scene s;
    int rc = 1;
    assert_true(scene_make(&s, 1, false));
    struct ibx_conn *conn = scene_connect_raw(&s);
    assert_int_equal(take(&s, conn, 0, &part, &err), 1);
    ibx_close(conn);
    while (rc == 1 && ibx_now_ns() < deadline) {
        ibx_wait(ibx_page_reader_conn(s.readers[0]), 100);
        rc = ibx_page_reader_regions(s.readers[0], &err);
    }
    assert_true(rc < 0);
    text_has(err.message, "a page connection has ended: ");
    assert_true(ibx_page_reader_arm(s.readers[0], SMALL, &s.as[0], &err) < 0);
    scene_end(&s);
}

/* A map of other memory says nothing of these regions. */
static void test_map_of_other_memory(NO_STATE)
{
    struct scene s;
    struct ibx_error err = {0};
    assert_true(scene_make(&s, 1, false));
    struct ibx_conn *conn = scene_connect_raw(&s);
    assert_int_equal(ibx_page_reader_arm(s.readers[0], SMALL, &s.as[0], &err), 0);
    for (unsigned other = 0; other < 3; other++) {
        struct ibx_migrate_block blocks[] = {s.described[0], s.described[1]};
        struct ibx_page_map map;
        blocks[1].size += other == 1 ? SMALL : 0;
        blocks[0].page_size /= other == 2 ? 2 : 1;
        assert_int_equal(ibx_page_map_init(&map, blocks, other ? 2 : 1, &err), 0);
        assert_int_equal(ibx_page_reader_covers(s.readers[0], &map, &err), -EINVAL);
        ibx_page_map_fini(&map);
    }
    ibx_close(conn);
    scene_end(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile_regions),
        cmocka_unit_test(test_map_of_other_memory),
        cmocka_unit_test(test_hostile_key),
        cmocka_unit_test(test_hostile_regions_of_huge_pages),
        cmocka_unit_test(test_remote_of_bytes),
        cmocka_unit_test(test_too_many_regions),
        cmocka_unit_test(test_source_ends_first),
    };
    pages_use(argc > 1 ? argv[1] : "tcp", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
