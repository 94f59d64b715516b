/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which registrations of memory that both ends map are kept, and for how long. */
#include "tests/fixtures/copies_scene.h"

#include "transport/core/conn.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BYTES  ((size_t)256 << 10)
#define PIECES (SHARED_REGIONS + 3)

static uint8_t *allocate(size_t n)
{
    uint8_t *memory = ibx_shared_allocate(n, NULL);
    assert_non_null(memory);
    return memory;
}

/* The client's only registration around this address; NULL: none. */
static struct ibx_mr *registration(const uint8_t *at)
{
    struct ibx_mr *found = NULL;
    for (struct ibx_mr *mr = pair.client->conn->regions; mr; mr = mr->next) {
        const uint8_t *begin = ibx_mr_address(mr);
        if (at < begin || (size_t)(at - begin) >= ibx_mr_length(mr))
            continue;
        assert_null(found);
        found = mr;
    }
    return found;
}

static unsigned registered(uint8_t *const *pieces)
{
    unsigned count = 0;
    for (unsigned i = 0; i < PIECES; i++)
        count += registration(pieces[i]) != NULL;
    return count;
}

/* Copies there and back, and checks the bytes. */
static void copies(uint8_t *memory, size_t n, uint64_t seed)
{
    struct ibx_frontend_copy to = {.to_device = true, .host = memory, .n = n, .lasting = true};
    struct ibx_frontend_copy from = {.host = memory, .n = n, .lasting = true};
    pattern_fill(memory, n, seed);
    assert_int_equal(copy_by_client(to), 0);
    assert_device(n, seed);
    memset(memory, 0, n);
    assert_int_equal(copy_by_client(from), 0);
    assert_int_equal(pattern_check(memory, n, seed), n);
}

/* Starts a copy to the device, and does not wait for it. */
static void leave_copy(uint8_t *memory, size_t n)
{
    int code = -1;
    struct ibx_frontend_copy copy = {.to_device = true,
                                     .async = true,
                                     .device = device,
                                     .host = memory,
                                     .n = n,
                                     .lasting = true};
    assert_int_equal(ibx_client_copy(pair.client, &copy, &code), 0);
    assert_int_equal(code, 0);
}

static void test_registered_once(void **state)
{
    (void)state;
    uint8_t *memory = allocate(BYTES);
    copies(memory, BYTES, 1);
    const struct ibx_mr *mr = registration(memory);
    assert_non_null(mr);
    const uint64_t key = mr->keys[0];
    assert_ptr_equal(mr->span.address, memory);
    assert_true(mr->span.length == BYTES);
    for (unsigned i = 0; i < 20; i++) {
        copies(memory + 999 * i, BYTES - 1999 * i, i);
        assert_ptr_equal(registration(memory), mr);
        assert_true(mr->keys[0] == key);
    }
    /* Beyond its end nothing belongs to it. */
    assert_false(ibx_shared_region_get(pair.client, memory + 1, BYTES));
    assert_false(ibx_shared_region_get(pair.client, memory - 1, 2));
    assert_true(ibx_shared_free(memory));
}

/* Other memory is registered for one call only. */
static void test_other_memory(void **state)
{
    (void)state;
    uint8_t *memory = scene_memory(BYTES);
    copies(memory, BYTES, 1);
    assert_null(registration(memory));
}

/* New memory at the same place is registered anew, whether longer or shorter. */
static void test_freed(void **state)
{
    (void)state;
    uint8_t *memory = allocate(BYTES), *again;
    for (unsigned i = 1; i <= 6; i++) {
        const size_t n = i % 2 ? 3 * BYTES : BYTES / 2;
        copies(memory, BYTES / 2, i);
        const uint64_t key = registration(memory)->keys[0];
        assert_true(ibx_shared_free(memory));
        assert_ptr_equal(again = allocate(n), memory);
        copies(memory, n, i);
        assert_true(registration(memory)->keys[0] != key);
        assert_true(registration(memory)->span.length == n);
    }
    assert_true(ibx_shared_free(memory));
}

static void test_many_pieces(void **state)
{
    (void)state;
    uint8_t *pieces[PIECES];
    for (unsigned i = 0; i < PIECES; i++)
        pieces[i] = allocate(BYTES);
    for (unsigned i = 0; i < 5 * PIECES; i++) {
        copies(pieces[i * 3 % PIECES], BYTES, i);
        assert_non_null(registration(pieces[i * 3 % PIECES]));
        assert_in_range(registered(pieces), 1, SHARED_REGIONS);
    }
    assert_int_equal(registered(pieces), SHARED_REGIONS);
    for (unsigned i = 0; i < PIECES; i++)
        assert_true(ibx_shared_free(pieces[i]));
}

/* Registrations in use stay in any case. What does not fit beside them is registered for one
 * call. */
static void test_in_use(void **state)
{
    (void)state;
    uint8_t *pieces[PIECES];
    struct ibx_mr *mrs[PIECES];
    for (unsigned i = 0; i < PIECES; i++) {
        pieces[i] = allocate(BYTES);
        mrs[i] = ibx_shared_region_get(pair.client, pieces[i], BYTES);
        assert_int_equal(mrs[i] != NULL, i < SHARED_REGIONS);
    }
    assert_ptr_equal(ibx_shared_region_get(pair.client, pieces[0] + 1, 1), mrs[0]);
    copies(pieces[PIECES - 1], BYTES, 1);
    assert_null(registration(pieces[PIECES - 1]));
    /* A registration that is freed meanwhile ends with its last user. */
    assert_true(ibx_shared_free(pieces[0]));
    assert_ptr_equal(allocate(BYTES), pieces[0]);
    assert_null(ibx_shared_region_get(pair.client, pieces[0], BYTES));
    assert_true(ibx_shared_region_put(pair.client, mrs[0]));
    assert_ptr_equal(registration(pieces[0]), mrs[0]);
    assert_true(ibx_shared_region_put(pair.client, mrs[0]));
    assert_null(registration(pieces[0]));
    copies(pieces[0], BYTES, 2);
    for (unsigned i = 1; i < SHARED_REGIONS; i++)
        assert_true(ibx_shared_region_put(pair.client, mrs[i]));
    for (unsigned i = 0; i < PIECES; i++)
        assert_true(ibx_shared_free(pieces[i]));
}

/* Registrations belong to one connection: the next one may be of another kind. */
static void test_next_connection(void **state)
{
    (void)state;
    uint8_t *idle = allocate(BYTES), *busy = allocate(BYTES);
    copies(idle, BYTES, 1);
    struct ibx_mr *mr = ibx_shared_region_get(pair.client, busy, BYTES);
    assert_non_null(mr);
    ibx_abort(pair.client->conn);
    leave_copy(scene_memory(BYTES), BYTES);
    assert_int_equal(ibx_session_resumed(pair.client), 1);
    assert_null(registration(idle));
    assert_ptr_equal(registration(busy), mr);
    assert_true(ibx_shared_region_put(pair.client, mr));
    assert_null(registration(busy));
    for (unsigned i = 2; i < 6; i++) {
        pattern_fill(busy, BYTES, i);
        leave_copy(busy, BYTES);
        copies(idle, BYTES / i, i);
        ibx_abort(pair.client->conn);
        copies(busy, BYTES, i + 10);
        assert_int_equal(ibx_session_resumed(pair.client), i);
    }
    assert_true(ibx_shared_free(idle) && ibx_shared_free(busy));
}

static int set_up_kept(void **state)
{
    session_keeps = 60;
    return set_up(state);
}

static int tear_down_kept(void **state)
{
    session_keeps = 0;
    return tear_down(state);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_registered_once),
        CASE(test_other_memory),
        CASE(test_freed),
        CASE(test_many_pieces),
        CASE(test_in_use),
        cmocka_unit_test_setup_teardown(test_next_connection, set_up_kept, tear_down_kept),
    };
    app = cuda_application();
    session_pair_use("shm", NULL, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
