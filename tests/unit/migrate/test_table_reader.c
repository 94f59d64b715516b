/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Hashes that are fetched together with the pages that need them. The test provides the lower
 * reader, which notes requests and answers them when, and as, the test says. */
#include "migrate/snapshot/hasher.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PAGE   IBX_SNAPSHOT_PAGE
#define PIECE  IBX_SNAPSHOT_PIECE_MIN      /* bytes of a piece of the table */
#define GROUP  (PIECE / IBX_SNAPSHOT_HASH) /* pages whose hashes are in one piece */
#define GROUPS 20u
#define RAM    (GROUPS * GROUP) /* pages */
/* the number of its first page; one page of device state comes before it */
#define TABLE (RAM + 1)

static struct ibx_error error;
static struct ibx_snapshot_manifest manifest;
static struct ibx_snapshot_table table;
static struct ibx_snapshot_index list;
static struct ibx_page_map map;
static struct ibx_snapshot_checker *checker;
static uint8_t buffer[IBX_SNAPSHOT_TABLE_BUFFER];

/* The first page of each group has its own byte; group 3 is zero. */
static void fill_page(uint64_t page, uint8_t *to)
{
    memset(to, 0, PAGE);
    if (page % GROUP == 0 && page / GROUP != 3)
        to[7] = (uint8_t)(1 + page / GROUP);
}

/* ----------------------------------------------------------------------------- the lower reader */

struct below {
    struct ibx_fault_request asked[64];
    unsigned count, taken; /* requests; requests that were answered */
    int refuses;           /* the error of the next requests */
    int status;            /* the status of arrivals */
    bool lies;             /* flips a bit of each page */
    uint64_t cancelled;
};

static int below_request(void *context, const struct ibx_fault_request *r)
{
    struct below *below = context;
    if (below->refuses)
        return below->refuses;
    assert_true(below->count < 64);
    below->asked[below->count++] = *r;
    return 0;
}

static void below_fill(const struct below *below, const struct ibx_fault_request *r)
{
    const bool hashes = r->offset >= (uint64_t)TABLE * PAGE;
    const size_t step = hashes ? PIECE : PAGE;
    uint8_t *to = r->buffer;
    for (uint64_t at = r->offset; at < r->offset + r->length; at += step, to += step) {
        if (hashes)
            memcpy(to, table.hashes + at - (uint64_t)TABLE * PAGE, step);
        else
            fill_page(at / PAGE, to);
        to[5] ^= below->lies;
    }
}

/* Nothing arrives before the test allows it. */
static unsigned ready;
static int below_poll(void *context, struct ibx_fault_arrival *arrivals, int max)
{
    struct below *below = context;
    int n = 0;
    for (; n < max && ready && below->taken < below->count; n++, ready--) {
        const struct ibx_fault_request *r = &below->asked[below->taken++];
        below_fill(below, r);
        arrivals[n] = (struct ibx_fault_arrival){
            .cookie = r->cookie, .status = below->status, .length = below->status ? 0 : r->length};
    }
    return n;
}

static void below_cancel(void *context, uint64_t cookie)
{
    struct below *below = context;
    below->cancelled = cookie;
}

static const struct ibx_fault_reader_ops below_ops = {
    .request = below_request, .poll = below_poll, .cancel = below_cancel};

/* ---------------------------------------------------------------- the scene */

struct scene {
    struct below below;
    struct ibx_snapshot_table_reader *reader;
    struct ibx_fault_reader as;
    uint8_t pages[1 << 20];
};
static struct scene scenes[2];

static int begin(void **unused)
{
    struct ibx_snapshot_hasher hasher;
    (void)unused;
    manifest = (struct ibx_snapshot_manifest){.hashed = true, .ram_count = 1, .state_bytes = 1};
    manifest.ram[0].size = (uint64_t)RAM * PAGE;
    memset(scenes, 0, sizeof(scenes));
    ready = 0;
    assert_int_equal(ibx_snapshot_table_init(&manifest, &table, &error), 0);
    assert_true(ibx_snapshot_hasher_init(&hasher, manifest.id));
    for (uint64_t page = 0; page < RAM; page += GROUP) {
        uint8_t bytes[PAGE];
        fill_page(page, bytes);
        assert_int_equal(
            ibx_snapshot_hasher_page(&hasher, page, bytes, table.hashes + page * 16, &error), 0);
    }
    ibx_snapshot_hasher_fini(&hasher);
    assert_int_equal(ibx_snapshot_table_read(&manifest, &table, NULL, &map, &list, &error), 0);
    assert_int_equal(ibx_snapshot_checker_create(&manifest, &list, 2, &checker, &error), 0);
    for (unsigned i = 0; i < 2; i++) {
        struct scene *s = &scenes[i];
        const struct ibx_fault_reader below = {.ops = &below_ops, .context = &s->below};
        s->reader =
            ibx_snapshot_table_reader_create(&below, i ? NULL : buffer, checker, i, &manifest);
        assert_non_null(s->reader);
        ibx_snapshot_table_reader_serve(s->reader, &s->as);
    }
    return 0;
}

static int end(void **unused)
{
    (void)unused;
    for (unsigned i = 0; i < 2; i++)
        ibx_snapshot_table_reader_destroy(scenes[i].reader);
    ibx_snapshot_checker_destroy(checker);
    ibx_snapshot_table_fini(&table);
    ibx_page_map_fini(&map);
    return 0;
}

static int ask(struct scene *s, uint64_t page, uint64_t pages, bool urgent, uint64_t cookie)
{
    const struct ibx_fault_request r = {.page = page,
                                        .offset = page * PAGE,
                                        .length = pages * PAGE,
                                        .buffer = s->pages,
                                        .cookie = cookie,
                                        .urgent = urgent};
    return s->as.ops->request(s->as.context, &r);
}

/* Lets this many requests arrive below. Returns what arrives above. */
static int let_arrive(struct scene *s, unsigned count, struct ibx_fault_arrival *arrivals)
{
    ready = count;
    return s->as.ops->poll(s->as.context, arrivals, 16);
}

static void asked(const struct scene *s, unsigned i, uint64_t page, uint64_t pages, bool urgent)
{
    const struct ibx_fault_request *r = &s->below.asked[i];
    assert_true(i < s->below.count);
    assert_int_equal(r->offset, page * PAGE);
    assert_int_equal(r->length, pages * PAGE);
    assert_int_equal(r->urgent, urgent);
}

static void asked_hashes(const struct scene *s, unsigned i, uint64_t piece, uint64_t pieces,
                         bool urgent)
{
    const struct ibx_fault_request *r = &s->below.asked[i];
    assert_true(i < s->below.count);
    assert_int_equal(r->offset, (uint64_t)TABLE * PAGE + piece * PIECE);
    assert_int_equal(r->length, pieces * PIECE);
    assert_int_equal(r->urgent, urgent);
}

static int check(const struct scene *s, unsigned worker, uint64_t page, uint32_t pages)
{
    memset(&error, 0, sizeof(error));
    return ibx_snapshot_checker_check(checker, worker, page, pages, s->pages, &error);
}

/* ---------------------------------------------------------------- what is asked, and when */

/* Page and hash are requested before either has arrived, and the page waits for its hash. */
static void test_one_round_trip(NO_STATE)
{
    struct scene *s = &scenes[0];
    struct ibx_fault_arrival got[16];
    assert_int_equal(ask(s, GROUP, 1, true, 77), 0);
    assert_int_equal(s->below.count, 2);
    asked(s, 0, GROUP, 1, true);
    asked_hashes(s, 1, 1, 1, true);
    assert_int_equal(let_arrive(s, 1, got), 0);
    assert_int_equal(s->as.ops->arm(s->as.context), 0);
    assert_int_equal(let_arrive(s, 1, got), 1);
    assert_int_equal(got[0].cookie, 77);
    assert_int_equal(got[0].length, PAGE);
    assert_int_equal(check(s, 0, GROUP, 1), 0);
    /* The hash is kept: the next page of the same group needs no further request, here and in
     * other readers. */
    assert_int_equal(ask(s, GROUP + 1, 2, true, 78), 0);
    assert_int_equal(ask(&scenes[1], GROUP, 1, true, 79), 0);
    assert_int_equal(s->below.count, 3);
    assert_int_equal(scenes[1].below.count, 1);
    assert_int_equal(let_arrive(s, 1, got), 1);
    assert_int_equal(got[0].cookie, 78);
}

/* The hash may arrive first. A request may need two pieces of the table; zero pages need none. */
static void test_which_hashes_are_requested(NO_STATE)
{
    struct scene *s = &scenes[0];
    struct ibx_fault_arrival got[16];
    assert_int_equal(ask(s, 2 * GROUP - 1, 2, true, 1), 0);
    asked_hashes(s, 1, 1, 2, true);
    assert_int_equal(let_arrive(s, 2, got), 1);
    assert_int_equal(ask(s, 3 * GROUP, GROUP, true, 2), 0); /* a larger page of zeros */
    assert_int_equal(s->below.count, 3);
    assert_int_equal(ask(s, 3 * GROUP + 5, GROUP, true, 3), 0);
    assert_int_equal(s->below.count, 5);
    asked_hashes(s, 4, 4, 1, true);
    assert_int_equal(let_arrive(s, 3, got), 2);
    /* Pieces in flight are not requested again, unless they are bulk and this request is urgent. */
    assert_int_equal(ask(s, 6 * GROUP, 1, false, 4), 0);
    assert_int_equal(ask(s, 6 * GROUP + 1, 1, false, 5), 0);
    assert_int_equal(s->below.count, 8);
    assert_int_equal(ask(s, 6 * GROUP + 2, 1, true, 6), 0);
    asked_hashes(s, 9, 6, 1, true);
    assert_int_equal(let_arrive(s, 5, got), 3);
}

/* The background fetches more and more of the following hashes, except those that another reader
 * is fetching. After a gap it may not be a background request. */
static void test_ahead_of_the_background(NO_STATE)
{
    struct scene *s = &scenes[0];
    struct ibx_fault_arrival got[16];
    assert_int_equal(ask(s, 12 * GROUP, 1, false, 1), 0);
    asked_hashes(s, 1, 12, 1, false);
    assert_int_equal(let_arrive(s, 2, got), 1);
    assert_int_equal(ask(s, 13 * GROUP, GROUP, false, 2), 0);
    asked_hashes(s, 3, 13, 2, false);
    assert_int_equal(let_arrive(s, 2, got), 1);
    assert_int_equal(ask(s, 15 * GROUP, 1, true, 3), 0);
    asked_hashes(s, 5, 15, 1, true);
    assert_int_equal(let_arrive(s, 2, got), 1);
    assert_int_equal(ask(&scenes[1], 18 * GROUP, 1, true, 4), 0);
    assert_int_equal(ask(s, 16 * GROUP, GROUP, false, 5), 0);
    asked_hashes(s, 7, 16, 2, false);
    assert_int_equal(let_arrive(s, 2, got) + let_arrive(&scenes[1], 2, got), 2);
    assert_int_equal(ask(&scenes[1], 19 * GROUP, GROUP, false, 6), 0);
    asked_hashes(&scenes[1], 3, 19, 1, false); /* the last piece; the device state is zeros */
    assert_int_equal(ask(s, 13 * GROUP, 6 * GROUP, false, 7), 0);
    assert_int_equal(s->below.count, 9);
}

/* Every request is answered in the end, even if there are more than can be fetched at once. */
static void test_many_requests(NO_STATE)
{
    struct scene *s = &scenes[0];
    struct ibx_fault_arrival got[16];
    unsigned came = 0;
    for (unsigned i = 0; i < GROUPS; i++)
        assert_int_equal(ask(s, i * GROUP, 1, true, i), 0);
    for (unsigned turn = 0; turn < 100 && came < GROUPS; turn++)
        came += (unsigned)let_arrive(s, 1, got);
    assert_int_equal(came, GROUPS);
    assert_int_equal(ibx_snapshot_checker_lacks(checker, 0, GROUPS), GROUPS);
    /* The first page is zero, and so is its hash. */
    assert_int_equal(ibx_snapshot_checker_fetched(checker),
                     (GROUPS - 1) * GROUP * IBX_SNAPSHOT_HASH);
}

/* Pages of the table itself are requested: from the kept ones, or over the network. */
static void test_the_table_itself(NO_STATE)
{
    struct scene *s = &scenes[0];
    struct ibx_fault_arrival got[16];
    assert_int_equal(ask(s, TABLE, 2, true, 1), 0);
    assert_int_equal(s->below.count, 1);
    assert_int_equal(let_arrive(s, 1, got), 1);
    assert_int_equal(check(s, 0, TABLE, 2), 0);
    memset(s->pages, 0, sizeof(s->pages));
    assert_int_equal(ask(s, TABLE, 2, true, 2), 0);
    assert_int_equal(s->below.count, 1);
    assert_int_equal(s->as.ops->arm(s->as.context), 1);
    assert_int_equal(let_arrive(s, 0, got), 1);
    assert_int_equal(got[0].cookie, 2);
    assert_memory_equal(s->pages, table.hashes, 2 * PAGE);
    assert_int_equal(ask(s, GROUP, 1, true, 3), 0);
    assert_int_equal(s->below.count, 2);
}

/* ---------------------------------------------------------------- what goes wrong */

/* The page is right and its hash is not. The page is delivered and refused; from another source
 * it is accepted. */
static void test_wrong_hash(NO_STATE)
{
    struct scene *s = &scenes[0];
    struct ibx_fault_arrival got[16];
    assert_int_equal(ask(s, GROUP, 1, true, 1), 0);
    assert_int_equal(let_arrive(s, 1, got), 0);
    s->below.lies = true;
    assert_int_equal(let_arrive(s, 1, got), 1);
    assert_int_equal(got[0].status, 0);
    assert_int_equal(check(s, 0, GROUP, 1), -EBADMSG);
    assert_non_null(strstr(error.message, "the hash of page 16 did not come, or is not the one"));
    s = &scenes[1];
    assert_int_equal(ask(s, GROUP, 1, true, 2), 0);
    assert_int_equal(let_arrive(s, 2, got), 1);
    assert_int_equal(check(s, 1, GROUP, 1), 0);
    fill_page(GROUP, scenes[0].pages);
    assert_int_equal(check(&scenes[0], 0, GROUP, 1), 0);
}

/* A hash does not arrive. The page is requested again, and its hash with it. */
static void test_lost_hash(NO_STATE)
{
    struct scene *s = &scenes[0];
    struct ibx_fault_arrival got[16];
    assert_int_equal(ask(s, GROUP, 1, true, 1), 0);
    assert_int_equal(let_arrive(s, 1, got), 0);
    s->below.status = -EAGAIN;
    assert_int_equal(let_arrive(s, 1, got), 1);
    assert_int_equal(got[0].status, -EAGAIN);
    assert_int_equal(ibx_snapshot_checker_fetched(checker), 0);
    s->below.status = 0;
    assert_int_equal(ask(s, GROUP, 1, true, 2), 0);
    assert_int_equal(s->below.count, 4);
    /* The page's own failure is reported at once, unchanged. */
    s->below.status = -ECANCELED;
    assert_int_equal(let_arrive(s, 1, got), 1);
    assert_int_equal(got[0].status, -ECANCELED);
}

/* The other end refuses the hash, as it would refuse the page: asking again would not help, and
 * nobody would learn of it. */
static void test_refused_hash(NO_STATE)
{
    struct scene *s = &scenes[0];
    struct ibx_fault_arrival got[16];
    assert_int_equal(ask(s, GROUP, 1, true, 1), 0);
    assert_int_equal(let_arrive(s, 1, got), 0);
    s->below.status = -EACCES;
    assert_int_equal(let_arrive(s, 1, got), 1);
    assert_int_equal(got[0].cookie, 1);
    assert_int_equal(got[0].status, -EACCES);
    /* It cannot even be requested: the page was, and its hash is requested when there is room. */
    s->below.status = 0;
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(ask(s, (4 + i) * GROUP, 1, false, 2 + i), 0);
    assert_int_equal(s->below.count, 2 + 10 + 8);
    s->below.refuses = -ENOMEM;
    int came = 0, failed = 0;
    for (unsigned turn = 0; turn < 3; turn++) {
        const int n = let_arrive(s, 16, got);
        for (int i = 0; i < n; i++)
            failed += got[i].status == -ENOMEM;
        came += n;
    }
    assert_int_equal(came, 10);
    assert_int_equal(failed, 1);
}

/* The page has arrived, and its hash is in flight, so the hash must arrive soon. */
static void test_cancelled(NO_STATE)
{
    struct scene *s = &scenes[0];
    struct ibx_fault_arrival got[16];
    assert_int_equal(ask(s, GROUP, 1, true, 77), 0);
    assert_int_equal(let_arrive(s, 1, got), 0);
    s->as.ops->cancel(s->as.context, 77);
    assert_int_equal(s->below.cancelled, s->below.asked[1].cookie);
    s->below.status = -ECANCELED;
    assert_int_equal(let_arrive(s, 1, got), 1);
    assert_int_equal(got[0].status, -EAGAIN);
}

/* The lower reader is full: first for the page, then for its hash only. */
static void test_lower_reader_is_full(NO_STATE)
{
    struct scene *s = &scenes[0];
    struct ibx_fault_arrival got[16];
    s->below.refuses = -EAGAIN;
    assert_int_equal(ask(s, GROUP, 1, true, 1), -EAGAIN);
    s->below.refuses = 0;
    assert_int_equal(ask(s, 2 * GROUP, 1, true, 1), 0);
    assert_int_equal(let_arrive(s, 2, got), 1);
    /* Only a limited amount is fetched ahead of the background at once; the rest follows. */
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(ask(s, (4 + i) * GROUP, 1, true, i), 0);
        assert_int_equal(s->below.count, 4 + 2 * i);
    }
    s->as.ops->cancel(s->as.context, 3);
    assert_int_equal(s->below.cancelled, s->below.asked[2 + 2 * 3].cookie);
    int came = 0;
    for (unsigned turn = 0; turn < 3; turn++)
        came += let_arrive(s, 16, got);
    assert_int_equal(came, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_round_trip, begin, end),
        cmocka_unit_test_setup_teardown(test_which_hashes_are_requested, begin, end),
        cmocka_unit_test_setup_teardown(test_ahead_of_the_background, begin, end),
        cmocka_unit_test_setup_teardown(test_many_requests, begin, end),
        cmocka_unit_test_setup_teardown(test_the_table_itself, begin, end),
        cmocka_unit_test_setup_teardown(test_wrong_hash, begin, end),
        cmocka_unit_test_setup_teardown(test_lost_hash, begin, end),
        cmocka_unit_test_setup_teardown(test_refused_hash, begin, end),
        cmocka_unit_test_setup_teardown(test_cancelled, begin, end),
        cmocka_unit_test_setup_teardown(test_lower_reader_is_full, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
