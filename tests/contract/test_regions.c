/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which memory a peer can access: bounds, access rights, keys, deregistration, allocation. */
#include "tests/contract/harness.h"

#include "common/clock.h"

#include <errno.h>
#include <string.h>

#define LENGTH     (256 * 1024u)
#define SEED_AFTER 33u

static struct field open_field(enum side side, unsigned access)
{
    return field_open(pair_open(side), LENGTH, access);
}

static void check_peers(struct field *field, size_t offset, size_t length, uint64_t seed)
{
    int64_t at = field_peers_mismatch(field, offset, length, seed, offset);
    if (at >= 0)
        FAIL("the peer's byte %zu of [%zu, %zu) is wrong", offset + (size_t)at, offset,
             offset + length);
}

/* -------------------------------------------------- what the peer's side must refuse */

/* Posts a forbidden transfer. It completes with an error; the connection may end too. */
static void must_fail(struct field *field, bool write, uint64_t offset, size_t length,
                      const char *what)
{
    unsigned post =
        write ? end_write(field->end, field->mr, field->bytes, &field->remote, offset, length, 0)
              : end_read(field->end, field->mr, field->bytes, &field->remote, offset, length, 0);
    AWAIT(field->end, field->end->posts[post].times);
    if (!field->end->posts[post].status)
        FAIL("%s: %s succeeded", what, write ? "a WRITE" : "a READ");
    pair_ask(field->pair, (struct order){.verb = ORDER_PING});
}

/* Every byte must be its old value or byte [position + i] of the peer's pattern, of which only
 * [0, LENGTH) may arrive. */
static void check_either(const uint8_t *bytes, int64_t position, const char *what)
{
    for (size_t i = 0; i < LENGTH; i++) {
        int64_t there = position + (int64_t)i;
        bool kept = pattern_check(bytes + i, 1, SEED_LOCAL, i) < 0;
        if (!kept && (there < 0 || there >= LENGTH ||
                      pattern_check(bytes + i, 1, SEED_REMOTE, (uint64_t)there) >= 0))
            FAIL("%s: byte %zu came from where it may not", what, i);
    }
}

static void must_fail_alone(enum side side, unsigned access, bool write, const char *what)
{
    struct field field = open_field(side, access);
    must_fail(&field, write, 0, LENGTH, what);
    CHECK(pattern_check(field.bytes, LENGTH, SEED_LOCAL, 0) < 0);
    check_peers(&field, 0, LENGTH, SEED_REMOTE);
    field_close(&field);
}

static void test_access_is_checked(void **state)
{
    must_fail_alone(SIDE_OF(state), W, false, "no remote READ access");
    must_fail_alone(SIDE_OF(state), R, true, "no remote WRITE access");
}

/* A key with one wrong bit is refused. Bits that a provider does not use may have any value. */
static void try_wrong_key(enum side side, unsigned bit)
{
    struct field field = open_field(side, R | W);
    for (int rail = 0; rail < IBX_RAILS_MAX; rail++) {
        uint64_t *key = &field.remote.keys[rail];
        if (bit < 64)
            *key ^= (uint64_t)1 << bit;
        else
            *key = bit == 64 ? pattern_mix(*key) : UINT64_MAX;
    }
    must_fail(&field, bit % 2, 0, 8192, "a wrong key");
    CHECK(pattern_check(field.bytes, LENGTH, SEED_LOCAL, 0) < 0);
    check_peers(&field, 0, LENGTH, SEED_REMOTE);
    field_close(&field);
}

static void test_wrong_keys(void **state)
{
    static const unsigned bits[] = {0, 3, 8, 13, 21, 24, 31, 64, 65};
    struct field field = open_field(SIDE_OF(state), R | W);
    bool wide = field.remote.keys[0] >> 32;
    field_close(&field);
    for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++)
        try_wrong_key(SIDE_OF(state), bits[i]);
    for (unsigned bit = 33; wide && bit < 64; bit += 10)
        try_wrong_key(SIDE_OF(state), bit);
}

/* The peer's memory continues beyond its region on both sides, with bytes that no transfer may
 * reach. Chunks of a failing post that are inside the region may or may not be moved. */
static void test_beyond_the_region(void **state)
{
    static const struct {
        int64_t shift; /* of the address: a false start of the region */
        uint64_t offset;
        size_t length;
        bool all_outside;
    } lies[] = {
        {0, 1, LENGTH, false},             /* one byte behind the region */
        {-1, 0, LENGTH, false},            /* one byte before the region */
        {LENGTH, 0, 4096, true},           /* behind the region */
        {-4096, 0, 4096, true},            /* before the region */
        {LENGTH - 100, 0, 4096, false},    /* across the end */
        {(int64_t)1 << 40, 0, 4096, true}, /* far away */
    };
    for (size_t i = 0; i < 2 * sizeof(lies) / sizeof(lies[0]); i++) {
        bool write = i % 2;
        struct field field = open_field(SIDE_OF(state), R | W);
        field.remote.address += (uint64_t)lies[i / 2].shift;
        field.remote.length = LENGTH + 1;
        must_fail(&field, write, lies[i / 2].offset, lies[i / 2].length, "beyond the region");
        if (!write)
            check_either(field.bytes, lies[i / 2].shift + (int64_t)lies[i / 2].offset,
                         "a READ beyond the region");
        /* The peer checks the bytes around the region each time that it is asked. */
        int64_t at = field_peers_mismatch(&field, 0, LENGTH, SEED_REMOTE, 0);
        CHECK(at < 0 || (write && !lies[i / 2].all_outside));
        field_close(&field);
    }
}

/* ------------------------------------------------------------------ deregistration */

static void test_deregistered_regions(void **state)
{
    for (int write = 0; write < 2; write++) {
        struct field field = open_field(SIDE_OF(state), R | W);
        end_read(field.end, field.mr, field.bytes, &field.remote, 0, LENGTH, 0);
        AWAIT(field.end, field.end->completed == 1);
        CHECK(pattern_check(field.bytes, LENGTH, SEED_REMOTE, 0) < 0);
        pattern_fill(field.bytes, LENGTH, SEED_LOCAL, 0);
        pair_ask(field.pair, (struct order){.verb = ORDER_DROP, .seed = SEED_AFTER});
        must_fail(&field, write, 0, LENGTH, "a deregistered region");
        CHECK(pattern_check(field.bytes, LENGTH, SEED_LOCAL, 0) < 0);
        check_peers(&field, 0, LENGTH, SEED_AFTER);
        field_close(&field);
    }
}

/* The peer deregisters and maps other memory while transfers run. It does not crash, no byte of
 * the new mapping arrives here, and none of this side's arrives there. */
static void drop_under_load(enum side side, bool write)
{
    struct field field = open_field(side, R | W);
    struct order drop = {.verb = ORDER_DROP, .seed = SEED_AFTER};
    uint64_t deadline = await_until();
    pair_tell(field.pair, &drop);
    while (!field.end->failed && !field.end->closed) {
        if (field.end->posted - field.end->completed < 16) {
            int rc =
                write ? end_try_write(field.end, field.mr, field.bytes, &field.remote, 0, LENGTH, 0)
                      : end_try_read(field.end, field.mr, field.bytes, &field.remote, 0, LENGTH, 0);
            CHECK(rc == 0 || rc == -ENOTCONN);
        }
        end_poll(field.end);
        if (ibx_now_ns() > deadline)
            FAIL("the deregistered region is still there");
    }
    AWAIT(field.end, field.end->closed || field.end->completed == field.end->posted);
    end_check_books(field.end);
    CHECK(pair_answer(field.pair).rc == 0);
    if (write)
        check_peers(&field, 0, LENGTH, SEED_AFTER);
    else
        check_either(field.bytes, 0, "a READ after deregistration");
    field_close(&field);
}

static void test_deregistration_under_load(void **state)
{
    for (int write = 0; write < 2; write++) {
        print_message("             %s\n", write ? "WRITEs" : "READs");
        drop_under_load(SIDE_OF(state), write);
    }
}

/* Local memory may be freed as soon as its work has completed or the connection is closed. */
static void test_local_memory_freed_at_once(void **state)
{
    struct field field = open_field(SIDE_OF(state), R | W);
    for (size_t i = 0; i < contract_size(200, 50); i++) {
        uint8_t *pages = pages_map(LENGTH);
        struct ibx_mr *mr = end_register(field.end, pages, LENGTH, IBX_ACCESS_LOCAL);
        end_read(field.end, mr, pages, &field.remote, 0, LENGTH, 0);
        AWAIT(field.end, field.end->completed == field.end->posted);
        CHECK(pattern_check(pages, 4096, SEED_REMOTE, 0) < 0);
        ibx_mr_deregister(mr);
        pages_unmap(pages, LENGTH);
    }
    for (int i = 0; i < 32; i++)
        end_read(field.end, field.mr, field.bytes, &field.remote, 0, LENGTH, 0);
    ibx_close(field.end->conn); /* deregisters too */
    field.end->conn = NULL;
    field_close(&field);
}

static void test_closed_in_the_middle_of_a_read(void **state)
{
    struct field field = open_field(SIDE_OF(state), R | W);
    for (int i = 0; i < 64; i++)
        end_read(field.end, field.mr, field.bytes, &field.remote, 0, LENGTH, 0);
    AWAIT(field.end, field.end->completed >= 3);
    ibx_close(field.end->conn);
    field.end->conn = NULL;
    /* Data that the peer still sends is dropped. */
    pattern_fill(field.bytes, LENGTH, SEED_LOCAL, 0);
    pair_await(field.pair, ORDER_STATUS, true);
    CHECK(pattern_check(field.bytes, LENGTH, SEED_LOCAL, 0) < 0);
    field_close(&field);
}

/* ---------------------------------------------------------------------- allocation */

static void test_allocated_memory(void **state)
{
    struct pair *pair = pair_open(SIDE_OF(state));
    struct end *end = &pair->end;
    struct ibx_error err = {0};
    struct ibx_mr *mr = NULL;
    size_t length = 3 * 4096 * 100 + 17;
    CHECK(ibx_mr_allocate(end->conn, 0, R, &mr, &err) == -EINVAL && !mr && err.message[0]);
    struct order expose = {.verb = ORDER_EXPOSE,
                           .length = length,
                           .access = R | W,
                           .seed = SEED_REMOTE,
                           .allocate = true};
    struct ibx_remote remote = pair_ask(pair, expose).remote;
    CHECK_OK(ibx_mr_allocate(end->conn, length, IBX_ACCESS_LOCAL, &mr, &err), err);
    uint8_t *bytes = ibx_mr_address(mr);
    CHECK(ibx_mr_length(mr) == length);
    CHECK((uintptr_t)bytes % 4096 == 0);
    for (size_t i = 0; i < length; i++)
        CHECK(bytes[i] == 0);

    end_read(end, mr, bytes, &remote, 0, length, 0);
    AWAIT(end, end->completed == 1);
    CHECK(end->failed == 0 && pattern_check(bytes, length, SEED_REMOTE, 0) < 0);
    /* A READ and a WRITE of everything but the margins do not change these. */
    pattern_fill(bytes, length, SEED_LOCAL, 0);
    end_read(end, mr, bytes + 5, &remote, 5, length - 12, 0);
    AWAIT(end, end->completed == 2);
    CHECK(pattern_check(bytes, 5, SEED_LOCAL, 0) < 0);
    CHECK(pattern_check(bytes + 5, length - 12, SEED_REMOTE, 5) < 0);
    CHECK(pattern_check(bytes + length - 7, 7, SEED_LOCAL, length - 7) < 0);
    pattern_fill(bytes, length, SEED_LOCAL, 0);
    end_write(end, mr, bytes + 5, &remote, 5, length - 12, 0);
    AWAIT(end, end->completed == 3 && end->failed == 0);
    check_peers(&(struct field){.pair = pair}, 0, 5, SEED_REMOTE);
    check_peers(&(struct field){.pair = pair}, 5, length - 12, SEED_LOCAL);
    check_peers(&(struct field){.pair = pair}, length - 7, 7, SEED_REMOTE);

    /* If both ends map the same memory, the peer's can be checked in place. */
    struct ibx_reach reach;
    if (!ibx_remote_hold(end->conn, &remote, R, &reach)) {
        uint8_t *mapped = reach.address;
        CHECK(!mapped || pattern_check(mapped + 5, length - 12, SEED_LOCAL, 5) < 0);
        ibx_remote_release(end->conn);
    }
    struct ibx_remote lie = remote;
    lie.length = UINT64_MAX - 4096;
    CHECK(ibx_remote_hold(end->conn, &lie, R, &reach) < 0);
    lie = remote;
    lie.address += (uint64_t)1 << 40;
    CHECK(ibx_remote_hold(end->conn, &lie, R, &reach) < 0);
    ibx_mr_deregister(mr);
    pair_close(pair);
}

static void test_allocate_again_and_again(void **state)
{
    struct pair *pair = pair_open(SIDE_OF(state));
    struct ibx_error err = {0};
    struct ibx_mr *regions[16] = {0};
    for (size_t i = 0; i < contract_size(400, 100); i++) {
        pair->end.random = pattern_mix(pair->end.random);
        size_t which = pair->end.random % 16, length = 1 + pair->end.random / 16 % 300000;
        ibx_mr_deregister(regions[which]);
        regions[which] = NULL;
        CHECK_OK(ibx_mr_allocate(pair->end.conn, length, R | W, &regions[which], &err), err);
        uint8_t *bytes = ibx_mr_address(regions[which]);
        CHECK(bytes[0] == 0 && bytes[length - 1] == 0 && bytes[length / 2] == 0);
        memset(bytes, 0xa5, length);
    }
    for (size_t i = 0; i < 8; i++)
        ibx_mr_deregister(regions[i]); /* the others end with the connection */
    pair_close(pair);
}

static void test_registration_is_refused_in_words(void **state)
{
    (void)state;
    struct pair *pair = pair_open(SIDE_SERVER);
    struct ibx_error err = {0};
    struct ibx_mr *mr = NULL;
    uint8_t byte;
    struct ibx_span nothing = ibx_span_host(&byte, 0), nowhere = ibx_span_host(NULL, 10);
    CHECK(ibx_mr_register(pair->end.conn, &nothing, R, &mr, &err) == -EINVAL && err.message[0]);
    CHECK(ibx_mr_register(pair->end.conn, &nowhere, R, &mr, &err) == -EINVAL && !mr);
    pair_close(pair);
}

static const struct CMUnitTest tests[] = {
    TEST_BOTH(test_access_is_checked),
    TEST_BOTH(test_wrong_keys),
    TEST_BOTH(test_beyond_the_region),
    TEST_BOTH(test_deregistered_regions),
    TEST_BOTH(test_deregistration_under_load),
    TEST_BOTH(test_local_memory_freed_at_once),
    TEST_BOTH(test_closed_in_the_middle_of_a_read),
    TEST_BOTH(test_allocated_memory),
    TEST_BOTH(test_allocate_again_and_again),
    TEST(test_registration_is_refused_in_words),
};
GROUP(group_regions, "regions", tests);
