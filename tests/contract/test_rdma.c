/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* READ and WRITE: any size and offset, exactly once, and urgent before bulk. */
#include "tests/contract/harness.h"

#include "common/clock.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MARGIN         8192u /* bytes that are checked on either side of a transfer */
#define MIB            ((size_t)1 << 20)
#define OUTSTANDING    64u
#define AVAILABLE_NEED (5ull << 30)
#define OVER_TWO_GIB   (((size_t)2 << 30) + 3 * MIB + 5)
#define PERIOD         (24 * MIB + 5 * 4096) /* neither 2^31 nor 2^32 is a multiple of it */

static struct field open_field(enum side side, size_t length)
{
    return field_open(pair_open(side), length, R | W);
}

static void await_all(struct field *field)
{
    AWAIT(field->end, field->end->completed == field->end->posted);
    CHECK(field->end->failed == 0);
}

static void close_field(struct field *field)
{
    CHECK(field->end->failed == 0);
    field_close(field);
}

static void check_here(const struct field *field, size_t from, size_t to, uint64_t seed,
                       uint64_t position, const char *what)
{
    ssize_t at = pattern_check(field->bytes + from, to - from, seed, position);
    if (at >= 0)
        FAIL("%s: this side's byte %zu of [%zu, %zu) is wrong", what, from + (size_t)at, from, to);
}

static void check_there(struct field *field, size_t from, size_t to, uint64_t seed,
                        uint64_t position, const char *what)
{
    int64_t at = field_peers_mismatch(field, from, to - from, seed, position);
    if (at >= 0)
        FAIL("%s: the peer's byte %zu of [%zu, %zu) is wrong", what, from + (size_t)at, from, to);
}

/* ------------------------------------------------------------ sizes, alignment */

static unsigned list_sizes(const struct ibx_caps *caps, size_t *sizes)
{
    const size_t chunk = caps->chunk;
    const size_t fixed[] = {0,
                            1,
                            2,
                            7,
                            64,
                            4095,
                            4096,
                            4097,
                            65537,
                            chunk - 1,
                            chunk,
                            chunk + 1,
                            3 * chunk + 5,
                            contract_size(24 * MIB + 3, 2 * MIB + 3)};
    memcpy(sizes, fixed, sizeof(fixed));
    return sizeof(fixed) / sizeof(fixed[0]);
}

static void read_one(struct field *field, size_t here, size_t there, size_t length)
{
    size_t before = here < MARGIN ? here : MARGIN;
    end_read(field->end, field->mr, field->bytes + here, &field->remote, there, length, 0);
    await_all(field);
    check_here(field, here - before, here, SEED_LOCAL, here - before, "before a READ");
    check_here(field, here, here + length, SEED_REMOTE, there, "a READ");
    check_here(field, here + length, here + length + MARGIN, SEED_LOCAL, here + length,
               "after a READ");
    pattern_fill(field->bytes + here, length, SEED_LOCAL, here);
}

static void write_one(struct field *field, size_t here, size_t there, size_t length)
{
    size_t before = there < MARGIN ? there : MARGIN;
    end_write(field->end, field->mr, field->bytes + here, &field->remote, there, length, 0);
    await_all(field);
    check_there(field, there - before, there, SEED_REMOTE, there - before, "before a WRITE");
    check_there(field, there, there + length, SEED_LOCAL, here, "a WRITE");
    check_there(field, there + length, there + length + MARGIN, SEED_REMOTE, there + length,
                "after a WRITE");
    check_here(field, here, here + length, SEED_LOCAL, here, "the source of a WRITE");
    if (length)
        pair_ask(field->pair, (struct order){.verb = ORDER_FILL, .seed = SEED_REMOTE});
}

typedef void transfer_fn(struct field *field, size_t here, size_t there, size_t length);

static void try_sizes(enum side side, transfer_fn *transfer)
{
    static const size_t shifts[][2] = {{0, 0}, {1, 0}, {0, 3}, {4093, 4097}};
    size_t sizes[16];
    struct pair *probe = pair_open(side);
    unsigned count = list_sizes(probe->end.caps, sizes);
    pair_close(probe);
    size_t largest = 0;
    for (unsigned i = 0; i < count; i++)
        largest = sizes[i] > largest ? sizes[i] : largest;

    struct field field = open_field(side, largest + 2 * MARGIN + 8192);
    for (unsigned i = 0; i < count; i++) {
        unsigned shift_count = sizes[i] > 4 * MIB ? 1 : 4;
        for (unsigned s = 0; s < shift_count; s++)
            transfer(&field, shifts[3 - s][0], shifts[3 - s][1], sizes[i]);
    }
    close_field(&field);
}

static void test_read_sizes(void **state)
{
    try_sizes(SIDE_OF(state), read_one);
}

static void test_write_sizes(void **state)
{
    try_sizes(SIDE_OF(state), write_one);
}

/* ------------------------------------------------------- many, mixed, outstanding */

static uint64_t next_random(struct field *field)
{
    return field->end->random = pattern_mix(field->end->random);
}

static void test_random_reads(void **state)
{
    size_t length = contract_size(8 * MIB, MIB), slot = 256 * 1024;
    struct field field = open_field(SIDE_OF(state), length);
    struct field slots = field;
    slots.bytes = pages_map(OUTSTANDING * slot);
    slots.mr = end_register(field.end, slots.bytes, OUTSTANDING * slot, IBX_ACCESS_LOCAL);
    for (size_t round = 0; round < contract_size(10, 3); round++) {
        size_t from[OUTSTANDING], bytes[OUTSTANDING];
        for (unsigned i = 0; i < OUTSTANDING; i++) {
            bytes[i] = next_random(&field) % (i % 4 ? 9000 : slot);
            from[i] = next_random(&field) % (length - bytes[i]);
            end_read(field.end, slots.mr, slots.bytes + i * slot, &field.remote, from[i], bytes[i],
                     0);
        }
        await_all(&field);
        for (unsigned i = 0; i < OUTSTANDING; i++)
            check_here(&slots, i * slot, i * slot + bytes[i], SEED_REMOTE, from[i], "random READ");
    }
    ibx_mr_deregister(slots.mr);
    pages_unmap(slots.bytes, OUTSTANDING * slot);
    close_field(&field);
}

/* The lower half is READ and the upper half WRITTEN in pieces, thousands of them in flight, in
 * random order. */
static void test_exactly_once(void **state)
{
    size_t half = contract_size(16 * MIB, 2 * MIB);
    struct field field = open_field(SIDE_OF(state), 2 * half);
    size_t read_to = 0, write_to = half;
    while (read_to < half || write_to < 2 * half) {
        uint64_t random = next_random(&field);
        size_t length = random % 64 ? random % 8192 : random % (half / 8);
        unsigned flags = random >> 60 ? 0 : IBX_URGENT;
        if ((random >> 32) % 2 && read_to < half) {
            length = length < half - read_to ? length : half - read_to;
            end_read(field.end, field.mr, field.bytes + read_to, &field.remote, read_to, length,
                     flags);
            read_to += length;
        } else if (write_to < 2 * half) {
            length = length < 2 * half - write_to ? length : 2 * half - write_to;
            end_write(field.end, field.mr, field.bytes + write_to, &field.remote, write_to, length,
                      flags);
            write_to += length;
        }
        if ((random >> 40) % 16 == 0)
            end_poll(field.end);
    }
    await_all(&field);
    check_here(&field, 0, half, SEED_REMOTE, 0, "mixed READs");
    check_here(&field, half, 2 * half, SEED_LOCAL, half, "sources of mixed WRITEs");
    check_there(&field, 0, half, SEED_REMOTE, 0, "sources of mixed READs");
    check_there(&field, half, 2 * half, SEED_LOCAL, half, "mixed WRITEs");
    close_field(&field);
}

/* The message names a place whose WRITE has completed, so the peer must find the bytes there. */
static void send_place(struct field *field, uint64_t offset, uint64_t length, uint64_t seed)
{
    uint8_t bytes[24];
    struct ibx_writer writer = ibx_writer_of(bytes, sizeof(bytes));
    ibx_put_u64(&writer, offset);
    ibx_put_u64(&writer, length);
    ibx_put_u64(&writer, seed);
    struct iovec iov = {bytes, writer.length};
    end_push(field->end, &iov, 1, 0, 0);
    field->end->sent++;
}

static void test_message_after_write_sees_the_bytes(void **state)
{
    enum { PLACES = 16, PLACE = 32 * 1024 };
    struct field field = open_field(SIDE_OF(state), PLACES * PLACE);
    size_t rounds = contract_size(100, 20);
    uint64_t sent = 0;
    pair_ask(field.pair, (struct order){.verb = ORDER_MODE, .value = MODE_PLACES});
    for (size_t round = 0; round < rounds; round++) {
        size_t bytes[PLACES];
        unsigned first = field.end->posted;
        for (unsigned i = 0; i < PLACES; i++) {
            bytes[i] = 1 + next_random(&field) % (PLACE - 1);
            pattern_fill(field.bytes + i * PLACE, bytes[i], 1000 + sent + i, i * PLACE);
            end_write(field.end, field.mr, field.bytes + i * PLACE, &field.remote, i * PLACE,
                      bytes[i], i % 4 ? 0 : IBX_URGENT);
        }
        /* In the order of the posts, each as soon as it has completed. */
        for (unsigned i = 0; i < PLACES; i++) {
            AWAIT(field.end, field.end->posts[first + i].times);
            send_place(&field, i * PLACE, bytes[i], 1000 + sent + i);
        }
        sent += PLACES;
        /* The peer has checked the places before they are used again. */
        pair_await(field.pair, ORDER_COUNT, sent);
    }
    close_field(&field);
}

/* --------------------------------------------------------------- urgent, huge */

enum { PAGE = 4096, PAGES = 16 };

/* Urgent pages one after the other while a large READ is in flight. The last one may complete
 * after the READ. */
static void urgent_one_by_one(struct field *field, uint8_t *page, struct ibx_mr *page_mr)
{
    struct end *end = field->end;
    unsigned bulk = end_read(end, field->mr, field->bytes, &field->remote, 0, field->length, 0);
    unsigned served = 0;
    for (int i = 0; i < 100 && !end->posts[bulk].times; i++) {
        size_t from = next_random(field) % (field->length - PAGE);
        unsigned urgent = end_read(end, page_mr, page, &field->remote, from, PAGE, IBX_URGENT);
        AWAIT(end, end->posts[urgent].times);
        CHECK(end->failed == 0);
        CHECK(pattern_check(page, PAGE, SEED_REMOTE, from) < 0);
        served += end_before(end, urgent, bulk);
    }
    await_all(field);
    if (!served)
        FAIL("no urgent READ got through during a READ of %zu bytes", field->length);
}

/* Many urgent pages at once, and a WRITE to bytes that the large READ leaves out. */
static void urgent_all_at_once(struct field *field, uint8_t *page, struct ibx_mr *page_mr)
{
    struct end *end = field->end;
    size_t length = field->length;
    unsigned bulk = end_read(end, field->mr, field->bytes, &field->remote, 0, length - 3, 0);
    for (unsigned i = 0; i < PAGES; i++)
        end_read(end, page_mr, page + i * PAGE, &field->remote, i * PAGE, PAGE, IBX_URGENT);
    pattern_fill(field->bytes + length - 3, 3, SEED_LOCAL, length - 3);
    end_write(end, field->mr, field->bytes + length - 3, &field->remote, length - 3, 3, IBX_URGENT);
    await_all(field);
    for (unsigned i = bulk + 1; i < end->posted; i++)
        CHECK(end_before(end, i, bulk));
    CHECK(pattern_check(page, PAGES * PAGE, SEED_REMOTE, 0) < 0);
    check_there(field, length - 3, length, SEED_LOCAL, length - 3, "the urgent WRITE");
}

static void test_urgent_before_bulk(void **state)
{
    /* Much more than libfabric has in flight at once, because that much is ahead of urgent work.
     * Soft-RoCE paces itself and, with more, runs out of memory for packets. */
    size_t length = contract_size(128 * MIB, (!strcmp(contract.provider, "verbs") ? 16 : 64) * MIB);
    struct field field = open_field(SIDE_OF(state), length);
    uint8_t *page = pages_map(PAGES * PAGE);
    struct ibx_mr *page_mr = end_register(field.end, page, PAGES * PAGE, IBX_ACCESS_LOCAL);
    urgent_one_by_one(&field, page, page_mr);
    urgent_all_at_once(&field, page, page_mr);
    check_here(&field, 0, length - 3, SEED_REMOTE, 0, "the bulk READs");
    ibx_mr_deregister(page_mr);
    pages_unmap(page, PAGES * PAGE);
    close_field(&field);
}

/* Urgent pages all the time, several at once, during large READs. Bulk data that was overtaken
 * still arrives, with its own bytes. */
static void test_bulk_under_urgent(void **state)
{
    struct field field = open_field(SIDE_OF(state), 8 * MIB);
    struct end *end = field.end;
    uint8_t *page = pages_map(PAGES * PAGE);
    struct ibx_mr *page_mr = end_register(end, page, PAGES * PAGE, IBX_ACCESS_LOCAL);
    size_t from[PAGES];
    unsigned post[PAGES], bulk = 0, rounds = (unsigned)contract_size(4, 2), wanted = 0;
    for (unsigned i = 0; i < PAGES; i++)
        post[i] = UINT_MAX;
    for (unsigned done = 0; done < rounds;) {
        if (!wanted++)
            bulk = end_read(end, field.mr, field.bytes, &field.remote, 0, field.length, 0);
        for (unsigned i = 0; i < PAGES; i++) {
            if (post[i] != UINT_MAX && !end->posts[post[i]].times)
                continue;
            CHECK(end->failed == 0);
            if (post[i] != UINT_MAX)
                CHECK(pattern_check(page + i * PAGE, PAGE, SEED_REMOTE, from[i]) < 0);
            from[i] = next_random(&field) % (field.length - PAGE);
            post[i] =
                end_read(end, page_mr, page + i * PAGE, &field.remote, from[i], PAGE, IBX_URGENT);
        }
        end_poll(end);
        /* Not without limit: a provider may hold back bulk as long as there is urgent work. */
        if (!end->posts[bulk].times && wanted < contract_size(20000, 4000))
            continue;
        await_all(&field);
        check_here(&field, 0, field.length, SEED_REMOTE, 0, "READs that were overtaken");
        memset(field.bytes, 0, field.length);
        for (unsigned i = 0; i < PAGES; i++)
            post[i] = UINT_MAX;
        wanted = 0;
        done++;
    }
    ibx_mr_deregister(page_mr);
    pages_unmap(page, PAGES * PAGE);
    close_field(&field);
}

static unsigned long long memory_available(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && fgets(line, sizeof(line), file) && !sscanf(line, "MemAvailable: %llu", &kib))
        ;
    if (file)
        fclose(file);
    return kib << 10;
}

/* On a busy host this much does not arrive within one wait. */
static void await_long(struct end *end)
{
    uint64_t deadline = ibx_deadline_in_ms(3 * contract_patience_ms());
    while (end->completed < end->posted)
        end_turn(end, deadline, "a long READ", __FILE__, __LINE__);
    CHECK(end->failed == 0);
}

/* Between the marks, the peer's pages are the zero page. */
static void over_two_gib(enum side side)
{
    size_t length = OVER_TWO_GIB, mark = 4096;
    const size_t marks[] = {0, ((size_t)1 << 30) - mark / 2, ((size_t)1 << 31) - mark,
                            ((size_t)1 << 31) + 1, length - mark};
    const unsigned mark_count = sizeof(marks) / sizeof(marks[0]);

    struct pair *pair = pair_open(side);
    struct ibx_remote remote = pair_expose(pair, 0, length, R | W, 0);
    uint8_t *bytes = pages_map(length);
    madvise(bytes, length, MADV_HUGEPAGE);
    struct ibx_mr *mr = end_register(&pair->end, bytes, length, IBX_ACCESS_LOCAL);
    for (unsigned i = 0; i < mark_count; i++) {
        pattern_fill(bytes, mark, i, 0);
        end_write(&pair->end, mr, bytes, &remote, marks[i], mark, 0);
        AWAIT(&pair->end, pair->end.completed == pair->end.posted);
    }
    memset(bytes, 0xff, mark);
    end_read(&pair->end, mr, bytes, &remote, 0, length, 0);
    await_long(&pair->end);
    for (unsigned i = 0; i < mark_count; i++) {
        CHECK(pattern_check(bytes + marks[i], mark, i, 0) < 0);
        memset(bytes + marks[i], 0, mark);
    }
    CHECK(bytes[0] == 0 && !memcmp(bytes, bytes + 1, length - 1));
    ibx_mr_deregister(mr);
    pages_unmap(bytes, length);
    pair_close(pair);
}

/* If that needs too much memory, both sides use a few MiB of it repeatedly. */
static struct field open_repeating(enum side side)
{
    struct field field = {.pair = pair_open(side), .length = OVER_TWO_GIB};
    field.end = &field.pair->end;
    field.remote = pair_ask(field.pair, (struct order){.verb = ORDER_EXPOSE,
                                                       .length = field.length,
                                                       .access = R | W,
                                                       .seed = SEED_REMOTE,
                                                       .period = PERIOD})
                       .remote;
    field.bytes = pages_map_repeating(field.length, PERIOD);
    pattern_fill(field.bytes, PERIOD, SEED_LOCAL, 0);
    field.mr = end_register(field.end, field.bytes, field.length, IBX_ACCESS_LOCAL);
    return field;
}

/* Places behind 2^31 bytes: if an offset were truncated to 31 bits, other bytes would be read
 * and written. */
static void test_behind_two_gib(void **state)
{
    size_t far = ((size_t)1 << 31) + 1, mark = 4096;
    struct field field = open_repeating(SIDE_OF(state));
    end_write(field.end, field.mr, field.bytes + far, &field.remote, far, mark, 0);
    await_all(&field);
    check_there(&field, 0, far % PERIOD, SEED_REMOTE, 0, "before a far WRITE");
    check_there(&field, far, far + mark, SEED_LOCAL, far % PERIOD, "a far WRITE");
    check_there(&field, far % PERIOD + mark, PERIOD, SEED_REMOTE, far % PERIOD + mark,
                "after a far WRITE");
    end_read(field.end, field.mr, field.bytes + far - mark, &field.remote, far - mark, 3 * mark, 0);
    await_all(&field);
    check_here(&field, 0, far % PERIOD - mark, SEED_LOCAL, 0, "before a far READ");
    check_here(&field, far - mark, far, SEED_REMOTE, far % PERIOD - mark, "a far READ");
    check_here(&field, far, far + mark, SEED_LOCAL, far % PERIOD, "what was written");
    check_here(&field, far + mark, far + 2 * mark, SEED_REMOTE, far % PERIOD + mark,
               "the end of a far READ");
    check_here(&field, far % PERIOD + 2 * mark, PERIOD, SEED_LOCAL, far % PERIOD + 2 * mark,
               "after a far READ");
    close_field(&field);
}

/* If a length were truncated to 31 bits, most of these bytes would not arrive. */
static void over_two_gib_repeating(enum side side)
{
    struct field field = open_repeating(side);
#ifdef MADV_POPULATE_WRITE /* half a million page faults cost more than the READ */
    madvise(field.bytes, field.length, MADV_POPULATE_WRITE);
#endif
    end_read(field.end, field.mr, field.bytes, &field.remote, 0, field.length, 0);
    await_long(field.end);
    check_here(&field, 0, PERIOD, SEED_REMOTE, 0, "a long READ");
    close_field(&field);
}

/* Lengths of more than 31 bits. */
static void test_over_two_gib(void **state)
{
    if (contract.small || memory_available() < AVAILABLE_NEED)
        over_two_gib_repeating(SIDE_OF(state));
    else
        over_two_gib(SIDE_OF(state));
}

static const struct CMUnitTest tests[] = {
    TEST_BOTH(test_read_sizes),
    TEST_BOTH(test_write_sizes),
    TEST_BOTH(test_random_reads),
    TEST_BOTH(test_exactly_once),
    TEST_BOTH(test_message_after_write_sees_the_bytes),
    TEST_BOTH(test_urgent_before_bulk),
    TEST_BOTH(test_bulk_under_urgent),
    TEST_BOTH(test_behind_two_gib),
    TEST_BOTH(test_over_two_gib),
};
GROUP(group_rdma, "rdma", tests);
